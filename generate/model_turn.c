/* generate/model_turn.c: timelines of a template in which the results of calls stand in the answer's own turn, Gemma 4's: which calls have
   none yet, what a turn ends with, and what is left of an answer without its thinking. Marks are tokens here, never text. */

static int is_line_end(const mote_model *m, int32_t id);

typedef struct model_marks { int32_t turn, turn_end, call, call_end, result, result_end, think, think_end; } model_marks;

static model_marks model_marks_of(const mote_model *m) {
    const chat_marks *marks = chat_marks_of(m->family);
    const tokenizer *t = m->text;
    const model_marks ids = {tokenizer_find(t, marks->turn),   tokenizer_find(t, marks->turn_end),   tokenizer_find(t, marks->call),
                             tokenizer_find(t, marks->call_end), tokenizer_find(t, marks->result),     tokenizer_find(t, marks->result_end),
                             tokenizer_find(t, marks->think),  tokenizer_find(t, marks->think_end)};
    return ids;
}

/* The calls of the last turn, and how many of them have results. at: where call number `wanted` is, -1: there is none. */
static int turn_open_calls(const mote_session *s, int wanted, int *results, int *at) {
    const model_marks marks = model_marks_of(s->m);
    int i = s->count, calls = 0;
    *results = 0;
    *at = -1;
    while (i > 0 && s->tokens[i - 1] != marks.turn) i--;
    for (; i < s->count; i++) {
        if (s->tokens[i] == marks.call && calls++ == wanted) *at = i;
        *results += s->tokens[i] == marks.result_end;
    }
    return calls;
}

/* Appends the name of the call at a token, and a zero. */
static void put_call_name(const mote_session *s, int at, buf *out) {
    enum { MOST = 256 };
    char text[MOST];
    size_t n = 0, size;
    while (at >= 0 && ++at < s->count && !tokenizer_is_added(s->m->text, s->tokens[at])) {
        const char *bytes = tokenizer_token(s->m->text, s->tokens[at], &size);
        if (!bytes || n + size > MOST) break;
        memcpy(text + n, bytes, size);
        n += size;
    }
    const slice head = slice_before(slice_of(text, n), "{");
    const slice name = slice_trim(slice_starts(head, "call:") ? slice_from(head, 5) : head);
    if (name.n && !memchr(name.p, 0, name.n)) buf_slice(out, name);
    else buf_text(out, "unknown");
    buf_add(out, "", 1);
}

/* The names of the calls that `count` results answer, one after the other. */
static void put_open_names(const mote_session *s, int count, buf *out) {
    int results, at;
    for (int i = 0; i < count; i++) {
        (void)turn_open_calls(s, -1, &results, &at);
        (void)turn_open_calls(s, results + i, &results, &at);
        put_call_name(s, at, out);
    }
}

/* Puts what is missing before results, or before a question: an answer that calls has no end mark, but that which opens results. */
static void put_model_turn_end(const mote_session *s, int result, marked_text *out) {
    const chat_marks *m = chat_marks_of(s->m->family);
    const model_marks marks = model_marks_of(s->m);
    int at = s->count;
    if (!at) return;
    while (!result && at && is_line_end(s->m, s->tokens[at - 1])) at--;
    const int bare = at == s->count;
    while (at && is_eos(s->m, s->tokens[at - 1]) && s->tokens[at - 1] != marks.turn_end && s->tokens[at - 1] != marks.result) at--;
    const int32_t last = at ? s->tokens[at - 1] : -1;
    if (result && last == marks.turn_end) put_words(out, m->line_end), put_words(out, m->answer);
    if (result || last == marks.result) return;
    if (last == marks.call_end) put_words(out, m->result);
    else if (last == marks.turn_end && bare) put_words(out, m->line_end);
    else if (last != marks.turn_end && (last != marks.result_end || s->m->family & CHAT_PRESERVE)) put_words(out, m->turn_end), put_words(out, m->line_end);
}

/* Text of a turn outside of calls and results, which a template trims. head: it begins with the role. */
static void put_model_text(const mote_model *m, const int32_t *ids, int n, int head, marked_text *out) {
    marked_text part;
    memset(&part, 0, sizeof part);
    put_tokens(m, ids, n, -1, &part);
    const slice all = slice_of(part.text.data, part.text.size), role = slice_before(all, "\n");
    const size_t from = head && role.n < all.n ? role.n + 1 : 0;
    put_marked(out, &part, slice_of(all.p, from));
    put_marked(out, &part, slice_trim(slice_from(all, from)));
    out->text.failed |= marked_failed(&part);
    marked_free(&part);
}

/* Appends the tokens from `from` on without their channels, and the end that the last turn lacks. */
static void put_model_past(const mote_session *s, int from, marked_text *out) {
    const model_marks marks = model_marks_of(s->m);
    const chat_marks *m = chat_marks_of(s->m->family);
    const tokenizer *t = s->m->text;
    int thinks = 0, inside = 0;
    int32_t last = -1, end = -1;                               /* the control token before; the one that what is there ends with */
    for (int i = from, n; i < s->count; i += n) {
        const int32_t id = s->tokens[i];
        for (n = 1; !tokenizer_is_added(t, id) && i + n < s->count && !tokenizer_is_added(t, s->tokens[i + n]); n++) {}
        thinks &= id != marks.call;                            /* which ends it, too */
        if (id == marks.think || id == marks.think_end) {
            thinks = id == marks.think;
        } else if (!thinks && tokenizer_is_added(t, id)) {
            inside = id == marks.call || id == marks.result ? 1 : id == marks.call_end || id == marks.result_end ? 0 : inside;
            const int stays = id == marks.result || id == marks.turn_end;
            if (!stays && is_eos(s->m, id)) continue;
            put_tokens(s->m, &id, 1, id, out);
            last = end = id;
        } else if (!thinks) {
            const size_t before = out->text.size;
            if (inside || last == marks.turn_end) put_tokens(s->m, s->tokens + i, n, -1, out);
            else put_model_text(s->m, s->tokens + i, n, last == marks.turn, out);
            last = last == marks.turn ? -1 : last;
            end = out->text.size > before ? -1 : end;
        }
    }
    if (end == marks.turn_end || end == marks.result) return;
    if (end == marks.call_end) put_words(out, m->result);
    else if (end != marks.result_end || s->m->family & CHAT_PRESERVE) put_words(out, m->turn_end);
}
