/* layers/attention/prefill_launch.cu: an attention layer for the many token rows of a prompt: projections, and attention
   itself (prefill.cu). Knows no session and no other kind of layer. The definition is definition.c. */

/* Scratch of a call of T rows. */
typedef struct attention_prefill_job {
    float *qg, *k, *v;           /* as attention_job's */
    void *q, *out;               /* of attention_prefill */
    float *out_scale;            /* of out, for each 64 columns */
} attention_prefill_job;

static size_t attention_prefill_layout(const attention_shape *s, int T, char *scratch, attention_prefill_job *p) {
    const size_t kv = (size_t)T * (size_t)(s->kv_heads * s->head_dim), all = (size_t)T * (size_t)(s->heads * s->head_dim);
    size_t used = 0;
    p->qg = (float *)prefill_take(scratch, &used, (size_t)T * (size_t)(s->heads * attention_q_size(s)) * sizeof(float));
    p->k = (float *)prefill_take(scratch, &used, kv * sizeof(float));
    p->v = (float *)prefill_take(scratch, &used, kv * sizeof(float));
    const size_t early = used;
    p->q = prefill_take(scratch, &used, attention_prefill_q_bytes(s, T));
    p->out = prefill_take(scratch, &used, all * 2);
    p->out_scale = (float *)prefill_take(scratch, &used, all / GEMM_COLS * sizeof(float));
    return prefill_take_rest(early, used - early, T, s->hidden);
}

/* The implementation of layers/kinds.cu for prefill. */

static int attention_can_prefill(const attention_weights *w, dtype kv) {
    const attention_shape *s = &w->shape;
    return attention_prefill_fits(s, kv) && s->hidden % GEMM_COLS == 0 && prefill_takes(&w->q_proj) &&
           prefill_takes(&w->k_proj) && prefill_takes(&w->v_proj) && prefill_takes(&w->o_proj);
}

static size_t attention_prefill_bytes(const attention_shape *s, int T, dtype) {
    attention_prefill_job p;
    return attention_prefill_layout(s, T, NULL, &p);
}

static void attention_prefill_in(const prefill_rows *r, const attention_weights *w, const attention_prefill_job *job) {
    gpu_gemm p = prefill_gemm(r, prefill_normed(r), r->T);
    if (!r->state_only) prefill_product(&p, &w->q_proj, GEMM_STORE, job->qg);
    prefill_product(&p, &w->k_proj, GEMM_STORE, job->k);
    prefill_product(&p, &w->v_proj, GEMM_STORE, job->v);
    prefill_launch(r, &p);
}

static cudaError_t attention_run_prefill(const prefill_rows *r, const attention_weights *w, const attention_gpu *scratch,
                                         const attention_state *state) {
    const attention_shape *s = &w->shape;
    attention_prefill_job job;
    attention_prefill p;
    attention_prefill_layout(s, r->T, r->scratch, &job);
    memset(&p, 0, sizeof p);
    p.shape = *s;
    p.T = r->T;
    p.index = r->index;
    p.qg = job.qg;
    p.k_new = job.k;
    p.v_new = job.v;
    p.q_norm = w->q_norm;
    p.k_norm = w->k_norm;
    p.sinks = w->sinks;
    p.window = attend_window(s->window);
    p.frequencies = scratch->frequencies + (size_t)(r->layer * scratch->frequencies_size);
    p.kv = scratch->kv;
    p.k = state->k;
    p.v = state->v;
    p.ring = s->window ? scratch->ring : INT_MAX;
    p.k_scale = kv_scale(p.kv, w->k_scale);
    p.v_scale = kv_scale(p.kv, w->v_scale);
    p.q = job.q;
    p.out = job.out;
    p.out_scale = job.out_scale;
    p.kv_only = r->state_only;
    p.warps = scratch->prefill_warps;
    p.axes = w->axes;
    p.table = r->table;
    if (stage_in(r->stages, STAGE_QKV)) attention_prefill_in(r, w, &job);
    cudaError_t status = cudaSuccess;
    if (stage_in(r->stages, STAGE_ATTEND)) status = attention_prefill_run(&p, r->stream);
    const gemm_rows out = {job.out, job.out_scale, s->heads * s->head_dim / GEMM_COLS};
    if (!r->state_only && stage_in(r->stages, STAGE_O_PROJ)) prefill_output(r, &w->o_proj, out, NULL);
    return status;
}
