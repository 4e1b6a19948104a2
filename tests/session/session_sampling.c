// A part of test_session: the choice of tokens from given logits.

static const float *sorting;

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorting[x] != sorting[y]) return sorting[x] > sorting[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

// The exact distribution: softmax at the temperature, top-k, top-p of what is left, min-p.
static void exact_distribution(const float *logits, int n, const mote_sampling *p, double *probability) {
    int32_t *order = (int32_t *)allocate((size_t)n * 4);
    double sum = 0, mass = 0, kept = 0;
    int k = p->top_k > 0 && p->top_k < n ? p->top_k : n, end = 0;
    for (int i = 0; i < n; i++) order[i] = i, probability[i] = 0;
    sorting = logits;
    qsort(order, (size_t)n, sizeof *order, by_value);
    for (int i = 0; i < k; i++) sum += exp(((double)logits[order[i]] - logits[order[0]]) / p->temperature);
    for (; end < k; end++) {
        double share = exp(((double)logits[order[end]] - logits[order[0]]) / p->temperature) / sum;
        if (p->top_p > 0 && p->top_p < 1 && mass >= p->top_p) break;
        if (share < p->min_p / sum) break;
        mass += share;
        kept += probability[order[end]] = share;
    }
    for (int i = 0; i < n; i++) probability[i] /= kept;
    free(order);
}

static void poke(mote_session *s, const float *logits) {
    memcpy(s->slot.logits, logits, (size_t)s->m->c.vocab * sizeof(float));
}

// Samples of many seeds and positions against the exact distribution (chi-square; rare ids are counted together).
static void test_distribution(mote_session *s, const float *logits, mote_sampling p) {
    enum { POSITIONS = 30 };
    const int N = (test_brief ? 40 : 400) * POSITIONS;
    int n = s->m->c.vocab, count = s->count, outside = 0, bins = 0;
    double *want = (double *)allocate((size_t)n * sizeof(double)), chi = 0, rare = 0;
    int *seen = (int *)allocate((size_t)n * sizeof(int)), rare_seen = 0;
    exact_distribution(logits, n, &p, want);
    poke(s, logits);
    for (int i = 0; i < N; i++) {
        int32_t id = -1;
        p.seed = (uint64_t)(i / POSITIONS) * 7919;
        s->count = 1 + i % POSITIONS;
        if (mote_sample(s, &p, &id, NULL) || id < 0 || id >= n || want[id] == 0) outside++;
        else seen[id]++;
    }
    s->count = count;
    for (int i = 0; i < n; i++) {
        if (want[i] * N < 8) rare += want[i] * N, rare_seen += seen[i];
        else chi += (seen[i] - want[i] * N) * (seen[i] - want[i] * N) / (want[i] * N), bins++;
    }
    if (rare >= 4) chi += (rare_seen - rare) * (rare_seen - rare) / rare, bins++;
    CHECK(outside == 0 && chi < bins + 5 * sqrt(2.0 * bins) + 5,
          "temperature %g, top-k %d, top-p %g, min-p %g: %d outside the distribution, chi-square %g of %d bins",
          (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, outside, chi, bins);
    free(want);
    free(seen);
}

static void test_distributions(const fixture *f) {
    static const mote_sampling all[] = {
        {.temperature = 1},
        {.temperature = 0.5f, .top_p = 1},
        {.temperature = 2.5f},
        {.temperature = 1, .top_k = 7},
        {.temperature = 1, .top_k = 1},
        {.temperature = 1, .top_k = 1 << 30},
        {.temperature = 1, .top_p = 0.61f},
        {.temperature = 1, .top_p = 1e-6f},
        {.temperature = 1, .top_p = 0.999f},
        {.temperature = 1, .min_p = 0.173f},
        {.temperature = 1, .min_p = 1},
        {.temperature = 0.7f, .top_k = 20, .top_p = 0.83f},
        {.temperature = 0.7f, .top_k = 20, .top_p = 0.83f, .min_p = 0.21f},
        {.temperature = 3, .top_k = 30, .top_p = 0.97f, .min_p = 0.3f},
        {.temperature = 1000},
        {.temperature = 1e-6f}};
    static const mote_sampling after[] = {{.temperature = 1}, {.temperature = 1, .top_p = 0.9f, .min_p = 0.01f}};
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    float *logits = (float *)allocate((size_t)f->vocab * 4);
    feed_to(s, f, 40, "distributions");
    for (int i = 0; i < f->vocab; i++) logits[i] = 3 * (float)random_int(-1000000, 1000000) / 1e6f;
    logits[5] = logits[2] = logits[33];                      /* ties */
    for (int i = 10; i < 20; i++) logits[i] = 2.5f;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) test_distribution(s, logits, all[i]);
    for (int i = 0; i < f->vocab; i++) logits[i] = i % 3 ? -INFINITY : logits[i];
    for (size_t i = 0; i < 2; i++) test_distribution(s, logits, after[i]);
    free(logits);
    mote_session_close(s);
}

static void test_greedy_choice(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    float *logits = (float *)allocate((size_t)f->vocab * 4);
    int32_t id = -1;
    feed_to(s, f, 5, "greedy");
    for (int i = 0; i < f->vocab; i++) logits[i] = -3;
    logits[9] = logits[4] = logits[17] = 2;
    poke(s, logits);
    EXPECT(MOTE_OK, mote_sample(s, NULL, &id, &failure));
    CHECK(id == 4, "the lowest id of a tie, not %d", id);
    logits[30] = logits[40] = INFINITY;
    poke(s, logits);
    mote_sampling hot = {.temperature = 1, .top_p = 0.5f};
    EXPECT(MOTE_OK, mote_sample(s, &hot, &id, &failure));
    CHECK(id == 30, "infinity wins, not %d", id);
    for (int i = 0; i < f->vocab; i++) logits[i] = -INFINITY;
    poke(s, logits);
    EXPECT(MOTE_OK, mote_sample(s, &hot, &id, &failure));
    logits[8] = NAN;
    poke(s, logits);
    id = -7;
    EXPECT(MOTE_EFORMAT, mote_sample(s, NULL, &id, &failure));
    EXPECT(MOTE_EFORMAT, mote_step(s, &hot, &id, &failure));
    CHECK(id == -7 && s->count == 5, "nothing is chosen from NaN");
    free(logits);
    mote_session_close(s);
}

// Penalties in double, by their definitions.
static void naive_penalties(const mote_session *s, const mote_sampling *p, int vocab, double *value) {
    for (int id = 0; id < vocab; id++) {
        int all = 0, generated = 0;
        for (int i = 0; i < s->count; i++) all += s->tokens[i] == id;
        for (int i = s->generated_from; i < s->count; i++) generated += s->tokens[i] == id;
        value[id] = s->slot.logits[id];
        double factor = p->repetition_penalty > 0 ? p->repetition_penalty : 1;
        if (all) value[id] = value[id] > 0 ? value[id] / factor : value[id] * factor;
        if (generated) value[id] -= p->presence_penalty + (double)generated * p->frequency_penalty;
    }
}

static void test_penalties(const fixture *f) {
    static const float repetition[] = {0, 1, 1.7f, 0.6f}, presence[] = {0, 0.8f, -0.5f}, frequency[] = {0, 0.3f, -0.2f};
    mote_session *s = session_of(f->m, .context = f->T + 40, .threads = 1);
    double *value = (double *)allocate((size_t)f->vocab * sizeof(double));
    mote_sampling p = {0}, wild = {.temperature = 0.4f};
    int32_t id;
    feed_to(s, f, 12, "penalties");
    for (int round = 0; round < 36; round++) {
        int best = 0;
        wild.seed = (uint64_t)round;
        EXPECT(MOTE_OK, mote_step(s, &wild, &id, &failure));
        p.repetition_penalty = repetition[round % 4];
        p.presence_penalty = presence[round / 4 % 3];
        p.frequency_penalty = frequency[round / 12];
        EXPECT(MOTE_OK, mote_sample(s, &p, &id, &failure));
        naive_penalties(s, &p, f->vocab, value);
        for (int i = 0; i < f->vocab; i++) {
            CHECK(fabs(s->decoder->sorted[i] - value[i]) < 1e-5, "round %d: logit %d is %g, expected %g", round, i,
                  (double)s->decoder->sorted[i], value[i]);
            if (value[i] > value[best]) best = i;
        }
        CHECK(id == best, "round %d: id %d, expected %d", round, id, best);
    }
    EXPECT(MOTE_OK, mote_feed(s, f->tokens, 1, &failure));
    CHECK(s->generated_from == s->count, "what is fed is not generated");
    free(value);
    mote_session_close(s);
}
