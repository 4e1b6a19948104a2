/* run/meeting.c: how sessions of a runner that compute at the same time become one pass: leader and followers.

   One thread at a time has the lead. What a session wants of a pass is a request; requests wait in a queue, in the order in which they
   came. When the lead is free it is taken by the thread of the first one: it takes the requests of that kind, as many as fit into a pass,
   computes them, tells the threads whose they are, and gives up the lead. There is no thread but the callers', and no timer: a session
   that is alone leads at once.

   Threads that come back one after the other would split into passes that take turns, and each of these reads all weights. So a leader
   waits for the sessions that are in the middle of an answer and were in the pass before, for at most a twentieth of that pass's time,
   or until the device is done with what was launched: until then nothing is lost.

   Drafts go first: those that have drafted then meet the others in the pass that verifies.

   What is no request (a prompt, copies, opening and closing slots) takes the lead for itself, in its turn. */

/* A thread that waits for its requests, or for its turn to lead. */
typedef struct caller {
    pthread_cond_t wake;
    int left;                    /* requests not done */
} caller;

static void caller_open(caller *c, int requests) {
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &clock);
    pthread_condattr_destroy(&clock);
    c->left = requests;
}

static void caller_close(caller *c) {
    pthread_cond_destroy(&c->wake);
}

static int runner_is_ours(const mote_runner *r) {
    return __atomic_load_n(&r->thread, __ATOMIC_RELAXED) == (uintptr_t)pthread_self();
}

/* Inside a call on the runner whose thread leads: nothing else can be computed before that goes on. */
static int runner_refuses(const mote_runner *r, mote_error *err) {
    if (!runner_is_ours(r)) return MOTE_OK;
    return fail(err, MOTE_EINVAL, "the runner is busy: a callback must not use the runner of the call that it is called from");
}

/* ---- The lead; all with r->lock held ------------------------------------------------------------------------------- */

static void lead_take(mote_runner *r, const slot *s) {
    r->led = 1;
    r->led_since = r->stats.last = seconds();
    r->inside = s;
    __atomic_store_n(&r->thread, (uintptr_t)pthread_self(), __ATOMIC_RELAXED);
}

static void lead_give(mote_runner *r) {
    __atomic_store_n(&r->thread, 0, __ATOMIC_RELAXED);
    r->inside = NULL;
    r->led = 0;
    r->stats.last = seconds();
    if (r->first) pthread_cond_signal(&r->first->from->wake);
}

static void queue_put(mote_runner *r, pass_request *q, caller *from) {
    q->from = from;
    q->next = NULL;
    if (q->kind != REQUEST_LEAD) q->s->waits = 1;
    *r->last = q;
    r->last = &q->next;
}

static pass_request *queue_take(mote_runner *r, pass_request **at) {
    pass_request *q = *at;
    *at = q->next;
    if (!q->next) r->last = at;
    return q;
}

/* Waits for the lead in turn. */
static void lead_wait(mote_runner *r, const slot *s) {
    if (r->led || r->first) {
        pass_request turn;
        caller me;
        request_is(&turn, REQUEST_LEAD, NULL, NULL);
        caller_open(&me, 1);
        queue_put(r, &turn, &me);
        while (r->led || r->first != &turn) pthread_cond_wait(&me.wake, &r->lock);
        (void)queue_take(r, &r->first);
        caller_close(&me);
    }
    lead_take(r, s);
}

/* Nobody else computes until runner_leave. Refused inside a call on the runner: a callback would overwrite its scratch. */
static int runner_enter(mote_runner *r, const slot *s, mote_error *err) {
    int code = runner_refuses(r, err);
    if (code) return code;
    pthread_mutex_lock(&r->lock);
    lead_wait(r, s);
    pthread_mutex_unlock(&r->lock);
    return MOTE_OK;
}

static void runner_leave(mote_runner *r) {
    pthread_mutex_lock(&r->lock);
    lead_give(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- Passes --------------------------------------------------------------------------------------------------------- */

static int request_rows(const pass_request *q) {
    return request_drafts(q) || q->kind == REQUEST_STEP ? 1 : q->b->T;
}

/* Whether a pass may get more requests soon: it has not got as many as fit, and a session that was in the last one, and answers, has
   none yet. */
static int pass_expects(const mote_runner *r) {
    int rows = 0;
    const slot *s = r->slots;
    for (const pass_request *q = r->first; q; q = q->next)
        if (q->kind != REQUEST_LEAD) rows += request_rows(q);
    while (s && (s->waits || !s->answers || !s->member)) s = s->next;
    return s && rows < r->pass_rows;
}

/* The leader waits for these. */
static void pass_wait(mote_runner *r, caller *leader) {
    const double until = seconds() + r->step_seconds / 20;
    r->expects = leader;
    while (pass_expects(r)) {
        const double now = seconds();
        if (now >= until && !(r->backend->computes && r->backend->computes(r))) break;
        const double to = now >= until ? now + 50e-6 : until;
        struct timespec t;
        t.tv_sec = (time_t)to;
        t.tv_nsec = (long)((to - (double)t.tv_sec) * 1e9);
        pthread_cond_timedwait(&leader->wake, &r->lock, &t);
    }
    r->expects = NULL;
}

/* A session has come, or will not. */
static void pass_tell(mote_runner *r) {
    if (r->expects && !pass_expects(r)) pthread_cond_signal(&r->expects->wake);
}

/* Takes the drafts of one kind or, if there are none, what else fits into a pass; returns how many. */
static int pass_take(mote_runner *r, pass_request **to) {
    int n = 0, rows = 0;
    enum request_kind drafts = REQUEST_LEAD;                /* the kind; LEAD: none is wanted */
    for (const pass_request *q = r->first; q && drafts == REQUEST_LEAD; q = q->next)
        if (request_drafts(q)) drafts = q->kind;
    for (pass_request **at = &r->first; *at && n < PASS_ROWS_MAX && (!n || r->pass_rows);) {
        const int is = (*at)->kind != REQUEST_LEAD && (drafts == REQUEST_LEAD || (*at)->kind == drafts);
        if (is && (!n || rows + request_rows(*at) <= r->pass_rows)) {
            rows += request_rows(*at);
            to[n++] = queue_take(r, at);
        } else {
            at = &(*at)->next;
        }
    }
    return n;
}

/* A step whose token has been chosen is a block. */
static void pass_compute(mote_runner *r, pass_request *const *of, int n) {
    pass_request *q = of[0];
    if (n > 1 || q->kind == REQUEST_BLOCK || (q->kind == REQUEST_DRAFT && !r->backend->draft)) r->backend->pass(r, of, n);
    else if (q->kind == REQUEST_FORWARD || (q->kind == REQUEST_STEP && q->b->rows->id >= 0)) q->code = r->backend->forward(q->s, q->b, &q->error);
    else if (q->kind == REQUEST_DRAFT) q->code = r->backend->draft(q->s, q->b, q->drafts, q->ids, q->confidence, &q->error);
    else if (q->kind == REQUEST_STEP) q->code = r->backend->step(q->s, q->b, q->sampling, q->ids, &q->error);
    else q->code = r->backend->cycle(q->s, q->b, q->sampling, q->drafts, q->ids, q->count, &q->error);
}

/* Tells the requests' callers; who was in the pass is expected in the next one. */
static void pass_over(mote_runner *r, pass_request *const *of, int n) {
    for (slot *s = r->slots; s; s = s->next) s->member = 0;
    for (int i = 0; i < n; i++) {
        slot *s = of[i]->s;
        s->waits = 0;
        s->member = s->answers;
        if (!--of[i]->from->left) pthread_cond_signal(&of[i]->from->wake);
    }
}

/* What the pass took. A block of one session whose logits nobody waits for may still be under way: it tells nothing. */
static void pass_learn(mote_runner *r, pass_request *const *of, int n, double spent) {
    const int drafts = request_drafts(of[0]), blocks = of[0]->kind == REQUEST_BLOCK;
    int rows = 0, most = 1, position = 0;
    for (int i = 0; i < n; i++) {
        rows += request_rows(of[i]);
        position = max_int(position, of[i]->b->rows->index);
        if (drafts) most = max_int(most, *of[i]->count);
    }
    if (drafts) {
        *(blocks ? &r->costs.block_drafters : &r->costs.drafters) = n;
        cost_learn(blocks ? &r->costs.blocks : &r->costs.drafting, n, position, blocks ? spent : spent / most);
        return;
    }
    r->costs.sessions = n;
    r->costs.rows = rows;
    if (n > 1 || of[0]->kind != REQUEST_FORWARD || of[0]->b->logits)
        cost_learn(n > 1 ? &r->costs.together : &r->costs.alone, rows, position, spent);
}

/* The lead, for one pass. r->lock is held before and after. */
static void lead_pass(mote_runner *r, caller *me) {
    pass_request *of[PASS_ROWS_MAX];
    lead_take(r, NULL);
    if (r->pass_rows) pass_wait(r, me);
    const int n = pass_take(r, of), drafts = request_drafts(of[0]);
    pthread_mutex_unlock(&r->lock);
    const double start = seconds();
    pass_compute(r, of, n);
    const double spent = seconds() - start;
    pthread_mutex_lock(&r->lock);
    if (!drafts) r->step_seconds = spent;
    pass_learn(r, of, n, spent);
    count_pass(r, of, n, spent);
    pass_over(r, of, n);
    lead_give(r);
}

/* Has n requests of one runner, of different slots, computed. */
static void meet(mote_runner *r, pass_request *of, int n) {
    caller me;
    int code = MOTE_OK;
    for (int i = 0; i < n; i++) code = of[i].code = runner_refuses(r, &of[i].error);
    if (code) return;
    caller_open(&me, n);
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < n; i++) queue_put(r, &of[i], &me);
    pass_tell(r);
    while (me.left) {
        if (!r->led && r->first->from == &me) lead_pass(r, &me);
        else pthread_cond_wait(&me.wake, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    caller_close(&me);
}

static int meet_alone(pass_request *q, mote_error *err) {
    q->code = block_refused(q->s, q->b, 0, &q->error);
    if (!q->code) meet(q->s->runner, q, 1);
    if (q->code && err) *err = q->error;
    return q->code;
}

/* An answer begins or ends. */
static void slot_answers(slot *s, int answers) {
    mote_runner *r = s->runner;
    pthread_mutex_lock(&r->lock);
    s->answers = answers;
    pass_tell(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- Turns: of prompts, of long blocks: one at a time, between whose layers others compute ------------------------------ */

static int prompt_enter(mote_runner *r, prompt_queue *t, const slot *s, mote_error *err) {
    int code = runner_refuses(r, err);
    if (code) return code;
    pthread_mutex_lock(&r->lock);
    for (const unsigned turn = t->came++; turn != t->over;) pthread_cond_wait(&r->prompt_over, &r->lock);
    t->of = s;
    lead_wait(r, s);
    t->began = r->led_since;
    pthread_mutex_unlock(&r->lock);
    return MOTE_OK;
}

static void prompt_leave(mote_runner *r, prompt_queue *t) {
    pthread_mutex_lock(&r->lock);
    t->of = NULL;
    t->over++;
    pthread_cond_broadcast(&r->prompt_over);
    lead_give(r);
    pthread_mutex_unlock(&r->lock);
}

/* Between two layers of a prompt or a long block: gives up the lead if somebody waits for it and the prompt has had it for as long as two passes
   take, or 20 ms, and takes it again after those that wait. Returns whether others may have computed meanwhile. */
static inline int runner_yield(mote_runner *r, const slot *s) {
    prompt_queue *t = s && r->blocks.of == s ? &r->blocks : &r->prompts;
    pthread_mutex_lock(&r->lock);
    const double now = r->stats.last = seconds();
    const int yields = r->first && now - r->led_since >= fmax(2 * r->step_seconds, 0.02);
    if (yields) {
        lead_give(r);
        lead_wait(r, s);
        t->began += r->led_since - now;
    }
    pthread_mutex_unlock(&r->lock);
    return yields;
}
