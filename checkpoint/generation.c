/* checkpoint/generation.c: the small files beside the weights: the chat template's text, the sampling of generation_config.json. */

/* The template's text: chat_template.jinja, or "chat_template" of tokenizer_config.json (a string, or a list of named
   ones of which "default" counts). Empty when there is none. */
static int template_read(const char *dir, buf *text, mote_error *err) {
    json j;
    if (file_exists(dir, "chat_template.jinja")) return read_file(dir, "chat_template.jinja", text, err);
    if (!file_exists(dir, "tokenizer_config.json")) return MOTE_OK;
    int code = read_json(dir, "tokenizer_config.json", &j, err);
    if (code) return code;
    uint32_t node = json_get(&j, 0, "chat_template");
    if (node && j.nodes[node].type == JSON_ARRAY) {
        uint32_t item = node + 1, count = j.nodes[node].size;
        for (node = 0; count--; item = j.nodes[item].next)
            if (json_equals(&j, json_get(&j, item, "name"), "default")) node = json_get(&j, item, "template");
    }
    if (node && j.nodes[node].type == JSON_STRING) {
        size_t n = json_string(&j, node, NULL, 0);
        char *to = (char *)buf_add(text, NULL, n);
        if (to) json_string(&j, node, to, n);
        else code = fail_memory(err);
    }
    json_free(&j);
    return code;
}

/* The token that tokenizer_config.json calls "bos_token", a text or an object with it as "content". *id stays where there is none. */
static int chat_begin_read(const char *dir, const tokenizer *t, int32_t *id, mote_error *err) {
    buf name;
    json j;
    memset(&name, 0, sizeof name);
    if (!file_exists(dir, "tokenizer_config.json")) return MOTE_OK;
    int code = read_json(dir, "tokenizer_config.json", &j, err);
    if (code) return code;
    uint32_t node = json_get(&j, 0, "bos_token");
    if (node && j.nodes[node].type == JSON_OBJECT) node = json_get(&j, node, "content");
    if (node && j.nodes[node].type == JSON_STRING) {
        put_string(&j, node, &name);
        buf_add(&name, "", 1);
        const int32_t found = name.failed ? -1 : tokenizer_find(t, name.data);
        if (found >= 0) *id = found;
    }
    code = name.failed ? fail_memory(err) : MOTE_OK;
    json_free(&j);
    buf_free(&name);
    return code;
}

/* A sampling default. One that is out of range does not make a checkpoint unusable: it is left out, with a notice. */
static int generation_number(const json *j, const char *dir, const char *key, double low, double high, float *out,
                             const mote_callbacks *callbacks, mote_error *err) {
    uint32_t node = json_get(j, 0, key);
    double value = 0;
    if (!node || j->nodes[node].type == JSON_NULL) return MOTE_OK;
    int code = json_double(j, node, &value);
    if (code == MOTE_ENOMEM) return fail_memory(err);
    if (!code && value >= low && value <= high) *out = (float)value;
    else notice(callbacks, "%s/generation_config.json: %s ignored, it must be a number from %.10g to %.10g", dir, key, low,
                high);
    return MOTE_OK;
}

/* Keys that would change what is sampled, and that mote does not have: neither a checkpoint's fault nor to be passed over without a word. */
static void generation_ignored(const json *j, const char *dir, const mote_callbacks *callbacks) {
    static const char *const keys[][2] = {                 /* and the value with which nothing changes */
        {"typical_p", "1"}, {"epsilon_cutoff", "0"}, {"eta_cutoff", "0"}, {"top_h", "null"}, {"penalty_alpha", "0"}, {"num_beams", "1"},
        {"no_repeat_ngram_size", "0"}, {"encoder_no_repeat_ngram_size", "0"}, {"encoder_repetition_penalty", "1"}, {"guidance_scale", "1"},
        {"bad_words_ids", "null"}, {"suppress_tokens", "null"}, {"begin_suppress_tokens", "null"}, {"sequence_bias", "null"},
        {"forced_bos_token_id", "null"}, {"forced_eos_token_id", "null"}, {"exponential_decay_length_penalty", "null"},
        {"watermarking_config", "null"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const uint32_t node = json_get(j, 0, keys[i][0]);
        const json_node *n = &j->nodes[node];
        if (node && !config_is_one(j, node, keys[i][1]) && !(n->type >= JSON_ARRAY && !n->size))
            notice(callbacks, "%s/generation_config.json: %s ignored, mote samples without it", dir, keys[i][0]);
    }
}

/* The sampling defaults. Without do_sample: greedy. */
static int generation_sampling(mote_sampling *to, const json *j, const char *dir, const mote_callbacks *callbacks,
                               mote_error *err) {
    float top_k = 0;
    struct { const char *key; double low, high; float *to; } numbers[] = {
        {"temperature", 0, 100, &to->temperature},
        {"top_k", 0, 1 << 24, &top_k},
        {"top_p", 0, 1, &to->top_p},
        {"min_p", 0, 1, &to->min_p},
        {"repetition_penalty", 0.01, 100, &to->repetition_penalty},
        {"presence_penalty", -100, 100, &to->presence_penalty},
        {"frequency_penalty", -100, 100, &to->frequency_penalty}};
    uint32_t sample = json_get(j, 0, "do_sample");
    int code = MOTE_OK;
    to->temperature = 1;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = generation_number(j, dir, numbers[i].key, numbers[i].low, numbers[i].high, numbers[i].to, callbacks, err);
    to->top_k = (int)top_k;
    if (!sample || j->nodes[sample].type <= JSON_FALSE) to->temperature = 0;     /* absent, null, false */
    return code;
}

/* generation_config.json's sampling defaults. Without it, greedy. */
static int generation_read(mote_model *m, const char *dir, const mote_callbacks *callbacks, mote_error *err) {
    json j;
    if (!file_exists(dir, "generation_config.json")) return MOTE_OK;
    int code = read_json(dir, "generation_config.json", &j, err);
    if (code) return code;
    code = generation_sampling(&m->sampling, &j, dir, callbacks, err);
    generation_ignored(&j, dir, callbacks);
    json_free(&j);
    return code;
}
