/* checkpoint/quantization_check.c: compares quantization_config of config.json, which says what matrices are quantised, with the
   matrices. Nothing is decided by it: the tensors that are there count, and where they differ there is one notice. Knows names
   of modules as data, and no tensors. */

typedef struct quantization_check {
    tensor_table plain, quantised;             /* of these entries only the names count */
    buf patterns;                              /* of plain ones, "mtp*", each ended by a zero; of regular expressions ("re:") none matches */
    char method[32];                           /* quant_method; "": none */
    int quantised_matrices;
    int mismatches;                            /* matrices that are not as it says */
    char first[192];                           /* one of them, and how it is stored */
} quantization_check;

static void quantization_check_add(quantization_check *c, tensor_table *to, const json *j, uint32_t node) {
    char name[256];
    int found;
    size_t at = to->names.size, n = json_string(j, node, name, sizeof name - 1);
    if (n >= sizeof name || memchr(name, 0, n)) return;
    name[n] = 0;
    if (to == &c->plain && strchr(name, '*')) buf_add(&c->patterns, name, n + 1);
    else if (buf_add(&to->names, name, n + 1)) table_add(to, at, &found);
}

/* What is missing, of another kind, or for which there is no memory, lists nothing. */
static void quantization_check_read(quantization_check *c, const char *dir) {
    static const char *const lists[] = {"modules_to_not_convert", "ignore", "exclude_modules"};
    json j;
    mote_error ignored;
    memset(c, 0, sizeof *c);
    if (read_json(dir, "config.json", &j, &ignored)) return;
    uint32_t q = json_get(&j, 0, "quantization_config"), inner = json_get(&j, 0, "text_config");
    if (!q && inner && j.nodes[inner].type == JSON_OBJECT) q = json_get(&j, inner, "quantization_config");
    if (q && j.nodes[q].type == JSON_OBJECT) {
        uint32_t method = json_get(&j, q, "quant_method"), layers = json_get(&j, q, "quantized_layers");
        if (method && j.nodes[method].type == JSON_STRING) json_string(&j, method, c->method, sizeof c->method - 1);
        for (int i = 0; i < 3; i++) {
            uint32_t list = json_get(&j, q, lists[i]), node = list + 1;
            uint32_t n = list && j.nodes[list].type == JSON_ARRAY ? j.nodes[list].size : 0;
            for (uint32_t k = 0; k < n; k++, node = j.nodes[node].next)
                if (j.nodes[node].type == JSON_STRING) quantization_check_add(c, &c->plain, &j, node);
        }
        uint32_t key = layers + 1;
        for (uint32_t k = 0; layers && j.nodes[layers].type == JSON_OBJECT && k < j.nodes[layers].size; k++) {
            quantization_check_add(c, &c->quantised, &j, key);
            key = j.nodes[key + 1].next;
        }
    }
    json_free(&j);
}

static void quantization_check_free(quantization_check *c) {
    table_free(&c->plain);
    table_free(&c->quantised);
    buf_free(&c->patterns);
}

static int listed_plain(const quantization_check *c, const char *module) {
    if (table_find(&c->plain, module)) return 1;
    for (size_t at = 0; at < c->patterns.size; at += strlen(c->patterns.data + at) + 1)
        if (matches_stars(c->patterns.data + at, module)) return 1;
    return 0;
}

/* Is a quantised matrix that is stored as `name` says what quant_method names? Methods that are several formats name none. */
static int method_is(const char *method, const char *name) {
    static const char *const begins[][2] = {{"fp8", "FP8"}, {"fbgemm_fp8", "FP8"}, {"mxfp4", "MXFP4"}, {"gptq", "GPTQ"}, {"awq", "AWQ"}};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (!strcmp(begins[i][0], method)) return !strncmp(name, begins[i][1], strlen(begins[i][1]));
    return 1;
}

/* Compares a matrix, stored as `name` says, with what is listed of it, or of all that it is together with, unless NULL. c NULL: there is
   nothing to compare it with. */
static void quantization_check_matrix(quantization_check *c, const char *module, const char *together, int is_quantised,
                                      const char *name) {
    if (!c) return;
    c->quantised_matrices += is_quantised;
    int mismatch = is_quantised ? listed_plain(c, module) || !method_is(c->method, name)
                               : table_find(&c->quantised, module) || (together && table_find(&c->quantised, together));
    if (mismatch && !c->mismatches++) snprintf(c->first, sizeof c->first, "%.120s is %s", module, name);
}

static void quantization_check_notice(const quantization_check *c, const char *dir, const mote_callbacks *callbacks) {
    if (c->mismatches)
        notice(callbacks, "%s: %d matrices are not stored as config.json says, and used as they are stored: %s, for one", dir,
               c->mismatches, c->first);
    else if (c->method[0] && !c->quantised_matrices)
        notice(callbacks, "%s: config.json says that weights are quantised (%s), and none is", dir, c->method);
}
