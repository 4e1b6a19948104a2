/* session/open.c: opening sessions and runners, closing and cloning them. It stands after generate/, as it knows all that a session
   consists of: its slot, the timeline's tokens, and what decoding keeps. */

enum { CHUNK_LEAST = 512 };      /* token rows */

/* Lays out what the host alone works on; returns its floats. */
static size_t layout_session(float *base, mote_session *s) {
    layout l = layout_from(base);
    s->rows = timeline_layout_rows(&l, s);
    s->tokens = (int32_t *)(void *)layout_alloc(&l, (size_t)s->o.context);
    s->decoder = decoder_layout(&l, s->m->c.vocab, s->slot.verifies ? s->o.context : 0);
    return l.used;
}

/* Frees a session, however far it was opened. */
static void session_free(mote_session *s) {
    const mote_model *m = s->m;
    slot_close(&s->slot);
    mote_checkpoint_free(s->before_answer);
    images_forget(s);
    spans_free(&s->images);
    free(s->keys);
    free(s->memory);
    free(s);
    mote_close((mote_model *)m);
}

/* Gives a shell other options, and its runner, too, if that is its own. */
static void session_set_options(mote_session *s, const mote_session_options *o) {
    const run_options how = run_options_of(s->m, o);
    s->o = *o;
    slot_set_options(&s->slot, o->context, o->mtp != MOTE_MTP_OFF);
    if (!o->runner) runner_set_options(s->slot.runner, &how);
}

/* A session of the model with these options, without memory: only its layout can be counted. A runner of its own, without memory
   too, unless o tells one; to_share: for other sessions, too. NULL: there is no memory. */
static mote_session *session_shell(const mote_model *m, const mote_session_options *o, int to_share, mote_error *err) {
    mote_session *s = (mote_session *)calloc(1, sizeof *s);
    if (!s) {
        fail_memory(err);
        return NULL;
    }
    s->m = model_hold(m);
    s->owner = getpid();
    s->o = *o;
    const run_options how = run_options_of(m, o);
    mote_runner *r = o->runner ? runner_hold(o->runner) : runner_shell(m, &how, !to_share);
    int code = r ? slot_begin(&s->slot, r, o->context, session_has_mtp(m, o), err) : fail_memory(err);
    if (r) runner_drop(r);                                  /* the slot holds it */
    if (!code) session_set_options(s, o);
    if (!code) return s;
    session_free(s);
    return NULL;
}

/* So many members, the first ones, are on other hosts. */
static int members_elsewhere(const slot *s) {
    return slot_member(s, 0)->m->part.apart ? slot_members(s) - 1 : 0;
}

/* What a shell needs on member i of its group; alone, on its device. What the host works on counts where the device shares its memory. */
static memory_parts session_parts(mote_session *s, int i) {
    slot *at = slot_member(&s->slot, i);
    memory_parts parts = layout_slot(NULL, NULL, at);
    if (!s->o.runner) parts.scratch += layout_runner(at->runner, NULL);
    if (at->runner->backend->shares_memory && i == members_elsewhere(&s->slot)) parts.scratch += layout_session(NULL, s);
    return parts;
}

static size_t parts_bytes(const memory_parts *p) {
    return (p->kv + p->state + p->scratch) * sizeof(float);
}

/* Whether two members are on one device. */
static int members_share(const mote_model *a, const mote_model *b) {
    return a == b || (!a->part.apart && a->device.gpu == b->device.gpu);
}

/* Bytes that it needs on the device of member i, which other members may be on, too. */
static uint64_t session_bytes_beside(mote_session *s, int i) {
    uint64_t bytes = 0;
    for (int k = 0; k < slot_members(&s->slot); k++) {
        const memory_parts p = session_parts(s, k);
        if (members_share(slot_member(&s->slot, k)->m, slot_member(&s->slot, i)->m)) bytes += parts_bytes(&p);
    }
    return bytes;
}

/* The first member on whose device it does not fit; -1: none. left: [members] bytes free on the device of each. */
static int session_without_space(mote_session *s, const uint64_t *left) {
    for (int i = 0; i < slot_members(&s->slot); i++)
        if (session_bytes_beside(s, i) > left[i]) return i;
    return -1;
}

/* Makes a chunk that nobody asked for smaller until the shell fits: half as long each time, down to CHUNK_LEAST rows. left: as
   session_without_space has it. */
static void fit_chunk(mote_session *s, const mote_session_options *given, const uint64_t *left) {
    const executor *on = s->slot.runner->backend;
    mote_session_options o = s->o;
    while (on->chunk_alignment > 1 && !o.runner && !given->chunk && o.chunk > CHUNK_LEAST && session_without_space(s, left) >= 0) {
        o.chunk = whole_chunk(on, o.chunk / 2, o.context);
        session_set_options(s, &o);
    }
}

/* The longest context with which the shell fits, at most the model's or its runner's; 0: none. */
static int context_that_fits(mote_session *s, const uint64_t *left) {
    const mote_session_options before = s->o;
    mote_session_options o = before;
    int fits = 0, over = (o.runner ? o.runner->o.context : s->m->c.context_max) + 1;
    while (over - fits > 1) {
        o.context = fits + (over - fits) / 2;
        if (!o.runner) o.chunk = whole_chunk(s->slot.runner->backend, before.chunk, o.context);
        session_set_options(s, &o);
        if (session_without_space(s, left) < 0) fits = o.context;
        else over = o.context;
    }
    session_set_options(s, &before);
    return fits;
}

/* Gives the shell's own runner what is left of a GPU's memory beside it and as many sessions as shall be, for slots of experts. */
static void share_slots(mote_session *s, const uint64_t *left) {
    const uint64_t more = s->o.sessions ? s->o.sessions - 1 : 0;
    for (int i = 0; i < slot_members(&s->slot); i++) {
        slot *at = slot_member(&s->slot, i);
        const mote_model *m = at->m;
        const memory_parts slot_parts = layout_slot(NULL, NULL, at);
        const uint64_t one = model_host_bytes(m, 1), spare = left[i] / 32 + ((uint64_t)256 << 20);     /* graphs, kernels, a prompt's buffers */
        const uint64_t needs = session_bytes_beside(s, i) + more * parts_bytes(&slot_parts) + spare;
        if (!one || m->device.integrated || s->o.runner || left[i] == UINT64_MAX) continue;
        const uint64_t fit = left[i] > needs ? (left[i] - needs) / (one + 128 * (uint64_t)(m->c.layers + 1)) : 0;
        const int most = m->expert_slots_most < 0 ? m->largest.moe.experts : min_int(m->expert_slots_most, m->largest.moe.experts);
        at->runner->expert_slots = fit < (uint64_t)most ? (int)fit : most;
    }
}

/* Finds a shell a chunk with which it fits, or tells on which device it does not. */
static int session_fit(mote_session *s, const mote_session_options *given, mote_error *err) {
    const int members = slot_members(&s->slot);
    uint64_t *left = (uint64_t *)malloc((size_t)members * sizeof *left);
    if (!left) return fail_memory(err);
    for (int i = 0; i < members; i++) {
        left[i] = i < members_elsewhere(&s->slot) ? 0 : device_available(slot_member(&s->slot, i)->m);
        if (!left[i]) left[i] = UINT64_MAX;                 /* it does not say, or is on another host, which will */
    }
    fit_chunk(s, given, left);
    const int i = session_without_space(s, left);
    if (i >= 0) {
        const model_device *d = &slot_member(&s->slot, i)->m->device;
        fail(err, MOTE_ENOMEM, "a session of %d tokens needs %.2f GB, %.2f GB are free%s%s: a context of %d tokens would fit", s->o.context,
             (double)session_bytes_beside(s, i) * 1e-9, (double)left[i] * 1e-9, d->gpu < 0 ? "" : " on ", d->gpu < 0 ? "" : d->name,
             context_that_fits(s, left));
    }
    if (i < 0) share_slots(s, left);
    free(left);
    return i < 0 ? MOTE_OK : MOTE_ENOMEM;
}

/* Gets its runner memory, threads or streams. */
static int session_start_runner(mote_session *s, mote_error *err) {
    const mote_runner *r = s->slot.runner;
    const int code = runner_start(s->slot.runner, err);
    if (!code && *r->told) notice(&s->o.callbacks, "%s", r->told);
    return code;
}

/* Gets a shell its memory. */
static int session_start(mote_session *s, const mote_session_options *given, mote_error *err) {
    int code = session_fit(s, given, err);
    if (!code && !s->o.runner) code = session_start_runner(s, err);
    if (!code) code = slot_open(&s->slot, err);
    if (code) return code;
    s->memory = (float *)calloc(1, layout_session(NULL, s) * sizeof(float) + CACHE_LINE);
    if (!s->memory) return fail_memory(err);
    layout_session(layout_base(s->memory), s);
    s->only_windows = session_has_window(s, 1);
    return MOTE_OK;
}

static int session_open(const mote_model *m, const mote_session_options *given, mote_session **session, mote_error *err) {
    mote_session_options o;
    int code = session_options(m, given, &o, err);
    mote_session *s = code ? NULL : session_shell(m, &o, 0, err);
    if (!s) return code ? code : MOTE_ENOMEM;
    code = session_start(s, given, err);
    if (!code) speculation_start(s);
    if (code) session_free(s);
    else *session = s;
    return code;
}

int mote_session_open(const mote_model *model, const mote_session_options *options, mote_session **session, mote_error *error) {
    mote_session_options given;
    if (!model || !session)
        return fail(error, MOTE_EINVAL, "mote_session_open: needs a model and a place for the session");
    if (!model_has_weights(model)) return fail(error, MOTE_EUNSUPPORTED, "the model was opened without weights");
    int code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", error);
    return code ? code : session_open(model, &given, session, error);
}

/* The chunk is what fits beside one session of the longest context. */
int mote_runner_open(const mote_model *model, const mote_session_options *options, mote_runner **runner, mote_error *error) {
    mote_session_options given, o;
    if (!model || !runner) return fail(error, MOTE_EINVAL, "mote_runner_open: needs a model and a place for the runner");
    if (!model_has_weights(model)) return fail(error, MOTE_EUNSUPPORTED, "the model was opened without weights");
    int code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", error);
    if (!code && given.runner) code = fail(error, MOTE_EINVAL, "mote_runner_open: a runner for a runner");
    if (!code) code = session_options(model, &given, &o, error);
    mote_session *s = code ? NULL : session_shell(model, &o, 1, error);
    if (!s) return code ? code : MOTE_ENOMEM;
    code = session_fit(s, &given, error);
    if (!code) code = session_start_runner(s, error);
    if (!code) *runner = runner_hold(s->slot.runner);
    session_free(s);
    return code;
}

void mote_runner_close(mote_runner *runner) {
    if (runner) runner_drop(runner);
}

void mote_session_close(mote_session *session) {
    if (!session) return;
    if (session->owner == getpid() && session_runs(session, (uintptr_t)__builtin_frame_address(0))) {
        notice(&session->o.callbacks, "mote_session_close: ignored: a call on the session has not returned");
        return;
    }
    session_free(session);
}

int mote_clone(const mote_session *session, mote_session **clone, mote_error *error) {
    mote_session *s = NULL;
    int code = session_enter(session, clone != NULL, "mote_clone: needs a session and a place for the clone", error);
    if (!code) code = mote_session_open(session->m, &session->o, &s, error);
    if (!code) code = session_copy(s, (mote_session *)session, error);
    if (!code && session->before_answer) {
        s->before_answer = checkpoint_copy(s, session->before_answer, s->o.context);
        if (!s->before_answer) code = fail_memory(error);
        if (!code) code = images_keep(s, session->kept, session->kept_count, error);
    }
    if (code) mote_session_close(s);
    else *clone = s;
    return code;
}
