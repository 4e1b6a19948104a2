// cli/conversation.c: what the command chat talks in: a session, its turns, undo, the commands that begin with /. It is
// given a whole message or a whole command, and knows nothing of where they come from (chat_input.c).
//
// Before each turn a checkpoint is taken: /undo goes back to it, and so does a turn that failed, so that the timeline
// only ever holds whole turns (or an answer the user cut short).

enum { UNDO_MAX = 16 };

typedef struct chat {
    options *o;
    mote_session *session;
    mote_sampling sampling;
    bytes message, line, system;           // the last one is used when its size is not 0
    mote_checkpoint *undo[UNDO_MAX];
    int undo_count;
    int context, speculates, show_stats, leave, failed;
    int holds_zero;                        // a line of the message does
    int typed, styled;                     // standard input, standard output is a terminal
    int edits;                             // lines are typed on a terminal, and edited with
    editor edit;
} chat;

typedef struct chat_command {
    const char *name, *argument, *help;
    void (*function)(chat *c, const char *argument);   // argument: "" when there is none
    int erases;                                        // something of the conversation: never what a slip of the hand meant
} chat_command;

// Where remarks of the chat itself go: never into a pipe that wants answers.
static FILE *remarks(const chat *c) {
    return c->styled ? stdout : stderr;
}

__attribute__((format(printf, 2, 3)))
static void say(const chat *c, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    show_arguments(remarks(c), format, arguments);
    va_end(arguments);
}

static void forget_undo(chat *c) {
    while (c->undo_count > 0) mote_checkpoint_free(c->undo[--c->undo_count]);
}

static int take_undo(chat *c, mote_error *error) {
    mote_checkpoint *checkpoint = NULL;
    int code = mote_checkpoint_take(c->session, &checkpoint, error);
    if (code) return code;
    if (c->undo_count == UNDO_MAX) {
        mote_checkpoint_free(c->undo[0]);
        memmove(c->undo, c->undo + 1, (UNDO_MAX - 1) * sizeof c->undo[0]);
        c->undo_count--;
    }
    c->undo[c->undo_count++] = checkpoint;
    return 0;
}

static int rewind_undo(chat *c, mote_error *error) {
    int code = mote_rewind(c->session, c->undo[c->undo_count - 1], error);
    mote_checkpoint_free(c->undo[--c->undo_count]);
    return code;
}

static void chat_fail(chat *c, const mote_error *error) {
    c->failed = 1;
    complain(0, "%s", error->message);
    if (error->code == MOTE_ECONTEXT)
        complain(0, "the context holds %d tokens: /reset starts anew, /undo takes a turn back", c->context);
}

static void chat_stats(const chat *c, const mote_result *r, const mote_speculation *before) {
    mote_speculation speculation = speculation_since(c->session, before);
    size_t used;
    mote_tokens(c->session, &used);
    say(c, "[read %d tokens, %.1f tok/s; wrote %d, %.1f tok/s; context %zu of %d]\n", r->prompt_tokens,
        r->prompt_seconds > 0 ? r->prompt_tokens / r->prompt_seconds : 0, r->generated_tokens,
        r->generate_seconds > 0 ? r->generated_tokens / r->generate_seconds : 0, used, c->context);
    if (c->speculates && speculation.tokens) print_speculation(remarks(c), &speculation);
}

static void chat_turn(chat *c) {
    screen s = {c->styled, MOTE_ANSWER, 0, 0, 0};
    mote_generation g = generation_for(c->o, &c->sampling, &s);
    mote_result result;
    mote_speculation before = {0};
    mote_error error = {0, ""}, ignored;
    g.system = c->system.size ? c->system.data : NULL;
    interrupted = 0;
    if (take_undo(c, &error)) {
        chat_fail(c, &error);
        return;
    }
    mote_speculation_of(c->session, &before, NULL);
    int code = mote_ask(c->session, c->message.data, &g, &result, &error);
    if (!code || s.last) end_screen(&s);
    if (code) {
        if (code != MOTE_ECANCELLED) chat_fail(c, &error);
        if (rewind_undo(c, &ignored)) chat_fail(c, &ignored);
        return;
    }
    if (interrupted) say(c, "[stopped]\n");
    if (result.stop == MOTE_STOP_CONTEXT) say(c, "[context of %d tokens full: /reset starts anew]\n", c->context);
    if (c->show_stats) chat_stats(c, &result, &before);
}

// Commands of the chat.

static void chat_reset(chat *c, const char *argument) {
    mote_error error = {0, ""};
    (void)argument;
    if (mote_reset(c->session, &error)) {
        chat_fail(c, &error);
        return;
    }
    forget_undo(c);
    say(c, "a new conversation\n");
}

static void chat_system(chat *c, const char *argument) {
    size_t used;
    c->system.size = 0;
    if (append(&c->system, argument, strlen(argument))) return;
    mote_tokens(c->session, &used);
    say(c, "system message %s%s\n", *argument ? "set" : "removed", used ? "; it counts from the next /reset on" : "");
}

static void chat_think(chat *c, const char *argument) {
    static const char *const names[] = {"as the model's template", "on", "off"};
    if (*argument && !parse_switch(argument, &c->o->think)) say(c, "/think on or /think off, not '%s'\n", argument);
    else say(c, "thinking: %s\n", names[c->o->think]);
}

static void chat_temperature(chat *c, const char *argument) {
    double t = c->sampling.temperature;
    if (*argument && !parse_real(argument, 0, 100, &t)) say(c, "/temp needs 0 to 100, not '%s'\n", argument);
    else say(c, "temperature %g%s\n", t, t > 0 ? "" : " (greedy)");
    c->sampling.temperature = (float)t;
}

static void chat_seed(chat *c, const char *argument) {
    if (*argument && !parse_seed(argument, &c->sampling.seed)) say(c, "/seed needs a number, not '%s'\n", argument);
    else say(c, "seed %" PRIu64 "\n", c->sampling.seed);
}

static void chat_save(chat *c, const char *argument) {
    mote_error error = {0, ""};
    if (!*argument) say(c, "/save needs a file name\n");
    else if (mote_save_file(c->session, argument, &error)) chat_fail(c, &error);
    else say(c, "saved to %s\n", argument);
}

static void chat_load(chat *c, const char *argument) {
    mote_error error = {0, ""};
    size_t used;
    if (!*argument) {
        say(c, "/load needs a file name\n");
    } else if (mote_load_file(c->session, argument, &error)) {
        chat_fail(c, &error);
    } else {
        forget_undo(c);
        mote_tokens(c->session, &used);
        say(c, "loaded %s: %zu tokens\n", argument, used);
    }
}

static void chat_undo(chat *c, const char *argument) {
    mote_error error = {0, ""};
    (void)argument;
    if (!c->undo_count) say(c, "nothing to take back\n");
    else if (rewind_undo(c, &error)) chat_fail(c, &error);
    else say(c, "took the last turn back\n");
}

static void chat_toggle_stats(chat *c, const char *argument) {
    (void)argument;
    c->show_stats = !c->show_stats;
    say(c, "statistics %s\n", c->show_stats ? "on" : "off");
}

static void chat_quit(chat *c, const char *argument) {
    (void)argument;
    c->leave = 1;
}

static void chat_help(chat *c, const char *argument);

static const chat_command chat_commands[] = {
    {"/help", "", "this list", chat_help, 0},
    {"/reset", "", "start a new conversation (also /new, /clear)", chat_reset, 1},
    {"/system", "TEXT", "system message of the next conversation (no TEXT: none)", chat_system, 0},
    {"/think", "on|off", "think before answering", chat_think, 0},
    {"/temp", "T", "temperature; 0 is greedy", chat_temperature, 0},
    {"/seed", "N", "same seed, same text", chat_seed, 0},
    {"/save", "FILE", "save the conversation", chat_save, 0},
    {"/load", "FILE", "go on with a saved one", chat_load, 1},
    {"/undo", "", "take the last turn back", chat_undo, 1},
    {"/stats", "", "speed and speculation after each answer, on or off", chat_toggle_stats, 0},
    {"/quit", "", "leave (also /exit, /bye, Ctrl-D)", chat_quit, 0},
};
enum { CHAT_COMMAND_COUNT = sizeof chat_commands / sizeof chat_commands[0] };

// Other names that people type for some of them.
static const struct { const char *name, *command; } chat_aliases[] = {
    {"/exit", "/quit"}, {"/bye", "/quit"}, {"/clear", "/reset"}, {"/new", "/reset"}};

static void chat_help(chat *c, const char *argument) {
    (void)argument;
    for (int i = 0; i < CHAT_COMMAND_COUNT; i++)
        say(c, "  %-8s%-8s%s\n", chat_commands[i].name, chat_commands[i].argument, chat_commands[i].help);
    say(c, "  A line that ends with \\ goes on in the next one; lines between \"\"\" and \"\"\" are one message.\n"
           "  Ctrl-C stops an answer. When typing: Alt-Enter begins a line, Ctrl-R searches what was typed, Tab completes.\n");
}

static void chat_execute(chat *c, char *line) {
    const char *near = NULL;
    size_t length = strcspn(line, " \t");
    char *argument = line + length + strspn(line + length, " \t"), *end = line + strlen(line);
    while (end > argument && (end[-1] == ' ' || end[-1] == '\t')) *--end = 0;
    line[length] = 0;
    const char *name = line;
    for (size_t i = 0; i < sizeof chat_aliases / sizeof chat_aliases[0]; i++)
        if (strcmp(line, chat_aliases[i].name) == 0) name = chat_aliases[i].command;
    for (int i = 0; i < CHAT_COMMAND_COUNT; i++) {
        if (strcmp(name, chat_commands[i].name) == 0) {
            chat_commands[i].function(c, argument);
            return;
        }
        if (!chat_commands[i].erases) consider(line, chat_commands[i].name, &near);
    }
    if (near) say(c, "unknown command %s; did you mean %s?\n", line, near);
    else say(c, "unknown command %s; /help lists them\n", line);
}
