/* families/qwen3_5_moe.c: Qwen3.5 and Qwen3.6 MoE: what config.json says, which layers there are, what their tensors are called.

   Every layer has a DeltaNet or a gated attention mixer and a mixture of experts with a shared expert; MTP is one more layer
   with attention. RMSNorm weights are stored around zero, the factor being 1 + w, but for DeltaNet's gated norm. */

static const char *const qwen3_5_moe_types[] = {"qwen3_5_moe", "qwen3_5_moe_text", NULL};

static void qwen_layer_types(config_reader *r, config *c) {
    uint32_t types = json_get(r->j, r->text, "layer_types");
    int interval;
    config_int_or(r, "full_attention_interval", 1, 1 << 20, 4, &interval);
    if (r->code) return;
    c->mixers = (unsigned char *)calloc((size_t)c->layers, 1);
    if (!c->mixers) {
        r->code = fail_memory(r->err);
        return;
    }
    for (int i = 0; i < c->layers; i++) c->mixers[i] = (i + 1) % interval ? LAYER_DELTANET : LAYER_ATTENTION;
    if (!types || r->j->nodes[types].type == JSON_NULL) return;
    if (r->j->nodes[types].type != JSON_ARRAY || r->j->nodes[types].size != (uint32_t)c->layers) {
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: layer_types must list num_hidden_layers = %d layers",
                       r->dir, c->layers);
        return;
    }
    uint32_t node = types + 1;
    for (int i = 0; i < c->layers; i++, node = r->j->nodes[node].next) {
        c->mixers[i] = json_equals(r->j, node, "full_attention") ? LAYER_ATTENTION : LAYER_DELTANET;
        if (c->mixers[i] == LAYER_ATTENTION || json_equals(r->j, node, "linear_attention")) continue;
        r->code = fail(r->err, MOTE_EUNSUPPORTED,
                       "%s/config.json: layer_types[%d] is neither linear_attention nor full_attention", r->dir, i);
        return;
    }
}

/* An object that says how positions turn: rope_parameters, or rope_scaling, as it was called before. The only way that mote has
   is no scaling; with text alone mrope is that, too. 0: there is none. */
static uint32_t qwen_rope_object(config_reader *r, const char *key, const char *within) {
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

static void qwen_rope(config_reader *r, attention_shape *a) {
    float factor = 0.25f;
    uint32_t parameters = qwen_rope_object(r, "rope_parameters", "rope_parameters.");
    uint32_t scaling = qwen_rope_object(r, "rope_scaling", "rope_scaling."), rope = parameters ? parameters : scaling;
    if (!rope) rope = r->text;
    config_only(r, r->text, "rope_type", "default");
    config_float(r, r->text, "partial_rotary_factor", 0, 1, factor, &factor);
    config_float(r, rope, "partial_rotary_factor", 0, 1, factor, &factor);
    config_float(r, r->text, "rope_theta", 1, 1e12, 1e7f, &a->theta);
    config_float(r, rope, "rope_theta", 1, 1e12, a->theta, &a->theta);
    if (r->code) return;
    a->rotary_dim = (int)((float)a->head_dim * factor);
    if (a->rotary_dim % 2)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: head_dim * partial_rotary_factor = %d is odd",
                       r->dir, a->rotary_dim);
}

static void qwen_sizes(config_reader *r, config *c) {
    deltanet_shape *d = &c->shapes.deltanet;
    attention_shape *a = &c->shapes.attention;
    moe_shape *e = &c->shapes.moe;
    config_int_or(r, "mtp_num_hidden_layers", 0, 1, 0, &c->mtp_layers);
    config_int(r, "num_attention_heads", 1, 1 << 12, &a->heads);
    config_int(r, "num_key_value_heads", 1, 1 << 12, &a->kv_heads);
    config_int(r, "head_dim", 1, 1 << 14, &a->head_dim);
    config_int(r, "linear_num_key_heads", 1, 1 << 12, &d->key_heads);
    config_int(r, "linear_num_value_heads", 1, 1 << 12, &d->value_heads);
    config_int(r, "linear_key_head_dim", 1, MAX_KEY_DIM, &d->key_dim);
    config_int(r, "linear_value_head_dim", 1, 1 << 12, &d->value_dim);
    config_int_or(r, "linear_conv_kernel_dim", 1, 64, 4, &d->taps);
    config_int(r, "num_experts", 1, 1 << 14, &e->experts);
    config_int(r, "num_experts_per_tok", 1, 1 << 14, &e->top_k);
    config_int(r, "moe_intermediate_size", 1, 1 << 20, &e->expert_size);
    config_int(r, "shared_expert_intermediate_size", 1, 1 << 20, &e->shared_size);
    a->gated = 1;
    d->hidden = a->hidden = e->hidden = c->hidden;
    d->eps = a->eps = e->eps = c->eps;
}

static void qwen_consistency(config_reader *r, const config *c) {
    const deltanet_shape *d = &c->shapes.deltanet;
    const attention_shape *a = &c->shapes.attention;
    const moe_shape *e = &c->shapes.moe;
    if (r->code) return;
    if (a->heads % a->kv_heads)
        r->code = fail(r->err, MOTE_EFORMAT,
                       "%s/config.json: num_attention_heads = %d is no multiple of num_key_value_heads = %d", r->dir,
                       a->heads, a->kv_heads);
    else if (d->value_heads % d->key_heads)
        r->code = fail(r->err, MOTE_EFORMAT,
                       "%s/config.json: linear_num_value_heads = %d is no multiple of linear_num_key_heads = %d",
                       r->dir, d->value_heads, d->key_heads);
    else if (e->top_k > e->experts)
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: num_experts_per_tok = %d of only num_experts = %d",
                       r->dir, e->top_k, e->experts);
    else if ((int64_t)a->heads * a->head_dim > 1 << 22 || (int64_t)d->value_heads * d->value_dim > 1 << 22 ||
             (int64_t)d->key_heads * d->key_dim > 1 << 22)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: heads times head size exceeds %d", r->dir, 1 << 22);
    else if (((int64_t)e->experts + 1) * e->expert_size > 1 << 30 || ((int64_t)e->experts + 1) * e->shared_size > 1 << 30)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: num_experts times an expert's size exceeds %d", r->dir,
                       1 << 30);                /* loops over all rows of all experts count in int */
}

/* What mote does not implement must be off, or as it is in all released models. */
static void qwen_flags(config_reader *r) {
    uint32_t dense = json_get(r->j, r->text, "mlp_only_layers");
    config_only(r, r->text, "hidden_act", "silu|swish");
    config_only(r, r->text, "attention_bias", "false");
    config_only(r, r->text, "attn_output_gate", "true");
    config_only(r, r->text, "output_gate_type", "swish|silu");
    config_only(r, r->text, "decoder_sparse_step", "1");
    config_only(r, r->text, "mtp_use_dedicated_embeddings", "false");
    config_only(r, r->text, "norm_topk_prob", "true");
    if (!r->code && dense && r->j->nodes[dense].type == JSON_ARRAY && r->j->nodes[dense].size)
        r->code = fail(r->err, MOTE_EUNSUPPORTED,
                       "%s/config.json: mlp_only_layers: layers without experts are not supported", r->dir);
}

static void qwen3_5_moe_read(config_reader *r, config *c) {
    qwen_sizes(r, c);
    qwen_consistency(r, c);
    qwen_flags(r);
    qwen_rope(r, &c->shapes.attention);
    qwen_layer_types(r, c);
}

/* ---- Tensors ---- */

static void qwen_bind_deltanet(binder *b, const char *where, deltanet_weights *w) {
    const deltanet_shape *s = &w->shape;
    int keys = s->key_heads * s->key_dim, values = s->value_heads * s->value_dim;
    uint64_t conv[3] = {(uint64_t)(2 * keys + values), 1, (uint64_t)s->taps};
    bind_as(b, IN_DELTANET, 1, 1);
    bind_matrix(b, where, "linear_attn.in_proj_qkv.weight", &w->in_proj_qkv, 2 * keys + values, s->hidden);
    bind_matrix(b, where, "linear_attn.in_proj_z.weight", &w->in_proj_z, values, s->hidden);
    bind_matrix(b, where, "linear_attn.in_proj_b.weight", &w->in_proj_b, s->value_heads, s->hidden);
    bind_matrix(b, where, "linear_attn.in_proj_a.weight", &w->in_proj_a, s->value_heads, s->hidden);
    bind_matrix(b, where, "linear_attn.out_proj.weight", &w->out_proj, s->hidden, values);
    bind_name(b, where, "linear_attn.conv1d.weight");
    bind_vector_named(b, &w->conv1d, conv, 3);
    bind_vector(b, where, "linear_attn.A_log", &w->A_log, s->value_heads);
    bind_vector(b, where, "linear_attn.dt_bias", &w->dt_bias, s->value_heads);
    bind_vector(b, where, "linear_attn.norm.weight", &w->norm, s->value_dim);
}

/* The MTP layer is bound as IN_MTP by the caller, the others as IN_ATTENTION. */
static void qwen_bind_attention(binder *b, const char *where, attention_weights *w) {
    static const char *const k_scales[] = {"self_attn.k_proj.k_scale", "self_attn.k_scale", "self_attn.k_proj.output_scale"};
    static const char *const v_scales[] = {"self_attn.v_proj.v_scale", "self_attn.v_scale", "self_attn.v_proj.output_scale"};
    const attention_shape *s = &w->shape;
    bind_matrix(b, where, "self_attn.q_proj.weight", &w->q_proj, 2 * s->heads * s->head_dim, s->hidden);
    bind_matrix(b, where, "self_attn.k_proj.weight", &w->k_proj, s->kv_heads * s->head_dim, s->hidden);
    bind_matrix(b, where, "self_attn.v_proj.weight", &w->v_proj, s->kv_heads * s->head_dim, s->hidden);
    bind_zero_centered(b, where, "self_attn.q_norm.weight", &w->q_norm, s->head_dim);
    bind_zero_centered(b, where, "self_attn.k_norm.weight", &w->k_norm, s->head_dim);
    bind_kv_scale(b, where, k_scales, 3, &w->k_scale);
    bind_kv_scale(b, where, v_scales, 3, &w->v_scale);
    bind_unneeded(b, where, "self_attn.q_scale");              /* queries are not quantised */
    bind_unneeded(b, where, "self_attn.prob_scale");
    if (b->kind == IN_MTP) bind_as(b, IN_MTP, 0, 1);           /* from here on only read when the MTP layer drafts */
    bind_matrix(b, where, "self_attn.o_proj.weight", &w->o_proj, s->hidden, s->heads * s->head_dim);
}

static void qwen_bind_experts(binder *b, const char *where, moe_weights *w) {
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

static void qwen_bind_moe(binder *b, const char *where, moe_weights *w, matrix *experts) {
    const moe_shape *s = &w->shape;
    int mtp = b->kind == IN_MTP, shared = s->experts;
    w->gate_proj = experts;
    w->up_proj = experts + s->experts + 1;
    w->down_proj = experts + 2 * (s->experts + 1);
    if (!mtp) bind_as(b, IN_ROUTER, 1, 1);
    bind_matrix(b, where, "mlp.gate.weight", &w->router, s->experts, s->hidden);
    bind_matrix(b, where, "mlp.shared_expert_gate.weight", &w->shared_expert_gate, 1, s->hidden);
    if (!mtp) bind_as(b, IN_EXPERTS, (uint64_t)s->top_k, (uint64_t)s->experts);
    qwen_bind_experts(b, where, w);
    if (!mtp) bind_as(b, IN_SHARED, 1, 1);
    bind_matrix(b, where, "mlp.shared_expert.gate_proj.weight", &w->gate_proj[shared], s->shared_size, s->hidden);
    bind_matrix(b, where, "mlp.shared_expert.up_proj.weight", &w->up_proj[shared], s->shared_size, s->hidden);
    bind_matrix(b, where, "mlp.shared_expert.down_proj.weight", &w->down_proj[shared], s->hidden, s->shared_size);
}

/* What a layer consists of: all of a kind have one shape. */
static void qwen_shape_layer(const config *c, enum layer_kind mixer, layer *l) {
    l->mixer.kind = mixer;
    if (mixer == LAYER_ATTENTION) l->mixer.w.attention.shape = c->shapes.attention;
    else l->mixer.w.deltanet.shape = c->shapes.deltanet;
    l->ffn.kind = LAYER_MOE;
    l->ffn.w.moe.shape = c->shapes.moe;
}

static void qwen_bind_layer(binder *b, int index, layer *l, matrix *experts) {
    char where[128];
    snprintf(where, sizeof where, "%slayers.%d.", b->prefix, index);
    qwen_shape_layer(&b->m->c, (enum layer_kind)b->m->c.mixers[index], l);
    int attends = l->mixer.kind == LAYER_ATTENTION;
    layer_weights *w = &l->mixer.w;
    bind_as(b, IN_NORMS, 1, 1);
    bind_zero_centered(b, where, "input_layernorm.weight", attends ? &w->attention.input_norm : &w->deltanet.input_norm,
                b->m->c.hidden);
    bind_zero_centered(b, where, "post_attention_layernorm.weight", &l->ffn.w.moe.norm, b->m->c.hidden);
    bind_as(b, IN_ATTENTION, 1, 1);
    if (attends) qwen_bind_attention(b, where, &w->attention);
    else qwen_bind_deltanet(b, where, &w->deltanet);
    qwen_bind_moe(b, where, &l->ffn.w.moe, experts);
}

/* Of the MTP layer, decoding without speculation reads what its KV cache needs: fc, norms, q, k and v. */
static void qwen_bind_mtp(binder *b, matrix *experts) {
    mote_model *m = b->m;
    int hidden = m->c.hidden;
    bind_as(b, IN_MTP, 1, 1);
    qwen_shape_layer(&m->c, LAYER_ATTENTION, &m->mtp);
    bind_matrix(b, "mtp.", "fc.weight", &m->mtp_fc, hidden, 2 * hidden);
    bind_zero_centered(b, "mtp.", "pre_fc_norm_embedding.weight", &m->mtp_norm_embedding, hidden);
    bind_zero_centered(b, "mtp.", "pre_fc_norm_hidden.weight", &m->mtp_norm_hidden, hidden);
    bind_zero_centered(b, "mtp.", "norm.weight", &m->mtp_norm, hidden);
    bind_zero_centered(b, "mtp.layers.0.", "input_layernorm.weight", &m->mtp.mixer.w.attention.input_norm, hidden);
    bind_zero_centered(b, "mtp.layers.0.", "post_attention_layernorm.weight", &m->mtp.ffn.w.moe.norm, hidden);
    qwen_bind_attention(b, "mtp.layers.0.", &m->mtp.mixer.w.attention);
    qwen_bind_moe(b, "mtp.layers.0.", &m->mtp.ffn.w.moe, experts);
}

/* The model, layers allocated; without its MTP layer if the checkpoint has none. */
static void qwen3_5_moe_bind(binder *b) {
    mote_model *m = b->m;
    const config *c = &m->c;
    size_t per_layer = 3 * ((size_t)c->shapes.moe.experts + 1);
    bind_prefix(b, "embed_tokens.", "model.", b->prefix, sizeof b->prefix);
    bind_prefix(b, "lm_head.", "", b->head_prefix, sizeof b->head_prefix);
    m->has_mtp = bind_has(b, "mtp.fc.weight");
    m->experts = (matrix *)calloc(per_layer * ((size_t)c->layers + 1), sizeof *m->experts);
    if (!m->experts) {
        b->code = fail_memory(b->err);
        return;
    }
    bind_as(b, IN_EMBED, 1, c->tied ? 1 : (uint64_t)c->vocab);
    bind_matrix(b, b->prefix, "embed_tokens.weight", &m->embed_tokens, c->vocab, c->hidden);
    bind_as(b, IN_HEAD, 1, 1);
    if (c->tied) m->lm_head = m->embed_tokens;
    else bind_matrix(b, b->head_prefix, "lm_head.weight", &m->lm_head, c->vocab, c->hidden);
    bind_as(b, IN_NORMS, 1, 1);
    bind_zero_centered(b, b->prefix, "norm.weight", &m->norm, c->hidden);
    for (int i = 0; i < c->layers && !b->code; i++)
        qwen_bind_layer(b, i, &m->layers[i], m->experts + per_layer * (size_t)i);
    if (m->has_mtp) bind_mtp(b, qwen_bind_mtp, m->experts + per_layer * (size_t)c->layers);
}
