/* text/json.c: a JSON reader, for the files of a checkpoint and the requests of a caller. It knows nothing of what they
   hold: their users look up keys by name, and decide what a missing or odd value means.

   Strict RFC 8259, but for three words of Python's in files that it writes: what other readers would argue about is refused. One pass gives a flat array of nodes in text
   order, 16 bytes each, that point into the text; strings stay escaped until asked for. No recursion: open containers
   are on a stack of fixed size. Lookups scan, so big maps (vocabulary, tensor names) are walked once by their users. */

enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

typedef struct json_node {
    uint32_t start; /* offset in the text; of a string, the first byte after the quote */
    uint32_t size;  /* bytes (strings: between the quotes), elements of an array, pairs of an object */
    uint32_t next;  /* the first node after this value and all it holds: children follow their parent directly */
    uint32_t type;
} json_node;

typedef struct json {
    const char *text; /* must outlive this */
    char *file;       /* that text, if json_free is to free it; NULL: it is the caller's */
    json_node *nodes; /* nodes[0] is the root; an object's children are key, value, key, value... */
    uint32_t count;
} json;

enum { JSON_DEPTH = 128 };

typedef struct json_reader {
    json *j;
    const char *p, *end;
    uint32_t cap;
    uint32_t open[JSON_DEPTH]; /* the containers we are inside of */
    int depth;
    int python;     /* NaN, Infinity and -Infinity are numbers */
    const char *problem;
    int no_memory;
} json_reader;

static void json_free(json *j) {
    free(j->nodes);
    free(j->file);
    memset(j, 0, sizeof *j);
}

static int json_problem(json_reader *r, const char *problem) {
    if (!r->problem) r->problem = problem;
    return 0;
}

static int json_add(json_reader *r, const char *start, size_t size, uint32_t type) {
    json *j = r->j;
    if (j->count == r->cap) {
        uint32_t cap = r->cap ? r->cap * 2 : 256;
        json_node *nodes = cap > r->cap ? (json_node *)realloc(j->nodes, (size_t)cap * sizeof *nodes) : NULL;
        r->no_memory = !nodes;
        if (!nodes) return json_problem(r, "out of memory");
        j->nodes = nodes;
        r->cap = cap;
    }
    json_node *n = j->nodes + j->count++;
    n->start = (uint32_t)(start - j->text);
    n->size = (uint32_t)size;
    n->next = j->count;
    n->type = type;
    return 1;
}

static void json_skip_space(json_reader *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t')) r->p++;
}

/* The value of four hexadecimal digits, -1 when they are not. */
static int json_hex4(const char *p, const char *end) {
    int value = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = p[i] >= 'A' && p[i] <= 'F' ? p[i] + 32 : p[i]; /* lower case */
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Decodes the escape whose backslash is at p. Returns its length (2, 6, or 12 for a surrogate pair), 0 when malformed. */
static int json_escape(const char *p, const char *end, uint32_t *cp) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (end - p < 2) return 0;
    if (p[1] != 'u') {
        const char *at = p[1] ? strchr(names, p[1]) : NULL;
        if (!at) return 0;
        *cp = (uint32_t)values[at - names];
        return 2;
    }
    int high = json_hex4(p + 2, end);
    if (high < 0 || (high >= 0xDC00 && high <= 0xDFFF)) return 0;
    *cp = (uint32_t)high;
    if (high < 0xD800 || high > 0xDBFF) return 6;
    int low = end - p >= 12 && p[6] == '\\' && p[7] == 'u' ? json_hex4(p + 8, end) : -1;
    if (low < 0xDC00 || low > 0xDFFF) return 0;
    *cp = 0x10000u + ((uint32_t)(high - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
    return 12;
}

/* Skips bytes that stand for themselves: ASCII but control characters, quote and backslash. Eight at a time while none
   of them has its top bit set by (byte), (byte - 0x20), or the zero tests of (byte ^ quote), (byte ^ backslash). */
static const char *json_skip_plain(const char *p, const char *end) {
    const uint64_t ones = 0x0101010101010101u;
    while (end - p >= 8) {
        uint64_t w, quote, slash;
        memcpy(&w, p, 8);
        quote = w ^ ones * '"';
        slash = w ^ ones * '\\';
        if ((w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & ones * 0x80) break;
        p += 8;
    }
    while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' && *p != '\\') p++;
    return p;
}

static int json_read_string(json_reader *r) {
    if (r->p >= r->end || *r->p != '"') return json_problem(r, "expected a string");
    const char *start = ++r->p;
    for (;;) {
        uint32_t cp;
        int n;
        r->p = json_skip_plain(r->p, r->end);
        if (r->p >= r->end) return json_problem(r, "unterminated string");
        if (*r->p == '"') break;
        if (*r->p == '\\') {
            n = json_escape(r->p, r->end, &cp);
            if (!n) return json_problem(r, "bad escape in a string");
        } else {
            if ((unsigned char)*r->p < 0x20) return json_problem(r, "control character in a string");
            n = utf8_decode(r->p, (size_t)(r->end - r->p), &cp);
            if (n <= 0) return json_problem(r, "malformed UTF-8 in a string");
        }
        r->p += n;
    }
    r->p++;
    return json_add(r, start, (size_t)(r->p - 1 - start), JSON_STRING);
}

static int json_skip_digits(json_reader *r) {
    const char *start = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9') r->p++;
    return r->p > start;
}

/* -? (0 | [1-9][0-9]*) (\.[0-9]+)? ([eE][+-]?[0-9]+)? */
static int json_read_number(json_reader *r) {
    const char *start = r->p;
    if (*r->p == '-') r->p++;
    const char *whole = r->p;
    if (!json_skip_digits(r)) return json_problem(r, "expected a value");
    if (*whole == '0' && r->p - whole > 1) return json_problem(r, "number with a leading zero");
    if (r->p < r->end && *r->p == '.') {
        r->p++;
        if (!json_skip_digits(r)) return json_problem(r, "no digit after a decimal point");
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        r->p++;
        if (r->p < r->end && (*r->p == '+' || *r->p == '-')) r->p++;
        if (!json_skip_digits(r)) return json_problem(r, "no digit in an exponent");
    }
    return json_add(r, start, (size_t)(r->p - start), JSON_NUMBER);
}

static int json_read_word(json_reader *r, const char *word, uint32_t type) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n)) return json_problem(r, "expected a value");
    r->p += n;
    return json_add(r, r->p - n, n, type);
}

static int json_read_key(json_reader *r) {
    json_skip_space(r);
    if (!json_read_string(r)) return 0;
    json_skip_space(r);
    if (r->p >= r->end || *r->p != ':') return json_problem(r, "expected ':' after a key");
    r->p++;
    return 1;
}

/* Opens a container. An empty one is closed by json_read_after, as its closing bracket comes next. */
static int json_read_open(json_reader *r, uint32_t type) {
    if (r->depth == JSON_DEPTH) return json_problem(r, "nested too deep");
    r->open[r->depth++] = r->j->count;
    if (!json_add(r, r->p++, 0, type)) return 0;
    json_skip_space(r);
    if (r->p < r->end && *r->p == (type == JSON_OBJECT ? '}' : ']')) return 1;
    r->j->nodes[r->open[r->depth - 1]].size = 1;
    return type == JSON_OBJECT ? json_read_key(r) : 1;
}

/* Numbers that are not finite: of them json_double and json_u64 say that they are no numbers. */
static const char *const json_python_words[] = {"NaN", "Infinity", "-Infinity"};

/* Reads one scalar, or the beginning of a container. */
static int json_read_value(json_reader *r) {
    json_skip_space(r);
    if (r->p >= r->end) return json_problem(r, "unexpected end");
    switch (*r->p) {
    case '{': return json_read_open(r, JSON_OBJECT);
    case '[': return json_read_open(r, JSON_ARRAY);
    case '"': return json_read_string(r);
    case 't': return json_read_word(r, "true", JSON_TRUE);
    case 'f': return json_read_word(r, "false", JSON_FALSE);
    case 'n': return json_read_word(r, "null", JSON_NULL);
    default:
        for (size_t i = 0; i < sizeof json_python_words / sizeof *json_python_words && r->python; i++) {
            const size_t n = strlen(json_python_words[i]);
            if ((size_t)(r->end - r->p) >= n && !memcmp(r->p, json_python_words[i], n)) return json_read_word(r, json_python_words[i], JSON_NUMBER);
        }
        return json_read_number(r);
    }
}

/* Reads what may follow a value: closing brackets, then a comma (1: one more value comes) or the end of the root (0). */
static int json_read_after(json_reader *r) {
    while (r->depth) {
        json_node *n = r->j->nodes + r->open[r->depth - 1];
        int object = n->type == JSON_OBJECT;
        json_skip_space(r);
        if (r->p >= r->end) return json_problem(r, "unexpected end");
        if (*r->p == (object ? '}' : ']')) {
            r->p++;
            n->next = r->j->count;
            r->depth--;
        } else if (*r->p == ',') {
            r->p++;
            n->size++;
            return object ? json_read_key(r) : 1;
        } else {
            return json_problem(r, object ? "expected ',' or '}'" : "expected ',' or ']'");
        }
    }
    return 0;
}

/* Parses len bytes of text. `what` is the file's name for messages. python: it may have been written by Python's json module. */
static int json_parse_as(json *j, const char *text, size_t len, const char *what, int python, mote_error *err) {
    json_reader r;
    memset(j, 0, sizeof *j);
    memset(&r, 0, sizeof r);
    r.python = python;
    j->text = r.p = text;
    r.j = j;
    r.end = text + len;
    if (len >= UINT32_MAX) return fail(err, MOTE_EFORMAT, "%s: JSON of 4 GiB or more", what);
    for (int more = 1; more;) {
        uint32_t first = j->count;
        if (!json_read_value(&r)) break;
        json_node *n = j->nodes + first;
        int opened = n->type >= JSON_ARRAY && n->size; /* its first value comes next */
        more = opened || json_read_after(&r);
    }
    json_skip_space(&r);
    if (!r.problem && r.p < r.end) r.problem = "text after the end";
    if (!r.problem) return MOTE_OK;
    size_t line = 1;
    const char *line_start = text;
    for (const char *p = text; p < r.p; p++) {
        if (*p == '\n') {
            line++;
            line_start = p + 1;
        }
    }
    json_free(j);
    if (r.no_memory) return fail_memory(err);
    return fail(err, MOTE_EFORMAT, "%s: not valid JSON: line %zu, byte %zu: %s", what, line,
                (size_t)(r.p - line_start) + 1, r.problem);
}

static int json_parse(json *j, const char *text, size_t len, const char *what, mote_error *err) {
    return json_parse_as(j, text, len, what, 0, err);
}

/* 1: the node is a string that is equal to s once unescaped. */
static int json_equals(const json *j, uint32_t node, const char *s) {
    const json_node *n = j->nodes + node;
    if (n->type != JSON_STRING) return 0;
    const char *p = j->text + n->start, *end = p + n->size;
    while (p < end) {
        if (*p != '\\') {
            if (*p++ != *s++) return 0; /* also ends at s's NUL: a string holds no raw NUL */
            continue;
        }
        char bytes[4];
        uint32_t cp = 0;
        buf one = {bytes, 0, sizeof bytes, 0};
        p += json_escape(p, end, &cp);
        utf8_put(&one, cp);
        if (!cp || strncmp(s, bytes, one.size)) return 0;
        s += one.size;
    }
    return !*s;
}

/* The value of a key, 0 when the node is no object or lacks it. Of duplicates the last one counts. */
static uint32_t json_get(const json *j, uint32_t object, const char *key) {
    uint32_t found = 0, end;
    if (j->nodes[object].type != JSON_OBJECT) return 0;
    end = j->nodes[object].next;
    for (uint32_t k = object + 1; k < end; k = j->nodes[k + 1].next) {
        if (json_equals(j, k, key)) found = k + 1;
    }
    return found;
}

/* Writes the unescaped string as far as it fits (no NUL added; out may be NULL). Returns its full length. */
static size_t json_string(const json *j, uint32_t node, char *out, size_t cap) {
    const json_node *n = j->nodes + node;
    if (n->type != JSON_STRING) return 0;
    const char *p = j->text + n->start, *end = p + n->size;
    size_t size = 0;
    if (!out) cap = 0;
    while (p < end) {
        char bytes[4];
        const char *from = p, *slash = (const char *)memchr(p, '\\', (size_t)(end - p));
        size_t run = (size_t)((slash ? slash : end) - p);
        if (!run) {
            uint32_t cp = 0;
            buf one = {bytes, 0, sizeof bytes, 0};
            p += json_escape(p, end, &cp);
            utf8_put(&one, cp);
            from = bytes;
            run = one.size;
        } else {
            p += run;
        }
        if (size < cap) memcpy(out + size, from, run < cap - size ? run : cap - size);
        size += run;
    }
    return size;
}

/* 1 and *out for a plain non-negative integer (no sign, point or exponent) below 2^64, else 0. */
static int json_u64(const json *j, uint32_t node, uint64_t *out) {
    const json_node *n = j->nodes + node;
    uint64_t value = 0;
    if (n->type != JSON_NUMBER) return 0;
    for (uint32_t i = 0; i < n->size; i++) {
        unsigned digit = (unsigned)(j->text[n->start + i] - '0');
        if (digit > 9 || value > (UINT64_MAX - digit) / 10) return 0;
        value = value * 10 + digit;
    }
    *out = value;
    return 1;
}

/* *out for any number that a double can hold; MOTE_EFORMAT for larger ones and for what is no number, MOTE_ENOMEM. The
   message is up to the caller, who knows what the number is for. strtod reads the locale's decimal point, so we write
   that one. */
static int json_double(const json *j, uint32_t node, double *out) {
    const json_node *n = j->nodes + node;
    char half[16], point[16];
    buf text = {NULL, 0, 0, 0};
    if (n->type != JSON_NUMBER) return MOTE_EFORMAT;
    snprintf(half, sizeof half, "%.1f", 0.5);
    snprintf(point, sizeof point, "%.*s", (int)strlen(half) - 2, half + 1); /* "0.5" without its digits */
    for (uint32_t i = 0; i < n->size; i++) {
        char c = j->text[n->start + i];
        buf_add(&text, c == '.' ? point : &c, c == '.' ? strlen(point) : 1);
    }
    buf_add(&text, "", 1);
    double value = text.failed ? 0 : strtod(text.data, NULL);
    int code = text.failed ? MOTE_ENOMEM : isfinite(value) ? MOTE_OK : MOTE_EFORMAT;
    buf_free(&text);
    if (!code) *out = value;
    return code;
}

/* 1: both are the same number, or written alike but for white space. */
static int json_same(const json *j, uint32_t a, uint32_t b) {
    const uint32_t count = j->nodes[a].next - a;
    if (j->nodes[b].next - b != count) return 0;
    for (uint32_t i = 0; i < count; i++) {
        const json_node *x = &j->nodes[a + i], *y = &j->nodes[b + i];
        double first, second;
        if (x->type != y->type) return 0;
        if (x->type == JSON_NUMBER && !json_double(j, a + i, &first) && !json_double(j, b + i, &second) && first == second) continue;
        if (x->size != y->size || (x->type < JSON_ARRAY && memcmp(j->text + x->start, j->text + y->start, x->size))) return 0;
    }
    return 1;
}
