/* formats/fragments.cu: what formats/name.cu defines, and what those share. Works on registers and on single elements; must
   not know what weights are multiplied with.

   format_name is a weight format in a kernel:
     raw        what a lane has of a row in a k block; load(at, row): from memory, at the lane's place, and its row's scale, which
                some formats need; `once`: it will not be needed again soon
     panel      bytes of a k block of a row panel
     lane       bytes from lane to lane in it
     per_load   weights of a raw
     terms      mma operations a step: a weight is the exact sum of so many numbers
     half       these are F16, otherwise BF16
     scaled     a weight is that sum times its block's scale and `unit`, which are applied to the sums of a k block, not here
     by_row     the same of a scale that a row has in this k block: row_scale(raw). groups: it is not that of all k blocks
     apart      columns from the first to the second weight of a register: 1; 2 where eight columns are c0 c2, c1 c3, c4 c6, c5 c7;
                4 where they are c0 c4, c1 c5, c2 c6, c3 c7
     fragment   raw -> A fragments of mma.m16n8k16. Of mma step `step` and term `term`: the A registers of this lane's weights
                4 step .. 4 step + 3; k0 has the first two (k = 2i, 2i + 1 of the mma), k1 the others (2i + 8, 2i + 9)
     prefill    raw -> A fragments in F16, of step `step`, times `factor` where the format has no scales: for cuda/gemm.cu.
                prefill_loads: how many of them 64 columns take, 1 or 2. Not of F32 and F16
     weight     a single one, for kernels that gather rows
     place      fills in what a gpu_matrix has for this format: where its planes behind the codes lie */

enum { TILE_ROWS = 2 * PANEL_ROWS, AHEAD = 4 };            /* rows of A; k blocks that a warp has in flight */

/* Word i of v; i is a constant after unrolling. */
__device__ __forceinline__ uint32_t gpu_word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Formats whose raw is 16 bytes, without scales among them. */
struct format_of_16_bytes {
    enum { panel = 512, lane = 16, apart = 1, unit = 1, by_row = 0, groups = 0 };
    typedef uint4 raw;
    template <bool once> static __device__ __forceinline__ raw load(const char *at, const float *) {
        return once ? __ldcs((const uint4 *)at) : __ldg((const uint4 *)at);
    }
    static __device__ __forceinline__ float row_scale(const raw &) { return 1; }
};
