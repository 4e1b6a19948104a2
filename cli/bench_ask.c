/* cli/bench_ask.c: bench --ask, the speed of real text. The two sessions must give the same answers.

   Real text: the questions of a file, answered by a session that does not speculate and by one that does. */

typedef struct side { mote_session *session; double tokens, seconds; } side;   /* of a comparison: what it generated */

/* The questions in b->file, one a line; path: what it is called. */
static int split_questions(bench *b, const char *path) {
    size_t lines = 1;
    for (size_t i = 0; i < b->file.size; i++) lines += b->file.data[i] == '\n';
    b->questions = calloc(lines, sizeof *b->questions);
    if (!b->questions) return complain(EXIT_FAILURE, "out of memory for %zu questions", lines);
    char *rest = b->file.data, *line;
    for (int number = 1; (line = strsep(&rest, "\n")); number++) {
        question q = {line, number, {NULL, 0, 0}};
        line[strcspn(line, "\r")] = 0;
        if (line[strspn(line, " \t")]) b->questions[b->question_count++] = q;
    }
    return b->question_count ? 0 : complain(EXIT_FAILURE, "%s: holds no questions", path);
}

static int read_questions(bench *b, const char *path) {
    FILE *in = open_input(path, 1);
    if (!in) return input_failure();
    int code = read_text(in, path, &b->file);
    fclose(in);
    if (code) return code;
    if (strlen(b->file.data) != b->file.size) return complain(EXIT_FAILURE, "%s: holds a zero byte", path);
    return split_questions(b, path);
}

static int on_asked(void *user, int32_t id) {
    return append(user, (const char *)&id, sizeof id);
}

/* Asks a synthetic model, which has no tokenizer: the question's bytes are its tokens. */
static int ask_synthetic(const bench *b, mote_session *session, const char *text, const mote_generation *g, mote_result *r,
                         mote_error *error) {
    int code = 0;
    for (; *text && !code; text++) {
        int32_t id = (unsigned char)*text % b->info->vocab_size;
        code = mote_feed(session, &id, 1, error);
    }
    return code ? code : mote_generate(session, g, r, error);
}

/* The answer to one question into `ids`; adds to the tokens and seconds of the side. */
static int ask(const bench *b, const question *q, side *of, bytes *ids) {
    mote_sampling greedy;
    mote_generation g;
    mote_result result;
    mote_error error = {0, ""};
    memset(&greedy, 0, sizeof greedy);
    memset(&g, 0, sizeof g);
    g.size = sizeof g;
    g.sampling = &greedy;
    g.max_tokens = b->o->steps;
    g.keep_thinking = 1;                   /* one turn */
    g.on_token = on_asked;
    g.user = ids;
    ids->size = 0;
    if (append(ids, "", 0)) return EXIT_FAILURE;
    mote_reset(of->session, NULL);
    int code = b->o->synthetic ? ask_synthetic(b, of->session, q->text, &g, &result, &error)
                               : mote_ask(of->session, q->text, &g, &result, &error);
    if (code == MOTE_ECANCELLED) return report(&error);
    if (code) return complain(EXIT_FAILURE, "%s: line %d: %s", b->o->ask, q->line, error.message);
    if (result.stop == MOTE_STOP_CALLBACK) return interrupted ? EXIT_INTERRUPTED : EXIT_FAILURE;
    of->tokens += result.generated_tokens;
    of->seconds += result.generate_seconds;
    return 0;
}

/* All questions once; *rate: tokens per second. An answer that is not the first one to its question differs. */
static int ask_all(bench *b, side *of, double *rate, int *differing) {
    side before = *of;
    bytes ids = {NULL, 0, 0};
    int code = 0;
    for (int i = 0; i < b->question_count && !code; i++) {
        question *q = &b->questions[i];
        int first = !q->first.data;
        code = ask(b, q, of, first ? &q->first : &ids);
        if (!code && !first && (ids.size != q->first.size || memcmp(ids.data, q->first.data, ids.size))) ++*differing;
    }
    *rate = (of->tokens - before.tokens) / (of->seconds - before.seconds);
    free(ids.data);
    return code;
}

static void put_numbered(const bench *b, const char *name, int number, double value) {
    char numbered[32];
    snprintf(numbered, sizeof numbered, "%s_%d", name, number);
    put(b, numbered, value, 1, 0, 0);
}

/* What a block drafter's drafts were, where there is one. */
static void put_drafter(const bench *b, const mote_drafter_use *use) {
    if (!use->rows) return;
    put(b, "seconds_block", use->cost > 0 ? use->cost : NAN, 1, 0, 0);
    for (int k = 1; k < MOTE_ROWS_MAX; k++) {
        put_numbered(b, "drafted_block", k, (double)use->drafted[k - 1]);
        put_numbered(b, "accept_block", k, (double)use->accepted[k - 1] / (double)use->drafted[k - 1]);
    }
}

/* seconds: of the answers. */
static void put_speculation(const bench *b, const mote_speculation *s, double seconds) {
    static const char *const accept[MOTE_DRAFT_SOURCES] = {"accept_mtp", "accept_copy"};
    static const char *const drafted[MOTE_DRAFT_SOURCES] = {"drafted_mtp", "drafted_copy"};
    put(b, "tokens_per_pass", tokens_per_pass(s), 1, 0, 0);
    put(b, "share_drafting", s->draft_seconds / seconds, 1, 0, 0);
    put(b, "share_passes", s->pass_seconds / seconds, 1, 0, 0);
    put(b, "seconds_draft", s->draft > 0 ? s->draft : NAN, 1, 0, 0);
    for (int k = 0; k < MOTE_ROWS_MAX; k++) {
        put_numbered(b, "passes", k, (double)s->passes[k]);
        put_numbered(b, "seconds", k, s->cost[k] > 0 ? s->cost[k] : NAN);
        for (int of = 0; of < MOTE_DRAFT_SOURCES && k; of++) {
            put_numbered(b, drafted[of], k, (double)s->drafted[of][k - 1]);
            put_numbered(b, accept[of], k, (double)s->accepted[of][k - 1] / (double)s->drafted[of][k - 1]);
        }
    }
    if (b->json) fputs(", ", b->json);
    if (b->json) json_text(b->json, "recent", s->recent);
}

/* off, on: of the rounds; ratio: of one round each. The ratio of the medians is shown, which lies between the lowest and the highest
   of the rounds. */
static void print_asked(bench *b, const side *on, timing off_rate, timing on_rate, timing ratio, int differing) {
    mote_speculation s = {0};
    mote_drafter_use blocks = {0};
    mote_speculation_of(on->session, &s, NULL);
    mote_drafter_of(on->session, &blocks, NULL);
    fprintf(b->table, "%d questions, at most %d tokens an answer, %d rounds without speculation and with it\n",
            b->question_count, b->o->steps, b->o->repeat);
    fprintf(b->table, "%-8s%10s%10s%10s%9s%9s%9s%11s\n", "", "tokens", "tok/s off", "tok/s on", "ratio", "lowest",
            "highest", "differing");
    begin_row(b, "ask", "ask", 8);
    put(b, "questions", b->question_count, 1, 0, 0);
    put(b, "rounds", b->o->repeat, 1, 0, 0);
    put(b, "tokens", on->tokens, 1, 10, 0);
    put(b, "tokens_per_second_off", off_rate.median, 1, 10, 1);
    put(b, "tokens_per_second_on", on_rate.median, 1, 10, 1);
    put(b, "ratio", on_rate.median / off_rate.median, 1, 9, 2);
    put(b, "ratio_lowest", ratio.low, 1, 9, 2);
    put(b, "ratio_highest", ratio.high, 1, 9, 2);
    put(b, "differing", differing, 1, 11, 0);
    put_drafter(b, &blocks);
    put_speculation(b, &s, on->seconds);
    end_row(b);
    if (s.tokens) print_speculation(b->table, &s, &blocks, on->seconds);
}

static int bench_ask(bench *b, options *o, const char *name, const mote_model *model) {
    options plain = *o;
    side off = {NULL, 0, 0}, on = {NULL, 0, 0};
    double ratios[99], slow[99], fast[99];
    int differing = 0;
    if (!b->info->chat_template && !o->synthetic)
        return complain(EXIT_FAILURE, "%s: no chat template mote knows, which --ask needs", name);
    if (!o->steps) plain.steps = o->steps = 128;
    plain.mtp = MOTE_MTP_OFF;
    plain.verbose = 0;
    int code = open_session(model, &plain, &b->session);
    off.session = b->session;
    if (!code) code = open_session(model, o, &on.session);
    if (!code && !o->report) print_head(b, name);
    if (!code && !o->report) json_head(b, name);
    for (int r = 0; r < o->repeat && !code; r++) {
        code = ask_all(b, &off, &slow[r], &differing);
        if (!code) code = ask_all(b, &on, &fast[r], &differing);
        ratios[r] = fast[r] / slow[r];
    }
    if (!code)
        print_asked(b, &on, summarise(slow, o->repeat), summarise(fast, o->repeat), summarise(ratios, o->repeat), differing);
    if (!code && b->json && !o->report) fputs("\n]}\n", b->json);
    if (!code && differing)
        code = complain(EXIT_FAILURE, "bench: %d answers differ: mote run --verify-spec tells where", differing);
    mote_session_close(on.session);
    return code;
}
