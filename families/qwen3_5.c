/* families/qwen3_5.c: Qwen3.5, Qwen3.6 and Qwen3.8 dense (27B, 9B, 4B, 2B, 0.8B): what config.json says. All is as in the mixtures of
   experts (families/qwen3_5_moe.c), but for a dense FFN in every layer, the MTP layer's too.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) (1 + input_layernorm)
     DeltaNet:  q, k, v = SiLU(conv1d(in_proj_qkv u));  beta = sigmoid(in_proj_b u);  g = -exp(A_log) softplus(in_proj_a u + dt_bias)
                S = exp(g) S;  S = S + beta (v - S k) k^T;  o = S q      of each head, with q / |q| / sqrt(d) and k / |k|
                x += out_proj (o / rms(o) norm SiLU(in_proj_z u))
     attention: q, gate = q_proj u;  k, v = k_proj u, v_proj u;  q = rotate(q / rms(q) (1 + q_norm));  k = rotate(k / rms(k) (1 + k_norm))
                x += o_proj (softmax(q . k / sqrt(d)) v sigmoid(gate))
     u = x / rms(x) (1 + post_attention_layernorm)
     x += down_proj (SiLU(gate_proj u) * up_proj u) */

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
