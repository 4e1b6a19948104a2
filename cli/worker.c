/* cli/worker.c: worker: has this host compute some of the layers of a leader's model. */

static int worker_told;                    /* the address has been printed */
static volatile sig_atomic_t worker_terminated;

static int worker_goes_on(void *user, const char *address) {
    const options *o = (const options *)user;
    if (!worker_told && (!strncmp(address, "0.0.0.0:", 8) || !strncmp(address, "[::]:", 5)))
        on_log(NULL, "whoever reaches this machine can connect, and what goes between hosts is not enciphered");
    if (!worker_told) fprintf(stderr, "mote: %s waits for a leader on %s\n", o->synthetic ? o->synthetic : o->model, address);
    worker_told = 1;
    return interrupted;
}

/* It also ends reading the weights. */
static void on_terminate(int number) {
    (void)number;
    worker_terminated = interrupted = 1;
}

/* As with Ctrl-C, a second one ends the program the hard way. */
static void catch_terminate(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_terminate;
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGTERM, &action, NULL);
}

/* Whether the folder is a model's shows now, not when a leader comes. */
static int check_worker_folder(const options *o) {
    const mote_options how = {.size = sizeof how, .parts = MOTE_DESCRIPTION, .device = "cpu"};
    mote_model *model = NULL;
    mote_error error = {0, ""};
    const int code = o->synthetic ? mote_open_synthetic(o->synthetic, &how, &model, &error) : mote_open(o->model, &how, &model, &error);
    mote_close(model);
    return code ? report(&error) : 0;
}

static int command_worker(options *o) {
    mote_worker_options how = {.size = sizeof how, .listen = o->listen ? o->listen : "127.0.0.1:7000", .secret = o->secret, .device = o->device, .threads = o->threads,
                               .running = worker_goes_on, .user = o, .callbacks = callbacks()};
    mote_error error = {0, ""};
    if (!o->secret_file) return complain(EXIT_USAGE, "worker needs --secret-file");
    if (o->model && o->synthetic) return complain(EXIT_USAGE, "worker: -m and --synthetic exclude each other");
    int code = read_secret(o);
    if (!code) code = find_model(o, MOTE_WEIGHTS_ONLY);
    if (!code) code = check_worker_folder(o);
    if (code) return code;
    catch_interrupt(1);
    catch_terminate();
    if (o->synthetic ? mote_worker_synthetic(o->synthetic, &how, &error) : mote_worker_run(o->model, &how, &error)) return report(&error);
    return interrupted && !worker_terminated ? EXIT_INTERRUPTED : 0;
}
