/* Tests of mote_step_many: sessions that are computed together have the bits that each has alone, whoever else is in the pass, and
   whatever happens to the others.
   Usage: test_batch [--device NAME] [--brief] [DATA [MODEL...]]. With MODELs, checkpoint folders or names of mote_open_synthetic, only so many
   sessions of each in a pass. */

#include "api.h"

#include <pthread.h>

#include "session/pair.h"

static mote_model *model_named(const char *name) {
    mote_model *m = NULL;
    if (strchr(name, '/')) return model_of(name, MOTE_WEIGHTS_ONLY);
    EXPECT(MOTE_OK, mote_open_synthetic(name, &(mote_options){.device = test_device}, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

/* ---- So many sessions in a pass ------------------------------------------------------------------------------------------- */

enum { MOST = 64, STEPS = 5, CONTEXT = 128, AT_LIMIT = 11 };

/* What session i is: its prompt is i's own. */
static const int lengths[] = {1, 63, 64, 65, 7}, drafts[] = {3, MOTE_MTP_OFF, 1, MOTE_MTP_AUTO, 2, 3, 1};

/* kv, chunk: if it has no runner. What a log holds beside the rows that count depends on where a prompt was cut, and is saved, too. */
static mote_session *session_number(const mote_model *m, mote_runner *r, int i, int kv, int chunk) {
    int32_t ids[CONTEXT];
    const int n = lengths[i % 5], context = i == AT_LIMIT ? n + 2 : CONTEXT, vocab = mote_model_info(m)->vocab_size;
    mote_session *s = r ? session_of(m, .context = context, .runner = r, .mtp = drafts[i % 7])
                        : session_of(m, .context = context, .threads = 2, .mtp = drafts[i % 7], .kv = kv, .chunk = chunk);
    for (int t = 0; t < n; t++) ids[t] = (i * 131 + t * t * 7 + t) % vocab;
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)n, &failure));
    return s;
}

static mote_sampling sampling_number(int i) {
    mote_sampling greedy = {0}, plain = {.temperature = 0.8f, .top_k = 20, .seed = (uint64_t)i};
    mote_sampling penalties = {.temperature = 1, .top_p = 0.9f, .repetition_penalty = 1.1f, .seed = (uint64_t)i};
    return i % 3 == 0 ? greedy : i % 3 == 1 ? plain : penalties;
}

/* What session i gives alone. */
typedef struct solo {
    int32_t ids[STEPS];
    float *logits;               /* [STEPS][vocab] */
    char *bytes;
    size_t size;
    int steps;
} solo;

static void play_solo(const mote_model *m, int i, int kv, int chunk, solo *to) {
    const size_t vocab = (size_t)mote_model_info(m)->vocab_size;
    const mote_sampling sampling = sampling_number(i);
    mote_session *s = session_number(m, NULL, i, kv, chunk);
    to->logits = (float *)allocate(STEPS * vocab * sizeof(float));
    for (int k = 0; k < STEPS && !mote_step(s, &sampling, &to->ids[k], &failure); k++, to->steps++)
        memcpy(to->logits + (size_t)k * vocab, mote_logits(s), vocab * sizeof(float));
    to->bytes = session_bytes(s, &to->size);
    mote_session_close(s);
}

static void test_many(const mote_model *m, mote_runner *r, const solo *alone, int count) {
    const size_t vocab = (size_t)mote_model_info(m)->vocab_size;
    mote_turn turns[MOST];
    mote_sampling samplings[MOST];
    memset(turns, 0, sizeof turns);
    for (int i = 0; i < count; i++) {
        samplings[i] = sampling_number(i);
        turns[i].session = session_number(m, r, i, 0, 0);
        turns[i].sampling = &samplings[i];
    }
    for (int k = 0; k < STEPS; k++) {
        const int full = count > AT_LIMIT && k >= alone[AT_LIMIT].steps;
        EXPECT(full ? MOTE_ECONTEXT : MOTE_OK, mote_step_many(turns, count, &failure));
        for (int i = 0; i < count; i++) {
            const int ends = k >= alone[i].steps;
            CHECK(turns[i].error.code == (ends ? MOTE_ECONTEXT : MOTE_OK), "%d of %d: code %d", i, count, turns[i].error.code);
            if (ends) continue;
            CHECK(turns[i].id == alone[i].ids[k], "%d of %d, step %d: token %d, alone %d", i, count, k, turns[i].id, alone[i].ids[k]);
            CHECK(same_logits(turns[i].session, alone[i].logits + (size_t)k * vocab, (int)vocab), "%d of %d, step %d: logits", i, count, k);
        }
    }
    for (int i = 0; i < count; i++) {
        CHECK(session_is(turns[i].session, alone[i].bytes, alone[i].size), "%d of %d: another state than alone", i, count);
        mote_session_close(turns[i].session);
    }
}

static void test_counts(const char *name, int kv, int chunk) {
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64}, brief[] = {3, 9, 17};
    mote_model *m = model_named(name);
    solo *alone = (solo *)calloc(MOST, sizeof *alone);
    mote_runner *r = runner_of(m, .context = CONTEXT, .threads = 2, .kv = kv, .chunk = chunk);
    for (int i = 0; i < (test_brief ? brief[2] : MOST); i++) play_solo(m, i, kv, chunk, &alone[i]);
    for (int i = 0; i < (test_brief ? 3 : 17); i++) test_many(m, r, alone, test_brief ? brief[i] : counts[i]);
    for (int i = 0; i < MOST; i++) {
        free(alone[i].logits);
        free(alone[i].bytes);
    }
    free(alone);
    mote_runner_close(r);
    mote_close(m);
}

/* ---- Any order ------------------------------------------------------------------------------------------------------------ */

enum { SEATS = 8, ROOM = 160 };

typedef struct table {
    const mote_model *m;
    mote_runner *r;
    int vocab, steps, most;      /* steps taken; sessions in a pass, at most */
    pair seats[SEATS];           /* without sessions: free */
} table;

static int cancel_soon(void *user) {
    int *polls = (int *)user;
    return *polls > 0 && !--*polls;
}

static void join(table *t, pair *p) {
    static const int fixed[] = {MOTE_MTP_OFF, 1, 2, 3};     /* auto goes by time: the last block of an answer, and so the log, may differ */
    const int mtp = fixed[below(4)], context = ROOM - below(3) * 50;
    mote_callbacks callbacks[2] = {{.cancel = cancel_soon, .user = &p->polls[0]}, {.cancel = cancel_soon, .user = &p->polls[1]}};
    p->shared = session_of(t->m, .runner = t->r, .context = context, .mtp = mtp, .callbacks = callbacks[0]);
    p->alone = session_of(t->m, .threads = 1, .chunk = 16, .context = context, .mtp = mtp, .callbacks = callbacks[1]);
}

static void feed_pair(table *t, pair *p) {
    int32_t ids[48];
    int n = 1 + below(below(3) ? 4 : 48), left = mote_context(p->alone) - count_of(p->alone);
    if (n > left) n = left;
    for (int i = 0; i < n; i++) ids[i] = below(t->vocab);
    p->polls[0] = p->polls[1] = below(4) ? 0 : 1 + below(3);
    int code = mote_feed(p->alone, ids, (size_t)n, &failure);
    CHECK(mote_feed(p->shared, ids, (size_t)n, &failure) == code, "feeding %d tokens", n);
    p->polls[0] = p->polls[1] = 0;
}

static int answer_of(mote_session *s, const mote_sampling *sampling, int n, int32_t *ids) {
    mote_generation g = {.size = sizeof g, .sampling = sampling, .max_tokens = n, .on_token = keep_token, .user = &ids};
    return mote_generate(s, &g, NULL, &failure);
}

static void answer_pair(pair *p) {
    const mote_sampling sampling = sampling_number(below(1000));
    int32_t a[8] = {0}, b[8] = {0};
    const int n = 1 + below(8);
    p->polls[0] = p->polls[1] = below(4) ? 0 : 1 + below(4);
    int code = answer_of(p->alone, &sampling, n, a);
    CHECK(answer_of(p->shared, &sampling, n, b) == code, "an answer: %s", failure.message);
    CHECK(!memcmp(a, b, sizeof a), "an answer of %d tokens is another one than alone", n);
    p->polls[0] = p->polls[1] = 0;
}

static void reload_pair(pair *p) {
    size_t size;
    char *bytes = session_bytes(p->alone, &size);
    if (below(2)) EXPECT(MOTE_OK, mote_reset(p->shared, &failure));
    EXPECT(MOTE_OK, mote_load(p->shared, bytes, size, &failure));
    EXPECT(MOTE_OK, mote_load(p->alone, bytes, size, &failure));
    free(bytes);
}

/* What happens to one session between steps. */
static const char *disturb(table *t, pair *p) {
    if (!p->shared) return join(t, p), "joining";
    if (!count_of(p->alone)) return feed_pair(t, p), "feeding";
    switch (below(8)) {
        case 0: return feed_pair(t, p), "feeding";
        case 1: return answer_pair(p), "an answer";
        case 2: return remember_pair(p), "a checkpoint";
        case 3: return rewind_pair(p), "going back";
        case 4: return clone_pair(p), "cloning";
        case 5: return reload_pair(p), "loading";
        case 6: return close_pair(p), "leaving";
        default: break;
    }
    EXPECT(MOTE_OK, mote_reset(p->alone, &failure));
    EXPECT(MOTE_OK, mote_reset(p->shared, &failure));
    return "a reset";
}

/* A step of some of them: codes and tokens are those of each alone. */
static void step_some(table *t) {
    mote_turn turns[SEATS];
    mote_sampling samplings[SEATS];
    pair *of[SEATS];
    int n = 0, first = 0;
    memset(turns, 0, sizeof turns);
    for (int i = 0; i < SEATS; i++) {
        if (!t->seats[i].shared || below(3) == 0) continue;
        samplings[n] = sampling_number(below(1000));
        if (below(40) == 0) samplings[n].temperature = -1;
        turns[n].session = t->seats[i].shared;
        turns[n].sampling = &samplings[n];
        of[n++] = &t->seats[i];
    }
    int code = mote_step_many(turns, n, &failure);
    for (int i = 0; i < n; i++) {
        int32_t id = 0;
        mote_error error;
        const int want = mote_step(of[i]->alone, &samplings[i], &id, &error);
        if (!first) first = want;
        CHECK(turns[i].error.code == want, "a turn's code is %d, alone %d", turns[i].error.code, want);
        if (!want) CHECK(turns[i].id == id, "a turn chose %d, alone %d", turns[i].id, id);
        else CHECK(!strcmp(turns[i].error.message, error.message), "a turn: %s, alone: %s", turns[i].error.message, error.message);
        if (want == MOTE_ECONTEXT && below(2)) close_pair(of[i]);
        t->steps += !want;
    }
    CHECK(code == first, "of all turns: code %d, of the first that failed %d", code, first);
    if (n > t->most) t->most = n;
}

static void test_any_order(const char *name, int steps) {
    table *t = (table *)calloc(1, sizeof *t);
    const char *what = "nothing";
    t->m = model_named(name);
    t->vocab = mote_model_info(t->m)->vocab_size;
    t->r = runner_of(t->m, .context = ROOM, .threads = 1, .chunk = 16);
    random_state = 7;
    while (t->steps < steps) {
        pair *p = &t->seats[below(SEATS)];
        if (below(3) == 0) what = disturb(t, p);
        else step_some(t), what = "a step";
        if (below(50) == 0 && p->shared) compare_pair(p, what);
    }
    for (int i = 0; i < SEATS; i++) {
        if (t->seats[i].shared) compare_pair(&t->seats[i], "everything");
        close_pair(&t->seats[i]);
    }
    CHECK(t->most >= SEATS - 1, "passes of %d sessions", t->most);
    mote_runner_close(t->r);
    mote_close((mote_model *)t->m);
    free(t);
}

/* ---- Turns that are none ---------------------------------------------------------------------------------------------------- */

static void test_refused(void) {
    mote_model *m = model_named("tiny:fp8");
    mote_runner *r[2] = {runner_of(m, .context = 64), runner_of(m, .context = 64)};
    mote_session *s[6], *empty = session_of(m, .runner = r[0]);
    mote_turn turns[9];
    int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8}, want[6];
    const mote_sampling bad = {.top_p = 2};
    memset(turns, 0, sizeof turns);
    for (int i = 0; i < 6; i++) {                           /* of two runners, and with their own */
        s[i] = i % 3 ? session_of(m, .runner = r[i % 3 - 1]) : session_of(m, .context = 64);
        EXPECT(MOTE_OK, mote_feed(s[i], ids + i % 4, 4, &failure));
        EXPECT(MOTE_OK, mote_sample(s[i], NULL, &want[i], &failure));
        turns[i].session = s[i];
    }
    turns[6].session = s[1];
    turns[7].session = empty;
    EXPECT(MOTE_EINVAL, mote_step_many(turns, 9, &failure));
    CHECK(!strncmp(failure.message, "turn 6: ", 8), "%s", failure.message);
    for (int i = 0; i < 6; i++) {
        CHECK(!turns[i].error.code && !turns[i].error.message[0] && turns[i].id == want[i], "turn %d: %s", i, turns[i].error.message);
        CHECK(count_of(s[i]) == 5, "session %d holds %d tokens", i, count_of(s[i]));
    }
    for (int i = 6; i < 9; i++) CHECK(turns[i].error.code == MOTE_EINVAL && turns[i].id == 0, "turn %d: %s", i, turns[i].error.message);
    turns[2].sampling = &bad;
    EXPECT(MOTE_EINVAL, mote_step_many(turns, 6, &failure));
    for (int i = 0; i < 6; i++) CHECK(count_of(s[i]) == (i == 2 ? 5 : 6), "session %d holds %d tokens", i, count_of(s[i]));
    EXPECT(MOTE_OK, mote_step_many(NULL, 0, &failure));
    EXPECT(MOTE_EINVAL, mote_step_many(NULL, 1, &failure));
    EXPECT(MOTE_EINVAL, mote_step_many(turns, -1, &failure));
    CHECK(mote_step_many(turns, 9, NULL) == MOTE_EINVAL, "without a place for the error");
    for (int i = 0; i < 6; i++) mote_session_close(s[i]);
    mote_session_close(empty);
    mote_runner_close(r[0]);
    mote_runner_close(r[1]);
    mote_close(m);
}

/* Two threads step one session: each step is taken or refused, and the context holds. Closing it meanwhile is ignored. */
static void *step_until_full(void *session) {
    mote_sampling greedy = {0};
    mote_error error;
    int32_t id;
    int code = MOTE_OK;
    for (int many = 0; code == MOTE_OK || code == MOTE_EINVAL; many = !many) {
        mote_turn turn = {.session = (mote_session *)session, .sampling = &greedy};
        code = many ? mote_step_many(&turn, 1, &error) : mote_step((mote_session *)session, &greedy, &id, &error);
    }
    return (void *)(intptr_t)code;
}

static void test_one_session_twice(void) {
    mote_model *m = model_named("tiny:fp8");
    for (int k = 0; k < 5; k++) {
        mote_session *s = session_of(m, .context = 24);
        int32_t ids[] = {1, 2, 3};
        pthread_t threads[2];
        void *code[2];
        EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, step_until_full, s);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], &code[i]);
        CHECK((intptr_t)code[0] == MOTE_ECONTEXT && (intptr_t)code[1] == MOTE_ECONTEXT && count_of(s) == 24, "codes %d and %d, %d tokens",
              (int)(intptr_t)code[0], (int)(intptr_t)code[1], count_of(s));
        mote_session_close(s);
    }
    mote_close(m);
}

int main(int argc, char **argv) {
    const int first = test_main_begin("test_batch", argc, argv);
    for (int i = first; i < argc; i++) test_counts(argv[i], MOTE_KV_DEFAULT, 0);
    if (first < argc) return test_main_end();
    test_counts("tiny:fp8", MOTE_KV_DEFAULT, 0);
    test_counts("tiny:bf16", MOTE_KV_FP8, 10);              /* on the CPU: passes of at most ten rows */
    test_counts("tiny:nvfp4", MOTE_KV_DEFAULT, 0);
    test_counts("tiny-dense:fp8", MOTE_KV_DEFAULT, 0);
    test_counts("tiny-plain:fp8", MOTE_KV_DEFAULT, 0);
    test_counts("tiny-oss:mxfp4", MOTE_KV_DEFAULT, 0);      /* windows, sinks, biases */
    test_counts("tiny-oss:bf16", MOTE_KV_FP8, 0);
    test_any_order("tiny:fp8", test_brief ? 200 : 10000);
    test_refused();
    test_one_session_twice();
    return test_main_end();
}
