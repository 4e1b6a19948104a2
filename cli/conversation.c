/* cli/conversation.c: what the command chat talks in: a session, its turns, undo. It is given a whole message, and knows
   nothing of where it comes from (chat_input.c) or of commands (chat_commands.c).

   Before each turn a checkpoint is taken: /undo goes back to it, and so does a turn that failed, so that the timeline only ever
   holds whole turns (or an answer the user cut short). Of a turn that was loaded there is only its place: going back to that
   reads what is before it again. */

enum { UNDO_MAX = 16 };

static const size_t UNDO_BYTES = (size_t)2 << 30;          /* most memory of checkpoints, the last one aside */

typedef struct chat {
    options *o;
    const mote_model *model;
    mote_session *session;
    mote_sampling sampling;
    bytes message, line, system;           /* the last one is used when its size is not 0 */
    bytes effort;                          /* of options, when it was changed */
    bytes attached;                        /* texts of /read, for the next message */
    pictures read;                         /* and its images */
    pictures shown;                        /* those of the last question, first */
    int shown_read;                        /* so many of /read, which /edit keeps */
    bytes typed_last, asked;               /* the last question, as it was typed and as it was asked; asked.size 0: none */
    int stands;                            /* the last turn of the timeline is that question's */
    int replaces;                          /* the next message takes the last turn's place */
    bytes held;                            /* a message that was not asked, because a file it names cannot be read */
    mote_result last;                      /* of the last answer */
    double first;                          /* seconds to its first token */
    mote_checkpoint *undo[UNDO_MAX];       /* before the last turns; NULL: only the place is known */
    size_t undo_tokens[UNDO_MAX];          /* of the timeline there */
    size_t undo_bytes[UNDO_MAX];           /* of the checkpoints */
    int undo_count;
    int told_context;
    int context, speculates, show_stats, leave, failed;
    int holds_zero;                        /* a line of the message does */
    int typed, styled;                     /* standard input, standard output is a terminal */
    int edits;                             /* lines are typed on a terminal, and edited with */
    editor edit;
} chat;

/* What helps where the context is full. */
static const char *context_remedies(const chat *c) {
    return c->context < mote_model_info(c->model)->context_max
        ? "/context N goes on in a larger one, /undo takes the last turn back, /reset starts anew"
        : "the model has no larger one, /undo takes the last turn back, /reset starts anew";
}

/* The stream for remarks of the chat itself: never into a pipe that wants answers. */
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

/* Frees the oldest checkpoints if there is too much of them: undo reads again up to their places. */
static void trim_undo(chat *c) {
    size_t held = 0;
    for (int i = c->undo_count - 1; i >= 0; i--) {
        held += c->undo_bytes[i];
        if (held <= UNDO_BYTES || i == c->undo_count - 1) continue;
        mote_checkpoint_free(c->undo[i]);
        c->undo[i] = NULL;
    }
}

/* Remembers that a turn begins after so many tokens; checkpoint: of there, and its bytes, or NULL. */
static void push_undo(chat *c, mote_checkpoint *checkpoint, size_t bytes, size_t tokens) {
    if (c->undo_count == UNDO_MAX) {
        mote_checkpoint_free(c->undo[0]);
        memmove(c->undo, c->undo + 1, (UNDO_MAX - 1) * sizeof c->undo[0]);
        memmove(c->undo_tokens, c->undo_tokens + 1, (UNDO_MAX - 1) * sizeof c->undo_tokens[0]);
        memmove(c->undo_bytes, c->undo_bytes + 1, (UNDO_MAX - 1) * sizeof c->undo_bytes[0]);
        c->undo_count--;
    }
    c->undo_tokens[c->undo_count] = tokens;
    c->undo_bytes[c->undo_count] = bytes;
    c->undo[c->undo_count++] = checkpoint;
    trim_undo(c);
}

static int take_undo(chat *c, mote_error *error) {
    mote_checkpoint *checkpoint = NULL;
    size_t used;
    int code = mote_checkpoint_take(c->session, &checkpoint, error);
    if (code) return code;
    mote_tokens(c->session, &used);
    push_undo(c, checkpoint, mote_checkpoint_bytes(c->session), used);
    return 0;
}

/* Back to the first tokens of the timeline by reading them again. On failure it is as it was. */
static int read_again(chat *c, size_t count, mote_error *error) {
    bytes state = {NULL, 0, 0}, ids = {NULL, 0, 0};
    size_t need = 0, used;
    const int32_t *tokens = mote_timeline(c->session, &used);
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] >= 0) continue;
        snprintf(error->message, sizeof error->message, "there are images before that, which are not at hand any more");
        return error->code = MOTE_EINVAL;
    }
    (void)mote_save(c->session, NULL, 0, &need, NULL);
    int code = grow(&state, need + 1) || append(&ids, (const char *)tokens, count * sizeof *tokens) ? MOTE_ENOMEM : 0;
    if (code) snprintf(error->message, sizeof error->message, "too little memory to go back");
    if (!code) code = mote_save(c->session, state.data, need, &state.size, error);
    if (!code) code = mote_reset(c->session, error);
    if (!code && count && (code = mote_feed(c->session, (const int32_t *)(const void *)ids.data, count, error)))
        (void)mote_load(c->session, state.data, state.size, NULL);
    clear_progress();
    free(state.data);
    free(ids.data);
    return code;
}

/* Back to before the last turn. */
static int rewind_undo(chat *c, mote_error *error) {
    int last = c->undo_count - 1, code = 0;
    if (!c->undo[last] || mote_rewind(c->session, c->undo[last], error)) code = read_again(c, c->undo_tokens[last], error);
    if (code) return code;
    mote_checkpoint_free(c->undo[last]);
    c->undo_count = last;
    c->stands = 0;
    return 0;
}

static void chat_fail(chat *c, const mote_error *error) {
    c->failed = 1;
    if (error->code == MOTE_ECONTEXT) complain(0, "%s: %s", error->message, context_remedies(c));
    else complain(0, "%s", error->message);
}

static void chat_stats(const chat *c, const mote_result *r, const mote_speculation *before, const mote_drafter_use *blocks_before) {
    const mote_speculation speculation = speculation_since(c->session, before);
    const mote_drafter_use blocks = drafter_since(c->session, blocks_before);
    size_t used;
    mote_tokens(c->session, &used);
    say(c, "[read %d tokens, %.1f tok/s; wrote %d, %.1f tok/s; context %zu of %d]\n", r->prompt_tokens,
        r->prompt_seconds > 0 ? r->prompt_tokens / r->prompt_seconds : 0, r->generated_tokens,
        r->generate_seconds > 0 ? r->generated_tokens / r->generate_seconds : 0, used, c->context);
    if (c->speculates && speculation.tokens) print_speculation(remarks(c), &speculation, &blocks, r->generate_seconds);
}

/* The answer's last line on a terminal. */
static void chat_line(const chat *c) {
    const mote_result *r = &c->last;
    if (!c->styled || !r->generated_tokens) return;
    fputs("\033[2m", stdout);
    say(c, "%d token%s, %.0f tok/s, first after %.1f s", r->generated_tokens, r->generated_tokens == 1 ? "" : "s",
        r->generate_seconds > 0 ? r->generated_tokens / r->generate_seconds : 0, c->first);
    fputs("\033[0m\n\n", stdout);
}

/* Says once that the context is nearly full, and what can be done. */
static void chat_tell_context(chat *c) {
    size_t used;
    mote_tokens(c->session, &used);
    if (c->told_context || used < (size_t)c->context / 10 * 9) return;
    c->told_context = 1;
    say(c, "[%zu of %d tokens of context are used: %s]\n", used, c->context, context_remedies(c));
}

/* Asks c->asked. */
static void chat_ask(chat *c) {
    screen s = {.styled = c->styled};
    mote_generation g = generation_for(c->o, &c->sampling, &s);
    mote_result result;
    mote_speculation before = {0};
    mote_drafter_use blocks = {0};
    mote_error error = {0, ""}, ignored;
    g.system = c->system.size ? c->system.data : NULL;
    g.images = c->shown.of;
    g.image_count = c->shown.count;
    c->stands = 0;
    interrupted = 0;
    double began = clock_seconds();
    if (mote_drop_thinking(c->session, NULL, &error) || take_undo(c, &error)) {      /* so that /undo can go back to there */
        chat_fail(c, &error);
        return;
    }
    mote_speculation_of(c->session, &before, NULL);
    mote_drafter_of(c->session, &blocks, NULL);
    int code = mote_ask(c->session, c->asked.data, &g, &result, &error);
    if (code == MOTE_ECANCELLED && result.prompt_tokens) code = 0;     /* in the answer: it stays as far as it came */
    if (!code || s.last) end_screen(&s);
    if (code) {
        name_picture(&c->shown, &error);
        clear_progress();
        if (code != MOTE_ECANCELLED) chat_fail(c, &error);
        else if (c->typed) say(c, "[stopped while the question was read; /retry asks it again]\n");
        if (rewind_undo(c, &ignored)) chat_fail(c, &ignored);
        return;
    }
    c->stands = 1;
    c->last = result;
    c->first = s.first > 0 ? s.first - began : 0;
    if (interrupted) say(c, "[stopped]\n");
    if (result.stop == MOTE_STOP_LENGTH && c->styled) say(c, "[cut after -n %d; /set max-tokens N says otherwise]\n", c->o->max_tokens);
    if (result.stop == MOTE_STOP_CONTEXT) say(c, "[the context of %d tokens is full: %s]\n", c->context, context_remedies(c));
    else chat_tell_context(c);
    if (c->show_stats) chat_stats(c, &result, &before, &blocks);
    else chat_line(c);
}

/* The texts and images that were read for c->message or that it names, and itself. A message of one line that names no file by an @ is not
   asked, unless it is the one that was not asked before. */
static int chat_gather(chat *c, bytes *asked, pictures *named) {
    const char *message = c->message.data;
    const attachments to = {asked, named, c->o->image_tokens};
    int again = c->held.size == c->message.size && memcmp(c->held.data, message, c->held.size) == 0;
    return (c->attached.size && append(asked, c->attached.data, c->attached.size)) ||
           attach_named(c->model, message, remarks(c), again ? ATTACH_READABLE : strchr(message, '\n') ? ATTACH_THERE : ATTACH_ALL,
                        &to) ||
           append(asked, message, c->message.size);
}

/* The message is not asked, but stays at the prompt. */
static void chat_hold(chat *c) {
    c->failed = 1;
    c->held.size = c->edit.start.size = 0;
    if (!c->edits || append(&c->held, c->message.data, c->message.size) || append(&c->edit.start, c->held.data, c->held.size)) return;
    say(c, "not asked; Enter asks it as it is\n");
}

/* A turn with c->message. */
static void chat_turn(chat *c) {
    mote_error error = {0, ""};
    bytes asked = {NULL, 0, 0};
    pictures named = {.count = 0};
    const int kept = c->replaces ? c->shown_read : 0;
    int failed = chat_gather(c, &asked, &named);
    if (!failed && kept + c->read.count + named.count > IMAGES_MAX)
        failed = complain(EXIT_FAILURE, "at most %d images go with a message", IMAGES_MAX);
    if (failed) {
        chat_hold(c);
        free(asked.data);
        free_pictures(&named);
        return;
    }
    int replaces = c->replaces && c->stands;
    c->replaces = 0;
    c->held.size = c->attached.size = c->typed_last.size = 0;
    free(c->asked.data);
    c->asked = asked;
    free_pictures_from(&c->shown, kept);
    move_pictures(&c->shown, &c->read);
    c->shown_read = c->shown.count;
    move_pictures(&c->shown, &named);
    if (append(&c->typed_last, c->message.data, c->message.size)) c->failed = 1;
    else if (replaces && rewind_undo(c, &error)) chat_fail(c, &error);
    else chat_ask(c);
}
