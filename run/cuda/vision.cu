/* run/cuda/vision.cu: the vision tower on a GPU, from an image's patches to its features: block after block, each launched while the one before it
   runs, so that a cancel is heard between two of them, and other sessions may compute. Its memory is that of prompts, of which none is read
   meanwhile (vision_features). */

/* Bytes that a runner has for images. */
static size_t gpu_vision_bytes(const mote_runner *r) {
    vision_gpu unused;
    return r->m->has_vision && r->o.patches ? vision_gpu_layout(&r->m->vision.shape, r->o.patches, NULL, &unused) : 0;
}

/* After prefill's scratch is laid out: the same memory, or, where that is too little, other. */
static void gpu_layout_vision(layout *l, mote_runner *r) {
    struct gpu_runner *g = r->gpu;
    const size_t bytes = gpu_vision_bytes(r);
    g->vision = bytes > g->prefill.scratch_bytes ? (char *)layout_bytes(l, bytes) : g->prefill.scratch;
}

static int gpu_vision_run(mote_runner *r, const vision_run *run, const vision_image *image, mote_error *err) {
    struct gpu_runner *g = r->gpu;
    const int depth = run->w->shape.depth;
    vision_gpu_embed(run, image->patches, image->rgb);
    for (int i = 0; i < depth && g->q.status == cudaSuccess; i++) {
        if (i >= 2) gpu_check(&g->q, cudaEventSynchronize(g->layer_done[i % 2]), "a block of the vision tower");
        if (image->between(image->user, (double)i / depth)) {
            gpu_check(&g->q, cudaStreamSynchronize(g->stream), "the vision tower");
            return fail(err, MOTE_ECANCELLED, "cancelled");
        }
        gpu_check(&g->q, cudaSetDevice(r->m->device.gpu), "choosing the GPU");
        vision_gpu_block(run, i);
        gpu_check(&g->q, cudaEventRecord(g->layer_done[i % 2], g->stream), "a block of the vision tower");
    }
    if (g->q.status == cudaSuccess) vision_gpu_join(run, image->features);
    gpu_check(&g->q, cudaStreamSynchronize(g->stream), "the vision tower");
    return gpu_failed(&g->q, err);
}

/* Memory for an image larger than what the runner has any for. */
static int gpu_vision_alloc(const mote_runner *r, const vision_image *image, char **own, mote_error *err) {
    vision_gpu unused;
    const size_t bytes = vision_gpu_layout(&r->m->vision.shape, image->rows * image->columns, NULL, &unused);
    if (cudaMalloc((void **)own, bytes) == cudaSuccess) return MOTE_OK;
    *own = NULL;
    (void)cudaGetLastError();
    return fail(err, MOTE_ENOMEM, "an image of %d x %d patches needs %.2f GB, which %s does not have", image->rows, image->columns, (double)bytes * 1e-9,
                r->m->device.name);
}

static int gpu_vision(mote_runner *r, const vision_image *image, mote_error *err) {
    struct gpu_runner *g = r->gpu;
    vision_run run = {.q = &g->q, .w = &r->m->vision, .at = {}, .rows = image->rows, .columns = image->columns, .n = image->rows * image->columns,
                      .factor = vision_factor(r->m)};
    char *own = NULL;
    gpu_check(&g->q, cudaSetDevice(r->m->device.gpu), "choosing the GPU");
    int code = gpu_failed(&g->q, err);
    if (!code && run.n > r->o.patches) code = gpu_vision_alloc(r, image, &own, err);
    if (code) return code;
    (void)vision_gpu_layout(&r->m->vision.shape, run.n, own ? own : g->vision, &run.at);
    code = gpu_vision_run(r, &run, image, err);
    if (own) (void)cudaFree(own);
    return code;
}
