/* formats/mxfp4.cu: MXFP4 in a kernel. A row has two groups of 32 columns in a k block, each under a power of two. They are summed apart, each
   times its own scale: so a weight enters products as its code, and is exact whatever the scales are.

   A lane has eight columns of each group: the bytes of either are a word, of which a byte has columns n and n + 4, put so that few instructions
   make F16 of them (cuda/panels.cu, when matrices are packed).

     s e e m of column n       bits 7 3 2 1     as the upper byte of an F16 this is 2^-14 of its value, also 0.5, which has e e = 0
             of column n + 4   bits 0 6 5 4

   In a prompt's product (cuda/gemm.cu), whose sums go on over many k blocks, codes become E4M3, 2^-6 of their value, then F16 in units of their row:
   of a k block before, as long as all weights are exact in them. That is possible for groups that differ by up to 2^32; below it weights lose
   bits, and are at last zero, beside others 2^32 times as large. */

/* Codes n and n + 1 of a byte each, shifted into the upper bytes of two F16. */
__device__ __forceinline__ uint32_t e2m1_upper(uint32_t codes, int n) {
    return __byte_perm(codes, 0, n ? 0x3424 : 0x1404);
}

struct format_mxfp4 {
    enum { panel = 8 * (32 + 2), lane = 8, apart = 1, post_scale = 1 << 13, prefill_loads = 1 };
    enum { by_row = 1, groups = 1, whole = 0, per_load = 16, terms = 1, half = 1, scaled = 0, gemm = 1 };
    struct raw {
        uint2 codes;
        uint32_t scales;         /* E8M0, two groups of an even row, then of the odd one */
    };
    /* After the codes of the 32 lanes; eight lanes, two rows, share a word. */
    static __device__ __forceinline__ const uint32_t *scales_at(const char *at) {
        const int of = (int)(threadIdx.x % 32);
        return (const uint32_t *)(at + (32 * lane + of / 8 * 4 - of * lane));
    }
    static __device__ __forceinline__ raw load(const char *at, const float *) {
        const raw r = {__ldg((const uint2 *)at), __ldg(scales_at(at))};
        return r;
    }
    static __device__ __forceinline__ void load(raw *to, const char *at, int offset, bool there) {
        ld_streaming(&to->codes, at + offset, there);
        ld_streaming(&to->scales, base_address(scales_at(at)) + offset, there);
    }
    /* The E8M0 of a group in the lane's row. */
    static __device__ __forceinline__ uint32_t exponent(const raw &r, int group) {
        return __byte_perm(r.scales, 0, (threadIdx.x & 4 ? 0x4442 : 0x4440) + group);
    }
    /* 2^(exponent - 126): twice as much, so that it is no subnormal number. With codes of 2^-14 there remain 2^13, post_scale. */
    static __device__ __forceinline__ float part_scale(const raw &r, int group) { return __uint_as_float((exponent(r, group) << 23) + (1u << 23)); }
    static __device__ __forceinline__ void fragment(const raw &r, int step, int, uint32_t *k0, uint32_t *k1) {
        const uint32_t codes = step < 2 ? r.codes.x : r.codes.y;
        const uint32_t four = step % 2 ? (codes >> 3 & 0x0e0e0e0eu) | (codes << 7 & 0x80808080u) : codes & 0x8e8e8e8eu;
        *k0 = e2m1_upper(four, 0);
        *k1 = e2m1_upper(four, 1);
    }

    /* In a prompt's product. Codes times 2^LEAST to 2^MOST are exact as F16; they come as 2^-CODES_ARE of their value. */
    enum { CODES_ARE = 6, LEAST = -23, MOST = 9, ABOVE_BOTH = 5, MOST_APART = ABOVE_BOTH - LEAST };
    /* A row's unit: the larger of its powers of two, less as much as leaves space for larger ones to come, if the other one is not too far off. */
    static __device__ __forceinline__ float unit(const raw &r) {
        const int first = (int)exponent(r, 0), second = (int)exponent(r, 1), above = abs(first - second) > (int)MOST_APART ? MOST : ABOVE_BOTH;
        return __uint_as_float((uint32_t)max(max(first, second) - above, 1) << 23);
    }
    /* What a group's codes are multiplied with in this unit, as a float's bits, which may be below those of floats. */
    static __device__ __forceinline__ int in_unit(const raw &r, int group, float unit) {
        return (int)((exponent(r, group) + (uint32_t)(127 + CODES_ARE) << 23) - __float_as_uint(unit));
    }
    /* Whether they are exact in it; every other lane of a row looks at the other group. */
    static __device__ __forceinline__ bool keeps(const raw &r, float unit) {
        const uint32_t own = (uint32_t)in_unit(r, threadIdx.x & 1, unit);
        return own - ((127 + CODES_ARE + LEAST) << 23) <= (uint32_t)(MOST - LEAST) << 23;
    }
    static __device__ __forceinline__ void prefill(const raw &r, int step, float unit, uint32_t *k0, uint32_t *k1) {
        const uint32_t codes = step < 2 ? r.codes.x : r.codes.y;
        const uint32_t four = step % 2 ? (codes >> 2 & 0x1c1c1c1cu) | (codes << 7 & 0x80808080u) : (codes << 1 & 0x1c1c1c1cu) | (codes & 0x80808080u);
        const float scale = __int_as_float(max(in_unit(r, step / 2, unit), 0));
        const uint32_t both = f16_pair(scale, scale);
        e4m3_pairs(four, k0, k1);
        *k0 = f16_times(*k0, both);
        *k1 = f16_times(*k1, both);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        const uint8_t *at = (const uint8_t *)w->data + ((size_t)(row / PANEL_ROWS) * w->k_blocks + col / K_BLOCK_COLS) * panel;
        const int r = row % PANEL_ROWS, c = col % K_BLOCK_COLS;
        const uint32_t two = at[r * 32 + c % MXFP4_GROUP / 8 * 8 + c / MXFP4_GROUP * 4 + c % 4];
        const uint32_t code = c % 8 < 4 ? two >> 7 << 3 | (two >> 1 & 7) : (two & 1) << 3 | (two >> 4 & 7);
        return e2m1_value(code) * e8m0_value(at[PANEL_ROWS * 32 + r * 2 + c / MXFP4_GROUP]);
    }
    static void place(gpu_matrix *, const matrix *) {}       /* k_block_shift 0: scales of rows change with each k block */
};
