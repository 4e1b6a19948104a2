/* cpu/nibble_rows.c: where the codes and scales of a weight row's column blocks lie, for cpu/nibbles.c. */

enum {
    FEW_TOKENS = 4,              /* token rows that are multiplied while weights come from memory */
    MANY_COL_BLOCKS = 4          /* column blocks that many token rows use at a time */
};

/* A weight row from some column block on. */
typedef struct nibble_row {
    const uint8_t *codes;
    const char *scales;
    int col_block, step, mask;   /* after each column block whose successor's number & mask is 0, scales lie `step` bytes on */
    int shift;                   /* 2^shift lanes of a column block have one scale */
    size_t codes_below, scales_below;              /* bytes to the next row's */
} nibble_row;

INLINE void nibble_row_next(nibble_row *r) {
    r->codes += COL_BLOCK / 2;
    r->scales += ++r->col_block & r->mask ? 0 : r->step;
}

/* The end of a row that is less than a column block, with zeros after it. */
typedef struct row_end {
    uint8_t codes[COL_BLOCK / 2];
    char scales[COL_BLOCK_LANES];
} row_end;

/* Whether a matrix is one for cpu/nibbles.c: there a lane's columns have one scale, and so have whole lanes of a column block. */
static int uses_nibble_kernel(const matrix *w) {
    const enum cpu_kernel kernel = kernel_of(w->format);
    const int group = w->block_cols;
    return kernel == CPU_E2M1 || (kernel == CPU_UINT4 && (group >= w->cols || (group >= 32 && !(group & (group - 1)))));
}

/* f is a constant. */
INLINE nibble_row nibble_row_at(const matrix *w, int row, int col_block, const enum format f) {
    const component *of = &formats[f]->components[SCALES];
    const int col = col_block * COL_BLOCK, group = of->cols ? of->cols : w->block_cols, bytes = of->bits / 8;
    const int numbers = group >= w->cols ? 0 : group < COL_BLOCK ? COL_BLOCK / group : 1;
    const size_t codes = (size_t)w->cols / 2, scales = component_bytes(of, component_cols(of, w));
    nibble_row r = {(const uint8_t *)w->component[CODES] + (size_t)row * codes + (size_t)(col / 2),
                    (const char *)w->component[SCALES] + (size_t)row * scales + (size_t)(col / group * bytes), col_block,
                    numbers * bytes, group > COL_BLOCK ? group / COL_BLOCK - 1 : 0,
                    group == 16 ? 1 : group == 32 ? 2 : group == 64 ? 3 : 4, codes, scales};
    if (group >= w->cols) r.shift = 4;
    return r;
}

/* The same columns of a row further down. */
INLINE nibble_row nibble_row_below(nibble_row r, int rows) {
    r.codes += (size_t)rows * r.codes_below;
    r.scales += (size_t)rows * r.scales_below;
    return r;
}

/* A row whose last column block, not a whole one, has so many columns: from there on. f is a constant. */
INLINE nibble_row nibble_row_end(nibble_row r, int cols, row_end *end, const enum format f) {
    const int lanes = (cols + 7) / 8;
    const size_t bytes = (size_t)(((lanes - 1) >> r.shift) + 1) * (size_t)(formats[f]->components[SCALES].bits / 8);
    memset(end, 0, sizeof *end);
    memcpy(end->codes, r.codes, (size_t)cols / 2);
    memcpy(end->scales, r.scales, bytes);
    r.codes = end->codes;
    r.scales = end->scales;
    return r;
}
