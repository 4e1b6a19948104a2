// cli/run.c: the command run: one prompt, one answer. The prompt is a chat message, raw text or token ids, from the
// command line, a pipe or a file.

static int run_usage(const options *o) {
    if (o->tokens && o->prompt) return complain(EXIT_USAGE, "run: --tokens and -p exclude each other");
    if (o->greedy && o->temperature > 0) return complain(EXIT_USAGE, "run: --greedy and --temp exclude each other");
    if ((o->tokens || o->raw) && (o->system || o->think))
        return complain(EXIT_USAGE, "run: --system and --think belong to a chat: not with --tokens or --raw");
    if (!o->tokens && !o->prompt && isatty(STDIN_FILENO))
        return complain(EXIT_USAGE, "run: no prompt: give -p TEXT, or pipe it in");
    return 0;
}

// The prompt from -p or from the pipe; there, the line feed that ends a chat message is not part of it.
static int read_prompt(const options *o, bytes *prompt) {
    if (o->prompt) return append(prompt, o->prompt, strlen(o->prompt));
    int code = read_text(stdin, "standard input", prompt);
    if (!code && !o->raw && prompt->size && prompt->data[prompt->size - 1] == '\n') prompt->data[--prompt->size] = 0;
    if (!code && prompt->size == 0) code = complain(EXIT_FAILURE, "standard input: the prompt is empty");
    if (!code && !o->raw && strlen(prompt->data) != prompt->size)
        code = complain(EXIT_FAILURE, "standard input: the prompt holds a zero byte");
    return code;
}

// Brings the prompt into the timeline and generates: from ids, from raw text, or as a chat message.
static int answer_prompt(const mote_model *model, mote_session *session, const options *o, const bytes *prompt,
                  const mote_generation *g, mote_result *result) {
    bytes ids = {NULL, 0, 0};
    const int32_t *feed = (const int32_t *)(const void *)prompt->data;
    size_t count = prompt->size / sizeof *feed;
    mote_error error = {0, ""};
    int code = 0;
    if (!o->tokens && !o->raw) return mote_ask(session, prompt->data, g, result, &error) ? report(&error) : 0;
    if (o->raw) {
        code = tokenize(model, prompt->data, prompt->size, &ids, &count);
        feed = (const int32_t *)(const void *)ids.data;
    }
    if (!code && mote_feed(session, feed, count, &error)) code = report(&error);
    if (!code && mote_generate(session, g, result, &error)) code = report(&error);
    free(ids.data);
    return code;
}

static int run_prompt(const mote_model *model, const options *o, const bytes *prompt) {
    mote_session *session = NULL;
    mote_sampling sampling = sampling_for(model, o);
    const int ids = o->ids || o->tokens, styled = !ids && isatty(STDOUT_FILENO);
    screen s = {.styled = styled, .ids = ids, .counts = !styled && !ids};
    mote_generation g = generation_for(o, &sampling, &s);
    g.keep_thinking = 1;                   // one turn: nothing is ever to be gone back to
    mote_result result;
    memset(&result, 0, sizeof result);
    if (sampling.temperature > 0 && !o->seed.given && o->verbose) fprintf(stderr, "mote: seed %" PRIu64 "\n", sampling.seed);
    int code = open_session(model, o, &session);
    if (!code) code = answer_prompt(model, session, o, prompt, &g, &result);
    if (!code) {
        end_screen(&s);
        if (interrupted) code = EXIT_INTERRUPTED;
        else if (result.stop == MOTE_STOP_CONTEXT) on_log(NULL, "the context is full; --context N makes it larger");
        else if (result.stop == MOTE_STOP_LENGTH && !s.answer_bytes && !s.ids)
            on_log(NULL, "still thinking after -n tokens: give more, or --think off");
    }
    mote_session_close(session);
    return code;
}

static int command_run(options *o) {
    bytes prompt = {NULL, 0, 0};
    mote_model *model = NULL;
    size_t count;
    int code = run_usage(o);
    if (!code && !o->tokens) code = read_prompt(o, &prompt);
    catch_interrupt(1);
    if (!code) code = find_model(o, MOTE_EVERYTHING);
    if (!code) plan_context(o);
    if (!code) code = open_model(o, o->tokens ? MOTE_WEIGHTS_ONLY : MOTE_EVERYTHING, &model);
    if (!code && o->tokens) code = read_tokens(o->tokens, mote_model_info(model), o->context, &prompt, &count);
    if (!code) code = run_prompt(model, o, &prompt);
    free(prompt.data);
    mote_close(model);
    return code;
}
