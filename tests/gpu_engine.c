// Tests of the library on a GPU, through its API alone: checkpoints with reference results, sessions in every state,
// sessions that move between GPU and CPU, sampling, threads, and what must be refused. See tools/test_gpu.sh
//
// Contents   1. Helpers          2. Fixtures       3. Reference results     4. Pieces, states, files
//            5. GPU and CPU      6. Sampling       7. Threads, callbacks    8. Misuse, devices, memory
//            9. Main
//
// Usage: gpu_engine [--device NAME] [--brief] [CHECKPOINT...]. --brief: few tokens and the main tests, for tools that
// slow everything down. With --device cpu the tests try themselves.

#include "api.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The rule for a row of logits: none is further from the CPU's, with a KV cache of the same type, than this share of
// the row's standard deviation. The reference has a float32 cache: from it a row may be off by as much more as the
// CPU's row is, which is what the cache's type costs. (Small models have few dimensions to average over: rounding keys
// and values to BF16 can turn a router's close choice, and moves logits by up to 0.02 of their deviation.)
//
// An FP8 cache: a key near the border between two FP8 numbers becomes another one for the smallest difference, off by up
// to 1/16, and all later rows see it. So the rule holds for single steps from a cache with the same bytes.
static const double RULE = 1e-2;

static const char *device = "cuda";
static int is_gpu = 1, brief;

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

static mote_model *model_of(const char *dir, const char *on) {
    mote_options o;
    mote_model *m = NULL;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_WEIGHTS_ONLY;
    o.device = on;
    EXPECT(MOTE_OK, mote_open(dir, &o, &m, &failure));
    return m;
}

static mote_session_options options_of(int context, int kv) {
    mote_session_options o;
    memset(&o, 0, sizeof o);
    o.context = context;
    o.kv = kv;
    return o;
}

static mote_session *session_with(const mote_model *m, const mote_session_options *o) {
    mote_session *s = NULL;
    EXPECT(MOTE_OK, mote_session_open(m, o, &s, &failure));
    if (!s) exit(test_main_end() ? 1 : 2);
    return s;
}

static mote_session *session_of(const mote_model *m, int context, int kv) {
    mote_session_options o = options_of(context, kv);
    return session_with(m, &o);
}

static int count_of(const mote_session *s) {
    size_t n = 0;
    mote_tokens(s, &n);
    return (int)n;
}

// Is the session what it was when `bytes` were taken? Otherwise *at is where it first differs.
static int session_is_at(const mote_session *s, const char *bytes, size_t size, size_t *at) {
    size_t n = 0;
    char *now = session_bytes(s, &n);
    for (*at = 0; *at < n && *at < size && now[*at] == bytes[*at];) ++*at;
    free(now);
    return n == size && *at == n;
}

static int best_of(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static double deviation(const float *row, int n) {
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++) sum += row[i], square += (double)row[i] * row[i];
    return sqrt(square / n - sum / n * (sum / n));
}

// Largest difference of a row as a share of the wanted row's standard deviation.
static double row_off(const float *got, const float *want, int n) {
    double worst = 0;
    for (int i = 0; i < n; i++) {
        if (!isfinite(got[i])) return INFINITY;
        worst = fmax(worst, fabs((double)got[i] - want[i]));
    }
    return worst / deviation(want, n);
}

// The same over rows.
static double rows_off(const float *got, const float *want, int rows, int n) {
    double worst = 0;
    for (int t = 0; t < rows; t++) worst = fmax(worst, row_off(got + (size_t)t * n, want + (size_t)t * n, n));
    return worst;
}

// ---- 2. Fixtures ----------------------------------------------------------------------------------------------------

typedef struct fixture {
    const char *dir;
    mote_model *m, *cpu;
    int prompt, greedy, T, vocab, mtp;       // T = prompt + greedy tokens; mtp: it has an MTP layer
    int32_t *tokens;                         // [T]
    float *want, *want_mtp;                  // [T][vocab], [T-1][vocab]: reference, behind the prompt the CPU's
    float *same, *same_mtp;                  // the CPU's with a BF16 cache
    float *plain, *plain_mtp;                // the GPU's with a BF16 cache, one token at a time
} fixture;

static void *read_array(const char *dir, const char *name, size_t *size) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    *size = 0;
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long n = ftell(file);
    rewind(file);
    void *bytes = room((size_t)n);
    *size = fread(bytes, 1, (size_t)n, file);
    fclose(file);
    return bytes;
}

static float *rows_at(float *rows, const fixture *f, int t) {
    return rows + (size_t)t * (size_t)f->vocab;
}

static size_t row_bytes(const fixture *f, int rows) {
    return (size_t)rows * (size_t)f->vocab * sizeof(float);
}

// The reference rows: those of the files, and the CPU's for the tokens generated behind them.
static int fixture_reference(fixture *f) {
    size_t size, mtp_size;
    float *logits = (float *)read_array(f->dir, "logits.f32", &size);
    float *mtp = (float *)read_array(f->dir, "mtp_logits.f32", &mtp_size);
    int ok = CHECK(size == row_bytes(f, f->prompt) && (!f->mtp || mtp_size == row_bytes(f, f->prompt - 1)),
                   "%s: reference files", f->dir);
    if (ok) {
        mote_session *s = session_of(f->cpu, f->T, MOTE_KV_F32), *t = session_of(f->cpu, f->T, MOTE_KV_BF16);
        EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens, (size_t)f->T, f->want, f->mtp ? f->want_mtp : NULL, &failure));
        EXPECT(MOTE_OK, mote_feed_logits(t, f->tokens, (size_t)f->T, f->same, f->mtp ? f->same_mtp : NULL, &failure));
        mote_session_close(s);
        mote_session_close(t);
        double off = rows_off(f->want, logits, f->prompt, f->vocab);
        double mtp_off = f->mtp ? rows_off(f->want_mtp, mtp, f->prompt - 1, f->vocab) : 0;
        CHECK(off < 2e-3 && mtp_off < 2e-3, "%s: the CPU is %g, MTP %g off the reference", f->dir, off, mtp_off);
        memcpy(f->want, logits, size);
        if (f->mtp) memcpy(f->want_mtp, mtp, mtp_size);
    }
    free(logits);
    free(mtp);
    return ok;
}

// Takes those out of the list that a GPU refuses by name: experts of different dtypes in one layer, which only a fixture has.
static int drop_refused(const char **dirs, int count) {
    int kept = 0;
    for (int i = 0; i < count; i++) {
        mote_options o;
        mote_model *m = NULL;
        memset(&o, 0, sizeof o);
        o.parts = MOTE_DESCRIPTION;
        o.device = device;
        int code = mote_open(dirs[i], &o, &m, &failure);
        mote_close(m);
        if (!code || !strstr(dirs[i], "mixed-all-attention")) {
            dirs[kept++] = dirs[i];
            continue;
        }
        CHECK(code == MOTE_EUNSUPPORTED && strstr(failure.message, "experts of different dtypes"), "%s: %s", dirs[i],
              failure.message);
        printf("gpu_engine: %s is refused: %s\n", dirs[i], failure.message);
    }
    return kept;
}

static int fixture_open(fixture *f, const char *dir) {
    size_t size, greedy_size;
    memset(f, 0, sizeof *f);
    f->dir = dir;
    f->cpu = model_of(dir, "cpu");
    f->m = model_of(dir, device);
    int32_t *tokens = (int32_t *)read_array(dir, "tokens.i32", &size);
    int32_t *greedy = (int32_t *)read_array(dir, "greedy.i32", &greedy_size);
    f->prompt = (int)(size / 4);
    f->greedy = (int)(greedy_size / 4);
    f->T = f->prompt + f->greedy;
    int ok = CHECK(f->m && f->cpu && f->prompt > 20 && f->greedy > 0, "%s cannot be opened", dir);
    if (ok) {
        f->vocab = mote_model_info(f->m)->vocab_size;
        f->mtp = mote_model_info(f->m)->mtp_layers;
        f->tokens = (int32_t *)room((size_t)f->T * 4);
        memcpy(f->tokens, tokens, (size_t)f->prompt * 4);
        memcpy(f->tokens + f->prompt, greedy, (size_t)f->greedy * 4);
        float **all[] = {&f->want, &f->want_mtp, &f->same, &f->same_mtp, &f->plain, &f->plain_mtp};
        for (int i = 0; i < 6; i++) *all[i] = (float *)room(row_bytes(f, f->T));
        ok = fixture_reference(f);
        if (brief) f->prompt = 10, f->greedy = 2, f->T = 12;       // the rows are those of any tokens behind these
    }
    free(tokens);
    free(greedy);
    return ok;
}

static void fixture_close(fixture *f) {
    mote_close(f->m);
    mote_close(f->cpu);
    void *all[] = {f->tokens, f->want, f->want_mtp, f->same, f->same_mtp, f->plain, f->plain_mtp};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static int same_row(const fixture *f, const float *logits, int position) {
    return logits && !memcmp(logits, rows_at(f->plain, f, position), row_bytes(f, 1));
}

// Feeds tokens up to position `to`, and checks that the logits after them are those of plain decoding, bit for bit.
static void feed_to(mote_session *s, const fixture *f, int to, const char *what) {
    int from = count_of(s);
    EXPECT(MOTE_OK, mote_feed(s, f->tokens + from, (size_t)(to - from), &failure));
    CHECK(count_of(s) == to && same_row(f, mote_logits(s), to - 1), "%s: %s: logits after %d tokens", f->dir, what, to);
}

// The same where the numbers need not be the same: they keep the rule.
static void feed_near(mote_session *s, const fixture *f, int to, const char *what) {
    int from = count_of(s);
    EXPECT(MOTE_OK, mote_feed(s, f->tokens + from, (size_t)(to - from), &failure));
    const float *got = mote_logits(s);
    double off = got ? row_off(got, rows_at(f->plain, f, to - 1), f->vocab) : INFINITY;
    CHECK(off <= RULE, "%s: %s: logits after %d tokens are %g off", f->dir, what, to, off);
}

// ---- 3. Reference results -------------------------------------------------------------------------------------------

// How far `rows` rows are off the CPU's and the reference. Prints the worst of them and checks all of them.
static void check_rows(const fixture *f, const char *what, const float *got, const float *same, const float *want,
                       int rows) {
    double worst[3] = {0, 0, 0};                                        /* off CPU, off reference, CPU off reference */
    int at[3] = {0, 0, 0}, wrong = 0, n = f->vocab;
    for (int t = 0; t < rows; t++) {
        size_t row = (size_t)t * (size_t)n;
        double off[] = {row_off(got + row, same + row, n), row_off(got + row, want + row, n),
                        row_off(same + row, want + row, n)};
        wrong += !(off[0] <= RULE && off[1] <= RULE + off[2]);
        for (int i = 0; i < 3; i++)
            if (!(off[i] <= worst[i])) worst[i] = off[i], at[i] = t;
    }
    printf("%s: %s: off the CPU by %.1e (row %d), off the reference by %.1e (row %d; the CPU by %.1e, row %d)\n",
           f->dir, what, worst[0], at[0], worst[1], at[1], worst[2], at[2]);
    CHECK(!wrong, "%s: %s: %d of %d rows break the rule", f->dir, what, wrong, rows);
}

// Where the fixture has a reference with a BF16 cache too, the prompt's rows keep the rule against that one.
static void check_bf16_reference(const fixture *f) {
    static const char *const names[] = {"logits_bf16.f32", "mtp_logits_bf16.f32"};
    const float *got[] = {f->plain, f->plain_mtp};
    for (int i = 0; i < 2; i++) {
        size_t size;
        float *want = (float *)read_array(f->dir, names[i], &size);
        if (!want || !CHECK(size == row_bytes(f, f->prompt - i), "%s: %s", f->dir, names[i])) continue;
        double off = rows_off(got[i], want, f->prompt - i, f->vocab);
        printf("%s: off the reference with a BF16 cache by %.1e (%s)\n", f->dir, off, names[i]);
        CHECK(off <= RULE, "%s: %s: %g off", f->dir, names[i], off);
        free(want);
    }
}

// One token at a time.
static void test_plain(fixture *f) {
    mote_session *s = session_of(f->m, f->T, MOTE_KV_BF16);
    for (int t = 0; t < f->T; t++) {
        float *mtp = f->mtp ? rows_at(f->plain_mtp, f, t ? t - 1 : 0) : NULL;
        EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens + t, 1, rows_at(f->plain, f, t), mtp, &failure));
        CHECK(same_row(f, mote_logits(s), t), "%s: mote_logits after token %d", f->dir, t);
    }
    mote_session_close(s);
    check_rows(f, "logits", f->plain, f->same, f->want, f->T);
    if (f->mtp) check_rows(f, "MTP logits", f->plain_mtp, f->same_mtp, f->want_mtp, f->T - 1);
    if (!brief) check_bf16_reference(f);
}

// Greedy ids are the reference's, except where its two best logits are so close that the rule, for each, allows either.
static void test_greedy(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, MOTE_KV_BF16);
    int32_t id = -1, ids[2] = {-1, -1};
    int close = 0;
    feed_to(s, f, f->prompt, "greedy");
    for (int i = 0; i < f->greedy; i++) {
        const float *want = rows_at(f->want, f, f->prompt + i - 1);
        int32_t token = f->tokens[f->prompt + i];
        EXPECT(MOTE_OK, mote_sample(s, NULL, &id, &failure));
        CHECK(id == best_of(rows_at(f->plain, f, f->prompt + i - 1), f->vocab), "%s: sampled id %d", f->dir, i);
        if (!brief && id != token) {
            double gap = ((double)want[token] - want[id]) / deviation(want, f->vocab);
            CHECK(gap <= 2 * (RULE + row_off(rows_at(f->same, f, f->prompt + i - 1), want, f->vocab)),
                  "%s: greedy id %d is %d, expected %d (better by %g)", f->dir, i, id, token, gap);
            close++;
        }
        if (id == token) EXPECT(MOTE_OK, mote_step(s, NULL, &ids[1], &failure));
        else EXPECT(MOTE_OK, mote_feed(s, &token, 1, &failure));
        CHECK(id != token || ids[1] == id, "%s: mote_step gives %d, mote_sample %d", f->dir, ids[1], id);
        CHECK(same_row(f, mote_logits(s), f->prompt + i), "%s: logits after greedy step %d", f->dir, i);
    }
    if (close) printf("%s: %d greedy ids differ where the two best logits are that close\n", f->dir, close);
    mote_session_close(s);
}

typedef struct id_list { int32_t ids[64]; int count; } id_list;

static int collect_id(void *user, int32_t id) {
    id_list *l = (id_list *)user;
    if (l->count < 64) l->ids[l->count++] = id;
    return 0;
}

// mote_generate gives the ids of mote_step, for greedy and for seeded sampling.
static void test_generate(const fixture *f, const mote_sampling *p) {
    mote_session *s = session_of(f->m, f->T, MOTE_KV_BF16);
    mote_generation g;
    mote_result r;
    id_list list;
    memset(&g, 0, sizeof g);
    memset(&list, 0, sizeof list);
    g.sampling = p;
    g.on_token = collect_id;
    g.user = &list;
    feed_to(s, f, f->prompt, "generate");
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CONTEXT && list.count == f->greedy, "%s: %d generated", f->dir, list.count);
    mote_reset(s, NULL);
    feed_to(s, f, f->prompt, "generate again");
    for (int i = 0; i < list.count; i++) {
        int32_t id = -1;
        EXPECT(MOTE_OK, mote_step(s, p, &id, &failure));
        CHECK(id == list.ids[i], "%s: temperature %g: id %d is %d when stepped, %d when generated", f->dir,
              (double)p->temperature, i, id, list.ids[i]);
    }
    mote_session_close(s);
}

// ---- 4. Pieces, states, files ---------------------------------------------------------------------------------------

// Pieces of `size` tokens (0: of 1 to 9 by chance, now and then without asking for logits): the bits of plain decoding.
static void test_pieces(const fixture *f, int size, int kv, const float *plain, const float *plain_mtp) {
    mote_session *s = session_of(f->m, f->T + 3, kv);
    float *logits = (float *)room(row_bytes(f, f->T)), *mtp = (float *)room(row_bytes(f, f->T));
    int wrong = 0, wrong_mtp = 0;
    for (int at = 0, n; at < f->T; at += n) {
        n = size ? size : random_int(1, 9);
        if (n > f->T - at) n = f->T - at;
        if (!size && random_int(0, 2) == 0) {
            EXPECT(MOTE_OK, mote_feed(s, f->tokens + at, (size_t)n, &failure));
            const float *now = mote_logits(s);
            wrong += !now || memcmp(now, plain + (size_t)(at + n - 1) * (size_t)f->vocab, row_bytes(f, 1)) != 0;
            continue;
        }
        int skip = at == 0, first = at - !skip;
        EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens + at, (size_t)n, logits, f->mtp ? mtp : NULL, &failure));
        wrong += memcmp(logits, plain + (size_t)at * (size_t)f->vocab, row_bytes(f, n)) != 0;
        if (f->mtp)
            wrong_mtp += memcmp(mtp, plain_mtp + (size_t)first * (size_t)f->vocab, row_bytes(f, n - skip)) != 0;
    }
    CHECK(!wrong && !wrong_mtp, "%s: pieces of %d, KV type %d: %d with other logits, %d with other MTP logits", f->dir,
          size, kv, wrong, wrong_mtp);
    free(logits);
    free(mtp);
    mote_session_close(s);
}

// Saved behind blocks of 1 to 4 tokens, loaded into new and used sessions of other sizes.
static void test_save(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, MOTE_KV_BF16), *used = session_of(f->m, f->T + 9, MOTE_KV_BF16);
    size_t size, at = 0;
    for (int i = 0, n = 0; i < 6 && n < f->T - 5; i++) {
        if (i) feed_to(s, f, n += 1 + (i - 1) % 4, "save");
        char *bytes = session_bytes(s, &size);
        mote_session *fresh = session_of(f->m, n + 2, MOTE_KV_BF16);
        EXPECT(MOTE_OK, mote_load(fresh, bytes, size, &failure));
        CHECK(session_is_at(fresh, bytes, size, &at), "%s: saved again after %d: byte %zu", f->dir, n, at);
        EXPECT(MOTE_OK, mote_load(used, bytes, size, &failure));
        CHECK(session_is_at(used, bytes, size, &at), "%s: saved again after %d: byte %zu", f->dir, n, at);
        CHECK(n ? same_row(f, mote_logits(used), n - 1) : !mote_logits(used), "%s: loaded after %d", f->dir, n);
        feed_to(fresh, f, n + 1, "loaded");
        feed_to(fresh, f, n + 2, "loaded");
        feed_to(used, f, n + 5, "loaded");
        CHECK(session_is_at(s, bytes, size, &at), "%s: saving changed the session", f->dir);
        mote_session_close(fresh);
        free(bytes);
    }
    mote_session_close(used);
    feed_to(s, f, f->T, "saved");
    mote_session_close(s);
}

static void test_rewind(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, MOTE_KV_BF16);
    mote_checkpoint *at[3] = {NULL, NULL, NULL};
    int32_t wrong = (f->tokens[6] + 1) % f->vocab;
    EXPECT(MOTE_OK, mote_checkpoint_take(s, &at[0], &failure));
    feed_to(s, f, 6, "rewind");
    EXPECT(MOTE_OK, mote_checkpoint_take(s, &at[1], &failure));
    feed_to(s, f, 7, "rewind");
    EXPECT(MOTE_OK, mote_checkpoint_take(s, &at[2], &failure));
    feed_to(s, f, f->T, "rewind");
    for (int i = 0; i < 2; i++) {
        EXPECT(MOTE_OK, mote_rewind(s, at[2], &failure));
        CHECK(count_of(s) == 7 && same_row(f, mote_logits(s), 6), "%s: rewound to 7", f->dir);
        feed_to(s, f, f->T - i, "rewound to 7");
    }
    EXPECT(MOTE_OK, mote_rewind(s, at[1], &failure));
    CHECK(count_of(s) == 6 && same_row(f, mote_logits(s), 5), "%s: rewound to 6", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at[2], &failure));                   /* forward again */
    feed_to(s, f, 11, "rewound forward");
    EXPECT(MOTE_OK, mote_rewind(s, at[0], &failure));
    CHECK(count_of(s) == 0 && !mote_logits(s), "%s: rewound to the start", f->dir);
    feed_to(s, f, 6, "rewound to the start");
    EXPECT(MOTE_OK, mote_feed(s, &wrong, 1, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, at[2], &failure));
    CHECK(count_of(s) == 7, "%s: a refused rewind changed the session", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at[1], &failure));
    feed_to(s, f, f->T, "the rest");
    mote_session_close(s);
    for (int i = 0; i < 3; i++) mote_checkpoint_free(at[i]);
}

static void test_clone(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, MOTE_KV_BF16), *a = NULL, *b = NULL;
    int32_t wrong = (f->tokens[9] + 1) % f->vocab;
    EXPECT(MOTE_OK, mote_clone(s, &b, &failure));
    feed_to(b, f, 4, "clone of an empty session");
    mote_session_close(b);
    feed_to(s, f, 9, "clone");
    EXPECT(MOTE_OK, mote_clone(s, &a, &failure));
    CHECK(same_row(f, mote_logits(a), 8), "%s: logits of a clone", f->dir);
    EXPECT(MOTE_OK, mote_feed(s, &wrong, 1, &failure));
    EXPECT(MOTE_OK, mote_clone(a, &b, &failure));
    mote_session_close(s);
    feed_to(a, f, f->T, "clone");
    mote_session_close(a);
    feed_to(b, f, f->T, "clone of a clone");
    mote_session_close(b);
}

static void test_reset_and_full(const fixture *f) {
    mote_session *s = session_of(f->m, 10, MOTE_KV_BF16);
    int32_t id = -7;
    mote_result r;
    EXPECT(MOTE_EINVAL, mote_step(s, NULL, &id, &failure));
    feed_to(s, f, 7, "reset");
    mote_reset(s, NULL);
    CHECK(count_of(s) == 0 && !mote_logits(s), "%s: reset", f->dir);
    EXPECT(MOTE_ECONTEXT, mote_feed(s, f->tokens, 11, &failure));
    CHECK(count_of(s) == 0, "%s: nothing is fed when not all fits", f->dir);
    feed_to(s, f, 10, "after a reset");
    EXPECT(MOTE_ECONTEXT, mote_feed(s, f->tokens, 1, &failure));
    EXPECT(MOTE_ECONTEXT, mote_step(s, NULL, &id, &failure));
    CHECK(id == -7 && same_row(f, mote_logits(s), 9), "%s: a full session stays as it was", f->dir);
    EXPECT(MOTE_OK, mote_generate(s, NULL, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CONTEXT && r.generated_tokens == 0, "%s: generating with a full context", f->dir);
    EXPECT(MOTE_OK, mote_feed(s, f->tokens, 0, &failure));
    mote_session_close(s);
}

// ---- 5. GPU and CPU -------------------------------------------------------------------------------------------------

// From one model to the other and back: the same bytes, and the same text as far as the rule goes.
static void test_move(const fixture *f, const mote_model *from, const mote_model *to, int n, int kv) {
    mote_session *a = session_of(from, f->T, kv), *b = session_of(to, f->T + 5, kv), *c = session_of(from, f->T, kv);
    const char *what = from == f->m ? "GPU to CPU" : "CPU to GPU";
    size_t size, again, at = 0;
    int32_t id = -1, other = -1;
    if (n > 3) EXPECT(MOTE_OK, mote_feed(a, f->tokens, (size_t)(n - 3), &failure));
    if (n) EXPECT(MOTE_OK, mote_feed(a, f->tokens + count_of(a), (size_t)(n - count_of(a)), &failure));
    char *bytes = session_bytes(a, &size);
    EXPECT(MOTE_OK, mote_load(b, bytes, size, &failure));
    CHECK(session_is_at(b, bytes, size, &at), "%s: %s after %d, KV type %d: byte %zu of %zu", f->dir, what, n, kv, at,
          size);
    if (n) {
        EXPECT(MOTE_OK, mote_sample(a, NULL, &id, &failure));
        EXPECT(MOTE_OK, mote_sample(b, NULL, &other, &failure));
        CHECK(id == other, "%s: %s after %d: next id %d, then %d", f->dir, what, n, id, other);
    }
    EXPECT(MOTE_OK, mote_feed(b, f->tokens + n, 2, &failure));          /* computed there, and back */
    char *back = session_bytes(b, &again);
    EXPECT(MOTE_OK, mote_load(c, back, again, &failure));
    CHECK(session_is_at(c, back, again, &at), "%s: %s after %d and back: byte %zu of %zu", f->dir, what, n, at, again);
    if (kv == MOTE_KV_BF16) {
        feed_near(a, f, n + 9, what);
        feed_near(b, f, n + 9, what);
        feed_near(c, f, n + 9, what);
    }
    mote_session *all[] = {a, b, c};
    for (int i = 0; i < 3; i++) mote_session_close(all[i]);
    free(bytes);
    free(back);
}

static void test_moves(const fixture *f) {
    static const int kinds[] = {MOTE_KV_BF16, MOTE_KV_FP8};
    for (int i = 0; i < 2; i++)
        for (int n = 0; n <= 7; n = n ? n + 2 : 1) {
            test_move(f, f->m, f->cpu, n, kinds[i]);
            test_move(f, f->cpu, f->m, n, kinds[i]);
        }
    mote_session *a = session_of(f->cpu, f->T, MOTE_KV_F32), *b = session_of(f->m, f->T, MOTE_KV_DEFAULT);
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
    mote_session *gpu = session_of(f->m, f->T, MOTE_KV_FP8), *cpu = session_of(f->cpu, f->T, MOTE_KV_FP8);
    float *all[4];
    double step = 0, step_mtp = 0;
    for (int i = 0; i < 4; i++) all[i] = (float *)room(row_bytes(f, f->T));
    size_t n = (size_t)f->T, size;
    for (int t = 0; t < f->T; t++) {
        char *bytes = session_bytes(cpu, &size);
        EXPECT(MOTE_OK, mote_load(gpu, bytes, size, &failure));
        free(bytes);
        EXPECT(MOTE_OK, mote_feed_logits(gpu, f->tokens + t, 1, all[0], f->mtp ? all[1] : NULL, &failure));
        EXPECT(MOTE_OK, mote_feed_logits(cpu, f->tokens + t, 1, all[2], f->mtp ? all[3] : NULL, &failure));
        step = fmax(step, row_off(all[0], all[2], f->vocab));
        if (f->mtp && t) step_mtp = fmax(step_mtp, row_off(all[1], all[3], f->vocab));
    }
    CHECK(step <= RULE && step_mtp <= RULE, "%s: a step with an FP8 cache: logits %g, MTP logits %g off", f->dir, step, step_mtp);
    mote_reset(gpu, NULL);
    mote_reset(cpu, NULL);
    EXPECT(MOTE_OK, mote_feed_logits(gpu, f->tokens, n, all[0], f->mtp ? all[1] : NULL, &failure));
    EXPECT(MOTE_OK, mote_feed_logits(cpu, f->tokens, n, all[2], f->mtp ? all[3] : NULL, &failure));
    double off = rows_off(all[0], all[2], f->T, f->vocab), reference = rows_off(all[0], f->want, f->T, f->vocab);
    double mtp = f->mtp ? rows_off(all[1], all[3], f->T - 1, f->vocab) : 0;
    printf("%s: FP8 cache: a step's logits %.1e, MTP %.1e off the CPU's; after all tokens %.1e, MTP %.1e, %.1e off the reference\n",
           f->dir, step, step_mtp, off, mtp, reference);
    test_pieces(f, 1, MOTE_KV_FP8, all[0], all[1]);
    test_pieces(f, 3, MOTE_KV_FP8, all[0], all[1]);
    for (int i = 0; i < 4; i++) free(all[i]);
    mote_session_close(gpu);
    mote_session_close(cpu);
}

// ---- 6. Sampling ----------------------------------------------------------------------------------------------------

static mote_sampling sampling_of(float temperature, int top_k, float top_p, float min_p, float repetition) {
    mote_sampling p;
    memset(&p, 0, sizeof p);
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.min_p = min_p;
    p.repetition_penalty = repetition;
    return p;
}

// The same logits on both: the same ids for each seed, and the same probabilities.
static void test_sampling(const fixture *f) {
    mote_session *gpu = session_of(f->m, f->T, MOTE_KV_BF16), *cpu = session_of(f->cpu, f->T, MOTE_KV_BF16);
    mote_sampling kinds[] = {sampling_of(1, 0, 0, 0, 0),          sampling_of(0.7f, 20, 0.8f, 0, 0),
                             sampling_of(2, 0, 0.95f, 0.05f, 0),  sampling_of(1.3f, 5, 0, 0, 1.3f),
                             sampling_of(0, 0, 0, 0, 1.5f),       sampling_of(0.6f, 0, 0.9f, 0, 1.1f)};
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

// ---- 7. Threads, callbacks ------------------------------------------------------------------------------------------

typedef struct errand { const fixture *f; int piece, wrong; mote_error failure; } errand;

static void *run_errand(void *argument) {
    errand *e = (errand *)argument;
    const fixture *f = e->f;
    mote_session_options o = options_of(f->T, MOTE_KV_BF16);
    mote_session *s;
    for (int round = 0; round < 3; round++) {
        if (mote_session_open(f->m, &o, &s, &e->failure)) return e->wrong = 1000, NULL;
        for (int t = 0; t < f->T; t += e->piece) {
            int end = t + e->piece < f->T ? t + e->piece : f->T;
            e->wrong += mote_feed(s, f->tokens + t, (size_t)(end - t), &e->failure) || !same_row(f, mote_logits(s), end - 1);
        }
        mote_session_close(s);
    }
    return NULL;
}

// Sessions of two models on five threads at once: as alone.
static void test_threads(const fixture *f, const fixture *g) {
    pthread_t threads[5];
    errand errands[5];
    for (int i = 0; i < 5; i++) {
        errands[i].f = i % 2 ? g : f;
        errands[i].piece = 1 + i * 2;
        errands[i].wrong = 0;
        errands[i].failure.message[0] = 0;
        CHECK(!pthread_create(&threads[i], NULL, run_errand, &errands[i]), "a thread");
    }
    for (int i = 0; i < 5; i++) {
        pthread_join(threads[i], NULL);
        CHECK(!errands[i].wrong, "%s: %d wrong on a thread of its own: %s", errands[i].f->dir, errands[i].wrong,
              errands[i].failure.message);
    }
}

typedef struct watcher { int polls, stop_after; double last; int backwards; } watcher;

static int watch_cancel(void *user) {
    watcher *w = (watcher *)user;
    return ++w->polls > w->stop_after;
}

static void watch_progress(void *user, const char *what, double fraction) {
    watcher *w = (watcher *)user;
    (void)what;
    w->backwards += fraction < w->last;
    w->last = fraction;
}

// A prompt cancelled on its way: what was done stays, and it goes on from there.
static void test_cancel(const fixture *f) {
    watcher w;
    mote_session_options o = options_of(f->T, MOTE_KV_BF16);
    memset(&w, 0, sizeof w);
    o.callbacks.cancel = watch_cancel;
    o.callbacks.progress = watch_progress;
    o.callbacks.user = &w;
    o.chunk = 4;
    w.stop_after = 2;
    mote_session *s = session_with(f->m, &o);
    w.polls = 0;
    EXPECT(MOTE_ECANCELLED, mote_feed(s, f->tokens, (size_t)f->T, &failure));
    int n = count_of(s);
    CHECK(n < f->T && (n ? same_row(f, mote_logits(s), n - 1) : !mote_logits(s)), "%s: cancelled after %d", f->dir, n);
    w.stop_after = 1 << 30;
    w.last = 0;
    feed_to(s, f, f->T, "after cancelling");
    CHECK(w.last == 1 && !w.backwards, "%s: progress ends at %g", f->dir, w.last);
    mote_session_close(s);
}

// ---- 8. Misuse, devices, memory -------------------------------------------------------------------------------------

static void test_options(const fixture *f) {
    mote_session_options o = options_of(f->T, MOTE_KV_BF16);
    float *mtp = (float *)room(row_bytes(f, f->T));
    mote_session *s;
    o.mtp = MOTE_MTP_OFF;
    s = session_with(f->m, &o);
    feed_to(s, f, 5, "without MTP");
    EXPECT(MOTE_EUNSUPPORTED, mote_feed_logits(s, f->tokens + 5, 2, NULL, mtp, &failure));
    feed_to(s, f, f->T, "without MTP");
    mote_session_close(s);
    free(mtp);
    o.mtp = MOTE_MTP_AUTO;
    o.sms = 3;
    s = session_with(f->m, &o);
    feed_near(s, f, f->T, "on three multiprocessors");
    mote_session_close(s);
    o = options_of(f->T, 77);
    s = NULL;
    EXPECT(MOTE_EINVAL, mote_session_open(f->m, &o, &s, &failure));
    o = options_of(f->T, MOTE_KV_F32);
    if (is_gpu) EXPECT_EITHER(MOTE_EINVAL, MOTE_EUNSUPPORTED, mote_session_open(f->m, &o, &s, &failure));
    o = options_of(-1, 0);
    EXPECT(MOTE_EINVAL, mote_session_open(f->m, &o, &s, &failure));
    o = options_of(mote_model_info(f->m)->context_max + 1, 0);
    EXPECT_EITHER(MOTE_EINVAL, MOTE_ECONTEXT, mote_session_open(f->m, &o, &s, &failure));
    CHECK(!s, "%s: a refused session", f->dir);
}

static void test_misuse(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, MOTE_KV_BF16);
    int32_t bad[] = {f->tokens[0], f->vocab, f->tokens[1]}, id = -7;
    mote_sampling p = sampling_of(-1, 0, 0, 0, 0);
    size_t size, at = 0;
    feed_to(s, f, 5, "misuse");
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_EINVAL, mote_feed(s, bad, 3, &failure));
    bad[1] = -1;
    EXPECT(MOTE_EINVAL, mote_feed(s, bad, 3, &failure));
    EXPECT(MOTE_EINVAL, mote_step(s, &p, &id, &failure));
    EXPECT(MOTE_EFORMAT, mote_load(s, bytes, size - 1, &failure));
    bytes[size / 2] ^= 1;
    EXPECT(MOTE_EFORMAT, mote_load(s, bytes, size, &failure));
    bytes[size / 2] ^= 1;
    CHECK(session_is_at(s, bytes, size, &at) && id == -7, "%s: refusals changed the session: byte %zu", f->dir, at);
    feed_to(s, f, f->T, "after refusals");
    free(bytes);
    mote_session_close(s);
}

static void test_devices(const fixture *f) {
    static const char *const bad[] = {"",         "gpu",     "CUDA",                "cuda:", "cuda:x",
                                      "cuda:-1", "cuda:0x", "cuda:99999999999999", "cpu:0"};
    mote_options o;
    mote_model *m = NULL;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_WEIGHTS_ONLY;
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
    mote_options o;
    mote_session_options so = options_of(64, MOTE_KV_BF16);
    mote_memory bf16, fp8;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_WEIGHTS_ONLY;
    o.device = device;
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, &so, &bf16, &failure));
    so.kv = MOTE_KV_FP8;
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, &so, &fp8, &failure));
    CHECK(bf16.context == 64 && bf16.total == bf16.weights + bf16.kv + bf16.state + bf16.scratch, "%s: plan", f->dir);
    CHECK(bf16.kv == 2 * fp8.kv, "%s: KV cache of %llu bytes, of FP8 %llu", f->dir, (unsigned long long)bf16.kv,
          (unsigned long long)fp8.kv);
    if (is_gpu) CHECK(bf16.available > (uint64_t)1 << 30 && bf16.context_fits >= 64, "%s: what fits", f->dir);
}

// A copy of a checkpoint, by links, that says it can do a context of 2^24 tokens.
static void long_copy(const char *dir, const char *tmp) {
    static const char key[] = "\"max_position_embeddings\": ";
    struct dirent **names;
    char from[1200], to[1200];
    size_t size;
    char *config = (char *)read_array(dir, "config.json", &size), *at = config ? strstr(config, key) : NULL;
    int n = scandir(dir, &names, NULL, NULL);
    for (int i = 0; i < n; i++) {
        snprintf(from, sizeof from, "%s/%s", dir, names[i]->d_name);
        snprintf(to, sizeof to, "%s/%s", tmp, names[i]->d_name);
        char *path = realpath(from, NULL);
        if (names[i]->d_name[0] != '.' && strcmp(names[i]->d_name, "config.json"))
            CHECK(path && !symlink(path, to), "a link to %s", from);
        free(path);
        free(names[i]);
    }
    if (n >= 0) free(names);
    snprintf(to, sizeof to, "%s/config.json", tmp);
    FILE *file = at ? fopen(to, "wb") : NULL;
    if (CHECK(file != NULL, "%s: config.json", dir)) {
        at += strlen(key);
        fprintf(file, "%.*s16777216%s", (int)(at - config), config, at + strspn(at, "0123456789"));
        fclose(file);
    }
    free(config);
}

static void remove_folder(const char *dir) {
    struct dirent **names;
    int n = scandir(dir, &names, NULL, NULL);
    for (int i = 0; i < n; i++) {
        char path[1200];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        if (strcmp(names[i]->d_name, ".") && strcmp(names[i]->d_name, "..")) unlink(path);
        free(names[i]);
    }
    if (n >= 0) free(names);
    CHECK(!rmdir(dir), "%s cannot be removed", dir);
}

// Sessions of the longest context that fits at all, or near it, until the GPU is full: the next one is refused with what
// would fit, the others go on, and once they are closed all of their memory is there again.
static void test_full_memory(const fixture *f) {
    enum { MOST = 200 };
    static mote_session *s[MOST];
    char tmp[] = "/tmp/mote-gpu-XXXXXX";
    if (!CHECK(mkdtemp(tmp) != NULL, "a folder for files")) return;
    long_copy(f->dir, tmp);
    mote_model *m = model_of(tmp, device);
    int n[2] = {0, 0}, code = 0, context = m ? mote_model_info(m)->context_max : 0;
    mote_session_options o = options_of(context, MOTE_KV_BF16);
    while (m && context > 64 && mote_session_open(m, &o, &s[0], &failure) == MOTE_ENOMEM) o.context = context /= 4;
    if (m) mote_session_close(s[0]);
    for (int round = 0; m && round < 2; round++) {
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
    remove_folder(tmp);
}

static void test_measure(const fixture *f) {
    mote_session *s = session_of(f->m, 512, MOTE_KV_BF16);
    const mote_launch *launches = NULL;
    mote_measurement x;
    size_t count = 0;
    for (int rows = 1; rows <= 4; rows++) {
        memset(&x, 0, sizeof x);
        x.rows = rows;
        x.depth = 100;
        x.steps = 20;
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
    x.rows = 5;
    EXPECT_EITHER(MOTE_EINVAL, is_gpu ? MOTE_EINVAL : MOTE_EUNSUPPORTED, mote_measure(s, &x, &failure));
    mote_session_close(s);
}

// ---- 9. Main --------------------------------------------------------------------------------------------------------

static void test_fixture(const fixture *f) {
    mote_sampling greedy = sampling_of(0, 0, 0, 0, 0);
    test_greedy(f);
    for (int size = 0; size <= 4; size++) test_pieces(f, size, MOTE_KV_BF16, f->plain, f->plain_mtp);
    test_pieces(f, f->T, MOTE_KV_BF16, f->plain, f->plain_mtp);
    if (is_gpu) test_pieces(f, f->T, MOTE_KV_DEFAULT, f->plain, f->plain_mtp);
    if (brief) return;
    test_pieces(f, 1, MOTE_KV_BF16, f->plain, f->plain_mtp);
    test_generate(f, &greedy);
    test_save(f);
    test_rewind(f);
    test_clone(f);
    test_reset_and_full(f);
    test_moves(f);
    test_fp8_cache(f);
    test_sampling(f);
    test_cancel(f);
    test_options(f);
    test_misuse(f);
    test_plan(f);
    test_measure(f);
}

// The checkpoints of a folder, sorted by name.
static int list_checkpoints(const char *dir, char (*paths)[512], int most) {
    struct dirent **names;
    int found = 0, n = scandir(dir, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/tokens.i32", dir, names[i]->d_name);
        FILE *file = names[i]->d_name[0] != '.' && found < most ? fopen(path, "rb") : NULL;
        if (file) {
            fclose(file);
            snprintf(paths[found++], 512, "%.200s/%.300s", dir, names[i]->d_name);
        }
        free(names[i]);
    }
    if (n >= 0) free(names);
    return found;
}

int main(int argc, char **argv) {
    enum { MOST = 32 };
    static char listed[MOST][512];
    const char *dirs[MOST];
    fixture f[MOST];
    int count = 0, opened = 0;
    test_main_begin("gpu_engine", 0, NULL);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--device") && i + 1 < argc) device = argv[++i];
        else if (!strcmp(argv[i], "--brief")) brief = 1;
        else if (count < MOST) dirs[count++] = argv[i];
    }
    is_gpu = strcmp(device, "cpu") != 0;
    if (!count)
        for (count = list_checkpoints("tests/fixtures", listed, MOST), opened = 0; opened < count; opened++)
            dirs[opened] = listed[opened];
    count = drop_refused(dirs, count);
    for (opened = 0; opened < count && fixture_open(&f[opened], dirs[opened]); opened++) {
        if (!opened) printf("gpu_engine: device %s\n", mote_model_info(f[0].m)->device);
        test_plain(&f[opened]);
        test_fixture(&f[opened]);
        fflush(stdout);
    }
    CHECK(opened == count && count > 0, "%d of %d checkpoints tested", opened, count);
    if (opened && !brief) {
        test_threads(&f[0], &f[opened - 1]);
        test_devices(&f[0]);
        if (is_gpu) test_full_memory(&f[opened - 1]);
    }
    for (int i = 0; i < opened; i++) fixture_close(&f[i]);
    return test_main_end();
}
