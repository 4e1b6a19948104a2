/* layers/mlp/weights.c: what a dense FFN is: its numbers and its tensors. */

/* gelu: the activation is GELU(gate) up; squared_relu: it is ReLU(up)^2, and there is no gate_proj; neither: it is SiLU(gate) up. */
#define MLP_FIELDS(X)                                                                                                                \
    X(int,   hidden,       MAX,  NONE,              "")                                                                              \
    X(int,   size,         RANK, NONE,              "intermediate_size")                                                             \
    X(int,   gelu,         NONE, SET(GELU),         "")                                                                              \
    X(int,   squared_relu, NONE, SET(SQUARED_RELU), "")
SHAPE(MLP, mlp)

typedef struct mlp_weights {
    mlp_shape shape;
    matrix gate_proj, up_proj, down_proj;       /* [size][hidden] twice, [hidden][size] */
} mlp_weights;

/* What stands in the place of gate_proj where there is none: ReLU(up)^2 = ReLU(up) up. */
static inline const matrix *mlp_gate(const mlp_weights *w) {
    return w->shape.squared_relu ? &w->up_proj : &w->gate_proj;
}

/* Whether gate_proj and up_proj are stored alike, so that a tile may have a panel of each. */
static inline int mlp_pairs(const mlp_weights *w) {
    const matrix *a = mlp_gate(w), *b = &w->up_proj;
    return a->format == b->format && a->block_rows == b->block_rows && a->block_cols == b->block_cols;
}

static inline feature_set mlp_features(const mlp_weights *w) {
    return mlp_pairs(w) ? 0 : feature_bit(FEATURE_UNLIKE_GATE_UP);
}

static const char *mlp_unsupported_reason(const mlp_shape *s) {
    return s->hidden % 4 || s->size % 4 ? "hidden and FFN sizes that are no multiples of 4" : NULL;
}
