/* text/chat_laguna.c: Laguna's formats: turns between tags, most of which are no tokens, calls as GLM's. All thinking stays; in the newest text
   where the answer to come thinks, too. The first one has line feeds around tags, and words on how to call. */

static int laguna_is_lined(const chat *c) {
    return (c->family & CHAT_LINED) != 0;
}

/* Whether the answer to come thinks. */
static int laguna_thinks(const chat *c) {
    return c->think == MOTE_THINK_ON || (c->think == MOTE_THINK_DEFAULT && !(c->family & CHAT_QUIET));
}

static int laguna_tools(chat *c) {
    int code = MOTE_OK;
    put_words(c->out, "### Tools\n\nYou may call functions to assist with the user query.\nAll available function signatures are listed below:\n"
                      "<available_tools>\n");
    for (uint32_t k = c->tools + 1; !code && k < c->j.nodes[c->tools].next; k = c->j.nodes[k].next) {
        code = put_value(c, c->out, k, put_json);
        put_words(c->out, "\n");
    }
    put_words(c->out, "</available_tools>");
    if (!laguna_is_lined(c)) return code;
    put_words(c->out, laguna_thinks(c) ? "\n\nWrap your thinking in '<think>', '</think>' tags, followed by a function call. For each" : "\n\nFor each");
    put_words(c->out, " function call, return an unescaped XML-like object with function name and arguments within '<tool_call>' and '</tool_call>' tags, "
                      "like here:\n");
    if (laguna_thinks(c)) put_words(c->out, "<think> your thoughts here </think>\n");
    put_words(c->out, "<tool_call>function-name\n<arg_key>argument-key</arg_key>\n<arg_value>value-of-argument-key</arg_value>\n</tool_call>");
    return code;
}

/* The first system message, or what is said without one; an empty one says nothing. */
static int laguna_header(chat *c) {
    static const char unasked[] = "You are a helpful, conversationally-fluent assistant made by Poolside. You are here to be helpful to users through "
                                  "natural language conversations.";
    const int lined = laguna_is_lined(c), given = chat_is_system(c, 0);
    slice text = slice_of(unasked, sizeof unasked - 1);
    int code = given ? chat_content(c, 0, CONTENT_SYSTEM, &text) : MOTE_OK;
    const int says = slice_trim(text).n > 0;
    if (!says && !c->has_tools && (lined || !laguna_thinks(c))) return code;
    put_words(c->out, lined ? "<system>\n" : "<system>");
    if (says && lined) put_words(c->out, "\n");
    if (says && !given) put_words(c->out, unasked);
    else if (says) put_marked(c->out, &c->content, slice_of(text.p, (size_t)(slice_trim(text).p - text.p) + slice_trim(text).n));
    if (c->has_tools && (says || lined)) put_words(c->out, "\n\n");
    if (!code && c->has_tools) code = laguna_tools(c);
    put_words(c->out, lined ? "\n</system>\n" : "</system>\n");
    return code;
}

/* A turn that is a content between tags. */
static int laguna_turn(chat *c, uint32_t i, const char *name) {
    const char *const line = laguna_is_lined(c) ? "\n" : "";
    const char *const words[] = {"<", name, ">", line}, *const ends[] = {line, "</", name, ">\n"};
    slice content;
    int code = chat_content(c, i, CONTENT_MESSAGE, &content);
    for (int k = 0; k < 4; k++) put_words(c->out, words[k]);
    put_marked(c->out, &c->content, content);
    for (int k = 0; k < 4; k++) put_words(c->out, ends[k]);
    return code;
}

/* The thinking of an answer, as far as it is said. */
static void laguna_thought(chat *c, uint32_t i, slice *content) {
    const uint32_t named = json_get(&c->j, chat_message(c, i), "reasoning"), given = json_get(&c->j, chat_message(c, i), "reasoning_content");
    const uint32_t node = named && c->j.nodes[named].type == JSON_STRING ? named : given && c->j.nodes[given].type == JSON_STRING ? given : 0;
    const int lined = laguna_is_lined(c);
    c->reasoning.size = 0;
    if (node) put_string(&c->j, node, &c->reasoning);
    slice own = slice_of(c->reasoning.data, c->reasoning.size), cut = slice_of(NULL, 0);
    if (lined) cut = cut_thinking(c->marks, content), own = slice_trim(own);
    const int from_text = lined && !c->reasoning.size;
    const int shown = lined ? c->reasoning.size || cut.n : laguna_thinks(c);
    if (shown) put_words(c->out, lined ? "<think>\n" : "<think>");
    if (shown && from_text) put_marked(c->out, &c->content, slice_trim(cut));
    else if (shown) put_outside(c->out, own);
    put_words(c->out, shown && lined ? "\n</think>\n" : lined ? "</think>\n" : "</think>");
}

static int laguna_answer(chat *c, uint32_t i) {
    const uint32_t calls = chat_calls_of(c, i);
    const int lined = laguna_is_lined(c);
    slice content;
    int code = chat_content(c, i, CONTENT_MESSAGE, &content);
    put_words(c->out, lined ? "<assistant>\n" : "<assistant>");
    laguna_thought(c, i, &content);
    if (lined) content = slice_trim(content);
    put_marked(c->out, &c->content, content);
    if (i + 1 == c->n && c->continued) return code;
    if (lined && content.n) put_words(c->out, "\n");
    for (uint32_t k = calls + 1; calls && !code && k < c->j.nodes[calls].next; k = c->j.nodes[k].next) {
        code = keyed_call(c, chat_function(&c->j, k));
        if (lined) put_words(c->out, "\n");
    }
    put_words(c->out, "</assistant>\n");
    return code;
}

/* Other roles are passed over. */
static int laguna_message(chat *c, uint32_t i) {
    if (chat_role(c, i, "user")) return laguna_turn(c, i, "user");
    if (chat_role(c, i, "assistant")) return laguna_answer(c, i);
    if (chat_role(c, i, "tool")) return laguna_turn(c, i, "tool_response");
    return chat_is_system(c, i) ? laguna_turn(c, i, "system") : MOTE_OK;
}

static int laguna_conversation(chat *c) {
    put_words(c->out, LAGUNA_BEGIN);
    int code = laguna_header(c);
    for (uint32_t i = chat_is_system(c, 0); !code && i < c->n; i++) code = laguna_message(c, i);
    return code;
}

/* The beginning of an answer. */
static void laguna_prompt(const chat_marks *m, int lined, int off, marked_text *out) {
    put_words(out, lined ? "<assistant>\n" : "<assistant>");
    put_words(out, off ? m->think_end : m->think);
}
