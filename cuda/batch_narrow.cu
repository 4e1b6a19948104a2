/* cuda/batch_narrow.cu: a projection of many rows with few tiles. The warps of a block split a tile's K, one share each, as in
   gpu_run_tiles. As a block uses a fragment of the token rows only once, a warp loads it from the L2 into registers. */

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
        if (!pair) gpu_batch_put<true>(p, s, tile * TILE_ROWS + row, t, sum_warp_partials(of), rms[t]);
        else if (row < PANEL_ROWS)
            gpu_batch_put_pair<true>(p, s, tile * PANEL_ROWS + row, t, sum_warp_partials(of),
                               sum_warp_partials(of + PANEL_ROWS * GPU_WARPS), rms[t]);
    }
}

template <class F, int NT>
__device__ __forceinline__ void gpu_batch_narrow_tiles(const gpu_batch_projection &p, const gpu_segment &s, const batch_rows &rows,
                                                       float *partials, float *rms) {
    typedef batch_narrow<NT> sizes;
    enum { DEPTH = sizes::DEPTH, SIDE = sizes::SIDE, GROUPS = NT / SIDE };
    const int tiles = gpu_tiles(s), n_tiles = (p.T + N_TILE_ROWS - 1) / N_TILE_ROWS, k_blocks = s.w.k_blocks;
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
