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

/* Completes a file's name, whose beginning is what stands before the cursor. */
static void complete_file(editor *e, size_t from) {
    char pattern[PATH_MAX];
    glob_t found;
    if (e->at - from + 2 > sizeof pattern) return;
    snprintf(pattern, sizeof pattern, "%.*s*", (int)(e->at - from), e->text.data + from);
    if (glob(pattern, GLOB_MARK, NULL, &found) == 0) complete_with(e, from, found.gl_pathv, (int)found.gl_pathc);
    globfree(&found);
}

/* Adds a name to the words that are possible, if it begins with what stands before the cursor. */
static int complete_add(const editor *e, size_t from, const char *name, char **words, int count) {
    if (!strncmp(name, e->text.data + from, e->at - from)) words[count++] = (char *)name;
    return count;
}

/* Tab: the commands of the chat, what /set knows, and the names of files after @ and after commands that take one. */
static void complete_message(editor *e) {
    char *words[CHAT_COMMAND_COUNT + SET_VALUES];
    const char *text = e->text.data;
    size_t word = e->at, command = 0;
    int count = 0;
    while (command < e->at && !strchr(" \t\n", text[command])) command++;
    while (word > 0 && !strchr(" \t\n", text[word - 1])) word--;
    if (word < e->at && text[word] == '@') {
        complete_file(e, word + 1);
        return;
    }
    if (!e->at || text[0] != '/') return;
    for (int i = 0; i < CHAT_COMMAND_COUNT; i++) {
        const chat_command *k = &chat_commands[i];
        if (command == e->at) count = complete_add(e, 0, k->name, words, count);
        else if (strlen(k->name) != command || strncmp(text, k->name, command)) continue;
        else if (!strcmp(k->argument, "FILE")) complete_file(e, command + 1);
        else if (k->function == chat_set && word == command + 1)
            for (int v = 0; v < SET_VALUES; v++) count = complete_add(e, word, set_values[v].name, words, count);
    }
    complete_with(e, command == e->at ? 0 : word, words, count);
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
