/* diagnose/definition.c: a whole model in one page: tokens -> logits, by the definitions of its layers.

       x = embed_tokens[id];  for each layer: x += mixer(norm(x)), x += ffn(norm(x));  h = norm(x);  logits = lm_head h

   With norms after them x += norm(mixer(norm(x))), the same of FFNs; with a scale x = x scale after that. Branches of an FFN may have norms of
   their own. With an embed_factor embeddings of tokens are multiplied by it; with a logit_cap logits = cap tanh(lm_head h / cap).

   A residual of several streams is x[streams][hidden], all of which begin as the embedding: sublayers read mixtures of them (layers/streams.c),
   and so does the head in place of its norm. A layer of n-grams reads x as it is.

   The MTP layer predicts one token further: it takes h of a token and the embedding of the token after it, and has a layer, a norm
   and the model's head of its own. */

/* What a layer remembers, and its vectors: those of its kinds. */
typedef struct defined_layer {
    defined_deltanet deltanet;
    defined_attention attention;
    defined_mla mla;
    defined_ngrams ngrams;
    defined_mamba mamba;
    defined_moe moe;
    defined_mlp mlp;
} defined_layer;

/* A model that reads tokens, one after the other. */
typedef struct definition {
    const mote_model *m;
    defining told;
    double *memory;              /* of all vectors */
    defined_layer *layers;       /* [layers + 1], the MTP layer's after the others */
    double *u, *out;             /* [hidden] what a sublayer is given, and what it gives; of one that reads all streams out is [width] */
    defined_branches branches;
    double *mtp_in, *mtp_x;      /* [hidden + width]; [width] the MTP layer's residual */
    double *normed, *mix, *low, *share;                           /* of streams: [width] twice, [mix_rank], [streams] */
    double *taps;                /* [taps][hidden] the last token's residual where a block drafter takes it; NULL: nobody wants it */
    double *x, *logits;          /* [width] the residual, and from the head on h; [vocab] where nobody wants them */
    int tokens;                  /* read so far */
    token_row row;               /* that is being read: the MTP layer's stands where it does, too */
    mote_error unread;           /* why a row of a table could not be read; of code MOTE_OK: all could */
} definition;

static const layer *defined_layer_of(const mote_model *m, int i) {
    return model_layer(m, i);
}

/* Deals out the memory, for up to so many tokens. */
static void definition_memory(definition *d, int most, defined_memory *m) {
    const int hidden = d->m->c.hidden, width = model_width(d->m);
    for (int i = 0; i < d->m->c.layers + d->m->has_mtp; i++) {
        const layer *l = defined_layer_of(d->m, i);
        defined_layer *t = &d->layers[i];
        if (l->mixer.kind == LAYER_DELTANET) deltanet_define_memory(&l->mixer.w.deltanet.shape, m, &t->deltanet);
        if (l->mixer.kind == LAYER_ATTENTION) attention_define_memory(&l->mixer.w.attention.shape, most, m, &t->attention);
        if (l->mixer.kind == LAYER_MLA) mla_define_memory(&l->mixer.w.mla.shape, most, m, &t->mla);
        if (l->mixer.kind == LAYER_NGRAMS) ngrams_define_memory(&l->mixer.w.ngrams.shape, m, &t->ngrams);
        if (l->mixer.kind == LAYER_MAMBA) mamba_define_memory(&l->mixer.w.mamba.shape, m, &t->mamba);
        if (l->ffn.kind == LAYER_MOE) moe_define_memory(&l->ffn.w.moe.shape, m, &t->moe);
        if (l->ffn.kind == LAYER_MLP) mlp_define_memory(&l->ffn.w.mlp.shape, m, &t->mlp);
    }
    d->u = defined_array(m, 1, hidden);
    d->out = defined_array(m, 1, width);
    d->branches.router = defined_array(m, 1, hidden);
    d->branches.shared = defined_array(m, 1, hidden);
    d->branches.shared_out = defined_array(m, 1, hidden);
    d->mtp_in = defined_array(m, 1, hidden + width);
    d->mtp_x = defined_array(m, 1, width);
    d->normed = defined_array(m, 1, width);
    d->mix = defined_array(m, 1, width);
    d->low = defined_array(m, 1, d->m->c.mix_rank);
    d->share = defined_array(m, 1, d->m->c.streams);
    d->x = defined_array(m, 1, width);
    d->logits = defined_array(m, 1, d->m->c.vocab);
}

static void definition_close(definition *d) {
    free(d->layers);
    free(d->memory);
}

/* Before any token, for up to `most` of them; nobody looks on. To be closed by the caller. 0: there is not enough memory. */
static int definition_open(definition *d, const mote_model *m, int most) {
    defined_memory memory = {NULL, 0};
    memset(d, 0, sizeof *d);
    d->m = m;
    d->layers = (defined_layer *)calloc((size_t)m->c.layers + 1, sizeof *d->layers);
    if (!d->layers) return 0;
    definition_memory(d, most, &memory);                          /* counts */
    d->memory = memory.block = (double *)calloc(memory.used, sizeof(double));
    memory.used = 0;
    if (d->memory) definition_memory(d, most, &memory);
    else definition_close(d);
    return d->memory != NULL;
}

/* u[hidden] of the streams x, and the shares in which a sublayer's output is added to them. */
static void define_streams_read(definition *d, const stream_mixer *w, const double *x, double *u) {
    const int n = d->m->c.hidden, streams = d->m->c.streams;
    for (int c = 0; c < streams; c++) defined_norm(d->normed + c * n, x + c * n, w->norm + c * n, n, (double)d->m->c.eps);
    defined_linear(&w->down, d->normed, d->low);
    for (int i = 0; i < w->down.rows; i++) d->low[i] = defined_silu(d->low[i] / streams);
    defined_linear(&w->up, d->low, d->mix);
    memset(u, 0, (size_t)n * sizeof *u);
    for (int i = 0; i < streams * n; i++) u[i % n] += defined_sigmoid(d->mix[i]) * d->normed[i] / streams;
    if (w->inject.rows) defined_linear(&w->inject, d->normed, d->share);
    for (int c = 0; c < w->inject.rows; c++) d->share[c] = 2 * defined_sigmoid(d->share[c] / streams);
}

/* The rows of its table become e of the token that is being read; what cannot be read ends the reading. */
static void define_look_up(definition *d, const ngrams_weights *w, defined_ngrams *t) {
    int64_t rows[MAX_NGRAM_ROWS];
    float row[MAX_TABLE_COLS];
    ngrams_define_rows(w, t, d->row.id, rows);
    for (int i = 0; i < ngrams_rows(&w->shape) && !d->unread.code; i++) {
        d->told.stopped |= rows_read(d->m->tables[w->shape.number], rows[i], row, &d->unread) != MOTE_OK;
        if (d->unread.code) return;
        for (int k = 0; k < w->shape.row_size; k++) t->e[i * w->shape.row_size + k] = (double)row[k];
    }
}

/* What branches with norms of their own are given of x[hidden]. */
static void define_branches(definition *d, const sublayer *l, const double *x) {
    const int n = d->m->c.hidden;
    defined_norm(d->branches.router, x, l->norm_router, n, (double)d->m->c.eps);
    defined_norm(d->branches.shared, x, l->norm_shared, n, (double)d->m->c.eps);
    memset(d->branches.shared_out, 0, (size_t)n * sizeof *d->branches.shared_out);
}

/* out becomes the sum of both, normed each. */
static void define_branches_sum(definition *d, const sublayer *l) {
    const int n = d->m->c.hidden;
    defined_norm(d->out, d->out, l->norm_routed_after, n, (double)d->m->c.eps);
    defined_norm(d->branches.shared_out, d->branches.shared_out, l->norm_shared_after, n, (double)d->m->c.eps);
    for (int i = 0; i < n; i++) d->out[i] += d->branches.shared_out[i];
}

/* x[width] through a sublayer, for one token: x += sublayer(norm(x)). t: of its layer. */
static void define_sublayer(definition *d, const sublayer *l, defined_layer *t, double *x) {
    const int n = d->m->c.hidden, width = model_width(d->m), streams = l->residual.streams && !l->residual.whole, given = l->residual.whole ? width : n;
    const double eps = (double)d->m->c.eps;
    const defined_branches *branches = l->residual.branched ? &d->branches : NULL;
    if (l->kind == LAYER_NONE) return;
    d->told.kind = layer_kind_names[l->kind];
    defined_tell(&d->told, "x", x, width);
    if (streams) define_streams_read(d, &l->mixer, x, d->u);
    else if (!l->residual.whole) defined_norm(d->u, x, l->norm, n, eps);
    if (branches) define_branches(d, l, x);
    if (l->kind == LAYER_DELTANET) deltanet_define(&d->told, &l->w.deltanet, &t->deltanet, d->u, d->out);
    if (l->kind == LAYER_ATTENTION) attention_define(&d->told, &l->w.attention, &t->attention, d->row.position, d->u, d->out);
    if (l->kind == LAYER_MLA) mla_define(&d->told, &l->w.mla, &t->mla, d->row.position, d->u, d->out);
    if (l->kind == LAYER_NGRAMS) define_look_up(d, &l->w.ngrams, &t->ngrams), ngrams_define(&d->told, &l->w.ngrams, &t->ngrams, x, d->out);
    if (l->kind == LAYER_MAMBA) mamba_define(&d->told, &l->w.mamba, &t->mamba, d->u, d->out);
    if (l->kind == LAYER_MOE) moe_define(&d->told, &l->w.moe, &t->moe, d->u, branches, d->out);
    if (l->kind == LAYER_MLP) mlp_define(&d->told, &l->w.mlp, &t->mlp, d->u, d->out);
    if (branches) define_branches_sum(d, l);
    if (l->residual.normed_after) defined_norm(d->out, d->out, l->norm_after, n, eps);
    if (streams) defined_tell(&d->told, "share", d->share, d->m->c.streams);
    defined_tell(&d->told, "added", d->out, given);
    for (int i = 0; i < width; i++) x[i] += streams ? d->out[i % n] * d->share[i / n] : d->out[i];
    for (int i = 0; i < width && l->residual.scaled; i++) x[i] *= (double)*l->scale;
}

/* Through layer i: its mixer, its FFN. */
static void define_layer(definition *d, int i, double *x) {
    const layer *l = defined_layer_of(d->m, i);
    d->told.layer_index = i;
    define_sublayer(d, &l->mixer, &d->layers[i], x);
    define_sublayer(d, &l->ffn, &d->layers[i], x);
}

/* x[hidden] */
static void define_embedding(const mote_model *m, const token_row *r, double *x) {
    for (int i = 0; i < m->c.hidden && r->embedding; i++) x[i] = (double)r->embedding[i];
    for (int i = 0; i < m->c.hidden && !r->embedding; i += TILE)
        defined_weights(&m->embed_tokens, r->id, i, min_int(m->c.hidden - i, TILE), x + i);
    for (int i = 0; i < m->c.hidden && !r->embedding && m->c.embed_factor != 0; i++) x[i] *= (double)m->c.embed_factor;
}

/* x[width] */
static void define_embedding_streams(const mote_model *m, const token_row *r, double *x) {
    define_embedding(m, r, x);
    for (int i = m->c.hidden; i < model_width(m); i++) x[i] = x[i - m->c.hidden];
}

/* x[width] of the model's end becomes h, but for streams, which h is made of, and logits[vocab]; norm or mixer: the model's, or the MTP
   layer's. */
static void define_head(definition *d, const float *norm, const stream_mixer *mixer, double *x, double *logits) {
    const config *c = &d->m->c;
    d->told.kind = "head";
    defined_tell(&d->told, "x", x, model_width(d->m));
    if (c->streams) define_streams_read(d, mixer, x, d->u);
    else defined_norm(x, x, norm, c->hidden, (double)c->eps);
    defined_linear(&d->m->lm_head, c->streams ? d->u : x, logits);
    for (int i = 0; i < c->vocab && c->logit_cap != 0; i++) logits[i] = (double)c->logit_cap * tanh(logits[i] / (double)c->logit_cap);
    defined_tell(&d->told, "logits", logits, c->vocab);
}

/* x[width] that enters the MTP layer for the row whose final row is h, with the row after it. x may be h. */
static void define_mtp_input(definition *d, const token_row *next, const double *h, double *x) {
    const mote_model *m = d->m;
    const int n = m->c.hidden;
    double *first = d->mtp_in, *second = first + n;
    define_embedding(m, next, first);
    defined_norm(first, first, m->mtp.norm_embedding, n, (double)m->c.eps);
    defined_norm(second, h, m->mtp.norm_hidden, model_width(m), (double)m->c.eps);
    if (!m->c.streams) defined_linear(&m->mtp.fc, d->mtp_in, x);
    else defined_linear(&m->mtp.fc_embedding, first, d->u);
    for (int c = 0; c < m->c.streams; c++) {
        defined_linear(&m->mtp.fc, second + c * n, x + c * n);
        for (int i = 0; i < n; i++) x[c * n + i] += d->u[i];
    }
}

static void define_mtp(definition *d, const token_row *next, double *logits) {
    define_mtp_input(d, next, d->x, d->mtp_x);
    define_layer(d, d->m->c.layers, d->mtp_x);
    define_head(d, d->m->mtp.norm, &d->m->mtp.mixer, d->mtp_x, logits);
}

/* After layer i, for a block drafter. */
static void define_taps(definition *d, int i) {
    const int n = d->m->c.hidden;
    const drafter_shape *s = d->taps ? &d->m->drafter->c.drafter : NULL;
    for (int k = 0; s && k < s->taps; k++)
        if (s->tap[k] == i) memcpy(d->taps + k * n, d->x, (size_t)n * sizeof *d->x);
}

/* One row through the model: its logits[vocab]; d->x becomes h. */
static void define_row(definition *d, const token_row *r, double *logits) {
    d->row = *r;
    d->tokens++;
    define_embedding_streams(d->m, r, d->x);
    for (int i = 0; i < d->m->c.layers && !d->told.stopped; i++) {
        define_layer(d, i, d->x);
        define_taps(d, i);
    }
    d->told.layer_index = -1;
    if (!d->told.stopped) define_head(d, d->m->norm, &d->m->mixer, d->x, logits);
}

/* The next token of a text. */
static inline void define_token(definition *d, int32_t id, double *logits) {
    token_row r;
    text_rows(&r, &id, 1, d->tokens, 0);
    define_row(d, &r, logits);
}

/* logits[T][vocab] after each of T rows; mtp_logits[T - 1][vocab], of those that have a row after them, if there is an MTP layer. NULL: who
   looks is told of them, that is all. rows: [T]; or NULL: they are the next ones of a text, with these ids. */
static void define_rows(definition *d, const token_row *rows, const int32_t *ids, int T, double *logits, double *mtp_logits) {
    const size_t vocab = (size_t)d->m->c.vocab;
    for (int t = 0; t < T && !d->told.stopped; t++) {
        token_row two[2];
        if (!rows) text_rows(two, ids + t, min_int(T - t, 2), d->tokens, 0);
        const token_row *r = rows ? rows + t : two;
        d->told.token = t;
        define_row(d, r, logits ? logits + (size_t)t * vocab : d->logits);
        if (!d->m->has_mtp || t + 1 == T || d->told.stopped) continue;
        define_mtp(d, r + 1, mtp_logits ? mtp_logits + (size_t)t * vocab : d->logits);
    }
}

/* The same of a model that has read nothing, and nobody looks on. 0: there is not enough memory. */
static inline int definition_rows(const mote_model *m, const token_row *rows, const int32_t *ids, int T, double *logits, double *mtp_logits) {
    definition d;
    if (!definition_open(&d, m, T)) return 0;
    define_rows(&d, rows, ids, T, logits, mtp_logits);
    definition_close(&d);
    return 1;
}

static inline int definition_model(const mote_model *m, const int32_t *ids, int T, double *logits, double *mtp_logits) {
    return definition_rows(m, NULL, ids, T, logits, mtp_logits);
}
