/* cpu/quarter_products.c: products of INT4 or MXFP4 weights and token rows, for one level of processor, the second part of
   cpu/products.c.

   A token row is int8 limbs (cpu/limbs.c), so the products of a quarter's 32 columns have an exact sum. For each block of 128
   columns quarter q adds its own to a partial sum:

       inner[q] = sum over j of value[32 q + j] X[32 q + j]  -  zero[q] sum over j of X[32 q + j]
       sum[q] += (scale[q] act_scale[q]) inner[q]

   The sums over j are exact; MXFP4's zero is E2M1_ZERO, so that its inner[q] is, too. At the end the four partial sums are added
   pairwise. All of that is the same whatever the number of rows. For a few token rows codes go from memory into registers, in which
   they are turned (cpu/quarter_codes.c) once for all of them. For many, column blocks of ROW_BLOCK weight rows are turned and lie in
   L1. */

enum {
    FOR(GROUP_ROWS) = LANES / QUARTERS,            /* weight rows of a register */
    FOR(GROUPS) = ROW_BLOCK / FOR(GROUP_ROWS),
    FOR(GROUPS_AT_ONCE) = LANES / 4,               /* so many, times so many token rows, have their sums in registers */
    FOR(TOKENS_AT_ONCE) = LANES == 8 ? 2 : 1       /* AVX-512: of one, as each limb has a sum */
};

LEVEL INLINE FOR(quarter_scales) FOR(quarter_scales_at)(const nibble_row *from, const enum cpu_kernel kernel) {
    if (kernel == CPU_UINT4) return FOR(int4_scales_at)(from->scales, from->scales_below, from->shift);
    return FOR(e8m0_scales_at)(from->scales, from->scales_below);
}

/* sum + (scale act_scale) (product - zero all) for column block x; of MXFP4's products the zero point is subtracted already. */
LEVEL INLINE FOR(vec) FOR(plus_quarters)(FOR(vec) sum, FOR(vec) product, const FOR(quarter_scales) *of, const quarter_limbs *x,
                                         const enum cpu_kernel kernel) {
    FOR(vec) inner = product;
    if (kernel == CPU_UINT4) inner = FOR(minus_product)(inner, of->zero, FOR(quarter_floats)(x->sum));
    return sum + of->scale * FOR(quarter_floats)(x->act_scale) * inner;
}

/* sum[t][g] += column block s of FEW_GROUPS registers of weight rows, from the one at `from` on, . x[t], for `count` token rows, a
   constant. */
LEVEL INLINE void FOR(quarter_few_block)(FOR(vec) *sum, nibble_row from, const quarter_limbs *const *x, int s, const int count,
                                         const enum cpu_kernel kernel) {
    const nibble_row next = nibble_row_below(from, FOR(GROUP_ROWS));
    const FOR(quarter_scales) of[FEW_GROUPS] = {FOR(quarter_scales_at)(&from, kernel), FOR(quarter_scales_at)(&next, kernel)};
    const FOR(quarter_codes) c[FEW_GROUPS] = {FOR(quarter_codes_at)(from.codes, from.codes_below, kernel),
                                              FOR(quarter_codes_at)(next.codes, next.codes_below, kernel)};
    FOR(products) products[FEW_ROWS * FEW_GROUPS];
    FOR(quarter_products)(products, c, FEW_GROUPS, x, s, count, kernel);
    for (int i = 0; i < FEW_GROUPS * count; i++)
        sum[i] = FOR(plus_quarters)(sum[i], products[i], &of[i % FEW_GROUPS], &x[i / FEW_GROUPS][s], kernel);
}

/* sum[t][r..) = `rows` weight rows, as many as FEW_GROUPS registers have or fewer, . x[t], for `count` token rows, a constant.
   from: the first weight row. Codes are prefetched as they lie, as one sequential stream, and scales, too; into the L2 what is
   too much for the L1. */
LEVEL INLINE void FOR(quarter_few)(float (*sum)[ROW_BLOCK][QUARTERS], int r, nibble_row from, int rows, int cols,
                                   const quarter_limbs *const *x, const int count, const enum cpu_kernel kernel) {
    enum { ROWS = FEW_GROUPS * FOR(GROUP_ROWS), L1_AHEAD = 8192 };
    const int n = col_block_count(cols), whole = rows == ROWS ? cols / COL_BLOCK : 0;
    const size_t ahead = bytes_ahead(ROWS * from.codes_below), scales_step = ROWS * from.scales_below / (size_t)n;
    uintptr_t codes_ahead = (uintptr_t)from.codes + ahead;
    uintptr_t scales_ahead = (uintptr_t)from.scales + ahead / from.codes_below * from.scales_below;
    FOR(vec) partial[FEW_ROWS * FEW_GROUPS];
    for (int i = 0; i < FEW_GROUPS * count; i++) partial[i] = (FOR(vec)){0};
    for (int s = 0; s < whole; s++) {
        __builtin_prefetch((const void *)scales_ahead);
        if (scales_step > CACHE_LINE) __builtin_prefetch((const void *)(scales_ahead + CACHE_LINE));
        for (int i = 0; i < ROWS && ahead <= L1_AHEAD; i++)
            __builtin_prefetch((const void *)(codes_ahead + CACHE_LINE * (size_t)i));
        for (int i = 0; i < ROWS && ahead > L1_AHEAD; i++)
            __builtin_prefetch((const void *)(codes_ahead + CACHE_LINE * (size_t)i), 0, 2);
        scales_ahead += scales_step;
        codes_ahead += ROWS * (COL_BLOCK / 2);
        FOR(quarter_few_block)(partial, from, x, s, count, kernel);
        nibble_row_next(&from);
    }
    for (int s = whole; s < n; s++) {
        row_ends ends;
        FOR(quarter_few_block)(partial, nibble_row_ends(from, rows, cols - s * COL_BLOCK, &ends), x, s, count, kernel);
        nibble_row_next(&from);
    }
    for (int i = 0; i < FEW_GROUPS * count; i++)
        *(FOR(vec) *)sum[i / FEW_GROUPS][r + i % FEW_GROUPS * FOR(GROUP_ROWS)] = partial[i];
}

/* Column blocks of ROW_BLOCK weight rows, turned. */
typedef struct FOR(quarter_tile) {
    FOR(quarter_codes) codes[MANY_COL_BLOCKS][FOR(GROUPS)];
    FOR(quarter_scales) of[MANY_COL_BLOCKS][FOR(GROUPS)];
} __attribute__((aligned(64))) FOR(quarter_tile);

/* `rows` weight rows' n column blocks from `first` on. The next ones are prefetched, into the L2. */
LEVEL INLINE void FOR(quarter_unpack)(FOR(quarter_tile) *tile, const matrix *w, int row, int rows, int first, int n,
                                      const enum cpu_kernel kernel) {
    enum { ROWS = FOR(GROUP_ROWS) };
    const nibble_row top = nibble_row_at(w, row, first);
    for (int g = 0; g * ROWS < rows; g++) {
        nibble_row from = nibble_row_below(top, g * ROWS);
        const int have = rows - g * ROWS < ROWS ? rows - g * ROWS : ROWS;
        for (int s = 0; s < n; s++) {
            const int cols = w->cols - (first + s) * COL_BLOCK;
            nibble_row at = from;
            row_ends copy;
            if (have < ROWS || cols < COL_BLOCK) at = nibble_row_ends(from, have, cols, &copy);
            for (int r = 0; r < ROWS; r++)
                __builtin_prefetch(from.codes + (size_t)r * from.codes_below + (size_t)n * (COL_BLOCK / 2), 0, 2);
            tile->of[s][g] = FOR(quarter_scales_at)(&at, kernel);
            tile->codes[s][g] = FOR(quarter_codes_at)(at.codes, at.codes_below, kernel);
            nibble_row_next(&from);
        }
    }
}

/* sum[t] += a tile's n column blocks . x[t] from column block `first` on, for `count` token rows, a constant. next: token rows whose
   limbs are prefetched on the way, for AVX-512; with AVX2 that takes more time than it saves. */
LEVEL INLINE void FOR(quarter_add_tile)(float (*sum)[ROW_BLOCK][QUARTERS], const FOR(quarter_tile) *tile, const quarter_limbs *const *x,
                                        const quarter_limbs *const *next, int first, int n, const int count,
                                        const enum cpu_kernel kernel) {
    enum { AT_ONCE = FOR(GROUPS_AT_ONCE), AHEAD = LANES == 16 ? sizeof(quarter_limbs) : 0 };
    for (int s = 0; s < n; s++) {
        for (int t = 0; t < count; t++)
            for (int i = 0; i < AHEAD; i += CACHE_LINE) __builtin_prefetch((const char *)(next[t] + first + s) + i);
        for (int g = 0; g < FOR(GROUPS); g += AT_ONCE) {
            FOR(products) products[FOR(TOKENS_AT_ONCE) * AT_ONCE];
            FOR(vec) partial[FOR(TOKENS_AT_ONCE) * AT_ONCE];
            FOR(quarter_products)(products, &tile->codes[s][g], AT_ONCE, x, first + s, count, kernel);
            for (int i = 0; i < count * AT_ONCE; i++)
                partial[i] = *(const FOR(vec) *)sum[i / AT_ONCE][FOR(GROUP_ROWS) * (g + i % AT_ONCE)];
            for (int i = 0; i < count * AT_ONCE; i++)
                partial[i] = FOR(plus_quarters)(partial[i], products[i], &tile->of[s][g + i % AT_ONCE], &x[i / AT_ONCE][first + s], kernel);
            for (int i = 0; i < count * AT_ONCE; i++)
                *(FOR(vec) *)sum[i / AT_ONCE][FOR(GROUP_ROWS) * (g + i % AT_ONCE)] = partial[i];
        }
    }
}

/* sum[j] = `rows` weight rows . x[j] for any number of token rows. */
LEVEL INLINE void FOR(quarter_many)(float (*sum)[ROW_BLOCK][QUARTERS], const matrix *w, int row, int rows,
                                    const quarter_limbs *const *x, int count, const enum cpu_kernel kernel) {
    enum { AT_ONCE = FOR(TOKENS_AT_ONCE) };
    FOR(quarter_tile) tile;
    const int col_blocks = col_block_count(w->cols);
    memset(&tile, 0, sizeof tile);
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int first = 0, n; first < col_blocks; first += n) {
        n = col_blocks - first < MANY_COL_BLOCKS ? col_blocks - first : MANY_COL_BLOCKS;
        FOR(quarter_unpack)(&tile, w, row, rows, first, n, kernel);
        for (int j = 0; j < count; j += AT_ONCE) {
            const quarter_limbs *const *next = count - j < 2 * AT_ONCE ? x : x + j + AT_ONCE;
            if (count - j < AT_ONCE) FOR(quarter_add_tile)(sum + j, &tile, x + j, next, first, n, 1, kernel);
            else FOR(quarter_add_tile)(sum + j, &tile, x + j, next, first, n, AT_ONCE, kernel);
        }
    }
}

/* The same for `count` <= FEW_ROWS token rows, a constant. */
LEVEL INLINE void FOR(quarter_block)(float (*sum)[ROW_BLOCK][QUARTERS], const matrix *w, int row, int rows,
                                     const quarter_limbs *const *x, const int count, const enum cpu_kernel kernel) {
    enum { ROWS = FEW_GROUPS * FOR(GROUP_ROWS) };
    const nibble_row top = nibble_row_at(w, row, 0);
    for (int r = 0; r < rows; r += ROWS)
        FOR(quarter_few)(sum, r, nibble_row_below(top, r), rows - r < ROWS ? rows - r : ROWS, w->cols, x, count, kernel);
}

/* block_dots of weights that limbs of quarters are for. MXFP4's values are twice the weights. */
LEVEL INLINE void FOR(quarter_block_dots)(const matrix *w, int row, int rows, const token_limbs *const *limbs, int count,
                                          float (*y)[ROW_BLOCK], const enum cpu_kernel kernel) {
    float sum[TOKEN_BATCH][ROW_BLOCK][QUARTERS] __attribute__((aligned(64)));
    const quarter_limbs *x[TOKEN_BATCH];
    for (int j = 0; j < count; j++) x[j] = row_quarters(limbs[j], w->cols);
    if (count == 1) FOR(quarter_block)(sum, w, row, rows, x, 1, kernel);
    else if (count == 2) FOR(quarter_block)(sum, w, row, rows, x, 2, kernel);
    else if (count == 3) FOR(quarter_block)(sum, w, row, rows, x, 3, kernel);
    else if (count == FEW_ROWS) FOR(quarter_block)(sum, w, row, rows, x, FEW_ROWS, kernel);
    else FOR(quarter_many)(sum, w, row, rows, x, count, kernel);
    for (int j = 0; j < count; j++)
        for (int r = 0; r < rows; r += FOR(GROUP_ROWS)) {
            FOR(vec) of_rows = *(const FOR(vec) *)sum[j][r];
            if (kernel == CPU_E2M1_E8M0) of_rows *= 0.5f;
            FOR(quarter_row_sums)(of_rows, y[j] + r);
        }
}

LEVEL static void FOR(quarter_dots)(const matrix *w, int row, int rows, const token_limbs *const *limbs, int count,
                                    float (*y)[ROW_BLOCK]) {
    if (kernel_of(w->format) == CPU_UINT4) FOR(quarter_block_dots)(w, row, rows, limbs, count, y, CPU_UINT4);
    else FOR(quarter_block_dots)(w, row, rows, limbs, count, y, CPU_E2M1_E8M0);
}
