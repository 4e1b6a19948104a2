/* cpu/nibbles.c: products of weights of four bits and token rows, for one level of processor; part of cpu/products.c.

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

/* sum[t] += n stretches of a weight row . x[t], for `count` <= FEW_TOKENS token rows, whose stretches are turned. count and f
   are constants. */
LEVEL INLINE void FOR(add_stretches)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const nibble_row *from, int n, const float *x,
                                     const int count, const enum format f) {
    FOR(vec) partial[FEW_TOKENS][FOR(PARTS)];
    for (int t = 0; t < count; t++) memcpy(partial[t], sum[t][0], sizeof partial[t]);
    for (int s = 0; s < n; s++) {
        float scale[STRETCH_LANES] __attribute__((aligned(64))), lift[STRETCH_LANES] __attribute__((aligned(64)));
        const uint8_t *codes = from->codes + s * (STRETCH / 2);
        const char *scales = stretch_scales(from, s);
        FOR(lane_scales)(scales, from->shift, scale, lift, f);
        __builtin_prefetch((const void *)((uintptr_t)codes + NIBBLES_AHEAD));
        __builtin_prefetch((const void *)((uintptr_t)scales + NIBBLES_AHEAD / 8));
        for (int part = 0; part < FOR(PARTS); part++) {
            const FOR(codes) c = FOR(codes_at)(codes + 4 * LANES * part, f == FORMAT_NVFP4 ? e2m1_codes : int4_codes);
            const float *at = x + s * STRETCH_TOKEN + LANES * part;
            FOR(vec) inner[FEW_TOKENS];
            memset(inner, 0, sizeof inner);
            for (int j = 0; j < 8; j++) {
                const FOR(vec) value = FOR(code)(c, j);
                for (int t = 0; t < count; t++)
                    inner[t] += value * *(const FOR(vec) *)(at + t * TURNED_ROOM + STRETCH_LANES * j);
            }
            for (int t = 0; t < count; t++) {
                if (f == FORMAT_INT4)
                    inner[t] += *(const FOR(vec) *)(lift + LANES * part) * *(const FOR(vec) *)(at + t * TURNED_ROOM + STRETCH);
                partial[t][part] += *(const FOR(vec) *)(scale + LANES * part) * inner[t];
            }
        }
    }
    for (int t = 0; t < count; t++) memcpy(sum[t][0], partial[t], sizeof partial[t]);
}

/* The same for any number of token rows up to FEW_TOKENS. */
#define FEW(f)                                                                        \
    if (count == 1) FOR(add_stretches)(sum, from, n, x, 1, f);                        \
    else if (count == 2) FOR(add_stretches)(sum, from, n, x, 2, f);                   \
    else if (count == 3) FOR(add_stretches)(sum, from, n, x, 3, f);                   \
    else FOR(add_stretches)(sum, from, n, x, FEW_TOKENS, f);

LEVEL __attribute__((noinline)) static void
FOR(add_few_nvfp4)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const nibble_row *from, int n, const float *x, int count) {
    FEW(FORMAT_NVFP4)
}

LEVEL __attribute__((noinline)) static void
FOR(add_few_int4)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const nibble_row *from, int n, const float *x, int count) {
    FEW(FORMAT_INT4)
}
#undef FEW

/* A stretch of ROW_BLOCK weight rows as floats. */
typedef struct FOR(stretch_tile) {
    float value[ROW_BLOCK][STRETCH], scale[ROW_BLOCK][STRETCH_LANES], lift[ROW_BLOCK][STRETCH_LANES];
} __attribute__((aligned(64))) FOR(stretch_tile);

LEVEL INLINE void FOR(unpack_stretch)(FOR(stretch_tile) *tile, int r, const nibble_row *from, const enum format f) {
    FOR(lane_scales)(stretch_scales(from, 0), from->shift, tile->scale[r], tile->lift[r], f);
    for (int part = 0; part < FOR(PARTS); part++) {
        const FOR(codes) c = FOR(codes_at)(from->codes + 4 * LANES * part, f == FORMAT_NVFP4 ? e2m1_codes : int4_codes);
        for (int j = 0; j < 8; j++) *(FOR(vec) *)(tile->value[r] + STRETCH_LANES * j + LANES * part) = FOR(code)(c, j);
    }
}

/* sum[j][r..r+4) += rows r..r+4 of the tile . x[j], for `count` <= TOKENS token rows, a constant. */
LEVEL INLINE void FOR(add_tile_products)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const FOR(stretch_tile) *tile, int r,
                                         const float (*x)[STRETCH_TOKEN], int lifted, const int count) {
    for (int part = 0; part < FOR(PARTS); part++) {
        FOR(vec) inner[TOKENS][4];
        memset(inner, 0, sizeof inner);
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

LEVEL static void FOR(add_many)(float (*sum)[ROW_BLOCK][STRETCH_LANES], const FOR(stretch_tile) *tile, int rows,
                                const float (*x)[STRETCH_TOKEN], int lifted, int count) {
    int j = 0;
    for (; j + TOKENS <= count; j += TOKENS)
        for (int r = 0; r < rows; r += 4) FOR(add_tile_products)(sum + j, tile, r, x + j, lifted, TOKENS);
    for (; j < count; j++)
        for (int r = 0; r < rows; r += 4) FOR(add_tile_products)(sum + j, tile, r, x + j, lifted, 1);
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
    const int whole = w->cols / STRETCH, all = (w->cols + STRETCH - 1) / STRETCH;
    for (int first = 0; first < all; first += TURNED_STRETCHES) {
        const int most = first + TURNED_STRETCHES, end = most < all ? most : all, last = most < whole ? most : whole;
        for (int t = 0; t < count; t++)
            for (int s = first; s < end; s++)
                FOR(turn_stretch)(x[t], s * STRETCH, w->cols, turned + t * TURNED_ROOM + (s - first) * STRETCH_TOKEN);
        nibble_row from, less;
        nibble_row_at(w, row, first, &from);
        for (int r = 0; r < rows; r++, nibble_row_below(&from)) {
            float (*to)[ROW_BLOCK][STRETCH_LANES] = (float (*)[ROW_BLOCK][STRETCH_LANES])sum[0][r];
            if (w->format == FORMAT_NVFP4) FOR(add_few_nvfp4)(to, &from, last - first, turned, count);
            else FOR(add_few_int4)(to, &from, last - first, turned, count);
            if (last == end) continue;
            row_end room;
            nibble_row_at(w, row + r, last, &less);
            nibble_row_end(&less, w->format, w->cols % STRETCH, &less, &room);
            if (w->format == FORMAT_NVFP4) FOR(add_few_nvfp4)(to, &less, 1, turned + (last - first) * STRETCH_TOKEN, count);
            else FOR(add_few_int4)(to, &less, 1, turned + (last - first) * STRETCH_TOKEN, count);
        }
    }
}

LEVEL static void FOR(nibble_many)(const matrix *w, int row, int rows, const float *const *x, int count,
                                   float (*sum)[ROW_BLOCK][STRETCH_LANES]) {
    FOR(stretch_tile) tile;
    float turned[TOKEN_BATCH][STRETCH_TOKEN] __attribute__((aligned(64)));
    const int fours = (rows + 3) / 4 * 4, lifted = w->format == FORMAT_INT4;
    memset(&tile, 0, sizeof tile);
    for (int s = 0; s * STRETCH < w->cols; s++) {
        for (int t = 0; t < count; t++) FOR(turn_stretch)(x[t], s * STRETCH, w->cols, turned[t]);
        nibble_row from, less;
        nibble_row_at(w, row, s, &from);
        for (int r = 0; r < rows; r++, nibble_row_below(&from)) {
            const int cols = w->cols - s * STRETCH;
            row_end room;
            if (cols < STRETCH) nibble_row_end(&from, w->format, cols, &less, &room);
            if (lifted) FOR(unpack_stretch)(&tile, r, cols < STRETCH ? &less : &from, FORMAT_INT4);
            else FOR(unpack_stretch)(&tile, r, cols < STRETCH ? &less : &from, FORMAT_NVFP4);
        }
        FOR(add_many)(sum, &tile, fours, (const float (*)[STRETCH_TOKEN])turned, lifted, count);
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
