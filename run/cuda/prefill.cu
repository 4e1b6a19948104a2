/* run/cuda/prefill.cu: the forward pass over the many token rows of a prompt, on a GPU. It knows slots and the model; the kernels
   belong to the rooms it calls (layers/, cuda/). Decode's forward pass is run/cuda/step.cu's.

   A prompt is read in prefill chunks of up to run_options.chunk rows: so many that a weight, once read, serves enough rows for the
   tensor cores to be what limits, and so few that their scratch is small. They end at absolute multiples of PREFILL_ALIGNMENT, as
   the chunks of the delta rule and the tiles of attention lie on such: so a row's bits do not depend on the prefill chunk.

   A prefill chunk leaves what decode leaves: KV rows, S and window with nothing pending, last_hidden,
   and in x its last row, from which lm_head makes logits when they are wanted. If it fails or is cancelled, S, window and what rings held
   go back to what they were: the timeline ends before it. */

enum {
    PREFILL_ALIGNMENT = 64,      /* token rows */
    RING_ROWS = 1024             /* of a chunk that a layer with a window takes at a time: enough to fill a GPU, and a ring is short */
};

/* Floats of the states of a slot that cannot be truncated, with the MTP layer's. */
static size_t recurrent_floats(const mote_model *m, const run_options *o) {
    const capacity r = capacity_of(o, o->context);
    layout l = layout_from(NULL);
    layout_states(&l, m, &r, ROLLBACK_REPLAY, m->has_mtp, NULL);
    return l.used;
}

/* Copies the rows that row `index` sees and that lie in rings from a slot to `kept`, or back. s NULL: it only counts them. Returns bytes. */
static size_t prefill_windows(const mote_model *m, const run_options *o, slot *s, int index, char *kept, int back) {
    const capacity r = capacity_of(o, s ? s->context : o->context);
    state_piece piece[STATE_PIECES];
    layer_state none;
    size_t used = 0;
    memset(&none, 0, sizeof none);
    for (int i = m->part.first; i < m->part.end; i++)
        for (int k = layer_pieces(&m->layers[i], &r, s ? &s->state[i] : &none, piece); k--;) {
            if (!piece[k].window || piece[k].rows == r.context) continue;
            const int from = piece_seen_from(&piece[k], index);
            for (int row = from, n; s && row < index; row += n) {
                char *there = piece_rows(&piece[k], row, index, &n), *here = kept + used + (size_t)(row - from) * piece[k].size;
                gpu_move(&s->runner->gpu->q, back ? there : here, back ? here : there, (size_t)n * piece[k].size, "keeping windows");
            }
            used += (size_t)(index - from) * piece[k].size;
        }
    return used;
}

/* Of a row of logits, those that one of several ranks has itself at most; 0: it has all. */
static size_t prefill_own_logits(const mote_model *m) {
    return m->part.ranks > 1 ? (size_t)part_vocab(&m->part, m->c.vocab).most : 0;
}

/* Bytes of a row of logits. */
static size_t prefill_logit_bytes(const mote_model *m) {
    return (prefill_own_logits(m) + (size_t)m->c.vocab) * sizeof(float);
}

/* Whether it can be cancelled: of a group's members none can. */
static int prefill_can_be_cancelled(const mote_model *m) {
    return m->part.ranges * m->part.ranks == 1;
}

/* Lays out what prefill needs: also, where it can be cancelled, `before`, a copy of a slot's recurrent state, and one of its windows. */
static void layout_prefill(layout *l, const mote_model *m, const run_options *o, prefill_scratch *p) {
    const size_t hidden = (size_t)m->c.hidden, width = (size_t)model_width(m), rows = (size_t)o->chunk;
    const dtype kv = kv_type_of(o->kv);
    memset(p, 0, sizeof *p);
    if (!prefill_runs(m, kv)) return;
    p->rows = o->chunk;
    const size_t u = rows * hidden * sizeof(uint16_t), least = (part_is_last(&m->part) ? prefill_logit_bytes(m) : 0) + u;   /* logits of a row */
    const size_t mtp = rows * (2 * (hidden + width) + (model_has_axes(m) ? 4 * hidden : 0) + 512);  /* prefill_mtp's */
    p->scratch_bytes = max_size(layer_prefill_bytes(&m->largest, m->c.hidden, o->chunk, kv), mtp);
    if (m->drafter) p->scratch_bytes = max_size(p->scratch_bytes, layer_prefill_bytes(&m->drafter->largest, m->c.hidden, o->chunk, kv));
    p->scratch_bytes = (max_size(p->scratch_bytes, least) + 255) / 256 * 256;
    layout_align(l, 64);
    p->x = layout_alloc(l, rows * width);
    p->y = layout_alloc(l, residual_apart(&m->largest.residual) || m->part.ranks > 1 ? rows * hidden : 0);
    p->share = layout_alloc(l, rows * (size_t)m->c.streams);
    p->shared = layout_alloc(l, m->largest.residual.branched ? rows * hidden : 0);
    p->tapped = layout_alloc(l, m->drafter ? rows * hidden : 0);
    p->u_scale = layout_alloc(l, rows);
    p->table = (token_row *)layout_bytes(l, (rows + 1) * sizeof *p->table);
    p->table = p->table ? p->table + 1 : NULL;
    p->scratch = (char *)layout_alloc(l, p->scratch_bytes / sizeof(float));
    p->u = p->scratch ? (uint16_t *)(void *)(p->scratch + p->scratch_bytes - u) : NULL;
    if (!prefill_can_be_cancelled(m)) return;
    p->before = layout_alloc(l, recurrent_floats(m, o));
    if (o->chunk > RING_ROWS) p->windows = (char *)layout_bytes(l, prefill_windows(m, o, NULL, o->context, NULL, 0));
}

/* T rows, whose table prefill_send puts in place. */
static prefill_rows prefill_rows_of(const slot *s, int T, int index) {
    const struct gpu_runner *g = s->runner->gpu;
    prefill_rows r;
    memset(&r, 0, sizeof r);
    r.stream = g->stream;
    r.sms = g->q.sms;
    r.peer = g->q.peer;
    r.table = g->prefill.table;
    r.T = T;
    r.index = index;
    r.stages = g->q.stages;
    r.factor = bf16_factor(s->m);
    r.hidden = s->m->c.hidden;
    r.eps = s->m->c.eps;
    r.x = g->prefill.x;
    r.y = g->prefill.y;
    r.share = g->prefill.share;
    r.branches.shared_to = g->prefill.shared;
    r.u = g->prefill.u;
    r.u_scale = g->prefill.u_scale;
    r.scratch = g->prefill.scratch;
    return r;
}

/* Copies a block's table to the GPU, with the row before it. */
static void prefill_send(struct gpu_runner *g, const block *b, cudaStream_t stream) {
    gpu_check(&g->q, cudaMemcpyAsync(g->prefill.table - 1, b->rows - 1, ((size_t)b->T + 1) * sizeof *b->rows, cudaMemcpyHostToDevice, stream),
              "copying tokens");
}

/* The embeddings that rows of a block have themselves, over those of their tokens: to [T][hidden]. Rows of an image lie side by side. */
static void prefill_put_embeddings(struct gpu_runner *g, const block *b, size_t hidden, float *to) {
    for (int t = 0, n; t < b->T; t += n) {
        const float *from = b->rows[t].embedding;
        for (n = 1; from && t + n < b->T && b->rows[t + n].embedding == from + (size_t)n * hidden; n++) {}
        if (from) gpu_move(&g->q, to + (size_t)t * hidden, from, (size_t)n * hidden * sizeof *to, "copying rows of an image");
    }
}

/* x of rows of a prompt: their embeddings, which fill all streams. b NULL: all are of tokens. */
static void prefill_begin(slot *s, const prefill_rows *r, const block *b) {
    const mote_model *m = s->m;
    prefill_rows embedded = *r;
    if (m->c.streams) embedded.x = r->y;
    prefill_embed(&embedded, &m->embed_tokens, gpu_embed_factor(m));
    if (b) prefill_put_embeddings(s->runner->gpu, b, (size_t)m->c.hidden, embedded.x);
    if (!m->c.streams) return;
    cudaMemsetAsync(r->x, 0, (size_t)r->T * (size_t)model_width(m) * sizeof *r->x, r->stream);
    prefill_streams_write(r, r->x, r->y, NULL);
}

/* The end of a block of many rows, for what follows it: the residual rows from x on become the first ones of `to`, and row `last`, which
   may be the one before them, becomes the final row `hidden`, if that is wanted, with norm NULL as it is. `to` may be in the same rows, before x. One
   block. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_keep_rows(float *to, const float *x, const float *norm, int cols, float eps, int rows,
                                                                    int last, float *hidden) {
    __shared__ float shared[GPU_WARPS];
    if (hidden && norm) gpu_norm_row(hidden, x + (ptrdiff_t)last * cols, norm, cols, eps, shared);
    for (int i = threadIdx.x; hidden && !norm && i < cols; i += GPU_THREADS) hidden[i] = x[(ptrdiff_t)last * cols + i];
    __syncthreads();
    for (int i = threadIdx.x; i < rows * cols; i += GPU_THREADS) to[i] = x[i];
}

/* The MTP layer's input of the prefill chunk's rows from `skip` on, as F16 with an activation scale a row; see layers/mtp.cu. */
typedef struct prefill_mtp_input {
    gpu_matrix embed_tokens;
    const token_row *rows;       /* of the prefill chunk */
    const float *embeddings;     /* [T][cols] of those rows that have one themselves */
    const float *x, *norm;       /* [T][width] after the last layer; final norm */
    const float *last_hidden;    /* [width] final row before the prefill chunk */
    const float *norm_embedding, *norm_hidden;
    uint16_t *in, *in_hidden;    /* F16 [T - skip][2 cols]; of streams [T - skip][cols] and [T - skip][streams][cols] */
    float *act_scale, *hidden_scale;                        /* [T - skip]; [T - skip][streams] */
    float factor, eps;           /* of embeddings; of norms */
    int skip, streams;
} prefill_mtp_input;

/* The same of streams: what is made of the embedding, in `row`, and of the final row before it, stream by stream. */
__device__ __forceinline__ void prefill_mtp_streams(const prefill_mtp_input &p, int t, float *row, float *shared) {
    const int cols = p.embed_tokens.cols, width = p.streams * cols;
    float *of_final = row + cols;
    gpu_norm_row(row, row, p.norm_embedding, cols, p.eps, shared);
    gpu_norm_row(of_final, t ? p.x + (size_t)(t - 1) * width : p.last_hidden, p.norm_hidden, width, p.eps, shared);
    for (int c = -1; c < p.streams; c++) {                  /* -1: the embedding */
        const float *part = of_final + c * cols;
        const size_t to = c < 0 ? blockIdx.x : (size_t)blockIdx.x * p.streams + c;
        float top = 0;
        for (int i = threadIdx.x; i < cols; i += GPU_THREADS) top = fmaxf(top, fabsf(part[i]));
        top = block_max(top, shared);
        prefill_put_row(part, cols, top, (c < 0 ? p.in : p.in_hidden) + to * cols, (c < 0 ? p.act_scale : p.hidden_scale) + to);
    }
}

/* Block t has row t + skip. Shared memory: [3][cols] floats; of streams [1 + streams][cols]. */
static __global__ void __launch_bounds__(GPU_THREADS) prefill_mtp_rows(const __grid_constant__ prefill_mtp_input p) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[GPU_WARPS];
    const int t = blockIdx.x + p.skip, cols = p.embed_tokens.cols;
    float *spare = row + (p.streams ? 0 : 2 * cols), top = 0;
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS)
        spare[i] = p.rows[t].embedding ? p.embeddings[(size_t)t * cols + i] : gpu_weight(&p.embed_tokens, p.rows[t].id, i) * p.factor;
    __syncthreads();
    if (p.streams) {
        prefill_mtp_streams(p, t, row, shared);
        return;
    }
    gpu_norm_row(row, spare, p.norm_embedding, cols, p.eps, shared);
    if (t) gpu_norm_row(spare, p.x + (size_t)(t - 1) * cols, p.norm, cols, p.eps, shared);
    gpu_norm_row(row + cols, t ? spare : p.last_hidden, p.norm_hidden, cols, p.eps, shared);
    for (int i = threadIdx.x; i < 2 * cols; i += GPU_THREADS) top = fmaxf(top, fabsf(row[i]));
    top = block_max(top, shared);
    prefill_put_row(row, 2 * cols, top, p.in + (size_t)blockIdx.x * 2 * cols, p.act_scale + blockIdx.x);
}

/* Logits of n rows of x, from row t on, after the layers or the MTP layer, into `to` in host memory. At most as many as fit the scratch before the
   normalised rows. */
static void prefill_head(const slot *s, const prefill_rows *r, int in_mtp, int t, int n, float *to) {
    const mote_model *m = s->m;
    const float *x = r->x + (size_t)t * (size_t)model_width(m);
    float *own = (float *)(void *)r->scratch, *all = own + (size_t)n * prefill_own_logits(m);
    const gpu_cap cap = {.link = {}, .logits = all, .n = (size_t)n * (size_t)m->c.vocab, .cap = m->c.logit_cap};
    if (m->c.streams) prefill_streams_read(r, in_mtp ? &m->mtp.mixer : &m->mixer, x, n, m->c.eps);
    else prefill_rms_norm(r, x, in_mtp ? m->mtp.norm : m->norm, n, m->c.hidden, m->c.eps);
    prefill_linear(r, &m->lm_head, prefill_normed(r), n, own);
    if (peers_divide(r->peer))
        gpu_gather_logits<<<PEER_LOGIT_LANES, GPU_THREADS, 0, r->stream>>>(gpu_gather_of(r->peer, own, n, m->c.vocab, all));
    if (cap.cap != 0) gpu_cap_logits<<<gpu_cap_blocks(cap.n, r->sms), GPU_THREADS, 0, r->stream>>>(cap);
    if (!runner_answers(s->runner)) return;
    gpu_check(&s->runner->gpu->q, cudaMemcpyAsync(to, all, (size_t)n * (size_t)m->c.vocab * sizeof(float), cudaMemcpyDeviceToHost,
                                          r->stream), "reading the logits");
}

static int prefill_head_rows(const slot *s, const prefill_rows *r) {
    return (int)((size_t)((const char *)s->runner->gpu->prefill.u - r->scratch) / prefill_logit_bytes(s->m));
}

/* Logits of T rows of x to the host, as many rows at a time as fit the scratch. */
static void prefill_logits(const slot *s, const prefill_rows *r, int in_mtp, int T, float *logits) {
    const int fitting = prefill_head_rows(s, r);
    for (int t = 0; t < T; t += fitting)
        prefill_head(s, r, in_mtp, t, T - t < fitting ? T - t : fitting, logits + (size_t)t * (size_t)s->m->c.vocab);
}

/* The same to watch->logits, a few rows at a time. */
static int prefill_watched(slot *s, const prefill_rows *r, int T, const block_watch *watch, mote_error *err) {
    const int fitting = prefill_head_rows(s, r), step = fitting < watch->rows_most ? fitting : watch->rows_most;
    int code = MOTE_OK;
    for (int t = 0; t < T && !code; t += step) {
        const int n = T - t < step ? T - t : step;
        prefill_head(s, r, 0, t, n, watch->rows);
        if (!runner_answers(s->runner)) continue;
        code = gpu_finish(s, err);
        if (!code) watch->logits(watch->user, watch->rows, t, n);
    }
    return code;
}

/* Of streams: the layer's input of its rows, from what prefill_mtp_rows has made. */
static void prefill_mtp_fill(const prefill_rows *r, const mote_model *m, const prefill_mtp_input *p) {
    const gemm_rows embedded = {p->in, p->act_scale, 1}, hidden = {p->in_hidden, p->hidden_scale, 1};
    prefill_linear(r, &m->mtp.fc_embedding, embedded, r->T, r->y);
    prefill_linear(r, &m->mtp.fc, hidden, r->T * m->c.streams, r->x);
    prefill_streams_write(r, r->x, r->y, NULL);
}

/* The MTP layer over the prefill chunk's rows; their x is overwritten. Each takes the token of a row, and stands where the row before that
   does. MTP logits are of each row but the one of index 0. */
static void prefill_mtp(slot *s, const prefill_rows *main_rows, const block *b) {
    const mote_model *m = s->m;
    struct gpu_runner *g = s->runner->gpu;
    prefill_rows r = *main_rows;
    prefill_mtp_input p;
    memset(&p, 0, sizeof p);
    p.skip = r.index == 0;
    r.T -= p.skip;
    r.table += p.skip - 1;
    r.index += p.skip - 1;
    r.layer = m->c.layers;
    r.state_only = b->mtp_logits == NULL;
    if (!r.T) return;
    p.embed_tokens = gpu_matrix_of(&m->embed_tokens);
    p.rows = main_rows->table;
    p.x = r.x;
    p.norm = m->norm;
    p.last_hidden = s->last_hidden;
    p.norm_embedding = m->mtp.norm_embedding;
    p.norm_hidden = m->mtp.norm_hidden;
    p.in = (uint16_t *)(void *)r.scratch;
    p.act_scale = r.u_scale;
    p.streams = m->c.streams;
    p.in_hidden = p.in + (size_t)r.T * (size_t)m->c.hidden;
    p.hidden_scale = r.share;
    p.embeddings = (const float *)(const void *)(p.in_hidden + (size_t)r.T * (size_t)model_width(m));
    p.factor = gpu_embed_factor(m);
    p.eps = m->c.eps;
    prefill_put_embeddings(g, b, (size_t)m->c.hidden, (float *)p.embeddings);
    const size_t shared = (size_t)max_int(3, 1 + m->c.streams) * (size_t)m->c.hidden * sizeof(float);
    gpu_allow_shared(&g->q, (const void *)prefill_mtp_rows, shared, "mtp_rows");
    prefill_mtp_rows<<<r.T, GPU_THREADS, shared, r.stream>>>(p);
    const gemm_rows in = {p.in, p.act_scale, 1};
    if (m->c.streams) prefill_mtp_fill(&r, m, &p);
    else prefill_linear(&r, &m->mtp.fc, in, r.T, r.x);
    gpu_check(&g->q, layer_run_prefill(&r, &m->mtp.layer, &g->layers, &s->state[m->c.layers]), "the MTP layer");
    if (b->mtp_logits) prefill_logits(s, &r, 1, r.T, b->mtp_logits);
}

/* Rows of x as F16 with an activation scale each; block t has row t. */
static __global__ void __launch_bounds__(GPU_THREADS) prefill_put_rows(const float *x, int cols, uint16_t *u, float *act_scale) {
    __shared__ float shared[GPU_WARPS];
    const float *row = x + (size_t)blockIdx.x * cols;
    float top = 0;
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) top = fmaxf(top, fabsf(row[i]));
    prefill_put_row(row, cols, block_max(top, shared), u + (size_t)blockIdx.x * cols, act_scale + blockIdx.x);
}

/* After a layer of the target: what the drafter makes of its rows, if it takes them. */
static void prefill_taps(slot *s, const prefill_rows *target, int layer) {
    const mote_model *d = s->m->drafter;
    prefill_rows r = *target;
    r.factor = bf16_factor(d);
    r.out = s->runner->gpu->prefill.tapped;
    for (int k = 0; k < d->c.drafter.taps; k++) {
        if (d->c.drafter.tap[k] != layer) continue;
        prefill_put_rows<<<r.T, GPU_THREADS, 0, r.stream>>>(r.x, r.hidden, r.u, r.u_scale);
        if (drafter_tap_is_first(&d->c.drafter, k)) prefill_linear(&r, &d->tap_fc[k], prefill_normed(&r), r.T, r.out);
        else prefill_output(&r, &d->tap_fc[k], prefill_normed(&r), NULL);
    }
}

/* What the drafter keeps of a prompt's rows, of which that is there. */
static void prefill_tapped(slot *s, const prefill_rows *target) {
    const mote_model *d = s->m->drafter;
    struct gpu_runner *g = s->runner->gpu;
    prefill_rows r = *target;
    r.factor = bf16_factor(d);
    r.eps = d->c.eps;
    r.x = g->prefill.tapped;
    r.state_only = 1;
    for (int i = 0; i < d->c.layers; i++) {
        layer l = d->layers[i];
        l.mixer.norm = d->tap_norm;
        r.layer = i;
        gpu_check(&g->q, layer_run_prefill(&r, &l, &g->drafter.layers, &s->state[drafter_state(s->m, i)]), "the drafter");
    }
}

/* Launches layer i. */
static int prefill_layer(slot *s, const block *b, prefill_rows *r, int i, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    const int code = gpu_look_up_prompt(s, b, r, i, err);
    if (code) return code;
    r->layer = i;
    const int copy = gpu_bring_experts(s->runner, r, i);
    gpu_check(&g->q, layer_run_prefill(r, &s->m->layers[i], &g->layers, &s->state[i]), "a layer");
    gpu_release_experts(s->runner, copy);
    gpu_looked_up_prompt(s, i);
    if (slot_drafter(s)) prefill_taps(s, r, i);
    return gpu_failed(&g->q, err);
}

/* The layers, one launched while the one before it runs, so that a cancel is heard between two of them, and other slots may compute.
   Prefill's scratch is its own. */
static int prefill_layers(slot *s, const block *b, prefill_rows *r, const block_watch *watch, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    int code = MOTE_OK;
    for (int i = 0; i < s->m->c.layers && g->q.status == cudaSuccess && !code; i++) {
        if (i >= 2) gpu_check(&g->q, cudaEventSynchronize(g->layer_done[i % 2]), "a layer");
        if (i >= 2) (void)runner_yield(s->runner, s);
        if (watch->layer(watch->user, (double)r->T * i / s->m->c.layers)) return fail(err, MOTE_ECANCELLED, "cancelled");
        code = prefill_layer(s, b, r, i, err);
        gpu_check(&g->q, cudaEventRecord(g->layer_done[i % 2], g->stream), "a layer");
    }
    return code ? code : gpu_failed(&g->q, err);
}

/* Those of a group's member, all at once: others of the group rely on it. */
static int prefill_part(slot *s, const block *b, prefill_rows *r, mote_error *err) {
    const model_part *part = &s->m->part;
    const size_t n = (size_t)r->T * (size_t)model_width(s->m);
    struct gpu_runner *g = s->runner->gpu;
    int code = MOTE_OK;
    if (part->apart) hosts_receive(&g->q, &g->hosts, r->x, n);
    else if (!part_is_first(part)) peers_receive_block(&g->q, g->q.peer, r->x, r->T);
    for (int i = part->first; i < part->end && g->q.status == cudaSuccess && !code; i++) code = prefill_layer(s, b, r, i, err);
    if (code) return code;
    if (part->apart) hosts_send(&g->q, &g->hosts, r->x, n);
    else if (!part_is_last(part)) peers_send_block(&g->q, g->q.peer, r->x, r->T);
    return gpu_failed(&g->q, err);
}

/* What comes after the layers: what is wanted of the last range, and what decode needs. */
static int prefill_end(slot *s, const prefill_rows *r, const block *b, const block_watch *watch, mote_error *err) {
    const mote_model *m = s->m;
    struct gpu_runner *g = s->runner->gpu;
    const size_t width = (size_t)model_width(m);
    int code = MOTE_OK;
    if (b->logits) prefill_logits(s, r, 0, b->T, b->logits);
    if (watch->logits && (code = prefill_watched(s, r, b->T, watch, err))) return code;
    if ((code = gpu_enter(s, err))) return code;            /* another slot may be resident meanwhile */
    gpu_read_residual(s, b, r->x);
    const float *last = r->x + (size_t)(b->T - 1) * width;  /* last_hidden is still wanted as it was */
    gpu_keep_rows<<<1, GPU_THREADS, 0, g->stream>>>(g->x, last, m->norm, (int)width, m->c.eps, 1, 0, s->hidden);
    if (slot_drafter(s)) prefill_tapped(s, r);
    if (s->has_mtp) prefill_mtp(s, r, b);
    gpu_move(&g->q, s->last_hidden, s->hidden, width * sizeof(float), "the final row");
    gpu_check(&g->q, cudaGetLastError(), "prefill");
    return gpu_failed(&g->q, err);
}

/* Keeps the states of a slot before row `index`, or brings them back. */
static void prefill_keep(slot *s, int T, int index, int back) {
    struct gpu_runner *g = s->runner->gpu;
    float *to = back ? s->recurrent : g->prefill.before, *from = back ? g->prefill.before : s->recurrent;
    gpu_move(&g->q, to, from, s->recurrent_floats * sizeof(float), back ? "restoring the state" : "keeping the state");
    if (T > RING_ROWS) (void)prefill_windows(s->m, &s->runner->o, s, index, g->prefill.windows, back);
}

/* Nothing is left to repeat before it (b->replay is 0), nor after it: the states are those after the last row. If it fails or is
   cancelled, they are those before. */
static int gpu_prompt(slot *s, const block *b, const block_watch *watch, mote_error *err) {
    const mote_model *m = s->m;
    struct gpu_runner *g = s->runner->gpu;
    prefill_rows r = prefill_rows_of(s, b->T, b->rows->index);
    int code = gpu_enter(s, err);
    if (code) return code;
    if (prefill_can_be_cancelled(m)) prefill_keep(s, b->T, r.index, 0);
    prefill_send(g, b, g->stream);
    if (part_is_first(&m->part)) prefill_begin(s, &r, b);
    code = s->runner->me ? prefill_part(s, b, &r, err) : prefill_layers(s, b, &r, watch, err);
    if (code && prefill_can_be_cancelled(m) && g->q.status == cudaSuccess) prefill_keep(s, b->T, r.index, 1);
    if (code) return code;
    if (part_is_last(&m->part) && (code = prefill_end(s, &r, b, watch, err))) return code;
    gpu_keep_prompt(s, b);
    gpu_launched(s, 1, GPU_NO_LOGITS);
    const int wanted = runner_answers(s->runner) && (b->logits || b->mtp_logits || b->residual_rows);
    return wanted ? gpu_finish(s, err) : gpu_failed(&g->q, err);
}

/* Prefill chunks end at multiples of PREFILL_ALIGNMENT. */
static int gpu_prompt_rows(const slot *s, int position, size_t count) {
    const int rows = s->runner->gpu->prefill.rows, end = position / PREFILL_ALIGNMENT * PREFILL_ALIGNMENT + rows;
    return (size_t)(end - position) < count ? end - position : (int)count;
}
