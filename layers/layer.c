/* layers/layer.c: what all kinds of layers are given, and give: token rows, capacity, pieces of state, traffic. The
   kinds themselves are listed in layers/kinds.c. */

union layer_state;               /* of a mixer: layers/kinds.c */

enum { ROW_AXES = 3 };           /* of a position: time, height, width */

/* A row of a pass's table, which says of each token row what is known before it is computed. Who wants rows computed builds their part
   of the table, index after index; all that asks whose a row is, where it stands or what its token is, asks here.

   Index and position are one number until there are images. The rows of an image stand side by side in a plane, so their positions
   differ by axis, and those of the text after it lag behind the indexes by a constant. */
typedef struct token_row {
    int32_t sequence;            /* of the pass: a session's rows in it */
    int32_t index;               /* rows of its session before it: where its keys and values lie. It sees those up to its own */
    int32_t position[ROW_AXES];  /* by which queries and keys are rotated; of text the same on all axes */
    int32_t id;                  /* of its token; -1: the device has that already, or will choose it */
    const float *embedding;      /* [hidden] in place of the token's, in the device's memory; NULL: the token's */
} token_row;

/* T rows of text from `index` on, whose positions lag behind that. ids NULL: the device's. */
static void text_rows(token_row *to, const int32_t *ids, int T, int index, int lag) {
    for (int t = 0; t < T; t++) {
        const int position = index + t - lag;
        const token_row r = {.sequence = 0, .index = index + t, .position = {position, position, position}, .id = ids ? ids[t] : -1,
                             .embedding = NULL};
        to[t] = r;
    }
}

/* How far the position of a row of text lags behind its index. */
static int row_lag(const token_row *r) {
    return r->index - r->position[0];
}

/* The row of text n rows after r, which is one, too. */
static token_row text_after(const token_row *r, int n, int32_t id) {
    token_row next;
    text_rows(&next, &id, 1, r->index + n, row_lag(r));
    return next;
}

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
    float *x;                    /* [T][hidden] the residual, to which a layer adds */
    float *u;                    /* [T][hidden] scratch: the normalised rows */
} token_rows;

/* The capacity of a session. */
typedef struct capacity {
    int context, rows, threads;  /* tokens; token rows of a call; threads that compute */
    dtype kv;                    /* type of keys and values */
    int layers;                  /* of the model, the MTP layer included */
} capacity;

/* A state is laid out for a multiple of so many tokens: so what lies after it moves by whole cache lines as a context grows. */
enum { KV_GRANULE = 64 };

/* How rows of a block that are not accepted leave a mixer's state. */
enum rollback {
    ROLLBACK_REPLAY,             /* a block is logged; the next one repeats its accepted rows */
    ROLLBACK_TRUNCATE            /* rows after the end are overwritten */
};

/* A piece of a layer's state. */
typedef struct state_piece {
    const char *name;            /* for messages: "keys" */
    void *at;
    size_t size;                 /* bytes; with rows set, of one token */
    int rows;                    /* there is one for each token: ROLLBACK_TRUNCATE */
} state_piece;

enum { STATE_PIECES = 2, LOG_PIECES = 4 };     /* most pieces of a state, and of a log */

/* The memory traffic of a decode step depends on: */
typedef struct traffic {
    int experts;                 /* distinct experts of the step */
    int length;                  /* tokens whose keys and values are read */
    dtype kv;
} traffic;

static state_piece state_piece_of(const char *name, void *at, size_t size, int rows) {
    state_piece p;
    p.name = name;
    p.at = at;
    p.size = size;
    p.rows = rows;
    return p;
}

static int max_int(int a, int b) {
    return a > b ? a : b;
}

static int min_int(int a, int b) {
    return a < b ? a : b;
}
