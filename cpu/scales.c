/* cpu/scales.c: E4M3 weights whose scales stay outside of the products with their codes: a block's is multiplied into the token
   rows, once for ROW_BLOCK weight rows, and a row's into the sum. */

/* Is a matrix one of them? The others' weights are scaled before they are multiplied. */
static int common_scale(const matrix *w) {
    const int blocks = w->format == FORMAT_FP8_BLOCK && w->block_rows % ROW_BLOCK == 0 && w->block_cols % STREAM_COLS == 0;
    return w->cols % STREAM_COLS == 0 && (blocks || w->format == FORMAT_FP8_ROW);
}

/* What sums of a row's unpacked codes are multiplied with. */
static float row_unit(const weight_row *row) {
    return *(const float *)(const void *)row->plane[SCALES] * E4M3_UNIT;
}
