/* families/qwen3_5_moe.c: Qwen3.5 and Qwen3.6 MoE: what config.json says, which layers there are, what their tensors are called.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) (1 + input_layernorm)
     DeltaNet:  q, k, v = SiLU(conv1d(in_proj_qkv u));  beta = sigmoid(in_proj_b u);  g = -exp(A_log) softplus(in_proj_a u + dt_bias)
                S = exp(g) S;  S = S + beta (v - S k) k^T;  o = S q      of each head, with q / |q| / sqrt(d) and k / |k|
                x += out_proj (o / rms(o) norm SiLU(in_proj_z u))
     attention: q, gate = q_proj u;  k, v = k_proj u, v_proj u;  q = rotate(q / rms(q) (1 + q_norm));  k = rotate(k / rms(k) (1 + k_norm))
                x += o_proj (softmax(q . k / sqrt(d)) v sigmoid(gate))
     u = x / rms(x) (1 + post_attention_layernorm)
     x += sum of w[e] expert[e](u) over the num_experts_per_tok best of r = gate u, w = softmax of these
     x += sigmoid(shared_expert_gate u) shared_expert(u)
          expert(u) = down_proj (SiLU(gate_proj u) * up_proj u)

   Three of four layers are DeltaNet's, the fourth attention's, which rotates a quarter of a head. The MTP layer is one more with attention; it
   reads x = fc [norm of the next token's embedding, norm of the token's final row]. What begins with qwen_ serves the dense models as well
   (families/qwen3_5.c): their FFN alone is another. */

static const char *const qwen3_5_moe_types[] = {"qwen3_5_moe", "qwen3_5_moe_text", NULL};

/* Which layers are DeltaNet and which attention. */
static void qwen_layer_types(config_reader *r, config *c) {
    static const char *const words[] = {"linear_attention", "full_attention"};
    int interval;
    config_int_or(r, "full_attention_interval", 1, 1 << 20, 4, &interval);
    for (int i = 0; i < c->layers && !r->code; i++) {
        const int attends = common_layer_word(r, c, "layer_types", i, words, 2, (i + 1) % interval == 0);
        c->layer[i].mixer.kind = attends ? LAYER_ATTENTION : LAYER_DELTANET;
    }
}

static void qwen_deltanet(config_reader *r, const config *c, deltanet_shape *d) {
    config_int(r, "linear_num_key_heads", 1, 1 << 12, &d->key_heads);
    config_int(r, "linear_num_value_heads", 1, 1 << 12, &d->value_heads);
    config_int(r, "linear_key_head_dim", 1, MAX_KEY_DIM, &d->key_dim);
    config_int(r, "linear_value_head_dim", 1, 1 << 12, &d->value_dim);
    config_int_or(r, "linear_conv_kernel_dim", 1, 64, 4, &d->taps);
    d->hidden = c->hidden;
    d->eps = c->eps;
    if (r->code) return;
    if (d->value_heads % d->key_heads)
        config_fail(r, MOTE_EFORMAT, "linear_num_value_heads = %d is no multiple of linear_num_key_heads = %d", d->value_heads,
                    d->key_heads);
    else if ((int64_t)d->value_heads * d->value_dim > 1 << 22 || (int64_t)d->key_heads * d->key_dim > 1 << 22)
        config_fail(r, MOTE_EUNSUPPORTED, "heads times head size exceeds %d", 1 << 22);
}

/* All layers, and the MTP layer, with this FFN. Those of a kind are alike. */
static void qwen_read(config_reader *r, config *c, const sublayer_shape *ffn) {
    config_layer l = config_layer_of(LAYER_ATTENTION, ffn->kind);
    sublayer_shape deltanet = sublayer_shape_of(LAYER_DELTANET);
    l.ffn = *ffn;
    config_int_or(r, "mtp_num_hidden_layers", 0, 1, 0, &c->mtp_layers);
    common_attention(r, c, &l.mixer.of.attention, 0);
    l.mixer.of.attention.gated = l.mixer.of.attention.normed = 1;
    qwen_deltanet(r, c, &deltanet.of.deltanet);
    config_only(r, r->text, "attn_output_gate", "true");
    config_only(r, r->text, "output_gate_type", "swish|silu");
    config_only(r, r->text, "mtp_use_dedicated_embeddings", "false");
    config_only(r, r->text, "use_qk_norm", "true");
    common_rope(r, c, &l, 0.25f, 1e4f);
    rope_sections(r, &l.rope);
    qwen_layer_types(r, c);
    common_vision(r, c);
    for (int i = 0; i <= c->layers; i++) {
        const enum layer_kind mixer = i < c->layers ? c->layer[i].mixer.kind : LAYER_ATTENTION;
        c->layer[i] = l;
        if (mixer == LAYER_DELTANET) c->layer[i].mixer = deltanet, memset(&c->layer[i].rope, 0, sizeof c->layer[i].rope);
    }
}

static void qwen3_5_moe_read(config_reader *r, config *c) {
    sublayer_shape ffn = sublayer_shape_of(LAYER_MOE);
    moe_shape *e = &ffn.of.moe;
    common_limits(r, c, 32768, 1e-6f);
    common_moe(r, c, e, "num_experts", "moe_intermediate_size");
    config_int(r, "shared_expert_intermediate_size", 1, 1 << 20, &e->shared_size);
    common_moe_check(r, e);
    config_only(r, r->text, "norm_topk_prob", "true");
    qwen_read(r, c, &ffn);
}

/* ---- Tensors ---- */

/* How a family keeps the four projections into DeltaNet. */
typedef void in_proj_binder(binder *b, const char *where, deltanet_weights *w);

/* DeltaNet's channels, q, k and v, by rows; of several ranks each has the channels of its heads. */
static tensor_slice qwen_channels(const binder *b, const deltanet_shape *s, int cols) {
    const int keys = s->key_heads * s->key_dim, values = s->value_heads * s->value_dim;
    const row_runs qkv = {.groups = 1, .group_rows = 2 * keys + values, .at = {0, keys, 2 * keys}, .rows = {keys, keys, values}, .first = 0};
    tensor_slice channels = slice_all(2 * keys + values, cols);
    slice_divide(b, &channels, DIVIDED_ROWS);
    if (channels.ranks) channels.runs = qkv;
    return channels;
}

static void qwen_bind_in_proj(binder *b, const char *where, deltanet_weights *w) {
    const deltanet_shape *s = &w->shape;
    const tensor_slice qkv = qwen_channels(b, s, s->hidden);
    tensor_slice gates = slice_all(s->value_heads, s->hidden);
    slice_divide(b, &gates, DIVIDED_ROWS);
    bind_slice(b, where, "linear_attn.in_proj_qkv.weight", &qkv, 0, &w->in_proj_qkv);
    bind_matrix(b, where, "linear_attn.in_proj_z.weight", &w->in_proj_z, s->value_heads * s->value_dim, s->hidden, DIVIDED_ROWS);
    bind_slice(b, where, "linear_attn.in_proj_b.weight", &gates, 1, &w->in_proj_b);
    bind_slice(b, where, "linear_attn.in_proj_a.weight", &gates, 1, &w->in_proj_a);
}

static void qwen_bind_deltanet(binder *b, const char *where, deltanet_weights *w, in_proj_binder *bind_in_proj) {
    const deltanet_shape *s = &w->shape;
    int values = s->value_heads * s->value_dim;
    const tensor_slice conv = qwen_channels(b, s, s->taps);
    bind_as(b, MODULE_DELTANET, 1, 1);
    bind_in_proj(b, where, w);
    bind_matrix(b, where, "linear_attn.out_proj.weight", &w->out_proj, s->hidden, values, DIVIDED_COLS);
    bind_slice_vector(b, where, "linear_attn.conv1d.weight", &conv, &conv_part, &vector_source, &w->conv1d);
    bind_divided_vector(b, where, "linear_attn.A_log", &w->A_log, s->value_heads);
    bind_divided_vector(b, where, "linear_attn.dt_bias", &w->dt_bias, s->value_heads);
    bind_vector(b, where, "linear_attn.norm.weight", &w->norm, s->value_dim);
}

static void qwen_bind_moe(binder *b, const char *where, moe_weights *w) {
    const moe_shape *s = &w->shape;
    const int mtp = b->kind == MODULE_MTP;
    char shared[192];
    if (!mtp) bind_as(b, MODULE_ROUTER, 1, 1);
    bind_kept(b, where, "mlp.gate.weight", &w->router, s->experts, s->hidden);
    bind_kept(b, where, "mlp.shared_expert_gate.weight", &w->shared_expert_gate, 1, s->hidden);
    if (!mtp) bind_as(b, MODULE_EXPERTS, (uint64_t)s->top_k, (uint64_t)s->experts);
    common_bind_experts(b, where, w);
    if (!mtp) bind_as(b, MODULE_SHARED, 1, 1);
    snprintf(shared, sizeof shared, "%smlp.shared_expert.", where);
    common_bind_shared_expert(b, shared, w);
}

static void qwen_bind_ffn(binder *b, const char *where, sublayer *l) {
    if (l->kind == LAYER_MOE) qwen_bind_moe(b, where, &l->w.moe);
    else common_bind_mlp(b, where, &l->w.mlp);
}

static void qwen_bind_layer(binder *b, int index, layer *l, in_proj_binder *bind_in_proj) {
    char where[128];
    bind_for_layer(b, index);
    snprintf(where, sizeof where, "%slayers.%d.", b->prefix, index);
    common_bind_norms(b, where, l, bind_zero_centered);
    bind_as(b, MODULE_ATTENTION, 1, 1);
    if (l->mixer.kind == LAYER_ATTENTION) common_bind_attention(b, where, &l->mixer.w.attention, bind_zero_centered);
    else qwen_bind_deltanet(b, where, &l->mixer.w.deltanet, bind_in_proj);
    qwen_bind_ffn(b, where, &l->ffn);
}

/* Of the MTP layer, decoding without speculation reads what its KV cache needs: fc, norms, q, k and v. */
static void qwen_bind_mtp(binder *b) {
    mote_model *m = b->m;
    int hidden = m->c.hidden;
    bind_as(b, MODULE_MTP, 1, 1);
    bind_kept(b, "mtp.", "fc.weight", &m->mtp.fc, hidden, 2 * hidden);
    bind_zero_centered(b, "mtp.", "pre_fc_norm_embedding.weight", &m->mtp.norm_embedding, hidden);
    bind_zero_centered(b, "mtp.", "pre_fc_norm_hidden.weight", &m->mtp.norm_hidden, hidden);
    bind_zero_centered(b, "mtp.", "norm.weight", &m->mtp.norm, hidden);
    common_bind_norms(b, "mtp.layers.0.", &m->mtp.layer, bind_zero_centered);
    common_bind_attention(b, "mtp.layers.0.", &m->mtp.layer.mixer.w.attention, bind_zero_centered);
    qwen_bind_ffn(b, "mtp.layers.0.", &m->mtp.layer.ffn);
}

/* The model, layers allocated; without its MTP layer if the checkpoint has none. */
static void qwen_bind(binder *b, in_proj_binder *bind_in_proj) {
    mote_model *m = b->m;
    m->has_mtp = bind_has(b, "mtp.", "fc.weight");
    common_bind_ends(b, bind_zero_centered);
    for (int i = 0; i < m->c.layers && !b->code; i++) qwen_bind_layer(b, i, &m->layers[i], bind_in_proj);
    if (m->has_mtp) common_bind_mtp(b, qwen_bind_mtp);
    common_bind_vision(b);
}

static void qwen3_5_moe_bind(binder *b) {
    qwen_bind(b, qwen_bind_in_proj);
}
