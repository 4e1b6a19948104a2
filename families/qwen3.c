/* families/qwen3.c: Qwen3 dense (0.6B to 32B): what config.json says, what its tensors are called. All is as in the mixtures of experts
   (families/qwen3_moe.c), but for a dense FFN in every layer.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) input_layernorm
     q, k, v = q_proj u, k_proj u, v_proj u;  q = rotate(q / rms(q) q_norm);  k = rotate(k / rms(k) k_norm)      of each head
     x += o_proj (softmax(q . k / sqrt(head_dim)) v)
     u = x / rms(x) post_attention_layernorm
     x += down_proj (SiLU(gate_proj u) * up_proj u) */

static const char *const qwen3_types[] = {"qwen3", NULL};

static void qwen3_read(config_reader *r, config *c) {
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MLP);
    common_limits(r, c, 32768, 1e-6f);
    common_mlp(r, c, &l.ffn.of.mlp);
    plain_read(r, c, &l, 1, 0, 1e4f);
    common_layer_list(r, c, "layer_types", "full_attention");
}

static void qwen3_bind(binder *b) {
    mote_model *m = b->m;
    common_bind_ends(b, bind_vector);
    for (int i = 0; i < m->c.layers && !b->code; i++) plain_bind_dense_layer(b, i, &m->layers[i]);
}
