/* text/arguments.c: the arguments of a tool call as JSON values, by the JSON schema of the tool's parameters. It knows schemas
   and text, and nothing of how a call is written.

   A schema is taken as a whole: what $ref points to, allOf, anyOf, oneOf, const, enum and nullable together say which types a
   value may have. Where a string may stand, the text is that string, whatever it looks like. */

/* Writing a call; what does not fit into memory is seen once, at its end. */
typedef struct argument_writer {
    const json *tools;          /* a list; NULL: not known */
    uint32_t parameters;        /* the schema of the tool's parameters; 0: not known */
    json_mender mender;
    buf value;
    int no_memory;
} argument_writer;

static void argument_writer_free(argument_writer *a) {
    buf_free(&a->mender.out);
    buf_free(&a->value);
}

/* Parses a text of which it is not an error to be no JSON. 1: it is; *j is to be freed then. */
static int may_parse(argument_writer *a, const buf *text, json *j) {
    mote_error why;
    int code = text->failed ? MOTE_ENOMEM : json_parse(j, text->data, text->size, "a call", &why);
    a->no_memory |= code == MOTE_ENOMEM;
    return !code;
}

static int may_put_json(argument_writer *a, const json *j, uint32_t node, buf *out) {
    mote_error why;
    size_t before = out->size;
    int code = put_json(j, node, out, &why);
    a->no_memory |= code == MOTE_ENOMEM || out->failed;
    if (code) out->size = before;
    return !code;
}

/* ---- Names and places in a schema ---- */

enum { NAME_MOST = 512 }; /* bytes: longer names and pointers are found nowhere */

/* 1: the node is a string that is equal to s once unescaped. */
static int string_is(const json *j, uint32_t node, slice s) {
    const json_node *n = j->nodes + node;
    char text[NAME_MOST];
    if (n->type != JSON_STRING) return 0;
    if (!memchr(j->text + n->start, '\\', n->size)) return n->size == s.n && !memcmp(j->text + n->start, s.p, s.n);
    return s.n <= sizeof text && json_string(j, node, text, sizeof text) == s.n && !memcmp(text, s.p, s.n);
}

/* The value of a key, as json_get's. */
static uint32_t member_of(const json *j, uint32_t object, slice key) {
    uint32_t found = 0;
    if (j->nodes[object].type != JSON_OBJECT) return 0;
    for (uint32_t k = object + 1; k < j->nodes[object].next; k = j->nodes[k + 1].next)
        if (string_is(j, k, key)) found = k + 1;
    return found;
}

static uint32_t element_of(const json *j, uint32_t list, slice digits) {
    uint32_t k = list + 1, left = 0;
    if (!digits.n || digits.n > 9) return 0;
    for (size_t i = 0; i < digits.n; i++) {
        if (digits.p[i] < '0' || digits.p[i] > '9') return 0;
        left = left * 10 + (uint32_t)(digits.p[i] - '0');
    }
    if (left >= j->nodes[list].size) return 0;
    while (left--) k = j->nodes[k].next;
    return k;
}

static int hex_digit(char c) {
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Replaces %25 and the like in place. Returns the size then. */
static size_t percent_decode(char *text, size_t n) {
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        int high = text[i] == '%' && i + 2 < n ? hex_digit(text[i + 1]) : -1, low = high < 0 ? -1 : hex_digit(text[i + 2]);
        text[size++] = low < 0 ? text[i] : (char)(high * 16 + low);
        if (low >= 0) i += 2;
    }
    return size;
}

/* Replaces a pointer's ~0 and ~1. */
static slice tilde_decode(char *text, size_t n) {
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        int escaped = text[i] == '~' && i + 1 < n && (text[i + 1] == '0' || text[i + 1] == '1');
        text[size++] = !escaped ? text[i] : text[++i] == '0' ? '~' : '/';
    }
    return slice_of(text, size);
}

/* The node that a "$ref" names within the schema `root`: a URI fragment that is a JSON pointer (RFC 6901). 0: nothing there. */
static uint32_t ref_target(const json *j, uint32_t root, uint32_t ref) {
    char text[NAME_MOST];
    size_t n = json_string(j, ref, text, sizeof text);
    uint32_t at = root;
    if (!n || n > sizeof text || *text != '#') return 0;
    n = percent_decode(text, n);
    for (size_t begin = 1, end; begin < n && at; begin = end) {
        if (text[begin++] != '/') return 0;
        for (end = begin; end < n && text[end] != '/'; end++) {}
        slice name = tilde_decode(text + begin, end - begin);
        at = j->nodes[at].type == JSON_ARRAY ? element_of(j, at, name) : member_of(j, at, name);
    }
    return at;
}

/* ---- Types ---- */

enum {
    CAN_BE_NULL = 1, CAN_BE_BOOLEAN = 2, CAN_BE_NUMBER = 4, CAN_BE_STRING = 8, CAN_BE_LIST = 16, CAN_BE_OBJECT = 32,
    CAN_BE_ANY = 63,
    CAN_BE_OTHER_STRING = 64    /* one that is listed, as the text is not: a string if nothing else can be meant */
};

static const int types_of_json[] = {CAN_BE_NULL, CAN_BE_BOOLEAN, CAN_BE_BOOLEAN, CAN_BE_NUMBER, CAN_BE_STRING, CAN_BE_LIST, CAN_BE_OBJECT};  /* by JSON_NULL, ... */

enum { WALK_DEPTH = 32, WALK_STEPS = 1000 }; /* of schemas that refer to themselves, or to the same again and again */

typedef struct schema_walk {
    const json *j;
    uint32_t root;
    slice value;                /* trimmed */
    int steps;
} schema_walk;

static int type_named(const json *j, uint32_t node) {
    static const struct { const char *name; int type; } types[] = {
        {"null", CAN_BE_NULL}, {"boolean", CAN_BE_BOOLEAN}, {"number", CAN_BE_NUMBER}, {"integer", CAN_BE_NUMBER},
        {"string", CAN_BE_STRING}, {"array", CAN_BE_LIST}, {"object", CAN_BE_OBJECT}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (json_equals(j, node, types[i].name)) return types[i].type;
    return CAN_BE_ANY;
}

/* Of "type": a name or a list of names. */
static int types_named(const json *j, uint32_t node) {
    int types = 0;
    if (j->nodes[node].type != JSON_ARRAY) return type_named(j, node);
    for (uint32_t k = node + 1; k < j->nodes[node].next; k = j->nodes[k].next) types |= type_named(j, k);
    return types;
}

/* Those of both. */
static int types_of_both(int a, int b) {
    const int strings = CAN_BE_STRING | CAN_BE_OTHER_STRING, is_other = (a | b) & CAN_BE_OTHER_STRING && a & strings && b & strings;
    return (a & b) | (is_other ? CAN_BE_OTHER_STRING : 0);
}

/* Of a list of values: one that is a string counts as such if it is the text. */
static int types_of_values(const schema_walk *w, uint32_t first, uint32_t end) {
    int found = 0, strings = 0;
    for (uint32_t k = first; k < end; k = w->j->nodes[k].next) {
        int type = types_of_json[w->j->nodes[k].type];
        if (type != CAN_BE_STRING) found |= type;
        else if (string_is(w->j, k, w->value)) return CAN_BE_STRING;
        else strings = CAN_BE_OTHER_STRING;
    }
    return found ? found : strings;
}

static int value_types(schema_walk *w, uint32_t node, int depth);

static int types_of_all(schema_walk *w, uint32_t list, int depth) {
    int types = CAN_BE_ANY;
    if (w->j->nodes[list].type != JSON_ARRAY) return CAN_BE_ANY;
    for (uint32_t k = list + 1; k < w->j->nodes[list].next; k = w->j->nodes[k].next) types = types_of_both(types, value_types(w, k, depth));
    return types;
}

static int types_of_any(schema_walk *w, uint32_t list, int depth) {
    int types = 0;
    if (w->j->nodes[list].type != JSON_ARRAY) return CAN_BE_ANY;
    for (uint32_t k = list + 1; k < w->j->nodes[list].next; k = w->j->nodes[k].next) types |= value_types(w, k, depth);
    return types;
}

/* The types that the schema allows; all of them where it says nothing, or contradicts itself. */
static int value_types(schema_walk *w, uint32_t node, int depth) {
    const json *j = w->j;
    uint32_t k;
    int types = CAN_BE_ANY;
    if (!node || j->nodes[node].type != JSON_OBJECT || depth == WALK_DEPTH || w->steps-- <= 0) return CAN_BE_ANY;
    if ((k = json_get(j, node, "type")) != 0) types &= types_named(j, k);
    if ((k = json_get(j, node, "const")) != 0) types = types_of_both(types, types_of_values(w, k, k + 1));
    if ((k = json_get(j, node, "enum")) != 0 && j->nodes[k].type == JSON_ARRAY)
        types = types_of_both(types, types_of_values(w, k + 1, j->nodes[k].next));
    if ((k = json_get(j, node, "$ref")) != 0) types = types_of_both(types, value_types(w, ref_target(j, w->root, k), depth + 1));
    if ((k = json_get(j, node, "allOf")) != 0) types = types_of_both(types, types_of_all(w, k, depth + 1));
    if ((k = json_get(j, node, "anyOf")) != 0) types = types_of_both(types, types_of_any(w, k, depth + 1));
    if ((k = json_get(j, node, "oneOf")) != 0) types = types_of_both(types, types_of_any(w, k, depth + 1));
    if ((k = json_get(j, node, "nullable")) != 0 && j->nodes[k].type == JSON_TRUE) types |= CAN_BE_NULL;
    return types ? types : CAN_BE_ANY;
}

/* The schema of a property, wherever the schema `node` lists it. 0: nowhere. */
static uint32_t schema_property(schema_walk *w, uint32_t node, slice name, int depth) {
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    const json *j = w->j;
    uint32_t k, found = 0;
    if (!node || j->nodes[node].type != JSON_OBJECT || depth == WALK_DEPTH || w->steps-- <= 0) return 0;
    if ((k = json_get(j, node, "properties")) != 0) found = member_of(j, k, name);
    if (!found && (k = json_get(j, node, "$ref")) != 0) found = schema_property(w, ref_target(j, w->root, k), name, depth + 1);
    for (int i = 0; i < 3; i++) {
        uint32_t list = json_get(j, node, lists[i]);
        if (!list || j->nodes[list].type != JSON_ARRAY) continue;
        for (k = list + 1; !found && k < j->nodes[list].next; k = j->nodes[k].next)
            found = schema_property(w, k, name, depth + 1);
    }
    return found;
}

static schema_walk walk_of(const argument_writer *a, slice value) {
    schema_walk w = {a->tools, a->parameters, value, WALK_STEPS};
    return w;
}

/* The schema of a parameter that the tool has; 0: it has none of this name, or the tools do not say. */
static uint32_t parameter_schema(const argument_writer *a, slice name) {
    schema_walk w = walk_of(a, name);
    return a->parameters ? schema_property(&w, a->parameters, name, 0) : 0;
}

/* ---- Tools ---- */

/* The tool of this name: its object, in which "name" and "parameters" are. 0: there is none. */
static uint32_t tool_named(const json *tools, slice name) {
    for (uint32_t k = 1; k < tools->count; k = tools->nodes[k].next) {
        uint32_t of = json_get(tools, k, "function"), tool = of ? of : k, at = json_get(tools, tool, "name");
        if (at && string_is(tools, at, name)) return tool;
    }
    return 0;
}

/* ---- Values ---- */

/* 1: the text is this word, in lower case, upper case or both. */
static int is_word(slice s, const char *lower) {
    if (s.n != strlen(lower)) return 0;
    for (size_t i = 0; i < s.n; i++)
        if ((s.p[i] >= 'A' && s.p[i] <= 'Z' ? s.p[i] + 32 : s.p[i]) != lower[i]) return 0;
    return 1;
}

/* A number's text as JSON has numbers: without a plus and zeros before it. */
static void put_plain_number(slice s, buf *out) {
    int minus = slice_starts(s, "-");
    if (minus || slice_starts(s, "+")) s = slice_from(s, 1);
    while (s.n > 1 && s.p[0] == '0' && s.p[1] >= '0' && s.p[1] <= '9') s = slice_from(s, 1);
    if (minus) buf_text(out, "-");
    buf_slice(out, s);
}

/* The JSON that a value's text stands for, into a->value. known: there is a schema. */
static void put_meant(argument_writer *a, int known, int types, slice s) {
    static const char *const words[][2] = {{"true", "true"}, {"false", "false"}, {"null", "null"}, {"none", "null"}};
    const char *word = NULL;
    int text = types & CAN_BE_STRING;
    a->value.size = 0;
    if (!known || !s.n || python_word(s, 1, &word) != (int)s.n) word = NULL;
    for (int i = 0; i < 4 && !text; i++)
        if (is_word(s, words[i][0])) word = words[i][1];
    if (word) buf_text(&a->value, word);
    else if ((slice_starts(s, "{") || slice_starts(s, "[")) && mend_json(&a->mender, s, 1))
        buf_add(&a->value, a->mender.out.data, a->mender.out.size);
    else if ((types & CAN_BE_NUMBER) && !text) put_plain_number(s, &a->value);
    else buf_slice(&a->value, s);
    a->no_memory |= a->value.failed | a->mender.out.failed;
}

/* The schema of an argument; 0: there is none. *types: those that the schema allows a value of this text, which is trimmed. */
static uint32_t argument_types(const argument_writer *a, slice name, slice text, int *types) {
    schema_walk w = walk_of(a, text);
    uint32_t schema = parameter_schema(a, name);
    if (!schema && a->parameters) schema = json_get(a->tools, a->parameters, "additionalProperties");
    if (schema && a->tools->nodes[schema].type != JSON_OBJECT) schema = 0;
    *types = value_types(&w, schema, 0);
    if (*types == CAN_BE_OTHER_STRING) *types = CAN_BE_STRING;
    *types &= ~CAN_BE_OTHER_STRING;
    return schema;
}

/* Writes what a->value holds, if it is JSON of these types. */
static int put_parsed(argument_writer *a, int types, buf *out) {
    json parsed;
    if (!may_parse(a, &a->value, &parsed)) return 0;
    const int done = types & types_of_json[parsed.nodes[0].type] && may_put_json(a, &parsed, 0, out);
    json_free(&parsed);
    return done;
}

/* Writes an argument's text as the value that its schema wants; without one as JSON, if it is that and no string. 0: it is left
   out, as there is nothing and that is no such value. */
static int put_argument(argument_writer *a, slice name, slice text, buf *out) {
    const slice s = slice_trim(text);
    int types;
    const uint32_t schema = argument_types(a, name, s, &types);
    if (!s.n && !(types & CAN_BE_STRING)) return 0;
    if (types != CAN_BE_ANY && (types & CAN_BE_STRING)) {
        int null = (types & CAN_BE_NULL) && s.n == 4 && (!memcmp(s.p, "null", 4) || !memcmp(s.p, "None", 4));
        if (null) buf_text(out, "null");
        else put_quoted(text, out);
        return 1;
    }
    put_meant(a, schema != 0, types, s);
    if (!s.n || !put_parsed(a, schema ? CAN_BE_ANY : CAN_BE_ANY & ~CAN_BE_STRING, out)) put_quoted(text, out);
    return 1;
}

/* The same of a text without quotes, where strings have them: it is a string only if it is nothing else that its schema names. */
static int put_bare_argument(argument_writer *a, slice name, slice text, buf *out) {
    const slice s = slice_trim(text);
    int types;
    (void)argument_types(a, name, s, &types);
    if (types != CAN_BE_ANY && types & CAN_BE_STRING && s.n) {
        types &= ~CAN_BE_STRING;
        put_meant(a, 1, types, s);
        if (put_parsed(a, types, out)) return 1;
    }
    return put_argument(a, name, text, out);
}
