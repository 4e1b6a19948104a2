/* generate/follow.c: a text followed through a shape (schema.c), byte by byte, and the mask of the words that may come next. */

static shape_frame *place_push(shape_place *p, int in, int node) {
    if (p->depth == SHAPE_DEPTH) return NULL;
    shape_frame *f = &p->frame[p->depth++];
    memset(f, 0, sizeof *f);
    f->in = in;
    f->node = (int16_t)node;
    return f;
}

static int place_open(shape_place *p, int node) {
    return place_push(p, INSIDE_VALUE, node) != NULL;
}

/* The first literal from `from` on that begins with the first `size` bytes of `text`, then c; -1: none */
static int literal_fits(char *const *list, int from, int count, const char *text, int size, unsigned char c) {
    for (int i = from; i < count; i++)
        if (!strncmp(list[i], text, (size_t)size) && (unsigned char)list[i][size] == c) return i;
    return -1;
}

static int step_literal(const shape *s, shape_place *p, shape_frame *f, unsigned char c) {
    const shape_node *n = &s->nodes[f->node];
    char *const *list = s->literals + n->literals;
    int fits = c ? literal_fits(list, f->literal, n->literal_count, list[f->literal], f->at, c) : -1;
    if (fits < 0) return 0;
    f->literal = (int16_t)fits;
    f->at++;
    /* A number may go on, as 1 does to 12; it is over when what follows is none of it. */
    if (!list[fits][f->at] && begins_with((unsigned char)list[fits][0]) != BEGINS_NUMBER) p->depth--;
    return 1;
}

static int literal_is_whole(const shape *s, const shape_frame *f) {
    const shape_node *n = &s->nodes[f->node];
    char *const *list = s->literals + n->literals;
    for (int i = f->literal; i < n->literal_count; i++)
        if (!strncmp(list[i], list[f->literal], (size_t)f->at) && !list[i][f->at]) return 1;
    return 0;
}

/* A string behind its quote. at: 0 text, 1 behind a backslash, 2..5 hexadecimal digits to come: 5 is the first. */
static int step_string(const shape *s, shape_place *p, shape_frame *f, unsigned char c) {
    const shape_node *n = &s->nodes[f->node];
    if (f->more) {
        if (c < f->low || c > f->high) return 0;
        f->low = 0x80;
        f->high = 0xbf;
        f->more--;
        return 1;
    }
    if (f->at == 1) {
        if (c == 'u') return f->at = 5;
        f->at = 0;
        return c && strchr("\"\\/bfnrt", c) != NULL;
    }
    if (f->at > 1) {                       /* no surrogates: D is followed by 0 to 7 */
        int digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (f->at == 4 && f->low == 1 && !(c >= '0' && c <= '7')) return 0;
        f->low = f->at == 5 && (c == 'd' || c == 'D');
        f->at = f->at == 2 ? 0 : (int16_t)(f->at - 1);
        return digit;
    }
    if (c == '"') {
        p->depth--;
        return f->count >= n->length_least;
    }
    if (c < 0x20 || (c >= 0x80 && c < 0xc2) || c > 0xf4 || (n->length_most >= 0 && f->count >= n->length_most)) return 0;
    f->count++;
    f->at = c == '\\';
    f->more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    f->low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    f->high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    return 1;
}

/* at: what has been read last */
enum { NUMBER_MINUS, NUMBER_ZERO, NUMBER_WHOLE, NUMBER_POINT, NUMBER_FRACTION, NUMBER_E, NUMBER_SIGN, NUMBER_EXPONENT };

static int number_is_whole(const shape_frame *f) {
    return f->at == NUMBER_ZERO || f->at == NUMBER_WHOLE || f->at == NUMBER_FRACTION || f->at == NUMBER_EXPONENT;
}

/* 0: the byte is no part of the number, which may be over. */
static int step_number(const shape *s, shape_frame *f, unsigned char c) {
    int digit = c >= '0' && c <= '9', at = f->at;
    if (digit) {
        int most = at == NUMBER_EXPONENT || at == NUMBER_E || at == NUMBER_SIGN ? 2 : DIGITS_MOST;
        if (at == NUMBER_ZERO || f->count >= most) return 0;
        f->count++;
        f->at = at == NUMBER_MINUS ? (c == '0' ? NUMBER_ZERO : NUMBER_WHOLE)
              : at == NUMBER_POINT ? NUMBER_FRACTION : at == NUMBER_E || at == NUMBER_SIGN ? NUMBER_EXPONENT : at;
        return 1;
    }
    if (s->nodes[f->node].whole) return 0;
    f->count = 0;
    if (c == '.' && (at == NUMBER_ZERO || at == NUMBER_WHOLE)) return f->at = NUMBER_POINT;
    if ((c == 'e' || c == 'E') && (at == NUMBER_ZERO || at == NUMBER_WHOLE || at == NUMBER_FRACTION)) return f->at = NUMBER_E;
    if ((c == '-' || c == '+') && at == NUMBER_E) return f->at = NUMBER_SIGN;
    return 0;
}

/* The first byte of a value. */
static int step_value(const shape *s, shape_place *p, shape_frame *f, unsigned char c) {
    unsigned begin = begins_with(c);
    for (int branch = 0; s->nodes[f->node].branch_count;) {
        const shape_node *n = &s->nodes[f->node];
        int to = s->branches[n->branches + branch];
        if (shape_begins(s, to, 0) & begin) f->node = (int16_t)to, branch = 0;
        else if (++branch == n->branch_count) return 0;
    }
    const shape_node *n = &s->nodes[f->node];
    if (n->literal_count) {
        f->in = INSIDE_LITERAL;
        return step_literal(s, p, f, c);
    }
    if (!(n->types & begin) || (begin & (BEGINS_OBJECT | BEGINS_ARRAY) && p->depth > SHAPE_DEPTH - 3)) return 0;
    switch (begin) {
    case BEGINS_OBJECT: f->in = INSIDE_OBJECT; return 1;
    case BEGINS_ARRAY: f->in = INSIDE_ARRAY; return 1;
    case BEGINS_STRING: f->in = INSIDE_STRING; return 1;
    case BEGINS_NUMBER:
        f->in = INSIDE_NUMBER;
        f->at = NUMBER_MINUS;
        return c == '-' || step_number(s, f, c);
    default:                               /* true, false, null: at counts on in the word */
        f->in = INSIDE_WORD;
        f->count = c;
        f->at = 1;
        return 1;
    }
}

/* true, false, null */
static int step_word(shape_place *p, shape_frame *f, unsigned char c) {
    const char *text = f->count == 't' ? "true" : f->count == 'f' ? "false" : "null";
    if ((unsigned char)text[f->at] != c) return 0;
    if (!text[++f->at]) p->depth--;
    return 1;
}

static int object_is_complete(const shape *s, const shape_frame *f) {
    const shape_node *n = &s->nodes[f->node];
    for (int i = 0; i < n->property_count; i++)
        if (s->properties[n->properties + i].required && !(f->seen >> i & 1)) return 0;
    return 1;
}

/* Is there a key that the object does not have yet? */
static int object_takes_more(const shape *s, const shape_frame *f) {
    const shape_node *n = &s->nodes[f->node];
    for (int i = 0; i < n->property_count; i++)
        if (!(f->seen >> i & 1)) return 1;
    return n->more >= 0;
}

/* An object between its keys and values. at: 0 behind {, 1 behind a value, 2 behind a comma, 3 behind a key. */
static int step_object(const shape *s, shape_place *p, shape_frame *f, unsigned char c) {
    const shape_node *n = &s->nodes[f->node];
    if (f->at == 3) {
        f->at = 1;
        if (c != ':') return 0;
        return place_open(p, f->literal >= 0 ? s->properties[n->properties + f->literal].node : n->more);
    }
    if (c == '}' && f->at < 2 && object_is_complete(s, f)) return p->depth--;
    if (c == ',' && f->at == 1 && object_takes_more(s, f)) return f->at = 2;
    if (c != '"' || f->at == 1 || !object_takes_more(s, f)) return 0;
    f->at = 3;
    f->literal = -1;
    shape_frame *key = place_push(p, n->property_count ? INSIDE_KEY : INSIDE_STRING, n->property_count ? f->node : 0);
    if (!key) return 0;
    key->seen = f->seen;
    key->at = key->in == INSIDE_KEY;           /* bytes of it, the quote among them */
    key->literal = -1;
    return 1;
}

/* One of the keys that are known, and that are not there yet. */
static int step_key(const shape *s, shape_place *p, shape_frame *f, unsigned char c) {
    const shape_node *n = &s->nodes[f->node];
    const shape_property *list = s->properties + n->properties;
    for (int i = f->literal < 0 ? 0 : f->literal; c && i < n->property_count; i++) {
        if (f->seen >> i & 1 || (f->literal >= 0 && strncmp(list[i].key, list[f->literal].key, (size_t)f->at)) ||
            (int)strlen(list[i].key) <= f->at || (unsigned char)list[i].key[f->at] != c)
            continue;
        f->literal = (int16_t)i;
        if (list[i].key[++f->at]) return 1;
        p->frame[p->depth - 2].literal = (int16_t)i;
        p->frame[p->depth - 2].seen |= (uint64_t)1 << i;
        p->depth--;
        return 1;
    }
    return 0;
}

/* An array between its items. at: 0 behind [, 1 behind an item. */
static int step_array(const shape *s, shape_place *p, shape_frame *f, unsigned char c) {
    const shape_node *n = &s->nodes[f->node];
    int more = n->items_most < 0 || f->count < n->items_most;
    if (c == ']' && f->count >= n->items_least) return p->depth--;
    if (f->at && c == ',' && more) {
        f->count++;
        return place_open(p, n->items);
    }
    if (f->at || !more) return 0;
    f->at = 1;
    f->count = 1;
    if (!place_open(p, n->items)) return 0;
    return step_value(s, p, &p->frame[p->depth - 1], c);
}

/* White space: a blank behind : or , or a line feed with blanks behind it, where a person would put them. */
static int step_gap(const shape *s, shape_place *p, const shape_frame *f, unsigned char c) {
    int is_first = p->depth == 1 && f->in == INSIDE_VALUE, behind = f->in != INSIDE_VALUE && f->at == 1;
    int behind_colon = f->in == INSIDE_VALUE && !is_first && f[-1].in == INSIDE_OBJECT;
    if (f->in == INSIDE_OBJECT && f->at == 3) return 0;
    if (c == '\n') return !p->spaces && !behind_colon && ++p->lines <= (is_first ? s->first_lines : 1);
    return c == ' ' && !is_first && ++p->spaces <= (p->lines ? (int)GAP_SPACES : !behind);
}

/* Takes one more byte of the text. 0: it does not fit, and the place is of no use any more. */
static int shape_step(const shape *s, shape_place *p, unsigned char c) {
    if (!p->depth) return 0;
    shape_frame *f = &p->frame[p->depth - 1];
    if (f->in == INSIDE_NUMBER || f->in == INSIDE_LITERAL) {
        shape_frame before = *f;
        if (f->in == INSIDE_NUMBER ? step_number(s, f, c) : step_literal(s, p, f, c)) return 1;
        *f = before;
        if (f->in == INSIDE_NUMBER ? !number_is_whole(f) : !literal_is_whole(s, f)) return 0;
        if (--p->depth == 0) return 0;
        f = &p->frame[p->depth - 1];
    }
    switch (f->in) {
    case INSIDE_STRING: return step_string(s, p, f, c);
    case INSIDE_KEY: return step_key(s, p, f, c);
    case INSIDE_WORD: return step_word(p, f, c);
    default: break;
    }
    if (c == ' ' || c == '\n' || c == '\t') return step_gap(s, p, f, c);
    p->lines = p->spaces = 0;
    if (f->in == INSIDE_VALUE) return step_value(s, p, f, c);
    return f->in == INSIDE_OBJECT ? step_object(s, p, f, c) : step_array(s, p, f, c);
}

/* May the text end here? */
static int shape_is_complete(const shape *s) {
    const shape_frame *f = &s->now.frame[0];
    if (s->now.depth != 1) return !s->now.depth;
    return f->in == INSIDE_NUMBER ? number_is_whole(f) : f->in == INSIDE_LITERAL && literal_is_whole(s, f);
}

static void place_copy(shape_place *to, const shape_place *from) {
    memcpy(to, from, offsetof(shape_place, frame) + (size_t)from->depth * sizeof from->frame[0]);
}

/* Marks the words that fit. Words that begin alike go the same way up to where they part. */
static void shape_try(shape *s, const word *words, int count) {
    int good = 0;                          /* bytes of the word before that fitted */
    place_copy(&s->tried[0], &s->now);
    for (const word *w = words; w < words + count; w++) {
        int at = w->same;
        if (at > good) continue;
        for (; at < w->size; at++) {
            place_copy(&s->tried[at + 1], &s->tried[at]);
            if (!shape_step(s, &s->tried[at + 1], (unsigned char)w->bytes[at])) break;
        }
        good = at;
        s->allowed[w->id] = at == w->size;
    }
}

/* Marks what may come next, of a vocabulary of n tokens, the end tokens of the model aside. */
static void shape_mask(shape *s, const vocabulary *x, int n) {
    const shape_frame *f = s->now.depth ? &s->now.frame[s->now.depth - 1] : NULL;
    memset(s->allowed, 0, (size_t)n);
    int free_text = f && f->in == INSIDE_STRING && !f->at && !f->more && s->nodes[f->node].length_most < 0;
    if (free_text) {
        for (int i = 0; i < x->count; i++) s->allowed[x->words[i].id] = 1;
        for (int i = 0; i < x->odd_count; i++) s->allowed[x->odd[i].id] = 0;
    }
    if (free_text) shape_try(s, x->odd, x->odd_count);
    else shape_try(s, x->words, x->count);
}

static void shape_follow(shape *s, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!shape_step(s, &s->now, (unsigned char)bytes[i])) return;
}
