/* layers/head.cu: stage head on a GPU. */

/* logits = lm_head rms(x)(1 + norm): the norm is a prologue here. */
static void gpu_head(gpu_queue *q, const matrix *lm_head, const float *norm, const float *x, int T, float eps,
                     float *logits) {
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection<gpu_norm_rows>(q, x, norm, lm_head->cols, T, eps);
    gpu_add_segment(&p, lm_head, logits);
    gpu_launch_projection(q, GPU_HEAD, &p);
}
