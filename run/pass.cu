/* run/pass.cu: passes of several sessions on a GPU: steps, blocks and cycles of up to PASS_ROWS_MAX rows at once. A row has the bits
   that run/step.cu's steps of its session alone give it.

   No slot is resident in a pass. Its steps lie one after the other in the pass table, which the host builds and copies there in front of
   the pass; behind it, what a session's next call needs goes home: step_parameters and the residual rows. Only logits stay
   in the runner's scratch, until others are written there: whoever comes next with the session asks whether they are still there, and
   else computes them again from the residual rows.

   A captured pass is used again by every pass of as many rows and sequences. Its blocks for keys and values are as many as the longest
   session needs, in powers of two. */

/* Sends home what the slots need: a row of blocks for each token row. Grid: (ceil(columns / 256), rows). */
static __global__ void gpu_pass_home(gpu_pass_table *table, const float *x, int cols) {
    const int row = blockIdx.y, z = table->sequence_of[row], t = row - table->first[z];
    const int col = blockIdx.x * GPU_THREADS + threadIdx.x;
    if (col < cols) table->home[z].x[(size_t)t * cols + col] = x[(size_t)row * cols + col];
    if (col || t) return;
    step_parameters step = table->steps[z];
    step.first = step.rows = 0;
    *table->home[z].step = step;
}

/* Fetches the tokens that the slots have had prepared. One block. */
static __global__ void gpu_pass_ids(gpu_pass_table *table, int sequences) {
    const int z = threadIdx.x;
    for (int t = 0; z < sequences && table->keeps_ids[z] && t < MOTE_ROWS_MAX; t++) table->steps[z].ids[t] = table->home[z].step->ids[t];
}

/* Begins the table of a pass: no slot is resident, there are no sequences. */
static void gpu_pass_begin(mote_runner *r, gpu_form *f, int has_mtp) {
    struct gpu_runner *g = r->gpu;
    gpu_swap_out(g);
    memset(&g->sampling_on_device, 0xff, sizeof g->sampling_on_device);         /* the table overwrites them */
    memset(f, 0, sizeof *f);
    f->r = r;
    f->has_mtp = has_mtp;
    f->one_each = 1;
}

/* The blocks for the keys of so many tokens, and of drafts after them. */
static int gpu_splits_for(const struct gpu_runner *g, int tokens) {
    int splits = ATTEND_CLUSTER;
    while (splits * ATTEND_CHUNK < tokens + MOTE_ROWS_MAX) splits *= 2;
    return min_int(splits, g->layers.attention.splits);
}

/* Adds a request's block; ids NULL: its tokens are those that its slot had prepared. */
static void gpu_pass_add(gpu_form *f, const request *q, const int32_t *ids) {
    struct gpu_runner *g = f->r->gpu;
    gpu_pass_table *to = g->pass;
    const int z = f->sequences++;
    step_parameters step = gpu_step_of(q->s);
    step.position = q->b->position;
    step.replay = q->b->replay;
    step.sequence = g->sequence;
    step.first = f->T;
    step.rows = q->b->T;
    for (int t = 0; ids && t < q->b->T; t++) step.ids[t] = ids[t];
    for (int t = 0; t < q->b->T; t++) to->sequence_of[f->T++] = (uint8_t)z;
    to->steps[z] = step;
    to->first[z] = step.first;
    to->keeps_ids[z] = !ids;
    to->home[z].step = q->s->gpu->step;
    to->home[z].x = q->s->gpu->x;
    if (q->sampling) gpu_sampling_of(q->sampling, &q->s->gpu->sampling), to->sampling[z] = q->s->gpu->sampling;
    f->one_each &= q->b->T == 1;
    f->splits = max_int(f->splits, gpu_splits_for(g, q->b->position + q->b->T));
}

/* Copies the table to the GPU. */
static void gpu_pass_send(const gpu_form *f) {
    struct gpu_runner *g = f->r->gpu;
    gpu_check(&g->q, cudaMemcpyAsync(g->table, g->pass, sizeof *g->pass, cudaMemcpyHostToDevice, g->stream), "copying a pass");
    for (int z = 0; z < f->sequences; z++) {
        if (!g->pass->keeps_ids[z] || g->q.status != cudaSuccess) continue;
        gpu_pass_ids<<<1, PASS_ROWS_MAX, 0, g->stream>>>(g->table, f->sequences);
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

/* Runs the pass of the table, with `drafts` for each sequence (-1: it is no cycle), and sends home what stays. */
static void gpu_pass_run(const gpu_form *f, request *const *of, int drafts) {
    struct gpu_runner *g = f->r->gpu;
    const int cols = f->r->m->c.hidden;
    cudaGraphExec_t graph = gpu_pass_graph_of(f, GPU_ALL_LOGITS, drafts);
    g->logits_pass++;
    if (g->q.status != cudaSuccess || !gpu_check(&g->q, cudaGraphLaunch(graph, g->stream), "launching a pass")) return;
    gpu_pass_home<<<dim3((unsigned)((cols - 1) / GPU_THREADS + 1), (unsigned)f->T), GPU_THREADS, 0, g->stream>>>(g->table, g->x, cols);
    gpu_check(&g->q, cudaGetLastError(), "the end of a pass");
    for (int i = 0; i < f->sequences; i++) {
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
    if (s->logits_here)
        gpu_check(&g->q, cudaMemcpyAsync(to, s->logits, vocab * sizeof(float), cudaMemcpyHostToDevice, g->stream), "copying logits");
    else gpu_head(&g->q, &m->lm_head, m->norm, s->gpu->x + (size_t)s->last_row * (size_t)m->c.hidden, 1, m->c.eps, to);
    gpu_submit(&g->q);
}

/* Fills in where each request's logits are; those that are not there come into rows that none of the others has. */
static void gpu_place_logits(request *const *of, int n) {
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

/* Queues the choice of each sequence's next token: it becomes the first of its step, and is posted. */
static void gpu_pass_choose(const gpu_form *f) {
    struct gpu_runner *g = f->r->gpu;
    gpu_sampling p;
    memset(&p, 0, sizeof p);
    p.parameters = g->parameters;
    p.parameters_step = 1;
    p.sequences = p.T = f->sequences;
    p.rows = g->table->logits_row;
    p.logits = g->logits;
    p.stride = (size_t)f->r->m->c.vocab;
    p.n = known_vocab(f->r->m);
    p.topk = g->topk;
    p.step = g->step;
    p.mailbox = g->mailbox;
    g->sequence++;
    gpu_sample(&g->q, KERNEL_SAMPLE_TOKEN, &p, sample_token);
    gpu_submit(&g->q);
}

/* A plain step of each. */
static int gpu_pass_steps(request *const *of, int n, mote_error *err) {
    mote_runner *r = of[0]->s->runner;
    struct gpu_runner *g = r->gpu;
    static const int32_t none = 0;
    gpu_form f;
    gpu_pass_begin(r, &f, of[0]->s->has_mtp);
    gpu_place_logits(of, n);
    for (int i = 0; i < n; i++) gpu_pass_add(&f, of[i], &none);
    gpu_pass_send(&f);
    gpu_pass_choose(&f);
    gpu_pass_run(&f, of, -1);
    int code = gpu_failed(&g->q, err);
    for (int i = 0, count; i < n && !code; i++) {
        code = mailbox_wait(r, i, of[i]->ids, &count, err);
        if (!code && *of[i]->ids < 0) of[i]->code = gpu_not_a_number(&of[i]->error);
    }
    return code;
}

/* Copies the logits that a request wants of its block; returns whether there are any. */
static int gpu_pass_logits(const request *q, int first) {
    struct gpu_runner *g = q->s->runner->gpu;
    const size_t vocab = (size_t)q->s->m->c.vocab;
    const int rows = q->b->logits ? q->b->T : q->b->last, from = q->b->logits ? first : first + q->b->T - 1;
    if (!rows) return 0;
    gpu_check(&g->q, cudaMemcpyAsync(q->b->logits ? q->b->logits : q->s->logits, g->logits + (size_t)from * vocab,
                                     (size_t)rows * vocab * sizeof(float), cudaMemcpyDeviceToHost, g->stream), "reading the logits");
    q->s->logits_here = !q->b->logits;
    q->s->logits_in_block = q->b->logits && q->b->logits == q->s->block_logits;
    return 1;
}

/* A block of each. */
static int gpu_pass_blocks(request *const *of, int n, mote_error *err) {
    mote_runner *r = of[0]->s->runner;
    struct gpu_runner *g = r->gpu;
    int wait = 0;
    gpu_form f;
    gpu_pass_begin(r, &f, of[0]->s->has_mtp);
    for (int i = 0; i < n; i++) gpu_pass_add(&f, of[i], of[i]->b->ids);
    gpu_pass_send(&f);
    gpu_pass_run(&f, of, -1);
    for (int i = 0; i < n; i++) wait |= gpu_pass_logits(of[i], g->pass->first[i]);
    if (wait) gpu_check(&g->q, cudaStreamSynchronize(g->stream), "a pass");
    return gpu_failed(&g->q, err);
}

/* Chooses the first token of those whose block is that alone. Requests that fail leave the list. */
static int gpu_choose_first(request **of, int *n, mote_error *err) {
    mote_runner *r = of[0]->s->runner;
    request *begins[PASS_ROWS_MAX];
    static const int32_t none = 0;
    int count = 0, kept = 0, one, code = MOTE_OK;
    gpu_form f;
    for (int i = 0; i < *n; i++)
        if (of[i]->b->T == 1) begins[count++] = of[i];
    if (!count) return MOTE_OK;
    gpu_pass_begin(r, &f, of[0]->s->has_mtp);
    gpu_place_logits(begins, count);
    for (int i = 0; i < count; i++) gpu_pass_add(&f, begins[i], &none);
    gpu_pass_send(&f);
    gpu_pass_choose(&f);
    for (int i = 0; i < count && !code; i++) {
        code = mailbox_wait(r, i, begins[i]->ids, &one, err);
        if (!code && *begins[i]->ids < 0) begins[i]->code = gpu_not_a_number(&begins[i]->error);
    }
    for (int i = 0; i < *n; i++)
        if (!of[i]->code) of[kept++] = of[i];
    *n = kept;
    return code;
}

/* A cycle of each: see gpu_cycle. All make as many drafts as the one that wants most; the others ignore theirs. */
static int gpu_pass_cycles(request *const *all, int n, mote_error *err) {
    mote_runner *r = all[0]->s->runner;
    struct gpu_runner *g = r->gpu;
    request *of[PASS_ROWS_MAX];
    int drafts = 0;
    gpu_form f;
    memcpy(of, all, (size_t)n * sizeof *of);
    int code = gpu_choose_first(of, &n, err);
    if (code || !n) return code;
    gpu_pass_begin(r, &f, 1);
    for (int i = 0; i < n; i++) drafts = max_int(drafts, of[i]->drafts);
    for (int i = 0; i < n; i++) gpu_pass_add(&f, of[i], of[i]->b->T == 1 ? of[i]->ids : NULL);
    gpu_pass_send(&f);
    gpu_pass_run(&f, of, drafts);
    g->sequence++;
    code = gpu_failed(&g->q, err);
    for (int i = 0; i < n && !code; i++) code = mailbox_wait(r, i, of[i]->ids + 1, of[i]->count, err);
    return code;
}

/* Requests of one kind, whose slots are alike with respect to the MTP layer. */
static int gpu_pass_alike(request *const *of, int n, mote_error *err) {
    switch (of[0]->kind) {
        case REQUEST_STEP: return gpu_pass_steps(of, n, err);
        case REQUEST_CYCLE: return gpu_pass_cycles(of, n, err);
        default: return gpu_pass_blocks(of, n, err);
    }
}

/* Drafts for the host, and a block whose MTP logits are wanted, are computed alone. */
static int gpu_passes_alone(const request *q) {
    return q->kind == REQUEST_DRAFT || (q->kind == REQUEST_FORWARD && q->b->mtp_logits);
}

static void gpu_pass(mote_runner *r, request *const *of, int n) {
    request *some[PASS_ROWS_MAX];
    gpu_check(&r->gpu->q, cudaSetDevice(r->m->gpu), "choosing the GPU");
    for (int i = 0; i < n; i++)
        if (gpu_passes_alone(of[i])) pass_compute(r, &of[i], 1);
    for (int has_mtp = 0; has_mtp < 2; has_mtp++) {
        mote_error error;
        int count = 0;
        for (int i = 0; i < n; i++)
            if (!gpu_passes_alone(of[i]) && of[i]->s->has_mtp == has_mtp) some[count++] = of[i];
        if (!count) continue;
        const int code = count > 1 ? gpu_pass_alike(some, count, &error) : (pass_compute(r, some, 1), MOTE_OK);
        for (int i = 0; i < count && code; i++) some[i]->code = code, some[i]->error = error;
    }
}

/* Whether the stream still has something to do. */
static int gpu_computes(const mote_runner *r) {
    return r->gpu->q.status == cudaSuccess && cudaStreamQuery(r->gpu->stream) == cudaErrorNotReady;
}
