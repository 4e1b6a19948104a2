/* layers/mla/definition.c: multi-head latent attention, the definition.

   Queries are made of one short vector of a token, its latent, and so are keys and values of another:

       c, r = kv_a_proj u;   c = norm(c);   r = rotate(r, position)
       a = norm(q_a_proj u);   q, t = q_b_proj a;   t = rotate(t, position)           without q_rank: a = u
       k = [k_b_proj c, r];   v = v_b_proj c           of each head, but r: that is one key part for all of them
       o = sum over tokens p up to this one of softmax([q, t] . k[p] scale) v[p]
       out = o_proj o

   Rotation turns the pairs (x[2 i], x[2 i + 1]), or (x[i], x[i + rope_dim / 2]), by position * frequencies[i], and multiplies them by
   rope_scale.

   What need be remembered of a token is c and r alone, and with them can be computed without keys and values: q . k_b_proj c is
   (k_b_proj^T q) . c, and the sum of p v_b_proj c is v_b_proj times the sum of p c. So does cpu.c; here keys and values are made as they are
   written above, so that each checks the other. */

typedef struct defined_mla {
    int tokens;                  /* so far */
    double *k, *r, *v;           /* [most tokens][heads][nope_dim], [rope_dim], [heads][value_dim] */
    double *a, *c;               /* [q_rank]; [kv_rank + rope_dim]: c, r */
    double *q;                   /* [heads][nope_dim + rope_dim]: q, t */
    double *weight;              /* [heads][tokens] */
    double *o;                   /* [heads][value_dim] */
} defined_mla;

static void mla_define_memory(const mla_shape *s, int most, defined_memory *m, defined_mla *t) {
    t->tokens = 0;
    t->k = defined_array(m, most, s->heads * s->nope_dim);
    t->r = defined_array(m, most, s->rope_dim);
    t->v = defined_array(m, most, s->heads * s->value_dim);
    t->a = defined_array(m, 1, s->q_rank);
    t->c = defined_array(m, 1, mla_row_size(s));
    t->q = defined_array(m, s->heads, mla_key_dim(s));
    t->weight = defined_array(m, s->heads, most);
    t->o = defined_array(m, s->heads, s->value_dim);
}

/* In place. The angle is single precision, as the model was trained with. */
static void mla_define_rotation(const mla_weights *w, double *x, int position) {
    const int half = w->shape.rope_dim / 2, pairs = w->shape.interleaved;
    const double scale = (double)w->shape.rope_scale;
    for (int i = 0; i < half; i++) {
        const float angle = (float)position * w->frequencies[i];
        double *first = x + (pairs ? 2 * i : i), *second = pairs ? first + 1 : first + half;
        const double a = *first, b = *second, c = scale * cos((double)angle), d = scale * sin((double)angle);
        *first = a * c - b * d;
        *second = b * c + a * d;
    }
}

/* Of head h: weight[tokens] = softmax(q . k scale), o[value_dim] = weight v, over all tokens. */
static void mla_define_head(const mla_shape *s, const defined_mla *t, int h, double *weight, double *o) {
    const double *q = t->q + h * mla_key_dim(s);
    double top = -INFINITY, sum = 0;
    memset(o, 0, (size_t)s->value_dim * sizeof *o);
    for (int p = 0; p < t->tokens; p++) {
        const double *k = t->k + ((size_t)p * (size_t)s->heads + (size_t)h) * (size_t)s->nope_dim, *r = t->r + (size_t)p * (size_t)s->rope_dim;
        weight[p] = 0;
        for (int i = 0; i < s->nope_dim; i++) weight[p] += q[i] * k[i];
        for (int i = 0; i < s->rope_dim; i++) weight[p] += q[s->nope_dim + i] * r[i];
        weight[p] *= (double)s->scale;
        if (weight[p] > top) top = weight[p];
    }
    for (int p = 0; p < t->tokens; p++) sum += weight[p] = exp(weight[p] - top);
    for (int p = 0; p < t->tokens; p++) {
        const double *v = t->v + ((size_t)p * (size_t)s->heads + (size_t)h) * (size_t)s->value_dim;
        weight[p] /= sum;
        for (int i = 0; i < s->value_dim; i++) o[i] += weight[p] * v[i];
    }
}

/* out[hidden] = layer(u[hidden]), of the token after those so far, at a position. */
static void mla_define(const defining *d, const mla_weights *w, defined_mla *t, const int32_t *position, const double *u, double *out) {
    const mla_shape *s = &w->shape;
    const size_t index = (size_t)t->tokens++;
    double *r = t->r + index * (size_t)s->rope_dim;

    defined_linear(&w->kv_a_proj, u, t->c);
    defined_norm(t->c, t->c, w->kv_norm, s->kv_rank, (double)s->eps);
    defined_tell(d, "latent", t->c, s->kv_rank);
    memcpy(r, t->c + s->kv_rank, (size_t)s->rope_dim * sizeof *r);
    mla_define_rotation(w, r, *position);
    defined_linear(&w->k_b_proj, t->c, t->k + index * (size_t)(s->heads * s->nope_dim));
    defined_linear(&w->v_b_proj, t->c, t->v + index * (size_t)(s->heads * s->value_dim));

    if (s->q_rank) defined_linear(&w->q_a_proj, u, t->a);
    if (s->q_rank) defined_norm(t->a, t->a, w->q_norm, s->q_rank, (double)s->eps);
    defined_linear(&w->q_b_proj, s->q_rank ? t->a : u, t->q);
    defined_tell(d, "q_proj", t->q, s->heads * mla_key_dim(s));
    for (int h = 0; h < s->heads; h++) {
        mla_define_rotation(w, t->q + h * mla_key_dim(s) + s->nope_dim, *position);
        mla_define_head(s, t, h, t->weight + (size_t)h * (size_t)t->tokens, t->o + h * s->value_dim);
    }
    defined_tell(d, "attention", t->weight, s->heads * t->tokens);
    defined_tell(d, "o", t->o, s->heads * s->value_dim);
    defined_linear(&w->o_proj, t->o, out);
}
