/* text/chat.c: messages -> prompt, in the format of the model: whole requests (JSON). It gives text, and which of it is from
   outside; it knows nothing of ids, models or sessions. Single turns are chat_turn.c's, the answer is chat_stream.c's.

   Requests are rendered as the family's templates do, or refused where these raise an error. Stricter than the programs on
   purpose: what they would print as Python source text (a list as a tool's answer) or pass over (a number as "tools") is an
   error. */

/* A request: {"messages": [...], "tools": [...], "enable_thinking": ..., "add_generation_prompt": ...}
   All that comes out of its JSON is from outside, and so are the messages of a turn. The template's own words are not:
   its tags, the <think> it writes around a thought, the places for images inside a content. */

/* Places in the text of a chat: where the last message in which the user asks has ended, and the beginning of an answer begins.
   0: the first is not there, or nothing follows it. */
typedef struct chat_places { size_t asked, answer; } chat_places;

typedef struct chat {
    json j;
    int family;               /* chat_family flags */
    marked_text *out;
    mote_error *err;
    buf messages;             /* uint32_t node of each message */
    uint32_t n, last_query;   /* messages; index of the last one in which the user asks */
    int has_tools;            /* tools is a list that is not empty */
    uint32_t tools;           /* its node */
    int preserve, vision_ids; /* "preserve_thinking", "add_vision_id" */
    unsigned images, videos;  /* so far, for vision_ids */
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

/* Qwen3.5: a part of a message's content. What is no text becomes a place for the vision model's output. */
static int chat_part(chat *c, uint32_t item, int system, int counted) {
    const json *j = &c->j;
    uint32_t type = json_get(j, item, "type"), text = json_get(j, item, "text");
    int object = j->nodes[item].type == JSON_OBJECT;
    int image = json_get(j, item, "image") || json_get(j, item, "image_url") || (type && json_equals(j, type, "image"));
    int video = !image && (json_get(j, item, "video") || (type && json_equals(j, type, "video")));
    if (!object || !(image || video || text)) return fail(c->err, MOTE_EINVAL, "Unexpected item type in content.");
    if (!image && !video) return put_value(c, &c->content, text, put_str);
    if (system) return fail(c->err, MOTE_EINVAL, "System message cannot contain %s.", image ? "images" : "videos");
    if (counted) *(image ? &c->images : &c->videos) += 1;
    if (c->vision_ids) {
        char label[32];
        snprintf(label, sizeof label, "%s %u: ", image ? "Picture" : "Video", image ? c->images : c->videos);
        put_words(&c->content, label);
    }
    put_words(&c->content, image ? "<|vision_start|><|image_pad|><|vision_end|>"
                                 : "<|vision_start|><|video_pad|><|vision_end|>");
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

/* Where does the last round begin? Thoughts before it are left out. A user message that only carries a tool's answer
   continues the round. */
static int chat_find_query(chat *c) {
    c->last_query = c->n - 1;
    for (uint32_t i = c->n; i-- > 0;) {
        uint32_t node = json_get(&c->j, chat_message(c, i), "content");
        slice text;
        if (!chat_role(c, i, "user")) continue;
        if (c->family == (CHAT_QWEN3 | CHAT_LENIENT) && !(node && c->j.nodes[node].type == JSON_STRING)) continue;
        int code = chat_content(c, i, CONTENT_SEARCH, &text);
        if (code) return code;
        if (slice_starts(text, "<tool_response>") && slice_ends(text, "</tool_response>")) continue;
        c->last_query = i;
        return MOTE_OK;
    }
    return c->family & CHAT_QWEN3 ? MOTE_OK : fail(c->err, MOTE_EINVAL, "No user query found in messages.");
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

/* The system turn: a system message, if one is given, which is a slice of c->content, and the tools. */
static int chat_system(chat *c, int given, slice system) {
    int code = MOTE_OK;
    if (!given && !c->has_tools) return MOTE_OK;
    put_words(c->out, "<|im_start|>system\n");
    if (c->has_tools && c->family & CHAT_QWEN3) {
        put_marked(c->out, &c->content, system);
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
        put_marked(c->out, &c->content, system);
    } else {
        put_marked(c->out, &c->content, system);
    }
    put_words(c->out, "<|im_end|>\n");
    return code;
}

/* Qwen3: {"name": "f", "arguments": {"x": 1}} */
static int chat_call_json(chat *c, uint32_t call) {
    const json *j = &c->j;
    uint32_t name = json_get(j, call, "name"), arguments = json_get(j, call, "arguments");
    int code = MOTE_OK;
    put_words(c->out, "<tool_call>\n{\"name\": \"");
    if (name) code = put_value(c, c->out, name, put_str);
    put_words(c->out, "\", \"arguments\": ");
    if (!arguments) return fail(c->err, MOTE_EINVAL, "a tool call lacks \"arguments\"");
    if (!code) code = put_value(c, c->out, arguments, j->nodes[arguments].type == JSON_STRING ? put_str : put_json);
    put_words(c->out, "}\n</tool_call>");
    return code;
}

/* Qwen3.5: <function=f> with one <parameter=x> for each argument */
static int chat_call_tags(chat *c, uint32_t call) {
    const json *j = &c->j;
    uint32_t name = json_get(j, call, "name"), arguments = json_get(j, call, "arguments");
    if (!name || j->nodes[name].type != JSON_STRING) {
        return fail(c->err, MOTE_EINVAL, "a tool call's \"name\" must be text");
    }
    put_words(c->out, "<tool_call>\n<function=");
    put_value(c, c->out, name, put_str);
    put_words(c->out, ">\n");
    int object = arguments && j->nodes[arguments].type == JSON_OBJECT;
    if (arguments && !object && !(c->family & CHAT_LENIENT)) {
        return fail(c->err, MOTE_EINVAL, "a tool call's \"arguments\" must be an object");
    }
    for (uint32_t k = arguments + 1; object && k < j->nodes[arguments].next; k = j->nodes[k + 1].next) {
        uint32_t type = j->nodes[k + 1].type;
        int as_json = type >= JSON_ARRAY || (c->family & CHAT_PRESERVE && type != JSON_STRING);
        put_words(c->out, "<parameter=");
        put_value(c, c->out, k, put_str);
        put_words(c->out, ">\n");
        int code = put_value(c, c->out, k + 1, as_json ? put_json : put_str);
        if (code) return code;
        put_words(c->out, "\n</parameter>\n");
    }
    put_words(c->out, "</function>\n</tool_call>");
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
        /* What the call is wrapped in; Qwen3 tests truth here, so that null and {} count as no wrapper. */
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
        slice before = slice_before(content, "</think>");
        if (before.n < content.n) {
            reasoning = slice_skip_newlines(slice_after(slice_drop_newlines(before), "<think>"));
            content = slice_skip_newlines(slice_after(content, "</think>"));
        }
    }
    int shown = i > c->last_query || c->preserve;
    if (qwen3) shown = shown && (i + 1 == c->n || reasoning.n);
    else reasoning = slice_trim(reasoning);
    put_words(c->out, "<|im_start|>assistant\n");
    if (shown) {
        put_words(c->out, "<think>\n");
        if (qwen3) reasoning = slice_skip_newlines(slice_drop_newlines(reasoning));
        if (type == JSON_STRING) put_outside(c->out, reasoning);
        else put_marked(c->out, &c->content, reasoning);
        put_words(c->out, "\n</think>\n\n");
    }
    put_marked(c->out, &c->content, shown && qwen3 ? slice_skip_newlines(content) : content);
    code = chat_calls(c, message, content);
    put_words(c->out, "<|im_end|>\n");
    return code;
}

static int chat_messages(chat *c) {
    int qwen3 = c->family & CHAT_QWEN3, code = MOTE_OK;
    for (uint32_t i = 0; !code && i < c->n; i++) {
        int user = chat_role(c, i, "user"), system = chat_role(c, i, "system");
        slice content;
        if (i == c->last_query + 1) c->at.asked = c->out->text.size;
        if (system && i > 0 && !qwen3) return fail(c->err, MOTE_EINVAL, "System message must be at the beginning.");
        if (user || (system && i > 0)) {
            code = chat_content(c, i, CONTENT_MESSAGE, &content);
            put_words(c->out, user ? "<|im_start|>user\n" : "<|im_start|>system\n");
            if (!code) put_marked(c->out, &c->content, content);
            put_words(c->out, "<|im_end|>\n");
        } else if (chat_role(c, i, "assistant")) {
            code = chat_assistant(c, i);
        } else if (chat_role(c, i, "tool")) { /* neighbours share one user turn */
            code = chat_content(c, i, CONTENT_TOOL, &content);
            if (!chat_role(c, i - 1, "tool") && (i > 0 || qwen3)) put_words(c->out, "<|im_start|>user");
            put_words(c->out, "\n<tool_response>\n");
            if (!code) put_marked(c->out, &c->content, content);
            put_words(c->out, "\n</tool_response>");
            if (!chat_role(c, i + 1, "tool")) put_words(c->out, "<|im_end|>\n");
        } else if (!system && !qwen3) { /* Qwen3 passes over other roles */
            return fail(c->err, MOTE_EINVAL, "Unexpected message role.");
        }
    }
    return code;
}

/* The beginning of the model's turn. think: MOTE_THINK_DEFAULT (the template's own), _ON or _OFF. */
static void chat_prompt(int family, int think, buf *out) {
    int off = think == MOTE_THINK_OFF || (think == MOTE_THINK_DEFAULT && family & CHAT_QUIET);
    buf_text(out, "<|im_start|>assistant\n");
    if (off) buf_text(out, "<think>\n\n</think>\n\n");
    else if (family & CHAT_QWEN3_5) buf_text(out, "<think>\n");
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

static int chat_request(chat *c) {
    const json *j = &c->j;
    int code = MOTE_OK;
    slice system = slice_of(NULL, 0);
    if (j->nodes[0].type != JSON_OBJECT) return fail(c->err, MOTE_EINVAL, "chat request: not a JSON object");
    uint32_t messages = chat_list(c, "messages", &code), enable = json_get(j, 0, "enable_thinking");
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
    int on = chat_flag(c, "enable_thinking", 0), prompt = chat_flag(c, "add_generation_prompt", 1);
    int preserve = chat_flag(c, "preserve_thinking", 0);
    c->vision_ids = chat_flag(c, "add_vision_id", 0);
    if (on < 0 || prompt < 0 || preserve < 0 || c->vision_ids < 0) return MOTE_EINVAL;
    c->preserve = preserve && c->family & CHAT_PRESERVE;
    int given = chat_role(c, 0, "system");
    if (given) code = chat_content(c, 0, CONTENT_SYSTEM, &system);
    if (!code) code = chat_system(c, given, system);
    if (!code) code = chat_find_query(c);
    if (!code) code = chat_messages(c);
    int chosen = enable && j->nodes[enable].type != JSON_NULL;
    int think = !chosen ? MOTE_THINK_DEFAULT : on ? MOTE_THINK_ON : MOTE_THINK_OFF;
    c->at.answer = c->out->text.size;
    if (prompt) chat_prompt(c->family, think, &c->out->text);
    return code;
}

/* Appends the prompt to out; nothing after an error. */
static int chat_render_at(chat_family f, const char *request, size_t len, marked_text *out, chat_places *at, mote_error *err) {
    chat c;
    size_t before = out->text.size, marks = out->outside.size;
    if (f == CHAT_UNKNOWN) return chat_unknown(err);
    memset(&c, 0, sizeof c);
    c.family = f;
    c.out = out;
    c.err = err;
    int code = json_parse(&c.j, request, len, "chat request", err);
    if (code == MOTE_EFORMAT) code = MOTE_EINVAL; /* not a file's format: the caller's argument */
    if (code && err) err->code = code;
    if (!code) code = chat_request(&c);
    /* Also in place of an error, which may come of text that is missing. */
    if (marked_failed(out) || marked_failed(&c.content) || c.reasoning.failed) code = fail_memory(err);
    if (code) {
        out->text.size = before;
        out->outside.size = marks;
    }
    json_free(&c.j);
    buf_free(&c.messages);
    marked_free(&c.content);
    buf_free(&c.reasoning);
    *at = c.at;
    return code;
}

static int chat_render(chat_family f, const char *request, size_t len, marked_text *out, mote_error *err) {
    chat_places at;
    return chat_render_at(f, request, len, out, &at, err);
}
