/* checkpoint/memory_cuda.cu: weights in a GPU's memory, or in the host's for it: scanned, packed for kernels. Knows items, and
   of the model the head that drafts and the tables of experts. */

/* ---- Scanning ---- */

static __global__ void gpu_scan(enum format f, int component, const void *words, size_t n, unsigned *all) {
    unsigned seen = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        seen |= format_inspect(f, component, words, i);
    seen = __reduce_or_sync(~0u, seen);
    if (threadIdx.x % 32 == 0 && seen) atomicOr(all, seen);
}

static int cuda_scan(const mote_model *m, const load_item *item, unsigned *seen, mote_error *err) {
    unsigned *there = NULL;
    cudaError_t status = cudaMalloc((void **)&there, sizeof *there);
    if (status == cudaSuccess) status = cudaMemset(there, 0, sizeof *there);
    if (status == cudaSuccess)
        gpu_scan<<<(unsigned)m->device.sms * 4, GPU_THREADS>>>(item->of.format, item->component, item_memory(m, item),
                                                            item_words(item), there);
    if (status == cudaSuccess) status = cudaGetLastError();
    if (status == cudaSuccess) status = cudaMemcpy(seen, there, sizeof *seen, cudaMemcpyDeviceToHost);
    (void)cudaFree(there);
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "checking the MTP layer");
}

/* ---- Packing ---- */

/* Fills in the draft head's copy, from the packed lm_head. */
static int make_draft_head(mote_model *m, mote_error *err) {
    matrix *w = &m->draft_head;
    size_t at = m->draft_at;
    if (!m->has_mtp || m->lm_head.format == w->format || !w->rows) return MOTE_OK;
    for (int i = 0; i < formats[w->format]->component_count; i++) {
        w->component[i] = m->arena + at;
        at += matrix_component_capacity(w, i);
    }
    cudaError_t status = gpu_quantise(&m->lm_head, w);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "making the draft head");
}

static int put_expert_tables(mote_model *m, mote_error *err) {
    int64_t distance[GPU_EXPERTS];
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < m->c.layers + m->has_mtp && status == cudaSuccess; i++) {
        const layer *l = model_layer(m, i);
        const moe_weights *w = &l->ffn.w.moe;
        if (l->ffn.kind != LAYER_MOE || !model_has_layer(m, i)) continue;
        for (int e = 0; e < w->shape.experts; e++) distance[e] = moe_distance(w, e);
        status = cudaMemcpy((void *)w->expert_at, distance, (size_t)w->shape.experts * sizeof *distance, cudaMemcpyHostToDevice);
    }
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "saying where experts are");
}

static __global__ void gpu_largest_bf16(const uint16_t *weights, size_t n, unsigned *largest) {
    unsigned top = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        top = max(top, weights[i] & 0x7fffu);
    top = __reduce_max_sync(~0u, top);
    if (threadIdx.x % 32 == 0 && top) atomicMax(largest, top);
}

/* A power of two that brings BF16 weights, the largest of whose magnitudes this is, into F16's range: that one times it is in [2^14, 2^15). Those
   29 octaves below are still exact. */
static float factor_of_bf16(unsigned largest) {
    return ldexpf(1, largest ? 14 + 127 - (int)(largest >> 7) : 0);
}

/* Of the language model's, and of the vision tower's. */
static float bf16_factor(const mote_model *m) {
    return factor_of_bf16(m->bf16_largest);
}

static float vision_factor(const mote_model *m) {
    return factor_of_bf16(m->vision_bf16_largest);
}

static int find_bf16_largest(binder *b, mote_error *err) {
    const load_item *items = (const load_item *)(void *)b->items.data;
    unsigned *there = NULL, largest[2] = {0, 0};
    cudaError_t status = cudaMalloc((void **)&there, sizeof largest);
    if (status == cudaSuccess) status = cudaMemset(there, 0, sizeof largest);
    for (size_t i = 0; i < b->items.size / sizeof *items && status == cudaSuccess; i++) {
        if (items[i].of.format != FORMAT_BF16 || items[i].component != CODES) continue;
        const size_t words = matrix_component_capacity(&items[i].of, CODES) / 2;
        gpu_largest_bf16<<<(unsigned)b->m->device.sms * 4, GPU_THREADS>>>((const uint16_t *)item_memory(b->m, &items[i]), words,
                                                                       there + (items[i].module == MODULE_VISION));
        status = cudaGetLastError();
    }
    if (status == cudaSuccess) status = cudaMemcpy(largest, there, sizeof largest, cudaMemcpyDeviceToHost);
    (void)cudaFree(there);
    b->m->bf16_largest = largest[0];
    b->m->vision_bf16_largest = largest[1];
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "looking for the largest weight");
}

/* Packs a matrix in place, by way of a copy. In host memory it is packed on the GPU, too, and copied back. Its packed components follow each
   other. scratch: `most` bytes, and as many as the largest matrix in host memory has */
static cudaError_t pack_item(const mote_model *m, const load_item *item, char *scratch, size_t most) {
    const size_t bytes = packed_bytes(&item->of);
    char *at = item_memory(m, item), *to = item->in_host ? scratch + most : at;
    cudaError_t status = cudaMemcpyAsync(scratch, at, bytes, item->in_host ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice, 0);
    if (status == cudaSuccess) status = gpu_pack(&item->of, scratch, to, m->device.sms);
    if (status == cudaSuccess && to != at) status = cudaMemcpyAsync(at, to, bytes, cudaMemcpyDeviceToHost, 0);
    return status;
}

static int cuda_complete(binder *b, mote_error *err) {
    const load_item *items = (const load_item *)(void *)b->items.data;
    size_t n = b->items.size / sizeof *items, most = 64, on_host = 0;
    char *scratch = NULL;
    for (size_t i = 0; i < n; i++) {
        if (items[i].component != CODES) continue;
        most = max_size(most, packed_bytes(&items[i].of));
        if (items[i].in_host) on_host = max_size(on_host, packed_bytes(&items[i].of));
    }
    cudaError_t status = cudaMalloc((void **)&scratch, most + on_host);
    if (status == cudaSuccess) status = cudaMemset(scratch + most, 0, on_host);
    for (size_t i = 0; i < n && status == cudaSuccess; i++)
        if (items[i].component == CODES) status = pack_item(b->m, &items[i], scratch, most);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    (void)cudaFree(scratch);
    if (status != cudaSuccess) return gpu_fail(err, status, "packing the weights");
    int code = find_bf16_largest(b, err);
    if (!code) code = put_expert_tables(b->m, err);
    return code ? code : make_draft_head(b->m, err);
}

/* ---- The table ---- */

enum { PREFILL_FROM = PASS_ROWS_MAX + 1 };     /* calls with fewer rows decode them, all in one pass: quicker, see docs/performance-prompts.md */

/* Whether it can make a drafter's state of a prompt's rows. */
static int prefill_drafts(const mote_model *d, dtype kv) {
    for (int k = 0; k < d->c.drafter.taps; k++)
        if (!prefill_takes(&d->tap_fc[k])) return 0;
    for (int i = 0; i < d->c.layers; i++)
        if (!layer_can_prefill(&d->layers[i], kv)) return 0;
    return 1;
}

/* Whether prefill can run this model's part; otherwise its prompts are decoded. */
static int prefill_runs(const mote_model *m, dtype kv) {
    for (int i = m->part.first; i < m->part.end; i++)
        if (!layer_can_prefill(&m->layers[i], kv)) return 0;
    if (m->has_mtp && (!layer_can_prefill(&m->mtp.layer, kv) || !prefill_takes(&m->mtp.fc))) return 0;
    if (m->has_mtp && m->c.streams && (!prefill_takes(&m->mtp.fc_embedding) || !streams_can_prefill(&m->mtp.mixer, m->c.streams))) return 0;
    if (part_is_last(&m->part) && !streams_can_prefill(&m->mixer, m->c.streams)) return 0;
    if (m->drafter && !prefill_drafts(m->drafter, kv)) return 0;
    return (!part_is_last(&m->part) || prefill_takes(&m->lm_head)) && (size_t)m->c.hidden * 3 * sizeof(float) <= GPU_SHARED;
}

static void cuda_describe(mote_model *m) {
    m->report.info.prefill_from = prefill_runs(m, DTYPE_BF16) ? PREFILL_FROM : 0;
}

/* After a kernel has failed, or the GPU is gone, every call of the process on it does. */
static int cuda_works(const mote_model *m, mote_error *err) {
    cudaError_t status = cudaSetDevice(m->device.gpu);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    if (status == cudaSuccess) return MOTE_OK;
    return fail(err, MOTE_EDEVICE, "%s is lost: %s", m->device.name, cudaGetErrorString(status));
}

static const weight_memory cuda_memory = {
    .choose = cuda_choose, .available = cuda_available, .allocate = cuda_allocate, .pin = cuda_pin, .release = cuda_release,
    .load = cuda_load, .scan = cuda_scan, .complete = cuda_complete,
    .works = cuda_works, .describe = cuda_describe, .vision_refused = vision_gpu_refused, .kv = DTYPE_BF16, .packs = 1};
