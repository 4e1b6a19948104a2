/* program/terminal.c: showing text, progress and complaints; Ctrl-C; the callbacks that the library gets. Every command
   uses it. It knows nothing of options, models or sessions.

   Text that mote did not write itself (of a model, a file, a path) reaches a terminal through show() alone. Functions
   that can fail print one line `mote: ...` and return an exit code; 0 means go on. Ctrl-C only sets a flag,
   which the library polls through the cancel callback. */

static volatile sig_atomic_t interrupted;
static int progress_shown = -1;            /* per cent on the screen now, -1 = none */
static double progress_began;              /* when it was first shown */

/* The first character of a text that is not empty, and how many bytes it takes; -1: one byte that is no UTF-8. Overlong
   forms are read as what they stand for. */
static int32_t first_character(const char *text, size_t size, size_t *length) {
    unsigned char first = (unsigned char)text[0];
    size_t n = first < 0x80 ? 1 : first < 0xc0 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf8 ? 4 : 0;
    int32_t c = n < 2 ? first : first & (0x7f >> n);
    *length = 1;
    if (n == 0 || n > size) return -1;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) return -1;
        c = c << 6 | (text[i] & 0x3f);
    }
    *length = n;
    return c;
}

/* 1: a terminal would do more with it than draw it. Controls make it: among them carriage return, which overwrites the line.
   So do bidirectional embeddings, overrides and isolates, which show the text around them in another order. */
static int steers_terminal(int32_t c) {
    if (c == '\n' || c == '\t') return 0;
    return c < ' ' || (c >= 0x7f && c <= 0x9f) || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

/* Writes text. What would steer a terminal is shown there instead: ^[ for ESC, ^? for DEL, <U+009B> for characters
   beyond ASCII, <9B> for a byte that is no UTF-8. Pipes and files get the text as it is. */
static void show(FILE *out, const char *text, size_t size) {
    size_t shown = 0, length;
    int failure = errno, terminal = isatty(fileno(out));
    errno = failure;                       /* isatty sets it for a pipe; main may still have to tell why a write failed */
    for (size_t at = 0; at < size && terminal; at += length) {
        int32_t c = first_character(text + at, size - at, &length);
        if (!steers_terminal(c)) continue;
        fwrite(text + shown, 1, at - shown, out);
        if (c < 0) fprintf(out, "<%02X>", (unsigned char)text[at]);
        else if (c < 0x80) fprintf(out, "^%c", (int)c ^ 0x40);
        else fprintf(out, "<U+%04X>", (unsigned)c);
        shown = at + length;
    }
    fwrite(text + shown, 1, size - shown, out);
}

static void show_arguments(FILE *out, const char *format, va_list arguments) {
    char *text;
    int size = vasprintf(&text, format, arguments);
    if (size < 0) return;
    show(out, text, (size_t)size);
    free(text);
}

/* fprintf for a format with strings that mote did not write itself. */
__attribute__((format(printf, 2, 3)))
static void show_format(FILE *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    show_arguments(out, format, arguments);
    va_end(arguments);
}

static double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void clear_progress(void) {
    if (progress_shown >= 0) fputs("\r\033[K", stderr);
    progress_shown = -1;
}

static void on_progress(void *user, const char *what, double fraction) {
    int percent = (int)(fraction * 100);
    (void)user;
    if (fraction >= 1) {
        clear_progress();
        return;
    }
    double now = clock_seconds();
    if (progress_shown < 0) progress_began = now;
    if (percent == progress_shown) return;
    fputs("\r\033[K", stderr);
    show_format(stderr, "%s, %d %%", what, percent);
    if (percent > 0 && now - progress_began > 0.5)
        fprintf(stderr, ", %.0f s left", (now - progress_began) * (1 - fraction) / fraction);
    progress_shown = percent;
}

static void on_log(void *user, const char *line) {
    (void)user;
    clear_progress();
    show_format(stderr, "mote: note: %s\n", line);
}

static int on_cancel(void *user) {
    (void)user;
    return interrupted;
}

static mote_callbacks callbacks(void) {
    mote_callbacks c = {.log = on_log, .progress = isatty(STDERR_FILENO) ? on_progress : NULL, .cancel = on_cancel};
    return c;
}

__attribute__((format(printf, 2, 3)))
static int complain(int exit_code, const char *format, ...) {
    va_list arguments;
    clear_progress();
    fputs("mote: ", stderr);
    va_start(arguments, format);
    show_arguments(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return exit_code;
}

/* Passes on a complaint of the library. Being stopped by the user is no complaint. */
static int report(const mote_error *error) {
    if (error->code != MOTE_ECANCELLED || !interrupted) return complain(EXIT_FAILURE, "%s", error->message);
    clear_progress();
    return EXIT_INTERRUPTED;
}

static void on_interrupt(int signal) {
    interrupted = signal;
}

/* once: a second Ctrl-C ends the program the hard way, and so it is with SIGTERM, so that a command which is ended leaves no half file. No
   SA_RESTART: waiting for a line must end, too. */
static void catch_interrupt(int once) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = once ? (int)SA_RESETHAND : 0;
    sigaction(SIGINT, &action, NULL);
    if (once) sigaction(SIGTERM, &action, NULL);
}

/* What the program ends with: by a SIGTERM that ended the command, by that signal, as whoever sent it expects. */
static int end_of_program(int code) {
    if (code != EXIT_INTERRUPTED || interrupted != SIGTERM) return code;
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
    return code;
}
