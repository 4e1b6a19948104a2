// Tests of the library through its API, on the CPU or a GPU: checkpoints with reference results, sessions in every state,
// sampling, threads, callbacks, refusals, and the bundled model.
//
// Parts
//   engine_reference.c   reference results
//   engine_timelines.c   rewinding, copies, saved sessions
//   engine_caches.c      KV types; GPU and CPU
//   engine_sampling.c    sampling
//   engine_callbacks.c   threads and callbacks
//   engine_devices.c     devices and plans; a GPU's own
//   engine_refusals.c    refusals; damaged checkpoints
//   engine_bundled.c     the bundled model
//   here                 helpers, and all of it
//
// Usage: test_engine [--device NAME] [--brief] [DATA [CHECKPOINT...]]. With CHECKPOINTs (folders with reference results) only
// what is tested of each; without, of those in tests/fixtures and DATA. With --device cpu the tests of a GPU beside the CPU
// try themselves. --brief on a GPU is for compute-sanitizer: few tokens, and the main tests.

#include "api.h"
#include "families.h"
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
// the same bytes. A BF16 cache does the same now and then to a choice of a router (dev-gemma4-26b, dev-laguna): a thirtieth of the rows may
// be such that keep the rule from the CPU's cache alone.
static const double CPU_RULE = 1e-3, GPU_RULE = 1e-2;

static int is_gpu, cache, beside;            // cache: the default type; beside: the device is compared with the CPU

// ---- Helpers --------------------------------------------------------------------------------------------------------

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
    float *want, *want_mtp;                  // [T][vocab], [T-1][vocab]: reference, after the prompt the CPU's
    float *same, *same_mtp;                  // the CPU's with the type of the device's default cache
    float *plain, *plain_mtp;                // the device's, one token at a time
} fixture;

// Of several checkpoints on the CPU, in brief, two are tested in all states: of BF16, and of FP8 with odd sizes.
static int is_one_of_brief(const char *dir) {
    return strstr(dir, "bf16-as-3.5") || strstr(dir, "fp8-ragged");
}

static float *rows_at(float *rows, const fixture *f, int t) {
    return rows + (size_t)t * (size_t)f->vocab;
}

static size_t row_bytes(const fixture *f, int rows) {
    return (size_t)rows * (size_t)f->vocab * sizeof(float);
}

static float *rows_of(const fixture *f) {
    return (float *)allocate(row_bytes(f, f->T));
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

// The CPU's rows: all for the same cache as the device's, and those after the reference's prompt.
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
    if (is_gpu && test_brief) f->prompt = 10, f->greedy = 2, f->T = 12;      // the rows are those of any tokens after these
    return 1;
}

static void fixture_close(fixture *f) {
    mote_close(f->m);
    mote_close(f->cpu);
    void *all[] = {f->tokens, f->want, f->want_mtp, f->same, f->same_mtp, f->plain, f->plain_mtp};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

#include "engine_reference.c"
#include "engine_timelines.c"
#include "engine_caches.c"
#include "engine_sampling.c"
#include "engine_callbacks.c"
#include "engine_devices.c"
#include "engine_refusals.c"
#include "engine_bundled.c"

// ---- All of it ------------------------------------------------------------------------------------------------------

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
    for (int i = 0; i < count; i++)               /* a vision tower; tensors of another method than config.json names */
        test_open_callbacks(&f[i], strstr(f[i].dir, "bf16-as-3.5") || strstr(f[i].dir, "gptq-awq-int4"));
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

// Opens and tests one more checkpoint.
static int test_next(fixture *f, const char *dir, int all) {
    if (is_refused(dir) || !fixture_open(f, dir)) return 0;
    test_checkpoint(f);
    int states = test_brief ? !is_gpu && is_one_of_brief(dir) : all;
    if (states) test_states(f);
    if (beside && !test_brief) test_beside(f);
    fflush(stdout);
    return 1;
}

int main(int argc, char **argv) {
    enum { MOST = 96 };
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
        const family_folders *families = families_here();
        for (int i = 0; i < families->count && CHECK(count < MOST, "too many checkpoints"); i++) count += test_next(&f[count], families->dir[i], 0);
        if (!has_folder("fixtures")) test_skip("no data folder: its reference checkpoints");
        if (!has_folder("data-quant")) test_skip("no data folder: its quantised reference checkpoints");
        test_fixtures(f, count);
        test_demo();
    }
    if (CHECK(count > 0, "no checkpoint") && !(is_gpu && test_brief)) {
        test_threads(&f[0], &f[count > 1]);
        test_device_choice(&f[0]);
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
