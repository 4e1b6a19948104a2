/* diagnose/measure_prefill.cu: times prefill chunks on a GPU, whole or cut down to some stages, by CUDA events. Like
   measure.cu it computes nothing of use; the caller empties the timeline before and after. */

/* A stream whose kernels run on some of the GPU's SMs alone: a green context. For a session that is to use `sms` SMs. */
typedef struct sm_partition {
    void *context;               /* CUgreenCtx; NULL: the session uses all SMs */
    cudaStream_t stream;
    int count;
} sm_partition;

#if CUDART_VERSION >= 12050
/* A function of the driver, which the library does not link with. */
static cudaError_t driver_function(const char *name, void **function) {
    cudaDriverEntryPointQueryResult found;
    cudaError_t status = cudaGetDriverEntryPointByVersion(name, function, 12050, cudaEnableDefault, &found);
    return status == cudaSuccess && found != cudaDriverEntryPointSuccess ? cudaErrorNotSupported : status;
}

/* Leaves the green context, if there is one. */
static void sm_partition_close(sm_partition *f) {
    CUresult (*destroy)(CUgreenCtx) = NULL;
    if (f->stream) (void)cudaStreamDestroy(f->stream);
    if (f->context && driver_function("cuGreenCtxDestroy", (void **)&destroy) == cudaSuccess)
        (void)destroy((CUgreenCtx)f->context);
    memset(f, 0, sizeof *f);
}

/* The driver gives whole groups of SMs: f->count may be more than asked for. */
static cudaError_t sm_partition_open(sm_partition *f, int gpu, int sms) {
    CUresult (*device_get)(CUdevice *, int) = NULL;
    CUresult (*device_resource)(CUdevice, CUdevResource *, CUdevResourceType) = NULL;
    CUresult (*split)(CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned, unsigned) = NULL;
    CUresult (*describe)(CUdevResourceDesc *, CUdevResource *, unsigned) = NULL;
    CUresult (*create)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned) = NULL;
    CUresult (*stream)(CUstream *, CUgreenCtx, unsigned, int) = NULL;
    CUdevResource all, part;
    CUdevResourceDesc description;
    CUgreenCtx context = NULL;
    CUdevice device;
    unsigned parts = 1;
    memset(f, 0, sizeof *f);
    cudaError_t status = driver_function("cuDeviceGet", (void **)&device_get);
    if (status == cudaSuccess) status = driver_function("cuDeviceGetDevResource", (void **)&device_resource);
    if (status == cudaSuccess) status = driver_function("cuDevSmResourceSplitByCount", (void **)&split);
    if (status == cudaSuccess) status = driver_function("cuDevResourceGenerateDesc", (void **)&describe);
    if (status == cudaSuccess) status = driver_function("cuGreenCtxCreate", (void **)&create);
    if (status == cudaSuccess) status = driver_function("cuGreenCtxStreamCreate", (void **)&stream);
    if (status != cudaSuccess) return status;
    if (device_get(&device, gpu) || device_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM) ||
        split(&part, &parts, &all, NULL, 0, (unsigned)sms) || describe(&description, &part, 1) ||
        create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM) ||
        stream(&f->stream, context, CU_STREAM_NON_BLOCKING, 0))
        status = cudaErrorNotSupported;
    f->context = context;
    f->count = status == cudaSuccess ? (int)part.sm.smCount : 0;
    if (status != cudaSuccess) sm_partition_close(f);
    return status;
}
#else
static void sm_partition_close(sm_partition *f) { memset(f, 0, sizeof *f); }
static cudaError_t sm_partition_open(sm_partition *f, int gpu, int sms) {
    (void)f, (void)gpu, (void)sms;
    return cudaErrorNotSupported;
}
#endif

/* Launches these stages of all layers, for the rows that are in place. */
static void measure_layers(mote_session *s, const prefill_rows *rows, unsigned stages) {
    struct gpu_runner *g = s->slot.runner->gpu;
    prefill_rows r = *rows;
    r.stages = stages;
    for (int i = 0; i < s->m->c.layers; i++) {
        r.layer = i;
        if (table_of(s->m, i)) r.looked_up = gpu_table_at(s->slot.runner, i);
        const int copy = stages >> STAGE_UP & 1 ? gpu_bring_experts(s->slot.runner, &r, i) : -1;
        gpu_check(&g->q, layer_run_prefill(&r, &s->m->layers[i], &g->layers, &s->slot.state[i]), "a layer");
        gpu_release_experts(s->slot.runner, copy);
    }
}

/* Times m->steps runs of the stages, after one of all: what a stage reads is then in place. Fills `of`, ascending. */
static void measure_prefill_times(mote_session *s, const mote_measurement *m, const sm_partition *partition, unsigned stages,
                                  double *of) {
    gpu_queue *q = &s->slot.runner->gpu->q;
    cudaEvent_t begin = NULL, end = NULL;
    const block b = timeline_block(s, s->tokens + m->depth, m->rows);
    prefill_rows r = prefill_rows_of(&s->slot, m->rows, s->count);
    if (partition->context) {
        r.stream = partition->stream;
        r.sms = partition->count;
    }
    gpu_check(q, cudaEventCreate(&begin), "timing");
    gpu_check(q, cudaEventCreate(&end), "timing");
    prefill_send(s->slot.runner->gpu, &b, r.stream);
    for (int i = -1; i < m->steps && q->status == cudaSuccess; i++) {
        float ms = 0;
        if (stages == ALL_STAGES || i < 0) prefill_begin(&s->slot, &r, NULL);
        gpu_check(q, cudaEventRecord(begin, r.stream), "timing");
        measure_layers(s, &r, i < 0 ? (unsigned)ALL_STAGES : stages);
        gpu_check(q, cudaEventRecord(end, r.stream), "timing");
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
    const int64_t chosen = (int64_t)m->rows * model->largest.moe.top_k;
    traffic of = {chosen < model->largest.moe.experts ? (int)chosen : model->largest.moe.experts, m->depth + m->rows,
                  kv_type_of(s->o.kv)};
    m->operations = 0;
    m->bytes = 0;
    for (int i = 0; i < model->c.layers; i++) {
        const layer *l = &model->layers[i];
        m->bytes += layer_bytes(l, stages, &of);
        for (int stage = 0; stage < STAGE_COUNT; stage++)
            if (stage_in(stages, (enum stage)stage))
                m->operations += sublayer_operations(&l->mixer, (enum stage)stage, m->rows, m->depth) +
                                 sublayer_operations(&l->ffn, (enum stage)stage, m->rows, m->depth);
    }
}

static int measure_prefill(mote_session *s, mote_measurement *m, unsigned stages, mote_error *err) {
    double *of = (double *)malloc((size_t)m->steps * sizeof *of);
    sm_partition partition;
    int code = of ? gpu_enter(&s->slot, err) : fail_memory(err);
    memset(&partition, 0, sizeof partition);
    if (!code && s->slot.runner->gpu->q.sms < s->m->device.sms) {
        cudaError_t status = sm_partition_open(&partition, s->m->device.gpu, s->slot.runner->gpu->q.sms);
        if (status != cudaSuccess) code = gpu_fail(err, status, "keeping kernels to some SMs");
    }
    if (!code) {
        for (int i = 0; i < m->rows; i++) measure_ids(s, i, 1, s->tokens + m->depth + i);
        s->count = m->depth;
        measure_prefill_times(s, m, &partition, stages, of);
        code = gpu_failed(&s->slot.runner->gpu->q, err);
        sm_partition_close(&partition);
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
