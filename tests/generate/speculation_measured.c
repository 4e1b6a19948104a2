// A part of test_speculation: measured cycles, on a GPU.

static mote_model *synthetic_of(const char *name) {
    mote_options o = {.device = test_device};
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

static mote_measurement cycle_of(int drafts, int steps) {
    mote_measurement x = {.rows = drafts + 1, .depth = 100, .steps = steps, .drafts = drafts, .accept = {0.8, 0.6, 0.5}};
    return x;
}

// A cycle is measured, generates what the rates promise, and leaves an empty timeline.
static void test_cycle(mote_session *s, int drafts) {
    mote_measurement x = cycle_of(drafts, 400);
    double want = 1, all = 1;
    for (int i = 0; i < drafts; i++) want += all *= x.accept[i];
    EXPECT(MOTE_OK, mote_measure(s, &x, &failure));
    CHECK(fabs(x.tokens - want) < 0.2, "%d drafts: %g tokens of a cycle, expected %g", drafts, x.tokens, want);
    CHECK(x.fastest > 0 && x.fastest <= x.median && x.median <= x.slowest && x.wall > 0, "%d drafts: %g .. %g .. %g s",
          drafts, x.fastest, x.median, x.slowest);
    CHECK(x.verify > 0 && x.verify <= x.median && x.draft > 0 && x.draft < x.median, "%d drafts: %g s, verify %g, draft %g",
          drafts, x.median, x.verify, x.draft);
    CHECK(count_of(s) == 0 && x.bytes > 0, "%d drafts: the timeline is not empty", drafts);
}

// A rate of 1 or 0 is kept exactly.
static void test_rates(mote_session *s) {
    for (int drafts = 1; drafts <= 3; drafts++)
        for (int all = 0; all < 2; all++) {
            mote_measurement x = cycle_of(drafts, 50);
            for (int i = 0; i < 3; i++) x.accept[i] = all;
            EXPECT(MOTE_OK, mote_measure(s, &x, &failure));
            CHECK(fabs(x.tokens - (all ? drafts + 1 : 1)) < 1e-9, "%d drafts, rate %d: %g tokens", drafts, all, x.tokens);
        }
}

static void refuse(mote_session *s, mote_measurement x) {
    EXPECT(MOTE_EINVAL, mote_measure(s, &x, &failure));
}

static void test_refused(mote_session *s) {
    mote_measurement x = cycle_of(2, 10);
    x.rows = 2;
    refuse(s, x);
    x.rows = 4;
    refuse(s, x);
    x = cycle_of(2, 10);
    x.drafts = 4;
    refuse(s, x);
    x.drafts = -1;
    refuse(s, x);
    x = cycle_of(2, 10);
    x.accept[1] = 1.5;
    refuse(s, x);
    x.accept[1] = NAN;
    refuse(s, x);
    x = cycle_of(2, 10);
    x.overlap = 2;
    refuse(s, x);
    x.overlap = -0.5;
    refuse(s, x);
    x = cycle_of(2, 10);
    static const char *const head[] = {"head"}, *const unknown[] = {"heads"};
    x.stages = head;
    x.stage_count = 1;
    refuse(s, x);
    x = cycle_of(2, 10);
    x.drafts = 0;
    x.stages = unknown;
    x.stage_count = 1;
    refuse(s, x);
    x.stages = NULL;
    refuse(s, x);
}

// Without an MTP layer's KV rows there is no cycle.
static void test_no_mtp(const mote_model *m) {
    mote_session *s = session_of_depth(m, MOTE_MTP_OFF, CONTEXT);
    mote_measurement x = cycle_of(1, 10);
    EXPECT(MOTE_EUNSUPPORTED, mote_measure(s, &x, &failure));
    mote_session_close(s);
}

// Measuring in between changes no answer.
static void test_between_answers(const mote_model *m) {
    mote_session *s = session_of_depth(m, 3, CONTEXT);
    reply *want = (reply *)allocate(sizeof *want), *got = (reply *)allocate(sizeof *got);
    for (int i = 0; i < 2; i++) {
        mote_measurement x = cycle_of(3, 20);
        reply *a = i ? got : want;
        if (i) EXPECT(MOTE_OK, mote_measure(s, &x, &failure));
        EXPECT(MOTE_OK, mote_feed(s, some_ids, 5, &failure));
        generate(s, &samplings[GREEDY], 30, 0, a);
    }
    CHECK(same_reply(got, want), "another answer after measuring");
    mote_session_close(s);
    free(want);
    free(got);
}

// Rows that share their experts read fewer.
static void test_overlap(const mote_model *m) {
    mote_session *s = session_of_depth(m, 3, CONTEXT);
    mote_measurement apart = cycle_of(3, 50), together = cycle_of(3, 50);
    together.overlap = 1;
    EXPECT(MOTE_OK, mote_measure(s, &apart, &failure));
    EXPECT(MOTE_OK, mote_measure(s, &together, &failure));
    CHECK(together.bytes < apart.bytes, "%llu bytes with all experts in common, %llu without",
          (unsigned long long)together.bytes, (unsigned long long)apart.bytes);
    mote_session_close(s);
}

static void test_measure(const char *name) {
    mote_model *m = synthetic_of(name);
    mote_session *s = session_of_depth(m, MOTE_MTP_AUTO, CONTEXT);
    for (int drafts = 1; drafts <= 3; drafts++) test_cycle(s, drafts);
    test_rates(s);
    test_refused(s);
    mote_session_close(s);
    test_no_mtp(m);
    test_between_answers(m);
    if (!strncmp(name, "small", 5)) test_overlap(m);
    mote_close(m);
}
