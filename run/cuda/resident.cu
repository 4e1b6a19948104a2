/* run/cuda/resident.cu: a runner on a GPU: its memory, its stream, its graphs, and which slot they work for. Decode is run/cuda/step.cu, prompts
   are run/cuda/prefill.cu.

   Graphs and scratch belong to the runner; one slot at a time is resident. Kernels are captured with the addresses of one slot: of a
   session's own runner the only one that there will be; of a runner to share one that does not exist, and step_parameters say how
   far from it the resident slot lies (gpu_in_slot). What a step leaves in scratch
   for the next one, step_parameters and the residual rows, goes with the slot when another becomes resident; logits are computed
   again from these rows when they are wanted (the same bits: a row's arithmetic does not depend on its neighbours). All of this is
   in stream order: nobody waits for it. */

enum {
    ORIGIN = 1 << 20,            /* where a slot that does not exist begins; only differences matter */
    PASS_GRAPHS = 128,           /* most captured passes; the one that was not used longest makes space */
    MAILBOXES = PASS_ROWS_MAX + MOTE_ROWS_MAX               /* of a pass's sequences; of a block's drafts */
};

enum gpu_kind { GPU_NO_LOGITS, GPU_LAST_LOGITS, GPU_ALL_LOGITS, GPU_MTP_LOGITS, GPU_KINDS };

/* Logits in the runner's scratch: none, of the resident slot's last row in row 0, or of every row of its block. */
enum gpu_logits { LOGITS_NOWHERE, LOGITS_OF_LAST, LOGITS_OF_ALL };

/* What a pass of several sequences is told: built by the host, copied to the GPU in front of the pass. */
typedef struct gpu_pass_table {
    step_parameters steps[PASS_ROWS_MAX];                       /* of the sequences; [0] is the resident slot's in steps of one slot */
    sampling_parameters sampling[PASS_ROWS_MAX];                /* the same */
    int32_t logits_row[PASS_ROWS_MAX];                          /* of the runner's logits: those a sequence's next token is chosen from */
    struct { step_parameters *step; float *x; } writeback[PASS_ROWS_MAX]; /* a slot's own: gpu_slot */
    int32_t first[PASS_ROWS_MAX];                               /* its first token row */
    uint8_t sequence_of[PASS_ROWS_MAX];                         /* of each token row */
    uint8_t keeps_ids[PASS_ROWS_MAX];                           /* the tokens are those of its own step */
} gpu_pass_table;

/* What kernels are recorded for: rows of one slot, the resident one, or of each sequence of a pass. */
typedef struct gpu_form {
    mote_runner *r;
    gpu_rows rows;               /* as layers are given them; what differs from layer to layer is not set here */
    int has_mtp, has_drafter;    /* the slots have states of the MTP layer; of the block drafter */
    int block;                   /* rows of a block of drafts, all of them turns of one slot; 0: it is a step */
    int dealt;                   /* rows of blocks in turn (run/cuda/turns.cu), whose tokens are all in the first step; 0: each has its own */
} gpu_form;

/* What embeddings of tokens are multiplied with: 1 changes no bits. */
static float gpu_embed_factor(const mote_model *m) {
    return m->c.embed_factor != 0 ? m->c.embed_factor : 1;
}

/* A captured pass, and what it was captured for. */
typedef struct gpu_pass_graph {
    gpu_form form;
    enum gpu_kind kind;
    int drafts;
    uint64_t used;               /* number of the pass that used it last */
    cudaGraphExec_t ready;
} gpu_pass_graph;

/* Of a block drafter: run/cuda/drafter.cu. */
typedef struct gpu_drafter {
    layer_gpus layers;           /* the arguments of its layers' kernels */
    gpu_pass_table *table;       /* the steps of a block's turns */
    float *x;                    /* [rows of a block's turns][hidden] */
    float *tapped;               /* [PASS_ROWS_MAX][hidden] the sum of fc's products of a pass's taps */
} gpu_drafter;

struct gpu_runner {
    gpu_queue q;
    cudaStream_t stream;
    slot *resident;              /* NULL: none */
    cudaGraphExec_t graph[2][GPU_KINDS][STEP_ROWS + 1];     /* [gpu_drafts][..][rows] */
    cudaGraphExec_t cycle[STEP_ROWS + 1][MOTE_ROWS_MAX];    /* [rows verified][drafts made]; [0]: drafts alone */
    gpu_pass_graph passes[PASS_GRAPHS];
    gpu_pass_table *table, *pass;                           /* on the GPU; here, in pinned memory, */
    cudaEvent_t pass_copied;     /* from where it has been copied */
    uint64_t passed;             /* passes so far */
    step_parameters *step;       /* table->steps */
    slot capture_base, growth_base;                         /* the addresses in graphs; those of a slot of KV_GRANULE more tokens; */
    slot ring_base;                                         /* of KV_GRANULE more than a ring holds. Without state: no slot has as many */
    sampling_parameters *parameters, sampling_on_device;    /* table->sampling; the host's copy of the resident slot's */
    sampling_parameters *greedy;                            /* in GPU memory: for drafts */
    simulation simulated;                                   /* for measurements: of all tokens that are chosen */
    gpu_drafter drafter;
    float *x, *mtp_x, *mtp_in;                              /* [rows of a step][width], of mtp_in hidden + width */
    float *mtp_embedded;                                    /* [rows of a step][hidden] of streams: fc_embedding's product */
    float *given_row;                                       /* [hidden] of an image, in a step of it alone */
    gpu_batch batch;                                        /* scratch of projections of many rows */
    layer_gpus layers;                                      /* the arguments of their kernels, as far as they do not change */
    float *logits, *mtp_logits, *draft_logits;              /* [rows][vocab], [STEP_ROWS][vocab], [rows][draft rows] */
    enum gpu_logits logits_of;
    uint64_t logits_pass;        /* changes when logits are overwritten: whether a slot's are still there */
    int32_t *chosen;                                        /* [layers + 1] experts used by the last step */
    uint64_t *topk;
    volatile gpu_mailbox *mailbox;                          /* [MAILBOXES] pinned memory: the sampler posts tokens, the host polls */
    uint32_t sequence;                                      /* number of the last post that was queued */
    mote_launch *launches;                                  /* of mote_launches */
    prefill_scratch prefill;
    char *vision;                /* memory for an image of run_options.patches */
    float *table_rows;           /* pinned memory: [tables][rows][ngrams_width] of tables in files, for a pass or a chunk of a prompt; */
    cudaEvent_t tables_free;     /* who read them last is done */
    int64_t *table_numbers;      /* [rows][MAX_NGRAM_ROWS] which rows of a table, */
    int32_t *table_tokens;       /* and by which tokens: see run/cuda/tables.cu */
    cudaEvent_t layer_done[2];                              /* of prefill: recorded after every other layer */
    gpu_peer peer;                                          /* of a member of a group: of GPUs of this host, */
    gpu_hosts hosts;                                        /* or of several hosts */
    moe_slots *slots;                                       /* [layers + 1] of experts in host memory: run/cuda/experts.cu; NULL: there are none */
    unsigned long long *expert_seen;                        /* in GPU memory: [layers + 1][MOE_SEEN] */
    char *copy[2];                                          /* all experts of a layer each, for prompts; NULL: these read them where they are */
    uint32_t *copied_parts[2], *copy_wanted;                /* [GPU_EXPERTS] of moe_brought */
    moe_brought brought;                                    /* of the layer that is launched next */
    int copied_layer[2], copy_next;                         /* whose they are, -1: nobody's; which one is overwritten next */
    cudaStream_t copies, counts;                            /* of such copies; of reading expert_seen */
    cudaEvent_t copy_full[2], copy_free[2];                 /* a buffer has been filled; its last reader is done */
    uint64_t copied_bytes;                                  /* so far, by the copy engine (atomic) */
};

/* In GPU memory, what a slot keeps while another is resident. */
struct gpu_slot {
    step_parameters *step;
    float *x;                    /* [MOTE_ROWS_MAX][width] */
    sampling_parameters sampling;                           /* of the answer that is being generated */
    uint64_t logits_pass;        /* the runner's, when this slot's were computed by a pass of several */
    int logits_first;            /* which of the runner's logits are those of its first row then */
    int replay;                  /* of a pass of several that begins: rows that it repeats from the slot's log */
    uint32_t drafted;            /* the sequence number of the cycle, of this slot alone, that drafts; 0: none */
    int32_t tokens[MAX_GRAMS - 1 + MOTE_ROWS_MAX];          /* of a model with tables: ngrams_state's ids and log_ids */
    int tokens_new, tokens_stale;                           /* the states have not got these yet; the states have others */
    struct { uint32_t sequence; int z; } posted;            /* of a cycle, alone or in a pass: its post, and in which mailbox; 0: none */
};

/* Whether steps of the slot leave a state of what drafts: of the MTP layer, and of the drafter, if the model has them. */
static int gpu_drafts(const slot *s) {
    return s->has_mtp || slot_drafter(s);
}

/* From here on everything begins at a multiple of so many floats from the base. */
static void layout_align(layout *l, size_t alignment) {
    l->alignment = alignment;
    l->used = (l->used + alignment - 1) / alignment * alignment;
}

static void *layout_bytes(layout *l, size_t bytes) {
    return layout_alloc(l, (bytes + sizeof(float) - 1) / sizeof(float));
}

/* The first failure: of an operation, or of another member of the group, who has not come. */
static int gpu_failed(const gpu_queue *q, mote_error *err) {
    if (q->status != cudaSuccess) return gpu_fail(err, q->status, q->failed);
    const int lost = q->peer ? peers_lost(q->peer) : -1;
    if (lost < 0) return MOTE_OK;
    const int ranks = q->peer->me->at.ranks;
    return fail(err, MOTE_EDEVICE, "rank %d of range %d has not come", lost % ranks, lost / ranks);
}

/* Sets the sampling parameters on the GPU if they have changed. */
static void gpu_set_sampling(slot *s, const sampling_parameters *parameters) {
    struct gpu_runner *g = s->runner->gpu;
    s->gpu->sampling = *parameters;
    if (!memcmp(parameters, &g->sampling_on_device, sizeof *parameters)) return;
    gpu_put(&g->q, g->parameters, parameters);
    g->sampling_on_device = *parameters;
}

/* A choice among n ids by the logits of T rows. */
static gpu_sampling gpu_choice_of(const struct gpu_runner *g, const float *logits, int T, int n) {
    gpu_sampling p;
    memset(&p, 0, sizeof p);
    p.parameters = g->parameters;
    p.logits = logits;
    p.T = T;
    p.n = n;
    p.topk = g->topk;
    p.step = g->step;
    return p;
}

/* Records the logits of T rows of x after the layers, or, in_mtp, after the MTP layer: by n rows of a head. */
static void gpu_record_head(const mote_runner *r, gpu_queue *q, int in_mtp, const matrix *head, int n, float *x, int T, float *logits) {
    const mote_model *m = r->m;
    const streams_gpu *s = &r->gpu->layers.streams;
    const float *norm = in_mtp ? m->mtp.norm : m->norm;
    if (m->c.streams) streams_record_read(q, s, in_mtp ? &m->mtp.mixer : &m->mixer, x, T, m->c.hidden, m->c.eps);
    if (m->c.streams) gpu_head(q, head, n, s->norm, s->u, T, STREAMS_EPS, m->c.logit_cap, logits);
    else gpu_head(q, head, n, norm, x, T, m->c.eps, m->c.logit_cap, logits);
}

/* Queues a copy, of memory here or on the GPU. */
static void gpu_move(gpu_queue *q, void *to, const void *from, size_t bytes, const char *what) {
    gpu_check(q, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream), what);
}

/* Puts the resident slot aside. */
static void gpu_swap_out(struct gpu_runner *g) {
    slot *s = g->resident;
    if (!s) return;
    gpu_move(&g->q, s->gpu->step, g->step, sizeof *g->step, "changing the session");
    gpu_move(&g->q, s->gpu->x, g->x, MOTE_ROWS_MAX * (size_t)model_width(s->m) * sizeof(float), "changing the session");
    g->resident = NULL;
}

/* The device and this slot are what follows is about. */
static int gpu_enter(slot *s, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    gpu_check(&g->q, cudaSetDevice(s->m->device.gpu), "choosing the GPU");
    if (g->resident != s && g->q.status == cudaSuccess) {
        gpu_swap_out(g);
        gpu_resume(&g->q, g->step, s->gpu->step, g->sequence, -1, -1);
        gpu_move(&g->q, g->x, s->gpu->x, MOTE_ROWS_MAX * (size_t)model_width(s->m) * sizeof(float), "changing the session");
        gpu_set_sampling(s, &s->gpu->sampling);
        g->logits_of = LOGITS_NOWHERE;
        g->resident = s;
    }
    return gpu_failed(&g->q, err);
}

/* Waits until the GPU has done all that was queued. */
static int gpu_finish(slot *s, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    gpu_check(&g->q, cudaStreamSynchronize(g->stream), "a step");
    return gpu_failed(&g->q, err);
}

static void gpu_put_tokens(slot *s);

/* Copies between the slot's memory and memory here, in either direction. */
static int gpu_copy(slot *s, void *to, const void *from, size_t n, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    if (!n) return MOTE_OK;
    int code = gpu_enter(s, err);
    if (code) return code;
    gpu_put_tokens(s);
    gpu_move(&g->q, to, from, n, "copying a session");
    s->gpu->tokens_stale |= (float *)to >= s->memory && (float *)to < s->memory + s->floats;
    return gpu_finish(s, err);
}

static int gpu_clear(slot *s, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    int code = gpu_enter(s, err);
    if (!code) gpu_check(&g->q, cudaMemsetAsync(s->recurrent, 0, s->recurrent_floats * sizeof(float), g->stream), "clearing");
    memset(s->gpu->tokens, 0, sizeof s->gpu->tokens);
    s->gpu->tokens_new = s->gpu->tokens_stale = 0;
    return code ? code : gpu_failed(&g->q, err);
}

