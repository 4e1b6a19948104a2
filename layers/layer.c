/* layers/layer.c: what all kinds of layers are given, and give: token rows, capacity, pieces of state. The
   kinds themselves are listed in layers/table.c. */

union layer_state;               /* of a mixer: layers/kinds.c */

/* Consecutive rows of one session. What a mixer does with them depends on these alone, whatever other rows are beside them. */
typedef struct token_sequence {
    int first, T;                /* rows first .. first + T - 1 of the table */
    int replay;                  /* rows of the block before this one that were accepted, where it is logged */
    const union layer_state *states;                        /* of the session, one for each layer */
} token_sequence;

/* T token rows on their way through the layers, on the CPU: those of `count` sequences, one after the other. */
typedef struct token_rows {
    pool *threads;
    const token_row *table;      /* [T] */
    int T;
    const token_sequence *of;
    int count;
    int state_only;              /* what the layer remembers of the rows is all that is wanted: x is left as it is */
    int given;                   /* u is there already, not made of x: with state_only */
    int both_ways;               /* a row attends to all rows of its sequence, not to those up to itself alone */
    int hidden;
    float eps;                   /* of norms */
    float *x, *y;                /* [T][streams][hidden] the walk's: the residual; [T][hidden] outputs before they are added to it, if norms, streams
                                    or other ranks come between */
    float *u, *out;              /* [T][hidden] a sublayer's: what it is given; to which it adds its output */
    float *router_u, *shared_u, *shared_out;                /* the same of the branches of an FFN, where these have norms of their own; else u, u, out */
    float *branches;             /* [3][T][hidden] memory for these; NULL: no FFN needs it */
    const struct stream_scratch *mix;                       /* memory of what mixes streams */
    int32_t *chosen;             /* where an FFN of experts says how many different ones the rows choose, the shared one not counted; NULL: nowhere */
    const float *looked_up;      /* [T][ngrams_width] of a table of n-grams: the rows' own */
    peer *ranks;                 /* of which this is one: outputs are shares of a sum; NULL: there is no other */
    float *shares;               /* [ranks][T][hidden] of all */
} token_rows;

/* The capacity of a session. */
typedef struct capacity {
    int context, rows, threads;  /* tokens; token rows of a call; threads that compute */
    dtype kv;                    /* type of keys and values */
    int layers;                  /* of the model, the MTP layer included */
    int window;                  /* the largest of the model's: layers with one hold what it needs, in rings. 0: all hold the context */
    int ring_rows;               /* most token rows that such a layer appends before it attends the first of them; 0: all of a call */
} capacity;

/* A state is laid out for a multiple of so many tokens: so what lies after it moves by whole cache lines as a context grows. */
enum { KV_GRANULE = 64 };

/* How rows of a block that are not accepted leave a mixer's state. */
enum rollback {
    ROLLBACK_REPLAY,             /* a block is logged; the next one repeats its accepted rows */
    ROLLBACK_TRUNCATE            /* rows after the end are overwritten */
};

/* A piece of a layer's state: one thing, or a row for each token (ROLLBACK_TRUNCATE). Rows of a layer with a window may be fewer than the
   context, a ring: then a token's row takes the place of one that no row computed from here on sees. */
typedef struct state_piece {
    const char *name;            /* for messages: "keys" */
    void *at;
    size_t size;                 /* bytes; of one token's row, if there are rows */
    int rows;                    /* it has space for so many; that of index i is number i mod rows. 0: it is one thing */
    int window;                  /* how many a token sees, its own among them; 0: all up to its own */
    int group;                   /* so many tokens' rows are one thing, which is there when the last of them is; 1: each is by itself */
} state_piece;

enum { STATE_PIECES = 4, LOG_PIECES = 4 };     /* most pieces of a state, and of a log */

static state_piece state_piece_of(const char *name, void *at, size_t size, int rows, int window) {
    state_piece p = {.name = name, .at = at, .size = size, .rows = rows, .window = window, .group = 1};
    return p;
}

/* Of the rows of `count` tokens those that are there. */
static int piece_end(const state_piece *p, int count) {
    return count - count % p->group;
}

/* Where the row of an index is, or all of a piece that is one thing. *n: how many rows, up to `end`, lie there one after the other. */
static char *piece_rows(const state_piece *p, int index, int end, int *n) {
    const int at = p->rows ? index % p->rows : 0;
    *n = p->rows ? min_int(end - index, p->rows - at) : 1;
    return (char *)p->at + (size_t)at * p->size;
}

/* The first row that the token of index `end` sees. */
static int piece_seen_from(const state_piece *p, int end) {
    return p->window ? max_int(end - (p->window - 1), 0) : 0;
}
