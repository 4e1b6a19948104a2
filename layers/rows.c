/* layers/rows.c: token rows before they are computed. Knows no kind of layer and no session. */

enum { ROW_AXES = 3 };           /* of a position: time, height, width */

/* A row of a pass's table, which says of each token row what is known before it is computed. Who wants rows computed builds their part
   of the table, index after index; all that asks whose a row is, where it stands or what its token is, asks here.

   Index and position are one number until there are images. The rows of an image stand side by side in a plane, so their positions
   differ by axis, and those of the text after it are less than the indexes by a constant, the lag. */
typedef struct token_row {
    int32_t sequence;            /* of the pass: a session's rows in it */
    int32_t index;               /* rows of its session before it: where its keys and values lie. It sees those up to its own */
    int32_t position[ROW_AXES];  /* by which queries and keys are rotated; of text the same on all axes */
    int32_t id;                  /* of its token; -1: the device has that already, or will choose it */
    const float *embedding;      /* [hidden] in place of the token's, in the host's memory; NULL: the token's */
} token_row;

/* T rows of text from `index` on, whose positions are less than that by the lag. ids NULL: the device's. */
static void text_rows(token_row *to, const int32_t *ids, int T, int index, int lag) {
    for (int t = 0; t < T; t++) {
        const int position = index + t - lag;
        const token_row r = {.sequence = 0, .index = index + t, .position = {position, position, position}, .id = ids ? ids[t] : -1,
                             .embedding = NULL};
        to[t] = r;
    }
}

/* Whether a row is one of text, its token's. */
static inline int row_is_text(const token_row *r) {
    return r->position[1] == r->position[0] && r->position[2] == r->position[0] && !r->embedding;
}

/* The same, and the row before it, which is r[-1], is one position before it. */
static inline int row_follows_text(const token_row *r) {
    int follows = row_is_text(r);
    for (int a = 0; a < ROW_AXES && r->index > 0 && follows; a++) follows = r[-1].position[a] == r->position[a] - 1;
    return follows;
}

/* The index of a row of text less its position. */
static inline int row_lag(const token_row *r) {
    return r->index - r->position[0];
}

/* The row of text n rows after r, which is one, too. */
static inline token_row text_after(const token_row *r, int n, int32_t id) {
    token_row next;
    text_rows(&next, &id, 1, r->index + n, row_lag(r));
    return next;
}
