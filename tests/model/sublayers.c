// sublayers.c: a model taken apart, to see which part computes something else than its definition. Each sublayer, mixer or FFN, is run
// by sessions, the CPU's code or a GPU's step, over the rows that the definition has before it: a difference is that sublayer's own.
// After engine.cu, the definitions and api.h. C11 and C++17, as nvcc compiles it for tests/engine/wrong_logit.c.

enum { COMPARED = 2, VALUES_MOST = 5 };

// The largest difference of two sets of rows, relative to the largest number of its row, or of what was added to it.
typedef struct difference { double by; int row, at; } difference;

// What a stage leaves on the way to a sublayer's output. [rows][n]
typedef struct stage_value {
    const char *stage, *name;    // name: the definition's, of defined_tell
    int n;
    double *want;
    float *got[COMPARED];
    difference off[COMPARED];
} stage_value;

// A line of the report: a sublayer, the head, or the logits of the whole model, of which no part is the definition's.
typedef struct sublayer_report {
    int layer;                   // of the MTP layer the number of layers; -1: none
    const char *kind;            // "attention", "head", "logits"
    difference off[COMPARED];
    int rows, count;             // count stage values: of the layer that is looked into
    stage_value value[VALUES_MOST];
} sublayer_report;

typedef struct walk {
    const mote_model *m;                     // whose definition it is, on the CPU
    mote_session *compared[COMPARED];        // empty ones, of models with the same shapes; NULL: none
    const int32_t *ids;
    int T, rows;                             // tokens; so many at a time go through the sessions
    int layer;                               // to look into; -1: none
    void (*tell)(void *user, const sublayer_report *r);
    void *user;
} walk;

static difference difference_of(const double *want, const double *before, const float *got, int rows, int n) {
    difference d = {0, 0, 0};
    for (int t = 0; t < rows; t++) {
        const size_t row = (size_t)t * (size_t)n;
        double top = 0;
        for (int i = 0; i < n; i++) top = fmax(top, fabs(want[row + (size_t)i] - (before ? before[row + (size_t)i] : 0)));
        for (int i = 0; i < n; i++) {
            double error = fabs((double)got[row + (size_t)i] - want[row + (size_t)i]);
            double by = !isfinite(error) ? INFINITY : top > 0 ? error / top : error > 0 ? INFINITY : 0;
            if (by > d.by) d.by = by, d.row = t, d.at = i;
        }
    }
    return d;
}

// ---- Stages ---------------------------------------------------------------------------------------------------------

static int add_value(stage_value *v, int count, const char *stage, const char *name, int n) {
    v[count].stage = stage, v[count].name = name, v[count].n = n;
    return count + (n > 0);
}

// What both a definition and its stages have, of one half of a layer.
static int values_of(const layer *l, int half, stage_value *v) {
    int n = 0;
    if (half) {
        const moe_shape *s = &l->ffn.w.moe.shape;
        n = add_value(v, n, "norm_router", "router", s->experts);
        return add_value(v, n, "norm_router", "shared_expert_gate", s->shared_size > 0);
    }
    if (l->mixer.kind == LAYER_DELTANET) {
        const deltanet_shape *s = &l->mixer.w.deltanet.shape;
        n = add_value(v, n, "norm_in_proj", "in_proj_qkv", deltanet_channels(s));
        n = add_value(v, n, "norm_in_proj", "in_proj_z", s->value_heads * s->value_dim);
        n = add_value(v, n, "norm_in_proj", "in_proj_b", s->value_heads);
        n = add_value(v, n, "norm_in_proj", "in_proj_a", s->value_heads);
        return add_value(v, n, "conv_delta", "o", s->value_heads * s->value_dim);
    }
    const attention_shape *s = &l->mixer.w.attention.shape;
    n = add_value(v, n, "norm_qkv", "q_proj", s->heads * attention_q_size(s));
    n = add_value(v, n, "norm_qkv", "k_proj", s->kv_heads * s->head_dim);
    n = add_value(v, n, "norm_qkv", "v_proj", s->kv_heads * s->head_dim);
    return add_value(v, n, "rope_attend", "o", s->heads * s->head_dim);
}

// Where the CPU has them, after the block of rows x. Norms of q and k are taken in place, so their products are computed again.
static void cpu_values(const mote_session *s, const layer *l, int half, const float *x, int T, const float **at) {
    scratch *w = &s->at.runner->s;
    const layer_jobs *j = &w->jobs;
    if (half) {
        at[0] = j->moe.router, at[1] = j->moe.shared_gate;
    } else if (l->mixer.kind == LAYER_DELTANET) {
        at[0] = j->deltanet.raw, at[1] = j->deltanet.z, at[2] = j->deltanet.b, at[3] = j->deltanet.a, at[4] = j->deltanet.o;
    } else {
        const attention_job *a = &j->attention;
        stage_norm_qkv(s->at.runner->threads, a->shape, a->w, x, T, w->u, a->qg, a->k_new, a->v_new, a->limbs);
        at[0] = a->qg, at[1] = a->k_new, at[2] = a->v_new, at[3] = a->o;
    }
}

// ---- Sessions -------------------------------------------------------------------------------------------------------

// Rows of a block, and what they follow.
typedef struct rows_of_block { const float *x; int T, position, replay; } rows_of_block;

#ifdef __CUDACC__
static void gpu_values(const mote_session *s, const layer *l, int half, const float **at) {
    const layer_gpus *g = &s->at.runner->gpu->layers;
    if (half) {
        at[0] = g->moe.router, at[1] = g->moe.shared_gate;
    } else if (l->mixer.kind == LAYER_DELTANET) {
        at[0] = g->deltanet.raw, at[1] = g->deltanet.z, at[2] = g->deltanet.b, at[3] = g->deltanet.a, at[4] = g->deltanet.o;
    } else {
        at[0] = g->attention.qg, at[1] = g->attention.k_new, at[2] = g->attention.v_new, at[3] = g->attention.o;
    }
}

// A GPU's o of DeltaNet is not divided by its root mean square yet: the next kernel does that.
static int gpu_normalise(mote_session *s, const deltanet_shape *d, int T, float *o, mote_error *err) {
    const int parts = gpu_delta_parts(d), stride = gpu_squares_stride(parts), heads = T * d->value_heads;
    float *squares = (float *)allocate((size_t)(heads * stride) * sizeof *squares);
    int code = slot_copy(&s->at, squares, s->at.runner->gpu->layers.deltanet.squares, (size_t)(heads * stride) * sizeof *squares, err);
    for (int h = 0; h < heads; h++) {
        double sum = 0;
        for (int p = 0; p < parts; p++) sum += (double)squares[h * stride + p];
        for (int i = 0; i < d->value_dim; i++) o[h * d->value_dim + i] /= (float)sqrt(sum / d->value_dim + (double)d->eps);
    }
    free(squares);
    return code;
}

// The kernels of a step, of a part of layer i or (-1) of the head, over rows: *at is where these are on the GPU.
static int gpu_part(mote_session *s, int i, const layer *l, const rows_of_block *r, float **at, mote_error *err) {
    static const int32_t none[MOTE_ROWS_MAX] = {0};
    const mote_model *m = s->m;
    struct gpu_runner *g = s->at.runner->gpu;
    block b;
    memset(&b, 0, sizeof b);
    b.ids = none;
    b.T = r->T;
    b.position = r->position;
    b.replay = r->replay;
    *at = i == m->c.layers ? g->mtp_x : g->x;
    int code = slot_copy(&s->at, *at, r->x, (size_t)(r->T * m->c.hidden) * sizeof(float), err);
    if (!code) code = gpu_enter(&s->at, err);
    if (code) return code;
    gpu_set_step(&s->at, &b);
    if (i == m->c.layers) gpu_set_mtp(&s->at, &g->q, 1);
    else g->q.layer = i;
    if (i >= 0) {
        gpu_rows rows = {&g->q, r->T, g->step, gpu_view_of(s->at.runner), 0, 0, *at};
        layer_record(&rows, l, &g->layers, &g->captured.state[i], &g->grown.state[i]);
    } else {
        gpu_head(&g->q, &m->lm_head, m->norm, g->x, r->T, m->c.eps, g->logits);
        *at = g->logits;
    }
    gpu_set_mtp(&s->at, &g->q, 0);
    gpu_submit(&g->q);
    return gpu_finish(&s->at, err);
}
#endif

// The same on the CPU.
static void cpu_part(mote_session *s, int i, const layer *l, const rows_of_block *r, float **at, float *logits) {
    const mote_model *m = s->m;
    scratch *w = &s->at.runner->s;
    memcpy(w->x, r->x, (size_t)(r->T * m->c.hidden) * sizeof(float));
    *at = i >= 0 ? w->x : logits;
    if (i >= 0) {
        const token_sequence rows = sequence_of(&s->at, 0, r->T, r->position, r->replay);
        run_layer(s->at.runner, l, i, &rows, 1, 0);
        return;
    }
    rms_norm(w->hidden, w->x, m->norm, r->T, m->c.hidden, m->c.eps);
    stage_head(s->at.runner->threads, &m->lm_head, w->hidden, r->T, logits, w->limbs);
}

// A session's rows x[T][hidden] through a half of layer i, or the head: to y[T][n], and, of `count` stages, their values.
static void session_part(const walk *w, int which, int i, int half, const float *x, int T, int n, float *y, stage_value *v, int count) {
    mote_session *s = w->compared[which];
    const mote_model *m = s->m;
    layer l;
    memset(&l, 0, sizeof l);
    if (i >= 0) l = i < m->c.layers ? m->layers[i] : m->mtp;
    if (half) l.mixer.kind = LAYER_NONE;
    else l.ffn.kind = LAYER_NONE;
    for (int first = 0, rows; first < T; first += rows) {
        const float *at[VALUES_MOST];
        float *result;
        rows = T - first < w->rows ? T - first : w->rows;
        rows_of_block r = {x + (size_t)first * (size_t)m->c.hidden, rows, first, first && w->rows <= MOTE_ROWS_MAX ? w->rows : 0};
#ifdef __CUDACC__
        if (m->gpu >= 0) {
            EXPECT(MOTE_OK, gpu_part(s, i, &l, &r, &result, &failure));
            if (count) gpu_values(s, &l, half, at);
        } else
#endif
        {
            cpu_part(s, i, &l, &r, &result, y + (size_t)first * (size_t)n);
            if (result == s->at.runner->s.x) memcpy(y + (size_t)first * (size_t)n, result, (size_t)(rows * n) * sizeof *y);
            if (count) cpu_values(s, &l, half, r.x, rows, at);
        }
        if (m->gpu >= 0)
            EXPECT(MOTE_OK, slot_copy(&s->at, y + (size_t)first * (size_t)n, result, (size_t)(rows * n) * sizeof *y, &failure));
        for (int k = 0; k < count; k++) {
            float *to = v[k].got[which] + (size_t)first * (size_t)v[k].n;
            EXPECT(MOTE_OK, slot_copy(&s->at, to, at[k], (size_t)(rows * v[k].n) * sizeof *to, &failure));
#ifdef __CUDACC__
            if (m->gpu >= 0 && k == 4) EXPECT(MOTE_OK, gpu_normalise(s, &l.mixer.w.deltanet.shape, rows, to, &failure));
#endif
        }
    }
}

// ---- The walk -------------------------------------------------------------------------------------------------------

// Where defined_tell writes: the values of the sublayer that is looked into, and its token.
static struct { stage_value *value; int count, token; } watched;

static void watch_value(const char *name, const double *values, int n) {
    for (int i = 0; i < watched.count; i++)
        if (!strcmp(watched.value[i].name, name) && watched.value[i].n == n)
            memcpy(watched.value[i].want + (size_t)watched.token * (size_t)n, values, (size_t)n * sizeof *values);
}

// Both start from the same floats.
static float *rounded(double *x, size_t n) {
    float *to = (float *)allocate(n * sizeof *to);
    for (size_t i = 0; i < n; i++) x[i] = (double)(to[i] = (float)x[i]);
    return to;
}

// x[T][hidden] through a half of layer i.
static void walk_sublayer(const walk *w, int i, int half, double *x, int T, defined_state *state) {
    const layer *l = i < w->m->c.layers ? &w->m->layers[i] : &w->m->mtp;
    const int hidden = w->m->c.hidden;
    const size_t n = (size_t)T * (size_t)hidden;
    float *from = rounded(x, n), *got = (float *)allocate(n * sizeof *got);
    double *before = (double *)allocate(n * sizeof *before);
    sublayer_report r;
    memset(&r, 0, sizeof r);
    memcpy(before, x, n * sizeof *x);
    r.layer = i;
    r.rows = T;
    r.kind = layer_kind_names[half ? l->ffn.kind : l->mixer.kind];
    r.count = i == w->layer ? values_of(l, half, r.value) : 0;
    for (int k = 0; k < r.count; k++) {
        r.value[k].want = (double *)allocate((size_t)T * (size_t)r.value[k].n * sizeof(double));
        for (int d = 0; d < COMPARED; d++) r.value[k].got[d] = (float *)allocate((size_t)T * (size_t)r.value[k].n * sizeof(float));
    }
    watched.value = r.value;
    watched.count = r.count;
    defined_watch = watch_value;
    for (int t = 0; t < T; t++) {
        watched.token = t;
        if (half) define_ffn(l, x + (size_t)t * (size_t)hidden);
        else define_mixer(l, state, x + (size_t)t * (size_t)hidden);
    }
    defined_watch = NULL;
    for (int d = 0; d < COMPARED; d++) {
        if (!w->compared[d]) continue;
        session_part(w, d, i, half, from, T, hidden, got, r.value, r.count);
        r.off[d] = difference_of(x, before, got, T, hidden);
        for (int k = 0; k < r.count; k++) r.value[k].off[d] = difference_of(r.value[k].want, NULL, r.value[k].got[d], T, r.value[k].n);
    }
    w->tell(w->user, &r);
    for (int k = 0; k < r.count; k++) free(r.value[k].want), free(r.value[k].got[0]), free(r.value[k].got[1]);
    free(from), free(got), free(before);
}

static void walk_layer(const walk *w, int i, double *x, int T) {
    const layer *l = i < w->m->c.layers ? &w->m->layers[i] : &w->m->mtp;
    defined_state state;
    define_layer_state(l, T, &state);
    for (int half = 0; half < 2; half++) walk_sublayer(w, i, half, x, T, &state);
    define_layer_free(l, &state);
}

// Rows of the model's end: x becomes h. whole: the logits of each session that computed all of the model.
static void walk_head(const walk *w, double *x, float *const *whole) {
    const mote_model *m = w->m;
    const int hidden = m->c.hidden, vocab = m->c.vocab;
    const size_t n = (size_t)w->T * (size_t)vocab;
    float *from = rounded(x, (size_t)w->T * (size_t)hidden), *got = (float *)allocate(n * sizeof *got);
    double *logits = (double *)allocate(n * sizeof *logits);
    sublayer_report head, all;
    memset(&head, 0, sizeof head);
    head.layer = -1;
    head.rows = w->T;
    all = head;
    head.kind = "head";
    all.kind = "logits";
    for (int t = 0; t < w->T; t++) {
        double *h = x + (size_t)t * (size_t)hidden;
        defined_norm(h, h, m->norm, hidden, (double)m->c.eps);
        defined_linear(&m->lm_head, h, logits + (size_t)t * (size_t)vocab);
    }
    for (int d = 0; d < COMPARED; d++) {
        if (!w->compared[d]) continue;
        session_part(w, d, -1, 0, from, w->T, vocab, got, NULL, 0);
        head.off[d] = difference_of(logits, NULL, got, w->T, vocab);
        all.off[d] = difference_of(logits, NULL, whole[d], w->T, vocab);
    }
    w->tell(w->user, &head);
    w->tell(w->user, &all);
    free(from), free(got), free(logits);
}

// Tells of every sublayer in order, the head, the logits of whole models and the MTP layer's sublayers. Sessions are empty again after it.
static void walk_model(const walk *w) {
    const mote_model *m = w->m;
    const size_t hidden = (size_t)m->c.hidden, vocab = (size_t)m->c.vocab;
    double *x = (double *)allocate((size_t)w->T * hidden * sizeof *x);
    float *whole[COMPARED] = {NULL, NULL};
    for (int d = 0; d < COMPARED; d++) {
        if (!w->compared[d]) continue;
        whole[d] = (float *)allocate((size_t)w->T * vocab * sizeof(float));
        for (int t = 0; t < w->T; t += w->rows)
            EXPECT(MOTE_OK, mote_feed_logits(w->compared[d], w->ids + t, (size_t)(w->T - t < w->rows ? w->T - t : w->rows),
                                             whole[d] + (size_t)t * vocab, NULL, &failure));
        EXPECT(MOTE_OK, mote_reset(w->compared[d], &failure));
    }
    for (int t = 0; t < w->T; t++) define_embedding(m, w->ids[t], x + (size_t)t * hidden);
    for (int i = 0; i < m->c.layers; i++) walk_layer(w, i, x, w->T);
    walk_head(w, x, whole);
    for (int t = 0; m->has_mtp && t + 1 < w->T; t++) define_mtp_input(m, w->ids[t + 1], x + (size_t)t * hidden, x + (size_t)t * hidden);
    if (m->has_mtp && w->T > 1) walk_layer(w, m->c.layers, x, w->T - 1);
    for (int d = 0; d < COMPARED; d++) {
        if (w->compared[d]) EXPECT(MOTE_OK, mote_reset(w->compared[d], &failure));
        free(whole[d]);
    }
    free(x);
}
