/* exchange/sockets.c: the transport of members on several hosts, one for each range: a connection from each to the next one, over which rows go. A
   host that computes for long is silent here; that it lives its leader hears elsewhere (workers/worker.c), and ends the group if not. */

enum { MESSAGE_ROWS = MESSAGE_FIRST };

typedef struct socket_peer {
    wire from, to;               /* the range before, and the next one; fd -1: there is none */
    pthread_mutex_t lock;        /* of what follows, and of fd as long as there is none */
    int over;                    /* the group has come to its end */
} socket_peer;

static void sockets_open(socket_peer *s) {
    memset(s, 0, sizeof *s);
    wire_open(&s->from, -1);
    wire_open(&s->to, -1);
    pthread_mutex_init(&s->lock, NULL);
}

static void sockets_close(socket_peer *s) {
    wire_close(&s->from);
    wire_close(&s->to);
    pthread_mutex_destroy(&s->lock);
}

static void sockets_end(peer *me) {
    socket_peer *s = me->sockets;
    pthread_mutex_lock(&s->lock);
    s->over = 1;
    wire_end(&s->from);
    wire_end(&s->to);
    pthread_mutex_unlock(&s->lock);
}

/* The connection is the group's from now on. */
static void sockets_take(socket_peer *s, wire *w, int fd) {
    pthread_mutex_lock(&s->lock);
    w->fd = fd;
    if (s->over) wire_end(w);
    pthread_mutex_unlock(&s->lock);
}

/* A connection is lost. Whoever asks the host at its other end hears of that, too, and says which host it is: waits for that a little. */
static int sockets_lost(socket_peer *s) {
    for (int i = 0, over = 0; i < 20 && !over; i++) {
        pthread_mutex_lock(&s->lock);
        over = s->over;
        pthread_mutex_unlock(&s->lock);
        if (!over) poll(NULL, 0, 50);
    }
    return 1;
}

static int sockets_send(peer *me, const void *from, size_t bytes) {
    const wire_part part = {from, bytes};
    const int failed = bytes > UINT32_MAX || wire_send(&me->sockets->to, MESSAGE_ROWS, &part, 1, 0);
    return failed && sockets_lost(me->sockets);
}

static int sockets_receive(peer *me, void *to, size_t bytes) {
    const wire *w = &me->sockets->from;
    wire_head h = {0, 0};
    const int failed = wire_next(w, &h, bytes, 0) || h.type != MESSAGE_ROWS || h.bytes != bytes || wire_read(w->fd, to, bytes, WIRE_SILENCE);
    return failed && sockets_lost(me->sockets);
}

/* A range's ranks are on one host. */
static int sockets_gather(peer *me, const void *from, size_t bytes, void *all) {
    (void)me;
    memcpy(all, from, bytes);
    return 0;
}

static const exchange socket_exchange = {
    .send = sockets_send, .receive = sockets_receive, .gather = sockets_gather, .end = sockets_end};
