/* layers/attention/schedule.c: the kernels of an attention layer in a step, for cuda/schedule.c, which says what a row means. */

#define ATTENTION_BUFFERS(ROW) ROW(KV, 1)

#define ATTENTION_KERNELS(ROW)                                                                                           \
    ROW(QKV, "norm_qkv", .stage = STAGE_QKV,                                                                             \
        .reads = BUFFER_X, .writes = BUFFER_PROJECTED, .polls = BUFFER_X, .prefetched = 1)                               \
    ROW(APPEND, "append", .stage = STAGE_ATTEND, .release = RELEASE_NEVER,                                               \
        .reads = BUFFER_PROJECTED | BUFFER_STEP, .writes = BUFFER_KV)                                                    \
    ROW(ATTEND, "rope_attend", .stage = STAGE_ATTEND,                                                                    \
        .reads = BUFFER_PROJECTED, .writes = BUFFER_MIXED | BUFFER_KV, .early_reads = BUFFER_STEP | BUFFER_KV)           \
    ROW(O_PROJ, "out", .stage = STAGE_O_PROJ,                                                                            \
        .reads = BUFFER_MIXED | BUFFER_X, .writes = BUFFER_X, .tags = BUFFER_X, .one_per_sm = 1)
