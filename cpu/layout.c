/* cpu/layout.c: one block of memory, dealt out piece by piece. Laying out without a base only counts, which is how memory is
   planned before it is taken. */

typedef struct layout { float *base; size_t used; } layout;            /* floats */

/* Room for so many floats, at a 64-byte boundary; NULL while counting. */
static float *layout_alloc(layout *l, size_t floats) {
    float *at = l->base ? l->base + l->used : NULL;
    l->used += (floats + 15) / 16 * 16;
    return at;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}
