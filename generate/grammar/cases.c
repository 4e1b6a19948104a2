/* generate/grammar/cases.c: the keywords of a set of JSON schemas (compile.c), the schemas that $ref and allOf add to it, and its cases: one
   alternative of each anyOf and oneOf. Knows what tells alternatives apart; what keywords say of a value compile.c knows. */

enum { CASE_SETS = 48, CASES = 256, EXCLUDES_DEPTH = 3 };

/* How a value begins. */
enum { IS_OBJECT = 1, IS_ARRAY = 2, IS_STRING = 4, IS_NUMBER = 8, IS_BOOLEAN = 16, IS_NULL = 32, IS_ANY = 63 };

/* Members of a set: JSON nodes of schemas, of values that stand for themselves, of lists of alternatives, of names. */
enum { MEMBER_NODE = 0x3fffffff, MEMBER_VALUE = 0x40000000 };
#define MEMBER_CHOICE 0x80000000u
#define MEMBER_TAG 0xc0000000u         /* a name, which objects must have: see choice_tag */

typedef struct schema_case {
    uint32_t member[CASE_SETS];
    int16_t from[CASE_SETS];     /* the member that named it; -1: none */
    int count, at;               /* looked at */
    int fails;                   /* false is a member */
} schema_case;

/* ---- Keywords ------------------------------------------------------------------------------------------------------------- */

/* Whether a keyword that is not supported asks for nothing. */
static int keyword_is_idle(const schema *s, uint32_t key) {
    const json *j = s->j;
    const json_node *v = j->nodes + key + 1;
    uint32_t type = json_get(j, key + 1, "type");
    if (json_equals(j, key, "uniqueItems")) return v->type == JSON_FALSE;
    if (json_equals(j, key, "minProperties")) return v->type == JSON_NUMBER && v->size == 1 && j->text[v->start] == '0';
    if (json_equals(j, key, "propertyNames"))
        return v->type == JSON_TRUE || (v->type == JSON_OBJECT && (!v->size || (v->size == 1 && type && json_equals(j, type, "string"))));
    if (json_equals(j, key, "patternProperties") || json_equals(j, key, "dependentRequired")) return v->type == JSON_OBJECT && !v->size;
    return j->nodes[key].size > 2 && !strncmp(j->text + j->nodes[key].start, "x-", 2);
}

static int schema_keywords(schema *s, uint32_t schema_node) {
    static const char *const known[] = {
        "type", "properties", "required", "additionalProperties", "items", "prefixItems", "additionalItems", "minItems", "maxItems",
        "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum",
        "const", "anyOf", "oneOf", "allOf", "$ref", "nullable",
        "$defs", "definitions", "title", "description", "default", "example", "examples", "format", "$schema", "$id", "$anchor",
        "$comment", "$vocabulary", "deprecated", "readOnly", "writeOnly", "discriminator", "contentEncoding", "contentMediaType",
        "contentSchema"};
    const json *j = s->j;
    for (uint32_t k = schema_node + 1; k < j->nodes[schema_node].next; k = next_node(j, k + 1)) {
        size_t i = 0, n = sizeof known / sizeof known[0];
        while (i < n && !json_equals(j, k, known[i])) i++;
        if (i < n || keyword_is_idle(s, k)) continue;
        return schema_refuse(s, k + 1, "%.*s", shown(j->text + j->nodes[k].start, j->nodes[k].size), j->text + j->nodes[k].start);
    }
    return 1;
}

/* Writes a pointer's next part, between slashes, without %41 and ~1; returns where the next one begins. */
static const char *pointer_part(const char *at, const char *end, buf *out) {
    for (; at < end && *at != '/'; at++) {
        char c = *at;
        if (c == '%' && end - at > 2) {
            char hex[3] = {at[1], at[2], 0}, *stop;
            c = (char)strtol(hex, &stop, 16);
            if (stop != hex + 2 || !c) c = '%';
            else at += 2;
        }
        buf_add(out, &c, 1);
    }
    buf_add(out, "", 1);
    size_t n = 0;
    for (size_t i = 0; !out->failed && i < out->size; i++) {
        char c = out->data[i];
        if (c == '~' && (out->data[i + 1] == '0' || out->data[i + 1] == '1')) c = out->data[++i] == '0' ? '~' : '/';
        out->data[n++] = c;
    }
    return at;
}

/* The node under a name or a number; 0: there is none. */
static uint32_t pointed(const json *j, uint32_t node, const char *part) {
    char *end;
    if (j->nodes[node].type != JSON_ARRAY) return json_get(j, node, part);
    unsigned long i = strtoul(part, &end, 10);
    if (*end || part[0] < '0' || part[0] > '9' || (part[0] == '0' && part[1]) || i >= j->nodes[node].size) return 0;
    for (node++; i; i--) node = next_node(j, node);
    return node;
}

/* The JSON node that a $ref names, a pointer as RFC 6901 has them. */
static uint32_t schema_reference(schema *s, uint32_t reference) {
    const json *j = s->j;
    buf path, part;
    memset(&path, 0, sizeof path);
    memset(&part, 0, sizeof part);
    size_t size = json_string(j, reference, NULL, 0);
    char *text = (char *)buf_add(&path, NULL, size + 1);
    if (text) json_string(j, reference, text, size);
    const char *at = text, *end = text ? text + size : NULL;
    uint32_t node = s->root;
    int found = at && size && *at++ == '#';
    while (found && at < end && *at == '/') {
        part.size = 0;
        at = pointer_part(at + 1, end, &part);
        if (part.failed) break;
        found = schema_work(s, j->nodes[node].size / 32 + 1) && (node = pointed(j, node, part.data)) != 0;
    }
    found = found && at == end;
    if (path.failed | part.failed) s->code = s->code ? s->code : fail_memory(s->err);
    else if (!found) schema_refuse(s, reference, "a $ref that leads nowhere");
    buf_free(&path);
    buf_free(&part);
    return found ? node : s->root;
}

/* ---- Cases of a set ----------------------------------------------------------------------------------------------------- */

static int case_add(schema *s, schema_case *c, uint32_t member, int from) {
    if (!(member & ~(uint32_t)MEMBER_NODE) && s->j->nodes[member].type == JSON_TRUE) return 1;
    if (!(member & ~(uint32_t)MEMBER_NODE) && s->j->nodes[member].type == JSON_FALSE) return c->fails = 1;
    for (int i = 0; i < c->count; i++) {
        if (c->member[i] != member) continue;
        for (int k = from; k >= 0; k = c->from[k])
            if (k == i) return schema_refuse(s, member & MEMBER_NODE, "a schema that is defined by itself");
        return 1;
    }
    if (c->count == CASE_SETS) return schema_refuse(s, member & MEMBER_NODE, "a value of so many schemas");
    c->member[c->count] = member;
    c->from[c->count++] = (int16_t)from;
    return 1;
}

static int case_is_list(schema *s, uint32_t list, const char *name) {
    if (!node_is(s->j, list, JSON_ARRAY)) return schema_refuse(s, list, "%s that is no list", name);
    return s->j->nodes[list].size || schema_refuse(s, list, "an empty %s", name);
}

/* ---- What tells alternatives apart ---------------------------------------------------------------------------------------- */

/* The schema that a chain of $ref ends with; another one of them where it is long, or leads nowhere. */
static uint32_t schema_behind(schema *s, uint32_t node) {
    enum { CHAIN = 16 };
    uint32_t reference;
    for (int i = 0; i < CHAIN && !s->code && (reference = json_get(s->j, node, "$ref")) != 0; i++) node = schema_reference(s, reference);
    return node;
}

/* The values that a schema lists in const or enum: the first one's node, and how many; 0: it lists none. */
static uint32_t listed_values(const json *j, uint32_t schema_node, uint32_t *count) {
    uint32_t only = json_get(j, schema_node, "const"), some = json_get(j, schema_node, "enum");
    *count = only ? 1 : node_is(j, some, JSON_ARRAY) ? j->nodes[some].size : 0;
    return only ? only : *count ? some + 1 : 0;
}

static int requires_name(const json *j, uint32_t schema_node, uint32_t key) {
    uint32_t list = json_get(j, schema_node, "required");
    for (uint32_t k = list + 1; node_is(j, list, JSON_ARRAY) && k < next_node(j, list); k = next_node(j, k))
        if (node_is(j, k, JSON_STRING) && same_string(j, k, key)) return 1;
    return 0;
}

static int share_a_value(schema *s, uint32_t a, uint32_t b) {
    uint32_t n, m, first = listed_values(s->j, a, &n), second = listed_values(s->j, b, &m);
    for (uint32_t i = 0, k = first; i < n && !s->code; i++, k = next_node(s->j, k))
        for (uint32_t h = 0, l = second; h < m; h++, l = next_node(s->j, l))
            if (value_same(s, k, l)) return 1;
    return 0;
}

/* Whether each alternative lists the values of this property, others than the rest do, and either requires it or has a default for
   it. *optional: one does not require it. */
static int tells_apart(schema *s, uint32_t list, uint32_t key, int *optional) {
    const json *j = s->j;
    uint32_t own[SCHEMA_KINDS], count;
    int n = 0;
    *optional = 0;
    for (uint32_t k = list + 1; k < next_node(j, list); k = next_node(j, k)) {
        uint32_t node = schema_behind(s, k), properties = json_get(j, node, "properties");
        if (!schema_work(s, properties ? j->nodes[properties].size / 16 + 1 : 1) || n == SCHEMA_KINDS) return 0;
        uint32_t value = value_under(j, properties, key), values = value ? schema_behind(s, value) : 0;
        if (!values || !listed_values(j, values, &count)) return 0;
        if (!requires_name(j, node, key)) *optional = 1;
        if (*optional && !requires_name(j, node, key) && !json_get(j, value, "default")) return 0;
        for (int i = 0; i < n; i++)
            if (share_a_value(s, own[i], values)) return 0;
        own[n++] = values;
    }
    return n > 1 && !s->code;
}

/* Whether the alternatives that are objects with properties know this name; of those that say no more than that they are objects
   nobody knows. */
static int know_name(schema *s, uint32_t list, uint32_t key) {
    const json *j = s->j;
    for (uint32_t k = list + 1; k < next_node(j, list) && !s->code; k = next_node(j, k)) {
        uint32_t node = schema_behind(s, k), properties = json_get(j, node, "properties"), type = json_get(j, node, "type");
        if (!schema_work(s, properties ? j->nodes[properties].size / 16 + 1 : 1)) return 0;
        if (value_under(j, properties, key) || json_get(j, node, "allOf") || json_get(j, node, "anyOf") || json_get(j, node, "oneOf")) continue;
        if (properties || !type || json_equals(j, type, "object")) return 0;
    }
    return !s->code;
}

/* Libraries that give the property by which alternatives are told apart a default leave it out of `required`; reading, they ask for
   it all the same. So do alternatives here: for the property that the discriminator names, and else that of oneOf for which
   tells_apart. Returns the node of its name; 0: none has to be asked for. */
static uint32_t choice_tag(schema *s, uint32_t schema_node, uint32_t list, int is_one) {
    const json *j = s->j;
    uint32_t discriminator = json_get(j, schema_node, "discriminator"), tag = 0;
    uint32_t named = discriminator ? json_get(j, discriminator, "propertyName") : 0;
    int optional;
    if (node_is(j, named, JSON_STRING)) return know_name(s, list, named) ? named : 0;
    uint32_t properties = is_one ? json_get(j, schema_behind(s, list + 1), "properties") : 0;
    for (uint32_t k = properties + 1; node_is(j, properties, JSON_OBJECT) && k < next_node(j, properties) && !s->code; k = next_node(j, k + 1)) {
        if (!tells_apart(s, list, k, &optional)) continue;
        if (!optional) return 0;
        if (!tag) tag = k;
    }
    return tag;
}

/* Adds a list of alternatives, and the name by which they are told apart. first: the list has not been looked at before. */
static void case_choice(schema *s, schema_case *c, uint32_t list, int is_one, int first, int from) {
    if (!case_is_list(s, list, is_one ? "oneOf" : "anyOf")) return;
    uint32_t pair[2] = {list, choice_tag(s, c->member[from], list, is_one)};
    (void)case_add(s, c, list | MEMBER_CHOICE, from);
    if (pair[1]) (void)case_add(s, c, pair[1] | MEMBER_TAG, from);
    if (is_one && first) buf_add(&s->exclusive, pair, sizeof pair);
}

/* Adds what the member names. */
static int case_member(schema *s, schema_case *c, int from) {
    const json *j = s->j;
    uint32_t node = c->member[from];
    if (j->nodes[node].type != JSON_OBJECT) return schema_refuse(s, node, "a schema that is no object");
    int first = !s->checked[node];
    s->checked[node] = 1;
    if (!schema_work(s, j->nodes[node].size / 16 + 1) || (first && !schema_keywords(s, node))) return 0;
    uint32_t reference = json_get(j, node, "$ref"), all = json_get(j, node, "allOf");
    uint32_t any = json_get(j, node, "anyOf"), one = json_get(j, node, "oneOf");
    if (reference) (void)case_add(s, c, schema_reference(s, reference), from);
    if (all && !case_is_list(s, all, "allOf")) return 0;
    for (uint32_t k = all + 1; all && !s->code && k < next_node(j, all); k = next_node(j, k)) (void)case_add(s, c, k, from);
    if (any) case_choice(s, c, any, 0, first, from);
    if (one) case_choice(s, c, one, 1, first, from);
    return !s->code;
}

/* Appends the cases of a set to out, each with all its members; those in which no value fits are left out. */
static void schema_cases(schema *s, const uint32_t *set, int n, buf *out) {
    buf open;
    schema_case c;
    memset(&open, 0, sizeof open);
    memset(&c, 0, sizeof c);
    for (int i = 0; i < n; i++) (void)case_add(s, &c, set[i], -1);
    for (int more = 1; more && !s->code && schema_work(s, 1);) {
        uint32_t choice = 0;
        while (c.at < c.count && !choice && !c.fails && !s->code) {
            uint32_t member = c.member[c.at++];
            if ((member & MEMBER_TAG) == MEMBER_CHOICE) choice = member & MEMBER_NODE;
            else if (!(member & MEMBER_VALUE)) (void)case_member(s, &c, c.at - 1);
        }
        if (open.size / sizeof c + out->size / sizeof c >= CASES) schema_refuse(s, choice ? choice : NO_PLACE, "an anyOf of so many combinations");
        for (uint32_t k = choice + 1; choice && !s->code && k < next_node(s->j, choice); k = next_node(s->j, k)) {
            schema_case one = c;
            (void)case_add(s, &one, k, c.at - 1);
            buf_add(&open, &one, sizeof one);
        }
        if (!choice && !c.fails) buf_add(out, &c, sizeof c);
        more = open.size > 0;
        if (more) memcpy(&c, open.data + (open.size -= sizeof c), sizeof c);
    }
    if (open.failed | out->failed) s->code = s->code ? s->code : fail_memory(s->err);
    buf_free(&open);
}
