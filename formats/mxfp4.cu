/* formats/mxfp4.cu: MXFP4 in a kernel. A row has two groups in a k block, each under a power of two: with the larger of both as the row's
   scale, which waits for the sum of the k block as INT4's does, a weight is one F16, its code times 2^(own - larger). That is exact up to a
   difference of 2^32; below it a weight loses bits, and is at last zero, beside others 2^32 times as large.

   In a prompt's product (cuda/gemm.cu) a row's unit is that of a k block before, as long as all weights are exact in it. */

struct format_mxfp4 {
    enum { panel = 8 * (32 + 2), lane = 8, apart = E2M1_IN_HARDWARE ? 1 : 2, post_scale = 1, prefill_loads = 1 };
    enum { by_row = 1, groups = 1, whole = 0, per_load = 16, terms = 1, half = 1, scaled = 0, gemm = 1 };
    enum { ABOVE = 9 };          /* codes enter as F16 times 2^9: the lower group's have all of F16's range below */
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
    /* Of the lane's row: the larger exponent, and that of its own group. */
    static __device__ __forceinline__ int larger(const raw &r) {
        const uint32_t two = r.scales >> (threadIdx.x & 4) * 4;
        return (int)max(two & 255, two >> 8 & 255);
    }
    static __device__ __forceinline__ int own(const raw &r) { return (int)(r.scales >> (threadIdx.x & 6) * 4 & 255); }
    /* 2^(larger - 127), less ABOVE; of exponent 0 a subnormal number. */
    static __device__ __forceinline__ float row_scale(const raw &r) {
        return __uint_as_float(max((uint32_t)larger(r) << 23, 1u << 22)) * (1.0f / (1 << ABOVE));
    }
    /* 2^(own - larger) in both halves, as subnormal numbers of F16 where it is small; codes come as 2^-6 of their value but on SM12x. */
    static __device__ __forceinline__ uint32_t scale_pair(const raw &r) {
        const float scale = __int_as_float(max(own(r) - larger(r) + 127 + (int)ABOVE + (E2M1_IN_HARDWARE ? 0 : 6), 0) << 23);
        return f16_pair(scale, scale);
    }
    static __device__ __forceinline__ void fragment(const raw &r, int step, int, uint32_t *k0, uint32_t *k1) {
        e2m1_fragment(r.codes, step, scale_pair(r), k0, k1);
    }
    /* In a prompt's product. CODES_ARE: codes come as 2^-6 of their value but on SM12x. Times 2^LEAST to 2^MOST they are exact as F16. */
    enum { CODES_ARE = E2M1_IN_HARDWARE ? 0 : 6, LEAST = -23, MOST = 9, ABOVE_BOTH = 5, MOST_APART = ABOVE_BOTH - LEAST };
    /* A row's unit: the larger of its powers of two, less as much as leaves space for larger ones to come, if the other one is not too far off. */
    static __device__ __forceinline__ float unit(const raw &r) {
        const uint32_t two = r.scales >> (threadIdx.x & 4) * 4;
        const int first = two & 255, second = two >> 8 & 255, above = abs(first - second) > (int)MOST_APART ? MOST : ABOVE_BOTH;
        return __uint_as_float((uint32_t)max(max(first, second) - above, 1) << 23);
    }
    /* What the lane's codes are multiplied with in this unit, as a float's bits, which may be below those of floats. */
    static __device__ __forceinline__ int in_unit(const raw &r, float unit) {
        return (int)((own(r) + (uint32_t)(127 + CODES_ARE) << 23) - __float_as_uint(unit));
    }
    /* Whether they are exact in it. */
    static __device__ __forceinline__ bool keeps(const raw &r, float unit) {
        return (uint32_t)in_unit(r, unit) - ((127 + CODES_ARE + LEAST) << 23) <= (uint32_t)(MOST - LEAST) << 23;
    }
    static __device__ __forceinline__ void prefill(const raw &r, int step, float unit, uint32_t *k0, uint32_t *k1) {
        const float scale = __int_as_float(max(in_unit(r, unit), 0));
        e2m1_prefill(r.codes, step, f16_pair(scale, scale), k0, k1);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        const uint8_t *at = (const uint8_t *)w->data + ((size_t)(row / PANEL_ROWS) * w->k_blocks + col / K_BLOCK_COLS) * panel;
        const int r = row % PANEL_ROWS, c = col % K_BLOCK_COLS;
        return e2m1_value(at[r * 32 + c / 2] >> c % 2 * 4 & 15) * e8m0_value(at[PANEL_ROWS * 32 + r * 2 + c / MXFP4_GROUP]);
    }
    static void place(gpu_matrix *, const matrix *) {}       /* k_block_shift 0: scales of rows change with each k block */
};
