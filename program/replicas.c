/* program/replicas.c: copies of the model, each on a device of its own: which devices these are, whether the model fits on each of them, and
   opening it on all of them at the same time. What a command does with the copies is its own business. */

enum { REPLICAS_MOST = 16, DEVICE_NAME = 40 };

typedef struct replicas {
    int count;
    char device[REPLICAS_MOST][DEVICE_NAME];       /* "": the only one is the model as the options have it, perhaps divided among devices */
    mote_model *model[REPLICAS_MOST];      /* owned; see open_replicas */
} replicas;

/* The options of replica i alone. */
static options options_of(const options *o, const replicas *r, int i) {
    options one = *o;
    if (!*r->device[i]) return one;
    one.device = r->device[i];
    one.devices = NULL;
    one.split = MOTE_SPLIT_AUTO;
    one.split_layers = NULL;
    return one;
}

/* How many replicas are on the device of replica i. */
static int replicas_beside(const replicas *r, int i) {
    int n = 0;
    for (int k = 0; k < r->count; k++) n += !strcmp(r->device[k], r->device[i]);
    return n;
}

/* Of a session on a runner that others share. */
static uint64_t session_bytes(const mote_memory *plan) {
    return plan->total - plan->weights - plan->runner;
}

/* Plans the memory of replica i, which shares what is free with those on the same device. */
static int plan_replica(const options *o, const replicas *r, int i, const mote_session_options *how, mote_memory *plan) {
    const options one = options_of(o, r, i);
    const int code = plan_memory(&one, how, plan, NULL), beside = replicas_beside(r, i);
    if (code || beside == 1 || !plan->available) return code;
    plan->available /= (uint64_t)beside;
    const uint64_t before = plan->weights + plan->runner;
    const uint64_t sessions = plan->available < before ? 0 : (plan->available - before) / session_bytes(plan);
    plan->sessions = sessions < INT_MAX ? (int)sessions : INT_MAX;
    return MOTE_OK;
}

/* 1: the model with a session fits on each device. Where a plan fails, opening will tell why. */
static int replicas_fit(const options *o, const replicas *r) {
    for (int i = 0; i < r->count; i++) {
        const mote_session_options how = session_options(o);
        mote_memory plan;
        if (!plan_replica(o, r, i, &how, &plan) && plan.sessions == 0) return 0;
    }
    return 1;
}

/* Takes the list of devices apart. Returns the exit code. */
static int list_replicas(const char *devices, replicas *r) {
    char item[32];
    for (r->count = 0; devices; r->count++) {
        if (r->count == REPLICAS_MOST || !next_item(&devices, item)) return complain(EXIT_USAGE, "--devices: at most %d of them", REPLICAS_MOST);
        snprintf(r->device[r->count], DEVICE_NAME, "%s%s", strchr("0123456789", item[0]) ? "cuda:" : "", !strcmp(item, "cuda") ? "cuda:0" : item);
        if (!strcmp(r->device[r->count], "cpu") != !strcmp(r->device[0], "cpu"))
            return complain(EXIT_USAGE, "--devices: replicas are all on GPUs, or all on the CPU");
    }
    return 0;
}

/* Finds out what replicas there are to be, after find_model: one for each device where `--split replicas` says so, or, with `chooses`,
   where nothing does and the model fits on each. Returns the exit code. */
static int find_replicas(options *o, int chooses, replicas *r) {
    int code = check_devices(o);
    memset(r, 0, sizeof *r);
    r->count = 1;
    if (code || !o->devices || (o->split != SPLIT_REPLICAS && (!chooses || o->split != MOTE_SPLIT_AUTO))) return code;
    code = list_replicas(o->devices, r);
    if (!code && o->split != SPLIT_REPLICAS && !replicas_fit(o, r)) {
        memset(r, 0, sizeof *r);
        r->count = 1;
    }
    return code;
}

/* ---- Opening ------------------------------------------------------------------------------------------------------ */

typedef struct opening {                   /* of one replica, in a thread of its own */
    struct openings *all;
    options o;
    mote_model **model;
    double done;                           /* of 1 */
    int parts, code;
    mote_error error;
} opening;

typedef struct openings {
    opening of[REPLICAS_MOST];
    pthread_mutex_t lock;                  /* of what is shown, and of `done` */
    _Atomic int failed;
    int count;
} openings;

/* What all of them have done, on average. */
static void on_opening_progress(void *user, const char *what, double fraction) {
    opening *me = (opening *)user;
    openings *all = me->all;
    double done = 0;
    pthread_mutex_lock(&all->lock);
    me->done = fraction;
    for (int i = 0; i < all->count; i++) done += all->of[i].done;
    on_progress(NULL, what, done / all->count);
    pthread_mutex_unlock(&all->lock);
}

/* All of them have the same to say of the checkpoint: the first one does. */
static void on_opening_log(void *user, const char *line) {
    opening *me = (opening *)user;
    if (me != me->all->of) return;
    pthread_mutex_lock(&me->all->lock);
    on_log(NULL, line);
    pthread_mutex_unlock(&me->all->lock);
}

static int on_opening_cancel(void *user) {
    return interrupted || ((opening *)user)->all->failed;
}

static void *open_replica(void *user) {
    opening *me = (opening *)user;
    mote_callbacks how = {.log = on_opening_log, .cancel = on_opening_cancel, .user = me};
    if (callbacks().progress) how.progress = on_opening_progress;
    me->code = open_found(&me->o, me->parts, &how, me->model, &me->error);
    if (me->code) me->all->failed = 1;
    return NULL;
}

/* Opens all at the same time. What fails ends the others, which then are cancelled. */
static int open_several(const options *o, int parts, replicas *r) {
    openings all = {.count = r->count};
    pthread_t threads[REPLICAS_MOST];
    int runs[REPLICAS_MOST] = {0};
    const opening *failed = NULL;
    pthread_mutex_init(&all.lock, NULL);
    for (int i = 0; i < r->count; i++) all.of[i] = (opening){.all = &all, .o = options_of(o, r, i), .model = &r->model[i], .parts = parts};
    for (int i = 0; i < r->count; i++) {
        runs[i] = !pthread_create(&threads[i], NULL, open_replica, &all.of[i]);
        if (!runs[i]) open_replica(&all.of[i]);
    }
    for (int i = 0; i < r->count; i++) {
        if (runs[i]) pthread_join(threads[i], NULL);
        if (all.of[i].code && (!failed || failed->code == MOTE_ECANCELLED)) failed = &all.of[i];
    }
    pthread_mutex_destroy(&all.lock);
    return failed ? report(&failed->error) : 0;
}

/* Opens the model of each. Returns the exit code; close_replicas closes what there is. */
static int open_replicas(options *o, int parts, replicas *r) {
    int code = check_devices(o);
    if (!code) code = find_model(o, parts);
    if (!code) code = open_several(o, parts, r);
    clear_progress();
    if (!code) note_gpu_options(o, r->model[0]);
    return code;
}

static void close_replicas(replicas *r) {
    for (int i = 0; i < r->count; i++) mote_close(r->model[i]);
}
