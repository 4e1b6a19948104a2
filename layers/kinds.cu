/* layers/kinds.cu: the kinds of layers on a GPU, those of GPU_LAYER_KINDS: layers/kinds.c says what a kind defines for this. */

#define X(NAME, name) name##_gpu name;
typedef struct layer_gpus {
    GPU_LAYER_KINDS(X)
    float *output, *shared_output;   /* [rows][hidden] a sublayer's output that is not added to x as it is, and that of a shared expert that is
                                        apart; NULL: there is none */
    streams_gpu streams;
} layer_gpus;
#undef X

/* Scratch of a step's kernels in GPU memory for the largest layer of each kind, each kind's apart: a kernel may store before its
   predecessor is complete. */
static void layer_layout_gpu(layout *l, const layer_shapes *largest, int hidden, int ranks, const capacity *r, const gpu_queue *q,
                             layer_gpus *to) {
#define X(NAME, name) if (largest->kinds >> LAYER_##NAME & 1) name##_layout_gpu(l, &largest->name, r, q, &to->name);
    GPU_LAYER_KINDS(X)
#undef X
    const int stores = residual_apart(&largest->residual) || largest->residual.scaled || ranks > 1;
    to->output = stores ? layout_alloc(l, (size_t)q->rows * (size_t)hidden) : NULL;
    to->shared_output = largest->residual.branched ? layout_alloc(l, (size_t)q->rows * (size_t)hidden) : NULL;
    if (largest->residual.streams) streams_layout_gpu(l, &largest->residual, hidden, q->rows, &to->streams);
}

/* What the walk makes of a sublayer's output y, row by row: x = (x + rms(y) norm) scale. With branches y is first rms(y) norm_routed +
   rms(shared) norm_shared. norm NULL: of y as it is; y NULL: without the sum; shared NULL: without branches; scale NULL: without the factor. x NULL:
   y is only to become the sum of the ranks' shares.
   The tag is a step's. */
typedef struct gpu_residual {
    handoff link;
    float *x, *y, *shared;       /* [T][cols] */
    const float *norm, *norm_routed, *norm_shared, *scale;   /* [cols], of scale [1] */
    int cols;
    float eps;
} gpu_residual;

__device__ __forceinline__ float4 gpu_row4(const float *row, int i) {
    return __ldcg((const float4 *)(row + i));
}

/* v factor norm. */
__device__ __forceinline__ float4 gpu_normed4(float4 v, float factor, float4 norm) {
    return make_float4(v.x * factor * norm.x, v.y * factor * norm.y, v.z * factor * norm.z, v.w * factor * norm.w);
}

__device__ __forceinline__ float gpu_squares4(float4 v, float before) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, before))));
}

/* A thread's part of a row: its first fours of columns are HELD, as all are read two or three times, with a sum of the whole row in between. */
enum { HELD = 3 };
struct gpu_held {
    float4 x[HELD], y[HELD], shared[HELD], norm[HELD], norm_routed[HELD], norm_shared[HELD];
};

/* Calls each(i, k) for the thread's columns i .. i + 3, which are held as number k; HELD: they are not. */
template <class EACH> __device__ __forceinline__ void gpu_each4(int cols, const EACH &each) {
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int i = 4 * ((int)threadIdx.x + k * GPU_THREADS);
        if (i < cols) each(i, k);
    }
#pragma unroll 1
    for (int i = 4 * ((int)threadIdx.x + HELD * GPU_THREADS); i < cols; i += 4 * GPU_THREADS) each(i, (int)HELD);
}

__device__ __forceinline__ float4 gpu_norm4(const float *norm, int i) {
    return norm ? __ldg((const float4 *)(norm + i)) : make_float4(0, 0, 0, 0);
}

/* Columns i .. i + 3 of y, or of what branches add up to; routed, own: the factors of their norms. */
__device__ __forceinline__ float4 gpu_output4(const gpu_residual &p, const gpu_held &held, size_t row, int i, int k, float routed, float own) {
    const float4 y = k < HELD ? held.y[k] : gpu_row4(p.y + row, i);
    if (!p.shared) return y;
    const float4 a = gpu_normed4(y, routed, k < HELD ? held.norm_routed[k] : gpu_norm4(p.norm_routed, i));
    const float4 b = gpu_normed4(k < HELD ? held.shared[k] : gpu_row4(p.shared + row, i), own,
                                 k < HELD ? held.norm_shared[k] : gpu_norm4(p.norm_shared, i));
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* 1 / root mean square of a row whose columns i .. i + 3 are four(i, k). All threads of the block call it. */
template <class FOUR> __device__ __forceinline__ float gpu_row_factor(const gpu_residual &p, float *shared, const FOUR &four) {
    float squares = 0;
    gpu_each4(p.cols, [&](int i, int k) { squares = gpu_squares4(four(i, k), squares); });
    return rms_factor_divided(block_sum(squares, shared), p.cols, p.eps);
}

/* Before the wait: the thread's part of the norms, and the factor. */
__device__ __forceinline__ float gpu_residual_begin(const gpu_residual &p, gpu_held *held) {
    gpu_each4(p.cols, [&](int i, int k) {
        if (k == HELD) return;
        held->norm[k] = gpu_norm4(p.norm, i);
        held->norm_routed[k] = gpu_norm4(p.norm_routed, i);
        held->norm_shared[k] = gpu_norm4(p.norm_shared, i);
    });
    return p.scale ? __ldg(p.scale) : 1;
}

/* x = (x + y) scale, of four columns. */
__device__ __forceinline__ void gpu_add4(float *at, float4 x, float4 y, float scale, const gpu_tag &publish) {
    store_tagged(at, (x.x + y.x) * scale, publish);
    store_tagged(at + 1, (x.y + y.y) * scale, publish);
    store_tagged(at + 2, (x.z + y.z) * scale, publish);
    store_tagged(at + 3, (x.w + y.w) * scale, publish);
}

/* The same of the row that begins at element `row`, of what becomes of its y. held has the norms. All threads of the block call it. */
__device__ __forceinline__ void gpu_add_row(const gpu_residual &p, size_t row, float scale, const gpu_tag &publish, gpu_held &held, float *shared) {
    float routed = 1, own = 1, factor = 1;
    gpu_each4(p.cols, [&](int i, int k) {
        if (k == HELD) return;
        held.y[k] = p.y ? gpu_row4(p.y + row, i) : make_float4(0, 0, 0, 0);
        held.shared[k] = p.shared ? gpu_row4(p.shared + row, i) : make_float4(0, 0, 0, 0);
        held.x[k] = gpu_row4(p.x + row, i);
    });
    if (p.shared) {
        routed = gpu_row_factor(p, shared, [&](int i, int k) { return k < HELD ? held.y[k] : gpu_row4(p.y + row, i); });
        own = gpu_row_factor(p, shared, [&](int i, int k) { return k < HELD ? held.shared[k] : gpu_row4(p.shared + row, i); });
    }
    if (p.norm) factor = gpu_row_factor(p, shared, [&](int i, int k) { return gpu_output4(p, held, row, i, k, routed, own); });
    gpu_each4(p.cols, [&](int i, int k) {
        const float4 x = k < HELD ? held.x[k] : gpu_row4(p.x + row, i);
        float4 y = p.y ? gpu_output4(p, held, row, i, k, routed, own) : make_float4(0, 0, 0, 0);
        if (p.norm) y = gpu_normed4(y, factor, k < HELD ? held.norm[k] : gpu_norm4(p.norm, i));
        gpu_add4(p.x + row + i, x, y, scale, publish);
    });
}

/* add_output, and the same of a prompt's rows; block t has row t. It stores x when it has waited and loaded all of y, as what polls x relies on.
   Norms come from memory while it waits. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_add_output(const __grid_constant__ gpu_residual p) {
    __shared__ float shared[GPU_WARPS];
    gpu_held held;
    pdl_launch_dependents();
    const float scale = gpu_residual_begin(p, &held);
    pdl_wait();
    gpu_add_row(p, (size_t)blockIdx.x * p.cols, scale, p.link.publish, held, shared);
}

/* The same where y, and shared, are a rank's shares of sums. */
typedef struct gpu_rank_output {
    handoff link;
    gpu_residual of;             /* its y and shared become the sums */
    peer_ranks ranks;
    int T, parts;                /* rows; parts of a row, each of a block: 1 where a norm needs all of it */
    int given;                   /* who made the shares has given them to the others */
} gpu_rank_output;

/* A whole row y of shares becomes one of sums. at: element of the lane where it begins. */
__device__ __forceinline__ void gpu_share_row(const peer_ranks &p, uint32_t number, int at, const float *y, int cols) {
    for (int i = 4 * threadIdx.x; i < cols; i += 4 * GPU_THREADS) peer_share4(p, blockIdx.x, number, at + i, gpu_row4(y, i));
}

__device__ __forceinline__ void gpu_sum_row(const peer_ranks &p, uint32_t number, int at, float *y, int cols) {
    for (int i = 4 * threadIdx.x; i < cols; i += 4 * GPU_THREADS)
        *(float4 *)(y + i) = peer_sum4(p, blockIdx.x, number, at + i, gpu_row4(y, i));
}

/* A block is a lane, and has every gridDim.x'th part of rows. What a thread stores into y it loads itself. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_sum_output(const __grid_constant__ gpu_rank_output p) {
    __shared__ float shared[GPU_WARPS];
    const gpu_residual &of = p.of;
    gpu_held held;
    pdl_launch_dependents();
    const float scale = gpu_residual_begin(of, &held);
    pdl_wait();
    uint32_t number = peer_number(p.ranks.count, blockIdx.x);
    for (int part = blockIdx.x; part < p.T * p.parts; part += gridDim.x, number++) {
        const size_t row = (size_t)(part / p.parts) * of.cols;
        if (part != (int)blockIdx.x) __syncthreads();       /* a thread without columns knows that its lane's number has come */
        if (!of.norm && !of.shared) {
            const int i = part % p.parts * PEER_PART + 4 * threadIdx.x;
            if (i >= of.cols) continue;
            const float4 y = gpu_row4(of.y + row, i), x = of.x ? gpu_row4(of.x + row, i) : make_float4(0, 0, 0, 0);
            if (!p.given) peer_share4(p.ranks, blockIdx.x, number, 4 * threadIdx.x, y);
            gpu_add4((of.x ? of.x : of.y) + row + i, x, peer_sum4(p.ranks, blockIdx.x, number, 4 * threadIdx.x, y), scale, p.link.publish);
            continue;
        }
        gpu_share_row(p.ranks, number, 0, of.y + row, of.cols);
        if (of.shared) gpu_share_row(p.ranks, number, of.cols, of.shared + row, of.cols);
        gpu_sum_row(p.ranks, number, 0, of.y + row, of.cols);
        if (of.shared) gpu_sum_row(p.ranks, number, of.cols, of.shared + row, of.cols);
        gpu_add_row(of, row, scale, p.link.publish, held, shared);
    }
    peer_counted(p.ranks.count, blockIdx.x, number);
}

static gpu_rank_output gpu_rank_output_of(const gpu_residual *of, const gpu_peer *peer, int T, int given) {
    const int parts = of->norm || of->shared ? 1 : (of->cols - 1) / PEER_PART + 1;
    const gpu_rank_output p = {.link = {}, .of = *of, .ranks = peers_ranks(peer, 0), .T = T, .parts = parts,
                               .given = given};
    return p;
}

static int gpu_rank_blocks(const gpu_rank_output *p) {
    return min_int(p->T * p->parts, PEER_LANES);
}

/* The rows of a sublayer that adds to all streams itself: all that is pending is in them. */
static gpu_rows whole_rows(const gpu_rows *all) {
    gpu_rows of = *all;
    const gpu_branches none = {};
    streams_record_write(of.q, of.x, of.T, of.hidden);
    of.to = of.x;
    of.branches = none;
    return of;
}

/* The rows that a sublayer's kernels are given; what they record until residual_record goes where its output does. Of streams they are a mixture,
   which the sublayer does not norm. */
static gpu_rows residual_rows(const gpu_rows *all, const sublayer *l, const layer_gpus *g) {
    gpu_rows of = *all;
    const int streams = l->residual.streams;
    const gpu_branches apart = {.norm_router = l->norm_router, .norm_shared = l->norm_shared, .shared_to = g->shared_output}, none = {};
    if (l->kind == LAYER_NONE) return of;
    if (l->residual.whole) return whole_rows(all);
    if (streams) streams_record_read(of.q, &g->streams, &l->mixer, of.x, of.T, of.hidden, of.eps);
    of.q->stores_output = residual_stores(&l->residual) || streams || peers_divide(of.q->peer);
    of.q->given = 0;
    of.gives = of.T == 1 && peers_divide(of.q->peer) && !l->residual.normed_after && !l->residual.branched;
    of.norm = streams ? g->streams.norm : l->norm;
    if (streams) of.x = g->streams.u, of.eps = STREAMS_EPS;
    of.to = of.q->stores_output ? g->output : of.x;
    of.branches = l->residual.branched ? apart : none;
    return of;
}

/* What the walk does with the output y. */
static gpu_residual residual_of(const sublayer *l, float *x, float *y, float *shared, int cols, float eps) {
    const int normed = l->residual.normed_after, branched = l->residual.branched;
    const gpu_residual p = {.link = {}, .x = l->residual.streams ? NULL : x, .y = y, .shared = branched ? shared : NULL, .norm = normed ? l->norm_after : NULL,
                            .norm_routed = l->norm_routed_after, .norm_shared = l->norm_shared_after,
                            .scale = l->residual.scaled ? l->scale : NULL, .cols = cols, .eps = eps};
    return p;
}

/* Records it, of a sublayer that is there. */
static void residual_record(const gpu_rows *rows, const sublayer *l) {
    const gpu_residual p = residual_of(l, rows->x, rows->to, rows->branches.shared_to, rows->hidden, rows->eps);
    rows->q->stores_output = 0;
    if (rows->to == rows->x || rows->state_only || l->kind == LAYER_NONE) return;
    if (l->residual.streams) rows->q->pending = rows->to;
    if (!peers_divide(rows->q->peer)) {
        if (l->residual.streams) return;
        gpu_record(rows->q, KERNEL_ADD_OUTPUT, "", gpu_add_output, rows->T, 1, 0, &p);
        return;
    }
    const gpu_rank_output sum = gpu_rank_output_of(&p, rows->q->peer, rows->T, rows->q->given);
    rows->q->stores_output = l->residual.streams > 0;       /* of streams the sum is not what is polled */
    gpu_record(rows->q, KERNEL_SUM_OUTPUT, "", gpu_sum_output, gpu_rank_blocks(&sum), 1, 0, &sum);
    rows->q->stores_output = 0;
}

/* Records the kernels of a layer; with rows->state_only only those that its mixer's state needs. state: of the slot
   that is captured; grown: where it would lie in one with KV_GRANULE more tokens of context. */
static void layer_record(const gpu_rows *rows, const layer *l, const layer_gpus *g, const layer_state *state,
                         const layer_state *grown) {
    gpu_rows of = residual_rows(rows, &l->mixer, g);
    switch (l->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: name##_record(&of, &l->mixer.w.name, &g->name, &state->name, &grown->name); break;
        GPU_MIXERS(X)
#undef X
        default: break;
    }
    residual_record(&of, &l->mixer);
    if (rows->state_only) return;
    of = residual_rows(rows, &l->ffn, g);
    switch (l->ffn.kind) {
#define X(NAME, name) case LAYER_##NAME: name##_record(&of, &l->ffn.w.name, &g->name); break;
        FFNS(X)
#undef X
        default: break;
    }
    residual_record(&of, &l->ffn);
}

/* A block of more than STEP_ROWS rows has been accepted, and a step follows: the layer's log of it becomes shorter by as many. */
static cudaError_t layer_shorten_log(cudaStream_t stream, const layer *l, const layer_state *state) {
    switch (l->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_shorten_log(stream, &l->mixer.w.name.shape, &state->name);
        GPU_MIXERS(X)
#undef X
        default: return cudaSuccess;
    }
}

/* Prefill: token rows of a prompt. */

/* Whether the kernels of prefill can run this layer, with keys and values of type kv. */
static int layer_can_prefill(const layer *l, dtype kv) {
    for (int i = 0; i < 2; i++) {
        const sublayer *of = i ? &l->ffn : &l->mixer;
        if (sublayer_features(of) & ~executor_features[EXECUTOR_PREFILL]) return 0;
        if (!of->residual.whole && !streams_can_prefill(&of->mixer, of->residual.streams)) return 0;
        switch (of->kind) {
#define X(NAME, name) case LAYER_##NAME: if (!name##_can_prefill(&of->w.name, kv)) return 0; break;
            GPU_LAYER_KINDS(X)
#undef X
            case LAYER_NONE: break;
            default: return 0;
        }
    }
    return 1;
}

/* Scratch for T rows of the largest layer of each kind; only one layer runs at a time. */
static size_t layer_prefill_bytes(const layer_shapes *largest, int hidden, int T, dtype kv) {
    size_t most = largest->residual.streams ? streams_prefill_bytes(&largest->residual, T, hidden) : 0;
#define X(NAME, name) if (largest->kinds >> LAYER_##NAME & 1) most = max_size(most, name##_prefill_bytes(&largest->name, T, kv));
    GPU_LAYER_KINDS(X)
#undef X
    return most;
}

/* The stages of a kind, which follow each other. */
static unsigned kind_stages(enum layer_kind kind) {
    unsigned stages = 0;
    for (int i = 0; i < STAGE_COUNT; i++) stages |= (unsigned)(stage_kinds[i] == kind) << i;
    return stages;
}

/* residual_read and residual_write for the rows of a prompt. Where only some stages are to run, the norm goes with the first, what is added
   with the last; of streams both are a stage of their own. What has branches norms its rows itself: u has one of them at a time. */
static prefill_rows prefill_read(const prefill_rows *all, const sublayer *l) {
    const unsigned stages = kind_stages(l->kind), first = stages & ~(stages << 1);
    const int streams = l->residual.streams, apart = residual_apart(&l->residual) || peers_divide(all->peer);
    const size_t bytes = (size_t)all->T * (size_t)all->hidden * sizeof *all->y;
    prefill_rows r = *all;
    if (l->kind == LAYER_NONE || l->residual.whole) return r;
    r.out = apart ? r.y : r.x;
    r.norm = l->norm;
    r.branches.norm_router = l->norm_router;
    r.branches.norm_shared = l->norm_shared;
    if (!l->residual.branched) r.branches.shared_to = NULL;
    if (streams && stage_in(r.stages, STAGE_STREAMS)) prefill_streams_read(&r, &l->mixer, r.x, r.T, r.eps);
    else if (!streams && r.stages & first && !l->residual.branched) prefill_rms_norm(&r, r.x, r.norm, r.T, r.hidden, r.eps);
    if (apart) cudaMemsetAsync(r.y, 0, bytes, r.stream);
    if (l->residual.branched) cudaMemsetAsync(r.branches.shared_to, 0, bytes, r.stream);
    return r;
}

static cudaError_t prefill_write(const prefill_rows *r, const sublayer *l) {
    const unsigned stages = kind_stages(l->kind), last = l->residual.streams ? 1u << STAGE_STREAMS : stages & ~(stages >> 1);
    const gpu_residual p = residual_of(l, r->x, r->out == r->x ? NULL : r->y, r->branches.shared_to, r->hidden, r->eps);
    if (l->kind == LAYER_NONE || l->residual.whole || !(r->stages & last)) return cudaGetLastError();
    if (peers_divide(r->peer)) {
        const gpu_rank_output sum = gpu_rank_output_of(&p, r->peer, r->T, 0);
        gpu_sum_output<<<gpu_rank_blocks(&sum), GPU_THREADS, 0, r->stream>>>(sum);
    }
    if (l->residual.streams) {
        prefill_streams_write(r, r->x, r->y, r->share);
    } else if (!peers_divide(r->peer) && residual_stores(&l->residual)) {
        gpu_add_output<<<r->T, GPU_THREADS, 0, r->stream>>>(p);
    }
    return cudaGetLastError();
}

static cudaError_t mixer_run_prefill(const prefill_rows *all, const sublayer *l, const layer_gpus *g, const layer_state *state) {
    const prefill_rows r = prefill_read(all, l);
    cudaError_t status = cudaSuccess;
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: status = name##_run_prefill(&r, &l->w.name, &g->name, &state->name); break;
        GPU_MIXERS(X)
#undef X
        default: break;
    }
    return r.state_only || status != cudaSuccess ? status : prefill_write(&r, l);
}

static cudaError_t ffn_run_prefill(const prefill_rows *all, const sublayer *l, const layer_gpus *g) {
    const prefill_rows r = prefill_read(all, l);
    cudaError_t status = cudaSuccess;
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: status = name##_run_prefill(&r, &l->w.name, &g->name); break;
        FFNS(X)
#undef X
        default: break;
    }
    return status != cudaSuccess ? status : prefill_write(&r, l);
}

/* Token rows through a layer; with rows->state_only only as far as its mixer's state needs. */
static cudaError_t layer_run_prefill(const prefill_rows *rows, const layer *l, const layer_gpus *g, const layer_state *state) {
    const cudaError_t status = l->mixer.kind == LAYER_NONE ? cudaSuccess : mixer_run_prefill(rows, &l->mixer, g, state);
    return rows->state_only || status != cudaSuccess || l->ffn.kind == LAYER_NONE ? status : ffn_run_prefill(rows, &l->ffn, g);
}
