/* families/mixtral.c: Mixtral (8x7B, 8x22B): what config.json says, what its tensors are called. Attention is Llama's; the experts have
   names of their own: w1 is the gate, w3 up, w2 down.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) input_layernorm
     q, k, v = rotate(q_proj u), rotate(k_proj u), v_proj u                                                        of each head
     x += o_proj (softmax(q . k / sqrt(head_dim)) v)
     u = x / rms(x) post_attention_layernorm
     x += sum of w[e] expert[e](u) over the num_experts_per_tok best of r = gate u, w = softmax of these
          expert(u) = w2 (SiLU(w1 u) * w3 u) */

static const char *const mixtral_types[] = {"mixtral", NULL};

static void mixtral_read(config_reader *r, config *c) {
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MOE);
    moe_shape *e = &l.ffn.of.moe;
    common_limits(r, c, 131072, 1e-5f);
    common_moe(r, c, e, "num_local_experts", "intermediate_size");
    common_moe_check(r, e);
    plain_read(r, c, &l, 0, LACKS_HEAD_DIM | LACKS_KV_HEADS, 1e6f);
    common_window(r, c, 0);
}

static void mixtral_bind_layer(binder *b, int index, layer *l) {
    moe_weights *e = &l->ffn.w.moe;
    const moe_shape *s = &e->shape;
    char where[128], all[192], expert[192];
    plain_bind_layer(b, index, l, where, sizeof where);
    bind_as(b, MODULE_ROUTER, 1, 1);
    bind_kept(b, where, "block_sparse_moe.gate.weight", &e->router, s->experts, s->hidden);
    bind_as(b, MODULE_EXPERTS, (uint64_t)s->top_k, (uint64_t)s->experts);
    snprintf(all, sizeof all, "%sblock_sparse_moe.experts", where);
    b->together = all;
    for (int i = 0; i < s->experts && !b->code; i++) {
        snprintf(expert, sizeof expert, "%sblock_sparse_moe.experts.%d.", where, i);
        bind_matrix(b, expert, "w1.weight", &e->gate_proj[i], s->expert_size, s->hidden, DIVIDED_ROWS);
        bind_matrix(b, expert, "w3.weight", &e->up_proj[i], s->expert_size, s->hidden, DIVIDED_ROWS);
        bind_matrix(b, expert, "w2.weight", &e->down_proj[i], s->hidden, s->expert_size, DIVIDED_COLS);
    }
    b->together = NULL;
}

static void mixtral_bind(binder *b) {
    mote_model *m = b->m;
    common_bind_ends(b, bind_vector);
    for (int i = 0; i < m->c.layers && !b->code; i++) mixtral_bind_layer(b, i, &m->layers[i]);
}
