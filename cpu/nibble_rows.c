/* cpu/nibble_rows.c: where the codes and scales of a weight row's column blocks lie, for cpu/nibbles.c and cpu/quarter_products.c. */

enum {
    MANY_COL_BLOCKS = 4,         /* column blocks that many token rows use at a time */
    FEW_GROUPS = 2               /* registers of weight rows in quarters that few token rows use at a time, and share limbs */
};

/* A weight row from some column block on. */
typedef struct nibble_row {
    const uint8_t *codes;
    const char *scales;
    int col_block, step, mask;   /* after each column block whose successor's number & mask is 0, scales lie `step` bytes on */
    int shift;                   /* 2^shift lanes of a column block have one scale */
    size_t codes_below, scales_below;              /* bytes to the next row's */
    size_t scale_bytes;
} nibble_row;

INLINE void nibble_row_next(nibble_row *r) {
    r->codes += COL_BLOCK / 2;
    r->scales += ++r->col_block & r->mask ? 0 : r->step;
}

/* Which limbs a matrix takes, 0: none. It must have one scale for a lane's columns, or a quarter's, and whole lanes or quarters
   of a column block must have one. */
static unsigned limb_kinds(const matrix *w) {
    const enum cpu_kernel kernel = kernel_of(w->format);
    const int group = w->block_cols;
    if (kernel == CPU_E2M1_E4M3) return LIMBS_OF_LANES;
    if (kernel == CPU_E2M1_E8M0) return LIMBS_OF_QUARTERS;
    return kernel == CPU_UINT4 && (group >= w->cols || (group >= QUARTER_COLS && !(group & (group - 1)))) ? LIMBS_OF_QUARTERS : 0;
}

INLINE nibble_row nibble_row_at(const matrix *w, int row, int col_block) {
    const component *of = &formats[w->format]->components[SCALES];
    const int col = col_block * COL_BLOCK, group = of->cols ? of->cols : w->block_cols, bytes = of->bits / 8;
    const int numbers = group >= w->cols ? 0 : group < COL_BLOCK ? COL_BLOCK / group : 1;
    const size_t codes = (size_t)w->cols / 2, scales = component_bytes(of, component_cols(of, w));
    nibble_row r = {.codes = (const uint8_t *)w->component[CODES] + (size_t)row * codes + (size_t)(col / 2),
                    .scales = (const char *)w->component[SCALES] + (size_t)row * scales + (size_t)(col / group * bytes),
                    .col_block = col_block,
                    .step = numbers * bytes,
                    .mask = group > COL_BLOCK ? group / COL_BLOCK - 1 : 0,
                    .shift = group == 16 ? 1 : group == 32 ? 2 : group == 64 ? 3 : 4,
                    .codes_below = codes,
                    .scales_below = scales,
                    .scale_bytes = (size_t)bytes};
    if (!of->cols && group >= w->cols) r.shift = 4;      /* one for the row, whatever its width */
    return r;
}

/* The same columns of a row further down. */
INLINE nibble_row nibble_row_below(nibble_row r, int rows) {
    r.codes += (size_t)rows * r.codes_below;
    r.scales += (size_t)rows * r.scales_below;
    return r;
}

/* Column blocks of a few rows that are less than whole, or fewer rows than are taken together, with zeros after them. */
typedef struct row_ends {
    uint8_t codes[8][COL_BLOCK / 2];
    char scales[8][COL_BLOCK_LANES];
} row_ends;

/* `rows` <= 8 rows from r on, whose column block has so many columns, COL_BLOCK or more: a whole one. */
INLINE nibble_row nibble_row_ends(nibble_row r, int rows, int cols, row_ends *ends) {
    const int lanes = cols < COL_BLOCK ? (cols + 7) / 8 : COL_BLOCK_LANES;
    const size_t codes = cols < COL_BLOCK ? (size_t)cols / 2 : COL_BLOCK / 2;
    const size_t scales = (size_t)(((lanes - 1) >> r.shift) + 1) * r.scale_bytes;
    memset(ends, 0, sizeof *ends);
    for (int i = 0; i < rows; i++) {
        memcpy(ends->codes[i], r.codes + (size_t)i * r.codes_below, codes);
        memcpy(ends->scales[i], r.scales + (size_t)i * r.scales_below, scales);
    }
    r.codes = ends->codes[0];
    r.scales = ends->scales[0];
    r.codes_below = sizeof *ends->codes;
    r.scales_below = sizeof *ends->scales;
    return r;
}
