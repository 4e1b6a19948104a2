/* formats/fp8_row.c: E4M3 codes under a scale for each row (channel).

   weight = code * scale of its row. */

static const weight_format fp8_row_format = {
    "FP8 by row", 2,
    {{8, 1, 1, 64, fp8_find_nan, "weight", "finite numbers"},
     {32, 1, INT_MAX, 0, fp8_find_wrong_scale, "scale", "finite numbers from 0 on, below 128"}},
    NULL, 0};

enum { fp8_row_kernel = CPU_E4M3 };

static const tensor_encoding fp8_channel_encoding = {
    "FP8 per channel", FORMAT_FP8_ROW, 1, 1,
    {{".weight", "F8_E4M3", "n k", 0}, {".weight_scale", NULL, "n 1|n", 0}},
    {{0, 0, NULL}, {1, 1u << 1, fp8_widen_scales}}};

INLINE void fp8_row_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    (void)w;
    unpack_fp8((const uint8_t *)row->component[CODES] + col, n, *(const float *)(const void *)row->component[SCALES], out);
}

BOTH void fp8_row_random(int component, uint32_t seed, uint32_t i, void *to) {
    fp8_block_random(component, seed, i, to);
}

BOTH unsigned fp8_row_inspect(int component, const void *numbers, size_t i) {
    return fp8_block_inspect(component, numbers, i);
}
