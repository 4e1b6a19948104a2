/* families/qwen3_next.c: Qwen3-Next and Qwen3-Coder-Next (80B-A3B): what differs from families/qwen3_5_moe.c.

   config.json lists no layers, but says which are of full attention, and says nothing of the MTP layer. The projections into
   DeltaNet are fused: in_proj_qkvz has for each key head its q and k, v of its value heads, and their z; in_proj_ba b of its
   value heads, and their a. */

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
