// cli/chat_input.c: the next message of a chat, from a terminal (with libedit, if it was built in) or from a pipe. It
// fills the chat's line and message, and knows nothing of what is done with them.
//
// Reading lines. Ctrl-C at the prompt clears the line; the end of the input leaves the chat.

#ifdef MOTE_LIBEDIT
// One byte of the terminal; -1: its end, -2: Ctrl-C. SIGINT is blocked but while ppoll waits, so that none is missed
// between looking at the flag and waiting.
static int read_byte(int file, unsigned char *byte) {
    struct pollfd input = {file, POLLIN, 0};
    sigset_t interrupt, before;
    int result;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    while (!interrupted && ppoll(&input, 1, NULL, &before) < 0 && errno == EINTR) continue;
    result = interrupted ? -2 : read(file, byte, 1) == 1 ? 0 : -1;
    interrupted = 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return result;
}

// One character for libedit. Ctrl-C reaches it as Ctrl-U, its key for "delete the line".
static int read_key(FILE *in) {
    mbstate_t state;
    memset(&state, 0, sizeof state);
    for (;;) {
        unsigned char byte;
        wchar_t wide;
        int end = read_byte(fileno(in), &byte);
        if (end) return end == -2 ? 'U' & 31 : -1;
        size_t used = mbrtowc(&wide, (const char *)&byte, 1, &state);
        if (used == (size_t)-1) return '?';
        if (used != (size_t)-2) return (int)wide;
    }
}
#endif

// Adds to a line or a message. One that gets too long ends the chat: its end may be far away, or nowhere.
static int chat_append(chat *c, bytes *b, const char *data, size_t size) {
    int code = size <= TEXT_MAX - b->size ? append(b, data, size)
                                          : complain(EXIT_FAILURE, "standard input: a message longer than %d MiB, %s",
                                                     TEXT_MAX >> 20, "the most that mote reads of a text");
    if (code) c->failed = c->leave = 1;
    return code;
}

// A line from a pipe, or from a terminal without libedit. Like read_line.
static int read_plain_line(chat *c, const char *prompt) {
    int byte;
    do {
        interrupted = 0;
        c->line.size = 0;
        if (c->typed) say(c, "%s", prompt);
        fflush(stdout);
        while ((byte = getc(stdin)) != EOF && byte != '\n') {
            char one = (char)byte;
            if (chat_append(c, &c->line, &one, 1)) return 0;
        }
        if (byte == EOF && interrupted) {
            clearerr(stdin);
            say(c, "\n");
        }
    } while (byte == EOF && interrupted && c->typed);
    return byte != EOF || (c->line.size > 0 && !interrupted);
}

// The next line without its line feed into c->line; 0 at the end of the input.
static int read_line(chat *c, const char *prompt) {
    interrupted = 0;
    c->line.size = 0;
    if (append(&c->line, "", 0)) return 0;
#ifdef MOTE_LIBEDIT
    if (c->typed && c->styled) {
        char *text = readline(prompt);
        if (!text) return 0;
        if (*text) add_history(text);
        int stored = chat_append(c, &c->line, text, strlen(text)) == 0;
        free(text);
        return stored;
    }
#endif
    if (!read_plain_line(c, prompt)) return 0;
    while (c->line.size && c->line.data[c->line.size - 1] == '\r') c->line.size--;
    c->line.data[c->line.size] = 0;
    if (memchr(c->line.data, 0, c->line.size)) c->holds_zero = 1;
    return 1;
}

// The rest of a message whose first line, behind """, is in c->line.
static int read_quoted(chat *c) {
    const char *line = c->line.data + 3;
    for (;; line = c->line.data) {
        size_t size = c->line.size - (size_t)(line - c->line.data);
        int last = size >= 3 && memcmp(line + size - 3, "\"\"\"", 3) == 0;
        if (chat_append(c, &c->message, line, last ? size - 3 : size)) return 0;
        if (last || !read_line(c, ". ")) return !c->leave;
        if (c->message.size && chat_append(c, &c->message, "\n", 1)) return 0;
    }
}

// The next message, or command, into c->message. *quoted: it stood between """ lines, so it is no command.
static int read_message(chat *c, int *quoted) {
    c->message.size = 0;
    c->holds_zero = 0;
    if (!read_line(c, "> ")) return 0;
    *quoted = strncmp(c->line.data, "\"\"\"", 3) == 0;
    if (*quoted) return read_quoted(c);
    for (;;) {
        size_t size = c->line.size;
        int more = size > 0 && c->line.data[size - 1] == '\\';
        if (chat_append(c, &c->message, c->line.data, more ? size - 1 : size)) return 0;
        if (!more || !read_line(c, ". ")) return !c->leave;
        if (chat_append(c, &c->message, "\n", 1)) return 0;
    }
}
