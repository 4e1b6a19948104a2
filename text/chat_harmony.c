/* text/chat_harmony.c: gpt-oss's format (OpenAI's harmony): messages with a header, which names a channel; tools as TypeScript. What a
   header is, chat_header.c says. */

#define ASSISTANT "<|start|>assistant"
#define ANALYSIS ASSISTANT "<|channel|>analysis<|message|>"
#define FINAL ASSISTANT "<|channel|>final<|message|>"

/* ---- Tools as TypeScript ---- */

/* Of Jinja's truth: there, and not null, false, 0 or empty. */
static int is_true(const json *j, uint32_t node) {
    double number = 0;
    if (!node) return 0;
    if (j->nodes[node].type == JSON_NUMBER) return json_double(j, node, &number) || number != 0;
    return j->nodes[node].type >= JSON_STRING ? j->nodes[node].size > 0 : j->nodes[node].type == JSON_TRUE;
}

static uint32_t true_member(const json *j, uint32_t object, const char *key) {
    const uint32_t node = json_get(j, object, key);
    return is_true(j, node) ? node : 0;
}

/* A member that is an object and not empty. */
static uint32_t object_member(const json *j, uint32_t object, const char *key) {
    const uint32_t node = true_member(j, object, key);
    return node && j->nodes[node].type == JSON_OBJECT ? node : 0;
}

/* The elements of a list as text, with `between` between them. */
static int harmony_join(const chat *c, uint32_t list, const char *between) {
    int code = MOTE_OK;
    for (uint32_t k = list + 1; !code && k < c->j.nodes[list].next; k = c->j.nodes[k].next) {
        if (k > list + 1) put_words(c->out, between);
        code = put_value(c, c->out, k, put_str);
    }
    return code;
}

/* "?" after a key that the schema does not require. */
static void harmony_optional(const chat *c, uint32_t schema, uint32_t key) {
    const json *j = &c->j;
    const uint32_t required = json_get(j, schema, "required");
    for (uint32_t k = required + 1; required && j->nodes[required].type == JSON_ARRAY && k < j->nodes[required].next; k = j->nodes[k].next)
        if (strings_equal(j, k, key)) return;
    put_words(c->out, "?");
}

static int harmony_type(const chat *c, uint32_t schema);

/* {...}, with the template's own white space. */
static int harmony_object(const chat *c, uint32_t schema) {
    const json *j = &c->j;
    const uint32_t list = object_member(j, schema, "properties");
    int code = MOTE_OK;
    if (!list) put_words(c->out, "object");
    if (!list) return MOTE_OK;
    put_words(c->out, "{\n");
    for (uint32_t k = list + 1; !code && k < j->nodes[list].next; k = j->nodes[k + 1].next) {
        if (k > list + 1) put_words(c->out, ", ");
        code = put_value(c, c->out, k, put_str);
        harmony_optional(c, schema, k);
        put_words(c->out, ": \n                ");
        if (!code) code = harmony_type(c, k + 1);
    }
    put_words(c->out, "}");
    return code;
}

/* A number's or a boolean's type; NULL: another. type: 0: none is said. */
static const char *harmony_plain(const json *j, uint32_t type) {
    if (type && (json_equals(j, type, "number") || json_equals(j, type, "integer"))) return "number";
    return type && json_equals(j, type, "boolean") ? "boolean" : NULL;
}

/* T[]; any[] where T is long. */
static int harmony_array(const chat *c, uint32_t schema) {
    const uint32_t items = true_member(&c->j, schema, "items"), type = items ? json_get(&c->j, items, "type") : 0;
    const size_t text = c->out->text.size, marks = c->out->outside.size;
    const char *plain = type && json_equals(&c->j, type, "string") ? "string" : harmony_plain(&c->j, type);    /* enums or not */
    int code = MOTE_OK, any = !items;
    if (plain) put_words(c->out, plain);
    else if (items) code = harmony_type(c, items);
    slice inner = slice_of(c->out->text.data + text, c->out->text.size - text);
    size_t characters = 0;
    for (size_t i = 0; i < inner.n; i++) characters += ((unsigned char)inner.p[i] & 0xC0) != 0x80;
    any |= characters > 50 || slice_is(inner, "object | object");
    if (any) {
        c->out->text.size = text;
        c->out->outside.size = marks;
        put_words(c->out, "any");
    }
    put_words(c->out, "[]");
    if (true_member(&c->j, schema, "nullable")) put_words(c->out, " | null");
    return code;
}

/* T | T, each with a description and a default. */
static int harmony_one_of(const chat *c, uint32_t list) {
    const json *j = &c->j;
    int code = MOTE_OK;
    for (uint32_t k = list + 1; !code && k < j->nodes[list].next; k = j->nodes[k].next) {
        const uint32_t said = true_member(j, k, "description"), otherwise = json_get(j, k, "default");
        if (k > list + 1) put_words(c->out, " | \n");
        code = harmony_type(c, k);
        if (said && !code) put_words(c->out, "// "), code = put_value(c, c->out, said, put_str);
        if (otherwise && !code) put_words(c->out, "                    // default: "), code = put_value(c, c->out, otherwise, put_json);
    }
    return code;
}

static int harmony_string(const chat *c, uint32_t schema) {
    const uint32_t values = true_member(&c->j, schema, "enum");
    const int list = values && c->j.nodes[values].type == JSON_ARRAY;
    int code = MOTE_OK;
    put_words(c->out, list ? "\"" : "string");
    if (list) code = harmony_join(c, values, "\" | \"");
    if (list) put_words(c->out, "\"");
    else if (true_member(&c->j, schema, "nullable")) put_words(c->out, " | null");
    return code;
}

/* A schema, which may be anything. */
static int harmony_type(const chat *c, uint32_t schema) {
    const json *j = &c->j;
    const uint32_t type = json_get(j, schema, "type"), one_of = true_member(j, schema, "oneOf");
    if (type && json_equals(j, type, "array")) return harmony_array(c, schema);
    if (type && j->nodes[type].type == JSON_ARRAY && j->nodes[type].size) return harmony_join(c, type, " | ");
    if (one_of && j->nodes[one_of].type == JSON_ARRAY) return harmony_one_of(c, one_of);
    if (type && json_equals(j, type, "string")) return harmony_string(c, schema);
    if (type && json_equals(j, type, "object")) return harmony_object(c, schema);
    const char *plain = harmony_plain(j, type);
    put_words(c->out, plain ? plain : "any");
    return MOTE_OK;
}

/* What stands after a parameter's type. */
static int harmony_default(const chat *c, uint32_t schema) {
    const json *j = &c->j;
    const uint32_t value = json_get(j, schema, "default");
    const int plain = true_member(j, schema, "enum") != 0, one_of = true_member(j, schema, "oneOf") != 0;
    if (!value) return MOTE_OK;
    put_words(c->out, one_of && !plain ? "// default: " : ", // default: ");
    return put_value(c, c->out, value, plain || one_of ? put_str : put_json);
}

static int harmony_tool(const chat *c, uint32_t tool) {
    const json *j = &c->j;
    const uint32_t parameters = json_get(j, tool, "parameters"), list = parameters ? object_member(j, parameters, "properties") : 0;
    int code = MOTE_OK;
    const uint32_t said = json_get(j, tool, "description");
    if (said && j->nodes[said].type != JSON_NULL) {            /* the template refuses a tool without one */
        put_words(c->out, "// ");
        code = put_value(c, c->out, said, put_str);
        put_words(c->out, "\n");
    }
    put_words(c->out, "type ");
    if (!code) code = put_member_text(c, c->out, tool, "name");
    put_words(c->out, list ? " = (_: {\n" : " = () => any;\n\n");
    for (uint32_t k = list + 1; list && !code && k < j->nodes[list].next; k = j->nodes[k + 1].next) {
        const uint32_t note = true_member(j, k + 1, "description");
        if (note) put_words(c->out, "// "), code = put_value(c, c->out, note, put_str), put_words(c->out, "\n");
        if (!code) code = put_value(c, c->out, k, put_str);
        harmony_optional(c, parameters, k);
        put_words(c->out, ": ");
        if (!code) code = harmony_type(c, k + 1);
        if (!code) code = harmony_default(c, k + 1);
        put_words(c->out, ",\n");
    }
    if (list) put_words(c->out, "}) => any;\n\n");
    return code;
}

static int harmony_tools(const chat *c) {
    int code = MOTE_OK;
    put_words(c->out, "# Tools\n\n## functions\n\nnamespace functions {\n\n");
    for (uint32_t k = c->tools + 1; !code && k < c->j.nodes[c->tools].next; k = c->j.nodes[k].next)
        code = harmony_tool(c, chat_function(&c->j, k));
    put_words(c->out, "} // namespace functions");
    return code;
}

/* ---- The system message ---- */

static const char harmony_browser[] =
    "## browser\n\n// Tool for browsing.\n// The `cursor` appears in brackets before each browsing display: `[{cursor}]`.\n"
    "// Cite information from the tool using the following format:\n"
    "// `\xE3\x80\x90{cursor}\xE2\x80\xA0L{line_start}(-L{line_end})?\xE3\x80\x91`, for example: "
    "`\xE3\x80\x90" "6\xE2\x80\xA0L9-L11\xE3\x80\x91` or `\xE3\x80\x90" "8\xE2\x80\xA0L3\xE3\x80\x91`.\n"
    "// Do not quote more than 10 words directly from the tool output.\n// sources=web (default: web)\nnamespace browser {\n\n"
    "// Searches for information related to `query` and displays `topn` results.\ntype search = (_: {\nquery: string,\n"
    "topn?: number, // default: 10\nsource?: string,\n}) => any;\n\n"
    "// Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, showing `num_lines` lines.\n"
    "// Valid link ids are displayed with the formatting: `\xE3\x80\x90{id}\xE2\x80\xA0.*\xE3\x80\x91`.\n"
    "// If `cursor` is not provided, the most recent page is implied.\n"
    "// If `id` is a string, it is treated as a fully qualified URL associated with `source`.\n"
    "// If `loc` is not provided, the viewport will be positioned at the beginning of the document or centered on the most relevant "
    "passage, if available.\n// Use this function without `id` to scroll to a new location of an opened page.\ntype open = (_: {\n"
    "id?: number | string, // default: -1\ncursor?: number, // default: -1\nloc?: number, // default: -1\n"
    "num_lines?: number, // default: -1\nview_source?: boolean, // default: false\nsource?: string,\n}) => any;\n\n"
    "// Finds exact matches of `pattern` in the current page, or the page given by `cursor`.\ntype find = (_: {\npattern: string,\n"
    "cursor?: number, // default: -1\n}) => any;\n\n} // namespace browser\n\n";

static const char harmony_python[] =
    "## python\n\nUse this tool to execute Python code in your chain of thought. The code will not be shown to the user. This tool "
    "should be used for internal reasoning, but not for code that is intended to be visible to the user (e.g. when creating plots, "
    "tables, or files).\n\nWhen you send a message containing Python code to python, it will be executed in a stateful Jupyter notebook "
    "environment. python will respond with the output of the execution or time out after 120.0 seconds. The drive at '/mnt/data' can be "
    "used to save and persist user files. Internet access for this session is UNKNOWN. Depends on the cluster.\n\n";

/* "builtin_tools": ["browser", "python"]; here they are told of, an application calls them. */
static void harmony_builtin(const chat *c) {
    const json *j = &c->j;
    const uint32_t list = true_member(j, 0, "builtin_tools");
    int browser = 0, python = 0;
    if (!list || j->nodes[list].type != JSON_ARRAY) return;
    for (uint32_t k = list + 1; k < j->nodes[list].next; k = j->nodes[k].next) {
        browser |= json_equals(j, k, "browser");
        python |= json_equals(j, k, "python");
    }
    put_words(c->out, "# Tools\n\n");
    if (browser) put_words(c->out, harmony_browser);
    if (python) put_words(c->out, harmony_python);
}

static int harmony_system(const chat *c) {
    static const char *const efforts[] = {"high", "medium", "low", "low"};               /* by EFFORT_...: it always thinks */
    int code = MOTE_OK;
    put_words(c->out, "<|start|>system<|message|>");
    if (json_get(&c->j, 0, "model_identity")) code = put_member_text(c, c->out, 0, "model_identity");
    else put_words(c->out, "You are ChatGPT, a large language model trained by OpenAI.");
    put_words(c->out, "\nKnowledge cutoff: 2024-06\nCurrent date: ");
    put_date(c, 1, NULL);
    put_words(c->out, "\n\nReasoning: ");
    put_words(c->out, efforts[c->effort]);
    put_words(c->out, "\n\n");
    harmony_builtin(c);
    put_words(c->out, "# Valid channels: analysis, commentary, final. Channel must be included for every message.");
    if (c->has_tools) put_words(c->out, "\nCalls to these tools must go to the commentary channel: 'functions'.");
    put_words(c->out, "<|end|>");
    return code;
}

/* The application's system message, and the tools. */
static int harmony_developer(const chat *c, const marked_text *system, slice text, int tools) {
    int code = MOTE_OK;
    if (!text.n && !tools) return MOTE_OK;
    put_words(c->out, "<|start|>developer<|message|>");
    if (text.n) put_words(c->out, "# Instructions\n\n"), put_marked(c->out, system, text), put_words(c->out, "\n\n");
    if (tools) code = harmony_tools(c);
    put_words(c->out, "<|end|>");
    return code;
}

/* ---- Messages ---- */

/* A thought of message i, under the template's name for it or that of the others. 0: none. */
static uint32_t harmony_thought(const chat *c, uint32_t i) {
    const uint32_t message = chat_message(c, i), own = json_get(&c->j, message, "thinking");
    const uint32_t other = true_member(&c->j, message, "reasoning_content");
    if (own && c->j.nodes[own].type == JSON_STRING) return own;
    return other && c->j.nodes[other].type == JSON_STRING ? other : 0;
}

/* A call, the only one of its message: see chat_history.c. Text beside it is thinking, too. shown: no final answer follows. */
static int harmony_call(chat *c, uint32_t i, uint32_t call, int shown) {
    const uint32_t thought = harmony_thought(c, i), arguments = json_get(&c->j, call, "arguments");
    slice text;
    int code = chat_content(c, i, CONTENT_MESSAGE, &text);
    if (shown && thought && c->j.nodes[thought].size && !code) {
        put_words(c->out, ANALYSIS);
        code = put_value(c, c->out, thought, put_str);
        put_words(c->out, "<|end|>");
    }
    if (shown && text.n && !code) put_words(c->out, ANALYSIS), put_marked(c->out, &c->content, text), put_words(c->out, "<|end|>");
    put_words(c->out, ASSISTANT " to=functions.");
    if (!code) code = put_member_text(c, c->out, call, "name");
    put_words(c->out, "<|channel|>commentary ");
    if (!json_get(&c->j, call, "content_type")) put_words(c->out, "json");
    else if (!code) code = put_member_text(c, c->out, call, "content_type");
    put_words(c->out, "<|message|>");
    if (!arguments) put_words(c->out, "{}");
    else if (!code) code = put_call_arguments(c, arguments);
    put_words(c->out, "<|call|>");
    return code;
}

/* An answer. What was thought is in it only where it is the last message, and no answer is to follow. */
static int harmony_answer(chat *c, uint32_t i) {
    const int last = i + 1 == c->n && !c->prompt;
    const uint32_t thought = last ? harmony_thought(c, i) : 0;
    slice text;
    int code = chat_content(c, i, CONTENT_MESSAGE, &text);
    if (thought && !code) {
        put_words(c->out, ANALYSIS);
        code = put_value(c, c->out, thought, put_str);
        put_words(c->out, "<|end|>");
    }
    put_words(c->out, FINAL);
    put_marked(c->out, &c->content, text);
    if (!last) put_words(c->out, "<|end|>");
    else if (!c->continued) put_words(c->out, "<|return|>");
    return code;
}

/* A tool's result, a text too, is JSON. name: of the call before it; 0: there is none, and the message's own counts. In a timeline that
   is the whole recipient of the call. */
static int harmony_result(chat *c, uint32_t i, uint32_t name) {
    const uint32_t message = chat_message(c, i), content = json_get(&c->j, message, "content");
    int code = MOTE_OK;
    if (!name) name = true_member(&c->j, message, "name");
    if (!name) c->at.changed |= CHANGED_RESULTS;
    put_words(c->out, !name ? "<|start|>user<|message|>Tool result:\n" : c->goes_on ? "<|start|>" : "<|start|>functions.");
    if (name) code = put_value(c, c->out, name, put_str);
    if (name) put_words(c->out, " to=assistant<|channel|>commentary<|message|>");
    if (!content) put_words(c->out, "\"\"");
    else if (!code) code = put_value(c, c->out, content, name ? put_json : put_str);
    put_words(c->out, "<|end|>");
    return code;
}

static int harmony_message(chat *c, uint32_t i) {
    const int system = chat_is_system(c, i);
    slice text;
    int code = chat_content(c, i, system ? CONTENT_SYSTEM : CONTENT_MESSAGE, &text);
    if (code) return code;
    if (system) return harmony_developer(c, &c->content, text, 0);
    put_words(c->out, "<|start|>user<|message|>");
    put_marked(c->out, &c->content, text);
    put_words(c->out, "<|end|>");
    return MOTE_OK;
}

/* The last message before `end` that is an answer without a call, and one more; 0: there is none. */
static uint32_t harmony_final(const chat *c, uint32_t end) {
    while (end > c->leading && (!chat_role(c, end - 1, "assistant") || chat_calls_of(c, end - 1))) end--;
    return end > c->leading ? end : 0;
}

/* Messages; other roles are passed over, as the template does. What was thought stays until a final answer, in a timeline until the
   question after it: so the first question after the final answer before that is where to go back to. */
static int harmony_messages(chat *c) {
    const uint32_t final = harmony_final(c, c->n), before = harmony_final(c, final == c->n ? c->n - 1 : c->n);
    uint32_t name = 0;
    int code = MOTE_OK;
    for (uint32_t i = c->leading; !code && i < c->n; i++) {
        const uint32_t calls = chat_role(c, i, "assistant") ? chat_calls_of(c, i) : 0, call = calls ? chat_function(&c->j, calls + 1) : 0;
        if (call) name = json_get(&c->j, call, "name");
        if (call) code = harmony_call(c, i, call, i >= (c->is_timeline ? before : final));
        else if (chat_role(c, i, "assistant")) name = 0, code = harmony_answer(c, i);
        else if (chat_role(c, i, "tool")) code = harmony_result(c, i, name);
        else if (chat_role(c, i, "user") || chat_is_system(c, i)) code = harmony_message(c, i);
        if (chat_role(c, i, "user") && i >= before && !c->at.asked) c->at.asked = c->out->text.size;
    }
    return code;
}

static int harmony_conversation(chat *c) {
    int code = chat_leading(c);
    if (!code) code = harmony_system(c);
    if (!code) code = harmony_developer(c, &c->system, slice_of(c->system.text.data, c->system.text.size), c->has_tools);
    return code ? code : harmony_messages(c);
}

#undef ASSISTANT
#undef ANALYSIS
#undef FINAL
