/* workers/connections.c: the connections of a worker (workers/worker.c): who listens, and how long. Each has a thread; who connects must know
   the secret.

   One more thread sends beats on the connections whose leader waits, and looks whether leaders are there: when the leader's connection of a
   runner is lost, rows that it waits for will not come, and when that of the model is, or nothing comes over it for WIRE_ABSENCE seconds, its
   runners end, and the part is closed. */

enum { WORKER_BACKLOG = 64 };

static void *worker_connected(void *argument) {
    worker_connection *c = (worker_connection *)argument;
    worker *w = c->of;
    mote_error why;
    wire_head h = {0, 0};
    const double began = seconds();
    int code = wire_shake(c->w.fd, w->o->secret, 0, c->peer, &why);
    if (code && seconds() - began >= WIRE_HANDSHAKE)
        code = fail(&why, MOTE_EIO, "%s has not shown within %d s that it knows the secret", c->peer, WIRE_HANDSHAKE);
    if (code) worker_refuses(c, why.message);
    if (!code && !wire_next(&c->w, &h, sizeof(message_runner) + sizeof(message_model), WIRE_SILENCE)) {
        worker_busy(c, 1);
        if (h.type == MESSAGE_MODEL) worker_lead(c, &h);
        else if (h.type == MESSAGE_RUNNER) worker_serve(c, &h);
        else if (h.type == MESSAGE_LINK) worker_link(c, &h);
    }
    pthread_mutex_lock(&w->lock);
    wire_close(&c->w);
    c->used = c->busy = 0;
    w->connections--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void worker_arrival(worker *w, int fd, const struct sockaddr_storage *from) {
    worker_connection *c = NULL;
    pthread_t thread;
    wire_settle(fd);
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < WORKER_CONNECTIONS && !c; i++)
        if (!w->connection[i].used) c = &w->connection[i];
    if (c) {
        c->of = w;
        c->used = 1;
        wire_open(&c->w, fd);
        address_write(from, c->peer);
        w->connections++;
    }
    pthread_mutex_unlock(&w->lock);
    if (c && !thread_start(&thread, worker_connected, c)) {
        pthread_detach(thread);
        return;
    }
    if (c) {
        pthread_mutex_lock(&w->lock);
        wire_close(&c->w);
        c->used = 0;
        w->connections--;
        pthread_mutex_unlock(&w->lock);
    } else close(fd);
}

/* Tells those that wait that this host lives, and runners of leaders that are gone. */
static void worker_tend(worker *w, int beat) {
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < WORKER_CONNECTIONS; i++) {
        worker_connection *c = &w->connection[i];
        if (!c->used) continue;
        if (beat && c->busy) wire_beat(&c->w);
        if (c->runner && (w->quit || wire_is_lost(&c->w))) worker_runner_end(c->runner);
        if (w->quit) wire_end(&c->w);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *worker_tends(void *argument) {
    worker *w = (worker *)argument;
    for (int i = 1;; i++) {
        struct timespec half = {0, 500000000};
        nanosleep(&half, NULL);
        worker_tend(w, i % (2 * WIRE_BEAT) == 0);
        pthread_mutex_lock(&w->lock);
        const int done = w->quit && !w->connections;
        pthread_mutex_unlock(&w->lock);
        if (done) return NULL;
    }
}

/* Listens; -1: it cannot. to: the address it has. */
static int worker_listen(const char *address, char to[ADDRESS_SIZE], mote_error *err) {
    struct sockaddr_storage at;
    socklen_t size = address_read(address, &at);
    const int on = 1;
    if (!size) return fail(err, MOTE_EINVAL, "\"%.60s\" is no address to listen on, as 0.0.0.0:7000 is", address), -1;
    const int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) || listen(fd, WORKER_BACKLOG) || getsockname(fd, (struct sockaddr *)&at, &size)) {
        fail(err, MOTE_EIO, "%s: %s", address, strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    address_write(&at, to);
    return fd;
}

/* Until `running` says that it is over. */
static void worker_accept(worker *w, int fd, const char *address) {
    while (!w->o->running || !w->o->running(w->o->user, address)) {
        struct pollfd p = {fd, POLLIN, 0};
        refusals_tell(&w->refused, &w->o->callbacks);
        if (poll(&p, 1, 1000) <= 0) continue;
        struct sockaddr_storage from;
        socklen_t size = sizeof from;
        const int came = accept4(fd, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (came >= 0) worker_arrival(w, came, &from);
        else if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED) poll(NULL, 0, 100);     /* no descriptor, no memory */
    }
}

/* The device that the options name. */
static int worker_choose_device(worker *w, mote_error *err) {
    mote_options how;
    memset(&how, 0, sizeof how);
    how.device = w->o->device;
    how.callbacks = w->o->callbacks;
    return host_device(w->device, &how, err);
}

/* call: which one it is. */
static int worker_run(const model_source *from, const char *name, const mote_worker_options *options, const char *call, mote_error *error) {
    mote_worker_options o;
    char address[ADDRESS_SIZE];
    pthread_t tender;
    int code = take_options(&o, sizeof o, sizeof o, options, "mote_worker_options", error);
    if (code) return code;
    if (!name || !o.listen || !o.secret || strlen(o.secret) < SECRET_LEAST || o.threads < 0 || o.threads > MAX_THREADS)
        return fail(error, MOTE_EINVAL, "%s: needs a model, an address to listen on, a secret of %d bytes or more, threads of 0 to %d", call,
                    SECRET_LEAST, MAX_THREADS);
    worker *w = (worker *)calloc(1, sizeof *w);
    if (!w) return fail_memory(error);
    w->from = from;
    w->name = name;
    w->o = &o;
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->refused.lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    code = worker_choose_device(w, error);
    const int fd = code ? -1 : worker_listen(o.listen, address, error);
    const int tends = fd >= 0 && !thread_start(&tender, worker_tends, w);
    if (fd >= 0 && !tends) fail(error, MOTE_ENOMEM, "the system gives no thread");
    if (tends) {
        worker_accept(w, fd, address);
        pthread_mutex_lock(&w->lock);
        w->quit = 1;
        pthread_mutex_unlock(&w->lock);
        pthread_join(tender, NULL);
    }
    if (fd >= 0) close(fd);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->refused.lock);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return tends ? MOTE_OK : error->code;
}

int mote_worker_run(const char *dir, const mote_worker_options *options, mote_error *error) {
    mote_error failure;
    return worker_run(&folder_source, dir, options, "mote_worker_run", error ? error : &failure);
}
