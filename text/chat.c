// text/chat.c: messages -> prompt, in the format of the model: whole requests (JSON) and single turns. It gives text,
// and which of it is from outside; it knows nothing of ids, models or sessions. The answer is chat_stream.c's.
//
// A checkpoint brings its chat format as a Jinja program. We do not run Jinja: the programs we know are written out as
// C here and give the same bytes, or an error where the program raises one. A program is recognised by a hash of its
// whole text, without indentation, empty lines and white space at line ends (none of which reaches the output, since
// every tag of these programs strips what is before it). Anything else about an unknown text could change the prompt,
// and a model prompted wrongly answers badly without a word, so we refuse the others. Stricter than the programs on
// purpose: what they would print as Python source text (a list as a tool's answer) or pass over (a number as "tools")
// is an error. One family holds several published texts, told apart by flags.

typedef enum chat_family {
    CHAT_UNKNOWN = 0,
    CHAT_QWEN3 = 1,    // calls as JSON; the model opens <think> itself
    CHAT_QWEN3_5 = 2,  // calls as <function=f><parameter=x>; the prompt ends inside an open <think>
    CHAT_LENIENT = 4,  // Qwen3: content that is no text counts as empty; Qwen3.5: so do arguments that are no object
    CHAT_QUIET = 8,    // thinks only when asked to
    CHAT_PRESERVE = 16 // Qwen3.6: "preserve_thinking" keeps old thoughts; arguments that are no text are all JSON
} chat_family;

static chat_family chat_detect(const char *template_text, size_t len) {
    static const struct {
        uint64_t hash;
        int family;
    } known[] = {
        {0x0069FAE55F9BBDCCu, CHAT_QWEN3}, // Qwen3 (first release)
        {0xD9204720CD536859u, CHAT_QWEN3 | CHAT_LENIENT}, // Qwen3 (later text)
        {0x7FF3A87A165FF7DEu, CHAT_QWEN3_5}, // Qwen3.5 4B and larger
        {0x2B2ECD7ADCF49C7Du, CHAT_QWEN3_5 | CHAT_LENIENT}, // Qwen3.5 35B-A3B (another text)
        {0x0E50F370211D5EF7u, CHAT_QWEN3_5 | CHAT_QUIET}, // Qwen3.5, small models
        {0xFEDB038E6D6019AAu, CHAT_QWEN3_5 | CHAT_PRESERVE}, // Qwen3.6
    };
    uint64_t hash = FNV_START;
    for (const char *p = template_text, *end = p + len; p < end;) {
        const char *newline = (const char *)memchr(p, '\n', (size_t)(end - p));
        const char *line_end = newline ? newline : end, *next = newline ? newline + 1 : end;
        while (p < line_end && (*p == ' ' || *p == '\t' || *p == '\r')) p++;
        while (p < line_end && (line_end[-1] == ' ' || line_end[-1] == '\t' || line_end[-1] == '\r')) line_end--;
        if (p < line_end) hash = fnv1a(fnv1a(hash, p, (size_t)(line_end - p)), "\n", 1);
        p = next;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].hash == hash) return (chat_family)known[i].family;
    }
    return CHAT_UNKNOWN;
}

static const char *chat_known(void) {
    return "Qwen3, Qwen3.5";
}

static int chat_unknown(mote_error *err) {
    return fail(err, MOTE_EUNSUPPORTED, "unknown chat template (known: %s); raw prompts work", chat_known());
}

// A request: {"messages": [...], "tools": [...], "enable_thinking": ..., "add_generation_prompt": ...}
// All that comes out of its JSON is from outside, and so are the messages of a turn. The template's own words are not:
// its tags, the <think> it writes around a thought, the places for images inside a content.

// Text, and which of it is from outside: text_range, as tokenizer_encode takes them.
typedef struct marked_text {
    buf text, outside;
} marked_text;

static void marked_free(marked_text *m) {
    buf_free(&m->text);
    buf_free(&m->outside);
}

static int marked_failed(const marked_text *m) {
    return m->text.failed | m->outside.failed;
}

static const text_range *outside_of(const marked_text *m, size_t *count) {
    *count = m->outside.size / sizeof(text_range);
    return (const text_range *)(const void *)m->outside.data;
}

static void put_words(marked_text *out, const char *words) {
    buf_text(&out->text, words);
}

static void mark_outside(marked_text *out, size_t begin, size_t end) {
    text_range range = {begin, end};
    if (begin < end) buf_add(&out->outside, &range, sizeof range);
}

static void put_outside(marked_text *out, slice s) {
    size_t begin = out->text.size;
    buf_slice(&out->text, s);
    mark_outside(out, begin, out->text.size);
}

// Appends a slice of `from` with its marks.
static void put_marked(marked_text *out, const marked_text *from, slice s) {
    size_t count, to = out->text.size, begin = s.n ? (size_t)(s.p - from->text.data) : 0, end = begin + s.n;
    const text_range *r = outside_of(from, &count);
    buf_slice(&out->text, s);
    for (size_t i = 0; i < count; i++) {
        size_t a = r[i].begin > begin ? r[i].begin : begin, b = r[i].end < end ? r[i].end : end;
        if (a < b) mark_outside(out, to + a - begin, to + b - begin);
    }
}

typedef struct chat {
    json j;
    int family;               // chat_family flags
    marked_text *out;
    mote_error *err;
    buf messages;             // uint32_t node of each message
    uint32_t n, last_query;   // messages; index of the last one in which the user asks
    int has_tools;            // tools is a list that is not empty
    uint32_t tools;           // its node
    int preserve, vision_ids; // "preserve_thinking", "add_vision_id"
    unsigned images, videos;  // so far, for vision_ids
    marked_text content;      // of the message at hand
    buf reasoning;
} chat;

// Appends a value of the request, as put_json or put_str (put) writes it.
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

// Qwen3.5: a part of a message's content. What is no text becomes a place for the vision model's output.
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

enum { CONTENT_SYSTEM, CONTENT_SEARCH, CONTENT_MESSAGE, CONTENT_TOOL }; // what a content is rendered for

// Message i's content into c->content; *text: all of it, for Qwen3.5 without the white space around it.
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

// Where does the last round begin? Thoughts before it are left out. A user message that only carries a tool's answer
// continues the round.
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

// The system turn: a system message, if one is given, which is a slice of c->content, and the tools.
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

// Qwen3: {"name": "f", "arguments": {"x": 1}}
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

// Qwen3.5: <function=f> with one <parameter=x> for each argument
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
        // What the call is wrapped in; Qwen3 tests truth here, so that null and {} count as no wrapper.
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
        if (system && i > 0 && !qwen3) return fail(c->err, MOTE_EINVAL, "System message must be at the beginning.");
        if (user || (system && i > 0)) {
            code = chat_content(c, i, CONTENT_MESSAGE, &content);
            put_words(c->out, user ? "<|im_start|>user\n" : "<|im_start|>system\n");
            if (!code) put_marked(c->out, &c->content, content);
            put_words(c->out, "<|im_end|>\n");
        } else if (chat_role(c, i, "assistant")) {
            code = chat_assistant(c, i);
        } else if (chat_role(c, i, "tool")) { // neighbours share one user turn
            code = chat_content(c, i, CONTENT_TOOL, &content);
            if (!chat_role(c, i - 1, "tool") && (i > 0 || qwen3)) put_words(c->out, "<|im_start|>user");
            put_words(c->out, "\n<tool_response>\n");
            if (!code) put_marked(c->out, &c->content, content);
            put_words(c->out, "\n</tool_response>");
            if (!chat_role(c, i + 1, "tool")) put_words(c->out, "<|im_end|>\n");
        } else if (!system && !qwen3) { // Qwen3 passes over other roles
            return fail(c->err, MOTE_EINVAL, "Unexpected message role.");
        }
    }
    return code;
}

// The beginning of the model's turn. think: MOTE_THINK_DEFAULT (the template's own), _ON or _OFF.
static void chat_prompt(int family, int think, buf *out) {
    int off = think == MOTE_THINK_OFF || (think == MOTE_THINK_DEFAULT && family & CHAT_QUIET);
    buf_text(out, "<|im_start|>assistant\n");
    if (off) buf_text(out, "<think>\n\n</think>\n\n");
    else if (family & CHAT_QWEN3_5) buf_text(out, "<think>\n");
}

// A true/false/null member: 1, 0, 0; `absent` when it is not there; -1 and an error for other values.
static int chat_flag(chat *c, const char *key, int absent) {
    uint32_t node = json_get(&c->j, 0, key);
    if (!node) return absent;
    if (c->j.nodes[node].type <= JSON_TRUE) return c->j.nodes[node].type == JSON_TRUE;
    fail(c->err, MOTE_EINVAL, "chat request: \"%s\" must be true or false", key);
    return -1;
}

// A list member's node, 0 when absent, null or empty; *code for other values.
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
    if (prompt) chat_prompt(c->family, think, &c->out->text);
    return code;
}

// Appends the prompt to out; nothing after an error.
static int chat_render(chat_family f, const char *request, size_t len, marked_text *out, mote_error *err) {
    chat c;
    size_t before = out->text.size, marks = out->outside.size;
    if (f == CHAT_UNKNOWN) return chat_unknown(err);
    memset(&c, 0, sizeof c);
    c.family = f;
    c.out = out;
    c.err = err;
    int code = json_parse(&c.j, request, len, "chat request", err);
    if (code == MOTE_EFORMAT) code = MOTE_EINVAL; // not a file's format: the caller's argument
    if (code && err) err->code = code;
    if (!code) code = chat_request(&c);
    // Also in place of an error, which may come of text that is missing.
    if (marked_failed(out) || marked_failed(&c.content) || c.reasoning.failed) code = fail_memory(err);
    if (code) {
        out->text.size = before;
        out->outside.size = marks;
    }
    json_free(&c.j);
    buf_free(&c.messages);
    marked_free(&c.content);
    buf_free(&c.reasoning);
    return code;
}

// One more turn of a conversation. All texts are from outside.
typedef struct turn {
    const char *system;        // NULL or "": none; first turn only
    const json *tools;         // a list; NULL: none; first turn only
    const char *role, *message;        // "user" or "tool"
    const char *const *results;        // "tool": of further calls, behind the message
    int result_count;
    int think;                 // as in chat_prompt
} turn;

// The system turn of a conversation that begins.
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

// Renders it behind the ones before, with the beginning of the model's turn.
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

// What the model wrote in its turn, as the template renders it in the history of a later one: without the thinking. text: a
// slice of `from`, behind "assistant\n" and up to the turn's end.
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

// Does a prompt end inside an open <think>? Then chat_stream_begin wants to know.
static int chat_opens_thinking(const char *prompt, size_t len) {
    return slice_ends(slice_drop_newlines(slice_of(prompt, len)), "<think>");
}
