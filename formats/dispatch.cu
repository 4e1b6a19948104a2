/* formats/dispatch.cu: with_format, the one way from a format's number to its type, and what is built on it. */

/* body(F()) with F, the format_name of this format: `body` is compiled for each format. What only some formats have is asked
   for there, in `if constexpr (F::trait)`: formats/fragments.cu lists the traits. That a number is a format's is asserted on the host, where
   gpu_matrix_of fills in every matrix that a kernel gets; a kernel does not ask again, since the branch costs registers. */
#pragma nv_exec_check_disable
template <class BODY> __host__ __device__ __forceinline__ void with_format(enum format format, const BODY &body) {
    switch (format) {
#define FORMAT_CASE(NAME, name) case FORMAT_##NAME: body(format_##name()); break;
        FORMATS(FORMAT_CASE)
#undef FORMAT_CASE
        default:
#ifdef __CUDA_ARCH__
            __builtin_unreachable();
#else
            assert(!"a weight format");
#endif
    }
}

static gpu_matrix gpu_matrix_of(const matrix *w) {
    gpu_matrix g;
    memset(&g, 0, sizeof g);
    g.data = (const char *)w->component[CODES];
    g.bias = w->bias;
    g.rows = w->rows;
    g.cols = w->cols;
    g.k_blocks = matrix_k_blocks(w);
    g.panel_bytes = format_panel_bytes(w->format);
    g.panels = gpu_row_panels(w->rows);
    g.format = w->format;
    with_format(w->format, [&](auto format) { format.place(&g, w); });
    return g;
}

/* Its rows first .. first + rows - 1, of which none is in a row panel, or under a scale, of a row before them. */
static gpu_matrix gpu_matrix_rows(gpu_matrix w, int first, int rows) {
    w.data += (size_t)(first / PANEL_ROWS) * (size_t)w.k_blocks * (size_t)w.panel_bytes;
    if (w.scale) w.scale += (size_t)(first >> w.row_shift) * (size_t)w.scale_cols;
    if (w.bias) w.bias += first;
    w.rows = rows;
    w.panels = gpu_row_panels(rows);
    return w;
}

__device__ __forceinline__ float gpu_weight(const gpu_matrix *w, int row, int col) {
    float weight = 0;
    with_format(w->format, [&](auto format) { weight = format.weight(w, row, col); });
    return weight;
}
