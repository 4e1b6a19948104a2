/* workers/model.c: a leader's model whose first layers workers have: opening each one's part there. What is said stands in workers/messages.c. */

static int model_open(const char *dir, const mote_options *o, const model_part *part, int load, mote_model **model, mote_error *error);

/* What a model's name is of. digest: by which two hosts see that they have the same model. */
typedef struct model_source {
    part_opener *open;
    int (*digest)(const char *name, unsigned char to[SHA256_SIZE], mote_error *err);
} model_source;

static const model_source folder_source = {.open = model_open, .digest = folder_digest};

/* Of a member whose part a worker has: mote_model.remote. */
typedef struct remote_model {
    message_model say;           /* what it has been asked to open; the ticket is of this connection: */
    wire leads;                  /* as long as it lasts, the worker keeps its part */
    pthread_mutex_t lock;        /* of leads.fd, and of what follows */
    pthread_cond_t ends;
    int quit;                    /* the thread shall end */
    pthread_t thread;            /* that sends beats */
    pid_t owner;                 /* the process whose thread it is; 0: there is none */
    char address[ADDRESS_SIZE];
    char secret[1];              /* as long as it is */
} remote_model;

/* Connects to the worker. w: open, without a connection. */
static int remote_connect(const remote_model *of, wire *w, mote_error *err) {
    char name[ADDRESS_SIZE + 16];
    snprintf(name, sizeof name, "worker %s", of->address);
    w->fd = wire_connect(of->address);
    if (w->fd < 0) return fail(err, MOTE_EIO, "%s: %s", name, strerror(errno));
    return wire_shake(w->fd, of->secret, 1, name, err);
}

/* Waits for the answer to what has been said; said: what sending it has returned. to [bytes]: what follows it; number: the answer's, NULL: not
   wanted. */
static int remote_hear(const remote_model *of, wire *w, int said, void *to, size_t bytes, uint64_t *number, mote_error *err) {
    message_answer answer;
    wire_head h = {0, 0};
    char name[ADDRESS_SIZE + 16];
    snprintf(name, sizeof name, "worker %s", of->address);
    int code = said;
    if (!code) code = wire_next(w, &h, sizeof answer + bytes, WIRE_SILENCE);
    if (!code && (h.type != MESSAGE_ANSWER || h.bytes < sizeof answer)) code = WIRE_STRANGE;
    if (!code) code = wire_read(w->fd, &answer, sizeof answer, WIRE_SILENCE);
    if (!code) answer_settle(&answer);
    if (!code && h.bytes - sizeof answer != (answer.code ? 0 : bytes)) code = WIRE_STRANGE;
    if (!code && !answer.code) code = wire_read(w->fd, to, bytes, WIRE_SILENCE);
    if (code) {
        wire_end(w);                                        /* nothing that comes later would be in its place */
        return wire_fail(err, MOTE_EDEVICE, name, code, WIRE_SILENCE);
    }
    if (number) *number = answer.number;
    return answer.code ? fail(err, answer.code, "%s: %.400s", name, answer.text) : MOTE_OK;
}

/* Says something and waits for the answer. */
static int remote_ask(const remote_model *of, wire *w, uint32_t type, const wire_part *parts, int count, void *to, size_t bytes, uint64_t *number,
                      mote_error *err) {
    return remote_hear(of, w, wire_send(w, type, parts, count, WIRE_SILENCE), to, bytes, number, err);
}

/* Tells the worker that its leader is there. */
static void *remote_beats(void *argument) {
    remote_model *of = (remote_model *)argument;
    pthread_mutex_lock(&of->lock);
    while (!of->quit) {
        struct timespec next;
        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_sec += WIRE_BEAT;
        if (pthread_cond_timedwait(&of->ends, &of->lock, &next) == ETIMEDOUT && of->leads.fd >= 0) wire_beat(&of->leads);
    }
    pthread_mutex_unlock(&of->lock);
    return NULL;
}

/* In a forked child there is no thread, and the lock is as the parent's has left it. */
static void remote_forget(remote_model *of) {
    if (!of) return;
    if (of->owner == getpid()) {
        pthread_mutex_lock(&of->lock);
        of->quit = 1;
        pthread_cond_signal(&of->ends);
        pthread_mutex_unlock(&of->lock);
        pthread_join(of->thread, NULL);
    }
    wire_close(&of->leads);
    free(of);
}

/* The connection is this one from now on; -1: there is none. */
static void remote_take(remote_model *of, int fd) {
    pthread_mutex_lock(&of->lock);
    if (of->leads.fd >= 0) close(of->leads.fd);
    of->leads.fd = fd;
    pthread_mutex_unlock(&of->lock);
}

/* Connects, and has the worker open its part, which takes as long as that takes. *opened: what that is. */
static int remote_lead(remote_model *of, const mote_callbacks *callbacks, message_opened *opened, mote_error *err) {
    const wire_part part = {&of->say, sizeof of->say};
    wire w;
    wire_open(&w, -1);
    w.asks = callbacks;
    int code = getentropy(of->say.ticket, sizeof of->say.ticket) ? fail(err, MOTE_EIO, "no random numbers: %s", strerror(errno)) : MOTE_OK;
    if (!code) code = remote_connect(of, &w, err);
    if (!code) code = remote_ask(of, &w, MESSAGE_MODEL, &part, 1, opened, sizeof *opened, NULL, err);
    if (!code) remote_take(of, w.fd), w.fd = -1;
    wire_close(&w);
    return code;
}

/* What stands at place `range` of a list with commas between. 0: nothing, or more than an address has. */
static int worker_address(const char *list, int range, char to[ADDRESS_SIZE]) {
    for (; range && list; range--) {
        list = strchr(list, ',');
        if (list) list++;
    }
    const size_t n = list ? strcspn(list, ",") : 0;
    if (!n || n >= ADDRESS_SIZE) return 0;
    memcpy(to, list, n);
    to[n] = 0;
    return 1;
}

/* Has the worker open its part of what m is of, which is described. */
static int remote_model_open(mote_model *m, const model_source *from, const char *name, const mote_options *o, mote_error *err) {
    remote_model *of = (remote_model *)calloc(1, sizeof *of + strlen(o->secret));
    message_opened opened;
    if (!of) return fail_memory(err);
    m->remote = of;
    wire_open(&of->leads, -1);
    pthread_mutex_init(&of->lock, NULL);
    pthread_cond_init(&of->ends, NULL);
    strcpy(of->secret, o->secret);
    (void)worker_address(o->workers, m->part.range, of->address);
    of->say.range = m->part.range;
    of->say.ranges = m->part.ranges;
    of->say.first = m->part.first;
    of->say.end = m->part.end;
    of->say.draft_rows = m->draft_rows;
    of->say.quantize = m->quantize;
    of->say.on_gpu = m->device.gpu >= 0;
    m->device.gpu = -1;                                     /* it is none of this host's */
    snprintf(m->device.name, sizeof m->device.name, "worker %s", of->address);
    int code = from->digest(name, of->say.digest, err);
    if (!code) code = remote_lead(of, &o->callbacks, &opened, err);
    if (!code) m->fingerprint = opened.fingerprint, m->bf16_largest = opened.bf16_largest & BF16_MOST;
    if (!code && thread_start(&of->thread, remote_beats, of)) code = fail(err, MOTE_ENOMEM, "the system gives no thread");
    else if (!code) of->owner = getpid();
    return code;
}

/* Reaches a member's worker again, if it is lost. */
static int remote_reach(const mote_model *m, const mote_callbacks *callbacks, mote_error *err) {
    remote_model *of = m->remote;
    message_opened opened;
    pthread_mutex_lock(&of->lock);
    const int lost = of->leads.fd < 0 || wire_is_lost(&of->leads);
    pthread_mutex_unlock(&of->lock);
    if (!lost) return MOTE_OK;
    remote_take(of, -1);
    int code = remote_lead(of, callbacks, &opened, err);
    if (!code && opened.fingerprint != m->fingerprint) {
        remote_take(of, -1);
        code = fail(err, MOTE_EINVAL, "worker %s: its weights are others than before", of->address);
    }
    return code;
}

int mote_reconnect(const mote_model *model, const mote_callbacks *callbacks, mote_error *error) {
    mote_error failure;
    int code = MOTE_OK;
    if (!error) error = &failure;
    if (!model) return fail(error, MOTE_EINVAL, "mote_reconnect: needs a model");
    for (int i = 0; i < model->member_count && !code; i++)
        if (model->members[i]->remote) code = remote_reach(model->members[i], callbacks, error);
    return code;
}

int mote_check_device(const mote_model *model, mote_error *error) {
    mote_error failure;
    int code = MOTE_OK;
    if (!error) error = &failure;
    if (!model) return fail(error, MOTE_EINVAL, "mote_check_device: needs a model");
    for (int i = 0; i < (model->members ? model->member_count : 1) && !code; i++) {
        const mote_model *m = model->members ? model->members[i] : model;
        if (!m->remote && m->device.gpu >= 0 && m->memory->works) code = m->memory->works(m, error);
    }
    return code;
}

/* As from->open, but that all ranges before the last one are opened by workers. */
static int workers_open_from(const model_source *from, const char *name, const mote_options *o, const model_part *part, int load, mote_model **model,
                             mote_error *err) {
    const int remote = load && !part_is_last(part);
    mote_model *m = NULL;
    int code = from->open(name, o, part, load && !remote, &m, err);
    if (!code && remote) code = remote_model_open(m, from, name, o, err);
    if (code) mote_close(m);
    else *model = m;
    return code;
}

/* A part_opener. */
static int workers_open_part(const char *dir, const mote_options *o, const model_part *part, int load, mote_model **model, mote_error *err) {
    return workers_open_from(&folder_source, dir, o, part, load, model, err);
}

/* The device of this host that the options name: "cpu", "cuda:0". Where none is named, who asks is told why it is no GPU. */
static int host_device(char name[16], const mote_options *o, mote_error *err) {
    mote_model on;
    memset(&on, 0, sizeof on);
    const int code = device_choose(&on, o->device, o->parts == MOTE_TEXT_ONLY, &o->callbacks, err);
    snprintf(name, 16, on.device.gpu < 0 ? "cpu" : "cuda:%d", on.device.gpu);
    return code;
}

/* The ranges of a model that workers share with this host, which has the last one. */
static int workers_list(device_list *l, const mote_options *o, mote_error *err) {
    char address[ADDRESS_SIZE], name[sizeof *l->name];
    struct sockaddr_storage at[DEVICES_MAX];
    int listed = 1;
    memset(l, 0, sizeof *l);
    l->ranks = 1;
    l->apart = 1;
    l->memory = o->gpu_memory;
    for (const char *c = o->workers; *c; c++) listed += *c == ',';
    if (!o->secret || strlen(o->secret) < SECRET_LEAST)
        return fail(err, MOTE_EINVAL, "workers need a secret of %d bytes or more, which they know, too", SECRET_LEAST);
    if (o->devices || o->split)
        return fail(err, MOTE_EUNSUPPORTED, "workers: each host has a range of layers on one device: devices and split do not go with them");
    int code = host_device(name, o, err);
    if (code) return code;
    for (; worker_address(o->workers, l->count, address); l->count++) {
        if (l->count == DEVICES_MAX - 1) return fail(err, MOTE_EINVAL, "workers: more than %d", DEVICES_MAX - 1);
        if (!address_read(address, &at[l->count])) return fail(err, MOTE_EINVAL, "workers: \"%s\" is no address, as 10.0.0.2:7000 is", address);
        for (int k = 0; k < l->count; k++)
            if (!memcmp(&at[k], &at[l->count], sizeof *at)) return fail(err, MOTE_EINVAL, "workers: %s is named twice", address);
        snprintf(l->name[l->count], sizeof *l->name, "%s", name);
    }
    if (l->count < listed) return fail(err, MOTE_EINVAL, "workers \"%.60s\": expected addresses with commas between, as 10.0.0.2:7000", o->workers);
    snprintf(l->name[l->count++], sizeof *l->name, "%s", name);
    l->ranges = l->count;
    return o->layers ? device_layers_read(l, o->layers, err) : MOTE_OK;
}
