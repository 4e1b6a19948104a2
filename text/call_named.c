/* text/call_named.c: a call with its name in front, Mistral Small 3's: f[CALL_ID]123456789[ARGS]{"x": 1}. Models leave the marks out, and
   write several after one [TOOL_CALLS]. */

static const char named_id[] = "[CALL_ID]", named_arguments[] = "[ARGS]";

/* The name and what stands between it and the arguments. */
static int named_head(call_reader *c, slice text, int end) {
    enum { MOST = 512 };
    slice rest = slice_from(text, c->at);
    if (rest.n > MOST) rest.n = MOST;
    slice before = slice_before(rest, named_arguments), brace = slice_before(rest, "{");
    const int marked = before.n < brace.n;
    if (!marked) before = brace;
    if (before.n == rest.n) return end || rest.n == MOST ? CALL_NONE : CALL_MORE;
    slice name = slice_trim(slice_before(before, named_id));
    if (!name.n || memchr(name.p, '\n', name.n) || !call_names(c, name)) return CALL_NONE;
    c->function = (size_t)(name.p - text.p);
    c->function_size = name.n;
    c->at += before.n + (marked ? strlen(named_arguments) : 0);
    return CALL_WHOLE;
}

/* Whether another call follows at once, or after a comma or a semicolon: 1, and c->at is there; -1: it may. */
static int named_follows(call_reader *c, slice text, int end) {
    enum { MOST = 128 };
    size_t at = 0, size = 0;
    while (at < text.n && (is_blank(text.p[at]) || text.p[at] == ',' || text.p[at] == ';')) at++;
    slice rest = slice_from(text, at);
    while (size < rest.n && size < MOST && !memchr("[{ \n", rest.p[size], 4)) size++;
    slice after = slice_from(rest, size);
    if (!size && rest.n) return 0;
    if (!rest.n || !after.n || (*after.p == '[' && after.n < strlen(named_id))) return end || size == MOST ? 0 : -1;
    const int follows = *after.p == '{' || slice_starts(after, named_id) || slice_starts(after, named_arguments);
    if (!follows || !c->arguments.tools || !tool_named(c->arguments.tools, slice_of(rest.p, size))) return 0;
    c->at = at;
    return 1;
}

static int named_read(call_reader *c, slice text, int end) {
    int found = c->function_size ? CALL_WHOLE : named_head(c, text, end);
    if (found != CALL_WHOLE) return found;
    if (c->arguments.mender.out.size == 0) skip_blanks(c, text);
    if (c->arguments.mender.out.size == 0 && c->at < text.n && text.p[c->at] != '{') return CALL_NONE;
    found = c->state == IN_CALL_OBJECT ? json_in_object(c, text, end) : CALL_WHOLE;
    if (found != CALL_WHOLE || c->state == IN_CALL_OBJECT) return found;
    c->again = c->may_follow = 1;
    return call_ends_before_text(c);
}

static int named_put(call_reader *c, slice text, buf *arguments) {
    json j;
    put_quoted(slice_of(text.p + c->function, c->function_size), &c->name);
    if (!may_parse(&c->arguments, &c->arguments.mender.out, &j)) return 0;
    int ok = j.nodes[0].type == JSON_OBJECT && may_put_json(&c->arguments, &j, 0, arguments);
    json_free(&j);
    return ok;
}
