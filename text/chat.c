/* text/chat.c: messages -> prompt, in the format of the model: whole requests (JSON). It gives text, and which of it is from
   outside; it knows nothing of ids, models or sessions. Single turns are chat_turn.c's, the answer is chat_stream.c's.

   Requests are rendered as the family's templates do. What the programs refuse and clients send nevertheless has a meaning
   here: see engine.h at mote_render. Stricter than the programs on purpose: what they would print as Python source text (a
   list as a tool's answer) or pass over (a number as "tools") is an error.

   A request: {"messages": [...], "tools": [...], "enable_thinking": ..., "add_generation_prompt": ..., ...}
   All that comes out of its JSON is from outside, and so are the messages of a turn. The template's own words are not:
   its tags, the <think> it writes around a thought, the places for images inside a content. */

/* Places in the text of a chat: where the last message in which the user asks has ended, and the beginning of an answer begins.
   0: the first is not there, or nothing follows it. */
typedef struct chat_places { size_t asked, answer; } chat_places;

typedef struct chat {
    json j;
    int family;               /* chat_family flags */
    const chat_marks *marks;  /* the family's */
    marked_text *out;
    mote_error *err;
    buf messages;             /* uint32_t node of each message */
    uint32_t n;               /* messages */
    uint32_t leading;         /* of these, the first ones that are the system turn */
    uint32_t round;           /* where the last round begins, after the last message in which the user asks */
    int has_tools;            /* tools is a list that is not empty */
    uint32_t tools;           /* its node */
    int preserve, vision_ids; /* "preserve_thinking", "add_vision_id" */
    int continued;            /* "continue_final_message" */
    unsigned images, videos;  /* so far, for vision_ids */
    marked_text system;       /* of the system turn */
    marked_text content;      /* of the message at hand */
    buf reasoning;
    chat_places at;
} chat;

/* Appends a value of the request, as put_json or put_str (put) writes it. */
static int put_value(const chat *c, marked_text *out, uint32_t node,
                     int (*put)(const json *, uint32_t, buf *, mote_error *)) {
    size_t begin = out->text.size;
    int code = put(&c->j, node, &out->text, c->err);
    mark_outside(out, begin, out->text.size);
    return code;
}

static uint32_t chat_message(const chat *c, uint32_t i) {
    return ((const uint32_t *)(const void *)c->messages.data)[i];
}

static int chat_role(const chat *c, uint32_t i, const char *role) {
    uint32_t node = i < c->n ? json_get(&c->j, chat_message(c, i), "role") : 0;
    return node && json_equals(&c->j, node, role);
}

/* Applications call the same thing by two names. */
static int chat_is_system(const chat *c, uint32_t i) {
    return chat_role(c, i, "system") || chat_role(c, i, "developer");
}

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

/* Kinds of parts of a message's content. */
enum { PART_OTHER, PART_TEXT, PART_IMAGE, PART_VIDEO };

static int chat_part_kind(const json *j, uint32_t item) {
    uint32_t type = json_get(j, item, "type");
    if (json_get(j, item, "image") || json_get(j, item, "image_url") || (type && json_equals(j, type, "image"))) return PART_IMAGE;
    if (json_get(j, item, "video") || (type && json_equals(j, type, "video"))) return PART_VIDEO;
    return json_get(j, item, "text") ? PART_TEXT : PART_OTHER;
}

/* Qwen3.5: a part. What is no text becomes a place for the vision model's output. */
static int chat_part(chat *c, uint32_t item, int system, int counted) {
    const int kind = chat_part_kind(&c->j, item), image = kind == PART_IMAGE;
    if (kind == PART_OTHER) return fail(c->err, MOTE_EINVAL, "Unexpected item type in content.");
    if (kind == PART_TEXT) return put_value(c, &c->content, json_get(&c->j, item, "text"), put_str);
    if (system) return fail(c->err, MOTE_EINVAL, "System message cannot contain %s.", image ? "images" : "videos");
    if (counted) *(image ? &c->images : &c->videos) += 1;
    if (c->vision_ids) {
        char label[32];
        snprintf(label, sizeof label, "%s %u: ", image ? "Picture" : "Video", image ? c->images : c->videos);
        put_words(&c->content, label);
    }
    put_words(&c->content, image ? c->marks->image : c->marks->video);
    return MOTE_OK;
}

enum { CONTENT_SYSTEM, CONTENT_SEARCH, CONTENT_MESSAGE, CONTENT_TOOL }; /* what a content is rendered for */

/* Message i's content into c->content; *text: all of it, for Qwen3.5 without the white space around it. */
static int chat_content(chat *c, uint32_t i, int use, slice *text) {
    const json *j = &c->j;
    uint32_t node = json_get(j, chat_message(c, i), "content"), type = node ? j->nodes[node].type : (uint32_t)JSON_NULL;
    int code = MOTE_OK;
    c->content.text.size = c->content.outside.size = 0;
    if (type == JSON_STRING) {
        code = put_value(c, &c->content, node, put_str);
    } else if (c->family & CHAT_QWEN3_5) {
        if (type != JSON_NULL && type != JSON_ARRAY) return fail(c->err, MOTE_EINVAL, "Unexpected content type.");
        for (uint32_t k = node + 1; !code && type == JSON_ARRAY && k < j->nodes[node].next; k = j->nodes[k].next) {
            code = chat_part(c, k, use == CONTENT_SYSTEM, use == CONTENT_MESSAGE || use == CONTENT_TOOL);
        }
    } else if (use == CONTENT_TOOL && !(c->family & CHAT_LENIENT)) {
        if (node) code = put_value(c, &c->content, node, put_str);
    } else if (use == CONTENT_SYSTEM || !(c->family & CHAT_LENIENT)) {
        return fail(c->err, MOTE_EINVAL, "message %u: content must be text for this chat template", i);
    }
    *text = slice_of(c->content.text.data, c->content.text.size);
    if (c->family & CHAT_QWEN3_5) *text = slice_trim(*text);
    return code;
}

/* Finds the beginning of the last round. Thoughts before it are left out. A user message that only carries a tool's answer
   continues the round. In a history without a user's question, of which clients have cut the beginning, Qwen3 begins it at the
   end. Qwen3.5 refuses these: here all that is left is of the last round. */
static int chat_find_round(chat *c) {
    c->round = c->family & CHAT_QWEN3 ? c->n : 0;
    for (uint32_t i = c->n; i-- > 0;) {
        uint32_t node = json_get(&c->j, chat_message(c, i), "content");
        slice text;
        if (!chat_role(c, i, "user")) continue;
        if (c->family == (CHAT_QWEN3 | CHAT_LENIENT) && !(node && c->j.nodes[node].type == JSON_STRING)) continue;
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

/* The system turn: c->system, if one is given, and the tools. What it says of them are the template's own sentences, quoted
   with the marks in them. */
static int chat_system(chat *c, int given) {
    const slice system = slice_of(c->system.text.data, c->system.text.size);
    int code = MOTE_OK;
    if (!given && !c->has_tools) return MOTE_OK;
    open_turn(c->marks, "system\n", c->out);
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
        put_words(c->out,
                 "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
                 "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
                 "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
                 "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
                 "- Function calls MUST follow the specified format: an inner <function=...></function> block must be "
                 "nested within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
                 "- You may provide optional reasoning for your function call in natural language BEFORE the function "
                 "call, but NOT after\n- If there is no function call available, answer the question like normal with "
                 "your current knowledge and do not tell the user about function calls\n</IMPORTANT>");
        if (system.n) put_words(c->out, "\n\n");
        put_marked(c->out, &c->system, system);
    } else {
        put_marked(c->out, &c->system, system);
    }
    close_turn(c->marks, c->out);
    return code;
}

/* The system messages that are the system turn: the first message, and in Qwen3.5, which has no other place for them, those
   that follow it at once. */
static int chat_leading(chat *c) {
    int code = MOTE_OK;
    while (!code && chat_is_system(c, c->leading) && (!c->leading || c->family & CHAT_QWEN3_5)) {
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
    int object = arguments && j->nodes[arguments].type == JSON_OBJECT;
    if (arguments && !object && !(c->family & CHAT_LENIENT)) {
        return fail(c->err, MOTE_EINVAL, "a tool call's \"arguments\" must be an object");
    }
    for (uint32_t k = arguments + 1; object && k < j->nodes[arguments].next; k = j->nodes[k + 1].next) {
        uint32_t type = j->nodes[k + 1].type;
        int as_json = type >= JSON_ARRAY || (c->family & CHAT_PRESERVE && type != JSON_STRING);
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
    if (c->family == CHAT_QWEN3 && type != JSON_NULL && type != JSON_STRING) {
        return fail(c->err, MOTE_EINVAL, "message %u: reasoning_content must be text", i);
    }
    if (type == JSON_STRING) {
        c->reasoning.size = 0;
        put_string(&c->j, given, &c->reasoning);
        reasoning = slice_of(c->reasoning.data, c->reasoning.size);
    } else {
        slice before = slice_before(content, c->marks->think_end);
        if (before.n < content.n) {
            reasoning = slice_skip_newlines(slice_after(slice_drop_newlines(before), c->marks->think));
            content = slice_skip_newlines(slice_after(content, c->marks->think_end));
        }
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
    if (noted) put_words(c->out, "System message:\n");
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

static int chat_messages(chat *c) {
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

/* The tool messages that follow an assistant's with calls, in the order of the calls. */
static int chat_order_results(chat *c) {
    uint32_t *messages = (uint32_t *)(void *)c->messages.data, first;
    int code = MOTE_OK;
    for (uint32_t i = 0; !code && i < c->n; i = first) {
        uint32_t calls = chat_role(c, i, "assistant") ? json_get(&c->j, messages[i], "tool_calls") : 0, end = first = i + 1;
        if (!calls || c->j.nodes[calls].type != JSON_ARRAY) continue;
        while (chat_role(c, end, "tool")) end++;
        if (end > first + 1) code = order_results(&c->j, calls, messages + first, end - first, c->err);
        first = end;
    }
    return code;
}

/* The beginning of the model's turn. think: MOTE_THINK_DEFAULT (the template's own), _ON or _OFF. */
static void chat_prompt(int family, int think, marked_text *out) {
    const chat_marks *m = chat_marks_of(family);
    int off = think == MOTE_THINK_OFF || (think == MOTE_THINK_DEFAULT && family & CHAT_QUIET);
    open_turn(m, "assistant\n", out);
    if (!off && family & CHAT_QWEN3) return;
    put_words(out, m->think);
    put_words(out, "\n");
    if (!off) return;
    put_words(out, "\n");
    put_words(out, m->think_end);
    put_words(out, "\n\n");
}

/* A true/false/null member: 1, 0, 0; `absent` when it is not there; -1 and an error for other values. */
static int chat_flag(chat *c, const char *key, int absent) {
    uint32_t node = json_get(&c->j, 0, key);
    if (!node) return absent;
    if (c->j.nodes[node].type <= JSON_TRUE) return c->j.nodes[node].type == JSON_TRUE;
    fail(c->err, MOTE_EINVAL, "chat request: \"%s\" must be true or false", key);
    return -1;
}

/* A list member's node, 0 when absent, null or empty; *code for other values. */
static uint32_t chat_list(chat *c, const char *key, int *code) {
    uint32_t node = json_get(&c->j, 0, key);
    if (!node || c->j.nodes[node].type == JSON_NULL) return 0;
    if (c->j.nodes[node].type == JSON_ARRAY) return c->j.nodes[node].size ? node : 0;
    *code = fail(c->err, MOTE_EINVAL, "chat request: \"%s\" must be a list", key);
    return 0;
}

/* 1: a message ends in text that can be continued. */
static int chat_ends_in_text(const chat *c, uint32_t i) {
    const json *j = &c->j;
    uint32_t content = json_get(j, chat_message(c, i), "content"), last = 0;
    if (content && j->nodes[content].type == JSON_STRING) return 1;
    if (!content || j->nodes[content].type != JSON_ARRAY || c->family & CHAT_QWEN3) return 0;
    for (uint32_t k = content + 1; k < j->nodes[content].next; k = j->nodes[k].next) last = k;
    return last && chat_part_kind(j, last) == PART_TEXT;
}

/* "continue_final_message": the last message is an answer that the model goes on with. */
static int chat_check_continued(const chat *c, int prompt) {
    uint32_t i = c->n - 1, calls = json_get(&c->j, chat_message(c, i), "tool_calls");
    const char *wrong = NULL;
    if (prompt) wrong = "add_generation_prompt would begin another";
    else if (!chat_role(c, i, "assistant")) wrong = "the last message is not the assistant's";
    else if (calls && c->j.nodes[calls].type == JSON_ARRAY && c->j.nodes[calls].size) wrong = "the last message calls tools";
    else if (!chat_ends_in_text(c, i)) wrong = "the last message has no text to continue";
    return wrong ? fail(c->err, MOTE_EINVAL, "continue_final_message: %s", wrong) : MOTE_OK;
}

/* Reads the members of a request but the messages themselves. *think: MOTE_THINK_...; *prompt: with the beginning of an
   answer. */
static int chat_options(chat *c, int *think, int *prompt) {
    uint32_t enable = json_get(&c->j, 0, "enable_thinking");
    int on = chat_flag(c, "enable_thinking", 0), preserve = chat_flag(c, "preserve_thinking", 0);
    c->continued = chat_flag(c, "continue_final_message", 0);
    c->vision_ids = chat_flag(c, "add_vision_id", 0);
    *prompt = chat_flag(c, "add_generation_prompt", !c->continued);
    if (on < 0 || *prompt < 0 || preserve < 0 || c->vision_ids < 0 || c->continued < 0) return MOTE_EINVAL;
    c->preserve = preserve && c->family & CHAT_PRESERVE;
    int chosen = enable && c->j.nodes[enable].type != JSON_NULL;
    *think = !chosen ? MOTE_THINK_DEFAULT : on ? MOTE_THINK_ON : MOTE_THINK_OFF;
    return c->continued ? chat_check_continued(c, *prompt) : MOTE_OK;
}

static int chat_request(chat *c) {
    const json *j = &c->j;
    int code = MOTE_OK, think = MOTE_THINK_DEFAULT, prompt = 0;
    if (j->nodes[0].type != JSON_OBJECT) return fail(c->err, MOTE_EINVAL, "chat request: not a JSON object");
    uint32_t messages = chat_list(c, "messages", &code);
    c->tools = chat_list(c, "tools", &code);
    c->has_tools = c->tools != 0;
    if (code) return code;
    if (!messages) return fail(c->err, MOTE_EINVAL, "No messages provided.");
    for (uint32_t k = messages + 1; k < j->nodes[messages].next; k = j->nodes[k].next) {
        if (j->nodes[k].type != JSON_OBJECT) return fail(c->err, MOTE_EINVAL, "chat request: a message is no object");
        buf_add(&c->messages, &k, sizeof k);
        c->n++;
    }
    if (c->messages.failed) return fail_memory(c->err);
    code = chat_options(c, &think, &prompt);
    if (!code) code = chat_order_results(c);
    if (!code) code = chat_leading(c);
    if (!code) code = chat_system(c, c->leading > 0);
    if (!code) code = chat_find_round(c);
    if (!code) code = chat_messages(c);
    c->at.answer = c->out->text.size;
    if (!code && prompt) chat_prompt(c->family, think, c->out);
    return code;
}

/* Appends the prompt to out; nothing after an error. */
static int chat_render_at(chat_family f, const char *request, size_t len, marked_text *out, chat_places *at, mote_error *err) {
    chat c;
    size_t before = out->text.size, marks = out->outside.size;
    if (f == CHAT_UNKNOWN) return chat_unknown(err);
    memset(&c, 0, sizeof c);
    c.family = f;
    c.marks = chat_marks_of(f);
    c.out = out;
    c.err = err;
    int code = json_parse(&c.j, request, len, "chat request", err);
    if (code == MOTE_EFORMAT) code = MOTE_EINVAL; /* not a file's format: the caller's argument */
    if (code && err) err->code = code;
    if (!code) code = chat_request(&c);
    /* Also in place of an error, which may come of text that is missing. */
    if (marked_failed(out) || marked_failed(&c.system) || marked_failed(&c.content) || c.reasoning.failed) code = fail_memory(err);
    if (code) {
        out->text.size = before;
        out->outside.size = marks;
    }
    json_free(&c.j);
    buf_free(&c.messages);
    marked_free(&c.system);
    marked_free(&c.content);
    buf_free(&c.reasoning);
    *at = c.at;
    return code;
}

static int chat_render(chat_family f, const char *request, size_t len, marked_text *out, mote_error *err) {
    chat_places at;
    return chat_render_at(f, request, len, out, &at, err);
}
