/* checkpoint/generation.c: the small files beside the weights: the chat template's text, generation_config.json. */

/* The template's text: chat_template.jinja, or "chat_template" of tokenizer_config.json (a string, or a list of named
   ones of which "default" counts). Empty when there is none. */
static int template_read(const char *dir, buf *text, mote_error *err) {
    buf config_text;
    json j;
    memset(&config_text, 0, sizeof config_text);
    if (file_exists(dir, "chat_template.jinja")) return read_file(dir, "chat_template.jinja", text, err);
    if (!file_exists(dir, "tokenizer_config.json")) return MOTE_OK;
    int code = read_json(dir, "tokenizer_config.json", &config_text, &j, err);
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
    buf_free(&config_text);
    return code;
}

/* The token that tokenizer_config.json calls "bos_token", a text or an object with it as "content". *id stays where there is none. */
static int chat_begin_read(const char *dir, const tokenizer *t, int32_t *id, mote_error *err) {
    buf config_text, name;
    json j;
    memset(&config_text, 0, sizeof config_text);
    memset(&name, 0, sizeof name);
    if (!file_exists(dir, "tokenizer_config.json")) return MOTE_OK;
    int code = read_json(dir, "tokenizer_config.json", &config_text, &j, err);
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
    buf_free(&config_text);
    return code;
}

/* eos_token_id of a file's object: an id or a list of them. One that was overlooked would let answers run on. */
static int eos_read(mote_model *m, const json *j, uint32_t object, const char *dir, const char *file, mote_error *err) {
    uint32_t eos = json_get(j, object, "eos_token_id");
    if (!eos || j->nodes[eos].type == JSON_NULL) return MOTE_OK;
    int list = j->nodes[eos].type == JSON_ARRAY;
    uint32_t count = list ? j->nodes[eos].size : 1;
    for (uint32_t i = 0, node = list ? eos + 1 : eos; i < count; i++, node = j->nodes[node].next) {
        uint64_t number;
        if (!json_u64(j, node, &number) || number > INT32_MAX)
            return fail(err, MOTE_EFORMAT, "%s/%s: eos_token_id must be a token id or a list of them", dir, file);
        const int32_t id = (int32_t)number;
        buf_add(&m->eos, &id, sizeof id);
    }
    return m->eos.failed ? fail_memory(err) : MOTE_OK;
}

static int by_id(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The tokens that end a text: those of generation_config.json, or else of config.json, and always the end of a turn of the
   chat template. Without a tokenizer there is no text, and nothing but what generation_config.json says. */
static int model_ends(mote_model *m, const char *dir, mote_error *err) {
    const chat_marks *marks = m->text ? chat_marks_of(m->family) : NULL;
    const int32_t end = marks ? tokenizer_find(m->text, marks->turn_end) : -1;
    int code = MOTE_OK;
    if (!m->eos.size && m->text && file_exists(dir, "config.json")) {
        buf text;
        json j;
        memset(&text, 0, sizeof text);
        code = read_json(dir, "config.json", &text, &j, err);
        if (code) return code;
        uint32_t inner = json_get(&j, 0, "text_config");
        code = eos_read(m, &j, inner && json_get(&j, inner, "eos_token_id") ? inner : 0, dir, "config.json", err);
        json_free(&j);
        buf_free(&text);
    }
    if (!code && end >= 0) buf_add(&m->eos, &end, sizeof end);
    if (!code && m->eos.failed) code = fail_memory(err);
    if (!code && m->eos.size) qsort(m->eos.data, m->eos.size / sizeof end, sizeof end, by_id);
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

/* generation_config.json: sampling defaults and end-of-text tokens. Without it, greedy. */
static int generation_read(mote_model *m, const char *dir, const mote_callbacks *callbacks, mote_error *err) {
    buf text;
    json j;
    memset(&text, 0, sizeof text);
    if (!file_exists(dir, "generation_config.json")) return MOTE_OK;
    int code = read_json(dir, "generation_config.json", &text, &j, err);
    if (code) return code;
    code = eos_read(m, &j, 0, dir, "generation_config.json", err);
    if (!code) code = generation_sampling(&m->sampling, &j, dir, callbacks, err);
    json_free(&j);
    buf_free(&text);
    return code;
}
