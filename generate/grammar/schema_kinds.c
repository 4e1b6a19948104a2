/* generate/grammar/schema_kinds.c: what a set of schemas allows, kind by kind, and a whole schema: schema_open. The keywords are
   compile.c's. */

/* The values of the first enum or const of a case: how many, and the first one's JSON node. */
static uint32_t case_literals(schema *s, const schema_case *c, uint32_t *list) {
    const json *j = s->j;
    for (int i = 0; i < c->count; i++) {
        if (c->member[i] & ~(uint32_t)MEMBER_NODE) continue;
        uint32_t only = json_get(j, c->member[i], "const"), some = json_get(j, c->member[i], "enum");
        *list = only;
        if (only) return 1;
        if (!some) continue;
        if (!case_is_list(s, some, "enum")) return 0;
        *list = some + 1;
        return j->nodes[some].size;
    }
    return 0;
}

/* Whether one of these values fits all schemas of the case. */
static int literal_fits(schema *s, const schema_case *c, uint32_t value) {
    for (int i = 0; i < c->count; i++)
        if (!(c->member[i] & ~(uint32_t)MEMBER_NODE) && !value_fits(s, value, c->member[i], 0)) return 0;
    return !s->code;
}

static schema_kind *kind_add(schema *s, int kind) {
    schema_kind k = {.kind = (uint8_t)kind, .height = 0, .first = 0, .count = 0, .more = -1, .least = 0, .most = UINT32_MAX,
                     .detail = -1};
    return (schema_kind *)buf_add(&s->kinds, &k, sizeof k);
}

/* The end of the schema's texts, from `from` on, is a literal. */
static void literal_mark(schema *s, size_t from) {
    schema_literal one = {(uint32_t)from, (uint32_t)(s->text.size - from)};
    if (schema_count(&s->literals, sizeof one) == SCHEMA_LITERALS) schema_refuse(s, NO_PLACE, "an enum of so many values");
    buf_add(&s->literals, &one, sizeof one);
}

static void literal_add(schema *s, const char *text, size_t n) {
    size_t from = s->text.size;
    buf_add(&s->text, text, n);
    literal_mark(s, from);
}

/* ---- Values of enum and const ---------------------------------------------------------------------------------------------- */

/* A number, a text, true, false or null. A whole number is also written as one: 1.0 is 1. */
static void literal_scalar(schema *s, uint32_t value) {
    const json *j = s->j;
    const json_node *v = j->nodes + value;
    size_t at = s->text.size;
    decimal d;
    char whole[32];
    if (v->type == JSON_STRING) {
        buf_text(&s->text, "\"");
        put_json_text(&s->text, j, value);
        buf_text(&s->text, "\"");
        literal_mark(s, at);
        return;
    }
    literal_add(s, j->text + v->start, v->size);
    if (v->type != JSON_NUMBER || !read_decimal(j, value, &d) || d.part || d.whole == DECIMAL_MAX) return;
    literal_add(s, whole, (size_t)snprintf(whole, sizeof whole, "%s%llu", d.negative && d.whole ? "-" : "", (unsigned long long)d.whole));
}

static int text_order(const schema *s, uint32_t a, uint32_t n, uint32_t b, uint32_t m) {
    int order = memcmp(s->text.data + a, s->text.data + b, n < m ? n : m);
    return order ? order : n < m ? -1 : n > m;
}

/* Appends a name of an object. */
static void object_name(schema *s, uint32_t key, int32_t node, int required) {
    schema_name name = {(uint32_t)s->text.size, 0, node, required};
    put_json_text(&s->text, s->j, key);
    name.size = (uint32_t)s->text.size - name.text;
    buf_add(&s->names, &name, sizeof name);
}

/* The names since `first` are those of an object. */
static void object_add(schema *s, int first, int32_t more) {
    int count = schema_count(&s->names, sizeof(schema_name)) - first;
    schema_kind *kind = schema_failed(s) ? NULL : kind_add(s, KIND_OBJECT);
    if (!kind) return;
    kind->first = first;
    kind->count = count;
    kind->more = more;
    schema_name *list = name_at(s, first);
    for (int i = 1; i < count; i++)
        for (int k = i; k && text_order(s, list[k].text, list[k].size, list[k - 1].text, list[k - 1].size) < 0; k--) {
            schema_name other = list[k];
            list[k] = list[k - 1];
            list[k - 1] = other;
        }
}

/* The items since `first` are the first ones of a list. */
static void array_add(schema *s, int first, int32_t more, uint32_t least, uint32_t most) {
    int count = schema_count(&s->items, sizeof(int32_t)) - first;
    schema_kind *kind = schema_failed(s) ? NULL : kind_add(s, KIND_ARRAY);
    if (!kind) return;
    kind->first = first;
    kind->count = count;
    kind->more = more;
    kind->least = least;
    kind->most = most;
}

/* An object or a list that is exactly this one. */
static void literal_compound(schema *s, uint32_t value) {
    const json *j = s->j;
    int object = j->nodes[value].type == JSON_OBJECT;
    int names = schema_count(&s->names, sizeof(schema_name)), items = schema_count(&s->items, sizeof(int32_t));
    if (j->nodes[value].size > SCHEMA_NAMES) schema_refuse(s, value, "so large a value in an enum");
    for (uint32_t k = value + 1; k < next_node(j, value) && !schema_failed(s); k = next_node(j, object ? k + 1 : k)) {
        uint32_t set[1] = {(object ? k + 1 : k) | MEMBER_VALUE};
        if (object && value_under(j, value, k) != k + 1) continue;      /* given twice: the last one counts */
        int32_t node = schema_node_of(s, set, 1);
        if (object) object_name(s, k, node, 1);
        else buf_add(&s->items, &node, sizeof node);
    }
    if (object) object_add(s, names, -1);
    else array_add(s, items, -1, j->nodes[value].size, j->nodes[value].size);
}

static void literal_value(schema *s, uint32_t value) {
    if (s->j->nodes[value].type < JSON_ARRAY) literal_scalar(s, value);
    else literal_compound(s, value);
}

/* ---- Kinds ------------------------------------------------------------------------------------------------------------------- */

static void object_kind(schema *s, const schema_case *c) {
    buf names;
    uint32_t set[CASE_SETS];
    memset(&names, 0, sizeof names);
    int ok = case_names(s, c, &names), count = schema_count(&names, sizeof(case_name)), first = schema_count(&s->names, sizeof(schema_name));
    for (int i = 0; i < count && ok; i++) {
        const case_name *one = (const case_name *)(const void *)names.data + i;
        int32_t node = schema_node_of(s, set, case_value(s, c, one->key, set));
        object_name(s, one->key, node, one->required);
        ok = !schema_failed(s);
    }
    buf_free(&names);
    if (!ok) return;
    /* An object that says which properties it has, and nothing of others, has no others. */
    int others = case_has(s, c, "additionalProperties") || (!count && !case_has(s, c, "properties"));
    object_add(s, first, others ? schema_node_of(s, set, case_value(s, c, 0, set)) : -1);
}

static void array_kind(schema *s, const schema_case *c) {
    const json *j = s->j;
    uint32_t set[CASE_SETS], count = 0;
    for (int i = 0; i < c->count; i++) {
        if (c->member[i] & ~(uint32_t)MEMBER_NODE) continue;
        uint32_t list = json_get(j, c->member[i], "prefixItems"), old = json_get(j, c->member[i], "items");
        if (list && j->nodes[list].type != JSON_ARRAY) schema_refuse(s, list, "prefixItems that are no list");
        if (node_is(j, old, JSON_ARRAY)) list = old;
        if (list && j->nodes[list].size > count) count = j->nodes[list].size;
    }
    if (count > SCHEMA_NAMES) schema_refuse(s, NO_PLACE, "prefixItems of more than 256 items");
    int first = schema_count(&s->items, sizeof(int32_t));
    for (uint32_t i = 0; i < count && !schema_failed(s); i++) {
        int32_t node = schema_node_of(s, set, case_item(s, c, i, set));
        buf_add(&s->items, &node, sizeof node);
    }
    if (schema_failed(s)) return;
    int32_t more = schema_node_of(s, set, case_item(s, c, count, set));
    array_add(s, first, more, case_size(s, c, "minItems", 1), case_size(s, c, "maxItems", 0));
}

static void string_kind(schema *s, const schema_case *c) {
    uint32_t least = case_size(s, c, "minLength", 1), most = case_size(s, c, "maxLength", 0);
    int32_t found = -1, has = case_has(s, c, "pattern");
    if (least > most || s->code) return;
    if (has) found = schema_automaton(s, c->member, c->count, least, most);
    if (has && found < 0) return;
    schema_kind *kind = kind_add(s, KIND_STRING);
    if (!kind) return;
    kind->least = has ? 0 : least;
    kind->most = has ? UINT32_MAX : most;
    kind->detail = found;
}

static void number_kind(schema *s, const schema_case *c, int whole) {
    number_range r;
    if (!case_range(s, c, whole, &r) || s->code) return;
    schema_kind *kind = kind_add(s, KIND_NUMBER);
    if (kind) kind->detail = schema_count(&s->ranges, sizeof r);
    buf_add(&s->ranges, &r, sizeof r);
}

static void case_kinds(schema *s, const schema_case *c) {
    uint32_t list = 0, count, n = 0;
    int whole;
    if (c->count && c->member[0] & MEMBER_VALUE && !(c->member[0] & MEMBER_CHOICE)) {
        literal_value(s, c->member[0] & MEMBER_NODE);
        return;
    }
    count = case_literals(s, c, &list);
    for (uint32_t k = list; n < count && !s->code; k = next_node(s->j, k), n++)
        if (literal_fits(s, c, k)) literal_value(s, k);
    unsigned types = case_types(s, c, &whole);
    if (count || s->code) return;
    if (types & IS_OBJECT) object_kind(s, c);
    if (types & IS_ARRAY && !s->code) array_kind(s, c);
    if (types & IS_STRING && !s->code) string_kind(s, c);
    if (types & IS_NUMBER && !s->code) number_kind(s, c, whole);
    if (types & IS_BOOLEAN) literal_add(s, "true", 4), literal_add(s, "false", 5);
    if (types & IS_NULL) literal_add(s, "null", 4);
}

static int literal_order(const schema *s, const schema_literal *a, const schema_literal *b) {
    return text_order(s, a->text, a->size, b->text, b->size);
}

/* Sorts texts and drops those that are there twice; returns how many are left. Merges, as there may be thousands. */
static int literals_sort(const schema *s, schema_literal *list, schema_literal *other, int n) {
    if (n < 2) return n;
    int a = n / 2, b = n - a, i = 0, k = 0, count = 0;
    a = literals_sort(s, list, other, a);
    schema_literal *right = list + n / 2;
    b = literals_sort(s, right, other, b);
    while (i < a || k < b) {
        int order = i == a ? 1 : k == b ? -1 : literal_order(s, list + i, right + k);
        other[count++] = order <= 0 ? list[i] : right[k];
        i += order <= 0;
        k += order >= 0;
    }
    memcpy(list, other, (size_t)count * sizeof *list);
    return count;
}

/* The literals since `first` become one kind. */
static void literals_kind(schema *s, int first) {
    int n = schema_count(&s->literals, sizeof(schema_literal)) - first;
    schema_literal *other = n > 0 ? (schema_literal *)malloc((size_t)n * sizeof *other) : NULL;
    if (n <= 0 || schema_failed(s)) return free(other);
    if (!other) s->code = fail_memory(s->err);
    else n = literals_sort(s, literal_at(s, first), other, n);
    free(other);
    s->literals.size = (size_t)(first + n) * sizeof *other;
    schema_kind *kind = kind_add(s, KIND_LITERALS);
    if (!kind) return;
    kind->first = first;
    kind->count = n;
}

/* Finds the kinds of a node. */
static void node_kinds(schema *s, int32_t node) {
    buf cases;
    int first = schema_count(&s->kinds, sizeof(schema_kind)), literals = schema_count(&s->literals, sizeof(schema_literal));
    const schema_node *n = node_at(s, node);
    uint32_t set[CASE_SETS], count = n->set_count;
    memset(&cases, 0, sizeof cases);
    memcpy(set, set_at(s, n->set), count * sizeof *set);
    schema_cases(s, set, (int)count, &cases);
    for (int i = schema_count(&cases, sizeof(schema_case)) - 1; i >= 0 && !schema_failed(s); i--)
        case_kinds(s, (const schema_case *)(const void *)cases.data + i);
    buf_free(&cases);
    if (!s->code) literals_kind(s, literals);
    if (schema_failed(s)) return;
    node_at(s, node)->first = first;
    node_at(s, node)->count = schema_count(&s->kinds, sizeof(schema_kind)) - first;
    if (node_at(s, node)->count > SCHEMA_KINDS) schema_refuse(s, NO_PLACE, "an anyOf of more than 64 alternatives");
}

/* Compiles the schema that is a node of `j`, whose "#" it is. Returns its node; -1: *err says why not. */
static int32_t schema_add(schema *s, const json *j, uint32_t root, mote_error *err) {
    uint32_t set[1] = {root};
    int done = schema_count(&s->nodes, sizeof(schema_node)), checked = schema_count(&s->exclusive, 2 * sizeof(uint32_t));
    free(s->checked);
    s->j = j;
    s->err = err;
    s->root = root;
    s->code = MOTE_OK;
    s->checked = (unsigned char *)calloc(j->count, 1);
    if (!s->checked) s->code = fail_memory(err);
    int32_t node = s->code ? -1 : schema_node_of(s, set, 1);
    for (; done < schema_count(&s->nodes, sizeof(schema_node)) && !schema_failed(s); done++) {
        node_kinds(s, done);
        for (; checked < schema_count(&s->exclusive, 2 * sizeof(uint32_t)) && !schema_failed(s); checked++) {
            const uint32_t *pair = (const uint32_t *)(const void *)s->exclusive.data + 2 * checked;
            (void)schema_exclusive(s, pair[0], pair[1]);
        }
    }
    if (!schema_failed(s)) schema_heights(s);
    if (!s->code && node_at(s, node)->height >= VALUE_DEPTH) schema_refuse(s, root, "a schema that no value fits");
    return s->code ? -1 : node;
}

/* The schema that a text is. *out is to be freed in any case. */
static int schema_open(schema **out, const char *text, int32_t *node, mote_error *err) {
    mote_error why;
    schema *s = *out = schema_new();
    if (!s) return fail_memory(err);
    size_t n = strlen(text);
    if (n > SCHEMA_TEXT) return fail(err, MOTE_EINVAL, "schema: more than 1 MB are not supported");
    buf_add(&s->source, text, n + 1);
    if (s->source.failed) return fail_memory(err);
    int code = json_parse(&s->own, s->source.data, n, "schema", &why);
    if (code == MOTE_ENOMEM) return fail_memory(err);
    if (code) return fail(err, MOTE_EINVAL, "%s", why.message);
    *node = schema_add(s, &s->own, 0, err);
    return s->code;
}
