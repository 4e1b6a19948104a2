/* layers/moe/down.cu: experts_down on a GPU, for any shape and format: the output is the sum over a row's assignments of down_proj h.

   Reads h, gpu_routing and the shared expert's gate, adds to x and tags it. h already holds the routing weights; the shared
   expert's is multiplied by its gate here. It chooses nothing, and knows the routing only as the list that experts_up
   publishes. */

/* The work of a block is one tile of output rows for all active experts: 0 is the shared expert, 1 + i the i-th of the
   routing. A warp has the same k blocks of each of them. An item is one k block of one active expert; a warp keeps the
   weights of DEEP items in flight.

   Most active experts are used by one token row only, so staging all rows for each would be mostly wasted. Instead a warp's
   activation fragments have a slot for each assignment of an item, and one slot of zeros that stands for all other rows. A
   batch is as many items as there are slots for. */
template <int ROWS> struct gpu_down_sizes {
    enum {
        DEEP = ROWS == 1 ? 6 : 8, SLOTS = ROWS == 1 ? 12 : 36,
        PANELS = ROWS == 1 ? 2 : 1                          /* row panels per block; two leave space for norm_in_proj */
    };
    static_assert((int)DEEP * ROWS <= (int)SLOTS, "a batch has at least one round of DEEP items, so that the loop advances");
};

/* The active experts and their assignments, in shared memory. */
typedef struct gpu_assignments {
    int64_t shift[1 + GPU_CHOSEN];   /* from expert 0's weights to those of the active expert, in bytes */
    int32_t count;               /* active experts */
    int32_t rows[1 + GPU_CHOSEN];    /* bit set of the token rows that use it */
    int32_t first[2 + GPU_CHOSEN];   /* its first assignment; first[count]: their number */
    uint16_t use[(1 + GPU_TOP) * STEP_ROWS]; /* of an assignment: active expert * STEP_ROWS + row, ascending */
    int16_t number[(1 + GPU_CHOSEN) * STEP_ROWS]; /* assignment of an active expert to a row; -1: none */
    float gate[STEP_ROWS];   /* sigmoid of the shared expert's gate, by row */
} gpu_assignments;

/* Where expert i of the list is; the list has places for more than there are. */
__device__ __forceinline__ int64_t gpu_listed_at(const moe_gpu &p, int i) {
    return __ldcg((const long long *)&p.routing->at[i]);
}

/* Fills first, use and number from count and rows: one thread per active expert. Only for several rows. */
__device__ __forceinline__ void gpu_list_assignments(gpu_assignments *assignments) {
    int entry = threadIdx.x, at = 0;
    if (entry > assignments->count) return;
    for (int i = 0; i < entry; i++) at += __popc(assignments->rows[i]);
    assignments->first[entry] = at;
    for (int t = 0; t < STEP_ROWS && entry < assignments->count; t++) {
        bool is = assignments->rows[entry] >> t & 1;
        assignments->number[entry * STEP_ROWS + t] = (int16_t)(is ? at : -1);
        if (is) assignments->use[at++] = (uint16_t)(entry * STEP_ROWS + t);
    }
}

/* Arithmetic on the items of a warp and their assignments. Both are numbered: items by active expert, then k block;
   assignments by item, then row. With one row they coincide. */
template <int ROWS> struct gpu_down_items {
    const gpu_assignments *assignments;
    int first, warp_k_blocks;    /* k blocks: `warp_k_blocks` of each active expert, from k block `first` on */
    uint32_t per_warp_k_blocks;  /* ceil(2^32 / warp_k_blocks) */
    __device__ __forceinline__ int divide(int n) const {
        return warp_k_blocks == 1 ? n : (int)__umulhi((uint32_t)n, per_warp_k_blocks);
    }
    __device__ __forceinline__ int entry(int item) const { return divide(item); }
    __device__ __forceinline__ int k_block(int item) const { return item - entry(item) * warp_k_blocks; }
    /* Assignments of the items before this one. */
    __device__ __forceinline__ int uses_before(int item) const {
        int i = entry(item), n = assignments->first[i];
        if (ROWS == 1) return item;
        return n * warp_k_blocks + (warp_k_blocks == 1 ? 0 : (item - i * warp_k_blocks) * (assignments->first[i + 1] - n));
    }
    /* The number of an item's assignment to a row; -1: none. */
    __device__ __forceinline__ int use_of(int item, int row) const {
        if (ROWS == 1) return item;
        int i = entry(item), number = assignments->number[i * STEP_ROWS + row];
        return warp_k_blocks == 1 || number < 0 ? number : uses_before(item) + number - assignments->first[i];
    }
    /* The inverse: returns the k block of an assignment; *use: its active expert * STEP_ROWS + row. */
    __device__ __forceinline__ int find(int number, int *use) const {
        int at = divide(number);
        *use = ROWS == 1 ? at * STEP_ROWS : assignments->use[at];
        if (warp_k_blocks == 1 || ROWS == 1) return number - at * warp_k_blocks;
        int i = *use / STEP_ROWS, begin = assignments->first[i], of = assignments->first[i + 1] - begin,
            rest = number - begin * warp_k_blocks;
        *use = assignments->use[begin + rest % of];
        return rest / of;
    }
    /* How many items from `base` on have assignments that fit into `slots`: whole rounds of `deep`, or up to `end`. */
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

/* Stores eight columns of h, times the gate, as item `part` of activation fragments of one row, if it is `there`. */
template <class F>
__device__ __forceinline__ void gpu_stage_h(const activation_fragments &to, int part, float *v, float gate, bool there) {
    const int lanes = F::per_load / 2;                      /* items of a k block */
#pragma unroll
    for (int c = 0; c < 8; c++) v[c] *= gate;
    float act_scale = activation_scale<F>(v);
    if (there) gpu_put_columns<F, 1>(to, part / lanes, part % lanes, 0, v, act_scale);
}

/* Stages the activation fragments of `count` items from `base` on: a lane loads eight columns of h at a time, AT_ONCE times
   before it uses the first. No barrier beyond the warp: each warp stages what it multiplies itself. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_stage_down(const moe_gpu &p, const gpu_down_items<ROWS> &items, int base, int count,
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
            gpu_stage_h<F>(to, part, v[n], use[n] < STEP_ROWS ? items.assignments->gate[use[n]] : 1, part < parts);
        }
    }
    __syncwarp();
}

/* Bytes of a warp's slots in any format: FP8's are the largest. */
template <int ROWS> __host__ __device__ constexpr int gpu_down_bytes() {
    return ((gpu_down_sizes<ROWS>::SLOTS + 1) * (256 + (int)sizeof(float)) + 15) / 16 * 16;
}

/* The weights that a warp has in flight, of active experts of one format: DEEP items of a tile's panels, and the scale of one of them. */
template <class F, int ROWS> struct gpu_down_weights {
    enum { PANELS = gpu_down_sizes<ROWS>::PANELS };
    enum { DEEP = sizeof(typename F::raw) > 16 ? 4 : (int)gpu_down_sizes<ROWS>::DEEP };     /* as many as registers hold */
    const gpu_matrix &w;
    const gpu_assignments *assignments;
    gpu_place shared, routed;    /* of the tile's first panel, and of its last */
    gpu_down_items<ROWS> items;
    int panel, end;              /* bytes from panel to panel; items */
    typename F::raw raw[DEEP][PANELS];
    float scale;

    __device__ __forceinline__ gpu_down_weights(const moe_gpu &p, const gpu_assignments *assignments, int tile, int low, int high)
        : w(low ? p.down : p.shared_down), assignments(assignments), items{assignments}, raw{}, scale(1) {
        shared = gpu_place_of<F>(p.shared_down, PANELS * tile, p.shared_down, PANELS * (tile + 1) - 1);
        routed = gpu_place_of<F>(p.down, PANELS * tile, p.down, PANELS * (tile + 1) - 1);
        panel = (int)(low ? routed.data[1] - routed.data[0] : shared.data[1] - shared.data[0]);
        items.first = gpu_share(w.k_blocks, threadIdx.x / 32, GPU_WARPS, &items.warp_k_blocks);
        items.per_warp_k_blocks = items.warp_k_blocks ? reciprocal_of(items.warp_k_blocks) : 0;
        end = high * items.warp_k_blocks;
    }
    /* Of the items in flight, whose scale the lane holds. */
    __device__ __forceinline__ int scale_slot() const { return threadIdx.x % 32 / ROWS % DEEP; }
    __device__ __forceinline__ void load(int j, int item) {
        if (item >= end) return;
        const int i = items.entry(item);
        const int64_t shift = assignments->shift[i];
        const char *at = (i ? routed.data[0] : shared.data[0]) + shift + (items.first + items.k_block(item)) * F::panel;
#pragma unroll
        for (int o = 0; o < PANELS; o++)
            gpu_load_weights<F>(&raw[j][o], at + o * panel, 0, (i ? routed.scale : shared.scale) + shift / 4 + o * PANEL_ROWS,
                                true);
    }
    __device__ __forceinline__ void load_scale(int item) {  /* one scale for all panels of the block */
        if (!F::scaled || item >= end) return;
        const int i = items.entry(item);
        const float *at = (i ? routed.scale : shared.scale) + assignments->shift[i] / 4;
        scale = __ldg(at + (items.first + items.k_block(item) >> w.k_block_shift));
    }
    /* sum += the items base .. end - 1 of a batch, whose assignments are staged, a slot for each. */
    __device__ __forceinline__ void multiply(const activation_fragments &act, int base, int end, float *sum) {
        enum { SLOTS = gpu_down_sizes<ROWS>::SLOTS };
        const int pairs = gpu_step_pairs<F>(), lane = threadIdx.x % 32, before = items.uses_before(base);
        auto slot = [&](int item, int row) {
            const int use = items.use_of(item, row);
            return use < 0 ? (int)SLOTS : use - before;
        };
#pragma unroll 1
        for (int from = base; from < end; from += DEEP) {
            float factor = 0;
            if (F::half && from + scale_slot() < end)
                factor = scale * (act.act_scale[slot(from + scale_slot(), lane % ROWS)] * gpu_post_scale<F>());
            load_scale(from + DEEP + scale_slot());
#pragma unroll
            for (int j = 0; j < DEEP; j++) {
                uint4 x[pairs];
                if (from + j >= end) break;
                const uint4 *at = act.x + slot(from + j, lane / 4 % ROWS) * pairs * 8 + lane / 16 * 4 + lane % 4;
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = at[pair * 8];
                gpu_multiply<F, ROWS, PANELS>(sum, raw[j], x, factor, j * ROWS, 0, true);
                load(j, from + DEEP + j);
            }
        }
    }
};

/* sum += active experts low .. high - 1 of a tile, all of one format. Contains the pdl_wait.

   Same bits for a row whatever the others chose: the warp and the order in which a row's products are added depend on the k
   block and the expert only. Rows that do not use an active expert multiply the slot of zeros and add an exact zero.

   Before the wait: the weights and scales of the first DEEP items, which depend on the routing but not on h. A shared expert whose output is
   apart does not wait at all: its h is norm_router's, and its sums are not stored yet. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_down_active(const moe_gpu &p, const gpu_assignments *assignments, int tile, int low,
                                                int high, void *memory, float *sum) {
    enum { SLOTS = gpu_down_sizes<ROWS>::SLOTS, DEEP = gpu_down_weights<F, ROWS>::DEEP };
    const int pairs = gpu_step_pairs<F>(), lane = threadIdx.x % 32;
    const activation_fragments act =
        activation_fragments_at<F, 1>((char *)memory + threadIdx.x / 32 * gpu_down_bytes<ROWS>(), SLOTS + 1);
    gpu_down_weights<F, ROWS> weights(p, assignments, tile, low, high);
    int base = low * weights.items.warp_k_blocks;
#pragma unroll
    for (int j = 0; j < DEEP; j++) weights.load(j, base + j);
    weights.load_scale(base + weights.scale_slot());
    if (lane < pairs * 8) act.x[SLOTS * pairs * 8 + lane] = make_uint4(0, 0, 0, 0);
    if (F::half && lane == 0) act.act_scale[SLOTS] = 0;
    if (low || !p.branches.shared_to) pdl_wait();
#pragma unroll 1
    for (int count; base < weights.end; base += count) {
        count = weights.items.batch(base, weights.end, DEEP, SLOTS);
        __syncwarp();
        gpu_stage_down<F, ROWS>(p, weights.items, base, count, act);
        weights.multiply(act, base, base + count, sum);
    }
}

/* All active experts, without the shared one if there is none. That runs by itself if its format or size is not that of the routed ones, or
   if its output is apart: then the warp's partials of it are in `shared`. */
template <int ROWS>
__device__ __forceinline__ void gpu_down_all(const moe_gpu &p, const gpu_assignments *assignments, int tile, void *memory, float *sum,
                                             float (*shared)[STEP_ROWS][GPU_WARPS]) {
    const bool apart = p.branches.shared_to;
    const bool alike = p.down.format == p.shared_down.format && p.down.k_blocks == p.shared_down.k_blocks && !apart;
#pragma unroll 1
    for (int low = p.shape.shared_size ? 0 : 1, high; low < assignments->count; low = high) {
        high = alike || low ? assignments->count : 1;
        with_format(low ? p.down.format : p.shared_down.format, [&](auto format) {
            gpu_down_active<decltype(format), ROWS>(p, assignments, tile, low, high, memory, sum);
        });
        if (low || !apart) continue;
        store_warp_partial<ROWS>(shared, sum);
        for (int i = 0; i < 4; i++) sum[i] = 0;
    }
}

/* experts_down for any shape and format; ROWS = 1, or 4 for T = 2, 3 and 4. Grid: one block per PANELS row panels of the
   output. One thread per output element adds the warps' partials in their
   order: no atomics.

   What it reads before its wait, namely the routing, the residual x and the shared expert's gate, was complete before any
   block of experts_up triggered, and experts_up triggers only then (gpu_publish). It reads h and stores x after the
   wait. */
template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down(const __grid_constant__ moe_gpu p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials parts;
    __shared__ gpu_assignments assignments;
    enum { PANELS = gpu_down_sizes<ROWS>::PANELS, TILE_OUT = PANELS * PANEL_ROWS };
    const int out = (int)threadIdx.x, tile = (int)blockIdx.x, row = tile * TILE_OUT + out % TILE_OUT, t = out / TILE_OUT;
    float *to = t < p.T && row < p.shape.hidden ? p.to + (size_t)t * p.shape.hidden + row : NULL;
    float sum[4] = {0, 0, 0, 0}, before = 0;
    pdl_launch_dependents();
    if (out < GPU_CHOSEN) {
        assignments.shift[1 + out] = gpu_listed_at(p, out);
        assignments.rows[1 + out] = __ldcg(&p.routing->rows[out]);
    }
    if (out == GPU_CHOSEN) {
        assignments.count = 1 + __ldcg(&p.routing->count);
        assignments.shift[0] = 0;
        assignments.rows[0] = (1 << p.T) - 1;
    }
    if (out / 32 == GPU_WARPS - 1 && out % 32 < p.T)
        assignments.gate[out % 32] = gpu_shared_weight(p, out % 32);
    if (to) before = epilogue_before<false>(p.end, p.down, row, to);
    __syncthreads();
    if (ROWS > 1) {
        gpu_list_assignments(&assignments);
        __syncthreads();
    }
    gpu_down_all<ROWS>(p, &assignments, tile, dynamic, sum, parts.tile[1]);
    store_warp_partial<ROWS>(parts.tile[0], sum);
    if (to && gpu_has_down_bias(p)) before += gpu_down_bias(p, t, row);
    __syncthreads();
    if (to) epilogue_output(p.end, to, row, sum_warp_partials(parts.tile[0][out % TILE_OUT][t]), 1, before, p.link.publish);
    if (to && p.branches.shared_to)                         /* 0: there is no shared expert */
        p.branches.shared_to[t * p.shape.hidden + row] = p.shape.shared_size ? sum_warp_partials(parts.tile[1][out % TILE_OUT][t]) : 0;
}
