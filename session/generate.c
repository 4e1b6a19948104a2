/* session/generate.c: from tokens to text and tool calls, and one turn of a conversation.

   Tokens become bytes, bytes whole characters, characters pass the search for stop texts, and what passes is split into
   channels. Each step holds back only what it cannot decide yet. A tool call is collected as a whole. */

typedef struct writer {
    const mote_generation *g;
    const mote_model *m;
    utf8_stream characters;
    buf text;                    /* whole characters not passed on yet: they may begin a stop text */
    chat_stream channels;
    int split;                   /* by channel */
    int stopped;                 /* MOTE_STOP_TEXT or MOTE_STOP_CALLBACK, else 0 */
    buf call;                    /* the tool call at hand; only with on_call */
    int calling;                 /* there is one */
    const json *tools;           /* NULL: none */
    int calls, broken_calls;
    int code;                    /* MOTE_ENOMEM: a call did not fit into memory */
} writer;

static void writer_call(void *user, const char *call, size_t size) {
    writer *w = (writer *)user;
    if (w->stopped == MOTE_STOP_CALLBACK) return;
    w->calls++;
    if (w->g->on_call(w->g->user, call, size)) w->stopped = MOTE_STOP_CALLBACK;
}

/* The call at hand is over. closed: by its tag. */
static void writer_end_call(writer *w, int closed) {
    int broken = 0;
    w->code = tool_calls_read(w->call.data, w->call.size, closed, w->tools, writer_call, w, &broken, NULL);
    w->broken_calls += broken;
    w->calling = 0;
    w->call.size = 0;
}

static void writer_emit(void *user, int channel, const char *text, size_t size) {
    writer *w = (writer *)user;
    if (w->stopped != MOTE_STOP_CALLBACK && w->g->on_text && w->g->on_text(w->g->user, channel, text, size))
        w->stopped = MOTE_STOP_CALLBACK;
    if (channel != MOTE_TOOL_CALL || !w->g->on_call || w->code) return;
    w->calling = 1;
    buf_add(&w->call, text, size);
    if (w->call.failed) w->code = MOTE_ENOMEM;
    else if (!size) writer_end_call(w, 1);
}

static void writer_pass(writer *w, const char *text, size_t n) {
    if (!n) return;
    if (w->split) chat_stream_push(&w->channels, text, n, writer_emit, w);
    else writer_emit(w, MOTE_ANSWER, text, n);
}

/* Where in the held text the first stop text begins (*found), or else what might still become one. */
static size_t writer_stop_at(const writer *w, int *found) {
    for (size_t at = 0; at < w->text.size; at++)
        for (int i = 0; i < w->g->stop_count; i++) {
            size_t n = strlen(w->g->stop[i]), left = w->text.size - at;
            if (n && !memcmp(w->text.data + at, w->g->stop[i], n < left ? n : left)) {
                *found = n <= left;
                return at;
            }
        }
    *found = 0;
    return w->text.size;
}

static void writer_token(writer *w, int32_t id) {
    size_t n, at = 0;
    int found = 0;
    const char *bytes = tokenizer_token(w->m->text, id, &n);
    if (!bytes || tokenizer_is_special(w->m->text, id)) return;
    utf8_stream_push(&w->characters, bytes, n, &w->text);
    if (w->text.size) at = writer_stop_at(w, &found);
    writer_pass(w, w->text.data, at);
    w->text.size -= at;
    memmove(w->text.data, w->text.data + at, w->text.size);
    if (found) w->text.size = 0;
    if (found && !w->stopped) w->stopped = MOTE_STOP_TEXT;
}

/* Passes on what was held back, as it can become nothing else any more. */
static void writer_finish(writer *w) {
    if (w->stopped != MOTE_STOP_TEXT) utf8_stream_end(&w->characters, &w->text);
    writer_pass(w, w->text.data, w->text.size);
    if (w->split) chat_stream_end(&w->channels, writer_emit, w);
    if (w->calling && !w->code) writer_end_call(w, 0);
}

/* Did the prompt end inside an open <think>? Its last few tokens tell. */
static int prompt_opens_thinking(const mote_session *s) {
    char tail[64];
    size_t size = 0;
    for (int i = s->count < 8 ? 0 : s->count - 8; i < s->count; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_token(s->m->text, s->tokens[i], &n);
        size_t fresh = n < sizeof tail ? n : sizeof tail, old = size < sizeof tail - fresh ? size : sizeof tail - fresh;
        if (!fresh) continue;
        memmove(tail, tail + size - old, old);
        memcpy(tail + old, bytes + n - fresh, fresh);
        size = old + fresh;
    }
    return size && chat_opens_thinking(tail, size);
}

/* All the memory that an answer's text will ever need: what is held back is shorter than a stop text, and a token adds its
   bytes and those of an unfinished character before it, each at most three bytes long (U+FFFD). */
static int writer_open(writer *w, const mote_model *m, const mote_generation *g, mote_error *err) {
    size_t held = 0;
    memset(w, 0, sizeof *w);
    w->g = g;
    w->m = m;
    for (int i = 0; i < g->stop_count; i++) held = larger(held, strlen(g->stop[i]));
    buf_add(&w->text, NULL, held + 3 * (m->longest_token + sizeof w->characters.bytes));
    w->text.size = 0;
    return w->text.failed ? fail_memory(err) : MOTE_OK;
}

/* Before the first token. */
static void writer_begin(writer *w, const mote_session *s) {
    w->split = w->m->text && !w->g->raw;
    if (w->split) chat_stream_begin(&w->channels, prompt_opens_thinking(s));
    w->channels.expects_calls = w->tools && w->g->on_call;
}

/* An answer: what it was asked to be, and all the memory it needs. Opened before anything of the session changes, so that
   running out of memory leaves the session as it was. */
typedef struct generator {
    mote_generation g;
    chooser by;
    json tools;                  /* of g.tools; without nodes: none */
    writer w;
    verifier check;
    mote_result r;
} generator;

/* Another token is part of the answer. */
static void generate_token(mote_session *s, generator *a) {
    const mote_generation *g = &a->g;
    int32_t id = s->tokens[s->count - 1];
    a->r.generated_tokens++;
    s->spec.seen.tokens++;
    if (g->on_token && g->on_token(g->user, id)) a->r.stop = MOTE_STOP_CALLBACK;
    if (g->on_logprobs) g->on_logprobs(g->user, a->by.logprobs, a->by.logprobs + 1, a->by.top);
    if (is_eos(s->m, id)) a->r.stop = MOTE_STOP_EOS;
    else if (s->m->text) writer_token(&a->w, id);
    if (a->w.stopped) a->r.stop = a->w.stopped;
    if (a->r.stop < 0 && a->r.generated_tokens == g->max_tokens) a->r.stop = MOTE_STOP_LENGTH;
}

/* Passes until something ends the answer; says what. Of a pass that it ends in the middle, the rest is dropped. */
static int generate_tokens(mote_session *s, generator *a, mote_error *err) {
    const int most = a->g.max_tokens > 0 ? a->g.max_tokens : INT32_MAX;
    mote_result *r = &a->r;
    int code = MOTE_OK;
    r->stop = -1;
    while (!code && r->stop < 0) {
        decode_pass p;
        int more = 1;
        if (s->count >= s->o.context) r->stop = MOTE_STOP_CONTEXT;
        else if (cancelled(&s->o.callbacks)) r->stop = MOTE_STOP_CALLBACK;
        if (r->stop >= 0) break;
        code = pass_begin(s, &a->by, most - r->generated_tokens, &p, err);
        while (!code && r->stop < 0 && more) {
            code = pass_keep(s, &a->by, &p, &more, err);
            if (!code && more && a->check.twin) code = verify_token(s, a->check.twin, &a->by.p, err);
            if (code || !more) break;
            generate_token(s, a);
            if (a->w.code) code = fail_memory(err);
        }
        if (a->by.stopped && r->stop < 0) r->stop = MOTE_STOP_CALLBACK;
        if (!code) pass_end(s, &p);
        if (!code && a->check.twin) code = verify_state(&a->check, s, err);
    }
    return code;
}

/* A list of texts, none of which is NULL. */
static int check_texts(const char *const *texts, int count, const char *what, mote_error *err) {
    if (count < 0 || (count && !texts)) return fail(err, MOTE_EINVAL, "a count of %s without them", what);
    for (int i = 0; i < count; i++)
        if (!texts[i]) return fail(err, MOTE_EINVAL, "%s: number %d is NULL", what, i);
    return MOTE_OK;
}

static int check_generation(const mote_model *m, const mote_generation *g, mote_error *err) {
    if (g->max_tokens < 0) return fail(err, MOTE_EINVAL, "max_tokens must not be negative");
    int code = check_texts(g->stop, g->stop_count, "stop texts", err);
    if (!code) code = check_texts(g->results, g->result_count, "results", err);
    if (code) return code;
    if (g->think < MOTE_THINK_DEFAULT || g->think > MOTE_THINK_OFF)
        return fail(err, MOTE_EINVAL, "think must be MOTE_THINK_...");
    if (g->top_logprobs < 0 || g->top_logprobs > m->c.vocab)
        return fail(err, MOTE_EINVAL, "top_logprobs %d, expected 0 to %d", g->top_logprobs, m->c.vocab);
    if (g->verify && g->on_logits) return fail(err, MOTE_EINVAL, "verify would call on_logits twice for each token");
    return g->sampling ? check_sampling(m, g->sampling, err) : MOTE_OK;
}

static void generator_close(generator *a) {
    buf_free(&a->w.text);
    buf_free(&a->w.call);
    json_free(&a->tools);
    free(a->by.logprobs);
    verifier_close(&a->check);
}

/* Reads g.tools. */
static int generator_tools(generator *a, mote_error *err) {
    if (!a->g.tools) return MOTE_OK;
    int code = json_parse(&a->tools, a->g.tools, strlen(a->g.tools), "tools", err);
    if (!code && a->tools.nodes[0].type != JSON_ARRAY) code = fail(err, MOTE_EINVAL, "tools: not a JSON list");
    if (code != MOTE_EFORMAT) return code;
    if (err) err->code = MOTE_EINVAL;                       /* the caller's argument, not a file */
    return MOTE_EINVAL;
}

/* Checks what is asked for and gets all memory for it. To be closed in any case. */
static int generator_open(generator *a, const mote_session *s, const mote_generation *g, mote_error *err) {
    memset(a, 0, sizeof *a);
    if (g) a->g = *g;
    int code = check_generation(s->m, &a->g, err);
    if (!code) code = generator_tools(a, err);
    if (code) return code;
    if (a->g.sampling) a->by.p = *a->g.sampling;
    else mote_sampling_defaults(s->m, &a->by.p);
    a->by.on_logits = a->g.on_logits;
    a->by.user = a->g.user;
    a->by.top = a->g.top_logprobs;
    if (a->g.on_logprobs) a->by.logprobs = (mote_logprob *)calloc((size_t)a->by.top + 1, sizeof *a->by.logprobs);
    if (a->g.on_logprobs && !a->by.logprobs) return fail_memory(err);
    code = writer_open(&a->w, s->m, &a->g, err);
    a->w.tools = a->tools.nodes ? &a->tools : NULL;
    if (!code && a->g.verify && speculates(s)) code = verifier_open(&a->check, s, err);
    return code;
}

/* Continues the timeline. */
static int generator_run(generator *a, mote_session *s, mote_error *err) {
    int code = speculation_begin(s, err);
    if (!code && a->check.twin) code = session_copy(a->check.twin, s, err);
    if (code) return code;
    writer_begin(&a->w, s);
    double start = seconds();
    code = generate_tokens(s, a, err);
    writer_finish(&a->w);
    if (!code && a->w.code) code = fail_memory(err);
    a->r.calls = a->w.calls;
    a->r.broken_calls = a->w.broken_calls;
    a->r.generate_seconds = seconds() - start;
    a->r.seed = a->by.p.seed;
    return code;
}

int mote_generate(mote_session *session, const mote_generation *generation, mote_result *result, mote_error *error) {
    generator a;
    int code = session_enter(session, 1, "mote_generate: needs a session", error);
    if (!code) code = check_not_empty(session, error);
    if (code) return code;
    session->busy = 1;
    code = generator_open(&a, session, generation, error);
    if (!code) code = generator_run(&a, session, error);
    if (!code && result) *result = a.r;
    generator_close(&a);
    session->busy = 0;
    return code;
}

/* What a turn is going to do with the timeline. */
typedef struct turn_plan {
    buf past;                    /* ids that take the place of the answer with its thinking; none: nothing is dropped */
    buf ids;                     /* of the turn */
    size_t past_count, count;    /* of these */
    size_t total;                /* tokens of the timeline then */
} turn_plan;

static void plan_close(turn_plan *p) {
    buf_free(&p->past);
    buf_free(&p->ids);
}

/* Token ids of the next turn, in which system message, tools and message are plain text. One encoding of the whole turn, so
   that words which reach from the template's text into the message are those of the template's rendering. ended: the answer
   before ends with its own end; it is closed first if it was interrupted. */
static int plan_ids(turn_plan *p, const mote_session *s, const char *message, const generator *a, int ended, mote_error *err) {
    const mote_generation *g = &a->g;
    marked_text text;
    turn t;
    memset(&text, 0, sizeof text);
    memset(&t, 0, sizeof t);
    t.system = s->count ? NULL : g->system;
    t.tools = s->count ? NULL : a->w.tools;
    t.role = g->role ? g->role : "user";
    t.message = message;
    t.results = g->results;
    t.result_count = g->result_count;
    t.think = g->think;
    if (s->count) put_words(&text, ended ? "\n" : "<|im_end|>\n");
    int code = chat_turn(s->m->family, &t, &text, err);
    if (!code) code = encode_marked(s->m->text, &text, &p->ids, err);
    marked_free(&text);
    return code;
}

/* To be closed in any case. */
static int plan_open(turn_plan *p, const mote_session *s, const char *message, const generator *a, mote_error *err) {
    const mote_generation *g = &a->g;
    int code = MOTE_OK, user = !g->role || !strcmp(g->role, "user");
    memset(p, 0, sizeof *p);
    if (user && !g->keep_thinking) code = past_ids(s, &p->past, err);
    p->past_count = p->past.size / sizeof(int32_t);
    int ended = p->past_count || (s->count && s->tokens[s->count - 1] == tokenizer_find(s->m->text, "<|im_end|>"));
    if (!code) code = plan_ids(p, s, message, a, ended, err);
    p->count = p->ids.size / sizeof(int32_t);
    p->total = (p->past_count ? (size_t)s->before_answer->count + p->past_count : (size_t)s->count) + p->count;
    return code;
}

int mote_ask_count(const mote_session *session, const char *message, const mote_generation *generation, size_t *read,
                   size_t *total, mote_error *error) {
    generator a;
    turn_plan p;
    int code = session_enter(session, message != NULL, "mote_ask_count: needs a session and a message", error);
    if (!code) code = need_text(session->m, error);
    if (!code) code = need_chat(session->m, error);
    if (code) return code;
    memset(&p, 0, sizeof p);
    memset(&a, 0, sizeof a);
    if (generation) a.g = *generation;
    code = check_generation(session->m, &a.g, error);
    if (!code) code = generator_tools(&a, error);
    a.w.tools = a.tools.nodes ? &a.tools : NULL;
    if (!code) code = plan_open(&p, session, message, &a, error);
    if (!code && read) *read = p.past_count + p.count;
    if (!code && total) *total = p.total;
    plan_close(&p);
    generator_close(&a);
    return code;
}

/* Reads a turn of n ids. When it is cancelled, or fails otherwise, the timeline is as before: chunks that were already read
   are taken back, to `before`; NULL: there is one chunk only, or nobody can cancel. answer: where the answer begins, and the
   session remembers its state; 0: it does not. Nothing cancels the few tokens behind. */
static int ask_feed(mote_session *s, const int32_t *ids, size_t n, size_t answer, mote_checkpoint *before, mote_error *err) {
    int (*cancel)(void *user) = s->o.callbacks.cancel;
    size_t first = answer ? answer : n;
    int code = before ? checkpoint_fill(s, before, err) : MOTE_OK;
    s->read_behind = n - first;
    if (!code) code = feed(s, ids, first, NULL, NULL, NULL, err);
    if (code && before && before->count >= 0) (void)session_rewind(s, before, NULL);
    if (code || !answer) return code;
    code = checkpoint_fill(s, s->before_answer, err);
    s->o.callbacks.cancel = NULL;
    s->read_before += first;
    s->read_behind = 0;
    if (!code) code = feed(s, ids + first, n - first, NULL, NULL, NULL, err);
    s->o.callbacks.cancel = cancel;
    return code;
}

/* Brings a turn into the timeline. Gets all memory first. */
static int plan_run(const turn_plan *p, mote_session *s, const mote_generation *g, mote_error *err) {
    const int32_t *ids = (const int32_t *)(void *)p->ids.data, *past = (const int32_t *)(void *)p->past.data;
    const int32_t start = tokenizer_find(s->m->text, "<|im_start|>");
    const int user = !g->role || !strcmp(g->role, "user");
    mote_checkpoint *before = NULL;
    size_t answer = 0;
    int code = MOTE_OK;
    if (p->total > (size_t)s->o.context)
        return fail(err, MOTE_ECONTEXT, "%zu tokens do not fit: the session holds %zu of %d", p->count, p->total - p->count,
                    s->o.context);
    for (size_t i = 0; i < p->count && user && !g->keep_thinking; i++)
        if (ids[i] == start) answer = i;
    if (answer) code = reserve_answer(s, err);
    if (!code && s->o.callbacks.cancel && p->count > (size_t)session_chunk(s)) {
        before = checkpoint_new(s, (int)(p->total - p->count));
        if (!before) code = fail_memory(err);
    }
    s->read_before = 0;
    s->read_behind = p->count;
    if (!code && p->past_count) code = drop_thinking(s, past, p->past_count, err);
    s->read_before = p->past_count;
    if (!code && user) forget_answer(s);
    if (!code) code = ask_feed(s, ids, p->count, answer, before, err);
    s->read_before = s->read_behind = 0;
    mote_checkpoint_free(before);
    return code;
}

int mote_ask(mote_session *session, const char *message, const mote_generation *generation, mote_result *result,
             mote_error *error) {
    generator a;
    turn_plan p;
    int code = session_enter(session, message != NULL, "mote_ask: needs a session and a message", error);
    if (!code) code = need_text(session->m, error);
    if (!code) code = need_chat(session->m, error);
    if (code) return code;
    memset(&p, 0, sizeof p);
    session->busy = 1;
    double start = seconds();
    code = generator_open(&a, session, generation, error);
    if (!code) code = plan_open(&p, session, message, &a, error);
    if (!code) code = plan_run(&p, session, &a.g, error);
    a.r.prompt_seconds = seconds() - start;
    a.r.prompt_tokens = (int)(p.past_count + p.count);
    if (!code) code = generator_run(&a, session, error);
    if (!code && result) *result = a.r;
    plan_close(&p);
    generator_close(&a);
    session->busy = 0;
    return code;
}
