/* families/qwen3_moe.c: Qwen3 MoE (30B-A3B, 235B-A22B): what config.json says, what its tensors are called.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) input_layernorm
     q, k, v = q_proj u, k_proj u, v_proj u;  q = rotate(q / rms(q) q_norm);  k = rotate(k / rms(k) k_norm)      of each head
     x += o_proj (softmax(q . k / sqrt(head_dim)) v)
     u = x / rms(x) post_attention_layernorm
     x += sum of w[e] expert[e](u) over the num_experts_per_tok best of r = gate u, w = softmax of these, or, without norm_topk_prob, of all
          expert(u) = down_proj (SiLU(gate_proj u) * up_proj u)

   Layers that config.json names have one dense FFN in place of the experts. What begins with plain_ serves other plain transformers as
   well: Qwen3's dense models (families/qwen3.c), Llama, Mistral and Mixtral. */

static const char *const qwen3_moe_types[] = {"qwen3_moe", NULL};

/* All layers, which are alike; l: one of them, of which the FFN has been read. normed: with norms of queries and keys, as all of
   Qwen3; else as Llama. lacks: see common_attention. theta: where config.json does not say. */
static void plain_read(config_reader *r, config *c, config_layer *l, int normed, int lacks, float theta) {
    attention_shape *a = &l->mixer.of.attention;
    common_attention(r, c, a, lacks);
    a->normed = normed;
    common_rope(r, c, l, 1, theta);
    config_only(r, r->text, "use_qk_norm", normed ? "true" : "false");
    if (!r->code && a->rotary_dim != a->head_dim)
        config_fail(r, MOTE_EUNSUPPORTED, "partial_rotary_factor is %g, mote supports 1 only", (double)a->rotary_dim / a->head_dim);
    for (int i = 0; i < c->layers; i++) c->layer[i] = *l;
}

/* Layers with a dense FFN of intermediate_size in the experts' place: those that mlp_only_layers lists, from 0, and of each
   decoder_sparse_step all but the last. */
static void qwen3_moe_dense_layers(config_reader *r, config *c) {
    const uint32_t step_node = config_get(r, r->text, "decoder_sparse_step"), list = config_get(r, r->text, "mlp_only_layers");
    sublayer_shape dense = sublayer_shape_of(LAYER_MLP);
    uint64_t layer = 0;
    int step = 1;
    if (step_node && !config_is(r->j, step_node, "1")) config_int_or(r, "decoder_sparse_step", 1, 1 << 12, 1, &step);
    if (list && r->j->nodes[list].type != JSON_ARRAY) config_must_be(r, list, "mlp_only_layers", "null");
    const uint32_t end = list && !r->code ? r->j->nodes[list].next : 0;
    if (r->code || (step == 1 && end <= list + 1)) return;
    config_int(r, "intermediate_size", 1, 1 << 20, &dense.of.mlp.size);
    dense.of.mlp.hidden = c->hidden;
    for (int i = 0; i < c->layers; i++)
        if ((i + 1) % step) c->layer[i].ffn = dense;
    for (uint32_t node = list + 1; node < end && !r->code; node = r->j->nodes[node].next)
        if (!json_u64(r->j, node, &layer))
            config_fail(r, MOTE_EFORMAT, "mlp_only_layers must list layers by number");
        else if (layer < (uint64_t)c->layers) c->layer[layer].ffn = dense;
}

static void qwen3_moe_read(config_reader *r, config *c) {
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MOE);
    moe_shape *e = &l.ffn.of.moe;
    common_limits(r, c, 32768, 1e-6f);
    common_moe(r, c, e, "num_experts", "moe_intermediate_size");
    common_moe_check(r, e);
    e->of_all = !config_flag(r, config_get(r, r->text, "norm_topk_prob"), "norm_topk_prob", 0);
    plain_read(r, c, &l, 1, LACKS_HEAD_DIM, 1e4f);
    common_layer_list(r, c, "layer_types", "full_attention");
    qwen3_moe_dense_layers(r, c);
}

/* The attention of layer `index`, and both norms; where: what all names of the layer begin with. */
static void plain_bind_layer(binder *b, int index, layer *l, char *where, size_t size) {
    bind_for_layer(b, index);
    snprintf(where, size, "%slayers.%d.", b->prefix, index);
    common_bind_norms(b, where, l, bind_vector);
    bind_as(b, MODULE_ATTENTION, 1, 1);
    common_bind_attention(b, where, &l->mixer.w.attention, bind_vector);
    bind_unneeded(b, where, "self_attn.rotary_emb.inv_freq");      /* of old checkpoints: config.json says the same */
}

static void plain_bind_dense_layer(binder *b, int index, layer *l) {
    char where[128];
    plain_bind_layer(b, index, l, where, sizeof where);
    common_bind_mlp(b, where, &l->ffn.w.mlp);
}

static void qwen3_moe_bind_layer(binder *b, int index, layer *l) {
    moe_weights *e = &l->ffn.w.moe;
    char where[128];
    if (l->ffn.kind == LAYER_MLP) {
        plain_bind_dense_layer(b, index, l);
        return;
    }
    plain_bind_layer(b, index, l, where, sizeof where);
    bind_as(b, MODULE_ROUTER, 1, 1);
    bind_kept(b, where, "mlp.gate.weight", &e->router, e->shape.experts, e->shape.hidden);
    bind_as(b, MODULE_EXPERTS, (uint64_t)e->shape.top_k, (uint64_t)e->shape.experts);
    common_bind_experts(b, where, e);
}

static void qwen3_moe_bind(binder *b) {
    mote_model *m = b->m;
    common_bind_ends(b, bind_vector);
    for (int i = 0; i < m->c.layers && !b->code; i++) qwen3_moe_bind_layer(b, i, &m->layers[i]);
}
