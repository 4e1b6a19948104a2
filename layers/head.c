/* layers/head.c: stage head on the CPU.

   logits[t] = lm_head h[t], where h = rms(x) norm; with a cap cap tanh(lm_head h[t] / cap). h itself is what the MTP layer takes in. */

/* Rows of T logits: to[t], or, if that is NULL, one after the other. */
typedef struct logit_rows { float *const *to; float *logits; int T, n; float cap; } logit_rows;

static void cap_logits(void *context, int begin, int end, int thread) {
    const logit_rows *l = (const logit_rows *)context;
    (void)thread;
    for (int t = 0; t < l->T; t++) {
        float *row = l->to ? l->to[t] : l->logits + (size_t)t * (size_t)l->n;
        for (int i = begin; i < end; i++) row[i] = l->cap * tanhf(row[i] / l->cap);
    }
}

/* The logits of row t to to[t]. cap 0: there is none. */
static void stage_head_rows(pool *p, const matrix *lm_head, float cap, const float *h, int T, float *const *to, token_limbs *scratch) {
    logit_rows all = {.to = to, .logits = NULL, .T = T, .n = lm_head->rows, .cap = cap};
    projection job = projection_of(h, T, scratch);
    projection_add(&job, lm_head, NULL);
    job.to = to;
    project(p, &job);
    if (cap != 0) parallel(p, all.n, cap_logits, &all);
}

/* The same to logits[T][rows of lm_head]. */
static void stage_head(pool *p, const matrix *lm_head, float cap, const float *h, int T, float *logits, token_limbs *scratch) {
    logit_rows all = {.to = NULL, .logits = logits, .T = T, .n = lm_head->rows, .cap = cap};
    linear(p, lm_head, h, logits, T, 0, scratch);
    if (cap != 0) parallel(p, all.n, cap_logits, &all);
}
