/* layers/mlp/schedule.c: the kernels of a dense FFN in a step, for cuda/schedule.c, which says what a row means.

   SWIGLU: h. norm_gate_up releases its successor after its wait, as experts_up does: it bounds how far back kernels may still run. */

#define MLP_BUFFERS(ROW) ROW(SWIGLU, 0)

#define MLP_KERNELS(ROW)                                                                                                 \
    ROW(GATE_UP, "norm_gate_up", .stage = STAGE_GATE_UP, .release = RELEASE_LATE,                                        \
        .reads = BUFFER_X, .writes = BUFFER_SWIGLU, .polls = BUFFER_X)                                                   \
    ROW(MLP_DOWN, "down", .stage = STAGE_MLP_DOWN,                                                                       \
        .reads = BUFFER_SWIGLU | BUFFER_X, .writes = BUFFER_X, .tags = BUFFER_X)
