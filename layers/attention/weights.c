/* layers/attention/weights.c: what an attention layer is: its numbers and its tensors. */

/* rope_scale: a factor of cos and sin; mostly 1. gated: q_proj yields [q | gate] for every head, else q alone; a gate is a sigmoid. gate_size:
   how many gates g_proj yields for every head, which are softplus: one for all of it, or head_dim; 0: there is no g_proj. normed: queries and keys
   are normalised. v_normed: values are, without weights. v_of_k: values are what k_proj yields, there is no v_proj. biased: the projections have
   a bias. scale: a factor of scores; 0: 1 / sqrt(head_dim). window: how many tokens a row sees, its own among them; 0: all up to its own. sinks:
   each head has a logit more in its softmax, which has no value. index_heads: of an index, by which a row attends to no more than index_budget
   tokens, in groups of index_group, and to the last ones (layers/attention/index.c); 0: there is none. index_dim: of its queries and keys, a
   multiple of index_group. */
#define ATTENTION_FIELDS(X)                                                                                                          \
    X(int,   hidden,       MAX,  NONE,             "")                                                                               \
    X(int,   heads,        RANK, NONE,             "heads")                                                                          \
    X(int,   kv_heads,     RANK, NONE,             "kv_heads")                                                                       \
    X(int,   head_dim,     MAX,  NONE,             "head_dim")                                                                       \
    X(int,   rotary_dim,   MAX,  ZERO(NO_ROPE),    "rotary_dim")                                                                     \
    X(float, eps,          NONE, NONE,             "")                                                                               \
    X(float, rope_scale,   NONE, NONE,             "")                                                                               \
    X(int,   gated,        MAX,  SET(OUTPUT_GATE), "")                                                                               \
    X(int,   gate_size,    MAX,  SET(G_PROJ),      "")                                                                               \
    X(int,   normed,       MAX,  SET(QK_NORM),     "")                                                                               \
    X(int,   v_normed,     NONE, SET(V_NORM),      "")                                                                               \
    X(int,   v_of_k,       NONE, SET(V_OF_K),      "")                                                                               \
    X(int,   biased,       NONE, SET(BIAS),        "")                                                                               \
    X(float, scale,        NONE, SET(SCORE_SCALE), "")                                                                               \
    X(int,   window,       MAX,  SET(WINDOW),      "")                                                                               \
    X(int,   sinks,        NONE, SET(SINKS),       "")                                                                               \
    X(int,   index_heads,  MAX,  SET(INDEX),       "")                                                                               \
    X(int,   index_dim,    MAX,  NONE,             "")                                                                               \
    X(int,   index_group,  MAX,  NONE,             "")                                                                               \
    X(int,   index_budget, MAX,  NONE,             "")
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
    matrix q_proj, k_proj, v_proj, o_proj;         /* v_proj: none if v_of_k */
    matrix g_proj;                                 /* [heads gate_size][hidden] */
    matrix index_qk;                               /* [index_heads + 1][index_dim][hidden]: index queries, and then the key */
    const float *index_q_norm, *index_k_norm;      /* [index_dim]; NULL unless there is an index */
    const float *q_norm, *k_norm;                  /* [head_dim]; NULL unless normed */
    const float *frequencies;                      /* [rotary_dim / 2] angles of one position, in the host's memory */
    rope_axes axes;                                /* of positions, by which they are multiplied */
    const float *sinks;                            /* [heads]; NULL unless there are sinks */
    const float *k_scale, *v_scale;                /* [1] what a code 1 of an FP8 cache is worth, in the host's memory; NULL: 1 */
} attention_weights;

/* Of an index whose queries a block of a GPU's kernels has no memory for. */
static inline feature_set attention_features(const attention_weights *w) {
    const attention_shape *s = &w->shape;
    return s->index_dim > 512 || (int64_t)s->index_heads * s->index_dim > 2048 ? feature_bit(FEATURE_WIDE_INDEX) : 0;
}

static const char *attention_unsupported_reason(const attention_shape *s) {
    return s->hidden % 4 || s->heads * s->head_dim % 4 ? "hidden and head sizes that are no multiples of 4" : NULL;
}
