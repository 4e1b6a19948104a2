/* cpu/threads.c: one parallel loop, and the threads that run it. Knows nothing of what a loop does.

   A stage is a loop over independent items (rows of a weight, heads). parallel() hands out pieces of the loop to a few
   threads that live as long as the session. A decode step has hundreds of such loops of some microseconds, so waiting
   threads look for work a while before they sleep. And a loop does not wait for helpers that have not come to it: on a
   busy machine one may be kept away for milliseconds, while the caller has long done the work alone. */

enum {
    POOL_SPINS = 4000,
    POOL_PIECES = 32,            /* pieces of a loop for each thread: at its end, threads wait for one piece at most */
    POOL_CLOSED = 1 << 30
};

enum { MAX_THREADS = 256 };

/* Processors this process may use. */
static int processors(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

typedef void (*loop_body)(void *context, int begin, int end, int thread);

typedef struct pool {
    int threads;                 /* the caller included */
    pthread_t *ids;              /* threads - 1 */
    int started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    loop_body body;              /* the present loop: written before `round` is */
    void *context;
    int count, piece;
    int next;                    /* first item not handed out (atomic) */
    int inside;                  /* helpers inside the present loop, + POOL_CLOSED when none may enter (atomic) */
    unsigned round;              /* grows with every loop (atomic) */
    int quit;                    /* (atomic) */
} pool;

typedef struct pool_thread { pool *owner; int index; } pool_thread;

static void pool_work(pool *p, int thread) {
    for (;;) {
        int begin = __atomic_fetch_add(&p->next, p->piece, __ATOMIC_RELAXED);
        if (begin >= p->count) return;
        int end = begin + p->piece < p->count ? begin + p->piece : p->count;
        p->body(p->context, begin, end, thread);
    }
}

static unsigned pool_wait(pool *p, unsigned seen) {
    for (int i = 0; i < POOL_SPINS; i++) {
        unsigned round = __atomic_load_n(&p->round, __ATOMIC_ACQUIRE);
        if (round != seen) return round;
        if (i % 64 == 63) sched_yield();
    }
    pthread_mutex_lock(&p->lock);
    while (__atomic_load_n(&p->round, __ATOMIC_ACQUIRE) == seen) pthread_cond_wait(&p->wake, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return __atomic_load_n(&p->round, __ATOMIC_ACQUIRE);
}

static void *pool_main(void *argument) {
    pool_thread me = *(pool_thread *)argument;
    free(argument);
    unsigned seen = 0;
    for (;;) {
        seen = pool_wait(me.owner, seen);
        if (__atomic_load_n(&me.owner->quit, __ATOMIC_ACQUIRE)) return NULL;
        if (!(__atomic_fetch_add(&me.owner->inside, 1, __ATOMIC_ACQ_REL) & POOL_CLOSED)) pool_work(me.owner, me.index);
        __atomic_sub_fetch(&me.owner->inside, 1, __ATOMIC_RELEASE);
    }
}

static void pool_announce(pool *p) {
    pthread_mutex_lock(&p->lock);
    __atomic_add_fetch(&p->round, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

/* Frees a pool in a forked child. Its threads did not come along, so there is nobody to join; and lock and wake are as
   those threads left them, so they must not be touched, not even to destroy them. */
static void pool_abandon(pool *p) {
    if (p) free(p->ids);
    free(p);
}

static void pool_close(pool *p) {
    if (!p) return;
    __atomic_store_n(&p->quit, 1, __ATOMIC_RELEASE);
    pool_announce(p);
    for (int i = 0; i < p->started; i++) pthread_join(p->ids[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->ids);
    free(p);
}

/* pthread_create with all signals blocked in the new thread: signals are the application's, and one that it waits for
   (sigwait) must not be delivered to a thread it knows nothing of. Returns 0 or pthread_create's error. */
static int thread_start(pthread_t *id, void *(*body)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    int code = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (code) return code;
    code = pthread_create(id, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

/* A pool of `threads` threads, the caller's included; NULL when the system gives none. */
static pool *pool_open(int threads) {
    pool *p = (pool *)calloc(1, sizeof *p);
    if (!p) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->threads = threads;
    p->inside = POOL_CLOSED;
    p->ids = (pthread_t *)calloc((size_t)threads, sizeof *p->ids);
    for (int i = 1; p->ids && i < threads; i++) {
        pool_thread *start = (pool_thread *)malloc(sizeof *start);
        if (!start) break;
        start->owner = p;
        start->index = i;
        if (thread_start(&p->ids[p->started], pool_main, start)) {
            free(start);
            break;
        }
        p->started++;
    }
    if (p->started == threads - 1) return p;
    pool_close(p);
    return NULL;
}

/* Calls body(context, begin, end, thread) for pieces that together make up 0..count-1, and returns when all are done. */
static void parallel(pool *p, int count, loop_body body, void *context) {
    if (p->threads == 1 || count < 2) {
        if (count > 0) body(context, 0, count, 0);
        return;
    }
    p->body = body;
    p->context = context;
    p->count = count;
    p->piece = 1 + (count - 1) / (p->threads * POOL_PIECES);
    __atomic_store_n(&p->next, 0, __ATOMIC_RELAXED);
    __atomic_fetch_and(&p->inside, ~POOL_CLOSED, __ATOMIC_ACQ_REL);
    pool_announce(p);
    pool_work(p, 0);
    __atomic_fetch_or(&p->inside, POOL_CLOSED, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&p->inside, __ATOMIC_ACQUIRE) & ~POOL_CLOSED) sched_yield();
}
