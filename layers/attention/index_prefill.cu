/* layers/attention/index_prefill.cu: the index of the rows of a prompt: layers/attention/index.cu. index_prepare_rows appends index keys and the keys of
   groups and makes the queries ready; then index_scores and index_choose run as for rows of a step, as many rows at a time as there is
   memory for scores. What a row attends to is marked, one bit a group, for attend_prefill. */

typedef struct index_prefill {
    attention_gpu of;            /* T rows of index `offset` on, step NULL */
    rope_axes axes;
    const token_row *table;      /* [T] */
    int kv_only;                 /* queries are not wanted */
} index_prefill;

/* Grid: token rows. A warp has a query, the index key, or the key of the group that the row makes whole: the numbers of index_append and
   index_scores, rotated by the row's own position. */
template <bool FP8> __global__ void __launch_bounds__(GPU_THREADS) index_prepare_rows(const __grid_constant__ index_prefill all) {
    extern __shared__ __align__(16) char memory[];
    const attention_gpu &p = all.of;
    const attention_shape *s = &p.shape;
    const int t = blockIdx.x, index = p.offset + t, n = s->index_dim, heads = s->index_heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const index_turn r = {.row = 0, .T = p.T, .first = p.offset, .end = p.offset + p.T, .before = p.offset, .lag = 0, .slot = {NULL, INT_MAX}};
    float *own = (float *)memory + warp * index_own_size(s), *cs = (float *)memory + GPU_WARPS * index_own_size(s);
    float *qk = p.index.qk + (size_t)t * (heads + 1) * n;
    for (int i = threadIdx.x; i < s->rotary_dim / 2; i += GPU_THREADS)
        attend_angle(s, all.table[t].position[rope_axis(all.axes, i)], i, p.frequencies[i], cs);
    __syncthreads();
    for (int k = warp; k < heads + 2; k += GPU_WARPS) {
        if (k == heads) {
            for (int i = lane; i < n; i += 32) attend_store<FP8>(p.index.keys, (size_t)index * n + i, qk[(size_t)heads * n + i], 1);
        } else if (k > heads && (index + 1) % s->index_group == 0) {
            index_make_group<FP8>(p, r, index / s->index_group, own, [&](int i, float *to) {
                attend_angle(s, all.table[t].position[rope_axis(all.axes, i)] - (s->index_group - 1), i, p.frequencies[i], to);
            }, p.index.groups, (size_t)(index / s->index_group) * n);
        } else if (k < heads && !all.kv_only) {
            float *q = qk + (size_t)k * n;
            const index_vector v = index_load(p, p.index.q_norm, own, cs, [&](int i) { return q[i]; });
            for (int i = lane; i < n; i += 32) q[i] = index_number(v, i);
        }
    }
}

/* Scores and marks of rows from number `from` on, as many as there is memory for; returns how many. */
static int index_mark_rows(const attention_gpu *of, int from, int sms, cudaStream_t stream) {
    const attention_shape *s = &of->shape;
    attention_gpu p = *of;
    size_t shared;
    p.index.stride = index_stride_of(s, of->offset + of->T);
    p.T = min_int(of->T - from, min_int(INDEX_PIECE, of->index.rows * (of->index.stride / p.index.stride)));
    p.offset += from;
    p.index.qk += (size_t)from * (size_t)(s->index_heads + 1) * (size_t)s->index_dim;
    p.index.marks += (size_t)from * (size_t)p.index.stride / 32;
    const int turns = (p.T - 1) / STEP_ROWS + 1;
    const dim3 grid((unsigned)index_blocks(2 * sms, p.index.stride, turns), 1, (unsigned)turns);
    attend_kernel scores = index_scores_of(&p, &shared);
    const cudaError_t status = cudaFuncSetAttribute((const void *)scores, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    if (status != cudaSuccess) return 0;
    scores<<<grid, GPU_THREADS, shared, stream>>>(p);
    index_choose<<<dim3(1, 1, (unsigned)p.T), GPU_THREADS, 0, stream>>>(p);
    return p.T;
}

/* What a piece of up to INDEX_PIECE rows of a prompt appends, and the marks of its rows: attend->marks and their neighbours. qk: [T][index_heads + 1]
   [index_dim] of the piece, as projected. */
static cudaError_t index_run_prefill(const attention_prefill *piece, const prefill_rows *r, const attention_weights *w, const attention_gpu *scratch,
                                     const attention_state *state, float *qk, prefill_attend *attend) {
    const attention_shape *s = &w->shape;
    const size_t shared = ((size_t)GPU_WARPS * index_own_size(s) + (size_t)s->rotary_dim) * sizeof(float);
    const int marked_from = (index_kept(s) + 1) * s->index_group - 1, end = piece->index + piece->T;
    index_prefill p;
    memset(&p, 0, sizeof p);
    p.of = *scratch;
    p.of.shape = *s;
    p.of.step = NULL;
    p.of.slot = {NULL, INT_MAX};
    p.of.sequences = p.of.kv_only = 0;
    p.of.T = piece->T;
    p.of.offset = piece->index;
    p.of.frequencies = (float *)piece->frequencies;
    p.of.index.q_norm = w->index_q_norm;
    p.of.index.k_norm = w->index_k_norm;
    p.of.index.keys = (char *)state->index_keys;
    p.of.index.groups = (char *)state->index_groups;
    p.of.index.qk = qk;
    p.of.index.chosen = NULL;
    p.axes = w->axes;
    p.table = piece->table;
    p.kv_only = piece->kv_only;
    if (piece->kv == DTYPE_FP8) index_prepare_rows<true><<<piece->T, GPU_THREADS, shared, r->stream>>>(p);
    else index_prepare_rows<false><<<piece->T, GPU_THREADS, shared, r->stream>>>(p);
    if (piece->kv_only || end <= marked_from) return cudaGetLastError();
    for (int from = max_int(0, marked_from - piece->index), rows; from < piece->T; from += rows)
        if ((rows = index_mark_rows(&p.of, from, r->sms, r->stream)) <= 0) return cudaErrorInvalidValue;
    attend->marks = (const uint8_t *)p.of.index.marks;
    attend->marks_stride = index_stride_of(s, end) / 8;
    attend->marked_from = marked_from;
    return cudaGetLastError();
}
