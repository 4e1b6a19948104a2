/* layers/head.cu: the last stage of a step on a GPU: logits. One projection, and, where they are capped, a kernel that does so: whoever reads
   them, to choose a token, to weigh it or to tell it, finds capped ones. Choosing a token from them is cuda/sampling.cu's. */

typedef struct gpu_cap {
    handoff link;
    float *logits;               /* [n] */
    size_t n;
    float cap;
} gpu_cap;

/* logits = cap tanh(logits / cap). */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_cap_logits(const __grid_constant__ gpu_cap p) {
    pdl_launch_dependents();
    pdl_wait();
    for (size_t i = (size_t)blockIdx.x * GPU_THREADS + threadIdx.x; i < p.n; i += (size_t)gridDim.x * GPU_THREADS)
        p.logits[i] = p.cap * tanhf(p.logits[i] / p.cap);
}

/* Blocks for n logits. */
static int gpu_cap_blocks(size_t n, int sms) {
    const size_t most = (n - 1) / GPU_THREADS + 1;
    return most < (size_t)sms * 8 ? (int)most : sms * 8;
}

/* logits = lm_head rms(x) norm, [T][lm_head rows]; the RMSNorm is the prologue of the projection. cap 0: they are not capped. */
static void gpu_head(gpu_queue *q, const matrix *lm_head, const float *norm, const float *x, int T, float eps, float cap, float *logits) {
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection(x, norm, lm_head->cols, T, eps);
    const gpu_cap c = {.link = {}, .logits = logits, .n = (size_t)T * (size_t)lm_head->rows, .cap = cap};
    gpu_add_segment(&p, lm_head, logits);
    gpu_record_projection(q, KERNEL_HEAD, &p);
    if (cap != 0) gpu_record(q, KERNEL_CAP, "", gpu_cap_logits, gpu_cap_blocks(c.n, q->sms), 1, 0, &c);
}
