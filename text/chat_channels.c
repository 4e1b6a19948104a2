/* text/chat_channels.c: an answer that consists of messages with headers -> channels and calls, as chat_stream.c tells them. Its marks
   are tokens, and come as such: text that says the same is text.

   analysis is thinking, final and commentary are the answer, a blank line between two messages of a channel. A message to a tool is a
   call, in any channel: it is told when its object is whole, or when the message ends. What is none is text, header and all, and so is
   a header that is broken: cut off, of an unknown channel or role, or without an end. Other headers are never told. */

enum { BETWEEN_MESSAGES, IN_HEADER, IN_BODY };       /* of chat_stream.place; in a header, or in a call's body, the text is held */

static void channels_text(chat_stream *s, slice text) {
    if (text.n) s->emit(s->user, s->channel, text.p, text.n);
    if (text.n) s->told |= 1 << s->channel;
}

/* A body begins whose text is told as it comes. */
static void channels_body(chat_stream *s, int channel) {
    s->place = IN_BODY;
    s->channel = channel;
    s->separates = s->told >> channel & 1;
}

/* Text of a body. */
static void channels_tell(chat_stream *s, slice text) {
    if (text.n && s->separates) channels_text(s, slice_of("\n\n", 2));
    s->separates &= !text.n;
    channels_text(s, text);
}

/* The text held is no header and no call. */
static void channels_release(chat_stream *s, int channel) {
    channels_body(s, channel);
    channels_tell(s, slice_of(s->held.data + s->given, s->held.size - s->given));
    s->held.size = s->given = 0;
}

/* Text where no message is: blanks in front of it are nothing. */
static void channels_between(chat_stream *s, slice text) {
    s->place = BETWEEN_MESSAGES;
    s->channel = MOTE_ANSWER;
    while (text.n && is_blank(*text.p)) text = slice_from(text, 1);
    if (!text.n) return;
    channels_body(s, MOTE_ANSWER);
    channels_tell(s, text);
}

/* The call whose header and body are held, as far as it has come. */
static void channels_call(chat_stream *s, int end) {
    const slice held = slice_of(s->held.data, s->held.size);
    const int found = call_read(&s->call, held, end);
    if (found == CALL_MORE) return;
    s->calling = 0;
    if (found == CALL_NONE) {
        s->broken_calls++;
        channels_release(s, s->channel_of_call);
        return;
    }
    const slice body = slice_trim(slice_of(held.p + s->call.begin, s->call.end - s->call.begin));
    s->emit(s->user, MOTE_TOOL_CALL, held.p + s->call.function, s->call.function_size);
    s->emit(s->user, MOTE_TOOL_CALL, " ", 1);
    if (body.n) s->emit(s->user, MOTE_TOOL_CALL, body.p, body.n);
    s->emit(s->user, MOTE_TOOL_CALL, "", 0);
    s->on_call(s->user, s->call.out.data, s->call.out.size - 1);
    channels_between(s, slice_from(held, s->call.end));
    s->held.size = s->given = 0;
}

/* A header has ended, and its message's body begins. */
static void channels_open(chat_stream *s) {
    const slice header = slice_of(s->held.data, s->held.size);
    const chat_header h = chat_header_of(header);
    const slice callee = header_callee(&h);
    const int channel = slice_is(h.channel, "analysis") ? MOTE_THINKING : MOTE_ANSWER;
    const int ours = !h.role.n || slice_is(h.role, "assistant");
    const int known = channel == MOTE_THINKING || !h.channel.n || slice_is(h.channel, "final") || slice_is(h.channel, "commentary");
    const size_t name = callee.n ? (size_t)(callee.p - header.p) : 0;
    buf_text(&s->held, header_marks[MARK_MESSAGE]);            /* the slices are of no use afterwards */
    if (s->held.failed) return;
    if (!known || !ours || (callee.n && !s->on_call)) {
        channels_release(s, channel);
    } else if (callee.n) {
        call_begin(&s->call, s->tools, 0);
        s->call.syntax = call_syntaxes + SYNTAX_HEADED;
        s->call.function = name;
        s->call.function_size = callee.n;
        s->call.at = s->call.begin = s->held.size;
        s->calling = 1;
        s->place = IN_BODY;
        s->channel = MOTE_ANSWER;
        s->channel_of_call = channel;
    } else {
        s->held.size = s->given = 0;
        channels_body(s, channel);
    }
}

/* A mark has come. What is in front of it is over. */
static void channels_mark(chat_stream *s, int mark) {
    const int opens = mark == MARK_START || mark == MARK_CHANNEL, ends = mark >= MARK_END;
    if (s->calling) channels_call(s, TEXT_ENDS);
    if (s->place == IN_HEADER && (ends || mark == MARK_START)) {
        if (!header_is_bare(slice_of(s->held.data, s->held.size))) channels_release(s, MOTE_ANSWER);
        s->held.size = s->given = 0;
    }
    if (ends) {
        s->place = BETWEEN_MESSAGES;
        s->channel = MOTE_ANSWER;
    } else if (opens || s->place == IN_HEADER) {
        s->place = IN_HEADER;
        s->channel = MOTE_ANSWER;
        if (mark == MARK_MESSAGE) channels_open(s);
        else buf_text(&s->held, header_marks[mark]);
    } else if (s->place == BETWEEN_MESSAGES && mark == MARK_MESSAGE) {
        channels_body(s, MOTE_ANSWER);
    } else {
        if (s->place == BETWEEN_MESSAGES) channels_body(s, MOTE_ANSWER);
        channels_tell(s, slice_of(header_marks[mark], strlen(header_marks[mark])));
    }
}

/* Before the first token: in the header of an answer's first message, or in a text that is none of a message. */
static void channels_begin(chat_stream *s, int place) {
    s->headed = 1;
    s->channel = MOTE_ANSWER;
    s->place = place;
}

/* What has come so far was the prompt's, of which nothing is to be told. */
static void channels_given(chat_stream *s) {
    if (s->place == IN_HEADER && header_is_bare(slice_of(s->held.data, s->held.size))) s->held.size = 0;
    s->given = s->held.size;
    s->told = s->separates = s->broken_calls = 0;
}

static void channels_push(chat_stream *s, slice text) {
    const int held = s->place == IN_HEADER || s->calling;
    if (held) buf_add(&s->held, text.p, text.n);
    if (s->held.failed) return;
    if (s->calling) channels_call(s, TEXT_GOES_ON);
    else if (s->place == BETWEEN_MESSAGES) channels_between(s, text);
    else if (s->place == IN_BODY) channels_tell(s, text);
    else if (header_is_broken(slice_of(s->held.data, s->held.size))) channels_release(s, MOTE_ANSWER);
}

/* The answer is over: end as in chat_stream_end. */
static void channels_end(chat_stream *s, int end) {
    if (s->calling) channels_call(s, end);
    if (s->place == IN_HEADER && !header_is_bare(slice_of(s->held.data, s->held.size))) channels_release(s, MOTE_ANSWER);
}
