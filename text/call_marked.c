/* text/call_marked.c: calls between DeepSeek's marks, after the one before them all. V3.1's: name, mark, arguments; V3's and R1's: a type, the mark, the
   name on the same line, the arguments in a code block. What is forgotten of the marks after the arguments is missed by nobody: these end a call. */

/* Bytes of a mark that comes next, after white space: c->at is at it then. 0: none does; -1: it may. */
static int mark_next(call_reader *c, slice text, const char *mark, int end) {
    enum { BLANKS = 64 };
    const size_t n = strlen(mark);
    size_t at = c->at;
    while (at < text.n && at < c->at + BLANKS && is_blank(text.p[at])) at++;
    const slice rest = slice_from(text, at);
    if (!rest.n) return end ? 0 : -1;
    if (memcmp(rest.p, mark, rest.n < n ? rest.n : n)) return 0;
    if (rest.n < n) return end ? 0 : -1;
    c->at = at;
    return (int)n;
}

/* The mark before a call, its name, and what stands between that and the arguments. */
static int marked_head(call_reader *c, slice text, int end) {
    enum { MOST = 512 };
    const chat_marks *const m = chat_marks_of(CHAT_DEEPSEEK);
    const int opens = mark_next(c, text, m->call, end);
    if (opens <= 0) return opens ? CALL_MORE : CALL_NONE;
    slice rest = slice_from(text, c->at + (size_t)opens);
    if (rest.n > MOST) rest.n = MOST;
    const slice head = slice_before(rest, DEEPSEEK_SEP);
    const size_t after = head.n + strlen(DEEPSEEK_SEP);
    const slice line = slice_from(rest, after < rest.n ? after : rest.n), before = slice_before(line, "{");
    if (before.n == line.n && !end && rest.n < MOST) return CALL_MORE;
    if (before.n == line.n) c->at += c->seeks ? 0 : (size_t)opens;         /* the mark is text then */
    if (before.n == line.n) return CALL_NONE;
    const slice on_line = slice_trim(slice_before(slice_before(before, "\n"), "`")), name = on_line.n ? on_line : slice_trim(head);
    if (!name.n || memchr(name.p, '\n', name.n) || memchr(name.p, '<', name.n) || !call_names(c, name)) {
        c->at += c->seeks ? 0 : (size_t)opens;
        return CALL_NONE;
    }
    c->function = (size_t)(name.p - text.p);
    c->function_size = name.n;
    c->at = (size_t)(line.p - text.p) + before.n;
    return CALL_WHOLE;
}

/* After the arguments: the end of a code block, of the call, of all calls, or another call. */
static int marked_end(call_reader *c, slice text, int end) {
    const chat_marks *const m = chat_marks_of(CHAT_DEEPSEEK);
    const char *const marks[] = {"```", m->call_end, DEEPSEEK_CALLS_END, m->call};
    c->end = c->at = c->closed;
    c->is_closed = 1;
    for (int i = 0; i < 4; i++) {
        const int n = mark_next(c, text, marks[i], end);
        if (n < 0) return CALL_MORE;
        if (n && i < 3) c->at += (size_t)n;
        c->end = n && !i ? c->at : c->end;
        if (n && i == 2) break;
        c->again = n && i == 3;
    }
    return CALL_WHOLE;
}

static int marked_read(call_reader *c, slice text, int end) {
    int found = c->function_size ? CALL_WHOLE : marked_head(c, text, end);
    if (found == CALL_WHOLE) found = c->state == IN_CALL_OBJECT ? json_in_object(c, text, end) : CALL_WHOLE;
    if (found != CALL_WHOLE || c->state == IN_CALL_OBJECT) return found;
    return marked_end(c, text, end);
}
