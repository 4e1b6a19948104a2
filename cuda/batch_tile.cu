/* cuda/batch_tile.cu: a projection of up to BATCH_ROWS_MAX token rows, which cuda/batch_rows.cu has prepared: what its two forms do with a
   tile of weight rows. They find and decode it, multiply it with n-tiles of token rows, close the sums of a share, store what becomes of them.
   Knows matrices and prepared rows; must not know prologues or layers.

   Same bits as cuda/tiles.cu, row by row: the same mma in the same order, eight shares of the k blocks, each closed by itself (the
   rows' scale, then high + low terms) and added in order. So that two kernels agree, products and sums are written as __fmul_rn,
   __fadd_rn and __fmaf_rn here. A tile's weights are decoded once for all n-tiles of four token rows; what an n-tile costs is two
   loads of B, four mma and four fma.

   Two forms, for 8, 16, 32 and 64 rows each (NT n-tiles): wide (cuda/batch_wide.cu) for many tiles, narrow (cuda/batch_narrow.cu) for few. A third
   one, for 8 rows, prepares the rows itself (cuda/batch_split.cu).

   n-tiles after the last row are computed, but for those of 64 rows by fours: straight-line code is worth more than they cost.
   Neither form polls: they wait, and store tags. With up to 8 rows they release their successor at entry, or `late`; with more its blocks would
   take registers and issue slots from theirs, so they do so when the weights have been multiplied. */

typedef struct gpu_batch_projection {
    handoff link;
    int count, T;                /* segments; token rows */
    epilogue end;
    int late;                    /* gpu_projection's */
    size_t h_row;                /* elements of a row of h */
    batch_rows rows[BATCH_ORDERS];
    gpu_segment segment[PROJECTIONS];
    int order[PROJECTIONS];      /* of a segment's operands: in rows */
} gpu_batch_projection;

/* A tile's k block, decoded: A operands of its mma, in their order, and the rows' scales of formats with groups, in each part of it. */
template <class F> struct batch_operands {
    enum { PARTS = gpu_block_parts<F>(), OPERATIONS = F::per_load / 4 * F::terms, EACH = OPERATIONS / PARTS };
    uint32_t a[OPERATIONS][4];
    float row[PARTS][2];
    __device__ __forceinline__ void decode(const typename F::raw *raw) {
#pragma unroll
        for (int i = 0; i < OPERATIONS; i++) {
            F::fragment(raw[0], i / F::terms, i % F::terms, &a[i][0], &a[i][2]);
            F::fragment(raw[1], i / F::terms, i % F::terms, &a[i][1], &a[i][3]);
        }
#pragma unroll
        for (int i = 0; i < 2 * PARTS; i++) row[i / 2][i % 2] = F::groups ? gpu_row_scale<F>(raw[i % 2], i / 2) : 1;
    }
};

/* sum[m][n] += a k block of tile m times n-tile n, for SIDE n-tiles, whose chains of mma run side by side. x: their B registers;
   scale: of the panels of each tile; act_scale: of this lane's two token rows in each n-tile. */
template <class F, int TILES, int SIDE>
__device__ __forceinline__ void gpu_batch_multiply(float (*sum[TILES])[4], const batch_operands<F> *w, const float (*scale)[2],
                                                   const uint4 (*x)[gpu_step_pairs<F>()], const float2 *act_scale) {
    typedef batch_operands<F> operands;
#pragma unroll
    for (int of = 0; of < operands::PARTS; of++) {
        float part[TILES][SIDE][4] = {};
#pragma unroll
        for (int i = of * operands::EACH; i < (of + 1) * operands::EACH; i++)
#pragma unroll
            for (int n = 0; n < SIDE; n++)
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    const int step = i / F::terms;
                    const uint4 &b = x[n][step / 2];
                    mma_m16n8k16<F::half>(part[m][n], w[m].a[i], step % 2 ? b.z : b.x, step % 2 ? b.w : b.y);
                }
#pragma unroll
        for (int n = 0; n < SIDE; n++)
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float act = i % 2 ? act_scale[n].y : act_scale[n].x;
                    const float factor = gpu_scales_by_block<F>() ? __fmul_rn(scale[m][i / 2], act) : act;
                    const float p = F::groups ? __fmul_rn(part[m][n][i], w[m].row[of][i / 2]) : part[m][n][i];
                    sum[m][n][i] = F::half ? __fmaf_rn(factor, p, sum[m][n][i]) : __fadd_rn(sum[m][n][i], p);
                }
    }
}

/* The sums of two n-tiles of a share, closed: with the rows' scale, high + low terms. Of the two lanes that have the same, lane % 4 < 2
   keeps the first n-tile, the other one the second. The sums begin anew. */
template <class F> __device__ __forceinline__ void gpu_batch_close(float (*sum)[4], const float *row_scale, float *closed) {
    const bool second = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float first = sum[0][i], other = sum[1][i];
        if (gpu_scaled_at_end<F>()) {
            first = __fmul_rn(first, row_scale[i / 2]);
            other = __fmul_rn(other, row_scale[i / 2]);
        }
        closed[i] = __fadd_rn(second ? other : first, __shfl_xor_sync(~0u, second ? first : other, 2));
        sum[0][i] = sum[1][i] = 0;
    }
}

/* The scales of a tile's rows that are applied at the end of a share, as row_scales has them. */
template <class F> __device__ __forceinline__ void gpu_batch_row_scales(const gpu_place &place, float *of) {
    row_scales rows = {};
    rows.load<F>(place);
#pragma unroll
    for (int i = 0; i < 2; i++) of[i] = gpu_scaled_at_end<F>() ? __fmul_rn(rows.of[i], gpu_post_scale<F>()) : 1;
}

/* A tile of a segment: two panels of w, or one of w and the same of up. One after the last counts as the last. */
template <class F> __device__ __forceinline__ gpu_place gpu_batch_place(const gpu_segment &s, int tile) {
    if (s.up.data) {
        tile = min(tile, s.w.panels - 1);
        return gpu_place_of<F>(s.w, tile, s.up, tile);
    }
    tile = min(tile, (s.w.panels - 1) / 2);
    return gpu_place_of<F>(s.w, 2 * tile, s.w, 2 * tile + 1);
}

/* Where a share begins, see gpu_share. */
__device__ __forceinline__ int gpu_batch_share(int k_blocks, int share) {
    return k_blocks * share / GPU_WARPS;
}

/* Where the next share that has k blocks ends, from *share on, of which the one before ends at `from`. */
__device__ __forceinline__ int gpu_batch_share_end(int k_blocks, int *share, int from) {
    int end = gpu_batch_share(k_blocks, *share + 1);
    for (; end == from && *share < GPU_WARPS; end = gpu_batch_share(k_blocks, *share + 1)) ++*share;
    return end;
}

/* The number of the thread's warp, which the compiler then knows to be the same for all of it: branches on it cost nothing. */
__device__ __forceinline__ int gpu_batch_warp() {
    return __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
}

/* Tiles of a segment. */
__host__ __device__ __forceinline__ int gpu_tiles(const gpu_segment &s) {
    return s.up.data ? s.w.panels : (s.w.panels + 1) / 2;
}

__device__ __forceinline__ int gpu_batch_segment(const gpu_batch_projection &p) {
    int i = 0;
    while (i + 1 < p.count && (int)blockIdx.x >= p.segment[i + 1].first_block) i++;
    return i;
}

/* A segment's number, for the code of one format: what that loads of the parameters the compiler would else load before it branches to
   a format, for all of them, and spill. */
__device__ __forceinline__ int gpu_batch_own(int segment) {
    asm volatile("" : "+r"(segment));
    return segment;
}

/* y[t][row], of which the shares' sum is known. */
template <bool ANY>
__device__ __forceinline__ void gpu_batch_put(const gpu_batch_projection &p, const gpu_segment &s, int row, int t, float sum, float rms) {
    if (row >= s.w.rows || t >= p.T) return;
    float *y = &s.y[(size_t)t * s.w.rows + row];
    epilogue_store(y, sum, rms, epilogue_before<ANY>(p.end, s.w, row, y), p.link.publish);
}

/* h[t][row] of a pair of matrices. */
template <bool ANY>
__device__ __forceinline__ void gpu_batch_put_pair(const gpu_batch_projection &p, const gpu_segment &s, int row, int t, float gate,
                                                   float up, float rms) {
    if (row >= s.w.rows || t >= p.T) return;
    s.h[(size_t)t * p.h_row + row] = epilogue_pair<ANY>(p.end.act, s.w, s.up, 0, row, gate, up, rms);
}
