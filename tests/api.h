// api.h: what tests of the library's API share. Behind engine.h or engine.cu.

#ifndef MOTE_TEST_API_H
#define MOTE_TEST_API_H

#include "engine.h"
#include "test.h"

#include <string.h>

static mote_error failure;       // of the last call given to EXPECT

// The call returns `want` (or `other`), and fills the error then and only then, with one line.
static void expect(int want, int other, int code, const char *file, int line, const char *call) {
    size_t n = strnlen(failure.message, sizeof failure.message);
    const char *said = code ? failure.message : "";
    test_check(code == want || code == other, file, line, "%s is %d, expected %d: %s", call, code, want, said);
    if (!code) return;
    test_check(failure.code == code, file, line, "%s: error code %d", call, failure.code);
    test_check(n > 0 && n < sizeof failure.message && !strchr(said, '\n'), file, line, "%s: message", call);
}

#define EXPECT_EITHER(a, b, call) (memset(&failure, 0, sizeof failure), expect(a, b, call, __FILE__, __LINE__, #call))
#define EXPECT(want, call) EXPECT_EITHER(want, want, call)

// A whole session as bytes; free() them.
static inline char *session_bytes(const mote_session *s, size_t *size) {
    *size = 0;
    EXPECT(MOTE_EINVAL, mote_save(s, NULL, 0, size, &failure));
    char *bytes = (char *)room(*size);
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

#endif
