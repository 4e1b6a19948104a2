// serve/chat.c: POST /v1/chat/completions, as OpenAI's clients speak it.

// An answer on its way to a client of this or of another API.
typedef struct reply {
    answer a;
    request request;
    failure f;
    connection *c;
    char id[40];
    long created;
    int streams, usage;                    // in events; with a last one of the tokens used
    int begun;                             // the head of a stream is out
    buf thinking, text, scores;            // all so far, when it is one answer
    buf event;                             // at hand
    const struct part_writer *writer;      // of APIs whose answers consist of parts: see parts.c
    int part, parts;                       // the open one: PART_...; those before it
    const tool_call *part_call;            // of an open PART_CALL
    buf part_text, items;                  // of the open one; the complete ones, as JSON with commas between them
    int sequence, thinking_tokens;
    char stop[64];                         // the only stop text there is, for who wants to know it
} reply;

static void reply_free(reply *r) {
    answer_free(&r->a);
    ask_close(&r->request);
    buf_free(&r->thinking);
    buf_free(&r->text);
    buf_free(&r->scores);
    buf_free(&r->event);
    buf_free(&r->part_text);
    buf_free(&r->items);
}

// A name that no other answer of this server has.
static void reply_name(char *to, size_t capacity, const char *prefix) {
    static uint64_t last;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    uint64_t n = ++last;
    pthread_mutex_unlock(&lock);
    snprintf(to, capacity, "%s%08lx%08llx", prefix, (unsigned long)time(NULL), (unsigned long long)n);
}

static void reply_open(reply *r, server *s, connection *c, const json *j, const char *prefix) {
    memset(r, 0, sizeof *r);
    r->c = c;
    r->created = (long)time(NULL);
    r->a.server = s;
    r->a.client = c;
    r->a.user = r;
    r->a.top = -1;
    r->request.a = &r->a;
    r->request.q.j = j;
    r->request.q.f = &r->f;
    reply_name(r->id, sizeof r->id, prefix);
}

// Sends the event at hand.
static void reply_event(reply *r) {
    if (!r->begun) connection_begin(r->c, "text/event-stream");
    r->begun = 1;
    if (r->event.failed) r->c->gone = 1;
    connection_piece(r->c, r->event.data, r->event.size);
    r->event.size = 0;
}

// ---- What is asked ---------------------------------------------------------------------------------------------------

static void chat_assistant_message(request *x, uint32_t message, const char *where) {
    fields m = {x->q.j, message, x->q.f};
    uint32_t calls = field_of(&m, "tool_calls", JSON_ARRAY), given = field(&m, "reasoning_content");
    buf text = {NULL, 0, 0, 0}, thought = {NULL, 0, 0, 0}, list = {NULL, 0, 0, 0};
    if (!given) given = field(&m, "reasoning");
    if (field(&m, "function_call")) refuse(x->q.f, 400, where, "%s: function_call is not supported, tool_calls is", where);
    put_content(x, &text, field(&m, "content"), where);
    if (given && node_type(&m, given) == JSON_STRING) put_inside(&thought, x->q.j, given);
    for (uint32_t k = calls + 1; calls && k < node_next(&m, calls); k = node_next(&m, k)) {
        fields call = {x->q.j, k, x->q.f};
        fields function = {x->q.j, field_of(&call, "function", JSON_OBJECT), x->q.f};
        if (!function.object) refuse(x->q.f, 400, where, "%s holds a call of no function", where);
        else ask_call(x, &list, field(&function, "name"), field(&function, "arguments"), where);
    }
    ask_assistant(x, &text, &thought, &list);
    buf_free(&text);
    buf_free(&thought);
    buf_free(&list);
}

static void chat_ask_messages(request *x) {
    uint32_t list = field_of(&x->q, "messages", JSON_ARRAY);
    if (!list || !x->q.j->nodes[list].size) refuse(x->q.f, 400, "messages", "messages must be a list of messages");
    for (uint32_t k = list + 1, i = 0; !x->q.f->status && k < node_next(&x->q, list); k = node_next(&x->q, k), i++) {
        fields m = {x->q.j, k, x->q.f};
        uint32_t content = field(&m, "content");
        char where[32];
        snprintf(where, sizeof where, "messages[%u]", i);
        if (node_type(&x->q, k) != JSON_OBJECT) refuse(x->q.f, 400, where, "%s is no object", where);
        else if (field_is(&m, "role", "system") || field_is(&m, "role", "developer")) ask_system(x, content, where);
        else if (field_is(&m, "role", "user")) ask_message(x, "user", content, where);
        else if (field_is(&m, "role", "tool")) ask_message(x, "tool", content, where);
        else if (field_is(&m, "role", "assistant")) chat_assistant_message(x, k, where);
        else refuse(x->q.f, 400, where, "%s: the role must be system, developer, user, assistant or tool", where);
    }
}

static void chat_ask_tools(request *x) {
    const fields *q = &x->q;
    uint32_t tools = field_of(q, "tools", JSON_ARRAY), choice = field(q, "tool_choice");
    if (choice && json_equals(q->j, choice, "none")) return;
    for (uint32_t k = tools + 1; tools && !q->f->status && k < node_next(q, tools); k = node_next(q, k)) {
        fields tool = {q->j, k, q->f};
        fields function = {q->j, field_of(&tool, "function", JSON_OBJECT), q->f};
        if (!function.object) refuse(q->f, 400, "tools", "a tool that is no function is not supported");
        else ask_tool(x, field(&function, "name"), field(&function, "description"), field(&function, "parameters"));
    }
    if (!choice || json_equals(q->j, choice, "auto")) return;
    if (!x->tools.size) refuse(q->f, 400, "tool_choice", "tool_choice without tools");
    if (json_equals(q->j, choice, "required")) {
        ask_forced(x, 0);
    } else {
        fields c = {q->j, choice, q->f};
        fields function = {q->j, node_type(q, choice) == JSON_OBJECT ? field_of(&c, "function", JSON_OBJECT) : 0, q->f};
        uint32_t name = function.object ? field_of(&function, "name", JSON_STRING) : 0;
        if (!name) refuse(q->f, 400, "tool_choice", "tool_choice must be none, auto, required or a function");
        else ask_forced(x, name);
    }
}

static void chat_ask_thinking(request *x) {
    fields kwargs = {x->q.j, field_of(&x->q, "chat_template_kwargs", JSON_OBJECT), x->q.f};
    int thinks = -1;
    field_flag(&x->q, "enable_thinking", &thinks);
    if (kwargs.object) field_flag(&kwargs, "enable_thinking", &thinks);
    if (field_is(&x->q, "reasoning_effort", "none")) thinks = 0;
    if (thinks >= 0) x->thinks = thinks ? MOTE_THINK_ON : MOTE_THINK_OFF;
}

static void chat_request(reply *r) {
    static const char *const unsupported[] = {
        "functions", "function_call", "audio", "prediction", "web_search_options", "guided_json", "guided_regex",
        "guided_grammar", "guided_choice", "grammar", "prompt_logprobs"};
    request *x = &r->request;
    const fields *q = &x->q;
    answer *a = &r->a;
    int n = 1, logprobs = 0, top = 0;
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) field_unsupported(q, unsupported[i]);
    field_whole(q, "n", 1, 128, &n);
    if (n > 1) refuse(q->f, 400, "n", "n must be 1: one answer to a request");
    ask_common(a, q, "stop");
    field_whole(q, "max_tokens", 1, INT_MAX, &a->max_tokens);
    field_whole(q, "max_completion_tokens", 1, INT_MAX, &a->max_tokens);
    field_flag(q, "logprobs", &logprobs);
    field_whole(q, "top_logprobs", 0, TOP_MOST, &top);
    if (logprobs) a->top = top;
    field_flag(q, "stream", &r->streams);
    fields options = {q->j, field_of(q, "stream_options", JSON_OBJECT), q->f};
    if (options.object) field_flag(&options, "include_usage", &r->usage);
    chat_ask_thinking(x);
    chat_ask_messages(x);
    chat_ask_tools(x);
    ask_format(x, field_of(q, "response_format", JSON_OBJECT), "response_format");
    ask_render(x);
}

// ---- What is answered ------------------------------------------------------------------------------------------------

static void put_score(buf *out, const server *s, const mote_logprob *p) {
    size_t n = 0;
    const char *bytes = mote_token_bytes(s->model, p->id, &n);
    buf clean = {NULL, 0, 0, 0};
    if (bytes) utf8_clean(bytes, n, &clean);
    buf_text(out, "{\"token\": ");
    put_quoted(out, clean.data, clean.size);
    putf(out, ", \"logprob\": %.7g, \"bytes\": [", p->logprob < -9999 ? -9999.0 : (double)p->logprob);
    for (size_t i = 0; bytes && i < n; i++) putf(out, "%s%d", i ? ", " : "", (unsigned char)bytes[i]);
    buf_text(out, "]");
    buf_free(&clean);
}

// {"token": ..., "logprob": ..., "bytes": ..., "top_logprobs": [...]} of the last token.
static void put_scores(buf *out, const answer *a) {
    put_score(out, a->server, &a->logprobs[0]);
    buf_text(out, ", \"top_logprobs\": [");
    for (int i = 1; i <= a->top; i++) {
        if (i > 1) buf_text(out, ", ");
        put_score(out, a->server, &a->logprobs[i]);
        buf_text(out, "}");
    }
    buf_text(out, "]}");
}

static void chat_chunk_begin(reply *r) {
    putf(&r->event, "data: {\"id\": \"%s\", \"object\": \"chat.completion.chunk\", \"created\": %ld, \"model\": ", r->id,
         r->created);
    put_text(&r->event, r->a.server->name);
    buf_text(&r->event, ", \"choices\": [");
}

// number: among the calls of the answer
static void put_chat_call(buf *out, const tool_call *call, const char *id, int number, int streams) {
    buf_text(out, "{");
    if (streams) putf(out, "\"index\": %d, ", number);
    putf(out, "\"id\": \"call_%s_%d\", \"type\": \"function\", \"function\": {\"name\": \"", id + 9, number);
    buf_text(out, call->name);
    buf_text(out, "\", \"arguments\": ");
    put_text(out, call->arguments);
    buf_text(out, "}}");
}

// The calls from number `first` on.
static void put_chat_calls(buf *out, const reply *r, int first, int streams) {
    for (int i = first; i < answer_calls(&r->a); i++) {
        if (i > first) buf_text(out, ", ");
        put_chat_call(out, answer_call(&r->a, i), r->id, i, streams);
    }
}

static void chat_chunk_role(reply *r) {
    chat_chunk_begin(r);
    buf_text(&r->event, "{\"index\": 0, \"delta\": {\"role\": \"assistant\", \"content\": \"\"}, "
                        "\"finish_reason\": null}]}\n\n");
    reply_event(r);
}

// A chunk for a token. One that brings no text yet has an empty one, but for the end.
static void chat_chunk(reply *r) {
    answer *a = &r->a;
    const buf *thinking = &a->piece[MOTE_THINKING], *text = &a->piece[MOTE_ANSWER];
    int calls = answer_calls(a) > a->calls_told, comma = 0;
    if (a->is_end && !a->ignores_end && !thinking->size && !text->size && !calls) return;
    if (!r->begun) chat_chunk_role(r);
    chat_chunk_begin(r);
    buf_text(&r->event, "{\"index\": 0, \"delta\": {");
    if (thinking->size || (!text->size && !calls && a->channel == MOTE_THINKING)) {
        buf_text(&r->event, "\"reasoning_content\": ");
        put_quoted(&r->event, thinking->data, thinking->size);
        comma = 1;
    }
    if (text->size || (!comma && !calls)) {
        buf_text(&r->event, comma++ ? ", \"content\": " : "\"content\": ");
        put_quoted(&r->event, text->data, text->size);
    }
    if (calls) {
        buf_text(&r->event, comma ? ", \"tool_calls\": [" : "\"tool_calls\": [");
        put_chat_calls(&r->event, r, a->calls_told, 1);
        buf_text(&r->event, "]");
    }
    buf_text(&r->event, "}");
    if (a->top >= 0 && a->has_token) {
        buf_text(&r->event, ", \"logprobs\": {\"content\": [");
        put_scores(&r->event, a);
        buf_text(&r->event, "]}");
    }
    if (a->gives_ids && a->has_token) putf(&r->event, ", \"token_ids\": [%" PRId32 "]", a->token);
    buf_text(&r->event, ", \"finish_reason\": null}]}\n\n");
    reply_event(r);
}

static void chat_event(answer *a) {
    reply *r = (reply *)a->user;
    if (r->streams) {
        chat_chunk(r);
        return;
    }
    buf_add(&r->thinking, a->piece[MOTE_THINKING].data, a->piece[MOTE_THINKING].size);
    buf_add(&r->text, a->piece[MOTE_ANSWER].data, a->piece[MOTE_ANSWER].size);
    if (a->top < 0 || !a->has_token || (a->is_end && !a->ignores_end)) return;
    put_next(&r->scores);
    put_scores(&r->scores, a);
}

static const char *chat_finish(const answer *a) {
    if (answer_calls(a)) return "tool_calls";
    return a->result.stop == MOTE_STOP_LENGTH || a->result.stop == MOTE_STOP_CONTEXT ? "length" : "stop";
}

static void put_usage(buf *out, const answer *a) {
    putf(out, "\"usage\": {\"prompt_tokens\": %zu, \"completion_tokens\": %d, \"total_tokens\": %zu, "
             "\"prompt_tokens_details\": {\"cached_tokens\": %zu}}", a->prompt_count, a->result.generated_tokens,
        a->prompt_count + (size_t)a->result.generated_tokens, a->cached);
}

static void chat_stream_last(reply *r) {
    if (!r->begun) chat_chunk_role(r);
    chat_chunk_begin(r);
    putf(&r->event, "{\"index\": 0, \"delta\": {}, \"finish_reason\": \"%s\"}]}\n\n", chat_finish(&r->a));
    reply_event(r);
    if (r->usage) {
        chat_chunk_begin(r);
        buf_text(&r->event, "], ");
        put_usage(&r->event, &r->a);
        buf_text(&r->event, "}\n\n");
        reply_event(r);
    }
    buf_text(&r->event, "data: [DONE]\n\n");
    reply_event(r);
    connection_end(r->c);
}

static void chat_whole(reply *r) {
    buf *out = &r->event;
    putf(out, "{\"id\": \"%s\", \"object\": \"chat.completion\", \"created\": %ld, \"model\": ", r->id, r->created);
    put_text(out, r->a.server->name);
    buf_text(out, ", \"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", \"content\": ");
    if (answer_calls(&r->a) && !r->text.size) buf_text(out, "null");
    else put_quoted(out, r->text.data, r->text.size);
    if (r->thinking.size) buf_text(out, ", \"reasoning_content\": "), put_quoted(out, r->thinking.data, r->thinking.size);
    if (answer_calls(&r->a)) {
        buf_text(out, ", \"tool_calls\": [");
        put_chat_calls(out, r, 0, 0);
        buf_text(out, "]");
    }
    buf_text(out, "}, ");
    if (r->a.top >= 0) {
        buf_text(out, "\"logprobs\": {\"content\": [");
        buf_add(out, r->scores.data, r->scores.size);
        buf_text(out, "]}, ");
    }
    putf(out, "\"finish_reason\": \"%s\"}], ", chat_finish(&r->a));
    put_usage(out, &r->a);
    buf_text(out, "}");
    if (out->failed || r->text.failed || r->thinking.failed || r->scores.failed) refuse(&r->f, 503, NULL, "out of memory");
    else connection_reply(r->c, 200, "application/json", out->data, out->size);
}

// The error object: {"error": {...}}
static void put_failure(buf *out, const failure *f) {
    const char *type = f->status == 401 ? "authentication_error" : f->status == 404 ? "not_found_error"
                     : f->status == 503 ? "overloaded_error" : f->status >= 500 ? "server_error" : "invalid_request_error";
    buf_text(out, "{\"error\": {\"message\": ");
    put_text(out, f->message);
    putf(out, ", \"type\": \"%s\", \"param\": ", type);
    if (f->param[0]) put_text(out, f->param);
    else buf_text(out, "null");
    buf_text(out, ", \"code\": ");
    if (f->code) put_text(out, f->code);
    else buf_text(out, "null");
    buf_text(out, "}}");
}

static void put_anthropic_failure(buf *out, const failure *f) {
    const char *type = f->status == 401 ? "authentication_error" : f->status == 403 ? "permission_error"
                     : f->status == 404 ? "not_found_error" : f->status == 413 ? "request_too_large"
                     : f->status == 503 ? "overloaded_error" : f->status >= 500 ? "api_error" : "invalid_request_error";
    putf(out, "{\"type\": \"error\", \"error\": {\"type\": \"%s\", \"message\": ", type);
    put_text(out, f->message);
    buf_text(out, "}}");
}

// In the words of the API whose path it is.
static void reply_failure(connection *c, const failure *f) {
    buf out = {NULL, 0, 0, 0};
    if (!strncmp(c->in.request.path, "/v1/messages", 12)) put_anthropic_failure(&out, f);
    else put_failure(&out, f);
    connection_reply(c, f->status, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}

// A request that failed: as a whole or, when events are out, by one more, which `tell` writes.
static void reply_failed(reply *r, void (*tell)(reply *)) {
    if (!r->begun) {
        reply_failure(r->c, &r->f);
        return;
    }
    r->event.size = 0;
    tell(r);
    connection_end(r->c);
}

// Generates, passing the answer on; `last` ends it.
static void reply_run(reply *r, void (*last)(reply *), void (*tell)(reply *)) {
    if (!r->f.status && !answer_run(&r->a, 1, &r->f) && !r->c->gone) last(r);
    if (r->f.status) reply_failed(r, tell);
    reply_free(r);
}

static void openai_failure_event(reply *r) {
    buf_text(&r->event, "data: ");
    put_failure(&r->event, &r->f);
    buf_text(&r->event, "\n\n");
    reply_event(r);
}

static void chat_last(reply *r) {
    if (r->streams) chat_stream_last(r);
    else chat_whole(r);
}

static void serve_chat(server *s, connection *c, const json *j) {
    reply r;
    reply_open(&r, s, c, j, "chatcmpl-");
    r.a.event = chat_event;
    chat_request(&r);
    reply_run(&r, chat_last, openai_failure_event);
}
