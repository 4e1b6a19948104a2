/* formats/f16.c: weights as IEEE half precision numbers. */

static const weight_format f16_format = {
    .name = "F16", .component_count = 1,
    .components = {{.bits = 16, .rows = 1, .cols = 1, .packed = 64}}};

enum { f16_kernel = CPU_F16 };

static const tensor_encoding f16_encoding = {
    .name = "F16", .format = FORMAT_F16, .rows = 1, .cols = 1,
    .parts = {{".weight", "F16", "n k", 0}},
    .components = {{CODES, 0, NULL}}};

INLINE void f16_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    (void)w;
    unpack_f16((const uint16_t *)(const void *)row->component[CODES] + col, n, out);
}

/* Standard deviation 0.018; a bell's 9 bits times 2^-13 are exact, and normal numbers. */
BOTH void f16_random(int component, uint32_t seed, uint32_t i, void *to) {
    uint32_t bits;
    int32_t bell = synthetic_bell(seed, i);
    float f = (float)bell * 0x1p-13f;
    (void)component;
    memcpy(&bits, &f, 4);
    ((uint16_t *)to)[i] = (uint16_t)(bell ? ((bits & 0x7fffffff) - (112u << 23)) >> 13 | (bits >> 31) << 15 : 0);
}

BOTH unsigned f16_inspect(int component, const void *numbers, size_t i) {
    (void)component;
    return inspect_magnitude(((const uint16_t *)numbers)[i] & 0x7fffu, 0x7c00u);
}
