// A part of test_kernels: what products of four bits consist of, limbs, sums of lanes and quarters, scales. Each against plain
// loops, for each level of processor.

#ifdef LEVELS
#define INT4_SCALES(LEVEL, level)                                                                                             \
    LEVEL static void quarter_scales_of_##level(const uint32_t *word, size_t below, int shift, float *scale, float *zero) {      \
        const quarter_scales_##level of = int4_scales_at_##level((const char *)word, below, shift);                              \
        *(vec_##level *)scale = of.scale;                                                                                     \
        *(vec_##level *)zero = of.zero;                                                                                       \
    }                                                                                                                         \
    LEVEL static void e8m0_scales_of_##level(const uint8_t *byte, size_t below, float *scale) {                               \
        *(vec_##level *)scale = e8m0_scales_at_##level((const char *)byte, below).scale;                                      \
    }
INT4_SCALES(V4, v4)
INT4_SCALES(V3, v3)

// The scales of column blocks of four bits as the plain loops have them, bit for bit.
static void test_col_blocks(int level) {
    float scale[2][COL_BLOCK_LANES], zero[2][COL_BLOCK_LANES];
    for (int round = 0; round < 100; round++) {
        enum { BELOW = 5 };
        uint8_t code[8], exponent[4 * BELOW];
        uint32_t word[4 * BELOW];
        const int shift = 2 + round % 3, rows = level == 4 ? 4 : 2;
        for (int i = 0; i < 8; i++) code[i] = (uint8_t)random_int(0, 0x7e);
        for (int i = 0; i < 4 * BELOW; i++) word[i] = (random_bits() & 0xbfffffe0) | (uint32_t)random_int(0, 16);
        e4m3_scales_plain(code, scale[0]);
        level == 4 ? e4m3_scales_v4(code, scale[1]) : e4m3_scales_v3(code, scale[1]);
        CHECK(same_bits(scale[0], scale[1], COL_BLOCK_LANES), "level %d: scales of NVFP4", level);
        for (int i = 0; i < 4 * BELOW; i++) exponent[i] = (uint8_t)random_int(0, i % 3 ? 254 : 2);
        for (int r = 0; r < rows; r++) {
            const quarter_scales_plain of = e8m0_scales_at_plain((const char *)(exponent + BELOW * r), 0);
            memcpy(scale[0] + QUARTERS * r, &of.scale, sizeof of.scale);
        }
        level == 4 ? e8m0_scales_of_v4(exponent, BELOW, scale[1]) : e8m0_scales_of_v3(exponent, BELOW, scale[1]);
        CHECK(same_bits(scale[0], scale[1], QUARTERS * (size_t)rows), "level %d: scales of MXFP4", level);
        for (int r = 0; r < rows; r++) {
            const quarter_scales_plain of = int4_scales_at_plain((const char *)(word + BELOW * r), 0, shift);
            memcpy(scale[0] + QUARTERS * r, &of.scale, sizeof of.scale);
            memcpy(zero[0] + QUARTERS * r, &of.zero, sizeof of.zero);
        }
        level == 4 ? quarter_scales_of_v4(word, 4 * BELOW, shift, scale[1], zero[1])
                   : quarter_scales_of_v3(word, 4 * BELOW, shift, scale[1], zero[1]);
        CHECK(same_bits(scale[0], scale[1], QUARTERS * (size_t)rows) && same_bits(zero[0], zero[1], QUARTERS * (size_t)rows),
              "level %d: scales and zero points of INT4, %d quarters each", level, 1 << (shift - 2));
    }
}

#endif

// lane_products of a level, of one, two or CODE_ROWS weight rows.
#define LANE_PRODUCTS(LEVEL, level, LANES)                                                                                    \
    LEVEL static void lane_products_of_##level(const uint8_t (*codes)[COL_BLOCK / 2], int rows, const lane_limbs *d,          \
                                               float (*out)[COL_BLOCK_LANES]) {                                               \
        for (int part = 0; part < COL_BLOCK_LANES / LANES; part++) {                                                          \
            codes_##level c[CODE_ROWS];                                                                                       \
            products_##level products[CODE_ROWS];                                                                             \
            for (int r = 0; r < rows; r++) c[r] = codes_at_##level(codes[r] + 4 * LANES * part);                              \
            if (rows == 1) lane_products_##level(products, c, 1, d, part);                                                    \
            else if (rows == 2) lane_products_##level(products, c, 2, d, part);                                               \
            else lane_products_##level(products, c, CODE_ROWS, d, part);                                                      \
            for (int r = 0; r < rows; r++) *(vec_##level *)(out[r] + LANES * part) = products[r];                             \
        }                                                                                                                     \
    }                                                                                                                         \
    LEVEL INLINE void quarter_products_of_some_##level(const uint8_t (*codes)[COL_BLOCK], const int groups,                   \
                                                       const quarter_limbs *const *x, const int count,                        \
                                                       float (*out)[ROW_BLOCK][QUARTERS], const enum cpu_kernel kernel) {     \
        enum { ROWS = LANES / QUARTERS };                                                                                     \
        quarter_codes_##level c[4];                                                                                              \
        products_##level products[16];                                                                                        \
        for (int g = 0; g < groups; g++) c[g] = quarter_codes_at_##level(codes[ROWS * g], sizeof *codes, kernel);             \
        quarter_products_##level(products, c, groups, x, 1, count, kernel);                                                   \
        for (int i = 0; i < groups * count; i++) *(vec_##level *)out[i / groups][i % groups * ROWS] = products[i];            \
    }                                                                                                                         \
    /* quarter_products of a level for one token row, few or many; returns how many token rows */                             \
    LEVEL INLINE int quarter_products_of_kernel_##level(const uint8_t (*codes)[COL_BLOCK], const quarter_limbs *const *x,     \
                                                        int way, float (*out)[ROW_BLOCK][QUARTERS],                           \
                                                        const enum cpu_kernel kernel) {                                       \
        enum { GROUPS = GROUPS_AT_ONCE_##level, TOKENS = TOKENS_AT_ONCE_##level };                                            \
        if (way == 0) quarter_products_of_some_##level(codes, FEW_GROUPS, x, 1, out, kernel);                                 \
        else if (way == 1) quarter_products_of_some_##level(codes, FEW_GROUPS, x, FEW_ROWS, out, kernel);                     \
        else quarter_products_of_some_##level(codes, GROUPS, x, TOKENS, out, kernel);                                         \
        return way == 0 ? 1 : way == 1 ? FEW_ROWS : TOKENS;                                                                   \
    }                                                                                                                         \
    LEVEL static int quarter_products_of_##level(const uint8_t (*codes)[COL_BLOCK], const quarter_limbs *const *x, int way,   \
                                                 float (*out)[ROW_BLOCK][QUARTERS], enum cpu_kernel kernel) {                 \
        return kernel == CPU_UINT4 ? quarter_products_of_kernel_##level(codes, x, way, out, CPU_UINT4)                        \
                                   : quarter_products_of_kernel_##level(codes, x, way, out, CPU_E2M1_E8M0);                   \
    }
#ifdef LEVELS
LANE_PRODUCTS(V4, v4, 16)
LANE_PRODUCTS(V3, v3, 8)
#endif
LANE_PRODUCTS(, plain, 4)

// X of an even column, or of an odd one.
static int limbs_value(const lane_limbs *d, int odd, int i) {
    return 65536 * d->limb[0][odd][i] + 256 * d->limb[1][odd][i] + d->limb[2][odd][i];
}

// X of a quarter's column.
static int quarter_value(const quarter_limbs *d, int q, int col) {
    const int p = col / LANE_COLS, odd = col % 2, b = col % LANE_COLS / 2;
    return 65536 * d->limb[0][p][odd][q][b] + 256 * d->limb[1][p][odd][q][b] + d->limb[2][p][odd][q][b];
}

// n limbs of each significance: any, or those of the largest or the least X. High ones below `bound`: 64, or 128 where x need not
// be finite.
static void random_limbs(int8_t *high, int8_t *middle, int8_t *low, int n, int sign, int bound) {
    for (int i = 0; i < n; i++) {
        high[i] = (int8_t)(sign ? sign > 0 ? bound - 1 : -bound : random_int(-bound, bound - 1));
        middle[i] = (int8_t)(sign ? sign > 0 ? 127 : -128 : random_int(-128, 127));
        low[i] = (int8_t)(sign ? sign > 0 ? 127 : -128 : random_int(-128, 127));
    }
}

// Sums of eight products are exact, also of the largest codes and limbs, for each level and number of rows; of limbs that are no
// finite number's they wrap around.
static void test_lane_products(int level) {
    lane_limbs d;
    uint8_t codes[CODE_ROWS][COL_BLOCK / 2];
    float out[CODE_ROWS][COL_BLOCK_LANES];
    for (int round = 0; round < 300; round++) {
        const int extreme = round % 3 == 0, rows = 1 << round % 5 % 3, bound = round % 7 < 5 ? 64 : 128;
        int bad = 0;
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < COL_BLOCK / 2; i++) codes[r][i] = extreme ? 0x77 : (uint8_t)random_bits();
        random_limbs(d.limb[0][0], d.limb[1][0], d.limb[2][0], COL_BLOCK, extreme ? round % 4 < 2 ? 1 : -1 : 0, bound);
        for (int l = 0; l < COL_BLOCK_LANES; l++) {
            uint32_t X = 0;
            for (int i = 4 * l; i < 4 * l + 4; i++) X += (uint32_t)(limbs_value(&d, 0, i) + limbs_value(&d, 1, i));
            d.zero[l] = bound == 64 ? -E2M1_ZERO * (int)X : (int32_t)random_bits();
        }
#ifdef LEVELS
        if (level == 4) lane_products_of_v4((const uint8_t (*)[COL_BLOCK / 2])codes, rows, &d, out);
        else if (level == 3) lane_products_of_v3((const uint8_t (*)[COL_BLOCK / 2])codes, rows, &d, out);
        else
#endif
            lane_products_of_plain((const uint8_t (*)[COL_BLOCK / 2])codes, rows, &d, out);
        for (int l = 0; l < rows * COL_BLOCK_LANES; l++) {
            const int r = l / COL_BLOCK_LANES, lane = l % COL_BLOCK_LANES;
            uint32_t want = (uint32_t)d.zero[lane];
            for (int i = 4 * lane; i < 4 * lane + 4; i++)
                want += (uint32_t)(e2m1_values[codes[r][i] & 15] * limbs_value(&d, 0, i)) +
                        (uint32_t)(e2m1_values[codes[r][i] >> 4] * limbs_value(&d, 1, i));
            bad += out[r][lane] != (float)(int32_t)want;
        }
        CHECK(!bad, "level %d: %d lanes' products of %d rows", level, bad, rows);
    }
}

// Sums of a quarter's 32 products are exact or wrap around, too, for each level and number of token rows. kernel: of INT4, or of MXFP4.
static void test_quarter_products(int level, enum cpu_kernel kernel) {
    quarter_limbs d[FEW_ROWS][2];
    const quarter_limbs *x[FEW_ROWS];
    uint8_t codes[ROW_BLOCK][COL_BLOCK];
    float out[FEW_ROWS][ROW_BLOCK][QUARTERS];
    for (int t = 0; t < FEW_ROWS; t++) x[t] = d[t];
    for (int round = 0; round < 300; round++) {
        const int extreme = round % 3 == 0, way = round % 7 % 3;
        const int rows = (level == 4 ? 4 : level == 3 ? 2 : 1) * (way < 2 ? FEW_GROUPS : level == 4 ? 4 : level == 3 ? 2 : 1);
        int count, bad = 0;
        for (int i = 0; i < ROW_BLOCK * COL_BLOCK; i++)
            codes[i / COL_BLOCK][i % COL_BLOCK] = extreme ? kernel == CPU_UINT4 ? 0xff : 0x77 : (uint8_t)random_bits();
        for (int t = 0; t < FEW_ROWS; t++) {
            random_limbs(d[t][1].limb[0][0][0][0], d[t][1].limb[1][0][0][0], d[t][1].limb[2][0][0][0], COL_BLOCK,
                         extreme ? round % 4 < 2 ? 1 : -1 : 0, round % 5 < 3 ? 64 : 128);
            for (int q = 0; q < QUARTERS; q++) {
                uint32_t X = 0;
                for (int c = 0; c < QUARTER_COLS; c++) X += (uint32_t)quarter_value(&d[t][1], q, c);
                d[t][1].zero[q] = (int32_t)(0u - E2M1_ZERO * X);
            }
        }
#ifdef LEVELS
        if (level == 4) count = quarter_products_of_v4((const uint8_t (*)[COL_BLOCK])codes, x, way, out, kernel);
        else if (level == 3) count = quarter_products_of_v3((const uint8_t (*)[COL_BLOCK])codes, x, way, out, kernel);
        else
#endif
            count = quarter_products_of_plain((const uint8_t (*)[COL_BLOCK])codes, x, way, out, kernel);
        for (int t = 0; t < count; t++)
            for (int i = 0; i < rows * QUARTERS; i++) {
                const int r = i / QUARTERS, q = i % QUARTERS;
                uint32_t want = 0;
                for (int c = 0; c < QUARTER_COLS; c++) {
                    const int code = codes[r][(QUARTER_COLS * q + c) / 2] >> c % 2 * 4 & 15;
                    want += (uint32_t)((kernel == CPU_UINT4 ? code : e2m1_values[code] - E2M1_ZERO) * quarter_value(&d[t][1], q, c));
                }
                bad += out[t][r][q] != (float)(int32_t)want;
            }
        CHECK(!bad, "level %d, kernel %d: %d quarters' products of %d rows", level, (int)kernel, bad, rows);
    }
}

// x = scale X to half a scale, X within 23 bits: how many of `cols` columns are not.
static int limbs_off(const float *x, float act_scale, const int *X, int cols, int exact) {
    int bad = 0;
    for (int i = 0; i < cols; i++)
        bad += abs(X[i]) > 1 << 22 || fabs((double)x[i] - (double)act_scale * X[i]) > (exact ? 0 : 0.5 * (double)act_scale);
    return bad;
}

// Limbs are near x, their sums right; exact for numbers of 22 bits. What is not finite stays so.
static void test_limbs(void) {
    lane_limbs d;
    quarter_limbs e;
    float x[COL_BLOCK];
    int X[QUARTER_COLS];
    for (int round = 0; round < 300; round++) {
        const float size = ldexpf(1, random_int(-60, 60));
        const int exact = round % 3 == 0, wrong = round % COL_BLOCK;
        int bad = 0;
        for (int i = 0; i < COL_BLOCK; i++) {
            x[i] = size * random_float() * ldexpf(1, random_int(0, 12));
            if (exact) x[i] = size * (float)(random_int(0, 1) ? (1 << 22) - 1 : random_int(-(1 << 22), 1 << 22));
            if (round % 5 == 0 && i % 3) x[i] = 0;
        }
        lane_limbs_of(x, &d);
        quarter_limbs_of(x, &e);
        for (int l = 0; l < COL_BLOCK_LANES; l++) {
            int sum = 0;
            for (int i = 0; i < LANE_COLS; i++) sum += X[i] = limbs_value(&d, i % 2, 4 * l + i / 2);
            bad += limbs_off(x + LANE_COLS * l, d.act_scale[l], X, LANE_COLS, exact) + (d.zero[l] != -E2M1_ZERO * sum);
        }
        for (int q = 0; q < QUARTERS; q++) {
            int sum = 0;
            for (int i = 0; i < QUARTER_COLS; i++) sum += X[i] = quarter_value(&e, q, i);
            bad += limbs_off(x + QUARTER_COLS * q, e.act_scale[q], X, QUARTER_COLS, exact) + (e.sum[q] != (float)sum) + (e.zero[q] != -E2M1_ZERO * sum);
        }
        CHECK(!bad, "limbs: %d wrong", bad);
        x[wrong] = x[wrong ^ 1] = round % 2 ? NAN : -INFINITY;
        lane_limbs_of(x, &d);
        quarter_limbs_of(x, &e);
        for (int l = 0; l < COL_BLOCK_LANES; l++)
            CHECK(!isfinite(d.act_scale[l]) == (l == wrong / LANE_COLS), "the scale of lane %d of what is not finite", l);
        for (int q = 0; q < QUARTERS; q++)
            CHECK(!isfinite(e.act_scale[q]) == (q == wrong / QUARTER_COLS), "the scale of quarter %d of what is not finite", q);
    }
}
