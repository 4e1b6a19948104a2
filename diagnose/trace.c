/* diagnose/trace.c: what happens inside of a model: every value that its definition (diagnose/definition.c) tells on the way from tokens to
   logits, and the drafts of an answer. It looks on and computes nothing of its own; it must not know who asks. */

typedef struct tracer {
    definition d;
    const mote_callbacks *callbacks;
    void (*told)(void *user, const mote_traced *value);
    void *user;
    int T;
} tracer;

static void trace_value(void *user, const char *name, const double *values, int n) {
    tracer *t = (tracer *)user;
    defining *at = &t->d.told;
    const mote_traced value = {.layer = at->layer_index, .kind = at->kind, .token = at->token, .name = name, .count = n, .values = values};
    const double layers = t->d.m->c.layers, done = (at->layer_index < 0 ? layers : at->layer_index) / (layers + 1);
    char what[64];
    if (!strcmp(name, "x")) {
        snprintf(what, sizeof what, "token %d of %d", at->token + 1, t->T);
        report(t->callbacks, what, (at->token + done) / t->T);
    }
    t->told(t->user, &value);
    at->stopped |= cancelled(t->callbacks);
}

static int check_traced(const mote_model *m, const int32_t *ids, size_t count, mote_error *err) {
    if (!m->arena) return fail(err, MOTE_EUNSUPPORTED, "mote_trace: the model was opened without weights");
    if (m->device.gpu >= 0) return fail(err, MOTE_EUNSUPPORTED, "mote_trace: the weights are on a GPU, expected a model opened for \"cpu\"");
    if (count < 1 || count > MOTE_TRACE_TOKENS)
        return fail(err, MOTE_EINVAL, "mote_trace: %zu tokens, expected 1 to %d", count, MOTE_TRACE_TOKENS);
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= m->c.vocab)
            return fail(err, MOTE_EINVAL, "mote_trace: token %zu is %d, expected 0 to %d", i, ids[i], m->c.vocab - 1);
    return MOTE_OK;
}

int mote_trace(const mote_model *model, const int32_t *ids, size_t count, const mote_callbacks *callbacks,
               void (*told)(void *user, const mote_traced *value), void *user, mote_error *error) {
    mote_callbacks silent;
    memset(&silent, 0, sizeof silent);
    if (!model || !ids || !told) return fail(error, MOTE_EINVAL, "mote_trace: needs a model, token ids and a function to tell");
    int code = check_traced(model, ids, count, error);
    if (code) return code;
    tracer t = {.callbacks = callbacks ? callbacks : &silent, .told = told, .user = user, .T = (int)count};
    if (!definition_open(&t.d, model, t.T)) return fail_memory(error);
    t.d.told.watch = trace_value;
    t.d.told.user = &t;
    define_rows(&t.d, NULL, ids, t.T, NULL, NULL);
    definition_close(&t.d);
    if (t.d.unread.code) return fail(error, t.d.unread.code, "mote_trace: %.480s", t.d.unread.message);
    if (t.d.told.stopped) return fail(error, MOTE_ECANCELLED, "mote_trace: cancelled");
    report(t.callbacks, "tracing", 1);
    return MOTE_OK;
}

/* ---- Passes of an answer ----------------------------------------------------------------------------------------------- */

/* Tokens are chosen by the host where there is this, and a device's drafts are then known to it. */
static int trace_logits(void *user, float *logits, int vocab) {
    (void)user, (void)logits, (void)vocab;
    return 0;
}

/* One pass of at most `left` tokens: *kept of them are in the timeline, *ended: the last one ends the text. */
static int trace_pass(mote_session *s, sampler *sampler, int left, mote_traced_pass *to, int *ended, mote_error *err) {
    decode_pass p;
    int more = 1;
    int code = pass_begin(s, sampler, left, &p, err);
    while (!code && more && !*ended) {
        code = pass_keep(s, sampler, &p, &more, err);
        if (!code && more) *ended = is_eos(s->m, s->tokens[s->count - 1]);
    }
    if (code) return code;
    pass_end(s, &p);
    memcpy(to->ids, p.d.ids, (size_t)p.rows * sizeof *to->ids);
    to->drafts = p.rows - 1;
    to->taken = p.kept - 1;
    to->source = p.d.source;
    return MOTE_OK;
}

static int trace_passes(mote_session *s, int tokens, void (*told)(void *user, const mote_traced_pass *pass), void *user, mote_error *err) {
    sampler sampler = sampler_of(NULL);
    int code = speculation_begin(s, err), ended = 0;
    sampler.on_logits = trace_logits;
    while (!code && !ended && tokens > 0 && s->count < s->o.context) {
        mote_traced_pass pass;
        memset(&pass, 0, sizeof pass);
        if (cancelled(&s->o.callbacks)) return fail(err, MOTE_ECANCELLED, "mote_trace_passes: cancelled");
        code = trace_pass(s, &sampler, tokens, &pass, &ended, err);
        if (!code) told(user, &pass);
        tokens -= 1 + pass.taken;
    }
    return code;
}

int mote_trace_passes(mote_session *session, int tokens, void (*told)(void *user, const mote_traced_pass *pass), void *user,
                      mote_error *error) {
    int code = session_enter(session, told != NULL && tokens > 0, "mote_trace_passes: needs a session, tokens and a function to tell",
                             error);
    if (!code) code = check_not_empty(session, error);
    if (!code) code = session_begin(session, "mote_trace_passes: ", error);
    if (code) return code;
    slot_answers(&session->slot, 1);
    code = trace_passes(session, tokens, told, user, error);
    slot_answers(&session->slot, 0);
    session_leave(session);
    return code;
}
