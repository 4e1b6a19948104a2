// A part of test_engine: sampling.

// 24 sampled ids after the first 15 tokens.
static void sampled_ids(const fixture *f, int chunk, int threads, uint64_t seed, int32_t *ids) {
    mote_session *s = session_of(f->m, .context = 64, .chunk = chunk, .threads = threads);
    mote_sampling p = {.temperature = 1.2f, .top_p = 0.98f, .seed = seed};
    feed_to(s, f, 15, "seeds");
    for (int i = 0; i < 24; i++) EXPECT(MOTE_OK, mote_step(s, &p, &ids[i], &failure));
    mote_session_close(s);
}

static void test_seeds(const fixture *f) {
    int32_t first[24], ids[24];
    sampled_ids(f, 64, 1, 42, first);
    sampled_ids(f, 4, 2, 42, ids);
    CHECK(!memcmp(first, ids, sizeof ids), "%s: the same seed gives other ids", f->dir);
    for (uint64_t seed = 0; seed < 5; seed++) {
        sampled_ids(f, 64, 1, seed << (seed * 8), ids);
        CHECK(memcmp(first, ids, sizeof ids) != 0, "%s: seeds 42 and %d give the same ids", f->dir, (int)seed);
    }
}

static void test_logprobs(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    int32_t *ids = (int32_t *)allocate((size_t)f->vocab * 4), id;
    float *logprobs = (float *)allocate((size_t)f->vocab * 4);
    double total = 0, sum = 0;
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, 1, ids, logprobs, &failure));
    feed_to(s, f, 20, "logprobs");
    const float *logits = rows_at(f->plain, f, 19);
    EXPECT(MOTE_OK, mote_top_logprobs(s, f->vocab, ids, logprobs, &failure));
    for (int i = 0; i < f->vocab; i++) total += exp((double)logits[i]);
    for (int i = 0; i < f->vocab; i++) {
        double want = (double)logits[ids[i]] - log(total);
        CHECK(fabs(logprobs[i] - want) < 1e-5, "logprob %d is %g, expected %g", i, (double)logprobs[i], want);
        float before = i ? logits[ids[i - 1]] : INFINITY, now = logits[ids[i]];
        CHECK(before > now || (before == now && ids[i - 1] < ids[i]), "%s: order of logprobs at %d", f->dir, i);
        sum += exp((double)logprobs[i]);
    }
    CHECK(fabs(sum - 1) < 1e-5, "probabilities sum to %g", sum);
    for (int n = 1; n < f->vocab; n += 1 + n / 8) {
        int32_t *best = (int32_t *)allocate((size_t)n * 4);
        float *values = (float *)allocate((size_t)n * 4);
        EXPECT(MOTE_OK, mote_top_logprobs(s, n, best, values, &failure));
        CHECK(!memcmp(best, ids, (size_t)n * 4) && !memcmp(values, logprobs, (size_t)n * 4), "%s: the best %d", f->dir, n);
        free(best);
        free(values);
    }
    CHECK(same_row(f, mote_logits(s), 19), "%s: logprobs changed the logits", f->dir);
    EXPECT(MOTE_OK, mote_sample(s, NULL, &id, &failure));
    CHECK(id == ids[0], "%s: the greedy choice has the best logprob", f->dir);
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, 0, ids, logprobs, &failure));
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, -1, ids, logprobs, &failure));
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, f->vocab + 1, ids, logprobs, &failure));
    free(ids);
    free(logprobs);
    mote_session_close(s);
}

// How many of the most probable tokens a kind of sampling leaves, by its definition in engine.h. logprobs: best first.
static int tokens_left(const float *logprobs, int vocab, const mote_sampling *p) {
    int kept = p->top_k && p->top_k < vocab ? p->top_k : vocab, left = 0;
    double total = 0, mass = 0;
    for (int i = 0; i < kept; i++) total += exp((double)(logprobs[i] - logprobs[0]) / (double)p->temperature);
    while (left < kept && !(p->top_p > 0 && mass >= (double)p->top_p * total)) {
        double weight = exp((double)(logprobs[left] - logprobs[0]) / (double)p->temperature);
        if (left && weight < (double)p->min_p) break;
        mass += weight;
        left++;
    }
    return left;
}

// So hot that what is left is nearly equal: seeds draw all of it, and nothing else.
static void test_tokens_left(const fixture *f) {
    enum { SEEDS = 200, FEW = 12 };
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    int32_t *ids = (int32_t *)allocate((size_t)f->vocab * 4), id;
    float *logprobs = (float *)allocate((size_t)f->vocab * 4);
    char *drawn = (char *)allocate((size_t)f->vocab);
    mote_sampling kinds[] = {{.top_k = 1}, {.top_k = 2}, {.top_k = 5}, {.top_k = 12}, {.top_k = 12, .top_p = 0.5f},
                             {.top_k = 7, .top_p = 0.01f}, {.top_k = 30, .top_p = 0.2f}, {.top_k = f->vocab - 1, .top_p = 0.02f},
                             {.top_p = 0.02f}, {.min_p = 0.97f}, {.top_k = 5, .min_p = 0.99f}, {.top_k = f->vocab + 1},
                             {.top_k = 9, .top_p = 0.6f, .min_p = 0.9f}};
    feed_to(s, f, 20, "tokens left");
    EXPECT(MOTE_OK, mote_top_logprobs(s, f->vocab, ids, logprobs, &failure));
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        kinds[k].temperature = 100;
        int left = tokens_left(logprobs, f->vocab, &kinds[k]), seen = 0, stray = 0;
        memset(drawn, 0, (size_t)f->vocab);
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            kinds[k].seed = seed * 7919;
            EXPECT(MOTE_OK, mote_sample(s, &kinds[k], &id, &failure));
            drawn[id] = 1;
        }
        for (int i = 0; i < f->vocab; i++) seen += drawn[ids[i]], stray += i >= left && drawn[ids[i]];
        CHECK(!stray && (left > FEW || seen == left), "%s: sampling %d leaves %d tokens, %d were drawn, %d of them others", f->dir,
              (int)k, left, seen, stray);
    }
    free(drawn);
    free(logprobs);
    free(ids);
    mote_session_close(s);
}

static int level_logits(void *user, float *logits, int vocab) {
    (void)user;
    for (int i = 0; i < vocab; i++) logits[i] = i < 7 ? 0 : 1;
    return 0;
}

// Of equally probable tokens top-k keeps the first.
static void test_ties(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    mote_result r;
    size_t n;
    int drawn[3] = {0}, others = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        mote_sampling p = {.temperature = 1, .top_k = 3, .seed = seed * 7919};
        mote_generation g = {.sampling = &p, .max_tokens = 1, .on_logits = level_logits};
        mote_reset(s, NULL);
        feed_to(s, f, 5, "ties");
        EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
        if (r.stop != MOTE_STOP_LENGTH) continue;            // one of the three may end an answer
        int id = mote_tokens(s, &n)[5];
        if (id >= 7 && id < 10) drawn[id - 7]++;
        else others++;
    }
    CHECK(!others && (drawn[0] > 0) + (drawn[1] > 0) + (drawn[2] > 0) >= 2, "%s: of equal logits: %d, %d, %d, %d others", f->dir,
          drawn[0], drawn[1], drawn[2], others);
    mote_session_close(s);
}

static void test_on_token(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T + 30, .threads = 1);
    mote_sampling p = {.seed = 77};
    id_list list = {.stop_after = 3};
    mote_generation g = {.sampling = &p, .on_token = collect_id, .user = &list};
    mote_result r;
    size_t n;
    feed_to(s, f, f->prompt, "on_token");
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CALLBACK && r.generated_tokens == 3 && count_of(s) == f->prompt + 3, "%s: on_token", f->dir);
    CHECK(r.seed == 77 && !memcmp(list.ids, mote_tokens(s, &n) + f->prompt, 12), "%s: what the result says", f->dir);
    g.max_tokens = 4;
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_LENGTH && r.generated_tokens == 4 && list.count == 7, "%s: max_tokens stops", f->dir);
    CHECK(is_gpu || !memcmp(list.ids, f->tokens + f->prompt, 28), "%s: two answers continue each other", f->dir);
    CHECK(r.generate_seconds >= 0 && !memcmp(list.ids, mote_tokens(s, &n) + f->prompt, 28), "%s: time, and tokens", f->dir);
    mote_session_close(s);
}
