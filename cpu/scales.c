/* cpu/scales.c: E4M3 weights whose codes cpu/products.c unpacks itself. A block's scale is multiplied into the token rows, a
   row's into the sum. */

/* Is a matrix one of them? Its columns fill registers of any level. The others become floats by row_floats. */
static int e4m3_order(const matrix *w) {
    const int blocks = w->format == FORMAT_FP8_BLOCK && w->block_rows % ROW_BLOCK == 0 && w->block_cols % STREAM_COLS == 0;
    return w->cols % 16 == 0 && (blocks || w->format == FORMAT_FP8_ROW);
}

/* What sums of a row's unpacked codes are multiplied with. */
static float row_unit(const weight_row *row) {
    return *(const float *)(const void *)row->component[SCALES] * E4M3_UNIT;
}
