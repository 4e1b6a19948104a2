/* generate/step_many.c: a decode step of several sessions, by one thread: mote_step_many. Turns of sessions of one runner are one meeting,
   hence as few passes as they fit into. */

enum { TURN_WAITS = -1 };        /* the code of a turn that has not been taken */

/* Begins the call on the session of turn number `at` of these, if it can be taken: its code. */
static int turn_enter(const mote_turn *turns, int at, mote_error *err) {
    mote_session *s = turns[at].session;
    sampler sampler = sampler_of(turns[at].sampling);
    if (!s) return fail(err, MOTE_EINVAL, "there is no session");
    for (int i = 0; i < at; i++)
        if (turns[i].session == s) return fail(err, MOTE_EINVAL, "the session has turn %d already", i);
    int code = session_enter(s, 1, "mote_step_many: ", err);
    if (!code) code = step_check(s, &sampler.p, err);
    return code ? code : session_begin(s, "mote_step_many: ", err);
}

/* Makes a turn a request. What a device cannot choose is chosen here: next. */
static int turn_begin(const mote_turn *t, pass_request *q, block *b, int32_t *next, mote_error *err) {
    static mote_sampling greedy;
    mote_session *s = t->session;
    sampler sampler = sampler_of(t->sampling);
    const int sampled = device_samples(s, &sampler);
    int code = runner_refuses(s->slot.runner, err);
    if (!code && !sampled) code = choose(s, &sampler, next, err);
    if (code) return code;
    *b = timeline_block(s, sampled ? NULL : next, 1);
    b->last = 1;
    request_is(q, sampled ? REQUEST_STEP : REQUEST_FORWARD, &s->slot, b);
    q->sampling = t->sampling ? t->sampling : &greedy;
    q->ids = next;
    return MOTE_OK;
}

/* What the pass has made of it. */
static void turn_end(mote_turn *t, const pass_request *q) {
    mote_session *s = t->session;
    const int began = q->kind == REQUEST_FORWARD ? !q->code : slot_step_began(&s->slot, q->code);       /* as timeline_compute has it */
    if (!q->code) s->tokens[s->count] = q->kind == REQUEST_FORWARD ? q->b->rows->id : *q->ids;
    if (began) timeline_computed(s, 1);
    if (!began) {
        t->error = q->error;
    } else if (q->code) {
        timeline_drop(s);
        t->error = q->error;
    } else {
        timeline_keep(s, 1);
        t->id = s->tokens[s->count - 1];
        t->error.code = MOTE_OK;
    }
    session_leave(s);
}

/* Takes those of `count` turns that wait and are of the first one's runner, as many as fit into a pass. */
static void turns_take(mote_turn *turns, int count) {
    mote_runner *r = turns->session->slot.runner;
    pass_request q[PASS_ROWS_MAX];
    block b[PASS_ROWS_MAX];
    int32_t next[PASS_ROWS_MAX];
    mote_turn *of[PASS_ROWS_MAX];
    int n = 0;
    for (int i = 0; i < count && n < PASS_ROWS_MAX; i++) {
        mote_turn *t = &turns[i];
        if (t->error.code != TURN_WAITS || t->session->slot.runner != r) continue;
        if (turn_begin(t, &q[n], &b[n], &next[n], &t->error)) session_leave(t->session);
        else of[n++] = t;
    }
    if (n) meet(r, q, n);
    for (int i = 0; i < n; i++) turn_end(of[i], &q[i]);
}

int mote_step_many(mote_turn *turns, int count, mote_error *error) {
    if (count < 0 || (count && !turns)) return fail(error, MOTE_EINVAL, "mote_step_many: needs its turns, not less than none");
    for (int i = 0; i < count; i++) {
        memset(&turns[i].error, 0, sizeof turns[i].error);
        if (!turn_enter(turns, i, &turns[i].error)) turns[i].error.code = TURN_WAITS;
    }
    for (int i = 0; i < count; i++)
        while (turns[i].error.code == TURN_WAITS) turns_take(&turns[i], count - i);
    for (int i = 0; i < count; i++)
        if (turns[i].error.code) return fail(error, turns[i].error.code, "turn %d: %.480s", i, turns[i].error.message);
    return MOTE_OK;
}
