/* layers/attention/prefill_launch.cu: an attention layer for the many token rows of a prompt: projections, and attention
   itself (prefill.cu). Knows no session and no other kind of layer. The definition is definition.c. */

/* Scratch of a call of T rows. */
typedef struct attention_prefill_job {
    float *qg, *k, *v, *g;       /* as attention_job's */
    float *index_qk;             /* as index_gpu.qk */
    void *q, *out;               /* of attention_prefill */
    float *out_scale;            /* of out, for each 64 columns */
} attention_prefill_job;

static size_t attention_prefill_layout(const attention_shape *s, int T, char *scratch, attention_prefill_job *p) {
    const size_t kv = (size_t)T * (size_t)(s->kv_heads * s->head_dim), all = (size_t)T * (size_t)(s->heads * s->head_dim);
    size_t used = 0;
    p->qg = (float *)prefill_take(scratch, &used, (size_t)T * (size_t)(s->heads * attention_q_size(s)) * sizeof(float));
    p->k = (float *)prefill_take(scratch, &used, kv * sizeof(float));
    p->v = (float *)prefill_take(scratch, &used, kv * sizeof(float));
    p->g = (float *)prefill_take(scratch, &used, (size_t)T * (size_t)(s->heads * s->gate_size) * sizeof(float));
    p->index_qk = (float *)prefill_take(scratch, &used, s->index_heads ? (size_t)T * (size_t)((s->index_heads + 1) * s->index_dim) * sizeof(float) : 0);
    const size_t early = used;
    p->q = prefill_take(scratch, &used, attention_prefill_q_bytes(s, T));
    p->out = prefill_take(scratch, &used, all * 2);
    p->out_scale = (float *)prefill_take(scratch, &used, all / GEMM_COLS * sizeof(float));
    return prefill_take_rest(early, used - early, T, s->hidden);
}

/* The implementation of layers/kinds.cu for prefill. */

static int attention_can_prefill(const attention_weights *w, dtype kv) {
    const attention_shape *s = &w->shape;
    return attention_prefill_fits(s, kv) && s->hidden % GEMM_COLS == 0 && prefill_takes(&w->q_proj) && prefill_takes(&w->k_proj) &&
           (s->v_of_k || prefill_takes(&w->v_proj)) && (!s->gate_size || prefill_stores(&w->g_proj)) && prefill_takes(&w->o_proj) &&
           (!s->index_heads || (s->head_dim == ATTEND_DIM && s->index_group == 4 && !s->gate_size && prefill_takes(&w->index_qk)));
}

static size_t attention_prefill_bytes(const attention_shape *s, int T, dtype) {
    attention_prefill_job p;
    return attention_prefill_layout(s, T, NULL, &p);
}

static void attention_prefill_in(const prefill_rows *r, const attention_weights *w, const attention_prefill_job *job) {
    gpu_gemm p = prefill_gemm(r, prefill_normed(r), r->T);
    if (!r->state_only) prefill_product(&p, &w->q_proj, GEMM_STORE, job->qg);
    prefill_product(&p, &w->k_proj, GEMM_STORE, job->k);
    if (!w->shape.v_of_k) prefill_product(&p, &w->v_proj, GEMM_STORE, job->v);
    if (!r->state_only && w->shape.gate_size) prefill_product(&p, &w->g_proj, GEMM_STORE, job->g);
    if (w->shape.index_heads) prefill_product(&p, &w->index_qk, GEMM_STORE, job->index_qk);
    prefill_launch(r, &p);
}

/* Of T rows from row `first` on. */
static attention_prefill attention_prefill_of(const prefill_rows *r, const attention_weights *w, const attention_gpu *scratch,
                                              const attention_state *state, const attention_prefill_job *job, int first, int T) {
    const attention_shape *s = &w->shape;
    const size_t heads = (size_t)first * (size_t)s->heads, kv = (size_t)first * (size_t)(s->kv_heads * s->head_dim);
    attention_prefill p;
    memset(&p, 0, sizeof p);
    p.shape = *s;
    p.kv_only = r->state_only;
    p.T = T;
    p.index = r->index + first;
    p.qg = job->qg + heads * (size_t)attention_q_size(s);
    p.g = job->g + heads * (size_t)s->gate_size;
    p.k_new = job->k + kv;
    p.v_new = (s->v_of_k ? job->k : job->v) + kv;
    p.q_norm = w->q_norm;
    p.k_norm = w->k_norm;
    p.frequencies = scratch->frequencies + (size_t)(r->layer * scratch->frequencies_size);
    p.query_scale = s->scale != 0 ? 1.44269504f * s->scale : 1.44269504f / sqrtf((float)s->head_dim);
    p.kv = scratch->kv;
    p.k = state->k;
    p.v = state->v;
    p.ring = s->window ? scratch->ring : INT_MAX;
    p.k_scale = kv_scale(p.kv, w->k_scale);
    p.v_scale = kv_scale(p.kv, w->v_scale);
    p.q = job->q;
    p.axes = w->axes;
    p.table = r->table + first;
    return p;
}

/* Of what attend_prefill_prepare leaves, of the call's rows those from `first` on. */
static prefill_attend attention_prefill_rows(const attention_prefill *p, const attention_weights *w, const attention_prefill_job *job, int warps,
                                             int first, int rows) {
    const attention_shape *s = &p->shape;
    prefill_attend a;
    memset(&a, 0, sizeof a);
    a.T = p->T;
    a.index = p->index;
    a.heads = s->heads;
    a.kv_heads = s->kv_heads;
    a.q_per_kv = s->heads / s->kv_heads;
    a.key_dim = a.value_dim = s->head_dim;
    a.window = attend_window(s->window);
    a.first = attend_ring_first(p->index, a.window, p->ring);
    a.end = p->index + p->T;
    a.warps = warps;
    a.kv = p->kv;
    a.q = p->q;
    a.k = p->k;
    a.v = p->v;
    a.ring = p->ring;
    a.k_scale = p->k_scale;
    a.v_scale = p->v_scale;
    a.sinks = w->sinks;
    a.gates = s->gated ? p->qg + s->head_dim : s->gate_size ? p->g : NULL;
    a.gate_stride = s->gated ? attention_q_size(s) : s->gate_size;
    a.gate_each = s->gated || s->gate_size > 1;
    a.gate_logits = s->gated;
    a.out = (char *)job->out + (size_t)first * (size_t)(s->heads * s->head_dim) * 2;
    a.out_scale = job->out_scale + first;
    a.other_rows = rows - p->T;
    return a;
}

/* rope_attend, of as many rows at a time as a ring takes, or an index has marks for. */
static cudaError_t attention_prefill_pieces(const prefill_rows *r, const attention_weights *w, const attention_gpu *scratch,
                                            const attention_state *state, const attention_prefill_job *job) {
    const int window = w->shape.window, ring = window ? scratch->ring : INT_MAX;
    cudaError_t status = cudaSuccess;
    for (int first = 0, T; first < r->T && status == cudaSuccess; first += T) {
        T = min_int(r->T - first, w->shape.index_heads ? INDEX_PIECE : attend_piece(r->index + first, window, ring));
        const attention_prefill p = attention_prefill_of(r, w, scratch, state, job, first, T);
        const prefill_attend a = attention_prefill_rows(&p, w, job, scratch->prefill_warps, first, r->T);
        float *qk = job->index_qk + (size_t)first * (size_t)((w->shape.index_heads + 1) * w->shape.index_dim);
        status = attention_prefill_prepare(&p, r->stream);
        if (status == cudaSuccess && w->shape.index_heads) status = index_attend_piece(&p, r, w, scratch, state, qk, &a);
        else if (status == cudaSuccess && !r->state_only) status = prefill_attend_run(&a, r->stream);
    }
    return status;
}

static cudaError_t attention_run_prefill(const prefill_rows *r, const attention_weights *w, const attention_gpu *scratch,
                                         const attention_state *state) {
    const attention_shape *s = &w->shape;
    attention_prefill_job job;
    attention_prefill_layout(s, r->T, r->scratch, &job);
    if (stage_in(r->stages, STAGE_QKV)) attention_prefill_in(r, w, &job);
    cudaError_t status = cudaSuccess;
    if (stage_in(r->stages, STAGE_ATTEND)) status = attention_prefill_pieces(r, w, scratch, state, &job);
    const gemm_rows out = {job.out, job.out_scale, s->heads * s->head_dim / GEMM_COLS};
    if (!r->state_only && stage_in(r->stages, STAGE_O_PROJ)) prefill_output(r, &w->o_proj, out, NULL);
    return status;
}
