/* diagnose/measure.cu: times steps on a GPU, by CUDA events, and describes the kernels that ran. It captures graphs with
   the functions of run/cuda/step.cu, and overwrites the session's state. Nothing but the diagnose calls of the API uses it.

   A step cut down to some stages computes nothing of use, but touches the same memory in the same order. So the caller
   empties the timeline before and after. */

/* Bytes that these stages of one layer read. */
static uint64_t layer_bytes(const layer *l, unsigned stages, const traffic *of) {
    uint64_t n = 0;
    for (int i = 0; i < STAGE_COUNT; i++)
        if (stage_in(stages, (enum stage)i))
            n += sublayer_bytes(&l->mixer, (enum stage)i, of) +
                 sublayer_bytes(&l->ffn, (enum stage)i, of);
    return n;
}

/* Bytes of what makes the MTP layer's input. */
static uint64_t mtp_bytes(const mtp_layer *w) {
    return matrix_bytes(&w->fc) + (w->fc_embedding.rows ? matrix_bytes(&w->fc_embedding) : 0);
}

/* Bytes that these stages of a step read, with chosen[i] distinct experts in layer i and `length` tokens of KV. */
static uint64_t step_bytes(const mote_session *s, unsigned stages, const int32_t *chosen, int length) {
    const mote_model *m = s->m;
    uint64_t n = stage_in(stages, STAGE_HEAD) ? matrix_bytes(&m->lm_head) : 0;
    if (stage_in(stages, STAGE_STREAMS)) n += streams_bytes(&m->mixer);
    traffic of = {0, length, kv_type_of(s->o.kv)};
    for (int i = 0; i < m->c.layers; i++) {
        of.experts = chosen[i];
        n += layer_bytes(&m->layers[i], stages, &of);
    }
    if (stage_in(stages, STAGE_MTP) && s->slot.has_mtp) n += mtp_bytes(&m->mtp) + cache_row_bytes(&m->mtp.layer.mixer);
    return n;
}

/* Bytes read to make one draft. */
static uint64_t draft_bytes(const mote_session *s, int length) {
    const mote_model *m = s->m;
    traffic of = {m->largest.moe.top_k, length, kv_type_of(s->o.kv)};
    return mtp_bytes(&m->mtp) + streams_bytes(&m->mtp.mixer) + layer_bytes(&m->mtp.layer, ALL_STAGES, &of) + matrix_bytes(&m->draft_head);
}

/* Random token ids for step number i. */
static void measure_ids(const mote_session *s, int i, int T, int32_t *ids) {
    for (int t = 0; t < T; t++) {
        uint64_t random = ((uint64_t)i * MOTE_ROWS_MAX + (uint64_t)t + 1) * 6364136223846793005u + 1442695040888963407u;
        ids[t] = (int32_t)((random >> 33) % (uint64_t)s->m->c.vocab);
    }
}

/* Sets the timeline's length to where step number i begins, from m->depth on, without computing the tokens before. */
static void measure_place(mote_session *s, const mote_measurement *m, int i) {
    int left = s->o.context - m->rows - m->depth;
    s->count = m->depth + (left > 0 ? i * m->rows % (left + 1) : 0);
    s->pending = s->accepted = i ? m->rows : 0;
}

static int by_seconds(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prepares step number i: timeline and step_parameters. A cycle continues where the last one ended while the context has space. */
static void measure_begin(mote_session *s, const mote_measurement *m, int i, int is_cycle) {
    int32_t ids[MOTE_ROWS_MAX];
    int span = (s->o.context - m->depth) / m->rows - 1;
    if (is_cycle && i % (span > 1 ? span : 1)) return;
    measure_place(s, m, is_cycle ? 0 : i);
    measure_ids(s, i, m->rows, ids);
    const block b = timeline_block(s, ids, m->rows);
    gpu_set_step(&s->slot, &b, b.replay, 0);
    s->decoder->spec.next = ids[0];
    s->decoder->spec.drafts = m->drafts;
}

/* Queues 8 warm-up steps, then m->steps steps between CUDA events; writes the seconds of each, in ascending order. */
static void measure_events(mote_session *s, const mote_measurement *m, cudaGraphExec_t graph, int is_cycle,
                           double *seconds_of) {
    struct gpu_runner *g = s->slot.runner->gpu;
    gpu_queue *q = &g->q;
    cudaEvent_t *event = (cudaEvent_t *)calloc((size_t)m->steps * 2, sizeof *event);
    if (!gpu_check(q, event ? cudaSuccess : cudaErrorMemoryAllocation, "timing")) return;
    for (int i = 0; i < 2 * m->steps; i++) gpu_check(q, cudaEventCreate(&event[i]), "timing");
    for (int i = -8; i < m->steps && q->status == cudaSuccess; i++) {
        measure_begin(s, m, i + 8, is_cycle);
        if (i >= 0) gpu_check(q, cudaEventRecord(event[2 * i], q->stream), "timing");
        gpu_check(q, cudaGraphLaunch(graph, q->stream), "timing");
        g->sequence += (uint32_t)is_cycle;                      /* a cycle posts to the mailbox */
        if (i >= 0) gpu_check(q, cudaEventRecord(event[2 * i + 1], q->stream), "timing");
    }
    gpu_check(q, cudaStreamSynchronize(q->stream), "timing");
    for (int i = 0; i < m->steps; i++) {
        float ms = 0;
        if (q->status == cudaSuccess) gpu_check(q, cudaEventElapsedTime(&ms, event[2 * i], event[2 * i + 1]), "timing");
        seconds_of[i] = ms * 1e-3;
    }
    for (int i = 0; i < 2 * m->steps; i++)
        if (event[i]) (void)cudaEventDestroy(event[i]);
    free(event);
    qsort(seconds_of, (size_t)m->steps, sizeof *seconds_of, by_seconds);
}

/* Captures a graph for T rows and `drafts`, as gpu_capture takes them, and times it. */
static void measure_graph(mote_session *s, const mote_measurement *m, int T, int drafts, double *seconds_of) {
    enum gpu_kind kind = T == 1 && drafts < 0 ? GPU_LAST_LOGITS : GPU_ALL_LOGITS;
    cudaGraphExec_t graph = gpu_capture(&s->slot, T, kind, drafts);
    if (graph) measure_events(s, m, graph, T && drafts >= 0, seconds_of);
    if (graph) (void)cudaGraphExecDestroy(graph);
}

/* Seconds of a step on the host's clock, as a caller of mote_step (one row), timeline_forward (several) or pass_begin (cycle) sees. */
static double measure_wall(mote_session *s, mote_measurement *m, mote_error *err) {
    int32_t ids[MOTE_ROWS_MAX];
    double start = 0;
    uint64_t tokens = 0;
    for (int i = -4; i < m->steps; i++) {
        int code = MOTE_OK, n = 1;
        if (i == 0) {
            if (gpu_finish(&s->slot, err)) return 0;
            start = seconds();
        }
        if (m->drafts) {
            measure_begin(s, m, i + 4, 1);
            decode_pass p = {};
            code = pass_on_device(s, NULL, NULL, m->drafts, m->drafts, &p, err);
            n = p.accepted;
            if (!code) timeline_keep(s, n);
        } else {
            measure_place(s, m, i + 4);
            measure_ids(s, i + 4, m->rows, ids);
            if (m->rows == 1 && i > -4) code = mote_step(s, NULL, ids, err);
            else code = timeline_forward(s, ids, m->rows, 1, NULL, NULL, err);
            if (!code && m->rows > 1) code = gpu_finish(&s->slot, err);
        }
        if (code) return 0;
        if (i >= 0) tokens += (uint64_t)n;
    }
    if (gpu_finish(&s->slot, err)) return 0;
    m->tokens = (double)tokens / m->steps;
    return (seconds() - start) / m->steps;
}

/* Random tokens from now on, and drafts accepted at these rates; NULL: no longer. */
static void runner_simulate(struct gpu_runner *g, const double *accept) {
    sampling_parameters greedy;
    memset(&greedy, 0, sizeof greedy);
    memset(&g->simulated, 0, sizeof g->simulated);
    greedy.k = 1;
    if (accept) {
        g->simulated.on = 1;
        for (int i = 0; i < MOTE_ROWS_MAX - 1; i++) g->simulated.accept[i] = (float)accept[i];
    }
    greedy.simulated = g->simulated;
    gpu_put(&g->q, g->greedy, &greedy);
}

/* The same for cycles of a session, with experts shared at m's overlap. m NULL: off. */
static void measure_simulate(mote_session *s, const mote_measurement *m) {
    struct gpu_runner *g = s->slot.runner->gpu;
    sampling_parameters parameters;
    runner_simulate(g, m ? m->accept : NULL);
    memset(&parameters, 0, sizeof parameters);
    parameters.k = 1;
    parameters.simulated = g->simulated;
    g->layers.moe.overlap = m ? (uint32_t)(m->overlap * 0xffffffffu) : 0;
    gpu_set_sampling(&s->slot, &parameters);
}

/* Simulated routing from now on; locality below 0: no longer. */
static int gpu_simulate_experts(mote_session *s, double locality, mote_error *err) {
    mote_runner *r = s->slot.runner;
    struct gpu_runner *g = r->gpu;
    int code = runner_enter(r, &s->slot, err);
    if (code) return code;
    code = gpu_enter(&s->slot, err);
    if (!code) code = gpu_finish(&s->slot, err);            /* the graphs may still run */
    if (!code) {
        gpu_forget_graphs(g);
        g->layers.moe.locality = locality < 0 ? 0 : (uint32_t)(locality * 0xffffffffu) | 1;
    }
    runner_leave(r);
    return code;
}

/* stages: those to run. */
static int measure_step(mote_session *s, mote_measurement *m, unsigned stages, mote_error *err) {
    struct gpu_runner *g = s->slot.runner->gpu;
    double *of = (double *)malloc((size_t)m->steps * sizeof *of);
    int32_t *chosen = (int32_t *)calloc((size_t)s->m->c.layers + 1, sizeof *chosen);
    int code = of && chosen ? gpu_enter(&s->slot, err) : fail_memory(err);
    m->tokens = 1;
    m->verify = m->choose = m->draft = 0;
    if (!code) {
        g->q.stages = stages;
        if (m->drafts) {
            measure_graph(s, m, 0, m->drafts, of);
            m->draft = of[m->steps / 2];
            measure_graph(s, m, m->rows, -1, of);
            m->verify = of[m->steps / 2];
        }
        measure_graph(s, m, m->rows, m->drafts ? m->drafts : -1, of);
        g->q.stages = ALL_STAGES;
        code = gpu_failed(&s->slot.runner->gpu->q, err);
    }
    if (!code) code = slot_copy(&s->slot, chosen, g->chosen, ((size_t)s->m->c.layers + 1) * sizeof *chosen, err);
    if (!code) {
        m->fastest = of[0];
        m->median = of[m->steps / 2];
        m->slowest = of[m->steps - 1];
        if (m->drafts) m->choose = m->median - m->verify - m->draft;
        m->bytes = step_bytes(s, stages, chosen, m->depth + m->rows);
        if (m->drafts) m->bytes += (uint64_t)m->drafts * draft_bytes(s, m->depth + m->rows);
        m->wall = stages == ALL_STAGES ? measure_wall(s, m, err) : 0;
        code = gpu_failed(&s->slot.runner->gpu->q, err);
    }
    free(of);
    free(chosen);
    return code;
}

/* measure_step for cycles, with simulation on. A captured graph contains the simulated overlap, so the session's graph of
   this cycle is set aside, and the one captured meanwhile destroyed. */
static int measure_cycle(mote_session *s, mote_measurement *m, mote_error *err) {
    struct gpu_runner *g = s->slot.runner->gpu;
    cudaGraphExec_t none = NULL, *graph = m->rows > STEP_ROWS ? &none : &g->cycle[m->rows][m->drafts], kept = *graph;
    *graph = NULL;
    gpu_forget_passes(g);
    measure_simulate(s, m);
    int code = measure_step(s, m, ALL_STAGES, err);
    measure_simulate(s, NULL);
    if (*graph) (void)cudaGraphExecDestroy(*graph);
    *graph = kept;
    gpu_forget_passes(g);
    s->decoder->spec.next = -1;
    s->decoder->spec.drafts = 0;
    return code;
}

/* Reads n * 16 bytes with four 16-byte loads in flight a thread; the store keeps the compiler from dropping them. */
static __global__ void gpu_read(const uint4 *from, size_t n, uint32_t *out) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, all = (size_t)gridDim.x * blockDim.x;
    uint32_t mixed = 0;
    for (; i + 3 * all < n; i += 4 * all)
        for (int j = 0; j < 4; j++) {
            uint4 v = __ldcs(from + i + j * all);
            mixed ^= v.x ^ v.y ^ v.z ^ v.w;
        }
    if (mixed == 0x9e3779b9u) *out = mixed;
}

/* *best = bytes per second of the best of 8 passes over `bytes` of memory. */
static cudaError_t read_speed(const mote_model *m, const void *from, size_t bytes, uint32_t *out, double *best) {
    cudaEvent_t begin = NULL, end = NULL;
    cudaError_t status = cudaEventCreate(&begin);
    if (status == cudaSuccess) status = cudaEventCreate(&end);
    *best = 0;
    for (int i = 0; i < 8 && status == cudaSuccess; i++) {
        float ms = 0;
        status = cudaEventRecord(begin);
        gpu_read<<<(unsigned)m->device.sms * 8, GPU_THREADS>>>((const uint4 *)from, bytes / 16, out);
        if (status == cudaSuccess) status = cudaGetLastError();
        if (status == cudaSuccess) status = cudaEventRecord(end);
        if (status == cudaSuccess) status = cudaEventSynchronize(end);
        if (status == cudaSuccess) status = cudaEventElapsedTime(&ms, begin, end);
        if (ms > 0 && (double)bytes / ms * 1e3 > *best) *best = (double)bytes / ms * 1e3;
    }
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    return status;
}

/* to = the kernel's demangled name as the driver knows it, without parameters: "gpu_project<gpu_norm_rows, 1>". */
static void kernel_name(const void *kernel, char *to, size_t size) {
    const char *mangled = "?";
    int failed = -1;
    if (cudaFuncGetName(&mangled, kernel) != cudaSuccess) (void)cudaGetLastError();
    char *name = abi::__cxa_demangle(mangled, NULL, NULL, &failed);
    const char *text = failed ? mangled : name, *end = strchr(text, '(');
    if (!strncmp(text, "void ", 5)) text += 5;
    snprintf(to, size, "%.*s", end ? (int)(end - text) : (int)strlen(text), text);
    free(name);
}

/* A launch of `shared` bytes of dynamic shared memory; what the kernel alone does not tell is the caller's: stage, format, rows, layer. */
static cudaError_t describe_launch(const void *kernel, dim3 grid, unsigned block, size_t shared, char *name, size_t size, mote_launch *l) {
    cudaFuncAttributes about;
    cudaError_t status = cudaFuncGetAttributes(&about, kernel);
    if (status != cudaSuccess) return status;
    kernel_name(kernel, name, size);
    l->kernel = name;
    l->arch = about.binaryVersion;
    l->grid[0] = (int)grid.x;
    l->grid[1] = (int)grid.y;
    l->grid[2] = (int)grid.z;
    l->block = (int)block;
    l->registers = about.numRegs;
    l->shared_bytes = (int)(about.sharedSizeBytes + shared);
    l->stack_bytes = (int)about.localSizeBytes;
    return cudaSuccess;
}
