/* text/calls.c: the API's calls on text, of an open model. */

/* The rule of the calls that write up to `capacity` elements: always the count, the data only when it fits. */
static int copy_out(const void *data, size_t count, size_t size, void *to, size_t capacity, size_t *needed,
                mote_error *err) {
    *needed = count;
    if (count > capacity) return fail(err, MOTE_EINVAL, "%zu elements do not fit into the %zu given", count, capacity);
    if (count) memcpy(to, data, count * size);
    return MOTE_OK;
}

/* Checks the arguments of such a call: n elements at in, space for `capacity` elements at out. *count is 0 until there is a
   result. */
static int check_buffers(const char *call, const char *what, const mote_model *m, const void *in, size_t n,
                         const void *out, size_t capacity, size_t *count, mote_error *err) {
    if (count) *count = 0;
    if (m && count && (in || !n) && (out || !capacity)) return MOTE_OK;
    return fail(err, MOTE_EINVAL, "%s: needs a model, %s, space for the result and a place for the count", call, what);
}

static int need_text(const mote_model *m, mote_error *err) {
    return m->text ? MOTE_OK
                   : fail(err, MOTE_EUNSUPPORTED,
                          "the model has no tokenizer: no tokenizer.json, or opened for weights only");
}

static int need_chat(const mote_model *m, mote_error *err) {
    if (m->family != CHAT_UNKNOWN) return MOTE_OK;
    return fail(err, MOTE_EUNSUPPORTED, "%s (known: %s); raw prompts work",
                m->has_template ? "the checkpoint's chat template is not one mote knows"
                                : "the checkpoint has no chat template",
                chat_known());
}

int mote_tokenize(const mote_model *model, const char *text, size_t size, int special, int32_t *ids, size_t capacity,
                  size_t *count, mote_error *error) {
    buf out;
    text_range all = {0, size};
    memset(&out, 0, sizeof out);
    int code = check_buffers("mote_tokenize", "a text", model, text, size, ids, capacity, count, error);
    if (!code) code = need_text(model, error);
    if (!code) code = tokenizer_encode(model->text, text, size, &all, special ? 0 : 1, &out, error);
    if (!code) code = copy_out(out.data, out.size / sizeof *ids, sizeof *ids, ids, capacity, count, error);
    buf_free(&out);
    return code;
}

/* Appends the text of ids, that of control tokens included. */
static int detokenize(const mote_model *m, const int32_t *ids, size_t count, buf *out, mote_error *err) {
    utf8_stream stream;
    memset(&stream, 0, sizeof stream);
    for (size_t i = 0; i < count; i++) {
        size_t n;
        const char *bytes = tokenizer_token(m->text, ids[i], &n);
        if (!bytes) return fail(err, MOTE_EINVAL, "token %zu: id %d is not in the vocabulary", i, ids[i]);
        utf8_stream_push(&stream, bytes, n, out);
    }
    utf8_stream_end(&stream, out);
    return out->failed ? fail_memory(err) : MOTE_OK;
}

int mote_detokenize(const mote_model *model, const int32_t *ids, size_t id_count, char *text, size_t capacity,
                    size_t *count, mote_error *error) {
    buf out;
    memset(&out, 0, sizeof out);
    int code = check_buffers("mote_detokenize", "token ids", model, ids, id_count, text, capacity, count, error);
    if (!code) code = need_text(model, error);
    if (!code) code = detokenize(model, ids, id_count, &out, error);
    size_t begin = !code && model->text->strip_space && out.size && *out.data == ' ';
    if (!code) code = copy_out(begin ? out.data + 1 : out.data, out.size - begin, 1, text, capacity, count, error);
    buf_free(&out);
    return code;
}

/* What a chat begins with before its template's family writes anything. */
static void put_chat_begin(const mote_model *m, marked_text *out) {
    size_t n = 0;
    const char *bytes = m->family & CHAT_BOS && m->text ? tokenizer_token(m->text, m->chat_begin, &n) : NULL;
    if (bytes) buf_add(&out->text, bytes, n);
}

int mote_render(const mote_model *model, const char *request, size_t size, char *text, size_t capacity, size_t *count,
                mote_error *error) {
    marked_text out;
    memset(&out, 0, sizeof out);
    int code = check_buffers("mote_render", "a request", model, request, 1, text, capacity, count, error);
    if (!code) code = need_chat(model, error);
    if (!code) put_chat_begin(model, &out);
    if (!code) code = chat_render(model->family, request, size, &out, error);
    if (!code) code = copy_out(out.text.data, out.text.size, 1, text, capacity, count, error);
    marked_free(&out);
    return code;
}

int mote_render_changes(const mote_model *model, const char *request, size_t size, char *text, size_t capacity, size_t *count,
                        mote_error *error) {
    static const struct { int changed; const char *word; } words[] = {
        {CHANGED_TOOLS, "tools"}, {CHANGED_JOINED, "joined"}, {CHANGED_CALLS, "calls"}, {CHANGED_RESULTS, "results"},
        {CHANGED_SYSTEM, "system"}, {CHANGED_QUESTION, "question"},
        {CHANGED_TURNS, "turns"}};
    marked_text out;
    buf told;
    chat_places at;
    memset(&out, 0, sizeof out);
    memset(&told, 0, sizeof told);
    int code = check_buffers("mote_render_changes", "a request", model, request, 1, text, capacity, count, error);
    if (!code) code = need_chat(model, error);
    if (!code) code = chat_render_at(model->family, request, size, CHAT_WHOLE, &out, &at, error);
    for (size_t i = 0; !code && i < sizeof words / sizeof *words; i++) {
        if (!(at.changed & words[i].changed)) continue;
        if (told.size) buf_text(&told, ", ");
        buf_text(&told, words[i].word);
    }
    if (!code && told.failed) code = fail_memory(error);
    if (!code) code = copy_out(told.data, told.size, 1, text, capacity, count, error);
    marked_free(&out);
    buf_free(&told);
    return code;
}

/* Ids of a text in which what is from outside stays plain. */
static int encode_marked(const tokenizer *t, const marked_text *m, buf *ids, mote_error *err) {
    size_t count;
    const text_range *outside = outside_of(m, &count);
    return tokenizer_encode(t, m->text.data, m->text.size, outside, count, ids, err);
}

int mote_render_tokens(const mote_model *model, const char *request, size_t size, int32_t *ids, size_t capacity,
                       size_t *count, mote_error *error) {
    marked_text text;
    buf out;
    memset(&text, 0, sizeof text);
    memset(&out, 0, sizeof out);
    int code = check_buffers("mote_render_tokens", "a request", model, request, 1, ids, capacity, count, error);
    if (!code) code = need_text(model, error);
    if (!code) code = need_chat(model, error);
    if (!code) put_chat_begin(model, &text);
    if (!code) code = chat_render(model->family, request, size, &text, error);
    if (!code) code = encode_marked(model->text, &text, &out, error);
    if (!code) code = copy_out(out.data, out.size / sizeof *ids, sizeof *ids, ids, capacity, count, error);
    marked_free(&text);
    buf_free(&out);
    return code;
}

int mote_render_images(const mote_model *model, const char *request, size_t size, int *numbers, size_t capacity, size_t *count,
                       mote_error *error) {
    marked_text text;
    buf out;
    chat_places at;
    memset(&text, 0, sizeof text);
    memset(&out, 0, sizeof out);
    int code = check_buffers("mote_render_images", "a request", model, request, 1, numbers, capacity, count, error);
    if (!code) code = need_chat(model, error);
    if (!code) code = chat_render_images(model->family, request, size, CHAT_WHOLE, &text, &at, &out, error);
    if (!code && out.failed) code = fail_memory(error);
    if (!code) code = copy_out(out.data, out.size / sizeof *numbers, sizeof *numbers, numbers, capacity, count, error);
    marked_free(&text);
    buf_free(&out);
    return code;
}

const char *mote_token_bytes(const mote_model *model, int32_t id, size_t *size) {
    return model && size && model->text ? tokenizer_token(model->text, id, size) : NULL;
}

int mote_is_end(const mote_model *model, int32_t id) {
    return model && is_eos(model, id);
}

void mote_sampling_defaults(const mote_model *model, mote_sampling *sampling) {
    if (!sampling) return;
    memset(sampling, 0, sizeof *sampling);
    if (model) *sampling = model->sampling;
    if (getrandom(&sampling->seed, sizeof sampling->seed, 0) != (ssize_t)sizeof sampling->seed)
        sampling->seed = (uint64_t)(seconds() * 1e9);
    sampling->seed >>= 32;                     /* short enough for a person to type again */
}
