/* cpu/products.c: weight rows times token rows, for one level of processor. kernels.cu includes this file once for each level:
   LEVEL is what its functions are compiled for, LANES the floats of a register, TOKENS the token rows whose sums fit into
   registers beside those of four weight rows, and FOR(name) the name that a function has there.

   A block is up to ROW_BLOCK rows of a weight matrix. Tile by tile its weights become floats, which stay in the L1 cache while
   all token rows use them. A sum is kept as LANES partial sums; partial sum l takes the products of columns l, l + LANES, ...,
   in this order whatever the number of rows: see cpu/matrix.c. */

typedef float FOR(vec) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* sum[j][r] += w[r] . x[j][col..col+n) for four rows r and `count` <= TOKENS rows j, a constant. n: a multiple of LANES. */
LEVEL INLINE void FOR(add_products)(float (*sum)[ROW_BLOCK][LANES], const float (*w)[TILE_COLS], const float *const *x, int col,
                                    int n, const int count) {
    FOR(vec) partial[TOKENS][4];
    const float *from[TOKENS];
    for (int j = 0; j < count; j++) {
        from[j] = x[j] + col;
        for (int r = 0; r < 4; r++) partial[j][r] = *(const FOR(vec) *)sum[j][r];
    }
    for (int i = 0; i < n; i += LANES) {
        FOR(vec) weights[4];
        for (int r = 0; r < 4; r++) weights[r] = *(const FOR(vec) *)(w[r] + i);
        for (int j = 0; j < count; j++) {
            FOR(vec) token = *(const FOR(vec) *)(from[j] + i);
            for (int r = 0; r < 4; r++) partial[j][r] += weights[r] * token;
        }
    }
    for (int j = 0; j < count; j++)
        for (int r = 0; r < 4; r++) *(FOR(vec) *)sum[j][r] = partial[j][r];
}

/* The same for any number of token rows, and `rows` weight rows, a multiple of four. */
LEVEL static void FOR(add_tile)(float (*sum)[ROW_BLOCK][LANES], const float (*w)[TILE_COLS], int rows, const float *const *x,
                                int count, int col, int n) {
    for (int j = 0; j < count; j += TOKENS)
        for (int r = 0; r < rows; r += 4) {
            float (*to)[ROW_BLOCK][LANES] = (float (*)[ROW_BLOCK][LANES])sum[j][r];
            switch (count - j) {
                case 1: FOR(add_products)(to, w + r, x + j, col, n, 1); break;
                case 2: FOR(add_products)(to, w + r, x + j, col, n, 2); break;
#if TOKENS > 4
                case 3: FOR(add_products)(to, w + r, x + j, col, n, 3); break;
                case 4: FOR(add_products)(to, w + r, x + j, col, n, 4); break;
                case 5: FOR(add_products)(to, w + r, x + j, col, n, 5); break;
#elif TOKENS > 3
                case 3: FOR(add_products)(to, w + r, x + j, col, n, 3); break;
#endif
                default: FOR(add_products)(to, w + r, x + j, col, n, TOKENS); break;
            }
        }
}

/* The last n < LANES columns, with zeros behind them. */
LEVEL static void FOR(add_last)(float (*sum)[ROW_BLOCK][LANES], const matrix *w, int row, int rows, const float *const *x, int count,
                                int n) {
    float tile[ROW_BLOCK][TILE_COLS] __attribute__((aligned(64))), tokens[TOKEN_BATCH][LANES];
    const float *padded[TOKEN_BATCH];
    for (int r = 0; r < rows; r++) {
        memset(tile[r], 0, LANES * sizeof(float));
        matrix_floats(w, row + r < w->rows ? row + r : w->rows - 1, w->cols - n, n, tile[r]);
    }
    for (int j = 0; j < count; j++) {
        memset(tokens[j], 0, sizeof tokens[j]);
        memcpy(tokens[j], x[j] + w->cols - n, (size_t)n * sizeof(float));
        padded[j] = tokens[j];
    }
    FOR(add_tile)(sum, (const float (*)[TILE_COLS])tile, rows, padded, count, 0, LANES);
}

/* The sum of the partial sums, pairwise. */
LEVEL INLINE float FOR(sum_partial)(const float *partial) {
    quarter_lanes sum = *(const quarter_lanes *)partial;
    if (LANES == 8) sum += *(const quarter_lanes *)(partial + 4);
    if (LANES == 16)
        sum = (sum + *(const quarter_lanes *)(partial + 4)) +
              (*(const quarter_lanes *)(partial + 8) + *(const quarter_lanes *)(partial + 12));
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

LEVEL static void FOR(block_dots)(const matrix *w, int row, int rows, const float *const *x, int count, float (*y)[ROW_BLOCK]) {
    float tile[ROW_BLOCK][TILE_COLS] __attribute__((aligned(64))), sum[TOKEN_BATCH][ROW_BLOCK][LANES] __attribute__((aligned(64)));
    int last = w->cols % LANES, fours = (rows + 3) / 4 * 4;
    memset(sum, 0, (size_t)count * sizeof *sum);
    weight_row from[ROW_BLOCK];
    for (int r = 0; r < fours; r++) from[r] = matrix_row(w, row + r < w->rows ? row + r : w->rows - 1);
    for (int col = 0, n; col < w->cols - last; col += n) {
        n = w->cols - last - col < TILE_COLS ? w->cols - last - col : TILE_COLS;
        for (int r = 0; r < fours; r++) matrix_row_floats(w, &from[r], col, n, tile[r]);
        FOR(add_tile)(sum, (const float (*)[TILE_COLS])tile, fours, x, count, col, n);
    }
    if (last) FOR(add_last)(sum, w, row, fours, x, count, last);
    for (int j = 0; j < count; j++)
        for (int r = 0; r < rows; r++) y[j][r] = FOR(sum_partial)(sum[j][r]);
}

#undef LEVEL
#undef LANES
#undef TOKENS
#undef FOR
