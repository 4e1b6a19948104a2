/* run/cuda/runner.cu: a runner and its slots on a GPU: how their memory is laid out, how they are opened and closed. The executor of
   a model whose weights are on a GPU. */

static void gpu_layout_slot(layout *l, slot *s) {
    layout_align(l, 32);                                    /* an L2 line: 128 bytes */
    s->gpu->step = (step_parameters *)layout_bytes(l, sizeof *s->gpu->step);
    s->gpu->x = layout_alloc(l, MOTE_ROWS_MAX * (size_t)model_width(s->m));
}

/* What a member of a group has for the others. */
static void gpu_layout_peer(layout *l, mote_runner *r) {
    const mote_model *m = r->m;
    peer_sizes s;
    if (m->part.ranges * m->part.ranks < 2 || m->part.apart) return;
    s.ranges = m->part.ranges;
    s.ranks = m->part.ranks;
    s.hidden = (size_t)model_width(m);
    s.sum_cols = (size_t)m->c.hidden * (m->largest.residual.branched ? 2 : 1);
    s.vocab_share = (size_t)part_vocab(&m->part, m->c.vocab).most;
    s.block_rows = s.ranges > 1 ? (size_t)r->o.chunk : 0;   /* in all members alike: also where some cannot prefill */
    peers_layout(l, &r->gpu->peer, m->part.range, &s);
}

static void gpu_layout_runner(layout *l, mote_runner *r) {
    const mote_model *m = r->m;
    const capacity most = capacity_of(&r->o, r->o.context);
    const int last = part_is_last(&m->part);
    const size_t T = PASS_ROWS_MAX, hidden = (size_t)m->c.hidden, width = (size_t)model_width(m), vocab = last ? (size_t)m->c.vocab : 0;
    const deltanet_shape *d = &m->largest.deltanet;
    const attention_shape *a = &m->largest.attention;
    const mla_shape *c = &m->largest.mla;
    const int mixed = max_int(d->value_heads * d->value_dim, max_int(a->heads * a->head_dim, max_int(c->q_rank, c->heads * c->value_dim)));
    const attention_shape *b = m->drafter ? &m->drafter->largest.attention : a;
    const int block = m->drafter ? max_int(b->heads * b->head_dim, m->drafter->largest.mlp.size) : 0;
    const int widest = max_int(max_int(mixed, m->largest.mlp.size), block);
    struct gpu_runner *g = r->gpu;
    gpu_queue q;
    memset(&q, 0, sizeof q);
    q.sms = r->o.sms;
    q.rows = g->q.rows = (int)T;
    layout_align(l, 32);
    g->table = (gpu_pass_table *)layout_bytes(l, sizeof *g->table);
    if (g->table) g->step = g->table->steps, g->parameters = g->table->sampling;
    g->greedy = (sampling_parameters *)layout_bytes(l, sizeof *g->greedy);
    g->x = layout_alloc(l, T * width);
    g->mtp_x = layout_alloc(l, last ? T * width : 0);
    g->mtp_in = layout_alloc(l, last ? T * (hidden + width) : 0);
    g->mtp_embedded = layout_alloc(l, last && m->c.streams ? T * hidden : 0);
    g->given_row = layout_alloc(l, model_has_axes(m) ? hidden : 0);
    gpu_batch_layout(l, max_int(2 * m->c.hidden, max_int(widest, ngrams_width(&m->largest.ngrams))), PASS_ROWS_MAX, &g->batch);
    g->q.batch = &g->batch;
    layer_layout_gpu(l, &m->largest, m->c.hidden, m->part.ranks, &most, &q, &g->layers);
    if (model_has_tables(m)) gpu_layout_tables(l, r);
    g->chosen = (int32_t *)layout_bytes(l, ((size_t)m->c.layers + 1) * sizeof *g->chosen);
    g->layers.moe.chosen = g->chosen;
    g->logits = layout_alloc(l, T * vocab);
    g->mtp_logits = layout_alloc(l, STEP_ROWS * vocab);
    g->draft_logits = layout_alloc(l, last ? T * (size_t)draft_vocab(m) : 0);
    g->topk = (uint64_t *)(void *)layout_alloc(l, last ? T * (size_t)GPU_TOPK_BLOCKS * GPU_TOP_K * 2 : 0);
    gpu_layout_drafter(l, r, &q);
    layout_prefill(l, m, &r->o, &g->prefill);
    gpu_layout_vision(l, r);
    gpu_layout_experts(l, r);
    gpu_layout_peer(l, r);
}

/* of: a layer's `count` frequencies; to: where all layers' lie, so many for each. */
static void gpu_copy_frequencies(struct gpu_runner *g, float *to, int each, const float *of, int count, int layer) {
    gpu_move(&g->q, to + (size_t)(layer * each), of, (size_t)count * sizeof(float), "copying the rotary frequencies");
}

/* The splits of each attention layer of m, the runner's model or its drafter, and the most of any; its frequencies; how many warps prefill uses. */
static void gpu_prepare_attention(struct gpu_runner *g, const mote_model *m, attention_gpu *to) {
    to->prefill_warps = attention_prefill_warps(m->device.shared);
    to->layer_splits = (int *)calloc((size_t)(m->c.layers + m->has_mtp), sizeof *to->layer_splits);
    if (!to->layer_splits) gpu_check(&g->q, cudaErrorMemoryAllocation, "preparing attention");
    for (int i = 0; i < m->c.layers + m->has_mtp && to->layer_splits; i++) {
        const sublayer *of = i < m->c.layers ? &m->layers[i].mixer : &m->mtp.layer.mixer;
        const attention_weights *w = &of->w.attention;
        if (of->kind != LAYER_ATTENTION || !model_has_layer(m, i)) continue;
        to->layer_splits[i] = gpu_attention_splits(&g->q, &w->shape, to);
        to->splits = max_int(to->splits, to->layer_splits[i]);
        gpu_copy_frequencies(g, to->frequencies, to->frequencies_size, w->frequencies, w->shape.rotary_dim / 2, i);
    }
}

/* The same of latent attention. */
static void gpu_prepare_mla(mote_runner *r) {
    const mote_model *m = r->m;
    struct gpu_runner *g = r->gpu;
    mla_gpu *to = &g->layers.mla;
    to->splits = gpu_mla_splits(&g->q, &m->largest.mla, to->kv);
    to->prefill_warps = attention_prefill_warps(m->device.shared);
    for (int i = 0; i < m->c.layers + m->has_mtp; i++) {
        const sublayer *of = i < m->c.layers ? &m->layers[i].mixer : &m->mtp.layer.mixer;
        const mla_weights *w = &of->w.mla;
        if (of->kind == LAYER_MLA && model_has_layer(m, i)) gpu_copy_frequencies(g, to->frequencies, to->frequencies_size, w->frequencies, w->shape.rope_dim / 2, i);
    }
}

/* The norm that does nothing (layers/streams.cu). */
static void gpu_prepare_streams(mote_runner *r) {
    struct gpu_runner *g = r->gpu;
    enum { SOME = 64 };
    float norm[SOME];
    for (int i = 0; i < SOME; i++) norm[i] = STREAMS_NORM;
    for (int i = 0; i < r->m->c.hidden; i += SOME)
        gpu_move(&g->q, g->layers.streams.norm + i, norm, (size_t)min_int(SOME, r->m->c.hidden - i) * sizeof *norm, "preparing streams");
}

/* Whether x, or what is read of streams, is stored with tags once for this sublayer. */
static int sublayer_tags(const sublayer *l) {
    return l->kind != LAYER_NONE && !l->residual.whole;
}

/* What ranges before this one store with tags in a step. */
static void gpu_count_tags(const mote_model *m, gpu_queue *q) {
    for (int i = 0; i < m->part.first; i++) {
        q->tagged[0] += sublayer_tags(&m->layers[i].mixer) + sublayer_tags(&m->layers[i].ffn);
        q->tagged[1] += m->layers[i].ffn.kind == LAYER_MOE;
    }
}

/* The addresses that kernels of a shared runner are captured with: those of a slot that drafts, laid out from ORIGIN. It does
   not hold the runner. */
static int gpu_imagine_slot(mote_runner *r, int context, slot *s, mote_error *err) {
    int code = slot_begin(s, r, context, r->m->has_mtp, err);
    s->verifies = 1;
    if (!code) layout_slot((float *)(uintptr_t)ORIGIN, NULL, s);
    s->memory = (float *)(uintptr_t)ORIGIN;
    __atomic_sub_fetch(&r->holders, 1, __ATOMIC_RELAXED);
    return code;
}

static void gpu_forget_slot(slot *s) {
    free(s->gpu);
    free(s->state);
}

static int gpu_open(mote_runner *r, mote_error *err) {
    const mote_model *m = r->m;
    const size_t bytes = layout_runner(r, NULL) * sizeof(float);
    struct gpu_runner *g = r->gpu;
    gpu_queue *q = &g->q;
    if (m->part.ranks > PEER_RANKS)
        return fail(err, MOTE_EUNSUPPORTED, "layers divided by %d GPUs are not supported, by %d at most", m->part.ranks, PEER_RANKS);
    r->rows = PASS_ROWS_MAX;
    r->mtp_rows = STEP_ROWS;
    r->logs = 1;
    r->pass_rows = r->one_slot ? 0 : PASS_ROWS_MAX;
    r->company_rows = STEP_ROWS;
    if (m->part.apart) r->nccl = nccl_version();
    q->sms = r->o.sms;
    q->shared = m->device.shared;
    q->dependent = m->device.cc >= 90;
    q->prefetch = m->device.cache / GPU_PREFETCH_SHARE / 128 * 128;
    q->stages = ALL_STAGES;
    q->layer = -1;
    gpu_count_tags(m, q);
    gpu_check(q, cudaSetDevice(m->device.gpu), "choosing the GPU");
    if (q->status == cudaSuccess) gpu_open_experts(r);
    if (q->status == cudaSuccess) gpu_check(q, cudaMalloc((void **)&r->memory, bytes), "allocating a runner");
    if (q->status == cudaSuccess)
        gpu_check(q, cudaHostAlloc((void **)&g->mailbox, MAILBOXES * sizeof *g->mailbox, cudaHostAllocMapped), "pinning memory");
    if (q->status == cudaSuccess)
        gpu_check(q, cudaHostAlloc((void **)&g->pass, sizeof *g->pass, cudaHostAllocDefault), "pinning memory");
    if (q->status == cudaSuccess) gpu_check(q, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "a stream");
    for (int i = 0; i < 2 && q->status == cudaSuccess; i++)
        gpu_check(q, cudaEventCreateWithFlags(&g->layer_done[i], cudaEventDisableTiming), "an event");
    if (q->status == cudaSuccess) gpu_check(q, cudaEventCreateWithFlags(&g->pass_copied, cudaEventDisableTiming), "an event");
    if (q->status != cudaSuccess) return gpu_failed(q, err);
    layout_runner(r, r->memory);
    if (r->me && m->part.apart) hosts_open(q, &g->hosts, r->me, (size_t)max_int(r->o.chunk, PASS_ROWS_MAX) * (size_t)model_width(m));
    else if (r->me) peers_open(q, &g->peer, r->me, m->device.gpu);
    r->prompt_from = g->prefill.rows ? PREFILL_FROM : 0;
    memset((void *)g->mailbox, 0, MAILBOXES * sizeof *g->mailbox);
    q->stream = g->stream;
    gpu_check(q, cudaMemsetAsync(r->memory, 0, bytes, g->stream), "clearing a runner");
    gpu_begin_experts(r);
    int code = model_has_tables(m) ? gpu_open_tables(r, err) : MOTE_OK;
    if (code) return code;
    if (m->largest.kinds >> LAYER_ATTENTION & 1) gpu_prepare_attention(g, m, &g->layers.attention);
    if (m->drafter) gpu_prepare_attention(g, m->drafter, &g->drafter.layers.attention);
    if (m->largest.kinds >> LAYER_MLA & 1) gpu_prepare_mla(r);
    if (m->c.streams) gpu_prepare_streams(r);
    sampling_parameters greedy;
    memset(&greedy, 0, sizeof greedy);
    greedy.k = 1;
    gpu_put(q, g->greedy, &greedy);
    code = gpu_failed(q, err);
    if (!code && !r->one_slot) code = gpu_imagine_slot(r, KV_GRANULE, &g->capture_base, err);
    if (!code && !r->one_slot) code = gpu_imagine_slot(r, 2 * KV_GRANULE, &g->growth_base, err);
    const int ring = gpu_ring(r);
    if (!code && !r->one_slot && ring < r->o.context) code = gpu_imagine_slot(r, ring + KV_GRANULE, &g->ring_base, err);
    return code;
}

static void gpu_close(mote_runner *r) {
    struct gpu_runner *g = r->gpu;
    if (!g) return;
    if (r->owner == getpid() && cudaSetDevice(r->m->device.gpu) == cudaSuccess) { /* CUDA does not survive a fork */
        if (g->stream) (void)cudaStreamSynchronize(g->stream);
        gpu_forget_graphs(g);
        for (int i = 0; i < 2; i++)
            if (g->layer_done[i]) (void)cudaEventDestroy(g->layer_done[i]);
        if (g->pass_copied) (void)cudaEventDestroy(g->pass_copied);
        if (g->tables_free) (void)cudaEventDestroy(g->tables_free);
        if (g->table_rows) (void)cudaFreeHost(g->table_rows);
        gpu_close_experts(g);
        if (g->stream) (void)cudaStreamDestroy(g->stream);
        if (r->memory) (void)cudaFree(r->memory);
        if (g->mailbox) (void)cudaFreeHost((void *)g->mailbox);
        if (g->pass) (void)cudaFreeHost(g->pass);
        peers_close(&g->peer);
        hosts_close(&g->hosts);
        (void)cudaGetLastError();
    }
    if (r->owner == getpid()) pool_close(r->threads);
    else pool_abandon(r->threads);
    free(g->q.nodes);
    free(g->q.launches);
    free(g->launches);
    free(g->table_numbers);
    free(g->table_tokens);
    free(g->layers.attention.layer_splits);
    free(g->drafter.layers.attention.layer_splits);
    free(g->slots);
    if (r->one_slot) return;
    gpu_forget_slot(&g->capture_base);
    gpu_forget_slot(&g->growth_base);
    gpu_forget_slot(&g->ring_base);
}

/* Captures the graphs that every answer needs, unless another slot had them captured; others are captured when first launched. */
static void gpu_capture_steps(slot *s) {
    struct gpu_runner *g = s->runner->gpu;
    cudaGraphExec_t (*graph)[STEP_ROWS + 1] = g->graph[gpu_drafts(s)];
    const enum gpu_kind kind = gpu_kind_of(s->runner, GPU_LAST_LOGITS);
    for (int T = 1; T <= STEP_ROWS && g->q.status == cudaSuccess; T++)
        if (!graph[kind][T]) graph[kind][T] = gpu_capture(s, T, kind, -1);
    if (!graph[GPU_NO_LOGITS][STEP_ROWS] && g->q.status == cudaSuccess)
        graph[GPU_NO_LOGITS][STEP_ROWS] = gpu_capture(s, STEP_ROWS, GPU_NO_LOGITS, -1);
}

static int gpu_slot_open(slot *s, mote_error *err) {
    const size_t bytes = s->floats * sizeof(float), host = s->host_floats * sizeof(float);
    struct gpu_runner *g = s->runner->gpu;
    gpu_queue *q = &g->q;
    gpu_check(q, cudaSetDevice(s->m->device.gpu), "choosing the GPU");
    if (q->status != cudaSuccess) return gpu_failed(q, err);
    cudaError_t status = cudaMalloc((void **)&s->memory, bytes);
    if (status == cudaSuccess && host) status = cudaHostAlloc((void **)&s->host, host, cudaHostAllocPortable);
    if (status != cudaSuccess) return gpu_fail(err, status, "allocating a session");
    layout_slot(s->memory, s->host, s);
    if (host) memset(s->host, 0, host);
    gpu_check(q, cudaMemsetAsync(s->memory, 0, bytes, g->stream), "clearing a session");
    if (s->runner->one_slot) g->capture_base = g->growth_base = *s;
    step_parameters step = gpu_step_of(s);
    gpu_put(q, s->gpu->step, &step);
    gpu_capture_steps(s);
    return gpu_finish(s, err);
}

static void gpu_slot_close(slot *s) {
    struct gpu_runner *g = s->runner->gpu;
    if (s->runner->owner != getpid() || cudaSetDevice(s->m->device.gpu) != cudaSuccess) return; /* CUDA does not survive a fork */
    if (g->stream) (void)cudaStreamSynchronize(g->stream);
    if (g->resident == s) g->resident = NULL;
    if (s->memory) (void)cudaFree(s->memory);
    if (s->host) (void)cudaFreeHost(s->host);
    (void)cudaGetLastError();
}

static const executor cuda_executor = {
    .kv = MOTE_KV_BF16, .chunk = MAX_CHUNK, .chunk_alignment = PREFILL_ALIGNMENT, .ring_rows = RING_ROWS,
    .shares_memory = 0, .reads_text = 1, .takes_pixels = 1,
    .runner_bytes = sizeof(struct gpu_runner), .slot_bytes = sizeof(struct gpu_slot), .layout_runner = gpu_layout_runner,
    .layout_slot = gpu_layout_slot, .open = gpu_open, .close = gpu_close, .slot_open = gpu_slot_open, .slot_close = gpu_slot_close,
    .forward = gpu_forward, .prompt_rows = gpu_prompt_rows, .prompt = gpu_prompt, .commit_state = gpu_commit_state,
    .draft = gpu_draft_tokens, .logits = gpu_fetch_logits, .copy = gpu_copy, .clear = gpu_clear,
    .finish = gpu_finish, .prepare = gpu_capture_cycles, .can_sample = gpu_samples,
    .step = gpu_step, .cycle = gpu_cycle, .drafted = gpu_drafted, .pass = gpu_pass, .computes = gpu_computes, .vision = gpu_vision,
    .launches = 1, .connect = gpu_connect, .end = gpu_end,
    .invite = gpu_invite, .meet = gpu_meet, .met = gpu_met, .enter = gpu_enter, .choose = gpu_choose, .prepared = gpu_prepared,
    .pass_class = gpu_pass_class, .count_experts = gpu_count_experts};
