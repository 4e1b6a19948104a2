/* layers/kinds.cu: the kinds of layers on a GPU: layers/kinds.c says what a kind defines for this. */

#define X(NAME, name) name##_gpu name;
typedef struct layer_gpus { LAYER_KINDS(X) } layer_gpus;
#undef X

/* Scratch of a step's kernels in GPU memory for the largest layer of each kind, each kind's apart: a kernel may store before its
   predecessor is complete. */
static void layer_layout_gpu(layout *l, const layer_shapes *largest, const capacity *r, const gpu_queue *q, layer_gpus *to) {
#define X(NAME, name) if (largest->kinds >> LAYER_##NAME & 1) name##_layout_gpu(l, &largest->name, r, q, &to->name);
    LAYER_KINDS(X)
#undef X
}

/* Records the kernels of a layer; with rows->state_only only those that its mixer's state needs. state: of the slot
   that is captured; grown: where it would lie in one with KV_GRANULE more tokens of context. */
static void layer_record(const gpu_rows *rows, const layer *l, const layer_gpus *g, const layer_state *state,
                         const layer_state *grown) {
    gpu_rows of = *rows;
    of.norm = l->mixer.norm;
    of.to = of.x;
    switch (l->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: name##_record(&of, &l->mixer.w.name, &g->name, &state->name, &grown->name); break;
        MIXERS(X)
#undef X
        default: break;
    }
    if (rows->state_only) return;
    of.norm = l->ffn.norm;
    switch (l->ffn.kind) {
#define X(NAME, name) case LAYER_##NAME: name##_record(&of, &l->ffn.w.name, &g->name); break;
        FFNS(X)
#undef X
        default: break;
    }
}

/* A block of more than STEP_ROWS rows has been accepted, and a step follows: the layer's log of it becomes shorter by as many. */
static cudaError_t layer_shorten_log(cudaStream_t stream, const layer *l, const layer_state *state) {
    switch (l->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_shorten_log(stream, &l->mixer.w.name.shape, &state->name);
        MIXERS(X)
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
            LAYER_KINDS(X)
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
    LAYER_KINDS(X)
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
    const float *norm = l->residual.normed_after ? l->norm_after : NULL, *scale = l->residual.scaled ? l->scale : NULL;
    return r->stages & last && (norm || scale) ? prefill_add_normed(r, norm, scale) : cudaSuccess;
}

static cudaError_t mixer_run_prefill(const prefill_rows *all, const sublayer *l, const layer_gpus *g, const layer_state *state) {
    const prefill_rows r = prefill_read(all, l);
    cudaError_t status = cudaSuccess;
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: status = name##_run_prefill(&r, &l->w.name, &g->name, &state->name); break;
        MIXERS(X)
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
