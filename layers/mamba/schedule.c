/* layers/mamba/schedule.c: the kernels of a Mamba-2 layer in a step, for cuda/schedule.c, which says what a row means. S and LOG are
   DeltaNet's: no layer has both. norm_mamba_in does not poll x right after mamba_out, which may still read what the layer before has projected, for
   the log. */

#define MAMBA_BUFFERS(ROW)

#define MAMBA_KERNELS(ROW)                                                                                               \
    ROW(MAMBA_IN, "norm_mamba_in", .stage = STAGE_MAMBA_IN,                                                              \
        .reads = BUFFER_X, .writes = BUFFER_PROJECTED, .polls = BUFFER_X, .polled_writes = BUFFER_PROJECTED,             \
        .prefetched = 1)                                                                                                 \
    ROW(SCAN, "conv_scan", .stage = STAGE_SCAN,                                                                          \
        .reads = BUFFER_PROJECTED, .writes = BUFFER_MIXED | BUFFER_S | BUFFER_LOG,                                       \
        .early_reads = BUFFER_STEP | BUFFER_S | BUFFER_LOG, .early_writes = BUFFER_S, .one_per_sm = 1)                   \
    ROW(MAMBA_OUT, "mamba_out", .stage = STAGE_MAMBA_OUT,                                                                \
        .reads = BUFFER_MIXED | BUFFER_X | BUFFER_PROJECTED | BUFFER_LOG | BUFFER_STEP, .writes = BUFFER_X | BUFFER_LOG, \
        .tags = BUFFER_X, .reads_without_tags = BUFFER_PROJECTED | BUFFER_LOG | BUFFER_STEP, .prefetches = 1)
