/* families/qwen3_next.c: Qwen3-Next and Qwen3-Coder-Next (80B-A3B): what differs from families/qwen3_5_moe.c.

   config.json lists no layers, but says which are of full attention, and says nothing of the MTP layer. The projections into
   DeltaNet are fused: in_proj_qkvz has for each key head its q and k, v of its value heads, and their z; in_proj_ba b of its
   value heads, and their a. */

static const char *const qwen3_next_types[] = {"qwen3_next", NULL};

static void qwen3_next_read(config_reader *r, config *c) {
    qwen3_5_moe_read(r, c);
    config_int_or(r, "mtp_num_hidden_layers", 0, 1, 1, &c->mtp_layers);
}

static void qwen3_next_bind_in_proj(binder *b, const char *where, deltanet_weights *w) {
    const deltanet_shape *s = &w->shape;
    const int heads = s->value_heads / s->key_heads, key = s->key_dim, values = heads * s->value_dim, group = 2 * key + 2 * values;
    matrix *const qkvz[] = {&w->in_proj_qkv, &w->in_proj_z}, *const ba[] = {&w->in_proj_b, &w->in_proj_a};
    row_runs qkvz_runs[] = {{s->key_heads, group, {0, key, 2 * key}, {key, key, values}, 0},
                            {s->key_heads, group, {2 * key + values, 0, 0}, {values, 0, 0}, 0}};
    row_runs ba_runs[] = {{s->key_heads, 2 * heads, {0, 0, 0}, {heads, 0, 0}, 0},
                          {s->key_heads, 2 * heads, {heads, 0, 0}, {heads, 0, 0}, 0}};
    bind_fused(b, where, "linear_attn.in_proj_qkvz.weight", qkvz, qkvz_runs, 2, s->hidden, 0);
    bind_fused(b, where, "linear_attn.in_proj_ba.weight", ba, ba_runs, 2, s->hidden, 1);
}

static void qwen3_next_bind(binder *b) {
    qwen_bind(b, qwen3_next_bind_in_proj);
}
