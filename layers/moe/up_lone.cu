/* layers/moe/up_lone.cu: experts_up for one token row and the shapes that gpu_experts_up_fixed is not made for, if a share of the columns is
   no longer than a warp holds of them. With biases and any activation.

   Touches the same as gpu_experts_up, polls as gpu_experts_up_fixed does, and gives the same sums in the same order. One addition: the row's
   choice, which biases of down_proj are multiplied with, is stored before experts_down may start. */

/* A warp has tiles of its own, with all their columns: so warps do not wait for each other from tile to tile. It sums the columns that each
   warp of gpu_run_tiles has, a share, by themselves. DEEP k blocks are in flight, those of the next share or of the next tile; a share has no
   more. What a shorter one lacks is not loaded, and its factor is 0.

   Four experts of gpt-oss have 1,440 tiles, an H100 2,112 warps: so all of them run at once, and there is no last round. The tiles of a block
   are its first warps'; every other block begins with the third, so that the blocks of an SM keep all four schedulers busy. */

/* Of a block, in shared memory: where all experts are, see gpu_shared_routing; where the chosen ones are, ascending, and their weights. */
struct gpu_lone_routing {
    alignas(16) int64_t table[256], at[GPU_TOP];
    float weight[GPU_TOP];
};

template <class F, int DEEP> struct gpu_up_lone_warp {
    enum { pairs = gpu_step_pairs<F>() };
    const moe_gpu &p;
    const gpu_lone_routing &choice;
    const int lane, order;       /* order: of the block's warps, in which they get tiles */
    const int64_t to_up;         /* from a panel of gate_proj to that of up_proj */
    const char *at;              /* the lane's part of the share that is loaded next, of gate_proj */
    typename F::raw raw[DEEP][2];

    __device__ __forceinline__ gpu_up_lone_warp(const moe_gpu &p, const gpu_lone_routing &choice)
        : p(p), choice(choice), lane(threadIdx.x % 32), order((int)threadIdx.x / 32 ^ (2 * blockIdx.x >= gridDim.x ? 2 : 0)),
          to_up(p.up.data - p.gate.data), at(NULL) {
        memset(raw, 0, sizeof raw);
    }
    __device__ __forceinline__ int first_tile() const { return (int)(blockIdx.x + gridDim.x * order); }
    __device__ __forceinline__ int next(int tile) const { return tile + (int)gridDim.x * GPU_WARPS; }
    __device__ __forceinline__ int tiles() const { return p.shape.top_k * p.gate.panels; }
    /* Place of a tile's expert among the chosen ones. */
    __device__ __forceinline__ int entry(int tile) const {
        return p.gate.panels == 1 ? tile : (int)__umulhi((uint32_t)tile, p.per_tile);
    }
    __device__ __forceinline__ int panel(int tile) const { return tile - entry(tile) * p.gate.panels; }
    __device__ __forceinline__ const char *place(int tile) const {
        return p.gate.data + choice.at[entry(tile)] + (size_t)panel(tile) * (uint32_t)(p.gate.k_blocks * F::panel) + lane * F::lane;
    }
    /* k blocks before a share. */
    __device__ __forceinline__ int before(int share) const { return p.gate.k_blocks * share / GPU_WARPS; }
    __device__ __forceinline__ void load(int j, bool there) {
        F::load(&raw[j][0], at, j * F::panel, there);
        F::load(&raw[j][1], at + to_up, j * F::panel, there);
        __syncwarp();                                       /* so that the compiler leaves the loads here */
    }
    /* The first share of the warp's first tile. */
    __device__ __forceinline__ void begin(int tile) {
        const bool there = tile < tiles();
        at = place(there ? tile : 0);
#pragma unroll
        for (int j = 0; j < DEEP; j++) load(j, there && j < before(1));
    }
    /* total = the sums of a tile, high and low terms together: of its gate_proj [0], of its up_proj [1]. Loads the next tile's first share. */
    __device__ __forceinline__ void multiply(const activation_fragments &act, int tile, float *total) {
        const uint4 *fragments = gpu_lane_fragments<F, 1>(act);
        const bool more = next(tile) < tiles();
        const char *const then = place(more ? next(tile) : tile);
        total[0] = total[1] = -0.0f;                        /* -0 + x is x, also for x = -0 */
#pragma unroll 1
        for (int share = 0; share < GPU_WARPS; share++) {
            const bool last = share == GPU_WARPS - 1;
            const int from = before(share), count = before(share + 1) - from;
            const int loaded = last ? (more ? before(1) : 0) : before(share + 2) - before(share + 1);
            float sum[4] = {0, 0, 0, 0};
            at = last ? then : at + count * F::panel;
#pragma unroll
            for (int j = 0; j < DEEP; j++) {
                const int k = j < count ? from + j : 0;
                const float factor = j < count ? act.act_scale[k] : 0;
                uint4 x[pairs];
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(k * pairs + pair) * 8];
                gpu_multiply<F, 1, 2, F::groups>(sum, raw[j], x, 0, 0, 0, true, &factor);
                load(j, j < loaded);
            }
            add_terms<1>(sum);
            total[0] += sum[0];
            total[1] += sum[2];
        }
    }
};

/* The chosen experts of the row, by one warp, which has its logits: lane r returns the r-th best, and *place: its place among them,
   ascending. Should two be the same, as logits that are no numbers have it, they have two places. */
__device__ __forceinline__ int gpu_choose_lone(const moe_gpu &p, uint32_t (*key)[8], gpu_lone_routing *to, int *place) {
    const int lane = threadIdx.x % 32, expert = gpu_choose<1>(p, key);
    *place = 0;
    for (int i = 0; i < p.shape.top_k; i++) {
        const int other = __shfl_sync(~0u, expert, i);
        *place += other < expert || (other == expert && i < lane);
    }
    if (lane < p.shape.top_k) to->at[*place] = to->table[expert];
    return expert;
}

/* A row's bias, loaded here and not where it is used; 0: there is none. */
__device__ __forceinline__ float gpu_bias_early(const gpu_matrix &w, int64_t offset, int row) {
    const float bias = ld_volatile((const float *)((const char *)w.bias + offset) + row, w.bias != NULL);
    return w.bias ? bias : 0;
}

/* At most 256 experts. The order of things is gpu_experts_up_fixed's, and so are the reasons; the warp that is last in the order of tiles,
   and may have none, polls and chooses. */
template <class F, int DEEP>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_up_lone(const __grid_constant__ moe_gpu p) {
    typedef row_columns<F, 1, 2, gpu_norm_rows> columns;
    enum { AT_ONCE = 2 * 32 };
    extern __shared__ uint4 dynamic[];
    __shared__ warp_partials partials;
    __shared__ gpu_lone_routing choice;
    const activation_fragments act = activation_fragments_at<F, 1>(dynamic, p.gate.k_blocks);
    const gpu_norm_rows in = {p.x, p.norm, p.shape.hidden, 0};
    gpu_up_lone_warp<F, DEEP> warp(p, choice);
    const int lane = warp.lane, chooses = warp.order == GPU_WARPS - 1;
    int count, expert = 0, place = 0, tile = warp.first_tile();
    const int first = gpu_share(p.gate.k_blocks, threadIdx.x / 32, GPU_WARPS, &count);
    columns x(in, 1, first, count);
    float square[1] = {}, weight = 0;
    uint32_t key[1][8];
    l2_prefetch_share(p.link.prefetch);
    gpu_fetch_table(p, choice.table);
    if (!p.link.await.mask) pdl_wait();
    if (chooses) load_logits<1, 1>(p, 0, p.link.await, key);
    cp_async_wait<0>();
    __syncthreads();                                        /* all of x is there */
    x.load(0);
    if (chooses) expert = gpu_choose_lone(p, key, &choice, &place);
    __syncthreads();
    warp.begin(tile);
    x.stage(0, act, square, true);
#pragma unroll 1
    for (int begin = AT_ONCE; begin < count * columns::LANES; begin += AT_ONCE) {
        x.load(begin);
        x.stage(begin, act, square, true);
    }
    store_warp_squares<1>(&partials, square);
    if (chooses) {
        weight = gpu_choice_weight<1>(p, 0, expert);
        if (lane < p.shape.top_k) choice.weight[place] = weight;
    }
    __syncthreads();
    const float rms = gpu_rms_factor(&partials, 0, 1.0f / (float)p.shape.hidden, p.eps);
    if (chooses) {
        pdl_wait();
        if (gpu_has_down_bias(p) && blockIdx.x == gridDim.x - 1 && lane < p.shape.top_k) gpu_put_choice(p, 0, expert, weight);
        gpu_publish(p, p.shape.top_k, [&] {
            if (lane >= p.shape.top_k) return;
            p.routing->at[lane] = choice.at[lane];
            p.routing->rows[lane] = 1;
        });
    }
#pragma unroll 1
    for (; tile < warp.tiles(); tile = warp.next(tile)) {
        const int entry = warp.entry(tile), row = warp.panel(tile) * PANEL_ROWS + lane / 4, of = min(row, p.gate.rows - 1);
        const float gate_bias = gpu_bias_early(p.gate, choice.at[entry], of), up_bias = gpu_bias_early(p.up, choice.at[entry], of);
        float total[2];
        warp.multiply(act, tile, total);
        pdl_wait();
        if (lane % 4 == 0 && row < p.gate.rows)
            p.h[(entry + 1) * (STEP_ROWS * p.h_row) + row] =
                activate<true>(p.end.act, epilogue_sum(total[0], rms, gate_bias), epilogue_sum(total[1], rms, up_bias)) * choice.weight[entry];
    }
}
