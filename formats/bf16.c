/* formats/bf16.c: weights as the upper halves of floats. */

static size_t bf16_find_wrong(const void *numbers, size_t n, char value[32]) {
    return find_not_finite_16(numbers, n, 0x7f80, float_of_bf16, value);
}

static const weight_format bf16_format = {
    .name = "BF16", .component_count = 1,
    .components = {{.bits = 16, .rows = 1, .cols = 1, .packed = 64,
                    .find_wrong = bf16_find_wrong, .number = "weight", .allowed = "finite numbers"}}};

enum { bf16_kernel = CPU_BF16 };

static const tensor_encoding bf16_encoding = {
    .name = "BF16", .format = FORMAT_BF16, .rows = 1, .cols = 1,
    .parts = {{".weight", "BF16", "n k", 0}},
    .components = {{CODES, 0, NULL}}};

INLINE void bf16_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    (void)w;
    unpack_bf16((const uint16_t *)(const void *)row->component[CODES] + col, n, out);
}

BOTH unsigned bf16_inspect(int component, const void *numbers, size_t i) {
    (void)component;
    return inspect_magnitude(((const uint16_t *)numbers)[i] & 0x7fffu, 0x7f80u);
}
