/* formats/nvfp4.cu: NVFP4 in a kernel. A lane has 16 columns of a row, a group that shares a scale: code times scale is one F16,
   exactly. The matrix's factor waits for the sum of a k block, as the scale of an FP8 block does.

   Six significant bits in steps of 2^-10, up to 2,688: as F16 the product is 2^-7 of its value. SM12x converts codes itself.
   Elsewhere codes become E4M3, four at a time: s e e m, put at s 0 0 e e m 0 0, is 2^-6 of its value, also 0.5, which has e e = 0;
   those are converted. A scale becomes F16 by moving its bits: by seven, it is 2^-8 of its value. */

#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ == 1200
#define E2M1_IN_HARDWARE 1
#else
#define E2M1_IN_HARDWARE 0
#endif

/* Two F16, product by product. */
__device__ __forceinline__ uint32_t f16_times(uint32_t a, uint32_t b) {
    const __half2 product = __hmul2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&product;
}

/* The even ones of eight codes, or the odd ones, as E4M3 with 2^-6 of their value. */
__device__ __forceinline__ uint32_t e2m1_quarter(uint32_t codes, bool odd) {
    const uint32_t sizes = odd ? codes >> 2 : codes << 2, signs = odd ? codes : codes << 4;
    return (sizes & 0x1c1c1c1cu) | (signs & 0x80808080u);
}

/* Codes 2n and 2n + 1 of eight, as F16. */
__device__ __forceinline__ uint32_t e2m1_neighbours(uint32_t codes, int n) {
    uint32_t pair = 0;
#if E2M1_IN_HARDWARE
    asm("{.reg .b8 b0, b1, b2, b3;\n\t"
        "mov.b32 {b0, b1, b2, b3}, %1;\n\t"
        "cvt.rn.f16x2.e2m1x2 %0, b0;}" : "=r"(pair) : "r"(codes >> 8 * n));
#endif
    return pair;
}

/* Of a lane's 16 codes the four of a step, times the scale in both halves of `scale`. Columns 0 1 and 2 3, on SM12x, or 0 2 and 1 3. */
__device__ __forceinline__ void e2m1_fragment(const uint2 &of, int step, uint32_t scale, uint32_t *k0, uint32_t *k1) {
    const uint32_t codes = step < 2 ? of.x : of.y;
    uint32_t even[2], odd[2];
    if (E2M1_IN_HARDWARE) {
        even[step % 2] = e2m1_neighbours(codes, step % 2 * 2);
        odd[step % 2] = e2m1_neighbours(codes, step % 2 * 2 + 1);
    } else {
        e4m3_pairs(e2m1_quarter(codes, false), &even[0], &even[1]);
        e4m3_pairs(e2m1_quarter(codes, true), &odd[0], &odd[1]);
    }
    *k0 = f16_times(even[step % 2], scale);
    *k1 = f16_times(odd[step % 2], scale);
}

/* The same as neighbouring columns, as token rows have them. */
__device__ __forceinline__ void e2m1_prefill(const uint2 &of, int step, uint32_t scale, uint32_t *k0, uint32_t *k1) {
    uint32_t first, second;
    e2m1_fragment(of, step, scale, &first, &second);
    *k0 = E2M1_IN_HARDWARE ? first : __byte_perm(first, second, 0x5410);
    *k1 = E2M1_IN_HARDWARE ? second : __byte_perm(first, second, 0x7632);
}

struct format_nvfp4 {
    enum { panel = 8 * (32 + 4), lane = 8, apart = E2M1_IN_HARDWARE ? 1 : 2, post_scale = 128, prefill_loads = 1 };
    enum { by_row = 0, groups = 0, whole = 1, per_load = 16, terms = 1, half = 1, scaled = 1, gemm = 1 };
    struct raw {
        uint2 codes;
        uint32_t scale;          /* E4M3 */
    };
    /* The scales of the 32 lanes lie after their codes. */
    static __device__ __forceinline__ const uint8_t *scale_at(const char *at) {
        return (const uint8_t *)at + (32 * lane - ((int)lane - 1) * (int)(threadIdx.x % 32));
    }
    static __device__ __forceinline__ raw load(const char *at, const float *) {
        const raw r = {__ldg((const uint2 *)at), __ldg(scale_at(at))};
        return r;
    }
    static __device__ __forceinline__ void load(raw *to, const char *at, int offset, bool there) {
        ld_streaming(&to->codes, at + offset, there);
        ld_streaming_byte(&to->scale, base_address(scale_at(at)) + offset, there);
    }
    static __device__ __forceinline__ float row_scale(const raw &) { return 1; }
    /* The group's scale in both halves: half of it, or 2^-7 for codes of their full value. */
    static __device__ __forceinline__ uint32_t scale_pair(const raw &r) {
        const uint32_t times = E2M1_IN_HARDWARE ? 0x40004000u : 0x58005800u;        /* 2, 2^7 */
        return f16_times(r.scale * 0x00800080u, times);
    }
    static __device__ __forceinline__ void fragment(const raw &r, int step, int, uint32_t *k0, uint32_t *k1) {
        e2m1_fragment(r.codes, step, scale_pair(r), k0, k1);
    }
    static __device__ __forceinline__ void prefill(const raw &r, int step, float, uint32_t *k0, uint32_t *k1) {
        e2m1_prefill(r.codes, step, scale_pair(r), k0, k1);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        const uint8_t *at = (const uint8_t *)w->data + ((size_t)(row / PANEL_ROWS) * w->k_blocks + col / K_BLOCK_COLS) * panel;
        const int r = row % PANEL_ROWS, c = col % K_BLOCK_COLS;
        const uint32_t code = at[r * 32 + c / 2] >> c % 2 * 4 & 15, scale = at[PANEL_ROWS * 32 + r * 4 + c / 16];
        return e2m1_value(code) * (__uint_as_float(scale << 20) * FP8_BITS_SCALE * *w->scale);
    }
    static void place(gpu_matrix *g, const matrix *w) {
        g->scale = (const float *)w->component[FACTOR];
        g->row_shift = g->k_block_shift = 30;
        g->scale_cols = 1;
    }
};
