/* families/common_keys.c: keys of config.json that several families have. Knows the shapes of layers, and nothing of any one family. */

/* The longest context and the norms' epsilon; context and eps are those of the family where config.json does not say. First of all: the
   parts of a model copy eps, and a rope may make the context longer. */
static void common_limits(config_reader *r, config *c, int context, float eps) {
    config_int_or(r, "max_position_embeddings", 1, 1 << 24, context, &c->context_max);
    config_float(r, r->text, "rms_norm_eps", 0, 1, eps, &c->eps);
}

/* The size of a head where config.json may leave it out: hidden_size is that of all heads together. */
static void common_head_dim(config_reader *r, const config *c, attention_shape *a) {
    uint32_t node = config_get(r, r->text, "head_dim");
    if (r->code) return;
    if (node && r->j->nodes[node].type != JSON_NULL) config_int(r, "head_dim", 1, 1 << 14, &a->head_dim);
    else if (c->hidden % a->heads)
        config_fail(r, MOTE_EFORMAT, "there is no head_dim, and hidden_size = %d is no multiple of num_attention_heads = %d", c->hidden,
                    a->heads);
    else a->head_dim = c->hidden / a->heads;
}

/* What scores are multiplied with, where config.json says it: 1 / sqrt(head_dim), as it is in all families. */
static void common_score_scale(config_reader *r, const attention_shape *a) {
    static const char *const keys[] = {"attention_multiplier", "query_pre_attn_scalar"};
    const float neutral[] = {1.0f / sqrtf((float)a->head_dim), (float)a->head_dim};
    for (int i = 0; i < 2 && !r->code; i++) {
        const uint32_t node = config_get(r, r->text, keys[i]);
        float value = neutral[i];
        if (node && r->j->nodes[node].type != JSON_NULL) config_float(r, r->text, keys[i], 0, 1e6, value, &value);
        if (!r->code && fabsf(value - neutral[i]) > 1e-4f * neutral[i])
            config_fail(r, MOTE_EUNSUPPORTED, "%s is %g, mote supports %s = %g only", keys[i], (double)value,
                        i ? "head_dim" : "1 / sqrt(head_dim)", (double)neutral[i]);
    }
}

/* Refuses heads that cannot be; key, kv_key: what says how many. */
static void common_check_heads(config_reader *r, const attention_shape *a, const char *key, const char *kv_key) {
    if (r->code) return;
    if (a->heads % a->kv_heads)
        config_fail(r, MOTE_EFORMAT, "%s = %d is no multiple of %s = %d", key, a->heads, kv_key, a->kv_heads);
    else if ((int64_t)a->heads * a->head_dim > 1 << 22)
        config_fail(r, MOTE_EUNSUPPORTED, "%s = %d times %d, a head's size, exceeds %d", key, a->heads, a->head_dim, 1 << 22);
}

/* What config.json may leave out, as of Llama's first model: head_dim, and num_key_value_heads where every head has keys and values of its
   own. */
enum { LACKS_HEAD_DIM = 1, LACKS_KV_HEADS = 2 };

/* Heads of attention. lacks: what may be absent, of these. */
static void common_attention(config_reader *r, const config *c, attention_shape *a, int lacks) {
    config_int(r, "num_attention_heads", 1, 1 << 12, &a->heads);
    if (lacks & LACKS_KV_HEADS) config_int_or(r, "num_key_value_heads", 1, 1 << 12, a->heads, &a->kv_heads);
    else config_int(r, "num_key_value_heads", 1, 1 << 12, &a->kv_heads);
    if (lacks & LACKS_HEAD_DIM) common_head_dim(r, c, a);
    else config_int(r, "head_dim", 1, 1 << 14, &a->head_dim);
    a->hidden = c->hidden;
    a->eps = c->eps;
    if (!r->code) common_score_scale(r, a);
    common_check_heads(r, a, "num_attention_heads", "num_key_value_heads");
}

/* Of a list of config.json with an entry for each layer that of layer i; 0: there is no list. */
static uint32_t common_layer_entry(config_reader *r, const config *c, const char *key, int i) {
    const uint32_t list = config_get(r, r->text, key);
    uint32_t node = list + 1;
    if (r->code || !list || r->j->nodes[list].type == JSON_NULL) return 0;
    if (r->j->nodes[list].type != JSON_ARRAY)
        config_fail(r, MOTE_EFORMAT, "%s must list num_hidden_layers = %d layers", key, c->layers);
    else if (r->j->nodes[list].size != (uint32_t)c->layers)
        config_fail(r, MOTE_EFORMAT, "%s lists %u layers, num_hidden_layers is %d", key, (unsigned)r->j->nodes[list].size, c->layers);
    if (r->code) return 0;
    for (int k = 0; k < i; k++) node = r->j->nodes[node].next;
    return node;
}

/* Of a list with a number for each layer that of layer i; `absent` where there is no list. */
static int common_layer_number(config_reader *r, const config *c, const char *key, int i, int low, int high, int absent) {
    const uint32_t node = common_layer_entry(r, c, key, i);
    uint64_t value = 0;
    if (!node) return absent;
    if (!json_u64(r->j, node, &value) || value < (uint64_t)low || value > (uint64_t)high)
        config_fail(r, MOTE_EFORMAT, "%s[%d] must be a whole number from %d to %d", key, i, low, high);
    return r->code ? absent : (int)value;
}

/* Of a list with a word for each layer: which of `count` words that of layer i is; `absent` where there is no list. */
static int common_layer_word(config_reader *r, const config *c, const char *key, int i, const char *const *words, int count, int absent) {
    char known[128];
    const uint32_t node = common_layer_entry(r, c, key, i);
    if (!node) return absent;
    for (int k = 0; k < count; k++)
        if (json_equals(r->j, node, words[k])) return k;
    config_fail(r, MOTE_EUNSUPPORTED, "%s[%d] is not %s", key, i, names_text(known, sizeof known, words, count, ", ", " or "));
    return absent;
}

/* A window of every layer's attention; none where no context is longer. absent: the window where config.json does not say, 0: none.
   layer_types says the same or nothing. After the rope, which may make the context longer, when the layers are there. */
static void common_window(config_reader *r, config *c, int absent) {
    static const char *const words[] = {"full_attention", "sliding_attention"};
    const uint32_t node = config_get(r, r->text, "sliding_window");
    int window = absent;
    if (r->code) return;
    if (node && r->j->nodes[node].type == JSON_NULL) window = 0;
    else if (node) config_int(r, "sliding_window", 1, INT_MAX, &window);
    const int slides = window && window < c->context_max;
    for (int i = 0; i < c->layers && !r->code; i++) {
        const int word = common_layer_word(r, c, "layer_types", i, words, 2, slides);
        if (word != slides && !(word && window) && !r->code)
            config_fail(r, MOTE_EUNSUPPORTED, word ? "layer_types[%d] is %s, but there is no sliding_window" : "layer_types[%d] is %s, but sliding_window is %d", i,
                        words[word], window);
        if (slides) c->layer[i].mixer.of.attention.window = window;
    }
}

/* Such a list where all layers must have one word. */
static void common_layer_list(config_reader *r, const config *c, const char *key, const char *word) {
    for (int i = 0; i < c->layers && !r->code; i++) common_layer_word(r, c, key, i, &word, 1, 0);
}

/* The number of experts: newer transformers write it as num_local_experts in all families, older ones in some. */
static void common_expert_count(config_reader *r, const char *key, int *count) {
    const char *const other = strcmp(key, "num_experts") ? "num_experts" : "num_local_experts";
    int again = 0;
    if (!config_get(r, r->text, other)) config_int(r, key, 1, 1 << 14, count);
    else config_int(r, other, 1, 1 << 14, count);
    config_int_or(r, key, 1, 1 << 14, *count, &again);
    if (!r->code && again != *count)
        config_fail(r, MOTE_EFORMAT, "%s is %d, but %s is %d", other, *count, key, again);
}

/* Of all layers together; released models have a fourth of it. They are given memory before a tensor of them has been seen. */
enum { MAX_EXPERTS = 1 << 17 };

/* Experts; their number, how many run for a token and their size have these keys. Without a shared one unless the caller reads its size. */
static void common_experts_by(config_reader *r, const config *c, moe_shape *e, const char *experts, const char *top_k, const char *size) {
    common_expert_count(r, experts, &e->experts);
    config_int(r, top_k, 1, 1 << 14, &e->top_k);
    config_int(r, size, 1, 1 << 20, &e->expert_size);
    if (!r->code && (int64_t)c->layers * e->experts > MAX_EXPERTS)
        config_fail(r, MOTE_EUNSUPPORTED, "num_hidden_layers times num_experts exceeds %d", MAX_EXPERTS);
    if (!r->code && e->top_k > e->experts) config_fail(r, MOTE_EFORMAT, "%s = %d of only %d experts", top_k, e->top_k, e->experts);
    e->hidden = c->hidden;
}

static void common_experts(config_reader *r, const config *c, moe_shape *e, const char *experts, const char *size) {
    common_experts_by(r, c, e, experts, "num_experts_per_tok", size);
}

/* The same in every layer. */
static void common_moe(config_reader *r, const config *c, moe_shape *e, const char *experts, const char *size) {
    common_experts(r, c, e, experts, size);
    config_get(r, r->text, "intermediate_size");       /* of dense layers, and there are none */
    common_layer_list(r, c, "mlp_layer_types", "sparse");
}

/* n_shared_experts experts that run for every token, without a gate: they are one of as many times the size. absent: how many where config.json
   does not say. After common_experts. */
static void common_shared_experts(config_reader *r, moe_shape *e, int absent) {
    int count;
    config_int_or(r, "n_shared_experts", 0, 1 << 10, absent, &count);
    e->shared_size = count * e->expert_size;
    e->shared_ungated = count > 0;
}

/* What weights of routed experts are multiplied with; absent: where config.json does not say. */
static void common_routed_scale(config_reader *r, moe_shape *e, const char *key, float absent) {
    config_float(r, r->text, key, 1e-6, 1e6, absent, &e->routed_scale);
    if (e->routed_scale == 1) e->routed_scale = 0;     /* as without it */
}

/* Groups of experts; `groups` and `kept` where config.json does not say. After common_experts. */
static void common_expert_groups(config_reader *r, moe_shape *e, int groups, int kept) {
    config_int_or(r, "n_group", 1, 1 << 10, groups, &groups);
    config_int_or(r, "topk_group", 1, 1 << 10, kept, &kept);
    if (r->code) return;
    if (kept > groups)
        config_fail(r, MOTE_EFORMAT, "topk_group = %d of only n_group = %d groups", kept, groups);
    else if (groups > 1 && (e->experts % groups || e->experts / groups < 2))
        config_fail(r, MOTE_EFORMAT, "%d experts cannot be divided into n_group = %d groups of two or more", e->experts, groups);
    else if (groups > 1 && e->top_k > e->experts / groups * kept)
        config_fail(r, MOTE_EFORMAT, "num_experts_per_tok = %d of only %d experts in topk_group = %d groups", e->top_k,
                    e->experts / groups * kept, kept);
    else if (kept < groups) e->groups = groups, e->groups_kept = kept;
}

/* The router of DeepSeek V3, which others took over: sigmoids, and a correction of each expert. */
static void common_sigmoid_router(config_reader *r, moe_shape *e) {
    config_only(r, r->text, "scoring_func", "sigmoid");
    config_only(r, r->text, "topk_method", "noaux_tc");
    e->of_all = !config_flag(r, config_get(r, r->text, "norm_topk_prob"), "norm_topk_prob", 1);
    e->sigmoid = e->corrected = 1;
}

/* Gives layers a dense FFN of intermediate_size in the experts' place: those that mlp_layer_types calls so; where that is absent as many as
   first_k_dense_replace says, `absent` where that is, too. After all layers have been given their experts. */
static void common_dense_layers(config_reader *r, config *c, int absent) {
    static const char *const words[] = {"sparse", "dense"};
    sublayer_shape dense = sublayer_shape_of(LAYER_MLP);
    int first, dense_layers = 0;
    config_int_or(r, "first_k_dense_replace", 0, 1 << 12, absent, &first);
    config_get(r, r->text, "intermediate_size");       /* of no layer, if all have experts */
    for (int i = 0; i < c->layers && !r->code; i++) {
        if (!common_layer_word(r, c, "mlp_layer_types", i, words, 2, i < first)) continue;
        if (!dense_layers++) config_int(r, "intermediate_size", 1, 1 << 20, &dense.of.mlp.size);
        dense.of.mlp.hidden = c->hidden;
        c->layer[i].ffn = dense;
    }
}

static void common_moe_check(config_reader *r, const moe_shape *e) {
    if (r->code) return;
    if (((int64_t)e->experts + 1) * e->expert_size > 1 << 30 || ((int64_t)e->experts + 1) * e->shared_size > 1 << 30)
        config_fail(r, MOTE_EUNSUPPORTED, "num_experts times an expert's size exceeds %d",
                    1 << 30);                /* loops over all rows of all experts count in int */
}

/* A dense FFN in every layer. */
static void common_mlp(config_reader *r, const config *c, mlp_shape *f) {
    common_layer_list(r, c, "mlp_layer_types", "dense");
    config_int(r, "intermediate_size", 1, 1 << 20, &f->size);
    f->hidden = c->hidden;
}
