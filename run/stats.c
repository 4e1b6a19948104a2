/* run/stats.c: what a runner has computed and how long ago, for who watches it: mote_runner_seen; and what its
   steps have found in slots of experts. run/meeting.c and run/slot.c count. */

/* With r->lock held: a pass of n requests is over. Passes of drafts count with those that verify them. */
static void count_pass(mote_runner *r, pass_request *const *of, int n, double spent) {
    mote_seen *stats = &r->stats.of;
    if (request_drafts(of[0])) return;
    stats->passes++;
    stats->sessions += (uint64_t)n;
    stats->pass_seconds += spent;
    for (int i = 0; i < n; i++) stats->rows += (uint64_t)(of[i]->kind == REQUEST_STEP ? 1 : of[i]->b->T);
}

/* With the lead: a block of a prompt has been computed, without what came between since it began (prompt_queue.began). */
static void count_prompt(mote_runner *r, int T, double began) {
    pthread_mutex_lock(&r->lock);
    r->stats.of.prompt_tokens += (uint64_t)T;
    r->stats.of.prompt_seconds += seconds() - began;
    pthread_mutex_unlock(&r->lock);
}

int mote_runner_seen(mote_runner *runner, mote_seen *seen, mote_error *error) {
    mote_runner *r = runner;
    if (!r || !seen) return fail(error, MOTE_EINVAL, "mote_runner_seen: needs a runner and a place for what it has done");
    if (r->owner != getpid()) return fail(error, MOTE_EINVAL, "mote_runner_seen: the runner is of the process that opened it");
    pthread_mutex_lock(&r->lock);
    *seen = r->stats.of;
    seen->busy = r->led || r->first != NULL;
    seen->since = seconds() - r->stats.last;
    pthread_mutex_unlock(&r->lock);
    return MOTE_OK;
}

/* From any thread. */
static int count_experts(const mote_runner *r, mote_experts_seen *seen, mote_error *err) {
    int code = MOTE_OK;
    memset(seen, 0, sizeof *seen);
    seen->slots = r->expert_slots;
    if (r->backend->count_experts) code = r->backend->count_experts(r, seen, err);
    for (int i = 0; i < r->m->member_count && r->members && !code; i++) {
        const mote_runner *of = r->members[i];
        seen->slots = max_int(seen->slots, of->expert_slots);
        if (of->backend->count_experts) code = of->backend->count_experts(of, seen, err);
    }
    return code;
}

int mote_runner_experts(mote_runner *runner, mote_experts_seen *seen, mote_error *error) {
    if (!runner || !seen) return fail(error, MOTE_EINVAL, "mote_runner_experts: needs a runner and a place for what it has read");
    if (runner->owner != getpid()) return fail(error, MOTE_EINVAL, "mote_runner_experts: the runner is of the process that opened it");
    return count_experts(runner, seen, error);
}
