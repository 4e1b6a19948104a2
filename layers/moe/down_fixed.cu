/* layers/moe/down_fixed.cu: experts_down for the shapes and formats of decode_launch.cu's table, the shared expert of the same format
   and size as the routed ones. One kernel for one token row, one for two to four, and one for those where shared memory holds only a part.

   Touches, and may read early, the same as gpu_experts_down, and gives the same sums in the same order. One addition: the
   shared expert's h, which norm_router writes, is read before the wait as well. */

/* A warp's part of an active expert: WARP_K_BLOCKS whole k blocks. An item is one k block of one active expert, in their order. */
template <class F, class SHAPE> struct down_sizes {
    enum {
        EXPERTS = SHAPE::TOP_K + 1,                         /* of a row, the shared one first */
        PANEL = SHAPE::EXPERT / (4 * F::per_load) * F::panel,           /* bytes from a tile's first row panel to its second */
        WARP_K_BLOCKS = SHAPE::EXPERT / (4 * F::per_load) / GPU_WARPS,
        EIGHTS = SHAPE::EXPERT / GPU_WARPS / 8,             /* eights of columns */
        ITEM_BYTES = gpu_step_pairs<F>() * 128 + (int)sizeof(float)     /* of the activation fragments of one row */
    };
};

/* One token row: nine active experts. Grid: one block per 16 output rows (two row panels).

   Performance: from the wait on there is neither a loop nor a branch up to the first product: before one, the compiler
   would wait for the weights in flight. Only PRELOAD items are loaded before the wait: more would take bandwidth from
   experts_up, which still loads its own. The shared expert's come first, as they do not depend on the routing. */
template <class F, class SHAPE> struct down_row_sizes : down_sizes<F, SHAPE> {
    typedef down_sizes<F, SHAPE> of;
    enum {
        ITEMS = of::EXPERTS * of::WARP_K_BLOCKS,
        ROUND = of::WARP_K_BLOCKS > 1 ? 6 : 9, PRELOAD = 5, /* of a warp; in flight; before the wait */
        PARTS = SHAPE::TOP_K * of::EIGHTS / 32,             /* eights of columns of a lane, of all routed experts */
        BYTES = (ITEMS * of::ITEM_BYTES + 15) / 16 * 16     /* of a warp's fragments */
    };
    static_assert((int)ITEMS % ROUND == 0 && (int)of::WARP_K_BLOCKS <= PRELOAD, "whole rounds; the shared expert is preloaded");
};

/* What a warp of gpu_experts_down_row reads: a round of items in flight, and the scale of one of them. */
template <class F, class SHAPE> struct gpu_down_row_warp {
    typedef down_row_sizes<F, SHAPE> sizes;
    enum { WARP_K_BLOCKS = sizes::WARP_K_BLOCKS, EIGHTS = sizes::EIGHTS, ROUND = sizes::ROUND };
    const moe_gpu &p;
    const char *const *data;     /* of each active expert, in shared memory: the tile's weights and scales */
    const float *const *scales;
    const int lane, warp;
    typename F::raw raw[ROUND][2];
    float scale;

    __device__ __forceinline__ gpu_down_row_warp(const moe_gpu &p, const char *const *data, const float *const *scales)
        : p(p), data(data), scales(scales), lane(threadIdx.x % 32), warp(threadIdx.x / 32), scale(1) {}
    /* Eight columns of h, of expert part / EIGHTS. */
    __device__ __forceinline__ void load_h(float *to, int part) const {
        const float *h = p.h + part / EIGHTS * STEP_ROWS * p.h_row + (warp * EIGHTS + part % EIGHTS) * 8;
        gpu_load4(to, h, true);
        gpu_load4(to + 4, h + 4, true);
    }
    __device__ __forceinline__ void load_k_block(int j, const char *expert, const float *rows, int k_block) {
        const char *at = expert + ((warp * WARP_K_BLOCKS + k_block) * F::panel + lane * F::lane);
        gpu_load_weights<F>(&raw[j][0], at, 0, rows + lane / 4, true);
        gpu_load_weights<F>(&raw[j][1], at, sizes::PANEL, rows + lane / 4 + PANEL_ROWS, true);
    }
    __device__ __forceinline__ void load(int j, int round) {
        const int item = round * ROUND + j;
        load_k_block(j, data[item / WARP_K_BLOCKS], scales[item / WARP_K_BLOCKS], item % WARP_K_BLOCKS);
    }
    /* Lane j: of item j of the round, for both panels. */
    __device__ __forceinline__ void load_scale(int round) {
        const int item = round * ROUND + min(lane, ROUND - 1);
        if (F::scaled)
            scale = ld_volatile(scales[item / WARP_K_BLOCKS] +
                                (warp * WARP_K_BLOCKS + item % WARP_K_BLOCKS >> p.down.k_block_shift));
    }
    /* sum += all items. */
    __device__ __forceinline__ void multiply(const activation_fragments &act, float *sum) {
        enum { pairs = gpu_step_pairs<F>(), ROUNDS = sizes::ITEMS / ROUND };
        const uint4 *fragments = gpu_lane_fragments<F, 1>(act);
#pragma unroll 1
        for (int round = 0; round < ROUNDS; round++, fragments += ROUND * pairs * 8) {
            float factor = F::half && lane < ROUND ? scale * (act.act_scale[round * ROUND + lane] * gpu_post_scale<F>()) : 0;
            if (round + 1 < ROUNDS) load_scale(round + 1);
#pragma unroll
            for (int j = 0; j < ROUND; j++) {
                uint4 x[pairs];
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(j * pairs + pair) * 8];
                gpu_multiply<F, 1>(sum, raw[j], x, factor, j, 0, true);
                if (round + 1 < ROUNDS) load(j, round + 1);
            }
        }
    }
};

/* Lists the active experts' weights and scales of a tile that begins `skipped` bytes from a matrix's: thread i's is expert i, which lies
   `shift` bytes from the first routed one. */
template <int EXPERTS>
__device__ __forceinline__ void gpu_list_row_experts(const moe_gpu &p, int64_t shift, size_t skipped, const char **data, const float **scales) {
    if (threadIdx.x >= EXPERTS) return;
    const gpu_matrix &w = threadIdx.x ? p.down : p.shared_down;
    data[threadIdx.x] = w.data + shift + skipped;
    scales[threadIdx.x] = (const float *)((const char *)w.scale + shift) + ((int)blockIdx.x * TILE_ROWS >> w.row_shift) * w.scale_cols;
}

template <class F, class SHAPE>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_row(const __grid_constant__ moe_gpu p) {
    typedef down_row_sizes<F, SHAPE> sizes;
    enum { WARP_K_BLOCKS = sizes::WARP_K_BLOCKS, EIGHTS = sizes::EIGHTS, ROUND = sizes::ROUND };
    enum { EXPERTS = sizes::EXPERTS, PARTS = sizes::PARTS, PRELOAD = sizes::PRELOAD };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][STEP_ROWS][GPU_WARPS];
    __shared__ const char *data[EXPERTS];
    __shared__ const float *scales[EXPERTS];
    gpu_down_row_warp<F, SHAPE> warp(p, data, scales);
    const int lane = threadIdx.x % 32, tile = (int)blockIdx.x, row = tile * TILE_ROWS + threadIdx.x;
    const activation_fragments act =
        activation_fragments_at<F, 1>((char *)dynamic + threadIdx.x / 32 * sizes::BYTES, sizes::ITEMS);
    float shared[8], routed[PARTS][8], sum[4] = {0, 0, 0, 0};
    pdl_launch_dependents();
    const int64_t shift = threadIdx.x && threadIdx.x < EXPERTS ? gpu_listed_at(p, threadIdx.x - 1) : 0;
    const size_t skipped = (size_t)(2 * tile) * (uint32_t)(p.down.k_blocks * F::panel);         /* bytes of a matrix before this tile */
#pragma unroll
    for (int j = 0; j < WARP_K_BLOCKS; j++)                 /* needs no routing */
        warp.load_k_block(j, p.shared_down.data + skipped, p.shared_down.scale + tile * TILE_ROWS, j);
    const float gate = gpu_shared_weight(p, 0);
    warp.load_h(shared, lane % EIGHTS);
    const bool stores = threadIdx.x < TILE_ROWS && row < p.shape.hidden;
    const float before = stores ? epilogue_before<false>(p.end, p.down, row, p.to + row) : 0;
    gpu_list_row_experts<EXPERTS>(p, shift, skipped, data, scales);
    __syncthreads();
#pragma unroll
    for (int j = WARP_K_BLOCKS; j < PRELOAD; j++) warp.load(j, 0);
    warp.load_scale(0);
    pdl_wait();
#pragma unroll
    for (int n = 0; n < PARTS; n++) warp.load_h(routed[n], EIGHTS + n * 32 + lane);
    __syncwarp();                                           /* so that the compiler leaves the weights after h */
#pragma unroll
    for (int j = PRELOAD; j < ROUND; j++) warp.load(j, 0);
    gpu_stage_h<F>(act, lane, shared, gate, lane < EIGHTS);
#pragma unroll
    for (int n = 0; n < PARTS; n++) gpu_stage_h<F>(act, EIGHTS + n * 32 + lane, routed[n], 1, true);
    __syncwarp();
    warp.multiply(act, sum);
    store_warp_partial<1>(parts, sum);
    __syncthreads();
    if (stores) epilogue_output(p.end, &p.to[row], row, sum_warp_partials(parts[threadIdx.x][0]), 1, before, p.link.publish);
}

/* Items of several rows in flight. Of four bits, so many that the usual number of active experts fills whole rounds, if a warp has
   one k block of each: 17 with two rows, 25 with three, 32 with four. Eight of them, which fill rounds of four rows and not of three, ptxas
   keeps in registers for compute capability 9.0 alone. */
template <class F, int WARP_K_BLOCKS, int ROWS> constexpr int gpu_down_deep() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 100 == 9
    if (F::lane == 8 && ROWS == 4) return 8;
#endif
    return WARP_K_BLOCKS == 4 ? 8 : 6;
}

/* Two to four token rows, ROWS = gpu_fixed_rows(T). Grid as above. There are up to 1 + TOP_K ROWS active experts; a warp keeps DEEP
   items in flight. Each row has nine assignments; each assignment has a slot of WARP_K_BLOCKS k blocks in the warp's activation
   fragments, all staged at once. Slot NONE is all zeros, for the rows that do not use an active expert. */
template <class F, class SHAPE, int ROWS> struct down_rows_sizes : down_sizes<F, SHAPE> {
    typedef down_sizes<F, SHAPE> of;
    enum { ACTIVE = 1 + SHAPE::TOP_K * ROWS, ASSIGNMENTS = of::EXPERTS * ROWS, NONE = ASSIGNMENTS };
    enum { DEEP = gpu_down_deep<F, of::WARP_K_BLOCKS, ROWS>() };
    /* Eights of columns of h of a lane: of the shared expert, of all routed ones, and how many of those are in flight. */
    enum { SHARED = (ROWS * of::EIGHTS + 31) / 32, ROUTED = SHAPE::TOP_K * ROWS * of::EIGHTS / 32 };
    enum { AT_ONCE = of::WARP_K_BLOCKS == 4 ? 2 : ROUTED > 6 ? 4 : (int)ROUTED };
    static_assert((int)ROUTED % AT_ONCE == 0, "whole rounds");
    enum { BYTES = ((ASSIGNMENTS + 1) * of::WARP_K_BLOCKS * of::ITEM_BYTES + 15) / 16 * 16 };  /* of a warp's fragments */
    enum { IN_PARTS = 0, SLOTS = ASSIGNMENTS };
    /* Of T rows; the shared expert has ROWS in any case. */
    __device__ __forceinline__ static int assignments(int T) { return ROWS + SHAPE::TOP_K * gpu_rows_there<ROWS>(T); }
};

/* The active experts of a block, in shared memory, and their slots. */
template <class F, class SHAPE, int ROWS> struct gpu_active_experts {
    typedef down_rows_sizes<F, SHAPE, ROWS> sizes;
    int32_t count;
    /* after the active ones stand others, up to the end of the last round */
    const char *data[sizes::ACTIVE + sizes::DEEP];          /* the tile's weights and scales */
    const float *scales[sizes::ACTIVE + sizes::DEEP];
    uint8_t slot[sizes::ACTIVE + sizes::DEEP][STEP_ROWS]; /* of active expert and row */
    uint8_t use[sizes::ASSIGNMENTS];                        /* of a slot: active expert * STEP_ROWS + row */
    float gate[STEP_ROWS];
};

/* Fills gpu_active_experts, before the wait: threads 0 .. 31 (warp 0) one routed expert each, thread 32 the shared one,
   which has the first slots. A routed expert's first slot is a prefix sum of row counts over the warp. panel: the tile's first.

   Entries of no active expert, whose scales are loaded all the same, are the shared expert's: routed expert 0 may be in host memory. */
template <class F, class SHAPE, int ROWS>
__device__ __forceinline__ void gpu_list_active_experts(const moe_gpu &p, int panel,
                                                        gpu_active_experts<F, SHAPE, ROWS> *to) {
    typedef down_rows_sizes<F, SHAPE, ROWS> sizes;
    const int i = threadIdx.x, entry = i < 32 ? 1 + i : 0;
    const auto put = [&](int at, const gpu_matrix &w, int64_t shift) {
        to->data[at] = w.data + (size_t)panel * sizes::PANEL + shift;
        to->scales[at] = (const float *)((const char *)(w.scale + (panel * PANEL_ROWS >> w.row_shift) * w.scale_cols) + shift);
    };
    if (i > 32) {
        const int spare = sizes::ACTIVE + i - 33;
        if (i - 33 < sizes::DEEP) {
            *(uint32_t *)to->slot[spare] = sizes::NONE * 0x01010101u;
            put(spare, p.shared_down, 0);
        }
        if (i >= 64 && i - 64 < ROWS) to->gate[i - 64] = gpu_shared_weight(p, gpu_row_there<ROWS>(i - 64, p.T - 1));
        return;
    }
    const int count = min(__ldcg(&p.routing->count), (int)sizes::ACTIVE - 1), all_rows = (1 << ROWS) - 1;
    const int listed = __ldcg(&p.routing->rows[i % 32]);
    const int64_t listed_at = gpu_listed_at(p, i % 32);
    const int rows = entry == 0 ? all_rows : i < count ? listed & all_rows : 0;
    int before = 0;
    if (entry) before = ROWS + warp_prefix_sum(__popc(rows)) - __popc(rows);
    else to->count = 1 + count;
    if (entry >= sizes::ACTIVE) return;
    if (rows && entry) put(entry, p.down, listed_at);
    else put(entry, p.shared_down, 0);
#pragma unroll
    for (int t = 0; t < STEP_ROWS; t++) {
        bool is = (rows >> t & 1) && before < sizes::ASSIGNMENTS;
        to->slot[entry][t] = (uint8_t)(is ? before : sizes::NONE);
        if (is) to->use[before++] = (uint8_t)(entry * STEP_ROWS + gpu_row_there<ROWS>(t, p.T - 1));
    }
}

/* The weights that a warp has in flight: DEEP items of PANELS row panels, and the scale of one of them. SIZES: down_rows_sizes, or those of
   parts. */
template <class F, class SHAPE, int ROWS, class SIZES, int PANELS> struct gpu_down_rows_weights {
    enum { DEEP = SIZES::DEEP, WARP_K_BLOCKS = SIZES::WARP_K_BLOCKS, ROUND = DEEP / WARP_K_BLOCKS };        /* ROUND: experts */
    const moe_gpu &p;
    const gpu_active_experts<F, SHAPE, ROWS> &active;
    const int lane, warp;
    int count;                   /* active experts */
    typename F::raw raw[DEEP][PANELS];
    float scale;

    __device__ __forceinline__ gpu_down_rows_weights(const moe_gpu &p, const gpu_active_experts<F, SHAPE, ROWS> &active)
        : p(p), active(active), lane(threadIdx.x % 32), warp(threadIdx.x / 32), count(0), raw{}, scale(1) {}
    __device__ __forceinline__ int scale_slot() const { return min(lane / ROWS, DEEP - 1); }
    /* Item j of the round that begins with active expert `from`. */
    __device__ __forceinline__ void load(int j, int from) {
        const int lane_offset = warp * WARP_K_BLOCKS * F::panel + lane * F::lane;
        const char *at = active.data[from + j / WARP_K_BLOCKS] + (lane_offset + j % WARP_K_BLOCKS * F::panel);
        const float *rows = active.scales[from + j / WARP_K_BLOCKS] + lane / 4;
        const bool there = from + j / WARP_K_BLOCKS < count;
#pragma unroll
        for (int i = 0; i < PANELS; i++) gpu_load_weights<F>(&raw[j][i], at, i * SIZES::PANEL, rows + i * PANEL_ROWS, there);
    }
    /* Lane ROWS j + t: of item j of the round, for all panels. */
    __device__ __forceinline__ void load_scale(int from) {
        const int k_block = warp * WARP_K_BLOCKS + scale_slot() % WARP_K_BLOCKS;
        if (F::scaled) scale = ld_volatile(active.scales[from + scale_slot() / WARP_K_BLOCKS] + (k_block >> p.down.k_block_shift));
    }
    /* Where the warp's fragments of an active expert's row are: k blocks. base: the first slot's assignment, in parts. */
    __device__ __forceinline__ int slot_of(int entry, int row, int base) const {
        const int slot = active.slot[entry][row];
        if constexpr (SIZES::IN_PARTS) return (slot == SIZES::NONE ? (int)SIZES::SLOTS : slot - base) * WARP_K_BLOCKS;
        else return slot * WARP_K_BLOCKS;
    }
    /* sum[panel / 2] += the round that begins with active expert `from`. */
    __device__ __forceinline__ void multiply(const activation_fragments &act, int from, int base, float (*sum)[4]) {
        enum { pairs = gpu_step_pairs<F>() };
        const uint4 *fragments = act.x + lane / 16 * 4 + lane % 4;
        float factor = 0;
        if (F::half)
            factor = scale * (gpu_post_scale<F>() * act.act_scale[slot_of(from + scale_slot() / WARP_K_BLOCKS, lane % ROWS, base) +
                                                                  scale_slot() % WARP_K_BLOCKS]);
        const int next = min(from + ROUND, (int)SIZES::ACTIVE);         /* the lists end ROUND entries on */
        load_scale(next);
#pragma unroll
        for (int j = 0; j < DEEP; j++) {
            uint4 x[pairs];
            const int slot = slot_of(from + j / WARP_K_BLOCKS, lane % 16 / 4 % ROWS, base) + j % WARP_K_BLOCKS;
#pragma unroll
            for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(slot * pairs + pair) * 8];
            gpu_multiply<F, ROWS>(sum[0], raw[j], x, factor, j * ROWS, 0, true);
            if constexpr (PANELS == 3) gpu_multiply<F, ROWS, 1>(sum[1], raw[j] + 2, x, factor, j * ROWS, 0, true);
            load(j, next);
            __syncwarp();                                   /* so that the compiler leaves the loads here */
        }
    }
};

/* Slot `slot` of a warp's fragments is all zeros. */
template <class F, int WARP_K_BLOCKS> __device__ __forceinline__ void gpu_clear_slot(const activation_fragments &act, int slot) {
    enum { pairs = gpu_step_pairs<F>() };
    const int lane = threadIdx.x % 32;
    if (lane < WARP_K_BLOCKS * pairs * 8) act.x[slot * WARP_K_BLOCKS * pairs * 8 + lane] = make_uint4(0, 0, 0, 0);
    if (F::half && lane < WARP_K_BLOCKS) act.act_scale[slot * WARP_K_BLOCKS + lane] = 0;
}

/* A lane's columns of h, eight at a time: those of the shared expert, which are there before the wait, and whose the routed ones are. */
template <class F, class SHAPE, int ROWS> struct gpu_down_rows_h {
    typedef down_rows_sizes<F, SHAPE, ROWS> sizes;
    enum { EIGHTS = sizes::EIGHTS, SHARED = sizes::SHARED, ROUTED = sizes::ROUTED, AT_ONCE = sizes::AT_ONCE };
    const moe_gpu &p;
    const activation_fragments &act;
    float shared[SHARED][8], gate[SHARED];
    int routed[ROUTED];          /* rows of h */

    /* Of row i of h. */
    __device__ __forceinline__ void load(float *to, int i) const {
        const float *h = p.h + i * p.h_row + (threadIdx.x / 32 * EIGHTS + threadIdx.x % 32 % EIGHTS) * 8;
        gpu_load4(to, h, true);
        gpu_load4(to + 4, h + 4, true);
    }
    /* As item `lane` from a slot on. */
    __device__ __forceinline__ void stage(float *v, int slot, float gate) const {
        enum { WARP_K_BLOCKS = sizes::WARP_K_BLOCKS };
        const activation_fragments to = {act.x + slot * WARP_K_BLOCKS * gpu_step_pairs<F>() * 8, act.act_scale + slot * WARP_K_BLOCKS};
        gpu_stage_h<F>(to, threadIdx.x % 32, v, gate, true);
    }
    /* The token row of the shared expert's h whose eight columns, number n of this lane's, it stages. Lanes after the last row
       load that again and store it to the first slots of routed experts, which are staged next: an `if` would be a branch, in
       front of which the compiler waits for the routed experts' h. */
    __device__ __forceinline__ int shared_row(int n) const {
        return min((n * 32 + (int)(threadIdx.x % 32)) / EIGHTS, gpu_rows_there<ROWS>(p.T) - 1);
    }
    __device__ __forceinline__ void load_shared() {
#pragma unroll
        for (int n = 0; n < SHARED; n++) load(shared[n], shared_row(n));
    }
    __device__ __forceinline__ void list(const gpu_active_experts<F, SHAPE, ROWS> &active) {
#pragma unroll
        for (int n = 0; n < SHARED; n++) gate[n] = active.gate[shared_row(n)];
#pragma unroll
        for (int n = 0; n < ROUTED; n++)
            routed[n] = active.use[min(ROWS + (n * 32 + (int)(threadIdx.x % 32)) / EIGHTS, sizes::assignments(p.T) - 1)];
    }
    __device__ __forceinline__ void stage_all() {
#pragma unroll
        for (int from = 0; from < ROUTED; from += AT_ONCE) {
            float v[AT_ONCE][8];
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) load(v[n], routed[from + n]);
            __syncwarp();                                   /* so that the compiler leaves the loads here */
#pragma unroll
            for (int n = 0; from == 0 && n < SHARED; n++) stage(shared[n], n * 32 / EIGHTS, gate[n]);
            __syncwarp();
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) stage(v[n], ROWS + (from + n) * 32 / EIGHTS, 1);
        }
        __syncwarp();
    }
};

/* Threads 16 t .. 16 t + 15 store the tile's rows of token row t. Weights of the first DEEP items are loaded before the
   wait, and the shared expert's h; after it a lane loads all it can hold of h before it stages the first.

   Of an mma's B operand, lane / 4 is the column: 0 .. 3 are the high terms of rows 0 .. 3, 4 .. 7 the low ones. So lane
   reads row lane % 16 / 4, modulo ROWS, as columns past the last row repeat another's and their sums are not stored. */
template <class F, class SHAPE, int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_rows(const __grid_constant__ moe_gpu p) {
    typedef down_rows_sizes<F, SHAPE, ROWS> sizes;
    typedef gpu_down_rows_weights<F, SHAPE, ROWS, sizes, 2> in_flight;
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][STEP_ROWS][GPU_WARPS];
    __shared__ __align__(16) gpu_active_experts<F, SHAPE, ROWS> active;
    const int tile = (int)blockIdx.x, t = threadIdx.x / TILE_ROWS, row = tile * TILE_ROWS + threadIdx.x % TILE_ROWS;
    const activation_fragments act = activation_fragments_at<F, 1>((char *)dynamic + threadIdx.x / 32 * sizes::BYTES,
                                                                   (sizes::ASSIGNMENTS + 1) * sizes::WARP_K_BLOCKS);
    const bool stores = t < gpu_rows_there<ROWS>(p.T) && row < p.shape.hidden;
    in_flight weights(p, active);
    gpu_down_rows_h<F, SHAPE, ROWS> h = {p, act};
    float sum[1][4] = {};
    pdl_launch_dependents();
    h.load_shared();
    const float before = stores ? epilogue_before<false>(p.end, p.down, row, p.to + t * p.shape.hidden + row) : 0;
    gpu_list_active_experts<F, SHAPE, ROWS>(p, 2 * tile, &active);
    gpu_clear_slot<F, sizes::WARP_K_BLOCKS>(act, sizes::NONE);
    __syncthreads();
    weights.count = active.count;
#pragma unroll
    for (int j = 0; j < sizes::DEEP; j++) weights.load(j, 0);
    weights.load_scale(0);
    h.list(active);
    pdl_wait();
    h.stage_all();
#pragma unroll 1
    for (int from = 0; from < weights.count; from += in_flight::ROUND) weights.multiply(act, from, 0, sum);
    store_warp_partial<ROWS>(parts, sum[0]);
    __syncthreads();
    if (stores)
        epilogue_store(&p.to[t * p.shape.hidden + row], sum_warp_partials(parts[threadIdx.x % TILE_ROWS][t]), 1, before, p.link.publish);
}

/* The same where shared memory does not hold all assignments: the active experts in parts, as many whole rounds as there are slots for.
   Of four bits alone: others' weights of such a shape fill a GPU's memory.

   A part's h is copied to the slots in the background and becomes fragments where it lies, which have the same size. SLOTS: for two
   parts in most cases. Tiles of two panels are 192 blocks for 132 SMs, each of which stages all of h: 27.1 and 34.7 us with three and
   four rows, where this takes 23.5 and 28.6 (an H100, 122B). With as many slots as fit (22) it takes 26.4 and 31.4. */
template <class F, class SHAPE, int ROWS> struct down_parts_sizes : down_rows_sizes<F, SHAPE, ROWS> {
    typedef down_rows_sizes<F, SHAPE, ROWS> of;
    enum { PANELS = 3 };         /* of a tile: 122B's hidden size is 128 tiles of 24 rows, one for each SM */
    enum { DEEP = 6, ROUND = DEEP / of::WARP_K_BLOCKS };    /* items; active experts */
    enum { STEP = 32 / of::EIGHTS };                        /* slots whose eights of columns are a warp's lanes */
    enum { IN_PARTS = 1, SLOTS = 20, BYTES = ((SLOTS + 1) * of::WARP_K_BLOCKS * of::ITEM_BYTES + 15) / 16 * 16 };
    static_assert((int)DEEP % of::WARP_K_BLOCKS == 0 && (int)SLOTS % STEP == 0, "whole rounds, whole steps");
    static_assert(ROUND * ROWS <= (int)SLOTS && GPU_WARPS * BYTES + 5632 <= GPU_SHARED, "a part has a round, and fits");
};

/* The active experts from .. end - 1, whose assignments are base .. next - 1. */
struct gpu_down_part {
    int from, end, base, next;
};

template <class F, class SHAPE, int ROWS>
__device__ __forceinline__ gpu_down_part gpu_part_from(const moe_gpu &p, const gpu_active_experts<F, SHAPE, ROWS> &active, int from,
                                                       int base) {
    typedef down_parts_sizes<F, SHAPE, ROWS> sizes;
    gpu_down_part part = {from, active.count, base, sizes::assignments(p.T)};
    if (base + sizes::SLOTS >= part.next) return part;
    const int over = active.use[base + sizes::SLOTS] / STEP_ROWS;       /* the first active expert not all of whose rows have slots */
    part.end = from + (over - from) / sizes::ROUND * sizes::ROUND;
    part.next = (int)__reduce_min_sync(~0u, (uint32_t)active.slot[part.end][threadIdx.x % STEP_ROWS]);
    return part;
}

/* Stages a part's h: assignment base + i in slot i. A warp copies its columns of one assignment at a time, and then makes eight of them a
   lane to fragments, AT_ONCE steps of STEP slots at a time: what it overwrites it has read before. */
template <class F, class SHAPE, int ROWS>
__device__ __forceinline__ void gpu_stage_part(const moe_gpu &p, const gpu_active_experts<F, SHAPE, ROWS> &active, const gpu_down_part &part,
                                               const activation_fragments &act) {
    typedef down_parts_sizes<F, SHAPE, ROWS> sizes;
    enum { EIGHTS = sizes::EIGHTS, STEP = sizes::STEP, STEPS = sizes::SLOTS / STEP, AT_ONCE = 3 };
    enum { SLOT = sizes::WARP_K_BLOCKS * gpu_step_pairs<F>() * 8 };         /* uint4 of a slot: as many as its columns of h */
    static_assert((int)SLOT == 32 && EIGHTS * 2 == (int)SLOT, "a lane has one of them");
    const int lane = threadIdx.x % 32;
    const float *h = p.h + (threadIdx.x / 32 * 32 + lane) * 4;
#pragma unroll
    for (int i = 0; i < sizes::SLOTS; i++) {
        const int number = min(part.base + i, sizes::assignments(p.T) - 1);
        cp_async16(shared_address(act.x + i * SLOT + lane), h + active.use[number] * p.h_row, part.base + i < part.next);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
#pragma unroll
    for (int begin = 0; begin < STEPS; begin += AT_ONCE) {
        float v[AT_ONCE][8];
#pragma unroll
        for (int n = begin; n < begin + AT_ONCE && n < STEPS; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) *(float4 *)(v[n - begin] + 4 * i) = *(const float4 *)(act.x + n * STEP * SLOT + lane * 2 + i);
        __syncwarp();
#pragma unroll
        for (int n = begin; n < begin + AT_ONCE && n < STEPS; n++) {
            const activation_fragments to = {act.x + n * STEP * SLOT, act.act_scale + n * STEP * sizes::WARP_K_BLOCKS};
            const int number = part.base + n * STEP + lane / EIGHTS;
            gpu_stage_h<F>(to, lane, v[n - begin], number < ROWS ? active.gate[number] : 1, true);
        }
    }
    __syncwarp();
}

template <class F, class SHAPE, int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 1) gpu_experts_down_parts(const __grid_constant__ moe_gpu p) {
    typedef down_parts_sizes<F, SHAPE, ROWS> sizes;
    enum { PANELS = sizes::PANELS, ROWS_OF_TILE = PANELS * PANEL_ROWS };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[2 * TILE_ROWS][STEP_ROWS][GPU_WARPS];       /* the last 8 rows are of no panel */
    __shared__ __align__(16) gpu_active_experts<F, SHAPE, ROWS> active;
    const int tile = (int)blockIdx.x, t = threadIdx.x / ROWS_OF_TILE, row = tile * ROWS_OF_TILE + threadIdx.x % ROWS_OF_TILE;
    const activation_fragments act = activation_fragments_at<F, 1>((char *)dynamic + threadIdx.x / 32 * sizes::BYTES,
                                                                   (sizes::SLOTS + 1) * sizes::WARP_K_BLOCKS);
    const bool stores = t < gpu_rows_there<ROWS>(p.T) && row < p.shape.hidden;
    gpu_down_rows_weights<F, SHAPE, ROWS, sizes, PANELS> weights(p, active);
    float sum[2][4] = {};
    pdl_launch_dependents();
    const float before = stores ? epilogue_before<false>(p.end, p.down, row, p.to + t * p.shape.hidden + row) : 0;
    gpu_list_active_experts<F, SHAPE, ROWS>(p, PANELS * tile, &active);
    gpu_clear_slot<F, sizes::WARP_K_BLOCKS>(act, sizes::SLOTS);
    __syncthreads();
    weights.count = active.count;
#pragma unroll
    for (int j = 0; j < sizes::DEEP; j++) weights.load(j, 0);
    weights.load_scale(0);
    pdl_wait();
#pragma unroll 1
    for (gpu_down_part part = {0, 0, 0, 0}; part.end < weights.count;) {
        part = gpu_part_from<F, SHAPE, ROWS>(p, active, part.end, part.next);
        gpu_stage_part<F, SHAPE, ROWS>(p, active, part, act);
#pragma unroll 1
        for (int from = part.from; from < part.end; from += sizes::ROUND) weights.multiply(act, from, part.base, sum);
    }
    store_warp_partial<ROWS>(parts, sum[0]);
    store_warp_partial<ROWS>(parts + TILE_ROWS, sum[1]);
    __syncthreads();
    if (stores)
        epilogue_store(&p.to[t * p.shape.hidden + row], sum_warp_partials(parts[threadIdx.x % ROWS_OF_TILE][t]), 1, before, p.link.publish);
}
