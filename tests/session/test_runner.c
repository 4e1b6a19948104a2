/* Tests of runners: sessions that share one give what each gives on a runner of its own, in any order and from several threads; what
   a runner has settled its sessions cannot ask for otherwise. Usage: test_runner [--device NAME] */

#include "api.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session/pair.h"

enum { SESSIONS = 3, CONTEXT = 256 };

/* ---- The same, whoever else works ----------------------------------------------------------------------------------- */

static void feed_both(pair *p, int vocab) {
    int32_t ids[80];
    int left = CONTEXT - count_of(p->alone), n = 1 + below(below(2) ? 4 : 80);
    if (n > left) n = left;
    for (int i = 0; i < n; i++) ids[i] = below(vocab);
    EXPECT(MOTE_OK, mote_feed(p->alone, ids, (size_t)n, &failure));
    EXPECT(MOTE_OK, mote_feed(p->shared, ids, (size_t)n, &failure));
}

static void step_both(pair *p) {
    mote_sampling sampling = {.temperature = below(2) ? 0.8f : 0, .top_k = 20, .seed = (uint64_t)below(1000)};
    if (!count_of(p->alone)) return;
    for (int i = 0; i < 4 && count_of(p->alone) < CONTEXT; i++) {
        int32_t a = -1, b = -2;
        EXPECT(MOTE_OK, mote_step(p->alone, &sampling, &a, &failure));
        EXPECT(MOTE_OK, mote_step(p->shared, &sampling, &b, &failure));
        CHECK(a == b, "a step chose %d, alone %d", b, a);
    }
}

static void answer_of(mote_session *s, const mote_sampling *sampling, int n, int32_t *ids) {
    mote_generation g = {.size = sizeof g, .sampling = sampling, .max_tokens = n, .on_token = keep_token, .user = &ids};
    mote_result r;
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
}

static void answer_both(pair *p) {
    mote_sampling sampling = {.temperature = below(2) ? 0.8f : 0, .top_k = 20, .seed = (uint64_t)below(1000)};
    int32_t a[32] = {0}, b[32] = {0};
    int n = 1 + below(24);
    if (!count_of(p->alone) || count_of(p->alone) + 40 > CONTEXT) return;
    answer_of(p->alone, &sampling, n, a);
    answer_of(p->shared, &sampling, n, b);
    CHECK(!memcmp(a, b, sizeof a), "an answer of %d tokens is another one than alone", n);
}

static void logits_both(pair *p, int vocab) {
    const float *a = mote_logits(p->alone), *b = mote_logits(p->shared);
    if (a && b) CHECK(!memcmp(a, b, (size_t)vocab * sizeof *a), "logits differ");
    else CHECK(!a == !b, "one has logits");
}

static const char *do_both(pair *p, int vocab) {
    switch (below(8)) {
        case 0: return feed_both(p, vocab), "feeding";
        case 1: return step_both(p), "steps";
        case 2: return answer_both(p), "an answer";
        case 3: return remember_pair(p), "a checkpoint";
        case 4: return rewind_pair(p), "going back";
        case 5: return clone_pair(p), "cloning";
        case 6: return logits_both(p, vocab), "logits";
        default: break;
    }
    if (below(4)) return feed_both(p, vocab), "feeding";
    EXPECT(MOTE_OK, mote_reset(p->alone, &failure));
    EXPECT(MOTE_OK, mote_reset(p->shared, &failure));
    return "a reset";
}

static void test_interleaved(const char *name, int rounds, int kv) {
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &(mote_options){.device = test_device}, &m, &failure));
    if (!m) return;
    const int vocab = mote_model_info(m)->vocab_size;
    static const int mtp[SESSIONS] = {3, MOTE_MTP_OFF, 1};
    mote_runner *r = runner_of(m, .context = CONTEXT, .threads = 2, .kv = kv);
    pair all[SESSIONS] = {0};
    random_state = 1;
    for (int i = 0; i < SESSIONS; i++) {
        all[i].shared = session_of(m, .context = CONTEXT - i, .runner = r, .mtp = mtp[i]);
        all[i].alone = session_of(m, .context = CONTEXT - i, .threads = 2, .mtp = mtp[i], .kv = kv);
        mote_session_close(all[i].alone);
        mote_session_close(all[i].shared);
        all[i].shared = session_of(m, .context = CONTEXT, .runner = r, .mtp = mtp[i]);
        all[i].alone = session_of(m, .context = CONTEXT, .threads = 2, .mtp = mtp[i], .kv = kv);
    }
    mote_runner_close(r);                                   /* its sessions keep it */
    for (int round = 0; round < rounds; round++) {
        pair *p = &all[below(SESSIONS)];
        const char *what = do_both(p, vocab);
        if (!below(3)) compare_pair(&all[below(SESSIONS)], what);
    }
    for (int i = 0; i < SESSIONS; i++) {
        compare_pair(&all[i], "everything");
        close_pair(&all[i]);
    }
    mote_close(m);
}

/* ---- Threads ---------------------------------------------------------------------------------------------------------- */

typedef struct talker {
    mote_session *s;
    int32_t ids[32];
    int number;
} talker;

static void *talk(void *user) {
    talker *t = (talker *)user;
    mote_sampling sampling = {.temperature = 0.7f, .top_k = 20, .seed = (uint64_t)t->number};
    int32_t prompt[60], *to = t->ids;
    mote_error error;
    mote_result r;
    for (int i = 0; i < 60; i++) prompt[i] = (t->number * 31 + i * 7) % 100;
    mote_generation g = {.size = sizeof g, .sampling = &sampling, .max_tokens = 32, .on_token = keep_token, .user = &to};
    if (!mote_feed(t->s, prompt, 60, &error)) (void)mote_generate(t->s, &g, &r, &error);
    return NULL;
}

static void test_threads(const mote_model *m) {
    mote_runner *r = runner_of(m, .context = CONTEXT, .threads = 2);
    pthread_t threads[4];
    talker shared[4] = {0}, alone[4] = {0};
    for (int i = 0; i < 4; i++) {
        shared[i] = (talker){.s = session_of(m, .runner = r), .number = i};
        alone[i] = (talker){.s = session_of(m, .context = CONTEXT), .number = i};
        talk(&alone[i]);
    }
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, talk, &shared[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) {
        CHECK(!memcmp(shared[i].ids, alone[i].ids, sizeof alone[i].ids), "thread %d: another answer than alone", i);
        mote_session_close(shared[i].s);
        mote_session_close(alone[i].s);
    }
    mote_runner_close(r);
}

/* Answers of sessions whose callbacks dawdle, stop, step another session of the runner or close it, each in a thread; so they meet in
   changing company. What each gets is what it gets alone. */
enum { BUSY = 6, ANSWER = 20 };

typedef struct busy {
    mote_session *s, *other;     /* other: for the callbacks, NULL: none */
    int number, tokens, code;
    int32_t ids[3 * ANSWER];
    mote_result r;
} busy;

static int busy_token(void *user, int32_t id) {
    busy *b = (busy *)user;
    int32_t next;
    b->ids[b->tokens++] = id;
    if (b->number == 1) usleep(3000);
    if (b->number == 2 && b->tokens % 7 == 0) return 1;
    if (b->number == 3) mote_session_close(b->s);           /* ignored: it is busy */
    if (b->number == 4 && b->other && b->tokens < 6) CHECK(!mote_step(b->other, NULL, &next, NULL), "a step in a callback");
    if (b->number == 5 && b->tokens == 5) {
        mote_session_close(b->other);
        b->other = NULL;
    }
    return 0;
}

static void *be_busy(void *user) {
    busy *b = (busy *)user;
    int32_t ids[40];
    mote_error error;
    mote_sampling sampling = {.temperature = 0.7f, .top_k = 20, .seed = (uint64_t)b->number};
    mote_generation g = {.size = sizeof g, .sampling = &sampling, .max_tokens = test_brief ? 8 : ANSWER, .on_token = busy_token, .user = b};
    g.verify = b->number == 3;
    for (int i = 0; i < 40; i++) ids[i] = (b->number * 17 + i * 3) % 100;
    for (int k = 0; k < (test_brief ? 1 : 3) && !b->code; k++) {
        b->code = mote_feed(b->s, ids, (size_t)(40 - 13 * k), &error);
        if (!b->code) b->code = mote_generate(b->s, &g, &b->r, &error);
    }
    return NULL;
}

static void busy_open(busy *b, const mote_model *m, mote_runner *r, int number) {
    int32_t ids[] = {5, 6, 7};
    memset(b, 0, sizeof *b);
    b->number = number;
    b->s = session_of(m, .runner = r, .context = CONTEXT, .mtp = number % 4 - 1, .threads = 1);
    if (number < 4) return;
    b->other = session_of(m, .runner = r, .context = CONTEXT, .threads = 1);
    EXPECT(MOTE_OK, mote_feed(b->other, ids, 3, &failure));
}

static void test_busy_threads(const mote_model *m) {
    busy *shared = (busy *)calloc(2 * BUSY, sizeof *shared), *alone = shared + BUSY;
    mote_runner *r = runner_of(m, .context = CONTEXT, .threads = 1);
    pthread_t threads[BUSY];
    for (int i = 0; i < BUSY; i++) {
        busy_open(&shared[i], m, r, i);
        busy_open(&alone[i], m, NULL, i);
    }
    for (int i = 0; i < BUSY; i++) pthread_create(&threads[i], NULL, be_busy, &shared[i]);
    mote_runner_close(r);
    for (int i = 0; i < BUSY; i++) {
        pthread_join(threads[i], NULL);
        be_busy(&alone[i]);
        CHECK(!shared[i].code && shared[i].tokens == alone[i].tokens && !memcmp(shared[i].ids, alone[i].ids, sizeof alone[i].ids),
              "thread %d: another answer than alone: code %d, %d tokens of %d", i, shared[i].code, shared[i].tokens, alone[i].tokens);
        CHECK(shared[i].r.stop == alone[i].r.stop, "thread %d: stopped by %d, alone %d", i, shared[i].r.stop, alone[i].r.stop);
        mote_session_close(shared[i].s);
        mote_session_close(shared[i].other);
        mote_session_close(alone[i].s);
        mote_session_close(alone[i].other);
    }
    free(shared);
}

/* ---- Between the layers of a prompt ----------------------------------------------------------------------------------- */

/* Is asked between layers: how often; so late that others get their turn; from which time on it cancels, -1: never. */
typedef struct asked { int times, cancel_at; long late; } asked;

static int ask_between(void *user) {
    asked *a = (asked *)user;
    const struct timespec late = {0, a->late};
    if (a->late) nanosleep(&late, NULL);
    return a->cancel_at >= 0 && a->times++ >= a->cancel_at;
}

typedef struct stepping { mote_session *s; int steps, over; } stepping;

static void *step_on(void *user) {
    stepping *o = (stepping *)user;
    for (const int32_t id = 5; o->steps < CONTEXT && !__atomic_load_n(&o->over, __ATOMIC_ACQUIRE); o->steps++) EXPECT(MOTE_OK, mote_feed(o->s, &id, 1, &failure));
    return NULL;
}

static void check_same(mote_session *a, mote_session *b, int vocab, const char *what) {
    const float *x = mote_logits(a), *y = mote_logits(b);
    CHECK(x && y && !memcmp(x, y, (size_t)vocab * sizeof *x), "%s: logits are others than alone", what);
}

/* On the CPU others step between the layers of a prompt's block, and all say what they say alone. */
static void test_steps_between(const char *name) {
    mote_model *m = model_of(name, MOTE_WEIGHTS_ONLY);
    const mote_info *info = mote_model_info(m);
    asked late = {.cancel_at = -1, .late = 120000000};       // more than two steps take, also with sanitizers on a busy machine
    mote_runner *r = runner_of(m, .context = CONTEXT, .threads = 1);
    mote_session *reads = session_of(m, .runner = r, .callbacks = {.cancel = ask_between, .user = &late}), *alone = session_of(m, .context = CONTEXT, .threads = 1),
                 *other = session_of(m, .context = CONTEXT, .threads = 1);
    stepping steps = {.s = session_of(m, .runner = r)};
    int32_t ids[100];
    pthread_t thread;
    for (int i = 0; i < 100; i++) ids[i] = i * 7 % info->vocab_size;
    pthread_create(&thread, NULL, step_on, &steps);
    EXPECT(MOTE_OK, mote_feed(reads, ids, 100, &failure));
    __atomic_store_n(&steps.over, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    CHECK(steps.steps > info->layers / 2, "%s: %d steps between %d layers", name, steps.steps, info->layers);
    EXPECT(MOTE_OK, mote_feed(alone, ids, 100, &failure));
    for (int i = 0; i < steps.steps; i++) EXPECT(MOTE_OK, mote_feed(other, &(const int32_t){5}, 1, &failure));
    check_same(reads, alone, info->vocab_size, "a prompt");
    check_same(steps.s, other, info->vocab_size, "steps");
    mote_session_close(reads), mote_session_close(alone), mote_session_close(other), mote_session_close(steps.s);
    mote_runner_close(r);
    mote_close(m);
}

/* A prompt that is cancelled before its first block is done, wherever, changes nothing: also after an answer, whose last tokens the states lack. */
static void test_cancel_between(const char *name) {
    mote_model *m = model_of(name, MOTE_WEIGHTS_ONLY);
    const mote_info *info = mote_model_info(m);
    const mote_sampling greedy = {.temperature = 0};
    asked a = {.cancel_at = -1};
    mote_session *s = session_of(m, .context = CONTEXT, .threads = 1, .callbacks = {.cancel = ask_between, .user = &a}),
                 *reference = session_of(m, .context = CONTEXT, .threads = 1);
    int32_t ids[90], said[2][16] = {{0}};
    int at = 0, code = MOTE_ECANCELLED;
    for (int i = 0; i < 90; i++) ids[i] = (i * 11 + 3) % (info->vocab_size - 1);
    EXPECT(MOTE_OK, mote_feed(s, ids, 30, &failure));
    EXPECT(MOTE_OK, mote_feed(reference, ids, 30, &failure));
    answer_of(s, &greedy, 9, said[0]);
    answer_of(reference, &greedy, 9, said[1]);
    CHECK(!memcmp(said[0], said[1], sizeof said[0]), "%s: another answer", name);
    for (const int count = count_of(s); code == MOTE_ECANCELLED; at++) {
        a = (asked){.cancel_at = at};
        code = mote_feed(s, ids + at % 2 * 10, 80, &failure);
        if (code == MOTE_ECANCELLED) CHECK(count_of(s) == count, "%s: cancelled at %d, %d of %d tokens", name, at, count_of(s), count);
    }
    CHECK(!code && at > info->layers, "%s: code %d; %d cancels were heard of %d layers", name, code, at - 1, info->layers);
    EXPECT(MOTE_OK, mote_feed(reference, ids + (at - 1) % 2 * 10, 80, &failure));
    check_same(s, reference, info->vocab_size, name);
    a.cancel_at = -1;
    answer_of(s, &greedy, 9, said[0]);
    answer_of(reference, &greedy, 9, said[1]);
    CHECK(!memcmp(said[0], said[1], sizeof said[0]), "%s: another answer after cancels", name);
    mote_session_close(s), mote_session_close(reference);
    mote_close(m);
}

/* ---- What is refused ---------------------------------------------------------------------------------------------------- */

static void test_options(const mote_model *m) {
    mote_runner *r = runner_of(m, .context = 64, .threads = 2), *none = NULL;
    mote_session *s = NULL;
    mote_model *other = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic("tiny:fp8", &(mote_options){.device = test_device}, &other, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(m, &(mote_session_options){.runner = r, .context = 65}, &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(m, &(mote_session_options){.runner = r, .kv = MOTE_KV_FP8}, &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(m, &(mote_session_options){.runner = r, .threads = 3}, &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(m, &(mote_session_options){.runner = r, .chunk = 8192}, &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(other, &(mote_session_options){.runner = r}, &s, &failure));
    EXPECT(MOTE_EINVAL, mote_runner_open(m, &(mote_session_options){.runner = r}, &none, &failure));
    EXPECT(MOTE_EINVAL, mote_runner_open(NULL, NULL, &none, &failure));
    EXPECT(MOTE_EINVAL, mote_runner_open(m, NULL, NULL, &failure));
    CHECK(!s && !none, "nothing was opened");
    s = session_of(m, .runner = r, .threads = 2);
    CHECK(mote_context(s) == 64, "the runner's context: %d", mote_context(s));
    pid_t child = fork();
    if (!child) {                                           /* the child may only close what it has inherited */
        alarm(10);
        int32_t id = 1;
        int bad = mote_feed(s, &id, 1, NULL) != MOTE_EINVAL;
        mote_session *mine = NULL;
        bad |= mote_session_open(m, &(mote_session_options){.runner = r}, &mine, NULL) != MOTE_EINVAL;
        mote_session_close(s);
        mote_runner_close(r);
        _exit(bad);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0, "a forked child that closes a session and its runner: status 0x%x", (unsigned)status);
    mote_runner_close(r);
    mote_runner_close(NULL);
    mote_session_close(s);
    mote_close(other);
}

/* How many sessions fit, before anything is opened. */
static void test_plan(void) {
    mote_memory some, fewer;
    const mote_options o = {.device = test_device};
    EXPECT(MOTE_OK, mote_plan("models/demo", &o, &(mote_session_options){.context = 256}, &some, &failure));
    EXPECT(MOTE_OK, mote_plan("models/demo", &o, &(mote_session_options){.context = 2048}, &fewer, &failure));
    CHECK(some.runner && some.runner < some.total, "a runner of %llu bytes", (unsigned long long)some.runner);
    if (!some.available) return;
    CHECK(some.sessions > fewer.sessions && fewer.sessions > 1, "%d sessions of 256 tokens fit, %d of 2048", some.sessions, fewer.sessions);
    const double own = (double)(some.available - some.weights) / (double)(some.kv + some.state + some.scratch);
    CHECK(some.sessions > own, "%d sessions fit with one runner, %g with their own", some.sessions, own);
}

/* An answer on one session, whose callbacks use another one of the runner. */
typedef struct within { mote_session *other; int codes[3], refused; } within;

static int step_within(void *user, int32_t id) {
    within *w = (within *)user;
    int32_t next;
    w->codes[0] = mote_feed(w->other, &id, 1, &failure);
    w->codes[1] = mote_step(w->other, NULL, &next, &failure);
    return 0;
}

static void prompt_within(void *user, int done, int total) {
    within *w = (within *)user;
    int32_t id = 1;
    (void)done;
    (void)total;
    w->codes[2] = mote_feed(w->other, &id, 1, &failure);
    if (w->codes[2]) w->codes[2] = mote_step(w->other, NULL, &id, &failure);
    CHECK(w->codes[2] == MOTE_OK || w->codes[2] == MOTE_EINVAL, "in the callback of a prompt: code %d", w->codes[2]);
    w->refused += w->codes[2] == MOTE_EINVAL;
}

static void test_callbacks(const mote_model *m) {
    mote_runner *r = runner_of(m, .context = CONTEXT);
    within w = {.other = session_of(m, .runner = r)}, same = {.other = session_of(m, .context = CONTEXT)};
    int32_t next;
    mote_callbacks callbacks = {.user = &w, .prompt = prompt_within};
    mote_session *s = session_of(m, .runner = r, .callbacks = callbacks);
    int32_t ids[100];
    for (int i = 0; i < 100; i++) ids[i] = i;
    mote_generation g = {.size = sizeof g, .max_tokens = 3, .on_token = step_within, .user = &w};
    mote_result result;
    EXPECT(MOTE_OK, mote_feed(w.other, ids, 3, &failure));
    EXPECT(MOTE_OK, mote_step(w.other, NULL, &next, &failure));        /* in its log */
    EXPECT(MOTE_OK, mote_feed(s, ids, 100, &failure));
    const int32_t *tokens = mote_tokens(w.other, NULL);
    for (int i = 0; i < count_of(w.other); i++) {           /* what was refused has left it as it was */
        if (i == 3) EXPECT(MOTE_OK, mote_step(same.other, NULL, &next, &failure));
        else EXPECT(MOTE_OK, mote_feed(same.other, tokens + i, i ? 1 : 3, &failure));
        if (!i) i = 2;
    }
    compare_pair(&(pair){.shared = w.other, .alone = same.other}, "calls that were refused");
    if (!test_devices && !strcmp(test_device, "cpu"))       /* between its layers, not after them */
        CHECK(w.refused == mote_model_info(m)->layers && !w.codes[2], "in the callbacks of a prompt %d calls were refused, the last: %d", w.refused, w.codes[2]);
    EXPECT(MOTE_OK, mote_generate(s, &g, &result, &failure));
    CHECK(w.codes[0] == MOTE_OK && w.codes[1] == MOTE_OK, "in the callback of an answer: codes %d, %d", w.codes[0], w.codes[1]);
    mote_session_close(w.other);
    mote_session_close(same.other);
    mote_session_close(s);
    mote_runner_close(r);
}

int main(int argc, char **argv) {
    test_main_begin("test_runner", argc, argv);
    static const char *const names[] = {"models/demo", "tests/fixtures/families/gpt-oss-mxfp4", "tests/fixtures/families/nemotron-h",
                                        "tests/fixtures/families/gemma4", "tests/fixtures/families/deepseek-v3"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !test_devices && !strcmp(test_device, "cpu"); i++) test_steps_between(names[i]), test_cancel_between(names[i]);
    test_interleaved("tiny:fp8", test_brief ? 60 : 300, MOTE_KV_DEFAULT);
    test_interleaved("tiny:bf16", test_brief ? 40 : 150, MOTE_KV_FP8);
    test_interleaved("tiny-oss:mxfp4", test_brief ? 40 : 150, MOTE_KV_DEFAULT);
    test_interleaved("small:nvfp4", test_brief ? 10 : 40, MOTE_KV_DEFAULT);
    mote_model *demo = model_of("models/demo", MOTE_EVERYTHING);
    test_threads(demo);
    test_busy_threads(demo);
    test_options(demo);
    test_callbacks(demo);
    test_plan();
    mote_close(demo);
    return test_main_end();
}
