/* serve/chat.c: POST /v1/chat/completions, as OpenAI's clients speak it. */

/* ---- What is asked ------------------------------------------------------------------------------------------------ */

static void chat_assistant_message(request *x, uint32_t message, const char *where) {
    fields m = {x->q.j, message, x->q.f};
    uint32_t calls = field_of(&m, "tool_calls", JSON_ARRAY), given = field(&m, "reasoning_content");
    buf text = {NULL, 0, 0, 0}, thought = {NULL, 0, 0, 0}, list = {NULL, 0, 0, 0};
    if (!given) given = field(&m, "reasoning");
    if (!given) given = field(&m, "thinking");             /* Ollama's */
    if (field(&m, "function_call")) refuse(x->q.f, 400, where, "%s: function_call is not supported, tool_calls is", where);
    put_content(x, &text, field(&m, "content"), CONTENT_SAID, where);
    if (given && node_type(&m, given) == JSON_STRING) put_inside(&thought, x->q.j, given);
    for (uint32_t k = calls + 1; calls && k < node_next(&m, calls); k = node_next(&m, k)) {
        fields call = {x->q.j, k, x->q.f};
        fields function = {x->q.j, field_of(&call, "function", JSON_OBJECT), x->q.f};
        fields custom = {x->q.j, field_of(&call, "custom", JSON_OBJECT), x->q.f};
        past_call c = {.id = field(&call, "id")};
        if (custom.object) c.name = field(&custom, "name"), c.input = field_of(&custom, "input", JSON_STRING);
        else if (function.object) c.name = field(&function, "name"), c.arguments = field(&function, "arguments");
        ask_call(x, &list, &c, where);
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
        uint32_t content = field(&m, "content"), images = field(&m, "images");     /* images: Ollama's */
        const int may_show = field_is(&m, "role", "user") || field_is(&m, "role", "tool");
        char where[32];
        snprintf(where, sizeof where, "messages[%u]", i);
        if (node_type(&x->q, k) != JSON_OBJECT) refuse(x->q.f, 400, where, "%s is no object", where);
        else if (images && !may_show && field_asks(&x->q, images, NULL))
            refuse(x->q.f, 400, where, "%s holds images: they may stand in what a user says and in a tool's result", where);
        else if (field_is(&m, "role", "system") || field_is(&m, "role", "developer")) ask_system(x, content, where);
        else if (field_is(&m, "role", "user")) ask_user(x, content, images, where);
        else if (field_is(&m, "role", "tool")) ask_result(x, field(&m, "tool_call_id"), content, images, where);
        else if (field_is(&m, "role", "assistant")) chat_assistant_message(x, k, where);
        else refuse(x->q.f, 400, where, "%s: the role must be system, developer, user, assistant or tool", where);
    }
}

static void chat_tool(request *x, uint32_t node) {
    fields tool = {x->q.j, node, x->q.f};
    int is_custom = field_is(&tool, "type", "custom");
    fields in = {x->q.j, field_of(&tool, is_custom ? "custom" : "function", JSON_OBJECT), x->q.f};
    if (!in.object) {
        refuse(x->q.f, 400, "tools", "a tool that is neither a function nor custom is not supported");
        return;
    }
    tool_fields t = {.name = field(&in, "name"), .description = field(&in, "description"), .is_custom = is_custom,
                     .strict = field(&in, "strict")};
    if (is_custom) t.format = field_of(&in, "format", JSON_OBJECT);
    else t.schema = field(&in, "parameters");
    ask_tool(x, &t);
}

/* All that makes the prompt. */
static void chat_prompt(request *x) {
    const fields *q = &x->q;
    int continues = 0, adds = -1;
    ask_thinking(x);
    ask_effort(x, q, "reasoning_effort");
    chat_ask_messages(x);
    openai_tools(x, chat_tool);
    field_flag(q, "add_generation_prompt", &adds);
    field_flag(q, "continue_final_message", &continues);
    if (continues && adds > 0)
        refuse(q->f, 400, "continue_final_message", "continue_final_message and add_generation_prompt cannot both be true");
    if (continues && !q->f->status) ask_continued(x, "continue_final_message");
    x->adds_prompt = adds != 0;
    ask_render(x);
}

static void chat_request(reply *r) {
    request *x = &r->request;
    const fields *q = &x->q;
    answer *a = &r->a;
    int logprobs = 0, top = 0;
    ask_common(x, API_CHAT, "stop");
    ask_openai(a, q);
    ask_predict(a, q);
    field_whole(q, "max_tokens", 0, INT_MAX, &a->max_tokens);
    field_whole(q, "max_completion_tokens", 0, INT_MAX, &a->max_tokens);
    field_flag(q, "logprobs", &logprobs);
    field_whole(q, "top_logprobs", 0, TOP_MOST, &top);
    if (logprobs) a->top = top;
    field_flag(q, "return_token_ids", &a->gives_ids);
    field_flag(q, "stream", &r->streams);
    fields options = {q->j, field_of(q, "stream_options", JSON_OBJECT), q->f};
    if (options.object) field_flag(&options, "include_usage", &r->usage);
    ask_format(x, field_of(q, "response_format", JSON_OBJECT), "response_format");
    chat_prompt(x);
}

/* ---- What is answered --------------------------------------------------------------------------------------------- */

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

/* {"token": ..., "logprob": ..., "bytes": ..., "top_logprobs": [...]} of the last token. */
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

/* number: among the calls of the answer */
static void put_chat_call(buf *out, const reply *r, int number, int streams) {
    const tool_call *call = answer_call(&r->a, number);
    const known_tool *tool = find_tool(&r->request, call->name);
    int is_custom = tool && tool->is_custom;
    buf_text(out, "{");
    if (streams) putf(out, "\"index\": %d, ", number);
    putf(out, "\"id\": \"call_%s_%d\", \"type\": \"%s\", \"%s\": {\"name\": ", r->id + 9, number, is_custom ? "custom" : "function",
         is_custom ? "custom" : "function");
    put_text(out, call->name);
    buf_text(out, is_custom ? ", \"input\": " : ", \"arguments\": ");
    if (is_custom) put_custom_input(out, call);
    else put_text(out, call->arguments);
    buf_text(out, "}}");
}

/* The calls from number `first` on. */
static void put_chat_calls(buf *out, const reply *r, int first, int streams) {
    for (int i = first; i < answer_calls(&r->a); i++) {
        if (i > first) buf_text(out, ", ");
        put_chat_call(out, r, i, streams);
    }
}

static void chat_chunk_role(reply *r) {
    if (r->opened) return;
    r->opened = 1;
    chat_chunk_begin(r);
    buf_text(&r->event, "{\"index\": 0, \"delta\": {\"role\": \"assistant\", \"content\": \"\"}, "
                        "\"finish_reason\": null}]}\n\n");
    reply_event(r);
}

/* A chunk for a token. One that brings no text yet has an empty one, but for the end. */
static void chat_chunk(reply *r) {
    answer *a = &r->a;
    const buf *thinking = &a->piece[MOTE_THINKING], *text = &a->piece[MOTE_ANSWER];
    int calls = answer_calls(a) > a->calls_reported, comma = 0;
    if (a->is_end && !a->ignores_end && !thinking->size && !text->size && !calls) return;
    chat_chunk_role(r);
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
        put_chat_calls(&r->event, r, a->calls_reported, 1);
        buf_text(&r->event, "]");
    }
    buf_text(&r->event, "}");
    if (a->top >= 0 && a->has_token) {
        buf_text(&r->event, ", \"logprobs\": {\"content\": [");
        put_scores(&r->event, a);
        buf_text(&r->event, "]}");
    }
    if (a->gives_ids && a->has_token) putf(&r->event, ", \"token_ids\": [%" PRId32 "]", a->token);
    buf_text(&r->event, ", \"finish_reason\": null}]");
    if (a->gives_timings) put_timings(&r->event, a, 0);
    buf_text(&r->event, "}\n\n");
    reply_event(r);
}

static void chat_progress(answer *a, int what) {
    reply *r = (reply *)a->user;
    reply_begin(r);
    if (a->gives_progress && a->state == ANSWER_READS) {
        chat_chunk_role(r);
        chat_chunk_begin(r);
        buf_text(&r->event, "{\"index\": 0, \"delta\": {}, \"finish_reason\": null}]");
        put_progress(&r->event, a);
        buf_text(&r->event, "}\n\n");
    } else if (what == PROGRESS_TICK) {
        put_comment(&r->event, a);
        buf_text(&r->event, "\n");
    }
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
    if (a->top < 0 || !a->has_token || (a->is_end && !a->ignores_end) || reply_gathered(r, r->scores.size)) return;
    put_next(&r->scores);
    put_scores(&r->scores, a);
}

static const char *openai_finish(const answer *a) {
    return answer_is_cut(a) ? "length" : answer_calls(a) ? "tool_calls" : "stop";
}

/* "finish_reason" and, as vLLM has it, which stop text it was. */
static void put_finish(buf *out, const answer *a) {
    const char *stop = answer_stop_text(a);
    putf(out, "\"finish_reason\": \"%s\", \"stop_reason\": ", openai_finish(a));
    if (stop) put_text(out, stop);
    else buf_text(out, "null");
}

static void put_usage(buf *out, const answer *a) {
    putf(out, "\"usage\": {\"prompt_tokens\": %zu, \"completion_tokens\": %d, \"total_tokens\": %zu, "
             "\"prompt_tokens_details\": {\"cached_tokens\": %zu}, \"completion_tokens_details\": {\"reasoning_tokens\": %d}}",
         a->prompt_count, a->result.generated_tokens, a->prompt_count + (size_t)a->result.generated_tokens, a->cached,
         a->result.thinking_tokens);
}

static void chat_stream_last(reply *r) {
    chat_chunk_role(r);
    chat_chunk_begin(r);
    buf_text(&r->event, "{\"index\": 0, \"delta\": {}, ");
    put_finish(&r->event, &r->a);
    buf_text(&r->event, "}]");
    if (r->usage) {
        buf_text(&r->event, "}\n\n");
        reply_event(r);
        chat_chunk_begin(r);
        buf_text(&r->event, "], ");
        put_usage(&r->event, &r->a);
    }
    put_timings(&r->event, &r->a, 1);
    buf_text(&r->event, "}\n\ndata: [DONE]\n\n");
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
    put_finish(out, &r->a);
    buf_text(out, "}], ");
    put_usage(out, &r->a);
    put_timings(out, &r->a, 1);
    buf_text(out, "}");
    reply_whole(r, r->text.failed || r->thinking.failed || r->scores.failed);
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
    if (r.streams) r.a.progress = chat_progress;
    reply_run(&r, chat_last, openai_failure_event);
}
