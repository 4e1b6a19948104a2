/* checkpoint/ends.c: the tokens that end a text: eos_token_id of generation_config.json, or else of config.json, and what a chat's template
   ends turns with. */

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

/* Those of a file, which need not be there. What config.json says inside of text_config comes first. */
static int file_ends(mote_model *m, const char *dir, const char *file, mote_error *err) {
    json j;
    if (!file_exists(dir, file)) return MOTE_OK;
    int code = read_json(dir, file, &j, err);
    if (code) return code;
    uint32_t inner = json_get(&j, 0, "text_config");
    code = eos_read(m, &j, inner && json_get(&j, inner, "eos_token_id") ? inner : 0, dir, file, err);
    json_free(&j);
    return code;
}

/* All of a model. ends [2]: of an answer in its chat template, -1: none, or NULL. Without a tokenizer there is no text, and nothing but what
   generation_config.json says. */
static int model_ends(mote_model *m, const char *dir, const int32_t *ends, mote_error *err) {
    int code = file_ends(m, dir, "generation_config.json", err);
    if (!code && m->text && !m->eos.size) code = file_ends(m, dir, "config.json", err);
    for (int i = 0; i < 2 && ends; i++)
        if (!code && ends[i] >= 0) buf_add(&m->eos, &ends[i], sizeof *ends);
    if (!code && m->eos.failed) code = fail_memory(err);
    if (!code && m->eos.size) qsort(m->eos.data, m->eos.size / sizeof *ends, sizeof *ends, by_id);
    return code;
}

/* Tells of ids that no token has. */
static void ends_notice(const mote_model *m, const char *dir, const mote_callbacks *callbacks) {
    const int32_t *ids = (const int32_t *)(const void *)m->eos.data, count = max_int(tokenizer_vocab(m->text), m->c.vocab);
    for (size_t i = 0; i < m->eos.size / sizeof *ids; i++)
        if (ids[i] >= count) notice(callbacks, "%s: eos_token_id %d ends nothing: there are %d tokens", dir, ids[i], count);
}

static int is_eos(const mote_model *m, int32_t id) {
    return m->eos.size && bsearch(&id, m->eos.data, m->eos.size / sizeof id, sizeof id, by_id) != NULL;
}
