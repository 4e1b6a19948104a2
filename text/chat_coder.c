/* text/chat_coder.c: Qwen3-Coder's format: Qwen's turns and Qwen3.5's calls, tools written as tags, no thinking. Coder-Next's
   differs in words, and in writing every value but a text as JSON. */

/* A value as the template writes it between tags: a list or an object as JSON, also where that would write Python's text. */
static int coder_value(chat *c, uint32_t node) {
    const uint32_t type = c->j.nodes[node].type;
    const int as_json = type >= JSON_ARRAY || (c->family & CHAT_NEXT && type != JSON_STRING);
    return put_value(c, c->out, node, as_json ? put_json : put_str);
}

/* \n<key>value</key>, of a member that may be absent; trimmed: without white space around it. */
static int coder_member(chat *c, uint32_t object, const char *key, int trimmed) {
    const uint32_t node = json_get(&c->j, object, key);
    int code = MOTE_OK;
    if (!node) return MOTE_OK;
    put_words(c->out, "\n<");
    put_words(c->out, key);
    put_words(c->out, ">");
    if (trimmed && c->j.nodes[node].type == JSON_STRING) {
        buf text;
        memset(&text, 0, sizeof text);
        put_string(&c->j, node, &text);
        put_outside(c->out, slice_trim(slice_of(text.data, text.size)));
        c->out->text.failed |= text.failed;
        buf_free(&text);
    } else {
        code = coder_value(c, node);
    }
    put_words(c->out, "</");
    put_words(c->out, key);
    put_words(c->out, ">");
    return code;
}

/* The members of an object that are not among the `count` handled ones. */
static int coder_extra(chat *c, uint32_t object, const char *const *handled, int count) {
    const json *j = &c->j;
    int code = MOTE_OK;
    if (!object || j->nodes[object].type != JSON_OBJECT) return MOTE_OK;
    for (uint32_t k = object + 1; !code && k < j->nodes[object].next; k = j->nodes[k + 1].next) {
        int known = 0;
        for (int i = 0; i < count; i++) known |= json_equals(j, k, handled[i]);
        if (known) continue;
        put_words(c->out, "\n<");
        put_value(c, c->out, k, put_str);
        put_words(c->out, ">");
        code = coder_value(c, k + 1);
        put_words(c->out, "</");
        put_value(c, c->out, k, put_str);
        put_words(c->out, ">");
    }
    return code;
}

static int coder_parameters(chat *c, uint32_t parameters) {
    static const char *const fields[] = {"name", "type", "description"}, *const handled[] = {"type", "properties"};
    const json *j = &c->j;
    uint32_t list = parameters ? json_get(j, parameters, "properties") : 0;
    int code = MOTE_OK;
    if (list && j->nodes[list].type != JSON_OBJECT) list = 0;
    put_words(c->out, "\n<parameters>");
    for (uint32_t k = list + 1; list && !code && k < j->nodes[list].next; k = j->nodes[k + 1].next) {
        put_words(c->out, "\n<parameter>\n<name>");
        put_value(c, c->out, k, put_str);
        put_words(c->out, "</name>");
        code = coder_member(c, k + 1, "type", 0);
        if (!code) code = coder_member(c, k + 1, "description", 1);
        if (!code) code = coder_extra(c, k + 1, fields, 3);
        put_words(c->out, "\n</parameter>");
    }
    if (!code) code = coder_extra(c, parameters, handled, 2);
    put_words(c->out, "\n</parameters>");
    return code;
}

static int coder_tools(chat *c) {
    static const char *const handled[] = {"type", "name", "description", "parameters"};
    const int next = c->family & CHAT_NEXT;
    int code = MOTE_OK;
    put_words(c->out, "\n\n# Tools\n\nYou have access to the following ");
    put_words(c->out, next ? "functions:\n\n<tools>" : "tools:\n\n<tools>");
    for (uint32_t k = c->tools + 1; !code && k < c->j.nodes[c->tools].next; k = c->j.nodes[k].next) {
        const uint32_t tool = chat_function(&c->j, k);
        put_words(c->out, "\n<function>\n<name>");
        code = put_member_text(c, c->out, tool, "name");
        put_words(c->out, "</name>");
        if (!code) code = coder_member(c, tool, "description", 1);
        if (!code) code = coder_parameters(c, json_get(&c->j, tool, "parameters"));
        if (!code) code = coder_extra(c, tool, handled, 4);
        put_words(c->out, "\n</function>");
    }
    put_words(c->out, "\n</tools>");
    put_words(c->out, next ? qwen35_call_format
                           : CALL_FORMAT("tool", "value_2", "the tool calling block MUST begin with an opening <tool_call> tag and "
                                                            "end with a closing </tool_call> tag."));
    return code;
}

static int coder_system(chat *c, int given) {
    int code = MOTE_OK;
    if (!given && !c->has_tools) return MOTE_OK;
    open_turn(c->marks, "system\n", c->out);
    if (given) put_marked(c->out, &c->system, slice_of(c->system.text.data, c->system.text.size));
    else put_words(c->out, "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks.");
    if (c->has_tools) code = coder_tools(c);
    close_turn(c->marks, c->out);
    return code;
}

static int coder_calls(chat *c, uint32_t i, uint32_t calls) {
    uint32_t content = json_get(&c->j, chat_message(c, i), "content");
    slice text = slice_of(NULL, 0);
    int code = content && c->j.nodes[content].type == JSON_STRING ? chat_content(c, i, CONTENT_MESSAGE, &text) : MOTE_OK;
    open_turn(c->marks, "assistant", c->out);
    text = slice_trim(text);
    if (text.n) {
        put_words(c->out, "\n");
        put_marked(c->out, &c->content, text);
        put_words(c->out, "\n");
    }
    for (uint32_t k = calls + 1; !code && k < c->j.nodes[calls].next; k = c->j.nodes[k].next) {
        put_words(c->out, "\n");
        code = chat_call_tags(c, chat_function(&c->j, k));
    }
    close_turn(c->marks, c->out);
    return code;
}

/* A tool's result: neighbours share one user turn. */
static int coder_result(chat *c, uint32_t i) {
    const int next = c->family & CHAT_NEXT, first = i == c->leading || !chat_role(c, i - 1, "tool");
    slice text;
    int code = chat_content(c, i, CONTENT_TOOL, &text);
    if (first) open_turn(c->marks, next ? "user" : "user\n", c->out);
    put_words(c->out, next ? "\n<tool_response>\n" : "<tool_response>\n");
    put_marked(c->out, &c->content, text);
    put_words(c->out, next ? "\n</tool_response>" : "\n</tool_response>\n");
    if (!chat_role(c, i + 1, "tool")) close_turn(c->marks, c->out);
    return code;
}

static int coder_conversation(chat *c) {
    int code = chat_leading(c);
    if (!code) code = coder_system(c, c->leading > 0);
    for (uint32_t i = c->leading; !code && i < c->n; i++) {
        const uint32_t calls = chat_role(c, i, "assistant") ? chat_calls_of(c, i) : 0;
        if (calls) code = coder_calls(c, i, calls);
        else if (chat_role(c, i, "tool")) code = coder_result(c, i);
        else code = plain_message(c, i);
    }
    return code;
}
