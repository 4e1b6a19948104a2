/* workers/served.c: a leader's runner on a worker: its slots, and the passes that the leader sends. Reads what may be any bytes: nothing that a
   message says is used before it is known to fit. Must not know connections. */

/* A leader's runner. */
typedef struct worker_runner {
    mote_runner *r;
    int open;                    /* under the worker's lock: it is */
    peer as;
    socket_peer sockets;
    slot *slots[REMOTE_SLOTS];   /* that are open; NULL: not this one */
    int opened;                  /* there has been one */
    char *text;                  /* of a PASS */
    size_t text_size;
    char *copied;                /* [REMOTE_COPY] of a COPY */
    token_row *rows;             /* of a PASS */
} worker_runner;

static int worker_options_sound(const mote_model *m, const message_runner *say) {
    const executor *on = executor_of(m);
    return say->context > 0 && say->context <= m->c.context_max &&
           say->chunk > 0 && say->chunk <= MAX_CHUNK && !(say->chunk % on->chunk_alignment) &&
           say->kv >= (on->kv == MOTE_KV_F32 ? MOTE_KV_F32 : MOTE_KV_F32 + 1) && say->kv <= MOTE_KV_FP8 && say->layers == m->c.layers + 1 &&
           say->window >= 0 && say->window <= m->c.context_max && say->ring_rows == on->ring_rows;
}

/* A runner of m as the leader wants it, with so many threads. */
static int worker_runner_open(worker_runner *to, const mote_model *m, const message_runner *say, int threads, mote_error *err) {
    const model_part *part = &m->part;
    run_options o;
    memset(&o, 0, sizeof o);
    o.context = say->context;
    o.chunk = say->chunk;
    o.threads = threads;
    o.kv = say->kv;
    o.layers = say->layers;
    o.window = say->window;
    o.ring_rows = say->ring_rows;
    o.sms = m->device.sms;
    if (!worker_options_sound(m, say))
        return fail(err, MOTE_EINVAL, "a runner for %d tokens in chunks of %d, KV type %d", say->context, say->chunk, say->kv);
    to->as.by = &socket_exchange;
    to->as.at.range = part->range;
    to->as.at.ranges = part->ranges;
    to->as.at.ranks = 1;
    to->as.sockets = &to->sockets;
    to->text_size = message_pass_most(max_int(o.chunk, PASS_ROWS_MAX), m->c.hidden) + sizeof(int32_t);
    to->text = (char *)malloc(to->text_size);
    to->rows = (token_row *)malloc(((size_t)max_int(o.chunk, PASS_ROWS_MAX) + PASS_ROWS_MAX) * sizeof *to->rows);
    to->copied = (char *)malloc(REMOTE_COPY);
    to->r = to->text && to->rows && to->copied ? runner_shell(m, &o, say->one_slot != 0) : NULL;
    if (!to->r) return fail_memory(err);
    to->r->me = &to->as;
    return to->r->backend->open(to->r, err);
}

static void worker_slot_close(worker_runner *of, int number) {
    slot *s = of->slots[number];
    of->slots[number] = NULL;
    if (s) slot_close(s);
    free(s);
}

/* What waits in it for other hosts waits no longer. */
static void worker_runner_end(worker_runner *of) {
    sockets_end(&of->as);
    if (of->open && of->r->backend->end) of->r->backend->end(of->r);
}

/* Has it reach the others without the hosts' connections, or no longer. */
static int worker_meet(worker_runner *of, const message_meet *say, mote_error *err) {
    const executor *on = of->r->backend;
    if (!on->meet) return fail(err, MOTE_EUNSUPPORTED, "its runner meets nobody");
    const int code = on->meet(of->r, say->leaves ? NULL : &say->id, err);
    return code || say->leaves ? code : on->met(of->r, err);
}

static void worker_runner_free(worker_runner *of) {
    for (int i = 0; i < REMOTE_SLOTS; i++) worker_slot_close(of, i);
    if (of->r) runner_drop(of->r);
    sockets_close(&of->sockets);
    free(of->text);
    free(of->rows);
    free(of->copied);
    free(of);
}

/* ---- Slots and passes ---------------------------------------------------------------------------------------------------- */

static int worker_slot_open(worker_runner *of, const message_slot *say, mote_error *err) {
    const int sound = say->slot >= 0 && say->slot < REMOTE_SLOTS && !of->slots[say->slot] && say->context > 0 && say->context <= of->r->o.context &&
                      !(of->r->one_slot && of->opened);
    slot *s = sound ? (slot *)calloc(1, sizeof *s) : NULL;
    if (!sound) return fail(err, MOTE_EINVAL, "session %d of %d tokens", say->slot, say->context);
    if (!s) return fail_memory(err);
    of->slots[say->slot] = s;
    of->opened = 1;
    int code = slot_begin(s, of->r, say->context, 0, err);
    if (!code) code = slot_open(s, err);
    if (!code && s->floats * sizeof(float) != say->bytes)
        code = fail(err, MOTE_EUNSUPPORTED, "a session has %zu bytes here and %" PRIu64 " at the leader", s->floats * sizeof(float), say->bytes);
    if (code) worker_slot_close(of, say->slot);
    return code;
}

static slot *worker_slot(const worker_runner *of, int number) {
    return number >= 0 && number < REMOTE_SLOTS ? of->slots[number] : NULL;
}

/* What lies at `at` of the slot's memory; NULL: that is not there. */
static char *worker_bytes(const slot *s, uint64_t at, uint64_t bytes) {
    const uint64_t all = s->floats * sizeof(float);
    return at <= all && bytes <= all - at ? (char *)layout_base(s->memory) + at : NULL;
}

/* Takes n bytes of the text; NULL: it has not so many left. */
static const char *text_take(const char **at, const char *end, size_t n) {
    const char *from = *at;
    if ((size_t)(end - from) < n) return NULL;
    *at = from + n;
    return from;
}

/* Reads a block's rows, to `to` [T + 1]; 0: they are none that this slot could have. */
static int worker_block_rows(const slot *s, const message_request *q, const char **at, const char *end, token_row *to) {
    for (int t = 0; t <= q->T; t++) {
        message_row row;
        const char *bytes = text_take(at, end, sizeof row);
        if (!bytes) return 0;
        memcpy(&row, bytes, sizeof row);
        memset(&to[t], 0, sizeof to[t]);
        to[t].index = row.index;
        memcpy(to[t].position, row.position, sizeof row.position);
        to[t].id = row.id;
        if (!t) continue;
        if (row.index < 0 || row.index >= s->context || row.index != to[1].index + t - 1) return 0;
        if (!row.embedded && (row.id < 0 || row.id >= s->m->c.vocab)) return 0;
        if (row.embedded) to[t].embedding = (const float *)(const void *)to;       /* where that is, worker_embeddings says */
    }
    return 1;
}

/* A pass as the leader sends it. */
typedef struct worker_pass {
    int32_t n;
    pass_request q[PASS_ROWS_MAX], *of[PASS_ROWS_MAX];
    block b[PASS_ROWS_MAX];
} worker_pass;

/* Most rows of a block that is alone. */
static int worker_longest(const mote_runner *r, int prompt) {
    return prompt ? r->prompt_from ? r->o.chunk : 0 : max_int(r->rows, MOTE_ROWS_MAX);
}

/* Its blocks; 0: they do not fit the runner. */
static int worker_blocks(worker_runner *of, int prompt, worker_pass *p, const char **at, const char *end) {
    message_request q[PASS_ROWS_MAX];
    const int longest = worker_longest(of->r, prompt);
    int rows = 0;
    const char *bytes = text_take(at, end, sizeof p->n);
    if (bytes) memcpy(&p->n, bytes, sizeof p->n);
    if (!bytes || p->n < 1 || p->n > PASS_ROWS_MAX || (p->n > 1 && (prompt || p->n > of->r->pass_rows))) return 0;
    bytes = text_take(at, end, (size_t)p->n * sizeof *q);
    if (bytes) memcpy(q, bytes, (size_t)p->n * sizeof *q);
    for (int k = 0; bytes && k < p->n; k++) {
        slot *s = worker_slot(of, q[k].slot);
        if (!s || q[k].T < 1 || q[k].T > (p->n > 1 ? MOTE_ROWS_MAX : longest) || q[k].replay < 0 || q[k].replay > MOTE_ROWS_MAX) return 0;
        for (int other = 0; other < k; other++)
            if (q[other].slot == q[k].slot) return 0;
        request_is(&p->q[k], REQUEST_FORWARD, s, &p->b[k]);
        p->of[k] = &p->q[k];
        memset(&p->b[k], 0, sizeof p->b[k]);
        p->b[k].T = q[k].T;
        p->b[k].replay = q[k].replay;
        p->b[k].last = q[k].last;
        rows += q[k].T;
    }
    if (!bytes || (p->n > 1 && rows > of->r->pass_rows)) return 0;
    token_row *to = of->rows;
    for (int k = 0; k < p->n; to += p->b[k++].T + 1) {
        p->b[k].rows = to + 1;
        if (!worker_block_rows(p->q[k].s, &q[k], at, end, to)) return 0;
    }
    return 1;
}

/* Where the rows' embeddings are; 0: there are not as many. */
static int worker_embeddings(worker_runner *of, worker_pass *p, const char **at, const char *end) {
    token_row *to = of->rows;
    const size_t bytes = (size_t)of->r->m->c.hidden * sizeof(float);
    for (int k = 0; k < p->n; to += p->b[k++].T + 1)
        for (int t = 1; t <= p->b[k].T; t++) {
            if (!to[t].embedding) continue;
            const char *from = text_take(at, end, bytes);
            if (!from) return 0;
            to[t].embedding = (const float *)(const void *)from;
        }
    return *at == end;
}

/* Embeddings lie in this host's memory, of which only the CPU reads. */
static int worker_reads(const worker_runner *of, const worker_pass *p) {
    int embedded = 0;
    for (int k = 0; k < p->n; k++)
        for (int t = 0; t < p->b[k].T; t++) embedded |= p->b[k].rows[t].embedding != NULL;
    return !embedded || of->r->m->device.gpu < 0;
}

static int worker_compute(worker_runner *of, int prompt, const char *text, size_t size, mote_error *err) {
    static const block_watch nobody = {.user = NULL, .layer = NULL, .logits = NULL, .rows = NULL, .rows_most = 0};
    const char *at = text, *end = text + size;
    worker_pass p;
    p.n = 0;
    if (!worker_blocks(of, prompt, &p, &at, end) || !worker_embeddings(of, &p, &at, end) || !worker_reads(of, &p))
        return fail(err, MOTE_EINVAL, "a pass that its runner cannot have");
    if (prompt) p.q->code = of->r->backend->prompt(p.q->s, p.b, &nobody, &p.q->error);
    else pass_compute(of->r, p.of, p.n);
    for (int k = 0; k < p.n; k++)
        if (p.q[k].code) return fail(err, p.q[k].code, "%.400s", of->as.ended ? "rows do not come, or cannot be sent" : p.q[k].error.message);
    return of->as.ended ? fail(err, MOTE_EDEVICE, "rows do not come, or cannot be sent") : MOTE_OK;
}
