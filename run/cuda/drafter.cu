/* run/cuda/drafter.cu: a block drafter on a GPU: what run/cpu/drafter.c does, by kernels of a step and, of a prompt's rows, of prefill. Which
   drafts are verified is none of its business.

   In a step of the target fc's product of a tap is recorded after the tap's layer, and after the last layer what the drafter keeps of the rows: so
   this is part of every graph of slots with a drafter. A block is a graph of its own: its rows are turns of one slot (run/cuda/turns.cu), appended to
   the cache before any of them attends, to all of them where the layer's rows see those after them. The target's head and a greedy choice follow.
   The drafter's layers have scratch of their own, and a block has steps, rows and mailboxes of its own: nothing of a slot's step is touched. */

enum { BLOCK_DRAFTS = MOTE_ROWS_MAX - 1 };                  /* most drafts of a block */

/* Of so many rows, those of whole turns. */
static int gpu_block_rows(const mote_model *d) {
    return gpu_turns_of(d->c.drafter.block) * STEP_ROWS;
}

static void gpu_layout_drafter(layout *l, mote_runner *r, const gpu_queue *q) {
    const mote_model *d = r->m->drafter;
    gpu_drafter *to = &r->gpu->drafter;
    capacity most = capacity_of(&r->o, r->o.context);
    if (!d) return;
    most.layers = d->c.layers;
    most.window = 0;
    layer_layout_gpu(l, &d->largest, d->c.hidden, 1, &most, q, &to->layers);
    to->table = (gpu_pass_table *)layout_bytes(l, sizeof *to->table);
    to->x = layout_alloc(l, (size_t)gpu_block_rows(d) * (size_t)d->c.hidden);
    to->tapped = layout_alloc(l, PASS_ROWS_MAX * (size_t)d->c.hidden);
}

/* The rows of `like` through the drafter's layer i; norm: in place of the layer's own. */
static void gpu_record_drafter_layer(const gpu_form *f, const gpu_rows *like, int i, const float *norm) {
    struct gpu_runner *g = f->r->gpu;
    const int state = drafter_state(f->r->m, i);
    layer l = f->r->m->drafter->layers[i];
    gpu_rows rows = *like;
    if (norm) l.mixer.norm = norm;
    rows.q->layer = rows.layer = state;
    gpu_place_rings(f->r, &rows);
    rows.layer = i;
    layer_record(&rows, &l, &g->drafter.layers, &g->capture_base.state[state], &g->growth_base.state[state]);
}

/* The rows of a form, whose steps these are, for the drafter's layers. */
static gpu_rows gpu_drafter_rows(const gpu_form *f, gpu_queue *q, const step_parameters *step, float *x) {
    const mote_model *d = f->r->m->drafter;
    const slot_view view = gpu_view_of(f->r);
    gpu_rows rows = f->rows;
    rows.q = q;
    rows.step = step;
    rows.slot = view;
    if (view.step) rows.slot.step = step;
    rows.x = x;
    rows.eps = d->c.eps;
    rows.hidden = d->c.hidden;
    rows.one_each |= rows.T == rows.sequences;
    return rows;
}

/* Records fc's products of the taps after a layer of the target. */
static void gpu_record_taps(const gpu_form *f, gpu_queue *q, int layer) {
    const mote_model *d = f->r->m->drafter;
    struct gpu_runner *g = f->r->gpu;
    for (int k = 0; k < d->c.drafter.taps; k++) {
        gpu_rows rows = gpu_drafter_rows(f, q, g->step, g->drafter.tapped);
        if (d->c.drafter.tap[k] != layer) continue;
        rows.to = rows.x;
        if (drafter_tap_is_first(&d->c.drafter, k)) rows.x = NULL;         /* stored, not added */
        gpu_output_linear(&rows, KERNEL_TAP, &d->tap_fc[k], g->x);
    }
}

/* Records what the drafter keeps of a step's rows. */
static void gpu_record_tapped(const gpu_form *f, gpu_queue *q) {
    const mote_model *d = f->r->m->drafter;
    struct gpu_runner *g = f->r->gpu;
    gpu_rows rows = gpu_drafter_rows(f, q, g->step, g->drafter.tapped);
    rows.state_only = 1;
    gpu_set_mtp(f->r->m, q, 1);
    for (int i = 0; i < d->c.layers; i++) gpu_record_drafter_layer(f, &rows, i, d->tap_norm);
    gpu_set_mtp(f->r->m, q, 0);
}

/* Records the embeddings of a block's rows. */
static void gpu_record_block_rows(const gpu_form *f, gpu_queue *q) {
    struct gpu_runner *g = f->r->gpu;
    const mote_model *m = f->r->m;
    gpu_embedding p;
    memset(&p, 0, sizeof p);
    p.embed_tokens = gpu_matrix_of(&m->embed_tokens);
    p.step = g->drafter.table->steps;
    p.sequences = g->drafter.table->sequence_of;
    p.T = f->rows.T;
    p.factor = gpu_embed_factor(m);
    p.cols = m->c.hidden;
    p.x = g->drafter.x;
    gpu_embed(q, &p, 1);
}

/* Records a block of drafts: embeddings, the layers, the head's first rows after the token that begins it, and a choice of each. */
static void gpu_record_block(const gpu_form *f, gpu_queue *q, int drafts) {
    struct gpu_runner *g = f->r->gpu;
    const mote_model *m = f->r->m, *d = m->drafter;
    gpu_rows rows = gpu_drafter_rows(f, q, g->drafter.table->steps, g->drafter.x);
    gpu_sampling choice = gpu_choice_of(g, g->draft_logits, drafts, draft_vocab(m));
    choice.parameters = g->greedy;
    choice.sequences = drafts;
    choice.stride = (size_t)draft_vocab(m);
    choice.step = g->drafter.table->steps;
    choice.draft = choice.drafts = 1;
    choice.draft_mailbox = g->mailbox + PASS_ROWS_MAX;
    gpu_set_mtp(m, q, 1);
    gpu_record_block_rows(f, q);
    for (int i = 0; i < d->c.layers; i++) {
        rows.both_ways = d->c.drafter.causal[d->layers[i].mixer.w.attention.shape.window > 0] ? 0 : f->block;
        gpu_record_drafter_layer(f, &rows, i, NULL);
    }
    gpu_set_mtp(m, q, 1);
    gpu_head(q, &m->draft_head, draft_vocab(m), d->norm, g->drafter.x + d->c.hidden, drafts, d->c.eps, m->c.logit_cap, g->draft_logits);
    gpu_sample(q, KERNEL_SAMPLE_TOKEN, &choice, sample_token);
    gpu_set_mtp(m, q, 0);
}

/* The form of a slot's block after so many tokens. */
static gpu_form gpu_block_of(const slot *s, int tokens) {
    const mote_model *d = s->m->drafter;
    gpu_form f;
    memset(&f, 0, sizeof f);
    f.r = s->runner;
    f.block = d->c.drafter.block;
    f.rows.sequences = gpu_turns_of(f.block);
    f.rows.T = gpu_block_rows(d);
    f.rows.in_turn = 1;
    f.rows.splits = gpu_splits_for(s->runner->gpu, tokens + f.block);
    return f;
}

/* Launches the block after a request's token: as many drafts as it can have. */
static void gpu_launch_block(const pass_request *q, int drafts) {
    slot *s = q->s;
    struct gpu_runner *g = s->runner->gpu;
    const drafter_shape *d = &s->m->drafter->c.drafter;
    const gpu_form f = gpu_block_of(s, q->b->rows->index);
    cudaGraphExec_t graph = gpu_pass_graph_of(&f, GPU_NO_LOGITS, drafts);
    gpu_turns turns;
    memset(&turns, 0, sizeof turns);
    turns.to = g->drafter.table;
    turns.first = gpu_step_of(s);
    turns.first.context += d->block;                        /* its rows may stand after the slot's last token */
    turns.first.index = q->b->rows->index;
    turns.first.lag = row_lag(q->b->rows);
    turns.T = d->block;
    for (int t = 0; t < d->block; t++) turns.ids[t] = t ? d->mask : q->b->rows->id;
    if (g->q.status != cudaSuccess) return;
    gpu_put_turns<<<1, PASS_ROWS_MAX, 0, g->stream>>>(turns);
    gpu_check(&g->q, cudaGraphLaunch(graph, g->stream), "launching a block of drafts");
}

/* Drafts for n requests, a block after the other. */
static void gpu_draft_blocks(mote_runner *r, pass_request *const *of, int n) {
    struct gpu_runner *g = r->gpu;
    const int drafts = min_int(r->m->drafter->c.drafter.block - 1, BLOCK_DRAFTS);
    const volatile gpu_mailbox *box = g->mailbox + PASS_ROWS_MAX;
    for (int i = 0; i < n; i++) {
        gpu_launch_block(of[i], drafts);
        of[i]->code = gpu_finish(of[i]->s, &of[i]->error);
        *of[i]->count = of[i]->code ? 0 : min_int(of[i]->drafts, drafts);
        for (int k = 0; k < *of[i]->count; k++) {
            of[i]->ids[k] = box[k].drafts[0];
            of[i]->confidence[k] = box[k].confidence[0];
        }
    }
}
