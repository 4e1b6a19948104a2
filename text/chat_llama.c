/* text/chat_llama.c: Llama 3's format: turns with a header; from 3.1 on dates, tools in the first question, calls as JSON. */

static void llama_open(const chat *c, const char *role) {
    put_words(c->out, c->marks->turn);
    put_words(c->out, role);
    put_words(c->out, "<|end_header_id|>\n\n");
}

/* The system turn of 3.1 and later, which every conversation has. */
static void llama_system(chat *c) {
    llama_open(c, "system");
    if (c->has_tools) put_words(c->out, "Environment: ipython\n");
    put_words(c->out, "Cutting Knowledge Date: December 2023\nToday Date: ");
    put_date(c, 0, c->family & CHAT_TODAY ? NULL : "26 Jul 2024");
    put_words(c->out, "\n\n");
    put_marked(c->out, &c->system, slice_trim(slice_of(c->system.text.data, c->system.text.size)));
    put_words(c->out, c->marks->turn_end);
}

/* The tools, and what the template says of them, in front of the first question. */
static int llama_tools(chat *c) {
    int code = MOTE_OK;
    put_words(c->out, "Given the following functions, please respond with a JSON for a function call with its proper arguments "
                      "that best answers the given prompt.\n\nRespond in the format {\"name\": function name, \"parameters\": "
                      "dictionary of argument name and its value}.Do not use variables.\n\n");
    for (uint32_t k = c->tools + 1; !code && k < c->j.nodes[c->tools].next; k = c->j.nodes[k].next) {
        code = put_value(c, c->out, k, put_json_lines);
        put_words(c->out, "\n\n");
    }
    return code;
}

/* {"name": "f", "parameters": {"x": 1}}, the only call of its turn: see chat_history.c. */
static int llama_call(chat *c, uint32_t calls) {
    const json *j = &c->j;
    const uint32_t call = chat_function(j, calls + 1), arguments = json_get(j, call, "arguments");
    if (!arguments) return fail(c->err, MOTE_EINVAL, "a tool call lacks \"arguments\"");
    llama_open(c, "assistant");
    put_words(c->out, "{\"name\": \"");
    int code = put_member_text(c, c->out, call, "name");
    put_words(c->out, "\", \"parameters\": ");
    if (!code) code = put_call_arguments(c, arguments);
    put_words(c->out, "}");
    put_words(c->out, c->marks->turn_end);
    return code;
}

/* A tool's result, a text too, is written as JSON. */
static int llama_result(chat *c, uint32_t i) {
    const uint32_t content = json_get(&c->j, chat_message(c, i), "content");
    llama_open(c, "ipython");
    int code = content ? put_value(c, c->out, content, put_json) : MOTE_OK;
    put_words(c->out, c->marks->turn_end);
    return code;
}

/* tools: they come first in it. */
static int llama_message(chat *c, uint32_t i, int tools) {
    slice text;
    int code = chat_content(c, i, CONTENT_MESSAGE, &text);
    put_words(c->out, c->marks->turn);
    if (tools) put_words(c->out, "user");
    else if (chat_is_system(c, i)) put_words(c->out, "system");
    else if (!code) code = put_member_text(c, c->out, chat_message(c, i), "role");
    put_words(c->out, "<|end_header_id|>\n\n");
    if (!code && tools) code = llama_tools(c);
    put_marked(c->out, &c->content, slice_trim(text));
    if (i + 1 < c->n || !c->continued) put_words(c->out, c->marks->turn_end);
    return code;
}

static int llama_conversation(chat *c) {
    const int dated = c->family & CHAT_DATED;
    int tools = dated && c->has_tools;
    int code = dated ? chat_leading(c) : MOTE_OK;
    put_words(c->out, "<|begin_of_text|>");
    if (dated && !code) llama_system(c);
    for (uint32_t i = c->leading; !code && i < c->n; i++, tools = 0) {
        const uint32_t calls = dated && !tools ? chat_calls_of(c, i) : 0;
        if (calls) code = llama_call(c, calls);
        else if (dated && !tools && (chat_role(c, i, "tool") || chat_role(c, i, "ipython"))) code = llama_result(c, i);
        else code = llama_message(c, i, tools);
    }
    return code;
}
