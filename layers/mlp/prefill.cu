/* layers/mlp/prefill.cu: a dense FFN for the many token rows of a prompt: two GEMMs. Knows no session and no other kind of layer. The
   definition is definition.c. */

/* Scratch of a call of T rows. */
typedef struct mlp_prefill_job {
    uint16_t *h;                 /* F16 [T][size] */
    float *h_scale;              /* [size / 64][T] */
} mlp_prefill_job;

static size_t mlp_prefill_layout(const mlp_shape *s, int T, char *scratch, mlp_prefill_job *p) {
    const size_t all = (size_t)T * (size_t)s->size;
    size_t used = 0;
    p->h = (uint16_t *)prefill_take(scratch, &used, all * sizeof(uint16_t));
    p->h_scale = (float *)prefill_take(scratch, &used, all / GEMM_COLS * sizeof(float));
    return prefill_take_rest(used, 0, T, s->hidden);
}

/* The implementation of layers/kinds.cu for prefill. */

static int mlp_can_prefill(const mlp_weights *w, dtype) {
    return prefill_takes(mlp_gate(w)) && prefill_takes(&w->up_proj) && prefill_takes(&w->down_proj);
}

static size_t mlp_prefill_bytes(const mlp_shape *s, int T, dtype) {
    mlp_prefill_job p;
    return mlp_prefill_layout(s, T, NULL, &p);
}

static cudaError_t mlp_run_prefill(const prefill_rows *r, const mlp_weights *w, const mlp_gpu *) {
    const mlp_shape *s = &w->shape;
    mlp_prefill_job job;
    mlp_prefill_layout(s, r->T, r->scratch, &job);
    if (stage_in(r->stages, STAGE_GATE_UP)) {
        gpu_gemm p = prefill_gemm(r, prefill_normed(r), r->T);
        gemm_product *h = prefill_product(&p, mlp_gate(w), GEMM_SWIGLU, NULL);
        h->up = gpu_matrix_of(&w->up_proj);
        h->act = mlp_activation(s);
        h->to = job.h;
        h->to_scale = job.h_scale;
        prefill_launch(r, &p);
    }
    const gemm_rows h = {job.h, job.h_scale, s->size / GEMM_COLS};
    if (stage_in(r->stages, STAGE_MLP_DOWN)) prefill_output(r, &w->down_proj, h, NULL);
    return cudaGetLastError();
}
