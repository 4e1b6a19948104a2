// A part of test_kernels: numbers and threads.

// ---- Numbers --------------------------------------------------------------------------------------------------------

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
    return fp8_bits((uint8_t)code) * FP8_BITS_SCALE;
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
    uint8_t *codes = (uint8_t *)allocate(130 * 130);
    float scale[4] = {0.5f, 0.25f, 2, float_of_bf16(0x3901)}, row[130];
    matrix w = {.format = FORMAT_FP8_BLOCK, .rows = 130, .cols = 130, .component = {codes, scale}, .block_rows = 128, .block_cols = 128};
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

// ---- Threads --------------------------------------------------------------------------------------------------------

typedef struct visits { unsigned char *count; int n, threads, bad; } visits;

static void visit(void *context, int begin, int end, int thread) {
    visits *v = (visits *)context;
    if (begin < 0 || begin >= end || end > v->n || thread < 0 || thread >= v->threads)
        __atomic_store_n(&v->bad, 1, __ATOMIC_RELAXED);
    for (int i = begin; i < end; i++) __atomic_add_fetch(&v->count[i], 1, __ATOMIC_RELAXED);
}

// Each index of each loop is visited exactly once. Tiny loops right one after the other find helpers in any state.
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
