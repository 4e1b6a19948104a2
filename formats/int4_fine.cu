/* formats/int4_fine.cu: INT4 in groups of 32 columns in a kernel: as format_int4, but a k block is 32 columns, of which a lane has
   eight. Kernels for any shape alone have it. */

struct format_int4_fine : format_of_groups<uint32_t> {
    enum { panel = 8 * (16 + 4), per_load = 8, prefill_loads = 2, gemm = 1, columns = 32 };
    static __device__ __forceinline__ void fragment(const raw &r, int step, int, uint32_t *k0, uint32_t *k1) {
        *k0 = format_int4::pair(r.codes, step * 2, r.group);
        *k1 = format_int4::pair(r.codes, step * 2 + 1, r.group);
    }
    static __device__ __forceinline__ void prefill(const raw &r, int step, float, uint32_t *k0, uint32_t *k1) {
        format_int4::neighbours(r.codes, step, r.group, k0, k1);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        const char *at = w->data + ((size_t)(row / PANEL_ROWS) * w->k_blocks + col / columns) * panel;
        return format_int4::element(at, columns, row % PANEL_ROWS, col % columns);
    }
    static void place(gpu_matrix *g, const matrix *) {
        g->k_block_shift = 0;
    }
};
