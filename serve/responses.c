/* serve/responses.c: POST /v1/responses, as OpenAI's newer clients speak it, without a memory: the whole conversation comes
   with each request. */

/* ---- What is asked ------------------------------------------------------------------------------------------------ */

/* An answer of the past, put together of the several items in which it comes. */
typedef struct past_answer { buf text, thought, calls; int is_open; } past_answer;

static void past_close(request *x, past_answer *p) {
    if (p->is_open) ask_assistant(x, &p->text, &p->thought, &p->calls);
    p->is_open = 0;
    p->text.size = p->thought.size = p->calls.size = 0;
}

/* {"type": "reasoning", "content": [{"text": ...}], "summary": [...]}: what was thought, if the client kept it. */
static void responses_reasoning(request *x, past_answer *p, const fields *item) {
    uint32_t list = field_of(item, "content", JSON_ARRAY);
    for (uint32_t k = list + 1; list && k < node_next(item, list); k = node_next(item, k)) {
        fields part = {x->q.j, k, x->q.f};
        uint32_t text = field(&part, "text");
        if (text && node_type(item, text) == JSON_STRING) put_inside(&p->thought, x->q.j, text);
    }
    p->is_open = 1;
}

static void responses_message(request *x, past_answer *p, const fields *item, const char *where) {
    uint32_t content = field(item, "content");
    if (field_is(item, "role", "assistant")) {
        put_content(x, &p->text, content, CONTENT_SAID, where);
        p->is_open = 1;
        return;
    }
    past_close(x, p);
    if (field_is(item, "role", "user")) ask_user(x, content, 0, where);
    else if (field_is(item, "role", "system") || field_is(item, "role", "developer")) ask_system(x, content, where);
    else refuse(x->q.f, 400, where, "%s: the role must be system, developer, user or assistant", where);
}

/* Calls that OpenAI's own servers carried out, or that are of no use without what they keep: they are passed over. */
static int is_hosted_item(const fields *item) {
    static const char *const hosted[] = {
        "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call", "computer_call_output",
        "tool_search_call", "tool_search_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "ghost_snapshot"};
    for (size_t i = 0; i < sizeof hosted / sizeof hosted[0]; i++)
        if (field_is(item, "type", hosted[i])) return 1;
    return 0;
}

/* A call of the past of any kind that a client carries out. 0: the item is none. */
static int responses_call(request *x, past_answer *p, const fields *item, const char *where) {
    past_call c = {.id = field(item, "call_id"), .space = field_of(item, "namespace", JSON_STRING), .name = field(item, "name")};
    if (field_is(item, "type", "function_call")) c.arguments = field(item, "arguments");
    else if (field_is(item, "type", "custom_tool_call")) c.input = field_of(item, "input", JSON_STRING);
    else if (field_is(item, "type", "local_shell_call")) c.says = "local_shell", c.arguments = field(item, "action");
    else if (field_is(item, "type", "shell_call")) c.says = "shell", c.arguments = field(item, "action");
    else if (field_is(item, "type", "apply_patch_call")) c.says = "apply_patch", c.arguments = field(item, "operation");
    else if (field_is(item, "type", "mcp_call")) c.id = field(item, "id"), c.arguments = field(item, "arguments");
    else return 0;
    ask_call(x, &p->calls, &c, where);
    p->is_open = 1;
    if (!field_is(item, "type", "mcp_call")) return 1;
    past_close(x, p);
    ask_result(x, c.id, field(item, field(item, "output") ? "output" : "error"), 0, where);
    return 1;
}

/* "function_call_output" and its like. */
static int is_output(const fields *item) {
    static const char *const outputs[] = {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output",
                                          "apply_patch_call_output"};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
        if (field_is(item, "type", outputs[i])) return 1;
    return 0;
}

static void responses_item(request *x, past_answer *p, uint32_t node, const char *where) {
    fields item = {x->q.j, node, x->q.f};
    if (node_type(&item, node) != JSON_OBJECT) {
        refuse(x->q.f, 400, where, "%s is no object", where);
    } else if (is_output(&item)) {
        past_close(x, p);
        ask_result(x, field(&item, "call_id"), field(&item, "output"), 0, where);
    } else if (field_is(&item, "type", "reasoning")) {
        responses_reasoning(x, p, &item);
    } else if (field_is(&item, "type", "message") || (!field(&item, "type") && field(&item, "role"))) {
        responses_message(x, p, &item, where);
    } else if (!is_hosted_item(&item) && !responses_call(x, p, &item, where)) {
        char *type = field(&item, "type") ? node_text(x->q.j, field(&item, "type")) : NULL;
        refuse(x->q.f, 400, where, "%s is of type \"%.40s\", which is not supported", where, type ? type : "");
        free(type);
    }
}

static void responses_input(request *x) {
    const fields *q = &x->q;
    uint32_t input = field(q, "input"), instructions = field_of(q, "instructions", JSON_STRING);
    past_answer p;
    memset(&p, 0, sizeof p);
    if (instructions) ask_system(x, instructions, "instructions");
    if (input && node_type(q, input) == JSON_STRING) {
        ask_user(x, input, 0, "input");
    } else if (input && node_type(q, input) == JSON_ARRAY) {
        for (uint32_t k = input + 1, i = 0; k < node_next(q, input) && !q->f->status; k = node_next(q, k), i++) {
            char where[32];
            snprintf(where, sizeof where, "input[%u]", i);
            responses_item(x, &p, k, where);
        }
        past_close(x, &p);
    } else {
        refuse(q->f, 400, "input", "input must be a text or a list of items");
    }
    buf_free(&p.text);
    buf_free(&p.thought);
    buf_free(&p.calls);
}

/* A function, a custom tool, or a namespace of these; the others are OpenAI's own. space: the namespace's name; 0: none. */
static void responses_tool_in(request *x, uint32_t node, uint32_t space) {
    const fields *q = &x->q;
    fields tool = {q->j, node, q->f};
    tool_fields t = {.space = space, .name = field(&tool, "name"), .description = field(&tool, "description")};
    t.is_custom = field_is(&tool, "type", "custom");
    t.strict = field(&tool, "strict");
    if (field_is(&tool, "type", "function")) t.schema = field_of(&tool, "parameters", JSON_OBJECT);
    if (t.is_custom) t.format = field_of(&tool, "format", JSON_OBJECT);
    if (t.is_custom || field_is(&tool, "type", "function")) {
        ask_tool(x, &t);
    } else if (field_is(&tool, "type", "namespace") && !space) {
        uint32_t name = field_of(&tool, "name", JSON_STRING), inner = field_of(&tool, "tools", JSON_ARRAY);
        if (!name || !inner) refuse(q->f, 400, "tools", "a namespace must have a name and a list of tools");
        for (uint32_t k = inner + 1; name && inner && !q->f->status && k < node_next(q, inner); k = node_next(q, k))
            responses_tool_in(x, k, name);
    } else {
        note_hosted(x, &tool);
    }
}

static void responses_tool(request *x, uint32_t node) {
    responses_tool_in(x, node, 0);
}

/* "include", further contents of the answer: log-probabilities are refused, results of hosted tools are none. */
static void responses_include(request *x) {
    const fields *q = &x->q;
    uint32_t list = field_of(q, "include", JSON_ARRAY);
    for (uint32_t k = list + 1; list && k < node_next(q, list); k = node_next(q, k))
        if (json_equals(q->j, k, "message.output_text.logprobs"))
            refuse(q->f, 400, "include", "include: message.output_text.logprobs is not supported");
}

static void responses_request(reply *r) {
    request *x = &r->request;
    const fields *q = &x->q;
    x->list = "input";
    ask_common(x, API_RESPONSES, "stop");
    field_whole(q, "max_output_tokens", 0, INT_MAX, &r->a.max_tokens);
    field_flag(q, "stream", &r->streams);
    fields reasoning = {q->j, field_of(q, "reasoning", JSON_OBJECT), q->f}, text = {q->j, field_of(q, "text", JSON_OBJECT), q->f};
    ask_thinking(x);
    if (reasoning.object) ask_effort(x, &reasoning, "effort");
    if (text.object) ask_format(x, field_of(&text, "format", JSON_OBJECT), "text.format");
    uint32_t verbosity = text.object ? field(&text, "verbosity") : 0;
    if (verbosity && field_asks(q, verbosity, "medium")) note(&x->noted, "text.verbosity", strlen("text.verbosity"));
    responses_include(x);
    responses_input(x);
    openai_tools(x, responses_tool);
    ask_render(x);
}

/* ---- What is answered --------------------------------------------------------------------------------------------- */

static const char *response_status(const reply *r) {
    return r->f.status ? "failed" : answer_is_cut(&r->a) ? "incomplete" : "completed";
}

/* , "key": what was asked */
static void put_asked(buf *out, const reply *r, const char *key, const char *otherwise) {
    uint32_t node = field(&r->request.q, key);
    putf(out, ", \"%s\": ", key);
    if (node) put_node(out, r->request.q.j, node);
    else buf_text(out, otherwise);
}

static void put_response(buf *out, const reply *r, const char *status) {
    static const struct { const char *key, *otherwise; } asked[] = {
        {"instructions", "null"}, {"max_output_tokens", "null"}, {"max_tool_calls", "null"}, {"metadata", "{}"},
        {"parallel_tool_calls", "true"}, {"reasoning", "null"}, {"text", "{\"format\": {\"type\": \"text\"}}"},
        {"tool_choice", "\"auto\""}, {"tools", "[]"}, {"truncation", "\"disabled\""}};
    const answer *a = &r->a;
    int over = strcmp(status, "in_progress") != 0;
    putf(out, "{\"id\": \"%s\", \"object\": \"response\", \"created_at\": %ld, ", r->id, r->created);
    putf(out, "\"status\": \"%s\", \"background\": false, \"error\": ", status);
    if (!strcmp(status, "failed")) {
        buf_text(out, "{\"code\": ");
        put_text(out, r->f.code ? r->f.code : "server_error");
        buf_text(out, ", \"message\": ");
        put_text(out, r->f.message);
        buf_text(out, "}");
    } else {
        buf_text(out, "null");
    }
    putf(out, ", \"incomplete_details\": %s, \"previous_response_id\": null, \"store\": false, \"model\": ",
         strcmp(status, "incomplete") ? "null" : "{\"reason\": \"max_output_tokens\"}");
    put_text(out, a->server->name);
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) put_asked(out, r, asked[i].key, asked[i].otherwise);
    buf_text(out, ", \"output\": [");
    if (over) buf_add(out, r->items.data, r->items.size);
    putf(out, "], \"temperature\": %.4g, \"top_p\": %.4g", (double)a->sampling.temperature,
         a->sampling.top_p > 0 ? (double)a->sampling.top_p : 1.0);
    if (over)
        putf(out, ", \"usage\": {\"input_tokens\": %zu, \"input_tokens_details\": {\"cached_tokens\": %zu}, "
                  "\"output_tokens\": %d, "
                  "\"output_tokens_details\": {\"reasoning_tokens\": %d}, \"total_tokens\": %zu}", a->prompt_count, a->cached,
             a->result.generated_tokens, a->result.thinking_tokens, a->prompt_count + (size_t)a->result.generated_tokens);
    buf_text(out, "}");
}

static void response_event(reply *r, const char *name) {
    putf(&r->event, "event: %s\ndata: {\"type\": \"%s\", \"sequence_number\": %d", name, name, r->sequence++);
}

static void response_event_end(reply *r) {
    buf_text(&r->event, "}\n\n");
    reply_event(r);
}

static void response_state(reply *r, const char *name, const char *status) {
    response_event(r, name);
    buf_text(&r->event, ", \"response\": ");
    put_response(&r->event, r, status);
    response_event_end(r);
}

static void response_begin(reply *r) {
    if (r->opened) return;
    r->opened = 1;
    response_state(r, "response.created", "in_progress");
    response_state(r, "response.in_progress", "in_progress");
}

/* The custom tool that the open part is a call of; NULL: it is of no custom one. */
static const known_tool *custom_of(const reply *r) {
    const known_tool *tool = r->part == PART_CALL ? find_tool(&r->request, r->part_call->name) : NULL;
    return tool && tool->is_custom ? tool : NULL;
}

static void put_item_id(buf *out, const reply *r) {
    static const char *const prefixes[] = {"", "rs", "msg", "fc"};
    putf(out, "%s_%s_%d", custom_of(r) ? "ctc" : prefixes[r->part], r->id + 5, r->parts);
}

/* The arguments of a call, as JSON text. */
static void put_call_text(buf *out, const reply *r) {
    if (custom_of(r)) put_custom_input(out, r->part_call);
    else put_text(out, r->part_call->arguments);
}

/* The part of an item that holds the text so far. */
static void put_item_text(buf *out, const reply *r) {
    buf_text(out, r->part == PART_THINKING ? "{\"type\": \"reasoning_text\", \"text\": "
                                           : "{\"type\": \"output_text\", \"annotations\": [], \"text\": ");
    put_quoted(out, r->part_text.data, r->part_text.size);
    buf_text(out, "}");
}

/* , "call_id": ..., "name": ... of a call: with its namespace, as the client knows it. */
static void put_call_item(buf *out, const reply *r, int over) {
    const known_tool *tool = find_tool(&r->request, r->part_call->name);
    putf(out, ", \"call_id\": \"call_%s_%d\", \"name\": ", r->id + 5, r->parts);
    put_text(out, tool ? tool->own : r->part_call->name);
    if (tool && tool->space) buf_text(out, ", \"namespace\": "), put_text(out, tool->space);
    buf_text(out, tool && tool->is_custom ? ", \"input\": " : ", \"arguments\": ");
    if (over) put_call_text(out, r);
    else buf_text(out, "\"\"");
}

/* The open item, as it is at its beginning and when it is over. */
static void put_item(buf *out, const reply *r, int over) {
    static const char *const types[] = {"", "reasoning", "message", "function_call"};
    putf(out, "{\"type\": \"%s\", \"id\": \"", custom_of(r) ? "custom_tool_call" : types[r->part]);
    put_item_id(out, r);
    putf(out, "\", \"status\": \"%s\"", over ? response_status(r) : "in_progress");
    if (r->part == PART_CALL) {
        put_call_item(out, r, over);
    } else {
        buf_text(out, r->part == PART_TEXT ? ", \"role\": \"assistant\", \"content\": [" : ", \"summary\": [], \"content\": [");
        if (over) put_item_text(out, r);
        buf_text(out, "]");
    }
    buf_text(out, "}");
}

/* , "item_id": ..., "output_index": ..., "content_index": 0 */
static void response_place(reply *r) {
    buf_text(&r->event, ", \"item_id\": \"");
    put_item_id(&r->event, r);
    putf(&r->event, "\", \"output_index\": %d", r->parts);
    if (r->part != PART_CALL) buf_text(&r->event, ", \"content_index\": 0");
}

static void response_part(reply *r, const char *name) {
    response_event(r, name);
    response_place(r);
    buf_text(&r->event, ", \"part\": ");
    put_item_text(&r->event, r);
    response_event_end(r);
}

static void response_item(reply *r, const char *name, int over) {
    response_event(r, name);
    putf(&r->event, ", \"output_index\": %d, \"item\": ", r->parts);
    put_item(&r->event, r, over);
    response_event_end(r);
}

static void response_part_open(reply *r) {
    if (!r->streams) return;
    response_begin(r);
    response_item(r, "response.output_item.added", 0);
    if (r->part == PART_TEXT) response_part(r, "response.content_part.added");
}

static void response_part_add(reply *r, const char *text, size_t n) {
    static const char *const names[] = {"", "response.reasoning_text.delta", "response.output_text.delta",
                                        "response.function_call_arguments.delta"};
    if (!r->streams) return;
    response_event(r, custom_of(r) ? "response.custom_tool_call_input.delta" : names[r->part]);
    response_place(r);
    if (r->part == PART_TEXT) buf_text(&r->event, ", \"logprobs\": []");
    buf_text(&r->event, ", \"delta\": ");
    if (r->part == PART_CALL) put_call_text(&r->event, r);
    else put_quoted(&r->event, text, n);
    response_event_end(r);
}

static void response_part_close(reply *r) {
    static const char *const names[] = {"", "response.reasoning_text.done", "response.output_text.done",
                                        "response.function_call_arguments.done"};
    put_next(&r->items);
    put_item(&r->items, r, 1);
    if (!r->streams) return;
    response_event(r, custom_of(r) ? "response.custom_tool_call_input.done" : names[r->part]);
    response_place(r);
    if (r->part == PART_TEXT) buf_text(&r->event, ", \"logprobs\": []");
    if (r->part == PART_CALL) {
        const known_tool *tool = find_tool(&r->request, r->part_call->name);
        buf_text(&r->event, ", \"name\": ");
        put_text(&r->event, tool ? tool->own : r->part_call->name);
        buf_text(&r->event, custom_of(r) ? ", \"input\": " : ", \"arguments\": ");
        put_call_text(&r->event, r);
    } else {
        buf_text(&r->event, ", \"text\": ");
        put_quoted(&r->event, r->part_text.data, r->part_text.size);
    }
    response_event_end(r);
    if (r->part == PART_TEXT) response_part(r, "response.content_part.done");
    response_item(r, "response.output_item.done", 1);
}

/* There is no event for it but one that says that nothing has changed.
   Clients give up after a time without an event, so it is one, though it says nothing new. */
static void response_progress(answer *a, int what) {
    reply *r = (reply *)a->user;
    response_begin(r);
    if (what != PROGRESS_TICK) return;
    put_comment(&r->event, a);
    response_state(r, "response.in_progress", "in_progress");
}

static void response_last(reply *r) {
    const char *status = response_status(r);
    if (r->streams) response_begin(r);
    part_close(r);
    if (r->items.failed || r->part_text.failed) {
        refuse(&r->f, 503, NULL, "out of memory");
    } else if (r->streams) {
        response_state(r, strcmp(status, "incomplete") ? "response.completed" : "response.incomplete", status);
        connection_end(r->c);
    } else {
        put_response(&r->event, r, status);
        reply_whole(r, 0);
    }
}

static void response_failure_event(reply *r) {
    response_begin(r);
    response_state(r, "response.failed", "failed");
}

static void serve_responses(server *s, connection *c, const json *j) {
    static const part_writer writer = {response_part_open, response_part_add, response_part_close};
    reply r;
    reply_open(&r, s, c, j, "resp_");
    r.a.event = part_event;
    r.writer = &writer;
    responses_request(&r);
    r.streams_overflow = r.streams;        /* as its clients expect it, which make the conversation shorter then */
    if (r.streams) r.a.progress = response_progress;
    reply_run(&r, response_last, response_failure_event);
}
