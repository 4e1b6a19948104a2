/* formats/int4.c: codes of four bits under a scale and a zero point for each group of columns of a row.

   weight = (code - zero point) * scale. In memory codes lie along the columns, and a group's scale and zero point share a
   32-bit word. Files have them in three ways, always eight codes in a word: GPTQ (and AutoRound) those of eight columns, but row
   after row where memory has word after word; AWQ those of eight rows, in an order of its own; compressed-tensors those of
   eight columns, as they lie in memory. */

enum { INT4_ZERO = 31 };         /* the bits of a word that are the zero point */

BOTH float int4_scale(uint32_t word) {
    float scale;
    word &= ~(uint32_t)INT4_ZERO;
    memcpy(&scale, &word, 4);
    return scale;
}

/* Scale and zero point as a word. A scale that needs more than 18 bits of mantissa, as some F32 do, is rounded. */
static uint32_t int4_word(float scale, uint32_t zero) {
    uint32_t bits;
    memcpy(&bits, &scale, 4);
    if ((bits & 0x7f800000) != 0x7f800000) bits += 15 + (bits >> 5 & 1);
    return (bits & ~(uint32_t)INT4_ZERO) | zero;
}

static size_t int4_find_wrong_scale(const void *numbers, size_t n, char value[32]) {
    const uint32_t *word = (const uint32_t *)numbers;
    size_t i = 0;
    while (i < n && fabsf(int4_scale(word[i])) < 0x1p64f) i++;
    if (i < n) snprintf(value, 32, "%g", (double)int4_scale(word[i]));
    return i;
}

static const weight_format int4_format = {
    .name = "INT4", .component_count = 2,
    .components = {{.bits = 4, .rows = 1, .cols = 1, .packed = 32},
                   {.bits = 32, .rows = 1, .packed = 4,
                    .find_wrong = int4_find_wrong_scale, .number = "scale", .allowed = "finite numbers below 2^64"}},
    .small_group = FORMAT_INT4_FINE};

enum { int4_kernel = CPU_UINT4 };

static float int4_stored_scale(const conversion *c, int part, size_t i) {
    float scale;
    const size_t size = c->type[part] == DTYPE_F32 ? 4 : 2;
    widen((dtype)c->type[part], (const char *)c->part[part] + i * size, &scale, 1, 1);
    return scale;
}

/* Element i of numbers of four bits in 32-bit words. */
static uint32_t int4_element(const void *words, size_t word, int i) {
    return ((const uint32_t *)words)[word] >> 4 * i & 15;
}

/* g_idx: the group of each column. Out of order, as desc_act makes it, the columns of a group do not lie together. */
static int int4_check_order(conversion *c, int part) {
    const int32_t *group = (const int32_t *)c->part[part];
    for (int k = 0; group && k < c->w->cols; k++) {
        if (group[k] == k / c->w->block_cols) continue;
        snprintf(c->why, sizeof c->why, "column %d is of group %d: an order of columns (desc_act) is not supported", k,
                 (int)group[k]);
        return part;
    }
    return -1;
}

/* ---- GPTQ: qweight [cols / 8][rows], qzeros [groups][rows / 8], scales [groups][rows], g_idx [cols] ---- */

/* A word is eight columns of a row already: what remains is to transpose words. */
static int gptq_codes(conversion *c, void *to) {
    enum { SIDE = 16 };
    const uint32_t *from = (const uint32_t *)c->part[0];
    uint32_t *out = (uint32_t *)to;
    const int words = c->w->cols / 8, rows = c->w->rows;
    for (int row = 0; row < rows; row += SIDE)
        for (int word = 0; word < words; word += SIDE)
            for (int r = row; r < row + SIDE && r < rows; r++)
                for (int i = word; i < word + SIDE && i < words; i++)
                    out[(size_t)r * (size_t)words + (size_t)i] = from[(size_t)i * (size_t)rows + (size_t)r];
    return int4_check_order(c, 3);
}

/* The offset of a stored zero point; in the first version of GPTQ's files, which has zeros less one, 1. Symmetric
   checkpoints have 8 everywhere, stored as 7 or as 8 by writers that mix the versions up. */
static uint32_t gptq_zero_offset(const conversion *c) {
    const uint32_t *words = (const uint32_t *)c->part[1];
    const size_t n = (size_t)c->cols * (size_t)(c->w->rows / 8);
    size_t same = 1;
    while (same < n && words[same] == words[0]) same++;
    if (same == n && !c->asymmetric && words[0] == 0x77777777) return 1;
    if (same == n && !c->asymmetric && words[0] == 0x88888888) return 0;
    return c->zeros_stored ? 0 : 1;
}

static int gptq_scales(conversion *c, void *to) {
    uint32_t *out = (uint32_t *)to;
    const uint32_t offset = gptq_zero_offset(c);
    const size_t rows = (size_t)c->w->rows;
    for (size_t row = 0; row < rows; row++)
        for (size_t g = 0; g < (size_t)c->cols; g++)
            *out++ = int4_word(int4_stored_scale(c, 2, g * rows + row),
                               int4_element(c->part[1], g * (rows / 8) + row / 8, (int)(row % 8)) + offset);
    return -1;
}

static const tensor_encoding gptq_encoding = {
    .name = "GPTQ INT4", .format = FORMAT_INT4, .rows = 8, .cols = 8,
    .parts = {{".qweight", "I32", "k/8 n", 0}, {".qzeros", "I32", "g n/8", 0}, {".scales", NULL, "g n", 0}, {".g_idx", "I32", "k", 1}},
    .components = {{0, 1u << 0 | 1u << 3, gptq_codes}, {2, 1u << 1 | 1u << 2, gptq_scales}}};

/* ---- AWQ: qweight [cols][rows / 8], qzeros [groups][rows / 8], scales [groups][rows] ---- */

/* The place in a word of each of eight rows. */
static const int awq_places[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static int awq_codes(conversion *c, void *to) {
    const uint32_t *from = (const uint32_t *)c->part[0];
    uint32_t *out = (uint32_t *)to;
    const size_t words = (size_t)c->w->cols / 8, across = (size_t)c->w->rows / 8;
    for (size_t word = 0; word < words; word++)
        for (size_t eight = 0; eight < across; eight++)
            for (size_t r = 0; r < 8; r++) {
                uint32_t packed = 0;
                for (size_t i = 0; i < 8; i++)
                    packed |= (from[(8 * word + i) * across + eight] >> 4 * awq_places[r] & 15) << 4 * i;
                out[(8 * eight + r) * words + word] = packed;
            }
    return -1;
}

static int awq_scales(conversion *c, void *to) {
    uint32_t *out = (uint32_t *)to;
    const size_t rows = (size_t)c->w->rows;
    for (size_t row = 0; row < rows; row++)
        for (size_t g = 0; g < (size_t)c->cols; g++)
            *out++ = int4_word(int4_stored_scale(c, 2, g * rows + row),
                               int4_element(c->part[1], g * (rows / 8) + row / 8, awq_places[row % 8]));
    return -1;
}

static const tensor_encoding awq_encoding = {
    .name = "AWQ INT4", .format = FORMAT_INT4, .rows = 8, .cols = 8,
    .parts = {{".qweight", "I32", "k n/8", 0}, {".qzeros", "I32", "g n/8", 0}, {".scales", NULL, "g n", 0}},
    .components = {{0, 1u << 0, awq_codes}, {2, 1u << 1 | 1u << 2, awq_scales}}};

/* ---- compressed-tensors: weight_packed [rows][cols / 8], weight_scale [rows][groups], weight_zero_point
   [rows / 8][groups] ---- */

/* Codes and zero points are stored as numbers around 0, with 8 added: the zero point is 8 where there is none. */
static int int4_ct_scales(conversion *c, void *to) {
    uint32_t *out = (uint32_t *)to;
    int64_t shape[2];
    const size_t cols = (size_t)c->cols;
    memcpy(shape, c->part[2], sizeof shape);
    if (shape[0] != c->w->rows || shape[1] != c->w->cols) {
        snprintf(c->why, sizeof c->why, "holds [%lld, %lld], expected [%d, %d]", (long long)shape[0], (long long)shape[1],
                 c->w->rows, c->w->cols);
        return 2;
    }
    for (size_t row = 0; row < (size_t)c->w->rows; row++)
        for (size_t g = 0; g < cols; g++)
            *out++ = int4_word(int4_stored_scale(c, 1, row * cols + g),
                               c->part[3] ? int4_element(c->part[3], row / 8 * cols + g, (int)(row % 8)) : 8);
    return int4_check_order(c, 4);
}

static const tensor_encoding int4_ct_encoding = {
    .name = "INT4", .format = FORMAT_INT4, .rows = 1, .cols = 8,
    .parts = {{".weight_packed", "I32", "n k/8", 0}, {".weight_scale", NULL, "n g", 0}, {".weight_shape", "I64", "2", 0},
              {".weight_zero_point", "I32", "n/8 g", 1}, {".weight_g_idx", "I32", "k", 1}},
    .components = {{0, 0, NULL}, {1, 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4, int4_ct_scales}}};

/* ---- Floats ---- */

/* A weight at a time; products read codes by blocks of 128 columns, see cpu/quarter_products.c. */
INLINE void int4_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    const uint32_t *group = (const uint32_t *)(const void *)row->component[SCALES];
    const uint8_t *codes = (const uint8_t *)row->component[CODES];
    for (int i = col; i < col + n; i++) {
        const uint32_t word = group[i / w->block_cols];
        out[i - col] = ((float)nibble_at(codes, i) - (float)(word & INT4_ZERO)) * int4_scale(word);
    }
}

BOTH unsigned int4_inspect(int component, const void *numbers, size_t i) {
    if (component == CODES) return ((const uint8_t *)numbers)[i] != 0x88 ? WEIGHTS_NOT_ZERO : 0;
    return inspect_magnitude(((const uint32_t *)numbers)[i] & 0x7fffffe0u, 0x7f800000u);
}
