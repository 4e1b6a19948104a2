/* session/feed.c: tokens into a timeline, as the application gives them: mote_feed and what it returns. */

static void forget_answer(mote_session *s);

/* n tokens fit after the timeline, and are tokens. */
static int check_ids(const mote_session *s, const int32_t *ids, size_t n, mote_error *err) {
    size_t left = s->count < s->o.context ? (size_t)(s->o.context - s->count) : 0;
    if (n > left)
        return fail(err, MOTE_ECONTEXT, "%zu tokens do not fit: the session holds %d of %d", n, s->count, s->o.context);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->m->c.vocab)
            return fail(err, MOTE_EINVAL, "token %zu: id %d is not in the vocabulary of %d", i, ids[i], s->m->c.vocab);
    return MOTE_OK;
}

/* How far a prompt of `count` tokens has been read, and how quickly since `start`. */
static void report_prompt(const mote_session *s, double done, size_t count, double start) {
    const mote_callbacks *c = &s->o.callbacks;
    char what[96];
    double passed = seconds() - start, all = done + (double)s->read_before;
    count += s->read_before + s->read_after;
    if (c->prompt) c->prompt(c->user, (int)all, (int)count);
    if (!c->progress || count <= (size_t)session_rows(s)) return;
    snprintf(what, sizeof what, "reading the prompt: %.0f of %zu tokens, %.0f tok/s", all, count, passed > 0 ? done / passed : 0);
    report(c, what, all / (double)count);
}

/* A call that reads tokens, as far as it has come. */
typedef struct feeding {
    mote_session *s;
    size_t done, count;          /* tokens */
    double start;                /* seconds */
    prompt_scores *scores;       /* NULL: not wanted */
} feeding;

static int feed_layer(void *user, double rows) {
    const feeding *f = (const feeding *)user;
    report_prompt(f->s, (double)f->done + rows, f->count, f->start);
    return cancelled(&f->s->o.callbacks);
}

static void feed_scores(void *user, const float *rows, int first, int n) {
    const feeding *f = (const feeding *)user;
    score_rows(f->scores, rows, f->s->m->c.vocab, f->done + (size_t)first, n);
}

/* The next block of a call that is read as a prompt. */
static int feed_prompt(feeding *f, const int32_t *ids, float *logits, float *mtp_logits, int *T, mote_error *err) {
    mote_session *s = f->s;
    block_watch watch = {f, feed_layer, f->scores ? feed_scores : NULL, f->scores ? f->scores->rows : NULL, SCORED_ROWS};
    *T = s->at.runner->on->prompt_rows(&s->at, s->count, f->count - f->done);
    int code = timeline_prompt(s, ids, *T, logits, mtp_logits, &watch, err);
    if (code == MOTE_ECANCELLED) return fail(err, code, "cancelled after %zu of %zu tokens", f->done, f->count);
    return code;
}

/* The next block of any other. */
static int feed_block(feeding *f, const int32_t *ids, float *logits, float *mtp_logits, int *T, mote_error *err) {
    mote_session *s = f->s;
    const size_t left = f->count - f->done, most = (size_t)(mtp_logits ? s->at.runner->mtp_rows : session_rows(s));
    const int before = s->count;
    if (cancelled(&s->o.callbacks)) return fail(err, MOTE_ECANCELLED, "cancelled after %zu of %zu tokens", f->done, f->count);
    *T = (int)(left < most ? left : most);
    if (f->scores && *T > SCORED_ROWS) *T = SCORED_ROWS;
    float *rows = f->scores ? f->scores->rows : logits;
    int code = timeline_forward(s, ids, *T, (size_t)*T == left, rows, mtp_logits, err);
    if (code) return code;
    if (f->scores) feed_scores(f, rows, 0, *T);
    timeline_keep(s, before + *T - s->block_at);
    s->generated_from = s->count;
    return MOTE_OK;
}

/* The implementation of mote_feed_logits and mote_feed_logprobs; scores: NULL, or in place of logits. Only the callbacks and a GPU
   can make it fail once the ids are checked. */
static int feed(mote_session *s, const int32_t *ids, size_t count, float *logits, float *mtp_logits, prompt_scores *scores,
                mote_error *err) {
    const size_t vocab = (size_t)s->m->c.vocab;
    const int from = s->at.runner->prompt_from;
    feeding f = {s, 0, count, seconds(), scores};
    int code = check_ids(s, ids, count, err), T = 0;
    while (!code && f.done < count) {
        const int first = s->count;
        float *rows = logits ? logits + f.done * vocab : NULL;
        if (from && count >= (size_t)from) code = feed_prompt(&f, ids + f.done, rows, mtp_logits, &T, err);
        else code = feed_block(&f, ids + f.done, rows, mtp_logits, &T, err);
        if (code) return code;
        f.done += (size_t)T;
        if (mtp_logits) mtp_logits += (size_t)(T - (first == 0)) * vocab;
        report_prompt(s, (double)f.done, count, f.start);
    }
    return code ? code : slot_finish(&s->at, err);
}

int mote_feed_logits(mote_session *session, const int32_t *ids, size_t count, float *logits, float *mtp_logits,
                     mote_error *error) {
    mote_session *s = session;
    int code = session_enter(s, ids || !count, "mote_feed: needs a session and its tokens", error);
    if (!code && mtp_logits && !s->at.has_mtp)
        code = fail(error, MOTE_EUNSUPPORTED, "%s", s->m->has_mtp ? "the session was opened without the MTP layer"
                                                                  : "the checkpoint has no MTP layer");
    if (!code) code = session_begin(s, "mote_feed", error);
    if (code) return code;
    const int before = s->count;
    code = feed(s, ids, count, logits, mtp_logits, NULL, error);
    if (s->count > before) forget_answer(s);
    session_leave(s);
    return code;
}

int mote_feed_logprobs(mote_session *session, const int32_t *ids, size_t count, int top, mote_logprob *tokens,
                       mote_logprob *alternatives, mote_error *error) {
    mote_session *s = session;
    prompt_scores scores;
    int code = session_enter(s, (ids && tokens && (alternatives || !top)) || !count,
                             "mote_feed_logprobs: needs a session, tokens, and room for the results", error);
    if (!code && (top < 0 || top > s->m->c.vocab))
        code = fail(error, MOTE_EINVAL, "%d alternatives asked for, expected 0 to %d", top, s->m->c.vocab);
    if (!code) code = check_ids(s, ids, count, error);
    if (code || !count) return code;
    code = session_begin(s, "mote_feed_logprobs", error);
    if (code) return code;
    const int before = s->count;
    code = scores_open(&scores, s, ids, count, top, error);
    scores.tokens = tokens;
    scores.alternatives = alternatives;
    if (!code) code = session_logits(s, error);
    if (!code) score_token(&scores, s->count ? s->at.logits : NULL, s->m->c.vocab, 0);
    if (!code) code = feed(s, ids, count, NULL, NULL, &scores, error);
    if (s->count > before) forget_answer(s);
    scores_close(&scores);
    session_leave(s);
    return code;
}

int mote_feed(mote_session *session, const int32_t *ids, size_t count, mote_error *error) {
    return mote_feed_logits(session, ids, count, NULL, NULL, error);
}

const int32_t *mote_tokens(const mote_session *session, size_t *count) {
    if (count) *count = session ? (size_t)session->count : 0;
    return session ? session->tokens : NULL;
}

int mote_context(const mote_session *session) {
    return session ? session->o.context : 0;
}

const float *mote_logits(const mote_session *session) {
    if (session_enter(session, 1, "mote_logits: needs a session", NULL)) return NULL;
    return session->count && !session_logits((mote_session *)session, NULL) ? session->at.logits : NULL;
}

