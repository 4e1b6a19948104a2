// Tests of formats/: what checkpoints store, through each tensor encoding, to floats: vectors worked out by hand, and every code of
// four and of eight bits under every scale.

#include "../../kernels.cu"
#include "test.h"

// ---- Tensor encodings -----------------------------------------------------------------------------------------------

// The container's types, as far as they matter here, by the names that tensor encodings use; the first are those of dtype.
enum { OTHER = 9 };

// Tensors of a matrix as they lie in a file.
typedef struct stored_parts { const void *bytes[MAX_PARTS]; int type[MAX_PARTS]; size_t size[MAX_PARTS]; } stored_parts;

static void put(stored_parts *s, int part, int type, const void *bytes, size_t size) {
    s->bytes[part] = bytes;
    s->type[part] = type;
    s->size[part] = size;
}

// Makes the components of a matrix; -1, or the tensor that cannot be. hints: zeros_stored and asymmetric.
static int load(const tensor_encoding *s, const stored_parts *from, matrix *w, int zeros_stored, int asymmetric, char *why) {
    w->format = s->format;
    for (int i = 0; i < formats[s->format]->component_count; i++) {
        const component *p = &formats[s->format]->components[i];
        conversion c;
        memset(&c, 0, sizeof c);
        c.w = w;
        c.rows = component_rows(p, w);
        c.cols = component_cols(p, w);
        c.zeros_stored = zeros_stored;
        c.asymmetric = asymmetric;
        for (int k = 0; k < MAX_PARTS; k++)
            if (s->components[i].needs >> k & 1) c.part[k] = from->bytes[k], c.type[k] = from->type[k];
        size_t held = (size_t)c.rows * component_bytes(p, c.cols);
        char *to = (char *)allocate(matrix_component_capacity(w, i));
        w->component[i] = to;
        if (!s->components[i].convert) {
            CHECK(from->size[s->components[i].part] == held, "%s: component %d of %zu bytes", s->name, i, held);
            memcpy(to, from->bytes[s->components[i].part], held);
            continue;
        }
        int wrong = s->components[i].convert(&c, to);
        if (wrong >= 0) {
            snprintf(why, 96, "%s", c.why);
            return wrong;
        }
    }
    return -1;
}

static void unload(matrix *w) {
    for (int i = 0; i < formats[w->format]->component_count; i++) free((void *)(uintptr_t)w->component[i]);
}

// Row `row` of what is stored is `want`.
static void check_row(const char *title, const tensor_encoding *s, const stored_parts *from, matrix w, int row, const float *want,
                      int zeros_stored, int asymmetric) {
    char why[96] = "";
    float got[64];
    CHECK(load(s, from, &w, zeros_stored, asymmetric, why) < 0, "%s: %s", title, why);
    matrix_floats(&w, row, 0, w.cols, got);
    for (int i = 0; i < w.cols; i++)
        CHECK(got[i] == want[i], "%s: column %d is %a, not %a", title, i, (double)got[i], (double)want[i]);
    unload(&w);
}

static void test_nvfp4_vector(void) {
    static const uint8_t codes[] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}, scale[] = {0x39};
    static const float factor = 0.25f, divisor = 4;
    static const float want[] = {0, .140625f, .28125f, .421875f, .5625f, .84375f, 1.125f, 1.6875f,
                                 -0.0f, -.140625f, -.28125f, -.421875f, -.5625f, -.84375f, -1.125f, -1.6875f};
    matrix w = {.format = FORMAT_NVFP4, .rows = 1, .cols = 16, .block_rows = 1, .block_cols = 16};
    stored_parts s = {{NULL}, {0}, {0}};
    put(&s, 0, OTHER, codes, sizeof codes);
    put(&s, 1, OTHER, scale, sizeof scale);
    put(&s, 2, DTYPE_F32, &factor, sizeof factor);
    check_row("NVFP4", &nvfp4_encoding, &s, w, 0, want, 0, 0);
    put(&s, 2, DTYPE_F32, &divisor, sizeof divisor);
    check_row("NVFP4 of compressed-tensors", &nvfp4_ct_encoding, &s, w, 0, want, 0, 0);
}

// Two blocks under one factor, as modelopt's rule encodes them.
static void test_nvfp4_encoded(void) {
    static const uint8_t codes[] = {0x00, 0x80, 0x11, 0x3a, 0xd4, 0xe5, 0x76, 0x7f, 0xf7, 0x35, 0x02, 0xe7, 0, 0, 0, 0};
    static const uint8_t scale[] = {0x7e, 0x58};
    const float factor = float_of_bits(0x3a830c31);
    matrix w = {.format = FORMAT_NVFP4, .rows = 1, .cols = 32, .component = {codes, scale, &factor}, .block_rows = 1, .block_cols = 16};
    float got[32];
    matrix_floats(&w, 0, 0, 32, got);
    CHECK(got[4] == float_of_bits(0x3ee55556) * 0.5f && got[14] == -6 * float_of_bits(0x3ee55556), "block scale 448: %a %a",
          (double)got[4], (double)got[14]);
    CHECK(got[3] == 0 && signbit(got[3]) && !signbit(got[0]), "negative zero");
    CHECK(got[16] == 0.0959821492433548f && got[17] == -0.0959821492433548f, "block scale 16: %a", (double)got[16]);
}

// Eight rows and eight columns; the first two columns of qweight are those of the vectors.
static void gptq_case(uint32_t *qweight, uint32_t zeros, stored_parts *s, const uint32_t *z, const uint16_t *scales) {
    (void)zeros;
    put(s, 0, OTHER, qweight, 32);
    put(s, 1, OTHER, z, 4);
    put(s, 2, DTYPE_F16, scales, 16);
}

static void test_gptq_vectors(void) {
    uint32_t qweight[8] = {0xfa983210, 0x0678cdef, 0xffffffff, 0, 0, 0, 0, 0};
    static const float first[] = {-4, -3.5f, -3, -2.5f, 0, .5f, 1, 3.5f}, second[] = {3.5f, 3, 2.5f, 2, 0, -.5f, -1, -4};
    uint16_t half[8] = {0x3800, 0x3800, 0x3800, 0x3800, 0x3800, 0x3800, 0x3800, 0x3800};
    uint16_t negative[8] = {0xa800, 0xa800, 0xa800, 0xa800, 0xa800, 0xa800, 0xa800, 0xa800};
    const uint32_t seven = 0x77777777, eight = 0x88888888, mixed = 0xfed87210;
    static const int zeros[8] = {1, 2, 3, 8, 9, 14, 15, 16};
    matrix w = {.format = FORMAT_INT4, .rows = 8, .cols = 8, .block_rows = 1, .block_cols = 8};
    stored_parts s = {{NULL}, {0}, {0}};
    gptq_case(qweight, 7, &s, &seven, half);
    check_row("GPTQ", &gptq_encoding, &s, w, 0, first, 0, 0);
    check_row("GPTQ", &gptq_encoding, &s, w, 1, second, 0, 0);
    check_row("GPTQ asymmetric", &gptq_encoding, &s, w, 1, second, 0, 1);
    gptq_case(qweight, 8, &s, &eight, half);
    check_row("GPTQ v2", &gptq_encoding, &s, w, 0, first, 1, 0);
    check_row("GPTQ v2, said to be the first", &gptq_encoding, &s, w, 1, second, 0, 0);
    check_row("GPTQ v2 asymmetric", &gptq_encoding, &s, w, 1, second, 1, 1);
    gptq_case(qweight, 0, &s, &mixed, half);
    for (int row = 0; row < 8; row++)
        for (int said = 0; said < 2; said++) {                 /* tensors win over what the JSON says of symmetry */
            float want[8];
            for (int i = 0; i < 8; i++) want[i] = ((float)(qweight[row] >> 4 * i & 15) - (float)zeros[row]) * 0.5f;
            check_row("GPTQ zero points", &gptq_encoding, &s, w, row, want, 0, said);
            for (int i = 0; i < 8; i++) want[i] += 0.5f;
            check_row("GPTQ v2 zero points", &gptq_encoding, &s, w, row, want, 1, said);
        }
    gptq_case(qweight, 7, &s, &seven, negative);
    float low[8], high[8];
    for (int i = 0; i < 8; i++) low[i] = 0.25f, high[i] = -0.21875f;
    check_row("negative scale", &gptq_encoding, &s, w, 3, low, 0, 0);
    check_row("negative scale", &gptq_encoding, &s, w, 2, high, 0, 0);
}

// Groups of columns out of order are refused by name; in order they change nothing.
static void test_order(void) {
    enum { N = 8, K = 64 };
    uint32_t qweight[K / 8 * N], qzeros[2] = {0x77777777, 0x77777777};
    uint16_t scales[2 * N];
    int32_t order[K];
    char why[96] = "";
    matrix w = {.format = FORMAT_INT4, .rows = N, .cols = K, .block_rows = 1, .block_cols = 32};
    stored_parts s = {{NULL}, {0}, {0}};
    for (int i = 0; i < K / 8 * N; i++) qweight[i] = random_bits();
    for (int i = 0; i < 2 * N; i++) scales[i] = (uint16_t)(0x3800 + i);
    for (int k = 0; k < K; k++) order[k] = k / 32;
    put(&s, 0, OTHER, qweight, sizeof qweight);
    put(&s, 1, OTHER, qzeros, sizeof qzeros);
    put(&s, 2, DTYPE_F16, scales, sizeof scales);
    put(&s, 3, OTHER, order, sizeof order);
    for (int row = 0; row < N; row++) {
        float want[K];
        for (int k = 0; k < K; k++)
            want[k] = ((float)(qweight[k / 8 * N + row] >> 4 * (k % 8) & 15) - 8) * float_of_f16(scales[k / 32 * N + row]);
        check_row("groups of 32", &gptq_encoding, &s, w, row, want, 0, 0);
    }
    order[40] = 0;
    CHECK(load(&gptq_encoding, &s, &w, 0, 0, why) == 3 && strstr(why, "column 40 is of group 0") && strstr(why, "desc_act"),
          "order: <%s>", why);
    unload(&w);
}

// Word 0x75316420 holds rows 0 to 7, of codes and of zero points.
static void test_awq_vectors(void) {
    uint32_t qweight[8], none = 0, all = 0x75316420;
    uint16_t one[8] = {0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00};
    matrix w = {.format = FORMAT_INT4, .rows = 8, .cols = 8, .block_rows = 1, .block_cols = 8};
    stored_parts s = {{NULL}, {0}, {0}};
    for (int k = 0; k < 8; k++) qweight[k] = k % 2 ? 0xfedcba98 : 0x75316420;
    static const int odd[8] = {8, 12, 9, 13, 10, 14, 11, 15};  /* nibbles 0 4 1 5 2 6 3 7 */
    put(&s, 0, OTHER, qweight, sizeof qweight);
    put(&s, 1, OTHER, &none, 4);
    put(&s, 2, DTYPE_F16, one, sizeof one);
    for (int row = 0; row < 8; row++) {
        float want[8];
        for (int k = 0; k < 8; k++) want[k] = (float)(k % 2 ? odd[row] : row);
        check_row("AWQ", &awq_encoding, &s, w, row, want, 0, 0);
        put(&s, 1, OTHER, &all, 4);
        for (int k = 0; k < 8; k++) want[k] -= (float)row;
        check_row("AWQ zero points", &awq_encoding, &s, w, row, want, 0, 0);
        put(&s, 1, OTHER, &none, 4);
    }
}

static void test_int4_ct_vectors(void) {
    uint32_t packed[2] = {0xa5bf9870, 0x00000008}, zero = 0x000000a8;  /* +8: 0 of row 0, 2 of row 1 */
    uint16_t scale[2] = {0x3f80, 0xbf00};                              /* 1, -0.5 */
    int64_t shape[2] = {2, 8}, other[2] = {8, 2};
    static const float first[] = {-8, -1, 0, 1, 7, 3, -3, 2}, second[] = {0, 4, 4, 4, 4, 4, 4, 4},
                       shifted[] = {1, 5, 5, 5, 5, 5, 5, 5};
    char why[96] = "";
    matrix w = {.format = FORMAT_INT4, .rows = 2, .cols = 8, .block_rows = 1, .block_cols = 8};
    stored_parts s = {{NULL}, {0}, {0}};
    put(&s, 0, OTHER, packed, sizeof packed);
    put(&s, 1, DTYPE_BF16, scale, sizeof scale);
    put(&s, 2, OTHER, shape, sizeof shape);
    check_row("INT4", &int4_ct_encoding, &s, w, 0, first, 0, 0);
    check_row("INT4 negative scale", &int4_ct_encoding, &s, w, 1, second, 0, 0);
    put(&s, 3, OTHER, &zero, 4);
    check_row("INT4 zero points", &int4_ct_encoding, &s, w, 0, first, 0, 0);
    check_row("INT4 zero points", &int4_ct_encoding, &s, w, 1, shifted, 0, 0);
    put(&s, 2, OTHER, other, sizeof other);
    CHECK(load(&int4_ct_encoding, &s, &w, 0, 0, why) == 2 && strstr(why, "[8, 2], expected [2, 8]"), "shape: <%s>", why);
    unload(&w);
}

static void test_fp8_row_vectors(void) {
    static const uint8_t codes[] = {0x38, 0x7e, 0x81, 0x00, 0xb8, 0xfe, 0x01, 0x80};
    const float one = 0.5f;
    uint16_t two[2] = {0x3f00, 0x4000};                        /* 0.5, 2 */
    static const float first[] = {.5f, 224, -0.0009765625f, 0}, same[] = {-.5f, -224, 0.0009765625f, -0.0f},
                       second[] = {-2, -896, 0.00390625f, -0.0f};
    matrix w = {.format = FORMAT_FP8_ROW, .rows = 2, .cols = 4, .block_rows = 1, .block_cols = 1};
    matrix all = {.format = FORMAT_FP8_BLOCK, .rows = 2, .cols = 4, .block_rows = ONE_BLOCK, .block_cols = ONE_BLOCK};
    stored_parts s = {{NULL}, {0}, {0}};
    put(&s, 0, DTYPE_FP8, codes, sizeof codes);
    put(&s, 1, DTYPE_F32, &one, sizeof one);
    check_row("FP8 per tensor", &fp8_tensor_encoding, &s, all, 0, first, 0, 0);
    check_row("FP8 per tensor", &fp8_tensor_encoding, &s, all, 1, same, 0, 0);
    put(&s, 1, DTYPE_BF16, two, sizeof two);
    check_row("FP8 per channel", &fp8_channel_encoding, &s, w, 0, first, 0, 0);
    check_row("FP8 per channel", &fp8_channel_encoding, &s, w, 1, second, 0, 0);
}

// BF16 weights as FP8 blocks: the largest of a block is exact, none is off by more than half a step of E4M3; zeros, odd sizes.
static void test_quantised(void) {
    enum { N = 130, K = 200 };
    uint16_t *bf16 = (uint16_t *)allocate(N * K * 2);
    char why[96] = "";
    float got[K];
    matrix w = {.format = FORMAT_FP8_BLOCK, .rows = N, .cols = K, .block_rows = 128, .block_cols = 128};
    stored_parts s = {{NULL}, {0}, {0}};
    for (int i = 0; i < N * K; i++) bf16[i] = i / K < 128 && i % K < 128 ? (uint16_t)((random_bits() & 0x80ff) | 0x3c00) : 0;
    bf16[5] = 0x4180;                                          /* 16 */
    bf16[N * K - 1] = 0xc000;                                  /* -2, alone in its block */
    put(&s, 0, DTYPE_BF16, bf16, N * K * 2);
    CHECK(load(&quantised_encoding, &s, &w, 0, 0, why) < 0, "quantised: %s", why);
    int bad = 0;
    for (int row = 0; row < N; row++) {
        matrix_floats(&w, row, 0, K, got);
        for (int i = 0; i < K; i++) {
            float x = float_of_bf16(bf16[row * K + i]), step = fmaxf(fabsf(x) / 16, 16.0f / 448 * 0x1p-10f);
            bad += !(fabsf(got[i] - x) <= step * 1.001f);
        }
        if (row == 0) CHECK(got[5] == 16, "the largest is %g", (double)got[5]);
        if (row == N - 1) CHECK(got[K - 1] == -2, "the only one is %g", (double)got[K - 1]);
    }
    CHECK(!bad, "%d weights are off", bad);
    unload(&w);
    free(bf16);
}

// ---- Every code -----------------------------------------------------------------------------------------------------

static double e2m1_book[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};

// All codes of E2M1 under all scales of E4M3, decoded a tile at a time and one by one.
static void test_all_nvfp4(void) {
    enum { ROWS = 256, COLS = 256 };
    uint8_t *codes = (uint8_t *)allocate(ROWS * COLS / 2), *scales = (uint8_t *)allocate(ROWS * COLS / 16);
    const float factor = 0.75f;
    matrix w = {.format = FORMAT_NVFP4, .rows = ROWS, .cols = COLS, .component = {codes, scales, &factor}, .block_rows = 1, .block_cols = 16};
    int bad = 0;
    for (int i = 0; i < ROWS * COLS / 2; i++) codes[i] = (uint8_t)(2 * i % 16 | (2 * i + 1) % 16 << 4);
    for (int i = 0; i < ROWS * COLS / 16; i++) scales[i] = (uint8_t)(i / 16 ^ i % 16);
    for (int row = 0; row < ROWS; row++) {
        float tile[COLS], one;
        for (int col = 0; col < COLS; col += TILE) matrix_floats(&w, row, col, TILE, tile + col);
        for (int i = 0; i < COLS; i++) {
            uint8_t s = scales[row * 16 + i / 16];
            double scale = ldexp((s & 0x7f) >> 3 ? 8 + (s & 7) : s & 7, ((s & 0x7f) >> 3 ? ((s & 0x7f) >> 3) - 1 : 0) - 9);
            double want = e2m1_book[i % 16] * (double)(float)((s & 0x80 ? -scale : scale) * 0.75);
            matrix_floats(&w, row, i, 1, &one);
            bad += (double)tile[i] != want || (double)one != want || !signbit(tile[i]) != !signbit(want);
        }
    }
    CHECK(!bad, "NVFP4: %d of %d are wrong", bad, ROWS * COLS);
    free(codes);
    free(scales);
}

// All codes of E2M1 under all scales of MXFP4, of which the smallest is a subnormal number.
static void test_all_mxfp4(void) {
    enum { ROWS = MXFP4_LARGEST + 1, COLS = 64 };
    uint8_t codes[ROWS * COLS / 2], scales[ROWS * COLS / 32];
    matrix w = {.format = FORMAT_MXFP4, .rows = ROWS, .cols = COLS, .component = {codes, scales}};
    int bad = 0;
    for (int i = 0; i < ROWS * COLS / 2; i++) codes[i] = (uint8_t)(2 * i % 16 | (2 * i + 1) % 16 << 4);
    for (int i = 0; i < ROWS * COLS / 32; i++) scales[i] = (uint8_t)(i % 2 ? ROWS - 1 - i / 2 : i / 2);
    for (int row = 0; row < ROWS; row++) {
        float tile[COLS], one;
        matrix_floats(&w, row, 0, COLS, tile);
        for (int i = 0; i < COLS; i++) {
            const int scale = scales[row * 2 + i / 32];
            const double want = ldexp(e2m1_book[i % 16], scale - 127);
            matrix_floats(&w, row, i, 1, &one);
            bad += (double)tile[i] != want || (double)one != want || !signbit(tile[i]) != !signbit(want) || !isfinite(one);
            bad += (double)e8m0_value((uint32_t)scale) != ldexp(1, scale - 127);
        }
    }
    CHECK(!bad, "MXFP4: %d of %d are wrong", bad, ROWS * COLS);
}

// All codes under all zero points, and scales of either sign, for each width of groups.
// Every code with every scale: sign, four bits of exponent less 7, three of mantissa, times a power of two.
static void test_all_mxfp8(void) {
    int bad = 0, exact = 0, refused = 0;
    for (int code = 0; code < 256; code++)
        for (int scale = 0; scale < 256; scale++) {
            const int e = code >> 3 & 15, m = code & 7;
            const double size = ldexp(e ? 8 + m : m, (e ? e : 1) - 10 + scale - 127), want = code & 128 ? -size : size;
            uint16_t word, nearest;
            const int is = mxfp8_weight((uint8_t)code, (uint8_t)scale, &word);
            nearest = bf16_of_float((float)want);
            if (scale == 255) bad += is;
            else if ((code & 127) == 127) bad += !isnan(float_of_bf16(word));
            else if (is) bad += (double)float_of_bf16(word) != want, exact++;
            else bad += (double)float_of_bf16(nearest) == want, refused++;
        }
    CHECK(!bad && exact > 63000 && refused > 0, "MXFP8: %d numbers are others; %d exact, %d refused", bad, exact, refused);
}

// A matrix by both of its encodings: the scale of [row][col / 32].
static void test_mxfp8_matrix(void) {
    enum { ROWS = 5, COLS = 96, GROUPS = COLS / 32 };
    static const tensor_encoding *const encodings[] = {&mxfp8_encoding, &mxfp8_e8m0_encoding};
    uint8_t code[ROWS][COLS], scale[ROWS][GROUPS];
    uint16_t word[ROWS][COLS];
    const matrix w = {.format = FORMAT_BF16, .rows = ROWS, .cols = COLS};
    for (int i = 0; i < ROWS * COLS; i++) code[i / COLS][i % COLS] = (uint8_t)(random_bits() & 0xf7);
    for (int i = 0; i < ROWS * GROUPS; i++) scale[i / GROUPS][i % GROUPS] = (uint8_t)random_int(90, 140);
    for (int e = 0; e < 2; e++) {
        conversion c = {.w = &w, .rows = ROWS, .cols = COLS, .part = {code, scale}};
        int bad = 0;
        memset(word, 0, sizeof word);
        CHECK(encodings[e]->components[CODES].convert(&c, word) == -1, "MXFP8: %s", c.why);
        for (int i = 0; i < ROWS * COLS; i++) {
            const uint8_t is = code[i / COLS][i % COLS];
            const double want = ldexp((double)(fp8_bits(is) * FP8_BITS_SCALE), scale[i / COLS][i % COLS / 32] - 127);
            bad += (double)float_of_bf16(word[i / COLS][i % COLS]) != want;
        }
        CHECK(!bad, "MXFP8: %d of %d weights are others", bad, ROWS * COLS);
        scale[3][1] = 255;
        CHECK(encodings[e]->components[CODES].convert(&c, word) == 1 && strstr(c.why, "scale 1 of row 3"), "MXFP8 without a scale: %s", c.why);
        scale[3][1] = 127;
    }
}

static void test_all_int4(void) {
    enum { ROWS = 34, COLS = 256 };
    static const int groups[] = {32, 64, 128, COLS};
    uint8_t *codes = (uint8_t *)allocate(ROWS * COLS / 2);
    for (int i = 0; i < ROWS * COLS / 2; i++) codes[i] = (uint8_t)(2 * i % 16 | (2 * i + 1) % 16 << 4);
    for (int g = 0; g < 4; g++) {
        uint32_t words[ROWS * 8];
        int bad = 0, across = COLS / groups[g];
        matrix w = {.format = FORMAT_INT4, .rows = ROWS, .cols = COLS, .component = {codes, words}, .block_rows = 1, .block_cols = groups[g]};
        for (int i = 0; i < ROWS * across; i++)
            words[i] = int4_word((i / across % 2 ? -1.0f : 1.0f) * (0.03125f + (float)(i % across)),
                                 (uint32_t)(i / across / 2));
        for (int row = 0; row < ROWS; row++) {
            float tile[COLS], one;
            for (int col = 0; col < COLS; col += TILE) matrix_floats(&w, row, col, TILE, tile + col);
            for (int i = 0; i < COLS; i++) {
                float scale = (row % 2 ? -1.0f : 1.0f) * (0.03125f + (float)(i / groups[g]));
                float want = ((float)(i % 16) - (float)(row / 2)) * scale;
                matrix_floats(&w, row, i, 1, &one);
                bad += tile[i] != want || one != want;
            }
        }
        CHECK(!bad, "INT4 in groups of %d: %d of %d are wrong", groups[g], bad, ROWS * COLS);
    }
    free(codes);
}

// A word holds any F16 and BF16 scale exactly; F32 ones are rounded; what is not finite stays so.
static void test_int4_words(void) {
    int bad = 0;
    for (uint32_t h = 0; h < 65536; h++)
        for (uint32_t zero = 0; zero <= 16; zero += 8) {
            float scale[2] = {float_of_f16((uint16_t)h), float_of_bf16((uint16_t)h)};
            for (int i = 0; i < 2; i++) {
                uint32_t word = int4_word(scale[i], zero);
                bad += isnan(scale[i]) ? isfinite(int4_scale(word)) : int4_scale(word) != scale[i];
                bad += (word & INT4_ZERO) != zero;
            }
        }
    CHECK(!bad, "%d words are wrong", bad);
    for (int i = 0; i < 100000; i++) {
        float f = float_of_bits(random_bits());
        float back = int4_scale(int4_word(f, 16));
        if (isfinite(f)) bad += !(fabsf(back - f) <= fabsf(f) * 0x1p-19f + 0x1p-144f) && isfinite(back);
        else bad += isfinite(back);
    }
    CHECK(!bad, "%d rounded words are wrong", bad);
}

// find_wrong names the first number that is not allowed.
static void test_wrong_numbers(void) {
    char value[32];
    uint8_t e4m3[4] = {0, 0x7e, 0x80, 0x7f};
    float factors[4] = {0, 1, 1e30f, -1};
    uint32_t words[2] = {0xbf800010, 0x7f800008};
    uint8_t e8m0[4] = {0, MXFP4_LARGEST, 254, 255};
    CHECK(mxfp4_find_wrong_scale(e8m0, 2, value) == 2, "MXFP4 scales");
    CHECK(mxfp4_find_wrong_scale(e8m0, 4, value) == 2 && !strcmp(value, "2^127"), "MXFP4 scale %s", value);
    e8m0[1] = MXFP4_LARGEST + 1;
    CHECK(mxfp4_find_wrong_scale(e8m0, 2, value) == 1 && !strcmp(value, "2^126"), "MXFP4 scale %s", value);
    CHECK(mxfp4_find_wrong_scale(e8m0 + 3, 1, value) == 0 && !strcmp(value, "NaN"), "MXFP4 scale %s", value);
    CHECK(nvfp4_find_wrong_scale(e4m3, 4, value) == 3 && !strcmp(value, "NaN"), "scale %s", value);
    e4m3[1] = 0x81;
    CHECK(nvfp4_find_wrong_scale(e4m3, 4, value) == 1 && value[0] == '-', "scale %s", value);
    CHECK(nvfp4_find_wrong_factor(factors, 4, value) == 2 && nvfp4_find_wrong_factor(factors, 2, value) == 2, "factor");
    CHECK(fp8_find_wrong_scale(factors, 2, value) == 2 && fp8_find_wrong_scale(factors + 3, 1, value) == 0, "FP8 scale");
    CHECK(int4_find_wrong_scale(words, 2, value) == 1 && !strcmp(value, "inf"), "INT4 scale %s", value);
}

// The one of n numbers that is not finite, wherever it is, at odd addresses, too; their largest and smallest are.
static void test_not_finite(size_t (*find)(const void *, size_t, char *), size_t size, uint32_t largest, uint32_t infinite) {
    enum { N = 9001 };
    char *bytes = (char *)calloc(N + 1, size), value[32];
    const uint32_t sign = (uint32_t)1 << (8 * size - 1), fine[] = {largest, largest | sign, 1, sign};
    for (size_t i = 0; i < N; i++) memcpy(bytes + 1 + i * size, &fine[i % 4], size);
    CHECK(find(bytes + 1, N, value) == N && find(bytes + 1, 0, value) == 0, "finite numbers of %zu bytes", size);
    for (size_t i = 0; i < N; i += i % 4096 < 4094 ? 97 : 1) {
        const uint32_t wrong[] = {infinite, infinite | sign, infinite + 1, infinite | sign | (sign - 1)};
        memcpy(bytes + 1 + i * size, &wrong[i % 4], size);
        CHECK(find(bytes + 1, N, value) == i && !strcmp(value, i % 4 > 1 ? "NaN" : i % 4 ? "-inf" : "inf"), "number %zu of %zu bytes: %s", i, size, value);
        memcpy(bytes + 1 + i * size, &fine[i % 4], size);
    }
    free(bytes);
}

int main(int argc, char **argv) {
    test_main_begin("test_formats", argc, argv);
    test_not_finite(bf16_find_wrong, 2, 0x7f7f, 0x7f80);
    test_not_finite(f16_find_wrong, 2, 0x7bff, 0x7c00);
    test_not_finite(f32_find_wrong, 4, 0x7f7fffff, 0x7f800000);
    test_nvfp4_vector();
    test_nvfp4_encoded();
    test_gptq_vectors();
    test_order();
    test_awq_vectors();
    test_int4_ct_vectors();
    test_fp8_row_vectors();
    test_quantised();
    test_all_nvfp4();
    test_all_mxfp4();
    test_all_mxfp8();
    test_mxfp8_matrix();
    test_all_int4();
    test_int4_words();
    test_wrong_numbers();
    return test_main_end();
}
