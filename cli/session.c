/* cli/session.c: a session with the options' settings, and the sampling and thinking they ask for; with -v, the list of kernels that a step,
   and bench's blocks and prompts, launch. It knows nothing of what a command does with them. */

enum { PROMPT_CHUNK = 8192 };              /* rows of a prompt that are measured or listed at once */

static int same_launch(const mote_launch *a, const mote_launch *b) {
    return !strcmp(a->stage, b->stage) && !strcmp(a->kernel, b->kernel) && !strcmp(a->format, b->format) &&
           !memcmp(a->grid, b->grid, sizeof a->grid) && a->arch == b->arch && a->block == b->block &&
           a->registers == b->registers && a->shared_bytes == b->shared_bytes && a->stack_bytes == b->stack_bytes;
}

/* One line for all launches that are alike, where the first of them stands. */
static void print_launches(const mote_launch *launches, size_t count) {
    fprintf(stderr, "  %-16s%6s%7s%14s%7s%6s%8s%7s  %-14s%s\n", "stage", "times", "code", "grid", "block", "regs",
            "shared", "stack", "weights", "kernel");
    for (size_t i = 0; i < count; i++) {
        const mote_launch *l = &launches[i];
        char grid[40], code[16];
        size_t times = 0, first = 0;
        while (!same_launch(l, &launches[first])) first++;
        if (first < i) continue;
        for (size_t k = i; k < count; k++) times += (size_t)same_launch(l, &launches[k]);
        snprintf(grid, sizeof grid, l->grid[2] > 1 ? "%d x %d x %d" : l->grid[1] > 1 ? "%d x %d" : "%d", l->grid[0],
                 l->grid[1], l->grid[2]);
        snprintf(code, sizeof code, "sm_%d", l->arch);
        fprintf(stderr, "  %-16s%6zu%7s%14s%7d%6d%8d%7d  %-14s%s\n", l->stage, times, code, grid, l->block,
                l->registers, l->shared_bytes, l->stack_bytes, *l->format ? l->format : "-", l->kernel);
    }
}

static int log_launches_of(const mote_info *info, mote_session *session, const char *what, int rows) {
    mote_error error = {0, ""};
    const mote_launch *launches;
    size_t count;
    if (mote_launches(session, rows, &launches, &count, &error)) return report(&error);
    clear_progress();
    show_format(stderr, "%s of %d row%s on %s: %zu launches\n", what, rows, rows == 1 ? "" : "s", info->device, count);
    print_launches(launches, count);
    return 0;
}

/* -v: what a step launches, for each number of rows asked for; where bench asks, a block of more rows and a prompt, too. */
static int log_launches(const mote_info *info, const options *o, mote_session *session) {
    static const int blocks[] = {16, 32, 64};
    int code = 0;
    if (!on_one_gpu(info)) {
        on_log(NULL, on_gpu(info) ? "the model is on several GPUs: their launches are not listed" : "the model is on the CPU: a step launches no kernels");
        return 0;
    }
    if (!o->rows.count) return log_launches_of(info, session, "a step", 1);
    for (int i = 0; i < o->rows.count && !code; i++) code = log_launches_of(info, session, "a step", o->rows.value[i]);
    for (int i = 0; i < 3 && !code; i++) code = log_launches_of(info, session, "a block", blocks[i]);
    for (int i = 0; i < o->prompts.count && !code && info->prefill_from; i++) {
        const int rows = o->prompts.value[i] < PROMPT_CHUNK ? o->prompts.value[i] : PROMPT_CHUNK;
        if (rows >= info->prefill_from) code = log_launches_of(info, session, "a prompt", rows);
    }
    return code;
}

static int open_session(const mote_model *model, const options *o, mote_session **session) {
    mote_session_options how = session_options(o);
    mote_error error = {0, ""};
    how.context = chosen_context(o, mote_model_info(model));
    int code = mote_session_open(model, &how, session, &error) ? report(&error) : 0;
    if (!code && o->verbose) code = log_launches(mote_model_info(model), o, *session);
    return code;
}

/* -v: what the session's steps have found in slots, where experts are in host memory. */
static void log_experts(const mote_info *info, const options *o, const mote_session *session) {
    mote_experts_seen seen;
    if (!o->verbose || !info->expert_layers || mote_session_experts(session, &seen, NULL)) return;
    const double reads = (double)(seen.hits + seen.misses);
    clear_progress();
    fprintf(stderr, "mote: experts: %d slots a layer; of %.0f reads %.1f %% were of slots; %.3g GB over the link\n", seen.slots, reads,
            reads > 0 ? 100 * (double)seen.hits / reads : 0, (double)seen.bytes * 1e-9);
}

/* 1: a level of effort asks for thinking and --think for none, or the reverse. */
static int effort_contradicts(const char *effort, int think) {
    return effort && think && (strcmp(effort, "none") == 0) != (think == MOTE_THINK_OFF);
}

static int check_effort(const char *command, const options *o) {
    if (!effort_contradicts(o->effort, o->think)) return 0;
    return complain(EXIT_USAGE, "%s: --effort %s and --think %s exclude each other", command, o->effort,
                    o->think == MOTE_THINK_ON ? "on" : "off");
}

/* The model's own sampling, with what the user asked for instead. */
static mote_sampling sampling_for(const mote_model *model, const options *o) {
    mote_sampling s;
    mote_sampling_defaults(model, &s);
    if (o->greedy) {
        uint64_t seed = s.seed;
        memset(&s, 0, sizeof s);
        s.seed = seed;
    }
    if (o->temperature >= 0) s.temperature = (float)o->temperature;
    if (o->top_k >= 0) s.top_k = o->top_k;
    if (o->top_p >= 0) s.top_p = (float)o->top_p;
    if (o->min_p >= 0) s.min_p = (float)o->min_p;
    if (!isnan(o->repetition)) s.repetition_penalty = (float)o->repetition;
    if (!isnan(o->presence)) s.presence_penalty = (float)o->presence;
    if (!isnan(o->frequency)) s.frequency_penalty = (float)o->frequency;
    if (o->seed.given) s.seed = o->seed.value;
    return s;
}
