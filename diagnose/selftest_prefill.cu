/* diagnose/selftest_prefill.cu: compares the stages of prefill on a GPU with the CPU code, with the helpers of selftest.cu.

   Rows enter products as one F16 term, 11 bits; the experts' parts of a row are BF16, as are the probabilities of attention. So
   more is allowed than of decode, relative to the largest value of a result: 1e-3 where token rows meet weights, 5e-3 for the
   delta rule, 2e-2 for attention with a BF16 cache and for the experts. The scratch holds NaN before every stage. */

enum { TRY_PROMPT = 50 };        /* rows: two chunks of the delta rule or three, tiles that are not full */

/* Random rows of the residual for both; a copy in s.hidden, for stages that add to s.x. */
static void try_prefill_rows(selftest *t) {
    scratch *w = &t->cpu->slot.runner->s;
    size_t n = TRY_PROMPT * (size_t)t->cpu->m->c.hidden;
    try_both(t, w->x, t->g->prefill.x, n);
    memcpy(w->hidden, w->x, n * sizeof(float));
}

static void try_poison(selftest *t) {
    gpu_queue *q = &t->g->q;
    if (t->code || (t->code = gpu_enter(&t->gpu->slot, t->err))) return;
    gpu_check(q, cudaMemsetAsync(t->g->prefill.scratch, 0xff, t->g->prefill.scratch_bytes, q->stream), "poisoning");
}

/* The table of rows after `position` others: text, and from row 20 on a picture of four rows and five columns. */
static const token_row *try_prefill_table_of(selftest *t, int position) {
    token_row *rows = t->gpu->rows;
    text_rows(rows - 1, NULL, TRY_PROMPT + 1, position - 1, 0);
    for (int i = 0; i < 20; i++) {
        rows[20 + i].position[0] = position + 20;
        rows[20 + i].position[1] = position + 20 + i / 5;
        rows[20 + i].position[2] = position + 20 + i % 5;
    }
    return rows;
}

/* On the CPU. */
static token_rows try_token_rows(const selftest *t) {
    const scratch *w = &t->cpu->slot.runner->s;
    token_rows rows = {.threads = t->cpu->slot.runner->threads, .T = TRY_PROMPT, .of = NULL, .count = 0, .state_only = 0,
                       .hidden = t->cpu->m->c.hidden, .eps = t->cpu->m->c.eps, .x = w->x, .y = w->y, .u = w->u, .out = NULL};
    return rows;
}

/* Some stages of layer `index`, or of what stands for it, over the rows in prefill's x. y: see prefill_rows. */
static void try_prefill_stages(selftest *t, unsigned stages, int index, int position, const layer *l, float *y) {
    if (t->code) return;
    t->gpu->count = position;
    prefill_rows r = prefill_rows_of(&t->gpu->slot, TRY_PROMPT, t->gpu->count);
    const block b = {.rows = try_prefill_table_of(t, position), .T = TRY_PROMPT};
    r.layer = index;
    r.stages = stages;
    prefill_send(t->g, &b, r.stream);
    r.y = y;
    gpu_check(&t->g->q, layer_run_prefill(&r, l, &t->g->layers, &t->gpu->slot.state[index]), "prefill");
    t->gpu->count = 0;
    t->code = gpu_finish(&t->gpu->slot, t->err);
}

static void try_prefill_layer(selftest *t, unsigned stages, int index, int position) {
    try_prefill_stages(t, stages, index, position, &t->gpu->m->layers[index], t->g->prefill.y);
}

/* x, to which both have added. */
static void try_prefill_x(selftest *t) {
    scratch *w = &t->cpu->slot.runner->s;
    try_compare(t, t->g->prefill.x, w->x, w->hidden, TRY_PROMPT * (size_t)t->cpu->m->c.hidden);
}

static void try_prefill_in_proj(selftest *t, const deltanet_prefill_job *g) {
    const mote_model *m = t->cpu->m;
    const deltanet_shape *s = &m->largest.deltanet;
    deltanet_job *job = &t->cpu->slot.runner->s.jobs.deltanet;
    scratch *w = &t->cpu->slot.runner->s;
    size_t heads = TRY_PROMPT * (size_t)s->value_heads, channels = TRY_PROMPT * (size_t)deltanet_channels(s);
    rms_norm(w->u, w->x, m->layers[TRY_DELTANET].mixer.norm, TRY_PROMPT, m->c.hidden, m->c.eps);
    stage_in_proj(t->cpu->slot.runner->threads, &m->layers[TRY_DELTANET].mixer.w.deltanet, w->u, TRY_PROMPT, job->raw, job->z, job->b,
                  job->a, job->limbs);
    try_poison(t);
    try_prefill_layer(t, 1u << STAGE_IN_PROJ, TRY_DELTANET, 0);
    try_compare(t, g->raw, job->raw, NULL, channels);
    try_compare(t, g->b, job->b, NULL, heads);
    try_compare(t, g->a, job->a, NULL, heads);
    try_row(t, 1e-3, "prefill norm_in_proj");
}

/* Instead of what in_proj made: the same key in all rows, written whole (beta = 1); heads that never forget (g = 0), that forget
   at once (g = -90), and that do either from row to row. */
static void try_prefill_extremes(selftest *t, const deltanet_prefill_job *g) {
    const deltanet_job *job = &t->cpu->slot.runner->s.jobs.deltanet;
    const deltanet_shape *s = job->shape;
    size_t channels = (size_t)deltanet_channels(s), heads = (size_t)s->value_heads;
    for (size_t row = 0; row < TRY_PROMPT; row++) {
        memcpy(job->raw + row * channels, job->raw, 2 * (size_t)(s->key_heads * s->key_dim) * sizeof(float));
        for (size_t h = 0; h < heads; h++) {
            int forgets = h % 3 == 0 || (h % 3 == 1 && row % 5 == 4);
            job->a[row * heads + h] = forgets ? 90 / expf(job->w->A_log[h]) - job->w->dt_bias[h] : -1e4f;
            job->b[row * heads + h] = 30;
        }
    }
    try_put(t, g->raw, job->raw, TRY_PROMPT * channels * sizeof(float));
    try_put(t, g->a, job->a, TRY_PROMPT * heads * sizeof(float));
    try_put(t, g->b, job->b, TRY_PROMPT * heads * sizeof(float));
}

/* The delta rule from a random state, in chunks that begin at `position`, and the output product.

   With one key, written whole and never forgotten, an output is a sum of a chunk's 64 writes that cancel but for the last. Each is rounded
   to F16, by at most 2^-12 of it: in a random walk 8 2^-12 = 0.002 of a write, in the worst of 140,000 elements five times that. */
static void try_prefill_deltanet(selftest *t, int position, int extremes) {
    deltanet_job *job = &t->cpu->slot.runner->s.jobs.deltanet;
    const deltanet_shape *s = job->shape;
    const deltanet_state *a = &t->cpu->slot.state[TRY_DELTANET].deltanet, *b = &t->gpu->slot.state[TRY_DELTANET].deltanet;
    size_t values = (size_t)(s->value_heads * s->value_dim);
    deltanet_prefill_job g;
    deltanet_prefill_layout(s, TRY_PROMPT, t->g->prefill.scratch, &g);
    try_prefill_rows(t);
    try_prefill_in_proj(t, &g);
    job->w = &t->cpu->m->layers[TRY_DELTANET].mixer.w.deltanet;
    job->state = *a;
    job->T = TRY_PROMPT;
    job->replay = 0;
    if (extremes) try_prefill_extremes(t, &g);
    try_fill(t, t->cpu->slot.recurrent, t->cpu->slot.recurrent_floats);
    try_put(t, t->gpu->slot.recurrent, t->cpu->slot.recurrent, t->cpu->slot.recurrent_floats * sizeof(float));
    stage_conv_delta(t->cpu->slot.runner->threads, job);
    try_prefill_layer(t, 1u << STAGE_DELTA, TRY_DELTANET, position);
    try_compare(t, g.o, job->o, NULL, TRY_PROMPT * values);
    try_compare(t, b->S, a->S, NULL, values * (size_t)s->key_dim);
    try_row(t, extremes ? 1e-2 : 5e-3, "prefill conv_delta at position %d%s", position, extremes ? ", extreme gates, one key" : "");
    try_compare(t, b->window, a->window, NULL, (size_t)(s->taps - 1) * (size_t)deltanet_channels(s));
    try_row(t, 0, "prefill conv1d window at position %d", position);
    stage_gated_norm_out(t->cpu->slot.runner->threads, job, t->cpu->slot.runner->s.x);
    try_prefill_layer(t, 1u << STAGE_OUT_PROJ, TRY_DELTANET, position);
    try_compare(t, g.z, job->z, NULL, TRY_PROMPT * values);
    try_prefill_x(t);
    try_row(t, 1e-3, "prefill gated_norm_out");
}

/* Projections, then attention with the output product, after `position` random keys and values. What the walk makes of the output is not a part
   of it. */
static void try_prefill_attention(selftest *t, int position) {
    mote_session *c = t->cpu;
    attention_job *job = &c->slot.runner->s.jobs.attention;
    const attention_weights *w = &c->m->layers[t->attention].mixer.w.attention;
    const attention_shape *s = &w->shape;
    size_t qg = TRY_PROMPT * (size_t)(s->heads * attention_q_size(s)), kv = TRY_PROMPT * (size_t)(s->kv_heads * s->head_dim);
    attention_prefill_job g;
    layer on = t->gpu->m->layers[t->attention];
    memset(&on.mixer.residual, 0, sizeof on.mixer.residual);
    attention_prefill_layout(s, TRY_PROMPT, t->g->prefill.scratch, &g);
    try_prefill_rows(t);
    rms_norm(c->slot.runner->s.u, c->slot.runner->s.x, c->m->layers[t->attention].mixer.norm, TRY_PROMPT, s->hidden, c->m->c.eps);
    stage_qkv(c->slot.runner->threads, w, c->slot.runner->s.u, TRY_PROMPT, job->qg, job->k_new, job->v_new, job->g_new, NULL, job->limbs);
    try_poison(t);
    try_prefill_layer(t, 1u << STAGE_QKV, t->attention, position);
    try_compare(t, g.qg, job->qg, NULL, qg);
    try_compare(t, g.k, job->k_new, NULL, kv);
    if (!s->v_of_k) try_compare(t, g.v, job->v_new, NULL, kv);
    if (s->gate_size) try_compare(t, g.g, job->g_new, NULL, TRY_PROMPT * (size_t)(s->heads * s->gate_size));
    try_row(t, 1e-3, "prefill norm_qkv");
    job->shape = s;
    job->w = w;
    job->T = TRY_PROMPT;
    job->index = position;
    job->kv_only = 0;
    job->k = c->slot.state[t->attention].attention.k;
    job->v = c->slot.state[t->attention].attention.v;
    job->held = TRY_CONTEXT;
    attention_angles(w, try_prefill_table_of(t, position), TRY_PROMPT, job->angles);
    stage_rope_attend(c->slot.runner->threads, job);
    stage_out(c->slot.runner->threads, job, c->slot.runner->s.x);
    for (int warps = 4; warps <= 8; warps *= 2) {            /* also what another GPU would run */
        t->g->layers.attention.prefill_warps = warps;
        try_put(t, t->g->prefill.x, c->slot.runner->s.hidden, TRY_PROMPT * (size_t)s->hidden * sizeof(float));
        try_put(t, g.g, job->g_new, TRY_PROMPT * (size_t)(s->heads * s->gate_size) * sizeof(float));
        try_prefill_stages(t, 1u << STAGE_ATTEND | 1u << STAGE_O_PROJ, t->attention, position, &on, t->g->prefill.y);
        try_prefill_x(t);
        try_row(t, 2e-2, "prefill attention: heads of %d, KV %s, position %d, window %d, %d warps", s->head_dim, kv_names[job->kv],
                position, s->window, warps);
    }
}

/* Whether a row's choice of experts is clear: the best that is not chosen is clearly worse. */
static int try_clear_choice(const float *logits, const moe_shape *s) {
    int32_t choice[GPU_TOP + 1];
    float weight[GPU_TOP + 1], least = INFINITY, next = -INFINITY;
    const moe_job job = {.shape = s};
    moe_choose(&job, logits, choice, weight);
    for (int e = 0; e < s->experts; e++) {
        int chosen = 0;
        for (int i = 0; i < s->top_k; i++) chosen |= choice[i] == e;
        if (chosen) least = fminf(least, logits[e]);
        else next = fmaxf(next, logits[e]);
    }
    return least - next > 1e-2f * fabsf(least);
}

/* How many rows' choices are clear. */
static int try_clear_rows(const selftest *t) {
    const moe_shape *s = &t->cpu->m->largest.moe;
    int clear = 0;
    for (size_t i = 0; i < TRY_PROMPT; i++)
        clear += try_clear_choice(t->cpu->slot.runner->s.jobs.moe.router + i * (size_t)s->experts, s);
    return clear;
}

/* The experts, of rows of their own or of rows that nearly agree, so that all go to the same ones. Rows whose choice is not clear
   may differ, and are set aside; rows most of which are such are drawn again. */
static void try_prefill_moe(selftest *t, int agreeing) {
    enum { DRAWS = 16 };
    const moe_shape *s = &t->cpu->m->largest.moe;
    scratch *w = &t->cpu->slot.runner->s;
    const token_rows rows = try_token_rows(t);
    size_t hidden = (size_t)s->hidden, bytes = TRY_PROMPT * hidden * sizeof(float);
    float *got = (float *)malloc(bytes);
    int draws = 0;
    moe_prefill_job g;
    moe_prefill_layout(s, TRY_PROMPT, t->g->prefill.scratch, &g);
    if (!t->code && !got) t->code = fail_memory(t->err);
    do {
        try_prefill_rows(t);
        for (size_t i = hidden; i < TRY_PROMPT * hidden && agreeing; i++) w->x[i] = w->x[i - hidden] + w->x[i] / 256;
        memcpy(w->hidden, w->x, bytes);
        ffn_forward(&rows, &t->cpu->m->layers[TRY_DELTANET].ffn, &w->jobs);
    } while (try_clear_rows(t) < TRY_PROMPT / 4 && ++draws < DRAWS);
    if (draws == DRAWS) try_worse(t, INFINITY);             /* too few rows to tell */
    try_put(t, t->g->prefill.x, w->hidden, bytes);
    try_poison(t);
    try_prefill_layer(t, 1u << STAGE_ROUTER | 1u << STAGE_UP | 1u << STAGE_DOWN, TRY_DELTANET, 0);
    if (!t->code) t->code = slot_copy(&t->gpu->slot, got, t->g->prefill.x, bytes, t->err);
    for (size_t i = 0; i < TRY_PROMPT && !t->code; i++) {
        if (!try_clear_choice(w->jobs.moe.router + i * (size_t)s->experts, s)) continue;
        try_worse(t, relative_difference(got + i * hidden, w->x + i * hidden, w->hidden + i * hidden, hidden));
    }
    try_row(t, 2e-2, "prefill experts%s", agreeing ? ", the same for all rows" : "");
    try_compare(t, g.moe.router, w->jobs.moe.router, NULL, TRY_PROMPT * (size_t)s->experts);
    try_row(t, 1e-3, "prefill norm_router");
    free(got);
}

static void try_prefill_mlp(selftest *t) {
    scratch *w = &t->cpu->slot.runner->s;
    const token_rows rows = try_token_rows(t);
    try_prefill_rows(t);
    ffn_forward(&rows, &t->cpu->m->layers[TRY_DELTANET].ffn, &w->jobs);
    try_poison(t);
    try_prefill_layer(t, 1u << STAGE_GATE_UP | 1u << STAGE_MLP_DOWN, TRY_DELTANET, 0);
    try_prefill_x(t);
    try_row(t, 1e-3, "prefill norm_gate_up and down");
}

/* The same with a norm after it and a scale, for which the weights of the norm before it serve. */
static void try_prefill_normed_mlp(selftest *t) {
    scratch *w = &t->cpu->slot.runner->s;
    const size_t bytes = TRY_PROMPT * (size_t)t->cpu->m->c.hidden * sizeof(float);
    token_rows rows = try_token_rows(t);
    layer on[2] = {t->cpu->m->layers[TRY_DELTANET], t->gpu->m->layers[TRY_DELTANET]};
    float *y = NULL;
    for (int i = 0; i < 2; i++) {
        on[i].ffn.residual.normed_after = on[i].ffn.residual.scaled = 1;
        on[i].ffn.norm_after = on[i].ffn.scale = on[i].ffn.norm;
    }
    rows.y = (float *)malloc(bytes);
    if (!t->code && !rows.y) t->code = fail_memory(t->err);
    gpu_check(&t->g->q, cudaMalloc((void **)&y, bytes), "allocating rows");
    if (!t->code && gpu_check(&t->g->q, cudaMemset(y, 0xff, bytes), "poisoning")) {
        try_prefill_rows(t);
        ffn_forward(&rows, &on[0].ffn, &w->jobs);
        try_poison(t);
        try_prefill_stages(t, 1u << STAGE_GATE_UP | 1u << STAGE_MLP_DOWN, TRY_DELTANET, 0, &on[1], y);
        try_prefill_x(t);
    }
    try_row(t, 1e-3, "prefill norm_gate_up and down, a norm after them and a scale");
    cudaFree(y);
    free(rows.y);
}

/* n rows that are given, which a prompt's kernels read; logits: [n][vocab], and the MTP layer's [n - 1][vocab] or NULL. */
static void try_feed(selftest *t, const int32_t *ids, const token_row *rows, int n, float *logits, float *mtp_logits) {
    const feed_results wanted = {logits, mtp_logits, NULL, NULL};
    const fed_rows given = {rows, NULL, 0};
    if (!t->code) t->code = timeline_reset(t->gpu, t->err);
    if (!t->code) t->code = feed_table(t->gpu, ids, &given, (size_t)n, &wanted, t->err);
}

/* Rows with their tokens' embeddings have the bits of rows with tokens. */
static void try_embeddings(selftest *t) {
    const size_t hidden = (size_t)t->gpu->m->c.hidden, vocab = (size_t)t->gpu->m->c.vocab, bytes = TRY_PROMPT * hidden * sizeof(float);
    const size_t n = (t->gpu->slot.has_mtp ? 2 * TRY_PROMPT - 1 : TRY_PROMPT) * vocab;
    float *logits = (float *)malloc(2 * n * sizeof *logits), *own = (float *)malloc(bytes);
    float *const mtp = logits && t->gpu->slot.has_mtp ? logits + TRY_PROMPT * vocab : NULL;
    int32_t ids[TRY_PROMPT];
    token_row rows[TRY_PROMPT];
    if (!t->code && (!logits || !own)) t->code = fail_memory(t->err);
    try_tokens(t, 5, ids, TRY_PROMPT);
    text_rows(rows, ids, TRY_PROMPT, 0, 0);
    try_feed(t, ids, rows, TRY_PROMPT, logits, mtp);
    if (!t->code) embed(&t->models[0]->embed_tokens, t->models[0]->c.embed_factor, rows, TRY_PROMPT, own);
    for (int i = 0; i < TRY_PROMPT; i++) {
        rows[i].embedding = own + (size_t)i * hidden;
        ids[i] = rows[i].id = 0;
    }
    try_feed(t, ids, rows, TRY_PROMPT, logits + n, mtp ? mtp + n : NULL);
    try_equal(t, logits, logits + n, n * sizeof *logits);
    try_row(t, 0, "prefill by embeddings");
    free(logits);
    free(own);
}

/* Text after a picture, in steps, is what it is as a part of the prompt, but for rounding: without the lag it would be further off. The last
   TAIL rows. Of a model without a router, which might choose other experts. */
static void try_picture(selftest *t) {
    enum { TAIL = 3, T = TRY_PROMPT, FIRST = 10, ROWS = 4, COLUMNS = 5, LAG = ROWS * COLUMNS - COLUMNS };
    const size_t vocab = (size_t)t->gpu->m->c.vocab, n = TAIL * vocab;
    float *logits = (float *)malloc(T * vocab * sizeof *logits), *steps = (float *)malloc(2 * n * sizeof *steps);
    int32_t ids[T];
    token_row rows[T];
    double by[2] = {0, 0};
    if (!t->code && (!logits || !steps)) t->code = fail_memory(t->err);
    try_tokens(t, 7, ids, T);
    text_rows(rows, ids, T, 0, 0);
    text_rows(rows + FIRST + ROWS * COLUMNS, ids + FIRST + ROWS * COLUMNS, T - FIRST - ROWS * COLUMNS, FIRST + ROWS * COLUMNS, LAG);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        rows[FIRST + i].position[0] = FIRST;
        rows[FIRST + i].position[1] = FIRST + i / COLUMNS;
        rows[FIRST + i].position[2] = FIRST + i % COLUMNS;
    }
    for (int way = 0; way < 2; way++) {
        try_feed(t, ids, rows, T - TAIL, logits, NULL);
        if (way) t->gpu->lag = 0;
        if (!t->code) t->code = mote_feed_logits(t->gpu, ids + T - TAIL, TAIL, steps + (size_t)way * n, NULL, t->err);
    }
    try_feed(t, ids, rows, T, logits, NULL);
    for (int way = 0; way < 2 && !t->code; way++) by[way] = relative_difference(steps + (size_t)way * n, logits + (T - TAIL) * vocab, NULL, n);
    if (!t->code) t->code = timeline_reset(t->gpu, t->err);
    if (!t->code) try_worse(t, by[0] / by[1]);
    try_row(t, 0.25, "steps after a picture");
    free(logits);
    free(steps);
}

/* All stages of prefill, where it runs the model. Both sessions are open, with scratch for TRY_PROMPT rows. */
static void try_prefill(selftest *t) {
    if (t->code || !t->g->prefill.rows) return;
    for (int i = 0; i < 3 && try_has(t, LAYER_DELTANET); i++) try_prefill_deltanet(t, i ? 37 : 0, i > 1);
    for (t->attention = try_first_attention(t); t->attention <= TRY_ATTENTION; t->attention++) {
        try_fill_kv(t);
        try_prefill_attention(t, 0);
        try_prefill_attention(t, 421);
    }
    for (int agreeing = 0; agreeing < 2 && try_has(t, LAYER_MOE); agreeing++) try_prefill_moe(t, agreeing);
    if (try_has(t, LAYER_MLP)) try_prefill_mlp(t);
    if (try_has(t, LAYER_MLP)) try_prefill_normed_mlp(t);
    for (int f = 0; f < FORMAT_COUNT; f++) try_prefill_table(t, (enum format)f);
    try_prefill_panels(t);
    try_embeddings(t);
    if (try_has(t, LAYER_DELTANET) && !try_has(t, LAYER_MOE) && t->gpu->o.kv == MOTE_KV_BF16) try_picture(t);
}
