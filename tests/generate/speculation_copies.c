// A part of test_speculation: copies, on models with an MTP layer and without one.

enum { PERIOD = 17, CHANGES = 23, SCRIPT = 150 };

// Who hears an answer, and prompts it.
typedef struct prompter { reply a; const mote_session *s; } prompter;

// The text repeats itself, but for a token now and then: what is copied is mostly right.
static int prompt_logits(void *user, float *logits, int vocab_size) {
    const prompter *p = (const prompter *)user;
    const int n = count_of(p->s), id = n % CHANGES ? n % PERIOD * 3 + 5 : n % 50;
    if (id < vocab_size) logits[id] += 14;
    return 0;
}

static int prompter_id(void *user, int32_t id) {
    return reply_id(&((prompter *)user)->a, id);
}

// An answer as it is prompted, with logits; after it the session goes on by itself.
static void answer_prompted(mote_session *s, const mote_sampling *p, int tokens, prompter *to) {
    mote_generation g = {.sampling = p, .max_tokens = tokens, .raw = 1, .on_token = prompter_id, .on_logits = prompt_logits, .user = to};
    memset(to, 0, sizeof *to);
    to->s = s;
    EXPECT(MOTE_OK, mote_generate(s, &g, &to->a.r, &failure));
}

// Copies leave tokens and logits as they are, in two answers, the second after going back into the first; `copies`: they are made
// whatever they cost.
static void check_copies(const mote_model *m, int depth, int kind, int copies) {
    const mote_sampling p = sampling_of(kind, 3);
    const size_t vocab = (size_t)mote_model_info(m)->vocab_size;
    mote_session *s[2] = {session_of_depth(m, MOTE_MTP_OFF, CONTEXT), session_of_depth(m, depth, CONTEXT)};
    prompter *x = (prompter *)allocate(2 * sizeof *x);
    float *logits = (float *)allocate(vocab * sizeof *logits);
    mote_speculation counts = {0};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            if (!round) EXPECT(MOTE_OK, mote_feed(s[i], some_ids, 5, &failure));
            answer_prompted(s[i], &p, SCRIPT / 2, &x[i]);
            mote_checkpoint *c = checkpoint_of(s[i]);
            answer_prompted(s[i], &p, SCRIPT / 2, &x[i]);
            if (!round) EXPECT(MOTE_OK, mote_rewind(s[i], c, &failure));
            mote_checkpoint_free(c);
            if (!i) memcpy(logits, mote_logits(s[0]), vocab * sizeof *logits);
        }
        CHECK(same_ids(&x[1].a, x[0].a.ids, x[0].a.count) && x[0].a.count > 5, "depth %d, sampling %d, round %d: copies change the text", depth,
              kind, round);
        CHECK(same_logits(s[1], logits, (int)vocab), "depth %d, sampling %d, round %d: copies change the logits", depth, kind, round);
    }
    EXPECT(MOTE_OK, mote_speculation_of(s[1], &counts, &failure));
    uint64_t drafted = 0, accepted = 0;
    for (int i = 0; i < MOTE_ROWS_MAX - 1; i++) {
        drafted += counts.drafted[MOTE_DRAFT_COPY][i];
        accepted += counts.accepted[MOTE_DRAFT_COPY][i];
    }
    CHECK(!copies || (accepted > SCRIPT / 2 && accepted < drafted && counts.accepted[MOTE_DRAFT_COPY][depth - 1] > 0),
          "depth %d, sampling %d: %d copies, %d accepted", depth, kind, (int)drafted, (int)accepted);
    for (int i = 0; i < 2; i++) mote_session_close(s[i]);
    free(logits);
    free(x);
}

// has_mtp: copies compete with the MTP layer's drafts, and may lose.
static void test_copies(const mote_model *m, int has_mtp) {
    for (int d = 0; d < DEPTHS; d++)
        for (int kind = GREEDY; kind < KINDS; kind++)
            if (!test_brief || (kind == GREEDY) == (d == 0)) check_copies(m, depths[d], kind, depths[d] > 0 && !has_mtp && kind == GREEDY);
}
