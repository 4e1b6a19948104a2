/* families/glm4_moe_lite.c: GLM-4.7-Flash (30B-A3B): what config.json says. All is as in DeepSeek V3 (families/deepseek_v3.c), tensors' names,
   the eps of the latents' norms and the MTP layer too, with other sizes: one group of experts, no YaRN, a dense FFN in the first layer alone.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) input_layernorm
     c, r = kv_a_proj_with_mqa u;  c = c / rms(c) kv_a_layernorm;  r = rotate(r)
     a = q_a_proj u;  a = a / rms(a) q_a_layernorm;  q, t = q_b_proj a;  t = rotate(t)             of each head
     k, v = kv_b_proj c;  x += o_proj (softmax([q, t] . [k, r] / sqrt(size of a key)) v)           of each head, r of all
     u = x / rms(x) post_attention_layernorm
     x += down_proj (SiLU(gate_proj u) * up_proj u)                                                in the first layer
     x += shared_experts(u) + factor sum of w[e] expert[e](u), the num_experts_per_tok best of s + e_score_correction_bias, s = sigmoid(gate u),
          w = s of these, divided by their sum */

static const char *const glm4_moe_lite_types[] = {"glm4_moe_lite", NULL};

static void glm4_moe_lite_read(config_reader *r, config *c) {
    config_layer l = config_layer_of(LAYER_MLA, LAYER_MOE);
    common_limits(r, c, 202752, 1e-5f);
    deepseek_moe(r, c, &l.ffn.of.moe, 1, 1, 1.8f);
    deepseek_read(r, c, &l, 1e6f, 1);
}

static void glm4_moe_lite_bind(binder *b) {
    deepseek_v3_bind(b);
}
