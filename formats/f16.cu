/* formats/f16.cu: F16 in a kernel: as the tensor cores take it. */

struct format_f16 : format_of_16_bytes {
    enum { per_load = 8, terms = 1, half = 1, scaled = 0, gemm = 0 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int step, int, uint32_t *k0, uint32_t *k1) {
        *k0 = gpu_word(raw, 2 * step);
        *k1 = gpu_word(raw, 2 * step + 1);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        return __half2float(*(const __half *)gpu_element(w, row, col, 2));
    }
    static void place(gpu_matrix *, const matrix *) {}
};
