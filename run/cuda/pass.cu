/* run/cuda/pass.cu: passes of several sessions on a GPU: steps, blocks and cycles of up to PASS_ROWS_MAX rows at once. A row has the bits
   that run/cuda/step.cu's steps of its session alone give it.

   No slot is resident in a pass. Its steps lie one after the other in the pass table, which the host builds and copies there before
   the pass; after it, what a session's next call needs is written back: step_parameters and the residual rows. Only logits stay
   in the runner's scratch, until others are written there: whoever comes next with the session asks whether they are still there, and
   else computes them again from the residual rows.

   A captured pass is used again by every pass of as many rows and sequences. Its blocks for keys and values are as many as the longest
   session needs, in powers of two. */

/* Writes back what the slots need: a row of blocks for each token row. Grid: (ceil(columns / 256), rows). */
static __global__ void gpu_pass_writeback(gpu_pass_table *table, const float *x, int cols) {
    const int row = blockIdx.y, z = table->sequence_of[row], t = row - table->first[z];
    const int col = blockIdx.x * GPU_THREADS + threadIdx.x;
    if (col < cols) table->writeback[z].x[(size_t)t * cols + col] = x[(size_t)row * cols + col];
    if (col || t) return;
    step_parameters step = table->steps[z];
    step.first = step.rows = 0;
    *table->writeback[z].step = step;
}

/* Fetches the tokens that the slots have had prepared. One block. */
static __global__ void gpu_pass_ids(gpu_pass_table *table, int sequences) {
    const int z = threadIdx.x;
    for (int t = 0; z < sequences && table->keeps_ids[z] && t < STEP_ROWS; t++) table->steps[z].ids[t] = table->writeback[z].step->ids[t];
}

/* Begins the table of a pass of slots like this one (gpu_drafts): no slot is resident, there are no sequences. */
static void gpu_pass_begin(gpu_form *f, const slot *like) {
    mote_runner *r = like->runner;
    struct gpu_runner *g = r->gpu;
    gpu_swap_out(g);
    gpu_check(&g->q, cudaEventSynchronize(g->pass_copied), "copying a pass");
    memset(&g->sampling_on_device, 0xff, sizeof g->sampling_on_device);         /* the table overwrites them */
    memset(f, 0, sizeof *f);
    f->r = r;
    f->has_mtp = like->has_mtp;
    f->has_drafter = slot_drafter(like) != NULL;
    f->rows.one_each = 1;
}

/* Adds a request's block; first: the id of its first row, where the block has none. Without one its tokens are those that its slot had
   prepared. */
static void gpu_pass_add(gpu_form *f, const pass_request *q, int32_t first) {
    struct gpu_runner *g = f->r->gpu;
    gpu_pass_table *to = g->pass;
    const token_row *rows = q->b->rows;
    const int z = f->rows.sequences++;
    step_parameters step = gpu_step_of(q->s);
    step.index = rows->index;
    step.lag = row_lag(rows);
    step.accepted = q->b->replay;
    step.replay = q->s->gpu->replay;
    step.sequence = g->sequence;
    step.first = f->rows.T;
    step.rows = q->b->T;
    for (int t = 0; t < q->b->T; t++) step.ids[t] = t || rows->id >= 0 ? rows[t].id : first;
    for (int t = 0; t < q->b->T; t++) to->sequence_of[f->rows.T++] = (uint8_t)z;
    to->steps[z] = step;
    to->first[z] = step.first;
    to->keeps_ids[z] = step.ids[0] < 0;
    to->writeback[z].step = q->s->gpu->step;
    to->writeback[z].x = q->s->gpu->x;
    memset(&to->sampling[z], 0, sizeof to->sampling[z]);
    to->sampling[z].k = 1;
    if (q->sampling) gpu_sampling_of(g, q->sampling, &to->sampling[z]), q->s->gpu->sampling = to->sampling[z];
    f->rows.one_each &= q->b->T == 1;
    f->rows.splits = max_int(f->rows.splits, gpu_splits_for(g, rows->index + q->b->T));
}

/* Of a log of more rows than a step repeats the first go into the states: when all else that the pass needs is there. */
static void gpu_pass_shorten(const pass_request *q) {
    q->s->gpu->replay = gpu_log_left(q->s, q->b->replay, q->b->T);
}

/* Copies the table to the GPU. */
static void gpu_pass_send(const gpu_form *f) {
    struct gpu_runner *g = f->r->gpu;
    gpu_move(&g->q, g->table, g->pass, sizeof *g->pass, "copying a pass");
    gpu_check(&g->q, cudaEventRecord(g->pass_copied, g->stream), "copying a pass");
    for (int z = 0; z < f->rows.sequences; z++) {
        if (!g->pass->keeps_ids[z] || g->q.status != cudaSuccess) continue;
        gpu_pass_ids<<<1, PASS_ROWS_MAX, 0, g->stream>>>(g->table, f->rows.sequences);
        gpu_check(&g->q, cudaGetLastError(), "the tokens of a pass");
        return;
    }
}

/* The graph of such a pass, captured if there is none. */
static cudaGraphExec_t gpu_pass_graph_of(const gpu_form *f, enum gpu_kind kind, int drafts) {
    struct gpu_runner *g = f->r->gpu;
    gpu_pass_graph *oldest = g->passes;
    g->passed++;
    for (int i = 0; i < PASS_GRAPHS; i++) {
        gpu_pass_graph *p = &g->passes[i];
        if (p->used < oldest->used) oldest = p;
        if (!p->ready || memcmp(&p->form, f, sizeof *f) || p->kind != kind || p->drafts != drafts) continue;
        p->used = g->passed;
        return p->ready;
    }
    if (oldest->ready) (void)cudaGraphExecDestroy(oldest->ready);
    memset(oldest, 0, sizeof *oldest);
    memcpy(&oldest->form, f, sizeof *f);                    /* its padding, too: they are compared as bytes */
    oldest->kind = kind;
    oldest->drafts = drafts;
    oldest->used = g->passed;
    oldest->ready = gpu_capture_form(f, kind, drafts);
    return oldest->ready;
}

static void gpu_forget_passes(struct gpu_runner *g) {
    for (int i = 0; i < PASS_GRAPHS; i++)
        if (g->passes[i].ready) (void)cudaGraphExecDestroy(g->passes[i].ready);
    memset(g->passes, 0, sizeof g->passes);
}

/* All graphs: what is captured from now on has other arguments, or the runner is closed. */
static void gpu_forget_graphs(struct gpu_runner *g) {
    for (int i = 0; i < 2 * GPU_KINDS * (STEP_ROWS + 1); i++)
        if ((&g->graph[0][0][0])[i]) (void)cudaGraphExecDestroy((&g->graph[0][0][0])[i]);
    for (int i = 0; i < (STEP_ROWS + 1) * MOTE_ROWS_MAX; i++)
        if ((&g->cycle[0][0])[i]) (void)cudaGraphExecDestroy((&g->cycle[0][0])[i]);
    memset(g->graph, 0, sizeof g->graph);
    memset(g->cycle, 0, sizeof g->cycle);
    gpu_forget_passes(g);
}

/* Runs the pass of the table, with `drafts` for each sequence (-1: it is no cycle), and writes back what stays. */
static void gpu_pass_run(const gpu_form *f, pass_request *const *of, int drafts) {
    struct gpu_runner *g = f->r->gpu;
    const int cols = model_width(f->r->m);
    cudaGraphExec_t graph = gpu_pass_graph_of(f, gpu_kind_of(f->r, GPU_ALL_LOGITS), drafts);
    g->logits_pass++;
    gpu_launch_rows(f->r, graph, f->rows.T, "launching a pass");
    if (g->q.status != cudaSuccess) return;
    gpu_pass_writeback<<<dim3((unsigned)((cols - 1) / GPU_THREADS + 1), (unsigned)f->rows.T), GPU_THREADS, 0, g->stream>>>(g->table, g->x, cols);
    gpu_check(&g->q, cudaGetLastError(), "the end of a pass");
    for (int i = 0; i < f->rows.sequences; i++) {
        slot *s = of[i]->s;
        s->last_row = of[i]->b->T - 1;
        s->logits_here = s->logits_set = s->logits_in_block = 0;
        s->gpu->logits_pass = g->logits_pass;
        s->gpu->logits_first = g->pass->first[i];
    }
}

/* Whether the logits of the slot's last row are in the runner's scratch. */
static int gpu_has_logits(const slot *s) {
    return !s->logits_set && s->gpu->logits_pass == s->runner->gpu->logits_pass && s->runner->gpu->logits_pass;
}

/* Puts the logits of a slot's last row into row `row` of the runner's. */
static void gpu_bring_logits(slot *s, int row) {
    struct gpu_runner *g = s->runner->gpu;
    const mote_model *m = s->m;
    const size_t vocab = (size_t)m->c.vocab;
    float *to = g->logits + (size_t)row * vocab;
    if (s->logits_here) gpu_move(&g->q, to, s->logits, vocab * sizeof(float), "copying logits");
    else gpu_record_head(s->runner, &g->q, 0, &m->lm_head, m->c.vocab, s->gpu->x + (size_t)s->last_row * (size_t)model_width(m), 1, to);
    gpu_submit(&g->q);
}

/* Fills in where each request's logits are; those that are not there come into rows that none of the others has. */
static void gpu_place_logits(pass_request *const *of, int n) {
    struct gpu_runner *g = of[0]->s->runner->gpu;
    uint8_t taken[PASS_ROWS_MAX] = {0};
    int row = 0;
    for (int i = 0; i < n; i++) {
        g->pass->logits_row[i] = gpu_has_logits(of[i]->s) ? of[i]->s->gpu->logits_first + of[i]->s->last_row : -1;
        if (g->pass->logits_row[i] >= 0) taken[g->pass->logits_row[i]] = 1;
    }
    for (int i = 0; i < n; i++) {
        if (g->pass->logits_row[i] >= 0) continue;
        while (taken[row]) row++;
        taken[row] = 1;
        gpu_bring_logits(of[i]->s, row);
        g->pass->logits_row[i] = row;
    }
}

/* Queues the choice of the first n sequences' next tokens: each becomes the first of its step, and is posted. */
static void gpu_pass_choose(const gpu_form *f, int n) {
    struct gpu_runner *g = f->r->gpu;
    gpu_sampling p = gpu_choice_of(g, g->logits, n, known_vocab(f->r->m));
    p.parameters_step = 1;
    p.sequences = n;
    p.rows = g->table->logits_row;
    p.stride = (size_t)f->r->m->c.vocab;
    p.mailbox = g->mailbox;
    g->sequence++;
    gpu_sample(&g->q, KERNEL_SAMPLE_TOKEN, &p, sample_token);
    gpu_submit(&g->q);
}

/* Waits for these tokens. A request whose logits were not numbers fails alone. */
static int gpu_pass_chosen(mote_runner *r, pass_request *const *of, int n, mote_error *err) {
    int code = MOTE_OK, one;
    for (int i = 0; i < n && !code; i++) {
        code = mailbox_wait(r, i, of[i]->ids, &one, err);
        if (!code && *of[i]->ids < 0) of[i]->code = gpu_not_a_number(&of[i]->error);
    }
    return code;
}

/* Copies the logits that a block's request wants; returns whether there are any. */
static int gpu_pass_logits(const pass_request *q, int first) {
    struct gpu_runner *g = q->s->runner->gpu;
    const size_t vocab = (size_t)q->s->m->c.vocab;
    const int rows = q->b->logits ? q->b->T : q->b->last, from = q->b->logits ? first : first + q->b->T - 1;
    if (!rows || !runner_answers(q->s->runner)) return 0;
    float *to = q->b->logits ? q->b->logits : q->s->logits;
    gpu_move(&g->q, to, g->logits + (size_t)from * vocab, (size_t)rows * vocab * sizeof(float), "reading the logits");
    q->s->logits_here = !q->b->logits;
    q->s->logits_in_block = q->b->logits && q->b->logits == q->s->block_logits;
    return 1;
}

/* The same of all blocks among the requests, and waits for them. wait: in any case, as who calls measures what a pass takes; what a group's
   members return from they may still compute. */
static int gpu_pass_read(mote_runner *r, pass_request *const *of, int n, int wait, mote_error *err) {
    struct gpu_runner *g = r->gpu;
    if (r->me) wait = 0;
    for (int i = 0; i < n; i++)
        if (of[i]->kind == REQUEST_FORWARD) wait |= gpu_pass_logits(of[i], g->pass->first[i]);
    if (wait) gpu_check(&g->q, cudaStreamSynchronize(g->stream), "a pass");
    return gpu_failed(&g->q, err);
}

/* Steps and blocks. The first `steps` requests are steps: while the GPU computes them their tokens are on their way to the host. */
static int gpu_pass_steps(pass_request *const *of, int n, int steps, mote_error *err) {
    mote_runner *r = of[0]->s->runner;
    gpu_form f;
    gpu_pass_begin(&f, of[0]->s);
    if (steps) gpu_place_logits(of, steps);
    for (int i = 0; i < n; i++) gpu_pass_shorten(of[i]);
    for (int i = 0; i < n; i++) gpu_pass_add(&f, of[i], i < steps ? 0 : -1);
    gpu_pass_send(&f);
    if (steps) gpu_pass_choose(&f, steps);
    gpu_pass_run(&f, of, -1);
    int code = gpu_failed(&r->gpu->q, err);
    if (!code) code = gpu_pass_chosen(r, of, steps, err);
    return code ? code : gpu_pass_read(r, of, n, !steps, err);
}

/* Whether the request's token is to be chosen, and then is all that its block consists of. */
static int gpu_begins(const pass_request *q) {
    return q->b->rows->id < 0 && (q->kind == REQUEST_STEP || (q->kind == REQUEST_CYCLE && q->b->T == 1));
}

/* Chooses the tokens of the first n requests, and waits for them. */
static int gpu_choose_first(pass_request *const *of, int n, mote_error *err) {
    mote_runner *r = of[0]->s->runner;
    gpu_form f;
    if (!n) return MOTE_OK;
    gpu_pass_begin(&f, of[0]->s);
    gpu_place_logits(of, n);
    for (int i = 0; i < n; i++) gpu_pass_add(&f, of[i], 0);
    gpu_pass_send(&f);
    gpu_pass_choose(&f, n);
    return gpu_pass_chosen(r, of, n, err);
}

/* The rows of tables for n requests, whose chosen tokens are known, in their order; those that cannot be read have their code, and are left out of
   `of`. Returns how many there are; -1: none of them can be computed. */
static int gpu_pass_look_up(mote_runner *r, pass_request **of, int n, mote_error *err) {
    gpu_tokens tokens[PASS_ROWS_MAX];
    int32_t ids[PASS_ROWS_MAX][MOTE_ROWS_MAX];
    int count = 0;
    for (int i = 0; i < n; i++) {
        const block *b = of[i]->b;
        const int known = b->rows->id >= 0, begins = gpu_begins(of[i]);
        const gpu_tokens one = {.s = of[i]->s, .rows = b->rows, .ids = known ? NULL : begins ? of[i]->ids : ids[i], .T = b->T, .replay = b->replay};
        if (!known && !begins && gpu_prepared(of[i]->s, b->T, ids[i], err)) return -1;
        tokens[i] = one;
    }
    if (!gpu_look_up(r, tokens, n, err)) return n;
    if (r->gpu->q.status != cudaSuccess) return -1;
    for (int i = 0; i < n; i++) {                           /* what cannot be read is one session's failure */
        of[i]->code = gpu_fetch_rows_alone(r, &tokens[i], &of[i]->error);
        if (of[i]->code) continue;
        tokens[count] = tokens[i];
        of[count++] = of[i];
    }
    return count && gpu_look_up(r, tokens, count, err) ? -1 : count;
}

/* Cycles, see gpu_cycle, and what else there is: it is verified and drafts for nothing. All make as many drafts as the one that wants
   most. Of a model with tables steps alone, too. The first `begin` requests are those of gpu_begins. */
static int gpu_pass_cycles(pass_request *const *all, int n, int begin, mote_error *err) {
    mote_runner *r = all[0]->s->runner;
    struct gpu_runner *g = r->gpu;
    pass_request *of[PASS_ROWS_MAX];
    int drafts = -1, count = 0, waited = begin > 0;
    gpu_form f;
    int code = gpu_choose_first(all, begin, err);
    if (begin) g->logits_pass++;                            /* logits of other slots may have been overwritten */
    if (code) return code;
    for (int i = 0; i < n; i++)
        if (!all[i]->code) of[count++] = all[i];
    if (count && gpu_table_layer(r->m) >= 0) count = gpu_pass_look_up(r, of, count, err);
    if (count < 0) return err->code;
    if (!count) return MOTE_OK;
    gpu_pass_begin(&f, all[0]->s);
    for (int i = 0; i < count; i++) {
        gpu_pass_shorten(of[i]);
        drafts = max_int(drafts, of[i]->kind == REQUEST_CYCLE ? of[i]->drafts : -1);
        gpu_pass_add(&f, of[i], gpu_begins(of[i]) ? *of[i]->ids : -1);
    }
    gpu_pass_send(&f);
    gpu_pass_run(&f, of, drafts);
    if (drafts >= 0) g->sequence++;
    code = gpu_failed(&g->q, err);
    for (int i = 0; i < count && !code; i++) {
        if (of[i]->kind != REQUEST_CYCLE) continue;
        of[i]->s->gpu->posted.sequence = g->sequence;
        of[i]->s->gpu->posted.z = i;
        code = mailbox_wait(r, i, of[i]->ids + 1, of[i]->count, err);
        waited = 1;
    }
    return code ? code : gpu_pass_read(r, of, count, !waited, err);
}

/* Drafts for the host, as many of each as the one that wants most. */
static int gpu_pass_drafts(pass_request *const *of, int n, mote_error *err) {
    mote_runner *r = of[0]->s->runner;
    struct gpu_runner *g = r->gpu;
    int drafts = 0;
    gpu_form f;
    gpu_pass_begin(&f, of[0]->s);
    for (int i = 0; i < n; i++) {
        gpu_pass_add(&f, of[i], -1);
        drafts = max_int(drafts, of[i]->drafts);
    }
    gpu_pass_send(&f);
    f.rows.T = 0;                                           /* no block: drafts alone */
    cudaGraphExec_t graph = gpu_pass_graph_of(&f, GPU_NO_LOGITS, drafts);
    if (g->q.status == cudaSuccess) gpu_check(&g->q, cudaGraphLaunch(graph, g->stream), "launching drafts");
    gpu_move(&g->q, g->pass->steps, g->table->steps, (size_t)n * sizeof *g->pass->steps, "reading drafts");
    gpu_check(&g->q, cudaStreamSynchronize(g->stream), "drafts");
    for (int i = 0; i < n; i++) {
        memcpy(of[i]->ids, g->pass->steps[i].ids + 1, (size_t)of[i]->drafts * sizeof *of[i]->ids);
        for (int k = 0; k < of[i]->drafts; k++) of[i]->confidence[k] = g->mailbox[i].confidence[k];
    }
    return gpu_failed(&g->q, err);
}

/* Requests whose slots are alike with respect to what drafts, and that a pass can do. */
static int gpu_pass_alike(pass_request *const *of, int n, mote_error *err) {
    pass_request *sorted[PASS_ROWS_MAX];
    int begin = 0, cycles = 0, count = 0;
    const int drafts = of[0]->kind == REQUEST_DRAFT;
    for (int i = 0; i < n; i++) of[i]->s->gpu->replay = of[i]->b->replay;
    if (drafts) return gpu_pass_drafts(of, n, err);
    for (int begins = 1; begins >= 0; begins--)
        for (int i = 0; i < n; i++)
            if (gpu_begins(of[i]) == begins) sorted[count++] = of[i];
    for (int i = 0; i < n; i++) {
        begin += gpu_begins(of[i]);
        cycles += of[i]->kind == REQUEST_CYCLE;
    }
    return cycles || gpu_table_layer(of[0]->s->m) >= 0 ? gpu_pass_cycles(sorted, n, begin, err) : gpu_pass_steps(sorted, n, begin, err);
}

/* A block whose MTP logits or residual are wanted, or of more rows than a step takes, is computed alone. */
static int gpu_passes_alone(const pass_request *q) {
    return q->kind != REQUEST_DRAFT && (q->b->T > STEP_ROWS || (q->kind == REQUEST_FORWARD && (q->b->mtp_logits || q->b->residual_rows)));
}

static void gpu_draft_blocks(mote_runner *r, pass_request *const *of, int n);

static void gpu_pass(mote_runner *r, pass_request *const *of, int n) {
    pass_request *some[PASS_ROWS_MAX];
    gpu_check(&r->gpu->q, cudaSetDevice(r->m->device.gpu), "choosing the GPU");
    if (of[0]->kind == REQUEST_BLOCK) {
        gpu_draft_blocks(r, of, n);
        return;
    }
    for (int i = 0; i < n; i++)
        if (gpu_passes_alone(of[i])) pass_compute(r, &of[i], 1);
    for (int drafts = 0; drafts < 2; drafts++) {
        mote_error error;
        int count = 0;
        for (int i = 0; i < n; i++)
            if (!gpu_passes_alone(of[i]) && gpu_drafts(of[i]->s) == drafts) some[count++] = of[i];
        if (!count) continue;
        const int code = count > 1 ? gpu_pass_alike(some, count, &error) : (pass_compute(r, some, 1), MOTE_OK);
        for (int i = 0; i < count && code; i++) some[i]->code = code, some[i]->error = error;
    }
}

/* Whether the stream still has something to do. */
static int gpu_computes(const mote_runner *r) {
    return r->gpu->q.status == cudaSuccess && cudaStreamQuery(r->gpu->stream) == cudaErrorNotReady;
}
