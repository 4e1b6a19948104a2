/* run/group.c: a runner that has a group of others compute: each runs a part of the program, on a thread of its own, and they exchange what
   they need of each other (exchange/). What a session asks of the group's runner goes to all members at the same time. Knows runners and
   slots; must not know layers.

   The session's own slot has its logits alone; states and final rows are in the slots on the members' runners. The last range's first rank
   answers: what a request wants, it writes to where the session wants it.

   When a member fails, the group has come to its end: all others return from where they wait for it, and every call on the group's
   sessions fails from then on, with the reason. */

typedef struct runner_member {
    struct runner_group *of;
    mote_runner *runner;
    peer as;                     /* its place, and how it reaches the others */
    pthread_t thread;
} runner_member;

struct runner_group {
    int count, started;          /* members; those that have a thread */
    runner_member *member;       /* [ranges][ranks] */
    thread_group *threads;       /* how they exchange */
    pthread_mutex_t lock;        /* of what follows */
    pthread_cond_t changed;
    unsigned pass;               /* grows with every pass; 0: there was none */
    int computing, quit;         /* members that are not done with it; threads shall end */
    pass_request *const *of;     /* [n] of the pass */
    int n;
};

/* ---- A member's thread --------------------------------------------------------------------------------------------------- */

/* The requests of a pass as they are for one member: on its own slots, and, unless it answers, with places of its own for drafts. */
typedef struct member_pass {
    pass_request q[PASS_ROWS_MAX], *of[PASS_ROWS_MAX];
    int32_t ids[PASS_ROWS_MAX][MOTE_ROWS_MAX];
    float confidence[PASS_ROWS_MAX][MOTE_ROWS_MAX];
    int count[PASS_ROWS_MAX];
} member_pass;

static void member_requests(member_pass *p, const runner_member *me, pass_request *const *of, int n) {
    const int i = (int)(me - me->of->member), answers = i == me->of->count - me->as.at.ranks;
    for (int k = 0; k < n; k++) {
        p->of[k] = &p->q[k];
        p->q[k] = *of[k];
        p->q[k].s = &of[k]->s->parts[i];
        if (answers) continue;
        p->q[k].ids = p->ids[k];
        p->q[k].confidence = p->confidence[k];
        p->q[k].count = &p->count[k];
        p->q[k].continue_drafting = NULL;
    }
}

/* Computes its part of a pass. If it fails, so does the group, which learns who it was. */
static void member_compute(runner_member *me, member_pass *p, pass_request *const *of, int n) {
    const group_place *at = &me->as.at;
    mote_error why;
    member_requests(p, me, of, n);
    me->runner->backend->pass(me->runner, p->of, n);
    for (int k = 0; k < n; k++) {
        if (!p->q[k].code) continue;
        fail(&why, p->q[k].code, "rank %d of range %d: %s", at->rank, at->range,
             me->as.ended ? "it cannot reach the others" : p->q[k].error.message);
        me->as.by->end(&me->as, &why);
    }
}

static void *member_main(void *argument) {
    runner_member *me = (runner_member *)argument;
    struct runner_group *g = me->of;
    member_pass pass;
    pthread_mutex_lock(&g->lock);
    for (unsigned done = 0;; done++) {
        while (!g->quit && g->pass == done) pthread_cond_wait(&g->changed, &g->lock);
        if (g->quit) break;
        pthread_mutex_unlock(&g->lock);
        member_compute(me, &pass, g->of, g->n);
        pthread_mutex_lock(&g->lock);
        if (!--g->computing) pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* ---- The executor -------------------------------------------------------------------------------------------------------- */

/* Opens member i. Of the threads that compute, a range has all, since the others wait for it; its ranks share them. */
static int member_open(mote_runner *front, int i, mote_error *err) {
    struct runner_group *g = front->group;
    runner_member *me = &g->member[i];
    const mote_model *m = front->m->members[i];
    run_options o = front->o;
    o.threads = max_int(1, o.threads / m->part.ranks);
    me->of = g;
    me->as.by = &thread_exchange;
    me->as.at.range = m->part.range;
    me->as.at.ranges = m->part.ranges;
    me->as.at.rank = m->part.rank;
    me->as.at.ranks = m->part.ranks;
    me->as.threads = g->threads;
    me->runner = runner_shell(m, &o, front->one_slot);
    if (!me->runner) return fail_memory(err);
    me->runner->me = &me->as;
    return me->runner->backend->open(me->runner, err);
}

static int group_open(mote_runner *r, mote_error *err) {
    const model_part *part = &r->m->members[0]->part;
    struct runner_group *g = r->group = (struct runner_group *)calloc(1, sizeof *g);
    if (!g) return fail_memory(err);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->count = r->m->member_count;
    g->member = (runner_member *)calloc((size_t)g->count, sizeof *g->member);
    g->threads = threads_open(part->ranges, part->ranks, sizeof(float) * cpu_share(r->m->members[0], capacity_of(&r->o, r->o.context).rows));
    int code = g->member && g->threads ? MOTE_OK : fail_memory(err);
    for (int i = 0; i < g->count && !code; i++) code = member_open(r, i, err);
    for (int i = 0; i < g->count && !code; i++, g->started += !code)
        if (thread_start(&g->member[i].thread, member_main, &g->member[i]))
            code = fail(err, MOTE_ENOMEM, "the system gives no %d threads", g->count);
    if (code) return code;
    const mote_runner *first = g->member[0].runner;
    r->rows = first->rows;
    r->mtp_rows = first->mtp_rows;
    r->pass_rows = first->pass_rows;
    r->company_rows = first->company_rows;
    return MOTE_OK;
}

static void group_close(mote_runner *r) {
    struct runner_group *g = r->group;
    const int in_child = r->owner != getpid();
    if (!g) return;
    if (!in_child) {
        pthread_mutex_lock(&g->lock);
        g->quit = 1;
        pthread_cond_broadcast(&g->changed);
        pthread_mutex_unlock(&g->lock);
        for (int i = 0; i < g->started; i++) pthread_join(g->member[i].thread, NULL);
        pthread_cond_destroy(&g->changed);
        pthread_mutex_destroy(&g->lock);
    }
    for (int i = 0; i < g->count && g->member; i++)
        if (g->member[i].runner) runner_drop(g->member[i].runner);
    threads_free(g->threads, in_child);
    free(g->member);
    free(g);
}

static int group_slot_open(slot *s, mote_error *err) {
    const struct runner_group *g = s->runner->group;
    int code = cpu_slot_open(s, err);
    s->parts = code ? NULL : (slot *)calloc((size_t)g->count, sizeof *s->parts);
    if (!code && !s->parts) code = fail_memory(err);
    for (int i = 0; i < g->count && !code; i++) {
        mote_runner *r = g->member[i].runner;
        code = slot_begin(&s->parts[i], r, s->context, s->has_mtp && r->m->has_mtp, err);
        s->parts[i].front = s;
        s->parts[i].verifies = s->verifies;
        if (!code) code = slot_open(&s->parts[i], err);
    }
    return code;
}

static void group_slot_close(slot *s) {
    for (int i = 0; i < s->runner->m->member_count && s->parts; i++) slot_close(&s->parts[i]);
    free(s->parts);
    cpu_slot_close(s);
}

/* All members compute; each request gets the group's outcome. */
static void group_pass(mote_runner *r, pass_request *const *of, int n) {
    struct runner_group *g = r->group;
    mote_error why;
    pthread_mutex_lock(&g->lock);
    g->of = of;
    g->n = n;
    g->computing = g->count;
    g->pass++;
    pthread_cond_broadcast(&g->changed);
    while (g->computing) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
    const int code = g->member->as.by->ended(&g->member->as, &why);
    for (int k = 0; k < n; k++) {
        of[k]->code = code;
        if (code) of[k]->error = why;
        else if (of[k]->kind == REQUEST_FORWARD) slot_computed(of[k]->s, of[k]->b);
    }
}

static int group_forward(slot *s, const block *b, mote_error *err) {
    pass_request q, *one = &q;
    request_is(&q, REQUEST_FORWARD, s, b);
    group_pass(s->runner, &one, 1);
    if (q.code && err) *err = q.error;
    return q.code;
}

static int group_copy(slot *s, void *to, const void *from, size_t n, mote_error *err) {
    if (from == s->m->norm) return cpu_copy(s, to, from, n, err);
    return fail(err, MOTE_EUNSUPPORTED, "the state of a session whose model runs in parts can be neither remembered, copied nor saved");
}

static int group_clear(slot *s, mote_error *err) {
    int code = MOTE_OK;
    for (int i = 0; i < s->runner->group->count && !code; i++) code = slot_clear(&s->parts[i], err);
    return code;
}

static const executor group_executor = {
    .kv = MOTE_KV_F32, .chunk = CPU_CHUNK, .chunk_alignment = 1, .ring_rows = 0, .shares_memory = 1, .runner_bytes = 0, .slot_bytes = 0,
    .layout_runner = NULL, .layout_slot = NULL, .open = group_open, .close = group_close,
    .slot_open = group_slot_open, .slot_close = group_slot_close, .forward = group_forward, .prompt_rows = NULL, .prompt = NULL,
    .commit_state = group_forward, .draft = NULL, .logits = cpu_nothing, .copy = group_copy, .clear = group_clear,
    .finish = cpu_nothing, .prepare = cpu_nothing, .can_sample = NULL, .step = NULL, .cycle = NULL, .drafted = NULL,
    .pass = group_pass, .computes = NULL,
    .launches = 0, .connect = NULL, .end = NULL, .enter = NULL, .choose = NULL, .prepared = NULL, .pass_class = NULL};
