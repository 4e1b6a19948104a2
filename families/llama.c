/* families/llama.c: Llama 2 and 3, and what is built like them (SmolLM2), and Mistral: what config.json says. All is as in Qwen3's dense
   models (families/qwen3.c), tensors' names too, but that queries and keys have no norms.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) input_layernorm
     q, k, v = rotate(q_proj u), rotate(k_proj u), v_proj u                                                        of each head
     x += o_proj (softmax(q . k / sqrt(head_dim)) v)
     u = x / rms(x) post_attention_layernorm
     x += down_proj (SiLU(gate_proj u) * up_proj u) */

static const char *const llama_types[] = {"llama", NULL};

static void llama_dense_read(config_reader *r, config *c, int context) {
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MLP);
    common_limits(r, c, context, 1e-6f);
    common_mlp(r, c, &l.ffn.of.mlp);
    plain_read(r, c, &l, 0, LACKS_HEAD_DIM | LACKS_KV_HEADS, 1e4f);
}

static void llama_read(config_reader *r, config *c) {
    llama_dense_read(r, c, 2048);
    common_layer_list(r, c, "layer_types", "full_attention");
}

static void llama_bind(binder *b) {
    qwen3_bind(b);
}

/* ---- Mistral. 7B v0.1 and its like, as Zephyr, attend to a window; later ones say that there is none ---- */

static const char *const mistral_types[] = {"mistral", NULL};

static void mistral_read(config_reader *r, config *c) {
    llama_dense_read(r, c, 131072);
    common_window(r, c, 4096);
}

static void mistral_bind(binder *b) {
    qwen3_bind(b);
}
