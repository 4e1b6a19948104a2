/* generate/grammar/schema_values.c: values that stand in a JSON schema, in enum and const: are two the same, is one allowed by the other
   keywords beside it? */

static int number_same(const json *j, uint32_t a, uint32_t b) {
    const json_node *x = j->nodes + a, *y = j->nodes + b;
    decimal d, e;
    if (x->size == y->size && !memcmp(j->text + x->start, j->text + y->start, x->size)) return 1;
    if (!read_decimal(j, a, &d) || !read_decimal(j, b, &e) || d.whole == DECIMAL_MAX) return 0;
    return !decimal_order(d, e) && (d.negative == e.negative || (!d.whole && !d.part));
}

static int value_same(schema *s, uint32_t a, uint32_t b) {
    const json *j = s->j;
    const json_node *x = j->nodes + a, *y = j->nodes + b;
    uint32_t l = b + 1;
    if (x->type != y->type || !schema_work(s, 1)) return 0;
    if (x->type == JSON_STRING) return same_string(j, a, b);
    if (x->type == JSON_NUMBER) return number_same(j, a, b);
    if (x->type < JSON_ARRAY) return 1;
    if (x->size != y->size || (x->type == JSON_OBJECT && !schema_work(s, x->size))) return 0;
    for (uint32_t k = a + 1; k < x->next && x->type == JSON_ARRAY; k = next_node(j, k), l = next_node(j, l))
        if (!value_same(s, k, l)) return 0;
    for (uint32_t k = a + 1; k < x->next && x->type == JSON_OBJECT; k = next_node(j, k + 1)) {
        uint32_t other = schema_work(s, x->size) ? value_under(j, b, k) : 0;
        if (!other || !value_same(s, k + 1, other)) return 0;
    }
    return 1;
}

static int value_fits(schema *s, uint32_t value, uint32_t schema_node, int depth);

static int value_is_of(const json *j, uint32_t value, uint32_t name) {
    static const char *const names[] = {"null", "boolean", "boolean", "number", "string", "array", "object"};
    decimal d;
    uint32_t type = j->nodes[value].type;
    if (json_equals(j, name, "integer")) return type == JSON_NUMBER && read_decimal(j, value, &d) && !d.part;
    return json_equals(j, name, names[type]);
}

static int value_fits_type(const json *j, uint32_t value, uint32_t schema_node) {
    uint32_t type = json_get(j, schema_node, "type");
    if (!type || value_is_of(j, value, type)) return 1;
    if (node_is(j, json_get(j, schema_node, "nullable"), JSON_TRUE) && j->nodes[value].type == JSON_NULL) return 1;
    for (uint32_t k = type + 1; node_is(j, type, JSON_ARRAY) && k < j->nodes[type].next; k = next_node(j, k))
        if (value_is_of(j, value, k)) return 1;
    return 0;
}

/* The number of schemas of a list that the value fits. */
static uint32_t value_fits_some(schema *s, uint32_t value, uint32_t list, int depth) {
    uint32_t n = 0;
    for (uint32_t k = list + 1; !s->code && k < next_node(s->j, list); k = next_node(s->j, k))
        n += (uint32_t)value_fits(s, value, k, depth);
    return n;
}

static int value_fits_object(schema *s, uint32_t value, uint32_t schema_node, int depth) {
    const json *j = s->j;
    uint32_t properties = json_get(j, schema_node, "properties"), required = json_get(j, schema_node, "required");
    uint32_t more = json_get(j, schema_node, "additionalProperties");
    for (uint32_t k = required + 1; node_is(j, required, JSON_ARRAY) && k < next_node(j, required); k = next_node(j, k))
        if (!value_under(j, value, k)) return 0;
    for (uint32_t k = value + 1; k < next_node(j, value); k = next_node(j, k + 1)) {
        uint32_t own = value_under(j, properties, k);
        if ((own || more) && !value_fits(s, k + 1, own ? own : more, depth)) return 0;
    }
    return 1;
}

/* The schema of item `index`; 0: any. */
static uint32_t schema_of_item(const json *j, uint32_t schema_node, uint32_t index) {
    uint32_t list = json_get(j, schema_node, "prefixItems"), rest = json_get(j, schema_node, "items");
    if (node_is(j, rest, JSON_ARRAY)) list = rest, rest = json_get(j, schema_node, "additionalItems");
    if (!node_is(j, list, JSON_ARRAY) || index >= j->nodes[list].size) return rest;
    for (list++; index; index--) list = next_node(j, list);
    return list;
}

static int value_fits_array(schema *s, uint32_t value, uint32_t schema_node, int depth) {
    const json *j = s->j;
    uint32_t i = 0, size = j->nodes[value].size;
    if (size < schema_size(s, schema_node, "minItems", 0) || size > schema_size(s, schema_node, "maxItems", UINT32_MAX)) return 0;
    for (uint32_t k = value + 1; k < next_node(j, value); k = next_node(j, k)) {
        uint32_t item = schema_of_item(j, schema_node, i++);
        if (item && !value_fits(s, k, item, depth)) return 0;
    }
    return 1;
}

static int range_read(schema *s, uint32_t schema_node, number_range *r);
static int32_t schema_automaton(schema *s, const uint32_t *set, int n, uint32_t least, uint32_t most);

static int value_fits_number(schema *s, uint32_t value, uint32_t schema_node) {
    number_range r;
    decimal d;
    range_open(&r, 0, 1);
    if (!range_read(s, schema_node, &r) || !read_decimal(s->j, value, &d)) return !s->code;
    if (!d.whole && !d.part) d.negative = 0;
    return d.whole >= DECIMAL_MAX ? !r.sign[d.negative].none : range_has(&r, d.negative, d, d) && (!r.multiple || !d.part);
}

static int value_fits_string(schema *s, uint32_t value, uint32_t schema_node) {
    const char *at = s->j->text + s->j->nodes[value].start, *end = at + s->j->nodes[value].size;
    uint32_t n = string_length(s->j, value);
    int q = 1;
    if (n < schema_size(s, schema_node, "minLength", 0) || n > schema_size(s, schema_node, "maxLength", UINT32_MAX)) return 0;
    if (!json_get(s->j, schema_node, "pattern")) return 1;
    int32_t i = schema_automaton(s, &schema_node, 1, 0, UINT32_MAX);
    if (i < 0) return 0;
    while (at < end && q) q = automaton_step(automaton_at(s, i), q, next_character(&at, end));
    return q && automaton_at(s, i)->accepts[q];
}

static uint32_t schema_reference(schema *s, uint32_t reference);

/* Whether a value of the schema's text fits a schema, by all its keywords. */
static int value_fits(schema *s, uint32_t value, uint32_t schema_node, int depth) {
    const json *j = s->j;
    if (depth > VALUE_DEPTH) return schema_refuse(s, schema_node, "a schema nested so deep");
    if (!schema_work(s, 1)) return 0;
    if (j->nodes[schema_node].type != JSON_OBJECT) return j->nodes[schema_node].type != JSON_FALSE;
    uint32_t reference = json_get(j, schema_node, "$ref"), all = json_get(j, schema_node, "allOf");
    uint32_t any = json_get(j, schema_node, "anyOf"), one = json_get(j, schema_node, "oneOf");
    uint32_t list = json_get(j, schema_node, "enum"), only = json_get(j, schema_node, "const"), same = 0;
    if (reference && !value_fits(s, value, schema_reference(s, reference), depth + 1)) return 0;
    if (all && value_fits_some(s, value, all, depth + 1) != j->nodes[all].size) return 0;
    if (any && !value_fits_some(s, value, any, depth + 1)) return 0;
    if (one && value_fits_some(s, value, one, depth + 1) != 1) return 0;
    if (only && !value_same(s, value, only)) return 0;
    if (value > list && value < next_node(j, list)) same = 1;           /* one of these itself */
    for (uint32_t k = list + 1; node_is(j, list, JSON_ARRAY) && !same && k < next_node(j, list); k = next_node(j, k))
        same = (uint32_t)value_same(s, value, k);
    if ((list && !same) || !value_fits_type(j, value, schema_node)) return 0;
    switch (j->nodes[value].type) {
    case JSON_OBJECT: return value_fits_object(s, value, schema_node, depth + 1);
    case JSON_ARRAY: return value_fits_array(s, value, schema_node, depth + 1);
    case JSON_STRING: return value_fits_string(s, value, schema_node);
    case JSON_NUMBER: return value_fits_number(s, value, schema_node);
    default: return 1;
    }
}
