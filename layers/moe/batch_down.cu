/* layers/moe/batch_down.cu: experts_down of a pass of more than STEP_ROWS token rows: x += sum over a row's assignments of down_proj h.
   Reads the units of route, and h, which experts_up and, of the shared expert, route have stored as fragments, times all weights.

   A block has PANELS row panels of the output, of some token rows, and their units in order; a warp the k blocks of them that it has in
   gpu_experts_down. Few rows are shared by two blocks, blockIdx.y: eight warps with all of them leave half of an SM's cycles unused. An
   item is one k block of one unit. A row's sums are in shared memory, where the items of its experts are added one after the other: so its
   bits are those that it has alone, whatever else there is. Adding an exact zero for experts that a row does not use, as gpu_experts_down
   does, changes no bits. */

/* What a block has in shared memory: sums [warp][row][high, low][panel row][PANELS], then the units. */
template <int PANELS> __host__ __device__ constexpr int gpu_batch_sums(int rows) {
    return GPU_WARPS * rows * 2 * PANEL_ROWS * PANELS;
}

/* The token rows of a block. */
typedef struct gpu_down_rows { int first, count; } gpu_down_rows;

__device__ __forceinline__ gpu_down_rows gpu_down_rows_of(const moe_gpu &p) {
    const int first = p.T * (int)blockIdx.y / (int)gridDim.y;
    return {first, p.T * ((int)blockIdx.y + 1) / (int)gridDim.y - first};
}

/* An item in flight. */
template <class F, int PANELS> struct gpu_down_item {
    typename F::raw raw[PANELS];
    uint4 x[gpu_step_pairs<F>()];
    float2 act_scale;            /* of the lane's two rows */
    float scale;
    uint32_t rows;               /* of the unit */
};

/* Loads 16 bytes from the L2, if they are `there`; otherwise *to stays. */
__device__ __forceinline__ void ld_l2(uint4 *to, const void *at, bool there) {
    asm volatile("{.reg .pred p;\n\t"
        "setp.ne.s32 p, %5, 0;\n\t"
        "@p ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(to->x), "+r"(to->y), "+r"(to->z), "+r"(to->w) : "l"(at), "r"((int)there));
}

__device__ __forceinline__ void ld_l2(float2 *to, const void *at, bool there) {
    asm volatile("{.reg .pred p;\n\t"
        "setp.ne.s32 p, %3, 0;\n\t"
        "@p ld.global.cg.v2.f32 {%0, %1}, [%2];}" : "+f"(to->x), "+f"(to->y) : "l"(at), "r"((int)there));
}

/* part[n] = item n's product, of part `of` of its k block, of SIDE items side by side. */
template <class F, int PANELS, int SIDE>
__device__ __forceinline__ void gpu_multiply_blocks(float (*part)[4], const gpu_down_item<F, PANELS> *item, int of) {
    enum { STEPS = F::per_load / 4 / gpu_block_parts<F>() };
#pragma unroll
    for (int i = 0; i < 4 * SIDE; i++) part[i / 4][i % 4] = 0;
#pragma unroll
    for (int s = of * STEPS; s < (of + 1) * STEPS; s++)
#pragma unroll
        for (int term = 0; term < F::terms; term++)
#pragma unroll
            for (int n = 0; n < SIDE; n++) {
                const uint4 &x = item[n].x[s / 2];
                uint32_t a[4] = {};
                F::fragment(item[n].raw[0], s, term, &a[0], &a[2]);
                if (PANELS == 2) F::fragment(item[n].raw[1], s, term, &a[1], &a[3]);
                mma_m16n8k16<F::half>(part[n], a, s % 2 ? x.z : x.x, s % 2 ? x.w : x.y);
            }
}

/* A lane's rows of a tile. */
template <int PANELS> struct alignas(4 * PANELS) gpu_panel_rows { float y[PANELS]; };

/* A unit's weights: of the block's tile. */
typedef struct gpu_down_unit {
    const char *data;
    union {
        const float *scale;      /* of the tile's first k block, or of its first row */
        float value;             /* of all of the matrix */
    };
    uint32_t rows;               /* as in gpu_unit, of the block's */
    int number;                  /* from the first one on: where its h is */
} gpu_down_unit;

/* A unit's rows as rows of the block. */
__device__ __forceinline__ uint32_t gpu_own_rows(uint32_t rows, const gpu_down_rows &block) {
    uint32_t own = 0;
#pragma unroll
    for (int s = 0; s < N_TILE_ROWS; s++) {
        const uint32_t row = (rows >> 8 * s & 255) - (uint32_t)block.first;
        own |= (row < (uint32_t)block.count ? row : (uint32_t)UNIT_NO_ROW) << 8 * s;
    }
    return own;
}

/* Lists those of units low .. high - 1, of the shared expert or of routed ones, that have rows of the block, and one without rows. Returns how
   many. Begins and ends with a barrier. */
template <class F, int PANELS>
__device__ __forceinline__ int gpu_list_down_units(const moe_gpu &p, const gpu_down_rows &block, int low, int high, gpu_down_unit *list) {
    __shared__ int warps[GPU_WARPS];
    const int shared_units = gpu_shared_units(p), panel = PANELS * (int)blockIdx.x, warp = threadIdx.x / 32;
    int all = 0;
#pragma unroll 1
    for (int begin = low; begin < high; begin += GPU_THREADS) {
        const int i = begin + (int)threadIdx.x;
        const gpu_matrix &w = i < shared_units ? p.shared_down : p.down;
        const gpu_unit unit = i < high ? gpu_load_unit(p, i) : gpu_unit{0, ~0u};
        const uint32_t rows = gpu_own_rows(unit.rows, block), those = __ballot_sync(~0u, rows != ~0u);
        int before = all;
        __syncthreads();
        if (threadIdx.x % 32 == 0) warps[warp] = __popc(those);
        __syncthreads();
        for (int of = 0; of < GPU_WARPS; of++) {
            before += of < warp ? warps[of] : 0;
            all += warps[of];
        }
        if (rows == ~0u) continue;
        gpu_down_unit *to = &list[before + __popc(those & ((1u << threadIdx.x % 32) - 1))];
        to->number = i - low;
        to->data = w.data + unit.at + (size_t)panel * (uint32_t)(w.k_blocks * F::panel);
        to->scale = (const float *)((const char *)w.scale + unit.at);
        if (gpu_scales_by_block<F>()) to->scale += (panel * PANEL_ROWS >> w.row_shift) * w.scale_cols;
        if (F::whole) to->value = __ldg(to->scale);
        else if (F::by_row && !F::groups) to->scale += panel * PANEL_ROWS;
        to->rows = rows;
    }
    if (threadIdx.x == 0) list[all] = {p.down.data, {p.down.scale}, ~0u, 0};
    __syncthreads();
    return all;
}

/* What a warp does with the units low .. high - 1, all of one format and size: of each the k blocks that it has in gpu_experts_down, one after
   the other. */
template <class F, int PANELS, int DEPTH, int SIDE> struct gpu_batch_down_warp {
    enum { BLOCK = gpu_unit_block<F>(), pairs = gpu_step_pairs<F>(), ROW = 2 * PANEL_ROWS * PANELS, PARTS = gpu_block_parts<F>() };
    static_assert(DEPTH % SIDE == 0, "whole groups");
    typedef gpu_down_item<F, PANELS> item;
    const gpu_matrix &w;
    const gpu_down_unit *list;
    const int lane;
    int first, warp_k_blocks;    /* k blocks */
    int last;                    /* units: what is after the last item has no weights and no rows */
    int panel, offset;           /* bytes from panel to panel, and to the lane's part of the warp's first k block */
    int unit, k_block;           /* of the item that is loaded next */
    const uint4 *x;
    const float *act_scale;
    uint32_t own;                /* the lane's sums of row 0 */

    __device__ __forceinline__ gpu_batch_down_warp(const gpu_matrix &w, const activation_fragments &h, const gpu_down_unit *list, int units,
                                                   int rows, const float *sums)
        : w(w), list(list), lane(opaque((int)threadIdx.x % 32)), unit(0), k_block(0) {
        const int warp = threadIdx.x / 32, panels = min(PANELS, w.panels - PANELS * (int)blockIdx.x);
        panel = panels > 1 ? w.k_blocks * F::panel : 0;
        first = gpu_share(w.k_blocks, warp, GPU_WARPS, &warp_k_blocks);
        last = warp_k_blocks ? units : 0;
        offset = first * F::panel + lane * F::lane;
        x = h.x + (size_t)first * BLOCK + lane;
        act_scale = h.act_scale + first * N_TILE_ROWS + lane % 2 * 2;
        own = shared_address(sums + warp * rows * ROW + (lane / 2 % 2 * PANEL_ROWS + lane / 4) * PANELS);
    }
    __device__ __forceinline__ void advance() {
        const bool ends = k_block + 1 >= warp_k_blocks;
        unit = min(unit + ends, last);
        k_block = ends ? 0 : k_block + 1;
    }
    __device__ __forceinline__ void load_weights(item *to) const {
        const gpu_down_unit *of = &list[unit];
        const bool there = unit < last;
        const char *data = of->data + (offset + k_block * F::panel);
#pragma unroll
        for (int o = 0; o < PANELS; o++)
            gpu_load_weights<F>(&to->raw[o], data + o * panel, 0, of->scale + lane / 4 + o * PANEL_ROWS, there);
        if (F::whole) to->scale = of->value;
        else if (F::scaled) to->scale = ld_volatile(of->scale + (first + k_block >> w.k_block_shift), there);
    }
    __device__ __forceinline__ void load_h(item *to) const {
        to->rows = unit < last ? list[unit].rows : ~0u;
        const int at = list[unit].number * w.k_blocks + k_block;
        const bool is = (to->rows >> lane / 4 % 4 * 8 & 255) != UNIT_NO_ROW;
#pragma unroll
        for (int i = 0; i < pairs; i++) ld_l2(&to->x[i], x + (int64_t)at * BLOCK + i * 32, is);
        if (F::half) ld_l2(&to->act_scale, act_scale + (int64_t)at * N_TILE_ROWS, unit < last);
        to->rows >>= lane % 2 * 16;
    }
    __device__ __forceinline__ void load(item *set, bool weights, bool rows) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++) {
            if (weights) load_weights(&set[j]);
            if (rows) load_h(&set[j]);
            advance();
        }
        __syncwarp();                                       /* so that the compiler leaves the loads here */
    }
    /* The rows' sums += an item's product, item n's of those that part has. */
    __device__ __forceinline__ void add(const item *of, float (*part)[SIDE][4], int n) const {
#pragma unroll
        for (int i = 0; i < 2 * PANELS * PARTS; i++)
            if (F::by_row) part[i % PARTS][n][i / PARTS] = __fmul_rn(part[i % PARTS][n][i / PARTS], gpu_row_scale<F>(of->raw[i / PARTS / 2], i % PARTS));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = of->rows >> i * 8 & 255;
            float factor = F::half ? (i ? of->act_scale.y : of->act_scale.x) * gpu_post_scale<F>() : 1;
            if (F::scaled) factor = __fmul_rn(of->scale, factor);
            if (row == UNIT_NO_ROW) continue;
            gpu_panel_rows<PANELS> *to = (gpu_panel_rows<PANELS> *)__cvta_shared_to_generic(own + row * (ROW * 4)), sums = *to;
#pragma unroll
            for (int o = 0; o < PANELS * PARTS; o++) {
                const float p = part[o % PARTS][n][o / PARTS * 2 + i];
                sums.y[o / PARTS] = F::half ? __fmaf_rn(factor, p, sums.y[o / PARTS]) : __fadd_rn(sums.y[o / PARTS], p);
            }
            *to = sums;
        }
        __syncwarp();
    }
    __device__ __forceinline__ void multiply(const item *set) const {
#pragma unroll
        for (int j = 0; j < DEPTH; j += SIDE) {
            float part[PARTS][SIDE][4];
#pragma unroll
            for (int of = 0; of < PARTS; of++) gpu_multiply_blocks<F, PANELS, SIDE>(part[of], &set[j], of);
#pragma unroll
            for (int n = 0; n < SIDE; n++) add(&set[j + n], part, n);
        }
    }
};

/* sums += units low .. high - 1, all of one format and size. Contains the pdl_wait.

   Performance: DEPTH items are multiplied while the next DEPTH are on their way, all of which were asked for before. Were an item's registers
   loaded anew as soon as it is multiplied, at most as many would be in flight, but a warp has six scoreboards for all its loads: in
   every round the compiler waits for all of them, also for those just begun. SIDE items are multiplied side by side, as their four mma
   operations wait for each other; what they are added to may be the same sums, so they are added one after the other. */
template <class F, int PANELS, int DEPTH, int SIDE>
__device__ __forceinline__ void gpu_batch_down_units(const moe_gpu &p, gpu_down_unit *list, int low, int high, float *sums) {
    const bool shared = low < gpu_shared_units(p);
    const gpu_down_rows block = gpu_down_rows_of(p);
    const int units = gpu_list_down_units<F, PANELS>(p, block, low, high, list);
    gpu_batch_down_warp<F, PANELS, DEPTH, SIDE> warp(shared ? p.shared_down : p.down, shared ? p.batch.shared : p.batch.routed, list, units,
                                                     block.count, sums);
    gpu_down_item<F, PANELS> ahead[2][DEPTH];
    const int items = units * warp.warp_k_blocks;
    memset(ahead, 0, sizeof ahead);
    warp.load(ahead[0], true, false);
    warp.unit = warp.k_block = 0;
    pdl_wait();
    warp.load(ahead[0], false, true);
#pragma unroll 1
    for (int from = 0; from < items; from += 2 * DEPTH) {
        warp.load(ahead[1], true, true);
        warp.multiply(ahead[0]);
        warp.load(ahead[0], true, true);
        warp.multiply(ahead[1]);
    }
}

enum { BATCH_EARLY = 8 };        /* token rows up to which the next kernel's blocks gain more than they take from this one's */

/* The sums at 0. */
template <int PANELS> __device__ __forceinline__ void gpu_begin_batch_down(const moe_gpu &p, float *sums) {
    if (p.T <= BATCH_EARLY) pdl_launch_dependents();
    for (int i = threadIdx.x; i < gpu_batch_sums<PANELS>(gpu_down_rows_of(p).count); i += GPU_THREADS) sums[i] = 0;
}

/* Of element `out` of the block's of its row t of `rows`, all warps' sums, in their order. */
template <int PANELS> __device__ __forceinline__ float gpu_batch_sum(const float *sums, int rows, int t, int out) {
    enum { OUT = PANELS * PANEL_ROWS };
    const float *part = sums + t * 2 * OUT + out % PANEL_ROWS * PANELS + out / PANEL_ROWS;
    float all = -0.0f;
#pragma unroll
    for (int warp = 0; warp < GPU_WARPS; warp++, part += rows * 2 * OUT) all = __fadd_rn(all, __fadd_rn(part[0], part[OUT]));
    return all;
}

/* The output. */
template <int PANELS> __device__ __forceinline__ void gpu_end_batch_down(const moe_gpu &p, const float *sums) {
    enum { OUT = PANELS * PANEL_ROWS };
    const gpu_down_rows block = gpu_down_rows_of(p);
    __syncthreads();
    for (int i = threadIdx.x; i < block.count * OUT; i += GPU_THREADS) {
        const int t = block.first + i / OUT, out = i % OUT, row = (int)blockIdx.x * OUT + out;
        if (row >= p.shape.hidden) continue;
        float *to = p.to + (size_t)t * p.shape.hidden + row, before = epilogue_before<false>(p.end, p.down, row, to);
        const float all = gpu_batch_sum<PANELS>(sums, block.count, i / OUT, out);
        if (gpu_has_down_bias(p)) before += gpu_down_bias(p, t, row);
        epilogue_store(to, all, 1, before, p.link.publish);
    }
}

/* The shared expert's output, where that is apart; the sums are 0 again. A block has all rows. What follows begins with a barrier. */
template <int PANELS> __device__ __forceinline__ void gpu_end_batch_shared(const moe_gpu &p, float *sums) {
    enum { OUT = PANELS * PANEL_ROWS };
    __syncthreads();
    for (int i = threadIdx.x; i < p.T * OUT; i += GPU_THREADS) {
        const int row = (int)blockIdx.x * OUT + i % OUT;
        if (row < p.shape.hidden) p.branches.shared_to[(size_t)(i / OUT) * p.shape.hidden + row] = gpu_batch_sum<PANELS>(sums, p.T, i / OUT, i % OUT);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < gpu_batch_sums<PANELS>(p.T); i += GPU_THREADS) sums[i] = 0;
}

/* Shared and routed experts of one format and size. */
template <class F, int PANELS, int DEPTH, int SIDE, int BLOCKS>
__global__ void __launch_bounds__(GPU_THREADS, BLOCKS) gpu_batch_down(const __grid_constant__ moe_gpu p) {
    extern __shared__ uint4 dynamic[];
    float *sums = (float *)dynamic;
    gpu_begin_batch_down<PANELS>(p, sums);
    gpu_batch_down_units<F, PANELS, DEPTH, SIDE>(p, (gpu_down_unit *)(sums + gpu_batch_sums<PANELS>((p.T + BLOCKS - 1) / BLOCKS)), 0, __ldcg(p.batch.count), sums);
    gpu_end_batch_down<PANELS>(p, sums);
}

/* Any. A panel a block, so that the most units that there may be fit shared memory beside the sums of 64 rows. */
static __global__ void __launch_bounds__(GPU_THREADS, 1) gpu_batch_down_any(const __grid_constant__ moe_gpu p) {
    enum { PANELS = 1, DEPTH = 4, SIDE = 1 };
    extern __shared__ uint4 dynamic[];
    float *sums = (float *)dynamic;
    gpu_down_unit *list = (gpu_down_unit *)(sums + gpu_batch_sums<PANELS>(p.T));
    const int units = __ldcg(p.batch.count);
    gpu_begin_batch_down<PANELS>(p, sums);
#pragma unroll 1
    for (int low = 0, high = gpu_shared_units(p); low < units; low = high, high = units) {
        with_format(low || !high ? p.down.format : p.shared_down.format,
                    [&](auto format) { gpu_batch_down_units<decltype(format), PANELS, DEPTH, SIDE>(p, list, low, high, sums); });
        if (!low && p.branches.shared_to) gpu_end_batch_shared<PANELS>(p, sums);
    }
    gpu_end_batch_down<PANELS>(p, sums);
}
