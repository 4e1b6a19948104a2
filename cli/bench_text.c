/* cli/bench_text.c: what bench --sessions --text FILE adds: each session reads another piece of a text, so that experts are chosen, and drafts
   accepted, as in use. It knows sessions and their numbers, not how they are measured. */

/* The tokens of the file, to `ids`: enough for `sessions` pieces of `prompt` tokens. */
static int read_pieces(const bench *b, const mote_model *model, int sessions, int prompt, bytes *ids) {
    bytes text = {NULL, 0, 0};
    size_t count = 0;
    FILE *in = open_input(b->o->text, 1);
    if (!in) return input_failure();
    int code = read_text(in, b->o->text, &text);
    fclose(in);
    if (!code) code = tokenize(model, text.data, text.size, ids, &count);
    free(text.data);
    if (code) return code;
    ids->size = count * sizeof(int32_t);
    if (count / (size_t)prompt >= (size_t)sessions) return 0;
    return complain(EXIT_FAILURE, "%s: %zu tokens, but %d sessions with prompts of %d need %d", b->o->text, count, sessions, prompt, sessions * prompt);
}

/* Piece i of `pieces`, which lie as far from each other as they can; the token that begins texts is its first one. */
static void take_piece(const mote_info *info, const bytes *ids, int i, int pieces, int prompt, int32_t *to) {
    const size_t count = ids->size / sizeof *to;
    memcpy(to, (const int32_t *)(const void *)ids->data + count / (size_t)pieces * (size_t)i, (size_t)prompt * sizeof *to);
    if (info->begin_token >= 0) *to = info->begin_token;
}

/* The different experts of a layer that `rows` rows would choose, if each chose its top_k of all with the same probability: E (1 - (1 - k/E)^rows). */
static double independent_experts(const mote_info *info, double rows) {
    const double experts = size_named(info, "moe", "experts"), chosen = size_named(info, "moe", "experts_per_token");
    return experts > 0 ? experts * (1 - pow(1 - chosen / experts, rows)) : NAN;
}

/* What sessions have drafted, from every source. judged: drafts that followed accepted ones only. */
typedef struct drafting { uint64_t passes, drafts, judged, accepted, tokens; } drafting;

/* What n sessions have drafted, all of them together, since they were opened. */
static int sum_drafting(mote_session *const *sessions, int n, drafting *sum) {
    mote_error error = {0, ""};
    memset(sum, 0, sizeof *sum);
    for (int i = 0; i < n; i++) {
        mote_speculation s = {0};
        mote_drafter_use blocks = {0};
        if (mote_speculation_of(sessions[i], &s, &error) || mote_drafter_of(sessions[i], &blocks, &error)) return report(&error);
        sum->tokens += s.tokens;
        for (int k = 0; k < MOTE_ROWS_MAX; k++) sum->passes += s.passes[k], sum->drafts += (uint64_t)k * s.passes[k];
        for (int k = 0; k < MOTE_ROWS_MAX - 1; k++) {
            sum->judged += blocks.drafted[k], sum->accepted += blocks.accepted[k];
            for (int of = 0; of < MOTE_DRAFT_SOURCES; of++) sum->judged += s.drafted[of][k], sum->accepted += s.accepted[of][k];
        }
    }
    return 0;
}

/* Of the passes after `before`: drafts a pass of a session, the share of those judged that was accepted, tokens a pass. */
static void put_drafting(const bench *b, const drafting *before, const drafting *after) {
    const double passes = (double)(after->passes - before->passes);
    put(b, "drafts_per_pass", (double)(after->drafts - before->drafts) / passes, 1, 10, 2);
    put(b, "accepted", (double)(after->accepted - before->accepted) / (double)(after->judged - before->judged), 100, 10, 1);
    put(b, "tokens_per_pass", (double)(after->tokens - before->tokens) / passes, 1, 10, 2);
}
