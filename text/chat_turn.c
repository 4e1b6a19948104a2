/* text/chat_turn.c: one turn of a conversation -> prompt, for mote_ask, and what the model wrote in its turn as a later prompt
   has it. Like chat.c it gives text, and which of it is from outside; it knows nothing of ids, models or sessions. */

/* One more turn of a conversation. All texts are from outside. */
typedef struct turn {
    const char *system;        /* NULL or "": none; first turn only */
    const json *tools;         /* a list; NULL: none; first turn only */
    const char *role, *message;        /* "user" or "tool" */
    const char *const *results;        /* "tool": of further calls, behind the message */
    int result_count;
    int think;                 /* as in chat_prompt */
} turn;

/* The system turn of a conversation that begins. */
static int chat_begin(chat_family f, const turn *t, marked_text *out, mote_error *err) {
    chat c;
    memset(&c, 0, sizeof c);
    c.family = f;
    c.out = out;
    c.err = err;
    if (t->tools) c.j = *t->tools;
    c.has_tools = t->tools && t->tools->nodes[0].size;
    put_outside(&c.content, slice_of(t->system, t->system ? strlen(t->system) : 0));
    slice system = slice_of(c.content.text.data, c.content.text.size);
    int given = system.n > 0, code = MOTE_OK;
    if (f & CHAT_QWEN3_5) system = slice_trim(system);
    code = chat_system(&c, given, system);
    if (marked_failed(&c.content)) code = fail_memory(err);
    marked_free(&c.content);
    return code;
}

/* Renders it behind the ones before, with the beginning of the model's turn. */
static int chat_turn(chat_family f, const turn *t, marked_text *out, mote_error *err) {
    int tool = !strcmp(t->role, "tool"), trim = f & CHAT_QWEN3_5;
    if (f == CHAT_UNKNOWN) return chat_unknown(err);
    if (!tool && strcmp(t->role, "user")) return fail(err, MOTE_EINVAL, "a turn's role is user or tool, not %.40s", t->role);
    if (!tool && t->result_count) return fail(err, MOTE_EINVAL, "results are for a turn of role tool");
    int code = chat_begin(f, t, out, err);
    if (code) return code;
    put_words(out, tool ? "<|im_start|>user" : "<|im_start|>user\n");
    for (int i = -1; i < t->result_count; i++) {
        const char *message = i < 0 ? t->message : t->results[i];
        slice text = slice_of(message, strlen(message));
        if (tool) put_words(out, "\n<tool_response>\n");
        put_outside(out, trim ? slice_trim(text) : text);
        if (tool) put_words(out, "\n</tool_response>");
    }
    put_words(out, "<|im_end|>\n");
    chat_prompt(f, t->think, &out->text);
    return marked_failed(out) ? fail_memory(err) : MOTE_OK;
}

/* What the model wrote in its turn, as the template renders it in the history of a later one: without the thinking. text: a
   slice of `from`, behind "assistant\n" and up to the turn's end. */
static void chat_past(chat_family f, const marked_text *from, slice text, marked_text *out) {
    slice thought = slice_skip_newlines(text);
    if (slice_starts(thought, "<think>")) {
        size_t end = slice_before(thought, "</think>").n, call = slice_before(thought, "<tool_call>").n;
        if (call < end) text = slice_from(thought, call);
        else if (end < thought.n) text = slice_skip_newlines(slice_from(thought, end + strlen("</think>")));
        else text = slice_of(thought.p, 0);
    }
    put_marked(out, from, f & CHAT_QWEN3_5 ? slice_trim(text) : text);
}

static int count_of_tag(slice s, const char *tag) {
    int n = 0;
    for (size_t i = 0; i < s.n; i++) n += s.p[i] == *tag && slice_starts(slice_from(s, i), tag);
    return n;
}

/* The results of tools that a turn of a timeline holds: 0 if it is another. */
static int chat_turn_results(slice turn) {
    return slice_starts(turn, "<|im_start|>user\n<tool_response>") ? count_of_tag(turn, "<tool_response>") : 0;
}

/* The calls that a turn of a timeline holds, at most: broken ones, too, and several in one pair of tags. 0 if it is no answer. */
static int chat_turn_calls(slice turn) {
    if (!slice_starts(turn, "<|im_start|>assistant\n")) return 0;
    int tags = count_of_tag(turn, "<tool_call>"), functions = count_of_tag(turn, "<function="), names = count_of_tag(turn, "\"name\"");
    if (!tags && !functions) return 0;
    return tags > functions ? (tags > names ? tags : names) : functions > names ? functions : names;
}

/* Does a prompt end inside an open <think>? Then chat_stream_begin wants to know. */
static int chat_opens_thinking(const char *prompt, size_t len) {
    return slice_ends(slice_drop_newlines(slice_of(prompt, len)), "<think>");
}
