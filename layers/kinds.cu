/* layers/kinds.cu: the kinds of layers on a GPU, those of GPU_LAYER_KINDS: layers/kinds.c says what a kind defines for this. */

#define X(NAME, name) name##_gpu name;
typedef struct layer_gpus {
    GPU_LAYER_KINDS(X)
    float *output;               /* [rows][hidden] a sublayer's output that is not added to x as it is; NULL: all are */
} layer_gpus;
#undef X

/* Scratch of a step's kernels in GPU memory for the largest layer of each kind, each kind's apart: a kernel may store before its
   predecessor is complete. */
static void layer_layout_gpu(layout *l, const layer_shapes *largest, int hidden, const capacity *r, const gpu_queue *q, layer_gpus *to) {
#define X(NAME, name) if (largest->kinds >> LAYER_##NAME & 1) name##_layout_gpu(l, &largest->name, r, q, &to->name);
    GPU_LAYER_KINDS(X)
#undef X
    const int stores = largest->residual.normed_after || largest->residual.scaled;
    to->output = stores ? layout_alloc(l, (size_t)q->rows * (size_t)hidden) : NULL;
}

/* What the walk makes of a sublayer's output y, row by row: x = (x + rms(y) norm) scale. norm NULL: of y as it is; y NULL: without the sum;
   scale NULL: without the factor. The tag is a step's. */
typedef struct gpu_residual {
    handoff link;
    float *x;                    /* [T][cols] */
    const float *y, *norm, *scale;                           /* [T][cols], [cols], [1] */
    int cols;
    float eps;
} gpu_residual;

/* add_output, and the same of a prompt's rows; block t has row t. It stores x when it has waited and loaded all of y, as what polls x relies on. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_add_output(const __grid_constant__ gpu_residual p) {
    __shared__ float shared[GPU_WARPS];
    const size_t row = (size_t)blockIdx.x * p.cols;
    float squares = 0, factor = 1;
    pdl_launch_dependents();
    pdl_wait();
    for (int i = threadIdx.x; p.norm && i < p.cols; i += GPU_THREADS) squares = fmaf(__ldcg(p.y + row + i), __ldcg(p.y + row + i), squares);
    if (p.norm) factor = rms_factor_divided(block_sum(squares, shared), p.cols, p.eps);
    for (int i = threadIdx.x; i < p.cols; i += GPU_THREADS) {
        float sum = __ldcg(p.x + row + i);
        if (p.y) sum += p.norm ? __ldcg(p.y + row + i) * factor * __ldg(p.norm + i) : __ldcg(p.y + row + i);
        store_tagged(p.x + row + i, p.scale ? sum * __ldg(p.scale) : sum, p.link.publish);
    }
}

/* The rows that a sublayer's kernels are given; what they record until residual_record goes where its output does. */
static gpu_rows residual_rows(const gpu_rows *all, const sublayer *l, const layer_gpus *g) {
    gpu_rows of = *all;
    of.q->stores_output = l->residual.normed_after || l->residual.scaled;
    of.norm = l->norm;
    of.to = of.q->stores_output ? g->output : of.x;
    return of;
}

/* Records what the walk does with the output. */
static void residual_record(const gpu_rows *rows, const sublayer *l) {
    const gpu_residual p = {.link = {}, .x = rows->x, .y = rows->to, .norm = l->residual.normed_after ? l->norm_after : NULL,
                            .scale = l->residual.scaled ? l->scale : NULL, .cols = rows->hidden, .eps = rows->eps};
    rows->q->stores_output = 0;
    if (rows->to != rows->x && !rows->state_only) gpu_record(rows->q, KERNEL_ADD_OUTPUT, "", gpu_add_output, rows->T, 1, 0, &p);
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
        switch (of->kind) {
#define X(NAME, name) case LAYER_##NAME: if (!name##_can_prefill(&of->w.name, kv)) return 0; break;
            GPU_LAYER_KINDS(X)
#undef X
            default: return 0;
        }
    }
    return 1;
}

/* Scratch for T rows of the largest layer of each kind; only one layer runs at a time. */
static size_t layer_prefill_bytes(const layer_shapes *largest, int T, dtype kv) {
    size_t most = 0;
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
   with the last. */
static prefill_rows prefill_read(const prefill_rows *all, const sublayer *l) {
    const unsigned stages = kind_stages(l->kind), first = stages & ~(stages << 1);
    prefill_rows r = *all;
    r.out = l->residual.normed_after ? r.y : r.x;
    if (r.stages & first) prefill_rms_norm(&r, r.x, l->norm, r.T, r.hidden, r.eps);
    if (l->residual.normed_after) cudaMemsetAsync(r.y, 0, (size_t)r.T * (size_t)r.hidden * sizeof *r.y, r.stream);
    return r;
}

static cudaError_t prefill_write(const prefill_rows *r, const sublayer *l) {
    const unsigned stages = kind_stages(l->kind), last = stages & ~(stages >> 1);
    const gpu_residual p = {.link = {}, .x = r->x, .y = l->residual.normed_after ? r->y : NULL,
                            .norm = l->residual.normed_after ? l->norm_after : NULL, .scale = l->residual.scaled ? l->scale : NULL,
                            .cols = r->hidden, .eps = r->eps};
    if (r->stages & last && (l->residual.normed_after || l->residual.scaled)) gpu_add_output<<<r->T, GPU_THREADS, 0, r->stream>>>(p);
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
    const cudaError_t status = mixer_run_prefill(rows, &l->mixer, g, state);
    return rows->state_only || status != cudaSuccess ? status : ffn_run_prefill(rows, &l->ffn, g);
}
