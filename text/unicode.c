/* text/unicode.c: what a character is (its class, its combining class, what it decomposes to), by searches over the
   sorted runs of unicode_tables.c, and normalisation form C. It knows nothing of words or tokens. */

enum { /* the order is that of tools/make_unicode.py */
    CLASS_OTHER, CLASS_LU, CLASS_LL, CLASS_LT, CLASS_LM, CLASS_LO, CLASS_M, CLASS_N, CLASS_P, CLASS_S, CLASS_SPACE,
    CLASS_NEWLINE, CLASS_EVEN, CLASS_ODD
};

/* The last of n runs, `stride` numbers each, whose first number is at most key; the first run always is. */
static const uint32_t *run_of(const uint32_t *runs, size_t n, size_t stride, uint32_t key) {
    size_t low = 0, high = n;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (runs[middle * stride] <= key) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return runs + low * stride;
}

#define RUN_COUNT(table, stride) (sizeof(table) / sizeof((table)[0]) / (stride))

/* The class of a character, as one bit. */
static unsigned char_class(uint32_t cp) {
    if (cp < 128) return 1u << ascii_classes[cp];
    unsigned k = *run_of(class_runs, RUN_COUNT(class_runs, 1), 1, cp << 4 | 15) & 15;
    if (k >= CLASS_EVEN) k = (k & 1) == (cp & 1) ? CLASS_LU : CLASS_LL;
    return 1u << k;
}

/* The combining class; 255: class 0 but unstable. */
static unsigned nfc_class(uint32_t cp) {
    return *run_of(nfc_runs, RUN_COUNT(nfc_runs, 1), 1, cp << 8 | 255) & 255;
}

/* The number of cp's entry in a table of decompositions; `total` when it has none. */
static uint32_t decomposition_of(uint32_t cp, const uint32_t *runs, size_t n, uint32_t total) {
    const uint32_t *run = run_of(runs, n, 2, cp);
    uint32_t limit = run + 2 < runs + 2 * n ? run[3] : total;
    return cp >= run[0] && cp - run[0] < limit - run[1] ? run[1] + cp - run[0] : total;
}

/* 1 when cp decomposes into two. */
static int canonical_pair(uint32_t cp, uint32_t pair[2]) {
    const uint32_t total = RUN_COUNT(pairs, 2);
    uint32_t at = decomposition_of(cp, pair_runs, RUN_COUNT(pair_runs, 2), total);
    if (at == total) return 0;
    pair[0] = pairs[2 * at];
    pair[1] = pairs[2 * at + 1];
    return 1;
}

/* The one character that cp decomposes to, 0 for nothing. */
static uint32_t canonical_single(uint32_t cp) {
    const uint32_t total = RUN_COUNT(single_targets, 1);
    uint32_t at = decomposition_of(cp, single_runs, RUN_COUNT(single_runs, 2), total);
    return at == total ? 0 : single_targets[at];
}

/* The character that two compose to, 0 for nothing. */
static uint32_t canonical_join(uint32_t first, uint32_t second) {
    size_t low = 0, high = RUN_COUNT(compositions, 1);
    while (low < high) {
        size_t middle = (low + high) / 2;
        uint32_t pair[2] = {0, 0};
        canonical_pair(compositions[middle], pair);
        if (pair[0] == first && pair[1] == second) return compositions[middle];
        if (pair[0] < first || (pair[0] == first && pair[1] < second)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return 0;
}

/* Normalisation form C: most text is in it already, so only a segment that may not be goes through the three steps of
   the standard (decompose, order the combining marks, compose). A character is stable when its combining class is 0 and
   it neither decomposes for good nor composes with what comes before it; text between stable characters is independent. */

enum {
    HANGUL_S = 0xAC00, HANGUL_L = 0x1100, HANGUL_V = 0x1161, HANGUL_T = 0x11A7, /* first code points; T: none is first */
    HANGUL_NS = 11172, HANGUL_NL = 19, HANGUL_NV = 21, HANGUL_NT = 28           /* how many of each */
};

/* While a segment is normalised its characters are uint64_t: combining class << 56 | position << 24 | code point, so
   that plain sorting is the canonical ordering: by class, and stable. */
static void nfc_add(buf *segment, uint32_t cp) {
    unsigned combining = nfc_class(cp);
    uint64_t item = (uint64_t)(combining == 255 ? 0 : combining) << 56 | (uint64_t)(segment->size / 8) << 24 | cp;
    buf_add(segment, &item, sizeof item);
}

static void nfc_decompose(uint32_t cp, buf *segment) {
    uint32_t tail[8], pair[2], single;
    int n = 0;
    if (cp - HANGUL_S < HANGUL_NS) {
        uint32_t s = cp - HANGUL_S, t = s % HANGUL_NT;
        nfc_add(segment, HANGUL_L + s / (HANGUL_NV * HANGUL_NT));
        nfc_add(segment, HANGUL_V + s / HANGUL_NT % HANGUL_NV);
        if (t) nfc_add(segment, HANGUL_T + t);
        return;
    }
    for (;;) { /* the second of a pair never decomposes, the first may */
        if ((single = canonical_single(cp)) != 0) {
            cp = single;
        } else if (n < 8 && canonical_pair(cp, pair)) {
            cp = pair[0];
            tail[n++] = pair[1];
        } else {
            break;
        }
    }
    nfc_add(segment, cp);
    while (n) nfc_add(segment, tail[--n]);
}

static int nfc_compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint32_t nfc_join(uint32_t first, uint32_t second) {
    uint32_t l = first - HANGUL_L, v = second - HANGUL_V, s = first - HANGUL_S, t = second - HANGUL_T;
    if (l < HANGUL_NL && v < HANGUL_NV) return HANGUL_S + (l * HANGUL_NV + v) * HANGUL_NT;
    if (s < HANGUL_NS && s % HANGUL_NT == 0 && t - 1 < HANGUL_NT - 1) return first + t;
    return canonical_join(first, second);
}

/* Orders and composes the n characters of a segment, and appends them. */
static void nfc_compose(uint64_t *c, size_t n, buf *out) {
    for (size_t i = 0, j; i < n; i = j) { /* each run of combining marks */
        for (j = i; j < n && c[j] >> 56; j++) {}
        if (j > i + 1) qsort(c + i, j - i, sizeof *c, nfc_compare);
        if (j == i) j++;
    }
    size_t kept = 0, starter = SIZE_MAX; /* starter: where the last kept character of class 0 is */
    unsigned last = 0;                   /* the class of the last kept character */
    for (size_t i = 0; i < n; i++) {
        uint32_t cp = c[i] & 0xFFFFFF, joined;
        unsigned combining = (unsigned)(c[i] >> 56);
        int next_to = starter != SIZE_MAX && (starter + 1 == kept || last < combining); /* nothing between them blocks */
        if (next_to && (joined = nfc_join(c[starter] & 0xFFFFFF, cp)) != 0) {
            c[starter] = joined;
            continue;
        }
        if (!combining) starter = kept;
        last = combining;
        c[kept++] = c[i];
    }
    for (size_t i = 0; i < kept; i++) utf8_put(out, c[i] & 0xFFFFFF);
}

/* Normalises the segment that begins at p: any character and the unstable ones after it. Returns its end. */
static const char *nfc_segment(const char *p, const char *end, buf *segment, buf *out) {
    const char *start = p;
    segment->size = 0;
    while (p < end) {
        uint32_t cp;
        int n = utf8_decode(p, (size_t)(end - p), &cp);
        if (n <= 0 || (p > start && !nfc_class(cp))) break;
        nfc_decompose(cp, segment);
        p += n;
    }
    if (segment->failed) {
        out->failed = 1;
        return end;
    }
    nfc_compose((uint64_t *)(void *)segment->data, segment->size / sizeof(uint64_t), out);
    return p;
}

/* Appends the normalisation form C of text, which may be NULL where len is 0. */
static int nfc(const char *text, size_t len, buf *out) {
    if (!len) return out->failed ? MOTE_ENOMEM : MOTE_OK;
    const char *p = text, *end = text + len, *copied = text, *stable = text; /* stable: the last stable character */
    buf segment = {NULL, 0, 0, 0};
    while (p < end) {
        uint32_t cp;
        int n = utf8_decode(p, (size_t)(end - p), &cp);
        if (n > 0 && (cp < 0x300 || !nfc_class(cp))) {
            stable = p;
            p += n;
            continue;
        }
        const char *from = n > 0 ? stable : p;
        buf_add(out, copied, (size_t)(from - copied));
        if (n > 0) {
            p = nfc_segment(from, end, &segment, out);
        } else {
            utf8_put(out, utf8_next(&p, end));
        }
        copied = stable = p;
    }
    buf_add(out, copied, (size_t)(end - copied));
    buf_free(&segment);
    return out->failed ? MOTE_ENOMEM : MOTE_OK;
}
