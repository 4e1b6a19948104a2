// cli/conversation.c: what the command chat talks in: a session, its turns, undo. It is given a whole message, and knows
// nothing of where it comes from (chat_input.c) or of commands (chat_commands.c).
//
// Before each turn a checkpoint is taken: /undo goes back to it, and so does a turn that failed, so that the timeline
// only ever holds whole turns (or an answer the user cut short).

enum { UNDO_MAX = 16 };

typedef struct chat {
    options *o;
    const mote_model *model;
    mote_session *session;
    mote_sampling sampling;
    bytes message, line, system;           // the last one is used when its size is not 0
    bytes attached;                        // texts of /read, for the next message
    bytes typed_last, asked;               // the last question, as it was typed and as it was asked; asked.size 0: none
    int replaces;                          // the next message takes the last turn's place
    mote_result last;                      // of the last answer
    double first;                          // seconds to its first token
    mote_checkpoint *undo[UNDO_MAX];
    size_t undo_tokens[UNDO_MAX];          // of the timeline when each was taken: where a turn began
    int undo_count;
    int told_context;
    int context, speculates, show_stats, leave, failed;
    int holds_zero;                        // a line of the message does
    int typed, styled;                     // standard input, standard output is a terminal
    int edits;                             // lines are typed on a terminal, and edited with
    editor edit;
} chat;

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
        memmove(c->undo_tokens, c->undo_tokens + 1, (UNDO_MAX - 1) * sizeof c->undo_tokens[0]);
        c->undo_count--;
    }
    mote_tokens(c->session, &c->undo_tokens[c->undo_count]);
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

// The answer's last line on a terminal.
static void chat_line(const chat *c) {
    const mote_result *r = &c->last;
    if (!c->styled || !r->generated_tokens) return;
    fputs("\033[2m", stdout);
    say(c, "%d token%s, %.0f tok/s, first after %.1f s", r->generated_tokens, r->generated_tokens == 1 ? "" : "s",
        r->generate_seconds > 0 ? r->generated_tokens / r->generate_seconds : 0, c->first);
    fputs("\033[0m\n\n", stdout);
}

// Says once that the context is nearly full, and what can be done.
static void chat_tell_context(chat *c) {
    size_t used;
    mote_tokens(c->session, &used);
    if (c->told_context || used < (size_t)c->context / 10 * 9) return;
    c->told_context = 1;
    say(c, "[%zu of %d tokens of context are used: /undo takes a turn back, /reset starts anew; --context N makes room]\n", used,
        c->context);
}

// Asks c->asked.
static void chat_ask(chat *c) {
    screen s = {.styled = c->styled};
    mote_generation g = generation_for(c->o, &c->sampling, &s);
    mote_result result;
    mote_speculation before = {0};
    mote_error error = {0, ""}, ignored;
    g.system = c->system.size ? c->system.data : NULL;
    interrupted = 0;
    double began = clock_seconds();
    if (mote_drop_thinking(c->session, NULL, &error) || take_undo(c, &error)) {      // so that /undo can go back to there
        chat_fail(c, &error);
        return;
    }
    mote_speculation_of(c->session, &before, NULL);
    int code = mote_ask(c->session, c->asked.data, &g, &result, &error);
    if (!code || s.last) end_screen(&s);
    if (code) {
        if (code != MOTE_ECANCELLED) chat_fail(c, &error);
        if (rewind_undo(c, &ignored)) chat_fail(c, &ignored);
        return;
    }
    c->last = result;
    c->first = s.first > 0 ? s.first - began : 0;
    if (interrupted) say(c, "[stopped]\n");
    if (result.stop == MOTE_STOP_CONTEXT) say(c, "[context of %d tokens full: /reset starts anew]\n", c->context);
    chat_tell_context(c);
    if (c->show_stats) chat_stats(c, &result, &before);
    else chat_line(c);
}

// A turn with c->message, and with the texts that were read for it or that it names.
static void chat_turn(chat *c) {
    mote_error error = {0, ""};
    int replaces = c->replaces;
    c->replaces = 0;
    c->asked.size = c->typed_last.size = 0;
    if (append(&c->typed_last, c->message.data, c->message.size) ||
        (c->attached.size && append(&c->asked, c->attached.data, c->attached.size)) ||
        attach_named(c->model, c->message.data, remarks(c), &c->asked) ||
        append(&c->asked, c->message.data, c->message.size)) {
        c->asked.size = 0;
        c->failed = 1;
        return;
    }
    c->attached.size = 0;
    if (replaces && c->undo_count && rewind_undo(c, &error)) chat_fail(c, &error);
    else chat_ask(c);
}
