/* cuda/batch.cu: a projection of up to BATCH_ROWS_MAX token rows, which cuda/batch_rows.cu has prepared: of more than STEP_ROWS, and
   of those that a block does not have the shared memory for. Knows matrices and prepared rows; must not know prologues or layers.

   Same bits as cuda/tiles.cu, row by row: the same mma in the same order, eight shares of the k blocks, each closed by itself (the
   rows' scale, then high + low terms) and added in order. So that two kernels agree, products and sums are written as __fmul_rn,
   __fadd_rn and __fmaf_rn here. A tile's weights are decoded once for all n-tiles of four token rows; what an n-tile costs is two
   loads of B, four mma and four fma.

   Two forms, for 8, 16, 32 and 64 rows each (NT n-tiles):
     wide    many tiles. A warp has tiles of its own and all of K, or a half of it, and closes the shares itself. The k blocks of the
             token rows pass through a ring in shared memory, in step for all warps of the block.
     narrow  few tiles. The warps of a block split a tile's K, one share each, as in gpu_run_tiles. As a block uses a fragment of the
             token rows only once, a warp loads it from the L2 into registers.
   n-tiles after the last row are computed, but for those of 64 rows by fours: straight-line code is worth more than they cost.
   Neither form polls: they wait, and store tags. With up to 8 rows they release their successor at entry, or `late`; with more its blocks would
   take registers and issue slots from theirs, so they do so when the weights have been multiplied. */

typedef struct gpu_batch_projection {
    handoff link;
    int count, T, add;           /* segments; token rows; y += instead of y = */
    int late;                    /* gpu_projection's */
    size_t h_row;                /* elements of a row of h */
    batch_rows rows[BATCH_ORDERS];
    gpu_segment segment[PROJECTIONS];
    int order[PROJECTIONS];      /* of a segment's operands: in rows */
} gpu_batch_projection;

/* A tile's k block, decoded: A operands of its mma, in their order, and the rows' scales of formats with groups. */
template <class F> struct batch_operands {
    enum { OPERATIONS = F::per_load / 4 * F::terms };
    uint32_t a[OPERATIONS][4];
    float row[2];
    __device__ __forceinline__ void decode(const typename F::raw *raw) {
#pragma unroll
        for (int i = 0; i < OPERATIONS; i++) {
            F::fragment(raw[0], i / F::terms, i % F::terms, &a[i][0], &a[i][2]);
            F::fragment(raw[1], i / F::terms, i % F::terms, &a[i][1], &a[i][3]);
        }
        row[0] = F::groups ? F::row_scale(raw[0]) : 1;
        row[1] = F::groups ? F::row_scale(raw[1]) : 1;
    }
};

/* sum[m][n] += a k block of tile m times n-tile n, for SIDE n-tiles, whose chains of mma run side by side. x: their B registers;
   scale: of the panels of each tile; act_scale: of this lane's two token rows in each n-tile. */
template <class F, int TILES, int SIDE>
__device__ __forceinline__ void gpu_batch_multiply(float (*sum[TILES])[4], const batch_operands<F> *w, const float (*scale)[2],
                                                   const uint4 (*x)[gpu_step_pairs<F>()], const float2 *act_scale) {
    float part[TILES][SIDE][4] = {};
#pragma unroll
    for (int i = 0; i < batch_operands<F>::OPERATIONS; i++)
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
                const float p = F::groups ? __fmul_rn(part[m][n][i], w[m].row[i / 2]) : part[m][n][i];
                sum[m][n][i] = F::half ? __fmaf_rn(factor, p, sum[m][n][i]) : __fadd_rn(sum[m][n][i], p);
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

__host__ __device__ __forceinline__ int gpu_batch_tiles(const gpu_segment &s) {
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
__device__ __forceinline__ void gpu_batch_put(const gpu_batch_projection &p, const gpu_segment &s, int row, int t, float sum, float rms) {
    if (row >= s.w.rows || t >= p.T) return;
    float *y = &s.y[(size_t)t * s.w.rows + row];
    store_tagged(y, __fadd_rn(p.add ? __ldcg(y) : 0, __fmul_rn(sum, rms)), p.link.publish);
}

/* h[t][row] of a pair of matrices. */
__device__ __forceinline__ void gpu_batch_put_pair(const gpu_batch_projection &p, const gpu_segment &s, int row, int t, float gate,
                                                   float up, float rms) {
    if (row >= s.w.rows || t >= p.T) return;
    s.h[(size_t)t * p.h_row + row] = gpu_silu(__fmul_rn(gate, rms)) * __fmul_rn(up, rms);
}

/* ---- wide ----------------------------------------------------------------------------------------------------------------- */

/* How a block of the wide form divides its work. TILES: of a warp, side by side: half as many loads of B. PARTS: warps that share
   the K of a tile: twice the warps where there are few tiles. SLICES: warps that share the token rows of a tile. DEPTH: k blocks of
   weights in flight. BLOCKS: on an SM. */
template <int NT> struct batch_form { enum { TILES = 1, PARTS = 2, SLICES = 1, DEPTH = 4, BLOCKS = 2 }; };
template <> struct batch_form<8> { enum { TILES = 1, PARTS = 1, SLICES = 2, DEPTH = 4, BLOCKS = 2 }; };
template <> struct batch_form<16> { enum { TILES = 2, PARTS = 1, SLICES = 2, DEPTH = 2, BLOCKS = 1 }; };

template <int NT> struct batch_sizes : batch_form<NT> {
    typedef batch_form<NT> form;
    enum {
        SHARES = GPU_WARPS / form::PARTS,                   /* of a part */
        BLOCK_TILES = GPU_WARPS / form::PARTS / form::SLICES * form::TILES,
        WARP_N = NT / form::SLICES,                         /* n-tiles of a warp */
        STAGES = 3,                                         /* of the ring */
        STAGE = 16 * (64 + 2),                              /* uint4 of one: 16 n-tiles of 64 columns, and their scales */
        LATER = (form::PARTS - 1) * BLOCK_TILES * form::SLICES * SHARES * (WARP_N / 2) * 32,    /* float4: closed shares of part 1 */
        BYTES = (STAGES * STAGE + LATER) * 16
    };
};

/* The ring of token rows: a stage has AT_ONCE k blocks of each part, of all n-tiles that there are:
   x [part][n-tile][AT_ONCE][TILE], then act_scale [part][n-tile][AT_ONCE][4 rows]. */
template <class F, int NT> struct batch_ring {
    typedef batch_sizes<NT> sizes;
    enum {
        TILE = gpu_step_pairs<F>() * 32,                    /* uint4 of an n-tile of a k block */
        AT_ONCE = 16 * 64 / (sizes::PARTS * NT * TILE), PART = NT * AT_ONCE * TILE
    };
    const batch_rows &rows;
    uint4 *memory;
    int k_blocks, n_tiles, stages;                          /* stages: of a tile */
    int left, next, slot;                                   /* stages to be asked for; the next one, and where it goes */

    /* k blocks of the first part, or of the first two: where the second begins, and ends. */
    __device__ __forceinline__ int part_end(int parts) const { return gpu_batch_share(k_blocks, parts * sizes::SHARES); }
    __device__ __forceinline__ int longest() const { return k_blocks - part_end(sizes::PARTS - 1); }

    __device__ __forceinline__ batch_ring(const batch_rows &rows, uint4 *memory, int k_blocks, int T, int tiles)
        : rows(rows), memory(memory), k_blocks(k_blocks), n_tiles((T + N_TILE_ROWS - 1) / N_TILE_ROWS),
          stages((longest() + AT_ONCE - 1) / AT_ONCE), left(stages * tiles), next(0), slot(0) {}

    /* Asks for the next stage. A group of copies is ended even if there is none, so that they can be counted. */
    __device__ __forceinline__ void ask() {
        enum { RUN = AT_ONCE * TILE };                      /* uint4 side by side in x */
        static_assert((int)RUN <= (int)GPU_THREADS && (int)NT * (int)RUN % (int)GPU_THREADS == 0, "whole turns of all threads");
        uint4 *to = memory + slot * sizes::STAGE;
#pragma unroll
        for (int part = 0; part < sizes::PARTS; part++) {
            const int first = part_end(part) + next * AT_ONCE, there = left > 0 ? part_end(part + 1) - first : 0;
            const int run = threadIdx.x / RUN, in_run = threadIdx.x % RUN;
            const uint4 *from = rows.x + ((size_t)(uint32_t)(run * k_blocks + first) * TILE + in_run);
#pragma unroll
            for (int n = 0; n < NT; n += GPU_THREADS / RUN, from += (size_t)(uint32_t)k_blocks * (GPU_THREADS / RUN * TILE))
                if (n + run < n_tiles && in_run / TILE < there)
                    cp_async16(shared_address(to + part * PART + n * RUN + threadIdx.x), from, true);
            const int of = threadIdx.x / AT_ONCE, at = threadIdx.x % AT_ONCE;
            if (F::half && of < n_tiles && at < there)
                cp_async16(shared_address(to + sizes::PARTS * PART + part * NT * AT_ONCE + threadIdx.x),
                           rows.act_scale + (of * k_blocks + first + at) * N_TILE_ROWS, true);
        }
        cp_async_commit();
        left--;
        next = next + 1 == stages ? 0 : next + 1;
        slot = slot + 1 == sizes::STAGES ? 0 : slot + 1;
    }
    __device__ __forceinline__ void begin() {
        for (int i = 0; i < sizes::STAGES - 1; i++) ask();
    }
    /* The next stage, when all of it has arrived and no warp uses the one before it any more: that is where the one asked for goes. */
    __device__ __forceinline__ const uint4 *stage() {
        cp_async_wait<sizes::STAGES - 2>();
        __syncthreads();
        ask();
        return memory + slot * sizes::STAGE;
    }
};

/* The weights of a warp's tiles: DEPTH k blocks of its part in flight, on into the block's next tiles. */
template <class F, int NT> struct batch_weights {
    typedef batch_sizes<NT> sizes;
    enum { TILES = sizes::TILES, DEPTH = sizes::DEPTH };
    typename F::raw raw[DEPTH][TILES][2];
    const char *at[TILES][2];
    const float *scales[TILES];
    float scale[TILES], coming[TILES];                      /* by block: of panel lane / 16, k block lane % 16 of the round, of the next */

    __device__ __forceinline__ void move(const gpu_segment &s, int tile, int first) {
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            const gpu_place place = gpu_batch_place<F>(s, tile + m);
            at[m][0] = place.data[0] + first * F::panel;
            at[m][1] = place.data[1] + first * F::panel;
            scales[m] = place.scale;
        }
    }
    __device__ __forceinline__ void load(int j, bool there) {
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) F::load(&raw[j][m][half], at[m][half], j * F::panel, there);
    }
    /* Loads the scales of the round that begins at k block `first` and has `count`. */
    __device__ __forceinline__ void load_scales(const gpu_matrix &w, int first, int count) {
        const int k = threadIdx.x % 16;
#pragma unroll
        for (int m = 0; m < TILES; m++)
            if (gpu_scales_by_block<F>()) coming[m] = ld_volatile(scales[m] + (first + k >> w.k_block_shift), k < DEPTH && k < count);
    }
};

/* What a warp makes of its tiles: stored, or, by part 1, put aside. */
template <class F, int NT> struct batch_sums {
    typedef batch_sizes<NT> sizes;
    enum { TILES = sizes::TILES, PAIRS = sizes::WARP_N / 2 };
    float sum[TILES][sizes::WARP_N][4], total[TILES][PAIRS][4], row_scale[TILES][2];

    __device__ __forceinline__ void begin(const gpu_segment &s, int tile) {
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            gpu_batch_row_scales<F>(gpu_batch_place<F>(s, tile + m), row_scale[m]);
#pragma unroll
            for (int i = 0; i < PAIRS * 4; i++) total[m][i / 4][i % 4] = sum[m][i / 4 * 2][i % 4] = sum[m][i / 4 * 2 + 1][i % 4] = 0;
        }
    }
    /* Closes a share: onto the totals, or to `aside`. */
    __device__ __forceinline__ void close(float4 *aside) {
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int u = 0; u < PAIRS; u++) {
                float closed[4];
                gpu_batch_close<F>(&sum[m][2 * u], row_scale[m], closed);
                if (sizes::PARTS > 1 && aside) {
                    aside[(m * PAIRS + u) * 32] = make_float4(closed[0], closed[1], closed[2], closed[3]);
                    continue;
                }
#pragma unroll
                for (int i = 0; i < 4; i++) total[m][u][i] = __fadd_rn(total[m][u][i], closed[i]);
            }
    }
    /* Adds the shares that part 1 has put aside. */
    __device__ __forceinline__ void add(const float4 *aside, int k_blocks) {
#pragma unroll
        for (int share = 0; share < sizes::SHARES; share++) {
            if (gpu_batch_share(k_blocks, sizes::SHARES + share) == gpu_batch_share(k_blocks, sizes::SHARES + share + 1)) continue;
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int u = 0; u < PAIRS; u++) {
                    const float4 v = aside[((share * TILES + m) * PAIRS + u) * 32];
                    float *to = total[m][u];
                    to[0] = __fadd_rn(to[0], v.x);
                    to[1] = __fadd_rn(to[1], v.y);
                    to[2] = __fadd_rn(to[2], v.z);
                    to[3] = __fadd_rn(to[3], v.w);
                }
        }
    }
    template <bool PAIR>
    __device__ __forceinline__ void store_as(const gpu_batch_projection &p, const gpu_segment &s, int tile, int slice,
                                             const float *rms) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int u = 0; u < PAIRS; u++) {
                const int t = (slice * sizes::WARP_N + 2 * u + lane / 2 % 2) * N_TILE_ROWS + lane % 2 * 2;
                const float2 factor = *(const float2 *)(rms + t);
                const int row = (tile + m) * (PAIR ? (int)PANEL_ROWS : (int)TILE_ROWS) + lane / 4;
                const float *v = total[m][u];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!PAIR) gpu_batch_put(p, s, row + i / 2 * PANEL_ROWS, t + i % 2, v[i], i % 2 ? factor.y : factor.x);
                    else if (i < 2) gpu_batch_put_pair(p, s, row, t + i, v[i], v[i + 2], i ? factor.y : factor.x);
            }
    }
    __device__ __forceinline__ void store(const gpu_batch_projection &p, const gpu_segment &s, int tile, int slice,
                                          const float *rms) const {
        if (s.up.data) store_as<true>(p, s, tile, slice, rms);
        else store_as<false>(p, s, tile, slice, rms);
    }
};

/* All tiles of a block, BLOCK_TILES at a time. */
template <class F, int NT>
__device__ __forceinline__ void gpu_batch_wide_tiles(const gpu_batch_projection &p, const gpu_segment &s, const batch_rows &rows,
                                                     uint4 *memory, float *rms) {
    typedef batch_sizes<NT> sizes;
    typedef batch_ring<F, NT> ring_of;
    enum { DEPTH = sizes::DEPTH, AT_ONCE = ring_of::AT_ONCE, TILE = ring_of::TILE, TILES = sizes::TILES, pairs = gpu_step_pairs<F>() };
    enum { SIDE = 2, SKIP = 4 };                            /* n-tiles side by side; a branch around each of these */
    const int lane = threadIdx.x % 32, warp = gpu_batch_warp(), k_blocks = s.w.k_blocks;
    const int part = warp % sizes::PARTS, slice = warp / sizes::PARTS % sizes::SLICES;
    const int of_warp = warp / sizes::PARTS / sizes::SLICES * TILES;
    const int tiles = gpu_batch_tiles(s), step = s.blocks * sizes::BLOCK_TILES;
    const int first = gpu_batch_share(k_blocks, part * sizes::SHARES);
    const int count = gpu_batch_share(k_blocks, (part + 1) * sizes::SHARES) - first;
    int group = ((int)blockIdx.x - s.first_block) * sizes::BLOCK_TILES;
    float4 *aside = (float4 *)(memory + sizes::STAGES * sizes::STAGE) + lane +
                    warp / sizes::PARTS * (sizes::SHARES * TILES * (sizes::WARP_N / 2) * 32);
    batch_weights<F, NT> weights;
    batch_sums<F, NT> sums;
    batch_ring<F, NT> ring(rows, memory, k_blocks, p.T, (tiles - group + step - 1) / step);
    weights.move(s, group + of_warp, first);
#pragma unroll
    for (int j = 0; j < DEPTH; j++) weights.load(j, j < count);
    weights.load_scales(s.w, first, count);
    pdl_wait();
    if (NT <= 2 && p.late) pdl_launch_dependents();
    if (threadIdx.x < NT * N_TILE_ROWS) rms[threadIdx.x] = (int)threadIdx.x < p.T ? __ldcg(rows.rms + threadIdx.x) : 0;
    ring.begin();
    const int n_tiles = ring.n_tiles - slice * sizes::WARP_N, longest = ring.longest();
    const uint4 *stage = memory;
#pragma unroll 1
    for (; group < tiles; group += step) {
        const bool more = group + step < tiles;
        int share = part * sizes::SHARES, share_end = gpu_batch_share_end(k_blocks, &share, first);
        sums.begin(s, group + of_warp);
#pragma unroll 1
        for (int round = 0; round < longest; round += DEPTH) {
            const bool last = round + DEPTH >= longest;
#pragma unroll
            for (int m = 0; m < TILES; m++) weights.scale[m] = weights.coming[m];
            if (last) weights.move(s, group + step + of_warp, first);
            else
#pragma unroll
                for (int m = 0; m < 2 * TILES; m++) weights.at[m / 2][m % 2] += DEPTH * F::panel;
            const int ahead = last ? 0 : round + DEPTH, left = last && !more ? 0 : count - ahead;
            weights.load_scales(s.w, first + ahead, left);
#pragma unroll
            for (int j = 0; j < DEPTH; j++) {
                const int k = round + j;
                batch_operands<F> w[TILES];
                float scale[TILES][2];
                if ((AT_ONCE <= DEPTH ? j % AT_ONCE : k % AT_ONCE) == 0 && k < longest) stage = ring.stage();
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    w[m].decode(weights.raw[j][m]);
                    if (!gpu_scales_by_block<F>()) continue;
                    scale[m][0] = __shfl_sync(~0u, weights.scale[m], j);
                    scale[m][1] = __shfl_sync(~0u, weights.scale[m], 16 + j);
                }
                weights.load(j, j < left);
                if (k >= count) continue;
                const uint4 *b = stage + part * ring_of::PART + (slice * sizes::WARP_N * AT_ONCE + k % AT_ONCE) * TILE + lane;
                const float4 *scales = (const float4 *)(stage + sizes::PARTS * ring_of::PART) + part * NT * AT_ONCE +
                                       slice * sizes::WARP_N * AT_ONCE + k % AT_ONCE;
#pragma unroll
                for (int n = 0; n < sizes::WARP_N; n += SIDE) {
                    if (n && n % SKIP == 0 && n >= n_tiles) break;
                    uint4 x[SIDE][pairs];
                    float2 act_scale[SIDE];
                    float (*to[TILES])[4];
#pragma unroll
                    for (int i = 0; i < SIDE; i++) {
#pragma unroll
                        for (int pair = 0; pair < pairs; pair++) x[i][pair] = b[(n + i) * AT_ONCE * TILE + pair * 32];
                        act_scale[i] = F::half ? ((const float2 *)(scales + (n + i) * AT_ONCE))[lane % 2] : make_float2(1, 1);
                    }
#pragma unroll
                    for (int m = 0; m < TILES; m++) to[m] = &sums.sum[m][n];
                    gpu_batch_multiply<F, TILES, SIDE>(to, w, scale, x, act_scale);
                }
                if (first + k + 1 < share_end) continue;
                sums.close(part ? aside + (share % sizes::SHARES) * (TILES * (sizes::WARP_N / 2) * 32) : NULL);
                share++;
                share_end = gpu_batch_share_end(k_blocks, &share, share_end);
            }
        }
        if (NT > 2 && !more) pdl_launch_dependents();
        if (sizes::PARTS > 1) __syncthreads();
        if (sizes::PARTS > 1 && part == 0) sums.add(aside, k_blocks);
        if (part == 0) sums.store(p, s, group + of_warp, slice, rms);
    }
}

template <int NT> __global__ void __launch_bounds__(GPU_THREADS, batch_form<NT>::BLOCKS)
gpu_batch_wide(const __grid_constant__ gpu_batch_projection p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(8) float rms[NT * N_TILE_ROWS];
    const int segment = gpu_batch_segment(p);
    if (NT <= 2 && !p.late) pdl_launch_dependents();
    with_format(p.segment[segment].w.format, [&](auto format) {
        const int i = gpu_batch_own(segment);
        gpu_batch_wide_tiles<decltype(format), NT>(p, p.segment[i], p.rows[p.order[i]], dynamic, rms);
    });
}

/* ---- narrow --------------------------------------------------------------------------------------------------------------- */

template <int NT> struct batch_narrow {
    enum { SIDE = NT < 4 ? NT : 4, DEPTH = NT < 16 ? 4 : 2, BLOCKS = NT < 4 ? 2 : 1 };
    enum { BYTES = NT * N_TILE_ROWS * TILE_ROWS * GPU_WARPS * (int)sizeof(float) };   /* the warps' partials: [token row][row][warp] */
};

/* SIDE n-tiles of a k block on their way from the L2. */
template <class F, int SIDE> struct batch_columns {
    uint4 x[SIDE][gpu_step_pairs<F>()];
    float2 act_scale[SIDE];
    /* Loads n-tiles `first`, ..., of k block k, as far as they are there: sums of others are not stored. With up to 8 rows the second is
       not loaded in vain, since all blocks ask for the same lines at once; with more the last is loaded again, which takes fewer
       registers. */
    __device__ __forceinline__ void load(const batch_rows &rows, int k_blocks, int k, int first, int n_tiles) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            const int at = (SIDE > 2 ? min(first + i, n_tiles - 1) : first + i) * k_blocks + k;
            if (SIDE <= 2 && first + i >= n_tiles) continue;
            const uint4 *from = rows.x + (size_t)(uint32_t)at * (gpu_step_pairs<F>() * 32) + lane;
#pragma unroll
            for (int pair = 0; pair < gpu_step_pairs<F>(); pair++) x[i][pair] = __ldcg(from + pair * 32);
            act_scale[i] = F::half ? __ldcg((const float2 *)(rows.act_scale + at * N_TILE_ROWS) + lane % 2) : make_float2(1, 1);
        }
    }
};

/* Stores a warp's share of a tile. */
template <class F, int NT> __device__ __forceinline__ void gpu_batch_partials(float (*sum)[4], const float *row_scale, float *partials) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int u = 0; u < NT / 2; u++) {
        float closed[4];
        gpu_batch_close<F>(&sum[2 * u], row_scale, closed);
        const int t = (2 * u + lane / 2 % 2) * N_TILE_ROWS + lane % 2 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) partials[((t + i % 2) * TILE_ROWS + i / 2 * PANEL_ROWS + lane / 4) * GPU_WARPS + warp] = closed[i];
    }
}

/* Adds the warps' partials of a tile and stores what becomes of them. */
__device__ __forceinline__ void gpu_batch_finish(const gpu_batch_projection &p, const gpu_segment &s, int tile, const float *partials,
                                                 const float *rms) {
    const bool pair = s.up.data != NULL;
    const int row = threadIdx.x % TILE_ROWS;
#pragma unroll 1
    for (int t = threadIdx.x / TILE_ROWS; t < p.T; t += GPU_THREADS / TILE_ROWS) {
        const float *of = partials + (t * TILE_ROWS + row) * GPU_WARPS;
        if (!pair) gpu_batch_put(p, s, tile * TILE_ROWS + row, t, sum_warp_partials(of), rms[t]);
        else if (row < PANEL_ROWS)
            gpu_batch_put_pair(p, s, tile * PANEL_ROWS + row, t, sum_warp_partials(of),
                               sum_warp_partials(of + PANEL_ROWS * GPU_WARPS), rms[t]);
    }
}

template <class F, int NT>
__device__ __forceinline__ void gpu_batch_narrow_tiles(const gpu_batch_projection &p, const gpu_segment &s, const batch_rows &rows,
                                                       float *partials, float *rms) {
    typedef batch_narrow<NT> sizes;
    enum { DEPTH = sizes::DEPTH, SIDE = sizes::SIDE, GROUPS = NT / SIDE };
    const int tiles = gpu_batch_tiles(s), n_tiles = (p.T + N_TILE_ROWS - 1) / N_TILE_ROWS, k_blocks = s.w.k_blocks;
    int count, tile = (int)blockIdx.x - s.first_block;
    const int first = gpu_share(k_blocks, gpu_batch_warp(), GPU_WARPS, &count);
    typename F::raw raw[DEPTH][2];
    float coming = 1;                                       /* by block: the scale of panel lane / 16 in k block lane % 16 of the round */
    gpu_place place;
    auto load = [&](int j, int left) {
#pragma unroll
        for (int half = 0; half < 2; half++) F::load(&raw[j][half], place.data[half], j * F::panel, j < left);
    };
    auto load_scales = [&](int from) {
        const int k = threadIdx.x % 16;
        if (gpu_scales_by_block<F>())
            coming = ld_volatile(place.scale + (first + from + k >> s.w.k_block_shift), k < DEPTH && from + k < count);
    };
    auto begin = [&] {
        place = gpu_batch_place<F>(s, tile);
        place.data[0] += first * F::panel;
        place.data[1] += first * F::panel;
#pragma unroll
        for (int j = 0; j < DEPTH; j++) load(j, count);
        load_scales(0);
    };
    begin();
    pdl_wait();
    if (NT <= 2 && p.late) pdl_launch_dependents();
    if (threadIdx.x < NT * N_TILE_ROWS) rms[threadIdx.x] = (int)threadIdx.x < p.T ? __ldcg(rows.rms + threadIdx.x) : 0;
#pragma unroll 1
    while (tile < tiles) {
        float sum[NT][4] = {}, row_scale[2];
        batch_columns<F, SIDE> columns[2];
        gpu_batch_row_scales<F>(place, row_scale);
        if (count) columns[0].load(rows, k_blocks, first, 0, n_tiles);
#pragma unroll 1
        for (int round = 0; round < count; round += DEPTH) {
            const float now = coming;
            place.data[0] += DEPTH * F::panel;
            place.data[1] += DEPTH * F::panel;
            load_scales(round + DEPTH);
#pragma unroll
            for (int j = 0; j < DEPTH; j++) {
                const int k = round + j;
                batch_operands<F> w[1];
                float scale[1][2];
                w[0].decode(raw[j]);
                if (NT > 2) load(j, count - round - DEPTH);
                if (gpu_scales_by_block<F>()) {
                    scale[0][0] = __shfl_sync(~0u, now, j);
                    scale[0][1] = __shfl_sync(~0u, now, 16 + j);
                }
                if (k >= count) break;
#pragma unroll
                for (int g = 0; g < GROUPS; g++) {
                    const int turn = (j * GROUPS + g) % 2;
                    float (*to[1])[4] = {&sum[g * SIDE]};
                    const int next = first + min(g + 1 < GROUPS ? k : k + 1, count - 1);
                    columns[turn ^ 1].load(rows, k_blocks, next, (g + 1) % GROUPS * SIDE, n_tiles);
                    if (g == 0 || g * SIDE < n_tiles)
                        gpu_batch_multiply<F, 1, SIDE>(to, w, scale, columns[turn].x, columns[turn].act_scale);
                }
                if (NT <= 2) load(j, count - round - DEPTH);            /* not earlier: while some are decoded, others are multiplied */
            }
        }
        gpu_batch_partials<F, NT>(sum, row_scale, partials);
        if (NT > 2 && tile + s.blocks >= tiles) pdl_launch_dependents();
        __syncthreads();
        gpu_batch_finish(p, s, tile, partials, rms);
        tile += s.blocks;
        if (tile >= tiles) break;
        __syncthreads();
        begin();
    }
}

template <int NT> __global__ void __launch_bounds__(GPU_THREADS, batch_narrow<NT>::BLOCKS)
gpu_batch_narrow(const __grid_constant__ gpu_batch_projection p) {
    extern __shared__ uint4 dynamic[];
    __shared__ float rms[NT * N_TILE_ROWS];
    const int segment = gpu_batch_segment(p);
    if (NT <= 2 && !p.late) pdl_launch_dependents();
    with_format(p.segment[segment].w.format, [&](auto format) {
        const int i = gpu_batch_own(segment);
        gpu_batch_narrow_tiles<decltype(format), NT>(p, p.segment[i], p.rows[p.order[i]], (float *)dynamic, rms);
    });
}

/* ---- Launches ------------------------------------------------------------------------------------------------------------- */

typedef void (*gpu_batch_kernel)(gpu_batch_projection);

typedef struct gpu_batch_choice {
    gpu_batch_kernel kernel;
    int bytes, block_tiles;      /* of shared memory; that a block has at a time */
} gpu_batch_choice;

template <int NT> static gpu_batch_choice gpu_batch_choose(int narrow) {
    const gpu_batch_choice of_narrow = {gpu_batch_narrow<NT>, batch_narrow<NT>::BYTES, 1};
    const gpu_batch_choice of_wide = {gpu_batch_wide<NT>, batch_sizes<NT>::BYTES, batch_sizes<NT>::BLOCK_TILES};
    return narrow ? of_narrow : of_wide;
}

static gpu_batch_choice gpu_batch_choice_of(int T, int narrow) {
    return T <= 8 ? gpu_batch_choose<2>(narrow) : T <= 16 ? gpu_batch_choose<4>(narrow) : T <= 32 ? gpu_batch_choose<8>(narrow) :
                                                                                                     gpu_batch_choose<16>(narrow);
}

/* Deals the blocks that are resident at once to the segments, in proportion to their tiles; one of few has a block for each
   turn. Returns how many there are. */
static int gpu_batch_deal(gpu_queue *q, gpu_batch_projection *p, const gpu_batch_choice *c) {
    enum { FEW = 16 };
    int64_t turns[PROJECTIONS], all = 0, many = 0;
    int used = 0;
    for (int i = 0; i < p->count; i++) {
        turns[i] = (gpu_batch_tiles(p->segment[i]) - 1) / c->block_tiles + 1;
        all += turns[i];
        many += turns[i] > FEW ? turns[i] : 0;
    }
    const int64_t left = gpu_blocks(q, c->kernel, (size_t)c->bytes, all) - (all - many);
    for (int i = 0; i < p->count; i++) {
        gpu_segment *s = &p->segment[i];
        s->blocks = turns[i] > FEW ? (int)(turns[i] * left / many) : (int)turns[i];
        if (s->blocks < 1) s->blocks = 1;
        s->first_block = used;
        used += s->blocks;
    }
    return used;
}

static node *gpu_record_product(gpu_queue *q, enum kernel_kind kind, gpu_batch_projection *p) {
    int tiles = 0;
    for (int i = 0; i < p->count; i++) tiles += gpu_batch_tiles(p->segment[i]);
    const gpu_batch_choice c = gpu_batch_choice_of(p->T, tiles < 4 * q->sms);
    const int blocks = gpu_batch_deal(q, p, &c);
    const gpu_matrix *w = &p->segment[0].w;
    node *n = gpu_record(q, kind, formats[w->format]->name, c.kernel, blocks, 1, (size_t)c.bytes, p);
    if (!kernels[kind].prefetched) return n;
    n->first_weights.from = w->data;
    n->first_weights.bytes = (uint32_t)min((int64_t)w->panels * w->k_blocks * w->panel_bytes, (int64_t)1 << 30);
    return n;
}

/* The number of a format's operand order in `order`, where there are *count; it is added if there is space for it. -1: there is none. */
static int gpu_batch_order_of(const gpu_matrix *w, const batch_rows *rows, int *count, gpu_batch_order *order) {
    for (int i = 0; i < *count; i++)
        if (gpu_operand_order(order[i].format) == gpu_operand_order(w->format)) return i;
    if (*count == BATCH_ORDERS) return -1;
    order[*count].format = w->format;
    order[*count].k_blocks = w->k_blocks;
    order[*count].to = rows[*count];
    return (*count)++;
}

/* Records a projection of the rows in q->batch: their preparation, then the products of all segments whose operand orders there is
   scratch for, and so on. To the schedule these are pieces of one kernel. */
template <class IN> static void gpu_record_batch(gpu_queue *q, enum kernel_kind kind, const gpu_projection<IN> *p) {
    const int from = q->count;
    for (int i = 0, extra = p->extra; i < p->count; extra = 0) {
        gpu_batch_projection part;
        gpu_batch_order order[BATCH_ORDERS];
        int orders = 0;
        memset(&part, 0, sizeof part);
        part.T = p->T;
        part.add = p->add;
        part.late = p->late;
        part.h_row = p->h_row;
        memcpy(part.rows, q->batch->rows, sizeof part.rows);
        for (; i < p->count; i++) {
            const int of = gpu_batch_order_of(&p->segment[i].w, part.rows, &orders, order);
            if (of < 0) break;
            part.order[part.count] = of;
            part.segment[part.count++] = p->segment[i];
        }
        gpu_record_preparation(q, kind, p->in, p->T, p->eps, orders, order, extra, p->late);
        gpu_record_product(q, kind, &part);
    }
    for (int i = from; i < q->count; i++) {
        q->nodes[i].piece = i - from;
        q->nodes[i].pieces = q->count - from;
    }
}
