/* checkpoint/config.c: what reads config.json to numbers that have been checked, and what it says of quantisation. Knows nothing of
   tensors, and no family: families/ read the keys of models. */

struct model_family;

/* How a model's rotary frequencies come about: families/rope.c. */
enum rope_kind { ROPE_PLAIN, ROPE_LLAMA3, ROPE_YARN };

typedef struct rope_config {
    enum rope_kind kind;
    float theta;                               /* the base */
    float factor, original;                    /* unless plain: what the context grew by, and from; */
    float slow, fast;                          /* up to and from so many turns within that a frequency is scaled, or is not */
    int whole;                                 /* of YaRN: that range ends at whole dimensions */
} rope_config;

typedef struct config {
    const struct model_family *family;
    int layers, hidden, vocab, context_max, mtp_layers;
    int tied, fp8_rows, fp8_cols;
    int zeros_stored, asymmetric;              /* of GPTQ: see conversion in formats/formats.c */
    float eps;
    layer_shapes shapes;
    rope_config rope;
    unsigned char *mixers;                     /* [layers] enum layer_kind */
    int32_t eos;                               /* eos_token_id where it is one id, else -1: for the fingerprint alone */
} config;

typedef struct config_reader {
    const json *j;
    uint32_t text;                             /* the object with the text model's fields */
    const char *dir;
    const char *within;                        /* "rope_scaling.": of what the keys are, for messages; NULL: of nothing more */
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

/* What is null counts as absent, here and for floats. */
static void config_int_or(config_reader *r, const char *key, int low, int high, int fallback, int *out) {
    const uint32_t node = json_get(r->j, r->text, key);
    *out = fallback;
    if (node && r->j->nodes[node].type != JSON_NULL) config_int(r, key, low, high, out);
}

static void config_float(config_reader *r, uint32_t object, const char *key, double low, double high, float fallback,
                         float *out) {
    double value = fallback;
    uint32_t node = json_get(r->j, object, key);
    if (r->code) return;
    if (node && r->j->nodes[node].type == JSON_NULL) node = 0;
    int code = node ? json_double(r->j, node, &value) : MOTE_OK;
    if (code == MOTE_ENOMEM) r->code = fail_memory(r->err);
    else if (code || !(value >= low && value <= high))
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: %s%s must be a number from %g to %g", r->dir, r->within ? r->within : "", key,
                       low, high);
    *out = (float)value;
}

/* Is the node this value, however it is written: 1.0 for 1, 1 for true, 0 for false, letters of another case? */
static int config_is(const json *j, uint32_t node, const char *value) {
    const json_node *n = &j->nodes[node];
    char text[64];
    double number;
    if (n->type >= JSON_ARRAY) return 0;
    size_t size = n->type == JSON_STRING ? json_string(j, node, text, sizeof text - 1) : n->size;
    if (size >= sizeof text) return 0;
    if (n->type != JSON_STRING) memcpy(text, j->text + n->start, size);
    text[size] = 0;
    if (size == strlen(value) && !strcasecmp(text, value)) return 1;
    if (n->type != JSON_NUMBER || json_double(j, node, &number) || (number != 0 && number != 1)) return 0;
    return !strcmp(value, number == 1 ? "1" : "0") || !strcmp(value, number == 1 ? "true" : "false");
}

/* A member that is true or false; null is false. */
static int config_flag(config_reader *r, uint32_t node, const char *key, int absent) {
    if (!node || r->code) return absent;
    const int on = config_is(r->j, node, "true");
    if (!on && r->j->nodes[node].type != JSON_NULL && !config_is(r->j, node, "false"))
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: %s%s must be true or false", r->dir, r->within ? r->within : "", key);
    return on;
}

/* A field that must be absent, null or have one value: the first of those listed, "silu|swish", which mean the same. */
static void config_only(config_reader *r, uint32_t object, const char *key, const char *values) {
    uint32_t node = json_get(r->j, object, key);
    const size_t first = strcspn(values, "|");
    if (r->code || !node || r->j->nodes[node].type == JSON_NULL) return;
    for (const char *value = values; *value; value += strcspn(value, "|"), value += *value == '|') {
        char one[32];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(value, "|"), value);
        if (config_is(r->j, node, one)) return;
    }
    const json_node *n = &r->j->nodes[node];
    const char *text = n->type == JSON_ARRAY ? "a list" : n->type == JSON_OBJECT ? "an object" : r->j->text + n->start;
    const size_t size = n->type >= JSON_ARRAY ? strlen(text) : n->size < 60 ? n->size : 60;
    r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: %s%s is %.*s, mote supports %.*s only", r->dir,
                   r->within ? r->within : "", key, (int)size, text, (int)first, values);
}

/* The sides of FP8 blocks: weight_block_size of the official checkpoints, block_structure of compressed-tensors' groups. */
static void config_blocks(config_reader *r, uint32_t q, config *c) {
    uint64_t rows = TILE, cols = TILE;
    const char *key = "weight_block_size";
    uint32_t size = json_get(r->j, q, key), groups = json_get(r->j, q, "config_groups");
    if (!size && groups && r->j->nodes[groups].type == JSON_OBJECT) {
        uint32_t name = groups + 1;
        for (uint32_t i = 0; i < r->j->nodes[groups].size && !size; i++, name = r->j->nodes[name + 1].next) {
            uint32_t weights = r->j->nodes[name + 1].type == JSON_OBJECT ? json_get(r->j, name + 1, "weights") : 0;
            if (weights && r->j->nodes[weights].type == JSON_OBJECT) size = json_get(r->j, weights, "block_structure");
            if (size && r->j->nodes[size].type == JSON_NULL) size = 0;
        }
        key = "block_structure";
    }
    if (r->code || !size || r->j->nodes[size].type == JSON_NULL) return;
    if (r->j->nodes[size].type != JSON_ARRAY || r->j->nodes[size].size != 2 || !json_u64(r->j, size + 1, &rows) ||
        !json_u64(r->j, size + 2, &cols) || !rows || !cols || rows > 1 << 20 || cols > 1 << 20)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: %s must be [rows, cols]", r->dir, key);
    c->fp8_rows = (int)rows;
    c->fp8_cols = (int)cols;
}

/* quantization_config. Which format a tensor has is seen when it is bound; read here is what tensors do not tell: the sides of
   FP8 blocks, and which of two layouts of one shape files of GPTQ and AWQ have. */
static void config_quantization(config_reader *r, config *c) {
    uint32_t q = json_get(r->j, 0, "quantization_config");
    c->fp8_rows = c->fp8_cols = TILE;
    if (!q) q = json_get(r->j, r->text, "quantization_config");
    if (!q || r->j->nodes[q].type != JSON_OBJECT) return;
    uint32_t method = json_get(r->j, q, "quant_method"), version = json_get(r->j, q, "checkpoint_format");
    uint32_t packing = json_get(r->j, q, "packing_format"), symmetric = json_get(r->j, q, "sym");
    config_only(r, q, "fmt", "e4m3|float8_e4m3fn");
    if (method && config_is(r->j, method, "awq")) config_only(r, q, "version", "gemm");
    c->zeros_stored = version && config_is(r->j, version, "gptq_v2");
    if (packing && (config_is(r->j, packing, "auto_round") || config_is(r->j, packing, "auto_round:gptqmodel")))
        c->zeros_stored = 1;
    c->asymmetric = symmetric && config_is(r->j, symmetric, "false");
    if (!c->zeros_stored) config_only(r, q, "checkpoint_format", "gptq");
    config_blocks(r, q, c);
}
