/* serve/connection.c: one client's connection: requests from it, answers to it. It knows sockets, http.c and budget.c, and
   nothing of what is asked or answered.

   What is sent goes into a buffer first and leaves as far as the socket takes it: a client that reads slowly never holds up a
   thread that computes, until OUT_MOST bytes wait for it. A client that takes nothing for STALL_SECONDS is gone.

   Once the server stops, a request that has only begun has STOP_SECONDS to arrive, and a connection without one ends. */

enum { HEAD_SECONDS = 10, BODY_SECONDS = 60, IDLE_SECONDS = 60, STALL_SECONDS = 30, STOP_SECONDS = 2, LINGER_SECONDS = 5 };
enum { OUT_MOST = 1 << 20 };

typedef struct tally {                     /* of the answers to one request, for the log */
    size_t read, cached, written;          /* tokens */
    double queue_seconds, read_seconds, write_seconds;
} tally;

typedef struct failure {                   /* why a request is refused; status 0: it is not */
    int status;
    const char *code;                      /* a word for programs; NULL: none */
    char param[64];                        /* the field; "": none */
    char message[600];
} failure;

typedef struct connection {
    int fd;
    int is_loopback;                       /* only this machine reaches the address that it came in on */
    int gone;                              /* nothing can be read or written any more */
    int streams;                           /* an answer in pieces is under way */
    int has_head, has_left;                /* of the answer: its head is written; a part of it has been sent */
    int status;                            /* that of its head; 0: none so far */
    char id[40];                           /* of the request at hand, for the head and the log; "": none */
    tally used;
    failure reported;                      /* what the client was told of what went wrong */
    double stop_by;                        /* when the server stops: the time that is left for the request; 0: it does not */
    const char *more_head;                 /* header lines of every answer; "": none */
    const char *allow;                     /* the methods of a path that does not take this one; NULL: it does */
    budget *budget;                        /* of all connections */
    size_t taken;                          /* of it, for the request at hand */
    size_t images;                         /* bytes of its body that were counted as images, which take less than texts */
    http_reader in;
    buf out;
    size_t sent;                           /* of out */
} connection;

static _Atomic int serve_stops;            /* set by signals: take no more requests */

/* Waits up to `timeout` seconds for the socket. 0: nothing. */
static int connection_wait(const connection *c, short events, double timeout) {
    struct pollfd p = {c->fd, events, 0};
    return poll(&p, 1, (int)(timeout * 1000)) > 0 ? p.revents : 0;
}

/* 1: the client has hung up. One that has closed its sending side alone counts as gone. */
static int connection_gone(connection *c) {
    struct pollfd p = {c->fd, POLLRDHUP, 0};
    if (!c->gone && poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR)) c->gone = 1;
    return c->gone;
}

/* Sends as many bytes as the socket takes, all of them if there is to be waited, and says how many. */
static size_t connection_send(connection *c, const char *bytes, size_t size, int wait) {
    size_t sent = 0;
    while (!c->gone && sent < size) {
        ssize_t n = send(c->fd, bytes + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) sent += (size_t)n, c->has_left |= c->has_head;
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) c->gone = 1;
        else if (!wait) break;
        else if (!connection_wait(c, POLLOUT, STALL_SECONDS)) c->gone = 1;
    }
    return sent;
}

/* Sends what waits to be sent. */
static void connection_flush(connection *c, int wait) {
    if (c->sent < c->out.size) c->sent += connection_send(c, c->out.data + c->sent, c->out.size - c->sent, wait);
    if (c->gone || c->sent == c->out.size) c->sent = c->out.size = 0;
}

static int connection_is_clogged(const connection *c) {
    return c->out.size - c->sent > OUT_MOST;
}

/* An answer that takes no memory, for who cannot be given any. */
static void send_busy(int fd) {
    static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
                               "Connection: close\r\n\r\n";
    (void)!send(fd, busy, sizeof busy - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void connection_put(connection *c, const char *bytes, size_t n) {
    if (c->gone || buf_add(&c->out, bytes, n)) return;
    if (!c->has_left) send_busy(c->fd);
    c->gone = 1;
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
    c->has_head = 1;
    c->status = status;
    connection_format(c, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
                      status, status_text(status), type);
    if (c->id[0]) connection_format(c, "X-Request-Id: %s\r\n", c->id);
    connection_put(c, c->more_head, strlen(c->more_head));
    if (status == 503) connection_format(c, "Retry-After: 1\r\n");
    if (status == 405 && c->allow) connection_format(c, "Allow: %s\r\n", c->allow);
    if (status == 401) connection_format(c, "WWW-Authenticate: Bearer\r\n");
    if (c->in.request.closes || serve_stops) connection_format(c, "Connection: close\r\n");
    else if (!c->in.request.version) connection_format(c, "Connection: keep-alive\r\n");
}

/* A whole answer. A long one is not copied. */
static void connection_reply(connection *c, int status, const char *type, const char *body, size_t n) {
    connection_head(c, status, type);
    connection_format(c, "Content-Length: %zu\r\n\r\n", n);
    int has_body = strcmp(c->in.request.method, "HEAD") != 0, apart = n > HTTP_KEEPS;
    if (has_body && !apart) connection_put(c, body, n);
    connection_flush(c, 1);
    if (has_body && apart) connection_send(c, body, n, 1);
}

/* An answer in pieces: chunks in HTTP/1.1, in 1.0 all up to the end of the connection. */
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

/* 1: a request has begun. Empty lines are none. */
static int connection_asks(const connection *c) {
    return c->in.stage != HTTP_HEAD || c->in.in.size > c->in.at;
}

/* Reads what has arrived, or waits for it up to `until`. 0: nothing came, or the client is gone. */
static int connection_fill(connection *c, double until) {
    char block[1 << 16];
    while (!c->gone) {
        ssize_t n = recv(c->fd, block, sizeof block, MSG_DONTWAIT);
        if (n > 0) {
            http_push(&c->in, block, (size_t)n);
            return 1;
        }
        if (serve_stops && !connection_asks(c)) return 0;
        if (serve_stops && !c->stop_by) c->stop_by = clock_seconds() + STOP_SECONDS;
        double left = (c->stop_by && c->stop_by < until ? c->stop_by : until) - clock_seconds();
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) c->gone = 1;
        else if (left <= 0) return 0;
        else connection_wait(c, POLLIN, left < 0.2 ? left + 0.001 : 0.2);
    }
    return 0;
}

/* The refusal of a request that has begun and does not go on; HTTP_MORE: none. */
static int connection_late(connection *c) {
    if (c->gone || !connection_asks(c)) return HTTP_MORE;
    if (serve_stops) return http_refuse(&c->in, 503, "the server is being stopped");
    return http_refuse(&c->in, 408, "the request did not arrive in time");
}

/* The next request but for its body: HTTP_HEAD_DONE or a status. HTTP_MORE: there is none, and the connection has done its
   duty. */
static int connection_next(connection *c) {
    double idle = clock_seconds() + IDLE_SECONDS, head = 0;
    for (;;) {
        int code = http_next(&c->in);
        if (code != HTTP_MORE) return code;
        if (connection_asks(c) && !head) head = clock_seconds() + HEAD_SECONDS;
        if (!connection_fill(c, head ? head : idle)) return connection_late(c);
    }
}

/* Raises what the request has of the budget to `bytes`. Returns 0, or the status that says why not. */
static int connection_take(connection *c, size_t bytes) {
    if (bytes <= c->taken) return 0;
    if (bytes > c->budget->most) return http_refuse(&c->in, 413, "the request needs more than all of --request-memory");
    if (!budget_take(c->budget, bytes - c->taken))
        return http_refuse(&c->in, 503, "the requests under way hold all of --request-memory: try again later");
    c->taken = bytes;
    return 0;
}

/* The body of the request: HTTP_DONE or a status; HTTP_MORE: the client has gone. */
static int connection_body(connection *c) {
    double until = clock_seconds() + BODY_SECONDS;
    if (c->in.left > c->budget->most / 2) return connection_take(c, SIZE_MAX);     /* it would not fit when it is all there */
    for (;;) {
        size_t most = 2 * (c->in.request.body.size + c->in.in.size);   /* a buf grows by doubling */
        int refused = c->in.stage != HTTP_COMPLETE ? connection_take(c, most) : 0;
        int code = refused ? refused : http_next(&c->in);
        if (code != HTTP_MORE) return code;
        if (c->in.request.expects) {
            connection_format(c, "HTTP/1.1 100 Continue\r\n\r\n");
            connection_flush(c, 1);
            c->in.request.expects = 0;
        }
        if (!connection_fill(c, until)) return connection_late(c);
    }
}

static void connection_release(connection *c) {
    budget_give(c->budget, c->taken);
    c->taken = 0;
    if (c->out.cap > HTTP_KEEPS && c->sent == c->out.size) buf_free(&c->out), c->sent = 0;
}

/* The request has been answered. */
static void connection_again(connection *c) {
    http_again(&c->in);
    connection_release(c);
    c->has_head = c->has_left = c->status = 0;
    c->images = 0;
    memset(&c->used, 0, sizeof c->used);
    c->reported.status = 0;
    c->reported.param[0] = c->reported.message[0] = 0;
}

/* 1: an address of this machine that others cannot reach. An IPv4 address may come as one of IPv6. */
static int is_loopback_address(const struct sockaddr_storage *at) {
    const struct sockaddr_in *four = (const struct sockaddr_in *)at;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)at)->sin6_addr;
    if (at->ss_family == AF_INET) return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

static void connection_open(connection *c, int fd, budget *all, const char *more_head) {
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    int on = 1;
    memset(c, 0, sizeof *c);
    c->fd = fd;
    c->budget = all;
    c->more_head = more_head;
    c->is_loopback = getsockname(fd, (struct sockaddr *)&at, &size) || is_loopback_address(&at);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* Ends a connection so that what was sent arrives: what the client still sends is read for a while, else it would be a
   reset. */
static void connection_close(connection *c) {
    char rest[1 << 16];
    double until = clock_seconds() + LINGER_SECONDS;
    connection_release(c);
    http_close(&c->in);
    buf_free(&c->out);
    shutdown(c->fd, SHUT_WR);
    while (clock_seconds() < until && connection_wait(c, POLLIN, serve_stops ? 0.2 : 1))
        if (recv(c->fd, rest, sizeof rest, MSG_DONTWAIT) <= 0) break;
    close(c->fd);
}
