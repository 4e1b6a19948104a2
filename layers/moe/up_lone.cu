/* layers/moe/up_lone.cu: experts_up for one token row and the shapes that gpu_experts_up_fixed is not made for, if a share of the columns is
   no longer than a warp holds of them. With biases and any activation.

   Touches the same as gpu_experts_up, polls as gpu_experts_up_fixed does, and gives the same sums in the same order. One addition: the row's
   choice, which biases of down_proj are multiplied with, is stored before experts_down may start. */

/* Panels of up_proj in a tile; of MXFP4 registers are left for experts with a gate alone. */
template <class F> __host__ __device__ __forceinline__ int gpu_lone_panels(const moe_gpu &p) {
    return F::groups ? 1 : p.tile_panels;
}

/* Rows from a tile's first panel to its second, if that is of the same matrix; else 0. */
template <class F> __device__ __forceinline__ int gpu_rows_to_second(const moe_gpu &p) {
    return (gpu_lone_panels<F>(p) - 1) * PANEL_ROWS;
}

/* A warp has the k blocks of a tile that it has in gpu_run_tiles, its share, and of all tiles of its block one after the other: their sums wait
   in shared memory for those of the other warps, so that no barrier comes between two tiles. DEEP k blocks are in flight, which are a share:
   as soon as one has been multiplied, that of the next tile is asked for. What a shorter share lacks is not loaded, and x is 0 there. */
template <class F, int DEEP> struct gpu_up_lone_warp {
    enum { pairs = gpu_step_pairs<F>() };
    const moe_gpu &p;
    const int64_t *at;           /* [top_k] in shared memory: where the chosen experts are, ascending */
    const int lane, warp;
    int first, count;            /* the share */
    activation_fragments act;    /* of x: DEEP k blocks of this warp */
    typename F::raw raw[DEEP][2];
    row_scales scales;           /* of the tile's rows, if they are applied at the end */

    __device__ __forceinline__ gpu_up_lone_warp(const moe_gpu &p, const int64_t *at, void *memory)
        : p(p), at(at), lane(threadIdx.x % 32), warp(threadIdx.x / 32) {
        first = gpu_share(p.gate.k_blocks, warp, GPU_WARPS, &count);
        act = activation_fragments_at<F, 1>(memory, GPU_WARPS * DEEP);
        act.x += warp * DEEP * pairs * 8;
        act.act_scale += warp * DEEP;
        memset(raw, 0, sizeof raw);
    }
    __device__ __forceinline__ int tiles() const { return p.shape.top_k * p.tiles; }
    /* Place of a tile's expert among the chosen ones. */
    __device__ __forceinline__ int entry(int tile) const {
        return p.tiles == 1 ? tile : (int)__umulhi((uint32_t)tile, p.per_tile);
    }
    /* A tile's first panel. */
    __device__ __forceinline__ int panel(int tile) const { return (tile - entry(tile) * p.tiles) * gpu_lone_panels<F>(p); }
    /* The lane's part of the share. */
    __device__ __forceinline__ const char *place(int tile) const {
        return p.gate.data + at[entry(tile)] + (size_t)(panel(tile) * p.gate.k_blocks + first) * (uint32_t)F::panel + lane * F::lane;
    }
    __device__ __forceinline__ void load(int j, const char *from, bool there) {
        F::load(&raw[j][0], from, j * F::panel, there);
        F::load(&raw[j][1], from + p.to_second, j * F::panel, there);
        __syncwarp();                                       /* so that the compiler leaves the loads here */
    }
    __device__ __forceinline__ void load_scales(int tile) {
        if constexpr (gpu_scaled_at_end<F>()) {
            const int row = F::by_row ? panel(tile) * PANEL_ROWS + lane / 4 : 0;
            const int64_t offset = at[entry(tile)];
            scales.of[0] = ld_volatile((const float *)((const char *)p.gate.scale + offset) + row);
            scales.of[1] = ld_volatile((const float *)((const char *)p.up.scale + offset) + row + (F::by_row ? gpu_rows_to_second<F>(p) : 0));
        }
    }
    /* Where x is staged, by the numbers of k blocks; and zeros after the share. */
    __device__ __forceinline__ activation_fragments staged() const { return {act.x - first * pairs * 8, act.act_scale - first}; }
    __device__ __forceinline__ void stage_rest() const {
        for (int i = lane; i < (DEEP - count) * pairs * 8; i += 32) act.x[count * pairs * 8 + i] = make_uint4(0, 0, 0, 0);
        if (lane < DEEP - count) act.act_scale[count + lane] = 0;
    }
    __device__ __forceinline__ void begin(int tile) {
        const char *from = place(min(tile, tiles() - 1));
#pragma unroll
        for (int j = 0; j < DEEP; j++) load(j, from, tile < tiles() && j < count);
        load_scales(min(tile, tiles() - 1));
    }
    /* to[row][warp] = the sums of the share in a tile, high and low terms together. Asks for it in the tile `next`. */
    __device__ __forceinline__ void multiply(int next, float (*to)[GPU_WARPS]) {
        const uint4 *fragments = gpu_lane_fragments<F, 1>(act);
        const char *from = place(min(next, tiles() - 1));
        const int loaded = next < tiles() ? count : 0;
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < DEEP; j++) {
            const float factor = act.act_scale[j];
            uint4 x[pairs];
#pragma unroll
            for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(j * pairs + pair) * 8];
            gpu_multiply<F, 1, 2, F::groups>(sum, raw[j], x, 0, 0, 0, true, &factor);
            load(j, from, j < loaded);
        }
        scales.apply<F>(sum);
        load_scales(min(next, tiles() - 1));
        add_terms<1>(sum);
        if (lane % 4) return;
        to[lane / 4][warp] = sum[0];
        to[PANEL_ROWS + lane / 4][warp] = sum[2];
    }
};

/* Where all experts are, see gpu_shared_routing; where the chosen ones are, ascending, and their weights. */
struct gpu_lone_routing {
    alignas(16) int64_t table[256], at[GPU_TOP];
    float weight[GPU_TOP];
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
    if (gpu_table_is_late(p)) pdl_wait();
    if (lane < p.shape.top_k) to->at[*place] = gpu_table_is_late(p) ? gpu_expert_at(p, expert) : to->table[expert];
    return expert;
}

/* The thread's row of a tile's first panel: in its matrix, and of which expert. */
template <class F, int DEEP> struct gpu_lone_row {
    int entry, row;
    bool there;
    int64_t offset;
    __device__ __forceinline__ gpu_lone_row(const gpu_up_lone_warp<F, DEEP> &warp, int tile)
        : entry(warp.entry(min(tile, warp.tiles() - 1))), row(warp.panel(tile) * PANEL_ROWS + (int)threadIdx.x % PANEL_ROWS),
          there(tile < warp.tiles() && row < warp.p.gate.rows), offset(warp.at[entry]) {}
};

/* A row's bias, loaded here and not where it is used; 0: there is none. */
__device__ __forceinline__ float gpu_bias_early(const gpu_matrix &w, int64_t offset, int row, bool there) {
    const float bias = ld_volatile((const float *)((const char *)w.bias + offset) + row, w.bias && there && row < w.rows);
    return w.bias ? bias : 0;
}

/* h of the thread's row of a tile, of a pair of gate and up, or of its rows of both panels. */
template <class F, int DEEP>
__device__ __forceinline__ void gpu_store_lone(const moe_gpu &p, const gpu_lone_row<F, DEEP> &of, float first, float second, float weight) {
    float *h = p.h + (of.entry + 1) * (STEP_ROWS * p.h_row) + of.row;
#pragma unroll 1
    for (int i = 0; of.there && i < gpu_lone_panels<F>(p) && of.row + i * PANEL_ROWS < p.gate.rows; i++) {
        const float gate = i ? second : first;
        h[i * PANEL_ROWS] = activate<true>(p.end.act, gate, gpu_lone_panels<F>(p) == 1 ? second : gate) * weight;
    }
}

/* Prefetches a block's share of what experts_down reads of the chosen experts: a piece of one of them. `last`: the block's last weights are on their
   way. Of experts without a gate, whose experts_down has the larger part of the bytes; of others it has not been measured. */
__device__ __forceinline__ void gpu_prefetch_chosen(const moe_gpu &p, const int64_t *at, bool last) {
    const uint32_t top_k = p.shape.top_k, pieces = max(gridDim.x / top_k, 1u), share = (p.ahead / pieces / 16 + 1) * 16, from = blockIdx.x / top_k * share;
    if (last && threadIdx.x == 0 && from < p.ahead) l2_prefetch(p.down.data + at[blockIdx.x % top_k] + from, min(share, p.ahead - from));
}

/* At most 256 experts. The order of things is gpu_experts_up_fixed's, and so are the reasons. A thread has a row of one of the block's tiles, of
   which there may be TILES at a time. */
template <class F, int DEEP>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_up_lone(const __grid_constant__ moe_gpu p) {
    typedef row_columns<F, 1, 2, gpu_norm_rows> columns;
    enum { TILES = GPU_THREADS / PANEL_ROWS };
    static_assert(DEEP * columns::LANES <= 2 * 32, "a share of x is loaded at once");
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILES][TILE_ROWS][GPU_WARPS];
    __shared__ warp_partials partials;
    __shared__ gpu_lone_routing choice;
    const gpu_norm_rows in = {p.x, p.norm, p.shape.hidden, 0};
    gpu_up_lone_warp<F, DEEP> warp(p, choice.at, dynamic);
    const int lane = warp.lane, step = (int)gridDim.x;
    columns x(in, 1, warp.first, warp.count);
    float square[1] = {};
    uint32_t key[1][8];
    int expert = 0, place = 0, tile = (int)blockIdx.x;
    l2_prefetch_share(p.link.prefetch);
    if (tile == 0 && threadIdx.x == 0) l2_prefetch(p.norm, (uint32_t)(p.shape.hidden / 4 * 16));    /* of branches it is no other kernel's */
    if (!p.placed) gpu_fetch_table(p, choice.table);
    if (!p.link.await.mask) {
        pdl_wait();
        if (p.placed) gpu_fetch_table(p, choice.table);
    }
    if (warp.warp == 0) load_logits<1, 1>(p, 0, p.link.await, key);
    cp_async_wait<0>();
    __syncthreads();                                        /* all of x is there */
    x.load(0);
    if (warp.warp == 0) expert = gpu_choose_lone(p, key, &choice, &place);
    else if (gpu_table_is_late(p)) pdl_wait();
    __syncthreads();
    warp.begin(tile);
    x.stage(0, warp.staged(), square, true);
    warp.stage_rest();
    store_warp_squares<1>(&partials, square);
    if (warp.warp == 0) {
        const float weight = gpu_choice_weight<1>(p, 0, expert);
        if (lane < p.shape.top_k) choice.weight[place] = weight;
        pdl_wait();
        if (gpu_has_down_bias(p) && blockIdx.x == gridDim.x - 1 && lane < p.shape.top_k) gpu_put_choice(p, 0, expert, weight);
        gpu_publish(p, p.shape.top_k, [&] {
            if (lane >= p.shape.top_k) return;
            p.routing->at[lane] = choice.at[lane];
            p.routing->rows[lane] = 1;
        });
    }
    __syncwarp();
#pragma unroll 1
    for (; tile < warp.tiles(); tile += TILES * step) {
        float gate_bias = 0, up_bias = 0;
        if constexpr (!F::by_row || F::groups) {
            const gpu_lone_row<F, DEEP> early(warp, tile + (int)threadIdx.x / PANEL_ROWS * step);
            gate_bias = gpu_bias_early(p.gate, early.offset, early.row, early.there);
            up_bias = gpu_bias_early(p.up, early.offset, early.row + gpu_rows_to_second<F>(p), early.there);
        }
#pragma unroll 1
        for (int n = 0; n < TILES && tile + n * step < warp.tiles(); n++) {
            if constexpr (!F::groups)
                gpu_prefetch_chosen(p, choice.at, gpu_lone_panels<F>(p) > 1 && tile + (n + 1) * step >= warp.tiles());
            warp.multiply(tile + (n + 1) * step, parts[n]);
        }
        pdl_wait();
        __syncthreads();
        const int own = opaque((int)threadIdx.x) / PANEL_ROWS;
        const gpu_lone_row<F, DEEP> of(warp, tile + own * step);
        const float rms = gpu_rms_factor(&partials, 0, 1.0f / (float)opaque(p.shape.hidden), p.eps);
        if constexpr (F::by_row && !F::groups) {            /* sixteen bytes a lane of each k block leave no registers for them before */
            gate_bias = gpu_bias_early(p.gate, of.offset, of.row, of.there);
            up_bias = gpu_bias_early(p.up, of.offset, of.row + gpu_rows_to_second<F>(p), of.there);
        }
        const float *gate = parts[own][threadIdx.x % PANEL_ROWS], *up = parts[own][PANEL_ROWS + threadIdx.x % PANEL_ROWS];
        gpu_store_lone(p, of, epilogue_sum(sum_warp_partials(gate), rms, gate_bias), epilogue_sum(sum_warp_partials(up), rms, up_bias),
                       choice.weight[of.entry]);
        __syncthreads();
    }
}
