// Every struct of options can be zero-initialised as {} and as {0}, which is the defaults. This file is C and C++: the Makefile
// builds it as both, with warnings as errors. (Of {0}, in C++, -Wextra has a warning for any struct of any library.)
//
// Usage: test_zero

#include "engine.h"

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

int main(int argc, char **argv) {
#ifdef __cplusplus
    test_main_begin("test_zero, C++", argc, argv);
#else
    test_main_begin("test_zero", argc, argv);
#endif
    test_structs();
    test_defaults();
    return test_main_end();
}
