/* program/model.c: from options to the library: the model they name, and how its sessions are to be opened. It knows nothing of
   what a command does with them. */

/* The bundled model: models/demo here, beside the program, beside the program's folder, or where make install puts it. */
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

/* The folder of the model that the options name. */
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

/* How a model is to be opened, or planned, for the options. */
static mote_options model_options(const options *o, int parts) {
    mote_options how = {.size = sizeof how, .parts = parts, .device = o->device, .draft_rows = o->draft_rows, .quantize = o->quantize,
                        .devices = o->devices, .split = o->workers ? MOTE_SPLIT_AUTO : o->split, .layers = o->split_layers, .workers = o->workers, .secret = o->workers ? o->secret : NULL,
                        .gpu_memory = (uint64_t)o->gpu_memory, .experts = o->experts, .images = o->synthetic && o->image_sides.count,
                        .drafter = o->drafter};
    return how;
}

/* The first line of the file that workers and their leader share, to o->secret. A FIFO or a device would be waited for: it is refused. */
static int read_secret(options *o) {
    const char *name = o->secret_file;
    struct stat status;
    if (stat(name, &status)) return file_failure(name);
    if (S_ISDIR(status.st_mode)) return complain(EXIT_FAILURE, "%s: it is a folder, not a file with a secret", name);
    if (!S_ISREG(status.st_mode)) return complain(EXIT_FAILURE, "%s: it is no regular file", name);
    FILE *in = fopen(name, "rb");
    if (!in) return file_failure(name);
    const size_t got = fread(o->secret, 1, sizeof o->secret - 1, in);
    size_t n = 0;
    fclose(in);
    while (n < got && o->secret[n] != '\r' && o->secret[n] != '\n') n++;
    o->secret[n] = 0;
    if (strlen(o->secret) < n) return complain(EXIT_FAILURE, "%s: its first line holds a zero byte: it must be text", name);
    if (n < 16 || n > 256) return complain(EXIT_FAILURE, "%s: its first line is the secret, of 16 to 256 bytes", name);
    if (status.st_mode & 077) show_format(stderr, "mote: note: %s holds a secret, and others may read it: chmod 600\n", name);
    return 0;
}

static int check_devices(options *o) {
    if (o->device && o->devices) return complain(EXIT_USAGE, "--device and --devices exclude each other");
    if (o->workers && o->devices) return complain(EXIT_USAGE, "--workers and --devices exclude each other");
    if (o->workers && o->split > MOTE_SPLIT_PIPELINE) return complain(EXIT_USAGE, "with --workers layers are divided as a pipeline: --split pipeline:N,N...");
    if (o->split && !o->devices && !o->workers) return complain(EXIT_USAGE, "--split needs --devices");
    if (o->workers && !o->secret_file) return complain(EXIT_USAGE, "--workers needs --secret-file");
    if (o->secret_file && !o->workers) return complain(EXIT_USAGE, "--secret-file needs --workers");
    return o->secret_file && !*o->secret ? read_secret(o) : 0;
}

/* Opens it, after find_model. With --synthetic it is a synthetic one. Returns the library's code. */
static int open_found(const options *o, int parts, const mote_callbacks *calls, mote_model **model, mote_error *error) {
    mote_options how = model_options(o, parts);
    how.callbacks = *calls;
    return o->synthetic ? mote_open_synthetic(o->synthetic, &how, model, error) : mote_open(o->model, &how, model, error);
}

/* Of several hosts the last one is this one. */
static int on_gpu(const mote_info *info) {
    const char *device = info->device_count ? info->devices[info->device_count - 1].name : info->device;
    return strncmp(device, "cuda", 4) == 0;
}

/* Says which options do nothing, as what computes is the CPU. */
static void note_gpu_options(const options *o, const mote_model *model) {
    const char *const names[] = {o->gpu_memory > 0 && o->link.link == 0 ? "--gpu-memory" : NULL, o->experts ? "--experts" : NULL,
                                 o->expert_slots >= 0 ? "--expert-slots" : NULL};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i] && !on_gpu(mote_model_info(model))) complain(0, "note: %s is of GPUs, and does nothing on the CPU", names[i]);
}

/* The model that the options name. */
static int open_model(options *o, int parts, mote_model **model) {
    const mote_callbacks calls = callbacks();
    mote_error error = {0, ""};
    int code = check_devices(o);
    if (!code) code = find_model(o, parts);
    if (!code && open_found(o, parts, &calls, model, &error)) code = report(&error);
    clear_progress();
    if (!code && parts != MOTE_TEXT_ONLY) note_gpu_options(o, *model);
    return code;
}

/* One that measures its own steps, and says what it launches; several together are timed from outside. */
static int on_one_gpu(const mote_info *info) {
    return on_gpu(info) && info->device_count == 1;
}

/* The marks of the model's chats; without a known template those that its vocabulary may have all the same. */
static const chat_marks *marks_of(const mote_model *model) {
    const char *name = mote_model_info(model)->chat_template;
    for (int i = 0; name && i < CHAT_FAMILY_COUNT; i++)
        if (!strcmp(chat_families[i].name, name)) return &chat_families[i];
    return chat_marks_of_answers;
}

static mote_session_options session_options(const options *o) {
    mote_session_options s = {.size = sizeof s, .context = o->context, .chunk = o->chunk, .threads = o->threads,
                              .callbacks = callbacks(), .kv = o->kv, .mtp = o->mtp, .sms = o->sms, .image_tokens = o->image_tokens};
    return s;
}

/* The memory that the model and a session would take, before the weights are in memory; to be asked after find_model. */
static int plan_memory(const options *o, const mote_session_options *how, mote_memory *plan, mote_error *error) {
    mote_options where = model_options(o, MOTE_DESCRIPTION);
    return o->synthetic ? mote_plan_synthetic(o->synthetic, &where, how, plan, error) : mote_plan(o->model, &where, how, plan, error);
}

enum { CONTEXT_MOST = 131072 };            /* tokens that the program takes by itself */

/* Finds out what context a chat can have beside the weights, less a sixteenth for what else needs memory. Without an answer, opening them will tell why. */
static void plan_context(options *o) {
    mote_session_options how = session_options(o);
    mote_memory plan;
    if (o->context || plan_memory(o, &how, &plan, NULL) || plan.context_fits < 1) return;
    o->fits = plan.context_fits - plan.context_fits / 16;
    if (o->fits > CONTEXT_MOST) o->fits = CONTEXT_MOST;
}

/* The context of a session of this model: as asked for, or, on a GPU, as planned. */
static int chosen_context(const options *o, const mote_info *info) {
    return o->context || !on_gpu(info) ? o->context : o->fits;
}
