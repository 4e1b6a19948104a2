/* checkpoint/info.c: what mote_model_info says of a model that has been bound, and the shapes its layers are given. */

static void model_shapes(mote_model *m) {
    const config *c = &m->c;
    m->deltanet.hidden = m->attention.hidden = m->moe.hidden = c->hidden;
    m->deltanet.eps = m->attention.eps = m->moe.eps = c->eps;
    m->deltanet.key_heads = c->key_heads;
    m->deltanet.value_heads = c->value_heads;
    m->deltanet.key_dim = c->key_dim;
    m->deltanet.value_dim = c->value_dim;
    m->deltanet.taps = c->taps;
    m->attention.heads = c->heads;
    m->attention.kv_heads = c->kv_heads;
    m->attention.head_dim = c->head_dim;
    m->attention.rotary_dim = c->rotary_dim;
    m->moe.experts = c->experts;
    m->moe.top_k = c->top_k;
    m->moe.expert_size = c->expert_size;
    m->moe.shared_size = c->shared_size;
}

static void model_module_dtypes(mote_model *m, const unsigned *seen) {
    for (int k = 0; k < MODULE_KINDS; k++) {
        char *to = m->module_dtypes[k];
        size_t n = 0;
        for (int f = 0; f < FORMAT_COUNT; f++) {
            if (!(seen[k] >> f & 1)) continue;
            n += (size_t)snprintf(to + n, sizeof m->module_dtypes[k] - n, "%s%s", n ? "+" : "", formats[f]->name);
            if (format_has_blocks((enum format)f))
                n += (size_t)snprintf(to + n, sizeof m->module_dtypes[k] - n, " %dx%d", m->c.fp8_rows, m->c.fp8_cols);
        }
        m->modules[k].name = module_names[k];
        m->modules[k].dtype = to;
    }
}

static void model_info(mote_model *m) {
    const config *c = &m->c;
    mote_info *o = &m->info;
    o->architecture = "qwen3_5_moe";
    o->layers = c->layers;
    for (int i = 0; i < c->layers; i++) o->attention_layers += c->is_attention[i];
    o->deltanet_layers = c->layers - o->attention_layers;
    o->mtp_layers = m->has_mtp;
    o->hidden_size = c->hidden;
    o->vocab_size = c->vocab;
    o->context_max = c->context_max;
    o->attention_heads = c->heads;
    o->kv_heads = c->kv_heads;
    o->head_dim = c->head_dim;
    o->rotary_dim = c->rotary_dim;
    o->deltanet_key_heads = c->key_heads;
    o->deltanet_value_heads = c->value_heads;
    o->deltanet_key_dim = c->key_dim;
    o->deltanet_value_dim = c->value_dim;
    o->experts = c->experts;
    o->experts_per_token = c->top_k;
    o->expert_size = c->expert_size;
    o->shared_expert_size = c->shared_size;
    o->tied_embeddings = c->tied;
    o->modules = m->modules;
    for (int k = 0; k < MODULE_KINDS; k++) {
        if (!m->modules[k].parameters) continue;
        o->parameters += m->modules[k].parameters;
        o->weight_bytes += m->modules[k].bytes;
        o->weight_bytes_per_token += m->modules[k].bytes_per_token;
        m->modules[o->module_count++] = m->modules[k];
    }
    o->kv_bytes_per_token = 2u * (uint64_t)o->attention_layers * (uint64_t)(c->kv_heads * c->head_dim) *
                            (m->gpu < 0 ? sizeof(float) : sizeof(uint16_t));
    o->state_bytes =
        (uint64_t)o->deltanet_layers * (uint64_t)c->value_heads * (uint64_t)(c->key_dim * c->value_dim) * sizeof(float);
}
