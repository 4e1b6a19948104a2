// A part of test_session: how deep to draft.

// A session that believes these to be the costs of its passes.
static mote_session *session_costing(const mote_model *m, const double *cost) {
    mote_session *s = session_of(m, .context = CONTEXT, .threads = 1);
    memcpy(s->spec.seen.cost, cost, sizeof s->spec.seen.cost);
    s->spec.measured_at = 1;
    speculation_choose(s);
    return s;
}

// A pass in which each draft is accepted with this probability. Returns its cost.
static double pass(mote_session *s, double acceptance) {
    int drafts = s->spec.seen.depth, accepted = 0;
    double cost = s->spec.seen.cost[drafts];
    while (accepted < drafts && random_int(0, 999999) < acceptance * 1e6) accepted++;
    speculation_learn(s, drafts, accepted);
    return cost;
}

// How often the depth changes.
static int changes(mote_session *s, double acceptance, int passes) {
    int n = 0;
    for (int i = 0; i < passes; i++) {
        int depth = s->spec.seen.depth;
        pass(s, acceptance);
        n += s->spec.seen.depth != depth;
    }
    return n;
}

static void test_depth(const mote_model *m) {
    static const double cost[4] = {1, 1.2, 1.4, 1.6};
    mote_session *s = session_costing(m, cost);
    double sum = 0;
    int n = 0;
    changes(s, 1, 100);
    CHECK(s->spec.seen.depth == 3, "all accepted: depth %d", s->spec.seen.depth);
    for (n = 0; s->spec.seen.depth && n < 1000; n++) pass(s, 0);
    CHECK(n <= 80, "none accepted any more: drafts for %d passes", n);
    for (int i = 0; i < 20000; i++) sum += pass(s, 0);
    CHECK(sum < 1.004 * 20000, "none accepted: a pass costs %g of a plain one", sum / 20000);
    CHECK(s->spec.seen.passes[1] + s->spec.seen.passes[2] + s->spec.seen.passes[3] > 100 + (uint64_t)n,
          "none accepted: drafts are never tried again");
    for (n = 0; !s->spec.seen.depth && n < 10000; n++) pass(s, 0.9);
    CHECK(n <= 4000, "accepted again: no drafts for %d passes", n);
    changes(s, 0.9, 1000);
    CHECK(s->spec.seen.depth > 0, "accepted again: depth %d", s->spec.seen.depth);
    mote_session_close(s);
}

// From the start, without anything accepted before.
static void test_depth_of_nothing(const mote_model *m) {
    static const double cost[4] = {1, 1.2, 1.4, 1.6}, dear[4] = {1, 2, 3, 4};
    mote_session *s = session_costing(m, cost);
    int n;
    CHECK(s->spec.seen.depth > 0, "drafts are not tried");
    for (n = 0; s->spec.seen.depth && n < 1000; n++) pass(s, 0);
    CHECK(n <= 40, "none accepted from the start: drafts for %d passes", n);
    mote_session_close(s);
    s = session_costing(m, dear);
    CHECK(changes(s, 1, 1000) == 0 && s->spec.seen.depth == 0, "drafts that cost as much as passes: depth %d",
          s->spec.seen.depth);
    mote_session_close(s);
}

// Two depths that are as good as each other, within 3 %: it stays with one for long.
static void test_hysteresis(const mote_model *m) {
    for (int sign = -1; sign <= 1; sign++) {
        double p = 0.8, good = 1 + p, better = 1 + p + p * p, cost[4] = {1.3, good, better * (1 + 0.03 * sign), 9};
        mote_session *s = session_costing(m, cost);
        changes(s, p, 100);
        int n = changes(s, p, 5000);
        printf("%s: two depths within 3 %%: %d changes in 5000 passes\n", test_name, n);
        CHECK(n <= 50, "two depths within 3 %%: %d changes in 5000 passes", n);
        mote_session_close(s);
    }
}

// The drafts of a model that drafts from few rows of its vocabulary are among these.
static void test_draft_rows(void) {
    static const int rows[] = {0, 100, 1};
    for (int i = 0; i < 3; i++) {
        mote_options o = {.device = "cpu", .draft_rows = rows[i]};
        mote_model *m = NULL;
        int32_t drafts[MOTE_ROWS_MAX - 1], ids[] = {5, 6, 7};
        EXPECT(MOTE_OK, mote_open("models/demo", &o, &m, &failure));
        if (!m) break;
        mote_session *s = session_of(m, .context = CONTEXT, .threads = 1, .mtp = 3);
        EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
        EXPECT(MOTE_OK, make_drafts(s, 8, MOTE_ROWS_MAX - 1, drafts, &failure));
        for (int k = 0; k < MOTE_ROWS_MAX - 1; k++)
            CHECK(drafts[k] >= 0 && (!rows[i] || drafts[k] < rows[i]), "draft_rows %d: draft %d", rows[i], drafts[k]);
        mote_session_close(s);
        mote_close(m);
    }
}
