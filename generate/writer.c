/* generate/writer.c: from tokens to text and tool calls.

   Tokens become bytes, bytes whole characters, characters pass the search for stop texts, and what passes is split into
   channels. Each step holds back only what it cannot decide yet. A tool call is collected as a whole. */

typedef struct writer {
    const mote_generation *g;
    const mote_model *m;
    utf8_stream characters;
    buf text;                    /* whole characters not passed on yet: they may begin a stop text */
    chat_stream channels;
    int split;                   /* by channel */
    int stopped;                 /* MOTE_STOP_TEXT or MOTE_STOP_CALLBACK, else 0 */
    buf call;                    /* the tool call at hand; only with on_call */
    int calling;                 /* there is one */
    const json *tools;           /* NULL: none */
    int calls, broken_calls;
    int code;                    /* MOTE_ENOMEM: a call did not fit into memory */
} writer;

static void writer_call(void *user, const char *call, size_t size) {
    writer *w = (writer *)user;
    if (w->stopped == MOTE_STOP_CALLBACK) return;
    w->calls++;
    if (w->g->on_call(w->g->user, call, size)) w->stopped = MOTE_STOP_CALLBACK;
}

/* The call at hand is over. closed: by its tag. */
static void writer_end_call(writer *w, int closed) {
    int broken = 0;
    w->code = tool_calls_read(w->call.data, w->call.size, closed, w->tools, writer_call, w, &broken, NULL);
    w->broken_calls += broken;
    w->calling = 0;
    w->call.size = 0;
}

static void writer_emit(void *user, int channel, const char *text, size_t size) {
    writer *w = (writer *)user;
    if (w->stopped != MOTE_STOP_CALLBACK && w->g->on_text && w->g->on_text(w->g->user, channel, text, size))
        w->stopped = MOTE_STOP_CALLBACK;
    if (channel != MOTE_TOOL_CALL || !w->g->on_call || w->code) return;
    w->calling = 1;
    buf_add(&w->call, text, size);
    if (w->call.failed) w->code = MOTE_ENOMEM;
    else if (!size) writer_end_call(w, 1);
}

static void writer_pass(writer *w, const char *text, size_t n) {
    if (!n) return;
    if (w->split) chat_stream_push(&w->channels, text, n, writer_emit, w);
    else writer_emit(w, MOTE_ANSWER, text, n);
}

/* Where in the held text the first stop text begins (*found), or else what might still become one. */
static size_t writer_stop_at(const writer *w, int *found) {
    for (size_t at = 0; at < w->text.size; at++)
        for (int i = 0; i < w->g->stop_count; i++) {
            size_t n = strlen(w->g->stop[i]), left = w->text.size - at;
            if (n && !memcmp(w->text.data + at, w->g->stop[i], n < left ? n : left)) {
                *found = n <= left;
                return at;
            }
        }
    *found = 0;
    return w->text.size;
}

static void writer_token(writer *w, int32_t id) {
    size_t n, at = 0;
    int found = 0;
    const char *bytes = tokenizer_token(w->m->text, id, &n);
    if (!bytes || tokenizer_is_special(w->m->text, id)) return;
    utf8_stream_push(&w->characters, bytes, n, &w->text);
    if (w->text.size) at = writer_stop_at(w, &found);
    writer_pass(w, w->text.data, at);
    w->text.size -= at;
    memmove(w->text.data, w->text.data + at, w->text.size);
    if (found) w->text.size = 0;
    if (found && !w->stopped) w->stopped = MOTE_STOP_TEXT;
}

/* Passes on what was held back, as it can become nothing else any more. */
static void writer_finish(writer *w) {
    if (w->stopped != MOTE_STOP_TEXT) utf8_stream_end(&w->characters, &w->text);
    writer_pass(w, w->text.data, w->text.size);
    if (w->split) chat_stream_end(&w->channels, writer_emit, w);
    if (w->calling && !w->code) writer_end_call(w, 0);
}

/* Does the prompt end inside an open <think>? That is a token: text from outside that says so opens nothing. Line feeds may
   follow. */
static int prompt_opens_thinking(const mote_session *s) {
    const chat_marks *m = chat_marks_of(s->m->family);
    const int32_t think = tokenizer_find(s->m->text, m ? m->think : "<think>");
    int i = s->count;
    while (i > 0 && think >= 0 && s->tokens[i - 1] != think) {
        size_t n;
        const char *bytes = tokenizer_token(s->m->text, s->tokens[--i], &n);
        if (!bytes || slice_drop_newlines(slice_of(bytes, n)).n) return 0;
    }
    return i > 0 && think >= 0;
}

/* All the memory that an answer's text will ever need: what is held back is shorter than a stop text, and a token adds its
   bytes and those of an unfinished character before it, each at most three bytes long (U+FFFD). */
static int writer_open(writer *w, const mote_model *m, const mote_generation *g, mote_error *err) {
    size_t held = 0;
    memset(w, 0, sizeof *w);
    w->g = g;
    w->m = m;
    for (int i = 0; i < g->stop_count; i++) held = larger(held, strlen(g->stop[i]));
    buf_add(&w->text, NULL, held + 3 * (m->longest_token + sizeof w->characters.bytes));
    w->text.size = 0;
    return w->text.failed ? fail_memory(err) : MOTE_OK;
}

/* Before the first token. */
static void writer_begin(writer *w, const mote_session *s) {
    w->split = w->m->text && !w->g->raw;
    if (w->split) chat_stream_begin(&w->channels, prompt_opens_thinking(s));
    w->channels.expects_calls = w->tools && w->g->on_call;
}
