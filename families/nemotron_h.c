/* families/nemotron_h.c: Nemotron 3 (Nano 30B-A3B, 3.5 Lightning): what config.json says, which layers there are, what their tensors are called.

   A layer is one sublayer, x += mixer(x / rms(x) norm), rms(x) = sqrt(mean(x^2) + eps), which a letter of hybrid_override_pattern names:
     M  z, c, dt = in_proj u;  x, B, C = SiLU(conv1d c + bias);  dt = softplus(dt + dt_bias)
        S = exp(-exp(A_log) dt) S + dt x B^T,  y = S C + D x            of each head; heads of a group share B and C
        out_proj (g / rms(g) norm), g = y SiLU(z),  by groups           (layers/mamba/)
     *  o_proj (softmax(q . k / sqrt(head_dim)) v),  q, k, v = q_proj u, k_proj u, v_proj u        nothing is rotated
     E  shared_experts(u) + factor sum of w[e] expert[e](u), the num_experts_per_tok best of s + e_score_correction_bias, s = sigmoid(gate u),
        w = s of these, divided by their sum;  expert(u) = down_proj ReLU(up_proj u)^2
     -  down_proj ReLU(up_proj u)^2

   transformers raises dt to at least time_step_min where it reads a prompt, and does not where it decodes; here dt is as it is. The MTP layers of some
   checkpoints are left out. */

static const char *const nemotron_h_types[] = {"nemotron_h", NULL};

enum nemotron_layer { NEMOTRON_MAMBA, NEMOTRON_ATTENTION, NEMOTRON_MOE, NEMOTRON_MLP };

static const char nemotron_letters[] = "M*E-";

/* The letter of layer i in hybrid_override_pattern, by its place in nemotron_letters; -1: there is none. */
static int nemotron_letter_of(config_reader *r, const config *c, int i) {
    const uint32_t pattern = config_get(r, r->text, "hybrid_override_pattern");
    const json_node *n = &r->j->nodes[pattern];
    if (r->code || !pattern || n->type == JSON_NULL) return -1;
    if (n->type != JSON_STRING || n->size != (uint32_t)c->layers) {
        if (n->type != JSON_STRING) config_fail(r, MOTE_EFORMAT, "hybrid_override_pattern must be a text with one of M, *, E and - for each layer");
        else config_fail(r, MOTE_EFORMAT, "hybrid_override_pattern has %u letters, num_hidden_layers is %d", n->size, c->layers);
        return -1;
    }
    const unsigned char said = (unsigned char)r->j->text[n->start + (uint32_t)i];
    const char *letter = (const char *)memchr(nemotron_letters, said, 4);
    if (!letter)
        config_fail(r, MOTE_EUNSUPPORTED, said < 0x80 ? "hybrid_override_pattern has %c for layer %d, mote supports M, *, E and -"
                                                      : "hybrid_override_pattern has byte 0x%02X for layer %d, mote supports M, *, E and -", said, i);
    return letter ? (int)(letter - nemotron_letters) : -1;
}

/* Which layer i is, by the pattern, or by the list that newer transformers write. Where both are there they say the same. */
static enum nemotron_layer nemotron_layer_of(config_reader *r, const config *c, int i) {
    static const char *const words[] = {"mamba", "attention", "moe", "mlp"};
    const int said = nemotron_letter_of(r, c, i), listed = r->code ? -1 : common_layer_word(r, c, "layers_block_type", i, words, 4, said);
    if (r->code) return NEMOTRON_MAMBA;
    if (listed < 0) config_fail(r, MOTE_EUNSUPPORTED, "neither hybrid_override_pattern nor layers_block_type says what the layers are");
    else if (said >= 0 && listed != said)
        config_fail(r, MOTE_EFORMAT, "layers_block_type[%d] is %s, but hybrid_override_pattern has %c there", i, words[listed], nemotron_letters[said]);
    return r->code ? NEMOTRON_MAMBA : (enum nemotron_layer)listed;
}

/* The bounds of dt, [0, Infinity]: none. transformers 5 writes {"__float__": "Infinity"}. */
static void nemotron_step_limit(config_reader *r) {
    const uint32_t node = config_get(r, r->text, "time_step_limit");
    const json_node *nodes = r->j->nodes;
    if (r->code || !node || nodes[node].type == JSON_NULL) return;
    const int pair = nodes[node].type == JSON_ARRAY && nodes[node].size == 2;
    const uint32_t end = pair ? nodes[node + 1].next : 0, written = pair && nodes[end].type == JSON_OBJECT ? json_get(r->j, end, "__float__") : end;
    if (!pair || !config_is(r->j, node + 1, "0") || !config_is(r->j, written, "Infinity"))
        config_fail(r, MOTE_EUNSUPPORTED, "time_step_limit bounds the steps of Mamba layers, mote supports [0, Infinity] only");
}

static void nemotron_mamba(config_reader *r, const config *c, mamba_shape *s) {
    s->hidden = c->hidden;
    s->eps = c->eps;
    config_int(r, "mamba_num_heads", 1, 1 << 12, &s->heads);
    config_int(r, "mamba_head_dim", 1, 1 << 14, &s->head_dim);
    config_int(r, "n_groups", 1, 1 << 12, &s->groups);
    config_int(r, "ssm_state_size", 1, MAX_KEY_DIM, &s->state_dim);
    config_int(r, "conv_kernel", 1, 64, &s->taps);
    config_only(r, r->text, "mamba_hidden_act", "silu|swish");
    config_only(r, r->text, "use_conv_bias", "true");
    config_only(r, r->text, "mamba_proj_bias", "false");
    config_only(r, r->text, "use_bias", "false");
    nemotron_step_limit(r);
    if (r->code) return;
    if (s->heads % s->groups)
        config_fail(r, MOTE_EFORMAT, "mamba_num_heads = %d is no multiple of n_groups = %d", s->heads, s->groups);
    else if ((int64_t)s->heads * s->head_dim > 1 << 20 || (int64_t)s->groups * s->state_dim > 1 << 20)
        config_fail(r, MOTE_EUNSUPPORTED, "mamba_num_heads = %d times mamba_head_dim = %d, or n_groups = %d times ssm_state_size = %d, exceeds %d", s->heads,
                    s->head_dim, s->groups, s->state_dim, 1 << 20);
}

static void nemotron_experts(config_reader *r, const config *c, moe_shape *e) {
    common_experts(r, c, e, "n_routed_experts", "moe_intermediate_size");
    config_int_or(r, "moe_shared_expert_intermediate_size", 0, 1 << 20, 0, &e->shared_size);
    config_only(r, r->text, "n_shared_experts", "1");
    e->shared_ungated = e->shared_size > 0;
    e->squared_relu = 1;
    common_sigmoid_router(r, e);
    common_expert_groups(r, e, 1, 1);
    common_routed_scale(r, e, "routed_scaling_factor", 1);
    common_moe_check(r, e);
}

/* Keys of what is computed otherwise here, of what is not rotated, and of an MTP layer. */
static void nemotron_pass_over(config_reader *r) {
    static const char *const keys[] = {"chunk_size", "expand", "mamba_ssm_cache_dtype", "time_step_min", "time_step_max", "time_step_floor", "time_step_rank",
                                       "use_mamba_kernels", "num_logits_to_keep", "rescale_prenorm_residual", "residual_in_fp32", "intermediate_size",
                                       "moe_shared_expert_overlap", "rope_theta", "partial_rotary_factor", "mtp_hybrid_override_pattern",
                                       "mtp_layers_block_type"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) config_get(r, r->text, keys[i]);
}

/* Keys of experts, in a model that has none. */
static void nemotron_no_experts(config_reader *r) {
    static const char *const keys[] = {"n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size", "n_shared_experts",
                                       "num_experts_per_tok", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) config_get(r, r->text, keys[i]);
}

static void nemotron_h_read(config_reader *r, config *c) {
    config_layer mamba = config_layer_of(LAYER_MAMBA, LAYER_NONE), attention = config_layer_of(LAYER_ATTENTION, LAYER_NONE);
    config_layer moe = config_layer_of(LAYER_NONE, LAYER_MOE), mlp = config_layer_of(LAYER_NONE, LAYER_MLP);
    const config_layer *const layers[] = {&mamba, &attention, &moe, &mlp};
    unsigned kinds = 0;
    config_int_or(r, "max_position_embeddings", 1, 1 << 24, 4096, &c->context_max);
    config_float(r, r->text, "layer_norm_epsilon", 0, 1, 1e-5f, &c->eps);
    config_float(r, r->text, "norm_eps", 0, 1, c->eps, &mamba.mixer.of.mamba.eps);
    if (!r->code && mamba.mixer.of.mamba.eps != c->eps)
        config_fail(r, MOTE_EUNSUPPORTED, "norm_eps is %g, but layer_norm_epsilon is %g", (double)mamba.mixer.of.mamba.eps, (double)c->eps);
    config_only(r, r->text, "mlp_hidden_act", "relu2");
    nemotron_pass_over(r);
    for (int i = 0; i < c->layers && !r->code; i++) kinds |= 1u << nemotron_layer_of(r, c, i);
    nemotron_mamba(r, c, &mamba.mixer.of.mamba);
    common_attention(r, c, &attention.mixer.of.attention, 0);
    if (kinds >> NEMOTRON_MOE & 1) nemotron_experts(r, c, &moe.ffn.of.moe);
    else nemotron_no_experts(r);
    if (kinds >> NEMOTRON_MLP & 1) config_int(r, "intermediate_size", 1, 1 << 20, &mlp.ffn.of.mlp.size);
    mlp.ffn.of.mlp.hidden = c->hidden;
    mlp.ffn.of.mlp.squared_relu = 1;
    for (int i = 0; i < c->layers && !r->code; i++) c->layer[i] = *layers[nemotron_layer_of(r, c, i)];
    c->layer[c->layers] = config_layer_of(LAYER_NONE, LAYER_NONE);
}

/* ---- Tensors ---- */

/* Three parts of in_proj: z [inner], then x [inner], B and C [groups state_dim], then dt [heads]; conv1d has the channels alone. Channels are taken
   in the order C, B, x; of several ranks each has those of its groups and heads. rows: of the tensor; x: where in it x begins. */
static tensor_slice nemotron_channels(const binder *b, const mamba_shape *s, int rows, int cols, int x) {
    const int inner = mamba_inner(s), shared = s->groups * s->state_dim;
    const row_runs cbx = {.groups = 1, .group_rows = rows, .at = {x + inner + shared, x + inner, x}, .rows = {shared, shared, inner}, .first = 0};
    tensor_slice channels = slice_all(rows, cols);
    slice_divide(b, &channels, DIVIDED_ROWS);
    channels.runs = cbx;
    return channels;
}

static void nemotron_bind_mamba(binder *b, const char *where, mamba_weights *w) {
    const mamba_shape *s = &w->shape;
    const int inner = mamba_inner(s), channels = mamba_channels(s), rows = inner + channels + s->heads;
    const tensor_slice in = nemotron_channels(b, s, rows, s->hidden, inner), conv = nemotron_channels(b, s, channels, s->taps, 0);
    const tensor_slice bias = nemotron_channels(b, s, channels, 1, 0);
    tensor_slice part = slice_all(rows, s->hidden);
    slice_divide(b, &part, DIVIDED_ROWS);
    bind_as(b, MODULE_MAMBA, 1, 1);
    bind_slice(b, where, "in_proj.weight", &in, 0, &w->in_proj_cbx);
    part.runs = rows_of(&part, 1, 0, inner);
    bind_slice(b, where, "in_proj.weight", &part, 0, &w->in_proj_z);
    part.runs = rows_of(&part, 1, inner + channels, s->heads);
    bind_slice(b, where, "in_proj.weight", &part, 0, &w->in_proj_dt);
    bind_matrix(b, where, "out_proj.weight", &w->out_proj, s->hidden, inner, DIVIDED_COLS);
    bind_slice_vector(b, where, "conv1d.weight", &conv, &conv_part, &vector_source, &w->conv1d);
    bind_slice_vector(b, where, "conv1d.bias", &bias, &vector_part, &vector_source, &w->conv_bias);
    bind_divided_vector(b, where, "A_log", &w->A_log, s->heads);
    bind_divided_vector(b, where, "D", &w->D, s->heads);
    bind_divided_vector(b, where, "dt_bias", &w->dt_bias, s->heads);
    bind_divided_vector(b, where, "norm.weight", &w->norm, inner);
}

static void nemotron_bind_attention(binder *b, const char *where, attention_weights *w) {
    static const char *const k_scales[] = {"k_proj.k_scale", "k_scale", "k_proj.output_scale"};
    static const char *const v_scales[] = {"v_proj.v_scale", "v_scale", "v_proj.output_scale"};
    const attention_shape *s = &w->shape;
    const int queries = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    bind_as(b, MODULE_ATTENTION, 1, 1);
    bind_matrix(b, where, "q_proj.weight", &w->q_proj, queries, s->hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "k_proj.weight", &w->k_proj, kv, s->hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "v_proj.weight", &w->v_proj, kv, s->hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "o_proj.weight", &w->o_proj, s->hidden, queries, DIVIDED_COLS);
    bind_kv_scale(b, where, k_scales, 3, &w->k_scale);
    bind_kv_scale(b, where, v_scales, 3, &w->v_scale);
    bind_unneeded(b, where, "q_scale");
    bind_unneeded(b, where, "prob_scale");
}

static void nemotron_bind_expert(binder *b, const char *where, moe_weights *w, int e, int size) {
    bind_matrix(b, where, "up_proj.weight", &w->up_proj[e], size, w->shape.hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "down_proj.weight", &w->down_proj[e], w->shape.hidden, size, DIVIDED_COLS);
}

static void nemotron_bind_mlp(binder *b, const char *where, mlp_weights *w) {
    bind_as(b, MODULE_MLP, 1, 1);
    bind_matrix(b, where, "up_proj.weight", &w->up_proj, w->shape.size, w->shape.hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "down_proj.weight", &w->down_proj, w->shape.hidden, w->shape.size, DIVIDED_COLS);
}

static void nemotron_bind_moe(binder *b, const char *where, moe_weights *w) {
    const moe_shape *s = &w->shape;
    char expert[192], all[192];
    bind_as(b, MODULE_ROUTER, 1, 1);
    bind_kept(b, where, "gate.weight", &w->router, s->experts, s->hidden);
    bind_vector(b, where, "gate.e_score_correction_bias", &w->correction, s->experts);
    bind_as(b, MODULE_EXPERTS, (uint64_t)s->top_k, (uint64_t)s->experts);
    snprintf(all, sizeof all, "%sexperts", where);
    b->together = all;
    for (int e = 0; e < s->experts && !b->code; e++) {
        snprintf(expert, sizeof expert, "%sexperts.%d.", where, e);
        nemotron_bind_expert(b, expert, w, e, s->expert_size);
    }
    b->together = NULL;
    if (!s->shared_size) return;
    bind_as(b, MODULE_SHARED, 1, 1);
    snprintf(expert, sizeof expert, "%sshared_experts.", where);
    nemotron_bind_expert(b, expert, w, s->experts, s->shared_size);
}

static void nemotron_bind_layer(binder *b, int index, layer *l) {
    char where[128], mixer[144];
    const int ffn = l->mixer.kind == LAYER_NONE;
    bind_for_layer(b, index);
    snprintf(where, sizeof where, "%slayers.%d.", b->prefix, index);
    snprintf(mixer, sizeof mixer, "%smixer.", where);
    bind_as(b, MODULE_NORMS, 1, 1);
    bind_vector(b, where, "norm.weight", ffn ? &l->ffn.norm : &l->mixer.norm, b->m->c.hidden);
    if (l->mixer.kind == LAYER_MAMBA) nemotron_bind_mamba(b, mixer, &l->mixer.w.mamba);
    else if (!ffn) nemotron_bind_attention(b, mixer, &l->mixer.w.attention);
    else if (l->ffn.kind == LAYER_MOE) nemotron_bind_moe(b, mixer, &l->ffn.w.moe);
    else nemotron_bind_mlp(b, mixer, &l->ffn.w.mlp);
}

static void nemotron_h_bind(binder *b) {
    mote_model *m = b->m;
    b->mtp_from = m->c.layers;
    common_name_prefix(b, "embeddings.", "backbone.", b->prefix, sizeof b->prefix);
    common_bind_ends_of(b, "embeddings.weight", "norm_f.weight", bind_vector);
    for (int i = 0; i < m->c.layers && !b->code; i++) nemotron_bind_layer(b, i, &m->layers[i]);
}
