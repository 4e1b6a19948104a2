/* run/slot.c: a session's part of a runner: opening and closing it, and the executors' operations on it. */

static int slot_begin(slot *s, mote_runner *r, int context, int has_mtp, mote_error *err);

/* The same on the members of its group. */
static int slot_begin_parts(slot *s, mote_error *err) {
    mote_runner **members = s->runner->members;
    int code = MOTE_OK;
    s->parts = (slot *)calloc((size_t)s->m->member_count, sizeof *s->parts);
    if (!s->parts) return fail_memory(err);
    for (int i = 0; i < s->m->member_count && !code; i++) {
        code = slot_begin(&s->parts[i], members[i], s->context, s->has_mtp && members[i]->m->has_mtp, err);
        s->parts[i].front = s;
    }
    return code;
}

/* Makes *s a slot of the runner that has no memory yet. To be closed in any case. */
static int slot_begin(slot *s, mote_runner *r, int context, int has_mtp, mote_error *err) {
    memset(s, 0, sizeof *s);
    s->runner = runner_hold(r);
    s->m = r->m;
    s->context = context;
    s->has_mtp = has_mtp;
    s->number = -1;
    s->state = (layer_state *)calloc((size_t)model_states(r->m), sizeof *s->state);
    if (r->backend->slot_bytes) s->gpu = (struct gpu_slot *)calloc(1, r->backend->slot_bytes);
    if (!s->state || (!s->gpu && r->backend->slot_bytes)) return fail_memory(err);
    return r->members ? slot_begin_parts(s, err) : MOTE_OK;
}

/* What a slot without memory is laid out for. */
static void slot_set_options(slot *s, int context, int verifies) {
    s->context = context;
    s->verifies = verifies;
    for (int i = 0; i < s->m->member_count && s->parts; i++) slot_set_options(&s->parts[i], context, verifies);
}

/* Frees a slot without memory of its own. */
static void slot_free(slot *s) {
    mote_runner *r = s->runner;
    for (int i = 0; i < s->m->member_count && s->parts; i++)
        if (s->parts[i].runner) slot_free(&s->parts[i]);
    free(s->parts);
    free(s->gpu);
    free(s->state);
    memset(s, 0, sizeof *s);
    runner_drop(r);
}

/* Among the open slots of the runner. */
static void slot_link(slot *s) {
    mote_runner *r = s->runner;
    pthread_mutex_lock(&r->lock);
    s->next = r->slots;
    r->slots = s;
    pthread_mutex_unlock(&r->lock);
}

static void slot_unlink(const slot *s) {
    mote_runner *r = s->runner;
    pthread_mutex_lock(&r->lock);
    for (slot **at = &r->slots; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    pthread_mutex_unlock(&r->lock);
}

/* Allocates a slot, all zero. */
static int slot_open(slot *s, mote_error *err) {
    int code = runner_enter(s->runner, s, err);
    if (code) return code;
    (void)layout_slot(NULL, NULL, s);
    code = s->runner->backend->slot_open(s, err);
    if (!code) slot_link(s);
    runner_leave(s->runner);
    return code;
}

/* Also in a forked child, from inside a call on another slot of the runner, and after a callback has left one on this slot by an
   exception. */
static void slot_close(slot *s) {
    mote_runner *r = s->runner;
    if (!r) return;
    int alive = r->owner == getpid(), ours = alive && runner_is_ours(r);
    if (alive) slot_answers(s, 0);
    if (alive && !ours) (void)runner_enter(r, s, NULL);
    int leaves = alive && r->inside == s, reads = alive && r->prompts.of == s, computes = alive && r->blocks.of == s;
    r->backend->slot_close(s);
    if (alive) slot_unlink(s);
    if (reads || computes) prompt_leave(r, reads ? &r->prompts : &r->blocks);
    else if (leaves) runner_leave(r);
    slot_free(s);
}

/* ---- Where a session's state lies: in the slot itself or, of a group, in those of its members ----------------------------- */

static int slot_members(const slot *s) {
    return s->parts ? s->m->member_count : 1;
}

static slot *slot_member(const slot *s, int i) {
    return s->parts ? &s->parts[i] : (slot *)(uintptr_t)s;
}

/* Members that share each layer. */
static int slot_ranks(const slot *s) {
    return slot_member(s, 0)->m->part.ranks;
}

/* Member i by its rank, and by its range among those of the same: what they have, in this order, does not depend on how many ranges there are. */
static slot *slot_by_rank(const slot *s, int i) {
    const int ranks = slot_ranks(s), ranges = slot_members(s) / ranks;
    return slot_member(s, i % ranges * ranks + i / ranges);
}

/* The last range's, which have final rows; rank 0 has the logits, too. */
static slot *slot_last(const slot *s, int rank) {
    return slot_member(s, slot_members(s) - slot_ranks(s) + rank);
}

/* Which have layer i, or, of number c.layers, the MTP layer. */
static slot *slot_of_layer(const slot *s, int i, int rank) {
    int at = slot_members(s) - slot_ranks(s);
    while (at && i < s->m->c.layers && !part_has(&slot_member(s, at)->m->part, i)) at -= slot_ranks(s);
    return slot_member(s, at + rank);
}

/* The final row of the timeline's last token, of which `accepted` rows of the last block are part. It moves to last_hidden when
   the next block begins. */
static float *slot_final_row(const slot *s, int accepted) {
    return accepted ? s->hidden + (size_t)(accepted - 1) * (size_t)model_width(s->m) : s->last_hidden;
}

/* A block has been computed, and the logits that it wanted are there. */
static void slot_computed(slot *s, const block *b) {
    s->last_row = b->T - 1;
    s->logits_here = 1;
    s->logits_in_block = b->logits && b->logits == s->block_logits;
}

/* The block's first `rows` rows are those that count. */
static void slot_keep(slot *s, int rows) {
    const size_t vocab = (size_t)s->m->c.vocab;
    if (rows - 1 != s->last_row) s->logits_here = 0;
    s->last_row = rows - 1;
    if (!s->logits_in_block) return;
    s->logits_here = 1;
    memcpy(s->logits, s->block_logits + (size_t)(rows - 1) * vocab, vocab * sizeof(float));
}

/* The executors' operations, with the runner entered. */
#define RUN(CALL)                                                                                                     \
    {                                                                                                                 \
        int code = runner_enter(s->runner, s, err);                                                                   \
        if (code) return code;                                                                                        \
        code = s->runner->backend->CALL;                                                                              \
        runner_leave(s->runner);                                                                                      \
        return code;                                                                                                  \
    }

static int slot_clear(slot *s, mote_error *err) RUN(clear(s, err))
static int slot_finish(slot *s, mote_error *err) RUN(finish(s, err))
static int slot_prepare(slot *s, mote_error *err) RUN(prepare(s, err))
static int slot_read_logits(slot *s, mote_error *err) RUN(logits(s, err))
static int slot_drafted(slot *s, int n, int32_t *ids, float *confidence, mote_error *err) RUN(drafted(s, n, ids, confidence, err))
static int slot_run_commit_state(slot *s, const block *b, mote_error *err) RUN(commit_state(s, b, err))
#undef RUN

/* s may be a member's slot of a group: that of what is copied. */
static int slot_copy(slot *s, void *to, const void *from, size_t n, mote_error *err) {
    slot *whole = s->front ? s->front : s;
    int code = runner_enter(whole->runner, whole, err);
    if (code) return code;
    code = whole->runner->backend->copy(s, to, from, n, err);
    runner_leave(whole->runner);
    return code;
}

static int slot_commit_state(slot *s, const block *b, mote_error *err) {
    int code = block_refused(s, b, 0, err);
    return code ? code : slot_run_commit_state(s, b, err);
}

/* Rows of the next block of a prompt, of which so many are left. */
static int slot_prompt_rows(const slot *s, int position, size_t count) {
    return s->runner->backend->prompt_rows(s, position, count);
}

static int slot_prompt(slot *s, const block *b, const block_watch *watch, mote_error *err) {
    int code = block_refused(s, b, 1, err);
    if (!code) code = prompt_enter(s->runner, &s->runner->prompts, s, err);
    if (code) return code;
    code = s->runner->backend->prompt(s, b, watch, err);
    if (!code) count_prompt(s->runner, b->T, s->runner->prompts.began);
    prompt_leave(s->runner, &s->runner->prompts);
    return code;
}

/* A block of a prompt where there is no prompt(). */
static int slot_forward_alone(slot *s, const block *b, mote_error *err) {
    mote_runner *r = s->runner;
    prompt_queue *turns = r->beside.rows ? &r->blocks : NULL;
    int code = block_refused(s, b, 0, err);
    if (!code) code = turns ? prompt_enter(r, turns, s, err) : runner_enter(r, s, err);
    if (code) return code;
    code = r->backend->forward(s, b, err);
    if (!code) count_prompt(r, b->T, turns ? turns->began : r->led_since);
    if (turns) prompt_leave(r, turns);
    else runner_leave(r);
    return code;
}

/* Whether the device can choose tokens by itself so. */
static int slot_can_sample(const slot *s, const mote_sampling *p) {
    const executor *on = s->runner->backend;
    return on->can_sample && on->can_sample(s, p);
}

/* Operations of which one pass can do several sessions'. */

static int slot_forward(slot *s, const block *b, mote_error *err) {
    pass_request q;
    const int alone = s->runner->backend->reads_text && !row_follows_text(b->rows);
    if (b->T > MOTE_ROWS_MAX || alone) return slot_forward_alone(s, b, err);
    request_is(&q, REQUEST_FORWARD, s, b);
    return meet_alone(&q, err);
}

/* At most *k drafts of kind DRAFT or BLOCK after the block's first token; then *k is how many were made. confidence, continue_drafting,
   user: as pass_request has them. */
static int slot_draft(slot *s, enum request_kind kind, const block *b, int *k, int32_t *drafts, float *confidence,
                      int (*continue_drafting)(void *user, int drafted, const float *confidence), void *user, mote_error *err) {
    pass_request q;
    request_is(&q, kind, s, b);
    q.drafts = *k;
    q.ids = drafts;
    q.count = k;
    q.confidence = confidence;
    q.continue_drafting = continue_drafting;
    q.user = user;
    for (int i = 0; i < *k; i++) confidence[i] = NAN;
    return meet_alone(&q, err);
}

/* Whether a STEP of this code has been computed: one that fails has, too, as the device finds while it runs that a logit is no number. Where rows of
   a table go by the token, nothing runs before that is known, and all is as it was. */
static int slot_step_began(const slot *s, int code) {
    return !code || !model_has_tables(s->m);
}

static int slot_step(slot *s, const block *b, const mote_sampling *p, int32_t *id, mote_error *err) {
    pass_request q;
    request_is_step(&q, s, b, p, id);
    return meet_alone(&q, err);
}

static int slot_cycle(slot *s, const block *b, const mote_sampling *p, int drafts, int32_t *ids, int *count, mote_error *err) {
    pass_request q;
    request_is_cycle(&q, s, b, p, drafts, ids, count);
    return meet_alone(&q, err);
}

/* s->logits has been written from outside: it is what counts. */
static void slot_set_logits(slot *s) {
    s->logits_here = s->logits_set = 1;
}

/* s->logits holds the last token's. */
static int slot_logits(slot *s, mote_error *err) {
    return s->logits_here ? MOTE_OK : slot_read_logits(s, err);
}
