/* serve/log.c: the line that -v and --log-json say of a request. It holds no text of messages and no key; whatever a client has
   sent of it is one line of characters that steer nothing. */

enum { LOG_NOTHING, LOG_TEXT, LOG_JSON };

/* The text with \u... for control characters, for what ends a line and for what shows the text around it in another order; U+FFFD for
   what is no UTF-8. */
static void put_line(buf *out, const char *text, size_t n) {
    const char *end = text + n;
    while (text < end) {
        const uint32_t c = utf8_next(&text, end);
        if (c == '\n' || c == '\t' || c == 0x2028 || c == 0x2029 || steers_terminal((int32_t)c)) putf(out, "\\u%04x", (unsigned)c);
        else utf8_put(out, c);
    }
}

/* , "key": "text" or null where there is none */
static void put_log_text(buf *out, const char *key, const char *text) {
    buf quoted = {NULL, 0, 0, 0};
    if (*text) put_text(&quoted, text);
    else buf_text(&quoted, "null");
    putf(out, ", \"%s\": ", key);
    put_line(out, quoted.data, quoted.size);
    out->failed |= quoted.failed;
    buf_free(&quoted);
}

/* seconds: since the request's head was there. */
static void put_log_json(buf *out, const connection *c, double seconds) {
    const http_request *q = &c->in.request;
    const tally *used = &c->used;
    buf_text(out, "{\"time\": \"");
    put_time(out);
    buf_text(out, "\"");
    put_log_text(out, "id", c->id);
    put_log_text(out, "method", q->method);
    put_log_text(out, "path", q->path);
    putf(out, ", \"status\": %d, \"failure\": ", c->status);
    if (c->reported.status) putf(out, "%d", c->reported.status);
    else buf_text(out, "null");
    put_log_text(out, "field", c->reported.param);
    put_log_text(out, "reason", c->reported.message);
    putf(out, ", \"read_tokens\": %zu, \"cached_tokens\": %zu, \"written_tokens\": %zu", used->read, used->cached, used->written);
    putf(out, ", \"queue_seconds\": %.3f, \"read_seconds\": %.3f, \"write_seconds\": %.3f, \"seconds\": %.3f, \"client_gone\": %s}\n",
         used->queue_seconds, used->read_seconds, used->write_seconds, seconds, c->gone ? "true" : "false");
}

/* ": what is wrong", with the field in parentheses; the status before it where the head had another one. */
static void put_log_failure(buf *out, const connection *c) {
    const failure *f = &c->reported;
    if (!f->status) return;
    if (f->status != c->status) putf(out, ", then %d", f->status);
    if (f->param[0]) {
        buf_text(out, " (");
        put_line(out, f->param, strlen(f->param));
        buf_text(out, ")");
    }
    buf_text(out, ": ");
    put_line(out, f->message, strlen(f->message));
}

static void put_log_line(buf *out, const connection *c, double seconds) {
    const http_request *q = &c->in.request;
    const tally *used = &c->used;
    buf_text(out, "mote: ");
    put_time(out);
    putf(out, " %s %s ", c->id, *q->method ? q->method : "-");
    put_line(out, *q->path ? q->path : "-", *q->path ? strlen(q->path) : 1);
    putf(out, " %d", c->status);
    put_log_failure(out, c);
    if (used->read + used->cached)
        putf(out, ": read %zu tokens, cached %zu, wrote %zu, %.1f tok/s", used->read, used->cached, used->written,
             used->write_seconds > 0 ? (double)used->written / used->write_seconds : 0);
    if (used->queue_seconds + used->read_seconds > 0)
        putf(out, ", waited %.2f s, reading %.2f s, writing %.2f s", used->queue_seconds, used->read_seconds, used->write_seconds);
    putf(out, ", %.2f s%s\n", seconds, c->gone ? ": client gone" : "");
}

/* Writes to standard error what it takes within so many milliseconds. 0: not all of it. A pipe whose reader stands still takes nothing. */
static int log_write(const char *bytes, size_t n, int wait) {
    enum { AT_ONCE = 4096 };               /* PIPE_BUF: what a pipe that says POLLOUT takes without waiting */
    while (n) {
        struct pollfd p = {STDERR_FILENO, POLLOUT, 0};
        if (poll(&p, 1, wait) <= 0) return 0;
        const ssize_t written = write(STDERR_FILENO, bytes, n < AT_ONCE ? n : (size_t)AT_ONCE);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return 0;
        bytes += written;
        n -= (size_t)written;
    }
    return 1;
}

/* One line after the other, so that those of several requests do not mix. No request waits long for who reads them: lines that nobody takes
   are lost, and counted once somebody does. */
static void log_request(int how, const connection *c, double seconds) {
    enum { PATIENCE = 1000 };              /* ms */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static unsigned lost;
    buf line = {NULL, 0, 0, 0};
    char note[96];
    if (how == LOG_NOTHING) return;
    if (how == LOG_JSON) put_log_json(&line, c, seconds);
    else put_log_line(&line, c, seconds);
    pthread_mutex_lock(&lock);
    const int n = snprintf(note, sizeof note, how == LOG_JSON ? "{\"lost_lines\": %u}\n" : "mote: note: lines of the log that nobody read are lost: %u\n", lost);
    const int told = !lost || log_write(note, (size_t)n, 0);
    if (told) lost = 0;
    if (!line.failed && (!told || !log_write(line.data, line.size, PATIENCE))) lost++;
    pthread_mutex_unlock(&lock);
    buf_free(&line);
}
