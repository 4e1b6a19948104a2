/* layers/attention/decode_launch.cu: launches of an attention layer: norm_qkv and rope_attend, which kernel and how many splits.
   Host code. It knows shapes and a queue, no session; out is a plain projection (gpu_linear). */

/* Whether attend_fast takes a layer; any other is attend_any's. most: query heads of a kv head. */
static int gpu_attention_is_fast(const attention_shape *s) {
    const int d = s->head_dim, most = d == 2 * ATTEND_DIM ? 8 : d == ATTEND_DIM || d == 128 || d == 64 ? 16 : 0;
    return s->heads / s->kv_heads <= most && s->rotary_dim <= d && s->rotary_dim % 2 == 0 && !(s->gated && s->gate_size);
}

/* Whether the kernels that have what a layer of Qwen3.5 has compiled in take it. */
static int gpu_attention_is_fixed(const attention_shape *s) {
    return s->head_dim == ATTEND_DIM && s->rotary_dim == 64 && s->gated && s->normed && !s->v_normed && !s->gate_size;
}

/* Bytes of dynamic shared memory of attend_any. A shape that needs more than GPU_SHARED cannot run. */
static size_t gpu_attention_shared(const attention_shape *s) {
    return (2 * (size_t)s->head_dim + STEP_ROWS * (size_t)s->rotary_dim) * sizeof(float);
}

/* Most splits of the context: about two blocks an SM, in whole clusters. */
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

template <bool FP8, int DIM, int MOST> static attend_kernel gpu_attend_small(int rows, size_t *shared) {
    return rows <= 8 ? gpu_attend_fast<FP8, 8, DIM, true>(shared) : gpu_attend_fast<FP8, MOST, DIM, true>(shared);
}

/* each: of a pass of several. */
template <bool FP8> static attend_kernel gpu_attend_kernel(const attention_shape *s, int T, int each, size_t *shared) {
    const int rows = T * (s->heads / s->kv_heads);
    *shared = gpu_attention_shared(s);
    if (!gpu_attention_is_fast(s)) return attend_any<FP8>;
    if (s->head_dim == 64) return gpu_attend_small<FP8, 64, 64>(rows, shared);
    if (s->head_dim == 128) return gpu_attend_small<FP8, 128, 64>(rows, shared);
    if (s->head_dim > ATTEND_DIM) return gpu_attend_small<FP8, 2 * ATTEND_DIM, 32>(rows, shared);
    if (each || !gpu_attention_is_fixed(s))
        return rows <= 16 ? gpu_attend_fast<FP8, 16, ATTEND_DIM, true>(shared) : gpu_attend_fast<FP8, 64, ATTEND_DIM, true>(shared);
    return rows <= 16 ? gpu_attend_fast<FP8, 16, ATTEND_DIM, false>(shared) :
           rows <= 32 ? gpu_attend_fast<FP8, 32, ATTEND_DIM, false>(shared) : gpu_attend_fast<FP8, 64, ATTEND_DIM, false>(shared);
}

/* Partials of a kv head that so many splits store: one for each cluster or, without clusters, block. */
static int attend_partials(const gpu_queue *q, const attention_shape *s, int splits) {
    return q->dependent && gpu_attention_is_fast(s) ? splits / ATTEND_CLUSTER : splits;
}

/* Most splits whose partials scratch has space for, which is laid out for those of the largest layer: of so many floats for a row. */
static int attend_splits_stored(const gpu_queue *q, const attention_shape *s, size_t parts_size) {
    const int partials = (int)(parts_size / gpu_attention_parts(s, 1)), stored = attend_partials(q, s, ATTEND_CLUSTER);
    return partials / stored * ATTEND_CLUSTER;
}

/* How many splits a layer has without a window: seven eighths of the clusters that occupancy allows on an empty GPU.
   More than are resident at once would be slow: a cluster needs space for its 8 blocks within one GPC, and one cluster that
   starts when the others are done doubles the time. The last eighth is for the blocks of the kernels before and after
   this one, which take space, too. On an H100 that makes 26 clusters of 30; with 28, attention takes 1.3 times as long at
   131,072 tokens, with 30 1.7 times. That of the kernel of STEP_ROWS token rows: another number of splits for another T
   would change a row's bits. */
static int gpu_attention_splits(gpu_queue *q, const attention_shape *s, const attention_gpu *scratch) {
    const int most = min_int(gpu_attention_most_splits(q, s), attend_splits_stored(q, s, scratch->parts_size));
    size_t shared;
    attend_kernel kernel = scratch->kv == DTYPE_FP8 ? gpu_attend_kernel<true>(s, STEP_ROWS, 0, &shared)
                                                    : gpu_attend_kernel<false>(s, STEP_ROWS, 0, &shared);
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

template <bool FP8> static void gpu_rope_attend_as(gpu_queue *q, const attention_gpu *p) {
    size_t shared;
    const int T = !p->sequences ? p->T : p->one_each ? 1 : STEP_ROWS;
    attend_kernel kernel = gpu_attend_kernel<FP8>(&p->shape, T, p->sequences > 0, &shared);
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
    if (!to->shape.v_of_k) gpu_add_segment(&p, &w->v_proj, to->v_new);
    if (!to->kv_only && to->shape.gate_size) gpu_add_segment(&p, &w->g_proj, to->g_new);
    if (to->shape.index_heads) gpu_add_segment(&p, &w->index_qk, to->index.qk);
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
    if (p->kv == DTYPE_FP8) gpu_rope_attend_as<true>(q, p);
    else gpu_rope_attend_as<false>(q, p);
}
