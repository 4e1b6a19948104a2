/* layers/moe/prefill.cu: a mixture of experts for the many token rows of a prompt. Knows no session and no other kind of layer.
   The definition is layers/moe/cpu.c.

   The assignments of rows to experts are sorted by expert on the device ("slots": a stable counting sort without atomics),
   and a list of tiles says which slots want which expert (cuda/gemm.cu, grouped):

     route      top-k of each row, its weights; the shared expert's weight
     count      how many rows of each 64 chose each expert
     offsets    where the slots of each 64 rows and each expert begin; the list of tiles
     place      the slots
     sort       in the place of count, offsets and place where the rows are few
     bring      experts whose home is host memory, as far as they are not there (bring.cu)
     up         h = SiLU(gate u) * (up u), F16, by slot; and of the shared expert, by row
     down       part = weight * (down h), BF16, by slot; of the shared expert straight into x
     combine    x += the row's parts, by ascending expert */

enum { MOE_ROWS = 64,            /* token rows that a block counts and places */
       MOE_SORT_ROWS = 128,      /* token rows, at most, that one block sorts: a bit set of each expert's fits shared memory */
       MOE_FEWEST_SLOTS = 16 };  /* of a tile */

typedef struct moe_prefill_job {
    moe_gpu moe;                 /* router logits and shape, as the routing of decode takes them */
    int T, width;                /* rows; slots of a tile */
    int16_t *choice;             /* [T][top_k] experts of a row, ascending */
    float *choice_weight;        /* the same shape */
    float *shared_weight;        /* [T] the shared expert's: logits, then weights */
    int32_t *offset;             /* [ceil(T / MOE_ROWS)][experts] counts, then first slots */
    int32_t *tile_count;
    gemm_tile *tiles;
    int32_t *slot_row;           /* [T top_k] */
    float *slot_weight;          /* the same shape */
    int32_t *slot_of;            /* [T][top_k] slots of a row, by ascending expert */
    uint16_t *h, *shared_h;      /* F16 [T top_k][expert_size], [T][shared_size] */
    float *h_scale, *shared_h_scale;
    uint16_t *part;              /* BF16 [T top_k][hidden] */
    float *out;                  /* prefill_rows' */
    moe_brought brought;         /* copies of experts; to NULL: there are none, experts are where the table says */
} moe_prefill_job;

/* A warp has a row: lane r the r-th best expert, which goes to its place in ascending order. */
static __global__ void __launch_bounds__(GPU_THREADS) moe_prefill_route(const __grid_constant__ moe_prefill_job p) {
    const int t = blockIdx.x * GPU_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, top_k = p.moe.shape.top_k;
    if (t >= p.T) return;
    const int few = p.moe.shape.experts <= 256;
    const int expert = few ? gpu_choose_of<1, 1>(p.moe, t) : gpu_choose_of<GPU_EXPERTS / 256, 1>(p.moe, t);
    const float weight = gpu_choice_weight<1>(p.moe, t, expert);
    int place = 0;
    for (int i = 0; i < top_k; i++) place += __shfl_sync(~0u, expert, i) < expert;
    if (lane < top_k) {
        p.choice[t * top_k + place] = (int16_t)expert;
        p.choice_weight[t * top_k + place] = weight;
    }
    if (lane == 0 && !p.moe.shape.shared_ungated) p.shared_weight[t] = gpu_sigmoid(p.shared_weight[t]);
}

/* The choices of the block's MOE_ROWS rows, in shared memory; returns how many. Ends with a barrier. */
__device__ __forceinline__ int moe_load_choices(const moe_prefill_job &p, int16_t *choice) {
    const int top_k = p.moe.shape.top_k, first = blockIdx.x * MOE_ROWS, n = min(MOE_ROWS, p.T - first) * top_k;
    for (int i = threadIdx.x; i < n; i += GPU_THREADS) choice[i] = p.choice[first * top_k + i];
    __syncthreads();
    return n;
}

/* offset[block][expert] = how many of the block's rows chose it. A thread has an expert, and looks through all choices. */
static __global__ void __launch_bounds__(GPU_THREADS) moe_prefill_count(const __grid_constant__ moe_prefill_job p) {
    __shared__ int16_t choice[MOE_ROWS * GPU_TOP];
    const int n = moe_load_choices(p, choice);
    for (int e = threadIdx.x; e < p.moe.shape.experts; e += GPU_THREADS) {
        int count = 0;
        for (int i = 0; i < n; i++) count += choice[i] == e;
        p.offset[(size_t)blockIdx.x * p.moe.shape.experts + e] = count;
    }
}

/* Exclusive prefix sum over GPU_EXPERTS threads; `shared`: one for each warp. */
__device__ __forceinline__ int moe_prefix_sum(int v, int *shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = warp_prefix_sum(v);
    __syncthreads();
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    if (warp == 0) shared[lane] = warp_prefix_sum(shared[lane]) - shared[lane];
    __syncthreads();
    return sum - v + shared[warp];
}

/* A thread has an expert, which `all` rows chose: lists its tiles; returns its first slot. Experts are in order. The block is of GPU_EXPERTS
   threads; `shared`: one for each warp. */
__device__ __forceinline__ int moe_list_tiles(const moe_prefill_job &p, int all, int *shared) {
    const int e = threadIdx.x, first = moe_prefix_sum(all, shared), own_tiles = (all + p.width - 1) / p.width;
    const int tile = moe_prefix_sum(own_tiles, shared);
    int64_t at_expert = 0;
    if (e < p.moe.shape.experts) at_expert = p.brought.to ? gpu_brought_at(p.brought, e, own_tiles > 0) : gpu_expert_at(p.moe, e);
    for (int i = 0; i < own_tiles; i++) {
        const gemm_tile t = {at_expert, first + i * p.width, min(p.width, all - i * p.width)};
        p.tiles[tile + i] = t;
    }
    if (e == GPU_EXPERTS - 1) *p.tile_count = tile + own_tiles;
    return first;
}

/* counts -> first slots: experts in order, within an expert the rows in order. One block; a thread has an expert. */
static __global__ void __launch_bounds__(GPU_EXPERTS) moe_prefill_offsets(const __grid_constant__ moe_prefill_job p) {
    __shared__ int shared[32];
    const int e = threadIdx.x, experts = p.moe.shape.experts, blocks = (p.T + MOE_ROWS - 1) / MOE_ROWS;
    int all = 0;
#pragma unroll 16
    for (int b = 0; b < (e < experts ? blocks : 0); b++) all += p.offset[(size_t)b * experts + e];
    int at = moe_list_tiles(p, all, shared);
#pragma unroll 16
    for (int b = 0; b < (e < experts ? blocks : 0); b++) {
        const int count = p.offset[(size_t)b * experts + e];
        p.offset[(size_t)b * experts + e] = at;
        at += count;
    }
}

/* Writes slot number `slot`, of choice number i. */
__device__ __forceinline__ void moe_put_slot(const moe_prefill_job &p, int slot, int i) {
    p.slot_row[slot] = i / p.moe.shape.top_k;
    p.slot_weight[slot] = p.choice_weight[i];
    p.slot_of[i] = slot;
}

/* What count, offsets and place do, for MOE_SORT_ROWS rows or fewer, and in the same order. One block. */
static __global__ void __launch_bounds__(GPU_EXPERTS, 1) moe_prefill_sort(const __grid_constant__ moe_prefill_job p) {
    enum { WORDS = MOE_SORT_ROWS / 32 };
    __shared__ uint32_t rows[GPU_EXPERTS][WORDS];           /* of an expert: bit set of its rows */
    __shared__ int shared[32], first[GPU_EXPERTS];
    const int top_k = p.moe.shape.top_k, n = p.T * top_k;
    int all = 0;
    for (int w = 0; w < WORDS; w++) rows[threadIdx.x][w] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += GPU_EXPERTS) atomicOr(&rows[p.choice[i]][i / top_k / 32], 1u << i / top_k % 32);
    __syncthreads();
    for (int w = 0; w < WORDS; w++) all += __popc(rows[threadIdx.x][w]);
    first[threadIdx.x] = moe_list_tiles(p, all, shared);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += GPU_EXPERTS) {
        const int e = p.choice[i], t = i / top_k;
        int slot = first[e] + __popc(rows[e][t / 32] & ((1u << t % 32) - 1));
        for (int w = 0; w < t / 32; w++) slot += __popc(rows[e][w]);
        moe_put_slot(p, slot, i);
    }
}

/* Writes the slots of the block's rows. */
static __global__ void __launch_bounds__(GPU_THREADS) moe_prefill_place(const __grid_constant__ moe_prefill_job p) {
    __shared__ int16_t choice[MOE_ROWS * GPU_TOP];
    const int n = moe_load_choices(p, choice), top_k = p.moe.shape.top_k, first = blockIdx.x * MOE_ROWS;
    for (int e = threadIdx.x; e < p.moe.shape.experts; e += GPU_THREADS) {
        int slot = p.offset[(size_t)blockIdx.x * p.moe.shape.experts + e];
        for (int i = 0; i < n; i++) {
            if (choice[i] == e) moe_put_slot(p, slot++, first * top_k + i);
        }
    }
}

/* out += the row's parts, in float, by ascending expert. Block t has row t, a thread eight columns at a time. */
static __global__ void __launch_bounds__(GPU_THREADS) moe_prefill_combine(const __grid_constant__ moe_prefill_job p) {
    const int hidden = p.moe.shape.hidden, top_k = p.moe.shape.top_k;
    const int32_t *slots = p.slot_of + (size_t)blockIdx.x * top_k;
    for (int i = 8 * threadIdx.x; i < hidden; i += 8 * GPU_THREADS) {
        float *out = p.out + (size_t)blockIdx.x * hidden + i, sum[8] = {};
        for (int k = 0; k < top_k; k++) {
            const uint4 v = __ldcg((const uint4 *)(p.part + (size_t)slots[k] * hidden + i));
#pragma unroll
            for (int n = 0; n < 4; n++) {
                sum[2 * n] += bf16_low(gpu_word(v, n));
                sum[2 * n + 1] += bf16_high(gpu_word(v, n));
            }
        }
#pragma unroll
        for (int n = 0; n < 8; n++) out[n] += sum[n];
    }
}

/* The implementation of layers/kinds.cu for prefill. */

static int moe_can_prefill(const moe_weights *w, dtype kv) {
    const moe_shape *s = &w->shape;
    (void)kv;
    int fits = s->hidden % GEMM_COLS == 0 && s->experts <= GPU_EXPERTS && s->top_k <= GPU_TOP && prefill_takes(&w->router) &&
               (!moe_is_gated(s) || prefill_takes(&w->shared_expert_gate));
    for (int e = 0; e <= (s->shared_size ? s->experts : 0); e += s->experts)       /* all routed ones are alike */
        fits = fits && prefill_takes(&w->gate_proj[e]) && prefill_takes(&w->down_proj[e]) &&
               w->gate_proj[e].rows % GEMM_COLS == 0 && w->up_proj[e].format == w->gate_proj[e].format;
    return fits;
}

/* Slots of a tile: nearly all of an expert's rows shall fit one, as each reads the expert's matrices, and columns that no slot has are computed,
   too. */
static int moe_prefill_width(const moe_shape *s, int T) {
    const int64_t slots = (int64_t)T * s->top_k, experts = s->experts;
    return slots < 8 * experts ? MOE_FEWEST_SLOTS : slots < 48 * experts ? 32 : 64;
}

/* Lays the job's scratch for T rows out; returns its bytes. */
static size_t moe_prefill_layout(const moe_shape *s, int T, char *scratch, moe_prefill_job *p) {
    const size_t slots = (size_t)T * (size_t)s->top_k, blocks = (size_t)(T + MOE_ROWS - 1) / MOE_ROWS;
    size_t used = 0;
    p->moe.router = (float *)prefill_take(scratch, &used, (size_t)T * (size_t)s->experts * 4);
    p->choice = (int16_t *)prefill_take(scratch, &used, slots * 2);
    p->choice_weight = (float *)prefill_take(scratch, &used, slots * 4);
    p->shared_weight = (float *)prefill_take(scratch, &used, (size_t)T * 4);
    p->offset = (int32_t *)prefill_take(scratch, &used, blocks * (size_t)s->experts * 4);
    p->tile_count = (int32_t *)prefill_take(scratch, &used, 4);
    p->tiles = (gemm_tile *)prefill_take(scratch, &used, (slots / MOE_FEWEST_SLOTS + (size_t)s->experts) * sizeof(gemm_tile));
    p->slot_row = (int32_t *)prefill_take(scratch, &used, slots * 4);
    p->slot_weight = (float *)prefill_take(scratch, &used, slots * 4);
    p->slot_of = (int32_t *)prefill_take(scratch, &used, slots * 4);
    p->h = (uint16_t *)prefill_take(scratch, &used, slots * (size_t)s->expert_size * 2);
    p->h_scale = (float *)prefill_take(scratch, &used, slots * (size_t)s->expert_size / GEMM_COLS * 4);
    p->shared_h = (uint16_t *)prefill_take(scratch, &used, (size_t)T * (size_t)s->shared_size * 2);
    p->shared_h_scale = (float *)prefill_take(scratch, &used, (size_t)T * (size_t)s->shared_size / GEMM_COLS * 4);
    const size_t early = used;
    p->part = (uint16_t *)prefill_take(scratch, &used, slots * (size_t)s->hidden * 2);
    return prefill_take_rest(early, used - early, T, s->hidden);
}

static size_t moe_prefill_bytes(const moe_shape *s, int T, dtype kv) {
    moe_prefill_job p;
    (void)kv;
    return moe_prefill_layout(s, T, NULL, &p);
}

/* Adds h of the shared expert, if there is one, to products of its rows. */
static void moe_prefill_shared(const moe_weights *w, const moe_prefill_job *p, gpu_gemm *of) {
    const int shared = p->moe.shape.experts;
    if (!p->moe.shape.shared_size) return;
    gemm_product *up = prefill_product(of, &w->gate_proj[shared], GEMM_SWIGLU, NULL);
    up->up = gpu_matrix_of(&w->up_proj[shared]);
    up->act = moe_activation(&p->moe.shape);
    up->to = p->shared_h;
    up->to_scale = p->shared_h_scale;
}

/* norm_router: the routing, the slots, h of the shared expert. Of branches u has first the shared expert's rows, then the router's, at the end the
   routed experts'. */
static void moe_prefill_router(const prefill_rows *r, const moe_weights *w, const moe_prefill_job *p) {
    const int blocks = (r->T + MOE_ROWS - 1) / MOE_ROWS, branched = r->branches.shared_to != NULL;
    gpu_gemm of = prefill_gemm(r, prefill_normed(r), r->T);
    if (branched) prefill_rms_norm(r, r->x, r->branches.norm_shared, r->T, r->hidden, r->eps);
    moe_prefill_shared(w, p, &of);
    if (branched) {
        prefill_launch(r, &of);
        prefill_rms_norm(r, r->x, r->branches.norm_router, r->T, r->hidden, r->eps);
    }
    prefill_product(&of, &w->router, GEMM_STORE, p->moe.router);
    if (moe_is_gated(&p->moe.shape)) prefill_product(&of, &w->shared_expert_gate, GEMM_STORE, p->shared_weight);
    prefill_launch(r, &of);
    if (branched) prefill_rms_norm(r, r->x, r->norm, r->T, r->hidden, r->eps);
    moe_prefill_route<<<(r->T + GPU_WARPS - 1) / GPU_WARPS, GPU_THREADS, 0, r->stream>>>(*p);
    if (r->T <= MOE_SORT_ROWS) {
        moe_prefill_sort<<<1, GPU_EXPERTS, 0, r->stream>>>(*p);
        return;
    }
    moe_prefill_count<<<blocks, GPU_THREADS, 0, r->stream>>>(*p);
    moe_prefill_offsets<<<1, GPU_EXPERTS, 0, r->stream>>>(*p);
    moe_prefill_place<<<blocks, GPU_THREADS, 0, r->stream>>>(*p);
}

/* A product of the slots; most: tiles. */
static void moe_prefill_grouped(const prefill_rows *r, const moe_prefill_job *p, gpu_gemm *of) {
    const int experts = p->moe.shape.experts, slots = of->T;
    of->tiles = p->tiles;
    of->tile_count = p->tile_count;
    gemm_launch(of, p->width, slots / p->width + (slots < experts ? slots : experts), r->stream);
}

static void moe_prefill_up(const prefill_rows *r, const moe_weights *w, const moe_prefill_job *p) {
    if (p->brought.to) gpu_experts_bring<<<PLACE_BLOCKS, GPU_THREADS, 0, r->stream>>>(p->brought);
    gpu_gemm of = prefill_gemm(r, prefill_normed(r), r->T * p->moe.shape.top_k);
    gemm_product *up = prefill_product(&of, &w->gate_proj[0], GEMM_SWIGLU, NULL);
    of.row = p->slot_row;
    up->up = gpu_matrix_of(&w->up_proj[0]);
    up->act = moe_activation(&p->moe.shape);
    up->to = p->h;
    up->to_scale = p->h_scale;
    moe_prefill_grouped(r, p, &of);
}

static void moe_prefill_down(const prefill_rows *r, const moe_weights *w, const moe_prefill_job *p) {
    const moe_shape *s = &p->moe.shape;
    const gemm_rows h = {p->h, p->h_scale, s->expert_size / GEMM_COLS};
    const gemm_rows shared = {p->shared_h, p->shared_h_scale, s->shared_size / GEMM_COLS};
    gpu_gemm of = prefill_gemm(r, h, r->T * s->top_k);
    gemm_product *down = prefill_product(&of, &w->down_proj[0], GEMM_PART, NULL);
    down->to = p->part;
    down->weight = p->slot_weight;
    prefill_rows apart = *r;
    apart.out = r->branches.shared_to ? r->branches.shared_to : r->out;
    if (s->shared_size) prefill_output(&apart, &w->down_proj[s->experts], shared, s->shared_ungated ? NULL : p->shared_weight);
    moe_prefill_grouped(r, p, &of);
    moe_prefill_combine<<<r->T, GPU_THREADS, 0, r->stream>>>(*p);
}

/* out += the experts of u. */
static cudaError_t moe_run_prefill(const prefill_rows *r, const moe_weights *w, const moe_gpu *scratch) {
    const moe_shape *s = &w->shape;
    moe_prefill_job p;
    memset(&p, 0, sizeof p);
    p.moe.shape = *s;
    p.moe.expert_at = moe_expert_table(scratch, w, r->layer);
    p.moe.correction = w->correction;
    p.moe.expert_scale = w->expert_scale;
    p.moe.ranks = moe_ranks_scores(s);
    p.T = r->T;
    p.width = moe_prefill_width(s, r->T);
    p.out = r->out;
    if (scratch->brought) p.brought = *scratch->brought, p.brought.wanted_only = 1;
    moe_prefill_layout(s, r->T, r->scratch, &p);
    if (stage_in(r->stages, STAGE_ROUTER)) moe_prefill_router(r, w, &p);
    if (stage_in(r->stages, STAGE_UP)) moe_prefill_up(r, w, &p);
    if (stage_in(r->stages, STAGE_DOWN)) moe_prefill_down(r, w, &p);
    return cudaGetLastError();
}
