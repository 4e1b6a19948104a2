/* families/qwen3_moe.c: Qwen3 MoE (30B-A3B, 235B-A22B): what config.json says, what its tensors are called.

   Every layer is attention without gates, all of a head rotated, and a mixture of experts without a shared one. Norms' weights
   are what is multiplied with. There is no MTP layer. */

static const char *const qwen3_moe_types[] = {"qwen3_moe", NULL};

static void qwen3_moe_read(config_reader *r, config *c) {
    attention_shape *a = &c->shapes.attention;
    moe_shape *e = &c->shapes.moe;
    uint32_t renormalised = json_get(r->j, r->text, "norm_topk_prob");
    common_attention(r, c, a);
    common_rope(r, a, 1, 1e6f);
    common_moe(r, c, e);
    common_moe_check(r, e);
    common_moe_flags(r);
    config_only(r, r->text, "use_sliding_window", "false");
    e->of_all = !config_true(r->j, renormalised);
    c->mixers = (unsigned char *)malloc((size_t)c->layers + 1);
    if (c->mixers) memset(c->mixers, LAYER_ATTENTION, (size_t)c->layers);
    else if (!r->code) r->code = fail_memory(r->err);
}

static void qwen3_moe_bind_layer(binder *b, int index, layer *l) {
    attention_weights *a = &l->mixer.w.attention;
    moe_weights *e = &l->ffn.w.moe;
    char where[128];
    snprintf(where, sizeof where, "%slayers.%d.", b->prefix, index);
    l->mixer.kind = LAYER_ATTENTION;
    l->ffn.kind = LAYER_MOE;
    a->shape = b->m->c.shapes.attention;
    e->shape = b->m->c.shapes.moe;
    common_layer_experts(b->m, index, e);
    bind_as(b, MODULE_NORMS, 1, 1);
    bind_vector(b, where, "input_layernorm.weight", &a->input_norm, a->shape.hidden);
    bind_vector(b, where, "post_attention_layernorm.weight", &e->norm, e->shape.hidden);
    bind_as(b, MODULE_ATTENTION, 1, 1);
    common_bind_attention(b, where, a, bind_vector);
    bind_as(b, MODULE_ROUTER, 1, 1);
    bind_kept(b, where, "mlp.gate.weight", &e->router, e->shape.experts, e->shape.hidden);
    bind_as(b, MODULE_EXPERTS, (uint64_t)e->shape.top_k, (uint64_t)e->shape.experts);
    common_bind_experts(b, where, e);
}

static void qwen3_moe_bind(binder *b) {
    mote_model *m = b->m;
    common_allocate_experts(b, m->c.shapes.moe.experts, 0);
    common_bind_ends(b, bind_vector);
    for (int i = 0; i < m->c.layers && !b->code; i++) qwen3_moe_bind_layer(b, i, &m->layers[i]);
}
