/* serve/server.c: what all connections share: the model and its sessions. It knows nothing of HTTP or of any API.

   All sessions of a replica are of one runner. Each that is in use has the thread of its connection, and what these threads ask of the
   library at the same time meets there: steps of several answers become one pass, a prompt goes on between them. So nothing here says who
   may compute; `lock` is never held while something computes, or anyone waits for that.

   Replicas are copies of one model, so a timeline that one of them has saved, and its checkpoints, are every other one's, too. */

/* sessions of a replica, and of all: more clients than that have no connection; snapshots of a session */
enum { SLOTS_MOST = 64, PARALLEL_MOST = 256, SNAPSHOTS_MOST = 64 };

/* A copy of the model on a device of its own, with a runner. */
typedef struct replica {
    const mote_model *model;
    mote_runner *runner;                   /* NULL: it is being opened anew */
    int sessions;                          /* of the runner */

    int lost;                              /* under the server's lock, as all below: the device has failed, its sessions can only be closed */
    char why[sizeof ((mote_error *)0)->message];           /* if it is lost */
    int watched;                           /* so many look at the runner without the lock: it stays */
    double read_speed;                     /* tokens of prompts a second of late; 0: not known yet */
    mote_seen read_seen;                   /* when that was found */
} replica;

/* A place in a timeline to which its session can go back. */
typedef struct snapshot {
    mote_checkpoint *checkpoint;
    size_t bytes;                          /* of the checkpoint */
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
    replica *of;
    mote_session *session;
    struct answer *answer;                 /* under way; NULL: none */
    int busy;
    size_t unread;                         /* tokens of a prompt that is being read */
    uint64_t used;
    snapshots past;
    size_t asked;                          /* of the last prompt: tokens up to the end of the user's last question */
    int of_chats;                          /* its tokens are those of rendered chats and of answers to them */
    mote_speculation counted;              /* counted so far */
    mote_drafter_use counted_blocks;       /* the same */
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
    int of_chats;
    uint64_t used;
} swapped;

typedef struct waiter {                    /* a request without a session */
    struct waiter *next;
} waiter;

typedef struct counters {
    uint64_t requests, refused, cancelled, prompt_tokens, cached_tokens, generated_tokens;
    double prompt_seconds, generate_seconds;
    mote_speculation speculation;          /* its counts and seconds, of all sessions */
    mote_drafter_use blocks;               /* its counts, likewise */
} counters;

typedef struct server {
    const mote_model *model;               /* the first replica's: its texts, which need no device */
    replica replicas[REPLICAS_MOST];
    int replica_count;
    char name[256];                        /* of the model */
    access_rules *access;
    budget budget;                         /* of requests under way */
    listener listener;
    int log;                               /* LOG_... */
    int context, reads_alike;              /* reads_alike: a prompt's bits do not depend on the pieces in which it is read */
    int32_t turn_begins, tool_responds;    /* control tokens; -1: the vocabulary has none */
    int32_t asks;                          /* begins a user's turn by itself; -1: turn_begins and `user` do */
    int has_efforts;                       /* the chat template knows efforts of thinking */
    int switches_thinking, takes_tools;    /* it writes prompts with and without thinking; it writes tools */
    int reads_images;                      /* the model has a vision tower, and the template places for images */
    int32_t image_pad;                     /* which are this token */
    int image_tokens;                      /* of one, at most; 0: as the library has it */
    int32_t user;                          /* the role's name */
    mote_session_options runner_options, session_options;
    int own_lost;                          /* with workers: this host's own device */
    int reaches, reach_runs;               /* replicas have workers, and are opened anew when these are lost; by this thread: see reach.c */
    pthread_t reaching;
    server_slot *slots;
    int slot_count, waiting_most;

    pthread_mutex_t lock;                  /* of all below, and of the lists in slots */
    pthread_cond_t freed;
    waiter *waiting;
    int waiting_count;
    int device_lost;                       /* that of every replica */
    int reach_ends;                        /* the thread shall end */
    uint64_t clock;                        /* requests so far */
    swapped *swapped_out;
    size_t cache_most, cache_used;
    size_t snapshot_bytes;                 /* of a snapshot, at least */
    const char *disk;                      /* the folder of timelines; NULL: none is kept there */
    size_t disk_most, disk_used;           /* bytes */
    double disk_said;                      /* when something about it was said; 0: never */
    counters counted;
    time_t since;
} server;

/* Under the lock: waits until something has become free, or a tenth of a second is over. */
static void server_wait(server *s) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    pthread_cond_timedwait(&s->freed, &s->lock, &until);
}

/* The replica's runner, which stays until replica_unwatch, whatever becomes of the replica. */
static mote_runner *replica_watch(server *s, replica *r) {
    pthread_mutex_lock(&s->lock);
    mote_runner *runner = r->runner;
    r->watched++;
    pthread_mutex_unlock(&s->lock);
    return runner;
}

static void replica_unwatch(server *s, replica *r) {
    pthread_mutex_lock(&s->lock);
    r->watched--;
    pthread_mutex_unlock(&s->lock);
}

/* What serves of the model. */
static const char *replica_device(const replica *r) {
    return mote_model_info(r->model)->device;
}
