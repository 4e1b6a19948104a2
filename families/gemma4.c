/* families/gemma4.c: Gemma 4 (26B-A4B, 31B): what config.json says, what its tensors are called.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) input_layernorm
     q, k, v = q_proj u, k_proj u, v_proj u;  q = rotate(q / rms(q) q_norm);  k = rotate(k / rms(k) k_norm);  v = v / rms(v)      of each head
     a = o_proj (softmax(q . k) v)               over all tokens, or, of layers of sliding attention, the last sliding_window
     x += a / rms(a) post_attention_layernorm
     s = mlp(x / rms(x) pre_feedforward_layernorm),  mlp(u) = down_proj (GELU(gate_proj u) * up_proj u)
     y = s / rms(s) post_feedforward_layernorm_1 + e / rms(e) post_feedforward_layernorm_2, or, of models without experts, y = s
          e = sum of w[i] expert[i](x / rms(x) pre_feedforward_layernorm_2) over the top_k_experts best of r
          r = router.proj (x / rms(x) router.scale / sqrt(hidden_size));  w[i] = router.per_expert_scale[i] softmax of these;  an expert is an mlp
     x = (x + y / rms(y) post_feedforward_layernorm) layer_scalar

   Layers of full attention have heads of another size, fewer of keys, and with attention_k_eq_v no v_proj: v = k_proj u, before k_norm. Both
   types of layers have a rope of their own. An embedding is multiplied by sqrt(hidden_size), as a BF16; logits are capped. Smaller models have
   embeddings for each layer, and layers that attend to another one's keys: these are refused. */

static const char *const gemma4_types[] = {"gemma4", "gemma4_text", NULL};

/* What the models that mote does not run have; hidden_size_per_layer_input is not 0 where it is absent. */
static void gemma4_check(config_reader *r) {
    config_get(r, r->text, "vocab_size_per_layer_input");
    if (!config_get(r, r->text, "hidden_size_per_layer_input"))
        config_fail(r, MOTE_EUNSUPPORTED, "hidden_size_per_layer_input is absent, which means 256, mote supports 0 only");
    config_only(r, r->text, "hidden_size_per_layer_input", "0");
    config_only(r, r->text, "num_kv_shared_layers", "0");
    config_only(r, r->text, "use_double_wide_mlp", "false");
    config_only(r, r->text, "use_bidirectional_attention", "vision");
    config_only(r, r->text, "hidden_activation", "gelu_pytorch_tanh");
}

/* Beside an embedding that is not said to be tied: it is. */
static void gemma4_ends(config_reader *r, config *c) {
    static const char tied[] = "tie_word_embeddings", cap[] = "final_logit_softcapping";
    const uint32_t node = config_get(r, r->text, cap);
    if (!config_get(r, 0, tied) && !config_get(r, r->text, tied)) c->tied = 1;
    c->embed_factor = float_of_bf16(bf16_of_float(sqrtf((float)c->hidden)));
    if (node && r->j->nodes[node].type != JSON_NULL) config_float(r, r->text, cap, 1e-3, 1e6, 0, &c->logit_cap);
}

/* The dense FFN, or the experts with it as the one that is shared. */
static void gemma4_ffn(config_reader *r, const config *c, sublayer_shape *ffn) {
    mlp_shape *f = &ffn->of.mlp;
    moe_shape *e = &ffn->of.moe;
    const int experts = config_flag(r, config_get(r, r->text, "enable_moe_block"), "enable_moe_block", 0);
    *ffn = sublayer_shape_of(experts ? LAYER_MOE : LAYER_MLP);
    ffn->residual.normed_after = ffn->residual.scaled = 1;
    ffn->residual.branched = experts;
    if (experts) {
        common_experts_by(r, c, e, "num_experts", "top_k_experts", "moe_intermediate_size");
        config_int(r, "intermediate_size", 1, 1 << 20, &e->shared_size);
        e->shared_ungated = e->expert_scaled = e->gelu = 1;
        common_moe_check(r, e);
    } else {
        common_mlp(r, c, f);
        f->gelu = 1;
    }
}

/* Attention of layers that slide, and of the others. */
static void gemma4_attention(config_reader *r, const config *c, attention_shape *slides, attention_shape *full) {
    int kv_heads;
    common_attention(r, c, slides, 0);
    config_int_or(r, "sliding_window", 1, INT_MAX, 512, &slides->window);
    slides->normed = slides->v_normed = 1;
    slides->scale = 1;
    *full = *slides;
    full->window = 0;
    full->v_of_k = config_flag(r, config_get(r, r->text, "attention_k_eq_v"), "attention_k_eq_v", 0);
    config_int_or(r, "global_head_dim", 1, 1 << 14, 512, &full->head_dim);
    config_int_or(r, "num_global_key_value_heads", 1, 1 << 12, slides->kv_heads, &kv_heads);
    if (full->v_of_k) full->kv_heads = kv_heads;
    common_check_heads(r, full, "num_attention_heads", full->v_of_k ? "num_global_key_value_heads" : "num_key_value_heads");
}

static const char *const gemma4_words[] = {"full_attention", "sliding_attention"};

/* Where config.json has no rope_parameters, a layer of full attention turns a quarter of a head. */
static void gemma4_rope(config_reader *r, config *c, config_layer *l, int slides) {
    const uint32_t told = config_get(r, r->text, "rope_parameters");
    const int absent = !slides && (!told || r->j->nodes[told].type == JSON_NULL);
    if (absent) l->rope.kind = ROPE_PROPORTIONAL, l->rope.factor = 1;
    common_rope_of_type(r, c, l, gemma4_words, 2, slides, absent ? 0.25f : 1, absent ? 1e6f : 1e4f);
}

/* The last layer attends to all whatever layer_types says, as in transformers. */
static void gemma4_read(config_reader *r, config *c) {
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MLP);
    attention_shape of[2];
    memset(of, 0, sizeof of);
    common_limits(r, c, 131072, 1e-6f);
    gemma4_check(r);
    gemma4_ends(r, c);
    gemma4_ffn(r, c, &l.ffn);
    l.mixer.residual.normed_after = 1;
    gemma4_attention(r, c, &of[1], &of[0]);
    for (int i = 0; i < c->layers && !r->code; i++) {
        const int slides = common_layer_word(r, c, "layer_types", i, gemma4_words, 2, (i + 1) % 6 != 0) && i + 1 < c->layers;
        c->layer[i] = l;
        c->layer[i].mixer.of.attention = of[slides];
        gemma4_rope(r, c, &c->layer[i], slides);
    }
}

static void gemma4_bind_norms(binder *b, const char *where, layer *l) {
    const int hidden = b->m->c.hidden, branched = l->ffn.residual.branched;
    bind_as(b, MODULE_NORMS, 1, 1);
    bind_vector(b, where, "input_layernorm.weight", &l->mixer.norm, hidden);
    bind_vector(b, where, "post_attention_layernorm.weight", &l->mixer.norm_after, hidden);
    bind_vector(b, where, "pre_feedforward_layernorm.weight", branched ? &l->ffn.norm_shared : &l->ffn.norm, hidden);
    bind_vector(b, where, "post_feedforward_layernorm.weight", &l->ffn.norm_after, hidden);
    bind_vector(b, where, "layer_scalar", &l->ffn.scale, 1);
    if (!branched) return;
    bind_vector(b, where, "pre_feedforward_layernorm_2.weight", &l->ffn.norm, hidden);
    bind_vector(b, where, "post_feedforward_layernorm_1.weight", &l->ffn.norm_shared_after, hidden);
    bind_vector(b, where, "post_feedforward_layernorm_2.weight", &l->ffn.norm_routed_after, hidden);
    bind_by_root(b, where, "router.scale", &l->ffn.norm_router, hidden);
}

/* Some call the experts of a quantised checkpoint moe.experts, and store them one by one, as these tensors or others. */
static const char *gemma4_experts(binder *b, const char *where) {
    static const char *const there[] = {"moe.experts.0.down_proj.weight", "moe.experts.0.down_proj.weight_packed", "moe.experts.0.down_proj.qweight"};
    for (size_t i = 0; i < sizeof there / sizeof *there && !b->publishes; i++)
        if (bind_has(b, where, there[i])) return "moe.experts";
    return "experts";
}

static void gemma4_bind_experts(binder *b, const char *where, moe_weights *w) {
    const moe_shape *s = &w->shape;
    char all[192];
    bind_as(b, MODULE_ROUTER, 1, 1);
    bind_kept(b, where, "router.proj.weight", &w->router, s->experts, s->hidden);
    bind_vector(b, where, "router.per_expert_scale", &w->expert_scale, s->experts);
    bind_as(b, MODULE_EXPERTS, (uint64_t)s->top_k, (uint64_t)s->experts);
    snprintf(all, sizeof all, "%s%s", where, gemma4_experts(b, where));
    common_bind_experts_of(b, all, w);
    bind_as(b, MODULE_SHARED, 1, 1);
    snprintf(all, sizeof all, "%smlp.", where);
    common_bind_shared_expert(b, all, w);
}

static void gemma4_bind_layer(binder *b, int index, layer *l) {
    char where[128];
    bind_for_layer(b, index);
    snprintf(where, sizeof where, "%slayers.%d.", b->prefix, index);
    gemma4_bind_norms(b, where, l);
    bind_as(b, MODULE_ATTENTION, 1, 1);
    common_bind_attention(b, where, &l->mixer.w.attention, bind_vector);
    if (l->ffn.kind == LAYER_MOE) gemma4_bind_experts(b, where, &l->ffn.w.moe);
    else common_bind_mlp(b, where, &l->ffn.w.mlp);
}

static void gemma4_bind(binder *b) {
    mote_model *m = b->m;
    common_bind_ends(b, bind_vector);
    for (int i = 0; i < m->c.layers && !b->code; i++) gemma4_bind_layer(b, i, &m->layers[i]);
}
