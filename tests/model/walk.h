/* walk.h: a model sublayer by sublayer and whole, for tests. After engine.cu with its definitions, and api.h. C11 and C++17. */

/* Empty sessions, `rows` tokens at a time. */
static void walk_add(walk *w, mote_session *s, int rows) {
    walk_case *c = &w->cases[w->count++];
    c->s = s;
    c->rows = c->kept = rows;
}

static void walk_whole(walk *w) {
    const size_t vocab = (size_t)w->m->c.vocab;
    float *logits = (float *)allocate((size_t)w->count * (size_t)w->T * vocab * sizeof *logits), *to = logits;
    for (int i = 0; i < w->count; i++) {
        walk_case *c = &w->cases[i];
        c->whole = to;
        for (int t = 0, T; t < w->T; t += T, to += (size_t)T * vocab) {
            T = w->T - t < c->rows ? w->T - t : c->rows;
            EXPECT(MOTE_OK, mote_feed_logits(c->s, w->ids + t, (size_t)T, to, NULL, &failure));
        }
        EXPECT(MOTE_OK, mote_reset(c->s, &failure));
    }
    EXPECT(MOTE_OK, walk_model(w));
    free(logits);
}
