/* text/utf8.c: one UTF-8 character, text with the ill-formed parts replaced, streams that are cut anywhere. It knows
   bytes and code points, and nothing of what a code point is (that is in unicode.c).

   Malformed UTF-8 follows one rule everywhere: each maximal ill-formed subpart becomes one U+FFFD (the Unicode
   Standard, section 3.9, as browsers and Python do). */

/* Decodes the character at text, where n > 0 bytes are left. Returns its length in bytes and sets *cp. When the bytes
   are ill-formed, returns minus the length of the subpart to replace; 0 when they are a whole character's beginning. */
static int utf8_decode(const char *text, size_t n, uint32_t *cp) {
    const unsigned char *p = (const unsigned char *)text;
    unsigned first = p[0];
    if (first < 0x80) {
        *cp = first;
        return 1;
    }
    if (first < 0xC2 || first > 0xF4) return -1;
    int length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;  /* no overlong forms */
    unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF; /* no surrogates, nothing above U+10FFFF */
    uint32_t value = first & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= n) return 0;
        if (p[i] < low || p[i] > high) return -i;
        value = value << 6 | (p[i] & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    *cp = value;
    return length;
}

static void utf8_put(buf *out, uint32_t cp) {
    char c[4];
    int n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--) {
        c[i] = (char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    c[0] = (char)(n == 1 ? cp : (0xF00u >> n & 0xFF) | cp); /* 110xxxxx, 1110xxxx, 11110xxx */
    buf_add(out, c, (size_t)n);
}

/* Takes one character from *p, U+FFFD for a maximal ill-formed subpart. *p < end. */
static uint32_t utf8_next(const char **p, const char *end) {
    uint32_t cp = 0;
    int n = utf8_decode(*p, (size_t)(end - *p), &cp);
    *p += n > 0 ? n : n < 0 ? -n : end - *p;
    return n > 0 ? cp : 0xFFFD;
}

/* A stream of bytes that is cut anywhere; what comes out is whole characters. Holds back an incomplete one. */
typedef struct utf8_stream {
    unsigned char bytes[4];
    int n;
} utf8_stream;

static void utf8_stream_push(utf8_stream *s, const char *bytes, size_t n, buf *out) {
    for (size_t i = 0; i < n; i++) {
        s->bytes[s->n++] = (unsigned char)bytes[i];
        while (s->n) {
            uint32_t cp = 0;
            int used = utf8_decode((const char *)s->bytes, (size_t)s->n, &cp);
            if (!used) break;
            utf8_put(out, used > 0 ? cp : 0xFFFD);
            used = used < 0 ? -used : used;
            s->n -= used;
            memmove(s->bytes, s->bytes + used, (size_t)s->n);
        }
    }
}

static void utf8_stream_end(utf8_stream *s, buf *out) {
    if (s->n) utf8_put(out, 0xFFFD);
    s->n = 0;
}

/* Appends text, which is NULL where len is 0, with every ill-formed subpart replaced. */
static void utf8_clean(const char *text, size_t len, buf *out) {
    if (!len) return;
    const char *p = text, *end = text + len, *copied = text;
    while (p < end) {
        uint32_t cp;
        int n = utf8_decode(p, (size_t)(end - p), &cp);
        if (n > 0) {
            p += n;
            continue;
        }
        buf_add(out, copied, (size_t)(p - copied));
        utf8_put(out, utf8_next(&p, end));
        copied = p;
    }
    buf_add(out, copied, (size_t)(end - copied));
}
