// Tests of the library through its API, on the CPU or a GPU: checkpoints with reference results, sessions in every state,
// sampling, threads, callbacks, refusals, and the bundled model.
//
// Contents   1. Helpers             2. Reference results      3. Rewinding and copies     4. Saved sessions
//            5. KV types            6. GPU and CPU            7. Sampling                 8. Threads and callbacks
//            9. Devices and plans  10. A GPU's own           11. Refusals                12. Damaged checkpoints
//           13. The bundled model  14. All of it
//
// Usage: test_engine [--device NAME] [--brief] [DATA [CHECKPOINT...]]. With CHECKPOINTs (folders with reference results) only
// what is tested of each; without, of those in tests/fixtures and DATA. With --device cpu the tests of a GPU beside the CPU
// try themselves. --brief on a GPU is for compute-sanitizer: few tokens, and the main tests.

#include "api.h"
#include "files.h"

#include <fcntl.h>
#include <pthread.h>

// What a device promises, in shares of the standard deviation of what is compared with. A row's bits depend neither on chunks
// nor on threads, on any device.
//
// The CPU, with its default float32 cache: logits within CPU_RULE of the reference, and the reference's greedy ids.
//
// A GPU, with its default BF16 cache: no row of logits is further than GPU_RULE from the CPU's with a BF16 cache. The reference
// has a float32 cache: from it a row may be off by as much more as the CPU's row is, which is what the cache's type costs.
// (Small models have few dimensions to average over: rounding keys and values to BF16 can turn a router's close choice, and
// moves logits by up to 0.02 of their deviation.) A row within GPU_RULE of the reference is right, whatever the CPU's is: of two
// choices of a router that a BF16 cache brings within 3e-5 of each other (dev-q-modelopt-experts, MTP row 15; 3e-3 with float32),
// CPU and GPU may take different ones. With an FP8 cache a key near the border between two FP8 numbers becomes another one for
// the smallest difference, off by up to 1/16, and all later rows see it. So the rule holds for single steps from a cache with
// the same bytes.
static const double CPU_RULE = 1e-3, GPU_RULE = 1e-2;

static int is_gpu, cache, beside;            // cache: the default type; beside: the device is compared with the CPU

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

// Where a GPU reads long calls by prefill, which rounds in its own way, they are cut here into calls that it decodes: all but
// test_prefill is about what decoding makes, bit for bit. tests/cuda/gpu_prefill.c is about prefill.
static int decoded_rows;                     // most rows of a call; 0: any

static int feed_decoded(mote_session *s, const int32_t *ids, size_t n, float *logits, float *mtp, int vocab,
                        mote_error *error) {
    size_t rows = (size_t)decoded_rows, count = 0;
    int code = MOTE_OK;
    if (!s || !ids || !rows || n <= rows || !mote_tokens(s, &count) || count + n > (size_t)mote_context(s))
        return mote_feed_logits(s, ids, n, logits, mtp, error);
    for (size_t at = 0; at < n && !code; at += rows) {
        size_t m = n - at < rows ? n - at : rows, skip = count + at > 0 ? 0 : 1;
        code = mote_feed_logits(s, ids + at, m, logits, mtp, error);
        if (logits) logits += m * (size_t)vocab;
        if (mtp) mtp += (m - skip) * (size_t)vocab;
    }
    return code;
}

typedef struct fixture {
    const char *dir;
    mote_model *m, *cpu;                     // cpu: a second model, where there is something beside the device
    int prompt, greedy, T, vocab, mtp;       // T = prompt + greedy tokens; mtp: it has an MTP layer
    int32_t *tokens;                         // [T]
    float *want, *want_mtp;                  // [T][vocab], [T-1][vocab]: reference, behind the prompt the CPU's
    float *same, *same_mtp;                  // the CPU's with the type of the device's default cache
    float *plain, *plain_mtp;                // the device's, one token at a time
} fixture;

static float *rows_at(float *rows, const fixture *f, int t) {
    return rows + (size_t)t * (size_t)f->vocab;
}

static size_t row_bytes(const fixture *f, int rows) {
    return (size_t)rows * (size_t)f->vocab * sizeof(float);
}

static float *rows_of(const fixture *f) {
    return (float *)room(row_bytes(f, f->T));
}

static int same_row(const fixture *f, const float *logits, int position) {
    return logits && !memcmp(logits, rows_at(f->plain, f, position), row_bytes(f, 1));
}

static void advance(mote_session *s, const fixture *f, int to) {
    int from = count_of(s);
    EXPECT(MOTE_OK, feed_decoded(s, f->tokens + from, (size_t)(to - from), NULL, NULL, f->vocab, &failure));
}

// Feeds tokens up to position `to`, and checks that the logits after them are those of plain decoding, bit for bit.
static void feed_to(mote_session *s, const fixture *f, int to, const char *what) {
    advance(s, f, to);
    CHECK(count_of(s) == to && same_row(f, mote_logits(s), to - 1), "%s: %s: logits after %d tokens", f->dir, what, to);
}

static void close_all(mote_session *const *s, int n) {
    for (int i = 0; i < n; i++) mote_session_close(s[i]);
}

static double deviation(const float *row, size_t n) {
    double sum = 0, square = 0;
    for (size_t i = 0; i < n; i++) sum += row[i], square += (double)row[i] * row[i];
    return sqrt(square / (double)n - sum / (double)n * (sum / (double)n));
}

// Largest difference as a share of the wanted numbers' standard deviation.
static double off_by(const float *got, const float *want, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) return INFINITY;
        worst = fmax(worst, fabs((double)got[i] - want[i]));
    }
    return worst / deviation(want, n);
}

// The same row by row.
static double rows_off(const float *got, const float *want, int rows, int n) {
    double worst = 0;
    for (size_t t = 0; t < (size_t)rows; t++)
        worst = fmax(worst, off_by(got + t * (size_t)n, want + t * (size_t)n, (size_t)n));
    return worst;
}

// Root mean square difference as a share of the root mean square of `want`.
static double rms_off(const float *got, const float *want, size_t n) {
    double square = 0, off = 0;
    for (size_t i = 0; i < n; i++) {
        square += (double)want[i] * want[i];
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    }
    return off >= 0 ? sqrt(off / square) : INFINITY;
}

static float *read_rows(const fixture *f, const char *name, int rows) {
    char path[1024];
    size_t size;
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    float *read = (float *)file_bytes(path, &size);
    if (read) CHECK(size == row_bytes(f, rows), "%s: %zu bytes", path, size);
    return read;
}

// The CPU's rows: all for the same cache as the device's, and those behind the reference's prompt.
static void cpu_rows(fixture *f) {
    mote_session *s = session_of(f->cpu, .context = f->T, .kv = MOTE_KV_F32);
    mote_session *t = session_of(f->cpu, .context = f->T, .kv = cache);
    float *logits = rows_of(f), *mtp = rows_of(f);
    EXPECT(MOTE_OK, feed_decoded(s, f->tokens, (size_t)f->T, logits, f->mtp ? mtp : NULL, f->vocab, &failure));
    EXPECT(MOTE_OK, feed_decoded(t, f->tokens, (size_t)f->T, f->same, f->mtp ? f->same_mtp : NULL, f->vocab, &failure));
    double off = rows_off(logits, f->want, f->prompt, f->vocab);
    double mtp_off = f->mtp ? rows_off(mtp, f->want_mtp, f->prompt - 1, f->vocab) : 0;
    CHECK(off < 2 * CPU_RULE && mtp_off < 2 * CPU_RULE, "%s: the CPU is %g, MTP %g off the reference", f->dir, off, mtp_off);
    memcpy(rows_at(f->want, f, f->prompt), rows_at(logits, f, f->prompt), row_bytes(f, f->greedy));
    if (f->mtp) memcpy(rows_at(f->want_mtp, f, f->prompt - 1), rows_at(mtp, f, f->prompt - 1), row_bytes(f, f->greedy));
    free(logits);
    free(mtp);
    mote_session_close(s);
    mote_session_close(t);
}

static int fixture_open(fixture *f, const char *dir) {
    char path[1024];
    size_t size, greedy_size;
    memset(f, 0, sizeof *f);
    f->dir = dir;
    snprintf(path, sizeof path, "%s/tokens.i32", dir);
    f->tokens = (int32_t *)file_bytes(path, &size);
    snprintf(path, sizeof path, "%s/greedy.i32", dir);
    int32_t *greedy = (int32_t *)file_bytes(path, &greedy_size);
    f->prompt = (int)(size / 4);
    f->greedy = (int)(greedy_size / 4);
    f->T = f->prompt + f->greedy;
    if (!CHECK(f->prompt > 20 && f->greedy > 3, "%s: no reference results", dir)) return 0;
    f->tokens = (int32_t *)realloc(f->tokens, size + greedy_size);
    memcpy(f->tokens + f->prompt, greedy, greedy_size);
    free(greedy);
    f->m = model_of(dir, MOTE_WEIGHTS_ONLY);
    f->vocab = mote_model_info(f->m)->vocab_size;
    f->mtp = mote_model_info(f->m)->mtp_layers;
    if (mote_model_info(f->m)->prefill_from) decoded_rows = mote_model_info(f->m)->prefill_from - 1;
    float **all[] = {&f->want, &f->want_mtp, &f->same, &f->same_mtp, &f->plain, &f->plain_mtp};
    for (int i = 0; i < 6; i++) *all[i] = rows_of(f);
    float *logits = read_rows(f, "logits.f32", f->prompt), *mtp = read_rows(f, "mtp_logits.f32", f->prompt - 1);
    if (CHECK(logits && f->mtp == (mtp != NULL), "%s: reference files", dir)) {
        memcpy(f->want, logits, row_bytes(f, f->prompt));
        if (mtp) memcpy(f->want_mtp, mtp, row_bytes(f, f->prompt - 1));
    }
    free(logits);
    free(mtp);
    if (beside) f->cpu = model_on("cpu", dir, MOTE_WEIGHTS_ONLY);
    if (beside) cpu_rows(f);
    if (is_gpu && test_brief) f->prompt = 10, f->greedy = 2, f->T = 12;      // the rows are those of any tokens behind these
    return 1;
}

static void fixture_close(fixture *f) {
    mote_close(f->m);
    mote_close(f->cpu);
    void *all[] = {f->tokens, f->want, f->want_mtp, f->same, f->same_mtp, f->plain, f->plain_mtp};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

// ---- 2. Reference results -------------------------------------------------------------------------------------------

// How far `rows` rows are off the CPU's and the reference. Prints the worst of them and checks all of them.
static void check_rows(const fixture *f, const char *what, const float *got, const float *same, const float *want,
                       int rows) {
    double worst[3] = {0, 0, 0};                                        /* off CPU, off reference, CPU off reference */
    int at[3] = {0, 0, 0}, wrong = 0, turned = 0, n = f->vocab;
    for (int t = 0; t < rows; t++) {
        size_t row = (size_t)t * (size_t)n;
        double off[] = {off_by(got + row, same + row, (size_t)n), off_by(got + row, want + row, (size_t)n),
                        off_by(same + row, want + row, (size_t)n)};
        const int as_cpu = off[0] <= GPU_RULE && off[1] <= GPU_RULE + off[2], as_reference = off[1] <= GPU_RULE;
        wrong += !as_cpu && !as_reference;
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

static void test_all_pieces(const fixture *f) {
    static const struct { int size, chunk, threads; } all[] = {
        {0, 7, 2}, {-1, 1, 1}, {-1, 2, 2}, {-1, 3, 3}, {-1, 0, 0}, {-1, 5, 1}, {-1, 64, 2}, {-1, 64, 1},
        {0, 0, 1}, {1, 0, 2},  {2, 0, 1},  {3, 0, 3},  {4, 0, 1}};
    for (int i = 0; i < (test_brief && !is_gpu ? 8 : 13); i++) {
        mote_session_options o = {.context = f->T + 3, .chunk = all[i].chunk, .threads = all[i].threads};
        if (is_gpu && i >= 5 && i < 8) continue;             // a GPU's chunks are at most 4
        test_pieces(f, all[i].size < 0 ? f->T : all[i].size, &o, f->plain, f->plain_mtp);
    }
}

// ---- 3. Rewinding and copies ----------------------------------------------------------------------------------------

static void test_rewind(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 5, .threads = 1);
    size_t n;
    mote_checkpoint *empty = checkpoint_of(s);
    feed_to(s, f, 8, "rewind");
    mote_checkpoint *at8 = checkpoint_of(s);
    feed_to(s, f, 9, "rewind");
    mote_checkpoint *at9 = checkpoint_of(s);
    feed_to(s, f, 18, "rewind");
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    CHECK(mote_tokens(s, &n) && n == 8 && same_row(f, mote_logits(s), 7), "%s: rewound to 8", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at9, &failure));
    CHECK(mote_tokens(s, &n) && n == 9 && same_row(f, mote_logits(s), 8), "%s: rewound forward to 9", f->dir);
    feed_to(s, f, 15, "after rewinding forward");
    EXPECT(MOTE_OK, mote_rewind(s, empty, &failure));
    CHECK(mote_tokens(s, &n) && n == 0 && !mote_logits(s), "%s: rewound to the start", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at9, &failure));
    feed_to(s, f, 20, "forward again");
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    feed_to(s, f, f->T, "the rest");
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    feed_to(s, f, f->T, "the rest once more");
    mote_session_close(s);
    mote_checkpoint_free(empty);
    mote_checkpoint_free(at8);
    mote_checkpoint_free(at9);
    mote_checkpoint_free(NULL);
}

// Checkpoints whose tokens are gone are refused, and leave the session as it was.
static void test_stale(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1), *other = session_of(f->m, .context = f->T, .threads = 1);
    int32_t wrong = (f->tokens[6] + 1) % f->vocab;
    size_t size;
    feed_to(s, f, 6, "stale");
    mote_checkpoint *at6 = checkpoint_of(s);
    feed_to(s, f, 12, "stale");
    mote_checkpoint *at12 = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_rewind(s, at6, &failure));
    EXPECT(MOTE_OK, mote_feed(s, &wrong, 1, &failure));
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_EINVAL, mote_rewind(s, at12, &failure));
    CHECK(session_is(s, bytes, size), "%s: refused rewind changed the session", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at6, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, at12, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(other, at6, &failure));
    feed_to(s, f, 12, "the checkpoint's tokens again");
    EXPECT(MOTE_OK, mote_rewind(s, at12, &failure));
    mote_reset(s, NULL);
    EXPECT(MOTE_EINVAL, mote_rewind(s, at6, &failure));
    feed_to(s, f, 7, "after a reset");
    EXPECT(MOTE_OK, mote_rewind(s, at6, &failure));
    feed_to(s, f, f->T, "to the end");
    mote_checkpoint_free(at6);
    mote_checkpoint_free(at12);
    mote_session_close(s);
    mote_session_close(other);
    free(bytes);
}

// The same tokens behind another beginning: what the session still holds of them was computed from that beginning.
static void test_stale_rows(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    int32_t other = (f->tokens[0] + 1) % f->vocab;
    size_t size;
    feed_to(s, f, 6, "stale rows");
    char *bytes = session_bytes(s, &size);
    feed_to(s, f, 12, "stale rows");
    mote_checkpoint *at12 = checkpoint_of(s);
    for (int i = 0; i < 2; i++) {
        mote_reset(s, NULL);
        EXPECT(MOTE_OK, mote_feed(s, &other, 1, &failure));
        EXPECT(MOTE_OK, mote_feed(s, f->tokens + 1, 11, &failure));
        mote_reset(s, NULL);
        if (i) EXPECT(MOTE_OK, mote_load(s, bytes, size, &failure));
        else feed_to(s, f, 6, "stale rows");
        EXPECT(MOTE_EINVAL, mote_rewind(s, at12, &failure));
        feed_to(s, f, 12, "stale rows");
    }
    free(bytes);
    mote_checkpoint_free(at12);
    mote_session_close(s);
}

static void test_clone(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 3, .threads = 2), *a = NULL, *b = NULL;
    int32_t wrong = (f->tokens[10] + 1) % f->vocab;
    EXPECT(MOTE_OK, mote_clone(s, &b, &failure));
    feed_to(b, f, 4, "clone of an empty session");
    mote_session_close(b);
    feed_to(s, f, 10, "clone");
    EXPECT(MOTE_OK, mote_clone(s, &a, &failure));
    CHECK(same_row(f, mote_logits(a), 9), "%s: logits of a clone", f->dir);
    EXPECT(MOTE_OK, mote_feed(s, &wrong, 1, &failure));
    EXPECT(MOTE_OK, mote_clone(a, &b, &failure));
    mote_session_close(s);
    feed_to(a, f, f->T, "clone");
    mote_session_close(a);
    feed_to(b, f, f->T, "clone of a clone");
    mote_session_close(b);
}

static void test_reset_and_full(const fixture *f) {
    mote_session *s = session_of(f->m, .context = 20, .chunk = 6, .threads = 1);
    size_t n;
    int32_t id = -7;
    feed_to(s, f, 13, "reset");
    mote_reset(s, NULL);
    CHECK(mote_tokens(s, &n) && n == 0 && !mote_logits(s), "%s: reset", f->dir);
    EXPECT(MOTE_EINVAL, mote_step(s, NULL, &id, &failure));
    EXPECT(MOTE_EINVAL, mote_generate(s, NULL, NULL, &failure));
    EXPECT(MOTE_ECONTEXT, mote_feed(s, f->tokens, 21, &failure));
    CHECK(mote_tokens(s, &n) && n == 0, "%s: nothing is fed when not all fits", f->dir);
    feed_to(s, f, 20, "after a reset");
    EXPECT(MOTE_ECONTEXT, mote_feed(s, f->tokens, 1, &failure));
    EXPECT(MOTE_ECONTEXT, mote_step(s, NULL, &id, &failure));
    CHECK(id == -7 && same_row(f, mote_logits(s), 19), "%s: a full session stays as it was", f->dir);
    EXPECT(MOTE_OK, mote_sample(s, NULL, &id, &failure));
    mote_result r;
    EXPECT(MOTE_OK, mote_generate(s, NULL, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CONTEXT && r.generated_tokens == 0, "%s: generating with a full context", f->dir);
    EXPECT(MOTE_OK, mote_feed(s, f->tokens, 0, &failure));
    mote_session_close(s);
}

// ---- 4. Saved sessions ----------------------------------------------------------------------------------------------

// Saved behind blocks of 1 to `most` tokens, and loaded into sessions of other sizes, used or not.
static void test_save(const fixture *f, int most) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = most, .threads = 1);
    mote_session *used = session_of(f->m, .context = f->T + 9, .chunk = 64, .threads = 2);
    for (int i = 0, n = 0; n <= 12; i++, n += 1 + i % most) {
        size_t size, needed;
        if (n) feed_to(s, f, n, "save");
        char *bytes = session_bytes(s, &size);
        EXPECT(MOTE_EINVAL, mote_save(s, bytes, size - 1, &needed, &failure));
        CHECK(needed == size, "%s: size needed", f->dir);
        mote_session *fresh = session_of(f->m, .context = n + 2, .chunk = 2, .threads = 1);
        EXPECT(MOTE_OK, mote_load(fresh, bytes, size, &failure));
        EXPECT(MOTE_OK, mote_load(used, bytes, size, &failure));
        CHECK(session_is(fresh, bytes, size) && session_is(used, bytes, size), "%s: saved again after %d", f->dir, n);
        CHECK(n ? same_row(f, mote_logits(used), n - 1) : !mote_logits(used), "%s: loaded after %d", f->dir, n);
        feed_to(fresh, f, n + 1, "loaded");
        feed_to(fresh, f, n + 2, "loaded");
        feed_to(used, f, n + 7, "loaded");
        CHECK(session_is(s, bytes, size), "%s: saving changed the session", f->dir);
        mote_session_close(fresh);
        free(bytes);
    }
    feed_to(s, f, f->T, "saved");
    mote_session_close(s);
    mote_session_close(used);
}

// Damaged bytes are refused, and the session stays as it was. (test_session damages every bit of the header.)
static void test_refused_bytes(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T), *t = session_of(f->m, .context = f->T);
    mote_session *small = session_of(f->m, .context = 9);
    size_t size, before;
    feed_to(s, f, 10, "damage");
    feed_to(t, f, 7, "damage");
    char *bytes = session_bytes(s, &size), *old = session_bytes(t, &before);
    EXPECT(MOTE_EFORMAT, mote_load(t, bytes, size - 1, &failure));
    EXPECT(MOTE_EFORMAT, mote_load(t, bytes, size + 1, &failure));
    EXPECT(MOTE_EFORMAT, mote_load(t, bytes, 0, &failure));
    EXPECT(MOTE_EINVAL, mote_load(t, NULL, 0, &failure));
    EXPECT(MOTE_ECONTEXT, mote_load(small, bytes, size, &failure));
    bytes[size / 2] ^= 1;
    EXPECT(MOTE_EFORMAT, mote_load(t, bytes, size, &failure));
    CHECK(session_is(t, old, before), "%s: refused bytes changed the session", f->dir);
    feed_to(t, f, f->T, "after refused bytes");
    free(bytes);
    free(old);
    close_all((mote_session *[]){s, t, small}, 3);
}

static void test_save_files(const fixture *f) {
    const char *path = temp_path("session"), *bad = temp_path("none/session");
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1), *t = session_of(f->m, .context = f->T, .threads = 1);
    size_t size, before;
    temp_empty();
    feed_to(s, f, 9, "file");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    feed_to(s, f, 13, "file");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));                 /* over the old one */
    EXPECT(MOTE_OK, mote_load_file(t, path, &failure));
    feed_to(t, f, f->T, "from a file");
    char *bytes = session_bytes(s, &size), *old = session_bytes(t, &before);
    EXPECT(MOTE_EIO, mote_save_file(s, bad, &failure));
    EXPECT(MOTE_EINVAL, mote_save_file(s, NULL, &failure));
    EXPECT(MOTE_EIO, mote_save_file(s, temp_dir, &failure));                 /* a folder */
    EXPECT(MOTE_EIO, mote_load_file(t, bad, &failure));
    EXPECT(MOTE_EIO, mote_load_file(t, temp_dir, &failure));
    EXPECT(MOTE_EINVAL, mote_load_file(t, NULL, &failure));
    write_bytes(path, bytes, size - 5);
    EXPECT(MOTE_EFORMAT, mote_load_file(t, path, &failure));
    write_bytes(path, bytes, 0);
    EXPECT(MOTE_EFORMAT, mote_load_file(t, path, &failure));
    CHECK(session_is(t, old, before), "%s: failed loads changed the session", f->dir);
    CHECK(temp_entries() == 1, "%d files: a failed save left one", temp_entries());
    free(bytes);
    free(old);
    mote_session_close(s);
    mote_session_close(t);
}

// ---- 5. KV types ----------------------------------------------------------------------------------------------------

// One KV type: near F32, the same bits in any chunks, and through saving, cloning and rewinding.
static void test_kv_type(const fixture *f, int kv, double allowed) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 1, .threads = 1, .kv = kv), *a = NULL;
    mote_session *t = session_of(f->m, .context = f->T, .chunk = 7, .threads = 1, .kv = kv);
    size_t vocab = (size_t)f->vocab, n = (size_t)f->T * vocab, size;
    float *one = (float *)room(n * 4), *chunks = (float *)room(n * 4), *mtp = (float *)room(2 * n * 4);
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
    float *logits = (float *)room((size_t)f->vocab * 8);
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

// ---- 6. GPU and CPU -------------------------------------------------------------------------------------------------

// Feeds tokens up to position `to` where the numbers need not be the same: they keep a GPU's rule.
static void feed_near(mote_session *s, const fixture *f, int to, const char *what) {
    advance(s, f, to);
    const float *got = mote_logits(s);
    double off = got ? off_by(got, rows_at(f->plain, f, to - 1), (size_t)f->vocab) : INFINITY;
    CHECK(off <= GPU_RULE, "%s: %s: logits after %d tokens are %g off", f->dir, what, to, off);
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
        feed_near(a, f, n + 9, what);
        feed_near(b, f, n + 9, what);
        feed_near(c, f, n + 9, what);
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
    feed_near(b, f, f->T, "from a CPU session with a float32 cache");
    free(bytes);
    mote_session_close(a);
    mote_session_close(b);
}

// An FP8 cache, GPU against CPU: each token from the CPU's cache of those before it, then all of them; and in pieces.
static void test_fp8_cache(const fixture *f) {
    mote_session *gpu = session_of(f->m, .context = f->T, .kv = MOTE_KV_FP8);
    mote_session *cpu = session_of(f->cpu, .context = f->T, .kv = MOTE_KV_FP8);
    float *all[4];
    double step = 0, step_mtp = 0;
    for (int i = 0; i < 4; i++) all[i] = rows_of(f);
    size_t n = (size_t)f->T, size;
    for (int t = 0; t < f->T; t++) {
        char *bytes = session_bytes(cpu, &size);
        EXPECT(MOTE_OK, mote_load(gpu, bytes, size, &failure));
        free(bytes);
        EXPECT(MOTE_OK, feed_decoded(gpu, f->tokens + t, 1, all[0], f->mtp ? all[1] : NULL, f->vocab, &failure));
        EXPECT(MOTE_OK, feed_decoded(cpu, f->tokens + t, 1, all[2], f->mtp ? all[3] : NULL, f->vocab, &failure));
        step = fmax(step, off_by(all[0], all[2], (size_t)f->vocab));
        if (f->mtp && t) step_mtp = fmax(step_mtp, off_by(all[1], all[3], (size_t)f->vocab));
    }
    CHECK(step <= GPU_RULE && step_mtp <= GPU_RULE, "%s: a step with an FP8 cache: logits %g, MTP logits %g off",
          f->dir, step, step_mtp);
    mote_reset(gpu, NULL);
    mote_reset(cpu, NULL);
    EXPECT(MOTE_OK, feed_decoded(gpu, f->tokens, n, all[0], f->mtp ? all[1] : NULL, f->vocab, &failure));
    EXPECT(MOTE_OK, feed_decoded(cpu, f->tokens, n, all[2], f->mtp ? all[3] : NULL, f->vocab, &failure));
    double off = rows_off(all[0], all[2], f->T, f->vocab), reference = rows_off(all[0], f->want, f->T, f->vocab);
    double mtp = f->mtp ? rows_off(all[1], all[3], f->T - 1, f->vocab) : 0;
    printf("%s: FP8 cache: a step's logits %.1e, MTP %.1e off the CPU's; after all tokens %.1e, MTP %.1e, %.1e off the"
           " reference\n", f->dir, step, step_mtp, off, mtp, reference);
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

// ---- 7. Sampling ----------------------------------------------------------------------------------------------------

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
    int32_t *ids = (int32_t *)room((size_t)f->vocab * 4), id;
    float *logprobs = (float *)room((size_t)f->vocab * 4);
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
        int32_t *best = (int32_t *)room((size_t)n * 4);
        float *values = (float *)room((size_t)n * 4);
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
    int32_t *ids = (int32_t *)room((size_t)f->vocab * 4), id;
    float *logprobs = (float *)room((size_t)f->vocab * 4);
    char *drawn = (char *)room((size_t)f->vocab);
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

// ---- 8. Threads and callbacks ---------------------------------------------------------------------------------------

typedef struct errand { const fixture *f; int piece, wrong; mote_error failure; } errand;

static void *run_errand(void *argument) {
    errand *e = (errand *)argument;
    const fixture *f = e->f;
    mote_session_options o = {.context = f->T, .threads = 2};
    mote_session *s;
    for (int round = 0; round < 3; round++) {
        if (mote_session_open(f->m, &o, &s, &e->failure)) return e->wrong = 1000, NULL;
        for (int t = 0; t < f->prompt; t += e->piece) {
            int end = t + e->piece < f->prompt ? t + e->piece : f->prompt;
            e->wrong += feed_decoded(s, f->tokens + t, (size_t)(end - t), NULL, NULL, f->vocab, &e->failure) ||
                        !same_row(f, mote_logits(s), end - 1);
        }
        for (int t = f->prompt; t < f->T; t++) {
            int32_t id = -1;
            e->wrong += mote_step(s, NULL, &id, &e->failure) || id != best_of(rows_at(f->plain, f, t - 1), f->vocab);
            if (id != f->tokens[t]) break;                    // on a GPU, where two logits are close
        }
        mote_session_close(s);
    }
    return NULL;
}

// Sessions of two models on five threads at once: as alone.
static void test_threads(const fixture *f, const fixture *g) {
    pthread_t threads[5];
    errand errands[5];
    memset(errands, 0, sizeof errands);
    for (int i = 0; i < 5; i++) {
        errands[i].f = i % 2 ? g : f;
        errands[i].piece = 1 + i * 2;
        CHECK(!pthread_create(&threads[i], NULL, run_errand, &errands[i]), "a thread");
    }
    for (int i = 0; i < 5; i++) {
        pthread_join(threads[i], NULL);
        CHECK(!errands[i].wrong, "%s: %d wrong on a thread of its own: %s", errands[i].f->dir, errands[i].wrong,
              errands[i].failure.message);
    }
}

typedef struct watch { int polls, cancel_at, reports, bad, logs; double last; char line[512]; } watch;

static int watch_cancel(void *user) {
    watch *w = (watch *)user;
    return ++w->polls == w->cancel_at;
}

static void watch_progress(void *user, const char *what, double fraction) {
    watch *w = (watch *)user;
    w->bad += !what || !what[0] || !(fraction >= 0 && fraction <= 1) || (w->reports && fraction < w->last);
    w->last = fraction;
    w->reports++;
}

static void watch_log(void *user, const char *line) {
    watch *w = (watch *)user;
    w->logs++;
    w->bad += !line[0] || strchr(line, '\n') != NULL;
    snprintf(w->line, sizeof w->line, "%s", line);
}

static mote_callbacks watch_all(watch *w, int cancel_at) {
    mote_callbacks c = {0};
    memset(w, 0, sizeof *w);
    w->cancel_at = cancel_at;
    c.log = watch_log;
    c.progress = watch_progress;
    c.cancel = watch_cancel;
    c.user = w;
    return c;
}

static void test_open_callbacks(const fixture *f, int has_vision) {
    watch w;
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device, .callbacks = watch_all(&w, 0)};
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open(f->dir, &o, &m, &failure));
    CHECK(w.reports > 0 && w.last == 1 && !w.bad && w.polls > 0, "%s: progress of loading", f->dir);
    CHECK(w.logs == has_vision, "%s: %d notices, expected %d: %s", f->dir, w.logs, has_vision, w.line);
    mote_close(m);
    m = NULL;
    o.callbacks = watch_all(&w, 3);
    EXPECT(MOTE_ECANCELLED, mote_open(f->dir, &o, &m, &failure));
    CHECK(!m, "%s: a cancelled load gives no model", f->dir);
}

// Cancelled before every chunk in turn: those done stay, and the rest can be fed later.
static void test_feed_callbacks(const fixture *f) {
    int chunk = is_gpu ? 4 : 8, chunks = (f->T - 1) / chunk + 1;
    for (int at = 1; at <= chunks + 1; at++) {
        watch w;
        mote_session_options o = {.context = f->T + 20, .chunk = chunk, .callbacks = watch_all(&w, at)};
        mote_session *s = session_with(f->m, &o);
        mote_result r;
        int last = at > chunks, done = last ? f->T : (at - 1) * chunk;
        EXPECT(last ? MOTE_OK : MOTE_ECANCELLED, mote_feed(s, f->tokens, (size_t)f->T, &failure));
        CHECK(count_of(s) == done && (done ? same_row(f, mote_logits(s), done - 1) : !mote_logits(s)),
              "%s: %d tokens when cancelled at %d", f->dir, count_of(s), at);
        CHECK(!w.bad && w.reports == (last ? chunks : at - 1) && (!last || w.last == 1), "%s: progress", f->dir);
        if (!last) feed_to(s, f, f->T, "after a cancelled feed");
        w.cancel_at = w.polls + 3;
        EXPECT(MOTE_ECANCELLED, mote_generate(s, NULL, &r, &failure));
        CHECK(r.stop == MOTE_STOP_CALLBACK && r.generated_tokens == count_of(s) - f->T, "%s: cancelled generate", f->dir);
        CHECK(is_gpu || r.generated_tokens == 2, "%s: %d tokens after a cancelled generate", f->dir, r.generated_tokens);
        mote_session_close(s);
    }
}

// ---- 9. Devices and plans -------------------------------------------------------------------------------------------

static void test_devices(const fixture *f) {
    static const char *const bad[] = {"",        "gpu",     "CUDA",                "cuda:", "cuda:x",
                                      "cuda:-1", "cuda:0x", "cuda:99999999999999", "cpu:0"};
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY};
    mote_model *m = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.device = bad[i];
        memset(&failure, 0, sizeof failure);
        int code = mote_open(f->dir, &o, &m, &failure);
        CHECK((code == MOTE_EINVAL || code == MOTE_EDEVICE) && failure.code == code && failure.message[0] && !m,
              "device \"%s\": %d: %s", bad[i], code, failure.message);
    }
    o.device = "cuda:99";
    EXPECT(MOTE_EDEVICE, mote_open(f->dir, &o, &m, &failure));
    CHECK(!m, "a model on a GPU that is not there");
    if (!is_gpu) return;
    o.device = NULL;
    EXPECT(MOTE_OK, mote_open(f->dir, &o, &m, &failure));
    if (m) CHECK(!strncmp(mote_model_info(m)->device, "cuda:0", 6), "the device of its own choice is %s",
                 mote_model_info(m)->device);
    mote_close(m);
}

static void test_plan(const fixture *f) {
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    mote_session_options so = {.context = 64, .kv = MOTE_KV_BF16};
    mote_memory bf16, fp8;
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, &so, &bf16, &failure));
    so.kv = MOTE_KV_FP8;
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, &so, &fp8, &failure));
    CHECK(bf16.context == 64 && bf16.total == bf16.weights + bf16.kv + bf16.state + bf16.scratch, "%s: plan", f->dir);
    CHECK(bf16.kv == 2 * fp8.kv, "%s: KV cache of %llu bytes, of FP8 %llu", f->dir, (unsigned long long)bf16.kv,
          (unsigned long long)fp8.kv);
    if (is_gpu) CHECK(bf16.available > (uint64_t)1 << 30 && bf16.context_fits >= 64, "%s: what fits", f->dir);
}

static void test_info(const fixture *f) {
    const mote_info *o = mote_model_info(f->m);
    uint64_t parameters = 0, bytes = 0;
    for (int i = 0; i < o->module_count; i++) {
        CHECK(o->modules[i].name && o->modules[i].dtype && o->modules[i].parameters, "%s: module %d", f->dir, i);
        CHECK(o->modules[i].bytes_per_token <= o->modules[i].bytes, "%s: module %s", f->dir, o->modules[i].name);
        parameters += o->modules[i].parameters;
        bytes += o->modules[i].bytes;
    }
    CHECK(parameters == o->parameters && bytes == o->weight_bytes, "%s: modules do not sum up", f->dir);
    CHECK(o->active_parameters && o->active_parameters <= o->parameters, "%s: active parameters", f->dir);
    CHECK(o->weight_bytes_per_token <= o->weight_bytes, "%s: bytes per token", f->dir);
    int kinds = 0;
    for (int k = 0; k < o->kind_count; k++) {
        kinds += o->kinds[k].count;
        CHECK(o->kinds[k].count > 0 && o->kinds[k].size_count > 0 && o->kinds[k].sizes[0].value > 0, "%s: %s", f->dir,
              o->kinds[k].name);
    }
    CHECK(kinds == 2 * o->layers, "%s: a mixer and an FFN in each of %d layers", f->dir, o->layers);
    CHECK(o->stage_count >= 8 && !strcmp(o->stages[0], "embed"), "%s: %d stages", f->dir, o->stage_count);
    CHECK(o->architecture && strstr(o->architecture, "_moe") && !strcmp(mote_version(), MOTE_VERSION), "%s: names", f->dir);
}

// A description says what the whole model says, and gives no sessions.
static void test_description(const fixture *f) {
    mote_model *m = model_of(f->dir, MOTE_DESCRIPTION);
    mote_session *s = NULL;
    const mote_info *a = mote_model_info(m), *b = mote_model_info(f->m);
    CHECK(a->parameters == b->parameters && a->weight_bytes == b->weight_bytes && a->module_count == b->module_count &&
          a->layers == b->layers && a->kv_bytes_per_token == b->kv_bytes_per_token, "%s: description", f->dir);
    EXPECT(MOTE_EUNSUPPORTED, mote_session_open(m, NULL, &s, &failure));
    CHECK(!s, "%s: no session on a description", f->dir);
    mote_close(m);
}

// ---- 10. A GPU's own -------------------------------------------------------------------------------------------------

// On few multiprocessors, and what only the CPU can do.
static void test_gpu_options(const fixture *f) {
    mote_session_options o = {.context = f->T, .kv = MOTE_KV_F32};
    mote_session *s = session_of(f->m, .context = f->T, .sms = 3), *none = NULL;
    feed_near(s, f, f->T, "on three multiprocessors");
    mote_session_close(s);
    if (is_gpu) EXPECT_EITHER(MOTE_EINVAL, MOTE_EUNSUPPORTED, mote_session_open(f->m, &o, &none, &failure));
    CHECK(!none, "%s: a refused session", f->dir);
}

// The logits of one to four rows, on `sms` multiprocessors.
static float *logits_on(const mote_model *m, int sms, size_t *size) {
    static const int32_t ids[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38};
    const size_t row = (size_t)mote_model_info(m)->vocab_size;
    float *all = (float *)room(10 * row * sizeof *all);
    mote_session *s = session_of(m, .context = 64, .sms = sms);
    for (size_t rows = 1, from = 0; rows <= 4; from += rows++)
        EXPECT(MOTE_OK, mote_feed_logits(s, ids + from, rows, all + from * row, NULL, &failure));
    mote_session_close(s);
    *size = 10 * row * sizeof *all;
    return all;
}

// On one multiprocessor a warp has many tiles of lm_head, as those of a real vocabulary are on all, and out_proj has fewer blocks
// than tiles: other kernels, the same bits.
static void test_one_sm(const char *name) {
    mote_options o = {.device = test_device};
    mote_model *m = NULL;
    size_t size;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &m, &failure));
    if (!m) return;
    float *one = logits_on(m, 1, &size), *all = logits_on(m, 0, &size);
    CHECK(!memcmp(one, all, size), "%s: the logits on one multiprocessor", name);
    free(one);
    free(all);
    mote_close(m);
}

// A copy of a checkpoint, by links, that says it can do a context of 2^24 tokens.
static void long_copy(const char *dir) {
    struct dirent **names;
    char from[1024];
    int n = scandir(dir, &names, NULL, NULL);
    temp_empty();
    for (int i = 0; i < n; i++) {
        snprintf(from, sizeof from, "%s/%s", dir, names[i]->d_name);
        char *path = realpath(from, NULL);
        if (!strcmp(names[i]->d_name, "config.json")) {
            size_t size;
            char *config = file_bytes(from, &size);
            set_number(&config, &size, "max_position_embeddings", "16777216");
            temp_write("config.json", config, size);
            free(config);
        } else if (names[i]->d_name[0] != '.') {
            CHECK(path && !symlink(path, temp_path(names[i]->d_name)), "a link to %s", from);
        }
        free(path);
        free(names[i]);
    }
    if (n >= 0) free(names);
}

// Sessions of the longest context that fits at all, or near it, until the GPU is full: the next one is refused with what
// would fit, the others go on, and once they are closed all of their memory is there again.
static void test_full_memory(const fixture *f) {
    enum { MOST = 200 };
    static mote_session *s[MOST];
    long_copy(f->dir);
    mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    int n[2] = {0, 0}, code = 0, context = mote_model_info(m)->context_max;
    mote_session_options o = {.context = context};
    while (context > 64 && mote_session_open(m, &o, &s[0], &failure) == MOTE_ENOMEM) o.context = context /= 4;
    mote_session_close(s[0]);
    for (int round = 0; round < 2; round++) {
        for (n[round] = 0; n[round] < MOST; n[round]++) {
            s[n[round]] = NULL;
            memset(&failure, 0, sizeof failure);
            code = mote_session_open(m, &o, &s[n[round]], &failure);
            if (code) break;
        }
        CHECK(code == MOTE_ENOMEM && failure.code == code && strpbrk(failure.message, "0123456789"),
              "after %d sessions: %d: %s", n[round], code, failure.message);
        if (!round) printf("full after %d sessions of %d tokens: %s\n", n[0], context, failure.message);
        if (n[round]) feed_to(s[0], f, 5, "on a full GPU");
        for (int i = 0; i < n[round]; i++) mote_session_close(s[i]);
    }
    CHECK(n[0] == n[1] && n[0] > 0, "%d sessions fit, later %d", n[0], n[1]);
    mote_close(m);
}

static void test_measure(const fixture *f) {
    mote_session *s = session_of(f->m, .context = 512);
    const mote_launch *launches = NULL;
    mote_measurement x = {0};
    size_t count = 0;
    for (int rows = 1; rows <= 4; rows++) {
        x = (mote_measurement){.rows = rows, .depth = 100, .steps = 20};
        if (!is_gpu) {
            EXPECT(MOTE_EUNSUPPORTED, mote_measure(s, &x, &failure));
            continue;
        }
        EXPECT(MOTE_OK, mote_measure(s, &x, &failure));
        CHECK(x.fastest > 0 && x.fastest <= x.median && x.median <= x.slowest && x.bytes > 0 && x.launches > 0,
              "%s: measured %g .. %g .. %g s, %d launches", f->dir, x.fastest, x.median, x.slowest, x.launches);
        CHECK(count_of(s) == 0, "%s: measuring empties the timeline", f->dir);
        EXPECT(MOTE_OK, mote_launches(s, rows, &launches, &count, &failure));
        CHECK((int)count == x.launches, "%s: %d launches measured, %d listed", f->dir, x.launches, (int)count);
        for (size_t i = 0; i < count; i++) {
            const mote_launch *l = &launches[i];
            CHECK(l->stage && l->kernel && l->format && l->rows == rows && l->grid[0] > 0 && l->block > 0 && l->arch,
                  "%s: launch %d", f->dir, (int)i);
            CHECK(l->shared_bytes <= 101376 && l->stack_bytes == 0, "%s: %s: %d bytes of shared memory, %d of stack",
                  f->dir, l->kernel, l->shared_bytes, l->stack_bytes);
        }
        feed_to(s, f, f->T, "after measuring");
    }
    x.rows = 20000;
    EXPECT_EITHER(MOTE_EINVAL, is_gpu ? MOTE_EINVAL : MOTE_EUNSUPPORTED, mote_measure(s, &x, &failure));
    mote_session_close(s);
}

// ---- 11. Refusals ---------------------------------------------------------------------------------------------------

static void test_open_misuse(const fixture *f) {
    mote_model *m = NULL;
    mote_memory plan, untouched;
    mote_session_options so = {.context = -5};
    mote_options o = {0};
    char path[600];
    temp_empty();
    EXPECT(MOTE_EINVAL, mote_open(NULL, NULL, &m, &failure));
    EXPECT(MOTE_EINVAL, mote_open(f->dir, NULL, NULL, &failure));
    o.parts = -1;
    EXPECT(MOTE_EINVAL, mote_open(f->dir, &o, &m, &failure));
    o.parts = 4;
    EXPECT(MOTE_EINVAL, mote_open(f->dir, &o, &m, &failure));
    EXPECT(MOTE_EIO, mote_open("no/such/folder", NULL, &m, &failure));
    EXPECT(MOTE_EIO, mote_open(temp_dir, NULL, &m, &failure));                     /* an empty folder */
    snprintf(path, sizeof path, "%s/config.json", f->dir);
    EXPECT(MOTE_EIO, mote_open(path, NULL, &m, &failure));                    /* a file */
    CHECK(mote_open("no/such/folder", NULL, &m, NULL) == MOTE_EIO && !m, "no place for the error");
    o.parts = MOTE_TEXT_ONLY;
    EXPECT(MOTE_EIO, mote_open(f->dir, &o, &m, &failure));                    /* no tokenizer there */
    mote_close(NULL);
    memset(&plan, 0x55, sizeof plan);
    memset(&untouched, 0x55, sizeof untouched);
    EXPECT(MOTE_EINVAL, mote_plan(NULL, NULL, NULL, &plan, &failure));
    EXPECT(MOTE_EINVAL, mote_plan(f->dir, NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EIO, mote_plan("no/such/folder", NULL, NULL, &plan, &failure));
    EXPECT(MOTE_EINVAL, mote_plan(f->dir, NULL, &so, &plan, &failure));
    CHECK(!memcmp(&plan, &untouched, sizeof plan), "a refused plan stays untouched");
}

static void test_session_misuse(const fixture *f) {
    int most = mote_model_info(f->m)->context_max;
    const mote_session_options bad[] = {{.context = -1}, {.context = most + 1}, {.chunk = -1}, {.chunk = -(1 << 30)},
                                        {.threads = -1}, {.threads = 1 << 30}, {.kv = -1}, {.kv = MOTE_KV_FP8 + 1}};
    mote_session *s = NULL;
    for (int i = 0; i < 8; i++) EXPECT(MOTE_EINVAL, mote_session_open(f->m, &bad[i], &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(NULL, NULL, &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(f->m, NULL, NULL, &failure));
    CHECK(!s, "a refused session is no session");
    mote_session_close(NULL);
    EXPECT(MOTE_OK, mote_session_open(f->m, NULL, &s, &failure));
    CHECK(mote_context(s) == (most < 8192 ? most : 8192), "default context %d", mote_context(s));
    mote_session_close(s);
}

static void test_feed_misuse(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 2, .threads = 1);
    int32_t ids[5];
    size_t size, n;
    float *logits = (float *)room((size_t)(5 * f->vocab) * 4);
    feed_to(s, f, 4, "misuse");
    char *bytes = session_bytes(s, &size);
    for (int i = 0; i < 6; i++) {
        static const int32_t bad[] = {-1, 1 << 30, INT32_MIN, INT32_MAX, 0, 0};
        memcpy(ids, f->tokens, sizeof ids);
        ids[i < 4 ? i : 4] = i < 4 ? bad[i] : f->vocab;
        EXPECT(MOTE_EINVAL, mote_feed(s, ids, 5, &failure));
        EXPECT(MOTE_EINVAL, mote_feed_logits(s, ids, 5, logits, NULL, &failure));
    }
    EXPECT(MOTE_EINVAL, mote_feed(s, NULL, 2, &failure));
    EXPECT(MOTE_ECONTEXT, mote_feed(s, ids, SIZE_MAX, &failure));
    if (!f->mtp) EXPECT(MOTE_EUNSUPPORTED, mote_feed_logits(s, f->tokens, 2, logits, logits, &failure));
    EXPECT(MOTE_OK, mote_feed(s, NULL, 0, &failure));
    EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens, 0, NULL, NULL, &failure));
    CHECK(mote_feed(s, NULL, 2, NULL) == MOTE_EINVAL, "no place for the error");
    CHECK(session_is(s, bytes, size) && mote_tokens(s, &n) && n == 4, "%s: refused tokens changed the session", f->dir);
    CHECK(logits[0] == 0 && logits[5 * f->vocab - 1] == 0, "%s: refused tokens wrote logits", f->dir);
    free(bytes);
    free(logits);
    mote_session_close(s);
}

static void test_sampling_misuse(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    static const mote_sampling bad[] = {
        {.temperature = -0.1f}, {.temperature = NAN}, {.temperature = INFINITY}, {.top_k = -1}, {.top_p = 1.5f}, {.top_p = NAN},
        {.min_p = -1}, {.min_p = NAN}, {.repetition_penalty = -2}, {.repetition_penalty = NAN},
        {.presence_penalty = INFINITY}, {.frequency_penalty = NAN}};
    static const mote_generation wrong[] = {{.max_tokens = -1}, {.stop_count = 1}, {.stop_count = -1}, {.think = 3}};
    mote_result r;
    int32_t id = -7;
    size_t size;
    feed_to(s, f, 4, "sampling misuse");
    char *bytes = session_bytes(s, &size);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mote_generation g = {.sampling = &bad[i]};
        EXPECT(MOTE_EINVAL, mote_sample(s, &bad[i], &id, &failure));
        EXPECT(MOTE_EINVAL, mote_step(s, &bad[i], &id, &failure));
        EXPECT(MOTE_EINVAL, mote_generate(s, &g, &r, &failure));
    }
    for (int i = 0; i < 4; i++) EXPECT(MOTE_EINVAL, mote_generate(s, &wrong[i], &r, &failure));
    CHECK(id == -7 && session_is(s, bytes, size), "%s: refused sampling changed something", f->dir);
    free(bytes);
    mote_session_close(s);
}

// Text calls on a model without a tokenizer.
static void test_weights_only(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    int32_t ids[4] = {0};
    char text[4];
    size_t n = 99;
    mote_sampling p;
    EXPECT(MOTE_EUNSUPPORTED, mote_tokenize(f->m, "a", 1, 0, ids, 4, &n, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_detokenize(f->m, ids, 1, text, 4, &n, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_render(f->m, "{}", 2, text, 4, &n, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_ask(s, "Hello", NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask(s, NULL, NULL, NULL, &failure));
    CHECK(n == 0 && !mote_token_bytes(f->m, 0, &n), "the count after refused text calls");
    memset(&p, 0x55, sizeof p);
    mote_sampling_defaults(f->m, &p);
    CHECK(p.top_k == 0 && p.repetition_penalty == 0, "defaults without generation_config.json");
    CHECK(!mote_model_info(f->m)->chat_template, "no chat template");
    mote_session_close(s);
}

// ---- 12. Damaged checkpoints ----------------------------------------------------------------------------------------

// One way to damage model.safetensors: bytes of the first tensor of a type whose name holds `part`, or the end of the file.
typedef struct damage { const char *dtype, *part; size_t at; unsigned char value; int bytes; } damage;

static void damage_file(const char *name, char **bytes, size_t *size, const void *how) {
    const damage *d = (const damage *)how;
    if (strcmp(name, "model.safetensors")) return;
    if (d->dtype) memset(*bytes + tensor_of(*bytes, d->dtype, d->part) + d->at, d->value, (size_t)d->bytes);
    else *size -= 1;
}

static void test_damaged_weights(const fixture *fp8) {
    static const damage all[] = {{"F8_E4M3", "", 5, 0xff, 1}, {"F8_E4M3", "", 700, 0x7f, 1},
                                 {"F32", "weight_scale_inv", 0, 0xff, 4}, {0}};
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    for (int i = 0; i < 4; i++) {
        mote_model *m = NULL;
        temp_copy_of(fp8->dir, damage_file, &all[i]);
        EXPECT(MOTE_EFORMAT, mote_open(temp_dir, &o, &m, &failure));
        CHECK(!m && strstr(failure.message, "model.safetensors"), "damage %d: %s", i, failure.message);
    }
}

// One bit of one norm weight makes another checkpoint: its sessions are not exchanged. (test_misuse changes every tensor.)
static void flip_norm(const char *name, char **bytes, size_t *size, const void *how) {
    (void)size, (void)how;
    if (!strcmp(name, "model.safetensors")) (*bytes)[tensor_of(*bytes, "BF16", "input_layernorm.weight")] ^= 1;
}

static void test_other_weights(const fixture *fp8) {
    size_t size;
    temp_copy_of(fp8->dir, flip_norm, NULL);
    mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *s = session_of(fp8->m, .context = 20), *t = session_of(m, .context = 20);
    feed_to(s, fp8, 5, "other weights");
    char *bytes = session_bytes(s, &size);
    mote_checkpoint *c = checkpoint_of(s);
    EXPECT(MOTE_EINVAL, mote_load(t, bytes, size, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(t, c, &failure));
    CHECK(count_of(t) == 0, "a session of other weights");
    mote_checkpoint_free(c);
    mote_session_close(s);
    mote_session_close(t);
    mote_close(m);
    free(bytes);
}

// Puts the files of the temporary folder into the page cache or, where they lie on a disk, out of it.
static void temp_cache(int in) {
    DIR *d = opendir(temp_dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t size;
        int file = e->d_name[0] == '.' ? -1 : open(temp_path(e->d_name), O_RDONLY);
        if (file < 0) continue;
        if (in) free(file_bytes(temp_path(e->d_name), &size));
        else if (!fsync(file)) (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
    if (d) closedir(d);
}

// The same weights from the disk and from the page cache: a GPU's are read in different ways.
static void test_page_cache(const fixture *f) {
    temp_copy_of(f->dir, NULL, NULL);
    for (int in = 0; in < 2; in++) {
        temp_cache(in);
        mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
        mote_session *s = session_of(m, .context = 20);
        feed_to(s, f, 5, in ? "weights from the page cache" : "weights from the disk");
        mote_session_close(s);
        mote_close(m);
    }
}

static const mote_module *module_of(const mote_model *m, const char *name) {
    const mote_info *info = mote_model_info(m);
    for (int i = 0; i < info->module_count; i++)
        if (!strcmp(info->modules[i].name, name)) return &info->modules[i];
    CHECK(0, "no module %s", name);
    return &info->modules[0];
}

// BF16 turned into FP8 while it is loaded: said so, half the bytes, logits that are still those (others would be off by 1.4;
// in models this small, routers turn), and another model for saved sessions. test_formats looks at the weights.
static void test_quantize(const fixture *f) {
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device, .quantize = MOTE_QUANTIZE_FP8}, wrong = o;
    mote_memory plan, plain_plan;
    mote_model *m = NULL;
    size_t size, n = row_bytes(f, f->prompt) / sizeof(float);
    wrong.quantize = 2;
    EXPECT(MOTE_EINVAL, mote_open(f->dir, &wrong, &m, &failure));
    EXPECT(MOTE_EINVAL, mote_open_synthetic("tiny:bf16", &o, &m, &failure));
    EXPECT(MOTE_OK, mote_open(f->dir, &o, &m, &failure));
    if (!m) return;
    const mote_module *experts = module_of(m, "experts"), *before = module_of(f->m, "experts");
    CHECK(mote_model_info(m)->quantize == MOTE_QUANTIZE_FP8 && !mote_model_info(f->m)->quantize, "%s: not told", f->dir);
    CHECK(!strcmp(experts->dtype, "BF16 as FP8 128x128") && !strcmp(module_of(m, "lm_head")->dtype, "BF16") &&
          strstr(module_of(m, "mtp")->dtype, "BF16 as FP8"), "%s: %s", f->dir, experts->dtype);
    CHECK(experts->parameters == before->parameters && experts->bytes < before->bytes * 51 / 100 + 4 * 60, "%s: %llu bytes",
          f->dir, (unsigned long long)experts->bytes);
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, NULL, &plan, &failure));
    o.quantize = MOTE_QUANTIZE_OFF;
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, NULL, &plain_plan, &failure));
    CHECK(plan.weights < plain_plan.weights, "%s: the plan has no fewer bytes", f->dir);
    mote_session *s = session_of(m, .context = f->T, .threads = 1), *t = session_of(f->m, .context = f->T);
    float *logits = rows_of(f);
    EXPECT(MOTE_OK, feed_decoded(s, f->tokens, (size_t)f->prompt, logits, NULL, f->vocab, &failure));
    double off = rms_off(logits, f->want, n);
    CHECK(off > 1e-4 && off < 0.7, "%s: quantised, logits are off by %g (root mean square)", f->dir, off);
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_EINVAL, mote_load(t, bytes, size, &failure));
    free(bytes);
    free(logits);
    close_all((mote_session *[]){s, t}, 2);
    mote_close(m);
}

static void set_eos(const char *name, char **bytes, size_t *size, const void *id) {
    if (!strcmp(name, "config.json")) set_number(bytes, size, "eos_token_id", (const char *)id);
}

// A checkpoint whose end of text is the fourth greedy id: the answer ends there when generation_config.json says so.
// config.json's token only counts where there is text to end, which these fixtures, without tokenizers, have not.
static void test_eos(const fixture *f, int generation_config, int parts) {
    char id[16], text[64];
    int32_t eos = f->tokens[f->prompt + 3];
    int wanted = 7;
    mote_sampling greedy = {0};
    mote_generation g = {.sampling = &greedy, .max_tokens = 8};
    mote_result r;
    snprintf(id, sizeof id, "%d", eos);
    temp_copy_of(f->dir, generation_config ? NULL : set_eos, id);
    snprintf(text, sizeof text, "{\"eos_token_id\": [1000000, %d]}", eos);
    if (generation_config) temp_write("generation_config.json", text, strlen(text));
    if (generation_config)
        for (wanted = 0; f->tokens[f->prompt + wanted] != eos;) wanted++;
    mote_model *m = model_of(temp_dir, parts);
    mote_session *s = session_of(m, 0);
    feed_to(s, f, f->prompt, "eos");
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == (generation_config ? MOTE_STOP_EOS : MOTE_STOP_LENGTH) && r.generated_tokens == wanted + 1,
          "%s: end of text (parts %d, generation_config %d): stop %d after %d", f->dir, parts, generation_config, r.stop,
          r.generated_tokens);
    mote_session_close(s);
    mote_close(m);
}

// ---- 13. The bundled model ------------------------------------------------------------------------------------------

typedef struct answer { char text[4096]; size_t size; int calls, stop_after, thinking, id_count; int32_t ids[256]; } answer;

static int answer_text(void *user, int channel, const char *text, size_t size) {
    answer *a = (answer *)user;
    if (a->size + size <= sizeof a->text) memcpy(a->text + a->size, text, size), a->size += size;
    a->thinking += channel == MOTE_THINKING;
    return ++a->calls == a->stop_after;
}

static int answer_id(void *user, int32_t id) {
    answer *a = (answer *)user;
    if (a->id_count < 256) a->ids[a->id_count++] = id;
    return 0;
}

static mote_generation generation_of(answer *a, const mote_sampling *p, int max_tokens) {
    memset(a, 0, sizeof *a);
    return (mote_generation){.sampling = p, .max_tokens = max_tokens, .on_text = answer_text, .on_token = answer_id, .user = a};
}

static int text_is(const answer *a, const char *want, size_t n) {
    return a->size == n && !memcmp(a->text, want, n);
}

static const char *prompt = "Once upon a time there was a little girl who";

static void feed_text(const mote_model *m, mote_session *s, const char *text) {
    int32_t ids[256];
    size_t n = 0;
    EXPECT(MOTE_OK, mote_tokenize(m, text, strlen(text), 1, ids, 256, &n, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, n, &failure));
}

// A stop text, wherever its pieces fall: the answer is the plain one up to where the text first occurs.
static void test_stop_texts(mote_session *s, const mote_checkpoint *start, const answer *plain, int tokens) {
    mote_sampling greedy = {0};
    answer a;
    int first_count = count_of(s) - plain->id_count;
    for (size_t at = 0; at + 9 < plain->size; at += 1 + plain->size / 12) {
        char stop[16] = "";
        size_t n = 1 + at % 9;
        const char *stops[3] = {"never in this text", stop, ""};
        mote_result r;
        memcpy(stop, plain->text + at, n);
        const char *first = (const char *)memmem(plain->text, plain->size, stop, n);
        mote_generation g = generation_of(&a, &greedy, tokens);
        g.raw = 1;
        g.stop = stops;
        g.stop_count = 3;
        EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
        CHECK(r.stop == MOTE_STOP_TEXT, "stop text \"%s\": stop %d", stop, r.stop);
        CHECK(text_is(&a, plain->text, (size_t)(first - plain->text)), "stop text \"%s\" gives \"%.*s\"", stop,
              (int)a.size, a.text);
        CHECK(r.generated_tokens == a.id_count && count_of(s) == first_count + a.id_count, "tokens of an answer");
    }
    mote_generation g = generation_of(&a, &greedy, tokens);
    const char *stops[1] = {"never in this text"};
    g.raw = 1;
    g.stop = stops;
    g.stop_count = 1;
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    CHECK(text_is(&a, plain->text, plain->size), "a stop text that never comes changes nothing");
}

static void test_generated_text(const mote_model *m) {
    mote_session *s = session_of(m, .context = 512);
    mote_sampling greedy = {0};
    mote_result r;
    answer a, b;
    char text[2048];
    size_t n = 0;
    feed_text(m, s, prompt);
    mote_checkpoint *start = checkpoint_of(s);
    mote_generation g = generation_of(&a, &greedy, 40);
    g.raw = 1;
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.generated_tokens == a.id_count && a.id_count > 5 && a.size > 20, "a generated text");
    int plain_ids = a.id_count - (r.stop == MOTE_STOP_EOS);
    EXPECT(MOTE_OK, mote_detokenize(m, a.ids, (size_t)plain_ids, text, sizeof text, &n, &failure));
    CHECK(text_is(&a, text, n), "on_text gives what the ids say: \"%.*s\"", (int)a.size, a.text);
    test_stop_texts(s, start, &a, 40);
    g = generation_of(&b, &greedy, 40);
    b.stop_after = 2;
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CALLBACK && b.calls == 2 && r.generated_tokens == b.id_count, "on_text: %d", b.calls);
    mote_checkpoint_free(start);
    mote_session_close(s);
}

// The same seed gives the same text, another one another, and only ids with text are chosen.
static void test_sampled_text(const mote_model *m) {
    mote_session *s = session_of(m, .context = 512);
    mote_sampling p = {.temperature = 3};
    answer a[3];
    feed_text(m, s, prompt);
    mote_checkpoint *start = checkpoint_of(s);
    for (int i = 0; i < 3; i++) {
        mote_generation g = generation_of(&a[i], &p, 20);
        p.seed = (uint64_t)(1 + i / 2);
        g.raw = 1;
        EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
        size_t n;
        for (int j = 0; j < a[i].id_count; j++) CHECK(mote_token_bytes(m, a[i].ids[j], &n), "id %d", a[i].ids[j]);
    }
    CHECK(a[0].id_count == a[1].id_count && !memcmp(a[0].ids, a[1].ids, sizeof a[0].ids), "the same seed, other ids");
    CHECK(memcmp(a[0].ids, a[2].ids, sizeof a[0].ids) != 0, "another seed, the same ids");
    mote_checkpoint_free(start);
    mote_session_close(s);
}

// Two turns of a conversation, the first answer cut short, are the tokens that the whole text gives.
static void test_ask(const mote_model *m) {
    mote_session *s = session_of(m, .context = 512);
    mote_sampling greedy = {0};
    mote_result r;
    answer a;
    size_t n, size;
    char text[4096], what[512];
    mote_generation g = generation_of(&a, &greedy, 6);
    g.system = "Be brief.";
    g.think = MOTE_THINK_OFF;
    EXPECT(MOTE_OK, mote_ask(s, "What is a <|im_end|>?", &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_LENGTH && r.generated_tokens == 6 && a.thinking == 0, "a short answer: stop %d", r.stop);
    CHECK(r.prompt_tokens > 5 && count_of(s) == r.prompt_tokens + 6 && r.prompt_seconds > 0, "prompt tokens");
    EXPECT(MOTE_OK, mote_detokenize(m, mote_tokens(s, &n), (size_t)count_of(s), text, sizeof text, &n, &failure));
    const char *want = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is a <|im_end|>?<|im_end|>\n"
                       "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    CHECK(n > strlen(want) && !memcmp(text, want, strlen(want)), "the first turn is %.*s", (int)n, text);
    int32_t end;
    EXPECT(MOTE_OK, mote_tokenize(m, "<|im_end|>", 10, 1, &end, 1, &n, &failure));
    int ends = 0, first = count_of(s);
    for (int i = 0; i < first - 6; i++) ends += mote_tokens(s, &n)[i] == end;
    CHECK(ends == 2, "%d <|im_end|> tokens: the user's is plain text", ends);
    g = generation_of(&a, &greedy, 3);
    g.think = MOTE_THINK_ON;
    g.keep_thinking = 1;
    EXPECT(MOTE_OK, mote_ask(s, "And?", &g, &r, &failure));
    EXPECT(MOTE_OK, mote_detokenize(m, mote_tokens(s, &n) + first, (size_t)r.prompt_tokens, what, sizeof what, &n, &failure));
    want = "<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    CHECK(n == strlen(want) && !memcmp(what, want, n), "the second turn is %.*s", (int)n, what);
    char *bytes = session_bytes(s, &size);
    mote_sampling bad = {.temperature = -1};
    g.sampling = &bad;
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, &r, &failure));
    CHECK(session_is(s, bytes, size), "mote_ask with bad sampling changed the session");
    free(bytes);
    bytes = session_bytes(s, &size);
    g.sampling = &greedy;
    g.role = "king";
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, &r, &failure));
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    g.role = NULL;
    EXPECT(MOTE_ECONTEXT, mote_ask(s, text, &g, &r, &failure));
    CHECK(session_is(s, bytes, size), "a refused mote_ask changed the session");
    free(bytes);
    mote_session_close(s);
}

static void test_text_calls(const mote_model *m) {
    int32_t ids[64];
    char text[64];
    size_t n = 0, needed = 0;
    const char *in = "Gr\xC3\xBC\xC3\x9F Gott, 3 cats!";
    EXPECT(MOTE_EINVAL, mote_tokenize(m, in, strlen(in), 0, NULL, 0, &needed, &failure));
    EXPECT(MOTE_OK, mote_tokenize(m, in, strlen(in), 0, ids, 64, &n, &failure));
    CHECK(n == needed && n > 0, "the size asked for first");
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, n, NULL, 0, &needed, &failure));
    CHECK(needed == strlen(in), "detokenised size %zu", needed);
    EXPECT(MOTE_OK, mote_detokenize(m, ids, n, text, sizeof text, &needed, &failure));
    CHECK(!memcmp(text, in, needed), "there and back");
    EXPECT(MOTE_OK, mote_tokenize(m, "", 0, 1, ids, 64, &n, &failure));
    CHECK(n == 0, "no text, no ids");
    EXPECT(MOTE_OK, mote_detokenize(m, ids, 0, NULL, 0, &n, &failure));
    ids[0] = -1;
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, 1, text, sizeof text, &n, &failure));
    ids[0] = INT32_MAX;
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, 1, text, sizeof text, &n, &failure));
    CHECK(!mote_token_bytes(m, -1, &n) && !mote_token_bytes(m, INT32_MAX, &n), "no bytes for no id");
    EXPECT(MOTE_EINVAL, mote_render(m, "{", 1, text, sizeof text, &n, &failure));
}

static void test_demo(void) {
    mote_session *s = NULL;
    mote_sampling p, q;
    mote_model *m = model_of("models/demo", MOTE_TEXT_ONLY);
    EXPECT(MOTE_EUNSUPPORTED, mote_session_open(m, NULL, &s, &failure));
    CHECK(!s && mote_model_info(m)->layers == 0 && mote_model_info(m)->chat_template, "a model of text only");
    test_text_calls(m);
    mote_close(m);
    m = model_of("models/demo", MOTE_EVERYTHING);
    mote_sampling_defaults(m, &p);
    mote_sampling_defaults(m, &q);
    CHECK(p.seed != q.seed && p.top_k == q.top_k && p.temperature >= 0, "sampling defaults");
    test_text_calls(m);
    test_generated_text(m);
    test_sampled_text(m);
    test_ask(m);
    mote_close(m);
}

// ---- 14. All of it --------------------------------------------------------------------------------------------------

// Of each checkpoint.
static void test_checkpoint(fixture *f) {
    static const mote_sampling greedy;
    test_plain(f);
    test_greedy(f);
    if (decoded_rows && beside && f->prompt > decoded_rows) test_prefill(f);
    test_all_pieces(f);
    if (is_gpu && test_brief) return;
    test_generate(f, &greedy);
    test_plan(f);
    test_info(f);
}

static void test_states(const fixture *f) {
    test_rewind(f);
    test_stale(f);
    test_stale_rows(f);
    test_clone(f);
    test_save(f, 1);
    test_save(f, 4);
    test_refused_bytes(f);
    test_reset_and_full(f);
    test_kv_types(f);
    test_seeds(f);
    test_logprobs(f);
    test_tokens_left(f);
    test_ties(f);
    test_on_token(f);
    if (!decoded_rows) test_feed_callbacks(f);
    test_feed_misuse(f);
    test_description(f);
}

static void test_beside(const fixture *f) {
    test_moves(f);
    test_fp8_cache(f);
    test_same_choice(f);
    test_gpu_options(f);
    test_measure(f);
}

// Once, of checkpoints that have what it takes.
static void test_fixtures(fixture *f, int count) {
    fixture *by_name[4] = {NULL, NULL, NULL, NULL};
    static const char *const names[] = {"f32-tied", "f16-all-delta", "fp8-f32-scales", "bf16-as-3.5"};
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 4; k++)
            if (strstr(f[i].dir, names[k])) by_name[k] = &f[i];
    if (!CHECK(by_name[0] && by_name[1] && by_name[2] && by_name[3], "not all of tests/fixtures")) return;
    test_save_files(by_name[1]);
    test_open_misuse(by_name[0]);
    test_session_misuse(by_name[0]);
    test_sampling_misuse(by_name[0]);
    test_weights_only(by_name[0]);
    test_other_weights(by_name[2]);
    test_page_cache(by_name[2]);
    test_quantize(by_name[3]);
    if (is_gpu) return;
    test_damaged_weights(by_name[2]);
    for (int i = 0; i < count; i++) test_open_callbacks(&f[i], strstr(f[i].dir, "bf16-as-3.5") != NULL);
    test_eos(by_name[0], 1, MOTE_WEIGHTS_ONLY);
    test_eos(by_name[0], 0, MOTE_WEIGHTS_ONLY);
    test_eos(by_name[0], 0, MOTE_EVERYTHING);
}

// Is it refused, as it should be? An order of columns, by any device. By a GPU, experts of different dtypes in one layer, which
// only one fixture has.
static int is_refused(const char *dir) {
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    mote_model *m = NULL;
    const char *why = strstr(dir, "actorder") ? "desc_act" : NULL;
    if (is_gpu && strstr(dir, "mixed-all-attention")) why = "experts of different dtypes";
    if (!why) return 0;
    EXPECT(MOTE_EUNSUPPORTED, mote_open(dir, &o, &m, &failure));
    CHECK(!m && strstr(failure.message, why), "%s: %s", dir, failure.message);
    printf("test_engine: %s is refused: %s\n", dir, failure.message);
    return 1;
}

// Is there this folder in the data?
static int has_folder(const char *name) {
    char path[1024];
    if (!test_data_dir()) return 0;
    snprintf(path, sizeof path, "%s/%s", test_data_dir(), name);
    return access(path, F_OK) == 0;
}

// Opens and tests one more checkpoint. Of several on the CPU, in brief, states of two: of BF16, and of FP8 with odd sizes.
static int test_next(fixture *f, const char *dir, int all) {
    if (is_refused(dir) || !fixture_open(f, dir)) return 0;
    test_checkpoint(f);
    int states = test_brief ? !is_gpu && (strstr(dir, "bf16-as-3.5") || strstr(dir, "fp8-ragged")) : all;
    if (states) test_states(f);
    if (beside && !test_brief) test_beside(f);
    fflush(stdout);
    return 1;
}

int main(int argc, char **argv) {
    enum { MOST = 32 };
    static const char *const names[] = {"bf16-as-3.5",    "bf16-as-3.6", "f16-all-delta",      "f32-tied",
                                        "fp8-f32-scales", "fp8-ragged",  "mixed-all-attention",
                                        "nvfp4-fp8-tensor", "ct-nvfp4-fp8-int4", "gptq-awq-int4"};
    static const char *const more[] = {"dev-flat-bf16", "dev-nested-fp8"};
    static const char *const quantised[] = {"modelopt-mixed", "modelopt-experts", "ct-mixed", "ct-fp8-dynamic", "gptq-int4",
                                            "gptq-actorder", "autoround", "awq", "ct-int4"};
    static char dirs[MOST][512];
    static fixture f[MOST];
    int first = test_main_begin("test_engine", argc, argv), count = 0;
    is_gpu = strcmp(test_device, "cpu") != 0;
    cache = is_gpu ? MOTE_KV_BF16 : MOTE_KV_F32;
    for (int i = 1; i < argc; i++) beside |= !strcmp(argv[i], "--device");
    if (!temp_open()) return test_main_end();
    for (int i = first; i < argc && count < MOST; i++) count += test_next(&f[count], argv[i], 1);
    if (first >= argc) {
        int n = 0;
        for (int i = 0; i < 10; i++, n++) {
            snprintf(dirs[n], sizeof *dirs, "tests/fixtures/%s", names[i]);
            count += test_next(&f[count], dirs[n], i < 7);
        }
        for (int i = 0; i < 2 && has_folder("fixtures"); i++, n++) {
            snprintf(dirs[n], sizeof *dirs, "%s/fixtures/%s", test_data_dir(), more[i]);
            count += test_next(&f[count], dirs[n], is_gpu);
        }
        for (int i = 0; i < 9 && has_folder("data-quant"); i++, n++) {
            snprintf(dirs[n], sizeof *dirs, "%s/data-quant/dev-q-%s", test_data_dir(), quantised[i]);
            count += test_next(&f[count], dirs[n], 0);
        }
        if (!has_folder("fixtures")) test_skip("no data folder: its reference checkpoints");
        if (!has_folder("data-quant")) test_skip("no data folder: its quantised reference checkpoints");
        test_fixtures(f, count);
        test_demo();
    }
    if (CHECK(count > 0, "no checkpoint") && !(is_gpu && test_brief)) {
        test_threads(&f[0], &f[count > 1]);
        test_devices(&f[0]);
        if (is_gpu) {
            test_one_sm("small:nvfp4");
            test_one_sm("small:fp8");
            test_full_memory(&f[count - 1]);
        }
        printf("test_engine: device %s\n", mote_model_info(f[0].m)->device);
    }
    for (int i = 0; i < count; i++) fixture_close(&f[i]);
    temp_close();
    return test_main_end();
}
