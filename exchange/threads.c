/* exchange/threads.c: the transport of members that are threads of one process, through its memory. */

/* Rows on their way to a rank of a range. */
typedef struct thread_mailbox { char *bytes; int full; } thread_mailbox;

/* The ranks of a range that meet. Rounds take two places in turns: a rank comes to the next round only when it has read all of this one. */
typedef struct thread_meeting {
    char *shares[2];             /* [ranks][most] */
    int arrived;
    unsigned round;              /* those that are over */
} thread_meeting;

typedef struct thread_group {
    pthread_mutex_t lock;        /* of what follows, but for the bytes, which are of who may fill them or read them */
    pthread_cond_t changed;
    int ranges, ranks;
    size_t most;                 /* bytes that are exchanged at once */
    thread_mailbox *box;         /* [ranges][ranks] */
    thread_meeting *meeting;     /* [ranges] */
    char *memory;                /* of all bytes */
    int over;                    /* the group has been ended */
} thread_group;

/* Frees a transport that no member uses any more. In a forked child lock and condition are as the parent's threads left them. */
static void threads_free(thread_group *g, int in_child) {
    if (!g) return;
    if (!in_child) {
        pthread_cond_destroy(&g->changed);
        pthread_mutex_destroy(&g->lock);
    }
    free(g->box);
    free(g->meeting);
    free(g->memory);
    free(g);
}

/* A transport for messages of at most so many bytes, of threads_free. NULL: there is no memory. */
static thread_group *threads_open(int ranges, int ranks, size_t most) {
    const size_t members = (size_t)ranges * (size_t)ranks;
    thread_group *g = (thread_group *)calloc(1, sizeof *g);
    if (!g) return NULL;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->ranges = ranges;
    g->ranks = ranks;
    g->most = most;
    g->box = (thread_mailbox *)calloc(members, sizeof *g->box);
    g->meeting = (thread_meeting *)calloc((size_t)ranges, sizeof *g->meeting);
    g->memory = (char *)malloc(3 * members * most);
    if (!g->box || !g->meeting || !g->memory) {
        threads_free(g, 0);
        return NULL;
    }
    char *at = g->memory;
    for (size_t i = 0; i < members; i++, at += most) g->box[i].bytes = at;
    for (int i = 0; i < 2 * ranges; i++, at += (size_t)ranks * most) g->meeting[i / 2].shares[i % 2] = at;
    return g;
}

/* Waits until *state is `value`; nonzero: the group has been ended. */
static int threads_wait(thread_group *g, const int *state, int value) {
    pthread_mutex_lock(&g->lock);
    while (!g->over && *state != value) pthread_cond_wait(&g->changed, &g->lock);
    const int over = g->over;
    pthread_mutex_unlock(&g->lock);
    return over;
}

static void threads_set(thread_group *g, int *state, int value) {
    pthread_mutex_lock(&g->lock);
    *state = value;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static thread_mailbox *threads_box(const peer *me, int range) {
    return &me->threads->box[range * me->at.ranks + me->at.rank];
}

static int threads_send(peer *me, const void *from, size_t bytes) {
    thread_mailbox *box = threads_box(me, me->at.range + 1);
    if (bytes > me->threads->most || threads_wait(me->threads, &box->full, 0)) return 1;
    memcpy(box->bytes, from, bytes);
    threads_set(me->threads, &box->full, 1);
    return 0;
}

static int threads_receive(peer *me, void *to, size_t bytes) {
    thread_mailbox *box = threads_box(me, me->at.range);
    if (bytes > me->threads->most || threads_wait(me->threads, &box->full, 1)) return 1;
    memcpy(to, box->bytes, bytes);
    threads_set(me->threads, &box->full, 0);
    return 0;
}

/* Waits for all ranks of a range; nonzero: the group has been ended. */
static int threads_meet(thread_group *g, thread_meeting *m) {
    pthread_mutex_lock(&g->lock);
    const unsigned round = m->round;
    if (++m->arrived == g->ranks) {
        m->arrived = 0;
        m->round++;
        pthread_cond_broadcast(&g->changed);
    }
    while (!g->over && m->round == round) pthread_cond_wait(&g->changed, &g->lock);
    const int over = g->over;
    pthread_mutex_unlock(&g->lock);
    return over;
}

static int threads_gather(peer *me, const void *from, size_t bytes, void *all) {
    thread_group *g = me->threads;
    thread_meeting *m = &g->meeting[me->at.range];
    char *shares = m->shares[m->round % 2];                 /* no round is over before this rank comes to it */
    if (bytes > g->most) return 1;
    memcpy(shares + (size_t)me->at.rank * bytes, from, bytes);
    if (threads_meet(g, m)) return 1;
    memcpy(all, shares, (size_t)me->at.ranks * bytes);
    return 0;
}

static void threads_end(peer *me) {
    thread_group *g = me->threads;
    pthread_mutex_lock(&g->lock);
    g->over = 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static const exchange thread_exchange = {
    .send = threads_send, .receive = threads_receive, .gather = threads_gather, .end = threads_end};
