/* cpu/nibbles.c: products of weights of four bits and token rows, for one level of processor, behind cpu/products.c.

   A token row is digits (cpu/digits.c), so the products of a lane's eight columns have an exact sum. For each stretch of 128
   columns lane l of 16 adds its own to a partial sum:

       inner[l] = sum over j of value[8 l + j] X[8 l + j]  -  zero[l] sum over j of X[8 l + j]       exactly
       sum[l] += (scale[l] unit[l]) inner[l]

   At the end the partial sums are added pairwise, and NVFP4's factor comes last. All of that is the same whatever the number of
   rows. A few token rows are multiplied weight row behind weight row, as these lie in memory, and codes become values once for
   all of them. For many, stretches of ROW_BLOCK weight rows become values in L1. */

enum { FOR(PARTS) = STRETCH_LANES / LANES };     /* registers of LANES lanes */

LEVEL INLINE void FOR(lane_scales)(const nibble_row *from, float *scale, float *zero, const enum format f) {
    if (f == FORMAT_NVFP4) FOR(e4m3_scales)((const uint8_t *)(const void *)from->scales, scale);
    else FOR(word_scales)((const uint32_t *)(const void *)from->scales, from->shift, scale, zero);
}

/* Part of a stretch's inner sums. f is a constant. */
LEVEL INLINE FOR(vec) FOR(inner_sums)(FOR(codes) c, const token_digits *x, const float *zero, int part, const enum format f) {
    const FOR(vec) products = FOR(lane_products)(c, x, part), sum = *(const FOR(vec) *)(x->sum + LANES * part);
    if (f == FORMAT_NVFP4) return FOR(minus_product)(products, (FOR(vec)){0} + (float)E2M1_ZERO, sum);
    return FOR(minus_product)(products, *(const FOR(vec) *)(zero + LANES * part), sum);
}

/* sum[t] += a weight row's n stretches . x[t], for `count` <= FEW_TOKENS token rows. count and f are constants. */
LEVEL INLINE void FOR(add_stretches)(FOR(vec) (*sum)[FOR(PARTS)], nibble_row from, int n, const token_digits *const *x,
                                     const int count, const enum format f) {
    for (int s = 0; s < n; s++) {
        float scale[STRETCH_LANES] __attribute__((aligned(64))), zero[STRETCH_LANES] __attribute__((aligned(64)));
        FOR(lane_scales)(&from, scale, zero, f);
        __builtin_prefetch((const void *)((uintptr_t)from.codes + NIBBLES_AHEAD));
        __builtin_prefetch((const void *)((uintptr_t)from.scales + NIBBLES_AHEAD / 8));
        for (int part = 0; part < FOR(PARTS); part++) {
            const FOR(codes) c = FOR(codes_at)(from.codes + 4 * LANES * part, f);
            for (int t = 0; t < count; t++) {
                const FOR(vec) unit = *(const FOR(vec) *)(x[t][s].unit + LANES * part);
                sum[t][part] += *(const FOR(vec) *)(scale + LANES * part) * unit *
                                FOR(inner_sums)(c, &x[t][s], zero, part, f);
            }
        }
        nibble_row_next(&from);
    }
}

/* The same for all columns of `rows` weight rows: whole stretches of them, and then what is less than one. */
LEVEL INLINE void FOR(add_rows)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const matrix *w, int row, int rows,
                                const token_digits *const *x, const int count, const enum format f) {
    const int whole = w->cols / STRETCH, cols = w->cols % STRETCH;
    const nibble_row first = nibble_row_at(w, row, 0, f), end = nibble_row_at(w, row, whole, f);
    const token_digits *last[FEW_TOKENS];
    for (int t = 0; t < count; t++) last[t] = x[t] + whole;
    for (int r = 0; r < rows; r++) {
        FOR(vec) partial[FEW_TOKENS][FOR(PARTS)];
        memset(partial, 0, sizeof partial);
        FOR(add_stretches)(partial, nibble_row_below(first, r), whole, x, count, f);
        if (cols) {
            row_end copy;
            FOR(add_stretches)(partial, nibble_row_end(nibble_row_below(end, r), cols, &copy, f), 1, last, count, f);
        }
        for (int t = 0; t < count; t++) memcpy(sum[t][r], partial[t], sizeof partial[t]);
    }
}

/* The same for any number of token rows up to FEW_TOKENS. */
LEVEL INLINE void FOR(add_few)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const matrix *w, int row, int rows,
                               const token_digits *const *x, int count, const enum format f) {
    if (count == 1) FOR(add_rows)(sum, w, row, rows, x, 1, f);
    else if (count == 2) FOR(add_rows)(sum, w, row, rows, x, 2, f);
    else if (count == 3) FOR(add_rows)(sum, w, row, rows, x, 3, f);
    else FOR(add_rows)(sum, w, row, rows, x, FEW_TOKENS, f);
}

/* Stretches of ROW_BLOCK weight rows as values. */
typedef struct FOR(stretch_tile) {
    FOR(codes) codes[MANY_STRETCHES][ROW_BLOCK][FOR(PARTS)];
    float scale[MANY_STRETCHES][ROW_BLOCK][STRETCH_LANES], zero[MANY_STRETCHES][ROW_BLOCK][STRETCH_LANES];
} __attribute__((aligned(64))) FOR(stretch_tile);

/* sum[r..r+4) += rows r..r+4 of n stretches . x. f is a constant. */
LEVEL INLINE void FOR(add_tile_rows)(float (*sum)[STRETCH_LANES], const FOR(stretch_tile) *tile, int r, int n,
                                     const token_digits *x, const enum format f) {
    for (int part = 0; part < FOR(PARTS); part++) {
        FOR(vec) partial[4];
        for (int i = 0; i < 4; i++) partial[i] = *(const FOR(vec) *)(sum[r + i] + LANES * part);
        for (int s = 0; s < n; s++) {
            const FOR(vec) unit = *(const FOR(vec) *)(x[s].unit + LANES * part);
            for (int i = 0; i < 4; i++)
                partial[i] += *(const FOR(vec) *)(tile->scale[s][r + i] + LANES * part) * unit *
                              FOR(inner_sums)(tile->codes[s][r + i][part], &x[s], tile->zero[s][r + i], part, f);
        }
        for (int i = 0; i < 4; i++) *(FOR(vec) *)(sum[r + i] + LANES * part) = partial[i];
    }
}

/* `rows` weight rows' n stretches from `first` on as values. f is a constant. */
LEVEL INLINE void FOR(unpack_stretches)(FOR(stretch_tile) *tile, const matrix *w, int row, int rows, int first, int n,
                                        const enum format f) {
    const nibble_row top = nibble_row_at(w, row, first, f);
    for (int r = 0; r < rows; r++) {
        nibble_row from = nibble_row_below(top, r);
        for (int s = 0; s < n; s++) {
            const int cols = w->cols - (first + s) * STRETCH;
            row_end copy;
            if (cols < STRETCH) from = nibble_row_end(from, cols, &copy, f);
            FOR(lane_scales)(&from, tile->scale[s][r], tile->zero[s][r], f);
            for (int part = 0; part < FOR(PARTS); part++)
                tile->codes[s][r][part] = FOR(codes_at)(from.codes + 4 * LANES * part, f);
            nibble_row_next(&from);
        }
    }
}

/* sum[j] = `rows` weight rows . x[j] for any number of token rows; a few of these at a time stay in L1. f is a constant. */
LEVEL INLINE void FOR(add_many)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const matrix *w, int row, int rows,
                                const token_digits *const *x, int count, const enum format f) {
    enum { L1_TOKENS = 8 };
    FOR(stretch_tile) tile;
    const int stretches = stretch_count(w->cols);
    memset(&tile, 0, sizeof tile);
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int first = 0, n; first < stretches; first += n) {
        n = stretches - first < MANY_STRETCHES ? stretches - first : MANY_STRETCHES;
        FOR(unpack_stretches)(&tile, w, row, rows, first, n, f);
        for (int from = 0; from < count; from += L1_TOKENS)
            for (int r = 0; r < rows; r += 4)
                for (int j = from; j < count && j < from + L1_TOKENS; j++)
                    FOR(add_tile_rows)(sum[j], &tile, r, n, x[j] + first, f);
    }
}

LEVEL static void FOR(nvfp4_sums)(const matrix *w, int row, int rows, const token_digits *const *x, int count,
                                  float (*sum)[ROW_BLOCK][STRETCH_LANES]) {
    if (count <= FEW_TOKENS) FOR(add_few)(sum, w, row, rows, x, count, FORMAT_NVFP4);
    else FOR(add_many)(sum, w, row, rows, x, count, FORMAT_NVFP4);
}

LEVEL static void FOR(int4_sums)(const matrix *w, int row, int rows, const token_digits *const *x, int count,
                                 float (*sum)[ROW_BLOCK][STRETCH_LANES]) {
    if (count <= FEW_TOKENS) FOR(add_few)(sum, w, row, rows, x, count, FORMAT_INT4);
    else FOR(add_many)(sum, w, row, rows, x, count, FORMAT_INT4);
}

/* block_dots of a matrix that nibble_order() is true of. */
LEVEL static void FOR(nibble_dots)(const matrix *w, int row, int rows, const token_digits *const *x, int count,
                                   float (*y)[ROW_BLOCK]) {
    float sum[TOKEN_BATCH][ROW_BLOCK][STRETCH_LANES] __attribute__((aligned(64)));
    const float unit = w->format == FORMAT_NVFP4 ? *(const float *)w->plane[FACTOR] * (0.5f * 0x1p8f) : 1;
    if (w->format == FORMAT_NVFP4) FOR(nvfp4_sums)(w, row, rows, x, count, sum);
    else FOR(int4_sums)(w, row, rows, x, count, sum);
    for (int j = 0; j < count; j++)
        for (int r = 0; r < rows; r++) y[j][r] = FOR(sum_partial)(sum[j][r], STRETCH_LANES) * unit;
}

#undef LEVEL
#undef LANES
#undef TOKENS
#undef FOR
