/* layers/embed.c: stage embed on the CPU.

   x[t] = embed_tokens[id[t]]. The caller has checked the ids. */

static void embed(const matrix *embed_tokens, const token_row *rows, int T, float *x) {
    for (int t = 0; t < T; t++)
        matrix_floats(embed_tokens, rows[t].id, 0, embed_tokens->cols, x + (size_t)t * (size_t)embed_tokens->cols);
}
