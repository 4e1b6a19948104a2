// A part of test_speculation: answers, how they end, and what comes between them.

// ---- Answers --------------------------------------------------------------------------------------------------------

static void ask(mote_session *s, const char *text, const mote_sampling *p, int max_tokens, reply *a) {
    mote_generation g = generation_of(a, p, max_tokens, 0);
    g.think = MOTE_THINK_OFF;
    mote_reset(s, NULL);
    EXPECT(MOTE_OK, mote_ask(s, text, &g, &a->r, &failure));
}

// Drafts number i of all sources together.
static uint64_t drafts_of(const mote_speculation *x, const mote_drafter_use *block, int i) {
    return x->drafted[MOTE_DRAFT_MTP][i] + x->drafted[MOTE_DRAFT_COPY][i] + block->drafted[i];
}

static void check_recent(const mote_speculation *x, int mtp, uint64_t passes) {
    uint64_t digits[MOTE_ROWS_MAX] = {0};
    size_t n = strnlen(x->recent, sizeof x->recent);
    for (size_t i = 0; i < n; i++) {
        const char c = x->recent[i];
        const int drafts = c >= 'a' ? c - 'a' + 1 : c >= 'A' ? c - 'A' + 1 : c - '0';
        if (CHECK(drafts >= 0 && drafts < MOTE_ROWS_MAX, "recent: %s", x->recent)) digits[drafts]++;
    }
    CHECK(n == (passes < 64 ? passes : 64), "depth %d: %d passes, recent: %s", mtp, (int)passes, x->recent);
    for (int i = 0; i < MOTE_ROWS_MAX; i++)
        CHECK(digits[i] <= x->passes[i] && (passes > 64 || digits[i] == x->passes[i]), "depth %d: recent: %s", mtp, x->recent);
}

// Counts of a session add up, and make sense for `tokens` generated.
static void check_counts(const mote_session *s, int mtp, uint64_t tokens) {
    mote_speculation x = {0};
    mote_drafter_use block = {0};
    uint64_t passes = 0, accepted = 0;
    EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
    EXPECT(MOTE_OK, mote_drafter_of(s, &block, &failure));
    for (int i = 0; i < MOTE_ROWS_MAX; i++) passes += x.passes[i];
    for (int of = 0; of <= MOTE_DRAFT_SOURCES; of++) {
        const int is_block = of == MOTE_DRAFT_BLOCK;
        const uint64_t *drafted = is_block ? block.drafted : x.drafted[of], *taken = is_block ? block.accepted : x.accepted[of];
        for (int i = 0; i < MOTE_ROWS_MAX - 1; i++) {
            const uint64_t reached = i ? taken[i - 1] : passes - x.passes[0];
            accepted += taken[i];
            CHECK(taken[i] <= drafted[i] && drafted[i] <= reached, "depth %d: draft %d of %d", mtp, i + 1, of);
        }
    }
    CHECK(drafts_of(&x, &block, 0) == passes - x.passes[0], "depth %d: first drafts", mtp);
    CHECK(x.tokens == tokens, "depth %d: %d tokens, generated %d", mtp, (int)x.tokens, (int)tokens);
    CHECK(x.tokens <= passes + accepted, "depth %d: %d tokens of %d passes", mtp, (int)x.tokens, (int)passes);
    if (mtp > 0) CHECK(x.depth == mtp, "depth %d: %d", mtp, x.depth);
    for (int i = mtp; mtp > 0 && i < MOTE_ROWS_MAX - 1; i++) CHECK(!drafts_of(&x, &block, i), "depth %d: draft %d", mtp, i + 1);
    if (mtp == MOTE_MTP_OFF) CHECK(x.depth == 0 && passes == x.passes[0], "drafts though they are off");
    CHECK(!passes || x.pass_seconds > 0, "depth %d: %g s of passes", mtp, x.pass_seconds);
    check_recent(&x, mtp, passes);
}

// With as many drafts as there may be and a few prompts, passes of every accepted length.
static void check_lengths(const mote_session *s) {
    mote_speculation x = {0};
    EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
    for (int i = 0; i < 3; i++)
        CHECK(x.drafted[MOTE_DRAFT_MTP][i] > x.accepted[MOTE_DRAFT_MTP][i], "no pass accepted %d drafts and refused the next", i);
    CHECK(x.accepted[MOTE_DRAFT_MTP][2] > 0, "no pass accepted 3 drafts");
}

// Questions asked with every depth and kind of sampling, few of them with the hottest: the same answers.
static void test_equality(const mote_model *m, const questions *q, int prompts, int max_tokens) {
    mote_session *off = session_of_depth(m, MOTE_MTP_OFF, CONTEXT), *s[DEPTHS];
    reply *want = (reply *)allocate(sizeof *want), *got = (reply *)allocate(sizeof *got);
    uint64_t tokens = 0;
    for (int d = 0; d < DEPTHS; d++) s[d] = session_of_depth(m, depths[d], CONTEXT);
    for (int i = 0; i < prompts; i++)
        for (int kind = GREEDY; kind < (i % 4 ? HOT : KINDS); kind++) {
            mote_sampling p = sampling_of(kind, i);
            ask(off, question(q, i, prompts), &p, max_tokens, want);
            tokens += (uint64_t)want->count;
            for (int d = 0; d < DEPTHS; d++) {
                ask(s[d], question(q, i, prompts), &p, max_tokens, got);
                CHECK(same_reply(got, want), "\"%s\", sampling %d, depth %d: %d tokens, plain %d", question(q, i, prompts),
                      kind, depths[d], got->count, want->count);
            }
        }
    check_counts(off, MOTE_MTP_OFF, tokens);
    for (int d = 0; d < DEPTHS; d++) check_counts(s[d], depths[d], tokens);
    if (prompts > 1) check_lengths(s[DEPTHS - 1]);
    for (int d = 0; d < DEPTHS; d++) mote_session_close(s[d]);
    mote_session_close(off);
    free(want);
    free(got);
}

// mote_generation.verify finds nothing to object to.
static void test_verify(const plain *w, int max_tokens) {
    reply *a = (reply *)allocate(sizeof *a);
    for (int d = 0; d < DEPTHS; d++) {
        mote_session *s = session_at(w, depths[d], CONTEXT);
        mote_generation g = generation_of(a, &w->p, max_tokens, 0);
        g.verify = 1;
        EXPECT(MOTE_OK, mote_generate(s, &g, &a->r, &failure));
        CHECK(same_ids(a, plain_ids(w, 0), max_tokens), "depth %d, verified: %d tokens", depths[d], a->count);
        CHECK(same_logits(s, plain_logits(w, max_tokens), w->vocab), "depth %d, verified: logits", depths[d]);
        mote_session_close(s);
    }
    free(a);
}

// A prompt read in chunks smaller than the blocks of speculation.
static void test_chunks(const plain *w) {
    reply *a = (reply *)allocate(sizeof *a);
    for (int d = 0; d < DEPTHS; d++)
        for (int chunk = 1; chunk < 4; chunk++) {
            mote_session *s = session_of(w->m, .mtp = depths[d], .context = CONTEXT, .chunk = chunk, .threads = 1);
            EXPECT(MOTE_OK, mote_feed(s, w->ids, (size_t)w->prompt, &failure));
            generate(s, &w->p, ENDS, 0, a);
            CHECK(same_ids(a, plain_ids(w, 0), ENDS), "depth %d, chunks of %d: %d tokens", depths[d], chunk, a->count);
            mote_session_close(s);
        }
    free(a);
}

// ---- How answers end ------------------------------------------------------------------------------------------------

// An answer ends after n tokens, by their number or by on_token, and goes on. The logits in between are read for every other
// n: that must change nothing.
static void check_end(mote_session *s, const plain *w, int n, int by_callback, int depth) {
    reply *a = (reply *)allocate(sizeof *a);
    int32_t id = -1;
    int stop = by_callback ? MOTE_STOP_CALLBACK : MOTE_STOP_LENGTH;
    generate(s, &w->p, by_callback ? 0 : n, by_callback ? n : 0, a);
    int ok = a->r.stop == stop && a->r.generated_tokens == n && same_ids(a, plain_ids(w, 0), n);
    if (n % 2) ok = ok && same_logits(s, plain_logits(w, n), w->vocab);
    CHECK(ok && count_of(s) == w->prompt + n, "depth %d: an answer of %d tokens, ended by %s", depth, n,
          by_callback ? "on_token" : "max_tokens");
    generate(s, &w->p, AFTER, 0, a);
    CHECK(same_ids(a, plain_ids(w, n), AFTER), "depth %d: %d tokens after %d", depth, AFTER, n);
    if (n % 3) ok = same_logits(s, plain_logits(w, n + AFTER), w->vocab);
    EXPECT(MOTE_OK, mote_step(s, &w->p, &id, &failure));
    CHECK(ok && id == plain_ids(w, n + AFTER)[0] && same_logits(s, plain_logits(w, n + AFTER + 1), w->vocab),
          "depth %d: mote_step after %d tokens", depth, n + AFTER);
    free(a);
}

// Each end by itself. both: by number and by on_token, else by turns.
static void test_ends(const plain *w, int both) {
    for (int d = 0; d < DEPTHS; d++) {
        mote_session *s = session_at(w, depths[d], CONTEXT);
        mote_checkpoint *start = checkpoint_of(s);
        for (int n = 1; n <= (test_brief ? 10 : ENDS); n++)
            for (int by_callback = 0; by_callback < 2; by_callback++) {
                if (!both && (n + d) % 2 != by_callback) continue;
                EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
                check_end(s, w, n, by_callback, depths[d]);
            }
        mote_checkpoint_free(start);
        mote_session_close(s);
    }
}

// Many short answers in a row make up the long one.
static void test_short_answers(const plain *w) {
    reply *a = (reply *)allocate(sizeof *a);
    for (int d = 0; d < DEPTHS; d++) {
        mote_session *s = session_at(w, depths[d], CONTEXT);
        int done = 0, ok = 1;
        for (int n = 1; done + n <= w->count; done += n, n = n % 5 + 1) {
            generate(s, &w->p, n, 0, a);
            ok = ok && same_ids(a, plain_ids(w, done), n);
        }
        CHECK(ok && same_logits(s, plain_logits(w, done), w->vocab), "depth %d: many short answers", depths[d]);
        check_counts(s, depths[d], (uint64_t)done);
        mote_session_close(s);
    }
    free(a);
}

// A stop text in all sessions, the plain one first: the same text, and the same tokens when it goes on.
static void check_stop_text(const plain *w, mote_session *const *s, mote_checkpoint *const *start, const char *text) {
    const char *stops[2] = {"never in this text", text};
    reply *a = (reply *)allocate((DEPTHS + 1) * sizeof *a), *after = (reply *)allocate((DEPTHS + 1) * sizeof *after);
    for (int d = 0; d <= DEPTHS; d++) {
        mote_generation g = generation_of(&a[d], &w->p, w->count, 0);
        g.stop = stops;
        g.stop_count = 2;
        EXPECT(MOTE_OK, mote_rewind(s[d], start[d], &failure));
        EXPECT(MOTE_OK, mote_generate(s[d], &g, &a[d].r, &failure));
        generate(s[d], &w->p, AFTER, 0, &after[d]);
        int ok = a[d].r.stop == MOTE_STOP_TEXT && same_ids(&a[d], plain_ids(w, 0), a[d].count);
        CHECK(ok && same_reply(&a[d], &a[0]), "session %d: stop text \"%s\" after %d tokens, plain %d", d, text, a[d].count,
              a[0].count);
        ok = same_ids(&after[d], plain_ids(w, a[d].count), AFTER);
        CHECK(ok && same_logits(s[d], plain_logits(w, a[d].count + AFTER), w->vocab), "session %d: after stop text \"%s\"",
              d, text);
    }
    free(a);
    free(after);
}

// Stop texts from all over the plain text, which end in the middle of blocks.
static void test_stop_texts(const plain *w, int places) {
    mote_session *s[DEPTHS + 1];
    mote_checkpoint *start[DEPTHS + 1];
    reply *whole = (reply *)allocate(sizeof *whole);
    for (int d = 0; d <= DEPTHS; d++) {
        s[d] = session_at(w, d ? depths[d - 1] : MOTE_MTP_OFF, CONTEXT);
        start[d] = checkpoint_of(s[d]);
    }
    generate(s[0], &w->p, w->count - AFTER, 0, whole);
    if (!CHECK(whole->size > 60 && whole->size < MOST_TEXT, "a text of %zu bytes", whole->size)) places = 0;
    for (int i = 0; i < places; i++) {
        char text[16] = "";
        memcpy(text, whole->text + (size_t)i * (whole->size - 10) / (size_t)places, 1 + (size_t)i * 5 % 9);
        check_stop_text(w, s, start, text);
    }
    for (int d = 0; d <= DEPTHS; d++) {
        mote_checkpoint_free(start[d]);
        mote_session_close(s[d]);
    }
    free(whole);
}

// The context is full after the prompt and one to eight tokens.
static void test_context_end(const plain *w) {
    reply *a = (reply *)allocate(sizeof *a);
    for (int d = -1; d < DEPTHS; d++)
        for (int n = 1; n <= 8; n++)
            for (int verify = 0; verify <= (n % 3 == 1); verify++) {
                int mtp = d < 0 ? MOTE_MTP_OFF : depths[d];
                mote_session *s = session_at(w, mtp, w->prompt + n);
                mote_generation g = generation_of(a, &w->p, 0, 0);
                int32_t id;
                g.verify = verify;
                EXPECT(MOTE_OK, mote_generate(s, &g, &a->r, &failure));
                CHECK(a->r.stop == MOTE_STOP_CONTEXT && same_ids(a, plain_ids(w, 0), n) && count_of(s) == mote_context(s),
                      "depth %d: stop %d after %d tokens, space for %d", mtp, a->r.stop, a->count, n);
                CHECK(same_logits(s, plain_logits(w, n), w->vocab), "depth %d: logits of a full context", mtp);
                EXPECT(MOTE_ECONTEXT, mote_step(s, &w->p, &id, &failure));
                generate(s, &w->p, 0, 0, a);
                CHECK(a->r.stop == MOTE_STOP_CONTEXT && a->count == 0, "depth %d: after a full context", mtp);
                mote_session_close(s);
            }
    free(a);
}

// ---- Between answers ------------------------------------------------------------------------------------------------

enum { NEXT = 10 };

// The session, which has n tokens after the prompt, goes on as plain decoding does.
static void check_next(mote_session *s, const plain *w, int n, int depth, const char *what) {
    reply *a = (reply *)allocate(sizeof *a);
    generate(s, &w->p, NEXT, 0, a);
    CHECK(same_ids(a, plain_ids(w, n), NEXT) && same_logits(s, plain_logits(w, n + NEXT), w->vocab),
          "depth %d: %d tokens, then %s", depth, n, what);
    free(a);
}

// Saved with one depth, loaded with each. Without MTP rows it is refused by those that need them, and these stay empty.
static void check_loads(const mote_session *s, const plain *w, int n, int depth) {
    size_t size;
    char *bytes = session_bytes(s, &size), what[40];
    for (int d = -1; d < DEPTHS; d++) {
        int to = d < 0 ? MOTE_MTP_OFF : depths[d];
        mote_session *t = session_of_depth(w->m, to, CONTEXT);
        int refused = depth == MOTE_MTP_OFF && to != MOTE_MTP_OFF;
        EXPECT(refused ? MOTE_EINVAL : MOTE_OK, mote_load(t, bytes, size, &failure));
        snprintf(what, sizeof what, "loaded with depth %d", to);
        if (refused) CHECK(count_of(t) == 0 && !mote_logits(t), "a refused save in depth %d", to);
        else check_next(t, w, n, depth, what);
        mote_session_close(t);
    }
    free(bytes);
}

// One stop point: checkpoint, copy and save there.
static void check_between(mote_session *s, const plain *w, int n, int depth, int loads) {
    mote_session *copy = NULL;
    mote_checkpoint *c = checkpoint_of(s);
    check_next(s, w, n, depth, "on");
    EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
    if (loads) check_loads(s, w, n, depth);
    EXPECT(MOTE_OK, mote_clone(s, &copy, &failure));
    check_next(s, w, n, depth, "rewound");
    if (copy) check_next(copy, w, n, depth, "a copy");
    mote_session_close(copy);
    EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
    mote_checkpoint_free(c);
}

// Several stop points of one answer, after 1, 3, 6 and 10 tokens.
static void test_between(const plain *w) {
    for (int d = -1; d < DEPTHS; d++) {
        int depth = d < 0 ? MOTE_MTP_OFF : depths[d], at = 0;
        mote_session *s = session_at(w, depth, CONTEXT);
        reply *a = (reply *)allocate(sizeof *a);
        for (int n = 1; n <= 4; n++) {
            generate(s, &w->p, n, 0, a);
            CHECK(same_ids(a, plain_ids(w, at), n), "depth %d: %d tokens after %d", depth, n, at);
            at += n;
            check_between(s, w, at, depth, n % 2);
        }
        free(a);
        mote_session_close(s);
    }
}
