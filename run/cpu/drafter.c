/* run/cpu/drafter.c: a block drafter on the CPU: what it keeps of the rows that its target has computed, and the blocks that it drafts
   (families/dflash.c has the formulas). Which drafts are verified is none of its business.

   Its layers' states are of the session, after the MTP layer's. Every row of a pass is kept in them, rows of drafts that are refused, too:
   those that come to stand in their places overwrite them, and also those of a block, which stand after the timeline. */

/* After a layer of the target: what the drafter makes of its rows of x, if it takes them. */
static void drafter_tap(const mote_runner *r, int layer, int rows) {
    const mote_model *d = r->m->drafter;
    for (int k = 0; k < d->c.drafter.taps; k++)
        if (d->c.drafter.tap[k] == layer)
            linear(r->threads, &d->tap_fc[k], r->s.x, r->s.tapped, rows, !drafter_tap_is_first(&d->c.drafter, k), r->s.limbs);
}

/* `rows` rows of its layers: of the runner's table, those of n sequences. */
static token_rows drafter_rows(const mote_runner *r, const token_sequence *of, int n, int rows) {
    const mote_model *d = r->m->drafter;
    token_rows to;
    memset(&to, 0, sizeof to);
    to.threads = r->threads;
    to.table = r->s.table;
    to.T = rows;
    to.of = of;
    to.count = n;
    to.hidden = d->c.hidden;
    to.eps = d->c.eps;
    to.x = r->s.x;
    to.y = r->s.y;
    to.u = r->s.u;
    return to;
}

/* Keys and values of the rows of a pass, whose taps are there, become part of the sessions' states. */
static void drafter_read(mote_runner *r, pass_request *const *of, const token_sequence *at, int n) {
    const mote_model *d = r->m->drafter;
    const int rows = at[n - 1].first + at[n - 1].T;
    token_sequence kept[PASS_ROWS_MAX];
    int count = 0;
    for (int i = 0; i < n; i++)
        if (slot_drafter(of[i]->s)) kept[count++] = at[i];
    if (!count) return;
    rms_norm(r->s.u, r->s.tapped, d->tap_norm, rows, d->c.hidden, d->c.eps);
    token_rows all = drafter_rows(r, kept, count, rows);
    all.given = all.state_only = 1;
    for (int i = 0; i < d->c.layers; i++) layer_forward(&all, &d->layers[i], drafter_state(r->m, i), &r->s.jobs);
}

/* The rows of a request's block, from row `first` of the pass on: the token that begins it, and masks. */
static void drafter_put(mote_runner *r, const pass_request *q, int sequence, int first) {
    const drafter_shape *d = &r->m->drafter->c.drafter;
    token_row rows[DRAFTER_BLOCK];
    rows[0] = *q->b->rows;
    for (int t = 1; t < d->block; t++) rows[t] = text_after(q->b->rows, t, d->mask);
    table_put(r, first, sequence, rows, d->block);
}

/* x of the blocks of n requests, through the layers; hidden becomes what the head is multiplied with. */
static void drafter_walk(mote_runner *r, pass_request *const *of, int n) {
    const mote_model *d = r->m->drafter;
    const int block = d->c.drafter.block;
    token_sequence at[PASS_ROWS_MAX];
    for (int k = 0; k < n; k++) {
        drafter_put(r, of[k], k, k * block);
        at[k] = sequence_of(of[k]->s, k * block, block, 0);
    }
    cpu_embed(r, r->s.table, n * block, r->s.x);
    token_rows all = drafter_rows(r, at, n, n * block);
    for (int i = 0; i < d->c.layers; i++) {
        const int slides = d->layers[i].mixer.w.attention.shape.window > 0;
        all.both_ways = !d->c.drafter.causal[slides];
        layer_forward(&all, &d->layers[i], drafter_state(r->m, i), &r->s.jobs);
    }
    rms_norm(r->s.hidden, r->s.x, d->norm, n * block, d->c.hidden, d->c.eps);
}

/* The drafts of a request whose block's rows begin at h: of its first rows after the token that it begins with. */
static void drafter_choose(mote_runner *r, const pass_request *q, const float *h) {
    const mote_model *m = r->m;
    const int count = min_int(min_int(q->drafts, m->drafter->c.drafter.block - 1), MOTE_ROWS_MAX - 1);
    memcpy(r->s.head_in, h + m->c.hidden, (size_t)count * (size_t)m->c.hidden * sizeof *h);
    stage_head(r->threads, &m->draft_head, m->c.logit_cap, r->s.head_in, count, r->s.draft_logits, r->s.limbs);
    parallel(r->threads, count, cpu_choose_drafts, r);
    cpu_join_drafts(r, count);
    *q->count = count;
    for (int i = 0; i < count; i++) {
        q->ids[i] = r->s.drafted[i];
        q->confidence[i] = r->s.confidence[i];
    }
}

/* Drafts for n requests, whose blocks go through the layers as many at once as there are rows for. */
static void cpu_draft_blocks(mote_runner *r, pass_request *const *of, int n) {
    const int block = r->m->drafter->c.drafter.block, most = r->s.rows / block;
    for (int at = 0, count; at < n; at += count) {
        count = min_int(n - at, most);
        drafter_walk(r, of + at, count);
        for (int k = 0; k < count; k++) drafter_choose(r, of[at + k], r->s.hidden + (size_t)(k * block) * (size_t)r->m->c.hidden);
    }
}
