/* formats/dispatch.cu: the switches over formats that the table generates for GPUs. */

static gpu_matrix gpu_matrix_of(const matrix *w) {
    gpu_matrix g;
    memset(&g, 0, sizeof g);
    g.data = (const char *)w->component[CODES];
    g.rows = w->rows;
    g.cols = w->cols;
    g.k_blocks = matrix_k_blocks(w);
    g.panel_bytes = format_panel_bytes(w->format);
    g.panels = gpu_row_panels(w->rows);
    g.format = w->format;
    switch (w->format) {
#define FORMAT_CASE(NAME, name) case FORMAT_##NAME: format_##name::place(&g, w); break;
        FORMATS(FORMAT_CASE)
#undef FORMAT_CASE
        default: break;
    }
    return g;
}

__device__ __forceinline__ float gpu_weight(const gpu_matrix *w, int row, int col) {
#define FORMAT_IS(NAME, name) if (w->format == FORMAT_##NAME) return format_##name::weight(w, row, col);
    FORMATS(FORMAT_IS)
#undef FORMAT_IS
    return 0;
}

/* body(format) with the format of weights in a kernel: `body` exists once for each. */
template <class BODY> __device__ __forceinline__ void gpu_with_format(enum format format, const BODY &body) {
    switch (format) {
#define FORMAT_CASE(NAME, name) case FORMAT_##NAME: body(format_##name()); break;
        FORMATS(FORMAT_CASE)
#undef FORMAT_CASE
        default: break;
    }
}
