/* formats/mxfp8.c: E4M3 codes under a power of two for each 32 columns of a row (OCP Microscaling MXFP8), which become BF16 when they are loaded.

   weight = code * 2^(scale - 127). A code has four bits of mantissa at most, so the product is a BF16, exactly, but at the ends of the range:
   what is not is refused. No kernel reads such groups: FP8 blocks have one scale for at least 64 columns. So a weight takes twice the
   memory that it has in the file. modelopt and compressed-tensors store scales as bytes, others as E8M0. */

enum { MXFP8_GROUP = 32 };

/* The BF16 in *to; 0: there is none. */
static int mxfp8_weight(uint8_t code, uint8_t scale, uint16_t *to) {
    const float value = fp8_bits(code) * FP8_BITS_SCALE * e8m0_value(scale);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    *to = (uint16_t)((code & 0x7f) == 0x7f ? 0x7fc0 : bits >> 16);           /* NaN is told as a weight's */
    return scale < 255 && !(bits & 0xffff) && isfinite(value);
}

static int mxfp8_weights(conversion *c, void *to) {
    const uint8_t *code = (const uint8_t *)c->part[0], *scale = (const uint8_t *)c->part[1];
    const size_t cols = (size_t)c->cols, groups = cols / MXFP8_GROUP;
    uint16_t *word = (uint16_t *)to;
    for (size_t row = 0; row < (size_t)c->rows; row++)
        for (size_t i = 0; i < cols; i++) {
            const size_t group = row * groups + i / MXFP8_GROUP, at = row * cols + i;
            if (mxfp8_weight(code[at], scale[group], &word[at])) continue;
            snprintf(c->why, sizeof c->why, "scale %d of row %d: with %d its weights are no BF16 numbers", (int)(group % groups), (int)row, scale[group]);
            return 1;
        }
    return -1;
}

static const tensor_encoding mxfp8_encoding = {
    .name = "MXFP8 as BF16", .format = FORMAT_BF16, .rows = 1, .cols = MXFP8_GROUP,
    .parts = {{.suffix = ".weight", .stored = "F8_E4M3", .shape = "n k"}, {.suffix = ".weight_scale", .stored = "U8", .shape = "n k/32"}},
    .components = {{.part = 0, .needs = 1u << 0 | 1u << 1, .convert = mxfp8_weights}}};

static const tensor_encoding mxfp8_e8m0_encoding = {
    .name = "MXFP8 as BF16", .format = FORMAT_BF16, .rows = 1, .cols = MXFP8_GROUP,
    .parts = {{.suffix = ".weight", .stored = "F8_E4M3", .shape = "n k"}, {.suffix = ".weight_scale", .stored = "F8_E8M0", .shape = "n k/32"}},
    .components = {{.part = 0, .needs = 1u << 0 | 1u << 1, .convert = mxfp8_weights}}};
