/* diagnose/sublayers.c: a model taken apart, to see which part computes something else than its definition. Each sublayer, mixer or FFN, is
   computed by sessions, the CPU's code or a GPU's step, from the rows that the definition has before it: a difference is that sublayer's
   own. For selftest_definition.cu, tests/engine/wrong_logit.c and tests/model/test_definition.c; it may look into runners and jobs of
   layers, and must not know who asks. */

/* FEW_VALUES: the largest of so few may be next to nothing beside the terms that it is a sum of, and a difference large relative to it. */
enum { WALK_CASES = 14, VALUES_MOST = 5, FEW_VALUES = 3 };

/* The largest difference of two sets of rows, relative to the largest number of its row, or of what was added to it. */
typedef struct difference { double by; int row, at; } difference;

/* What a stage leaves on the way to a sublayer's output. [T][n] */
typedef struct stage_value {
    const char *stage, *name;    /* name: the definition's, of defined_tell */
    int n;
    double *want;
    float *got[WALK_CASES];
    difference off[WALK_CASES];
} stage_value;

/* A sublayer, the head, or the logits of the whole model, of which no part is the definition's. */
typedef struct sublayer_report {
    int layer;                   /* of the MTP layer the number of layers; -1: none */
    const char *kind;            /* "attention", "head", "logits" */
    difference off[WALK_CASES];
    int count;                   /* of stage values: of the layers that are looked into */
    stage_value value[VALUES_MOST];
} sublayer_report;

typedef struct walk_case {
    mote_session *s;             /* of a model with the same shapes; what its states hold is lost */
    int rows, kept;              /* it computes blocks of so many rows, of which so many are kept before the next one */
    const float *whole;          /* [T][vocab] logits of a session that computed all of the model; NULL: none */
} walk_case;

enum { LOOK_NOWHERE = -1, LOOK_EVERYWHERE = -2 };

typedef struct walk {
    const mote_model *m;         /* the model whose definition it is, on the CPU */
    walk_case cases[WALK_CASES];
    int count;                   /* of cases */
    const int32_t *ids;
    int T, look;                 /* tokens; the layer whose stages' values are told */
    void (*tell)(void *user, const sublayer_report *r);
    void *user;
    mote_error *err;
    definition *d;               /* of m, while it walks */
    float *got;                  /* [T][width or vocab]: what a case computed */
} walk;

/* What a step on a GPU may be off the definition, in a stage's values or in what a sublayer adds.
   - Rows enter products as two BF16 terms, 16 bits: what comes out is off by some 4e-6 of its largest number.
   - FFNs are three products in a row, and router logits become weights by exp.
   - DeltaNet divides o by its root mean square, which can be nearly nothing. Mamba-2 does so, too, of several heads together.
   - Keys and values are BF16 or FP8: each is off by up to 2^-9 or 2^-4, and so is o, which of the first tokens is hardly more than one
     value; keys add to that. The CPU's code with such keys and values is off by 4e-3 and 8e-2. */
static double walk_allowed(const char *part, int kv) {
    const int meets_cache = !strcmp(part, "attention") || !strcmp(part, "rope_attend") || !strcmp(part, "mla") || !strcmp(part, "latent_out");
    if (meets_cache) return kv == MOTE_KV_FP8 ? 0.15 : 1e-2;
    if (!strcmp(part, "deltanet") || !strcmp(part, "conv_delta")) return 5e-4;
    return !strcmp(part, "moe") || !strcmp(part, "mlp") || !strcmp(part, "mamba") ? 1e-4 : 2e-5;
}

/* Of rows [rows][n], the first of which is row `first` of want and before. */
static void difference_add(difference *d, const double *want, const double *before, const float *got, int first, int rows, int n) {
    for (int t = 0; t < rows; t++) {
        const size_t row = (size_t)(first + t) * (size_t)n;
        double top = 0;
        for (int i = 0; i < n; i++) top = fmax(top, fabs(want[row + (size_t)i] - (before ? before[row + (size_t)i] : 0)));
        for (int i = 0; i < n; i++) {
            double error = fabs((double)got[(size_t)t * (size_t)n + (size_t)i] - want[row + (size_t)i]);
            double by = !isfinite(error) ? INFINITY : top > 0 ? error / top : error > 0 ? INFINITY : 0;
            if (by > d->by) d->by = by, d->row = first + t, d->at = i;
        }
    }
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

static int add_value(stage_value *v, int count, const char *stage, const char *name, int n) {
    v[count].stage = stage, v[count].name = name, v[count].n = n;
    return count + (n > 0);
}

/* What both a definition and its stages have, of one half of a layer. */
static int values_of(const layer *l, stage_value *v) {
    int n = 0;
    if (l->mixer.kind == LAYER_NONE && l->ffn.kind == LAYER_MLP) return add_value(v, n, "norm_gate_up", "h", l->ffn.w.mlp.shape.size);
    if (l->mixer.kind == LAYER_NONE) {
        const moe_shape *s = &l->ffn.w.moe.shape;
        n = add_value(v, n, "norm_router", "router", s->experts);
        return add_value(v, n, "norm_router", "shared_expert_gate", s->shared_size > 0 && !s->shared_ungated);
    }
    if (l->mixer.kind == LAYER_DELTANET) {
        const deltanet_shape *s = &l->mixer.w.deltanet.shape;
        n = add_value(v, n, "norm_in_proj", "in_proj_qkv", deltanet_channels(s));
        n = add_value(v, n, "norm_in_proj", "in_proj_z", s->value_heads * s->value_dim);
        n = add_value(v, n, "norm_in_proj", "in_proj_b", s->value_heads);
        n = add_value(v, n, "norm_in_proj", "in_proj_a", s->value_heads);
        return add_value(v, n, "conv_delta", "o", s->value_heads * s->value_dim);
    }
    if (l->mixer.kind == LAYER_NGRAMS) return 0;
    if (l->mixer.kind == LAYER_MAMBA) {
        const mamba_shape *s = &l->mixer.w.mamba.shape;
        n = add_value(v, n, "norm_mamba_in", "in_proj_cbx", mamba_channels(s));
        return add_value(v, n, "norm_mamba_in", "in_proj_z", mamba_inner(s));
    }
    if (l->mixer.kind == LAYER_MLA) {
        const mla_shape *s = &l->mixer.w.mla.shape;
        n = add_value(v, n, "norm_latents", "q_proj", s->heads * mla_key_dim(s));
        return add_value(v, n, "latent_out", "o", s->heads * s->value_dim);
    }
    const attention_shape *s = &l->mixer.w.attention.shape;
    n = add_value(v, n, "norm_qkv", "q_proj", s->heads * attention_q_size(s));
    n = add_value(v, n, "norm_qkv", "k_proj", s->kv_heads * s->head_dim);
    n = add_value(v, n, "norm_qkv", "v_proj", s->v_of_k ? 0 : s->kv_heads * s->head_dim);
    n = add_value(v, n, "norm_qkv", "g_proj", s->heads * s->gate_size);
    return add_value(v, n, "rope_attend", "o", s->heads * s->head_dim);
}

/* Where the CPU has them, after the block of rows x. Norms of q and k are taken in place, so their products are computed again. */
static void cpu_values(const mote_session *s, const layer *l, const float *x, int T, const float **at) {
    scratch *w = &s->slot.runner->s;
    const layer_jobs *j = &w->jobs;
    if (l->mixer.kind == LAYER_NONE && l->ffn.kind == LAYER_MLP) {
        at[0] = j->mlp.h;
    } else if (l->mixer.kind == LAYER_NONE) {
        at[0] = j->moe.router, at[1] = j->moe.shared_gate;
    } else if (l->mixer.kind == LAYER_DELTANET) {
        at[0] = j->deltanet.raw, at[1] = j->deltanet.z, at[2] = j->deltanet.b, at[3] = j->deltanet.a, at[4] = j->deltanet.o;
    } else if (l->mixer.kind == LAYER_MAMBA) {
        at[0] = j->mamba.memory.raw, at[1] = j->mamba.memory.z;
    } else if (l->mixer.kind == LAYER_MLA) {
        at[0] = j->mla.q, at[1] = j->mla.o;
    } else {
        const attention_job *a = &j->attention;
        const stream_job mixed = {.w = &l->mixer.mixer, .s = &w->mix, .T = T, .streams = s->m->c.streams, .hidden = s->m->c.hidden,
                                  .eps = s->m->c.eps, .x = (float *)(uintptr_t)x, .u = w->u};
        if (s->m->c.streams) streams_read(s->slot.runner->threads, &mixed);
        else rms_norm(w->u, x, l->mixer.norm, T, s->m->c.hidden, s->m->c.eps);
        const attention_shape *of = &a->w->shape;
        int n = 2;
        stage_qkv(s->slot.runner->threads, a->w, w->u, T, a->qg, a->k_new, a->v_new, a->g_new, a->index_of.qk, a->limbs);
        at[0] = a->qg, at[1] = a->k_new;
        if (!of->v_of_k) at[n++] = a->v_new;
        if (of->gate_size) at[n++] = a->g_new;
        at[n] = a->o;
    }
}

/* ---- Sessions ---------------------------------------------------------------------------------------------------- */

/* A part of the model: one half of a layer, its mixer or its FFN, or the head. */
typedef struct walk_part {
    int i;                       /* the layer, the MTP layer after the others; -1: the head */
    layer l;                     /* with LAYER_NONE for its other half, when it is of the session's model */
    int T, n;
    float *x;                    /* [T][width] rows before it */
    double *before;              /* [T][n] what it adds to; NULL: nothing */
    const double *want;          /* [T][n] */
} walk_part;

/* A block's part of the rows. */
typedef struct walk_rows { const float *x; const int32_t *ids; int T, position, replay; } walk_rows;

/* Their table: text. */
static const token_row *walk_table(mote_session *s, const walk_rows *r) {
    text_rows(s->rows - 1, NULL, r->T + 1, r->position - 1, 0);
    for (int t = 0; t < r->T; t++) s->rows[t].id = r->ids[t];
    return s->rows;
}

#ifdef __CUDACC__
static void gpu_values(const mote_session *s, const layer *l, const float **at) {
    const layer_gpus *g = &s->slot.runner->gpu->layers;
    if (l->mixer.kind == LAYER_NONE && l->ffn.kind == LAYER_MLP) {
        at[0] = g->mlp.h;
    } else if (l->mixer.kind == LAYER_NONE) {
        at[0] = g->moe.router, at[1] = g->moe.shared_gate;
    } else if (l->mixer.kind == LAYER_DELTANET) {
        at[0] = g->deltanet.raw, at[1] = g->deltanet.z, at[2] = g->deltanet.b, at[3] = g->deltanet.a, at[4] = g->deltanet.o;
    } else if (l->mixer.kind == LAYER_MAMBA) {
        at[0] = g->mamba.delta.raw, at[1] = g->mamba.delta.z;
    } else if (l->mixer.kind == LAYER_MLA) {
        at[0] = g->mla.q, at[1] = g->mla.o;
    } else {
        const attention_shape *of = &l->mixer.w.attention.shape;
        int n = 2;
        at[0] = g->attention.qg, at[1] = g->attention.k_new;
        if (!of->v_of_k) at[n++] = g->attention.v_new;
        if (of->gate_size) at[n++] = g->attention.g_new;
        at[n] = g->attention.o;
    }
}

/* A GPU's o of DeltaNet is not divided by its root mean square yet: the next kernel does that. */
static int gpu_normalise(mote_session *s, const deltanet_shape *d, int T, float *o, mote_error *err) {
    const int parts = gpu_delta_parts(d), stride = gpu_squares_stride(parts), heads = T * d->value_heads;
    float *squares = (float *)malloc((size_t)(heads * stride) * sizeof *squares);
    int code = !squares ? fail_memory(err) : slot_copy(&s->slot, squares, s->slot.runner->gpu->layers.deltanet.squares, (size_t)(heads * stride) * sizeof *squares, err);
    for (int h = 0; h < heads && !code; h++) {
        double sum = 0;
        for (int p = 0; p < parts; p++) sum += (double)squares[h * stride + p];
        for (int i = 0; i < d->value_dim; i++) o[h * d->value_dim + i] /= (float)sqrt(sum / d->value_dim + (double)d->eps);
    }
    free(squares);
    return code;
}

/* The kernels of a step, of one part of it: *at is where the rows are on the GPU. */
static int gpu_part(mote_session *s, int i, const layer *l, const walk_rows *r, const float **at, mote_error *err) {
    const mote_model *m = s->m;
    struct gpu_runner *g = s->slot.runner->gpu;
    float *x = i == m->c.layers ? g->mtp_x : g->x;
    const block b = {.rows = walk_table(s, r), .T = r->T, .replay = r->replay};
    int code = slot_copy(&s->slot, x, r->x, (size_t)(r->T * model_width(m)) * sizeof(float), err);
    if (!code) code = gpu_enter(&s->slot, err);
    if (!code && l->mixer.kind == LAYER_NGRAMS) code = gpu_look_up_block(&s->slot, &b, NULL, err);
    if (code) return code;
    gpu_set_step(&s->slot, &b, b.replay, 0);
    if (i == m->c.layers) gpu_set_mtp(m, &g->q, 1);
    else g->q.layer = i;
    if (i >= 0) {
        gpu_rows rows = {.q = &g->q, .T = r->T, .layer = i, .step = g->step, .slot = gpu_view_of(s->slot.runner), .x = x,
                         .eps = m->c.eps, .hidden = m->c.hidden};
        layer_record(&rows, l, &g->layers, &g->capture_base.state[i], &g->growth_base.state[i]);
        streams_record_write(&g->q, x, r->T, m->c.hidden);
    } else {
        gpu_record_head(s->slot.runner, &g->q, 0, &m->lm_head, m->c.vocab, x, r->T, g->logits);
    }
    gpu_set_mtp(m, &g->q, 0);
    gpu_submit(&g->q);
    *at = i >= 0 ? x : g->logits;
    return gpu_finish(&s->slot, err);
}
#else
static void gpu_values(const mote_session *s, const layer *l, const float **at) {
    (void)s, (void)l, (void)at;
}

static int gpu_normalise(mote_session *s, const deltanet_shape *d, int T, float *o, mote_error *err) {
    (void)s, (void)d, (void)T, (void)o;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}

static int gpu_part(mote_session *s, int i, const layer *l, const walk_rows *r, const float **at, mote_error *err) {
    (void)s, (void)i, (void)l, (void)r, (void)at;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}
#endif

/* The same on the CPU. got: for the head's logits. */
static int cpu_part(mote_session *s, int i, const layer *l, const walk_rows *r, float *got, const float **at, mote_error *err) {
    const mote_model *m = s->m;
    scratch *w = &s->slot.runner->s;
    const block b = {.rows = walk_table(s, r), .T = r->T, .replay = r->replay};
    pass_request q, *one = &q;
    request_is(&q, REQUEST_FORWARD, &s->slot, &b);
    const int code = l->mixer.kind == LAYER_NGRAMS ? cpu_look_up(s->slot.runner, &one, 1, err) : MOTE_OK;
    memcpy(w->x, r->x, (size_t)(r->T * model_width(m)) * sizeof(float));
    *at = i >= 0 ? w->x : got;
    if (i >= 0) {
        const token_sequence rows = sequence_of(&s->slot, 0, r->T, r->replay);
        table_put(s->slot.runner, 0, 0, b.rows, r->T);
        run_layer(s->slot.runner, l, i, &rows, 1, 0);
        return code;
    }
    cpu_end(s->slot.runner, m->norm, &m->mixer, r->T, w->hidden, w->h);
    stage_head(s->slot.runner->threads, &m->lm_head, m->c.logit_cap, w->h, r->T, got, w->limbs);
    return code;
}

/* Rows r of part p on the case's device: to w->got, and the values of stages to the report. */
static int walk_block(const walk *w, int which, const walk_part *p, const walk_rows *r, sublayer_report *to) {
    mote_session *s = w->cases[which].s;
    const float *y = NULL, *at[VALUES_MOST];
    const int on_gpu = s->m->device.gpu >= 0;
    int code = MOTE_OK;
    if (on_gpu) {
        code = gpu_part(s, p->i, &p->l, r, &y, w->err);
        if (to->count) gpu_values(s, &p->l, at);
    } else {
        code = cpu_part(s, p->i, &p->l, r, w->got, &y, w->err);
        if (to->count) cpu_values(s, &p->l, r->x, r->T, at);
    }
    if (!code && y != w->got) code = slot_copy(&s->slot, w->got, y, (size_t)(r->T * p->n) * sizeof *y, w->err);
    if (!code) difference_add(&to->off[which], p->want, p->before, w->got, r->position, r->T, p->n);
    for (int k = 0; k < to->count && !code; k++) {
        stage_value *v = &to->value[k];
        float *got = v->got[which] + (size_t)r->position * (size_t)v->n;
        code = slot_copy(&s->slot, got, at[k], (size_t)(r->T * v->n) * sizeof *got, w->err);
        if (on_gpu && !code && !strcmp(v->stage, "conv_delta")) code = gpu_normalise(s, &p->l.mixer.w.deltanet.shape, r->T, got, w->err);
        if (!code) difference_add(&v->off[which], v->want, NULL, got, r->position, r->T, v->n);
    }
    return code;
}

/* All rows of a part through a case's blocks. */
static int walk_blocks(const walk *w, int which, walk_part *p, sublayer_report *to) {
    const walk_case *c = &w->cases[which];
    const mote_model *m = c->s->m;
    const int mixer = p->l.mixer.kind != LAYER_NONE;
    int code = slot_clear(&c->s->slot, w->err);
    if (p->i >= 0) {
        p->l = p->i < m->c.layers ? m->layers[p->i] : m->mtp.layer;
        (mixer ? &p->l.ffn : &p->l.mixer)->kind = LAYER_NONE;
    }
    for (int first = 0; first < p->T && !code; first += c->kept) {
        const walk_rows r = {p->x + (size_t)first * (size_t)model_width(m), w->ids + first, p->T - first < c->rows ? p->T - first : c->rows, first,
                             first && c->rows <= MOTE_ROWS_MAX ? c->kept : 0};
        code = walk_block(w, which, p, &r, to);
    }
    return code;
}

/* ---- The walk ---------------------------------------------------------------------------------------------------- */

/* Where defined_tell writes: the values of a sublayer, at its token. */
typedef struct watched { sublayer_report *r; int t; } watched;

static void watch_value(void *user, const char *name, const double *values, int n) {
    const watched *to = (const watched *)user;
    for (int k = 0; k < to->r->count; k++)
        if (!strcmp(to->r->value[k].name, name) && to->r->value[k].n == n)
            memcpy(to->r->value[k].want + (size_t)to->t * (size_t)n, values, (size_t)n * sizeof *values);
}

/* Deals out the memory of a sublayer's rows and values. */
static void part_memory(const walk *w, walk_part *p, sublayer_report *r, defined_memory *m) {
    p->before = defined_array(m, p->T, p->n);
    p->x = (float *)defined_array(m, p->T, p->n);     /* of a sublayer: n is the width */
    for (int k = 0; k < r->count; k++) {
        r->value[k].want = defined_array(m, p->T, r->value[k].n);
        for (int c = 0; c < w->count; c++) r->value[k].got[c] = (float *)defined_array(m, p->T, r->value[k].n);
    }
}

/* Returns the memory, which is the caller's to free; NULL: there is not enough. */
static double *part_begin(const walk *w, walk_part *p, sublayer_report *r) {
    defined_memory memory = {NULL, 0};
    part_memory(w, p, r, &memory);                                /* counts */
    memory.block = (double *)calloc(memory.used, sizeof(double));
    memory.used = 0;
    if (memory.block) part_memory(w, p, r, &memory);
    return memory.block;
}

/* Both start from the same floats. */
static void round_rows(double *x, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = (double)(to[i] = (float)x[i]);
}

/* x[T][width] through a half of layer i. */
static int walk_sublayer(const walk *w, int i, int half, double *x, int T) {
    const layer *l = defined_layer_of(w->m, i);
    const int width = model_width(w->m);
    const size_t n = (size_t)T * (size_t)width;
    walk_part p = {.i = i, .l = *l, .T = T, .n = width, .want = x};
    sublayer_report r;
    watched to = {&r, 0};
    int code = MOTE_OK;
    memset(&r, 0, sizeof r);
    (half ? &p.l.mixer : &p.l.ffn)->kind = LAYER_NONE;
    r.layer = i;
    r.kind = layer_kind_names[half ? l->ffn.kind : l->mixer.kind];
    r.count = i == w->look || w->look == LOOK_EVERYWHERE ? values_of(&p.l, r.value) : 0;
    double *memory = part_begin(w, &p, &r);
    if (!memory) return fail_memory(w->err);
    round_rows(x, p.x, n);
    memcpy(p.before, x, n * sizeof *x);
    w->d->told.watch = watch_value;
    w->d->told.user = &to;
    for (to.t = 0; to.t < T; to.t++) {
        text_rows(&w->d->row, &w->ids[to.t], 1, to.t, 0);
        define_sublayer(w->d, half ? &l->ffn : &l->mixer, &w->d->layers[i], x + (size_t)to.t * (size_t)width);
    }
    w->d->told.watch = NULL;
    for (int c = 0; c < w->count && !code; c++) code = walk_blocks(w, c, &p, &r);
    if (!code) w->tell(w->user, &r);
    free(memory);
    return code;
}

static int walk_layer(const walk *w, int i, double *x, int T) {
    const layer *l = defined_layer_of(w->m, i);
    const int code = l->mixer.kind == LAYER_NONE ? MOTE_OK : walk_sublayer(w, i, 0, x, T);
    return code || l->ffn.kind == LAYER_NONE ? code : walk_sublayer(w, i, 1, x, T);
}

/* Rows of the model's end: x becomes what the MTP layer takes in; logits: memory for [T][vocab]. */
static int walk_head(const walk *w, double *x, float *rows, double *logits) {
    const mote_model *m = w->m;
    const int width = model_width(m), vocab = m->c.vocab;
    walk_part p = {.i = -1, .l = m->layers[0], .T = w->T, .n = vocab, .x = rows, .want = logits};
    sublayer_report head, all;
    int code = MOTE_OK, whole = 0;
    memset(&head, 0, sizeof head);
    head.layer = -1;
    all = head;
    head.kind = "head";
    all.kind = "logits";
    round_rows(x, rows, (size_t)w->T * (size_t)width);
    for (int t = 0; t < w->T; t++) define_head(w->d, m->norm, &m->mixer, x + (size_t)t * (size_t)width, logits + (size_t)t * (size_t)vocab);
    for (int c = 0; c < w->count && !code; c++) {
        code = walk_blocks(w, c, &p, &head);
        if (w->cases[c].whole) difference_add(&all.off[c], logits, NULL, w->cases[c].whole, 0, w->T, vocab), whole = 1;
    }
    if (!code) w->tell(w->user, &head);
    if (!code && whole) w->tell(w->user, &all);
    return code;
}

/* x[T][width], rows as large, logits[T][vocab]: memory. */
static int walk_parts(const walk *w, double *x, float *rows, double *logits) {
    const mote_model *m = w->m;
    const size_t width = (size_t)model_width(m);
    token_row r;
    int code = MOTE_OK;
    for (int t = 0; t < w->T; t++) {
        text_rows(&r, &w->ids[t], 1, t, 0);
        define_embedding_streams(m, &r, x + (size_t)t * width);
    }
    for (int i = 0; i < m->c.layers && !code; i++) code = walk_layer(w, i, x, w->T);
    if (!code) code = walk_head(w, x, rows, logits);
    if (!m->has_mtp || w->T < 2 || code) return code;
    for (int t = 0; t + 1 < w->T; t++) {
        text_rows(&r, &w->ids[t + 1], 1, t + 1, 0);
        define_mtp_input(w->d, &r, x + (size_t)t * width, x + (size_t)t * width);
    }
    return walk_layer(w, m->c.layers, x, w->T - 1);
}

/* Tells of every sublayer in order, the head, the logits of whole models and the MTP layer's sublayers. Sessions are empty after it. */
static int walk_model(walk *w) {
    const size_t T = (size_t)w->T, width = (size_t)model_width(w->m), vocab = (size_t)w->m->c.vocab;
    definition d;
    if (!definition_open(&d, w->m, w->T)) return fail_memory(w->err);
    double *x = (double *)malloc(T * width * sizeof *x), *logits = (double *)malloc(T * vocab * sizeof *logits);
    float *rows = (float *)malloc(T * width * sizeof *rows);
    w->d = &d;
    w->got = (float *)malloc(T * (width + vocab) * sizeof *w->got);
    int code = x && logits && rows && w->got ? walk_parts(w, x, rows, logits) : fail_memory(w->err);
    free(x);
    free(logits);
    free(rows);
    free(w->got);
    definition_close(&d);
    for (int c = 0; c < w->count && !code; c++) code = timeline_reset(w->cases[c].s, w->err);
    return code;
}
