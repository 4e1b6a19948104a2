/* generate/grammar/compile.c: from the keywords of a JSON schema to what it allows (schema.c).

   All schemas that a value must fit form a set, which is a node: {the schema itself} at first. What $ref and allOf name joins the
   set; each alternative of anyOf and oneOf makes a case of it, a set of its own. The keywords of a case's schemas are then
   merged, kind by kind. The value under a name must fit what each of them says of it: a set again, and so on until no set is
   new. So keywords beside $ref and anyOf hold, and recursion is a node that names itself.

   Every keyword is honoured, or says nothing about the value, or is refused by its name. */

/* ---- What a case's schemas say together --------------------------------------------------------------------------------- */

static const struct { const char *name; unsigned types; } type_names[] = {
    {"object", IS_OBJECT}, {"array", IS_ARRAY}, {"string", IS_STRING}, {"number", IS_NUMBER}, {"integer", IS_NUMBER},
    {"boolean", IS_BOOLEAN}, {"null", IS_NULL}};

static unsigned schema_type(schema *s, uint32_t name, int *whole) {
    for (size_t i = 0; i < sizeof type_names / sizeof type_names[0]; i++)
        if (json_equals(s->j, name, type_names[i].name)) {
            if (type_names[i].types == IS_NUMBER) *whole &= i == 4;
            return type_names[i].types;
        }
    return (unsigned)schema_refuse(s, name, "a type that JSON does not have");
}

/* The types of one schema; *whole: of numbers only whole ones. */
static unsigned types_of(schema *s, uint32_t schema_node, int *whole) {
    const json *j = s->j;
    uint32_t type = json_get(j, schema_node, "type");
    unsigned types = 0;
    *whole = type != 0;
    if (!type) return IS_ANY;
    if (!node_is(j, type, JSON_ARRAY)) types = schema_type(s, type, whole);
    else if (!j->nodes[type].size) schema_refuse(s, type, "an empty list of types");
    for (uint32_t k = type + 1; node_is(j, type, JSON_ARRAY) && k < next_node(j, type); k = next_node(j, k))
        types |= schema_type(s, k, whole);
    return node_is(j, json_get(j, schema_node, "nullable"), JSON_TRUE) ? types | IS_NULL : types;
}

static unsigned case_types(schema *s, const schema_case *c, int *whole) {
    unsigned types = IS_ANY;
    int one;
    *whole = 0;
    for (int i = 0; i < c->count; i++)
        if (!(c->member[i] & ~(uint32_t)MEMBER_NODE)) types &= types_of(s, c->member[i], &one), *whole |= one;
    return types;
}

/* Narrows a range by one schema's bounds; 0: refused. */
static int range_read(schema *s, uint32_t schema_node, number_range *r) {
    static const char *const keys[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
    const json *j = s->j;
    for (int i = 0; i < 5; i++) {
        uint32_t node = json_get(j, schema_node, keys[i]);
        decimal d;
        if (!node) continue;
        if (i >= 2 && i < 4 && (node_is(j, node, JSON_TRUE) || node_is(j, node, JSON_FALSE))) continue;   /* draft 4: below */
        if (!read_decimal(j, node, &d)) return schema_refuse(s, node, "%s of such a number", keys[i]);
        int exclusive = i >= 2 || (i < 2 && node_is(j, json_get(j, schema_node, keys[i + 2]), JSON_TRUE));
        if (i < 4) range_bound(r, d, i % 2 == 0, exclusive);
        else if (d.part || !d.whole || d.negative || d.whole > DECIMAL_PART) return schema_refuse(s, node, "multipleOf of no whole number");
        else {
            uint64_t a = r->multiple ? r->multiple : 1, b = d.whole;
            while (b) { uint64_t rest = a % b; a = b; b = rest; }
            uint64_t times = d.whole / a, old = r->multiple ? r->multiple : 1;
            if (old > DECIMAL_MAX / times) return schema_refuse(s, node, "multipleOf of so large a number");
            r->multiple = old * times;
        }
    }
    return 1;
}

static int case_has(const schema *s, const schema_case *c, const char *key) {
    for (int i = 0; i < c->count; i++)
        if (!(c->member[i] & ~(uint32_t)MEMBER_NODE) && json_get(s->j, c->member[i], key)) return 1;
    return 0;
}

static int case_range(schema *s, const schema_case *c, int whole, number_range *r) {
    int bounds = case_has(s, c, "minimum") || case_has(s, c, "maximum") || case_has(s, c, "exclusiveMinimum") ||
                 case_has(s, c, "exclusiveMaximum") || case_has(s, c, "multipleOf");
    range_open(r, whole || case_has(s, c, "multipleOf"), bounds);
    for (int i = 0; i < c->count; i++)
        if (!(c->member[i] & ~(uint32_t)MEMBER_NODE) && !range_read(s, c->member[i], r)) return 0;
    return !range_is_empty(r, 0) || !range_is_empty(r, 1);
}

/* The largest of a keyword's numbers, or the smallest. */
static uint32_t case_size(schema *s, const schema_case *c, const char *key, int largest) {
    uint32_t all = largest ? 0 : UINT32_MAX;
    for (int i = 0; i < c->count; i++) {
        if (c->member[i] & ~(uint32_t)MEMBER_NODE) continue;
        uint32_t one = schema_size(s, c->member[i], key, largest ? 0 : UINT32_MAX);
        if (largest ? one > all : one < all) all = one;
    }
    return all;
}

/* The automaton of all patterns of a set together; -1: none fits, or it is refused. */
static int32_t schema_automaton(schema *s, const uint32_t *set, int n, uint32_t least, uint32_t most) {
    pattern p;
    uint32_t last = NO_PLACE;
    int ok = pattern_open(&p);
    int32_t all = ok ? re_times(&p, p.any, (int32_t)(least < INT32_MAX ? least : INT32_MAX), most < INT32_MAX ? (int32_t)most : -1) : 0;
    for (int i = 0; i < n && ok && !p.problem; i++) {
        uint32_t node = set[i] & ~(uint32_t)MEMBER_NODE ? 0 : json_get(s->j, set[i], "pattern");
        buf text;
        memset(&text, 0, sizeof text);
        if (!node) continue;
        last = node;
        size_t size = json_string(s->j, node, NULL, 0);
        char *at = (char *)buf_add(&text, NULL, size + 1);
        if (at) json_string(s->j, node, at, size);
        ok = at != NULL;
        if (ok && s->j->nodes[node].type != JSON_STRING) schema_refuse(s, node, "a pattern that is no string");
        if (ok) all = re_join(&p, RE_AND, all, re_parse(&p, at, size));
        buf_free(&text);
    }
    automaton *a = ok && !p.problem && !s->code ? automaton_of(&p, all, &s->states) : NULL;
    if (p.problem) schema_refuse(s, last, "%s", p.problem);
    else if (!a && !s->code) s->code = fail_memory(s->err);
    pattern_close(&p);
    if (a && automaton_has_strings(a)) {
        if (!buf_add(&s->automata, &a, sizeof a)) automaton_free(a);
        return schema_failed(s) ? -1 : schema_count(&s->automata, sizeof a) - 1;
    }
    automaton_free(a);
    return -1;
}

/* ---- Names and items --------------------------------------------------------------------------------------------------- */

typedef struct case_name { uint32_t key; int required; } case_name;        /* key: a JSON string */

static int name_add(schema *s, buf *names, uint32_t key, int required) {
    case_name *list = (case_name *)(void *)names->data, one = {key, required};
    int n = schema_count(names, sizeof one);
    if (!schema_work(s, (uint32_t)n / 16 + 1)) return 0;
    for (int i = 0; i < n; i++)
        if (same_string(s->j, list[i].key, key)) return list[i].required |= required, 1;
    if (n == SCHEMA_NAMES) return schema_refuse(s, key, "an object of more than 256 properties");
    return buf_add(names, &one, sizeof one) || (s->code = fail_memory(s->err), 0);
}

/* All names that the schemas of a case know. */
static int case_names(schema *s, const schema_case *c, buf *names) {
    const json *j = s->j;
    for (int i = 0; i < c->count && !s->code; i++) {
        if ((c->member[i] & MEMBER_TAG) == MEMBER_TAG) (void)name_add(s, names, c->member[i] & MEMBER_NODE, 1);
        if (c->member[i] & ~(uint32_t)MEMBER_NODE) continue;
        uint32_t properties = json_get(j, c->member[i], "properties"), required = json_get(j, c->member[i], "required");
        if ((properties && j->nodes[properties].type != JSON_OBJECT) || (required && j->nodes[required].type != JSON_ARRAY))
            return schema_refuse(s, node_is(j, properties, JSON_OBJECT) || !properties ? required : properties,
                                 "properties that are no object, or required that is no list");
        for (uint32_t k = properties + 1; properties && !s->code && k < next_node(j, properties); k = next_node(j, k + 1))
            (void)name_add(s, names, k, 0);
        for (uint32_t k = required + 1; required && !s->code && k < next_node(j, required); k = next_node(j, k)) {
            if (j->nodes[k].type != JSON_STRING) return schema_refuse(s, k, "required that names no text");
            (void)name_add(s, names, k, 1);
        }
    }
    return !s->code;
}

/* The schemas, n of them, that the value under a name must fit. key 0: any other name. */
static int case_value(const schema *s, const schema_case *c, uint32_t key, uint32_t *set) {
    const json *j = s->j;
    int n = 0;
    for (int i = 0; i < c->count; i++) {
        if (c->member[i] & ~(uint32_t)MEMBER_NODE) continue;
        uint32_t own = key ? value_under(j, json_get(j, c->member[i], "properties"), key) : 0;
        if (!own) own = json_get(j, c->member[i], "additionalProperties");
        if (own) set[n++] = own;
    }
    return n;
}

static int case_item(const schema *s, const schema_case *c, uint32_t index, uint32_t *set) {
    int n = 0;
    for (int i = 0; i < c->count; i++) {
        uint32_t item = c->member[i] & ~(uint32_t)MEMBER_NODE ? 0 : schema_of_item(s->j, c->member[i], index);
        if (item) set[n++] = item;
    }
    return n;
}

static int member_order(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The node of a set: a new one if there is none yet. */
static int32_t schema_node_of(schema *s, uint32_t *set, int n) {
    int count = schema_count(&s->nodes, sizeof(schema_node)), unique = 0;
    qsort(set, (size_t)n, sizeof *set, member_order);
    for (int i = 0; i < n; i++)
        if (!unique || set[i] != set[unique - 1]) set[unique++] = set[i];
    uint32_t hash = fold(fnv1a(FNV_START, set, (size_t)unique * sizeof *set));
    for (int i = 0; i < count; i++) {
        const schema_node *node = node_at(s, i);
        if (node->hash == hash && node->set_count == (uint32_t)unique &&
            !memcmp(set_at(s, node->set), set, (size_t)unique * sizeof *set))
            return i;
    }
    if (count == SCHEMA_NODES) return schema_refuse(s, NO_PLACE, "a schema of more than 4096 parts") - 1;
    schema_node node = {.first = 0, .count = 0, .set = (uint32_t)schema_count(&s->sets, sizeof *set), .set_count = (uint32_t)unique,
                        .hash = hash, .height = NO_HEIGHT};
    if (unique) buf_add(&s->sets, set, (size_t)unique * sizeof *set);
    buf_add(&s->nodes, &node, sizeof node);
    return schema_failed(s) ? -1 : count;
}

/* ---- Alternatives that exclude each other ------------------------------------------------------------------------------- */

static uint32_t case_literals(schema *s, const schema_case *c, uint32_t *list);
static int literal_fits(schema *s, const schema_case *c, uint32_t value);

static int set_is_empty(schema *s, const uint32_t *set, int n, int depth);

static int object_is_empty(schema *s, const schema_case *c, int depth) {
    buf names;
    uint32_t set[CASE_SETS];
    int empty = 0;
    memset(&names, 0, sizeof names);
    (void)case_names(s, c, &names);
    for (int i = 0; i < schema_count(&names, sizeof(case_name)) && !empty && !s->code; i++) {
        const case_name *name = (const case_name *)(const void *)names.data + i;
        if (name->required) empty = set_is_empty(s, set, case_value(s, c, name->key, set), depth - 1);
    }
    buf_free(&names);
    return empty;
}

/* Whether it is certain that no value fits. */
static int case_is_empty(schema *s, const schema_case *c, int depth) {
    uint32_t list, count = case_literals(s, c, &list), n = 0;
    int whole;
    number_range r;
    for (uint32_t k = list; n < count && !s->code; k = next_node(s->j, k), n++)
        if (literal_fits(s, c, k)) return 0;
    if (count) return 1;
    unsigned types = case_types(s, c, &whole);
    if (types & IS_OBJECT && !object_is_empty(s, c, depth)) return 0;
    if (types & IS_ARRAY && case_size(s, c, "minItems", 1) <= case_size(s, c, "maxItems", 0)) return 0;
    if (types & IS_STRING && case_size(s, c, "minLength", 1) <= case_size(s, c, "maxLength", 0)) return 0;
    if (types & IS_NUMBER && case_range(s, c, whole, &r)) return 0;
    return !(types & (IS_BOOLEAN | IS_NULL));
}

static int set_is_empty(schema *s, const uint32_t *set, int n, int depth) {
    buf cases;
    int empty = 1;
    if (depth < 0) return 0;
    memset(&cases, 0, sizeof cases);
    schema_cases(s, set, n, &cases);
    for (int i = 0; i < schema_count(&cases, sizeof(schema_case)) && empty && !s->code; i++)
        empty = case_is_empty(s, (const schema_case *)(const void *)cases.data + i, depth);
    buf_free(&cases);
    return empty;
}

/* oneOf is as anyOf where no value fits two alternatives. tag: a name that all must have; 0: none. */
static int schema_exclusive(schema *s, uint32_t list, uint32_t tag) {
    int i = 0;
    for (uint32_t k = list + 1; k < next_node(s->j, list); k = next_node(s->j, k), i++) {
        int h = 0;
        for (uint32_t l = list + 1; l < k; l = next_node(s->j, l), h++) {
            uint32_t set[3] = {l, k, tag | MEMBER_TAG};
            int empty = set_is_empty(s, set, tag ? 3 : 2, EXCLUDES_DEPTH);
            if (s->code || !empty) return schema_refuse(s, list, "oneOf whose alternatives %d and %d do not exclude each other", h, i);
        }
    }
    return 1;
}
