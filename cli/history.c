/* cli/history.c: what was typed in chats, between runs as well: a list in memory, and a file that is added to, with a line for
   each message. It never holds answers. */

enum { HISTORY_MOST = 1000, HISTORY_FILE_MOST = 1 << 20 };     /* messages; bytes of the file that are read */

typedef struct history {
    bytes messages;                        /* char *, the oldest first */
    char *path;                            /* of the file; NULL: none */
} history;

static char *history_at(const history *h, size_t i) {
    return ((char **)(void *)h->messages.data)[i];
}

static size_t history_count(const history *h) {
    return h->messages.size / sizeof(char *);
}

static void history_push(history *h, const char *text) {
    char *copy = strdup(text);
    size_t n = history_count(h);
    if (!copy || append(&h->messages, (const char *)&copy, sizeof copy)) {
        free(copy);
        return;
    }
    if (n < HISTORY_MOST) return;
    free(history_at(h, 0));
    memmove(h->messages.data, h->messages.data + sizeof copy, n * sizeof copy);
    h->messages.size -= sizeof copy;
}

/* Remembers a message, and adds it to the file: a line each, with \n and \\ for line feed and backslash. */
static void history_add(history *h, const char *text) {
    size_t n = history_count(h);
    if (!text[strspn(text, " \t\n")] || (n && strcmp(history_at(h, n - 1), text) == 0)) return;
    history_push(h, text);
    int file = h->path ? open(h->path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0600) : -1;
    FILE *out = file < 0 || !is_regular(h->path) ? NULL : fdopen(file, "a");
    if (!out) {
        if (file >= 0) close(file);
        return;
    }
    for (const char *c = text; *c; c++) {
        if (*c == '\n' || *c == '\\') fputc('\\', out);
        fputc(*c == '\n' ? 'n' : *c, out);
    }
    fputc('\n', out);
    fclose(out);
}

/* Reads the last part of the file. */
static void history_read(history *h) {
    FILE *in = h->path && is_regular(h->path) ? fopen(h->path, "re") : NULL;
    char *line = NULL;
    size_t capacity = 0;
    if (!in) return;
    if (!fseek(in, 0, SEEK_END) && ftell(in) > HISTORY_FILE_MOST && !fseek(in, -(long)HISTORY_FILE_MOST, SEEK_END)) {
        if (getline(&line, &capacity, in) < 0) rewind(in);  /* from the middle of a line to its end */
    } else {
        rewind(in);
    }
    while (getline(&line, &capacity, in) >= 0) {
        char *to = line;
        for (const char *c = line; *c && *c != '\n'; c++) {
            if (*c == '\\' && c[1]) *to++ = *++c == 'n' ? '\n' : *c;
            else *to++ = *c;
        }
        *to = 0;
        if (*line) history_push(h, line);
    }
    free(line);
    fclose(in);
}

/* $XDG_STATE_HOME/mote/history, or that in ~/.local/state; its folders are made. NULL: there is no home. */
static char *history_path(void) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int size = state && state[0] == '/' ? asprintf(&path, "%s/mote/history", state)
             : home && home[0] == '/' ? asprintf(&path, "%s/.local/state/mote/history", home) : -1;
    if (size < 0) return NULL;
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    return path;
}

/* keeps: between runs. */
static void history_open(history *h, int keeps) {
    h->path = keeps ? history_path() : NULL;
    history_read(h);
}

static void history_close(history *h) {
    for (size_t i = 0; i < history_count(h); i++) free(history_at(h, i));
    free(h->messages.data);
    free(h->path);
}
