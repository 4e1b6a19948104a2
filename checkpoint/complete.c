/* checkpoint/complete.c: what follows loading: a useless MTP layer is left out, matrices are packed. */

/* Looks for what makes an MTP layer useless, WEIGHTS_...: it would draft, but nothing that is ever accepted. */

SIMD static unsigned look_cpu(enum format f, int plane, const void *words, size_t n) {
    unsigned seen = 0;
    for (size_t i = 0; i < n; i++) seen |= format_inspect(f, plane, words, i);
    return seen;
}

#ifdef __CUDACC__
static __global__ void gpu_look(enum format f, int plane, const void *words, size_t n, unsigned *all) {
    unsigned seen = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        seen |= format_inspect(f, plane, words, i);
    seen = __reduce_or_sync(~0u, seen);
    if (threadIdx.x % 32 == 0 && seen) atomicOr(all, seen);
}

static int look_cuda(const mote_model *m, const load_item *item, unsigned *seen, mote_error *err) {
    unsigned *there = NULL;
    cudaError_t status = cudaMalloc((void **)&there, sizeof *there);
    if (status == cudaSuccess) status = cudaMemset(there, 0, sizeof *there);
    if (status == cudaSuccess)
        gpu_look<<<(unsigned)m->gpu_sms * 4, GPU_THREADS>>>(item->of.format, item->plane, m->arena + item->at,
                                                            item_words(item), there);
    if (status == cudaSuccess) status = cudaGetLastError();
    if (status == cudaSuccess) status = cudaMemcpy(seen, there, sizeof *seen, cudaMemcpyDeviceToHost);
    (void)cudaFree(there);
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "checking the MTP layer");
}
#endif

/* An MTP layer with a weight that is no finite number, or with a projection of nothing but zeros, is left out. */
static int check_mtp(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    mote_model *m = b->m;
    const attention_weights *a = &m->mtp.mixer.w.attention;
    const matrix *const needed[] = {&m->mtp_fc, &a->q_proj, &a->k_proj, &a->v_proj, &a->o_proj};
    const load_item *items = (const load_item *)(void *)b->items.data;
    for (size_t i = 0; i < b->items.size / sizeof *items && m->has_mtp; i++) {
        const load_item *item = &items[i];
        int code = MOTE_OK, needs = 0;
        unsigned seen = 0;
        if (!item->is_mtp) continue;
        for (int k = 0; k < 5; k++) needs |= m->arena + item->at == needed[k]->plane[CODES];
        if (m->gpu < 0) seen = look_cpu(item->of.format, item->plane, m->arena + item->at, item_words(item));
#ifdef __CUDACC__
        else code = look_cuda(m, item, &seen, err);
#endif
        if (code) return code;
        const char *wrong = needs && !seen ? "is all zero" : NULL;
        if (seen & WEIGHTS_NOT_FINITE) wrong = "holds what is no finite number";
        if (!wrong) continue;
        notice(callbacks, "%s: MTP layer left out, nothing will be drafted: tensor %s %s", b->files->dir,
               table_name(&b->files->table, item->from), wrong);
        m->has_mtp = m->info.mtp_layers = 0;
        model_kinds(m);
    }
    (void)err;
    return MOTE_OK;
}

#ifdef __CUDACC__
/* Fills in the draft head's copy, from the packed lm_head. */
static int make_draft_head(mote_model *m, mote_error *err) {
    matrix *w = &m->draft_head;
    size_t at = m->draft_at;
    if (!m->has_mtp || m->lm_head.format == w->format) return MOTE_OK;
    for (int i = 0; i < formats[w->format]->plane_count; i++) {
        w->plane[i] = m->arena + at;
        at += matrix_plane_room(w, i);
    }
    cudaError_t status = gpu_quantise(&m->lm_head, w);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "making the draft head");
}

static __global__ void gpu_largest_bf16(const uint16_t *weights, size_t n, unsigned *largest) {
    unsigned top = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        top = max(top, weights[i] & 0x7fffu);
    top = __reduce_max_sync(~0u, top);
    if (threadIdx.x % 32 == 0 && top) atomicMax(largest, top);
}

/* bf16_factor: the largest of all BF16 weights times it is in [2^14, 2^15). Those 29 octaves below are still exact. */
static int find_bf16_factor(binder *b, mote_error *err) {
    const load_item *items = (const load_item *)(void *)b->items.data;
    unsigned *there = NULL, largest = 0;
    cudaError_t status = cudaMalloc((void **)&there, sizeof *there);
    if (status == cudaSuccess) status = cudaMemset(there, 0, sizeof *there);
    for (size_t i = 0; i < b->items.size / sizeof *items && status == cudaSuccess; i++) {
        if (items[i].of.format != FORMAT_BF16 || items[i].plane != CODES) continue;
        const size_t words = matrix_plane_room(&items[i].of, CODES) / 2;
        gpu_largest_bf16<<<(unsigned)b->m->gpu_sms * 4, GPU_THREADS>>>((const uint16_t *)(b->m->arena + items[i].at), words,
                                                                       there);
        status = cudaGetLastError();
    }
    if (status == cudaSuccess) status = cudaMemcpy(&largest, there, sizeof largest, cudaMemcpyDeviceToHost);
    (void)cudaFree(there);
    b->m->bf16_factor = ldexpf(1, largest ? 14 + 127 - (int)(largest >> 7) : 0);
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "looking for the largest weight");
}

/* Packs every matrix in place, by way of a copy that is as large as the largest. Its packed planes follow each other. */
static int pack_weights(binder *b, mote_error *err) {
    const load_item *items = (const load_item *)(void *)b->items.data;
    size_t n = b->items.size / sizeof *items, largest = 1;
    char *copy = NULL;
    for (size_t i = 0; i < n; i++)
        if (items[i].plane == CODES) largest = larger(largest, packed_bytes(&items[i].of));
    cudaError_t status = cudaMalloc((void **)&copy, largest);
    for (size_t i = 0; i < n && status == cudaSuccess; i++) {
        if (items[i].plane != CODES) continue;
        char *at = b->m->arena + items[i].at;
        status = cudaMemcpyAsync(copy, at, packed_bytes(&items[i].of), cudaMemcpyDeviceToDevice, 0);
        if (status == cudaSuccess) status = gpu_pack(&items[i].of, copy, at, b->m->gpu_sms);
    }
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    (void)cudaFree(copy);
    if (status != cudaSuccess) return gpu_fail(err, status, "packing the weights");
    const int code = find_bf16_factor(b, err);
    return code ? code : make_draft_head(b->m, err);
}
#endif

static int load_weights(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    int code = arena_open(b, err);
    if (code) return code;
    qsort(b->items.data, b->items.size / sizeof(load_item), sizeof(load_item), by_place);
    if (b->m->gpu < 0) code = load_cpu(b, callbacks, err);
#ifdef __CUDACC__
    else code = load_gpu(b, callbacks, err);
#endif
    if (!code) code = check_mtp(b, callbacks, err);
#ifdef __CUDACC__
    if (!code && b->m->gpu >= 0) code = pack_weights(b, err);
#endif
    if (!code) report(callbacks, "loading weights", 1);
    return code;
}
