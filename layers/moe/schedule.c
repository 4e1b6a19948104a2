/* layers/moe/schedule.c: the kernels of a mixture of experts in a step, for cuda/schedule.c, which says what a row means.

   ROUTER: the router's logits. SHARED: h and gate of the shared expert. ROUTING: experts and rows. H: of the routed experts. EXPERTS: where a
   layer's experts are, and slots of them, which experts_place writes in layers whose experts are in host memory, where experts_up polls logits beside
   it and reads the addresses after its wait; early in all others. experts_down may store the shared expert's output early, where that is apart. route runs in passes of more than STEP_ROWS rows alone. */

#define MOE_BUFFERS(ROW) ROW(ROUTER, 0) ROW(SHARED, 0) ROW(ROUTING, 0) ROW(H, 0) ROW(EXPERTS, 1)

#define MOE_KERNELS(ROW)                                                                                                 \
    ROW(ROUTER, "norm_router", .stage = STAGE_ROUTER,                                                                    \
        .reads = BUFFER_X, .writes = BUFFER_ROUTER | BUFFER_SHARED, .polls = BUFFER_X,                                   \
        .polled_writes = BUFFER_ROUTER | BUFFER_SHARED, .tags = BUFFER_ROUTER, .prefetched = 1)                          \
    ROW(PLACE, "experts_place", .stage = STAGE_ROUTER,                                                                   \
        .reads = BUFFER_ROUTER, .writes = BUFFER_EXPERTS, .early_reads = BUFFER_EXPERTS, .polls = BUFFER_ROUTER,         \
        .polled_writes = BUFFER_EXPERTS)                                                                                 \
    ROW(ROUTE, "route", .stage = STAGE_ROUTER,                                                                           \
        .reads = BUFFER_ROUTER | BUFFER_SHARED | BUFFER_X | BUFFER_EXPERTS, .writes = BUFFER_ROUTING | BUFFER_SHARED)    \
    ROW(UP, "experts_up", .stage = STAGE_UP, .release = RELEASE_LATE,                                                    \
        .reads = BUFFER_ROUTER | BUFFER_X | BUFFER_EXPERTS, .writes = BUFFER_ROUTING | BUFFER_H,                         \
        .early_reads = BUFFER_EXPERTS, .released = BUFFER_ROUTING, .polls = BUFFER_ROUTER, .prefetches = 1)              \
    ROW(DOWN, "experts_down", .stage = STAGE_DOWN,                                                                       \
        .reads = BUFFER_H, .writes = BUFFER_X, .early_reads = BUFFER_ROUTING | BUFFER_X | BUFFER_SHARED | BUFFER_EXPERTS, \
        .early_writes = BUFFER_OUTPUT, .tags = BUFFER_X, .prefetches = 1, .one_per_sm = 1)
