/* text/chat_history.c: a history that a template cannot say -> the nearest one that it can, which loses nothing. What a template can
   say is a line of a table; the rule is one for all of them. It knows messages, and nothing of how a family writes them.

   - Where turns alternate, neighbouring messages of a user, or texts of an assistant, are one, with a blank line between them.
   - Calls that a turn has no place for are its text, each as JSON, or, of gpt-oss, turns of their own, each with its result after it; a
     result without a place is a user's text that says so.
   - Where tools or the system text stand in a question and the history has none, an empty one comes first.
   - Arguments that are a text with an object in it are that object.
   - Results are put in the order of their calls first, while the ids are there.
   A history that can be said is not touched. */

enum { CALLS_NONE, CALLS_ONE, CALLS_EACH, CALLS_ANY };                 /* of one turn; EACH: one, others are turns of their own */
enum { RESULTS_TEXT, RESULTS_ANY, RESULTS_OF_CALLS };                  /* are a user's text; have a place; have one right after calls */
enum { HELD_NOWHERE, HELD_FIRST, HELD_ANY, HELD_UNSAID };              /* by no question, by one that comes first, by any; not told at all */

typedef struct chat_limits {
    int family;              /* the flags of one that is so, all of them; the first such line counts */
    int alternates;          /* a user's turn and an answer follow each other */
    int calls, text_too;     /* CALLS_...; a turn that calls has a text as well */
    int results;             /* RESULTS_... */
    int tools, system;       /* HELD_...: the question that holds them */
} chat_limits;

static const chat_limits limits_of_families[] = {          /* alternates, calls, text too, results, tools, system */
    {CHAT_QWEN3, 0, CALLS_ANY, 1, RESULTS_ANY, HELD_NOWHERE, HELD_NOWHERE},
    {CHAT_QWEN3_5, 0, CALLS_ANY, 1, RESULTS_ANY, HELD_NOWHERE, HELD_NOWHERE},
    {CHAT_CODER, 0, CALLS_ANY, 1, RESULTS_ANY, HELD_NOWHERE, HELD_NOWHERE},
    {CHAT_CHATML, 0, CALLS_NONE, 1, RESULTS_ANY, HELD_NOWHERE, HELD_NOWHERE},
    {CHAT_LLAMA3 | CHAT_DATED, 0, CALLS_ONE, 0, RESULTS_ANY, HELD_FIRST, HELD_NOWHERE},
    {CHAT_LLAMA3, 0, CALLS_NONE, 1, RESULTS_ANY, HELD_NOWHERE, HELD_NOWHERE},
    {CHAT_MISTRAL | CHAT_SMALL, 1, CALLS_ANY, 0, RESULTS_ANY, HELD_ANY, HELD_NOWHERE},
    {CHAT_MISTRAL | CHAT_NEMO, 1, CALLS_ANY, 0, RESULTS_ANY, HELD_ANY, HELD_ANY},
    {CHAT_MISTRAL, 1, CALLS_NONE, 1, RESULTS_TEXT, HELD_NOWHERE, HELD_ANY},
    {CHAT_HARMONY, 0, CALLS_EACH, 1, RESULTS_ANY, HELD_NOWHERE, HELD_NOWHERE},
    {CHAT_ZEPHYR, 0, CALLS_NONE, 1, RESULTS_TEXT, HELD_NOWHERE, HELD_NOWHERE},
    {CHAT_DEEPSEEK, 0, CALLS_ANY, 1, RESULTS_ANY, HELD_UNSAID, HELD_NOWHERE},
    {CHAT_LAGUNA, 0, CALLS_ANY, 1, RESULTS_ANY, HELD_NOWHERE, HELD_NOWHERE},
    {CHAT_GLM, 0, CALLS_ANY, 1, RESULTS_ANY, HELD_NOWHERE, HELD_NOWHERE},
    {CHAT_GEMMA, 0, CALLS_ANY, 0, RESULTS_OF_CALLS, HELD_NOWHERE, HELD_NOWHERE}};

static const chat_limits *chat_limits_of(int family) {
    const chat_limits *l = limits_of_families;
    while ((family & l->family) != l->family) l++;
    return l;
}

/* 1: tools can be told to the model. */
static int chat_has_tools(int family) {
    return chat_limits_of(family)->calls != CALLS_NONE;
}

/* ---- What cannot be said ---- */

static uint32_t chat_call_count(const chat *c, uint32_t i) {
    const uint32_t calls = chat_role(c, i, "assistant") ? chat_calls_of(c, i) : 0;
    return calls ? c->j.nodes[calls].size : 0;
}

/* 1: a content is a text or a list of parts, and not empty. */
static int has_content(const chat *c, uint32_t i) {
    const uint32_t node = json_get(&c->j, chat_message(c, i), "content");
    return node && (c->j.nodes[node].type == JSON_STRING || c->j.nodes[node].type == JSON_ARRAY) && c->j.nodes[node].size;
}

static int is_plain_answer(const chat *c, uint32_t i) {
    return chat_role(c, i, "assistant") && !chat_call_count(c, i);
}

/* 1: a result that the template has no place for. */
static int is_told_result(const chat *c, uint32_t i) {
    const int results = chat_limits_of(c->family)->results;
    return chat_role(c, i, "tool") && (results == RESULTS_TEXT || (results == RESULTS_OF_CALLS && !c->answering.data[i]));
}

/* 1: a message of a user's side: also a result that is told as one. */
static int is_users(const chat *c, uint32_t i) {
    return chat_role(c, i, "user") || is_told_result(c, i);
}

/* Where the run of messages that are one turn with message i ends. Of users, system messages between two of them are part of it
   where they have no turn of their own. */
static uint32_t run_end(const chat *c, uint32_t i) {
    const chat_limits *l = chat_limits_of(c->family);
    uint32_t end = i + 1, next = end;
    if (!l->alternates || i < c->leading) return end;
    if (is_plain_answer(c, i))
        while (is_plain_answer(c, end)) end++;
    while (is_users(c, i) && next < c->n && (is_users(c, next) || (l->system != HELD_NOWHERE && chat_is_system(c, next))))
        if (is_users(c, next++)) end = next;
    return end;
}

/* 1: the calls of message i are to be its text. */
static int calls_are_text(const chat *c, uint32_t i) {
    const chat_limits *l = chat_limits_of(c->family);
    const uint32_t count = chat_call_count(c, i);
    if (!count || l->calls >= CALLS_EACH) return 0;
    return l->calls == CALLS_NONE || count > 1 || (has_content(c, i) && !l->text_too);
}

/* 1: the calls of message i are to be messages of their own, each with its result after it. */
static int calls_are_apart(const chat *c, uint32_t i) {
    return chat_limits_of(c->family)->calls == CALLS_EACH && chat_call_count(c, i) > 1;
}

/* 1: no question holds the tools or the system text. */
static int lacks_question(const chat *c) {
    const chat_limits *l = chat_limits_of(c->family);
    int asked = 0, noted = 0;
    for (uint32_t i = c->leading; i < c->n; i++) {
        asked |= is_users(c, i);
        noted |= chat_is_system(c, i);
    }
    if (c->has_tools && l->tools == HELD_FIRST) return !chat_role(c, c->leading, "user");
    return (c->has_tools && l->tools == HELD_ANY && !asked) || (c->leading && l->system == HELD_ANY && !asked && !noted);
}

/* The object in a text. 1: it is one, to be freed. */
static int object_in_text(const chat *c, uint32_t node, buf *text, json *j) {
    text->size = 0;
    put_string(&c->j, node, text);
    if (text->failed || !text->size || json_parse(j, text->data, text->size, "arguments", NULL)) return 0;
    if (j->nodes[0].type == JSON_OBJECT) return 1;
    json_free(j);
    return 0;
}

/* 1: the template writes arguments that are a text as they are: of Qwen3, and of DeepSeek but for V3.1's second text. */
static int has_text_arguments(int family) {
    return family & CHAT_QWEN3 || (family & CHAT_DEEPSEEK && (family & CHAT_BARE || !(family & CHAT_QUIET)));
}

/* 1: arguments of message i are to be the object in their text. */
static int has_object_in_text(chat *c, uint32_t i) {
    const uint32_t calls = chat_role(c, i, "assistant") ? chat_calls_of(c, i) : 0;
    int found = 0;
    for (uint32_t k = calls + 1; calls && !found && !has_text_arguments(c->family) && k < c->j.nodes[calls].next; k = c->j.nodes[k].next) {
        const uint32_t arguments = json_get(&c->j, chat_function(&c->j, k), "arguments");
        json inner;
        if (!arguments || c->j.nodes[arguments].type != JSON_STRING) continue;
        found = object_in_text(c, arguments, &c->reasoning, &inner);
        if (found) json_free(&inner);
    }
    return found;
}

/* 1: the turn of the messages from i to end is to be written anew. */
static int is_anew(chat *c, uint32_t i, uint32_t end) {
    const int told_as_users = is_users(c, i) && !chat_role(c, i, "user");
    return end > i + 1 || calls_are_text(c, i) || calls_are_apart(c, i) || told_as_users || has_object_in_text(c, i);
}

/* 1: turns that have to alternate do, from message i to the next: *turn counts them. Calls and their results are passed over, and so
   are system messages, unless one stands between two questions and has a turn of its own. */
static int turns_alternate(const chat *c, uint32_t i, uint32_t next, uint32_t *turn) {
    const chat_limits *l = chat_limits_of(c->family);
    const int own = l->system == HELD_NOWHERE && *turn % 2 && next < c->n && is_users(c, next);
    if (!l->alternates) return 1;
    if (chat_is_system(c, i) && !own) return 1;
    if (l->calls != CALLS_NONE && (chat_call_count(c, i) || chat_role(c, i, "tool"))) return 1;
    const int alternates = is_users(c, i) == (*turn % 2 == 0);
    *turn = (uint32_t)is_users(c, i);
    return alternates;
}

/* What message i, whose turn ends before `end`, becomes: CHANGED_... */
static int message_changes(const chat *c, uint32_t i, uint32_t end) {
    const chat_limits *l = chat_limits_of(c->family);
    int changed = end > i + 1 ? CHANGED_JOINED : 0;
    if (calls_are_text(c, i) || calls_are_apart(c, i) || (!l->text_too && chat_call_count(c, i) && has_content(c, i))) changed |= CHANGED_CALLS;
    for (uint32_t k = i; k < end; k++) {
        if (is_told_result(c, k)) changed |= CHANGED_RESULTS;
        if (chat_is_system(c, k) && (l->system != HELD_NOWHERE || c->family & (CHAT_QWEN3_5 | CHAT_HARMONY))) changed |= CHANGED_SYSTEM;
    }
    return changed;
}

/* What of the history is to be written anew, and what an application is told of: CHANGED_... */
static int history_changes(chat *c, int *rewrites) {
    const chat_limits *l = chat_limits_of(c->family);
    const int held_last = c->family & CHAT_NEMO && (chat_role(c, c->n - 1, "user") || chat_is_system(c, c->n - 1));
    int changed = lacks_question(c) ? CHANGED_QUESTION : 0;
    *rewrites = changed;
    for (uint32_t i = c->leading, end, turn = 0; i < c->n; i = end) {
        end = run_end(c, i);
        changed |= message_changes(c, i, end);
        *rewrites |= is_anew(c, i, end);
        if (!turns_alternate(c, i, end, &turn)) changed |= CHANGED_TURNS;
    }
    if (c->leading && l->system == HELD_ANY && !held_last) changed |= CHANGED_SYSTEM;
    if (c->has_tools && (l->calls == CALLS_NONE || l->tools == HELD_UNSAID)) changed |= CHANGED_TOOLS;
    return changed;
}

/* ---- Writing it anew ---- */

static void put_comma(buf *out) {
    if (out->size && out->data[out->size - 1] != '[' && out->data[out->size - 1] != '{') buf_text(out, ", ");
}

/* Before a part of a content. *first: of its message, which a blank line parts from the one before. */
static void part_begins(buf *out, int *first) {
    const int follows = *first && out->size && out->data[out->size - 1] != '[';
    put_comma(out);
    if (follows) buf_text(out, "{\"type\": \"text\", \"text\": \"\\n\\n\"}, ");
    *first = 0;
}

/* A part, unless it is empty. */
static void put_text_part(buf *out, slice text, int *first) {
    if (!text.n) return;
    part_begins(out, first);
    buf_text(out, "{\"type\": \"text\", \"text\": ");
    put_quoted(text, out);
    buf_text(out, "}");
}

/* A content that is a text, a list of parts, nothing, or, of a tool's result, any JSON. words: what comes first. */
static int put_content_parts(chat *c, buf *out, const char *words, uint32_t content, int *first) {
    const json *j = &c->j;
    const uint32_t type = content ? j->nodes[content].type : (uint32_t)JSON_NULL;
    int code = MOTE_OK;
    c->reasoning.size = 0;
    buf_text(&c->reasoning, words);
    if (type == JSON_STRING) put_string(j, content, &c->reasoning);
    else if (type != JSON_NULL && type != JSON_ARRAY) code = put_json(j, content, &c->reasoning, c->err);
    put_text_part(out, slice_of(c->reasoning.data, c->reasoning.size), first);
    for (uint32_t k = content + 1; !code && type == JSON_ARRAY && k < j->nodes[content].next; k = j->nodes[k].next) {
        part_begins(out, first);
        code = put_json(j, k, out, c->err);
    }
    return code;
}

/* {"name": "f", "arguments": {"x": 1}}, with the family's own word for arguments. What is no object stands as it was written. */
static int put_call_json(chat *c, uint32_t call, buf *out) {
    const json *j = &c->j;
    const uint32_t name = json_get(j, call, "name"), arguments = json_get(j, call, "arguments");
    int code = MOTE_OK;
    if (!name || j->nodes[name].type != JSON_STRING) return fail(c->err, MOTE_EINVAL, "a tool call's \"name\" must be text");
    buf_text(out, "{\"name\": ");
    put_json_string(j, name, out);
    buf_text(out, ", ");
    buf_text(out, *c->marks->call_argument ? c->marks->call_argument : "\"arguments");
    buf_text(out, "\": ");
    if (arguments && j->nodes[arguments].size) code = (j->nodes[arguments].type == JSON_STRING ? put_str : put_json)(j, arguments, out, c->err);
    else buf_text(out, "{}");
    buf_text(out, "}");
    return code;
}

/* The calls of message i as a part of its content. */
static int put_calls_part(chat *c, buf *out, uint32_t i, int *first) {
    const uint32_t calls = chat_calls_of(c, i);
    int code = MOTE_OK;
    c->reasoning.size = 0;
    for (uint32_t k = calls + 1; !code && k < c->j.nodes[calls].next; k = c->j.nodes[k].next) {
        if (k > calls + 1) buf_text(&c->reasoning, "; ");
        code = put_call_json(c, chat_function(&c->j, k), &c->reasoning);
    }
    *first = 1;
    if (!code) put_text_part(out, slice_of(c->reasoning.data, c->reasoning.size), first);
    return code;
}

/* A call whose arguments are an object, where their text holds one. */
static int put_call_anew(chat *c, buf *out, uint32_t item) {
    const json *j = &c->j;
    const uint32_t call = chat_function(j, item), id = json_get(j, item, "id");
    int code = MOTE_OK;
    buf_text(out, "{\"function\": {");
    for (uint32_t m = call + 1; !code && j->nodes[call].type == JSON_OBJECT && m < j->nodes[call].next; m = j->nodes[m + 1].next) {
        json inner;
        const int text = json_equals(j, m, "arguments") && j->nodes[m + 1].type == JSON_STRING;
        put_comma(out);
        put_json_string(j, m, out);
        buf_text(out, ": ");
        if (text && object_in_text(c, m + 1, &c->reasoning, &inner)) {
            code = put_json(&inner, 0, out, c->err);
            json_free(&inner);
        } else {
            code = put_json(j, m + 1, out, c->err);
        }
    }
    buf_text(out, "}");
    if (id && !code) buf_text(out, ", \"id\": "), code = put_json(j, id, out, c->err);
    buf_text(out, "}");
    return code;
}

/* A list of calls, or of one of them. one: 0: all. */
static int put_calls_anew(chat *c, buf *out, uint32_t calls, uint32_t one) {
    const json *j = &c->j;
    const uint32_t end = j->nodes[one ? one : calls].next;
    int code = MOTE_OK;
    buf_text(out, "[");
    for (uint32_t k = one ? one : calls + 1; !code && k < end; k = j->nodes[k].next) {
        put_comma(out);
        code = put_call_anew(c, out, k);
    }
    buf_text(out, "]");
    return code;
}

/* The calls of message i but the first, each in a message of its own, and each with the results that follow the message from *next on and
   are its own by their ids, or have none. */
static int put_calls_apart(chat *c, buf *out, uint32_t i, uint32_t *next) {
    const json *j = &c->j;
    const uint32_t calls = chat_calls_of(c, i), end = j->nodes[calls].next;
    int code = MOTE_OK;
    for (uint32_t k = calls + 1; !code && k < end; k = j->nodes[k].next) {
        const uint32_t id = json_get(j, k, "id");
        if (k > calls + 1) {
            buf_text(out, ", {\"role\": \"assistant\", \"tool_calls\": ");
            code = put_calls_anew(c, out, calls, k);
            buf_text(out, "}");
        }
        for (; !code && chat_role(c, *next, "tool"); ++*next) {
            const uint32_t of = json_get(j, chat_message(c, *next), "tool_call_id");
            if (of && j->nodes[k].next < end && !(id && strings_equal(j, of, id))) break;
            put_comma(out);
            code = put_json(j, chat_message(c, *next), out, c->err);
            if (!of && j->nodes[k].next < end) {
                ++*next;
                break;
            }
        }
    }
    return code;
}

/* The messages from i to end as one. */
static int put_run(chat *c, buf *out, uint32_t i, uint32_t end) {
    const json *j = &c->j;
    const uint32_t message = chat_message(c, i), calls = chat_role(c, i, "assistant") ? chat_calls_of(c, i) : 0;
    const int text = calls_are_text(c, i), users = is_users(c, i);
    int code = MOTE_OK, first = 1;
    put_comma(out);
    buf_text(out, "{\"role\": ");
    if (users) buf_text(out, "\"user\"");
    else code = put_json(j, json_get(j, message, "role"), out, c->err);
    for (uint32_t k = message + 1; !code && !users && k < j->nodes[message].next; k = j->nodes[k + 1].next) {
        if (json_equals(j, k, "role") || json_equals(j, k, "content") || json_equals(j, k, "tool_calls")) continue;
        buf_text(out, ", ");
        put_json_string(j, k, out);
        buf_text(out, ": ");
        code = put_json(j, k + 1, out, c->err);
    }
    if (calls && !text && !code) {
        buf_text(out, ", \"tool_calls\": ");
        code = put_calls_anew(c, out, calls, calls_are_apart(c, i) ? calls + 1 : 0);
    }
    buf_text(out, ", \"content\": [");
    for (uint32_t k = i; !code && k < end; k++, first = 1) {
        const uint32_t content = json_get(j, chat_message(c, k), "content");
        const char *words = !users ? "" : chat_role(c, k, "tool") ? "Tool result:\n" : chat_is_system(c, k) ? noted_system : "";
        code = put_content_parts(c, out, words, content, &first);
    }
    if (text && !code) code = put_calls_part(c, out, i, &first);
    buf_text(out, "]}");
    return code;
}

/* The whole request anew, into out. */
static int put_history(chat *c, buf *out) {
    const json *j = &c->j;
    int code = MOTE_OK, lacks = lacks_question(c);
    buf_text(out, "{\"messages\": [");
    for (uint32_t i = 0, end; !code && i < c->n; i = end) {
        end = run_end(c, i);
        if (i == c->leading && lacks) put_comma(out), buf_text(out, "{\"role\": \"user\", \"content\": \"\"}");
        if (is_anew(c, i, end)) code = put_run(c, out, i, end);
        else put_comma(out), code = put_json(j, chat_message(c, i), out, c->err);
        if (!code && calls_are_apart(c, i)) code = put_calls_apart(c, out, i, &end);
    }
    if (c->leading == c->n && lacks) put_comma(out), buf_text(out, "{\"role\": \"user\", \"content\": \"\"}");
    buf_text(out, "]");
    for (uint32_t k = 1; !code && k < j->nodes[0].next; k = j->nodes[k + 1].next) {
        if (json_equals(j, k, "messages")) continue;
        put_comma(out);
        put_json_string(j, k, out);
        buf_text(out, ": ");
        code = put_json(j, k + 1, out, c->err);
    }
    buf_text(out, "}");
    return code ? code : out->failed || c->reasoning.failed ? fail_memory(c->err) : MOTE_OK;
}
