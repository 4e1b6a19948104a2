/* run/runner.c: a runner: what belongs to a device and is shared by sessions: its threads or its stream, the scratch of a forward
   pass, on a GPU the graphs. A session has a slot on it, which keeps what lasts from one call to the next. One thread computes at a
   time; calls of others meet (run/meeting.c).

   Knows the model and its layers. It does not know what tokens mean, nor where a timeline ends: a block says what is to be
   computed. What a device does is a table of functions, an executor: run/cpu/forward.c, run/cuda/resident.cu. */

enum { MAX_CHUNK = 8192 };       /* token rows of a prompt's pass */

/* The options that runner and slots are laid out for; all filled in. */
typedef struct run_options {
    int context, chunk, threads; /* the longest of its slots; most token rows of a pass; threads that compute */
    int kv;                      /* MOTE_KV_... */
    int sms;                     /* of a GPU, to fill */
    int layers;                  /* of the model, the MTP layer included */
    int window, ring_rows;       /* as capacity has them */
    int patches;                 /* of an image for which it has memory */
} run_options;

/* Scratch of a pass on the CPU. */
typedef struct scratch {
    int rows;                                               /* most of a pass, its chunk; 0: there is no memory */
    token_row *table;                                       /* [chunk] of the pass, or of the MTP layer's after it */
    float *x, *hidden;                                      /* [chunk][width] the residual; final rows, which the MTP layer takes in */
    float *y, *u, *h;                                       /* [chunk][hidden] y: see token_rows. h: what the head is multiplied with: final rows
                                                               themselves, or made of their streams */
    float *branches;                                        /* [3][chunk][hidden] */
    stream_scratch mix;
    int32_t *chosen;                                        /* [layers, and the MTP layer] different experts of the last pass, 0: it has none */
    float *mtp_in;                                          /* [chunk][hidden + width] */
    int64_t *table_rows;                                    /* [chunk][MAX_NGRAM_ROWS] of tables of n-grams, and of each table these rows, */
    float *looked_up[TABLES_MAX];                           /* [chunk][ngrams_width] */
    float *head_in, **head_out;                             /* [chunk][hidden] in mtp_in's place: rows of which logits are wanted;
                                                               [chunk] where these go */
    float *draft_logits;                                    /* [rows of a pass][draft rows] */
    struct draft_choice *choice;                            /* [ranks][rows of a pass] the best of these, */
    int32_t *drafted;                                       /* [rows of a pass] of all ranks, */
    float *confidence;                                      /* [rows of a pass] and its probability among the draft rows */
    token_limbs *limbs;                                     /* of a chunk of those, or of final rows */
    float *share, *shares;                                  /* of several ranks: what one of them gives the others, [ranks] what all give */
    float *tapped;                                          /* [chunk][hidden] what a block drafter makes of its taps; NULL: there is none */
    layer_shapes largest;                                   /* of each kind, with the drafter's: what jobs are laid out for */
    layer_jobs jobs;                                        /* of the layers, for a chunk */
    vision_job vision;                                      /* of an image of run_options.patches */
} scratch;

/* Calls that take turns. */
typedef struct prompt_queue {
    unsigned came, over;
    const struct slot *of;       /* whose turn it is */
    double began;                /* seconds(): when that began, as if nothing had come between */
} prompt_queue;

typedef struct memory_parts { size_t kv, state, scratch; } memory_parts;   /* floats */

/* A session's part of a runner. */
typedef struct slot {
    mote_runner *runner;
    const mote_model *m;
    int context, has_mtp;        /* tokens; the MTP layer has a state */
    int verifies;                /* drafts: it has a place for the logits of a block */
    float *memory;               /* of the device: all that follows up to logits */
    size_t floats, host_floats;  /* of memory; of host */
    layer_state *state;          /* [model_states] of the mixers, after the layers' the MTP layer's and the drafter's */
    float *recurrent;            /* of these, what cannot be truncated, of all layers, contiguous */
    size_t recurrent_floats;
    float *hidden;               /* [MOTE_ROWS_MAX][width] final rows, of the last block's: after the final norm, of streams as they are */
    float *last_hidden;          /* [width] the one before that block */
    float *undo;                 /* on the CPU: its recurrent state before a block that may be cancelled; NULL: no such block is computed */
    float *host;                 /* on a GPU: pinned memory of what follows */
    float *logits;               /* [vocab] after the last token, if logits_here */
    float *block_logits;         /* [MOTE_ROWS_MAX][vocab] of a block of drafts; NULL: it verifies none */
    int logits_here;
    int logits_set;              /* they were written from outside: the device has others */
    int logits_in_block;         /* block_logits has those of all rows of the block */
    int last_row;                /* of the block's rows: the last token's */
    int number;                  /* of a runner on another host: what it is called there; -1: it is not open */
    struct gpu_slot *gpu;        /* NULL: on the CPU */
    struct slot *parts;          /* of a group's runner: this session's slots on its members' [members]; else NULL. Of its own it has no memory:
                                    its logits are those of the one that answers */
    struct slot *front;          /* of a member's: the session's own; else NULL. The last range's ranks read the logits of the one that answers */
    int unfinished;              /* of a group's: members still computed when the last call returned; what it says of its logits is not known yet */
    struct slot *next;           /* of the open slots of the runner; this and what follows is run/meeting.c's */
    int answers;                 /* an answer is being generated: it will be back */
    int waits;                   /* it has a request that is not done */
    int member;                  /* it was in the last pass, and answers */
} slot;

/* Token rows to compute. */
typedef struct block {
    const token_row *rows;       /* [T] the next ones of its session; rows[-1]: the one before them, of which the MTP layer takes the
                                    position, unless they begin at index 0 */
    int T;
    int replay;                  /* rows of the block before that are in the timeline, and in the states only as a log */
    int last;                    /* the logits after the last row are wanted later on */
    float *logits;               /* to be filled with [T][vocab]; NULL: only the last row's, into the slot */
    float *mtp_logits;           /* to be filled with those of all rows but the one of index 0; NULL: not wanted */
    float *residual;             /* [residual_rows][hidden] in host memory, to be filled with x after the last layer, of the last so many; of
                                    streams with what the head is multiplied with */
    int residual_rows;           /* rows; 0: not wanted */
    const struct block_watch *watch;                        /* forward() on the CPU asks its layer() between layers of a block of more than MOTE_ROWS_MAX
                                                               rows: after a cancel all is as before. NULL: nobody is asked */
} block;

/* DRAFT: by the MTP layer; BLOCK: by a block drafter. */
enum request_kind { REQUEST_FORWARD, REQUEST_DRAFT, REQUEST_BLOCK, REQUEST_STEP, REQUEST_CYCLE, REQUEST_LEAD };

/* What one session wants of a pass. Of LEAD: that nobody else computes, see runner_enter. */
typedef struct pass_request {
    enum request_kind kind;
    slot *s;
    const block *b;              /* of at most MOTE_ROWS_MAX rows; DRAFT, BLOCK: after its first token, not computed yet; STEP, CYCLE: its
                                    first row is the token's, nothing is computed yet; CYCLE: no ids: those that were drafted */
    const mote_sampling *sampling;                          /* STEP, CYCLE */
    int drafts;                  /* DRAFT, BLOCK: at most; CYCLE: for the next pass */
    int32_t *ids;                /* DRAFT, BLOCK: [drafts]; STEP: [1]; CYCLE: as executor.cycle */
    int *count;                  /* DRAFT, BLOCK: made; CYCLE: as executor.cycle */
    float *confidence;           /* DRAFT, BLOCK: [drafts] the draft head's probability of each; NAN: the device does not tell */
    int (*continue_drafting)(void *user, int drafted, const float *confidence); /* DRAFT: asks, if the device can, whether another one is wanted */
    void *user;                                             /* of continue_drafting */
    int code;                    /* its own outcome */
    mote_error error;
    struct pass_request *next;        /* of those that wait */
    struct caller *from;         /* whose it is */
} pass_request;

static inline void request_is(pass_request *q, enum request_kind kind, slot *s, const block *b) {
    memset(q, 0, sizeof *q);
    q->kind = kind;
    q->s = s;
    q->b = b;
}

/* Whether it drafts, and computes nothing of the timeline. */
static inline int request_drafts(const pass_request *q) {
    return q->kind == REQUEST_DRAFT || q->kind == REQUEST_BLOCK;
}

static inline void request_is_step(pass_request *q, slot *s, const block *b, const mote_sampling *p, int32_t *id) {
    request_is(q, REQUEST_STEP, s, b);
    q->sampling = p;
    q->ids = id;
}

static inline void request_is_cycle(pass_request *q, slot *s, const block *b, const mote_sampling *p, int drafts, int32_t *ids, int *count) {
    request_is(q, REQUEST_CYCLE, s, b);
    q->sampling = p;
    q->drafts = drafts;
    q->ids = ids;
    q->count = count;
}

/* Who looks on while a long block is computed. */
typedef struct block_watch {
    void *user;
    int (*layer)(void *user, double rows);                  /* so many rows' worth is done; returns nonzero to cancel */
    void (*logits)(void *user, const float *rows, int first, int n);       /* rows first .. first + n - 1; NULL: not wanted */
    float *rows;                 /* [rows_most][vocab] for them, in host memory */
    int rows_most;
} block_watch;

/* An image for the vision tower. */
typedef struct vision_image {
    const float *patches;        /* [rows * columns][VISION_PIXELS], or NULL: */
    const unsigned char *rgb;    /* [rows * VISION_PATCH][columns * VISION_PATCH][3], for an executor that takes_pixels */
    int rows, columns;           /* of patches; vision_reads them */
    float *features;             /* [rows * columns / VISION_JOINED][hidden] to be filled */
    void *user;
    int (*between)(void *user, double done);                /* between two blocks, or slices of them: returns nonzero to cancel */
} vision_image;

/* The operations of a device, with the runner entered. Functions return MOTE_OK or an error. */
typedef struct executor {
    int kv, chunk, chunk_alignment;  /* MOTE_KV_... and rows, if nobody asks for others; a chunk is a multiple of */
    int ring_rows;               /* as capacity has it */
    int shares_memory;           /* with the host: what that needs for a session counts, too */
    int reads_text;              /* forward() takes rows of text, or one of an image, and what follows it text alone; prompt() takes any */
    int takes_pixels;            /* vision() takes an image's pixels, too */
    size_t runner_bytes, slot_bytes;                        /* of struct gpu_runner and struct gpu_slot */
    void (*layout_runner)(layout *l, mote_runner *r);       /* scratch; NULL: there is none */
    void (*layout_slot)(layout *l, slot *s);                /* what a slot has besides states and hidden rows; NULL: nothing */
    int (*open)(mote_runner *r, mote_error *err);           /* allocates; on failure close() follows */
    void (*close)(mote_runner *r);
    int (*slot_open)(slot *s, mote_error *err);             /* on failure slot_close() follows */
    void (*slot_close)(slot *s);
    int (*forward)(slot *s, const block *b, mote_error *err);
    /* Calls of runner.prompt_from tokens and more are read by prompt(), in blocks of prompt_rows() of those that are left. */
    int (*prompt_rows)(const slot *s, int position, size_t count);
    int (*prompt)(slot *s, const block *b, const block_watch *watch, mote_error *err);
    int (*commit_state)(slot *s, const block *b, mote_error *err);
                                                            /* forward() of a block that is dropped; what was prepared stays */
    int (*draft)(slot *s, const block *b, int k, int32_t *drafts, float *confidence, mote_error *err); /* after b's first, not computed yet;
                                                               NULL: by pass() */
    int (*logits)(slot *s, mote_error *err);                /* brings them here */
    int (*copy)(slot *s, void *to, const void *from, size_t n, mote_error *err);       /* to or from the slot's memory; from the model's */
    int (*clear)(slot *s, mote_error *err);                 /* the recurrent state */
    int (*finish)(slot *s, mote_error *err);                /* waits for all that was asked for */
    int (*prepare)(slot *s, mote_error *err);               /* before an answer: what would cost time in its middle */
    /* Sampling on the device; NULL: there is none. b: its first row is the token's, nothing is computed yet. */
    int (*can_sample)(const slot *s, const mote_sampling *p);
    int (*step)(slot *s, const block *b, const mote_sampling *p, int32_t *id, mote_error *err);
    int (*cycle)(slot *s, const block *b, const mote_sampling *p, int drafts, int32_t *ids, int *count, mote_error *err);
    int (*drafted)(slot *s, int n, int32_t *ids, float *confidence, mote_error *err);  /* by the last cycle of that slot alone */
    /* n > 1 requests of different slots, drafts or whatever else, together at most runner.pass_rows rows, as one pass; sets each one's
       code and error. With pass_rows 0 there is none. */
    void (*pass)(mote_runner *r, pass_request *const *of, int n);
    int (*computes)(const mote_runner *r);                  /* whether it still does what was launched; NULL: it never does */
    int (*vision)(mote_runner *r, const vision_image *image, mote_error *err);  /* the features of an image; NULL: it has no code for towers */

    /* Of a member of a group (run/members.c), which gives all that is above, too. It computes its part of a block: x comes from the range
       before it (its first range: from the tokens) and goes to the next one. So of a block
         - all members get the same rows, and the ids of all are there. A STEP with an id is one whose token is chosen; a CYCLE with ids is
           given them, whoever has drafted them; DRAFT, choose() and prepared() are asked of the last range alone. Ranges before the last get a
           FORWARD in place of a STEP or a CYCLE;
         - all members are told alike what is wanted (last, logits, mtp_logits, residual_rows, watch->logits; pass_request.ids and count are
           places of their own), but only the one that answers (runner_answers) writes to the host's memory that b points at. Others do not
           wait for their device, unless what they launch next would overwrite what it still reads;
         - prompt()'s watch never cancels; its logits() is called by the one that answers alone.
       Functions are called from one thread at a time, but not always the same. Of a range's ranks all make the same calls, in the same order,
       each on a thread of its own, as they may wait for each other: all but copy, drafted, prepared and computes. */
    int launches;                /* functions return when the device has been told; it waits by itself for the other members. 0: they wait */
    int (*connect)(mote_runner *r, mote_error *err);        /* all members' runners are open, none has a slot: r->me->all; NULL: nothing to do */
    void (*end)(mote_runner *r); /* the group has come to its end: what waits for others, on its device, shall not; NULL: the same */
    /* Of a member on a host of its own: how it and the others find each other without the hosts' connections. NULL: it needs these. */
    int (*invite)(group_id *id, mote_error *err);           /* an id for a group that is new */
    int (*meet)(mote_runner *r, const group_id *id, mote_error *err);      /* begins to join the group of that id, as all its members do;
                                                               id NULL: leaves it */
    int (*met)(mote_runner *r, mote_error *err);            /* waits until it has joined it */
    int (*enter)(slot *s, mote_error *err);                 /* another rank of the range is told to copy of this session: what follows may be
                                                               about it; NULL: nothing to do */
    int (*choose)(mote_runner *r, pass_request *const *of, int n, mote_error *err);
                                                            /* samples the next token of each request, a STEP or a CYCLE whose block is one row
                                                               without an id, from its slot's logits, and waits for it: *of[i]->ids. One
                                                               that fails alone has its own code */
    int (*prepared)(slot *s, int n, int32_t *ids, mote_error *err);     /* waits for the first n tokens that the last cycle of that slot, alone
                                                                           or in a pass, has prepared: its last token, and its drafts */
    int (*pass_class)(const pass_request *q);               /* pass() gets requests of one class, more than one of them; of class -1: none.
                                                               q: as the session asks it, on its own slot. NULL: all are of one */

    int (*count_experts)(const mote_runner *r, mote_experts_seen *to, mote_error *err);        /* adds its own; from any thread; NULL: there
                                                               is nothing to add */
} executor;

struct mote_runner {
    int holders;                 /* who has not closed it: the application, and each slot (atomic) */
    const mote_model *m;
    pid_t owner;                 /* the process whose runner it is, and whose threads */
    const executor *backend;
    run_options o;
    int one_slot;                /* a session's own: there will be no other */
    int expert_slots;            /* of each layer whose experts are in host memory (moe_weights.host_at), so many fit into the GPU's, too */
    int rows, prompt_from;       /* most of forward(); tokens from which on prompt() reads a call, 0: never */
    int mtp_rows;                /* most of forward() with MTP logits of all */
    int logs;                    /* after a longer forward() the last MOTE_ROWS_MAX rows' block is in the log, as if it had come alone */
    int pass_rows;               /* most of a pass of several slots; 0: there is no such pass */
    int company_rows;            /* most of each of them: a longer block is computed alone */
    pthread_mutex_t lock;        /* of what follows, up to blocks; never held while something computes */
    int led;                     /* somebody has the lead: computes, and alone may touch device and scratch */
    pass_request *first, **last; /* those that wait, in the order in which they came; where the next one goes */
    slot *slots;                 /* that are open */
    struct caller *expects;      /* the leader, while it waits for more requests; NULL: it does not */
    double step_seconds;         /* of the last pass that was not of drafts */
    struct {                     /* what passes take, for the choice of how many drafts pay: see pass_learn */
        cost_table alone, together;                         /* of one session, of several */
        cost_table drafting;     /* of one draft of the MTP layer, by the sessions that get one */
        cost_table blocks;       /* of a block of drafts, likewise */
        int sessions, rows;      /* of the last pass but for drafts */
        int drafters, block_drafters;                       /* sessions of the last pass of drafts of the MTP layer, of blocks */
        double accepted;         /* tokens that a session keeps of a pass of several, lately */
    } costs;
    struct features *features;   /* run/features.c: of images, lately */
    double led_since;            /* seconds(): when the lead was taken last */
    struct {                     /* see run/stats.c */
        mote_seen of;
        double last;             /* seconds(): when something began or ended to be computed, a layer of a prompt, too */
    } stats;
    pthread_cond_t prompt_over;
    prompt_queue prompts;        /* and vision towers */
    prompt_queue blocks;         /* of more than MOTE_ROWS_MAX rows by forward(), where there is scratch beside */
    uintptr_t thread;            /* that leads; 0: none (atomic) */
    const slot *inside;          /* the slot of its call, unless that is a pass */
    float *memory;               /* of the device: scratch */
    pool *threads;               /* on the CPU */
    scratch s;                   /* the same */
    scratch beside;              /* for passes between two layers of a block, which has s: it then takes the place of s */
    struct gpu_runner *gpu;
    int nccl;                    /* the version of NCCL by which it can reach other hosts; 0: by none */
    char told[256];              /* what opening it has to say; "": nothing */
    struct remote_runner *remote;                           /* workers/runner.c: it is on another host; NULL: it is here */
    mote_runner **members;       /* [m->member_count] that compute in its place; NULL: it computes itself */
    struct runner_group *group;  /* of these: run/members.c */
    peer *me;                    /* which member of a group it is; NULL: none, it has all of the program */
};

static const executor *executor_of(const mote_model *m);

/* Whether it is the one of a group that has what is wanted of a pass, logits and tokens; so is one that has all of the program. */
static int runner_answers(const mote_runner *r) {
    return part_is_last(&r->m->part) && !r->m->part.rank;
}

/* The type that MOTE_KV_... stands for. */
static dtype kv_type_of(int kv) {
    return kv == MOTE_KV_BF16 ? DTYPE_BF16 : kv == MOTE_KV_FP8 ? DTYPE_FP8 : DTYPE_F32;
}

/* Rows of a pass, on the CPU a chunk of a prompt or a block of drafts. */
static capacity capacity_of(const run_options *o, int context) {
    capacity r;
    r.context = context;
    r.rows = max_int(o->chunk, MOTE_ROWS_MAX);
    r.threads = o->threads;
    r.kv = kv_type_of(o->kv);
    r.layers = o->layers;
    r.window = o->window;
    r.ring_rows = o->ring_rows;
    return r;
}

/* Whether the model has positions for rows of images. */
static int model_has_axes(const mote_model *m) {
    int axes = 0;
    for (int i = 0; i <= m->c.layers; i++) axes |= m->c.layer[i].rope.height | m->c.layer[i].rope.width;
    return axes;
}

/* Whether it has layers of n-grams, with tables that stay in files. */
static int model_has_tables(const mote_model *m) {
    return m->largest.kinds >> LAYER_NGRAMS & 1;
}

/* Refuses rows of images where the model has no positions for them, or the device does not read them. prompt: prompt() reads the block. That the
   row before it is an image's matters to the MTP layer alone: a step of several rows on a GPU has it at the last position before the text. */
static int block_refused(const slot *s, const block *b, int prompt, mote_error *err) {
    int even = 1, text = 1, embedded = 0;
    for (int t = 0; t < b->T; t++) {
        const token_row *r = &b->rows[t];
        even &= r->position[1] == r->position[0] && r->position[2] == r->position[0];
        text &= row_is_text(r) && row_lag(r) == row_lag(b->rows);
        embedded |= r->embedding != NULL;
    }
    if (!even && !model_has_axes(s->m))
        return fail(err, MOTE_EUNSUPPORTED, "the model has no positions for rows of images: its rope has no mrope_section");
    if (embedded && s->runner->backend->reads_text && s->runner->members && s->runner->members[0]->m->part.apart)
        return fail(err, MOTE_EUNSUPPORTED, "rows of images are not supported with workers on GPUs");
    if (text || b->T == 1 || prompt || !s->runner->backend->reads_text) return MOTE_OK;
    return fail(err, MOTE_EUNSUPPORTED, "rows of images are not supported in steps of several rows on a GPU");
}

/* Lays out the states of those of the part's layers that are rolled back in one way. state: NULL: only counts. */
static void layout_states(layout *l, const mote_model *m, const capacity *r, enum rollback rollback, int mtp, layer_state *state) {
    layer_state unused;
    for (int i = m->part.first; i < m->c.layers + mtp; i++) {
        const layer *of = model_layer(m, i);
        if (i < m->c.layers && !part_has(&m->part, i)) continue;
        if (layer_rollback(of->mixer.kind) == rollback) layer_layout_state(of, l, r, state ? &state[i] : &unused);
    }
}

/* The drafter that has a state in the slot; NULL: none. */
static const mote_model *slot_drafter(const slot *s) {
    return s->verifies ? s->m->drafter : NULL;
}

/* The number of the state of the drafter's layer i. */
static int drafter_state(const mote_model *m, int i) {
    return m->c.layers + 1 + i;
}

/* The capacity of the drafter's layers: none has a ring, and a block follows the context's last token. Of whole granules, so that states grow
   with those of the model. */
static capacity drafter_capacity(const mote_model *drafter, const capacity *r) {
    capacity own = *r;
    own.window = 0;
    own.context = (r->context + KV_GRANULE - 1) / KV_GRANULE * KV_GRANULE + drafter->c.drafter.block;
    return own;
}

static void layout_drafter(layout *l, const slot *s, const capacity *r) {
    const mote_model *d = slot_drafter(s);
    const capacity own = d ? drafter_capacity(d, r) : *r;
    for (int i = 0; d && i < d->c.layers; i++) layer_layout_state(&d->layers[i], l, &own, &s->state[drafter_state(s->m, i)]);
}

/* The slot's buffers that the host can use: of a group's members one has them. */
static void layout_host(layout *l, slot *s) {
    const size_t vocab = (size_t)s->m->c.vocab;
    if (!runner_answers(s->runner)) return;
    s->logits = layout_alloc(l, vocab);
    s->block_logits = s->verifies ? layout_alloc(l, MOTE_ROWS_MAX * vocab) : NULL;
}

/* Lays out a slot from `base`, and on a GPU the host's part from `host`; with base NULL it only counts. What the context makes longer
   comes last. A group's is nothing but those of its members. */
static memory_parts layout_slot(float *base, float *host, slot *s) {
    const size_t width = (size_t)model_width(s->m);
    capacity r = capacity_of(&s->runner->o, s->context);
    layout l = layout_from(base), on_host = layout_from(host);
    memory_parts parts = {0, 0, 0};
    if (s->parts) return parts;
    s->recurrent = base;
    layout_states(&l, s->m, &r, ROLLBACK_REPLAY, s->has_mtp, s->state);
    parts.state = s->recurrent_floats = l.used;
    s->last_hidden = layout_alloc(&l, width);
    s->hidden = layout_alloc(&l, MOTE_ROWS_MAX * width);
    if (s->runner->backend->layout_slot) s->runner->backend->layout_slot(&l, s);
    layout_host(s->gpu ? &on_host : &l, s);
    parts.scratch = l.used - parts.state;
    layout_states(&l, s->m, &r, ROLLBACK_TRUNCATE, s->has_mtp, s->state);
    layout_drafter(&l, s, &r);
    parts.kv = l.used - parts.state - parts.scratch;
    s->floats = l.used;
    s->host_floats = on_host.used;
    return parts;
}

/* Lays out a runner's scratch from `base`, with NULL it only counts; returns its floats. */
static size_t layout_runner(mote_runner *r, float *base) {
    layout l = layout_from(base);
    if (r->backend->layout_runner) r->backend->layout_runner(&l, r);
    return l.used;
}

static void runner_drop(mote_runner *r);
static void features_forget(mote_runner *r);

/* In a forked child nothing of the device is touched, and not the lock either: its state is that of the parent's threads. */
static void runner_free(mote_runner *r) {
    const mote_model *m = r->m;
    r->backend->close(r);
    for (int i = 0; i < m->member_count && r->members; i++)
        if (r->members[i]) runner_drop(r->members[i]);
    features_forget(r);
    if (r->owner == getpid()) {
        pthread_cond_destroy(&r->prompt_over);
        pthread_mutex_destroy(&r->lock);
    }
    free(r->members);
    free(r->gpu);
    free(r);
    mote_close((mote_model *)m);
}

/* Those of a group's member. Of the threads that compute, a range has all, since the others wait for it; its ranks share them. */
static run_options member_options(const mote_model *m, const run_options *group) {
    run_options o = *group;
    o.threads = max_int(1, o.threads / m->part.ranks);
    o.sms = min_int(o.sms, m->device.sms);
    return o;
}

/* Gives a shell other options. */
static void runner_set_options(mote_runner *r, const run_options *o) {
    r->o = *o;
    for (int i = 0; i < r->m->member_count && r->members; i++) r->members[i]->o = member_options(r->members[i]->m, o);
}

static mote_runner *runner_shell(const mote_model *m, const run_options *o, int one_slot);

/* The shells of a group's members. 0: there is no memory. */
static int runner_shell_members(mote_runner *r) {
    r->members = (mote_runner **)calloc((size_t)r->m->member_count, sizeof *r->members);
    for (int i = 0; i < r->m->member_count && r->members; i++) {
        const run_options o = member_options(r->m->members[i], &r->o);
        r->members[i] = runner_shell(r->m->members[i], &o, r->one_slot);
        if (!r->members[i]) return 0;
    }
    return r->members != NULL;
}

/* A runner without memory, threads or stream, to be laid out; runner_free frees it. NULL: there is no memory. */
static mote_runner *runner_shell(const mote_model *m, const run_options *o, int one_slot) {
    mote_runner *r = (mote_runner *)calloc(1, sizeof *r);
    if (!r) return NULL;
    r->holders = 1;
    r->m = model_hold(m);
    r->owner = getpid();
    r->backend = executor_of(m);
    r->o = *o;
    r->one_slot = one_slot;
    r->last = &r->first;
    r->stats.last = seconds();
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->prompt_over, NULL);
    if (r->backend->runner_bytes) r->gpu = (struct gpu_runner *)calloc(1, r->backend->runner_bytes);
    if ((r->gpu || !r->backend->runner_bytes) && (!m->members || runner_shell_members(r))) return r;
    runner_free(r);
    return NULL;
}

/* Gets a shell its memory, its threads or stream. */
static int runner_start(mote_runner *r, mote_error *err) {
    return r->backend->open(r, err);
}

static mote_runner *runner_hold(mote_runner *r) {
    __atomic_add_fetch(&r->holders, 1, __ATOMIC_RELAXED);
    return r;
}

static void runner_drop(mote_runner *r) {
    if (!__atomic_sub_fetch(&r->holders, 1, __ATOMIC_ACQ_REL)) runner_free(r);
}
