/* diagnose/measure_prefill.cu: times super-chunks of prefill on a GPU, whole or cut down to some stages, by CUDA events. Like
   measure.cu it computes nothing of use; the caller empties the timeline before and after. */

/* Launches these stages of all layers, for the rows that are in place. */
static void measure_layers(mote_session *s, int T, unsigned stages) {
    prefill_rows r = prefill_rows_of(s, T);
    r.stages = stages;
    for (int i = 0; i < s->m->c.layers; i++)
        gpu_check(&s->gpu->q, layer_run_prefill(&r, &s->m->layers[i], &s->gpu->layers, &s->state[i]), "a layer");
}

/* Times m->steps runs of the stages, after one of all: what a stage reads is then in place. Fills `of`, ascending. */
static void measure_prefill_times(mote_session *s, const mote_measurement *m, unsigned stages, double *of) {
    gpu_queue *q = &s->gpu->q;
    cudaEvent_t begin = NULL, end = NULL;
    prefill_rows r = prefill_rows_of(s, m->rows);
    gpu_check(q, cudaEventCreate(&begin), "timing");
    gpu_check(q, cudaEventCreate(&end), "timing");
    gpu_check(q, cudaMemcpyAsync(s->gpu->prefill.ids, s->tokens + m->depth, (size_t)m->rows * sizeof(int32_t),
                                 cudaMemcpyHostToDevice, q->stream), "copying tokens");
    for (int i = -1; i < m->steps && q->status == cudaSuccess; i++) {
        float ms = 0;
        if (stages == ALL_STAGES || i < 0) prefill_embed(&r, &s->m->embed_tokens, s->gpu->prefill.ids);
        gpu_check(q, cudaEventRecord(begin, q->stream), "timing");
        measure_layers(s, m->rows, i < 0 ? (unsigned)ALL_STAGES : stages);
        gpu_check(q, cudaEventRecord(end, q->stream), "timing");
        gpu_check(q, cudaEventSynchronize(end), "timing");
        if (q->status == cudaSuccess) gpu_check(q, cudaEventElapsedTime(&ms, begin, end), "timing");
        if (i >= 0) of[i] = ms * 1e-3;
    }
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    qsort(of, (size_t)m->steps, sizeof *of, by_seconds);
}

/* Operations of these stages, and the bytes of weights and KV that they read at least once. */
static void measure_prefill_work(const mote_session *s, mote_measurement *m, unsigned stages) {
    const mote_model *model = s->m;
    const int64_t chosen = (int64_t)m->rows * model->c.shapes.moe.top_k;
    reading of = {chosen < model->c.shapes.moe.experts ? (int)chosen : model->c.shapes.moe.experts, m->depth + m->rows,
                  s->kv_type};
    m->operations = 0;
    m->bytes = 0;
    for (int i = 0; i < model->c.layers; i++) {
        const layer *l = &model->layers[i];
        m->bytes += layer_bytes(s, l, stages, &of);
        for (int stage = 0; stage < STAGE_COUNT; stage++)
            if (stage_in(stages, (enum stage)stage))
                m->operations += sublayer_operations(&l->mixer, &model->c.shapes, (enum stage)stage, m->rows, m->depth) +
                                 sublayer_operations(&l->ffn, &model->c.shapes, (enum stage)stage, m->rows, m->depth);
    }
}

static int measure_prefill(mote_session *s, mote_measurement *m, unsigned stages, mote_error *err) {
    double *of = (double *)malloc((size_t)m->steps * sizeof *of);
    int code = of ? gpu_enter(s, err) : fail_memory(err);
    if (!code) {
        for (int i = 0; i < m->rows; i++) measure_ids(s, i, 1, s->tokens + m->depth + i);
        s->count = m->depth;
        measure_prefill_times(s, m, stages, of);
        code = gpu_session_failed(s, err);
    }
    if (!code) {
        m->fastest = of[0];
        m->median = m->wall = of[m->steps / 2];
        m->slowest = of[m->steps - 1];
        m->tokens = m->rows;
        m->launches = 0;
        measure_prefill_work(s, m, stages);
    }
    free(of);
    return code;
}
