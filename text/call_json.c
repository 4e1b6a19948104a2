/* text/call_json.c: a call as JSON, Qwen3's: {"name": "f", "arguments": {"x": 1}}, and other forms of it that models write. */

enum { IN_CALL_OBJECT = IN_CALL, AFTER_CALL_OBJECT };

static int json_in_object(call_reader *c, slice text, int end) {
    json_mender *m = &c->arguments.mender;
    while (c->state == IN_CALL_OBJECT) {
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
        c->closed = c->at;
        if (!m->depth) c->state = AFTER_CALL_OBJECT;
    }
    return CALL_WHOLE;
}

/* After the object may be what is left of a list or a code block around it, brackets too many, the next object, and text. */
static int json_read_call(call_reader *c, slice text, int end) {
    int found = c->state == IN_CALL_OBJECT ? json_in_object(c, text, end) : CALL_WHOLE;
    if (found != CALL_WHOLE || c->state == IN_CALL_OBJECT) return found;
    for (; c->at < text.n && (is_blank(text.p[c->at]) || memchr("]}`,;", text.p[c->at], 5)); c->at++) {
        if (memchr("]}`", text.p[c->at], 3)) c->closed = c->at + 1;
        if (text.p[c->at] == ']') c->in_list = 0;
    }
    call_tag tag = tag_at(slice_from(text, c->at), end);
    c->again = c->at < text.n && text.p[c->at] == '{';
    if (c->again) return call_ends(c, &tag);
    if (tag.kind == TAG_PARTIAL) return CALL_MORE;
    return call_is_over(c, &tag) ? CALL_WHOLE : call_ends_before_text(c);
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

/* 1: an object holds what calls hold, and nothing else. */
static int holds_call_alone(const json *j, uint32_t object) {
    static const char *const keys[] = {"name", "type", "function", "id", "arguments", "parameters"};
    for (uint32_t k = object + 1; k < j->nodes[object].next; k = j->nodes[k + 1].next) {
        int known = 0;
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) known |= json_equals(j, k, keys[i]);
        if (!known) return 0;
    }
    return json_get(j, object, "arguments") || json_get(j, object, "parameters");
}

/* The name and arguments of an object that has them, or has such an object as "function". 0: it does not. */
static int put_parts(call_reader *c, const json *j, buf *arguments) {
    uint32_t node = 0, inner = json_get(j, 0, "function"), name;
    if (inner && j->nodes[inner].type == JSON_OBJECT) node = inner;
    if (c->bare && !holds_call_alone(j, node)) return 0;
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
