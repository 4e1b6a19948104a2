/* cli/trace.c: the command trace: what happens inside of a model while it reads a text, as text and as a page. */

static int trace_usage(const options *o) {
    if (o->tokens && o->prompt) return complain(EXIT_USAGE, "trace: --tokens and TEXT exclude each other");
    if (o->tokens && o->raw) return complain(EXIT_USAGE, "trace: --raw belongs to a text: not with --tokens");
    if (o->layer >= 0 && o->layers.count) return complain(EXIT_USAGE, "trace: --layer and --layers exclude each other");
    if (!o->tokens && (!o->prompt || !*o->prompt)) return complain(EXIT_USAGE, "trace: no text: mote trace \"What is FP8?\"");
    return 0;
}

static int has_tokenizer(const mote_model *model) {
    size_t count;
    return !mote_tokenize(model, NULL, 0, 1, NULL, 0, &count, NULL);
}

/* The text as a user's turn, as mote run asks it. */
static int trace_turn(const mote_model *model, const char *text, bytes *ids, size_t *count) {
    buf request = {NULL, 0, 0, 0};
    mote_error error = {0, ""};
    int code = 0;
    buf_text(&request, "{\"messages\":[{\"role\":\"user\",\"content\":");
    put_text(&request, text);
    buf_text(&request, "}]}");
    if (request.failed) code = complain(EXIT_FAILURE, "out of memory for the text");
    for (size_t need = request.size + 64; !code; need = *count) {
        if (grow(ids, need * sizeof(int32_t))) code = EXIT_FAILURE;
        *count = 0;
        if (code || !mote_render_tokens(model, request.data, request.size, (int32_t *)(void *)ids->data, need, count, &error)) break;
        if (!mote_model_info(model)->chat_template && has_tokenizer(model))
            code = complain(EXIT_FAILURE, "%s; --raw takes the text as it is", error.message);
        else if (error.code != MOTE_EINVAL || *count <= need) code = report(&error);
    }
    buf_free(&request);
    return code;
}

/* The text as it is, after the token that begins texts. */
static int trace_raw(const mote_model *model, const char *text, bytes *ids, size_t *count) {
    const int32_t begin = mote_model_info(model)->begin_token;
    int code = tokenize(model, text, strlen(text), ids, count);
    if (code || begin < 0 || (*count && *(const int32_t *)(const void *)ids->data == begin)) return code;
    if (grow(ids, (*count + 1) * sizeof begin)) return EXIT_FAILURE;
    memmove(ids->data + sizeof begin, ids->data, *count * sizeof begin);
    memcpy(ids->data, &begin, sizeof begin);
    ++*count;
    return 0;
}

static int trace_tokens(const options *o, trace *t, bytes *ids) {
    size_t count = 0;
    int code = o->tokens ? read_tokens(o->tokens, t->info, 0, ids, &count)
               : o->raw  ? trace_raw(t->model, o->prompt, ids, &count)
                         : trace_turn(t->model, o->prompt, ids, &count);
    if (code) return code;
    t->chat = !o->tokens && !o->raw;
    if (count > TRACE_TOKENS) {
        char line[80];
        snprintf(line, sizeof line, "the first %d of %zu tokens are traced", TRACE_TOKENS, count);
        on_log(NULL, line);
        count = TRACE_TOKENS;
    }
    t->ids = (const int32_t *)(const void *)ids->data;
    t->count = (int)count;
    return 0;
}

static int trace_show(const options *o, trace *t, output *page) {
    const int last = t->info->layers + t->info->mtp_layers - 1;
    if (o->layer > last) return complain(EXIT_USAGE, "trace: --layer %d: the model has layers 0 to %d", o->layer, last);
    for (int i = 0; i < o->layers.count; i++)
        if (o->layers.last[i] > last) return complain(EXIT_USAGE, "trace: --layers %d: the model has layers 0 to %d", o->layers.last[i], last);
    int code = trace_run(t);
    if (!code && page->file) code = close_outputs(page, 1, trace_write(t, page));
    if (!code) trace_print(t, o->layer, &o->layers);
    return code;
}

static int command_trace(options *o) {
    bytes ids = {NULL, 0, 0};
    mote_model *model = NULL;
    trace t;
    output page;
    memset(&t, 0, sizeof t);
    memset(&page, 0, sizeof page);
    catch_interrupt(1);
    int code = trace_usage(o);
    if (!code && o->html) code = open_output(&page, o->html);
    o->device = "cpu";                     /* definitions read the weights there */
    if (!code) code = open_model(o, o->tokens ? MOTE_WEIGHTS_ONLY : MOTE_EVERYTHING, &model);
    if (!code) {
        t.model = model;
        t.info = mote_model_info(model);
        t.name = o->model;
        code = trace_tokens(o, &t, &ids);
        if (!code) code = trace_show(o, &t, &page);
        trace_free(&t);
    }
    code = close_outputs(&page, 1, code);
    free(ids.data);
    mote_close(model);
    return code;
}
