/* run/cuda/step.cu: the forward pass on a GPU: CUDA graphs (run/cuda/record.cu), launched by the host. It knows slots and the model.

   A step is of one to four rows; longer blocks are run/cuda/turns.cu's. Its kernels are recorded and linked (gpu_submit), and the launches
   captured once, as a CUDA graph for each number of rows and each kind of result (gpu_kind), and replayed. What changes from step to step
   (position, accepted rows, tokens) is in step_parameters, which gpu_put or the sampler writes before the graph runs; what changes from slot to
   slot is there, too.

   The host never waits inside a step. gpu_step queues the sampling of a token and the step that runs this token, and
   returns when the token is in the mailbox, while the GPU is still computing. So the logits of the last row stay on the GPU
   until something reads them, and lm_head itself runs only for rows whose logits are wanted.
   A model with tables that stay in files is the exception: its step is queued when the host has the token, and the rows that go by it.

   A cycle of speculation is one graph, too, for each number of rows and of drafts: the step; gpu_accept, which chooses what
   follows each row, writes step_parameters for the next cycle and posts the tokens to the mailbox; and the drafts that the
   next cycle verifies. While the GPU drafts, the host reads the tokens and queues the next cycle. */

/* The parameters of a slot's first step: those that all its steps have. */
static step_parameters gpu_step_of(const slot *s) {
    const struct gpu_runner *g = s->runner->gpu;
    const int granules = (s->context + KV_GRANULE - 1) / KV_GRANULE;
    step_parameters step;
    memset(&step, 0, sizeof step);
    step.context = s->context;
    step.kv_granules = granules - 1;
    step.past_ring = max_int(granules - gpu_ring(s->runner) / KV_GRANULE, 0);
    step.shift = (int64_t)((uintptr_t)s->memory - (uintptr_t)g->capture_base.memory);
    return step;
}

/* What the part can make of what is wanted: ranges before the last have no logits. */
static enum gpu_kind gpu_kind_of(const mote_runner *r, enum gpu_kind wanted) {
    return part_is_last(&r->m->part) ? wanted : GPU_NO_LOGITS;
}

static void gpu_launched(slot *s, int T, enum gpu_kind kind) {
    s->last_row = T - 1;
    s->logits_here = s->logits_set = s->logits_in_block = 0;
    if (kind != GPU_NO_LOGITS) s->runner->gpu->logits_pass++;
    s->runner->gpu->logits_of = kind == GPU_NO_LOGITS ? LOGITS_NOWHERE : kind == GPU_LAST_LOGITS ? LOGITS_OF_LAST : LOGITS_OF_ALL;
}

/* Launches a graph whose step has T rows of x (0: it has none), which come from another host, or go to one, if the part's neighbours are there. */
static void gpu_launch_rows(const mote_runner *r, cudaGraphExec_t graph, int T, const char *what) {
    struct gpu_runner *g = r->gpu;
    const size_t n = (size_t)T * (size_t)model_width(r->m);
    if (n) hosts_receive(&g->q, &g->hosts, g->x, n);
    if (g->q.status == cudaSuccess) gpu_check(&g->q, cudaGraphLaunch(graph, g->stream), what);
    if (n) hosts_send(&g->q, &g->hosts, g->x, n);
}

/* Launches the graph of a step, captured if this is the first time. step_parameters are set by an earlier launch. */
static void gpu_launch_step(slot *s, int T, enum gpu_kind kind) {
    struct gpu_runner *g = s->runner->gpu;
    cudaGraphExec_t *graph = &g->graph[gpu_drafts(s)][kind][T];
    if (!*graph) *graph = gpu_capture(s, T, kind, -1);
    gpu_launch_rows(s->runner, *graph, T, "launching a step");
    gpu_launched(s, T, kind);
}

static cudaGraphExec_t gpu_turns_graph(const slot *s, int T, int position, enum gpu_kind kind, int drafts);

/* The graph of a cycle at that position, captured if this is the first time. */
static cudaGraphExec_t gpu_cycle_graph(slot *s, int T, int position, int drafts) {
    if (T > STEP_ROWS) return gpu_turns_graph(s, T, position, GPU_ALL_LOGITS, drafts);
    cudaGraphExec_t *graph = &s->runner->gpu->cycle[T][drafts];
    if (!*graph) *graph = gpu_capture(s, T, GPU_ALL_LOGITS, drafts);
    return *graph;
}

/* Launches it. It posts to the mailbox unless T is 0. */
static void gpu_launch_cycle(slot *s, int T, int position, int drafts) {
    struct gpu_runner *g = s->runner->gpu;
    cudaGraphExec_t graph = gpu_cycle_graph(s, T, position, drafts);
    gpu_launch_rows(s->runner, graph, gpu_rows_of_block(T), "launching a cycle");
    if (!T) return;
    s->gpu->drafted = s->gpu->posted.sequence = ++g->sequence;
    s->gpu->posted.z = 0;
    gpu_launched(s, T, GPU_ALL_LOGITS);
}

/* The logits after the timeline's last row, on the GPU: records lm_head for them if the step left it out, or another slot has been
   resident since. */
static const float *gpu_last_logits(slot *s) {
    struct gpu_runner *g = s->runner->gpu;
    const mote_model *m = s->m;
    const size_t row = (size_t)s->last_row, vocab = (size_t)m->c.vocab;
    if (s->logits_set) g->logits_of = LOGITS_NOWHERE;
    if (g->logits_of == LOGITS_OF_ALL) return g->logits + row * vocab;
    if (g->logits_of == LOGITS_NOWHERE) g->logits_pass++;
    if (g->logits_of == LOGITS_NOWHERE && s->logits_here)
        gpu_move(&g->q, g->logits, s->logits, vocab * sizeof(float), "copying logits");
    else if (g->logits_of == LOGITS_NOWHERE)
        gpu_record_head(s->runner, &g->q, 0, &m->lm_head, m->c.vocab, g->x + row * (size_t)model_width(m), 1, g->logits);
    g->logits_of = LOGITS_OF_LAST;
    s->logits_set = 0;
    return g->logits;
}

/* Copies these to s->logits. */
static int gpu_fetch_logits(slot *s, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    int code = gpu_enter(s, err);
    if (code) return code;
    const float *logits = gpu_last_logits(s);
    gpu_submit(&g->q);
    if (!runner_answers(s->runner)) return gpu_failed(&g->q, err);
    gpu_move(&g->q, s->logits, logits, (size_t)s->m->c.vocab * sizeof(float), "reading the logits");
    code = gpu_finish(s, err);
    s->logits_here = !code;
    return code;
}

/* What a block of T rows is to repeat of a log of `replay` accepted rows: if these are more than its kernels take, the log becomes
   shorter. The block must follow. */
static int gpu_log_left(slot *s, int replay, int T) {
    struct gpu_runner *g = s->runner->gpu;
    const mote_model *m = s->m;
    if (T > STEP_ROWS || replay <= STEP_ROWS) return replay;
    for (int i = 0; i < m->c.layers + s->has_mtp && g->q.status == cudaSuccess; i++)
        if (model_has_layer(m, i)) gpu_check(&g->q, layer_shorten_log(g->stream, model_layer(m, i), &s->state[i]), "shortening a log");
    return replay - STEP_ROWS;
}

/* A row of an image in a step, or the first one after it, for models whose prompts are read in steps, and so slowly: it is alone there. Kernels of a
   step rotate by index less lag, the same on all axes. So the lag of such a step says that the row stands at ROW_AT = 2, and the row before it, which
   is the MTP layer's, at 1; and while the step runs frequencies are multiplied by the axes of those rows' positions, over 2 and 1. The angles are the
   floats that position times frequency is, as 2 (x / 2) is x. */
enum { ROW_AT = 2 };

/* A layer's frequencies for a row that stands at `stands`, or with row NULL again those of text. i: the layer's number in `to`. */
static void gpu_turn_layer(struct gpu_runner *g, const attention_gpu *to, int i, const attention_weights *w, const token_row *row, int stands) {
    enum { SOME = 64 };
    const int n = w->shape.rotary_dim / 2;
    float turned[SOME], *at = to->frequencies + (size_t)i * (size_t)to->frequencies_size;
    for (int k = 0; k < n; k++) {
        turned[k % SOME] = row ? (float)row->position[rope_axis(w->axes, k)] * w->frequencies[k] / (float)stands : w->frequencies[k];
        if (k % SOME == SOME - 1 || k == n - 1)
            gpu_move(&g->q, at + k / SOME * SOME, turned, (size_t)(k % SOME + 1) * sizeof *turned, "turning frequencies");
    }
}

/* Frequencies for a step of rows[0], or with NULL again those of text. */
static void gpu_turn_frequencies(slot *s, const token_row *rows) {
    const mote_model *m = s->m, *d = slot_drafter(s);
    struct gpu_runner *g = s->runner->gpu;
    for (int i = m->part.first; i < m->c.layers + s->has_mtp; i++) {
        const sublayer *of = &model_layer(m, i)->mixer;
        const int mtp = i == m->c.layers;
        if (of->kind == LAYER_ATTENTION && model_has_layer(m, i))
            gpu_turn_layer(g, &g->layers.attention, i, &of->w.attention, rows ? rows - mtp : NULL, ROW_AT - mtp);
    }
    for (int i = 0; d && i < d->c.layers; i++) gpu_turn_layer(g, &g->drafter.layers.attention, i, &d->layers[i].mixer.w.attention, rows, ROW_AT);
}

/* The step of the block's row, an image's; it is launched between the two. */
static void gpu_begin_image_row(slot *s, const block *b) {
    struct gpu_runner *g = s->runner->gpu;
    if (b->rows->embedding) gpu_move(&g->q, g->given_row, b->rows->embedding, (size_t)s->m->c.hidden * sizeof(float), "copying a row of an image");
    gpu_turn_frequencies(s, b->rows);
}

static void gpu_end_image_row(slot *s) {
    gpu_turn_frequencies(s, NULL);
}

/* replay: of these rows, those that the log has. image: gpu_begin_image_row follows. */
static void gpu_set_step(slot *s, const block *b, int replay, int image) {
    struct gpu_runner *g = s->runner->gpu;
    step_parameters step = gpu_step_of(s);
    step.index = b->rows->index;
    step.lag = row_lag(b->rows);
    step.accepted = b->replay;
    step.replay = replay;
    step.sequence = g->sequence;
    for (int t = 0; t < b->T; t++) step.ids[t] = b->rows[t].id;
    if (image) step.lag = step.index - ROW_AT;
    if (b->rows->embedding) step.ids[0] = -1;
    gpu_put(&g->q, g->step, &step);
}

static int gpu_forward_in_turn(slot *s, const block *b, mote_error *err);

/* Copies the rows of x that are wanted to the host, of streams what the head is multiplied with; x: [T][width] of the block. */
static void gpu_read_residual(slot *s, const block *b, float *x) {
    const mote_model *m = s->m;
    struct gpu_runner *g = s->runner->gpu;
    const size_t hidden = (size_t)m->c.hidden, width = (size_t)model_width(m);
    const int rows = runner_answers(s->runner) ? b->residual_rows : 0, most = m->c.streams ? PASS_ROWS_MAX : max_int(rows, 1);
    float *from = x + (size_t)(b->T - rows) * width;
    const float *read = m->c.streams ? g->layers.streams.u : from;
    for (int t = 0, n; t < rows; t += n) {
        n = min_int(rows - t, most);
        if (m->c.streams) streams_record_read(&g->q, &g->layers.streams, &m->mixer, from + (size_t)t * width, n, m->c.hidden, m->c.eps);
        gpu_submit(&g->q);
        gpu_move(&g->q, b->residual + (size_t)t * hidden, read, (size_t)n * hidden * sizeof(float), "reading the residual");
    }
}

/* Waits for the GPU only if it copies logits or rows to the host. */
static int gpu_forward(slot *s, const block *b, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    const size_t vocab = (size_t)s->m->c.vocab, T = (size_t)b->T, skip = b->rows->index == 0;
    const enum gpu_kind wanted = b->mtp_logits ? GPU_MTP_LOGITS : b->logits ? GPU_ALL_LOGITS : b->last ? GPU_LAST_LOGITS : GPU_NO_LOGITS;
    if (b->T > STEP_ROWS) return gpu_forward_in_turn(s, b, err);
    int code = gpu_enter(s, err);
    if (!code) code = gpu_look_up_block(s, b, NULL, err);
    if (code) return code;
    const int image = b->T == 1 && !row_follows_text(b->rows);
    gpu_set_step(s, b, gpu_log_left(s, b->replay, b->T), image);
    if (image) gpu_begin_image_row(s, b);
    gpu_launch_step(s, b->T, gpu_kind_of(s->runner, wanted));
    if (image) gpu_end_image_row(s);
    s->logits_in_block = b->logits && b->logits == s->block_logits;
    if (!runner_answers(s->runner)) return gpu_failed(&g->q, err);
    if (b->logits) gpu_move(&g->q, b->logits, g->logits, T * vocab * sizeof(float), "reading the logits");
    if (b->mtp_logits && T > skip)
        gpu_move(&g->q, b->mtp_logits, g->mtp_logits + skip * vocab, (T - skip) * vocab * sizeof(float), "reading the MTP logits");
    gpu_read_residual(s, b, g->x);
    return b->logits || b->mtp_logits || b->residual_rows ? gpu_finish(s, err) : gpu_failed(&g->q, err);
}

/* Tokens that the GPU has prepared for the next pass wait in the slot meanwhile. */
static int gpu_commit_state(slot *s, const block *b, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    int code = gpu_enter(s, err);
    if (code) return code;
    gpu_move(&g->q, s->gpu->step, g->step, sizeof *g->step, "changing the session");
    code = gpu_forward(s, b, err);
    gpu_resume(&g->q, g->step, s->gpu->step, g->sequence, 0, 0);
    return code;
}

/* Waits until this word of the mailbox has the current sequence number. Polls pinned memory; every 4,096 polls it asks the stream whether
   it has failed or, without a post, is done. The second look is needed: the post may have come between the poll and the query. */
static int mailbox_await(struct gpu_runner *g, const volatile uint64_t *posted, mote_error *err) {
    for (unsigned i = 1; *posted >> 32 != g->sequence; i++) {
        if (i % 4096) continue;
        cudaError_t status = cudaStreamQuery(g->stream);
        if (status != cudaErrorNotReady && *posted >> 32 != g->sequence)
            gpu_check(&g->q, status == cudaSuccess ? cudaErrorUnknown : status, "sampling");
        if (g->q.status != cudaSuccess) return gpu_failed(&g->q, err);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return gpu_failed(&g->q, err);
}

/* Waits for sequence z's post: *count ids; the last is -1 if a logit was NaN. */
static int mailbox_wait(mote_runner *r, int z, int32_t *ids, int *count, mote_error *err) {
    volatile gpu_mailbox *box = &r->gpu->mailbox[z];
    int code = mailbox_await(r->gpu, &box->posted, err);
    *count = code ? 0 : (int)(uint32_t)box->posted;
    for (int i = 0; i < *count; i++) ids[i] = box->ids[i];
    return code;
}

static void gpu_sampling_of(const struct gpu_runner *g, const mote_sampling *sampling, sampling_parameters *to) {
    memset(to, 0, sizeof *to);
    to->simulated = g->simulated;
    to->temperature = sampling->temperature;
    to->k = sampling->temperature > 0 ? sampling->top_k : 1;
    to->top_p = sampling->top_p;
    to->min_p = sampling->min_p;
    to->seed = sampling->seed;
}

static void gpu_use_sampling(slot *s, const mote_sampling *sampling) {
    sampling_parameters parameters;
    gpu_sampling_of(s->runner->gpu, sampling, &parameters);
    gpu_set_sampling(s, &parameters);
}

/* Queues the sampling of the token of b's row: sample_token makes it the first token of the next step and posts it. replay: of that step. */
static void gpu_choose_next(slot *s, const block *b, int replay, const mote_sampling *sampling) {
    struct gpu_runner *g = s->runner->gpu;
    gpu_use_sampling(s, sampling);
    gpu_sampling p = gpu_choice_of(g, gpu_last_logits(s), 1, known_vocab(s->m));
    p.mailbox = g->mailbox;
    p.next.index = b->rows->index;
    p.next.lag = row_lag(b->rows);
    p.next.accepted = b->replay;
    p.next.replay = replay;
    g->sequence++;
    gpu_sample(&g->q, KERNEL_SAMPLE_TOKEN, &p, sample_token);
    gpu_submit(&g->q);
}

/* Drafts for passes in which the host samples. */
static int gpu_draft_tokens(slot *s, const block *b, int k, int32_t *drafts, float *confidence, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    int code = gpu_enter(s, err);
    if (code || !k) return code;
    gpu_set_step(s, b, b->replay, 0);
    gpu_launch_cycle(s, 0, b->rows->index, k);
    gpu_move(&g->q, drafts, g->step->ids + 1, (size_t)k * sizeof *drafts, "reading drafts");
    code = gpu_finish(s, err);
    for (int i = 0; i < k && !code; i++) confidence[i] = g->mailbox->confidence[i];
    return code;
}

/* Captures the cycles that an answer is likely to need, so that none of them is captured in its middle: for a small model that takes as
   long as tens of tokens. */
static int gpu_capture_cycles(slot *s, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    int code = gpu_enter(s, err);
    for (int T = 0; T <= STEP_ROWS && !code; T++)
        for (int drafts = !T; drafts < STEP_ROWS && g->q.status == cudaSuccess; drafts++) (void)gpu_cycle_graph(s, T, 0, drafts);
    return code ? code : gpu_failed(&g->q, err);
}

static int gpu_samples(const slot *s, const mote_sampling *p) {
    return gpu_can_sample(known_vocab(s->m), p->temperature, p->top_k);
}

static int gpu_not_a_number(mote_error *err) {
    return fail(err, MOTE_EFORMAT, "a logit is not a number: are the weights damaged?");
}

/* Waits for the token that is being chosen. */
static int gpu_chosen(mote_runner *r, int32_t *id, mote_error *err) {
    int one, code = gpu_failed(&r->gpu->q, err);
    if (!code) code = mailbox_wait(r, 0, id, &one, err);
    return !code && *id < 0 ? gpu_not_a_number(err) : code;
}

/* The step that is on the GPU repeats of the log what b does, or what is left of that. */
static void gpu_shorten_step(slot *s, const block *b) {
    struct gpu_runner *g = s->runner->gpu;
    const int replay = gpu_log_left(s, b->replay, b->T);
    if (replay < b->replay) gpu_resume(&g->q, g->step, g->step, g->sequence, replay, -1);
}

/* The same as gpu_step, but the token is known before the step is queued: rows of a table go by it. If they cannot be read no state has been touched. */
static int gpu_step_known(slot *s, const block *b, const mote_sampling *sampling, int32_t *id, mote_error *err) {
    gpu_choose_next(s, b, b->replay, sampling);
    int code = gpu_chosen(s->runner, id, err);
    if (!code) code = gpu_look_up_block(s, b, id, err);
    if (code) return code;
    gpu_shorten_step(s, b);
    gpu_launch_step(s, 1, GPU_LAST_LOGITS);
    return gpu_failed(&s->runner->gpu->q, err);
}

/* Queues the sampling of a token and the step that runs it; waits for the token only. */
static int gpu_step(slot *s, const block *b, const mote_sampling *sampling, int32_t *id, mote_error *err) {
    const int code = gpu_enter(s, err);
    if (code) return code;
    if (gpu_table_layer(s->m) >= 0) return gpu_step_known(s, b, sampling, id, err);
    gpu_choose_next(s, b, gpu_log_left(s, b->replay, 1), sampling);
    gpu_launch_step(s, 1, GPU_LAST_LOGITS);
    return gpu_chosen(s->runner, id, err);
}

static int gpu_prepared(slot *s, int n, int32_t *ids, mote_error *err);

/* The rows of tables for a cycle: chosen is its first token, where that has been chosen; else they are those of b, or prepared. */
static int gpu_look_up_cycle(slot *s, const block *b, const int32_t *chosen, mote_error *err) {
    int32_t prepared[MOTE_ROWS_MAX];
    int code = MOTE_OK;
    if (gpu_table_layer(s->m) < 0 || chosen || b->rows->id >= 0) return gpu_look_up_block(s, b, chosen, err);
    code = gpu_prepared(s, b->T, prepared, err);
    return code ? code : gpu_look_up_block(s, b, prepared, err);
}

/* A pass of b->T rows by the GPU alone. Their tokens are those of b or, without ids, the first ones of those in step_parameters; but one row
   without id is of the token that is chosen here. `drafts` are made for the next pass. ids: the first row's token, if it is
   chosen here; then those that follow the accepted rows, *count of them; the last of these begins the next pass. */
static int gpu_cycle(slot *s, const block *b, const mote_sampling *sampling, int drafts, int32_t *ids, int *count,
                     mote_error *err) {
    const int begins = b->rows->id < 0 && b->T == 1;
    int code = gpu_enter(s, err);
    if (!code && begins) {
        gpu_choose_next(s, b, b->replay, sampling);
        code = gpu_chosen(s->runner, ids, err);
    }
    if (!code) code = gpu_look_up_cycle(s, b, begins ? ids : NULL, err);
    if (code) return code;
    if (b->rows->id >= 0) {
        gpu_use_sampling(s, sampling);
        gpu_set_step(s, b, gpu_log_left(s, b->replay, b->T), 0);
    } else {
        gpu_shorten_step(s, b);
    }
    gpu_launch_cycle(s, b->T, b->rows->index, drafts);
    code = gpu_failed(&s->runner->gpu->q, err);
    return code ? code : mailbox_wait(s->runner, 0, ids + 1, count, err);
}

/* The first n drafts of the slot's last cycle, and what the draft head thinks of them, as soon as they are made. Of others: NAN. */
static int gpu_drafted(slot *s, int n, int32_t *ids, float *confidence, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    const volatile gpu_mailbox *box = g->mailbox;
    for (int i = 0; i < n; i++) confidence[i] = NAN;
    if (!s->gpu->drafted || s->gpu->drafted != g->sequence || g->resident != s) return MOTE_OK;
    int code = mailbox_await(g, &box->drafted, err);
    for (int i = 0; i < n && !code; i++) ids[i] = box->drafts[i], confidence[i] = box->confidence[i];
    return code;
}
