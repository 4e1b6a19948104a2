/* checkpoint/config.c: config.json to numbers that have been checked. Knows nothing of tensors.

   config.json, flat or with the text model inside "text_config". Sizes have no defaults: a wrong guess would be a wrong
   model. What mote does not implement is refused by name. */

typedef struct config {
    int layers, hidden, vocab, context_max, mtp_layers;
    int heads, kv_heads, head_dim, rotary_dim;
    int key_heads, value_heads, key_dim, value_dim, taps;
    int experts, top_k, expert_size, shared_size;
    int tied, fp8_rows, fp8_cols;
    float eps, theta;
    unsigned char *is_attention;               /* [layers] */
    int32_t eos;                               /* eos_token_id, -1 when there is none */
} config;

typedef struct config_reader {
    const json *j;
    uint32_t text;                             /* the object with the text model's fields */
    const char *dir;
    mote_error *err;
    int code;                                  /* the first failure; later calls do nothing */
} config_reader;

static void config_int(config_reader *r, const char *key, int low, int high, int *out) {
    uint64_t value;
    uint32_t node = json_get(r->j, r->text, key);
    if (r->code) return;
    if (!node) r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: %s is missing", r->dir, key);
    else if (!json_u64(r->j, node, &value) || value < (uint64_t)low || value > (uint64_t)high)
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: %s must be a whole number from %d to %d", r->dir, key,
                       low, high);
    else *out = (int)value;
}

static void config_int_or(config_reader *r, const char *key, int low, int high, int fallback, int *out) {
    *out = fallback;
    if (json_get(r->j, r->text, key)) config_int(r, key, low, high, out);
}

static void config_float(config_reader *r, uint32_t object, const char *key, double low, double high, float fallback,
                         float *out) {
    double value = fallback;
    uint32_t node = json_get(r->j, object, key);
    if (r->code) return;
    int code = node ? json_double(r->j, node, &value) : MOTE_OK;
    if (code == MOTE_ENOMEM) r->code = fail_memory(r->err);
    else if (code || !(value >= low && value <= high))
        r->code =
            fail(r->err, MOTE_EFORMAT, "%s/config.json: %s must be a number from %g to %g", r->dir, key, low, high);
    *out = (float)value;
}

/* A field that must be absent or hold one value. */
static void config_only(config_reader *r, uint32_t object, const char *key, const char *value) {
    uint32_t node = json_get(r->j, object, key);
    if (r->code || !node || json_equals(r->j, node, value)) return;
    const json_node *n = &r->j->nodes[node];
    const char *text = r->j->text + n->start;
    if (n->type != JSON_STRING && n->type < JSON_ARRAY && strlen(value) == n->size && !memcmp(text, value, n->size))
        return;
    if (n->type == JSON_NULL) return;
    r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: %s is %.*s, mote supports %s only", r->dir, key,
                   n->type < JSON_ARRAY ? (int)(n->size < 60 ? n->size : 60) : 6,
                   n->type < JSON_ARRAY ? text : "a list", value);
}

static void config_layer_types(config_reader *r, config *c) {
    uint32_t types = json_get(r->j, r->text, "layer_types");
    int interval;
    config_int_or(r, "full_attention_interval", 1, 1 << 20, 4, &interval);
    if (r->code) return;
    c->is_attention = (unsigned char *)calloc((size_t)c->layers, 1);
    if (!c->is_attention) {
        r->code = fail_memory(r->err);
        return;
    }
    for (int i = 0; i < c->layers; i++) c->is_attention[i] = (i + 1) % interval == 0;
    if (!types || r->j->nodes[types].type == JSON_NULL) return;
    if (r->j->nodes[types].type != JSON_ARRAY || r->j->nodes[types].size != (uint32_t)c->layers) {
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: layer_types must list num_hidden_layers = %d layers",
                       r->dir, c->layers);
        return;
    }
    uint32_t node = types + 1;
    for (int i = 0; i < c->layers; i++, node = r->j->nodes[node].next) {
        c->is_attention[i] = (unsigned char)json_equals(r->j, node, "full_attention");
        if (c->is_attention[i] || json_equals(r->j, node, "linear_attention")) continue;
        r->code = fail(r->err, MOTE_EUNSUPPORTED,
                       "%s/config.json: layer_types[%d] is neither linear_attention nor full_attention", r->dir, i);
        return;
    }
}

static void config_rope(config_reader *r, config *c) {
    float factor = 0.25f;
    uint32_t rope = json_get(r->j, r->text, "rope_parameters");
    if (!rope || r->j->nodes[rope].type != JSON_OBJECT) rope = r->text;
    config_only(r, rope, "rope_type", "default");
    config_only(r, r->text, "rope_scaling", "null");
    config_float(r, r->text, "partial_rotary_factor", 0, 1, factor, &factor);
    config_float(r, rope, "partial_rotary_factor", 0, 1, factor, &factor);
    config_float(r, r->text, "rope_theta", 1, 1e12, 1e7f, &c->theta);
    config_float(r, rope, "rope_theta", 1, 1e12, c->theta, &c->theta);
    if (r->code) return;
    c->rotary_dim = (int)((float)c->head_dim * factor);
    if (c->rotary_dim % 2)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: head_dim * partial_rotary_factor = %d is odd",
                       r->dir, c->rotary_dim);
}

/* quantization_config: only the official block FP8; what each tensor really is, is seen when it is bound. */
static void config_quantization(config_reader *r, config *c) {
    uint32_t q = json_get(r->j, 0, "quantization_config"), size;
    uint64_t rows = 128, cols = 128;
    if (!q) q = json_get(r->j, r->text, "quantization_config");
    if (q && r->j->nodes[q].type == JSON_OBJECT) {
        config_only(r, q, "quant_method", "fp8");
        config_only(r, q, "fmt", "e4m3");
        size = json_get(r->j, q, "weight_block_size");
        if (!r->code && size &&
            (r->j->nodes[size].type != JSON_ARRAY || r->j->nodes[size].size != 2 || !json_u64(r->j, size + 1, &rows) ||
             !json_u64(r->j, size + 2, &cols) || !rows || !cols || rows > 1 << 20 || cols > 1 << 20))
            r->code = fail(r->err, MOTE_EUNSUPPORTED,
                           "%s/config.json: weight_block_size must be [rows, cols] (per-tensor FP8 is not supported)",
                           r->dir);
    }
    c->fp8_rows = (int)rows;
    c->fp8_cols = (int)cols;
}

static void config_sizes(config_reader *r, config *c) {
    config_int(r, "num_hidden_layers", 1, 1 << 12, &c->layers);
    config_int(r, "hidden_size", 1, 1 << 20, &c->hidden);
    config_int(r, "vocab_size", 1, 1 << 24, &c->vocab);
    config_int_or(r, "max_position_embeddings", 1, 1 << 24, 32768, &c->context_max);
    config_int_or(r, "mtp_num_hidden_layers", 0, 1, 0, &c->mtp_layers);
    config_int(r, "num_attention_heads", 1, 1 << 12, &c->heads);
    config_int(r, "num_key_value_heads", 1, 1 << 12, &c->kv_heads);
    config_int(r, "head_dim", 1, 1 << 14, &c->head_dim);
    config_int(r, "linear_num_key_heads", 1, 1 << 12, &c->key_heads);
    config_int(r, "linear_num_value_heads", 1, 1 << 12, &c->value_heads);
    config_int(r, "linear_key_head_dim", 1, MAX_KEY_DIM, &c->key_dim);
    config_int(r, "linear_value_head_dim", 1, 1 << 12, &c->value_dim);
    config_int_or(r, "linear_conv_kernel_dim", 1, 64, 4, &c->taps);
    config_int(r, "num_experts", 1, 1 << 14, &c->experts);
    config_int(r, "num_experts_per_tok", 1, 1 << 14, &c->top_k);
    config_int(r, "moe_intermediate_size", 1, 1 << 20, &c->expert_size);
    config_int(r, "shared_expert_intermediate_size", 1, 1 << 20, &c->shared_size);
    config_float(r, r->text, "rms_norm_eps", 0, 1, 1e-6f, &c->eps);
}

static void config_consistency(config_reader *r, const config *c) {
    if (r->code) return;
    if (c->heads % c->kv_heads)
        r->code = fail(r->err, MOTE_EFORMAT,
                       "%s/config.json: num_attention_heads = %d is no multiple of num_key_value_heads = %d", r->dir,
                       c->heads, c->kv_heads);
    else if (c->value_heads % c->key_heads)
        r->code = fail(r->err, MOTE_EFORMAT,
                       "%s/config.json: linear_num_value_heads = %d is no multiple of linear_num_key_heads = %d",
                       r->dir, c->value_heads, c->key_heads);
    else if (c->top_k > c->experts)
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: num_experts_per_tok = %d of only num_experts = %d",
                       r->dir, c->top_k, c->experts);
    else if ((int64_t)c->heads * c->head_dim > 1 << 22 || (int64_t)c->value_heads * c->value_dim > 1 << 22 ||
             (int64_t)c->key_heads * c->key_dim > 1 << 22)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: heads times head size exceeds %d", r->dir, 1 << 22);
    else if (((int64_t)c->experts + 1) * c->expert_size > 1 << 30 || ((int64_t)c->experts + 1) * c->shared_size > 1 << 30)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: num_experts times an expert's size exceeds %d", r->dir,
                       1 << 30);                /* loops over all rows of all experts count in int */
}

static void config_flags(config_reader *r, config *c) {
    uint64_t eos;
    uint32_t tied = json_get(r->j, 0, "tie_word_embeddings"), end = json_get(r->j, r->text, "eos_token_id");
    uint32_t dense = json_get(r->j, r->text, "mlp_only_layers");
    if (!tied) tied = json_get(r->j, r->text, "tie_word_embeddings");
    c->tied = tied && r->j->nodes[tied].type == JSON_TRUE;
    c->eos = end && json_u64(r->j, end, &eos) && eos < (uint64_t)c->vocab ? (int32_t)eos : -1;
    config_only(r, r->text, "hidden_act", "silu");
    config_only(r, r->text, "attention_bias", "false");
    config_only(r, r->text, "attn_output_gate", "true");
    config_only(r, r->text, "output_gate_type", "swish");
    config_only(r, r->text, "decoder_sparse_step", "1");
    config_only(r, r->text, "mtp_use_dedicated_embeddings", "false");
    config_only(r, r->text, "norm_topk_prob", "true");
    if (!r->code && dense && r->j->nodes[dense].type == JSON_ARRAY && r->j->nodes[dense].size)
        r->code = fail(r->err, MOTE_EUNSUPPORTED,
                       "%s/config.json: mlp_only_layers: layers without experts are not supported", r->dir);
}

/* Part of a model's fingerprint: all that config.json says of it. */
static uint64_t config_fingerprint(const config *c) {
    const int32_t numbers[] = {c->layers,    c->hidden,      c->vocab,       c->context_max, c->mtp_layers, c->heads,
                               c->kv_heads,  c->head_dim,    c->rotary_dim,  c->key_heads,   c->value_heads, c->key_dim,
                               c->value_dim, c->taps,        c->experts,     c->top_k,       c->expert_size, c->shared_size,
                               c->tied,      c->fp8_rows,    c->fp8_cols,    c->eos};
    const float reals[] = {c->eps, c->theta};
    uint64_t hash = fnv1a(fnv1a(FNV_START, numbers, sizeof numbers), reals, sizeof reals);
    return fnv1a(hash, c->is_attention, (size_t)c->layers);
}

/* Reads dir/config.json. On success c->is_attention is the caller's to free. */
static int config_read(config *c, const char *dir, mote_error *err) {
    buf text;
    json j;
    config_reader r;
    memset(c, 0, sizeof *c);
    memset(&text, 0, sizeof text);
    int code = read_json(dir, "config.json", &text, &j, err);
    if (code) return code;
    memset(&r, 0, sizeof r);
    r.j = &j;
    r.dir = dir;
    r.err = err;
    r.text = json_get(&j, 0, "text_config");
    uint32_t type = json_get(&j, 0, "model_type");
    if (!type) r.code = fail(err, MOTE_EFORMAT, "%s/config.json: model_type is missing", dir);
    else if (!json_equals(&j, type, "qwen3_5_moe") && !json_equals(&j, type, "qwen3_5_moe_text"))
        r.code = fail(err, MOTE_EUNSUPPORTED,
                      "%s/config.json: model_type \"%.*s\" is not known, mote runs qwen3_5_moe and qwen3_5_moe_text",
                      dir, (int)(j.nodes[type].size < 60 ? j.nodes[type].size : 60), j.text + j.nodes[type].start);
    else if (r.text && j.nodes[r.text].type != JSON_OBJECT)
        r.code = fail(err, MOTE_EFORMAT, "%s/config.json: text_config is not an object", dir);
    config_sizes(&r, c);
    config_consistency(&r, c);
    config_flags(&r, c);
    config_rope(&r, c);
    config_quantization(&r, c);
    config_layer_types(&r, c);
    if (r.code) {
        free(c->is_attention);
        c->is_attention = NULL;
    }
    json_free(&j);
    buf_free(&text);
    return r.code;
}
