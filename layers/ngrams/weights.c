/* layers/ngrams/weights.c: what a layer of n-gram embeddings is: its numbers and its tensors; which rows of its table a token has. */

/* streams: of the residual. grams: tokens of the longest n-gram; each of 2, 3, .. tokens has `heads` rows in the table, of row_size numbers.
   taps: of conv1d, which are `grams` tokens apart. base: what sizes of heads begin at. seed, vocab, number: of the factors; number: which of the
   model's layers of n-grams it is. eos: the token that no n-gram goes back beyond. table_rows: of the table, in parts of the same size. */
#define NGRAMS_FIELDS(X)                                                                                                             \
    X(int,   hidden,      MAX,  NONE,        "")                                                                                     \
    X(int,   streams,     MAX,  SET(NGRAMS), "")                                                                                     \
    X(int,   grams,       MAX,  NONE,        "ngram_size")                                                                           \
    X(int,   heads,       MAX,  NONE,        "heads_per_ngram")                                                                      \
    X(int,   row_size,    MAX,  NONE,        "row_size")                                                                             \
    X(int,   taps,        MAX,  NONE,        "")                                                                                     \
    X(float, eps,         NONE, NONE,        "")                                                                                     \
    X(int,   base,        NONE, NONE,        "")                                                                                     \
    X(int,   seed,        NONE, NONE,        "")                                                                                     \
    X(int,   vocab,       NONE, NONE,        "")                                                                                     \
    X(int,   number,      NONE, NONE,        "")                                                                                     \
    X(int,   eos,         NONE, NONE,        "")                                                                                     \
    X(int,   table_rows,  MAX,  NONE,        "table_rows")                                                                           \
    X(int,   table_parts, NONE, NONE,        "")
SHAPE(NGRAMS, ngrams)

enum { MAX_GRAMS = 8, MAX_NGRAM_ROWS = 64, MAX_NGRAM_TAPS = 64 };      /* tokens of an n-gram; rows of the table that a token has */

/* How n-grams are hashed: follows from the shape (ngrams_hash_of), and is in the checkpoint's files, too. */
typedef struct ngrams_hash {
    int64_t factor[MAX_GRAMS];                 /* of a token, of the one before it, ... */
    int64_t size[MAX_NGRAM_ROWS], first[MAX_NGRAM_ROWS];        /* of each head: its rows in the table, and the first of them */
} ngrams_hash;

typedef struct ngrams_weights {
    ngrams_shape shape;
    ngrams_hash hash;
    matrix key_proj, value_proj;               /* [streams][hidden][ngrams_width], [hidden][ngrams_width] */
    const float *norm_key, *norm_query, *norm_conv;             /* [streams][hidden] */
    const float *conv1d;                       /* [streams][hidden][taps], the last tap is the present */
} ngrams_weights;

/* Rows of the table that a token has. */
static inline int ngrams_rows(const ngrams_shape *s) {
    return (s->grams - 1) * s->heads;
}

/* Numbers of all of them. */
static inline int ngrams_width(const ngrams_shape *s) {
    return ngrams_rows(s) * s->row_size;
}

/* Tokens before a row on which its convolution depends. */
static inline int ngrams_reach(const ngrams_shape *s) {
    return s->grams * (s->taps - 1);
}

static uint64_t ngrams_scramble(uint64_t z) {  /* splitmix64 */
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int is_prime(int n) {
    int k = 2;
    while (k <= n / k && n % k) k++;
    return n > 1 && k > n / k;
}

/* Heads have the primes from `base` on as sizes, those of a layer's number 1 come after those of number 0. Factors are odd, and so small that
   a token's product is positive. */
static void ngrams_hash_of(const ngrams_shape *s, ngrams_hash *to) {
    const uint64_t half = (uint64_t)(INT64_MAX / s->vocab / 2 > 1 ? INT64_MAX / s->vocab / 2 : 1);
    const int rows = ngrams_rows(s);
    int64_t first = 0;
    int prime = s->base - 1;
    memset(to, 0, sizeof *to);
    for (int k = 0; k < s->grams; k++) {
        const uint64_t seed = (uint64_t)s->seed + 10007u * (uint64_t)s->number + 0x9e3779b97f4a7c15u * (uint64_t)(k + 1);
        to->factor[k] = (int64_t)(2 * (ngrams_scramble(seed) % half) + 1);
    }
    for (int h = -s->number * rows; h < rows; h++) {
        do prime++;
        while (!is_prime(prime));
        if (h < 0) continue;
        to->size[h] = prime;
        to->first[h] = first;
        first += prime;
    }
}

/* rows[ngrams_rows] of the table that a token has. ids: [grams] the token, the one before it, ...; -1: there is none. What is before an
   end of text, or the beginning, counts as one. */
static void ngrams_numbers(const ngrams_weights *w, const int32_t *ids, int64_t *rows) {
    const ngrams_shape *s = &w->shape;
    uint64_t mixed = (uint64_t)ids[0] * (uint64_t)w->hash.factor[0];
    int ended = 0;
    for (int k = 1; k < s->grams; k++) {
        ended |= ids[k] < 0 || ids[k] == s->eos;
        mixed ^= (uint64_t)(ended ? s->eos : ids[k]) * (uint64_t)w->hash.factor[k];
        for (int h = (k - 1) * s->heads; h < k * s->heads; h++) {
            const int64_t rest = (int64_t)mixed % w->hash.size[h];
            rows[h] = (rest < 0 ? rest + w->hash.size[h] : rest) + w->hash.first[h];
        }
    }
}

static inline feature_set ngrams_features(const ngrams_weights *w) {
    (void)w;
    return 0;
}

static const char *ngrams_unsupported_reason(const ngrams_shape *s) {
    return s->hidden % 4 || ngrams_width(s) % 4 ? "hidden sizes or rows of a table that are no multiples of 4" : NULL;
}
