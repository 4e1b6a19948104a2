/* formats/int4.cu: INT4 in a kernel: codes less their zero point are F16, exactly. A group is 64 columns or more, so a row has one
   scale in a k block, which waits for the sum. Scale and zero point lie behind the codes of the k block. */

struct format_int4 {
    enum { panel = 8 * (32 + 4), lane = 8, apart = 4, unit = 1, by_row = 1, groups = 1, prefill_loads = 1 };
    enum { per_load = 16, terms = 1, half = 1, scaled = 0 };
    struct raw {
        uint2 codes;
        uint32_t group;          /* scale and zero point */
    };
    /* The eight words lie behind the codes of the 32 lanes; four lanes share one. */
    template <bool once> static __device__ __forceinline__ raw load(const char *at, const float *) {
        const int of = (int)(threadIdx.x % 32), word = 32 * lane + of / 4 * 4 - of * lane;
        raw r;
        r.codes = once ? __ldcs((const uint2 *)at) : __ldg((const uint2 *)at);
        r.group = once ? __ldcs((const uint32_t *)(at + word)) : __ldg((const uint32_t *)(at + word));
        return r;
    }
    static __device__ __forceinline__ float row_scale(const raw &r) {
        return __uint_as_float(r.group & ~(uint32_t)INT4_ZERO);
    }
    /* Codes n and n + 4 of eight. As the last bits of 1024 they are F16, and so is what is taken from it. */
    static __device__ __forceinline__ uint32_t pair(uint32_t codes, int n, uint32_t group) {
        const uint32_t value = (codes >> 4 * n & 0x000f000fu) | 0x64006400u;
        const uint32_t zero = (group & INT4_ZERO) * 0x00010001u | 0x64006400u;
        const __half2 less = __hsub2(*(const __half2 *)&value, *(const __half2 *)&zero);
        return *(const uint32_t *)&less;
    }
    static __device__ __forceinline__ void fragment(const raw &r, int step, int, uint32_t *k0, uint32_t *k1) {
        const uint32_t codes = step < 2 ? r.codes.x : r.codes.y;
        *k0 = pair(codes, step % 2 * 2, r.group);
        *k1 = pair(codes, step % 2 * 2 + 1, r.group);
    }
    /* Neighbouring columns, as token rows have them: from columns 0 4, 1 5 and 2 6, 3 7. */
    static __device__ __forceinline__ void prefill(const raw &r, int step, float, uint32_t *k0, uint32_t *k1) {
        const uint32_t codes = step < 2 ? r.codes.x : r.codes.y, of = step % 2 ? 0x7632 : 0x5410;
        *k0 = __byte_perm(pair(codes, 0, r.group), pair(codes, 1, r.group), of);
        *k1 = __byte_perm(pair(codes, 2, r.group), pair(codes, 3, r.group), of);
    }
    static __device__ __forceinline__ float weight(const gpu_matrix *w, int row, int col) {
        const char *at = w->data + ((size_t)(row / PANEL_ROWS) * w->k_blocks + col / K_BLOCK_COLS) * panel;
        const int r = row % PANEL_ROWS, c = col % K_BLOCK_COLS;
        const uint32_t code = ((const uint8_t *)at)[r * 32 + c / 2] >> c % 2 * 4 & 15;
        const uint32_t group = ((const uint32_t *)(const void *)(at + PANEL_ROWS * 32))[r];
        return ((float)code - (float)(group & INT4_ZERO)) * __uint_as_float(group & ~(uint32_t)INT4_ZERO);
    }
    static void place(gpu_matrix *g, const matrix *w) {
        g->k_block_shift = w->block_cols >= w->cols ? 30 : log2_of(w->block_cols) - 6;
    }
};
