/* layers/stages.c: the stages of a forward pass, in the order in which they run, and the kind of layer that each is of.
   Measurements name them; each is a kernel or two on a GPU. */

/* X(NAME, "name", kind): kind: of layers/table.c, or NONE for what is not part of a layer. */
#define STAGES(X)                                                                                                     \
    X(EMBED, "embed", NONE)                                                                                           \
    X(STREAMS, "streams", NONE)                                                                                       \
    X(IN_PROJ, "norm_in_proj", DELTANET)                                                                              \
    X(DELTA, "conv_delta", DELTANET)                                                                                  \
    X(OUT_PROJ, "gated_norm_out", DELTANET)                                                                           \
    X(QKV, "norm_qkv", ATTENTION)                                                                                     \
    X(ATTEND, "rope_attend", ATTENTION)                                                                               \
    X(O_PROJ, "out", ATTENTION)                                                                                       \
    X(LATENTS, "norm_latents", MLA)                                                                                   \
    X(LATENT_ATTEND, "latent_attend", MLA)                                                                            \
    X(LATENT_OUT, "latent_out", MLA)                                                                                  \
    X(MAMBA_IN, "norm_mamba_in", MAMBA)                                                                               \
    X(SCAN, "conv_scan", MAMBA)                                                                                       \
    X(MAMBA_OUT, "mamba_out", MAMBA)                                                                                  \
    X(NGRAM_PROJ, "ngram_proj", NGRAMS)                                                                               \
    X(NGRAM_MIX, "ngram_mix", NGRAMS)                                                                                 \
    X(ROUTER, "norm_router", MOE)                                                                                     \
    X(UP, "experts_up", MOE)                                                                                          \
    X(DOWN, "experts_down", MOE)                                                                                      \
    X(GATE_UP, "norm_gate_up", MLP)                                                                                   \
    X(MLP_DOWN, "down", MLP)                                                                                          \
    X(HEAD, "head", NONE)                                                                                             \
    X(MTP, "mtp", MTP)

enum stage {
#define X(NAME, name, kind) STAGE_##NAME,
    STAGES(X)
#undef X
    STAGE_COUNT
};

static const char *const stage_names[STAGE_COUNT] = {
#define X(NAME, name, kind) name,
    STAGES(X)
#undef X
};

enum { ALL_STAGES = (1 << STAGE_COUNT) - 1 };

static inline int stage_in(unsigned stages, enum stage stage) {
    return stages >> stage & 1;
}
