/* run/members.c: a group's members: runners that compute together, each a part of the program, exchanging what they need of each other
   (exchange/). Each has a thread and a queue of calls, which become calls of its executor. What the group's own runner does with that is
   run/group.c's. Knows runners and slots; must not know layers, nor devices: what differs between these, executors say.

   Members have a thread each, but for those whose part the caller's own thread can take over. A call returns when all are done, with one
   exception: of a long block from which nothing is wanted yet, a part of a prompt, the first range's members. The others have it in
   a queue, with its rows; so the ranges work on different blocks at the same time. All else waits for them first.

   When a member fails, the group has come to its end: all others return from where they wait for it, and every call on the group's
   sessions fails from then on, with the reason. */

enum { GROUP_QUEUE = 2 };        /* calls that a member has at most: what it computes, and what comes next */

enum member_op { MEMBER_COMPUTE, MEMBER_PROMPT, MEMBER_COMMIT_STATE, MEMBER_CHOOSE, MEMBER_LOGITS };

/* What members are asked. All but COMPUTE and CHOOSE are about one slot, and have one request that says which, and its block. */
typedef struct member_call {
    enum member_op op;
    pass_request *const *of;     /* [n] as the session asks them: on the group's slots */
    int n;
    const block_watch *watch;    /* PROMPT; NULL: nobody looks on */
} member_call;

/* A call in a member's queue; one that nobody waits for is about a block of its own. */
typedef struct member_place {
    member_call call;
    pass_request q, *one;
    block b;
    token_row *rows;             /* [most + 1] */
} member_place;

/* The requests of a call as they are for one member: on its own slots, and, unless it answers, with places of its own for what comes. */
typedef struct member_pass {
    pass_request q[PASS_ROWS_MAX], *of[PASS_ROWS_MAX];
    int32_t ids[PASS_ROWS_MAX][MOTE_ROWS_MAX + 1];
    float confidence[PASS_ROWS_MAX][MOTE_ROWS_MAX];
    int count[PASS_ROWS_MAX];
} member_pass;

typedef struct runner_member {
    struct runner_group *of;
    mote_runner *runner;
    peer as;                     /* its place, and how it reaches the others */
    member_pass pass;
    pthread_t thread;
    pthread_cond_t wake;
    member_place queue[GROUP_QUEUE];
    unsigned given, done;        /* calls (atomic): those before `done` are over, number given % GROUP_QUEUE is the next one's place */
} runner_member;

struct runner_group {
    int count, ranks, started;   /* members; of each range; those that have a thread */
    double patience;             /* seconds for which who waits looks again and again before it sleeps */
    runner_member *member;       /* [ranges][ranks] */
    peer **peers;                /* [ranges][ranks] */
    token_row *rows;             /* of all queues */
    thread_group *threads;       /* how they exchange, unless their devices do, */
    socket_peer sockets;         /* or the ranges before the last one are on other hosts: that one's connections */
    pthread_mutex_t lock;        /* of what follows */
    pthread_cond_t changed;      /* a member is done with something */
    int quit;                    /* threads shall end */
    int over;                    /* the group has come to its end, */
    mote_error why;              /* because of this */
    struct {                     /* the pass that is computed, with the ids of all rows */
        pass_request q[PASS_ROWS_MAX];
        block b[PASS_ROWS_MAX];
        token_row rows[PASS_ROWS_MAX][MOTE_ROWS_MAX + 1];
    } pass;
};

/* That of all members, but that those before the last range may be on other hosts. */
static const executor *group_backend(const struct runner_group *g) {
    return g->member[g->count - 1].runner->backend;
}

/* ---- How a group ends ---------------------------------------------------------------------------------------------------- */

/* The member has failed: those that wait for it return. Only the first reason is kept; whatever it is, sessions can only be closed. */
static void group_end(runner_member *me, const char *why) {
    struct runner_group *g = me->of;
    const group_place *at = &me->as.at;
    pthread_mutex_lock(&g->lock);
    if (!g->over) fail(&g->why, MOTE_EDEVICE, "rank %d of range %d, on %.60s: %.360s", at->rank, at->range, me->runner->m->device.name,
                      why);
    g->over = 1;
    pthread_mutex_unlock(&g->lock);
    for (int i = 0; i < g->count; i++) {
        const runner_member *other = &g->member[i];
        if (other->as.by) other->as.by->end(&g->member[i].as);
        if (other->runner->backend->end) other->runner->backend->end(other->runner);
    }
}

/* Of the group: a code and, unless that is MOTE_OK, its reason. */
static int group_state(struct runner_group *g, mote_error *err) {
    pthread_mutex_lock(&g->lock);
    const int code = g->over ? g->why.code : MOTE_OK;
    if (code && err) *err = g->why;
    pthread_mutex_unlock(&g->lock);
    return code;
}

/* The same, after a member's call has returned `code`, and why. */
static int member_returned(runner_member *me, int code, const mote_error *why, mote_error *err) {
    if (code) group_end(me, why->message);
    return group_state(me->of, err);
}

/* ---- A member computes --------------------------------------------------------------------------------------------------- */

static int member_is_last(const runner_member *me) {
    return part_is_last(&me->runner->m->part);
}

/* A range before the last one has rows to compute, and nothing to choose. */
static void member_requests(runner_member *me, pass_request *const *of, int n) {
    member_pass *p = &me->pass;
    for (int k = 0; k < n; k++) {
        p->of[k] = &p->q[k];
        p->q[k] = *of[k];
        p->q[k].s = &of[k]->s->parts[me - me->of->member];
        p->q[k].code = MOTE_OK;
        if (!member_is_last(me)) p->q[k].kind = REQUEST_FORWARD;
        if (runner_answers(me->runner)) continue;
        p->q[k].ids = p->ids[k];
        p->q[k].confidence = p->confidence[k];
        p->q[k].count = &p->count[k];
        p->q[k].continue_drafting = NULL;
    }
}

static int watch_nothing(void *user, double rows) {
    (void)user;
    (void)rows;
    return 0;
}

/* A call about one slot. */
static int member_compute_one(runner_member *me, const member_call *c, mote_error *err) {
    const executor *on = me->runner->backend;
    slot *s = me->pass.q->s;
    block_watch watch = {.user = NULL, .layer = watch_nothing, .logits = NULL, .rows = NULL, .rows_most = 0};
    if (c->op == MEMBER_COMMIT_STATE) return on->commit_state(s, c->of[0]->b, err);
    if (c->op == MEMBER_LOGITS) return on->logits(s, err);
    if (c->watch) watch.user = c->watch->user, watch.logits = c->watch->logits, watch.rows = c->watch->rows, watch.rows_most = c->watch->rows_most;
    return on->prompt(s, c->of[0]->b, &watch, err);
}

/* Does its part of a call. If it fails, so does the group; but a token that cannot be chosen is that request's failure alone. */
static void member_compute(runner_member *me, const member_call *c) {
    mote_error why;
    int code = MOTE_OK;
    if (group_state(me->of, NULL)) return;
    member_requests(me, c->of, c->n);
    if (c->op == MEMBER_COMPUTE) {
        pass_compute(me->runner, me->pass.of, c->n);
        for (int k = 0; k < c->n && !code; k++)
            if ((code = me->pass.q[k].code)) why = me->pass.q[k].error;
    } else if (c->op == MEMBER_CHOOSE) {
        code = me->runner->backend->choose(me->runner, me->pass.of, c->n, &why);
        for (int k = 0; k < c->n && runner_answers(me->runner); k++)
            if ((c->of[k]->code = me->pass.q[k].code)) c->of[k]->error = me->pass.q[k].error;
    } else {
        code = member_compute_one(me, c, &why);
    }
    if (me->as.ended) code = fail(&why, MOTE_EDEVICE, "it cannot reach the others");
    if (code) group_end(me, why.message);
}

/* ---- Calls on their way to members --------------------------------------------------------------------------------------- */

/* Calls that it has not done. */
static unsigned member_has(const runner_member *me) {
    return __atomic_load_n(&me->given, __ATOMIC_ACQUIRE) - __atomic_load_n(&me->done, __ATOMIC_ACQUIRE);
}

/* Looks, for a while, whether it has between `least` and `most` calls. */
static void member_watch(const runner_member *me, unsigned least, unsigned most) {
    const double until = seconds() + me->of->patience;
    for (unsigned i = 1;; i++) {
        const unsigned has = member_has(me);
        if ((has >= least && has <= most) || (i % 64 == 0 && seconds() >= until)) return;
        if (i % 64 == 0) sched_yield();
    }
}

/* Waits until it has at most so many. */
static void member_await(runner_member *me, unsigned most) {
    struct runner_group *g = me->of;
    member_watch(me, 0, most);
    if (member_has(me) <= most) return;
    pthread_mutex_lock(&g->lock);
    while (member_has(me) > most) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void *member_main(void *argument) {
    runner_member *me = (runner_member *)argument;
    struct runner_group *g = me->of;
    for (;;) {
        member_watch(me, 1, GROUP_QUEUE);
        pthread_mutex_lock(&g->lock);
        while (!g->quit && !member_has(me)) pthread_cond_wait(&me->wake, &g->lock);
        const int quit = g->quit;
        pthread_mutex_unlock(&g->lock);
        if (quit) return NULL;
        member_compute(me, &me->queue[me->done % GROUP_QUEUE].call);
        pthread_mutex_lock(&g->lock);
        __atomic_add_fetch(&me->done, 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&g->changed);
        pthread_mutex_unlock(&g->lock);
    }
}

/* The queue's next place has the call: hands it over. */
static void member_give(runner_member *me) {
    pthread_mutex_lock(&me->of->lock);
    __atomic_add_fetch(&me->given, 1, __ATOMIC_RELEASE);
    pthread_cond_signal(&me->wake);
    pthread_mutex_unlock(&me->of->lock);
}

static void member_ask(runner_member *me, const member_call *c) {
    me->queue[me->given % GROUP_QUEUE].call = *c;
    member_give(me);
}

/* The same of a call about a long block, which may return before it is done. */
static void member_ask_later(runner_member *me, const member_call *c) {
    member_await(me, GROUP_QUEUE - 1);
    member_place *to = &me->queue[me->given % GROUP_QUEUE];
    to->call = *c;
    to->call.of = &to->one;
    to->one = &to->q;
    to->q = *c->of[0];
    to->q.b = &to->b;
    to->b = *c->of[0]->b;
    memcpy(to->rows, to->b.rows - 1, ((size_t)to->b.T + 1) * sizeof *to->rows);
    to->b.rows = to->rows + 1;
    member_give(me);
}

/* All members are done. */
static void group_settle(struct runner_group *g) {
    for (int i = 0; i < g->started; i++) member_await(&g->member[i], 0);
}

/* The slots' flags of logits: the group's own are those of its members of the last range, before and after a call. */
static void slot_copy_flags(slot *to, const slot *from) {
    to->logits_here = from->logits_here;
    to->logits_set = from->logits_set;
    to->logits_in_block = from->logits_in_block;
    to->last_row = from->last_row;
}

static void slot_tell_flags(slot *s) {
    for (int rank = 0; rank < slot_ranks(s); rank++) slot_copy_flags(slot_last(s, rank), s);
}

static void slot_take_flags(slot *s) {
    slot_copy_flags(s, slot_last(s, 0));
    s->unfinished = 0;
}

/* All members are done, and what the slot says of its logits is right. */
static int group_enter(slot *s, mote_error *err) {
    struct runner_group *g = s->runner->group;
    group_settle(g);
    if (s->unfinished) slot_take_flags(s);
    slot_tell_flags(s);
    return group_state(g, err);
}

/* Whether the thread of the caller computes for this member of those from `first` on: for the first, and where that only tells a device what
   to do, for one rank of each range. Members on other hosts are asked all at once: each waits for rows by itself. */
static int member_is_callers(const runner_member *me, int first) {
    if (me->runner->remote) return 0;
    return me == &me->of->member[first] || (me->runner->backend->launches && !me->as.at.rank);
}

/* Asks the members from number `first` on, which are idle, and waits for them. Range after range: where functions return when a device has been
   told, no device waits for another that has not been told yet, as the system may let the one who tells that wait for the first. */
static void group_ask(struct runner_group *g, const member_call *c, int first) {
    for (int range = first; range < g->count; range += g->ranks) {
        for (int i = range; i < range + g->ranks; i++)
            if (!member_is_callers(&g->member[i], first)) member_ask(&g->member[i], c);
        if (member_is_callers(&g->member[range], first)) member_compute(&g->member[range], c);
    }
    group_settle(g);
}

/* Number of the last range's first member. */
static int group_last(const struct runner_group *g) {
    return g->count - g->ranks;
}

/* Asks all members about a block that they need not be done with: returns when the first range is. Only then the others are asked, see
   group_ask; but of several hosts before, as the first range may be done only when the next one takes its rows. */
static void group_ask_later(struct runner_group *g, const member_call *c) {
    const int apart = g->member[0].runner->m->part.apart;
    for (int i = g->ranks; i < g->count; i++) member_await(&g->member[i], GROUP_QUEUE - 1);
    for (int i = g->ranks; i < g->count && apart; i++) member_ask_later(&g->member[i], c);
    for (int i = 1; i < g->ranks; i++) member_ask(&g->member[i], c);
    member_compute(&g->member[0], c);
    for (int i = 1; i < g->ranks; i++) member_await(&g->member[i], 0);
    for (int i = g->ranks; i < g->count && !apart; i++) member_ask_later(&g->member[i], c);
}

/* A call about one slot's block, for all members. later: nothing is wanted of it yet. */
static int group_ask_one(slot *s, enum member_op op, const block *b, const block_watch *watch, int later, mote_error *err) {
    struct runner_group *g = s->runner->group;
    pass_request q, *one = &q;
    const member_call c = {.op = op, .of = &one, .n = 1, .watch = watch};
    const int goes_on = s->unfinished && later;             /* members go on from block to block */
    int code = goes_on ? group_state(g, err) : group_enter(s, err);
    if (code) return code;
    request_is(&q, REQUEST_FORWARD, s, b);
    if (later) group_ask_later(g, &c);
    else group_ask(g, &c, op == MEMBER_LOGITS ? group_last(g) : 0);
    if (later) s->unfinished = 1, s->logits_here = s->logits_set = s->logits_in_block = 0;
    else slot_take_flags(s);
    return group_state(g, err);
}

/* The runners that compute for a runner: it itself, or its group's members. */
static int runners_of(const mote_runner *r) {
    return r->members ? r->m->member_count : 1;
}

static mote_runner *runner_number(mote_runner *r, int i) {
    return r->members ? r->members[i] : r;
}
