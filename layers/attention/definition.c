/* layers/attention/definition.c: grouped-query attention, the definition.

   For every head the projections give a query and, if the layer is gated, an output gate; every
   `heads / kv_heads` heads share a key and a value head:

       q = rotate(norm(q), position)      k = rotate(norm(k), position)      without norms rotate(q), rotate(k)
       o = sum over tokens p up to this one of softmax(q . k[p] / sqrt(head_dim)) v[p]     with a window over the last `window` of them alone
       out = o_proj (o sigmoid(gate)), or o_proj o

   With a scale it is q . k[p] scale. Values are v_proj u or, of layers without one, k_proj u, as k is before its norm; with v_normed they are
   divided by their root mean square. With a g_proj out = o_proj (o softplus(g_proj u)), of which a head has one gate, or one for each element.

   With sinks the softmax of a head has one logit more, sinks[head], which takes its share and has no value.

   With an index a row attends to the tokens of index_budget / index_group groups of index_group tokens, from token 0 on, and to those of a group
   that is not whole: to the groups of the highest scores, of equal ones the first.

       score = sum over index heads of max(rotate(norm(index q), position) . key, 0) / sqrt(index_dim)
       key = rotate(norm(mean of the group's index k), position of its first token)

   Rotation turns the pairs (x[i], x[i + rotary_dim / 2]) of the first rotary_dim elements by position * frequencies[i], and
   multiplies them by rope_scale. A position is a time, a height and a width, of text all the same; which of them frequency i takes says
   rope_axis. */

typedef struct defined_attention {
    int tokens;                  /* so far */
    double *k, *v;               /* [most tokens][kv_heads][head_dim]: k after norm and rotation */
    double *q;                   /* [heads][query, gate][head_dim]; without gates [heads][head_dim] */
    double *weight;              /* [heads][tokens] */
    double *gate, *o;            /* [heads][head_dim] */
    double *g;                   /* [heads][gate_size] */
    double *index_qk;            /* [index_heads + 1][index_dim] */
    double *index_k, *keys;      /* [most tokens][index_dim]; [most groups][index_dim] of groups */
    double *score;               /* [most groups] */
    double *attends;             /* [most tokens] to which it does: 1, else 0; NULL: to all */
} defined_attention;

static void attention_define_memory(const attention_shape *s, int most, defined_memory *m, defined_attention *t) {
    t->tokens = 0;
    t->k = defined_array(m, most, s->kv_heads * s->head_dim);
    t->v = defined_array(m, most, s->kv_heads * s->head_dim);
    t->q = defined_array(m, s->heads, attention_q_size(s));
    t->weight = defined_array(m, s->heads, most);
    t->gate = defined_array(m, s->heads, s->head_dim);
    t->o = defined_array(m, s->heads, s->head_dim);
    t->g = defined_array(m, s->heads, s->gate_size);
    if (!s->index_heads) return;
    t->index_qk = defined_array(m, s->index_heads + 1, s->index_dim);
    t->index_k = defined_array(m, most, s->index_dim);
    t->keys = defined_array(m, most / s->index_group + 1, s->index_dim);
    t->score = defined_array(m, 1, most / s->index_group + 1);
    t->attends = defined_array(m, 1, most);
}

/* In place. The angle is single precision, as the model was trained with. */
static void attention_define_rotation(const attention_weights *w, double *x, const int32_t *position) {
    const int half = w->shape.rotary_dim / 2;
    const double scale = (double)w->shape.rope_scale;
    for (int i = 0; i < half; i++) {
        const float angle = (float)position[rope_axis(w->axes, i)] * w->frequencies[i];
        const double a = x[i], b = x[half + i], c = scale * cos((double)angle), d = scale * sin((double)angle);
        x[i] = a * c - b * d;
        x[half + i] = b * c + a * d;
    }
}

/* The key of a group, whose last token is at this position. */
static void attention_define_group(const attention_weights *w, const defined_attention *t, int group, const int32_t *position) {
    const attention_shape *s = &w->shape;
    const int n = s->index_dim;
    int32_t first[ROW_AXES];
    double *key = t->keys + (size_t)group * (size_t)n;
    memset(key, 0, (size_t)n * sizeof *key);
    for (int k = 0; k < s->index_group; k++)
        for (int i = 0; i < n; i++) key[i] += t->index_k[(size_t)(group * s->index_group + k) * (size_t)n + (size_t)i] / s->index_group;
    for (int axis = 0; axis < ROW_AXES; axis++) first[axis] = position[axis] - (s->index_group - 1);
    defined_norm(key, key, w->index_k_norm, n, (double)s->eps);
    attention_define_rotation(w, key, first);
}

/* To which of the tokens so far the last one attends, which is at a position. */
static void attention_define_index(const defining *d, const attention_weights *w, defined_attention *t, const int32_t *position, const double *u) {
    const attention_shape *s = &w->shape;
    const int n = s->index_dim, last = t->tokens - 1, groups = t->tokens / s->index_group, kept = s->index_budget / s->index_group;
    defined_linear(&w->index_qk, u, t->index_qk);
    memcpy(t->index_k + (size_t)last * (size_t)n, t->index_qk + s->index_heads * n, (size_t)n * sizeof *t->index_k);
    if (t->tokens % s->index_group == 0) attention_define_group(w, t, groups - 1, position);
    memset(t->score, 0, (size_t)groups * sizeof *t->score);
    for (int h = 0; h < s->index_heads; h++) {
        double *q = t->index_qk + h * n;
        defined_norm(q, q, w->index_q_norm, n, (double)s->eps);
        attention_define_rotation(w, q, position);
        for (int g = 0; g < groups; g++) {
            double product = 0;
            for (int i = 0; i < n; i++) product += q[i] * t->keys[(size_t)g * (size_t)n + (size_t)i];
            t->score[g] += fmax(product, 0) / sqrt((double)n);
        }
    }
    for (int p = 0; p < t->tokens; p++) t->attends[p] = 1;
    for (int g = 0; g < groups; g++) {
        int better = 0;
        for (int other = 0; other < groups; other++)
            better += t->score[other] > t->score[g] || (t->score[other] == t->score[g] && other < g);
        for (int k = 0; k < s->index_group && better >= kept; k++) t->attends[g * s->index_group + k] = 0;
    }
    defined_tell(d, "index", t->score, groups);
}

/* Of head h: weight[tokens] = softmax(q . k scale), o[head_dim] = weight v, over all tokens, those of the window, or those that the index has left. */
static void attention_define_head(const attention_weights *w, const defined_attention *t, int h, const double *q, double *weight, double *o) {
    const attention_shape *s = &w->shape;
    const int d = s->head_dim, stride = s->kv_heads * d, tokens = t->tokens;
    const int first = s->window && tokens > s->window ? tokens - s->window : 0;
    const double *k = t->k + h / (s->heads / s->kv_heads) * d, *v = t->v + (k - t->k);
    const double scale = s->scale != 0 ? (double)s->scale : 1 / sqrt((double)d);
    double top = s->sinks ? (double)w->sinks[h] : -INFINITY, sum;
    memset(weight, 0, (size_t)tokens * sizeof *weight);
    memset(o, 0, (size_t)d * sizeof *o);
    for (int p = first; p < tokens; p++) {
        if (t->attends && t->attends[p] == 0) continue;
        for (int i = 0; i < d; i++) weight[p] += q[i] * k[(size_t)p * (size_t)stride + (size_t)i];
        weight[p] *= scale;
        if (weight[p] > top) top = weight[p];
    }
    sum = s->sinks ? exp((double)w->sinks[h] - top) : 0;
    for (int p = first; p < tokens; p++) sum += weight[p] = t->attends && t->attends[p] == 0 ? 0 : exp(weight[p] - top);
    for (int p = first; p < tokens; p++) weight[p] /= sum;
    for (int p = first; p < tokens; p++)
        for (int i = 0; i < d; i++) o[i] += weight[p] * v[(size_t)p * (size_t)stride + (size_t)i];
}

/* out[hidden] = layer(u[hidden]), of the token after those so far, at a position. */
static void attention_define(const defining *d, const attention_weights *w, defined_attention *t, const int32_t *position, const double *u,
                             double *out) {
    const attention_shape *s = &w->shape;
    const int n = s->head_dim, index = t->tokens++;
    double *k = t->k + (size_t)index * (size_t)(s->kv_heads * n), *v = t->v + (k - t->k);

    defined_linear(&w->q_proj, u, t->q);
    defined_linear(&w->k_proj, u, k);
    if (s->v_of_k) memcpy(v, k, (size_t)(s->kv_heads * n) * sizeof *v);
    else defined_linear(&w->v_proj, u, v);
    if (s->gate_size) defined_linear(&w->g_proj, u, t->g);
    defined_tell(d, "q_proj", t->q, s->heads * attention_q_size(s));
    defined_tell(d, "k_proj", k, s->kv_heads * n);
    if (!s->v_of_k) defined_tell(d, "v_proj", v, s->kv_heads * n);
    if (s->gate_size) defined_tell(d, "g_proj", t->g, s->heads * s->gate_size);
    for (int h = 0; h < s->kv_heads; h++) {
        const double v_rms = s->v_normed ? defined_rms(v + h * n, n, (double)s->eps) : 1;
        for (int i = 0; i < n; i++) v[h * n + i] /= v_rms;
        if (s->normed) defined_norm(k + h * n, k + h * n, w->k_norm, n, (double)s->eps);
        attention_define_rotation(w, k + h * n, position);
    }
    if (s->index_heads) attention_define_index(d, w, t, position, u);
    for (int h = 0; h < s->heads; h++) {
        double *q = t->q + h * attention_q_size(s), *o = t->o + h * n, *gate = t->gate + h * n;
        if (s->normed) defined_norm(q, q, w->q_norm, n, (double)s->eps);
        attention_define_rotation(w, q, position);
        attention_define_head(w, t, h, q, t->weight + (size_t)h * (size_t)t->tokens, o);
        for (int i = 0; i < n && s->gated; i++) o[i] *= gate[i] = defined_sigmoid(q[n + i]);
        for (int i = 0; i < n && s->gate_size; i++) o[i] *= gate[i] = defined_softplus(t->g[h * s->gate_size + (s->gate_size > 1 ? i : 0)]);
    }
    defined_tell(d, "attention", t->weight, s->heads * t->tokens);
    if (s->gated || s->gate_size) defined_tell(d, "gate", t->gate, s->heads * n);
    defined_tell(d, "o", t->o, s->heads * n);
    defined_linear(&w->o_proj, t->o, out);
}
