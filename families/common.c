/* families/common.c: what several families have in common: keys of config.json, and names of tensors. Knows the shapes of layers, and
   nothing of any one family. */

/* ---- config.json ---- */

/* An object that says how positions turn: rope_parameters, or rope_scaling, as it was called before. The only way that mote has
   is no scaling; with text alone mrope is that, too. 0: there is none. */
static uint32_t common_rope_object(config_reader *r, const char *key, const char *within) {
    uint32_t rope = json_get(r->j, r->text, key);
    if (!rope || r->j->nodes[rope].type != JSON_OBJECT) {
        config_only(r, r->text, key, "null");
        return 0;
    }
    r->within = within;
    config_only(r, rope, "rope_type", "default|mrope");
    config_only(r, rope, "type", "default|mrope");
    r->within = NULL;
    return rope;
}

/* factor: the share of head_dim that is rotated, where config.json does not say; theta: the base, likewise. */
static void common_rope(config_reader *r, attention_shape *a, float factor, float theta) {
    uint32_t parameters = common_rope_object(r, "rope_parameters", "rope_parameters.");
    uint32_t scaling = common_rope_object(r, "rope_scaling", "rope_scaling."), rope = parameters ? parameters : scaling;
    if (!rope) rope = r->text;
    config_only(r, r->text, "rope_type", "default");
    config_float(r, r->text, "partial_rotary_factor", 0, 1, factor, &factor);
    config_float(r, rope, "partial_rotary_factor", 0, 1, factor, &factor);
    config_float(r, r->text, "rope_theta", 1, 1e12, theta, &a->theta);
    config_float(r, rope, "rope_theta", 1, 1e12, a->theta, &a->theta);
    if (r->code) return;
    a->rotary_dim = (int)((float)a->head_dim * factor);
    if (a->rotary_dim % 2)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: head_dim * partial_rotary_factor = %d is odd",
                       r->dir, a->rotary_dim);
}

/* Heads of attention. */
static void common_attention(config_reader *r, const config *c, attention_shape *a) {
    config_int(r, "num_attention_heads", 1, 1 << 12, &a->heads);
    config_int(r, "num_key_value_heads", 1, 1 << 12, &a->kv_heads);
    config_int(r, "head_dim", 1, 1 << 14, &a->head_dim);
    a->hidden = c->hidden;
    a->eps = c->eps;
    if (r->code) return;
    if (a->heads % a->kv_heads)
        r->code = fail(r->err, MOTE_EFORMAT,
                       "%s/config.json: num_attention_heads = %d is no multiple of num_key_value_heads = %d", r->dir,
                       a->heads, a->kv_heads);
    else if ((int64_t)a->heads * a->head_dim > 1 << 22)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: heads times head size exceeds %d", r->dir, 1 << 22);
}

/* Experts; without a shared one unless the caller reads its size. */
static void common_moe(config_reader *r, const config *c, moe_shape *e) {
    config_int(r, "num_experts", 1, 1 << 14, &e->experts);
    config_int(r, "num_experts_per_tok", 1, 1 << 14, &e->top_k);
    config_int(r, "moe_intermediate_size", 1, 1 << 20, &e->expert_size);
    e->hidden = c->hidden;
    e->eps = c->eps;
}

static void common_moe_check(config_reader *r, const moe_shape *e) {
    if (r->code) return;
    if (e->top_k > e->experts)
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: num_experts_per_tok = %d of only num_experts = %d",
                       r->dir, e->top_k, e->experts);
    else if (((int64_t)e->experts + 1) * e->expert_size > 1 << 30 || ((int64_t)e->experts + 1) * e->shared_size > 1 << 30)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: num_experts times an expert's size exceeds %d", r->dir,
                       1 << 30);                /* loops over all rows of all experts count in int */
}

/* What mote does not implement must be off, or as it is in all released models. */
static void common_moe_flags(config_reader *r) {
    uint32_t dense = json_get(r->j, r->text, "mlp_only_layers");
    config_only(r, r->text, "hidden_act", "silu|swish");
    config_only(r, r->text, "attention_bias", "false");
    config_only(r, r->text, "decoder_sparse_step", "1");
    if (!r->code && dense && r->j->nodes[dense].type == JSON_ARRAY && r->j->nodes[dense].size)
        r->code = fail(r->err, MOTE_EUNSUPPORTED,
                       "%s/config.json: mlp_only_layers: layers without experts are not supported", r->dir);
}

/* ---- Tensors ---- */

/* How a family keeps its norms' weights: bind_vector or bind_zero_centered. */
typedef void norm_binder(binder *b, const char *where, const char *what, const float **v, int n);

/* The MTP layer is bound as IN_MTP by the caller, the others as IN_ATTENTION. */
static void common_bind_attention(binder *b, const char *where, attention_weights *w, norm_binder *bind_norm) {
    static const char *const k_scales[] = {"self_attn.k_proj.k_scale", "self_attn.k_scale", "self_attn.k_proj.output_scale"};
    static const char *const v_scales[] = {"self_attn.v_proj.v_scale", "self_attn.v_scale", "self_attn.v_proj.output_scale"};
    const attention_shape *s = &w->shape;
    bind_matrix(b, where, "self_attn.q_proj.weight", &w->q_proj, s->heads * attention_q_size(s), s->hidden);
    bind_matrix(b, where, "self_attn.k_proj.weight", &w->k_proj, s->kv_heads * s->head_dim, s->hidden);
    bind_matrix(b, where, "self_attn.v_proj.weight", &w->v_proj, s->kv_heads * s->head_dim, s->hidden);
    bind_norm(b, where, "self_attn.q_norm.weight", &w->q_norm, s->head_dim);
    bind_norm(b, where, "self_attn.k_norm.weight", &w->k_norm, s->head_dim);
    bind_kv_scale(b, where, k_scales, 3, &w->k_scale);
    bind_kv_scale(b, where, v_scales, 3, &w->v_scale);
    bind_unneeded(b, where, "self_attn.q_scale");              /* queries are not quantised */
    bind_unneeded(b, where, "self_attn.prob_scale");
    if (b->kind == IN_MTP) bind_as(b, IN_MTP, 0, 1);           /* from here on only read when the MTP layer drafts */
    bind_matrix(b, where, "self_attn.o_proj.weight", &w->o_proj, s->hidden, s->heads * s->head_dim);
}

/* Routed experts, stacked or one by one. */
static void common_bind_experts(binder *b, const char *where, moe_weights *w) {
    const moe_shape *s = &w->shape;
    bind_name(b, where, "mlp.experts.gate_up_proj");
    if (bind_has(b, b->name)) {
        bind_experts_stacked(b, where, w);
        return;
    }
    for (int e = 0; e < s->experts && !b->code; e++) {
        char expert[192];
        snprintf(expert, sizeof expert, "%smlp.experts.%d.", where, e);
        bind_matrix(b, expert, "gate_proj.weight", &w->gate_proj[e], s->expert_size, s->hidden);
        bind_matrix(b, expert, "up_proj.weight", &w->up_proj[e], s->expert_size, s->hidden);
        bind_matrix(b, expert, "down_proj.weight", &w->down_proj[e], s->hidden, s->expert_size);
    }
}

/* Room for the matrices of all experts of all layers, `extra` layers more than the model's; experts_of gives a layer its own. */
static void common_expert_room(binder *b, int experts, int extra) {
    mote_model *m = b->m;
    const size_t per_layer = 3 * ((size_t)experts + 1);
    m->experts = (matrix *)calloc(per_layer * (size_t)(m->c.layers + extra), sizeof *m->experts);
    if (!m->experts) b->code = fail_memory(b->err);
}

static void common_layer_experts(const mote_model *m, int layer, moe_weights *w) {
    const size_t count = (size_t)w->shape.experts + 1;
    w->gate_proj = m->experts + 3 * count * (size_t)layer;
    w->up_proj = w->gate_proj + count;
    w->down_proj = w->up_proj + count;
}

/* Embedding, head and final norm. */
static void common_bind_ends(binder *b, norm_binder *bind_norm) {
    mote_model *m = b->m;
    const config *c = &m->c;
    bind_prefix(b, "embed_tokens.", "model.", b->prefix, sizeof b->prefix);
    bind_prefix(b, "lm_head.", "", b->head_prefix, sizeof b->head_prefix);
    bind_as(b, IN_EMBED, 1, c->tied ? 1 : (uint64_t)c->vocab);
    bind_matrix(b, b->prefix, "embed_tokens.weight", &m->embed_tokens, c->vocab, c->hidden);
    bind_as(b, IN_HEAD, 1, 1);
    if (c->tied) m->lm_head = m->embed_tokens;
    else bind_matrix(b, b->head_prefix, "lm_head.weight", &m->lm_head, c->vocab, c->hidden);
    bind_as(b, IN_NORMS, 1, 1);
    bind_norm(b, b->prefix, "norm.weight", &m->norm, c->hidden);
}
