/* layers/moe/down_own.cu: experts_down for one token row where the shared expert has the format of the routed ones and another size, as Nemotron's:
   58 k blocks beside six times 29. Without biases.

   Touches, and may read early, the same as gpu_experts_down, and gives the same sums in the same order. As in gpu_experts_down_dealt items, each
   one k block of one active expert, are dealt to warps one by one, 29 each; their products take the place of their activation fragments, and are
   added up at the end, each times its factor.

   Why it is fast: the shared expert's h is norm_router's, so its items, which are the first, are multiplied before the wait, in whole rounds,
   while blocks of experts_up end. A block has three row panels: Nemotron's 336 are then dealt to 112 SMs, where of tiles of two some SMs of 132
   would have four. */

/* PARTS: eights of columns of h that a lane loads at once, of the shared expert and of the routed ones. ROUND items are in flight. */
template <class F> struct down_own_sizes {
    enum {
        PANELS = 3, ROWS = PANELS * PANEL_ROWS,
        LANES = F::per_load / 2,                            /* eights of columns of an item */
        OWN_PARTS = 2, PARTS = 6, OWN_ITEMS = OWN_PARTS * 32 / LANES, ITEMS = PARTS * 32 / LANES,
        ROUND = 5, PLACES = 32,                             /* of a warp's items */
        FRAGMENTS = gpu_step_pairs<F>() * 128,              /* bytes of an item's */
        ITEM_BYTES = FRAGMENTS + (int)sizeof(float)
    };
    static_assert((int)OWN_ITEMS + (int)ITEMS <= (int)PLACES && ROWS * 2 * 4 <= FRAGMENTS, "there is space");
};

/* Items of the layer, and of the warps that have most. */
static __host__ __device__ __forceinline__ int gpu_own_items(const moe_gpu &p) {
    return p.shared_down.k_blocks + p.shape.top_k * p.down.k_blocks;
}

static __host__ __device__ __forceinline__ int gpu_own_share(const moe_gpu &p) {
    return (gpu_own_items(p) + GPU_WARPS - 1) / GPU_WARPS;
}

/* Bytes of a warp's fragments and factors. */
template <class F> __host__ __device__ __forceinline__ int gpu_own_bytes(const moe_gpu &p) {
    return (gpu_own_share(p) * down_own_sizes<F>::ITEM_BYTES + 15) / 16 * 16;
}

/* What a warp has: items number warp, warp + GPU_WARPS, ..., by active expert and k block, `own` of the shared expert first. */
template <class F> struct gpu_down_own_warp {
    typedef down_own_sizes<F> sizes;
    enum { LANES = sizes::LANES, PANELS = sizes::PANELS, ROUND = sizes::ROUND, pairs = gpu_step_pairs<F>() };
    const moe_gpu &p;
    const char **data;           /* of its items, in shared memory: this lane's weights are lane * F::lane on */
    const int lane, warp;
    int own, count, own_panel, panel;                       /* panels: bytes of a row panel */
    float per_k_block;
    typename F::raw raw[ROUND][PANELS];

    __device__ __forceinline__ gpu_down_own_warp(const moe_gpu &p, const char *(*all)[sizes::PLACES])
        : p(p), data(all[threadIdx.x / 32]), lane(threadIdx.x % 32), warp(threadIdx.x / 32), raw{} {
        own = (p.shared_down.k_blocks - warp + GPU_WARPS - 1) / GPU_WARPS;
        count = (gpu_own_items(p) - warp + GPU_WARPS - 1) / GPU_WARPS;
        own_panel = p.shared_down.k_blocks * F::panel;
        panel = p.down.k_blocks * F::panel;
        per_k_block = __fdividef(1, (float)p.down.k_blocks);
    }
    /* The routed expert of an item, -1: the shared one; *k_block: of its matrix. */
    __device__ __forceinline__ int entry_of(int item, int *k_block) const {
        const int number = warp + GPU_WARPS * item - p.shared_down.k_blocks, entry = (int)(((float)number + 0.5f) * per_k_block);
        *k_block = number < 0 ? number + p.shared_down.k_blocks : number - entry * p.down.k_blocks;
        return number < 0 ? -1 : entry;
    }
    __device__ __forceinline__ void load_at(int j, const char *at, int to_next, bool there) {
#pragma unroll
        for (int i = 0; i < PANELS; i++) F::load(&raw[j][i], at + i * to_next, 0, there);
    }
    __device__ __forceinline__ void load(int j, int item) {
        load_at(j, data[(uint32_t)item % sizes::PLACES] + lane * F::lane, item < own ? own_panel : panel, item < count);
    }
    /* Loads the first round of the shared expert's items, which need no routing, if there are as many. */
    __device__ __forceinline__ void begin_own(int tile) {
        const char *at = p.shared_down.data + (size_t)(PANELS * tile) * (uint32_t)own_panel + warp * F::panel + lane * F::lane;
#pragma unroll
        for (int j = 0; j < ROUND; j++) load_at(j, at + j * (GPU_WARPS * F::panel), own_panel, j < own);
    }
    /* Lists the items, lane i item i, and loads what of the first round is routed experts'; chosen_at: where the lane's is. Returns the scale
       of the lane's item. */
    __device__ __forceinline__ float begin(int64_t chosen_at, int tile) {
        int k_block;
        const int entry = entry_of(min(lane, count - 1), &k_block);
        const int64_t routed_at = __shfl_sync(~0u, chosen_at, max(entry, 0)), shift = entry < 0 ? 0 : routed_at;
        const gpu_matrix &w = entry < 0 ? p.shared_down : p.down;
        data[lane] = w.data + shift + (size_t)(PANELS * tile) * (uint32_t)(entry < 0 ? own_panel : panel) + k_block * F::panel;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < ROUND; j++) load_at(j, data[j] + lane * F::lane, panel, j >= own && j < count);
        const float *scale = (const float *)((const char *)w.scale + shift) + (tile * sizes::ROWS >> w.row_shift) * w.scale_cols;
        return F::scaled ? ld_volatile(scale + (k_block >> w.k_block_shift)) : 1;
    }
    /* Stages h of the items from `first` to before `end`, N eights of columns a lane; gate: of the shared expert. */
    template <int N> __device__ __forceinline__ void stage(const activation_fragments &act, int first, int end, float gate) const {
        float v[N][8];
#pragma unroll
        for (int n = 0; n < N; n++) {
            int k_block;
            const int entry = entry_of(min(first + (n * 32 + lane) / LANES, end - 1), &k_block);
            const float *h = p.h + (entry + 1) * (STEP_ROWS * p.h_row) + (k_block * LANES + lane % LANES) * 8;
            gpu_load4(v[n], h, true);
            gpu_load4(v[n] + 4, h + 4, true);
        }
#pragma unroll
        for (int n = 0; n < N; n++)
            gpu_stage_h<F>(act, first * LANES + n * 32 + lane, v[n], gate, first + (n * 32 + lane) / LANES < end);
        __syncwarp();
    }
    /* Products of a round's items, [term][ROWS] of each, take the place of their fragments. */
    __device__ __forceinline__ void multiply(const activation_fragments &act, int from) {
        const float one[2] = {1, 1};
        const uint4 *fragments = gpu_lane_fragments<F, 1>(act);
#pragma unroll
        for (int j = 0; j < ROUND; j++) {
            const int item = min(from + j, count - 1);
            float sum[4] = {0, 0, 0, 0}, third[4] = {0, 0, 0, 0};
            float *to = (float *)(act.x + item * pairs * 8) + lane % 4 / 2 * sizes::ROWS + lane / 4;
            uint4 x[pairs];
#pragma unroll
            for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(item * pairs + pair) * 8];
            gpu_multiply<F, 1>(sum, raw[j], x, 0, 0, 0, true, one);
            gpu_multiply<F, 1, 1>(third, raw[j] + 2, x, 0, 0, 0, true, one);
            load(j, from + ROUND + j);
            __syncwarp();                                   /* the fragments have been read */
            if (lane % 2 || from + j >= count) continue;
            to[0] = sum[0];
            to[PANEL_ROWS] = sum[2];
            to[2 * PANEL_ROWS] = third[0];
        }
    }
};

/* sum[term] += what is warp w's in gpu_experts_down of `experts` experts of k_blocks each, whose items begin at number `from`, for a row of the tile. */
template <class F>
__device__ __forceinline__ void gpu_own_sum(const moe_gpu &p, const char *memory, int w, int row, int experts, int k_blocks, int from, float *sum) {
    typedef down_own_sizes<F> sizes;
    const int bytes = gpu_own_bytes<F>(p), factors = gpu_own_share(p) * sizes::FRAGMENTS;
    int count, first = gpu_share(k_blocks, w, GPU_WARPS, &count);
#pragma unroll 4
    for (int i = 0, entry = 0, k = 0; i < experts * count; i++) {
        const uint32_t number = from + entry * k_blocks + first + k, item = number / GPU_WARPS;
        const char *of = memory + number % GPU_WARPS * bytes;
        const float factor = ((const float *)(of + factors))[item], *product = (const float *)(of + item * sizes::FRAGMENTS) + row;
        sum[0] = fmaf(factor, product[0], sum[0]);
        sum[1] = fmaf(factor, product[sizes::ROWS], sum[1]);
        k = k + 1 < count ? k + 1 : 0;
        entry += k == 0;
    }
}

/* Grid: one block per 24 output rows. Each warp has items of routed experts. */
template <class F> __global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_own(const __grid_constant__ moe_gpu p) {
    typedef down_own_sizes<F> sizes;
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[sizes::ROWS][GPU_WARPS];
    __shared__ const char *data[GPU_WARPS][sizes::PLACES];
    const int64_t chosen_at = (int)(threadIdx.x % 32) < p.shape.top_k ? gpu_listed_at(p, threadIdx.x % 32) : 0;
    gpu_down_own_warp<F> warp(p, data);
    const int lane = warp.lane, tile = (int)blockIdx.x, row = tile * sizes::ROWS + threadIdx.x, early = warp.own / sizes::ROUND * sizes::ROUND;
    const bool stores = threadIdx.x < sizes::ROWS && row < p.shape.hidden;
    float sum[2] = {0, 0};
    warp.begin_own(tile);
    const float gate = gpu_shared_weight(p, 0), before = stores ? epilogue_before<false>(p.end, p.down, row, p.to + row) : 0;
    const float scale = warp.begin(chosen_at, tile);
    const activation_fragments act = activation_fragments_at<F, 1>((char *)dynamic + warp.warp * gpu_own_bytes<F>(p), gpu_own_share(p));
    warp.template stage<sizes::OWN_PARTS>(act, 0, warp.own, gate);
#pragma unroll 1
    for (int from = 0; from < early; from += sizes::ROUND) warp.multiply(act, from);
    pdl_wait();
    pdl_launch_dependents();                                /* so that what starts early does not hold up experts_up's end */
    warp.template stage<sizes::PARTS>(act, warp.own, warp.count, 1);
#pragma unroll 1
    for (int from = early; from < warp.count; from += sizes::ROUND) warp.multiply(act, from);
    l2_prefetch_share(p.link.prefetch);                     /* the block's weights have arrived */
    if (lane < warp.count) act.act_scale[lane] = scale * (act.act_scale[lane] * gpu_post_scale<F>());
    __syncthreads();
    gpu_own_sum<F>(p, (const char *)dynamic, warp.warp, min(lane, sizes::ROWS - 1), 1, p.shared_down.k_blocks, 0, sum);
    gpu_own_sum<F>(p, (const char *)dynamic, warp.warp, min(lane, sizes::ROWS - 1), p.shape.top_k, p.down.k_blocks, p.shared_down.k_blocks, sum);
    if (lane < sizes::ROWS) parts[lane][warp.warp] = sum[0] + sum[1];
    __syncthreads();
    if (stores) epilogue_output(p.end, &p.to[row], row, sum_warp_partials(parts[threadIdx.x]), 1, before, p.link.publish);
}
