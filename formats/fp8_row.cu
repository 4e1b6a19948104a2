/* formats/fp8_row.cu: FP8 under a scale for each row in a kernel: the codes as those of FP8 blocks; the scale is read with them, and
   waits for the sum of a k block. */

struct format_fp8_row {
    enum { panel = 512, lane = 16, apart = 1, post_scale = 1, by_row = 1, groups = 0, whole = 0, prefill_loads = 1 };
    enum { per_load = 16, terms = 1, half = 1, scaled = 0, gemm = 1 };
    struct raw {
        uint4 codes;
        float scale;
    };
    static __device__ __forceinline__ raw load(const char *at, const float *row) {
        const raw r = {__ldg((const uint4 *)at), __ldg(row)};
        return r;
    }
    static __device__ __forceinline__ void load(raw *to, const char *at, int offset, bool there) {
        ld_streaming(&to->codes, at + offset, there);
    }
    static __device__ __forceinline__ void load_row(raw *to, const float *row, bool there) { to->scale = ld_volatile(row, there); }
    static __device__ __forceinline__ float row_scale(const raw &r) { return r.scale; }
    static __device__ __forceinline__ void fragment(const raw &r, int step, int, uint32_t *k0, uint32_t *k1) {
        e4m3_pairs(gpu_word(r.codes, step), k0, k1);
    }
    static __device__ __forceinline__ void prefill(const raw &r, int step, float, uint32_t *k0, uint32_t *k1) {
        e4m3_pairs(gpu_word(r.codes, step), k0, k1);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        const int code = *(const int8_t *)gpu_element(w, row, col, 1);
        return __uint_as_float((uint32_t)code << 20 & 0x87f00000u) * (w->scale[row] * FP8_BITS_SCALE);
    }
    static void place(gpu_matrix *g, const matrix *w) {
        g->scale = (const float *)w->component[SCALES];
        g->scale_cols = 1;
    }
};
