/* serve/messages.c: POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak it. */

/* A system text but for the line at its beginning that only bills: it changes with each request, and would break the prefix. */
static void put_without_billing(buf *out, const json *j, uint32_t node) {
    static const char begins[] = "x-anthropic-billing-header";
    size_t n = json_string(j, node, NULL, 0);
    char *text = node_text(j, node), *line = text ? (char *)memchr(text, '\n', n) : NULL;
    out->failed |= !text;
    if (!text || n < sizeof begins - 1 || memcmp(text, begins, sizeof begins - 1)) put_inside(out, j, node);
    else if (line) put_escaped(out, line + 1, n - (size_t)(line + 1 - text));
    free(text);
}

/* A text of the system message, as ask_system has it but for the line. */
static void messages_system_text(request *x, uint32_t text) {
    size_t before = x->system.size;
    if (x->system.size) buf_text(&x->system, "\\n\\n");
    size_t begin = x->system.size;
    put_without_billing(&x->system, x->q.j, text);
    if (x->system.size == begin) x->system.size = before;
}

static void messages_system(request *x) {
    const fields *q = &x->q;
    uint32_t system = field(q, "system");
    if (system && node_type(q, system) == JSON_STRING) messages_system_text(x, system);
    else if (system && node_type(q, system) != JSON_ARRAY) refuse(q->f, 400, "system", "system must be a text or a list of texts");
    for (uint32_t k = system + 1; system && node_type(q, system) == JSON_ARRAY && k < node_next(q, system) && !q->f->status;
         k = node_next(q, k)) {
        fields block = {q->j, k, q->f};
        uint32_t text = field_of(&block, "text", JSON_STRING);
        if (text) messages_system_text(x, text);
        else refuse(q->f, 400, "system", "system must be a text or a list of texts");
    }
}

/* A user's turn: results of tools first, then text and images. */
static void messages_user(request *x, uint32_t content, const char *where) {
    const fields *q = &x->q;
    buf text = {NULL, 0, 0, 0};
    int has_text = 0, images = 0;          /* whether text is at hand, to which a line is added; those of the turn */
    if (content && node_type(q, content) == JSON_STRING) {
        ask_user(x, content, 0, where);
        return;
    }
    for (uint32_t k = content + 1; content && k < node_next(q, content) && !q->f->status; k = node_next(q, k)) {
        fields block = {q->j, k, q->f};
        uint32_t inner = part_text(&block);
        const int is_image = is_image_part(&block) && x->a->server->reads_images;
        if (field_is(&block, "type", "tool_result")) {
            ask_result(x, field(&block, "tool_use_id"), field(&block, "content"), 0, where);
        } else if (is_image) {
            ask_image(x, &text, &block);
            images++;
            has_text = 0;
        } else if (inner) {
            if (has_text++) buf_text(&text, "\\n");
            put_inside(&text, q->j, inner);
        } else if (field_is(&block, "type", "search_result") || field_is(&block, "type", "document")) {
            if (has_text++) buf_text(&text, "\\n");
            if (!put_found(&text, &block)) refuse(q->f, 400, where, "%s holds a document that is no text", where);
        } else if (is_image_part(&block)) {
            refuse_part(x, &block, where);
        } else {
            char *name = field(&block, "type") ? node_text(q->j, field(&block, "type")) : NULL;
            refuse(q->f, 400, where, "%s holds a block of type \"%.40s\": neither text nor a tool's result", where, name ? name : "");
            free(name);
        }
    }
    if (has_text || images) ask_user_said(x, &text, x->image_count - images);
    x->messages.failed |= text.failed;
    buf_free(&text);
}

/* Parts of an answer of the past that Anthropic's own servers put there: they are passed over. */
static int is_hosted_block(const fields *block) {
    static const char end[] = "_tool_result";
    uint32_t type = field(block, "type");
    const json_node *n = block->j->nodes + type;
    if (!type || n->type != JSON_STRING) return 0;
    return json_equals(block->j, type, "redacted_thinking") || json_equals(block->j, type, "server_tool_use") ||
           json_equals(block->j, type, "mcp_tool_use") ||
           (n->size > sizeof end - 1 && !memcmp(block->j->text + n->start + n->size - (sizeof end - 1), end, sizeof end - 1));
}

static void messages_assistant(request *x, uint32_t content, const char *where) {
    const fields *q = &x->q;
    buf text = {NULL, 0, 0, 0}, thought = {NULL, 0, 0, 0}, calls = {NULL, 0, 0, 0};
    if (content && node_type(q, content) == JSON_STRING) put_inside(&text, q->j, content);
    else
        for (uint32_t k = content + 1; content && k < node_next(q, content) && !q->f->status; k = node_next(q, k)) {
            fields block = {q->j, k, q->f};
            uint32_t inner = field(&block, "text"), thinks = field(&block, "thinking");
            past_call call = {.id = field(&block, "id"), .name = field(&block, "name"), .arguments = field(&block, "input")};
            if (field_is(&block, "type", "text") && inner && node_type(q, inner) == JSON_STRING) put_inside(&text, q->j, inner);
            else if (field_is(&block, "type", "thinking") && thinks && node_type(q, thinks) == JSON_STRING)
                put_inside(&thought, q->j, thinks);
            else if (field_is(&block, "type", "tool_use")) ask_call(x, &calls, &call, where);
            else if (!is_hosted_block(&block))
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

/* {"type": "auto"}, any, tool with a name, or none. *one: a single call is wanted. */
static void messages_choice(request *x, int *one) {
    const fields *q = &x->q;
    fields choice = {q->j, field_of(q, "tool_choice", JSON_OBJECT), q->f};
    if (!choice.object) return;
    field_flag(&choice, "disable_parallel_tool_use", one);
    if (field_is(&choice, "type", "auto")) return;
    if (field_is(&choice, "type", "none")) x->choice = CHOICE_NONE;
    else x->choice = CHOICE_REQUIRED;
    if (field_is(&choice, "type", "tool") && field_of(&choice, "name", JSON_STRING)) x->chosen = choice.object;
    else if (x->choice != CHOICE_NONE && !field_is(&choice, "type", "any"))
        refuse(q->f, 400, "tool_choice", "tool_choice must be of type auto, any, tool or none");
}

/* Tools with a schema; the others are Anthropic's own. */
static void messages_tools(request *x) {
    const fields *q = &x->q;
    uint32_t tools = field_of(q, "tools", JSON_ARRAY);
    int one = 0;
    messages_choice(x, &one);
    for (uint32_t k = tools + 1; tools && x->choice != CHOICE_NONE && !q->f->status && k < node_next(q, tools); k = node_next(q, k)) {
        fields tool = {q->j, k, q->f};
        tool_fields t = {.name = field(&tool, "name"), .description = field(&tool, "description")};
        t.schema = field_of(&tool, "input_schema", JSON_OBJECT);
        t.strict = field(&tool, "strict");
        if (t.schema || !field(&tool, "type") || field_is(&tool, "type", "custom")) ask_tool(x, &t);
        else note_hosted(x, &tool);
    }
    ask_choice(x, one);
}

/* Thinking is what a client asks for, and off when it does not. */
static void messages_thinking(request *x, const fields *config) {
    fields thinking = {x->q.j, field_of(&x->q, "thinking", JSON_OBJECT), x->q.f};
    int budget = 0, on = thinking.object && !field_is(&thinking, "type", "disabled");
    ask_thinking(x);
    if (thinking.object && on && !field_is(&thinking, "type", "enabled") && !field_is(&thinking, "type", "adaptive"))
        refuse(x->q.f, 400, "thinking", "thinking must be of type enabled, adaptive or disabled");
    if (on) field_whole(&thinking, "budget_tokens", 1, INT_MAX, &budget);
    if (budget) x->a->thinking_budget = budget;
    if (thinking.object) ask_think(x, on, "thinking");
    else if (!x->thinks) x->thinks = MOTE_THINK_OFF;
    if (config->object && x->thinks == MOTE_THINK_ON) ask_effort(x, config, "effort");
    else if (config->object) effort_of(config, "effort");             /* without thinking it need only be one */
}

/* All that makes the prompt. An answer at its end is continued. */
static void messages_prompt(request *x) {
    const fields *q = &x->q;
    fields config = {q->j, field_of(q, "output_config", JSON_OBJECT), q->f};
    uint32_t format = config.object ? field_of(&config, "format", JSON_OBJECT) : 0, older = field_of(q, "output_format", JSON_OBJECT);
    messages_thinking(x, &config);
    ask_format(x, format ? format : older, format ? "output_config.format" : "output_format");
    messages_system(x);
    messages_turns(x);
    messages_tools(x);
    if (x->last_answers && !q->f->status) ask_continued(x, "messages");
    ask_render(x);
}

static void messages_too_long(const answer *a, failure *f) {
    const int least = a->max_tokens != 0;
    refuse(f, 400, NULL, "prompt is too long: %zu tokens > %d maximum, with %d for the answer", a->prompt_count + (size_t)least, a->server->context,
           least);
}

static void messages_request(reply *r) {
    const fields *q = &r->request.q;
    ask_common(&r->request, API_MESSAGES, "stop_sequences");
    field_whole(q, "max_tokens", 0, INT_MAX, &r->a.max_tokens);
    if (!field(q, "max_tokens")) refuse(q->f, 400, "max_tokens", "max_tokens is missing");
    field_flag(q, "stream", &r->streams);
    r->a.too_long = messages_too_long;
    messages_prompt(&r->request);
}

/* ---- What is answered --------------------------------------------------------------------------------------------- */

static void message_event(reply *r, const char *name) {
    putf(&r->event, "event: %s\ndata: {\"type\": \"%s\"", name, name);
}

static void message_event_end(reply *r) {
    buf_text(&r->event, "}\n\n");
    reply_event(r);
}

static const char *message_reason(const answer *a) {
    return answer_is_cut(a) ? "max_tokens" : answer_calls(a) ? "tool_use" : answer_stop_text(a) ? "stop_sequence" : "end_turn";
}

static void put_message_stop(buf *out, const reply *r, int finished) {
    const char *reason = finished ? message_reason(&r->a) : NULL, *stop = finished ? answer_stop_text(&r->a) : NULL;
    buf_text(out, "\"stop_reason\": ");
    if (reason) put_text(out, reason);
    else buf_text(out, "null");
    buf_text(out, ", \"stop_sequence\": ");
    if (stop) put_text(out, stop);
    else buf_text(out, "null");
}

static void put_message_usage(buf *out, const reply *r) {
    const answer *a = &r->a;
    putf(out, "\"usage\": {\"input_tokens\": %zu, \"cache_creation_input_tokens\": 0, \"cache_read_input_tokens\": %zu, "
              "\"output_tokens\": %d}", a->prompt_count - a->cached, a->cached, a->result.generated_tokens);
}

/* finished: with what is known at the end only. */
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
    if (r->opened) return;
    r->opened = 1;
    message_event(r, "message_start");
    buf_text(&r->event, ", \"message\": ");
    put_message(&r->event, r, 0);
    message_event_end(r);
}

static void message_call_head(buf *out, const reply *r) {
    putf(out, "{\"type\": \"tool_use\", \"id\": \"toolu_%s_%d\", \"name\": ", r->id + 4, r->parts);
    put_text(out, r->part_call->name);
    buf_text(out, ", \"input\": ");
}

static void message_part_open(reply *r) {
    if (!r->streams) return;
    message_begin(r);
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

/* A ping while nothing else is to be told. */
static void message_progress(answer *a, int what) {
    reply *r = (reply *)a->user;
    reply_begin(r);
    if (what == PROGRESS_READING) message_begin(r);
    if (what != PROGRESS_TICK) return;
    put_comment(&r->event, a);
    message_event(r, "ping");
    message_event_end(r);
}

static void message_last(reply *r) {
    part_close(r);
    if (!r->streams) {
        put_message(&r->event, r, 1);
        reply_whole(r, r->items.failed || r->part_text.failed);
        return;
    }
    message_begin(r);
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
    static const part_writer writer = {message_part_open, message_part_add, message_part_close};
    reply r;
    reply_open(&r, s, c, j, "msg_");
    r.a.event = part_event;
    r.writer = &writer;
    messages_request(&r);
    if (r.streams) r.a.progress = message_progress;
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
