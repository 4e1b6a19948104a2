// serve/messages.c: POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak it.

// A system block that only bills: it changes with each request, and would break the prefix.
static int is_billing(const json *j, uint32_t text) {
    static const char begins[] = "x-anthropic-billing-header";
    char head[sizeof begins];
    size_t n = json_string(j, text, head, sizeof head);
    return n >= sizeof begins - 1 && !memcmp(head, begins, sizeof begins - 1);
}

static void messages_system(request *x) {
    const fields *q = &x->q;
    uint32_t system = field(q, "system");
    if (!system || node_type(q, system) != JSON_ARRAY) {
        if (system) ask_system(x, system, "system");
        return;
    }
    for (uint32_t k = system + 1; k < node_next(q, system) && !q->f->status; k = node_next(q, k)) {
        fields block = {q->j, k, q->f};
        uint32_t text = field_of(&block, "text", JSON_STRING);
        if (!text) refuse(q->f, 400, "system", "system must be a text or a list of texts");
        else if (!is_billing(q->j, text)) ask_system(x, text, "system");
    }
}

// What a user's turn brings: results of tools first, then text.
static void messages_user(request *x, uint32_t content, const char *where) {
    const fields *q = &x->q;
    buf text = {NULL, 0, 0, 0};
    int has_text = 0;
    if (content && node_type(q, content) == JSON_STRING) {
        ask_message(x, "user", content, where);
        return;
    }
    for (uint32_t k = content + 1; content && k < node_next(q, content) && !q->f->status; k = node_next(q, k)) {
        fields block = {q->j, k, q->f};
        uint32_t inner = field(&block, "text");
        if (field_is(&block, "type", "tool_result")) {
            ask_message(x, "tool", field(&block, "content"), where);
        } else if (field_is(&block, "type", "text") && inner && node_type(q, inner) == JSON_STRING) {
            if (has_text++) buf_text(&text, "\\n");
            put_inside(&text, q->j, inner);
        } else {
            refuse(q->f, 400, where, "%s holds a block that is neither text nor a tool's result", where);
        }
    }
    if (has_text) {
        x->has_turns = 1;
        put_next(&x->messages);
        buf_text(&x->messages, "{\"role\": \"user\", \"content\": \"");
        buf_add(&x->messages, text.data, text.size);
        buf_text(&x->messages, "\"}");
    }
    buf_free(&text);
}

static void messages_assistant(request *x, uint32_t content, const char *where) {
    const fields *q = &x->q;
    buf text = {NULL, 0, 0, 0}, thought = {NULL, 0, 0, 0}, calls = {NULL, 0, 0, 0};
    if (content && node_type(q, content) == JSON_STRING) put_inside(&text, q->j, content);
    else
        for (uint32_t k = content + 1; content && k < node_next(q, content) && !q->f->status; k = node_next(q, k)) {
            fields block = {q->j, k, q->f};
            uint32_t inner = field(&block, "text"), thinks = field(&block, "thinking");
            if (field_is(&block, "type", "text") && inner && node_type(q, inner) == JSON_STRING) put_inside(&text, q->j, inner);
            else if (field_is(&block, "type", "thinking") && thinks && node_type(q, thinks) == JSON_STRING)
                put_inside(&thought, q->j, thinks);
            else if (field_is(&block, "type", "tool_use"))
                ask_call(x, &calls, field(&block, "name"), field(&block, "input"), where);
            else if (!field_is(&block, "type", "redacted_thinking"))
                refuse(q->f, 400, where, "%s holds a block that is no text, thinking or tool_use", where);
        }
    ask_assistant(x, &text, &thought, &calls);
    buf_free(&text);
    buf_free(&thought);
    buf_free(&calls);
}

static void messages_turns(request *x) {
    const fields *q = &x->q;
    uint32_t list = field_of(q, "messages", JSON_ARRAY);
    if (!list || !q->j->nodes[list].size) refuse(q->f, 400, "messages", "messages must be a list of messages");
    for (uint32_t k = list + 1, i = 0; !q->f->status && k < node_next(q, list); k = node_next(q, k), i++) {
        fields m = {q->j, k, q->f};
        uint32_t content = field(&m, "content");
        char where[32];
        snprintf(where, sizeof where, "messages[%u]", i);
        uint32_t type = content ? node_type(q, content) : (uint32_t)JSON_NULL;
        if (node_type(q, k) != JSON_OBJECT || (type != JSON_STRING && type != JSON_ARRAY))
            refuse(q->f, 400, where, "%s must have a content, a text or a list of blocks", where);
        else if (field_is(&m, "role", "user")) messages_user(x, content, where);
        else if (field_is(&m, "role", "assistant")) messages_assistant(x, content, where);
        else if (field_is(&m, "role", "system")) ask_system(x, content, where);
        else refuse(q->f, 400, where, "%s: the role must be user or assistant", where);
    }
}

// Tools with a schema; those that Anthropic's own servers run are passed over.
static void messages_tools(request *x) {
    const fields *q = &x->q;
    uint32_t tools = field_of(q, "tools", JSON_ARRAY);
    fields choice = {q->j, field_of(q, "tool_choice", JSON_OBJECT), q->f};
    if (choice.object && field_is(&choice, "type", "none")) return;
    for (uint32_t k = tools + 1; tools && !q->f->status && k < node_next(q, tools); k = node_next(q, k)) {
        fields tool = {q->j, k, q->f};
        uint32_t schema = field_of(&tool, "input_schema", JSON_OBJECT);
        if (schema || !field(&tool, "type") || field_is(&tool, "type", "custom"))
            ask_tool(x, field(&tool, "name"), field(&tool, "description"), schema);
    }
    if (!choice.object || field_is(&choice, "type", "auto")) return;
    if (!x->tools.size) refuse(q->f, 400, "tool_choice", "tool_choice without tools");
    else if (field_is(&choice, "type", "any")) ask_forced(x, 0);
    else if (field_is(&choice, "type", "tool") && field_of(&choice, "name", JSON_STRING)) ask_forced(x, field(&choice, "name"));
    else refuse(q->f, 400, "tool_choice", "tool_choice must be of type auto, any, tool or none");
}

// All that makes the prompt. Thinking is what a client asks for, and off when it does not.
static void messages_prompt(request *x) {
    const fields *q = &x->q;
    fields thinking = {q->j, field_of(q, "thinking", JSON_OBJECT), q->f};
    int on = thinking.object && !field_is(&thinking, "type", "disabled");
    x->thinks = on ? MOTE_THINK_ON : MOTE_THINK_OFF;
    messages_system(x);
    messages_turns(x);
    messages_tools(x);
    fields config = {q->j, field_of(q, "output_config", JSON_OBJECT), q->f};
    uint32_t format = config.object ? field_of(&config, "format", JSON_OBJECT) : 0;
    ask_format(x, format ? format : field_of(q, "output_format", JSON_OBJECT), "output_config");
    ask_render(x);
}

static void messages_request(reply *r) {
    const fields *q = &r->request.q;
    ask_common(&r->a, q, "stop_sequences");
    field_whole(q, "max_tokens", 1, INT_MAX, &r->a.max_tokens);
    if (!field(q, "max_tokens")) refuse(q->f, 400, "max_tokens", "max_tokens is missing");
    field_flag(q, "stream", &r->streams);
    if (r->a.stops.size == sizeof(char *)) snprintf(r->stop, sizeof r->stop, "%s", r->a.stop_texts.data);
    messages_prompt(&r->request);
}

// ---- What is answered ------------------------------------------------------------------------------------------------

static void message_event(reply *r, const char *name) {
    putf(&r->event, "event: %s\ndata: {\"type\": \"%s\"", name, name);
}

static void message_event_end(reply *r) {
    buf_text(&r->event, "}\n\n");
    reply_event(r);
}

static void put_message_stop(buf *out, const reply *r, int finished) {
    static const char *const reasons[] = {"end_turn", "stop_sequence", "max_tokens", "max_tokens", "end_turn"};
    const answer *a = &r->a;
    buf_text(out, "\"stop_reason\": ");
    if (finished) put_text(out, answer_calls(a) ? "tool_use" : reasons[a->result.stop]);
    else buf_text(out, "null");
    buf_text(out, ", \"stop_sequence\": ");
    if (finished && a->result.stop == MOTE_STOP_TEXT && r->stop[0]) put_text(out, r->stop);
    else buf_text(out, "null");
}

static void put_message_usage(buf *out, const reply *r) {
    const answer *a = &r->a;
    putf(out, "\"usage\": {\"input_tokens\": %zu, \"cache_creation_input_tokens\": 0, \"cache_read_input_tokens\": %zu, "
              "\"output_tokens\": %d}", a->prompt_count - a->cached, a->cached, a->result.generated_tokens);
}

// finished: with what is known at the end only.
static void put_message(buf *out, const reply *r, int finished) {
    putf(out, "{\"id\": \"%s\", \"type\": \"message\", \"role\": \"assistant\", \"model\": ", r->id);
    put_text(out, r->a.server->name);
    buf_text(out, ", \"content\": [");
    if (finished) buf_add(out, r->items.data, r->items.size);
    buf_text(out, "], ");
    put_message_stop(out, r, finished);
    buf_text(out, ", ");
    put_message_usage(out, r);
    buf_text(out, "}");
}

static void message_begin(reply *r) {
    message_event(r, "message_start");
    buf_text(&r->event, ", \"message\": ");
    put_message(&r->event, r, 0);
    message_event_end(r);
}

static void message_call_head(buf *out, const reply *r) {
    putf(out, "{\"type\": \"tool_use\", \"id\": \"toolu_%s_%d\", \"name\": \"", r->id + 4, r->parts);
    buf_text(out, r->part_call->name);
    buf_text(out, "\", \"input\": ");
}

static void message_part_open(reply *r) {
    if (!r->streams) return;
    if (!r->begun) message_begin(r);
    message_event(r, "content_block_start");
    putf(&r->event, ", \"index\": %d, \"content_block\": ", r->parts);
    if (r->part == PART_TEXT) buf_text(&r->event, "{\"type\": \"text\", \"text\": \"\"}");
    if (r->part == PART_THINKING) buf_text(&r->event, "{\"type\": \"thinking\", \"thinking\": \"\", \"signature\": \"\"}");
    if (r->part == PART_CALL) message_call_head(&r->event, r), buf_text(&r->event, "{}}");
    message_event_end(r);
}

static void message_part_add(reply *r, const char *text, size_t n) {
    static const char *const types[] = {"", "thinking_delta", "text_delta", "input_json_delta"};
    static const char *const names[] = {"", "thinking", "text", "partial_json"};
    if (!r->streams) return;
    message_event(r, "content_block_delta");
    putf(&r->event, ", \"index\": %d, \"delta\": {\"type\": \"%s\", \"%s\": ", r->parts, types[r->part], names[r->part]);
    put_quoted(&r->event, text, n);
    buf_text(&r->event, "}");
    message_event_end(r);
}

static void message_part_close(reply *r) {
    buf *out = &r->items;
    if (r->streams && r->part == PART_THINKING) {
        message_event(r, "content_block_delta");
        putf(&r->event, ", \"index\": %d, \"delta\": {\"type\": \"signature_delta\", \"signature\": \"mote\"}", r->parts);
        message_event_end(r);
    }
    if (r->streams) {
        message_event(r, "content_block_stop");
        putf(&r->event, ", \"index\": %d", r->parts);
        message_event_end(r);
        return;
    }
    put_next(out);
    if (r->part == PART_CALL) message_call_head(out, r), buf_text(out, r->part_call->arguments);
    else {
        buf_text(out, r->part == PART_TEXT ? "{\"type\": \"text\", \"text\": " : "{\"type\": \"thinking\", \"thinking\": ");
        put_quoted(out, r->part_text.data, r->part_text.size);
        if (r->part == PART_THINKING) buf_text(out, ", \"signature\": \"mote\"");
    }
    buf_text(out, "}");
}

static void message_idle(reply *r) {
    if (!r->streams) return;
    if (!r->begun) message_begin(r);
    message_event(r, "ping");
    message_event_end(r);
}

static void message_last(reply *r) {
    part_close(r);
    if (!r->streams) {
        put_message(&r->event, r, 1);
        if (r->event.failed || r->items.failed) refuse(&r->f, 503, NULL, "out of memory");
        else connection_reply(r->c, 200, "application/json", r->event.data, r->event.size);
        return;
    }
    if (!r->begun) message_begin(r);
    message_event(r, "message_delta");
    buf_text(&r->event, ", \"delta\": {");
    put_message_stop(&r->event, r, 1);
    buf_text(&r->event, "}, ");
    put_message_usage(&r->event, r);
    message_event_end(r);
    message_event(r, "message_stop");
    message_event_end(r);
    connection_end(r->c);
}

static void message_failure_event(reply *r) {
    buf_text(&r->event, "event: error\ndata: ");
    put_anthropic_failure(&r->event, &r->f);
    buf_text(&r->event, "\n\n");
    reply_event(r);
}

static void serve_messages(server *s, connection *c, const json *j) {
    static const part_writer writer = {message_part_open, message_part_add, message_part_close, message_idle};
    reply r;
    reply_open(&r, s, c, j, "msg_");
    r.a.event = part_event;
    r.writer = &writer;
    messages_request(&r);
    reply_run(&r, message_last, message_failure_event);
}

static void serve_count_tokens(server *s, connection *c, const json *j) {
    reply r;
    reply_open(&r, s, c, j, "");
    messages_prompt(&r.request);
    putf(&r.event, "{\"input_tokens\": %zu}", r.a.prompt_count);
    if (r.f.status) reply_failure(c, &r.f);
    else connection_reply(c, 200, "application/json", r.event.data, r.event.failed ? 0 : r.event.size);
    reply_free(&r);
}
