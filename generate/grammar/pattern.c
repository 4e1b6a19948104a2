/* generate/grammar/pattern.c: a regular expression, as JSON schemas have them (ECMA-262), becomes an expression of sets of characters. It
   knows characters, and nothing of JSON or tokens.

   Expressions are kept once each, with unions and intersections sorted, so that equal ones are the same node. There are intersection
   and complement too: several patterns hold together, and (?!x)y is what y matches and x.* does not. Work and memory are bounded: a
   pattern of too many nodes is refused. */

enum { RE_NODES = 1 << 15, RE_SETS = 128, RE_RANGES = 1 << 11, RE_CLASSES = 250, RE_STATES = 4096, RE_STEPS = 1 << 21,
       RE_TEXT = 2000, RE_DEPTH = 60, RE_LEVELS = 3000, RE_REPEAT = 10000, CHARACTERS = 0x110000 };

enum { RE_NOTHING, RE_EMPTY, RE_SET, RE_SEQUENCE, RE_OR, RE_AND, RE_NOT, RE_TIMES };

typedef struct re_node {
    uint8_t kind, nullable;
    uint16_t state;              /* of the automaton, from 1 on; 0: none yet */
    int32_t a, b, c;             /* nodes; of a set its number; times: node, least, most or -1 */
} re_node;

typedef struct re_range { uint32_t first, last; } re_range;

typedef struct re_set { int first, count; } re_set;                     /* in ranges, ascending */

typedef struct pattern {
    re_node *nodes;              /* [RE_NODES]; 0: RE_NOTHING, 1: RE_EMPTY */
    int32_t *index;              /* [2 * RE_NODES], hashed; 0: free */
    int count, steps;
    re_set sets[RE_SETS];
    uint64_t signature[RE_SETS][4];                                     /* the classes of each */
    re_range ranges[RE_RANGES];
    int set_count, range_count;
    int32_t any, anything;       /* one character; any number of them */
    uint32_t *text;              /* the expression's characters */
    int size, at, depth;
    int level;                   /* of recursion through expressions */
    const char *problem;         /* what is not supported; NULL: nothing */
} pattern;

static int32_t re_problem(pattern *p, const char *what) {
    if (!p->problem) p->problem = what;
    return 0;
}

/* ---- Expressions, each of them once --------------------------------------------------------------------------------- */

static int32_t re_make(pattern *p, int kind, int32_t a, int32_t b, int32_t c) {
    int32_t key[4] = {kind, a, b, c};
    uint32_t at = fold(fnv1a(FNV_START, key, sizeof key)) & (2 * RE_NODES - 1);
    if (p->problem || ++p->steps > RE_STEPS) return re_problem(p, "a pattern of so many states");
    for (; p->index[at]; at = (at + 1) & (2 * RE_NODES - 1)) {
        const re_node *n = &p->nodes[p->index[at]];
        if (n->kind == kind && n->a == a && n->b == b && n->c == c) return p->index[at];
    }
    if (p->count == RE_NODES) return re_problem(p, "a pattern of so many states");
    re_node n = {.kind = (uint8_t)kind, .nullable = 0, .state = 0, .a = a, .b = b, .c = c};
    switch (kind) {
    case RE_EMPTY: n.nullable = 1; break;
    case RE_SEQUENCE:
    case RE_AND: n.nullable = p->nodes[a].nullable & p->nodes[b].nullable; break;
    case RE_OR: n.nullable = p->nodes[a].nullable | p->nodes[b].nullable; break;
    case RE_NOT: n.nullable = !p->nodes[a].nullable; break;
    case RE_TIMES: n.nullable = !b || p->nodes[a].nullable; break;
    default: break;
    }
    p->nodes[p->count] = n;
    p->index[at] = p->count;
    return p->count++;
}

/* Enters and leaves a call that calls itself: 0 when that goes too deep. */
static int re_enter(pattern *p) {
    if (p->problem) return 0;
    if (++p->level <= RE_LEVELS) return 1;
    return (int)re_problem(p, "a pattern of so many states");
}

static int32_t re_leave(pattern *p, int32_t result) {
    p->level--;
    return result;
}

static int32_t re_sequence(pattern *p, int32_t a, int32_t b) {
    if (!a || !b) return RE_NOTHING;
    if (a == RE_EMPTY) return b;
    if (b == RE_EMPTY) return a;
    if (p->nodes[a].kind != RE_SEQUENCE) return re_make(p, RE_SEQUENCE, a, b, 0);
    if (!re_enter(p)) return 0;
    return re_leave(p, re_make(p, RE_SEQUENCE, p->nodes[a].a, re_sequence(p, p->nodes[a].b, b), 0));
}

/* a or b, a and b: lists of terms, ascending. */
static int32_t re_join(pattern *p, int kind, int32_t a, int32_t b) {
    int32_t unit = kind == RE_OR ? RE_NOTHING : p->anything, zero = kind == RE_OR ? p->anything : RE_NOTHING;
    if (a == b || b == unit || a == zero) return a;
    if (a == unit || b == zero) return b;
    int32_t x = p->nodes[a].kind == kind ? p->nodes[a].a : a, y = p->nodes[b].kind == kind ? p->nodes[b].a : b;
    int32_t more_a = x == a ? unit : p->nodes[a].b, more_b = y == b ? unit : p->nodes[b].b;
    if (!re_enter(p)) return 0;
    int32_t head = x < y ? x : y, rest = re_leave(p, re_join(p, kind, x <= y ? more_a : a, y <= x ? more_b : b));
    if (p->problem) return 0;
    return rest == unit ? head : rest == zero ? zero : re_make(p, kind, head, rest, 0);
}

static int32_t re_not(pattern *p, int32_t a) {
    return p->nodes[a].kind == RE_NOT ? p->nodes[a].a : re_make(p, RE_NOT, a, 0, 0);
}

static int32_t re_times(pattern *p, int32_t a, int32_t least, int32_t most) {
    const re_node n = p->nodes[a];
    if (n.nullable) least = 0;
    if (!most || a == RE_EMPTY || (!a && !least)) return RE_EMPTY;
    if (!a || (least == 1 && most == 1)) return a;
    if (n.kind == RE_TIMES && !n.b && n.c < 0) return a;                /* (x*)* */
    return re_make(p, RE_TIMES, a, least, most);
}

/* The set of `count` ranges at the end of p->ranges, sorted and merged; inverse: of all other characters. */
static int32_t re_set_of(pattern *p, int count, int inverse) {
    re_range *r = p->ranges + p->range_count, out[256];
    int n = 0;
    uint32_t next = 0;
    if (p->problem || count > 200 || p->range_count + 2 * count + 2 > RE_RANGES)
        return re_problem(p, "a pattern of so many character ranges");
    for (int i = 1; i < count; i++)
        for (int k = i; k && r[k].first < r[k - 1].first; k--) {
            re_range other = r[k];
            r[k] = r[k - 1];
            r[k - 1] = other;
        }
    for (int i = 0; i < count; i++) {
        if (n && r[i].first <= out[n - 1].last + 1) out[n - 1].last = r[i].last > out[n - 1].last ? r[i].last : out[n - 1].last;
        else out[n++] = r[i];
    }
    count = inverse ? 0 : n;
    for (int i = 0; i < n && inverse; next = out[i++].last + 1)
        if (out[i].first > next) r[count].first = next, r[count++].last = out[i].first - 1;
    if (inverse && next < CHARACTERS) r[count].first = next, r[count++].last = CHARACTERS - 1;
    if (!inverse) memcpy(r, out, (size_t)n * sizeof *r);
    if (!count) return RE_NOTHING;
    for (int i = 0; i < p->set_count; i++)
        if (p->sets[i].count == count && !memcmp(p->ranges + p->sets[i].first, r, (size_t)count * sizeof *r))
            return re_make(p, RE_SET, i, 0, 0);
    if (p->set_count == RE_SETS) return re_problem(p, "a pattern of so many character sets");
    p->sets[p->set_count].first = p->range_count;
    p->sets[p->set_count].count = count;
    p->range_count += count;
    return re_make(p, RE_SET, p->set_count++, 0, 0);
}

/* ---- From text to an expression --------------------------------------------------------------------------------------- */

static int re_peek(const pattern *p, int ahead) {
    return p->at + ahead < p->size ? (int)p->text[p->at + ahead] : -1;
}

static int re_take(pattern *p, const char *text) {
    int n = (int)strlen(text);
    for (int i = 0; i < n; i++)
        if (re_peek(p, i) != text[i]) return 0;
    p->at += n;
    return 1;
}

static int re_add(pattern *p, int count, uint32_t first, uint32_t last) {
    if (p->range_count + count >= RE_RANGES) return re_problem(p, "a pattern of so many character ranges"), count;
    p->ranges[p->range_count + count].first = first;
    p->ranges[p->range_count + count].last = last;
    return count + 1;
}

/* Adds \d, \w, \s or, in upper case, what is none of them; returns the new count, -1 for another letter. */
static int re_add_named(pattern *p, int count, int name) {
    static const re_range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const re_range spaces[] = {{9, 13}, {32, 32}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                      {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    int lower = name | 32, n = lower == 'd' ? 1 : lower == 'w' ? 4 : lower == 's' ? 10 : 0;
    const re_range *r = lower == 'd' ? digits : lower == 'w' ? words : spaces;
    uint32_t next = 0;
    if (!n) return -1;
    for (int i = 0; i < n; next = r[i++].last + 1) {
        if (name == lower) count = re_add(p, count, r[i].first, r[i].last);
        else if (r[i].first > next) count = re_add(p, count, next, r[i].first - 1);
    }
    return name == lower ? count : re_add(p, count, next, CHARACTERS - 1);
}

/* So many hexadecimal digits; -1: they are not there. */
static int re_hex(pattern *p, int digits) {
    int value = 0;
    for (int i = 0; i < digits; i++) {
        int c = re_peek(p, i), low = c | 32;
        if (c < 0 || !((c >= '0' && c <= '9') || (low >= 'a' && low <= 'f'))) return -1;
        value = value << 4 | (c <= '9' ? c - '0' : low - 'a' + 10);
    }
    p->at += digits;
    return value;
}

/* The character of an escape, of which the backslash has been read, and which stands for one. */
static int re_escaped(pattern *p) {
    static const char names[] = "nrtfv0", values[] = "\n\r\t\f\v\0";
    int c = re_peek(p, 0), value = -1;
    p->at++;
    const char *at = c > 0 && c < 128 ? strchr(names, c) : NULL;
    if (at && !(c == '0' && re_peek(p, 0) >= '0' && re_peek(p, 0) <= '9')) return values[at - names];
    if (c == 'x') value = re_hex(p, 2);
    if (c == 'u' && re_take(p, "{")) {
        for (value = 0; value >= 0 && value < CHARACTERS && !re_take(p, "}");) {
            int digit = re_hex(p, 1);
            value = digit < 0 ? -1 : value << 4 | digit;
        }
    } else if (c == 'u') {
        value = re_hex(p, 4);
        if (value >= 0xd800 && value < 0xdc00 && re_take(p, "\\u")) {
            int low = re_hex(p, 4);
            value = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00) : -1;
        }
    }
    if (c == 'x' || c == 'u') {
        if (value < 0 || value >= CHARACTERS) re_problem(p, "an escape in a pattern that stands for no character");
        return value < 0 ? 0 : value;
    }
    if (c >= '1' && c <= '9') return re_problem(p, "a pattern with a backreference");
    if (c == 'k') return re_problem(p, "a pattern with a backreference");
    if (c == 'b' || c == 'B') return re_problem(p, "a pattern with a word boundary");
    if (c == 'p' || c == 'P') return re_problem(p, "a pattern with Unicode properties");
    if (c < 0 || c >= 128 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'))
        return re_problem(p, "an unknown escape in a pattern");
    return c;
}

/* One end of a range in [...]; named: it is \d or the like, which is added. */
static int re_class_member(pattern *p, int *count, int *named) {
    *named = 0;
    if (re_peek(p, 0) == '[' && (re_peek(p, 1) == ':' || re_peek(p, 1) == '.' || re_peek(p, 1) == '='))
        return re_problem(p, "a pattern with named classes");
    if (!re_take(p, "\\")) return (int)p->text[p->at++];
    int more = re_add_named(p, *count, re_peek(p, 0));
    if (re_take(p, "b")) return '\b';
    if (re_take(p, "-")) return '-';
    if (more < 0) return re_escaped(p);
    p->at++;
    *count = more;
    *named = 1;
    return 0;
}

static int32_t re_class(pattern *p) {
    int inverse = re_take(p, "^"), count = 0, named, last_named;
    while (!p->problem && re_peek(p, 0) != ']') {
        if (re_peek(p, 0) < 0) return re_problem(p, "a pattern with an open [");
        int first = re_class_member(p, &count, &named), last = first;
        if (!p->problem && re_peek(p, 0) == '-' && re_peek(p, 1) != ']' && re_peek(p, 1) >= 0) {
            p->at++;
            last = re_class_member(p, &count, &last_named);
            if (named || last_named || last < first) return re_problem(p, "such a range of characters in a pattern");
        }
        if (!named) count = re_add(p, count, (uint32_t)first, (uint32_t)last);
    }
    p->at++;
    return re_set_of(p, count, inverse);
}

static int32_t re_alternatives(pattern *p, int outer);

/* (...) of which the bracket has been read. */
static int32_t re_group(pattern *p) {
    if (re_take(p, "?<")) {
        if (re_peek(p, 0) == '=' || re_peek(p, 0) == '!') return re_problem(p, "a pattern with lookbehind");
        while (re_peek(p, 0) >= 0 && re_peek(p, 0) != '>') p->at++;
        p->at++;
    } else if (re_peek(p, 0) == '?' && (re_peek(p, 1) == '=' || re_peek(p, 1) == '!')) {
        return re_problem(p, "a pattern with lookahead within a group");
    } else if (!re_take(p, "?:") && re_peek(p, 0) == '?') {
        return re_problem(p, "such a group in a pattern");
    }
    int32_t inner = re_alternatives(p, 0);
    if (!p->problem && !re_take(p, ")")) return re_problem(p, "a pattern with an open (");
    return inner;
}

static int32_t re_atom(pattern *p) {
    int c = (int)p->text[p->at++], count;
    switch (c) {
    case '(': return re_group(p);
    case '[': return re_class(p);
    case '.':
        count = re_add(p, re_add(p, re_add(p, 0, '\n', '\n'), '\r', '\r'), 0x2028, 0x2029);
        return re_set_of(p, count, 1);
    case '*':
    case '+':
    case '?': return re_problem(p, "a pattern that repeats nothing");
    case '^':
    case '$': return re_problem(p, "a pattern with ^ or $ in its middle");
    case '\\':
        count = re_add_named(p, 0, re_peek(p, 0));
        if (count >= 0) p->at++;
        if (count >= 0) return re_set_of(p, count, 0);
        c = re_escaped(p);
        break;
    default: break;
    }
    return re_set_of(p, re_add(p, 0, (uint32_t)c, (uint32_t)c), 0);
}

static int re_number(pattern *p) {
    int value = -1;
    for (int c; (c = re_peek(p, 0)) >= '0' && c <= '9'; p->at++)
        value = value > RE_REPEAT ? value : (value < 0 ? 0 : value * 10) + (c - '0');
    return value;
}

/* The quantifier of an atom: * + ? {m} {m,} {m,n}, and a ? that changes nothing of what is matched. */
static int32_t re_repeated(pattern *p, int32_t atom) {
    int begin = p->at, least = 1, most = 1;
    if (re_take(p, "*")) least = 0, most = -1;
    else if (re_take(p, "+")) most = -1;
    else if (re_take(p, "?")) least = 0;
    else if (re_take(p, "{")) {
        least = most = re_number(p);
        if (least >= 0 && re_take(p, ",")) most = re_number(p);
        if (least < 0 || !re_take(p, "}")) {                            /* no quantifier but text */
            p->at = begin;
            return atom;
        }
        if (least > RE_REPEAT || most > RE_REPEAT || (most >= 0 && most < least))
            return re_problem(p, "a pattern that repeats so often");
    }
    if (p->at == begin) return atom;
    (void)re_take(p, "?");
    if (re_peek(p, 0) == '*' || re_peek(p, 0) == '+' || re_peek(p, 0) == '?') return re_problem(p, "such a quantifier");
    return re_times(p, atom, least, most);
}

/* The rest of an alternative. outer: after it anything may follow, unless it ends in $. first: nothing was before it. */
static int32_t re_rest(pattern *p, int outer, int first) {
    int c = re_peek(p, 0);
    if (p->problem) return 0;
    if (c < 0 || c == '|' || c == ')') return outer ? p->anything : RE_EMPTY;
    if (c == '$' && outer && (re_peek(p, 1) < 0 || re_peek(p, 1) == '|' || re_peek(p, 1) == ')')) {
        p->at++;
        return RE_EMPTY;
    }
    if (outer && c == '(' && re_peek(p, 1) == '?' && (re_peek(p, 2) == '=' || re_peek(p, 2) == '!')) {
        int is_not = re_peek(p, 2) == '!';
        p->at += 3;
        int32_t ahead = re_alternatives(p, first ? 2 : 3);
        if (!p->problem && !re_take(p, ")")) return re_problem(p, "a pattern with an open (");
        if (is_not) ahead = re_not(p, ahead);
        return re_join(p, RE_AND, ahead, re_rest(p, outer, first));
    }
    int32_t atom = re_repeated(p, re_atom(p));
    return re_sequence(p, atom, re_rest(p, outer, 0));
}

/* Alternatives. outer: 0 of a group; 1: of the whole pattern, which may match in the middle of the string; 2: of a
   lookahead where the string begins; 3: of another. */
static int32_t re_alternatives(pattern *p, int outer) {
    int32_t all = RE_NOTHING;
    if (++p->depth > RE_DEPTH) return re_problem(p, "a pattern nested so deep");
    do {
        if (outer == 3 && re_peek(p, 0) == '^') return re_problem(p, "a pattern with ^ or $ in its middle");
        int anchored = outer && re_take(p, "^");
        int32_t one = re_rest(p, outer, anchored);
        if (outer == 1 && !anchored) one = re_sequence(p, p->anything, one);
        all = re_join(p, RE_OR, all, one);
    } while (!p->problem && re_take(p, "|"));
    p->depth--;
    return all;
}

/* The strings that a pattern matches; 0: none, or there is a problem. */
static int32_t re_parse(pattern *p, const char *text, size_t size) {
    uint32_t characters[RE_TEXT];
    const char *at = text, *end = text + size;
    if (size > RE_TEXT) return re_problem(p, "so long a pattern");
    p->text = characters;
    for (p->at = p->size = p->depth = 0; at < end;) characters[p->size++] = utf8_next(&at, end);
    int32_t all = re_alternatives(p, 1);
    if (!p->problem && p->at < p->size) return re_problem(p, "a pattern with a ) too many");
    return all;
}

static void pattern_close(pattern *p) {
    free(p->nodes);
    free(p->index);
}

/* 0: out of memory. To be closed in any case. */
static int pattern_open(pattern *p) {
    memset(p, 0, sizeof *p);
    p->nodes = (re_node *)malloc(RE_NODES * sizeof *p->nodes);
    p->index = (int32_t *)calloc(2 * RE_NODES, sizeof *p->index);
    if (!p->nodes || !p->index) return 0;
    memset(p->nodes, 0, 2 * sizeof *p->nodes);
    p->nodes[1].kind = RE_EMPTY;
    p->nodes[1].nullable = 1;
    p->count = 2;
    p->any = re_set_of(p, re_add(p, 0, 0, CHARACTERS - 1), 0);
    p->anything = re_times(p, p->any, 0, -1);
    return 1;
}
