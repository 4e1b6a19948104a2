/* text/mend_json.c: objects and lists as models write them -> JSON, while their text comes. It knows nothing of what they mean.

   Mended is what can have been meant in one way only: line feeds in strings, backslashes that escape nothing, commas and closing
   brackets too many or too few, Python's True, False and None, and on demand Python's strings in single quotes. */

typedef struct json_mender {
    buf out;
    char open[JSON_DEPTH];  /* the brackets we are inside of */
    int depth;
    int python;             /* strings may stand in single quotes */
    char quote;             /* of the string we are inside of; 0: none */
    size_t comma;           /* 1 + where in out the last comma is, if nothing but space followed; else 0 */
} json_mender;

static void mend_begin(json_mender *m, int python) {
    buf out = m->out;
    memset(m, 0, sizeof *m);
    m->out = out;
    m->out.size = 0;
    m->python = python;
}

static void put_string_byte(buf *out, char c) {
    char escaped[8];
    if ((unsigned char)c >= 0x20) {
        buf_add(out, &c, 1);
        return;
    }
    snprintf(escaped, sizeof escaped, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\u%04x", (unsigned)c);
    buf_text(out, escaped);
}

/* A text as a JSON string. */
static void put_quoted(slice text, buf *out) {
    buf_text(out, "\"");
    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] == '"' || text.p[i] == '\\') buf_text(out, "\\");
        put_string_byte(out, text.p[i]);
    }
    buf_text(out, "\"");
}

static void mend_byte(json_mender *m, char c) {
    buf_add(&m->out, &c, 1);
    if (c == ',') m->comma = m->out.size;
    else if (c != ' ' && c != '\n' && c != '\t' && c != '\r') m->comma = 0;
}

/* Closes the innermost bracket. A comma before it goes. */
static void mend_close(json_mender *m) {
    if (m->comma && !m->out.failed) m->out.data[m->comma - 1] = ' ';
    mend_byte(m, m->open[--m->depth] == '{' ? '}' : ']');
}

/* A closing bracket; those that are missing before it are put there. 0: nothing is open for it. */
static int mend_bracket(json_mender *m, char c) {
    int match = m->depth;
    while (match && m->open[match - 1] != (c == '}' ? '{' : '[')) match--;
    while (match && m->depth >= match) mend_close(m);
    return match != 0;
}

/* An escape, at the backslash that s begins with. As for mend_next. */
static int mend_escape(json_mender *m, slice s, int end) {
    enum { LONGEST = 12 };
    const char hex[3] = {(char)(s.n > 3 ? s.p[2] : 0), (char)(s.n > 3 ? s.p[3] : 0), 0};
    uint32_t cp;
    int n = json_escape(s.p, s.p + s.n, &cp);
    if (!n && s.n < LONGEST && !end) return 0;
    if (n) {
        buf_add(&m->out, s.p, (size_t)n);
    } else if (m->python && s.n > 1 && s.p[1] == '\'') {
        buf_text(&m->out, "'");
        n = 2;
    } else if (m->python && s.n > 1 && s.p[1] == 'x' && strspn(hex, "0123456789abcdefABCDEF") == 2) {
        buf_text(&m->out, "\\u00");
        buf_text(&m->out, hex);
        n = 4;
    } else {
        buf_text(&m->out, "\\\\");
        n = 1;
    }
    return n;
}

static int mend_in_string(json_mender *m, slice s, int end) {
    char c = *s.p;
    if (c == '\\') return mend_escape(m, s, end);
    if (c == m->quote) {
        m->quote = 0;
        mend_byte(m, '"');
        return 1;
    }
    if (c == '"') buf_text(&m->out, "\\");
    put_string_byte(&m->out, c);
    return 1;
}

/* Bytes of s that stand for one of Python's words, and its JSON. 0: none; -1: it may become one. */
static int python_word(slice s, int end, const char **as) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i][0]);
        *as = words[i][1];
        if (!memcmp(s.p, words[i][0], s.n < n ? s.n : n) && (s.n >= n || !end)) return s.n >= n ? (int)n : -1;
    }
    return 0;
}

/* Takes what s begins with: a byte, an escape, a word. Returns how many bytes, 0 when more of the text must come first (never at
   its `end`), -1 for what has no place in JSON. The text begins with a bracket; when that is closed m->depth is 0. */
static int mend_next(json_mender *m, slice s, int end) {
    const char *word = NULL;
    char c = *s.p;
    if (m->quote) return mend_in_string(m, s, end);
    if (c == '}' || c == ']') return mend_bracket(m, c) ? 1 : -1;
    if (c == '{' || c == '[') {
        if (m->depth == JSON_DEPTH) return -1;
        m->open[m->depth++] = c;
    }
    int n = c == 'T' || c == 'F' || c == 'N' ? python_word(s, end, &word) : 0;
    if (n < 0) return 0;
    if (n > 0) {
        buf_text(&m->out, word);
        m->comma = 0;
        return n;
    }
    int quotes = c == '"' || (c == '\'' && m->python);
    if (quotes) m->quote = c;
    mend_byte(m, quotes ? '"' : c);
    return 1;
}

/* Closes what is still open, when it was forgotten and not cut off. 0: that is a string. */
static int mend_end(json_mender *m) {
    while (m->depth && !m->quote) mend_close(m);
    return !m->quote;
}

/* A whole object or list. 0: it is cut short, or s is something else. */
static int mend_json(json_mender *m, slice s, int python) {
    mend_begin(m, python);
    for (size_t at = 0; at < s.n;) {
        int n = mend_next(m, slice_from(s, at), 1);
        if (n < 0) return 0;
        at += (size_t)n;
        if (!m->depth) return at == s.n;
    }
    return 0;
}
