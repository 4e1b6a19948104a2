/* text/tool_calls.c: what a model writes as a tool call -> a JSON object {"name": "...", "arguments": {...}}, read while it comes.
   It knows the syntaxes in which models write calls, and nothing of tokens, of templates or of who wants the calls.

     <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>                                    Qwen3
     <tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>               Qwen3.5

   One rule for all of them: what the model wrote is never lost, invented or executed in part.
   - A tag means something only where the syntax has a place for it. A value ends where its own end tag stands and syntax follows:
     tags within it, those of a whole call even, are its text.
   - A call is one when all of it can be read, the tools have one of its name, and something shows that it is over: its end tag,
     the next call, or the answer's end after its last bracket or </function>. All else is text, to the byte.
   - What was forgotten is mended where only one thing can have been meant (see mend_json.c), what was cut off never.

   No byte is looked at again once it is decided, so the time is linear in the text, however it is cut into pieces. */

enum { CALL_MORE, CALL_WHOLE, CALL_NONE };       /* more text must come first; a call; no call */

enum { TEXT_GOES_ON, TEXT_IS_CUT, TEXT_ENDS };   /* whether more text can come: yes; no, something cut it short; no, it was over */

typedef void (*call_sink)(void *user, const char *call, size_t size);

struct call_syntax;

typedef struct call_part { size_t name, name_size, value, value_size; } call_part;      /* in the text */

typedef struct call_reader {
    argument_writer arguments;
    const struct call_syntax *syntax;    /* NULL: the first bytes behind the opening tag have not come */
    int state;                           /* of the syntax */
    size_t at;                           /* so much of the text is decided: whole calls and what is none end here */
    size_t begin, end;                   /* what the tags around the call enclose */
    int again;                           /* after a whole call: another one begins at `at`, without a tag of its own */
    buf name, out;                       /* the name as JSON; the call as JSON, a zero behind it */
    /* tags */
    call_part part;                      /* the parameter at hand */
    size_t function, function_size;
    buf parts, known;                    /* call_part[]; the schemas of those that the tool has */
    int nested, functions;               /* tags that the value itself opened */
    int is_own;                          /* the last </parameter> was the value's */
} call_reader;

static void call_reader_free(call_reader *c) {
    argument_writer_free(&c->arguments);
    buf_free(&c->name);
    buf_free(&c->out);
    buf_free(&c->parts);
    buf_free(&c->known);
}

static int call_failed(const call_reader *c) {
    return c->arguments.no_memory || c->arguments.mender.out.failed || c->arguments.value.failed || c->name.failed ||
           c->out.failed || c->parts.failed || c->known.failed;
}

/* Is there a tool of this name? Then its parameters are known. */
static int call_names(call_reader *c, slice name) {
    argument_writer *a = &c->arguments;
    uint32_t tool = a->tools ? tool_named(a->tools, name) : 0;
    a->parameters = tool ? json_get(a->tools, tool, "parameters") : 0;
    return tool || !a->tools;
}

/* ---- Tags ---- */

enum { TAG_NONE, TAG_PARTIAL, TAG_LAST, TAG_OPEN, TAG_CLOSE, TAG_FUNCTION, TAG_FUNCTION_END, TAG_PARAMETER, TAG_PARAMETER_END };

typedef struct call_tag {
    int kind;            /* TAG_PARTIAL: may become one; TAG_LAST: the text is over */
    int begun;           /* the first kind that it may become, or might have if the text were not over; else 0 */
    size_t size;
    slice name;          /* of a function or parameter */
} call_tag;

static const char CALL_OPENS[] = "<tool_call>", CALL_CLOSES[] = "</tool_call>";

/* The name that s begins with, up to '>', without quotes. 0: there is none; -1: it may be one. */
static int tag_name(slice s, call_tag *tag) {
    enum { MOST = 256 };
    size_t n = s.n < MOST ? s.n : MOST;
    const char *over = n ? (const char *)memchr(s.p, '>', n) : NULL;
    if (!over) return s.n < MOST ? -1 : 0;
    slice name = slice_trim(slice_of(s.p, (size_t)(over - s.p)));
    if (name.n > 1 && (*name.p == '"' || *name.p == '\'') && name.p[name.n - 1] == *name.p) name = slice_of(name.p + 1, name.n - 2);
    tag->name = name;
    tag->size += (size_t)(over - s.p) + 1;
    return name.n && !memchr(name.p, '\n', name.n) && !memchr(name.p, '<', name.n);
}

/* The tag that s begins with. */
static call_tag tag_at(slice s, int end) {
    static const struct { const char *text; int kind; } tags[] = {
        {CALL_OPENS, TAG_OPEN}, {CALL_CLOSES, TAG_CLOSE}, {"<function=", TAG_FUNCTION}, {"</function>", TAG_FUNCTION_END},
        {"<parameter=", TAG_PARAMETER}, {"</parameter>", TAG_PARAMETER_END}};
    call_tag tag = {TAG_NONE, TAG_NONE, 0, {NULL, 0}};
    if (!s.n) tag.kind = end ? TAG_LAST : TAG_PARTIAL;
    for (size_t i = 0; s.n && i < sizeof tags / sizeof *tags; i++) {
        size_t n = strlen(tags[i].text);
        if (memcmp(s.p, tags[i].text, s.n < n ? s.n : n)) continue;
        int is = s.n >= n ? 1 : -1;
        tag.size = n;
        if (is > 0 && (tags[i].kind == TAG_FUNCTION || tags[i].kind == TAG_PARAMETER)) is = tag_name(slice_from(s, n), &tag);
        tag.kind = is > 0 ? tags[i].kind : is && !end ? TAG_PARTIAL : TAG_NONE;
        if (is < 0) tag.begun = tags[i].kind;
        if (is) break;
    }
    if (tag.kind < TAG_OPEN) tag.size = 0;
    return tag;
}

static int is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void skip_blanks(call_reader *c, slice text) {
    while (c->at < text.n && is_blank(text.p[c->at])) c->at++;
}

/* The call ends where its text is decided up to, or with the end tag there. */
static int call_ends(call_reader *c, const call_tag *tag) {
    c->end = c->at;
    if (tag->kind == TAG_CLOSE) c->at += tag->size;
    return CALL_WHOLE;
}

/* Does what follows show that a call is over whose last bracket or end tag has come? A tag that is cut off does, too. */
static int call_is_over(call_reader *c, const call_tag *tag) {
    int cut = tag->begun == TAG_CLOSE || tag->begun == TAG_OPEN || tag->begun == TAG_FUNCTION;
    return (cut || tag->kind == TAG_CLOSE || tag->kind == TAG_OPEN || tag->kind == TAG_LAST) && call_ends(c, tag);
}

/* ---- A call as tags ---- */

enum { IN_CALL, IN_FUNCTION, IN_VALUE, AFTER_VALUE, AFTER_FUNCTION };

static void value_begins(call_reader *c, const char *text, const call_tag *tag) {
    c->part.name = (size_t)(tag->name.p - text);
    c->part.name_size = tag->name.n;
    c->at += tag->size;
    c->part.value = c->at;
    c->part.value_size = 0;
    c->nested = c->functions = 0;
    c->state = IN_VALUE;
}

/* Is the schema one of those that the parameters so far have? */
static int is_given(const call_reader *c, uint32_t schema) {
    const uint32_t *known = (const uint32_t *)(const void *)c->known.data;
    for (size_t i = 0; i < c->known.size / sizeof *known; i++)
        if (known[i] == schema) return 1;
    return 0;
}

/* The value at hand ends at part.value_size. */
static void value_ends(call_reader *c, const char *text) {
    uint32_t schema = parameter_schema(&c->arguments, slice_of(text + c->part.name, c->part.name_size));
    buf_add(&c->parts, &c->part, sizeof c->part);
    if (schema && !is_given(c, schema)) buf_add(&c->known, &schema, sizeof schema);
    c->part.value = 0;
}

/* May a <parameter=...> on a line of its own end the value before it, whose end tag was forgotten? Only one that the tool has and
   that was not given. Of a tool without a list of them, any. */
static int ends_forgotten(const call_reader *c, const char *text, slice name) {
    const argument_writer *a = &c->arguments;
    uint32_t schema = parameter_schema(a, name);
    slice own = slice_of(text + c->part.name, c->part.name_size);
    if (c->nested || c->functions) return 0;
    if (own.n == name.n && !memcmp(own.p, name.p, name.n)) return 0;
    return schema ? !is_given(c, schema) : !a->parameters || !json_get(a->tools, a->parameters, "properties");
}

/* A '<' in a value. What it opens on a line of its own, as a call within the text would, it closes itself. */
static int tags_in_value(call_reader *c, slice text, const call_tag *tag, int end) {
    const int on_line = text.p[c->at - 1] == '\n';
    const size_t here = c->at;
    if (tag->kind == TAG_LAST) {         /* with </tool_call> as its last words and of its own accord, the answer forgot the others */
        slice all = slice_trim(text);
        if (end != TEXT_ENDS || !slice_ends(all, CALL_CLOSES) || c->nested || c->functions) return CALL_NONE;
        c->at = (size_t)(all.p + all.n - text.p);
        c->end = c->at - (sizeof CALL_CLOSES - 1);
        c->part.value_size = c->end - c->part.value;
        value_ends(c, text.p);
        return CALL_WHOLE;
    }
    if (tag->kind == TAG_PARAMETER && on_line && ends_forgotten(c, text.p, tag->name)) {
        c->part.value_size = here - c->part.value;
        value_ends(c, text.p);
        value_begins(c, text.p, tag);
        return CALL_MORE;
    }
    c->at += tag->size ? tag->size : 1;
    if (tag->kind == TAG_PARAMETER) c->nested += on_line;
    if (tag->kind == TAG_FUNCTION) c->functions += on_line;
    if (tag->kind == TAG_PARAMETER_END) {
        c->is_own = !c->nested;
        c->nested -= c->nested > 0;
        c->part.value_size = here - c->part.value;
        c->state = AFTER_VALUE;
    } else if (tag->kind == TAG_FUNCTION_END && c->functions) {
        c->functions--;
    } else if (tag->kind == TAG_FUNCTION_END) {
        c->part.value_size = here - c->part.value;
        c->state = AFTER_FUNCTION;
    }
    return CALL_MORE;
}

/* Behind a </parameter>: if no syntax follows, it was the value's text. */
static int tags_after_value(call_reader *c, slice text, const call_tag *tag) {
    const int next = tag->kind == TAG_OPEN || (tag->kind == TAG_FUNCTION && call_names(c, tag->name));
    const slice own = slice_of(text.p + c->function, c->function_size);
    if (tag->kind == TAG_FUNCTION) (void)call_names(c, own);
    c->state = IN_VALUE;
    if (tag->kind == TAG_FUNCTION_END && (c->is_own || !c->functions)) {
        c->at += tag->size;
        c->state = AFTER_FUNCTION;
    } else if (c->is_own && tag->kind == TAG_PARAMETER) {
        value_ends(c, text.p);
        value_begins(c, text.p, tag);
    } else if (c->is_own && (next || tag->kind == TAG_CLOSE)) {
        value_ends(c, text.p);
        return call_ends(c, tag);
    }
    return CALL_MORE;
}

/* Behind a </function>: if the call is not over, it was the text of the value at hand. */
static int tags_after_function(call_reader *c, slice text, const call_tag *tag) {
    const slice own = slice_of(text.p + c->function, c->function_size);
    int over = call_is_over(c, tag);
    if (!over && tag->kind == TAG_FUNCTION && call_names(c, tag->name)) over = call_ends(c, tag);
    if (tag->kind == TAG_FUNCTION) (void)call_names(c, own);
    if (over && c->part.value) value_ends(c, text.p);
    if (over) return CALL_WHOLE;
    c->state = IN_VALUE;
    return c->part.value ? CALL_MORE : CALL_NONE;
}

static int tags_in_function(call_reader *c, slice text, const call_tag *tag) {
    if (tag->kind == TAG_CLOSE) return call_ends(c, tag);
    if (tag->kind == TAG_PARAMETER) {
        value_begins(c, text.p, tag);
    } else if (tag->kind == TAG_FUNCTION_END) {
        c->at += tag->size;
        c->state = AFTER_FUNCTION;
    } else {
        return CALL_NONE;
    }
    return CALL_MORE;
}

static int tags_begin(call_reader *c, slice text, const call_tag *tag) {
    if (tag->kind != TAG_FUNCTION || !call_names(c, tag->name)) return CALL_NONE;
    c->function = (size_t)(tag->name.p - text.p);
    c->function_size = tag->name.n;
    c->at += tag->size;
    c->state = IN_FUNCTION;
    return CALL_MORE;
}

static int tags_read(call_reader *c, slice text, int end) {
    for (int found = CALL_MORE;;) {
        if (c->state != IN_VALUE) {
            skip_blanks(c, text);
        } else if (c->at < text.n) {
            const char *next = (const char *)memchr(text.p + c->at, '<', text.n - c->at);
            c->at = next ? (size_t)(next - text.p) : text.n;
        }
        call_tag tag = tag_at(slice_from(text, c->at), end);
        if (tag.kind == TAG_PARTIAL) return CALL_MORE;
        switch (c->state) {
        case IN_CALL: found = tags_begin(c, text, &tag); break;
        case IN_FUNCTION: found = tags_in_function(c, text, &tag); break;
        case IN_VALUE: found = tags_in_value(c, text, &tag, end); break;
        case AFTER_VALUE: found = tags_after_value(c, text, &tag); break;
        default: found = tags_after_function(c, text, &tag);
        }
        if (found != CALL_MORE) return found;
    }
}

/* One line end behind the opening tag, one before the end tag are not the value's. */
static slice value_text(const call_part *part, const char *text) {
    slice s = slice_of(text + part->value, part->value_size);
    s = slice_from(s, slice_starts(s, "\r\n") ? 2 : slice_starts(s, "\n"));
    s.n -= slice_ends(s, "\r\n") ? 2 : (size_t)slice_ends(s, "\n");
    return s;
}

static int tags_put(call_reader *c, slice text, buf *arguments) {
    const call_part *parts = (const call_part *)(const void *)c->parts.data;
    size_t count = c->parts.failed ? 0 : c->parts.size / sizeof *parts;
    put_quoted(slice_of(text.p + c->function, c->function_size), &c->name);
    buf_text(arguments, "{");
    for (size_t i = 0; i < count; i++) {
        slice name = slice_of(text.p + parts[i].name, parts[i].name_size);
        size_t before = arguments->size;
        if (before > 1) buf_text(arguments, ", ");
        put_quoted(name, arguments);
        buf_text(arguments, ": ");
        if (!put_argument(&c->arguments, name, value_text(parts + i, text.p), arguments)) arguments->size = before;
    }
    buf_text(arguments, "}");
    return 1;
}

/* ---- A call as JSON ---- */

enum { IN_OBJECT = IN_CALL, AFTER_OBJECT };

static int json_in_object(call_reader *c, slice text, int end) {
    json_mender *m = &c->arguments.mender;
    while (c->state == IN_OBJECT) {
        slice s = slice_from(text, c->at);
        if (!s.n) return end ? CALL_NONE : CALL_MORE;
        if (*s.p == '<' && !m->quote) {
            call_tag tag = tag_at(s, end);
            if (tag.kind == TAG_PARTIAL) return CALL_MORE;
            return tag.kind == TAG_CLOSE && mend_end(m) ? call_ends(c, &tag) : CALL_NONE;
        }
        int n = mend_next(m, s, end);
        if (n <= 0) return n ? CALL_NONE : CALL_MORE;
        c->at += (size_t)n;
        if (!m->depth) c->state = AFTER_OBJECT;
    }
    return CALL_WHOLE;
}

/* Behind the object may be what is left of a list or a code block around it, brackets too many, and the next object. */
static int json_read_call(call_reader *c, slice text, int end) {
    int found = c->state == IN_OBJECT ? json_in_object(c, text, end) : CALL_WHOLE;
    if (found != CALL_WHOLE || c->state == IN_OBJECT) return found;
    while (c->at < text.n && (is_blank(text.p[c->at]) || memchr("]},`", text.p[c->at], 4))) c->at++;
    call_tag tag = tag_at(slice_from(text, c->at), end);
    c->again = c->at < text.n && text.p[c->at] == '{';
    if (c->again) return call_ends(c, &tag);
    if (tag.kind == TAG_PARTIAL) return CALL_MORE;
    return call_is_over(c, &tag) ? CALL_WHOLE : CALL_NONE;
}

/* The arguments of a call: an object, or a text that holds one; none at all is an empty one. 0: they are something else. */
static int put_object(call_reader *c, const json *j, uint32_t node, buf *arguments) {
    argument_writer *a = &c->arguments;
    uint32_t type = node ? j->nodes[node].type : (uint32_t)JSON_NULL;
    json inner;
    if (type == JSON_NULL) buf_text(arguments, "{}");
    if (type == JSON_NULL || type == JSON_OBJECT) return type == JSON_NULL || may_put_json(a, j, node, arguments);
    if (type != JSON_STRING) return 0;
    a->value.size = 0;
    put_string(j, node, &a->value);
    slice all = slice_trim(slice_of(a->value.data, a->value.size));
    int ok = slice_starts(all, "{") && mend_json(&a->mender, all, 0) && may_parse(a, &a->mender.out, &inner);
    if (!ok) return 0;
    ok = may_put_json(a, &inner, 0, arguments);
    json_free(&inner);
    return ok;
}

/* The name and arguments of an object that has them, or has such an object as "function". 0: it does not. */
static int put_parts(call_reader *c, const json *j, buf *arguments) {
    uint32_t node = 0, inner = json_get(j, 0, "function"), name;
    if (inner && j->nodes[inner].type == JSON_OBJECT) node = inner;
    name = json_get(j, node, "name");
    if (!name && inner) name = inner;
    uint32_t given = json_get(j, node, "arguments");
    if (!given) given = json_get(j, node, "parameters");
    if (!name || j->nodes[name].type != JSON_STRING || !j->nodes[name].size) return 0;
    put_string(j, name, &c->name);
    if (c->name.failed || !call_names(c, slice_of(c->name.data, c->name.size))) return 0;
    c->name.size = 0;
    return may_put_json(&c->arguments, j, name, &c->name) && put_object(c, j, given, arguments);
}

static int json_put(call_reader *c, slice text, buf *arguments) {
    json j;
    (void)text;
    if (!may_parse(&c->arguments, &c->arguments.mender.out, &j)) return 0;
    int ok = put_parts(c, &j, arguments);
    json_free(&j);
    return ok;
}

/* ---- All syntaxes ---- */

typedef struct call_syntax {
    const char *begins;                                              /* a call's first byte behind the opening tag */
    int (*read)(call_reader *c, slice text, int end);                /* takes what has come of it: CALL_... */
    int (*put)(call_reader *c, slice text, buf *arguments);          /* name and arguments of a whole one; 0: no call after all */
} call_syntax;

static const call_syntax call_syntaxes[] = {{"{", json_read_call, json_put}, {"<", tags_read, tags_put}};

/* Where a call in a key's place: of two keys of an object the last one counts, the first is marked in gone [j->count]. 0: out of
   memory. Objects are the children of their nodes, so that (object, key) tells a key from all others. */
static int mark_twins(const json *j, unsigned char *gone) {
    size_t cap = 16, mask;
    while (cap < (size_t)j->count * 2) cap *= 2;
    uint32_t *places = (uint32_t *)calloc(cap, 2 * sizeof *places), *objects = places + cap;
    if (!places) return 0;
    mask = cap - 1;
    for (uint32_t object = 0; object < j->count; object++) {
        if (j->nodes[object].type != JSON_OBJECT) continue;
        for (uint32_t k = object + 1; k < j->nodes[object].next; k = j->nodes[k + 1].next) {
            const json_node *n = j->nodes + k;
            size_t at = fold(fnv1a(fnv1a(FNV_START, &object, sizeof object), j->text + n->start, n->size)) & mask;
            for (; places[at]; at = (at + 1) & mask) {
                const json_node *old = j->nodes + places[at];
                if (objects[at] == object && old->size == n->size && !memcmp(j->text + old->start, j->text + n->start, n->size)) break;
            }
            if (places[at]) gone[places[at]] = 1;
            places[at] = k;
            objects[at] = object;
        }
    }
    free(places);
    return 1;
}

/* Appends JSON as put_json writes it, without keys that come again in the same object. */
static void put_once(argument_writer *a, const buf *text, buf *out) {
    json j;
    if (!may_parse(a, text, &j)) return;
    unsigned char *gone = (unsigned char *)calloc(j.count, 1);
    size_t from = 0;
    a->no_memory |= !gone || !mark_twins(&j, gone);
    for (uint32_t k = 1; gone && k < j.count; k++) {
        if (!gone[k]) continue;
        uint32_t next = j.nodes[k + 1].next;             /* its twin comes behind it, so there is a next key */
        if (j.nodes[k].start - 1 >= from) {
            buf_add(out, text->data + from, j.nodes[k].start - 1 - from);
            from = j.nodes[next].start - 1;
        }
    }
    buf_add(out, text->data + from, text->size - from);
    free(gone);
    json_free(&j);
}

/* Writes a whole call into c->out. 0: it is none. */
static int call_put(call_reader *c, slice text) {
    buf arguments;
    memset(&arguments, 0, sizeof arguments);
    c->name.size = c->out.size = 0;
    int ok = c->syntax->put(c, text, &arguments) && !call_failed(c) && !arguments.failed;
    c->arguments.no_memory |= arguments.failed;
    if (ok) {
        buf_text(&c->out, "{\"name\": ");
        buf_add(&c->out, c->name.data, c->name.size);
        buf_text(&c->out, ", \"arguments\": ");
        put_once(&c->arguments, &arguments, &c->out);
        buf_add(&c->out, "}", 2);
    }
    buf_free(&arguments);
    return ok && !call_failed(c);
}

/* Bytes of the tag that opens a call at the beginning of s; 0: none does, -1: it may be one. Some models forget it: on a new line
   a call may begin without, *opened is 0 then. */
static int call_opens(const json *tools, slice s, int end, int on_line, size_t *opened) {
    call_tag tag = tag_at(s, end);
    if (tag.kind == TAG_PARTIAL) return tag.begun == TAG_OPEN || (tag.begun == TAG_FUNCTION && on_line) ? -1 : 0;
    *opened = tag.kind == TAG_OPEN ? tag.size : 0;
    return tag.kind == TAG_OPEN || (on_line && tag.kind == TAG_FUNCTION && (!tools || tool_named(tools, tag.name)));
}

/* Begins with a text in which a call may begin behind the `opened` bytes of its tag. Keeps the memory that c has. */
static void call_begin(call_reader *c, const json *tools, size_t opened) {
    c->arguments.tools = tools;
    c->arguments.parameters = 0;
    c->syntax = NULL;
    c->state = IN_CALL;
    c->at = c->begin = opened;
    c->again = 0;
    c->parts.size = c->known.size = 0;
    memset(&c->part, 0, sizeof c->part);
    mend_begin(&c->arguments.mender, 0);
}

/* Finds out in which syntax the call is written. A list or a code block may be around it. */
static int call_head(call_reader *c, slice text, int end) {
    while (c->at < text.n && (is_blank(text.p[c->at]) || text.p[c->at] == '[' || text.p[c->at] == '`')) c->at++;
    if (c->at && c->at < text.n && text.p[c->at - 1] == '`') {
        slice s = slice_from(text, c->at);
        if (s.n < 4 && !end && !memcmp(s.p, "json", s.n)) return CALL_MORE;
        c->at += slice_starts(s, "json") ? 4 : 0;
        skip_blanks(c, text);
    }
    if (c->at == text.n) return end ? CALL_NONE : CALL_MORE;
    for (size_t i = 0; i < sizeof call_syntaxes / sizeof *call_syntaxes && !c->syntax; i++)
        if (*call_syntaxes[i].begins == text.p[c->at]) c->syntax = call_syntaxes + i;
    return c->syntax ? CALL_WHOLE : CALL_NONE;
}

/* Reads on. text: all that has come since the beginning, well-formed UTF-8; end: TEXT_... CALL_WHOLE: the call is in c->out, its own
   text is that from c->begin to c->end. CALL_NONE: all up to c->at is text. Never CALL_MORE at the end. */
static int call_read(call_reader *c, slice text, int end) {
    int found = c->syntax ? CALL_WHOLE : call_head(c, text, end);
    if (found == CALL_WHOLE) found = c->syntax->read(c, text, end);
    if (found == CALL_WHOLE && !call_put(c, text)) found = CALL_NONE;
    return found;
}
