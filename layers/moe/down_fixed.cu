/* layers/moe/down_fixed.cu: experts_down for the shapes of cuda/tiles.cu and most formats, the shared expert of the same format
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

template <class F, class SHAPE>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_row(const __grid_constant__ moe_gpu p) {
    typedef down_row_sizes<F, SHAPE> sizes;
    enum { pairs = gpu_step_pairs<F>(), WARP_K_BLOCKS = sizes::WARP_K_BLOCKS, EIGHTS = sizes::EIGHTS, ROUND = sizes::ROUND };
    enum { EXPERTS = sizes::EXPERTS, ROUNDS = sizes::ITEMS / ROUND, PARTS = sizes::PARTS, PRELOAD = sizes::PRELOAD };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][STEP_ROWS][GPU_WARPS];
    __shared__ const char *data[EXPERTS];                   /* of each active expert: the tile's weights and scales */
    __shared__ const float *scales[EXPERTS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = (int)blockIdx.x, row = tile * TILE_ROWS + threadIdx.x;
    const activation_fragments act = activation_fragments_at<F, 1>((char *)dynamic + warp * sizes::BYTES, sizes::ITEMS);
    const uint4 *fragments = gpu_lane_fragments<F, 1>(act);
    float shared[8], routed[PARTS][8], scale = 1, sum[4] = {0, 0, 0, 0};
    typename F::raw raw[ROUND][2];
    pdl_launch_dependents();
    auto load_h = [&](float *to, int part) {                /* eight columns of h, of expert part / EIGHTS */
        const float *h = p.h + part / EIGHTS * STEP_ROWS * p.h_row + (warp * EIGHTS + part % EIGHTS) * 8;
        gpu_load4(to, h, true);
        gpu_load4(to + 4, h + 4, true);
    };
    auto load_k_block = [&](int j, const char *expert, const float *rows, int k_block) {
        const char *at = expert + ((warp * WARP_K_BLOCKS + k_block) * F::panel + lane * F::lane);
        gpu_load_weights<F>(&raw[j][0], at, 0, rows + lane / 4, true);
        gpu_load_weights<F>(&raw[j][1], at, sizes::PANEL, rows + lane / 4 + PANEL_ROWS, true);
    };
    auto load = [&](int j, int round) {
        int item = round * ROUND + j;
        load_k_block(j, data[item / WARP_K_BLOCKS], scales[item / WARP_K_BLOCKS], item % WARP_K_BLOCKS);
    };
    auto load_scale = [&](int round) {                      /* lane j: of item j of the round, for both panels */
        int item = round * ROUND + min(lane, ROUND - 1);
        if (F::scaled)
            scale = ld_volatile(scales[item / WARP_K_BLOCKS] +
                                (warp * WARP_K_BLOCKS + item % WARP_K_BLOCKS >> p.down.k_block_shift));
    };
    const int64_t shift = threadIdx.x && threadIdx.x < EXPERTS ? gpu_listed_at(p, threadIdx.x - 1) : 0;
    /* bytes of a matrix before this tile */
    const size_t before = (size_t)(2 * tile) * (uint32_t)(p.down.k_blocks * F::panel);
#pragma unroll
    for (int j = 0; j < WARP_K_BLOCKS; j++)                 /* needs no routing */
        load_k_block(j, p.shared_down.data + before, p.shared_down.scale + tile * TILE_ROWS, j);
    const float gate = gpu_sigmoid(__ldcg(p.shared_gate));
    load_h(shared, lane % EIGHTS);
    const bool stores = threadIdx.x < TILE_ROWS && row < p.shape.hidden;
    const float residual = stores ? __ldcg(p.x + row) : 0;
    if (threadIdx.x < EXPERTS) {
        const gpu_matrix &w = threadIdx.x ? p.down : p.shared_down;
        data[threadIdx.x] = w.data + shift + before;
        scales[threadIdx.x] = (const float *)((const char *)w.scale + shift) + (tile * TILE_ROWS >> w.row_shift) * w.scale_cols;
    }
    __syncthreads();
#pragma unroll
    for (int j = WARP_K_BLOCKS; j < PRELOAD; j++) load(j, 0);
    load_scale(0);
    pdl_wait();
#pragma unroll
    for (int n = 0; n < PARTS; n++) load_h(routed[n], EIGHTS + n * 32 + lane);
    __syncwarp();                                           /* so that the compiler leaves the weights after h */
#pragma unroll
    for (int j = PRELOAD; j < ROUND; j++) load(j, 0);
    gpu_stage_h<F>(act, lane, shared, gate, lane < EIGHTS);
#pragma unroll
    for (int n = 0; n < PARTS; n++) gpu_stage_h<F>(act, EIGHTS + n * 32 + lane, routed[n], 1, true);
    __syncwarp();
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
    store_warp_partial<1>(parts, sum);
    __syncthreads();
    if (stores) store_tagged(&p.x[row], residual + sum_warp_partials(parts[threadIdx.x][0]), p.link.publish);
}

/* Items of several rows in flight. Of four bits, so many that the usual number of active experts fills whole rounds, if a warp has
   one k block of each: 17 with two rows, 25 with three, 32 with four. Eight of them ptxas keeps in registers for compute
   capability 9.0 alone. */
template <class F, int WARP_K_BLOCKS, int ROWS> constexpr int gpu_down_deep() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 100 == 9
    if (F::lane == 8 && ROWS == 4) return 8;
#endif
    return WARP_K_BLOCKS == 4 ? 8 : WARP_K_BLOCKS == 1 && F::lane == 8 && ROWS == 3 ? 5 : 6;
}

/* Two to four token rows (exactly ROWS). Grid as above. There are up to 1 + TOP_K ROWS active experts; a warp keeps DEEP
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
   which has the first slots. A routed expert's first slot is a prefix sum of row counts over the warp. panel: the tile's first. */
template <class F, class SHAPE, int ROWS>
__device__ __forceinline__ void gpu_list_active_experts(const moe_gpu &p, int panel,
                                                        gpu_active_experts<F, SHAPE, ROWS> *to) {
    typedef down_rows_sizes<F, SHAPE, ROWS> sizes;
    const int i = threadIdx.x, entry = i < 32 ? 1 + i : 0;
    const gpu_matrix &w = entry ? p.down : p.shared_down;
    const char *data = w.data + (size_t)panel * sizes::PANEL;
    const float *scales = w.scale + (panel * PANEL_ROWS >> w.row_shift) * w.scale_cols;
    if (i > 32) {
        const int spare = sizes::ACTIVE + i - 33;
        if (i - 33 < sizes::DEEP) {
            *(uint32_t *)to->slot[spare] = sizes::NONE * 0x01010101u;
            to->data[spare] = data;
            to->scales[spare] = scales;
        }
        if (i >= 64 && i - 64 < ROWS) to->gate[i - 64] = gpu_sigmoid(__ldcg(p.shared_gate + i - 64));
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
    const int64_t shift = rows && entry ? listed_at : 0;
    to->data[entry] = data + shift;
    to->scales[entry] = (const float *)((const char *)scales + shift);
#pragma unroll
    for (int t = 0; t < STEP_ROWS; t++) {
        bool is = (rows >> t & 1) && before < sizes::ASSIGNMENTS;
        to->slot[entry][t] = (uint8_t)(is ? before : sizes::NONE);
        if (is) to->use[before++] = (uint8_t)(entry * STEP_ROWS + t);
    }
}

/* Threads 16 t .. 16 t + 15 store the tile's rows of token row t. Weights of the first DEEP items are loaded before the
   wait, and the shared expert's h; after it a lane loads all it can hold of h before it stages the first.

   Of an mma's B operand, lane / 4 is the column: 0 .. 3 are the high terms of rows 0 .. 3, 4 .. 7 the low ones. So lane
   reads row lane % 16 / 4, modulo ROWS, as columns past the last row repeat another's and their sums are not stored. */
template <class F, class SHAPE, int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_rows(const __grid_constant__ moe_gpu p) {
    typedef down_rows_sizes<F, SHAPE, ROWS> sizes;
    enum { pairs = gpu_step_pairs<F>(), DEEP = sizes::DEEP, WARP_K_BLOCKS = sizes::WARP_K_BLOCKS };
    enum { EIGHTS = sizes::EIGHTS, NONE = sizes::NONE };
    enum { SHARED = sizes::SHARED, ROUTED = sizes::ROUTED, AT_ONCE = sizes::AT_ONCE };
    enum { ROUND = DEEP / WARP_K_BLOCKS };                  /* experts */
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][STEP_ROWS][GPU_WARPS];
    __shared__ __align__(16) gpu_active_experts<F, SHAPE, ROWS> active;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = (int)blockIdx.x, scale_slot = min(lane / ROWS, DEEP - 1);
    const int t = threadIdx.x / TILE_ROWS, row = tile * TILE_ROWS + threadIdx.x % TILE_ROWS;
    const int lane_offset = warp * WARP_K_BLOCKS * F::panel + lane * F::lane;
    const activation_fragments act =
        activation_fragments_at<F, 1>((char *)dynamic + warp * sizes::BYTES, (sizes::ASSIGNMENTS + 1) * WARP_K_BLOCKS);
    const uint4 *fragments = act.x + lane / 16 * 4 + lane % 4;
    const bool stores = t < ROWS && row < p.shape.hidden;
    typename F::raw raw[DEEP][2] = {};
    float sum[4] = {0, 0, 0, 0}, scale = 1;
    int count = 0;
    pdl_launch_dependents();
    /* Item j of the round that begins with active expert `from`. */
    auto load = [&](int j, int from) {
        const char *at = active.data[from + j / WARP_K_BLOCKS] + (lane_offset + j % WARP_K_BLOCKS * F::panel);
        const float *rows = active.scales[from + j / WARP_K_BLOCKS] + lane / 4;
        const bool there = from + j / WARP_K_BLOCKS < count;
        gpu_load_weights<F>(&raw[j][0], at, 0, rows, there);
        gpu_load_weights<F>(&raw[j][1], at, sizes::PANEL, rows + PANEL_ROWS, there);
    };
    auto load_scale = [&](int from) {                       /* lane ROWS j + t: of item j of the round, for both panels */
        const int k_block = warp * WARP_K_BLOCKS + scale_slot % WARP_K_BLOCKS;
        if (F::scaled) scale = ld_volatile(active.scales[from + scale_slot / WARP_K_BLOCKS] + (k_block >> p.down.k_block_shift));
    };
    auto load_h = [&](float *to, int i) {                   /* this lane's eight columns of row i of h */
        const float *h = p.h + i * p.h_row + (warp * EIGHTS + lane % EIGHTS) * 8;
        gpu_load4(to, h, true);
        gpu_load4(to + 4, h + 4, true);
    };
    auto stage = [&](float *v, int slot, float gate) {      /* as item `lane` from a slot on */
        const activation_fragments to = {act.x + slot * WARP_K_BLOCKS * pairs * 8, act.act_scale + slot * WARP_K_BLOCKS};
        gpu_stage_h<F>(to, lane, v, gate, true);
    };
    /* The token row of the shared expert's h whose eight columns, number n of this lane's, it stages. Lanes after the last row
       load that again and store it to the first slots of routed experts, which are staged next: an `if` would be a branch, in
       front of which the compiler waits for the routed experts' h. */
    auto shared_row = [&](int n) { return min((n * 32 + lane) / EIGHTS, ROWS - 1); };
    float shared[SHARED][8], gate[SHARED];
    int routed[ROUTED];          /* rows of h */
#pragma unroll
    for (int n = 0; n < SHARED; n++) load_h(shared[n], shared_row(n));
    const float residual = stores ? __ldcg(p.x + t * p.shape.hidden + row) : 0;
    gpu_list_active_experts<F, SHAPE, ROWS>(p, 2 * tile, &active);
    if (lane < WARP_K_BLOCKS * pairs * 8) act.x[NONE * WARP_K_BLOCKS * pairs * 8 + lane] = make_uint4(0, 0, 0, 0);
    if (F::half && lane < WARP_K_BLOCKS) act.act_scale[NONE * WARP_K_BLOCKS + lane] = 0;
    __syncthreads();
    count = active.count;
#pragma unroll
    for (int j = 0; j < DEEP; j++) load(j, 0);
    load_scale(0);
#pragma unroll
    for (int n = 0; n < SHARED; n++) gate[n] = active.gate[shared_row(n)];
#pragma unroll
    for (int n = 0; n < ROUTED; n++) routed[n] = active.use[ROWS + (n * 32 + lane) / EIGHTS];
    pdl_wait();
#pragma unroll
    for (int from = 0; from < ROUTED; from += AT_ONCE) {
        float v[AT_ONCE][8];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) load_h(v[n], routed[from + n]);
        __syncwarp();                                       /* so that the compiler leaves the loads here */
#pragma unroll
        for (int n = 0; from == 0 && n < SHARED; n++) stage(shared[n], n * 32 / EIGHTS, gate[n]);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) stage(v[n], ROWS + (from + n) * 32 / EIGHTS, 1);
    }
    __syncwarp();
#pragma unroll 1
    for (int from = 0; from < count; from += ROUND) {
        float factor = 0;
        if (F::half)
            factor = scale * (gpu_post_scale<F>() *
                              act.act_scale[active.slot[from + scale_slot / WARP_K_BLOCKS][lane % ROWS] * WARP_K_BLOCKS +
                                            scale_slot % WARP_K_BLOCKS]);
        const int next = min(from + ROUND, (int)sizes::ACTIVE);         /* the lists end ROUND entries on */
        load_scale(next);
#pragma unroll
        for (int j = 0; j < DEEP; j++) {
            uint4 x[pairs];
            const int slot = active.slot[from + j / WARP_K_BLOCKS][lane % 16 / 4 % ROWS] * WARP_K_BLOCKS + j % WARP_K_BLOCKS;
#pragma unroll
            for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(slot * pairs + pair) * 8];
            gpu_multiply<F, ROWS>(sum, raw[j], x, factor, j * ROWS, 0, true);
            load(j, next);
            __syncwarp();                                   /* so that the compiler leaves the loads here */
        }
    }
    store_warp_partial<ROWS>(parts, sum);
    __syncthreads();
    if (stores)
        store_tagged(&p.x[t * p.shape.hidden + row], residual + sum_warp_partials(parts[threadIdx.x % TILE_ROWS][t]),
                     p.link.publish);
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
    enum { SLOTS = 20, BYTES = ((SLOTS + 1) * of::WARP_K_BLOCKS * of::ITEM_BYTES + 15) / 16 * 16 };
    static_assert((int)DEEP % of::WARP_K_BLOCKS == 0 && (int)SLOTS % STEP == 0, "whole rounds, whole steps");
    static_assert(ROUND * ROWS <= (int)SLOTS && GPU_WARPS * BYTES + 5632 <= GPU_SHARED, "a part has a round, and fits");
};

/* The active experts from .. end - 1, whose assignments are base .. next - 1. */
struct gpu_down_part {
    int from, end, base, next;
};

template <class F, class SHAPE, int ROWS>
__device__ __forceinline__ gpu_down_part gpu_part_from(const gpu_active_experts<F, SHAPE, ROWS> &active, int from, int base) {
    typedef down_parts_sizes<F, SHAPE, ROWS> sizes;
    gpu_down_part part = {from, active.count, base, sizes::ASSIGNMENTS};
    if (base + sizes::SLOTS >= sizes::ASSIGNMENTS) return part;
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
        const int number = min(part.base + i, sizes::ASSIGNMENTS - 1);
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
    enum { pairs = gpu_step_pairs<F>(), DEEP = sizes::DEEP, WARP_K_BLOCKS = sizes::WARP_K_BLOCKS, ROUND = sizes::ROUND };
    enum { SLOTS = sizes::SLOTS, PANELS = sizes::PANELS, ROWS_OF_TILE = PANELS * PANEL_ROWS };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[2 * TILE_ROWS][STEP_ROWS][GPU_WARPS];       /* the last 8 rows are of no panel */
    __shared__ __align__(16) gpu_active_experts<F, SHAPE, ROWS> active;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = (int)blockIdx.x, scale_slot = min(lane / ROWS, DEEP - 1);
    const int t = threadIdx.x / ROWS_OF_TILE, row = tile * ROWS_OF_TILE + threadIdx.x % ROWS_OF_TILE;
    const int lane_offset = warp * WARP_K_BLOCKS * F::panel + lane * F::lane;
    const activation_fragments act = activation_fragments_at<F, 1>((char *)dynamic + warp * sizes::BYTES, (SLOTS + 1) * WARP_K_BLOCKS);
    const uint4 *fragments = act.x + lane / 16 * 4 + lane % 4;
    const bool stores = t < ROWS && row < p.shape.hidden;
    typename F::raw raw[DEEP][PANELS] = {};
    float sum[4] = {0, 0, 0, 0}, third[4] = {0, 0, 0, 0}, scale = 1;
    int count = 0;
    pdl_launch_dependents();
    auto load = [&](int j, int from) {                      /* as in gpu_experts_down_rows */
        const char *at = active.data[from + j / WARP_K_BLOCKS] + (lane_offset + j % WARP_K_BLOCKS * F::panel);
        const float *rows = active.scales[from + j / WARP_K_BLOCKS] + lane / 4;
        const bool there = from + j / WARP_K_BLOCKS < count;
#pragma unroll
        for (int i = 0; i < PANELS; i++) gpu_load_weights<F>(&raw[j][i], at, i * sizes::PANEL, rows + i * PANEL_ROWS, there);
    };
    auto load_scale = [&](int from) {
        const int k_block = warp * WARP_K_BLOCKS + scale_slot % WARP_K_BLOCKS;
        if (F::scaled) scale = ld_volatile(active.scales[from + scale_slot / WARP_K_BLOCKS] + (k_block >> p.down.k_block_shift));
    };
    const float residual = stores ? __ldcg(p.x + t * p.shape.hidden + row) : 0;
    gpu_list_active_experts<F, SHAPE, ROWS>(p, PANELS * tile, &active);
    if (lane < WARP_K_BLOCKS * pairs * 8) act.x[SLOTS * WARP_K_BLOCKS * pairs * 8 + lane] = make_uint4(0, 0, 0, 0);
    if (F::half && lane < WARP_K_BLOCKS) act.act_scale[SLOTS * WARP_K_BLOCKS + lane] = 0;
    __syncthreads();
    count = active.count;
#pragma unroll
    for (int j = 0; j < DEEP; j++) load(j, 0);
    load_scale(0);
    pdl_wait();
#pragma unroll 1
    for (gpu_down_part part = {0, 0, 0, 0}; part.end < count;) {
        part = gpu_part_from<F, SHAPE, ROWS>(active, part.end, part.next);
        auto slot_of = [&](int entry, int of) {
            const int slot = active.slot[entry][of];
            return (slot == sizes::NONE ? (int)SLOTS : slot - part.base) * WARP_K_BLOCKS;
        };
        gpu_stage_part<F, SHAPE, ROWS>(p, active, part, act);
#pragma unroll 1
        for (int from = part.from; from < part.end; from += ROUND) {
            float factor = 0;
            if (F::half)
                factor = scale * (gpu_post_scale<F>() * act.act_scale[slot_of(from + scale_slot / WARP_K_BLOCKS, lane % ROWS) +
                                                                      scale_slot % WARP_K_BLOCKS]);
            const int next = min(from + ROUND, (int)sizes::ACTIVE);
            load_scale(next);
#pragma unroll
            for (int j = 0; j < DEEP; j++) {
                uint4 x[pairs];
                const int slot = slot_of(from + j / WARP_K_BLOCKS, lane % 16 / 4 % ROWS) + j % WARP_K_BLOCKS;
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(slot * pairs + pair) * 8];
                gpu_multiply<F, ROWS>(sum, raw[j], x, factor, j * ROWS, 0, true);
                gpu_multiply<F, ROWS, 1>(third, raw[j] + 2, x, factor, j * ROWS, 0, true);
                load(j, next);
                __syncwarp();                               /* so that the compiler leaves the loads here */
            }
        }
    }
    store_warp_partial<ROWS>(parts, sum);
    store_warp_partial<ROWS>(parts + TILE_ROWS, third);
    __syncthreads();
    if (stores)
        store_tagged(&p.x[t * p.shape.hidden + row], residual + sum_warp_partials(parts[threadIdx.x % ROWS_OF_TILE][t]),
                     p.link.publish);
}

/* The kernel for ROWS token rows; none: there is no such kernel. */
template <class F, class SHAPE, int ROWS> static gpu_down_kernel gpu_down_of_rows() {
    constexpr int bytes = GPU_WARPS * down_rows_sizes<F, SHAPE, ROWS>::BYTES;
    if constexpr (bytes + 4096 <= GPU_SHARED) {             /* 4096: static shared memory */
        return {gpu_experts_down_rows<F, SHAPE, ROWS>, (size_t)bytes, 2};
    } else if constexpr (F::lane == 8) {
        typedef down_parts_sizes<F, SHAPE, ROWS> sizes;
        return {gpu_experts_down_parts<F, SHAPE, ROWS>, (size_t)(GPU_WARPS * sizes::BYTES), sizes::PANELS};
    } else {
        return {};
    }
}

/* The kernel of a format and shape for T token rows. */
template <class F, class SHAPE> static gpu_down_kernel gpu_down_of(int T) {
    if constexpr (gpu_has_fixed<F, SHAPE>(STEP_ROWS)) {
        if (T == 2) return gpu_down_of_rows<F, SHAPE, 2>();
        if (T == 3) return gpu_down_of_rows<F, SHAPE, 3>();
        if (T == STEP_ROWS) return gpu_down_of_rows<F, SHAPE, STEP_ROWS>();
    }
    if constexpr (gpu_has_fixed<F, SHAPE>(1)) {
        if (T == 1) return {gpu_experts_down_row<F, SHAPE>, GPU_WARPS * (size_t)down_row_sizes<F, SHAPE>::BYTES, 2};
    }
    return {};
}

template <class SHAPE> static gpu_down_kernel gpu_fixed_down_of(const moe_gpu *p) {
    gpu_down_kernel fixed = {};
    if (p->shape.top_k != SHAPE::TOP_K || p->down.cols != SHAPE::EXPERT) return fixed;
    with_format(p->down.format, [&](auto format) {
        typedef decltype(format) F;
        if (gpu_scales_by_block<F>() && 1 << p->down.row_shift < TILE_ROWS) return;        /* both panels have one scale */
        fixed = gpu_down_of<F, SHAPE>(p->T);
    });
    if (fixed.kernel && p->down.panels % fixed.panels) return {};
    return fixed;
}

/* The fixed-shape kernel for these sizes, if there is one. It has whole tiles only. */
static gpu_down_kernel gpu_fixed_down(const moe_gpu *p) {
    if (!p->shape.shared_size || p->down.format != p->shared_down.format || p->down.cols != p->shared_down.cols) return {};
    const gpu_down_kernel fixed = gpu_fixed_down_of<shape_35b_a3b>(p);
    return fixed.kernel ? fixed : gpu_fixed_down_of<shape_122b_a10b>(p);
}
