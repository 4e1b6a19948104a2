/* cpu/products.c: weight rows times token rows, for one level of processor. kernels.cu includes this file, and after it
   cpu/quarter_products.c and cpu/nibbles.c, once for each level: LEVEL is what its functions are compiled for, LANES the floats of a
   register, TOKENS the token rows whose sums fit into registers beside those of four weight rows, and FOR(name) the name that a
   function has there. SCALED_SUMS: a block's scale is multiplied into sums of 128 columns instead of into the token rows; the fewer
   lanes, the less there is of that.

   A block is up to ROW_BLOCK rows of a weight matrix. Tile by tile its weights become floats, which stay in the L1 cache while
   all token rows use them. A sum is kept as LANES partial sums; partial sum l takes the products of columns l, l + LANES, ...,
   in this order whatever the number of rows: see cpu/matrix.c. */

#define MOST_TOKENS (TOKENS > 4 ? TOKENS : 4)      /* token rows that are multiplied together */

typedef float FOR(vec) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* partial[j][r] += the products of LANES columns from i on. Of token rows and weight rows, the fewer stay in registers
   meanwhile. */
LEVEL INLINE void FOR(add_column)(FOR(vec) (*partial)[4], const float (*w)[TILE_COLS], const float *const *x, int i,
                                  const int rows, const int count) {
    FOR(vec) kept[4];
    if (count < rows) {
        for (int j = 0; j < count; j++) kept[j] = *(const FOR(vec) *)(x[j] + i);
        for (int r = 0; r < rows; r++) {
            FOR(vec) weight = *(const FOR(vec) *)(w[r] + i);
            for (int j = 0; j < count; j++) partial[j][r] += weight * kept[j];
        }
        return;
    }
    for (int r = 0; r < rows; r++) kept[r] = *(const FOR(vec) *)(w[r] + i);
    for (int j = 0; j < count; j++) {
        FOR(vec) token = *(const FOR(vec) *)(x[j] + i);
        for (int r = 0; r < rows; r++) partial[j][r] += kept[r] * token;
    }
}

/* sum[j][r] += w[r] . x[j][0..n) for `rows` <= 4 rows r and `count` <= MOST_TOKENS rows j, constants. n: a multiple of LANES.
   scale: NULL, or what the sum of each `span` columns is multiplied with, for each STREAM_COLS columns. */
LEVEL INLINE void FOR(add_products)(float (*sum)[ROW_BLOCK][LANES], const float (*w)[TILE_COLS], const float *const *x, int n,
                                    const float *scale, int span, const int rows, const int count) {
    for (int begin = 0, end; begin < n; begin = end) {
        FOR(vec) partial[MOST_TOKENS][4];
        end = scale && n - begin > span ? begin + span : n;
        for (int j = 0; j < count; j++)
            for (int r = 0; r < rows; r++) {
                partial[j][r] = (FOR(vec)){0};
                if (!scale) partial[j][r] = *(const FOR(vec) *)sum[j][r];
            }
        for (int i = begin; i < end; i += LANES) FOR(add_column)(partial, w, x, i, rows, count);
        for (int j = 0; j < count; j++)
            for (int r = 0; r < rows; r++) {
                FOR(vec) *to = (FOR(vec) *)sum[j][r];
                if (scale) *to += partial[j][r] * scale[begin / STREAM_COLS];
                else *to = partial[j][r];
            }
    }
}

/* token[t]: the columns from col on of `count` <= MOST_TOKENS rows of x, times x_scale of each STREAM_COLS columns, in
   `scaled`; x_scale NULL: as they are. */
LEVEL INLINE void FOR(scale_tokens)(const float **token, float (*scaled)[TILE_COLS], const float *const *x, int count, int col,
                                    int n, const float *x_scale) {
    for (int t = 0; t < count; t++) {
        token[t] = x_scale ? scaled[t] : x[t] + col;
        for (int i = 0; x_scale && i < n; i += LANES)
            *(FOR(vec) *)(scaled[t] + i) = *(const FOR(vec) *)(x[t] + col + i) * x_scale[i / STREAM_COLS];
    }
}

/* How many of `left` token rows are next. With AVX2, three or four, if that comes out: two rows' eight sums are too few to fill
   the time that a sum takes. */
LEVEL INLINE int FOR(tokens_of)(int left) {
    if (TOKENS == 3 && left % 3 && left >= left % 3 * 4) return 4;
    return left < TOKENS ? left : TOKENS;
}

/* The same for any number of token rows, their columns from col on, and `rows` weight rows, a multiple of four. scale: NULL, or
   those of each STREAM_COLS columns, which `span` columns have in common. */
LEVEL static void FOR(add_tile)(float (*sum)[ROW_BLOCK][LANES], const float (*w)[TILE_COLS], int rows, const float *const *x,
                                int count, int col, int n, const float *scale, int span) {
    float scaled[MOST_TOKENS][TILE_COLS] __attribute__((aligned(64)));
    const float *sum_scale = SCALED_SUMS ? scale : NULL, *x_scale = SCALED_SUMS ? NULL : scale;
    for (int j = 0, step; j < count; j += step) {
        const float *from[MOST_TOKENS] = {NULL};
        step = FOR(tokens_of)(count - j);
        FOR(scale_tokens)(from, scaled, x + j, step, col, n, x_scale);
        for (int r = 0, at_once; r < rows; r += at_once) {
            float (*to)[ROW_BLOCK][LANES] = (float (*)[ROW_BLOCK][LANES])sum[j][r];
            const float (*weights)[TILE_COLS] = w + r;
            at_once = 4;
            switch (step) {
                case 1: FOR(add_products)(to, weights, from, n, sum_scale, span, 4, 1); break;
                case 2: FOR(add_products)(to, weights, from, n, sum_scale, span, 4, 2); break;
                case 3: FOR(add_products)(to, weights, from, n, sum_scale, span, 4, 3); break;
#if TOKENS == 3
                default:                                    /* 16 weight rows are four times three and twice two */
                    at_once = (rows - r) % 3 && rows - r < 9 ? 2 : 3;
                    if (at_once == 2) FOR(add_products)(to, weights, from, n, sum_scale, span, 2, 4);
                    else FOR(add_products)(to, weights, from, n, sum_scale, span, 3, 4);
#elif TOKENS == 4
                default: FOR(add_products)(to, weights, from, n, sum_scale, span, 4, 4);
#else
                case 4: FOR(add_products)(to, weights, from, n, sum_scale, span, 4, 4); break;
                case 5: FOR(add_products)(to, weights, from, n, sum_scale, span, 4, 5); break;
                default: FOR(add_products)(to, weights, from, n, sum_scale, span, 4, TOKENS);
#endif
            }
        }
    }
}

/* The last n < LANES columns, with zeros after them. */
LEVEL static void FOR(add_last)(float (*sum)[ROW_BLOCK][LANES], const matrix *w, int row, int rows, const float *const *x,
                                int count, int n) {
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
    FOR(add_tile)(sum, (const float (*)[TILE_COLS])tile, rows, padded, count, 0, LANES, NULL, 0);
}

/* The sum of n partial sums, a constant, down to four. */
LEVEL INLINE quarter_lanes FOR(fold_partial)(const float *partial, const int n) {
    quarter_lanes sum = *(const quarter_lanes *)partial;
    if (n == 8) sum += *(const quarter_lanes *)(partial + 4);
    if (n == 16)
        sum = (sum + *(const quarter_lanes *)(partial + 4)) +
              (*(const quarter_lanes *)(partial + 8) + *(const quarter_lanes *)(partial + 12));
    return sum;
}

/* The sum of n partial sums, a constant, pairwise. */
LEVEL INLINE float FOR(sum_partial)(const float *partial, const int n) {
    const quarter_lanes sum = FOR(fold_partial)(partial, n);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* The same of four rows. */
LEVEL INLINE quarter_lanes FOR(sum_four_partial)(const float (*partial)[LANES]) {
    return sum_quarters(FOR(fold_partial)(partial[0], LANES), FOR(fold_partial)(partial[1], LANES),
                        FOR(fold_partial)(partial[2], LANES), FOR(fold_partial)(partial[3], LANES));
}

/* row_floats of any matrix, compiled for this level. */
LEVEL static void FOR(row_floats)(const matrix *w, const weight_row *row, int col, int n, float *out) {
    switch (w->format) {
#define FORMAT_CASE(NAME, name) case FORMAT_##NAME: row_floats(w, row, col, n, out, FORMAT_##NAME); break;
        FORMATS(FORMAT_CASE)
#undef FORMAT_CASE
        default: break;
    }
}

/* block_dots of weights of four bits: cpu/quarter_products.c, cpu/nibbles.c. */
LEVEL static void FOR(quarter_dots)(const matrix *w, int row, int rows, const token_limbs *const *limbs, int count,
                                 float (*y)[ROW_BLOCK]);
LEVEL static void FOR(lane_dots)(const matrix *w, int row, int rows, const token_limbs *const *limbs, int count,
                                 float (*y)[ROW_BLOCK]);

/* Prefetches row r of the next tile of `rows` weight rows, n columns further on: of these rows or, at their end, of the rows below
   them, which are likely to be next. Into the L2: the L1 is full of this tile's floats and the token rows. A row at a time, after
   one was unpacked: with a whole tile on its way, the lines that are needed at once would wait. */
LEVEL INLINE void FOR(prefetch_row)(const matrix *w, const weight_row *from, int rows, int r, int col, int n) {
    const size_t bytes = (size_t)formats[w->format]->components[CODES].bits / 8;
    const size_t next = col + n < w->cols ? (size_t)(col + n) : (size_t)w->cols * (size_t)rows;
    const uintptr_t at = (uintptr_t)from[r].component[CODES] + next * bytes;
    for (size_t i = 0; i < (size_t)n * bytes; i += CACHE_LINE) __builtin_prefetch((const void *)(at + i), 0, 2);
}

/* STREAM_COLS columns of codes as floats; kernel, a constant: CPU_E4M3, CPU_BF16 or CPU_F16. */
LEVEL INLINE void FOR(unpack_codes)(const char *codes, float *weights, const enum cpu_kernel kernel) {
    if (kernel == CPU_BF16) FOR(unpack_bf16)((const uint16_t *)(const void *)codes, STREAM_COLS, weights);
    else if (kernel == CPU_F16) FOR(unpack_f16)((const uint16_t *)(const void *)codes, STREAM_COLS, weights);
    else FOR(unpack_e4m3)((const uint8_t *)codes, STREAM_COLS, weights);
}

#if TOKENS > 4
/* For FEW_ROWS token rows weights are unpacked into registers and need not go through the L1. With fewer registers that is no
   faster.

   add_products of four weight rows' codes from column col on, for `count` <= FEW_ROWS token rows, a constant. n: a multiple of
   STREAM_COLS. kernel: as in unpack_codes. */
LEVEL INLINE void FOR(add_codes)(float (*sum)[ROW_BLOCK][LANES], const weight_row *from, int col, const float *const *x, int n,
                                 const int count, const enum cpu_kernel kernel) {
    const size_t bytes = kernel == CPU_E4M3 ? 1 : 2;
    FOR(vec) partial[FEW_ROWS][4];
    for (int j = 0; j < count; j++)
        for (int r = 0; r < 4; r++) partial[j][r] = *(const FOR(vec) *)sum[j][r];
    for (int i = 0; i < n; i += STREAM_COLS)
        for (int r = 0; r < 4; r++) {
            float weights[STREAM_COLS] __attribute__((aligned(64)));
            FOR(unpack_codes)(from[r].component[CODES] + (size_t)(col + i) * bytes, weights, kernel);
            for (int k = 0; k < STREAM_COLS; k += LANES)
                for (int j = 0; j < count; j++)
                    partial[j][r] += *(const FOR(vec) *)(weights + k) * *(const FOR(vec) *)(x[j] + i + k);
        }
    for (int j = 0; j < count; j++)
        for (int r = 0; r < 4; r++) *(FOR(vec) *)sum[j][r] = partial[j][r];
}

/* add_tile of codes for `count` <= FEW_ROWS token rows. */
LEVEL INLINE void FOR(add_few_codes)(float (*sum)[ROW_BLOCK][LANES], const weight_row *from, int rows, const float *const *x,
                                     int count, int col, int n, const float *x_scale, const enum cpu_kernel kernel) {
    float scaled[TOKENS][TILE_COLS] __attribute__((aligned(64)));
    const float *token[TOKENS] = {NULL};
    FOR(scale_tokens)(token, scaled, x, count, col, n, x_scale);
    for (int r = 0; r < rows; r += 4) {
        float (*to)[ROW_BLOCK][LANES] = (float (*)[ROW_BLOCK][LANES])sum[0][r];
        switch (count) {
            case 1: FOR(add_codes)(to, from + r, col, token, n, 1, kernel); break;
            case 2: FOR(add_codes)(to, from + r, col, token, n, 2, kernel); break;
            case 3: FOR(add_codes)(to, from + r, col, token, n, 3, kernel); break;
            default: FOR(add_codes)(to, from + r, col, token, n, FEW_ROWS, kernel); break;
        }
    }
}
#endif

/* sum += the products of E4M3 codes. A block's scale is multiplied into the token rows, which all weight rows here have in common,
   or (SCALED_SUMS) into the sums of its columns. */
LEVEL static void FOR(add_e4m3)(float (*sum)[ROW_BLOCK][LANES], const matrix *w, const weight_row *from, int rows,
                                const float *const *x, int count) {
    float tile[ROW_BLOCK][TILE_COLS] __attribute__((aligned(64))), scale[TILE_COLS / STREAM_COLS];
    const float *block_scale = (const float *)(const void *)from[0].component[SCALES];
    const int blocks = has_block_scales(w->format);
    for (int col = 0, n; col < w->cols; col += n) {
        n = w->cols - col < TILE_COLS ? w->cols - col : TILE_COLS;
        for (int i = 0; blocks && i < n; i += STREAM_COLS)
            scale[i / STREAM_COLS] = block_scale[(col + i) / w->block_cols] * E4M3_BITS_SCALE;
#if TOKENS > 4
        if (count <= FEW_ROWS && n % STREAM_COLS == 0) {
            for (int r = 0; r < rows; r++) FOR(prefetch_row)(w, from, rows, r, col, n);
            FOR(add_few_codes)(sum, from, rows, x, count, col, n, blocks ? scale : NULL, CPU_E4M3);
            continue;
        }
#endif
        for (int r = 0; r < rows; r++) {
            FOR(unpack_e4m3)((const uint8_t *)from[r].component[CODES] + col, n, tile[r]);
            FOR(prefetch_row)(w, from, rows, r, col, n);
        }
        FOR(add_tile)(sum, (const float (*)[TILE_COLS])tile, rows, x, count, col, n, blocks ? scale : NULL, block_span(w));
    }
}

/* sum += the products of any other weights, tile by tile. */
LEVEL static void FOR(add_floats)(float (*sum)[ROW_BLOCK][LANES], const matrix *w, const weight_row *from, int row, int rows,
                                  const float *const *x, int count) {
    float tile[ROW_BLOCK][TILE_COLS] __attribute__((aligned(64)));
    const int last = w->cols % LANES;
    for (int col = 0, n; col < w->cols - last; col += n) {
        n = w->cols - last - col < TILE_COLS ? w->cols - last - col : TILE_COLS;
#if TOKENS > 4
        if (count <= FEW_ROWS && n % STREAM_COLS == 0 && kernel_of(w->format) == CPU_BF16) {
            for (int r = 0; r < rows; r++) FOR(prefetch_row)(w, from, rows, r, col, n);
            FOR(add_few_codes)(sum, from, rows, x, count, col, n, NULL, CPU_BF16);
            continue;
        }
#endif
        for (int r = 0; r < rows; r++) {
            FOR(row_floats)(w, &from[r], col, n, tile[r]);
            FOR(prefetch_row)(w, from, rows, r, col, n);
        }
        FOR(add_tile)(sum, (const float (*)[TILE_COLS])tile, rows, x, count, col, n, NULL, 0);
    }
    if (last) FOR(add_last)(sum, w, row, rows, x, count, last);
}

/* y[r] = W[row + r] . x for `rows` <= 4 weight rows and one token row, with the bits that tiles give. Weights go from memory
   straight into registers, and lines further down are prefetched on the way: without, too few cache lines are in flight to fill
   the time that memory takes. They are prefetched one after the other, as they lie, because memory serves one sequential
   stream faster than several. rows and f are constants. */
LEVEL INLINE void FOR(stream_dots)(const matrix *w, int row, const int rows, const float *x, float *y, const enum format f) {
    const weight_row first = row_of(w, row, f);
    const char *codes = first.component[CODES];
    const float *scale = (const float *)(const void *)first.component[SCALES];
    const size_t bytes = (size_t)formats[f]->components[CODES].bits / 8, below = (size_t)w->cols * bytes;
    uintptr_t ahead = (uintptr_t)codes + bytes_ahead((size_t)rows * below);
    const int x_scaled = has_block_scales(f) && !SCALED_SUMS, sum_scaled = has_block_scales(f) && SCALED_SUMS;
    const int span = sum_scaled ? block_span(w) : w->cols;
    FOR(vec) partial[4], sums[4];
    for (int r = 0; r < rows; r++) partial[r] = sums[r] = (FOR(vec)){0};
    for (int col = 0; col < w->cols; col += STREAM_COLS) {
        const float block_scale = has_block_scales(f) ? scale[col / w->block_cols] * E4M3_BITS_SCALE : 1;
        FOR(vec) token[STREAM_COLS / LANES];
        for (int i = 0; i < STREAM_COLS / LANES; i++) {
            token[i] = *(const FOR(vec) *)(x + col + i * LANES);
            if (x_scaled) token[i] *= block_scale;
        }
        for (size_t i = 0; i < (size_t)rows * STREAM_COLS * bytes; i += CACHE_LINE, ahead += CACHE_LINE)
            __builtin_prefetch((const void *)ahead);
        for (int r = 0; r < rows; r++) {
            float weights[STREAM_COLS] __attribute__((aligned(64)));
            const char *at = codes + (size_t)r * below + (size_t)col * bytes;
            FOR(unpack_codes)(at, weights, kernel_of(f));
            for (int i = 0; i < STREAM_COLS / LANES; i++) partial[r] += *(const FOR(vec) *)(weights + i * LANES) * token[i];
        }
        const int end = col + STREAM_COLS;
        if (sum_scaled && (end % span == 0 || end == w->cols))
            for (int r = 0; r < rows; r++) sums[r] += partial[r] * block_scale, partial[r] = (FOR(vec)){0};
    }
    for (int r = 0; r < rows; r++) {
        float sum[LANES] __attribute__((aligned(64)));
        *(FOR(vec) *)sum = sum_scaled ? sums[r] : partial[r];
        y[r] = FOR(sum_partial)(sum, LANES);
        if (has_row_scales(f)) y[r] *= scale[r] * E4M3_BITS_SCALE;
    }
}

/* stream_dots of each format, so many rows at a time: of more, a token row's scaling is shared; of fewer, a line is used sooner
   after it was prefetched. 0: it is not streamed, and there is no code for it. Returns whether it is. */
#define STREAM_ROWS(kernel) ((int)(kernel) == CPU_E4M3 ? 4 : (int)(kernel) == CPU_BF16 || (int)(kernel) == CPU_F16 ? 2 : 0)
#define STREAM(NAME, name)                                                                                      \
    LEVEL static int FOR(stream_##name)(const matrix *w, int row, int rows, const float *x, float *y) {         \
        enum { STEP = STREAM_ROWS(name##_kernel) };                                                             \
        if (STEP != 0)                                                                                          \
            for (int r = 0; r < rows; r += STEP) FOR(stream_dots)(w, row + r, STEP, x, y + r, FORMAT_##NAME);   \
        return STEP != 0;                                                                                       \
    }
FORMATS(STREAM)
#undef STREAM
#undef STREAM_ROWS

/* Whether it was one for stream_dots. */
LEVEL static int FOR(stream)(const matrix *w, int row, int rows, const float *x, float *y) {
    if (w->cols % STREAM_COLS || rows % 4 || (kernel_of(w->format) == CPU_E4M3 && !uses_e4m3_kernel(w))) return 0;
    switch (w->format) {
#define STREAM(NAME, name) case FORMAT_##NAME: return FOR(stream_##name)(w, row, rows, x, y);
        FORMATS(STREAM)
#undef STREAM
        default: return 0;
    }
}

/* y[j][r] = W[row + r] . token row j for 1 <= `rows` <= ROW_BLOCK weight rows from a multiple of ROW_BLOCK on. */
LEVEL static void FOR(block_dots)(const matrix *w, int row, int rows, const token_batch *tokens, float (*y)[ROW_BLOCK]) {
    const float *const *x = tokens->x;
    const int count = tokens->count;
    const unsigned limbs = limb_kinds(w);
    if (limbs == LIMBS_OF_QUARTERS) FOR(quarter_dots)(w, row, rows, tokens->limbs, count, y);
    if (limbs == LIMBS_OF_LANES) FOR(lane_dots)(w, row, rows, tokens->limbs, count, y);
    if (limbs) return;
    if (count == 1 && FOR(stream)(w, row, rows, x[0], y[0])) return;
    float sum[TOKEN_BATCH][ROW_BLOCK][LANES] __attribute__((aligned(64)));
    const int fours = (rows + 3) / 4 * 4, codes = uses_e4m3_kernel(w);
    memset(sum, 0, (size_t)count * sizeof *sum);
    weight_row from[ROW_BLOCK];
    int filled = 0;
    do from[filled] = matrix_row(w, row + filled < w->rows ? row + filled : w->rows - 1);
    while (++filled < fours);
    if (codes) FOR(add_e4m3)(sum, w, from, fours, x, count);
    else FOR(add_floats)(sum, w, from, row, fours, x, count);
    quarter_lanes row_scale[ROW_BLOCK / 4];
    for (int r = 0; r < fours; r++) row_scale[r / 4][r % 4] = codes && has_row_scales(w->format) ? row_scale_of(&from[r]) : 1;
    for (int j = 0; j < count; j++)
        for (int r = 0; r < fours; r += 4)
            *(quarter_lanes *)(y[j] + r) = FOR(sum_four_partial)((const float (*)[LANES])sum[j] + r) * row_scale[r / 4];
}
/* Products with the transposed of weight rows: to->y[t][i] = sum over r < rows of x[t][r] W[row + r][col + i], for i < n <= TILE columns from a
   multiple of TILE on. A weight becomes a float once for all token rows; a sum takes its rows in ascending order, whatever their number. */
LEVEL static void FOR(transposed_dots)(const matrix *w, int row, int rows, int col, int n, const transposed_rows *to) {
    enum { COLS = 4 * LANES };                          /* whose sums are in registers */
    float tile[ROW_BLOCK][TILE] __attribute__((aligned(64)));
    for (int first = 0, some; first < rows; first += some) {
        some = rows - first < ROW_BLOCK ? rows - first : ROW_BLOCK;
        for (int r = 0; r < some; r++) {
            const weight_row from = matrix_row(w, row + first + r);
            FOR(row_floats)(w, &from, col, n, tile[r]);
        }
        for (int t = 0; t < to->T; t++) {
            const float *x = to->x + (size_t)t * to->x_stride + first;
            float *y = to->y + (size_t)t * to->y_stride;
            int i = 0;
            if (!first) memset(y, 0, (size_t)n * sizeof *y);
            for (; i + COLS <= n; i += COLS) {
                FOR(vec) sum[4];
                for (int k = 0; k < 4; k++) sum[k] = *(const FOR(vec) *)(y + i + k * LANES);
                for (int r = 0; r < some; r++)
                    for (int k = 0; k < 4; k++) sum[k] += *(const FOR(vec) *)(tile[r] + i + k * LANES) * x[r];
                for (int k = 0; k < 4; k++) *(FOR(vec) *)(y + i + k * LANES) = sum[k];
            }
            for (; i < n; i++)
                for (int r = 0; r < some; r++) y[i] += tile[r][i] * x[r];
        }
    }
}
#undef MOST_TOKENS
#undef SCALED_SUMS
