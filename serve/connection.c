// serve/connection.c: one client's connection: requests from it, answers to it. It knows sockets and http.c, and nothing of
// what is asked or answered.
//
// What is sent goes into a buffer first and leaves as far as the socket takes it: a client that reads slowly never holds up a
// thread that computes, until OUT_MOST bytes wait for it. A client that takes nothing for STALL_SECONDS is gone.

enum { HEAD_SECONDS = 10, BODY_SECONDS = 60, IDLE_SECONDS = 60, STALL_SECONDS = 30 };
enum { OUT_MOST = 1 << 20 };

typedef struct connection {
    int fd;
    int gone;                              // nothing can be read or written any more
    int streams;                           // an answer in pieces is under way
    int has_answered;                      // its head has been written
    const char *more_head;                 // header lines of every answer; "": none
    http_reader in;
    buf out;
    size_t sent;                           // of out
} connection;

static _Atomic int serve_stops;            // set by signals: take no more requests

// Waits up to `timeout` seconds for the socket. 0: nothing.
static int connection_wait(const connection *c, short events, double timeout) {
    struct pollfd p = {c->fd, events, 0};
    return poll(&p, 1, (int)(timeout * 1000)) > 0 ? p.revents : 0;
}

// Has the client hung up? One that has closed its sending side alone counts as gone.
static int connection_gone(connection *c) {
    struct pollfd p = {c->fd, POLLRDHUP, 0};
    if (!c->gone && poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR)) c->gone = 1;
    return c->gone;
}

// Sends what the socket takes. wait: until all is sent.
static void connection_flush(connection *c, int wait) {
    while (!c->gone && c->sent < c->out.size) {
        ssize_t n = send(c->fd, c->out.data + c->sent, c->out.size - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) c->sent += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) c->gone = 1;
        else if (!wait) break;
        else if (!connection_wait(c, POLLOUT, STALL_SECONDS)) c->gone = 1;
    }
    if (c->gone || c->sent == c->out.size) c->sent = c->out.size = 0;
}

static int connection_is_clogged(const connection *c) {
    return c->out.size - c->sent > OUT_MOST;
}

static void connection_put(connection *c, const char *bytes, size_t n) {
    if (!c->gone) buf_add(&c->out, bytes, n);
    if (c->out.failed) c->gone = 1;
}

__attribute__((format(printf, 2, 3)))
static void connection_format(connection *c, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    connection_put(c, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

static const char *status_text(int status) {
    static const struct { int status; const char *text; } known[] = {
        {200, "OK"}, {204, "No Content"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"},
        {405, "Method Not Allowed"}, {408, "Request Timeout"}, {413, "Content Too Large"}, {414, "URI Too Long"},
        {415, "Unsupported Media Type"}, {417, "Expectation Failed"}, {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"}, {501, "Not Implemented"}, {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].status == status) return known[i].text;
    return "Error";
}

static void connection_head(connection *c, int status, const char *type) {
    c->has_answered = 1;
    connection_format(c, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
                      status, status_text(status), type);
    connection_put(c, c->more_head, strlen(c->more_head));
    if (status == 503) connection_format(c, "Retry-After: 1\r\n");
    if (status == 401) connection_format(c, "WWW-Authenticate: Bearer\r\n");
    if (c->in.request.closes || serve_stops) connection_format(c, "Connection: close\r\n");
    else if (!c->in.request.version) connection_format(c, "Connection: keep-alive\r\n");
}

// A whole answer.
static void connection_reply(connection *c, int status, const char *type, const char *body, size_t n) {
    connection_head(c, status, type);
    connection_format(c, "Content-Length: %zu\r\n\r\n", n);
    if (strcmp(c->in.request.method, "HEAD")) connection_put(c, body, n);
    connection_flush(c, 1);
}

// An answer in pieces: chunks in HTTP/1.1, in 1.0 all up to the end of the connection.
static void connection_begin(connection *c, const char *type) {
    c->streams = 1;
    if (!c->in.request.version) c->in.request.closes = 1;
    connection_head(c, 200, type);
    connection_format(c, c->in.request.version ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
}

static void connection_piece(connection *c, const char *bytes, size_t n) {
    if (!n) return;
    if (c->in.request.version) connection_format(c, "%zx\r\n", n);
    connection_put(c, bytes, n);
    if (c->in.request.version) connection_put(c, "\r\n", 2);
    connection_flush(c, 0);
}

static void connection_end(connection *c) {
    if (c->streams && c->in.request.version) connection_put(c, "0\r\n\r\n", 5);
    c->streams = 0;
    connection_flush(c, 1);
}

// Reads what has arrived, or waits for it up to `until`. 0: nothing came, or the client is gone.
static int connection_fill(connection *c, double until) {
    char block[1 << 16];
    while (!c->gone) {
        ssize_t n = recv(c->fd, block, sizeof block, MSG_DONTWAIT);
        if (n > 0) {
            http_push(&c->in, block, (size_t)n);
            return 1;
        }
        double left = until - clock_seconds();
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) c->gone = 1;
        else if (left <= 0) return 0;
        else connection_wait(c, POLLIN, left < 0.2 ? left + 0.001 : 0.2);
        if (serve_stops && !c->in.in.size) return 0;                    // nobody is in the middle of asking
    }
    return 0;
}

// The next request. As http_next; HTTP_MORE: there is none, and the connection has done its duty.
static int connection_request(connection *c) {
    double idle = clock_seconds() + IDLE_SECONDS, head = 0, body = 0;
    for (;;) {
        int code = http_next(&c->in);
        if (code != HTTP_MORE) return code;
        if (c->in.stage != HTTP_HEAD && c->in.request.expects) {
            connection_format(c, "HTTP/1.1 100 Continue\r\n\r\n");
            connection_flush(c, 1);
            c->in.request.expects = 0;
        }
        if (c->in.in.size > c->in.at && !head) head = clock_seconds() + HEAD_SECONDS;
        if (c->in.stage != HTTP_HEAD && !body) body = clock_seconds() + BODY_SECONDS;
        if (!connection_fill(c, body ? body : head ? head : idle)) {
            int late = !c->gone && !serve_stops && (head || body);
            return late ? http_refuse(&c->in, 408, "the request did not arrive in time") : HTTP_MORE;
        }
    }
}
