/* text/chat_outer.c: what a chat template says outside of its loop over the messages, read off its text without running it. It knows
   Jinja's tags, strings and white space, and nothing of families.

   Said is what stands under no condition, or under add_generation_prompt. A variable is one byte; white space between tags, which
   most templates cut, is nothing. */

enum { OUTER_VARIABLE = 1, OUTER_BOS = 2, OUTER_IFS = 32 };

typedef struct outer_text {
    buf before, after;                     /* the loop; a zero after each */
    int loops, nested, over_messages;      /* over messages that say something, so far; loops we are in; the outermost one is such */
    int skipped;                           /* blocks we are in whose text goes elsewhere */
    int ifs, unsaid[OUTER_IFS];            /* conditions we are in; 1: what is said there depends on it */
    int malformed;
} outer_text;

static void outer_free(outer_text *o) {
    buf_free(&o->before);
    buf_free(&o->after);
}

static void outer_put(outer_text *o, const char *bytes, size_t n) {
    int said = !o->nested && !o->skipped;
    for (int i = 0; i < o->ifs; i++) said &= !o->unsaid[i];
    o->loops |= o->nested && o->over_messages && !o->skipped && n;
    if (said && n) buf_add(o->loops ? &o->after : &o->before, bytes, n);
}

static int is_white(char b) {
    return memchr(" \n\t\r", b, 4) != NULL;
}

static int is_name_byte(char b) {
    return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '_';
}

/* Bytes of the string that s begins with, its quotes included; tells what it says. */
static size_t outer_string(outer_text *o, slice s, int says) {
    size_t at = 1;
    for (; at < s.n && s.p[at] != *s.p; at++) {
        char b = s.p[at];
        if (b == '\\' && at + 1 < s.n) {
            b = s.p[++at];
            b = b == 'n' ? '\n' : b == 't' ? '\t' : b == 'r' ? '\r' : b;
        }
        if (says) outer_put(o, &b, 1);
    }
    return at < s.n ? at + 1 : s.n;
}

/* Where a tag ends, which its strings do not; tag.n: nowhere. */
static size_t outer_tag_end(outer_text *o, slice tag, char closes) {
    for (size_t at = 2; at + 1 < tag.n; at++) {
        if (tag.p[at] == closes && tag.p[at + 1] == '}') return at;
        if (tag.p[at] == '\'' || tag.p[at] == '"') at += outer_string(o, slice_from(tag, at), 0) - 1;
    }
    return tag.n;
}

/* Bytes of a name with its attributes, filters and arguments. */
static size_t outer_variable(outer_text *o, slice s) {
    size_t at = 0;
    int depth = 0;
    for (; at < s.n && (depth || (s.p[at] != '+' && s.p[at] != '~')); at++) {
        if (s.p[at] == '\'' || s.p[at] == '"') at += outer_string(o, slice_from(s, at), 0) - 1;
        else if (memchr("([{", s.p[at], 3)) depth++;
        else if (memchr(")]}", s.p[at], 3)) depth--;
    }
    return at;
}

/* What an expression says: strings and variables with + or ~ between them. One with a condition in it is a variable. */
static void outer_expression(outer_text *o, slice s) {
    static const char variable = OUTER_VARIABLE, bos = OUTER_BOS;
    s = slice_trim(s);
    if (slice_starts(s, "raise_exception")) return;
    if (slice_has(s, " if ")) {
        outer_put(o, &variable, 1);
        return;
    }
    while (s.n) {
        const char b = *s.p;
        size_t n = 1;
        if (b == '\'' || b == '"') {
            n = outer_string(o, s, 1);
        } else if (b != '+' && b != '~' && b != ' ' && b != '\n') {
            n = outer_variable(o, s);
            const slice name = slice_trim(slice_of(s.p, n));
            outer_put(o, name.n == 9 && slice_starts(name, "bos_token") ? &bos : &variable, 1);
        }
        s = slice_from(s, n);
    }
}

/* A tag that says nothing itself: where it leads. */
static void outer_statement(outer_text *o, slice s) {
    size_t n = 0;
    s = slice_trim(s);
    while (n < s.n && is_name_byte(s.p[n])) n++;
    const slice word = slice_of(s.p, n), rest = slice_from(s, n);
#define IS(name) (word.n == sizeof name - 1 && !memcmp(word.p, name, sizeof name - 1))
    if (IS("for")) {
        if (!o->nested++) o->over_messages = slice_has(rest, "messages");
    } else if (IS("endfor")) {
        o->malformed |= o->nested-- == 0;
    } else if (IS("if")) {
        if (o->ifs < OUTER_IFS) o->unsaid[o->ifs] = !slice_has(rest, "add_generation_prompt") || slice_has(rest, "not ");
        else o->malformed = 1;
        o->ifs += o->ifs < OUTER_IFS;
    } else if (IS("elif") || IS("else")) {
        if (o->ifs) o->unsaid[o->ifs - 1] = 1;                 /* also of a loop, where it is of no use */
    } else if (IS("endif")) {
        o->malformed |= o->ifs == 0;
        o->ifs -= o->ifs > 0;
    } else if (IS("macro") || IS("call") || IS("filter") || (IS("set") && !slice_has(rest, "="))) {
        o->skipped++;
    } else if (IS("endmacro") || IS("endcall") || IS("endfilter") || IS("endset")) {
        o->malformed |= o->skipped-- == 0;
    }
#undef IS
}

/* Text between tags, as transformers sets Jinja up: without the line feed after a tag, and the blanks before one. */
static void outer_between(outer_text *o, slice s, int cut_before, int after_tag, int cut_after, int before_tag) {
    if (!slice_trim(s).n) return;
    if (!cut_before && after_tag && *s.p == '\n') s = slice_from(s, 1);
    while (cut_before && s.n && is_white(*s.p)) s = slice_from(s, 1);
    size_t n = s.n;
    while (n && (cut_after ? is_white(s.p[n - 1]) : s.p[n - 1] == ' ' || s.p[n - 1] == '\t')) n--;
    if (cut_after || (before_tag && n && s.p[n - 1] == '\n')) s.n = n;
    outer_put(o, s.p, s.n);
}

/* Reads a template without comments. 0: it has no loop over messages, or is not well formed: nothing is known of it. */
static int outer_read(outer_text *o, slice text) {
    int cut = 0, after_tag = 0;
    memset(o, 0, sizeof *o);
    while (text.n) {
        size_t at = 0;
        while (at < text.n && !(text.p[at] == '{' && at + 1 < text.n && (text.p[at + 1] == '{' || text.p[at + 1] == '%'))) at++;
        const slice tag = slice_from(text, at);
        const int says = tag.n > 1 && tag.p[1] == '{';
        outer_between(o, slice_of(text.p, at), cut, after_tag, tag.n > 2 && tag.p[2] == '-', tag.n && !says);
        if (!tag.n) break;
        const size_t end = outer_tag_end(o, tag, says ? '}' : '%');
        if (end == tag.n) return 0;
        slice inner = slice_of(tag.p + 2, end - 2);
        if (inner.n && (*inner.p == '-' || *inner.p == '+')) inner = slice_from(inner, 1);
        cut = inner.n && inner.p[inner.n - 1] == '-';
        after_tag = !says;
        inner.n -= (size_t)cut;
        (says ? outer_expression : outer_statement)(o, inner);
        text = slice_from(tag, end + 2);
    }
    buf_add(&o->before, "", 1);
    buf_add(&o->after, "", 1);
    return o->loops && !o->nested && !o->ifs && !o->skipped && !o->malformed && !o->before.failed && !o->after.failed;
}
