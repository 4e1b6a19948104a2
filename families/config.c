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
    const uint32_t end = config_get(r, r->text, "eos_token_id");
    c->tied = config_flag(r, config_get(r, 0, tied), tied, 0) | config_flag(r, config_get(r, r->text, tied), tied, 0);
    c->eos = end && json_u64(r->j, end, &eos) && eos < (uint64_t)c->vocab ? (int32_t)eos : -1;
}

static uint64_t sublayer_fingerprint(uint64_t hash, const sublayer_shape *s) {
    const int32_t kind = (int32_t)s->kind;
    hash = fnv1a(fnv1a(hash, &kind, sizeof kind), &s->residual, sizeof s->residual);
    return fnv1a(hash, &s->of, 4 * (size_t)layer_fields[s->kind].count);
}

/* Part of a model's fingerprint: all that config.json, and the family, say of it. */
static uint64_t config_fingerprint(const config *c) {
    uint64_t hash = fnv1a(fnv1a(FNV_START, c, 4 * CONFIG_FIELD_COUNT), c->family->name, strlen(c->family->name));
    for (int i = 0; i <= c->layers; i++) {
        hash = sublayer_fingerprint(sublayer_fingerprint(hash, &c->layer[i].mixer), &c->layer[i].ffn);
        hash = fnv1a(hash, &c->layer[i].rope, sizeof c->layer[i].rope);
    }
    return hash;
}

/* Memory for the layers, all zero. */
static void config_layers(config_reader *r, config *c) {
    if (r->code) return;
    c->layer = (config_layer *)calloc((size_t)c->layers + 1, sizeof *c->layer);
    if (!c->layer) r->code = fail_memory(r->err);
}

/* What config.json says, which is j; dir: where that is, for messages. On success *c is the caller's to config_free. */
static int config_of(config *c, const json *j, const char *dir, mote_error *err) {
    config_reader r;
    memset(c, 0, sizeof *c);
    memset(&r, 0, sizeof r);
    c->image_token = c->video_token = c->vision_start = c->vision_end = -1;
    r.j = j;
    r.dir = dir;
    r.err = err;
    r.read = (unsigned char *)calloc(j->count, 1);
    r.text = r.read ? config_get(&r, 0, "text_config") : 0;
    uint32_t type = r.read ? config_get(&r, 0, "model_type") : 0;
    if (!r.read) r.code = fail_memory(err);
    else if (!type) r.code = fail(err, MOTE_EFORMAT, "%s/config.json: model_type is missing", dir);
    else if (!(c->family = family_find(j, type, dir, err))) r.code = MOTE_EUNSUPPORTED;
    else if (r.text && j->nodes[r.text].type != JSON_OBJECT)
        r.code = fail(err, MOTE_EFORMAT, "%s/config.json: text_config is not an object", dir);
    if (!r.code) {
        config_few_keys(&r, 0);
        config_few_keys(&r, r.text);
        config_common(&r, c);
        config_ends(&r, c);
        config_layers(&r, c);
        if (!r.code) c->family->read(&r, c);
        config_quantization(&r, c);
        config_unread(&r, r.text, "");
        if (r.text) config_unread(&r, 0, "");
        memcpy(c->beside, r.beside, sizeof c->beside);
    }
    free(r.read);
    if (r.code) config_free(c);
    return r.code;
}

/* The same of a block drafter's, which is flat, or has the keys of its layers inside "transformer_layer_config". */
static int drafter_config_of(config *c, const json *j, const char *dir, mote_error *err) {
    static const char inner[] = "transformer_layer_config";
    config_reader r;
    memset(c, 0, sizeof *c);
    memset(&r, 0, sizeof r);
    c->image_token = c->video_token = c->vision_start = c->vision_end = c->eos = -1;
    c->family = &dflash_family;
    r.j = j;
    r.dir = dir;
    r.err = err;
    r.read = (unsigned char *)calloc(j->count, 1);
    r.text = r.read ? config_get(&r, 0, inner) : 0;
    if (!r.read) r.code = fail_memory(err);
    else if (r.text && j->nodes[r.text].type != JSON_OBJECT) config_fail(&r, MOTE_EFORMAT, "%s is not an object", inner);
    config_few_keys(&r, 0);
    config_few_keys(&r, r.text);
    if (!r.code) dflash_recognise(&r);
    if (!r.code) config_common(&r, c);
    config_layers(&r, c);
    if (!r.code) dflash_read(&r, c);
    if (!r.code) config_quantization(&r, c);
    free(r.read);
    if (r.code) config_free(c);
    return r.code;
}

typedef int config_maker(config *c, const json *j, const char *dir, mote_error *err);

/* Reads dir/config.json, as config_of or drafter_config_of. On success *c is the caller's to config_free. */
static int config_read_as(config *c, const char *dir, config_maker *of, mote_error *err) {
    json j;
    memset(c, 0, sizeof *c);
    int code = read_json(dir, "config.json", &j, err);
    if (code) return code;
    code = of(c, &j, dir, err);
    json_free(&j);
    return code;
}

static int config_read(config *c, const char *dir, mote_error *err) {
    return config_read_as(c, dir, config_of, err);
}
