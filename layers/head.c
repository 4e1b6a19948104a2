/* layers/head.c: stage head on the CPU.

   logits[t] = lm_head h[t], where h = rms(x) norm. h itself is what the MTP layer takes in. */

static void stage_head(pool *p, const matrix *lm_head, const float *h, int T, float *logits, token_limbs *scratch) {
    linear(p, lm_head, h, logits, T, 0, scratch);
}
