/* families/laguna.c: Laguna (XS-2.1, S-2.1): what config.json says, what its tensors are called.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) input_layernorm
     q, k, v = q_proj u, k_proj u, v_proj u;  q = rotate(q / rms(q) q_norm);  k = rotate(k / rms(k) k_norm)      of each head
     o = softmax(q . k / sqrt(head_dim)) v       over all tokens, or, of layers of sliding attention, the last sliding_window
     x += o_proj (o softplus(g_proj u)), where a head has one gate, or one for each element
     u = x / rms(x) post_attention_layernorm
     x += factor (sum of w[e] expert[e](u)) + shared_expert(u)       over the num_experts_per_tok best of s + e_score_correction_bias,
          s = sigmoid(gate u), w = s / sum of these;  expert(u) = down_proj (SiLU(gate_proj u) * up_proj u)

   Both types of attention have a rope of their own, and layers as many heads of queries as config.json lists. The first layers have a dense
   FFN in place of the experts. */

static const char *const laguna_types[] = {"laguna", NULL};

/* How many gates a head has. */
static int laguna_gates(config_reader *r, const config *c, const attention_shape *a) {
    const uint32_t gating = config_get(r, r->text, "gating");
    const int each = gating && config_is(r->j, gating, "per-element");
    if (gating && !each && !r->code && !config_is_one(r->j, gating, "per-head|true"))
        config_refuse(r, gating, "gating", "mote supports per-head and per-element");
    common_layer_list(r, c, "gating_types", each ? "per_element" : "per_head");
    return each ? a->head_dim : 1;
}

static void laguna_experts(config_reader *r, const config *c, moe_shape *e) {
    common_experts(r, c, e, "num_experts", "moe_intermediate_size");
    config_int(r, "shared_expert_intermediate_size", 1, 1 << 20, &e->shared_size);
    e->shared_ungated = 1;
    common_moe_check(r, e);
    config_only(r, r->text, "norm_topk_prob", "true");
    config_only(r, r->text, "moe_router_use_sigmoid", "true");
    config_only(r, r->text, "moe_router_logit_softcapping", "0");
    config_only(r, r->text, "moe_apply_router_weight_on_input", "false");
    common_sigmoid_router(r, e);
    common_routed_scale(r, e, "moe_routed_scaling_factor", 1);
}

/* mlp_only_layers lists the dense layers once more. */
static void laguna_check_dense(config_reader *r, const config *c) {
    const uint32_t list = config_get(r, r->text, "mlp_only_layers");
    uint64_t layer = 0;
    int dense = 0, listed = 0, same = 1;
    if (r->code || !list || r->j->nodes[list].type == JSON_NULL) return;
    if (r->j->nodes[list].type != JSON_ARRAY) config_must_be(r, list, "mlp_only_layers", "null");
    for (int i = 0; i < c->layers; i++) dense += c->layer[i].ffn.kind == LAYER_MLP;
    for (uint32_t node = list + 1; !r->code && node < r->j->nodes[list].next; node = r->j->nodes[node].next, listed++)
        same &= json_u64(r->j, node, &layer) && layer < (uint64_t)c->layers && c->layer[layer].ffn.kind == LAYER_MLP;
    if (!r->code && (!same || listed != dense)) config_fail(r, MOTE_EFORMAT, "mlp_only_layers lists other layers than mlp_layer_types calls dense");
}

static void laguna_read(config_reader *r, config *c) {
    static const char *const words[] = {"full_attention", "sliding_attention"};
    static const char heads[] = "num_attention_heads_per_layer";
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MOE);
    attention_shape *a = &l.mixer.of.attention;
    int window = 0;
    common_limits(r, c, 131072, 1e-6f);
    laguna_experts(r, c, &l.ffn.of.moe);
    common_attention(r, c, a, 0);
    a->normed = 1;
    a->gate_size = laguna_gates(r, c, a);
    config_int_or(r, "sliding_window", 0, INT_MAX, 512, &window);
    for (int i = 0; i < c->layers && !r->code; i++) {
        config_layer *to = &c->layer[i];
        const int slides = common_layer_word(r, c, "layer_types", i, words, 2, 0);
        *to = l;
        to->mixer.of.attention.heads = common_layer_number(r, c, heads, i, 1, 1 << 12, a->heads);
        to->mixer.of.attention.window = slides ? window : 0;
        common_check_heads(r, &to->mixer.of.attention, heads, "num_key_value_heads");
        common_rope_of_type(r, c, to, words, 2, slides, slides ? 1 : 0.5f, slides ? 1e4f : 5e5f);
        if (slides && !window && !r->code) config_fail(r, MOTE_EFORMAT, "sliding_window is 0, but layer_types[%d] is %s", i, words[1]);
    }
    common_dense_layers(r, c, 1);
    laguna_check_dense(r, c);
}

static void laguna_bind_layer(binder *b, int index, layer *l) {
    char where[128];
    if (l->ffn.kind == LAYER_MLP) {
        plain_bind_dense_layer(b, index, l);
        return;
    }
    plain_bind_layer(b, index, l, where, sizeof where);
    common_bind_moe(b, where, "mlp.experts.e_score_correction_bias", "mlp.shared_expert.", &l->ffn.w.moe);
}

static void laguna_bind(binder *b) {
    mote_model *m = b->m;
    common_bind_ends(b, bind_vector);
    for (int i = 0; i < m->c.layers && !b->code; i++) laguna_bind_layer(b, i, &m->layers[i]);
}
