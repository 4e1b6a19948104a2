/* layers/mla/schedule.c: the kernels of a layer of multi-head latent attention in a step, for cuda/schedule.c, which says what a row means.

   LATENTS: the cache; NEW_LATENTS: its rows of this step. Queries are PROJECTED until they meet it; partials, and values made of them, are MIXED. */

#define MLA_BUFFERS(ROW) ROW(LATENTS, 1) ROW(NEW_LATENTS, 1)

#define MLA_KERNELS(ROW)                                                                                                 \
    ROW(LATENTS, "norm_latents", .stage = STAGE_LATENTS,                                                                 \
        .reads = BUFFER_X, .writes = BUFFER_PROJECTED, .polls = BUFFER_X, .prefetched = 1)                               \
    ROW(LATENT_QUERIES, "latent_queries", .stage = STAGE_LATENTS, .reads = BUFFER_PROJECTED, .writes = BUFFER_PROJECTED) \
    ROW(ABSORB, "absorb", .stage = STAGE_LATENTS,                                                                        \
        .reads = BUFFER_PROJECTED, .writes = BUFFER_PROJECTED | BUFFER_NEW_LATENTS, .early_reads = BUFFER_STEP, .prefetches = 1) \
    ROW(LATENT_ATTEND, "latent_attend", .stage = STAGE_LATENT_ATTEND,                                                    \
        .reads = BUFFER_PROJECTED | BUFFER_NEW_LATENTS, .writes = BUFFER_MIXED, .early_reads = BUFFER_STEP | BUFFER_LATENTS) \
    ROW(LATENT_VALUES, "latent_values", .stage = STAGE_LATENT_OUT,                                                       \
        .reads = BUFFER_MIXED, .writes = BUFFER_MIXED, .prefetched = 1)                                                  \
    ROW(LATENT_OUT, "latent_out", .stage = STAGE_LATENT_OUT,                                                             \
        .reads = BUFFER_MIXED | BUFFER_X, .writes = BUFFER_X, .tags = BUFFER_X, .one_per_sm = 1)
