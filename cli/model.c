// cli/model.c: from options to the library: the model they name, a session with their settings, the sampling they ask
// for; with -v, the list of kernels that a step launches. It knows nothing of what a command does with them.

// The bundled model: models/demo here, beside the program, beside the program's folder, or where make install puts it.
static int find_bundled(char *path, size_t capacity) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    snprintf(path, capacity, "models/demo");
    for (int up = 0; access(path, F_OK) && up < 2; up++) {
        while (length > 0 && program[length - 1] != '/') length--;
        if (length <= 0) break;
        snprintf(path, capacity, "%.*smodels/demo", (int)length, program);
        if (up && access(path, F_OK)) snprintf(path, capacity, "%.*sshare/mote/models/demo", (int)length, program);
        length--;
    }
    if (access(path, F_OK) == 0) return 0;
    return complain(EXIT_FAILURE, "models/demo is neither here nor beside the program; name a folder with -m DIR");
}

// The folder of the model that the options name.
static int find_model(options *o, int parts) {
    static char bundled[PATH_MAX + 16];
    if (o->synthetic) return 0;
    if (!o->model) {
        if (find_bundled(bundled, sizeof bundled)) return EXIT_FAILURE;
        o->model = bundled;
    }
    return resolve_model(&o->model, parts == MOTE_TEXT_ONLY     ? NO_WEIGHTS
                                    : parts == MOTE_DESCRIPTION ? ALL_OR_NO_WEIGHTS
                                                                : ALL_WEIGHTS);
}

// The model that the options name. With --synthetic it is made up instead.
static int open_model(options *o, int parts, mote_model **model) {
    mote_options how = {.size = sizeof how, .parts = parts, .callbacks = callbacks(), .device = o->device,
                        .draft_rows = o->draft_rows, .quantize = o->quantize};
    mote_error error = {0, ""};
    int code = find_model(o, parts);
    if (code) return code;
    if (o->synthetic) code = mote_open_synthetic(o->synthetic, &how, model, &error);
    else code = mote_open(o->model, &how, model, &error);
    if (code) code = report(&error);
    clear_progress();
    return code;
}

static int on_gpu(const mote_info *info) {
    return strncmp(info->device, "cuda", 4) == 0;
}

static int same_launch(const mote_launch *a, const mote_launch *b) {
    return !strcmp(a->stage, b->stage) && !strcmp(a->kernel, b->kernel) && !strcmp(a->format, b->format) &&
           !memcmp(a->grid, b->grid, sizeof a->grid) && a->arch == b->arch && a->block == b->block &&
           a->registers == b->registers && a->shared_bytes == b->shared_bytes && a->stack_bytes == b->stack_bytes;
}

// One line for all launches that are alike, where the first of them stands.
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

// -v: what a step launches, for each number of rows asked for.
static int log_launches(const mote_info *info, const options *o, mote_session *session) {
    mote_error error = {0, ""};
    if (!on_gpu(info)) on_log(NULL, "the model is on the CPU: a step launches no kernels");
    for (int i = 0; on_gpu(info) && (i < o->rows.count || i == 0); i++) {
        const mote_launch *launches;
        size_t count;
        int rows = o->rows.count ? o->rows.value[i] : 1;
        if (mote_launches(session, rows, &launches, &count, &error)) return report(&error);
        clear_progress();
        show_format(stderr, "a step of %d row%s on %s: %zu launches\n", rows, rows == 1 ? "" : "s", info->device,
                    count);
        print_launches(launches, count);
    }
    return 0;
}

static mote_session_options session_options(const options *o) {
    mote_session_options s = {.size = sizeof s, .context = o->context, .chunk = o->chunk, .threads = o->threads,
                              .callbacks = callbacks(), .kv = o->kv, .mtp = o->mtp, .sms = o->sms};
    return s;
}

enum { CONTEXT_MOST = 131072 };            // tokens that the program takes by itself

// Finds out what context a chat can have beside the weights, less a sixteenth for what else needs memory. To be asked before
// the weights are in memory, behind find_model. Without an answer, opening them will tell why.
static void plan_context(options *o) {
    mote_options where = {.size = sizeof where, .parts = MOTE_DESCRIPTION, .device = o->device, .draft_rows = o->draft_rows,
                          .quantize = o->quantize};
    mote_session_options how = session_options(o);
    mote_memory plan;
    if (o->context || mote_plan(o->model, &where, &how, &plan, NULL) || plan.context_fits < 1) return;
    o->fits = plan.context_fits - plan.context_fits / 16;
    if (o->fits > CONTEXT_MOST) o->fits = CONTEXT_MOST;
}

// The context of a session of this model: as asked for, or, on a GPU, as planned.
static int chosen_context(const options *o, const mote_info *info) {
    return o->context || !on_gpu(info) ? o->context : o->fits;
}

static int open_session(const mote_model *model, const options *o, mote_session **session) {
    mote_session_options how = session_options(o);
    mote_error error = {0, ""};
    how.context = chosen_context(o, mote_model_info(model));
    int code = mote_session_open(model, &how, session, &error) ? report(&error) : 0;
    if (!code && o->verbose) code = log_launches(mote_model_info(model), o, *session);
    return code;
}

// The model's own sampling, with what the user asked for instead.
static mote_sampling sampling_for(const mote_model *model, const options *o) {
    mote_sampling s;
    mote_sampling_defaults(model, &s);
    if (o->greedy) {
        uint64_t fresh = s.seed;
        memset(&s, 0, sizeof s);
        s.seed = fresh;
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
