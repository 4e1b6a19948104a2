/* layers/shape.c: shapes as tables of fields, and the features that fields ask of who computes. Knows no kind of layer.

   A shape is the numbers of a layer, or of another part of a model. Its fields are one table, NAME_FIELDS(X), with a row for each:

     X(type, name, widen, feature, report)
       type      int or float
       widen     how the shape that scratch is laid out for, the largest of all layers, has it: MAX, or NONE: scratch does not depend on it;
                 RANK: as MAX, and the ranks of a layer divide it among them
       feature   what a field asks of an executor: SET(feature) if it is not 0, ZERO(feature) if it is; NONE: a number that every one takes
       report    its name in mote_info; "": it is not told

   SHAPE makes of that the struct and its rows. What goes through all fields reads the rows: widening, features, the fingerprint of saved
   sessions, mote_info. So whoever adds a field adds it here alone, and to what computes with it. */

/* What a layer may ask for, and which executors do it: run/cpu/forward.c; run/cuda/step.cu; run/cuda/prefill.cu, without which prompts are decoded. A layer
   that asks for what its device has not is refused by these words. Of what no field can say, a kind's name_features tells. */
#define FEATURES(X)                                                                                                                  \
    /* name            CPU step prefill  "layer 3: ... are not supported on a GPU" */                                                 \
    X(OUTPUT_GATE,      1,  1,  1,       "output gates of attention")                                                                \
    X(G_PROJ,           1,  1,  1,       "output gates of a g_proj")                                                                 \
    X(QK_NORM,          1,  1,  1,       "norms of queries and keys")                                                                \
    X(V_NORM,           1,  1,  1,       "norms of values")                                                                          \
    X(V_OF_K,           1,  1,  1,       "values of a k_proj")                                                                       \
    X(SCORE_SCALE,      1,  1,  1,       "scores that are not scaled by 1 / sqrt(head_dim)")                                         \
    X(WINDOW,           1,  1,  1,       "sliding windows")                                                                          \
    X(SINKS,            1,  1,  1,       "attention sinks")                                                                          \
    X(LATENT,           1,  1,  1,       "latent keys and values")                                                                   \
    X(LIMIT,            1,  1,  1,       "clamped activations")                                                                      \
    X(ALPHA,            1,  1,  1,       "activations with an alpha")                                                                \
    X(GELU,             1,  1,  1,       "GELU activations")                                                                         \
    X(SQUARED_RELU,     1,  1,  1,       "FFNs without a gate_proj")                                                                 \
    X(BIAS,             1,  1,  1,       "biases")                                                                                   \
    X(NO_ROPE,          1,  1,  1,       "queries and keys that are not rotated")                                                    \
    X(TURNING,          1,  1,  1,       "rotary frequencies of 0")                                                                  \
    X(SHARED_EXPERT,    1,  1,  1,       "shared experts")                                                                           \
    X(WEIGHTS_OF_ALL,   1,  1,  1,       "router weights that are shares of all experts")                                            \
    X(SIGMOID_ROUTER,   1,  1,  1,       "routers with sigmoid scores")                                                              \
    X(CORRECTION,       1,  1,  1,       "routers with a correction of their scores")                                                \
    X(ROUTED_SCALE,     1,  1,  1,       "scaled sums of experts")                                                                   \
    X(EXPERT_SCALES,    1,  1,  1,       "experts with scales of their own")                                                         \
    X(EXPERT_GROUPS,    1,  1,  1,       "groups of experts")                                                                        \
    X(UNGATED_SHARED,   1,  1,  1,       "shared experts without a gate")                                                            \
    X(NORM_AFTER,       1,  1,  1,       "norms after mixers and FFNs")                                                              \
    X(RESIDUAL_SCALE,   1,  1,  1,       "scaled residuals")                                                                         \
    X(BRANCHES,         1,  1,  1,       "FFNs whose branches have norms of their own")                                              \
    X(STREAMS,          1,  1,  1,       "residual streams")                                                                         \
    X(SIGMOID_GATE,     1,  1,  1,       "output gates of DeltaNet that are sigmoids")                                               \
    X(INDEX,            1,  1,  1,       "indexes of attention")                                                                     \
    X(WIDE_INDEX,       1,  0,  0,       "indexes whose heads have more than 512 numbers, or 2,048 together")                        \
    X(NGRAMS,           1,  1,  1,       "tables of n-grams")                                                                        \
    X(MAMBA,            1,  1,  1,       "Mamba-2 layers")                                                                           \
    X(EMBED_FACTOR,     1,  1,  1,       "scaled embeddings")                                                                        \
    X(LOGIT_CAP,        1,  1,  1,       "capped logits")                                                                            \
    X(UNLIKE_EXPERTS,   1,  0,  0,       "experts of different dtypes")                                                              \
    X(UNLIKE_GATE_UP,   1,  0,  0,       "a gate_proj and an up_proj of different dtypes")

enum feature {
    FEATURE_NONE,
#define X(NAME, cpu, step, prefill, text) FEATURE_##NAME,
    FEATURES(X)
#undef X
    FEATURE_COUNT
};

static const char *const feature_names[FEATURE_COUNT] = {
    "",
#define X(NAME, cpu, step, prefill, text) text,
    FEATURES(X)
#undef X
};

typedef uint64_t feature_set;                  /* bit f: enum feature */
static_assert((int)FEATURE_COUNT <= 64, "a feature_set has 64 bits");

static feature_set feature_bit(enum feature f) {
    return f == FEATURE_NONE ? 0 : (feature_set)1 << f;
}

enum executor_kind { EXECUTOR_CPU, EXECUTOR_STEP, EXECUTOR_PREFILL, EXECUTOR_KINDS };

/* What each executor does. */
static const feature_set executor_features[EXECUTOR_KINDS] = {
#define X(NAME, cpu, step, prefill, text) | (feature_set)cpu << FEATURE_##NAME
    0 FEATURES(X),
#undef X
#define X(NAME, cpu, step, prefill, text) | (feature_set)step << FEATURE_##NAME
    0 FEATURES(X),
#undef X
#define X(NAME, cpu, step, prefill, text) | (feature_set)prefill << FEATURE_##NAME
    0 FEATURES(X),
#undef X
};

enum widening { WIDEN_NONE, WIDEN_MAX, WIDEN_RANK };

/* A field of a shape. All are of four bytes, field i at byte 4 i. */
typedef struct shape_field {
    const char *name, *report;
    int is_float;
    enum widening widen;
    enum feature feature;
    int set;                                   /* it asks for the feature if it is: 1 not 0, 0 0 */
} shape_field;

/* Where a struct that ends with this field ends. */
#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

#define FIELD_NONE FEATURE_NONE, 0
#define FIELD_SET(feature) FEATURE_##feature, 1
#define FIELD_ZERO(feature) FEATURE_##feature, 0
#define FIELD_MEMBER(type, name, widen, feature, report) type name;
#define FIELD_ROW(type, name, widen, feature, report) {#name, report, (type)0.5f != 0, WIDEN_##widen, FIELD_##feature},

/* Struct name_shape, and its rows, name_fields. */
#define SHAPE(NAME, name)                                                                                                            \
    typedef struct name##_shape { NAME##_FIELDS(FIELD_MEMBER) } name##_shape;                                                        \
    FIELDS(NAME, name, sizeof(name##_shape))
#define FIELDS(NAME, name, size)                                                                                                     \
    static const shape_field name##_fields[] = {NAME##_FIELDS(FIELD_ROW)};                                                           \
    enum { NAME##_FIELD_COUNT = sizeof name##_fields / sizeof *name##_fields };                                                      \
    static_assert((size) == 4 * NAME##_FIELD_COUNT, "fields of four bytes");

/* Field i. */
static double shape_value(const void *shape, const shape_field *fields, int i) {
    int32_t whole;
    float real;
    memcpy(&whole, (const char *)shape + 4 * i, sizeof whole);
    memcpy(&real, (const char *)shape + 4 * i, sizeof real);
    return fields[i].is_float ? (double)real : whole;
}

/* Makes a shape of that kind large enough for another one. What is not widened becomes the other's: where all layers are alike, as in
   a selftest, the largest shape is theirs. */
static void shape_widen(void *largest, const void *shape, const shape_field *fields, int count) {
    for (int i = 0; i < count; i++)
        if (fields[i].widen == WIDEN_NONE || shape_value(shape, fields, i) > shape_value(largest, fields, i))
            memcpy((char *)largest + 4 * i, (const char *)shape + 4 * i, 4);
}

/* The first field that so many ranks cannot divide; NULL: there is none. *value: its number. */
static const char *shape_indivisible(const void *shape, const shape_field *fields, int count, int ranks, int *value) {
    for (int i = 0; i < count; i++) {
        *value = (int)shape_value(shape, fields, i);
        if (fields[i].widen == WIDEN_RANK && *value % ranks) return fields[i].name;
    }
    return NULL;
}

/* Makes it the shape of one of so many ranks. */
static void shape_divide(void *shape, const shape_field *fields, int count, int ranks) {
    for (int i = 0; i < count; i++) {
        const int32_t share = (int32_t)shape_value(shape, fields, i) / ranks;
        if (fields[i].widen == WIDEN_RANK) memcpy((char *)shape + 4 * i, &share, sizeof share);
    }
}

/* What the fields of a shape ask for. */
static feature_set shape_features(const void *shape, const shape_field *fields, int count) {
    feature_set all = 0;
    for (int i = 0; i < count; i++)
        if ((shape_value(shape, fields, i) != 0) == fields[i].set) all |= feature_bit(fields[i].feature);
    return all;
}
