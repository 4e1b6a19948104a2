/* diagnose/work.c: what a stage of a sublayer has to do, for measurements: the bytes that it reads in a decode step, and the floating-point
   operations for a prompt's rows. A kind `name` of GPU_LAYER_KINDS has name_bytes and name_operations here. Knows weights and stages. */

/* The memory traffic of a decode step depends on: */
typedef struct traffic {
    int experts;                 /* distinct experts of the step */
    int length;                  /* tokens whose keys and values are read */
    dtype kv;
} traffic;

/* Floating-point operations of a matrix's product with one row. */
static double matrix_operations(const matrix *w) {
    return 2.0 * w->rows * w->cols;
}

/* S is read and written. */
static uint64_t deltanet_bytes(const deltanet_weights *w, enum stage stage, const traffic *of) {
    const deltanet_shape *s = &w->shape;
    (void)of;
    if (stage == STAGE_IN_PROJ)
        return matrix_bytes(&w->in_proj_qkv) + matrix_bytes(&w->in_proj_z) + matrix_bytes(&w->in_proj_b) +
               matrix_bytes(&w->in_proj_a);
    if (stage == STAGE_DELTA) return 2 * (uint64_t)(s->value_heads * s->value_dim * s->key_dim) * sizeof(float);
    return stage == STAGE_OUT_PROJ ? matrix_bytes(&w->out_proj) : 0;
}

/* Bytes of the weights that make a row of a mixer's cache. */
static uint64_t cache_row_bytes(const sublayer *l) {
    const attention_weights *a = &l->w.attention;
    if (l->kind == LAYER_MLA) return matrix_bytes(&l->w.mla.kv_a_proj);
    if (l->kind != LAYER_ATTENTION) return 0;
    return matrix_bytes(&a->k_proj) + (a->shape.v_of_k ? 0 : matrix_bytes(&a->v_proj));
}

/* Floating-point operations of a stage for `rows` rows after `position` tokens. Of the delta rule: as it is defined. */
static double deltanet_operations(const deltanet_weights *w, enum stage stage, double rows, double position) {
    const deltanet_shape *s = &w->shape;
    (void)position;
    if (stage == STAGE_IN_PROJ)
        return rows * (matrix_operations(&w->in_proj_qkv) + matrix_operations(&w->in_proj_z) +
                       matrix_operations(&w->in_proj_b) + matrix_operations(&w->in_proj_a));
    if (stage == STAGE_DELTA) return 6.0 * rows * s->value_heads * s->value_dim * s->key_dim;
    return stage == STAGE_OUT_PROJ ? rows * matrix_operations(&w->out_proj) : 0;
}

static uint64_t attention_bytes(const attention_weights *w, enum stage stage, const traffic *of) {
    const attention_shape *s = &w->shape;
    if (stage == STAGE_QKV) return matrix_bytes(&w->q_proj) + matrix_bytes(&w->k_proj) + matrix_bytes(&w->v_proj) + matrix_bytes(&w->g_proj) +
                                     matrix_bytes(&w->index_qk);
    const seen_rows seen = attention_seen(s, of->length - 1);
    if (stage == STAGE_ATTEND && index_leaves_out(s, of->length - 1))              /* the keys of all groups, and what is chosen */
        return (uint64_t)(of->length / s->index_group) * (uint64_t)s->index_dim * kv_size(of->kv) +
               2 * (uint64_t)index_entries(s, of->length - 1) * attention_row_bytes(s, of->kv);
    if (stage == STAGE_ATTEND) return 2 * (uint64_t)(seen.end - seen.first) * attention_row_bytes(s, of->kv);
    return stage == STAGE_O_PROJ ? matrix_bytes(&w->o_proj) : 0;
}

/* Of the row of an index: q . k and the weighted sum of v of each position that it attends to; where an index leaves some out, the scores of all
   whole groups. */
static double attend_operations(const attention_shape *s, int index) {
    const seen_rows seen = attention_seen(s, index);
    if (!index_leaves_out(s, index)) return 4.0 * s->heads * s->head_dim * (seen.end - seen.first);
    return 4.0 * s->heads * s->head_dim * index_entries(s, index) + 2.0 * s->index_heads * s->index_dim * ((index + 1) / s->index_group);
}

/* As deltanet_operations. */
static double attention_operations(const attention_weights *w, enum stage stage, double rows, double position) {
    double attend = 0;
    if (stage == STAGE_QKV)
        return rows * (matrix_operations(&w->q_proj) + matrix_operations(&w->k_proj) + matrix_operations(&w->v_proj) + matrix_operations(&w->g_proj) +
                       matrix_operations(&w->index_qk));
    for (int i = 0; i < (int)rows && stage == STAGE_ATTEND; i++) attend += attend_operations(&w->shape, (int)position + i);
    if (stage == STAGE_ATTEND) return attend;
    return stage == STAGE_O_PROJ ? rows * matrix_operations(&w->o_proj) : 0;
}

/* Of k_b_proj and v_b_proj every number is needed once, in the absorbed form. */
static uint64_t mla_bytes(const mla_weights *w, enum stage stage, const traffic *of) {
    const mla_shape *s = &w->shape;
    if (stage == STAGE_LATENTS)
        return (s->q_rank ? matrix_bytes(&w->q_a_proj) : 0) + matrix_bytes(&w->q_b_proj) + matrix_bytes(&w->kv_a_proj) + matrix_bytes(&w->k_b_proj);
    if (stage == STAGE_LATENT_ATTEND) return (uint64_t)of->length * mla_row_bytes(s, of->kv);
    return stage == STAGE_LATENT_OUT ? matrix_bytes(&w->v_b_proj) + matrix_bytes(&w->o_proj) : 0;
}

/* As attention_operations. Of a prompt keys and values of all positions are made. */
static double mla_operations(const mla_weights *w, enum stage stage, double rows, double position) {
    const mla_shape *s = &w->shape;
    if (stage == STAGE_LATENTS)
        return rows * ((s->q_rank ? matrix_operations(&w->q_a_proj) : 0) + matrix_operations(&w->q_b_proj) + matrix_operations(&w->kv_a_proj));
    if (stage == STAGE_LATENT_ATTEND)
        return s->heads * (double)(mla_key_dim(s) + s->value_dim) * rows * (2 * position + rows + 1) +
               (position + rows) * (matrix_operations(&w->k_b_proj) + matrix_operations(&w->v_b_proj));
    return stage == STAGE_LATENT_OUT ? rows * matrix_operations(&w->o_proj) : 0;
}

static uint64_t mamba_bytes(const mamba_weights *w, enum stage stage, const traffic *of) {
    const mamba_shape *s = &w->shape;
    (void)of;
    if (stage == STAGE_MAMBA_IN) return matrix_bytes(&w->in_proj_cbx) + matrix_bytes(&w->in_proj_z) + matrix_bytes(&w->in_proj_dt);
    if (stage == STAGE_SCAN) return 2 * (uint64_t)(mamba_inner(s) * s->state_dim) * sizeof(float);
    return stage == STAGE_MAMBA_OUT ? matrix_bytes(&w->out_proj) : 0;
}

/* As deltanet_operations. */
static double mamba_operations(const mamba_weights *w, enum stage stage, double rows, double position) {
    const mamba_shape *s = &w->shape;
    (void)position;
    if (stage == STAGE_MAMBA_IN) return rows * (matrix_operations(&w->in_proj_cbx) + matrix_operations(&w->in_proj_z) + matrix_operations(&w->in_proj_dt));
    if (stage == STAGE_SCAN) return 5.0 * rows * mamba_inner(s) * s->state_dim;
    return stage == STAGE_MAMBA_OUT ? rows * matrix_operations(&w->out_proj) : 0;
}

/* The rows of the table are the host's matter. */
static uint64_t ngrams_bytes(const ngrams_weights *w, enum stage stage, const traffic *of) {
    const ngrams_shape *s = &w->shape;
    (void)of;
    if (stage == STAGE_NGRAM_PROJ) return matrix_bytes(&w->key_proj) + matrix_bytes(&w->value_proj);
    return stage == STAGE_NGRAM_MIX ? (uint64_t)(s->streams * s->hidden) * (uint64_t)(s->taps + s->grams * (s->taps - 1)) * sizeof(float) : 0;
}

static double ngrams_operations(const ngrams_weights *w, enum stage stage, double rows, double position) {
    const ngrams_shape *s = &w->shape;
    (void)position;
    if (stage == STAGE_NGRAM_PROJ) return rows * (matrix_operations(&w->key_proj) + matrix_operations(&w->value_proj));
    return stage == STAGE_NGRAM_MIX ? 2.0 * rows * s->streams * s->hidden * s->taps : 0;
}

static uint64_t moe_bytes(const moe_weights *w, enum stage stage, const traffic *of) {
    const moe_shape *s = &w->shape;
    const matrix *gate = w->gate_proj, *up = w->up_proj, *down = w->down_proj;
    const uint64_t gates = s->squared_relu ? 0 : 1;            /* gate_proj is up_proj */
    uint64_t experts = (uint64_t)of->experts;
    int shared = s->experts;
    if (stage == STAGE_ROUTER && s->shared_size)
        return matrix_bytes(&w->router) + (s->shared_ungated ? 0 : matrix_bytes(&w->shared_expert_gate)) + gates * matrix_bytes(&gate[shared]) +
               matrix_bytes(&up[shared]);
    if (stage == STAGE_ROUTER) return matrix_bytes(&w->router);
    if (stage == STAGE_UP) return experts * (gates * matrix_bytes(&gate[0]) + matrix_bytes(&up[0]));
    return stage == STAGE_DOWN ? experts * matrix_bytes(&down[0]) + (s->shared_size ? matrix_bytes(&down[shared]) : 0) : 0;
}

/* As deltanet_operations. */
static double moe_operations(const moe_weights *w, enum stage stage, double rows, double position) {
    const moe_shape *s = &w->shape;
    const matrix *gate = w->gate_proj, *down = w->down_proj;
    const double pair = s->squared_relu ? 1 : 2, shared_up = s->shared_size ? pair * matrix_operations(&gate[s->experts]) : 0;
    const double shared_down = s->shared_size ? matrix_operations(&down[s->experts]) : 0;
    (void)position;
    if (stage == STAGE_ROUTER) return rows * (matrix_operations(&w->router) + shared_up);
    if (stage == STAGE_UP) return rows * s->top_k * pair * matrix_operations(&gate[0]);
    return stage == STAGE_DOWN ? rows * (s->top_k * matrix_operations(&down[0]) + shared_down) : 0;
}

static uint64_t mlp_bytes(const mlp_weights *w, enum stage stage, const traffic *of) {
    (void)of;
    if (stage == STAGE_GATE_UP) return (w->shape.squared_relu ? 0 : matrix_bytes(&w->gate_proj)) + matrix_bytes(&w->up_proj);
    return stage == STAGE_MLP_DOWN ? matrix_bytes(&w->down_proj) : 0;
}

/* As deltanet_operations. */
static double mlp_operations(const mlp_weights *w, enum stage stage, double rows, double position) {
    (void)position;
    if (stage == STAGE_GATE_UP) return rows * (matrix_operations(&w->gate_proj) + matrix_operations(&w->up_proj));
    return stage == STAGE_MLP_DOWN ? rows * matrix_operations(&w->down_proj) : 0;
}

/* Of residual streams: the matrices that mix them; w is all 0 where there are none. */
static uint64_t streams_bytes(const stream_mixer *w) {
    return w->down.rows ? matrix_bytes(&w->down) + matrix_bytes(&w->up) + (w->inject.rows ? matrix_bytes(&w->inject) : 0) : 0;
}

static uint64_t sublayer_bytes(const sublayer *l, enum stage stage, const traffic *of) {
    if (stage == STAGE_STREAMS) return streams_bytes(&l->mixer);
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_bytes(&l->w.name, stage, of);
        GPU_LAYER_KINDS(X)
#undef X
        default: return 0;
    }
}

/* Floating-point operations of a stage for `rows` token rows after `position` others. */
static double sublayer_operations(const sublayer *l, enum stage stage, double rows, double position) {
    const stream_mixer *mixer = &l->mixer;
    if (stage == STAGE_STREAMS) return rows * (matrix_operations(&mixer->down) + matrix_operations(&mixer->up) + matrix_operations(&mixer->inject));
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_operations(&l->w.name, stage, rows, position);
        GPU_LAYER_KINDS(X)
#undef X
        default: return 0;
    }
}
