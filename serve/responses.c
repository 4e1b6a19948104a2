// serve/responses.c: POST /v1/responses, as OpenAI's newer clients speak it, without a memory: the whole conversation comes
// with each request.

// ---- What is asked ---------------------------------------------------------------------------------------------------

// What an answer of the past consists of is in several items: they are put together.
typedef struct past_answer { buf text, thought, calls; int is_open; } past_answer;

static void past_close(request *x, past_answer *p) {
    if (p->is_open) ask_assistant(x, &p->text, &p->thought, &p->calls);
    p->is_open = 0;
    p->text.size = p->thought.size = p->calls.size = 0;
}

// {"type": "reasoning", "content": [{"text": ...}], "summary": [...]}: what was thought, if the client kept it.
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
        put_content(x, &p->text, content, where);
        p->is_open = 1;
        return;
    }
    past_close(x, p);
    if (field_is(item, "role", "user")) ask_message(x, "user", content, where);
    else if (field_is(item, "role", "system") || field_is(item, "role", "developer")) ask_system(x, content, where);
    else refuse(x->q.f, 400, where, "%s: the role must be system, developer, user or assistant", where);
}

static void responses_item(request *x, past_answer *p, uint32_t node, const char *where) {
    fields item = {x->q.j, node, x->q.f};
    if (node_type(&item, node) != JSON_OBJECT) {
        refuse(x->q.f, 400, where, "%s is no object", where);
    } else if (field_is(&item, "type", "function_call")) {
        ask_call(x, &p->calls, field(&item, "name"), field(&item, "arguments"), where);
        p->is_open = 1;
    } else if (field_is(&item, "type", "function_call_output")) {
        past_close(x, p);
        ask_message(x, "tool", field(&item, "output"), where);
    } else if (field_is(&item, "type", "reasoning")) {
        responses_reasoning(x, p, &item);
    } else if (field_is(&item, "type", "message") || (!field(&item, "type") && field(&item, "role"))) {
        responses_message(x, p, &item, where);
    } else {
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
        ask_message(x, "user", input, "input");
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

// Functions; tools that OpenAI's own servers run are passed over.
static void responses_tools(request *x) {
    const fields *q = &x->q;
    uint32_t tools = field_of(q, "tools", JSON_ARRAY), choice = field(q, "tool_choice");
    if (choice && json_equals(q->j, choice, "none")) return;
    for (uint32_t k = tools + 1; tools && !q->f->status && k < node_next(q, tools); k = node_next(q, k)) {
        fields tool = {q->j, k, q->f};
        if (field_is(&tool, "type", "function"))
            ask_tool(x, field(&tool, "name"), field(&tool, "description"), field_of(&tool, "parameters", JSON_OBJECT));
    }
    if (!choice || json_equals(q->j, choice, "auto")) return;
    fields c = {q->j, choice, q->f};
    uint32_t name = node_type(q, choice) == JSON_OBJECT ? field_of(&c, "name", JSON_STRING) : 0;
    if (!x->tools.size) refuse(q->f, 400, "tool_choice", "tool_choice without tools");
    else if (name || json_equals(q->j, choice, "required")) ask_forced(x, name);
    else refuse(q->f, 400, "tool_choice", "tool_choice must be none, auto, required or a function");
}

static void responses_request(reply *r) {
    request *x = &r->request;
    const fields *q = &x->q;
    field_unsupported(q, "previous_response_id");
    field_unsupported(q, "conversation");
    field_unsupported(q, "background");
    ask_common(&r->a, q, "stop");
    field_whole(q, "max_output_tokens", 1, INT_MAX, &r->a.max_tokens);
    field_flag(q, "stream", &r->streams);
    fields reasoning = {q->j, field_of(q, "reasoning", JSON_OBJECT), q->f};
    if (reasoning.object && field_is(&reasoning, "effort", "none")) x->thinks = MOTE_THINK_OFF;
    responses_input(x);
    responses_tools(x);
    fields text = {q->j, field_of(q, "text", JSON_OBJECT), q->f};
    if (text.object) ask_format(x, field_of(&text, "format", JSON_OBJECT), "text.format");
    ask_render(x);
}

// ---- What is answered ------------------------------------------------------------------------------------------------

static const char *response_status(const reply *r) {
    int is_cut = r->a.result.stop == MOTE_STOP_LENGTH || r->a.result.stop == MOTE_STOP_CONTEXT;
    return r->f.status ? "failed" : is_cut ? "incomplete" : "completed";
}

static void put_response(buf *out, const reply *r, const char *status) {
    const answer *a = &r->a;
    int over = strcmp(status, "in_progress") != 0;
    putf(out, "{\"id\": \"%s\", \"object\": \"response\", \"created_at\": %ld, ", r->id, r->created);
    putf(out, "\"status\": \"%s\", \"error\": ", status);
    if (r->f.status) {
        buf_text(out, "{\"code\": \"server_error\", \"message\": ");
        put_text(out, r->f.message);
        buf_text(out, "}");
    } else {
        buf_text(out, "null");
    }
    putf(out, ", \"incomplete_details\": %s, \"instructions\": null, \"metadata\": {}, \"model\": ",
         strcmp(status, "incomplete") ? "null" : "{\"reason\": \"max_output_tokens\"}");
    put_text(out, a->server->name);
    buf_text(out, ", \"output\": [");
    if (over) buf_add(out, r->items.data, r->items.size);
    putf(out, "], \"parallel_tool_calls\": true, \"temperature\": %.4g, \"tool_choice\": \"auto\", \"tools\": [], "
              "\"top_p\": %.4g",
         (double)a->sampling.temperature, a->sampling.top_p > 0 ? (double)a->sampling.top_p : 1.0);
    if (over)
        putf(out, ", \"usage\": {\"input_tokens\": %zu, \"input_tokens_details\": {\"cached_tokens\": %zu}, "
                  "\"output_tokens\": %d, "
                  "\"output_tokens_details\": {\"reasoning_tokens\": %d}, \"total_tokens\": %zu}", a->prompt_count, a->cached,
             a->result.generated_tokens, r->thinking_tokens, a->prompt_count + (size_t)a->result.generated_tokens);
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
    response_state(r, "response.created", "in_progress");
    response_state(r, "response.in_progress", "in_progress");
}

static void put_item_id(buf *out, const reply *r) {
    static const char *const prefixes[] = {"", "rs", "msg", "fc"};
    putf(out, "%s_%s_%d", prefixes[r->part], r->id + 5, r->parts);
}

// The part of an item that holds the text so far.
static void put_item_text(buf *out, const reply *r) {
    buf_text(out, r->part == PART_THINKING ? "{\"type\": \"reasoning_text\", \"text\": "
                                           : "{\"type\": \"output_text\", \"annotations\": [], \"text\": ");
    put_quoted(out, r->part_text.data, r->part_text.size);
    buf_text(out, "}");
}

// The open item, as it is at its beginning and when it is over.
static void put_item(buf *out, const reply *r, int over) {
    static const char *const types[] = {"", "reasoning", "message", "function_call"};
    putf(out, "{\"type\": \"%s\", \"id\": \"", types[r->part]);
    put_item_id(out, r);
    putf(out, "\", \"status\": \"%s\"", over ? "completed" : "in_progress");
    if (r->part == PART_CALL) {
        putf(out, ", \"call_id\": \"call_%s_%d\", \"name\": \"", r->id + 5, r->parts);
        buf_text(out, r->part_call->name);
        buf_text(out, "\", \"arguments\": ");
        put_text(out, over ? r->part_call->arguments : "");
    } else {
        buf_text(out, r->part == PART_TEXT ? ", \"role\": \"assistant\", \"content\": [" : ", \"summary\": [], \"content\": [");
        if (over) put_item_text(out, r);
        buf_text(out, "]");
    }
    buf_text(out, "}");
}

// , "item_id": ..., "output_index": ..., "content_index": 0
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
    if (!r->begun) response_begin(r);
    response_item(r, "response.output_item.added", 0);
    if (r->part == PART_TEXT) response_part(r, "response.content_part.added");
}

static void response_part_add(reply *r, const char *text, size_t n) {
    static const char *const names[] = {"", "response.reasoning_text.delta", "response.output_text.delta",
                                        "response.function_call_arguments.delta"};
    if (!r->streams) return;
    response_event(r, names[r->part]);
    response_place(r);
    if (r->part == PART_TEXT) buf_text(&r->event, ", \"logprobs\": []");
    buf_text(&r->event, ", \"delta\": ");
    put_quoted(&r->event, text, n);
    response_event_end(r);
}

static void response_part_close(reply *r) {
    static const char *const names[] = {"", "response.reasoning_text.done", "response.output_text.done",
                                        "response.function_call_arguments.done"};
    put_next(&r->items);
    put_item(&r->items, r, 1);
    if (!r->streams) return;
    response_event(r, names[r->part]);
    response_place(r);
    if (r->part == PART_TEXT) buf_text(&r->event, ", \"logprobs\": []");
    if (r->part == PART_CALL) {
        buf_text(&r->event, ", \"name\": \"");
        buf_text(&r->event, r->part_call->name);
        buf_text(&r->event, "\"");
    }
    buf_text(&r->event, r->part == PART_CALL ? ", \"arguments\": " : ", \"text\": ");
    put_quoted(&r->event, r->part_text.data, r->part_text.size);
    response_event_end(r);
    if (r->part == PART_TEXT) response_part(r, "response.content_part.done");
    response_item(r, "response.output_item.done", 1);
}

// There is no event for it but one that says that nothing has changed.
static void response_idle(reply *r) {
    if (!r->streams) return;
    if (!r->begun) response_begin(r);
    else response_state(r, "response.in_progress", "in_progress");
}

static void response_last(reply *r) {
    const char *status = response_status(r);
    if (r->streams && !r->begun) response_begin(r);
    part_close(r);
    if (r->items.failed) refuse(&r->f, 503, NULL, "out of memory");
    if (r->f.status) return;
    if (r->streams) {
        response_state(r, strcmp(status, "incomplete") ? "response.completed" : "response.incomplete", status);
        connection_end(r->c);
        return;
    }
    put_response(&r->event, r, status);
    if (r->event.failed) refuse(&r->f, 503, NULL, "out of memory");
    else connection_reply(r->c, 200, "application/json", r->event.data, r->event.size);
}

static void response_failure_event(reply *r) {
    response_state(r, "response.failed", "failed");
}

static void serve_responses(server *s, connection *c, const json *j) {
    static const part_writer writer = {response_part_open, response_part_add, response_part_close, response_idle};
    reply r;
    reply_open(&r, s, c, j, "resp_");
    r.a.event = part_event;
    r.writer = &writer;
    responses_request(&r);
    reply_run(&r, response_last, response_failure_event);
}
