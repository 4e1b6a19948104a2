/* model/definition.c: a whole model in one page: tokens -> logits, by the definitions of its layers.

       x = embed_tokens[id];  for each layer: x += mixer(norm(x)), x += ffn(norm(x));  h = norm(x);  logits = lm_head h

   The MTP layer predicts one token further: it takes h of a token and the embedding of the token after it, and has a layer, a norm
   and the model's head of its own. */

typedef union defined_state { defined_deltanet deltanet; defined_attention attention; } defined_state;

static void define_layer_state(const layer *l, int tokens, defined_state *state) {
    if (l->mixer.kind == LAYER_DELTANET) deltanet_define_state(&l->mixer.w.deltanet.shape, &state->deltanet);
    if (l->mixer.kind == LAYER_ATTENTION) attention_define_state(&l->mixer.w.attention.shape, tokens, &state->attention);
}

/* x[hidden] through a layer, for one token, row r of a table: its mixer, its FFN. */
static void define_mixer(const layer *l, const token_row *r, defined_state *state, double *x) {
    defining.kind = layer_kind_names[l->mixer.kind];
    if (l->mixer.kind == LAYER_DELTANET) deltanet_define(&l->mixer.w.deltanet, &state->deltanet, x);
    if (l->mixer.kind == LAYER_ATTENTION) attention_define(&l->mixer.w.attention, &state->attention, r->position, x);
}

static void define_ffn(const layer *l, double *x) {
    defining.kind = layer_kind_names[l->ffn.kind];
    if (l->ffn.kind == LAYER_MOE) moe_define(&l->ffn.w.moe, x);
    if (l->ffn.kind == LAYER_MLP) mlp_define(&l->ffn.w.mlp, x);
}

static void define_layer(const layer *l, const token_row *r, defined_state *state, double *x) {
    define_mixer(l, r, state, x);
    define_ffn(l, x);
}

static void define_embedding(const mote_model *m, const token_row *r, double *x) {
    float *row = (float *)defined_array((size_t)m->c.hidden);
    matrix_floats(&m->embed_tokens, r->id, 0, m->c.hidden, row);
    for (int i = 0; i < m->c.hidden; i++) x[i] = (double)(r->embedding ? r->embedding[i] : row[i]);
    defined_free(row);
}

/* x[hidden] of the model's end becomes logits[vocab]; norm: the model's, or the MTP layer's. */
static void define_head(const mote_model *m, const float *norm, double *x, double *logits) {
    defining.kind = "head";
    defined_tell("x", x, m->c.hidden);
    defined_norm(x, x, norm, m->c.hidden, (double)m->c.eps);
    defined_linear(&m->lm_head, x, logits);
    defined_tell("logits", logits, m->c.vocab);
}

/* x[hidden] that enters the MTP layer for the token whose final row is h, with the row after it. x may be h. */
static void define_mtp_input(const mote_model *m, const token_row *next, const double *h, double *x) {
    const int n = m->c.hidden;
    double *in = defined_array(2 * (size_t)n);
    define_embedding(m, next, in);
    defined_norm(in, in, m->mtp_norm_embedding, n, (double)m->c.eps);
    defined_norm(in + n, h, m->mtp_norm_hidden, n, (double)m->c.eps);
    defined_linear(&m->mtp_fc, in, x);
    defined_free(in);
}

/* Row r, whose final row is h, and the row after it. */
static void define_mtp(const mote_model *m, const token_row *r, const double *h, defined_state *state, double *logits) {
    const int n = m->c.hidden;
    double *x = defined_array((size_t)n);
    define_mtp_input(m, r + 1, h, x);
    define_layer(&m->mtp, r, state, x);
    define_head(m, m->mtp_norm, x, logits);
    defined_free(x);
}

/* The lengths of all vectors on a token's way through a layer, after T tokens. Of each of these lengths there are at most eight at once:
   a formula's and those of who calls it. */
static size_t defined_width(const mote_model *m, int T) {
    const deltanet_shape *d = &m->largest.deltanet;
    const attention_shape *a = &m->largest.attention;
    const moe_shape *e = &m->largest.moe;
    return (size_t)(m->c.hidden + deltanet_channels(d) + d->value_heads * d->value_dim + d->value_heads + d->key_dim) +
           (size_t)((2 * a->heads + 2 * a->kv_heads) * a->head_dim + a->heads * a->head_dim) + (size_t)a->heads * (size_t)T +
           (size_t)(e->experts + e->expert_size + e->shared_size + m->largest.mlp.size);
}

/* The definitions' memory, for up to `layers` layers that have read T tokens, and `more` numbers of the caller's.
   0: there is not enough. */
static int defined_open(const mote_model *m, int T, int layers, size_t more) {
    const deltanet_shape *d = &m->largest.deltanet;
    const attention_shape *a = &m->largest.attention;
    const size_t S = (size_t)d->value_heads * (size_t)d->value_dim * (size_t)d->key_dim, kv = (size_t)a->kv_heads * (size_t)a->head_dim;
    const size_t state = S + (size_t)d->taps * (size_t)deltanet_channels(d) + 2 * (size_t)T * kv;
    defining.used = 0;
    defining.capacity = (size_t)layers * state + 8 * defined_width(m, T) + more;
    defining.memory = (double *)malloc(defining.capacity * sizeof(double));
    return defining.memory != NULL;
}

static void defined_close(void) {
    free(defining.memory);
    memset(&defining, 0, sizeof defining);
}

/* One token through the model: its row of logits[vocab]; x[hidden] becomes h. */
static void define_token(const mote_model *m, const token_row *r, defined_state *state, double *x, double *logits) {
    define_embedding(m, r, x);
    for (int i = 0; i < m->c.layers && !defining.stopped; i++) {
        defining.layer_index = i;
        define_layer(&m->layers[i], r, &state[i], x);
    }
    defining.layer_index = -1;
    if (!defining.stopped) define_head(m, m->norm, x, logits);
}

/* logits[T][vocab] after each of T rows, the first of a session; mtp_logits[T - 1][vocab], of those that have a row after them, if there is an
   MTP layer. NULL: who looks is told of them, that is all. 0: there is not enough memory. */
static int definition_rows(const mote_model *m, const token_row *rows, int T, double *logits, double *mtp_logits) {
    const int layers = m->c.layers;
    const size_t vocab = (size_t)m->c.vocab, states = ((size_t)layers + 1) * sizeof(defined_state) / sizeof(double);
    if (!defined_open(m, T, layers + 1, states + vocab)) return 0;
    double *x = defined_array((size_t)m->c.hidden), *row = defined_array(vocab);
    defined_state *state = (defined_state *)(void *)defined_array(states);
    for (int i = 0; i < layers; i++) define_layer_state(&m->layers[i], T, &state[i]);
    if (m->has_mtp) define_layer_state(&m->mtp, T, &state[layers]);
    for (int t = 0; t < T && !defining.stopped; t++) {
        defining.token = t;
        define_token(m, &rows[t], state, x, logits ? logits + (size_t)t * vocab : row);
        if (!m->has_mtp || t + 1 == T || defining.stopped) continue;
        defining.layer_index = layers;
        define_mtp(m, &rows[t], x, &state[layers], mtp_logits ? mtp_logits + (size_t)t * vocab : row);
    }
    defined_close();
    return 1;
}

/* The same of T tokens of text. */
static int definition_model(const mote_model *m, const int32_t *ids, int T, double *logits, double *mtp_logits) {
    token_row *rows = (token_row *)malloc(((size_t)T + 1) * sizeof *rows);
    if (!rows) return 0;
    text_rows(rows, ids, T, 0, 0);
    const int done = definition_rows(m, rows, T, logits, mtp_logits);
    free(rows);
    return done;
}
