// A part of test_engine: KV types; GPU and CPU.

// ---- KV types -------------------------------------------------------------------------------------------------------

// One KV type: near F32, the same bits in any chunks, and through saving, cloning and rewinding.
static void test_kv_type(const fixture *f, int kv, double allowed) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 1, .threads = 1, .kv = kv), *a = NULL;
    mote_session *t = session_of(f->m, .context = f->T, .chunk = 7, .threads = 1, .kv = kv);
    size_t vocab = (size_t)f->vocab, n = (size_t)f->T * vocab, size;
    float *one = (float *)allocate(n * 4), *chunks = (float *)allocate(n * 4), *mtp = (float *)allocate(2 * n * 4);
    EXPECT(MOTE_OK, feed_decoded(s, f->tokens, (size_t)f->T, one, f->mtp ? mtp : NULL, f->vocab, &failure));
    double off = rms_off(one, f->plain, n);
    CHECK(off <= allowed, "%s: KV type %d: off by %g", f->dir, kv, off);
    EXPECT(MOTE_OK, feed_decoded(t, f->tokens, (size_t)f->T, chunks, f->mtp ? mtp + n : NULL, f->vocab, &failure));
    CHECK(!memcmp(one, chunks, n * 4) && !memcmp(mtp, mtp + n, n * 4), "%s: KV type %d in chunks", f->dir, kv);
    if (f->mtp) off = rms_off(mtp, f->plain_mtp, n - vocab);
    CHECK(off <= allowed, "%s: KV type %d: MTP logits are off by %g", f->dir, kv, off);
    mote_reset(t, NULL);
    advance(t, f, 9);
    mote_checkpoint *c = checkpoint_of(t);
    advance(t, f, 12);
    EXPECT(MOTE_OK, mote_rewind(t, c, &failure));
    char *bytes = session_bytes(t, &size);
    EXPECT(MOTE_OK, mote_clone(t, &a, &failure));
    CHECK(a && session_is(a, bytes, size), "%s: KV type %d: clone", f->dir, kv);
    mote_reset(s, NULL);
    EXPECT(MOTE_OK, mote_load(s, bytes, size, &failure));
    CHECK(session_is(s, bytes, size), "%s: KV type %d: loaded", f->dir, kv);
    for (int i = 9; i <= f->T; i += 4) {
        advance(s, f, i), advance(t, f, i), advance(a, f, i);
        CHECK(same_logits(t, one + (size_t)(i - 1) * vocab, f->vocab) && same_logits(s, mote_logits(t), f->vocab) &&
              same_logits(a, mote_logits(t), f->vocab),
              "%s: KV type %d after %d tokens", f->dir, kv, i);
    }
    mote_checkpoint_free(c);
    close_all((mote_session *[]){s, t, a}, 3);
    void *memory[] = {one, chunks, mtp, bytes};
    for (int i = 0; i < 4; i++) free(memory[i]);
}

// Without the MTP layer: the same logits, none of its own, less memory; its rows are dropped when loaded, not made up. (On a GPU
// the final row, which only that layer reads, is not computed without it: a loaded one is kept, so the bytes are others.)
static void test_no_mtp(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 3, .threads = 1, .mtp = MOTE_MTP_OFF), *clone = NULL;
    mote_session *with = session_of(f->m, .context = f->T, .chunk = 3, .threads = 1);
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    mote_memory plan[2];
    size_t size, other;
    float *logits = (float *)allocate((size_t)f->vocab * 8);
    advance(s, f, 9);
    advance(with, f, 9);
    CHECK(same_logits(s, mote_logits(with), f->vocab), "%s: logits without the MTP layer", f->dir);
    char *bytes = session_bytes(s, &size), *more = session_bytes(with, &other);
    EXPECT(MOTE_EUNSUPPORTED, mote_feed_logits(s, f->tokens + 9, 2, logits, logits, &failure));
    CHECK(session_is(s, bytes, size), "%s: refused MTP logits changed the session", f->dir);
    for (int i = 0; i < 2; i++) {
        mote_session_options so = {.context = f->T, .mtp = i ? MOTE_MTP_AUTO : MOTE_MTP_OFF};
        EXPECT(MOTE_OK, mote_plan(f->dir, &o, &so, &plan[i], &failure));
    }
    CHECK(f->mtp == (size < other) && f->mtp == (plan[0].kv < plan[1].kv), "%s: memory without MTP", f->dir);
    if (f->mtp) EXPECT(MOTE_EINVAL, mote_load(with, bytes, size, &failure));
    CHECK(session_is(with, more, other), "%s: a refused load changed the session", f->dir);
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    mote_reset(s, NULL);
    EXPECT(MOTE_OK, mote_load(s, more, other, &failure));
    CHECK(same_logits(s, mote_logits(with), f->vocab) && (is_gpu || session_is(s, bytes, size)) && clone &&
          session_is(clone, bytes, size), "%s: rows not wanted", f->dir);
    feed_to(s, f, f->T, "without the MTP layer");
    feed_to(clone, f, f->T, "a clone without the MTP layer");
    close_all((mote_session *[]){s, with, clone}, 3);
    void *memory[] = {bytes, more, logits};
    for (int i = 0; i < 3; i++) free(memory[i]);
}

// Root mean square, as a share of the logits': rounding may make a row choose other experts, so that a single logit may move by
// as much as it is. The default type changes nothing.
static void test_kv_types(const fixture *f) {
    test_kv_type(f, MOTE_KV_DEFAULT, 0);
    if (!is_gpu) test_kv_type(f, MOTE_KV_F32, 0);
    test_kv_type(f, MOTE_KV_BF16, is_gpu ? 0 : 0.01);
    test_kv_type(f, MOTE_KV_FP8, 0.25);
    test_no_mtp(f);
}

// ---- GPU and CPU ----------------------------------------------------------------------------------------------------

// Feeds tokens up to position `to` where the numbers need not be the same: they keep a GPU's rule. other_cache: some rows of the cache were of another
// type: it may cost as much more as it costs the CPU.
static void feed_near(mote_session *s, const fixture *f, int to, int other_cache, const char *what) {
    advance(s, f, to);
    const float *got = mote_logits(s);
    const double cost = other_cache ? off_by(rows_at(f->same, f, to - 1), rows_at(f->want, f, to - 1), (size_t)f->vocab) : 0;
    double off = got ? off_by(got, rows_at(f->plain, f, to - 1), (size_t)f->vocab) : INFINITY;
    CHECK(off <= GPU_RULE + cost, "%s: %s: logits after %d tokens are %g off, a cache's type costs %g", f->dir, what, to, off, cost);
}

// From one model to the other and back: the same bytes, and the same text as far as the rule goes.
static void test_move(const fixture *f, const mote_model *from, const mote_model *to, int n, int kv) {
    mote_session *a = session_of(from, .context = f->T, .kv = kv), *b = session_of(to, .context = f->T + 5, .kv = kv);
    mote_session *c = session_of(from, .context = f->T, .kv = kv);
    const char *what = from == f->m ? "GPU to CPU" : "CPU to GPU";
    size_t size, again;
    int32_t id = -1, other = -1;
    if (n > 3) advance(a, f, n - 3);
    if (n) advance(a, f, n);
    char *bytes = session_bytes(a, &size);
    EXPECT(MOTE_OK, mote_load(b, bytes, size, &failure));
    CHECK(session_is(b, bytes, size), "%s: %s after %d, KV type %d", f->dir, what, n, kv);
    if (n) {
        EXPECT(MOTE_OK, mote_sample(a, NULL, &id, &failure));
        EXPECT(MOTE_OK, mote_sample(b, NULL, &other, &failure));
        CHECK(id == other, "%s: %s after %d: next id %d, then %d", f->dir, what, n, id, other);
    }
    EXPECT(MOTE_OK, mote_feed(b, f->tokens + n, 2, &failure));          /* computed there, and back */
    char *back = session_bytes(b, &again);
    EXPECT(MOTE_OK, mote_load(c, back, again, &failure));
    CHECK(session_is(c, back, again), "%s: %s after %d and back", f->dir, what, n);
    if (kv == cache) {
        feed_near(a, f, n + 9, 0, what);
        feed_near(b, f, n + 9, 0, what);
        feed_near(c, f, n + 9, 0, what);
    }
    close_all((mote_session *[]){a, b, c}, 3);
    free(bytes);
    free(back);
}

static void test_moves(const fixture *f) {
    const int kinds[] = {cache, MOTE_KV_FP8};
    for (int i = 0; i < 2; i++)
        for (int n = 0; n <= 7; n = n ? n + 2 : 1) {
            test_move(f, f->m, f->cpu, n, kinds[i]);
            test_move(f, f->cpu, f->m, n, kinds[i]);
        }
    mote_session *a = session_of(f->cpu, .context = f->T, .kv = MOTE_KV_F32), *b = session_of(f->m, .context = f->T);
    size_t size;
    EXPECT(MOTE_OK, mote_feed(a, f->tokens, 9, &failure));
    char *bytes = session_bytes(a, &size);
    EXPECT(MOTE_OK, mote_load(b, bytes, size, &failure));
    feed_near(b, f, f->T, 1, "from a CPU session with a float32 cache");
    free(bytes);
    mote_session_close(a);
    mote_session_close(b);
}

// A number of an FP8 cache as a step to the next smaller or larger one is 1.
static int fp8_place(char code) {
    return code & 0x80 ? -(code & 0x7f) : code;
}

// Do two saved sessions differ in keys or values, which follow `at`? 1: the first such number, of the lowest layer, is the next one on the
// other side of a border; 2: it is farther away, which no rounding is. Those of layers above follow from it.
static int fp8_turned(const char *a, const char *b, size_t at, size_t size) {
    while (at < size && a[at] == b[at]) at++;
    return at == size ? 0 : abs(fp8_place(a[at]) - fp8_place(b[at])) <= 1 ? 1 : 2;
}

// An FP8 cache, GPU against CPU: each token from the CPU's cache of those before it, then all of them; and in pieces. A row may be over the rule
// where a number of its own key or value was rounded to the other side, and in one row of 50 at most.
static void test_fp8_cache(const fixture *f) {
    mote_session *gpu = session_of(f->m, .context = f->T, .kv = MOTE_KV_FP8);
    mote_session *cpu = session_of(f->cpu, .context = f->T, .kv = MOTE_KV_FP8);
    float *all[4];
    double step = 0, step_mtp = 0;
    int turned = 0, wrong = 0, over = 0, over_mtp = 0;
    for (int i = 0; i < 4; i++) all[i] = rows_of(f);
    size_t n = (size_t)f->T, size, empty;
    free(session_bytes(cpu, &empty));
    for (int t = 0; t < f->T; t++) {
        char *bytes = session_bytes(cpu, &size);
        EXPECT(MOTE_OK, mote_load(gpu, bytes, size, &failure));
        free(bytes);
        EXPECT(MOTE_OK, feed_decoded(gpu, f->tokens + t, 1, all[0], f->mtp ? all[1] : NULL, f->vocab, &failure));
        EXPECT(MOTE_OK, feed_decoded(cpu, f->tokens + t, 1, all[2], f->mtp ? all[3] : NULL, f->vocab, &failure));
        size_t other;
        char *own = session_bytes(gpu, &other), *want = session_bytes(cpu, &size);
        const int turn = size == other ? fp8_turned(own, want, empty + 4 * (size_t)(t + 1), size) : 2;
        const double row = off_by(all[0], all[2], (size_t)f->vocab), mtp_row = f->mtp && t ? off_by(all[1], all[3], (size_t)f->vocab) : 0;
        free(own);
        free(want);
        turned += turn != 0;
        wrong += turn == 2 || (!turn && fmax(row, mtp_row) > GPU_RULE);
        over += row > GPU_RULE;
        over_mtp += mtp_row > GPU_RULE;
        step = fmax(step, row);
        step_mtp = fmax(step_mtp, mtp_row);
    }
    CHECK(!wrong && over <= f->T / 50 && over_mtp <= f->T / 50, "%s: a step with an FP8 cache: logits %g, MTP logits %g off; %d and %d of %d rows over, "
          "%d have another key or value; %d wrong", f->dir, step, step_mtp, over, over_mtp, f->T, turned, wrong);
    mote_reset(gpu, NULL);
    mote_reset(cpu, NULL);
    EXPECT(MOTE_OK, feed_decoded(gpu, f->tokens, n, all[0], f->mtp ? all[1] : NULL, f->vocab, &failure));
    EXPECT(MOTE_OK, feed_decoded(cpu, f->tokens, n, all[2], f->mtp ? all[3] : NULL, f->vocab, &failure));
    double off = rows_off(all[0], all[2], f->T, f->vocab), reference = rows_off(all[0], f->want, f->T, f->vocab);
    double mtp = f->mtp ? rows_off(all[1], all[3], f->T - 1, f->vocab) : 0;
    printf("%s: FP8 cache: a step's logits %.1e, MTP %.1e off the CPU's, with another key or value in %d rows; after all tokens %.1e, MTP %.1e, "
           "%.1e off the reference\n", f->dir, step, step_mtp, turned, off, mtp, reference);
    mote_session_options o = {.context = f->T + 3, .kv = MOTE_KV_FP8};
    test_pieces(f, 1, &o, all[0], all[1]);
    test_pieces(f, 3, &o, all[0], all[1]);
    for (int i = 0; i < 4; i++) free(all[i]);
    mote_session_close(gpu);
    mote_session_close(cpu);
}

// The same logits on both: the same ids for each seed, and the same probabilities.
static void test_same_choice(const fixture *f) {
    mote_session *gpu = session_of(f->m, .context = f->T, .kv = cache), *cpu = session_of(f->cpu, .context = f->T, .kv = cache);
    mote_sampling kinds[] = {{.temperature = 1}, {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f},
                             {.temperature = 2, .top_p = 0.95f, .min_p = 0.05f},
                             {.temperature = 1.3f, .top_k = 5, .repetition_penalty = 1.3f}, {.repetition_penalty = 1.5f},
                             {.temperature = 0.6f, .top_p = 0.9f, .repetition_penalty = 1.1f}};
    enum { KINDS = sizeof kinds / sizeof *kinds, SEEDS = 60, BEST = 5 };
    int32_t best[2][BEST];
    float logprobs[2][BEST];
    size_t size;
    feed_to(gpu, f, 8, "sampling");
    char *bytes = session_bytes(gpu, &size);
    EXPECT(MOTE_OK, mote_load(cpu, bytes, size, &failure));
    CHECK(same_row(f, mote_logits(cpu), 7), "%s: the logits are saved as they are", f->dir);
    for (int k = 0; k < KINDS; k++) {
        int wrong = 0;
        for (int i = 0; i < SEEDS; i++) {
            int32_t a = -1, b = -2;
            kinds[k].seed = (uint64_t)i * 7919;
            EXPECT(MOTE_OK, mote_sample(gpu, &kinds[k], &a, &failure));
            EXPECT(MOTE_OK, mote_sample(cpu, &kinds[k], &b, &failure));
            wrong += a != b;
        }
        CHECK(!wrong, "%s: sampling of kind %d: %d of %d ids differ from the CPU's", f->dir, k, wrong, SEEDS);
    }
    EXPECT(MOTE_OK, mote_top_logprobs(gpu, BEST, best[0], logprobs[0], &failure));
    EXPECT(MOTE_OK, mote_top_logprobs(cpu, BEST, best[1], logprobs[1], &failure));
    for (int i = 0; i < BEST; i++)
        CHECK(best[0][i] == best[1][i] && fabsf(logprobs[0][i] - logprobs[1][i]) < 1e-5f, "%s: logprob %d", f->dir, i);
    for (int k = 0; k < KINDS; k++) test_generate(f, &kinds[k]);
    free(bytes);
    mote_session_close(gpu);
    mote_session_close(cpu);
}
