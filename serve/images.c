/* serve/images.c: the images of a request, in whatever words an API gives them: their bytes, in the order of the request, and in the prompt as
   many tokens as each takes. It knows base64, data: addresses and limits; of pictures it knows what the library says of them. */

enum { IMAGE_BYTES_MOST = 64 << 20, IMAGE_LOW_TOKENS = 256 };         /* IMAGE_LOW_TOKENS: of one with the detail "low" */

/* Text that is long and may be base64, of which a request with images mostly consists: it takes little beside itself, unless it turns out to be
   text after all. */
enum { IMAGE_TEXT_LEAST = 1024 };

static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes n characters (RFC 4648; padding may be left out) to `to`, which may be where they begin or before that. 0: they are no base64. */
static int base64_decode(const char *text, size_t n, char *to, size_t *size) {
    uint32_t held = 0;
    if (n % 4 == 0)
        for (int i = 0; i < 2 && n && text[n - 1] == '='; i++) n--;
    *size = 0;
    for (size_t i = 0; i < n; i++) {
        const int digit = base64_digit(text[i]);
        if (digit < 0) return 0;
        held = held << 6 | (uint32_t)digit;
        if (i % 4) to[(*size)++] = (char)(held >> (6 - 2 * (i % 4)));
    }
    return n % 4 != 1;
}

/* Bytes of a list of messages in texts that may be images. */
static size_t image_text_bytes(const json *j, uint32_t list) {
    size_t bytes = 0;
    for (uint32_t k = list + 1; list && k < j->nodes[list].next; k++) {
        const json_node *n = &j->nodes[k];
        if (n->type != JSON_STRING || n->size < IMAGE_TEXT_LEAST) continue;
        const char *at = j->text + n->start, *end = at + n->size, *comma = (const char *)memchr(at, ',', 256);
        if (comma) at = comma + 1;
        while (at < end && (base64_digit(*at) >= 0 || *at == '=' || *at == '\\')) at++;
        if (at == end) bytes += n->size;
    }
    return bytes;
}

/* Is a part of a content an image? */
static int is_image_part(const fields *part) {
    return field_is(part, "type", "image") || field_is(part, "type", "image_url") || field_is(part, "type", "input_image");
}

/* The text in which a part has its image, a data: address or, with *is_bare, base64 alone; *detail: the object that may say how closely to
   look. 0: f says why there is none. */
static uint32_t image_text(const fields *part, const char *name, const char *where, int *is_bare, fields *detail) {
    const fields source = {part->j, field(part, "source"), part->f};
    const uint32_t url = field(part, "image_url");
    const fields inner = {part->j, url, part->f};
    uint32_t text = 0;
    *is_bare = !url;
    *detail = url && node_type(part, url) == JSON_OBJECT ? inner : *part;
    if (source.object && !field_is(&source, "type", "base64"))
        refuse(part->f, 400, where, "%s: its source must be of type base64: this server fetches no addresses and keeps no files", name);
    else if (source.object) text = field(&source, "data");
    else if (url) text = node_type(part, url) == JSON_OBJECT ? field(&inner, "url") : url;
    else if (field(part, "data")) text = field(part, "data");              /* as tools of MCP have it */
    else if (field(part, "file_id"))
        refuse(part->f, 400, where, "%s: this server keeps no files: send data:image/...;base64,... in place of file_id", name);
    if (text && node_type(part, text) == JSON_STRING) return text;
    refuse(part->f, 400, where, "%s: a part of type image without its data: send data:image/...;base64,...", name);
    return 0;
}

/* Where the base64 of a data: address begins. What the address says of the image's type does not matter. NULL: f says why there is none. */
static const char *image_data(const char *text, const char *name, const char *where, failure *f) {
    const char *comma = strchr(text, ',');
    if (strncasecmp(text, "data:", 5))
        refuse(f, 400, where, "%s: this server fetches no addresses and reads no files: send data:image/...;base64,...", name);
    else if (!comma || comma - text < 12 || strncasecmp(comma - 7, ";base64", 7))
        refuse(f, 400, where, "%s: a data: address must be data:image/...;base64,...", name);
    return f->status ? NULL : comma + 1;
}

/* Takes an image of the request, and ends the text part at hand in favour of it. */
static void ask_image(request *x, buf *out, const fields *part, const char *where) {
    failure *f = x->q.f;
    connection *c = x->a->client;
    char name[32];
    fields detail;
    int is_bare;
    size_t size = 0;
    snprintf(name, sizeof name, "image %d", x->image_count + 1);
    if (x->image_count == IMAGES_MOST) refuse(f, 400, where, "%s: at most %d images are taken", name, IMAGES_MOST);
    const uint32_t node = f->status ? 0 : image_text(part, name, where, &is_bare, &detail);
    if (!node) return;
    if (!budget_take(c->budget, x->q.j->nodes[node].size)) {
        refuse(f, 503, NULL, "the requests under way hold all of --request-memory: try again later");
        return;
    }
    c->taken += x->q.j->nodes[node].size;
    const size_t n = json_string(x->q.j, node, NULL, 0);
    char *text = node_text(x->q.j, node);
    const char *data = !text ? NULL : is_bare ? text : image_data(text, name, where, f);
    if (!text) refuse(f, 503, NULL, "out of memory");
    else if (data && !base64_decode(data, n - (size_t)(data - text), text, &size)) refuse(f, 400, where, "%s: its data is no base64, in one line", name);
    else if (data && (x->image_bytes += size) > IMAGE_BYTES_MOST) refuse(f, 413, where, "%s: the images have more than 64 MiB", name);
    if (f->status) {
        free(text);
        return;
    }
    x->image_text += x->q.j->nodes[node].size;
    x->images[x->image_count].data = text;
    x->images[x->image_count].size = size;
    const int most = x->a->server->image_tokens, is_low = field_is(&detail, "detail", "low") && (!most || most > IMAGE_LOW_TOKENS);
    x->images[x->image_count].tokens = is_low ? IMAGE_LOW_TOKENS : most;
    putf(out, "\"}, {\"type\": \"image\", \"image\": %d}, {\"type\": \"text\", \"text\": \"", x->image_count++);
}

/* Brings the images into the order of their places in the prompt, which may have the results of tools in another order. */
static void order_images(request *x, const buf *text) {
    mote_image ordered[IMAGES_MOST];
    int order[IMAGES_MOST];
    size_t count = 0;
    mote_error error = {0, ""};
    if (mote_render_images(x->a->server->model, text->data, text->size, order, IMAGES_MOST, &count, &error)) {
        refuse_error(x->q.f, &error);
        return;
    }
    if (count != (size_t)x->image_count) refuse(x->q.f, 400, NULL, "the chat template has places for %zu of %d images", count, x->image_count);
    for (size_t i = 0; i < count && !x->q.f->status; i++) ordered[i] = x->images[order[i]];
    if (x->q.f->status) return;
    memcpy(x->images, ordered, count * sizeof *ordered);
}

/* Gives each image as many tokens of the prompt as it takes, by their headers. Pixels are decoded when the prompt is known to fit. */
static void place_images(request *x, const buf *text) {
    answer *a = x->a;
    size_t most = 0, pixels = 0, n = 0;
    int tokens[IMAGES_MOST], width, height, next = 0;
    if (x->image_count && !x->q.f->status) order_images(x, text);
    for (int i = 0; i < x->image_count && !x->q.f->status; i++) {
        mote_error error = {0, ""};
        const int code = mote_image_size(a->server->model, &x->images[i], &width, &height, &tokens[i], &error);
        if (code) refuse(x->q.f, code == MOTE_ENOMEM ? 503 : 400, NULL, "image %d: %s", i + 1, error.message);
        else most += (size_t)tokens[i];
        if (!code && (size_t)width * (size_t)height > pixels) pixels = (size_t)width * (size_t)height;
    }
    if (!x->image_count || x->q.f->status) return;
    int32_t *ids = (int32_t *)malloc((a->prompt_count + most) * sizeof *ids);
    if (!ids) {
        refuse(x->q.f, 503, NULL, "out of memory");
        return;
    }
    for (size_t i = 0; i < a->prompt_count; i++) {
        const int32_t id = a->prompt[i];
        const int times = id == a->server->image_pad && next < x->image_count ? tokens[next++] : 1;
        for (int k = 0; k < times; k++) ids[n++] = id;
    }
    free(a->prompt);
    a->prompt = ids;
    a->prompt_count = n;
    a->images = x->images;
    a->image_count = x->image_count;
    a->image_pixels = pixels;
    a->image_tokens = most;
}
