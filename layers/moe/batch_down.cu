/* layers/moe/batch_down.cu: experts_down of a pass of more than MOTE_ROWS_MAX token rows: x += sum over a row's assignments of down_proj h.
   Reads the units of route, and h, which experts_up and, of the shared expert, route have stored as fragments, times all weights.

   A block has PANELS row panels of the output, and all units in their order; a warp the k blocks of them that it has in gpu_experts_down. An
   item is one k block of one unit. A row's sums are in shared memory, where the items of its experts are added one after the other: so its
   bits are those that it has alone, whatever else there is. Adding an exact zero for experts that a row does not use, as gpu_experts_down
   does, changes no bits. */

/* What a block has in shared memory: sums [warp][row][high, low][panel row][PANELS], then the units. */
template <int PANELS> __host__ __device__ constexpr int gpu_batch_sums(int T) {
    return GPU_WARPS * T * 2 * PANEL_ROWS * PANELS;
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

/* A lane's rows of a tile. */
template <int PANELS> struct alignas(4 * PANELS) gpu_panel_rows { float y[PANELS]; };

/* A place in the order of a warp's items. */
struct gpu_down_place { int unit, k_block; };

/* sums += units low .. high - 1, all of one format and size. Contains the pdl_wait. `list`: the units, in shared memory, and one more. */
template <class F, int PANELS, int DEPTH>
__device__ __forceinline__ void gpu_batch_down_units(const moe_gpu &p, const gpu_unit *list, int low, int high, float *sums) {
    enum { BLOCK = gpu_unit_block<F>(), pairs = gpu_step_pairs<F>() };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, shared_units = gpu_shared_units(p), tile = (int)blockIdx.x;
    const gpu_matrix &w = low < shared_units ? p.shared_down : p.down;
    const gpu_place shared = gpu_place_of<F>(p.shared_down, PANELS * tile, p.shared_down, PANELS * (tile + 1) - 1);
    const gpu_place routed = gpu_place_of<F>(p.down, PANELS * tile, p.down, PANELS * (tile + 1) - 1);
    const int64_t panel = routed.data[1] - routed.data[0];
    const int64_t shared_panel = shared.data[1] - shared.data[0];
    const activation_fragments h = low < shared_units ? p.batch.shared : p.batch.routed;
    int warp_k_blocks;
    const int first = gpu_share(w.k_blocks, warp, GPU_WARPS, &warp_k_blocks);
    const int items = (high - low) * warp_k_blocks;
    gpu_down_item<F, PANELS> ahead[DEPTH];
    memset(ahead, 0, sizeof ahead);
    gpu_down_place at = {low, 0};                           /* of the item whose weights are loaded next */
    gpu_down_place at_h = at;                               /* of that whose h is */
    auto advance = [&](gpu_down_place *to) {
        const bool ends = to->k_block + 1 == warp_k_blocks;
        to->unit = min(to->unit + ends, high);
        to->k_block = ends ? 0 : to->k_block + 1;
    };
    auto load_weights = [&](gpu_down_item<F, PANELS> *to) {
        const bool there = at.unit < high, of_shared = at.unit < shared_units;
        const uint32_t expert = there && !of_shared ? (uint32_t)list[at.unit].expert : 0;
        const int k_block = first + at.k_block;
        const int64_t shift = (int64_t)((uint64_t)expert * (uint32_t)p.stride);
        const char *data = (of_shared ? shared.data[0] : routed.data[0]) + shift + k_block * F::panel;
        const float *scale = (const float *)((const char *)(of_shared ? shared.scale : routed.scale) + shift);
#pragma unroll
        for (int o = 0; o < PANELS; o++)
            gpu_load_weights<F>(&to->raw[o], data + (o ? of_shared ? shared_panel : panel : 0), 0, scale + o * PANEL_ROWS, there);
        if (F::scaled) to->scale = ld_volatile(scale + (k_block >> w.k_block_shift), there);
        advance(&at);
    };
    auto load_h = [&](gpu_down_item<F, PANELS> *to) {
        const bool there = at_h.unit < high;
        const uint32_t rows = list[at_h.unit].rows;
        const int k_block = (at_h.unit - low) * w.k_blocks + first + at_h.k_block;
        const bool is = there && (rows >> lane / 4 % 4 * 8 & 255) != UNIT_NO_ROW;
        const uint4 *x = h.x + (size_t)k_block * BLOCK + lane;
#pragma unroll
        for (int i = 0; i < pairs; i++) ld_l2(&to->x[i], x + i * 32, is);
        if (F::half) ld_l2(&to->act_scale, h.act_scale + k_block * N_TILE_ROWS + lane % 2 * 2, there);
        to->rows = there ? rows : ~0u;
        advance(&at_h);
    };
    float *own = sums + warp * p.T * (2 * PANEL_ROWS * PANELS) + (lane / 2 % 2 * PANEL_ROWS + lane / 4) * PANELS;
    if (warp_k_blocks == 0) high = 0;
#pragma unroll
    for (int j = 0; j < DEPTH; j++) load_weights(&ahead[j]);
    pdl_wait();
#pragma unroll
    for (int j = 0; j < DEPTH; j++) load_h(&ahead[j]);
#pragma unroll 1
    for (int from = 0; from < items; from += DEPTH) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++) {
            gpu_down_item<F, PANELS> *item = &ahead[j];
            float part[4];
            gpu_multiply_block<F, PANELS>(part, item->raw, item->x);
            float factor[2] = {1, 1}, row_scale[2] = {1, 1};
            if (F::half) {
                factor[0] = item->act_scale.x * gpu_post_scale<F>();
                factor[1] = item->act_scale.y * gpu_post_scale<F>();
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (F::scaled) factor[i] = __fmul_rn(item->scale, factor[i]);
                if (F::by_row && i < PANELS) row_scale[i] = F::row_scale(item->raw[i]);
            }
            const uint32_t rows = item->rows >> lane % 2 * 16;
            load_weights(item);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = (int)(rows >> i * 8 & 255);
                gpu_panel_rows<PANELS> *to = (gpu_panel_rows<PANELS> *)own + min(row, p.T - 1) * (2 * PANEL_ROWS), of = *to;
#pragma unroll
                for (int o = 0; o < PANELS; o++) {
                    if (F::by_row) part[2 * o + i] = __fmul_rn(part[2 * o + i], row_scale[o]);
                    of.y[o] = F::half ? __fmaf_rn(factor[i], part[2 * o + i], of.y[o]) : __fadd_rn(of.y[o], part[2 * o + i]);
                }
                if (row != UNIT_NO_ROW) *to = of;
            }
            load_h(item);
            __syncwarp();
        }
    }
}

enum {
    BATCH_DOWN_DEPTH = 8,
    BATCH_EARLY = 8              /* token rows up to which the next kernel's blocks do not take more from this one's than they gain */
};

/* The routing, in shared memory, and the sums at 0. Ends with a barrier. */
template <int PANELS> __device__ __forceinline__ int gpu_begin_batch_down(const moe_gpu &p, float *sums, gpu_unit *list) {
    if (p.T <= BATCH_EARLY) pdl_launch_dependents();
    const int units = __ldcg(p.batch.count);
    for (int i = threadIdx.x; i < gpu_batch_sums<PANELS>(p.T); i += GPU_THREADS) sums[i] = 0;
    for (int i = threadIdx.x; i <= units; i += GPU_THREADS) {
        const int2 unit = i < units ? __ldcg((const int2 *)&p.batch.unit[i]) : make_int2(0, -1);
        list[i] = {unit.x, (uint32_t)unit.y};
    }
    __syncthreads();
    return units;
}

/* x += the warps' sums, in their order. */
template <int PANELS> __device__ __forceinline__ void gpu_end_batch_down(const moe_gpu &p, const float *sums) {
    enum { OUT = PANELS * PANEL_ROWS };
    __syncthreads();
    for (int i = threadIdx.x; i < p.T * OUT; i += GPU_THREADS) {
        const int t = i / OUT, out = i % OUT, row = (int)blockIdx.x * OUT + out;
        const float *part = sums + t * 2 * OUT + out % PANEL_ROWS * PANELS + out / PANEL_ROWS;
        if (row >= p.shape.hidden) continue;
        float *x = p.x + (size_t)t * p.shape.hidden + row, all = -0.0f;
#pragma unroll
        for (int warp = 0; warp < GPU_WARPS; warp++, part += p.T * 2 * OUT) all = __fadd_rn(all, __fadd_rn(part[0], part[OUT]));
        store_tagged(x, __fadd_rn(__ldcg(x), all), p.link.publish);
    }
}

/* Shared and routed experts of one format and size. */
template <class F, int PANELS, int DEPTH, int BLOCKS>
__global__ void __launch_bounds__(GPU_THREADS, BLOCKS) gpu_batch_down(const __grid_constant__ moe_gpu p) {
    extern __shared__ uint4 dynamic[];
    float *sums = (float *)dynamic;
    gpu_unit *list = (gpu_unit *)(sums + gpu_batch_sums<PANELS>(p.T));
    const int units = gpu_begin_batch_down<PANELS>(p, sums, list);
    gpu_batch_down_units<F, PANELS, DEPTH>(p, list, 0, units, sums);
    gpu_end_batch_down<PANELS>(p, sums);
}

/* Of two. */
static __global__ void __launch_bounds__(GPU_THREADS, 1) gpu_batch_down_unlike(const __grid_constant__ moe_gpu p) {
    enum { PANELS = 2, DEPTH = 4 };
    extern __shared__ uint4 dynamic[];
    float *sums = (float *)dynamic;
    gpu_unit *list = (gpu_unit *)(sums + gpu_batch_sums<PANELS>(p.T));
    const int units = gpu_begin_batch_down<PANELS>(p, sums, list);
#pragma unroll 1
    for (int low = 0, high = gpu_shared_units(p); low < units; low = high, high = units)
        with_format(low ? p.down.format : p.shared_down.format,
                    [&](auto format) { gpu_batch_down_units<decltype(format), PANELS, DEPTH>(p, list, low, high, sums); });
    gpu_end_batch_down<PANELS>(p, sums);
}

static void gpu_record_batch_down(gpu_queue *q, const moe_gpu *p) {
    enum { PANELS = 2 };
    const bool alike = p->down.format == p->shared_down.format && p->down.k_blocks == p->shared_down.k_blocks;
    const int units = gpu_shared_units(*p) + gpu_most_units(&p->shape, p->T) + 1;
    const size_t bytes = gpu_batch_sums<PANELS>(p->T) * sizeof(float) + (size_t)units * sizeof(gpu_unit);
    gpu_batch_kernel kernel = gpu_batch_down_unlike;
    if (alike)
        with_format(p->down.format, [&](auto format) { kernel = gpu_batch_down<decltype(format), PANELS, BATCH_DOWN_DEPTH, 1>; });
    gpu_record(q, KERNEL_DOWN, formats[p->down.format]->name, kernel, (gpu_row_panels(p->shape.hidden) - 1) / PANELS + 1, 1, bytes, p);
}
