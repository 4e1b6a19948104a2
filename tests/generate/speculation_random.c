// A part of test_speculation: random use, and the distribution of what is drawn.

// ---- Random use -----------------------------------------------------------------------------------------------------

// Sessions of all depths that do the same things, the plain one first.
typedef struct walk {
    const mote_model *m;
    mote_session *s[DEPTHS + 1];
    mote_checkpoint *kept[DEPTHS + 1];
    reply want, got;
    int ids;                                 // those that are fed are below
} walk;

static void walk_replace(walk *w, int d, int by_file) {
    mote_session *t = NULL;
    size_t size;
    if (by_file) {
        char *bytes = session_bytes(w->s[d], &size);
        t = session_of_depth(w->m, d ? depths[random_int(0, DEPTHS - 1)] : MOTE_MTP_OFF, CONTEXT);
        EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));
        free(bytes);
    } else {
        EXPECT(MOTE_OK, mote_clone(w->s[d], &t, &failure));
        if (!t) return;
    }
    mote_session_close(w->s[d]);
    w->s[d] = t;
}

// The timeline and what follows it are those of the plain session.
static void walk_check(walk *w, int look, const char *what) {
    int vocab = mote_model_info(w->m)->vocab_size;
    size_t n, m;
    const int32_t *want = mote_tokens(w->s[0], &n);
    for (int d = 1; d <= DEPTHS; d++) {
        const int32_t *got = mote_tokens(w->s[d], &m);
        int ok = n == m && !memcmp(got, want, n * sizeof *got);
        if (look) ok = ok && same_logits(w->s[d], mote_logits(w->s[0]), vocab);
        CHECK(ok, "session %d: other tokens or logits after %s", d, what);
    }
}

static void walk_generate(walk *w, int kind) {
    mote_sampling p = sampling_of(kind, random_int(0, 1000));
    int n = random_int(1, 12), by_callback = random_int(0, 2) == 0, verify = random_int(0, 5) == 0;
    for (int d = 0; d <= DEPTHS; d++) {
        reply *a = d ? &w->got : &w->want;
        mote_generation g = generation_of(a, &p, by_callback ? 0 : n, by_callback ? n : 0);
        g.verify = verify;
        EXPECT(MOTE_OK, mote_generate(w->s[d], &g, &a->r, &failure));
        CHECK(!d || same_reply(&w->got, &w->want), "session %d: sampling %d, %d tokens, plain %d", d, kind, w->got.count,
              w->want.count);
    }
}

static void walk_step(walk *w, int kind) {
    mote_sampling p = sampling_of(kind, random_int(0, 1000));
    int32_t id[DEPTHS + 1];
    for (int d = 0; d <= DEPTHS; d++) {
        EXPECT(MOTE_OK, mote_step(w->s[d], &p, &id[d], &failure));
        CHECK(id[d] == id[0], "session %d: mote_step with sampling %d", d, kind);
    }
}

static void walk_feed(walk *w, int n) {
    int32_t ids[40];
    size_t count;
    const int32_t *tokens = mote_tokens(w->s[0], &count);
    const int from = random_int(0, 1) && (int)count > n ? random_int(0, (int)count - n) : -1;      // what stands there already
    for (int i = 0; i < n; i++) ids[i] = from >= 0 ? tokens[from + i] : random_int(0, w->ids - 1);
    for (int d = 0; d <= DEPTHS; d++) EXPECT(MOTE_OK, mote_feed(w->s[d], ids, (size_t)n, &failure));
}

// Takes a checkpoint, or goes back to the one taken.
static void walk_checkpoint(walk *w, int rewind) {
    for (int d = 0; d <= DEPTHS; d++) {
        if (rewind && w->kept[d]) EXPECT(MOTE_OK, mote_rewind(w->s[d], w->kept[d], &failure));
        mote_checkpoint_free(w->kept[d]);
        w->kept[d] = rewind ? NULL : checkpoint_of(w->s[d]);
    }
}

static void walk_reset(walk *w) {
    for (int d = 0; d <= DEPTHS; d++) {
        mote_checkpoint_free(w->kept[d]);
        w->kept[d] = NULL;
        mote_reset(w->s[d], NULL);
    }
    walk_feed(w, random_int(1, 9));
}

// Random calls, in every order.
static void test_random_use(const mote_model *m, int calls) {
    walk *w = (walk *)allocate(sizeof *w);
    w->m = m;
    w->ids = mote_model_info(m)->vocab_size < 2000 ? mote_model_info(m)->vocab_size : 2000;
    for (int d = 0; d <= DEPTHS; d++) w->s[d] = session_of_depth(m, d ? depths[d - 1] : MOTE_MTP_OFF, CONTEXT);
    walk_reset(w);
    for (int i = 0; i < calls; i++) {
        static const char *const names[] = {"mote_generate", "mote_step", "mote_feed", "a checkpoint", "a copy", "mote_load",
                                            "mote_reset"};
        static const int calls_of[] = {0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 4, 5};
        int call = calls_of[random_int(0, 12)];
        if (count_of(w->s[0]) > CONTEXT - 60) call = 6;
        if (call == 0) walk_generate(w, random_int(0, KINDS - 1));
        else if (call == 1) walk_step(w, random_int(0, KINDS - 1));
        else if (call == 2) walk_feed(w, random_int(1, 40));
        else if (call == 3) walk_checkpoint(w, w->kept[0] && random_int(0, 1));
        else if (call == 6) walk_reset(w);
        for (int d = 0; d <= DEPTHS && (call == 4 || call == 5); d++) walk_replace(w, d, call == 5);
        walk_check(w, random_int(0, 2) == 0, names[call]);
    }
    for (int d = 0; d <= DEPTHS; d++) {
        mote_checkpoint_free(w->kept[d]);
        mote_session_close(w->s[d]);
    }
    free(w);
}

// ---- Distribution ---------------------------------------------------------------------------------------------------

enum { SEEDS = 3000, DRAWN = 4, TOP = 6 };

typedef struct draws {
    int32_t ids[SEEDS][DRAWN];   // -1 after the end of the text
} draws;

// Chi-square of `seen` draws against probabilities, the best first; rare ones are counted together.
static double chi_of(const int *seen, const double *probability, int n, int total, int *freedom) {
    double chi = 0, want = 0;
    int got = 0, cells = 0;
    for (int i = n; i-- > 0;) {
        want += probability[i] * total;
        got += seen[i];
        if (want < 5 && i) continue;
        chi += (got - want) * (got - want) / want;
        cells++;
        want = got = 0;
    }
    *freedom += cells - 1;
    return chi;
}

// The same for the tokens after the first `at` ones of draw number `first`. *outside: those not among the best.
static double chi_behind(mote_session *s, const mote_checkpoint *start, const draws *x, int first, int at,
                         double temperature, char *done, int *freedom, int *outside) {
    int32_t top[TOP];
    float logprobs[TOP];
    double probability[TOP], sum = 0;
    int seen[TOP] = {0}, total = 0;
    for (int i = first; i < SEEDS; i++)
        if (!memcmp(x->ids[i], x->ids[first], (size_t)at * sizeof(int32_t))) done[i] = 1, total++;
    if (total < 60 || x->ids[first][at] < 0) return 0;
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    EXPECT(MOTE_OK, mote_feed(s, x->ids[first], (size_t)at, &failure));
    EXPECT(MOTE_OK, mote_top_logprobs(s, TOP, top, logprobs, &failure));
    for (int k = 0; k < TOP; k++) sum += probability[k] = exp((logprobs[k] - logprobs[0]) / temperature);
    for (int k = 0; k < TOP; k++) probability[k] /= sum;
    for (int i = first; i < SEEDS; i++) {
        int k = 0;
        if (memcmp(x->ids[i], x->ids[first], (size_t)at * sizeof(int32_t))) continue;
        while (k < TOP && top[k] != x->ids[i][at]) k++;
        if (k < TOP) seen[k]++;
        else ++*outside;
    }
    return chi_of(seen, probability, TOP, total, freedom);
}

// Of all tokens after the first one, each given those before it.
static double chi_of_draws(mote_session *s, const mote_checkpoint *start, const draws *x, double temperature, int *freedom,
                           int *outside) {
    double chi = 0;
    *freedom = *outside = 0;
    for (int at = 1; at < DRAWN; at++) {
        char done[SEEDS] = {0};
        for (int i = 0; i < SEEDS; i++)
            if (!done[i]) chi += chi_behind(s, start, x, i, at, temperature, done, freedom, outside);
    }
    return chi;
}

// Chi-square with that many degrees of freedom is above this once in 10,000 times (Wilson and Hilferty).
static double chi_bound(int freedom) {
    double v = 2 / (9.0 * freedom), root = 1 - v + 3.719 * sqrt(v);
    return freedom * root * root * root;
}

// Tokens that were drafted are distributed as the model says.
static void test_distribution(const mote_model *m, const int32_t *prompt, int count) {
    mote_session *s = session_of_depth(m, 2, CONTEXT), *off = session_of_depth(m, MOTE_MTP_OFF, CONTEXT);
    mote_sampling p = {.temperature = 1, .top_k = TOP};
    draws *x = (draws *)allocate(sizeof *x);
    reply *a = (reply *)allocate(sizeof *a);
    mote_speculation counts = {0};
    int freedom, outside, code = MOTE_OK;
    EXPECT(MOTE_OK, mote_feed(s, prompt, (size_t)count, &failure));
    EXPECT(MOTE_OK, mote_feed(off, prompt, (size_t)count, &failure));
    mote_checkpoint *start = checkpoint_of(s), *off_start = checkpoint_of(off);
    memset(x, 0xff, sizeof *x);
    for (int i = 0; i < SEEDS; i++) {
        mote_generation g = generation_of(a, &p, DRAWN, 0);
        p.seed = (uint64_t)i;
        code |= mote_rewind(s, start, &failure) | mote_generate(s, &g, NULL, &failure);
        memcpy(x->ids[i], a->ids, (size_t)a->count * sizeof(int32_t));
    }
    EXPECT(MOTE_OK, mote_speculation_of(s, &counts, &failure));
    CHECK(!code, "drawing: %s", failure.message);
    CHECK(counts.accepted[MOTE_DRAFT_MTP][0] >= SEEDS / 20 && counts.drafted[MOTE_DRAFT_MTP][0] >= counts.accepted[MOTE_DRAFT_MTP][0] + SEEDS / 20,
          "%d drafts, %d accepted", (int)counts.drafted[MOTE_DRAFT_MTP][0], (int)counts.accepted[MOTE_DRAFT_MTP][0]);
    double chi = chi_of_draws(off, off_start, x, 1, &freedom, &outside), bound = chi_bound(freedom);
    double wrong = chi_of_draws(off, off_start, x, 1.5, &freedom, &outside);
    printf("%s: %d drafts, %d accepted; chi-square %.1f, of temperature 1.5 %.1f, bound %.1f\n", test_name,
           (int)counts.drafted[MOTE_DRAFT_MTP][0], (int)counts.accepted[MOTE_DRAFT_MTP][0], chi, wrong, bound);
    CHECK(freedom > 5 && !outside && chi < bound, "chi-square %g, bound %g, %d outside", chi, bound, outside);
    CHECK(wrong > bound, "chi-square %g for a wrong temperature, bound %g", wrong, bound);
    mote_checkpoint_free(start);
    mote_checkpoint_free(off_start);
    mote_session_close(s);
    mote_session_close(off);
    free(x);
    free(a);
}
