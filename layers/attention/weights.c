/* layers/attention/weights.c: what an attention layer is: its numbers and its tensors. */

/* rope_scale: a factor of cos and sin; mostly 1. gated: q_proj yields [q | gate] for every head, else q alone. normed: queries and keys
   are normalised. biased: the four projections have a bias. window: how many tokens a row sees, its own among them; 0: all up to its own. sinks:
   each head has a logit more in its softmax, which has no value. */
#define ATTENTION_FIELDS(X)                                                                                                          \
    X(int,   hidden,     MAX,  NONE,             "")                                                                                 \
    X(int,   heads,      RANK, NONE,             "heads")                                                                            \
    X(int,   kv_heads,   RANK, NONE,             "kv_heads")                                                                         \
    X(int,   head_dim,   MAX,  NONE,             "head_dim")                                                                         \
    X(int,   rotary_dim, MAX,  ZERO(NO_ROPE),    "rotary_dim")                                                                       \
    X(float, eps,        NONE, NONE,             "")                                                                                 \
    X(float, rope_scale, NONE, NONE,             "")                                                                                 \
    X(int,   gated,      MAX,  SET(OUTPUT_GATE), "")                                                                                 \
    X(int,   normed,     MAX,  SET(QK_NORM),     "")                                                                                 \
    X(int,   biased,     NONE, SET(BIAS),        "")                                                                                 \
    X(int,   window,     NONE, SET(WINDOW),      "")                                                                                 \
    X(int,   sinks,      NONE, SET(SINKS),       "")
SHAPE(ATTENTION, attention)

/* Numbers of a head in a row of q_proj's results. */
BOTH int attention_q_size(const attention_shape *s) {
    return (1 + s->gated) * s->head_dim;
}

/* M-RoPE, of models that read images: frequency i takes the height of a row's position where i % 3 = 1 and i < height, the width where
   i % 3 = 2 and i < width, else the time. 0, 0: the time always. */
typedef struct rope_axes { int height, width; } rope_axes;

BOTH int rope_axis(rope_axes a, int i) {
    return i % ROW_AXES == 1 && i < a.height ? 1 : i % ROW_AXES == 2 && i < a.width ? 2 : 0;
}

typedef struct attention_weights {
    attention_shape shape;
    matrix q_proj, k_proj, v_proj, o_proj;
    const float *q_norm, *k_norm;                  /* [head_dim]; NULL unless normed */
    const float *frequencies;                      /* [rotary_dim / 2] angles of one position, in the host's memory */
    rope_axes axes;                                /* of positions, by which they are multiplied */
    const float *sinks;                            /* [heads]; NULL unless there are sinks */
    const float *k_scale, *v_scale;                /* [1] what a code 1 of an FP8 cache is worth, in the host's memory; NULL: 1 */
} attention_weights;

static inline feature_set attention_features(const attention_weights *w) {
    (void)w;
    return 0;
}

static const char *attention_unsupported_reason(const attention_shape *s) {
    return s->hidden % 4 || s->heads * s->head_dim % 4 ? "hidden and head sizes that are no multiples of 4" : NULL;
}
