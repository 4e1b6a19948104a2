/* formats/fp8_block.cu: FP8 blocks in a kernel: codes become F16, exactly; the scale waits for the sum of a k block. */

/* log2 of n; -1: not a power of two. */
static int log2_of(int n) {
    int shift = 0;
    while (shift < 30 && 1 << shift < n) shift++;
    return 1 << shift == n ? shift : -1;
}

struct format_fp8_block : format_of_16_bytes {
    enum { per_load = 16, terms = 1, half = 1, scaled = 1, gemm = 1 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int step, int, uint32_t *k0, uint32_t *k1) {
        e4m3_pairs(gpu_word(raw, step), k0, k1);
    }
    enum { prefill_loads = 1 };
    static __device__ __forceinline__ void prefill(const uint4 &raw, int step, float, uint32_t *k0, uint32_t *k1) {
        e4m3_pairs(gpu_word(raw, step), k0, k1);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        int code = *(const int8_t *)gpu_element(w, row, col, 1), block = col / K_BLOCK_COLS >> w->k_block_shift;
        return __uint_as_float((uint32_t)code << 20 & 0x87f00000u) *
               (w->scale[(row >> w->row_shift) * w->scale_cols + block] * FP8_BITS_SCALE);
    }
    static void place(gpu_matrix *g, const matrix *w) {
        g->scale = (const float *)w->component[SCALES];
        g->row_shift = log2_of(w->block_rows);
        g->k_block_shift = log2_of(w->block_cols) - 6;
        g->scale_cols = (w->cols - 1) / w->block_cols + 1;
    }
};
