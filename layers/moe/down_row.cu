/* layers/moe/down_row.cu: experts_down for one token row and any number of experts, those that are not a shape of cuda/tiles.cu: of some
   formats, the shared expert, if there is one, of the same format and size as the routed ones.

   Touches, and may read early, the same as gpu_experts_down, and gives the same sums in the same order. */

/* An item is one k block of one active expert, in their order; a warp has some of each, not all warps as many. EXPERT: their most k blocks.
   A lane has eight columns of h at a time, PARTS times, of all items. ROUND items are in flight, PRELOAD of them before the wait. */
template <class F, int PARTS> struct down_lone_sizes {
    enum {
        LANES = F::per_load / 2,                            /* eights of columns of an item */
        ITEMS = PARTS * 32 / LANES < 30 ? PARTS * 32 / LANES : 30,      /* most of a warp; a lane has the factor of one */
        ROUND = 6, PRELOAD = 5,
        ITEM_BYTES = gpu_step_pairs<F>() * 128 + (int)sizeof(float)     /* of the activation fragments of one row */
    };
};

/* Items of the warp that has most, and bytes of the fragments of each warp. */
__host__ __device__ __forceinline__ int gpu_lone_items(const moe_gpu &p) {
    return (p.shape.top_k + (p.shape.shared_size > 0)) * ((p.down.k_blocks + GPU_WARPS - 1) / GPU_WARPS);
}

template <class F, int PARTS> __host__ __device__ __forceinline__ int gpu_lone_bytes(const moe_gpu &p) {
    return (gpu_lone_items(p) * down_lone_sizes<F, PARTS>::ITEM_BYTES + 15) / 16 * 16;
}

/* The items of a warp: item i is lane i's. */
struct gpu_lone_items_of {
    int shared, count, first, warp_k_blocks;                /* active experts that are shared; items; as in gpu_down_items */
    uint32_t per_warp_k_blocks;
    __device__ __forceinline__ int entry(int item) const {
        return warp_k_blocks == 1 ? item : (int)__umulhi((uint32_t)item, per_warp_k_blocks);
    }
    __device__ __forceinline__ int k_block(int item) const { return first + item - entry(item) * warp_k_blocks; }
};

__device__ __forceinline__ gpu_lone_items_of gpu_items_of_warp(const moe_gpu &p, int warp) {
    gpu_lone_items_of items;
    items.shared = p.shape.shared_size > 0;
    items.first = gpu_share(p.down.k_blocks, warp, GPU_WARPS, &items.warp_k_blocks);
    items.per_warp_k_blocks = items.warp_k_blocks ? reciprocal_of(items.warp_k_blocks) : 0;
    items.count = (p.shape.top_k + items.shared) * items.warp_k_blocks;
    return items;
}

/* Grid: one block per 16 output rows. From the wait to the first product there is neither a loop nor a branch, as in
   gpu_experts_down_row. What is after a warp's last item is not loaded; its factor is 0. */
template <class F, int PARTS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_lone(const __grid_constant__ moe_gpu p) {
    typedef down_lone_sizes<F, PARTS> sizes;
    enum { pairs = gpu_step_pairs<F>(), LANES = sizes::LANES, ROUND = sizes::ROUND, PRELOAD = sizes::PRELOAD };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][MOTE_ROWS_MAX][GPU_WARPS];
    __shared__ const char *data[GPU_WARPS][32 + 2 * ROUND]; /* of a warp's items */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = (int)blockIdx.x, row = tile * TILE_ROWS + threadIdx.x;
    const int panel = p.down.k_blocks * F::panel;           /* bytes from a tile's first row panel to its second */
    const gpu_lone_items_of items = gpu_items_of_warp(p, warp);
    const activation_fragments act =
        activation_fragments_at<F, 1>((char *)dynamic + warp * gpu_lone_bytes<F, PARTS>(p), gpu_lone_items(p));
    const bool stores = threadIdx.x < TILE_ROWS && row < p.shape.hidden;
    float v[PARTS][8], sum[4] = {0, 0, 0, 0};
    typename F::raw raw[ROUND][2] = {};
    pdl_launch_dependents();
    auto load_at = [&](int j, const char *at, bool there) {
        F::load(&raw[j][0], at, 0, there);
        F::load(&raw[j][1], at + panel, 0, there);
    };
    auto load = [&](int j, int item) { load_at(j, data[warp][item] + lane * F::lane, item < items.count); };
    /* lane i: item i */
    const int own = min(lane, max(items.count - 1, 0)), entry = items.entry(own);
    const bool is_shared = entry < items.shared;
    const int64_t shift = is_shared ? 0 : __ldcg(&p.routing->expert[entry - items.shared]) * p.stride;
    const size_t before = (size_t)(2 * tile) * (uint32_t)panel;         /* bytes of a matrix before this tile */
    const gpu_matrix &w = is_shared ? p.shared_down : p.down;
    load_at(0, p.shared_down.data + before + items.first * F::panel + lane * F::lane, items.shared && items.count);
    const float gate = items.shared ? gpu_sigmoid(__ldcg(p.shared_gate)) : 1;
    const float residual = stores ? __ldcg(p.x + row) : 0;
    data[warp][lane] = w.data + shift + before + items.k_block(own) * F::panel;
    __syncwarp();
    if (!items.shared) load(0, 0);
#pragma unroll
    for (int j = 1; j < PRELOAD; j++) load(j, j);
    float factor = 1;
    if (F::scaled)
        factor = ld_volatile((const float *)((const char *)w.scale + shift) + (tile * TILE_ROWS >> w.row_shift) * w.scale_cols +
                             (items.k_block(own) >> w.k_block_shift));
    const float *h[PARTS];
    bool there[PARTS];
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        const int item = (n * 32 + lane) / LANES, of = min(item, max(items.count - 1, 0));
        there[n] = item < items.count;
        h[n] = p.h + (items.entry(of) + 1 - items.shared) * (MOTE_ROWS_MAX * p.h_row) + (items.k_block(of) * LANES + lane % LANES) * 8;
    }
    pdl_wait();
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        gpu_load4(v[n], h[n], true);
        gpu_load4(v[n] + 4, h[n] + 4, true);
    }
    __syncwarp();                                           /* so that the compiler leaves the weights after h */
#pragma unroll
    for (int j = PRELOAD; j < ROUND; j++) load(j, j);
#pragma unroll
    for (int n = 0; n < PARTS; n++)
        gpu_stage_h<F>(act, n * 32 + lane, v[n], n == 0 && lane / LANES < items.warp_k_blocks ? gate : 1, there[n]);
    __syncwarp();
    factor = F::half && lane < items.count ? factor * (act.act_scale[lane] * gpu_post_scale<F>()) : 0;
#pragma unroll 1
    for (int from = 0; from < items.count; from += ROUND) {
#pragma unroll
        for (int j = 0; j < ROUND; j++) {
            uint4 x[pairs];
            const uint4 *fragments = gpu_lane_fragments<F, 1>(act) + min(from + j, items.count - 1) * pairs * 8;
#pragma unroll
            for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[pair * 8];
            gpu_multiply<F, 1>(sum, raw[j], x, factor, from + j, 0, from + j < items.count);
            load(j, from + ROUND + j);
        }
    }
    store_warp_partial<1>(parts, sum);
    __syncthreads();
    if (stores) store_tagged(&p.x[row], residual + sum_warp_partials(parts[threadIdx.x][0]), p.link.publish);
}

/* Whether it takes these sizes: all of an expert's first items are in a warp's first part, where the shared expert's gate is applied. */
template <class F, int PARTS> static bool gpu_lone_takes(const moe_gpu *p) {
    typedef down_lone_sizes<F, PARTS> sizes;
    return gpu_lone_items(*p) <= (int)sizes::ITEMS && (p->down.k_blocks + GPU_WARPS - 1) / GPU_WARPS * sizes::LANES <= 32 &&
           (!gpu_scales_by_block<F>() || 1 << p->down.row_shift >= TILE_ROWS) &&
           GPU_WARPS * gpu_lone_bytes<F, PARTS>(*p) + 8192 <= GPU_SHARED;
}

/* The kernel and its bytes of dynamic shared memory; NULL: there is none. It has whole tiles only. */
static gpu_moe_kernel gpu_lone_down(const moe_gpu *p, size_t *shared) {
    enum { PARTS = 4 };
    gpu_moe_kernel kernel = NULL;
    if (p->T > 1 || p->down.panels % 2) return NULL;
    if (p->shape.shared_size && (p->down.format != p->shared_down.format || p->down.cols != p->shared_down.cols)) return NULL;
    with_format(p->down.format, [&](auto format) {
        typedef decltype(format) F;
        if constexpr (gpu_has_lone<F>()) {
            if (!gpu_lone_takes<F, PARTS>(p)) return;
            *shared = (size_t)(GPU_WARPS * gpu_lone_bytes<F, PARTS>(*p));
            kernel = gpu_experts_down_lone<F, PARTS>;
        }
    });
    return kernel;
}
