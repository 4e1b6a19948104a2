// test.h: the harness of the C tests. A test file includes it once, and ends main with `return test_main_end();`.

#ifndef MOTE_TEST_H
#define MOTE_TEST_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *test_name = "test", *test_data, *test_device = "cpu", *test_devices, *test_split = "pipeline";
static int test_passed, test_failed, test_skipped;

// Under tools that take ten to a hundred times as long (-DBRIEF, from the Makefile, or --brief) a test that repeats itself,
// over checkpoints or random numbers, does no more than it takes to run all of the code.
#ifdef BRIEF
static int test_brief = 1;
#else
static int test_brief;
#endif

// Call first: NAME is for the summary. Arguments: [--device NAME | --devices NAME,NAME... [--split tensor]] [--brief] [DATA [MORE...]].
// DATA is the unpacked data folder, "" for none. With --devices, models that a test opens with tests/api.h are shared by these, as a
// pipeline or by ranks; test_device is then the first one. Returns the index of the first of MORE.
static int test_main_begin(const char *name, int argc, char **argv) {
    int i = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);                     // what was said is there if the program does not end by itself
    test_name = name;
    for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
        if (!strcmp(argv[i], "--brief")) test_brief = 1;
        else if (!strcmp(argv[i], "--device") && i + 1 < argc) test_device = argv[++i];
        else if (!strcmp(argv[i], "--split") && i + 1 < argc) test_split = argv[++i];
        else if (!strcmp(argv[i], "--devices") && i + 1 < argc) {
            static char first[16];
            test_devices = argv[++i];
            snprintf(first, sizeof first, "%.*s", (int)strcspn(test_devices, ","), test_devices);
            test_device = first;
        }
    }
    test_data = i < argc && argv[i][0] ? argv[i] : NULL;
    return i + 1;
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

// Counts, on any thread; prints the place and the message (the first 40 failures) when ok is 0. Returns ok.
__attribute__((format(printf, 4, 5)))
static inline int test_check(int ok, const char *file, int line, const char *fmt, ...) {
    if (ok) {
        __atomic_add_fetch(&test_passed, 1, __ATOMIC_RELAXED);
        return 1;
    }
    if (__atomic_fetch_add(&test_failed, 1, __ATOMIC_RELAXED) < 40) {
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
static inline void *allocate(size_t bytes) {
    void *p = calloc(1, bytes + 1);
    if (!p) exit(2);
    return p;
}

#endif
