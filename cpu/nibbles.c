/* cpu/nibbles.c: products of weights of four bits and token rows, for one level of processor, behind cpu/products.c.

   For each stretch of 128 columns, lane l of 16 sums the products of its eight columns with their codes' values, and adds that,
   times its scale, to its partial sum:

       inner[l] = sum over j of value[8 l + j] x[8 l + j]       in this order, from 0
       inner[l] += lift[l] sum over j of x[8 l + j]             INT4: the values are codes less 8; lift is 8 less the zero point
       sum[l] += scale[l] inner[l]

   At the end the partial sums are added pairwise, and NVFP4's factor comes last. That is done in the same order whatever the
   number of rows. A few token rows are multiplied weight row behind weight row, as these lie in memory, and a code becomes a
   float once for all of them. For many, a stretch of ROW_BLOCK weight rows becomes floats in L1. */

enum { FOR(PARTS) = STRETCH_LANES / LANES };     /* registers of 16 lanes */

LEVEL INLINE void FOR(lane_scales)(const void *at, int shift, float *scale, float *lift, const enum format f) {
    if (f == FORMAT_NVFP4) FOR(e4m3_scales)((const uint8_t *)at, scale);
    else FOR(word_scales)((const uint32_t *)at, shift, scale, lift);
}

/* sum[t] += a weight row's stretches . x[t], for `count` <= FEW_TOKENS token rows, whose stretches are turned. count and f are
   constants. */
LEVEL INLINE void FOR(add_stretches)(FOR(vec) (*sum)[FOR(PARTS)], nibble_row from, int n, const float *x, const int count,
                                     const enum format f) {
    for (int s = 0; s < n; s++, from.codes += STRETCH / 2) {
        float scale[STRETCH_LANES] __attribute__((aligned(64))), lift[STRETCH_LANES] __attribute__((aligned(64)));
        FOR(lane_scales)(from.scales, from.shift, scale, lift, f);
        __builtin_prefetch((const void *)((uintptr_t)from.codes + NIBBLES_AHEAD));
        __builtin_prefetch((const void *)((uintptr_t)from.scales + NIBBLES_AHEAD / 8));
        from.scales += ++from.stretch & from.mask ? 0 : from.step;
        for (int part = 0; part < FOR(PARTS); part++) {
            const FOR(codes) c = FOR(codes_at)(from.codes + 4 * LANES * part, f == FORMAT_NVFP4 ? e2m1_codes : int4_codes);
            const float *at = x + s * STRETCH_TOKEN + LANES * part;
            FOR(vec) inner[FEW_TOKENS], none;
            memset(&none, 0, sizeof none);
            for (int t = 0; t < count; t++) inner[t] = none;
            for (int j = 0; j < 8; j++) {
                const FOR(vec) value = FOR(code)(c, j);
                for (int t = 0; t < count; t++)
                    inner[t] += value * *(const FOR(vec) *)(at + t * TURNED_ROOM + STRETCH_LANES * j);
            }
            for (int t = 0; t < count; t++) {
                if (f == FORMAT_INT4)
                    inner[t] += *(const FOR(vec) *)(lift + LANES * part) * *(const FOR(vec) *)(at + t * TURNED_ROOM + STRETCH);
                sum[t][part] += *(const FOR(vec) *)(scale + LANES * part) * inner[t];
            }
        }
    }
}

/* The same for `rows` weight rows: whole stretches of them, and then what is less than one, if x is turned that far. */
LEVEL INLINE void FOR(add_rows)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const matrix *w, int row, int rows, int stretch,
                                const float *x, const int count, const enum format f) {
    const int whole = w->cols / STRETCH - stretch, n = whole < TURNED_STRETCHES ? whole : TURNED_STRETCHES;
    const int cols = n < TURNED_STRETCHES ? w->cols % STRETCH : 0;
    for (int r = 0; r < rows; r++) {
        FOR(vec) partial[FEW_TOKENS][FOR(PARTS)];
        for (int t = 0; t < count; t++) memcpy(partial[t], sum[t][r], sizeof partial[t]);
        nibble_row from = nibble_row_at(w, row + r, stretch, f);
        FOR(add_stretches)(partial, from, n, x, count, f);
        if (cols) {
            row_end end;
            from = nibble_row_end(nibble_row_at(w, row + r, stretch + n, f), cols, &end, f);
            FOR(add_stretches)(partial, from, 1, x + n * STRETCH_TOKEN, count, f);
        }
        for (int t = 0; t < count; t++) memcpy(sum[t][r], partial[t], sizeof partial[t]);
    }
}

/* The same for any number of token rows up to FEW_TOKENS. */
LEVEL INLINE void FOR(add_few)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const matrix *w, int row, int rows, int stretch,
                               const float *x, int count, const enum format f) {
    if (count == 1) FOR(add_rows)(sum, w, row, rows, stretch, x, 1, f);
    else if (count == 2) FOR(add_rows)(sum, w, row, rows, stretch, x, 2, f);
    else if (count == 3) FOR(add_rows)(sum, w, row, rows, stretch, x, 3, f);
    else FOR(add_rows)(sum, w, row, rows, stretch, x, FEW_TOKENS, f);
}

/* Stretches of ROW_BLOCK weight rows as floats. */
typedef struct FOR(stretch_tile) {
    float value[ROW_BLOCK][STRETCH], scale[ROW_BLOCK][STRETCH_LANES], lift[ROW_BLOCK][STRETCH_LANES];
} __attribute__((aligned(64))) FOR(stretch_tile);

/* sum[j][r..r+4) += rows r..r+4 of the tile . x[j], for `count` <= TOKENS token rows, a constant. */
LEVEL INLINE void FOR(add_tile_products)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const FOR(stretch_tile) *tile, int r,
                                         const float (*x)[STRETCH_TOKEN], int lifted, const int count) {
    for (int part = 0; part < FOR(PARTS); part++) {
        FOR(vec) inner[TOKENS][4], none;
        memset(&none, 0, sizeof none);
        for (int j = 0; j < count; j++)
            for (int i = 0; i < 4; i++) inner[j][i] = none;
        for (int at = LANES * part; at < STRETCH; at += STRETCH_LANES) {
            FOR(vec) weights[4];
            for (int i = 0; i < 4; i++) weights[i] = *(const FOR(vec) *)(tile->value[r + i] + at);
            for (int j = 0; j < count; j++) {
                const FOR(vec) token = *(const FOR(vec) *)(x[j] + at);
                for (int i = 0; i < 4; i++) inner[j][i] += weights[i] * token;
            }
        }
        for (int j = 0; j < count; j++)
            for (int i = 0; i < 4; i++) {
                FOR(vec) *to = (FOR(vec) *)(sum[j][r + i] + LANES * part);
                if (lifted)
                    inner[j][i] += *(const FOR(vec) *)(tile->lift[r + i] + LANES * part) *
                                   *(const FOR(vec) *)(x[j] + STRETCH + LANES * part);
                *to += *(const FOR(vec) *)(tile->scale[r + i] + LANES * part) * inner[j][i];
            }
    }
}

/* The same for n tiles, all their rows and any number of token rows; x[s]: those of tile s. */
LEVEL static void FOR(add_many)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const FOR(stretch_tile) *tile, int n, int rows,
                                const float (*x)[TOKEN_BATCH][STRETCH_TOKEN], int lifted, int count) {
    for (int j = 0; j < count;) {
        const int step = count - j >= TOKENS ? TOKENS : 1;
        for (int r = 0; r < rows; r += 4)
            for (int s = 0; s < n; s++)
                if (step == TOKENS) FOR(add_tile_products)(sum + j, &tile[s], r, x[s] + j, lifted, TOKENS);
                else FOR(add_tile_products)(sum + j, &tile[s], r, x[s] + j, lifted, 1);
        j += step;
    }
}

/* A token row's stretch at `col`, turned; zeros behind the last column. */
LEVEL INLINE void FOR(turn_stretch)(const float *x, int col, int cols, float *to) {
    float last[STRETCH];
    if (cols - col >= STRETCH) {
        FOR(turn_token)(x + col, to);
        return;
    }
    memset(last, 0, sizeof last);
    memcpy(last, x + col, (size_t)(cols - col) * sizeof *last);
    FOR(turn_token)(last, to);
}

LEVEL static void FOR(nibble_few)(const matrix *w, int row, int rows, const float *const *x, int count,
                                  float (*sum)[ROW_BLOCK][STRETCH_LANES]) {
    float turned[FEW_TOKENS * TURNED_ROOM] __attribute__((aligned(64)));
    for (int first = 0; first * STRETCH < w->cols; first += TURNED_STRETCHES) {
        for (int t = 0; t < count; t++)
            for (int s = 0; s < TURNED_STRETCHES && (first + s) * STRETCH < w->cols; s++)
                FOR(turn_stretch)(x[t], (first + s) * STRETCH, w->cols, turned + t * TURNED_ROOM + s * STRETCH_TOKEN);
        if (w->format == FORMAT_NVFP4) FOR(add_few)(sum, w, row, rows, first, turned, count, FORMAT_NVFP4);
        else FOR(add_few)(sum, w, row, rows, first, turned, count, FORMAT_INT4);
    }
}

/* Rows of a stretch as floats. f is a constant. */
LEVEL INLINE void FOR(unpack_stretches)(FOR(stretch_tile) *tile, const matrix *w, int row, int rows, int stretch,
                                        const enum format f) {
    const int cols = w->cols - stretch * STRETCH;
    for (int r = 0; r < rows; r++) {
        row_end end;
        nibble_row from = nibble_row_at(w, row + r, stretch, f);
        if (cols < STRETCH) from = nibble_row_end(from, cols, &end, f);
        FOR(lane_scales)(from.scales, from.shift, tile->scale[r], tile->lift[r], f);
        for (int part = 0; part < FOR(PARTS); part++) {
            const FOR(codes) c = FOR(codes_at)(from.codes + 4 * LANES * part, f == FORMAT_NVFP4 ? e2m1_codes : int4_codes);
            for (int j = 0; j < 8; j++) *(FOR(vec) *)(tile->value[r] + STRETCH_LANES * j + LANES * part) = FOR(code)(c, j);
        }
    }
}

LEVEL static void FOR(nibble_many)(const matrix *w, int row, int rows, const float *const *x, int count,
                                   float (*sum)[ROW_BLOCK][STRETCH_LANES]) {
    FOR(stretch_tile) tile[MANY_STRETCHES];
    float turned[MANY_STRETCHES][TOKEN_BATCH][STRETCH_TOKEN] __attribute__((aligned(64)));
    const int fours = (rows + 3) / 4 * 4, lifted = w->format == FORMAT_INT4;
    memset(tile, 0, sizeof tile);
    for (int first = 0; first * STRETCH < w->cols; first += MANY_STRETCHES) {
        int n = 0;
        for (int s = first; n < MANY_STRETCHES && s * STRETCH < w->cols; n++, s++) {
            for (int t = 0; t < count; t++) FOR(turn_stretch)(x[t], s * STRETCH, w->cols, turned[n][t]);
            if (lifted) FOR(unpack_stretches)(&tile[n], w, row, rows, s, FORMAT_INT4);
            else FOR(unpack_stretches)(&tile[n], w, row, rows, s, FORMAT_NVFP4);
        }
        FOR(add_many)(sum, tile, n, fours, (const float (*)[TOKEN_BATCH][STRETCH_TOKEN])turned, lifted, count);
    }
}

/* block_dots of a matrix that nibble_order() is true of. */
LEVEL static void FOR(nibble_dots)(const matrix *w, int row, int rows, const float *const *x, int count,
                                   float (*y)[ROW_BLOCK]) {
    float sum[TOKEN_BATCH][ROW_BLOCK][STRETCH_LANES] __attribute__((aligned(64)));
    const float unit = w->format == FORMAT_NVFP4 ? *(const float *)w->plane[FACTOR] * (0.5f * 0x1p8f) : 1;
    memset(sum, 0, (size_t)count * sizeof *sum);
    if (count <= FEW_TOKENS) FOR(nibble_few)(w, row, rows, x, count, sum);
    else FOR(nibble_many)(w, row, rows, x, count, sum);
    for (int j = 0; j < count; j++)
        for (int r = 0; r < rows; r++) y[j][r] = FOR(sum_partial)(sum[j][r], STRETCH_LANES) * unit;
}

#undef LEVEL
#undef LANES
#undef TOKENS
#undef FOR
