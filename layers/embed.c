/* layers/embed.c: stage embed on the CPU.

   x[t] = embed_tokens[id of row t] factor, or the row's own embedding as it is. The caller has checked the ids. */

/* factor 0: there is none. */
static void embed(const matrix *embed_tokens, float factor, const token_row *rows, int T, float *x) {
    const size_t cols = (size_t)embed_tokens->cols;
    for (int t = 0; t < T; t++, x += cols) {
        if (rows[t].embedding) memcpy(x, rows[t].embedding, cols * sizeof *x);
        else matrix_floats(embed_tokens, rows[t].id, 0, embed_tokens->cols, x);
        for (size_t i = 0; factor != 0 && !rows[t].embedding && i < cols; i++) x[i] *= factor;
    }
}
