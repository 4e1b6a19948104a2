/* layers/attention/definition.c: grouped-query attention, the definition.

   For every head the projections give a query and, if the layer is gated, an output gate; every
   `heads / kv_heads` heads share a key and a value head:

       q = rotate(norm(q), position)      k = rotate(norm(k), position)      without norms rotate(q), rotate(k)
       o = sum over tokens p up to this one of softmax(q . k[p] / sqrt(head_dim)) v[p]     with a window over the last `window` of them alone
       x += o_proj (o sigmoid(gate)), or o_proj o

   With sinks the softmax of a head has one logit more, sinks[head], which takes its share and has no value.

   Rotation turns the pairs (x[i], x[i + rotary_dim / 2]) of the first rotary_dim elements by position * frequencies[i], and
   multiplies them by rope_scale. A position is a time, a height and a width, of text all the same; which of them frequency i takes is rope_axis. */

typedef struct defined_attention {
    int tokens;                  /* so far */
    double *k, *v;               /* [most tokens][kv_heads][head_dim]: k after norm and rotation */
} defined_attention;

static void attention_define_state(const attention_shape *s, int most, defined_attention *state) {
    state->tokens = 0;
    state->k = defined_array((size_t)most * (size_t)s->kv_heads * (size_t)s->head_dim);
    state->v = defined_array((size_t)most * (size_t)s->kv_heads * (size_t)s->head_dim);
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

/* Of head h: weight[tokens] = softmax(q . k / sqrt(head_dim)), o[head_dim] = weight v, over all tokens, or those of the window. */
static void attention_define_head(const attention_weights *w, const defined_attention *state, int h, const double *q, double *weight, double *o) {
    const attention_shape *s = &w->shape;
    const int d = s->head_dim, stride = s->kv_heads * d, tokens = state->tokens;
    const int first = s->window && tokens > s->window ? tokens - s->window : 0;
    const double *k = state->k + h / (s->heads / s->kv_heads) * d, *v = state->v + (k - state->k);
    double top = s->sinks ? (double)w->sinks[h] : -INFINITY, sum;
    for (int p = first; p < tokens; p++) {
        for (int i = 0; i < d; i++) weight[p] += q[i] * k[(size_t)p * (size_t)stride + (size_t)i];
        weight[p] /= sqrt((double)d);
        if (weight[p] > top) top = weight[p];
    }
    sum = s->sinks ? exp((double)w->sinks[h] - top) : 0;
    for (int p = first; p < tokens; p++) sum += weight[p] = exp(weight[p] - top);
    memset(o, 0, (size_t)d * sizeof *o);
    for (int p = first; p < tokens; p++) weight[p] /= sum;
    for (int p = first; p < tokens; p++)
        for (int i = 0; i < d; i++) o[i] += weight[p] * v[(size_t)p * (size_t)stride + (size_t)i];
}

/* x[hidden] += the layer's output for one token, at a position. */
static void attention_define(const attention_weights *w, defined_attention *state, const int32_t *position, double *x) {
    const attention_shape *s = &w->shape;
    const int d = s->head_dim, kv = s->kv_heads * d, index = state->tokens++;
    double *normed = defined_array((size_t)s->hidden), *qg = defined_array(2 * (size_t)(s->heads * d));
    double *o = defined_array((size_t)(s->heads * d)), *out = defined_array((size_t)s->hidden);
    double *weight = defined_array((size_t)s->heads * (size_t)state->tokens), *open = defined_array((size_t)(s->heads * d));
    double *k = state->k + (size_t)index * (size_t)kv, *v = state->v + (size_t)index * (size_t)kv;

    defined_tell("x", x, s->hidden);
    defined_norm(normed, x, w->input_norm, s->hidden, (double)s->eps);
    defined_linear(&w->q_proj, normed, qg);                       /* [heads][query, gate][head_dim]; without gates [heads][head_dim] */
    defined_linear(&w->k_proj, normed, k);
    defined_linear(&w->v_proj, normed, v);
    defined_tell("q_proj", qg, s->heads * attention_q_size(s));
    defined_tell("k_proj", k, kv);
    defined_tell("v_proj", v, kv);
    for (int h = 0; h < s->kv_heads; h++) {
        if (s->normed) defined_norm(k + h * d, k + h * d, w->k_norm, d, (double)s->eps);
        attention_define_rotation(w, k + h * d, position);
    }
    for (int h = 0; h < s->heads; h++) {
        double *q = qg + h * attention_q_size(s), *gate = q + d;
        if (s->normed) defined_norm(q, q, w->q_norm, d, (double)s->eps);
        attention_define_rotation(w, q, position);
        attention_define_head(w, state, h, q, weight + (size_t)h * (size_t)state->tokens, o + h * d);
        for (int i = 0; i < d && s->gated; i++) o[h * d + i] *= open[h * d + i] = defined_sigmoid(gate[i]);
    }
    defined_tell("attention", weight, s->heads * state->tokens);
    if (s->gated) defined_tell("gate", open, s->heads * d);
    defined_tell("o", o, s->heads * d);
    defined_linear(&w->o_proj, o, out);
    defined_tell("added", out, s->hidden);
    for (int i = 0; i < s->hidden; i++) x[i] += out[i];

    defined_free(normed);
}
