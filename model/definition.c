/* model/definition.c: a whole model in one page: tokens -> logits, by the definitions of its layers.

       x = embed_tokens[id];  for each layer: x += mixer(norm(x)), x += ffn(norm(x));  h = norm(x);  logits = lm_head h

   The MTP layer predicts one token further: it takes h of a token and the embedding of the token after it, and has a layer, a norm
   and the model's head of its own. */

typedef union defined_state { defined_deltanet deltanet; defined_attention attention; } defined_state;

static void define_layer_state(const layer *l, int tokens, defined_state *state) {
    if (l->mixer.kind == LAYER_DELTANET) deltanet_define_state(&l->mixer.w.deltanet.shape, &state->deltanet);
    if (l->mixer.kind == LAYER_ATTENTION) attention_define_state(&l->mixer.w.attention.shape, tokens, &state->attention);
}

static void define_layer_free(const layer *l, defined_state *state) {
    if (l->mixer.kind == LAYER_DELTANET) free(state->deltanet.S), free(state->deltanet.window);
    if (l->mixer.kind == LAYER_ATTENTION) free(state->attention.k), free(state->attention.v);
}

/* x[hidden] through a layer, for one token: its mixer, its FFN. */
static void define_mixer(const layer *l, defined_state *state, double *x) {
    if (l->mixer.kind == LAYER_DELTANET) deltanet_define(&l->mixer.w.deltanet, &state->deltanet, x);
    if (l->mixer.kind == LAYER_ATTENTION) attention_define(&l->mixer.w.attention, &state->attention, x);
}

static void define_ffn(const layer *l, double *x) {
    moe_define(&l->ffn.w.moe, x);
}

static void define_layer(const layer *l, defined_state *state, double *x) {
    define_mixer(l, state, x);
    define_ffn(l, x);
}

static void define_embedding(const mote_model *m, int32_t id, double *x) {
    float *row = (float *)calloc((size_t)m->c.hidden, sizeof *row);
    matrix_floats(&m->embed_tokens, id, 0, m->c.hidden, row);
    for (int i = 0; i < m->c.hidden; i++) x[i] = (double)row[i];
    free(row);
}

/* x[hidden] that enters the MTP layer for the token at a position whose final row is h, with the token after it. */
static void define_mtp_input(const mote_model *m, int32_t next, const double *h, double *x) {
    const int n = m->c.hidden;
    double *in = defined_array(2 * (size_t)n);
    define_embedding(m, next, x);
    defined_norm(in, x, m->mtp_norm_embedding, n, (double)m->c.eps);
    defined_norm(in + n, h, m->mtp_norm_hidden, n, (double)m->c.eps);
    defined_linear(&m->mtp_fc, in, x);
    free(in);
}

static void define_mtp(const mote_model *m, int32_t next, const double *h, defined_state *state, double *logits) {
    const int n = m->c.hidden;
    double *x = defined_array((size_t)n);
    define_mtp_input(m, next, h, x);
    define_layer(&m->mtp, state, x);
    defined_norm(x, x, m->mtp_norm, n, (double)m->c.eps);
    defined_linear(&m->lm_head, x, logits);
    free(x);
}

/* logits[T][vocab] after each of T tokens; mtp_logits[T - 1][vocab], of the positions that have a token after them, unless NULL. */
static void definition_model(const mote_model *m, const int32_t *ids, int T, double *logits, double *mtp_logits) {
    const int layers = m->c.layers, hidden = m->c.hidden;
    defined_state *state = (defined_state *)calloc((size_t)layers + 1, sizeof *state);
    double *x = defined_array((size_t)hidden);
    for (int i = 0; i < layers; i++) define_layer_state(&m->layers[i], T, &state[i]);
    if (m->has_mtp) define_layer_state(&m->mtp, T, &state[layers]);
    for (int t = 0; t < T; t++) {
        define_embedding(m, ids[t], x);
        for (int i = 0; i < layers; i++) define_layer(&m->layers[i], &state[i], x);
        defined_norm(x, x, m->norm, hidden, (double)m->c.eps);
        defined_linear(&m->lm_head, x, logits + (size_t)t * (size_t)m->c.vocab);
        if (mtp_logits && t + 1 < T) define_mtp(m, ids[t + 1], x, &state[layers], mtp_logits + (size_t)t * (size_t)m->c.vocab);
    }
    for (int i = 0; i < layers; i++) define_layer_free(&m->layers[i], &state[i]);
    if (m->has_mtp) define_layer_free(&m->mtp, &state[layers]);
    free(state), free(x);
}
