/* session/memory.c: what a session holds, how its memory is laid out, and the plan of it.

   A session owns one block of floats, laid out once: KV cache, DeltaNet state with its log, and scratch for one chunk of
   rows. Laying out with no memory yet just counts, which is how the memory plan is made. */

enum { DEFAULT_CONTEXT = 8192, DEFAULT_CHUNK = 256, MAX_CHUNK = 8192, CHUNK_UNIT = 64, CHUNK_LEAST = 512, MAX_THREADS = 256 };

typedef struct scratch {
    float *x, *u, *hidden;                                  /* [chunk][hidden] */
    float *mtp_in;                                          /* [chunk][2 hidden] */
    token_digits *digits;                                   /* of a chunk of those, or of final rows */
    layer_jobs jobs;                                        /* of the layers, for a chunk */
    float *sorted;                                          /* [vocab] logits being sampled */
    float *block_logits;                                    /* [BLOCK][vocab] of a block of drafts */
    int32_t *heap, *seen;                                   /* [vocab]; seen: zero between calls */
} scratch;

/* Speculation: see generate/speculation.c. */
typedef struct speculation {
    mote_speculation seen;
    double hope[BLOCK - 1];                                 /* that a draft is accepted if those before it are */
    double trust[BLOCK - 1];                                /* in that: the passes it is the average of */
    int measured_at;                                        /* tokens of the timeline when costs were measured; 0: measure */
    double spent, expected;                                 /* seconds of the passes since, and by their costs */
    int timed;                                              /* of so many passes */
    int32_t next;                                           /* the token that begins the next pass; -1: not chosen yet */
    int drafts;                                             /* that follow it, made already */
} speculation;

typedef struct memory_parts { size_t kv, state, scratch; } memory_parts;   /* floats */

struct mote_session {
    const mote_model *m;
    pid_t owner;                 /* the process whose session it is, and whose threads */
    int busy;                    /* inside a call that may call the application back: see session_begin (atomic) */
    uintptr_t thread, frame;     /* of that call (atomic) */
    mote_session_options o;      /* with defaults filled in */
    pool *threads;
    float *memory;               /* KV, state and scratch; on a GPU in its memory */
    float *host;                 /* on a GPU: what the host works on, host_floats of pinned memory */
    size_t host_floats;
    memory_parts parts;
    struct gpu_session *gpu;     /* NULL: on the CPU */
    int32_t *tokens;             /* [context] */
    int count;                   /* tokens of the timeline */
    int block_at;                /* those before the block computed last */
    int valid;                   /* rows of tokens and KV that hold what was computed: >= count after a rewind */
    int generated_from;          /* what follows was generated */
    int pending, accepted;       /* rows of the last block, in the log; the first of them, which are in the timeline */
    dtype kv_type;
    int has_mtp;                 /* the MTP layer has a state */
    layer_state *state;          /* [layers + 1] of the mixers, the last one the MTP layer's */
    float *recurrent;            /* of these, what cannot be truncated, of all layers, contiguous */
    float *last_hidden;          /* [hidden] after the final norm, of the last token: see session_last_hidden */
    float *logits;               /* [vocab] after the last token: see session_logits */
    int logits_in_block;         /* s.block_logits has those of all rows of the block */
    mote_checkpoint *before_answer;                         /* see generate/thinking.c; NULL: never taken */
    size_t read_before, read_behind;                        /* tokens of a turn read before and behind what feed() reads */
    speculation spec;
    scratch s;
};

#ifdef __CUDACC__
enum gpu_kind { GPU_NO_LOGITS, GPU_LAST_LOGITS, GPU_ALL_LOGITS, GPU_MTP_LOGITS, GPU_KINDS };

struct gpu_session {
    gpu_queue q;
    cudaStream_t stream;
    cudaGraphExec_t graph[GPU_KINDS][GPU_ROWS + 1];
    cudaGraphExec_t cycle[GPU_ROWS + 1][GPU_ROWS];          /* [rows verified][drafts made]; [0]: drafts alone */
    step_parameters *step;
    sampling_parameters *parameters, sampling_on_device;    /* in GPU memory; the host's copy of them */
    sampling_parameters *greedy;                            /* in GPU memory: for drafts */
    float *x, *mtp_x, *hidden, *mtp_in;                     /* [GPU_ROWS][hidden], of mtp_in 2 hidden */
    layer_gpus layers;                                      /* the arguments of their kernels, as far as they do not change */
    float *logits, *mtp_logits, *draft_logits;              /* [GPU_ROWS][vocab], [GPU_ROWS][vocab], [draft rows] */
    int32_t *chosen;                                        /* [layers + 1] experts used by the last step */
    uint64_t *picks;
    volatile gpu_mailbox *mailbox;                          /* pinned memory: the sampler posts tokens, the host polls */
    uint32_t sequence;                                      /* number of the last post that was queued */
    int rows;                                               /* of the last step: the last is the timeline's */
    int head_done, logits_row, logits_on_host;              /* last row's logits: computed? which row? also on the host? */
    int all_logits;                                         /* logits of every row were computed */
    mote_launch *launches;                                  /* of mote_launches */
    prefill_scratch prefill;
    cudaEvent_t layer_done[2];                              /* of prefill: recorded behind every other layer */
};
#endif

/* What a session has room for; on the CPU a chunk of a prompt, or a block of drafts. */
static capacity capacity_of(const mote_session_options *o, dtype kv) {
    capacity r;
    r.context = o->context;
    r.rows = o->chunk > BLOCK ? o->chunk : BLOCK;
    r.threads = o->threads;
    r.kv = kv;
    return r;
}

static void layout_scratch(layout *l, const mote_model *m, const capacity *r, scratch *s) {
    const config *c = &m->c;
    size_t rows = (size_t)r->rows * (size_t)c->hidden;
    s->x = layout_alloc(l, rows);
    s->u = layout_alloc(l, rows);
    s->hidden = layout_alloc(l, rows);
    s->mtp_in = layout_alloc(l, 2 * rows);
    s->digits = digits_alloc(l, (size_t)r->rows, 2 * c->hidden);
    layer_lay_jobs(l, &m->largest, r, &s->jobs);
}

/* Whether a session has a state of the MTP layer. */
static int session_has_mtp(const mote_model *m, const mote_session_options *o) {
    return m->has_mtp && o->mtp != MOTE_MTP_OFF;
}

/* What a session needs in host memory, also on a GPU. */
static void layout_host(layout *l, const config *c, const mote_session_options *o, mote_session *s) {
    s->logits = layout_alloc(l, (size_t)c->vocab);
    s->tokens = (int32_t *)(void *)layout_alloc(l, (size_t)o->context);
    s->s.sorted = layout_alloc(l, larger((size_t)c->vocab, (size_t)s->m->largest.attention.rotary_dim));
    s->s.heap = (int32_t *)(void *)layout_alloc(l, (size_t)c->vocab);
    s->s.seen = (int32_t *)(void *)layout_alloc(l, (size_t)c->vocab);
    s->s.block_logits = session_has_mtp(s->m, o) ? layout_alloc(l, BLOCK * (size_t)c->vocab) : NULL;
}

#ifdef __CUDACC__
static void layout_gpu(layout *l, const mote_model *m, const mote_session_options *o, const capacity *r,
                       struct gpu_session *g);
static void layout_prefill(layout *l, const mote_model *m, const mote_session_options *o, dtype kv, size_t state,
                           prefill_scratch *p);
#endif

/* The type that MOTE_KV_... stands for. */
static dtype kv_type_of(int kv) {
    return kv == MOTE_KV_BF16 ? DTYPE_BF16 : kv == MOTE_KV_FP8 ? DTYPE_FP8 : DTYPE_F32;
}

/* Lays out the states of those layers that are rolled back in one way: truncated ones first, so that the others lie together. */
static void layout_states(layout *l, const mote_model *m, const capacity *r, enum rollback rollback, mote_session *s) {
    for (int i = 0; i <= m->c.layers; i++) {
        const layer *of = i < m->c.layers ? &m->layers[i] : &m->mtp;
        if ((i < m->c.layers || s->has_mtp) && layer_rollback(of->mixer.kind) == rollback)
            layer_lay_state(of, l, r, &s->state[i]);
    }
}

/* Lays out a session's memory from `base`, and on a GPU the host's part from `host`; with base NULL it only counts. s->state
   has room for all layers. */
static memory_parts layout_session(const mote_model *m, const mote_session_options *o, float *base, float *host,
                                   mote_session *s) {
    const config *c = &m->c;
    capacity r = capacity_of(o, kv_type_of(o->kv));
    layout l = layout_from(base);
    memory_parts parts;
    s->has_mtp = session_has_mtp(m, o);
    layout_states(&l, m, &r, ROLLBACK_TRUNCATE, s);
    parts.kv = l.used;
    s->recurrent = base ? base + l.used : NULL;
    layout_states(&l, m, &r, ROLLBACK_REPLAY, s);
    parts.state = l.used - parts.kv;
    s->last_hidden = layout_alloc(&l, (size_t)c->hidden);
    if (m->gpu < 0) {
        layout_host(&l, c, o, s);
        layout_scratch(&l, m, &r, &s->s);
    }
#ifdef __CUDACC__
    if (m->gpu >= 0) {
        layout on_host = layout_from(host);
        layout_gpu(&l, m, o, &r, s->gpu);
        layout_prefill(&l, m, o, r.kv, parts.state, &s->gpu->prefill);
        layout_host(&on_host, c, o, s);
        s->host_floats = on_host.used;
    }
#endif
    (void)host;
    parts.scratch = l.used - parts.kv - parts.state;
    return parts;
}

/* Processors this process may use. */
static int processors(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

/* On a GPU a chunk is whole units, and no longer than the context needs. */
static int whole_chunk(int chunk, int context) {
    int most = chunk < context ? chunk : context;
    return (most + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT;
}

/* Fills in defaults and checks. */
static int session_options(const mote_model *m, const mote_session_options *given, mote_session_options *o,
                           mote_error *err) {
    *o = *given;
    if (!o->context) o->context = m->c.context_max < DEFAULT_CONTEXT ? m->c.context_max : DEFAULT_CONTEXT;
    if (!o->threads) o->threads = processors();
    if (o->kv == MOTE_KV_DEFAULT) o->kv = m->gpu < 0 ? MOTE_KV_F32 : MOTE_KV_BF16;
    if (o->context < 1 || o->context > m->c.context_max)
        return fail(err, MOTE_EINVAL, "a context of %d tokens, expected 1 to the model's %d", o->context,
                    m->c.context_max);
    if (!o->chunk) o->chunk = m->gpu < 0 ? DEFAULT_CHUNK : MAX_CHUNK;
    if (o->chunk < 1 || o->chunk > MAX_CHUNK)
        return fail(err, MOTE_EINVAL, "a chunk of %d rows, expected 1 to %d", o->chunk, MAX_CHUNK);
    if (m->gpu >= 0) o->chunk = whole_chunk(o->chunk, o->context);
    if (o->threads < 1 || o->threads > MAX_THREADS)
        return fail(err, MOTE_EINVAL, "%d threads, expected 1 to %d", o->threads, MAX_THREADS);
    if (o->kv < MOTE_KV_F32 || o->kv > MOTE_KV_FP8)
        return fail(err, MOTE_EINVAL, "KV type %d, expected %d to %d", o->kv, MOTE_KV_DEFAULT, MOTE_KV_FP8);
    if (o->kv == MOTE_KV_F32 && m->gpu >= 0)
        return fail(err, MOTE_EUNSUPPORTED, "a KV cache in F32 is for the CPU, a GPU takes BF16 or FP8");
    if (o->sms < 0) return fail(err, MOTE_EINVAL, "%d SMs, expected 0 (all) or more", o->sms);
    if (o->mtp < MOTE_MTP_OFF || o->mtp >= BLOCK)
        return fail(err, MOTE_EINVAL, "%d drafts, expected %d (off), %d (auto), or 1 to %d", o->mtp, MOTE_MTP_OFF,
                    MOTE_MTP_AUTO, BLOCK - 1);
    return MOTE_OK;
}

static mote_session *session_shell(const mote_model *m) {
    mote_session *s = (mote_session *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->m = model_hold(m);
    s->owner = getpid();
    s->state = (layer_state *)calloc((size_t)m->c.layers + 1, sizeof *s->state);
#ifdef __CUDACC__
    if (m->gpu >= 0) s->gpu = (struct gpu_session *)calloc(1, sizeof *s->gpu);
    if (m->gpu >= 0 && !s->gpu) {
        mote_session_close(s);
        return NULL;
    }
#endif
    if (s->state) return s;
    mote_session_close(s);
    return NULL;
}

static size_t parts_bytes(const memory_parts *p) {
    return (p->kv + p->state + p->scratch) * sizeof(float);
}

/* On a GPU, makes a chunk that nobody asked for smaller until the session fits into `left` bytes: half as long each time, down
   to CHUNK_LEAST rows. Returns what the session then needs. */
static memory_parts fit_chunk(const mote_model *m, const mote_session_options *given, mote_session_options *o, uint64_t left,
                              mote_session *s) {
    memory_parts parts = layout_session(m, o, NULL, NULL, s);
    while (m->gpu >= 0 && !given->chunk && left && parts_bytes(&parts) > left && o->chunk > CHUNK_LEAST) {
        o->chunk = whole_chunk(o->chunk / 2, o->context);
        parts = layout_session(m, o, NULL, NULL, s);
    }
    return parts;
}

/* The longest context whose session fits into `left` bytes, at most the model's; 0: none. s only counts. */
static int context_that_fits(const mote_model *m, const mote_session_options *options, uint64_t left, mote_session *s) {
    mote_session_options o = *options;
    int fits = 0, over = m->c.context_max + 1;
    while (over - fits > 1) {
        o.context = fits + (over - fits) / 2;
        o.chunk = m->gpu >= 0 ? whole_chunk(options->chunk, o.context) : options->chunk;
        memory_parts parts = layout_session(m, &o, NULL, NULL, s);
        if (parts_bytes(&parts) <= left) fits = o.context;
        else over = o.context;
    }
    return fits;
}

int mote_plan(const char *dir, const mote_options *model, const mote_session_options *options, mote_memory *plan,
              mote_error *error) {
    mote_callbacks silent;
    mote_options how;
    mote_session_options given, o;
    mote_error failure;
    checkpoint files;
    binder b;
    mote_session *s = NULL;
    memset(&silent, 0, sizeof silent);
    if (!dir || !plan) return fail(error, MOTE_EINVAL, "mote_plan: needs a folder and a place for the plan");
    int code = take_options(&how, sizeof how, OPTIONS_0_3, model, "mote_options", error);
    if (!code) code = take_options(&given, sizeof given, SESSION_OPTIONS_0_3, options, "mote_session_options", error);
    if (code) return code;
    if (!error) error = &failure;
    mote_model *m = model_new(how.device, 0, &silent, error);
    if (!m) return error->code;
    if (how.draft_rows > 0) m->draft_rows = how.draft_rows;
    m->quantize = how.quantize;
    code = model_bind(m, &files, &b, dir, 1, &silent, error);
    if (!code) code = session_options(m, &given, &o, error);
    if (!code && !(s = session_shell(m))) code = fail_memory(error);
    if (!code) {
        uint64_t available = device_available(m);
        memory_parts parts = fit_chunk(m, &given, &o, available > b.arena ? available - b.arena : 0, s);
        plan->weights = b.arena;
        plan->kv = parts.kv * sizeof(float);
        plan->state = parts.state * sizeof(float);
        plan->scratch = parts.scratch * sizeof(float);
        plan->total = b.arena + parts_bytes(&parts);
        plan->available = available;
        plan->context = o.context;
        plan->chunk = o.chunk;
        plan->context_fits = -1;
        plan->estimated = m->info.estimated;
        if (available) plan->context_fits = context_that_fits(m, &o, available > b.arena ? available - b.arena : 0, s);
    }
    mote_session_close(s);
    buf_free(&b.items);
    checkpoint_close(&files);
    mote_close(m);
    return code;
}
