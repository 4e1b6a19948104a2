/* layers/ngrams/schedule.c: the kernels of a layer of n-gram embeddings in a step, for cuda/schedule.c, which says what a row means. The rows of the
   table are there before the step begins. MEMORY: what the layer remembers. */

#define NGRAMS_BUFFERS(ROW) ROW(NGRAM_MEMORY, 1)

#define NGRAMS_KERNELS(ROW)                                                                                              \
    ROW(NGRAM_PROJ, "ngram_proj", .stage = STAGE_NGRAM_PROJ, .writes = BUFFER_PROJECTED)                                 \
    ROW(NGRAM_GATE, "ngram_gate", .stage = STAGE_NGRAM_MIX, .reads = BUFFER_PROJECTED | BUFFER_X, .writes = BUFFER_MIXED) \
    ROW(NGRAM_ADD, "ngram_add", .stage = STAGE_NGRAM_MIX,                                                                \
        .reads = BUFFER_PROJECTED | BUFFER_MIXED | BUFFER_X | BUFFER_STEP | BUFFER_NGRAM_MEMORY,                         \
        .writes = BUFFER_X | BUFFER_NGRAM_MEMORY)
