/* text/call_pairs.c: a call as Gemma 4 writes it: call:f{key:<|"|>text<|"|>,n:3,list:[{a:true}]}. A text has no escapes and ends at its next
   mark. Read as well are keys and texts in JSON's quotes, keys between marks, Python's words, and, of an argument alone, a bare text
   up to a comma or a bracket. The JSON is written while the text comes. */

enum { BEFORE_KEY = IN_CALL + 1, AFTER_KEY, BEFORE_PAIR_VALUE, AFTER_PAIR_VALUE, IN_PAIR_TEXT };

enum { PAIRS_WORD = 512 };                       /* bytes: longer names and bare values are none */

static void pairs_opens(call_reader *c, char bracket) {
    json_mender *m = &c->arguments.mender;
    m->open[m->depth++] = bracket;
    mend_byte(m, bracket);
    c->at++;
    c->state = bracket == '{' ? BEFORE_KEY : BEFORE_PAIR_VALUE;
}

/* The name, with call: or without it, and the brace. */
static int pairs_head(call_reader *c, slice text, int end) {
    skip_blanks(c, text);
    slice rest = slice_from(text, c->at);
    if (rest.n > PAIRS_WORD) rest.n = PAIRS_WORD;
    const slice before = slice_before(rest, "{");
    if (before.n == rest.n) return end || rest.n == PAIRS_WORD ? CALL_NONE : CALL_MORE;
    const slice name = slice_trim(slice_starts(before, "call:") ? slice_from(before, 5) : before);
    if (!name.n || memchr(name.p, '\n', name.n) || !call_names(c, name)) return CALL_NONE;
    c->function = (size_t)(name.p - text.p);
    c->function_size = name.n;
    c->at += before.n;
    pairs_opens(c, '{');
    return CALL_WHOLE;
}

/* In a text, which began at part.value. */
static int pairs_in_text(call_reader *c, slice text, int end) {
    json_mender *m = &c->arguments.mender;
    const size_t n = strlen(gemma_quote);
    while (m->quote == '"' && c->at < text.n) {
        const int used = mend_in_string(m, slice_from(text, c->at), end);
        if (!used) return CALL_MORE;
        c->at += (size_t)used;
        if (!m->quote) c->part.value_size = c->at - 1 - c->part.value;
    }
    while (m->quote == '<' && c->at < text.n) {
        const char *mark = (const char *)memchr(text.p + c->at, '<', text.n - c->at);
        const size_t at = mark ? (size_t)(mark - text.p) : text.n, left = text.n - at;
        const int is_mark = mark && !memcmp(mark, gemma_quote, left < n ? left : n);
        c->at = at + (mark && !is_mark);
        if (is_mark && left < n) return end ? CALL_NONE : CALL_MORE;
        if (!is_mark) continue;
        c->part.value_size = at - c->part.value;
        put_quoted(slice_of(text.p + c->part.value, c->part.value_size), &m->out);
        c->at = at + n;
        m->quote = 0;
    }
    if (m->quote) return end ? CALL_NONE : CALL_MORE;
    m->comma = 0;
    c->state = c->is_own ? AFTER_KEY : AFTER_PAIR_VALUE;
    if (!c->is_own) return CALL_WHOLE;
    c->part.name = c->part.value;
    c->part.name_size = c->part.value_size;
    return CALL_WHOLE;
}

/* A text begins, of a key or a value. CALL_NONE: another thing does. */
static int pairs_text(call_reader *c, slice rest, int end, int key) {
    json_mender *m = &c->arguments.mender;
    const size_t n = strlen(gemma_quote);
    const int marked = !memcmp(rest.p, gemma_quote, rest.n < n ? rest.n : n);
    if (!marked && *rest.p != '"') return CALL_NONE;
    if (marked && rest.n < n) return end ? CALL_NONE : CALL_MORE;
    m->quote = *rest.p;
    if (!marked) mend_byte(m, '"');
    c->at += marked ? n : 1;
    c->part.value = c->at;
    c->is_own = key;
    c->state = IN_PAIR_TEXT;
    return CALL_WHOLE;
}

/* The bare word that a text begins with, up to one of these bytes: its size; 0: there is none, or it has not ended. */
static size_t pairs_word(slice rest, const char *ends, int end, int *found) {
    size_t n = 0;
    while (n < rest.n && n < PAIRS_WORD && !memchr(ends, rest.p[n], strlen(ends))) n++;
    *found = n < rest.n && n < PAIRS_WORD && slice_trim(slice_of(rest.p, n)).n ? CALL_WHOLE : n == rest.n && n < PAIRS_WORD && !end ? CALL_MORE : CALL_NONE;
    return n;
}

static int pairs_key(call_reader *c, slice rest, slice text, int end) {
    json_mender *m = &c->arguments.mender;
    int found;
    const size_t n = pairs_word(rest, ":,{}[]<\n\"", end, &found);
    if (found != CALL_WHOLE) return found;
    const slice name = slice_trim(slice_of(rest.p, n));
    c->part.name = (size_t)(name.p - text.p);
    c->part.name_size = name.n;
    put_quoted(name, &m->out);
    m->comma = 0;
    c->at += n;
    c->state = AFTER_KEY;
    return CALL_WHOLE;
}

/* A value without quotes: of an argument what its schema says, else a word or a number, of which put says whether it is JSON. */
static int pairs_bare(call_reader *c, slice rest, slice text, int end) {
    json_mender *m = &c->arguments.mender;
    const char *word = NULL;
    int found;
    const size_t n = pairs_word(rest, ",{}[]<\n\"", end, &found);
    if (found != CALL_WHOLE) return found;
    const slice s = slice_trim(slice_of(rest.p, n)), name = slice_of(text.p + c->part.name, c->part.name_size);
    if (m->depth == 1 && !put_bare_argument(&c->arguments, name, s, &m->out)) return CALL_NONE;
    if (m->depth > 1 && python_word(s, 1, &word) == (int)s.n) buf_text(&m->out, word);
    else if (m->depth > 1) buf_slice(&m->out, s);
    m->comma = 0;
    c->at += n;
    c->state = AFTER_PAIR_VALUE;
    return CALL_WHOLE;
}

/* A closing bracket, which has to be that of what is open. */
static int pairs_closes(call_reader *c, char bracket) {
    json_mender *m = &c->arguments.mender;
    if (m->open[m->depth - 1] != (bracket == '}' ? '{' : '[')) return CALL_NONE;
    mend_close(m);
    c->closed = ++c->at;
    c->state = AFTER_PAIR_VALUE;
    return CALL_WHOLE;
}

/* A comma, or the end of what is open, which the call's end mark is, too. */
static int pairs_after(call_reader *c, slice rest, int end) {
    json_mender *m = &c->arguments.mender;
    const char *const mark = chat_marks_of(CHAT_GEMMA)->call_end;
    const size_t n = strlen(mark);
    if (*rest.p == '}' || *rest.p == ']') return pairs_closes(c, *rest.p);
    if (*rest.p == ',') {
        mend_byte(m, ',');
        c->at++;
        c->state = m->open[m->depth - 1] == '{' ? BEFORE_KEY : BEFORE_PAIR_VALUE;
        return CALL_WHOLE;
    }
    if (memcmp(rest.p, mark, rest.n < n ? rest.n : n)) return CALL_NONE;
    if (rest.n < n) return end ? CALL_NONE : CALL_MORE;
    c->closed = c->at;
    (void)mend_end(m);
    return CALL_WHOLE;
}

/* What comes next, which is no blank. */
static int pairs_next(call_reader *c, slice text, int end) {
    json_mender *m = &c->arguments.mender;
    const slice rest = slice_from(text, c->at);
    const char b = *rest.p;
    if (c->state == AFTER_PAIR_VALUE) return pairs_after(c, rest, end);
    if (c->state == AFTER_KEY) {
        if (b != ':') return CALL_NONE;
        mend_byte(m, b);
        c->at++;
        c->state = BEFORE_PAIR_VALUE;
        return CALL_WHOLE;
    }
    const int key = c->state == BEFORE_KEY;
    if (b == '}' || b == ']') return key || m->open[m->depth - 1] == '[' ? pairs_closes(c, b) : CALL_NONE;
    if (!key && (b == '{' || b == '[')) {
        if (m->depth == JSON_DEPTH) return CALL_NONE;
        pairs_opens(c, b);
        return CALL_WHOLE;
    }
    const int found = pairs_text(c, rest, end, key);
    if (found != CALL_NONE) return found;
    return (key ? pairs_key : pairs_bare)(c, rest, text, end);
}

/* After its last bracket the call ends, with its mark where that is there. */
static int pairs_end(call_reader *c, slice text, int end) {
    const char *const mark = chat_marks_of(CHAT_GEMMA)->call_end;
    const size_t n = strlen(mark);
    c->at = c->closed;
    skip_blanks(c, text);
    const slice rest = slice_from(text, c->at);
    const int is_mark = !memcmp(rest.p, mark, rest.n < n ? rest.n : n);
    if (is_mark && rest.n < n && !end) return CALL_MORE;
    (void)call_ends_before_text(c);
    c->is_closed = is_mark && rest.n >= n;
    if (c->is_closed) c->at = (size_t)(rest.p - text.p) + n;
    return CALL_WHOLE;
}

static int pairs_read(call_reader *c, slice text, int end) {
    int found = c->function_size ? CALL_WHOLE : pairs_head(c, text, end);
    while (found == CALL_WHOLE && c->arguments.mender.depth) {
        if (c->state == IN_PAIR_TEXT) {
            found = pairs_in_text(c, text, end);
            continue;
        }
        skip_blanks(c, text);
        if (c->at == text.n) return end ? CALL_NONE : CALL_MORE;
        found = pairs_next(c, text, end);
    }
    return found == CALL_WHOLE ? pairs_end(c, text, end) : found;
}
