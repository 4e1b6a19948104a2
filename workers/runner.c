/* workers/runner.c: a runner on another host: the executor of a member whose part of the model a worker has (workers/worker.c). What is asked of
   it goes there as a message, and the worker's answer is its outcome. Its slots are laid out here as there, from ORIGIN_REMOTE: addresses of
   memory that only the worker has, for copies to and from it. It is never the last range: that is the leader's. */

#define ORIGIN_REMOTE ((uintptr_t)1 << 46)                  /* no process's own */

typedef struct remote_runner {
    wire control;
    pthread_mutex_t lock;        /* who holds it asks the worker */
    uint64_t number;             /* of the runner, there */
    char slots[REMOTE_SLOTS];    /* taken */
    char *text;                  /* of a PASS: [message_pass_most] */
} remote_runner;

/* One message of one runner at a time. */
static int remote_call(const mote_runner *r, uint32_t type, const wire_part *parts, int count, void *to, size_t bytes, mote_error *err) {
    remote_runner *there = r->remote;
    pthread_mutex_lock(&there->lock);
    const int code = remote_ask(r->m->remote, &there->control, type, parts, count, to, bytes, NULL, err);
    pthread_mutex_unlock(&there->lock);
    return code;
}

/* The same about a slot; data: what follows that. */
static int remote_call_slot(const slot *s, uint32_t type, uint64_t at, const wire_part *data, void *to, size_t bytes, mote_error *err) {
    const message_slot about = {.slot = s->number, .context = s->context, .at = at, .bytes = data ? data->size : bytes};
    wire_part parts[2] = {{&about, sizeof about}, {NULL, 0}};
    if (data) parts[1] = *data;
    return remote_call(s->runner, type, parts, data ? 2 : 1, to, bytes, err);
}

/* ---- Runners ------------------------------------------------------------------------------------------------------------- */

/* What the worker says that its runner can do: no more than there is memory for here. */
static int remote_limits(mote_runner *r, const message_limits *l, mote_error *err) {
    const int most = max_int(r->o.chunk, PASS_ROWS_MAX);
    if (l->rows < 1 || l->rows > most || l->pass_rows < 0 || l->pass_rows > PASS_ROWS_MAX || l->company_rows < 1 || l->company_rows > most ||
        l->prompt_from < 0)
        return fail(err, MOTE_EDEVICE, "worker %s: a runner that can do nothing, or more than its chunk", r->m->remote->address);
    r->rows = r->mtp_rows = l->rows;
    r->pass_rows = l->pass_rows;
    r->company_rows = l->company_rows;
    r->logs = l->logs != 0;
    r->prompt_from = l->prompt_from;
    r->nccl = l->nccl;
    return MOTE_OK;
}

static int remote_open(mote_runner *r, mote_error *err) {
    const remote_model *of = r->m->remote;
    const run_options *o = &r->o;
    message_runner m = {.ticket = "", .context = o->context, .chunk = o->chunk, .kv = o->kv, .layers = o->layers, .window = o->window,
                        .ring_rows = o->ring_rows, .one_slot = r->one_slot, .bf16_largest = r->m->bf16_largest};
    const wire_part part = {&m, sizeof m};
    message_limits limits;
    remote_runner *there = (remote_runner *)calloc(1, sizeof *there);
    if (!there) return fail_memory(err);
    r->remote = there;
    wire_open(&there->control, -1);
    pthread_mutex_init(&there->lock, NULL);
    there->text = (char *)malloc(message_pass_most(max_int(o->chunk, PASS_ROWS_MAX), r->m->c.hidden));
    if (!there->text) return fail_memory(err);
    memcpy(m.ticket, of->say.ticket, sizeof m.ticket);
    int code = remote_connect(of, &there->control, err);
    if (!code) code = remote_ask(of, &there->control, MESSAGE_RUNNER, &part, 1, &limits, sizeof limits, &there->number, err);
    return code ? code : remote_limits(r, &limits, err);
}

/* The worker closes its own when the connection ends. */
static void remote_close(mote_runner *r) {
    remote_runner *there = r->remote;
    if (!there) return;
    wire_close(&there->control);
    pthread_mutex_destroy(&there->lock);
    free(there->text);
    free(there);
}

/* The group has come to its end: who waits for the worker does not. */
static void remote_end(mote_runner *r) {
    if (r->remote) wire_end(&r->remote->control);
}

/* The rows of `before` shall come over this connection. */
static int remote_link(const mote_runner *before, wire *w, mote_error *err) {
    const remote_model *of = before->m->remote;
    message_link link = {.ticket = "", .runner = (int32_t)before->remote->number};
    const wire_part part = {&link, sizeof link};
    memcpy(link.ticket, of->say.ticket, sizeof link.ticket);
    const int code = remote_connect(of, w, err);
    return code ? code : remote_ask(of, w, MESSAGE_LINK, &part, 1, NULL, 0, NULL, err);
}

/* The same for a worker's runner. */
static int remote_join(const mote_runner *before, const mote_runner *r, mote_error *err) {
    message_join join = {.ticket = "", .runner = (int32_t)before->remote->number, .address = ""};
    const wire_part part = {&join, sizeof join};
    memcpy(join.ticket, before->m->remote->say.ticket, sizeof join.ticket);
    snprintf(join.address, sizeof join.address, "%s", before->m->remote->address);
    return remote_call(r, MESSAGE_JOIN, &part, 1, NULL, 0, err);
}

/* All are told before one is waited for. */
static int remote_meet(mote_runner *r, const group_id *id, mote_error *err) {
    remote_runner *there = r->remote;
    message_meet say;
    const wire_part part = {&say, sizeof say};
    memset(&say, 0, sizeof say);
    say.leaves = !id;
    if (!id) return remote_call(r, MESSAGE_MEET, &part, 1, NULL, 0, err);
    say.id = *id;
    const int failed = wire_send(&there->control, MESSAGE_MEET, &part, 1, WIRE_SILENCE);
    return failed ? wire_fail(err, MOTE_EDEVICE, r->m->device.name, failed, WIRE_SILENCE) : MOTE_OK;
}

static int remote_met(mote_runner *r, mote_error *err) {
    return remote_hear(r->m->remote, &r->remote->control, WIRE_FINE, NULL, 0, NULL, err);
}

/* ---- Slots --------------------------------------------------------------------------------------------------------------- */

static int remote_slot_open(slot *s, mote_error *err) {
    remote_runner *there = s->runner->remote;
    message_slot about;
    const wire_part part = {&about, sizeof about};
    pthread_mutex_lock(&there->lock);
    const char *free_one = (const char *)memchr(there->slots, 0, sizeof there->slots);
    s->number = free_one ? (int)(free_one - there->slots) : -1;
    if (free_one) there->slots[s->number] = 1;
    pthread_mutex_unlock(&there->lock);
    if (!free_one) return fail(err, MOTE_ENOMEM, "worker %s: more than %d sessions", s->m->remote->address, REMOTE_SLOTS);
    layout_slot((float *)ORIGIN_REMOTE, NULL, s);
    s->logits_here = 1;
    memset(&about, 0, sizeof about);
    about.slot = s->number;
    about.context = s->context;
    about.bytes = s->floats * sizeof(float);
    return remote_call(s->runner, MESSAGE_SLOT_OPEN, &part, 1, NULL, 0, err);
}

static void remote_slot_close(slot *s) {
    remote_runner *there = s->runner->remote;
    mote_error why;
    if (s->runner->owner != getpid() || !there || s->number < 0) return;
    (void)remote_call_slot(s, MESSAGE_SLOT_CLOSE, 0, NULL, NULL, 0, &why);
    pthread_mutex_lock(&there->lock);
    there->slots[s->number] = 0;
    pthread_mutex_unlock(&there->lock);
}

static int remote_clear(slot *s, mote_error *err) {
    return remote_call_slot(s, MESSAGE_CLEAR, 0, NULL, NULL, 0, err);
}

static int remote_has(const slot *s, const void *at) {
    return (uintptr_t)at - ORIGIN_REMOTE < s->floats * sizeof(float);
}

/* To its memory or from it; or within it, by way of this host. */
static int remote_copy(slot *s, void *to, const void *from, size_t n, mote_error *err) {
    const int writes = remote_has(s, to), reads = remote_has(s, from);
    char *between = writes && reads ? (char *)malloc(REMOTE_COPY) : NULL;
    int code = writes && reads && !between ? fail_memory(err) : MOTE_OK;
    for (size_t at = 0; at < n && !code; at += REMOTE_COPY) {
        const size_t size = n - at < REMOTE_COPY ? n - at : (size_t)REMOTE_COPY;
        char *here = between ? between : writes ? (char *)(uintptr_t)from + at : (char *)to + at;
        const wire_part data = {here, size};
        if (reads) code = remote_call_slot(s, MESSAGE_COPY_FROM, (uintptr_t)from - ORIGIN_REMOTE + at, NULL, here, size, err);
        if (writes && !code) code = remote_call_slot(s, MESSAGE_COPY_TO, (uintptr_t)to - ORIGIN_REMOTE + at, &data, NULL, 0, err);
        if (!writes && !reads) memcpy(here, (const char *)from + at, size);
    }
    free(between);
    return code;
}

/* ---- Passes -------------------------------------------------------------------------------------------------------------- */

/* Puts bytes after those that are there. */
static void text_put(char **at, const void *bytes, size_t n) {
    memcpy(*at, bytes, n);
    *at += n;
}

static void text_put_row(char **at, const token_row *r) {
    message_row row = {.index = r->index, .position = {0}, .id = r->id, .embedded = r->embedding != NULL};
    memcpy(row.position, r->position, sizeof row.position);
    text_put(at, &row, sizeof row);
}

/* The blocks of n slots; what is wanted of them no range but the last one has. type: PASS or PROMPT. */
static int remote_pass_all(mote_runner *r, uint32_t type, pass_request *const *of, int n, mote_error *err) {
    char *text = r->remote->text, *at = text;
    for (int k = 0; k < n; k++) {
        const block *b = of[k]->b;
        const message_request q = {.slot = of[k]->s->number, .T = b->T, .replay = b->replay, .last = b->last};
        text_put(&at, &q, sizeof q);
    }
    for (int k = 0; k < n; k++)
        for (int t = -1; t < of[k]->b->T; t++) text_put_row(&at, &of[k]->b->rows[t]);
    for (int k = 0; k < n; k++)
        for (int t = 0; t < of[k]->b->T; t++)
            if (of[k]->b->rows[t].embedding) text_put(&at, of[k]->b->rows[t].embedding, (size_t)r->m->c.hidden * sizeof(float));
    const int32_t count = n;
    const wire_part parts[2] = {{&count, sizeof count}, {text, (size_t)(at - text)}};
    return remote_call(r, type, parts, 2, NULL, 0, err);
}

static void remote_pass(mote_runner *r, pass_request *const *of, int n) {
    mote_error why;
    const int code = remote_pass_all(r, MESSAGE_PASS, of, n, &why);
    for (int k = 0; k < n; k++) {
        of[k]->code = code;
        if (code) of[k]->error = why;
        else slot_computed(of[k]->s, of[k]->b);
    }
}

static int remote_forward(slot *s, const block *b, mote_error *err) {
    pass_request q, *one = &q;
    request_is(&q, REQUEST_FORWARD, s, b);
    return remote_pass_all(s->runner, MESSAGE_PASS, &one, 1, err);
}

static int remote_prompt(slot *s, const block *b, const block_watch *watch, mote_error *err) {
    pass_request q, *one = &q;
    (void)watch;
    request_is(&q, REQUEST_FORWARD, s, b);
    return remote_pass_all(s->runner, MESSAGE_PROMPT, &one, 1, err);
}

/* layout_slot: as the worker's executor has it. What a dropped block leaves prepared no range but the last one has. */
#define REMOTE_FUNCTIONS(SLOT_BYTES, LAYOUT_SLOT)                                                                                          \
    .runner_bytes = 0, .slot_bytes = SLOT_BYTES, .layout_runner = NULL, .layout_slot = LAYOUT_SLOT, .open = remote_open,                   \
    .close = remote_close, .slot_open = remote_slot_open, .slot_close = remote_slot_close, .forward = remote_forward,                      \
    .prompt_rows = NULL, .prompt = remote_prompt,                                                                                          \
    .commit_state = remote_forward, .draft = NULL, .logits = cpu_nothing, .copy = remote_copy, .clear = remote_clear,                      \
    .finish = cpu_nothing, .prepare = cpu_nothing, .can_sample = NULL, .step = NULL, .cycle = NULL, .drafted = NULL,                       \
    .pass = remote_pass, .computes = NULL, .vision = NULL, .launches = 0, .connect = NULL, .end = remote_end, .invite = NULL,              \
    .meet = remote_meet, .met = remote_met, .enter = NULL, .choose = NULL,                                                                 \
    .prepared = NULL, .pass_class = NULL

/* As the worker computes on its CPU. */
static const executor remote_executor = {
    .kv = MOTE_KV_F32, .chunk = CPU_CHUNK, .chunk_alignment = 1, .ring_rows = 0, .shares_memory = 0, .reads_text = 0,
    REMOTE_FUNCTIONS(0, NULL)};
