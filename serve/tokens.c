/* serve/tokens.c: POST /v1/completions, which goes on with a text or with token ids; /tokenize and /detokenize. */

/* A list of token ids. 0: it is none. */
static int node_ids(const json *j, uint32_t list, int vocab, buf *ids) {
    for (uint32_t k = list + 1; k < j->nodes[list].next; k = j->nodes[k].next) {
        uint64_t id;
        if (!json_u64(j, k, &id) || id >= (uint64_t)vocab) return 0;
        int32_t one = (int32_t)id;
        buf_add(ids, &one, sizeof one);
    }
    return !ids->failed;
}

/* A prompt, a text or a list of ids, into the answer. Control tokens in the text are taken for such: who sends it has put the
   whole prompt together. */
static void completion_prompt(answer *a, const json *j, uint32_t prompt, const char *name, failure *f) {
    mote_error error = {0, ""};
    if (j->nodes[prompt].type == JSON_STRING) {
        size_t n = json_string(j, prompt, NULL, 0);
        char *text = (char *)malloc(n + 1);
        if (text) json_string(j, prompt, text, n);
        a->prompt = text ? token_list(a->server->model, text, n, 1, -1, &a->prompt_count, &error) : NULL;
        free(text);
        if (!a->prompt && !refuse_error(f, &error)) refuse(f, 503, NULL, "out of memory");
    } else if (j->nodes[prompt].type != JSON_ARRAY) {
        refuse(f, 400, name, "%s must be a text or token ids", name);
    } else {
        buf ids = {NULL, 0, 0, 0};
        if (!node_ids(j, prompt, mote_model_info(a->server->model)->vocab_size, &ids))
            refuse(f, 400, name, "%s must be token ids of the vocabulary, which has %d", name, mote_model_info(a->server->model)->vocab_size);
        a->prompt = (int32_t *)(void *)ids.data;
        a->prompt_count = ids.size / sizeof(int32_t);
    }
}

typedef struct completion {
    reply r;
    int index, echo;                       /* of the prompt among several; it comes before the answer */
    int is_native, is_alone;               /* answers also hold llama.cpp's own fields; there is one prompt */
    size_t offset;                         /* bytes of the text so far */
    utf8_stream cut;                       /* a character of the echo that is not whole */
    buf tokens, values, tops, offsets;     /* of logprobs: the insides of its lists */
    buf choices;                           /* that are complete */
    int prompt_tokens, generated;          /* of all prompts */
    size_t cached;
} completion;

static void completion_ask(completion *p) {
    request *x = &p->r.request;
    const fields *q = &x->q;
    answer *a = &p->r.a;
    int top = -1;
    ask_common(x, API_COMPLETIONS, "stop");
    ask_openai(a, q);
    a->max_tokens = p->is_native ? -1 : 16;
    ask_predict(a, q);
    field_whole(q, "max_tokens", 0, INT_MAX, &a->max_tokens);
    a->is_raw = 1;
    field_whole(q, "logprobs", 0, TOP_MOST, &top);
    a->top = top;
    field_flag(q, "echo", &p->echo);
    a->echo = p->echo && top >= 0;
    a->forgets |= a->echo;                 /* all rows of logits are needed */
    field_flag(q, "stream", &p->r.streams);
    fields options = {q->j, field_of(q, "stream_options", JSON_OBJECT), q->f};
    if (options.object) field_flag(&options, "include_usage", &p->r.usage);
}

static void put_token_text(buf *out, const server *s, int32_t id, size_t *bytes) {
    size_t n = 0;
    const char *text = mote_token_bytes(s->model, id, &n);
    buf clean = {NULL, 0, 0, 0};
    if (text) utf8_clean(text, n, &clean);
    put_quoted(out, clean.data, clean.size);
    *bytes = clean.size;
    buf_free(&clean);
}

static double bounded(float logprob) {
    return logprob < -9999 ? -9999 : (double)logprob;
}

/* A token after the others in logprobs: what it was, and what else it could have been. */
static void completion_score(completion *p, const mote_logprob *token, const mote_logprob *top, int first) {
    const server *s = p->r.a.server;
    size_t n, m;
    if (reply_gathered(&p->r, p->choices.size + p->tokens.size + p->values.size + p->tops.size + p->offsets.size)) return;
    put_next(&p->tokens);
    put_next(&p->values);
    put_next(&p->tops);
    put_next(&p->offsets);
    put_token_text(&p->tokens, s, token->id, &n);
    putf(&p->offsets, "%zu", p->offset);
    p->offset += n;
    if (first) {                           /* nothing is before it */
        buf_text(&p->values, "null");
        buf_text(&p->tops, "null");
        return;
    }
    putf(&p->values, "%.7g", bounded(token->logprob));
    buf_text(&p->tops, "{");
    for (int i = 0; i < p->r.a.top; i++) {
        if (i) buf_text(&p->tops, ", ");
        put_token_text(&p->tops, s, top[i].id, &m);
        putf(&p->tops, ": %.7g", bounded(top[i].logprob));
    }
    buf_text(&p->tops, "}");
}

static void put_completion_scores(completion *p, buf *out) {
    buf_text(out, "\"logprobs\": {\"tokens\": [");
    buf_add(out, p->tokens.data, p->tokens.size);
    buf_text(out, "], \"token_logprobs\": [");
    buf_add(out, p->values.data, p->values.size);
    buf_text(out, "], \"top_logprobs\": [");
    buf_add(out, p->tops.data, p->tops.size);
    buf_text(out, "], \"text_offset\": [");
    buf_add(out, p->offsets.data, p->offsets.size);
    buf_text(out, "]}, ");
    p->tokens.size = p->values.size = p->tops.size = p->offsets.size = 0;
}

static void completion_begin(completion *p, buf *out) {
    putf(out, "{\"id\": \"%s\", \"object\": \"text_completion\", \"created\": %ld, \"model\": ", p->r.id, p->r.created);
    put_text(out, p->r.a.server->name);
    buf_text(out, ", \"choices\": [");
}

static void put_choice(completion *p, buf *out, const buf *text, int finishes) {
    putf(out, "{\"index\": %d, \"text\": ", p->index);
    put_quoted(out, text->data, text->size);
    buf_text(out, ", ");
    out->failed |= p->tokens.failed | p->values.failed | p->tops.failed | p->offsets.failed | text->failed;
    if (p->r.a.top >= 0) put_completion_scores(p, out);
    else buf_text(out, "\"logprobs\": null, ");
    if (finishes) put_finish(out, &p->r.a);
    else buf_text(out, "\"finish_reason\": null");
    buf_text(out, "}");
}

/* What llama.cpp's server calls it, beside OpenAI's. */
static void put_native(completion *p, buf *out, const buf *text, int finishes) {
    const answer *a = &p->r.a;
    buf_text(out, ", \"content\": ");
    put_quoted(out, text->data, text->size);
    putf(out, ", \"index\": %d, \"stop\": %s, \"tokens_predicted\": %d, \"tokens_evaluated\": %zu, \"tokens_cached\": %zu",
         p->r.streams ? p->index : 0, finishes ? "true" : "false", a->result.generated_tokens, a->prompt_count, a->cached);
    if (p->r.streams && a->has_token) putf(out, ", \"tokens\": [%" PRId32 "]", a->token);
    else buf_text(out, ", \"tokens\": []");
    if (!finishes) return;
    const char *stop = answer_stop_text(a);
    putf(out, ", \"stop_type\": \"%s\", \"truncated\": %s, \"stopping_word\": ", answer_is_cut(a) ? "limit" : stop ? "word" : "eos",
         a->result.stop == MOTE_STOP_CONTEXT ? "true" : "false");
    put_text(out, stop ? stop : "");
}

static void completion_chunk(completion *p, const buf *text, int finishes) {
    buf *out = &p->r.event;
    buf_text(out, "data: ");
    completion_begin(p, out);
    put_choice(p, out, text, finishes);
    buf_text(out, "]");
    if (p->is_native) put_native(p, out, text, finishes);
    if (p->r.a.gives_timings || finishes) put_timings(out, &p->r.a, finishes);
    buf_text(out, "}\n\n");
    reply_event(&p->r);
}

static void completion_progress(answer *a, int what) {
    completion *p = (completion *)a->user;
    buf *out = &p->r.event;
    reply_begin(&p->r);
    if (a->gives_progress && a->state == ANSWER_READS) {
        buf_text(out, "data: ");
        completion_begin(p, out);
        putf(out, "{\"index\": %d, \"text\": \"\", \"logprobs\": null, \"finish_reason\": null}]", p->index);
        put_progress(out, a);
        buf_text(out, "}\n\n");
    } else if (what == PROGRESS_TICK) {
        put_comment(out, a);
        buf_text(out, "\n");
    }
    reply_event(&p->r);
}

static void completion_event(answer *a) {
    completion *p = (completion *)a->user;
    const buf *text = &a->piece[MOTE_ANSWER];
    int is_text = a->has_token && !(a->is_end && !a->ignores_end);
    if (a->has_token && a->top >= 0) completion_score(p, &a->logprobs[0], a->logprobs + 1, 0);
    if (!p->r.streams) buf_add(&p->r.text, text->data, text->size);
    else if (is_text || text->size) completion_chunk(p, text, 0);
}

/* n tokens of the prompt have been read: they are the beginning of the answer, if that is wanted. */
static void completion_echo(answer *a, size_t at, size_t n) {
    completion *p = (completion *)a->user;
    buf text = {NULL, 0, 0, 0}, *out = p->r.streams ? &text : &p->r.text;
    if (!p->echo) return;
    for (size_t i = 0; i < n; i++) {
        size_t size = 0;
        const char *bytes = mote_token_bytes(a->server->model, a->prompt[at + i], &size);
        if (bytes) utf8_stream_push(&p->cut, bytes, size, out);
        if (a->echo) completion_score(p, &a->scores[i], a->top ? a->alternatives + i * (size_t)a->top : NULL, !(at + i));
    }
    if (at + n == a->prompt_count) utf8_stream_end(&p->cut, out);
    if (p->r.streams) completion_chunk(p, &text, 0);
    buf_free(&text);
}

static void answer_again(answer *a) {
    free(a->prompt);
    free(a->logprobs);
    free(a->scores);
    free(a->alternatives);
    a->prompt = NULL;
    a->logprobs = a->scores = a->alternatives = NULL;
    a->prompt_count = a->cached = a->read = a->piece_begins = 0;
    a->state = ANSWER_WAITS;
    a->drafted = a->accepted = 0;
    memset(&a->result, 0, sizeof a->result);
}

/* One of the prompts, up to its choice. */
static void completion_run(completion *p, uint32_t prompt) {
    answer *a = &p->r.a;
    answer_again(a);
    p->r.text.size = 0;
    p->offset = 0;
    completion_prompt(a, p->r.request.q.j, prompt, "prompt", &p->r.f);
    if (p->r.f.status || answer_run(a, &p->r.f) || p->r.f.status || p->r.c->gone) return;
    buf nothing = {NULL, 0, 0, 0};
    if (p->r.streams) completion_chunk(p, &nothing, 1);
    else {
        put_next(&p->choices);
        put_choice(p, &p->choices, &p->r.text, 1);
    }
    p->prompt_tokens += (int)a->prompt_count;
    p->generated += a->result.generated_tokens;
    p->cached += a->cached;
}

static void put_completion_usage(buf *out, const completion *p) {
    putf(out, "\"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": %d, \"total_tokens\": %d, "
             "\"prompt_tokens_details\": {\"cached_tokens\": %zu}}", p->prompt_tokens, p->generated,
        p->prompt_tokens + p->generated, p->cached);
}

static void completion_whole(completion *p) {
    buf *out = &p->r.event;
    completion_begin(p, out);
    buf_add(out, p->choices.data, p->choices.size);
    buf_text(out, "], ");
    put_completion_usage(out, p);
    if (p->is_native && p->is_alone) put_native(p, out, &p->r.text, 1);
    put_timings(out, &p->r.a, 1);
    buf_text(out, "}");
    reply_whole(&p->r, p->choices.failed);
}

static void completion_stream_last(completion *p) {
    buf *out = &p->r.event;
    if (p->r.usage) {
        buf_text(out, "data: ");
        completion_begin(p, out);
        buf_text(out, "], ");
        put_completion_usage(out, p);
        buf_text(out, "}\n\n");
        reply_event(&p->r);
    }
    if (!p->is_native) {                   /* llama.cpp's clients read each event as JSON */
        buf_text(out, "data: [DONE]\n\n");
        reply_event(&p->r);
    }
    connection_end(p->r.c);
}

/* A list of texts, or of lists of ids, is several prompts. */
static int holds_prompts(const json *j, uint32_t prompt) {
    if (j->nodes[prompt].type != JSON_ARRAY || !j->nodes[prompt].size) return 0;
    return j->nodes[prompt + 1].type == JSON_STRING || j->nodes[prompt + 1].type == JSON_ARRAY;
}

static void serve_completions_as(server *s, connection *c, const json *j, int is_native) {
    enum { PROMPTS_MOST = 256 };
    completion p;
    memset(&p, 0, sizeof p);
    p.is_native = is_native;
    reply_open(&p.r, s, c, j, "cmpl-");
    p.r.a.event = completion_event;
    p.r.a.scored = completion_echo;
    p.r.a.user = &p;
    completion_ask(&p);
    if (p.r.streams) p.r.a.progress = completion_progress;
    uint32_t prompt = field(&p.r.request.q, "prompt");
    if (!prompt) refuse(&p.r.f, 400, "prompt", "prompt is missing");
    int several = prompt && holds_prompts(j, prompt);
    p.is_alone = !several || j->nodes[prompt].size == 1;
    if (several && j->nodes[prompt].size > PROMPTS_MOST) refuse(&p.r.f, 400, "prompt", "more than %d prompts", PROMPTS_MOST);
    for (uint32_t k = several ? prompt + 1 : prompt; !p.r.f.status && !c->gone; k = j->nodes[k].next, p.index++) {
        if (several ? k >= j->nodes[prompt].next : p.index > 0) break;
        completion_run(&p, k);
    }
    if (!p.r.f.status && !c->gone && p.r.streams) completion_stream_last(&p);
    else if (!p.r.f.status && !c->gone) completion_whole(&p);
    if (p.r.f.status) reply_failed(&p.r, openai_failure_event);
    buf_free(&p.choices);
    buf_free(&p.tokens);
    buf_free(&p.values);
    buf_free(&p.tops);
    buf_free(&p.offsets);
    reply_free(&p.r);
}

static void serve_completions(server *s, connection *c, const json *j) {
    serve_completions_as(s, c, j, 0);
}

static void serve_native_completions(server *s, connection *c, const json *j) {
    serve_completions_as(s, c, j, 1);
}

/* {"prompt": text} or {"content": text} or {"messages": [...]} -> {"tokens": [...], "count": n, "max_model_len": n} */
static void serve_tokenize(server *s, connection *c, const json *j) {
    reply r;
    reply_open(&r, s, c, j, "");
    uint32_t text = field(&r.request.q, "prompt");
    if (!text) text = field(&r.request.q, "content");
    if (field(&r.request.q, "messages")) {
        chat_prompt(&r.request);
    } else if (text && j->nodes[text].type == JSON_STRING) {
        completion_prompt(&r.a, j, text, "prompt", &r.f);
    } else {
        refuse(&r.f, 400, "prompt", "prompt must be a text");
    }
    buf *out = &r.event;
    buf_text(out, "{\"tokens\": [");
    for (size_t i = 0; i < r.a.prompt_count && !r.f.status; i++) putf(out, "%s%" PRId32, i ? ", " : "", r.a.prompt[i]);
    putf(out, "], \"count\": %zu, \"max_model_len\": %d}", r.a.prompt_count, s->context);
    if (out->failed) refuse(&r.f, 503, NULL, "out of memory");
    if (r.f.status) reply_failure(c, &r.f);
    else connection_reply(c, 200, "application/json", out->data, out->size);
    reply_free(&r);
}

/* {"tokens": [...]} -> {"prompt": text, "content": text} */
static void serve_detokenize(server *s, connection *c, const json *j) {
    reply r;
    mote_error error = {0, ""};
    size_t n = 0;
    reply_open(&r, s, c, j, "");
    uint32_t list = field_of(&r.request.q, "tokens", JSON_ARRAY);
    if (!list) refuse(&r.f, 400, "tokens", "tokens must be a list of token ids");
    else completion_prompt(&r.a, j, list, "tokens", &r.f);
    int code = r.f.status ? MOTE_EINVAL : mote_detokenize(s->model, r.a.prompt, r.a.prompt_count, NULL, 0, &n, &error);
    char *text = (char *)malloc(n + 1);
    if (!text) refuse(&r.f, 503, NULL, "out of memory");
    else if (n) code = mote_detokenize(s->model, r.a.prompt, r.a.prompt_count, text, n, &n, &error);
    if (code && !r.f.status) refuse_error(&r.f, &error);
    if (!r.f.status) {
        buf_text(&r.event, "{\"prompt\": ");
        put_quoted(&r.event, text, n);
        buf_text(&r.event, ", \"content\": ");
        put_quoted(&r.event, text, n);
        buf_text(&r.event, "}");
        connection_reply(c, 200, "application/json", r.event.data, r.event.failed ? 0 : r.event.size);
    } else {
        reply_failure(c, &r.f);
    }
    free(text);
    reply_free(&r);
}
