/* formats/f16.c: weights as IEEE half precision numbers. */

static size_t f16_find_wrong(const void *numbers, size_t n, char value[32]) {
    return find_not_finite_16(numbers, n, 0x7c00, float_of_f16, value);
}

static const weight_format f16_format = {
    .name = "F16", .component_count = 1,
    .components = {{.bits = 16, .rows = 1, .cols = 1, .packed = 64,
                    .find_wrong = f16_find_wrong, .number = "weight", .allowed = "finite numbers"}}};

enum { f16_kernel = CPU_F16 };

static const tensor_encoding f16_encoding = {
    .name = "F16", .format = FORMAT_F16, .rows = 1, .cols = 1,
    .parts = {{".weight", "F16", "n k", 0}},
    .components = {{CODES, 0, NULL}}};

INLINE void f16_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    (void)w;
    unpack_f16((const uint16_t *)(const void *)row->component[CODES] + col, n, out);
}

BOTH unsigned f16_inspect(int component, const void *numbers, size_t i) {
    (void)component;
    return inspect_magnitude(((const uint16_t *)numbers)[i] & 0x7fffu, 0x7c00u);
}
