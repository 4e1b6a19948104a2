/* formats/int4_fine.c: INT4 in groups of 32 columns, as a GPU has it: the components of int4.c, packed in k blocks of 32 columns,
   so that a row has one scale and one zero point in each. The CPU needs no such difference: there these matrices are INT4. */

static const weight_format int4_fine_format = {
    .name = "INT4", .component_count = 2,
    .components = {{.bits = 4, .rows = 1, .cols = 1, .packed = 16},
                   {.bits = 32, .rows = 1, .packed = 4,
                    .find_wrong = int4_find_wrong_scale, .number = "scale", .allowed = "finite numbers below 2^64"}},
    .small_group = FORMAT_INT4_FINE};

enum { int4_fine_kernel = CPU_FLOATS };

INLINE void int4_fine_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out) {
    int4_floats(w, row, col, n, out);
}

BOTH unsigned int4_fine_inspect(int component, const void *numbers, size_t i) {
    return int4_inspect(component, numbers, i);
}
