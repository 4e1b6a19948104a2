/* layers/moe/weights.c: what a mixture of experts is: its numbers and its tensors. */

/* shared_size 0: there is no shared expert; shared_ungated: its weight is 1. sigmoid: scores are sigmoids of the router's logits. corrected:
   what is added to a score counts in the choice alone. groups: only experts of the groups_kept best of so many groups are chosen; 0: of all.
   of_all: weights are shares of the softmax over all experts, not over the chosen ones; with sigmoid, the scores as they are. routed_scale:
   what weights of routed experts are multiplied with; 0: nothing. expert_scaled: also with a number of each expert. limit: what gate is at most,
   and the magnitude of up; 0: none. alpha: an expert's activation is gate sigmoid(alpha gate) (up + 1); gelu: it is GELU(gate) up;
   squared_relu: it is ReLU(up)^2, and there is no gate_proj; none of these: it is SiLU(gate) up. biased: router and experts have biases. */
#define MOE_FIELDS(X)                                                                                                                \
    X(int,   hidden,         MAX,  NONE,                "")                                                                          \
    X(int,   experts,        MAX,  NONE,                "experts")                                                                   \
    X(int,   top_k,          MAX,  NONE,                "experts_per_token")                                                         \
    X(int,   expert_size,    RANK, NONE,                "expert_size")                                                               \
    X(int,   shared_size,    RANK, SET(SHARED_EXPERT),  "shared_expert_size")                                                        \
    X(int,   shared_ungated, NONE, SET(UNGATED_SHARED), "")                                                                          \
    X(int,   sigmoid,        MAX,  SET(SIGMOID_ROUTER), "")                                                                          \
    X(int,   corrected,      MAX,  SET(CORRECTION),     "")                                                                          \
    X(int,   groups,         MAX,  SET(EXPERT_GROUPS),  "")                                                                          \
    X(int,   groups_kept,    NONE, NONE,                "")                                                                          \
    X(int,   of_all,         NONE, SET(WEIGHTS_OF_ALL), "")                                                                          \
    X(float, routed_scale,   NONE, SET(ROUTED_SCALE),   "")                                                                          \
    X(int,   expert_scaled,  NONE, SET(EXPERT_SCALES),  "")                                                                          \
    X(float, limit,          NONE, SET(LIMIT),          "")                                                                          \
    X(float, alpha,          NONE, SET(ALPHA),          "")                                                                          \
    X(int,   gelu,           NONE, SET(GELU),           "")                                                                          \
    X(int,   squared_relu,   NONE, SET(SQUARED_RELU),   "")                                                                          \
    X(int,   biased,         NONE, SET(BIAS),           "")
SHAPE(MOE, moe)

typedef struct moe_weights {
    moe_shape shape;
    matrix router, shared_expert_gate;                      /* [experts][hidden], [1][hidden] unless shared_ungated */
    const float *correction, *expert_scale;                 /* [experts]; NULL unless corrected; unless expert_scaled */
    matrix *gate_proj, *up_proj, *down_proj;                /* [experts + 1], the last one is the shared expert, if there is one. With squared_relu
                                                               gate_proj is up_proj, as ReLU(up)^2 = ReLU(up) up */
    const int64_t *expert_at;                               /* on a GPU, in its memory: [experts] moe_distance of each routed expert */
    const char *host_at;                                    /* the first one's piece in host memory, which the GPU reads; NULL: they are in its own */
    size_t piece;                                           /* bytes of that: expert e's is host_at + e piece */
} moe_weights;

/* Whether experts are chosen by other numbers than the router's logits. */
static inline int moe_ranks_scores(const moe_shape *s) {
    return s->sigmoid || s->corrected || s->groups;
}

/* Whether the matrices of all routed experts are stored as the first one's. */
static int moe_alike(const moe_weights *w) {
    const matrix *const all[3] = {w->gate_proj, w->up_proj, w->down_proj};
    int alike = 1;
    for (int i = 0; i < 3; i++)
        for (int e = 1; e < w->shape.experts; e++) alike &= all[i][e].format == all[i][0].format;
    return alike;
}

/* Bytes from the matrices of routed expert 0 to those of expert e: of gate, up and down all components, and biases, lie as far from those of
   expert 0. -1: they do not, or lie where no 16 bytes begin. */
static int64_t moe_distance(const moe_weights *w, int e) {
    const matrix *const all[3] = {w->gate_proj, w->up_proj, w->down_proj};
    const int64_t distance = (int64_t)((uintptr_t)w->gate_proj[e].component[CODES] - (uintptr_t)w->gate_proj[0].component[CODES]);
    int wrong = distance % 16 != 0;
    for (int i = 0; i < 3; i++) {
        const matrix *first = &all[i][0], *x = &all[i][e];
        wrong |= x->format != first->format || !x->bias != !first->bias;
        wrong |= x->bias && (int64_t)((uintptr_t)x->bias - (uintptr_t)first->bias) != distance;
        for (int p = 0; p < formats[first->format]->component_count; p++)
            wrong |= (int64_t)((uintptr_t)x->component[p] - (uintptr_t)first->component[p]) != distance;
    }
    return wrong ? -1 : distance;
}

static inline feature_set moe_features(const moe_weights *w) {
    return moe_alike(w) ? 0 : feature_bit(FEATURE_UNLIKE_EXPERTS);
}

static const char *moe_unsupported_reason(const moe_shape *s) {
    if (s->experts > 1024 || s->top_k > 32) return "more than 1024 experts, or 32 of them for a token,";
    if (s->groups > 32) return "more than 32 groups of experts";
    return s->hidden % 4 || s->expert_size % 4 || s->shared_size % 4 ? "hidden and expert sizes that are no multiples of 4" : NULL;
}
