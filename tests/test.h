// test.h: the harness of the C tests. A test file includes it once, and ends main with `return test_main_end();`.

#ifndef MOTE_TEST_H
#define MOTE_TEST_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const char *test_name = "test", *test_data;
static int test_passed, test_failed, test_skipped;

// Under tools that take ten to a hundred times as long (-DBRIEF, from the Makefile) a test that repeats itself, over
// checkpoints or random numbers, does no more than it takes to run all of the code.
#ifdef BRIEF
enum { test_brief = 1 };
#else
enum { test_brief = 0 };
#endif

// Call first: NAME is for the summary; argv[1], when given, is the unpacked data folder.
static void test_main_begin(const char *name, int argc, char **argv) {
    test_name = name;
    test_data = argc > 1 && argv[1][0] ? argv[1] : NULL;
}

// The unpacked data folder; NULL without one: skip what needs it with test_skip.
static inline const char *test_data_dir(void) {
    return test_data;
}

static inline void test_skip(const char *reason) {
    test_skipped++;
    printf("%s: skipped: %s\n", test_name, reason);
}

// Prints NAME: N passed, N failed, N skipped. Returns the exit code.
static int test_main_end(void) {
    printf("%s: %d passed, %d failed, %d skipped\n", test_name, test_passed, test_failed, test_skipped);
    return test_failed ? 1 : 0;
}

// Counts; prints the place and the message (the first 40 failures) when ok is 0. Returns ok.
__attribute__((format(printf, 4, 5)))
static inline int test_check(int ok, const char *file, int line, const char *fmt, ...) {
    if (ok) {
        test_passed++;
        return 1;
    }
    if (test_failed++ < 40) {
        va_list args;
        va_start(args, fmt);
        printf("%s:%d: failed: ", file, line);
        vprintf(fmt, args);
        printf("\n");
        va_end(args);
    }
    return 0;
}

#define CHECK(condition, ...) test_check((condition) != 0, __FILE__, __LINE__, __VA_ARGS__)

// The same numbers in every run.
static inline uint32_t random_bits(void) {
    static uint64_t state = 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state * 0x2545f4914f6cdd1du) >> 32);
}

// From low to high, both included.
static inline int random_int(int low, int high) {
    return low + (int)(random_bits() % (uint32_t)(high - low + 1));
}

// Zeroed memory; free() it.
static inline void *room(size_t bytes) {
    void *p = calloc(1, bytes + 1);
    if (!p) exit(2);
    return p;
}

#endif
