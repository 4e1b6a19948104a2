/* families/deepseek_v3.c: DeepSeek V3 (V3, V3.1) and R1: what config.json says, what its tensors are called.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors', of the latents' norms eps is 1e-6:
     u = x / rms(x) input_layernorm
     c, r = kv_a_proj_with_mqa u;  c = c / rms(c) kv_a_layernorm;  r = rotate(r)
     a = q_a_proj u;  a = a / rms(a) q_a_layernorm;  q, t = q_b_proj a;  t = rotate(t)             or q, t = q_proj u;    of each head
     k, v = kv_b_proj c;  x += o_proj (softmax([q, t] . [k, r] scale) v)                           of each head, r of all
     u = x / rms(x) post_attention_layernorm
     x += down_proj (SiLU(gate_proj u) * up_proj u)                                                in the first layers
     x += shared_experts(u) + factor sum of w[e] expert[e](u), the num_experts_per_tok best of s + e_score_correction_bias, s = sigmoid(gate u),
          within the topk_group groups whose best two are best; w = s of these, divided by their sum

   Pairs (2 i, 2 i + 1) are rotated. scale = 1 / sqrt(size of a key); of YaRN times m^2, m = 0.1 mscale_all_dim ln(factor) + 1. The MTP layer is
   numbered as the one after the last. It reads x = eh_proj [norm of the next token's embedding, norm of the token's final row], and has the
   embedding and the head once more. What begins with deepseek_ serves GLM's models as well (families/glm4_moe_lite.c). */

static const char *const deepseek_v3_types[] = {"deepseek_v3", NULL};

/* A size of a head or a latent. */
enum { LATENT_MOST = 1 << 14 };

/* 1 / sqrt(size of a key), and what a scaled rope's mscale_all_dim makes of it: that of the object which common_rope took. */
static void deepseek_scale(config_reader *r, const config_layer *l, mla_shape *s) {
    static const char *const within[] = {"rope_parameters.", "rope_scaling."};
    uint32_t object = 0;
    float all = 0;
    s->scale = 1 / sqrtf((float)mla_key_dim(s));
    for (int i = 0; i < 2 && !object; i++) {
        char key[32];
        snprintf(key, sizeof key, "%.*s", (int)strlen(within[i]) - 1, within[i]);
        const uint32_t node = config_get(r, r->text, key);
        if (!node || r->j->nodes[node].type != JSON_OBJECT || !r->j->nodes[node].size) continue;
        object = node;
        r->within = within[i];
    }
    if (object && l->rope.kind != ROPE_PLAIN) config_float(r, object, "mscale_all_dim", 0, 1e3, 0, &all);
    r->within = NULL;
    if (all == 0 || r->code) return;
    const float m = 0.1f * all * logf(l->rope.factor) + 1;
    s->scale *= m * m;
}

/* A number that says again what others do. */
static void deepseek_again(config_reader *r, const char *key, int is) {
    int again;
    config_int_or(r, key, 1, 1 << 20, is, &again);
    if (!r->code && again != is) config_fail(r, MOTE_EUNSUPPORTED, "%s is %d, mote supports %d only", key, again, is);
}

/* The attention of all layers, and their rope. theta: where config.json does not say. */
static void deepseek_mla(config_reader *r, config *c, config_layer *l, float theta) {
    config_layer turned = config_layer_of(LAYER_ATTENTION, LAYER_NONE);      /* whose heads are the part that is rotated */
    mla_shape *s = &l->mixer.of.mla;
    s->hidden = c->hidden;
    s->eps = 1e-6f;                                   /* whatever rms_norm_eps says: transformers' norm has it as its default */
    config_int(r, "num_attention_heads", 1, 1 << 12, &s->heads);
    config_int_or(r, "q_lora_rank", 1, LATENT_MOST, 0, &s->q_rank);
    config_int(r, "kv_lora_rank", 1, LATENT_MOST, &s->kv_rank);
    config_int(r, "qk_nope_head_dim", 1, LATENT_MOST, &s->nope_dim);
    config_int(r, "qk_rope_head_dim", 2, LATENT_MOST, &s->rope_dim);
    config_int(r, "v_head_dim", 1, LATENT_MOST, &s->value_dim);
    s->interleaved = config_flag(r, config_get(r, r->text, "rope_interleave"), "rope_interleave", 1);
    if (!r->code && s->rope_dim % 2) config_fail(r, MOTE_EUNSUPPORTED, "qk_rope_head_dim = %d is odd", s->rope_dim);
    if (r->code) return;
    deepseek_again(r, "num_key_value_heads", s->heads);
    deepseek_again(r, "qk_head_dim", mla_key_dim(s));
    deepseek_again(r, "head_dim", s->rope_dim);
    turned.mixer.of.attention.head_dim = s->rope_dim;
    common_rope(r, c, &turned, 1, theta);
    l->rope = turned.rope;
    s->rope_scale = turned.mixer.of.attention.rope_scale;
    deepseek_scale(r, l, s);
    if (r->code) return;
    if (turned.mixer.of.attention.rotary_dim != s->rope_dim)
        config_fail(r, MOTE_EUNSUPPORTED, "partial_rotary_factor rotates %d of qk_rope_head_dim = %d", turned.mixer.of.attention.rotary_dim, s->rope_dim);
    else if ((int64_t)s->heads * max_int(max_int(mla_key_dim(s), mla_row_size(s)), s->value_dim) > 1 << 22)
        config_fail(r, MOTE_EUNSUPPORTED, "heads times head size exceeds %d", 1 << 22);
}

/* The MTP layer's number of layers. Those after the first are left out. */
static void deepseek_mtp_layers(config_reader *r, config *c) {
    int layers;
    config_int_or(r, "num_nextn_predict_layers", 0, 1 << 10, 1, &layers);
    c->mtp_layers = layers > 0;
}

/* l: a layer, of which the FFN has been read, an MoE; theta, dense: the rope's base, and the number of layers with a dense FFN, where
   config.json does not say. */
static void deepseek_read(config_reader *r, config *c, config_layer *l, float theta, int dense) {
    deepseek_mla(r, c, l, theta);
    deepseek_mtp_layers(r, c);
    for (int i = 0; i <= c->layers && !r->code; i++) c->layer[i] = *l;
    common_dense_layers(r, c, dense);
}

/* Experts, their router and the shared one; groups, kept, scale: n_group, topk_group and routed_scaling_factor where config.json does not say. */
static void deepseek_moe(config_reader *r, config *c, moe_shape *e, int groups, int kept, float scale) {
    common_experts(r, c, e, "n_routed_experts", "moe_intermediate_size");
    common_shared_experts(r, e, 1);
    common_sigmoid_router(r, e);
    common_expert_groups(r, e, groups, kept);
    common_routed_scale(r, e, "routed_scaling_factor", scale);
    common_moe_check(r, e);
}

static void deepseek_v3_read(config_reader *r, config *c) {
    config_layer l = config_layer_of(LAYER_MLA, LAYER_MOE);
    common_limits(r, c, 4096, 1e-6f);
    deepseek_moe(r, c, &l.ffn.of.moe, 8, 4, 2.5f);
    deepseek_read(r, c, &l, 1e4f, 3);
}

/* ---- Tensors ---- */

/* The MTP layer is bound as MODULE_MTP by the caller. */
static void deepseek_bind_mla(binder *b, const char *where, mla_weights *w) {
    static const char *const scales[] = {"self_attn.k_proj.k_scale", "self_attn.k_scale", "self_attn.kv_a_proj_with_mqa.k_scale"};
    static const char *const unneeded[] = {"self_attn.v_proj.v_scale", "self_attn.v_scale", "self_attn.kv_a_proj_with_mqa.v_scale",
                                           "self_attn.q_scale", "self_attn.prob_scale", "self_attn.rotary_emb.inv_freq"};
    const mla_shape *s = &w->shape;
    const int queries = s->heads * mla_key_dim(s);
    tensor_slice kv_b = slice_all(s->heads * (s->nope_dim + s->value_dim), s->kv_rank);       /* of each head rows of k, then of v */
    slice_divide(b, &kv_b, DIVIDED_ROWS);
    if (b->kind != MODULE_MTP) bind_as(b, MODULE_MLA, 1, 1);
    bind_whole(b, where, "self_attn.kv_a_proj_with_mqa.weight", &w->kv_a_proj, mla_row_size(s), s->hidden);
    bind_vector(b, where, "self_attn.kv_a_layernorm.weight", &w->kv_norm, s->kv_rank);
    bind_kv_scale(b, where, scales, 3, &w->kv_scale);
    for (size_t i = 0; i < sizeof unneeded / sizeof *unneeded; i++) bind_unneeded(b, where, unneeded[i]);     /* values are the latent, too */
    if (b->kind == MODULE_MTP) bind_as(b, MODULE_MTP, 0, 1);       /* from here on only read when the MTP layer drafts */
    if (s->q_rank) {
        bind_whole(b, where, "self_attn.q_a_proj.weight", &w->q_a_proj, s->q_rank, s->hidden);
        bind_vector(b, where, "self_attn.q_a_layernorm.weight", &w->q_norm, s->q_rank);
        bind_matrix(b, where, "self_attn.q_b_proj.weight", &w->q_b_proj, queries, s->q_rank, DIVIDED_ROWS);
    } else {
        bind_matrix(b, where, "self_attn.q_proj.weight", &w->q_b_proj, queries, s->hidden, DIVIDED_ROWS);
    }
    kv_b.runs = rows_of(&kv_b, s->heads, 0, s->nope_dim);
    bind_slice(b, where, "self_attn.kv_b_proj.weight", &kv_b, 0, &w->k_b_proj);
    kv_b.runs = rows_of(&kv_b, s->heads, s->nope_dim, s->value_dim);
    bind_slice(b, where, "self_attn.kv_b_proj.weight", &kv_b, 0, &w->v_b_proj);
    bind_matrix(b, where, "self_attn.o_proj.weight", &w->o_proj, s->hidden, s->heads * s->value_dim, DIVIDED_COLS);
}

/* where: what the layer's names begin with. */
static void deepseek_bind_sublayers(binder *b, const char *where, layer *l) {
    common_bind_norms(b, where, l, bind_vector);
    deepseek_bind_mla(b, where, &l->mixer.w.mla);
    if (l->ffn.kind == LAYER_MLP) common_bind_mlp(b, where, &l->ffn.w.mlp);
    else common_bind_moe(b, where, "mlp.gate.e_score_correction_bias", "mlp.shared_experts.", &l->ffn.w.moe);
}

/* The number of the MTP layer is that of the layers. */
static const char *deepseek_mtp_where(const binder *b, char *to, size_t size) {
    snprintf(to, size, "%slayers.%d.", b->prefix, b->m->c.layers);
    return to;
}

/* Of the MTP layer, decoding without speculation reads what its cache needs: eh_proj, norms and kv_a_proj. */
static void deepseek_bind_mtp(binder *b) {
    mote_model *m = b->m;
    const int hidden = m->c.hidden;
    char where[128], own[128];
    deepseek_mtp_where(b, where, sizeof where);
    bind_as(b, MODULE_MTP, 1, 1);
    bind_kept(b, where, "eh_proj.weight", &m->mtp.fc, hidden, 2 * hidden);
    bind_vector(b, where, "enorm.weight", &m->mtp.norm_embedding, hidden);
    bind_vector(b, where, "hnorm.weight", &m->mtp.norm_hidden, hidden);
    bind_vector(b, where, "shared_head.norm.weight", &m->mtp.norm, hidden);
    snprintf(own, sizeof own, "%sembed_tokens.weight", b->prefix);
    common_bind_copy(b, where, "embed_tokens.weight", own);
    snprintf(own, sizeof own, "%slm_head.weight", b->head_prefix);
    common_bind_copy(b, where, "shared_head.head.weight", own);
    deepseek_bind_sublayers(b, where, &m->mtp.layer);
}

static void deepseek_v3_bind(binder *b) {
    mote_model *m = b->m;
    char where[128];
    common_name_prefix(b, "embed_tokens.", "model.", b->prefix, sizeof b->prefix);
    b->mtp_from = m->c.layers;
    m->has_mtp = m->c.mtp_layers && bind_has(b, deepseek_mtp_where(b, where, sizeof where), "eh_proj.weight");
    common_bind_ends(b, bind_vector);
    for (int i = 0; i < m->c.layers && !b->code; i++) {
        bind_for_layer(b, i);
        snprintf(where, sizeof where, "%slayers.%d.", b->prefix, i);
        deepseek_bind_sublayers(b, where, &m->layers[i]);
    }
    if (m->has_mtp) common_bind_mtp(b, deepseek_bind_mtp);
}
