/* text/chat_stream.c: answer -> channels and calls, piece by piece as it is generated. It knows the tags of thinking and the
   channels of engine.h; of calls only where they begin, and nothing of tokens, of families or of how a prompt is written.

   <think> and </think> switch between thinking and answer. They and the newlines next to them are no part of any channel's
   text, and no more is lost. A tag where it means nothing, such as <think> after the first text, is text. Only what may still
   become a tag, or newlines that a tag may follow, is held back.

   Where calls are expected, what may become one is held until it is decided (see tool_calls.c). A whole call is told on
   MOTE_TOOL_CALL: what its tags enclose, then an empty text, then the call itself. Anything else comes on the channel it
   stood in, byte for byte. A call ends the thinking it was written in, so the </think> that follows means nothing, and goes.
   What begins in the thinking and is no whole call before </think>, is thinking. */

typedef void (*chat_emit)(void *user, int channel, const char *text, size_t len);

typedef struct chat_stream {
    chat_emit emit;
    call_sink on_call;     /* NULL: no calls are expected */
    const json *tools;     /* those that can be called; NULL: not known */
    const char *call_mark; /* that begins calls besides the tags; NULL: none does */
    int bare_calls;        /* objects may be calls, without a mark */
    int marked_calls;      /* call_mark begins a list of calls, each with a mark of its own */
    int keyed_calls;       /* calls may be keys and values between tags */
    const chat_marks *marks;               /* of thinking and calls; NULL: chat_marks_of_answers */
    void *user;
    int channel;
    int at_start;          /* nothing but newlines so far: <think> would open the thinking */
    int after_tag;         /* no text since the last tag: newlines are dropped */
    int cut_thinking;      /* a call ended the thinking, and its </think> has not come */
    size_t newlines;       /* held back */
    buf held;              /* text that is not decided: its first byte begins a tag or a call */
    int calling;           /* it may be a call */
    int unclosed;          /* end tags of calls that have ended, which may yet come */
    int depth, quoted, escaped;            /* brackets open in JSON that is no call; in a text there; after a backslash */
    size_t searched;       /* so much of it holds no </think> */
    call_reader call;
    int broken_calls;
    int headed;            /* messages with headers, which name their channels: chat_channels.c */
    int place;             /* in them */
    int told, separates;   /* channels that something was told on, as bits; a blank line comes before the next text */
    int channel_of_call;   /* of the message that may be a call */
    size_t given;          /* of the text held, which stands in the prompt */
} chat_stream;

static void chat_stream_begin(chat_stream *s, int thinking) {
    s->channel = thinking ? MOTE_THINKING : MOTE_ANSWER;
    s->at_start = 1;
    s->after_tag = thinking;
}

static void chat_stream_free(chat_stream *s) {
    buf_free(&s->held);
    call_reader_free(&s->call);
}

static int chat_stream_failed(const chat_stream *s) {
    return s->held.failed || call_failed(&s->call);
}

/* 1: the answer has Gemma's marks: of a channel, which may open anywhere in it, and of calls. */
static int stream_has_pairs(const chat_stream *s) {
    return s->marks && s->marks->family & CHAT_GEMMA;
}

static const chat_marks *stream_marks(const chat_stream *s) {
    return s->marks ? s->marks : chat_marks_of_answers;
}

static void put_newlines(chat_stream *s) {
    for (; s->newlines; s->newlines--) s->emit(s->user, s->channel, "\n", 1);
}

/* Text without tags. */
static void chat_stream_text(chat_stream *s, const char *text, size_t n) {
    const int tag_may_follow = s->channel != MOTE_ANSWER || s->at_start || s->on_call || s->cut_thinking || stream_has_pairs(s);
    while (n) {
        if (*text == '\n' && (s->after_tag || tag_may_follow)) {
            s->newlines += !s->after_tag;
            text++;
            n--;
            continue;
        }
        const char *newline = tag_may_follow ? (const char *)memchr(text, '\n', n) : NULL;
        size_t run = newline ? (size_t)(newline - text) : n;
        put_newlines(s);
        s->emit(s->user, s->channel, text, run);
        s->at_start = s->after_tag = 0;
        text += run;
        n -= run;
    }
}

/* A tag has come. */
static void chat_stream_switch(chat_stream *s, int channel) {
    s->channel = channel;
    s->after_tag = 1;
    s->at_start = 0;
    s->newlines = 0;
}

/* Bytes of a text before one with which something may begin. */
static size_t text_before(const chat_stream *s, slice text) {
    size_t n = slice_before(text, "<").n;
    if (s->on_call && (s->call_mark || s->bare_calls)) n = slice_before(slice_of(text.p, n), "[").n;
    if (s->on_call && s->bare_calls) n = slice_before(slice_of(text.p, slice_before(slice_of(text.p, n), "{").n), "`").n;
    return n;
}

enum { BARE_NONE, BARE_CALL, BARE_DATA };

/* What an object, or a list or a code block of one, is by its first key; -1: that has not come. */
static int bare_opens(slice text, int end) {
    static const char *const keys[] = {"name\"", "type\"", "function\"", "id\"", "arguments\"", "parameters\""};
    enum { MOST = 256 };
    const int fence = slice_starts(text, "```");
    size_t at = fence ? 3 : 0;
    if (*text.p == '`' && !fence) return text.n < 3 && !memcmp("```", text.p, text.n) && !end ? -1 : BARE_NONE;
    if (fence && slice_starts(slice_from(text, at), "json")) at += 4;
    for (int list = 0; at < text.n && at < MOST && (is_blank(text.p[at]) || (text.p[at] == '[' && !list)); at++) list |= text.p[at] == '[';
    if (at == text.n || (fence && at == 3 && !memcmp(text.p + at, "json", text.n - at < 4 ? text.n - at : 4))) return end || at == MOST ? BARE_NONE : -1;
    if (text.p[at++] != '{') return BARE_NONE;
    while (at < text.n && at < MOST && is_blank(text.p[at])) at++;
    if (at == text.n || at == MOST) return end || at == MOST ? BARE_NONE : -1;
    if (text.p[at++] != '"') return BARE_NONE;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const size_t n = strlen(keys[i]), left = text.n - at;
        if (memcmp(keys[i], text.p + at, left < n ? left : n)) continue;
        return left >= n ? BARE_CALL : end ? BARE_DATA : -1;
    }
    return BARE_DATA;
}

/* JSON that is no call, up to its end: objects in it are none either. Returns how much of it is told. */
static size_t chat_stream_data(chat_stream *s, slice text) {
    size_t n = 0;
    for (; n < text.n && (s->depth || !n); n++) {
        const char b = text.p[n];
        if (s->escaped) s->escaped = 0;
        else if (s->quoted) s->escaped = b == '\\', s->quoted = b != '"';
        else if (b == '"') s->quoted = 1;
        else if (b == '{' || b == '[') s->depth++;
        else if (b == '}' || b == ']') s->depth--;
    }
    chat_stream_text(s, text.p, n);
    return n;
}

/* 1: a call begins here after the *opened bytes of a mark; -1: it may be one, 0: none does. */
static int mark_opens(const chat_stream *s, slice text, int end, size_t *opened) {
    *opened = 0;
    size_t n = s->call_mark ? strlen(s->call_mark) : 0;
    if (!n || memcmp(text.p, s->call_mark, text.n < n ? text.n : n)) return 0;
    *opened = n;
    return text.n >= n ? 1 : end ? 0 : -1;
}

/* The tag of thinking that begins the text, if it means something now: its size; 0: there is none, -1: it may be one. */
static int think_tag(const chat_stream *s, slice text, int end, int *channel) {
    const chat_marks *const m = stream_marks(s);
    const int pairs = stream_has_pairs(s), opens = s->at_start || (pairs && s->channel == MOTE_ANSWER);
    const char *const tags[] = {!opens ? "" : pairs ? "<|channel>thought" : m->think,
                                s->channel == MOTE_THINKING || s->cut_thinking ? m->think_end : ""};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(tags[i]);
        *channel = i ? MOTE_ANSWER : MOTE_THINKING;
        if (n && !memcmp(text.p, tags[i], text.n < n ? text.n : n) && (text.n >= n || !end)) return text.n >= n ? (int)n : -1;
    }
    return 0;
}

/* The end tag of a call that ended before it: its size; 0: there is none, -1: it may be one. */
static int end_tag(const chat_stream *s, slice text, int end) {
    const char *const closes = stream_marks(s)->call_end;
    const size_t n = strlen(closes);
    if (!s->unclosed || memcmp(text.p, closes, text.n < n ? text.n : n)) return 0;
    return text.n >= n ? (int)n : end ? 0 : -1;
}

/* The part of the text that a call may be read from. In the thinking that is all before </think>, which ends it (*end). */
static slice call_text(chat_stream *s, slice text, int *end) {
    const char *const closes = stream_marks(s)->think_end;
    const size_t n = strlen(closes);
    size_t at = s->searched;
    if (s->channel != MOTE_THINKING) return text;
    for (; at < text.n; at++) {
        if (text.p[at] != *closes || memcmp(text.p + at, closes, text.n - at < n ? text.n - at : n)) continue;
        if (text.n - at < n && *end) continue;
        if (text.n - at >= n) *end = TEXT_IS_CUT;
        break;
    }
    s->searched = at;
    return slice_of(text.p, at);
}

static size_t chat_stream_next(chat_stream *s, slice text, int end);

/* Text that may be a call. Returns how much of it is told; 0: it is not decided. */
static size_t chat_stream_call(chat_stream *s, slice text, int end) {
    text = call_text(s, text, &end);
    int found = call_read(&s->call, text, end);
    size_t told = s->call.at;
    if (found == CALL_MORE) return 0;
    s->calling = 0;
    if (found == CALL_NONE && s->call.may_follow) {
        s->call.may_follow = 0;
        return chat_stream_next(s, text, end);
    }
    if (found == CALL_NONE) {
        s->broken_calls++;
        s->depth = s->call.bare ? s->call.in_list + call_depth(&s->call, &s->quoted) : 0;
        chat_stream_text(s, text.p, told);
        return told;
    }
    slice before = slice_of(text.p + s->call.opened, s->call.begin - s->call.opened);
    if (s->at_start || s->newlines) before = slice_skip_newlines(before);
    chat_stream_text(s, before.p, before.n);
    if (*text.p == '<') s->unclosed = s->call.tags ? s->call.tags : 1;
    s->unclosed -= s->call.is_closed && s->unclosed;
    slice raw = slice_of(text.p + s->call.begin, s->call.end - s->call.begin);
    raw = slice_drop_newlines(slice_skip_newlines(raw));
    s->cut_thinking |= s->channel == MOTE_THINKING;
    chat_stream_switch(s, MOTE_ANSWER);
    s->emit(s->user, MOTE_TOOL_CALL, raw.p, raw.n);
    s->emit(s->user, MOTE_TOOL_CALL, "", 0);
    s->on_call(s->user, s->call.out.data, s->call.out.size - 1);
    s->calling = s->call.again;
    const int may_follow = s->call.may_follow;
    if (s->calling) call_begin(&s->call, s->tools, 0);
    s->call.may_follow = may_follow;
    s->searched = 0;
    return told;
}

/* Text that nothing is known of. Returns how much of it is told or a tag; 0: it is not decided. */
static size_t chat_stream_next(chat_stream *s, slice text, int end) {
    size_t before = s->depth ? 0 : text_before(s, text), opened = 0;
    int channel;
    if (s->depth) return chat_stream_data(s, text);
    if (before) {
        chat_stream_text(s, text.p, before);
        return before;
    }
    int n = end_tag(s, text, end);
    if (n > 0) {
        s->after_tag |= s->newlines > 0;                       /* line feeds on one side of it are between text and text */
        s->unclosed--;
    }
    if (n) return n > 0 ? (size_t)n : 0;
    n = think_tag(s, text, end, &channel);
    const int on_line = s->channel == MOTE_ANSWER && (s->at_start || s->after_tag || s->newlines);
    if (n > 0) {
        if (channel == s->channel) put_newlines(s);            /* between text and text */
        if (channel == MOTE_ANSWER) s->cut_thinking = 0;
        chat_stream_switch(s, channel);
        return (size_t)n;
    }
    int opens = s->on_call ? call_opens(s->tools, text, end, on_line, &opened) : 0;
    if (s->on_call && !opens) opens = mark_opens(s, text, end, &opened);
    const int bare = s->on_call && s->bare_calls && !opens && s->channel == MOTE_ANSWER && *text.p != '<' ? bare_opens(text, end) : BARE_NONE;
    if (bare == BARE_DATA) return chat_stream_data(s, text);
    if (bare) opens = bare;
    if (opens > 0) {
        s->call.pairs = stream_has_pairs(s);
        s->call.named = s->call_mark && !s->call.pairs && !s->marked_calls;
        s->call.marked = s->marked_calls && opened;
        s->call.keyed = s->keyed_calls;
        s->call.bare = bare == BARE_CALL;
        s->call.in_list = bare == BARE_CALL && *text.p == '[';
        call_begin(&s->call, s->tools, opened);
        s->call.seeks = opened && s->channel == MOTE_ANSWER;
        s->call.on_line = opened && on_line;
        s->calling = 1;
        s->searched = 0;
        return chat_stream_call(s, text, end);
    }
    if (n < 0 || opens < 0) return 0;
    before = 1 + text_before(s, slice_from(text, 1));
    chat_stream_text(s, text.p, before);
    return before;
}

/* Tells what is decided of the text held. */
static void chat_stream_run(chat_stream *s, int end) {
    size_t at = 0, n = 1;
    while (n && at < s->held.size && !chat_stream_failed(s)) {
        slice left = slice_of(s->held.data + at, s->held.size - at);
        n = s->calling ? chat_stream_call(s, left, end) : chat_stream_next(s, left, end);
        at += n;
    }
    if (!at) return;
    s->held.size -= at;
    memmove(s->held.data, s->held.data + at, s->held.size);
}

static void channels_push(chat_stream *s, slice text);
static void channels_end(chat_stream *s, int end);

static void chat_stream_push(chat_stream *s, const char *text, size_t n) {
    if (s->headed) {
        channels_push(s, slice_of(text, n));
        return;
    }
    size_t plain = s->held.size || s->depth || s->calling ? 0 : text_before(s, slice_of(text, n));
    if (plain) chat_stream_text(s, text, plain);
    if (plain == n) return;
    buf_add(&s->held, text + plain, n - plain);
    chat_stream_run(s, TEXT_GOES_ON);
}

/* end: TEXT_IS_CUT or TEXT_ENDS. */
static void chat_stream_end(chat_stream *s, int end) {
    if (s->headed) {
        channels_end(s, end);
        return;
    }
    chat_stream_run(s, end);
    put_newlines(s);
}
