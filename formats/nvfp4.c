/* formats/nvfp4.c: E2M1 codes under an E4M3 scale for each 16 columns of a row, and one factor for all.

   weight = code * (scale * factor). A code is sign, two bits of exponent, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6. modelopt
   stores the factor (weight_scale_2), compressed-tensors what it divides by (weight_global_scale). Activations, for which
   checkpoints may bring a factor as well (input_scale), are not quantised. */

enum { NVFP4_GROUP = 16 };

static size_t nvfp4_find_wrong_scale(const void *numbers, size_t n, char value[32]) {
    const uint8_t *code = (const uint8_t *)numbers;
    size_t i = 0;
    while (i < n && (code[i] <= 0x7e || code[i] == 0x80)) i++;
    if (i == n) return n;
    if ((code[i] & 0x7f) == 0x7f) snprintf(value, 32, "NaN");
    else snprintf(value, 32, "%g", (double)(fp8_bits(code[i]) * FP8_BITS_SCALE));
    return i;
}

static size_t nvfp4_find_wrong_factor(const void *numbers, size_t n, char value[32]) {
    const float *factor = (const float *)numbers;
    size_t i = 0;
    while (i < n && factor[i] >= 0 && factor[i] < 0x1p64f) i++;
    if (i < n) snprintf(value, 32, "%g", (double)factor[i]);
    return i;
}

static const weight_format nvfp4_format = {
    .name = "NVFP4", .component_count = 3,
    .components = {{.bits = 4, .rows = 1, .cols = 1, .packed = 32},
                   {.bits = 8, .rows = 1, .cols = NVFP4_GROUP, .packed = 4,
                    .find_wrong = nvfp4_find_wrong_scale, .number = "scale", .allowed = "finite numbers from 0 on"},
                   {.bits = 32, .rows = INT_MAX, .cols = INT_MAX,
                    .find_wrong = nvfp4_find_wrong_factor, .number = "factor", .allowed = "a finite number from 0 on, below 2^64"}}};

enum { nvfp4_kernel = CPU_E2M1_E4M3 };

static int nvfp4_factor(conversion *c, void *to) {
    memcpy(to, c->part[2], sizeof(float));
    return -1;
}

static const tensor_encoding nvfp4_encoding = {
    .name = "NVFP4", .format = FORMAT_NVFP4, .rows = 1, .cols = NVFP4_GROUP,
    .parts = {{".weight", "U8", "n k/2", 0}, {".weight_scale", "F8_E4M3", "n k/16", 0}, {".weight_scale_2", "F32", "|1", 0}},
    .components = {{0, 0, NULL}, {1, 0, NULL}, {2, 1u << 2, nvfp4_factor}}};

static int nvfp4_divisor(conversion *c, void *to) {
    float divisor, factor;
    memcpy(&divisor, c->part[2], sizeof divisor);
    factor = 1 / divisor;
    memcpy(to, &factor, sizeof factor);
    return -1;
}

static const tensor_encoding nvfp4_ct_encoding = {
    .name = "NVFP4", .format = FORMAT_NVFP4, .rows = 1, .cols = NVFP4_GROUP,
    .parts = {{".weight_packed", "U8", "n k/2", 0}, {".weight_scale", "F8_E4M3", "n k/16", 0}, {".weight_global_scale", "F32", "1|", 0}},
    .components = {{0, 0, NULL}, {1, 0, NULL}, {2, 1u << 2, nvfp4_divisor}}};

/* Twice the value of an E2M1 code without its sign, a whole number: four bits for each code. */
#define E2M1_TWICE 0xc8643210u

BOTH float e2m1_value(uint32_t code) {
    const float size = (float)(int32_t)(E2M1_TWICE >> (code & 7) * 4 & 15) * 0.5f;
    uint32_t bits;
    memcpy(&bits, &size, sizeof bits);
    return float_of_bits(bits | (uint32_t)(code & 8) << 28);
}

/* Two codes lie in a byte, that of the even column in its lower half. */
INLINE uint8_t nibble_at(const uint8_t *codes, int col) {
    return codes[col / 2] >> col % 2 * 4 & 15;
}

/* A weight at a time; products read codes by blocks of 128 columns, see cpu/nibbles.c. */
INLINE void nvfp4_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    const uint8_t *scale = (const uint8_t *)row->component[SCALES], *codes = (const uint8_t *)row->component[CODES];
    const float factor = *(const float *)(const void *)row->component[FACTOR];
    (void)w;
    for (int i = col; i < col + n; i++)
        out[i - col] = e2m1_value(nibble_at(codes, i)) * (fp8_bits(scale[i / NVFP4_GROUP]) * FP8_BITS_SCALE * factor);
}

BOTH unsigned nvfp4_inspect(int component, const void *numbers, size_t i) {
    if (component == CODES) return ((const uint8_t *)numbers)[i] & 0x77 ? WEIGHTS_NOT_ZERO : 0;
    return component == SCALES ? inspect_magnitude(((const uint8_t *)numbers)[i] & 0x7fu, 0x7fu) : f32_inspect(CODES, numbers, i);
}
