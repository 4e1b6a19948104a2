/* layers/attention/index_launch.cu: launches of an index: layers/attention/index.cu. Host code. It knows shapes and a queue, no session. */

enum {
    INDEX_DIM = 128,             /* of the keys of the fast kernel */
    INDEX_PIECE = 2048,          /* most rows of a prompt that have marks at a time */
    INDEX_LONE = 16384           /* index_gpu.lone_from: by then a row attends to an eighth of what it sees, and its reads cost less than a tile's products */
};

/* As attend_splits has a window: most tokens that a row attends to. */
static int index_window(const attention_shape *s) {
    return s->index_heads ? s->index_budget + s->index_group - 1 : attend_window(s->window);
}

/* Numbers of a row of scores for so many tokens. */
static int index_stride_of(const attention_shape *s, int tokens) {
    return (tokens / s->index_group + 1 + INDEX_TILE - 1) / INDEX_TILE * INDEX_TILE;
}

static void index_layout_gpu(layout *l, const attention_shape *s, const capacity *r, size_t T, index_gpu *to) {
    if (!s->index_heads) return;
    to->stride = index_stride_of(s, r->context);
    to->rows = (int)T;
    to->qk = layout_alloc(l, T * (size_t)(s->index_heads + 1) * (size_t)s->index_dim);
    to->scores = layout_alloc(l, T * (size_t)to->stride);
    to->highest = layout_alloc(l, T * (size_t)to->stride / INDEX_OCTET);
    to->lone_from = INDEX_LONE;
    to->chosen = (int32_t *)(void *)layout_alloc(l, max_size(T, INDEX_PIECE) * (size_t)index_kept(s));
    to->marks = (uint32_t *)(void *)layout_alloc(l, max_size(T, INDEX_PIECE) * (size_t)to->stride / 32);
}

/* Fills in what a layer's index has of its own. */
static void index_place(attention_gpu *p, const attention_gpu *scratch, const attention_weights *w, const attention_state *state,
                        const attention_state *grown, const gpu_rows *rows) {
    index_gpu *to = &p->index;
    to->q_norm = w->index_q_norm;
    to->k_norm = w->index_k_norm;
    to->keys = (char *)state->index_keys;
    to->groups = (char *)state->index_groups;
    to->growth[0] = (char *)grown->index_keys - to->keys;
    to->growth[1] = (char *)grown->index_groups - to->groups;
    to->past[0] = rows->past[2];
    to->past[1] = rows->past[3];
    to->in_turn = rows->in_turn;
    if (w->shape.index_group != scratch->shape.index_group || index_kept(&w->shape) > index_kept(&scratch->shape))
        gpu_check(rows->q, cudaErrorInvalidValue, "indexes of different groups");
}

/* index_scores for keys in BF16 or FP8, and its shared memory. */
template <bool FP8> static attend_kernel index_scores_kernel(const attention_shape *s, size_t *shared) {
    const size_t own = GPU_WARPS * index_own_size(s), cs = (size_t)STEP_ROWS * (size_t)s->rotary_dim;
    const size_t queries = (size_t)(STEP_ROWS * s->index_heads + GPU_WARPS) * (size_t)s->index_dim;
    const int fast = s->index_dim == INDEX_DIM && s->index_heads <= INDEX_HEADS;
    *shared = (cs + own) * sizeof(float) + (fast ? sizeof(index_shared<FP8, INDEX_DIM>) : queries * sizeof(float));
    *shared = max_size(*shared, gpu_attention_shared(s));
    return fast ? index_scores<FP8, INDEX_DIM> : index_scores<FP8, 0>;
}

static attend_kernel index_scores_of(const attention_gpu *p, size_t *shared) {
    return p->kv == DTYPE_FP8 ? index_scores_kernel<true>(&p->shape, shared) : index_scores_kernel<false>(&p->shape, shared);
}

/* Blocks that score, of each of so many sets of rows side by side: as many as the SMs hold at once, of keys in BF16 one each. */
static int index_blocks(int sms, dtype kv, int stride, int beside) {
    return max_int(1, min_int(stride / INDEX_TILE, (kv == DTYPE_FP8 ? 2 : 1) * sms / beside));
}

/* Whether index_attend_fast takes a layer. */
static int index_is_fast(const attention_shape *s) {
    return gpu_attention_is_fast(s) && s->head_dim == ATTEND_DIM;
}

template <bool FP8> static void index_record_attend(gpu_queue *q, const attention_gpu *p, int rows) {
    const attention_shape *s = &p->shape;
    const dim3 grid((unsigned)s->kv_heads, (unsigned)(p->blocks ? p->blocks : p->splits), (unsigned)rows);
    if (index_is_fast(s)) gpu_record_grid(q, KERNEL_INDEX_ATTEND, FP8 ? "KV FP8" : "KV BF16", index_attend_fast<FP8, 16, ATTEND_DIM>, grid,
                              sizeof(attend_shared<FP8, 16, ATTEND_DIM>), p);
    else gpu_record_grid(q, KERNEL_INDEX_ATTEND, FP8 ? "KV FP8" : "KV BF16", index_attend_any<FP8>, grid, gpu_attention_shared(s), p);
}

/* The kernels between norm_qkv and out. */
static void index_record(gpu_queue *q, const attention_gpu *of) {
    attention_gpu p = *of;
    const int sequences = max_int(p.sequences, 1), rows = !p.sequences ? p.T : p.one_each ? p.sequences : p.sequences * STEP_ROWS;
    const int blocks = p.kv_only ? 0 : index_blocks(q->sms, p.kv, p.index.stride, sequences);
    size_t shared;
    attend_kernel scores = index_scores_of(&p, &shared);
    if (!index_is_fast(&p.shape)) {                          /* every split stores a partial, where there is space for them */
        p.splits = min_int(p.splits, (int)(p.parts_size / gpu_attention_parts(&p.shape, 1)) / ATTEND_CLUSTER * ATTEND_CLUSTER);
        p.partials = p.splits;
        p.blocks = min_int(p.blocks, p.splits);
    }
    gpu_record_grid(q, KERNEL_INDEX_SCORES, p.kv == DTYPE_FP8 ? "KV FP8" : "KV BF16", scores,
                    dim3((unsigned)(p.shape.kv_heads + 1 + blocks), 1, (unsigned)sequences), shared, &p);
    if (p.kv_only) return;
    gpu_record_grid(q, KERNEL_INDEX_CHOOSE, "", index_choose, dim3(1, 1, (unsigned)rows), 0, &p);
    if (p.kv == DTYPE_FP8) index_record_attend<true>(q, &p, rows);
    else index_record_attend<false>(q, &p, rows);
}
