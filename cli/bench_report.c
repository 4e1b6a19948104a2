/* cli/bench_report.c: bench --report, what stands in a report beside the speeds: the machine, the checkpoint, the self-test, and the
   questions that are asked. One block of text, to be pasted by people whose machine nobody else has seen. */

static const char report_questions[] =
    "Explain in one paragraph what a mixture of experts is.\n"
    "Write a function in C that reverses a linked list, with a comment for each step.\n"
    "A train leaves at 14:20 and arrives at 17:05. How long does it take? Show how you find it.\n"
    "Write a short story about a lighthouse keeper who receives a letter.\n"
    "List the planets of the solar system as a JSON array of objects with name and radius in km.\n"
    "Translate into French: The library opens at nine and closes at six, except on Sundays.\n";

enum { SAMPLE = 4096, SAMPLES_APART = 16 << 20 };      /* bytes of a file of weights that are looked at, and from one to the next */

/* Ends it: 64 hexadecimal digits. */
static void report_digits(sha256 *s, char digits[2 * SHA256_SIZE + 1]) {
    unsigned char bytes[SHA256_SIZE];
    sha256_close(s, bytes);
    for (int i = 0; i < SHA256_SIZE; i++) sprintf(digits + 2 * i, "%02x", bytes[i]);
}

/* Adds a file's name, size and bytes: all of a small one, of a large one its beginning and samples. 0: it cannot be read. */
static int report_add_file(sha256 *s, const char *folder, const char *name) {
    static unsigned char bytes[1 << 20];
    char path[PATH_MAX];
    struct stat status;
    snprintf(path, sizeof path, "%.3500s/%.500s", folder, name);
    int file = open(path, O_RDONLY | O_CLOEXEC), ok = file >= 0 && !fstat(file, &status) && S_ISREG(status.st_mode);
    if (ok) sha256_add(s, name, strlen(name) + 1);
    if (ok) sha256_add(s, &status.st_size, sizeof status.st_size);
    for (off_t at = 0; ok && at < status.st_size;) {
        const int whole = at < SAMPLES_APART;
        const ssize_t n = pread(file, bytes, whole ? sizeof bytes : (size_t)SAMPLE, at);
        ok = n > 0;
        if (ok) sha256_add(s, bytes, (size_t)n);
        at += whole ? n : SAMPLES_APART;
    }
    if (file >= 0) close(file);
    return ok;
}

static int is_shard(const struct dirent *entry) {
    return entry->d_name[0] != '.' && ends_with(entry->d_name, ".safetensors");
}

/* One number for all files of weights, in the order of their names. */
static int report_weights(const char *folder, char digits[65]) {
    struct dirent **found = NULL;
    int count = scandir(folder, &found, is_shard, alphasort), ok = count > 0;
    sha256 s;
    sha256_open(&s);
    for (int i = 0; i < count; i++) {
        ok = ok && report_add_file(&s, folder, found[i]->d_name);
        free(found[i]);
    }
    free(found);
    report_digits(&s, digits);
    return ok;
}

static void report_checkpoint(const bench *b) {
    static const char *const names[] = {"config.json", "tokenizer.json", "model.safetensors.index.json"};
    const char *folder = b->o->model;
    char digits[65], path[PATH_MAX];
    fprintf(b->table, "files   ");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bytes text = {NULL, 0, 0};
        sha256 s;
        snprintf(path, sizeof path, "%.3500s/%s", folder, names[i]);
        FILE *in = is_regular(path) ? fopen(path, "rb") : NULL;
        sha256_open(&s);
        if (in && !read_some(in, path, TEXT_MAX, &text)) sha256_add(&s, text.data, text.size);
        report_digits(&s, digits);
        if (in) fprintf(b->table, " %s %.16s,", names[i], digits);
        if (in) fclose(in);
        free(text.data);
    }
    if (report_weights(folder, digits)) fprintf(b->table, " weights %.16s (samples)\n", digits);
    else fprintf(b->table, " weights unreadable\n");
}

/* What nvidia-smi tells of the card; a question mark where it does not. */
static void report_card(const bench *b) {
    char command[200], line[300] = "";
    snprintf(command, sizeof command,
             "nvidia-smi --query-gpu=driver_version,clocks.max.sm,clocks.max.mem,power.limit,memory.total,temperature.gpu "
             "--format=csv,noheader -i %d 2>/dev/null", atoi(b->info->device + strcspn(b->info->device, "0123456789")));
    FILE *in = popen(command, "r");
    if (in && !fgets(line, sizeof line, in)) line[0] = 0;
    if (in) pclose(in);
    line[strcspn(line, "\n")] = 0;
    show_format(b->table, "card     driver, highest clocks of SMs and memory, power limit, memory, temperature: %s\n", *line ? line : "?");
}

static void print_report_head(const bench *b) {
    struct utsname system;
    char date[32], size[32];
    const time_t now = time(NULL);
    struct tm day;
    if (uname(&system)) memset(&system, 0, sizeof system);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &day));
    human((double)b->info->weight_bytes, "B", size);
    show_format(b->table, "mote     %s, %s; %s %s %s, %ld processors\n", mote_version(), date, system.sysname, system.release,
                system.machine, sysconf(_SC_NPROCESSORS_ONLN));
    if (on_gpu(b->info)) report_card(b);
    fprintf(b->table, "weights  %s, %s%s\n", b->info->architecture, size, b->info->quantize ? ", quantised while loading" : "");
    if (!b->o->synthetic) report_checkpoint(b);
}

static void count_selftest(void *user, const char *what, double difference, double allowed, int ok) {
    int *counts = user;
    (void)what;
    (void)difference;
    (void)allowed;
    counts[!ok]++;
}

/* The library's own tests of the GPU: before the model takes its memory. Nothing where there is none. */
static int report_selftest(bench *b) {
    int counts[2] = {0, 0}, failed;
    mote_error error = {0, ""};
    if (b->o->device && strcmp(b->o->device, "cpu") == 0) return 0;
    int code = mote_selftest(b->o->device, b->o->sms, count_selftest, counts, &failed, &error);
    clear_progress();
    if (code == MOTE_EDEVICE && !b->o->device) return 0;
    if (code) return report(&error);
    fprintf(b->table, "selftest %d passed, %d failed\n", counts[0], counts[1]);
    return 0;
}

/* After the speeds: the questions, without speculation and with it, in a context of their own. */
static int report_ask(bench *b, const char *name, const mote_model *model) {
    const options *before = b->o;
    options o = *before;
    if (!b->info->chat_template && !o.synthetic) return 0;
    o.context = o.steps = 0;
    b->o = &o;
    mote_session_close(b->session);
    b->session = NULL;
    fputc('\n', b->table);
    int code = bench_ask(b, &o, name, model);
    b->o = before;
    return code;
}
