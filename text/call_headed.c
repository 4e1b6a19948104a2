/* text/call_headed.c: a call whose name stands in its message's header, gpt-oss's: the body is its arguments. */

/* A body that ends with nothing in it has none; an object that a mark cuts short lacks its brackets. */
static int headed_read(call_reader *c, slice text, int end) {
    json_mender *m = &c->arguments.mender;
    if (!m->out.size) {
        if (!call_names(c, slice_of(text.p + c->function, c->function_size))) return CALL_NONE;
        skip_blanks(c, text);
        if (c->at < text.n && text.p[c->at] != '{') return CALL_NONE;
        if (c->at == text.n && end != TEXT_ENDS) return end ? CALL_NONE : CALL_MORE;
        if (c->at == text.n) c->closed = c->at;
    }
    int found = c->at < text.n || m->depth ? json_in_object(c, text, end == TEXT_ENDS ? TEXT_GOES_ON : end) : CALL_WHOLE;
    if (found == CALL_MORE && end == TEXT_ENDS) {
        c->closed = c->at;
        found = !m->quote && c->at == text.n && mend_end(m) ? CALL_WHOLE : CALL_NONE;
    }
    return found == CALL_WHOLE ? call_ends_before_text(c) : found;
}

static int headed_put(call_reader *c, slice text, buf *arguments) {
    if (c->arguments.mender.out.size) return named_put(c, text, arguments);
    put_quoted(slice_of(text.p + c->function, c->function_size), &c->name);
    buf_text(arguments, "{}");
    return 1;
}
