/* layers/mamba/weights.c: what a Mamba-2 layer is: its numbers and its tensors. */

/* groups: heads h with the same h / (heads / groups) share B and C, and are normed together. state_dim: of B and C. taps: of conv1d. */
#define MAMBA_FIELDS(X)                                                                                                              \
    X(int,   hidden,    MAX,  NONE,       "")                                                                                        \
    X(int,   heads,     RANK, NONE,       "heads")                                                                                   \
    X(int,   head_dim,  MAX,  NONE,       "head_dim")                                                                                \
    X(int,   groups,    RANK, NONE,       "groups")                                                                                  \
    X(int,   state_dim, MAX,  SET(MAMBA), "state_dim")                                                                               \
    X(int,   taps,      MAX,  NONE,       "")                                                                                        \
    X(float, eps,       NONE, NONE,       "")
SHAPE(MAMBA, mamba)

/* Channels are in the order C [groups][state_dim], B the same, x [heads][head_dim]: that of queries, keys and values. */
typedef struct mamba_weights {
    mamba_shape shape;
    matrix in_proj_z, in_proj_cbx, in_proj_dt;                      /* [heads head_dim], [channels], [heads] rows of hidden */
    matrix out_proj;                                                /* [hidden][heads head_dim] */
    const float *conv1d, *conv_bias;                                /* [channels][taps], the last tap is the present; [channels] */
    const float *A_log, *D, *dt_bias;                               /* [heads] */
    const float *norm;                                              /* [heads head_dim] */
} mamba_weights;

/* A DeltaNet layer that remembers as much, in the same places: S [heads][head_dim][state_dim], a window of channels, and of the log of a block
   B in the place of keys, dt x in that of what is written. */
static deltanet_shape mamba_memory(const mamba_shape *s) {
    const deltanet_shape same = {.hidden = s->hidden, .key_heads = s->groups, .value_heads = s->heads, .key_dim = s->state_dim,
                                 .value_dim = s->head_dim, .taps = s->taps, .eps = s->eps, .sigmoid_gate = 0};
    return same;
}

static int mamba_inner(const mamba_shape *s) {
    return s->heads * s->head_dim;
}

static int mamba_channels(const mamba_shape *s) {
    return 2 * s->groups * s->state_dim + mamba_inner(s);
}

static inline feature_set mamba_features(const mamba_weights *w) {
    (void)w;
    return 0;
}

static const char *mamba_unsupported_reason(const mamba_shape *s) {
    if (s->state_dim > 128) return "states of more than 128 numbers";
    return s->hidden % 4 || s->state_dim % 4 || s->head_dim % 4 ? "hidden and head sizes that are no multiples of 4" : NULL;
}
