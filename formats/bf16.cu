/* formats/bf16.cu: BF16 in a kernel: as the tensor cores take it. */

struct format_bf16 : format_of_16_bytes {
    enum { per_load = 8, terms = 1, half = 0, scaled = 0, gemm = 1 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int step, int, uint32_t *k0, uint32_t *k1) {
        *k0 = gpu_word(raw, 2 * step);
        *k1 = gpu_word(raw, 2 * step + 1);
    }
    enum { prefill_loads = 2 };
    static __device__ __forceinline__ void prefill(const uint4 &raw, int step, float factor, uint32_t *k0, uint32_t *k1) {
        const uint32_t first = gpu_word(raw, 2 * step), second = gpu_word(raw, 2 * step + 1);
        *k0 = f16_pair(bf16_low(first) * factor, bf16_high(first) * factor);
        *k1 = f16_pair(bf16_low(second) * factor, bf16_high(second) * factor);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        return __uint_as_float((uint32_t)*(const uint16_t *)gpu_element(w, row, col, 2) << 16);
    }
    static void place(gpu_matrix *, const matrix *) {}
};
