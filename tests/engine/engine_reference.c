// A part of test_engine: reference results.

// Whether the device computes row t as the CPU does if both have the CPU's cache of the tokens before: no further off than GPU_RULE.
static int right_alone(const fixture *f, int t, int is_mtp) {
    const int before = t + is_mtp;                                      /* an MTP row comes with the token after it */
    mote_session *s[] = {session_of(f->cpu, .context = f->T, .kv = cache), session_of(f->m, .context = f->T, .kv = cache)};
    float *row[2], *mtp[2];
    size_t size;
    advance(s[0], f, before);
    char *bytes = session_bytes(s[0], &size);
    EXPECT(MOTE_OK, mote_load(s[1], bytes, size, &failure));
    for (int i = 0; i < 2; i++) {
        row[i] = (float *)allocate(row_bytes(f, 1));
        mtp[i] = (float *)allocate(row_bytes(f, 1));
        EXPECT(MOTE_OK, mote_feed_logits(s[i], f->tokens + before, 1, row[i], is_mtp ? mtp[i] : NULL, &failure));
    }
    const double off = is_mtp ? off_by(mtp[1], mtp[0], (size_t)f->vocab) : off_by(row[1], row[0], (size_t)f->vocab);
    printf("%s: row %d%s from the CPU's cache: off by %.1e\n", f->dir, t, is_mtp ? " of the MTP layer" : "", off);
    close_all(s, 2);
    for (int i = 0; i < 2; i++) free(row[i]), free(mtp[i]);
    free(bytes);
    return off <= GPU_RULE;
}

// How far `rows` rows are off the CPU's and the reference. Prints the worst of them and checks all of them.
static void check_rows(const fixture *f, const char *what, const float *got, const float *same, const float *want,
                       int rows) {
    const int most_alone = 1 + rows / 32, is_mtp = got == f->plain_mtp;
    int alone = 0;
    double worst[3] = {0, 0, 0};                                        /* off CPU, off reference, CPU off reference */
    int at[3] = {0, 0, 0}, wrong = 0, turned = 0, n = f->vocab;
    for (int t = 0; t < rows; t++) {
        size_t row = (size_t)t * (size_t)n;
        double off[] = {off_by(got + row, same + row, (size_t)n), off_by(got + row, want + row, (size_t)n),
                        off_by(same + row, want + row, (size_t)n)};
        const int as_cpu = off[0] <= GPU_RULE && off[1] <= GPU_RULE + off[2], as_reference = off[1] <= GPU_RULE;
        if (!as_cpu && !as_reference && alone < most_alone && right_alone(f, t, is_mtp)) alone++;
        else wrong += !as_cpu && !as_reference;
        turned += !as_cpu && as_reference;
        for (int i = 0; i < 3; i++)
            if (!(off[i] <= worst[i])) worst[i] = off[i], at[i] = t;
    }
    printf("%s: %s: off the CPU by %.1e (row %d), off the reference by %.1e (row %d; the CPU by %.1e, row %d)\n",
           f->dir, what, worst[0], at[0], worst[1], at[1], worst[2], at[2]);
    if (turned) printf("%s: %s: %d of %d rows are the reference's, not the CPU's\n", f->dir, what, turned, rows);
    CHECK(!wrong, "%s: %s: %d of %d rows break the rule", f->dir, what, wrong, rows);
}

// Where the fixture has a reference with a BF16 cache too, the prompt's rows keep the rule against that one.
static void check_bf16_reference(const fixture *f) {
    static const char *const names[] = {"logits_bf16.f32", "mtp_logits_bf16.f32"};
    const float *got[] = {f->plain, f->plain_mtp};
    for (int i = 0; i < 2; i++) {
        float *want = read_rows(f, names[i], f->prompt - i);
        if (!want) continue;
        double off = rows_off(got[i], want, f->prompt - i, f->vocab);
        printf("%s: off the reference with a BF16 cache by %.1e (%s)\n", f->dir, off, names[i]);
        CHECK(off <= GPU_RULE, "%s: %s: %g off", f->dir, names[i], off);
        free(want);
    }
}

// One token at a time.
static void test_plain(fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    for (int t = 0; t < f->T; t++) {
        float *mtp = f->mtp ? rows_at(f->plain_mtp, f, t ? t - 1 : 0) : NULL;
        EXPECT(MOTE_OK, feed_decoded(s, f->tokens + t, 1, rows_at(f->plain, f, t), mtp, f->vocab, &failure));
        CHECK(same_row(f, mote_logits(s), t), "%s: mote_logits after token %d", f->dir, t);
    }
    mote_session_close(s);
    if (!is_gpu) {
        double off = off_by(f->plain, f->want, row_bytes(f, f->prompt) / sizeof(float));
        double mtp = f->mtp ? off_by(f->plain_mtp, f->want_mtp, row_bytes(f, f->prompt - 1) / sizeof(float)) : 0;
        CHECK(off < CPU_RULE && mtp < CPU_RULE, "%s: logits are off by %g, MTP logits by %g", f->dir, off, mtp);
    }
    if (!beside) return;
    check_rows(f, "logits", f->plain, f->same, f->want, f->T);
    if (f->mtp) check_rows(f, "MTP logits", f->plain_mtp, f->same_mtp, f->want_mtp, f->T - 1);
    if (is_gpu && !test_brief) check_bf16_reference(f);
}

// The prompt in one call, read by prefill: near the reference. Rounding to F16 turns a close choice of an expert now and then.
static void test_prefill(const fixture *f) {
    float *logits = rows_of(f), *mtp = rows_of(f);
    size_t n = row_bytes(f, f->prompt) / sizeof(float), mtp_n = row_bytes(f, f->prompt - 1) / sizeof(float);
    mote_session *s = session_of(f->m, .context = f->T);
    EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens, (size_t)f->prompt, logits, f->mtp ? mtp : NULL, &failure));
    double off = rms_off(logits, f->want, n), decoded = rms_off(f->plain, f->want, n);
    double mtp_off = f->mtp ? rms_off(mtp, f->want_mtp, mtp_n) : 0;
    printf("%s: prefill's logits are off the reference by %.2g (root mean square), decode's by %.2g, prefill's MTP logits by"
           " %.2g\n", f->dir, off, decoded, mtp_off);
    CHECK(off < 0.03 && mtp_off < 0.03, "%s: prefill is off by %g, MTP %g", f->dir, off, mtp_off);
    mote_session_close(s);
    free(logits);
    free(mtp);
}

// Greedy ids are the reference's; on a GPU except where its two best logits are so close that the rule, for each, allows
// either.
static void test_greedy(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T);
    mote_sampling greedy = {0};
    int close = 0;
    feed_to(s, f, f->prompt, "greedy");
    for (int i = 0; i < f->greedy; i++) {
        int at = f->prompt + i - 1;
        int32_t id = -1, stepped = -1, token = f->tokens[at + 1];
        EXPECT(MOTE_OK, mote_sample(s, NULL, &id, &failure));
        CHECK(id == best_of(rows_at(f->plain, f, at), f->vocab), "%s: sampled id %d", f->dir, i);
        if (!(is_gpu && test_brief) && id != token) {
            const float *want = rows_at(f->want, f, at);
            double gap = ((double)want[token] - want[id]) / deviation(want, (size_t)f->vocab);
            double allowed = is_gpu ? 2 * (GPU_RULE + off_by(rows_at(f->same, f, at), want, (size_t)f->vocab)) : -1;
            CHECK(gap <= allowed, "%s: greedy id %d is %d, expected %d (better by %g)", f->dir, i, id, token, gap);
            close++;
        }
        if (id == token) EXPECT(MOTE_OK, mote_step(s, i % 2 ? &greedy : NULL, &stepped, &failure));
        else EXPECT(MOTE_OK, mote_feed(s, &token, 1, &failure));
        CHECK(id != token || stepped == id, "%s: mote_step gives %d, mote_sample %d", f->dir, stepped, id);
        CHECK(same_row(f, mote_logits(s), at + 1), "%s: logits after greedy step %d", f->dir, i);
    }
    if (close) printf("%s: %d greedy ids differ where the two best logits are that close\n", f->dir, close);
    mote_session_close(s);
}

typedef struct id_list { int32_t ids[64]; int count, stop_after; } id_list;

static int collect_id(void *user, int32_t id) {
    id_list *l = (id_list *)user;
    if (l->count < 64) l->ids[l->count++] = id;
    return l->count == l->stop_after;
}

// mote_generate gives the ids of mote_step, for greedy and for seeded sampling.
static void test_generate(const fixture *f, const mote_sampling *p) {
    mote_session *s = session_of(f->m, .context = f->T);
    id_list list = {0};
    mote_generation g = {.sampling = p, .on_token = collect_id, .user = &list};
    mote_result r;
    feed_to(s, f, f->prompt, "generate");
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CONTEXT && list.count == f->greedy && r.generated_tokens == list.count, "%s: %d generated",
          f->dir, list.count);
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    feed_to(s, f, f->prompt, "generate again");
    for (int i = 0; i < list.count; i++) {
        int32_t id = -1;
        EXPECT(MOTE_OK, mote_step(s, p, &id, &failure));
        CHECK(id == list.ids[i], "%s: temperature %g: id %d is %d when stepped, %d when generated", f->dir,
              (double)p->temperature, i, id, list.ids[i]);
    }
    mote_session_close(s);
}

// Pieces of `size` tokens (0: of 1 to 16 by chance, now and then without asking for logits), read in chunks by some threads:
// the bits of plain decoding.
static void test_pieces(const fixture *f, int size, const mote_session_options *o, float *plain, float *plain_mtp) {
    mote_session *s = session_with(f->m, o);
    float *logits = rows_of(f), *mtp = rows_of(f);
    int wrong = 0, wrong_mtp = 0;
    for (int at = 0, n; at < f->T; at += n) {
        n = size ? size : random_int(1, 16);
        if (n > f->T - at) n = f->T - at;
        if (!size && random_int(0, 2) == 0) {
            EXPECT(MOTE_OK, mote_feed(s, f->tokens + at, (size_t)n, &failure));
            wrong += !same_logits(s, rows_at(plain, f, at + n - 1), f->vocab);
            continue;
        }
        int skip = at == 0;
        EXPECT(MOTE_OK, feed_decoded(s, f->tokens + at, (size_t)n, logits, f->mtp ? mtp : NULL, f->vocab, &failure));
        wrong += memcmp(logits, rows_at(plain, f, at), row_bytes(f, n)) != 0;
        if (f->mtp) wrong_mtp += memcmp(mtp, rows_at(plain_mtp, f, at - !skip), row_bytes(f, n - skip)) != 0;
    }
    CHECK(!wrong && !wrong_mtp, "%s: pieces of %d in chunks of %d, %d threads, KV type %d: %d with other logits, %d with other"
          " MTP logits", f->dir, size, o->chunk, o->threads, o->kv, wrong, wrong_mtp);
    free(logits);
    free(mtp);
    mote_session_close(s);
}

// In brief, on the CPU: of most checkpoints pieces by chance, which have all numbers of rows, and whole prompts in two chunks.
static void test_all_pieces(const fixture *f) {
    static const struct { int size, chunk, threads; } all[] = {
        {0, 7, 2}, {-1, 0, 0}, {-1, 64, 2}, {-1, 1, 1}, {-1, 2, 2}, {-1, 3, 3}, {-1, 5, 1}, {-1, 64, 1},
        {0, 0, 1}, {1, 0, 2},  {2, 0, 1},   {3, 0, 3},  {4, 0, 1}};
    for (int i = 0; i < (!test_brief || is_gpu ? 13 : is_one_of_brief(f->dir) ? 8 : 3); i++) {
        mote_session_options o = {.context = f->T + 3, .chunk = all[i].chunk, .threads = all[i].threads};
        if (is_gpu && all[i].chunk > 4 && i > 0) continue;   // a GPU's chunks are at most 4
        test_pieces(f, all[i].size < 0 ? f->T : all[i].size, &o, f->plain, f->plain_mtp);
    }
}
