/* session/session.c: what a session is: a timeline of tokens, and a slot on a runner. Its options, opening and closing it, and the
   checks at the entry of every call on one. Knows no device. */

enum { DEFAULT_CONTEXT = 8192, CHUNK_LEAST = 512 };

/* How often something has happened lately. */
typedef struct rate {
    double share, weight;                                   /* weight: the samples that it averages */
} rate;

enum {
    SURE_CLASSES = 8,            /* classes of a draft's probability, */
    COPY_CLASSES = 7             /* of the length of a match */
};

/* Speculation: see generate/speculation.c. */
typedef struct speculation {
    mote_speculation seen;
    rate place[MOTE_ROWS_MAX - 1];                          /* the MTP layer's drafts accepted, if those before them are: by place, */
    rate sure[SURE_CLASSES];                                /* by the probability that the draft head gave them */
    rate copied[COPY_CLASSES];                              /* copies accepted, by the length of the match so far */
    rate *judges[2];                                        /* to be told whether a draft that was not verified was right; or NULL */
    int32_t unverified;                                     /* that draft */
    int32_t next;                                           /* the token that begins the next pass; -1: not chosen yet */
    int drafts;                                             /* that follow it, made already */
    double passed;                                          /* seconds(): when the last pass was over */
    int rows;                                               /* of the last pass */
    int prepared;                                           /* the device is, for answers */
} speculation;

/* What may be copied: see generate/copies.c. */
typedef struct copy_index {
    int32_t *ends_short, *ends_long;                        /* [mask + 1] by a hash of some tokens, where they ended; 0: nowhere */
    uint32_t mask;
    int indexed;                                            /* tokens of the timeline that are in them */
} copy_index;

static void copies_layout(layout *l, copy_index *c, int context);

struct mote_session {
    const mote_model *m;
    pid_t owner;                 /* the process whose session it is, and whose threads */
    int busy;                    /* inside a call that may call the application back: see session_begin (atomic) */
    uintptr_t thread, frame;     /* of that call (atomic) */
    mote_session_options o;      /* with defaults filled in */
    slot at;                     /* on its runner */
    int32_t *tokens;             /* [context] */
    token_row *rows;             /* [most rows of a block] the table of the block that is computed next; before them rows[-1] */
    int count;                   /* tokens of the timeline */
    int lag;                     /* of the positions of text after it behind their indexes: more than 0 after an image */
    int block_at;                /* those before the block computed last */
    int valid;                   /* rows of tokens and KV that hold what was computed: >= count after a rewind */
    int generated_from;          /* what follows was generated */
    int pending, accepted;       /* rows of the last block, in the log; the first of them, which are in the timeline */
    mote_checkpoint *before_answer;                         /* see generate/thinking.c; NULL: never taken */
    size_t read_before, read_after;                         /* tokens of a turn read before and after what feed() reads */
    speculation spec;
    copy_index copies;
    float *memory;               /* of the host: tokens, and what follows */
    float *sorted;               /* [vocab] logits being sampled */
    int32_t *heap, *seen;        /* [vocab]; seen: zero between calls */
};

/* A chunk is a multiple of the alignment, and no longer than the context needs. */
static int whole_chunk(const executor *on, int chunk, int context) {
    if (on->chunk_alignment == 1) return chunk;
    return (min_int(chunk, context) + on->chunk_alignment - 1) / on->chunk_alignment * on->chunk_alignment;
}

static int check_options(const mote_model *m, const mote_session_options *o, mote_error *err) {
    if (o->context < 1 || o->context > m->c.context_max)
        return fail(err, MOTE_EINVAL, "a context of %d tokens, expected 1 to the model's %d", o->context, m->c.context_max);
    if (o->chunk < 1 || o->chunk > MAX_CHUNK)
        return fail(err, MOTE_EINVAL, "a chunk of %d rows, expected 1 to %d", o->chunk, MAX_CHUNK);
    if (o->threads < 1 || o->threads > MAX_THREADS)
        return fail(err, MOTE_EINVAL, "%d threads, expected 1 to %d", o->threads, MAX_THREADS);
    if (o->kv < MOTE_KV_F32 || o->kv > MOTE_KV_FP8)
        return fail(err, MOTE_EINVAL, "KV type %d, expected %d to %d", o->kv, MOTE_KV_DEFAULT, MOTE_KV_FP8);
    if (o->kv == MOTE_KV_F32 && executor_of(m)->kv != MOTE_KV_F32)
        return fail(err, MOTE_EUNSUPPORTED, "a KV cache in F32 is for the CPU, a GPU takes BF16 or FP8");
    if (o->sms < 0) return fail(err, MOTE_EINVAL, "%d SMs, expected 0 (all) or more", o->sms);
    if (o->mtp < MOTE_MTP_OFF || o->mtp >= MOTE_ROWS_MAX)
        return fail(err, MOTE_EINVAL, "%d drafts, expected %d (off), %d (auto), or 1 to %d", o->mtp, MOTE_MTP_OFF,
                    MOTE_MTP_AUTO, MOTE_ROWS_MAX - 1);
    return MOTE_OK;
}

/* Options that the runner has settled for its sessions: one that asks for something else is refused. */
static int runner_options(mote_session_options *o, mote_error *err) {
    const run_options *r = &o->runner->o;
    int *wanted[] = {&o->chunk, &o->threads, &o->kv, &o->sms};
    const int fixed[] = {r->chunk, r->threads, r->kv, r->sms};
    static const char *const names[] = {"chunk", "threads", "kv", "sms"};
    for (int i = 0; i < 4; i++) {
        if (*wanted[i] && *wanted[i] != fixed[i])
            return fail(err, MOTE_EINVAL, "%s is %d, and %d on the session's runner", names[i], *wanted[i], fixed[i]);
        *wanted[i] = fixed[i];
    }
    if (!o->context) o->context = r->context;
    return o->context <= r->context ? MOTE_OK : fail(err, MOTE_EINVAL, "a context of %d tokens, and of %d on the session's runner",
                                                     o->context, r->context);
}

/* Fills in defaults and checks. */
static int session_options(const mote_model *m, const mote_session_options *given, mote_session_options *o, mote_error *err) {
    const executor *on = executor_of(m);
    *o = *given;
    if (o->runner && o->runner->m != m) return fail(err, MOTE_EINVAL, "the runner is of another model");
    if (o->runner && o->runner->owner != getpid())
        return fail(err, MOTE_EINVAL, "the runner is of the process that opened it, a forked child can only close it");
    int code = o->runner ? runner_options(o, err) : MOTE_OK;
    if (code) return code;
    if (!o->context) o->context = min_int(m->c.context_max, DEFAULT_CONTEXT);
    if (!o->threads) o->threads = processors();
    if (o->kv == MOTE_KV_DEFAULT) o->kv = on->kv;
    if (!o->chunk) o->chunk = on->chunk;
    code = check_options(m, o, err);
    if (!code && !o->runner) o->chunk = whole_chunk(on, o->chunk, o->context);
    return code;
}

static run_options run_options_of(const mote_model *m, const mote_session_options *o) {
    run_options r = {.context = o->context,
                     .chunk = o->chunk,
                     .threads = o->threads,
                     .kv = o->kv,
                     .sms = o->sms && o->sms < m->gpu_sms ? o->sms : m->gpu_sms,
                     .layers = m->c.layers + 1};
    return r;
}

/* Whether a session has a state of the MTP layer. */
static int session_has_mtp(const mote_model *m, const mote_session_options *o) {
    return m->has_mtp && o->mtp != MOTE_MTP_OFF;
}

/* Lays out what the host alone works on; returns its floats. */
static size_t layout_session(float *base, mote_session *s) {
    const size_t vocab = (size_t)s->m->c.vocab;
    layout l = layout_from(base);
    s->rows = (token_row *)(void *)layout_alloc(&l, (size_t)(max_int(s->o.chunk, PASS_ROWS_MAX) + 1) * sizeof *s->rows / sizeof(float)) + 1;
    s->tokens = (int32_t *)(void *)layout_alloc(&l, (size_t)s->o.context);
    s->sorted = layout_alloc(&l, vocab);
    s->heap = (int32_t *)(void *)layout_alloc(&l, vocab);
    s->seen = (int32_t *)(void *)layout_alloc(&l, vocab);
    if (s->at.verifies) copies_layout(&l, &s->copies, s->o.context);
    return l.used;
}

/* Frees a session, however far it was opened. */
static void session_free(mote_session *s) {
    const mote_model *m = s->m;
    slot_close(&s->at);
    mote_checkpoint_free(s->before_answer);
    free(s->memory);
    free(s);
    mote_close((mote_model *)m);
}

/* A session of the model with these options, without memory: only its layout can be counted. A runner of its own, without memory
   too, unless o tells one; to_share: for other sessions, too. NULL: there is no memory. */
static mote_session *session_shell(const mote_model *m, const mote_session_options *o, int to_share, mote_error *err) {
    mote_session *s = (mote_session *)calloc(1, sizeof *s);
    if (!s) {
        fail_memory(err);
        return NULL;
    }
    s->m = model_hold(m);
    s->owner = getpid();
    s->o = *o;
    const run_options how = run_options_of(m, o);
    mote_runner *r = o->runner ? runner_hold(o->runner) : runner_shell(m, &how, !to_share);
    int code = r ? slot_begin(&s->at, r, o->context, session_has_mtp(m, o), err) : fail_memory(err);
    s->at.verifies = o->mtp != MOTE_MTP_OFF;
    if (r) runner_drop(r);                                  /* the slot holds it */
    if (!code) return s;
    session_free(s);
    return NULL;
}

/* The memory of a shell with these options. */
static memory_parts session_parts(mote_session *s, const mote_session_options *o) {
    mote_runner *r = s->at.runner;
    s->o = *o;
    s->at.context = o->context;
    if (!o->runner) r->o = run_options_of(s->m, o);
    memory_parts parts = layout_slot(NULL, NULL, &s->at);
    if (!o->runner) parts.scratch += layout_runner(r, NULL);
    if (r->on->shares_memory) parts.scratch += layout_session(NULL, s);
    return parts;
}

static size_t parts_bytes(const memory_parts *p) {
    return (p->kv + p->state + p->scratch) * sizeof(float);
}

/* Makes a chunk that nobody asked for smaller until the shell fits into `left` bytes: half as long each time, down to CHUNK_LEAST
   rows. Returns what the session then needs. */
static memory_parts fit_chunk(mote_session *s, const mote_session_options *given, uint64_t left) {
    const executor *on = s->at.runner->on;
    mote_session_options o = s->o;
    memory_parts parts = session_parts(s, &o);
    while (on->chunk_alignment > 1 && !o.runner && !given->chunk && left && parts_bytes(&parts) > left && o.chunk > CHUNK_LEAST) {
        o.chunk = whole_chunk(on, o.chunk / 2, o.context);
        parts = session_parts(s, &o);
    }
    return parts;
}

/* The longest context with which the shell fits into `left` bytes, at most the model's or its runner's; 0: none. */
static int context_that_fits(mote_session *s, uint64_t left) {
    const mote_session_options before = s->o;
    mote_session_options o = before;
    int fits = 0, over = (o.runner ? o.runner->o.context : s->m->c.context_max) + 1;
    while (over - fits > 1) {
        o.context = fits + (over - fits) / 2;
        if (!o.runner) o.chunk = whole_chunk(s->at.runner->on, before.chunk, o.context);
        memory_parts parts = session_parts(s, &o);
        if (parts_bytes(&parts) <= left) fits = o.context;
        else over = o.context;
    }
    (void)session_parts(s, &before);
    return fits;
}

static int session_no_memory(mote_session *s, const memory_parts *parts, uint64_t available, mote_error *err) {
    return fail(err, MOTE_ENOMEM, "a session of %d tokens needs %.2f GB, %.2f GB are free%s%s: a context of %d tokens would fit",
                s->o.context, (double)parts_bytes(parts) * 1e-9, (double)available * 1e-9, s->m->gpu < 0 ? "" : " on ",
                s->m->gpu < 0 ? "" : s->m->device, context_that_fits(s, available));
}

/* Gets a shell its memory. */
static int session_start(mote_session *s, const mote_session_options *given, mote_error *err) {
    const uint64_t available = device_available(s->m);
    const memory_parts parts = fit_chunk(s, given, available);
    if (available && parts_bytes(&parts) > available) return session_no_memory(s, &parts, available, err);
    int code = s->o.runner ? MOTE_OK : s->at.runner->on->open(s->at.runner, err);
    if (!code) code = slot_open(&s->at, err);
    if (code) return code;
    s->memory = (float *)calloc(1, layout_session(NULL, s) * sizeof(float) + CACHE_LINE);
    if (!s->memory) return fail_memory(err);
    layout_session(layout_base(s->memory), s);
    return MOTE_OK;
}

static void speculation_start(mote_session *s);

static int session_open(const mote_model *m, const mote_session_options *given, mote_session **session, mote_error *err) {
    mote_session_options o;
    int code = session_options(m, given, &o, err);
    mote_session *s = code ? NULL : session_shell(m, &o, 0, err);
    if (!s) return code ? code : MOTE_ENOMEM;
    code = session_start(s, given, err);
    speculation_start(s);
    if (code) session_free(s);
    else *session = s;
    return code;
}

int mote_session_open(const mote_model *model, const mote_session_options *options, mote_session **session, mote_error *error) {
    mote_session_options given;
    if (!model || !session)
        return fail(error, MOTE_EINVAL, "mote_session_open: needs a model and a place for the session");
    if (!model_has_weights(model)) return fail(error, MOTE_EUNSUPPORTED, "the model was opened without weights");
    int code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", error);
    return code ? code : session_open(model, &given, session, error);
}

/* The chunk is what fits beside one session of the longest context. */
int mote_runner_open(const mote_model *model, const mote_session_options *options, mote_runner **runner, mote_error *error) {
    mote_session_options given, o;
    if (!model || !runner) return fail(error, MOTE_EINVAL, "mote_runner_open: needs a model and a place for the runner");
    if (!model_has_weights(model)) return fail(error, MOTE_EUNSUPPORTED, "the model was opened without weights");
    int code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", error);
    if (!code && given.runner) code = fail(error, MOTE_EINVAL, "mote_runner_open: a runner for a runner");
    if (!code) code = session_options(model, &given, &o, error);
    mote_session *s = code ? NULL : session_shell(model, &o, 1, error);
    if (!s) return code ? code : MOTE_ENOMEM;
    const uint64_t available = device_available(model);
    const memory_parts parts = fit_chunk(s, &given, available);
    if (available && parts_bytes(&parts) > available) code = session_no_memory(s, &parts, available, error);
    if (!code) code = s->at.runner->on->open(s->at.runner, error);
    if (!code) *runner = runner_hold(s->at.runner);
    session_free(s);
    return code;
}

void mote_runner_close(mote_runner *runner) {
    if (runner) runner_drop(runner);
}

/* Whether the call that made the session busy may still run. It does not when this thread's stack ends above where that of the
   call was: an exception or a longjmp out of a callback left it. */
static int session_runs(const mote_session *s, uintptr_t frame) {
    if (!__atomic_load_n(&s->busy, __ATOMIC_ACQUIRE)) return 0;
    int of_this_thread = __atomic_load_n(&s->thread, __ATOMIC_RELAXED) == (uintptr_t)pthread_self();
    return !of_this_thread || frame <= __atomic_load_n(&s->frame, __ATOMIC_RELAXED);
}

void mote_session_close(mote_session *session) {
    if (!session) return;
    if (session->owner == getpid() && session_runs(session, (uintptr_t)__builtin_frame_address(0))) {
        notice(&session->o.callbacks, "mote_session_close: ignored: a call on the session has not returned");
        return;
    }
    session_free(session);
}

static int session_is_busy(const char *needs, mote_error *err) {
    return fail(err, MOTE_EINVAL, "%.*s: the session is busy: a call on it has not returned, its callbacks must not use it",
                (int)strcspn(needs, ":"), needs);
}

/* The entry of every call on a session but those that say so. needs: what the call is and must be given, "mote_step: needs a
   session"; given: whether it was. */
static int session_enter(const mote_session *s, int given, const char *needs, mote_error *err) {
    int name = (int)strcspn(needs, ":");
    if (!s || !given) return fail(err, MOTE_EINVAL, "%s", needs);
    if (s->owner != getpid())
        return fail(err, MOTE_EINVAL, "%.*s: the session is of the process that opened it, a forked child can only close it",
                    name, needs);
    return __atomic_load_n(&s->busy, __ATOMIC_ACQUIRE) ? session_is_busy(needs, err) : MOTE_OK;
}

/* The entry of a call that the session's own callbacks may make. */
static int session_enter_within(const mote_session *s, int given, const char *needs, mote_error *err) {
    const int within = s && s->owner == getpid() && __atomic_load_n(&s->busy, __ATOMIC_ACQUIRE) &&
                       __atomic_load_n(&s->thread, __ATOMIC_RELAXED) == (uintptr_t)pthread_self();
    return within && given ? MOTE_OK : session_enter(s, given, needs, err);
}

/* After session_enter, in calls that may call the application back: until session_leave all others are refused, as what they
   would see or change of the session is half a step. call: "mote_ask: ". Its own frame is below that of the call, and above those
   of the callbacks. */
__attribute__((noinline)) static int session_begin(mote_session *s, const char *call, mote_error *err) {
    if (__atomic_exchange_n(&s->busy, 1, __ATOMIC_ACQ_REL)) return session_is_busy(call, err);
    __atomic_store_n(&s->thread, (uintptr_t)pthread_self(), __ATOMIC_RELAXED);
    __atomic_store_n(&s->frame, (uintptr_t)__builtin_frame_address(0), __ATOMIC_RELAXED);
    return MOTE_OK;
}

static void session_leave(mote_session *s) {
    __atomic_store_n(&s->busy, 0, __ATOMIC_RELEASE);
}

