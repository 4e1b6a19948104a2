/* generate/grammar/schema.c: the parts of a compiled JSON schema, and how they are found again. It knows what values a schema allows, and
   nothing of JSON Schema's keywords (compile.c) or of texts (follow.c).

   A node stands for schemas that all hold at once: those that one place of the schema names by $ref, allOf, properties of
   several objects. What they allow is a list of kinds: an object of such names, a string of such a length, one of these
   literals. Alternatives of anyOf are kinds of one node, so that a text is followed through all of them at once. */

enum { SCHEMA_TEXT = 1 << 20, SCHEMA_NODES = 4096, SCHEMA_NAMES = 256, SCHEMA_LITERALS = 1 << 14, SCHEMA_KINDS = 64,
       VALUE_DEPTH = 64, SCHEMA_STATES = 1 << 14, SCHEMA_WORK = 1000000, SCHEMA_CHARACTERS = 1 << 24, NO_HEIGHT = 255 };

enum { KIND_OBJECT, KIND_ARRAY, KIND_STRING, KIND_NUMBER, KIND_LITERALS };

typedef struct schema_kind {
    uint8_t kind;
    uint8_t height;              /* levels of objects and lists that it needs at least; NO_HEIGHT: there is no such value */
    int32_t first, count;        /* object: names; list: nodes of its first items; literals: texts. Sorted but for items */
    int32_t more;                /* node of values under other names, of further items; -1: there are none */
    uint32_t least, most;        /* items, characters; most UINT32_MAX: no bound */
    int32_t detail;              /* string: its automaton, -1: none; number: its range */
} schema_kind;

typedef struct schema_name { uint32_t text, size; int32_t node; int required; } schema_name;   /* as in JSON, without quotes */

typedef struct schema_literal { uint32_t text, size; } schema_literal;                         /* as in JSON */

typedef struct schema_node {
    int32_t first, count;        /* kinds */
    uint32_t set, set_count;     /* what all holds: see compile.c */
    uint32_t hash;
    uint8_t height;              /* the least of its kinds */
} schema_node;

typedef struct schema {
    buf nodes, kinds, names, items, literals, ranges, automata, text;  /* items: nodes; automata: pointers */
    buf sets;                    /* uint32_t: see compile.c */
    buf exclusive;               /* uint32_t[2]: lists of oneOf, whose alternatives must exclude each other, and what tells them apart */
    const json *j;               /* while it is compiled */
    mote_error *err;
    char label[80];              /* what is said to be the trouble: "schema", "tools: the parameters of f" */
    int code;                    /* the first failure */
    uint32_t root;               /* JSON node that "#" is */
    int work, states;            /* that are left */
    unsigned char *checked;      /* [nodes of j] keywords and oneOf are looked at once */
    json own;                    /* of schema_open */
    buf source;
} schema;

static schema_node *node_at(const schema *s, int32_t i) { return (schema_node *)(void *)s->nodes.data + i; }
static schema_kind *kind_at(const schema *s, int32_t i) { return (schema_kind *)(void *)s->kinds.data + i; }
static schema_name *name_at(const schema *s, int32_t i) { return (schema_name *)(void *)s->names.data + i; }
static schema_literal *literal_at(const schema *s, int32_t i) { return (schema_literal *)(void *)s->literals.data + i; }
static int32_t item_at(const schema *s, int32_t i) { return ((const int32_t *)(const void *)s->items.data)[i]; }
static number_range *range_at(const schema *s, int32_t i) { return (number_range *)(void *)s->ranges.data + i; }
static automaton *automaton_at(const schema *s, int32_t i) { return ((automaton **)(void *)s->automata.data)[i]; }
static const uint32_t *set_at(const schema *s, uint32_t i) { return (const uint32_t *)(const void *)s->sets.data + i; }

static int schema_count(const buf *list, size_t size) {
    return (int)(list->size / size);
}

enum { SHOWN_MOST = 60 };        /* bytes of a value or a name in a message */
#define NO_PLACE UINT32_MAX

/* So many of a text's n bytes are shown in a message: whole characters. */
static int shown(const char *text, size_t n) {
    size_t most = SHOWN_MOST;
    if (n <= most) return (int)n;
    while (most && ((unsigned char)text[most] & 0xc0) == 0x80) most--;
    return (int)most;
}

/* A JSON pointer to a node of the schema, as in $ref: #/properties/a. Long ones begin with ... */
static void schema_place(const schema *s, uint32_t node, char *out, size_t capacity) {
    const json *j = s->j;
    size_t n = (size_t)snprintf(out, capacity, "#"), half = capacity / 2;
    for (uint32_t at = s->root, index; at != node && j->nodes[at].type >= JSON_ARRAY;) {
        const int object = j->nodes[at].type == JSON_OBJECT;
        uint32_t k = at + 1, key = at + 1;
        for (index = 0; k < j->nodes[at].next; k = j->nodes[k].next, index++) {
            key = k;
            if (object) k++;
            if (node < j->nodes[k].next) break;
        }
        if (k >= j->nodes[at].next) break;
        if (n > half) n = (size_t)snprintf(out, capacity, "...");
        if (object) n += (size_t)snprintf(out + n, capacity - n, "/%.*s", shown(j->text + j->nodes[key].start, j->nodes[key].size), j->text + j->nodes[key].start);
        else n += (size_t)snprintf(out + n, capacity - n, "/%u", index);
        if (key == node) break;
        at = k;
    }
}

/* The beginning of a value as JSON, a little more than is shown. */
static void put_beginning(buf *out, const json *j, uint32_t node) {
    const json_node *v = j->nodes + node;
    const int object = v->type == JSON_OBJECT;
    if (v->type == JSON_STRING) buf_text(out, "\"");
    if (v->type < JSON_ARRAY) buf_add(out, j->text + v->start, v->size < SHOWN_MOST + 4 ? v->size : (size_t)SHOWN_MOST + 4);
    if (v->type == JSON_STRING) buf_text(out, "\"");
    if (v->type < JSON_ARRAY) return;
    buf_text(out, object ? "{" : "[");
    for (uint32_t k = node + 1; k < v->next && out->size <= SHOWN_MOST; k = j->nodes[k].next) {
        if (k > node + 1) buf_text(out, ", ");
        if (object) {
            put_beginning(out, j, k++);
            buf_text(out, ": ");
        }
        put_beginning(out, j, k);
    }
    buf_text(out, object ? "}" : "]");
}

/* Returns 0. The first refusal counts. node: the value that is complained of; NO_PLACE: the whole schema. */
__attribute__((format(printf, 3, 4))) static int schema_refuse(schema *s, uint32_t node, const char *format, ...) {
    char what[160], place[160];
    buf value = {NULL, 0, 0, 0};
    va_list args;
    if (s->code) return 0;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const char *label = s->label[0] ? s->label : "schema";
    if (node != NO_PLACE) {
        schema_place(s, node, place, sizeof place);
        put_beginning(&value, s->j, node);
    }
    const int most = value.failed ? 0 : shown(value.data, value.size);
    if (most) s->code = fail(s->err, MOTE_EINVAL, "%s: %s is not supported: %s is %.*s%s", label, what, place, most, value.data,
                             (size_t)most < value.size ? "..." : "");
    else s->code = fail(s->err, MOTE_EINVAL, "%s: %s is not supported", label, what);
    buf_free(&value);
    return 0;
}

/* The same of a text that stands in no place of its own. */
static int schema_refuse_text(schema *s, const char *what, const char *text, size_t n) {
    const int most = shown(text, n);
    if (s->code) return 0;
    s->code = fail(s->err, MOTE_EINVAL, "%s: %s is not supported: \"%.*s\"%s", s->label[0] ? s->label : "schema", what, most, text,
                   (size_t)most < n ? "..." : "");
    return 0;
}

static int schema_failed(schema *s) {
    if (s->text.size > SCHEMA_CHARACTERS) schema_refuse(s, NO_PLACE, "so large a schema");
    if (s->nodes.failed | s->kinds.failed | s->names.failed | s->items.failed | s->literals.failed | s->ranges.failed |
        s->automata.failed | s->text.failed | s->sets.failed | s->exclusive.failed)
        s->code = s->code ? s->code : fail_memory(s->err);
    return s->code;
}

/* Takes n off the work that is left: 0 when it is done. */
static int schema_work(schema *s, uint32_t n) {
    if (s->work >= 0 && (s->work -= n < SCHEMA_WORK ? (int)n : (int)SCHEMA_WORK) >= 0) return 1;
    return schema_refuse(s, NO_PLACE, "so large a schema");
}

enum { SCHEMA_LISTS = 11 };

static buf *schema_list(schema *s, int i) {
    buf *lists[SCHEMA_LISTS] = {&s->nodes, &s->kinds, &s->names, &s->items, &s->literals, &s->ranges, &s->automata, &s->text,
                                &s->sets, &s->exclusive, &s->source};
    return lists[i];
}

static void schema_free(schema *s) {
    if (!s) return;
    for (int i = 0; i < schema_count(&s->automata, sizeof(automaton *)); i++) automaton_free(automaton_at(s, i));
    for (int i = 0; i < SCHEMA_LISTS; i++) buf_free(schema_list(s, i));
    json_free(&s->own);
    free(s->checked);
    free(s);
}

/* NULL: out of memory. No list is without memory, so that they have a beginning even where they are empty. */
static schema *schema_new(void) {
    schema *s = (schema *)calloc(1, sizeof *s);
    int ok = s != NULL;
    for (int i = 0; i < SCHEMA_LISTS && ok; i++) {
        ok = buf_add(schema_list(s, i), NULL, 1) != NULL;
        schema_list(s, i)->size = 0;
    }
    if (s) s->work = SCHEMA_WORK, s->states = SCHEMA_STATES;
    if (!ok) schema_free(s), s = NULL;
    return s;
}

/* ---- Texts of the schema ------------------------------------------------------------------------------------------------ */

/* A character inside a JSON string, as models write it: only what must be is escaped. */
static void put_character(buf *out, uint32_t c) {
    static const char names[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    char text[8];
    const char *at = c && c < 128 ? strchr(values, (int)c) : NULL;
    if (at) snprintf(text, sizeof text, "\\%c", names[at - values]);
    else snprintf(text, sizeof text, "\\u%04x", c & 0xffff);
    if (at || c < 0x20) buf_text(out, text);
    else utf8_put(out, c);
}

/* The next character of a JSON string between its quotes. */
static uint32_t next_character(const char **at, const char *end) {
    uint32_t c = 0;
    int n = **at == '\\' ? json_escape(*at, end, &c) : utf8_decode(*at, (size_t)(end - *at), &c);
    *at += n > 0 ? n : 1;
    return c;
}

/* Appends a string's characters as they stand in JSON, without quotes. */
static void put_json_text(buf *out, const json *j, uint32_t node) {
    const char *at = j->text + j->nodes[node].start, *end = at + j->nodes[node].size;
    while (at < end) put_character(out, next_character(&at, end));
}

static uint32_t string_length(const json *j, uint32_t node) {
    const char *at = j->text + j->nodes[node].start, *end = at + j->nodes[node].size;
    uint32_t n = 0;
    for (; at < end; n++) (void)next_character(&at, end);
    return n;
}

/* Whether two strings are the same text. */
static int same_string(const json *j, uint32_t a, uint32_t b) {
    const char *x = j->text + j->nodes[a].start, *x_end = x + j->nodes[a].size;
    const char *y = j->text + j->nodes[b].start, *y_end = y + j->nodes[b].size;
    while (x < x_end && y < y_end)
        if (next_character(&x, x_end) != next_character(&y, y_end)) return 0;
    return x == x_end && y == y_end;
}

/* The value under the same key as the string `key`; 0: there is none. */
static uint32_t value_under(const json *j, uint32_t object, uint32_t key) {
    uint32_t found = 0;
    if (!object || j->nodes[object].type != JSON_OBJECT) return 0;
    for (uint32_t k = object + 1; k < j->nodes[object].next; k = j->nodes[k + 1].next)
        if (same_string(j, k, key)) found = k + 1;
    return found;
}

/* The child after this one, inside a list or object whose children end at `end`. */
static uint32_t next_node(const json *j, uint32_t node) {
    return j->nodes[node].next;
}

static int node_is(const json *j, uint32_t node, uint32_t type) {
    return node && j->nodes[node].type == type;
}

static int read_decimal(const json *j, uint32_t node, decimal *out) {
    return j->nodes[node].type == JSON_NUMBER && decimal_read(j->text + j->nodes[node].start, j->nodes[node].size, out);
}

/* A keyword's whole number that is not negative, `absent` without it. */
static uint32_t schema_size(schema *s, uint32_t schema_node, const char *key, uint32_t absent) {
    uint32_t node = json_get(s->j, schema_node, key);
    decimal d;
    if (!node) return absent;
    if (!read_decimal(s->j, node, &d) || d.negative || d.part) return (uint32_t)schema_refuse(s, node, "%s of no whole number", key);
    return d.whole < UINT32_MAX ? (uint32_t)d.whole : (uint32_t)UINT32_MAX;
}

/* ---- Heights --------------------------------------------------------------------------------------------------------- */

/* The number of further levels that the kind needs, by what is known of its nodes. */
static int kind_height(const schema *s, const schema_kind *k) {
    int most = 0;
    if (k->kind == KIND_OBJECT)
        for (int i = 0; i < k->count; i++) {
            const schema_name *n = name_at(s, k->first + i);
            int height = n->required ? (int)node_at(s, n->node)->height : 0;
            most = height > most ? height : most;
        }
    if (k->kind == KIND_ARRAY && k->least > k->most) return NO_HEIGHT;
    if (k->kind == KIND_ARRAY)
        for (uint32_t i = 0; i < k->least && i <= (uint32_t)k->count; i++) {
            int32_t node = i < (uint32_t)k->count ? item_at(s, k->first + (int)i) : k->more;
            int height = node < 0 ? (int)NO_HEIGHT : (int)node_at(s, node)->height;
            most = height > most ? height : most;
        }
    if (k->kind != KIND_OBJECT && k->kind != KIND_ARRAY) return k->height;
    return most >= VALUE_DEPTH ? NO_HEIGHT : most + 1;
}

/* The least fixed point: a value that holds itself has no height. */
static void schema_heights(schema *s) {
    int nodes = schema_count(&s->nodes, sizeof(schema_node));
    for (int i = 0; i < nodes; i++) node_at(s, i)->height = NO_HEIGHT;
    for (int more = 1; more;) {
        more = 0;
        for (int i = nodes - 1; i >= 0; i--) {
            schema_node *n = node_at(s, i);
            for (int k = n->first; k < n->first + n->count; k++) {
                schema_kind *kind = kind_at(s, k);
                int height = kind_height(s, kind);
                kind->height = (uint8_t)height;
                if (height < n->height) more = 1, n->height = (uint8_t)height;
            }
        }
    }
}
