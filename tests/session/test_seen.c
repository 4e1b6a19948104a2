/* Tests of what a runner tells of its work, and of the plan of its memory. Usage: test_seen [--device NAME] */

#include "api.h"

#include <pthread.h>
#include <unistd.h>

#define DEMO "models/demo"

enum { ANSWERS = 3, TOKENS = 24 };

static mote_seen seen_of(mote_runner *r) {
    mote_seen seen;
    EXPECT(MOTE_OK, mote_runner_seen(r, &seen, &failure));
    return seen;
}

static void *answer(void *session) {
    const mote_sampling sampling = {.temperature = 1, .top_k = 20, .seed = 5};
    mote_generation g = {.size = sizeof g, .sampling = &sampling, .max_tokens = TOKENS, .raw = 1};
    mote_result result;
    mote_error error;
    long rows = mote_generate((mote_session *)session, &g, &result, &error) ? -1 : result.generated_tokens;
    return (void *)rows;
}

/* Different experts of the last pass: one row chooses two of a layer's eight, and so do rows of the same timeline; rows of others more. */
static void test_experts(const mote_model *m) {
    mote_session *s[3];
    mote_runner *r;
    mote_turn turns[3];
    double experts = -1;
    int32_t ids[3] = {40, 41, 42}, other = 900, id;
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 64, .mtp = MOTE_MTP_OFF}, &r, &failure));
    for (int i = 0; i < 3; i++) {
        EXPECT(MOTE_OK, mote_session_open(m, &(mote_session_options){.runner = r, .mtp = MOTE_MTP_OFF}, &s[i], &failure));
        EXPECT(MOTE_OK, mote_feed(s[i], i < 2 ? ids : &other, i < 2 ? 3 : 1, &failure));
        turns[i] = (mote_turn){.session = s[i]};
    }
    EXPECT(MOTE_OK, mote_step(s[2], NULL, &id, &failure));
    EXPECT(MOTE_OK, mote_distinct_experts(r, &experts, &failure));
    CHECK(experts == 2, "%g experts of one row", experts);
    EXPECT(MOTE_OK, mote_step_many(turns, 2, &failure));
    EXPECT(MOTE_OK, mote_distinct_experts(r, &experts, &failure));
    CHECK(experts == 2, "%g experts of two rows that are the same", experts);
    EXPECT(MOTE_OK, mote_step_many(turns, 3, &failure));
    EXPECT(MOTE_OK, mote_distinct_experts(r, &experts, &failure));
    CHECK(experts > 2 && experts <= 4, "%g experts of two different rows, one of them twice", experts);
    for (int i = 0; i < 3; i++) mote_session_close(s[i]);
    mote_runner_close(r);
}

/* Steps and blocks of prompts are counted, of sessions together and alone; time passes when nothing is computed. */
static void test_seen(const mote_model *m) {
    mote_session *s[ANSWERS];
    mote_runner *r;
    pthread_t thread[ANSWERS];
    int32_t ids[64], id;
    long tokens = 0;
    for (int i = 0; i < 64; i++) ids[i] = 5 + i;
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 256, .mtp = MOTE_MTP_OFF}, &r, &failure));
    mote_seen seen = seen_of(r);
    CHECK(!seen.passes && !seen.rows && !seen.prompt_tokens && !seen.busy, "something was computed");
    for (int i = 0; i < ANSWERS; i++) {
        EXPECT(MOTE_OK, mote_session_open(m, &(mote_session_options){.runner = r, .mtp = MOTE_MTP_OFF}, &s[i], &failure));
        EXPECT(MOTE_OK, mote_feed(s[i], ids, 40, &failure));
    }
    seen = seen_of(r);
    CHECK(!seen.passes && seen.prompt_tokens == 40 * ANSWERS && seen.prompt_seconds > 0, "%llu passes, %llu tokens of prompts in %g s",
          (unsigned long long)seen.passes, (unsigned long long)seen.prompt_tokens, seen.prompt_seconds);
    for (int i = 0; i < 5; i++) EXPECT(MOTE_OK, mote_step(s[0], NULL, &id, &failure));
    EXPECT(MOTE_OK, mote_feed(s[0], ids, 3, &failure));
    seen = seen_of(r);
    CHECK(seen.passes == 6 && seen.sessions == 6 && seen.rows == 8 && seen.pass_seconds > 0, "%llu passes of %llu rows", (unsigned long long)seen.passes,
          (unsigned long long)seen.rows);
    for (int i = 0; i < ANSWERS; i++) pthread_create(&thread[i], NULL, answer, s[i]);
    for (int i = 0; i < ANSWERS; i++) {
        void *got;
        pthread_join(thread[i], &got);
        tokens += (long)got;
    }
    seen = seen_of(r);
    CHECK(seen.sessions >= 6 + (uint64_t)tokens - ANSWERS && seen.sessions <= 6 + (uint64_t)tokens + ANSWERS && seen.rows == seen.sessions + 2,
          "%ld tokens of answers, %llu rows of %llu sessions", tokens, (unsigned long long)seen.rows, (unsigned long long)seen.sessions);
    CHECK(seen.passes <= seen.sessions && !seen.busy && seen.since >= 0 && seen.since < 60, "%llu passes, since %g", (unsigned long long)seen.passes,
          seen.since);
    const double before = seen.since;
    usleep(20000);
    CHECK(seen_of(r).since > before + 0.015, "no time has passed");
    EXPECT(MOTE_EINVAL, mote_runner_seen(NULL, &seen, &failure));
    EXPECT(MOTE_EINVAL, mote_runner_seen(r, NULL, &failure));
    for (int i = 0; i < ANSWERS; i++) mote_session_close(s[i]);
    mote_runner_close(r);
}

/* A long block under way is seen from another thread. */
typedef struct feeding {
    mote_session *s;
    int32_t *ids;
    int count, done;
} feeding;

static void *feed(void *user) {
    feeding *f = (feeding *)user;
    mote_error error;
    int code = mote_feed(f->s, f->ids, (size_t)f->count, &error);
    __atomic_store_n(&f->done, 1 + code, __ATOMIC_RELEASE);
    return NULL;
}

static void test_busy(const mote_model *m) {
    mote_runner *r;
    mote_session *s;
    static int32_t ids[2000];
    feeding f = {NULL, ids, 2000, 0};
    pthread_t thread;
    int busy = 0;
    for (int i = 0; i < f.count; i++) ids[i] = 5 + i % 900;
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 2048}, &r, &failure));
    EXPECT(MOTE_OK, mote_session_open(m, &(mote_session_options){.runner = r}, &s, &failure));
    f.s = s;
    pthread_create(&thread, NULL, feed, &f);
    while (!__atomic_load_n(&f.done, __ATOMIC_ACQUIRE)) {
        mote_seen seen = seen_of(r);
        busy += seen.busy && seen.since >= 0;
        CHECK(seen.since >= 0 && seen.since < 200, "since %g", seen.since);
        usleep(500);
    }
    pthread_join(thread, NULL);
    CHECK(f.done == 1 && busy > 0, "a prompt was read, code %d, and nothing was seen of it", f.done - 1);
    CHECK(seen_of(r).prompt_tokens == 2000, "%llu tokens", (unsigned long long)seen_of(r).prompt_tokens);
    mote_session_close(s);
    mote_runner_close(r);
}

int main(int argc, char **argv) {
    test_main_begin("seen", argc, argv);
    mote_model *m = model_of(DEMO, MOTE_EVERYTHING);
    test_experts(m);
    test_seen(m);
    test_busy(m);
    mote_close(m);
    return test_main_end();
}
