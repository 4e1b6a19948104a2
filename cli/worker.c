/* cli/worker.c: worker: has this host compute some of the layers of a leader's model. */

static int worker_told;                    /* the address has been printed */

static int worker_goes_on(void *user, const char *address) {
    const options *o = (const options *)user;
    if (!worker_told) fprintf(stderr, "mote: %s waits for a leader on %s\n", o->model, address);
    worker_told = 1;
    return interrupted;
}

static int command_worker(options *o) {
    mote_worker_options how = {.size = sizeof how, .listen = o->listen ? o->listen : "127.0.0.1:7000", .secret = o->secret, .threads = o->threads,
                               .running = worker_goes_on, .user = o, .callbacks = callbacks()};
    mote_error error = {0, ""};
    if (!o->secret_file) return complain(EXIT_USAGE, "worker needs --secret-file");
    int code = check_devices(o);
    if (!code) code = find_model(o, MOTE_WEIGHTS_ONLY);
    if (code) return code;
    catch_interrupt(1);
    if (mote_worker_run(o->model, &how, &error)) return report(&error);
    return 0;
}
