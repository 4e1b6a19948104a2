/* serve/listen.c: an address to listen on, and a thread for each connection that comes. It knows sockets and threads, and
   nothing of what a connection is for.

   Taking a connection allocates nothing: when there is no place or no thread for it, it is told so and closed. */

enum { CONNECTIONS_MOST = 256 };

typedef struct arrival {                   /* what a connection's thread is given */
    struct listener *listener;
    int fd, taken;
} arrival;

typedef struct listener {
    int fd;
    void (*serve)(void *user, int fd);     /* in a thread of its own; it closes fd */
    void *user;
    pthread_mutex_t lock;                  /* of all below */
    pthread_cond_t ended;
    int connections;
    arrival arrivals[CONNECTIONS_MOST];
} listener;

static void *connection_thread(void *user) {
    arrival *a = (arrival *)user;
    listener *l = a->listener;
    l->serve(l->user, a->fd);
    pthread_mutex_lock(&l->lock);
    a->taken = 0;
    l->connections--;
    pthread_cond_signal(&l->ended);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* A place for a connection; NULL: all are taken. */
static arrival *arrival_take(listener *l, int fd) {
    arrival *a = l->arrivals;
    pthread_mutex_lock(&l->lock);
    while (a < l->arrivals + CONNECTIONS_MOST && a->taken) a++;
    if (a == l->arrivals + CONNECTIONS_MOST) a = NULL;
    if (a) *a = (arrival){l, fd, 1};
    l->connections += a != NULL;
    pthread_mutex_unlock(&l->lock);
    return a;
}

static int start_thread(arrival *a) {
    pthread_attr_t how;
    pthread_t thread;
    pthread_attr_init(&how);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&how, 1 << 20);
    int code = pthread_create(&thread, &how, connection_thread, a);
    pthread_attr_destroy(&how);
    return code;
}

static void serve_arrival(listener *l, int fd) {
    arrival *a = arrival_take(l, fd);
    if (a && !start_thread(a)) return;
    send_busy(fd);
    close(fd);
    if (!a) return;
    pthread_mutex_lock(&l->lock);
    a->taken = 0;
    l->connections--;
    pthread_mutex_unlock(&l->lock);
}

static void listener_init(listener *l, void (*serve)(void *user, int fd), void *user) {
    memset(l, 0, sizeof *l);
    l->fd = -1;
    l->serve = serve;
    l->user = user;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->ended, NULL);
}

/* Takes connections until a signal comes, then waits for them to end, when `stopping` has been told. `awake` is told after each
   wait, which lasts a second at most. Signals reach this thread alone. */
static void listener_run(listener *l, void (*awake)(void *user), void (*stopping)(void *user)) {
    sigset_t signals, before;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, &before);         /* connections' threads inherit it */
    while (!serve_stops) {
        struct pollfd p = {l->fd, POLLIN, 0};
        struct timespec most = {1, 0};
        const int came = ppoll(&p, 1, &most, &before);
        awake(l->user);
        if (came <= 0) continue;
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) serve_arrival(l, fd);
        else if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED) poll(NULL, 0, 100);  /* no descriptor, no memory */
    }
    close(l->fd);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stopping(l->user);
    pthread_mutex_lock(&l->lock);
    while (l->connections) pthread_cond_wait(&l->ended, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

static int listener_connections(listener *l) {
    pthread_mutex_lock(&l->lock);
    int connections = l->connections;
    pthread_mutex_unlock(&l->lock);
    return connections;
}

/* An address to listen on; 0: it is none. */
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

/* Listens there. *port: the one it got; *others: more than this machine can reach it. Returns the exit code. */
static int listener_open(listener *l, const char *host, int *port, int *others) {
    struct sockaddr_storage at;
    socklen_t size = read_address(host, *port, &at);
    int on = 1;
    if (!size) return complain(EXIT_FAILURE, "--host %s is no address, as 127.0.0.1, 0.0.0.0 or :: are", host);
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) || listen(fd, 128) || getsockname(fd, (struct sockaddr *)&at, &size)) {
        complain(0, "%s:%d: %s", host, *port, strerror(errno));
        if (fd >= 0) close(fd);
        return EXIT_FAILURE;
    }
    *port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    *others = !is_loopback_address(&at);
    l->fd = fd;
    return 0;
}
