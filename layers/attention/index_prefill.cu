/* layers/attention/index_prefill.cu: the index of the rows of a prompt: layers/attention/index.cu. index_prepare_rows appends index keys and the keys of
   groups and makes the queries ready; then index_scores and index_choose run as for rows of a step, as many rows at a time as there is
   memory for scores. What a row attends to is marked, one bit a group, for attend_prefill; rows from INDEX_LONE on have lists, for index_attend, one by
   one.

   A launch is an attention_gpu without a step: T rows from index `offset` on. */

/* Grid: token rows. A warp has a query, the index key, or the key of the group that the row makes whole: the numbers of index_append and
   index_scores, rotated by the row's own position. */
template <bool FP8> __global__ void __launch_bounds__(GPU_THREADS) index_prepare_rows(const __grid_constant__ attention_gpu p) {
    extern __shared__ __align__(16) char memory[];
    const attention_shape *s = &p.shape;
    const int t = blockIdx.x, index = p.offset + t, n = s->index_dim, heads = s->index_heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const index_turn r = {.row = 0, .T = p.T, .first = p.offset, .end = p.offset + p.T, .before = p.offset, .lag = 0, .slot = {NULL, INT_MAX}};
    float *own = (float *)memory + warp * index_own_size(s), *cs = (float *)memory + GPU_WARPS * index_own_size(s);
    float *qk = p.index.qk + (size_t)t * (heads + 1) * n;
    for (int i = threadIdx.x; i < s->rotary_dim / 2; i += GPU_THREADS)
        attend_angle(s, p.index.table[t].position[rope_axis(p.index.axes, i)], i, p.frequencies[i], cs);
    __syncthreads();
    for (int k = warp; k < heads + 2; k += GPU_WARPS) {
        if (k == heads) {
            for (int i = lane; i < n; i += 32) attend_store<FP8>(p.index.keys, (size_t)index * n + i, qk[(size_t)heads * n + i], 1);
        } else if (k > heads && (index + 1) % s->index_group == 0) {
            index_make_group<FP8>(p, r, index / s->index_group, own, [&](int i, float *to) {
                attend_angle(s, p.index.table[t].position[rope_axis(p.index.axes, i)] - (s->index_group - 1), i, p.frequencies[i], to);
            }, p.index.groups, (size_t)(index / s->index_group) * n);
        } else if (k < heads && !p.kv_only) {
            float *q = qk + (size_t)k * n;
            const index_vector v = index_load(p, p.index.q_norm, own, cs, [&](int i) { return q[i]; });
            for (int i = lane; i < n; i += 32) q[i] = index_number(v, i);
        }
        __syncwarp();                                        /* the next vector takes this one's place */
    }
}

/* Row t of a piece and T - t - 1 rows after it. */
static attention_gpu index_rows_from(const attention_gpu *piece, int t) {
    const attention_shape *s = &piece->shape;
    attention_gpu p = *piece;
    p.T -= t;
    p.offset += t;
    p.qg += (size_t)t * (size_t)(s->heads * attention_q_size(s));
    p.index.qk += (size_t)t * (size_t)(s->index_heads + 1) * (size_t)s->index_dim;
    p.index.chosen += (size_t)t * (size_t)index_kept(s);
    p.index.marks += (size_t)t * (size_t)piece->index.stride / 32;
    p.index.table += t;
    return p;
}

/* What is chosen of rows from number `from` on, as many as there is memory for; returns how many. most_stride: of that memory. */
static int index_choose_rows(const attention_gpu *piece, int from, int most_stride, int sms, cudaStream_t stream) {
    attention_gpu p = index_rows_from(piece, from);
    size_t shared;
    p.T = min_int(p.T, p.index.rows * (most_stride / p.index.stride));
    const int turns = (p.T - 1) / STEP_ROWS + 1;
    const dim3 grid((unsigned)index_blocks(2 * sms, p.kv, p.index.stride, turns), 1, (unsigned)turns);
    attend_kernel scores = index_scores_of(&p, &shared);
    if (cudaFuncSetAttribute((const void *)scores, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED) != cudaSuccess) return 0;
    scores<<<grid, GPU_THREADS, shared, stream>>>(p);
    index_choose<<<dim3(1, 1, (unsigned)p.T), GPU_THREADS, 0, stream>>>(p);
    return p.T;
}

/* A piece of up to INDEX_PIECE rows of a prompt. qk: [T][index_heads + 1][index_dim] of the piece, as projected. */
static attention_gpu index_piece(const attention_prefill *piece, int layer, const attention_weights *w, const attention_gpu *scratch,
                                 const attention_state *state, float *qk) {
    const attention_shape *s = &w->shape;
    attention_gpu p = *scratch;
    p.shape = *s;
    p.q_per_kv = s->heads / s->kv_heads;
    p.q_norm = w->q_norm;
    p.k_norm = w->k_norm;
    p.sinks = w->sinks;
    p.window = p.ring = INT_MAX;
    p.step = NULL;
    p.slot = {NULL, INT_MAX};
    p.sequences = p.one_each = 0;
    p.kv_only = piece->kv_only;
    p.T = piece->T;
    p.offset = piece->index;
    p.frequencies = (float *)piece->frequencies;
    p.qg = (float *)piece->qg;
    p.k = (char *)piece->k;
    p.v = (char *)piece->v;
    p.k_scale = piece->k_scale;
    p.v_scale = piece->v_scale;
    p.query_scale = piece->query_scale;
    const int stored = (int)(p.parts_size / gpu_attention_parts(s, 1)) / ATTEND_CLUSTER * ATTEND_CLUSTER;
    p.splits = p.partials = min_int(attend_splits(index_window(s), p.layer_splits[layer]), stored);
    p.index.q_norm = w->index_q_norm;
    p.index.k_norm = w->index_k_norm;
    p.index.keys = (char *)state->index_keys;
    p.index.groups = (char *)state->index_groups;
    p.index.qk = qk;
    p.index.stride = index_stride_of(s, piece->index + piece->T);
    p.index.axes = w->axes;
    p.index.table = piece->table;
    return p;
}

/* What it appends, and what its rows choose: attend->marks and their neighbours. */
static cudaError_t index_run_prefill(const attention_gpu *p, const prefill_rows *r, int most_stride, prefill_attend *attend) {
    const attention_shape *s = &p->shape;
    const size_t shared = ((size_t)GPU_WARPS * index_own_size(s) + (size_t)s->rotary_dim) * sizeof(float);
    const int marked_from = (index_kept(s) + 1) * s->index_group - 1;
    if (p->kv == DTYPE_FP8) index_prepare_rows<true><<<p->T, GPU_THREADS, shared, r->stream>>>(*p);
    else index_prepare_rows<false><<<p->T, GPU_THREADS, shared, r->stream>>>(*p);
    if (p->kv_only || p->offset + p->T <= marked_from) return cudaGetLastError();
    for (int from = max_int(0, marked_from - p->offset), rows; from < p->T; from += rows)
        if ((rows = index_choose_rows(p, from, most_stride, r->sms, r->stream)) <= 0) return cudaErrorInvalidValue;
    attend->marks = (const uint8_t *)p->index.marks;
    attend->marks_stride = p->index.stride / 8;
    attend->marked_from = marked_from;
    return cudaGetLastError();
}

/* Rows of attention's output as attend_prefill stores them. Grid: rows; a warp has 64 columns at a time. */
typedef struct index_output {
    const float *o;              /* [T][cols] */
    uint32_t *out;               /* F16 [T][cols], with a scale for each 64: */
    float *out_scale;            /* [cols / 64][rows] */
    int cols, rows;
} index_output;

static __global__ void __launch_bounds__(GPU_THREADS) index_store_rows(const __grid_constant__ index_output p) {
    const size_t row = (size_t)blockIdx.x * p.cols / 2;
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < p.cols / 64; i += GPU_WARPS) {
        const float2 v = ((const float2 *)p.o)[row + i * 32 + lane];
        float factor;
        const float scale = gemm_act_scale(warp_max(fmaxf(fabsf(v.x), fabsf(v.y))), &factor);
        p.out[row + i * 32 + lane] = f16_pair(v.x * factor, v.y * factor);
        if (lane == 0) p.out_scale[(size_t)i * p.rows + blockIdx.x] = scale;
    }
}

template <bool FP8> static cudaError_t index_attend_rows(const attention_gpu *p, cudaStream_t stream) {
    const dim3 grid((unsigned)p->shape.kv_heads, (unsigned)p->splits, (unsigned)p->T);
    const size_t shared = sizeof(attend_shared<FP8, 16, ATTEND_DIM>);
    const void *kernel = (const void *)index_attend_fast<FP8, 16, ATTEND_DIM>;
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (status != cudaSuccess) return status;
    index_attend_fast<FP8, 16, ATTEND_DIM><<<grid, GPU_THREADS, shared, stream>>>(*p);
    return cudaGetLastError();
}

/* Rows of a piece that attend_prefill takes: those before lone_from. */
static int index_tiled_rows(const attention_gpu *p) {
    return index_is_fast(&p->shape) ? min_int(max_int(p->index.lone_from - p->offset, 0), p->T) : p->T;
}

/* Attention of the piece's rows from number `from` on, one by one. attend: what the piece's rows store, and where. */
static cudaError_t index_attend_lone(const attention_gpu *piece, int from, const prefill_attend *attend, cudaStream_t stream) {
    const int cols = piece->shape.heads * piece->shape.head_dim, rows = attend->T + attend->other_rows;
    cudaError_t status = cudaSuccess;
    for (int T; from < piece->T && status == cudaSuccess; from += T) {
        attention_gpu p = index_rows_from(piece, from);
        p.T = T = min_int(p.T, p.index.rows);
        status = p.kv == DTYPE_FP8 ? index_attend_rows<true>(&p, stream) : index_attend_rows<false>(&p, stream);
        const index_output out = {.o = p.o, .out = (uint32_t *)attend->out + (size_t)from * (size_t)cols / 2, .out_scale = attend->out_scale + from,
                                  .cols = cols, .rows = rows};
        index_store_rows<<<T, GPU_THREADS, 0, stream>>>(out);
    }
    return status == cudaSuccess ? cudaGetLastError() : status;
}

/* The stage of a piece whose keys and values are in the cache. */
static cudaError_t index_attend_piece(const attention_prefill *piece, const prefill_rows *r, const attention_weights *w, const attention_gpu *scratch,
                                      const attention_state *state, float *qk, const prefill_attend *attend) {
    const attention_gpu p = index_piece(piece, r->layer, w, scratch, state, qk);
    const int tiled = index_tiled_rows(&p);
    prefill_attend a = *attend;
    cudaError_t status = index_run_prefill(&p, r, scratch->index.stride, &a);
    if (piece->kv_only || status != cudaSuccess) return status;
    a.T = tiled;
    a.end = piece->index + tiled;
    a.other_rows += piece->T - tiled;
    if (tiled) status = prefill_attend_run(&a, r->stream);
    return status == cudaSuccess && tiled < piece->T ? index_attend_lone(&p, tiled, &a, r->stream) : status;
}
