/* generate/grammar/mask.c: which words of a vocabulary may come next in a text that is followed through a schema. */

/* Marks the words that fit. Words that begin alike go the same way up to where they part. */
static void mask_try(follower *w, const word *words, int count, unsigned char *allowed) {
    int good = 0;                          /* bytes of the word before that fitted */
    w->tried[0] = w->now;
    for (const word *one = words; one < words + count; one++) {
        int at = one->same;
        if (at > good) continue;
        while (at < one->size && place_step(w, &w->tried[at], &w->tried[at + 1], (unsigned char)one->bytes[at])) at++;
        good = at;
        if (at == one->size) allowed[one->id] = 1;
    }
}

/* The number of characters of plain text that may come next. -1: that does not tell which words fit. */
static int64_t plain_characters(const follower *w) {
    int64_t most = -1, bounded = 1;
    for (int i = 0; i < w->now.count; i++) {
        const frame *f = &w->now.threads[i].f;
        int is_text = (f->in == IN_STRING || f->in == IN_TEXT) && !f->is.string.tag && is_between(f);
        const schema_kind *k = is_text ? kind_at(w->s, f->of) : NULL;
        int64_t left = -1;
        if (k && k->detail < 0) left = k->most == UINT32_MAX ? INT32_MAX : (int64_t)k->most - f->count;
        if (k && k->detail >= 0 && automaton_at(w->s, k->detail)->free[f->is.string.state] >= WORD_MAX)
            left = INT32_MAX;
        if (f->in == IN_KEY && !w->pairs && is_between(f) && f->is.key.is_other) left = INT32_MAX;
        bounded &= left >= 0;
        most = left > most ? left : most;
    }
    return bounded || most == INT32_MAX ? most : -1;
}

/* Marks all words that fit; others are left as they are. */
static void mask_words(follower *w, const vocabulary *v, unsigned char *allowed) {
    int64_t plain = plain_characters(w);
    for (int i = 0; i < v->count && plain >= 0; i++)
        if (v->words[i].characters && v->words[i].characters <= plain) allowed[v->words[i].id] = 1;
    if (plain >= 0) mask_try(w, v->odd, v->odd_count, allowed);
    else mask_try(w, v->words, v->count, allowed);
}
