// text/chat_stream.c: answer -> channels, piece by piece as it is generated. It knows the tags and the channels of
// engine.h, and nothing of tokens, of families or of how a prompt is written.
//
// The answer as a stream: tags switch between thinking, answer and tool calls. The tags and the newlines next to
// them are no part of any channel's text. Only what may still become a tag, or newlines that a tag may follow, is held
// back. A call's text is what its tags enclose; an empty piece on MOTE_TOOL_CALL says that the call is complete (an
// output that was cut short has none for its last call). Some models forget to open a call: where calls are expected, a line
// that begins with <function= opens one, of which that is already the text. A tag where it means nothing, such as <think> after the first
// text, stays text.

typedef void (*chat_emit)(void *user, int channel, const char *text, size_t len);

typedef struct chat_stream {
    int channel;
    int fresh;       // nothing but newlines so far: <think> would open the thinking
    int after_tag;   // no text since the last tag: newlines are dropped
    size_t newlines; // held back
    char held[16];   // n bytes, the beginning of a tag
    int n;
    int expects_calls;
} chat_stream;

static void chat_stream_begin(chat_stream *s, int thinking) {
    memset(s, 0, sizeof *s);
    s->channel = thinking ? MOTE_THINKING : MOTE_ANSWER;
    s->fresh = 1;
    s->after_tag = thinking;
}

// Text without tags.
static void chat_stream_text(chat_stream *s, const char *text, size_t n, chat_emit emit, void *user) {
    while (n) {
        if (*text == '\n') {
            if (!s->after_tag) s->newlines++;
            text++;
            n--;
            continue;
        }
        for (; s->newlines; s->newlines--) emit(user, s->channel, "\n", 1);
        const char *newline = (const char *)memchr(text, '\n', n);
        size_t run = newline ? (size_t)(newline - text) : n;
        emit(user, s->channel, text, run);
        s->fresh = s->after_tag = 0;
        text += run;
        n -= run;
    }
}

// Compares what is held with the tags that mean something now: 2 = it is one (*to is the next channel), 1 = it may
// become one.
static int chat_stream_match(const chat_stream *s, int *to) {
    static const char *const tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<function="};
    static const int channels[] = {MOTE_THINKING, MOTE_ANSWER, MOTE_TOOL_CALL, MOTE_ANSWER, MOTE_TOOL_CALL};
    int active[5], best = 0;
    active[0] = s->fresh;
    active[1] = s->channel == MOTE_THINKING;
    active[2] = s->channel != MOTE_TOOL_CALL; // inside thinking it ends the thinking
    active[3] = s->channel == MOTE_TOOL_CALL;
    active[4] = s->expects_calls && s->channel == MOTE_ANSWER && (s->fresh || s->after_tag || s->newlines);
    for (int i = 0; i < 5; i++) {
        if (!active[i] || strncmp(tags[i], s->held, (size_t)s->n)) continue;
        *to = channels[i];
        if (!tags[i][s->n]) return 2;
        best = 1;
    }
    return best;
}

static void chat_stream_push(chat_stream *s, const char *text, size_t n, chat_emit emit, void *user) {
    for (size_t i = 0; i < n;) {
        int to = 0;
        if (!s->n && text[i] != '<') { // plain text up to the next possible tag
            const char *tag = (const char *)memchr(text + i, '<', n - i);
            size_t run = tag ? (size_t)(tag - text) - i : n - i;
            chat_stream_text(s, text + i, run, emit, user);
            i += run;
            continue;
        }
        s->held[s->n++] = text[i++];
        int match = chat_stream_match(s, &to);
        if (match == 2) {
            if (s->channel == MOTE_TOOL_CALL) emit(user, MOTE_TOOL_CALL, "", 0);
            s->channel = to;
            s->after_tag = 1;
            s->fresh = s->n = 0;
            s->newlines = 0;
            if (s->held[1] == 'f') chat_stream_text(s, "<function=", 10, emit, user);
        } else if (!match) { // '<' only begins a tag, so what was held is text and this byte may begin the next tag
            int held = s->n - 1;
            s->n = 0;
            i--;
            chat_stream_text(s, s->held, (size_t)held, emit, user);
        }
    }
}

static void chat_stream_end(chat_stream *s, chat_emit emit, void *user) {
    chat_stream_text(s, s->held, (size_t)s->n, emit, user);
    for (; s->newlines; s->newlines--) emit(user, s->channel, "\n", 1);
    s->n = 0;
}
