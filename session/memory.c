/* session/memory.c: what a session holds, how its memory is laid out, and the plan of it.

   A session owns one block of floats, laid out once: KV cache, DeltaNet state with its log, and scratch for one chunk of
   rows. Laying out with no memory yet just counts, which is how the memory plan is made. */

enum { DEFAULT_CONTEXT = 8192, DEFAULT_CHUNK = 32, MAX_CHUNK = 1024, MAX_THREADS = 256 };

typedef struct kv_rows { void *k, *v; } kv_rows;            /* [context][kv_heads * head_dim] each, of kv_type */

typedef struct scratch {
    float *x, *u, *hidden;                                  /* [chunk][hidden] */
    float *angles;                                          /* [chunk][rotary_dim] */
    float *in, *gate, *out;                                 /* the widest of the projections of a mixer */
    float *k, *v, *a, *b, *decay, *beta;
    float *mtp_in;                                          /* [chunk][2 hidden] */
    float *scores;                                          /* [threads][context] */
    float *router, *shared_gate, *weight, *assignment_weight, *h;
    float *sorted;                                          /* [vocab] logits being sampled */
    float *block_logits;                                    /* [BLOCK][vocab] of a block of drafts */
    int32_t *choice, *list, *first, *assignment_row, *heap, *seen; /* seen: [vocab], zero between calls */
} scratch;

/* Speculation: see session/speculation.c. */
typedef struct speculation {
    mote_speculation seen;
    double hope[BLOCK - 1];                                 /* that a draft is accepted if those before it are */
    double trust[BLOCK - 1];                                /* in that: the passes it is the average of */
    int measured_at;                                        /* tokens of the timeline when costs were measured */
    int32_t next;                                           /* the token that begins the next pass; -1: not chosen yet */
    int drafts;                                             /* that follow it, made already */
} speculation;

typedef struct memory_parts { size_t kv, state, scratch; } memory_parts;   /* floats */

struct mote_session {
    const mote_model *m;
    pid_t owner;                 /* the process whose session it is, and whose threads */
    int busy;                    /* inside a call that may call the application back */
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
    kv_rows *kv;                 /* [layers + 1], the last one is the MTP layer's; NULL where there are none */
    deltanet_state *deltanet;    /* [layers] */
    float *state;                /* DeltaNet state of all layers, contiguous */
    float *last_hidden;          /* [hidden] after the final norm, of the last token: see session_last_hidden */
    float *logits;               /* [vocab] after the last token: see session_logits */
    int logits_in_block;         /* s.block_logits has those of all rows of the block */
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
    float *frequencies;                                     /* [rotary_dim / 2] */
    float *x, *mtp_x, *hidden;                              /* [GPU_ROWS][hidden] */
    float *in, *z, *a, *b, *k, *decay, *squares, *k_new, *v_new, *o;
    float *parts, *router, *shared_gate, *mtp_in;
    float *logits, *mtp_logits, *draft_logits;              /* [GPU_ROWS][vocab], [GPU_ROWS][vocab], [draft rows] */
    int *tickets, splits;
    gpu_routing *routing;
    int32_t *chosen;                                        /* [layers + 1] experts used by the last step */
    float *h;
    uint64_t *picks;
    volatile gpu_mailbox *mailbox;                          /* pinned memory: the sampler posts tokens, the host polls */
    uint32_t sequence;                                      /* number of the last post that was queued */
    uint32_t overlap;                                       /* as in gpu_moe */
    int rows;                                               /* of the last step: the last is the timeline's */
    int head_done, logits_row, logits_on_host;              /* last row's logits: computed? which row? also on the host? */
    int all_logits;                                         /* logits of every row were computed */
    mote_launch *launches;
    gpu_note *notes;
};
#endif

typedef struct layout { float *base; size_t used; } layout;

static float *layout_alloc(layout *l, size_t floats) {
    float *at = l->base ? l->base + l->used : NULL;
    l->used += (floats + 15) / 16 * 16;
    return at;
}

static void layout_deltanet(layout *l, const deltanet_shape *s, deltanet_state *to) {
    size_t channels = (size_t)deltanet_channels(s), keys = (size_t)(s->key_heads * s->key_dim);
    size_t values = (size_t)(s->value_heads * s->value_dim);
    to->S = layout_alloc(l, values * (size_t)s->key_dim);
    to->window = layout_alloc(l, ((size_t)s->taps - 1 + BLOCK) * channels);
    to->log_raw = to->window ? to->window + ((size_t)s->taps - 1) * channels : NULL;
    to->log_k = layout_alloc(l, BLOCK * keys);
    to->log_u = layout_alloc(l, BLOCK * values);
    to->log_decay = layout_alloc(l, BLOCK * (size_t)s->value_heads);
}

/* For a chunk of a prompt, or a block of drafts. */
static void layout_scratch(layout *l, const config *c, const mote_session_options *o, scratch *s) {
    size_t T = larger((size_t)o->chunk, BLOCK), hidden = (size_t)c->hidden, kv = (size_t)(c->kv_heads * c->head_dim);
    size_t heads = (size_t)(c->heads * c->head_dim), values = (size_t)(c->value_heads * c->value_dim);
    size_t channels = 2 * (size_t)(c->key_heads * c->key_dim) + values, uses = T * ((size_t)c->top_k + 1);
    s->x = layout_alloc(l, T * hidden);
    s->u = layout_alloc(l, T * hidden);
    s->hidden = layout_alloc(l, T * hidden);
    s->angles = layout_alloc(l, T * (size_t)c->rotary_dim + 1);
    s->in = layout_alloc(l, T * larger(channels, 2 * heads));
    s->gate = layout_alloc(l, T * larger(channels, values));       /* DeltaNet: channels after conv1d */
    s->out = layout_alloc(l, T * larger(values, heads));
    s->k = layout_alloc(l, T * larger(kv, values));                 /* DeltaNet: z */
    s->v = layout_alloc(l, T * kv);
    s->a = layout_alloc(l, T * (size_t)c->value_heads);
    s->b = layout_alloc(l, T * (size_t)c->value_heads);
    s->decay = layout_alloc(l, T * (size_t)c->value_heads);
    s->beta = layout_alloc(l, T * (size_t)c->value_heads);
    s->mtp_in = layout_alloc(l, T * 2 * hidden);
    s->scores = layout_alloc(l, (size_t)o->threads * (size_t)o->context);
    s->router = layout_alloc(l, T * (size_t)c->experts);
    s->shared_gate = layout_alloc(l, T);
    s->weight = layout_alloc(l, uses);
    s->assignment_weight = layout_alloc(l, uses);
    s->h = layout_alloc(l, uses * larger((size_t)c->expert_size, (size_t)c->shared_size));
    s->choice = (int32_t *)(void *)layout_alloc(l, uses);
    s->list = (int32_t *)(void *)layout_alloc(l, (size_t)c->experts + 1);
    s->first = (int32_t *)(void *)layout_alloc(l, (size_t)c->experts + 2);
    s->assignment_row = (int32_t *)(void *)layout_alloc(l, uses);
}

/* Whether a session has KV rows of the MTP layer. */
static int session_has_mtp(const mote_model *m, const mote_session_options *o) {
    return m->has_mtp && o->mtp != MOTE_MTP_OFF;
}

/* What a session needs in host memory, also on a GPU. */
static void layout_host(layout *l, const config *c, const mote_session_options *o, mote_session *s) {
    s->logits = layout_alloc(l, (size_t)c->vocab);
    s->tokens = (int32_t *)(void *)layout_alloc(l, (size_t)o->context);
    s->s.sorted = layout_alloc(l, larger((size_t)c->vocab, (size_t)c->rotary_dim));
    s->s.heap = (int32_t *)(void *)layout_alloc(l, (size_t)c->vocab);
    s->s.seen = (int32_t *)(void *)layout_alloc(l, (size_t)c->vocab);
    s->s.block_logits = session_has_mtp(s->m, o) ? layout_alloc(l, BLOCK * (size_t)c->vocab) : NULL;
}

#ifdef __CUDACC__
static void layout_gpu(layout *l, const mote_model *m, const mote_session_options *o, struct gpu_session *g);
#endif

/* The type that MOTE_KV_... stands for. */
static dtype kv_type_of(int kv) {
    return kv == MOTE_KV_BF16 ? DTYPE_BF16 : kv == MOTE_KV_FP8 ? DTYPE_FP8 : DTYPE_F32;
}

/* Lays out a session's memory from `base`, and on a GPU the host's part from `host`; with base NULL it only counts. s->kv
   and s->deltanet have room for all layers. */
static memory_parts layout_session(const mote_model *m, const mote_session_options *o, float *base, float *host,
                                   mote_session *s) {
    const config *c = &m->c;
    layout l;
    memory_parts parts;
    size_t rows = (size_t)o->context * (size_t)(c->kv_heads * c->head_dim) * kv_size(kv_type_of(o->kv));
    size_t floats = (rows + sizeof(float) - 1) / sizeof(float);
    l.base = base;
    l.used = 0;
    for (int i = 0; i <= c->layers; i++) {
        int has_kv = i < c->layers ? c->is_attention[i] : session_has_mtp(m, o);
        s->kv[i].k = has_kv ? layout_alloc(&l, floats) : NULL;
        s->kv[i].v = has_kv ? layout_alloc(&l, floats) : NULL;
    }
    parts.kv = l.used;
    s->state = base ? base + l.used : NULL;
    for (int i = 0; i < c->layers; i++)
        if (!c->is_attention[i]) layout_deltanet(&l, &m->deltanet, &s->deltanet[i]);
    parts.state = l.used - parts.kv;
    s->last_hidden = layout_alloc(&l, (size_t)c->hidden);
    if (m->gpu < 0) {
        layout_host(&l, c, o, s);
        layout_scratch(&l, c, o, &s->s);
    }
#ifdef __CUDACC__
    if (m->gpu >= 0) {
        layout on_host;
        on_host.base = host;
        on_host.used = 0;
        layout_gpu(&l, m, o, s->gpu);
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

/* Fills in defaults and checks. */
static int session_options(const mote_model *m, const mote_session_options *given, mote_session_options *o,
                           mote_error *err) {
    memset(o, 0, sizeof *o);
    if (given) *o = *given;
    if (!o->context) o->context = m->c.context_max < DEFAULT_CONTEXT ? m->c.context_max : DEFAULT_CONTEXT;
    if (!o->chunk) o->chunk = DEFAULT_CHUNK;
    if (m->gpu >= 0 && o->chunk > BLOCK) o->chunk = BLOCK;
    if (!o->threads) o->threads = processors();
    if (o->kv == MOTE_KV_DEFAULT) o->kv = m->gpu < 0 ? MOTE_KV_F32 : MOTE_KV_BF16;
    if (o->context < 1 || o->context > m->c.context_max)
        return fail(err, MOTE_EINVAL, "a context of %d tokens, expected 1 to the model's %d", o->context,
                    m->c.context_max);
    if (o->chunk < 1 || o->chunk > MAX_CHUNK)
        return fail(err, MOTE_EINVAL, "a chunk of %d rows, expected 1 to %d", o->chunk, MAX_CHUNK);
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
    s->m = m;
    s->owner = getpid();
    s->kv = (kv_rows *)calloc((size_t)m->c.layers + 1, sizeof *s->kv);
    s->deltanet = (deltanet_state *)calloc((size_t)m->c.layers, sizeof *s->deltanet);
#ifdef __CUDACC__
    if (m->gpu >= 0) s->gpu = (struct gpu_session *)calloc(1, sizeof *s->gpu);
    if (m->gpu >= 0 && !s->gpu) {
        mote_session_close(s);
        return NULL;
    }
#endif
    if (s->kv && s->deltanet) return s;
    mote_session_close(s);
    return NULL;
}

static size_t parts_bytes(const memory_parts *p) {
    return (p->kv + p->state + p->scratch) * sizeof(float);
}

/* The longest context whose session fits into `left` bytes, at most the model's; 0: none. s only counts. */
static int context_that_fits(const mote_model *m, const mote_session_options *options, uint64_t left, mote_session *s) {
    mote_session_options o = *options;
    int fits = 0, over = m->c.context_max + 1;
    while (over - fits > 1) {
        o.context = fits + (over - fits) / 2;
        memory_parts parts = layout_session(m, &o, NULL, NULL, s);
        if (parts_bytes(&parts) <= left) fits = o.context;
        else over = o.context;
    }
    return fits;
}

int mote_plan(const char *dir, const mote_options *model, const mote_session_options *options, mote_memory *plan,
              mote_error *error) {
    mote_callbacks silent;
    mote_session_options o;
    mote_error failure;
    checkpoint files;
    binder b;
    mote_session *s = NULL;
    memset(&silent, 0, sizeof silent);
    if (!dir || !plan) return fail(error, MOTE_EINVAL, "mote_plan: needs a folder and a place for the plan");
    if (!error) error = &failure;
    mote_model *m = model_new(model ? model->device : NULL, 0, &silent, error);
    if (!m) return error->code;
    if (model && model->draft_rows > 0) m->draft_rows = model->draft_rows;
    int code = model_bind(m, &files, &b, dir, &silent, error);
    if (!code) code = session_options(m, options, &o, error);
    if (!code && !(s = session_shell(m))) code = fail_memory(error);
    if (!code) {
        memory_parts parts = layout_session(m, &o, NULL, NULL, s);
        uint64_t available = device_available(m);
        plan->weights = b.arena;
        plan->kv = parts.kv * sizeof(float);
        plan->state = parts.state * sizeof(float);
        plan->scratch = parts.scratch * sizeof(float);
        plan->total = b.arena + parts_bytes(&parts);
        plan->available = available;
        plan->context = o.context;
        plan->context_fits = -1;
        if (available) plan->context_fits = context_that_fits(m, &o, available > b.arena ? available - b.arena : 0, s);
    }
    mote_session_close(s);
    buf_free(&b.items);
    checkpoint_close(&files);
    mote_close(m);
    return code;
}
