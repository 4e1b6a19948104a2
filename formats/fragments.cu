/* formats/fragments.cu: a weight format in a kernel: 16 bytes to tensor-core fragments. Knows nothing of where they come
   from. */

enum { TILE_ROWS = 2 * PANEL_ROWS, AHEAD = 4 };

/* Word i, a constant after unrolling. */
__device__ __forceinline__ uint32_t gpu_word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A weight format: 16 bytes hold per_load weights; the sum of `terms` numbers is one of them, exactly, or with `scaled`
   what its block's scale is multiplied with. The numbers are F16 if `half`, else BF16. fragment gives the A registers of
   mma number `step`, which takes weights 4 step .. 4 step + 3: k0 the first two, k1 the others. */
struct format_bf16 {
    enum { per_load = 8, terms = 1, half = 0, scaled = 0 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int step, int, uint32_t *k0, uint32_t *k1) {
        *k0 = gpu_word(raw, 2 * step);
        *k1 = gpu_word(raw, 2 * step + 1);
    }
};

struct format_f16 {
    enum { per_load = 8, terms = 1, half = 1, scaled = 0 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int step, int, uint32_t *k0, uint32_t *k1) {
        *k0 = gpu_word(raw, 2 * step);
        *k1 = gpu_word(raw, 2 * step + 1);
    }
};

struct format_fp8 {
    enum { per_load = 16, terms = 1, half = 1, scaled = 1 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int step, int, uint32_t *k0, uint32_t *k1) {
        asm("{.reg .b16 low, high;\n\t"
            "mov.b32 {low, high}, %2;\n\t"
            "cvt.rn.f16x2.e4m3x2 %0, low;\n\t"
            "cvt.rn.f16x2.e4m3x2 %1, high;}"
            : "=r"(*k0), "=r"(*k1) : "r"(gpu_word(raw, step)));
    }
};

/* The BF16 term number `term` of two floats: the first is the nearest, the next that of what is left. */
__device__ __forceinline__ uint32_t bf16_term(float x, float y, int term) {
    uint32_t pair = bf16_pair(x, y);
    for (int i = 0; i < term; i++) {
        x -= bf16_low(pair);
        y -= bf16_high(pair);
        pair = bf16_pair(x, y);
    }
    return pair;
}

struct format_f32 {              /* 24 bits: three terms */
    enum { per_load = 4, terms = 3, half = 0, scaled = 0 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int, int term, uint32_t *k0, uint32_t *k1) {
        *k0 = bf16_term(__uint_as_float(raw.x), __uint_as_float(raw.y), term);
        *k1 = bf16_term(__uint_as_float(raw.z), __uint_as_float(raw.w), term);
    }
};
