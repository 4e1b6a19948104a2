/* families/qwen3_next.c: Qwen3-Next and Qwen3-Coder-Next (80B-A3B): what differs from families/qwen3_5_moe.c.

   config.json lists no layers, but says which are of full attention, and says nothing of the MTP layer. The projections into
   DeltaNet are fused: in_proj_qkvz has for each key head its q and k, v of its value heads, and their z; in_proj_ba b of its
   value heads, and their a.

   A layer, of the residual x, with these projections taken apart; rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     u = x / rms(x) (1 + input_layernorm)
     DeltaNet:  q, k, v = SiLU(conv1d(in_proj_qkv u));  beta = sigmoid(in_proj_b u);  g = -exp(A_log) softplus(in_proj_a u + dt_bias)
                S = exp(g) S;  S = S + beta (v - S k) k^T;  o = S q      of each head, with q / |q| / sqrt(d) and k / |k|
                x += out_proj (o / rms(o) norm SiLU(in_proj_z u))
     attention: q, gate = q_proj u;  k, v = k_proj u, v_proj u;  q = rotate(q / rms(q) (1 + q_norm));  k = rotate(k / rms(k) (1 + k_norm))
                x += o_proj (softmax(q . k / sqrt(d)) v sigmoid(gate))
     u = x / rms(x) (1 + post_attention_layernorm)
     x += sum of w[e] expert[e](u) over the num_experts_per_tok best of r = gate u, w = softmax of these
     x += sigmoid(shared_expert_gate u) shared_expert(u)
          expert(u) = down_proj (SiLU(gate_proj u) * up_proj u) */

static const char *const qwen3_next_types[] = {"qwen3_next", NULL};

static void qwen3_next_read(config_reader *r, config *c) {
    qwen3_5_moe_read(r, c);
    config_int_or(r, "mtp_num_hidden_layers", 0, 1, 1, &c->mtp_layers);
    for (int i = 0; i <= c->layers; i++) c->layer[i].rope.height = c->layer[i].rope.width = 0;     /* text alone */
}

static void qwen3_next_bind_in_proj(binder *b, const char *where, deltanet_weights *w) {
    static const char qkvz_name[] = "linear_attn.in_proj_qkvz.weight", ba_name[] = "linear_attn.in_proj_ba.weight";
    const deltanet_shape *s = &w->shape;
    const int heads = s->value_heads / s->key_heads, key = s->key_dim, values = heads * s->value_dim, group = 2 * key + 2 * values;
    const row_runs qkv = {.groups = s->key_heads, .group_rows = group, .at = {0, key, 2 * key}, .rows = {key, key, values}, .first = 0};
    tensor_slice qkvz = slice_all(s->key_heads * group, s->hidden), ba = slice_all(s->key_heads * 2 * heads, s->hidden);
    slice_divide(b, &qkvz, DIVIDED_ROWS);
    slice_divide(b, &ba, DIVIDED_ROWS);
    qkvz.runs = qkv;
    bind_slice(b, where, qkvz_name, &qkvz, 0, &w->in_proj_qkv);
    qkvz.runs = rows_of(&qkvz, s->key_heads, 2 * key + values, values);
    bind_slice(b, where, qkvz_name, &qkvz, 0, &w->in_proj_z);
    ba.runs = rows_of(&ba, s->key_heads, 0, heads);
    bind_slice(b, where, ba_name, &ba, 1, &w->in_proj_b);
    ba.runs = rows_of(&ba, s->key_heads, heads, heads);
    bind_slice(b, where, ba_name, &ba, 1, &w->in_proj_a);
}

static void qwen3_next_bind(binder *b) {
    qwen_bind(b, qwen3_next_bind_in_proj);
}
