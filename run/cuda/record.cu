/* run/cuda/record.cu: what the kernels of a step are, in which order, as a schedule (cuda/schedule.c), and their capture as a CUDA graph. The same
   stages in the same order as cpu_forward: the walk through the layers of the model's part; the head; the MTP layer; what follows a cycle's rows.
   It knows slots and the model. When graphs are launched, and with which parameters, is run/cuda/step.cu's, run/cuda/pass.cu's and
   run/cuda/turns.cu's. */

/* Rows of the rings of a runner's slots; INT_MAX: there are none. A whole number of KV_GRANULEs. */
static int gpu_ring(const mote_runner *r) {
    const capacity most = capacity_of(&r->o, r->o.context);
    return attention_ring(&most);
}

static slot_view gpu_view_of(const mote_runner *r) {
    const struct gpu_runner *g = r->gpu;
    slot_view v = {r->one_slot ? NULL : g->step, g->capture_base.context};
    return v;
}

/* Turns of STEP_ROWS rows, or fewer in the last one. */
static int gpu_turns_of(int T) {
    return (T - 1) / STEP_ROWS + 1;
}

/* The rows that a step of T rows has: turns are whole. */
static int gpu_rows_of_block(int T) {
    return T <= STEP_ROWS ? T : gpu_turns_of(T) * STEP_ROWS;
}

/* T rows of the resident slot, whose tokens are in its step. */
static gpu_form gpu_form_of(const slot *s, int T) {
    gpu_form f;
    memset(&f, 0, sizeof f);
    f.r = s->runner;
    f.rows.T = T;
    f.has_mtp = s->has_mtp;
    f.has_drafter = slot_drafter(s) != NULL;
    if (T <= STEP_ROWS) return f;
    f.rows.sequences = gpu_turns_of(T);
    f.rows.T = gpu_rows_of_block(T);
    f.rows.in_turn = 1;
    f.dealt = T;
    return f;
}

/* The blocks for the keys of so many tokens, and of drafts after them. */
static int gpu_splits_for(const struct gpu_runner *g, int tokens) {
    int splits = ATTEND_CLUSTER;
    while (splits * ATTEND_CHUNK < tokens + MOTE_ROWS_MAX) splits *= 2;
    return min_int(splits, max_int(max_int(g->layers.attention.splits, g->drafter.layers.attention.splits), g->layers.mla.splits));
}

/* The drafts after these rows. */
static gpu_form gpu_drafts_of(const gpu_form *f) {
    gpu_form one = *f;
    if (!f->rows.in_turn) return one;
    one.rows.T = 1;
    one.rows.sequences = one.rows.in_turn = one.rows.splits = one.dealt = 0;
    return one;
}

/* Of each row its sequence, for kernels; NULL: there is one. */
static const uint8_t *gpu_sequence_of(const gpu_form *f) {
    return f->rows.sequences ? f->r->gpu->table->sequence_of : NULL;
}

static_assert(sizeof((gpu_rows *)0)->past / sizeof(int64_t) == STATE_PIECES, "gpu_rows.past is of each piece");

/* Fills in rows->past. Up to the length of a ring all states grow with the context as from capture_base to growth_base; past[k] is what they then
   do not grow by. */
static void gpu_place_rings(const mote_runner *r, gpu_rows *rows) {
    const struct gpu_runner *g = r->gpu;
    const layer *l = model_layer(r->m, rows->layer);
    const capacity most = capacity_of(&r->o, r->o.context);
    state_piece from[STATE_PIECES], grown[STATE_PIECES], past[STATE_PIECES];
    if (!g->ring_base.state) return;
    layer_pieces(l, &most, &g->growth_base.state[rows->layer], grown);
    layer_pieces(l, &most, &g->ring_base.state[rows->layer], past);
    for (int k = layer_pieces(l, &most, &g->capture_base.state[rows->layer], from); k--;) {
        const int64_t growth = (char *)grown[k].at - (char *)from[k].at;
        rows->past[k] = (char *)from[k].at + growth * (gpu_ring(r) / KV_GRANULE) - (char *)past[k].at;
    }
}

/* T rows of x through layer i, the MTP layer after the others; offset: their first index minus that of the step. Of residual streams the last output
   may be pending afterwards. */
static void gpu_record_layer(const gpu_form *f, gpu_queue *q, int i, int T, float *x, int offset, int state_only) {
    const struct gpu_runner *g = f->r->gpu;
    const mote_model *m = f->r->m;
    const layer *l = model_layer(m, i);
    gpu_rows rows = f->rows;
    rows.q = q;
    rows.T = T;
    rows.layer = i;
    rows.step = g->step;
    rows.one_each |= T == rows.sequences;
    rows.slot = gpu_view_of(f->r);
    rows.offset = offset;
    rows.state_only = state_only;
    rows.x = x;
    rows.eps = m->c.eps;
    rows.hidden = m->c.hidden;
    gpu_place_rings(f->r, &rows);
    layer_record(&rows, l, &g->layers, &g->capture_base.state[i], &g->growth_base.state[i]);
}

/* The kernels that are recorded next are those of the MTP layer, or no longer. */
static void gpu_set_mtp(const mote_model *m, gpu_queue *q, int in_mtp) {
    q->in_mtp = in_mtp;
    q->layer = in_mtp ? m->c.layers : -1;
}

/* Of streams: where in mtp_in what is made of hidden rows begins. */
static float *gpu_mtp_hidden(const mote_runner *r) {
    return r->gpu->mtp_in + PASS_ROWS_MAX * (size_t)r->m->c.hidden;
}

static gpu_mtp_input gpu_mtp_input_of(const gpu_form *f) {
    const mote_model *m = f->r->m;
    struct gpu_runner *g = f->r->gpu;
    gpu_mtp_input p;
    memset(&p, 0, sizeof p);
    p.embed_tokens = gpu_matrix_of(&m->embed_tokens);
    p.step = g->step;
    p.sequences = gpu_sequence_of(f);
    p.in_turn = f->rows.in_turn ? f->rows.sequences : 0;
    p.slot = gpu_view_of(f->r);
    p.hidden = g->capture_base.hidden;
    p.last_hidden = g->capture_base.last_hidden;
    p.x = g->x;
    p.norm = m->norm;
    p.norm_embedding = m->mtp.norm_embedding;
    p.norm_hidden = m->mtp.norm_hidden;
    p.width = model_width(m);
    p.in = g->mtp_in;
    p.in_hidden = m->c.streams ? gpu_mtp_hidden(f->r) : p.in + p.width;
    p.in_row = m->c.streams ? m->c.hidden : 2 * p.width;
    p.in_hidden_row = m->c.streams ? p.width : 2 * p.width;
    p.given = g->given_row;
    p.factor = gpu_embed_factor(m);
    p.eps = m->c.eps;
    return p;
}

/* Of streams x is fc's products, one for each stream, and fc_embedding's is still to be added to all of them. */
static void gpu_mtp_streams(const mote_runner *r, gpu_queue *q, int T) {
    const mote_model *m = r->m;
    struct gpu_runner *g = r->gpu;
    const int rows = T * m->c.streams;
    gpu_linear(q, KERNEL_FC, &m->mtp.fc_embedding, g->mtp_in, g->mtp_embedded, T);
    for (int t = 0; t < rows; t += PASS_ROWS_MAX) {
        const size_t at = (size_t)t * (size_t)m->c.hidden;
        gpu_linear(q, KERNEL_FC, &m->mtp.fc, gpu_mtp_hidden(r) + at, g->mtp_x + at, min_int(rows - t, PASS_ROWS_MAX));
    }
    q->pending = g->mtp_embedded;
    q->shares = NULL;
}

/* The MTP layer over T rows whose input is in mtp_in; offset: as gpu_record_layer has it. head NULL: its states alone. */
static void gpu_walk_mtp(const gpu_form *f, gpu_queue *q, int T, int offset, const matrix *head, float *logits) {
    const mote_model *m = f->r->m;
    struct gpu_runner *g = f->r->gpu;
    if (m->c.streams) gpu_mtp_streams(f->r, q, T);
    else gpu_linear(q, KERNEL_FC, &m->mtp.fc, g->mtp_in, g->mtp_x, T);
    gpu_record_layer(f, q, m->c.layers, T, g->mtp_x, offset, !head);
    const int ids = head == &m->draft_head ? draft_vocab(m) : m->c.vocab;
    if (head) gpu_record_head(f->r, q, 1, head, ids, g->mtp_x, T, logits);
}

/* Records it for the rows of a step. */
static void gpu_record_mtp(const gpu_form *f, gpu_queue *q, int logits) {
    const mote_model *m = f->r->m;
    const gpu_mtp_input p = gpu_mtp_input_of(f);
    gpu_set_mtp(m, q, 1);
    gpu_mtp_start(q, &p, f->rows.T);
    gpu_walk_mtp(f, q, f->rows.T, -1, logits ? &m->lm_head : NULL, f->r->gpu->mtp_logits);
    gpu_set_mtp(m, q, 0);
}

/* Records draft number i, from 0 on, as in cpu_draft_all, of each sequence. Its position and the token before it are in
   step_parameters. */
static void gpu_record_draft(const gpu_form *after, gpu_queue *q, int i, int drafts) {
    const gpu_form form = gpu_drafts_of(after), *f = &form;
    const mote_model *m = f->r->m;
    struct gpu_runner *g = f->r->gpu;
    const int T = max_int(f->rows.sequences, 1);
    gpu_mtp_input p = gpu_mtp_input_of(f);
    gpu_sampling choice = gpu_choice_of(g, g->draft_logits, T, draft_vocab(m));
    p.draft = i;
    p.x = g->mtp_x;
    p.norm = m->mtp.norm;
    choice.parameters = g->greedy;
    choice.sequences = f->rows.sequences;
    choice.stride = (size_t)draft_vocab(m);
    choice.draft = i + 1;
    choice.drafts = drafts;
    choice.draft_mailbox = g->mailbox;
    gpu_set_mtp(m, q, 1);
    gpu_draft_start(q, &p, T);
    gpu_walk_mtp(f, q, T, i - 1, &m->draft_head, g->draft_logits);
    gpu_sample(q, KERNEL_SAMPLE_TOKEN, &choice, sample_token);
    gpu_set_mtp(m, q, 0);
}

/* Records the sampling and verification of the tokens that follow the rows just computed. */
static void gpu_record_accept(const gpu_form *f, gpu_queue *q) {
    struct gpu_runner *g = f->r->gpu;
    gpu_sampling p = gpu_choice_of(g, g->logits, f->rows.T, known_vocab(f->r->m));
    if (f->rows.in_turn) {
        p.turns = f->rows.sequences;
    } else {
        p.parameters_step = f->rows.sequences > 0;
        p.sequences = f->rows.sequences;
        p.sequence_of = gpu_sequence_of(f);
    }
    p.stride = (size_t)f->r->m->c.vocab;
    p.mailbox = g->mailbox;
    gpu_sample(q, KERNEL_ACCEPT, &p, gpu_accept);
}

/* Whether the rows of x are in place when a step begins: another host has sent them. */
static int gpu_rows_are_there(const mote_model *m) {
    return m->part.apart && !part_is_first(&m->part);
}

static void gpu_record_taps(const gpu_form *f, gpu_queue *q, int layer);
static void gpu_record_tapped(const gpu_form *f, gpu_queue *q);

/* Records a step of the part's layers. A range before the last has GPU_NO_LOGITS. */
static void gpu_record_step(const gpu_form *f, gpu_queue *q, enum gpu_kind kind) {
    const mote_model *m = f->r->m;
    struct gpu_runner *g = f->r->gpu;
    const int T = f->rows.T;
    gpu_embedding p;
    memset(&p, 0, sizeof p);
    p.embed_tokens = gpu_matrix_of(&m->embed_tokens);
    p.step = g->step;
    p.sequences = gpu_sequence_of(f);
    p.T = gpu_rows_are_there(m) ? 0 : T;
    p.factor = gpu_embed_factor(m);
    p.cols = model_width(m);
    p.given = g->given_row;
    p.x = g->x;
    if (!part_is_first(&m->part) && !m->part.apart) p.from = peers_rows(q->peer, 1);
    p.slot = gpu_view_of(f->r);
    p.hidden = g->capture_base.hidden;
    p.last_hidden = f->has_mtp ? g->capture_base.last_hidden : NULL;
    q->layer = -1;
    gpu_embed(q, &p, f->rows.in_turn ? 1 : max_int(f->rows.sequences, 1));
    for (int i = m->part.first; i < m->part.end; i++) {
        q->layer = i;
        gpu_record_layer(f, q, i, T, g->x, 0, 0);
        if (f->has_drafter) gpu_record_taps(f, q, i);
    }
    if (f->has_drafter) gpu_record_tapped(f, q);
    q->layer = -1;
    streams_record_write(q, g->x, T, m->c.hidden);
    if (!part_is_last(&m->part) && !m->part.apart) gpu_send(q, g->x, T, model_width(m));
    if (kind == GPU_LAST_LOGITS)
        gpu_record_head(f->r, q, 0, &m->lm_head, m->c.vocab, g->x + (size_t)(T - 1) * (size_t)model_width(m), 1, g->logits);
    if (kind >= GPU_ALL_LOGITS) gpu_record_head(f->r, q, 0, &m->lm_head, m->c.vocab, g->x, T, g->logits);
    if (f->has_mtp) gpu_record_mtp(f, q, kind == GPU_MTP_LOGITS);
}

static void gpu_split_step(const gpu_form *f, gpu_queue *q);
static void gpu_record_block(const gpu_form *f, gpu_queue *q, int drafts);

/* Captures a CUDA graph: a block of so many drafts; or, with drafts < 0, a step of T rows; else a cycle: a step of T rows and its gpu_accept
   (T = 0: neither), then `drafts` drafts. Stages that q->stages leaves out are not in it. */
static cudaGraphExec_t gpu_capture_form(const gpu_form *f, enum gpu_kind kind, int drafts) {
    gpu_queue *q = &f->r->gpu->q;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    if (!gpu_check(q, cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeThreadLocal), "capturing a step"))
        return NULL;
    if (f->dealt) gpu_split_step(f, q);
    if (f->block) gpu_record_block(f, q, drafts);
    else if (f->rows.T) gpu_record_step(f, q, kind);
    if (!f->block && f->rows.T && drafts >= 0) gpu_record_accept(f, q);
    for (int i = 0; i < drafts && !f->block; i++) gpu_record_draft(f, q, i, drafts);
    gpu_submit(q);
    cudaError_t status = cudaStreamEndCapture(q->stream, &graph);
    if (gpu_check(q, status, "capturing a step"))
        gpu_check(q, cudaGraphInstantiate(&ready, graph, 0), "preparing a step");
    if (graph) (void)cudaGraphDestroy(graph);
    return ready;
}

/* The same of the resident slot. */
static cudaGraphExec_t gpu_capture(slot *s, int T, enum gpu_kind kind, int drafts) {
    const gpu_form f = gpu_form_of(s, T);
    return gpu_capture_form(&f, kind, drafts);
}
