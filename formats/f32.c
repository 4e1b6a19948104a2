/* formats/f32.c: weights as floats. */

static size_t f32_find_wrong(const void *numbers, size_t n, char value[32]) {
    const size_t i = find_all_set_32(numbers, n, 0x7f800000);
    float number;
    if (i == n) return n;
    memcpy(&number, (const char *)numbers + i * sizeof number, sizeof number);
    not_finite(number, value);
    return i;
}

static const weight_format f32_format = {
    .name = "F32", .component_count = 1,
    .components = {{.bits = 32, .rows = 1, .cols = 1, .packed = 64,
                    .find_wrong = f32_find_wrong, .number = "weight", .allowed = "finite numbers"}}};

enum { f32_kernel = CPU_FLOATS };

static const tensor_encoding f32_encoding = {
    .name = "F32", .format = FORMAT_F32, .rows = 1, .cols = 1,
    .parts = {{".weight", "F32", "n k", 0}},
    .components = {{CODES, 0, NULL}}};

INLINE void f32_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    (void)w;
    memcpy(out, (const float *)(const void *)row->component[CODES] + col, (size_t)n * sizeof *out);
}

BOTH unsigned f32_inspect(int component, const void *numbers, size_t i) {
    (void)component;
    return inspect_magnitude(((const uint32_t *)numbers)[i] & 0x7fffffffu, 0x7f800000u);
}
