/* serve/reach.c: replicas that have some of their layers on other hosts (--workers). When one of these is lost, so is the replica, but the server
   stays: as soon as nothing uses the replica, a thread closes its sessions, reaches the workers again, and opens runner and sessions
   anew. It knows replicas and sessions, and nothing of requests.

   Where the server's own device is lost, no worker mends that: it ends, as it does without workers.

   Attempts follow each other after REACH_SECONDS where nobody is there; where somebody refuses, which is a mistake to be mended by hand and
   costs the worker a look at its folder each time, after twice as long each time. */

enum { REACH_SECONDS = 3, REACH_SECONDS_MOST = 60 };

/* Under the server's lock, as the next one. NULL: there is none that can be reached now. */
static replica *replica_to_reach(server *s) {
    int used[REPLICAS_MOST] = {0};
    for (const server_slot *t = s->slots; t < s->slots + s->slot_count; t++) used[t->of - s->replicas] |= t->busy;
    for (int i = 0; i < s->replica_count; i++)
        if (s->replicas[i].lost && !s->replicas[i].watched && !used[i]) return &s->replicas[i];
    return NULL;
}

/* Its sessions are empty; for all that is known of them it is as if they had just been opened. */
static void replica_forget(server *s, const replica *r) {
    for (server_slot *t = s->slots; t < s->slots + s->slot_count; t++) {
        if (t->of != r) continue;
        snapshots_cut(s, &t->past, 0);
        t->asked = 0;
        memset(&t->counted, 0, sizeof t->counted);
        memset(&t->counted_blocks, 0, sizeof t->counted_blocks);
    }
}

static void replica_close_sessions(server *s, const replica *r) {
    for (server_slot *t = s->slots; t < s->slots + s->slot_count; t++) {
        if (t->of != r) continue;
        mote_session_close(t->session);
        t->session = NULL;
    }
}

static int on_reach_cancel(void *user) {
    (void)user;
    return serve_stops;
}

/* Once nothing uses it. The lost runner goes first: its successor may have its memory. */
static int replica_open(server *s, replica *r, mote_error *error) {
    const mote_callbacks calls = {.cancel = on_reach_cancel};
    mote_runner *runner = NULL, *before = r->runner;
    replica_close_sessions(s, r);
    pthread_mutex_lock(&s->lock);
    while (r->watched) server_wait(s);
    r->runner = NULL;
    pthread_mutex_unlock(&s->lock);
    mote_runner_close(before);
    int code = mote_reconnect(r->model, &calls, error);
    if (!code) code = mote_runner_open(r->model, &s->runner_options, &runner, error);
    if (code) return code;
    pthread_mutex_lock(&s->lock);
    r->runner = runner;
    memset(&r->read_seen, 0, sizeof r->read_seen);
    pthread_mutex_unlock(&s->lock);
    for (server_slot *t = s->slots; t < s->slots + s->slot_count && !code; t++)
        if (t->of == r) code = server_slot_open(t, &s->session_options, error);
    return code;
}

/* Under the server's lock, which it gives up meanwhile: the server ends if its own device is lost. */
static int reach_ends(server *s, const replica *r) {
    mote_error error = {0, ""};
    pthread_mutex_unlock(&s->lock);
    const int code = mote_check_device(r->model, &error);
    if (code) show_format(stderr, "mote: %s\n", error.message);
    pthread_mutex_lock(&s->lock);
    if (code) {
        s->own_lost = 1;
        serve_stops = 1;
    }
    return code != 0;
}

/* Under the server's lock, which it gives up meanwhile. Returns the seconds until the next attempt, after those before this one. */
static int replica_reach(server *s, replica *r, int after) {
    mote_error error = {0, ""};
    replica_forget(s, r);
    pthread_mutex_unlock(&s->lock);
    const int code = replica_open(s, r, &error), fails = code && code != MOTE_ECANCELLED;
    if (!code) show_format(stderr, "mote: all workers are there: %s serves again\n", s->name);
    else if (fails && strcmp(r->why, error.message)) show_format(stderr, "mote: %s; it is tried again\n", error.message);
    pthread_mutex_lock(&s->lock);
    if (fails) snprintf(r->why, sizeof r->why, "%s", error.message);
    if (!code) r->lost = s->device_lost = 0;
    pthread_cond_broadcast(&s->freed);
    if (!code || code == MOTE_EIO || code == MOTE_EDEVICE) return REACH_SECONDS;
    return 2 * after < REACH_SECONDS_MOST ? 2 * after : (int)REACH_SECONDS_MOST;
}

static void *reach_main(void *user) {
    server *s = (server *)user;
    int after = REACH_SECONDS;
    double next = 0;
    pthread_mutex_lock(&s->lock);
    while (!serve_stops && !s->reach_ends) {
        replica *r = clock_seconds() >= next ? replica_to_reach(s) : NULL;
        if (r && !reach_ends(s, r)) {
            after = replica_reach(s, r, after);
            next = clock_seconds() + after;
        } else {
            server_wait(s);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Starts the thread; it takes no signals. Returns the exit code. */
static int reach_start(server *s) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->reach_runs = !pthread_create(&s->reaching, NULL, reach_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s->reach_runs ? 0 : complain(EXIT_FAILURE, "no more threads");
}

static void reach_stop(server *s) {
    if (!s->reach_runs) return;
    pthread_mutex_lock(&s->lock);
    s->reach_ends = 1;
    pthread_cond_broadcast(&s->freed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->reaching, NULL);
}
