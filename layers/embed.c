/* layers/embed.c: stage embed on the CPU.

   x[t] = embed_tokens[id of row t], or the row's own embedding. The caller has checked the ids. */

static void embed(const matrix *embed_tokens, const token_row *rows, int T, float *x) {
    const size_t cols = (size_t)embed_tokens->cols;
    for (int t = 0; t < T; t++)
        if (rows[t].embedding) memcpy(x + (size_t)t * cols, rows[t].embedding, cols * sizeof *x);
        else matrix_floats(embed_tokens, rows[t].id, 0, embed_tokens->cols, x + (size_t)t * cols);
}
