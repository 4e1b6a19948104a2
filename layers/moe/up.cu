/* layers/moe/up.cu: experts_up on a GPU: routing, then h = weight SiLU(gate_proj u) (up_proj u) for every assignment to a
   routed expert.

   Two kernels: gpu_experts_up for any shape and format, gpu_experts_up_fixed for the shapes and formats of decode_launch.cu's table.
   Both read x and the logits, and write h, gpu_routing and the count of experts. They know nothing of down projections; the
   shared expert's h is norm_router's.

   A tile is eight rows (one row panel) of an expert's gate_proj and the same eight of its up_proj, so that the block that
   has both products forms h; of experts without a gate, h = weight ReLU(up_proj u)^2, two panels of up_proj. Grid: as many blocks as the SMs hold at once, at most one per tile; block b has the tiles
   b, b + gridDim.x, ... of the list of distinct experts. Every block normalises x for itself; the RMS is divided out of the
   finished sums. h is multiplied by the routing weight here, so that experts_down only adds. */

/* h of row `of` of an expert, from the warps' partials of rows `gate` and `up` of a tile. offset: where the expert is. */
template <bool ANY>
__device__ __forceinline__ float gpu_up_pair(const moe_gpu &p, int64_t offset, int of, const float (*part)[STEP_ROWS][GPU_WARPS], int gate,
                                             int up, int t, float rms) {
    return epilogue_pair<ANY>(p.end.act, p.gate, p.up, offset, of, sum_warp_partials(part[gate][t]), sum_warp_partials(part[up][t]), rms);
}

/* The tiles of experts_up, as gpu_run_tiles wants them. entry(tile): place of the tile's expert in the list. */
template <int ROWS> struct gpu_up_tiles {
    enum { normed = 1 };
    const moe_gpu &p;
    gpu_block_routing *choice;
    float square[ROWS];          /* this lane's part of sum x^2 of each row */
    int chosen, listed;          /* from gpu_route: the expert this lane has chosen, and its place in the list */
    __device__ __forceinline__ float per_col() const { return 1.0f / (float)p.shape.hidden; }
    __device__ __forceinline__ float eps() const { return p.eps; }
    __device__ __forceinline__ int next(int tile) const { return tile + gridDim.x; }
    __device__ __forceinline__ bool valid(int tile) const { return tile < choice->list.count * p.tiles; }
    __device__ __forceinline__ int entry(int tile) const {
        return p.tiles == 1 ? tile : (int)__umulhi((uint32_t)tile, p.per_tile);
    }
    template <class F> __device__ __forceinline__ gpu_place place(int tile) const {
        int i = entry(tile), panel = (tile - i * p.tiles) * p.tile_panels;
        gpu_place at = gpu_place_of<F>(p.gate, panel, p.up, panel + p.tile_panels - 1);
        const int64_t shift = choice->list.at[i];
        at.data[0] += shift;
        at.data[1] += shift;
        at.scale = (const float *)((const char *)at.scale + shift);
        return at;
    }
    template <class F, int>
    __device__ __forceinline__ void prepare(int, int, const activation_fragments &, float *to) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++) to[t] = square[t];
        const int t = threadIdx.x / 32;                     /* routing weights: first needed by store */
        if (t >= p.T) return;
        const float weight = gpu_choice_weight<ROWS>(p, t, chosen);
        if ((int)threadIdx.x % 32 >= p.shape.top_k) return;
        choice->weight[listed][t] = weight;
        if (gpu_has_down_bias(p) && blockIdx.x == gridDim.x - 1) gpu_put_choice(p, t, chosen, weight);
    }
    __device__ __forceinline__ float before(int, int, int) const { return 0; }
    __device__ __forceinline__ void store(int tile, int row, int t, const float (*part)[STEP_ROWS][GPU_WARPS], float,
                                          float rms) const {
        const int rows = p.tile_panels * PANEL_ROWS, i = entry(tile), at = (tile - i * p.tiles) * rows + row;
        if (row >= rows || at >= p.gate.rows || !(choice->list.rows[i] >> t & 1)) return;
        p.h[((i + 1) * STEP_ROWS + t) * p.h_row + at] =
            gpu_up_pair<true>(p, choice->list.at[i], at, part, row, row + TILE_ROWS - rows, t, rms) * choice->weight[i][t];
    }
};

/* Stages x norm, not yet divided by the RMS, as activation fragments in shared memory: each warp the k blocks that it
   will multiply itself. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_stage_up(const moe_gpu &p, void *memory, float *square) {
    const gpu_norm_rows in = {p.x, p.norm, p.shape.hidden, p.T - 1};
    int count, first = gpu_share(p.gate.k_blocks, threadIdx.x / 32, GPU_WARPS, &count);
    gpu_stage_activations<F, ROWS, 1>(in, p.T, first, count, activation_fragments_at<F, ROWS>(memory, p.gate.k_blocks),
                                      square);
}

/* experts_up for any shape and format; ROWS = 1, or 4 for T = 2, 3 and 4. It waits for norm_router as a whole, so it needs
   no tags. It loads weights only when the routing is known. */
template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_up(const __grid_constant__ moe_gpu p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials partials;
    __shared__ gpu_block_routing choice;
    const int tile = (int)blockIdx.x;
    gpu_up_tiles<ROWS> tiles = {p, &choice, {}, 0, 0};
    l2_prefetch_share(p.link.prefetch);
    gpu_prefetch_table(p);
    gpu_route_nothing(&choice);
    pdl_wait();
    with_format(p.gate.format, [&](auto format) { gpu_stage_up<decltype(format), ROWS>(p, dynamic, tiles.square); });
    gpu_route<ROWS>(p, &choice, &tiles.chosen, &tiles.listed);
    if (threadIdx.x < 32)
        gpu_publish(p, choice.list.count, [&] {
            for (int i = threadIdx.x; i < choice.list.count; i += 32) {
                p.routing->at[i] = choice.list.at[i];
                p.routing->rows[i] = choice.list.rows[i];
            }
        });
    with_format(p.gate.format, [&](auto format) {
        gpu_ahead<decltype(format), ROWS> ahead;
        ahead.nothing(p.gate);
        ahead.begin(tiles, tile, p.gate);
        gpu_run_tiles<decltype(format), ROWS>(tiles, tile, p.gate, p.T, dynamic, &partials, ahead);
    });
}

/* experts_up for a fixed shape and format: HIDDEN columns, TOP_K experts per row out of at most LISTS * 256, ROWS =
   gpu_fixed_rows(T) token rows.

   Layout: a warp has the same k blocks of every tile (fixed_tile). Every warp holds the whole routing in registers: lane
   TOP_K t + r has the r-th best expert of row t (gpu_lane_routing).

   Order: warp t < ROWS polls row t's logits, with three rows the fourth the third's. Then all warps load x, and warp t
   chooses while x is on its way. When the routing is known each warp loads its part of the first tile and stages x; warp 0
   publishes the routing; the loop over the tiles follows.

   Correctness: norm_router stores its logits only after it has seen all of x, so a warp that has seen all logits of a row
   knows that x is complete. The warps that do not poll learn it from those that do, at a barrier. Warp 0 calls
   pdl_wait before it publishes and triggers, because experts_down reads before its own wait what norm_router wrote (the
   shared expert's h and gate). As every kernel must, all warps that store call pdl_wait before they do. With no tag to
   poll for (logits.mask 0) all warps call pdl_wait first.

   Memory order: logits and x are read by relaxed or L2 loads after the poll. There is no acquire; that x is seen after the
   logits rests on the control dependency and on both being read from L2.

   Deadlock: the kernel polls only norm_router, all of whose blocks are resident when it starts, and which waits for nothing that
   this kernel does. Where experts_place is between them, that has polled it, too, and the routing and x are known by the time it is complete.

   Performance: the latency from the last logit to the first weight is on the critical path of the step. So the kernel polls
   instead of waiting for all of norm_router, and straight-line code replaces the loops of gpu_run_tiles. Before a loop the
   compiler waits for all loads in flight; the poll loop runs before any weight is loaded. If all warps of all blocks
   polled, the few cache lines of logits would become hot and slow norm_router down. */

/* The routing as a lane of any warp holds it: one assignment, of row t = lane / TOP_K to its r-th best expert,
   r = lane % TOP_K. */
struct gpu_lane_routing {
    int is, expert, listed;      /* is there a row t; the expert; its place in the list of distinct experts */
    int count;                   /* distinct experts */
    float weight;                /* of this assignment */
};

/* Of a block of gpu_experts_up_fixed, in shared memory: where all experts are, copied while the routing is not known, so that no load from
   memory comes between that and the first weights; and the experts that each row has chosen. */
template <class SHAPE, int ROWS> struct gpu_shared_routing {
    static_assert((int)SHAPE::LISTS * 256 <= 2 * GPU_THREADS, "two for each thread to copy");
    alignas(16) int64_t at[SHAPE::LISTS * 256];
    int chosen[ROWS][SHAPE::TOP_K];
};

/* Whether the table of experts is there only after the wait, which comes after the routing is known: experts_place writes it, while this kernel polls. */
__device__ __forceinline__ bool gpu_table_is_late(const moe_gpu &p) {
    return p.placed && p.link.await.mask;
}

/* Starts the copy of the table of experts; gpu_route_lanes waits for it. */
__device__ __forceinline__ void gpu_fetch_table(const moe_gpu &p, int64_t *to) {
    const int i = 2 * (int)threadIdx.x;                     /* the table's last 16 bytes are its own, too */
    if (i < p.shape.experts) cp_async16(shared_address(to + i), p.expert_at + i, true);
    cp_async_commit();
}

/* Chooses the experts of all rows and tells all warps. key: in warp t row t's logits. */
template <class SHAPE, int ROWS>
__device__ __forceinline__ gpu_lane_routing gpu_route_lanes(const moe_gpu &p, uint32_t (*key)[8], gpu_shared_routing<SHAPE, ROWS> *shared) {
    enum { TOP_K = SHAPE::TOP_K, LISTS = SHAPE::LISTS };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane / TOP_K;
    gpu_lane_routing is = {};
    is.is = t < gpu_rows_there<ROWS>(p.T);
    if (warp < ROWS) {
        int expert = gpu_choose<LISTS, TOP_K>(p, key);
        if (lane < TOP_K) shared->chosen[warp][lane] = expert;
    }
    if (gpu_table_is_late(p)) {
        pdl_wait();
        gpu_fetch_table(p, shared->at);
    }
    cp_async_wait<0>();
    __syncthreads();
    is.expert = is.is ? shared->chosen[t][lane % TOP_K] : 0;
    if constexpr (ROWS == 1) {                              /* all are distinct: count those with a lower index */
        is.count = TOP_K;
#pragma unroll
        for (int i = 0; i < TOP_K; i++) is.listed += shared->chosen[0][i] < is.expert;
    } else {
#pragma unroll
        for (int w = 0; w < 256 / 32; w++) {                /* bit set of experts 32 w .. 32 w + 31 */
            uint32_t bit = 1u << is.expert % 32, set = __reduce_or_sync(~0u, is.is && is.expert / 32 == w ? bit : 0);
            is.listed += w > is.expert / 32 ? 0 : __popc(w < is.expert / 32 ? set : set & (bit - 1));
            is.count += __popc(set);
        }
    }
    return is;
}

/* Bit set of the lanes whose expert has place i in the list. */
__device__ __forceinline__ uint32_t gpu_lanes_of(const gpu_lane_routing &routing, int i) {
    return __ballot_sync(~0u, routing.is && routing.listed == i);
}

/* Stores the distinct experts and their rows: the first lane that has an expert does. */
template <int TOP_K>
__device__ __forceinline__ void gpu_write_routing(const moe_gpu &p, const gpu_lane_routing &routing, const int64_t *expert_at) {
    uint32_t lanes = __match_any_sync(~0u, routing.is ? routing.listed : -1);
    int rows = 0;
    for (int t = 0; t < STEP_ROWS; t++) rows |= (lanes >> t * TOP_K & ((1u << TOP_K) - 1)) ? 1 << t : 0;
    if (!routing.is || __ffs((int)lanes) - 1 != (int)threadIdx.x % 32) return;
    p.routing->at[routing.listed] = expert_at[routing.expert];
    p.routing->rows[routing.listed] = rows;
}

/* What a warp of gpu_experts_up_fixed has once the routing is known: its weights in flight, from tile to tile. */
template <class F, class SHAPE, int ROWS> struct gpu_up_fixed_warp {
    enum { TOP_K = SHAPE::TOP_K, LANES = TOP_K <= 8 ? 8 : 16 };
    static_assert((int)TOP_K <= LANES && (int)TOP_K * ROWS <= 32 && (ROWS == 1 || LANES == TOP_K), "a lane for each assignment");
    typedef fixed_tile<F, SHAPE::HIDDEN, ROWS, ROWS == 1 ? 5 : 6> sizes;
    const moe_gpu &p;
    const int64_t *expert_at;    /* in shared memory */
    gpu_lane_routing routing;
    sizes weights;

    __device__ __forceinline__ gpu_up_fixed_warp(const moe_gpu &p, const int64_t *expert_at) : p(p), expert_at(expert_at) {}
    __device__ __forceinline__ int tiles() const { return routing.count * p.gate.panels; }
    /* Place of a tile's expert in the list. */
    __device__ __forceinline__ int entry(int tile) const {
        return p.gate.panels == 1 ? tile : (int)__umulhi((uint32_t)tile, p.per_tile);
    }
    __device__ __forceinline__ void begin(int tile) {
        const int i = entry(tile), panel = tile - i * p.gate.panels;
        const int64_t shift = expert_at[__shfl_sync(~0u, routing.expert, __ffs((int)gpu_lanes_of(routing, i)) - 1)];
        gpu_place at = gpu_place_of<F>(p.gate, panel, p.up, panel);
        at.data[0] += shift;
        at.data[1] += shift;
        at.scale = (const float *)((const char *)at.scale + shift);
        weights.move(at);
        weights.load_scale(p.gate);
    }
    /* Stores h of the thread's row of a tile, for token row t, if that has chosen the expert. */
    __device__ __forceinline__ void store(int tile, int row, int t, const float (*part)[STEP_ROWS][GPU_WARPS], float rms) const {
        const int i = entry(tile), at = (tile - i * p.gate.panels) * PANEL_ROWS + row;
        const uint32_t lanes = gpu_lanes_of(routing, i) >> t * TOP_K & ((1u << TOP_K) - 1);
        const float weight = __shfl_sync(~0u, routing.weight, t * TOP_K + __ffs((int)lanes) - 1);
        if (lanes && row < PANEL_ROWS && at < p.gate.rows)
            p.h[((i + 1) * STEP_ROWS + t) * p.h_row + at] = gpu_up_pair<false>(p, 0, at, part, row, row + PANEL_ROWS, t, rms) * weight;
    }
};

template <class F, class SHAPE, int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_up_fixed(const __grid_constant__ moe_gpu p) {
    typedef gpu_up_fixed_warp<F, SHAPE, ROWS> of;
    enum { TURNS = GPU_THREADS / (TILE_ROWS * STEP_ROWS) };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials partials;
    __shared__ gpu_shared_routing<SHAPE, ROWS> shared;
    const int lane = threadIdx.x % 32, row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS % STEP_ROWS;
    const int turn = threadIdx.x / (TILE_ROWS * STEP_ROWS);
    const gpu_norm_rows in = {p.x, p.norm, p.shape.hidden, p.T - 1};
    const activation_fragments act = activation_fragments_at<F, ROWS>(dynamic, p.gate.k_blocks);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(act);
    const gpu_tag none = {0, 0};
    of warp(p, shared.at);
    fixed_columns<typename of::sizes, F, ROWS, gpu_norm_rows> x(in);
    float square[ROWS] = {}, rms = 1;
    uint32_t key[SHAPE::LISTS][8];
    int tile = (int)blockIdx.x;
    l2_prefetch_share(p.link.prefetch);
    if (!p.placed) gpu_fetch_table(p, shared.at);
    if (!p.link.await.mask) {
        pdl_wait();
        if (p.placed) gpu_fetch_table(p, shared.at);
    }
    if (threadIdx.x < 32 * ROWS) load_logits<SHAPE::LISTS, ROWS>(p, gpu_row_there<ROWS>(threadIdx.x / 32, p.T - 1), p.link.await, key);
    __syncthreads();
    x.load(0);
    warp.routing = gpu_route_lanes(p, key, &shared);
    const float logit = load_relaxed(gpu_logit<ROWS>(p, warp.routing.is ? lane / of::TOP_K : 0, warp.routing.expert));
    const int tiles = warp.tiles();
    warp.begin(min(tile, tiles - 1));
#pragma unroll
    for (int j = 0; j < of::sizes::DEPTH; j++) warp.weights.load(j);
    x.stage_all(act, square, none);
    store_warp_squares<ROWS>(&partials, square);
    if (threadIdx.x < 32) {
        pdl_wait();
        gpu_publish(p, warp.routing.count, [&] { gpu_write_routing<of::TOP_K>(p, warp.routing, shared.at); });
    }
    warp.weights.load_act_scale(act);
#pragma unroll 1
    for (int n = 0, next; tile < tiles; n++, tile = next) {
        float sum[4] = {0, 0, 0, 0};
        next = tile + (int)gridDim.x;
        warp.weights.template multiply<true>(fragments, sum, next < tiles, [&] { warp.begin(min(next, tiles - 1)); });
        store_warp_partial<ROWS>(partials.tile[n % 2], sum);
        __syncthreads();
        if (n == 0) {
            pdl_wait();
            rms = gpu_rms_factor(&partials, t, 1.0f / (float)p.shape.hidden, p.eps);
            const float share = p.shape.sigmoid ? gpu_share_of_sigmoids<of::LANES>(logit, of::TOP_K, p.shape.of_all) :
                                                  gpu_softmax<of::LANES>(logit, of::TOP_K);
            warp.routing.weight = gpu_weight_of_share(p, share, warp.routing.expert);
        }
        if (n % TURNS == turn) warp.store(tile, row, t, partials.tile[n % 2], rms);
    }
}
