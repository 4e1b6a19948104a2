/* diagnose/diagnose.c: the API's calls that measure and test; without a GPU they say so. */

/* The stages of a measurement, as a bit set; 0 and an error: one is not known. */
static unsigned measured_stages(const mote_session *s, const mote_measurement *m, mote_error *err) {
    const mote_info *info = &s->m->report.info;
    unsigned stages = m->stage_count ? 0 : ALL_STAGES;
    for (int i = 0; i < m->stage_count; i++) {
        int stage = 0, there = 0;
        while (stage < STAGE_COUNT && strcmp(stage_names[stage], m->stages[i])) stage++;
        for (int k = 0; k < info->stage_count; k++) there |= stage < STAGE_COUNT && info->stages[k] == stage_names[stage];
        if (!there) {
            fail(err, MOTE_EINVAL, "mote_measure: the model has no stage \"%.40s\"", m->stages[i]);
            return 0;
        }
        stages |= 1u << stage;
    }
    return stages;
}

/* Refuses a measurement that makes no sense. */
static int check_measurement(const mote_session *s, const mote_measurement *m, mote_error *err) {
    if (m->rows > MOTE_ROWS_MAX && m->rows > gpu_measured_rows(s))
        return fail(err, MOTE_EINVAL, "mote_measure: %d rows, and there is room for a prompt of %d", m->rows, gpu_measured_rows(s));
    if (m->rows < 1 || m->steps < 1 || m->steps > 1000 || m->depth < 0 ||
        m->depth > s->o.context - m->rows)
        return fail(err, MOTE_EINVAL, "mote_measure: needs rows, 1 to 1000 steps, and a depth in the context");
    if (m->stage_count < 0 || (m->stage_count && !m->stages))
        return fail(err, MOTE_EINVAL, "mote_measure: needs stage_count names of stages");
    if (!m->drafts) return MOTE_OK;
    if (m->drafts < 0 || m->rows != m->drafts + 1 || m->stage_count)
        return fail(err, MOTE_EINVAL, "mote_measure: 1 to %d drafts need one row more, and all stages", MOTE_ROWS_MAX - 1);
    if (!speculates(s)) return fail(err, MOTE_EUNSUPPORTED, "mote_measure: there is no MTP layer to draft");
    for (int i = 0; i < m->drafts; i++)
        if (!(m->accept[i] >= 0 && m->accept[i] <= 1)) return fail(err, MOTE_EINVAL, "mote_measure: a rate is not in 0..1");
    if (!(m->overlap >= 0 && m->overlap <= 1)) return fail(err, MOTE_EINVAL, "mote_measure: the overlap is not in 0..1");
    return MOTE_OK;
}

/* Refuses what measures kernels of a single GPU. what: the function. */
static int check_one_gpu(const char *what, const mote_model *m, mote_error *err) {
    if (m->members) return fail(err, MOTE_EUNSUPPORTED, "%s: the model is in parts, expected one on a single GPU", what);
    return m->device.gpu >= 0 ? MOTE_OK : fail(err, MOTE_EUNSUPPORTED, "%s: the model is not on a GPU", what);
}

int mote_measure(mote_session *session, mote_measurement *measurement, mote_error *error) {
    mote_measurement *m = measurement;
    unsigned stages = 0;
    int invalid = session_enter(session, m != NULL, "mote_measure: needs a session and a measurement", error);
    if (!invalid) invalid = check_one_gpu("mote_measure", session->m, error);
    if (!invalid) invalid = check_measurement(session, m, error);
    if (!invalid && !(stages = measured_stages(session, m, error))) invalid = MOTE_EINVAL;
    return invalid ? invalid : gpu_measure(session, m, stages, error);
}

/* Of a model that has its weights itself. */
static int read_speed_of(const mote_model *m, int threads, double *bytes_per_second, mote_error *err) {
    return m->device.gpu >= 0 ? gpu_measure_read(m, bytes_per_second, err) : measure_cpu_read(m, threads, bytes_per_second, err);
}

/* Of a model in parts: ranges read one after the other, the ranks of one at the same time. Of several hosts it is this one's. */
static int read_speed_of_parts(const mote_model *m, int threads, double *bytes_per_second, mote_error *err) {
    double bytes = 0, seconds = 0, longest = 0;
    for (int i = 0; i < m->member_count; i++) {
        const mote_model *part = m->members[i];
        double speed;
        if (part->remote) continue;
        const int code = read_speed_of(part, threads, &speed, err);
        if (code) return code;
        bytes += (double)part->arena_size;
        longest = fmax(part->part.rank ? longest : 0, (double)part->arena_size / speed);
        if (part->part.rank + 1 == part->part.ranks) seconds += longest;
    }
    *bytes_per_second = bytes / seconds;
    return MOTE_OK;
}

int mote_read_speed(const mote_model *model, int threads, double *bytes_per_second, mote_error *error) {
    if (!model || !bytes_per_second || threads < 0 || threads > MAX_THREADS)
        return fail(error, MOTE_EINVAL, "mote_read_speed: needs a model, 0 to %d threads and a place for the speed",
                    MAX_THREADS);
    if (!model_has_weights(model)) return fail(error, MOTE_EUNSUPPORTED, "mote_read_speed: the model was opened without weights");
    return model->members ? read_speed_of_parts(model, threads, bytes_per_second, error) : read_speed_of(model, threads, bytes_per_second, error);
}

int mote_worker_synthetic(const char *name, const mote_worker_options *options, mote_error *error) {
    mote_error failure;
    return worker_run(&synthetic_source, name, options, "mote_worker_synthetic", error ? error : &failure);
}

int mote_link_speed(const mote_model *model, double *link, double *memory, mote_error *error) {
    mote_error failure;
    if (!error) error = &failure;
    if (!model || !link || !memory) return fail(error, MOTE_EINVAL, "mote_link_speed: needs a model and places for the speeds");
    const int invalid = check_one_gpu("mote_link_speed", model, error);
    return invalid ? invalid : gpu_measure_link(model, link, memory, error);
}

int mote_launches(mote_session *session, int rows, const mote_launch **launches, size_t *count, mote_error *error) {
    int invalid = session_enter(session, launches && count, "mote_launches: needs a session and places for the results", error);
    if (!invalid) invalid = check_one_gpu("mote_launches", session->m, error);
    if (invalid) return invalid;
    const int most = max_int(gpu_measured_rows(session), PASS_ROWS_MAX);
    if (rows < 1 || rows > most) return fail(error, MOTE_EINVAL, "mote_launches: 1 to %d rows", most);
    return gpu_launches(session, rows, launches, count, error);
}

static int computes_on_gpus(const mote_runner *r) {
    return (r->members ? r->members[0] : r)->m->device.gpu >= 0;
}

/* The experts that layers have counted, to chosen[layers]; 0 where a layer has none, or is another member's. */
static int count_chosen(const mote_runner *r, int32_t *chosen, mote_error *err) {
    if (r->remote) return fail(err, MOTE_EUNSUPPORTED, "mote_distinct_experts: layers are on another host");
    if (r->m->device.gpu >= 0) return gpu_chosen(r, chosen, err);
    memcpy(chosen, r->s.chosen, (size_t)r->m->c.layers * sizeof *chosen);
    return MOTE_OK;
}

int mote_distinct_experts(mote_runner *runner, double *experts, mote_error *error) {
    if (!runner || !experts) return fail(error, MOTE_EINVAL, "mote_distinct_experts: needs a runner and a place for the number");
    const int layers = runner->m->c.layers;
    int32_t *chosen = (int32_t *)malloc((size_t)layers * sizeof *chosen);
    int code = chosen ? runner_enter(runner, NULL, error) : fail_memory(error), counted = 0;
    const int entered = !code;
    *experts = 0;
    for (int k = 0; k < runners_of(runner) && !code; k++) {
        const mote_runner *of = runner_number(runner, k);
        code = count_chosen(of, chosen, error);
        for (int i = 0; i < layers && !code && !of->m->part.rank; i++) counted += chosen[i] > 0, *experts += chosen[i];
    }
    if (entered) runner_leave(runner);
    if (counted) *experts /= counted;
    free(chosen);
    return code;
}

int mote_simulate(mote_runner *runner, const double *accept, mote_error *error) {
    if (!runner) return fail(error, MOTE_EINVAL, "mote_simulate: needs a runner");
    return computes_on_gpus(runner) ? gpu_simulate(runner, accept, error)
                               : fail(error, MOTE_EUNSUPPORTED, "mote_simulate: the model is not on a GPU");
}

int mote_limit_expert_slots(mote_model *model, int slots, mote_error *error) {
    if (!model || slots < -1) return fail(error, MOTE_EINVAL, "mote_limit_expert_slots: needs a model and a number of slots, or -1");
    model->expert_slots_most = slots;
    for (int i = 0; i < model->member_count && model->members; i++) model->members[i]->expert_slots_most = slots;
    return MOTE_OK;
}

int mote_simulate_experts(mote_session *session, double locality, mote_error *error) {
    const int valid = (locality >= 0 && locality <= 1) || locality == -1;
    int code = session_enter(session, valid, "mote_simulate_experts: needs a session and a share from 0 to 1, or -1", error);
    if (!code) code = check_one_gpu("mote_simulate_experts", session->m, error);
    if (!code && session->m->largest.moe.groups) code = fail(error, MOTE_EUNSUPPORTED, "mote_simulate_experts: experts are chosen by groups");
    if (!code && !session->slot.runner->expert_slots)
        code = fail(error, MOTE_EUNSUPPORTED, "mote_simulate_experts: there are no slots of experts in host memory");
    return code ? code : gpu_simulate_experts(session, locality, error);
}

int mote_selftest(const char *device, int sms,
                  void (*row)(void *user, const char *what, double difference, double allowed, int ok), void *user,
                  int *failed, mote_error *error) {
    mote_error failure;
    mote_callbacks silent;
    memset(&silent, 0, sizeof silent);
    if (!row || !failed || sms < 0)
        return fail(error, MOTE_EINVAL, "mote_selftest: needs a row function, a place for the result, and sms >= 0");
    if (!error) error = &failure;
    mote_model *m = model_new(device ? device : "cuda", 0, &silent, error);
    if (!m) return error->code;
    int code = m->device.gpu < 0 ? fail(error, MOTE_EDEVICE, "the selftest needs a GPU to compare with the CPU") : MOTE_OK;
    mote_close(m);
    return code ? code : gpu_selftest(device ? device : "cuda", sms, row, user, failed, error);
}

int mote_plan_synthetic(const char *name, const mote_options *options, const mote_session_options *session, mote_memory *plan,
                        mote_error *error) {
    mote_options how;
    mote_model *m = NULL;
    mote_error failure;
    if (!plan) return fail(error, MOTE_EINVAL, "mote_plan_synthetic: needs a place for the plan");
    if (!error) error = &failure;
    int code = take_options(&how, sizeof how, OPTIONS_0_3, options, "mote_options", error);
    how.parts = MOTE_DESCRIPTION;
    if (!code) code = mote_open_synthetic(name, &how, &m, error);
    if (!code) code = plan_memory_of(m, -1, session, plan, error);
    mote_close(m);
    return code;
}
