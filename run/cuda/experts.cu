/* run/cuda/experts.cu: experts whose home is host memory, on a runner: its slots for them, which steps fill (layers/moe/place.cu), and the copies
   that prompts read. It knows the model and a runner's memory; what is in an expert it does not know.

   A step reads some experts of each layer, and often those that it read before: for that slots are. A prompt reads nearly all of a layer; those
   that are in no slot are brought, in their order, into one of two buffers while the layer before is computed (layers/moe/bring.cu): each byte
   crosses the link once in a prefill chunk, at most. Of the MTP layer a prompt needs keys and values alone, so its experts, which in BF16 are
   several times another layer's, have no space in the buffers: who wants its logits of a whole prompt reads them where they lie. A layer that
   has a slot for each of its experts gets them all when the runner is opened. */

/* The experts of layer i, the MTP layer after the others, if they are in host memory; NULL: they are not, or there are none. */
static const moe_weights *gpu_host_experts(const mote_model *m, int i) {
    const layer *l = model_layer(m, i);
    return m->homes && m->homes[i].in_host && model_has_layer(m, i) ? &l->ffn.w.moe : NULL;
}

/* The layer after i whose experts are in host memory, the MTP layer among them; -1: there is none. */
static int gpu_next_host_layer(const mote_model *m, int i) {
    for (i++; i <= m->c.layers; i++)
        if (gpu_host_experts(m, i)) return i;
    return -1;
}

/* The same of those whose experts are not all in slots. */
static int gpu_next_copied_layer(const mote_runner *r, int i) {
    do i = gpu_next_host_layer(r->m, i);
    while (i >= 0 && r->gpu->slots[i].resident);
    return i;
}

/* Lays out slots, tables and, where prompts have a path of their own, copies of a layer. */
static void gpu_layout_experts(layout *l, mote_runner *r) {
    const mote_model *m = r->m;
    struct gpu_runner *g = r->gpu;
    size_t largest = 0;
    g->expert_seen = NULL;
    g->copy[0] = g->copy[1] = NULL;
    if (gpu_next_host_layer(m, -1) < 0) return;
    g->expert_seen = (unsigned long long *)layout_bytes(l, ((size_t)m->c.layers + 1) * MOE_SEEN * sizeof *g->expert_seen);
    for (int i = gpu_next_host_layer(m, -1); i >= 0; i = gpu_next_host_layer(m, i)) {
        const moe_weights *w = gpu_host_experts(m, i);
        const size_t experts = (size_t)w->shape.experts, count = (size_t)min_int(r->expert_slots, w->shape.experts);
        moe_slots unused, *to = g->slots ? &g->slots[i] : &unused;
        const size_t piece = m->homes[i].bytes / experts;   /* also of a model without its weights */
        to->resident = count == experts;
        if (!to->resident && i < m->c.layers) largest = max_size(largest, m->homes[i].bytes);
        to->count = (int)count;
        to->piece = (int64_t)piece;
        to->host = w->host_at;
        to->at = (int64_t *)layout_bytes(l, experts * sizeof *to->at);
        to->order = (uint32_t *)layout_bytes(l, experts * sizeof *to->order);
        to->recent = (uint16_t *)layout_bytes(l, MOE_RECENT * sizeof *to->recent);
        to->ready = (uint32_t *)layout_bytes(l, sizeof *to->ready);
        to->seen = g->expert_seen ? g->expert_seen + (size_t)i * MOE_SEEN : NULL;
        to->memory = (char *)layout_bytes(l, count * piece);
    }
    if (!largest || !g->prefill.rows || m->device.integrated) return;
    for (int b = 0; b < 2; b++) {
        g->copy[b] = (char *)layout_bytes(l, largest);
        g->copied_parts[b] = (uint32_t *)layout_bytes(l, GPU_EXPERTS * sizeof **g->copied_parts);
    }
    g->copy_wanted = (uint32_t *)layout_bytes(l, GPU_EXPERTS * sizeof *g->copy_wanted);
}

/* No slot has an expert yet; if there is one for each, it has. */
static void gpu_begin_slots(struct gpu_runner *g, const moe_slots *s, const moe_weights *w) {
    uint32_t order[GPU_EXPERTS];
    uint16_t recent[MOE_RECENT];
    int64_t at[GPU_EXPERTS];
    for (int i = 0; i < s->count; i++) order[i] = (uint32_t)(s->resident ? i : PLACE_NONE) << 16 | (uint32_t)i;
    for (int i = 0; i < MOE_RECENT; i++) recent[i] = (uint16_t)(i % w->shape.experts);
    for (int i = 0; i < w->shape.experts; i++) at[i] = (s->resident ? s->memory - s->host : 0) + i * s->piece;
    if (s->resident) gpu_move(&g->q, s->memory, s->host, (size_t)s->count * (size_t)s->piece, "copying experts");
    gpu_move(&g->q, s->at, at, (size_t)w->shape.experts * sizeof *at, "the table of experts");
    gpu_move(&g->q, s->order, order, (size_t)s->count * sizeof *order, "the order of slots");
    gpu_move(&g->q, s->recent, recent, sizeof recent, "simulated routing");
}

/* Before the runner's memory is laid out: places for what that is. */
static void gpu_open_experts(mote_runner *r) {
    struct gpu_runner *g = r->gpu;
    gpu_queue *q = &g->q;
    if (gpu_next_host_layer(r->m, -1) < 0) return;
    g->slots = (moe_slots *)calloc((size_t)r->m->c.layers + 1, sizeof *g->slots);
    gpu_check(q, g->slots ? cudaSuccess : cudaErrorMemoryAllocation, "slots of experts");
    g->copied_layer[0] = g->copied_layer[1] = -1;
    int least = 0, greatest = 0;                            /* its few blocks shall begin before those of the layers that wait for them */
    if (q->status == cudaSuccess) gpu_check(q, cudaDeviceGetStreamPriorityRange(&least, &greatest), "a stream");
    if (q->status == cudaSuccess) gpu_check(q, cudaStreamCreateWithPriority(&g->copies, cudaStreamNonBlocking, greatest), "a stream");
    if (q->status == cudaSuccess) gpu_check(q, cudaStreamCreateWithFlags(&g->counts, cudaStreamNonBlocking), "a stream");
    for (int b = 0; b < 2 && q->status == cudaSuccess; b++) {
        gpu_check(q, cudaEventCreateWithFlags(&g->copy_full[b], cudaEventDisableTiming), "an event");
        if (q->status == cudaSuccess) gpu_check(q, cudaEventCreateWithFlags(&g->copy_free[b], cudaEventDisableTiming), "an event");
    }
}

/* When it is laid out, and cleared. */
static void gpu_begin_experts(mote_runner *r) {
    struct gpu_runner *g = r->gpu;
    if (!g->slots) return;
    for (int i = gpu_next_host_layer(r->m, -1); i >= 0; i = gpu_next_host_layer(r->m, i))
        if (g->slots[i].count) gpu_begin_slots(g, &g->slots[i], gpu_host_experts(r->m, i));
    g->layers.moe.slots = g->slots;
}

/* With the stream idle. */
static void gpu_close_experts(struct gpu_runner *g) {
    if (g->copies) (void)cudaStreamSynchronize(g->copies);
    for (int b = 0; b < 2; b++) {
        if (g->copy_full[b]) (void)cudaEventDestroy(g->copy_full[b]);
        if (g->copy_free[b]) (void)cudaEventDestroy(g->copy_free[b]);
    }
    if (g->copies) (void)cudaStreamDestroy(g->copies);
    if (g->counts) (void)cudaStreamDestroy(g->counts);
}

/* What buffer b is to layer i. */
static moe_brought gpu_brought_of(const mote_runner *r, int i, int b) {
    struct gpu_runner *g = r->gpu;
    const moe_weights *w = gpu_host_experts(r->m, i);
    const moe_brought brought = {.host = w->host_at,
                                 .piece = (int64_t)w->piece,
                                 .experts = w->shape.experts,
                                 .wanted_only = 0,
                                 .at = moe_expert_table(&g->layers.moe, w, i),
                                 .to = g->copy[b],
                                 .parts = g->copied_parts[b],
                                 .wanted = g->copy_wanted,
                                 .bytes = g->slots[i].seen + MOE_SEEN_BROUGHT};
    return brought;
}

/* Starts to copy the experts of layer i, when all that was launched is done: it may have read the buffer's last ones. With slots for less than an
   eighth of them that is the copy engine's, which takes no SM: on an H200 it brings 7 % more in a second. Returns the buffer. */
static int gpu_copy_experts(mote_runner *r, const prefill_rows *rows, int i) {
    struct gpu_runner *g = r->gpu;
    const size_t bytes = r->m->homes[i].bytes;
    const int b = g->copy_next, whole = 8 * g->slots[i].count < gpu_host_experts(r->m, i)->shape.experts;
    const moe_brought brought = gpu_brought_of(r, i, b);
    gpu_check(&g->q, cudaEventRecord(g->copy_free[b], rows->stream), "copying experts");
    gpu_check(&g->q, cudaStreamWaitEvent(g->copies, g->copy_free[b], 0), "copying experts");
    gpu_check(&g->q, cudaMemsetAsync(brought.parts, whole ? 0xff : 0, GPU_EXPERTS * sizeof *brought.parts, g->copies), "copying experts");
    if (whole) {
        gpu_check(&g->q, cudaMemcpyAsync(brought.to, brought.host, bytes, cudaMemcpyHostToDevice, g->copies), "copying experts");
        __atomic_add_fetch(&g->copied_bytes, bytes, __ATOMIC_RELAXED);
    } else {
        gpu_experts_bring<<<PLACE_BLOCKS, GPU_THREADS, 0, g->copies>>>(brought);
        gpu_check(&g->q, cudaGetLastError(), "copying experts");
    }
    gpu_check(&g->q, cudaEventRecord(g->copy_full[b], g->copies), "copying experts");
    g->copied_layer[b] = i;
    g->copy_next = !b;
    return b;
}

/* Whether rows choose so few of a layer's experts that copying those which they do not would take longer than it takes to route them: of experts
   chosen at random this leaves out nearly two of a hundred of 128 rows, and more of fewer; of those of real text many more. */
static int gpu_chooses_few(const moe_shape *s, int T) {
    return (int64_t)T * s->top_k <= 4 * (int64_t)s->experts;
}

/* Buffer 0, with nothing in it. */
static int gpu_copy_nothing(mote_runner *r, const prefill_rows *rows) {
    struct gpu_runner *g = r->gpu;
    gpu_check(&g->q, cudaStreamWaitEvent(rows->stream, g->copy_full[0], 0), "copying experts");
    gpu_check(&g->q, cudaMemsetAsync(g->copied_parts[0], 0, GPU_EXPERTS * sizeof **g->copied_parts, rows->stream), "copying experts");
    return 0;
}

/* Layer i of a prompt is launched next: it finds its experts by moe_gpu.brought, and those of the model's next layer are on their way. Returns the
   buffer, for gpu_release_experts; -1: it has none. */
static int gpu_bring_experts(mote_runner *r, const prefill_rows *rows, int i) {
    struct gpu_runner *g = r->gpu;
    const moe_weights *w = gpu_host_experts(r->m, i);
    const int next = gpu_next_copied_layer(r, i);
    if (!g->copy[0] || !w || g->slots[i].resident) return -1;
    const int few = gpu_chooses_few(&w->shape, rows->T);
    const int b = few ? gpu_copy_nothing(r, rows) : g->copied_layer[0] == i ? 0 : g->copied_layer[1] == i ? 1 : gpu_copy_experts(r, rows, i);
    if (!few && next >= 0 && next < r->m->c.layers) (void)gpu_copy_experts(r, rows, next);
    gpu_check(&g->q, cudaStreamWaitEvent(rows->stream, g->copy_full[b], 0), "copying experts");
    g->brought = gpu_brought_of(r, i, b);
    g->layers.moe.brought = &g->brought;
    return b;
}

/* The layer is launched. */
static void gpu_release_experts(mote_runner *r, int b) {
    struct gpu_runner *g = r->gpu;
    g->layers.moe.brought = NULL;
    if (b >= 0) g->copied_layer[b] = -1;
}

/* Adds what steps have found in slots, and what crossed the link. From any thread. */
static int gpu_count_experts(const mote_runner *r, mote_experts_seen *to, mote_error *err) {
    const mote_model *m = r->m;
    struct gpu_runner *g = r->gpu;
    const size_t n = ((size_t)m->c.layers + 1) * MOE_SEEN;
    if (!g->slots) return MOTE_OK;
    unsigned long long *seen = (unsigned long long *)calloc(n, sizeof *seen);
    if (!seen) return fail_memory(err);
    cudaError_t status = cudaSetDevice(m->device.gpu);
    if (status == cudaSuccess) status = cudaMemcpyAsync(seen, g->expert_seen, n * sizeof *seen, cudaMemcpyDeviceToHost, g->counts);
    if (status == cudaSuccess) status = cudaStreamSynchronize(g->counts);
    to->bytes += __atomic_load_n(&g->copied_bytes, __ATOMIC_RELAXED);
    for (int i = gpu_next_host_layer(m, -1); i >= 0; i = gpu_next_host_layer(m, i)) {
        const unsigned long long *of = seen + (size_t)i * MOE_SEEN;
        to->hits += of[MOE_SEEN_HITS];
        to->misses += of[MOE_SEEN_MISSES];
        to->passes = to->passes > of[MOE_SEEN_PASSES] ? to->passes : of[MOE_SEEN_PASSES];
        to->bytes += of[MOE_SEEN_MISSES] * gpu_host_experts(m, i)->piece + of[MOE_SEEN_BROUGHT];
    }
    free(seen);
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "counting experts");
}
