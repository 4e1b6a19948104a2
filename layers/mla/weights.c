/* layers/mla/weights.c: what a layer of multi-head latent attention is: its numbers and its tensors. */

/* q_rank: numbers of the latent that queries are made of; 0: of u itself. kv_rank: of the latent that keys and values are made of. nope_dim,
   rope_dim: of a query and a key, those that are not rotated and those that are. eps: of the latents' norms. rope_scale: a factor of cos and
   sin. scale: of q . k. interleaved: pairs that are rotated are (2 i, 2 i + 1), else (i, i + rope_dim / 2). */
#define MLA_FIELDS(X)                                                                                                                \
    X(int,   hidden,      MAX,  NONE,        "")                                                                                     \
    X(int,   heads,       RANK, NONE,        "heads")                                                                                \
    X(int,   q_rank,      MAX,  NONE,        "q_lora_rank")                                                                          \
    X(int,   kv_rank,     MAX,  SET(LATENT), "kv_lora_rank")                                                                         \
    X(int,   nope_dim,    MAX,  NONE,        "qk_nope_head_dim")                                                                     \
    X(int,   rope_dim,    MAX,  NONE,        "qk_rope_head_dim")                                                                     \
    X(int,   value_dim,   MAX,  NONE,        "v_head_dim")                                                                           \
    X(float, eps,         NONE, NONE,        "")                                                                                     \
    X(float, rope_scale,  NONE, NONE,        "")                                                                                     \
    X(float, scale,       NONE, NONE,        "")                                                                                     \
    X(int,   interleaved, NONE, NONE,        "")
SHAPE(MLA, mla)

/* Numbers of a query or a key of a head. */
BOTH int mla_key_dim(const mla_shape *s) {
    return s->nope_dim + s->rope_dim;
}

/* Numbers of a token in the cache: the latent, and the rotated part of a key, which all heads share. */
BOTH int mla_row_size(const mla_shape *s) {
    return s->kv_rank + s->rope_dim;
}

typedef struct mla_weights {
    mla_shape shape;
    matrix q_a_proj;                               /* [q_rank][hidden]; without q_rank there is none */
    matrix q_b_proj;                               /* [heads][nope_dim + rope_dim][q_rank]; without q_rank q_proj, [..][..][hidden] */
    matrix kv_a_proj;                              /* [kv_rank + rope_dim][hidden] */
    matrix k_b_proj, v_b_proj;                     /* [heads][nope_dim][kv_rank], [heads][value_dim][kv_rank]: rows of kv_b_proj */
    matrix o_proj;                                 /* [hidden][heads][value_dim] */
    const float *q_norm, *kv_norm;                 /* [q_rank], [kv_rank] */
    const float *frequencies;                      /* [rope_dim / 2] angles of one position, in the host's memory */
    const float *kv_scale;                         /* [1] what a code 1 of an FP8 cache is worth, in the host's memory; NULL: 1 */
} mla_weights;

static inline feature_set mla_features(const mla_weights *w) {
    (void)w;
    return 0;
}

enum { MLA_MOST = 2048 };        /* numbers of a row of the cache, or of a query that are not rotated, which a block has in shared memory */

static const char *mla_unsupported_reason(const mla_shape *s) {
    if (mla_row_size(s) > MLA_MOST || s->nope_dim > MLA_MOST) return "latents or heads of more than 2,048 numbers";
    return s->hidden % 4 || s->q_rank % 4 || s->kv_rank % 4 || s->heads * s->value_dim % 4
               ? "hidden, latent and head sizes that are no multiples of 4" : NULL;
}
