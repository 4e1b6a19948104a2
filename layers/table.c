/* layers/table.c: the table of layer kinds: the only place that lists them all; and what a layer is: kinds, numbers, tensors. Knows no
   executor, no session and no files.

   A decoder layer is two sublayers: a mixer, which looks at other tokens and so has a state, and an FFN, which does not. How they read the
   residual x and what is added to it is the walk's part, in layers/kinds.c. A kind is one line here and its files in layers/;
   layers/name/weights.c defines, for a kind `name`:

     NAME_FIELDS                its numbers, as layers/shape.c has them; SHAPE makes name_shape of them
     name_weights               a layer: its shape, first of all, and its tensors
     name_features              what a layer asks of an executor that its shape does not say
     name_unsupported_reason    the reason why the kernels do not take a shape, NULL: they take it

   layers/name/definition.c has its formulas, see layers/definition.c; what the CPU and CUDA need beside these is in layers/kinds.c. */

#define GPU_MIXERS(X) X(DELTANET, deltanet) X(ATTENTION, attention) X(MLA, mla) X(NGRAMS, ngrams) X(MAMBA, mamba)
#define MIXERS(X) GPU_MIXERS(X)
#define FFNS(X) X(MOE, moe) X(MLP, mlp)
#define LAYER_KINDS(X) MIXERS(X) FFNS(X)

/* Those that have kernels. Any other asks for a feature that no executor of a GPU has. */
#define GPU_LAYER_KINDS(X) GPU_MIXERS(X) FFNS(X)

/* An editor's search for attention_unsupported_reason finds no call: name##_unsupported_reason below is one. The cases of ATTENTION are, written out:
     LAYER_ATTENTION, "attention", attention_shape attention; attention_weights attention; attention_features(&l->w.attention),
     attention_unsupported_reason(&l->w.attention.shape).
   Widening, fingerprint and sizes have no functions of a kind: shape_widen and its neighbours read attention_fields, the rows that
   SHAPE makes of ATTENTION_FIELDS (layers/shape.c). */

enum layer_kind {
#define X(NAME, name) LAYER_##NAME,
    LAYER_KINDS(X)
#undef X
    LAYER_KIND_COUNT,
    LAYER_NONE, LAYER_MTP        /* of stages: no layer's; the MTP layer's, whatever that consists of */
};

static const char *const layer_kind_names[LAYER_KIND_COUNT] = {
#define X(NAME, name) #name,
    LAYER_KINDS(X)
#undef X
};

/* What the walk does around a sublayer: u = rms(x) norm, y = the sublayer of u, x = x + y. normed_after: x = x + rms(y) norm_after. scaled:
   after that x = x scale. branched, of an FFN of experts and a shared one: its router and its shared expert read rms(x) norm_router and rms(x) norm_shared; with r and s what its
   routed experts and its shared one add up to, y = rms(r) norm_routed_after + rms(s) norm_shared_after. streams: x is so many streams, of which
   the sublayer reads one mixture, and to which it adds y in shares of their own (layers/streams.c); mix_rank: of that mixture's weights; 0: x is
   one. whole: the sublayer reads all streams as they are, and adds to each itself. */
#define RESIDUAL_FIELDS(X)                                                                                                           \
    X(int, normed_after, MAX,  SET(NORM_AFTER),     "")                                                                              \
    X(int, scaled,       MAX,  SET(RESIDUAL_SCALE), "")                                                                              \
    X(int, branched,     MAX,  SET(BRANCHES),       "")                                                                              \
    X(int, streams,      MAX,  SET(STREAMS),        "")                                                                              \
    X(int, mix_rank,     MAX,  NONE,                "")                                                                              \
    X(int, whole,        NONE, SET(STREAMS),        "")
SHAPE(RESIDUAL, residual)

/* Whether something comes between an output and its place in x. */
static inline int residual_stores(const residual_shape *r) {
    return r->normed_after || r->scaled || r->branched;
}

/* How a sublayer, or the model's end, reads residual streams: see layers/streams.c. */
typedef struct stream_mixer {
    const float *norm;                         /* [streams][hidden] */
    matrix down, up;                           /* [mix_rank][streams hidden], [streams hidden][mix_rank] */
    matrix inject;                             /* [streams][streams hidden]; none at the model's end */
} stream_mixer;

enum {
    GPU_STREAMS = 4,                           /* of a residual: kernels take so many */
    MIXER_K_COLS = 32,                          /* columns of a k block of BF16 */
    STREAM_HIDDEN_MOST = 5120,                 /* columns of a stream: blocks have all that they read of matrices in registers */
    STREAM_RANK_MOST = 4096                    /* of mixtures: a block has four rows of one in shared memory */
};

/* Why kernels do not mix so many streams by w; NULL: they do, or there is one. */
static const char *streams_unsupported_reason(const stream_mixer *w, int streams) {
    if (!streams) return NULL;
    if (streams != GPU_STREAMS) return "other numbers of residual streams than 4";
    if (w->down.format != FORMAT_BF16 || w->up.format != FORMAT_BF16 || (w->inject.rows && w->inject.format != FORMAT_BF16))
        return "residual streams mixed by other weights than BF16";
    if (w->up.rows / streams % MIXER_K_COLS || w->up.rows / streams > STREAM_HIDDEN_MOST)
        return "residual streams of other hidden sizes than multiples of 32 up to 5120";
    return w->down.rows > STREAM_RANK_MOST ? "mixtures of residual streams of ranks above 4096" : NULL;
}

/* Whether an output is not added to x while it is computed. */
static inline int residual_apart(const residual_shape *r) {
    return r->normed_after || r->branched || r->streams;
}

#define X(NAME, name) name##_shape name;
typedef struct layer_shapes {
    LAYER_KINDS(X)
    residual_shape residual;
    unsigned kinds;              /* bit set of those that there are */
} layer_shapes;
typedef union any_shape { LAYER_KINDS(X) } any_shape;
#undef X
#define X(NAME, name) name##_weights name;
typedef union layer_weights { LAYER_KINDS(X) } layer_weights;
#undef X

typedef struct sublayer {
    enum layer_kind kind;
    residual_shape residual;
    const float *norm;                         /* [hidden] */
    const float *norm_after;                   /* [hidden]; NULL unless normed_after */
    const float *scale;                        /* [1]; NULL unless scaled */
    const float *norm_router, *norm_shared, *norm_routed_after, *norm_shared_after;         /* [hidden]; NULL unless branched */
    stream_mixer mixer;                        /* in the place of norm, where there are streams */
    layer_weights w;
} sublayer;

typedef struct layer { sublayer mixer, ffn; } layer;

/* What config.json says of a sublayer. */
typedef struct sublayer_shape { enum layer_kind kind; residual_shape residual; any_shape of; } sublayer_shape;

/* The rows of each kind's fields; LAYER_NONE has none. */
static const struct { const shape_field *row; int count; } layer_fields[LAYER_NONE + 1] = {
#define X(NAME, name) {name##_fields, NAME##_FIELD_COUNT},
    LAYER_KINDS(X)
#undef X
};

#define X(NAME, name) static_assert(offsetof(name##_weights, shape) == 0, "weights begin with their shape");
LAYER_KINDS(X)
#undef X

#define X(NAME, name) char name[NAME##_FIELD_COUNT];
typedef union shape_sizes { LAYER_KINDS(X) } shape_sizes;
#undef X
enum { LAYER_SIZES = sizeof(shape_sizes) };    /* most fields of a shape */

/* A kind's shape among the largest of all kinds. */
static void *largest_of(layer_shapes *largest, enum layer_kind kind) {
    switch (kind) {
#define X(NAME, name) case LAYER_##NAME: return &largest->name;
        LAYER_KINDS(X)
#undef X
        default: return NULL;
    }
}

/* Gives a sublayer without tensors its kind and shape. */
static void sublayer_begin(sublayer *l, const sublayer_shape *s) {
    l->kind = s->kind;
    l->residual = s->residual;
    switch (s->kind) {
#define X(NAME, name) case LAYER_##NAME: l->w.name.shape = s->of.name; break;
        LAYER_KINDS(X)
#undef X
        default: break;
    }
}

/* Adds a sublayer's shape to the largest of its kind. A layer's weights begin with its shape. */
static void sublayer_widen(layer_shapes *largest, const sublayer *l) {
    if (l->kind == LAYER_NONE) return;
    largest->kinds |= 1u << l->kind;
    shape_widen(largest_of(largest, l->kind), &l->w, layer_fields[l->kind].row, layer_fields[l->kind].count);
    shape_widen(&largest->residual, &l->residual, residual_fields, RESIDUAL_FIELD_COUNT);
}

/* The first number of a sublayer that so many ranks cannot divide; NULL: there is none. */
static const char *sublayer_indivisible(const sublayer *l, int ranks, int *value) {
    return shape_indivisible(&l->w, layer_fields[l->kind].row, layer_fields[l->kind].count, ranks, value);
}

/* Gives a sublayer, whose tensors are a rank's share, the shape of that. */
static void sublayer_divide(sublayer *l, int ranks) {
    shape_divide(&l->w, layer_fields[l->kind].row, layer_fields[l->kind].count, ranks);
}

/* What a sublayer asks of an executor. */
static feature_set sublayer_features(const sublayer *l) {
    const feature_set all = shape_features(&l->w, layer_fields[l->kind].row, layer_fields[l->kind].count) |
                            shape_features(&l->residual, residual_fields, RESIDUAL_FIELD_COUNT);
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: return all | name##_features(&l->w.name);
        LAYER_KINDS(X)
#undef X
        default: return all;
    }
}

/* The reason why the kernels do not take a sublayer's sizes; NULL: they take them. */
static const char *sublayer_unsupported_reason(const sublayer *l) {
    const char *wrong = l->kind == LAYER_NONE || l->residual.whole ? NULL : streams_unsupported_reason(&l->mixer, l->residual.streams);
    if (wrong) return wrong;
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_unsupported_reason(&l->w.name.shape);
        LAYER_KINDS(X)
#undef X
        default: return NULL;
    }
}
