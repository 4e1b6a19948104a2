/* layers/deltanet/schedule.c: the kernels of a DeltaNet layer in a step, for cuda/schedule.c, which says what a row means. */

#define DELTANET_BUFFERS(ROW) ROW(S, 1) ROW(LOG, 1)

#define DELTANET_KERNELS(ROW)                                                                                            \
    ROW(IN_PROJ, "norm_in_proj", .stage = STAGE_IN_PROJ,                                                                 \
        .reads = BUFFER_X, .writes = BUFFER_PROJECTED, .polls = BUFFER_X, .polled_writes = BUFFER_PROJECTED,             \
        .prefetched = 1)                                                                                                 \
    ROW(DELTA, "conv_delta", .stage = STAGE_DELTA,                                                                       \
        .reads = BUFFER_PROJECTED, .writes = BUFFER_MIXED | BUFFER_S | BUFFER_LOG,                                       \
        .early_reads = BUFFER_STEP | BUFFER_S | BUFFER_LOG, .early_writes = BUFFER_S, .one_per_sm = 1)                   \
    ROW(OUT_PROJ, "gated_norm_out", .stage = STAGE_OUT_PROJ,                                                             \
        .reads = BUFFER_MIXED | BUFFER_X | BUFFER_PROJECTED | BUFFER_LOG | BUFFER_STEP, .writes = BUFFER_X | BUFFER_LOG, \
        .tags = BUFFER_X, .reads_without_tags = BUFFER_PROJECTED | BUFFER_LOG | BUFFER_STEP)
