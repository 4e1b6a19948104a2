/* Tests of a table of n-grams that stays in its file, and of which rows cannot be read: the call that wants them fails, and is as if it had not been
   made; others go on. A served model says that it is not the request's fault. The checkpoint is of the test data.

   Usage: test_tables [--device NAME] [--brief] DATA */

#include "api.h"
#include "client.h"

enum { PROMPT = 40, ANSWER = 24 };

#define TOKENIZER "tests/fixtures/embedding/qwen3-embedding"

static const mote_sampling greedy;
static int32_t ids[PROMPT];
static char *file;                                           // model.safetensors, whole
static size_t file_size;

// The numbers of all rows of the table become NaN, or again what they were.
static void damage(int on) {
    FILE *out = fopen(temp_path("model.safetensors"), "r+b");
    const char *at = NULL;
    tensor_place t;
    int ok = out != NULL, shards = 0;
    while (ok && next_tensor(file, &at, &t)) {
        if (!strstr(t.name, "ngram_embedding.shard_")) continue;
        char *bytes = (char *)allocate(t.end - t.begin);
        for (size_t i = 0; i < t.end - t.begin; i++) bytes[i] = on ? (i % 2 ? 0x7f : (char)0xc0) : file[t.begin + i];
        ok = !fseek(out, (long)t.begin, SEEK_SET) && fwrite(bytes, 1, t.end - t.begin, out) == t.end - t.begin;
        free(bytes);
        shards++;
    }
    if (out && fclose(out)) ok = 0;
    CHECK(ok && shards == 4, "the table's file: %d shards", shards);
}

// A session of a model that has read no rows yet.
static mote_session *fresh(mote_model **m, int mtp) {
    damage(0);
    *m = model_of(temp_dir, MOTE_EVERYTHING);
    return session_of(*m, .context = 128, .mtp = mtp ? 0 : MOTE_MTP_OFF);
}

static void done(mote_session *s, mote_model *m) {
    mote_session_close(s);
    mote_close(m);
}

// The logits after n tokens and so many steps, as they are when all rows are there, and the token that follows.
static float *want_logits(int n, int steps, int32_t *next) {
    mote_model *m;
    mote_session *s = fresh(&m, 1);
    const size_t vocab = (size_t)mote_model_info(m)->vocab_size;
    float *to = (float *)allocate(vocab * sizeof *to);
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)n, &failure));
    for (int i = 0; i < steps; i++) EXPECT(MOTE_OK, mote_step(s, &greedy, next, &failure));
    memcpy(to, mote_logits(s), vocab * sizeof *to);
    *next = best_of(to, (int)vocab);
    done(s, m);
    return to;
}

// Of n tokens after the first `before`.
static void test_feed(int before, int n) {
    mote_model *m;
    mote_session *s = fresh(&m, 1);
    int32_t next;
    size_t size;
    float *want = want_logits(before + n, 0, &next);
    damage(0);
    if (before) EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)before, &failure));
    char *bytes = session_bytes(s, &size);
    damage(1);
    EXPECT(MOTE_EFORMAT, mote_feed(s, ids + before, (size_t)n, &failure));
    CHECK(strstr(failure.message, "model.safetensors: row ") && strstr(failure.message, "of a table"), "%d tokens: %s", n, failure.message);
    CHECK(count_of(s) == before && session_is(s, bytes, size), "%d tokens after %d: the session is another one", n, before);
    damage(0);
    EXPECT(MOTE_OK, mote_feed(s, ids + before, (size_t)n, &failure));
    CHECK(same_logits(s, want, mote_model_info(m)->vocab_size), "%d tokens after %d: others after a failure", n, before);
    free(bytes), free(want);
    done(s, m);
}

static void test_step(void) {
    mote_model *m;
    mote_session *s = fresh(&m, 1);
    int32_t next, last, id = -1;
    float *want = want_logits(PROMPT, 0, &next), *after = want_logits(PROMPT, 2, &last);
    damage(0);
    EXPECT(MOTE_OK, mote_feed(s, ids, PROMPT, &failure));
    damage(1);
    EXPECT(MOTE_EFORMAT, mote_step(s, &greedy, &id, &failure));
    CHECK(count_of(s) == PROMPT && same_logits(s, want, mote_model_info(m)->vocab_size), "a step that failed has changed its session");
    damage(0);
    EXPECT(MOTE_OK, mote_step(s, &greedy, &id, &failure));
    CHECK(id == next && count_of(s) == PROMPT + 1, "token %d after a failure, expected %d", id, next);
    damage(1);
    EXPECT(MOTE_EFORMAT, mote_step(s, &greedy, &id, &failure));
    damage(0);
    EXPECT(MOTE_OK, mote_step(s, &greedy, &id, &failure));
    CHECK(same_logits(s, after, mote_model_info(m)->vocab_size), "logits after a step that failed, and came back");
    free(want), free(after);
    done(s, m);
}

// Of two turns that are computed together one has its rows in memory.
static void test_turns(void) {
    enum { SHORT = PROMPT - 7 };
    mote_model *m;
    mote_runner *r = NULL;
    int32_t next[2];
    float *want[2] = {want_logits(PROMPT, 2, &next[0]), want_logits(SHORT, 1, &next[1])};
    damage(0);
    m = model_of(temp_dir, MOTE_EVERYTHING);
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 128}, &r, &failure));
    mote_session *before = session_of(m, .context = 128, .runner = r), *s[] = {session_of(m, .context = 128, .runner = r), session_of(m, .context = 128, .runner = r)};
    EXPECT(MOTE_OK, mote_feed(before, ids, PROMPT, &failure));
    EXPECT(MOTE_OK, mote_step(before, &greedy, &next[0], &failure));
    EXPECT(MOTE_OK, mote_feed(s[0], ids, PROMPT, &failure));
    EXPECT(MOTE_OK, mote_feed(s[1], ids, SHORT, &failure));
    for (int good = 0; good < 2; good++) {
        mote_turn turns[] = {{.session = s[0], .sampling = &greedy}, {.session = s[1], .sampling = &greedy}};
        damage(!good);
        EXPECT(good ? MOTE_OK : MOTE_EFORMAT, mote_step_many(turns, 2, &failure));
        CHECK(!turns[0].error.code && (good || turns[0].id == next[0]), "the turn whose rows are there: code %d", turns[0].error.code);
        CHECK(good || turns[1].error.code == MOTE_EFORMAT, "the other one: code %d, token %d", turns[1].error.code, turns[1].id);
        CHECK(count_of(s[0]) == PROMPT + 1 + good && count_of(s[1]) == SHORT + good, "counts %d and %d", count_of(s[0]), count_of(s[1]));
    }
    for (int k = 0; k < 2; k++)
        CHECK(same_logits(s[k], want[k], mote_model_info(m)->vocab_size), "turn %d: other logits after a pass that failed in part", k);
    free(want[0]), free(want[1]);
    mote_session_close(s[0]), mote_session_close(s[1]), mote_session_close(before);
    mote_runner_close(r);
    mote_close(m);
}

// After so many tokens of an answer rows are damaged.
static int tokens_left;
static int count_down(void *user, int32_t id) {
    (void)user, (void)id;
    if (--tokens_left == 0) damage(1);
    return 0;
}

static void test_answer(int mtp) {
    mote_model *m;
    mote_session *s = fresh(&m, mtp);
    mote_generation g = {.sampling = &greedy, .max_tokens = ANSWER, .raw = 1};
    mote_result result = {0};
    int32_t want[ANSWER + PROMPT];
    size_t n = 0;
    EXPECT(MOTE_OK, mote_feed(s, ids, PROMPT, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, &result, &failure));
    const int32_t *all = mote_tokens(s, &n);
    const int count = (int)n;
    memcpy(want, all, n * sizeof *want);
    done(s, m);
    s = fresh(&m, mtp);
    EXPECT(MOTE_OK, mote_feed(s, ids, PROMPT, &failure));
    g.on_token = count_down;
    tokens_left = 5;
    EXPECT(MOTE_EFORMAT, mote_generate(s, &g, &result, &failure));
    all = mote_tokens(s, &n);
    CHECK((int)n >= PROMPT && (int)n < count && !memcmp(all, want, n * sizeof *want), "an answer that failed after %d tokens", (int)n - PROMPT);
    damage(0);
    g.max_tokens = count - (int)n;
    EXPECT(MOTE_OK, mote_generate(s, &g, &result, &failure));
    all = mote_tokens(s, &n);
    CHECK((int)n == count && !memcmp(all, want, n * sizeof *want), "the answer went on with others: %d tokens of %d", (int)n - PROMPT, count - PROMPT);
    done(s, m);
}

// A model of made-up weights with the table of a checkpoint: its rows are read there.
static void test_folder(void) {
    char name[600], plain[] = "tiny-flash:bf16";
    mote_tables_seen seen[2];
    float *logits[2] = {NULL, NULL};
    size_t size = 0;
    damage(0);
    snprintf(name, sizeof name, "%s@%s", plain, temp_dir);
    for (int k = 0; k < 2; k++) {
        const mote_options o = {.device = test_device};
        mote_model *m = NULL;
        EXPECT(MOTE_OK, mote_open_synthetic(k ? name : plain, &o, &m, &failure));
        if (!m) return;
        mote_session *s = session_of(m, .context = 64);
        int32_t few[12];
        for (int i = 0; i < 12; i++) few[i] = ids[i] % mote_model_info(m)->vocab_size;
        size = (size_t)mote_model_info(m)->vocab_size * sizeof **logits;
        logits[k] = (float *)allocate(size);
        EXPECT(MOTE_OK, mote_feed(s, few, 12, &failure));
        memcpy(logits[k], mote_logits(s), size);
        EXPECT(MOTE_OK, mote_model_tables(m, &seen[k], &failure));
        done(s, m);
    }
    CHECK(!seen[0].read && seen[1].read && seen[1].bytes, "%d rows from files without, %d with a folder", (int)seen[0].read, (int)seen[1].read);
    CHECK(memcmp(logits[0], logits[1], size), "rows of a folder are those that are made up");
    free(logits[0]), free(logits[1]);
    mote_model *m = NULL;
    EXPECT(MOTE_EIO, mote_open_synthetic("tiny-flash:bf16@/nowhere", NULL, &m, &failure));
    EXPECT(MOTE_EFORMAT, mote_open_synthetic("tiny-flash:bf16@models/demo", NULL, &m, &failure));
    CHECK(strstr(failure.message, "ple_embedding"), "a folder without the table: %s", failure.message);
}

static void test_served(void) {
    char arguments[600];
    FILE *said;
    size_t size;
    char *tokenizer = file_bytes(TOKENIZER "/tokenizer.json", &size);
    damage(0);
    if (!CHECK(tokenizer != NULL, "no tokenizer")) return;
    temp_write("tokenizer.json", tokenizer, size);
    free(tokenizer);
    snprintf(arguments, sizeof arguments, "-m %s --device %s --context 128", temp_dir, test_device);
    server s = serve_program(MOTE_PROGRAM, arguments, &said);
    damage(1);
    heard h = post(s, "/v1/completions", "{\"prompt\": [7, 9, 11, 13], \"max_tokens\": 2}");
    CHECK(h.status == 500 && strstr(h.data, "of a table"), "rows that cannot be read: %d: %.300s", h.status, h.data);
    forget(&h);
    damage(0);
    h = post(s, "/v1/completions", "{\"prompt\": [7, 9, 11, 13], \"max_tokens\": 2}");
    CHECK(h.status == 200, "rows that can be read again: %d: %.300s", h.status, h.data);
    forget(&h);
    stop(s);
    fclose(said);
}

int main(int argc, char **argv) {
    char dir[512];
    size_t size;
    test_main_begin("test_tables", argc, argv);
    snprintf(dir, sizeof dir, "%s/family-data/dev-qwen4exp", test_data_dir() ? test_data_dir() : "");
    if (!test_data_dir() || access(dir, R_OK)) {
        test_skip("no test data (build/data)");
        return test_main_end();
    }
    temp_open();
    temp_copy_of(dir, NULL, NULL);
    file = file_bytes(temp_path("model.safetensors"), &file_size);
    char *tokens = file_bytes(temp_path("tokens.i32"), &size);
    if (!CHECK(file && tokens && size >= sizeof ids, "%s is not whole", dir)) return test_main_end();
    memcpy(ids, tokens, sizeof ids);
    test_feed(0, 1);
    test_feed(0, PROMPT);
    test_feed(6, 3);
    test_feed(9, 7);
    test_step();
    test_turns();
    test_answer(0);
    test_answer(1);
    test_folder();
    if (!strcmp(test_device, "cpu")) test_served();
    free(tokens), free(file);
    temp_close();
    return test_main_end();
}
