/* generate/copies.c: drafts without a model: when the last tokens of a timeline stand earlier in it, what followed them there may
   follow again. So it is in edits of code, in quotes, in JSON, in what a tool has returned.

   The index has, for the hash of COPY_SHORT and of COPY_LONG tokens in a row, where these ended last. It is a table of as many places
   as the context, 2 MiB for 262,144 tokens, and takes two stores a token. A hash of other tokens, or of tokens that are no longer in
   the timeline, does no harm: a place found is compared with the timeline, token by token, backwards. So nothing is undone when the
   timeline is cut back: it only says from where on its tokens are to be indexed again (mote_session.cut). */

typedef struct copy_index {
    int32_t *ends_short, *ends_long;                        /* [mask + 1] by a hash of some tokens, where they ended; 0: nowhere */
    uint32_t mask;
    int indexed;                                            /* tokens of the timeline that are in them */
} copy_index;

enum { COPY_SHORT = 3, COPY_LONG = 8, COPY_MOST = 64 };     /* tokens; COPY_MOST: no more are compared */

/* Places of a hash table for so many tokens: a power of two. */
static uint32_t copies_places(int context) {
    uint32_t n = 64;
    while (n < (uint32_t)context) n *= 2;
    return n;
}

static void copies_layout(layout *l, copy_index *c, int context) {
    const uint32_t places = copies_places(context);
    c->ends_short = (int32_t *)(void *)layout_alloc(l, places);
    c->ends_long = (int32_t *)(void *)layout_alloc(l, places);
    c->mask = places - 1;
}

/* A timeline, and tokens that are to follow it. */
typedef struct token_tail {
    const int32_t *tokens, *after;
    int count;                   /* of tokens */
} token_tail;

static int32_t tail_at(const token_tail *t, int i) {
    return i < t->count ? t->tokens[i] : t->after[i - t->count];
}

/* The place of the n tokens before `end`. */
static uint32_t copies_hash(const copy_index *c, const token_tail *t, int end, int n) {
    uint64_t h = (uint64_t)n;
    for (int i = end - n; i < end; i++) h = (h ^ (uint32_t)tail_at(t, i)) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32) & c->mask;
}

/* Indexes the tokens up to `end` that are not yet. */
static void copies_index(copy_index *c, const token_tail *t, int end) {
    for (int at = c->indexed + 1; at <= end; at++) {
        if (at >= COPY_SHORT) c->ends_short[copies_hash(c, t, at, COPY_SHORT)] = at;
        if (at >= COPY_LONG) c->ends_long[copies_hash(c, t, at, COPY_LONG)] = at;
    }
    c->indexed = max_int(c->indexed, end);
}

/* Tokens after the first `count` may have become others. */
static void copies_cut(copy_index *c, int count) {
    c->indexed = min_int(c->indexed, count);
}

/* How many tokens before `at` are those before `end`. */
static int copies_match(const token_tail *t, int at, int end) {
    int n = 0;
    while (n < at && n < COPY_MOST && tail_at(t, at - 1 - n) == tail_at(t, end - 1 - n)) n++;
    return n;
}

/* Where tokens ended that are the same as the last ones of the timeline and ids[0..given-1]: *length of them, at least COPY_SHORT;
   0: nowhere. */
static int copies_find(copy_index *c, const int32_t *tokens, int count, const int32_t *ids, int given, int *length) {
    const token_tail t = {tokens, ids, count};
    const int end = count + given;
    int best = 0;
    *length = COPY_SHORT - 1;
    copies_index(c, &t, end - 1);                           /* what may be copied has a token after it */
    for (int i = 0; i < 2; i++) {
        const int n = i ? COPY_SHORT : COPY_LONG;
        if (end < n) continue;
        const int at = (i ? c->ends_short : c->ends_long)[copies_hash(c, &t, end, n)];
        const int same = at && at < end ? copies_match(&t, at, end) : 0;
        if (same > *length) best = at, *length = same;
    }
    return best;
}

/* ids[given..given+n-1] = what followed the tokens that ended at `at`. */
static void copies_take(const int32_t *tokens, int count, int32_t *ids, int given, int at, int n) {
    const token_tail t = {tokens, ids, count};
    for (int i = 0; i < n; i++) ids[given + i] = tail_at(&t, at + i);
}
