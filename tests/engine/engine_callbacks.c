// A part of test_engine: threads and callbacks.

typedef struct errand { const fixture *f; int piece, wrong; mote_error failure; } errand;

static void *run_errand(void *argument) {
    errand *e = (errand *)argument;
    const fixture *f = e->f;
    mote_session_options o = {.context = f->T, .threads = 2};
    mote_session *s;
    for (int round = 0; round < 3; round++) {
        if (mote_session_open(f->m, &o, &s, &e->failure)) return e->wrong = 1000, NULL;
        for (int t = 0; t < f->prompt; t += e->piece) {
            int end = t + e->piece < f->prompt ? t + e->piece : f->prompt;
            e->wrong += feed_decoded(s, f->tokens + t, (size_t)(end - t), NULL, NULL, f->vocab, &e->failure) ||
                        !same_row(f, mote_logits(s), end - 1);
        }
        for (int t = f->prompt; t < f->T; t++) {
            int32_t id = -1;
            e->wrong += mote_step(s, NULL, &id, &e->failure) || id != best_of(rows_at(f->plain, f, t - 1), f->vocab);
            if (id != f->tokens[t]) break;                    // on a GPU, where two logits are close
        }
        mote_session_close(s);
    }
    return NULL;
}

// Sessions of two models on five threads at once: as alone.
static void test_threads(const fixture *f, const fixture *g) {
    pthread_t threads[5];
    errand errands[5];
    memset(errands, 0, sizeof errands);
    for (int i = 0; i < 5; i++) {
        errands[i].f = i % 2 ? g : f;
        errands[i].piece = 1 + i * 2;
        CHECK(!pthread_create(&threads[i], NULL, run_errand, &errands[i]), "a thread");
    }
    for (int i = 0; i < 5; i++) {
        pthread_join(threads[i], NULL);
        CHECK(!errands[i].wrong, "%s: %d wrong on a thread of its own: %s", errands[i].f->dir, errands[i].wrong,
              errands[i].failure.message);
    }
}

typedef struct watch { int polls, cancel_at, reports, bad, logs; double last; char line[512]; } watch;

static int watch_cancel(void *user) {
    watch *w = (watch *)user;
    return ++w->polls == w->cancel_at;
}

static void watch_progress(void *user, const char *what, double fraction) {
    watch *w = (watch *)user;
    w->bad += !what || !what[0] || !(fraction >= 0 && fraction <= 1) || (w->reports && fraction < w->last);
    w->last = fraction;
    w->reports++;
}

static void watch_log(void *user, const char *line) {
    watch *w = (watch *)user;
    w->logs++;
    w->bad += !line[0] || strchr(line, '\n') != NULL;
    snprintf(w->line, sizeof w->line, "%s", line);
}

static mote_callbacks watch_all(watch *w, int cancel_at) {
    mote_callbacks c = {0};
    memset(w, 0, sizeof *w);
    w->cancel_at = cancel_at;
    c.log = watch_log;
    c.progress = watch_progress;
    c.cancel = watch_cancel;
    c.user = w;
    return c;
}

static void test_open_callbacks(const fixture *f, int notices) {
    watch w;
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device, .callbacks = watch_all(&w, 0)};
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open(f->dir, &o, &m, &failure));
    CHECK(w.reports > 0 && w.last == 1 && !w.bad && w.polls > 0, "%s: progress of loading", f->dir);
    CHECK(w.logs == notices, "%s: %d notices, expected %d: %s", f->dir, w.logs, notices, w.line);
    mote_close(m);
    m = NULL;
    o.callbacks = watch_all(&w, 3);
    EXPECT(MOTE_ECANCELLED, mote_open(f->dir, &o, &m, &failure));
    CHECK(!m, "%s: a cancelled load gives no model", f->dir);
}

// Passes of generating, each of a token and what was copied from the text before it and accepted.
static int passes_of(const mote_session *s) {
    mote_speculation x = {0};
    int passes = 0;
    EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
    for (int i = 0; i < MOTE_ROWS_MAX; i++) passes += (int)x.passes[i];
    return passes;
}

// Cancelled before every chunk in turn: those done stay, and the rest can be fed later.
static void test_feed_callbacks(const fixture *f) {
    int chunk = is_gpu ? 64 : 8, chunks = (f->T - 1) / chunk + 1, tells = f->T > chunk;     // progress is of more than one chunk
    for (int at = 1; at <= chunks + 1; at++) {
        watch w;
        mote_session_options o = {.context = f->T + 20, .chunk = chunk, .callbacks = watch_all(&w, at)};
        mote_session *s = session_with(f->m, &o);
        mote_result r;
        int last = at > chunks, done = last ? f->T : (at - 1) * chunk;
        EXPECT(last ? MOTE_OK : MOTE_ECANCELLED, mote_feed(s, f->tokens, (size_t)f->T, &failure));
        CHECK(count_of(s) == done && (done ? same_row(f, mote_logits(s), done - 1) : !mote_logits(s)),
              "%s: %d tokens when cancelled at %d", f->dir, count_of(s), at);
        CHECK(!w.bad && w.reports == (!tells ? 0 : last ? chunks : at - 1) && (!last || !tells || w.last == 1), "%s: progress", f->dir);
        if (!last) feed_to(s, f, f->T, "after a cancelled feed");
        w.cancel_at = w.polls + 3;
        EXPECT(MOTE_ECANCELLED, mote_generate(s, NULL, &r, &failure));
        CHECK(r.stop == MOTE_STOP_CALLBACK && r.generated_tokens == count_of(s) - f->T, "%s: cancelled generate", f->dir);
        CHECK(is_gpu || passes_of(s) == 2, "%s: %d passes of a cancelled generate", f->dir, passes_of(s));
        mote_session_close(s);
    }
}
