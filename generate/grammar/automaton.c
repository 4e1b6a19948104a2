/* generate/grammar/automaton.c: an expression (pattern.c) becomes a deterministic automaton over the characters of a JSON string, of which
   control characters other than \b \t \n \f \r are none here.

   Its states are Brzozowski's derivatives: the expression that remains to be matched after a character. As equal expressions are the
   same node, there are finitely many. Characters that no set of the expression tells apart form a class. States from which no end
   can be reached are left out, so that a string which is followed never comes to where it cannot end. */

enum { NO_CLASS = 255, AUTOMATON_FREE = 48 };

typedef struct automaton {
    int states, classes, intervals;
    uint16_t *next;              /* [states][classes]; state 0 leads nowhere, 1 is the first */
    uint8_t *accepts;            /* [states] */
    uint8_t *free;               /* [states]: so many characters may be any but control characters, quote and backslash; at most
                                    AUTOMATON_FREE */
    uint32_t *starts;            /* [intervals]: characters from here to the next are of class_of[i] */
    uint8_t *class_of;           /* NO_CLASS: in no string */
    uint8_t ascii[128];          /* the classes of these */
} automaton;

static int32_t re_derive(pattern *p, int32_t at, int c);

static int32_t re_derive_into(pattern *p, int32_t at, int c) {
    const re_node n = p->nodes[at];
    switch (n.kind) {
    case RE_SET: return p->signature[n.a][c / 64] >> (c % 64) & 1 ? RE_EMPTY : RE_NOTHING;
    case RE_SEQUENCE: {
        int32_t first = re_sequence(p, re_derive(p, n.a, c), n.b);
        return p->nodes[n.a].nullable ? re_join(p, RE_OR, first, re_derive(p, n.b, c)) : first;
    }
    case RE_OR:
    case RE_AND: {
        int32_t first = re_derive(p, n.a, c);
        return re_join(p, n.kind, first, re_derive(p, n.b, c));
    }
    case RE_NOT: return re_not(p, re_derive(p, n.a, c));
    case RE_TIMES: {
        int32_t rest = re_times(p, n.a, n.b ? n.b - 1 : 0, n.c < 0 ? -1 : n.c - 1);
        return re_sequence(p, re_derive(p, n.a, c), rest);
    }
    default: return RE_NOTHING;
    }
}

/* The derivative: the pattern that remains to be matched after a character of class c. */
static int32_t re_derive(pattern *p, int32_t at, int c) {
    if (++p->steps > RE_STEPS) return re_problem(p, "a pattern of so many states");
    return re_enter(p) ? re_leave(p, re_derive_into(p, at, c)) : 0;
}

static void automaton_free(automaton *a) {
    if (!a) return;
    free(a->next);
    free(a->accepts);
    free(a->free);
    free(a->starts);
    free(a->class_of);
    free(a);
}

static int start_order(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Where the classes of characters begin, and which there are. */
static int automaton_classes(automaton *a, pattern *p) {
    static const uint32_t always[] = {0, 8, 11, 12, 14, 0x20, 0xd800, 0xe000};
    uint64_t kinds[RE_CLASSES][RE_SETS / 64];
    int n = 0;
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++) a->starts[n++] = always[i];
    for (int i = 0; i < p->range_count; i++) {
        a->starts[n++] = p->ranges[i].first;
        if (p->ranges[i].last + 1 < CHARACTERS) a->starts[n++] = p->ranges[i].last + 1;
    }
    qsort(a->starts, (size_t)n, sizeof *a->starts, start_order);
    for (int i = 0; i < n; i++)
        if (!i || a->starts[i] != a->starts[a->intervals - 1]) a->starts[a->intervals++] = a->starts[i];
    for (int i = 0; i < a->intervals; i++) {
        uint64_t kind[RE_SETS / 64] = {0};
        uint32_t c = a->starts[i];
        int k = 0;
        for (int s = 0; s < p->set_count; s++)
            for (int r = p->sets[s].first; r < p->sets[s].first + p->sets[s].count; r++)
                if (c >= p->ranges[r].first && c <= p->ranges[r].last) kind[s / 64] |= (uint64_t)1 << (s % 64);
        a->class_of[i] = NO_CLASS;
        if ((c < 0x20 && !(c >= 8 && c < 11) && !(c >= 12 && c < 14)) || (c >= 0xd800 && c < 0xe000)) continue;
        while (k < a->classes && memcmp(kinds[k], kind, sizeof kind)) k++;
        if (k == RE_CLASSES) return re_problem(p, "a pattern of so many character ranges");
        if (k == a->classes) memcpy(kinds[a->classes++], kind, sizeof kind);
        a->class_of[i] = (uint8_t)k;
    }
    for (int k = 0; k < a->classes; k++)
        for (int s = 0; s < p->set_count; s++)
            p->signature[s][k / 64] |= (kinds[k][s / 64] >> (s % 64) & 1) << (k % 64);
    for (uint32_t c = 0, i = 0; c < 128; c++) {
        while ((int)i + 1 < a->intervals && a->starts[i + 1] <= c) i++;
        a->ascii[c] = a->class_of[i];
    }
    return 1;
}

/* The state that an expression is; 0 for nothing. */
static int re_state(pattern *p, int32_t node, int32_t *of, int *count, int most) {
    if (!node || p->problem) return 0;
    if (p->nodes[node].state) return p->nodes[node].state;
    if (*count >= most) return re_problem(p, "a pattern of so many states");
    of[*count] = node;
    return p->nodes[node].state = (uint16_t)(*count)++;
}

/* States from which no end can be reached become state 0. */
static void automaton_prune(automaton *a) {
    uint8_t *ends = a->accepts + a->states;                             /* [states]: an end can be reached */
    memcpy(ends, a->accepts, (size_t)a->states);
    for (int more = 1; more;) {
        more = 0;
        for (int q = a->states - 1; q > 0; q--)
            for (int c = 0; c < a->classes && !ends[q]; c++) more |= ends[q] = ends[a->next[q * a->classes + c]];
    }
    for (int i = a->classes; i < a->states * a->classes; i++)
        if (!ends[a->next[i]]) a->next[i] = 0;
    if (!ends[1]) memset(a->next, 0, (size_t)a->states * (size_t)a->classes * sizeof *a->next);
}

/* Whether a class holds a character that stands for itself in a JSON string. The line separators, which a pattern's . leaves
   out, do not count: see vocabulary.c. */
static int class_is_plain(const automaton *a, int c) {
    for (int i = 0; i < a->intervals; i++) {
        uint32_t first = a->starts[i], last = i + 1 < a->intervals ? a->starts[i + 1] - 1 : CHARACTERS - 1;
        if (a->class_of[i] == c && first >= 0x20 && !(first == last && (first == '"' || first == '\\')) &&
            !(first >= 0x2028 && last <= 0x2029))
            return 1;
    }
    return 0;
}

static void automaton_find_free(automaton *a) {
    uint8_t plain[RE_CLASSES];
    for (int c = 0; c < a->classes; c++) plain[c] = (uint8_t)class_is_plain(a, c);
    for (int n = 1; n <= AUTOMATON_FREE; n++)
        for (int q = 1; q < a->states; q++) {
            int all = a->free[q] == n - 1;
            for (int c = 0; c < a->classes && all; c++)
                all = !plain[c] || (a->next[q * a->classes + c] && a->free[a->next[q * a->classes + c]] >= n - 1);
            if (all) a->free[q] = (uint8_t)n;
        }
}

/* The automaton of an expression of at most so many states, which are taken off *left. NULL: p->problem, or out of memory. */
static automaton *automaton_of(pattern *p, int32_t root, int *left) {
    automaton *a = (automaton *)calloc(1, sizeof *a);
    int most = *left < RE_STATES ? *left : (int)RE_STATES, count = 1;
    int32_t *of = (int32_t *)malloc(RE_STATES * sizeof *of);
    size_t starts = 2 * (size_t)p->range_count + 8;
    if (a) a->starts = (uint32_t *)malloc(starts * sizeof *a->starts);
    if (a) a->class_of = (uint8_t *)malloc(starts);
    int ok = a && of && a->starts && a->class_of && automaton_classes(a, p);
    if (ok) a->next = (uint16_t *)calloc((size_t)RE_STATES * (size_t)a->classes, sizeof *a->next);
    if (ok) a->accepts = (uint8_t *)calloc(2 * RE_STATES, 1);
    ok = ok && a->next && a->accepts;
    if (ok && !re_state(p, root, of, &count, most)) count = 2, of[1] = RE_NOTHING;
    for (int q = 1; ok && q < count && !p->problem; q++) {
        a->accepts[q] = p->nodes[of[q]].nullable;
        for (int c = 0; c < a->classes; c++)
            a->next[q * a->classes + c] = (uint16_t)re_state(p, re_derive(p, of[q], c), of, &count, most);
    }
    free(of);
    if (!ok || p->problem) {
        automaton_free(a);
        return NULL;
    }
    a->states = count;
    *left -= count;
    automaton_prune(a);
    a->free = (uint8_t *)calloc((size_t)count, 1);
    if (a->free) automaton_find_free(a);
    uint16_t *next = (uint16_t *)realloc(a->next, (size_t)count * (size_t)a->classes * sizeof *next);
    if (next) a->next = next;
    if (a->free) return a;
    automaton_free(a);
    return NULL;
}

/* Whether any string fits. */
static int automaton_has_strings(const automaton *a) {
    int some = a->accepts[1];
    for (int c = 0; c < a->classes; c++) some |= a->next[a->classes + c] != 0;
    return some;
}

/* The state after a character; 0: it does not fit. */
static int automaton_step(const automaton *a, int q, uint32_t c) {
    int class_of = c < 128 ? (int)a->ascii[c] : (int)NO_CLASS, low = 0, high = a->intervals - 1;
    while (c >= 128 && low < high) {
        int middle = (low + high + 1) / 2;
        if (a->starts[middle] <= c) low = middle;
        else high = middle - 1;
    }
    if (c >= 128) class_of = a->class_of[low];
    return class_of == NO_CLASS ? 0 : a->next[q * a->classes + class_of];
}

/* Whether any of these characters fits. */
static int automaton_takes(const automaton *a, int q, uint32_t first, uint32_t last) {
    for (int i = 0; i < a->intervals && a->starts[i] <= last; i++)
        if ((i + 1 == a->intervals || a->starts[i + 1] > first) && a->class_of[i] != NO_CLASS &&
            a->next[q * a->classes + a->class_of[i]])
            return 1;
    return 0;
}
