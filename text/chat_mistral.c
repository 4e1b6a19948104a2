/* text/chat_mistral.c: Mistral's formats: [INST] and [/INST] around what a user says. The first ones know no system turn and no
   tools; from 7B v0.3 and Nemo on tools stand before the last question, and the system text in it; Small 3 has a turn for it.
   Which white space stands beside a mark differs from one to the next. */

/* What Small 3.2 is told where there is no other system text. */
static const char small_before_date[] =
    "You are Mistral Small 3, a Large Language Model (LLM) created by Mistral AI, a French startup headquartered in "
    "Paris.\nYour knowledge base was last updated on 2023-10-01. The current date is ";
static const char small_after_date[] =
    ".\n\nWhen you're not sure about some information or when the user's request requires up-to-date or specific "
    "data, you must use the available tools to fetch the information. Do not hesitate to use tools whenever they can "
    "provide a more accurate or complete response. If no relevant tools are available, then clearly state that you "
    "don't have the information and avoid making up anything.\n\nIf the user's question is not clear, ambiguous, or "
    "does not provide enough context for you to accurately answer the question, you do not try to answer it right "
    "away and you rather ask the user to clarify their request (e.g. \"What are some good restaurants around me?\" "
    "=> \"Where are you?\" or \"When is the next flight to Tokyo\" => \"Where do you travel from?\").\nYou are "
    "always very attentive to dates, and when asked about information at specific dates, you discard information "
    "that is at another date.\nYou follow these instructions in all languages, and always respond to the user in the "
    "language they use or request.\nNext sections describe the capabilities that you have.\n\n# WEB BROWSING "
    "INSTRUCTIONS\n\nYou cannot perform any web search or access internet to open URLs, links etc. If it seems like "
    "the user is expecting you to do so, you clarify the situation and ask the user to copy paste the text directly "
    "in the chat.\n\n# MULTI-MODAL INSTRUCTIONS\n\nYou have the ability to read images, but you cannot generate "
    "images. You also cannot transcribe audio files or videos.\nYou cannot read nor transcribe audio files or "
    "videos.\n\n# TOOL CALLING INSTRUCTIONS\n\nYou may have access to tools that you can use to fetch information or "
    "perform actions. You must use these tools in the following situations:\n\n1. When the request requires "
    "up-to-date information.\n2. When the request requires specific data that you do not have in your knowledge "
    "base.\n3. When the request involves actions that you cannot perform without tools.\n\nAlways prioritize using "
    "tools to provide the most accurate and helpful response. If tools are not available, inform the user that you "
    "cannot perform the requested action at the moment.";

static void small_system(chat *c) {
    char today[64];
    chat_today(today, sizeof today, 1);
    put_words(c->out, "[SYSTEM_PROMPT]");
    if (c->leading) {
        put_marked(c->out, &c->system, slice_of(c->system.text.data, c->system.text.size));
    } else {
        put_words(c->out, small_before_date);
        put_words(c->out, today);
        put_words(c->out, small_after_date);
    }
    put_words(c->out, "[/SYSTEM_PROMPT]");
}

/* Where a space stands: after what opens, and, in the first ones, before what closes. */
static int mistral_is_spaced(const chat *c) {
    return !(c->family & CHAT_NEMO) || c->family & CHAT_SPACED;
}

/* An id as the templates want it: nine characters. From one of another length nine are made, the same each time. */
static void mistral_id(chat *c, uint32_t object, const char *key) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    enum { SIZE = 9 };
    buf id;
    char made[SIZE];
    const uint32_t node = json_get(&c->j, object, key);
    memset(&id, 0, sizeof id);
    if (node && c->j.nodes[node].type == JSON_STRING) put_string(&c->j, node, &id);
    uint64_t hash = fnv1a(FNV_START, id.data, id.size);
    for (int i = 0; i < SIZE; i++, hash /= 62) made[i] = digits[hash % 62];
    put_outside(c->out, id.size == SIZE ? slice_of(id.data, SIZE) : slice_of(made, SIZE));
    c->out->text.failed |= id.failed;
    buf_free(&id);
}

/* Nemo: {"type": "function", "function": {...}}, in which texts stand as they are, without escapes. */
static int nemo_tool(chat *c, uint32_t tool) {
    const json *j = &c->j;
    int code = MOTE_OK, first = 1;
    put_words(c->out, "{\"type\": \"function\", \"function\": {");
    for (uint32_t k = tool + 1; !code && k < j->nodes[tool].next; k = j->nodes[k + 1].next) {
        const int text = j->nodes[k + 1].type == JSON_STRING;
        if (json_equals(j, k, "return")) continue;
        put_words(c->out, first ? "\"" : ", \"");
        put_value(c, c->out, k, put_str);
        put_words(c->out, text ? "\": \"" : "\": ");
        code = put_value(c, c->out, k + 1, text ? put_str : put_json);
        if (text) put_words(c->out, "\"");
        first = 0;
    }
    put_words(c->out, "}}");
    return code;
}

static int mistral_tools(chat *c) {
    int code = MOTE_OK;
    put_words(c->out, c->family & CHAT_SPACED ? "[AVAILABLE_TOOLS] " : "[AVAILABLE_TOOLS]");
    if (c->family & CHAT_SMALL) code = put_value(c, c->out, c->tools, put_json);
    for (uint32_t k = c->tools + 1; c->family & CHAT_NEMO && !code && k < c->j.nodes[c->tools].next; k = c->j.nodes[k].next) {
        const uint32_t tool = json_get(&c->j, k, "function");
        if (!tool || c->j.nodes[tool].type != JSON_OBJECT) return fail(c->err, MOTE_EINVAL, "a tool lacks \"function\"");
        put_words(c->out, k == c->tools + 1 ? "[" : ", ");
        code = nemo_tool(c, tool);
    }
    put_words(c->out, c->family & CHAT_NEMO ? "][/AVAILABLE_TOOLS]" : "[/AVAILABLE_TOOLS]");
    return code;
}

/* 1: a message is the last of a user, or says the same: the templates compare texts. */
static int mistral_is_last(const chat *c, uint32_t i) {
    uint32_t last = c->n;
    while (last > i && !chat_role(c, last - 1, "user")) last--;
    if (last <= i + 1) return last == i + 1;
    const uint32_t a = json_get(&c->j, chat_message(c, i), "content"), b = json_get(&c->j, chat_message(c, last - 1), "content");
    const json_node *x = c->j.nodes + a, *y = c->j.nodes + b;
    if (!a || !b || x->type != JSON_STRING || y->type != JSON_STRING || x->size != y->size) return 0;
    return !memcmp(c->j.text + x->start, c->j.text + y->start, x->size);
}

/* A user's turn, or a system message in the middle: noted, where the family has no turn for it. */
static int mistral_user(chat *c, uint32_t i) {
    const int noted = chat_is_system(c, i), small = c->family & CHAT_SMALL;
    const int tools = c->has_tools && c->family & (CHAT_NEMO | CHAT_SMALL);
    const int holds_system = c->leading && !small && i == c->holder;
    slice text;
    int code = chat_content(c, i, CONTENT_MESSAGE, &text);
    if (!code && tools && !noted && mistral_is_last(c, i)) code = mistral_tools(c);
    put_words(c->out, small ? noted ? "[SYSTEM_PROMPT]" : "[INST]" : mistral_is_spaced(c) ? "[INST] " : "[INST]");
    if (holds_system) {
        put_marked(c->out, &c->system, slice_of(c->system.text.data, c->system.text.size));
        put_words(c->out, "\n\n");
    }
    if (noted && !small) put_words(c->out, noted_system);
    put_marked(c->out, &c->content, text);
    put_words(c->out, small ? noted ? "[/SYSTEM_PROMPT]" : "[/INST]" : c->family & CHAT_NEMO ? "[/INST]" : " [/INST]");
    return code;
}

/* A call of Nemo's without its last brace: {"name": ..., "arguments": ... */
static int nemo_call(chat *c, uint32_t call) {
    const json *j = &c->j;
    int code = MOTE_OK;
    put_words(c->out, "{");
    for (uint32_t k = call + 1; !code && k < j->nodes[call].next; k = j->nodes[k + 1].next) {
        if (k > call + 1) put_words(c->out, ", ");
        code = put_value(c, c->out, k, put_json);
        put_words(c->out, ": ");
        if (!code) code = json_equals(j, k, "arguments") ? put_call_arguments(c, k + 1) : put_value(c, c->out, k + 1, put_json);
    }
    return code;
}

/* Nemo: [TOOL_CALLS][{"name": ..., "arguments": ..., "id": "..."}]; Small: [TOOL_CALLS]name[CALL_ID]id[ARGS]arguments for each.
   Their templates leave out a text in front of them, which models write. */
static int mistral_calls(chat *c, uint32_t i, uint32_t calls) {
    const json *j = &c->j;
    const int nemo = c->family & CHAT_NEMO;
    slice text = slice_of(NULL, 0);
    int code = has_content(c, i) ? chat_content(c, i, CONTENT_MESSAGE, &text) : MOTE_OK;
    put_marked(c->out, &c->content, text);
    if (nemo) put_words(c->out, c->family & CHAT_SPACED ? "[TOOL_CALLS] [" : "[TOOL_CALLS][");
    for (uint32_t k = calls + 1; !code && k < j->nodes[calls].next; k = j->nodes[k].next) {
        const uint32_t call = chat_function(j, k), arguments = json_get(j, call, "arguments");
        if (!arguments) return fail(c->err, MOTE_EINVAL, "a tool call lacks \"arguments\"");
        if (nemo) {
            if (k > calls + 1) put_words(c->out, ", ");
            code = nemo_call(c, call);
            put_words(c->out, ", \"id\": \"");
            mistral_id(c, k, "id");
            put_words(c->out, "\"}");
            continue;
        }
        put_words(c->out, "[TOOL_CALLS]");
        code = put_member_text(c, c->out, call, "name");
        put_words(c->out, "[CALL_ID]");
        mistral_id(c, k, "id");
        put_words(c->out, "[ARGS]");
        if (!code) code = put_call_arguments(c, arguments);
    }
    if (nemo) put_words(c->out, "]");
    put_words(c->out, c->marks->turn_end);
    return code;
}

static int mistral_result(chat *c, uint32_t i) {
    const uint32_t message = chat_message(c, i);
    const int small = c->family & CHAT_SMALL;
    slice text;
    int code = chat_content(c, i, CONTENT_TOOL, &text);
    if (small) {
        put_words(c->out, "[TOOL_RESULTS]");
        mistral_id(c, message, "tool_call_id");
        put_words(c->out, "[TOOL_CONTENT]");
        put_marked(c->out, &c->content, text);
    } else {
        put_words(c->out, c->family & CHAT_SPACED ? "[TOOL_RESULTS] {\"content\": " : "[TOOL_RESULTS]{\"content\": ");
        put_marked(c->out, &c->content, text);
        put_words(c->out, ", \"call_id\": \"");
        mistral_id(c, message, "tool_call_id");
        put_words(c->out, "\"}");
    }
    put_words(c->out, "[/TOOL_RESULTS]");
    return code;
}

static int mistral_answer(chat *c, uint32_t i) {
    const int v3 = c->family & CHAT_NEMO && c->family & CHAT_SPACED;
    slice text;
    int code = chat_content(c, i, CONTENT_MESSAGE, &text);
    if (v3) put_words(c->out, " ");
    put_marked(c->out, &c->content, v3 ? slice_trim(text) : text);
    if (i + 1 == c->n && c->continued) return code;
    put_words(c->out, c->marks->turn_end);
    if (c->family & CHAT_SPACED && !v3) put_words(c->out, " ");
    return code;
}

static int mistral_conversation(chat *c) {
    const int tools = c->family & (CHAT_NEMO | CHAT_SMALL);
    int code = chat_leading(c);
    for (uint32_t i = c->holder = c->n; i-- > c->leading && c->leading;)
        if ((chat_role(c, i, "user") || chat_is_system(c, i)) && (c->holder == c->n || !(c->family & CHAT_NEMO))) c->holder = i;
    put_words(c->out, "<s>");
    if (!code && c->family & CHAT_SMALL) small_system(c);
    for (uint32_t i = c->leading; !code && i < c->n; i++) {
        const uint32_t calls = tools ? chat_calls_of(c, i) : 0;
        if (chat_role(c, i, "user") || chat_is_system(c, i)) code = mistral_user(c, i);
        else if (calls) code = mistral_calls(c, i, calls);
        else if (chat_role(c, i, "assistant")) code = mistral_answer(c, i);
        else if (tools && chat_role(c, i, "tool")) code = mistral_result(c, i);
        else return fail(c->err, MOTE_EINVAL, "Only system, user, assistant, and tool roles are supported!");
    }
    return code;
}
