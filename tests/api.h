// api.h: what tests of the library's API share: codes and messages, opening models and sessions, sessions as bytes.
// After engine.h or engine.cu.

#ifndef MOTE_TEST_API_H
#define MOTE_TEST_API_H

#include "engine.h"
#include "diagnose/diagnose.h"
#include "test.h"

#include <math.h>

// ---- Codes ----------------------------------------------------------------------------------------------------------

static mote_error failure;       // of the last call given to EXPECT

// The call returns `want` (or `other`), and fills the error then and only then, with one line.
static inline void expect(int want, int other, int code, const char *file, int line, const char *call) {
    size_t n = strnlen(failure.message, sizeof failure.message);
    const char *said = code ? failure.message : "";
    test_check(code == want || code == other, file, line, "%s is %d, expected %d: %s", call, code, want, said);
    if (!code) return;
    test_check(failure.code == code, file, line, "%s: error code %d", call, failure.code);
    test_check(n > 0 && n < sizeof failure.message && !strchr(said, '\n'), file, line, "%s: message", call);
}

#define EXPECT_EITHER(a, b, call) (memset(&failure, 0, sizeof failure), expect(a, b, call, __FILE__, __LINE__, #call))
#define EXPECT(want, call) EXPECT_EITHER(want, want, call)

// ---- Models and sessions: what cannot be opened ends the program ------------------------------------------------------

static inline mote_model *model_on(const char *device, const char *dir, int parts) {
    mote_options o;
    memset(&o, 0, sizeof o);
    o.parts = parts;
    o.device = device;
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open(dir, &o, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

// On the devices of --devices together; what so many ranks do not divide is on the first one.
static inline mote_model *model_of_several(const char *dir, int parts) {
    mote_options o;
    mote_model *m = NULL;
    memset(&o, 0, sizeof o);
    o.parts = parts;
    o.devices = test_devices;
    o.split = strcmp(test_split, "tensor") ? MOTE_SPLIT_PIPELINE : MOTE_SPLIT_TENSOR;
    const int code = mote_open(dir, &o, &m, &failure);
    if (o.split == MOTE_SPLIT_TENSOR && code == MOTE_EUNSUPPORTED) {
        test_skip(failure.message);
        return model_on(test_device, dir, parts);
    }
    CHECK(!code, "%s on %s: %s", dir, test_devices, failure.message);
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

static inline mote_model *model_of(const char *dir, int parts) {
    const int alone = !test_devices || parts == MOTE_TEXT_ONLY || parts == MOTE_DESCRIPTION;
    return alone ? model_on(test_device, dir, parts) : model_of_several(dir, parts);
}

static inline mote_session *session_with(const mote_model *m, const mote_session_options *o) {
    mote_session *s = NULL;
    EXPECT(MOTE_OK, mote_session_open(m, o, &s, &failure));
    if (!s) exit(test_main_end() ? 1 : 2);
    return s;
}

// session_of(m, .context = 64, .chunk = 3): the options as in mote_session_options
#define session_of(m, ...) session_with(m, &(mote_session_options){__VA_ARGS__})

static inline mote_checkpoint *checkpoint_of(const mote_session *s) {
    mote_checkpoint *c = NULL;
    EXPECT(MOTE_OK, mote_checkpoint_take(s, &c, &failure));
    return c;
}

// ---- What a session holds -------------------------------------------------------------------------------------------

static inline int count_of(const mote_session *s) {
    size_t n = 0;
    mote_tokens(s, &n);
    return (int)n;
}

// A whole session as bytes; free() them.
static inline char *session_bytes(const mote_session *s, size_t *size) {
    *size = 0;
    EXPECT(MOTE_EINVAL, mote_save(s, NULL, 0, size, &failure));
    char *bytes = (char *)allocate(*size);
    EXPECT(MOTE_OK, mote_save(s, bytes, *size, size, &failure));
    return bytes;
}

// Is the session what it was when `bytes` were taken?
static inline int session_is(const mote_session *s, const char *bytes, size_t size) {
    size_t n;
    char *now = session_bytes(s, &n);
    int same = n == size && !memcmp(now, bytes, n);
    free(now);
    return same;
}

static inline int same_logits(const mote_session *s, const float *want, int vocab) {
    const float *got = mote_logits(s);
    return got && want && !memcmp(got, want, (size_t)vocab * sizeof *want);
}

// The root mean square of a - b in standard deviations of b; infinite for what is no number.
static inline double off(const float *a, const float *b, size_t n) {
    double sum = 0, mean = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        mean += (double)b[i] / (double)n;
        square += (double)b[i] * b[i] / (double)n;
    }
    double result = sqrt(sum / (double)n / (square - mean * mean));
    return result >= 0 ? result : INFINITY;
}

static inline int best_of(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

#endif
