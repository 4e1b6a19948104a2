/* cuda/batch_wide.cu: a projection of many rows with many tiles. A warp has tiles of its own and all of K, or a half of it, and closes
   the shares itself. The k blocks of the token rows pass through a ring in shared memory, in step for all warps of the block. */

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
    template <bool PAIR, bool ANY>
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
                    if (!PAIR) gpu_batch_put<ANY>(p, s, row + i / 2 * PANEL_ROWS, t + i % 2, v[i], i % 2 ? factor.y : factor.x);
                    else if (i < 2) gpu_batch_put_pair<ANY>(p, s, row, t + i, v[i], v[i + 2], i ? factor.y : factor.x);
            }
    }
    __device__ __forceinline__ void store(const gpu_batch_projection &p, const gpu_segment &s, int tile, int slice,
                                          const float *rms) const {
        const bool plain = NT < 16 && epilogue_is_plain(p.end, s.w, s.up);     /* of 64 rows two forms of this would spill more than they save */
        if (s.up.data && plain) store_as<true, false>(p, s, tile, slice, rms);
        else if (s.up.data) store_as<true, true>(p, s, tile, slice, rms);
        else if (plain) store_as<false, false>(p, s, tile, slice, rms);
        else store_as<false, true>(p, s, tile, slice, rms);
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
    const int tiles = gpu_tiles(s), step = s.blocks * sizes::BLOCK_TILES;
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
