/* formats/fp8_row.c: E4M3 codes under a scale for each row (channel).

   weight = code * scale of its row. */

static const weight_format fp8_row_format = {
    .name = "FP8 by row", .component_count = 2,
    .components = {{.bits = 8, .rows = 1, .cols = 1, .packed = 64,
                    .find_wrong = fp8_find_nan, .number = "weight", .allowed = "finite numbers"},
                   {.bits = 32, .rows = 1, .cols = INT_MAX,
                    .find_wrong = fp8_find_wrong_scale, .number = "scale", .allowed = "finite numbers from 0 on, below 128"}}};

enum { fp8_row_kernel = CPU_E4M3 };

static const tensor_encoding fp8_channel_encoding = {
    .name = "FP8 per channel", .format = FORMAT_FP8_ROW, .rows = 1, .cols = 1,
    .parts = {{".weight", "F8_E4M3", "n k", 0}, {".weight_scale", NULL, "n 1|n", 0}},
    .components = {{0, 0, NULL}, {1, 1u << 1, fp8_widen_scales}}};

INLINE void fp8_row_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    (void)w;
    unpack_fp8((const uint8_t *)row->component[CODES] + col, n, *(const float *)(const void *)row->component[SCALES], out);
}

BOTH unsigned fp8_row_inspect(int component, const void *numbers, size_t i) {
    return fp8_block_inspect(component, numbers, i);
}
