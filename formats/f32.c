/* formats/f32.c: weights as floats. */

static const weight_format f32_format = {
    .name = "F32", .component_count = 1,
    .components = {{.bits = 32, .rows = 1, .cols = 1, .packed = 64}}};

enum { f32_kernel = CPU_FLOATS };

static const tensor_encoding f32_encoding = {
    .name = "F32", .format = FORMAT_F32, .rows = 1, .cols = 1,
    .parts = {{".weight", "F32", "n k", 0}},
    .components = {{CODES, 0, NULL}}};

INLINE void f32_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    (void)w;
    memcpy(out, (const float *)(const void *)row->component[CODES] + col, (size_t)n * sizeof *out);
}

/* Standard deviation 0.02 */
BOTH float synthetic_f32(uint32_t seed, uint32_t i) {
    return (float)synthetic_bell(seed, i) * 0x1.1bcp-13f;
}

BOTH void f32_random(int component, uint32_t seed, uint32_t i, void *to) {
    (void)component;
    ((float *)to)[i] = synthetic_f32(seed, i);
}

BOTH unsigned f32_inspect(int component, const void *numbers, size_t i) {
    (void)component;
    return inspect_magnitude(((const uint32_t *)numbers)[i] & 0x7fffffffu, 0x7f800000u);
}
