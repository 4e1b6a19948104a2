/* layers/attention/schedule.c: the kernels of an attention layer in a step, for cuda/schedule.c, which says what a row means. An indexed layer has
   index_scores, index_choose and index_attend in the place of append and rope_attend; scores and lists are MIXED. */

#define ATTENTION_BUFFERS(ROW) ROW(KV, 1)

#define ATTENTION_KERNELS(ROW)                                                                                           \
    ROW(QKV, "norm_qkv", .stage = STAGE_QKV,                                                                             \
        .reads = BUFFER_X, .writes = BUFFER_PROJECTED, .polls = BUFFER_X, .prefetched = 1)                               \
    ROW(APPEND, "append", .stage = STAGE_ATTEND, .release = RELEASE_NEVER,                                               \
        .reads = BUFFER_PROJECTED | BUFFER_STEP, .writes = BUFFER_KV)                                                    \
    ROW(ATTEND, "rope_attend", .stage = STAGE_ATTEND,                                                                    \
        .reads = BUFFER_PROJECTED, .writes = BUFFER_MIXED | BUFFER_KV, .early_reads = BUFFER_STEP | BUFFER_KV)           \
    ROW(INDEX_SCORES, "index_scores", .stage = STAGE_ATTEND,                                                             \
        .reads = BUFFER_PROJECTED, .writes = BUFFER_MIXED | BUFFER_KV, .early_reads = BUFFER_STEP | BUFFER_KV)           \
    ROW(INDEX_CHOOSE, "index_choose", .stage = STAGE_ATTEND,                                                             \
        .reads = BUFFER_MIXED, .writes = BUFFER_MIXED, .early_reads = BUFFER_STEP)                                       \
    ROW(INDEX_ATTEND, "index_attend", .stage = STAGE_ATTEND,                                                             \
        .reads = BUFFER_PROJECTED | BUFFER_KV | BUFFER_MIXED, .writes = BUFFER_MIXED, .early_reads = BUFFER_STEP)        \
    ROW(O_PROJ, "out", .stage = STAGE_O_PROJ,                                                                            \
        .reads = BUFFER_MIXED | BUFFER_X, .writes = BUFFER_X, .tags = BUFFER_X, .one_per_sm = 1)
