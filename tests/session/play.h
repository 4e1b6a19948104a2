/* tests/session/play.h: what sessions do, whatever their model is on, as bytes to compare, and sessions that they saved; for test_pipeline and
   test_hosts. */

enum { PROMPT = 200, CHUNK = 64, TOKENS = 24, LINES = 5, STEPS = 6, PASSES = 40 };

/* What is compared: bytes, in the order in which they come. */
typedef struct played {
    char *bytes;
    size_t size;
    char *saved[2];              /* sessions, after a prompt and after an answer */
    size_t saved_size[2];
} played;

static void played_add(played *p, const void *bytes, size_t n) {
    p->bytes = (char *)realloc(p->bytes, p->size + n);
    memcpy(p->bytes + p->size, bytes, n);
    p->size += n;
}

static void played_free(played *p) {
    free(p->bytes);
    for (int i = 0; i < 2; i++) free(p->saved[i]);
}

static void played_logits(played *p, const mote_session *s, int vocab) {
    const float *logits = mote_logits(s);
    if (CHECK(logits, "no logits")) played_add(p, logits, (size_t)vocab * sizeof *logits);
}

static int keep_token(void *user, int32_t id) {
    played_add((played *)user, &id, sizeof id);
    return 0;
}

static int32_t token(int i, int vocab) {
    return (int32_t)((i * 131 + i * i * 7 + 3) % vocab);
}

/* Blocks of every length, with logits and MTP logits of all rows; steps. */
static void play_blocks(const mote_model *m, int vocab, played *p) {
    static const int lengths[] = {1, 2, 4, 3, 5, 8, 11, 16, 1};
    const mote_sampling greedy = {0}, warm = {.temperature = 0.9f, .top_k = 20, .seed = 5};
    const int has_mtp = mote_model_info(m)->mtp_layers;
    mote_session *s = session_of(m, .context = 128, .threads = 2, .mtp = has_mtp ? 3 : MOTE_MTP_OFF);
    float *logits = (float *)allocate(16 * (size_t)vocab * sizeof *logits), *mtp = (float *)allocate(16 * (size_t)vocab * sizeof *mtp);
    int32_t ids[16], id;
    int at = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const size_t n = (size_t)lengths[i], with_mtp = has_mtp && n <= 4;
        for (size_t t = 0; t < n; t++) ids[t] = token(at++, vocab);
        EXPECT(MOTE_OK, mote_feed_logits(s, ids, n, logits, with_mtp ? mtp : NULL, &failure));
        played_add(p, logits, n * (size_t)vocab * sizeof *logits);
        if (with_mtp) played_add(p, mtp, (n - (i == 0)) * (size_t)vocab * sizeof *mtp);
        EXPECT(MOTE_OK, mote_step(s, i % 2 ? &warm : &greedy, &id, &failure));
        played_add(p, &id, sizeof id);
        if (i % 3 == 0) played_logits(p, s, vocab);
    }
    free(logits);
    free(mtp);
    mote_session_close(s);
}

/* A prompt in chunks, then an answer with drafts, or without. */
static void play_answer(const mote_model *m, int vocab, int mtp, float temperature, played *p, int keep) {
    int32_t ids[PROMPT];
    const mote_sampling sampling = {.temperature = temperature, .top_k = 20, .seed = 9};
    mote_generation g = {.size = sizeof g, .sampling = &sampling, .max_tokens = TOKENS, .on_token = keep_token, .user = p};
    mote_session *s = session_of(m, .context = PROMPT + 2 * TOKENS + 80, .threads = 2, .chunk = CHUNK, .mtp = mtp);
    for (int i = 0; i < PROMPT; i++) ids[i] = token(i % 67, vocab);
    EXPECT(MOTE_OK, mote_feed(s, ids, PROMPT, &failure));
    if (keep) p->saved[0] = session_bytes(s, &p->saved_size[0]);
    played_logits(p, s, vocab);
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    played_logits(p, s, vocab);
    if (keep) p->saved[1] = session_bytes(s, &p->saved_size[1]);
    mote_checkpoint *c = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_feed(s, ids, 70, &failure));
    played_logits(p, s, vocab);
    EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
    mote_checkpoint_free(c);
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    mote_session_close(s);
}

/* Sessions that share a runner: steps together, blocks, each with a prompt of its own, and one that is alone for a while. */
static void play_together(const mote_model *m, int vocab, played *p) {
    mote_runner *r = NULL;
    mote_turn turns[LINES];
    mote_sampling warm = {.temperature = 0.8f, .top_k = 20, .seed = 3};
    memset(turns, 0, sizeof turns);
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 160, .threads = 2}, &r, &failure));
    for (int i = 0; i < LINES; i++) {
        int32_t ids[80];
        const int n = 3 + i * 17;
        for (int t = 0; t < n; t++) ids[t] = token(t + i, vocab);
        turns[i].session = session_of(m, .context = 160, .runner = r, .mtp = i % 2 ? MOTE_MTP_OFF : 2);
        turns[i].sampling = i % 2 ? &warm : NULL;
        EXPECT(MOTE_OK, mote_feed(turns[i].session, ids, (size_t)n, &failure));
    }
    for (int k = 0; k < STEPS; k++) {
        const int n = k == 2 ? 1 : LINES;
        EXPECT(MOTE_OK, mote_step_many(turns, n, &failure));
        for (int i = 0; i < n; i++) {
            CHECK(!turns[i].error.code, "session %d: %s", i, turns[i].error.message);
            played_add(p, &turns[i].id, sizeof turns[i].id);
            if (k % 2) played_logits(p, turns[i].session, vocab);
        }
    }
    for (int i = 0; i < LINES; i++) {
        size_t size;
        char *bytes = session_bytes(turns[i].session, &size);
        played_add(p, bytes, size);
        free(bytes);
        mote_session_close(turns[i].session);
    }
    mote_runner_close(r);
}

static void play(const mote_model *m, played *p) {
    const int vocab = mote_model_info(m)->vocab_size, has_mtp = mote_model_info(m)->mtp_layers;
    play_blocks(m, vocab, p);
    play_answer(m, vocab, MOTE_MTP_OFF, 0, p, 0);
    if (has_mtp) play_answer(m, vocab, 3, 0, p, 1);
    play_answer(m, vocab, has_mtp ? 2 : 5, 0.7f, p, !has_mtp);
    play_together(m, vocab, p);
}

/* A session saved on one device goes on on several, and the other way round. */
static void test_saved(const char *what, const mote_model *m, const played *of, const played *want) {
    const mote_sampling greedy = {0};
    const int has_mtp = mote_model_info(m)->mtp_layers;
    mote_session *s = session_of(m, .context = PROMPT + 2 * TOKENS + 80, .threads = 2, .chunk = CHUNK, .mtp = has_mtp ? 3 : 5);
    for (int i = 0; i < 2; i++) {
        int32_t id;
        CHECK(of->saved_size[i] == want->saved_size[i] && !memcmp(of->saved[i], want->saved[i], of->saved_size[i]), "%s: session %d as bytes", what, i);
        EXPECT(MOTE_OK, mote_load(s, want->saved[i], want->saved_size[i], &failure));
        CHECK(session_is(s, want->saved[i], want->saved_size[i]), "%s: session %d, loaded", what, i);
        EXPECT(MOTE_OK, mote_step(s, &greedy, &id, &failure));
    }
    mote_session_close(s);
}

/* The bytes that m makes are these, and sessions go on here and there. */
static inline void compare_play(const char *what, const mote_model *m, const played *want) {
    played got = {0};
    size_t same = 0;
    play(m, &got);
    while (same < got.size && same < want->size && got.bytes[same] == want->bytes[same]) same++;
    CHECK(got.size == want->size && same == got.size, "%s: byte %zu of %zu, %zu expected", what, same, got.size, want->size);
    test_saved(what, m, &got, want);
    played_free(&got);
}
