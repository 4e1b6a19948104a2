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

/* Decodes n characters (RFC 4648; padding may be left out, lines may be broken) to `to`, which may be where they begin or before that. 0: they are
   no base64. */
static int base64_decode(const char *text, size_t n, char *to, size_t *size) {
    uint32_t held = 0;
    size_t digits = 0, padding = 0;
    *size = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' || text[i] == '\n') continue;
        const int digit = base64_digit(text[i]);
        padding += text[i] == '=';
        if (text[i] == '=') continue;
        if (digit < 0 || padding) return 0;
        held = held << 6 | (uint32_t)digit;
        if (digits % 4) to[(*size)++] = (char)(held >> (6 - 2 * (digits % 4)));
        digits++;
    }
    return digits % 4 != 1 && (!padding || (padding <= 2 && (digits + padding) % 4 == 0));
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
   look. place: of the part. 0: f says why there is none. */
static uint32_t image_text(const fields *part, const char *place, int *is_bare, fields *detail) {
    const fields source = {part->j, field(part, "source"), part->f};
    const uint32_t url = field(part, "image_url");
    const fields inner = {part->j, url, part->f};
    uint32_t text = 0;
    *is_bare = !url;
    *detail = url && node_type(part, url) == JSON_OBJECT ? inner : *part;
    if (source.object && !field_is(&source, "type", "base64"))
        refuse(part->f, 400, place, "%s: its source must be of type base64: this server fetches no addresses and keeps no files", place);
    else if (source.object) text = field(&source, "data");
    else if (url) text = node_type(part, url) == JSON_OBJECT ? field(&inner, "url") : url;
    else if (field(part, "data")) text = field(part, "data");              /* as tools of MCP have it */
    else if (field(part, "file_id"))
        refuse(part->f, 400, place, "%s: this server keeps no files: send data:image/...;base64,... in place of file_id", place);
    if (text && node_type(part, text) == JSON_STRING) return text;
    refuse(part->f, 400, place, "%s: a part of type image without its data: send data:image/...;base64,...", place);
    return 0;
}

/* Where the base64 of a data: address begins. What the address says of the image's type does not matter. NULL: f says why there is none. */
static const char *image_data(const char *text, const char *place, failure *f) {
    const char *comma = strchr(text, ',');
    if (strncasecmp(text, "data:", 5))
        refuse(f, 400, place, "%s: this server fetches no addresses and reads no files: send data:image/...;base64,...", place);
    else if (!comma || comma - text < 12 || strncasecmp(comma - 7, ";base64", 7))
        refuse(f, 400, place, "%s: a data: address must be data:image/...;base64,...", place);
    return f->status ? NULL : comma + 1;
}

/* Takes the image that a text of the request has, of at most so many tokens, which stands at `place`; 0: as the model allows. Ends the text part at
   hand in favour of it. */
static void take_image(request *x, buf *out, uint32_t node, int is_bare, int tokens, const char *place) {
    failure *f = x->q.f;
    connection *c = x->a->client;
    size_t size = 0;
    if (x->image_count == IMAGES_MOST) refuse(f, 400, place, "%s: at most %d images are taken", place, IMAGES_MOST);
    if (f->status) return;
    if (!budget_take(c->budget, x->q.j->nodes[node].size)) {
        refuse(f, 503, NULL, "the requests under way hold all of --request-memory: try again later");
        return;
    }
    c->taken += x->q.j->nodes[node].size;
    const size_t n = json_string(x->q.j, node, NULL, 0);
    char *text = node_text(x->q.j, node);
    const char *data = !text ? NULL : is_bare ? text : image_data(text, place, f);
    if (!text) refuse(f, 503, NULL, "out of memory");
    else if (data && !base64_decode(data, n - (size_t)(data - text), text, &size)) refuse(f, 400, place, "%s: its data is no base64", place);
    else if (data && (x->image_bytes += size) > IMAGE_BYTES_MOST) refuse(f, 413, place, "%s: the images have more than 64 MiB", place);
    if (f->status) {
        free(text);
        return;
    }
    x->image_text += x->q.j->nodes[node].size;
    x->images[x->image_count].data = text;
    x->images[x->image_count].size = size;
    x->images[x->image_count].tokens = tokens;
    memcpy(x->image_places[x->image_count], place, IMAGE_PLACE);
    putf(out, "\"}, {\"type\": \"image\", \"image\": %d}, {\"type\": \"text\", \"text\": \"", x->image_count++);
}

/* An image that is a part of a content. */
static void ask_image(request *x, buf *out, const fields *part) {
    static const char *const details[] = {"auto", "low", "high", "original"};
    const int most = x->a->server->image_tokens;
    char place[IMAGE_PLACE];
    fields detail;
    int is_bare, known = 0;
    node_place(x->q.j, part->object, place, sizeof place);
    const uint32_t node = image_text(part, place, &is_bare, &detail);
    if (!node) return;
    for (int i = 0; i < 4; i++) known |= field_is(&detail, "detail", details[i]);
    if (field(&detail, "detail") && !known) refuse(x->q.f, 400, place, "%s: detail must be auto, low, high or original", place);
    const int is_low = field_is(&detail, "detail", "low") && (!most || most > IMAGE_LOW_TOKENS);
    take_image(x, out, node, is_bare, is_low ? IMAGE_LOW_TOKENS : most, place);
}

/* What a model without a tower is told of an image in a tool's result, which an agent cannot take back. */
#define UNREAD_IMAGE "[image: this model reads no images]"

/* Ollama's: a list of base64 texts beside the content, before which they stand. Clients of others may send data: addresses. */
static void ask_image_list(request *x, buf *out, uint32_t list, int is_result) {
    const fields *q = &x->q;
    char place[IMAGE_PLACE];
    if (!list || q->f->status || !field_asks(q, list, NULL)) return;
    node_place(q->j, list, place, sizeof place);
    if (!x->a->server->reads_images && is_result) {
        buf_text(out, UNREAD_IMAGE);
        return;
    }
    if (!x->a->server->reads_images) refuse(q->f, 400, place, "%s: this model reads no images", place);
    else if (node_type(q, list) != JSON_ARRAY) refuse(q->f, 400, place, "%s must be a list of images in base64", place);
    for (uint32_t k = list + 1; !q->f->status && k < node_next(q, list); k = node_next(q, k)) {
        const json_node *n = &q->j->nodes[k];
        node_place(q->j, k, place, sizeof place);
        if (n->type != JSON_STRING) refuse(q->f, 400, place, "%s must be an image in base64", place);
        else take_image(x, out, k, n->size < 5 || strncasecmp(q->j->text + n->start, "data:", 5), x->a->server->image_tokens, place);
    }
}

/* Brings the images into the order of their places in the prompt, which may have the results of tools in another order. */
static void order_images(request *x, const buf *text) {
    mote_image ordered[IMAGES_MOST];
    char places[IMAGES_MOST][IMAGE_PLACE];
    int order[IMAGES_MOST];
    size_t count = 0;
    mote_error error = {0, ""};
    if (mote_render_images(x->a->server->model, text->data, text->size, order, IMAGES_MOST, &count, &error)) {
        refuse_error(x->q.f, &error);
        return;
    }
    if (count != (size_t)x->image_count) refuse(x->q.f, 400, NULL, "the chat template has places for %zu of %d images", count, x->image_count);
    for (size_t i = 0; i < count && !x->q.f->status; i++) {
        ordered[i] = x->images[order[i]];
        memcpy(places[i], x->image_places[order[i]], sizeof places[i]);
    }
    if (x->q.f->status) return;
    memcpy(x->images, ordered, count * sizeof *ordered);
    memcpy(x->image_places, places, count * sizeof *places);
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
        if (code) refuse(x->q.f, code == MOTE_ENOMEM ? 503 : 400, x->image_places[i], "%s: %s", x->image_places[i], error.message);
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
    a->image_places = (const char (*)[IMAGE_PLACE])x->image_places;
    a->image_count = x->image_count;
    a->image_pixels = pixels;
    a->image_tokens = most;
}
