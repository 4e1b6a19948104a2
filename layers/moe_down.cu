/* layers/moe_down.cu: experts_down on a GPU, for any shape: down projections, weighted sum, residual. */

/* experts_down sums over entries: 0 is the shared expert, 1 + i the list's i-th. A warp has the same k_blocks of each; an
   entry's k_block is an item. The weights of DEEP items are in flight. Most entries are used by one token row only, so the
   set of fragments has a slot for each use of an item, by one row, and one slot of zeros for all other rows. It is filled in for a
   batch of items: as many as there are slots for. */
template <int ROWS> struct gpu_down_sizes {
    enum {
        DEEP = ROWS == 4 ? 8 : ROWS == 2 ? 9 : 6, SLOTS = ROWS == 1 ? 12 : 36,
        PANELS = ROWS == 1 ? 2 : 1                          /* of output rows, to a block; two leave norm_in_proj room */
    };
};

typedef struct gpu_assignments {
    int32_t count;               /* of entries */
    uint32_t shift[1 + GPU_CHOSEN];  /* from expert 0's weights to the entry's, in 16 bytes */
    int32_t rows[1 + GPU_CHOSEN];    /* bit set of those that use it */
    int32_t first[2 + GPU_CHOSEN];   /* its first use */
    uint16_t use[(1 + GPU_TOP) * GPU_ROWS];  /* entry * GPU_ROWS + row, ascending */
    int16_t number[(1 + GPU_CHOSEN) * GPU_ROWS];  /* of an entry's use by a row; -1: none */
    float gate[GPU_ROWS];        /* sigmoid of shared_gate */
} gpu_assignments;

/* Lists the assignments: each thread those of an entry. */
__device__ __forceinline__ void gpu_list_assignments(gpu_assignments *assignments) {
    int entry = threadIdx.x, at = 0;
    if (entry > assignments->count) return;
    for (int i = 0; i < entry; i++) at += __popc(assignments->rows[i]);
    assignments->first[entry] = at;
    for (int t = 0; t < GPU_ROWS && entry < assignments->count; t++) {
        bool is = assignments->rows[entry] >> t & 1;
        assignments->number[entry * GPU_ROWS + t] = (int16_t)(is ? at : -1);
        if (is) assignments->use[at++] = (uint16_t)(entry * GPU_ROWS + t);
    }
}

/* The items of a warp, and their assignments by ROWS rows, in the order of the items. */
template <int ROWS> struct gpu_down_items {
    const gpu_assignments *assignments;
    int first, mine;             /* k_blocks: of each entry `mine`, from k_block `first` on */
    uint32_t per_mine;           /* 2^32 / mine, rounded up */
    __device__ __forceinline__ int divide(int n) const { return mine == 1 ? n : (int)__umulhi((uint32_t)n, per_mine); }
    __device__ __forceinline__ int entry(int item) const { return divide(item); }
    __device__ __forceinline__ int k_block(int item) const { return item - entry(item) * mine; }
    /* Uses of the items before this one. */
    __device__ __forceinline__ int uses_before(int item) const {
        int i = entry(item), n = assignments->first[i];
        return ROWS == 1 ? item : n * mine + (mine == 1 ? 0 : (item - i * mine) * (assignments->first[i + 1] - n));
    }
    /* The use of an item by a row; -1: it is not used by that. */
    __device__ __forceinline__ int use_of(int item, int row) const {
        if (ROWS == 1) return item;
        int i = entry(item), number = assignments->number[i * GPU_ROWS + row];
        return mine == 1 || number < 0 ? number : uses_before(item) + number - assignments->first[i];
    }
    /* The entry, k_block and row of a use; *use: entry * GPU_ROWS + row. */
    __device__ __forceinline__ int find(int number, int *use) const {
        int at = divide(number);
        *use = ROWS == 1 ? at * GPU_ROWS : assignments->use[at];
        if (mine == 1 || ROWS == 1) return number - at * mine;
        int i = *use / GPU_ROWS, begin = assignments->first[i], of = assignments->first[i + 1] - begin, rest = number - begin * mine;
        *use = assignments->use[begin + rest % of];
        return rest / of;
    }
    /* Items from `base` on whose assignments fit into `slots`: whole rounds of `deep`, up to `end`. */
    __device__ __forceinline__ int batch(int base, int end, int deep, int slots) const {
        int count = 0, before = uses_before(base);
        while (base + count < end) {
            int next = min(count + deep, end - base);
            if (uses_before(base + next) - before > slots) break;
            count = next;
        }
        return count;
    }
};

/* A warp's activation fragments for `count` items from `base` on: h, weighted already, in its slots. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_stage_down(const gpu_moe &p, const gpu_down_items<ROWS> &items, int base, int count,
                                              const activation_fragments &to) {
    enum { COLS = 4 * F::per_load, LANES = COLS / 8, AT_ONCE = 3 };
    const int lane = threadIdx.x % 32, before = items.uses_before(base);
    const int parts = (items.uses_before(base + count) - before) * LANES;
#pragma unroll 1
    for (int begin = 0; begin < parts; begin += 32 * AT_ONCE) {
        float v[AT_ONCE][8];
        int use[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int part = begin + n * 32 + lane, k_block = 0;
            use[n] = 0;
            if (part < parts) k_block = items.find(before + part / LANES, &use[n]);
            int col = (items.first + k_block) * COLS + part % LANES * 8;
            gpu_load8(v[n], p.h + use[n] * p.h_row, col, part < parts ? col + 8 : 0);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int part = begin + n * 32 + lane;
            float factor = use[n] < GPU_ROWS ? items.assignments->gate[use[n]] : 1;
#pragma unroll
            for (int c = 0; c < 8; c++) v[n][c] *= factor;
            float act_scale = activation_scale<F>(v[n]);
            if (part < parts) gpu_put_columns<F, 1>(to, part / LANES, part % LANES, 0, v[n], act_scale);
        }
    }
    __syncwarp();
}

/* Bytes of a warp's activation fragments in any format: FP8's are most. */
template <int ROWS> __host__ __device__ constexpr int gpu_down_bytes() {
    return ((gpu_down_sizes<ROWS>::SLOTS + 1) * (256 + (int)sizeof(float)) + 15) / 16 * 16;
}

/* sum += entries low .. high - 1 of a tile, all of one format. Which warp adds what, and in which order, does not depend
   on who else is in the list; who does not use an entry adds an exact zero. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_down_active(const gpu_moe &p, const gpu_assignments *assignments, int tile, int low, int high,
                                                 void *memory, float *sum) {
    enum { SLOTS = gpu_down_sizes<ROWS>::SLOTS, DEEP = gpu_down_sizes<ROWS>::DEEP, PANELS = gpu_down_sizes<ROWS>::PANELS };
    const int pairs = gpu_step_pairs<F>(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int piece = lane / ROWS % DEEP;                   /* of those in flight, the item whose factor this lane knows */
    const gpu_matrix &w = low ? p.down : p.shared_down;
    const gpu_place shared = gpu_place_of(p.shared_down, PANELS * tile, p.shared_down, PANELS * (tile + 1) - 1);
    const gpu_place routed = gpu_place_of(p.down, PANELS * tile, p.down, PANELS * (tile + 1) - 1);
    const int panel = (int)(low ? routed.data[1] - routed.data[0] : shared.data[1] - shared.data[0]) / 16;
    const activation_fragments act = activation_fragments_at<F, 1>((char *)memory + warp * gpu_down_bytes<ROWS>(), SLOTS + 1);
    gpu_down_items<ROWS> items = {assignments};
    items.first = gpu_share(w.k_blocks, warp, GPU_WARPS, &items.mine);
    items.per_mine = items.mine ? 0xffffffffu / (uint32_t)items.mine + 1 : 0;
    const int end = high * items.mine;
    uint4 raw[DEEP][PANELS] = {};
    float scale = 1;
    auto load = [&](int j, int item) {
        if (item >= end) return;
        int i = items.entry(item);
        const uint4 *at = (const uint4 *)(i ? routed.data[0] : shared.data[0]);
        at += assignments->shift[i] + (items.first + items.k_block(item)) * (PANEL_BYTES / 16);
        for (int o = 0; o < PANELS; o++) raw[j][o] = __ldcs(at + o * panel);
    };
    auto load_scale = [&](int item) {                       /* the panels share it */
        if (!F::scaled || item >= end) return;
        int i = items.entry(item);
        const float *at = (i ? routed.scale : shared.scale) + (size_t)assignments->shift[i] * 4;
        scale = __ldg(at + (items.first + items.k_block(item) >> w.k_block_shift));
    };
    int base = low * items.mine;
#pragma unroll
    for (int j = 0; j < DEEP; j++) load(j, base + j);
    load_scale(base + piece);
    if (lane < pairs * 8) act.x[SLOTS * pairs * 8 + lane] = make_uint4(0, 0, 0, 0);
    if (F::half && lane == 0) act.act_scale[SLOTS] = 0;
    pdl_wait();
#pragma unroll 1
    for (int count; base < end; base += count) {
        count = items.batch(base, end, DEEP, SLOTS);
        int before = items.uses_before(base);
        auto slot = [&](int item, int row) {
            int use = items.use_of(item, row);
            return use < 0 ? (int)SLOTS : use - before;
        };
        __syncwarp();
        gpu_stage_down<F, ROWS>(p, items, base, count, act);
#pragma unroll 1
        for (int from = base; from < base + count; from += DEEP) {
            float factor = 0;
            if (F::half && from + piece < base + count) factor = scale * act.act_scale[slot(from + piece, lane % ROWS)];
            load_scale(from + DEEP + piece);
#pragma unroll
            for (int j = 0; j < DEEP; j++) {
                uint4 x[pairs];
                if (from + j >= base + count) break;
                const uint4 *at = act.x + slot(from + j, lane / 4 % ROWS) * pairs * 8 + lane / 16 * 4 + lane % 4;
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = at[pair * 8];
                gpu_multiply<F, ROWS, PANELS>(sum, raw[j], x, factor, j * ROWS, 0, true);
                load(j, from + DEEP + j);
            }
        }
    }
}

/* All entries, those of one format together. */
template <int ROWS>
__device__ __forceinline__ void gpu_down_all(const gpu_moe &p, const gpu_assignments *assignments, int tile, void *memory, float *sum) {
    const bool alike = p.down.type == p.shared_down.type && p.down.k_blocks == p.shared_down.k_blocks;
#pragma unroll 1
    for (int low = 0, high; low < assignments->count; low = high) {
        high = alike || low ? assignments->count : 1;
        switch (low ? p.down.type : p.shared_down.type) {
            case DTYPE_FP8: gpu_down_active<format_fp8, ROWS>(p, assignments, tile, low, high, memory, sum); break;
            case DTYPE_BF16: gpu_down_active<format_bf16, ROWS>(p, assignments, tile, low, high, memory, sum); break;
            case DTYPE_F16: gpu_down_active<format_f16, ROWS>(p, assignments, tile, low, high, memory, sum); break;
            default: gpu_down_active<format_f32, ROWS>(p, assignments, tile, low, high, memory, sum);
        }
    }
}

/* experts_down: x += the experts' down projections of h, and that of the shared expert times its gate. A block has one or
   two panels of output rows, alone. What it reads before its wait, the routing, the residual and the shared expert's gate,
   was complete before experts_up triggered. */
template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down(const __grid_constant__ gpu_moe p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials parts;
    __shared__ gpu_assignments assignments;
    enum { PANELS = gpu_down_sizes<ROWS>::PANELS, TILE_OUT = PANELS * PANEL_ROWS };
    const int out = (int)threadIdx.x, tile = (int)blockIdx.x, row = tile * TILE_OUT + out % TILE_OUT, t = out / TILE_OUT;
    const int log_block = tile - ((int)gridDim.x - p.log_blocks);
    float *x = t < p.T && row < p.shape.hidden ? p.x + (size_t)t * p.shape.hidden + row : NULL;
    float sum[4] = {0, 0, 0, 0}, old = 0;
    pdl_launch_dependents();
    if (log_block >= 0) {
        pdl_wait();
        gpu_delta_log(&p.log, log_block, p.log_blocks);
        return;
    }
    if (out < GPU_CHOSEN) {
        assignments.shift[1 + out] = (uint32_t)__ldcg(&p.routing->expert[out]) * (uint32_t)(p.stride / 16);
        assignments.rows[1 + out] = __ldcg(&p.routing->rows[out]);
    }
    if (out == GPU_CHOSEN) {
        assignments.count = 1 + __ldcg(&p.routing->count);
        assignments.shift[0] = 0;
        assignments.rows[0] = (1 << p.T) - 1;
    }
    if (out / 32 == GPU_WARPS - 1 && out % 32 < p.T) assignments.gate[out % 32] = gpu_sigmoid(__ldcg(p.shared_gate + out % 32));
    if (x) old = __ldcg(x);
    __syncthreads();
    if (ROWS > 1) {
        gpu_list_assignments(&assignments);
        __syncthreads();
    }
    gpu_down_all<ROWS>(p, &assignments, tile, dynamic, sum);
    store_warp_partial<ROWS>(parts.tile[0], sum);
    __syncthreads();
    if (x) store_tagged(x, old + sum_warp_partials(parts.tile[0][out % TILE_OUT][t]), p.after);
}
