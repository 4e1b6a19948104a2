/* session/plan.c: the memory that a model and a session, or several on one runner, would take, of a checkpoint that is not loaded. */

/* Sessions of one runner, beside weights of so many bytes. */
static int plan_shared(const mote_model *m, const mote_session_options *given, const mote_session_options *o, uint64_t available,
                       uint64_t weights, mote_memory *plan, mote_error *err) {
    const uint64_t left = available > weights ? available - weights : 0;
    mote_session *s = session_shell(m, o, 1, err);
    if (!s) return MOTE_ENOMEM;
    if (left) fit_chunk(s, given, &left);
    const memory_parts parts = session_parts(s, 0);
    const uint64_t runner = layout_runner(s->slot.runner, NULL) * sizeof(float);
    const uint64_t fit = left > runner ? (left - runner) / (parts_bytes(&parts) - runner) : 0;
    plan->runner = runner;
    plan->sessions = !available ? -1 : fit < INT32_MAX ? (int)fit : INT32_MAX;
    session_free(s);
    return MOTE_OK;
}

/* Of a model that is described, with weights of so many bytes. */
static int plan_model(const mote_model *m, uint64_t weights, const mote_session_options *options, mote_memory *plan, mote_error *err) {
    mote_session_options given, o;
    int code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", err);
    if (!code) code = session_options(m, &given, &o, err);
    mote_session *s = code ? NULL : session_shell(m, &o, 0, err);
    if (!s) return code ? code : err->code;
    const uint64_t available = device_available(m), left = available > weights ? available - weights : 0;
    code = plan_shared(m, &given, &o, available, weights, plan, err);
    if (!code) {
        if (left) fit_chunk(s, &given, &left);
        const memory_parts parts = session_parts(s, 0);
        plan->weights = weights;
        plan->kv = parts.kv * sizeof(float);
        plan->state = parts.state * sizeof(float);
        plan->scratch = parts.scratch * sizeof(float);
        plan->total = weights + parts_bytes(&parts);
        plan->available = available;
        plan->context = s->o.context;
        plan->chunk = s->o.chunk;
        plan->context_fits = available ? context_that_fits(s, &left) : -1;
        plan->estimated = m->report.info.estimated;
    }
    session_free(s);
    return code;
}

int mote_plan(const char *dir, const mote_options *model, const mote_session_options *options, mote_memory *plan,
              mote_error *error) {
    mote_callbacks silent;
    mote_options how;
    mote_session_options given;
    mote_error failure;
    device_list devices;
    checkpoint files;
    binder b;
    memset(&silent, 0, sizeof silent);
    if (!dir || !plan) return fail(error, MOTE_EINVAL, "mote_plan: needs a folder and a place for the plan");
    int code = take_options(&how, sizeof how, OPTIONS_0_3, model, "mote_options", error);
    if (!code) code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", error);
    if (!code) code = device_list_of(&devices, &how, error);
    if (!code && devices.count) how.device = devices.name[0];
    if (code) return code;
    if (!error) error = &failure;
    mote_model *m = model_new(how.device, 0, &silent, error);
    if (!m) return error->code;
    if (how.draft_rows > 0) m->draft_rows = how.draft_rows;
    m->quantize = how.quantize;
    code = model_bind(m, &files, &b, dir, 1, &silent, error);
    if (!code) code = plan_model(m, b.arena, options, plan, error);
    buf_free(&b.items);
    checkpoint_close(&files);
    mote_close(m);
    return code;
}
