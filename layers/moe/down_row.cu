/* layers/moe/down_row.cu: experts_down for one token row and the shapes that down_fixed.cu has no kernel of, if no warp has too many
   items. Of the formats of gpu_has_lone; the shared expert, if there is one, has the format and size of the routed ones.

   Touches, and may read early, the same as gpu_experts_down, and gives the same sums in the same order. */

/* An item is one k block of one active expert, in their order; a warp has the same k blocks of each, and not all warps have as many.
   A lane has PARTS eights of columns of h, so all lanes have those of all items. ROUND items are in flight, PRELOAD of them before
   the wait.

   Performance (an H100, NVFP4): with four items in flight the kernel takes less time than with six, although a warp has 11 or 16: it
   is smaller. 35B's nine items take 4.6 us here, and 3.8 in gpu_experts_down_row. */
template <class F, int PARTS, int ROUND> struct down_lone_sizes {
    enum {
        LANES = F::per_load / 2,                            /* eights of columns of an item */
        ITEMS = PARTS * 32 / LANES < 30 ? PARTS * 32 / LANES : 30,      /* most of a warp; a lane has the factor of one */
        PRELOAD = ROUND < 5 ? ROUND : 5,
        ITEM_BYTES = gpu_step_pairs<F>() * 128 + (int)sizeof(float)     /* of the activation fragments of one row */
    };
};

/* Items of the warp that has most, and those of no item up to the end of a round; bytes of the fragments of each warp. */
template <int ROUND> __host__ __device__ __forceinline__ int gpu_lone_items(const moe_gpu &p) {
    return (p.shape.top_k + (p.shape.shared_size > 0)) * ((p.down.k_blocks + GPU_WARPS - 1) / GPU_WARPS) + ROUND - 1;
}

template <class F, int PARTS, int ROUND> __host__ __device__ __forceinline__ int gpu_lone_bytes(const moe_gpu &p) {
    return (gpu_lone_items<ROUND>(p) * down_lone_sizes<F, PARTS, ROUND>::ITEM_BYTES + 15) / 16 * 16;
}

/* Grid: one block per 16 output rows. From the wait on nothing but loads depends on a branch until the first product, as in
   gpu_experts_down_row; before it the routing comes first. What is after a warp's last item is not loaded, and its factor is 0.
   `warp` says which k blocks: where every other warp has one more (768 columns), of a scheduler's warps, w and w + 4, only one does. */
template <class F, int PARTS, int ROUND>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_lone(const __grid_constant__ moe_gpu p) {
    typedef down_lone_sizes<F, PARTS, ROUND> sizes;
    enum { pairs = gpu_step_pairs<F>(), LANES = sizes::LANES, PRELOAD = sizes::PRELOAD };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][STEP_ROWS][GPU_WARPS];
    __shared__ const char *data[GPU_WARPS][32 + 2 * ROUND]; /* of a warp's items: this lane's weights are lane * F::lane on */
    const int lane = threadIdx.x % 32, warp = (int)threadIdx.x / 32 ^ (int)threadIdx.x / 128, tile = (int)blockIdx.x;
    const int shared = p.shape.shared_size > 0;
    const int64_t chosen_at = lane < p.shape.top_k ? gpu_listed_at(p, lane) : 0;
    int warp_k_blocks;
    const int first = gpu_share(p.down.k_blocks, warp, GPU_WARPS, &warp_k_blocks), row = tile * TILE_ROWS + threadIdx.x;
    const int count = (p.shape.top_k + shared) * warp_k_blocks, panel = p.down.k_blocks * F::panel;     /* items; bytes of a row panel */
    const size_t before = (size_t)(2 * tile) * (uint32_t)panel;         /* bytes of a matrix before this tile */
    const bool stores = threadIdx.x < TILE_ROWS && row < p.shape.hidden;
    float v[PARTS][8], sum[4] = {0, 0, 0, 0}, factor = 1;
    typename F::raw raw[ROUND][2] = {};
    auto load_at = [&](int j, const char *at, bool there) {
        F::load(&raw[j][0], at, 0, there);
        F::load(&raw[j][1], at + panel, 0, there);
    };
    auto load = [&](int j, int item) { load_at(j, data[warp][item] + lane * F::lane, item < count); };
    load_at(0, p.shared_down.data + before + first * F::panel + lane * F::lane, shared && count);
    const float gate = shared ? gpu_sigmoid(__ldcg(p.shared_gate)) : 1, residual = stores ? __ldcg(p.x + row) : 0;
    const float per_entry = __fdividef(1, (float)max(warp_k_blocks, 1));
    auto entry_of = [&](int item) { return (int)(((float)item + 0.5f) * per_entry); };
    /* lane i: item i */
    const int own = min(lane, max(count - 1, 0)), entry = entry_of(own), k_block = first + own - entry * warp_k_blocks;
    const int64_t routed_at = __shfl_sync(~0u, chosen_at, max(entry - shared, 0)), shift = entry < shared ? 0 : routed_at;
    const gpu_matrix &w = entry < shared ? p.shared_down : p.down;
    data[warp][lane] = w.data + shift + before + k_block * F::panel;
    __syncwarp();
    if (!shared) load(0, 0);
#pragma unroll
    for (int j = 1; j < PRELOAD; j++) load(j, j);
    if (F::scaled)
        factor = ld_volatile((const float *)((const char *)w.scale + shift) + (tile * TILE_ROWS >> w.row_shift) * w.scale_cols +
                             (k_block >> w.k_block_shift));
    const activation_fragments act =
        activation_fragments_at<F, 1>((char *)dynamic + warp * gpu_lone_bytes<F, PARTS, ROUND>(p), gpu_lone_items<ROUND>(p));
    const uint4 *fragments = gpu_lane_fragments<F, 1>(act);
#pragma unroll
    for (int n = 0; n < ((ROUND - 1) * pairs * 8 + 31) / 32; n++)       /* of no item: what is there could be no number */
        if (n * 32 + lane < (ROUND - 1) * pairs * 8) act.x[count * pairs * 8 + n * 32 + lane] = make_uint4(0, 0, 0, 0);
    const float *h[PARTS];
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        const int item = min((n * 32 + lane) / LANES, max(count - 1, 0)), at = entry_of(item);
        h[n] = p.h + (at + 1 - shared) * (STEP_ROWS * p.h_row) + ((first + item - at * warp_k_blocks) * LANES + lane % LANES) * 8;
    }
    pdl_wait();
    pdl_launch_dependents();                                /* so that what starts early does not hold up experts_up's end */
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
        gpu_stage_h<F>(act, n * 32 + lane, v[n], n == 0 && lane / LANES < warp_k_blocks ? gate : 1, (n * 32 + lane) / LANES < count);
    __syncwarp();
    factor = F::half && lane < count ? factor * (act.act_scale[lane] * gpu_post_scale<F>()) : 0;
#pragma unroll 1
    for (int from = 0; from < count; from += ROUND, fragments += ROUND * pairs * 8) {
#pragma unroll
        for (int j = 0; j < ROUND; j++) {
            uint4 x[pairs];
#pragma unroll
            for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(j * pairs + pair) * 8];
            gpu_multiply<F, 1>(sum, raw[j], x, factor, from + j, 0, from + j < count);
            load(j, from + ROUND + j);
        }
    }
    store_partial_of<1>(parts, sum, warp);
    __syncthreads();
    if (stores) store_tagged(&p.x[row], residual + sum_warp_partials(parts[threadIdx.x][0]), p.link.publish);
}

/* Whether it takes these sizes: all items of an expert are in a warp's first part, where the shared expert's gate is applied. */
template <class F, int PARTS, int ROUND> static bool gpu_lone_takes(const moe_gpu *p) {
    const int most = (p->down.k_blocks + GPU_WARPS - 1) / GPU_WARPS, items = (p->shape.top_k + (p->shape.shared_size > 0)) * most;
    return items <= (int)down_lone_sizes<F, PARTS, ROUND>::ITEMS && most * (int)down_lone_sizes<F, PARTS, ROUND>::LANES <= 32 &&
           (!gpu_scales_by_block<F>() || 1 << p->down.row_shift >= TILE_ROWS);
}

/* The kernel, if there is one. It has whole tiles only. */
static gpu_down_kernel gpu_lone_down(const moe_gpu *p) {
    enum { PARTS = 4, ROUND = 4 };
    gpu_down_kernel lone = {};
    if (p->T > 1 || p->down.panels % 2) return lone;
    if (p->shape.shared_size && (p->down.format != p->shared_down.format || p->down.cols != p->shared_down.cols)) return lone;
    with_format(p->down.format, [&](auto format) {
        typedef decltype(format) F;
        if constexpr (gpu_has_lone<F>()) {
            if (!gpu_lone_takes<F, PARTS, ROUND>(p)) return;
            lone.kernel = gpu_experts_down_lone<F, PARTS, ROUND>;
            lone.shared = (size_t)(GPU_WARPS * gpu_lone_bytes<F, PARTS, ROUND>(*p));
            lone.panels = 2;
        }
    });
    return lone;
}
