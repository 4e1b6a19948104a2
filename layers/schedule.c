/* layers/schedule.c: the kernels of a step that are of no layer kind, and the buffers that all share, for cuda/schedule.c, which says
   what a row means. A kind's are in its folder's schedule.c.

   STEP: step_parameters. X: the residual. PROJECTED: a mixer's projections of x. MIXED: what the mixer makes of them. HIDDEN: final
   rows, for the MTP layer. MTP_X: its residual, or a block drafter's and what that makes of taps. OUTPUT: a sublayer's output that is not added to x as it is, of one with branches both, of one of
   several ranks this rank's share; add_output, sum_output and send_rows have the stage of the kernel before them. Of residual streams X is these and
   what is read of them, which alone is tagged and polled; MIXTURE their sums and shares. */

#define STEP_BUFFERS(ROW)                                                                                                \
    ROW(STEP, 0) ROW(X, 0) ROW(PROJECTED, 0) ROW(MIXED, 0) ROW(LOGITS, 0) ROW(TOPK, 0) ROW(HIDDEN, 0) ROW(MTP_IN, 0) ROW(MTP_X, 0) \
    ROW(OUTPUT, 0) ROW(MIXTURE, 0)

#define STEP_KERNELS(ROW)                                                                                                \
    ROW(EMBED, "embed", .stage = STAGE_EMBED,                                                                            \
        .reads = BUFFER_STEP | BUFFER_HIDDEN, .writes = BUFFER_X | BUFFER_HIDDEN)                                        \
    ROW(SEND, "send_rows", .stage = STAGE_COUNT, .reads = BUFFER_X)                                                      \
    ROW(ADD_OUTPUT, "add_output", .stage = STAGE_COUNT,                                                                  \
        .reads = BUFFER_OUTPUT | BUFFER_X, .writes = BUFFER_X, .tags = BUFFER_X)                                         \
    ROW(SUM_OUTPUT, "sum_output", .stage = STAGE_COUNT,                                                                  \
        .reads = BUFFER_OUTPUT | BUFFER_X, .writes = BUFFER_OUTPUT | BUFFER_X, .tags = BUFFER_X)                         \
    ROW(STREAMS_DOWN, "streams_down", .stage = STAGE_STREAMS,                                                            \
        .reads = BUFFER_X | BUFFER_OUTPUT | BUFFER_MTP_X | BUFFER_MIXTURE, .writes = BUFFER_MIXTURE, .prefetched = 1)    \
    ROW(STREAMS_UP, "streams_up", .stage = STAGE_STREAMS,                                                                \
        .reads = BUFFER_X | BUFFER_OUTPUT | BUFFER_MTP_X | BUFFER_MIXTURE, .writes = BUFFER_X | BUFFER_MIXTURE,          \
        .tags = BUFFER_X, .reads_without_tags = BUFFER_MIXTURE)                                                          \
    ROW(STREAMS_WRITE, "streams_write", .stage = STAGE_STREAMS,                                                          \
        .reads = BUFFER_X | BUFFER_OUTPUT | BUFFER_MIXTURE, .writes = BUFFER_X)                                          \
    ROW(HEAD, "head", .stage = STAGE_HEAD, .reads = BUFFER_X, .writes = BUFFER_LOGITS, .prefetched = 1)                  \
    ROW(GATHER, "gather_logits", .stage = STAGE_HEAD, .reads = BUFFER_LOGITS, .writes = BUFFER_LOGITS)                    \
    ROW(CAP, "cap", .stage = STAGE_HEAD, .reads = BUFFER_LOGITS, .writes = BUFFER_LOGITS)                                 \
    ROW(MTP_ROWS, "mtp_rows", .stage = STAGE_MTP,                                                                        \
        .reads = BUFFER_X | BUFFER_STEP | BUFFER_HIDDEN, .writes = BUFFER_HIDDEN | BUFFER_MTP_IN)                        \
    ROW(DRAFT_ROW, "draft_row", .stage = STAGE_MTP,                                                                      \
        .reads = BUFFER_MTP_X | BUFFER_STEP | BUFFER_HIDDEN, .writes = BUFFER_MTP_IN)                                    \
    ROW(TAP, "tap", .stage = STAGE_MTP, .reads = BUFFER_X | BUFFER_MTP_X, .writes = BUFFER_MTP_X)                       \
    ROW(FC, "mtp_fc", .stage = STAGE_MTP, .reads = BUFFER_MTP_IN, .writes = BUFFER_MTP_X)                                \
    ROW(TOPK_PARTIAL, "pick", .stage = STAGE_HEAD, .reads = BUFFER_LOGITS, .writes = BUFFER_TOPK)                        \
    ROW(SAMPLE_TOKEN, "draw", .stage = STAGE_HEAD, .release = RELEASE_NEVER,                                             \
        .reads = BUFFER_TOPK | BUFFER_STEP, .writes = BUFFER_STEP)                                                       \
    ROW(ACCEPT, "accept", .stage = STAGE_HEAD, .release = RELEASE_NEVER,                                                 \
        .reads = BUFFER_TOPK | BUFFER_STEP, .writes = BUFFER_STEP)
