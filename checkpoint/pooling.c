/* checkpoint/pooling.c: how a checkpoint's texts are to be embedded, as sentence-transformers keeps it beside the weights: modules.json
   lists what a text goes through, and the folder of the module that pools has a config.json. Knows these files alone. */

/* The last word of a module's "type" is this one: "sentence_transformers.models.Pooling". */
static int module_is(const json *j, uint32_t module, const char *kind) {
    const uint32_t type = json_get(j, module, "type");
    const json_node *n = j->nodes + type;
    const size_t size = strlen(kind);
    if (!type || n->type != JSON_STRING || n->size < size || memcmp(j->text + n->start + n->size - size, kind, size)) return 0;
    return n->size == size || j->text[n->start + n->size - size - 1] == '.';
}

/* MOTE_POOLING_... of a mode's name; MOTE_POOLING_DEFAULT: mote does not have it. */
static int pooling_mode(const char *mode, size_t size) {
    static const struct { const char *name; int pooling; } modes[] = {
        {"lasttoken", MOTE_POOLING_LAST}, {"mean", MOTE_POOLING_MEAN}, {"mean_tokens", MOTE_POOLING_MEAN}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strlen(modes[i].name) == size && !memcmp(modes[i].name, mode, size)) return modes[i].pooling;
    return MOTE_POOLING_DEFAULT;
}

/* The config.json of the module that pools, `where` in the folder: "pooling_mode_NAME": true of one mode, or "pooling_mode": NAME. */
static int pooling_config(const json *j, const char *dir, const char *where, int *pooling, mote_error *err) {
    static const char key[] = "pooling_mode";
    const size_t size = sizeof key - 1;
    *pooling = MOTE_POOLING_DEFAULT;
    for (uint32_t k = 1; k < j->nodes[0].next; k = j->nodes[k + 1].next) {
        const json_node *name = j->nodes + k, *value = name + 1;
        const char *mode = j->text + name->start;
        if (name->size < size || memcmp(mode, key, size)) continue;
        const int is_flag = name->size > size + 1;
        if (is_flag ? value->type != JSON_TRUE : value->type != JSON_STRING) continue;
        const int found = is_flag ? pooling_mode(mode + size + 1, name->size - size - 1) : pooling_mode(j->text + value->start, value->size);
        if (!found || *pooling)
            return fail(err, MOTE_EUNSUPPORTED, "%s/%s: %.*s: expected one mode of pooling, the last token or the mean", dir, where,
                        (int)(name->size < 60 ? name->size : 60), mode);
        *pooling = found;
    }
    return *pooling ? MOTE_OK : fail(err, MOTE_EFORMAT, "%s/%s: no mode of pooling", dir, where);
}

/* The module of the list that pools. Its path must be a folder beside the list. */
static int pooling_module(const json *j, uint32_t module, const char *dir, int *pooling, mote_error *err) {
    const uint32_t path = json_get(j, module, "path");
    const int size = path && j->nodes[path].type == JSON_STRING && j->nodes[path].size <= 64 ? (int)j->nodes[path].size : 0;
    char where[80];
    json inner;
    snprintf(where, sizeof where, "%.*s/config.json", size, j->text + j->nodes[path].start);
    if (!size || strspn(where, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") != (size_t)size)
        return fail(err, MOTE_EFORMAT, "%s/modules.json: expected the path of Pooling to be a folder's name", dir);
    int code = read_json(dir, where, &inner, err);
    if (code) return code;
    code = pooling_config(&inner, dir, where, pooling, err);
    json_free(&inner);
    return code;
}

/* A list of Transformer, Pooling and Normalize. */
static int modules_read(const json *j, const char *dir, int *pooling, mote_error *err) {
    int code = MOTE_OK, found = MOTE_POOLING_DEFAULT;
    for (uint32_t k = 1; !code && k < j->nodes[0].next; k = j->nodes[k].next) {
        const uint32_t type = json_get(j, k, "type");
        if (module_is(j, k, "Pooling") && !found) code = pooling_module(j, k, dir, &found, err);
        else if (!module_is(j, k, "Transformer") && !module_is(j, k, "Normalize"))
            code = fail(err, MOTE_EUNSUPPORTED, "%s/modules.json: module %.*s is not supported, expected Transformer, Pooling and Normalize",
                        dir, (int)(!type ? 0 : j->nodes[type].size < 80 ? j->nodes[type].size : 80), j->text + j->nodes[type].start);
    }
    if (!code && !found) code = fail(err, MOTE_EFORMAT, "%s/modules.json: no module pools", dir);
    if (!code) *pooling = found;
    return code;
}

/* Sets info.pooling, or no_pooling: what is wrong there concerns nobody but who embeds. */
static void pooling_read(mote_model *m, const char *dir) {
    mote_error *err = &m->no_pooling;
    json j;
    if (!file_exists(dir, "modules.json")) return;
    if (read_json_of(dir, "modules.json", JSON_ARRAY, &j, err)) return;
    (void)modules_read(&j, dir, &m->report.info.pooling, err);
    json_free(&j);
}
