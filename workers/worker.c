/* workers/worker.c: a worker: a host that has a range of a leader's model, and computes it when the leader says so (workers/messages.c). It
   serves one leader at a time: what is done over a connection of each kind, which may send anything. */

enum { WORKER_CONNECTIONS = 64, WORKER_RUNNERS = 16 };

typedef struct worker_connection {
    struct worker *of;
    int used, busy;              /* busy: the leader waits for an answer */
    char peer[ADDRESS_SIZE];     /* who has connected */
    wire w;
    worker_runner *runner;       /* whose connection it is; NULL: none's */
} worker_connection;

typedef struct worker {
    const model_source *from;
    const char *name;            /* the model's: of a folder, or as `from` knows it */
    const mote_worker_options *o;
    refusals refused;
    pthread_mutex_t lock;        /* of what follows */
    pthread_cond_t changed;
    worker_connection connection[WORKER_CONNECTIONS];
    int connections, quit;       /* those in use; all shall end */
    int taken;                   /* a leader has it: */
    worker_connection *leader;   /* this one's; NULL: none */
    int opened;                  /* its part is open, and this is its ticket: */
    unsigned char ticket[TICKET_SIZE];
    char device[16];             /* "cpu", "cuda:0" */
    mote_model *m;
    worker_runner *runner[WORKER_RUNNERS];                  /* NULL: there is none of this number */
} worker;

/* Logs why the peer is refused, unless that has been said of it lately. */
static void worker_refuses(worker_connection *c, const char *why) {
    if (refusals_count(&c->of->refused, c->peer)) notice(&c->of->o->callbacks, "%s", why);
}

/* ---- Answers ------------------------------------------------------------------------------------------------------------- */

static void worker_busy(worker_connection *c, int busy) {
    pthread_mutex_lock(&c->of->lock);
    c->busy = busy;
    pthread_mutex_unlock(&c->of->lock);
}

/* Answers what the leader waits for: with `code`, and why, or with a number, and data. */
static int worker_answer(worker_connection *c, int code, const mote_error *why, uint64_t number, const void *data, size_t bytes) {
    message_answer a;
    const wire_part parts[2] = {{&a, sizeof a}, {data, code ? 0 : bytes}};
    memset(&a, 0, sizeof a);
    a.code = code;
    a.number = number;
    if (code) snprintf(a.text, sizeof a.text, "%s", why->message);
    worker_busy(c, 0);
    return wire_send(&c->w, MESSAGE_ANSWER, parts, 2, WIRE_SILENCE);
}

/* The next message of the leader, which waits from then on. */
static int worker_next(worker_connection *c, wire_head *h, size_t most) {
    const int code = wire_next(&c->w, h, most, 0);
    if (!code) worker_busy(c, 1);
    return code;
}

/* A message's bytes, all of which are one struct. */
static int worker_take(worker_connection *c, const wire_head *h, void *to, size_t size) {
    if (h->bytes != size) return WIRE_STRANGE;
    return wire_read(c->w.fd, to, size, WIRE_SILENCE);
}

/* ---- The model ----------------------------------------------------------------------------------------------------------- */

static int worker_part_is_sound(const message_model *say) {
    return say->ranges >= 2 && say->ranges <= DEVICES_MAX && say->range >= 0 && say->range < say->ranges - 1 &&
           say->first >= 0 && say->end > say->first &&
           say->end <= DEVICE_LAYERS_MAX && say->draft_rows >= 0 && say->quantize >= MOTE_QUANTIZE_OFF && say->quantize <= MOTE_QUANTIZE_HEAD_FP8;
}

/* Hosts compute on devices of one kind: whose bits they have. */
static int worker_kind_is(const worker *w, int on_gpu, mote_error *err) {
    const int here = strcmp(w->device, "cpu") != 0;
    if (here == (on_gpu != 0)) return MOTE_OK;
    return fail(err, MOTE_EUNSUPPORTED, "it computes on %s, and the leader on %s: hosts with GPUs and without cannot share a model",
                here ? "a GPU" : "a CPU", on_gpu ? "a GPU" : "a CPU");
}

/* Opens the part, into w->m, which no one else touches until `taken` is known to the leader. */
static int worker_open_model(worker *w, const message_model *say, mote_error *err) {
    mote_options o;
    unsigned char digest[SHA256_SIZE];
    model_part part = part_of(say->range, say->ranges, 0, 1);
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.parts = MOTE_WEIGHTS_ONLY;
    o.callbacks = w->o->callbacks;
    o.device = w->device;
    o.draft_rows = say->draft_rows;
    o.quantize = say->quantize;
    o.images = -1;                                          /* who leads embeds */
    part.first = say->first;
    part.end = say->end;
    if (!worker_part_is_sound(say))
        return fail(err, MOTE_EINVAL, "asked for layers %d to %d, range %d of %d", say->first, say->end, say->range, say->ranges);
    part.apart = 1;
    int code = worker_kind_is(w, say->on_gpu, err);
    if (!code) code = w->from->digest(w->name, digest, err);
    if (!code && memcmp(digest, say->digest, sizeof digest))
        return fail(err, MOTE_EINVAL, "%s is another model than the leader's: config.json or the files of weights differ", w->name);
    if (!code) code = w->from->open(w->name, &o, &part, 1, &w->m, err);
    if (!code && part.end > w->m->c.layers)
        code = fail(err, MOTE_EINVAL, "%s has %d layers, asked for up to %d", w->name, w->m->c.layers, part.end);
    return code;
}

/* Ends the leader's runners, waits for them, and closes the part. */
static void worker_close_model(worker *w) {
    pthread_mutex_lock(&w->lock);
    w->opened = 0;
    for (int i = 0; i < WORKER_CONNECTIONS; i++) {
        worker_connection *c = &w->connection[i];
        if (!c->used || !c->runner) continue;
        wire_end(&c->w);
        worker_runner_end(c->runner);
    }
    for (int i = 0; i < WORKER_RUNNERS; i++)
        while (w->runner[i]) pthread_cond_wait(&w->changed, &w->lock);
    mote_close(w->m);
    w->m = NULL;
    w->leader = NULL;
    w->taken = 0;
    pthread_mutex_unlock(&w->lock);
}

/* Takes it for a leader, unless another one has it. One that is gone may still be in its runners: that is waited for. */
static int worker_taken_by(worker *w, worker_connection *c) {
    int taken = 0;
    for (int i = 0; i < 250 && !taken; i++) {
        pthread_mutex_lock(&w->lock);
        const int leaves = w->taken && wire_is_lost(&w->leader->w);
        if (!w->taken && !w->quit) w->taken = taken = 1, w->leader = c;
        pthread_mutex_unlock(&w->lock);
        if (taken || !leaves) break;
        poll(NULL, 0, 20);
    }
    return taken;
}

/* A leader's connection: as long as it lasts, the part is its. */
static void worker_lead(worker_connection *c, const wire_head *first) {
    worker *w = c->of;
    message_model say;
    message_opened opened = {.fingerprint = 0, .bf16_largest = 0, .reserved = 0};
    mote_error why;
    wire_head h;
    char line[ADDRESS_SIZE + 2 + sizeof why.message];
    if (worker_take(c, first, &say, sizeof say)) return;
    if (!worker_taken_by(w, c)) {
        fail(&why, MOTE_EDEVICE, "it serves another leader");
        (void)worker_answer(c, why.code, &why, 0, NULL, 0);
        return;
    }
    int code = worker_open_model(w, &say, &why);
    if (!code) {
        pthread_mutex_lock(&w->lock);
        memcpy(w->ticket, say.ticket, sizeof w->ticket);
        w->opened = 1;
        pthread_mutex_unlock(&w->lock);
        notice(&w->o->callbacks, "%s leads: layers %d to %d of %d", c->peer, say.first, say.end - 1, w->m->c.layers);
    } else {
        snprintf(line, sizeof line, "%s: %s", c->peer, why.message);
        worker_refuses(c, line);
    }
    if (!code) opened.fingerprint = w->m->fingerprint, opened.bf16_largest = w->m->bf16_largest;
    int gone = worker_answer(c, code, &why, 0, &opened, sizeof opened);
    if (!gone && !code) gone = wire_next(&c->w, &h, 0, WIRE_ABSENCE);
    if (!code) {
        (void)wire_fail(&why, MOTE_EIO, c->peer, gone, WIRE_ABSENCE);
        notice(&w->o->callbacks, "%s: it leads no more", why.message);
    }
    worker_close_model(w);
}

/* ---- Runners ------------------------------------------------------------------------------------------------------------- */

/* Whether a ticket is the one of the leader that has the part. */
static int worker_knows(worker *w, const unsigned char *ticket) {
    return w->opened && !memcmp(ticket, w->ticket, TICKET_SIZE);
}

static int worker_join(worker *w, worker_runner *of, const message_join *say, mote_error *err) {
    char address[ADDRESS_SIZE], name[ADDRESS_SIZE + 40];
    message_link link = {.ticket = "", .runner = say->runner};
    const wire_part part = {&link, sizeof link};
    message_answer answer;
    wire_head h;
    wire *from = &of->sockets.from;
    snprintf(address, sizeof address, "%.*s", ADDRESS_SIZE - 1, say->address);
    snprintf(name, sizeof name, "worker %s, from where rows come,", address);
    if (from->fd >= 0) return fail(err, MOTE_EINVAL, "rows come already");
    memcpy(link.ticket, say->ticket, sizeof link.ticket);
    const int fd = wire_connect(address);
    if (fd < 0) return fail(err, MOTE_EIO, "%s: %s", name, strerror(errno));
    sockets_take(&of->sockets, from, fd);
    int code = wire_shake(fd, w->o->secret, 1, name, err);
    if (code) return code;
    int failed = wire_send(from, MESSAGE_LINK, &part, 1, WIRE_SILENCE);
    if (!failed) failed = wire_next(from, &h, sizeof answer, WIRE_SILENCE);
    if (!failed && (h.type != MESSAGE_ANSWER || h.bytes != sizeof answer)) failed = WIRE_STRANGE;
    if (!failed) failed = wire_read(fd, &answer, sizeof answer, WIRE_SILENCE);
    if (failed) return wire_fail(err, MOTE_EDEVICE, name, failed, WIRE_SILENCE);
    answer_settle(&answer);
    return answer.code ? fail(err, answer.code, "%s says: %.300s", name, answer.text) : MOTE_OK;
}

/* Bytes of a slot's memory, to the leader or from it. */
static int worker_copy(worker_connection *c, const wire_head *h) {
    message_slot say;
    mote_error why;
    const int writes = h->type == MESSAGE_COPY_TO;
    if (h->bytes < sizeof say) return WIRE_STRANGE;
    int code = wire_read(c->w.fd, &say, sizeof say, WIRE_SILENCE);
    slot *s = code ? NULL : worker_slot(c->runner, say.slot);
    char *bytes = s && say.bytes <= REMOTE_COPY ? worker_bytes(s, say.at, say.bytes) : NULL, *here = c->runner->copied;
    if (code || !bytes || h->bytes - sizeof say != (writes ? say.bytes : 0)) return code ? code : WIRE_STRANGE;
    if (writes && (code = wire_read(c->w.fd, here, say.bytes, WIRE_SILENCE))) return code;
    code = s->runner->backend->copy(s, writes ? bytes : here, writes ? here : bytes, say.bytes, &why);
    return worker_answer(c, code, &why, 0, here, writes ? 0 : say.bytes);
}

static int worker_about_slot(worker_connection *c, const wire_head *h) {
    message_slot say;
    mote_error why;
    int code = MOTE_OK, failed = worker_take(c, h, &say, sizeof say);
    if (failed) return failed;
    slot *s = worker_slot(c->runner, say.slot);
    if (h->type == MESSAGE_SLOT_OPEN) code = worker_slot_open(c->runner, &say, &why);
    else if (!s) code = fail(&why, MOTE_EINVAL, "there is no session %d", say.slot);
    else if (h->type == MESSAGE_SLOT_CLOSE) worker_slot_close(c->runner, say.slot);
    else code = slot_clear(s, &why);
    return worker_answer(c, code, &why, 0, NULL, 0);
}

/* One message of the leader about a runner. */
static int worker_do(worker_connection *c, const wire_head *h) {
    worker_runner *of = c->runner;
    message_join join;
    message_meet meet;
    mote_error why;
    int code = WIRE_FINE;
    switch (h->type) {
    case MESSAGE_SLOT_OPEN: case MESSAGE_SLOT_CLOSE: case MESSAGE_CLEAR: return worker_about_slot(c, h);
    case MESSAGE_COPY_TO: case MESSAGE_COPY_FROM: return worker_copy(c, h);
    case MESSAGE_JOIN:
        if ((code = worker_take(c, h, &join, sizeof join))) return code;
        code = worker_join(c->of, of, &join, &why);
        return worker_answer(c, code, &why, 0, NULL, 0);
    case MESSAGE_MEET:
        if ((code = worker_take(c, h, &meet, sizeof meet))) return code;
        code = worker_meet(of, &meet, &why);
        return worker_answer(c, code, &why, 0, NULL, 0);
    case MESSAGE_PASS: case MESSAGE_PROMPT:
        if (h->bytes > of->text_size) return WIRE_STRANGE;
        if ((code = wire_read(c->w.fd, of->text, h->bytes, WIRE_SILENCE))) return code;
        code = worker_compute(of, h->type == MESSAGE_PROMPT, of->text, h->bytes, &why);
        return worker_answer(c, code, &why, 0, NULL, 0);
    default: return WIRE_STRANGE;
    }
}

/* A number for a runner of the leader's, whose connection this is. NULL: it is none's, or there are too many. */
static worker_runner *worker_register(worker_connection *c, const unsigned char *ticket, int *number, mote_error *err) {
    worker *w = c->of;
    worker_runner *of = (worker_runner *)calloc(1, sizeof *of);
    if (!of) return fail_memory(err), (worker_runner *)NULL;
    sockets_open(&of->sockets);
    of->as.sockets = &of->sockets;
    pthread_mutex_lock(&w->lock);
    for (*number = 0; *number < WORKER_RUNNERS && w->runner[*number]; ++*number) {}
    const int known = worker_knows(w, ticket) && !w->quit;
    if (known && *number < WORKER_RUNNERS) w->runner[*number] = c->runner = of;
    pthread_mutex_unlock(&w->lock);
    if (c->runner) return of;
    if (known) fail(err, MOTE_ENOMEM, "it has %d runners already", WORKER_RUNNERS);
    else fail(err, MOTE_EINVAL, "it does not know this leader");
    worker_runner_free(of);
    return NULL;
}

/* The largest of all parts' weights, by which a GPU scales those of prompts: the same for all runners. */
static void worker_take_largest(worker *w, uint32_t bits) {
    pthread_mutex_lock(&w->lock);
    w->m->bf16_largest = bits & BF16_MOST;
    pthread_mutex_unlock(&w->lock);
}

/* From now on it can be told to end. */
static void worker_runner_opened(worker *w, worker_runner *of, int code) {
    pthread_mutex_lock(&w->lock);
    if (of) of->open = !code;
    pthread_mutex_unlock(&w->lock);
}

static message_limits worker_limits(const mote_runner *r) {
    message_limits l;
    memset(&l, 0, sizeof l);
    if (!r) return l;
    l.rows = r->rows;
    l.pass_rows = r->pass_rows;
    l.company_rows = r->company_rows;
    l.logs = r->logs;
    l.prompt_from = r->prompt_from;
    l.nccl = r->nccl;
    return l;
}

/* The connection of a leader's runner: as long as it lasts, the runner is there. */
static void worker_serve(worker_connection *c, const wire_head *first) {
    worker *w = c->of;
    message_runner say;
    mote_error why;
    wire_head h;
    int number = 0;
    if (worker_take(c, first, &say, sizeof say)) return;
    worker_runner *of = worker_register(c, say.ticket, &number, &why);
    if (of) worker_take_largest(w, say.bf16_largest);
    int code = of ? worker_runner_open(of, w->m, &say, w->o->threads ? w->o->threads : processors(), &why) : why.code;
    worker_runner_opened(w, of, code);
    const message_limits limits = worker_limits(code ? NULL : of->r);
    int failed = worker_answer(c, code, &why, (uint64_t)number, &limits, sizeof limits);
    while (!failed && !code) {
        failed = worker_next(c, &h, sizeof(message_slot) + REMOTE_COPY + (of ? of->text_size : 0));
        if (!failed) failed = worker_do(c, &h);
    }
    if (!of) return;
    if (failed == WIRE_STRANGE) {
        (void)wire_fail(&why, MOTE_EIO, c->peer, failed, 0);
        worker_refuses(c, why.message);
    }
    pthread_mutex_lock(&w->lock);
    c->runner = NULL;
    pthread_mutex_unlock(&w->lock);
    worker_runner_free(of);
    pthread_mutex_lock(&w->lock);
    w->runner[number] = NULL;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* The runner of that number, unless it is being closed. */
static worker_runner *worker_runner_of(worker *w, int number) {
    for (worker_connection *c = w->connection; c < w->connection + WORKER_CONNECTIONS && number >= 0 && number < WORKER_RUNNERS; c++)
        if (c->used && c->runner && c->runner == w->runner[number]) return c->runner;
    return NULL;
}

/* Who asks for a runner's rows gets them over this connection. */
static void worker_link(worker_connection *c, const wire_head *first) {
    worker *w = c->of;
    message_link say;
    int linked = 0;
    if (worker_take(c, first, &say, sizeof say)) return;
    pthread_mutex_lock(&w->lock);
    worker_runner *of = worker_knows(w, say.ticket) ? worker_runner_of(w, say.runner) : NULL;
    if (of) {
        pthread_mutex_lock(&of->sockets.lock);
        linked = of->sockets.to.fd < 0 && !of->sockets.over;
        pthread_mutex_unlock(&of->sockets.lock);
    }
    c->busy = 0;
    const message_answer a = {.number = 0, .code = linked ? MOTE_OK : MOTE_EINVAL, .text = "there is no such runner whose rows nobody has"};
    const wire_part part = {&a, sizeof a};
    if (wire_send(&c->w, MESSAGE_ANSWER, &part, 1, 1)) linked = 0;
    if (linked) sockets_take(&of->sockets, &of->sockets.to, c->w.fd), c->w.fd = -1;
    pthread_mutex_unlock(&w->lock);
}
