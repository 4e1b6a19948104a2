/* layers/attention/index_attend.cu: index_attend: rope_attend over the entries of single rows: those tokens that their index has left. Formula and
   entries: layers/attention/index.cu; how a block attends: decode_chunk.cu.

   A row is a sequence of one token row: grid (kv head, split, row). Chunks are of 64 entries, which are found through the row's list of groups;
   where a row leaves nothing out, entry i is token i. So the sums are the same whether a list names all tokens or there is none. Keys and values
   are read after pdl_wait: which of them says the kernel before this one.

   index_attend_fast: heads of 256 dimensions, up to 16 a KV head. index_attend_any: any other. */

/* What concerns one row of a launch: it alone, as a sequence of one. */
__device__ __forceinline__ attention_gpu index_lone_row(const attention_gpu &all, const index_row &r) {
    const attention_shape *s = &all.shape;
    const size_t row = (size_t)max(r.row, 0), d = (size_t)s->head_dim;
    attention_gpu p = all;
    p.step = all.step ? all.step + r.sequence : NULL;
    p.slot = gpu_slot_of(&all.slot, p.step);
    p.T = 1;
    p.qg += row * s->heads * attention_q_size(s);
    p.g_new += row * s->heads * s->gate_size;
    p.o += row * s->heads * d;
    p.parts += row * gpu_attention_parts(s, p.partials);
    p.tickets += row * gpu_attention_tickets(s);
    p.index.chosen += row * index_kept(s);
    return p;
}

/* Of a row what it attends to. */
typedef struct index_span {
    int entries, chunks;
    int index;                   /* its own; -1: it attends to nothing */
    bool all;                    /* entry i is token i */
} index_span;

__device__ __forceinline__ index_span index_span_of(const attention_gpu &p, const index_row &r) {
    index_span s;
    s.index = r.visible - 1;
    s.all = !index_leaves_out(&p.shape, s.index);
    s.entries = s.all ? r.visible : index_entries(&p.shape, s.index);
    s.chunks = (s.entries + ATTEND_CHUNK - 1) / ATTEND_CHUNK;
    return s;
}

/* The token of an entry; of one that is not there the last one's. */
__device__ __forceinline__ int index_token(const attention_gpu &p, const index_span &s, int entry) {
    entry = min(entry, s.entries - 1);
    return s.all ? entry : index_of_entry(&p.shape, p.index.chosen, s.index, entry);
}

/* attend_load_k and attend_load_v of a chunk whose entries are those tokens. */
template <bool FP8, int DIM>
__device__ __forceinline__ void index_load_k(const attention_gpu *p, const int *token, attend_rows<FP8, DIM> *r) {
    const int thread = attend_thread(), lane = thread % 32;
    const uint4 *row = (const uint4 *)(attend_cache(p, false) + ((size_t)token[thread / 32 * 8 + lane / 4] * p->shape.kv_heads + blockIdx.x) *
                                                                (DIM * (FP8 ? 1 : 2))) + lane % 4;
#pragma unroll
    for (int j = 0; j < attend_rows<FP8, DIM>::KEYS; j++) r->k[j] = row[4 * j];
}

template <bool FP8, int DIM>
__device__ __forceinline__ void index_load_v(const attention_gpu *p, const int *token, attend_rows<FP8, DIM> *r) {
    enum { BYTES = attend_rows<FP8, DIM>::BYTES };
    const int thread = attend_thread(), lane = thread % 32, stride = p->shape.kv_heads * DIM * (FP8 ? 1 : 2);
    const char *base = attend_cache(p, true) + (blockIdx.x * DIM * (FP8 ? 1 : 2) + (thread / 32 * 8 + lane / 4) * BYTES);
#pragma unroll
    for (int j = 0; j < ATTEND_CHUNK / 4; j++)
        attend_load_bytes<BYTES>(r->v[j / 4][j % 4], base + (int64_t)token[j / 4 * 16 + j % 2 + j % 4 / 2 * 8 + lane % 4 * 2] * stride);
}

/* The kernel. Of each chunk's two barriers the first also shows the tokens of the next one, whose place was last read before the barriers of the chunk
   before. */
template <bool FP8, int ROWS, int DIM> __global__ void ATTEND_CLUSTERS __launch_bounds__(GPU_THREADS, 2)
index_attend_fast(const __grid_constant__ attention_gpu all) {
    extern __shared__ __align__(16) char memory[];
    __shared__ int token[2][ATTEND_CHUNK];
    attend_shared<FP8, ROWS, DIM> *sh = (attend_shared<FP8, ROWS, DIM> *)memory;
    attend_rows<FP8, DIM> r;
    attend_state<ROWS, DIM> state;
    attend_vector<DIM> q_norm = {}, no_norm = {};
    pdl_launch_dependents();
    const index_row row = index_row_of(all, blockIdx.z);
    const attention_gpu p = index_lone_row(all, row);
    const index_span s = index_span_of(p, row);
    const attend_place place = attend_place_of(&p, s.chunks);
    if (row.row < 0 || place.partial >= place.partials) return;
    const int half = p.shape.rotary_dim / 2;
    if (p.shape.normed) attend_load_vector(&q_norm, p.q_norm);
    for (int i = threadIdx.x; i < half; i += GPU_THREADS) attend_angle(&p.shape, index_position(all, row, i), i, p.frequencies[i], sh->cs[0]);
    if (threadIdx.x < ROWS) sh->kv_last[threadIdx.x] = s.entries - 1;
    __syncthreads();
    pdl_wait();
    int chunk = blockIdx.y, buffer = 0;
    if (chunk < s.chunks && threadIdx.x < ATTEND_CHUNK) token[0][threadIdx.x] = index_token(p, s, chunk * ATTEND_CHUNK + (int)threadIdx.x);
    __syncthreads();
    if (chunk < s.chunks) {
        index_load_k<FP8, DIM>(&p, token[0], &r);
        index_load_v<FP8, DIM>(&p, token[0], &r);
    }
    const attend_span none = {};
    attend_prepare<FP8, ROWS, DIM, true>(&p, &none, &q_norm, &no_norm, false, sh);
    __syncthreads();
    attend_begin<FP8, ROWS, DIM>(&p, &state);
#pragma unroll 1
    for (; chunk < s.chunks; chunk += p.splits, buffer ^= 1) {
        float c[1][4];
        const int next = chunk + p.splits;
        const bool more = next < s.chunks;
        memset(c, 0, sizeof c);
        if (more && threadIdx.x < ATTEND_CHUNK) token[buffer ^ 1][threadIdx.x] = index_token(p, s, next * ATTEND_CHUNK + (int)threadIdx.x);
        attend_scores<FP8, ROWS, DIM>(sh, &r, 1, c);
        attend_tops<FP8, ROWS, DIM>(sh, chunk, INT_MAX, 1, p.k_scale, c);
        __syncthreads();
        if (more) index_load_k<FP8, DIM>(&p, token[buffer ^ 1], &r);
        attend_weights<FP8, ROWS, DIM>(sh, 1, p.k_scale, c, &state);
        __syncthreads();
        attend_values<FP8, ROWS, DIM>(sh, &r, 1, &state);
        if (more) index_load_v<FP8, DIM>(&p, token[buffer ^ 1], &r);
    }
    attend_put_part<FP8, ROWS, DIM>(sh, 1, &state);
    cluster_arrive();
    attend_combine<FP8, ROWS, DIM, true>(&p, sh, &place);
}

/* The same for heads of any shape, as attend_any does it. */
template <bool FP8> __global__ void __launch_bounds__(GPU_THREADS, 2) index_attend_any(const __grid_constant__ attention_gpu all) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float weights[ATTEND_CHUNK];
    __shared__ int token[ATTEND_CHUNK], last;
    pdl_launch_dependents();
    const index_row of = index_row_of(all, blockIdx.z);
    const attention_gpu p = index_lone_row(all, of);
    const index_span s = index_span_of(p, of);
    const int d = p.shape.head_dim, rows = p.q_per_kv, partial = blockIdx.y, partials = max(1, min(s.chunks, p.splits));
    float *q = (float *)memory, *o = q + d, *cs = o + d;
    if (of.row < 0 || partial >= partials) return;
    for (int i = threadIdx.x; i < p.shape.rotary_dim / 2; i += GPU_THREADS) attend_angle(&p.shape, index_position(all, of, i), i, p.frequencies[i], cs);
    pdl_wait();
    for (int row = 0; row < rows; row++) {
        const bool sinks = p.sinks && partial == 0;
        const int head = (int)blockIdx.x * rows + row;
        float m = attend_first_top(sinks ? p.sinks : NULL, head), l = sinks;
        __syncthreads();
        if (threadIdx.x < 32) attend_head(&p, p.qg + (size_t)head * attention_q_size(&p.shape), p.q_norm, cs, q);
        __syncthreads();
        for (int i = threadIdx.x; i < d; i += GPU_THREADS) {
            q[i] *= p.query_scale;
            o[i] = 0;
        }
        for (int chunk = partial; chunk < s.chunks; chunk += p.splits) {
            if (threadIdx.x < ATTEND_CHUNK) token[threadIdx.x] = index_token(p, s, chunk * ATTEND_CHUNK + (int)threadIdx.x);
            __syncthreads();
            attend_positions<FP8>(&p, min(s.entries - chunk * ATTEND_CHUNK, (int)ATTEND_CHUNK), [&](int j) { return (size_t)token[j]; }, q, weights, o,
                                  &m, &l);
        }
        for (int i = threadIdx.x; i < d; i += GPU_THREADS) {
            if (partials == 1) attend_finish_any(&p, row, i, l, o[i]);
            else *attend_part_o(&p, rows, partial, row, i) = o[i];
        }
        if (partials > 1 && threadIdx.x == 0) *attend_part_ml(&p, rows, partial, row, 0) = make_float2(m, l);
    }
    if (partials > 1 && attend_is_last(&p.tickets[blockIdx.x * ATTEND_CLUSTER], partials, &last)) attend_combine_any(&p, rows, partials);
}
