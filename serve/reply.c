/* serve/reply.c: an answer on its way to a client, whatever API it speaks: streams and whole answers, failures, and what all of
   them tell. It knows how answers go out, and nothing of how an API words its own. */

/* An answer on its way to a client of this or of another API. */
typedef struct reply {
    answer a;
    request request;
    failure f;
    connection *c;
    size_t held;                           /* by the connection, of the memory for requests, when the answer began */
    const char *more_head;                 /* the connection's own */
    buf head;                              /* and what is told beside it */
    char id[40];
    long created;
    const char *stream_type;               /* NULL: events */
    int streams, usage;                    /* in events; with a last one of the tokens used */
    int begun, opened;                     /* the head of a stream is out; so is its first event */
    int streams_overflow;                  /* a prompt that is too long is an event, too */
    buf thinking, text, scores;            /* all so far, when it is one answer */
    buf event;                             /* at hand */
    const struct part_writer *writer;      /* of APIs whose answers consist of parts: see parts.c */
    int part, parts;                       /* the open one: PART_...; those before it */
    const tool_call *part_call;            /* of an open PART_CALL */
    buf part_text, items;                  /* of the open one; the complete ones, as JSON with commas between them */
    int sequence;
} reply;

static void reply_free(reply *r) {
    r->c->more_head = r->more_head;
    answer_free(&r->a);
    ask_close(&r->request);
    buf_free(&r->head);
    buf_free(&r->thinking);
    buf_free(&r->text);
    buf_free(&r->scores);
    buf_free(&r->event);
    buf_free(&r->part_text);
    buf_free(&r->items);
}

/* A name that no other answer of this server has. */
static void reply_name(char *to, size_t capacity, const char *prefix) {
    static uint64_t last;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    uint64_t n = ++last;
    pthread_mutex_unlock(&lock);
    snprintf(to, capacity, "%s%08lx%08llx", prefix, (unsigned long)time(NULL), (unsigned long long)n);
}

static void openai_too_long(const answer *a, failure *f) {
    refuse(f, 400, NULL, "This model's maximum context length is %d tokens. However, your request has %zu tokens, and its answer at least %d. "
                         "Please reduce the length of the prompt.", a->server->context, a->prompt_count, a->max_tokens != 0);
}

/* The same of one of several texts, which have no answer. field: the list; what: a word for what it holds. */
static void text_too_long(const answer *a, failure *f, const char *field, const char *what, int index) {
    refuse(f, 400, field, "This model's maximum context length is %d tokens. However, %s %d has %zu tokens. Please reduce the length of the prompt.",
           a->server->context, what, index, a->prompt_count);
}

static void reply_open(reply *r, server *s, connection *c, const json *j, const char *prefix) {
    memset(r, 0, sizeof *r);
    r->c = c;
    r->more_head = c->more_head;
    r->created = (long)time(NULL);
    r->a.server = s;
    r->a.client = c;
    r->a.user = r;
    r->a.top = -1;
    r->a.max_tokens = -1;
    r->a.too_long = openai_too_long;
    r->request.a = &r->a;
    r->request.q.j = j;
    r->request.q.f = &r->f;
    r->request.adds_prompt = 1;
    r->held = c->taken;
    reply_name(r->id, sizeof r->id, prefix);
    if (*prefix) snprintf(c->id, sizeof c->id, "%s", r->id);
}

/* Tells in the head which fields of the request were passed over. */
static void reply_note(reply *r) {
    if (!r->request.noted.size) return;
    r->head.size = 0;
    buf_text(&r->head, r->more_head);
    buf_text(&r->head, "X-Mote-Passed-Over: ");
    buf_add(&r->head, r->request.noted.data, r->request.noted.size);
    buf_add(&r->head, "\r\n", 3);
    if (!r->head.failed) r->c->more_head = r->head.data;
}

/* The head of a stream, at once. */
static void reply_begin(reply *r) {
    if (r->begun) return;
    r->begun = 1;
    reply_note(r);
    connection_begin(r->c, r->stream_type ? r->stream_type : "text/event-stream");
    connection_flush(r->c, 0);
}

/* Sends the event at hand. */
static void reply_event(reply *r) {
    reply_begin(r);
    if (r->event.failed) r->c->gone = 1;
    connection_piece(r->c, r->event.data, r->event.size);
    r->event.size = 0;
    r->a.last_sent = clock_seconds();
}

/* Sends the whole answer, which is at hand. lost: something of it is missing. */
static void reply_whole(reply *r, int lost) {
    if (lost || r->event.failed) {
        refuse(&r->f, 503, NULL, "out of memory");
        return;
    }
    reply_note(r);
    connection_reply(r->c, 200, "application/json", r->event.data, r->event.size);
}

/* 1, and refused: so many bytes of log-probabilities are more than are kept for an answer that does not stream, or than the
   request may take. */
static int reply_gathered(reply *r, size_t bytes) {
    enum { GATHER_MOST = 64 << 20, COPIES = 4 };           /* gathered, and as a part of the answer: both grow by doubling */
    int status = bytes <= GATHER_MOST ? connection_take(r->c, r->held + COPIES * bytes) : 400;
    if (!status) return 0;
    r->a.enough = 1;
    if (status != 400) return refuse(&r->f, status, NULL, "%s", r->c->in.problem);
    return refuse(&r->f, 400, "logprobs", "logprobs of so many tokens take more than %d MiB: ask for fewer, or for a stream",
                  GATHER_MOST >> 20);
}

/* A comment, which clients skip, so that they see that there is somebody. */
static void put_comment(buf *out, const answer *a) {
    if (a->state == ANSWER_WAITS) buf_text(out, ": waiting\n");
    if (a->state == ANSWER_READS) putf(out, ": reading %zu of %zu\n", a->read, a->prompt_count);
    if (a->state == ANSWER_WRITES) buf_text(out, ": writing\n");
}

/* , "timings": {...} as llama.cpp's clients read them. over: of the whole answer, else so far. */
static void put_timings(buf *out, const answer *a, int over) {
    double prompt = 1e3 * a->result.prompt_seconds, predicted = 1e3 * a->result.generate_seconds;
    size_t read = a->prompt_count - a->cached, n = (size_t)a->result.generated_tokens;
    if (!over) predicted = 1e3 * (clock_seconds() - a->generates_since);
    putf(out, ", \"timings\": {\"cache_n\": %zu, \"prompt_n\": %zu, \"prompt_ms\": %.3f, ", a->cached, read, prompt);
    putf(out, "\"prompt_per_token_ms\": %.6g, \"prompt_per_second\": %.6g, ", read ? prompt / (double)read : 0,
         prompt > 0 ? 1e3 * (double)read / prompt : 0);
    putf(out, "\"predicted_n\": %zu, \"predicted_ms\": %.3f, \"predicted_per_token_ms\": %.6g, \"predicted_per_second\": %.6g", n,
         predicted, n ? predicted / (double)n : 0, predicted > 0 ? 1e3 * (double)n / predicted : 0);
    if (a->drafted) putf(out, ", \"draft_n\": %" PRIu64 ", \"draft_n_accepted\": %" PRIu64, a->drafted, a->accepted);
    buf_text(out, "}");
}

/* , "prompt_progress": {...} as llama.cpp has it. */
static void put_progress(buf *out, const answer *a) {
    putf(out, ", \"prompt_progress\": {\"total\": %zu, \"cache\": %zu, \"processed\": %zu, \"time_ms\": %.0f}", a->prompt_count,
         a->cached, a->read, 1e3 * (clock_seconds() - a->began));
}

/* ---- Failures --------------------------------------------------------------------------------------------------- */

/* The error object: {"error": {...}} */
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

static void put_ollama_failure(buf *out, const failure *f) {
    buf_text(out, "{\"error\": ");
    put_text(out, f->message);
    buf_text(out, "}");
}

/* In the words of the API whose path it is. */
static void reply_failure(connection *c, const failure *f) {
    buf out = {NULL, 0, 0, 0};
    c->reported = *f;
    if (!strncmp(c->in.request.path, "/v1/messages", 12)) put_anthropic_failure(&out, f);
    else if (!strncmp(c->in.request.path, "/api/", 5)) put_ollama_failure(&out, f);
    else put_failure(&out, f);
    connection_reply(c, f->status, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}

/* A request that failed: as a whole or, when events are out, by one more, which `tell` writes. */
static void reply_failed(reply *r, void (*tell)(reply *)) {
    if (!r->begun) {
        reply_failure(r->c, &r->f);
        return;
    }
    r->event.size = 0;
    r->c->reported = r->f;
    tell(r);
    connection_end(r->c);
}

/* Generates, passing the answer on; `last` ends it. */
static void reply_run(reply *r, void (*last)(reply *), void (*tell)(reply *)) {
    if (!r->f.status && !answer_run(&r->a, &r->f) && !r->f.status && !r->c->gone) last(r);
    if (r->f.status && r->streams_overflow && r->f.code && !strcmp(r->f.code, "context_length_exceeded")) reply_begin(r);
    if (r->f.status) reply_failed(r, tell);
    reply_free(r);
}
