/* layers/moe_down_fixed.cu: experts_down for a fixed shape, that of Qwen3.5-35B-A3B: eight experts of 512 columns per row,
   the shared expert of the same format. One kernel for one token row, FP8 or BF16; one for two to four, FP8.

   Touches, and may read early, the same as gpu_experts_down, and gives the same sums in the same order. One addition: the
   shared expert's h, which norm_router writes, is read before the wait as well. */

/* One token row: nine active experts, the shared one first. Grid: one block per 16 output rows (two row panels), then
   log_blocks. A warp has 64 columns of every active expert: MINE k blocks, one of FP8 or two of BF16. An item is one k
   block of one active expert.

   Performance: from the wait on there is neither a loop nor a branch up to the first product: before one, the compiler
   would wait for the weights in flight. Only EARLY items are loaded before the wait: more would take bandwidth from
   experts_up, which still loads its own. The shared expert's come first, as they do not depend on the routing. */
enum { GPU_NINE = 9, GPU_WIDE = 512 };                      /* active experts; columns */

template <class F> struct gpu_row_sizes {
    enum {
        COLS = 4 * F::per_load, LANES = COLS / 8,
        MINE = GPU_WIDE / GPU_WARPS / COLS,                 /* k blocks of a warp per active expert */
        ITEMS = GPU_NINE * MINE, EIGHTS = MINE * LANES,     /* items of a warp; eights of columns per active expert */
        ROUND = MINE > 1 ? 6 : 9, EARLY = 5,                /* items in flight; items loaded before the wait */
        BYTES = (ITEMS * (gpu_step_pairs<F>() * 128 + (int)sizeof(float)) + 15) / 16 * 16     /* of a warp's fragments */
    };
};

template <class F>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_row(const __grid_constant__ gpu_moe p) {
    typedef gpu_row_sizes<F> sizes;
    enum { pairs = gpu_step_pairs<F>(), MINE = sizes::MINE, ROUND = sizes::ROUND, ROUNDS = sizes::ITEMS / ROUND };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][GPU_ROWS][GPU_WARPS];
    __shared__ const char *data[GPU_NINE];                  /* of each active expert: the tile's weights and scales */
    __shared__ const float *scales[GPU_NINE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = (int)blockIdx.x, row = tile * TILE_ROWS + threadIdx.x;
    const int log_block = tile - ((int)gridDim.x - p.log_blocks);
    /* bytes from the tile's first row panel to its second */
    const int panel = 2 * tile + 1 < p.down.panels ? p.down.k_blocks * PANEL_BYTES : 0;
    const activation_fragments act = activation_fragments_at<F, 1>((char *)dynamic + warp * sizes::BYTES, sizes::ITEMS);
    const uint4 *fragments = gpu_lane_fragments<F, 1>(act);
    float shared[8], now[8], later[8], scale = 1, sum[4] = {0, 0, 0, 0};
    uint4 raw[ROUND][2];
    pdl_launch_dependents();
    if (log_block >= 0) {
        pdl_wait();
        gpu_delta_log(&p.log, log_block, p.log_blocks);
        return;
    }
    auto get = [&](float *to, int part) {                   /* eight columns of h, of expert part / EIGHTS */
        const float *h = p.h + part / sizes::EIGHTS * GPU_ROWS * p.h_row + (warp * sizes::EIGHTS + part % sizes::EIGHTS) * 8;
        *(float4 *)to = __ldcg((const float4 *)h);
        *(float4 *)(to + 4) = __ldcg((const float4 *)(h + 4));
    };
    auto put = [&](float *from, int part, bool there) {
        float act_scale = activation_scale<F>(from);
        if (there) gpu_put_columns<F, 1>(act, part / sizes::LANES, part % sizes::LANES, 0, from, act_scale);
    };
    auto load_k_block = [&](int j, const char *entry, int k_block) {
        const char *at = entry + ((warp * MINE + k_block) * PANEL_BYTES + lane * 16);
        raw[j][0] = __ldcs((const uint4 *)at);
        raw[j][1] = __ldcs((const uint4 *)(at + panel));
    };
    auto load = [&](int j, int round) {
        int item = round * ROUND + j;
        load_k_block(j, data[item / MINE], item % MINE);
    };
    auto load_scale = [&](int round) {                      /* lane j: of item j of the round, for both panels */
        int item = round * ROUND + lane;
        if (F::scaled && lane < ROUND) scale = __ldg(scales[item / MINE] + (warp * MINE + item % MINE >> p.down.k_block_shift));
    };
    const int64_t shift = threadIdx.x && threadIdx.x < GPU_NINE ? __ldcg(&p.routing->expert[threadIdx.x - 1]) * p.stride : 0;
    /* bytes of a matrix before this tile */
    const size_t before = (size_t)(2 * tile) * (uint32_t)(p.down.k_blocks * PANEL_BYTES);
#pragma unroll
    for (int j = 0; j < MINE; j++) load_k_block(j, p.shared_down.data + before, j);         /* needs no routing */
    const float gate = gpu_sigmoid(__ldcg(p.shared_gate));
    get(shared, lane % sizes::EIGHTS);
    const bool stores = threadIdx.x < TILE_ROWS && row < p.shape.hidden;
    const float old = stores ? __ldcg(p.x + row) : 0;
    if (threadIdx.x < GPU_NINE) {
        const gpu_matrix &w = threadIdx.x ? p.down : p.shared_down;
        data[threadIdx.x] = w.data + shift + before;
        scales[threadIdx.x] = (const float *)((const char *)w.scale + shift) + (tile * TILE_ROWS >> w.row_shift) * w.scale_cols;
    }
    __syncthreads();
#pragma unroll
    for (int j = MINE; j < sizes::EARLY; j++) load(j, 0);
    load_scale(0);
    pdl_wait();
    get(now, 8 + lane);
    get(later, 40 + lane);
#pragma unroll
    for (int j = sizes::EARLY; j < ROUND; j++) load(j, 0);
#pragma unroll
    for (int c = 0; c < 8; c++) shared[c] *= gate;
    put(shared, lane, lane < sizes::EIGHTS);
    put(now, 8 + lane, true);
    put(later, 40 + lane, true);
    __syncwarp();
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++, fragments += ROUND * pairs * 8) {
        float factor = F::half && lane < ROUND ? scale * act.act_scale[round * ROUND + lane] : 0;
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
    if (stores) store_tagged(&p.x[row], old + sum_warp_partials(parts[threadIdx.x][0]), p.after);
}

/* Two to four token rows (exactly ROWS), FP8. Grid as above. A warp has one k block (64 columns) of every active expert, of
   which there are up to 1 + 8 ROWS, and keeps DEEP of them in flight. Each row has nine assignments; each assignment has a
   slot in the warp's activation fragments, all staged at once. Slot NONE is all zeros, for the rows that do not use an
   active expert. */
template <int ROWS> struct gpu_rows_sizes {
    enum { ENTRIES = 1 + (GPU_NINE - 1) * ROWS, USES = GPU_NINE * ROWS, NONE = USES, DEEP = 6, AT_ONCE = ROWS == 3 ? 4 : 5 };
    enum { BYTES = ((USES + 1) * (256 + (int)sizeof(float)) + 15) / 16 * 16 };            /* of a warp's fragments */
};

/* The active experts of a block, in shared memory, and their slots. */
template <int ROWS> struct gpu_active_experts {
    int32_t count;
    const char *data[gpu_rows_sizes<ROWS>::ENTRIES];
    const float *scales[gpu_rows_sizes<ROWS>::ENTRIES];
    uint8_t slot[gpu_rows_sizes<ROWS>::ENTRIES + gpu_rows_sizes<ROWS>::DEEP][GPU_ROWS];     /* of active expert and row */
    uint8_t use[gpu_rows_sizes<ROWS>::USES];                /* of a slot: active expert * GPU_ROWS + row */
    float gate[GPU_ROWS];
};

/* Fills gpu_active_experts, before the wait: threads 0 .. 31 (warp 0) one routed expert each, thread 32 the shared one,
   which has the first slots. A routed expert's first slot is a prefix sum of row counts over the warp. */
template <int ROWS>
__device__ __forceinline__ void gpu_list_active_experts(const gpu_moe &p, int tile, gpu_active_experts<ROWS> *to) {
    typedef gpu_rows_sizes<ROWS> sizes;
    const int i = threadIdx.x, entry = i < 32 ? 1 + i : 0;
    if (i > 32) {
        if (i < 64 && i - 33 < sizes::DEEP) *(uint32_t *)to->slot[sizes::ENTRIES + i - 33] = sizes::NONE * 0x01010101u;
        if (i >= 64 && i - 64 < ROWS) to->gate[i - 64] = gpu_sigmoid(__ldcg(p.shared_gate + i - 64));
        return;
    }
    const int count = min(__ldcg(&p.routing->count), (int)sizes::ENTRIES - 1), all_rows = (1 << ROWS) - 1;
    const int listed = __ldcg(&p.routing->rows[i % 32]), expert = __ldcg(&p.routing->expert[i % 32]);
    const int rows = entry == 0 ? all_rows : i < count ? listed & all_rows : 0;
    const gpu_matrix &w = entry ? p.down : p.shared_down;
    int before = 0;
    if (entry) {
        int all = __popc(rows);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int up = __shfl_up_sync(~0u, all, step);
            all += i >= step ? up : 0;
        }
        before = ROWS + all - __popc(rows);
    } else {
        to->count = 1 + count;
    }
    if (entry >= sizes::ENTRIES) return;
    const int64_t shift = rows && entry ? expert * p.stride : 0;
    to->data[entry] = w.data + shift + (size_t)(2 * tile) * (uint32_t)(w.k_blocks * PANEL_BYTES);
    to->scales[entry] = (const float *)((const char *)w.scale + shift) + (tile * TILE_ROWS >> w.row_shift) * w.scale_cols;
#pragma unroll
    for (int t = 0; t < GPU_ROWS; t++) {
        bool is = (rows >> t & 1) && before < sizes::USES;
        to->slot[entry][t] = (uint8_t)(is ? before : sizes::NONE);
        if (is) to->use[before++] = (uint8_t)(entry * GPU_ROWS + t);
    }
}

/* Threads 16 t .. 16 t + 15 store the tile's rows of token row t. Weights of the first DEEP active experts are loaded
   before the wait.

   Of an mma's B operand, lane / 4 is the column: 0 .. 3 are the high terms of rows 0 .. 3, 4 .. 7 the low ones. So lane
   reads row lane % 16 / 4, modulo ROWS, as columns past the last row repeat another's and their sums are not stored. */
template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_rows(const __grid_constant__ gpu_moe p) {
    typedef gpu_rows_sizes<ROWS> sizes;
    typedef format_fp8_block F;
    enum { pairs = gpu_step_pairs<F>(), LANES = F::per_load / 2, DEEP = sizes::DEEP };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][GPU_ROWS][GPU_WARPS];
    __shared__ __align__(16) gpu_active_experts<ROWS> entries;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = (int)blockIdx.x, piece = lane / ROWS;
    const int t = threadIdx.x / TILE_ROWS, row = tile * TILE_ROWS + threadIdx.x % TILE_ROWS;
    const int log_block = tile - ((int)gridDim.x - p.log_blocks);
    /* bytes from the tile's first row panel to its second */
    const int panel = 2 * tile + 1 < p.down.panels ? p.down.k_blocks * PANEL_BYTES : 0;
    const int mine = warp * PANEL_BYTES + lane * 16, eights = GPU_NINE * ROWS * LANES;
    const activation_fragments act = activation_fragments_at<F, 1>((char *)dynamic + warp * sizes::BYTES, sizes::USES + 1);
    const uint4 *fragments = act.x + lane / 16 * 4 + lane % 4;
    const bool stores = t < ROWS && row < p.shape.hidden;
    uint4 raw[DEEP][2] = {};
    float sum[4] = {0, 0, 0, 0}, scale = 0;
    pdl_launch_dependents();
    if (log_block >= 0) {
        pdl_wait();
        gpu_delta_log(&p.log, log_block, p.log_blocks);
        return;
    }
    auto load = [&](int j, int entry) {
        if (entry >= entries.count) return;
        const char *at = entries.data[entry] + mine;
        raw[j][0] = __ldcs((const uint4 *)at);
        raw[j][1] = __ldcs((const uint4 *)(at + panel));
    };
    auto load_scale = [&](int entry) {                      /* lane ROWS j + t: of expert j of the round, for both panels */
        if (piece < DEEP && entry < entries.count) scale = __ldg(entries.scales[entry] + (warp >> p.down.k_block_shift));
    };
    const float old = stores ? __ldcg(p.x + t * p.shape.hidden + row) : 0;
    gpu_list_active_experts<ROWS>(p, tile, &entries);
    if (lane < pairs * 8) act.x[sizes::NONE * pairs * 8 + lane] = make_uint4(0, 0, 0, 0);
    if (lane == 0) act.act_scale[sizes::NONE] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < DEEP; j++) load(j, j);
    load_scale(piece);
    pdl_wait();
#pragma unroll
    for (int from = 0; from < sizes::USES * LANES; from += 32 * sizes::AT_ONCE) {
        float v[sizes::AT_ONCE][8];
        int use[sizes::AT_ONCE];
#pragma unroll
        for (int n = 0; n < sizes::AT_ONCE; n++) {
            int part = from + n * 32 + lane;
            use[n] = part < eights ? entries.use[part / LANES] : 0;
            gpu_load8(v[n], p.h + use[n] * p.h_row + warp * LANES * 8, part % LANES * 8, LANES * 8);
        }
#pragma unroll
        for (int n = 0; n < sizes::AT_ONCE; n++) {
            int part = from + n * 32 + lane;
            float gate = use[n] < GPU_ROWS ? entries.gate[use[n]] : 1;
#pragma unroll
            for (int c = 0; c < 8; c++) v[n][c] *= gate;
            float act_scale = activation_scale<F>(v[n]);
            if (part < eights) gpu_put_columns<F, 1>(act, part / LANES, part % LANES, 0, v[n], act_scale);
        }
    }
    __syncwarp();
#pragma unroll 1
    for (int from = 0; from < entries.count; from += DEEP) {
        float factor = piece < DEEP ? scale * act.act_scale[entries.slot[from + piece][lane % ROWS]] : 0;
        load_scale(from + DEEP + piece);
#pragma unroll
        for (int j = 0; j < DEEP; j++) {
            uint4 x[pairs];
            const uint4 *at = fragments + entries.slot[from + j][lane % 16 / 4 % ROWS] * (pairs * 8);
#pragma unroll
            for (int pair = 0; pair < pairs; pair++) x[pair] = at[pair * 8];
            gpu_multiply<F, ROWS>(sum, raw[j], x, factor, j * ROWS, 0, true);
            load(j, from + DEEP + j);
        }
    }
    store_warp_partial<ROWS>(parts, sum);
    __syncthreads();
    if (stores)
        store_tagged(&p.x[t * p.shape.hidden + row], old + sum_warp_partials(parts[threadIdx.x % TILE_ROWS][t]), p.after);
}

/* The fixed-shape kernel for these sizes and its bytes of dynamic shared memory; NULL: there is none. */
template <int ROWS> static void (*gpu_down_of_rows(size_t *shared))(gpu_moe) {
    *shared = GPU_WARPS * (size_t)gpu_rows_sizes<ROWS>::BYTES;
    return gpu_experts_down_rows<ROWS>;
}

template <class F> static void (*gpu_down_of_row(size_t *shared))(gpu_moe) {
    *shared = GPU_WARPS * (size_t)gpu_row_sizes<F>::BYTES;
    return gpu_experts_down_row<F>;
}

static void (*gpu_quick_down(const gpu_moe *p, size_t *shared))(gpu_moe) {
    bool alike = p->down.format == p->shared_down.format && p->down.cols == p->shared_down.cols;
    bool fits = p->shape.top_k == GPU_NINE - 1 && alike && p->down.cols == GPU_WIDE, fp8 = p->down.format == FORMAT_FP8_BLOCK;
    if (!fits || (fp8 && 1 << p->down.row_shift < TILE_ROWS)) return NULL;
    if (!fp8) return p->down.format == FORMAT_BF16 && p->T == 1 ? gpu_down_of_row<format_bf16>(shared) : NULL;
    switch (p->T) {
        case 1: return gpu_down_of_row<format_fp8_block>(shared);
        case 2: return gpu_down_of_rows<2>(shared);
        case 3: return gpu_down_of_rows<3>(shared);
        default: return gpu_down_of_rows<GPU_ROWS>(shared);
    }
}
