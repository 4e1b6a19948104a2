/* cpu/layout.c: one block of memory, dealt out part by part. Laying out without a base only counts, which is how memory is
   planned before it is taken. */

enum { CACHE_LINE = 64 };        /* bytes */

typedef struct layout {
    float *base;                 /* at the start of a cache line: vectors that straddle two lines cost twice */
    size_t used, alignment;      /* floats: dealt out; everything is given a multiple of */
} layout;

static layout layout_from(float *base) {
    layout l = {base, 0, CACHE_LINE / sizeof(float)};
    return l;
}

/* The first cache line that starts within `memory`, which has CACHE_LINE bytes more than are dealt out. */
static float *layout_base(void *memory) {
    return (float *)(((uintptr_t)memory + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
}

/* Takes so many floats; NULL while counting. */
static float *layout_alloc(layout *l, size_t floats) {
    float *at = l->base ? l->base + l->used : NULL;
    l->used += (floats + l->alignment - 1) / l->alignment * l->alignment;
    return at;
}
