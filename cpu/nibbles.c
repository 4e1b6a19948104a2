/* cpu/nibbles.c: products of NVFP4 weights and token rows, for one level of processor, the third part of cpu/products.c.

   A token row is int8 limbs (cpu/limbs.c), so the products of a lane's eight columns have an exact sum. For each block of 128
   columns lane l of 16 adds its own to a partial sum:

       inner[l] = sum over j of value[8 l + j] X[8 l + j]  -  E2M1_ZERO sum over j of X[8 l + j]
       sum[l] += (scale[l] act_scale[l]) inner[l]

   inner[l] is exact. At the end the partial sums are added pairwise, and NVFP4's factor comes last. All of that is the same
   whatever the number of rows. A few token rows are multiplied by one or two weight rows at a time, as these lie in memory, and
   codes become values once for all of them. For many, column blocks of ROW_BLOCK weight rows become values in L1. */

enum { FOR(PARTS) = COL_BLOCK_LANES / LANES };   /* registers of LANES lanes */

/* sum[r] += part of a column block of `rows` <= CODE_ROWS weight rows . x. rows is a constant. */
LEVEL INLINE void FOR(add_part)(FOR(vec) *sum, const FOR(codes) *c, const float (*scale)[COL_BLOCK_LANES],
                                const int rows, const lane_limbs *x, int part) {
    const int at = LANES * part;
    const FOR(vec) act_scale = *(const FOR(vec) *)(x->act_scale + at);
    FOR(products) inner[CODE_ROWS];
    FOR(lane_products)(inner, c, rows, x, part);
    for (int r = 0; r < rows; r++) sum[r] += *(const FOR(vec) *)(scale[r] + at) * act_scale * inner[r];
}

/* sum[t][part][r] += n column blocks of `rows` weight rows r . x[t], for `count` <= FEW_ROWS token rows. from: the first
   weight row. Codes and scales are prefetched as they lie, each as one sequential stream. rows and count are constants. */
LEVEL INLINE void FOR(add_col_blocks)(FOR(vec) (*sum)[FOR(PARTS)][CODE_ROWS], nibble_row from, const int rows, int n,
                                      const lane_limbs *const *x, const int count) {
    const size_t ahead = bytes_ahead((size_t)rows * from.codes_below) / from.codes_below;        /* rows */
    const size_t scales_step = (size_t)rows * from.scales_below / (size_t)n;
    uintptr_t codes_ahead = (uintptr_t)from.codes + ahead * from.codes_below;
    uintptr_t scales_ahead = (uintptr_t)from.scales + ahead * from.scales_below;
    for (int s = 0; s < n; s++) {
        float scale[CODE_ROWS][COL_BLOCK_LANES] __attribute__((aligned(64)));
        __builtin_prefetch((const void *)scales_ahead);
        scales_ahead += scales_step;
        for (int r = 0; r < rows; r++, codes_ahead += COL_BLOCK / 2) __builtin_prefetch((const void *)codes_ahead);
        for (int r = 0; r < rows; r++)
            FOR(e4m3_scales)((const uint8_t *)from.scales + (size_t)r * from.scales_below, scale[r]);
        for (int part = 0; part < FOR(PARTS); part++) {
            FOR(codes) c[CODE_ROWS];
            for (int r = 0; r < rows; r++)
                c[r] = FOR(codes_at)(from.codes + (size_t)r * from.codes_below + 4 * LANES * part);
            for (int t = 0; t < count; t++)
                FOR(add_part)(sum[t][part], c, (const float (*)[COL_BLOCK_LANES])scale, rows, &x[t][s], part);
        }
        nibble_row_next(&from);
    }
}

/* sum[t][0..rows) = weight rows . x[t]: whole column blocks of all, and then of each what is less than one. rows, count and f are
   constants. */
LEVEL INLINE void FOR(add_rows)(float (*sum)[COL_BLOCK_LANES], nibble_row from, nibble_row end, int cols, const int rows,
                                const lane_limbs *const *x, const int count) {
    const int whole = cols / COL_BLOCK, left = cols % COL_BLOCK;
    FOR(vec) partial[FEW_ROWS][FOR(PARTS)][CODE_ROWS];
    const lane_limbs *last[FEW_ROWS];
    for (int t = 0; t < count; t++) {
        last[t] = x[t] + whole;
        for (int part = 0; part < FOR(PARTS); part++)
            for (int r = 0; r < rows; r++) partial[t][part][r] = (FOR(vec)){0};
    }
    if (whole) FOR(add_col_blocks)(partial, from, rows, whole, x, count);
    if (left) {
        row_ends copy;
        FOR(add_col_blocks)(partial, nibble_row_ends(end, rows, left, &copy), rows, 1, last, count);
    }
    for (int t = 0; t < count; t++)
        for (int part = 0; part < FOR(PARTS); part++)
            for (int r = 0; r < rows; r++) *(FOR(vec) *)(sum[t * ROW_BLOCK + r] + LANES * part) = partial[t][part][r];
}

/* The same for all weight rows of a block, of which AVX-512 takes two together: they share the loads of limbs. */
LEVEL INLINE void FOR(add_block)(float (*sum)[ROW_BLOCK][COL_BLOCK_LANES], const matrix *w, int row, int rows,
                                 const lane_limbs *const *x, const int count) {
    enum { TOGETHER = LANES < COL_BLOCK_LANES ? 1 : 4 };
    const nibble_row first = nibble_row_at(w, row, 0), end = nibble_row_at(w, row, w->cols / COL_BLOCK);
    for (int r = 0, n; r < rows; r += n) {
        const nibble_row from = nibble_row_below(first, r), last = nibble_row_below(end, r);
        n = rows - r < TOGETHER ? 1 : TOGETHER;
        if (n == 1) FOR(add_rows)(sum[0] + r, from, last, w->cols, 1, x, count);
        else FOR(add_rows)(sum[0] + r, from, last, w->cols, TOGETHER, x, count);
    }
}

/* The same for any number of token rows up to FEW_ROWS. */
LEVEL INLINE void FOR(add_few)(float (*sum)[ROW_BLOCK][COL_BLOCK_LANES], const matrix *w, int row, int rows,
                               const lane_limbs *const *x, int count) {
    if (count == 1) FOR(add_block)(sum, w, row, rows, x, 1);
    else if (count == 2) FOR(add_block)(sum, w, row, rows, x, 2);
    else if (count == 3) FOR(add_block)(sum, w, row, rows, x, 3);
    else FOR(add_block)(sum, w, row, rows, x, FEW_ROWS);
}

/* Column blocks of ROW_BLOCK weight rows as values. */
typedef struct FOR(col_block_tile) {
    FOR(codes) codes[MANY_COL_BLOCKS][FOR(PARTS)][ROW_BLOCK];
    float scale[MANY_COL_BLOCKS][ROW_BLOCK][COL_BLOCK_LANES];
} __attribute__((aligned(64))) FOR(col_block_tile);

/* sum[r..r+CODE_ROWS) += so many rows' n column blocks . x. */
LEVEL INLINE void FOR(add_tile_rows)(float (*sum)[COL_BLOCK_LANES], const FOR(col_block_tile) *tile, int r, int n,
                                     const lane_limbs *x) {
    for (int part = 0; part < FOR(PARTS); part++) {
        FOR(vec) partial[CODE_ROWS];
        for (int i = 0; i < CODE_ROWS; i++) partial[i] = *(const FOR(vec) *)(sum[r + i] + LANES * part);
        for (int s = 0; s < n; s++)
            FOR(add_part)(partial, &tile->codes[s][part][r], &tile->scale[s][r], CODE_ROWS, &x[s], part);
        for (int i = 0; i < CODE_ROWS; i++) *(FOR(vec) *)(sum[r + i] + LANES * part) = partial[i];
    }
}

/* `rows` weight rows' n column blocks from `first` on as values. */
LEVEL INLINE void FOR(unpack_col_blocks)(FOR(col_block_tile) *tile, const matrix *w, int row, int rows, int first, int n) {
    const nibble_row top = nibble_row_at(w, row, first);
    for (int r = 0; r < rows; r++) {
        nibble_row from = nibble_row_below(top, r);
        for (int s = 0; s < n; s++) {
            const int cols = w->cols - (first + s) * COL_BLOCK;
            row_ends copy;
            if (cols < COL_BLOCK) from = nibble_row_ends(from, 1, cols, &copy);
            FOR(e4m3_scales)((const uint8_t *)from.scales, tile->scale[s][r]);
            for (int part = 0; part < FOR(PARTS); part++)
                tile->codes[s][part][r] = FOR(codes_at)(from.codes + 4 * LANES * part);
            nibble_row_next(&from);
        }
    }
}

/* sum[j] = `rows` weight rows . x[j] for any number of token rows; a few of these at a time stay in L1. */
LEVEL INLINE void FOR(add_many)(float (*sum)[ROW_BLOCK][COL_BLOCK_LANES], const matrix *w, int row, int rows,
                                const lane_limbs *const *x, int count) {
    enum { L1_TOKENS = 8 };
    FOR(col_block_tile) tile;
    const int col_blocks = col_block_count(w->cols);
    memset(&tile, 0, sizeof tile);
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int first = 0, n; first < col_blocks; first += n) {
        n = col_blocks - first < MANY_COL_BLOCKS ? col_blocks - first : MANY_COL_BLOCKS;
        FOR(unpack_col_blocks)(&tile, w, row, rows, first, n);
        for (int from = 0; from < count; from += L1_TOKENS)
            for (int r = 0; r < rows; r += CODE_ROWS)
                for (int j = from; j < count && j < from + L1_TOKENS; j++)
                    FOR(add_tile_rows)(sum[j], &tile, r, n, x[j] + first);
    }
}

/* block_dots of weights that limbs of lanes are for. */
LEVEL static void FOR(lane_dots)(const matrix *w, int row, int rows, const token_limbs *const *limbs, int count,
                                 float (*y)[ROW_BLOCK]) {
    float sum[TOKEN_BATCH][ROW_BLOCK][COL_BLOCK_LANES] __attribute__((aligned(64)));
    const lane_limbs *x[TOKEN_BATCH];
    const float factor = *(const float *)w->component[FACTOR] * (0.5f * 0x1p8f);
    for (int j = 0; j < count; j++) x[j] = row_lanes(limbs[j]);
    if (count <= FEW_ROWS) FOR(add_few)(sum, w, row, rows, x, count);
    else FOR(add_many)(sum, w, row, rows, x, count);
    for (int j = 0; j < count; j++)
        for (int r = 0; r < rows; r++) y[j][r] = FOR(sum_partial)(sum[j][r], COL_BLOCK_LANES) * factor;
}

#undef LEVEL
#undef LANES
#undef TOKENS
#undef FOR
