/* generate/thinking.c: dropping old thinking.

   Chat templates render the thinking of an answer only until the user's next turn. So must the timeline, and its state cannot
   be cut back. So mote_ask remembers the state before the first answer to a user's turn, before "<|im_start|>assistant": at
   the next user turn the session goes back to there and reads what came since once more, without the thinking. The texts are
   those of the timeline's tokens: the token history stays the truth. */

/* Takes the memory for the state before an answer. */
static int reserve_answer(mote_session *s, mote_error *err) {
    if (!s->before_answer) s->before_answer = checkpoint_new(s, s->o.context);
    return s->before_answer ? MOTE_OK : fail_memory(err);
}

/* Appends tokens as text of which all but the control tokens is from outside. Ends of text other than `end` are left out. */
static void put_tokens(const mote_model *m, const int32_t *ids, int n, int32_t end, marked_text *out) {
    for (int i = 0; i < n; i++) {
        size_t size, begin = out->text.size;
        int control = tokenizer_is_added(m->text, ids[i]);
        const char *bytes = tokenizer_token(m->text, ids[i], &size);
        if (bytes && (ids[i] == end || !is_eos(m, ids[i]))) buf_add(&out->text, bytes, size);
        while (!control && i + 1 < n && !tokenizer_is_added(m->text, ids[i + 1]))
            if ((bytes = tokenizer_token(m->text, ids[++i], &size))) buf_add(&out->text, bytes, size);
        if (!control) mark_outside(out, begin, out->text.size);
    }
}

/* Appends one turn of the past, its n tokens without its end. */
static void put_past(const mote_model *m, const int32_t *ids, int n, int32_t end, marked_text *out) {
    const chat_marks *marks = chat_marks_of_answers;
    marked_text turn;
    char begins[64];
    const int size = snprintf(begins, sizeof begins, "%sassistant\n", marks->turn);
    memset(&turn, 0, sizeof turn);
    put_tokens(m, ids, n, end, &turn);
    slice text = slice_of(turn.text.data, turn.text.size);
    size_t head = slice_before(text, begins).n;
    int answer = head <= 1 && head < text.n;                /* after the line feed of the turn before */
    head = answer ? head + (size_t)size : text.n;
    put_marked(out, &turn, slice_of(text.p, head));
    if (answer) chat_past(m->family, &turn, slice_from(text, head), out);
    put_words(out, marks->turn_end);
    out->text.failed |= marked_failed(&turn);
    marked_free(&turn);
}

/* The remembered state is one that the timeline goes on from. */
static int remembers_answer(const mote_session *s) {
    const mote_checkpoint *c = s->before_answer;
    return c && c->count <= s->count && checkpoint_holds(s, c);
}

/* 1: gpt-oss's thinking stays until a final answer, also when the user speaks, and the state before it is the one to remember. */
static int answer_is_open(const mote_session *s) {
    return s->m->family & CHAT_HARMONY && remembers_answer(s);
}

/* An answer of the past whose messages are read again: its text, as it was told. */
typedef struct headed_answer {
    chat_stream channels;
    buf text;
    int begun;
    int32_t marks[HEADER_MARKS]; /* tokens */
} headed_answer;

static void past_emit(void *user, int channel, const char *text, size_t size) {
    if (channel == MOTE_ANSWER) buf_add((buf *)user, text, size);
}

/* The n tokens of a message of it. The first one's begin with the prompt's last words. */
static void headed_answer_read(headed_answer *a, const mote_model *m, const int32_t *ids, int n) {
    size_t role = a->begun ? 0 : strlen(header_marks[MARK_START]) + strlen("assistant");
    if (!a->begun) {
        a->text.size = a->channels.held.size = 0;
        a->channels.told = 0;
        a->channels.emit = past_emit;
        a->channels.user = &a->text;
        channels_begin(&a->channels, IN_HEADER);
    }
    a->begun = 1;
    for (int i = 0; i < n; i++) {
        size_t size = 0;
        int mark = 0;
        const char *bytes = tokenizer_token(m->text, ids[i], &size);
        if (role) {
            role -= size < role ? size : role;
            continue;
        }
        while (mark < HEADER_MARKS && a->marks[mark] != ids[i]) mark++;
        if (mark < HEADER_MARKS) channels_mark(&a->channels, mark);
        else if (bytes && !tokenizer_is_special(m->text, ids[i])) chat_stream_push(&a->channels, bytes, size);
    }
}

/* As the one message that a history has of it. */
static void put_headed_answer(headed_answer *a, marked_text *out) {
    if (!a->begun) return;
    chat_stream_end(&a->channels, TEXT_IS_CUT);
    put_words(out, "<|start|>assistant<|channel|>final<|message|>");
    put_outside(out, slice_of(a->text.data, a->text.size));
    put_words(out, "<|end|>");
    a->begun = 0;
}

/* A message of the past, of its n tokens. Thinking is left out, and so is what an answer says before it calls. */
static void put_past_message(headed_answer *a, const mote_model *m, const int32_t *ids, int n, marked_text *out) {
    marked_text message;
    memset(&message, 0, sizeof message);
    put_tokens(m, ids, n, a->marks[MARK_END], &message);
    slice all = slice_of(message.text.data, message.text.size);
    const chat_header h = turn_header(all);
    const int answers = slice_starts(h.role, "assistant"), calls = answers && header_callee(&h).n;
    if (answers && !calls) {
        headed_answer_read(a, m, ids, n);
    } else {
        if (calls) a->begun = 0;
        put_headed_answer(a, out);
        if (calls && slice_ends(all, header_marks[MARK_END])) all.n -= strlen(header_marks[MARK_END]);
        put_marked(out, &message, all);
        if (calls) put_words(out, header_marks[MARK_CALL]);
    }
    out->text.failed |= marked_failed(&message);
    marked_free(&message);
}

/* What gpt-oss's template makes of all after the remembered state once a final answer has come; nothing before that. */
static void put_past_messages(const mote_session *s, marked_text *out) {
    headed_answer a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < HEADER_MARKS; i++) a.marks[i] = tokenizer_find(s->m->text, header_marks[i]);
    for (int i = s->before_answer->count, n; i < s->count; i += n) {
        for (n = 1; i + n < s->count && s->tokens[i + n] != a.marks[MARK_START]; n++) {}
        put_past_message(&a, s->m, s->tokens + i, n, out);
    }
    if (!a.begun) out->text.size = out->outside.size = 0;
    put_headed_answer(&a, out);
    out->text.failed |= a.text.failed | chat_stream_failed(&a.channels);
    chat_stream_free(&a.channels);
    buf_free(&a.text);
}

/* Where the answer after the one at i begins, whose first token is `begins`; or the end. */
static int answer_end(const mote_session *s, int i, int32_t begins) {
    while (++i < s->count && s->tokens[i] != begins) {}
    return i;
}

/* Appends the answers from token `from` on, and the results that follow each, of a template whose answers begin with a token of their
   own. Tokens that end an answer stay where they begin what follows it. */
static void put_answers(const mote_session *s, int from, marked_text *out) {
    const chat_marks *marks = chat_marks_of(s->m->family);
    const int32_t begins = tokenizer_find(s->m->text, marks->turn), end = tokenizer_find(s->m->text, marks->turn_end);
    for (int i = from, next; i < s->count; i = next) {
        marked_text turn;
        memset(&turn, 0, sizeof turn);
        next = answer_end(s, i, begins);
        for (int at = i + 1, n; at < next; at += n) {
            for (n = 1; at + n < next && !is_eos(s->m, s->tokens[at + n - 1]); n++) {}
            const int32_t last = s->tokens[at + n - 1];
            const int stays = at + n < next && !is_eos(s->m, s->tokens[at + n]);
            put_tokens(s->m, s->tokens + at, n, stays ? last : end, &turn);
        }
        put_words(out, marks->answer);
        chat_past(s->m->family, &turn, slice_of(turn.text.data, turn.text.size), out);
        if (*marks->turn_end && !slice_ends(slice_of(out->text.data, out->text.size), marks->turn_end)) put_words(out, marks->turn_end);
        out->text.failed |= marked_failed(&turn);
        marked_free(&turn);
    }
}

static void put_model_past(const mote_session *s, int from, marked_text *out);

/* Does the timeline end with the token that ended an answer, of a template whose turns have no end, and begins no question? As after
   calls, instead of whose results a question comes. */
static int ends_for_results(const mote_session *s) {
    const chat_marks *marks = chat_marks_of(s->m->family);
    return !*marks->turn_end && s->count && is_eos(s->m, s->tokens[s->count - 1]) && s->tokens[s->count - 1] != tokenizer_find(s->m->text, marks->user);
}

/* The ids that take the place of what follows the remembered state, with keys of the images of results; none if nothing is remembered, there was no
   thinking and no such end, or an image is not kept. */
static int past_ids(const mote_session *s, buf *ids, mote_error *err) {
    const mote_checkpoint *c = s->before_answer;
    const int headed = s->m->family & CHAT_HARMONY;
    int thinks = 0, code = MOTE_OK;
    const chat_marks *marks = chat_marks_of_model(s->m->family);
    const int by_answers = s->m->family & CHAT_ANSWER_TURNS, in_turn = s->m->family & CHAT_GEMMA;
    if (!remembers_answer(s)) return MOTE_OK;
    const int32_t think = tokenizer_find(s->m->text, marks->think), end = tokenizer_find(s->m->text, marks->turn_end);
    const int32_t closes = by_answers ? tokenizer_find(s->m->text, marks->think_end) : -1;         /* nothing is thought in <think></think> */
    for (int i = c->count; i < s->count; i++) thinks |= s->tokens[i] == think && (closes < 0 || i + 1 == s->count || s->tokens[i + 1] != closes);
    thinks |= by_answers && ends_for_results(s);
    if (!headed && (!thinks || think < 0)) return MOTE_OK;
    marked_text past;
    memset(&past, 0, sizeof past);
    if (headed) put_past_messages(s, &past);
    if (by_answers) put_answers(s, c->count, &past);
    if (in_turn) put_model_past(s, c->count, &past);
    for (int i = c->count, n; !headed && !by_answers && !in_turn && i < s->count; i += n + 1) {
        for (n = 0; i + n < s->count && s->tokens[i + n] != end; n++) {}
        put_past(s->m, s->tokens + i, n, end, &past);
    }
    code = marked_failed(&past) ? fail_memory(err) : encode_marked(s->m->text, &past, ids, err);
    marked_free(&past);
    if (c->count + ids->size / sizeof(int32_t) > (size_t)s->o.context) ids->size = 0;
    if (!images_place_kept(s, c->count, (int32_t *)(void *)ids->data, ids->size / sizeof(int32_t))) ids->size = 0;
    return code;
}

/* Goes back and reads these instead. Nothing cancels it: the answer would be lost. */
static int drop_thinking(mote_session *s, const int32_t *ids, size_t n, mote_error *err) {
    int (*cancel)(void *user) = s->o.callbacks.cancel;
    const mote_images kept = {s->m, s->kept_count, s->kept};
    image_reader r;
    int code = reader_open(&r, &kept, err);
    s->o.callbacks.cancel = NULL;
    if (!code) code = reader_ready(&r, s, ids, n, err);
    if (!code) code = session_rewind(s, s->before_answer, err);
    if (!code) code = reader_read(kept.count ? &r : NULL, s, ids, n, err);
    s->o.callbacks.cancel = cancel;
    reader_close(&r);
    return code;
}

int mote_drop_thinking(mote_session *session, size_t *read, mote_error *error) {
    buf ids;
    int code = session_enter(session, 1, "mote_drop_thinking: needs a session", error);
    if (code) return code;
    code = session_begin(session, "mote_drop_thinking", error);
    if (code) return code;
    memset(&ids, 0, sizeof ids);
    if (session->m->text) code = past_ids(session, &ids, error);
    size_t n = ids.size / sizeof(int32_t);
    if (!code && n) code = drop_thinking(session, (const int32_t *)(void *)ids.data, n, error);
    if (!code && read) *read = n;
    buf_free(&ids);
    session_leave(session);
    return code;
}
