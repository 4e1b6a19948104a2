/* formats/int4.cu: INT4 in a kernel: codes less their zero point are F16, exactly. A group is 64 columns or more, so a row has one
   scale in a k block, which waits for the sum. Scale and zero point lie after the codes of the k block. */

/* Common to both packings of INT4: a lane's CODES, and after the codes of the 32 lanes a word for each row. */
template <class CODES> struct format_of_groups {
    enum { lane = sizeof(CODES), apart = 4, post_scale = 1, by_row = 1, groups = 1, whole = 0, terms = 1, half = 1, scaled = 0 };
    struct raw {
        CODES codes;
        uint32_t group;          /* scale and zero point */
    };
    /* Four lanes share one of the eight words. */
    static __device__ __forceinline__ const uint32_t *group_at(const char *at) {
        const int of = (int)(threadIdx.x % 32);
        return (const uint32_t *)(at + (32 * lane + of / 4 * 4 - of * lane));
    }
    static __device__ __forceinline__ raw load(const char *at, const float *) {
        const raw r = {__ldg((const CODES *)at), __ldg(group_at(at))};
        return r;
    }
    static __device__ __forceinline__ void load(raw *to, const char *at, int offset, bool there) {
        ld_streaming(&to->codes, at + offset, there);
        ld_streaming(&to->group, base_address(group_at(at)) + offset, there);
    }
    static __device__ __forceinline__ float row_scale(const raw &r) {
        return __uint_as_float(r.group & ~(uint32_t)INT4_ZERO);
    }
};

struct format_int4 : format_of_groups<uint2> {
    enum { panel = 8 * (32 + 4), per_load = 16, prefill_loads = 1, gemm = 1 };
    /* (a & 000f000f) | bits, or (a & 00f000f0) | bits: one instruction, of which the compiler makes two. */
    static __device__ __forceinline__ uint32_t nibbles_or(uint32_t a, bool upper, uint32_t bits) {
        uint32_t r;
        if (upper) asm("lop3.b32 %0, %1, 0x00f000f0, %2, 0xea;" : "=r"(r) : "r"(a), "r"(bits));
        else asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(r) : "r"(a), "r"(bits));
        return r;
    }
    /* Codes n and n + 4 of eight, less the zero point. As the last four bits of 1024 a code is F16 without a conversion; four bits
       higher it stands there sixteenfold, which spares a shift: (1024 + 16 code) / 16 - (64 + zero point). All of it is exact. */
    static __device__ __forceinline__ uint32_t pair(uint32_t codes, int n, uint32_t group) {
        const uint32_t value = nibbles_or(codes >> n / 2 * 8, n % 2, 0x64006400u);
        const uint32_t minus = (group & INT4_ZERO) * 0x00010001u + 0xe400e400u;             /* -(1024 + zero point) */
        const __half2 zero = *(const __half2 *)&minus, above = __float2half2_rn(960), sixteenth = __float2half2_rn(0.0625f);
        const __half2 less = n % 2 ? __hfma2(*(const __half2 *)&value, sixteenth, __hadd2(zero, above))
                                   : __hadd2(*(const __half2 *)&value, zero);
        return *(const uint32_t *)&less;
    }
    static __device__ __forceinline__ void fragment(const raw &r, int step, int, uint32_t *k0, uint32_t *k1) {
        const uint32_t codes = step < 2 ? r.codes.x : r.codes.y;
        *k0 = pair(codes, step % 2 * 2, r.group);
        *k1 = pair(codes, step % 2 * 2 + 1, r.group);
    }
    /* Neighbouring columns, as token rows have them: from columns 0 4, 1 5 and 2 6, 3 7 of eight codes. */
    static __device__ __forceinline__ void neighbours(uint32_t codes, int step, uint32_t group, uint32_t *k0, uint32_t *k1) {
        const uint32_t of = step % 2 ? 0x7632 : 0x5410;
        *k0 = __byte_perm(pair(codes, 0, group), pair(codes, 1, group), of);
        *k1 = __byte_perm(pair(codes, 2, group), pair(codes, 3, group), of);
    }
    static __device__ __forceinline__ void prefill(const raw &r, int step, float, uint32_t *k0, uint32_t *k1) {
        neighbours(step < 2 ? r.codes.x : r.codes.y, step, r.group, k0, k1);
    }
    /* Element [r][c] of a panel's k block of so many columns. */
    static __device__ __forceinline__ float element(const char *at, int columns, int r, int c) {
        const uint32_t code = ((const uint8_t *)at)[(r * columns + c) / 2] >> c % 2 * 4 & 15;
        const uint32_t group = ((const uint32_t *)(const void *)(at + PANEL_ROWS * columns / 2))[r];
        return ((float)code - (float)(group & INT4_ZERO)) * __uint_as_float(group & ~(uint32_t)INT4_ZERO);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        const char *at = w->data + ((size_t)(row / PANEL_ROWS) * w->k_blocks + col / K_BLOCK_COLS) * panel;
        return element(at, K_BLOCK_COLS, row % PANEL_ROWS, col % K_BLOCK_COLS);
    }
    static void place(gpu_matrix *g, const matrix *w) {
        g->k_block_shift = w->block_cols >= w->cols ? 30 : log2_of(w->block_cols) - 6;
    }
};
