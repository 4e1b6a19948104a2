// no_memory.h: allocations that fail. The program is linked with --wrap for each of the functions below (see the Makefile).
// Allocations are counted; that of number refuse_at fails (the first is 0; -1: none), and with refuse_rest all after it. The largest one
// is kept.

#ifndef MOTE_TEST_NO_MEMORY_H
#define MOTE_TEST_NO_MEMORY_H

#include <stddef.h>

static long allocations, refuse_at = -1;
static int refuse_rest;
static size_t largest_allocation;

static int refused(size_t size) {
    if (size > __atomic_load_n(&largest_allocation, __ATOMIC_RELAXED)) __atomic_store_n(&largest_allocation, size, __ATOMIC_RELAXED);
    long n = __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
    return refuse_at >= 0 && (n == refuse_at || (refuse_rest && n > refuse_at));
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size) { return refused(size) ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t n, size_t size) { return refused(n * size) ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *old, size_t size) { return refused(size) ? NULL : __real_realloc(old, size); }
void *__wrap_aligned_alloc(size_t alignment, size_t size) { return refused(size) ? NULL : __real_aligned_alloc(alignment, size); }

#endif
