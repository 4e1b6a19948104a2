/* run/group.c: a runner that has a group of others compute: each runs a part of the program, and they exchange what they need of each other
   (exchange/). What a session asks of the group's runner becomes calls of members' executors. Knows runners and slots; must not know layers,
   nor devices: what differs between these, executors say.

   The session's own slot has no memory: states and final rows are in the slots on the members' runners, the logits in that of the last range's
   first rank, which answers: what a request wants, it writes to where the session wants it.

   Which rows a pass has, and the id of each, is known here before it begins. A token that a device chooses the last range chooses first,
   and those that it has prepared it tells.

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

/* The member has failed: those that wait for it return. Only the first reason is kept. */
static void group_end(runner_member *me, int code, const char *why) {
    struct runner_group *g = me->of;
    const group_place *at = &me->as.at;
    pthread_mutex_lock(&g->lock);
    if (!g->over) fail(&g->why, code, "rank %d of range %d, on %.60s: %.360s", at->rank, at->range, me->runner->m->device.name,
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
    if (code) group_end(me, code, why->message);
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
    if (code) group_end(me, code, why.message);
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
    s->behind = 0;
}

/* All members are done, and what the slot says of its logits is right. */
static int group_enter(slot *s, mote_error *err) {
    struct runner_group *g = s->runner->group;
    group_settle(g);
    if (s->behind) slot_take_flags(s);
    slot_tell_flags(s);
    return group_state(g, err);
}

/* Whether the thread of the caller computes for this member of those from `first` on: for the first, and where that only tells a device what
   to do, for one rank of each range. */
static int member_is_callers(const runner_member *me, int first) {
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

/* Asks all members about a block that they need not be done with: returns when the first range is. Only then the others are asked: see
   group_ask. */
static void group_ask_later(struct runner_group *g, const member_call *c) {
    for (int i = g->ranks; i < g->count; i++) member_await(&g->member[i], GROUP_QUEUE - 1);
    for (int i = 1; i < g->ranks; i++) member_ask(&g->member[i], c);
    member_compute(&g->member[0], c);
    for (int i = 1; i < g->ranks; i++) member_await(&g->member[i], 0);
    for (int i = g->ranks; i < g->count; i++) member_ask_later(&g->member[i], c);
}

/* A call about one slot's block, for all members. later: nothing is wanted of it yet. */
static int group_ask_one(slot *s, enum member_op op, const block *b, const block_watch *watch, int later, mote_error *err) {
    struct runner_group *g = s->runner->group;
    pass_request q, *one = &q;
    const member_call c = {.op = op, .of = &one, .n = 1, .watch = watch};
    const int behind = s->behind && later;                  /* members go on from block to block */
    int code = behind ? group_state(g, err) : group_enter(s, err);
    if (code) return code;
    request_is(&q, REQUEST_FORWARD, s, b);
    if (later) group_ask_later(g, &c);
    else group_ask(g, &c, op == MEMBER_LOGITS ? group_last(g) : 0);
    if (later) s->behind = 1, s->logits_here = s->logits_set = s->logits_in_block = 0;
    else slot_take_flags(s);
    return group_state(g, err);
}

/* ---- Opening and closing ------------------------------------------------------------------------------------------------- */

/* Gives member i its place, and its queue: [rows] of that. */
static void member_begin(mote_runner *front, int i, token_row *rows, size_t each) {
    struct runner_group *g = front->group;
    runner_member *me = &g->member[i];
    const model_part *part = &front->m->members[i]->part;
    me->of = g;
    me->runner = front->members[i];
    me->as.at.range = part->range;
    me->as.at.ranges = part->ranges;
    me->as.at.rank = part->rank;
    me->as.at.ranks = part->ranks;
    me->as.all = g->peers;
    me->as.threads = g->threads;
    me->as.by = g->threads ? &thread_exchange : NULL;
    g->peers[i] = &me->as;
    me->runner->me = &me->as;
    pthread_cond_init(&me->wake, NULL);
    for (int k = 0; k < GROUP_QUEUE; k++) me->queue[k].rows = rows + ((size_t)i * GROUP_QUEUE + (size_t)k) * each;
}

/* What a group can do is what its members can. */
static void group_take_limits(mote_runner *r) {
    const mote_runner *first = r->members[0], *last = r->members[r->m->member_count - 1];
    r->rows = first->rows;
    r->mtp_rows = last->mtp_rows;
    r->logs = first->logs;
    r->pass_rows = first->pass_rows;
    r->company_rows = first->company_rows;
    r->prompt_from = first->prompt_from;
    for (int i = 0; i < r->m->member_count; i++)
        if (!r->members[i]->prompt_from) r->prompt_from = 0;
}

/* The rows of a member on another host shall come to the next one. */
static int member_link(const runner_member *before, runner_member *me, mote_error *err) {
    if (me->runner->remote) return remote_join(before->runner, me->runner, err);
    me->as.by = &socket_exchange;
    me->as.sockets = &me->of->sockets;
    return remote_link(before->runner, &me->as.sockets->from, err);
}

/* Opens the members, lets them find each other, and gives each a thread. */
static int group_open_members(mote_runner *r, mote_error *err) {
    struct runner_group *g = r->group;
    const executor *on = r->members[0]->backend;
    int code = MOTE_OK;
    for (int i = 0; i < g->count && !code; i++) code = r->members[i]->backend->open(r->members[i], err);
    for (int i = 1; i < g->count && !code; i++)
        if (r->members[i - 1]->remote) code = member_link(&g->member[i - 1], &g->member[i], err);
    for (int i = 0; i < g->count && !code && on->connect; i++) code = on->connect(r->members[i], err);
    for (; g->started < g->count && !code; g->started += !code)
        if (thread_start(&g->member[g->started].thread, member_main, &g->member[g->started]))
            code = fail(err, MOTE_ENOMEM, "the system gives no %d threads", g->count);
    return code;
}

static int group_open(mote_runner *r, mote_error *err) {
    const model_part *part = &r->m->members[0]->part;
    const size_t each = (size_t)max_int(r->o.chunk, PASS_ROWS_MAX) + 1;
    const int launches = r->members[0]->backend->launches;
    struct runner_group *g = (struct runner_group *)calloc(1, sizeof *g);
    if (!g) return fail_memory(err);
    r->group = g;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    sockets_open(&g->sockets);
    g->ranks = part->ranks;
    g->patience = launches ? 2e-3 : 50e-6;
    g->member = (runner_member *)calloc((size_t)r->m->member_count, sizeof *g->member);
    g->peers = (peer **)calloc((size_t)r->m->member_count, sizeof *g->peers);
    g->rows = (token_row *)calloc((size_t)r->m->member_count * GROUP_QUEUE * each, sizeof *g->rows);
    if (!launches) g->threads = threads_open(part->ranges, part->ranks, sizeof(float) * cpu_share(r->m->members[0], capacity_of(&r->o, r->o.context).rows));
    if (!g->member || !g->peers || !g->rows || (!launches && !g->threads)) return fail_memory(err);
    for (; g->count < r->m->member_count; g->count++) member_begin(r, g->count, g->rows, each);
    const int code = group_open_members(r, err);
    if (!code) group_take_limits(r);
    return code;
}

/* In a forked child there are no threads, and lock and conditions are as the parent's have left them. */
static void group_close(mote_runner *r) {
    struct runner_group *g = r->group;
    const int in_child = r->owner != getpid();
    if (!g) return;
    if (!in_child) {
        pthread_mutex_lock(&g->lock);
        g->quit = 1;
        for (int i = 0; i < g->started; i++) pthread_cond_signal(&g->member[i].wake);
        pthread_mutex_unlock(&g->lock);
        for (int i = 0; i < g->started; i++) pthread_join(g->member[i].thread, NULL);
        for (int i = 0; i < g->count; i++) pthread_cond_destroy(&g->member[i].wake);
        pthread_cond_destroy(&g->changed);
        pthread_mutex_destroy(&g->lock);
    }
    for (int i = 0; i < r->m->member_count; i++) {
        runner_drop(r->members[i]);
        r->members[i] = NULL;
    }
    threads_free(g->threads, in_child);
    sockets_close(&g->sockets);
    free(g->rows);
    free(g->peers);
    free(g->member);
    free(g);
}

static int group_slot_open(slot *s, mote_error *err) {
    int code = MOTE_OK;
    group_settle(s->runner->group);
    for (int i = 0; i < slot_members(s) && !code; i++) code = slot_open(&s->parts[i], err);
    if (code) return code;
    const slot *answering = slot_last(s, 0);
    s->logits = answering->logits;
    s->block_logits = answering->block_logits;
    for (int rank = 1; rank < slot_ranks(s); rank++) {
        slot_last(s, rank)->logits = s->logits;
        slot_last(s, rank)->block_logits = s->block_logits;
    }
    slot_take_flags(s);
    return MOTE_OK;
}

static void group_slot_close(slot *s) {
    struct runner_group *g = s->runner->group;
    if (g && s->runner->owner == getpid()) group_settle(g);
    for (int i = 0; i < slot_members(s) && s->parts; i++) slot_close(&s->parts[i]);
}

/* ---- Passes -------------------------------------------------------------------------------------------------------------- */

/* Whether its token is to be chosen first. */
static int request_begins(const pass_request *q) {
    return q->b->rows->id < 0 && (q->kind == REQUEST_STEP || (q->kind == REQUEST_CYCLE && q->b->T == 1));
}

/* The same request with an id in each of its rows: `first` in the first one, if it is not there. Number k of the pass. */
static pass_request *group_give_ids(struct runner_group *g, int k, const pass_request *from, const int32_t *ids) {
    pass_request *q = &g->pass.q[k];
    block *b = &g->pass.b[k];
    token_row *rows = g->pass.rows[k];
    *q = *from;
    *b = *from->b;
    memcpy(rows, from->b->rows - 1, ((size_t)b->T + 1) * sizeof *rows);
    for (int t = 0; t < b->T; t++)
        if (rows[t + 1].id < 0) rows[t + 1].id = ids[t];
    b->rows = rows + 1;
    b->last |= q->kind == REQUEST_STEP;
    q->b = b;
    return q;
}

/* Of n requests the ids of all rows: asks the last range for those that the host does not have. to: those that can be computed. Returns how
   many, or -1. */
static int group_ids(struct runner_group *g, pass_request *const *of, int n, pass_request **to) {
    pass_request *begin[PASS_ROWS_MAX];
    int32_t ids[MOTE_ROWS_MAX];
    int begins = 0, count = 0;
    mote_error why;
    for (int k = 0; k < n; k++)
        if (request_begins(of[k])) begin[begins++] = of[k];
    const member_call choose = {.op = MEMBER_CHOOSE, .of = begin, .n = begins, .watch = NULL};
    if (begins) group_ask(g, &choose, group_last(g));
    for (int k = 0; k < n; k++) {
        runner_member *last = &g->member[group_last(g)];
        if (of[k]->code) continue;
        if (of[k]->b->rows->id >= 0) to[count++] = of[k];
        else if (request_begins(of[k])) to[count++] = group_give_ids(g, k, of[k], of[k]->ids);
        else if (member_returned(last, group_backend(g)->prepared(slot_last(of[k]->s, 0), of[k]->b->T, ids, &why), &why, NULL)) return -1;
        else to[count++] = group_give_ids(g, k, of[k], ids);
    }
    return count;
}

/* Requests whose ids are all there: those of a class as one pass. */
static void group_compute(struct runner_group *g, pass_request *const *of, int n) {
    const executor *on = group_backend(g);
    pass_request *some[PASS_ROWS_MAX];
    char taken[PASS_ROWS_MAX] = {0};
    const int drafts = n && of[0]->kind == REQUEST_DRAFT;
    for (int i = 0; i < n; i++) {
        const int class_of = on->pass_class && !drafts ? on->pass_class(of[i]) : 0;
        int count = 0;
        if (taken[i]) continue;
        some[count++] = of[i];
        for (int k = i + 1; k < n && class_of >= 0; k++)
            if (!taken[k] && (!on->pass_class || drafts || on->pass_class(of[k]) == class_of)) some[count++] = of[k], taken[k] = 1;
        const member_call c = {.op = MEMBER_COMPUTE, .of = some, .n = count, .watch = NULL};
        group_ask(g, &c, drafts ? group_last(g) : 0);
    }
}

/* Each request gets the group's outcome, unless it has one of its own. */
static void group_pass(mote_runner *r, pass_request *const *of, int n) {
    struct runner_group *g = r->group;
    pass_request *ready[PASS_ROWS_MAX];
    mote_error why;
    for (int k = 0; k < n; k++) of[k]->code = MOTE_OK, (void)group_enter(of[k]->s, NULL);
    const int count = of[0]->kind == REQUEST_DRAFT || group_state(g, NULL) ? -1 : group_ids(g, of, n, ready);
    if (!group_state(g, NULL)) group_compute(g, count < 0 ? of : ready, count < 0 ? n : count);
    const int code = group_state(g, &why);
    for (int k = 0; k < n; k++) {
        slot_take_flags(of[k]->s);
        if (of[k]->code) continue;
        of[k]->code = code;
        if (code) of[k]->error = why;
    }
}

static int group_pass_one(pass_request *q, mote_error *err) {
    group_pass(q->s->runner, &q, 1);
    if (q->code && err) *err = q->error;
    return q->code;
}

/* A long block of a prompt that goes on, of which nothing is wanted, may be computed while the next one is. */
static int group_forward(slot *s, const block *b, mote_error *err) {
    pass_request q;
    request_is(&q, REQUEST_FORWARD, s, b);
    if (b->T > MOTE_ROWS_MAX && !b->last && !b->logits && !b->mtp_logits && !b->residual_rows)
        return group_ask_one(s, MEMBER_COMPUTE, b, NULL, 1, err);
    return group_pass_one(&q, err);
}

static int group_step(slot *s, const block *b, const mote_sampling *p, int32_t *id, mote_error *err) {
    pass_request q;
    request_is(&q, REQUEST_STEP, s, b);
    q.sampling = p;
    q.ids = id;
    return group_pass_one(&q, err);
}

static int group_cycle(slot *s, const block *b, const mote_sampling *p, int drafts, int32_t *ids, int *count, mote_error *err) {
    pass_request q;
    request_is(&q, REQUEST_CYCLE, s, b);
    q.sampling = p;
    q.drafts = drafts;
    q.ids = ids;
    q.count = count;
    return group_pass_one(&q, err);
}

/* Cancelled between blocks alone: then all members have the same ones. */
static int group_prompt(slot *s, const block *b, const block_watch *watch, mote_error *err) {
    const int wanted = b->logits || b->mtp_logits || b->residual_rows || watch->logits;
    if (watch->layer(watch->user, 0)) return fail(err, MOTE_ECANCELLED, "cancelled");
    return group_ask_one(s, MEMBER_PROMPT, b, watch, !wanted, err);
}

static int group_prompt_rows(const slot *s, int position, size_t count) {
    return group_backend(s->runner->group)->prompt_rows(slot_member(s, 0), position, count);
}

static int group_commit_state(slot *s, const block *b, mote_error *err) {
    return group_ask_one(s, MEMBER_COMMIT_STATE, b, NULL, 0, err);
}

static int group_logits(slot *s, mote_error *err) {
    return group_ask_one(s, MEMBER_LOGITS, NULL, NULL, 0, err);
}

/* ---- What needs no thread: the members are idle -------------------------------------------------------------------------- */

/* s: a member's slot, or the group's own, which stands for that of the one that answers. */
static int group_copy(slot *s, void *to, const void *from, size_t n, mote_error *err) {
    slot *front = s->front ? s->front : s, *at = s->front ? s : slot_last(s, 0);
    struct runner_group *g = front->runner->group;
    const executor *on = at->runner->backend;
    const int i = (int)(at - front->parts), first = i / g->ranks * g->ranks;
    mote_error why;
    int code = group_enter(front, err);
    for (int k = first; k < first + g->ranks && !code && n && on->enter; k++)
        if (k != i) code = member_returned(&g->member[k], on->enter(&front->parts[k], &why), &why, err);
    return code ? code : member_returned(&g->member[i], on->copy(at, to, from, n, &why), &why, err);
}

/* A call on each member's slot from number `first` on. */
static int group_each(slot *s, int first, int (*call)(slot *part, mote_error *err), mote_error *err) {
    struct runner_group *g = s->runner->group;
    mote_error why;
    int code = group_enter(s, err);
    for (int i = first; i < g->count && !code; i++) code = member_returned(&g->member[i], call(&s->parts[i], &why), &why, err);
    return code;
}

static int member_clear(slot *part, mote_error *err) {
    return part->runner->backend->clear(part, err);
}

static int group_clear(slot *s, mote_error *err) {
    return group_each(s, 0, member_clear, err);
}

static int group_finish(slot *s, mote_error *err) {
    return group_each(s, 0, group_backend(s->runner->group)->finish, err);
}

static int group_prepare(slot *s, mote_error *err) {
    return group_each(s, group_last(s->runner->group), group_backend(s->runner->group)->prepare, err);
}

static int group_can_sample(const slot *s, const mote_sampling *p) {
    const executor *on = group_backend(s->runner->group);
    return on->can_sample && on->can_sample(slot_last(s, 0), p);
}

static int group_drafted(slot *s, int n, int32_t *ids, float *confidence, mote_error *err) {
    struct runner_group *g = s->runner->group;
    mote_error why;
    const int code = group_enter(s, err);
    return code ? code : member_returned(&g->member[group_last(g)], group_backend(g)->drafted(slot_last(s, 0), n, ids, confidence, &why), &why, err);
}

static int group_computes(const mote_runner *r) {
    const struct runner_group *g = r->group;
    const executor *on = group_backend(g);
    for (int i = 0; i < g->count; i++)
        if (member_has(&g->member[i]) || (on->computes && on->computes(g->member[i].runner))) return 1;
    return 0;
}

#define GROUP_FUNCTIONS                                                                                                                    \
    .runner_bytes = 0, .slot_bytes = 0, .layout_runner = NULL, .layout_slot = NULL, .open = group_open, .close = group_close,              \
    .slot_open = group_slot_open, .slot_close = group_slot_close, .forward = group_forward, .prompt_rows = group_prompt_rows,              \
    .prompt = group_prompt, .commit_state = group_commit_state, .draft = NULL, .logits = group_logits, .copy = group_copy,                 \
    .clear = group_clear, .finish = group_finish, .prepare = group_prepare, .can_sample = group_can_sample, .step = group_step,            \
    .cycle = group_cycle, .drafted = group_drafted, .pass = group_pass, .computes = group_computes, .vision = NULL, .launches = 0,         \
    .connect = NULL, .end = NULL, .enter = NULL, .choose = NULL, .prepared = NULL, .pass_class = NULL

/* Of members on the CPU; of a draft at a time a session is asked whether it wants another: in pass(). */
static const executor group_executor = {
    .kv = MOTE_KV_F32, .chunk = CPU_CHUNK, .chunk_alignment = 1, .ring_rows = 0, .shares_memory = 1, .reads_text = 0, GROUP_FUNCTIONS};
