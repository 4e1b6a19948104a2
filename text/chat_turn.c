/* text/chat_turn.c: one turn of a conversation -> prompt, for mote_ask, and what the model wrote in its turn as a later prompt
   has it. Like chat.c it gives text, and which of it is from outside; it knows nothing of ids, models or sessions. */

/* One more turn of a conversation. All texts are from outside. */
typedef struct turn {
    const char *system;        /* NULL or "": none; first turn only */
    const json *tools;         /* a list; NULL: none; first turn only */
    const char *role, *message;        /* "user" or "tool" */
    int images;                /* before the message */
    const char *const *results;        /* "tool": of further calls, after the message */
    int result_count;
    const char *names;         /* of the calls that the message and the results answer (of gpt-oss whole recipients), a zero after each;
                                  NULL: they are not needed, or, of gpt-oss, there is no such call */
    int opened;                /* the first result's mark is there */
    int think;                 /* as in chat_prompt */
    int first;                 /* the conversation begins with it */
    const char *effort;        /* first turn only; NULL: the template's own */
    const char *date;          /* first turn only; NULL: today's */
} turn;

/* The system turn of a conversation that begins. */
static int chat_begin(chat_family f, const turn *t, int effort, marked_text *out, mote_error *err) {
    chat c;
    memset(&c, 0, sizeof c);
    c.family = f;
    c.marks = chat_marks_of(f);
    c.out = out;
    c.err = err;
    c.effort = t->first ? effort : EFFORT_NONE;
    if (t->tools) c.j = *t->tools;
    c.has_tools = t->tools && t->tools->nodes[0].size;
    slice system = slice_of(t->system, t->system ? strlen(t->system) : 0);
    int given = system.n > 0;
    put_outside(&c.system, f & CHAT_QWEN3_5 ? slice_trim(system) : system);
    int code = chat_system(&c, given);
    if (marked_failed(&c.system)) code = fail_memory(err);
    marked_free(&c.system);
    return code;
}

/* {"role": ..., "content": ...}; name: of a call, or NULL. */
static void put_turn_message(buf *out, const char *role, const char *content, const char *name) {
    buf_text(out, "{\"role\": \"");
    buf_text(out, role);
    buf_text(out, "\", \"content\": ");
    put_quoted(slice_of(content, strlen(content)), out);
    if (name) buf_text(out, ", \"name\": "), put_quoted(slice_of(name, strlen(name)), out);
    buf_text(out, "}");
}

/* The turn as a request, whose messages follow what is there: of other families than Qwen's. */
static int turn_request(const turn *t, buf *out, mote_error *err) {
    const char *name = t->names;
    int code = MOTE_OK;
    buf_text(out, "{\"messages\": [");
    if (t->system && *t->system) put_turn_message(out, "system", t->system, NULL), buf_text(out, ", ");
    put_turn_message(out, t->role, t->message, name);
    for (int i = 0; i < t->result_count; i++) {
        if (name) name += strlen(name) + 1;
        buf_text(out, ", ");
        put_turn_message(out, t->role, t->results[i], name);
    }
    buf_text(out, "], \"add_generation_prompt\": false");
    if (t->first && t->effort) buf_text(out, ", \"reasoning_effort\": "), put_quoted(slice_of(t->effort, strlen(t->effort)), out);
    if (t->first && t->date) buf_text(out, ", \"date_string\": "), put_quoted(slice_of(t->date, strlen(t->date)), out);
    if (t->think != MOTE_THINK_DEFAULT) buf_text(out, t->think == MOTE_THINK_ON ? ", \"enable_thinking\": true" : ", \"enable_thinking\": false");
    if (t->tools) buf_text(out, ", \"tools\": "), code = put_json(t->tools, 0, out, err);
    buf_text(out, "}");
    return code ? code : out->failed ? fail_memory(err) : MOTE_OK;
}

static int chat_turn_of_others(chat_family f, const turn *t, marked_text *out, mote_error *err) {
    const int ids = f & (CHAT_NEMO | CHAT_SMALL), named = f & CHAT_HARMONY && t->names;
    const int tools = f & (CHAT_CODER | CHAT_CHATML | CHAT_GEMMA | CHAT_GLM | CHAT_DEEPSEEK | CHAT_LAGUNA) || (f & CHAT_LLAMA3 && f & CHAT_DATED) || named;
    buf request;
    chat_places at;
    memset(&request, 0, sizeof request);
    if (!strcmp(t->role, "tool") && !tools)
        return fail(err, MOTE_EINVAL, f & CHAT_HARMONY ? "a turn of role tool: there is no call before it that has no result yet"
                                     : ids ? "a result of a tool needs the call's id in this chat template: see mote_chat_restore"
                                          : "the chat template has no place for a tool's result");
    int code = turn_request(t, &request, err);
    if (!code) code = chat_render_at(f, request.data, request.size, t->first ? CHAT_WHOLE : t->opened ? CHAT_ANSWERS : CHAT_GOES_ON, out, &at, err);
    if (!code) chat_prompt(f, t->think, at.in_answer, out);
    buf_free(&request);
    return code;
}

/* Renders it after the ones before, with the beginning of the model's turn. */
static int chat_turn(chat_family f, const turn *t, marked_text *out, mote_error *err) {
    const chat_marks *m = chat_marks_of(f);
    int tool = !strcmp(t->role, "tool"), trim = f & CHAT_QWEN3_5;
    int effort = t->effort ? effort_named(slice_of(t->effort, strlen(t->effort))) : EFFORT_HIGH;
    if (f == CHAT_UNKNOWN) return chat_unknown(err);
    if (!tool && strcmp(t->role, "user")) return fail(err, MOTE_EINVAL, "a turn's role is user or tool, not %.40s", t->role);
    if (!tool && t->result_count) return fail(err, MOTE_EINVAL, "results are for a turn of role tool");
    if (effort < 0) return fail(err, MOTE_EINVAL, "effort is none, minimal, low, medium, high, xhigh or max, not %.40s", t->effort);
    const int think = effort == EFFORT_NONE ? MOTE_THINK_OFF : t->think;
    if (think == MOTE_THINK_OFF) effort = EFFORT_NONE;
    if (t->images && (!(f & CHAT_QWENS) || !*m->image)) return fail(err, MOTE_EINVAL, "images cannot be given to this chat template");
    if (!(f & CHAT_QWENS)) return chat_turn_of_others(f, t, out, err);
    int code = chat_begin(f, t, effort, out, err);
    if (code) return code;
    open_turn(m, tool ? "user" : "user\n", out);
    for (int i = -1; i < t->result_count; i++) {
        const char *message = i < 0 ? t->message : t->results[i];
        slice text = slice_of(message, strlen(message));
        if (tool) open_result(m, out);
        for (int k = 0; k < t->images && i < 0; k++) put_words(out, m->image);
        put_outside(out, !trim ? text : t->images && i < 0 ? slice_trim_end(text) : slice_trim(text));
        if (tool) close_result(m, out);
    }
    close_turn(m, out);
    chat_prompt(f, think, 0, out);
    return marked_failed(out) ? fail_memory(err) : MOTE_OK;
}

/* What stands between the end of a turn and the next. */
static const char *turn_gap(chat_family f) {
    return f & CHAT_SPACED && !(f & CHAT_NEMO) ? " " : chat_marks_of(f)->line_end;
}

/* GLM's, and the results after it: what the answer says is trimmed, as far as its first call. */
static void glm_past(chat_family f, const marked_text *from, slice text, marked_text *out) {
    const chat_marks *m = chat_marks_of(f);
    const size_t end = slice_before(text, m->think_end).n;
    const int thinks = slice_starts(slice_skip_newlines(text), m->think);
    size_t begin = end < text.n ? end + strlen(m->think_end) : 0;
    if (end == text.n && thinks) begin = first_call(text, 1, &out->text.failed);
    const slice rest = slice_from(text, begin), call = slice_before(rest, m->call), says = slice_before(call, "<|observation|>");
    if (f & CHAT_LINED) put_words(out, "\n"), put_words(out, m->think);
    put_words(out, m->think_end);
    if (f & CHAT_LINED && slice_trim(says).n) put_words(out, "\n");
    put_marked(out, from, slice_trim(says));
    if (f & CHAT_LINED && says.n < rest.n && says.n == call.n) put_words(out, "\n");
    put_marked(out, from, slice_from(rest, says.n));
}

/* DeepSeek's, and the results and answers after it, which do not think. */
static void deepseek_past(chat_family f, const marked_text *from, slice text, marked_text *out) {
    const chat_marks *m = chat_marks_of(f);
    const slice first = slice_before(text, m->turn_end);
    const size_t end = slice_before(first, m->think_end).n;
    size_t begin = end < first.n ? end + strlen(m->think_end) : 0;
    if (end == first.n && slice_starts(slice_skip_newlines(text), m->think)) begin = slice_before(first, DEEPSEEK_CALLS).n;
    if (f & CHAT_QUIET) deepseek_closed(m, f, out);
    put_marked(out, from, slice_skip_newlines(slice_from(text, begin)));
}

/* The text of the model's turn as the template renders it in the history of a later one: without the thinking, which
   </think> or a whole call ends, as in chat_stream.c. text: a slice of `from`, after "assistant\n" and up to the turn's end. */
static void chat_past(chat_family f, const marked_text *from, slice text, marked_text *out) {
    const chat_marks *m = chat_marks_of(f);
    if (f & (CHAT_GLM | CHAT_DEEPSEEK)) {
        (f & CHAT_GLM ? glm_past : deepseek_past)(f, from, text, out);
        return;
    }
    slice thought = slice_skip_newlines(text);
    if (m && slice_starts(thought, m->think)) {
        size_t end = slice_before(thought, m->think_end).n, call = first_call(slice_of(thought.p, end), 0, &out->text.failed);
        slice after = slice_from(thought, end < thought.n ? end + strlen(m->think_end) : end);
        text = slice_skip_newlines(after);
        if (call < end) {
            put_marked(out, from, slice_drop_newlines(slice_of(thought.p + call, end - call)));
            if (text.n) put_words(out, "\n");
        }
    }
    put_marked(out, from, f & CHAT_QWEN3_5 ? slice_trim(text) : text);
}

/* What a turn of a timeline says before its body, of messages with headers. */
static chat_header turn_header(slice turn) {
    return chat_header_of(slice_before(turn, header_marks[MARK_MESSAGE]));
}

/* 1: an answer's message, which others of the same answer may stand before. */
static int turn_goes_on(chat_family f, slice turn) {
    return f & CHAT_HARMONY && slice_is(turn_header(turn).role, "assistant");
}

static int count_of_mark(slice s, const char *mark) {
    int n = 0;
    for (size_t i = 0; i < s.n && *mark; i++) n += s.p[i] == *mark && slice_starts(slice_from(s, i), mark);
    return n;
}

/* What follows a beginning; empty: there is something else. */
static slice slice_past(slice s, const char *beginning) {
    return slice_starts(s, beginning) ? slice_from(s, strlen(beginning)) : slice_of(s.p, 0);
}

/* The results of tools that a turn of a timeline holds. */
static int turn_results(chat_family f, slice turn) {
    const char *mark = chat_marks_of(f)->result;
    if (f & CHAT_LLAMA3) return slice_starts(turn, "<|start_header_id|>ipython");
    if (f & CHAT_CHATML) return slice_starts(turn, "<|im_start|>tool");
    if (f & CHAT_HARMONY) return slice_is(turn_header(turn).recipient, "assistant");
    if (f & CHAT_GLM) return count_of_mark(slice_from(turn, slice_before(turn, "<|observation|>").n), mark);
    if (f & CHAT_DEEPSEEK) return count_of_mark(turn, mark);
    if (f & CHAT_LAGUNA) return count_of_mark(slice_from(turn, slice_before(turn, chat_marks_of(f)->turn_end).n), mark);
    if (f & CHAT_GEMMA) return count_of_mark(turn, chat_marks_of(f)->result_end);
    slice rest = slice_past(slice_past(turn, chat_marks_of(f)->user), "\n");
    return slice_starts(rest, mark) ? count_of_mark(rest, mark) : 0;
}

/* The calls that a turn of a timeline holds, at most: of any syntax, broken ones, and several in one pair of tags. */
static int turn_calls(chat_family f, slice turn) {
    slice rest = slice_past(turn, chat_marks_of(f)->answer);
    if (f & CHAT_HARMONY) {
        const chat_header h = turn_header(turn);
        return turn_goes_on(f, turn) && header_callee(&h).n;
    }
    int most = 0, opened = f & CHAT_LLAMA3 && slice_has(rest, "{");
    for (int i = 0; i < CHAT_FAMILY_COUNT; i++) {
        const chat_marks *m = &chat_families[i];
        int calls = count_of_mark(rest, m->call), names = count_of_mark(rest, m->call_name);
        opened |= calls || (names && *m->call_name == '<');  /* a tag opens one by itself */
        most = calls > most ? calls : most;
        most = names > most ? names : most;
    }
    return opened ? most : 0;
}
