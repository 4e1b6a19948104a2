/* layers/mla/decode_launch.cu: launches of a layer of multi-head latent attention in a step. Host code. It knows shapes and a queue, no session. */

static int gpu_mla_is_fast(const mla_shape *s) {
    return s->kv_rank == MLA_RANK && s->rope_dim == MLA_ROPE;
}

/* Blocks of latent_attend for the heads of a token row. */
static int gpu_mla_blocks(const mla_shape *s, int T) {
    return gpu_mla_is_fast(s) ? (T * s->heads + MLA_ROWS - 1) / MLA_ROWS : s->heads;
}

/* How many splits to use: for attend_fast.cu, as gpu_attention_splits says, as many clusters as are resident at once, less an eighth, with one
   token row; without clusters, and for other sizes, as many as a row has parts. */
static int gpu_mla_splits(gpu_queue *q, const mla_shape *s, dtype kv) {
    void (*const kernel)(mla_gpu) = kv == DTYPE_FP8 ? mla_attend_fast<true> : mla_attend_fast<false>;
    const size_t shared = sizeof(mla_shared);
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute cluster = {};
    int clusters = 0;
    if (!q->dependent || !gpu_mla_is_fast(s)) return MLA_PARTS;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = cluster.val.clusterDim.z = 1;
    cluster.val.clusterDim.y = ATTEND_CLUSTER;
    c.gridDim = dim3((unsigned)gpu_mla_blocks(s, 1), MLA_PARTS * ATTEND_CLUSTER);
    c.blockDim = dim3(GPU_THREADS);
    c.dynamicSmemBytes = shared;
    c.attrs = &cluster;
    c.numAttrs = 1;
    gpu_allow_shared(q, (const void *)kernel, shared, "occupancy");
    gpu_check(q, cudaOccupancyMaxActiveClusters(&clusters, kernel, &c), "occupancy");
    clusters = min_int(clusters * 7 / 8, q->sms / ATTEND_CLUSTER) / gpu_mla_blocks(s, 1);
    return min_int(max_int(clusters, 1), MLA_PARTS) * ATTEND_CLUSTER;
}

/* norm_latents, and latent_queries. */
static void gpu_mla_project(const gpu_rows *rows, const mla_weights *w, const mla_gpu *to) {
    const mla_shape *s = &w->shape;
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection(rows->x, rows->norm, s->hidden, to->T, rows->eps);
    gpu_add_segment(&p, &w->kv_a_proj, to->c_new);
    if (!to->kv_only) gpu_add_segment(&p, s->q_rank ? &w->q_a_proj : &w->q_b_proj, s->q_rank ? to->a : to->q);
    gpu_record_projection(rows->q, KERNEL_LATENTS, &p);
    if (to->kv_only || !s->q_rank) return;
    p = gpu_norm_projection(to->a, w->q_norm, s->q_rank, to->T, s->eps);
    gpu_add_segment(&p, &w->q_b_proj, to->q);
    gpu_record_projection(rows->q, KERNEL_LATENT_QUERIES, &p);
}

static void gpu_mla_absorb(gpu_queue *q, const mla_weights *w, const mla_gpu *all) {
    const mla_shape *s = &w->shape;
    mla_gpu p = *all;
    const int turns = (p.T + STEP_ROWS - 1) / STEP_ROWS, rows = min_int(p.T, STEP_ROWS);
    const size_t floats = max_size((size_t)(rows > 1 ? STEP_ROWS : 1) * (size_t)(s->nope_dim + GPU_WARPS * K_BLOCK_COLS),
                                   (size_t)(mla_row_size(s) + s->rope_dim));
    if (!p.kv_only) p.w = gpu_matrix_of(&w->k_b_proj);
    const int tiles = p.kv_only ? 0 : s->heads * p.w.k_blocks;
    gpu_record(q, KERNEL_ABSORB, p.kv_only ? "" : formats[p.w.format]->name, rows > 1 ? mla_absorb<STEP_ROWS> : mla_absorb<1>, tiles + rows, turns,
               floats * sizeof(float), &p);
}

/* splits: see gpu_rows, of chunks of ATTEND_CHUNK. */
static void gpu_mla_attend(gpu_queue *q, const mla_gpu *p, int T, int splits) {
    const mla_shape *s = &p->shape;
    const int fast = gpu_mla_is_fast(s), most = splits ? min_int(splits * (ATTEND_CHUNK / MLA_CHUNK), p->splits) : p->splits;
    const dim3 grid((unsigned)gpu_mla_blocks(s, T), (unsigned)most, (unsigned)max_int(p->sequences, 1));
    void (*const kernel)(mla_gpu) = !fast ? mla_attend_any : p->kv == DTYPE_FP8 ? mla_attend_fast<true> : mla_attend_fast<false>;
    const size_t shared = fast ? sizeof(mla_shared) : (size_t)(mla_row_size(s) + s->kv_rank) * sizeof(float);
    gpu_record_grid(q, KERNEL_LATENT_ATTEND, p->kv == DTYPE_FP8 ? "KV FP8" : "KV BF16", kernel, grid, shared, p);
}

/* Blocks of a head: all are resident at once, where there are so many tiles. */
static void gpu_mla_values(gpu_queue *q, const mla_weights *w, const mla_gpu *all) {
    const mla_shape *s = &w->shape;
    mla_gpu p = *all;
    const int tiles = (s->value_dim + 2 * PANEL_ROWS - 2) / TILE_ROWS + 1, turns = (p.T + STEP_ROWS - 1) / STEP_ROWS;
    const int at_once = (tiles * s->heads - 1) / (2 * q->sms) + 1;
    p.w = gpu_matrix_of(&w->v_b_proj);
    p.blocks = (tiles - 1) / at_once + 1;
    const size_t bytes = activation_fragments_size(p.w.format, p.T > 1 ? STEP_ROWS : 1, p.w.k_blocks);
    node *n = gpu_record(q, KERNEL_LATENT_VALUES, formats[p.w.format]->name, p.T > 1 ? mla_values<STEP_ROWS> : mla_values<1>, s->heads * p.blocks,
                         turns, bytes, &p);
    gpu_note_weights(n, KERNEL_LATENT_VALUES, &p.w);
}

/* The implementation of layers/kinds.c on a GPU. */

static void mla_layout_gpu(layout *l, const mla_shape *s, const capacity *r, const gpu_queue *q, mla_gpu *to) {
    const size_t T = (size_t)q->rows, heads = T * (size_t)s->heads;
    memset(to, 0, sizeof *to);
    to->shape = *s;
    to->kv = r->kv;
    to->rows = q->rows;
    to->frequencies_size = s->rope_dim / 2;
    to->frequencies = layout_alloc(l, (size_t)(r->layers * to->frequencies_size) + 1);
    to->a = layout_alloc(l, T * (size_t)s->q_rank);
    to->q = layout_alloc(l, heads * (size_t)mla_key_dim(s));
    to->c_new = layout_alloc(l, T * (size_t)mla_row_size(s));
    to->l = layout_alloc(l, heads * (size_t)mla_row_size(s));
    to->parts = layout_alloc(l, gpu_mla_parts(s, q->rows));
    to->part_count = (int *)(void *)layout_alloc(l, T);
    to->o = layout_alloc(l, heads * (size_t)s->value_dim);
}

static void mla_record(const gpu_rows *rows, const mla_weights *w, const mla_gpu *scratch, const mla_state *state, const mla_state *grown) {
    mla_gpu p = *scratch;
    p.shape = w->shape;
    p.kv_norm = w->kv_norm;
    p.step = rows->step;
    p.sequences = rows->sequences;
    p.offset = rows->offset;
    p.T = rows->T;
    p.frequencies += (size_t)(rows->layer * p.frequencies_size);
    p.slot = rows->slot;
    p.latents = (char *)state->latents;
    p.growth = (char *)grown->latents - p.latents;
    p.past = rows->past[0];
    p.kv_scale = kv_scale(p.kv, w->kv_scale);
    p.kv_only = rows->state_only;
    gpu_mla_project(rows, w, &p);
    gpu_mla_absorb(rows->q, w, &p);
    if (p.kv_only) return;
    gpu_mla_attend(rows->q, &p, !p.sequences ? p.T : rows->one_each ? 1 : STEP_ROWS, rows->splits);
    gpu_mla_values(rows->q, w, &p);
    gpu_output_linear(rows, KERNEL_LATENT_OUT, &w->o_proj, p.o);
}

/* Rows of the cache after the end are overwritten: there is no log. */
static cudaError_t mla_shorten_log(cudaStream_t, const mla_shape *, const mla_state *) {
    return cudaSuccess;
}
