/* generate/stops.c: texts that end an answer, looked for while it comes. It knows nothing of channels or tokens.

   Each text is matched as Knuth, Morris and Pratt do: one state, no byte of the answer looked at twice. What is held back
   because a stop text may begin with it need not be kept: it is the beginning of that stop text. Of several texts the first
   to be complete counts, of those that end together the longest. */

typedef struct stop_text {
    const char *text;            /* well-formed UTF-8, so that what is cut off are whole characters */
    size_t size;
    const size_t *border;        /* [size]: of the beginning up to each byte, the longest end that is a beginning, too */
    size_t matched;              /* so much of it has come */
} stop_text;

typedef struct stops {
    stop_text *list;             /* count of them; those without text are never found */
    int count;
    buf texts, borders;
} stops;

static void stops_close(stops *s) {
    buf_free(&s->texts);
    buf_free(&s->borders);
    free(s->list);
    memset(s, 0, sizeof *s);
}

static void make_borders(const char *text, size_t size, size_t *border) {
    size_t matched = 0;
    border[0] = 0;
    for (size_t i = 1; i < size; i++) {
        while (matched && text[i] != text[matched]) matched = border[matched - 1];
        border[i] = matched += text[i] == text[matched];
    }
}

/* All the memory it ever needs. To be closed in any case. */
static int stops_open(stops *s, const char *const *texts, int count, mote_error *err) {
    memset(s, 0, sizeof *s);
    if (!count) return MOTE_OK;
    s->list = (stop_text *)calloc((size_t)count, sizeof *s->list);
    if (!s->list) return fail_memory(err);
    s->count = count;
    for (int i = 0; i < count; i++) {
        size_t before = s->texts.size;
        utf8_clean(texts[i], strlen(texts[i]), &s->texts);
        s->list[i].size = s->texts.size - before;
    }
    buf_add(&s->borders, NULL, s->texts.size * sizeof(size_t));
    if (s->texts.failed || s->borders.failed) return fail_memory(err);
    size_t *border = (size_t *)(void *)s->borders.data;
    const char *text = s->texts.data;
    for (int i = 0; i < count; i++) {
        stop_text *t = s->list + i;
        if (!t->size) continue;                             /* "" ends nothing */
        t->text = text;
        t->border = border;
        make_borders(text, t->size, border);
        text += t->size;
        border += t->size;
    }
    return MOTE_OK;
}

/* The stop text of which most has come; NULL: of none has any. */
static const stop_text *stops_held(const stops *s) {
    const stop_text *most = NULL;
    for (int i = 0; i < s->count; i++)
        if (s->list[i].matched > (most ? most->matched : 0)) most = s->list + i;
    return most;
}

/* Takes a byte. The number of the stop text that is complete with it, -1: none is. */
static int stops_take(stops *s, char c) {
    int found = -1;
    for (int i = 0; i < s->count; i++) {
        stop_text *t = s->list + i;
        if (!t->size) continue;
        while (t->matched && t->text[t->matched] != c) t->matched = t->border[t->matched - 1];
        t->matched += t->text[t->matched] == c;
        if (t->matched == t->size && (found < 0 || t->size > s->list[found].size)) found = i;
    }
    return found;
}

static void stops_forget(stops *s) {
    for (int i = 0; i < s->count; i++) s->list[i].matched = 0;
}
