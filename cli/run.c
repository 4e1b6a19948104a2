/* cli/run.c: the command run: one prompt, one answer. The prompt is a chat message, raw text or token ids, from the
   command line, a pipe or a file. */

static int run_usage(const options *o) {
    if (o->tokens && o->prompt) return complain(EXIT_USAGE, "run: --tokens and -p exclude each other");
    if (o->greedy && o->temperature > 0) return complain(EXIT_USAGE, "run: --greedy and --temp exclude each other");
    if ((o->tokens || o->raw) && (o->system || o->think || o->effort))
        return complain(EXIT_USAGE, "run: --system, --think and --effort belong to a chat: not with --tokens or --raw");
    if (!o->tokens && !o->prompt && isatty(STDIN_FILENO))
        return complain(EXIT_USAGE, "run: no prompt: give -p TEXT, or pipe it in");
    return check_effort("run", o);
}

/* 1: there is text on standard input beside the words of the command line. A terminal is not asked, nor what cannot be read, as
   nohup leaves it. A pipe may have been inherited, from ssh or a service, with nobody ever to write to it or to close it: it
   has WAIT_SECONDS. */
static int input_beside_words(void) {
    if (isatty(STDIN_FILENO) || (fcntl(STDIN_FILENO, F_GETFL) & O_ACCMODE) == O_WRONLY) return 0;
    int ready = input_comes(STDIN_FILENO);
    if (ready == 0) on_log(NULL, "nothing came on standard input: the prompt is asked without it (</dev/null does not wait)");
    return ready > 0;
}

/* The text that is piped in. The line feed that ends a chat message is not part of it. */
static int read_piped(const options *o, bytes *text) {
    int code = read_text(stdin, "standard input", text);
    if (!code && !o->raw && text->size && text->data[text->size - 1] == '\n') text->data[--text->size] = 0;
    if (!code && !o->raw && strlen(text->data) != text->size)
        code = complain(EXIT_FAILURE, "standard input: the prompt holds a zero byte");
    return code;
}

/* The prompt: the words of the command line, what is piped in or, with a blank line between them, both. */
static int read_prompt(const options *o, bytes *prompt) {
    bytes piped = {NULL, 0, 0};
    int code = o->prompt ? append(prompt, o->prompt, strlen(o->prompt)) : 0;
    if (!code && (!o->prompt || input_beside_words())) code = read_piped(o, &piped);
    if (!code && !prompt->size && !piped.size) code = complain(EXIT_FAILURE, "the prompt is empty");
    if (!code && prompt->size && piped.size) code = append(prompt, "\n\n", 2);
    if (!code && piped.size) code = append(prompt, piped.data, piped.size);
    free(piped.data);
    return code;
}

/* What helps where the context is too short. */
static const char *longer_context(const mote_model *model, const mote_session *session) {
    return mote_context(session) < mote_model_info(model)->context_max ? "--context N makes it larger" : "the model has no larger one";
}

/* A prompt that the library refuses. */
static int report_prompt(const mote_model *model, const mote_session *session, const mote_error *error) {
    if (error->code != MOTE_ECONTEXT) return report(error);
    return complain(EXIT_FAILURE, "%s; %s", error->message, longer_context(model, session));
}

/* Brings the prompt into the timeline and generates: from ids, from raw text, or as a chat message. */
static int answer_prompt(const mote_model *model, mote_session *session, const options *o, const bytes *prompt, const pictures *images,
                         const mote_generation *g, mote_result *result) {
    bytes ids = {NULL, 0, 0};
    size_t count = 0;
    mote_images *opened = NULL;
    mote_error error = {0, ""};
    int code = 0;
    if (!o->tokens && !o->raw) {
        if (!mote_ask(session, prompt->data, g, result, &error)) return 0;
        name_picture(images, &error);
        return report_prompt(model, session, &error);
    }
    if (o->raw) {
        code = tokenize(model, prompt->data, prompt->size, &ids, &count);
        const int32_t *feed = (const int32_t *)(const void *)ids.data;
        const int32_t begin = mote_model_info(model)->begin_token;
        if (!code && begin >= 0 && !(count && *feed == begin) && mote_feed(session, &begin, 1, &error))
            code = report_prompt(model, session, &error);
    } else {
        code = append(&ids, prompt->data, prompt->size);
        count = prompt->size / sizeof(int32_t);
    }
    if (!code && place_pictures(model, images, &ids, &count, &opened, &error)) code = report(&error);
    const int32_t *feed = (const int32_t *)(const void *)ids.data;
    if (!code && (opened ? mote_feed_images(session, feed, count, opened, NULL, NULL, &error) : mote_feed(session, feed, count, &error)))
        code = report_prompt(model, session, &error);
    mote_images_close(opened);
    if (!code && mote_generate(session, g, result, &error)) code = report(&error);
    free(ids.data);
    return code;
}

/* How many rows of tables that stay in files came from where. */
static void log_tables(const mote_model *model) {
    mote_tables_seen seen;
    if (mote_model_tables(model, &seen, NULL) || !(seen.cached + seen.read)) return;
    fprintf(stderr, "mote: rows of n-grams: %" PRIu64 " from memory, %" PRIu64 " from files of %.1f GB\n", seen.cached, seen.read, (double)seen.bytes * 1e-9);
}

static int run_prompt(const mote_model *model, const options *o, const bytes *prompt, const pictures *images) {
    mote_session *session = NULL;
    mote_sampling sampling = sampling_for(model, o);
    const int ids = o->ids || o->tokens, styled = !ids && isatty(STDOUT_FILENO);
    screen s = {.styled = styled, .ids = ids, .counts = !styled && !ids};
    mote_generation g = generation_for(o, &sampling, &s);
    g.keep_thinking = 1;                   /* one turn: nothing is ever to be gone back to */
    g.images = images->of;
    g.image_count = o->tokens || o->raw ? 0 : images->count;
    mote_result result;
    memset(&result, 0, sizeof result);
    if (sampling.temperature > 0 && !o->seed.given && o->verbose) fprintf(stderr, "mote: seed %" PRIu64 "\n", sampling.seed);
    int code = open_session(model, o, &session);
    if (!code) code = answer_prompt(model, session, o, prompt, images, &g, &result);
    if (!code || s.tokens) end_screen(&s);
    if (!code) {
        if (interrupted) code = EXIT_INTERRUPTED;
        else if (result.stop == MOTE_STOP_CONTEXT) complain(0, "note: the context is full; %s", longer_context(model, session));
        else if (result.stop == MOTE_STOP_LENGTH && !s.answer_bytes && !s.ids)
            on_log(NULL, "still thinking after -n tokens: give more, or --think off");
        else if (result.stop == MOTE_STOP_LENGTH && isatty(STDERR_FILENO))
            on_log(NULL, "-n has cut the answer: a larger one gives more");
        log_experts(mote_model_info(model), o, session);
    }
    if (!code && o->verbose) log_tables(model);
    mote_session_close(session);
    return code;
}

static int command_run(options *o) {
    bytes prompt = {NULL, 0, 0};
    mote_model *model = NULL;
    pictures images = {.count = 0};
    size_t count;
    int code = run_usage(o);
    if (!code && !o->tokens) code = read_prompt(o, &prompt);
    catch_interrupt(1);
    if (!code) code = find_model(o, MOTE_EVERYTHING);
    if (!code) plan_context(o);
    if (!code) code = open_model(o, o->tokens ? MOTE_WEIGHTS_ONLY : MOTE_EVERYTHING, &model);
    if (!code && o->tokens) code = read_tokens(o->tokens, mote_model_info(model), o->context, &prompt, &count);
    if (!code) code = read_pictures(model, o, &images);
    if (!code) code = run_prompt(model, o, &prompt, &images);
    free(prompt.data);
    free_pictures(&images);
    mote_close(model);
    return code;
}
