// Tests of what mote serve plans for several devices, whose memory is made up: replicas or a pipeline, the context, how many sessions.
// Usage: test_plans

#include "engine.h"
#include "test.h"

enum { MADE_UP = 4, GB = 1000000000 };
static double free_on[MADE_UP];            // GB of cuda:0, cuda:1, ...; 0: unknown
static double weights;                     // GB
static mote_info about;

// A session takes 1 GB for 10,000 tokens; of several devices each has its part of it, and of the weights.
static int made_up_plan(const char *dir, const mote_options *o, const mote_session_options *how, mote_memory *plan, mote_error *error) {
    const int devices = !o->devices ? 1 : 1 + (strchr(o->devices, ',') != NULL), of = o->device ? atoi(strchr(o->device, ':') + 1) : 0;
    (void)dir, (void)error;
    memset(plan, 0, sizeof *plan);
    plan->context = how->context ? how->context : 8192;
    plan->weights = (uint64_t)(weights * GB / devices);
    plan->runner = GB / 2;
    plan->kv = (uint64_t)plan->context * GB / 10000 / (uint64_t)devices;
    plan->total = plan->weights + plan->runner + plan->kv;
    plan->available = (uint64_t)(free_on[of] * GB);
    plan->sessions = plan->context_fits = -1;
    if (!plan->available) return MOTE_OK;
    const uint64_t before = plan->weights + plan->runner, left = plan->available < before ? 0 : plan->available - before;
    plan->sessions = (int)(left / plan->kv);
    plan->context_fits = (int)(left / (plan->kv / (uint64_t)plan->context));
    return MOTE_OK;
}

static int made_up_open(const char *dir, const mote_options *o, mote_model **m, mote_error *error) {
    (void)dir, (void)o, (void)error;
    *m = (mote_model *)(void *)&about;
    return MOTE_OK;
}

static const mote_info *made_up_info(const mote_model *m) {
    (void)m;
    return &about;
}

static void made_up_close(mote_model *m) {
    (void)m;
}

#define mote_plan made_up_plan
#define mote_open made_up_open
#define mote_model_info made_up_info
#define mote_close made_up_close
#define main program
#include "main.c"
#undef main

static options asked(const char *devices, int split, int parallel, int context) {
    options o = defaults();
    o.model = "there";
    o.devices = devices;
    o.split = split;
    o.parallel = parallel;
    o.context = context;
    return o;
}

static void test_choice(void) {
    static const struct { const char *devices; int split, chooses; double first, second; int count; const char *last; } cases[] = {
        {"0,1", MOTE_SPLIT_AUTO, 1, 80, 80, 2, "cuda:1"},
        {"cuda:0,cuda:1", MOTE_SPLIT_AUTO, 1, 80, 0, 2, "cuda:1"},     /* unknown */
        {"0,1", MOTE_SPLIT_AUTO, 1, 80, 20, 1, ""},                    /* too small: a pipeline */
        {"0,1", MOTE_SPLIT_AUTO, 0, 80, 80, 1, ""},
        {"0,1", MOTE_SPLIT_PIPELINE, 1, 80, 80, 1, ""},
        {"0,1", MOTE_SPLIT_TENSOR, 1, 80, 80, 1, ""},
        {"0,1", SPLIT_REPLICAS, 0, 80, 20, 2, "cuda:1"},
        {"1,0,2", MOTE_SPLIT_AUTO, 1, 80, 80, 3, "cuda:2"},
        {"1", SPLIT_REPLICAS, 1, 80, 80, 1, "cuda:1"},
        {"0,0", MOTE_SPLIT_AUTO, 1, 80, 80, 2, "cuda:0"},              /* 40 GB each */
        {"0,0", MOTE_SPLIT_AUTO, 1, 50, 80, 1, ""}};
    weights = 30;
    free_on[2] = 80;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options o = asked(cases[i].devices, cases[i].split, 0, 0);
        replicas r = {.count = 0};
        free_on[0] = cases[i].first;
        free_on[1] = cases[i].second;
        if (!CHECK(!find_replicas(&o, cases[i].chooses, &r) && r.count == cases[i].count && r.count > 0, "case %zu: %d replicas", i, r.count))
            continue;
        CHECK(!strcmp(r.device[r.count - 1], cases[i].last), "case %zu: the last on '%s'", i, r.device[r.count - 1]);
        const options last = options_of(&o, &r, r.count - 1);
        const int is_whole = !*cases[i].last;
        CHECK(is_whole ? last.devices == o.devices && last.split == o.split : !last.devices && !last.split && !strcmp(last.device, cases[i].last),
              "case %zu: what is opened", i);
    }
}

// What plan_sessions makes of two devices: *context, and the sessions; -1: it refuses.
static int planned(double first, double second, const char *devices, int parallel, int asked_for, int *context) {
    options o = asked(devices, SPLIT_REPLICAS, parallel, asked_for);
    replicas r = {.count = 0};
    session_plan plan;
    free_on[0] = first;
    free_on[1] = second;
    if (!CHECK(!find_replicas(&o, 1, &r), "no replicas")) return -1;
    plan_contexts(&o, &r);
    const int code = plan_sessions(&o, &r, &plan);
    *context = chosen_context(&o, &about);
    return code ? -1 : plan.sessions;
}

static void test_sessions(void) {
    int context, fit;
    weights = 30;
    CHECK(planned(80, 80, "0,1", 0, 8192, &context) == 32 && context == 8192, "16 in each");
    CHECK(planned(80, 36, "0,1", 0, 8192, &context) == 10, "as many as fit on the smaller one");     /* 7 eighths of 5.5 GB, of 0.82 each */
    CHECK(planned(36, 80, "0,1", 0, 8192, &context) == 10, "the other way round");
    CHECK(planned(80, 80, "0,1", 5, 8192, &context) == 5, "as many as asked for");
    CHECK(planned(80, 31.5, "0,1", 4, 8192, &context) == -1, "two of them need 1.6 GB of 1");
    CHECK(planned(80, 31.5, "0,1", 2, 8192, &context) == 2, "one of them does not");
    fit = planned(80, 80, "0,1", 16, 0, &context);
    CHECK(fit == 16 && context >= 43000 && context <= 62000, "%d sessions of %d tokens: 8 in 49.5 GB, by 8 steps", fit, context);
    fit = planned(80, 50, "0,1", 16, 0, &context);
    CHECK(fit == 16 && context >= 17000 && context <= 24400, "%d sessions of %d tokens: 8 in 19.5 GB", fit, context);
    fit = planned(120, 80, "0,0", 4, 0, &context);
    CHECK(fit == 4 && context >= 100000 && context <= 131072, "%d sessions of %d tokens: 2 in 29.5 GB, twice", fit, context);
    CHECK(planned(80, 80, "0,1", 1, 0, &context) == -1, "two replicas of one session");
    CHECK(planned(80, 80, "0,1", 129, 0, &context) == -1, "more than a runner has");
}

static void test_dealing(void) {
    for (int count = 1; count <= 5; count++)
        for (int sessions = count; sessions < 20; sessions++) {
            int sum = 0;
            for (int i = 0; i < count; i++) {
                const int n = sessions_of(sessions, count, i);
                CHECK(n == sessions / count || n == sessions / count + 1, "%d of %d in %d of %d", n, sessions, i, count);
                sum += n;
            }
            CHECK(sum == sessions, "%d of %d in %d", sum, sessions, count);
        }
}

int main(int argc, char **argv) {
    test_main_begin("plans", argc, argv);
    about.device = "cuda:0 made up";
    test_choice();
    test_sessions();
    test_dealing();
    return test_main_end();
}
