/* cli/chat_input.c: the next message of a chat, from a terminal (line_editor.c) or from a pipe. It fills the chat's line and
   message, and knows nothing of what is done with them.

   Ctrl-C drops what has been typed; at an empty prompt it says how to leave, and the second time leaves, as the end of the
   input does. */

enum line_end { LINE_READ, LINE_CANCELLED, LINE_NONE };

/* Adds to a line or a message. One that gets too long ends the chat: its end may be far away, or nowhere. */
static int chat_append(chat *c, bytes *b, const char *data, size_t size) {
    int code = size <= TEXT_MAX - b->size ? append(b, data, size)
                                          : complain(EXIT_FAILURE, "standard input: a message longer than %d MiB, %s",
                                                     TEXT_MAX >> 20, "the most that mote reads of a text");
    if (code) c->failed = c->leave = 1;
    return code;
}

/* Completes with the one word that is possible, or as far as all are alike; from: where the word begins in the text. */
static void complete_with(editor *e, size_t from, char *const *words, int count) {
    if (count < 1) return;
    size_t alike = strlen(words[0]);
    for (int i = 1; i < count; i++)
        for (size_t k = 0; k < alike; k++)
            if (words[i][k] != words[0][k]) alike = k;
    if (alike > e->at - from) editor_insert(e, words[0] + (e->at - from), alike - (e->at - from));
}

/* Tab: the commands of the chat, and file names after those that take one. */
static void complete_message(editor *e) {
    char *words[CHAT_COMMAND_COUNT], start[512];
    int count = 0;
    if (e->text.size == 0 || e->text.data[0] != '/' || e->at >= sizeof start) return;
    memcpy(start, e->text.data, e->at);
    start[e->at] = 0;
    const char *space = strchr(start, ' ');
    if (!space) {
        for (int i = 0; i < CHAT_COMMAND_COUNT; i++)
            if (strncmp(chat_commands[i].name, start, e->at) == 0) words[count++] = (char *)chat_commands[i].name;
        complete_with(e, 0, words, count);
        return;
    }
    for (int i = 0; i < CHAT_COMMAND_COUNT; i++) {
        size_t n = strlen(chat_commands[i].name);
        if (n != (size_t)(space - start) || strncmp(start, chat_commands[i].name, n) || strcmp(chat_commands[i].argument, "FILE"))
            continue;
        glob_t found;
        strcat(start, "*");
        if (glob(space + 1, GLOB_MARK | GLOB_TILDE, NULL, &found) == 0)
            complete_with(e, (size_t)(space + 1 - start), found.gl_pathv, (int)found.gl_pathc);
        globfree(&found);
        return;
    }
}

/* A line from a pipe. Like read_line. */
static enum line_end read_plain_line(chat *c) {
    int byte;
    fflush(stdout);
    while ((byte = getc(stdin)) != EOF && byte != '\n') {
        char one = (char)byte;
        if (chat_append(c, &c->line, &one, 1)) return LINE_NONE;
    }
    if (byte == EOF && (c->line.size == 0 || interrupted)) return LINE_NONE;
    while (c->line.size && c->line.data[c->line.size - 1] == '\r') c->line.size--;
    c->line.data[c->line.size] = 0;
    if (memchr(c->line.data, 0, c->line.size)) c->holds_zero = 1;
    return LINE_READ;
}

/* The next line without its line feed into c->line. On a terminal it may be several lines, pasted or typed with Alt-Enter. */
static enum line_end read_line(chat *c, const char *prompt) {
    interrupted = 0;
    c->line.size = 0;
    if (append(&c->line, "", 0)) return LINE_NONE;
    if (!c->edits) return read_plain_line(c);
    enum editor_end end = editor_read(&c->edit, prompt);
    if (end == EDITOR_CLOSED) return LINE_NONE;
    if (chat_append(c, &c->line, c->edit.text.data, c->edit.text.size)) return LINE_NONE;
    if (memchr(c->line.data, 0, c->line.size)) c->holds_zero = 1;
    return end == EDITOR_LINE ? LINE_READ : LINE_CANCELLED;
}

/* The rest of a message whose first line, after """, is in c->line. */
static enum line_end read_quoted(chat *c) {
    const char *line = c->line.data + 3;
    for (;; line = c->line.data) {
        size_t size = c->line.size - (size_t)(line - c->line.data);
        int last = size >= 3 && memcmp(line + size - 3, "\"\"\"", 3) == 0;
        if (chat_append(c, &c->message, line, last ? size - 3 : size)) return LINE_NONE;
        enum line_end end = last ? LINE_READ : read_line(c, ". ");
        if (end == LINE_NONE && !c->leave) last = 1;        /* the end of the input ends the message */
        if (last) return LINE_READ;
        if (end != LINE_READ) return end;
        if (c->message.size && chat_append(c, &c->message, "\n", 1)) return LINE_NONE;
    }
}

/* The rest of a message whose first line, in c->line, may go on after a backslash at its end. */
static enum line_end read_continued(chat *c) {
    for (;;) {
        size_t size = c->line.size;
        int more = size > 0 && c->line.data[size - 1] == '\\';
        if (chat_append(c, &c->message, c->line.data, more ? size - 1 : size)) return LINE_NONE;
        enum line_end end = more ? read_line(c, ". ") : LINE_READ;
        if (!more || (end == LINE_NONE && !c->leave)) return LINE_READ;
        if (end != LINE_READ) return end;
        if (chat_append(c, &c->message, "\n", 1)) return LINE_NONE;
    }
}

/* The next message, or command, into c->message; 0: there is none. *quoted: it stood between """ lines, or is several lines, so
   it is no command. */
static int read_message(chat *c, int *quoted) {
    for (int warned = 0;;) {
        c->message.size = 0;
        c->holds_zero = 0;
        enum line_end end = read_line(c, "> ");
        if (end == LINE_NONE) return 0;
        if (end == LINE_CANCELLED) c->replaces = 0;
        if (end == LINE_CANCELLED && c->line.size == 0) {
            if (warned++) return 0;
            say(c, "Ctrl-C again, Ctrl-D or /quit leaves.\n");
            continue;
        }
        warned = 0;
        if (end == LINE_CANCELLED) continue;
        *quoted = strncmp(c->line.data, "\"\"\"", 3) == 0;
        end = *quoted ? read_quoted(c) : read_continued(c);
        if (end == LINE_NONE) return 0;
        if (end == LINE_CANCELLED) continue;
        if (memchr(c->message.data, '\n', c->message.size)) *quoted = 1;
        if (c->edits && !c->holds_zero) history_add(&c->edit.history, c->message.data);
        return 1;
    }
}
