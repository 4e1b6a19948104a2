/* formats/fp8_block.c: E4M3 codes under a scale for each block, as the official FP8 checkpoints have them.

   weight = code * scale of its block. Blocks at the edges are cut off; their sides are config.json's weight_block_size.
   With FP8_UNIT multiplied in, a scale must stay a float: hence below 128. */

/* The first NaN (0x7f, 0xff). */
static size_t fp8_find_nan(const void *numbers, size_t n, char value[32]) {
    const uint8_t *codes = (const uint8_t *)numbers;
    snprintf(value, 32, "NaN");
    for (size_t i = 0; i < n;) {
        size_t end = n - i < 4096 ? n : i + 4096, begin = i;
        int bad = 0;
        for (; i < end; i++) bad |= (codes[i] & 0x7f) == 0x7f;
        for (i = begin; bad; i++)
            if ((codes[i] & 0x7f) == 0x7f) return i;
        i = end;
    }
    return n;
}

static size_t fp8_find_wrong_scale(const void *numbers, size_t n, char value[32]) {
    const float *scale = (const float *)numbers;
    size_t i = 0;
    while (i < n && fabsf(scale[i]) < 128) i++;
    if (i < n) snprintf(value, 32, "%g", (double)scale[i]);
    return i;
}

static const char *fp8_block_unfit(int rows, int cols) {
    return rows & (rows - 1) || cols & (cols - 1) || cols < 64 || rows < 16
               ? "FP8 blocks whose sides are no powers of two, or of less than 16 rows or 64 columns," : NULL;
}

static const weight_format fp8_block_format = {
    "FP8", "FP8 with weight_scale_inv", "fp8", 2,
    {{".weight", "F8_E4M3", 8, 1, 1, 1, NULL, fp8_find_nan, "weight", "finite numbers"},
     {".weight_scale_inv", NULL, 32, 0, 0, 0, widen, fp8_find_wrong_scale, "scale", "finite numbers below 128"}},
    fp8_block_unfit};

INLINE void fp8_block_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    const uint8_t *__restrict code = (const uint8_t *)row->plane[CODES] + col;
    const float *scale = (const float *)(const void *)row->plane[SCALES];
    scale += col / w->block_cols;
    for (int i = 0, end = w->block_cols - col % w->block_cols; i < n; i = end, end += w->block_cols, scale++)
        unpack_fp8(code + i, (end < n ? end : n) - i, *scale, out + i);      /* a block's columns have one scale */
}

/* A whole number up to 448, rounded to what E4M3 has. */
BOTH uint8_t made_fp8(uint32_t seed, uint32_t i) {
    uint32_t bits;
    int32_t bell = made_bell(seed, i);
    float f = (float)bell;
    memcpy(&bits, &f, 4);
    int32_t code = (int32_t)(((bits & 0x7fffffff) + 0x80000) >> 20) - (120 << 3);      /* below 0 only for 0 */
    code = code < 0 ? 0 : code;
    code = code < 0x7e ? code : 0x7e;
    return (uint8_t)((uint32_t)code | bits >> 31 << 7);
}

/* Gives the codes the spread of made-up BF16 weights. */
BOTH float made_scale(uint32_t seed, uint32_t i) {
    made_floats f = {96, 127, 0x1p-20f};
    return made_float(seed, i, f);
}

BOTH void fp8_block_random(int plane, uint32_t seed, uint32_t i, void *to) {
    if (plane == CODES) ((uint8_t *)to)[i] = made_fp8(seed, i);
    else ((float *)to)[i] = made_scale(seed, i);
}

BOTH unsigned fp8_block_inspect(int plane, const void *numbers, size_t i) {
    return plane == CODES ? inspect_magnitude(((const uint8_t *)numbers)[i] & 0x7fu, 0x7fu) : f32_inspect(CODES, numbers, i);
}
