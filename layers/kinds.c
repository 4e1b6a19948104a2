/* layers/kinds.c: the table of layer kinds: the only place that lists them all. Knows no session and no files.

   A decoder layer is two sublayers, each of which adds to the residual x: a mixer, which looks at other tokens and so has a
   state, and an FFN, which does not. A kind is one line here and its files in layers/, which define, for a kind `name`:

     NAME_FIELDS                its numbers, as layers/shape.c has them; SHAPE makes name_shape of them
     name_weights               a layer: its shape, first of all, and its tensors
     name_features              what a layer asks of an executor that its shape does not say
     name_unfit                 the reason why the kernels do not take a shape, NULL: they take it
     name_job                   the arguments and the scratch of a call, laid out once for all layers of the kind
     name_layout_scratch        lays the scratch out
     name_bytes                 the bytes that a stage reads in a decode step
     name_operations            the floating-point operations of a stage
   an FFN also
     name_forward               token rows through one layer, on the CPU
   a mixer also
     name_project               the same up to where tokens meet, all rows at once: a row's results do not depend on the others
     name_mix                   a sequence's rows and its state, by the results of that
     name_output                what comes after, all rows at once
     name_state                 what it remembers of a session's tokens in one layer
     name_layout_state          lays it out
     name_pieces                the state piece by piece, as it is saved, copied and compared
     name_log                   its log of a block, MOTE_ROWS_MAX rows of each piece
     name_rollback              how rows that are not accepted leave it
   and on a GPU
     name_gpu, name_layout_gpu  the arguments of its kernels, with their scratch in GPU memory; lays that out
     name_record                records the kernels of a step
     name_shorten_log           of a mixer: makes a log of more than STEP_ROWS accepted rows one that its kernels take
     name_can_prefill           whether the kernels of prefill take its shape and its matrices
     name_prefill_bytes          bytes of scratch for the rows of a prompt
     name_run_prefill           launches the kernels for the rows of a prompt */

#define MIXERS(X) X(DELTANET, deltanet) X(ATTENTION, attention)
#define FFNS(X) X(MOE, moe) X(MLP, mlp)
#define LAYER_KINDS(X) MIXERS(X) FFNS(X)

/* An editor's search for attention_rollback finds no call: name##_rollback below is one. The cases of ATTENTION are, written out:
     LAYER_ATTENTION, "attention", attention_shape attention; attention_weights attention; attention_job attention;
     attention_features(&l->w.attention), attention_unfit(&l->w.attention.shape), attention_bytes, attention_operations,
     attention_layout_scratch, attention_layout_state, attention_pieces, attention_log, attention_rollback,
     attention_project, attention_mix, attention_output; of an FFN moe_forward in place of the last three.
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

/* The kind of layer that a stage is of. */
static const enum layer_kind stage_kinds[STAGE_COUNT] = {
#define X(NAME, name, kind) LAYER_##kind,
    STAGES(X)
#undef X
};

static enum rollback layer_rollback(enum layer_kind mixer) {
    static const enum rollback of[] = {
#define X(NAME, name) (enum rollback)name##_rollback,
        MIXERS(X)
#undef X
    };
    return of[mixer];
}

#define X(NAME, name) name##_shape name;
typedef struct layer_shapes {
    LAYER_KINDS(X)
    unsigned kinds;              /* bit set of those that there are */
} layer_shapes;
typedef union any_shape { LAYER_KINDS(X) } any_shape;
#undef X
#define X(NAME, name) name##_weights name;
typedef union layer_weights { LAYER_KINDS(X) } layer_weights;
#undef X
#define X(NAME, name) name##_job name;
typedef struct layer_jobs { LAYER_KINDS(X) } layer_jobs;
#undef X
#define X(NAME, name) name##_state name;
typedef union layer_state { MIXERS(X) } layer_state;
#undef X

/* A sublayer and what the walk does around it: u = rms(x) norm, y = the sublayer of u, x = x + y. With a norm_after it adds
   rms(y) norm_after; with a scale the sum is multiplied by it. */
typedef struct sublayer {
    enum layer_kind kind;
    const float *norm;                         /* [hidden] */
    const float *norm_after;                   /* [hidden]; NULL: none */
    const float *scale;                        /* [1]; NULL: 1 */
    layer_weights w;
} sublayer;

typedef struct layer { sublayer mixer, ffn; } layer;

/* What config.json says of a sublayer. */
typedef struct sublayer_shape { enum layer_kind kind; any_shape of; } sublayer_shape;

/* The rows of each kind's fields. */
static const struct { const shape_field *row; int count; } layer_fields[LAYER_KIND_COUNT] = {
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
    switch (s->kind) {
#define X(NAME, name) case LAYER_##NAME: l->w.name.shape = s->of.name; break;
        LAYER_KINDS(X)
#undef X
        default: break;
    }
}

/* Adds a sublayer's shape to the largest of its kind. A layer's weights begin with its shape. */
static void sublayer_widen(layer_shapes *largest, const sublayer *l) {
    largest->kinds |= 1u << l->kind;
    shape_widen(largest_of(largest, l->kind), &l->w, layer_fields[l->kind].row, layer_fields[l->kind].count);
}

/* What a sublayer asks of an executor. */
static feature_set sublayer_features(const sublayer *l) {
    const feature_set all = shape_features(&l->w, layer_fields[l->kind].row, layer_fields[l->kind].count);
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: return all | name##_features(&l->w.name);
        LAYER_KINDS(X)
#undef X
        default: return all;
    }
}

/* The reason why the kernels do not take a sublayer's sizes; NULL: they take them. */
static const char *sublayer_unfit(const sublayer *l) {
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_unfit(&l->w.name.shape);
        LAYER_KINDS(X)
#undef X
        default: return NULL;
    }
}

/* Scratch for the largest layer of each kind. Only one layer runs at a time, so kinds share it; a kind that is absent has none. */
static void layer_layout_scratch(layout *l, const layer_shapes *largest, const capacity *r, layer_jobs *to) {
    size_t from = l->used, most = from;
#define X(NAME, name)                                                                                                 \
    l->used = from;                                                                                                   \
    if (largest->kinds >> LAYER_##NAME & 1) name##_layout_scratch(l, &largest->name, r, &to->name);                   \
    most = max_size(most, l->used);
    LAYER_KINDS(X)
#undef X
    l->used = most;
}

static void layer_layout_state(const layer *of, layout *l, const capacity *r, layer_state *to) {
    switch (of->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: name##_layout_state(l, &of->mixer.w.name.shape, r, &to->name); break;
        MIXERS(X)
#undef X
        default: break;
    }
}

/* Returns how many pieces there are, at most STATE_PIECES. */
static int layer_pieces(const layer *of, const capacity *r, const layer_state *state, state_piece *to) {
    switch (of->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_pieces(&of->mixer.w.name.shape, r, &state->name, to);
        MIXERS(X)
#undef X
        default: return 0;
    }
}

/* The pieces of a layer's log, at most LOG_PIECES; size: of a row. */
static int layer_log(const layer *of, const layer_state *state, state_piece *to) {
    switch (of->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_log(&of->mixer.w.name.shape, &state->name, to);
        MIXERS(X)
#undef X
        default: return 0;
    }
}

/* Token rows through layer i, which is l; with rows->state_only only as far as its mixer's state needs. */
static void layer_forward(const token_rows *rows, const layer *l, int i, layer_jobs *jobs) {
    if (l->mixer.kind != LAYER_NONE) rms_norm(rows->u, rows->x, l->mixer.norm, rows->T, rows->hidden, rows->eps);
    switch (l->mixer.kind) {
#define X(NAME, name)                                                                                                 \
    case LAYER_##NAME:                                                                                                \
        name##_project(rows, &l->mixer.w.name, &jobs->name);                                                          \
        for (int k = 0; k < rows->count; k++)                                                                         \
            name##_mix(rows, &rows->of[k], &jobs->name, &rows->of[k].states[i].name);                                 \
        if (!rows->state_only) name##_output(rows, &jobs->name);                                                      \
        break;
        MIXERS(X)
#undef X
        default: break;
    }
    if (rows->state_only) return;
    if (l->ffn.kind != LAYER_NONE) rms_norm(rows->u, rows->x, l->ffn.norm, rows->T, rows->hidden, rows->eps);
    switch (l->ffn.kind) {
#define X(NAME, name) case LAYER_##NAME: name##_forward(rows, &l->ffn.w.name, &jobs->name); break;
        FFNS(X)
#undef X
        default: break;
    }
}

static inline uint64_t sublayer_bytes(const sublayer *l, enum stage stage, const traffic *of) {
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_bytes(&l->w.name, stage, of);
        LAYER_KINDS(X)
#undef X
        default: return 0;
    }
}

/* Floating-point operations of a stage for `rows` token rows after `position` others. */
static inline double sublayer_operations(const sublayer *l, enum stage stage, double rows, double position) {
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_operations(&l->w.name, stage, rows, position);
        LAYER_KINDS(X)
#undef X
        default: return 0;
    }
}
