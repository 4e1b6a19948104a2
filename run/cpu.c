/* run/cpu.c: the forward pass on the CPU: T token rows through all layers, each of which adds a mixer and an FFN to the residual x;
   the MTP layer after them. The executor of a model whose weights are in host memory. */

static void cpu_layout_runner(layout *l, mote_runner *r) {
    const mote_model *m = r->m;
    const capacity most = capacity_of(&r->o, r->o.context);
    const size_t rows = (size_t)most.rows * (size_t)m->c.hidden;
    scratch *s = &r->s;
    s->x = layout_alloc(l, rows);
    s->u = layout_alloc(l, rows);
    s->hidden = layout_alloc(l, rows);
    s->mtp_in = layout_alloc(l, 2 * rows);
    s->draft_logits = layout_alloc(l, (size_t)m->draft_head.rows);
    s->limbs = limbs_alloc(l, (size_t)most.rows, 2 * m->c.hidden);
    layer_layout_scratch(l, &m->largest, &most, &s->jobs);
}

static void cpu_layout_slot(layout *l, slot *s) {
    (void)l;
    (void)s;
}

/* `floats` of memory, zero; NULL: there are not so many. */
static float *cpu_alloc(size_t floats) {
    const size_t bytes = floats * sizeof(float) + CACHE_LINE;
    const uint64_t available = memory_available();
    return !available || bytes <= available ? (float *)calloc(1, bytes) : NULL;
}

static int cpu_no_memory(const char *what, size_t floats, mote_error *err) {
    return fail(err, MOTE_ENOMEM, "%s needs %.2f GB, %.2f GB of memory are free", what, (double)floats * sizeof(float) * 1e-9,
                (double)memory_available() * 1e-9);
}

static int cpu_open(mote_runner *r, mote_error *err) {
    const size_t floats = layout_runner(r, NULL);
    r->memory = cpu_alloc(floats);
    if (!r->memory) return cpu_no_memory("a runner", floats, err);
    layout_runner(r, layout_base(r->memory));
    r->rows = r->o.chunk;
    r->threads = pool_open(r->o.threads);
    return r->threads ? MOTE_OK : fail(err, MOTE_ENOMEM, "the system gives no %d threads", r->o.threads);
}

static void cpu_close(mote_runner *r) {
    if (r->owner == getpid()) pool_close(r->threads);
    else pool_abandon(r->threads);
    free(r->memory);
}

static int cpu_slot_open(slot *s, mote_error *err) {
    char what[48];
    snprintf(what, sizeof what, "a session of %d tokens", s->context);
    s->memory = cpu_alloc(s->floats);
    if (!s->memory) return cpu_no_memory(what, s->floats, err);
    layout_slot(layout_base(s->memory), NULL, s);
    s->logits_here = 1;
    return MOTE_OK;
}

static void cpu_slot_close(slot *s) {
    free(s->memory);
}

/* T rows of x at `position` through a layer. state_only: of the MTP layer, whose KV rows are all that is wanted. */
static void run_layer(slot *s, const layer *l, const layer_state *state, int position, int T, int replay, int state_only) {
    scratch *w = &s->runner->s;
    token_rows rows;
    rows.threads = s->runner->threads;
    rows.T = T;
    rows.position = position;
    rows.replay = replay;
    rows.state_only = state_only;
    rows.x = w->x;
    rows.u = w->u;
    layer_forward(&rows, l, &w->jobs, state);
}

/* in = a row of the MTP layer's input: a token, and the final row of the token before it. */
static void mtp_input(slot *s, int32_t id, const float *final_row, float *in) {
    const mote_model *m = s->m;
    const int hidden = m->c.hidden;
    float *row = s->runner->s.u;
    embed(&m->embed_tokens, &id, 1, row);
    rms_norm(in, row, m->mtp_norm_embedding, 1, hidden, m->c.eps);
    rms_norm(in + hidden, final_row, m->mtp_norm_hidden, 1, hidden, m->c.eps);
}

/* The MTP layer for the rows just computed: the row of position p takes the token after it and the final row of p, and predicts
   the token after that. So the rows are those of positions first-1 .. first+T-2, without -1. Its KV rows are kept for drafting;
   logits, when wanted, get one row for each. */
static void run_mtp(slot *s, const block *b) {
    const mote_model *m = s->m;
    scratch *w = &s->runner->s;
    pool *threads = s->runner->threads;
    const int skip = b->position == 0, rows = b->T - skip;
    const size_t hidden = (size_t)m->c.hidden;
    if (rows <= 0) return;
    for (int t = skip; t < b->T; t++)
        mtp_input(s, b->ids[t], t ? w->hidden + (size_t)(t - 1) * hidden : s->last_hidden,
                  w->mtp_in + (size_t)(t - skip) * 2 * hidden);
    linear(threads, &m->mtp_fc, w->mtp_in, w->x, rows, 0, w->limbs);
    run_layer(s, &m->mtp, &s->state[m->c.layers], b->position + skip - 1, rows, b->replay, b->mtp_logits == NULL);
    if (!b->mtp_logits) return;
    rms_norm(w->u, w->x, m->mtp_norm, rows, m->c.hidden, m->c.eps);
    stage_head(threads, &m->lm_head, w->u, rows, b->mtp_logits, w->limbs);
}

/* Final rows of a block that may be kept in part stay with the slot; of a longer one the last, which is the timeline's then. */
static void cpu_final_rows(slot *s, int T) {
    const float *from = s->runner->s.hidden;
    const size_t hidden = (size_t)s->m->c.hidden;
    if (T <= MOTE_ROWS_MAX) memcpy(s->hidden, from, (size_t)T * hidden * sizeof(float));
    else memcpy(s->last_hidden, from + (size_t)(T - 1) * hidden, hidden * sizeof(float));
}

static int cpu_forward(slot *s, const block *b, mote_error *err) {
    const mote_model *m = s->m;
    scratch *w = &s->runner->s;
    pool *threads = s->runner->threads;
    const size_t last = (size_t)(b->T - 1), hidden = (size_t)m->c.hidden, vocab = (size_t)m->c.vocab;
    (void)err;
    if (b->replay) memcpy(s->last_hidden, slot_final_row(s, b->replay), hidden * sizeof(float));
    embed(&m->embed_tokens, b->ids, b->T, w->x);
    for (int i = 0; i < m->c.layers; i++) run_layer(s, &m->layers[i], &s->state[i], b->position, b->T, b->replay, 0);
    rms_norm(w->hidden, w->x, m->norm, b->T, m->c.hidden, m->c.eps);
    if (b->logits) stage_head(threads, &m->lm_head, w->hidden, b->T, b->logits, w->limbs);
    else stage_head(threads, &m->lm_head, w->hidden + last * hidden, 1, s->logits, w->limbs);
    if (b->logits && b->logits != s->block_logits) memcpy(s->logits, b->logits + last * vocab, vocab * sizeof(float));
    if (s->has_mtp) run_mtp(s, b);
    cpu_final_rows(s, b->T);
    s->last_row = b->T - 1;
    s->logits_here = 1;
    s->logits_in_block = b->logits && b->logits == s->block_logits;
    return MOTE_OK;
}

/* drafts[0..k-1]: what may follow the timeline and b->ids[0]. Each draft is the MTP layer's favourite, and its input for the next
   one, with its own final row in place of the model's. The KV rows it writes on the way, after the first, are of guesses: the
   block that runs next writes them anew. */
static int cpu_draft(slot *s, const block *b, int k, int32_t *drafts, mote_error *err) {
    const mote_model *m = s->m;
    scratch *w = &s->runner->s;
    pool *threads = s->runner->threads;
    const float *final_row = slot_final_row(s, b->replay);
    int32_t id = b->ids[0];
    (void)err;
    for (int i = 0; i < k; i++) {
        mtp_input(s, id, final_row, w->mtp_in);
        linear(threads, &m->mtp_fc, w->mtp_in, w->x, 1, 0, w->limbs);
        run_layer(s, &m->mtp, &s->state[m->c.layers], b->position - 1 + i, 1, b->replay, 0);
        rms_norm(w->hidden, w->x, m->mtp_norm, 1, m->c.hidden, m->c.eps);
        stage_head(threads, &m->draft_head, w->hidden, 1, w->draft_logits, w->limbs);
        id = 0;
        for (int j = 1; j < m->draft_head.rows; j++)
            if (w->draft_logits[j] > w->draft_logits[id]) id = j;
        drafts[i] = id;
        final_row = w->hidden;
    }
    return MOTE_OK;
}

static int cpu_copy(slot *s, void *to, const void *from, size_t n, mote_error *err) {
    (void)s;
    (void)err;
    if (n) memcpy(to, from, n);
    return MOTE_OK;
}

static int cpu_clear(slot *s, mote_error *err) {
    (void)err;
    memset(s->recurrent, 0, s->recurrent_floats * sizeof(float));
    return MOTE_OK;
}

/* All is done and here when a call returns. */
static int cpu_nothing(slot *s, mote_error *err) {
    (void)s;
    (void)err;
    return MOTE_OK;
}

enum { CPU_CHUNK = 256 };                                   /* token rows */

/* A prompt is read by forward(), and the host samples. */
static const executor cpu_executor = {
    .kv = MOTE_KV_F32, .chunk = CPU_CHUNK, .chunk_alignment = 1, .shares_memory = 1, .runner_bytes = 0, .slot_bytes = 0,
    .layout_runner = cpu_layout_runner, .layout_slot = cpu_layout_slot, .open = cpu_open, .close = cpu_close,
    .slot_open = cpu_slot_open, .slot_close = cpu_slot_close, .forward = cpu_forward, .prompt_rows = NULL, .prompt = NULL,
    .commit_state = cpu_forward, .draft = cpu_draft, .logits = cpu_nothing, .copy = cpu_copy, .clear = cpu_clear,
    .finish = cpu_nothing, .prepare = cpu_nothing, .time_pass = NULL, .can_sample = NULL, .step = NULL, .cycle = NULL};
