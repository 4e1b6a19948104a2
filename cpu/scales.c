/* cpu/scales.c: E4M3 weights whose codes cpu/products.c unpacks itself. A block's scale is multiplied into the token rows or, with
   AVX2, into the sum of some of its columns; a row's into the whole sum. */

/* E4M3 codes with a scale for each row, or for each block. f may be a constant. */
INLINE int has_row_scales(const enum format f) {
    return kernel_of(f) == CPU_E4M3 && formats[f]->components[SCALES].rows;
}

INLINE int has_block_scales(const enum format f) {
    return kernel_of(f) == CPU_E4M3 && !formats[f]->components[SCALES].rows;
}

/* Whether a matrix is one of them: its columns fill registers of any level. The others become floats by row_floats. */
static int uses_e4m3_kernel(const matrix *w) {
    const int blocks = has_block_scales(w->format) && w->block_rows % ROW_BLOCK == 0 && w->block_cols % STREAM_COLS == 0;
    return w->cols % 16 == 0 && (blocks || has_row_scales(w->format));
}

/* So many columns, which have a block's scale in common, are summed before the sum is multiplied with it (SCALED_SUMS). Tiles are
   whole spans but for a row's end. */
static int block_span(const matrix *w) {
    return w->block_cols % (2 * STREAM_COLS) ? STREAM_COLS : 2 * STREAM_COLS;
}

/* The factor of the sums of a row's unpacked codes. */
static float row_scale_of(const weight_row *row) {
    return *(const float *)(const void *)row->component[SCALES] * E4M3_BITS_SCALE;
}
