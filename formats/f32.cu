/* formats/f32.cu: floats in a kernel. */

/* Term number `term` of two floats as BF16: term 0 is x rounded, term 1 the rest rounded, and so on. */
__device__ __forceinline__ uint32_t bf16_term(float x, float y, int term) {
    uint32_t pair = bf16_pair(x, y);
    for (int i = 0; i < term; i++) {
        x -= bf16_low(pair);
        y -= bf16_high(pair);
        pair = bf16_pair(x, y);
    }
    return pair;
}

struct format_f32 : format_of_16_bytes {              /* three BF16 terms of 8 bits each hold all 24 of a float */
    enum { per_load = 4, terms = 3, half = 0, scaled = 0, gemm = 0 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int, int term, uint32_t *k0, uint32_t *k1) {
        *k0 = bf16_term(__uint_as_float(raw.x), __uint_as_float(raw.y), term);
        *k1 = bf16_term(__uint_as_float(raw.z), __uint_as_float(raw.w), term);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        return *(const float *)gpu_element(w, row, col, 4);
    }
    static void place(gpu_matrix *, const matrix *) {}
};
