/* text/gemma_values.c: Gemma 4's own syntax of values, in which its tools, calls and results are written: {key:value,...} with keys in
   alphabetical order, a text between two <|"|>, which is a token. It knows nothing of turns. */

static const char gemma_quote[] = "<|\"|>";

typedef struct gemma_member { const char *key; size_t at, size; uint32_t node; } gemma_member;

/* By the key in lower case, as Jinja's dictsort has it; of ASCII letters alone. */
static int by_gemma_key(const void *a, const void *b) {
    const gemma_member *x = (const gemma_member *)a, *y = (const gemma_member *)b;
    const int order = memcmp(x->key, y->key, x->size < y->size ? x->size : y->size);
    if (order) return order;
    return x->size != y->size ? (x->size > y->size) - (x->size < y->size) : (x->node > y->node) - (x->node < y->node);
}

/* The members of an object in their order, [its size], to be freed. NULL: out of memory, c->err. */
static gemma_member *gemma_members(const chat *c, uint32_t object) {
    const json *j = &c->j;
    const uint32_t count = j->nodes[object].size;
    gemma_member *list = (gemma_member *)calloc((size_t)count + 1, sizeof *list);
    buf keys;
    uint32_t n = 0;
    memset(&keys, 0, sizeof keys);
    for (uint32_t k = object + 1; list && n < count; k = j->nodes[k + 1].next, n++) {
        list[n].node = k;
        list[n].at = keys.size;
        put_string(j, k, &keys);
        list[n].size = keys.size - list[n].at;
    }
    if (!list || keys.failed) {
        free(list);
        buf_free(&keys);
        fail_memory(c->err);
        return NULL;
    }
    for (size_t i = 0; i < keys.size; i++)
        if (keys.data[i] >= 'A' && keys.data[i] <= 'Z') keys.data[i] = (char)(keys.data[i] + 32);
    for (n = 0; n < count; n++) list[n].key = keys.size ? keys.data + list[n].at : "";
    qsort(list, count, sizeof *list, by_gemma_key);
    buf_free(&keys);
    return list;
}

/* Between two marks. */
static int gemma_text(const chat *c, uint32_t node) {
    put_words(c->out, gemma_quote);
    const int code = put_value(c, c->out, node, put_str);
    put_words(c->out, gemma_quote);
    return code;
}

static int gemma_value(chat *c, uint32_t node, int quoted_keys);

static int gemma_list(chat *c, uint32_t list, int quoted_keys) {
    int code = MOTE_OK;
    put_words(c->out, "[");
    for (uint32_t k = list + 1; !code && k < c->j.nodes[list].next; k = c->j.nodes[k].next) {
        if (k > list + 1) put_words(c->out, ",");
        code = gemma_value(c, k, quoted_keys);
    }
    put_words(c->out, "]");
    return code;
}

/* The members of an object without its braces. */
static int gemma_object(chat *c, uint32_t object, int quoted_keys) {
    gemma_member *list = gemma_members(c, object);
    int code = list ? MOTE_OK : MOTE_ENOMEM;
    for (uint32_t i = 0; !code && i < c->j.nodes[object].size; i++) {
        if (i) put_words(c->out, ",");
        code = quoted_keys ? gemma_text(c, list[i].node) : put_value(c, c->out, list[i].node, put_str);
        put_words(c->out, ":");
        if (!code) code = gemma_value(c, list[i].node + 1, quoted_keys);
    }
    free(list);
    return code;
}

/* Recursion is at most JSON_DEPTH deep. The texts before that of July 2026 write null as Python does. */
static int gemma_value(chat *c, uint32_t node, int quoted_keys) {
    int code;
    switch (c->j.nodes[node].type) {
    case JSON_STRING: return gemma_text(c, node);
    case JSON_ARRAY: return gemma_list(c, node, quoted_keys);
    case JSON_NULL: return put_value(c, c->out, node, c->family & CHAT_PRESERVE ? put_json : put_str);
    case JSON_OBJECT: break;
    default: return put_value(c, c->out, node, put_json);
    }
    put_words(c->out, "{");
    code = gemma_object(c, node, quoted_keys);
    put_words(c->out, "}");
    return code;
}

/* ---- Tools ---- */

/* 1: a value that Python takes for true. */
static int gemma_is_true(const json *j, uint32_t node) {
    double number = 1;
    if (!node || j->nodes[node].type <= JSON_FALSE) return 0;
    if (j->nodes[node].type == JSON_NUMBER) return json_double(j, node, &number) || number != 0;
    return j->nodes[node].type == JSON_TRUE || j->nodes[node].size > 0;
}

static uint32_t gemma_true_member(const json *j, uint32_t object, const char *key) {
    const uint32_t node = json_get(j, object, key);
    return gemma_is_true(j, node) ? node : 0;
}

/* The next member of an object of which *some have been written. */
static void gemma_key(const chat *c, int *some, const char *key) {
    if (*some) put_words(c->out, ",");
    *some = 1;
    put_words(c->out, key);
    put_words(c->out, ":");
}

/* A type in capitals, into c->reasoning; several as Python writes a list. */
static slice gemma_type(chat *c, uint32_t node) {
    const json *j = &c->j;
    buf *out = &c->reasoning;
    out->size = 0;
    if (node && j->nodes[node].type == JSON_ARRAY) {
        buf_text(out, "[");
        for (uint32_t k = node + 1; k < j->nodes[node].next; k = j->nodes[k].next) {
            buf_text(out, k > node + 1 ? ", '" : "'");
            if (j->nodes[k].type < JSON_ARRAY) (void)put_str(j, k, out, NULL);
            buf_text(out, "'");
        }
        buf_text(out, "]");
    } else if (node && j->nodes[node].type < JSON_ARRAY) {
        (void)put_str(j, node, out, NULL);
    }
    for (size_t i = 0; i < out->size; i++)
        if (out->data[i] >= 'a' && out->data[i] <= 'z') out->data[i] = (char)(out->data[i] - 32);
    return slice_of(out->data, out->size);
}

static void gemma_put_type(chat *c, uint32_t node) {
    put_words(c->out, gemma_quote);
    put_outside(c->out, gemma_type(c, node));
    put_words(c->out, gemma_quote);
}

static int gemma_is_type(chat *c, uint32_t node, const char *type) {
    const slice s = gemma_type(c, node);
    return s.n == strlen(type) && !memcmp(s.p, type, s.n);
}

/* [<|"|>a<|"|>,<|"|>b<|"|>] */
static int gemma_texts(chat *c, uint32_t list) {
    int code = MOTE_OK;
    put_words(c->out, "[");
    for (uint32_t k = list + 1; !code && c->j.nodes[list].type == JSON_ARRAY && k < c->j.nodes[list].next; k = c->j.nodes[k].next) {
        if (k > list + 1) put_words(c->out, ",");
        code = gemma_text(c, k);
    }
    put_words(c->out, "]");
    return code;
}

static int gemma_parameters(chat *c, uint32_t properties, int filtered);

/* A schema's "items". */
static int gemma_items(chat *c, uint32_t items) {
    const json *j = &c->j;
    gemma_member *list = gemma_members(c, items);
    int code = list ? MOTE_OK : MOTE_ENOMEM, some = 0;
    put_words(c->out, "{");
    for (uint32_t i = 0; !code && i < j->nodes[items].size; i++) {
        const uint32_t key = list[i].node, value = key + 1, type = j->nodes[value].type;
        if (type == JSON_NULL) continue;
        if (some) put_words(c->out, ",");
        some = 1;
        put_value(c, c->out, key, put_str);
        put_words(c->out, ":");
        if (json_equals(j, key, "properties")) {
            put_words(c->out, "{");
            if (type == JSON_OBJECT) code = gemma_parameters(c, value, !(c->family & CHAT_NAMES));
            put_words(c->out, "}");
        } else if (json_equals(j, key, "required")) {
            code = gemma_texts(c, value);
        } else if (json_equals(j, key, "type") && type != JSON_ARRAY) {
            gemma_put_type(c, value);
        } else if (json_equals(j, key, "type")) {
            put_words(c->out, "[");
            for (uint32_t k = value + 1; k < j->nodes[value].next; k = j->nodes[k].next) {
                if (k > value + 1) put_words(c->out, ",");
                gemma_put_type(c, k);
            }
            put_words(c->out, "]");
        } else {
            code = gemma_value(c, value, 1);
        }
    }
    put_words(c->out, "}");
    free(list);
    return code;
}

/* What a schema of type object says of its own members. */
static int gemma_nested(chat *c, uint32_t schema, int *some) {
    const uint32_t properties = json_get(&c->j, schema, "properties"), required = gemma_true_member(&c->j, schema, "required");
    const int listed = properties && c->j.nodes[properties].type == JSON_OBJECT;
    gemma_key(c, some, "properties");
    put_words(c->out, "{");
    int code = gemma_parameters(c, listed ? properties : schema, !listed || !(c->family & CHAT_NAMES));
    put_words(c->out, "}");
    if (code || !required) return code;
    gemma_key(c, some, "required");
    return gemma_texts(c, required);
}

/* A property's schema without its first brace. */
static int gemma_parameter(chat *c, uint32_t schema) {
    const json *j = &c->j;
    const uint32_t description = gemma_true_member(j, schema, "description"), type = json_get(j, schema, "type");
    const uint32_t words = gemma_true_member(j, schema, "enum"), items = gemma_true_member(j, schema, "items");
    int code = MOTE_OK, some = 0;
    if (description) {
        gemma_key(c, &some, "description");
        code = gemma_text(c, description);
    }
    if (!code && words && gemma_is_type(c, type, "STRING")) {
        gemma_key(c, &some, "enum");
        code = gemma_value(c, words, 1);
    } else if (!code && items && j->nodes[items].type == JSON_OBJECT && gemma_is_type(c, type, "ARRAY")) {
        gemma_key(c, &some, "items");
        code = gemma_items(c, items);
    }
    if (gemma_true_member(j, schema, "nullable")) {
        gemma_key(c, &some, "nullable");
        put_words(c->out, "true");
    }
    if (!code && gemma_is_type(c, type, "OBJECT")) code = gemma_nested(c, schema, &some);
    gemma_key(c, &some, "type");
    gemma_put_type(c, type);
    put_words(c->out, "}");
    return code;
}

/* The properties of a schema. filtered: without those that are called as what a schema says. */
static int gemma_parameters(chat *c, uint32_t properties, int filtered) {
    static const char *const standard[] = {"description", "type", "properties", "required", "nullable"};
    gemma_member *list = gemma_members(c, properties);
    int code = list ? MOTE_OK : MOTE_ENOMEM, some = 0;
    for (uint32_t i = 0; !code && i < c->j.nodes[properties].size; i++) {
        int passed = 0;
        for (size_t k = 0; filtered && k < sizeof standard / sizeof *standard; k++) passed |= json_equals(&c->j, list[i].node, standard[k]);
        if (passed) continue;
        if (some) put_words(c->out, ",");
        some = 1;
        put_value(c, c->out, list[i].node, put_str);
        put_words(c->out, ":{");
        code = gemma_parameter(c, list[i].node + 1);
    }
    free(list);
    return code;
}

/* declaration:NAME{...}. A text without a type at its end has one brace less there, as the template has it. */
static int gemma_tool(chat *c, uint32_t tool) {
    const json *j = &c->j;
    const uint32_t parameters = gemma_true_member(j, tool, "parameters"), response = json_get(j, tool, "response");
    int code = MOTE_OK;
    put_words(c->out, "<|tool>declaration:");
    code = put_member_text(c, c->out, tool, "name");
    put_words(c->out, "{description:<|\"|>");
    if (!code) code = put_member_text(c, c->out, tool, "description");
    put_words(c->out, gemma_quote);
    if (!code && parameters) {
        const uint32_t properties = gemma_true_member(j, parameters, "properties"), required = gemma_true_member(j, parameters, "required");
        put_words(c->out, ",parameters:{");
        if (properties && j->nodes[properties].type == JSON_OBJECT) {
            put_words(c->out, "properties:{");
            code = gemma_parameters(c, properties, !(c->family & CHAT_NAMES));
            put_words(c->out, "},");
        }
        if (!code && required) {
            put_words(c->out, "required:");
            code = gemma_texts(c, required);
            put_words(c->out, ",");
        }
        if (gemma_true_member(j, parameters, "type")) {
            put_words(c->out, "type:");
            gemma_put_type(c, json_get(j, parameters, "type"));
            put_words(c->out, "}");
        }
    }
    if (!code && response) {
        const uint32_t description = gemma_true_member(j, response, "description");
        put_words(c->out, ",response:{");
        if (description) {
            put_words(c->out, "description:");
            code = gemma_text(c, description);
            put_words(c->out, ",");
        }
        if (gemma_is_type(c, json_get(j, response, "type"), "OBJECT")) put_words(c->out, "type:<|\"|>OBJECT<|\"|>}");
    }
    put_words(c->out, "}<tool|>");
    return code;
}
