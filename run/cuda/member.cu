/* run/cuda/member.cu: what a group asks of a member on a GPU besides what it asks of any runner: see executor. */

/* All members are open: makes the others' memory reachable. */
static int gpu_connect(mote_runner *r, mote_error *err) {
    gpu_queue *q = &r->gpu->q;
    gpu_check(q, cudaSetDevice(r->m->device.gpu), "choosing the GPU");
    if (q->status == cudaSuccess) gpu_check(q, cudaStreamSynchronize(r->gpu->stream), "clearing a runner");
    if (q->status == cudaSuccess) peers_connect(q, &r->gpu->peer);
    return gpu_failed(q, err);
}

static void gpu_end(mote_runner *r) {
    peers_end(&r->gpu->peer);
    hosts_end(&r->gpu->hosts);
}

enum { NCCL_PATIENCE = 30 };     /* seconds for which a host waits until all have joined */

static int gpu_nccl_fail(int result, mote_error *err) {
    return fail(err, MOTE_EDEVICE, "NCCL: %s", nccl.says(result));
}

static int gpu_invite(group_id *id, mote_error *err) {
    const int result = nccl.get_id(id);
    return result == NCCL_SUCCESS ? MOTE_OK : gpu_nccl_fail(result, err);
}

static int gpu_meet(mote_runner *r, const group_id *id, mote_error *err) {
    gpu_queue *q = &r->gpu->q;
    if (!id) {
        hosts_leave(&r->gpu->hosts);
        return MOTE_OK;
    }
    if (!r->nccl) return fail(err, MOTE_EUNSUPPORTED, "there is no NCCL here");
    gpu_check(q, cudaSetDevice(r->m->device.gpu), "choosing the GPU");
    if (q->status != cudaSuccess) return gpu_failed(q, err);
    const int result = hosts_join(&r->gpu->hosts, id);
    return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS ? MOTE_OK : gpu_nccl_fail(result, err);
}

static int gpu_met(mote_runner *r, mote_error *err) {
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = 1000000};
    const double until = seconds() + NCCL_PATIENCE;
    int result;
    while ((result = hosts_result(&r->gpu->hosts, NCCL_IN_PROGRESS)) == NCCL_IN_PROGRESS && seconds() < until) nanosleep(&pause, NULL);
    if (result == NCCL_IN_PROGRESS) return fail(err, MOTE_EDEVICE, "NCCL: not all hosts have joined within %d s", NCCL_PATIENCE);
    return result == NCCL_SUCCESS ? MOTE_OK : gpu_nccl_fail(result, err);
}

/* The pass that follows is given the tokens, and what it repeats from the log. */
static int gpu_choose(mote_runner *r, pass_request *const *of, int n, mote_error *err) {
    int one, code = MOTE_OK;
    if (n == 1) code = gpu_enter(of[0]->s, err);
    else gpu_check(&r->gpu->q, cudaSetDevice(r->m->device.gpu), "choosing the GPU");
    if (code) return code;
    if (n > 1) {
        code = gpu_choose_first(of, n, err);
        r->gpu->logits_pass++;                              /* logits of other slots may have been overwritten */
        return code;
    }
    gpu_choose_next(of[0]->s, of[0]->b, of[0]->b->replay, of[0]->sampling);
    code = gpu_failed(&r->gpu->q, err);
    if (!code) code = mailbox_wait(r, 0, of[0]->ids, &one, err);
    if (!code && *of[0]->ids < 0) of[0]->code = gpu_not_a_number(&of[0]->error);
    return code;
}

/* They are in the mailbox, unless something else has been posted since; and in the slot's step. */
static int gpu_prepared(slot *s, int n, int32_t *ids, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    const volatile gpu_mailbox *box = &g->mailbox[s->gpu->posted.z];
    if (s->gpu->posted.sequence && s->gpu->posted.sequence == g->sequence) {
        const int code = n > 1 ? mailbox_await(g, &box->drafted, err) : MOTE_OK;
        ids[0] = max_int(box->ids[(uint32_t)box->posted - 1], 0);
        for (int i = 1; i < n; i++) ids[i] = box->drafts[i - 1];
        return code;
    }
    gpu_check(&g->q, cudaSetDevice(s->m->device.gpu), "choosing the GPU");
    const step_parameters *step = g->resident == s ? g->step : s->gpu->step;
    gpu_move(&g->q, ids, step->ids, (size_t)n * sizeof *ids, "reading what comes next");
    return gpu_finish(s, err);
}

static int gpu_pass_class(const pass_request *q) {
    return gpu_passes_alone(q) ? -1 : gpu_drafts(q->s);
}
