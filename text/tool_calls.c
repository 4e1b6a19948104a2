// text/tool_calls.c: what the tags of a tool call enclose -> JSON objects {"name": "...", "arguments": {...}}. It knows the two
// ways in which models write calls, and nothing of tokens, of templates or of who wants the calls.
//
//   {"name": "f", "arguments": {"x": 1}}                          Qwen3
//   <function=f>\n<parameter=x>\n1\n</parameter>\n</function>     Qwen3.5
//
// What models get wrong is mended where only one thing can have been meant: text around a call, several calls in one, line
// feeds in strings, commas too many, brackets or end tags that are missing. A call that is cut short, in a string or a
// parameter, is broken: what it would do may not be what was meant.

typedef void (*call_sink)(void *user, const char *call, size_t size);

typedef struct call_reader {
    slice left;         // of the text
    int closed;         // the call's end tag came: what is missing was forgotten, not cut off
    const json *tools;  // a list, for the types of arguments; NULL: not known
    buf out, value;
    int found, no_memory;
    call_sink sink;
    void *user;
} call_reader;

// ---- JSON as models write it ----

typedef struct json_mender {
    buf *out;
    char open[JSON_DEPTH]; // the brackets we are inside of
    int depth, in_string;
    size_t comma;          // 1 + where in out the last comma is, if nothing but space followed; else 0
} json_mender;

static void mend_byte(json_mender *m, char c) {
    char escaped[8];
    if (m->in_string && (unsigned char)c < 0x20) {
        snprintf(escaped, sizeof escaped, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\u%04x", (unsigned)c);
        buf_text(m->out, escaped);
        return;
    }
    buf_add(m->out, &c, 1);
    if (m->in_string || c == ',') m->comma = m->in_string ? 0 : m->out->size;
    else if (c != ' ' && c != '\n' && c != '\t' && c != '\r') m->comma = 0;
}

// Closes the innermost bracket. A comma before it goes.
static void mend_close(json_mender *m) {
    if (m->comma && !m->out->failed) m->out->data[m->comma - 1] = ' ';
    mend_byte(m, m->open[--m->depth] == '{' ? '}' : ']');
}

// A closing bracket; those that are missing before it are put there. 0: nothing is open for it.
static int mend_bracket(json_mender *m, char c) {
    int match = m->depth;
    while (match && m->open[match - 1] != (c == '}' ? '{' : '[')) match--;
    while (match && m->depth >= match) mend_close(m);
    return match;
}

// Bytes of s that stand for one of Python's words, and its JSON.
static size_t python_word(slice s, const char **as) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (int i = 0; i < 3; i++)
        if (slice_starts(s, words[i][0])) {
            *as = words[i][1];
            return strlen(words[i][0]);
        }
    return 0;
}

// Copies the object or list that s begins with, mended. Returns its bytes in s, 0 when it is cut short or no JSON.
static size_t mend_json(slice s, int closed, buf *out) {
    json_mender m;
    memset(&m, 0, sizeof m);
    m.out = out;
    for (size_t i = 0; i < s.n; i++) {
        const char *word = NULL;
        uint32_t cp;
        size_t n;
        char c = s.p[i];
        if (m.in_string && c == '\\') {
            n = (size_t)json_escape(s.p + i, s.p + s.n, &cp);
            buf_add(out, n ? s.p + i : "\\\\", n ? n : 2);
            if (n) i += n - 1;
        } else if (m.in_string || c == '"') {
            if (c == '"') m.in_string = !m.in_string;
            mend_byte(&m, c);
        } else if (c == '{' || c == '[') {
            if (m.depth == JSON_DEPTH) return 0;
            m.open[m.depth++] = c;
            mend_byte(&m, c);
        } else if (c == '}' || c == ']') {
            if (!mend_bracket(&m, c)) return 0;
            if (!m.depth) return i + 1;
        } else if ((n = python_word(slice_from(s, i), &word)) > 0) {
            buf_text(out, word);
            m.comma = 0;
            i += n - 1;
        } else {
            mend_byte(&m, c);
        }
    }
    if (m.in_string || !closed) return 0;
    while (m.depth) mend_close(&m);
    return s.n;
}

// Parses a text of which it is not an error to be no JSON. 1: it is; *j is to be freed then.
static int call_parse(call_reader *r, slice text, json *j) {
    mote_error why;
    int code = json_parse(j, text.p, text.n, "a call", &why);
    r->no_memory |= code == MOTE_ENOMEM;
    return !code;
}

static int call_put_json(call_reader *r, const json *j, uint32_t node, buf *out) {
    mote_error why;
    int code = put_json(j, node, out, &why);
    r->no_memory |= code == MOTE_ENOMEM;
    return !code;
}

// ---- A call as JSON ----

// The arguments of a call: an object, or a text that holds one; none at all is an empty one. 0: they are something else.
static int call_arguments(call_reader *r, const json *j, uint32_t node) {
    uint32_t type = node ? j->nodes[node].type : (uint32_t)JSON_NULL;
    json inner;
    if (type == JSON_NULL) buf_text(&r->out, "{}");
    if (type == JSON_NULL || type == JSON_OBJECT) return type == JSON_NULL || call_put_json(r, j, node, &r->out);
    if (type != JSON_STRING) return 0;
    buf text, mended;
    memset(&text, 0, sizeof text);
    memset(&mended, 0, sizeof mended);
    put_string(j, node, &text);
    slice all = slice_trim(slice_of(text.data, text.size));
    int ok = slice_starts(all, "{") && mend_json(all, 0, &mended) == all.n &&
             call_parse(r, slice_of(mended.data, mended.size), &inner);
    if (ok) {
        ok = call_put_json(r, &inner, 0, &r->out);
        json_free(&inner);
    }
    r->no_memory |= text.failed | mended.failed;
    buf_free(&text);
    buf_free(&mended);
    return ok;
}

// Writes a call from an object that has its name and arguments, or has such an object as "function". 0: it does not.
static int call_object(call_reader *r, const json *j, uint32_t node) {
    uint32_t inner = json_get(j, node, "function"), name;
    if (inner && j->nodes[inner].type == JSON_OBJECT) node = inner;
    name = json_get(j, node, "name");
    if (!name && inner) name = inner;
    uint32_t arguments = json_get(j, node, "arguments");
    if (!arguments) arguments = json_get(j, node, "parameters");
    if (!name || j->nodes[name].type != JSON_STRING || !j->nodes[name].size) return 0;
    buf_text(&r->out, "{\"name\": ");
    if (!call_put_json(r, j, name, &r->out)) return 0;
    buf_text(&r->out, ", \"arguments\": ");
    if (!call_arguments(r, j, arguments)) return 0;
    buf_text(&r->out, "}");
    return 1;
}

// Reads the call that r->left begins with, at its '{', into r->out. 0: it is broken, and ends the reading.
static int call_json(call_reader *r) {
    json j;
    r->value.size = 0;
    size_t n = mend_json(r->left, r->closed, &r->value);
    if (!n || !call_parse(r, slice_of(r->value.data, r->value.size), &j)) return 0;
    int ok = call_object(r, &j, 0);
    json_free(&j);
    r->left = slice_from(r->left, n);
    return ok;
}

// ---- A call as tags ----

// Is the node of a tool's schema, or one of its alternatives, of this type?
static int schema_has(const json *j, uint32_t schema, const char *type) {
    static const char *const lists[] = {"type", "anyOf", "oneOf"};
    for (int i = 0; i < 3; i++) {
        uint32_t node = json_get(j, schema, lists[i]);
        if (!node) continue;
        if (json_equals(j, node, type)) return 1;
        for (uint32_t k = node + 1; j->nodes[node].type == JSON_ARRAY && k < j->nodes[node].next; k = j->nodes[k].next) {
            uint32_t of = i ? json_get(j, k, "type") : k;
            if (of && json_equals(j, of, type)) return 1;
        }
    }
    uint32_t values = json_get(j, schema, "enum");
    return values && j->nodes[values].type == JSON_ARRAY && j->nodes[values].size && !strcmp(type, "string") &&
           j->nodes[values + 1].type == JSON_STRING;
}

static int slice_is(slice s, const char *text) {
    return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}

// Is the string equal to s once unescaped?
static int string_is(call_reader *r, uint32_t node, slice s) {
    buf text;
    memset(&text, 0, sizeof text);
    if (!node || r->tools->nodes[node].type != JSON_STRING) return 0;
    put_string(r->tools, node, &text);
    int same = text.size == s.n && (!s.n || !memcmp(text.data, s.p, s.n));
    r->no_memory |= text.failed;
    buf_free(&text);
    return same;
}

// The schema of an argument; 0: the tools do not say.
static uint32_t argument_schema(call_reader *r, slice function, slice name) {
    const json *j = r->tools;
    for (uint32_t k = 1; j && k < j->count; k = j->nodes[k].next) {
        uint32_t of = json_get(j, k, "function"), tool = of ? of : k, properties;
        if (!string_is(r, json_get(j, tool, "name"), function)) continue;
        uint32_t parameters = json_get(j, tool, "parameters");
        properties = parameters ? json_get(j, parameters, "properties") : 0;
        if (!properties || j->nodes[properties].type != JSON_OBJECT) return 0;
        for (uint32_t p = properties + 1; p < j->nodes[properties].next; p = j->nodes[p + 1].next)
            if (string_is(r, p, name)) return p + 1;
    }
    return 0;
}

// A text as a JSON string.
static void put_quoted(slice text, buf *out) {
    json_mender m;
    memset(&m, 0, sizeof m);
    m.out = out;
    m.in_string = 1;
    buf_text(out, "\"");
    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] == '"' || text.p[i] == '\\') buf_text(out, "\\");
        mend_byte(&m, text.p[i]);
    }
    buf_text(out, "\"");
}

// An argument's text as the value that its schema wants; without one as JSON, if it is that and no string.
static void call_value(call_reader *r, uint32_t schema, slice text) {
    const json *j = r->tools;
    slice value = slice_trim(text);
    int is_text = schema && schema_has(j, schema, "string"), done = 0;
    const char *word = NULL;
    json parsed;
    if (schema && schema_has(j, schema, "null") && (slice_is(value, "null") || slice_is(value, "None"))) {
        buf_text(&r->out, "null");
        return;
    }
    if (schema && !is_text && python_word(value, &word) == value.n && value.n) value = slice_of(word, strlen(word));
    r->value.size = 0;
    if (!is_text && (slice_starts(value, "{") || slice_starts(value, "[")) && mend_json(value, 0, &r->value) == value.n)
        value = slice_of(r->value.data, r->value.size);
    if (!is_text && call_parse(r, value, &parsed)) {
        size_t before = r->out.size;
        done = (schema || parsed.nodes[0].type != JSON_STRING) && call_put_json(r, &parsed, 0, &r->out);
        if (!done) r->out.size = before;
        json_free(&parsed);
    }
    if (!done) put_quoted(text, &r->out);
}

// Where the first of some tags is in s, and which one; at the end of s: none, *which is `count`.
static size_t first_tag(slice s, const char *const *tags, int count, int *which) {
    for (size_t i = 0; i < s.n; i++)
        for (*which = 0; s.p[i] == '<' && *which < count; ++*which)
            if (slice_starts(slice_from(s, i), tags[*which])) return i;
    *which = count;
    return s.n;
}

static const char *const call_tag_names[] = {"<parameter=", "</function>", "<function=", "<tool_call>"};

// Where a parameter's value ends, the value at the beginning of s; *next: what follows. An end tag counts if something that may
// follow one does: a value may hold the tag's text. Another parameter on a line of its own ends it, too. -1: it is cut short.
static ptrdiff_t parameter_end(slice s, int closed, slice *next) {
    static const char tag[] = "</parameter>";
    for (size_t i = 0; i + sizeof tag - 1 <= s.n; i++) {
        if (s.p[i] != '<') continue;
        *next = slice_from(s, i);
        if (i && s.p[i - 1] == '\n' && slice_starts(*next, "<parameter=")) return (ptrdiff_t)i;
        if (!slice_starts(*next, tag)) continue;
        *next = slice_from(s, i + sizeof tag - 1);
        slice rest = slice_trim(*next);
        int ends = !rest.n;
        for (int k = 0; k < 4; k++) ends |= slice_starts(rest, call_tag_names[k]);
        if (ends) return (ptrdiff_t)i;
    }
    int which;
    size_t end = first_tag(s, call_tag_names, 3, &which);
    *next = slice_from(s, end);
    return closed ? (ptrdiff_t)end : -1;
}

// The name in a tag that s begins behind the '=' of: up to its '>', without quotes. *s goes behind the tag. Empty: there is
// none.
static slice tag_name(slice *s) {
    slice name = slice_before(*s, ">");
    if (name.n == s->n) return slice_of(s->p, 0);
    *s = slice_from(*s, name.n + 1);
    name = slice_trim(name);
    if (name.n > 1 && (*name.p == '"' || *name.p == '\'') && name.p[name.n - 1] == *name.p)
        name = slice_of(name.p + 1, name.n - 2);
    return memchr(name.p, '\n', name.n) ? slice_of(name.p, 0) : name;
}

// Reads the call that r->left begins with, at its <function=, into r->out. 0: it is broken, and ends the reading.
static int call_tags(call_reader *r) {
    slice s = slice_from(r->left, strlen("<function=")), function = tag_name(&s);
    int count = 0;
    if (!function.n) return 0;
    buf_text(&r->out, "{\"name\": ");
    put_quoted(function, &r->out);
    buf_text(&r->out, ", \"arguments\": {");
    for (;;) {
        int which;
        size_t at = first_tag(s, call_tag_names, 3, &which);
        if (which == 3 && !r->closed) return 0;
        r->left = slice_from(s, at);
        if (which) break;
        slice next, value = slice_from(s, at + strlen("<parameter="));
        slice name = tag_name(&value);
        ptrdiff_t n = name.n ? parameter_end(value, r->closed, &next) : -1;
        if (n < 0) return 0;
        value.n = (size_t)n;
        if (slice_starts(value, "\n")) value = slice_from(value, 1);
        if (slice_ends(value, "\n")) value.n--;
        if (count++) buf_text(&r->out, ", ");
        put_quoted(name, &r->out);
        buf_text(&r->out, ": ");
        call_value(r, argument_schema(r, function, name), value);
        s = next;
    }
    buf_text(&r->out, "}}");
    return 1;
}

// ---- All calls of a text ----

// Gives the calls in a call's text to sink, each as one JSON object of `size` bytes, with a zero behind it. closed: the end
// tag came. The text is well-formed UTF-8. tools: the root is a list; NULL: not known. *broken is 1 when there is none that
// can be read. MOTE_ENOMEM, or MOTE_OK.
static int tool_calls_read(const char *text, size_t n, int closed, const json *tools, call_sink sink, void *user, int *broken,
                           mote_error *err) {
    call_reader r;
    memset(&r, 0, sizeof r);
    r.left = slice_trim(slice_of(text, n));
    r.closed = closed;
    r.tools = tools;
    int as_json = slice_starts(r.left, "{") || slice_starts(r.left, "[") || slice_before(r.left, "<function=").n == r.left.n;
    for (int ok = 1; ok && !r.no_memory;) {
        size_t at = slice_before(r.left, as_json ? "{" : "<function=").n;
        r.left = slice_from(r.left, at);
        if (!r.left.n) break;
        r.out.size = 0;
        ok = as_json ? call_json(&r) : call_tags(&r);
        buf_add(&r.out, "", 1);
        r.no_memory |= r.out.failed | r.value.failed;
        if (!ok || r.no_memory) break;
        r.found++;
        sink(user, r.out.data, r.out.size - 1);
    }
    *broken = !r.found;
    buf_free(&r.out);
    buf_free(&r.value);
    return r.no_memory ? fail_memory(err) : MOTE_OK;
}
