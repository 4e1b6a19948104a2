/* text/chat_qwen.c: Qwen3's and Qwen3.5's formats: turns as in ChatML, thinking, tools and calls. */

/* A turn begins with `turn`, its role and what is put after it: here; and ends so. */
static void open_turn(const chat_marks *m, const char *role, marked_text *out) {
    put_words(out, m->turn);
    put_words(out, role);
}

static void close_turn(const chat_marks *m, marked_text *out) {
    put_words(out, m->turn_end);
    put_words(out, "\n");
}

/* A tool's result, in a user's turn. */
static void open_result(const chat_marks *m, marked_text *out) {
    put_words(out, "\n");
    put_words(out, m->result);
    put_words(out, "\n");
}

static void close_result(const chat_marks *m, marked_text *out) {
    put_words(out, "\n");
    put_words(out, m->result_end);
}

/* Finds the beginning of the last round. Thoughts before it are left out. A user message that only carries a tool's answer
   continues the round. In a history without a user's question, of which clients have cut the beginning, Qwen3 begins it at the
   end. Qwen3.5 refuses these: here all that is left is of the last round. */
static int chat_find_round(chat *c) {
    c->round = c->family & CHAT_QWEN3 ? c->n : 0;
    if (c->family & CHAT_INSTRUCT) return MOTE_OK;
    for (uint32_t i = c->n; i-- > 0;) {
        uint32_t node = json_get(&c->j, chat_message(c, i), "content");
        slice text;
        if (!chat_role(c, i, "user")) continue;
        const int said = node && (c->j.nodes[node].type == JSON_STRING || c->j.nodes[node].type == JSON_ARRAY);
        if (c->family & CHAT_QWEN3 && c->family & CHAT_LENIENT && !said) continue;
        int code = chat_content(c, i, CONTENT_SEARCH, &text);
        if (code) return code;
        if (slice_starts(text, c->marks->result) && slice_ends(text, c->marks->result_end)) continue;
        c->round = i + 1;
        return MOTE_OK;
    }
    return MOTE_OK;
}

static int chat_tools(chat *c) {
    for (uint32_t k = c->tools + 1; k < c->j.nodes[c->tools].next; k = c->j.nodes[k].next) {
        put_words(c->out, "\n");
        int code = put_value(c, c->out, k, put_json);
        if (code) return code;
    }
    put_words(c->out, "\n</tools>");
    return MOTE_OK;
}

/* How a call is to be written, in the template's own words. */
#define CALL_FORMAT(what, value_2, rule) \
    "\n\nIf you choose to call a " what " ONLY reply in the following format with NO suffix:\n\n<tool_call>\n" \
    "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n" \
    "<parameter=example_parameter_2>\n" value_2 "\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n" \
    "- Function calls MUST follow the specified format: " rule "\n- Required parameters MUST be specified\n" \
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n" \
    "- If there is no function call available, answer the question like normal with your current knowledge and do not tell the " \
    "user about function calls\n</IMPORTANT>"

static const char qwen35_call_format[] =
    CALL_FORMAT("function", "This is the value for the second parameter\nthat can span\nmultiple lines",
                "an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags");

/* Qwen3.8's sentence for an effort. */
static const char *effort_sentence(const chat *c) {
    if (!(c->family & CHAT_EFFORT) || c->effort == EFFORT_MEDIUM || c->effort == EFFORT_NONE) return "";
    return c->effort == EFFORT_LOW
               ? "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without "
                 "unnecessary elaboration."
               : "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
                 "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.";
}

/* The system turn: c->system, if one is given, and the tools. What it says of them are the template's own sentences, quoted
   with the marks in them. */
static int chat_system(chat *c, int given) {
    const slice system = slice_of(c->system.text.data, c->system.text.size);
    const char *const effort = effort_sentence(c);
    int code = MOTE_OK;
    if (c->family & CHAT_EFFORT) given = system.n > 0;
    if (!given && !c->has_tools && !*effort) return MOTE_OK;
    open_turn(c->marks, "system\n", c->out);
    put_words(c->out, effort);
    if (*effort && (given || c->has_tools)) put_words(c->out, "\n\n");
    if (c->has_tools && c->family & CHAT_QWEN3) {
        put_marked(c->out, &c->system, system);
        if (given) put_words(c->out, "\n\n");
        put_words(c->out, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                         "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
        code = chat_tools(c);
        put_words(c->out, "\n\nFor each function call, return a json object with function name and arguments within "
                         "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
                         "\"arguments\": <args-json-object>}\n</tool_call>");
    } else if (c->has_tools) {
        put_words(c->out, "# Tools\n\nYou have access to the following functions:\n\n<tools>");
        code = chat_tools(c);
        put_words(c->out, qwen35_call_format);
        if (system.n) put_words(c->out, "\n\n");
        put_marked(c->out, &c->system, system);
    } else {
        put_marked(c->out, &c->system, system);
    }
    close_turn(c->marks, c->out);
    return code;
}

/* The messages that are the system turn, into c->system. */
static int chat_leading(chat *c) {
    int code = MOTE_OK;
    for (c->leading = 0; !code && chat_leads(c, c->leading);) {
        slice text;
        code = chat_content(c, c->leading, CONTENT_SYSTEM, &text);
        if (!code && c->system.text.size && text.n) put_words(&c->system, "\n\n");
        if (!code) put_marked(&c->system, &c->content, text);
        c->leading++;
    }
    return code;
}

/* Qwen3: {"name": "f", "arguments": {"x": 1}} */
static int chat_call_json(chat *c, uint32_t call) {
    const json *j = &c->j;
    uint32_t name = json_get(j, call, "name"), arguments = json_get(j, call, "arguments");
    int code = MOTE_OK;
    put_words(c->out, c->marks->call);
    put_words(c->out, "\n{\"name\": \"");
    if (name) code = put_value(c, c->out, name, put_str);
    put_words(c->out, "\", \"arguments\": ");
    if (!arguments) return fail(c->err, MOTE_EINVAL, "a tool call lacks \"arguments\"");
    if (!code) code = put_value(c, c->out, arguments, j->nodes[arguments].type == JSON_STRING ? put_str : put_json);
    put_words(c->out, "}\n");
    put_words(c->out, c->marks->call_end);
    return code;
}

/* Qwen3.5: <function=f> with one <parameter=x> for each argument */
static int chat_call_tags(chat *c, uint32_t call) {
    const chat_marks *const m = c->marks;
    const json *j = &c->j;
    uint32_t name = json_get(j, call, "name"), arguments = json_get(j, call, "arguments");
    if (!name || j->nodes[name].type != JSON_STRING) {
        return fail(c->err, MOTE_EINVAL, "a tool call's \"name\" must be text");
    }
    put_words(c->out, m->call);
    put_words(c->out, "\n");
    put_words(c->out, m->call_name);
    put_value(c, c->out, name, put_str);
    put_words(c->out, ">\n");
    const int object = arguments && j->nodes[arguments].type == JSON_OBJECT, text = arguments && j->nodes[arguments].type == JSON_STRING;
    if (arguments && !object && !text && !(c->family & CHAT_LENIENT)) {
        return fail(c->err, MOTE_EINVAL, "a tool call's \"arguments\" must be an object");
    }
    if (text && j->nodes[arguments].size) {
        put_value(c, c->out, arguments, put_str);
        put_words(c->out, "\n");
    }
    for (uint32_t k = arguments + 1; object && k < j->nodes[arguments].next; k = j->nodes[k + 1].next) {
        uint32_t type = j->nodes[k + 1].type;
        int as_json = type >= JSON_ARRAY || (c->family & (CHAT_PRESERVE | CHAT_NEXT) && type != JSON_STRING);
        put_words(c->out, m->call_argument);
        put_value(c, c->out, k, put_str);
        put_words(c->out, ">\n");
        int code = put_value(c, c->out, k + 1, as_json ? put_json : put_str);
        if (code) return code;
        put_words(c->out, "\n");
        put_words(c->out, m->call_argument_end);
        put_words(c->out, "\n");
    }
    put_words(c->out, m->call_name_end);
    put_words(c->out, "\n");
    put_words(c->out, m->call_end);
    return MOTE_OK;
}

static int chat_calls(chat *c, uint32_t message, slice content) {
    const json *j = &c->j;
    uint32_t calls = json_get(j, message, "tool_calls");
    int qwen3 = c->family & CHAT_QWEN3, code = MOTE_OK;
    if (!calls || j->nodes[calls].type == JSON_NULL) return MOTE_OK;
    if (j->nodes[calls].type != JSON_ARRAY) return fail(c->err, MOTE_EINVAL, "\"tool_calls\" must be a list");
    for (uint32_t k = calls + 1; !code && k < j->nodes[calls].next; k = j->nodes[k].next) {
        uint32_t call = k, function = json_get(j, k, "function");
        if (k > calls + 1) put_words(c->out, "\n");
        else if (qwen3 ? content.n : slice_trim(content).n) put_words(c->out, qwen3 ? "\n" : "\n\n");
        /* The object that the call is wrapped in; Qwen3 tests truth here, so that null and {} count as no wrapper. */
        if (function && !(qwen3 && (j->nodes[function].type == JSON_NULL ||
                                    (j->nodes[function].type == JSON_OBJECT && !j->nodes[function].size)))) {
            call = function;
        }
        code = (qwen3 ? chat_call_json : chat_call_tags)(c, call);
    }
    return code;
}

static int chat_assistant(chat *c, uint32_t i) {
    uint32_t message = chat_message(c, i), given = json_get(&c->j, message, "reasoning_content");
    uint32_t type = given ? c->j.nodes[given].type : (uint32_t)JSON_NULL;
    int qwen3 = c->family & CHAT_QWEN3;
    slice content, reasoning = slice_of(NULL, 0);
    int code = chat_content(c, i, CONTENT_MESSAGE, &content);
    if (code) return code;
    if (c->family & CHAT_INSTRUCT) type = JSON_NULL;
    if (c->family == CHAT_QWEN3 && type != JSON_NULL && type != JSON_STRING) {
        return fail(c->err, MOTE_EINVAL, "message %u: reasoning_content must be text", i);
    }
    if (type == JSON_STRING) {
        c->reasoning.size = 0;
        put_string(&c->j, given, &c->reasoning);
        reasoning = slice_of(c->reasoning.data, c->reasoning.size);
    } else if (!(c->family & (CHAT_INSTRUCT | CHAT_EFFORT))) {
        reasoning = cut_thinking(c->marks, &content);
    }
    int shown = i >= c->round || c->preserve, last = i + 1 == c->n;
    if (qwen3) shown = shown && (last || reasoning.n);
    else reasoning = slice_trim(reasoning);
    open_turn(c->marks, "assistant\n", c->out);
    if (shown) {
        put_words(c->out, c->marks->think);
        put_words(c->out, "\n");
        if (qwen3) reasoning = slice_skip_newlines(slice_drop_newlines(reasoning));
        if (type == JSON_STRING) put_outside(c->out, reasoning);
        else put_marked(c->out, &c->content, reasoning);
        put_words(c->out, "\n");
        put_words(c->out, c->marks->think_end);
        put_words(c->out, "\n\n");
    }
    put_marked(c->out, &c->content, shown && qwen3 ? slice_skip_newlines(content) : content);
    if (last && c->continued) {                    /* transformers cuts white space where the template has cut the content's */
        while (!qwen3 && !content.n && c->out->text.size && c->out->text.data[c->out->text.size - 1] == '\n') c->out->text.size--;
        return MOTE_OK;
    }
    code = chat_calls(c, message, content);
    close_turn(c->marks, c->out);
    return code;
}

/* A user's turn, or a system message in the middle. Qwen3 renders that in its place; Qwen3.5 refuses it: here it is a user's
   turn that says so. Where it stands, so that all before it stays as it was, and no question: the round goes on. */
static int chat_user(chat *c, uint32_t i) {
    const int system = chat_is_system(c, i), noted = system && c->family & CHAT_QWEN3_5;
    slice content;
    int code = chat_content(c, i, noted ? CONTENT_SYSTEM : CONTENT_MESSAGE, &content);
    if (code) return code;
    open_turn(c->marks, system && !noted ? "system\n" : "user\n", c->out);
    if (noted) put_words(c->out, noted_system);
    put_marked(c->out, &c->content, content);
    close_turn(c->marks, c->out);
    return MOTE_OK;
}

/* A tool's result: neighbours share one user turn. */
static int chat_result(chat *c, uint32_t i) {
    slice content;
    int code = chat_content(c, i, CONTENT_TOOL, &content);
    if (code) return code;
    if (!i || !chat_role(c, i - 1, "tool")) open_turn(c->marks, "user", c->out);
    open_result(c->marks, c->out);
    put_marked(c->out, &c->content, content);
    close_result(c->marks, c->out);
    if (!chat_role(c, i + 1, "tool")) close_turn(c->marks, c->out);
    return MOTE_OK;
}

static int qwen_messages(chat *c) {
    int code = MOTE_OK;
    for (uint32_t i = c->leading; !code && i < c->n; i++) {
        if (i == c->round || (i == c->leading && i > c->round)) c->at.asked = c->out->text.size;
        if (chat_role(c, i, "user") || chat_is_system(c, i)) code = chat_user(c, i);
        else if (chat_role(c, i, "assistant")) code = chat_assistant(c, i);
        else if (chat_role(c, i, "tool")) code = chat_result(c, i);
        else if (c->family & CHAT_QWEN3_5) return fail(c->err, MOTE_EINVAL, "Unexpected message role.");
    }                                                          /* Qwen3 passes over other roles */
    return code;
}

/* A whole conversation. */
static int qwen_conversation(chat *c) {
    int code = chat_leading(c);
    if (!code) code = chat_system(c, c->leading > 0);
    if (!code) code = chat_find_round(c);
    return code ? code : qwen_messages(c);
}
