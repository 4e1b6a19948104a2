/* formats/mxfp4.c: E2M1 codes under a power of two for each 32 columns of a row (OCP Microscaling MXFP4).

   weight = code * 2^(scale - 127). Codes are NVFP4's (formats/nvfp4.c), a scale is an E8M0: eight bits of exponent, 255 NaN. gpt-oss stores
   experts so: blocks of 16 bytes are a row's codes as they lie in memory, the even column in a byte's lower half. */

enum { MXFP4_GROUP = 32, MXFP4_BIAS = 127, MXFP4_LARGEST = MXFP4_BIAS + 125 };       /* with it the largest weight, 6 * 2^125, is a float */

/* 2^(code - 127), the smallest as a subnormal number. */
BOTH float e8m0_value(uint32_t code) {
    return float_of_bits(code ? code << 23 : 1u << 22);
}

static size_t mxfp4_find_wrong_scale(const void *numbers, size_t n, char value[32]) {
    const uint8_t *code = (const uint8_t *)numbers;
    size_t i = 0;
    while (i < n && code[i] <= MXFP4_LARGEST) i++;
    if (i == n) return n;
    if (code[i] == 255) snprintf(value, 32, "NaN");
    else snprintf(value, 32, "2^%d", code[i] - MXFP4_BIAS);
    return i;
}

static const weight_format mxfp4_format = {
    .name = "MXFP4", .component_count = 2,
    .components = {{.bits = 4, .rows = 1, .cols = 1, .packed = 32, .by_groups = 1},
                   {.bits = 8, .rows = 1, .cols = MXFP4_GROUP, .packed = 2, .find_wrong = mxfp4_find_wrong_scale, .number = "scale",
                    .allowed = "2^125 at most"}}};

enum { mxfp4_kernel = CPU_E2M1_E8M0 };

static const tensor_encoding mxfp4_encoding = {
    .name = "MXFP4", .format = FORMAT_MXFP4, .rows = 1, .cols = MXFP4_GROUP,
    .parts = {{.suffix = ".weight_blocks", .stored = "U8", .shape = "n k/32 16"}, {.suffix = ".weight_scales", .stored = "U8", .shape = "n k/32"}},
    .components = {{.part = 0}, {.part = 1}}};

/* A weight at a time; products read codes by blocks of 128 columns, see cpu/quarter_products.c. */
INLINE void mxfp4_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    const uint8_t *scale = (const uint8_t *)row->component[SCALES], *codes = (const uint8_t *)row->component[CODES];
    (void)w;
    for (int i = col; i < col + n; i++) out[i - col] = e2m1_value(nibble_at(codes, i)) * e8m0_value(scale[i / MXFP4_GROUP]);
}

BOTH unsigned mxfp4_inspect(int component, const void *numbers, size_t i) {
    const uint8_t number = ((const uint8_t *)numbers)[i];
    if (component == CODES) return number & 0x77 ? WEIGHTS_NOT_ZERO : 0;
    return WEIGHTS_NOT_ZERO | (number == 255 ? WEIGHTS_NOT_FINITE : 0);
}
