/* session/plan.c: the memory that a model and a session, or several on one runner, would take, of a checkpoint that is not loaded, on each of
   its devices. Of a model on several hosts it is planned for this one, whose part is the last: others look at their own memory when they are asked. */

/* A session alone and one of several on a runner, both without memory. */
typedef struct memory_plan {
    mote_session *alone, *shared;
    int members;                 /* of their model; 1: it is not in parts */
    uint64_t *left;              /* [members] bytes on the device of each, beside all weights on it; UINT64_MAX: it does not say */
    int full;                    /* on one of them the weights leave nothing */
    int context_fits;            /* see mote_memory */
} memory_plan;

static const mote_model *plan_model(const memory_plan *p, int i) {
    return slot_member(&p->alone->slot, i)->m;
}

static int plan_on_one_device(const memory_plan *p, int i, int k) {
    return members_share(plan_model(p, i), plan_model(p, k));
}

/* Bytes; 0: unknown. */
static uint64_t plan_available(const memory_plan *p, int i) {
    return i < members_elsewhere(&p->alone->slot) ? 0 : device_available(plan_model(p, i));
}

/* Of what is left of a GPU's memory, where experts are in the host's, half is for slots of them, as far as these are worth it. */
static uint64_t plan_for_slots(const mote_model *m, uint64_t left) {
    const uint64_t experts = m->device.integrated ? 0 : model_host_bytes(m, 0);
    return experts < left / 2 ? experts : left / 2;
}

static void plan_left(memory_plan *p) {
    for (int i = 0; i < p->members; i++) {
        const uint64_t available = plan_available(p, i);
        uint64_t weights = 0;
        for (int k = 0; k < p->members; k++) weights += plan_on_one_device(p, i, k) ? model_device_bytes(plan_model(p, k)) : 0;
        p->left[i] = !available ? UINT64_MAX : available > weights ? available - weights : 0;
        if (available) p->left[i] -= plan_for_slots(plan_model(p, i), p->left[i]);
        p->full |= !p->left[i];
    }
}

static void memory_plan_close(memory_plan *p) {
    if (p->alone) session_free(p->alone);
    if (p->shared) session_free(p->shared);
    free(p->left);
}

/* Of a model that is described. */
static int memory_plan_open(memory_plan *p, const mote_model *m, const mote_session_options *options, mote_error *err) {
    mote_session_options given, o;
    memset(p, 0, sizeof *p);
    int code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", err);
    if (!code) code = session_options(m, &given, &o, err);
    if (code) return code;
    p->alone = session_shell(m, &o, 0, err);
    p->shared = p->alone ? session_shell(m, &o, 1, err) : NULL;
    p->members = p->shared ? slot_members(&p->alone->slot) : 0;
    p->left = p->shared ? (uint64_t *)calloc((size_t)p->members, sizeof *p->left) : NULL;
    if (!p->left) return fail_memory(err);
    plan_left(p);
    if (!p->full) fit_chunk(p->alone, &given, p->left);
    if (!p->full) fit_chunk(p->shared, &given, p->left);
    p->context_fits = p->left[p->members - 1] == UINT64_MAX ? -1 : context_that_fits(p->alone, p->left);
    return MOTE_OK;
}

/* Of sessions that share a runner so many fit beside the weights on the device of member i. */
static int plan_sessions_on(const memory_plan *p, int i) {
    uint64_t runners = 0, slots = 0;
    if (p->left[i] == UINT64_MAX) return -1;
    for (int k = 0; k < p->members; k++) {
        const memory_parts parts = session_parts(p->shared, k);
        const uint64_t runner = layout_runner(slot_member(&p->shared->slot, k)->runner, NULL) * sizeof(float);
        if (!plan_on_one_device(p, i, k)) continue;
        runners += runner;
        slots += parts_bytes(&parts) - runner;
    }
    const uint64_t fit = p->left[i] > runners ? (p->left[i] - runners) / slots : 0;
    return fit < INT32_MAX ? (int)fit : INT32_MAX;
}

/* On the device of member i. */
static mote_memory plan_of(const memory_plan *p, int i) {
    const memory_parts parts = session_parts(p->alone, i);
    const mote_model *m = plan_model(p, i);
    const mote_memory plan = {.weights = model_device_bytes(m),
                              .kv = parts.kv * sizeof(float),
                              .state = parts.state * sizeof(float),
                              .scratch = parts.scratch * sizeof(float),
                              .total = model_device_bytes(m) + parts_bytes(&parts),
                              .available = plan_available(p, i),
                              .runner = layout_runner(slot_member(&p->shared->slot, i)->runner, NULL) * sizeof(float),
                              .sessions = plan_sessions_on(p, i),
                              .context = p->alone->o.context,
                              .chunk = p->alone->o.chunk,
                              .context_fits = p->context_fits,
                              .estimated = m->report.info.estimated};
    return plan;
}

/* On all of this host: sums, and as many sessions as fit everywhere. */
static mote_memory plan_of_all(const memory_plan *p) {
    const int first = members_elsewhere(&p->alone->slot);
    mote_memory all = plan_of(p, first);
    for (int i = first + 1; i < p->members; i++) {
        const mote_memory one = plan_of(p, i);
        int counted = 0;
        for (int k = first; k < i; k++) counted |= plan_on_one_device(p, i, k);
        all.weights += one.weights;
        all.kv += one.kv;
        all.state += one.state;
        all.scratch += one.scratch;
        all.total += one.total;
        all.runner += one.runner;
        all.available += counted ? 0 : one.available;
        all.sessions = min_int(all.sessions, one.sessions);
        all.estimated |= one.estimated;
    }
    return all;
}

/* Plans for one of a model's devices; device < 0: for all of them. */
static int plan_memory_of(const mote_model *m, int device, const mote_session_options *options, mote_memory *plan, mote_error *err) {
    memory_plan p;
    const int code = memory_plan_open(&p, m, options, err);
    if (!code) *plan = device < 0 ? plan_of_all(&p) : plan_of(&p, device);
    memory_plan_close(&p);
    return code;
}

/* A part of a folder's model for the plan alone, a part_opener: without all that is beside the weights, and silent. */
static int plan_open_model(const char *dir, const mote_options *o, const model_part *part, int load, mote_model **model, mote_error *err) {
    mote_callbacks silent;
    checkpoint files;
    binder b;
    (void)load;
    memset(&silent, 0, sizeof silent);
    mote_model *m = model_new(o->device, 0, &silent, err);
    if (!m) return err->code;
    model_take(m, o);
    m->part = *part;
    const int code = model_bind(m, &files, &b, dir, 1, &silent, err);
    buf_free(&b.items);
    checkpoint_close(&files);
    if (code) mote_close(m);
    else *model = m;
    return code;
}

/* The drafter that the model would have, opened as silently. */
static int plan_drafter(mote_model *m, const mote_options *o, mote_error *err) {
    mote_options silent = *o;
    memset(&silent.callbacks, 0, sizeof silent.callbacks);
    return drafter_attach(m, &silent, err);
}

int mote_plan(const char *dir, const mote_options *model, const mote_session_options *options, mote_memory *plan,
              mote_error *error) {
    mote_options how;
    mote_session_options given;
    mote_error failure;
    device_list devices;
    mote_model *m = NULL;
    if (!error) error = &failure;
    if (!dir || !plan) return fail(error, MOTE_EINVAL, "mote_plan: needs a folder and a place for the plan");
    int code = take_options(&how, sizeof how, OPTIONS_0_3, model, "mote_options", error);
    how.parts = MOTE_DESCRIPTION;
    if (!code) code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", error);
    if (!code) code = model_devices(&devices, &how, error);
    if (!code && how.drafter) code = drafter_check_devices(&how, &devices, error);
    if (!code) code = parts_open(plan_open_model, dir, &how, &devices, 0, &m, error);
    if (!code && how.drafter) code = plan_drafter(m, &how, error);
    if (!code) code = plan_memory_of(m, -1, options, plan, error);
    mote_close(m);
    return code;
}

int mote_plan_device(const mote_model *model, int device, const mote_session_options *options, mote_memory *plan, mote_error *error) {
    mote_error failure;
    if (!error) error = &failure;
    if (!model || !plan) return fail(error, MOTE_EINVAL, "mote_plan_device: needs a model and a place for the plan");
    if (!model->c.layers || model_has_weights(model))
        return fail(error, MOTE_EINVAL, "mote_plan_device: needs a model that was opened with MOTE_DESCRIPTION");
    if (device < 0 || device >= model->report.info.device_count)
        return fail(error, MOTE_EINVAL, "mote_plan_device: device %d, expected 0 to %d", device, model->report.info.device_count - 1);
    return plan_memory_of(model, device, options, plan, error);
}
