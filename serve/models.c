/* serve/models.c: GET /v1/models and /v1/models/NAME. There is one model. */

static const char models_path[] = "/v1/models/";

static void put_model(buf *out, const server *s) {
    buf_text(out, "{\"id\": ");
    put_text(out, s->name);
    putf(out, ", \"object\": \"model\", \"created\": %ld, \"owned_by\": \"mote\", \"max_model_len\": %d}", (long)s->since, s->context);
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
