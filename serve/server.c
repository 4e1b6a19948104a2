/* serve/server.c: what all connections share: the model, its sessions, and the order in which they may compute. It knows
   nothing of HTTP or of any API.

   Each session in use has a thread, but one computes at a time: it holds the compute lock. Between two passes, and between
   two pieces of a prompt, it lets those who wait for the lock go first, in the order in which they came. */

enum { SNAPSHOTS_MOST = 64 };              /* of a session */

typedef struct compute_lock {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t next, serving;                /* tickets */
} compute_lock;

/* A place in a timeline to which its session can go back. */
typedef struct snapshot {
    mote_checkpoint *checkpoint;
    size_t count;                          /* tokens before it */
    int owners;                            /* timelines that hold it */
    uint64_t used;                         /* the request that took it or went back to it */
} snapshot;

typedef struct snapshots {
    snapshot *at[SNAPSHOTS_MOST];          /* by count */
    int count;
} snapshots;

typedef struct server_slot {                      /* a session and what is known of its timeline */
    struct server *server;
    mote_session *session;
    struct answer *answer;                 /* under way; NULL: none */
    int busy;
    uint64_t used;
    snapshots past;
    size_t asked;                          /* of the last prompt: tokens up to the end of the user's last question */
    mote_speculation seen;                 /* counted so far */
} server_slot;

typedef struct swapped {                   /* a timeline without a session */
    struct swapped *next;
    char *bytes;                           /* of mote_save */
    char *path;                            /* or of mote_save_file: see disk.c */
    size_t size;
    int32_t *tokens;
    size_t count;
    snapshots past;
    size_t asked;
    uint64_t used;
} swapped;

typedef struct waiter {                    /* a request without a session */
    struct waiter *next;
} waiter;

typedef struct counters {
    uint64_t requests, refused, cancelled, prompt_tokens, cached_tokens, generated_tokens;
    uint64_t passes, drafted, accepted;
    double prompt_seconds, generate_seconds;
} counters;

typedef struct server {
    const mote_model *model;
    char name[256];                        /* of the model */
    access_rules access;
    budget budget;                         /* of requests under way */
    listener listener;
    int verbose;
    int context, reads_alike;              /* reads_alike: a prompt's bits do not depend on the pieces in which it is read */
    int32_t turn_begins, tool_responds;    /* control tokens; -1: the vocabulary has none */
    int32_t user;                          /* the role's name */
    server_slot *slots;
    int slot_count, waiting_most;

    pthread_mutex_t lock;                  /* of all below, and of the lists in slots */
    pthread_cond_t freed;
    waiter *waiting;
    int waiting_count, sessions_lost;
    uint64_t clock;                        /* requests so far */
    swapped *swapped_out;
    size_t cache_most, cache_used, snapshot_bytes;
    const char *disk;                      /* the folder of timelines; NULL: none is kept there */
    size_t disk_most, disk_used;           /* bytes */
    double disk_said;                      /* when something about it was said; 0: never */
    counters seen;
    double read_speed;                     /* tokens a second of late; 0: not known yet */
    time_t since;

    compute_lock compute_lock;
} server;

static void compute_lock_take(compute_lock *l) {
    pthread_mutex_lock(&l->lock);
    for (uint64_t ticket = l->next++; ticket != l->serving;) pthread_cond_wait(&l->turn, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

static void compute_lock_release(compute_lock *l) {
    pthread_mutex_lock(&l->lock);
    l->serving++;
    pthread_cond_broadcast(&l->turn);
    pthread_mutex_unlock(&l->lock);
}

/* Lets those who wait go first. */
static void compute_lock_yield(compute_lock *l) {
    pthread_mutex_lock(&l->lock);
    int others = l->next - l->serving > 1;
    pthread_mutex_unlock(&l->lock);
    if (!others) return;
    compute_lock_release(l);
    compute_lock_take(l);
}
