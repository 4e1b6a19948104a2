/* generate/schema.c: the JSON that an answer may be: a JSON schema becomes a few nodes, and a text is
   followed through them byte by byte. Tokens with which it would leave the shape are masked. It knows JSON and words, and
   nothing of sessions.

   What can come next never depends on a guess: alternatives of anyOf must begin with different characters. So a position is a
   stack of open values, and a byte is taken or not. White space between values is bounded, as are numbers: a model that finds
   no end is given one. Text is bounded where the schema does so. */

enum { SHAPE_NODES = 512, SHAPE_PROPERTIES = 2048, SHAPE_LITERALS = 2048, SHAPE_DEPTH = 24, SHAPE_KEYS = 64 };
enum { GAP_SPACES = 32, DIGITS_MOST = 15, LITERAL_MOST = 4096 };   /* the last one in bytes */

/* How a value begins; and the types of a node. */
enum { BEGINS_OBJECT = 1, BEGINS_ARRAY = 2, BEGINS_STRING = 4, BEGINS_NUMBER = 8, BEGINS_TRUE = 16, BEGINS_FALSE = 32,
       BEGINS_NULL = 64, BEGINS_ALL = 127, BEGINS_BOOLEAN = BEGINS_TRUE | BEGINS_FALSE };

typedef struct shape_node {
    unsigned types;                        /* BEGINS_... */
    int whole;                             /* numbers are whole */
    int properties, property_count;        /* of an object: in shape.properties */
    int more;                              /* node of values under any other key; -1: there are none */
    int items, items_least, items_most;    /* of an array: a node; -1: no bound */
    int length_least, length_most;         /* of a string, in characters; -1: no bound */
    int literals, literal_count;           /* these alone, in shape.literals; count 0: any */
    int branches, branch_count;            /* one of these nodes, in shape.branches; count 0: this node */
} shape_node;

typedef struct shape_property { char *key; int node, required; } shape_property;   /* key: as in JSON, with its quotes */

enum { INSIDE_VALUE, INSIDE_OBJECT, INSIDE_KEY, INSIDE_WORD, INSIDE_ARRAY, INSIDE_STRING, INSIDE_NUMBER, INSIDE_LITERAL };

/* An open value. */
typedef struct shape_frame {
    int in;
    int16_t node, at;                      /* at: what of it; see the functions of each */
    int32_t count;                         /* items, characters, digits */
    int16_t literal, more;                 /* the literal or property that fits so far; bytes that a character still lacks */
    uint8_t low, high;                     /* of the next of these */
    uint64_t seen;                         /* properties */
} shape_frame;

typedef struct shape_place {
    int depth;                             /* frames; 0: the value is complete */
    int lines, spaces;                     /* white space since the last byte that was none */
    shape_frame frame[SHAPE_DEPTH];
} shape_place;

typedef struct shape {
    shape_node nodes[SHAPE_NODES];
    shape_property properties[SHAPE_PROPERTIES];
    char *literals[SHAPE_LITERALS];
    int branches[SHAPE_NODES];
    uint32_t sources[SHAPE_NODES];         /* the schema's JSON nodes */
    int node_count, property_count, literal_count, branch_count;
    int first_lines;                       /* line feeds that may come before the value */
    const json *j;                         /* while it is made */
    mote_error *err;
    int refused;
    shape_place now;
    unsigned char *allowed;                /* [vocabulary] */
    shape_place *tried;                    /* [WORD_MAX + 1] */
} shape;

static void shape_free(shape *s) {
    if (!s) return;
    for (int i = 0; i < s->property_count; i++) free(s->properties[i].key);
    for (int i = 0; i < s->literal_count; i++) free(s->literals[i]);
    free(s->allowed);
    free(s->tried);
    free(s);
}

/* ---- From a schema to nodes ---------------------------------------------------------------------------------------- */

static int shape_compile(shape *s, uint32_t schema);

static int shape_refuse(shape *s, const char *what) {
    if (!s->refused) fail(s->err, MOTE_EINVAL, "schema: %s is not supported", what);
    s->refused = 1;
    return 0;
}

static int shape_add(shape *s, uint32_t source) {
    if (s->node_count == SHAPE_NODES) return shape_refuse(s, "a schema of more than 500 parts");
    shape_node *n = &s->nodes[s->node_count];
    memset(n, 0, sizeof *n);
    n->types = BEGINS_ALL;
    n->items_most = n->length_most = -1;
    s->sources[s->node_count] = source;
    return s->node_count++;
}

/* A value of the schema, as it is there but for white space. */
static void put_value_text(buf *out, const json *j, uint32_t node) {
    const json_node *n = j->nodes + node;
    int object = n->type == JSON_OBJECT;
    if (n->type == JSON_STRING) buf_text(out, "\"");
    if (n->type < JSON_ARRAY) buf_add(out, j->text + n->start, n->size);
    if (n->type == JSON_STRING) buf_text(out, "\"");
    if (n->type < JSON_ARRAY) return;
    buf_text(out, object ? "{" : "[");
    for (uint32_t k = node + 1; k < n->next; k = j->nodes[k].next) {
        if (k > node + 1) buf_text(out, ", ");
        if (object) {
            put_value_text(out, j, k++);
            buf_text(out, ": ");
        }
        put_value_text(out, j, k);
    }
    buf_text(out, object ? "}" : "]");
}

/* The text of a string, unescaped; NULL: out of memory. */
static char *string_text(const json *j, uint32_t node) {
    size_t n = json_string(j, node, NULL, 0);
    char *text = (char *)malloc(n + 1);
    if (!text) return NULL;
    json_string(j, node, text, n);
    text[n] = 0;
    return text;
}

static char *shape_json(const json *j, uint32_t node) {
    buf text = {NULL, 0, 0, 0};
    put_value_text(&text, j, node);
    buf_add(&text, "", 1);
    if (!text.failed && text.size <= LITERAL_MOST) return text.data;
    buf_free(&text);
    return NULL;
}

static int shape_literal(shape *s, uint32_t value) {
    char *text = s->literal_count < SHAPE_LITERALS ? shape_json(s->j, value) : NULL;
    if (!text) return shape_refuse(s, "an enum of more than 2048 values, or of one so long,");
    s->literals[s->literal_count++] = text;
    return 1;
}

static int shape_type(shape *s, shape_node *n, uint32_t name) {
    static const struct { const char *name; unsigned types; } known[] = {
        {"object", BEGINS_OBJECT}, {"array", BEGINS_ARRAY}, {"string", BEGINS_STRING}, {"number", BEGINS_NUMBER},
        {"integer", BEGINS_NUMBER}, {"boolean", BEGINS_BOOLEAN}, {"null", BEGINS_NULL}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (json_equals(s->j, name, known[i].name)) {
            if (i == 3) n->whole = -1;                          /* also numbers that are not whole */
            if (i == 4 && !n->whole) n->whole = 1;
            return (int)(n->types |= known[i].types);
        }
    return shape_refuse(s, "a type that JSON does not have");
}

/* "type": a name or a list of names */
static int shape_types(shape *s, int at, uint32_t type) {
    shape_node *n = &s->nodes[at];
    const json *j = s->j;
    if (!type) return 1;
    n->types = 0;
    int ok = 1;
    if (j->nodes[type].type != JSON_ARRAY) ok = shape_type(s, n, type);
    else
        for (uint32_t k = type + 1; ok && k < j->nodes[type].next; k = j->nodes[k].next) ok = shape_type(s, n, k);
    if (n->whole < 0) n->whole = 0;
    return ok && (n->types || shape_refuse(s, "an empty list of types"));
}

static int shape_bound(shape *s, uint32_t schema, const char *key, int *out) {
    uint32_t node = json_get(s->j, schema, key);
    double value;
    if (!node) return 1;
    if (json_double(s->j, node, &value) || value < 0 || value > 1 << 24 || value != floor(value)) return shape_refuse(s, key);
    *out = (int)value;
    return 1;
}

static int shape_is_required(const shape *s, uint32_t required, uint32_t key) {
    for (uint32_t k = required + 1; required && k < s->j->nodes[required].next; k = s->j->nodes[k].next) {
        char *name = string_text(s->j, k);
        int same = name && json_equals(s->j, key, name);
        free(name);
        if (same) return 1;
    }
    return 0;
}

static int shape_properties(shape *s, int at, uint32_t schema) {
    const json *j = s->j;
    uint32_t properties = json_get(j, schema, "properties"), required = json_get(j, schema, "required");
    uint32_t more = json_get(j, schema, "additionalProperties");
    int first = s->property_count, count = 0, needed = 0;
    if ((properties && j->nodes[properties].type != JSON_OBJECT) || (required && j->nodes[required].type != JSON_ARRAY))
        return shape_refuse(s, "properties that are no object, or required that is no list");
    for (uint32_t k = properties + 1; properties && k < j->nodes[properties].next; k = j->nodes[k + 1].next) count++;
    if (required && j->nodes[required].size > SHAPE_KEYS) return shape_refuse(s, "an object of more than 64 properties");
    if (count > SHAPE_KEYS || first + count > SHAPE_PROPERTIES) return shape_refuse(s, "an object of more than 64 properties");
    s->property_count += count;            /* in one piece, whatever the values add */
    s->nodes[at].properties = first;
    s->nodes[at].property_count = count;
    for (uint32_t k = properties + 1, i = 0; (int)i < count; k = j->nodes[k + 1].next, i++) {
        shape_property *p = &s->properties[first + (int)i];
        p->key = shape_json(j, k);
        p->required = shape_is_required(s, required, k);
        needed += p->required;
        if (!p->key) return shape_refuse(s, "so long a name");
        p->node = shape_compile(s, k + 1);
        if (p->node < 0) return 0;
    }
    if (required && needed != (int)j->nodes[required].size) return shape_refuse(s, "required without such a property");
    int has_more = more ? j->nodes[more].type != JSON_FALSE : !count;
    int node = has_more && more ? shape_compile(s, more) : has_more ? 0 : -1;
    s->nodes[at].more = count ? -1 : node;
    return node >= 0 || !has_more;
}

static unsigned shape_begins(const shape *s, int node, int depth);

static int shape_any_of(shape *s, int at, uint32_t list) {
    const json *j = s->j;
    int count = (int)j->nodes[list].size, first = s->branch_count;
    if (j->nodes[list].type != JSON_ARRAY || !count || first + count > SHAPE_NODES) return shape_refuse(s, "such an anyOf");
    s->branch_count += count;
    s->nodes[at].branches = first;
    s->nodes[at].branch_count = count;
    for (uint32_t k = list + 1, i = 0; (int)i < count; k = j->nodes[k].next, i++) {
        int node = shape_compile(s, k);
        if (node < 0) return 0;
        s->branches[first + (int)i] = node;
    }
    return 1;
}

/* "#", "#/$defs/name": the JSON node it names; 0: none */
static uint32_t shape_reference(const shape *s, uint32_t reference, uint32_t root) {
    char *path = string_text(s->j, reference), *at = path;
    uint32_t node = path && path[0] == '#' ? root : 0;
    for (at = path ? path + 1 : NULL; node && *at == '/';) {
        size_t n = strcspn(++at, "/");
        char end = at[n];
        at[n] = 0;
        node = json_get(s->j, node, at);
        at += n;
        *at = end;
    }
    if (!node || *at) node = 0;
    free(path);
    return node;
}

/* Every keyword is one that is honoured or one that says nothing about the text. */
static int shape_keywords(shape *s, uint32_t schema) {
    static const char *const known[] = {
        "type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minLength",
        "maxLength", "enum", "const", "anyOf", "$ref", "$defs", "definitions", "title", "description", "default",
        "example", "examples", "format", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly"};
    const json *j = s->j;
    for (uint32_t k = schema + 1; k < j->nodes[schema].next; k = j->nodes[k + 1].next) {
        size_t i = 0, n = sizeof known / sizeof known[0];
        while (i < n && !json_equals(j, k, known[i])) i++;
        if (i < n) continue;
        char *name = string_text(j, k);
        shape_refuse(s, name ? name : "a keyword");
        free(name);
        return 0;
    }
    return 1;
}

static int shape_fill(shape *s, int at, uint32_t schema) {
    const json *j = s->j;
    uint32_t any = json_get(j, schema, "anyOf"), list = json_get(j, schema, "enum"), only = json_get(j, schema, "const");
    uint32_t items = json_get(j, schema, "items");
    if (any) return shape_any_of(s, at, any);
    if (list || only) {
        s->nodes[at].literals = s->literal_count;
        if (list && j->nodes[list].type != JSON_ARRAY) return shape_refuse(s, "an enum that is no list");
        if (only && !shape_literal(s, only)) return 0;
        for (uint32_t k = list + 1; list && !only && k < j->nodes[list].next; k = j->nodes[k].next)
            if (!shape_literal(s, k)) return 0;
        s->nodes[at].literal_count = s->literal_count - s->nodes[at].literals;
        return s->nodes[at].literal_count || shape_refuse(s, "an empty enum");
    }
    if (!shape_types(s, at, json_get(j, schema, "type")) || !shape_properties(s, at, schema)) return 0;
    if (!shape_bound(s, schema, "minItems", &s->nodes[at].items_least) ||
        !shape_bound(s, schema, "maxItems", &s->nodes[at].items_most) ||
        !shape_bound(s, schema, "minLength", &s->nodes[at].length_least) ||
        !shape_bound(s, schema, "maxLength", &s->nodes[at].length_most))
        return 0;
    const shape_node *n = &s->nodes[at];
    if ((n->items_most >= 0 && n->items_most < n->items_least) || (n->length_most >= 0 && n->length_most < n->length_least))
        return shape_refuse(s, "a largest size below the smallest");
    int node = items ? shape_compile(s, items) : 0;
    s->nodes[at].items = node;
    return node >= 0;
}

/* The node of a schema; -1: it is refused. */
static int shape_compile(shape *s, uint32_t schema) {
    for (int i = 1; i < s->node_count; i++)
        if (s->sources[i] == schema) return i;
    if (s->j->nodes[schema].type == JSON_TRUE) return 0;
    if (s->j->nodes[schema].type != JSON_OBJECT) return shape_refuse(s, "a schema that is no object") - 1;
    uint32_t reference = json_get(s->j, schema, "$ref");
    int at = shape_add(s, schema);
    if (at < 1 || !shape_keywords(s, schema)) return -1;
    if (reference) {
        uint32_t to = shape_reference(s, reference, s->sources[1]);
        int node = to ? shape_compile(s, to) : shape_refuse(s, "a $ref that leads nowhere") - 1;
        if (node < 0 || s->branch_count == SHAPE_NODES) return -1;
        s->nodes[at].branches = s->branch_count;
        s->nodes[at].branch_count = 1;
        s->branches[s->branch_count++] = node;
        return at;
    }
    return shape_fill(s, at, schema) ? at : -1;
}

/* ---- How values begin ------------------------------------------------------------------------------------------------ */

static unsigned begins_with(unsigned char c) {
    switch (c) {
    case '{': return BEGINS_OBJECT;
    case '[': return BEGINS_ARRAY;
    case '"': return BEGINS_STRING;
    case 't': return BEGINS_TRUE;
    case 'f': return BEGINS_FALSE;
    case 'n': return BEGINS_NULL;
    default: return c == '-' || (c >= '0' && c <= '9') ? BEGINS_NUMBER : 0;
    }
}

/* 0: it is its own alternative. */
static unsigned shape_begins(const shape *s, int node, int depth) {
    const shape_node *n = &s->nodes[node];
    unsigned all = 0;
    if (depth > SHAPE_DEPTH) return 0;
    for (int i = 0; i < n->literal_count; i++) all |= begins_with((unsigned char)s->literals[n->literals + i][0]);
    for (int i = 0; i < n->branch_count; i++) {
        unsigned one = shape_begins(s, s->branches[n->branches + i], depth + 1);
        if (!one || one & all) return 0;
        all |= one;
    }
    return all ? all : n->types;
}

/* Compiles the one schema of the list that `j` is. */
static int shape_of(shape *s, const json *j, mote_error *err) {
    s->j = j;
    s->err = err;
    int root = shape_add(s, UINT32_MAX);   /* node 0: anything */
    if (j->nodes[0].size != 1) return fail(err, MOTE_EINVAL, "schema: not one JSON value");
    root = shape_compile(s, 1);
    for (int i = 1; root >= 0 && !s->refused && i < s->node_count; i++)
        if (s->nodes[i].branch_count && !shape_begins(s, i, 0)) shape_refuse(s, "an anyOf whose alternatives begin alike");
    s->now.depth = 1;
    s->now.frame[0].node = (int16_t)root;
    s->j = NULL;
    s->err = NULL;
    return s->refused || root < 0 ? MOTE_EINVAL : MOTE_OK;
}

/* The shape of a JSON schema's text, for a vocabulary of so many tokens. Freed by shape_free in any case. */
static int shape_open(shape **out, const char *schema, int vocab, mote_error *err) {
    buf text;
    json j;
    shape *s = *out = (shape *)calloc(1, sizeof *s);
    memset(&text, 0, sizeof text);
    buf_text(&text, "[");                  /* a schema is no node 0, which means none */
    buf_text(&text, schema);
    buf_text(&text, "]");
    if (s) s->allowed = (unsigned char *)malloc((size_t)vocab);
    if (s) s->tried = (shape_place *)calloc(WORD_MAX + 1, sizeof *s->tried);
    if (!s || !s->allowed || !s->tried || text.failed) {
        buf_free(&text);
        return fail_memory(err);
    }
    int code = json_parse(&j, text.data, text.size, "schema", err);
    if (code == MOTE_EFORMAT && err) err->code = MOTE_EINVAL;
    if (code) code = code == MOTE_EFORMAT ? MOTE_EINVAL : code;
    else code = shape_of(s, &j, err);
    json_free(&j);
    buf_free(&text);
    return code;
}
