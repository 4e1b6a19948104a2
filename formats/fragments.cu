/* formats/fragments.cu: the weight formats in a kernel: 16 bytes of a packed row to the A fragments of mma.m16n8k16.
   Works on registers; must not know where the bytes come from, nor what they are multiplied with. */

enum { TILE_ROWS = 2 * PANEL_ROWS, AHEAD = 4 };            /* rows of A; k blocks that a warp has in flight */

/* Word i of v; i is a constant after unrolling. */
__device__ __forceinline__ uint32_t gpu_word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A weight format:
     per_load   weights in 16 bytes
     terms      mma operations a step: a weight is the exact sum of so many numbers
     half       these are F16, otherwise BF16
     scaled     a weight is that sum times its block's scale, which is applied to the sums of a k block, not here
     fragment   of mma step `step` and term `term`: the A registers of this lane's weights 4 step .. 4 step + 3; k0 has
                the first two (k = 2i, 2i + 1 of the mma), k1 the others (2i + 8, 2i + 9) */
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
        e4m3_pairs(gpu_word(raw, step), k0, k1);
    }
};

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

struct format_f32 {              /* three BF16 terms of 8 bits each hold all 24 of a float */
    enum { per_load = 4, terms = 3, half = 0, scaled = 0 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int, int term, uint32_t *k0, uint32_t *k1) {
        *k0 = bf16_term(__uint_as_float(raw.x), __uint_as_float(raw.y), term);
        *k1 = bf16_term(__uint_as_float(raw.z), __uint_as_float(raw.w), term);
    }
};

/* body(format) with the format of a type: `body` exists once for each. */
template <class BODY> __device__ __forceinline__ void gpu_with_format(dtype type, const BODY &body) {
    switch (type) {
        case DTYPE_FP8: body(format_fp8()); break;
        case DTYPE_BF16: body(format_bf16()); break;
        case DTYPE_F16: body(format_f16()); break;
        default: body(format_f32());
    }
}
