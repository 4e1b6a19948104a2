/* layers/attention/decode_launch.cu: launches of an attention layer: norm_qkv and rope_attend, which kernel and how many splits.
   Host code. It knows shapes and a queue, no session; out is a plain projection (gpu_linear). */

static int gpu_attention_is_fast(const attention_shape *s) {
    const int d = s->head_dim, rotates = s->rotary_dim == 64 || (s->rotary_dim == 128 && d == 128);
    return rotates && (d == 64 || d == 128 || (d == ATTEND_DIM && s->gated && s->normed)) && s->heads / s->kv_heads <= 16;
}

/* Bytes of dynamic shared memory of attend_any. A shape that needs more than GPU_SHARED cannot run. */
static size_t gpu_attention_shared(const attention_shape *s) {
    return (2 * (size_t)s->head_dim + STEP_ROWS * (size_t)s->rotary_dim) * sizeof(float);
}

/* Most splits of the context, which scratch is laid out for: about two blocks an SM, in whole clusters. */
static int gpu_attention_most_splits(const gpu_queue *q, const attention_shape *s) {
    int splits = 2 * q->sms / s->kv_heads / ATTEND_CLUSTER * ATTEND_CLUSTER;
    return splits < ATTEND_CLUSTER ? ATTEND_CLUSTER : splits;
}

typedef void (*attend_kernel)(attention_gpu);

/* The kernel for sequences of T token rows, and its shared memory. */
template <bool FP8, int ROWS, int DIM, bool EACH> static attend_kernel gpu_attend_fast(size_t *shared) {
    *shared = sizeof(attend_shared<FP8, ROWS, DIM>);
    return attend_fast<FP8, ROWS, DIM, EACH>;
}

template <bool FP8, int DIM> static attend_kernel gpu_attend_small(int rows, size_t *shared) {
    return rows <= 8 ? gpu_attend_fast<FP8, 8, DIM, true>(shared) : gpu_attend_fast<FP8, 64, DIM, true>(shared);
}

template <bool FP8, bool EACH> static attend_kernel gpu_attend_kernel(const attention_shape *s, int T, size_t *shared) {
    int rows = T * (s->heads / s->kv_heads);
    *shared = gpu_attention_shared(s);
    if (!gpu_attention_is_fast(s)) return attend_any<FP8>;
    if (s->head_dim == 64) return gpu_attend_small<FP8, 64>(rows, shared);
    if (s->head_dim == 128) return gpu_attend_small<FP8, 128>(rows, shared);
    if (rows <= 16) return gpu_attend_fast<FP8, 16, ATTEND_DIM, EACH>(shared);
    if (EACH || rows > 32) return gpu_attend_fast<FP8, 64, ATTEND_DIM, EACH>(shared);
    return gpu_attend_fast<FP8, 32, ATTEND_DIM, false>(shared);
}

/* How many splits to use, at most `most`: seven eighths of the clusters that occupancy allows on an empty GPU.
   More than are resident at once would be slow: a cluster needs space for its 8 blocks within one GPC, and one cluster that
   starts when the others are done doubles the time. The last eighth is for the blocks of the kernels before and after
   this one, which take space, too. On an H100 that makes 26 clusters of 30; with 28, attention takes 1.3 times as long at
   131,072 tokens, with 30 1.7 times. Computed once, for the kernel of STEP_ROWS token rows: another number of splits for
   another T would change a row's bits. */
static int gpu_attention_splits(gpu_queue *q, const attention_shape *s, dtype kv, int most) {
    size_t shared;
    attend_kernel kernel = kv == DTYPE_FP8 ? gpu_attend_kernel<true, false>(s, STEP_ROWS, &shared)
                                           : gpu_attend_kernel<false, false>(s, STEP_ROWS, &shared);
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute cluster = {};
    int clusters = 0;
    if (!q->dependent || !gpu_attention_is_fast(s)) return most;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = cluster.val.clusterDim.z = 1;
    cluster.val.clusterDim.y = ATTEND_CLUSTER;
    c.gridDim = dim3((unsigned)s->kv_heads, (unsigned)most);
    c.blockDim = dim3(GPU_THREADS);
    c.dynamicSmemBytes = shared;
    c.attrs = &cluster;
    c.numAttrs = 1;
    gpu_allow_shared(q, (const void *)kernel, shared, "occupancy");
    gpu_check(q, cudaOccupancyMaxActiveClusters(&clusters, kernel, &c), "occupancy");
    int splits = clusters * 7 / 8 / s->kv_heads * ATTEND_CLUSTER;
    return splits < ATTEND_CLUSTER ? ATTEND_CLUSTER : splits < most ? splits : most;
}

template <bool FP8, bool EACH> static void gpu_rope_attend_as(gpu_queue *q, const attention_gpu *p) {
    size_t shared;
    attend_kernel kernel = gpu_attend_kernel<FP8, EACH>(&p->shape, !EACH ? p->T : p->one_each ? 1 : STEP_ROWS, &shared);
    const int splits = p->kv_only ? 1 : p->blocks ? p->blocks : p->splits;
    if (p->kv_only) kernel = attend_any<FP8>, shared = gpu_attention_shared(&p->shape);
    const dim3 grid((unsigned)p->shape.kv_heads, (unsigned)splits, (unsigned)max_int(p->sequences, 1));
    gpu_record_grid(q, KERNEL_ATTEND, FP8 ? "KV FP8" : "KV BF16", kernel, grid, shared, p);
}

/* norm_qkv on the GPU; for KV rows alone k and v. */
static void gpu_norm_qkv(const gpu_rows *rows, const attention_weights *w, const attention_gpu *to) {
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection(rows->x, rows->norm, to->shape.hidden, to->T, rows->eps);
    if (!to->kv_only) gpu_add_segment(&p, &w->q_proj, to->qg);
    gpu_add_segment(&p, &w->k_proj, to->k_new);
    gpu_add_segment(&p, &w->v_proj, to->v_new);
    gpu_record_projection(rows->q, KERNEL_QKV, &p);
}

/* The new KV rows of blocks of one slot, before any of them is attended: a block sees those of the blocks before it, which it
   reads early. */
static void gpu_append(gpu_queue *q, const attention_gpu *blocks) {
    attention_gpu p = *blocks;
    p.kv_only = p.appends = 1;
    const dim3 grid((unsigned)p.shape.kv_heads, 1, (unsigned)p.sequences);
    gpu_record_grid(q, KERNEL_APPEND, p.kv == DTYPE_FP8 ? "KV FP8" : "KV BF16",
                    p.kv == DTYPE_FP8 ? attend_any<true> : attend_any<false>, grid, gpu_attention_shared(&p.shape), &p);
}

static void gpu_rope_attend(gpu_queue *q, const attention_gpu *p) {
    if (p->sequences && p->kv == DTYPE_FP8) gpu_rope_attend_as<true, true>(q, p);
    else if (p->sequences) gpu_rope_attend_as<false, true>(q, p);
    else if (p->kv == DTYPE_FP8) gpu_rope_attend_as<true, false>(q, p);
    else gpu_rope_attend_as<false, false>(q, p);
}

/* The implementation of layers/kinds.c on a GPU. */

static void attention_layout_gpu(layout *l, const attention_shape *s, const capacity *r, const gpu_queue *q,
                                 attention_gpu *to) {
    size_t T = (size_t)q->rows, d = (size_t)s->head_dim;
    memset(to, 0, sizeof *to);
    to->shape = *s;
    to->kv = r->kv;
    to->splits = gpu_attention_most_splits(q, s);
    to->ring = attention_ring(r);
    to->frequencies_size = s->rotary_dim / 2;
    to->frequencies = layout_alloc(l, (size_t)(r->layers * to->frequencies_size) + 1);
    to->qg = layout_alloc(l, T * (size_t)s->heads * (size_t)attention_q_size(s));
    to->k_new = layout_alloc(l, T * (size_t)s->kv_heads * d);
    to->v_new = layout_alloc(l, T * (size_t)s->kv_heads * d);
    to->o = layout_alloc(l, T * (size_t)s->heads * d);
    to->parts = layout_alloc(l, T * gpu_attention_parts(s, to->splits));
    to->tickets = (int *)(void *)layout_alloc(l, T * gpu_attention_tickets(s));
}

static void attention_record(const gpu_rows *rows, const attention_weights *w, const attention_gpu *scratch,
                             const attention_state *state, const attention_state *grown) {
    attention_gpu p = *scratch;
    p.shape = w->shape;
    p.q_per_kv = p.shape.heads / p.shape.kv_heads;
    p.q_norm = w->q_norm;
    p.k_norm = w->k_norm;
    p.sinks = w->sinks;
    p.window = attend_window(p.shape.window);
    p.splits = attend_splits(p.window, p.splits);
    p.step = rows->step;
    p.slot = rows->slot;
    p.sequences = rows->sequences;
    p.one_each = rows->one_each;
    p.blocks = min_int(rows->splits, p.splits);
    p.offset = rows->offset;
    p.T = rows->T;
    p.frequencies += (size_t)(rows->layer * p.frequencies_size);
    p.k = (char *)state->k;
    p.v = (char *)state->v;
    p.k_growth = (char *)grown->k - p.k;
    p.v_growth = (char *)grown->v - p.v;
    p.k_past = rows->past[0];
    p.v_past = rows->past[1];
    p.ring = p.shape.window ? p.ring : INT_MAX;
    p.k_scale = kv_scale(p.kv, w->k_scale);
    p.v_scale = kv_scale(p.kv, w->v_scale);
    p.kv_only = rows->state_only;
    gpu_norm_qkv(rows, w, &p);
    if (rows->in_turn && !p.kv_only) gpu_append(rows->q, &p);
    gpu_rope_attend(rows->q, &p);
    if (!p.kv_only) gpu_output_linear(rows, KERNEL_O_PROJ, &w->o_proj, p.o);
}

/* Keys and values after the end are overwritten: there is no log. */
static cudaError_t attention_shorten_log(cudaStream_t, const attention_shape *, const attention_state *) {
    return cudaSuccess;
}
