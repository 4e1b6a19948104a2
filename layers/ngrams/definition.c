/* layers/ngrams/definition.c: embeddings of n-grams, the definition.

   A token and the ones before it, those after the last end of text, are hashed to rows of a table; e is these rows, side by side.
   It reads all streams of the residual R, and adds to each. Norms are of each stream apart:

       k = norm(key_proj e)      q = norm(R)      v = value_proj e
       s[c] = k[c] . q[c] / sqrt(hidden)      G[c] = sigmoid(sign(s[c]) sqrt(max(|s[c]|, 1e-6))) v
       M = norm(G)               R += G + SiLU(conv(M))

   conv gives each element its own weights over M of this token and of those `grams`, 2 grams, ... tokens before. */

typedef struct defined_ngrams {
    int32_t *ids;                /* [grams] of the last tokens, the newest first; 0: there is none, else the id + 1 */
    double *e;                   /* [ngrams_width] */
    double *key, *query, *G;     /* [streams][hidden] */
    double *value;               /* [hidden] */
    double *window;              /* [ngrams_reach + 1][streams][hidden] M of the last tokens, the newest last */
} defined_ngrams;

static void ngrams_define_memory(const ngrams_shape *s, defined_memory *m, defined_ngrams *t) {
    t->ids = (int32_t *)(void *)defined_array(m, 1, s->grams);
    t->e = defined_array(m, 1, ngrams_width(s));
    t->key = defined_array(m, s->streams, s->hidden);
    t->query = defined_array(m, s->streams, s->hidden);
    t->G = defined_array(m, s->streams, s->hidden);
    t->value = defined_array(m, 1, s->hidden);
    t->window = defined_array(m, ngrams_reach(s) + 1, s->streams * s->hidden);
}

/* rows[ngrams_rows]: those of the table that a token has, which comes after those so far. */
static void ngrams_define_rows(const ngrams_weights *w, defined_ngrams *t, int32_t id, int64_t *rows) {
    int32_t ids[MAX_GRAMS];
    memmove(t->ids + 1, t->ids, (size_t)(w->shape.grams - 1) * sizeof *t->ids);
    t->ids[0] = id + 1;
    for (int k = 0; k < w->shape.grams; k++) ids[k] = t->ids[k] - 1;
    ngrams_numbers(w, ids, rows);
}

/* y[streams][hidden] = x / rms(x) w, each stream by itself. */
static void ngrams_define_norm(const ngrams_shape *s, double *y, const double *x, const float *w) {
    for (int c = 0; c < s->streams; c++) defined_norm(y + c * s->hidden, x + c * s->hidden, w + c * s->hidden, s->hidden, (double)s->eps);
}

/* out[streams][hidden], of the token whose rows of the table are t->e, and R[streams][hidden]. */
static void ngrams_define(const defining *d, const ngrams_weights *w, defined_ngrams *t, const double *R, double *out) {
    const ngrams_shape *s = &w->shape;
    const int n = s->hidden, width = s->streams * n, reach = ngrams_reach(s);
    double *M = t->window + (size_t)reach * (size_t)width;
    defined_tell(d, "e", t->e, ngrams_width(s));
    defined_linear(&w->key_proj, t->e, t->key);
    defined_linear(&w->value_proj, t->e, t->value);
    ngrams_define_norm(s, t->key, t->key, w->norm_key);
    ngrams_define_norm(s, t->query, R, w->norm_query);
    for (int c = 0; c < s->streams; c++) {
        double score = 0;
        for (int i = 0; i < n; i++) score += t->key[c * n + i] * t->query[c * n + i] / sqrt((double)n);
        const double root = sqrt(fmax(fabs(score), 1e-6)), gate = defined_sigmoid(score > 0 ? root : score < 0 ? -root : 0);
        for (int i = 0; i < n; i++) t->G[c * n + i] = gate * t->value[i];
    }
    memmove(t->window, t->window + width, (size_t)reach * (size_t)width * sizeof *t->window);
    ngrams_define_norm(s, M, t->G, w->norm_conv);
    for (int i = 0; i < width; i++) {
        double sum = 0;
        for (int j = 0; j < s->taps; j++) sum += (double)w->conv1d[i * s->taps + j] * M[i - s->grams * (s->taps - 1 - j) * width];
        out[i] = t->G[i] + defined_silu(sum);
    }
    defined_tell(d, "G", t->G, width);
}
