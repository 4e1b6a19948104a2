/* generate/grammar/follow.c: a JSON text followed byte by byte through what a schema allows (schema.c). It knows bytes, and nothing of
   tokens.

   A place in the text is a small set of threads, each with the stack of its open values: one for each alternative that the text
   may still be. A byte moves all of them, ends some, and where a value begins one becomes as many as its node has kinds. Stacks
   share what lies below. Two threads that have come to the same point are one again. Should there be more than FOLLOW_THREADS,
   those that came last are left out: the text is then still of the schema.

   No thread ever comes to where nothing can follow: a value is begun only if what it needs at least fits the depth that is left,
   a number's digit only if a number within its bounds begins so, a string's character only if its pattern can still be matched.
   White space between values is bounded, as are numbers: a model that finds no end is given one. */

enum { FOLLOW_THREADS = 64, FOLLOW_LINKS = 1 << 13, GAP_SPACES = 32, INDENT_SPACES = 8 };

enum { AT_VALUE, IN_OBJECT, IN_KEY, IN_ARRAY, IN_STRING, IN_NUMBER, IN_LITERAL, AT_END,
       IN_CALLS, IN_CALL_NAME, IN_CALL_BODY, IN_PARAMETERS, IN_PARAMETER_NAME, IN_PARAMETER_END, IN_TEXT };      /* of calls: see call.c */

enum { QUOTE_BYTE = 0xfc };                      /* in the place of a token, the mark around Gemma's texts */

/* Where a value begins: at the text's beginning; after a colon; in a list; as a call's arguments; as a parameter between tags, and as one
   whose text is read as a string, but for null. */
enum { VALUE_FIRST, VALUE_AFTER_COLON, VALUE_IN_LIST, VALUE_ARGUMENTS, VALUE_PARAMETER, VALUE_NULL };

/* Between calls, at of IN_CALLS: the text may end after one; those from BEFORE_LIST on are of a list. */
enum { BEFORE_CALLS, AFTER_CALL, BEFORE_CALL, BEFORE_LIST, IN_LIST, AFTER_COMMA, BEFORE_ITEM, AT_LIST_END };

/* An open value. */
typedef struct frame {
    uint8_t in, at;              /* at: what of it; see the functions of each */
    uint8_t depth;               /* values it lies in */
    uint8_t lines, spaces;       /* white space since the last byte that was none */
    uint8_t more, low, high;     /* of a character: bytes that it still lacks, and the bounds of the next one */
    int32_t of;                  /* its kind; AT_VALUE: its node */
    uint32_t count;              /* items, characters, digits after the point */
    union {
        struct { uint64_t seen[SCHEMA_NAMES / 64]; int32_t name; } object;      /* properties; the last name, -1: another */
        struct { int32_t first, last; uint32_t size; int is_other; } key;       /* names that begin like it; it may be none */
        struct { int32_t first, last; uint32_t size; } literal;                 /* texts that begin like it */
        struct { uint32_t code; int state, tag, tags; } string;                 /* of a character's bits; of the automaton; of a tag */
        struct { uint64_t whole, part; int negative; } number;
    } is;
} frame;

typedef struct thread { frame f; int32_t below; } thread;                       /* below: a link; -1: none */

typedef struct place {
    int count, links;
    thread threads[FOLLOW_THREADS];
} place;

typedef struct follower {
    const schema *s;
    const struct call_grammar *calls;                                   /* NULL: the text is a value */
    thread *links, *others;      /* [FOLLOW_LINKS]: the frames below; others: to move them to */
    int32_t *moved;              /* [FOLLOW_LINKS] */
    int first_lines;             /* line feeds that may come before the value */
    int pairs;                   /* values are Gemma's: pairs.c */
    place now, next;
    place *tried;                /* [WORD_MAX + 1] */
} follower;

static void follower_close(follower *w) {
    free(w->links);
    free(w->others);
    free(w->moved);
    free(w->tried);
}

/* 0: out of memory. To be closed in any case. */
static int follower_open(follower *w, const schema *s) {
    memset(w, 0, sizeof *w);
    w->s = s;
    w->links = (thread *)malloc(FOLLOW_LINKS * sizeof *w->links);
    w->others = (thread *)malloc(FOLLOW_LINKS * sizeof *w->others);
    w->moved = (int32_t *)malloc(FOLLOW_LINKS * sizeof *w->moved);
    w->tried = (place *)malloc((WORD_MAX + 1) * sizeof *w->tried);
    return w->links && w->others && w->moved && w->tried;
}

/* ---- Threads --------------------------------------------------------------------------------------------------------------- */

static void place_add(place *p, const thread *t) {
    for (int i = 0; i < p->count; i++)
        if (p->threads[i].below == t->below && !memcmp(&p->threads[i].f, &t->f, sizeof t->f)) return;
    if (p->count < FOLLOW_THREADS) p->threads[p->count++] = *t;
}

static frame frame_of(int in, int32_t of, int depth) {
    frame f;
    memset(&f, 0, sizeof f);
    f.in = (uint8_t)in;
    f.of = of;
    f.depth = (uint8_t)depth;
    return f;
}

/* The thread goes on in another frame on top of its own; 0: no links are left. */
static int thread_push(follower *w, place *p, thread *t, frame f) {
    if (p->links == FOLLOW_LINKS) return 0;
    w->links[p->links] = *t;
    t->f = f;
    t->below = p->links++;
    return 1;
}

static void thread_pop(const follower *w, thread *t) {
    if (t->below >= 0) *t = w->links[t->below];
    else t->f = frame_of(AT_END, 0, 0);
}

static void follower_begin(follower *w, int32_t node, int lines) {
    thread t;
    memset(&t, 0, sizeof t);
    t.f = frame_of(AT_VALUE, node, 0);
    t.below = -1;
    w->first_lines = lines;
    w->pairs = 0;
    w->now.count = w->now.links = 0;
    place_add(&w->now, &t);
}

/* Whether a value of the node fits in that depth. */
static int node_fits(const schema *s, int32_t node, int depth) {
    return node >= 0 && node_at(s, node)->height + depth <= VALUE_DEPTH;
}

/* ---- The whole text ---------------------------------------------------------------------------------------------------------------- */

/* Steps of one thread by a byte, by what it is in: in follow_values.c, and call.c. */
static void step_string(follower *w, place *out, thread *t, unsigned char b);
static void step_open_end(follower *w, place *out, thread *t, unsigned char b);
static void step_value(follower *w, place *out, thread *t, unsigned char b);
static void step_object(follower *w, place *out, thread *t, unsigned char b);
static void step_key(follower *w, place *out, thread *t, unsigned char b);
static void step_array(follower *w, place *out, thread *t, unsigned char b);
static void step_call(follower *w, place *out, thread *t, unsigned char b);
static void step_pair_text(follower *w, place *out, thread *t, unsigned char b);
static void step_pair_key(follower *w, place *out, thread *t, unsigned char b);
static void step_pair_object(follower *w, place *out, thread *t, unsigned char b);
static int number_is_complete(const schema *s, const frame *f);
static int literal_is_complete(const schema *s, const frame *f);

/* White space: a blank after : or , or a line feed with blanks after it, where a person would put them, and no more than indent. */
static int step_gap(const follower *w, frame *f, unsigned char b) {
    int is_first = f->in == AT_VALUE && f->at == VALUE_FIRST, after_colon = f->in == AT_VALUE && f->at == VALUE_AFTER_COLON;
    if ((f->in == IN_OBJECT && f->at == 3) || f->in == AT_END || (f->in == AT_VALUE && f->at >= VALUE_ARGUMENTS)) return 0;
    if (b == '\n') return !f->spaces && !after_colon && ++f->lines <= (is_first ? w->first_lines : 1);
    const int indent = INDENT_SPACES * (f->depth + 1) < GAP_SPACES ? INDENT_SPACES * (f->depth + 1) : (int)GAP_SPACES;
    return b == ' ' && !is_first && ++f->spaces <= (f->lines ? indent : f->in == AT_VALUE || f->at != 1);
}

static void thread_step(follower *w, place *out, thread *t, unsigned char b) {
    if (t->f.in > AT_END) {
        step_call(w, out, t, b);
        return;
    }
    switch (t->f.in) {
    case IN_STRING: (w->pairs ? step_pair_text : step_string)(w, out, t, b); return;
    case IN_KEY: (w->pairs ? step_pair_key : step_key)(w, out, t, b); return;
    case IN_NUMBER:
    case IN_LITERAL: step_open_end(w, out, t, b); return;
    default: break;
    }
    if (b == ' ' || b == '\n') {
        if (!w->pairs && step_gap(w, &t->f, b)) place_add(out, t);
        return;
    }
    t->f.lines = t->f.spaces = 0;
    switch (t->f.in) {
    case AT_VALUE: step_value(w, out, t, b); return;
    case IN_OBJECT: (w->pairs ? step_pair_object : step_object)(w, out, t, b); return;
    case IN_ARRAY: step_array(w, out, t, b); return;
    default: return;
    }
}

/* out = where one more byte leads from p. 0: it does not fit. */
static int place_step(follower *w, const place *p, place *out, unsigned char b) {
    out->count = 0;
    out->links = p->links;
    for (int i = 0; i < p->count; i++) {
        thread t = p->threads[i];
        thread_step(w, out, &t, b);
    }
    return out->count > 0;
}

/* Keeps the links that threads still have. */
static void follower_compact(follower *w) {
    int count = 0;
    memset(w->moved, -1, (size_t)w->now.links * sizeof *w->moved);
    for (int i = 0; i < w->now.count; i++)
        for (int32_t k = w->now.threads[i].below; k >= 0 && w->moved[k] < 0; k = w->links[k].below) w->moved[k] = 0;
    for (int k = 0; k < w->now.links; k++) {               /* what lies below comes first */
        if (w->moved[k] < 0) continue;
        w->others[count] = w->links[k];
        if (w->links[k].below >= 0) w->others[count].below = w->moved[w->links[k].below];
        w->moved[k] = count++;
    }
    for (int i = 0; i < w->now.count; i++)
        if (w->now.threads[i].below >= 0) w->now.threads[i].below = w->moved[w->now.threads[i].below];
    thread *other = w->links;
    w->links = w->others;
    w->others = other;
    w->now.links = count;
}

/* Takes more bytes of the text; 0: they do not fit, and nothing changes. */
static int follower_take(follower *w, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        place from = i ? w->next : w->now;
        if (!place_step(w, &from, &w->next, (unsigned char)bytes[i])) return 0;
    }
    if (n) w->now = w->next;
    follower_compact(w);
    return 1;
}

/* Whether the text may end here. */
static int follower_is_complete(const follower *w) {
    for (int i = 0; i < w->now.count; i++) {
        const thread *t = &w->now.threads[i];
        int whole = t->f.in == AT_END || (t->f.in == IN_CALLS && t->f.at == AFTER_CALL) || (t->f.in == IN_NUMBER && number_is_complete(w->s, &t->f)) ||
                    (t->f.in == IN_LITERAL && literal_is_complete(w->s, &t->f));
        if (whole && (t->f.in == AT_END || t->f.in == IN_CALLS || t->below < 0)) return 1;
    }
    return 0;
}
