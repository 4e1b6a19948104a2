/* diagnose/selftest_passes.cu: whether a row's bits depend on what else is in its pass: sessions that step together against the same
   sessions alone, and a prompt that is read at once against one read token by token. With the helpers of selftest.cu. */

enum { TRY_TOGETHER = 17, TRY_SAID = 6, TRY_CONTEXT_SMALL = 128 };

/* Sessions of a runner: tokens of their own, and what each says, with the logits after it. */
typedef struct selftest_group {
    mote_runner *runner;
    mote_session *session[TRY_TOGETHER];
    mote_checkpoint *read[TRY_TOGETHER];
    mote_sampling sampling[TRY_TOGETHER];
    mote_turn turn[TRY_TOGETHER];
    int32_t alone[TRY_TOGETHER][TRY_SAID];
    float *logits;               /* [TRY_TOGETHER][vocab] */
} selftest_group;

/* Session i, after a prompt of some length. */
static void group_join(selftest_group *g, selftest *t, int i) {
    int32_t ids[TRY_CONTEXT_SMALL];
    const int count = 1 + i * 4;
    mote_session_options o;
    memset(&o, 0, sizeof o);
    o.runner = g->runner;
    try_tokens(t, (uint64_t)i + 7, ids, count);
    memset(&g->sampling[i], 0, sizeof g->sampling[i]);
    g->sampling[i].temperature = i % 3 ? 1 : 0;
    g->sampling[i].top_k = 20;
    g->sampling[i].seed = (uint64_t)i;
    if (!t->code) t->code = mote_session_open(t->models[1], &o, &g->session[i], t->err);
    if (!t->code) t->code = mote_feed(g->session[i], ids, (size_t)count, t->err);
    if (!t->code) t->code = mote_checkpoint_take(g->session[i], &g->read[i], t->err);
    g->turn[i].session = g->session[i];
    g->turn[i].sampling = &g->sampling[i];
}

static void group_speak_alone(selftest_group *g, selftest *t, int i) {
    const size_t vocab = (size_t)t->models[1]->c.vocab;
    for (int k = 0; k < TRY_SAID && !t->code; k++) t->code = mote_step(g->session[i], &g->sampling[i], &g->alone[i][k], t->err);
    const float *logits = t->code ? NULL : mote_logits(g->session[i]);
    if (logits) memcpy(g->logits + (size_t)i * vocab, logits, vocab * sizeof *logits);
    if (!t->code) t->code = mote_rewind(g->session[i], g->read[i], t->err);
}

/* The first n of them together: the same tokens, the same logits. */
static void try_together(selftest_group *g, selftest *t, int n) {
    const size_t vocab = (size_t)t->models[1]->c.vocab;
    for (int k = 0; k < TRY_SAID && !t->code; k++) {
        t->code = mote_step_many(g->turn, n, t->err);
        for (int i = 0; i < n && !t->code; i++) try_worse(t, g->turn[i].id != g->alone[i][k]);
    }
    for (int i = 0; i < n && !t->code; i++) {
        const float *logits = mote_logits(g->session[i]);
        if (logits) try_equal(t, logits, g->logits + (size_t)i * vocab, vocab * sizeof *logits);
        else try_worse(t, INFINITY);
        t->code = mote_rewind(g->session[i], g->read[i], t->err);
    }
    try_row(t, 0, "%d sessions in one pass as each alone", n);
}

static void try_group(selftest *t) {
    static const int sizes[] = {2, 3, 4, 5, 8, 9, TRY_TOGETHER};
    mote_session_options o;
    selftest_group *g = (selftest_group *)calloc(1, sizeof *g);
    memset(&o, 0, sizeof o);
    o.context = TRY_CONTEXT_SMALL;
    o.sms = t->sms;
    if (!t->code && g) g->logits = (float *)malloc(TRY_TOGETHER * (size_t)t->models[1]->c.vocab * sizeof(float));
    if (!t->code && (!g || !g->logits)) t->code = fail_memory(t->err);
    if (!t->code) t->code = mote_runner_open(t->models[1], &o, &g->runner, t->err);
    for (int i = 0; i < TRY_TOGETHER && !t->code; i++) group_join(g, t, i);
    for (int i = 0; i < TRY_TOGETHER && !t->code; i++) group_speak_alone(g, t, i);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !t->code; i++) try_together(g, t, sizes[i]);
    for (int i = 0; i < TRY_TOGETHER && g; i++) {
        mote_checkpoint_free(g->read[i]);
        mote_session_close(g->session[i]);
    }
    if (g) mote_runner_close(g->runner);
    if (g) free(g->logits);
    free(g);
}

/* `count` tokens at once, and one by one: the logits after each, and the session as it is saved. */
static void try_short_prompt(selftest *t, int count) {
    const size_t vocab = (size_t)t->models[1]->c.vocab;
    int32_t ids[PASS_ROWS_MAX];
    mote_session_options o;
    mote_session *s[2] = {NULL, NULL};
    char *saved[2] = {NULL, NULL};
    size_t size[2] = {0, 0};
    float *logits = (float *)malloc(2 * PASS_ROWS_MAX * vocab * sizeof *logits);
    memset(&o, 0, sizeof o);
    o.context = TRY_CONTEXT_SMALL;
    o.sms = t->sms;
    if (!t->code && !logits) t->code = fail_memory(t->err);
    try_tokens(t, (uint64_t)count, ids, PASS_ROWS_MAX);
    for (int i = 0; i < 2 && !t->code; i++) {
        t->code = mote_session_open(t->models[1], &o, &s[i], t->err);
        for (int k = 0, step; k < count && !t->code; k += step) {
            step = i ? 1 : count;
            t->code = mote_feed_logits(s[i], ids + k, (size_t)step, logits + ((size_t)i * PASS_ROWS_MAX + (size_t)k) * vocab, NULL, t->err);
        }
        if (!t->code) t->code = mote_feed(s[i], ids, MOTE_ROWS_MAX, t->err);   /* the whole log is of this block in both */
        if (!t->code) t->code = save_bytes(s[i], &saved[i], &size[i], t->err);
    }
    if (!t->code) {
        try_equal(t, logits, logits + PASS_ROWS_MAX * vocab, (size_t)count * vocab * sizeof *logits);
        try_worse(t, size[0] == size[1] ? 0 : INFINITY);
        try_equal(t, saved[0], saved[1], size[0] < size[1] ? size[0] : size[1]);
    }
    try_row(t, 0, "a prompt of %d tokens at once as one by one", count);
    for (int i = 0; i < 2; i++) {
        mote_session_close(s[i]);
        free(saved[i]);
    }
    free(logits);
}

/* Blocks of which a first part is kept, followed by blocks of more and of fewer rows, leave what these tokens leave one by one: the logits
   after each part, and the session as it is saved. */
static void try_kept_parts(selftest *t) {
    static const int blocks[][2] = {{8, 8}, {1, 1}, {8, 7}, {3, 2}, {8, 5}, {8, 6}, {4, 4}, {8, 1}, {2, 2}, {6, 6}, {5, 5}, {8, 3}, {7, 7}, {1, 1}};
    const size_t vocab = (size_t)t->models[1]->c.vocab;
    int32_t ids[PASS_ROWS_MAX + MOTE_ROWS_MAX];
    mote_session_options o;
    mote_session *s[2] = {NULL, NULL};
    char *saved[2] = {NULL, NULL};
    size_t size[2] = {0, 0};
    memset(&o, 0, sizeof o);
    o.context = TRY_CONTEXT_SMALL;
    o.sms = t->sms;
    try_tokens(t, 11, ids, PASS_ROWS_MAX + MOTE_ROWS_MAX);
    for (int i = 0; i < 2 && !t->code; i++) t->code = mote_session_open(t->models[1], &o, &s[i], t->err);
    for (size_t n = 0, at = 0; n < sizeof blocks / sizeof *blocks && !t->code; n++) {
        const int T = blocks[n][0], kept = blocks[n][1];
        t->code = timeline_forward(s[0], ids + at, T, 1, s[0]->slot.block_logits, NULL, t->err);
        if (!t->code) timeline_keep(s[0], kept);
        for (int k = 0; k < kept && !t->code; k++) t->code = mote_feed(s[1], ids + at + k, 1, t->err);
        at += (size_t)kept;
        const float *got = t->code ? NULL : mote_logits(s[0]), *want = t->code ? NULL : mote_logits(s[1]);
        if (!t->code && got && want) try_equal(t, got, want, vocab * sizeof *got);
        else try_worse(t, INFINITY);
    }
    for (int i = 0; i < 2 && !t->code; i++) {
        t->code = mote_feed(s[i], ids, MOTE_ROWS_MAX, t->err);          /* the whole log is of this block in both */
        if (!t->code) t->code = save_bytes(s[i], &saved[i], &size[i], t->err);
    }
    if (!t->code) {
        try_worse(t, size[0] == size[1] ? 0 : INFINITY);
        try_equal(t, saved[0], saved[1], size[0] < size[1] ? size[0] : size[1]);
    }
    try_row(t, 0, "blocks kept in part as their tokens one by one");
    for (int i = 0; i < 2; i++) {
        mote_session_close(s[i]);
        free(saved[i]);
    }
}

static void try_passes(selftest *t) {
    static const int counts[] = {5, 8, 15, 33, 64};
    for (int i = 0; i < 5 && !t->code; i++) try_short_prompt(t, counts[i]);
    if (!t->code) try_kept_parts(t);
    if (!t->code) try_group(t);
}
