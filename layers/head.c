/* layers/head.c: stage head on the CPU.

   logits[t] = lm_head h[t], where h = rms(x) norm. h itself is what the MTP layer takes in. */

/* The logits of row t to to[t]. */
static void stage_head_rows(pool *p, const matrix *lm_head, const float *h, int T, float *const *to, token_limbs *scratch) {
    projection job = projection_of(h, T, scratch);
    projection_add(&job, lm_head, NULL);
    job.to = to;
    project(p, &job);
}

static void stage_head(pool *p, const matrix *lm_head, const float *h, int T, float *logits, token_limbs *scratch) {
    linear(p, lm_head, h, logits, T, 0, scratch);
}
