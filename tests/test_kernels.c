// Tests of kernels.cu: each stage against a plain double-precision version of its formula, and against itself computed
// in other blocks and by other numbers of threads, bit for bit.
//
// Contents   1. Helpers    2. Numbers    3. Threads    4. Matrices    5. Norms and angles    6. DeltaNet
//            7. Attention  8. Mixture of experts

#include "../kernels.cu"
#include "test.h"

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

// Uniform in [-1, 1].
static float random_float(void) {
    return (float)((double)random_bits() / 2147483647.5 - 1);
}

static float *floats(size_t n) {
    return (float *)room(n * sizeof(float));
}

static float *random_floats(size_t n, float factor) {
    float *f = floats(n);
    for (size_t i = 0; i < n; i++) f[i] = factor * random_float();
    return f;
}

static int same_bits(const float *a, const float *b, size_t n) {
    return !memcmp(a, b, n * sizeof *a);
}

// Largest |a - b| as a share of the largest |b|; infinite when anything is not finite.
static double distance(const float *a, const double *b, size_t n) {
    double worst = 0, size = 1e-30;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        worst = fmax(worst, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    return worst / size;
}

// ---- 2. Numbers -----------------------------------------------------------------------------------------------------

// A floating-point code by the textbook: sign, exponent, mantissa. has_infinity: the top exponent is Inf and NaN.
static double code_value(uint32_t code, int exponent_bits, int mantissa_bits, int has_infinity) {
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    int e = (int)(code >> mantissa_bits) & top, m = (int)(code & ((1u << mantissa_bits) - 1));
    double sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    if (has_infinity && e == top) return m ? NAN : sign * INFINITY;
    if (e == 0) return sign * ldexp(m, 1 - bias - mantissa_bits);
    return sign * ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits);
}

static int same_value(float got, double want) {
    return isnan(want) ? isnan(got) : (double)got == want && !signbit(got) == !signbit(want);
}

static float fp8_value(uint32_t code) {
    return fp8_bits((uint8_t)code) * FP8_UNIT;
}

// The NaN codes 7f and ff would read as 480 and -480: loading refuses them.
static void test_fp8_codes(void) {
    for (uint32_t c = 0; c < 256; c++)
        CHECK(same_value(fp8_value(c), code_value(c, 4, 3, 0)), "E4M3 %02x", c);
    CHECK(fp8_value(0x7f) == 480 && fp8_value(0xff) == -480, "E4M3 NaN codes");
}

static void test_half_codes(void) {
    int bad_bf16 = 0, bad_f16 = 0;
    for (uint32_t c = 0; c < 65536; c++) {
        bad_bf16 += !same_value(float_of_bf16((uint16_t)c), code_value(c, 8, 7, 1));
        bad_f16 += !same_value(float_of_f16((uint16_t)c), code_value(c, 5, 10, 1));
    }
    CHECK(!bad_bf16, "BF16: %d of 65536 codes are wrong", bad_bf16);
    CHECK(!bad_f16, "F16: %d of 65536 codes are wrong", bad_f16);
}

typedef struct code_vector { uint8_t code; double value; uint16_t half; } code_vector;

static const code_vector e4m3_vectors[] = {
    {0x00, 0, 0x0000}, {0x01, 0.001953125, 0x1800}, {0x02, 0.00390625, 0x1c00}, {0x07, 0.013671875, 0x2300},
    {0x08, 0.015625, 0x2400}, {0x09, 0.017578125, 0x2480}, {0x0f, 0.029296875, 0x2780}, {0x10, 0.03125, 0x2800},
    {0x30, 0.5, 0x3800}, {0x38, 1, 0x3c00}, {0x39, 1.125, 0x3c80}, {0x3a, 1.25, 0x3d00}, {0x3c, 1.5, 0x3e00},
    {0x40, 2, 0x4000}, {0x48, 4, 0x4400}, {0x70, 128, 0x5800}, {0x77, 240, 0x5b80}, {0x78, 256, 0x5c00},
    {0x7d, 416, 0x5e80}, {0x7e, 448, 0x5f00}, {0x80, -0.0, 0x8000}, {0x81, -0.001953125, 0x9800},
    {0xb8, -1, 0xbc00}, {0xfe, -448, 0xdf00},
};

static void test_e4m3_vectors(void) {
    for (size_t i = 0; i < sizeof e4m3_vectors / sizeof *e4m3_vectors; i++) {
        const code_vector *v = &e4m3_vectors[i];
        CHECK(same_value(fp8_value(v->code), v->value), "E4M3 %02x", v->code);
        CHECK(same_value(float_of_f16(v->half), v->value), "F16 %04x", v->half);
    }
}

// 130 x 130 codes in blocks of 128 x 128 under four scales, of which the last is the BF16 3901.
static void test_block_fp8_vector(void) {
    uint8_t *codes = (uint8_t *)room(130 * 130);
    float scale[4] = {0.5f, 0.25f, 2, float_of_bf16(0x3901)}, row[130];
    matrix w = {FORMAT_FP8_BLOCK, 130, 130, {codes, scale}, 128, 128};
    const int at[6][3] = {{0, 0, 0x38}, {127, 127, 0x7e}, {127, 128, 0x7e}, {128, 127, 0xb8}, {129, 129, 0x01},
                          {128, 128, 0xfe}};
    const float want[6] = {0.5f, 224, 112, -2, 2.4028122425079346e-07f, -0.05511474609375f};
    for (int i = 0; i < 6; i++) codes[at[i][0] * 130 + at[i][1]] = (uint8_t)at[i][2];
    CHECK(scale[3] == 0.00012302398681640625f, "BF16 3901");
    for (int i = 0; i < 6; i++) {
        matrix_floats(&w, at[i][0], 0, 130, row);
        CHECK(row[at[i][1]] == want[i], "W[%d][%d] is %a", at[i][0], at[i][1], (double)row[at[i][1]]);
    }
    free(codes);
}

// ---- 3. Threads -----------------------------------------------------------------------------------------------------

typedef struct visits { unsigned char *count; int n, threads, bad; } visits;

static void visit(void *context, int begin, int end, int thread) {
    visits *v = (visits *)context;
    if (begin < 0 || begin >= end || end > v->n || thread < 0 || thread >= v->threads)
        __atomic_store_n(&v->bad, 1, __ATOMIC_RELAXED);
    for (int i = begin; i < end; i++) __atomic_add_fetch(&v->count[i], 1, __ATOMIC_RELAXED);
}

// Each index of each loop is visited exactly once. Tiny loops right behind each other find helpers in any state.
static void test_pool_visits(int threads, int rounds) {
    unsigned char count[300];
    pool *p = pool_open(threads);
    int bad = 0;
    if (!CHECK(p != NULL, "a pool of %d threads", threads)) return;
    for (int round = 0; round < rounds; round++) {
        visits v = {count, round % 7 ? round % 5 : random_int(0, 300), threads, 0};
        memset(count, 0, sizeof count);
        parallel(p, v.n, visit, &v);
        for (int i = 0; i < 300; i++) bad += count[i] != (i < v.n);
        bad += v.bad;
        if (round % 2000 == 1999) usleep(2000);                /* long enough for the helpers to fall asleep */
    }
    CHECK(!bad, "%d threads: %d wrong visits", threads, bad);
    pool_close(p);
}

static void test_pools(void) {
    for (int threads = 1; threads <= 4; threads++) test_pool_visits(threads, 6000);
    test_pool_visits(16, 150);
    for (int i = 0; i < 40; i++) {
        pool *p = pool_open(1 + i % 5);
        CHECK(p != NULL, "pool %d", i);
        pool_close(p);
    }
    pool_close(NULL);
}

// ---- 4. Matrices ----------------------------------------------------------------------------------------------------

typedef struct random_matrix { matrix w; void *data; double *value; } random_matrix;

// So many columns, or a few more, that a format can have.
static int cols_for(enum format type, int cols) {
    int unit = type == FORMAT_NVFP4 ? 16 : format_has_groups(type) ? 8 : 1;
    return (cols + unit - 1) / unit * unit;
}

// A random number of a component that is as stored, and no NaN.
static void random_number(enum format type, int component, void *data, size_t i) {
    uint16_t half = (uint16_t)((random_bits() & 0x83ff) | (uint32_t)random_int(10, 15) << 10);
    uint16_t bf16 = (uint16_t)(random_bits() & 0x80ff) | 0x3f00;
    float f = random_float();
    uint32_t word;
    memcpy(&word, &f, 4);
    if (component == CODES && type == FORMAT_F16) ((uint16_t *)data)[i] = half;
    else if (component == CODES && type == FORMAT_BF16) ((uint16_t *)data)[i] = bf16;
    else if (component == CODES && (type == FORMAT_FP8_BLOCK || type == FORMAT_FP8_ROW))
        ((uint8_t *)data)[i] = (uint8_t)((random_bits() & 0x80) | (uint32_t)random_int(0, 0x7e));
    else if (component == CODES && type != FORMAT_F32) ((uint8_t *)data)[i] = (uint8_t)random_bits();
    else if (component == SCALES && type == FORMAT_NVFP4) ((uint8_t *)data)[i] = (uint8_t)random_int(0x20, 0x48);
    else if (component == SCALES && format_has_groups(type)) ((uint32_t *)data)[i] = (word & ~31u) | (uint32_t)random_int(0, 16);
    else ((float *)data)[i] = f;
}

// The weight of random components, by the textbook. at: which number of its component each one is.
static double value_of(const matrix *w, int row, int col) {
    size_t at[MAX_COMPONENTS] = {0};
    const component *p = formats[w->format]->components;
    for (int i = 0; i < formats[w->format]->component_count; i++) {
        int rows = p[i].rows ? p[i].rows : w->block_rows, cols = p[i].cols ? p[i].cols : w->block_cols;
        at[i] = (size_t)(row / rows) * (size_t)((w->cols - 1) / cols + 1) + (size_t)(col / cols);
    }
    const float *scale = (const float *)w->component[SCALES];
    const uint8_t *bytes = (const uint8_t *)w->component[CODES];
    uint32_t nibble = bytes[at[CODES] / 2] >> (at[CODES] % 2 ? 4 : 0) & 15, word = 0;
    double block = 0;
    switch ((int)w->format) {
    case FORMAT_F32: return ((const float *)w->component[CODES])[at[CODES]];
    case FORMAT_F16: return code_value(((const uint16_t *)w->component[CODES])[at[CODES]], 5, 10, 1);
    case FORMAT_BF16: return code_value(((const uint16_t *)w->component[CODES])[at[CODES]], 8, 7, 1);
    case FORMAT_NVFP4:
        block = code_value(((const uint8_t *)w->component[SCALES])[at[SCALES]], 4, 3, 0);
        return code_value(nibble, 2, 1, 0) * (double)(float)(block * ((const float *)w->component[FACTOR])[0]);
    case FORMAT_INT4: case FORMAT_INT4_FINE:
        word = ((const uint32_t *)w->component[SCALES])[at[SCALES]];
        return ((double)nibble - (word & 31)) * (double)float_of_bits(word & ~31u);
    default: return (float)code_value(bytes[at[CODES]], 4, 3, 0) * scale[at[SCALES]];
    }
}

static random_matrix matrix_new(enum format type, int rows, int cols, int block_rows, int block_cols) {
    random_matrix r;
    matrix w = {type, rows, cols, {NULL}, format_has_groups(type) ? 1 : block_rows, block_cols};
    size_t size = 0, at = 0;
    for (int i = 0; i < formats[type]->component_count; i++) size += matrix_component_capacity(&w, i);
    r.data = room(size);
    for (int i = 0; i < formats[type]->component_count; at += matrix_component_capacity(&w, i), i++) {
        const component *p = &formats[type]->components[i];
        w.component[i] = (char *)r.data + at;
        for (size_t n = component_words(p, component_rows(p, &w), component_cols(p, &w)); n--;)
            random_number(type, i, (char *)r.data + at, n);
    }
    r.value = (double *)room((size_t)rows * (size_t)cols * sizeof(double));
    for (int i = 0; i < rows * cols; i++) r.value[i] = value_of(&w, i / cols, i % cols);
    r.w = w;
    return r;
}

static void matrix_delete(random_matrix *r) {
    free(r->data);
    free(r->value);
}

// Any slice of any row, with blocks that divide nothing, and whole blocks of 128 columns.
static void test_matrix_rows(void) {
    for (int round = 0; round < 100 * FORMAT_COUNT; round++) {
        const enum format type = (enum format)(round % FORMAT_COUNT);
        int whole = round % 5 == 0, rows = random_int(1, 40), cols = cols_for(type, random_int(whole ? 256 : 1, 300));
        int block_cols = whole ? 32 << round % 3 : random_int(1, 140);
        if (format_has_groups(type) && round % 25 == 0) block_cols = cols;
        random_matrix r = matrix_new(type, rows, cols, random_int(1, 50), block_cols);
        int row = random_int(0, rows - 1), col = whole ? 128 * random_int(0, 1) : random_int(0, cols - 1);
        int n = whole ? 128 : random_int(1, cols - col), bad = 0;
        float *out = floats((size_t)n);
        matrix_floats(&r.w, row, col, n, out);
        for (int i = 0; i < n; i++) bad += out[i] != (float)r.value[row * cols + col + i];
        CHECK(!bad, "type %d, %dx%d, row %d, columns %d+%d: %d wrong", (int)type, rows, cols, row, col, n, bad);
        free(out);
        matrix_delete(&r);
    }
}

static void test_dots(void) {
    for (int n = 0; n < 400; n += n < 70 ? 1 : 37) {
        float *a = random_floats((size_t)n + 1, 1), *b = random_floats((size_t)n + 1, 1);
        for (int shift = 0; shift < 2; shift++) {              /* at addresses aligned to 64 bytes and to 4 */
            double want = 0;
            float got = dot(a + shift, b, n);
            for (int i = 0; i < n; i++) want += (double)a[shift + i] * b[i];
            CHECK(fabs(got - want) < 1e-5, "dot of %d: %g, expected %g", n, (double)got, want);
        }
        free(a);
        free(b);
    }
}

static token_digits *digits_room(int rows, int cols) {
    return (token_digits *)room((size_t)rows * (size_t)stretch_count(cols) * sizeof(token_digits));
}

// A row of linear() has the same bits whatever T and the number of threads, and is right.
static void test_linear(enum format type, int rows, int cols, int block_cols, pool **pools) {
    enum { MOST = 132 };
    static const int all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, MOST, 0}, few[] = {1, 3, 8, 65, 0};
    const int *sizes = test_brief ? few : all, most = test_brief ? 65 : MOST;
    random_matrix r = matrix_new(type, rows, cols, 16, block_cols);
    float *x = random_floats((size_t)MOST * (size_t)cols, 1), *y = floats((size_t)MOST * (size_t)rows);
    float *plain = floats((size_t)MOST * (size_t)rows);
    double *want = (double *)room((size_t)(MOST * rows) * sizeof(double));
    token_digits *d = digits_room(MOST, cols);
    for (int t = 0; t < most; t++)
        linear(pools[0], &r.w, x + (size_t)t * (size_t)cols, plain + (size_t)t * (size_t)rows, 1, 0, d);
    for (int i = 0; i < most * rows; i++)
        for (int c = 0; c < cols; c++) want[i] += r.value[i % rows * cols + c] * x[i / rows * cols + c];
    const double off = distance(plain, want, (size_t)(most * rows));
    CHECK(off < 1e-5, "linear %dx%d of type %d: off by %g", rows, cols, (int)type, off);
    for (int p = 0; p < 3; p += 1 + test_brief)
        for (int i = 0; sizes[i]; i++) {
            memset(y, 0, (size_t)(MOST * rows) * sizeof(float));
            linear(pools[p], &r.w, x, y, sizes[i], 0, d);
            CHECK(same_bits(y, plain, (size_t)(sizes[i] * rows)), "linear %dx%d, T=%d, %d threads", rows, cols,
                  sizes[i], p + 1);
            linear(pools[p], &r.w, x, y, sizes[i], 1, d);
            int bad = 0;
            for (int j = 0; j < sizes[i] * rows; j++) bad += y[j] != plain[j] + plain[j];
            CHECK(!bad, "linear with add %dx%d, T=%d, %d threads: %d wrong", rows, cols, sizes[i], p + 1, bad);
        }
    free(x);
    free(y);
    free(plain);
    free(want);
    free(d);
    matrix_delete(&r);
}

static void test_linears(pool **pools) {
    for (int type = 0; type < FORMAT_COUNT; type++) {
        test_linear((enum format)type, 37, cols_for((enum format)type, 65), 40, pools);
        test_linear((enum format)type, 1, cols_for((enum format)type, 1), 128, pools);
        test_linear((enum format)type, 3, cols_for((enum format)type, 300), 128, pools);
    }
    test_linear(FORMAT_BF16, 40, 1024, 1, pools);
    test_linear(FORMAT_FP8_BLOCK, 33, 1024, 128, pools);
    test_linear(FORMAT_FP8_BLOCK, 33, 1088, 384, pools);       // columns that neither tiles nor blocks divide
    test_linear(FORMAT_FP8_ROW, 33, 1088, 384, pools);
    test_linear(FORMAT_F32, 1, 4096, 1, pools);
    test_linear(FORMAT_FP8_BLOCK, 2, 2100, 100, pools);
    test_linear(FORMAT_NVFP4, 2, 2048, 128, pools);
    for (int group = 32; group <= 2048; group *= group < 128 ? 2 : 4) test_linear(FORMAT_INT4, 2, 2048, group, pools);
    for (int cols = 2000; cols <= 4400; cols += 800) {       // ends of several lengths
        test_linear(FORMAT_NVFP4, 19, cols, 128, pools);
        for (int group = 16; group <= 512; group *= 2) test_linear(FORMAT_INT4, 5, cols, group, pools);
    }
}

#ifdef LEVELS
// Numbers to floats as the plain loops do it, bit for bit, in any length.
static void test_unpacking(int level) {
    uint16_t half[300];
    uint8_t code[300];
    float plain[300], out[300];
    for (int round = 0; round < 300; round++) {
        int n = random_int(0, 300);
        for (int i = 0; i < 300; i++) {
            code[i] = (uint8_t)random_bits();
            do half[i] = (uint16_t)random_bits();
            while ((half[i] & 0x7c00) == 0x7c00 && half[i] & 0x3ff);       // a NaN's bits are anybody's
        }
        unpack_e4m3_plain(code, n, plain);
        level == 4 ? unpack_e4m3_v4(code, n, out) : unpack_e4m3_v3(code, n, out);
        CHECK(same_bits(out, plain, (size_t)n), "level %d: %d FP8 codes", level, n);
        unpack_bf16_plain(half, n, plain);
        level == 4 ? unpack_bf16_v4(half, n, out) : unpack_bf16_v3(half, n, out);
        CHECK(same_bits(out, plain, (size_t)n), "level %d: %d BF16 numbers", level, n);
        unpack_f16_plain(half, n, plain);
        level == 4 ? unpack_f16_v4(half, n, out) : unpack_f16_v3(half, n, out);
        CHECK(same_bits(out, plain, (size_t)n), "level %d: %d F16 numbers", level, n);
    }
}

// A token row's product has the same bits however many others there are.
static void test_batches(int level, const matrix *w, int rows, token_batch *from, float (*want)[ROW_BLOCK]) {
    float y[TOKEN_BATCH][ROW_BLOCK];
    for (from->count = 1; from->count < 12; from->count++) {
        (level == 4 ? block_dots_v4 : block_dots_v3)(w, 0, rows, from, y);
        for (int t = 0; t < from->count; t++)
            CHECK(same_bits(y[t], want[t], (size_t)rows), "level %d, type %d, row %d of %d", level, (int)w->format, t,
                  from->count);
    }
}

// A block's products near those of the plain version; and, for one token row, streamed with the same bits as in a block.
static void test_level_products(int level, enum format type, int rows, int cols, int streams) {
    random_matrix r = matrix_new(type, rows, cols, 16, 128);
    float *x = random_floats((size_t)TOKEN_BATCH * (size_t)cols, 1), plain[TOKEN_BATCH][ROW_BLOCK], y[TOKEN_BATCH][ROW_BLOCK];
    float one[ROW_BLOCK];
    token_batch from;
    token_digits *d = digits_room(TOKEN_BATCH, cols);
    digit_rows turned = {x, (size_t)cols, TOKEN_BATCH, cols, d};
    double size = 0, worst = 0;
    digit_row(&turned, 0, TOKEN_BATCH, 0);
    from.count = TOKEN_BATCH;
    for (int t = 0; t < TOKEN_BATCH; t++) {
        from.x[t] = x + (size_t)t * (size_t)cols;
        from.digits[t] = d + (size_t)t * (size_t)stretch_count(cols);
    }
    block_dots_plain(&r.w, 0, rows, &from, plain);
    (level == 4 ? block_dots_v4 : block_dots_v3)(&r.w, 0, rows, &from, y);
    for (int t = 0; t < TOKEN_BATCH; t++)
        for (int i = 0; i < rows; i++) {
            size = fmax(size, fabs((double)plain[t][i]));
            worst = fmax(worst, fabs((double)plain[t][i] - (double)y[t][i]));
        }
    CHECK(worst <= 1e-5 * size, "level %d, %dx%d of type %d: off by %g of %g", level, rows, cols, (int)type, worst, size);
    test_batches(level, &r.w, rows, &from, y);
    int streamed = (level == 4 ? stream_v4 : stream_v3)(&r.w, 0, rows, x, one);
    CHECK(streamed == streams && (!streamed || same_bits(one, y[0], (size_t)rows)), "level %d, %dx%d of type %d: streamed",
          level, rows, cols, (int)type);
    free(x);
    free(d);
    matrix_delete(&r);
}

// The pieces of products of four bits as the plain loops have them, bit for bit.
static void test_stretches(int level) {
    float scale[2][STRETCH_LANES], zero[2][STRETCH_LANES];
    for (int round = 0; round < 100; round++) {
        uint8_t code[8];
        uint32_t word[4];
        const int shift = 2 + round % 3;
        for (int i = 0; i < 8; i++) code[i] = (uint8_t)random_int(0, 0x7e);
        for (int i = 0; i < 4; i++) word[i] = (random_bits() & 0xbfffffe0) | (uint32_t)random_int(0, 16);
        e4m3_scales_plain(code, scale[0]);
        level == 4 ? e4m3_scales_v4(code, scale[1]) : e4m3_scales_v3(code, scale[1]);
        CHECK(same_bits(scale[0], scale[1], STRETCH_LANES), "level %d: scales of NVFP4", level);
        word_scales_plain(word, shift, scale[0], zero[0]);
        level == 4 ? word_scales_v4(word, shift, scale[1], zero[1]) : word_scales_v3(word, shift, scale[1], zero[1]);
        CHECK(same_bits(scale[0], scale[1], STRETCH_LANES) && same_bits(zero[0], zero[1], STRETCH_LANES),
              "level %d: scales and zero points of INT4, %d lanes each", level, 1 << shift);
    }
}

#endif

// lane_products of a level, of one, two or CODE_ROWS weight rows.
#define LANE_PRODUCTS(LEVEL, level, LANES)                                                                                    \
    LEVEL INLINE void lane_products_of_format_##level(const uint8_t (*codes)[STRETCH / 2], int rows, const token_digits *d,   \
                                                      float (*out)[STRETCH_LANES], const enum format f) {                     \
        for (int part = 0; part < STRETCH_LANES / LANES; part++) {                                                            \
            codes_##level c[CODE_ROWS];                                                                                       \
            products_##level products[CODE_ROWS];                                                                             \
            for (int r = 0; r < rows; r++) c[r] = codes_at_##level(codes[r] + 4 * LANES * part, f);                           \
            if (rows == 1) lane_products_##level(products, c, 1, d, part, f);                                                 \
            else if (rows == 2) lane_products_##level(products, c, 2, d, part, f);                                            \
            else lane_products_##level(products, c, CODE_ROWS, d, part, f);                                                   \
            for (int r = 0; r < rows; r++) *(vec_##level *)(out[r] + LANES * part) = products[r];                             \
        }                                                                                                                     \
    }                                                                                                                         \
    LEVEL static void lane_products_of_##level(const uint8_t (*codes)[STRETCH / 2], int rows, const token_digits *d,          \
                                               float (*out)[STRETCH_LANES], int nvfp4) {                                      \
        if (nvfp4) lane_products_of_format_##level(codes, rows, d, out, FORMAT_NVFP4);                                        \
        else lane_products_of_format_##level(codes, rows, d, out, FORMAT_INT4);                                               \
    }
#ifdef LEVELS
LANE_PRODUCTS(V4, v4, 16)
LANE_PRODUCTS(V3, v3, 8)
#endif
LANE_PRODUCTS(, plain, 4)

// X of an even column, or of an odd one.
static int digits_value(const token_digits *d, int odd, int i) {
    return 65536 * d->digit[0][odd][i] + 256 * d->digit[1][odd][i] + d->digit[2][odd][i];
}

// Sums of eight products are exact, also of the largest codes and digits, for each level and number of rows.
static void test_lane_products(int level) {
    token_digits d;
    uint8_t codes[CODE_ROWS][STRETCH / 2];
    float out[CODE_ROWS][STRETCH_LANES];
    for (int round = 0; round < 300; round++) {
        const int nvfp4 = round % 2, extreme = round % 3 == 0, rows = 1 << round % 5 % 3;
        const uint8_t *values = nvfp4 ? e2m1_values : int4_values;
        int bad = 0;
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < STRETCH / 2; i++)
                codes[r][i] = extreme ? (uint8_t)(nvfp4 ? 0x77 : 0xff) : (uint8_t)random_bits();
        for (int i = 0; i < STRETCH; i++) {
            ((int8_t *)d.digit[0])[i] = (int8_t)(extreme ? round % 4 < 2 ? 63 : -64 : random_int(-64, 63));
            ((int8_t *)d.digit[1])[i] = (int8_t)(extreme ? round % 4 < 2 ? 127 : -128 : random_int(-128, 127));
            ((int8_t *)d.digit[2])[i] = (int8_t)(extreme ? round % 4 < 2 ? 127 : -128 : random_int(-128, 127));
        }
        for (int l = 0; l < STRETCH_LANES; l++) {
            d.zero[l] = 0;
            for (int i = 4 * l; i < 4 * l + 4; i++) d.zero[l] -= E2M1_ZERO * (digits_value(&d, 0, i) + digits_value(&d, 1, i));
        }
#ifdef LEVELS
        if (level == 4) lane_products_of_v4((const uint8_t (*)[STRETCH / 2])codes, rows, &d, out, nvfp4);
        else if (level == 3) lane_products_of_v3((const uint8_t (*)[STRETCH / 2])codes, rows, &d, out, nvfp4);
        else
#endif
            lane_products_of_plain((const uint8_t (*)[STRETCH / 2])codes, rows, &d, out, nvfp4);
        for (int l = 0; l < rows * STRETCH_LANES; l++) {
            const int r = l / STRETCH_LANES, lane = l % STRETCH_LANES, zero = nvfp4 ? E2M1_ZERO : 0;
            int want = 0;
            for (int i = 4 * lane; i < 4 * lane + 4; i++)
                want += (values[codes[r][i] & 15] - zero) * digits_value(&d, 0, i) +
                        (values[codes[r][i] >> 4] - zero) * digits_value(&d, 1, i);
            bad += out[r][lane] != (float)want;
        }
        CHECK(!bad, "level %d: %d lanes' products of %d rows", level, bad, rows);
    }
}

// x = unit X to half a unit, X within 23 bits, and its sums; exact for numbers of 22 bits. What is not finite stays so.
static void test_digits(void) {
    token_digits d;
    float x[STRETCH];
    for (int round = 0; round < 300; round++) {
        const float size = ldexpf(1, random_int(-60, 60));
        int bad = 0;
        for (int i = 0; i < STRETCH; i++) {
            x[i] = size * random_float() * ldexpf(1, random_int(0, 12));
            if (round % 3 == 0) x[i] = size * (float)(random_int(0, 1) ? (1 << 22) - 1 : random_int(-(1 << 22), 1 << 22));
            if (round % 5 == 0 && i % 3) x[i] = 0;
        }
        digits_of(x, &d);
        for (int l = 0; l < STRETCH_LANES; l++) {
            int sum = 0;
            for (int i = 0; i < LANE_COLS; i++) {
                const int at = 4 * l + i / 2, X = digits_value(&d, i % 2, at);
                const double off = fabs((double)x[LANE_COLS * l + i] - (double)d.unit[l] * X);
                bad += abs(X) > 1 << 22 || off > (round % 3 ? 0.5 * (double)d.unit[l] : 0);
                sum += X;
            }
            bad += d.sum[l] != (float)sum || d.zero[l] != -E2M1_ZERO * sum;
        }
        CHECK(!bad, "digits: %d wrong", bad);
        x[round % STRETCH] = x[round % STRETCH ^ 1] = round % 2 ? NAN : -INFINITY;
        digits_of(x, &d);
        for (int l = 0; l < STRETCH_LANES; l++)
            CHECK(!isfinite(d.unit[l]) == (l == round % STRETCH / LANE_COLS), "the unit of lane %d, where one is not finite", l);
    }
}

#ifdef LEVELS
static void test_levels(void) {
    for (int level = 3; level <= cpu_level(); level++) {
        test_unpacking(level);
        test_stretches(level);
        test_lane_products(level);
        for (int type = 0; type < FORMAT_COUNT; type++) {
            int stream = type == FORMAT_BF16 || type == FORMAT_F16 || type == FORMAT_FP8_BLOCK || type == FORMAT_FP8_ROW;
            test_level_products(level, (enum format)type, 16, 640, stream);
            test_level_products(level, (enum format)type, 4, 64, stream);
            test_level_products(level, (enum format)type, 16, 600, 0);
            test_level_products(level, (enum format)type, 7, 640, 0);
            test_level_products(level, (enum format)type, 1, 3, 0);
        }
    }
}
#endif

// Four matrices of one input in one loop give what each gives alone.
static void test_project(pool **pools) {
    random_matrix r[4];
    float *x = random_floats(3 * 50, 1), *alone[4], *together[4];
    projection job;
    memset(&job, 0, sizeof job);
    job.digits = digits_room(3, 50);
    for (int i = 0; i < 4; i++) {
        r[i] = matrix_new((enum format)i, 1 + 10 * i, 50, 7, 9);
        alone[i] = floats((size_t)(3 * r[i].w.rows));
        together[i] = floats((size_t)(3 * r[i].w.rows));
        job.w[i] = &r[i].w;
        job.y[i] = together[i];
        linear(pools[0], &r[i].w, x, alone[i], 3, 0, job.digits);
    }
    job.count = 4;
    job.x = x;
    job.T = 3;
    project(pools[2], &job);
    for (int i = 0; i < 4; i++) {
        CHECK(same_bits(alone[i], together[i], (size_t)(3 * r[i].w.rows)), "projection %d of 4", i);
        matrix_delete(&r[i]);
        free(alone[i]);
        free(together[i]);
    }
    free(job.digits);
    free(x);
}

static void test_embed(void) {
    random_matrix r = matrix_new(FORMAT_FP8_BLOCK, 20, 33, 8, 16);
    const int32_t ids[4] = {19, 0, 7, 19};
    float x[4 * 33];
    int bad = 0;
    embed(&r.w, ids, 4, x);
    for (int i = 0; i < 4 * 33; i++) bad += x[i] != (float)r.value[ids[i / 33] * 33 + i % 33];
    CHECK(!bad, "embed: %d wrong", bad);
    matrix_delete(&r);
}

// ---- 5. Norms and angles --------------------------------------------------------------------------------------------

static int near(double got, double want, double tolerance) {
    return fabs(got - want) <= tolerance * (1 + fabs(want));
}

static void test_activations(void) {
    for (double x = -60; x <= 60; x += 0.37) {
        CHECK(near(sigmoid((float)x), 1 / (1 + exp(-(double)(float)x)), 1e-6), "sigmoid(%g)", x);
        CHECK(near(silu((float)x), x / (1 + exp(-x)), 2e-6), "silu(%g)", x);
        CHECK(near(softplus((float)x), log1p(exp(x)), 2e-6), "softplus(%g)", x);
    }
    CHECK(sigmoid(-200) == 0 && sigmoid(200) == 1 && silu(-200) == 0, "sigmoid far out");
    CHECK(softplus(-200) == 0 && softplus(200) == 200, "softplus far out");
}

static void test_norms(void) {
    float x[3] = {3, 4, 0}, w[3] = {1, 2, 0.5f}, out[3];
    rms_norm(out, x, w, 1, 3, 0);
    double factor = 1 / sqrt(25.0 / 3);
    CHECK(near(out[0], 3 * factor, 1e-6) && near(out[1], 8 * factor, 1e-6) && out[2] == 0, "rms_norm times w");
    CHECK(near(rms_factor(x, 3, 2), 1 / sqrt(25.0 / 3 + 2), 1e-6), "eps is added to the mean");
    rms_norm(x, x, w, 1, 3, 0);
    CHECK(same_bits(x, out, 3), "rms_norm in place");
    float l[2] = {3, 4}, zero[2] = {0, 0}, tiny[2] = {1e-3f, 0};
    l2_norm(l, 2, 2);
    CHECK(near(l[0], 1.2, 1e-6) && near(l[1], 1.6, 1e-6), "l2_norm: %g %g", (double)l[0], (double)l[1]);
    l2_norm(zero, 2, 1);
    l2_norm(tiny, 2, 1);
    CHECK(zero[0] == 0 && near(tiny[0], sqrt(0.5), 1e-6), "l2_norm adds 1e-6 under the root");
    float big[2] = {3e30f, 4e30f};
    l2_norm(big, 2, 1);
    CHECK(near(big[0], 0.6, 1e-6), "l2_norm of large numbers does not overflow");
}

static void test_rotary(int dim, int first, float theta) {
    float *angles = floats((size_t)(3 * dim)), *x = random_floats((size_t)dim, 1), *y = floats((size_t)dim);
    int half = dim / 2;
    rotary_angles(angles, first, 3, dim, theta);
    for (int t = 0; t < 3; t++) {
        memcpy(y, x, (size_t)dim * sizeof(float));
        rotate(y, angles + t * dim, dim);
        for (int i = 0; i < half; i++) {
            double angle = (first + t) * pow(theta, -2.0 * i / dim), slack = 1e-5 + 3e-7 * fabs(angle);
            double a = x[i] * cos(angle) - x[half + i] * sin(angle), b = x[half + i] * cos(angle) + x[i] * sin(angle);
            CHECK(fabs(angles[t * dim + i] - cos(angle)) < slack, "cosine %d of %d at %d", i, dim, first + t);
            CHECK(fabs(angles[t * dim + half + i] - sin(angle)) < slack, "sine %d of %d at %d", i, dim, first + t);
            CHECK(fabs(y[i] - a) < 2 * slack && fabs(y[half + i] - b) < 2 * slack, "rotation %d at %d", i, first + t);
        }
    }
    free(angles);
    free(x);
    free(y);
}

// ---- 6. DeltaNet ----------------------------------------------------------------------------------------------------

// A layer's shape and weights, and random inputs of a whole sequence.
typedef struct delta_case {
    deltanet_shape shape;
    deltanet_weights w;
    int channels, keys, values, length;
    float *raw, *a, *b;          /* [length][...] */
} delta_case;

static delta_case delta_case_new(int key_heads, int ratio, int key_dim, int value_dim, int taps, int length) {
    delta_case c;
    memset(&c, 0, sizeof c);
    deltanet_shape shape = {0, key_heads, key_heads * ratio, key_dim, value_dim, taps, 1e-6f};
    c.shape = shape;
    c.channels = deltanet_channels(&shape);
    c.keys = key_heads * key_dim;
    c.values = shape.value_heads * value_dim;
    c.length = length;
    c.w.conv1d = random_floats((size_t)(c.channels * taps), 0.8f);
    c.w.A_log = random_floats((size_t)shape.value_heads, 2);
    c.w.dt_bias = random_floats((size_t)shape.value_heads, 2);
    c.raw = random_floats((size_t)(length * c.channels), 2);
    c.a = random_floats((size_t)(length * shape.value_heads), 3);
    c.b = random_floats((size_t)(length * shape.value_heads), 3);
    return c;
}

static void delta_case_delete(delta_case *c) {
    free((void *)(uintptr_t)c->w.conv1d);
    free((void *)(uintptr_t)c->w.A_log);
    free((void *)(uintptr_t)c->w.dt_bias);
    free(c->raw);
    free(c->a);
    free(c->b);
}

// One timeline on a case: its state, and the scratch of a block.
typedef struct delta_run {
    const delta_case *c;
    pool *threads;
    deltanet_state state;
    float *conv, *decay, *beta, *o;
    int count, accepted;
} delta_run;

static delta_run delta_run_new(const delta_case *c, pool *threads) {
    delta_run r;
    size_t n = (size_t)c->length;
    memset(&r, 0, sizeof r);
    r.c = c;
    r.threads = threads;
    r.state.S = floats((size_t)(c->values * c->shape.key_dim));
    r.state.window = floats((size_t)((c->shape.taps - 1) * c->channels));
    r.state.log_raw = floats((size_t)(BLOCK * c->channels));
    r.state.log_k = floats((size_t)(BLOCK * c->keys));
    r.state.log_u = floats((size_t)(BLOCK * c->values));
    r.state.log_decay = floats((size_t)(BLOCK * c->shape.value_heads));
    r.conv = floats(n * (size_t)c->channels);
    r.decay = floats(n * (size_t)c->shape.value_heads);
    r.beta = floats(n * (size_t)c->shape.value_heads);
    r.o = floats(n * (size_t)c->values);
    return r;
}

static void delta_run_delete(delta_run *r) {
    float *all[] = {r->state.S, r->state.window, r->state.log_raw, r->state.log_k, r->state.log_u, r->state.log_decay,
                    r->conv, r->decay, r->beta, r->o};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

// Computes T rows behind the timeline and keeps the first `keep`. r->o holds the outputs of all T.
static void delta_block(delta_run *r, int T, int keep) {
    const delta_case *c = r->c;
    deltanet_job job;
    memset(&job, 0, sizeof job);
    job.shape = &c->shape;
    job.w = &c->w;
    job.state = r->state;
    job.T = T;
    job.replay = r->accepted;
    job.raw = c->raw + (size_t)r->count * (size_t)c->channels;
    job.a = c->a + (size_t)r->count * (size_t)c->shape.value_heads;
    job.b = c->b + (size_t)r->count * (size_t)c->shape.value_heads;
    job.conv = r->conv;
    job.decay = r->decay;
    job.beta = r->beta;
    job.o = r->o;
    stage_conv_delta(r->threads, &job);
    r->accepted = T <= BLOCK ? keep : 0;
    r->count += keep;
}

// The same by the formulas, one token after the other, in double. out: [length][values].
static void delta_naive_conv(const delta_case *c, int t, double *row) {
    for (int ch = 0; ch < c->channels; ch++) {
        double sum = 0;
        for (int j = 0; j < c->shape.taps; j++) {
            int at = t - (c->shape.taps - 1) + j;
            if (at >= 0) sum += (double)c->w.conv1d[ch * c->shape.taps + j] * c->raw[at * c->channels + ch];
        }
        row[ch] = sum / (1 + exp(-sum));
    }
}

static void naive_l2(double *x, int n, double factor) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) x[i] *= factor / sqrt(sum + 1e-6);
}

static void delta_naive_token(const delta_case *c, int t, double *row, double *S, double *out) {
    int kd = c->shape.key_dim, vd = c->shape.value_dim, heads = c->shape.value_heads;
    delta_naive_conv(c, t, row);
    for (int h = 0; h < c->shape.key_heads; h++) {
        naive_l2(row + h * kd, kd, 1 / sqrt(kd));
        naive_l2(row + c->keys + h * kd, kd, 1);
    }
    for (int h = 0; h < heads; h++) {
        const double *q = row + h / (heads / c->shape.key_heads) * kd, *k = q + c->keys;
        const double *v = row + 2 * c->keys + h * vd;
        double beta = 1 / (1 + exp(-(double)c->b[t * heads + h]));
        double g = -exp(c->w.A_log[h]) * log1p(exp((double)c->a[t * heads + h] + c->w.dt_bias[h]));
        double *s = S + h * vd * kd;                           /* [value_dim][key_dim] */
        for (int i = 0; i < vd * kd; i++) s[i] *= exp(g);
        for (int j = 0; j < vd; j++) {
            double r = 0, o = 0;
            for (int i = 0; i < kd; i++) r += s[j * kd + i] * k[i];
            for (int i = 0; i < kd; i++) s[j * kd + i] += k[i] * beta * (v[j] - r);
            for (int i = 0; i < kd; i++) o += s[j * kd + i] * q[i];
            out[h * vd + j] = o;
        }
    }
}

static void test_delta_rule(delta_case *c, pool *threads) {
    size_t state = (size_t)(c->values * c->shape.key_dim), outputs = (size_t)(c->length * c->values);
    double *row = (double *)room((size_t)c->channels * sizeof(double)), *S = (double *)room(state * sizeof(double));
    double *want = (double *)room(outputs * sizeof(double));
    delta_run r = delta_run_new(c, threads);
    for (int t = 0; t < c->length; t++) delta_naive_token(c, t, row, S, want + t * c->values);
    delta_block(&r, c->length, c->length);
    CHECK(distance(r.o, want, outputs) < 1e-5, "delta rule outputs: off by %g", distance(r.o, want, outputs));
    CHECK(distance(r.state.S, S, state) < 1e-5, "delta rule state: off by %g", distance(r.state.S, S, state));
    int tail = c->shape.taps - 1;
    const float *last = c->raw + (size_t)(c->length - tail) * (size_t)c->channels;
    CHECK(same_bits(r.state.window, last, (size_t)(tail * c->channels)), "window of %d rows", tail);
    delta_run_delete(&r);
    free(row);
    free(S);
    free(want);
}

// One row at a time, all kept: outputs [length][values], and the conv outputs [length][channels].
static void delta_plain(const delta_case *c, pool *threads, float *o, float *conv, delta_run *keep_run) {
    *keep_run = delta_run_new(c, threads);
    for (int t = 0; t < c->length; t++) {
        delta_block(keep_run, 1, 1);
        memcpy(o + (size_t)t * (size_t)c->values, keep_run->o, (size_t)c->values * sizeof(float));
        memcpy(conv + (size_t)t * (size_t)c->channels, keep_run->conv, (size_t)c->channels * sizeof(float));
    }
}

// Conv outputs do not depend on where blocks end.
static void test_conv_blocks(const delta_case *c, pool *threads, const float *conv) {
    for (int T = 1; T <= 7; T++) {
        delta_run r = delta_run_new(c, threads);
        int bad = 0;
        while (r.count + T <= c->length) {
            int first = r.count;
            delta_block(&r, T, T);
            bad += !same_bits(r.conv, conv + (size_t)first * (size_t)c->channels, (size_t)(T * c->channels));
        }
        CHECK(!bad, "conv in blocks of %d rows, %d taps: %d blocks differ", T, c->shape.taps, bad);
        delta_run_delete(&r);
    }
}

// Random blocks, short ones kept in part: every output, kept or not, and the state at the end equal plain decoding.
static void test_replay(const delta_case *c, pool *threads, const float *plain_o, const delta_run *plain) {
    delta_run r = delta_run_new(c, threads);
    int bad = 0, blocks = 0;
    while (r.count < c->length) {
        int left = c->length - r.count, T = random_int(1, 4), first = r.count;
        if (random_int(0, 3) == 0) T = random_int(5, 20);
        if (T > left - 1) T = left > 1 ? left - 1 : 1;         /* the last row alone: it brings S up to it */
        int keep = T <= BLOCK ? random_int(1, T) : T;
        delta_block(&r, T, keep);
        bad += !same_bits(r.o, plain_o + (size_t)first * (size_t)c->values, (size_t)(T * c->values));
        blocks++;
    }
    CHECK(!bad, "replay: %d of %d blocks differ from plain decoding", bad, blocks);
    CHECK(same_bits(r.state.S, plain->state.S, (size_t)(c->values * c->shape.key_dim)), "replay: S differs");
    size_t window = (size_t)((c->shape.taps - 1) * c->channels);
    CHECK(same_bits(r.state.window, plain->state.window, window), "replay: window differs");
    delta_run_delete(&r);
}

static void test_deltanet(int key_heads, int ratio, int key_dim, int value_dim, int taps, pool **pools) {
    delta_case c = delta_case_new(key_heads, ratio, key_dim, value_dim, taps, 90);
    float *o = floats((size_t)(c.length * c.values)), *conv = floats((size_t)(c.length * c.channels));
    delta_run plain;
    test_delta_rule(&c, pools[1]);
    delta_plain(&c, pools[0], o, conv, &plain);
    test_conv_blocks(&c, pools[0], conv);
    for (int i = 0; i < (test_brief ? 9 : 25); i++) test_replay(&c, pools[i % 8 ? 0 : 1 + i % 2], o, &plain);
    delta_run_delete(&plain);
    delta_case_delete(&c);
    free(o);
    free(conv);
}

// Rejected rows that are not those of the timeline leave no trace.
static void test_rejected_rows(pool *threads) {
    delta_case c = delta_case_new(2, 2, 16, 12, 4, 40), draft = delta_case_new(2, 2, 16, 12, 4, 40);
    float *o = floats((size_t)(c.length * c.values)), *conv = floats((size_t)(c.length * c.channels));
    delta_run plain, r = delta_run_new(&c, threads);
    int bad = 0;
    delta_plain(&c, threads, o, conv, &plain);
    while (r.count + BLOCK <= c.length) {
        int keep = random_int(1, BLOCK), first = r.count;
        float *raw = c.raw + (size_t)(first + keep) * (size_t)c.channels;
        size_t size = (size_t)((BLOCK - keep) * c.channels) * sizeof(float);
        float *saved = floats(size / sizeof(float));
        memcpy(saved, raw, size);
        memcpy(raw, draft.raw, size);
        delta_block(&r, BLOCK, keep);
        memcpy(raw, saved, size);
        free(saved);
        bad += !same_bits(r.o, o + (size_t)first * (size_t)c.values, (size_t)(keep * c.values));
    }
    CHECK(!bad, "%d blocks differ after rejected drafts", bad);
    delta_run_delete(&plain);
    delta_run_delete(&r);
    delta_case_delete(&draft);
    delta_case_delete(&c);
    free(o);
    free(conv);
}

// The gated norm.
static void test_gated_norm(pool *threads) {
    delta_case c = delta_case_new(1, 3, 4, 10, 2, 2);
    float *o = random_floats(60, 1), *z = random_floats(60, 3), *norm = random_floats(10, 1), *x = random_floats(14, 1);
    double want[14];
    random_matrix out = matrix_new(FORMAT_F32, 7, 30, 1, 1);
    deltanet_job job;
    memset(&job, 0, sizeof job);
    for (int i = 0; i < 14; i++) want[i] = x[i];
    for (int i = 0; i < 60; i++) {
        const float *head = o + i / 10 * 10;
        double sum = 0, gate = z[i];
        for (int j = 0; j < 10; j++) sum += (double)head[j] * head[j];
        double value = o[i] / sqrt(sum / 10 + 1e-6) * norm[i % 10] * gate / (1 + exp(-gate));
        for (int r = 0; r < 7; r++) want[i / 30 * 7 + r] += out.value[r * 30 + i % 30] * value;
    }
    c.w.norm = norm;
    c.w.out_proj = out.w;
    job.shape = &c.shape;
    job.w = &c.w;
    job.T = 2;
    job.o = o;
    job.z = z;
    job.digits = digits_room(2, 30);
    stage_gated_norm_out(threads, &job, x);
    CHECK(distance(x, want, 14) < 1e-5, "gated norm: off by %g", distance(x, want, 14));
    matrix_delete(&out);
    delta_case_delete(&c);
    float *all[] = {o, z, norm, x};
    for (int i = 0; i < 4; i++) free(all[i]);
    free(job.digits);
}

// ---- 7. Attention ---------------------------------------------------------------------------------------------------

typedef struct attention_case {
    attention_shape shape;
    attention_weights w;
    int length;
    float *qg, *k, *v;           /* [length][...] as projected */
} attention_case;

static void naive_norm_rotate(const float *x, const float *w, const attention_shape *s, int position, float theta,
                              double *out) {
    double sum = 0;
    int d = s->head_dim, half = s->rotary_dim / 2;
    for (int i = 0; i < d; i++) sum += (double)x[i] * x[i];
    for (int i = 0; i < d; i++) out[i] = x[i] / sqrt(sum / d + s->eps) * (double)w[i];
    for (int i = 0; i < half; i++) {
        double angle = position * pow(theta, -2.0 * i / s->rotary_dim), a = out[i], b = out[half + i];
        out[i] = a * cos(angle) - b * sin(angle);
        out[half + i] = b * cos(angle) + a * sin(angle);
    }
}

// Encoding: every code gives itself back; halfway between two neighbours the even one, and beside that the nearer one.
static void test_kv_codes(void) {
    int bad_bf16 = 0, bad_fp8 = 0;
    for (uint32_t c = 0; c < 65536; c++) {
        float f = float_of_bf16((uint16_t)c);
        bad_bf16 += bf16_of_float(f) != (isnan(f) ? 0x7fff : c);
        if (c % 0x8000 >= 0x7f80) continue;
        uint32_t bits = c << 16, up = c + 1, even = c & 1 ? up : c;        /* up may be infinity: as rounding has it */
        bad_bf16 += bf16_of_float(float_of_bits(bits | 0x8000)) != even;
        bad_bf16 += bf16_of_float(float_of_bits(bits | 0x7fff)) != c || bf16_of_float(float_of_bits(bits | 0x8001)) != up;
    }
    CHECK(!bad_bf16, "BF16: %d roundings are wrong", bad_bf16);
    for (uint32_t c = 0; c < 256; c++) {
        float f = float_of_fp8((uint8_t)c), sign = c & 0x80 ? -1.0f : 1.0f;
        bad_fp8 += fp8_of_float(f) != (c % 0x80 == 0x7f ? 0x7f : c);
        if (c % 0x80 >= 0x7e) continue;
        float half = (f + fp8_value(c + 1)) / 2;
        bad_fp8 += fp8_of_float(half) != (c & 1 ? c + 1 : c);
        bad_fp8 += fp8_of_float(nextafterf(half, 0)) != c || fp8_of_float(nextafterf(half, sign * 1000)) != c + 1;
    }
    CHECK(!bad_fp8, "FP8: %d roundings are wrong", bad_fp8);
    static const float large[] = {448.0001f, 463.9f, 464, 465, 480, 1e4f, 3e38f, INFINITY};
    for (int i = 0; i < 8; i++)
        CHECK(fp8_of_float(large[i]) == 0x7e && fp8_of_float(-large[i]) == 0xfe, "FP8 of %g", (double)large[i]);
    static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
    for (int i = 0; i < 5; i++)
        CHECK(fp8_of_float(float_of_bits(nans[i])) == 0x7f && bf16_of_float(float_of_bits(nans[i])) == 0x7fff &&
              isnan(float_of_fp8(0x7f)) && isnan(float_of_fp8(0xff)), "NaN %x", nans[i]);
}

// e^x of a sample of all floats from -0 to -87.
static void test_exp_below(void) {
    double worst = 0;
    for (uint32_t bits = 0x80000000; float_of_bits(bits) >= -87; bits += 10007) {
        const double want = exp(float_of_bits(bits));
        int exponent;
        frexp(want, &exponent);
        worst = fmax(worst, fabs(exp_below(float_of_bits(bits)) - want) / ldexp(1, exponent - 24));
    }
    CHECK(worst < 2, "exp_below is off by %g units of the last bit", worst);
    CHECK(exp_below(0) == 1 && !exp_below(-88) && !exp_below(-INFINITY) && isnan(exp_below(NAN)), "exp_below at the ends");
}

// The output of head h at position t.
static void naive_attention(const attention_case *c, int t, int h, float theta, double *out) {
    const attention_shape *s = &c->shape;
    int d = s->head_dim, kh = h * s->kv_heads / s->heads;
    const float *q = c->qg + (t * s->heads + h) * 2 * d;
    double query[128], key[128], weight[2 * SPAN + 8], sum = 0;
    naive_norm_rotate(q, c->w.q_norm, s, t, theta, query);
    for (int p = 0; p <= t; p++) {
        double score = 0;
        naive_norm_rotate(c->k + (p * s->kv_heads + kh) * d, c->w.k_norm, s, p, theta, key);
        for (int i = 0; i < d; i++) score += query[i] * key[i];
        sum += weight[p] = exp(score / sqrt(d));
    }
    for (int i = 0; i < d; i++) {
        out[i] = 0;
        for (int p = 0; p <= t; p++) out[i] += weight[p] / sum * c->v[(p * s->kv_heads + kh) * d + i];
        out[i] /= 1 + exp(-(double)q[d + i]);
    }
}

// In blocks of T rows: o [length][heads][head_dim].
static void attention_run(const attention_case *c, pool *p, int threads, int T, float theta, dtype kv_type, float *o) {
    const attention_shape *s = &c->shape;
    size_t kv = (size_t)(s->kv_heads * s->head_dim), wide = (size_t)(s->heads * s->head_dim), n = (size_t)c->length;
    float *k = floats(n * kv), *v = floats(n * kv), *qg = floats(n * wide * 2);
    capacity room_for = {c->length, T, threads, kv_type};
    float *parts = floats(attention_part_count(s, &room_for) * attention_part_size(s));
    float *angles = floats(n * (size_t)s->rotary_dim), *k_new = floats(n * kv);
    memcpy(qg, c->qg, n * wide * 2 * sizeof(float));
    memcpy(k_new, c->k, n * kv * sizeof(float));
    for (int first = 0; first < c->length; first += T) {
        int rows = c->length - first < T ? c->length - first : T;
        attention_job job;
        memset(&job, 0, sizeof job);
        job.shape = s;
        job.w = &c->w;
        job.T = rows;
        job.position = first;
        job.angles = angles;
        job.qg = qg + (size_t)first * wide * 2;
        job.k_new = k_new + (size_t)first * kv;
        job.v_new = c->v + (size_t)first * kv;
        job.kv = kv_type;
        job.k = k;
        job.v = v;
        job.parts = parts;
        job.o = o + (size_t)first * wide;
        rotary_angles(angles, first, rows, s->rotary_dim, theta);
        stage_rope_attend(p, &job);
    }
    float *all[] = {k, v, qg, parts, angles, k_new};
    for (int i = 0; i < 6; i++) free(all[i]);
}

static void test_attention(int heads, int kv_heads, int head_dim, int rotary_dim, size_t length, pool **pools) {
    attention_shape shape = {0, heads, kv_heads, head_dim, rotary_dim, 1e-6f, 1e7f, 1};
    attention_case c;
    size_t wide = (size_t)(heads * head_dim), kv = (size_t)(kv_heads * head_dim);
    memset(&c, 0, sizeof c);
    c.shape = shape;
    c.length = (int)length;
    c.qg = random_floats(length * wide * 2, 3);
    c.k = random_floats(length * kv, 3);
    c.v = random_floats(length * kv, 1);
    float *q_norm = random_floats((size_t)head_dim, 1), *k_norm = random_floats((size_t)head_dim, 1);
    c.w.q_norm = q_norm;
    c.w.k_norm = k_norm;
    double *want = (double *)room(length * wide * sizeof(double));
    float *o = floats(length * wide), *other = floats(length * wide);
    for (int i = 0; i < c.length * heads; i++) naive_attention(&c, i / heads, i % heads, 1e4f, want + i * head_dim);
    for (dtype kv_type = DTYPE_F32; kv_type <= DTYPE_FP8; kv_type = (dtype)(kv_type + 1)) {
        /* A key or value is off by at most 1/2^9 (BF16) or 1/2^4 (FP8) of itself: scores of some units move that much. */
        double allowed = kv_type == DTYPE_F32 ? 2e-5 : kv_type == DTYPE_BF16 ? 0.02 : 0.35;
        if (kv_type == DTYPE_F16) continue;
        attention_run(&c, pools[0], 1, 1, 1e4f, kv_type, o);
        CHECK(distance(o, want, length * wide) < allowed, "attention %d:%d heads of %d, KV type %d: off by %g", heads,
              kv_heads, head_dim, kv_type, distance(o, want, length * wide));
        for (int T = 2; T <= (int)length; T += length > 40 ? (int)length / 2 : T < 5 ? 1 : 9) {
            attention_run(&c, pools[T % 3], T % 3 + 1, T, 1e4f, kv_type, other);
            CHECK(same_bits(o, other, length * wide), "attention in blocks of %d differs, KV type %d", T, kv_type);
        }
    }
    float *all[] = {c.qg, c.k, c.v, q_norm, k_norm, o, other};
    for (int i = 0; i < 7; i++) free(all[i]);
    free(want);
}

// Keys and values far beyond 448, in an FP8 cache: with the layer's scales nothing is cut off, for any number of rows; other
// caches do not use the scales.
static void test_kv_scales(pool **pools) {
    enum { HEADS = 4, KV_HEADS = 2, DIM = 40, LENGTH = 40, WIDE = HEADS * DIM, KV = KV_HEADS * DIM };
    const float k_scale = 11, v_scale = 13;
    attention_shape shape = {0, HEADS, KV_HEADS, DIM, 8, 1e-6f, 1e7f, 1};
    attention_case c, scaled;
    float q_norm[DIM], k_norm[DIM], *v = random_floats(LENGTH * KV, 3000);
    float *o = floats(LENGTH * WIDE), *other = floats(LENGTH * WIDE);
    double *want = (double *)room(LENGTH * WIDE * sizeof(double));
    memset(&c, 0, sizeof c);
    c.shape = shape;
    c.length = LENGTH;
    c.qg = random_floats(LENGTH * WIDE * 2, 3);
    c.k = random_floats(LENGTH * KV, 3);
    c.v = floats(LENGTH * KV);
    for (int i = 0; i < DIM; i++) k_norm[i] = 1000 * random_float(), q_norm[i] = 0.002f * random_float();
    c.w.q_norm = q_norm;
    c.w.k_norm = k_norm;
    scaled = c;
    scaled.w.k_scale = &k_scale;
    scaled.w.v_scale = &v_scale;
    memcpy(c.v, v, LENGTH * KV * sizeof(float));
    for (int i = 0; i < LENGTH * HEADS; i++) naive_attention(&c, i / HEADS, i % HEADS, 1e4f, want + i * DIM);
    attention_run(&c, pools[0], 1, 1, 1e4f, DTYPE_FP8, o);
    CHECK(distance(o, want, LENGTH * WIDE) > 0.5, "without scales: off by only %g", distance(o, want, LENGTH * WIDE));
    attention_run(&scaled, pools[0], 1, 1, 1e4f, DTYPE_FP8, o);
    CHECK(distance(o, want, LENGTH * WIDE) < 0.1, "with scales: off by %g", distance(o, want, LENGTH * WIDE));
    for (int T = 2; T <= LENGTH; T += T < 5 ? 1 : 9) {
        memcpy(c.v, v, LENGTH * KV * sizeof(float));
        attention_run(&scaled, pools[T % 3], T % 3 + 1, T, 1e4f, DTYPE_FP8, other);
        CHECK(same_bits(o, other, LENGTH * WIDE), "scales in blocks of %d", T);
    }
    memcpy(c.v, v, LENGTH * KV * sizeof(float));
    attention_run(&c, pools[0], 1, 7, 1e4f, DTYPE_BF16, o);
    attention_run(&scaled, pools[0], 1, 7, 1e4f, DTYPE_BF16, other);
    CHECK(same_bits(o, other, LENGTH * WIDE), "scales change a BF16 cache");
    void *all[] = {c.qg, c.k, c.v, v, o, other, want};
    for (int i = 0; i < 7; i++) free(all[i]);
}

// Scores far apart neither overflow nor give NaN: the best one wins.
static void test_attention_extremes(pool *p) {
    float q_norm[2] = {1e4f, 1e4f}, k_norm[2] = {1e4f, 1e4f};
    float qg[4] = {1, 1, 100, 100}, k[4] = {1, 1, -1, -1}, v[4] = {5, 6, 7, 8};
    float cache_k[4], cache_v[4] = {5, 6}, parts[2 * (2 + PART_EXTRA)], o[2], angles[1] = {0};
    attention_shape s = {0, 1, 1, 2, 0, 1e-6f, 1e7f, 1};
    attention_weights w;
    attention_job job;
    memset(&w, 0, sizeof w);
    memset(&job, 0, sizeof job);
    w.q_norm = q_norm;
    w.k_norm = k_norm;
    cache_k[0] = cache_k[1] = 1e4f;
    job.shape = &s;
    job.w = &w;
    job.T = job.position = 1;
    job.angles = angles;
    job.qg = qg;
    job.k_new = k + 2;
    job.v_new = v + 2;
    job.k = cache_k;
    job.v = cache_v;
    job.parts = parts;
    job.o = o;
    stage_rope_attend(p, &job);
    CHECK(o[0] == 5 && o[1] == 6, "extreme scores: %g %g", (double)o[0], (double)o[1]);
}

// ---- 8. Mixture of experts ------------------------------------------------------------------------------------------

// Is e among the top_k of the logits, the lower index first among equals?
static int is_chosen(const float *logits, int experts, int top_k, int e) {
    int before = 0;
    for (int i = 0; i < experts; i++) before += logits[i] > logits[e] || (logits[i] == logits[e] && i < e);
    return before < top_k;
}

static void check_choice(const float *logits, int experts, int top_k, const int32_t *choice, const float *weight) {
    double sum = 0, share = 0;
    int n = 0, wrong = 0;
    for (int e = 0; e < experts; e++)
        if (is_chosen(logits, experts, top_k, e)) sum += exp(logits[e]);
    for (int e = 0; e < experts; e++) {
        if (!is_chosen(logits, experts, top_k, e)) continue;
        wrong += choice[n] != e || !near(weight[n], exp(logits[e]) / sum, 1e-6);
        share += weight[n++];
    }
    CHECK(!wrong && n == top_k, "%d of %d experts: %d wrong", top_k, experts, wrong);
    CHECK(near(share, 1, 1e-6), "weights sum to %g", share);
}

static void test_moe_choose(void) {
    float logits[64], weight[64];
    int32_t choice[64];
    for (int round = 0; round < 3000; round++) {
        int experts = random_int(1, round % 3 ? 8 : 64), top_k = random_int(1, experts);
        for (int e = 0; e < experts; e++) logits[e] = round % 2 ? 5 * random_float() : (float)random_int(-2, 2);
        const moe_shape shape = {1, experts, top_k, 1, 1, 0, 0};
        moe_choose(&shape, logits, choice, weight);
        check_choice(logits, experts, top_k, choice, weight);
    }
}

// With NaN or infinite logits the weights may be anything; the choice is still top_k different experts, ascending.
static void test_moe_choose_nan(void) {
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, 0, 1};
    float logits[12], weight[12];
    int32_t choice[12];
    for (int round = 0; round < 3000; round++) {
        int experts = random_int(1, 12), top_k = random_int(1, experts), bad = 0;
        for (int e = 0; e < experts; e++) logits[e] = odd[random_int(0, 5)];
        for (int i = 0; i < 12; i++) choice[i] = 1 << 30;
        const moe_shape shape = {1, experts, top_k, 1, 1, 0, 0};
        moe_choose(&shape, logits, choice, weight);
        for (int i = 0; i < top_k; i++)
            bad += choice[i] < 0 || choice[i] >= experts || (i && choice[i] <= choice[i - 1]);
        for (int i = top_k; i < 12; i++) bad += choice[i] != 1 << 30;
        CHECK(!bad, "%d of %d experts with NaN", top_k, experts);
    }
}

typedef struct moe_case {
    moe_shape shape;
    moe_weights w;
    random_matrix router, gate, *expert;
    float *norm, *x;             /* x: [length][hidden] */
    int length;
} moe_case;

static moe_case moe_case_new(int hidden, int experts, int top_k, int size, int shared, int length, int nvfp4) {
    moe_case c;
    moe_shape shape = {hidden, experts, top_k, size, shared, 1e-6f, 0};
    memset(&c, 0, sizeof c);
    c.shape = shape;
    c.length = length;
    c.norm = random_floats((size_t)hidden, 0.5f);
    c.x = random_floats((size_t)(length * hidden), 1);
    c.router = matrix_new(FORMAT_F32, experts, hidden, 1, 1);
    c.gate = matrix_new(FORMAT_BF16, 1, hidden, 1, 1);
    c.expert = (random_matrix *)room((size_t)(3 * experts + 3) * sizeof *c.expert);
    matrix *m = (matrix *)room((size_t)(3 * experts + 3) * sizeof *m);
    c.w.norm = c.norm;
    c.w.router = c.router.w;
    c.w.shared_expert_gate = c.gate.w;
    c.w.gate_proj = m;
    c.w.up_proj = m + experts + 1;
    c.w.down_proj = m + 2 * (experts + 1);
    for (int i = 0; i < 3 * (experts + 1); i++) {
        int e = i % (experts + 1), down = i / (experts + 1) == 2, inner = e == experts ? shared : size;
        c.expert[i] = matrix_new(nvfp4 ? FORMAT_NVFP4 : i % 2 ? FORMAT_F16 : FORMAT_F32, down ? hidden : inner,
                                 down ? inner : hidden, 1, 1);
        m[i] = c.expert[i].w;
    }
    return c;
}

static void moe_case_delete(moe_case *c) {
    for (int i = 0; i < 3 * (c->shape.experts + 1); i++) matrix_delete(&c->expert[i]);
    matrix_delete(&c->router);
    matrix_delete(&c->gate);
    free(c->expert);
    free(c->w.gate_proj);
    free(c->norm);
    free(c->x);
}

static moe_job moe_job_new(const moe_case *c, int T) {
    moe_job job;
    size_t rows = (size_t)T, uses = rows * (size_t)(c->shape.top_k + 1);
    memset(&job, 0, sizeof job);
    job.shape = &c->shape;
    job.w = &c->w;
    job.T = T;
    job.u = floats(rows * (size_t)c->shape.hidden);
    job.router = floats(rows * (size_t)c->shape.experts);
    job.shared_gate = floats(rows);
    job.choice = (int32_t *)room(uses * 4);
    job.weight = floats(uses);
    job.list = (int32_t *)room((size_t)(c->shape.experts + 1) * 4);
    job.first = (int32_t *)room((size_t)(c->shape.experts + 2) * 4);
    job.assignment_row = (int32_t *)room(uses * 4);
    job.assignment_weight = floats(uses);
    job.h = floats(uses * (size_t)moe_width(&c->shape));
    for (size_t i = 0; i < uses * (size_t)moe_width(&c->shape); i++) job.h[i] = NAN;       // what is not written is not read
    job.digits = (token_digits *)room(rows * moe_digit_room(&c->shape) * sizeof(float));
    job.x = floats(rows * (size_t)c->shape.hidden);
    return job;
}

static void moe_job_delete(moe_job *job) {
    void *all[] = {job->u, job->router, job->shared_gate, job->choice, job->weight, job->list, job->first, job->assignment_row,
                   job->assignment_weight, job->h, job->x, job->digits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

// The list is the choices sorted by expert and row, each exactly once; the shared expert comes last with all rows.
static void check_uses(const moe_job *job) {
    int experts = job->shape->experts, top_k = job->shape->top_k, at = 0, n = 0, bad = 0;
    for (int e = 0; e < experts; e++) {
        int from = at;
        for (int i = 0; i < job->T * top_k; i++) {
            if (job->choice[i] != e) continue;
            bad += job->assignment_row[at] != i / top_k || job->assignment_weight[at] != job->weight[i];
            at++;
        }
        if (at == from) continue;
        bad += job->list[n] != e || job->first[n] != from;
        n++;
    }
    bad += job->count != n + 1 || job->list[n] != experts || job->first[n] != at || job->first[n + 1] != at + job->T;
    for (int t = 0; t < job->T; t++, at++)
        bad += job->assignment_row[at] != t || job->assignment_weight[at] != sigmoid(job->shared_gate[t]);
    CHECK(!bad, "uses of %d rows, %d of %d experts: %d wrong", job->T, top_k, experts, bad);
}

static void test_moe_list_assignments(void) {
    for (int round = 0; round < 500; round++) {
        int experts = random_int(1, 20), top_k = random_int(1, experts), T = random_int(1, 12);
        moe_case c;
        memset(&c, 0, sizeof c);
        moe_shape shape = {1, experts, top_k, 1, 1, 0, 0};
        c.shape = shape;
        moe_job job = moe_job_new(&c, T);
        for (int i = 0; i < T * experts; i++) job.router[i] = random_float();
        for (int t = 0; t < T; t++) {
            job.shared_gate[t] = random_float();
            moe_choose(&shape, job.router + t * experts, job.choice + t * top_k, job.weight + t * top_k);
        }
        moe_list_assignments(&job);
        check_uses(&job);
        moe_job_delete(&job);
    }
}

static double naive_mlp(const moe_case *c, int e, const double *u, int r) {
    int n = c->shape.experts + 1, hidden = c->shape.hidden;
    int inner = e == n - 1 ? c->shape.shared_size : c->shape.expert_size;
    double y = 0;
    for (int i = 0; i < inner; i++) {
        double gate = 0, up = 0;
        for (int j = 0; j < hidden; j++) {
            gate += c->expert[e].value[i * hidden + j] * u[j];
            up += c->expert[n + e].value[i * hidden + j] * u[j];
        }
        y += c->expert[2 * n + e].value[r * inner + i] * gate / (1 + exp(-gate)) * up;
    }
    return y;
}

// One row in double: softmax over all experts, the best top_k renormalised, plus the gated shared expert.
static void naive_moe(const moe_case *c, const float *x, double *out) {
    int hidden = c->shape.hidden, experts = c->shape.experts;
    double u[64], score[64], sum = 0, square = 0, gate = 0;
    float logits[64];
    for (int i = 0; i < hidden; i++) square += (double)x[i] * x[i];
    for (int i = 0; i < hidden; i++) u[i] = x[i] / sqrt(square / hidden + 1e-6) * (double)c->norm[i];
    for (int i = 0; i < hidden; i++) gate += c->gate.value[i] * u[i];
    for (int e = 0; e < experts; e++) {
        score[e] = 0;
        for (int i = 0; i < hidden; i++) score[e] += c->router.value[e * hidden + i] * u[i];
        logits[e] = (float)score[e];
    }
    for (int e = 0; e < experts; e++)
        if (is_chosen(logits, experts, c->shape.top_k, e)) sum += exp(score[e]);
    for (int r = 0; r < hidden; r++) {
        out[r] = x[r] + naive_mlp(c, experts, u, r) / (1 + exp(-gate));
        for (int e = 0; e < experts; e++)
            if (is_chosen(logits, experts, c->shape.top_k, e)) out[r] += exp(score[e]) / sum * naive_mlp(c, e, u, r);
    }
}

static void moe_run(const moe_case *c, pool *p, int T, float *out) {
    size_t hidden = (size_t)c->shape.hidden;
    for (int first = 0; first < c->length; first += T) {
        int rows = c->length - first < T ? c->length - first : T;
        moe_job job = moe_job_new(c, rows);
        memcpy(job.x, c->x + (size_t)first * hidden, (size_t)rows * hidden * sizeof(float));
        stage_norm_router(p, &job);
        stage_experts_up(p, &job);
        stage_experts_down(p, &job);
        memcpy(out + (size_t)first * hidden, job.x, (size_t)rows * hidden * sizeof(float));
        moe_job_delete(&job);
    }
}

static void test_moe(int hidden, int experts, int top_k, int size, int shared, int nvfp4, pool **pools) {
    moe_case c = moe_case_new(hidden, experts, top_k, size, shared, 70, nvfp4);
    size_t n = (size_t)(c.length * hidden);
    float *one = floats(n), *other = floats(n);
    double *want = (double *)room(n * sizeof(double));
    for (int t = 0; t < c.length; t++) naive_moe(&c, c.x + t * hidden, want + t * hidden);
    moe_run(&c, pools[0], 1, one);
    CHECK(distance(one, want, n) < 1e-5, "experts: off by %g", distance(one, want, n));
    for (int T = 2; T <= 70; T += T < 9 ? 1 : 61) {
        moe_run(&c, pools[T % 3], T, other);
        CHECK(same_bits(one, other, n), "experts in blocks of %d differ", T);
    }
    free(one);
    free(other);
    free(want);
    moe_case_delete(&c);
}

int main(int argc, char **argv) {
    pool *pools[3] = {pool_open(1), pool_open(2), pool_open(3)};
    test_main_begin("test_kernels", argc, argv);
    if (!CHECK(pools[0] && pools[1] && pools[2], "three pools")) return test_main_end();
    test_fp8_codes();
    test_half_codes();
    test_e4m3_vectors();
    test_block_fp8_vector();
    test_pools();
    test_matrix_rows();
    test_dots();
    test_linears(pools);
    test_digits();
    test_lane_products(0);
#ifdef LEVELS
    test_levels();
#endif
    test_project(pools);
    test_embed();
    test_activations();
    test_norms();
    for (int dim = 2; dim <= 64; dim *= 2) test_rotary(dim, dim * 37 - 74, dim % 3 ? 1e4f : 1e7f);
    for (int ratio = 1; ratio <= 4; ratio++)
        for (int taps = 1; taps <= 5; taps++) test_deltanet(1 + taps % 2, ratio, 8 + 6 * ratio, 7 + taps, taps, pools);
    test_deltanet(1, 2, 16, 8, 30, pools);
    test_deltanet(2, 2, 128, 128, 4, pools);
    test_rejected_rows(pools[0]);
    test_gated_norm(pools[1]);
    test_kv_codes();
    test_exp_below();
    test_attention(1, 1, 16, 16, 40, pools);
    test_attention(2, 1, 24, 6, 40, pools);
    test_attention(4, 4, 20, 10, 40, pools);
    test_attention(8, 2, 32, 8, 40, pools);
    test_attention(6, 2, 66, 2, 40, pools);
    test_attention(2, 1, 128, 64, 40, pools);
    test_attention(5, 1, 20, 4, 2 * SPAN + 8, pools);
    test_kv_scales(pools);
    test_attention_extremes(pools[0]);
    test_moe_choose();
    test_moe_choose_nan();
    test_moe_list_assignments();
    test_moe(32, 5, 2, 12, 20, 0, pools);
    test_moe(40, 1, 1, 33, 8, 0, pools);
    test_moe(17, 16, 4, 7, 7, 0, pools);
    test_moe(24, 3, 3, 16, 1, 0, pools);
    test_moe(48, 5, 2, 16, 144, 1, pools);
    test_moe(32, 4, 2, 144, 16, 1, pools);
    for (int i = 0; i < 3; i++) pool_close(pools[i]);
    return test_main_end();
}
