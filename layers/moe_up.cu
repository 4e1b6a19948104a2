/* layers/moe_up.cu: experts_up on a GPU: gate and up projections of the distinct experts, SwiGLU. */

/* SiLU(gate) * up of a row of a tile's panels. */
__device__ __forceinline__ float gpu_up_times(const float (*part)[GPU_ROWS][GPU_WARPS], int row, int t, float rms) {
    float gate = sum_warp_partials(part[row][t]) * rms, up = sum_warp_partials(part[row + PANEL_ROWS][t]) * rms;
    return gate * gpu_sigmoid(gate) * up;
}

/* Tiles of experts_up: a panel of an expert's gate rows and the same of its up rows. */
template <int ROWS> struct gpu_up_tiles {
    enum { normed = 1, routed = 1 };
    const gpu_moe &p;
    gpu_choice *choice;
    float square[ROWS];          /* this lane's part of the rows' squares */
    int chosen, listed;          /* the expert this lane has chosen, and its place in the list */
    __device__ __forceinline__ float per_col() const { return 1.0f / (float)p.shape.hidden; }
    __device__ __forceinline__ float eps() const { return p.shape.eps; }
    __device__ __forceinline__ int next(int tile) const { return tile + gridDim.x; }
    __device__ __forceinline__ bool valid(int tile) const { return tile < choice->list.count * p.gate.panels; }
    __device__ __forceinline__ int entry(int tile) const {
        return p.gate.panels == 1 ? tile : (int)__umulhi((uint32_t)tile, p.per_tile);
    }
    __device__ __forceinline__ gpu_place place(int tile) const {
        int i = entry(tile), panel = tile - i * p.gate.panels;
        gpu_place at = gpu_place_of(p.gate, panel, p.up, panel);
        int64_t shift = choice->list.expert[i] * p.stride;
        at.data[0] += shift;
        at.data[1] += shift;
        at.scale = (const float *)((const char *)at.scale + shift);
        return at;
    }
    template <class F, int>
    __device__ __forceinline__ void prepare(int, int, const activation_fragments &, float *to, int) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++) to[t] = square[t];
        const int t = threadIdx.x / 32;                     /* the weights: not needed before the first sum is */
        if (t >= p.T) return;
        float weight = gpu_weigh(__ldcg(gpu_logit<ROWS>(p, t, chosen)), p.shape.top_k);
        if ((int)threadIdx.x % 32 < p.shape.top_k) choice->weight[listed][t] = weight;
    }
    __device__ __forceinline__ float old(int, int, int) const { return 0; }
    __device__ __forceinline__ void store(int tile, int row, int t, const float (*part)[GPU_ROWS][GPU_WARPS], float,
                                          float rms, bool real) const {
        int i = entry(tile), at = (tile - i * p.gate.panels) * PANEL_ROWS + row;
        if (row >= PANEL_ROWS || at >= p.gate.rows || !(choice->list.rows[i] >> t & 1)) return;
        float h = gpu_up_times(part, row, t, rms) * choice->weight[i][t];
        if (real) p.h[((i + 1) * GPU_ROWS + t) * p.h_row + at] = h;
    }
};

/* The activation fragments of experts_up: each warp what it will read itself. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_stage_up(const gpu_moe &p, void *memory, float *square) {
    const gpu_norm_rows in = {p.x, p.norm, p.shape.hidden};
    int count, first = gpu_share(p.gate.k_blocks, threadIdx.x / 32, GPU_WARPS, &count);
    gpu_stage_activations<F, ROWS, 1>(in, p.T, first, count, activation_fragments_at<F, ROWS>(memory, p.gate.k_blocks), square);
}

/* experts_up: routing, then h = SiLU(gate u) * (up u) for the rows that use an expert. */
template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_up(const __grid_constant__ gpu_moe p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials partials;
    __shared__ gpu_choice choice;
    const int tile = (int)blockIdx.x;
    gpu_ahead<ROWS> ahead;
    l2_prefetch_share(p.prefetch);
#pragma unroll 1
    for (int real = tile >= p.warmup; real < 2; real++) {
        gpu_up_tiles<ROWS> tiles = {p, &choice, {}, 0, 0};
        gpu_route_nothing(&choice);
        if (real) pdl_wait();
        switch (p.gate.type) {
            case DTYPE_FP8: gpu_stage_up<format_fp8, ROWS>(p, dynamic, tiles.square); break;
            case DTYPE_BF16: gpu_stage_up<format_bf16, ROWS>(p, dynamic, tiles.square); break;
            case DTYPE_F16: gpu_stage_up<format_f16, ROWS>(p, dynamic, tiles.square); break;
            default: gpu_stage_up<format_f32, ROWS>(p, dynamic, tiles.square);
        }
        gpu_route<ROWS>(p, &choice, &tiles.chosen, &tiles.listed);
        if (real && threadIdx.x < 32) gpu_publish(p, choice);
        ahead.nothing(p.gate);
        if (real) ahead.begin(tiles, tile, p.gate);
        switch (p.gate.type) {
            case DTYPE_FP8: gpu_run_tiles<format_fp8, ROWS>(tiles, tile, p.gate, p.T, dynamic, &partials, ahead, real, real); break;
            case DTYPE_BF16: gpu_run_tiles<format_bf16, ROWS>(tiles, tile, p.gate, p.T, dynamic, &partials, ahead, real, real); break;
            case DTYPE_F16: gpu_run_tiles<format_f16, ROWS>(tiles, tile, p.gate, p.T, dynamic, &partials, ahead, real, real); break;
            default: gpu_run_tiles<format_f32, ROWS>(tiles, tile, p.gate, p.T, dynamic, &partials, ahead, real, real);
        }
    }
}

/* The same for eight experts a row, of at most 256, and 2,048 columns of FP8, in straight lines like the quick projections.
   Every warp knows the routing in its registers: lane 8 t + r has the r-th best expert of row t. A rehearsal goes as far as
   that. No weights are on their way before, so the logits are watched for. Who has them knows that x is complete; the warps
   that do not choose are told by those that do, at a barrier, as all that watch slow down what they watch for. */
enum { GPU_EIGHT = 8, GPU_UP_K_BLOCKS = 4 };                  /* experts of a row; a warp's k_blocks of 2,048 columns */

struct gpu_picked {
    int is, expert, listed;      /* is there a row t; its r-th best expert; the place of that in the list */
    int count;                   /* of the list */
    float weight;
};

/* key: in warp t row t's logits; shared: room for the experts of all rows. */
template <int ROWS>
__device__ __forceinline__ gpu_picked gpu_pick_experts(const gpu_moe &p, uint32_t (*key)[8], int (*shared)[GPU_EIGHT]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane / GPU_EIGHT;
    gpu_picked is = {t < ROWS, 0, 0, 0, 0};
    if (warp < ROWS) {
        int expert = gpu_choose<1, GPU_EIGHT>(p, key);
        if (lane < GPU_EIGHT) shared[warp][lane] = expert;
    }
    __syncthreads();
    is.expert = is.is ? shared[t][lane % GPU_EIGHT] : 0;
    if constexpr (ROWS == 1) {                              /* all are different */
        is.count = GPU_EIGHT;
#pragma unroll
        for (int i = 0; i < GPU_EIGHT; i++) is.listed += shared[0][i] < is.expert;
    } else {
#pragma unroll
        for (int w = 0; w < 256 / 32; w++) {                /* bit set of the experts */
            uint32_t bit = 1u << is.expert % 32, set = __reduce_or_sync(~0u, is.is && is.expert / 32 == w ? bit : 0);
            is.listed += w > is.expert / 32 ? 0 : __popc(w < is.expert / 32 ? set : set & (bit - 1));
            is.count += __popc(set);
        }
    }
    return is;
}

/* The lanes that picked entry i of the list. */
__device__ __forceinline__ uint32_t gpu_who_picked(const gpu_picked &picked, int i) {
    return __ballot_sync(~0u, picked.is && picked.listed == i);
}

/* Softmax over the eight of a row. */
__device__ __forceinline__ float gpu_weigh_eight(float logit) {
    float share = __expf(logit - __shfl_sync(~0u, logit, threadIdx.x % 32 / GPU_EIGHT * GPU_EIGHT)), sum = share;
#pragma unroll
    for (int i = GPU_EIGHT / 2; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    return share / sum;
}

/* As gpu_publish. */
__device__ __forceinline__ void gpu_publish_picked(const gpu_moe &p, const gpu_picked &picked) {
    const int lane = threadIdx.x % 32;
    pdl_wait();
    if (blockIdx.x == gridDim.x - 1) {
        uint32_t who = __match_any_sync(~0u, picked.is ? picked.listed : -1);
        int rows = 0;
        for (int t = 0; t < GPU_ROWS; t++) rows |= (who >> t * GPU_EIGHT & 0xff) ? 1 << t : 0;
        if (picked.is && __ffs((int)who) - 1 == lane) {
            p.routing->expert[picked.listed] = picked.expert;
            p.routing->rows[picked.listed] = rows;
        }
        if (lane == 0) p.routing->count = *p.chosen = picked.count;
        __threadfence();
        __syncwarp();
    }
    if (lane == 0) pdl_launch_dependents();
}

template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_up_quick(const __grid_constant__ gpu_moe p) {
    enum { MINE = GPU_UP_K_BLOCKS, TURNS = GPU_THREADS / (TILE_ROWS * GPU_ROWS) };
    typedef format_fp8 F;
    typedef gpu_short<F, MINE, ROWS> sizes;
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials partials;
    __shared__ int experts[ROWS][GPU_EIGHT];
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS % GPU_ROWS;
    const int turn = threadIdx.x / (TILE_ROWS * GPU_ROWS);
    const gpu_norm_rows in = {p.x, p.norm, p.shape.hidden};
    const activation_fragments act = activation_fragments_at<F, ROWS>(dynamic, p.gate.k_blocks);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(act);
    sizes weights;
    typename sizes::template columns<gpu_norm_rows> x;
    gpu_picked picked;
    const bool chooses = threadIdx.x < 32 * ROWS;
    float square[ROWS] = {}, rms = 1;
    uint32_t key[1][8];
    int tile = (int)blockIdx.x;
    l2_prefetch_share(p.prefetch);
#pragma unroll 1
    for (int real = tile >= p.warmup; real < 2; real++) {
        const gpu_tag logits = {real ? p.logits.mask : 0, p.logits.bits};
        if (real && !logits.mask) pdl_wait();
        if (chooses) {
            load_logits<1, ROWS>(p, threadIdx.x / 32, logits, key);
            gpu_arrive();
        } else {
            gpu_await_arrival();
        }
        x.load(in, 0);
        picked = gpu_pick_experts<ROWS>(p, key, experts);
        if (!real) __syncthreads();
    }
    const int tiles = picked.count * p.gate.panels;
    auto entry = [&](int tile) { return p.gate.panels == 1 ? tile : (int)__umulhi((uint32_t)tile, p.per_tile); };
    auto begin = [&](int tile) {
        int i = entry(tile), panel = tile - i * p.gate.panels;
        int64_t shift = __shfl_sync(~0u, picked.expert, __ffs((int)gpu_who_picked(picked, i)) - 1) * p.stride;
        weights.place = gpu_place_of(p.gate, panel, p.up, panel);
        weights.place.data[0] += shift;
        weights.place.data[1] += shift;
        weights.place.scale = (const float *)((const char *)weights.place.scale + shift);
        weights.load_scale(p.gate);
    };
    begin(min(tile, tiles - 1));
#pragma unroll
    for (int j = 0; j < MINE; j++) weights.load(j);
    x.stage_rows(in, act, square);
    store_warp_squares<ROWS>(&partials, square);
    if (threadIdx.x < 32) gpu_publish_picked(p, picked);
    picked.weight = gpu_weigh_eight(__ldcg(gpu_logit<ROWS>(p, picked.is ? threadIdx.x % 32 / GPU_EIGHT : 0, picked.expert)));
    const float act_scale = weights.act_scale(act, 0);
#pragma unroll 1
    for (int n = 0; tile < tiles; n++) {
        const int next = tile + (int)gridDim.x, i = entry(tile);
        const bool more = next < tiles;
        const float factor = weights.scale[0] * act_scale;
        float sum[4] = {0, 0, 0, 0};
        if (more) begin(next);
#pragma unroll
        for (int j = 0; j < MINE; j++) {
            weights.multiply(j, fragments, &factor, sum);
            if (more) weights.load(j);
        }
        store_warp_partial<ROWS>(partials.tile[n % 2], sum);
        __syncthreads();
        if (n == 0) {
            pdl_wait();
            rms = gpu_rms_factor(&partials, t, 1.0f / (float)p.shape.hidden, p.shape.eps);
        }
        if (n % TURNS == turn) {
            const uint32_t who = gpu_who_picked(picked, i) >> t * GPU_EIGHT & 0xff;
            const float weight = __shfl_sync(~0u, picked.weight, t * GPU_EIGHT + __ffs((int)who) - 1);
            const int at = (tile - i * p.gate.panels) * PANEL_ROWS + row;
            if (who && row < PANEL_ROWS && at < p.gate.rows)
                p.h[((i + 1) * GPU_ROWS + t) * p.h_row + at] = gpu_up_times(partials.tile[n % 2], row, t, rms) * weight;
        }
        tile = next;
    }
}

/* The kernel of experts_up that is made for these sizes, and its shared memory; NULL: there is none. */
static void (*gpu_quick_up(const gpu_moe *p, size_t *shared))(gpu_moe) {
    const gpu_matrix *w = &p->gate;
    const bool alike = p->up.type == w->type && p->up.cols == w->cols && w->type == DTYPE_FP8;
    *shared = activation_fragments_size(w->type, p->T, w->k_blocks);
    if (!alike || p->shape.top_k != GPU_EIGHT || p->shape.experts > 256 || w->k_blocks != GPU_UP_K_BLOCKS * GPU_WARPS ||
        w->cols != w->k_blocks * K_BLOCK_BYTES) return NULL;
    return p->T == 1 ? gpu_experts_up_quick<1> : p->T == 2 ? gpu_experts_up_quick<2>
         : p->T == 3 ? gpu_experts_up_quick<3> : gpu_experts_up_quick<GPU_ROWS>;
}
