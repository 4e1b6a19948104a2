/* layers/deltanet/weights.c: what a DeltaNet layer is: its numbers and its tensors. */

enum { MAX_KEY_DIM = 512 };      /* of a DeltaNet head: a row of S fits a small array */

/* taps: of conv1d. sigmoid_gate: the output gate is sigmoid(z), else SiLU(z). */
#define DELTANET_FIELDS(X)                                                                                                           \
    X(int,   hidden,       MAX,  NONE,              "")                                                                              \
    X(int,   key_heads,    RANK, NONE,              "key_heads")                                                                     \
    X(int,   value_heads,  RANK, NONE,              "value_heads")                                                                   \
    X(int,   key_dim,      MAX,  NONE,              "key_head_dim")                                                                  \
    X(int,   value_dim,    MAX,  NONE,              "value_head_dim")                                                                \
    X(int,   taps,         MAX,  NONE,              "")                                                                              \
    X(float, eps,          NONE, NONE,              "")                                                                              \
    X(int,   sigmoid_gate, NONE, SET(SIGMOID_GATE), "")
SHAPE(DELTANET, deltanet)

typedef struct deltanet_weights {
    deltanet_shape shape;
    matrix in_proj_qkv, in_proj_z, in_proj_b, in_proj_a, out_proj;
    const float *conv1d;                                            /* [channels][taps], the last tap is the present */
    const float *A_log, *dt_bias;                                   /* [value_heads] */
    const float *norm;                                              /* [value_dim] */
} deltanet_weights;

static int deltanet_channels(const deltanet_shape *s) {
    return 2 * s->key_heads * s->key_dim + s->value_heads * s->value_dim;
}

static inline feature_set deltanet_features(const deltanet_weights *w) {
    (void)w;
    return 0;
}

static const char *deltanet_unsupported_reason(const deltanet_shape *s) {
    return s->hidden % 4 || s->key_dim % 4 || s->value_dim % 4 ? "hidden and head sizes that are no multiples of 4" : NULL;
}
