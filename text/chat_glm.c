/* text/chat_glm.c: GLM's formats: turns that begin with a token and have no end, results as turns of their own, calls as keys and
   values between tags. GLM-4.6's differs in line feeds around the marks, and in how it is told not to think. */

/* GLM-4.6 has a line feed there. */
static void put_lined(const chat *c, const char *words) {
    put_words(c->out, words);
    if (c->family & CHAT_LINED) put_words(c->out, "\n");
}

/* The arguments of a call; a text that is no object was cut off, and stands as it was written. */
static int keyed_arguments(chat *c, uint32_t arguments) {
    const json *j = &c->j;
    const uint32_t type = arguments ? j->nodes[arguments].type : (uint32_t)JSON_NULL;
    int code = MOTE_OK;
    if (type == JSON_STRING) return put_value(c, c->out, arguments, put_str);
    if (type != JSON_OBJECT && type != JSON_NULL) return fail(c->err, MOTE_EINVAL, "a tool call's \"arguments\" must be an object");
    for (uint32_t k = arguments + 1; type == JSON_OBJECT && !code && k < j->nodes[arguments].next; k = j->nodes[k + 1].next) {
        put_words(c->out, "<arg_key>");
        put_value(c, c->out, k, put_str);
        put_lined(c, "</arg_key>");
        put_words(c->out, "<arg_value>");
        code = put_value(c, c->out, k + 1, j->nodes[k + 1].type == JSON_STRING ? put_str : put_json);
        put_lined(c, "</arg_value>");
    }
    return code;
}

/* <tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call> */
static int keyed_call(chat *c, uint32_t call) {
    const json *j = &c->j;
    const uint32_t name = json_get(j, call, "name");
    if (!name || j->nodes[name].type != JSON_STRING) return fail(c->err, MOTE_EINVAL, "a tool call's \"name\" must be text");
    put_words(c->out, c->marks->call);
    put_value(c, c->out, name, put_str);
    put_lined(c, "");
    int code = keyed_arguments(c, json_get(j, call, "arguments"));
    put_words(c->out, c->marks->call_end);
    return code;
}

/* How a call is to be written, in the template's own words. */
static int glm_tools(chat *c) {
    int code = MOTE_OK;
    put_words(c->out, "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
                      "function signatures within <tools></tools> XML tags:\n<tools>\n");
    for (uint32_t k = c->tools + 1; !code && k < c->j.nodes[c->tools].next; k = c->j.nodes[k].next) {
        code = put_value(c, c->out, k, put_json);
        put_words(c->out, "\n");
    }
    put_words(c->out, "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n");
    put_lined(c, "<tool_call>{function-name}");
    put_lined(c, "<arg_key>{arg-key-1}</arg_key>");
    put_lined(c, "<arg_value>{arg-value-1}</arg_value>");
    put_lined(c, "<arg_key>{arg-key-2}</arg_key>");
    put_lined(c, "<arg_value>{arg-value-2}</arg_value>");
    put_lined(c, "...");
    put_words(c->out, "</tool_call>");
    return code;
}

/* The reasoning of an answer: of its own member, or the thinking that its content begins with. *marked: where it is from. */
static slice given_reasoning(chat *c, uint32_t i, slice *content, const marked_text **from) {
    const uint32_t given = json_get(&c->j, chat_message(c, i), "reasoning_content");
    *from = &c->content;
    if (!given || c->j.nodes[given].type != JSON_STRING) return cut_thinking(c->marks, content);
    *from = NULL;
    c->reasoning.size = 0;
    put_string(&c->j, given, &c->reasoning);
    return slice_of(c->reasoning.data, c->reasoning.size);
}

/* A part of an answer, with the marks that its text has; from: NULL: all of it is from outside. */
static void put_reasoning(const chat *c, const marked_text *from, slice text) {
    if (from) put_marked(c->out, from, text);
    else put_outside(c->out, text);
}

static int glm_answer(chat *c, uint32_t i) {
    const uint32_t calls = chat_calls_of(c, i);
    const int lined = c->family & CHAT_LINED;
    const marked_text *from;
    slice content;
    int code = chat_content(c, i, CONTENT_MESSAGE, &content);
    const slice reasoning = given_reasoning(c, i, &content, &from);
    const int shown = (i >= c->round || c->preserve) && reasoning.n;
    put_words(c->out, c->marks->answer);
    if (lined) put_words(c->out, "\n");
    if (lined || shown) put_words(c->out, c->marks->think);
    if (shown) put_reasoning(c, from, slice_trim(reasoning));
    put_words(c->out, c->marks->think_end);
    content = slice_trim(content);
    if (lined && content.n) put_words(c->out, "\n");
    put_marked(c->out, &c->content, content);
    for (uint32_t k = calls + 1; calls && !code && k < c->j.nodes[calls].next; k = c->j.nodes[k].next) {
        if (lined) put_words(c->out, "\n");
        code = keyed_call(c, chat_function(&c->j, k));
    }
    return code;
}

/* A tool's result: neighbours share one turn. */
static int glm_result(chat *c, uint32_t i) {
    const int lined = c->family & CHAT_LINED;
    slice content;
    int code = chat_content(c, i, CONTENT_TOOL, &content);
    if (!i || !chat_role(c, i - 1, "tool")) put_words(c->out, "<|observation|>");
    put_words(c->out, lined ? "\n<tool_response>\n" : "<tool_response>");
    put_marked(c->out, &c->content, content);
    put_words(c->out, lined ? "\n</tool_response>" : "</tool_response>");
    return code;
}

static int glm_user(chat *c, uint32_t i) {
    const int off = c->family & CHAT_LINED && c->think == MOTE_THINK_OFF;
    slice content;
    int code = chat_content(c, i, CONTENT_MESSAGE, &content);
    put_lined(c, c->marks->user);
    put_marked(c->out, &c->content, content);
    if (off && !slice_ends(content, "/nothink")) put_words(c->out, "/nothink");
    return code;
}

static int glm_system(chat *c, uint32_t i) {
    slice content;
    int code = chat_content(c, i, CONTENT_SYSTEM, &content);
    put_lined(c, "<|system|>");
    put_marked(c->out, &c->content, content);
    return code;
}

/* Other roles are passed over. */
static int glm_message(chat *c, uint32_t i) {
    if (chat_role(c, i, "user")) return glm_user(c, i);
    if (chat_role(c, i, "assistant")) return glm_answer(c, i);
    if (chat_role(c, i, "tool")) return glm_result(c, i);
    return chat_is_system(c, i) ? glm_system(c, i) : MOTE_OK;
}

static int glm_conversation(chat *c) {
    int code = MOTE_OK;
    c->round = c->n;
    while (c->round && !chat_role(c, c->round - 1, "user")) c->round--;
    put_words(c->out, "[gMASK]<sop>");
    if (c->has_tools) code = glm_tools(c);
    for (uint32_t i = 0; !code && i < c->n; i++) {
        if (i && i == c->round) c->at.asked = c->out->text.size;
        code = glm_message(c, i);
    }
    return code;
}

/* The beginning of an answer. */
static void glm_prompt(const chat_marks *m, int lined, int off, marked_text *out) {
    put_words(out, m->answer);
    if (lined && off) put_words(out, "\n");
    if (lined ? off : !off) put_words(out, m->think);
    if (off) put_words(out, m->think_end);
}
