/* generate/generate.c: an answer, token by token, until something ends it: mote_generate. */

/* An answer: what it was asked to be, and all the memory it needs. Opened before anything of the session changes, so that
   running out of memory leaves the session as it was. */
typedef struct generator {
    mote_generation g;
    struct sampler sampler;
    json tools;                  /* of g.tools; without nodes: none */
    writer w;
    constraint grammar;
    verifier check;
    mote_result r;
} generator;

/* Another token is part of the answer. */
static void generate_token(mote_session *s, generator *a) {
    const mote_generation *g = &a->g;
    int32_t id = s->tokens[s->count - 1];
    a->r.generated_tokens++;
    s->decoder->spec.stats.tokens++;
    if (a->sampler.grammar) constraint_follow(&a->grammar, id);
    if (g->on_token && g->on_token(g->user, id)) a->r.stop = MOTE_STOP_CALLBACK;
    if (g->on_logprobs) g->on_logprobs(g->user, a->sampler.logprobs, a->sampler.logprobs + 1, a->sampler.top);
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
        else if (cancelled(&s->o.callbacks))
            code = fail(err, MOTE_ECANCELLED, "cancelled after %d tokens of the answer", r->generated_tokens);
        if (code || r->stop >= 0) break;
        code = pass_begin(s, &a->sampler, most - r->generated_tokens, &p, err);
        while (!code && r->stop < 0 && more) {
            code = pass_keep(s, &a->sampler, &p, &more, err);
            if (!code && more && a->check.reference) code = verify_token(s, a->check.reference, &a->sampler.p, err);
            if (code || !more) break;
            generate_token(s, a);
            if (a->w.code) code = fail_memory(err);
        }
        if (a->sampler.stopped && r->stop < 0) r->stop = MOTE_STOP_CALLBACK;
        if (!code) pass_end(s, &p);
        if (!code && a->check.reference) code = verify_state(&a->check, s, err);
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
    writer_close(&a->w);
    json_free(&a->tools);
    free(a->sampler.logprobs);
    constraint_close(&a->grammar);
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

/* Reads and checks what is asked for. To be closed in any case. */
static int generator_take(generator *a, const mote_model *m, const mote_generation *g, mote_error *err) {
    memset(a, 0, sizeof *a);
    int code = take_options(&a->g, sizeof a->g, GENERATION_0_3, g, "mote_generation", err);
    if (!code) code = check_generation(m, &a->g, err);
    return code ? code : generator_tools(a, err);
}

/* The same, and gets all memory for it. To be closed in any case. */
static int generator_open(generator *a, const mote_session *s, const mote_generation *g, mote_error *err) {
    int code = generator_take(a, s->m, g, err);
    if (code) return code;
    if (a->g.sampling) a->sampler.p = *a->g.sampling;
    else mote_sampling_defaults(s->m, &a->sampler.p);
    a->sampler.on_logits = a->g.on_logits;
    a->sampler.user = a->g.user;
    a->sampler.top = a->g.top_logprobs;
    if (a->g.on_logprobs) a->sampler.logprobs = (mote_logprob *)calloc((size_t)a->sampler.top + 1, sizeof *a->sampler.logprobs);
    if (a->g.on_logprobs && !a->sampler.logprobs) return fail_memory(err);
    code = writer_open(&a->w, s->m, &a->g, a->tools.nodes ? &a->tools : NULL, err);
    if (!code) code = constraint_open(&a->grammar, s->m, &a->g, &a->tools, err);
    if (constraint_is_active(&a->grammar)) a->sampler.grammar = &a->grammar;
    if (!code && a->g.verify && speculates(s)) code = verifier_open(&a->check, s, err);
    return code;
}

/* Continues the timeline. */
static int generator_run(generator *a, mote_session *s, mote_error *err) {
    int code = speculation_begin(s, err);
    if (!code && a->check.reference) code = session_copy(a->check.reference, s, err);
    if (code) return code;
    writer_begin(&a->w, s);
    const chat_stream *channels = &a->w.channels;
    if (a->sampler.grammar && a->g.raw) constraint_begin(&a->grammar, 0, 0);
    else if (a->sampler.grammar && channels->headed)
        constraint_begin_headed(&a->grammar, channels->place, channels->place == IN_BODY && channels->channel == MOTE_THINKING);
    else if (a->sampler.grammar) constraint_begin(&a->grammar, prompt_opens_thinking(s), prompt_is_header(s->m, s->tokens, s->count));
    double start = seconds();
    slot_answers(&s->slot, 1);
    code = generate_tokens(s, a, err);
    slot_answers(&s->slot, 0);
    writer_finish(&a->w, !code && a->r.stop == MOTE_STOP_EOS);
    if (!code && a->w.code) code = fail_memory(err);
    writer_result(&a->w, &a->r);
    a->r.generate_seconds = seconds() - start;
    a->r.seed = a->sampler.p.seed;
    return code;
}

int mote_generation_check(const mote_model *model, const mote_generation *generation, mote_error *error) {
    generator a;
    if (!model) return fail(error, MOTE_EINVAL, "mote_generation_check: needs a model");
    int code = generator_take(&a, model, generation, error);
    if (!code) code = constraint_open(&a.grammar, model, &a.g, &a.tools, error);
    generator_close(&a);
    return code;
}

/* Fills in the result of a call that returns `code`. */
static void put_result(const mote_result *r, int code, mote_result *result) {
    if (!result) return;
    *result = *r;
    if (code) result->stop = code == MOTE_ECANCELLED ? MOTE_STOP_CALLBACK : -1;
}

int mote_generate(mote_session *session, const mote_generation *generation, mote_result *result, mote_error *error) {
    generator a;
    memset(&a.r, 0, sizeof a.r);
    int code = session_enter(session, 1, "mote_generate: needs a session", error);
    if (!code) code = check_not_empty(session, error);
    if (!code) code = session_begin(session, "mote_generate", error);
    if (!code) {
        code = generator_open(&a, session, generation, error);
        if (!code) code = generator_run(&a, session, error);
        generator_close(&a);
        session_leave(session);
    }
    put_result(&a.r, code, result);
    return code;
}
