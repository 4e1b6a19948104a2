/* cuda/step.cu: the forward pass on a GPU: recorded as a schedule, captured as CUDA graphs, launched by the host. It sees the
   session and the model. Kernels, and how many blocks they take, belong to the rooms it calls (layers/, cuda/).

   A step runs the same stages in the same order as forward_cpu, for one to four rows. Its kernels are recorded and linked
   (gpu_submit), and the launches captured once, as a
   CUDA graph for each number of rows and each kind of result (gpu_kind), and replayed. What changes from step to step
   (position, accepted rows, tokens) is in step_parameters, which gpu_put or the sampler writes before the graph runs.

   The host never waits inside a step. mote_step queues the sampling of a token and the step that runs this token, and
   returns when the token is in the mailbox, while the GPU is still computing. So the logits of the last row stay on the GPU
   until something reads them, and lm_head itself runs only for rows whose logits are wanted.

   A cycle of speculation is one graph, too, for each number of rows and of drafts: the step; gpu_accept, which chooses what
   follows each row, writes step_parameters for the next cycle and posts the tokens to the mailbox; and the drafts that the
   next cycle verifies. While the GPU drafts, the host reads the tokens and queues the next cycle. */

/* From here on everything begins at a multiple of so many floats from the base. */
static void layout_align(layout *l, size_t unit) {
    l->unit = unit;
    l->used = (l->used + unit - 1) / unit * unit;
}

/* Scratch of a session in GPU memory, behind the states of its layers. */
static void layout_gpu(layout *l, const mote_model *m, const mote_session_options *o, const capacity *r,
                       struct gpu_session *g) {
    const config *c = &m->c;
    size_t T = GPU_ROWS, hidden = (size_t)c->hidden;
    gpu_queue q;
    memset(&q, 0, sizeof q);
    q.sms = o->sms ? o->sms : m->gpu_sms;
    layout_align(l, 32);                                    /* an L2 line: 128 bytes */
    g->step = (step_parameters *)(void *)layout_alloc(l, sizeof(step_parameters) / sizeof(float));
    g->parameters = (sampling_parameters *)(void *)layout_alloc(l, sizeof(sampling_parameters) / sizeof(float));
    g->greedy = (sampling_parameters *)(void *)layout_alloc(l, sizeof(sampling_parameters) / sizeof(float));
    g->x = layout_alloc(l, T * hidden);
    g->mtp_x = layout_alloc(l, T * hidden);
    g->hidden = layout_alloc(l, T * hidden);
    g->mtp_in = layout_alloc(l, T * 2 * hidden);
    layer_lay_gpu(l, &m->largest, r, &q, &g->layers);
    g->chosen = (int32_t *)(void *)layout_alloc(l, (size_t)c->layers + 1);
    g->layers.moe.chosen = g->chosen;
    g->logits = layout_alloc(l, T * (size_t)c->vocab);
    g->mtp_logits = layout_alloc(l, T * (size_t)c->vocab);
    g->draft_logits = layout_alloc(l, (size_t)m->draft_head.rows);
    g->picks = (uint64_t *)(void *)layout_alloc(l, T * (size_t)GPU_PICKS * GPU_TOP_K * 2);
}

static int gpu_session_failed(const mote_session *s, mote_error *err) {
    const gpu_queue *q = &s->gpu->q;
    return q->status == cudaSuccess ? MOTE_OK : gpu_fail(err, q->status, q->failed);
}

/* T rows of x through a layer; offset: their first position minus that of the step. */
static void gpu_record_layer(mote_session *s, gpu_queue *q, const layer *l, const layer_state *state, int T, float *x,
                             int offset, int state_only) {
    gpu_rows rows = {q, T, s->gpu->step, offset, state_only, x};
    layer_record(&rows, l, &s->gpu->layers, state);
}

/* The kernels that are recorded next are those of the MTP layer, or no longer. */
static void gpu_set_mtp(mote_session *s, gpu_queue *q, int in_mtp) {
    q->in_mtp = in_mtp;
    q->layer = in_mtp ? s->m->c.layers : -1;
}

static gpu_mtp_input gpu_mtp_input_of(const mote_session *s) {
    const mote_model *m = s->m;
    struct gpu_session *g = s->gpu;
    gpu_mtp_input p;
    memset(&p, 0, sizeof p);
    p.embed_tokens = gpu_matrix_of(&m->embed_tokens);
    p.step = g->step;
    p.x = g->x;
    p.norm = m->norm;
    p.hidden = g->hidden;
    p.last_hidden = s->last_hidden;
    p.norm_embedding = m->mtp_norm_embedding;
    p.norm_hidden = m->mtp_norm_hidden;
    p.in = g->mtp_in;
    p.eps = m->c.eps;
    return p;
}

static void gpu_record_mtp(mote_session *s, gpu_queue *q, int T, int logits) {
    const mote_model *m = s->m;
    struct gpu_session *g = s->gpu;
    gpu_mtp_input p = gpu_mtp_input_of(s);
    gpu_set_mtp(s, q, 1);
    gpu_mtp_start(q, &p, T);
    gpu_linear(q, KERNEL_FC, &m->mtp_fc, g->mtp_in, g->mtp_x, T);
    gpu_record_layer(s, q, &m->mtp, &s->state[m->c.layers], T, g->mtp_x, -1, !logits);
    if (logits) gpu_head(q, &m->lm_head, m->mtp_norm, g->mtp_x, T, m->c.eps, g->mtp_logits);
    gpu_set_mtp(s, q, 0);
}

/* Records draft number i, from 0 on, as in draft_cpu. Its position and the token before it are in step_parameters. */
static void gpu_record_draft(mote_session *s, gpu_queue *q, int i) {
    const mote_model *m = s->m;
    struct gpu_session *g = s->gpu;
    gpu_mtp_input p = gpu_mtp_input_of(s);
    gpu_sampling choice;
    memset(&choice, 0, sizeof choice);
    p.draft = i;
    p.x = g->mtp_x;
    p.norm = m->mtp_norm;
    choice.parameters = g->greedy;
    choice.logits = g->draft_logits;
    choice.T = 1;
    choice.n = m->draft_head.rows;
    choice.picks = g->picks;
    choice.step = g->step;
    choice.draft = i + 1;
    gpu_set_mtp(s, q, 1);
    gpu_draft_start(q, &p);
    gpu_linear(q, KERNEL_FC, &m->mtp_fc, g->mtp_in, g->mtp_x, 1);
    gpu_record_layer(s, q, &m->mtp, &s->state[m->c.layers], 1, g->mtp_x, i - 1, 0);
    gpu_head(q, &m->draft_head, m->mtp_norm, g->mtp_x, 1, m->c.eps, g->draft_logits);
    gpu_sample(q, KERNEL_DRAW, &choice, gpu_draw);
    gpu_set_mtp(s, q, 0);
}

/* Records the sampling and verification of the tokens that follow the T rows just computed. */
static void gpu_record_accept(mote_session *s, gpu_queue *q, int T) {
    struct gpu_session *g = s->gpu;
    gpu_sampling p;
    memset(&p, 0, sizeof p);
    p.parameters = g->parameters;
    p.logits = g->logits;
    p.stride = (size_t)s->m->c.vocab;
    p.T = T;
    p.n = sample_vocab(s);
    p.picks = g->picks;
    p.step = g->step;
    p.mailbox = g->mailbox;
    gpu_sample(q, KERNEL_ACCEPT, &p, gpu_accept);
}

/* Records all kernels of a step of T rows. */
static void gpu_record_step(mote_session *s, gpu_queue *q, int T, enum gpu_kind kind) {
    const mote_model *m = s->m;
    struct gpu_session *g = s->gpu;
    gpu_embedding p;
    memset(&p, 0, sizeof p);
    p.embed_tokens = gpu_matrix_of(&m->embed_tokens);
    p.step = g->step;
    p.x = g->x;
    p.hidden = g->hidden;
    p.last_hidden = s->has_mtp ? s->last_hidden : NULL;
    q->layer = -1;
    gpu_embed(q, &p, T);
    for (int i = 0; i < m->c.layers; i++) {
        q->layer = i;
        gpu_record_layer(s, q, &m->layers[i], &s->state[i], T, g->x, 0, 0);
    }
    q->layer = -1;
    if (kind == GPU_LAST_LOGITS)
        gpu_head(q, &m->lm_head, m->norm, g->x + (size_t)(T - 1) * (size_t)m->c.hidden, 1, m->c.eps, g->logits);
    if (kind >= GPU_ALL_LOGITS) gpu_head(q, &m->lm_head, m->norm, g->x, T, m->c.eps, g->logits);
    if (s->has_mtp) gpu_record_mtp(s, q, T, kind == GPU_MTP_LOGITS);
}

/* Captures a CUDA graph. drafts < 0: a step of T rows. Else a cycle: a step of T rows and its gpu_accept (T = 0: neither),
   then `drafts` drafts. Stages that q->stages leaves out are not in it. */
static cudaGraphExec_t gpu_capture(mote_session *s, int T, enum gpu_kind kind, int drafts) {
    gpu_queue *q = &s->gpu->q;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    if (!gpu_check(q, cudaStreamBeginCapture(s->gpu->stream, cudaStreamCaptureModeThreadLocal), "capturing a step"))
        return NULL;
    if (T) gpu_record_step(s, q, T, kind);
    if (T && drafts >= 0) gpu_record_accept(s, q, T);
    for (int i = 0; i < drafts; i++) gpu_record_draft(s, q, i);
    gpu_submit(q);
    cudaError_t status = cudaStreamEndCapture(s->gpu->stream, &graph);
    if (gpu_check(q, status, "capturing a step"))
        gpu_check(q, cudaGraphInstantiate(&ready, graph, 0), "preparing a step");
    if (graph) (void)cudaGraphDestroy(graph);
    return ready;
}

static int gpu_enter(mote_session *s, mote_error *err) {
    gpu_check(&s->gpu->q, cudaSetDevice(s->m->gpu), "choosing the GPU");
    return gpu_session_failed(s, err);
}

static void gpu_launched(struct gpu_session *g, int T, enum gpu_kind kind) {
    g->rows = T;
    g->head_done = kind != GPU_NO_LOGITS;
    g->all_logits = kind >= GPU_ALL_LOGITS;
    g->logits_row = g->all_logits ? T - 1 : 0;
    g->logits_on_host = 0;
}

/* Launches the graph of a step, captured if this is the first time. step_parameters are set by an earlier launch. */
static void gpu_launch_step(mote_session *s, int T, enum gpu_kind kind) {
    struct gpu_session *g = s->gpu;
    if (!g->graph[kind][T]) g->graph[kind][T] = gpu_capture(s, T, kind, -1);
    if (g->q.status == cudaSuccess)
        gpu_check(&g->q, cudaGraphLaunch(g->graph[kind][T], g->stream), "launching a step");
    gpu_launched(g, T, kind);
}

/* The same for a cycle, which posts to the mailbox unless T is 0. */
static void gpu_launch_cycle(mote_session *s, int T, int drafts) {
    struct gpu_session *g = s->gpu;
    cudaGraphExec_t *graph = &g->cycle[T][drafts];
    if (!*graph) *graph = gpu_capture(s, T, GPU_ALL_LOGITS, drafts);
    if (g->q.status == cudaSuccess) gpu_check(&g->q, cudaGraphLaunch(*graph, g->stream), "launching a cycle");
    if (!T) return;
    g->sequence++;
    gpu_launched(g, T, GPU_ALL_LOGITS);
}

/* Waits until the GPU has done all that was queued. */
static int gpu_finish(mote_session *s, mote_error *err) {
    gpu_check(&s->gpu->q, cudaStreamSynchronize(s->gpu->stream), "a step");
    return gpu_session_failed(s, err);
}

/* The logits after the timeline's last row, on the GPU: records lm_head for them if the step left it out. */
static const float *gpu_last_logits(mote_session *s) {
    struct gpu_session *g = s->gpu;
    const mote_model *m = s->m;
    if (!g->head_done)
        gpu_head(&g->q, &m->lm_head, m->norm, g->x + (size_t)(g->rows - 1) * (size_t)m->c.hidden, 1, m->c.eps, g->logits);
    g->head_done = 1;
    return g->logits + (size_t)g->logits_row * (size_t)m->c.vocab;
}

/* Copies these to s->logits unless a copy is there already. */
static int gpu_fetch_logits(mote_session *s, mote_error *err) {
    struct gpu_session *g = s->gpu;
    if (g->logits_on_host) return MOTE_OK;
    int code = gpu_enter(s, err);
    if (code) return code;
    const float *logits = gpu_last_logits(s);
    gpu_submit(&g->q);
    gpu_check(&g->q, cudaMemcpyAsync(s->logits, logits, (size_t)s->m->c.vocab * sizeof(float), cudaMemcpyDeviceToHost,
                                     g->stream), "reading the logits");
    code = gpu_finish(s, err);
    g->logits_on_host = !code;
    return code;
}

static void gpu_set_step(mote_session *s, const int32_t *ids, int T) {
    step_parameters step;
    memset(&step, 0, sizeof step);
    step.position = s->count;
    step.replay = s->accepted;
    step.sequence = s->gpu->sequence;
    for (int t = 0; t < T; t++) step.ids[t] = ids[t];
    gpu_put(&s->gpu->q, gpu_put_step_kernel, s->gpu->step, &step);
}

/* Sets the sampling parameters on the GPU if they have changed. */
static void gpu_set_sampling(mote_session *s, const sampling_parameters *parameters) {
    struct gpu_session *g = s->gpu;
    if (!memcmp(parameters, &g->sampling_on_device, sizeof *parameters)) return;
    gpu_put(&g->q, gpu_put_sampling_kernel, g->parameters, parameters);
    g->sampling_on_device = *parameters;
}

/* forward() on a GPU. last: the caller may want the last row's logits, so the graph with lm_head is launched. Waits for the
   GPU only if it copies logits to the host. */
static int gpu_forward(mote_session *s, const int32_t *ids, int T, int last, float *logits, float *mtp_logits,
                       mote_error *err) {
    struct gpu_session *g = s->gpu;
    size_t vocab = (size_t)s->m->c.vocab, skip = s->count == 0;
    int code = gpu_enter(s, err);
    if (code) return code;
    gpu_set_step(s, ids, T);
    gpu_launch_step(s, T, mtp_logits ? GPU_MTP_LOGITS : logits ? GPU_ALL_LOGITS : last ? GPU_LAST_LOGITS : GPU_NO_LOGITS);
    if (logits)
        gpu_check(&g->q, cudaMemcpyAsync(logits, g->logits, (size_t)T * vocab * sizeof(float), cudaMemcpyDeviceToHost,
                                         g->stream), "reading the logits");
    if (mtp_logits && (size_t)T > skip)
        gpu_check(&g->q, cudaMemcpyAsync(mtp_logits, g->mtp_logits + skip * vocab,
                                         ((size_t)T - skip) * vocab * sizeof(float), cudaMemcpyDeviceToHost, g->stream),
                  "reading the MTP logits");
    return logits || mtp_logits ? gpu_finish(s, err) : gpu_session_failed(s, err);
}

/* Waits for the post with the current sequence number: *count ids; the last is -1 if a logit was NaN. Polls pinned memory;
   every 4,096 polls it asks the stream whether it has failed or, without a post, is done. The second look at `posted` is
   needed: the post may have come between the poll and the query. */
static int mailbox_wait(mote_session *s, int32_t *ids, int *count, mote_error *err) {
    struct gpu_session *g = s->gpu;
    for (unsigned i = 1; g->mailbox->posted >> 32 != g->sequence; i++) {
        if (i % 4096) continue;
        cudaError_t status = cudaStreamQuery(g->stream);
        if (status != cudaErrorNotReady && g->mailbox->posted >> 32 != g->sequence)
            gpu_check(&g->q, status == cudaSuccess ? cudaErrorUnknown : status, "sampling");
        if (g->q.status != cudaSuccess) return gpu_session_failed(s, err);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    *count = (int)(uint32_t)g->mailbox->posted;
    for (int i = 0; i < *count; i++) ids[i] = g->mailbox->ids[i];
    return MOTE_OK;
}

/* Queues the sampling of the token after the timeline: gpu_draw makes it the first token of the next step and posts it. */
static void gpu_choose_next(mote_session *s, const mote_sampling *sampling) {
    struct gpu_session *g = s->gpu;
    sampling_parameters parameters;
    gpu_sampling p;
    memset(&parameters, 0, sizeof parameters);
    memset(&p, 0, sizeof p);
    parameters.temperature = sampling->temperature;
    parameters.k = sampling->temperature > 0 ? sampling->top_k : 1;
    parameters.top_p = sampling->top_p;
    parameters.min_p = sampling->min_p;
    parameters.seed = sampling->seed;
    gpu_set_sampling(s, &parameters);
    p.parameters = g->parameters;
    p.logits = gpu_last_logits(s);
    p.T = 1;
    p.n = sample_vocab(s);
    p.picks = g->picks;
    p.step = g->step;
    p.mailbox = g->mailbox;
    p.position = s->count;
    p.replay = s->accepted;
    g->sequence++;
    gpu_sample(&g->q, KERNEL_DRAW, &p, gpu_draw);
    gpu_submit(&g->q);
}

/* make_drafts on a GPU, for passes in which the host samples. */
static int gpu_make_drafts(mote_session *s, int32_t id, int k, int32_t *drafts, mote_error *err) {
    struct gpu_session *g = s->gpu;
    int code = gpu_enter(s, err);
    if (code || !k) return code;
    gpu_set_step(s, &id, 1);
    gpu_launch_cycle(s, 0, k);
    gpu_check(&g->q, cudaMemcpyAsync(drafts, g->step->ids + 1, (size_t)k * sizeof *drafts, cudaMemcpyDefault, g->stream),
              "reading drafts");
    return gpu_finish(s, err);
}

/* Captures all cycles that an answer may need, so that none is captured in its middle: for a small model that takes as long as
   tens of tokens. */
static int gpu_capture_cycles(mote_session *s, mote_error *err) {
    struct gpu_session *g = s->gpu;
    int code = gpu_enter(s, err);
    for (int T = 0; T <= GPU_ROWS && !code; T++)
        for (int drafts = !T; drafts < GPU_ROWS && g->q.status == cudaSuccess; drafts++)
            if (!g->cycle[T][drafts]) g->cycle[T][drafts] = gpu_capture(s, T, GPU_ALL_LOGITS, drafts);
    return code ? code : gpu_session_failed(s, err);
}

/* time_pass on a GPU: times cycles as they follow each other in an answer or, with k = 0, plain steps. */
static int gpu_time_pass(mote_session *s, int k, double *pass, double *draft, mote_error *err) {
    enum { TIMES = 4 };
    mote_sampling greedy;
    int32_t ids[BLOCK];
    int code = gpu_enter(s, err);
    if (code) return code;
    memset(&greedy, 0, sizeof greedy);
    for (int i = 0; i < BLOCK; i++) ids[i] = s->tokens[s->count > i ? s->count - 1 - i : 0];
    gpu_choose_next(s, &greedy);
    double start = 0;
    for (int i = -1; i <= 2 * TIMES; i++) {                 /* -1: capture and warm-up; then passes; then drafts alone */
        if (i == 0 || i == TIMES || i == 2 * TIMES) {
            if ((code = gpu_finish(s, err))) break;
            if (i == TIMES) *pass = (seconds() - start) / TIMES;
            if (i == 2 * TIMES) *draft = (seconds() - start) / TIMES;
            start = seconds();
        }
        if (i >= TIMES && !k) continue;
        if (i < TIMES) gpu_set_step(s, ids, k + 1);
        if (i >= TIMES || i < 0) gpu_launch_cycle(s, 0, k);
        if (i < TIMES && k) gpu_launch_cycle(s, k + 1, k);
        if (i < TIMES && !k) gpu_choose_next(s, &greedy);
        if (i < TIMES && !k) gpu_launch_step(s, 1, GPU_LAST_LOGITS);
        if (i < TIMES) session_computed(s, k + 1);
        if (i < TIMES) session_drop(s);
    }
    if (!k) *draft = 0;
    return code;
}

/* mote_step, sampled on the GPU: queues the sampling of a token and the step that runs it; waits for the token only. */
static int gpu_step_sampled(mote_session *s, const mote_sampling *sampling, int32_t *id, mote_error *err) {
    int count, code = gpu_enter(s, err);
    if (code) return code;
    gpu_choose_next(s, sampling);
    gpu_launch_step(s, 1, GPU_LAST_LOGITS);
    session_computed(s, 1);
    code = gpu_session_failed(s, err);
    if (!code) code = mailbox_wait(s, id, &count, err);
    if (!code && *id < 0) code = fail(err, MOTE_EFORMAT, "a logit is not a number: are the weights damaged?");
    if (code) session_drop(s);
    return code;
}

static void gpu_session_close(mote_session *s) {
    struct gpu_session *g = s->gpu;
    if (!g) return;
    if (s->owner == getpid() && cudaSetDevice(s->m->gpu) == cudaSuccess) {      /* CUDA does not survive a fork */
        if (g->stream) (void)cudaStreamSynchronize(g->stream);
        for (int kind = 0; kind < GPU_KINDS; kind++)
            for (int T = 1; T <= GPU_ROWS; T++)
                if (g->graph[kind][T]) (void)cudaGraphExecDestroy(g->graph[kind][T]);
        for (int T = 0; T <= GPU_ROWS; T++)
            for (int drafts = 0; drafts < GPU_ROWS; drafts++)
                if (g->cycle[T][drafts]) (void)cudaGraphExecDestroy(g->cycle[T][drafts]);
        for (int i = 0; i < 2; i++)
            if (g->layer_done[i]) (void)cudaEventDestroy(g->layer_done[i]);
        if (g->stream) (void)cudaStreamDestroy(g->stream);
        if (s->memory) (void)cudaFree(s->memory);
        if (s->host) (void)cudaFreeHost(s->host);
        if (g->mailbox) (void)cudaFreeHost((void *)g->mailbox);
        (void)cudaGetLastError();
    }
    s->memory = NULL;
    s->host = NULL;
    free(g->q.nodes);
    free(g->q.launches);
    free(g->launches);
    free(g);
}

/* What all attention layers of a session share: how many splits and warps to use, and the rotary frequencies, computed as
   rotary_angles does. */
static void gpu_prepare_attention(mote_session *s) {
    const attention_shape *a = &s->m->largest.attention;
    attention_gpu *to = &s->gpu->layers.attention;
    to->splits = gpu_attention_splits(&s->gpu->q, a, s->kv_type, to->splits);
    to->prefill_warps = attention_prefill_warps(s->m->gpu_shared);
    int half = a->rotary_dim / 2;
    float *f = s->s.sorted;                                 /* pinned memory, not used before the first sampling */
    for (int i = 0; i < half; i++) f[i] = 1.0f / powf(a->theta, (float)(2 * i) / (float)a->rotary_dim);
    gpu_check(&s->gpu->q, cudaMemcpyAsync(to->frequencies, f, (size_t)half * sizeof(float), cudaMemcpyHostToDevice,
                                          s->gpu->stream), "copying the rotary frequencies");
}

/* Allocates a session's memory and captures the graphs that every answer needs: others are captured when first launched. On
   failure the caller closes the session. */
static int gpu_session_open(mote_session *s, mote_error *err) {
    size_t bytes = parts_bytes(&s->parts), host = s->host_floats * sizeof(float);
    struct gpu_session *g = s->gpu;
    gpu_queue *q = &g->q;
    uint64_t available = device_available(s->m);
    if (available && bytes > available)
        return fail(err, MOTE_ENOMEM,
                    "a session of %d tokens needs %.2f GB, %.2f GB are free on %s: a context of %d tokens would fit",
                    s->o.context, (double)bytes * 1e-9, (double)available * 1e-9, s->m->device,
                    context_that_fits(s->m, &s->o, available, s));
    q->sms = s->o.sms && s->o.sms < s->m->gpu_sms ? s->o.sms : s->m->gpu_sms;
    q->shared = s->m->gpu_shared;
    q->dependent = s->m->gpu_cc >= 90;
    q->prefetch = s->m->gpu_cache / GPU_PREFETCH_SHARE / 128 * 128;
    q->stages = ALL_STAGES;
    gpu_check(q, cudaSetDevice(s->m->gpu), "choosing the GPU");
    if (q->status == cudaSuccess) gpu_check(q, cudaMalloc((void **)&s->memory, bytes), "allocating a session");
    if (q->status == cudaSuccess)
        gpu_check(q, cudaHostAlloc((void **)&s->host, host, cudaHostAllocDefault), "pinning memory");
    if (q->status == cudaSuccess)
        gpu_check(q, cudaHostAlloc((void **)&g->mailbox, sizeof *g->mailbox, cudaHostAllocMapped), "pinning memory");
    if (q->status == cudaSuccess) gpu_check(q, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "a stream");
    for (int i = 0; i < 2 && q->status == cudaSuccess; i++)
        gpu_check(q, cudaEventCreateWithFlags(&g->layer_done[i], cudaEventDisableTiming), "an event");
    if (q->status != cudaSuccess) return gpu_session_failed(s, err);
    layout_session(s->m, &s->o, s->memory, s->host, s);
    memset(s->host, 0, host);
    memset((void *)g->mailbox, 0, sizeof *g->mailbox);
    q->stream = g->stream;
    gpu_check(q, cudaMemsetAsync(s->memory, 0, bytes, g->stream), "clearing a session");
    if (s->m->largest.kinds >> LAYER_ATTENTION & 1) gpu_prepare_attention(s);
    sampling_parameters greedy;
    memset(&greedy, 0, sizeof greedy);
    greedy.k = 1;
    gpu_put(q, gpu_put_sampling_kernel, g->greedy, &greedy);
    for (int T = 1; T <= GPU_ROWS && q->status == cudaSuccess; T++)
        g->graph[GPU_LAST_LOGITS][T] = gpu_capture(s, T, GPU_LAST_LOGITS, -1);
    if (q->status == cudaSuccess) g->graph[GPU_NO_LOGITS][GPU_ROWS] = gpu_capture(s, GPU_ROWS, GPU_NO_LOGITS, -1);
    return gpu_finish(s, err);
}
