/* Tests of layers that several devices share, as an application opens them: what ranks compute is what ranks on the CPU do, within what GPUs may
   differ from it (without a GPU: what one device does), and a row's bits depend on nothing but how many ranks there are.
   Usage: test_ranks [--device NAME] [--brief] [DATA [MODEL...]]: with `cuda` ranks on cuda:0, cuda:1, ...; MODELs are checkpoint folders
   (synthetic weights of ranks are others on a GPU than on the CPU: there each rank has the whole embedding) */

#include "api.h"

enum { ROWS = 40, PROMPT = 150, CHUNK = 64, TOKENS = 20, LINES = 4, STEPS = 5 };

static int on_gpus, vocab, has_mtp;

static int32_t token(int i) {
    return (int32_t)((i * 131 + i * i * 7 + 3) % vocab);
}

/* On so many devices of a kind; 1: a model that is whole. NULL: its sizes cannot be divided so. */
static mote_model *model_with(const char *name, const char *kind, int ranks) {
    char devices[64] = "";
    mote_model *m = NULL;
    for (int i = 0; i < ranks; i++)
        snprintf(devices + strlen(devices), sizeof devices - strlen(devices), strcmp(kind, "cpu") ? "%s%s:%d" : "%s%s", i ? "," : "", kind, i);
    const mote_options o = {.size = sizeof o, .parts = MOTE_WEIGHTS_ONLY, .devices = devices, .split = ranks > 1 ? MOTE_SPLIT_TENSOR : MOTE_SPLIT_AUTO};
    const int code = mote_open(name, &o, &m, &failure);
    if (code) CHECK(code == MOTE_EUNSUPPORTED, "%s on %s: %s", name, devices, failure.message);
    return m;
}

/* Logits of the first `rows` tokens, fed in blocks of these lengths, in turns. */
static float *fed(const mote_model *m, int rows, const int *lengths, int count, int mtp) {
    float *logits = (float *)allocate((size_t)rows * (size_t)vocab * sizeof *logits);
    mote_session *s = session_of(m, .context = rows + 8, .threads = 2, .chunk = CHUNK, .mtp = mtp, .kv = MOTE_KV_BF16);
    int32_t ids[PROMPT];
    for (int i = 0; i < rows; i++) ids[i] = token(i);
    for (int at = 0, i = 0, n; at < rows; at += n, i++) {
        n = lengths[i % count] < rows - at ? lengths[i % count] : rows - at;
        EXPECT(MOTE_OK, mote_feed_logits(s, ids + at, (size_t)n, logits + (size_t)at * (size_t)vocab, NULL, &failure));
    }
    mote_session_close(s);
    return logits;
}

/* The largest difference, as a share of the standard deviation. */
static double distance(const float *a, const float *b, int rows) {
    const size_t n = (size_t)rows * (size_t)vocab;
    double sum = 0, squares = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        sum += b[i];
        squares += (double)b[i] * b[i];
        const double d = fabs((double)a[i] - b[i]);
        most = d <= most ? most : d;                        /* NaN: it is most */
    }
    return most / sqrt(squares / (double)n - sum / (double)n * sum / (double)n);
}

/* Rows that are further off: rounding in a prompt turns a close choice of an expert now and then, on one GPU as on several. */
static int turned(const float *a, const float *b, int rows, double allowed) {
    int n = 0;
    for (int t = 0; t < rows; t++) n += !(distance(a + (size_t)t * (size_t)vocab, b + (size_t)t * (size_t)vocab, 1) < allowed);
    return n;
}

static int same_rows(const float *a, const float *b, int rows) {
    return !memcmp(a, b, (size_t)rows * (size_t)vocab * sizeof *a);
}

static int keep_token(void *user, int32_t id) {
    int32_t **at = (int32_t **)user;
    *(*at)++ = id;
    return 0;
}

/* A prompt, and an answer after it. */
static void answer(const mote_model *m, int drafts, float temperature, int32_t *to, float *last) {
    const mote_sampling sampling = {.temperature = temperature, .top_k = 20, .seed = 9};
    mote_generation g = {.size = sizeof g, .sampling = &sampling, .max_tokens = TOKENS, .on_token = keep_token, .user = &to};
    mote_session *s = session_of(m, .context = PROMPT + 2 * TOKENS, .threads = 2, .chunk = CHUNK, .mtp = drafts);
    int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++) ids[i] = token(i % 41);
    EXPECT(MOTE_OK, mote_feed(s, ids, PROMPT, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    memcpy(last, mote_logits(s), (size_t)vocab * sizeof *last);
    mote_session_close(s);
}

static void test_answers(const char *what, const mote_model *m) {
    float *plain = (float *)allocate(2 * (size_t)vocab * sizeof *plain), *other = plain + vocab;
    for (int warm = 0; warm < 2; warm++)
        for (int drafts = warm; drafts < (has_mtp ? 4 : 6); drafts += has_mtp ? 3 : 5) {
            int32_t ids[2][TOKENS + MOTE_ROWS_MAX] = {{0}};
            answer(m, MOTE_MTP_OFF, warm * 0.7f, ids[0], plain);
            answer(m, drafts ? drafts : MOTE_MTP_OFF, warm * 0.7f, ids[1], other);
            CHECK(!memcmp(ids[0], ids[1], TOKENS * sizeof **ids), "%s: with up to %d drafts another answer", what, drafts);
        }
    free(plain);
}

/* Sessions in one pass give the tokens and logits of each alone. */
static void test_together(const char *what, const mote_model *m) {
    float *want = (float *)allocate((size_t)LINES * (size_t)vocab * sizeof *want);
    int32_t alone[LINES][STEPS], ids[80];
    for (int together = 0; together < 2; together++) {
        mote_runner *r = NULL;
        mote_turn turns[LINES];
        memset(turns, 0, sizeof turns);
        EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 128, .threads = 2}, &r, &failure));
        for (int i = 0; i < LINES; i++) {
            for (int t = 0; t < 5 + i * 19; t++) ids[t] = token(t + i);
            turns[i].session = session_of(m, .context = 128, .runner = r, .mtp = MOTE_MTP_OFF);
            EXPECT(MOTE_OK, mote_feed(turns[i].session, ids, (size_t)(5 + i * 19), &failure));
        }
        for (int k = 0; k < STEPS; k++) {
            if (together) EXPECT(MOTE_OK, mote_step_many(turns, LINES, &failure));
            for (int i = 0; i < LINES; i++) {
                if (!together) EXPECT(MOTE_OK, mote_step(turns[i].session, NULL, &turns[i].id, &failure));
                if (!together) alone[i][k] = turns[i].id;
                else CHECK(!turns[i].error.code && turns[i].id == alone[i][k], "%s: step %d of session %d among others", what, k, i);
            }
        }
        for (int i = 0; i < LINES; i++) {
            float *row = want + (size_t)i * (size_t)vocab;
            if (together) CHECK(same_rows(row, mote_logits(turns[i].session), 1), "%s: logits of session %d among others", what, i);
            else memcpy(row, mote_logits(turns[i].session), (size_t)vocab * sizeof *row);
            mote_session_close(turns[i].session);
        }
        mote_runner_close(r);
    }
    free(want);
}

/* Saved and loaded it goes on as it would have; a model that has not as many ranks refuses it. */
static void test_saved(const char *what, const mote_model *m, const mote_model *whole) {
    size_t size;
    int32_t ids[30], want, got;
    for (int i = 0; i < 30; i++) ids[i] = token(i);
    mote_session *s = session_of(m, .context = 64, .threads = 2, .mtp = MOTE_MTP_OFF), *other = session_of(m, .context = 64, .threads = 2, .mtp = MOTE_MTP_OFF);
    EXPECT(MOTE_OK, mote_feed(s, ids, 30, &failure));
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_step(s, NULL, &want, &failure));
    EXPECT(MOTE_OK, mote_load(other, bytes, size, &failure));
    CHECK(session_is(other, bytes, size), "%s: a session, saved and loaded", what);
    EXPECT(MOTE_OK, mote_step(other, NULL, &got, &failure));
    CHECK(want == got && same_rows(mote_logits(s), mote_logits(other), 1), "%s: goes on differently when loaded", what);
    mote_session_close(other);
    other = session_of(whole, .context = 64, .threads = 2, .mtp = MOTE_MTP_OFF);
    CHECK(mote_load(other, bytes, size, &failure), "%s: one device takes a session of ranks", what);
    free(bytes);
    mote_session_close(other);
    mote_session_close(s);
}

/* A prompt is compared with one device of the kind: between a GPU and the CPU an expert that is chosen by a hair turns a long one over. */
static void test_rows(const char *what, const mote_model *m, const mote_model *like, const mote_model *whole) {
    static const int one[] = {1}, some[] = {2, 4, 3, 7, 16, 1}, all[] = {PROMPT};
    float *want = fed(like, ROWS, one, 1, MOTE_MTP_OFF), *got = fed(m, ROWS, one, 1, MOTE_MTP_OFF);
    const double off = distance(got, want, ROWS);
    CHECK(off < 0.01, "%s: logits are off by %g of their deviation", what, off);
    for (int i = 0; i < 3; i++) {
        float *again = i < 2 ? fed(m, ROWS, i ? some : one, i ? 6 : 1, i ? has_mtp ? 3 : MOTE_MTP_OFF : MOTE_MTP_OFF) : fed(m, 15, all, 1, MOTE_MTP_OFF);
        CHECK(same_rows(again, got, i < 2 ? ROWS : 15), "%s: other bits %s", what, !i ? "again" : i < 2 ? "in blocks" : "in one block");
        free(again);
    }
    free(want);
    free(got);
    want = fed(whole, PROMPT, all, 1, MOTE_MTP_OFF);
    got = fed(m, PROMPT, all, 1, MOTE_MTP_OFF);
    const double prompt_off = distance(got, want, PROMPT);
    const int others = turned(got, want, PROMPT, 0.05);
    float *again = fed(m, PROMPT, all, 1, has_mtp ? 2 : MOTE_MTP_OFF);
    CHECK(others <= PROMPT / 32, "%s: %d rows of a prompt are off by up to %g of their deviation", what, others, prompt_off);
    CHECK(same_rows(again, got, PROMPT), "%s: a prompt has other bits again", what);
    printf("%s: rows off by %.1e, a prompt by %.1e of the logits' deviation, %d rows of it by more than 0.05\n", what, off, prompt_off, others);
    free(again);
    free(want);
    free(got);
}

static void test_model(const char *name, int ranks) {
    char what[300];
    snprintf(what, sizeof what, "%s on %d ranks", name, ranks);
    mote_model *m = model_with(name, on_gpus ? "cuda" : "cpu", ranks);
    if (!m) {
        printf("%s: %s\n", what, failure.message);
        return;
    }
    mote_model *like = model_with(name, "cpu", on_gpus ? ranks : 1), *whole = model_with(name, on_gpus ? "cuda" : "cpu", 1);
    if (!CHECK(like && whole, "%s: nothing to compare it with", what)) return;
    vocab = mote_model_info(m)->vocab_size;
    has_mtp = mote_model_info(m)->mtp_layers;
    test_rows(what, m, like, whole);
    test_answers(what, m);
    test_together(what, m);
    test_saved(what, m, whole);
    mote_close(whole);
    mote_close(like);
    mote_close(m);
}

int main(int argc, char **argv) {
    static const char *const few[] = {"tests/fixtures/gptq-awq-int4", "tests/fixtures/families/gemma4", "tests/fixtures/families/qwen3.5-dense"};
    const int first = test_main_begin("test_ranks", argc, argv);
    on_gpus = strcmp(test_device, "cpu") != 0;
    for (int ranks = 2; ranks <= (test_brief || on_gpus ? 2 : 3); ranks++) {
        for (int i = first; i < argc; i++) test_model(argv[i], ranks);
        for (int i = 0; i < 3 && first >= argc; i++) test_model(few[i], ranks);
    }
    return test_main_end();
}
