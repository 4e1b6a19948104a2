// A part of test_session: how deep to draft, and what passes cost.

// A session that believes these to be the costs of its passes, with 0, 1, .. drafts, and that drafting takes no time.
static mote_session *session_costing(const mote_model *m, const double *cost) {
    mote_session *s = session_of(m, .context = CONTEXT, .threads = 1);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < COST_TRUSTED; i++) cost_learn(&s->slot.runner->costs.alone, k + 1, 0, cost[k]);
    for (int k = 4; k < MOTE_ROWS_MAX; k++)
        for (int i = 0; i < COST_TRUSTED; i++) cost_learn(&s->slot.runner->costs.alone, k + 1, 0, 1000);
    speculation_choose(s);
    return s;
}

// A pass in which each draft is accepted with this probability. Returns its cost.
static double pass(mote_session *s, double acceptance) {
    int n = s->decoder->spec.stats.depth, accepted = 0;
    double cost = s->slot.runner->costs.alone.of[n + 1].seconds;
    const drafts d = drafts_by_place(s, MOTE_DRAFT_MTP, n);
    while (accepted < n && random_int(0, 999999) < acceptance * 1e6) accepted++;
    acceptance_learn(&s->decoder->spec, &d, n, accepted);
    acceptance_count(&s->decoder->spec, &d, n, n, accepted);
    speculation_choose(s);
    return cost;
}

// How often the depth changes.
static int changes(mote_session *s, double acceptance, int passes) {
    int n = 0;
    for (int i = 0; i < passes; i++) {
        int depth = s->decoder->spec.stats.depth;
        pass(s, acceptance);
        n += s->decoder->spec.stats.depth != depth;
    }
    return n;
}

static void test_depth(const mote_model *m) {
    static const double cost[4] = {1, 1.2, 1.4, 1.6};
    mote_session *s = session_costing(m, cost);
    double sum = 0;
    int n = 0;
    changes(s, 1, 100);
    CHECK(s->decoder->spec.stats.depth == 3, "all accepted: depth %d", s->decoder->spec.stats.depth);
    for (n = 0; s->decoder->spec.stats.depth && n < 1000; n++) pass(s, 0);
    CHECK(n <= 80, "none accepted any more: drafts for %d passes", n);
    for (int i = 0; i < 20000; i++) sum += pass(s, 0);
    CHECK(sum < 1.004 * 20000, "none accepted: a pass costs %g of a plain one", sum / 20000);
    CHECK(s->decoder->spec.stats.passes[1] + s->decoder->spec.stats.passes[2] + s->decoder->spec.stats.passes[3] > 100 + (uint64_t)n,
          "none accepted: drafts are never tried again");
    for (n = 0; !s->decoder->spec.stats.depth && n < 10000; n++) pass(s, 0.9);
    CHECK(n <= 4000, "accepted again: no drafts for %d passes", n);
    changes(s, 0.9, 1000);
    CHECK(s->decoder->spec.stats.depth > 0, "accepted again: depth %d", s->decoder->spec.stats.depth);
    mote_session_close(s);
}

// From the start, without anything accepted before.
static void test_depth_of_nothing(const mote_model *m) {
    static const double cost[4] = {1, 1.2, 1.4, 1.6}, dear[4] = {1, 2, 3, 4};
    mote_session *s = session_costing(m, cost);
    int n;
    CHECK(s->decoder->spec.stats.depth > 0, "drafts are not tried");
    for (n = 0; s->decoder->spec.stats.depth && n < 1000; n++) pass(s, 0);
    CHECK(n <= 40, "none accepted from the start: drafts for %d passes", n);
    mote_session_close(s);
    s = session_costing(m, dear);
    CHECK(changes(s, 1, 1000) == 0 && s->decoder->spec.stats.depth == 0, "drafts that cost as much as passes: depth %d",
          s->decoder->spec.stats.depth);
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

// Costs are those of the passes that were seen: what stands between them, beside them, and what is too old to count.
static void test_costs(void) {
    cost_table *c = (cost_table *)allocate(sizeof *c);
    CHECK(cost_expected(c, 3, 0) == 0, "nothing was seen: %g", cost_expected(c, 3, 0));
    cost_learn(c, 4, 0, 9);
    CHECK(cost_expected(c, 4, 0) == 0, "one pass is believed: %g", cost_expected(c, 4, 0));
    cost_learn(c, 4, 0, 2);
    CHECK(cost_expected(c, 4, 0) == 2, "of two passes not the faster one: %g", cost_expected(c, 4, 0));
    CHECK(cost_expected(c, 1, 0) == 0.5, "fewer rows than were seen: %g", cost_expected(c, 1, 0));
    for (int i = 0; i < 2; i++) cost_learn(c, 1, 0, 1.4);
    CHECK(fabs(cost_expected(c, 2, 0) - 1.6) < 1e-12 && cost_expected(c, 1, 0) == 1.4, "between: %g", cost_expected(c, 2, 0));
    CHECK(cost_expected(c, 8, 0) > 2 && cost_expected(c, 8, 0) < 4, "more rows: %g", cost_expected(c, 8, 0));
    CHECK(cost_expected(c, PASS_ROWS_MAX, 0) > cost_expected(c, 8, 0), "%d rows cost less than 8", PASS_ROWS_MAX);
    for (int i = 0; i < 300; i++) cost_learn(c, 4, 0, i % 3 ? 2 + 0.01 * (i % 7) : 3 + i % 5);
    CHECK(fabs(cost_expected(c, 4, 0) - 2.05) < 0.1, "two of three passes take 2 s, the others far more: %g", cost_expected(c, 4, 0));
    for (int i = 0; i < 100; i++) cost_learn(c, 4, 0, 4);
    CHECK(cost_expected(c, 4, 0) > 3.5, "slower for long: %g", cost_expected(c, 4, 0));
    CHECK(cost_expected(c, 1, 100000) == 0, "short contexts tell of a long one");
    for (int i = 0; i < 2; i++) cost_learn(c, 4, 100000, 8);
    CHECK(cost_expected(c, 4, 100000) == 8 && cost_expected(c, 4, 0) == 1.4 * pow(4, COST_GROWTH), "a long context: %g, a short one %g", cost_expected(c, 4, 100000),
          cost_expected(c, 4, 0));
    for (int i = 0; i < COST_AGE; i++) cost_learn(c, 4, 0, 4);
    CHECK(cost_expected(c, 1, 0) == 1, "an old cost counts: %g", cost_expected(c, 1, 0));
    free(c);
}

// Costs that are not exact, of some numbers of rows, give smooth ones.
static void test_costs_fitted(void) {
    cost_table *c = (cost_table *)allocate(sizeof *c);
    CHECK(cost_fitted(c, 3, 0) == 0, "nothing was seen: %g", cost_fitted(c, 3, 0));
    for (int i = 0; i < 2; i++) cost_learn(c, 8, 0, 1);
    CHECK(fabs(cost_fitted(c, 8, 0) - 1) < 1e-12 && fabs(cost_fitted(c, 16, 0) - pow(2, COST_GROWTH)) < 1e-12, "one number of rows: %g, %g",
          cost_fitted(c, 8, 0), cost_fitted(c, 16, 0));
    memset(c, 0, sizeof *c);
    for (int rows = 1; rows <= PASS_ROWS_MAX; rows += 1 + rows / 4)
        for (int i = 0; i < 20; i++) cost_learn(c, rows, 0, pow(rows, 0.9) * (rows % 2 ? 1.15 : 0.9));
    for (int rows = 4; rows < 48; rows++) {
        const double here = cost_fitted(c, rows, 0), more = cost_fitted(c, rows + 1, 0) - here, want = pow(rows, 0.9);
        CHECK(here > 0.85 * want && here < 1.15 * want && more > 0 && more < 2 * want / rows, "%d rows: %g, not %g; one more %g", rows, here, want,
              more);
    }
    free(c);
}

// Without known costs an answer tries what may pay, in its first passes: then all is known that it needs.
static void test_costs_found(const mote_model *m) {
    mote_session *s = session_of(m, .context = CONTEXT, .threads = 1);
    const mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = 100, .raw = 1};
    mote_speculation x = {0};
    int32_t ids[] = {5, 6, 7};
    EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
    CHECK(x.tokens > 20 && x.cost[0] > 0 && x.cost[MOTE_ROWS_MAX - 1] > 0 && x.draft > 0, "%d tokens: plain %g s, %d drafts %g s, drafting %g s",
          (int)x.tokens, x.cost[0], MOTE_ROWS_MAX - 1, x.cost[MOTE_ROWS_MAX - 1], x.draft);
    CHECK(x.draft_seconds > 0 && x.pass_seconds > x.draft_seconds, "%g s drafting, %g s passes", x.draft_seconds, x.pass_seconds);
    mote_session_close(s);
}

// A chain of drafts goes on as long as the next one may bring more than it costs.
static void test_draft_chain(const mote_model *m) {
    static const double cost[4] = {1, 1.2, 1.4, 1.6};
    mote_session *s = session_costing(m, cost);
    drafts d;
    draft_chain c = {s, prices_now(s), &d};
    float confidence[MOTE_ROWS_MAX - 1] = {0.99f, 0.99f};
    double speed, dear;
    memset(&d, 0, sizeof d);
    CHECK(chain_continues(&c, 1, confidence) && chain_continues(&c, 2, confidence), "sure drafts end the chain");
    CHECK(chain_worth(&c, 2, 0, confidence, &speed) == 2, "sure drafts are not verified");
    confidence[1] = 0.1f;
    CHECK(chain_continues(&c, 1, confidence) && !chain_continues(&c, 2, confidence), "an unsure draft does not end the chain");
    CHECK(chain_worth(&c, 2, 0, confidence, &speed) == 1, "an unsure draft is verified");
    c.p.draft = 2;
    CHECK(!chain_continues(&c, 1, confidence), "drafts that cost more than passes go on");
    c.p.draft = 0;
    for (int i = 0; i < 100; i++) rate_learn(acceptance_of_confidence(&s->decoder->spec.mtp, 0, 0.99f), 0);
    confidence[1] = 0.99f;
    CHECK(chain_worth(&c, 2, 0, confidence, &dear) == 0 && dear < speed, "sure drafts that were wrong are believed");
    mote_session_close(s);
    s = session_of(m, .context = CONTEXT, .threads = 1, .mtp = 2);
    c.s = s;
    confidence[0] = 0;
    CHECK(chain_continues(&c, 1, confidence), "a given number of drafts is cut");
    mote_session_close(s);
}

// The drafts of a model that drafts from few rows of its vocabulary are among these.
static void test_draft_rows(void) {
    static const int rows[] = {0, 100, 1};
    for (int i = 0; i < 3; i++) {
        mote_options o = {.device = "cpu", .draft_rows = rows[i]};
        mote_model *m = NULL;
        int32_t drafts[MOTE_ROWS_MAX - 1], ids[] = {5, 6, 7}, next = 8;
        float confidence[MOTE_ROWS_MAX - 1];
        int made = MOTE_ROWS_MAX - 1;
        EXPECT(MOTE_OK, mote_open("models/demo", &o, &m, &failure));
        if (!m) break;
        mote_session *s = session_of(m, .context = CONTEXT, .threads = 1, .mtp = 3);
        EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
        const block b = timeline_block(s, &next, 1);
        EXPECT(MOTE_OK, slot_draft(&s->slot, REQUEST_DRAFT, &b, &made, drafts, confidence, NULL, NULL, &failure));
        CHECK(made == MOTE_ROWS_MAX - 1, "%d drafts", made);
        for (int k = 0; k < made; k++)
            CHECK(confidence[k] > 0 && confidence[k] <= 1 && (rows[i] != 1 || confidence[k] == 1), "draft_rows %d: probability %g", rows[i], (double)confidence[k]);
        for (int k = 0; k < MOTE_ROWS_MAX - 1; k++)
            CHECK(drafts[k] >= 0 && (!rows[i] || drafts[k] < rows[i]), "draft_rows %d: draft %d", rows[i], drafts[k]);
        mote_session_close(s);
        mote_close(m);
    }
}
