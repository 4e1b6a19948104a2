// serve/fields.c: what a request's JSON holds, field by field, and what is said when it is not what was expected. It knows
// JSON, and nothing of what the fields are for. A field that is null counts as not given.

typedef struct failure {                   // why a request is refused; status 0: it is not
    int status;
    const char *code;                      // a word for programs; NULL: none
    char param[64];                        // the field; "": none
    char message[600];
} failure;

// The first failure counts. Returns 1. What is quoted of a request may be cut in the middle of a character: what is said is
// whole characters nevertheless, and one line.
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

// What the library said.
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
    case MOTE_ENOMEM: return refuse(f, 503, NULL, "%s", error->message[0] ? error->message : "out of memory");
    default: return refuse(f, 500, NULL, "%s", error->message);
    }
}

typedef struct fields {                    // an object of a request
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

// The child behind this one; behind the last one that is the next of their parent.
static uint32_t node_next(const fields *q, uint32_t node) {
    return q->j->nodes[node].next;
}

// The node, if it is given and of that type.
static uint32_t field_of(const fields *q, const char *key, uint32_t type) {
    static const char *const names[] = {"null", "false", "true", "a number", "a string", "a list", "an object"};
    uint32_t node = field(q, key);
    if (!node || node_type(q, node) == type) return node;
    refuse(q->f, 400, key, "%s must be %s", key, names[type]);
    return 0;
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

// Fields that ask for something that is not there are refused by name, unless they ask for nothing: false, 0, "", [], {}.
static void field_unsupported(const fields *q, const char *key) {
    uint32_t node = field(q, key);
    double value = 1;
    if (!node) return;
    const json_node *n = q->j->nodes + node;
    if (n->type == JSON_NUMBER) (void)json_double(q->j, node, &value);
    if (n->type == JSON_FALSE || (n->type >= JSON_STRING && !n->size) || value == 0) return;
    refuse(q->f, 400, key, "%s is not supported", key);
}

static int field_is(const fields *q, const char *key, const char *text) {
    uint32_t node = field(q, key);
    return node && json_equals(q->j, node, text);
}

// The JSON of a request's body.
static int read_body(const buf *body, json *j, failure *f) {
    mote_error error = {0, ""};
    memset(j, 0, sizeof *j);
    if (!body->size) return refuse(f, 400, NULL, "the body is empty, expected JSON");
    int code = json_parse(j, body->data, body->size, "the body", &error);
    if (code) return refuse(f, code == MOTE_ENOMEM ? 503 : 400, NULL, "%s", error.message);
    if (j->nodes[0].type != JSON_OBJECT) return refuse(f, 400, NULL, "the body is no JSON object");
    return 0;
}
