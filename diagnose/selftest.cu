/* diagnose/selftest.cu: the helpers of the selftest; stages of a step, and whole models, on a GPU against the CPU code, and against
   themselves. It opens synthetic models and sessions of its own, and touches no others.

   A synthetic model has the same weights on the CPU and on a GPU. Whether a step computes what the definitions say is tried sublayer by
   sublayer (selftest_definition.cu). Here is what that does not reach or does not see: recurrent states and KV rows after any number of
   tokens, random ones; choices among many equal logits; equal bits. A stage runs on both with the same input: on the GPU by the
   very functions that a step is captured from, cut down to one stage (gpu_queue.stages) and launched without a graph; on the CPU
   by the same stage in plain C.

   Allowed differences are relative to the largest value of a result: 1e-5 for conv_delta, in single precision; 2e-4 for attention,
   which rounds more often; 2e-5 where token rows meet weights, because rows enter products as two BF16 terms, 16 bits. The rest must
   be equal. */

enum {
    TRY_CONTEXT = 9216,          /* 144 chunks: more than attention has splits, so that some take two */
    TRY_DELTANET = 0, TRY_ATTENTION = 3,                    /* layers of these kinds, where a synthetic model has them */
    TRY_FED = 16, TRY_STEPS = 24, TRY_ROWS = TRY_FED + TRY_STEPS
};

/* The first failure (code) stays; after it no test runs and no row is reported. */
typedef struct selftest {
    void (*row)(void *user, const char *what, double difference, double allowed, int ok);
    void *user;
    const char *device;
    int sms, code, failed;
    mote_error *err;
    uint64_t random;
    int attention;               /* the layer whose attention is tried */
    double worst;                /* largest difference so far of the next row to be reported */
    const char *name;            /* of the model: "small:fp8" */
    mote_model *models[2];       /* on the CPU, on the GPU */
    mote_session *cpu, *gpu;     /* one of each, with the same KV type */
    struct gpu_runner *g;        /* of gpu */
} selftest;

static float try_random(selftest *t) {                      /* -1..1 */
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(t->random >> 32) * 0x1p-31f;
}

static void try_fill(selftest *t, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = try_random(t);
}

static void try_tokens(selftest *t, uint64_t seed, int32_t *ids, int n) {
    t->random = seed * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < n; i++) {
        try_random(t);
        ids[i] = (int32_t)((t->random >> 33) % (uint64_t)t->models[0]->c.vocab);
    }
}

static void try_put(selftest *t, void *to, const void *from, size_t bytes) {
    if (!t->code) t->code = slot_copy(&t->gpu->slot, to, from, bytes, t->err);
}

/* Reports a row of results: the worst difference since the last row against what is allowed. */
__attribute__((format(printf, 3, 4))) static void try_row(selftest *t, double allowed, const char *format, ...) {
    char what[96];
    int n = snprintf(what, sizeof what, "%s ", t->name), ok = t->worst <= allowed;
    va_list args;
    va_start(args, format);
    vsnprintf(what + n, sizeof what - (size_t)n, format, args);
    va_end(args);
    if (!t->code) {
        t->failed += !ok;
        t->row(t->user, what, t->worst, allowed, ok);
    }
    t->worst = 0;
}

static void try_worse(selftest *t, double difference) {
    if (difference > t->worst) t->worst = difference;
}

static void try_equal(selftest *t, const void *a, const void *b, size_t n) {
    size_t differ = 0;
    for (size_t i = 0; i < n && !t->code; i++) differ += ((const char *)a)[i] != ((const char *)b)[i];
    try_worse(t, (double)differ);
}

/* Largest difference, relative to the largest value wanted or, if these were added to `before` (else NULL), to the largest
   of what was added. A NaN or infinity anywhere makes it infinite. */
static double relative_difference(const float *got, const float *want, const float *before, size_t n) {
    double most = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]), size = fabs((double)want[i] - (before ? before[i] : 0));
        if (!isfinite(d)) return INFINITY;
        most = d > most ? d : most;
        top = size > top ? size : top;
    }
    return top > 0 ? most / top : most > 0 ? INFINITY : 0;
}

/* The same for n floats on the GPU. Then the CPU's overwrite them, so that the next stage starts alike on both. */
static void try_compare(selftest *t, float *at, const float *want, const float *before, size_t n) {
    float *got = (float *)malloc(n * sizeof *got);
    if (!t->code && !got) t->code = fail_memory(t->err);
    if (!t->code) t->code = slot_copy(&t->gpu->slot, got, at, n * sizeof *got, t->err);
    if (!t->code) try_worse(t, relative_difference(got, want, before, n));
    try_put(t, at, want, n * sizeof *want);
    free(got);
}

/* Before launches: sets step_parameters (tokens `ids` at `position`, `replay` accepted rows in the log), and which stages
   run. */
static gpu_queue *try_begin(selftest *t, unsigned stages, int position, int replay, const int32_t *ids, int T) {
    static const int32_t none[STEP_ROWS] = {0};
    if (!t->code) t->code = gpu_enter(&t->gpu->slot, t->err);
    t->gpu->count = position;
    t->gpu->accepted = replay;
    const block b = timeline_block(t->gpu, ids ? ids : none, T);
    if (!t->code) gpu_set_step(&t->gpu->slot, &b, replay, 0);
    t->g->q.stages = stages;
    return &t->g->q;
}

static void try_end(selftest *t) {
    gpu_submit(&t->g->q);
    t->g->q.stages = ALL_STAGES;
    t->gpu->count = t->gpu->accepted = t->gpu->lag = 0;
    if (!t->code) t->code = gpu_finish(&t->gpu->slot, t->err);
}

/* Random floats for both. */
static void try_both(selftest *t, float *here, float *there, size_t n) {
    try_fill(t, here, n);
    try_put(t, there, here, n * sizeof *here);
}

/* Some stages of a layer on the GPU, over the rows in its x. */
static void try_layer(selftest *t, unsigned stages, int index, int position, int replay, int T) {
    gpu_queue *q = try_begin(t, stages, position, replay, NULL, T);
    const gpu_form form = gpu_form_of(&t->gpu->slot, T);
    gpu_record_layer(&form, q, index, T, t->g->x, 0, 0);
    try_end(t);
}

/* conv_delta on random state and input, and the new window and log, which further blocks of gated_norm_out write. */
static void try_deltanet(selftest *t, int T, int replay) {
    deltanet_job *job = &t->cpu->slot.runner->s.jobs.deltanet;
    const deltanet_shape *s = job->shape;
    const deltanet_state *a = &t->cpu->slot.state[TRY_DELTANET].deltanet, *b = &t->gpu->slot.state[TRY_DELTANET].deltanet;
    const deltanet_gpu *g = &t->g->layers.deltanet;
    scratch *w = &t->cpu->slot.runner->s;
    size_t channels = (size_t)deltanet_channels(s), values = (size_t)(s->value_heads * s->value_dim), heads = (size_t)s->value_heads;
    job->w = &t->cpu->m->layers[TRY_DELTANET].mixer.w.deltanet;
    job->state = *a;
    job->T = T;
    job->replay = replay;
    try_both(t, t->cpu->slot.recurrent, t->gpu->slot.recurrent, t->cpu->slot.recurrent_floats);
    try_both(t, job->raw, g->raw, (size_t)T * channels);
    try_both(t, job->z, g->z, (size_t)T * values);
    try_both(t, job->b, g->b, (size_t)T * heads);
    try_both(t, job->a, g->a, (size_t)T * heads);
    stage_conv_delta(t->cpu->slot.runner->threads, job);
    try_layer(t, 1u << STAGE_DELTA, TRY_DELTANET, 0, replay, T);
    for (size_t i = 0; i < (size_t)T * values; i++)         /* on the GPU conv_delta gates; conv is done with */
        job->conv[i] = job->o[i] * job->w->norm[i % (size_t)s->value_dim] * silu(job->z[i]);
    try_compare(t, g->o, job->conv, NULL, (size_t)T * values);
    try_compare(t, b->S, a->S, NULL, values * (size_t)s->key_dim);
    try_compare(t, b->log_u, a->log_u, NULL, STEP_ROWS * values);
    try_row(t, 1e-5, "conv_delta T=%d replay=%d", T, replay);
    stage_gated_norm_out(t->cpu->slot.runner->threads, job, w->x);
    try_layer(t, 1u << STAGE_OUT_PROJ, TRY_DELTANET, 0, replay, T);
    try_compare(t, b->window, a->window, NULL, (size_t)(s->taps - 1) * channels);
    try_compare(t, b->log_raw, a->log_raw, NULL, STEP_ROWS * channels);
    try_compare(t, b->log_k, a->log_k, NULL, STEP_ROWS * (size_t)(s->key_heads * s->key_dim));
    try_compare(t, b->log_decay, a->log_decay, NULL, STEP_ROWS * heads);
    try_row(t, 1e-5, "window and log T=%d replay=%d", T, replay);
}

/* Random keys and values for all of the context. */
static void try_fill_kv(selftest *t) {
    mote_session *s = t->cpu;
    const attention_shape *shape = &s->m->layers[t->attention].mixer.w.attention.shape;
    size_t n = (size_t)(shape->kv_heads * shape->head_dim);
    float *row = s->slot.runner->s.jobs.attention.qg;
    size_t all = TRY_CONTEXT * n * kv_size(kv_type_of(s->o.kv));
    attention_state *a = &s->slot.state[t->attention].attention, *b = &t->gpu->slot.state[t->attention].attention;
    for (size_t i = 0; i < TRY_CONTEXT; i++) {
        try_fill(t, row, 2 * n);
        for (size_t j = 0; j < n; j++) row[j] *= 2;         /* keys: so that some positions matter more than others */
        kv_store(kv_type_of(s->o.kv), a->k, i * n, row, n);
        kv_store(kv_type_of(s->o.kv), a->v, i * n, row + n, n);
    }
    try_put(t, b->k, a->k, all);
    try_put(t, b->v, a->v, all);
}

static const char *const kv_names[] = {"F32", "F16", "BF16", "FP8"};        /* of enum dtype */

/* The new KV rows. Values that are not normalised must be equal. What is may round to the other side, one step of its type away: so the CPU goes
   on with the GPU's. */
static void try_kv_rows(selftest *t, int T, int position) {
    const attention_shape *s = &t->cpu->m->layers[t->attention].mixer.w.attention.shape;
    float *read = t->cpu->slot.runner->s.jobs.attention.o;
    int n = T * s->kv_heads * s->head_dim;
    dtype type = kv_type_of(t->cpu->o.kv);
    size_t bytes = (size_t)n * kv_size(type), at = (size_t)position * (bytes / (size_t)T);
    attention_state *a = &t->cpu->slot.state[t->attention].attention, *b = &t->gpu->slot.state[t->attention].attention;
    for (int values = 0; values < 2; values++) {
        char *rows = (char *)(values ? a->v : a->k) + at;
        const char *there = (const char *)(values ? b->v : b->k) + at;
        const float *want = kv_floats(rows, 0, n, t->cpu->slot.runner->s.u, type);
        void *to = values && !s->v_normed ? (void *)read : rows;
        if (!t->code) t->code = slot_copy(&t->gpu->slot, to, there, bytes, t->err);
        if (to == read) try_equal(t, read, rows, bytes);
        else try_worse(t, relative_difference(kv_floats(rows, 0, n, read, type), want, NULL, (size_t)n));
    }
    try_row(t, type == DTYPE_FP8 ? 0x1p-3 : 0x1p-7, "KV %s rows T=%d position=%d", kv_names[type], T, position);
}

/* rope_attend of random queries and new keys and values, after `position` others; after many, of text after an image. */
static void try_attention(selftest *t, int T, int position) {
    mote_session *c = t->cpu;
    attention_job *job = &c->slot.runner->s.jobs.attention;
    const attention_weights *w = &c->m->layers[t->attention].mixer.w.attention;
    const attention_shape *s = &w->shape;
    const attention_gpu *g = &t->g->layers.attention;
    const int lag = position > 1000 ? 137 : 0;
    size_t n = (size_t)(T * s->heads * s->head_dim), kv = (size_t)(T * s->kv_heads * s->head_dim);
    job->shape = s;
    job->w = w;
    job->T = T;
    job->index = position;
    job->kv_only = 0;
    job->k = c->slot.state[t->attention].attention.k;
    job->v = c->slot.state[t->attention].attention.v;
    job->held = TRY_CONTEXT;
    try_both(t, job->qg, g->qg, (size_t)(T * s->heads * attention_q_size(s)));
    try_both(t, job->k_new, g->k_new, kv);
    try_both(t, job->v_new, g->v_new, kv);
    try_both(t, job->g_new, g->g_new, (size_t)(T * s->heads * s->gate_size));
    t->gpu->lag = lag;
    try_layer(t, 1u << STAGE_ATTEND, t->attention, position, 0, T);
    text_rows(c->slot.runner->s.table, NULL, T, position, lag);
    attention_angles(job->w, c->slot.runner->s.table, T, job->angles);
    parallel(c->slot.runner->threads, T, attention_prepare, job);      /* stage_rope_attend, in two parts */
    try_kv_rows(t, T, position);
    attention_heads(c->slot.runner->threads, job);
    try_compare(t, g->o, job->o, NULL, n);
    try_row(t, 2e-4, "rope_attend heads of %d, KV %s T=%d position=%d window %d", s->head_dim, kv_names[job->kv], T, position, s->window);
}

static int try_has(const selftest *t, enum layer_kind kind) {
    return t->models[0]->largest.kinds >> kind & 1;
}

/* The routing that experts_up computes: top_k of any number of experts, by logits of which many are equal. An expert's weights are what lies
   16 bytes after those of the one before. router: what the choice asks for. */
static void try_choice(selftest *t, int T, int experts, int top_k, const moe_shape *router) {
    const layer *l = &t->gpu->m->layers[TRY_DELTANET];
    const gpu_rows rows = {.q = &t->g->q, .T = T, .x = t->g->x, .norm = l->ffn.norm, .eps = t->gpu->m->c.eps, .to = t->g->x};
    moe_gpu p = moe_gpu_of(&t->g->layers.moe, &l->ffn.w.moe, &rows);
    float logits[STEP_ROWS * GPU_EXPERTS], weight[GPU_TOP], correction[GPU_EXPERTS], rank[GPU_EXPERTS], group[GPU_GROUPS];
    int32_t choice[GPU_TOP + 1], uses[GPU_EXPERTS] = {0};
    int64_t at[GPU_EXPERTS];
    gpu_routing want, got;
    size_t n = (size_t)(T * experts);
    memset(&want, 0, sizeof want);
    memset(&got, 0, sizeof got);
    for (int e = 0; e < GPU_EXPERTS; e++) at[e] = 16 * e;
    try_fill(t, logits, n);
    for (size_t i = 0; i < n; i++) logits[i] = floorf(logits[i] * (router->sigmoid ? 3 : 16));
    try_fill(t, correction, (size_t)experts);
    for (int e = 0; e < experts && !router->groups; e++) correction[e] = 0.25f * floorf(correction[e] * 4);     /* sums of two would hardly differ */
    p.shape.experts = experts;
    p.shape.top_k = top_k;
    p.shape.sigmoid = router->sigmoid;
    p.shape.corrected = router->corrected;
    p.shape.groups = router->groups;
    p.shape.groups_kept = router->groups_kept;
    p.ranks = moe_ranks_scores(&p.shape);
    for (int row = 0; row < T; row++) {
        moe_weights w = l->ffn.w.moe;
        w.correction = correction;
        const moe_job job = {.shape = &p.shape, .w = &w, .rank = rank, .group = group};
        moe_choose(&job, logits + (size_t)(row * experts), choice, weight);
        for (int i = 0; i < top_k; i++) uses[choice[i]] |= 1 << row;
    }
    for (int e = 0; e < experts; e++)
        if (uses[e]) want.at[want.count] = at[e], want.rows[want.count++] = uses[e];
    try_put(t, t->g->logits, logits, n * sizeof(float));
    try_put(t, p.batch.x.x, at, sizeof at);
    try_put(t, p.batch.shared_h, correction, (size_t)experts * sizeof *correction);
    p.expert_at = (const int64_t *)(const void *)p.batch.x.x;           /* scratch of what does not run here */
    p.correction = p.batch.shared_h;
    p.router = t->g->logits;
    gpu_record_experts(try_begin(t, 1u << STAGE_UP, 0, 0, NULL, T), &p);
    try_end(t);
    if (!t->code) t->code = slot_copy(&t->gpu->slot, &got, p.routing, sizeof got, t->err);
    try_worse(t, got.count != want.count);
    for (int i = 0; i < want.count; i++)
        try_worse(t, got.at[i] != want.at[i] || got.rows[i] != want.rows[i]);
    try_row(t, 0, "choosing %d of %d%s%s T=%d", top_k, experts, router->corrected ? ", corrected sigmoids" : "", router->groups ? " in groups" : "", T);
}

static void try_embed(selftest *t, int T) {
    const mote_model *m = t->cpu->m;
    float *x = t->cpu->slot.runner->s.x;
    int32_t ids[STEP_ROWS];
    try_tokens(t, (uint64_t)T, ids, T);
    token_row *rows = t->cpu->slot.runner->s.table;
    text_rows(rows, ids, T, 0, 0);
    embed(&m->embed_tokens, m->c.embed_factor, rows, T, x);
    const gpu_form form = gpu_form_of(&t->gpu->slot, T);
    gpu_record_step(&form, try_begin(t, 1u << STAGE_EMBED, 0, 0, ids, T), GPU_NO_LOGITS);
    try_end(t);
    try_compare(t, t->g->x, x, NULL, (size_t)(T * m->c.hidden));
    try_row(t, 0, "embed T=%d", T);
}

/* An FFN whose output a step stores, norms, scales and adds; the weights of the norm before it serve for that after it and for the scale, and,
   if its branches have norms, for those. */
static void try_normed_after(selftest *t, int T, int branched) {
    scratch *w = &t->cpu->slot.runner->s;
    const int hidden = t->cpu->m->c.hidden;
    const size_t n = (size_t)(T * hidden);
    const float eps = t->cpu->m->c.eps;
    float *output = t->g->layers.output, *shared_output = t->g->layers.shared_output;
    layer on[2] = {t->cpu->m->layers[TRY_DELTANET], t->gpu->m->layers[TRY_DELTANET]};
    for (int i = 0; i < 2; i++) {
        on[i].mixer.kind = LAYER_NONE;
        on[i].ffn.residual.normed_after = on[i].ffn.residual.scaled = 1;
        on[i].ffn.residual.branched = branched;
        on[i].ffn.norm_after = on[i].ffn.scale = on[i].ffn.norm;
        on[i].ffn.norm_router = on[i].ffn.norm_shared = on[i].ffn.norm_routed_after = on[i].ffn.norm_shared_after = on[i].ffn.norm;
    }
    token_rows rows = {.threads = t->cpu->slot.runner->threads, .T = T, .of = NULL, .count = 0, .state_only = 0, .hidden = hidden, .eps = eps,
                       .x = w->x, .y = (float *)malloc(4 * n * sizeof(float)), .u = w->u, .out = NULL};
    if (!t->code && !rows.y) t->code = fail_memory(t->err);
    rows.branches = rows.y ? rows.y + n : NULL;
    try_both(t, w->x, t->g->x, n);
    memcpy(w->hidden, w->x, n * sizeof(float));
    if (!t->code) ffn_forward(&rows, &on[0].ffn, &w->jobs);
    const gpu_rows there = {.q = try_begin(t, ALL_STAGES, 0, 0, NULL, T), .T = T, .layer = TRY_DELTANET, .step = t->g->step,
                            .slot = gpu_view_of(t->gpu->slot.runner), .x = t->g->x, .eps = eps, .hidden = hidden};
    t->g->layers.output = t->g->mtp_x;
    t->g->layers.shared_output = t->g->mtp_in;
    layer_record(&there, &on[1], &t->g->layers, &t->g->capture_base.state[TRY_DELTANET], &t->g->growth_base.state[TRY_DELTANET]);
    t->g->layers.output = output;
    t->g->layers.shared_output = shared_output;
    try_end(t);
    try_compare(t, t->g->x, w->x, w->hidden, n);
    try_row(t, 1e-4, "an FFN with a norm after it%s and a scale T=%d", branched ? ", branches with norms" : "", T);
    free(rows.y);
}

/* The first of the layers whose attention is tried: the last two where one has a window. */
static int try_first_attention(const selftest *t) {
    const sublayer *before = &t->models[0]->layers[TRY_ATTENTION - 1].mixer;
    return before->kind == LAYER_ATTENTION && before->w.attention.shape.window ? TRY_ATTENTION - 1 : TRY_ATTENTION;
}

/* Stages, with any type of KV rows; with_all: those that do not depend on it, too. */
static void try_stages(selftest *t, int with_all) {
    static const int positions[] = {0, 63, 64, 700, 9001};
    for (t->attention = try_first_attention(t); t->attention <= TRY_ATTENTION; t->attention++) {
        try_fill_kv(t);
        for (int T = 1; T <= STEP_ROWS; T++)
            for (int i = 0; i < 5 && !t->code; i++) try_attention(t, T, positions[i]);
    }
    for (int T = 1; T <= STEP_ROWS && with_all && !t->code; T++) {
        try_both(t, t->cpu->slot.runner->s.x, t->g->x, (size_t)(T * t->cpu->m->c.hidden));
        for (int replay = 0; replay <= STEP_ROWS && !t->code && try_has(t, LAYER_DELTANET); replay++) try_deltanet(t, T, replay);
        try_embed(t, T);
        try_normed_after(t, T, 0);
        if (try_has(t, LAYER_MOE) && t->models[0]->largest.moe.shared_size) try_normed_after(t, T, 1);
        if (!try_has(t, LAYER_MOE)) continue;
        for (int i = 0; i < 3; i++) {
            static const moe_shape routers[] = {{}, {.sigmoid = 1, .corrected = 1}, {.sigmoid = 1, .corrected = 1, .groups = 8, .groups_kept = 3}};
            try_choice(t, T, 256, 8, &routers[i]);
            try_choice(t, T, i < 2 ? 77 : 88, 5, &routers[i]);
            try_choice(t, T, GPU_EXPERTS, GPU_TOP, &routers[i]);
        }
    }
}

/* All results of a fresh session: of a prompt, whose last 4 tokens are one block, then of steps. */
typedef struct selftest_record {
    float *logits, *mtp;         /* [TRY_ROWS][vocab], [TRY_FED - 1][vocab] */
    int32_t ids[TRY_STEPS];
    char *saved;                 /* the session after the prompt */
    size_t size;
    int wrong;                   /* greedy steps whose token is not the first of the largest logits */
} selftest_record;

static void record_free(selftest_record *r) {
    free(r->logits);
    free(r->saved);
}

/* pieces: the rows of each block, "1+4+3+2+2+4". */
static void record_prompt(selftest *t, mote_session *s, const char *pieces, selftest_record *r) {
    int32_t ids[TRY_FED];
    size_t vocab = (size_t)s->m->c.vocab, done = 0;
    try_tokens(t, 1, ids, TRY_FED);
    for (const char *p = pieces; done < TRY_FED && !t->code; p += 2) {
        size_t T = (size_t)(*p - '0');
        t->code = mote_feed_logits(s, ids + done, T, r->logits + done * vocab,
                                   s->m->has_mtp ? r->mtp + (done ? done - 1 : 0) * vocab : NULL, t->err);
        done += T;
    }
    if (!t->code) t->code = save_bytes(s, &r->saved, &r->size, t->err);
}

static void record_steps(selftest *t, mote_session *s, const mote_sampling *sampling, selftest_record *r) {
    int vocab = s->m->c.vocab;
    for (int i = 0; i < TRY_STEPS && !t->code; i++) {
        const float *before = r->logits + (size_t)(TRY_FED + i - 1) * (size_t)vocab;
        int best = 0;
        for (int id = 1; id < vocab; id++)
            if (before[id] > before[best]) best = id;
        t->code = mote_step(s, sampling, &r->ids[i], t->err);
        if (!t->code) t->code = session_logits(s, t->err);
        memcpy(r->logits + (size_t)(TRY_FED + i) * (size_t)vocab, s->slot.logits, (size_t)vocab * sizeof(float));
        r->wrong += r->ids[i] != best;
    }
}

static void record_session(selftest *t, const char *pieces, const mote_sampling *sampling, selftest_record *r) {
    size_t vocab = (size_t)t->models[1]->c.vocab;
    mote_session_options o;
    mote_session *s = NULL;
    memset(r, 0, sizeof *r);
    memset(&o, 0, sizeof o);
    o.context = 64;
    o.sms = t->sms;
    r->logits = (float *)calloc((TRY_ROWS + TRY_FED - 1) * vocab, sizeof *r->logits);
    if (!t->code && !r->logits) t->code = fail_memory(t->err);
    if (!t->code) r->mtp = r->logits + TRY_ROWS * vocab;
    if (!t->code) t->code = mote_session_open(t->models[1], &o, &s, t->err);
    if (!t->code) record_prompt(t, s, pieces, r);
    if (!t->code) record_steps(t, s, sampling, r);
    mote_session_close(s);
}

/* Counts the bytes in which two records differ. */
static void try_records(selftest *t, const selftest_record *a, const selftest_record *b) {
    size_t row = (size_t)t->models[1]->c.vocab * sizeof(float);
    if (t->code) return;
    try_equal(t, a->logits, b->logits, TRY_ROWS * row);
    try_equal(t, a->mtp, b->mtp, (TRY_FED - 1) * row);
    try_equal(t, a->ids, b->ids, sizeof a->ids);
    try_worse(t, a->size == b->size ? 0 : INFINITY);
    try_equal(t, a->saved, b->saved, a->size < b->size ? a->size : b->size);
}

/* The same rows in blocks of other sizes, and the same blocks twice: logits, state, KV rows, tokens must be equal bits. */
static void try_exact(selftest *t) {
    static const char *const pieces[] = {"4+4+4+4", "3+3+3+3+4", "1+4+3+2+2+4"};
    selftest_record first, other;
    mote_sampling sampling;
    record_session(t, "1+1+1+1+1+1+1+1+1+1+1+1+4", NULL, &first);
    if (!t->code) try_worse(t, first.wrong);
    try_row(t, 0, "greedy tokens have the best logit");
    for (int i = 0; i < 3 && !t->code; i++) {
        record_session(t, pieces[i], NULL, &other);
        try_records(t, &first, &other);
        try_row(t, 0, "rows %s as 1+1+ ... +4", pieces[i]);
        record_free(&other);
    }
    record_free(&first);
    memset(&sampling, 0, sizeof sampling);
    sampling.temperature = 1;
    sampling.top_k = 20;
    sampling.seed = 1;
    record_session(t, pieces[0], &sampling, &first);
    record_session(t, pieces[0], &sampling, &other);
    try_records(t, &first, &other);
    try_row(t, 0, "sampled twice");
    record_free(&first);
    record_free(&other);
}

static void try_close(selftest *t) {
    mote_session_close(t->cpu);
    mote_session_close(t->gpu);
    t->cpu = t->gpu = NULL;
}

/* A session on either device, with KV rows of the same type, and scratch for `chunk` rows. None of the rows lie in rings: so they can be compared
   by their index. */
static void try_open(selftest *t, int kv, int chunk) {
    mote_session_options o;
    for (int i = 0; i < 2 && !t->code; i++) t->models[i]->largest.attention.window = 0;
    memset(&o, 0, sizeof o);
    o.context = TRY_CONTEXT;
    o.chunk = chunk;
    o.kv = kv;
    o.sms = t->sms;
    if (!t->code) t->code = mote_session_open(t->models[0], &o, &t->cpu, t->err);
    if (!t->code) t->code = mote_session_open(t->models[1], &o, &t->gpu, t->err);
    if (!t->code) t->g = t->gpu->slot.runner->gpu;
}
