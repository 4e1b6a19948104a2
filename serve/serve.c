// serve/serve.c: the command serve: which path goes where, who may ask, listening, and the end.
//
// A connection has a thread. Signals reach the listening thread alone: the first Ctrl-C stops taking requests and lets answers
// finish, a second one ends the program the hard way.

enum { CONNECTIONS_MOST = 256, SLOTS_MOST = 64, WAITING_DEFAULT = 64 };

// ---- Paths -----------------------------------------------------------------------------------------------------------

static void serve_models(server *s, connection *c, const json *j) {
    buf out = {NULL, 0, 0, 0};
    (void)j;
    buf_text(&out, "{\"object\": \"list\", \"data\": [{\"id\": ");
    put_text(&out, s->name);
    putf(&out, ", \"object\": \"model\", \"created\": %ld, \"owned_by\": \"mote\", \"max_model_len\": %d}]}", (long)s->since,
         s->context);
    connection_reply(c, 200, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}

static void serve_health(server *s, connection *c, const json *j) {
    static const char ok[] = "{\"status\": \"ok\"}";
    (void)s;
    (void)j;
    connection_reply(c, 200, "application/json", ok, sizeof ok - 1);
}

// The page loads nothing from elsewhere, and nothing may frame it.
static void serve_page(server *s, connection *c, const json *j) {
    static const char page[] =
#include "page.inc"                        // made of page.html by the Makefile
        ;
    const char *more_head = c->more_head;
    (void)s;
    (void)j;
    c->more_head = "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                   "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";
    connection_reply(c, 200, "text/html; charset=utf-8", page, sizeof page - 1);
    c->more_head = more_head;
}

typedef struct route {
    const char *method, *path;
    int is_open;                           // asks for no key
    void (*function)(server *s, connection *c, const json *j);
} route;

static const route route_table[] = {
    {"GET", "/", 1, serve_page},
    {"GET", "/health", 1, serve_health},
    {"GET", "/v1/models", 0, serve_models},
    {"POST", "/v1/chat/completions", 0, serve_chat},
    {"POST", "/v1/completions", 0, serve_completions},
    {"POST", "/v1/messages", 0, serve_messages},
    {"POST", "/v1/messages/count_tokens", 0, serve_count_tokens},
    {"POST", "/v1/responses", 0, serve_responses},
    {"GET", "/metrics", 0, serve_metrics},
    {"POST", "/tokenize", 0, serve_tokenize},
    {"POST", "/detokenize", 0, serve_detokenize},
};
enum { ROUTE_COUNT = sizeof route_table / sizeof route_table[0] };

// ---- Who may ask -----------------------------------------------------------------------------------------------------

// Takes as long for any key of the same length.
static int same_key(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    int different = n != m;
    for (size_t i = 0; i < n && m; i++) different |= a[i] ^ b[i % m];
    return !different;
}

// The name in a Host, without its port: is it this machine's own, or a number? A page whose name someone points at 127.0.0.1
// gives its own name.
static int is_own_host(const char *host) {
    size_t n = strlen(host);
    if (host[0] == '[') return 1;
    n = strcspn(host, ":");
    return (n == 9 && !strncasecmp(host, "localhost", 9)) || (n > 10 && !strncasecmp(host + n - 10, ".localhost", 10)) ||
           (n > 0 && strspn(host, "0123456789.") >= n);
}

// Does the Origin belong to the page that this server itself has given?
static int is_own_origin(const http_request *q) {
    const char *name = strstr(q->origin, "://");
    return name && !strcasecmp(name + 3, q->host);
}

static void check_access(const server *s, const http_request *q, const route *r, failure *f) {
    if (s->is_loopback && q->host[0] && !is_own_host(q->host))
        refuse(f, 403, NULL, "this server answers to localhost and to addresses; not to the name in Host");
    else if (q->origin[0] && !s->allows_origins && !is_own_origin(q))
        refuse(f, 403, NULL, "pages of other origins may not ask: see --cors");
    else if (s->api_key && !(r && r->is_open) && !same_key(q->key, s->api_key))
        refuse(f, 401, NULL, "the API key is missing or wrong");
}

// ---- One request -----------------------------------------------------------------------------------------------------

// A page's browser asks whether it may ask.
static void serve_preflight(connection *c) {
    connection_head(c, 204, "text/plain");
    connection_format(c, "Access-Control-Allow-Methods: GET, POST\r\nAccess-Control-Allow-Headers: *, Authorization\r\n"
                         "Access-Control-Max-Age: 600\r\n\r\n");
    connection_flush(c, 1);
}

static const route *find_route(const http_request *q, failure *f) {
    int is_known = 0;
    for (int i = 0; i < ROUTE_COUNT; i++) {
        const route *r = &route_table[i];
        if (strcmp(q->path, r->path)) continue;
        if (!strcmp(q->method, r->method) || (!strcmp(q->method, "HEAD") && !strcmp(r->method, "GET"))) return r;
        is_known = 1;
    }
    if (is_known) refuse(f, 405, NULL, "%s does not take %s", q->path, q->method);
    else refuse(f, 404, NULL, "there is no %s here", q->path);
    return NULL;
}

static void serve_request(server *s, connection *c) {
    const http_request *q = &c->in.request;
    failure f = {0};
    json j;
    memset(&j, 0, sizeof j);
    failure access = {0};
    if (s->allows_origins && !strcmp(q->method, "OPTIONS")) {
        serve_preflight(c);
        return;
    }
    const route *r = find_route(q, &f);
    check_access(s, q, r, &access);
    if (access.status) f = access;
    if (!f.status && !strcmp(r->method, "POST")) read_body(&q->body, &j, &f);
    if (!f.status) r->function(s, c, &j);
    else reply_failure(c, &f);
    json_free(&j);
    pthread_mutex_lock(&s->lock);
    s->seen.requests++;
    s->seen.refused += f.status != 0;
    pthread_mutex_unlock(&s->lock);
    const char *end = f.status ? ": refused" : c->gone ? ": client gone" : "";
    if (s->verbose) show_format(stderr, "mote: %s %s%s\n", q->method, q->path, end);
}

// ---- Connections -----------------------------------------------------------------------------------------------------

typedef struct arrival {                   // what a connection's thread is given
    server *server;
    int fd;
} arrival;

static void serve_connection(server *s, connection *c) {
    for (;;) {
        int code = connection_request(c);
        if (code == HTTP_MORE) return;
        if (code != HTTP_DONE) {
            failure f = {0};
            c->in.request.closes = 1;
            refuse(&f, code, NULL, "%s", c->in.problem);
            reply_failure(c, &f);
            return;
        }
        serve_request(s, c);
        if (c->gone || c->in.request.closes || serve_stops) return;
        http_again(&c->in);
    }
}

// Ends a connection so that what was sent arrives: what the client still sends is read for a while, else it would be a reset.
static void connection_close(connection *c) {
    char rest[4096];
    double until = clock_seconds() + 1;
    if (!c->gone) shutdown(c->fd, SHUT_WR);
    while (!c->gone && clock_seconds() < until && connection_wait(c, POLLIN, 0.2))
        if (recv(c->fd, rest, sizeof rest, MSG_DONTWAIT) <= 0) break;
    close(c->fd);
    http_close(&c->in);
    buf_free(&c->out);
}

static void *connection_thread(void *user) {
    arrival *of = (arrival *)user;
    server *s = of->server;
    connection c;
    memset(&c, 0, sizeof c);
    c.fd = of->fd;
    c.more_head = s->allows_origins ? "Access-Control-Allow-Origin: *\r\n" : "";
    free(of);
    serve_connection(s, &c);
    connection_close(&c);
    pthread_mutex_lock(&s->lock);
    s->connections--;
    pthread_cond_broadcast(&s->freed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

// Gives a connection a thread; without one it is closed.
static void serve_arrival(server *s, int fd) {
    static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
                               "Connection: close\r\n\r\n";
    arrival *of = (arrival *)malloc(sizeof *of);
    pthread_attr_t how;
    pthread_t thread;
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    pthread_mutex_lock(&s->lock);
    int room = of && s->connections < CONNECTIONS_MOST;
    s->connections += room;
    pthread_mutex_unlock(&s->lock);
    pthread_attr_init(&how);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&how, 1 << 20);
    if (room) {
        of->server = s;
        of->fd = fd;
        if (!pthread_create(&thread, &how, connection_thread, of)) of = NULL;
    }
    pthread_attr_destroy(&how);
    if (!of) return;
    (void)!send(fd, busy, sizeof busy - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(fd);
    free(of);
    pthread_mutex_lock(&s->lock);
    s->connections -= room;
    pthread_mutex_unlock(&s->lock);
}

static void on_stop(int signal) {
    serve_stops = 1;
    interrupted = signal == SIGINT;
}

// The first signal stops the server, a second one the program.
static void catch_stop(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_stop;
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);              // whoever reads what is said here may end before
}

// Takes connections until a signal comes, then waits for them to end.
static void serve_listen(server *s, int listener) {
    sigset_t signals, before;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, &before);         // connections' threads inherit it
    while (!serve_stops) {
        struct pollfd p = {listener, POLLIN, 0};
        struct timespec most = {1, 0};
        if (ppoll(&p, 1, &most, &before) <= 0) continue;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) serve_arrival(s, fd);
        else if (errno == EMFILE || errno == ENFILE) connection_wait(&(connection){.fd = -1}, 0, 0.1);
    }
    close(listener);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_lock(&s->lock);
    while (s->connections) pthread_cond_wait(&s->freed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

// ---- Starting --------------------------------------------------------------------------------------------------------

// An address to listen on; 0: it is none.
static socklen_t read_address(const char *host, int port, struct sockaddr_storage *at) {
    struct sockaddr_in *four = (struct sockaddr_in *)at;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)at;
    memset(at, 0, sizeof *at);
    if (inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1", &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return sizeof *four;
    }
    if (inet_pton(AF_INET6, host, &six->sin6_addr) != 1) return 0;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons((uint16_t)port);
    return sizeof *six;
}

// A listening socket, and the port it got; -1: it has been said why not.
static int open_listener(const char *host, int *port) {
    struct sockaddr_storage at;
    socklen_t size = read_address(host, *port, &at);
    int on = 1;
    if (!size) return complain(-1, "--host %s is no address, as 127.0.0.1, 0.0.0.0 or :: are", host);
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) || listen(fd, 128) || getsockname(fd, (struct sockaddr *)&at, &size)) {
        complain(0, "%s:%d: %s", host, *port, strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    *port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    return fd;
}

// The token that a text is as a whole; -1: it is none.
static int32_t token_of(const mote_model *model, const char *text) {
    int32_t id;
    size_t n = 0;
    return !mote_tokenize(model, text, strlen(text), 1, &id, 1, &n, NULL) && n == 1 ? id : -1;
}

// The model's name for clients: what -m says, or the last part of its path.
static void name_model(server *s, const char *asked, const char *folder) {
    const char *name = asked ? asked : folder;
    size_t n = strlen(name);
    while (n > 1 && name[n - 1] == '/') n--;
    if (!asked || access(asked, F_OK) == 0)
        for (size_t i = 0; i < n - 1; i++)
            if (folder == name || name[i] == '/') {
                const char *slash = (const char *)memrchr(name, '/', n - 1);
                if (slash) n -= (size_t)(slash + 1 - name), name = slash + 1;
                break;
            }
    snprintf(s->name, sizeof s->name, "%.*s", (int)n, name);
}

// Bytes of memory that the system could still give; 0: unknown.
static uint64_t free_memory(void) {
    unsigned long long kilobytes = 0;
    char line[128];
    FILE *in = fopen("/proc/meminfo", "re");
    while (in && fgets(line, sizeof line, in) && sscanf(line, "MemAvailable: %llu kB", &kilobytes) != 1) {}
    if (in) fclose(in);
    return (uint64_t)kilobytes * 1024;
}

// Sessions of o->fits tokens that have room in seven eighths of what is free beside the weights; 0: unknown.
static int sessions_that_fit(const options *o) {
    mote_options where = {.size = sizeof where, .parts = MOTE_DESCRIPTION, .device = o->device, .draft_rows = o->draft_rows,
                          .quantize = o->quantize};
    mote_session_options how = session_options(o);
    mote_memory plan;
    if (!how.context) how.context = o->fits;
    if (mote_plan(o->model, &where, &how, &plan, NULL) || plan.available < plan.total) return 0;
    uint64_t sessions = (plan.available - plan.weights) / 8 * 7 / (plan.kv + plan.state + plan.scratch);
    return sessions < SLOTS_MOST ? (int)sessions : (int)SLOTS_MOST;
}

// How many answers at a time: as many as are asked for, with a context that leaves room for them, or else as many as fit, at
// most PARALLEL_MOST. To be asked before the weights are in memory, behind plan_context.
static int plan_sessions(options *o) {
    enum { PARALLEL_MOST = 4, CONTEXT_LEAST = 1024 };
    int fit = sessions_that_fit(o);
    if (!o->parallel) return fit < 1 ? 1 : fit > PARALLEL_MOST ? (int)PARALLEL_MOST : fit;
    while (!o->context && fit < o->parallel && o->fits > CONTEXT_LEAST) {
        o->fits -= o->fits / 8;
        fit = sessions_that_fit(o);
    }
    return o->parallel;
}

static int open_sessions(server *s, const options *o) {
    mote_session_options how = session_options(o);
    mote_error error = {0, ""};
    how.context = chosen_context(o, mote_model_info(s->model));
    for (int i = 0; i < s->slot_count; i++) {
        s->slots[i].server = s;
        if (slot_open(&s->slots[i], &how, &error)) return report(&error);
    }
    s->context = mote_context(s->slots[0].session);
    (void)mote_save(s->slots[0].session, NULL, 0, &s->snapshot_bytes, NULL);
    s->disk = o->cache_dir;
    s->disk_most = (size_t)((o->cache_disk >= 0 ? o->cache_disk : 10) * 1e9);
    s->cache_most = o->cache_memory >= 0 ? (size_t)(o->cache_memory * 1e9) : (size_t)(free_memory() / 4);
    return disk_open(s);
}

static void server_open(server *s, const mote_model *model, const options *o, int sessions) {
    memset(s, 0, sizeof *s);
    s->model = model;
    s->host = o->host ? o->host : "127.0.0.1";
    s->api_key = o->api_key;
    s->allows_origins = o->cors;
    s->verbose = o->verbose;
    s->reads_alike = !on_gpu(mote_model_info(model));
    s->turn_begins = token_of(model, "<|im_start|>");
    s->think_begins = token_of(model, "<think>");
    s->think_ends = token_of(model, "</think>");
    s->tool_responds = token_of(model, "<tool_response>");
    s->user = token_of(model, "user");
    s->slot_count = sessions;
    s->slots = (slot *)calloc(SLOTS_MOST, sizeof *s->slots);
    s->waiting_most = o->queue >= 0 ? o->queue : WAITING_DEFAULT;
    s->since = time(NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->freed, NULL);
    pthread_mutex_init(&s->gate.lock, NULL);
    pthread_cond_init(&s->gate.turn, NULL);
}

static void server_close(server *s) {
    cache_close(s);
    for (int i = 0; i < s->slot_count; i++) mote_session_close(s->slots[i].session);
    free(s->slots);
}

static int serve_model(const mote_model *model, const char *asked, const options *o, int sessions) {
    server s;
    int port = o->port >= 0 ? o->port : 8080;
    server_open(&s, model, o, sessions);
    name_model(&s, asked, o->model);
    s.is_loopback = !strncmp(s.host, "127.", 4) || !strcmp(s.host, "::1") || !strcmp(s.host, "localhost");
    int code = s.slots ? open_sessions(&s, o) : complain(EXIT_FAILURE, "out of memory");
    int listener = code ? -1 : open_listener(s.host, &port);
    if (!code && listener < 0) code = EXIT_FAILURE;
    if (!code) {
        catch_stop();                      // before anyone learns that it is there
        show_format(stderr, "mote: a context of %d tokens, %d answer%s at a time, %.1f GB for what was read before\n",
                    s.context, s.slot_count, s.slot_count == 1 ? "" : "s", 1e-9 * (double)s.cache_most);
        const char *format = strchr(s.host, ':') ? "http://[%s]:%d\n" : "http://%s:%d\n";
        show_format(stderr, "mote: %s on ", s.name);
        fprintf(stderr, format, s.host, port);
        serve_listen(&s, listener);
        code = s.sessions_lost ? complain(EXIT_FAILURE, "the device is lost") : interrupted ? EXIT_INTERRUPTED : 0;
    }
    server_close(&s);
    return code;
}

static int command_serve(options *o) {
    mote_model *model = NULL;
    const char *asked = o->model;
    int code = find_model(o, MOTE_EVERYTHING), sessions = 1;
    if (!code) plan_context(o);
    if (!code) sessions = plan_sessions(o);
    catch_interrupt(1);
    if (!code) code = open_model(o, MOTE_EVERYTHING, &model);
    if (!code && !mote_model_info(model)->chat_template)
        on_log(NULL, "no chat template that mote knows: only /v1/completions will answer");
    if (!code) code = serve_model(model, asked, o, sessions);
    mote_close(model);
    return code;
}
