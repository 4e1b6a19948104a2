/* checkpoint/callbacks.c: what the application is told while something takes its time, and whether it wants that to end. */

static int cancelled(const mote_callbacks *c) {
    return c->cancel && c->cancel(c->user);
}

static void report(const mote_callbacks *c, const char *what, double fraction) {
    if (c->progress) c->progress(c->user, what, fraction);
}

__attribute__((format(printf, 2, 3))) static void notice(const mote_callbacks *c, const char *format, ...) {
    char line[512];
    va_list args;
    if (!c->log) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    c->log(c->user, line);
}
