/* cpu/layout.c: one block of memory, dealt out piece by piece. Laying out without a base only counts, which is how memory is
   planned before it is taken. */

typedef struct layout {
    float *base;
    size_t used, unit;           /* floats: dealt out; a multiple of which everything is given */
} layout;

static layout layout_from(float *base) {
    layout l = {base, 0, 16};    /* 64 bytes */
    return l;
}

/* Room for so many floats; NULL while counting. */
static float *layout_alloc(layout *l, size_t floats) {
    float *at = l->base ? l->base + l->used : NULL;
    l->used += (floats + l->unit - 1) / l->unit * l->unit;
    return at;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}
