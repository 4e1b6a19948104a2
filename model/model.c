/* model/model.c: the struct of a model, which all that follows works on, and the modules that reports tell apart. It is immutable
   once it is open. May use the shapes of layers and what config.json says; must not know tensor names, families or how a device
   works. */

/* The parts of a model that mote_info.modules tells apart: each kind of mixer, the parts of a mixture of experts, a dense FFN, and
   what is beside the layers. */
enum module_kind {
    MODULE_EMBED, MODULE_HEAD,
#define X(NAME, name) MODULE_##NAME,
    MIXERS(X)
#undef X
    MODULE_ROUTER, MODULE_EXPERTS, MODULE_SHARED, MODULE_MLP, MODULE_NORMS, MODULE_STREAMS, MODULE_MTP, MODULE_VISION, MODULE_DRAFTER, MODULE_KINDS
};

static const char *const module_names[MODULE_KINDS] = {
    "embed_tokens", "lm_head",
#define X(NAME, name) #name,
    MIXERS(X)
#undef X
    "router", "experts", "shared_expert", "mlp", "norms", "streams", "mtp", "vision", "drafter"};

/* The device that holds the weights. */
typedef struct model_device {
    int gpu;                                   /* its number; -1: the CPU. The others are a GPU's: */
    int sms, cc;                               /* 90 for compute capability 9.0 */
    int shared;                                /* bytes of shared memory of an SM */
    uint32_t cache;                            /* bytes of its L2 */
    int integrated;                            /* its memory is the system's */
    uint64_t kept;                             /* bytes of its memory that are left free: mote_options.gpu_memory */
    char name[320];                            /* info.device */
} model_device;

/* What mote_info says, with all that it points to. */
typedef struct model_report {
    mote_info info;
    mote_module modules[MODULE_KINDS];
    char module_dtypes[MODULE_KINDS][128];
    mote_layers kinds[LAYER_KIND_COUNT + 1];                /* the last one of the vision tower */
    mote_size sizes[LAYER_KIND_COUNT][LAYER_SIZES], vision_sizes[VISION_FIELD_COUNT];
    const char *stages[STAGE_COUNT];
    mote_device devices[DEVICES_MAX];
} model_report;

/* The MTP layer. It stands at a token's place, takes its final row h and the token after it, and predicts the one after that:
     x = fc [rms(embedding of the token) norm_embedding, rms(h) norm_hidden];  x through the layer;  logits = head (rms(x) norm)
   Where the residual is of streams, h is all of them, and fc is two: x[c] = fc_embedding (rms(embedding) norm_embedding) + fc (rms(h) norm_hidden)[c],
   and the mixer makes of x what the head is multiplied with.
   The head is lm_head, or draft_head for drafts; of a draft the token is the draft before it, and h what the layer made of that.
   Who walks through it: define_mtp; mtp_forward on the CPU; gpu_walk_mtp in a step on a GPU; prefill_mtp. */
typedef struct mtp_layer {
    matrix fc;                                 /* [hidden][2 hidden]; of streams [hidden][hidden], and */
    matrix fc_embedding;                       /* [hidden][hidden] */
    const float *norm_embedding, *norm_hidden, *norm;       /* [hidden]; of streams norm_hidden is [streams][hidden], and in norm's place is */
    stream_mixer mixer;
    struct layer layer;
} mtp_layer;

/* A layer's routed experts on a GPU: all that belongs to one of them in one piece, one after the other. */
typedef struct expert_home {
    size_t bytes;                              /* of all of them; 0: the layer has none, or another part has it */
    int in_host;                               /* they lie in host memory of their own, pinned, which the GPU reads, and not in the arena */
    char *host;                                /* that memory, by the same address for both; NULL: it has not been allocated */
    int registered;                            /* it came from the system, and was registered with the driver */
} expert_home;

enum { TABLES_MAX = 4 };                       /* tables that stay in their files */

struct mote_model {
    int holders;                               /* who has not closed it: the application, and each session (atomic) */
    config c;
    model_part part;                           /* of the program: all of it, or what a member of a group has */
    struct mote_model **members;               /* [ranges][ranks] the models of a group's members, which have the weights; NULL: it has them */
    int member_count;
    const struct weight_memory *memory;        /* of the device that holds the weights: checkpoint/memory.c */
    model_device device;
    unsigned bf16_largest;                     /* on a GPU: the largest magnitude of all BF16 weights, its bits; of a member, of all members' */
    unsigned vision_bf16_largest;              /* the same of the vision tower's matrices, of which the former is not */
    tokenizer *text;
    size_t longest_token;                      /* bytes */
    struct vocabulary *vocabulary;             /* for masks: NULL until it is needed, see model_vocabulary */
    chat_family family;
    int has_template;                          /* a chat template is there, known or not */
    int32_t chat_begin;                        /* of CHAT_BOS: the token that a chat begins with; -1: none */
    buf eos;                                   /* int32_t: the tokens that end a text, in order */
    mote_sampling sampling;                    /* of generation_config.json */
    model_report report;
    char *arena;                               /* all weights, in the device's memory */
    size_t arena_size;
    matrix embed_tokens, lm_head;
    const float *norm;                         /* [hidden] of the end; where the residual is of streams, in its place is */
    stream_mixer mixer;
    layer *layers;
    layer_shapes largest;                      /* of each kind, the largest sizes that a layer has */
    matrix *experts;                           /* the gate, up and down matrices of all layers */
    size_t expert_tables_at;                   /* where in a GPU's arena the layers' tables of experts are, one after the other */
    expert_home *homes;                        /* [layers + 1] of each layer's experts: model/home.c */
    int experts_in;                            /* as asked for: MOTE_EXPERTS_... */
    int expert_slots_most;                     /* for tests: of a runner, see mote_runner.expert_slots; -1: as many as fit */
    uint64_t *layer_bytes;                     /* [layers + 2] of the arena: the embedding's, each layer's, and what the others do not have */
    float *frequencies;                        /* of all attention layers, in the host's memory */
    float *kv_scales;                          /* on a GPU: the host's copies of all k_scale and v_scale */
    int has_mtp;
    mtp_layer mtp;
    matrix tap_fc[DRAFTER_TAPS];               /* of a block drafter: [hidden][hidden] of its target's residual at each tap, the columns of fc */
    const float *tap_norm;                     /* [hidden] of the sum of their products */
    struct mote_model *drafter;                /* drafts blocks for this one: model/drafter.c; NULL: none does */
    int has_vision;                            /* the part has the tower; of a front: the one that embeds has it */
    vision_weights vision;
    const char *vision_refused;                /* what of the tower the device does not take; NULL: that is not why there is none */
    picture_limits pictures;                   /* what the tower sees of a picture; of a front, too */
    int images;                                /* as asked for: of mote_options */
    int draft_rows;                            /* as asked for */
    int quantize;                              /* as asked for: MOTE_QUANTIZE_... */
    matrix draft_head;                         /* the first rows of lm_head: see bind_draft_head */
    size_t draft_at;                           /* where in the arena its copy is */
    struct row_table *tables[TABLES_MAX];      /* of layers of n-grams, by their number: checkpoint/rows.c; NULL: this part has not that layer,
                                                  or there are no weights */
    mote_error no_pooling;                     /* why the checkpoint's own pooling cannot be had; code MOTE_OK: it can, or there is none */
    struct remote_model *remote;               /* workers/model.c: a worker has this part; NULL: this host does */
    uint64_t fingerprint;                      /* of config.json's numbers and of samples of all weights: sample_bytes */
};

/* Layer i, or, of number c.layers, the MTP layer; after that come the drafter's. */
static layer *model_layer(const mote_model *m, int i) {
    if (i > m->c.layers) return &m->drafter->layers[i - m->c.layers - 1];
    return i < m->c.layers ? &m->layers[i] : (layer *)(uintptr_t)&m->mtp.layer;
}

/* Whether a tap is the first that a pass comes to: the products of the others are added to its own. */
static int drafter_tap_is_first(const drafter_shape *d, int tap) {
    for (int k = 0; k < d->taps; k++)
        if (d->tap[k] < d->tap[tap] || (k < tap && d->tap[k] == d->tap[tap])) return 0;
    return 1;
}

/* Layers of which a session may have a state: the model's, the MTP layer and the drafter's. */
static int model_states(const mote_model *m) {
    return m->c.layers + 1 + (m->drafter ? m->drafter->c.layers : 0);
}

/* Numbers of a row of the residual, and of a final row, which the MTP layer takes in. */
static int model_width(const mote_model *m) {
    return m->c.hidden * max_int(m->c.streams, 1);
}

/* Whether a part has that layer. */
static int model_has_layer(const mote_model *m, int i) {
    return i < m->c.layers ? part_has(&m->part, i) : part_is_last(&m->part) && m->has_mtp;
}

/* Bytes of all experts in host memory; with `one`: of one expert of each layer. */
static uint64_t model_host_bytes(const mote_model *m, int one) {
    uint64_t bytes = 0;
    for (int i = 0; i <= m->c.layers && m->homes; i++)
        if (m->homes[i].in_host) bytes += m->homes[i].bytes / (one ? (uint64_t)model_layer(m, i)->ffn.w.moe.shape.experts : 1);
    return bytes;
}

/* Bytes of weights in the device's memory, which may be the host's, its drafter's among them. */
static uint64_t model_device_bytes(const mote_model *m) {
    return m->arena_size + (m->device.integrated ? model_host_bytes(m, 0) : 0) + (m->drafter ? m->drafter->arena_size : 0);
}

static int model_has_weights(const mote_model *m) {
    return m->arena || (m->members && m->members[m->member_count - 1]->arena);
}

/* Tokens that drafts are chosen from, the first so many: rows of draft_head, those of all ranks. */
static inline int draft_vocab(const mote_model *m) {
    return min_int(m->c.vocab, m->draft_rows);
}
