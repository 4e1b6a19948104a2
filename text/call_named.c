/* text/call_named.c: a call with its name in front, Mistral Small 3's: f[CALL_ID]123456789[ARGS]{"x": 1}. */

/* The name and what stands between it and the arguments. */
static int named_head(call_reader *c, slice text, int end) {
    static const char id[] = "[CALL_ID]", arguments[] = "[ARGS]";
    enum { MOST = 512 };
    slice rest = slice_from(text, c->at);
    if (rest.n > MOST) rest.n = MOST;
    slice before = slice_before(rest, arguments);
    if (before.n == rest.n) return end || rest.n == MOST ? CALL_NONE : CALL_MORE;
    slice name = slice_trim(slice_before(before, id));
    if (!name.n || memchr(name.p, '\n', name.n) || !call_names(c, name)) return CALL_NONE;
    c->function = (size_t)(name.p - text.p);
    c->function_size = name.n;
    c->at += before.n + strlen(arguments);
    skip_blanks(c, text);
    return CALL_WHOLE;
}

static int named_read(call_reader *c, slice text, int end) {
    const call_tag none = {TAG_NONE, TAG_NONE, 0, {NULL, 0}};
    int found = c->function_size ? CALL_WHOLE : named_head(c, text, end);
    if (found != CALL_WHOLE) return found;
    if (c->arguments.mender.out.size == 0 && c->at < text.n && text.p[c->at] != '{') return CALL_NONE;
    found = json_in_object(c, text, end);
    return found == CALL_WHOLE ? call_ends(c, &none) : found;
}

static int named_put(call_reader *c, slice text, buf *arguments) {
    json j;
    put_quoted(slice_of(text.p + c->function, c->function_size), &c->name);
    if (!may_parse(&c->arguments, &c->arguments.mender.out, &j)) return 0;
    int ok = j.nodes[0].type == JSON_OBJECT && may_put_json(&c->arguments, &j, 0, arguments);
    json_free(&j);
    return ok;
}
