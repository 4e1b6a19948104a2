// A part of test_session: blocks of several rows of which some are kept, drafts verified against a reference session, a
// comparison that can fail.

// ---- Blocks kept in part --------------------------------------------------------------------------------------------

// A draft of T rows after the timeline of which `keep` are the tokens of the fixture and the others wrong.
static void draft_some(mote_session *s, const fixture *f, int T, int keep) {
    int32_t ids[MOTE_ROWS_MAX];
    float *logits = (float *)allocate((size_t)(T * f->vocab) * 4);
    int first = s->count;
    for (int t = 0; t < T; t++) ids[t] = t < keep ? f->tokens[first + t] : (f->tokens[first + t] + 1 + t) % f->vocab;
    EXPECT(MOTE_OK, timeline_forward(s, ids, T, 1, logits, NULL, &failure));
    size_t bytes = (size_t)(keep * f->vocab) * 4;
    CHECK(!memcmp(logits, plain_row(f, first), bytes), "%s: draft of %d at %d", f->dir, T, first);
    timeline_keep(s, keep);
    free(logits);
}

// After a block kept in part: a block of `next` rows, then single ones, give what plain decoding gives.
static void test_partial(const fixture *f, int before, int T, int keep, int next) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 64, .threads = 1);
    float *mtp = (float *)allocate((size_t)(next * f->vocab) * 4);
    if (before) feed_to(s, f, before, "before a draft");
    draft_some(s, f, T, keep);
    int first = s->count;
    EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens + first, (size_t)next, NULL, f->mtp ? mtp : NULL, &failure));
    CHECK(same_logits(s, plain_row(f, first + next - 1), f->vocab), "%s: %d of %d kept at %d, then %d", f->dir, keep, T, before,
          next);
    if (f->mtp)
        CHECK(!memcmp(mtp, f->plain_mtp + (size_t)(first - 1) * (size_t)f->vocab, (size_t)(next * f->vocab) * 4),
              "%s: %d of %d kept at %d, then %d: MTP", f->dir, keep, T, before, next);
    feed_to(s, f, s->count + 1, "one more");
    feed_to(s, f, s->count + 1, "and one more");
    free(mtp);
    mote_session_close(s);
}

static void test_partials(const fixture *f) {
    for (int T = 1; T <= MOTE_ROWS_MAX; T++)
        for (int keep = 1; keep <= T; keep++)
            for (int next = 1; next <= 6; next += test_brief ? 2 : 1)
                test_partial(f, next % 3 ? 11 : next / 3 - 1, T, keep, next);
}

static mote_session *replace_by_clone(mote_session *s) {
    mote_session *copy = NULL;
    EXPECT(MOTE_OK, mote_clone(s, &copy, &failure));
    if (!copy) return s;
    mote_session_close(s);
    return copy;
}

// A whole prompt by random drafts, with copies, saved states and rewinds in between, all taken between blocks.
static void test_drafts(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 16, .threads = 2);
    while (s->count < f->T - MOTE_ROWS_MAX) {
        int T = random_int(1, MOTE_ROWS_MAX), keep = random_int(1, T), kind = random_int(0, 5);
        draft_some(s, f, T, keep);
        if (kind == 0) {
            s = replace_by_clone(s);
        } else if (kind == 1) {
            mote_checkpoint *c = checkpoint_of(s);
            if (s->count + 6 <= f->T) feed_to(s, f, s->count + 6, "to be undone");
            EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
            mote_checkpoint_free(c);
            s = replace_by_clone(s);
        } else if (kind == 2 && s->count + 5 <= f->T) {
            feed_to(s, f, s->count + 5, "between drafts");
        }
    }
    feed_to(s, f, f->T, "after drafts");
    mote_session_close(s);
}

// ---- Verified drafts ------------------------------------------------------------------------------------------------

enum { TRUTH = 32 };

// a session, its reference session, and what plain decoding generates after their prompt.
typedef struct pair {
    const char *what;
    mote_session *s, *reference;
    mote_checkpoint *start, *reference_start;
    int32_t truth[TRUTH];
    int prompt;
} pair;

// The prompt of n tokens: any ids.
static void pair_open(pair *x, const char *what, const mote_model *m, int n, int chunk) {
    int32_t ids[TRUTH];
    x->what = what;
    x->prompt = n;
    x->s = session_of(m, .context = CONTEXT, .chunk = chunk, .threads = 1, .mtp = 3);
    x->reference = session_of(m, .context = CONTEXT, .chunk = chunk, .threads = 1, .mtp = 3);
    for (int i = 0; i < n; i++) ids[i] = (7 * i + 3 * n) % 60;
    EXPECT(MOTE_OK, mote_feed(x->s, ids, (size_t)n, &failure));
    EXPECT(MOTE_OK, mote_feed(x->reference, ids, (size_t)n, &failure));
    x->start = checkpoint_of(x->s);
    x->reference_start = checkpoint_of(x->reference);
    int code = MOTE_OK;
    for (int i = 0; i < TRUTH; i++) code |= mote_step(x->reference, NULL, &x->truth[i], &failure);
    CHECK(!code, "%s: plain decoding: %s", what, failure.message);
}

static void pair_close(pair *x) {
    mote_checkpoint_free(x->start);
    mote_checkpoint_free(x->reference_start);
    mote_session_close(x->s);
    mote_session_close(x->reference);
}

static void pair_rewind(pair *x) {
    EXPECT(MOTE_OK, mote_rewind(x->s, x->start, &failure));
    EXPECT(MOTE_OK, mote_rewind(x->reference, x->reference_start, &failure));
}

// Verifies k drafts after the first `at` true tokens, the first a of them true, the next wrong, and more true ones, which
// count no more.
static void draft(pair *x, int at, int k, int a) {
    int32_t ids[MOTE_ROWS_MAX];
    int more = 1, first = x->prompt + at, next = a < k ? x->truth[at + a + 1] : -1;
    sampler sampler = sampler_of(&greedy);
    decode_pass p = {0};
    for (int i = 0; i <= k; i++) ids[i] = i == a + 1 ? (x->truth[at + i] + 1) % 60 : x->truth[at + i];
    EXPECT(MOTE_OK, pass_verify(x->s, ids, k, &p, &failure));
    while (more) EXPECT(MOTE_OK, pass_keep(x->s, &sampler, &p, &more, &failure));
    CHECK(p.kept == a + 1 && p.judged == (a < k ? a + 1 : k) && x->s->decoder->spec.next == next,
          "%s: %d of %d drafts: %d rows, surprise %d", x->what, a, k, p.kept, x->s->decoder->spec.next);
    CHECK(x->s->count == first + a + 1 && !memcmp(x->s->tokens + first, ids, (size_t)(a + 1) * sizeof *ids), "%s: tokens",
          x->what);
}

// Plain steps: the true tokens from number `at` on.
static void steps(pair *x, mote_session *s, int at, int n) {
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        int32_t id = -1;
        wrong += mote_step(s, NULL, &id, &failure) || id != x->truth[at + i];
    }
    CHECK(!wrong, "%s: %d of %d tokens from number %d on are not the plain ones", x->what, wrong, n, at);
}

// verify_state without an answer around it.
static int verify_reference(mote_session *s, mote_session *reference) {
    verifier v = {reference, (char *)allocate(2 * VERIFY_BYTES)};
    int code = verify_state(&v, s, &failure);
    free(v.bytes);
    return code;
}

// After a block the session is what its reference session is after as many steps. keep: of the a + 1 rows that count.
static void test_block(pair *x, int k, int a, int keep) {
    int more = keep <= a ? 3 : 0;
    pair_rewind(x);
    draft(x, 0, k, a);
    timeline_keep(x->s, keep);
    steps(x, x->s, keep, more);
    steps(x, x->reference, 0, keep + more);
    int code = verify_reference(x->s, x->reference);
    CHECK(!code, "%s: %d tokens, %d of %d drafts, %d rows kept: %s", x->what, x->prompt, a, k, keep, failure.message);
}

static void test_every_block(pair *x) {
    for (int k = 1; k < MOTE_ROWS_MAX; k++)
        for (int a = 0; a <= k; a++)
            for (int keep = a + 1; keep >= 1; keep--) test_block(x, k, a, keep);
}

// Blocks in a row, each with rows of the one before to repeat; compared at the end, all KV rows.
static void test_chain(pair *x) {
    int at = 0;
    pair_rewind(x);
    while (at < TRUTH - MOTE_ROWS_MAX) {
        int k = random_int(1, MOTE_ROWS_MAX - 1), a = random_int(0, k), keep = random_int(1, a + 1);
        draft(x, at, k, a);
        timeline_keep(x->s, keep);
        at += keep;
    }
    steps(x, x->reference, 0, at);
    x->s->block_at = 0;
    int code = verify_reference(x->s, x->reference);
    CHECK(!code, "%s: blocks of %d tokens in a row: %s", x->what, at, failure.message);
}

static void test_blocks(const char *dir, const mote_model *m) {
    static const int prompts[] = {1, 20, 2, 3, 7}, chunks[] = {2, 32};
    int large = m->text != NULL;
    for (int i = 0; i < (large ? 2 : 5); i++)
        for (int c = 0; c < 2; c++) {
            pair x;
            if (large && i != c) continue;
            pair_open(&x, dir, m, prompts[i], chunks[c]);
            test_every_block(&x);
            for (int j = 0; j < (large ? 2 : 10); j++) test_chain(&x);
            pair_close(&x);
        }
}

// ---- The comparison can fail ----------------------------------------------------------------------------------------

// The first layer of a kind.
static int layer_of(const mote_model *m, enum layer_kind mixer) {
    int i = 0;
    while (m->layers[i].mixer.kind != mixer) i++;
    return i;
}

// What of the session is changed: one float.
typedef struct damage { const char *what; int layer; float *at; } damage;

// Every kind of damage, number `i` of them; at is NULL after the last.
static damage damage_of(const mote_session *s, int i) {
    const config *c = &s->m->c;
    int delta = layer_of(s->m, LAYER_DELTANET), attention = layer_of(s->m, LAYER_ATTENTION);
    size_t row = (size_t)(s->m->largest.attention.kv_heads * s->m->largest.attention.head_dim), last = (size_t)(s->count - 1) * row;
    size_t mtp = (size_t)(s->block_at - 1) * row;
    const damage all[] = {{"logits", -1, s->slot.logits + 5},
                          {"final row", -1, session_final_row(s) + 1},
                          {"DeltaNet state", delta, s->slot.state[delta].deltanet.S + 7},
                          {"DeltaNet state", delta, s->slot.state[delta].deltanet.log_u},
                          {"conv1d window", delta, s->slot.state[delta].deltanet.log_raw + 2},
                          {"keys", attention, (float *)s->slot.state[attention].attention.k + last},
                          {"values", attention, (float *)s->slot.state[attention].attention.v + last + row - 1},
                          {"keys", c->layers, (float *)s->slot.state[c->layers].attention.k + mtp},
                          {"values", c->layers, (float *)s->slot.state[c->layers].attention.v + mtp},
                          {NULL, 0, NULL}};
    return all[i];
}

static void test_damage(const mote_model *m) {
    pair x;
    pair_open(&x, "damage", m, 7, 32);
    for (int i = 0;; i++) {
        char layer[32] = "";
        pair_rewind(&x);
        draft(&x, 0, 3, 1);
        timeline_keep(x.s, 2);
        steps(&x, x.reference, 0, 2);
        damage d = damage_of(x.s, i);
        if (!d.at) break;
        *d.at += 0.25f;
        EXPECT(MOTE_EMISMATCH, verify_reference(x.s, x.reference));
        if (d.layer >= 0) snprintf(layer, sizeof layer, "layer %d, ", d.layer);
        CHECK(strstr(failure.message, d.what) && strstr(failure.message, layer), "%s%s: %s", layer, d.what, failure.message);
    }
    pair_close(&x);
}

// Another token than the reference session's.
static void test_wrong_token(const mote_model *m) {
    pair x;
    char want[64];
    pair_open(&x, "wrong token", m, 7, 32);
    for (int wrong = 0; wrong < 2; wrong++) {
        pair_rewind(&x);
        draft(&x, 0, 2, 2);
        timeline_keep(x.s, 1);
        x.s->tokens[x.prompt] = (x.truth[0] + wrong) % 60;
        EXPECT(wrong ? MOTE_EMISMATCH : MOTE_OK, verify_token(x.s, x.reference, &greedy, &failure));
    }
    snprintf(want, sizeof want, "token %d of the timeline is %d", x.prompt, (x.truth[0] + 1) % 60);
    CHECK(strstr(failure.message, want), "wrong token: %s", failure.message);
    pair_close(&x);
}
