/* cli/files.c: texts and token ids from files and pipes, files that a command writes. It knows of a model only the limits in
   mote_info, against which token ids are checked, and nothing of sessions. */

enum { WAIT_SECONDS = 3 };                 /* for the other side of a pipe */

/* 1: `file` has something to read, or its end, within WAIT_SECONDS. -1: Ctrl-C. */
static int input_comes(int file) {
    struct pollfd input = {file, POLLIN, 0};
    return poll(&input, 1, WAIT_SECONDS * 1000);
}

/* Opens a file for reading: a regular one or, if `pipes`, a FIFO that somebody writes to (as <(...) of a shell) or a device.
   NULL: it has been said why not. Opening itself never waits. */
static FILE *open_input(const char *name, int pipes) {
    int file = open(name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), ready = 1;
    struct stat s;
    FILE *in = NULL;
    if (file < 0 || fstat(file, &s)) file_failure(name);
    else if (S_ISDIR(s.st_mode)) errno = EISDIR, file_failure(name);
    else if (!S_ISREG(s.st_mode) && !pipes) complain(0, "%s: not a regular file", name);
    else if ((ready = input_comes(file)) < 0) file_failure(name);
    else if (!ready) complain(0, "%s: nothing came within %d s", name, WAIT_SECONDS);
    else if (fcntl(file, F_SETFL, 0) || !(in = fdopen(file, "rb"))) file_failure(name);
    if (!in && file >= 0) close(file);
    return in;
}

/* The exit code when there is none. */
static int input_failure(void) {
    return interrupted ? EXIT_INTERRUPTED : EXIT_FAILURE;
}

/* All of a text. */
static int read_text(FILE *in, const char *name, bytes *b) {
    int code = read_some(in, name, TEXT_MAX, b);
    if (!code && b->size > TEXT_MAX)
        code = complain(EXIT_FAILURE, "%s: longer than %d MiB, the most that mote reads of a text", name,
                        TEXT_MAX >> 20);
    return code;
}

/* The token ids of an .i32 file, no more than fit into the context, each checked against the vocabulary. */
static int read_tokens(const char *path, const mote_info *info, int context, bytes *b, size_t *count) {
    int vocab_size = info->vocab_size, most = info->context_max;
    if (context && context < most) most = context;
    FILE *in = open_input(path, 1);
    if (!in) return input_failure();
    int code = read_some(in, path, (size_t)most * 4, b);
    fclose(in);
    if (code) return code;
    if (b->size > (size_t)most * 4)
        return complain(EXIT_FAILURE, "%s: more than %d tokens, the %s", path, most,
                        most < info->context_max ? "context asked for" : "model's longest context");
    if (b->size == 0) return complain(EXIT_FAILURE, "%s: holds no tokens", path);
    if (b->size % 4)
        return complain(EXIT_FAILURE, "%s: %zu bytes are no int32 token ids: not a multiple of 4", path, b->size);
    *count = b->size / 4;
    for (size_t i = 0; i < *count; i++) {
        int32_t id = ((const int32_t *)(const void *)b->data)[i];
        if (id < 0 || id >= vocab_size)
            return complain(EXIT_FAILURE, "%s: token %zu is %" PRId32 ", but the vocabulary has ids 0 to %d", path, i,
                            id, vocab_size - 1);
    }
    return 0;
}

/* A file that a command writes, in place: symbolic links are followed, devices and FIFOs are written as they are. After a
   failure a file that the command itself created is removed. A regular file that was there before is left empty once
   writing has begun, because its old content is gone and half of the new would look like a result; until then it stays
   as it was. Nothing else is ever removed. */
typedef struct output {
    const char *path;
    FILE *file;                            /* NULL: not open */
    struct stat status;
    int created, begun;
} output;

static int same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Opens the file without changing what it holds, so that all else can be checked first. A FIFO's reader has WAIT_SECONDS to
   come. */
static int open_output(output *o, const char *path) {
    const int flags = O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    const double until = clock_seconds() + WAIT_SECONDS;
    int file = open(path, flags | O_EXCL, 0666);
    o->path = path;
    o->created = file >= 0;
    /* O_CREAT again: the path may be a symbolic link to a file that is not there yet. */
    if (file < 0 && errno == EEXIST) file = open(path, flags, 0666);
    while (file < 0 && errno == ENXIO && clock_seconds() < until && !poll(NULL, 0, 20)) file = open(path, flags, 0666);
    if (file < 0 && errno == ENXIO) return complain(EXIT_FAILURE, "%s: nobody reads from it", path);
    if (file >= 0 && fstat(file, &o->status) == 0 && fcntl(file, F_SETFL, 0) == 0) o->file = fdopen(file, "wb");
    if (o->file) return 0;
    int code = file_failure(path);
    if (file >= 0) close(file);
    return code;
}

static int begin_outputs(output *outputs, int count) {
    for (output *o = outputs; o < outputs + count; o++) {
        if (!o->file) continue;
        if (S_ISREG(o->status.st_mode) && ftruncate(fileno(o->file), 0))
            return file_failure(o->path);
        o->begun = 1;
    }
    return 0;
}

/* The path is looked at again: by now it may name another file, which is none of ours. */
static void discard_output(const output *o) {
    struct stat now;
    if (!o->path || !S_ISREG(o->status.st_mode)) return;
    if ((o->created ? lstat : stat)(o->path, &now) || !same_file(&now, &o->status)) return;
    if (o->created) unlink(o->path);
    else if (o->begun && truncate(o->path, 0)) complain(0, "%s: %s: it is incomplete", o->path, strerror(errno));
}

/* Ends files that belong together: when one could not be written, or `code` says that the command failed, all are
   discarded. Those that are not open are passed over. Returns the exit code. */
static int close_outputs(output *outputs, int count, int code) {
    for (output *o = outputs; o < outputs + count; o++) {
        if (!o->file) continue;
        int broken = ferror(o->file);
        if ((fclose(o->file) || broken) && !code) code = file_failure(o->path);
        o->file = NULL;
    }
    for (int i = 0; i < count && code; i++) discard_output(&outputs[i]);
    return code;
}
