/* session/pooling.c: the embedding of a text: the final row of its last token, or the mean of those of all its tokens, cut and scaled to
   length 1. It gets rows of the residual as they are after the last layer, and norms and adds them here, on the host, whatever device
   computed them. It knows rows, and neither how they are computed nor what a timeline is. */

enum { POOLED_ROWS = 1024 };     /* most of a block, where all rows count: that much memory is taken for them */

typedef struct pooling {
    int all;                     /* the mean of all rows; 0: the last one */
    int hidden, dimensions;
    float eps;
    double *sum;                 /* [hidden] of the final rows so far, first to last; or the last one */
    float *norm, *row;           /* [hidden] weights of the final norm; a final row */
    int normed;                  /* rows come as the head is given them, and are final */
    float *residual;             /* [POOLED_ROWS, or 1][hidden] of the block at hand */
} pooling;

/* Fills in defaults and refuses what there is not. */
static int pooling_check(const mote_model *m, mote_embedding *o, mote_error *err) {
    if (o->pooling < MOTE_POOLING_DEFAULT || o->pooling > MOTE_POOLING_MEAN)
        return fail(err, MOTE_EINVAL, "mote_embed: pooling is %d, expected MOTE_POOLING_...", o->pooling);
    if (o->dimensions < 0 || o->dimensions > m->c.hidden)
        return fail(err, MOTE_EINVAL, "mote_embed: %d dimensions, expected 1 to %d, or 0 for all", o->dimensions, m->c.hidden);
    if (!o->pooling && m->no_pooling.code) return fail(err, m->no_pooling.code, "%s", m->no_pooling.message);
    if (!o->pooling) o->pooling = m->report.info.pooling ? m->report.info.pooling : MOTE_POOLING_LAST;
    if (!o->dimensions) o->dimensions = m->c.hidden;
    return MOTE_OK;
}

/* For a text of `count` tokens. To be closed in any case. */
static int pooling_open(pooling *p, mote_session *s, const mote_embedding *o, size_t count, mote_error *err) {
    const size_t hidden = (size_t)s->m->c.hidden;
    memset(p, 0, sizeof *p);
    p->all = o->pooling == MOTE_POOLING_MEAN;
    p->hidden = s->m->c.hidden;
    p->dimensions = o->dimensions;
    p->eps = s->m->c.eps;
    const size_t rows = !p->all ? 1 : count < POOLED_ROWS ? count : (size_t)POOLED_ROWS;
    p->sum = (double *)calloc(hidden, sizeof(double));
    p->norm = (float *)malloc((rows + 2) * hidden * sizeof(float));
    if (!p->sum || !p->norm) return fail_memory(err);
    p->row = p->norm + hidden;
    p->residual = p->row + hidden;
    p->normed = s->m->c.streams > 0;
    return p->normed ? MOTE_OK : slot_copy(slot_last(&s->slot, 0), p->norm, s->m->norm, hidden * sizeof(float), err);
}

static void pooling_close(pooling *p) {
    free(p->sum);
    free(p->norm);
}

/* Asks a block for its rows, and makes it shorter if there are more than fit. */
static void pooling_ask(const pooling *p, block *b) {
    if (p->all) b->T = min_int(b->T, POOLED_ROWS);
    b->residual = p->residual;
    b->residual_rows = p->all ? b->T : 1;
}

/* Takes the `rows` rows that came. */
static void pooling_rows(pooling *p, int rows) {
    if (!p->all) memset(p->sum, 0, (size_t)p->hidden * sizeof *p->sum);
    for (int t = 0; t < rows; t++) {
        const float *residual = p->residual + (size_t)t * (size_t)p->hidden, *row = p->normed ? residual : p->row;
        if (!p->normed) rms_norm(p->row, residual, p->norm, 1, p->hidden, p->eps);
        for (int i = 0; i < p->hidden; i++) p->sum[i] += row[i];
    }
}

/* embedding: [dimensions]. */
static int pooling_result(const pooling *p, float *embedding, mote_error *err) {
    double square = 0;
    for (int i = 0; i < p->dimensions; i++) square += p->sum[i] * p->sum[i];
    if (!(square > 0 && square <= DBL_MAX))
        return fail(err, MOTE_EFORMAT, "an embedding is not a number, or zero: are the weights damaged?");
    for (int i = 0; i < p->dimensions; i++) embedding[i] = (float)(p->sum[i] / sqrt(square));
    return MOTE_OK;
}
