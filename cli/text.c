/* cli/text.c: tokenize, detokenize and render: standard input to standard output, with a model's text part alone (no
   weights, no session). tokenize() also serves run.

   The library's buffer calls say how much they need. Each is tried with a likely size first and once more if that was
   too small. */

static int tokenize(const mote_model *model, const char *text, size_t size, bytes *ids, size_t *count) {
    mote_error error = {0, ""};
    for (size_t need = size + 16;; need = *count) {
        if (grow(ids, need * sizeof(int32_t))) return EXIT_FAILURE;
        *count = 0;
        if (!mote_tokenize(model, text, size, 1, (int32_t *)(void *)ids->data, need, count, &error)) return 0;
        if (error.code != MOTE_EINVAL || *count <= need) return report(&error);
    }
}

static int detokenize(const mote_model *model, const int32_t *ids, size_t count, bytes *text) {
    mote_error error = {0, ""};
    for (size_t need = 8 * count + 64;; need = text->size) {
        if (grow(text, need)) return EXIT_FAILURE;
        text->size = 0;
        if (!mote_detokenize(model, ids, count, text->data, need, &text->size, &error)) return 0;
        if (error.code != MOTE_EINVAL || text->size <= need) return report(&error);
    }
}

static int tokenize_all(const options *o, const mote_model *model, bytes *input) {
    bytes ids = {NULL, 0, 0};
    int code = 0;
    for (size_t at = 0, size, count; at < input->size && !code; at += size + 1) {
        size = o->nul_separated ? strlen(input->data + at) : input->size;
        code = tokenize(model, input->data + at, size, &ids, &count);
        for (size_t i = 0; i < count && !code; i++)
            printf("%s%" PRId32, i ? " " : "", ((int32_t *)(void *)ids.data)[i]);
        if (!code) putchar('\n');
    }
    free(ids.data);
    return code;
}

/* One line of ids, which ends where `end` points, to ids. */
static int parse_ids(char *line, char *end, size_t number, bytes *ids) {
    *end = 0;
    ids->size = 0;
    if (line + strlen(line) < end) return complain(EXIT_FAILURE, "line %zu: holds a zero byte", number);
    for (char *word = strtok(line, " \t\r"); word; word = strtok(NULL, " \t\r")) {
        int32_t id;
        if (!parse_whole(word, 0, INT32_MAX, &id))
            return complain(EXIT_FAILURE, "line %zu: '%s' is not a token id", number, word);
        if (append(ids, (const char *)&id, sizeof id)) return EXIT_FAILURE;
    }
    return 0;
}

static int detokenize_all(const options *o, const mote_model *model, bytes *input) {
    bytes ids = {NULL, 0, 0}, text = {NULL, 0, 0};
    char *line = input->data, *end = input->data + input->size;
    int code = 0;
    (void)o;
    for (size_t number = 1; line < end && !code; number++) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        code = parse_ids(line, stop, number, &ids);
        if (!code) code = detokenize(model, (int32_t *)(void *)ids.data, ids.size / sizeof(int32_t), &text);
        if (!code) code = append(&text, "", 1);
        if (!code) show(stdout, text.data, text.size);
        line = stop + 1;
    }
    free(ids.data);
    free(text.data);
    return code;
}

static int render(const options *o, const mote_model *model, bytes *request) {
    bytes text = {NULL, 0, 0};
    mote_error error = {0, ""};
    (void)o;
    for (size_t need = 2 * request->size + 4096;; need = text.size) {
        if (grow(&text, need)) break;
        text.size = 0;
        if (!mote_render(model, request->data, request->size, text.data, need, &text.size, &error)) {
            show(stdout, text.data, text.size);
            free(text.data);
            return 0;
        }
        if (error.code != MOTE_EINVAL || text.size <= need) {
            report(&error);
            break;
        }
    }
    free(text.data);
    return EXIT_FAILURE;
}

static int with_input(options *o, int (*function)(const options *, const mote_model *, bytes *)) {
    bytes input = {NULL, 0, 0};
    mote_model *model = NULL;
    int code = open_model(o, MOTE_TEXT_ONLY, &model);
    if (!code) code = read_text(stdin, "standard input", &input);
    if (!code) code = function(o, model, &input);
    free(input.data);
    mote_close(model);
    return code;
}

static int command_tokenize(options *o) { return with_input(o, tokenize_all); }
static int command_detokenize(options *o) { return with_input(o, detokenize_all); }
static int command_render(options *o) { return with_input(o, render); }
