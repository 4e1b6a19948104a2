/* layers/moe/down_row.cu: experts_down for one token row and the shapes that down_fixed.cu has no kernel of, if no warp has too many
   items. Of the formats of gpu_has_lone; the shared expert, if there is one, has the format and size of the routed ones. Or, APART, its output
   is apart, and it has the format alone: then it has blocks of its own, after those of the routed experts. These need nothing of experts_up: h is
   norm_router's, and who read what they store was complete before experts_up released this kernel. So they do not wait, and are done while
   others do.

   Touches, and may read early, the same as gpu_experts_down, and gives the same sums in the same order. With biases (ANY) it reads the row's
   choice early, too, which gpu_experts_up_lone stores in time. */

/* An item is one k block of one active expert, in their order; a warp has the same k blocks of each, and not all warps have as many.
   A lane has PARTS eights of columns of h, so all lanes have those of all items. ROUND items are in flight, PRELOAD of them before
   the wait.

   Performance (an H100, NVFP4): with four items in flight the kernel takes less time than with six, although a warp has 11 or 16: it
   is smaller. 35B's nine items take 4.6 us here, and 3.8 in gpu_experts_down_row. gpt-oss has up to 24. */
template <class F, int PARTS, int ROUND> struct down_lone_sizes {
    enum {
        LANES = F::per_load / 2,                            /* eights of columns of an item */
        ITEMS = PARTS * 32 / LANES < 30 ? PARTS * 32 / LANES : 30,      /* most of a warp; a lane has the factor of one */
        PRELOAD = ROUND < 5 ? ROUND : 5,
        ITEM_BYTES = gpu_step_pairs<F>() * 128 + (int)sizeof(float),    /* of the activation fragments of one row */
        BY_ROW = F::by_row && !F::groups,                   /* rows have scales that are not in the panels: see gpu_lone_row_scales */
        ENTRIES = BY_ROW ? (int)ITEMS : 1                   /* most active experts of a block */
    };
};

/* Scales of the tile's rows, [active expert][row], in shared memory: registers are taken. They are where codes are, at[] of the experts. */
template <int ENTRIES> __device__ __forceinline__ void gpu_lone_row_scales(const moe_gpu &p, bool own, int tile, float (*to)[TILE_ROWS]) {
    static_assert(ENTRIES * TILE_ROWS <= GPU_THREADS, "a thread for each");
    const int entry = threadIdx.x / TILE_ROWS, row = threadIdx.x % TILE_ROWS;
    if (entry >= (own ? 1 : p.shape.top_k)) return;
    const char *scale = (const char *)(own ? p.shared_down.scale : p.down.scale) + (own ? 0 : gpu_listed_at(p, entry));
    to[entry][row] = __ldg((const float *)scale + tile * TILE_ROWS + row);
}

/* Items of the warp that has most, and those of no item up to the end of a round; bytes of the fragments of each warp. */
static __host__ __device__ __forceinline__ int gpu_lone_share(const gpu_matrix &w) {
    return (w.k_blocks + GPU_WARPS - 1) / GPU_WARPS;
}

template <int ROUND, bool APART> __host__ __device__ __forceinline__ int gpu_lone_items(const moe_gpu &p) {
    const int routed = p.shape.top_k * gpu_lone_share(p.down), own = p.shape.shared_size ? gpu_lone_share(p.shared_down) : 0;
    return (!APART ? routed + own : routed > own ? routed : own) + ROUND - 1;
}

template <class F, int PARTS, int ROUND, bool APART> __host__ __device__ __forceinline__ int gpu_lone_bytes(const moe_gpu &p) {
    return (gpu_lone_items<ROUND, APART>(p) * down_lone_sizes<F, PARTS, ROUND>::ITEM_BYTES + 15) / 16 * 16;
}

/* What a warp has of the active experts of its block: `count` items from k block `first` of each on, warp_k_blocks of them. `warp` says which k
   blocks: where every other warp has one more (768 columns), of a scheduler's warps, w and w + 4, only one does. */
template <class F, int PARTS, int ROUND, bool APART> struct gpu_down_lone_warp {
    typedef down_lone_sizes<F, PARTS, ROUND> sizes;
    enum { LANES = sizes::LANES, pairs = gpu_step_pairs<F>() };
    const moe_gpu &p;
    const char **data;           /* of its items, in shared memory: this lane's weights are lane * F::lane on */
    const int lane, warp, shared;                           /* shared: the first active expert is the shared one; APART it is the only one */
    int first, warp_k_blocks, count, panel;                 /* panel: bytes of a row panel */
    float per_entry;
    typename F::raw raw[ROUND][2];

    /* own: the block is one of those of the shared expert that is apart. */
    __device__ __forceinline__ gpu_down_lone_warp(const moe_gpu &p, bool own, const char *(*all)[32 + 2 * ROUND])
        : p(p), lane(threadIdx.x % 32), warp((int)threadIdx.x / 32 ^ (int)threadIdx.x / 128), shared(APART ? own : p.shape.shared_size > 0),
          raw{} {
        const int k_blocks = own ? p.shared_down.k_blocks : p.down.k_blocks;
        data = all[warp];
        first = gpu_share(k_blocks, warp, GPU_WARPS, &warp_k_blocks);
        count = ((own ? 0 : p.shape.top_k) + shared) * warp_k_blocks;
        panel = k_blocks * F::panel;
        per_entry = __fdividef(1, (float)max(warp_k_blocks, 1));
    }
    /* Active expert of an item. */
    __device__ __forceinline__ int entry_of(int item) const { return (int)(((float)item + 0.5f) * per_entry); }
    __device__ __forceinline__ void load_at(int j, const char *at, bool there) {
        F::load(&raw[j][0], at, 0, there);
        F::load(&raw[j][1], at + panel, 0, there);
    }
    __device__ __forceinline__ void load(int j, int item) { load_at(j, data[item] + lane * F::lane, item < count); }
    /* Lists the items, lane i item i, and loads the first PRELOAD but the shared expert's first; chosen_at: where the lane's routed expert is.
       Returns the scale of the lane's item. */
    __device__ __forceinline__ float begin(int64_t chosen_at, int tile, size_t skipped) {
        const int own = min(lane, max(count - 1, 0)), entry = entry_of(own), k_block = first + own - entry * warp_k_blocks;
        const int64_t routed_at = __shfl_sync(~0u, chosen_at, max(entry - shared, 0)), shift = entry < shared ? 0 : routed_at;
        const gpu_matrix &w = entry < shared ? p.shared_down : p.down;
        data[lane] = w.data + shift + skipped + k_block * F::panel;
        __syncwarp();
        if (!shared) load(0, 0);
#pragma unroll
        for (int j = 1; j < sizes::PRELOAD; j++) load(j, j);
        const float *scale = (const float *)((const char *)w.scale + shift) + (tile * TILE_ROWS >> w.row_shift) * w.scale_cols;
        return F::scaled ? ld_volatile(scale + (k_block >> w.k_block_shift)) : 1;
    }
    /* Where the lane's PARTS eights of columns of h are. */
    __device__ __forceinline__ void find_h(const float **h) const {
#pragma unroll
        for (int n = 0; n < PARTS; n++) {
            const int item = min((n * 32 + lane) / LANES, max(count - 1, 0)), at = entry_of(item);
            h[n] = p.h + (at + 1 - shared) * (STEP_ROWS * p.h_row) + ((first + item - at * warp_k_blocks) * LANES + lane % LANES) * 8;
        }
    }
    __device__ __forceinline__ void multiply(const uint4 *fragments, float factor, const float (*row_scale)[TILE_ROWS], float *sum) {
#pragma unroll 1
        for (int from = 0; from < count; from += ROUND, fragments += ROUND * pairs * 8) {
#pragma unroll
            for (int j = 0; j < ROUND; j++) {
                uint4 x[pairs];
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(j * pairs + pair) * 8];
                if constexpr (sizes::BY_ROW) {
                    const float *scale = row_scale[entry_of(min(from + j, count - 1))] + lane / 4;
                    raw[j][0].scale = scale[0];
                    raw[j][1].scale = scale[PANEL_ROWS];
                }
                gpu_multiply<F, 1>(sum, raw[j], x, factor, from + j, 0, from + j < count);
                load(j, from + ROUND + j);
            }
        }
    }
};

/* How a format has it: of NVFP4 and FP8 blocks without biases, of MXFP4, which has many items, with them. Of NVFP4 APART, too, of FP8 by row
   only so. */
template <class F> struct gpu_lone_form {
    enum { PARTS = F::groups ? 6 : 4, ROUND = F::groups ? 6 : 4, ANY = F::groups };
    enum { BY_ROW = F::by_row && !F::groups, ALIKE = !BY_ROW, APART = F::whole || BY_ROW };
};

/* The sum of the biases of the row's down projections, as gpu_down_bias adds them: lane r has where the r-th best expert is, and its weight. */
__device__ __forceinline__ float gpu_lone_bias(const moe_gpu &p, int64_t best_at, float weight, int row) {
    float sum = 0;
#pragma unroll 4
    for (int i = 0; p.down.bias && i < p.shape.top_k; i++)
        sum = __fmaf_rn(__shfl_sync(~0u, weight, i), epilogue_bias<true>(p.down, __shfl_sync(~0u, best_at, i), row), sum);
    if (p.shape.shared_size && p.shared_down.bias)
        sum = __fmaf_rn(gpu_shared_weight(p, 0), epilogue_bias<true>(p.shared_down, 0, row), sum);
    return sum;
}

/* Grid: one block per 16 output rows, APART another. From the wait on nothing but loads depends on a branch until the first product, as in
   gpu_experts_down_row; before it the routing comes first. What is after a warp's last item is not loaded, and its factor is 0. */
template <class F, int PARTS, int ROUND, bool ANY, bool APART>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_lone(const __grid_constant__ moe_gpu p) {
    typedef down_lone_sizes<F, PARTS, ROUND> sizes;
    enum { pairs = gpu_step_pairs<F>(), LANES = sizes::LANES };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][STEP_ROWS][GPU_WARPS];
    __shared__ const char *data[GPU_WARPS][32 + 2 * ROUND];
    __shared__ float row_scale[sizes::ENTRIES][TILE_ROWS];
    const bool own = APART && blockIdx.x >= gridDim.x / 2, is = !own && (int)(threadIdx.x % 32) < p.shape.top_k;
    const int64_t chosen_at = is ? gpu_listed_at(p, threadIdx.x % 32) : 0;
    const int best = ANY && is && p.down.bias ? __ldcg(p.batch.choice + threadIdx.x % 32) : 0;
    const float best_weight = ANY && is && p.down.bias ? __ldcg(p.batch.choice_weight + threadIdx.x % 32) : 0;
    gpu_down_lone_warp<F, PARTS, ROUND, APART> warp(p, own, data);
    const int lane = threadIdx.x % 32, tile = (int)(own ? blockIdx.x - gridDim.x / 2 : blockIdx.x), row = tile * TILE_ROWS + threadIdx.x;
    const int count = warp.count;
    const size_t skipped = (size_t)(2 * tile) * (uint32_t)warp.panel;   /* bytes of a matrix before this tile */
    const bool stores = threadIdx.x < TILE_ROWS && row < p.shape.hidden;
    float v[PARTS][8], sum[4] = {0, 0, 0, 0};
    const float *h[PARTS];
    warp.load_at(0, p.shared_down.data + skipped + warp.first * F::panel + lane * F::lane, warp.shared && count);
    const float gate = warp.shared ? gpu_shared_weight(p, 0) : 1;
    float before = stores && !own ? epilogue_before<false>(p.end, p.down, row, p.to + row) : 0;
    const float scale = warp.begin(chosen_at, tile, skipped);
    const int64_t best_at = ANY ? gpu_expert_at(p, best) : 0;
    const activation_fragments act =
        activation_fragments_at<F, 1>((char *)dynamic + warp.warp * gpu_lone_bytes<F, PARTS, ROUND, APART>(p), gpu_lone_items<ROUND, APART>(p));
#pragma unroll
    for (int n = 0; n < ((ROUND - 1) * pairs * 8 + 31) / 32; n++)       /* of no item: what is there could be no number */
        if (n * 32 + lane < (ROUND - 1) * pairs * 8) act.x[count * pairs * 8 + n * 32 + lane] = make_uint4(0, 0, 0, 0);
    if constexpr (sizes::BY_ROW) {
        gpu_lone_row_scales<sizes::ENTRIES>(p, own, tile, row_scale);
        __syncthreads();
    }
    warp.find_h(h);
    if (!own) pdl_wait();
    pdl_launch_dependents();                                /* so that what starts early does not hold up experts_up's end */
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        gpu_load4(v[n], h[n], true);
        gpu_load4(v[n] + 4, h[n] + 4, true);
    }
    __syncwarp();                                           /* so that the compiler leaves the weights after h */
#pragma unroll
    for (int j = sizes::PRELOAD; j < ROUND; j++) warp.load(j, j);
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        const bool gated = APART ? own : n == 0 && lane / LANES < warp.warp_k_blocks;
        gpu_stage_h<F>(act, n * 32 + lane, v[n], gated ? gate : 1, (n * 32 + lane) / LANES < count);
    }
    __syncwarp();
    warp.multiply(gpu_lane_fragments<F, 1>(act), F::half && lane < count ? scale * (act.act_scale[lane] * gpu_post_scale<F>()) : 0, row_scale,
                  sum);
    store_partial_of<1>(parts, sum, warp.warp);
    if (ANY && threadIdx.x < 32 && gpu_has_down_bias(p)) before += gpu_lone_bias(p, best_at, best_weight, min(row, p.down.rows - 1));
    __syncthreads();
    if (stores && own) p.branches.shared_to[row] = sum_warp_partials(parts[threadIdx.x][0]);
    else if (stores) epilogue_output(p.end, &p.to[row], row, sum_warp_partials(parts[threadIdx.x][0]), 1, before, p.link.publish);
}
