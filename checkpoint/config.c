/* checkpoint/config.c: what reads config.json to numbers that have been checked, and what it says of quantisation. Knows nothing of
   tensors, and no family: families/ read the keys of models. */

struct model_family;

/* How the rotary frequencies of an attention layer come about: families/rope.c. */
enum rope_kind { ROPE_PLAIN, ROPE_LLAMA3, ROPE_YARN, ROPE_PROPORTIONAL };

/* kind: enum rope_kind. theta: the base. Unless it is plain: factor, what the context grew by. Of llama3 and YaRN: original, what it grew from;
   slow and fast, up to and from so many turns within that a frequency is scaled, or is not; truncate, of YaRN: that range ends at whole
   dimensions. turning, of a proportional one: how many frequencies are not 0, which are the first; 0: all. height, width: see rope_axes. */
#define ROPE_FIELDS(X)                                                                                                               \
    X(int,   kind,     NONE, NONE, "")                                                                                               \
    X(float, theta,    NONE, NONE, "")                                                                                               \
    X(float, factor,   NONE, NONE, "")                                                                                               \
    X(float, original, NONE, NONE, "")                                                                                               \
    X(float, slow,     NONE, NONE, "")                                                                                               \
    X(float, fast,     NONE, NONE, "")                                                                                               \
    X(int,   truncate, NONE, NONE, "")                                                                                               \
    X(int,   turning,  NONE, SET(TURNING), "")                                                                                       \
    X(int,   height,   NONE, NONE, "")                                                                                               \
    X(int,   width,    NONE, NONE, "")
SHAPE(ROPE, rope)

/* A layer: what it consists of. rope: of attention. */
typedef struct config_layer {
    sublayer_shape mixer, ffn;
    rope_shape rope;
} config_layer;

static sublayer_shape sublayer_shape_of(enum layer_kind kind) {
    sublayer_shape s;
    memset(&s, 0, sizeof s);
    s.kind = kind;
    return s;
}

static config_layer config_layer_of(enum layer_kind mixer, enum layer_kind ffn) {
    config_layer l;
    memset(&l, 0, sizeof l);
    l.mixer = sublayer_shape_of(mixer);
    l.ffn = sublayer_shape_of(ffn);
    return l;
}

/* What is said of a model once, beside its layers. tied: the head is the embedding. fp8_rows, fp8_cols: sides of FP8 blocks. zeros_stored,
   asymmetric: of GPTQ, see conversion in formats/formats.c. embed_factor: of embeddings of tokens; logit_cap: logits are cap tanh(l / cap); 0:
   there is none. streams: of the residual, all of which begin as the embedding; 0: it is one. mix_rank: of the mixtures of them. eos:
   eos_token_id where it is one id, else -1: for the fingerprint alone. */
#define CONFIG_FIELDS(X)                                                                                                             \
    X(int,   layers,       NONE, NONE, "")                                                                                           \
    X(int,   hidden,       NONE, NONE, "")                                                                                           \
    X(int,   vocab,        NONE, NONE, "")                                                                                           \
    X(int,   context_max,  NONE, NONE, "")                                                                                           \
    X(int,   mtp_layers,   NONE, NONE, "")                                                                                           \
    X(int,   tied,         NONE, NONE, "")                                                                                           \
    X(int,   fp8_rows,     NONE, NONE, "")                                                                                           \
    X(int,   fp8_cols,     NONE, NONE, "")                                                                                           \
    X(int,   zeros_stored, NONE, NONE, "")                                                                                           \
    X(int,   asymmetric,   NONE, NONE, "")                                                                                           \
    X(float, eps,          NONE, NONE, "")                                                                                           \
    X(float, embed_factor, NONE, SET(EMBED_FACTOR), "")                                                                              \
    X(float, logit_cap,    NONE, SET(LOGIT_CAP), "")                                                                                 \
    X(int,   streams,      NONE, SET(STREAMS), "")                                                                                   \
    X(int,   mix_rank,     NONE, NONE, "")                                                                                           \
    X(int,   eos,          NONE, NONE, "")

enum { DRAFTER_TAPS = 32, DRAFTER_BLOCK = 64 };

/* Of a block drafter, which stands beside another model, its target (families/dflash.c). causal: of layers of full attention, and of those
   with a window, whether a row of a block sees the rows before it alone; else it sees all of the block. */
typedef struct drafter_shape {
    int32_t block;                             /* rows of a block, the token that begins it and masks; 0: it is no drafter */
    int32_t mask;                              /* the id whose embedding stands for a token that is not known */
    int32_t target_layers;
    int32_t taps, tap[DRAFTER_TAPS];           /* layers of the target after which it takes the residual */
    int32_t causal[2];
} drafter_shape;

/* A model as config.json, and its family, say it. The fields come first. */
typedef struct config {
    CONFIG_FIELDS(FIELD_MEMBER)
    const struct model_family *family;
    vision_shape vision;                       /* of depth 0: config.json says of no vision tower, or of one that its family does not read */
    drafter_shape drafter;
    int image_token, video_token, vision_start, vision_end; /* ids that stand for what it reads, and around that; -1: config.json does not say */
    config_layer *layer;                       /* [layers + 1], the last one the MTP layer; config_free frees them */
    char beside[64];                           /* a key that text_config has, and that says something else beside it; "": there is none */
} config;
FIELDS(CONFIG, config, END_OF(config, eos))

static void config_free(config *c) {
    free(c->layer);
    c->layer = NULL;
}

typedef struct config_reader {
    const json *j;
    unsigned char *read;                       /* of each node: enum key_read */
    uint32_t text;                             /* the object with the text model's fields */
    const char *dir;
    const char *within;                        /* "rope_scaling.": of what the keys are, for messages; NULL: of nothing more */
    mote_error *err;
    int code;                                  /* the first failure; later calls do nothing */
    char beside[64];                           /* see config */
} config_reader;

/* Refuses config.json, for a reason. */
__attribute__((format(printf, 3, 4))) static void config_fail(config_reader *r, int code, const char *format, ...) {
    char reason[sizeof r->err->message];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    r->code = fail(r->err, code, "%s/config.json: %s", r->dir, reason);
}

enum { KEYS_MAX = 1024 };                      /* of an object: so many no config.json has */

/* KEY_BESIDE: it stands beside a text_config that was asked for it, and has none. KEYS_READ: it is an object in which keys were looked
   for. */
enum key_read { KEY_UNREAD, KEY_BESIDE, KEY_READ, KEYS_READ };

/* The value of a key, 0: it is absent. Whatever a reader of config.json looks for, it looks for so: what remains unread is looked at last
   (families/keys.c). */
static uint32_t config_get(config_reader *r, uint32_t object, const char *key) {
    const uint32_t node = json_get(r->j, object, key), beside = !node && object && object == r->text ? json_get(r->j, 0, key) : 0;
    r->read[object] = KEYS_READ;
    if (beside && !r->read[beside]) r->read[beside] = KEY_BESIDE;
    if (node && !r->read[node]) r->read[node] = KEY_READ;
    return node;
}

/* Each of an object's keys is looked for among all of them. */
static void config_few_keys(config_reader *r, uint32_t object) {
    const unsigned keys = r->j->nodes[object].size;
    if (!r->code && keys > KEYS_MAX)
        config_fail(r, MOTE_EFORMAT, "an object of %u keys, expected at most %d", keys, KEYS_MAX);
}

static void config_int_of(config_reader *r, uint32_t object, const char *key, int low, int high, int *out) {
    uint64_t value;
    const char *within = r->within ? r->within : "";
    uint32_t node = config_get(r, object, key);
    if (r->code) return;
    if (!node) config_fail(r, MOTE_EFORMAT, "%s%s is missing", within, key);
    else if (!json_u64(r->j, node, &value) || value < (uint64_t)low || value > (uint64_t)high)
        config_fail(r, MOTE_EFORMAT, "%s%s must be a whole number from %d to %d", within, key, low, high);
    else *out = (int)value;
}

static void config_int(config_reader *r, const char *key, int low, int high, int *out) {
    config_int_of(r, r->text, key, low, high, out);
}

/* What is null counts as absent, here and for floats. */
static void config_int_or(config_reader *r, const char *key, int low, int high, int fallback, int *out) {
    const uint32_t node = config_get(r, r->text, key);
    *out = fallback;
    if (node && r->j->nodes[node].type != JSON_NULL) config_int(r, key, low, high, out);
}

static void config_float(config_reader *r, uint32_t object, const char *key, double low, double high, float fallback,
                         float *out) {
    double value = fallback;
    uint32_t node = config_get(r, object, key);
    if (r->code) return;
    if (node && r->j->nodes[node].type == JSON_NULL) node = 0;
    int code = node ? json_double(r->j, node, &value) : MOTE_OK;
    if (code == MOTE_ENOMEM) r->code = fail_memory(r->err);
    else if (code || !(value >= low && value <= high))
        config_fail(r, MOTE_EFORMAT, "%s%s must be a number from %g to %g", r->within ? r->within : "", key, low, high);
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
        config_fail(r, MOTE_EFORMAT, "%s%s must be true or false", r->within ? r->within : "", key);
    return on;
}

/* Refuses a value: "config.json: KEY is VALUE, WHY". */
static void config_refuse(config_reader *r, uint32_t node, const char *key, const char *why, ...) __attribute__((format(printf, 4, 5)));
static void config_refuse(config_reader *r, uint32_t node, const char *key, const char *why, ...) {
    const json_node *n = &r->j->nodes[node];
    const char *text = n->type == JSON_ARRAY ? "a list" : n->type == JSON_OBJECT ? "an object" : r->j->text + n->start;
    const size_t size = n->type >= JSON_ARRAY ? strlen(text) : n->size < 60 ? n->size : 60;
    char reason[160];
    va_list args;
    va_start(args, why);
    vsnprintf(reason, sizeof reason, why, args);
    va_end(args);
    config_fail(r, MOTE_EUNSUPPORTED, "%s%s is %.*s, %s", r->within ? r->within : "", key, (int)size, text, reason);
}

/* Is the node null or one of the values that are listed, "silu|swish"? */
static int config_is_one(const json *j, uint32_t node, const char *values) {
    int is = j->nodes[node].type == JSON_NULL;
    for (const char *value = values; *value && !is; value += strcspn(value, "|"), value += *value == '|') {
        char one[32];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(value, "|"), value);
        is = config_is(j, node, one);
    }
    return is;
}

/* It must be so. All of the values mean the same as the first. */
static void config_must_be(config_reader *r, uint32_t node, const char *key, const char *values) {
    if (!r->code && !config_is_one(r->j, node, values))
        config_refuse(r, node, key, "mote supports %.*s only", (int)strcspn(values, "|"), values);
}

/* A field that must be absent, or have such a value. */
static void config_only(config_reader *r, uint32_t object, const char *key, const char *values) {
    const uint32_t node = config_get(r, object, key);
    if (node) config_must_be(r, node, key, values);
}

/* The sides of FP8 blocks: weight_block_size of the official checkpoints, block_structure of compressed-tensors' groups. */
static void config_blocks(config_reader *r, uint32_t q, config *c) {
    uint64_t rows = TILE, cols = TILE;
    const char *key = "weight_block_size";
    uint32_t size = config_get(r, q, key), groups = config_get(r, q, "config_groups");
    if (!size && groups && r->j->nodes[groups].type == JSON_OBJECT) {
        uint32_t name = groups + 1;
        for (uint32_t i = 0; i < r->j->nodes[groups].size && !size; i++, name = r->j->nodes[name + 1].next) {
            uint32_t weights = r->j->nodes[name + 1].type == JSON_OBJECT ? config_get(r, name + 1, "weights") : 0;
            if (weights && r->j->nodes[weights].type == JSON_OBJECT) size = config_get(r, weights, "block_structure");
            if (size && r->j->nodes[size].type == JSON_NULL) size = 0;
        }
        key = "block_structure";
    }
    if (r->code || !size || r->j->nodes[size].type == JSON_NULL) return;
    if (r->j->nodes[size].type != JSON_ARRAY || r->j->nodes[size].size != 2 || !json_u64(r->j, size + 1, &rows) ||
        !json_u64(r->j, size + 2, &cols) || !rows || !cols || rows > 1 << 20 || cols > 1 << 20)
        config_fail(r, MOTE_EUNSUPPORTED, "%s must be [rows, cols]", key);
    c->fp8_rows = (int)rows;
    c->fp8_cols = (int)cols;
}

/* Weights that are rotated, as by Hadamard matrices, and ask the same of what they are multiplied with, which tensors do not tell. */
static void config_transforms(config_reader *r, uint32_t q) {
    static const char *const keys[] = {"transform_config", "hadamard_config", "rotation_config", "rotation", "hadamard_group_size"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !r->code; i++) {
        const uint32_t node = config_get(r, q, keys[i]);
        const json_node *n = &r->j->nodes[node];
        if (!node || config_is_one(r->j, node, "false") || (n->type >= JSON_ARRAY && !n->size)) continue;
        config_refuse(r, node, keys[i], "mote does not transform what quantised weights are multiplied with");
    }
}

/* quantization_config. Which format a tensor has is seen when it is bound; read here is what tensors do not tell: the sides of
   FP8 blocks, and which of two layouts of one shape files of GPTQ and AWQ have. */
static void config_quantization(config_reader *r, config *c) {
    uint32_t q = config_get(r, 0, "quantization_config");
    c->fp8_rows = c->fp8_cols = TILE;
    if (!q) q = config_get(r, r->text, "quantization_config");
    if (!q || r->j->nodes[q].type != JSON_OBJECT) return;
    uint32_t method = config_get(r, q, "quant_method"), version = config_get(r, q, "checkpoint_format");
    uint32_t packing = config_get(r, q, "packing_format"), symmetric = config_get(r, q, "sym");
    config_only(r, q, "fmt", "e4m3|float8_e4m3fn");
    if (method && config_is(r->j, method, "awq")) config_only(r, q, "version", "gemm");
    c->zeros_stored = version && config_is(r->j, version, "gptq_v2");
    if (packing && (config_is(r->j, packing, "auto_round") || config_is(r->j, packing, "auto_round:gptqmodel")))
        c->zeros_stored = 1;
    c->asymmetric = symmetric && config_is(r->j, symmetric, "false");
    if (!c->zeros_stored) config_only(r, q, "checkpoint_format", "gptq");
    config_blocks(r, q, c);
    config_transforms(r, q);
    r->read[q] = KEY_READ;                     /* what else it says of tensors, these show themselves */
}
