// Every struct of options can be zero-initialised as {} and as {0}, which is the defaults, and says how large it is. This file is
// C and C++: the Makefile builds it as both, with warnings as errors. (Of {0}, in C++, -Wextra has a warning for any struct of any library.)
//
// Usage: test_zero

#include "engine.h"
#include "diagnose/diagnose.h"

#include "test.h"

#define ZERO(type) { \
        static type braces = {}, zero = {0}; \
        type cleared; \
        memset((void *)&cleared, 0, sizeof cleared); \
        CHECK(!memcmp(&braces, &cleared, sizeof cleared) && !memcmp(&zero, &cleared, sizeof cleared), #type " is not zero"); \
    }

#ifdef __cplusplus
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif

static void test_structs(void) {
    ZERO(mote_error)
    ZERO(mote_callbacks)
    ZERO(mote_options)
    ZERO(mote_session_options)
    ZERO(mote_memory)
    ZERO(mote_sampling)
    ZERO(mote_bias)
    ZERO(mote_logprob)
    ZERO(mote_generation)
    ZERO(mote_embedding)
    ZERO(mote_result)
    ZERO(mote_speculation)
    ZERO(mote_measurement)
}

// And they are taken: a question with nothing but zeros.
static void test_defaults(void) {
    mote_options options = {};
    mote_session_options how = {};
    mote_generation generation = {};
    mote_sampling sampling = {};
    mote_result result = {};
    mote_error error = {};
    mote_model *model = NULL;
    mote_session *session = NULL;
    int32_t id = -1;
    options.device = test_device;
    generation.max_tokens = 3;
    CHECK(!mote_open("models/demo", &options, &model, &error), "%s", error.message);
    CHECK(!mote_session_open(model, &how, &session, &error), "%s", error.message);
    CHECK(!mote_ask(session, "Hello", &generation, &result, &error) && result.generated_tokens > 0, "%s", error.message);
    CHECK(!mote_step(session, &sampling, &id, &error) && id >= 0, "%s", error.message);
    mote_session_close(session);
    mote_close(model);
}

// A struct that a program knows with more fields, or with fewer, than the library; what a smaller size leaves out is not read.
static void test_sizes(void) {
    struct { mote_options o; char more[64]; } options;
    struct { mote_session_options o; char more[64]; } how;
    struct { mote_generation g; char more[64]; } generation;
    static const size_t wrong[] = {1, sizeof(size_t) - 1, (size_t)1 << 20, (size_t)-1};
    mote_error error = {};
    mote_memory plan;
    mote_model *model = NULL, *none = NULL;
    mote_session *session = NULL, *no_session = NULL;
    mote_result result;
    size_t read = 0;
    memset((void *)&options, 0, sizeof options);
    memset((void *)&how, 0, sizeof how);
    memset((void *)&generation, 0, sizeof generation);
    options.o.device = test_device;
    generation.g.max_tokens = 2;

    options.o.size = sizeof options;                        // newer ones
    how.o.size = sizeof how;
    generation.g.size = sizeof generation;
    CHECK(!mote_open("models/demo", &options.o, &model, &error), "%s", error.message);
    CHECK(!mote_session_open(model, &how.o, &session, &error), "%s", error.message);
    CHECK(!mote_ask(session, "Hello", &generation.g, &result, &error) && result.generated_tokens == 2, "%s", error.message);
    options.more[0] = how.more[13] = generation.more[63] = 1;
    CHECK(mote_open("models/demo", &options.o, &none, &error) == MOTE_EINVAL && strstr(error.message, "mote_options"), "%s", error.message);
    CHECK(mote_open_synthetic("tiny", &options.o, &none, &error) == MOTE_EINVAL, "%s", error.message);
    CHECK(mote_session_open(model, &how.o, &no_session, &error) == MOTE_EINVAL && strstr(error.message, "not 0"), "%s", error.message);
    CHECK(mote_plan("models/demo", &options.o, NULL, &plan, &error) == MOTE_EINVAL, "%s", error.message);
    CHECK(mote_plan("models/demo", NULL, &how.o, &plan, &error) == MOTE_EINVAL, "%s", error.message);
    CHECK(mote_plan_synthetic("tiny", &options.o, NULL, &plan, &error) == MOTE_EINVAL, "%s", error.message);
    CHECK(mote_plan_synthetic("tiny", NULL, &how.o, &plan, &error) == MOTE_EINVAL, "%s", error.message);
    CHECK(mote_plan_synthetic("tiny", NULL, NULL, NULL, &error) == MOTE_EINVAL, "%s", error.message);
    CHECK(mote_plan_synthetic("nosuch", NULL, NULL, &plan, &error) == MOTE_EINVAL && strstr(error.message, "nosuch"), "%s", error.message);
    CHECK(mote_generate(session, &generation.g, NULL, &error) == MOTE_EINVAL, "%s", error.message);
    CHECK(mote_ask(session, "Hello", &generation.g, NULL, &error) == MOTE_EINVAL, "%s", error.message);
    CHECK(mote_ask_count(session, "Hello", &generation.g, &read, NULL, &error) == MOTE_EINVAL && !read, "%s", error.message);
    CHECK(mote_generation_check(model, &generation.g, &error) == MOTE_EINVAL, "%s", error.message);
    CHECK(!mote_generation_check(model, NULL, &error), "%s", error.message);

    options.o.size = offsetof(mote_options, draft_rows);    // older ones
    how.o.size = offsetof(mote_session_options, mtp);
    generation.g.size = offsetof(mote_generation, stop);
    options.o.draft_rows = how.o.mtp = how.o.sms = generation.g.stop_count = generation.g.think = -99;
    CHECK(!mote_open("models/demo", &options.o, &none, &error), "%s", error.message);
    CHECK(!mote_plan("models/demo", &options.o, &how.o, &plan, &error), "%s", error.message);
    CHECK(!mote_plan_synthetic("tiny", NULL, NULL, &plan, NULL) && plan.weights > 1000000 && plan.total > plan.weights && plan.context == 8192,
          "%.0f bytes of weights", (double)plan.weights);
    CHECK(!mote_session_open(model, &how.o, &no_session, &error), "%s", error.message);
    CHECK(!mote_ask(session, "Hello", &generation.g, &result, &error) && result.generated_tokens == 2, "%s", error.message);
    CHECK(!mote_generation_check(model, &generation.g, &error), "%s", error.message);
    mote_session_close(no_session);
    mote_close(none);
    none = NULL;

    for (int i = 0; i < 4; i++) {                           // none
        options.o.size = how.o.size = generation.g.size = wrong[i];
        CHECK(mote_open("models/demo", &options.o, &none, &error) == MOTE_EINVAL && strstr(error.message, ".size"), "%s", error.message);
        CHECK(mote_session_open(model, &how.o, &no_session, &error) == MOTE_EINVAL, "%s", error.message);
        CHECK(mote_generate(session, &generation.g, NULL, &error) == MOTE_EINVAL, "%s", error.message);
    }
    mote_session_close(session);
    mote_close(model);
}

int main(int argc, char **argv) {
#ifdef __cplusplus
    test_main_begin("test_zero, C++", argc, argv);
#else
    test_main_begin("test_zero", argc, argv);
#endif
    test_structs();
    test_defaults();
    test_sizes();
    return test_main_end();
}
