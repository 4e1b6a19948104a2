/* cli/chat_commands.c: the commands of the chat that begin with /. Each is a function and a line of the table; it is given the
   conversation and its argument. */

typedef struct chat_command {
    const char *name, *argument, *help;
    void (*function)(chat *c, const char *argument);   /* argument: "" when there is none */
    int erases;                                        /* something of the conversation: never what a slip of the hand meant */
} chat_command;

static void chat_reset(chat *c, const char *argument) {
    mote_error error = {0, ""};
    (void)argument;
    if (mote_reset(c->session, &error)) {
        chat_fail(c, &error);
        return;
    }
    forget_undo(c);
    free_pictures(&c->read);
    c->asked.size = c->attached.size = 0;
    c->stands = c->told_context = 0;
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
    int think = c->o->think;
    if (*argument && !parse_switch(argument, &think)) {
        say(c, "/think on or /think off, not '%s'\n", argument);
    } else if (*argument && effort_contradicts(c->o->effort, think)) {
        say(c, "/effort is %s, which contradicts that: /effort alone first\n", c->o->effort);
    } else {
        c->o->think = think;
        say(c, "thinking: %s\n", names[think]);
    }
}

static void chat_effort(chat *c, const char *argument) {
    size_t used;
    if (*argument && effort_contradicts(argument, c->o->think)) {
        say(c, "/think is %s, which contradicts that\n", c->o->think == MOTE_THINK_ON ? "on" : "off");
        return;
    }
    c->effort.size = 0;
    if (append(&c->effort, argument, strlen(argument))) return;
    c->o->effort = *argument ? c->effort.data : NULL;
    mote_tokens(c->session, &used);
    say(c, "effort %s%s\n", *argument ? argument : "as the model's template", used ? "; it counts from the next /reset on" : "");
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

/* Without thinking, which a conversation that is loaded from the file could not drop any more. */
static void chat_save(chat *c, const char *argument) {
    mote_error error = {0, ""};
    if (!*argument) say(c, "/save needs a file name\n");
    else if (mote_drop_thinking(c->session, NULL, &error) || mote_save_file(c->session, argument, &error)) chat_fail(c, &error);
    else say(c, "saved to %s\n", argument);
}

static int text_of(const mote_model *model, const int32_t *ids, size_t count, bytes *text) {
    int code = detokenize(model, ids, count, text);
    return code ? code : append(text, "", 0);
}

/* The answer of a turn as the model has it, without thinking and the template's words. */
static void chat_show_answer(chat *c, char *turn) {
    const chat_marks *marks = marks_of(c->model);
    const char *const ends[] = {marks->turn_end, marks->ends[0], marks->ends[1]};
    char *answer = turn, *found;
    while ((found = strstr(answer, marks->answer))) answer = found + strlen(marks->answer);
    while (*marks->think_end && (found = strstr(answer, marks->think_end))) answer = found + strlen(marks->think_end);
    for (int i = 0; i < 3; i++)
        if (answer > turn && ends[i] && *ends[i] && (found = strstr(answer, ends[i]))) *found = 0;
    say(c, "%s\n", answer == turn ? "" : answer + strspn(answer, "\n"));
}

/* The last turn, whose question begins at ids: it is shown, so that one knows where one is, and can be asked again. */
static void chat_take_last(chat *c, const int32_t *ids, size_t count) {
    bytes text = {NULL, 0, 0};
    size_t end = 0;
    while (end < count && !mote_is_end(c->model, ids[end])) end++;
    while (count && mote_is_end(c->model, ids[count - 1])) count--;                    /* of an answer whose turn has no end */
    if (!text_of(c->model, ids, end, &text)) {
        char *question = text.data + strspn(text.data, "\n"), *over = strstr(question, marks_of(c->model)->answer);
        if (over) *over = 0;               /* where no token ends a question, or none that ends an answer */
        const char *const end = marks_of(c->model)->turn_end;
        over = *end ? strstr(question, end) : NULL;
        if (over && !over[strlen(end)]) *over = 0;
        c->asked.size = c->typed_last.size = 0;
        c->stands = !append(&c->asked, question, strlen(question)) && !append(&c->typed_last, question, strlen(question));
        say(c, "> %s\n", question);
        if (!text_of(c->model, ids, count, &text)) chat_show_answer(c, text.data);
    }
    free(text.data);
}

/* Finds the turns of a timeline that was loaded. Each begins after the token that ended the one before it. */
static void chat_take_turns(chat *c) {
    size_t count, length = 0, last = 0;
    const int32_t *ids = mote_tokens(c->session, &count);
    const char *user = marks_of(c->model)->user;
    bytes start = {NULL, 0, 0};
    if (tokenize(c->model, user, strlen(user), &start, &length)) length = 0;
    for (size_t at = 0; length && at + length <= count; at++) {
        if (memcmp(ids + at, start.data, length * sizeof *ids)) continue;
        last = at + length;
        push_undo(c, NULL, 0, at > 1 && mote_is_end(c->model, ids[at - 2]) ? at - 1 : at);
    }
    free(start.data);
    if (!last) return;
    bytes turn = {NULL, 0, 0};                             /* without the tokens of images, of which the file has not the pixels */
    const int32_t *keys = mote_timeline(c->session, &count);
    for (size_t at = last; at < count; at++)
        if (keys[at] >= 0 && append(&turn, (const char *)&keys[at], sizeof *keys)) break;
    chat_take_last(c, (const int32_t *)(const void *)turn.data, turn.size / sizeof *keys);
    if (turn.size < (count - last) * sizeof *keys) {
        c->asked.size = c->stands = 0;
        say(c, "[the images are not in the file: /retry cannot ask this again]\n");
    }
    free(turn.data);
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
        c->asked.size = 0;
        c->stands = c->told_context = 0;
        mote_tokens(c->session, &used);
        say(c, "loaded %s: %zu tokens%s\n", argument, used, used ? ", the last turn:" : "");
        chat_take_turns(c);
    }
}

static void chat_undo(chat *c, const char *argument) {
    mote_error error = {0, ""};
    (void)argument;
    if (!c->undo_count) {
        say(c, "nothing to take back\n");
    } else if (rewind_undo(c, &error)) {
        chat_fail(c, &error);
    } else {
        c->asked.size = 0;
        say(c, "took the last turn back\n");
    }
}

/* 1: there is a last question that can be asked again. */
static int chat_has_last(chat *c) {
    if (!c->asked.size) say(c, "there is no last question\n");
    return c->asked.size > 0;
}

static void chat_retry(chat *c, const char *argument) {
    mote_error error = {0, ""};
    (void)argument;
    if (!chat_has_last(c)) return;
    if (!(c->sampling.temperature > 0)) say(c, "the temperature is 0, so the answer is the same: /set temperature 0.7\n");
    c->sampling.seed++;
    if (c->stands && rewind_undo(c, &error)) chat_fail(c, &error);
    else chat_ask(c);
}

static void chat_edit(chat *c, const char *argument) {
    (void)argument;
    if (!c->edits) say(c, "/edit needs a terminal\n");
    else if (chat_has_last(c)) c->replaces = !append(&c->edit.start, c->typed_last.data, c->typed_last.size);
}

static void chat_read(chat *c, const char *argument) {
    const attachments to = {&c->attached, &c->read, c->o->image_tokens};
    if (!*argument) say(c, "/read needs a file name\n");
    else if (attach_file(c->model, argument, remarks(c), &to)) c->failed = 1;
    else say(c, "it goes with your next message\n");
}

/* A token's id, its bytes in hexadecimal, the first of a long one, and its text. */
static void chat_token(const chat *c, int32_t id) {
    enum { SHOWN = 8 };
    char hex[3 * SHOWN + 4] = "";
    size_t n = 0;
    const char *text = mote_token_bytes(c->model, id, &n);
    for (size_t i = 0; text && i < n && i < SHOWN; i++) sprintf(hex + 3 * i, "%02x ", (unsigned char)text[i]);
    if (n > SHOWN) strcat(hex, "...");
    say(c, "%8" PRId32 "  %-27s  '%.*s'\n", id, hex, (int)n, text ? text : "");
}

static void chat_tokens(chat *c, const char *argument) {
    bytes ids = {NULL, 0, 0};
    size_t count = 0;
    if (tokenize(c->model, argument, strlen(argument), &ids, &count)) c->failed = 1;
    for (size_t i = 0; i < count; i++) chat_token(c, ((int32_t *)(void *)ids.data)[i]);
    say(c, "%zu token%s\n", count, count == 1 ? "" : "s");
    free(ids.data);
}

/* The values that /set knows: of c->sampling, and of the options. */
static const struct { const char *name; size_t offset; int is_option, whole; double low, high; } set_values[] = {
    {"temperature", offsetof(mote_sampling, temperature), 0, 0, 0, 100},
    {"top-k", offsetof(mote_sampling, top_k), 0, 1, 0, INT_MAX},
    {"top-p", offsetof(mote_sampling, top_p), 0, 0, 0, 1},
    {"min-p", offsetof(mote_sampling, min_p), 0, 0, 0, 1},
    {"repetition-penalty", offsetof(mote_sampling, repetition_penalty), 0, 0, 0, 10},
    {"presence-penalty", offsetof(mote_sampling, presence_penalty), 0, 0, -2, 2},
    {"frequency-penalty", offsetof(mote_sampling, frequency_penalty), 0, 0, -2, 2},
    {"max-tokens", offsetof(options, max_tokens), 1, 1, 0, INT_MAX}};

enum { SET_VALUES = sizeof set_values / sizeof set_values[0] };

/* What APIs call some of them. Any name may have _ for -. */
static const struct { const char *name, *value; } set_aliases[] = {
    {"temp", "temperature"}, {"repeat-penalty", "repetition-penalty"}, {"max-completion-tokens", "max-tokens"},
    {"max-output-tokens", "max-tokens"}, {"n-predict", "max-tokens"}, {"num-predict", "max-tokens"}};

static void *chat_value(chat *c, int i) {
    return (set_values[i].is_option ? (char *)c->o : (char *)&c->sampling) + set_values[i].offset;
}

static void chat_show_value(chat *c, int i) {
    void *at = chat_value(c, i);
    say(c, "  %-20s%g%s\n", set_values[i].name, set_values[i].whole ? *(int *)at : *(float *)at,
        set_values[i].is_option && !*(int *)at ? " (until the context is full)" : "");
}

static void chat_set_value(chat *c, int i, const char *value) {
    double low = set_values[i].low, high = set_values[i].high, real;
    int ok = 1;
    if (*value && set_values[i].whole) ok = parse_whole(value, low, high, (int *)chat_value(c, i));
    else if (*value && (ok = parse_real(value, low, high, &real))) *(float *)chat_value(c, i) = (float)real;
    if (ok) chat_show_value(c, i);
    else say(c, "/set %s needs %.10g to %.10g, not '%s'\n", set_values[i].name, low, high, value);
}

/* The name as /set has it, which lasts until the next call. */
static const char *set_name(const char *typed, size_t length) {
    static char name[32];
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), typed);
    for (char *at = name; *at; at++)
        if (*at == '_') *at = '-';
    for (size_t i = 0; i < sizeof set_aliases / sizeof set_aliases[0]; i++)
        if (strcmp(name, set_aliases[i].name) == 0) return set_aliases[i].value;
    return name;
}

static void chat_set(chat *c, const char *argument) {
    size_t length = strcspn(argument, " \t=");
    const char *value = argument + length + strspn(argument + length, " \t="), *name = set_name(argument, length);
    if (strcmp(name, "seed") == 0) {
        chat_seed(c, value);
        return;
    }
    for (int i = 0; i < SET_VALUES; i++) {
        if (!*argument) chat_show_value(c, i);
        else if (strcmp(name, set_values[i].name) == 0) {
            chat_set_value(c, i, value);
            return;
        }
    }
    if (!*argument) say(c, "  %-20s%" PRIu64 "\n", "seed", c->sampling.seed);
    else say(c, "/set knows no '%.*s'; /set alone lists all\n", (int)length, argument);
}

/* The same conversation in a session of another size. */
static void chat_resize(chat *c, int context) {
    int before = c->o->context;
    mote_session *other = NULL;
    mote_error error = {0, ""};
    bytes state = {NULL, 0, 0};
    size_t need = 0;
    (void)mote_save(c->session, NULL, 0, &need, NULL);
    c->o->context = context;
    int failed = grow(&state, need + 1) || open_session(c->model, c->o, &other);
    if (!failed && (mote_save(c->session, state.data, need, &state.size, &error) ||
                    mote_load(other, state.data, state.size, &error))) {
        chat_fail(c, &error);
        failed = 1;
    }
    free(state.data);
    if (failed) {
        c->o->context = before;
        mote_session_close(other);
        return;
    }
    mote_session_close(c->session);
    c->session = other;
    c->context = mote_context(other);
    c->told_context = 0;
    say(c, "a context of %d tokens\n", c->context);
}

static void chat_show_context(chat *c, const char *argument) {
    size_t used;
    int context;
    mote_tokens(c->session, &used);
    if (*argument) {
        if (parse_whole(argument, 1, INT_MAX, &context) && (size_t)context >= used) chat_resize(c, context);
        else say(c, "/context needs a number of tokens, %zu or more, not '%s'\n", used, argument);
        return;
    }
    say(c, "%zu of %d tokens used, %zu free\n", used, c->context, (size_t)c->context - used);
    for (int i = 0; i < c->undo_count; i++) {
        size_t end = i + 1 < c->undo_count ? c->undo_tokens[i + 1] : used;
        say(c, "  turn %d of the last %d: %zu tokens\n", i + 1, c->undo_count, end - c->undo_tokens[i]);
    }
}

static void chat_switch_stats(chat *c, const char *argument) {
    int on = strcmp(argument, "on") == 0;
    if (*argument && !on && strcmp(argument, "off")) {
        say(c, "/stats on or /stats off, not '%s'\n", argument);
        return;
    }
    c->show_stats = *argument ? on : !c->show_stats;
    say(c, "statistics %s\n", c->show_stats ? "on" : "off");
}

static void chat_quit(chat *c, const char *argument) {
    (void)argument;
    c->leave = 1;
}

static void chat_help(chat *c, const char *argument);

static const chat_command chat_commands[] = {              /* name, argument, help, function, erases */
    {"/help", "", "this list", chat_help, 0},
    {"/reset", "", "start a new conversation (also /new, /clear)", chat_reset, 1},
    {"/system", "TEXT", "system message of the next conversation (no TEXT: none)", chat_system, 0},
    {"/think", "on|off", "think before answering", chat_think, 0},
    {"/effort", "LEVEL", "how hard to think: none, low, medium, high (no LEVEL: as the template has it)", chat_effort, 0},
    {"/set", "NAME VALUE", "temperature, top-p and the like; alone: all of them", chat_set, 0},
    {"/temp", "T", "temperature; 0 is greedy", chat_temperature, 0},
    {"/seed", "N", "same seed, same text", chat_seed, 0},
    {"/retry", "", "another answer to the last question (also /regen)", chat_retry, 0},
    {"/edit", "", "the last question again, to be changed", chat_edit, 0},
    {"/read", "FILE", "a text or an image for the next message; @FILE in it does the same", chat_read, 0},
    {"/tokens", "TEXT", "what tokens a text consists of", chat_tokens, 0},
    {"/save", "FILE", "save the conversation", chat_save, 0},
    {"/load", "FILE", "go on with a saved one", chat_load, 1},
    {"/undo", "", "take the last turn back", chat_undo, 1},
    {"/context", "N", "tokens used and free; with N: go on in a context of N", chat_show_context, 0},
    {"/stats", "on|off", "speed and speculation after each answer", chat_switch_stats, 0},
    {"/quit", "", "leave (also /exit, /bye, Ctrl-D)", chat_quit, 0},
};
enum { CHAT_COMMAND_COUNT = sizeof chat_commands / sizeof chat_commands[0] };

/* Other names that people type for some of them. */
static const struct { const char *name, *command; } chat_aliases[] = {
    {"/exit", "/quit"}, {"/bye", "/quit"}, {"/clear", "/reset"}, {"/new", "/reset"}, {"/regen", "/retry"}};

static void chat_help(chat *c, const char *argument) {
    (void)argument;
    for (int i = 0; i < CHAT_COMMAND_COUNT; i++)
        say(c, "  %-9s%-11s%s\n", chat_commands[i].name, chat_commands[i].argument, chat_commands[i].help);
    say(c, "  A line that ends with \\ goes on in the next one; lines between \"\"\" and \"\"\" are one message.\n"
           "  Ctrl-C stops an answer. When typing: Alt-Enter begins a line, Ctrl-R searches what was typed, Tab completes.\n");
}

/* Bytes of a line that are a command's name: up to white space, or to a number that follows it at once, as in /context4096. */
static size_t command_length(const char *line) {
    size_t letters = 1 + strspn(line + 1, "abcdefghijklmnopqrstuvwxyz");
    return line[letters] >= '0' && line[letters] <= '9' ? letters : strcspn(line, " \t");
}

static void chat_execute(chat *c, char *line) {
    const char *near = NULL, *name;
    char typed[32];
    size_t length = command_length(line);
    char *argument = line + length + strspn(line + length, " \t"), *end = line + strlen(line);
    while (end > argument && (end[-1] == ' ' || end[-1] == '\t')) *--end = 0;
    snprintf(typed, sizeof typed, "%.*s", (int)(length < sizeof typed ? length : sizeof typed - 1), line);
    name = typed;
    for (size_t i = 0; i < sizeof chat_aliases / sizeof chat_aliases[0]; i++)
        if (strcmp(typed, chat_aliases[i].name) == 0) name = chat_aliases[i].command;
    for (int i = 0; i < CHAT_COMMAND_COUNT; i++) {
        const chat_command *k = &chat_commands[i];
        if (strcmp(name, k->name) == 0) {
            if (*argument && !*k->argument) say(c, "%s stands alone, not with '%s'\n", typed, argument);
            else k->function(c, argument);
            return;
        }
        if (!k->erases) consider(typed, k->name, &near);
    }
    length = strcspn(line, " \t");
    if (near) say(c, "unknown command %.*s; did you mean %s?\n", (int)length, line, near);
    else say(c, "unknown command %.*s; /help lists them\n", (int)length, line);
}
