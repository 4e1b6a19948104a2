/* session/session.c: what a session is: a timeline of tokens, and a slot on a runner. Its options, and the checks at the entry of every
   call on one. Knows no device, and of what decoding keeps in it a pointer; session/open.c opens it. */

enum {
    DEFAULT_CONTEXT = 8192,
    MOST_SESSIONS = 1 << 16,
    IMAGE_TOKENS = 4096          /* of one image, by default */
};

struct mote_session {
    const mote_model *m;
    pid_t owner;                 /* the process whose session it is, and whose threads */
    int busy;                    /* inside a call that may call the application back: see session_begin (atomic) */
    uintptr_t thread, frame;     /* of that call (atomic) */
    mote_session_options o;      /* with defaults filled in */
    struct slot slot;            /* on its runner */
    int32_t *tokens;             /* [context] */
    image_spans images;          /* of the timeline, and of tokens after it up to `valid` */
    int32_t *keys;               /* [context] the tokens, keys where images are; NULL: there never was an image */
    int keyed;                   /* of keys: so many are right */
    token_row *rows;             /* [most rows of a block] the table of the block that is computed next; before them rows[-1] */
    int count;                   /* tokens of the timeline */
    int lag;                     /* indexes of the text after it less their positions: more than 0 after an image */
    int block_at;                /* those before the block computed last */
    int valid;                   /* rows of tokens and KV that hold what was computed: >= count after a rewind */
    int only_windows;            /* of layers with a window, keys and values that the next token sees are all that is there: they lie in rings,
                                    or were loaded so. Else those of all tokens */
    int generated_from;          /* what follows was generated */
    int pending, accepted;       /* rows of the last block, in the log; the first of them, which are in the timeline */
    mote_checkpoint *before_answer;                         /* it may go back to, see forget_answer; NULL: never taken */
    struct seen_image **kept;    /* [kept_count] images after that, to be read again then */
    int kept_count;
    size_t read_before, read_after;                         /* tokens of a turn read before and after what feed() reads */
    int cut;                     /* the fewest tokens since generate/copies.c looked last: later ones may be others now */
    struct decoder *decoder;     /* generate/decoder.c: what decoding keeps from one call to the next */
    float *memory;               /* of the host: tokens, decoder */
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
    if (o->sessions > MOST_SESSIONS) return fail(err, MOTE_EINVAL, "%zu sessions, expected at most %d", o->sessions, MOST_SESSIONS);
    if (o->sms < 0) return fail(err, MOTE_EINVAL, "%d SMs, expected 0 (all) or more", o->sms);
    if (o->mtp < MOTE_MTP_OFF || o->mtp >= MOTE_ROWS_MAX)
        return fail(err, MOTE_EINVAL, "%d drafts, expected %d (off), %d (auto), or 1 to %d", o->mtp, MOTE_MTP_OFF,
                    MOTE_MTP_AUTO, MOTE_ROWS_MAX - 1);
    return MOTE_OK;
}

/* Options that the runner has settled for its sessions: one that asks for something else is refused. */
static int runner_options(mote_session_options *o, mote_error *err) {
    const run_options *r = &o->runner->o;
    int *wanted[] = {&o->chunk, &o->threads, &o->kv, &o->sms, &o->image_tokens};
    const int fixed[] = {r->chunk, r->threads, r->kv, r->sms, r->patches / VISION_JOINED};
    static const char *const names[] = {"chunk", "threads", "kv", "sms", "image_tokens"};
    for (int i = 0; i < 5; i++) {
        if (*wanted[i] && *wanted[i] != fixed[i])
            return fail(err, MOTE_EINVAL, "%s is %d, and %d on the session's runner", names[i], *wanted[i], fixed[i]);
        *wanted[i] = fixed[i];
    }
    if (!o->context) o->context = r->context;
    return o->context <= r->context ? MOTE_OK : fail(err, MOTE_EINVAL, "a context of %d tokens, and of %d on the session's runner",
                                                     o->context, r->context);
}

/* Of images no more than the checkpoint allows; 0 where it reads none. */
static int image_options(const mote_model *m, mote_session_options *o, mote_error *err) {
    if (o->image_tokens < 0) return fail(err, MOTE_EINVAL, "images of %d tokens, expected 0 (default) or more", o->image_tokens);
    o->image_tokens = min_int(o->image_tokens ? o->image_tokens : IMAGE_TOKENS, model_image_tokens(m));
    return MOTE_OK;
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
    if (!o->runner) code = image_options(m, o, err);
    if (code) return code;
    code = check_options(m, o, err);
    if (!code && !o->runner) o->chunk = whole_chunk(on, o->chunk, o->context);
    return code;
}

static run_options run_options_of(const mote_model *m, const mote_session_options *o) {
    const int sms = (m->members ? m->members[m->member_count - 1] : m)->device.sms;         /* others may be on other hosts */
    run_options r = {.context = o->context,
                     .chunk = o->chunk,
                     .threads = o->threads,
                     .kv = o->kv,
                     .sms = o->sms && o->sms < sms ? o->sms : sms,
                     .layers = m->c.layers + 1,
                     .window = m->largest.attention.window,
                     .ring_rows = executor_of(m)->ring_rows,
                     .patches = o->image_tokens * VISION_JOINED};
    return r;
}

/* Whether a session has a state of the MTP layer. */
static int session_has_mtp(const mote_model *m, const mote_session_options *o) {
    return m->has_mtp && o->mtp != MOTE_MTP_OFF;
}

/* Whether the call that made the session busy may still run. It does not when this thread's stack ends above where that of the
   call was: an exception or a longjmp out of a callback left it. */
static int session_runs(const mote_session *s, uintptr_t frame) {
    if (!__atomic_load_n(&s->busy, __ATOMIC_ACQUIRE)) return 0;
    int of_this_thread = __atomic_load_n(&s->thread, __ATOMIC_RELAXED) == (uintptr_t)pthread_self();
    return !of_this_thread || frame <= __atomic_load_n(&s->frame, __ATOMIC_RELAXED);
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

/* Takes what the session needs to hold so many images. */
static int session_reserve_images(mote_session *s, int count, mote_error *err) {
    if (count && !s->keys && !(s->keys = (int32_t *)malloc((size_t)s->o.context * sizeof *s->keys))) return fail_memory(err);
    return spans_reserve(&s->images, count, err);
}

static void session_leave(mote_session *s) {
    __atomic_store_n(&s->busy, 0, __ATOMIC_RELEASE);
}

