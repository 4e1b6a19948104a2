/* formats/int4_fine.cu: INT4 in groups of 32 columns in a kernel: as format_int4, but a k block is 32 columns, of which a lane has
   eight. Kernels for any shape alone have it. */

struct format_int4_fine {
    enum { panel = 8 * (16 + 4), lane = 4, apart = 4, unit = 1, by_row = 1, groups = 1, whole = 0, prefill_loads = 2 };
    enum { per_load = 8, terms = 1, half = 1, scaled = 0, gemm = 1, fixed_rows = 0, fixed_plain = 0, columns = 32 };
    struct raw {
        uint32_t codes, group;   /* group: scale and zero point */
    };
    /* The eight words lie behind the codes of the 32 lanes; four lanes share one. */
    static __device__ __forceinline__ const uint32_t *group_at(const char *at) {
        const int of = (int)(threadIdx.x % 32);
        return (const uint32_t *)(at + (32 * lane + of / 4 * 4 - of * lane));
    }
    static __device__ __forceinline__ raw load(const char *at, const float *) {
        const raw r = {__ldg((const uint32_t *)at), __ldg(group_at(at))};
        return r;
    }
    static __device__ __forceinline__ void load(raw *to, const char *at, int behind, bool there) {
        load_once(&to->codes, at + behind, there);
        load_once(&to->group, base_address(group_at(at)) + behind, there);
    }
    static __device__ __forceinline__ float row_scale(const raw &r) {
        return __uint_as_float(r.group & ~(uint32_t)INT4_ZERO);
    }
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
    static void place(gpu_matrix *g, const matrix *w) {
        (void)w;
        g->k_block_shift = 0;
    }
};
