/* diagnose/gpu.cu: what diagnose.c asks of a GPU. Nobody else may use the session's runner meanwhile. */

/* Rows of a prompt that can be measured; 0: none. */
static int gpu_measured_rows(const mote_session *s) {
    return s->slot.gpu ? s->slot.runner->gpu->prefill.rows : 0;
}

enum { LAUNCH_NAME = 96 };           /* bytes of a kernel's name */

/* Room for `count` launches, owned by the runner; *names: for their names, LAUNCH_NAME bytes each. NULL: there is no memory. */
static mote_launch *new_launches(struct gpu_runner *g, size_t count, char **names) {
    free(g->launches);
    g->launches = (mote_launch *)calloc(count + 1, sizeof *g->launches + LAUNCH_NAME);
    *names = (char *)(g->launches + count + 1);
    return g->launches;
}

/* Fills *count launches of a step or a block of `rows` rows, as they are recorded; not submitted. */
static int describe_step(mote_session *s, int rows, size_t *count, mote_error *err) {
    struct gpu_runner *g = s->slot.runner->gpu;
    gpu_queue *q = &g->q;
    const gpu_form form = gpu_form_of(&s->slot, rows);
    gpu_record_step(&form, q, rows == 1 ? GPU_LAST_LOGITS : GPU_ALL_LOGITS);
    const size_t recorded = (size_t)q->count;
    char *names;
    q->count = 0;
    if (!new_launches(g, recorded, &names)) return fail_memory(err);
    enum stage stage = STAGE_EMBED;
    for (size_t i = 0; i < recorded && q->status == cudaSuccess; i++) {
        const gpu_launch_record *n = &q->launches[i];
        mote_launch *l = &g->launches[i];
        stage = gpu_stage_of(&q->nodes[i], stage);
        l->stage = stage_names[stage];
        l->format = n->format;
        l->rows = rows;
        l->layer = q->nodes[i].layer;
        gpu_check(q, describe_launch(n->kernel, n->grid, GPU_THREADS, n->shared, names + i * LAUNCH_NAME, LAUNCH_NAME, l),
                  "describing the launches");
    }
    *count = recorded;
    return gpu_failed(q, err);
}

/* The name of the format that a kernel is made for; "": none. */
static const char *format_of_kernel(const char *kernel) {
#define X(NAME, of) if (strstr(kernel, "format_" #of ",") || strstr(kernel, "format_" #of ">")) return formats[FORMAT_##NAME]->name;
    FORMATS(X)
#undef X
    return "";
}

/* What the stages r->stages of layer r->layer launch for the rows of a prompt: captured, never run. NULL: it failed. */
static cudaGraph_t capture_prompt(mote_session *s, const prefill_rows *r) {
    struct gpu_runner *g = s->slot.runner->gpu;
    cudaGraph_t graph = NULL;
    if (!gpu_check(&g->q, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), "capturing a prompt")) return NULL;
    const cudaError_t status = layer_run_prefill(r, &s->m->layers[r->layer], &g->layers, &s->slot.state[r->layer]);
    gpu_check(&g->q, cudaStreamEndCapture(r->stream, &graph), "capturing a prompt");
    gpu_check(&g->q, status, "a layer");
    return graph;
}

/* Describes the kernels of a graph of these rows and this stage in g->launches from *count on, as far as `most`. */
static void describe_graph(struct gpu_runner *g, cudaGraph_t graph, const prefill_rows *r, enum stage stage, size_t *count, size_t most,
                           char *names) {
    enum { NODES = 64 };
    cudaGraphNode_t nodes[NODES];
    size_t n = NODES;
    gpu_check(&g->q, cudaGraphGetNodes(graph, nodes, &n), "describing a prompt");
    for (size_t i = 0; i < n && *count < most && g->q.status == cudaSuccess; i++) {
        enum cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
        cudaKernelNodeParams p = {};
        gpu_check(&g->q, cudaGraphNodeGetType(nodes[i], &type), "describing a prompt");
        if (type != cudaGraphNodeTypeKernel) continue;      /* memory that is cleared */
        mote_launch *l = &g->launches[*count];
        char *name = names + (*count)++ * LAUNCH_NAME;
        if (gpu_check(&g->q, cudaGraphKernelNodeGetParams(nodes[i], &p), "describing a prompt"))
            gpu_check(&g->q, describe_launch(p.func, p.gridDim, p.blockDim.x, p.sharedMemBytes, name, LAUNCH_NAME, l), "describing a prompt");
        l->stage = stage_names[stage];
        l->format = format_of_kernel(name);
        l->rows = r->T;
        l->layer = r->layer;
    }
}

/* Fills *count launches of all layers over a prompt's first `rows` rows: captured once to count them, and again to describe them. */
static int describe_prompt(mote_session *s, int rows, size_t *count, mote_error *err) {
    struct gpu_runner *g = s->slot.runner->gpu;
    prefill_rows r = prefill_rows_of(&s->slot, rows, 0);
    size_t most = 0;
    char *names = NULL;
    *count = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass && !new_launches(g, most, &names)) return fail_memory(err);
        for (int i = 0; i < s->m->c.layers * STAGE_COUNT && g->q.status == cudaSuccess; i++) {
            size_t n = 0;
            r.layer = i / STAGE_COUNT;
            r.stages = 1u << i % STAGE_COUNT;
            cudaGraph_t graph = capture_prompt(s, &r);
            if (!graph) break;
            if (pass) describe_graph(g, graph, &r, (enum stage)(i % STAGE_COUNT), count, most, names);
            else gpu_check(&g->q, cudaGraphGetNodes(graph, NULL, &n), "counting the launches");
            (void)cudaGraphDestroy(graph);
            most += n;
        }
    }
    return gpu_failed(&g->q, err);
}

static int gpu_launches(mote_session *s, int rows, const mote_launch **launches, size_t *count, mote_error *err) {
    mote_runner *r = s->slot.runner;
    int code = runner_enter(r, &s->slot, err);
    if (code) return code;
    code = gpu_enter(&s->slot, err);
    if (!code) code = rows > PASS_ROWS_MAX ? describe_prompt(s, rows, count, err) : describe_step(s, rows, count, err);
    runner_leave(r);
    *launches = r->gpu->launches;
    return code;
}

/* Counts the kernels of these stages in a step. */
static int count_launches(mote_session *s, mote_measurement *m, unsigned stages, mote_error *err) {
    const mote_launch *launches;
    size_t count;
    int code = gpu_launches(s, m->rows, &launches, &count, err);
    m->launches = 0;
    for (size_t i = 0; !code && i < count; i++)
        for (int stage = 0; stage < STAGE_COUNT; stage++)
            m->launches += stage_in(stages, (enum stage)stage) && !strcmp(launches[i].stage, stage_names[stage]);
    return code;
}

static int gpu_measure(mote_session *s, mote_measurement *m, unsigned stages, mote_error *err) {
    const int prompt = m->rows > MOTE_ROWS_MAX;
    int code = prompt ? MOTE_OK : count_launches(s, m, stages, err);
    if (!code) code = timeline_reset(s, err);
    if (!code && prompt) code = measure_prefill(s, m, stages, err);
    else if (!code) code = m->drafts ? measure_cycle(s, m, err) : measure_step(s, m, stages, err);
    int cleared = timeline_reset(s, code ? NULL : err);
    return code ? code : cleared;
}

/* What each layer of a runner has counted, to chosen[layers]. */
static int gpu_chosen(const mote_runner *r, int32_t *chosen, mote_error *err) {
    struct gpu_runner *g = r->gpu;
    gpu_check(&g->q, cudaMemcpyAsync(chosen, g->chosen, (size_t)r->m->c.layers * sizeof *chosen, cudaMemcpyDefault, g->stream), "counting");
    gpu_check(&g->q, cudaStreamSynchronize(g->stream), "counting");
    return gpu_failed(&g->q, err);
}

static int gpu_simulate(mote_runner *r, const double *accept, mote_error *err) {
    int code = runner_enter(r, NULL, err);
    if (code) return code;
    for (int k = 0; k < runners_of(r) && !code; k++) {
        const mote_runner *of = runner_number(r, k);
        gpu_check(&of->gpu->q, cudaSetDevice(of->m->device.gpu), "choosing the GPU");
        runner_simulate(of->gpu, accept);
        code = gpu_failed(&of->gpu->q, err);
    }
    runner_leave(r);
    return code;
}

/* Of the weights, or, where they are few and would stay in the L2, of other memory. */
static int gpu_measure_read(const mote_model *m, double *bytes_per_second, mote_error *err) {
    const size_t enough = (size_t)1 << 30, bytes = max_size(m->arena_size, enough);
    uint32_t *out = NULL;
    char *more = NULL;
    cudaError_t status = cudaSetDevice(m->device.gpu);
    if (status == cudaSuccess) status = cudaMalloc((void **)&out, sizeof *out);
    if (status == cudaSuccess && m->arena_size < enough) status = cudaMalloc((void **)&more, bytes);
    if (status == cudaSuccess && more) status = cudaMemset(more, 1, bytes);
    if (status == cudaSuccess) status = read_speed(m, more ? more : m->arena, bytes, out, bytes_per_second);
    (void)cudaFree(out);
    (void)cudaFree(more);
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "measuring the read speed");
}

/* The best of some copies of `bytes` bytes, in seconds. */
static double copy_seconds(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaError_t *status) {
    double best = 1e30;
    for (int i = 0; i < 5 && *status == cudaSuccess; i++) {
        const double start = seconds();
        *status = cudaMemcpyAsync(to, from, bytes, kind, 0);
        if (*status == cudaSuccess) *status = cudaDeviceSynchronize();
        best = fmin(best, seconds() - start);
    }
    return best;
}

static int gpu_measure_link(const mote_model *m, double *link, double *memory, mote_error *err) {
    const size_t bytes = (size_t)128 << 20;
    char *host = NULL, *device = NULL;
    cudaError_t status = cudaSetDevice(m->device.gpu);
    if (status == cudaSuccess) status = cudaHostAlloc((void **)&host, bytes, cudaHostAllocDefault);
    if (status == cudaSuccess) status = cudaMalloc((void **)&device, 2 * bytes);
    if (status == cudaSuccess) status = cudaMemset(device, 0, 2 * bytes);
    *link = (double)bytes / copy_seconds(device, host, bytes, cudaMemcpyHostToDevice, &status);
    *memory = 2 * (double)bytes / copy_seconds(device, device + bytes, bytes, cudaMemcpyDeviceToDevice, &status);
    (void)cudaFree(device);
    if (host) (void)cudaFreeHost(host);
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "measuring the link to the host's memory");
}

/* All tests of a synthetic model. tokens, prompt: seeds for try_definition and try_whole; prompt 0: not the latter, nor try_format. */
static void try_model(selftest *t, const char *name, uint64_t tokens, uint64_t prompt) {
    static const int widths[] = {28, 40, 96, 136, 160, 2048};
    int real = !strncmp(name, "small", 5);                  /* has the sizes that the kernels are made for */
    mote_options o;
    memset(&o, 0, sizeof o);
    t->name = name;
    for (int i = 0; i < 2 && !t->code; i++) {
        o.device = i ? t->device : "cpu";
        t->code = mote_open_synthetic(name, &o, &t->models[i], t->err);
    }
    try_open(t, MOTE_KV_BF16, STEP_ROWS);
    try_definition(t, tokens);
    if (real && !t->code) try_stages(t, 1);
    for (int f = 0; real && prompt && f < FORMAT_COUNT && !t->code; f++) {
        for (int i = 0; i < 6 && !t->code; i++) try_format(t, (enum format)f, widths[i]);
        if (!t->code) try_table(t, (enum format)f);
    }
    if (prompt && !t->code) try_whole(t, prompt, real ? 28 : 70);         /* a definition is slow */
    try_close(t);
    if (real) try_open(t, MOTE_KV_FP8, STEP_ROWS);
    if (real && !t->code) try_stages(t, 0);
    try_close(t);
    for (int kv = MOTE_KV_BF16; kv <= MOTE_KV_FP8 && real; kv++) {
        try_open(t, kv, TRY_PROMPT);
        try_prefill(t);
        try_close(t);
    }
    for (int kv = MOTE_KV_BF16; kv <= MOTE_KV_FP8 && !t->code && t->models[0]->layers[0].mixer.kind == LAYER_MLA; kv++) {
        try_open(t, kv, TRY_PROMPT);
        try_latent(t);
        try_close(t);
    }
    if (!t->code) try_exact(t);
    if (!t->code) try_passes(t);
    for (int i = 0; i < 2; i++) {
        mote_close(t->models[i]);
        t->models[i] = NULL;
    }
}

static int gpu_selftest(const char *device, int sms,
                        void (*row)(void *user, const char *what, double difference, double allowed, int ok), void *user,
                        int *failed, mote_error *err) {
    static const struct { const char *model; uint64_t tokens, prompt; } tried[] = {       /* seeds, see try_model */
        {"tiny:fp8", 4, 60}, {"tiny:bf16", 4, 12}, {"tiny-dense:nvfp4", 1, 1}, {"small-dense:fp8", 1, 0}, {"small-dense:nvfp4", 1, 0},
        {"small-plain:fp8", 1, 0}, {"small-narrow:bf16", 1, 0}, {"tiny-oss:mxfp4", 2, 0}, {"small-oss:mxfp4", 1, 0}, {"tiny-latent", 1, 0},
        {"small-gemma:bf16", 1, 0}, {"small-laguna:fp8", 1, 0},
        {"small:fp8", 1, 4}, {"small:bf16", 2, 0}, {"small:nvfp4", 3, 0}, {"small:int4", 2, 0}, {"small:fp8-channel", 1, 0}};
    selftest t;
    memset(&t, 0, sizeof t);
    t.row = row;
    t.user = user;
    t.device = device;
    t.sms = sms;
    t.err = err;
    for (size_t i = 0; i < sizeof tried / sizeof *tried && !t.code; i++)
        try_model(&t, tried[i].model, tried[i].tokens, tried[i].prompt);
    if (!t.code) *failed = t.failed;
    return t.code;
}
