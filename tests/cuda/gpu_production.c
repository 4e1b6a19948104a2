// The kernels that production runs, once each: synthetic models of real layer sizes, steps of one to four rows and cycles with
// one to three drafts. For compute-sanitizer, under which every second counts; that the numbers are right is tested elsewhere.
//
// Usage: gpu_production [--prompt N | --rows | --sessions N] MODEL...     names of mote_open_synthetic, as small:fp8
//        --prompt: only a prompt of N tokens, with the logits of all; --rows: only steps of one to four rows, and cycles; --sessions: only
//        steps and cycles of N sessions at once

#include "api.h"

#include <pthread.h>

// One prompt alone.
static void run_short_prompt(mote_session *s, int tokens, int vocab) {
    int32_t *ids = (int32_t *)allocate((size_t)tokens * sizeof *ids);
    float *logits = (float *)allocate((size_t)tokens * (size_t)vocab * sizeof *logits);
    for (int i = 0; i < tokens; i++) ids[i] = i * 977 % vocab;
    EXPECT(MOTE_OK, mote_feed_logits(s, ids, (size_t)tokens, logits, NULL, &failure));
    free(ids);
    free(logits);
}

// Blocks of one to four rows, and plain steps.
static void run_rows(mote_session *s, int vocab) {
    static const int32_t ids[] = {3, 14, 15, 92};
    int32_t id;
    for (size_t rows = 4; rows >= 1; rows--) EXPECT(MOTE_OK, mote_feed(s, ids, rows, &failure));
    for (int i = 0; i < 2; i++) EXPECT(MOTE_OK, mote_step(s, NULL, &id, &failure));
    run_short_prompt(s, 11, vocab);                         // in turn: two blocks of four rows, one of three
}

// A prompt, read by prefill: through narrow tiles and wide ones, with and without the logits of all rows.
static void run_prompt(mote_session *s, int vocab) {
    enum { LONGEST = 1700 };
    int32_t ids[LONGEST];
    float *logits = (float *)allocate(150 * (size_t)vocab * sizeof *logits);
    float *mtp = (float *)allocate(150 * (size_t)vocab * sizeof *mtp);
    for (int i = 0; i < LONGEST; i++) ids[i] = i * 977 % vocab;
    EXPECT(MOTE_OK, mote_feed_logits(s, ids, 150, logits, mtp, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, 40, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, LONGEST, &failure));
    free(logits);
    free(mtp);
}

// A context that several clusters of blocks share, pretended.
static void run_deep(mote_session *s, int rows) {
    mote_measurement m = {.rows = rows, .depth = 5000, .steps = 1};
    EXPECT(MOTE_OK, mote_measure(s, &m, &failure));
    CHECK(m.median > 0 && m.launches > 0, "%d rows", rows);
}

// Cycles: verify, accept, draft again.
static void run_cycles(mote_session *s) {
    static const int32_t ids[] = {3, 14, 15};
    mote_sampling greedy = {0};
    mote_generation g = {.sampling = &greedy, .max_tokens = 6, .raw = 1};
    EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
}

enum { SESSIONS_MOST = 64 };

static void *run_answer(void *session) {
    mote_sampling greedy = {0};
    mote_generation g = {.sampling = &greedy, .max_tokens = 6, .raw = 1};
    mote_error error;
    CHECK(!mote_generate((mote_session *)session, &g, NULL, &error), "%s", error.message);
    return NULL;
}

// Steps and cycles of n sessions at once.
static void run_sessions(const mote_model *m, int n) {
    static const int32_t ids[] = {3, 14, 15, 92, 65};
    mote_session *s[SESSIONS_MOST];
    mote_turn turns[SESSIONS_MOST];
    pthread_t threads[SESSIONS_MOST];
    mote_session_options o = {.context = 64};
    mote_runner *r = NULL;
    EXPECT(MOTE_OK, mote_runner_open(m, &o, &r, &failure));
    memset(turns, 0, sizeof turns);
    for (int i = 0; i < n; i++) {
        turns[i].session = s[i] = session_of(m, .context = 64, .runner = r, .mtp = 3);
        EXPECT(MOTE_OK, mote_feed(s[i], ids, (size_t)(1 + i % 5), &failure));
    }
    for (int k = 0; k < 2; k++) EXPECT(MOTE_OK, mote_step_many(turns, n, &failure));
    for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, run_answer, s[i]);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++) mote_session_close(s[i]);
    mote_runner_close(r);
}

static void run_all(const mote_model *m) {
    for (int drafts = 1; drafts <= 3; drafts++) {
        mote_session *s = session_of(m, .context = 6000, .mtp = drafts);
        if (drafts == 2) run_prompt(s, mote_model_info(m)->vocab_size), mote_reset(s, NULL);
        if (drafts == 1) run_rows(s, mote_model_info(m)->vocab_size);
        else run_cycles(s);
        if (drafts == 1) mote_reset(s, NULL), run_cycles(s);
        if (drafts == 3) run_deep(s, 1), run_deep(s, 4);
        mote_session_close(s);
    }
}

// prompt: 0: everything; -1: steps and cycles only; else only a prompt of so many tokens. sessions: not 0: only so many at once.
static void run_model(const char *name, int prompt, int sessions) {
    mote_options how = {.device = "cuda"};
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &how, &m, &failure));
    if (m && sessions) run_sessions(m, sessions);
    else if (m && !prompt) run_all(m);
    else if (m) {
        mote_session *s = session_of(m, .context = prompt > 0 ? prompt : 64, .mtp = 3);
        if (prompt > 0) run_short_prompt(s, prompt, mote_model_info(m)->vocab_size);
        else run_rows(s, mote_model_info(m)->vocab_size), run_cycles(s);
        mote_session_close(s);
    }
    mote_close(m);
}

int main(int argc, char **argv) {
    int i = 1, prompt = 0, sessions = 0;
    if (argc > 2 && !strcmp(argv[1], "--prompt")) prompt = atoi(argv[2]), i = 3;
    else if (argc > 1 && !strcmp(argv[1], "--rows")) prompt = -1, i = 2;
    else if (argc > 2 && !strcmp(argv[1], "--sessions")) sessions = atoi(argv[2]) % (SESSIONS_MOST + 1), i = 3;
    test_main_begin("gpu_production", 0, NULL);
    for (; i < argc; i++) run_model(argv[i], prompt, sessions);
    return test_main_end();
}
