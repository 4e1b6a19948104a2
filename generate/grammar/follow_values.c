/* generate/grammar/follow_values.c: strings, numbers, literals, objects and lists, byte by byte: what of follow.c depends on the kind of a
   value. */

/* ---- Strings ----------------------------------------------------------------------------------------------------------------- */

/* The character that \c stands for; 0: none. */
static uint32_t escape_value(unsigned char c) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *at = c ? strchr(names, c) : NULL;
    return at ? (uint32_t)(unsigned char)values[at - names] : 0;
}

/* A byte of a string after its quote, but for the quote that ends it. at: 0 text, 1 after a backslash, 2..5 hexadecimal digits to
   come, 5 is the first. 0: it is none; 1: of a character; 2: its last one, *c is which. */
static int string_byte(frame *f, unsigned char b, uint32_t *code) {
    if (f->more) {
        if (b < f->low || b > f->high) return 0;
        *code = *code << 6 | (b & 0x3fu);
        f->low = 0x80;
        f->high = 0xbf;
        return --f->more ? 1 : 2;
    }
    if (f->at == 1) {
        f->at = b == 'u' ? 5 : 0;
        *code = b == 'u' ? 0 : escape_value(b);
        return b == 'u' ? 1 : *code ? 2 : 0;
    }
    if (f->at > 1) {                       /* no surrogates: D is followed by 0 to 7 */
        int digit = b >= '0' && b <= '9' ? b - '0' : (b | 32) >= 'a' && (b | 32) <= 'f' ? (b | 32) - 'a' + 10 : -1;
        if (digit < 0 || (f->at == 4 && *code == 0xd && digit > 7)) return 0;
        *code = *code << 4 | (uint32_t)digit;
        f->at = f->at == 2 ? 0 : (uint8_t)(f->at - 1);
        return f->at ? 1 : 2;
    }
    if (b < 0x20 || (b >= 0x80 && b < 0xc2) || b > 0xf4) return 0;
    f->at = b == '\\';
    f->more = b < 0x80 ? 0 : b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
    f->low = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
    f->high = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
    *code = f->more ? b & (0x3fu >> f->more) : b;
    return f->at || f->more ? 1 : 2;
}

static int is_between(const frame *f) {                     /* characters of a string */
    return !f->at && !f->more;
}

/* Whether an automaton's string can go on with the character that has begun. Escapes that spell a character by number do not
   count. */
static int string_can_go_on(const automaton *a, const frame *f) {
    static const char escapes[] = "\"\\/\b\f\n\r\t";
    int shift = f->more ? 6 * (f->more - 1) : 0;
    uint32_t high_bits = f->is.string.code << 6, one = (uint32_t)1 << shift;
    if (f->more)
        return automaton_takes(a, f->is.string.state, (high_bits | (f->low & 0x3fu)) << shift, ((high_bits | (f->high & 0x3fu)) << shift) + one - 1);
    for (const char *c = escapes; f->at == 1 && *c; c++)
        if (automaton_step(a, f->is.string.state, (unsigned char)*c)) return 1;
    return 0;
}

static void step_string(follower *w, place *out, thread *t, unsigned char b) {
    const schema_kind *k = kind_at(w->s, t->f.of);
    const automaton *a = k->detail >= 0 ? automaton_at(w->s, k->detail) : NULL;
    frame *f = &t->f;
    if (b == '"' && is_between(f)) {
        if (f->count < k->least || (a && !a->accepts[f->is.string.state])) return;
        thread_pop(w, t);
        place_add(out, t);
        return;
    }
    if (is_between(f) && f->count >= k->most) return;
    if (is_between(f)) f->count += k->most < UINT32_MAX || f->count < k->least;
    int read = string_byte(f, b, &f->is.string.code);
    if (!read) return;
    if (a && read == 1 && !string_can_go_on(a, f)) return;
    if (a && read == 2) f->is.string.state = automaton_step(a, f->is.string.state, f->is.string.code);
    if (read == 2) f->is.string.code = 0;
    if (!a || f->is.string.state) place_add(out, t);
}

/* ---- Numbers and literals -------------------------------------------------------------------------------------------------------- */

/* at: what has been read last */
enum { NUMBER_MINUS, NUMBER_WHOLE, NUMBER_POINT, NUMBER_PART, NUMBER_E, NUMBER_SIGN, NUMBER_EXPONENT };

static int number_is_complete(const schema *s, const frame *f) {
    const number_range *r = range_at(s, kind_at(s, f->of)->detail);
    if (f->at == NUMBER_EXPONENT) return 1;
    return (f->at == NUMBER_WHOLE || f->at == NUMBER_PART) &&
           range_holds(r, f->is.number.negative, f->is.number.whole, f->is.number.part, (int)f->count);
}

static int number_digit(const number_range *r, frame *f, unsigned digit) {
    uint64_t *whole = &f->is.number.whole, *part = &f->is.number.part;
    switch (f->at) {
    case NUMBER_WHOLE:
    case NUMBER_MINUS:
        if (f->at == NUMBER_WHOLE && (!*whole || *whole >= DECIMAL_MAX / 10)) return 0;      /* after 0 there is no digit */
        *whole = *whole * 10 + digit;
        f->at = NUMBER_WHOLE;
        return range_takes_whole(r, f->is.number.negative, *whole);
    case NUMBER_POINT:
    case NUMBER_PART:
        if (f->count == 15) return 0;
        *part = *part * 10 + digit;
        f->at = NUMBER_PART;
        return range_takes_part(r, f->is.number.negative, *whole, *part, (int)++f->count);
    default:
        if (f->at == NUMBER_EXPONENT && ++f->count >= 2) return 0;
        if (f->at != NUMBER_EXPONENT) f->count = 0;
        f->at = NUMBER_EXPONENT;
        return 1;
    }
}

static int number_byte(const schema *s, frame *f, unsigned char b) {
    const number_range *r = range_at(s, kind_at(s, f->of)->detail);
    if (b >= '0' && b <= '9') return number_digit(r, f, b - (unsigned)'0');
    if (r->whole) return 0;
    if (b == '.' && f->at == NUMBER_WHOLE) {
        f->at = NUMBER_POINT;
        return range_takes_part(r, f->is.number.negative, f->is.number.whole, 0, 0);
    }
    if ((b | 32) == 'e' && r->exponents && number_is_complete(s, f) && f->at != NUMBER_EXPONENT) return f->at = NUMBER_E;
    return (b == '-' || b == '+') && f->at == NUMBER_E ? (f->at = NUMBER_SIGN) : 0;
}

/* Narrows the texts first..last-1, which are sorted and alike in `size` bytes, to those with this byte next. */
static int literals_narrow(const schema *s, int32_t *first, int32_t *last, uint32_t size, unsigned char b) {
    const char *text = s->text.data;
    int32_t limits[2];
    for (int i = 0; i < 2; i++) {          /* the first text whose next byte is at least b, more than b */
        int32_t low = *first, high = *last;
        while (low < high) {
            int32_t middle = low + (high - low) / 2;
            const schema_literal *l = literal_at(s, middle);
            if (l->size <= size || (unsigned char)text[l->text + size] < b + i) low = middle + 1;
            else high = middle;
        }
        limits[i] = low;
    }
    *first = limits[0];
    *last = limits[1];
    return *first < *last;
}

static int literal_is_complete(const schema *s, const frame *f) {
    return literal_at(s, f->is.literal.first)->size == f->is.literal.size;
}

static int literal_byte(const schema *s, frame *f, unsigned char b) {
    return literals_narrow(s, &f->is.literal.first, &f->is.literal.last, f->is.literal.size++, b);
}

/* Numbers and literals end where something else follows, which may also be what goes on with them. */
static void step_open_end(follower *w, place *out, thread *t, unsigned char b) {
    const schema *s = w->s;
    thread longer = *t;
    int is_number = t->f.in == IN_NUMBER;
    if (is_number ? number_byte(s, &longer.f, b) : literal_byte(s, &longer.f, b)) {
        /* A value that ends by itself, as texts do, is left at once. */
        const schema_literal *l = is_number ? NULL : literal_at(s, longer.f.is.literal.first);
        if (l && l->size == longer.f.is.literal.size && longer.f.is.literal.last - longer.f.is.literal.first == 1 &&
            !(s->text.data[l->text + l->size - 1] >= '0' && s->text.data[l->text + l->size - 1] <= '9'))
            thread_pop(w, &longer);
        place_add(out, &longer);
    }
    if (!(is_number ? number_is_complete(s, &t->f) : literal_is_complete(s, &t->f))) return;
    thread_pop(w, t);
    thread_step(w, out, t, b);
}

/* ---- Values ------------------------------------------------------------------------------------------------------------------- */

/* The first byte of a value of one kind. */
static void begin_kind(follower *w, place *out, thread *t, int32_t kind, unsigned char b) {
    const schema *s = w->s;
    const schema_kind *k = kind_at(s, kind);
    int depth = t->f.depth, below = t->below;
    frame f = frame_of(IN_OBJECT, kind, depth);
    if (k->height + depth > VALUE_DEPTH) return;
    switch (k->kind) {
    case KIND_OBJECT:
        if (b != '{') return;
        break;
    case KIND_ARRAY:
        f.in = IN_ARRAY;
        if (b != '[') return;
        break;
    case KIND_STRING:
        f.in = IN_STRING;
        f.is.string.state = 1;
        if (b != (w->pairs ? (int)QUOTE_BYTE : '"')) return;
        break;
    case KIND_NUMBER:
        f.in = IN_NUMBER;
        f.is.number.negative = b == '-';
        f.at = NUMBER_MINUS;
        if (b == '-' ? range_is_empty(range_at(s, k->detail), 1) : b < '0' || b > '9' || !number_byte(s, &f, b)) return;
        break;
    default:
        f.in = IN_LITERAL;
        f.is.literal.first = k->first;
        f.is.literal.last = k->first + k->count;
        if (!literal_byte(s, &f, b)) return;
        break;
    }
    thread begun;
    memset(&begun, 0, sizeof begun);
    begun.f = f;
    begun.below = below;
    place_add(out, &begun);
}

static void step_value(follower *w, place *out, thread *t, unsigned char b) {
    const schema_node *n = node_at(w->s, t->f.of);
    if ((t->f.at == VALUE_ARGUMENTS && b != '{') || (t->f.at == VALUE_PARAMETER && b == '"') || (t->f.at == VALUE_NULL && b != 'n')) return;
    for (int32_t k = n->first; k < n->first + n->count; k++) begin_kind(w, out, t, k, b);
}

/* ---- Objects -------------------------------------------------------------------------------------------------------------------- */

static int is_seen(const frame *f, int i) {
    return (int)(f->is.object.seen[i / 64] >> (i % 64) & 1);
}

/* Whether the object may have this name now. */
static int object_takes(const schema *s, const frame *f, int i) {
    return !is_seen(f, i) && node_fits(s, name_at(s, kind_at(s, f->of)->first + i)->node, f->depth + 1);
}

static int object_takes_others(const schema *s, const frame *f) {
    return node_fits(s, kind_at(s, f->of)->more, f->depth + 1);
}

static int object_takes_more(const schema *s, const frame *f) {
    int count = kind_at(s, f->of)->count, i = 0;
    while (i < count && !object_takes(s, f, i)) i++;
    return i < count || object_takes_others(s, f);
}

static int object_is_complete(const schema *s, const frame *f) {
    const schema_kind *k = kind_at(s, f->of);
    for (int i = 0; i < k->count; i++)
        if (name_at(s, k->first + i)->required && !is_seen(f, i)) return 0;
    return 1;
}

static int names_take(const schema *s, const frame *object, const frame *key) {
    for (int i = key->is.key.first; i < key->is.key.last; i++)
        if (object_takes(s, object, i)) return 1;
    return 0;
}

/* An object between its keys and values. at: 0 after {, 1 after a value, 2 after a comma, 3 after a key. */
static void step_object(follower *w, place *out, thread *t, unsigned char b) {
    const schema *s = w->s;
    const schema_kind *k = kind_at(s, t->f.of);
    frame *f = &t->f;
    if (f->at == 3) {
        if (b != ':') return;
        f->at = 1;
        frame value = frame_of(AT_VALUE, f->is.object.name >= 0 ? name_at(s, k->first + f->is.object.name)->node : k->more, f->depth + 1);
        value.at = VALUE_AFTER_COLON;
        f->is.object.name = 0;
        if (thread_push(w, out, t, value)) place_add(out, t);
        return;
    }
    if (b == '}' && f->at < 2 && object_is_complete(s, f)) {
        thread_pop(w, t);
        place_add(out, t);
        return;
    }
    if ((b == ',' ? f->at != 1 : b != '"' || f->at == 1) || !object_takes_more(s, f)) return;
    f->at = 2;
    frame key = frame_of(IN_KEY, f->of, f->depth);
    key.is.key.last = k->count;
    key.is.key.is_other = object_takes_others(s, f);
    if (b == ',' || thread_push(w, out, t, key)) place_add(out, t);
}

static void names_narrow(const schema *s, frame *f, unsigned char b) {
    const schema_kind *k = kind_at(s, f->of);
    uint32_t at = f->is.key.size++;
    int first = f->is.key.first, last = f->is.key.last;
    for (; first < last; first++) {
        const schema_name *n = name_at(s, k->first + first);
        if (n->size > at && (unsigned char)s->text.data[n->text + at] == b) break;
    }
    for (; first < last; last--) {
        const schema_name *n = name_at(s, k->first + last - 1);
        if (n->size > at && (unsigned char)s->text.data[n->text + at] == b) break;
    }
    f->is.key.first = first;
    f->is.key.last = last;
}

/* A byte of a key after its quote. A name that the schema does not know spells no character by its number where others are known: it
   might be one of them. */
static void step_key(follower *w, place *out, thread *t, unsigned char b) {
    const schema *s = w->s;
    const schema_kind *k = kind_at(s, t->f.of);
    frame *f = &t->f;
    uint32_t code = 0;
    if (b == '"' && is_between(f)) {
        int is_known = f->is.key.first < f->is.key.last && name_at(s, k->first + f->is.key.first)->size == f->is.key.size;
        int name = is_known ? f->is.key.first : -1, is_other = f->is.key.is_other;
        thread_pop(w, t);
        if (is_known ? !object_takes(s, f, name) : !is_other) return;
        if (is_known) f->is.object.seen[name / 64] |= (uint64_t)1 << (name % 64);
        f->is.object.name = name;
        f->at = 3;
        place_add(out, t);
        return;
    }
    if (f->at == 1 && (b == 'u' || b == '/') && k->count) f->is.key.is_other = 0;
    names_narrow(s, f, b);
    if (!string_byte(f, b, &code)) f->is.key.is_other = 0, f->more = 0;
    if (!f->is.key.is_other && !names_take(s, &w->links[t->below].f, f)) return;
    place_add(out, t);
}

/* ---- Lists ------------------------------------------------------------------------------------------------------------------------ */

/* The node of item number i; -1: there is none, or none that fits. */
static int32_t array_node(const schema *s, const frame *f, uint32_t i) {
    const schema_kind *k = kind_at(s, f->of);
    int32_t node = i < (uint32_t)k->count ? item_at(s, k->first + (int32_t)i) : k->more;
    return i < k->most && node_fits(s, node, f->depth + 1) ? node : -1;
}

/* A list between its items. at: 0 after [, 1 after an item. */
static void step_array(follower *w, place *out, thread *t, unsigned char b) {
    const schema *s = w->s;
    const schema_kind *k = kind_at(s, t->f.of);
    frame *f = &t->f;
    uint32_t counted = (uint32_t)k->count > k->least ? (uint32_t)k->count : k->least;
    int32_t node = array_node(s, f, f->count);
    if (b == ']' && f->count >= k->least) {
        thread_pop(w, t);
        place_add(out, t);
        return;
    }
    if (node < 0 || (f->at && b != ',')) return;
    frame item = frame_of(AT_VALUE, node, f->depth + 1);
    int begins = !f->at;
    item.at = VALUE_IN_LIST;
    f->at = 1;
    f->count += k->most < UINT32_MAX || f->count <= counted;            /* further ones are alike, as far as anything differs */
    if (!thread_push(w, out, t, item)) return;
    if (begins) step_value(w, out, t, b);
    else place_add(out, t);
}
