/* layers/attention/chunks.c: which positions attention on a GPU meets, where, and which of them a row sees. Index arithmetic alone, without CUDA:
   tests/cuda/test_window.c tries it out.

   A step deals positions in chunks of ATTEND_CHUNK: chunk c of a KV head is split c % splits' (layers/attention/decode.cu). A prompt's rows meet
   them in tiles (layers/attention/prefill.cu). A row sees the last `window` positions up to its own, INT_MAX: all; a softmax begins with
   its head's sink.

   All of this is of positions alone, and so are a row's bits. Where keys and values lie in a ring (attention_held), they are found at their
   position modulo its rows: whole chunks, so that neither a chunk nor a tile is cut in two. */

enum {
    ATTEND_CHUNK = 64,           /* positions */
    ATTEND_CLUSTER = 8           /* blocks of a thread block cluster: neighbouring splits; also slices of a head */
};

/* A shape's window as kernels have it. */
static inline int attend_window(int window) {
    return window ? window : INT_MAX;
}

/* Splits of a layer, of `most`: with a window as many as hold what the rows of a step see, in whole clusters. */
static inline int attend_splits(int window, int most) {
    if (window >= most * ATTEND_CHUNK) return most;
    const int chunks = (window + STEP_ROWS - 1 + ATTEND_CHUNK - 2) / ATTEND_CHUNK + 1;
    const int splits = (chunks + ATTEND_CLUSTER - 1) / ATTEND_CLUSTER * ATTEND_CLUSTER;
    return splits < most ? splits : most;
}

/* The first position that the row at this one sees. */
BOTH int attend_window_first(int position, int window) {
    return window == INT_MAX || position < window ? 0 : position + 1 - window;
}

/* The cache's row that has a position's keys and values. ring: its rows; INT_MAX: it has all positions. */
BOTH int attend_row(int position, int ring) {
    return position < ring ? position : (int)((uint32_t)position % (uint32_t)ring);
}

/* The position that row 0 of a ring had, or has, before or where a prompt's first row, of this index, begins to see. */
static inline int attend_ring_first(int index, int window, int ring) {
    return attend_window_first(index, window) / ring * ring;
}

/* attend_row of a position that is not so far after that one that the ring's end would be met twice. */
BOTH int attend_row_from(int first, int position, int ring) {
    return position - first < ring ? position - first : position - first - ring;
}

/* Rows of a prompt, from this index on, that may be appended to a ring before they are attended: they leave the window before them. They end
   with a chunk. */
static inline int attend_piece(int index, int window, int ring) {
    return ring == INT_MAX ? INT_MAX : (index + ring - (window - 1)) / ATTEND_CHUNK * ATTEND_CHUNK - index;
}

/* The first chunk from `from` on that is this split's. */
BOTH int attend_own_chunk(int from, int split, int splits) {
    if (!from) return split;
    const int chunk = from / splits * splits + split;
    return chunk < from ? chunk + splits : chunk;
}

/* Whether a row whose last position is `last` does not see this one: it is after that, or before the window. */
BOTH int attend_hidden(int last, int position, int window) {
    return (uint32_t)(last - position) >= (uint32_t)window;
}

/* Whether a tile of `keys` positions has some after the first row of a block, at position `first`. */
BOTH int attend_tile_after(int tile, int keys, int first) {
    return (tile + 1) * keys > first;
}

/* Whether it has some before the window of a row of a block, whose last one is at end - 1. */
BOTH int attend_tile_before(int tile, int keys, int end, int window) {
    return window < INT_MAX && tile * keys < end - window;
}

/* The largest score, for exp2, that a head's softmax begins with: its sink. */
BOTH float attend_first_top(const float *sinks, int head) {
    return sinks ? sinks[head] * 1.44269504f : -INFINITY;
}

/* What a weight exp2(score - m) is worth on tensor cores: with keys in FP8 2^14, so that small ones keep their bits in F16. */
BOTH float attend_unit(int fp8) {
    return fp8 ? 16384.0f : 1.0f;
}
