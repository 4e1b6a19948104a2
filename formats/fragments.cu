/* formats/fragments.cu: what formats/name.cu defines, and what those share. Works on registers and on single elements; must
   not know what weights are multiplied with.

   format_name is a weight format in a kernel:
     raw        what a lane has of a row in a k block
     load       load(at, row): a raw from memory, at the lane's place, and its row's scale, which some formats need;
                load(to, at, offset, there): the same without that scale, `offset` bytes on, where it is read once a step, if it is
                `there`. load_row(to, row, there): that scale, in formats that have one for all columns
     panel      bytes of a k block of a row panel
     lane       bytes from lane to lane in it
     per_load   weights of a raw
     terms      mma operations a step: a weight is the exact sum of so many numbers
     half       these are F16, otherwise BF16
     scaled     a weight is that sum times its block's scale and `post_scale`, which are applied to the sums of a k block, not here
     whole      that scale is the same for all of a matrix
     by_row     the same of a scale that a row has in this k block: row_scale(raw). groups: it is not that of all k blocks. MXFP4 has two in a
                k block, whose halves are summed apart: part_scale(raw, half)
     apart      columns from the first to the second weight of a register: 1; 2 where eight columns are c0 c2, c1 c3, c4 c6, c5 c7;
                4 where they are c0 c4, c1 c5, c2 c6, c3 c7
     fragment   raw -> A fragments of mma.m16n8k16. Of mma step `step` and term `term`: the A registers of this lane's weights
                4 step .. 4 step + 3; k0 has the first two (k = 2i, 2i + 1 of the mma), k1 the others (2i + 8, 2i + 9)
     prefill    raw -> A fragments in F16, of step `step`, times `factor` where the format has no scales, or (MXFP4) in these units: for cuda/gemm.cu.
                prefill_loads: how many of them 64 columns take, 1 or 2. Both of formats with `gemm` alone
     weight     a single one, for kernels that gather rows
     gemm       cuda/gemm.cu takes it: it has `prefill`
     place      fills in what a gpu_matrix has for this format: where its components after the codes lie */

enum { TILE_ROWS = 2 * PANEL_ROWS, AHEAD = 4 };            /* rows of A; k blocks that a warp has in flight */

/* Word i of v; i is a constant after unrolling. */
__device__ __forceinline__ uint32_t gpu_word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Loads what is needed once a step, if it is `there`; otherwise *to stays. It is the load that is predicated: of an `if` the
   compiler may make a branch, before which it waits for all loads in flight, and computes each address anew after it. Stays on
   its side of pdl_wait. */
__device__ __forceinline__ void ld_streaming(uint4 *to, const void *at, bool there) {
    asm volatile("{.reg .pred p;\n\t"
        "setp.ne.s32 p, %5, 0;\n\t"
        "@p ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(to->x), "+r"(to->y), "+r"(to->z), "+r"(to->w) : "l"(at), "r"((int)there));
}

__device__ __forceinline__ void ld_streaming(uint2 *to, const void *at, bool there) {
    asm volatile("{.reg .pred p;\n\t"
        "setp.ne.s32 p, %3, 0;\n\t"
        "@p ld.global.cs.v2.b32 {%0, %1}, [%2];}" : "+r"(to->x), "+r"(to->y) : "l"(at), "r"((int)there));
}

__device__ __forceinline__ void ld_streaming(uint32_t *to, const void *at, bool there) {
    asm volatile("{.reg .pred p;\n\t"
        "setp.ne.s32 p, %2, 0;\n\t"
        "@p ld.global.cs.b32 %0, [%1];}" : "+r"(*to) : "l"(at), "r"((int)there));
}

__device__ __forceinline__ void ld_streaming_byte(uint32_t *to, const void *at, bool there) {
    asm volatile("{.reg .pred p;\n\t"
        "setp.ne.s32 p, %2, 0;\n\t"
        "@p ld.global.cs.u8 %0, [%1];}" : "+r"(*to) : "l"(at), "r"((int)there));
}

/* Loads a constant here, and not where it is used, which would wait for it: there the compiler moves __ldg and ld.global.nc. */
__device__ __forceinline__ float ld_volatile(const float *at, bool there = true) {
    float x = 1;
    asm volatile("{.reg .pred p;\n\t"
        "setp.ne.s32 p, %2, 0;\n\t"
        "@p ld.global.f32 %0, [%1];}" : "+f"(x) : "l"(at), "r"((int)there));
    return x;
}

/* An address to which constants are added: once for all of them, where the compiler would add them first. */
__device__ __forceinline__ const char *base_address(const void *at) {
    const char *base;
    asm("mov.b64 %0, %1;" : "=l"(base) : "l"(at));
    return base;
}

/* Formats whose raw is 16 bytes, without scales among them. */
struct format_of_16_bytes {
    enum { panel = 512, lane = 16, apart = 1, post_scale = 1, by_row = 0, groups = 0, whole = 0 };
    typedef uint4 raw;
    static __device__ __forceinline__ raw load(const char *at, const float *) { return __ldg((const uint4 *)at); }
    static __device__ __forceinline__ void load(raw *to, const char *at, int offset, bool there) {
        ld_streaming(to, at + offset, there);
    }
    static __device__ __forceinline__ float row_scale(const raw &) { return 1; }
};
