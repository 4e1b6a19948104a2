/* layers/moe/batch_route.cu: route: what experts_up and experts_down of a pass of more than STEP_ROWS token rows are told. Between
   norm_router and experts_up; knows neither projections nor their weights.

     choice   the experts of each row and their weights, as gpu_route has them
     units    the rows of each expert, by fours: a counting sort
     h        of the shared expert, times its gate, as fragments for experts_down
     x        x norm, as fragments for experts_up, where norm_router's projection has not prepared the same

   With so many rows every block of experts_up would take too long to find this for itself. A row's numbers are those that it has
   alone: they do not depend on the other rows, nor on how many there are. */

/* Most units of the routed experts: each has a last one that need not be full. */
static int gpu_most_units(const moe_shape *s, int T) {
    const int uses = T * s->top_k, last = s->experts < uses ? s->experts : uses;
    return last + (uses - last) / N_TILE_ROWS;
}

/* Units of the shared expert. */
__host__ __device__ __forceinline__ int gpu_shared_units(const moe_gpu &p) {
    return p.shape.shared_size ? (p.T + N_TILE_ROWS - 1) / N_TILE_ROWS : 0;
}

/* uint4 of a k block of a unit. */
template <class F> __host__ __device__ constexpr int gpu_unit_block() {
    return gpu_step_pairs<F>() * 8 * N_TILE_ROWS;
}

/* Where unit number `unit` has its rows' h. */
template <class F>
__device__ __forceinline__ activation_fragments gpu_unit_h(const activation_fragments &of, const gpu_matrix &down, int unit) {
    return {of.x + (size_t)unit * (uint32_t)(down.k_blocks * gpu_unit_block<F>()), of.act_scale + unit * down.k_blocks * N_TILE_ROWS};
}

/* Unit i, from the L2. */
__device__ __forceinline__ gpu_unit gpu_load_unit(const moe_gpu &p, int i) {
    const uint4 raw = __ldcg((const uint4 *)&p.batch.unit[i]);
    return {(int64_t)((uint64_t)raw.y << 32 | raw.x), raw.z};
}

/* The warp's row chooses. */
__device__ __forceinline__ void gpu_route_row(const moe_gpu &p, int t) {
    const int lane = threadIdx.x % 32, few = p.shape.experts <= 256;
    const int expert = few ? gpu_choose_of<1, STEP_ROWS>(p, t) : gpu_choose_of<GPU_EXPERTS / 256, STEP_ROWS>(p, t);
    const float weight = gpu_choice_weight<STEP_ROWS>(p, t, expert);
    if (lane < p.shape.top_k) gpu_put_choice(p, t, expert, weight);
}

/* Of the counting sort, in shared memory. */
struct gpu_unit_sort {
    uint32_t rows[GPU_EXPERTS][2];                          /* of an expert: bit set of its token rows */
    int first[GPU_EXPERTS];                                 /* of an expert: its first unit */
    int warps[GPU_WARPS];
};

/* Units, and distinct experts times MANY, of the block's threads before this one; *all: of all. */
__device__ __forceinline__ int gpu_units_before(gpu_unit_sort *to, int own, int *all) {
    const int upto = warp_prefix_sum(own), warp = threadIdx.x / 32;
    int before = upto - own;
    if (threadIdx.x % 32 == 31) to->warps[warp] = upto;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < GPU_WARPS; w++) {
        before += w < warp ? to->warps[w] : 0;
        *all += to->warps[w];
    }
    return before;
}

/* Writes the units of an expert, which is at `at`, from number `unit` on; rows: bit set of its token rows. */
__device__ __forceinline__ void gpu_write_units(const moe_gpu &p, int64_t at, uint64_t rows, int unit) {
    for (; rows; unit++) {
        uint32_t of = 0;
        for (int s = 0; s < N_TILE_ROWS; s++) {
            of |= (uint32_t)(rows ? __ffsll((long long)rows) - 1 : (int)UNIT_NO_ROW) << 8 * s;
            rows &= rows - 1;                               /* of no rows there remain none */
        }
        p.batch.unit[unit] = {at, of};
    }
}

/* The block lists the units. A thread has `own` neighbouring experts. */
__device__ __forceinline__ void gpu_list_units(const moe_gpu &p, gpu_unit_sort *to) {
    enum { MANY = 1 << 16 };                                /* more than all units: two counts in an int */
    const int own = (p.shape.experts - 1) / GPU_THREADS + 1, from = threadIdx.x * own, uses = p.T * p.shape.top_k;
    const int shared = gpu_shared_units(p);
    const bool uses_one = (int)threadIdx.x < uses;          /* the thread's first use is loaded once, before all else */
    const int first_choice = uses_one ? __ldcg(&p.batch.choice[threadIdx.x]) : 0;
    const float first_weight = uses_one ? __ldcg(&p.batch.choice_weight[threadIdx.x]) : 0;
    auto is_first = [&](int i) { return i < (int)GPU_THREADS; };
    auto choice_of = [&](int i) { return is_first(i) ? first_choice : __ldcg(&p.batch.choice[i]); };
    int units = 0, all;
    for (int i = threadIdx.x; i < p.shape.experts * 2; i += GPU_THREADS) to->rows[i / 2][i % 2] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < uses; i += GPU_THREADS) {
        const int t = i / p.shape.top_k;
        atomicOr(&to->rows[choice_of(i)][t / 32], 1u << t % 32);
    }
    __syncthreads();
    auto rows_of = [&](int e) { return (uint64_t)to->rows[e][1] << 32 | to->rows[e][0]; };
    for (int e = from; e < from + own && e < p.shape.experts; e++) {
        const int rows = __popcll(rows_of(e));
        units += (rows + N_TILE_ROWS - 1) / N_TILE_ROWS + (rows ? MANY : 0);
    }
    int at = shared + gpu_units_before(to, units, &all) % MANY;
    for (int e = from; e < from + own && e < p.shape.experts; e++) {
        const uint64_t rows = rows_of(e);
        to->first[e] = at;
        gpu_write_units(p, gpu_expert_at(p, e), rows, at);
        at += (__popcll(rows) + N_TILE_ROWS - 1) / N_TILE_ROWS;
    }
    if ((int)threadIdx.x < shared) {
        const int left = p.T - (int)threadIdx.x * N_TILE_ROWS;
        gpu_write_units(p, 0, (left < N_TILE_ROWS ? (1ull << left) - 1 : 15ull) << threadIdx.x * N_TILE_ROWS, threadIdx.x);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < uses; i += GPU_THREADS) {
        const int t = i / p.shape.top_k, e = choice_of(i);
        const int before = __popcll(rows_of(e) & ((1ull << t) - 1));
        p.batch.weight[to->first[e] * N_TILE_ROWS + before] = is_first(i) ? first_weight : __ldcg(&p.batch.choice_weight[i]);
    }
    if (threadIdx.x) return;
    *p.batch.count = shared + all % MANY;
    *p.chosen = all / MANY;
}

/* Stages the shared expert's h of a unit's rows, eight columns a thread. Rows after the last are staged as zeros. */
template <class F> __device__ __forceinline__ void gpu_prepare_shared(const moe_gpu &p, int unit) {
    enum { COLS = 4 * F::per_load, LANES = COLS / 8 };
    const activation_fragments to = gpu_unit_h<F>(p.batch.shared, p.shared_down, unit);
    const int parts = p.shared_down.k_blocks * LANES, all = parts * N_TILE_ROWS;
#pragma unroll 1
    for (int begin = 0; begin < all; begin += GPU_THREADS) {
        const int i = begin + (int)threadIdx.x, slot = min(i / parts, N_TILE_ROWS - 1), part = i % parts, t = unit * N_TILE_ROWS + slot;
        const bool there = i < all && t < p.T;
        const float *h = p.batch.shared_h + (size_t)t * p.h_row + part * 8, gate = there ? gpu_shared_weight(p, t) : 0;
        float v[8];
        gpu_load4(v, h, there);
        gpu_load4(v + 4, h + 4, there);
#pragma unroll
        for (int c = 0; c < 8; c++) v[c] *= gate;
        const float act_scale = activation_scale<F>(v);
        if (i < all) gpu_put_columns<F, N_TILE_ROWS>(to, part / LANES, part % LANES, slot, v, act_scale);
    }
}

/* Prepares token row t as gpu_prepare_rows does. */
__device__ __forceinline__ void gpu_prepare_moe_row(const moe_gpu &p, int t) {
    __shared__ __align__(16) float squares[GPU_WARPS];
    const gpu_norm_rows in = {p.x + (size_t)t * p.shape.hidden, p.norm, p.shape.hidden, 0};
    const gpu_batch_order of = {p.gate.format, p.gate.k_blocks, p.batch.x};
    float square[1] = {};
    with_format(p.gate.format, [&](auto format) { gpu_prepare_row<decltype(format)>(in, of, t, square); });
    const float sum = warp_sum(square[0]);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) p.batch.x.rms[t] = rsqrtf(fmaf(sum_warp_partials(squares), 1.0f / (float)p.shape.hidden, p.eps));
}

/* Grid: blocks in which a warp has a row, the last of which to be ready lists the units; then a block for each unit of the shared
   expert; then one for each row that is to be prepared. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_batch_route(const __grid_constant__ moe_gpu p) {
    __shared__ gpu_unit_sort sort;
    __shared__ int last;
    const int choosing = (p.T + GPU_WARPS - 1) / GPU_WARPS, t = blockIdx.x * GPU_WARPS + threadIdx.x / 32;
    pdl_launch_dependents();
    gpu_prefetch_table(p);
    pdl_wait();
    const int other = (int)blockIdx.x - choosing, shared = gpu_shared_units(p);
    if (other >= shared) {
        gpu_prepare_moe_row(p, other - shared);
        return;
    }
    if (other >= 0) {
        with_format(p.shared_down.format, [&](auto format) { gpu_prepare_shared<decltype(format)>(p, other); });
        return;
    }
    if (t < p.T) gpu_route_row(p, t);
    if (choosing > 1) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last = atomicInc(p.batch.ready, choosing - 1) == choosing - 1;       /* and it is 0 again */
        __syncthreads();
        if (!last) return;
        __threadfence();
    }
    __syncthreads();
    gpu_list_units(p, &sort);
}

static void gpu_record_route(gpu_queue *q, const moe_gpu *p) {
    const int blocks = (p->T + GPU_WARPS - 1) / GPU_WARPS + gpu_shared_units(*p) + (p->batch.prepared ? 0 : p->T);
    gpu_record(q, KERNEL_ROUTE, "", gpu_batch_route, blocks, 1, 0, p);
}
