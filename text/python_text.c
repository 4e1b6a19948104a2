/* text/python_text.c: text as Python has it, because chat formats are programs that run on Python's strings: its str
   methods on slices, and values of a JSON request as json.dumps(ensure_ascii=False) and str() write them. It knows
   nothing of messages or of any one format. */

/* A piece of text that lies elsewhere, and what the programs do with text (Python's str methods). */
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

/* s[at:] */
static slice slice_from(slice s, size_t at) {
    return at ? slice_of(s.p + at, s.n - at) : s; /* of nothing, p may be NULL */
}

static void buf_slice(buf *out, slice s) {
    buf_add(out, s.p, s.n);
}

static int is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Bytes of the white space character at p, 0 if it is none. Python's set: Unicode White_Space and U+001C..001F. */
static size_t space_length(const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text;
    if (n >= 1 && ((p[0] >= 9 && p[0] <= 13) || (p[0] >= 0x1C && p[0] <= 0x20))) return 1;
    if (n >= 2 && p[0] == 0xC2 && (p[1] == 0x85 || p[1] == 0xA0)) return 2; /* next line, no-break space */
    if (n < 3) return 0;
    uint32_t three = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
    int found = (three >= 0xE28080 && three <= 0xE2808A) || three == 0xE280A8 || three == 0xE280A9 ||
                three == 0xE280AF || three == 0xE19A80 || three == 0xE2819F || three == 0xE38080;
    return found ? 3 : 0; /* U+2000..200A, 2028, 2029, 202F, 1680, 205F, 3000 */
}

/* rstrip() */
static slice slice_trim_end(slice s) {
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

/* strip() */
static slice slice_trim(slice s) {
    for (size_t n; (n = space_length(s.p, s.n)) > 0;) s = slice_of(s.p + n, s.n - n);
    return slice_trim_end(s);
}

/* lstrip('\n') and rstrip('\n') */
static slice slice_skip_newlines(slice s) {
    while (s.n && *s.p == '\n') s = slice_of(s.p + 1, s.n - 1);
    return s;
}

static slice slice_drop_newlines(slice s) {
    while (s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

/* split(tag)[0], and split(tag)[-1]: what is before the first tag, and after the last one; all of s when there is none. */
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

static int slice_is(slice s, const char *words) {
    return s.n == strlen(words) && slice_starts(s, words);
}

static int slice_ends(slice s, const char *with) {
    size_t n = strlen(with);
    return s.n >= n && !memcmp(s.p + s.n - n, with, n);
}

static int slice_has(slice s, const char *words) {
    return slice_before(s, words).n < s.n;
}

/* Values as Python writes them: json.dumps(ensure_ascii=False) and str(). */

static void put_string(const json *j, uint32_t node, buf *out) {
    size_t n = json_string(j, node, NULL, 0);
    char *at = (char *)buf_add(out, NULL, n);
    if (at) json_string(j, node, at, n);
}

/* repr(float): the fewest digits that read back as the same number; an exponent outside 1e-4 .. 1e16. */
static void put_double(double value, buf *out) {
    char text[40], digits[24], check[40];
    int n = 0, exponent = 0;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(value));
        char *p = text;
        for (n = 0; *p && *p != 'e'; p++) {
            if (*p >= '0' && *p <= '9') digits[n++] = *p; /* anything else is the locale's decimal point */
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

/* An integer keeps its digits, however many; a number with a point or an exponent is a double. */
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
        buf_add(out, p, (size_t)(run_end - p)); /* needs no escape: it had none */
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

/* Recursion is at most JSON_DEPTH deep. */
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

static void put_line(buf *out, int depth) {
    buf_text(out, "\n");
    for (int i = 0; i < depth; i++) buf_text(out, "    ");
}

static int put_json_at(const json *j, uint32_t node, int depth, buf *out, mote_error *err) {
    const json_node *n = j->nodes + node;
    const int object = n->type == JSON_OBJECT;
    int code = MOTE_OK;
    if (n->type < JSON_ARRAY || !n->size) return put_json(j, node, out, err);
    buf_text(out, object ? "{" : "[");
    for (uint32_t k = node + 1; !code && k < n->next; k = j->nodes[k].next) {
        if (k > node + 1) buf_text(out, ",");
        put_line(out, depth + 1);
        if (object) {
            put_json_string(j, k++, out);
            buf_text(out, ": ");
        }
        code = put_json_at(j, k, depth + 1, out, err);
    }
    put_line(out, depth);
    buf_text(out, object ? "}" : "]");
    return code;
}

/* json.dumps(indent=4) */
static int put_json_lines(const json *j, uint32_t node, buf *out, mote_error *err) {
    return put_json_at(j, node, 0, out, err);
}

/* str(): of lists and objects it would be Python source text, which no model should see. */
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
