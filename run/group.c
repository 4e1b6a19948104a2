/* run/group.c: a runner that has a group of others compute: what its executor does, by asking the members (run/members.c). Knows runners and
   slots; must not know layers, nor devices.

   The session's own slot has no memory: states and final rows are in the slots on the members' runners, the logits in that of the last range's
   first rank, which answers: what a request wants, it writes to where the session wants it.

   Which rows a pass has, and the id of each, is known here before it begins. A token that a device chooses the last range chooses first,
   and those that it has prepared it tells. */

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
    for (int i = 0; i < r->m->member_count; i++) {
        const mote_runner *of = r->members[i];
        r->rows = min_int(r->rows, of->rows);
        r->logs &= of->logs;
        r->pass_rows = min_int(r->pass_rows, of->pass_rows);
        r->company_rows = min_int(r->company_rows, of->company_rows);
        if (!of->prompt_from) r->prompt_from = 0;
    }
}

/* The rows of a member on another host shall come to the next one. */
static int member_link(const runner_member *before, runner_member *me, mote_error *err) {
    if (me->runner->remote) return remote_join(before->runner, me->runner, err);
    me->as.by = &socket_exchange;
    me->as.sockets = &me->of->sockets;
    return remote_link(before->runner, &me->as.sockets->from, err);
}

/* Has the members of several hosts join a group by NCCL. */
static int group_join(mote_runner *r, mote_error *err) {
    const executor *on = group_backend(r->group);
    group_id id;
    mote_error why;
    int told = 0, code = on->invite(&id, err);
    for (; told < r->m->member_count && !code; told += !code) code = r->members[told]->backend->meet(r->members[told], &id, err);
    for (int i = 0; i < told; i++) {                        /* who has been told answers */
        const int failed = r->members[i]->backend->met(r->members[i], &why);
        if (failed && !code) code = failed, *err = why;
    }
    return code;
}

/* Rows of several hosts' GPUs go by NCCL where all have the same version of it, and by the hosts' connections where not. */
static int group_meet(mote_runner *r, mote_error *err) {
    const mote_runner *last = r->members[r->m->member_count - 1], *other = last;
    mote_error why;
    if (!last->m->part.apart || !last->backend->meet) return MOTE_OK;
    for (int i = 0; i < r->m->member_count && other->nccl == last->nccl; i++) other = r->members[i];
    if (!last->nccl) other = last;
    if (!other->nccl || other->nccl != last->nccl) {
        snprintf(r->told, sizeof r->told, "rows between hosts go over TCP: %.90s has %s", other->m->remote ? other->m->device.name : "this host",
                 other->nccl ? "another version of NCCL" : "no NCCL");
        return MOTE_OK;
    }
    snprintf(r->told, sizeof r->told, "rows between hosts go by NCCL %d.%d.%d", last->nccl / 10000, last->nccl / 100 % 100, last->nccl % 100);
    if (!group_join(r, &why)) return MOTE_OK;
    snprintf(r->told, sizeof r->told, "rows between hosts go over TCP: %.180s", why.message);
    int code = MOTE_OK;
    for (int i = 0; i < r->m->member_count && !code; i++) code = r->members[i]->backend->meet(r->members[i], NULL, err);
    return code;
}

/* Opens the members, lets them find each other, and gives each a thread. */
static int group_open_members(mote_runner *r, mote_error *err) {
    struct runner_group *g = r->group;
    const model_part *part = &r->m->members[0]->part;
    const executor *on = group_backend(g);
    int code = MOTE_OK;
    for (int i = 0; i < g->count && !code; i++) code = r->members[i]->backend->open(r->members[i], err);
    for (int i = 1; i < g->count && !code; i++)
        if (r->members[i - 1]->remote) code = member_link(&g->member[i - 1], &g->member[i], err);
    for (int i = 0; i < g->count && !code && on->connect && !part->apart; i++) code = on->connect(r->members[i], err);
    if (!code) code = group_meet(r, err);
    for (; g->started < g->count && !code; g->started += !code)
        if (thread_start(&g->member[g->started].thread, member_main, &g->member[g->started]))
            code = fail(err, MOTE_ENOMEM, "the system gives no %d threads", g->count);
    return code;
}

static int group_open(mote_runner *r, mote_error *err) {
    const model_part *part = &r->m->members[0]->part;
    const size_t each = (size_t)max_int(r->o.chunk, PASS_ROWS_MAX) + 1;
    const int launches = r->members[r->m->member_count - 1]->backend->launches;
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
    if (!launches && !part->apart)
        g->threads = threads_open(part->ranges, part->ranks, sizeof(float) * cpu_share(r->m->members[0], capacity_of(&r->o, r->o.context).rows));
    if (!g->member || !g->peers || !g->rows || (!launches && !part->apart && !g->threads)) return fail_memory(err);
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
    request_is_step(&q, s, b, p, id);
    return group_pass_one(&q, err);
}

static int group_cycle(slot *s, const block *b, const mote_sampling *p, int drafts, int32_t *ids, int *count, mote_error *err) {
    pass_request q;
    request_is_cycle(&q, s, b, p, drafts, ids, count);
    return group_pass_one(&q, err);
}

/* Cancelled between blocks alone: then all members have the same ones. */
static int group_prompt(slot *s, const block *b, const block_watch *watch, mote_error *err) {
    const int wanted = b->logits || b->mtp_logits || b->residual_rows || watch->logits;
    if (watch->layer(watch->user, 0)) return fail(err, MOTE_ECANCELLED, "cancelled");
    return group_ask_one(s, MEMBER_PROMPT, b, watch, !wanted, err);
}

static int group_prompt_rows(const slot *s, int position, size_t count) {
    return group_backend(s->runner->group)->prompt_rows(slot_last(s, 0), position, count);
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

static int member_finish(slot *part, mote_error *err) {
    return part->runner->backend->finish(part, err);
}

static int group_clear(slot *s, mote_error *err) {
    return group_each(s, 0, member_clear, err);
}

static int group_finish(slot *s, mote_error *err) {
    return group_each(s, 0, member_finish, err);
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
    for (int i = 0; i < g->count; i++) {
        const mote_runner *of = g->member[i].runner;
        if (member_has(&g->member[i]) || (of->backend->computes && of->backend->computes(of))) return 1;
    }
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
