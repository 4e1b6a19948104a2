/* families/config.c: config.json -> config: what all families have in common, here, and the rest by its family.

   config.json is flat, or has the text model inside "text_config". Sizes have no defaults: a wrong guess would be a wrong model.
   Other keys that are absent count as transformers has them for that family.
   A feature that mote does not implement is refused by name. */

/* Common to all families: the sizes of the residual stream and of the vocabulary. */
static void config_common(config_reader *r, config *c) {
    config_int(r, "num_hidden_layers", 1, 1 << 12, &c->layers);
    config_int(r, "hidden_size", 1, 1 << 20, &c->hidden);
    config_int(r, "vocab_size", 1, 1 << 24, &c->vocab);
}

/* Beside a text_config, transformers' models of text and images take tie_word_embeddings from the top, those of text alone from
   text_config. Either may say so here: a head that is in the folder counts nevertheless (common_untie). */
static void config_ends(config_reader *r, config *c) {
    uint64_t eos;
    static const char tied[] = "tie_word_embeddings";
    const uint32_t end = json_get(r->j, r->text, "eos_token_id");
    c->tied = config_flag(r, json_get(r->j, 0, tied), tied, 0) | config_flag(r, json_get(r->j, r->text, tied), tied, 0);
    c->eos = end && json_u64(r->j, end, &eos) && eos < (uint64_t)c->vocab ? (int32_t)eos : -1;
}

/* Part of a model's fingerprint: all that config.json says of it. */
static uint64_t config_fingerprint(const config *c) {
    const deltanet_shape *d = &c->shapes.deltanet;
    const attention_shape *a = &c->shapes.attention;
    const moe_shape *e = &c->shapes.moe;
    const int32_t numbers[] = {c->layers,  c->hidden,  c->vocab,       c->context_max, c->mtp_layers,  a->heads,
                               a->kv_heads, a->head_dim, a->rotary_dim, d->key_heads,   d->value_heads, d->key_dim,
                               d->value_dim, d->taps,    e->experts,    e->top_k,       e->expert_size, e->shared_size,
                               c->tied,    c->fp8_rows, c->fp8_cols,    c->eos};
    const float reals[] = {c->eps, c->rope.theta};
    uint64_t hash = fnv1a(fnv1a(FNV_START, numbers, sizeof numbers), reals, sizeof reals);
    const float scaled[] = {(float)c->rope.kind, c->rope.factor, c->rope.original, c->rope.slow, c->rope.fast, (float)c->rope.whole,
                            a->rope_scale};
    if (c->rope.kind != ROPE_PLAIN) hash = fnv1a(hash, scaled, sizeof scaled);
    if (c->shapes.mlp.size) hash = fnv1a(hash, &c->shapes.mlp.size, sizeof(int));
    if (c->zeros_stored || c->asymmetric) hash = fnv1a(fnv1a(hash, &c->zeros_stored, sizeof(int)), &c->asymmetric, sizeof(int));
    return fnv1a(hash, c->mixers, (size_t)c->layers);
}

/* Reads dir/config.json. On success c->mixers is the caller's to free. */
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
    else if (!(c->family = family_find(&j, type, dir, err))) r.code = MOTE_EUNSUPPORTED;
    else if (r.text && j.nodes[r.text].type != JSON_OBJECT)
        r.code = fail(err, MOTE_EFORMAT, "%s/config.json: text_config is not an object", dir);
    if (!r.code) {
        config_common(&r, c);
        config_ends(&r, c);
        c->family->read(&r, c);
        config_quantization(&r, c);
    }
    if (r.code) {
        free(c->mixers);
        c->mixers = NULL;
    }
    json_free(&j);
    buf_free(&text);
    return r.code;
}
