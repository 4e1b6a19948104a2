/* generate/writer.c: from tokens to text and tool calls.

   Tokens become bytes, bytes whole characters, characters are split into channels and calls, and the text of the answer's
   channel passes the search for stop texts. Each step holds back only what it cannot decide yet.

   An answer that must be calls has no text to search: what is cut off inside a call is told as text, and no stop text ends it then,
   since it had ended before. */

enum { CALL_MARKS = 5 };

typedef struct writer {
    const mote_generation *g;
    const mote_model *m;
    utf8_stream characters;
    buf text;                    /* of the token at hand */
    chat_stream channels;
    int split;                   /* by channel */
    int strips;                  /* a space that comes first is SentencePiece's */
    int32_t marks[CALL_MARKS];   /* control tokens of calls, and of a channel, which are told as text; -1: there is none */
    int32_t headers[HEADER_MARKS];         /* of messages with headers; -1: there is none */
    stops ends;
    int stopped;                 /* MOTE_STOP_TEXT, MOTE_STOP_CALL or MOTE_STOP_CALLBACK: nothing more is told; else 0 */
    int stop_text;
    const json *tools;           /* NULL: none */
    int calls;
    int thinking, undecided;     /* tokens: of the thinking; of what may be a call in it */
    int code;                    /* MOTE_ENOMEM: what may be a call did not fit into memory */
} writer;

static void writer_close(writer *w) {
    buf_free(&w->text);
    chat_stream_free(&w->channels);
    stops_close(&w->ends);
}

/* A call that is told was no thinking. */
static void writer_call(void *user, const char *call, size_t size) {
    writer *w = (writer *)user;
    w->undecided = 0;
    if (w->stopped) return;
    w->calls++;
    if (w->g->on_call(w->g->user, call, size)) w->stopped = MOTE_STOP_CALLBACK;
    else if (w->g->one_call) w->stopped = MOTE_STOP_CALL;
}

static void writer_tell(writer *w, int channel, const char *text, size_t size) {
    if (!w->stopped && w->g->on_text && w->g->on_text(w->g->user, channel, text, size)) w->stopped = MOTE_STOP_CALLBACK;
}

/* Of what was held back and the text after it, tells the first `size` bytes. */
static void writer_pass(writer *w, const char *held, size_t held_size, const char *text, size_t size) {
    size_t first = held_size < size ? held_size : size;
    if (first) writer_tell(w, MOTE_ANSWER, held, first);
    if (size > first) writer_tell(w, MOTE_ANSWER, text, size - first);
}

/* Text of the answer: all is told up to a stop text, or up to what may become one. */
static void writer_answer(writer *w, const char *text, size_t size) {
    const stop_text *held = stops_held(&w->ends);
    const char *before = held ? held->text : NULL;
    const size_t n = held ? held->matched : 0;
    for (size_t i = 0; i < size && w->ends.count; i++) {
        int found = stops_take(&w->ends, text[i]);
        if (found < 0) continue;
        writer_pass(w, before, n, text, n + i + 1 - w->ends.list[found].size);
        if (!w->stopped) w->stop_text = found;
        if (!w->stopped) w->stopped = MOTE_STOP_TEXT;
        return;
    }
    held = stops_held(&w->ends);
    writer_pass(w, before, n, text, n + size - (held ? held->matched : 0));
}

/* The text held back is no stop text. */
static void writer_release(writer *w) {
    const stop_text *held = stops_held(&w->ends);
    if (held) writer_tell(w, MOTE_ANSWER, held->text, held->matched);
    stops_forget(&w->ends);
}

static void writer_emit(void *user, int channel, const char *text, size_t size) {
    writer *w = (writer *)user;
    if (w->stopped) return;
    if (channel == MOTE_ANSWER) {
        writer_answer(w, text, size);
        return;
    }
    writer_release(w);
    writer_tell(w, channel, text, size);
}

static void writer_push(writer *w) {
    if (!w->text.size) return;
    if (w->split) chat_stream_push(&w->channels, w->text.data, w->text.size);
    else writer_emit(w, MOTE_ANSWER, w->text.data, w->text.size);
    w->text.size = 0;
    if (chat_stream_failed(&w->channels)) w->code = MOTE_ENOMEM;
}

/* A mark of messages with headers. 0: the token is none. */
static int writer_mark(writer *w, int32_t id) {
    int mark = 0;
    while (mark < HEADER_MARKS && w->headers[mark] != id) mark++;
    if (mark == HEADER_MARKS) return 0;
    utf8_stream_end(&w->characters, &w->text);
    writer_push(w);
    channels_mark(&w->channels, mark);
    if (chat_stream_failed(&w->channels)) w->code = MOTE_ENOMEM;
    return 1;
}

static void writer_token(writer *w, int32_t id) {
    size_t n = 0;
    const char *bytes = tokenizer_token(w->m->text, id, &n);
    w->undecided += w->split && w->channels.channel == MOTE_THINKING;
    int mark = 0;
    for (int i = 0; i < CALL_MARKS; i++) mark |= id == w->marks[i];
    if (bytes && !writer_mark(w, id) && (mark || !tokenizer_is_special(w->m->text, id))) {
        const size_t begin = w->strips && n && *bytes == ' ';
        w->strips = 0;
        bytes += begin;
        n -= begin;
        utf8_stream_push(&w->characters, bytes, n, &w->text);
        writer_push(w);
    }
    if (w->channels.calling) return;
    w->thinking += w->undecided;
    w->undecided = 0;
}

/* Tells what was held back, as it can become nothing else any more. ended: the answer is over of its own accord. */
static void writer_finish(writer *w, int ended) {
    if (!w->stopped && !w->code) {
        utf8_stream_end(&w->characters, &w->text);
        writer_push(w);
        if (w->split) chat_stream_end(&w->channels, ended ? TEXT_ENDS : TEXT_IS_CUT);
        if (chat_stream_failed(&w->channels)) w->code = MOTE_ENOMEM;
        writer_release(w);
    }
    w->thinking += w->undecided;
}

/* The result's fields of the text. */
static void writer_result(const writer *w, mote_result *r) {
    if (w->stopped) r->stop = w->stopped;
    r->stop_text = w->stop_text;
    r->thinking_tokens = w->thinking;
    r->calls = w->calls;
    r->broken_calls = w->channels.broken_calls;
}

/* Whether the prompt ends inside an open <think>. That is a token: text from outside that says so opens nothing. Line feeds may
   follow, and a channel's name, which then must. */
static int prompt_opens_thinking(const mote_session *s) {
    const int32_t think = tokenizer_find(s->m->text, chat_marks_of_model(s->m->family)->think);
    const int named = s->m->family & CHAT_GEMMA;
    int i = s->count, words = 0;
    while (i > 0 && think >= 0 && s->tokens[i - 1] != think) {
        size_t n;
        const char *bytes = tokenizer_token(s->m->text, s->tokens[--i], &n);
        if (!bytes || tokenizer_is_added(s->m->text, s->tokens[i]) || (named ? ++words > 16 : slice_drop_newlines(slice_of(bytes, n)).n)) return 0;
    }
    return i > 0 && think >= 0;
}

/* All the memory that an answer's text needs, but for what may be a call: a token adds its bytes and those of an unfinished
   character before it, each at most three bytes long (U+FFFD), to what may be a tag. */
static int writer_open(writer *w, const mote_model *m, const mote_generation *g, const json *tools, mote_error *err) {
    enum { LONGEST_TAG = 512 };
    memset(w, 0, sizeof *w);
    w->g = g;
    w->m = m;
    w->tools = tools;
    const size_t token = 3 * (m->longest_token + sizeof w->characters.bytes);
    buf_add(&w->text, NULL, token);
    buf_add(&w->channels.held, NULL, token + LONGEST_TAG);
    w->text.size = w->channels.held.size = 0;
    if (w->text.failed || w->channels.held.failed) return fail_memory(err);
    const int all_is_calls = g->tool_choice == MOTE_TOOLS_REQUIRED && tools && g->on_call && !g->raw;
    return stops_open(&w->ends, g->stop, all_is_calls ? 0 : g->stop_count, err);
}

/* What calls look like that have no tags, and what the thinking is between. */
static void writer_call_marks(writer *w) {
    static const char *const none[CALL_MARKS] = {NULL}, *const mistral[CALL_MARKS] = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
                      *const pairs[CALL_MARKS] = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", gemma_quote};
    const char *const deepseek[CALL_MARKS] = {DEEPSEEK_CALLS, chat_marks_of(CHAT_DEEPSEEK)->call, DEEPSEEK_SEP, chat_marks_of(CHAT_DEEPSEEK)->call_end,
                                              DEEPSEEK_CALLS_END};
    const int calls = w->channels.on_call != NULL, family = calls ? w->m->family : 0, gemma = w->split && w->m->family & CHAT_GEMMA;
    const char *const *marks = gemma ? pairs : family & CHAT_MISTRAL ? mistral : family & CHAT_DEEPSEEK ? deepseek : none;
    for (int i = 0; i < CALL_MARKS; i++) w->marks[i] = marks[i] && (calls || i < 2) ? tokenizer_find(w->m->text, marks[i]) : -1;
    w->channels.marks = gemma ? chat_marks_of(CHAT_GEMMA) : NULL;
    w->channels.call_mark = !calls ? NULL : gemma ? w->channels.marks->call : marks[0];
    w->channels.marked_calls = (family & CHAT_DEEPSEEK) != 0;
    w->channels.bare_calls = (w->m->family & CHAT_LLAMA3) != 0;
    w->channels.keyed_calls = (w->m->family & (CHAT_GLM | CHAT_LAGUNA)) != 0;
}

/* Messages with headers: where in them the prompt ends. It is taken from its last message on, and nothing of that is told. */
static void writer_headers(writer *w, const mote_session *s) {
    const int headed = w->split && w->m->family & CHAT_HARMONY;
    int at = s->count;
    for (int i = 0; i < HEADER_MARKS; i++) w->headers[i] = headed ? tokenizer_find(w->m->text, header_marks[i]) : -1;
    if (!headed) return;
    while (at > 0 && s->tokens[at - 1] != w->headers[MARK_START]) at--;
    channels_begin(&w->channels, at ? BETWEEN_MESSAGES : IN_BODY);
    w->stopped = MOTE_STOP_CALLBACK;
    for (int i = at - 1; i >= 0 && i < s->count; i++) writer_token(w, s->tokens[i]);
    w->stopped = w->thinking = w->undecided = 0;
    channels_given(&w->channels);
}

/* Before the first token. */
static void writer_begin(writer *w, const mote_session *s) {
    w->split = w->m->text && !w->g->raw;
    w->strips = w->split && w->m->text->strip_space;
    w->channels.emit = writer_emit;
    w->channels.on_call = w->tools && w->g->on_call ? writer_call : NULL;
    w->channels.tools = w->tools;
    w->channels.user = w;
    writer_call_marks(w);
    if (w->split) chat_stream_begin(&w->channels, prompt_opens_thinking(s));
    writer_headers(w, s);
}
