/* serve/models.c: GET /v1/models and /v1/models/NAME, and what they tell of the model. There is one. */

static const char models_path[] = "/v1/models/";

/* The prompt of a question beside which a request has `more`; NULL: the template, if there is one, does not render that. */
static char *rendered(const mote_model *model, const char *more) {
    char request[256];
    size_t n = 0;
    const int size = snprintf(request, sizeof request, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]%s}", more);
    (void)mote_render(model, request, (size_t)size, NULL, 0, &n, NULL);
    char *text = n ? (char *)calloc(1, n + 1) : NULL;
    if (text && mote_render(model, request, (size_t)size, text, n, &n, NULL)) text[0] = 0;
    return text;
}

/* Whether the template writes two requests in different ways. */
static int renders_apart(const mote_model *model, const char *more, const char *other) {
    char *a = rendered(model, more), *b = rendered(model, other);
    const int apart = a && b && strcmp(a, b);
    free(a);
    free(b);
    return apart;
}

/* What the chat template knows, as it shows in what it renders. */
static void find_capabilities(server *s) {
    s->switches_thinking = renders_apart(s->model, ", \"enable_thinking\": true", ", \"enable_thinking\": false");
    s->takes_tools = renders_apart(s->model, "", ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
}

static void put_model(buf *out, const server *s) {
    const char *const no_or_yes[] = {"false", "true"};
    buf_text(out, "{\"id\": ");
    put_text(out, s->name);
    putf(out, ", \"object\": \"model\", \"created\": %ld, \"owned_by\": \"mote\", \"max_model_len\": %d, \"parallel\": %d, ", (long)s->since,
         s->context, s->slot_count);
    putf(out, "\"capabilities\": {\"chat\": %s, \"enable_thinking\": %s, \"reasoning_effort\": %s, \"tools\": %s, \"images\": %s}}",
         no_or_yes[mote_model_info(s->model)->chat_template != NULL], no_or_yes[s->switches_thinking], no_or_yes[s->has_efforts],
         no_or_yes[s->takes_tools], no_or_yes[s->reads_images]);
}

static void serve_models(server *s, connection *c, const json *j) {
    buf out = {NULL, 0, 0, 0};
    (void)j;
    buf_text(&out, "{\"object\": \"list\", \"data\": [");
    put_model(&out, s);
    buf_text(&out, "]}");
    connection_reply(c, 200, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}

static int hex_digit(char c) {
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | (c >= 'A' && c <= 'F' ? 0x20 : 0)) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* 1: the rest of a path, with %xx for what URLs do not hold, is the name. */
static int path_is_name(const char *path, const char *name) {
    for (; *path && *name; path++, name++) {
        int high = *path == '%' ? hex_digit(path[1]) : -1, low = high >= 0 ? hex_digit(path[2]) : -1;
        unsigned char c = low >= 0 ? (unsigned char)(high << 4 | low) : (unsigned char)*path;
        if (c != (unsigned char)*name) return 0;
        if (low >= 0) path += 2;
    }
    return !*path && !*name;
}

/* The names of models hold slashes, as they are or as %2F. */
static void serve_model_named(server *s, connection *c, const json *j) {
    const char *name = c->in.request.path + strlen(models_path);
    buf out = {NULL, 0, 0, 0};
    failure f = {0};
    (void)j;
    if (path_is_name(name, s->name)) {
        put_model(&out, s);
        connection_reply(c, 200, "application/json", out.data, out.failed ? 0 : out.size);
    } else {
        refuse(&f, 404, "model", "there is no model %.400s: the one here is %.100s", name, s->name);
        f.code = "model_not_found";
        reply_failure(c, &f);
    }
    buf_free(&out);
}
