/* diagnose/definition_block.c: a block drafter beside its target, in double: the target's residuals -> logits of a block of drafts.

       c = norm(fc [residual after tap 0, after tap 1, ..])                            of a token of the timeline
       k, v = rotate(norm(k_proj c)), v_proj c                                         in each layer: what is kept of it
       x = [embedding of the next token, of the mask, of the mask, ..]                 a block, at the positions after the timeline
       for each layer: x += attention(norm(x)), x += mlp(norm(x))                      over the timeline's k and v, and the block's own
       logits = lm_head norm(x)                                                        the target's head

   A row of a block sees all rows of the block, or, in causal layers, those up to its own; with a window, of what it sees, what is less than
   `window` positions before it. */

typedef struct defined_drafter {
    const mote_model *m;         /* the target */
    definition target;           /* that reads the timeline */
    double *memory;
    double *k, *v;               /* [layers][most + block][kv_heads][head_dim] */
    double *c, *taps;            /* [hidden]; [taps][hidden] */
    double *x, *u, *out;         /* [block][hidden] */
    double *q, *o, *weight;      /* [heads][head_dim]; [most + block] */
    defined_mlp mlp;
    int rows;                    /* most + block */
} defined_drafter;

static const attention_weights *drafter_attention(const defined_drafter *t, int layer) {
    return &t->m->drafter->layers[layer].mixer.w.attention;
}

static void drafter_memory(defined_drafter *t, defined_memory *m) {
    const mote_model *d = t->m->drafter;
    const attention_shape *s = &drafter_attention(t, 0)->shape;
    const int hidden = d->c.hidden, block = d->c.drafter.block, kv = s->kv_heads * s->head_dim;
    t->k = defined_array(m, d->c.layers * t->rows, kv);
    t->v = defined_array(m, d->c.layers * t->rows, kv);
    t->c = defined_array(m, 1, hidden);
    t->taps = defined_array(m, d->c.drafter.taps, hidden);
    t->x = defined_array(m, block, hidden);
    t->u = defined_array(m, block, hidden);
    t->out = defined_array(m, 1, hidden);
    t->q = defined_array(m, s->heads, s->head_dim);
    t->o = defined_array(m, s->heads, s->head_dim);
    t->weight = defined_array(m, 1, t->rows);
    mlp_define_memory(&d->layers[0].ffn.w.mlp.shape, m, &t->mlp);
}

static inline void drafter_close(defined_drafter *t) {
    definition_close(&t->target);
    free(t->memory);
}

/* Before any token, for up to `most` of them. To be closed by the caller. 0: there is not enough memory. */
static inline int drafter_define(defined_drafter *t, const mote_model *m, int most) {
    defined_memory memory = {NULL, 0};
    memset(t, 0, sizeof *t);
    t->m = m;
    t->rows = most + m->drafter->c.drafter.block;
    if (!definition_open(&t->target, m, most)) return 0;
    drafter_memory(t, &memory);                                   /* counts */
    t->memory = memory.block = (double *)calloc(memory.used, sizeof(double));
    memory.used = 0;
    if (t->memory) drafter_memory(t, &memory);
    else drafter_close(t);
    t->target.taps = t->taps;
    return t->memory != NULL;
}

/* Row `row` of a layer's keys and values, of the row of u at these positions. */
static void drafter_keep(defined_drafter *t, int layer, int row, const token_row *at, const double *u) {
    const attention_weights *w = drafter_attention(t, layer);
    const attention_shape *s = &w->shape;
    const size_t place = ((size_t)layer * (size_t)t->rows + (size_t)row) * (size_t)(s->kv_heads * s->head_dim);
    double *k = t->k + place;
    defined_linear(&w->k_proj, u, k);
    defined_linear(&w->v_proj, u, t->v + place);
    for (int h = 0; h < s->kv_heads; h++, k += s->head_dim) {
        defined_norm(k, k, w->k_norm, s->head_dim, (double)s->eps);
        attention_define_rotation(w, k, at->position);
    }
}

/* o of head h, of its rotated query, over rows [first, end) of the layer. */
static void drafter_attend(defined_drafter *t, int layer, int h, int first, int end) {
    const attention_shape *s = &drafter_attention(t, layer)->shape;
    const int d = s->head_dim, kv = s->kv_heads * d;
    const size_t at = (size_t)layer * (size_t)t->rows * (size_t)kv + (size_t)(h / (s->heads / s->kv_heads) * d);
    const double *q = t->q + h * d;
    double *o = t->o + h * d, top = -INFINITY, sum = 0;
    memset(o, 0, (size_t)d * sizeof *o);
    for (int p = first; p < end; p++) {
        t->weight[p] = 0;
        for (int i = 0; i < d; i++) t->weight[p] += q[i] * t->k[at + (size_t)(p * kv + i)] / sqrt((double)d);
        top = fmax(top, t->weight[p]);
    }
    for (int p = first; p < end; p++) sum += t->weight[p] = exp(t->weight[p] - top);
    for (int p = first; p < end; p++)
        for (int i = 0; i < d; i++) o[i] += t->weight[p] / sum * t->v[at + (size_t)(p * kv + i)];
}

/* x += attention(u) of row b of a block that begins after `count` tokens. */
static void drafter_attention_row(defined_drafter *t, int layer, int count, int b, const token_row *at) {
    const drafter_shape *shape = &t->m->drafter->c.drafter;
    const attention_weights *w = drafter_attention(t, layer);
    const attention_shape *s = &w->shape;
    const int hidden = t->m->c.hidden, causal = shape->causal[s->window > 0];
    const int first = s->window ? max_int(count + b + 1 - s->window, 0) : 0, end = count + (causal ? b + 1 : shape->block);
    defined_linear(&w->q_proj, t->u + b * hidden, t->q);
    for (int h = 0; h < s->heads; h++) {
        defined_norm(t->q + h * s->head_dim, t->q + h * s->head_dim, w->q_norm, s->head_dim, (double)s->eps);
        attention_define_rotation(w, t->q + h * s->head_dim, at->position);
        drafter_attend(t, layer, h, first, end);
    }
    defined_linear(&w->o_proj, t->o, t->out);
    for (int i = 0; i < hidden; i++) t->x[b * hidden + i] += t->out[i];
}

static void drafter_layer(defined_drafter *t, int layer, int count, const token_row *rows) {
    const sublayer *mixer = &t->m->drafter->layers[layer].mixer, *ffn = &t->m->drafter->layers[layer].ffn;
    const int hidden = t->m->c.hidden, block = t->m->drafter->c.drafter.block;
    const double eps = (double)t->m->drafter->c.eps;
    for (int b = 0; b < block; b++) {
        defined_norm(t->u + b * hidden, t->x + b * hidden, mixer->norm, hidden, eps);
        drafter_keep(t, layer, count + b, &rows[b], t->u + b * hidden);
    }
    for (int b = 0; b < block; b++) drafter_attention_row(t, layer, count, b, &rows[b]);
    for (int b = 0; b < block; b++) {
        double *x = t->x + b * hidden, *u = t->u + b * hidden;
        defined_norm(u, x, ffn->norm, hidden, eps);
        mlp_define(&t->target.told, &ffn->w.mlp, &t->mlp, u, t->out);
        for (int i = 0; i < hidden; i++) x[i] += t->out[i];
    }
}

/* The next token of the timeline. logits[vocab]: the target's. */
static inline void drafter_read_token(defined_drafter *t, int32_t id, double *logits) {
    const mote_model *d = t->m->drafter;
    const int count = t->target.tokens;
    define_token(&t->target, id, logits);
    memset(t->c, 0, (size_t)d->c.hidden * sizeof *t->c);
    for (int k = 0; k < d->c.drafter.taps; k++) {
        defined_linear(&d->tap_fc[k], t->taps + k * d->c.hidden, t->out);
        for (int i = 0; i < d->c.hidden; i++) t->c[i] += t->out[i];
    }
    defined_norm(t->c, t->c, d->tap_norm, d->c.hidden, (double)d->c.eps);
    for (int i = 0; i < d->c.layers; i++) drafter_keep(t, i, count, &t->target.row, t->c);
}

/* logits[block - 1][vocab] of the tokens after `next`, which follows the timeline. */
static inline void drafter_block(defined_drafter *t, int32_t next, double *logits) {
    const mote_model *d = t->m->drafter;
    const int hidden = d->c.hidden, block = d->c.drafter.block, count = t->target.tokens;
    token_row rows[DRAFTER_BLOCK];
    for (int b = 0; b < block; b++) {
        const int32_t id = b ? d->c.drafter.mask : next;
        text_rows(&rows[b], &id, 1, count + b, 0);
        define_embedding(t->m, &rows[b], t->x + b * hidden);
    }
    for (int i = 0; i < d->c.layers; i++) drafter_layer(t, i, count, rows);
    for (int b = 1; b < block; b++) {
        defined_norm(t->u, t->x + b * hidden, d->norm, hidden, (double)d->c.eps);
        defined_linear(&t->m->lm_head, t->u, logits + (size_t)(b - 1) * (size_t)d->c.vocab);
    }
}
