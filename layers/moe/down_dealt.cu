/* layers/moe/down_dealt.cu: experts_down for one token row and shapes that gpu_experts_down_lone is not for, because the k blocks of a row do not
   divide evenly: of Flash-Next's ten, two warps of eight have two, 22 items of 11 active experts, where the other six have 11. Without biases; the
   shared expert, if there is one, has the format and size of the routed ones.

   Touches, and may read early, the same as gpu_experts_down, and gives the same sums in the same order. An item is one k block of one active
   expert. Items are dealt to warps one by one, 14 each, and a warp stores the products of an item where the item's activation fragments were, high
   and low terms apart. When all are there, a thread of each output row, term and warp adds up those that are the warp's in gpu_experts_down,
   in its order, each times its factor.

   Why it is fast: a block takes as long as its longest warp, and unpacking four bits takes longer than the bytes do. From the wait on nothing but
   loads depends on a branch until the first product, as in gpu_experts_down_row. A block has two row panels, or three where
   an SM then has fewer: of Flash-Next's 320 on 132 SMs three in place of four. */

/* Items of a warp are a whole number of rounds; ROUND are in flight, PRELOAD of them before the wait. */
template <class F, int PANELS> struct down_dealt_sizes {
    enum {
        ROWS = PANELS * PANEL_ROWS,                         /* of a block's tile */
        LANES = F::per_load / 2,                            /* eights of columns of an item */
        PARTS = 4,                                          /* of a lane */
        ITEMS = PARTS * 32 / LANES, ROUND = PANELS == 3 ? 5 : 7, PRELOAD = 5,
        PLACES = 32                                         /* of items and what is asked for after the last one */
    };
    static_assert((ITEMS + ROUND - 1) / ROUND * ROUND + ROUND <= PLACES && ROWS * 2 * 4 <= gpu_step_pairs<F>() * 128, "there is space");
};

/* Items of a layer, and those of the warps that have most. */
static __host__ __device__ __forceinline__ int gpu_dealt_items(const moe_gpu &p) {
    return (p.shape.top_k + (p.shape.shared_size > 0)) * p.down.k_blocks;
}

static __host__ __device__ __forceinline__ int gpu_dealt_share(const moe_gpu &p) {
    return (gpu_dealt_items(p) + GPU_WARPS - 1) / GPU_WARPS;
}

/* Bytes of a warp's fragments. */
template <class F> __host__ __device__ __forceinline__ int gpu_dealt_bytes(const moe_gpu &p) {
    return (gpu_dealt_share(p) * (gpu_step_pairs<F>() * 128 + (int)sizeof(float)) + 15) / 16 * 16;
}

/* What a warp has: items number warp, warp + GPU_WARPS, ..., by active expert and k block. */
template <class F, int PANELS> struct gpu_down_dealt_warp {
    typedef down_dealt_sizes<F, PANELS> sizes;
    enum { LANES = sizes::LANES, ROUND = sizes::ROUND, pairs = gpu_step_pairs<F>() };
    const moe_gpu &p;
    const char **data;           /* of its items, in shared memory: this lane's weights are lane * F::lane on */
    const int lane, warp, shared;                           /* shared: the first active expert is the shared one */
    int count, panel, last;      /* panel: bytes of a row panel; last: to the tile's last one that is there */
    float per_k_block;
    typename F::raw raw[ROUND][PANELS];

    __device__ __forceinline__ gpu_down_dealt_warp(const moe_gpu &p, const char *(*all)[sizes::PLACES])
        : p(p), data(all[threadIdx.x / 32]), lane(threadIdx.x % 32), warp(threadIdx.x / 32), shared(p.shape.shared_size > 0), raw{} {
        count = max(gpu_dealt_items(p) - warp + GPU_WARPS - 1, 0) / GPU_WARPS;
        panel = p.down.k_blocks * F::panel;
        last = min(PANELS, p.down.panels - PANELS * (int)blockIdx.x) * panel - panel;
        per_k_block = __fdividef(1, (float)p.down.k_blocks);
    }
    __device__ __forceinline__ int number_of(int item) const { return warp + GPU_WARPS * item; }
    __device__ __forceinline__ int entry_of(int item) const { return (int)(((float)number_of(item) + 0.5f) * per_k_block); }
    __device__ __forceinline__ void load_at(int j, const char *at, bool there) {
        F::load(&raw[j][0], at, 0, there);
        if (PANELS == 3) F::load(&raw[j][1], at + min(panel, last), 0, there);
        F::load(&raw[j][PANELS - 1], at + last, 0, there);
    }
    __device__ __forceinline__ void load(int j, int item) { load_at(j, data[item] + lane * F::lane, item < count); }
    /* Whether the first item is the shared expert's, which needs no routing. */
    __device__ __forceinline__ bool is_shared_first() const { return shared && warp < p.down.k_blocks; }
    /* Lists the items, lane i item i, and loads the first PRELOAD but the shared expert's first; chosen_at: where the lane's routed expert is.
       Returns the scale of the lane's item. */
    __device__ __forceinline__ float begin(int64_t chosen_at, int tile, size_t skipped) {
        const int own = min(lane, max(count - 1, 0)), entry = entry_of(own), k_block = number_of(own) - entry * p.down.k_blocks;
        const int64_t routed_at = __shfl_sync(~0u, chosen_at, max(entry - shared, 0)), shift = entry < shared ? 0 : routed_at;
        const gpu_matrix &w = entry < shared ? p.shared_down : p.down;
        data[lane] = w.data + shift + skipped + k_block * F::panel;
        __syncwarp();
        if (!is_shared_first()) load(0, 0);
#pragma unroll
        for (int j = 1; j < sizes::PRELOAD; j++) load(j, j);
        const float *scale = (const float *)((const char *)w.scale + shift) + (tile * sizes::ROWS >> w.row_shift) * w.scale_cols;
        return F::scaled ? ld_volatile(scale + (k_block >> w.k_block_shift)) : 1;
    }
    /* The item whose h the lane has as its part n, and where its eight columns are. */
    __device__ __forceinline__ int item_of_part(int n) const { return min((n * 32 + lane) / LANES, max(count - 1, 0)); }
    __device__ __forceinline__ const float *h_of_part(int n) const {
        const int item = item_of_part(n), entry = entry_of(item), k_block = number_of(item) - entry * p.down.k_blocks;
        return p.h + (entry + 1 - shared) * (STEP_ROWS * p.h_row) + (k_block * LANES + lane % LANES) * 8;
    }
    /* Products of all items take the place of their fragments: [item][term][ROWS], an item as long as its fragments are. */
    __device__ __forceinline__ void multiply(const activation_fragments &act) {
        const float one[2] = {1, 1};
        const uint4 *fragments = gpu_lane_fragments<F, 1>(act);
#pragma unroll 1
        for (int from = 0; from < count; from += ROUND)
#pragma unroll
            for (int j = 0; j < ROUND; j++) {
                const int item = min(from + j, count - 1);
                float sum[4] = {0, 0, 0, 0}, third[4] = {0, 0, 0, 0};
                float *to = (float *)(act.x + item * pairs * 8) + lane % 4 / 2 * sizes::ROWS + lane / 4;
                uint4 x[pairs];
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(item * pairs + pair) * 8];
                gpu_multiply<F, 1>(sum, raw[j], x, 0, 0, 0, true, one);
                if constexpr (PANELS == 3) gpu_multiply<F, 1, 1>(third, raw[j] + 2, x, 0, 0, 0, true, one);
                load(j, from + ROUND + j);
                __syncwarp();                               /* the fragments have been read */
                if (lane % 2 || from + j >= count) continue;
                to[0] = sum[0];
                to[PANEL_ROWS] = sum[2];
                if (PANELS == 3) to[2 * PANEL_ROWS] = third[0];
            }
    }
};

/* The sum of what is warp w's in gpu_experts_down, of output row number `row` of ROWS. */
template <class F, int ROWS>
__device__ __forceinline__ float gpu_dealt_sum(const moe_gpu &p, const char *memory, int w, int row, int experts) {
    enum { ITEM = gpu_step_pairs<F>() * 128 };
    const int k_blocks = p.down.k_blocks, bytes = gpu_dealt_bytes<F>(p), scales = gpu_dealt_share(p) * ITEM;
    int count, first = gpu_share(k_blocks, w, GPU_WARPS, &count);
    float sum[2] = {0, 0};       /* of high and of low terms */
#pragma unroll 4
    for (int i = 0, entry = 0, k = 0; i < experts * count; i++) {
        const int number = entry * k_blocks + first + k, item = number / GPU_WARPS;
        const char *of = memory + number % GPU_WARPS * bytes;
        const float factor = ((const float *)(of + scales))[item], *product = (const float *)(of + item * ITEM) + row;
        sum[0] = fmaf(factor, product[0], sum[0]);
        sum[1] = fmaf(factor, product[ROWS], sum[1]);
        k = k + 1 < count ? k + 1 : 0;
        entry += k == 0;
    }
    return sum[0] + sum[1];
}

/* Grid: one block per ROWS output rows. */
template <class F, int PANELS> __global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_dealt(const __grid_constant__ moe_gpu p) {
    typedef down_dealt_sizes<F, PANELS> sizes;
    enum { ROWS = sizes::ROWS, LANES = sizes::LANES, PARTS = sizes::PARTS };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[ROWS][GPU_WARPS];
    __shared__ const char *data[GPU_WARPS][sizes::PLACES];
    const int64_t chosen_at = (int)(threadIdx.x % 32) < p.shape.top_k ? gpu_listed_at(p, threadIdx.x % 32) : 0;
    gpu_down_dealt_warp<F, PANELS> warp(p, data);
    const int lane = warp.lane, tile = (int)blockIdx.x, row = tile * ROWS + threadIdx.x, count = warp.count;
    const size_t skipped = (size_t)(PANELS * tile) * (uint32_t)warp.panel;          /* bytes of a matrix before this tile */
    const bool stores = threadIdx.x < ROWS && row < p.shape.hidden;
    float v[PARTS][8];
    const float *h[PARTS];
    warp.load_at(0, p.shared_down.data + skipped + warp.warp * F::panel + lane * F::lane, warp.is_shared_first());
    const float gate = warp.shared ? gpu_shared_weight(p, 0) : 1;
    const float before = stores ? epilogue_before<false>(p.end, p.down, row, p.to + row) : 0;
    const float scale = warp.begin(chosen_at, tile, skipped);
    const activation_fragments act = activation_fragments_at<F, 1>((char *)dynamic + warp.warp * gpu_dealt_bytes<F>(p), gpu_dealt_share(p));
#pragma unroll
    for (int n = 0; n < PARTS; n++) h[n] = warp.h_of_part(n);
    pdl_wait();
    pdl_launch_dependents();                                /* so that what starts early does not hold up experts_up's end */
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        gpu_load4(v[n], h[n], true);
        gpu_load4(v[n] + 4, h[n] + 4, true);
    }
    __syncwarp();                                           /* so that the compiler leaves the weights after h */
#pragma unroll
    for (int j = sizes::PRELOAD; j < sizes::ROUND; j++) warp.load(j, j);
#pragma unroll
    for (int n = 0; n < PARTS; n++)
        gpu_stage_h<F>(act, n * 32 + lane, v[n], warp.entry_of(warp.item_of_part(n)) < warp.shared ? gate : 1, (n * 32 + lane) / LANES < count);
    __syncwarp();
    if (lane < count) act.act_scale[lane] = scale * (act.act_scale[lane] * gpu_post_scale<F>());
    warp.multiply(act);
    __syncthreads();
    const float sum = gpu_dealt_sum<F, ROWS>(p, (const char *)dynamic, warp.warp, min(lane, ROWS - 1), p.shape.top_k + warp.shared);
    if (lane < ROWS) parts[lane][warp.warp] = sum;
    __syncthreads();
    if (stores) epilogue_output(p.end, &p.to[row], row, sum_warp_partials(parts[threadIdx.x]), 1, before, p.link.publish);
}
