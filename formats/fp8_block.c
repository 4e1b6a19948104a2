/* formats/fp8_block.c: E4M3 codes under a scale for each block, as the official FP8 checkpoints have them.

   weight = code * scale of its block. Blocks at the edges are cut off; their sides are config.json's weight_block_size.
   With FP8_BITS_SCALE multiplied in, a scale must stay a float: hence below 128. BF16 weights can be turned into such blocks when
   they are loaded. */

/* The first NaN (0x7f, 0xff). */
static size_t fp8_find_nan(const void *numbers, size_t n, char value[32]) {
    snprintf(value, 32, "NaN");
    return find_all_set_8(numbers, n, 0x7f);
}

static size_t fp8_find_wrong_scale(const void *numbers, size_t n, char value[32]) {
    const float *scale = (const float *)numbers;
    size_t i = 0;
    while (i < n && scale[i] >= 0 && scale[i] < 128) i++;
    if (i < n) snprintf(value, 32, "%g", (double)scale[i]);
    return i;
}

static const char *fp8_block_unsupported_reason(int rows, int cols) {
    return rows & (rows - 1) || cols & (cols - 1) || cols < 64 || rows < 16
               ? "FP8 blocks whose sides are no powers of two, or of less than 16 rows or 64 columns," : NULL;
}

static const weight_format fp8_block_format = {
    .name = "FP8", .component_count = 2,
    .components = {{.bits = 8, .rows = 1, .cols = 1, .packed = 64,
                    .find_wrong = fp8_find_nan, .number = "weight", .allowed = "finite numbers"},
                   {.bits = 32, .find_wrong = fp8_find_wrong_scale, .number = "scale", .allowed = "finite numbers from 0 on, below 128"}},
    .unsupported_reason = fp8_block_unsupported_reason};

enum { fp8_block_kernel = CPU_E4M3 };

static int fp8_widen_scales(conversion *c, void *to) {
    widen((dtype)c->type[1], c->part[1], to, c->rows, c->cols);
    return -1;
}

static const tensor_encoding fp8_block_encoding = {
    .name = "FP8", .format = FORMAT_FP8_BLOCK, .rows = 1, .cols = 1,
    .parts = {{".weight", "F8_E4M3", "n k", 0}, {".weight_scale_inv", NULL, "h g", 0}},
    .components = {{0, 0, NULL}, {1, 1u << 1, fp8_widen_scales}}};

/* As compressed-tensors has it. */
static const tensor_encoding fp8_block_ct_encoding = {
    .name = "FP8", .format = FORMAT_FP8_BLOCK, .rows = 1, .cols = 1,
    .parts = {{".weight", "F8_E4M3", "n k", 0}, {".weight_scale", NULL, "h g", 0}},
    .components = {{0, 0, NULL}, {1, 1u << 1, fp8_widen_scales}}};

/* One scale for all of the matrix, which is one block. */
static const tensor_encoding fp8_tensor_encoding = {
    .name = "FP8 per tensor", .format = FORMAT_FP8_BLOCK, .rows = 1, .cols = 1,
    .parts = {{".weight", "F8_E4M3", "n k", 0}, {".weight_scale", NULL, "|1", 0}},
    .components = {{0, 0, NULL}, {1, 1u << 1, fp8_widen_scales}}};

INLINE void fp8_block_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    const uint8_t *__restrict code = (const uint8_t *)row->component[CODES] + col;
    const float *scale = (const float *)(const void *)row->component[SCALES];
    scale += col / w->block_cols;
    for (int i = 0, end = w->block_cols - col % w->block_cols; i < n; i = end, end += w->block_cols, scale++)
        unpack_fp8(code + i, (end < n ? end : n) - i, *scale, out + i);      /* a block's columns have one scale */
}

/* Of BF16 weights: a block's scale, which makes its largest weight 448, the largest of E4M3. 1 of a block of zeros. */
static float quantised_scale(const conversion *c, int down, int across) {
    const matrix *w = c->w;
    const uint16_t *from = (const uint16_t *)c->part[0];
    int row = down * w->block_rows, col = across * w->block_cols;
    int end = row + w->block_rows < w->rows ? row + w->block_rows : w->rows;
    int n = col + w->block_cols < w->cols ? w->block_cols : w->cols - col;
    uint16_t most = 0;                                         /* without a sign, BF16s are in the order of their bits */
    for (; row < end; row++)
        for (int i = 0; i < n; i++) {
            uint16_t size = from[(size_t)row * (size_t)w->cols + (size_t)(col + i)] & 0x7fff;
            most = size > most ? size : most;
        }
    return most ? float_of_bf16(most) / 448 : 1;
}

static int quantised_scales(conversion *c, void *to) {
    float *scale = (float *)to;
    for (int i = 0; i < c->rows * c->cols; i++) scale[i] = quantised_scale(c, i / c->cols, i % c->cols);
    return -1;
}

static int quantised_codes(conversion *c, void *to) {
    const matrix *w = c->w;
    const uint16_t *from = (const uint16_t *)c->part[0];
    uint8_t *code = (uint8_t *)to;
    for (int down = 0; down * w->block_rows < w->rows; down++)
        for (int across = 0; across * w->block_cols < w->cols; across++) {
            float scale = quantised_scale(c, down, across);
            int end = (down + 1) * w->block_rows < w->rows ? (down + 1) * w->block_rows : w->rows;
            int last = (across + 1) * w->block_cols < w->cols ? (across + 1) * w->block_cols : w->cols;
            for (int row = down * w->block_rows; row < end; row++)
                for (size_t i = (size_t)row * (size_t)w->cols + (size_t)(across * w->block_cols),
                            stop = (size_t)row * (size_t)w->cols + (size_t)last; i < stop; i++)
                    code[i] = fp8_of_float(float_of_bf16(from[i]) / scale);
        }
    return -1;
}

/* Not found by its tensors: chosen instead of BF16. */
static const tensor_encoding quantised_encoding = {
    .name = "BF16 as FP8", .format = FORMAT_FP8_BLOCK, .rows = 1, .cols = 1,
    .parts = {{".weight", "BF16", "n k", 0}},
    .components = {{0, 1u << 0, quantised_codes}, {0, 1u << 0, quantised_scales}}};

BOTH unsigned fp8_block_inspect(int component, const void *numbers, size_t i) {
    return component == CODES ? inspect_magnitude(((const uint8_t *)numbers)[i] & 0x7fu, 0x7fu) : f32_inspect(CODES, numbers, i);
}
