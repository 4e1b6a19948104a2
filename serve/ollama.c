/* serve/ollama.c: POST /api/chat and /api/generate, GET /api/tags, /api/ps and /api/version, as clients of Ollama speak them: lines of
   JSON, of which the last one is done. */

typedef struct ollama {
    reply r;
    double since;                          /* clock: when it was asked */
    int is_chat;                           /* else /api/generate */
} ollama;

/* ---- What is asked ------------------------------------------------------------------------------------------------ */

/* true and false, or an effort. */
static void ollama_thinking(request *x) {
    const uint32_t think = field(&x->q, "think");
    if (think && node_type(&x->q, think) == JSON_STRING) ask_effort(x, &x->q, "think");
    else ask_think_flag(x, &x->q, "think");
}

/* "json", or a schema. */
static void ollama_format(request *x) {
    const uint32_t format = field(&x->q, "format");
    if (!format || field_is(&x->q, "format", "")) return;
    if (node_type(&x->q, format) == JSON_OBJECT) ask_schema(x, format, "format");
    else if (field_is(&x->q, "format", "json")) ask_schema(x, 0, "format");
    else refuse(x->q.f, 400, "format", "format must be \"json\" or a JSON schema");
}

/* What all answers have: sampling and ends stand in "options". */
static void ollama_common(ollama *o, int api) {
    request *x = &o->r.request;
    const uint32_t given = field_of(&x->q, "options", JSON_OBJECT);
    const fields options = {x->q.j, given ? given : 1, x->q.f};        /* 1: the first key of the request, which has no fields */
    int most = -1;
    check_fields(&x->q, api, &x->noted);
    ask_common_in(x, &options, given ? API_OLLAMA_OPTIONS : 0, "stop");
    field_whole(&options, "num_predict", -2, INT_MAX, &most);
    o->r.a.max_tokens = most < 0 ? -1 : most;
    field_flag(&x->q, "stream", &o->r.streams);
    ollama_thinking(x);
    ollama_format(x);
}

static void ollama_chat_request(ollama *o) {
    request *x = &o->r.request;
    ollama_common(o, API_OLLAMA_CHAT);
    chat_ask_messages(x);
    openai_tools(x, chat_tool);
    ask_render(x);
}

static void ollama_generate_request(ollama *o) {
    request *x = &o->r.request;
    const uint32_t prompt = field_of(&x->q, "prompt", JSON_STRING), system = field_of(&x->q, "system", JSON_STRING), images = field(&x->q, "images");
    ollama_common(o, API_OLLAMA_GENERATE);
    field_flag(&x->q, "raw", &o->r.a.is_raw);
    if (x->q.f->status) return;
    if (o->r.a.is_raw && images && field_asks(&x->q, images, NULL)) refuse(x->q.f, 400, "images", "images have no place in a raw prompt");
    if (o->r.a.is_raw) {
        completion_prompt(&o->r.a, x->q.j, prompt, "prompt", x->q.f);
        return;
    }
    if (system) ask_system(x, system, "system");
    ask_user(x, prompt, images, "prompt");
    ask_render(x);
}

/* ---- What is answered --------------------------------------------------------------------------------------------- */

/* The calls from number `first` on. */
static void put_ollama_calls(buf *out, const reply *r, int first) {
    for (int i = first; i < answer_calls(&r->a); i++) {
        putf(out, "%s{\"id\": \"call_%s_%d\", \"function\": {\"name\": ", i > first ? ", " : "", r->id, i);
        put_text(out, answer_call(&r->a, i)->name);
        buf_text(out, ", \"arguments\": ");
        buf_text(out, answer_call(&r->a, i)->arguments);
        buf_text(out, "}}");
    }
}

/* {"model": ..., "created_at": ..., and the text, thought and calls from number `first` on; not yet closed. */
static void ollama_line(ollama *o, const buf *text, const buf *thinking, int first) {
    buf *out = &o->r.event;
    buf_text(out, "{\"model\": ");
    put_text(out, o->r.a.server->name);
    buf_text(out, ", \"created_at\": \"");
    put_time(out);
    buf_text(out, o->is_chat ? "\", \"message\": {\"role\": \"assistant\", \"content\": " : "\", \"response\": ");
    put_quoted(out, text->data, text->size);
    if (thinking->size) buf_text(out, ", \"thinking\": "), put_quoted(out, thinking->data, thinking->size);
    if (first < answer_calls(&o->r.a)) {
        buf_text(out, ", \"tool_calls\": [");
        put_ollama_calls(out, &o->r, first);
        buf_text(out, "]");
    }
    if (o->is_chat) buf_text(out, "}");
}

static void ollama_event(answer *a) {
    ollama *o = (ollama *)a->user;
    const buf *text = &a->piece[MOTE_ANSWER], *thinking = &a->piece[MOTE_THINKING];
    if (!o->r.streams) {
        buf_add(&o->r.text, text->data, text->size);
        buf_add(&o->r.thinking, thinking->data, thinking->size);
    } else if (text->size || thinking->size || answer_calls(a) > a->calls_reported) {
        ollama_line(o, text, thinking, a->calls_reported);
        buf_text(&o->r.event, ", \"done\": false}\n");
        reply_event(&o->r);
    }
}

/* Lines have no comments: an empty text is the sign of life. */
static void ollama_progress(answer *a, int what) {
    static const buf nothing = {NULL, 0, 0, 0};
    ollama *o = (ollama *)a->user;
    reply_begin(&o->r);
    if (what != PROGRESS_TICK) return;
    ollama_line(o, &nothing, &nothing, answer_calls(a));
    buf_text(&o->r.event, ", \"done\": false}\n");
    reply_event(&o->r);
}

static double nanoseconds(double seconds) {
    return floor(seconds * 1e9);
}

static void ollama_last(reply *r) {
    ollama *o = (ollama *)r;
    const answer *a = &r->a;
    const int lost = r->text.failed || r->thinking.failed;
    ollama_line(o, &r->text, &r->thinking, r->streams ? answer_calls(a) : 0);
    putf(&r->event, ", \"done\": true, \"done_reason\": \"%s\", \"total_duration\": %.0f, \"load_duration\": 0, \"prompt_eval_count\": %zu, ",
         answer_is_cut(a) ? "length" : "stop", nanoseconds(clock_seconds() - o->since), a->prompt_count);
    putf(&r->event, "\"prompt_eval_duration\": %.0f, \"eval_count\": %d, \"eval_duration\": %.0f}\n", nanoseconds(a->result.prompt_seconds),
         a->result.generated_tokens, nanoseconds(a->result.generate_seconds));
    if (!r->streams) {
        reply_whole(r, lost);
        return;
    }
    reply_event(r);
    connection_end(r->c);
}

static void ollama_failure_line(reply *r) {
    put_ollama_failure(&r->event, &r->f);
    buf_text(&r->event, "\n");
    reply_event(r);
}

/* A request that says nothing asks for the model to be loaded, which it is. */
static void ollama_loaded(ollama *o) {
    static const buf nothing = {NULL, 0, 0, 0};
    ollama_line(o, &nothing, &nothing, 0);
    buf_text(&o->r.event, ", \"done\": true, \"done_reason\": \"load\"}\n");
    reply_whole(&o->r, 0);
    if (o->r.f.status) reply_failure(o->r.c, &o->r.f);
    reply_free(&o->r);
}

/* 0: the request says nothing. */
static int ollama_open(ollama *o, server *s, connection *c, const json *j, int is_chat) {
    memset(o, 0, sizeof *o);
    o->since = clock_seconds();
    o->is_chat = is_chat;
    reply_open(&o->r, s, c, j, "ollama-");
    o->r.a.event = ollama_event;
    o->r.a.user = o;
    o->r.streams = 1;
    o->r.stream_type = "application/x-ndjson";
    const fields *q = &o->r.request.q;
    const uint32_t says = field(q, is_chat ? "messages" : "prompt"), shows = is_chat ? 0 : field(q, "images");
    return (says && j->nodes[says].size) || (shows && j->nodes[shows].size);
}

static void serve_ollama(server *s, connection *c, const json *j, int is_chat) {
    ollama o;
    if (!ollama_open(&o, s, c, j, is_chat)) {
        ollama_loaded(&o);
        return;
    }
    if (is_chat) ollama_chat_request(&o);
    else ollama_generate_request(&o);
    if (o.r.streams) o.r.a.progress = ollama_progress;
    reply_run(&o.r, ollama_last, ollama_failure_line);
}

static void serve_ollama_chat(server *s, connection *c, const json *j) {
    serve_ollama(s, c, j, 1);
}

static void serve_ollama_generate(server *s, connection *c, const json *j) {
    serve_ollama(s, c, j, 0);
}

/* ---- The model ---------------------------------------------------------------------------------------------------- */

static void serve_ollama_version(server *s, connection *c, const json *j) {
    buf out = {NULL, 0, 0, 0};
    (void)s;
    (void)j;
    putf(&out, "{\"version\": \"%s\"}", mote_version());
    connection_reply(c, 200, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}

/* The one model there is. It stays in memory as long as the server runs. */
static void serve_ollama_tags(server *s, connection *c, const json *j) {
    const mote_info *info = mote_model_info(s->model);
    const uint64_t on_gpus = on_gpu(info) ? info->weight_bytes * (uint64_t)s->replica_count : 0;
    buf out = {NULL, 0, 0, 0};
    (void)j;
    buf_text(&out, "{\"models\": [{\"name\": ");
    put_text(&out, s->name);
    buf_text(&out, ", \"model\": ");
    put_text(&out, s->name);
    buf_text(&out, ", \"modified_at\": \"");
    put_time_of(&out, s->since, 0);
    putf(&out, "\", \"size\": %" PRIu64 ", \"size_vram\": %" PRIu64 ", \"digest\": \"\", \"expires_at\": \"9999-12-31T23:59:59Z\", ",
         info->weight_bytes, on_gpus);
    putf(&out, "\"context_length\": %d, \"details\": {\"parent_model\": \"\", \"format\": \"safetensors\", \"family\": \"%s\", ", s->context,
         info->architecture);
    putf(&out, "\"families\": [\"%s\"], \"parameter_size\": \"%.1f%s\", \"quantization_level\": \"\"}}]}", info->architecture,
         (double)info->parameters / (info->parameters < 1000000000 ? 1e6 : 1e9), info->parameters < 1000000000 ? "M" : "B");
    connection_reply(c, 200, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}
