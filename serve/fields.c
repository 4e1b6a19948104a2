/* serve/fields.c: what a request's JSON holds, field by field, and what is said when it is not what was expected. It knows
   JSON and the table of fields, and nothing of what they are for. A field that is null counts as not given. */

/* The first failure counts. Returns 1. What is quoted of a request may be cut in the middle of a character: what is said is
   whole characters nevertheless, and one line. */
__attribute__((format(printf, 4, 5)))
static int refuse(failure *f, int status, const char *param, const char *format, ...) {
    va_list arguments;
    char message[sizeof f->message];
    if (f->status) return 1;
    f->status = status;
    utf8_fit(f->param, sizeof f->param, param ? param : "", param ? strlen(param) : 0);
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    utf8_fit(f->message, sizeof f->message, message, strlen(message));
    for (char *p = f->message; *p; p++)
        if ((unsigned char)*p < 0x20) *p = ' ';
    return 1;
}

/* Refuses with an error of the library. */
static int refuse_error(failure *f, const mote_error *error) {
    switch (error->code) {
    case MOTE_OK: return 0;
    case MOTE_ECONTEXT:
        refuse(f, 400, NULL, "%s", error->message);
        f->code = "context_length_exceeded";
        return 1;
    case MOTE_EINVAL:
    case MOTE_EFORMAT:
    case MOTE_EUNSUPPORTED: return refuse(f, 400, NULL, "%s", error->message);
    case MOTE_EDEVICE: return refuse(f, 503, NULL, "%s", error->message);  /* lost: elsewhere, or later, it may be answered */
    case MOTE_ENOMEM: return refuse(f, 503, NULL, "%s", error->message[0] ? error->message : "out of memory");
    default: return refuse(f, 500, NULL, "%s", error->message);
    }
}

typedef struct fields {                    /* an object of a request */
    const json *j;
    uint32_t object;
    failure *f;
} fields;

static uint32_t field(const fields *q, const char *key) {
    uint32_t node = json_get(q->j, q->object, key);
    return node && q->j->nodes[node].type != JSON_NULL ? node : 0;
}

static uint32_t node_type(const fields *q, uint32_t node) {
    return q->j->nodes[node].type;
}

/* The child after this one; after the last one that is the next of their parent. */
static uint32_t node_next(const fields *q, uint32_t node) {
    return q->j->nodes[node].next;
}

/* The node, if it is given and of that type. */
static uint32_t field_of(const fields *q, const char *key, uint32_t type) {
    static const char *const names[] = {"null", "false", "true", "a number", "a string", "a list", "an object"};
    uint32_t node = field(q, key);
    if (!node || node_type(q, node) == type) return node;
    refuse(q->f, 400, key, "%s must be %s", key, names[type]);
    return 0;
}

/* Where a node of the request stands, as messages[2].content[1]; what does not fit is cut. */
static void node_place(const json *j, uint32_t node, char *to, size_t size) {
    size_t n = 0;
    *to = 0;
    for (uint32_t at = 0, child; at != node && n < size; at = child) {
        const uint32_t is_object = j->nodes[at].type == JSON_OBJECT;
        uint32_t i = 0;
        for (child = at + 1 + is_object; j->nodes[child].next <= node; child = j->nodes[child].next + is_object) i++;
        const json_node *key = &j->nodes[child - is_object];
        if (is_object) n += (size_t)snprintf(to + n, size - n, "%s%.*s", n ? "." : "", key->size < size ? (int)key->size : (int)size, j->text + key->start);
        else n += (size_t)snprintf(to + n, size - n, "[%u]", i);
    }
}

static void field_real(const fields *q, const char *key, double low, double high, float *out) {
    double value;
    uint32_t node = field_of(q, key, JSON_NUMBER);
    if (!node) return;
    if (json_double(q->j, node, &value) || value < low || value > high)
        refuse(q->f, 400, key, "%s must be a number from %g to %g", key, low, high);
    else *out = (float)value;
}

static int node_whole(const json *j, uint32_t node, double low, double high, double *out) {
    return !json_double(j, node, out) && *out >= low && *out <= high && *out == floor(*out);
}

static void field_whole(const fields *q, const char *key, int low, int high, int *out) {
    double value;
    uint32_t node = field_of(q, key, JSON_NUMBER);
    if (!node) return;
    if (!node_whole(q->j, node, low, high, &value))
        refuse(q->f, 400, key, "%s must be a whole number from %d to %d", key, low, high);
    else *out = (int)value;
}

static void field_flag(const fields *q, const char *key, int *out) {
    uint32_t node = field(q, key);
    if (!node) return;
    if (node_type(q, node) != JSON_TRUE && node_type(q, node) != JSON_FALSE)
        refuse(q->f, 400, key, "%s must be true or false", key);
    else *out = node_type(q, node) == JSON_TRUE;
}

/* 1: the value is one of those in `list`, with | between them. */
static int value_is_among(const json *j, uint32_t node, const char *list) {
    const json_node *n = j->nodes + node;
    double value = 0;
    if (n->type == JSON_NUMBER && json_double(j, node, &value)) return 0;
    while (list && *list) {
        size_t size = strcspn(list, "|");
        char *end;
        double known = strtod(list, &end);
        if (n->type == JSON_NUMBER ? end == list + size && value == known : n->size == size && !memcmp(j->text + n->start, list, size)) return 1;
        list += size + (list[size] == '|');
    }
    return 0;
}

/* 1: a field of something that is not there asks for it. false, 0, "", [], {} do not, nor the values that `nothing` names,
   alone or as the only one of a list. Where true asks for nothing, false asks. */
static int field_asks(const fields *q, uint32_t node, const char *nothing) {
    const json_node *n = q->j->nodes + node;
    if (n->type == JSON_FALSE && nothing && !strcmp(nothing, "true")) return 1;
    if (n->type == JSON_FALSE || (n->type >= JSON_STRING && !n->size)) return 0;
    if (n->type == JSON_NUMBER && value_is_among(q->j, node, "0")) return 0;
    if (n->type == JSON_ARRAY) return n->size > 1 || !nothing || !value_is_among(q->j, node + 1, nothing);
    return n->type == JSON_OBJECT || !value_is_among(q->j, node, nothing);
}

/* Adds a name of what is passed over to those that the answer's head tells. */
static void note(buf *noted, const char *name, size_t n) {
    enum { NAME_MOST = 64, NOTED_MOST = 1024 };
    if (n > NAME_MOST || !http_is_token(name, n) || noted->size + n > NOTED_MOST) return;
    if (noted->size) buf_text(noted, ", ");
    buf_add(noted, name, n);
}

static const field_rule *find_rule(const json *j, uint32_t key, int api) {
    for (int i = 0; i < FIELD_COUNT; i++)
        if (field_table[i].apis & api && json_equals(j, key, field_table[i].name)) return &field_table[i];
    return NULL;
}

/* Walks through a request by the table. Fields that nobody knows may be anything: their names come into `noted`, too. */
static void check_fields(const fields *q, int api, buf *noted) {
    for (uint32_t k = q->object + 1; k < node_next(q, q->object) && !q->f->status; k = node_next(q, k + 1)) {
        const field_rule *r = find_rule(q->j, k, api);
        if (node_type(q, k + 1) == JSON_NULL) continue;
        const int is_told = !r || (r->rule == FIELD_NOTED && (!r->nothing || field_asks(q, k + 1, r->nothing)));
        if (is_told) note(noted, q->j->text + q->j->nodes[k].start, q->j->nodes[k].size);
        else if (r->rule == FIELD_REFUSED && field_asks(q, k + 1, r->nothing))
            refuse(q->f, 400, r->name, "%s is not supported", r->name);
    }
}

static int field_is(const fields *q, const char *key, const char *text) {
    uint32_t node = field(q, key);
    return node && json_equals(q->j, node, text);
}

static int utf8_is_whole(const char *text, size_t n) {
    uint32_t cp;
    for (int used; n; text += used, n -= (size_t)used)
        if ((used = utf8_decode(text, n, &cp)) <= 0) return 0;
    return 1;
}

/* The JSON of a request's body: well-formed UTF-8, and so is all that comes of it. */
static int read_body(const buf *body, json *j, failure *f) {
    mote_error error = {0, ""};
    memset(j, 0, sizeof *j);
    if (!body->size) return refuse(f, 400, NULL, "the body is empty, expected JSON");
    if (!utf8_is_whole(body->data, body->size)) return refuse(f, 400, NULL, "the body is no UTF-8");
    int code = json_parse(j, body->data, body->size, "the body", &error);
    if (code) return refuse(f, code == MOTE_ENOMEM ? 503 : 400, NULL, "%s", error.message);
    if (j->nodes[0].type != JSON_OBJECT) return refuse(f, 400, NULL, "the body is no JSON object");
    return 0;
}
