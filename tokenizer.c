// tokenizer.c: text <-> token ids, and the bytes around them. Included by engine.cu; everything is static.
//
//   1. Basics          errors, growable bytes, whole files, one UTF-8 character
//   2. JSON            a strict reader that gives a flat array of nodes
//   3. Unicode         normalisation form C, character classes, UTF-8 streams
//   4. Pre-tokenizers  text -> words, one hand-written matcher for each known pattern
//   5. Byte-level BPE  words -> ids, from tokenizer.json
//   6. Chat            messages -> prompt, answer -> channels
//   7. Generated tables (tools/make_unicode.py)
//
// Input is never trusted: any bytes give a result or one line of error. Malformed UTF-8 follows one rule everywhere:
// each maximal ill-formed subpart becomes one U+FFFD (the Unicode Standard, section 3.9, as browsers and Python do).

#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- 1. Basics ------------------------------------------------------------------------------------------------------
// Functions that can fail return a MOTE_ code and fill a mote_error with one line for a person. Output that grows goes
// into a buf: additions are not checked one by one, since a failed allocation sticks in `failed` and is looked at once.

// Fills *err (when there is one) and returns code. Control characters, as in quoted content, become spaces.
__attribute__((format(printf, 3, 4))) static int fail(mote_error *err, int code, const char *fmt, ...) {
    if (!err) return code;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, args);
    va_end(args);
    for (char *p = err->message; *p; p++) {
        if ((unsigned char)*p < 0x20) *p = ' ';
    }
    err->code = code;
    return code;
}

static int fail_memory(mote_error *err) {
    return fail(err, MOTE_ENOMEM, "out of memory");
}

typedef struct buf {
    char *data;
    size_t size, cap;
    int failed; // an allocation failed: the content is incomplete and stays so
} buf;

// Appends n bytes (left for the caller to fill when bytes is NULL). Returns where they lie, NULL after a failure.
static void *buf_add(buf *b, const void *bytes, size_t n) {
    if (b->failed || n > SIZE_MAX / 4 || b->size > SIZE_MAX / 4) {
        b->failed = 1;
        return NULL;
    }
    if (!b->data || b->size + n > b->cap) {
        size_t cap = b->cap < 32 ? 64 : b->cap * 2;
        if (cap < b->size + n) cap = b->size + n;
        char *data = (char *)realloc(b->data, cap);
        if (!data) {
            b->failed = 1;
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    char *at = b->data + b->size;
    if (bytes && n) memcpy(at, bytes, n);
    b->size += n;
    return at;
}

static void buf_text(buf *b, const char *zero_terminated) {
    buf_add(b, zero_terminated, strlen(zero_terminated));
}

static void buf_free(buf *b) {
    free(b->data);
    memset(b, 0, sizeof *b);
}

// dir/name into out; an empty or NULL dir gives name alone. MOTE_EINVAL when it does not fit.
static int join_path(char *out, size_t cap, const char *dir, const char *name) {
    size_t n = dir ? strlen(dir) : 0;
    const char *slash = n && dir[n - 1] != '/' ? "/" : "";
    int size = snprintf(out, cap, "%s%s%s", dir ? dir : "", slash, name);
    return size >= 0 && (size_t)size < cap ? MOTE_OK : MOTE_EINVAL;
}

#define FILE_LIMIT ((size_t)256 << 20) // bytes: more than any JSON file of a checkpoint, so that one read is harmless

static int read_descriptor(int fd, const char *path, buf *out, mote_error *err) {
    struct stat info;
    if (fstat(fd, &info)) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail(err, MOTE_EIO, "%s: not a regular file", path);
    if ((uint64_t)info.st_size > FILE_LIMIT) {
        return fail(err, MOTE_EFORMAT, "%s: %lld bytes, limit %zu", path, (long long)info.st_size, FILE_LIMIT);
    }
    size_t size = (size_t)info.st_size, have = 0;
    out->size = 0;
    char *data = (char *)buf_add(out, NULL, size + 1);
    if (!data) return fail_memory(err);
    while (have < size) {
        ssize_t got = read(fd, data + have, size - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
        if (got == 0) break;
        have += (size_t)got;
    }
    data[have] = 0;
    out->size = have;
    return MOTE_OK;
}

// Reads the whole regular file dir/name into out (emptied first). A NUL follows the content, not counted in size.
static int read_file(const char *dir, const char *name, buf *out, mote_error *err) {
    char path[4096];
    if (join_path(path, sizeof path, dir, name)) return fail(err, MOTE_EINVAL, "path too long: %.200s...", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: opening a FIFO must not wait for a writer
    if (fd < 0) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
    int code = read_descriptor(fd, path, out, err);
    close(fd);
    return code;
}

// Decodes the character at text, where n > 0 bytes are left. Returns its length in bytes and sets *cp. When the bytes
// are ill-formed, returns minus the length of the subpart to replace; 0 when they are a whole character's beginning.
static int utf8_decode(const char *text, size_t n, uint32_t *cp) {
    const unsigned char *p = (const unsigned char *)text;
    unsigned first = p[0];
    if (first < 0x80) {
        *cp = first;
        return 1;
    }
    if (first < 0xC2 || first > 0xF4) return -1;
    int length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;  // no overlong forms
    unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF; // no surrogates, nothing above U+10FFFF
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
    c[0] = (char)(n == 1 ? cp : (0xF00u >> n & 0xFF) | cp); // 110xxxxx, 1110xxxx, 11110xxx
    buf_add(out, c, (size_t)n);
}

// The FNV-1a hash of n bytes, continued from `hash`; it starts as FNV_START.
static uint64_t fnv1a(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001B3u;
    return hash;
}

static const uint64_t FNV_START = 0xCBF29CE484222325u;

// Its well-mixed bits: those in the middle hardly depend on the last byte.
static uint32_t fold(uint64_t hash) {
    return (uint32_t)(hash ^ hash >> 32);
}

// ---- 2. JSON --------------------------------------------------------------------------------------------------------
// Strict RFC 8259: a file that other readers would argue about is refused. One pass gives a flat array of nodes in text
// order, 16 bytes each, that point into the text; strings stay escaped until asked for. No recursion: open containers
// are on a stack of fixed size. Lookups scan, so big maps (vocabulary, tensor names) are walked once by their users.

enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

typedef struct json_node {
    uint32_t start; // offset in the text; of a string, the first byte after the quote
    uint32_t size;  // bytes (strings: between the quotes), elements of an array, pairs of an object
    uint32_t next;  // the first node after this value and all it holds: children follow their parent directly
    uint32_t type;
} json_node;

typedef struct json {
    const char *text; // the caller's, must outlive this
    json_node *nodes; // nodes[0] is the root; an object's children are key, value, key, value...
    uint32_t count;
} json;

enum { JSON_DEPTH = 128 };

typedef struct json_reader {
    json *j;
    const char *p, *end;
    uint32_t cap;
    uint32_t open[JSON_DEPTH]; // the containers we are inside of
    int depth;
    const char *problem;
    int no_memory;
} json_reader;

static void json_free(json *j) {
    free(j->nodes);
    memset(j, 0, sizeof *j);
}

static int json_problem(json_reader *r, const char *problem) {
    if (!r->problem) r->problem = problem;
    return 0;
}

static int json_add(json_reader *r, const char *start, size_t size, uint32_t type) {
    json *j = r->j;
    if (j->count == r->cap) {
        uint32_t cap = r->cap ? r->cap * 2 : 256;
        json_node *nodes = cap > r->cap ? (json_node *)realloc(j->nodes, (size_t)cap * sizeof *nodes) : NULL;
        r->no_memory = !nodes;
        if (!nodes) return json_problem(r, "out of memory");
        j->nodes = nodes;
        r->cap = cap;
    }
    json_node *n = j->nodes + j->count++;
    n->start = (uint32_t)(start - j->text);
    n->size = (uint32_t)size;
    n->next = j->count;
    n->type = type;
    return 1;
}

static void json_skip_space(json_reader *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t')) r->p++;
}

// The value of four hexadecimal digits, -1 when they are not.
static int json_hex4(const char *p, const char *end) {
    int value = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = p[i] >= 'A' && p[i] <= 'F' ? p[i] + 32 : p[i]; // lower case
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

// Decodes the escape whose backslash is at p. Returns its length (2, 6, or 12 for a surrogate pair), 0 when malformed.
static int json_escape(const char *p, const char *end, uint32_t *cp) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (end - p < 2) return 0;
    if (p[1] != 'u') {
        const char *at = p[1] ? strchr(names, p[1]) : NULL;
        if (!at) return 0;
        *cp = (uint32_t)values[at - names];
        return 2;
    }
    int high = json_hex4(p + 2, end);
    if (high < 0 || (high >= 0xDC00 && high <= 0xDFFF)) return 0;
    *cp = (uint32_t)high;
    if (high < 0xD800 || high > 0xDBFF) return 6;
    int low = end - p >= 12 && p[6] == '\\' && p[7] == 'u' ? json_hex4(p + 8, end) : -1;
    if (low < 0xDC00 || low > 0xDFFF) return 0;
    *cp = 0x10000u + ((uint32_t)(high - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
    return 12;
}

// Skips bytes that stand for themselves: ASCII but control characters, quote and backslash. Eight at a time while none
// of them has its top bit set by (byte), (byte - 0x20), or the zero tests of (byte ^ quote), (byte ^ backslash).
static const char *json_skip_plain(const char *p, const char *end) {
    const uint64_t ones = 0x0101010101010101u;
    while (end - p >= 8) {
        uint64_t w, quote, slash;
        memcpy(&w, p, 8);
        quote = w ^ ones * '"';
        slash = w ^ ones * '\\';
        if ((w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & ones * 0x80) break;
        p += 8;
    }
    while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' && *p != '\\') p++;
    return p;
}

static int json_read_string(json_reader *r) {
    if (r->p >= r->end || *r->p != '"') return json_problem(r, "expected a string");
    const char *start = ++r->p;
    for (;;) {
        uint32_t cp;
        int n;
        r->p = json_skip_plain(r->p, r->end);
        if (r->p >= r->end) return json_problem(r, "unterminated string");
        if (*r->p == '"') break;
        if (*r->p == '\\') {
            n = json_escape(r->p, r->end, &cp);
            if (!n) return json_problem(r, "bad escape in a string");
        } else {
            if ((unsigned char)*r->p < 0x20) return json_problem(r, "control character in a string");
            n = utf8_decode(r->p, (size_t)(r->end - r->p), &cp);
            if (n <= 0) return json_problem(r, "malformed UTF-8 in a string");
        }
        r->p += n;
    }
    r->p++;
    return json_add(r, start, (size_t)(r->p - 1 - start), JSON_STRING);
}

static int json_skip_digits(json_reader *r) {
    const char *start = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9') r->p++;
    return r->p > start;
}

// -? (0 | [1-9][0-9]*) (\.[0-9]+)? ([eE][+-]?[0-9]+)?
static int json_read_number(json_reader *r) {
    const char *start = r->p;
    if (*r->p == '-') r->p++;
    const char *whole = r->p;
    if (!json_skip_digits(r)) return json_problem(r, "expected a value");
    if (*whole == '0' && r->p - whole > 1) return json_problem(r, "number with a leading zero");
    if (r->p < r->end && *r->p == '.') {
        r->p++;
        if (!json_skip_digits(r)) return json_problem(r, "no digit after a decimal point");
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        r->p++;
        if (r->p < r->end && (*r->p == '+' || *r->p == '-')) r->p++;
        if (!json_skip_digits(r)) return json_problem(r, "no digit in an exponent");
    }
    return json_add(r, start, (size_t)(r->p - start), JSON_NUMBER);
}

static int json_read_word(json_reader *r, const char *word, uint32_t type) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n)) return json_problem(r, "expected a value");
    r->p += n;
    return json_add(r, r->p - n, n, type);
}

static int json_read_key(json_reader *r) {
    json_skip_space(r);
    if (!json_read_string(r)) return 0;
    json_skip_space(r);
    if (r->p >= r->end || *r->p != ':') return json_problem(r, "expected ':' after a key");
    r->p++;
    return 1;
}

// Opens a container. An empty one is closed by json_read_after, as its closing bracket comes next.
static int json_read_open(json_reader *r, uint32_t type) {
    if (r->depth == JSON_DEPTH) return json_problem(r, "nested too deep");
    r->open[r->depth++] = r->j->count;
    if (!json_add(r, r->p++, 0, type)) return 0;
    json_skip_space(r);
    if (r->p < r->end && *r->p == (type == JSON_OBJECT ? '}' : ']')) return 1;
    r->j->nodes[r->open[r->depth - 1]].size = 1;
    return type == JSON_OBJECT ? json_read_key(r) : 1;
}

// Reads one scalar, or the beginning of a container.
static int json_read_value(json_reader *r) {
    json_skip_space(r);
    if (r->p >= r->end) return json_problem(r, "unexpected end");
    switch (*r->p) {
    case '{': return json_read_open(r, JSON_OBJECT);
    case '[': return json_read_open(r, JSON_ARRAY);
    case '"': return json_read_string(r);
    case 't': return json_read_word(r, "true", JSON_TRUE);
    case 'f': return json_read_word(r, "false", JSON_FALSE);
    case 'n': return json_read_word(r, "null", JSON_NULL);
    default: return json_read_number(r);
    }
}

// Reads what may follow a value: closing brackets, then a comma (1: one more value comes) or the end of the root (0).
static int json_read_after(json_reader *r) {
    while (r->depth) {
        json_node *n = r->j->nodes + r->open[r->depth - 1];
        int object = n->type == JSON_OBJECT;
        json_skip_space(r);
        if (r->p >= r->end) return json_problem(r, "unexpected end");
        if (*r->p == (object ? '}' : ']')) {
            r->p++;
            n->next = r->j->count;
            r->depth--;
        } else if (*r->p == ',') {
            r->p++;
            n->size++;
            return object ? json_read_key(r) : 1;
        } else {
            return json_problem(r, object ? "expected ',' or '}'" : "expected ',' or ']'");
        }
    }
    return 0;
}

// Parses len bytes of text. `what` is the file's name for messages.
static int json_parse(json *j, const char *text, size_t len, const char *what, mote_error *err) {
    json_reader r;
    memset(j, 0, sizeof *j);
    memset(&r, 0, sizeof r);
    j->text = r.p = text;
    r.j = j;
    r.end = text + len;
    if (len >= UINT32_MAX) return fail(err, MOTE_EFORMAT, "%s: JSON of 4 GiB or more", what);
    for (int more = 1; more;) {
        uint32_t first = j->count;
        if (!json_read_value(&r)) break;
        json_node *n = j->nodes + first;
        int opened = n->type >= JSON_ARRAY && n->size; // its first value comes next
        more = opened || json_read_after(&r);
    }
    json_skip_space(&r);
    if (!r.problem && r.p < r.end) r.problem = "text after the end";
    if (!r.problem) return MOTE_OK;
    size_t line = 1;
    const char *line_start = text;
    for (const char *p = text; p < r.p; p++) {
        if (*p == '\n') {
            line++;
            line_start = p + 1;
        }
    }
    json_free(j);
    if (r.no_memory) return fail_memory(err);
    return fail(err, MOTE_EFORMAT, "%s: not valid JSON: line %zu, byte %zu: %s", what, line,
                (size_t)(r.p - line_start) + 1, r.problem);
}

// Is the node a string that is equal to s once unescaped?
static int json_equals(const json *j, uint32_t node, const char *s) {
    const json_node *n = j->nodes + node;
    if (n->type != JSON_STRING) return 0;
    const char *p = j->text + n->start, *end = p + n->size;
    while (p < end) {
        if (*p != '\\') {
            if (*p++ != *s++) return 0; // also ends at s's NUL: a string holds no raw NUL
            continue;
        }
        char bytes[4];
        uint32_t cp = 0;
        buf one = {bytes, 0, sizeof bytes, 0};
        p += json_escape(p, end, &cp);
        utf8_put(&one, cp);
        if (!cp || strncmp(s, bytes, one.size)) return 0;
        s += one.size;
    }
    return !*s;
}

// The value of a key, 0 when the node is no object or lacks it. Of duplicates the last one counts.
static uint32_t json_get(const json *j, uint32_t object, const char *key) {
    uint32_t found = 0, end;
    if (j->nodes[object].type != JSON_OBJECT) return 0;
    end = j->nodes[object].next;
    for (uint32_t k = object + 1; k < end; k = j->nodes[k + 1].next) {
        if (json_equals(j, k, key)) found = k + 1;
    }
    return found;
}

// Writes the unescaped string as far as it fits (no NUL added; out may be NULL). Returns its full length.
static size_t json_string(const json *j, uint32_t node, char *out, size_t cap) {
    const json_node *n = j->nodes + node;
    if (n->type != JSON_STRING) return 0;
    const char *p = j->text + n->start, *end = p + n->size;
    size_t size = 0;
    if (!out) cap = 0;
    while (p < end) {
        char bytes[4];
        const char *from = p, *slash = (const char *)memchr(p, '\\', (size_t)(end - p));
        size_t run = (size_t)((slash ? slash : end) - p);
        if (!run) {
            uint32_t cp = 0;
            buf one = {bytes, 0, sizeof bytes, 0};
            p += json_escape(p, end, &cp);
            utf8_put(&one, cp);
            from = bytes;
            run = one.size;
        } else {
            p += run;
        }
        if (size < cap) memcpy(out + size, from, run < cap - size ? run : cap - size);
        size += run;
    }
    return size;
}

// 1 and *out for a plain non-negative integer (no sign, point or exponent) below 2^64, else 0.
static int json_u64(const json *j, uint32_t node, uint64_t *out) {
    const json_node *n = j->nodes + node;
    uint64_t value = 0;
    if (n->type != JSON_NUMBER) return 0;
    for (uint32_t i = 0; i < n->size; i++) {
        unsigned digit = (unsigned)(j->text[n->start + i] - '0');
        if (digit > 9 || value > (UINT64_MAX - digit) / 10) return 0;
        value = value * 10 + digit;
    }
    *out = value;
    return 1;
}

// *out for any number that a double can hold; MOTE_EFORMAT for larger ones and for what is no number, MOTE_ENOMEM. The
// message is up to the caller, who knows what the number is for. strtod reads the locale's decimal point, so we write
// that one.
static int json_double(const json *j, uint32_t node, double *out) {
    const json_node *n = j->nodes + node;
    char half[16], point[16];
    buf text = {NULL, 0, 0, 0};
    if (n->type != JSON_NUMBER) return MOTE_EFORMAT;
    snprintf(half, sizeof half, "%.1f", 0.5);
    snprintf(point, sizeof point, "%.*s", (int)strlen(half) - 2, half + 1); // "0.5" without its digits
    for (uint32_t i = 0; i < n->size; i++) {
        char c = j->text[n->start + i];
        buf_add(&text, c == '.' ? point : &c, c == '.' ? strlen(point) : 1);
    }
    buf_add(&text, "", 1);
    double value = text.failed ? 0 : strtod(text.data, NULL);
    int code = text.failed ? MOTE_ENOMEM : isfinite(value) ? MOTE_OK : MOTE_EFORMAT;
    buf_free(&text);
    if (!code) *out = value;
    return code;
}

// ---- 3. Unicode -----------------------------------------------------------------------------------------------------
// Normalisation form C: most text is in it already, so only a segment that may not be goes through the three steps of
// the standard (decompose, order the combining marks, compose). A character is stable when its combining class is 0 and
// it neither decomposes for good nor composes with what comes before it; text between stable characters is independent.

enum {
    HANGUL_S = 0xAC00, HANGUL_L = 0x1100, HANGUL_V = 0x1161, HANGUL_T = 0x11A7, // first code points; T: none is first
    HANGUL_NS = 11172, HANGUL_NL = 19, HANGUL_NV = 21, HANGUL_NT = 28           // how many of each
};

static unsigned nfc_class(uint32_t cp);                          // combining class; 255: class 0 but unstable
static int canonical_pair(uint32_t cp, uint32_t pair[2]);        // 1 when cp decomposes into two
static uint32_t canonical_single(uint32_t cp);                   // what cp decomposes to alone, 0 for nothing
static uint32_t canonical_join(uint32_t first, uint32_t second); // what two characters compose to, 0 for nothing

// Takes one character from *p, U+FFFD for a maximal ill-formed subpart. *p < end.
static uint32_t utf8_next(const char **p, const char *end) {
    uint32_t cp = 0;
    int n = utf8_decode(*p, (size_t)(end - *p), &cp);
    *p += n > 0 ? n : n < 0 ? -n : end - *p;
    return n > 0 ? cp : 0xFFFD;
}

// A stream of bytes that is cut anywhere; what comes out is whole characters. Holds back an incomplete one.
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

// Appends text with every ill-formed subpart replaced.
static void utf8_clean(const char *text, size_t len, buf *out) {
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

// While a segment is normalised its characters are uint64_t: combining class << 56 | position << 24 | code point, so
// that plain sorting is the canonical ordering: by class, and stable.
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
    for (;;) { // the second of a pair never decomposes, the first may
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

// Orders and composes the n characters of a segment, and appends them.
static void nfc_compose(uint64_t *c, size_t n, buf *out) {
    for (size_t i = 0, j; i < n; i = j) { // each run of combining marks
        for (j = i; j < n && c[j] >> 56; j++) {}
        if (j > i + 1) qsort(c + i, j - i, sizeof *c, nfc_compare);
        if (j == i) j++;
    }
    size_t kept = 0, starter = SIZE_MAX; // starter: where the last kept character of class 0 is
    unsigned last = 0;                   // the class of the last kept character
    for (size_t i = 0; i < n; i++) {
        uint32_t cp = c[i] & 0xFFFFFF, joined;
        unsigned combining = (unsigned)(c[i] >> 56);
        int next_to = starter != SIZE_MAX && (starter + 1 == kept || last < combining); // nothing between them blocks
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

// Normalises the segment that begins at p: any character and the unstable ones behind it. Returns its end.
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

// Appends the normalisation form C of text.
static int nfc(const char *text, size_t len, buf *out) {
    const char *p = text, *end = text + len, *copied = text, *stable = text; // stable: the last stable character
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

// ---- 4. Pre-tokenizers ----------------------------------------------------------------------------------------------
// tokenizer.json gives a regular expression that cuts text into words; merges never cross a cut. There is no regular
// expression engine here: each known expression has a matcher that does what it says, and any other is refused. The
// expressions are ordered alternatives; a matcher returns the end of what the first one that matches at p takes, or p
// when none does. Classes of characters are disjoint bits, so a set like [^\s\p{L}\p{N}] is one mask.

enum { // the order is that of tools/make_unicode.py
    CLASS_OTHER, CLASS_LU, CLASS_LL, CLASS_LT, CLASS_LM, CLASS_LO, CLASS_M, CLASS_N, CLASS_P, CLASS_S, CLASS_SPACE,
    CLASS_NEWLINE, CLASS_EVEN, CLASS_ODD
};

enum { // sets
    SET_NEWLINE = 1 << CLASS_NEWLINE,                           // [\r\n]
    SET_SPACE = 1 << CLASS_SPACE | SET_NEWLINE,                 // \s, the property White_Space
    SET_CASELESS = 1 << CLASS_LM | 1 << CLASS_LO,
    SET_UPPER = 1 << CLASS_LU | 1 << CLASS_LT | SET_CASELESS,   // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}]
    SET_LOWER = 1 << CLASS_LL | SET_CASELESS,                   // [\p{Ll}\p{Lm}\p{Lo}]
    SET_L = SET_UPPER | SET_LOWER,
    SET_M = 1 << CLASS_M,
    SET_N = 1 << CLASS_N,
    SET_PS = 1 << CLASS_P | 1 << CLASS_S,
    SET_ALL = (1 << CLASS_EVEN) - 1
};

static unsigned char_class(uint32_t cp); // one bit

// The class bit of the character at p and its length; 0 and 0 at the end.
static unsigned class_at(const char *p, const char *end, int *n) {
    const char *q = p;
    if (p == end) {
        *n = 0;
        return 0;
    }
    uint32_t cp = utf8_next(&q, end);
    *n = (int)(q - p);
    return char_class(cp);
}

// The end of the longest run of at most `limit` characters of a set.
static const char *span(const char *p, const char *end, unsigned set, size_t limit) {
    int n;
    for (; limit && (class_at(p, end, &n) & set); limit--) p += n;
    return p;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d), or without the (?i). Ignoring case, U+017F (long s) is an s.
static const char *match_contraction(const char *p, const char *end, int ignore_case) {
    char c[2] = {0, 0};
    if (end - p < 2 || *p != '\'') return p;
    if (ignore_case && end - p >= 3 && !memcmp(p + 1, "\xC5\xBF", 2)) return p + 3;
    for (int i = 0; i < 2 && i + 1 < end - p; i++) {
        c[i] = p[i + 1];
        if (ignore_case && c[i] >= 'A' && c[i] <= 'Z') c[i] = (char)(c[i] + 32);
    }
    if (c[0] == 's' || c[0] == 't' || c[0] == 'm' || c[0] == 'd') return p + 2;
    if ((c[0] == 'r' && c[1] == 'e') || (c[0] == 'v' && c[1] == 'e') || (c[0] == 'l' && c[1] == 'l')) return p + 3;
    return p;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line break of the run; else the run but its last character, which the next
// word may begin with; all of it at the end of the text.
static const char *match_space(const char *p, const char *end, int newlines) {
    const char *last = p, *line = p, *q = p;
    unsigned c;
    for (int n; (c = class_at(q, end, &n)) & SET_SPACE; q += n) {
        last = q;
        if (c & SET_NEWLINE) line = q + n;
    }
    if (newlines && line > p) return line;
    return q < end && last > p ? last : q;
}

// Qwen2, Qwen3; Qwen3.5 has [\p{L}\p{M}] as letters and [^\s\p{L}\p{M}\p{N}] as the rest.
#define PATTERN_QWEN2 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_QWEN35 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}" \
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char *match_qwen(const char *p, const char *end, unsigned letters) {
    int n;
    unsigned first = class_at(p, end, &n);
    const char *q = match_contraction(p, end, 1);
    if (q > p) return q;
    if (!(first & (SET_NEWLINE | SET_L | SET_N)) && (q = span(p + n, end, letters, SIZE_MAX)) > p + n) return q;
    if (first & letters) return span(p, end, letters, SIZE_MAX);
    if (first & SET_N) return p + n;
    const char *rest = p + (*p == ' ');
    q = span(rest, end, SET_ALL & ~(SET_SPACE | letters | SET_N), SIZE_MAX);
    if (q > rest) return span(q, end, SET_NEWLINE, SIZE_MAX);
    return match_space(p, end, 1);
}

// The two word alternatives of GPT-4o, from the optional character before the letters on:
//   [upper]*[lower]+(?i:'s|...)?   then   [upper]+[lower]*(?i:'s|...)?
// where caseless letters and marks are in both sets. The first takes all of [upper]; when no lower case follows, it
// steps back to the last character that is also in [lower], and that one character is its [lower]+.
static const char *match_cased(const char *p, const char *end, int need_lower) {
    const char *q = p, *both = NULL;
    unsigned c;
    for (int n; (c = class_at(q, end, &n)) & (SET_UPPER | SET_M); q += n) {
        if (c & (SET_CASELESS | SET_M)) both = q + n;
    }
    const char *lower = span(q, end, SET_LOWER | SET_M, SIZE_MAX);
    if (need_lower && lower == q) lower = both ? both : p;
    return lower > p && (need_lower || q > p) ? match_contraction(lower, end, 1) : p;
}

#define PATTERN_SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
#define PATTERN_GPT4O \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" PATTERN_SUFFIX \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" PATTERN_SUFFIX \
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char *match_gpt4o(const char *p, const char *end) {
    int n;
    unsigned first = class_at(p, end, &n);
    const char *q;
    for (int need_lower = 1; need_lower >= 0; need_lower--) {
        int prefix = !(first & (SET_NEWLINE | SET_L | SET_N));
        if (prefix && (q = match_cased(p + n, end, need_lower)) > p + n) return q;
        if ((q = match_cased(p, end, need_lower)) > p) return q;
    }
    if (first & SET_N) return span(p, end, SET_N, 3);
    const char *rest = p + (*p == ' ');
    q = span(rest, end, SET_ALL & ~(SET_SPACE | SET_L | SET_N), SIZE_MAX);
    if (q == rest) return match_space(p, end, 1);
    while (q < end && (*q == '\r' || *q == '\n' || *q == '/')) q++;
    return q;
}

// DeepSeek V3 splits three times, each time inside the pieces before: \p{N}{1,3}, then runs of these ranges, then:
#define PATTERN_DEEPSEEK_N "\\p{N}{1,3}"
#define PATTERN_DEEPSEEK_CJK "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+"
#define PATTERN_DEEPSEEK \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" \
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
static const char *match_deepseek(const char *p, const char *end) {
    int n;
    unsigned first = class_at(p, end, &n);
    const char *q = p + 1;
    if (n == 1 && (first & SET_PS)) { // all ASCII punctuation and symbols are in the list
        while (q < end && ((*q >= 'A' && *q <= 'Z') || (*q >= 'a' && *q <= 'z'))) q++;
        if (q > p + 1) return q;
    }
    int prefix = !(first & (SET_NEWLINE | SET_L | SET_PS));
    if (prefix && (q = span(p + n, end, SET_L | SET_M, SIZE_MAX)) > p + n) return q;
    if (first & (SET_L | SET_M)) return span(p, end, SET_L | SET_M, SIZE_MAX);
    const char *rest = p + (*p == ' ');
    q = span(rest, end, SET_PS, SIZE_MAX);
    if (q > rest) return span(q, end, SET_NEWLINE, SIZE_MAX);
    return match_space(p, end, 1);
}

static int deepseek_cjk(uint32_t cp) {
    return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);
}

// GPT-2, which ByteLevel applies itself: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
static const char *match_gpt2(const char *p, const char *end) {
    static const unsigned sets[3] = {SET_L, SET_N, SET_ALL & ~(SET_SPACE | SET_L | SET_N)};
    const char *q = match_contraction(p, end, 0), *rest = p + (*p == ' ');
    if (q > p) return q;
    for (int i = 0; i < 3; i++) {
        if ((q = span(rest, end, sets[i], SIZE_MAX)) > rest) return q;
    }
    return match_space(p, end, 0);
}

typedef enum splitter { SPLIT_GPT2, SPLIT_QWEN2, SPLIT_QWEN35, SPLIT_GPT4O, SPLIT_DEEPSEEK, SPLITTERS } splitter;

// The regular expressions of the Split steps of each splitter.
static const char *const split_patterns[SPLITTERS][3] = {
    {NULL, NULL, NULL},
    {PATTERN_QWEN2, NULL, NULL},
    {PATTERN_QWEN35, NULL, NULL},
    {PATTERN_GPT4O, NULL, NULL},
    {PATTERN_DEEPSEEK_N, PATTERN_DEEPSEEK_CJK, PATTERN_DEEPSEEK},
};

typedef struct word_iterator {
    splitter kind;
    const char *p, *end;
    const char *outer, *inner; // ends of the pieces of the earlier splits that p is in
} word_iterator;

static const char *match_word(splitter kind, const char *p, const char *end) {
    switch (kind) {
    case SPLIT_QWEN2: return match_qwen(p, end, SET_L);
    case SPLIT_QWEN35: return match_qwen(p, end, SET_L | SET_M);
    case SPLIT_GPT4O: return match_gpt4o(p, end);
    case SPLIT_DEEPSEEK: return match_deepseek(p, end);
    default: return match_gpt2(p, end);
    }
}

// Sets the ends of the pieces that begin at w->p.
static void next_piece(word_iterator *w) {
    if (w->kind != SPLIT_DEEPSEEK) {
        w->outer = w->inner = w->end;
        return;
    }
    if (w->p == w->outer) {
        w->outer = span(w->p, w->end, SET_N, 3);
        if (w->outer == w->p) w->outer = span(w->p, w->end, SET_ALL & ~SET_N, SIZE_MAX);
    }
    const char *q = w->p;
    int cjk = deepseek_cjk(utf8_next(&q, w->outer));
    w->inner = q;
    while (w->inner < w->outer && deepseek_cjk(utf8_next(&q, w->outer)) == cjk) w->inner = q;
}

// The next word of [p, end), NULL after the last. What no alternative matches is a word as well, up to the next match.
static const char *next_word(word_iterator *w, size_t *size) {
    const char *start = w->p, *gap = start, *match = start;
    if (start == w->end) return NULL;
    if (start == w->inner) next_piece(w);
    while (gap < w->inner && (match = match_word(w->kind, gap, w->inner)) == gap) utf8_next(&gap, w->inner);
    w->p = gap > start ? gap : match;
    *size = (size_t)(w->p - start);
    return start;
}

// ---- 5. Byte-level BPE ----------------------------------------------------------------------------------------------
// A word's bytes are its first tokens; then the neighbours whose merge has the lowest rank are joined, again and again.
// tokenizer.json writes bytes as letters of a 256-letter alphabet; here tokens are plain bytes from the start. Ids come
// from the vocabulary alone: ranks and ids are not in the same order in every model. Added tokens are found in the text
// before anything else, those marked "normalized" after normalisation. What the file asks for and we do not do is
// refused by name. "truncation", "padding" and "post_processor" are the caller's business: encoding adds no tokens.
//
// Text from outside (a user's, a tool's) never becomes an added token. Those steer the model: "</tool_response>" in a
// tool's answer must stay text. The caller says which ranges of a text are from outside, and an added token is found
// only where none of its bytes is in one. What lies between two added tokens is normalised and split into words as one
// piece, whoever wrote it, so text in which no added token is named has the same ids with any ranges. Merges that end
// in an added token are left out: with its text cut out first, trusted text never gets to them. (A token of one byte
// that the file lists as added is still the only way to write that byte.)

enum { TOKEN_EXISTS = 1, TOKEN_SPECIAL = 2, TOKEN_ADDED = 4, TOKEN_ID_LIMIT = 1 << 24, SHORT_WORD = 48 };

typedef struct token {
    uint32_t start, size; // its bytes in tokenizer.bytes
    uint32_t flags;
} token;

typedef struct merge {
    uint32_t left, right, rank, id; // the ids of two neighbours and of what they join to; id NO_ID: an empty slot
} merge;

static const uint32_t NO_ID = UINT32_MAX;

typedef struct added_token {
    const char *text; // to look for; in tokenizer.bytes, from start on
    uint32_t start, size, id;
} added_token;

typedef struct added_set {
    added_token *list; // sorted by text
    uint32_t count;
    unsigned char first[256]; // does a text begin with this byte?
} added_set;

typedef struct tokenizer {
    buf bytes;
    token *tokens; // [vocab], by id
    uint32_t vocab;
    uint32_t *index, index_mask; // hash table: bytes -> id, of the tokens that merges can make
    merge *merges;
    uint32_t merge_mask; // hash table: (left, right) -> merge
    uint32_t byte_ids[256];
    added_set raw, normalized; // tokens to find before and after normalisation
    splitter kind;
    int use_nfc, ignore_merges;
} tokenizer;

static void tokenizer_free(tokenizer *t) {
    if (!t) return;
    buf_free(&t->bytes);
    free(t->tokens);
    free(t->index);
    free(t->merges);
    free(t->raw.list);
    free(t->normalized.list);
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

// The slot of the index that holds these bytes, or the free one where they belong.
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

// A hash table's number of slots for n entries: a power of two that leaves at least half of them free.
static uint32_t table_slots(uint32_t n) {
    uint32_t slots = 16;
    while (slots < UINT32_MAX / 2 && slots / 2 < n) slots *= 2;
    return slots;
}

// The longest added token that p begins with, NULL for none. Narrows the sorted list byte by byte.
static const added_token *match_added(const added_set *s, const char *p, const char *end) {
    const added_token *found = NULL;
    uint32_t low = 0, high = s->count;
    for (size_t depth = 0; low < high; depth++) { // texts low..high-1 agree with p in `depth` bytes
        if (s->list[low].size == depth) found = s->list + low++;
        if ((size_t)(end - p) == depth) break;
        unsigned char c = (unsigned char)p[depth];
        uint32_t limits[2];
        for (int i = 0; i < 2; i++) { // the first text whose next byte is at least c, above c
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

// The id of a token by its whole text, added tokens first; -1 when there is none.
static int32_t tokenizer_find(const tokenizer *t, const char *text) {
    size_t n = strlen(text);
    const added_token *raw = match_added(&t->raw, text, text + n);
    const added_token *normalized = match_added(&t->normalized, text, text + n);
    if (raw && raw->size == n) return (int32_t)raw->id;
    if (normalized && normalized->size == n) return (int32_t)normalized->id;
    uint32_t id = *index_slot(t, text, n);
    return id == NO_ID ? -1 : (int32_t)id;
}

// Bytes begin..end-1 of a text.
typedef struct text_range {
    size_t begin, end;
} text_range;

// One call of tokenizer_encode.
typedef struct encoder {
    const tokenizer *t;
    buf *ids;
    int trusted;             // is nothing of the piece at hand from outside?
    buf text, nodes, heap; // scratch: normalised text; what long words need
} encoder;

// Joins the n <= SHORT_WORD bytes of a word. Writes ids, returns how many.
static size_t bpe_short(const tokenizer *t, const char *word, size_t n, int32_t *ids) {
    const merge *join[SHORT_WORD]; // of tokens i and i + 1
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)t->byte_ids[(unsigned char)word[i]];
    for (size_t i = 0; i + 1 < n; i++) join[i] = merge_slot(t, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (join[i]->rank < join[best]->rank) best = i; // an empty slot's rank is the highest number
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

// Long words (a megabyte of one letter): a linked list of tokens and a heap of possible joins, so n log n. The heap's
// items are rank << 32 | position of the left token; one that is out of date is known by the rank it has not any more.
typedef struct bpe_node {
    uint32_t id, previous, next; // next: n at the end
    uint32_t rank, joined;       // of the join with the next token; rank UINT32_MAX: none
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

static size_t bpe_long(encoder *e, const char *word, uint32_t n, int32_t *ids) {
    e->nodes.size = e->heap.size = 0;
    bpe_node *nodes = (bpe_node *)buf_add(&e->nodes, NULL, (size_t)n * sizeof *nodes);
    if (!nodes) return 0;
    for (uint32_t i = 0; i < n; i++) {
        nodes[i].id = e->t->byte_ids[(unsigned char)word[i]];
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

static void encode_words(encoder *e, const char *p, size_t n) {
    word_iterator w;
    const char *word;
    size_t size;
    w.kind = e->t->kind;
    w.p = w.outer = w.inner = p;
    w.end = p + n;
    while ((word = next_word(&w, &size)) != NULL) {
        size_t count = 1;
        uint32_t whole = e->t->ignore_merges ? *index_slot(e->t, word, size) : NO_ID;
        if (whole != NO_ID && (e->t->tokens[whole].flags & TOKEN_ADDED)) whole = NO_ID;
        int32_t *ids = (int32_t *)buf_add(e->ids, NULL, size * sizeof *ids);
        if (!ids) return;
        if (whole != NO_ID) {
            ids[0] = (int32_t)whole;
        } else if (size <= SHORT_WORD) {
            count = bpe_short(e->t, word, size, ids);
        } else {
            count = bpe_long(e, word, (uint32_t)size, ids);
        }
        e->ids->size -= (size - count) * sizeof *ids;
    }
}

// Gives the id of each added token in the text, and each piece between two of them to `between`. The search goes
// through the stretches that are not from outside, one by one: where such a stretch cuts the longest match, a shorter
// added token that lies within it is found.
static void encode_added(encoder *e, const added_set *s, const char *text, size_t n, const text_range *outside,
                         size_t count, void (*between)(encoder *, const char *, size_t)) {
    const char *done = text, *p = text;
    int trusted = 1; // from done to p
    for (size_t i = 0; i <= count; i++) {
        const char *limit = text + (i < count ? outside[i].begin : n);
        while (p < limit) {
            const added_token *found = s->first[(unsigned char)*p] ? match_added(s, p, limit) : NULL;
            if (!found) {
                p++;
                continue;
            }
            e->trusted = trusted;
            between(e, done, (size_t)(p - done));
            buf_add(e->ids, &found->id, sizeof found->id);
            done = p += found->size;
            trusted = 1;
        }
        if (i == count) break;
        p = text + outside[i].end;
        trusted = 0;
    }
    e->trusted = trusted;
    between(e, done, (size_t)(text + n - done));
}

// One piece of text. Normalisation moves its bytes, so the tokens to be found after it are found only where the whole
// piece is trusted.
static void encode_text(encoder *e, const char *p, size_t n) {
    e->text.size = 0;
    if (e->t->use_nfc) {
        nfc(p, n, &e->text);
    } else {
        utf8_clean(p, n, &e->text);
    }
    if (e->text.failed || !e->text.size) return;
    if (e->trusted) {
        encode_added(e, &e->t->normalized, e->text.data, e->text.size, NULL, 0, encode_words);
    } else {
        encode_words(e, e->text.data, e->text.size);
    }
}

// Appends the ids (int32_t) of text. outside: `count` ranges of it, none empty, ascending and disjoint; an added token
// that overlaps one is not found. Without any, the text of every added token, special or not, becomes that token.
static int tokenizer_encode(const tokenizer *t, const char *text, size_t len, const text_range *outside, size_t count,
                            buf *ids, mote_error *err) {
    encoder e;
    memset(&e, 0, sizeof e);
    e.t = t;
    e.ids = ids;
    if (!len) return MOTE_OK;
    if (len > (size_t)INT32_MAX / 4) return fail(err, MOTE_EINVAL, "text of %zu bytes is too long to tokenize", len);
    encode_added(&e, &t->raw, text, len, outside, count, encode_text);
    int failed = ids->failed | e.text.failed | e.nodes.failed | e.heap.failed;
    buf_free(&e.text);
    buf_free(&e.nodes);
    buf_free(&e.heap);
    return failed ? fail_memory(err) : MOTE_OK;
}

// What loading needs.
typedef struct loader {
    tokenizer *t;
    json j;
    const char *path;
    mote_error *err;
    buf left, right; // scratch
} loader;

// A node's raw text as two arguments of "%.*s", cut short.
#define QUOTE(l, node) \
    (int)((l)->j.nodes[node].size < 200 ? (l)->j.nodes[node].size : 200), (l)->j.text + (l)->j.nodes[node].start

// The byte that a character of the GPT-2 alphabet stands for, -1 if it is none. Printable Latin-1 stands for itself,
// the characters from U+0100 on for the other 68 bytes in their order.
static int alphabet_byte(uint32_t cp) {
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 255 && cp != 173)) return (int)cp;
    if (cp < 256 || cp > 323) return -1;
    uint32_t k = cp - 256;
    return k < 33 ? (int)k : k < 67 ? (int)k + 127 - 33 : 173;
}

// Replaces text by the bytes it stands for. 0, and nothing changed, when it is not in the alphabet.
static int alphabet_decode(char *text, size_t *size) {
    const char *p = text, *end = text + *size;
    while (p < end) {
        if (alphabet_byte(utf8_next(&p, end)) < 0) return 0;
    }
    char *out = text;
    for (p = text; p < end;) *out++ = (char)alphabet_byte(utf8_next(&p, end)); // never longer than what was read
    *size = (size_t)(out - text);
    return 1;
}

static int load_string(const json *j, uint32_t node, buf *out) {
    size_t n = j->nodes[node].size; // at least the unescaped size
    char *at = (char *)buf_add(out, NULL, n);
    if (!at) return 0;
    out->size -= n - json_string(j, node, at, n);
    return 1;
}

// The members of {"type":"Sequence", key:[...]}, or the one object itself. -1 when there are more than cap.
static int load_sequence(const json *j, uint32_t node, const char *key, uint32_t *list, int cap) {
    uint32_t type = json_get(j, node, "type"), array;
    int count = 0;
    list[0] = node;
    if (!type || !json_equals(j, type, "Sequence")) return 1;
    array = json_get(j, node, key);
    if (!array || j->nodes[array].type != JSON_ARRAY) return -1;
    for (uint32_t i = array + 1; i < j->nodes[array].next; i = j->nodes[i].next) {
        if (count == cap) return -1;
        list[count++] = i;
    }
    return count;
}

static int refuse_type(loader *l, const char *what, uint32_t node) {
    uint32_t type = json_get(&l->j, node, "type");
    if (!type) return fail(l->err, MOTE_EFORMAT, "%s: %s without a type", l->path, what);
    return fail(l->err, MOTE_EUNSUPPORTED, "%s: %s \"%.*s\" is not supported", l->path, what, QUOTE(l, type));
}

static int is_type(const json *j, uint32_t node, const char *name) {
    uint32_t type = json_get(j, node, "type");
    return type && json_equals(j, type, name);
}

static int is_flag(const json *j, uint32_t object, const char *key, uint32_t type) {
    uint32_t node = json_get(j, object, key);
    return node && j->nodes[node].type == type;
}

static int load_normalizer(loader *l) {
    const json *j = &l->j;
    uint32_t node = json_get(j, 0, "normalizer"), list[8];
    if (!node || j->nodes[node].type == JSON_NULL) return MOTE_OK;
    int count = load_sequence(j, node, "normalizers", list, 8);
    if (count < 0) return refuse_type(l, "normalizer", node);
    for (int i = 0; i < count; i++) {
        if (!is_type(j, list[i], "NFC")) return refuse_type(l, "normalizer", list[i]);
        l->t->use_nfc = 1;
    }
    return MOTE_OK;
}

// The regular expression of a Split step, 0 when the step is anything else.
static uint32_t load_split(const json *j, uint32_t step) {
    uint32_t behavior = json_get(j, step, "behavior"), pattern = json_get(j, step, "pattern");
    if (!behavior || !json_equals(j, behavior, "Isolated") || !is_flag(j, step, "invert", JSON_FALSE)) return 0;
    return pattern ? json_get(j, pattern, "Regex") : 0;
}

// Do the steps before ByteLevel have the expressions of this splitter?
static int is_splitter(const json *j, const uint32_t *steps, int splits, const char *const *patterns) {
    for (int i = 0; i < splits; i++) {
        if (!patterns[i] || !json_equals(j, load_split(j, steps[i]), patterns[i])) return 0;
    }
    return splits == 3 || !patterns[splits];
}

// Recognises [Split..., ByteLevel] by the exact text of the expressions.
static int load_pre_tokenizer(loader *l) {
    const json *j = &l->j;
    uint32_t node = json_get(j, 0, "pre_tokenizer"), steps[4];
    if (!node || j->nodes[node].type == JSON_NULL) {
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: no pre_tokenizer: only byte-level BPE is supported", l->path);
    }
    int count = load_sequence(j, node, "pretokenizers", steps, 4), splits = count - 1;
    if (count < 1) return refuse_type(l, "pre-tokenizer", node);
    for (int i = 0; i < count; i++) {
        if (!is_type(j, steps[i], i < splits ? "Split" : "ByteLevel")) return refuse_type(l, "pre-tokenizer", steps[i]);
        if (i < splits && !load_split(j, steps[i])) {
            return fail(l->err, MOTE_EUNSUPPORTED, "%s: Split that is not an isolated Regex is not supported", l->path);
        }
    }
    if (!is_flag(j, steps[splits], "add_prefix_space", JSON_FALSE)) {
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: ByteLevel with add_prefix_space is not supported", l->path);
    }
    if (is_flag(j, steps[splits], "use_regex", JSON_FALSE) != (splits > 0)) {
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: ByteLevel with%s use_regex after %d Split steps is not supported",
                    l->path, splits ? "" : "out", splits);
    }
    for (int k = 0; k < SPLITTERS; k++) {
        if (!is_splitter(j, steps, splits, split_patterns[k])) continue;
        l->t->kind = (splitter)k;
        return MOTE_OK;
    }
    return fail(l->err, MOTE_EUNSUPPORTED, "%s: pre-tokenizer pattern not supported: %.*s", l->path,
                QUOTE(l, load_split(j, steps[splits - 1])));
}

// Everything else in the file that would change ids. Model options that are null, false, "" or 0 are off.
static int load_options(loader *l, uint32_t model) {
    static const char *const used[] = {"type", "vocab", "merges", "ignore_merges"};
    const json *j = &l->j;
    uint32_t decoder = json_get(j, 0, "decoder");
    if (decoder && j->nodes[decoder].type != JSON_NULL && !is_type(j, decoder, "ByteLevel")) {
        return refuse_type(l, "decoder", decoder);
    }
    if (!is_type(j, model, "BPE")) return refuse_type(l, "model", model);
    for (uint32_t k = model + 1; k < j->nodes[model].next; k = j->nodes[k + 1].next) {
        const json_node *value = j->nodes + k + 1;
        double number = 1;
        int empty = value->type == JSON_STRING && !value->size;
        if (json_double(j, k + 1, &number) == MOTE_ENOMEM) return fail_memory(l->err);
        int zero = number == 0;
        int off = value->type == JSON_NULL || value->type == JSON_FALSE || empty || zero;
        for (int i = 0; i < 4; i++) off |= json_equals(j, k, used[i]);
        if (!off) {
            return fail(l->err, MOTE_EUNSUPPORTED, "%s: model option \"%.*s\" is not supported", l->path, QUOTE(l, k));
        }
    }
    l->t->ignore_merges = is_flag(j, model, "ignore_merges", JSON_TRUE);
    return MOTE_OK;
}

static int check_id(loader *l, uint32_t node, uint32_t name, uint32_t *id) {
    uint64_t value;
    if (!node || !json_u64(&l->j, node, &value) || value > TOKEN_ID_LIMIT) {
        return fail(l->err, MOTE_EFORMAT, "%s: token \"%.*s\" has no id from 0 to %d", l->path, QUOTE(l, name),
                    TOKEN_ID_LIMIT);
    }
    *id = (uint32_t)value;
    if (*id >= l->t->vocab) l->t->vocab = *id + 1;
    return MOTE_OK;
}

// First pass over the ids: how many tokens there are to hold.
static int load_sizes(loader *l, uint32_t vocab, uint32_t added) {
    const json *j = &l->j;
    tokenizer *t = l->t;
    uint32_t id;
    for (uint32_t k = vocab + 1; k < j->nodes[vocab].next; k = j->nodes[k + 1].next) {
        if (check_id(l, k + 1, k, &id)) return l->err->code;
    }
    for (uint32_t a = added + 1; added && a < j->nodes[added].next; a = j->nodes[a].next) {
        uint32_t content = json_get(j, a, "content");
        if (!content || j->nodes[content].type != JSON_STRING || !j->nodes[content].size) {
            return fail(l->err, MOTE_EFORMAT, "%s: an added token has no content", l->path);
        }
        if (check_id(l, json_get(j, a, "id"), content, &id)) return l->err->code;
    }
    uint32_t slots = table_slots(j->nodes[vocab].size);
    t->tokens = (token *)calloc((size_t)t->vocab + 1, sizeof *t->tokens);
    t->index = (uint32_t *)malloc(slots * sizeof *t->index);
    t->index_mask = slots - 1;
    if (!t->tokens || !t->index) return fail_memory(l->err);
    memset(t->index, 0xFF, slots * sizeof *t->index);
    return MOTE_OK;
}

static int load_vocab(loader *l, uint32_t vocab) {
    const json *j = &l->j;
    tokenizer *t = l->t;
    uint32_t id = 0;
    for (uint32_t k = vocab + 1; k < j->nodes[vocab].next; k = j->nodes[k + 1].next) {
        if (check_id(l, k + 1, k, &id)) return l->err->code;
        token *entry = t->tokens + id;
        if (entry->flags) {
            return fail(l->err, MOTE_EFORMAT, "%s: token \"%.*s\" has id %u, which is taken", l->path, QUOTE(l, k), id);
        }
        size_t start = t->bytes.size;
        if (!load_string(j, k, &t->bytes)) return fail_memory(l->err);
        size_t size = t->bytes.size - start;
        entry->start = (uint32_t)start;
        entry->flags = TOKEN_EXISTS;
        if (alphabet_decode(t->bytes.data + start, &size)) {
            uint32_t *slot = index_slot(t, t->bytes.data + start, size);
            if (*slot != NO_ID) {
                return fail(l->err, MOTE_EFORMAT, "%s: token \"%.*s\" is listed twice", l->path, QUOTE(l, k));
            }
            *slot = id;
        }
        entry->size = (uint32_t)size;
        t->bytes.size = start + size;
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_ids[b] = *index_slot(t, &byte, 1);
        if (t->byte_ids[b] == NO_ID) {
            return fail(l->err, MOTE_EFORMAT, "%s: the vocabulary has no token for byte 0x%02X", l->path, (unsigned)b);
        }
    }
    return MOTE_OK;
}

// Sets left and right to the bytes of a merge's parts: "a b" or ["a", "b"]. 0 when it has not two.
static int load_merge_parts(loader *l, uint32_t node) {
    const json *j = &l->j;
    const json_node *n = j->nodes + node;
    l->left.size = l->right.size = 0;
    if (n->type == JSON_ARRAY) {
        if (n->size != 2 || j->nodes[node + 1].type != JSON_STRING || n->next != node + 3) return 0;
        if (!load_string(j, node + 1, &l->left) || !load_string(j, node + 2, &l->right)) return 0;
    } else {
        if (n->type != JSON_STRING || !load_string(j, node, &l->left) || !l->left.size) return 0;
        const char *space = (const char *)memchr(l->left.data, ' ', l->left.size);
        if (!space) return 0;
        size_t size = (size_t)(space - l->left.data);
        buf_add(&l->right, space + 1, l->left.size - size - 1);
        l->left.size = size;
    }
    return l->left.size && l->right.size && alphabet_decode(l->left.data, &l->left.size) &&
           alphabet_decode(l->right.data, &l->right.size);
}

static int load_merges(loader *l, uint32_t merges) {
    const json *j = &l->j;
    tokenizer *t = l->t;
    uint32_t slots = table_slots(j->nodes[merges].size), rank = 0;
    t->merges = (merge *)malloc(slots * sizeof *t->merges);
    t->merge_mask = slots - 1;
    if (!t->merges) return fail_memory(l->err);
    memset(t->merges, 0xFF, slots * sizeof *t->merges);
    for (uint32_t m = merges + 1; m < j->nodes[merges].next; m = j->nodes[m].next, rank++) {
        uint32_t left = NO_ID, right = NO_ID, id = NO_ID;
        if (load_merge_parts(l, m)) {
            left = *index_slot(t, l->left.data, l->left.size);
            right = *index_slot(t, l->right.data, l->right.size);
            buf_add(&l->left, l->right.data, l->right.size);
            if (!l->left.failed) id = *index_slot(t, l->left.data, l->left.size);
        }
        if (l->left.failed || l->right.failed) return fail_memory(l->err);
        if (left == NO_ID || right == NO_ID || id == NO_ID) {
            return fail(l->err, MOTE_EFORMAT, "%s: merge %u: not two tokens whose union is a token", l->path, rank);
        }
        if (t->tokens[id].flags & TOKEN_ADDED) continue;
        merge *slot = merge_slot(t, left, right);
        slot->left = left;
        slot->right = right;
        slot->rank = rank;
        slot->id = id;
    }
    return MOTE_OK;
}

// Enters one added token into the vocabulary and into the set of those to look for.
static int load_added_token(loader *l, uint32_t object, uint32_t content) {
    static const char *const refused[] = {"single_word", "lstrip", "rstrip"};
    const json *j = &l->j;
    tokenizer *t = l->t;
    uint32_t id = 0;
    if (check_id(l, json_get(j, object, "id"), content, &id)) return l->err->code;
    for (int i = 0; i < 3; i++) {
        if (!is_flag(j, object, refused[i], JSON_TRUE)) continue;
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: added token \"%.*s\": %s is not supported", l->path,
                    QUOTE(l, content), refused[i]);
    }
    l->left.size = 0;
    if (!load_string(j, content, &l->left)) return fail_memory(l->err);
    int normalized = is_flag(j, object, "normalized", JSON_TRUE);
    added_set *set = normalized ? &t->normalized : &t->raw;
    added_token *added = set->list + set->count++;
    added->start = (uint32_t)t->bytes.size;
    added->id = id;
    if (normalized && t->use_nfc) {
        nfc(l->left.data, l->left.size, &t->bytes);
    } else {
        buf_add(&t->bytes, l->left.data, l->left.size);
    }
    added->size = (uint32_t)(t->bytes.size - added->start);
    token *k = t->tokens + id;
    if (!k->flags) { // not in the model's own vocabulary
        k->start = (uint32_t)t->bytes.size;
        k->size = (uint32_t)l->left.size;
        buf_add(&t->bytes, l->left.data, l->left.size);
    }
    if (t->bytes.failed) return fail_memory(l->err);
    size_t size = l->left.size;
    int same = k->size == size && !memcmp(t->bytes.data + k->start, l->left.data, size);
    if (alphabet_decode(l->left.data, &size)) {
        uint32_t known = *index_slot(t, l->left.data, size);
        same = known == NO_ID ? same : known == id;
    }
    if (!same || (k->flags & TOKEN_ADDED)) {
        return fail(l->err, MOTE_EFORMAT, "%s: added token \"%.*s\" has id %u, but the vocabulary differs", l->path,
                    QUOTE(l, content), id);
    }
    k->flags |= TOKEN_EXISTS | TOKEN_ADDED | (is_flag(j, object, "special", JSON_TRUE) ? TOKEN_SPECIAL : 0);
    return MOTE_OK;
}

static int compare_added(const void *a, const void *b) {
    const added_token *x = (const added_token *)a, *y = (const added_token *)b;
    int order = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static int load_added_set(loader *l, added_set *s) {
    for (uint32_t i = 0; i < s->count; i++) s->list[i].text = l->t->bytes.data + s->list[i].start;
    if (s->count) qsort(s->list, s->count, sizeof *s->list, compare_added);
    for (uint32_t i = 0; i < s->count; i++) {
        const added_token *a = s->list + i;
        s->first[(unsigned char)*a->text] = 1;
        if (i && !compare_added(a - 1, a)) {
            return fail(l->err, MOTE_EFORMAT, "%s: added token \"%.*s\" is listed twice", l->path,
                        (int)(a->size < 200 ? a->size : 200), a->text);
        }
    }
    return MOTE_OK;
}

static int load_added(loader *l, uint32_t added) {
    const json *j = &l->j;
    tokenizer *t = l->t;
    size_t count = added ? j->nodes[added].size : 0;
    int code = MOTE_OK;
    t->raw.list = (added_token *)calloc(count + 1, sizeof *t->raw.list);
    t->normalized.list = (added_token *)calloc(count + 1, sizeof *t->normalized.list);
    if (!t->raw.list || !t->normalized.list) return fail_memory(l->err);
    for (uint32_t a = added + 1; added && !code && a < j->nodes[added].next; a = j->nodes[a].next) {
        code = load_added_token(l, a, json_get(j, a, "content"));
    }
    if (!code) code = load_added_set(l, &t->raw);
    if (!code) code = load_added_set(l, &t->normalized);
    return code;
}

static int load_tokenizer(loader *l) {
    const json *j = &l->j;
    uint32_t model = json_get(j, 0, "model"), added = json_get(j, 0, "added_tokens"), vocab, merges;
    if (!model) return fail(l->err, MOTE_EFORMAT, "%s: no \"model\"", l->path);
    int code = load_options(l, model);
    if (!code) code = load_normalizer(l);
    if (!code) code = load_pre_tokenizer(l);
    if (code) return code;
    vocab = json_get(j, model, "vocab");
    merges = json_get(j, model, "merges");
    if (!vocab || j->nodes[vocab].type != JSON_OBJECT || !merges || j->nodes[merges].type != JSON_ARRAY ||
        (added && j->nodes[added].type != JSON_ARRAY)) {
        return fail(l->err, MOTE_EFORMAT, "%s: vocab must be an object, merges and added_tokens arrays", l->path);
    }
    code = load_sizes(l, vocab, added);
    if (!code) code = load_vocab(l, vocab);
    if (!code) code = load_added(l, added); // before the merges, which must not make these
    if (!code) code = load_merges(l, merges);
    return code;
}

// Opens dir/tokenizer.json. The tokenizer never changes afterwards: any number of threads may use it.
static int tokenizer_open(tokenizer **out, const char *dir, mote_error *err) {
    static const char name[] = "tokenizer.json";
    char path[4096];
    mote_error ignored;
    buf text = {NULL, 0, 0, 0};
    loader l;
    memset(&l, 0, sizeof l);
    *out = NULL;
    l.path = path;
    l.err = err ? err : &ignored;
    int code = read_file(dir, name, &text, l.err);
    if (!code) code = join_path(path, sizeof path, dir, name);
    if (!code) code = json_parse(&l.j, text.data, text.size, path, l.err);
    if (!code) {
        l.t = (tokenizer *)calloc(1, sizeof *l.t);
        code = l.t ? load_tokenizer(&l) : fail_memory(l.err);
    }
    buf_free(&l.left);
    buf_free(&l.right);
    json_free(&l.j);
    buf_free(&text);
    if (code) {
        tokenizer_free(l.t);
    } else {
        *out = l.t;
    }
    return code;
}

// ---- 6. Chat --------------------------------------------------------------------------------------------------------
// A checkpoint brings its chat format as a Jinja program. We do not run Jinja: the programs we know are written out as
// C here and give the same bytes, or an error where the program raises one. A program is recognised by a hash of its
// whole text, without indentation, empty lines and white space at line ends (none of which reaches the output, since
// every tag of these programs strips what is before it). Anything else about an unknown text could change the prompt,
// and a model prompted wrongly answers badly without a word, so we refuse the others. Stricter than the programs on
// purpose: what they would print as Python source text (a list as a tool's answer) or pass over (a number as "tools")
// is an error. One family holds several published texts, told apart by flags.

typedef enum chat_family {
    CHAT_UNKNOWN = 0,
    CHAT_QWEN3 = 1,    // calls as JSON; the model opens <think> itself
    CHAT_QWEN3_5 = 2,  // calls as <function=f><parameter=x>; the prompt ends inside an open <think>
    CHAT_LENIENT = 4,  // Qwen3: content that is no text counts as empty; Qwen3.5: so do arguments that are no object
    CHAT_QUIET = 8,    // thinks only when asked to
    CHAT_PRESERVE = 16 // Qwen3.6: "preserve_thinking" keeps old thoughts; arguments that are no text are all JSON
} chat_family;

static chat_family chat_detect(const char *template_text, size_t len) {
    static const struct {
        uint64_t hash;
        int family;
    } known[] = {
        {0x0069FAE55F9BBDCCu, CHAT_QWEN3}, // Qwen3 (first release)
        {0xD9204720CD536859u, CHAT_QWEN3 | CHAT_LENIENT}, // Qwen3 (later text)
        {0x7FF3A87A165FF7DEu, CHAT_QWEN3_5}, // Qwen3.5 4B and larger
        {0x2B2ECD7ADCF49C7Du, CHAT_QWEN3_5 | CHAT_LENIENT}, // Qwen3.5 35B-A3B (another text)
        {0x0E50F370211D5EF7u, CHAT_QWEN3_5 | CHAT_QUIET}, // Qwen3.5, small models
        {0xFEDB038E6D6019AAu, CHAT_QWEN3_5 | CHAT_PRESERVE}, // Qwen3.6
    };
    uint64_t hash = FNV_START;
    for (const char *p = template_text, *end = p + len; p < end;) {
        const char *newline = (const char *)memchr(p, '\n', (size_t)(end - p));
        const char *line_end = newline ? newline : end, *next = newline ? newline + 1 : end;
        while (p < line_end && (*p == ' ' || *p == '\t' || *p == '\r')) p++;
        while (p < line_end && (line_end[-1] == ' ' || line_end[-1] == '\t' || line_end[-1] == '\r')) line_end--;
        if (p < line_end) hash = fnv1a(fnv1a(hash, p, (size_t)(line_end - p)), "\n", 1);
        p = next;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].hash == hash) return (chat_family)known[i].family;
    }
    return CHAT_UNKNOWN;
}

static const char *chat_known(void) {
    return "Qwen3, Qwen3.5";
}

static int chat_unknown(mote_error *err) {
    return fail(err, MOTE_EUNSUPPORTED, "unknown chat template (known: %s); raw prompts work", chat_known());
}

// A piece of text that lies elsewhere, and what the programs do with text (Python's str methods).
typedef struct slice {
    const char *p;
    size_t n;
} slice;

static slice slice_of(const char *p, size_t n) {
    slice s;
    s.p = p;
    s.n = n;
    return s;
}

static void buf_slice(buf *out, slice s) {
    buf_add(out, s.p, s.n);
}

// Bytes of the white space character at p, 0 if it is none. Python's set: Unicode White_Space and U+001C..001F.
static size_t space_length(const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text;
    if (n >= 1 && ((p[0] >= 9 && p[0] <= 13) || (p[0] >= 0x1C && p[0] <= 0x20))) return 1;
    if (n >= 2 && p[0] == 0xC2 && (p[1] == 0x85 || p[1] == 0xA0)) return 2; // next line, no-break space
    if (n < 3) return 0;
    uint32_t three = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
    int found = (three >= 0xE28080 && three <= 0xE2808A) || three == 0xE280A8 || three == 0xE280A9 ||
                three == 0xE280AF || three == 0xE19A80 || three == 0xE2819F || three == 0xE38080;
    return found ? 3 : 0; // U+2000..200A, 2028, 2029, 202F, 1680, 205F, 3000
}

// strip()
static slice slice_trim(slice s) {
    for (size_t n; (n = space_length(s.p, s.n)) > 0;) s = slice_of(s.p + n, s.n - n);
    for (size_t n = 1; n <= 3 && n <= s.n;) {
        if (space_length(s.p + s.n - n, n) == n) {
            s.n -= n;
            n = 1;
        } else {
            n++;
        }
    }
    return s;
}

// lstrip('\n') and rstrip('\n')
static slice slice_skip_newlines(slice s) {
    while (s.n && *s.p == '\n') s = slice_of(s.p + 1, s.n - 1);
    return s;
}

static slice slice_drop_newlines(slice s) {
    while (s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

// split(tag)[0], and split(tag)[-1]: what is before the first tag, and after the last one; all of s when there is none.
static slice slice_before(slice s, const char *tag) {
    size_t n = strlen(tag);
    for (size_t i = 0; i + n <= s.n; i++) {
        if (!memcmp(s.p + i, tag, n)) return slice_of(s.p, i);
    }
    return s;
}

static slice slice_after(slice s, const char *tag) {
    for (size_t n = strlen(tag);;) {
        slice before = slice_before(s, tag);
        if (before.n == s.n) return s;
        s = slice_of(s.p + before.n + n, s.n - before.n - n);
    }
}

static int slice_starts(slice s, const char *with) {
    size_t n = strlen(with);
    return s.n >= n && !memcmp(s.p, with, n);
}

static int slice_ends(slice s, const char *with) {
    size_t n = strlen(with);
    return s.n >= n && !memcmp(s.p + s.n - n, with, n);
}

// 6.1 Values as Python writes them: json.dumps(ensure_ascii=False) and str().

static void put_string(const json *j, uint32_t node, buf *out) {
    size_t n = json_string(j, node, NULL, 0);
    char *at = (char *)buf_add(out, NULL, n);
    if (at) json_string(j, node, at, n);
}

// repr(float): the fewest digits that read back as the same number; an exponent outside 1e-4 .. 1e16.
static void put_double(double value, buf *out) {
    char text[40], digits[24], check[40];
    int n = 0, exponent = 0;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(value));
        char *p = text;
        for (n = 0; *p && *p != 'e'; p++) {
            if (*p >= '0' && *p <= '9') digits[n++] = *p; // anything else is the locale's decimal point
        }
        exponent = *p ? atoi(p + 1) : 0;
        snprintf(check, sizeof check, "%.*se%d", n, digits, exponent - (n - 1));
        if (strtod(check, NULL) == fabs(value)) break;
    }
    if (signbit(value)) buf_text(out, "-");
    if (exponent < -4 || exponent >= 16) {
        snprintf(text, sizeof text, "%c%s%.*se%+03d", digits[0], n > 1 ? "." : "", n - 1, digits + 1, exponent);
        buf_text(out, text);
        return;
    }
    if (exponent < 0) {
        snprintf(text, sizeof text, "0.%.*s%.*s", -exponent - 1, "000", n, digits);
        buf_text(out, text);
        return;
    }
    for (int i = 0; i < n || i < exponent + 2; i++) {
        if (i == exponent + 1) buf_text(out, ".");
        buf_add(out, i < n ? digits + i : "0", 1);
    }
}

// An integer keeps its digits, however many; a number with a point or an exponent is a double.
static int put_number(const json *j, uint32_t node, buf *out, mote_error *err) {
    const char *text = j->text + j->nodes[node].start;
    size_t n = j->nodes[node].size;
    double value;
    if (!memchr(text, '.', n) && !memchr(text, 'e', n) && !memchr(text, 'E', n)) {
        int zero = n == 2 && text[0] == '-' && text[1] == '0';
        buf_add(out, zero ? "0" : text, zero ? 1 : n);
        return MOTE_OK;
    }
    int code = json_double(j, node, &value);
    if (code == MOTE_ENOMEM) return fail_memory(err);
    if (code) return fail(err, MOTE_EINVAL, "chat request: a number is too large");
    put_double(value, out);
    return MOTE_OK;
}

static void put_json_string(const json *j, uint32_t node, buf *out) {
    static const char names[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    const char *p = j->text + j->nodes[node].start, *end = p + j->nodes[node].size;
    buf_text(out, "\"");
    while (p < end) {
        const char *slash = (const char *)memchr(p, '\\', (size_t)(end - p)), *run_end = slash ? slash : end;
        uint32_t cp = 0;
        char text[8];
        buf_add(out, p, (size_t)(run_end - p)); // needs no escape: it had none
        p = run_end;
        if (p == end) break;
        p += json_escape(p, end, &cp);
        const char *at = cp && cp < 0x80 ? strchr(values, (int)cp) : NULL;
        if (at) snprintf(text, sizeof text, "\\%c", names[at - values]);
        else snprintf(text, sizeof text, "\\u%04x", (unsigned)(cp & 0xFFFF));
        if (at || cp < 0x20) buf_text(out, text);
        else utf8_put(out, cp);
    }
    buf_text(out, "\"");
}

// Recursion is at most JSON_DEPTH deep.
static int put_json(const json *j, uint32_t node, buf *out, mote_error *err) {
    const json_node *n = j->nodes + node;
    int object = n->type == JSON_OBJECT, code;
    if (n->type == JSON_STRING) put_json_string(j, node, out);
    else if (n->type == JSON_NUMBER) return put_number(j, node, out, err);
    else if (n->type < JSON_NUMBER) buf_add(out, j->text + n->start, n->size);
    if (n->type < JSON_ARRAY) return MOTE_OK;
    buf_text(out, object ? "{" : "[");
    for (uint32_t k = node + 1; k < n->next; k = j->nodes[k].next) {
        if (k > node + 1) buf_text(out, ", ");
        if (object) {
            put_json_string(j, k++, out);
            buf_text(out, ": ");
        }
        code = put_json(j, k, out, err);
        if (code) return code;
    }
    buf_text(out, object ? "}" : "]");
    return MOTE_OK;
}

// str(): of lists and objects it would be Python source text, which no model should see.
static int put_str(const json *j, uint32_t node, buf *out, mote_error *err) {
    switch (j->nodes[node].type) {
    case JSON_NULL: buf_text(out, "None"); return MOTE_OK;
    case JSON_FALSE: buf_text(out, "False"); return MOTE_OK;
    case JSON_TRUE: buf_text(out, "True"); return MOTE_OK;
    case JSON_NUMBER: return put_number(j, node, out, err);
    case JSON_STRING: put_string(j, node, out); return MOTE_OK;
    default: return fail(err, MOTE_EINVAL, "chat request: a list or object where text is expected");
    }
}

// 6.2 A request: {"messages": [...], "tools": [...], "enable_thinking": ..., "add_generation_prompt": ...}
// All that comes out of its JSON is from outside, and so are the messages of a turn. The template's own words are not:
// its tags, the <think> it writes around a thought, the places for images inside a content.

// Text, and which of it is from outside: text_range, as tokenizer_encode takes them.
typedef struct marked_text {
    buf text, outside;
} marked_text;

static void marked_free(marked_text *m) {
    buf_free(&m->text);
    buf_free(&m->outside);
}

static int marked_failed(const marked_text *m) {
    return m->text.failed | m->outside.failed;
}

static const text_range *outside_of(const marked_text *m, size_t *count) {
    *count = m->outside.size / sizeof(text_range);
    return (const text_range *)(const void *)m->outside.data;
}

static void put_words(marked_text *out, const char *words) {
    buf_text(&out->text, words);
}

static void mark_outside(marked_text *out, size_t begin, size_t end) {
    text_range range = {begin, end};
    if (begin < end) buf_add(&out->outside, &range, sizeof range);
}

static void put_outside(marked_text *out, slice s) {
    size_t begin = out->text.size;
    buf_slice(&out->text, s);
    mark_outside(out, begin, out->text.size);
}

// Appends a slice of `from` with its marks.
static void put_marked(marked_text *out, const marked_text *from, slice s) {
    size_t count, to = out->text.size, begin = s.n ? (size_t)(s.p - from->text.data) : 0, end = begin + s.n;
    const text_range *r = outside_of(from, &count);
    buf_slice(&out->text, s);
    for (size_t i = 0; i < count; i++) {
        size_t a = r[i].begin > begin ? r[i].begin : begin, b = r[i].end < end ? r[i].end : end;
        if (a < b) mark_outside(out, to + a - begin, to + b - begin);
    }
}

typedef struct chat {
    json j;
    int family;               // chat_family flags
    marked_text *out;
    mote_error *err;
    buf messages;             // uint32_t node of each message
    uint32_t n, last_query;   // messages; index of the last one in which the user asks
    uint32_t tools;           // node of a list that is not empty, or 0
    int preserve, vision_ids; // "preserve_thinking", "add_vision_id"
    unsigned images, videos;  // so far, for vision_ids
    marked_text content;      // of the message at hand
    buf reasoning;
} chat;

// Appends a value of the request, as put_json or put_str (put) writes it.
static int put_value(const chat *c, marked_text *out, uint32_t node,
                     int (*put)(const json *, uint32_t, buf *, mote_error *)) {
    size_t begin = out->text.size;
    int code = put(&c->j, node, &out->text, c->err);
    mark_outside(out, begin, out->text.size);
    return code;
}

static uint32_t chat_message(const chat *c, uint32_t i) {
    return ((const uint32_t *)(const void *)c->messages.data)[i];
}

static int chat_role(const chat *c, uint32_t i, const char *role) {
    uint32_t node = i < c->n ? json_get(&c->j, chat_message(c, i), "role") : 0;
    return node && json_equals(&c->j, node, role);
}

// Qwen3.5: a part of a message's content. What is no text becomes a place for the vision model's output.
static int chat_part(chat *c, uint32_t item, int system, int counted) {
    const json *j = &c->j;
    uint32_t type = json_get(j, item, "type"), text = json_get(j, item, "text");
    int object = j->nodes[item].type == JSON_OBJECT;
    int image = json_get(j, item, "image") || json_get(j, item, "image_url") || (type && json_equals(j, type, "image"));
    int video = !image && (json_get(j, item, "video") || (type && json_equals(j, type, "video")));
    if (!object || !(image || video || text)) return fail(c->err, MOTE_EINVAL, "Unexpected item type in content.");
    if (!image && !video) return put_value(c, &c->content, text, put_str);
    if (system) return fail(c->err, MOTE_EINVAL, "System message cannot contain %s.", image ? "images" : "videos");
    if (counted) *(image ? &c->images : &c->videos) += 1;
    if (c->vision_ids) {
        char label[32];
        snprintf(label, sizeof label, "%s %u: ", image ? "Picture" : "Video", image ? c->images : c->videos);
        put_words(&c->content, label);
    }
    put_words(&c->content, image ? "<|vision_start|><|image_pad|><|vision_end|>"
                                 : "<|vision_start|><|video_pad|><|vision_end|>");
    return MOTE_OK;
}

enum { CONTENT_SYSTEM, CONTENT_SEARCH, CONTENT_MESSAGE, CONTENT_TOOL }; // what a content is rendered for

// Message i's content into c->content; *text: all of it, for Qwen3.5 without the white space around it.
static int chat_content(chat *c, uint32_t i, int use, slice *text) {
    const json *j = &c->j;
    uint32_t node = json_get(j, chat_message(c, i), "content"), type = node ? j->nodes[node].type : (uint32_t)JSON_NULL;
    int code = MOTE_OK;
    c->content.text.size = c->content.outside.size = 0;
    if (type == JSON_STRING) {
        code = put_value(c, &c->content, node, put_str);
    } else if (c->family & CHAT_QWEN3_5) {
        if (type != JSON_NULL && type != JSON_ARRAY) return fail(c->err, MOTE_EINVAL, "Unexpected content type.");
        for (uint32_t k = node + 1; !code && type == JSON_ARRAY && k < j->nodes[node].next; k = j->nodes[k].next) {
            code = chat_part(c, k, use == CONTENT_SYSTEM, use == CONTENT_MESSAGE || use == CONTENT_TOOL);
        }
    } else if (use == CONTENT_TOOL && !(c->family & CHAT_LENIENT)) {
        if (node) code = put_value(c, &c->content, node, put_str);
    } else if (use == CONTENT_SYSTEM || !(c->family & CHAT_LENIENT)) {
        return fail(c->err, MOTE_EINVAL, "message %u: content must be text for this chat template", i);
    }
    *text = slice_of(c->content.text.data, c->content.text.size);
    if (c->family & CHAT_QWEN3_5) *text = slice_trim(*text);
    return code;
}

// Where does the last round begin? Thoughts before it are left out. A user message that only carries a tool's answer
// continues the round.
static int chat_find_query(chat *c) {
    c->last_query = c->n - 1;
    for (uint32_t i = c->n; i-- > 0;) {
        uint32_t node = json_get(&c->j, chat_message(c, i), "content");
        slice text;
        if (!chat_role(c, i, "user")) continue;
        if (c->family == (CHAT_QWEN3 | CHAT_LENIENT) && !(node && c->j.nodes[node].type == JSON_STRING)) continue;
        int code = chat_content(c, i, CONTENT_SEARCH, &text);
        if (code) return code;
        if (slice_starts(text, "<tool_response>") && slice_ends(text, "</tool_response>")) continue;
        c->last_query = i;
        return MOTE_OK;
    }
    return c->family & CHAT_QWEN3 ? MOTE_OK : fail(c->err, MOTE_EINVAL, "No user query found in messages.");
}

static int chat_tools(chat *c) {
    for (uint32_t k = c->tools + 1; k < c->j.nodes[c->tools].next; k = c->j.nodes[k].next) {
        put_words(c->out, "\n");
        int code = put_value(c, c->out, k, put_json);
        if (code) return code;
    }
    put_words(c->out, "\n</tools>");
    return MOTE_OK;
}

// The system turn: a system message at the beginning and the tools.
static int chat_head(chat *c) {
    slice system = slice_of(NULL, 0);
    int given = chat_role(c, 0, "system"), code = given ? chat_content(c, 0, CONTENT_SYSTEM, &system) : MOTE_OK;
    if (code || !(given || c->tools)) return code;
    put_words(c->out, "<|im_start|>system\n");
    if (c->tools && c->family & CHAT_QWEN3) {
        put_marked(c->out, &c->content, system);
        if (given) put_words(c->out, "\n\n");
        put_words(c->out, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                         "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
        code = chat_tools(c);
        put_words(c->out, "\n\nFor each function call, return a json object with function name and arguments within "
                         "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
                         "\"arguments\": <args-json-object>}\n</tool_call>");
    } else if (c->tools) {
        put_words(c->out, "# Tools\n\nYou have access to the following functions:\n\n<tools>");
        code = chat_tools(c);
        put_words(c->out,
                 "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
                 "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
                 "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
                 "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
                 "- Function calls MUST follow the specified format: an inner <function=...></function> block must be "
                 "nested within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
                 "- You may provide optional reasoning for your function call in natural language BEFORE the function "
                 "call, but NOT after\n- If there is no function call available, answer the question like normal with "
                 "your current knowledge and do not tell the user about function calls\n</IMPORTANT>");
        if (system.n) put_words(c->out, "\n\n");
        put_marked(c->out, &c->content, system);
    } else {
        put_marked(c->out, &c->content, system);
    }
    put_words(c->out, "<|im_end|>\n");
    return code;
}

// Qwen3: {"name": "f", "arguments": {"x": 1}}
static int chat_call_json(chat *c, uint32_t call) {
    const json *j = &c->j;
    uint32_t name = json_get(j, call, "name"), arguments = json_get(j, call, "arguments");
    int code = MOTE_OK;
    put_words(c->out, "<tool_call>\n{\"name\": \"");
    if (name) code = put_value(c, c->out, name, put_str);
    put_words(c->out, "\", \"arguments\": ");
    if (!arguments) return fail(c->err, MOTE_EINVAL, "a tool call lacks \"arguments\"");
    if (!code) code = put_value(c, c->out, arguments, j->nodes[arguments].type == JSON_STRING ? put_str : put_json);
    put_words(c->out, "}\n</tool_call>");
    return code;
}

// Qwen3.5: <function=f> with one <parameter=x> for each argument
static int chat_call_tags(chat *c, uint32_t call) {
    const json *j = &c->j;
    uint32_t name = json_get(j, call, "name"), arguments = json_get(j, call, "arguments");
    if (!name || j->nodes[name].type != JSON_STRING) {
        return fail(c->err, MOTE_EINVAL, "a tool call's \"name\" must be text");
    }
    put_words(c->out, "<tool_call>\n<function=");
    put_value(c, c->out, name, put_str);
    put_words(c->out, ">\n");
    int object = arguments && j->nodes[arguments].type == JSON_OBJECT;
    if (arguments && !object && !(c->family & CHAT_LENIENT)) {
        return fail(c->err, MOTE_EINVAL, "a tool call's \"arguments\" must be an object");
    }
    for (uint32_t k = arguments + 1; object && k < j->nodes[arguments].next; k = j->nodes[k + 1].next) {
        uint32_t type = j->nodes[k + 1].type;
        int as_json = type >= JSON_ARRAY || (c->family & CHAT_PRESERVE && type != JSON_STRING);
        put_words(c->out, "<parameter=");
        put_value(c, c->out, k, put_str);
        put_words(c->out, ">\n");
        int code = put_value(c, c->out, k + 1, as_json ? put_json : put_str);
        if (code) return code;
        put_words(c->out, "\n</parameter>\n");
    }
    put_words(c->out, "</function>\n</tool_call>");
    return MOTE_OK;
}

static int chat_calls(chat *c, uint32_t message, slice content) {
    const json *j = &c->j;
    uint32_t calls = json_get(j, message, "tool_calls");
    int qwen3 = c->family & CHAT_QWEN3, code = MOTE_OK;
    if (!calls || j->nodes[calls].type == JSON_NULL) return MOTE_OK;
    if (j->nodes[calls].type != JSON_ARRAY) return fail(c->err, MOTE_EINVAL, "\"tool_calls\" must be a list");
    for (uint32_t k = calls + 1; !code && k < j->nodes[calls].next; k = j->nodes[k].next) {
        uint32_t call = k, function = json_get(j, k, "function");
        if (k > calls + 1) put_words(c->out, "\n");
        else if (qwen3 ? content.n : slice_trim(content).n) put_words(c->out, qwen3 ? "\n" : "\n\n");
        // What the call is wrapped in; Qwen3 tests truth here, so that null and {} count as no wrapper.
        if (function && !(qwen3 && (j->nodes[function].type == JSON_NULL ||
                                    (j->nodes[function].type == JSON_OBJECT && !j->nodes[function].size)))) {
            call = function;
        }
        code = (qwen3 ? chat_call_json : chat_call_tags)(c, call);
    }
    return code;
}

static int chat_assistant(chat *c, uint32_t i) {
    uint32_t message = chat_message(c, i), given = json_get(&c->j, message, "reasoning_content");
    uint32_t type = given ? c->j.nodes[given].type : (uint32_t)JSON_NULL;
    int qwen3 = c->family & CHAT_QWEN3;
    slice content, reasoning = slice_of(NULL, 0);
    int code = chat_content(c, i, CONTENT_MESSAGE, &content);
    if (code) return code;
    if (c->family == CHAT_QWEN3 && type != JSON_NULL && type != JSON_STRING) {
        return fail(c->err, MOTE_EINVAL, "message %u: reasoning_content must be text", i);
    }
    if (type == JSON_STRING) {
        c->reasoning.size = 0;
        put_string(&c->j, given, &c->reasoning);
        reasoning = slice_of(c->reasoning.data, c->reasoning.size);
    } else {
        slice before = slice_before(content, "</think>");
        if (before.n < content.n) {
            reasoning = slice_skip_newlines(slice_after(slice_drop_newlines(before), "<think>"));
            content = slice_skip_newlines(slice_after(content, "</think>"));
        }
    }
    int shown = i > c->last_query || c->preserve;
    if (qwen3) shown = shown && (i + 1 == c->n || reasoning.n);
    else reasoning = slice_trim(reasoning);
    put_words(c->out, "<|im_start|>assistant\n");
    if (shown) {
        put_words(c->out, "<think>\n");
        if (qwen3) reasoning = slice_skip_newlines(slice_drop_newlines(reasoning));
        if (type == JSON_STRING) put_outside(c->out, reasoning);
        else put_marked(c->out, &c->content, reasoning);
        put_words(c->out, "\n</think>\n\n");
    }
    put_marked(c->out, &c->content, shown && qwen3 ? slice_skip_newlines(content) : content);
    code = chat_calls(c, message, content);
    put_words(c->out, "<|im_end|>\n");
    return code;
}

static int chat_messages(chat *c) {
    int qwen3 = c->family & CHAT_QWEN3, code = MOTE_OK;
    for (uint32_t i = 0; !code && i < c->n; i++) {
        int user = chat_role(c, i, "user"), system = chat_role(c, i, "system");
        slice content;
        if (system && i > 0 && !qwen3) return fail(c->err, MOTE_EINVAL, "System message must be at the beginning.");
        if (user || (system && i > 0)) {
            code = chat_content(c, i, CONTENT_MESSAGE, &content);
            put_words(c->out, user ? "<|im_start|>user\n" : "<|im_start|>system\n");
            if (!code) put_marked(c->out, &c->content, content);
            put_words(c->out, "<|im_end|>\n");
        } else if (chat_role(c, i, "assistant")) {
            code = chat_assistant(c, i);
        } else if (chat_role(c, i, "tool")) { // neighbours share one user turn
            code = chat_content(c, i, CONTENT_TOOL, &content);
            if (!chat_role(c, i - 1, "tool") && (i > 0 || qwen3)) put_words(c->out, "<|im_start|>user");
            put_words(c->out, "\n<tool_response>\n");
            if (!code) put_marked(c->out, &c->content, content);
            put_words(c->out, "\n</tool_response>");
            if (!chat_role(c, i + 1, "tool")) put_words(c->out, "<|im_end|>\n");
        } else if (!system && !qwen3) { // Qwen3 passes over other roles
            return fail(c->err, MOTE_EINVAL, "Unexpected message role.");
        }
    }
    return code;
}

// The beginning of the model's turn. think: MOTE_THINK_DEFAULT (the template's own), _ON or _OFF.
static void chat_prompt(int family, int think, buf *out) {
    int off = think == MOTE_THINK_OFF || (think == MOTE_THINK_DEFAULT && family & CHAT_QUIET);
    buf_text(out, "<|im_start|>assistant\n");
    if (off) buf_text(out, "<think>\n\n</think>\n\n");
    else if (family & CHAT_QWEN3_5) buf_text(out, "<think>\n");
}

// A true/false/null member: 1, 0, 0; `absent` when it is not there; -1 and an error for other values.
static int chat_flag(chat *c, const char *key, int absent) {
    uint32_t node = json_get(&c->j, 0, key);
    if (!node) return absent;
    if (c->j.nodes[node].type <= JSON_TRUE) return c->j.nodes[node].type == JSON_TRUE;
    fail(c->err, MOTE_EINVAL, "chat request: \"%s\" must be true or false", key);
    return -1;
}

// A list member's node, 0 when absent, null or empty; *code for other values.
static uint32_t chat_list(chat *c, const char *key, int *code) {
    uint32_t node = json_get(&c->j, 0, key);
    if (!node || c->j.nodes[node].type == JSON_NULL) return 0;
    if (c->j.nodes[node].type == JSON_ARRAY) return c->j.nodes[node].size ? node : 0;
    *code = fail(c->err, MOTE_EINVAL, "chat request: \"%s\" must be a list", key);
    return 0;
}

static int chat_request(chat *c) {
    const json *j = &c->j;
    int code = MOTE_OK;
    if (j->nodes[0].type != JSON_OBJECT) return fail(c->err, MOTE_EINVAL, "chat request: not a JSON object");
    uint32_t messages = chat_list(c, "messages", &code), enable = json_get(j, 0, "enable_thinking");
    c->tools = chat_list(c, "tools", &code);
    if (code) return code;
    if (!messages) return fail(c->err, MOTE_EINVAL, "No messages provided.");
    for (uint32_t k = messages + 1; k < j->nodes[messages].next; k = j->nodes[k].next) {
        if (j->nodes[k].type != JSON_OBJECT) return fail(c->err, MOTE_EINVAL, "chat request: a message is no object");
        buf_add(&c->messages, &k, sizeof k);
        c->n++;
    }
    if (c->messages.failed) return fail_memory(c->err);
    int on = chat_flag(c, "enable_thinking", 0), prompt = chat_flag(c, "add_generation_prompt", 1);
    int preserve = chat_flag(c, "preserve_thinking", 0);
    c->vision_ids = chat_flag(c, "add_vision_id", 0);
    if (on < 0 || prompt < 0 || preserve < 0 || c->vision_ids < 0) return MOTE_EINVAL;
    c->preserve = preserve && c->family & CHAT_PRESERVE;
    code = chat_head(c);
    if (!code) code = chat_find_query(c);
    if (!code) code = chat_messages(c);
    int chosen = enable && j->nodes[enable].type != JSON_NULL;
    int think = !chosen ? MOTE_THINK_DEFAULT : on ? MOTE_THINK_ON : MOTE_THINK_OFF;
    if (prompt) chat_prompt(c->family, think, &c->out->text);
    return code;
}

// Appends the prompt to out; nothing after an error.
static int chat_render(chat_family f, const char *request, size_t len, marked_text *out, mote_error *err) {
    chat c;
    size_t before = out->text.size, marks = out->outside.size;
    if (f == CHAT_UNKNOWN) return chat_unknown(err);
    memset(&c, 0, sizeof c);
    c.family = f;
    c.out = out;
    c.err = err;
    int code = json_parse(&c.j, request, len, "chat request", err);
    if (code == MOTE_EFORMAT) code = MOTE_EINVAL; // not a file's format: the caller's argument
    if (code && err) err->code = code;
    if (!code) code = chat_request(&c);
    // Also in place of an error, which may come of text that is missing.
    if (marked_failed(out) || marked_failed(&c.content) || c.reasoning.failed) code = fail_memory(err);
    if (code) {
        out->text.size = before;
        out->outside.size = marks;
    }
    json_free(&c.j);
    buf_free(&c.messages);
    marked_free(&c.content);
    buf_free(&c.reasoning);
    return code;
}

// One more turn of a conversation that is only ever appended to: the system message (NULL or "" for none; first turn
// only), a message of role "user" or "tool", and the beginning of the model's turn. think as in chat_prompt. System
// message and message are from outside.
static int chat_turn(chat_family f, const char *system, const char *role, const char *content, int think,
                     marked_text *out, mote_error *err) {
    int tool = !strcmp(role, "tool"), trim = f & CHAT_QWEN3_5;
    if (f == CHAT_UNKNOWN) return chat_unknown(err);
    if (!tool && strcmp(role, "user")) return fail(err, MOTE_EINVAL, "a turn's role is user or tool, not %.40s", role);
    slice text = slice_of(content, strlen(content)), before = slice_of(system, system ? strlen(system) : 0);
    if (before.n) {
        put_words(out, "<|im_start|>system\n");
        put_outside(out, trim ? slice_trim(before) : before);
        put_words(out, "<|im_end|>\n");
    }
    put_words(out, tool ? "<|im_start|>user\n<tool_response>\n" : "<|im_start|>user\n");
    put_outside(out, trim ? slice_trim(text) : text);
    put_words(out, tool ? "\n</tool_response><|im_end|>\n" : "<|im_end|>\n");
    chat_prompt(f, think, &out->text);
    return marked_failed(out) ? fail_memory(err) : MOTE_OK;
}

// Does a prompt end inside an open <think>? Then chat_stream_begin wants to know.
static int chat_opens_thinking(const char *prompt, size_t len) {
    return slice_ends(slice_drop_newlines(slice_of(prompt, len)), "<think>");
}

// 6.3 The answer as a stream: tags switch between thinking, answer and tool calls. The tags and the newlines next to
// them are no part of any channel's text. Only what may still become a tag, or newlines that a tag may follow, is held
// back. A call's text is what its tags enclose; an empty piece on MOTE_TOOL_CALL says that the call is complete (an
// output that was cut short has none for its last call). A tag where it means nothing, such as <think> after the first
// text, stays text.

typedef void (*chat_emit)(void *user, int channel, const char *text, size_t len);

typedef struct chat_stream {
    int channel;
    int fresh;       // nothing but newlines so far: <think> would open the thinking
    int after_tag;   // no text since the last tag: newlines are dropped
    size_t newlines; // held back
    char held[16];   // n bytes, the beginning of a tag
    int n;
} chat_stream;

static void chat_stream_begin(chat_stream *s, int thinking) {
    memset(s, 0, sizeof *s);
    s->channel = thinking ? MOTE_THINKING : MOTE_ANSWER;
    s->fresh = 1;
    s->after_tag = thinking;
}

// Text without tags.
static void chat_stream_text(chat_stream *s, const char *text, size_t n, chat_emit emit, void *user) {
    while (n) {
        if (*text == '\n') {
            if (!s->after_tag) s->newlines++;
            text++;
            n--;
            continue;
        }
        for (; s->newlines; s->newlines--) emit(user, s->channel, "\n", 1);
        const char *newline = (const char *)memchr(text, '\n', n);
        size_t run = newline ? (size_t)(newline - text) : n;
        emit(user, s->channel, text, run);
        s->fresh = s->after_tag = 0;
        text += run;
        n -= run;
    }
}

// Compares what is held with the tags that mean something now: 2 = it is one (*to is the next channel), 1 = it may
// become one.
static int chat_stream_match(const chat_stream *s, int *to) {
    static const char *const tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    static const int channels[] = {MOTE_THINKING, MOTE_ANSWER, MOTE_TOOL_CALL, MOTE_ANSWER};
    int active[4], best = 0;
    active[0] = s->fresh;
    active[1] = s->channel == MOTE_THINKING;
    active[2] = s->channel != MOTE_TOOL_CALL; // inside thinking it ends the thinking
    active[3] = s->channel == MOTE_TOOL_CALL;
    for (int i = 0; i < 4; i++) {
        if (!active[i] || strncmp(tags[i], s->held, (size_t)s->n)) continue;
        *to = channels[i];
        if (!tags[i][s->n]) return 2;
        best = 1;
    }
    return best;
}

static void chat_stream_push(chat_stream *s, const char *text, size_t n, chat_emit emit, void *user) {
    for (size_t i = 0; i < n;) {
        int to = 0;
        if (!s->n && text[i] != '<') { // plain text up to the next possible tag
            const char *tag = (const char *)memchr(text + i, '<', n - i);
            size_t run = tag ? (size_t)(tag - text) - i : n - i;
            chat_stream_text(s, text + i, run, emit, user);
            i += run;
            continue;
        }
        s->held[s->n++] = text[i++];
        int match = chat_stream_match(s, &to);
        if (match == 2) {
            if (s->channel == MOTE_TOOL_CALL) emit(user, MOTE_TOOL_CALL, "", 0);
            s->channel = to;
            s->after_tag = 1;
            s->fresh = s->n = 0;
            s->newlines = 0;
        } else if (!match) { // '<' only begins a tag, so what was held is text and this byte may begin the next tag
            int held = s->n - 1;
            s->n = 0;
            i--;
            chat_stream_text(s, s->held, (size_t)held, emit, user);
        }
    }
}

static void chat_stream_end(chat_stream *s, chat_emit emit, void *user) {
    chat_stream_text(s, s->held, (size_t)s->n, emit, user);
    for (; s->newlines; s->newlines--) emit(user, s->channel, "\n", 1);
    s->n = 0;
}

// ---- 7. Generated tables --------------------------------------------------------------------------------------------
// Facts of the Unicode Character Database, and the searches over them: all are sorted runs, a few KB each.

// BEGIN generated by tools/make_unicode.py from Unicode 15.0.0
// Character classes: of ASCII; of all, as runs (first code point << 4 | class).
static const uint8_t ascii_classes[128] = {
    0,0,0,0,0,0,0,0,0,10,11,10,10,11,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,10,8,8,8,9,8,8,8,8,8,8,9,8,8,8,8,7,7,7,7,7,7,7,
    7,7,7,8,8,9,9,9,8,8,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,8,8,8,9,8,9,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,
    2,2,2,2,2,2,2,2,2,2,8,9,8,9,0,
};
static const uint32_t class_runs[2572] = {
    0,154,171,186,219,224,522,536,585,600,697,712,775,936,969,1016,1041,1464,1513,1528,1545,1554,1976,1993,2008,2025,
    2032,2138,2144,2570,2584,2601,2680,2697,2725,2744,2761,2768,2793,2855,2889,2898,2920,2953,2967,2981,3000,3015,3064,
    3073,3449,3457,3570,3961,3970,4092,5005,5276,6045,6130,6161,6188,6257,6274,6289,6338,6369,6434,6449,6482,6497,6546,
    6593,6626,6641,6668,6781,6844,6897,6914,6929,6973,7041,7058,7093,7105,7122,7173,7233,7251,7266,7281,7299,7314,7329,
    7347,7373,7644,7938,7953,7971,7996,8049,8076,9026,9121,9154,9169,9202,9229,9281,9324,9474,10565,10578,11012,11305,
    11364,11561,11780,11865,11972,11993,12004,12025,12294,14092,14148,14169,14177,14194,14208,14244,14258,14312,14321,
    14336,14409,14433,14456,14465,14512,14529,14544,14561,14594,14609,14880,14897,15042,15601,15618,15649,15698,15740,
    16130,16193,16210,16233,16241,16258,16273,16306,16337,17154,17916,18473,18486,18604,19485,19708,21248,21265,21872,
    21908,21928,22018,22680,22704,22745,22784,22806,23528,23542,23560,23574,23608,23622,23656,23670,23680,23813,24240,
    24309,24376,24400,24681,24728,24761,24776,24809,24838,25016,25024,25048,25093,25604,25621,25782,26119,26280,26341,
    26374,26389,27976,27989,28006,28112,28137,28150,28244,28278,28313,28326,28389,28423,28581,28633,28661,28680,28896,
    28933,28950,28965,29446,29872,29909,31334,31509,31520,31751,31909,32438,32580,32617,32632,32676,32688,32726,32745,
    32773,33126,33188,33206,33348,33366,33412,33430,33504,33544,33776,33797,34198,34240,34280,34288,34309,34480,34565,
    34953,34965,35056,35190,35333,35988,36006,36384,36406,36933,37798,37845,37862,38149,38166,38277,38438,38472,38503,
    38664,38676,38693,38934,38976,38997,39120,39157,39184,39221,39568,39589,39696,39717,39728,39781,39840,39878,39893,
    39910,40016,40054,40080,40118,40165,40176,40310,40320,40389,40416,40437,40486,40512,40551,40709,40745,40775,40873,
    40901,40920,40934,40944,40982,41024,41045,41136,41205,41232,41269,41616,41637,41744,41765,41792,41813,41840,41861,
    41888,41926,41936,41958,42032,42102,42128,42166,42208,42262,42272,42389,42448,42469,42480,42599,42758,42789,42838,
    42856,42864,43030,43072,43093,43232,43253,43296,43317,43664,43685,43792,43813,43840,43861,43936,43974,43989,44006,
    44128,44150,44192,44214,44256,44293,44304,44549,44582,44608,44647,44808,44825,44832,44949,44966,45056,45078,45120,
    45141,45264,45301,45328,45365,45712,45733,45840,45861,45888,45909,45984,46022,46037,46054,46160,46198,46224,46262,
    46304,46422,46464,46533,46560,46581,46630,46656,46695,46857,46869,46887,46976,47142,47157,47168,47189,47280,47333,
    47376,47397,47456,47509,47536,47557,47568,47589,47616,47669,47696,47749,47792,47845,48032,48102,48176,48230,48272,
    48294,48352,48389,48400,48502,48512,48743,48953,49072,49158,49237,49360,49381,49424,49445,49808,49829,50080,50118,
    50133,50150,50256,50278,50320,50342,50400,50518,50544,50565,50608,50645,50656,50693,50726,50752,50791,50944,51064,
    51079,51193,51205,51222,51272,51285,51408,51429,51472,51493,51856,51877,52032,52053,52128,52166,52181,52198,52304,
    52326,52368,52390,52448,52566,52592,52693,52720,52741,52774,52800,52839,52992,53013,53046,53056,53254,53317,53456,
    53477,53520,53541,54198,54229,54246,54352,54374,54416,54438,54501,54521,54528,54597,54646,54663,54773,54822,54848,
    54887,55193,55205,55296,55318,55360,55381,55664,55717,56096,56117,56256,56277,56288,56325,56432,56486,56496,56566,
    56656,56678,56688,56710,56832,56935,57088,57126,57160,57168,57365,58134,58149,58182,58288,58361,58373,58468,58486,
    58616,58631,58792,58816,59413,59440,59461,59472,59493,59568,59589,59968,59989,60000,60021,60182,60197,60230,60373,
    60384,60421,60496,60516,60528,60550,60656,60679,60832,60869,60928,61445,61465,61512,61753,61768,61785,61830,61865,
    61959,62281,62294,62313,62326,62345,62358,62376,62438,62469,62592,62613,63184,63254,63576,63590,63621,63702,63872,
    63894,64464,64489,64614,64633,64720,64745,64776,64857,64920,64944,65541,66230,66549,66567,66728,66821,66918,66981,
    67046,67093,67110,67157,67190,67301,67350,67413,67622,67813,67830,67847,68006,68073,68097,68704,68721,68736,68817,
    68832,68866,69560,69572,69586,69637,74896,74917,74976,75013,75120,75141,75152,75173,75232,75269,75920,75941,76000,
    76037,76560,76581,76640,76677,76784,76805,76816,76837,76896,76933,77168,77189,78096,78117,78176,78213,79280,79318,
    79368,79511,79824,79877,80137,80288,80385,81760,81794,81888,81928,81941,91865,91880,91893,92170,92181,92600,92624,
    92677,93880,93927,93973,94096,94213,94502,94560,94709,95014,95064,95088,95237,95526,95552,95749,95952,95973,96016,
    96038,96064,96261,97094,97608,97652,97672,97721,97733,97750,97760,97799,97952,98055,98208,98312,98486,98528,98550,
    98567,98720,98821,99380,99397,100240,100357,100438,100469,101014,101029,101040,101125,102240,102405,102896,102918,
    103104,103174,103360,103433,103440,103496,103527,103685,104160,104197,104272,104453,105152,105221,105632,105735,
    105904,105961,106501,106870,106944,106984,107013,107862,108016,108038,108496,108534,108551,108704,108807,108960,
    109064,109172,109192,109280,109318,109808,110598,110677,111430,111701,111824,111848,111879,112040,112153,112310,
    112457,112600,112646,112693,113174,113381,113415,113573,114278,114496,114632,114693,115270,115584,115640,115719,
    115872,115925,115975,116133,116612,116712,116738,116881,116898,116912,116993,117680,117713,117768,117888,118022,
    118072,118086,118421,118486,118501,118598,118613,118646,118693,118704,118786,119492,120498,120708,120722,121268,
    121862,122892,125282,125404,126978,127105,127234,127328,127361,127456,127490,127617,127746,127873,128002,128096,
    128129,128224,128258,128384,128401,128416,128433,128448,128465,128480,128497,128514,128641,128770,128992,129026,
    129155,129282,129411,129538,129667,129794,129872,129890,129921,129987,130009,130018,130041,130082,130128,130146,
    130177,130243,130265,130306,130368,130402,130433,130496,130521,130562,130689,130777,130816,130850,130896,130914,
    130945,131011,131033,131056,131082,131248,131336,131722,131744,131834,131848,132169,132184,132393,132408,132602,
    132608,132871,132884,132896,132935,133033,133080,133108,133127,133289,133336,133360,133380,133584,133641,134160,
    134406,134928,135177,135201,135225,135281,135305,135330,135345,135394,135425,135474,135497,135505,135529,135569,
    135657,135745,135769,135777,135801,135809,135833,135841,135913,135922,135937,136002,136021,136082,136105,136130,
    136161,136201,136273,136290,136361,136418,136441,136455,137265,137282,137303,137385,137408,137481,143496,143561,
    144024,144057,148128,148489,148656,148999,149961,151207,151561,161416,161639,162121,162904,162937,163432,163593,
    170040,170393,171400,171465,171976,172009,177984,178025,178528,178553,180225,180994,181756,181809,181842,181869,
    181985,182028,182082,182097,182114,182212,182241,182284,183874,183897,183997,184054,184097,184114,184128,184216,
    184279,184296,184322,184928,184946,184960,185042,185056,185093,185984,186100,186120,186128,186358,186373,186736,
    186885,186992,187013,187120,187141,187248,187269,187376,187397,187504,187525,187632,187653,187760,187781,187888,
    187910,188424,189172,189192,189705,189736,189920,190473,190880,190905,192320,192521,195936,196361,196618,196632,
    196681,196692,196709,196727,196744,196905,196936,197129,197143,197286,197384,197396,197481,197511,197556,197573,
    197592,197609,197632,197653,199024,199062,199097,199124,199157,199176,199189,200632,200644,200693,200704,200789,
    201472,201493,202992,203017,203047,203113,203269,203785,204384,204537,204549,204809,205296,205319,205481,205959,
    206089,206103,206345,206855,207017,207639,207881,212997,318473,319493,655700,655717,674000,674057,674928,675077,
    675716,675816,675845,680132,680152,680197,680455,680613,680640,680972,681701,681718,681784,681798,681960,681972,
    681996,682436,682470,682501,683623,683782,683816,683904,684041,684404,684553,684588,684802,684828,685828,685842,
    685965,686060,686212,686233,686269,686325,686348,686402,686428,686769,686834,686849,686924,687185,687229,687297,
    687314,687328,687361,687378,687392,687410,687424,687452,687568,687908,687953,687970,687989,688004,688034,688053,
    688166,688181,688230,688245,688310,688325,688694,688777,688838,688848,688903,689001,689056,689157,689992,690048,
    690182,690213,691014,691296,691432,691463,691616,691718,692005,692104,692149,692168,692181,692214,692231,692389,
    692838,692968,692997,693366,693568,693752,693765,694224,694278,694341,695094,695320,695520,695540,695559,695712,
    695784,695813,695894,695908,695925,696071,696229,696304,696325,696982,697200,697349,697398,697413,697542,697568,
    697607,697760,697800,697861,698116,698133,698233,698277,698294,698341,699142,699157,699174,699221,699254,699285,
    699366,699397,699414,699429,699440,699829,699860,699880,699909,700086,700168,700197,700212,700246,700272,700437,
    700528,700565,700656,700693,700784,700933,701040,701061,701168,701186,701881,701892,701954,702100,702121,702144,
    702210,703493,704054,704184,704198,704224,704263,704416,704517,883264,883461,883824,883893,884672,1019909,1025760,
    1025797,1027488,1028098,1028208,1028402,1028480,1028565,1028582,1028597,1028761,1028773,1028976,1028997,1029072,
    1029093,1029104,1029125,1029152,1029173,1029200,1029221,1030953,1031216,1031477,1037288,1037321,1037573,1038592,
    1038629,1039488,1039609,1039616,1040133,1040329,1040390,1040648,1040800,1040902,1041160,1041712,1041736,1041961,
    1041976,1041993,1042032,1042056,1042073,1042088,1042112,1042181,1042256,1042277,1044432,1044504,1044553,1044568,
    1044665,1044680,1044743,1044904,1044937,1044984,1045009,1045432,1045481,1045496,1045513,1045522,1045944,1045961,
    1045976,1045993,1046008,1046117,1046276,1046293,1047012,1047045,1047536,1047589,1047680,1047717,1047808,1047845,
    1047936,1047973,1048016,1048073,1048176,1048201,1048304,1048521,1048544,1048581,1048768,1048789,1049200,1049221,
    1049520,1049541,1049568,1049589,1049824,1049861,1050080,1050629,1052592,1052680,1052720,1052791,1053504,1053561,
    1053703,1054617,1054887,1054921,1054960,1054985,1055184,1055241,1055248,1056009,1056726,1056736,1058821,1059280,
    1059333,1060112,1060358,1060375,1060800,1060869,1061383,1061440,1061589,1061911,1061925,1062055,1062064,1062149,
    1062758,1062832,1062917,1063392,1063416,1063429,1064000,1064069,1064200,1064215,1064288,1064961,1065602,1066245,
    1067488,1067527,1067680,1067777,1068352,1068418,1068992,1069061,1069696,1069829,1070656,1070840,1070849,1071024,
    1071041,1071280,1071297,1071408,1071425,1071456,1071474,1071648,1071666,1071904,1071922,1072032,1072050,1072080,
    1072133,1072960,1073157,1078128,1078277,1078624,1078789,1078912,1079300,1079392,1079412,1080080,1080100,1080240,
    1081349,1081440,1081477,1081488,1081509,1082208,1082229,1082256,1082309,1082320,1082357,1082720,1082744,1082759,
    1082885,1083257,1083287,1083397,1083888,1084023,1084160,1084933,1085232,1085253,1085280,1085367,1085445,1085799,
    1085888,1085944,1085957,1086368,1086456,1086464,1087493,1088384,1088455,1088485,1088519,1088768,1088807,1089541,
    1089558,1089600,1089622,1089648,1089734,1089797,1089856,1089877,1089920,1089941,1090400,1090438,1090480,1090550,
    1090567,1090704,1090824,1090960,1091077,1091543,1091576,1091589,1092055,1092096,1092613,1092745,1092757,1093206,
    1093232,1093303,1093384,1093488,1093637,1094496,1094552,1094661,1095008,1095047,1095173,1095472,1095559,1095685,
    1095968,1096088,1096144,1096343,1096448,1097733,1098896,1099777,1100592,1100802,1101616,1101735,1101829,1102406,
    1102464,1102599,1102752,1102855,1103013,1103076,1103093,1103105,1103456,1103510,1103592,1103604,1103618,1103968,
    1104105,1104128,1107463,1107952,1107973,1108640,1108662,1108696,1108704,1108741,1108768,1109029,1109072,1109958,
    1110021,1110487,1110645,1110656,1110789,1111142,1111319,1111384,1111456,1111813,1112102,1112168,1112224,1112837,
    1113175,1113280,1113605,1113968,1114118,1114165,1115014,1115256,1115360,1115431,1115910,1115925,1115958,1115989,
    1116000,1116150,1116213,1116934,1117112,1117136,1117160,1117222,1117232,1117445,1117840,1117959,1118112,1118214,
    1118261,1118838,1119056,1119079,1119240,1119301,1119318,1119349,1119360,1119493,1120054,1120072,1120101,1120112,
    1120262,1120309,1121078,1121301,1121368,1121430,1121496,1121510,1121543,1121701,1121720,1121733,1121752,1121792,
    1121815,1122128,1122309,1122592,1122613,1123014,1123208,1123302,1123317,1123350,1123360,1124357,1124464,1124485,
    1124496,1124517,1124576,1124597,1124832,1124853,1125016,1125024,1125125,1125878,1126064,1126151,1126304,1126406,
    1126464,1126485,1126608,1126645,1126672,1126709,1127056,1127077,1127184,1127205,1127232,1127253,1127328,1127350,
    1127381,1127398,1127504,1127542,1127568,1127606,1127648,1127685,1127696,1127798,1127808,1127893,1127974,1128000,
    1128038,1128144,1128198,1128272,1128453,1128608,1128629,1128640,1128677,1128688,1128709,1129312,1129333,1129350,
    1129488,1129510,1129520,1129558,1129568,1129590,1129648,1129670,1129749,1129766,1129781,1129800,1129824,1129848,
    1129872,1130006,1130032,1130501,1131350,1131637,1131704,1131783,1131944,1131968,1131992,1132006,1132021,1132064,
    1132549,1133318,1133637,1133672,1133685,1133696,1133831,1133984,1136645,1137398,1137504,1137542,1137688,1138053,
    1138118,1138144,1138693,1139462,1139736,1139781,1139792,1139975,1140128,1140232,1140432,1140741,1141430,1141637,
    1141656,1141664,1141767,1141920,1142023,1142336,1142789,1143216,1143254,1143488,1143559,1143752,1143801,1143813,
    1143920,1146885,1147590,1147832,1147840,1149441,1149954,1150471,1150768,1150965,1151088,1151125,1151136,1151173,
    1151296,1151317,1151344,1151365,1151750,1151840,1151862,1151888,1151926,1151989,1152006,1152021,1152038,1152072,
    1152112,1152263,1152416,1153541,1153664,1153701,1154326,1154432,1154470,1154581,1154600,1154613,1154630,1154640,
    1155077,1155094,1155253,1155894,1156005,1156022,1156088,1156214,1156224,1156357,1156374,1156549,1157286,1157544,
    1157589,1157608,1157680,1157893,1159056,1159176,1159328,1162245,1162776,1162784,1163015,1163168,1163269,1163408,
    1163429,1164022,1164144,1164166,1164293,1164312,1164384,1164551,1165008,1165064,1165093,1165568,1165606,1165952,
    1165974,1166192,1167365,1167472,1167493,1167520,1167541,1168150,1168240,1168294,1168304,1168326,1168352,1168374,
    1168485,1168502,1168512,1168647,1168800,1168901,1168992,1169013,1169040,1169061,1169574,1169648,1169670,1169696,
    1169718,1169797,1169808,1169927,1170080,1175045,1175350,1175416,1175440,1175558,1175589,1175606,1175621,1175824,
    1175845,1176390,1176496,1176550,1176632,1176839,1176998,1177008,1178373,1178384,1178631,1178969,1179424,1179640,
    1179653,1194400,1196039,1197808,1197832,1197904,1198085,1201216,1243397,1244952,1244976,1245189,1262336,1262598,
    1262613,1262710,1262944,1263109,1327024,1327109,1336432,1445893,1446374,1446663,1446816,1474565,1483664,1483781,
    1484272,1484295,1484448,1484520,1484549,1485808,1485831,1485984,1486085,1486560,1486598,1486680,1486688,1486853,
    1487622,1487736,1487817,1487876,1487944,1487961,1487968,1488135,1488288,1488311,1488416,1488437,1488768,1488853,
    1489152,1496068,1496117,1496756,1496792,1496839,1496992,1500161,1500674,1501191,1501560,1501616,1503237,1504432,
    1504502,1504517,1504534,1505408,1505526,1505588,1505792,1506820,1506856,1506868,1506886,1506896,1507078,1507104,
    1507333,1605504,1605637,1625440,1626101,1626256,1769220,1769280,1769300,1769408,1769428,1769456,1769477,1774128,
    1774373,1774384,1774853,1774896,1774933,1774944,1775173,1775232,1775365,1781696,1818629,1820336,1820421,1820624,
    1820677,1820816,1820933,1821088,1821129,1821142,1821176,1821184,1884169,1888007,1888160,1888265,1895232,1896454,
    1897184,1897222,1897584,1897737,1899584,1900553,1904480,1904649,1905264,1905305,1906262,1906345,1906390,1906480,
    1906614,1906745,1906774,1906889,1907366,1907433,1908400,1908745,1909798,1909849,1909856,1911815,1912128,1912327,
    1912640,1912841,1914224,1914375,1914768,1916929,1917346,1917761,1918178,1918288,1918306,1918593,1919010,1919425,
    1919440,1919457,1919488,1919521,1919536,1919569,1919600,1919633,1919696,1919713,1919842,1919904,1919922,1919936,
    1919954,1920064,1920082,1920257,1920674,1921089,1921120,1921137,1921200,1921233,1921360,1921377,1921488,1921506,
    1921921,1921952,1921969,1922032,1922049,1922128,1922145,1922160,1922209,1922320,1922338,1922753,1923170,1923585,
    1924002,1924417,1924834,1925249,1925666,1926081,1926498,1926913,1927330,1927776,1927809,1928217,1928226,1928633,
    1928642,1928737,1929145,1929154,1929561,1929570,1929665,1930073,1930082,1930489,1930498,1930593,1931001,1931010,
    1931417,1931426,1931521,1931929,1931938,1932345,1932354,1932449,1932466,1932480,1932519,1933321,1941510,1942393,
    1942454,1943257,1943382,1943401,1943622,1943641,1943672,1943744,1943990,1944064,1944086,1944320,1961986,1962149,
    1962162,1962480,1962578,1962672,1966086,1966192,1966214,1966480,1966518,1966624,1966646,1966672,1966694,1966768,
    1966852,1967840,1968374,1968384,1970181,1970896,1970950,1971060,1971168,1971207,1971360,1971429,1971449,1971456,
    1976581,1977062,1977072,1977349,1978054,1978119,1978272,1978361,1978368,1985797,1986228,1986246,1986311,1986464,
    1989893,1990374,1990405,1990423,1990576,1990648,1990656,1998341,1998448,1998469,1998528,1998549,1998576,1998597,
    1998832,1998853,2002000,2002039,2002182,2002288,2002945,2003490,2004038,2004148,2004160,2004231,2004384,2004456,
    2004480,2017047,2017993,2018007,2018057,2018071,2018128,2019351,2020073,2020087,2020320,2023429,2023488,2023509,
    2023936,2023957,2023984,2024005,2024016,2024053,2024064,2024085,2024240,2024261,2024320,2024341,2024352,2024373,
    2024384,2024485,2024496,2024565,2024576,2024597,2024608,2024629,2024640,2024661,2024704,2024725,2024752,2024773,
    2024784,2024821,2024832,2024853,2024864,2024885,2024896,2024917,2024928,2024949,2024960,2024981,2025008,2025029,
    2025040,2025077,2025136,2025157,2025264,2025285,2025344,2025365,2025424,2025445,2025456,2025477,2025632,2025653,
    2025920,2026005,2026048,2026069,2026144,2026165,2026432,2027273,2027296,2031625,2032320,2032393,2033984,2034185,
    2034416,2034457,2034688,2034713,2034944,2034969,2035552,2035719,2035929,2038496,2039401,2039856,2040073,2040768,
    2040841,2040976,2041097,2041120,2041353,2041440,2043913,2059648,2059721,2059984,2060041,2060240,2060297,2062192,
    2062265,2063776,2063881,2064064,2064137,2064144,2064393,2064576,2064649,2065536,2065673,2065824,2065929,2066560,
    2066697,2067168,2067209,2067392,2067465,2067488,2068489,2073920,2074121,2074336,2074377,2074576,2074633,2074784,
    2074873,2075760,2075881,2076112,2076153,2076320,2076425,2076560,2076681,2079024,2079049,2080519,2080672,2097157,
    2780672,2781189,2847648,2847749,2851296,2851333,2943520,2943749,3063312,3063557,3073504,3112965,3121632,3145733,
    3224752,3224837,3291904,14684166,14688000,
};
// Combining classes, as runs (first code point << 8 | class; 255: class 0, but unstable under NFC).
static const uint32_t nfc_runs[762] = {
    0,196838,202216,202460,203496,203736,203996,205258,205788,206794,207324,209921,211420,212454,214512,214758,215004,
    215782,216540,216832,217318,218076,219110,219368,219612,220134,220393,220650,221161,221418,221929,222182,225280,
    226559,226560,229119,229120,231423,231424,295910,296960,365020,365286,366300,366566,367326,367580,367846,369372,
    370918,371420,371686,372190,372452,372710,372746,373003,373260,373517,373774,374031,374288,374545,374802,375059,
    375572,375829,376086,376320,376599,376832,377112,377369,377600,378086,378332,378368,378642,378880,397542,399390,
    399647,399904,400128,412443,412700,412957,413214,413471,413728,413985,414242,414694,415196,415718,416988,417254,
    417756,417792,421923,422144,448230,449792,450534,451548,451814,451840,452582,452864,453340,453606,454108,454144,
    463140,463360,471270,471516,471782,472284,472550,473052,473830,474076,474598,474844,475110,475868,476134,476380,
    476646,476892,477158,477404,477670,477952,519142,520924,521190,521216,523740,523776,530150,530944,531430,533504,
    533990,534528,535014,536064,547292,547840,563430,563676,564454,565248,576230,577500,578790,582144,582620,582886,
    583388,583654,584156,584422,585180,585755,586012,586269,586726,587484,587750,588252,588774,589824,605191,605440,
    609545,609792,610790,611036,611302,611584,612607,614400,637959,638208,638719,638720,642313,642560,645119,645120,
    646399,646656,647167,647168,655078,655104,668671,668672,669439,669440,670727,670976,675081,675328,678399,678912,
    679679,679680,703495,703744,707849,708096,736263,736512,737023,737024,740617,740864,743167,743424,744703,744960,
    769791,769792,773385,773632,776191,776192,801799,802048,806153,806400,808276,808539,808704,834567,834816,836351,
    836352,838921,839168,841215,841472,867081,867584,868095,868096,871689,871936,874495,874496,903689,903936,905215,
    905216,909311,909312,931943,932361,932608,936043,936960,964726,965129,965376,968826,969728,989404,989696,996828,
    996864,997340,997376,997848,997888,1000447,1000448,1003007,1003008,1004287,1004288,1005567,1005568,1006847,1006848,
    1010175,1010176,1012097,1012354,1012735,1012868,1013247,1013504,1014015,1014016,1014402,1015296,1015938,1016319,
    1016550,1016841,1017088,1017574,1017856,1020927,1020928,1023487,1023488,1024767,1024768,1026047,1026048,1027327,
    1027328,1030655,1030656,1033948,1033984,1060607,1060608,1062663,1062912,1063177,1063680,1084892,1084928,1139199,
    1144320,1157375,1164032,1269222,1269760,1512457,1512960,1520649,1520896,1561097,1561344,1564134,1564160,1616356,
    1616384,1653214,1653478,1653724,1653760,1710054,1710300,1710336,1728521,1728768,1734118,1735936,1736668,1736704,
    1749222,1750492,1752038,1752540,1752576,1753052,1753574,1754076,1754598,1755868,1756134,1756928,1782791,1783295,
    1783296,1786889,1787136,1797094,1797340,1797606,1799168,1813001,1813504,1828359,1828608,1831433,1831936,1849095,
    1849344,1888486,1889024,1889281,1889756,1891046,1891548,1892582,1892608,1892865,1894656,1895900,1895936,1897702,
    1897728,1898726,1899008,1949926,1950428,1950694,1952476,1952742,1953258,1953494,1953756,1953994,1954278,1963752,
    1964004,1964508,1964762,1965030,1965289,1965532,1965798,1966044,1966080,2060799,2060800,2061311,2061312,2061823,
    2061824,2062335,2062336,2062847,2062848,2063359,2063360,2063871,2063872,2079743,2079744,2080511,2080512,2083327,
    2083328,2083839,2083840,2085887,2085888,2087935,2087936,2089983,2089984,2092031,2092032,2092799,2093056,2095615,
    2095616,2096127,2096128,2096639,2096640,2097407,2097664,2150630,2150913,2151654,2152449,2153446,2153728,2154982,
    2155008,2155777,2156518,2156764,2157030,2157057,2157788,2158822,2158848,2172671,2172672,2173695,2173952,2304511,
    2304768,2809087,2809088,2944998,2945536,2981641,2981888,3006694,3014656,3156698,3156964,3157224,3157470,3157728,
    3158016,3184904,3185408,10907622,10907648,10908902,10911232,10919654,10919936,10940646,10940928,11011593,11011840,
    11021321,11021568,11060233,11060480,11067622,11072000,11086812,11087360,11096841,11097088,11121415,11121664,
    11124745,11124992,11186406,11186432,11186918,11187420,11187456,11188198,11188480,11189990,11190272,11190758,
    11190784,11204105,11204352,11267337,11267584,16318719,16387584,16388351,16388352,16388863,16388864,16389631,
    16391936,16392447,16392448,16392959,16392960,16393727,16393984,16395007,16412160,16412927,16439808,16457215,
    16457242,16457727,16457728,16460543,16463616,16464127,16465152,16465663,16465664,16466175,16466432,16466943,
    16467200,16467711,16469760,16654566,16656348,16658150,16658432,16907740,16907776,16965852,16965888,17004262,
    17005312,17436124,17436160,17436646,17436672,17447142,17447169,17447644,17447680,17448713,17448960,17491430,
    17491676,17491712,17638630,17639424,17738726,17739008,17759708,17760256,17778396,17778918,17779676,17779942,
    17780188,17780992,17793766,17794012,17794278,17794524,17794560,17843721,17843968,17854473,17854720,17858313,
    17858560,17873161,17873415,17873664,17891558,17892096,17901567,17901568,17904393,17904896,17920775,17921024,
    17940489,17940736,17943047,17943296,17970441,17970695,17970944,18016519,18016777,18017024,18037511,18038016,
    18038527,18038528,18042121,18042368,18044927,18044928,18048742,18050304,18051302,18052352,18104841,18105088,
    18105863,18106112,18112230,18112256,18133247,18133248,18135807,18135808,18136575,18136576,18137609,18137863,
    18138112,18198527,18198528,18202377,18202631,18202880,18235145,18235392,18265609,18265863,18266112,18295561,
    18295808,18364681,18364935,18365184,18428159,18428160,18431241,18431744,18432775,18433024,18472969,18473216,
    18494473,18494720,18499337,18499584,18520329,18520576,18628361,18628608,18694663,18694912,18695177,18695680,
    18716425,18716672,18825481,18825984,23785473,23786752,23802086,23803648,24113158,24113664,29138433,29138688,
    30498559,30500312,30500609,30501376,30502370,30502616,30503680,30505948,30507776,30508518,30509788,30510080,
    30517990,30518784,30522367,30523648,30556902,30557440,31457510,31459072,31459558,31463680,31464422,31465984,
    31466470,31466752,31467238,31468288,31494118,31494144,31535334,31536896,31633126,31633152,31648998,31649792,
    31780072,31780572,31780838,31780864,32035036,32036608,32064742,32066055,32066304,49807615,49946112,
};
// Canonical decompositions into two: runs (first code point, number of its pair), and the pairs.
static const uint32_t pair_runs[454] = {
    192,0,199,6,209,15,217,21,224,26,231,32,241,41,249,47,255,52,274,69,296,89,308,98,313,102,323,108,332,114,340,120,
    360,138,416,161,431,163,461,165,478,181,486,187,500,198,504,200,542,236,550,238,836,252,901,253,904,255,908,258,910,
    259,938,262,970,269,979,274,1024,276,1027,278,1031,279,1036,280,1049,283,1081,284,1104,285,1107,287,1111,288,1116,
    289,1142,292,1217,294,1232,296,1238,300,1242,302,1250,308,1258,314,1272,326,1570,328,1728,333,1730,334,1747,335,
    2345,336,2353,337,2356,338,2392,339,2507,347,2524,349,2527,351,2611,352,2614,353,2649,354,2654,357,2888,358,2891,
    359,2908,361,2964,363,3018,364,3144,367,3264,368,3271,369,3274,371,3402,373,3546,376,3548,377,3907,380,3917,381,
    3922,382,3927,383,3932,384,3945,385,3955,386,3957,387,3960,389,3969,390,3987,391,3997,392,4002,393,4007,394,4012,
    395,4025,396,4134,397,6918,398,6920,399,6922,400,6924,401,6926,402,6930,403,6971,404,6973,405,6976,406,6979,408,
    7680,409,7835,563,7840,564,7936,654,7960,676,7968,682,8008,720,8016,726,8025,734,8027,735,8029,736,8031,737,8050,
    755,8052,756,8054,757,8056,758,8058,759,8060,760,8064,761,8118,814,8124,819,8129,820,8134,824,8138,827,8140,828,
    8150,835,8157,840,8164,846,8172,853,8178,855,8182,858,8186,861,8188,862,8602,863,8622,865,8653,866,8708,869,8713,
    870,8716,871,8740,872,8742,873,8769,874,8772,875,8775,876,8777,877,8800,878,8802,879,8813,880,8820,885,8824,887,
    8832,889,8836,891,8840,893,8876,895,8928,899,8938,903,10972,907,12364,908,12366,909,12368,910,12370,911,12372,912,
    12374,913,12376,914,12378,915,12380,916,12382,917,12384,918,12386,919,12389,920,12391,921,12393,922,12400,923,12403,
    925,12406,927,12409,929,12412,931,12436,933,12446,934,12460,935,12462,936,12464,937,12466,938,12468,939,12470,940,
    12472,941,12474,942,12476,943,12478,944,12480,945,12482,946,12485,947,12487,948,12489,949,12496,950,12499,952,12502,
    954,12505,956,12508,958,12532,960,12535,961,12542,965,64285,966,64287,967,64298,968,64312,981,64318,986,64320,987,
    64323,989,64326,991,69786,1000,69788,1001,69803,1002,69934,1003,70475,1005,70843,1007,70846,1009,71098,1010,71992,
    1012,119134,1013,119227,1020,
};
static const uint32_t pairs[2052] = {
    65,768,65,769,65,770,65,771,65,776,65,778,67,807,69,768,69,769,69,770,69,776,73,768,73,769,73,770,73,776,78,771,79,
    768,79,769,79,770,79,771,79,776,85,768,85,769,85,770,85,776,89,769,97,768,97,769,97,770,97,771,97,776,97,778,99,807,
    101,768,101,769,101,770,101,776,105,768,105,769,105,770,105,776,110,771,111,768,111,769,111,770,111,771,111,776,117,
    768,117,769,117,770,117,776,121,769,121,776,65,772,97,772,65,774,97,774,65,808,97,808,67,769,99,769,67,770,99,770,
    67,775,99,775,67,780,99,780,68,780,100,780,69,772,101,772,69,774,101,774,69,775,101,775,69,808,101,808,69,780,101,
    780,71,770,103,770,71,774,103,774,71,775,103,775,71,807,103,807,72,770,104,770,73,771,105,771,73,772,105,772,73,774,
    105,774,73,808,105,808,73,775,74,770,106,770,75,807,107,807,76,769,108,769,76,807,108,807,76,780,108,780,78,769,110,
    769,78,807,110,807,78,780,110,780,79,772,111,772,79,774,111,774,79,779,111,779,82,769,114,769,82,807,114,807,82,780,
    114,780,83,769,115,769,83,770,115,770,83,807,115,807,83,780,115,780,84,807,116,807,84,780,116,780,85,771,117,771,85,
    772,117,772,85,774,117,774,85,778,117,778,85,779,117,779,85,808,117,808,87,770,119,770,89,770,121,770,89,776,90,769,
    122,769,90,775,122,775,90,780,122,780,79,795,111,795,85,795,117,795,65,780,97,780,73,780,105,780,79,780,111,780,85,
    780,117,780,220,772,252,772,220,769,252,769,220,780,252,780,220,768,252,768,196,772,228,772,550,772,551,772,198,772,
    230,772,71,780,103,780,75,780,107,780,79,808,111,808,490,772,491,772,439,780,658,780,106,780,71,769,103,769,78,768,
    110,768,197,769,229,769,198,769,230,769,216,769,248,769,65,783,97,783,65,785,97,785,69,783,101,783,69,785,101,785,
    73,783,105,783,73,785,105,785,79,783,111,783,79,785,111,785,82,783,114,783,82,785,114,785,85,783,117,783,85,785,117,
    785,83,806,115,806,84,806,116,806,72,780,104,780,65,775,97,775,69,807,101,807,214,772,246,772,213,772,245,772,79,
    775,111,775,558,772,559,772,89,772,121,772,776,769,168,769,913,769,917,769,919,769,921,769,927,769,933,769,937,769,
    970,769,921,776,933,776,945,769,949,769,951,769,953,769,971,769,953,776,965,776,959,769,965,769,969,769,978,769,978,
    776,1045,768,1045,776,1043,769,1030,776,1050,769,1048,768,1059,774,1048,774,1080,774,1077,768,1077,776,1075,769,
    1110,776,1082,769,1080,768,1091,774,1140,783,1141,783,1046,774,1078,774,1040,774,1072,774,1040,776,1072,776,1045,
    774,1077,774,1240,776,1241,776,1046,776,1078,776,1047,776,1079,776,1048,772,1080,772,1048,776,1080,776,1054,776,
    1086,776,1256,776,1257,776,1069,776,1101,776,1059,772,1091,772,1059,776,1091,776,1059,779,1091,779,1063,776,1095,
    776,1067,776,1099,776,1575,1619,1575,1620,1608,1620,1575,1621,1610,1620,1749,1620,1729,1620,1746,1620,2344,2364,
    2352,2364,2355,2364,2325,2364,2326,2364,2327,2364,2332,2364,2337,2364,2338,2364,2347,2364,2351,2364,2503,2494,2503,
    2519,2465,2492,2466,2492,2479,2492,2610,2620,2616,2620,2582,2620,2583,2620,2588,2620,2603,2620,2887,2902,2887,2878,
    2887,2903,2849,2876,2850,2876,2962,3031,3014,3006,3015,3006,3014,3031,3142,3158,3263,3285,3270,3285,3270,3286,3270,
    3266,3274,3285,3398,3390,3399,3390,3398,3415,3545,3530,3545,3535,3548,3530,3545,3551,3906,4023,3916,4023,3921,4023,
    3926,4023,3931,4023,3904,4021,3953,3954,3953,3956,4018,3968,4019,3968,3953,3968,3986,4023,3996,4023,4001,4023,4006,
    4023,4011,4023,3984,4021,4133,4142,6917,6965,6919,6965,6921,6965,6923,6965,6925,6965,6929,6965,6970,6965,6972,6965,
    6974,6965,6975,6965,6978,6965,65,805,97,805,66,775,98,775,66,803,98,803,66,817,98,817,199,769,231,769,68,775,100,
    775,68,803,100,803,68,817,100,817,68,807,100,807,68,813,100,813,274,768,275,768,274,769,275,769,69,813,101,813,69,
    816,101,816,552,774,553,774,70,775,102,775,71,772,103,772,72,775,104,775,72,803,104,803,72,776,104,776,72,807,104,
    807,72,814,104,814,73,816,105,816,207,769,239,769,75,769,107,769,75,803,107,803,75,817,107,817,76,803,108,803,7734,
    772,7735,772,76,817,108,817,76,813,108,813,77,769,109,769,77,775,109,775,77,803,109,803,78,775,110,775,78,803,110,
    803,78,817,110,817,78,813,110,813,213,769,245,769,213,776,245,776,332,768,333,768,332,769,333,769,80,769,112,769,80,
    775,112,775,82,775,114,775,82,803,114,803,7770,772,7771,772,82,817,114,817,83,775,115,775,83,803,115,803,346,775,
    347,775,352,775,353,775,7778,775,7779,775,84,775,116,775,84,803,116,803,84,817,116,817,84,813,116,813,85,804,117,
    804,85,816,117,816,85,813,117,813,360,769,361,769,362,776,363,776,86,771,118,771,86,803,118,803,87,768,119,768,87,
    769,119,769,87,776,119,776,87,775,119,775,87,803,119,803,88,775,120,775,88,776,120,776,89,775,121,775,90,770,122,
    770,90,803,122,803,90,817,122,817,104,817,116,776,119,778,121,778,383,775,65,803,97,803,65,777,97,777,194,769,226,
    769,194,768,226,768,194,777,226,777,194,771,226,771,7840,770,7841,770,258,769,259,769,258,768,259,768,258,777,259,
    777,258,771,259,771,7840,774,7841,774,69,803,101,803,69,777,101,777,69,771,101,771,202,769,234,769,202,768,234,768,
    202,777,234,777,202,771,234,771,7864,770,7865,770,73,777,105,777,73,803,105,803,79,803,111,803,79,777,111,777,212,
    769,244,769,212,768,244,768,212,777,244,777,212,771,244,771,7884,770,7885,770,416,769,417,769,416,768,417,768,416,
    777,417,777,416,771,417,771,416,803,417,803,85,803,117,803,85,777,117,777,431,769,432,769,431,768,432,768,431,777,
    432,777,431,771,432,771,431,803,432,803,89,768,121,768,89,803,121,803,89,777,121,777,89,771,121,771,945,787,945,788,
    7936,768,7937,768,7936,769,7937,769,7936,834,7937,834,913,787,913,788,7944,768,7945,768,7944,769,7945,769,7944,834,
    7945,834,949,787,949,788,7952,768,7953,768,7952,769,7953,769,917,787,917,788,7960,768,7961,768,7960,769,7961,769,
    951,787,951,788,7968,768,7969,768,7968,769,7969,769,7968,834,7969,834,919,787,919,788,7976,768,7977,768,7976,769,
    7977,769,7976,834,7977,834,953,787,953,788,7984,768,7985,768,7984,769,7985,769,7984,834,7985,834,921,787,921,788,
    7992,768,7993,768,7992,769,7993,769,7992,834,7993,834,959,787,959,788,8000,768,8001,768,8000,769,8001,769,927,787,
    927,788,8008,768,8009,768,8008,769,8009,769,965,787,965,788,8016,768,8017,768,8016,769,8017,769,8016,834,8017,834,
    933,788,8025,768,8025,769,8025,834,969,787,969,788,8032,768,8033,768,8032,769,8033,769,8032,834,8033,834,937,787,
    937,788,8040,768,8041,768,8040,769,8041,769,8040,834,8041,834,945,768,949,768,951,768,953,768,959,768,965,768,969,
    768,7936,837,7937,837,7938,837,7939,837,7940,837,7941,837,7942,837,7943,837,7944,837,7945,837,7946,837,7947,837,
    7948,837,7949,837,7950,837,7951,837,7968,837,7969,837,7970,837,7971,837,7972,837,7973,837,7974,837,7975,837,7976,
    837,7977,837,7978,837,7979,837,7980,837,7981,837,7982,837,7983,837,8032,837,8033,837,8034,837,8035,837,8036,837,
    8037,837,8038,837,8039,837,8040,837,8041,837,8042,837,8043,837,8044,837,8045,837,8046,837,8047,837,945,774,945,772,
    8048,837,945,837,940,837,945,834,8118,837,913,774,913,772,913,768,913,837,168,834,8052,837,951,837,942,837,951,834,
    8134,837,917,768,919,768,919,837,8127,768,8127,769,8127,834,953,774,953,772,970,768,953,834,970,834,921,774,921,772,
    921,768,8190,768,8190,769,8190,834,965,774,965,772,971,768,961,787,961,788,965,834,971,834,933,774,933,772,933,768,
    929,788,168,768,8060,837,969,837,974,837,969,834,8182,837,927,768,937,768,937,837,8592,824,8594,824,8596,824,8656,
    824,8660,824,8658,824,8707,824,8712,824,8715,824,8739,824,8741,824,8764,824,8771,824,8773,824,8776,824,61,824,8801,
    824,8781,824,60,824,62,824,8804,824,8805,824,8818,824,8819,824,8822,824,8823,824,8826,824,8827,824,8834,824,8835,
    824,8838,824,8839,824,8866,824,8872,824,8873,824,8875,824,8828,824,8829,824,8849,824,8850,824,8882,824,8883,824,
    8884,824,8885,824,10973,824,12363,12441,12365,12441,12367,12441,12369,12441,12371,12441,12373,12441,12375,12441,
    12377,12441,12379,12441,12381,12441,12383,12441,12385,12441,12388,12441,12390,12441,12392,12441,12399,12441,12399,
    12442,12402,12441,12402,12442,12405,12441,12405,12442,12408,12441,12408,12442,12411,12441,12411,12442,12358,12441,
    12445,12441,12459,12441,12461,12441,12463,12441,12465,12441,12467,12441,12469,12441,12471,12441,12473,12441,12475,
    12441,12477,12441,12479,12441,12481,12441,12484,12441,12486,12441,12488,12441,12495,12441,12495,12442,12498,12441,
    12498,12442,12501,12441,12501,12442,12504,12441,12504,12442,12507,12441,12507,12442,12454,12441,12527,12441,12528,
    12441,12529,12441,12530,12441,12541,12441,1497,1460,1522,1463,1513,1473,1513,1474,64329,1473,64329,1474,1488,1463,
    1488,1464,1488,1468,1489,1468,1490,1468,1491,1468,1492,1468,1493,1468,1494,1468,1496,1468,1497,1468,1498,1468,1499,
    1468,1500,1468,1502,1468,1504,1468,1505,1468,1507,1468,1508,1468,1510,1468,1511,1468,1512,1468,1513,1468,1514,1468,
    1493,1465,1489,1471,1499,1471,1508,1471,69785,69818,69787,69818,69797,69818,69937,69927,69938,69927,70471,70462,
    70471,70487,70841,70842,70841,70832,70841,70845,71096,71087,71097,71087,71989,71984,119127,119141,119128,119141,
    119135,119150,119135,119151,119135,119152,119135,119153,119135,119154,119225,119141,119226,119141,119227,119150,
    119228,119150,119227,119151,119228,119151,
};
// The code points that pairs compose to, in the order of their pairs.
static const uint32_t compositions[941] = {
    8814,8800,8815,192,193,194,195,256,258,550,196,7842,197,461,512,514,7840,7680,260,7682,7684,7686,262,264,266,268,
    199,7690,270,7692,7696,7698,7694,200,201,202,7868,274,276,278,203,7866,282,516,518,7864,552,280,7704,7706,7710,500,
    284,7712,286,288,486,290,292,7714,7718,542,7716,7720,7722,204,205,206,296,298,300,304,207,7880,463,520,522,7882,302,
    7724,308,7728,488,7730,310,7732,313,317,7734,315,7740,7738,7742,7744,7746,504,323,209,7748,327,7750,325,7754,7752,
    210,211,212,213,332,334,558,214,7886,336,465,524,526,416,7884,490,7764,7766,340,7768,344,528,530,7770,342,7774,346,
    348,7776,352,7778,536,350,7786,356,7788,538,354,7792,7790,217,218,219,360,362,364,220,7910,366,368,467,532,534,431,
    7908,7794,370,7798,7796,7804,7806,7808,7810,372,7814,7812,7816,7818,7820,7922,221,374,7928,562,7822,376,7926,7924,
    377,7824,379,381,7826,7828,224,225,226,227,257,259,551,228,7843,229,462,513,515,7841,7681,261,7683,7685,7687,263,
    265,267,269,231,7691,271,7693,7697,7699,7695,232,233,234,7869,275,277,279,235,7867,283,517,519,7865,553,281,7705,
    7707,7711,501,285,7713,287,289,487,291,293,7715,7719,543,7717,7721,7723,7830,236,237,238,297,299,301,239,7881,464,
    521,523,7883,303,7725,309,496,7729,489,7731,311,7733,314,318,7735,316,7741,7739,7743,7745,7747,505,324,241,7749,328,
    7751,326,7755,7753,242,243,244,245,333,335,559,246,7887,337,466,525,527,417,7885,491,7765,7767,341,7769,345,529,531,
    7771,343,7775,347,349,7777,353,7779,537,351,7787,7831,357,7789,539,355,7793,7791,249,250,251,361,363,365,252,7911,
    367,369,468,533,535,432,7909,7795,371,7799,7797,7805,7807,7809,7811,373,7815,7813,7832,7817,7819,7821,7923,253,375,
    7929,563,7823,255,7927,7833,7925,378,7825,380,382,7827,7829,8173,901,8129,7846,7844,7850,7848,478,506,508,482,7688,
    7872,7870,7876,7874,7726,7890,7888,7894,7892,7756,556,7758,554,510,475,471,469,473,7847,7845,7851,7849,479,507,509,
    483,7689,7873,7871,7877,7875,7727,7891,7889,7895,7893,7757,557,7759,555,511,476,472,470,474,7856,7854,7860,7858,
    7857,7855,7861,7859,7700,7702,7701,7703,7760,7762,7761,7763,7780,7781,7782,7783,7800,7801,7802,7803,7835,7900,7898,
    7904,7902,7906,7901,7899,7905,7903,7907,7914,7912,7918,7916,7920,7915,7913,7919,7917,7921,494,492,493,480,481,7708,
    7709,560,561,495,8122,902,8121,8120,7944,7945,8124,8136,904,7960,7961,8138,905,7976,7977,8140,8154,906,8153,8152,
    938,7992,7993,8184,908,8008,8009,8172,8170,910,8169,8168,939,8025,8186,911,8040,8041,8188,8116,8132,8048,940,8113,
    8112,7936,7937,8118,8115,8050,941,7952,7953,8052,942,7968,7969,8134,8131,8054,943,8145,8144,970,7984,7985,8150,8056,
    972,8000,8001,8164,8165,8058,973,8161,8160,971,8016,8017,8166,8060,974,8032,8033,8182,8179,8146,912,8151,8162,944,
    8167,8180,979,980,1031,1232,1234,1027,1024,1238,1025,1217,1244,1246,1037,1250,1049,1252,1036,1254,1262,1038,1264,
    1266,1268,1272,1260,1233,1235,1107,1104,1239,1105,1218,1245,1247,1117,1251,1081,1253,1116,1255,1263,1118,1265,1267,
    1269,1273,1261,1111,1142,1143,1242,1243,1258,1259,1570,1571,1573,1572,1574,1730,1747,1728,2345,2353,2356,2507,2508,
    2891,2888,2892,2964,3018,3020,3019,3144,3264,3274,3271,3272,3275,3402,3404,3403,3546,3548,3550,3549,4134,6918,6920,
    6922,6924,6926,6930,6971,6973,6976,6977,6979,7736,7737,7772,7773,7784,7785,7852,7862,7853,7863,7878,7879,7896,7897,
    7938,7940,7942,8064,7939,7941,7943,8065,8066,8067,8068,8069,8070,8071,7946,7948,7950,8072,7947,7949,7951,8073,8074,
    8075,8076,8077,8078,8079,7954,7956,7955,7957,7962,7964,7963,7965,7970,7972,7974,8080,7971,7973,7975,8081,8082,8083,
    8084,8085,8086,8087,7978,7980,7982,8088,7979,7981,7983,8089,8090,8091,8092,8093,8094,8095,7986,7988,7990,7987,7989,
    7991,7994,7996,7998,7995,7997,7999,8002,8004,8003,8005,8010,8012,8011,8013,8018,8020,8022,8019,8021,8023,8027,8029,
    8031,8034,8036,8038,8096,8035,8037,8039,8097,8098,8099,8100,8101,8102,8103,8042,8044,8046,8104,8043,8045,8047,8105,
    8106,8107,8108,8109,8110,8111,8114,8130,8178,8119,8141,8142,8143,8135,8183,8157,8158,8159,8602,8603,8622,8653,8655,
    8654,8708,8713,8716,8740,8742,8769,8772,8775,8777,8813,8802,8816,8817,8820,8821,8824,8825,8832,8833,8928,8929,8836,
    8837,8840,8841,8930,8931,8876,8877,8878,8879,8938,8939,8940,8941,12436,12364,12366,12368,12370,12372,12374,12376,
    12378,12380,12382,12384,12386,12389,12391,12393,12400,12401,12403,12404,12406,12407,12409,12410,12412,12413,12446,
    12532,12460,12462,12464,12466,12468,12470,12472,12474,12476,12478,12480,12482,12485,12487,12489,12496,12497,12499,
    12500,12502,12503,12505,12506,12508,12509,12535,12536,12537,12538,12542,69786,69788,69803,69934,69935,70475,70476,
    70844,70843,70846,71098,71099,71992,
};
// Canonical decompositions into one: runs (first code point, number of its target), and the targets.
static const uint32_t single_runs[76] = {
    832,0,835,2,884,3,894,4,903,5,8049,6,8051,7,8053,8,8055,9,8057,10,8059,11,8061,12,8123,13,8126,14,8137,15,8139,16,
    8147,17,8155,18,8163,19,8171,20,8174,21,8185,23,8187,24,8189,25,8192,26,8486,28,8490,29,9001,31,63744,33,64016,303,
    64018,304,64021,305,64032,315,64034,316,64037,317,64042,319,64112,387,194560,493,
};
static const uint32_t single_targets[1035] = {
    768,769,787,697,59,183,940,941,942,943,972,973,974,902,953,904,905,912,906,944,910,901,96,908,911,180,8194,8195,937,
    75,197,12296,12297,35912,26356,36554,36040,28369,20018,21477,40860,40860,22865,37329,21895,22856,25078,30313,32645,
    34367,34746,35064,37007,27138,27931,28889,29662,33853,37226,39409,20098,21365,27396,29211,34349,40478,23888,28651,
    34253,35172,25289,33240,34847,24266,26391,28010,29436,37070,20358,20919,21214,25796,27347,29200,30439,32769,34310,
    34396,36335,38706,39791,40442,30860,31103,32160,33737,37636,40575,35542,22751,24324,31840,32894,29282,30922,36034,
    38647,22744,23650,27155,28122,28431,32047,32311,38475,21202,32907,20956,20940,31260,32190,33777,38517,35712,25295,
    27138,35582,20025,23527,24594,29575,30064,21271,30971,20415,24489,19981,27852,25976,32034,21443,22622,30465,33865,
    35498,27578,36784,27784,25342,33509,25504,30053,20142,20841,20937,26753,31975,33391,35538,37327,21237,21570,22899,
    24300,26053,28670,31018,38317,39530,40599,40654,21147,26310,27511,36706,24180,24976,25088,25754,28451,29001,29833,
    31178,32244,32879,36646,34030,36899,37706,21015,21155,21693,28872,35010,35498,24265,24565,25467,27566,31806,29557,
    20196,22265,23527,23994,24604,29618,29801,32666,32838,37428,38646,38728,38936,20363,31150,37300,38584,24801,20102,
    20698,23534,23615,26009,27138,29134,30274,34044,36988,40845,26248,38446,21129,26491,26611,27969,28316,29705,30041,
    30827,32016,39006,20845,25134,38520,20523,23833,28138,36650,24459,24900,26647,29575,38534,21033,21519,23653,26131,
    26446,26792,27877,29702,30178,32633,35023,35041,37324,38626,21311,28346,21533,29136,29848,34298,38563,40023,40607,
    26519,28107,33256,31435,31520,31890,29376,28825,35672,20160,33590,21050,20999,24230,25299,31958,23429,27934,26292,
    36667,34892,38477,35211,24275,20800,21952,22618,26228,20958,29482,30410,31036,31070,31077,31119,38742,31934,32701,
    34322,35576,36920,37117,39151,39164,39208,40372,37086,38583,20398,20711,20813,21193,21220,21329,21917,22022,22120,
    22592,22696,23652,23662,24724,24936,24974,25074,25935,26082,26257,26757,28023,28186,28450,29038,29227,29730,30865,
    31038,31049,31048,31056,31062,31069,31117,31118,31296,31361,31680,32244,32265,32321,32626,32773,33261,33401,33401,
    33879,35088,35222,35585,35641,36051,36104,36790,36920,38627,38911,38971,24693,148206,33304,20006,20917,20840,20352,
    20805,20864,21191,21242,21917,21845,21913,21986,22618,22707,22852,22868,23138,23336,24274,24281,24425,24493,24792,
    24910,24840,24974,24928,25074,25140,25540,25628,25682,25942,26228,26391,26395,26454,27513,27578,27969,28379,28363,
    28450,28702,29038,30631,29237,29359,29482,29809,29958,30011,30237,30239,30410,30427,30452,30538,30528,30924,31409,
    31680,31867,32091,32244,32574,32773,33618,33775,34681,35137,35206,35222,35519,35576,35531,35585,35582,35565,35641,
    35722,36104,36664,36978,37273,37494,38524,38627,38742,38875,38911,38923,38971,39698,40860,141386,141380,144341,
    15261,16408,16441,152137,154832,163539,40771,40846,20029,20024,20033,131362,20320,20398,20411,20482,20602,20633,
    20711,20687,13470,132666,20813,20820,20836,20855,132380,13497,20839,20877,132427,20887,20900,20172,20908,20917,
    168415,20981,20995,13535,21051,21062,21106,21111,13589,21191,21193,21220,21242,21253,21254,21271,21321,21329,21338,
    21363,21373,21375,21375,21375,133676,28784,21450,21471,133987,21483,21489,21510,21662,21560,21576,21608,21666,21750,
    21776,21843,21859,21892,21892,21913,21931,21939,21954,22294,22022,22295,22097,22132,20999,22766,22478,22516,22541,
    22411,22578,22577,22700,136420,22770,22775,22790,22810,22818,22882,136872,136938,23020,23067,23079,23000,23142,
    14062,14076,23304,23358,23358,137672,23491,23512,23527,23539,138008,23551,23558,24403,23586,14209,23648,23662,23744,
    23693,138724,23875,138726,23918,23915,23932,24033,24034,14383,24061,24104,24125,24169,14434,139651,14460,24240,
    24243,24246,24266,172946,24318,140081,140081,33281,24354,24354,14535,144056,156122,24418,24427,14563,24474,24525,
    24535,24569,24705,14650,14620,24724,141012,24775,24904,24908,24910,24908,24954,24974,25010,24996,25007,25054,25074,
    25078,25104,25115,25181,25265,25300,25424,142092,25405,25340,25448,25475,25572,142321,25634,25541,25513,14894,25705,
    25726,25757,25719,14956,25935,25964,143370,26083,26360,26185,15129,26257,15112,15076,20882,20885,26368,26268,32941,
    17369,26391,26395,26401,26462,26451,144323,15177,26618,26501,26706,26757,144493,26766,26655,26900,15261,26946,27043,
    27114,27304,145059,27355,15384,27425,145575,27476,15438,27506,27551,27578,27579,146061,138507,146170,27726,146620,
    27839,27853,27751,27926,27966,28023,27969,28009,28024,28037,146718,27956,28207,28270,15667,28363,28359,147153,28153,
    28526,147294,147342,28614,28729,28702,28699,15766,28746,28797,28791,28845,132389,28997,148067,29084,148395,29224,
    29237,29264,149000,29312,29333,149301,149524,29562,29579,16044,29605,16056,16056,29767,29788,29809,29829,29898,
    16155,29988,150582,30014,150674,30064,139679,30224,151457,151480,151620,16380,16392,30452,151795,151794,151833,
    151859,30494,30495,30495,30538,16441,30603,16454,16534,152605,30798,30860,30924,16611,153126,31062,153242,153285,
    31119,31211,16687,31296,31306,31311,153980,154279,154279,31470,16898,154539,31686,31689,16935,154752,31954,17056,
    31976,31971,32000,155526,32099,17153,32199,32258,32325,17204,156200,156231,17241,156377,32634,156478,32661,32762,
    32773,156890,156963,32864,157096,32880,144223,17365,32946,33027,17419,33086,23221,157607,157621,144275,144284,33281,
    33284,36766,17515,33425,33419,33437,21171,33457,33459,33469,33510,158524,33509,33565,33635,33709,33571,33725,33767,
    33879,33619,33738,33740,33756,158774,159083,158933,17707,34033,34035,34070,160714,34148,159532,17757,17761,159665,
    159954,17771,34384,34396,34407,34409,34473,34440,34574,34530,34681,34600,34667,34694,17879,34785,34817,17913,34912,
    34915,161383,35031,35038,17973,35066,13499,161966,162150,18110,18119,35488,35565,35722,35925,162984,36011,36033,
    36123,36215,163631,133124,36299,36284,36336,133342,36564,36664,165330,165357,37012,37105,37137,165678,37147,37432,
    37591,37592,37500,37881,37909,166906,38283,18837,38327,167287,18918,38595,23986,38691,168261,168474,19054,19062,
    38880,168970,19122,169110,38923,38923,38953,169398,39138,19251,39209,39335,39362,39422,19406,170800,39698,40000,
    40189,19662,19693,40295,172238,19704,172293,172558,172689,40635,19798,40697,40702,40709,40719,40726,40763,173568,
};
// END generated

// The last of n runs, `stride` numbers each, whose first number is at most key; the first run always is.
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

static unsigned char_class(uint32_t cp) {
    if (cp < 128) return 1u << ascii_classes[cp];
    unsigned k = *run_of(class_runs, RUN_COUNT(class_runs, 1), 1, cp << 4 | 15) & 15;
    if (k >= CLASS_EVEN) k = (k & 1) == (cp & 1) ? CLASS_LU : CLASS_LL;
    return 1u << k;
}

static unsigned nfc_class(uint32_t cp) {
    return *run_of(nfc_runs, RUN_COUNT(nfc_runs, 1), 1, cp << 8 | 255) & 255;
}

// The number of cp's entry in a table of decompositions; `total` when it has none.
static uint32_t decomposition_of(uint32_t cp, const uint32_t *runs, size_t n, uint32_t total) {
    const uint32_t *run = run_of(runs, n, 2, cp);
    uint32_t limit = run + 2 < runs + 2 * n ? run[3] : total;
    return cp >= run[0] && cp - run[0] < limit - run[1] ? run[1] + cp - run[0] : total;
}

static int canonical_pair(uint32_t cp, uint32_t pair[2]) {
    const uint32_t total = RUN_COUNT(pairs, 2);
    uint32_t at = decomposition_of(cp, pair_runs, RUN_COUNT(pair_runs, 2), total);
    if (at == total) return 0;
    pair[0] = pairs[2 * at];
    pair[1] = pairs[2 * at + 1];
    return 1;
}

static uint32_t canonical_single(uint32_t cp) {
    const uint32_t total = RUN_COUNT(single_targets, 1);
    uint32_t at = decomposition_of(cp, single_runs, RUN_COUNT(single_runs, 2), total);
    return at == total ? 0 : single_targets[at];
}

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
