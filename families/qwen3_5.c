/* families/qwen3_5.c: Qwen3.5, Qwen3.6 and Qwen3.8 dense (27B, 9B, 4B, 2B, 0.8B): what config.json says. All is as in the mixtures of
   experts (families/qwen3_5_moe.c), but for a dense FFN in every layer, the MTP layer's too. */

static const char *const qwen3_5_types[] = {"qwen3_5", "qwen3_5_text", NULL};

static void qwen3_5_read(config_reader *r, config *c) {
    sublayer_shape ffn = sublayer_shape_of(LAYER_MLP);
    common_limits(r, c, 32768, 1e-6f);
    common_mlp(r, c, &ffn.of.mlp);
    qwen_read(r, c, &ffn);
}

static void qwen3_5_bind(binder *b) {
    qwen_bind(b, qwen_bind_in_proj);
}
