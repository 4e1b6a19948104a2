/* session/spans.c: where the images of a timeline are, and which. Knows no session, and of a picture its hash.

   The tokens of an image are all the same id, whatever it shows. So a timeline is its ids and its spans: what compares timelines compares both,
   or keys. A key is a token's id or, of an image, a negative number made of its hash and the token's place in it.

   Positions (spec of the models, M-RoPE): text counts up on all three axes. Token k of an image that begins at position p, `columns` to a row,
   stands at (p, p + k / columns, p + k % columns); the text after it goes on at p + max(rows, columns). */

enum { IMAGE_HASH = 32 };        /* bytes: SHA-256 */

/* An image in a timeline. */
typedef struct image_span {
    int32_t start, count;        /* index of its first token; its tokens that are there: fewer than rows * columns where reading it was stopped */
    int32_t rows, columns;       /* of its tokens, in a plane */
    int32_t position;            /* of its first token, on all axes */
    unsigned char hash[IMAGE_HASH];
} image_span;

/* Those of a timeline, in its order. */
typedef struct image_spans {
    image_span *of;              /* [capacity] */
    int count, capacity;
} image_spans;

/* Takes the memory for so many in all. */
static int spans_reserve(image_spans *s, int count, mote_error *err) {
    if (count <= s->capacity) return MOTE_OK;
    image_span *more = (image_span *)realloc(s->of, (size_t)count * sizeof *more);
    if (!more) return fail_memory(err);
    s->of = more;
    s->capacity = count;
    return MOTE_OK;
}

static void spans_free(image_spans *s) {
    free(s->of);
    memset(s, 0, sizeof *s);
}

/* How many begin before token number `count`. */
static int spans_before(const image_spans *s, int count) {
    int n = s->count;
    while (n && s->of[n - 1].start >= count) n--;
    return n;
}

/* The tokens after the first `count` are others. */
static void spans_cut(image_spans *s, int count) {
    s->count = spans_before(s, count);
    if (!s->count) return;
    image_span *last = &s->of[s->count - 1];
    last->count = min_int(last->count, count - last->start);
}

/* Whether the first `count` tokens of two timelines have the same images. */
static int spans_equal(const image_spans *a, const image_spans *b, int count) {
    const int n = spans_before(a, count);
    if (n != spans_before(b, count)) return 0;
    for (int i = 0; i < n; i++) {
        const image_span *x = &a->of[i], *y = &b->of[i];
        const int left = count - x->start;
        if (x->start != y->start || min_int(x->count, left) != min_int(y->count, left) || x->rows != y->rows || x->columns != y->columns ||
            memcmp(x->hash, y->hash, sizeof x->hash)) return 0;
    }
    return 1;
}

/* Where token k of an image stands. */
static void span_position(const image_span *s, int k, int32_t position[ROW_AXES]) {
    position[0] = s->position;
    position[1] = s->position + k / s->columns;
    position[2] = s->position + k % s->columns;
}

/* Whether a saved span can be: after the one before, within a timeline of `count` tokens, at positions below `most`. */
static int span_is_sane(const image_span *s, const image_span *before, int count, int most) {
    const int64_t all = (int64_t)s->rows * s->columns, from = before ? (int64_t)before->start + before->count : 0;
    return s->start >= from && s->count >= 1 && s->rows >= 1 && s->columns >= 1 && all <= INT32_MAX && s->count <= all && (int64_t)s->start + s->count <= count &&
           s->position >= 0 && s->position <= s->start && (int64_t)s->position + max_int(s->rows, s->columns) <= most;
}

/* The key of token k of an image: 31 bits of a quarter of the hash, mixed with k so that no two tokens of it have the same bits (the mixing is
   splitmix64's). A dozen keys hold all of the hash. */
static int32_t span_key(const unsigned char hash[IMAGE_HASH], int k) {
    uint64_t z;
    memcpy(&z, hash + k % 4 * 8, sizeof z);
    z += ((uint64_t)k + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int32_t)-1 - (int32_t)((z ^ z >> 31) & 0x7fffffff);
}
