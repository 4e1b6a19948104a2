/* session/plan.c: the memory that a model and its sessions would take, of a checkpoint that is not loaded. */

/* A checkpoint, and a session of it without memory. */
typedef struct outline {
    mote_model *m;
    checkpoint files;
    binder b;
    mote_session *s;
    uint64_t available, left;    /* bytes on the device; of these beside the weights */
    memory_parts parts;          /* of the session and its runner */
} outline;

static void outline_close(outline *p) {
    if (p->s) session_free(p->s);
    buf_free(&p->b.items);
    checkpoint_close(&p->files);
    mote_close(p->m);
}

/* to_share: the session's runner is for others, too. To be closed in any case. */
static int outline_open(outline *p, const char *dir, const mote_options *model, const mote_session_options *options, int to_share,
                        mote_error *err) {
    mote_callbacks silent;
    mote_options how;
    mote_session_options given, o;
    mote_error failure;
    memset(&silent, 0, sizeof silent);
    memset(p, 0, sizeof *p);
    int code = take_options(&how, sizeof how, OPTIONS_0_3, model, "mote_options", err);
    if (!code) code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", err);
    if (code) return code;
    if (!err) err = &failure;
    p->m = model_new(how.device, 0, &silent, err);
    if (!p->m) return err->code;
    if (how.draft_rows > 0) p->m->draft_rows = how.draft_rows;
    p->m->quantize = how.quantize;
    code = model_bind(p->m, &p->files, &p->b, dir, 1, &silent, err);
    if (!code) code = session_options(p->m, &given, &o, err);
    if (!code && !(p->s = session_shell(p->m, &o, to_share, err))) code = err->code;
    if (code) return code;
    p->available = device_available(p->m);
    p->left = p->available > p->b.arena ? p->available - p->b.arena : 0;
    p->parts = fit_chunk(p->s, &given, p->left);
    return MOTE_OK;
}

int mote_plan(const char *dir, const mote_options *model, const mote_session_options *options, mote_memory *plan,
              mote_error *error) {
    outline p;
    if (!dir || !plan) return fail(error, MOTE_EINVAL, "mote_plan: needs a folder and a place for the plan");
    int code = outline_open(&p, dir, model, options, 0, error);
    if (!code) {
        plan->weights = p.b.arena;
        plan->kv = p.parts.kv * sizeof(float);
        plan->state = p.parts.state * sizeof(float);
        plan->scratch = p.parts.scratch * sizeof(float);
        plan->total = p.b.arena + parts_bytes(&p.parts);
        plan->available = p.available;
        plan->context = p.s->o.context;
        plan->chunk = p.s->o.chunk;
        plan->context_fits = p.available ? context_that_fits(p.s, p.left) : -1;
        plan->estimated = p.m->info.estimated;
    }
    outline_close(&p);
    return code;
}

int mote_plan_runner(const char *dir, const mote_options *model, const mote_session_options *options, mote_runner_memory *plan,
                     mote_error *error) {
    outline p;
    if (!dir || !plan) return fail(error, MOTE_EINVAL, "mote_plan_runner: needs a folder and a place for the plan");
    int code = outline_open(&p, dir, model, options, 1, error);
    if (!code) {
        const uint64_t runner = layout_runner(p.s->at.runner, NULL) * sizeof(float), session = parts_bytes(&p.parts) - runner;
        const uint64_t fit = p.left > runner ? (p.left - runner) / session : 0;
        plan->weights = p.b.arena;
        plan->runner = runner;
        plan->session = session;
        plan->available = p.available;
        plan->context = p.s->o.context;
        plan->chunk = p.s->o.chunk;
        plan->sessions = !p.available ? -1 : (int)(fit < INT32_MAX ? fit : INT32_MAX);
    }
    outline_close(&p);
    return code;
}
