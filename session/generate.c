/* session/generate.c: from tokens to text, and one turn of a conversation.

   Tokens become bytes, bytes whole characters, characters pass the search for stop texts, and what passes is split into
   channels. Each step holds back only what it cannot decide yet. */

typedef struct writer {
    const mote_generation *g;
    const mote_model *m;
    utf8_stream characters;
    buf text;                    /* whole characters not passed on yet: they may begin a stop text */
    chat_stream channels;
    int split;                   /* by channel */
    int stopped;                 /* MOTE_STOP_TEXT or MOTE_STOP_CALLBACK, else 0 */
} writer;

static void writer_emit(void *user, int channel, const char *text, size_t size) {
    writer *w = (writer *)user;
    if (w->stopped != MOTE_STOP_CALLBACK && w->g->on_text && w->g->on_text(w->g->user, channel, text, size))
        w->stopped = MOTE_STOP_CALLBACK;
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
}

static int is_eos(const mote_model *m, int32_t id) {
    for (int i = 0; i < m->eos_count; i++)
        if (m->eos[i] == id) return 1;
    return 0;
}

static int session_copy(mote_session *to, const mote_session *from, mote_error *err);
static int checkpoint_take(const mote_session *s, mote_checkpoint **checkpoint, mote_error *err);
static int session_rewind(mote_session *s, const mote_checkpoint *c, mote_error *err);

/* An answer: what it was asked to be, and all the memory it needs. Opened before anything of the session changes, so that
   running out of memory leaves the session as it was. */
typedef struct generator {
    mote_generation g;
    mote_sampling sampling;
    writer w;
    verifier check;
    mote_result r;
} generator;

/* Passes until something ends the answer; says what. Of a pass that it ends in the middle, the rest is dropped. */
static int generate_tokens(mote_session *s, generator *a, mote_error *err) {
    const mote_generation *g = &a->g;
    mote_result *r = &a->r;
    int code = MOTE_OK;
    r->stop = -1;
    while (!code && r->stop < 0) {
        int n = 0, left = g->max_tokens > 0 ? g->max_tokens - r->generated_tokens : INT32_MAX;
        if (s->count >= s->o.context) r->stop = MOTE_STOP_CONTEXT;
        else if (cancelled(&s->o.callbacks)) r->stop = MOTE_STOP_CALLBACK;
        if (r->stop >= 0) break;
        code = run_pass(s, &a->sampling, left, &n, err);
        for (int kept = 1; !code && kept <= n && r->stop < 0; kept++) {
            session_keep(s, kept);
            int32_t id = s->tokens[s->count - 1];
            if (a->check.twin) code = verify_token(s, a->check.twin, &a->sampling, err);
            if (code) break;
            r->generated_tokens++;
            s->spec.seen.tokens++;
            if (g->on_token && g->on_token(g->user, id)) r->stop = MOTE_STOP_CALLBACK;
            if (is_eos(s->m, id)) r->stop = MOTE_STOP_EOS;
            else if (s->m->text) writer_token(&a->w, id);
            if (a->w.stopped) r->stop = a->w.stopped;
            if (r->stop < 0 && --left == 0) r->stop = MOTE_STOP_LENGTH;
        }
        if (!code && a->check.twin) code = verify_state(&a->check, s, err);
    }
    return code;
}

static int check_generation(const mote_generation *g, mote_error *err) {
    if (g->max_tokens < 0) return fail(err, MOTE_EINVAL, "max_tokens must not be negative");
    if (g->stop_count < 0 || (g->stop_count && !g->stop))
        return fail(err, MOTE_EINVAL, "stop_count without stop texts");
    for (int i = 0; i < g->stop_count; i++)
        if (!g->stop[i]) return fail(err, MOTE_EINVAL, "stop text %d is NULL", i);
    if (g->think < MOTE_THINK_DEFAULT || g->think > MOTE_THINK_OFF)
        return fail(err, MOTE_EINVAL, "think must be MOTE_THINK_...");
    return g->sampling ? check_sampling(g->sampling, err) : MOTE_OK;
}

static void generator_close(generator *a) {
    buf_free(&a->w.text);
    verifier_close(&a->check);
}

/* Checks what is asked for and gets all memory for it. To be closed in any case. */
static int generator_open(generator *a, const mote_session *s, const mote_generation *g, mote_error *err) {
    memset(a, 0, sizeof *a);
    if (g) a->g = *g;
    int code = check_generation(&a->g, err);
    if (code) return code;
    if (a->g.sampling) a->sampling = *a->g.sampling;
    else mote_sampling_defaults(s->m, &a->sampling);
    code = writer_open(&a->w, s->m, &a->g, err);
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
    a->r.generate_seconds = seconds() - start;
    a->r.seed = a->sampling.seed;
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

/* The text between the timeline and the next turn: the end of the answer before, if it was interrupted, and a line feed. */
static void ask_close_turn(const mote_session *s, buf *text) {
    if (!s->count) return;
    int32_t end = tokenizer_find(s->m->text, "<|im_end|>");
    buf_text(text, s->tokens[s->count - 1] == end ? "\n" : "<|im_end|>\n");
}

/* Token ids of the next turn, in which system message and message are plain text. One encoding of the whole turn, so
   that words which reach from the template's text into the message are those of the template's rendering. */
static int ask_tokens(const mote_session *s, const char *message, const mote_generation *g, buf *ids, mote_error *err) {
    marked_text text;
    memset(&text, 0, sizeof text);
    ask_close_turn(s, &text.text);
    int code = chat_turn(s->m->family, s->count ? NULL : g->system, g->role ? g->role : "user", message, g->think,
                         &text, err);
    if (!code) code = encode_marked(s->m->text, &text, ids, err);
    marked_free(&text);
    return code;
}

/* Reads a turn. When it is cancelled, or fails otherwise, the timeline is as before: chunks that were already read are taken
   back. Only a caller who can cancel pays for the checkpoint that this takes, and only for more than one chunk. */
static int ask_feed(mote_session *s, const int32_t *ids, size_t n, mote_error *err) {
    mote_checkpoint *before = NULL;
    int code = check_ids(s, ids, n, err);
    if (!code && s->o.callbacks.cancel && n > (size_t)session_chunk(s)) code = checkpoint_take(s, &before, err);
    if (!code) code = feed(s, ids, n, NULL, NULL, err);
    if (code && before) (void)session_rewind(s, before, NULL);
    mote_checkpoint_free(before);
    return code;
}

int mote_ask(mote_session *session, const char *message, const mote_generation *generation, mote_result *result,
             mote_error *error) {
    generator a;
    buf ids;
    int code = session_enter(session, message != NULL, "mote_ask: needs a session and a message", error);
    if (!code) code = need_text(session->m, error);
    if (!code) code = need_chat(session->m, error);
    if (code) return code;
    memset(&ids, 0, sizeof ids);
    session->busy = 1;
    double start = seconds();
    code = generator_open(&a, session, generation, error);
    if (!code) code = ask_tokens(session, message, &a.g, &ids, error);
    size_t n = ids.size / sizeof(int32_t);
    if (!code) code = ask_feed(session, (const int32_t *)(void *)ids.data, n, error);
    a.r.prompt_seconds = seconds() - start;
    a.r.prompt_tokens = (int)n;
    if (!code) code = generator_run(&a, session, error);
    if (!code && result) *result = a.r;
    generator_close(&a);
    buf_free(&ids);
    session->busy = 0;
    return code;
}
