/* text/call_keyed.c: a call as a name, keys and values between tags, GLM's and Laguna's:
   f<arg_key>x</arg_key><arg_value>1</arg_value>, with line feeds between them or without. It knows where a value ends, and nothing of
   what it means.

   A value's text is all between its tags. Tags of values within it are in pairs, so that a call that a text quotes is its text. */

enum { CALL_OVER = CALL_NONE + 1 };                 /* CALL_WHOLE is here: go on */

enum { KEYED_NONE, KEYED_PARTIAL, KEYED_LAST, KEYED_CALL, KEYED_CALL_END, KEYED_KEY, KEYED_KEY_END, KEYED_VALUE, KEYED_VALUE_END };

/* The tag that s begins with: KEYED_...; *size: its bytes. */
static int keyed_tag(slice s, int end, size_t *size) {
    static const char *const tags[] = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
    *size = 0;
    if (!s.n) return end ? KEYED_LAST : KEYED_PARTIAL;
    for (int i = 0; i < 6; i++) {
        const size_t n = strlen(tags[i]);
        if (memcmp(s.p, tags[i], s.n < n ? s.n : n)) continue;
        if (s.n < n) return end ? KEYED_NONE : KEYED_PARTIAL;
        *size = n;
        return KEYED_CALL + i;
    }
    return KEYED_NONE;
}

/* A name or a key, which ends before `ends`, a byte: its bytes; 0: there is none, -1: more must come. */
static int keyed_word(slice s, const char *ends, int end) {
    enum { MOST = 256 };
    size_t n = 0;
    while (n < s.n && n < MOST && !strchr(ends, s.p[n])) n++;
    if (n == MOST || (n == s.n && end)) return 0;
    return n == s.n ? -1 : (int)n;
}

static int keyed_name(call_reader *c, slice text, int end) {
    const slice rest = slice_from(text, c->at);
    const int n = keyed_word(rest, "<\n", end);
    const slice name = slice_trim(slice_of(rest.p, n > 0 ? (size_t)n : 0));
    if (n < 0) return CALL_MORE;
    if (!name.n || !call_names(c, name)) return CALL_NONE;
    c->function = (size_t)(name.p - text.p);
    c->function_size = name.n;
    c->at += (size_t)n;
    c->state = IN_FUNCTION;
    return CALL_WHOLE;
}

/* <arg_key>x</arg_key><arg_value>, up to the value. c->at moves only when all of it is there. */
static int keyed_begins(call_reader *c, slice text, size_t tag, int end) {
    enum { BLANKS = 64 };
    size_t at = c->at + tag, size;
    const int n = keyed_word(slice_from(text, at), "<", end);
    const slice name = slice_of(text.p + at, n > 0 ? (size_t)n : 0);
    if (n <= 0) return n ? CALL_MORE : CALL_NONE;
    at += name.n;
    for (int i = 0; i < 2; i++) {
        const int kind = keyed_tag(slice_from(text, at), end, &size);
        if (kind == KEYED_PARTIAL) return CALL_MORE;
        if (kind != (i ? KEYED_VALUE : KEYED_KEY_END)) return CALL_NONE;
        at += size;
        for (int k = 0; !i && k < BLANKS && at < text.n && is_blank(text.p[at]); k++) at++;
    }
    c->part.name = (size_t)(slice_trim(name).p - text.p);
    c->part.name_size = slice_trim(name).n;
    c->part.value = c->at = at;
    c->nested = 0;
    c->state = IN_PARAMETER;
    return CALL_WHOLE;
}

/* Up to the tag that may end the value. */
static int keyed_value(call_reader *c, slice text, int end) {
    const char *next = c->at < text.n ? (const char *)memchr(text.p + c->at, '<', text.n - c->at) : NULL;
    size_t size;
    c->at = next ? (size_t)(next - text.p) : text.n;
    const int kind = keyed_tag(slice_from(text, c->at), end, &size);
    if (kind == KEYED_PARTIAL) return CALL_MORE;
    if (kind == KEYED_LAST) return CALL_NONE;
    if (kind == KEYED_VALUE_END && !c->nested) {
        c->part.value_size = c->at - c->part.value;
        c->state = AFTER_VALUE;
    }
    c->nested += kind == KEYED_VALUE;
    c->nested -= kind == KEYED_VALUE_END && c->nested;
    c->at += size ? size : 1;
    return CALL_WHOLE;
}

/* Between values: another key, or the call's end. An end tag that is forgotten is where the next call or the answer's own end shows
   it. What is none of these is the value's text, if there is one. */
static int keyed_between(call_reader *c, slice text, int end) {
    const int after = c->state == AFTER_VALUE;
    size_t size;
    skip_blanks(c, text);
    const int kind = keyed_tag(slice_from(text, c->at), end, &size);
    const int over = kind == KEYED_CALL_END || (after && (kind == KEYED_CALL || (kind == KEYED_LAST && end == TEXT_ENDS)));
    if (kind == KEYED_PARTIAL) return CALL_MORE;
    if (!over && kind != KEYED_KEY) {
        c->state = IN_PARAMETER;
        return after ? CALL_WHOLE : CALL_NONE;
    }
    if (kind == KEYED_KEY) {
        const call_part part = c->part;
        const int found = keyed_begins(c, text, size, end);
        if (found == CALL_WHOLE && after) buf_add(&c->parts, &part, sizeof part);
        if (found != CALL_NONE || !after) return found;
        c->state = IN_PARAMETER;
        return CALL_WHOLE;
    }
    if (after) buf_add(&c->parts, &c->part, sizeof c->part);
    c->end = c->at;
    c->is_closed = kind == KEYED_CALL_END;
    c->at += c->is_closed ? size : 0;
    return CALL_OVER;
}

static int keyed_read(call_reader *c, slice text, int end) {
    for (int found = CALL_WHOLE;;) {
        switch (c->state) {
        case IN_CALL: found = keyed_name(c, text, end); break;
        case IN_PARAMETER: found = keyed_value(c, text, end); break;
        default: found = keyed_between(c, text, end);
        }
        if (found != CALL_WHOLE) return found == CALL_OVER ? CALL_WHOLE : found;
    }
}

static int keyed_put(call_reader *c, slice text, buf *arguments) {
    return put_call_values(c, text, 0, arguments);
}
