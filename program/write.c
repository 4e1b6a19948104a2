/* program/write.c: JSON and events as they go out. It knows text, and nothing of what it says. */

/* As much of a text as fits, as whole characters; U+FFFD for what is no UTF-8. A zero follows it. */
static void utf8_fit(char *out, size_t capacity, const char *text, size_t n) {
    const char *end = text + n;
    size_t size = 0;
    while (text < end) {
        char bytes[4];
        buf one = {bytes, 0, sizeof bytes, 0};
        utf8_put(&one, utf8_next(&text, end));
        if (size + one.size >= capacity) break;
        memcpy(out + size, bytes, one.size);
        size += one.size;
    }
    out[size] = 0;
}

__attribute__((format(printf, 2, 3)))
static void putf(buf *out, const char *format, ...) {
    char text[256];
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int n = vsnprintf(text, sizeof text, format, arguments);
    if (n < (int)sizeof text) {
        buf_add(out, text, (size_t)n);
    } else {
        char *at = (char *)buf_add(out, NULL, (size_t)n + 1);
        if (at) vsnprintf(at, (size_t)n + 1, format, again);
        if (at) out->size--;
    }
    va_end(again);
    va_end(arguments);
}

/* A time of day, as RFC 3339 has it. */
static void put_time_of(buf *out, time_t seconds, long nanoseconds) {
    struct tm parts;
    char text[32];
    gmtime_r(&seconds, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    putf(out, "%s.%03ldZ", text, nanoseconds / 1000000);
}

static void put_time(buf *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    put_time_of(out, now.tv_sec, now.tv_nsec);
}

/* Text inside a JSON string. Well-formed UTF-8 stays as it is, the rest becomes U+FFFD. */
static void put_escaped(buf *out, const char *text, size_t n) {
    size_t plain = 0;
    uint32_t cp;
    for (size_t i = 0, used; i < n; i += used) {
        unsigned char c = (unsigned char)text[i];
        int size = utf8_decode(text + i, n - i, &cp);
        used = size > 0 ? (size_t)size : size < 0 ? (size_t)-size : n - i;
        if (size > 0 && c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
        buf_add(out, text + plain, i - plain);
        plain = i + used;
        if (size <= 0) buf_text(out, "\xef\xbf\xbd");
        else if (c == '\n') buf_text(out, "\\n");
        else if (c == '"' || c == '\\') putf(out, "\\%c", c);
        else putf(out, "\\u%04x", c);
    }
    if (n > plain) buf_add(out, text + plain, n - plain);
}

static void put_quoted(buf *out, const char *text, size_t n) {
    buf_text(out, "\"");
    put_escaped(out, text, n);
    buf_text(out, "\"");
}

static void put_text(buf *out, const char *text) {
    put_quoted(out, text, strlen(text));
}

/* A value of a JSON text, as it is there but for white space. Recursion is at most JSON_DEPTH deep. */
static void put_node(buf *out, const json *j, uint32_t node) {
    const json_node *n = j->nodes + node;
    int object = n->type == JSON_OBJECT;
    if (n->type == JSON_STRING) buf_text(out, "\"");
    if (n->type < JSON_ARRAY) buf_add(out, j->text + n->start, n->size);
    if (n->type == JSON_STRING) buf_text(out, "\"");
    if (n->type < JSON_ARRAY) return;
    buf_text(out, object ? "{" : "[");
    for (uint32_t k = node + 1; k < n->next; k = j->nodes[k].next) {
        if (k > node + 1) buf_text(out, ", ");
        if (object) {
            put_node(out, j, k++);
            buf_text(out, ": ");
        }
        put_node(out, j, k);
    }
    buf_text(out, object ? "}" : "]");
}

/* The text of a string node, as it is when no longer escaped, with a zero after it; "" of what is no string. */
static char *node_text(const json *j, uint32_t node) {
    size_t n = json_string(j, node, NULL, 0);
    char *text = (char *)malloc(n + 1);
    if (!text) return NULL;
    json_string(j, node, text, n);
    text[n] = 0;
    return text;
}

static void put_next(buf *list) {
    if (list->size) buf_text(list, ", ");
}

/* The escaped text of a string node; nothing of what is no string. */
static void put_inside(buf *out, const json *j, uint32_t node) {
    if (j->nodes[node].type == JSON_STRING) buf_add(out, j->text + j->nodes[node].start, j->nodes[node].size);
}

/* , "key": "..." of a string node; nothing of what is none. */
static void put_member(buf *out, const json *j, const char *key, uint32_t node) {
    if (!node || j->nodes[node].type != JSON_STRING) return;
    putf(out, ", \"%s\": \"", key);
    put_inside(out, j, node);
    buf_text(out, "\"");
}
