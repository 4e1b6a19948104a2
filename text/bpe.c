/* text/bpe.c: BPE, words -> ids, and the added tokens that are found in the text before. It works on the
   tables of a tokenizer, and knows nothing of the file they come from (tokenizer_file.c) or of chat formats.

   A word's bytes are its first tokens (byte-level BPE), or its characters (SentencePiece's BPE: one that is no token is its
   bytes). Then the neighbours whose merge has the lowest rank are joined, again and again.
   tokenizer.json writes bytes as letters of a 256-letter alphabet; here tokens are plain bytes from the start. Ids come
   from the vocabulary alone: ranks and ids are not in the same order in every model. Added tokens are found in the text
   before anything else, those marked "normalized" between these and after normalisation, their own texts normalised too: where that
   puts a space in front, such a token is found only after a space or at a piece's beginning, which it then includes.

   Text from outside (a user's, a tool's) never becomes an added token. Those steer the model: "</tool_response>" in a
   tool's answer must stay text. The caller says which ranges of a text are from outside, and an added token is found
   only where none of its bytes is in one. What lies between two added tokens is normalised and split into words as one
   piece, whoever wrote it, so text in which no added token is named has the same ids with any ranges. Merges that end
   in an added token are left out: with its text cut out first, trusted text never gets to them. (A token of one byte
   that the file lists as added is still the only way to write that byte.)
   White space alone steers nothing: an added token that is no more, as Gemma 3 has them for indentation, is text, and found in any. */

enum { TOKEN_EXISTS = 1, TOKEN_SPECIAL = 2, TOKEN_ADDED = 4, TOKEN_ID_LIMIT = 1 << 24, SHORT_WORD = 48 };

typedef struct token {
    uint32_t start, size; /* its bytes in tokenizer.bytes */
    uint32_t flags;
} token;

typedef struct merge {
    uint32_t left, right, rank, id; /* the ids of two neighbours and of what they join to; id NO_ID: an empty slot */
} merge;

static const uint32_t NO_ID = UINT32_MAX;

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */

typedef struct added_token {
    const char *text; /* to look for; in tokenizer.bytes, from start on */
    uint32_t start, size, id;
} added_token;

typedef struct added_set {
    added_token *list; /* sorted by text */
    uint32_t count;
    unsigned char first[256]; /* 1: a text begins with this byte */
} added_set;

static const added_set no_tokens = {NULL, 0, {0}};

/* SentencePiece writes a space as U+2581, and may put one in front of a text: of each piece between two added tokens. Here
   both are a space from the start, in the vocabulary and in the text. */
typedef enum space_first {
    SPACE_NONE,
    SPACE_ALWAYS,   /* before every piece */
    SPACE_MISSING,  /* before every piece that does not begin with one */
    SPACE_AT_START  /* before the first piece of a text, unless it begins with one */
} space_first;

typedef struct tokenizer {
    buf bytes;
    token *tokens; /* [vocab], by id */
    uint32_t vocab;
    uint32_t *index, index_mask; /* hash table: bytes -> id, of the tokens that merges can make */
    merge *merges;
    uint32_t merge_mask; /* hash table: (left, right) -> merge */
    uint32_t byte_ids[256];
    added_set raw, normalized; /* tokens to find before and after normalisation */
    added_set blank;           /* those that are text, to find with the first */
    splitter kind;
    int use_nfc, ignore_merges;
    int characters;       /* SentencePiece's BPE */
    space_first space;
    int late_spaces;      /* these spaces come after all added tokens are found: Metaspace; else with normalisation */
    int strip_space;      /* the first space of a text that is decoded is not its own */
    int32_t begin, end;   /* tokens that come before and after a text, which the caller puts there; -1: none */
} tokenizer;

static void tokenizer_free(tokenizer *t) {
    if (!t) return;
    buf_free(&t->bytes);
    free(t->tokens);
    free(t->index);
    free(t->merges);
    free(t->raw.list);
    free(t->normalized.list);
    free(t->blank.list);
    free(t);
}

static int32_t tokenizer_vocab(const tokenizer *t) {
    return (int32_t)t->vocab;
}

static const char *tokenizer_token(const tokenizer *t, int32_t id, size_t *len) {
    if (id < 0 || (uint32_t)id >= t->vocab || !t->tokens[id].flags) return NULL;
    *len = t->tokens[id].size;
    return t->bytes.data + t->tokens[id].start;
}

static int tokenizer_is_special(const tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->vocab && (t->tokens[id].flags & TOKEN_SPECIAL) != 0;
}

/* The slot of the index that holds these bytes, or the free one where they belong. */
static uint32_t *index_slot(const tokenizer *t, const char *p, size_t n) {
    for (uint32_t at = fold(fnv1a(FNV_START, p, n)) & t->index_mask;; at = (at + 1) & t->index_mask) {
        uint32_t id = t->index[at];
        if (id == NO_ID) return t->index + at;
        if (t->tokens[id].size == n && !memcmp(t->bytes.data + t->tokens[id].start, p, n)) return t->index + at;
    }
}

static merge *merge_slot(const tokenizer *t, uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    for (uint32_t at = (uint32_t)(h >> 40) ^ (uint32_t)(h >> 16);; at++) {
        merge *m = t->merges + (at & t->merge_mask);
        if (m->id == NO_ID || (m->left == left && m->right == right)) return m;
    }
}

/* A hash table's number of slots for n entries: a power of two that leaves at least half of them free. */
static uint32_t table_slots(uint32_t n) {
    uint32_t slots = 16;
    while (slots < UINT32_MAX / 2 && slots / 2 < n) slots *= 2;
    return slots;
}

/* The longest added token that p begins with, NULL for none. Narrows the sorted list byte by byte. */
static const added_token *match_added(const added_set *s, const char *p, const char *end) {
    const added_token *found = NULL;
    uint32_t low = 0, high = s->count;
    for (size_t depth = 0; low < high; depth++) { /* texts low..high-1 agree with p in `depth` bytes */
        if (s->list[low].size == depth) found = s->list + low++;
        if ((size_t)(end - p) == depth) break;
        unsigned char c = (unsigned char)p[depth];
        uint32_t limits[2];
        for (int i = 0; i < 2; i++) { /* the first text whose next byte is at least c, above c */
            uint32_t a = low, b = high;
            while (a < b) {
                uint32_t middle = (a + b) / 2;
                int next = (unsigned char)s->list[middle].text[depth];
                if (next < c + i) {
                    a = middle + 1;
                } else {
                    b = middle;
                }
            }
            limits[i] = a;
        }
        low = limits[0];
        high = limits[1];
    }
    return found;
}

/* 1: a control token. */
static int tokenizer_is_added(const tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->vocab && (t->tokens[id].flags & TOKEN_ADDED) != 0;
}

/* The id of a token by its whole text, added tokens first; -1 when there is none. */
static int32_t tokenizer_find(const tokenizer *t, const char *text) {
    size_t n = strlen(text);
    const added_token *raw = match_added(&t->raw, text, text + n);
    const added_token *normalized = match_added(&t->normalized, text, text + n);
    if (raw && raw->size == n) return (int32_t)raw->id;
    if (normalized && normalized->size == n) return (int32_t)normalized->id;
    for (uint32_t i = 0; i < t->normalized.count; i++) {   /* what is looked for may be another text than the token's own */
        const token *own = t->tokens + t->normalized.list[i].id;
        if (own->size == n && !memcmp(t->bytes.data + own->start, text, n)) return (int32_t)t->normalized.list[i].id;
    }
    uint32_t id = *index_slot(t, text, n);
    return id == NO_ID ? -1 : (int32_t)id;
}

/* Bytes begin..end-1 of a text. */
typedef struct text_range {
    size_t begin, end;
} text_range;

/* A part of a text, and the ranges of that text, in bytes from `base`, that overlap it and are from outside. */
typedef struct text_piece {
    const char *p, *end, *base;
    const text_range *outside;
    size_t count;
} text_piece;

/* One call of tokenizer_encode. */
typedef struct encoder {
    const tokenizer *t;
    const char *start;     /* of the text */
    buf *ids;
    buf text, ranges, nodes, heap; /* scratch: normalised text, what of it is from outside; what long words need */
} encoder;

/* Writes the first tokens of a word of n bytes, returns how many: at most n. A byte without a token is left out. */
static size_t bpe_symbols(const tokenizer *t, const char *word, size_t n, int32_t *ids) {
    size_t count = 0;
    const char *p = word, *end = word + n;
    for (size_t i = 0; !t->characters && i < n; i++) {
        const uint32_t id = t->byte_ids[(unsigned char)word[i]];
        if (id != NO_ID) ids[count++] = (int32_t)id;
    }
    while (t->characters && p < end) {
        const char *character = p;
        utf8_next(&p, end);
        uint32_t id = *index_slot(t, character, (size_t)(p - character));
        if (id != NO_ID && !(t->tokens[id].flags & TOKEN_ADDED)) ids[count++] = (int32_t)id;
        else while (character < p) ids[count++] = (int32_t)t->byte_ids[(unsigned char)*character++];
    }
    return count;
}

/* Joins n <= SHORT_WORD tokens in their place, returns how many are left. */
static size_t bpe_short(const tokenizer *t, int32_t *ids, size_t n) {
    const merge *join[SHORT_WORD]; /* of tokens i and i + 1 */
    for (size_t i = 0; i + 1 < n; i++) join[i] = merge_slot(t, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (join[i]->rank < join[best]->rank) best = i; /* an empty slot's rank is the highest number */
        }
        if (join[best]->id == NO_ID) break;
        ids[best] = (int32_t)join[best]->id;
        n--;
        for (size_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            join[i - 1] = join[i];
        }
        if (best > 0) join[best - 1] = merge_slot(t, (uint32_t)ids[best - 1], (uint32_t)ids[best]);
        if (best + 1 < n) join[best] = merge_slot(t, (uint32_t)ids[best], (uint32_t)ids[best + 1]);
    }
    return n;
}

/* Long words (a megabyte of one letter): a linked list of tokens and a heap of possible joins, so n log n. The heap's
   items are rank << 32 | position of the left token; one that is out of date is known by the rank it has not any more. */
typedef struct bpe_node {
    uint32_t id, previous, next; /* next: n at the end */
    uint32_t rank, joined;       /* of the join with the next token; rank UINT32_MAX: none */
} bpe_node;

static void heap_push(buf *heap, uint64_t item) {
    if (!buf_add(heap, NULL, sizeof item)) return;
    uint64_t *h = (uint64_t *)(void *)heap->data;
    size_t at = heap->size / sizeof item - 1;
    for (; at && h[(at - 1) / 2] > item; at = (at - 1) / 2) h[at] = h[(at - 1) / 2];
    h[at] = item;
}

static uint64_t heap_pop(buf *heap) {
    uint64_t *h = (uint64_t *)(void *)heap->data, top = h[0];
    size_t n = heap->size / sizeof top - 1, at = 0, child;
    uint64_t item = h[n];
    heap->size -= sizeof top;
    while ((child = 2 * at + 1) < n) {
        if (child + 1 < n && h[child + 1] < h[child]) child++;
        if (h[child] >= item) break;
        h[at] = h[child];
        at = child;
    }
    h[at] = item;
    return top;
}

static void bpe_rank(encoder *e, bpe_node *nodes, uint32_t at, uint32_t end) {
    bpe_node *node = nodes + at;
    node->rank = UINT32_MAX;
    if (node->next == end) return;
    const merge *m = merge_slot(e->t, node->id, nodes[node->next].id);
    if (m->id == NO_ID) return;
    node->rank = m->rank;
    node->joined = m->id;
    heap_push(&e->heap, (uint64_t)m->rank << 32 | at);
}

static size_t bpe_long(encoder *e, int32_t *ids, uint32_t n) {
    e->nodes.size = e->heap.size = 0;
    bpe_node *nodes = (bpe_node *)buf_add(&e->nodes, NULL, (size_t)n * sizeof *nodes);
    if (!nodes) return 0;
    for (uint32_t i = 0; i < n; i++) {
        nodes[i].id = (uint32_t)ids[i];
        nodes[i].previous = i - 1;
        nodes[i].next = i + 1;
    }
    for (uint32_t i = 0; i < n; i++) bpe_rank(e, nodes, i, n);
    while (e->heap.size && !e->heap.failed) {
        uint64_t top = heap_pop(&e->heap);
        uint32_t at = (uint32_t)top, next = nodes[at].next;
        if (nodes[at].rank != top >> 32) continue;
        nodes[at].id = nodes[at].joined;
        nodes[at].next = nodes[next].next;
        nodes[next].rank = UINT32_MAX;
        if (nodes[at].next < n) nodes[nodes[at].next].previous = at;
        bpe_rank(e, nodes, at, n);
        if (at) bpe_rank(e, nodes, nodes[at].previous, n);
    }
    size_t count = 0;
    for (uint32_t i = 0; i < n; i = nodes[i].next) ids[count++] = (int32_t)nodes[i].id;
    return count;
}

static void encode_words(encoder *e, const text_piece *piece) {
    word_iterator w;
    const char *word;
    size_t size;
    w.kind = e->t->kind;
    w.p = w.outer = w.inner = piece->p;
    w.end = piece->end;
    while ((word = next_word(&w, &size)) != NULL) {
        uint32_t whole = e->t->ignore_merges ? *index_slot(e->t, word, size) : NO_ID;
        if (whole != NO_ID && (e->t->tokens[whole].flags & TOKEN_ADDED)) whole = NO_ID;
        int32_t *ids = (int32_t *)buf_add(e->ids, NULL, size * sizeof *ids);
        if (!ids) return;
        size_t count = whole == NO_ID ? bpe_symbols(e->t, word, size, ids) : 1;
        if (whole != NO_ID) ids[0] = (int32_t)whole;
        else if (count <= SHORT_WORD) count = bpe_short(e->t, ids, count);
        else count = bpe_long(e, ids, (uint32_t)count);
        e->ids->size -= (size - count) * sizeof *ids;
    }
}

/* Gives the id of each added token in the text, and each piece between two of them to `between`. Those of s are found where no byte
   of theirs is from outside: where such a range cuts the longest match, a shorter one that lies within it is found. Those of
   `anywhere` are found in any text. */
static void encode_added(encoder *e, const added_set *s, const added_set *anywhere, const text_piece *text,
                         void (*between)(encoder *, const text_piece *)) {
    const text_range *range = text->outside, *const ranges_end = text->count ? range + text->count : range;
    text_piece part = *text;               /* from the last token to p */
    for (const char *p = text->p; p < text->end;) {
        while (range < ranges_end && text->base + range->end <= p) range++;
        const char *limit = range < ranges_end && text->base + range->begin < text->end ? text->base + range->begin : text->end;
        const added_token *found = p < limit && s->first[(unsigned char)*p] ? match_added(s, p, limit) : NULL;
        const added_token *other = anywhere->first[(unsigned char)*p] ? match_added(anywhere, p, text->end) : NULL;
        if (!found || (other && other->size > found->size)) found = other;
        if (!found) {
            p = p < limit || anywhere->count ? p + 1 : text->base + range->end;
            continue;
        }
        part.end = p;
        part.count = (size_t)(range - part.outside) + (limit < p);
        between(e, &part);
        buf_add(e->ids, &found->id, sizeof found->id);
        part.p = p += found->size;
        while (range < ranges_end && text->base + range->end <= p) range++;
        part.outside = range;
    }
    part.end = text->end;
    part.count = (size_t)(ranges_end - part.outside);
    between(e, &part);
}

/* Notes that bytes of the normalised text, from `from` to its end, are from outside. */
static void put_range(encoder *e, size_t from) {
    text_range one = {from, e->text.size}, *list = (text_range *)(void *)e->ranges.data;
    const size_t n = e->ranges.size / sizeof one;
    if (from == e->text.size) return;
    if (n && list[n - 1].end == from) list[n - 1].end = one.end;
    else buf_add(&e->ranges, &one, sizeof one);
}

/* Appends the next character of a text, a space where it is U+2581. */
static void put_unmarked(buf *out, const char **p, const char *end) {
    const uint32_t character = utf8_next(p, end);
    utf8_put(out, character == 0x2581 ? ' ' : character);
}

/* SentencePiece's normalisation of a piece: U+2581 is a space, and one may come first. */
static void put_spaces(encoder *e, const text_piece *piece) {
    const char *p = piece->p, *end = piece->end;
    const int has_one = p < end && (*p == ' ' || (end - p >= 3 && !memcmp(p, SPACE_MARK, 3)));
    const int missing = !has_one && (e->t->space == SPACE_MISSING || (e->t->space == SPACE_AT_START && p == e->start));
    if (p < end && (missing || e->t->space == SPACE_ALWAYS)) buf_add(&e->text, " ", 1);
    for (size_t i = 0; p < end;) {
        const size_t at = (size_t)(p - piece->base), from = e->text.size;
        put_unmarked(&e->text, &p, end);
        while (i < piece->count && piece->outside[i].end <= at) i++;
        if (i < piece->count && piece->outside[i].begin < (size_t)(p - piece->base)) put_range(e, from);
    }
}

/* A piece between two added tokens, whose spaces come after these. */
static void encode_late(encoder *e, const text_piece *piece) {
    text_piece whole = *piece;
    e->text.size = 0;
    whole.count = 0;                       /* what is from outside no longer counts */
    put_spaces(e, &whole);
    if (e->text.failed || !e->text.size) return;
    whole.p = e->text.data;
    whole.end = whole.p + e->text.size;
    encode_words(e, &whole);
}

/* One piece of text. NFC moves its bytes, so that the tokens to be found after it are found only where the whole piece is
   trusted. */
static void encode_text(encoder *e, const text_piece *piece) {
    const tokenizer *t = e->t;
    text_piece normal = {.p = NULL, .end = NULL, .base = NULL, .outside = NULL, .count = 0};
    e->text.size = e->ranges.size = 0;
    if (t->late_spaces) {
        encode_added(e, &t->normalized, &no_tokens, piece, encode_late);
        return;
    }
    if (t->characters) put_spaces(e, piece);
    else if (t->use_nfc) nfc(piece->p, (size_t)(piece->end - piece->p), &e->text);
    else utf8_clean(piece->p, (size_t)(piece->end - piece->p), &e->text);
    if (e->text.failed || e->ranges.failed || !e->text.size) return;
    normal.p = normal.base = e->text.data;
    normal.end = normal.p + e->text.size;
    normal.outside = (const text_range *)(const void *)e->ranges.data;
    normal.count = e->ranges.size / sizeof(text_range);
    if (t->characters || !piece->count) encode_added(e, &t->normalized, &no_tokens, &normal, encode_words);
    else encode_words(e, &normal);
}

/* Appends the ids (int32_t) of text. outside: `count` ranges of it, none empty, ascending and disjoint; an added token
   that overlaps one is not found. Without any, the text of every added token, special or not, becomes that token. */
static int tokenizer_encode(const tokenizer *t, const char *text, size_t len, const text_range *outside, size_t count,
                            buf *ids, mote_error *err) {
    encoder e;
    memset(&e, 0, sizeof e);
    e.t = t;
    e.start = text;
    e.ids = ids;
    if (!len) return MOTE_OK;
    if (len > (size_t)INT32_MAX / 4) return fail(err, MOTE_EINVAL, "text of %zu bytes is too long to tokenize", len);
    const text_piece all = {.p = text, .end = text + len, .base = text, .outside = outside, .count = count};
    encode_added(&e, &t->raw, &t->blank, &all, encode_text);
    int failed = ids->failed | e.text.failed | e.ranges.failed | e.nodes.failed | e.heap.failed;
    buf_free(&e.text);
    buf_free(&e.ranges);
    buf_free(&e.nodes);
    buf_free(&e.heap);
    return failed ? fail_memory(err) : MOTE_OK;
}
