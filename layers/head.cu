/* layers/head.cu: the last stage of a step on a GPU: logits. One projection; choosing a token from them is
   cuda/sampling.cu's. */

/* logits = lm_head rms(x) norm, [T][lm_head rows]; the RMSNorm is the prologue of the projection. */
static void gpu_head(gpu_queue *q, const matrix *lm_head, const float *norm, const float *x, int T, float eps,
                     float *logits) {
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection(x, norm, lm_head->cols, T, eps);
    gpu_add_segment(&p, lm_head, logits);
    gpu_record_projection(q, KERNEL_HEAD, &p);
}
