// Tests of what a session holds, looking inside: blocks of several rows of which some are kept, the comparison with a twin,
// how deep to draft, keys and values of each type, saved bytes, the choice of tokens from given logits, memory as planned.
//
// Contents   1. Helpers       2. Blocks kept in part      3. Verified drafts      4. The comparison can fail
//            5. Depth         6. Keys and values          7. Saved bytes          8. Sampling      9. Options and plans

#include "../../engine.cu"
#include "api.h"
#include "files.h"

#include <malloc.h>

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

enum { CONTEXT = 512 };

static const mote_sampling greedy;

typedef struct fixture {
    const char *dir;
    mote_model *m;
    int T, vocab, mtp;                       // mtp: it has an MTP layer
    int32_t *tokens;                         // [T]
    float *plain, *plain_mtp;                // logits [T][vocab] and [T-1][vocab], one token at a time
} fixture;

static void fixture_open(fixture *f, const char *dir) {
    char path[256];
    size_t size;
    memset(f, 0, sizeof *f);
    f->dir = dir;
    f->m = model_of(dir, MOTE_WEIGHTS_ONLY);
    f->vocab = f->m->c.vocab;
    f->mtp = f->m->has_mtp;
    snprintf(path, sizeof path, "%s/tokens.i32", dir);
    f->tokens = (int32_t *)file_bytes(path, &size);
    f->T = (int)(size / 4);
    if (!CHECK(f->T > 20, "%s: run this from the top of the repository", path)) exit(test_main_end());
    f->plain = (float *)room((size_t)(f->T * f->vocab) * 4);
    f->plain_mtp = (float *)room((size_t)(f->T * f->vocab) * 4);
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    for (int t = 0; t < f->T; t++) {
        float *mtp = f->plain_mtp + (size_t)(t ? t - 1 : 0) * (size_t)f->vocab;
        EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens + t, 1, f->plain + (size_t)t * (size_t)f->vocab, f->mtp ? mtp : NULL,
                                         &failure));
    }
    mote_session_close(s);
}

static void fixture_close(fixture *f) {
    mote_close(f->m);
    free(f->tokens);
    free(f->plain);
    free(f->plain_mtp);
}

static const float *plain_row(const fixture *f, int position) {
    return f->plain + (size_t)position * (size_t)f->vocab;
}

// Feeds tokens up to position `to`.
static void advance(mote_session *s, const fixture *f, int to) {
    EXPECT(MOTE_OK, mote_feed(s, f->tokens + s->count, (size_t)(to - s->count), &failure));
}

// The same, and checks the logits after them.
static void feed_to(mote_session *s, const fixture *f, int to, const char *what) {
    advance(s, f, to);
    CHECK(s->count == to && same_logits(s, plain_row(f, to - 1), f->vocab), "%s: %s: logits after %d tokens", f->dir, what,
          to);
}

// ---- 2. Blocks kept in part -----------------------------------------------------------------------------------------

// A draft of T rows behind the timeline of which `keep` are the tokens of the fixture and the others wrong.
static void draft_some(mote_session *s, const fixture *f, int T, int keep) {
    int32_t ids[BLOCK];
    float *logits = (float *)room((size_t)(T * f->vocab) * 4);
    int first = s->count;
    for (int t = 0; t < T; t++) ids[t] = t < keep ? f->tokens[first + t] : (f->tokens[first + t] + 1 + t) % f->vocab;
    EXPECT(MOTE_OK, forward(s, ids, T, 1, logits, NULL, &failure));
    size_t bytes = (size_t)(keep * f->vocab) * 4;
    CHECK(!memcmp(logits, plain_row(f, first), bytes), "%s: draft of %d at %d", f->dir, T, first);
    session_keep(s, keep);
    free(logits);
}

// After a block kept in part: a block of `next` rows, then single ones, give what plain decoding gives.
static void test_partial(const fixture *f, int before, int T, int keep, int next) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 64, .threads = 1);
    float *mtp = (float *)room((size_t)(next * f->vocab) * 4);
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
    for (int T = 1; T <= BLOCK; T++)
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
    while (s->count < f->T - BLOCK) {
        int T = random_int(1, BLOCK), keep = random_int(1, T), kind = random_int(0, 5);
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

// ---- 3. Verified drafts ---------------------------------------------------------------------------------------------

enum { TRUTH = 32 };

// A session, its twin, and what plain decoding generates behind their prompt.
typedef struct pair {
    const char *what;
    mote_session *s, *twin;
    mote_checkpoint *start, *twin_start;
    int32_t truth[TRUTH];
    int prompt;
} pair;

// The prompt of n tokens: any ids.
static void pair_open(pair *x, const char *what, const mote_model *m, int n, int chunk) {
    int32_t ids[TRUTH];
    x->what = what;
    x->prompt = n;
    x->s = session_of(m, .context = CONTEXT, .chunk = chunk, .threads = 1, .mtp = 3);
    x->twin = session_of(m, .context = CONTEXT, .chunk = chunk, .threads = 1, .mtp = 3);
    for (int i = 0; i < n; i++) ids[i] = (7 * i + 3 * n) % 60;
    EXPECT(MOTE_OK, mote_feed(x->s, ids, (size_t)n, &failure));
    EXPECT(MOTE_OK, mote_feed(x->twin, ids, (size_t)n, &failure));
    x->start = checkpoint_of(x->s);
    x->twin_start = checkpoint_of(x->twin);
    int code = MOTE_OK;
    for (int i = 0; i < TRUTH; i++) code |= mote_step(x->twin, NULL, &x->truth[i], &failure);
    CHECK(!code, "%s: plain decoding: %s", what, failure.message);
}

static void pair_close(pair *x) {
    mote_checkpoint_free(x->start);
    mote_checkpoint_free(x->twin_start);
    mote_session_close(x->s);
    mote_session_close(x->twin);
}

static void pair_rewind(pair *x) {
    EXPECT(MOTE_OK, mote_rewind(x->s, x->start, &failure));
    EXPECT(MOTE_OK, mote_rewind(x->twin, x->twin_start, &failure));
}

// Verifies k drafts behind the first `at` true tokens, the first a of them true, the next wrong, and more true ones, which
// count no more.
static void draft(pair *x, int at, int k, int a) {
    int32_t ids[BLOCK];
    int more = 1, first = x->prompt + at, next = a < k ? x->truth[at + a + 1] : -1;
    chooser by = chooser_of(&greedy);
    decode_pass p = {0};
    for (int i = 0; i <= k; i++) ids[i] = i == a + 1 ? (x->truth[at + i] + 1) % 60 : x->truth[at + i];
    EXPECT(MOTE_OK, pass_verify(x->s, ids, k, &p, &failure));
    while (more) EXPECT(MOTE_OK, pass_keep(x->s, &by, &p, &more, &failure));
    CHECK(p.kept == a + 1 && p.judged == (a < k ? a + 1 : k) && x->s->spec.next == next,
          "%s: %d of %d drafts: %d rows, surprise %d", x->what, a, k, p.kept, x->s->spec.next);
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
static int verify_twin(mote_session *s, mote_session *twin) {
    verifier v = {twin, (char *)room(2 * VERIFY_BYTES)};
    int code = verify_state(&v, s, &failure);
    free(v.bytes);
    return code;
}

// After a block the session is what its twin is after as many steps. keep: of the a + 1 rows that count.
static void test_block(pair *x, int k, int a, int keep) {
    int more = keep <= a ? 3 : 0;
    pair_rewind(x);
    draft(x, 0, k, a);
    session_keep(x->s, keep);
    steps(x, x->s, keep, more);
    steps(x, x->twin, 0, keep + more);
    int code = verify_twin(x->s, x->twin);
    CHECK(!code, "%s: %d tokens, %d of %d drafts, %d rows kept: %s", x->what, x->prompt, a, k, keep, failure.message);
}

static void test_every_block(pair *x) {
    for (int k = 1; k < BLOCK; k++)
        for (int a = 0; a <= k; a++)
            for (int keep = a + 1; keep >= 1; keep--) test_block(x, k, a, keep);
}

// Blocks in a row, each with rows of the one before to repeat; compared at the end, all KV rows.
static void test_chain(pair *x) {
    int at = 0;
    pair_rewind(x);
    while (at < TRUTH - BLOCK) {
        int k = random_int(1, BLOCK - 1), a = random_int(0, k), keep = random_int(1, a + 1);
        draft(x, at, k, a);
        session_keep(x->s, keep);
        at += keep;
    }
    steps(x, x->twin, 0, at);
    x->s->block_at = 0;
    int code = verify_twin(x->s, x->twin);
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

// ---- 4. The comparison can fail -------------------------------------------------------------------------------------

// The first layer of a kind.
static int layer_of(const mote_model *m, enum layer_kind mixer) {
    int i = 0;
    while (m->layers[i].mixer.kind != mixer) i++;
    return i;
}

// What of the session is changed: one float.
typedef struct damage { const char *what; int layer; float *at; } damage;

// Every kind of damage, number `i` of them; at is NULL behind the last.
static damage damage_of(const mote_session *s, int i) {
    const config *c = &s->m->c;
    int delta = layer_of(s->m, LAYER_DELTANET), attention = layer_of(s->m, LAYER_ATTENTION);
    size_t row = (size_t)(c->shapes.attention.kv_heads * c->shapes.attention.head_dim), last = (size_t)(s->count - 1) * row;
    size_t mtp = (size_t)(s->block_at - 1) * row;
    const damage all[] = {{"logits", -1, s->logits + 5},
                          {"final row", -1, s->last_hidden + 1},
                          {"DeltaNet state", delta, s->state[delta].deltanet.S + 7},
                          {"DeltaNet state", delta, s->state[delta].deltanet.log_u},
                          {"conv1d window", delta, s->state[delta].deltanet.log_raw + 2},
                          {"keys", attention, (float *)s->state[attention].attention.k + last},
                          {"values", attention, (float *)s->state[attention].attention.v + last + row - 1},
                          {"keys", c->layers, (float *)s->state[c->layers].attention.k + mtp},
                          {"values", c->layers, (float *)s->state[c->layers].attention.v + mtp},
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
        session_keep(x.s, 2);
        steps(&x, x.twin, 0, 2);
        damage d = damage_of(x.s, i);
        if (!d.at) break;
        *d.at += 0.25f;
        EXPECT(MOTE_EMISMATCH, verify_twin(x.s, x.twin));
        if (d.layer >= 0) snprintf(layer, sizeof layer, "layer %d, ", d.layer);
        CHECK(strstr(failure.message, d.what) && strstr(failure.message, layer), "%s%s: %s", layer, d.what, failure.message);
    }
    pair_close(&x);
}

// Another token than the twin's.
static void test_wrong_token(const mote_model *m) {
    pair x;
    char want[64];
    pair_open(&x, "wrong token", m, 7, 32);
    for (int wrong = 0; wrong < 2; wrong++) {
        pair_rewind(&x);
        draft(&x, 0, 2, 2);
        session_keep(x.s, 1);
        x.s->tokens[x.prompt] = (x.truth[0] + wrong) % 60;
        EXPECT(wrong ? MOTE_EMISMATCH : MOTE_OK, verify_token(x.s, x.twin, &greedy, &failure));
    }
    snprintf(want, sizeof want, "token %d of the timeline is %d", x.prompt, (x.truth[0] + 1) % 60);
    CHECK(strstr(failure.message, want), "wrong token: %s", failure.message);
    pair_close(&x);
}

// ---- 5. Depth -------------------------------------------------------------------------------------------------------

// A session that believes these to be the costs of its passes.
static mote_session *session_costing(const mote_model *m, const double *cost) {
    mote_session *s = session_of(m, .context = CONTEXT, .threads = 1);
    memcpy(s->spec.seen.cost, cost, sizeof s->spec.seen.cost);
    s->spec.measured_at = 1;
    speculation_choose(s);
    return s;
}

// A pass in which each draft is accepted with this probability. Returns its cost.
static double pass(mote_session *s, double acceptance) {
    int drafts = s->spec.seen.depth, accepted = 0;
    double cost = s->spec.seen.cost[drafts];
    while (accepted < drafts && random_int(0, 999999) < acceptance * 1e6) accepted++;
    speculation_learn(s, drafts, accepted);
    return cost;
}

// How often the depth changes.
static int changes(mote_session *s, double acceptance, int passes) {
    int n = 0;
    for (int i = 0; i < passes; i++) {
        int depth = s->spec.seen.depth;
        pass(s, acceptance);
        n += s->spec.seen.depth != depth;
    }
    return n;
}

static void test_depth(const mote_model *m) {
    static const double cost[4] = {1, 1.2, 1.4, 1.6};
    mote_session *s = session_costing(m, cost);
    double sum = 0;
    int n = 0;
    changes(s, 1, 100);
    CHECK(s->spec.seen.depth == 3, "all accepted: depth %d", s->spec.seen.depth);
    for (n = 0; s->spec.seen.depth && n < 1000; n++) pass(s, 0);
    CHECK(n <= 80, "none accepted any more: drafts for %d passes", n);
    for (int i = 0; i < 20000; i++) sum += pass(s, 0);
    CHECK(sum < 1.004 * 20000, "none accepted: a pass costs %g of a plain one", sum / 20000);
    CHECK(s->spec.seen.passes[1] + s->spec.seen.passes[2] + s->spec.seen.passes[3] > 100 + (uint64_t)n,
          "none accepted: drafts are never tried again");
    for (n = 0; !s->spec.seen.depth && n < 10000; n++) pass(s, 0.9);
    CHECK(n <= 4000, "accepted again: no drafts for %d passes", n);
    changes(s, 0.9, 1000);
    CHECK(s->spec.seen.depth > 0, "accepted again: depth %d", s->spec.seen.depth);
    mote_session_close(s);
}

// From the start, without anything accepted before.
static void test_depth_of_nothing(const mote_model *m) {
    static const double cost[4] = {1, 1.2, 1.4, 1.6}, dear[4] = {1, 2, 3, 4};
    mote_session *s = session_costing(m, cost);
    int n;
    CHECK(s->spec.seen.depth > 0, "drafts are not tried");
    for (n = 0; s->spec.seen.depth && n < 1000; n++) pass(s, 0);
    CHECK(n <= 40, "none accepted from the start: drafts for %d passes", n);
    mote_session_close(s);
    s = session_costing(m, dear);
    CHECK(changes(s, 1, 1000) == 0 && s->spec.seen.depth == 0, "drafts that cost as much as passes: depth %d",
          s->spec.seen.depth);
    mote_session_close(s);
}

// Two depths that are as good as each other, within 3 %: it stays with one for long.
static void test_hysteresis(const mote_model *m) {
    for (int sign = -1; sign <= 1; sign++) {
        double p = 0.8, good = 1 + p, better = 1 + p + p * p, cost[4] = {1.3, good, better * (1 + 0.03 * sign), 9};
        mote_session *s = session_costing(m, cost);
        changes(s, p, 100);
        int n = changes(s, p, 5000);
        printf("%s: two depths within 3 %%: %d changes in 5000 passes\n", test_name, n);
        CHECK(n <= 50, "two depths within 3 %%: %d changes in 5000 passes", n);
        mote_session_close(s);
    }
}

// The drafts of a model that drafts from few rows of its vocabulary are among these.
static void test_draft_rows(void) {
    static const int rows[] = {0, 100, 1};
    for (int i = 0; i < 3; i++) {
        mote_options o = {.device = "cpu", .draft_rows = rows[i]};
        mote_model *m = NULL;
        int32_t drafts[BLOCK - 1], ids[] = {5, 6, 7};
        EXPECT(MOTE_OK, mote_open("models/demo", &o, &m, &failure));
        if (!m) break;
        mote_session *s = session_of(m, .context = CONTEXT, .threads = 1, .mtp = 3);
        EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
        EXPECT(MOTE_OK, make_drafts(s, 8, BLOCK - 1, drafts, &failure));
        for (int k = 0; k < BLOCK - 1; k++)
            CHECK(drafts[k] >= 0 && (!rows[i] || drafts[k] < rows[i]), "draft_rows %d: draft %d", rows[i], drafts[k]);
        mote_session_close(s);
        mote_close(m);
    }
}

// ---- 6. Keys and values ---------------------------------------------------------------------------------------------

static mote_session *kv_session(const fixture *f, int chunk, int kv) {
    return session_of(f->m, .context = f->T + chunk, .chunk = chunk, .threads = 1, .kv = kv);
}

// Saved as one type and loaded as another, the rows are those of the first rounded to the second; and back.
static void test_kv_conversion(const fixture *f, int from, int to) {
    mote_session *s = kv_session(f, 0, from), *t = kv_session(f, 5, to);
    mote_session *back = kv_session(f, 0, from);
    size_t size, other, wide = (size_t)(f->m->c.shapes.attention.kv_heads * f->m->c.shapes.attention.head_dim), n = 13 * wide;
    float *want = (float *)room(n * 4), *got = (float *)room(n * 4), *twice = (float *)room(n * 4);
    advance(s, f, 13);
    advance(t, f, 6);
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));
    CHECK(t->o.kv == to && t->count == 13 && same_logits(t, s->logits, f->vocab), "%s: KV type %d to %d", f->dir, from, to);
    char *converted = session_bytes(t, &other);
    EXPECT(MOTE_OK, mote_load(back, converted, other, &failure));
    for (int i = 0; i < 2 * f->m->c.layers + 2; i++) {
        const attention_state *r = &s->state[i / 2].attention, *u = &t->state[i / 2].attention;
        const attention_state *w = &back->state[i / 2].attention;
        if (i / 2 < f->m->c.layers ? f->m->layers[i / 2].mixer.kind != LAYER_ATTENTION : !s->has_mtp) continue;
        kv_convert((char *)want, DTYPE_F32, (const char *)(i % 2 ? r->v : r->k), s->kv_type, n);
        kv_convert((char *)twice, DTYPE_F32, (const char *)(i % 2 ? w->v : w->k), s->kv_type, n);
        kv_convert((char *)got, DTYPE_F32, (const char *)(i % 2 ? u->v : u->k), t->kv_type, n);
        int wrong = 0, kept = 0;
        for (size_t j = 0; j < n - (i / 2 == f->m->c.layers ? wide : 0); j++) {
            float rounded = to == MOTE_KV_BF16 ? float_of_bf16(bf16_of_float(want[j]))
                          : to == MOTE_KV_FP8 ? float_of_fp8(fp8_of_float(want[j])) : want[j];
            wrong += got[j] != rounded;
            kept += twice[j] == want[j];
        }
        CHECK(!wrong && (from < to || kept), "%s: KV type %d to %d: %d values", f->dir, from, to, wrong);
    }
    advance(t, f, f->T);
    mote_session *all[] = {s, t, back};
    for (int i = 0; i < 3; i++) mote_session_close(all[i]);
    void *memory[] = {bytes, converted, want, got, twice};
    for (int i = 0; i < 5; i++) free(memory[i]);
}

// ---- 7. Saved bytes -------------------------------------------------------------------------------------------------

// A damaged copy is refused with the code, and the session stays as it was.
static void refuse_bytes(mote_session *s, const char *bytes, size_t size, int want, const char *what) {
    size_t n;
    char *before = session_bytes(s, &n);
    memset(&failure, 0, sizeof failure);
    int code = mote_load(s, bytes, size, &failure);
    CHECK(code == want && failure.code == want && failure.message[0], "%s: %d, expected %d: %s", what, code, want,
          failure.message);
    CHECK(session_is(s, before, n), "%s: the session changed", what);
    free(before);
}

static void test_damaged_saves(const fixture *f, const fixture *other) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1), *t = session_of(f->m, .context = f->T, .threads = 1);
    mote_session *foreign = session_of(other->m, .context = f->T, .threads = 1);
    mote_session *small = session_of(f->m, .context = 9, .threads = 1);
    size_t size;
    feed_to(s, f, 10, "damage");
    feed_to(t, f, 7, "damage");
    feed_to(small, f, 2, "damage");
    char *bytes = session_bytes(s, &size);
    for (size_t n = 0; n < size; n += n < 100 ? 1 : size / 37) refuse_bytes(t, bytes, n, MOTE_EFORMAT, "truncated");
    refuse_bytes(t, bytes, size + 1, MOTE_EFORMAT, "too long");
    refuse_bytes(t, NULL, 0, MOTE_EINVAL, "no bytes");
    refuse_bytes(small, bytes, size, MOTE_ECONTEXT, "too small a context");
    refuse_bytes(foreign, bytes, size, MOTE_EINVAL, "another checkpoint");
    for (size_t bit = 0; bit < 8 * sizeof(saved_header); bit++) {
        size_t at = bit / 8;
        int in_count = at >= offsetof(saved_header, count) && at < offsetof(saved_header, generated_from);
        bytes[at] = (char)(bytes[at] ^ 1 << bit % 8);
        if (at < offsetof(saved_header, fingerprint)) refuse_bytes(t, bytes, size, MOTE_EFORMAT, "another magic");
        else if (at < offsetof(saved_header, checksum)) refuse_bytes(t, bytes, size, MOTE_EINVAL, "another fingerprint");
        else if (in_count) {
            int32_t count;
            memcpy(&count, bytes + offsetof(saved_header, count), 4);
            refuse_bytes(t, bytes, size, count > f->T ? MOTE_ECONTEXT : MOTE_EFORMAT, "another count");
        } else {
            refuse_bytes(t, bytes, size, MOTE_EFORMAT, "another checksum or field");
        }
        bytes[at] = (char)(bytes[at] ^ 1 << bit % 8);
    }
    bytes[size / 2] ^= 1;
    refuse_bytes(t, bytes, size, MOTE_EFORMAT, "a bit of the state");
    memset(bytes + sizeof(saved_header), 0x7f, 4);
    saved_header *header = (saved_header *)(void *)bytes;
    header->checksum = saved_checksum(bytes, size);
    refuse_bytes(t, bytes, size, MOTE_EFORMAT, "an id outside the vocabulary");
    feed_to(t, f, f->T, "after all refusals");
    free(bytes);
    mote_session *all[] = {s, t, foreign, small};
    for (int i = 0; i < 4; i++) mote_session_close(all[i]);
}

// Damaged copies of every type; one of a type that there is not has a checksum that fits.
static void test_kv_damage(const fixture *f, int kv) {
    mote_session *s = kv_session(f, 0, kv), *t = kv_session(f, 0, MOTE_KV_BF16);
    size_t size;
    saved_header h;
    advance(s, f, 8);
    advance(t, f, 5);
    char *bytes = session_bytes(s, &size);
    refuse_bytes(t, bytes, size - 1, MOTE_EFORMAT, "KV rows cut off");
    refuse_bytes(t, bytes, size + 1, MOTE_EFORMAT, "too long");
    memcpy(&h, bytes, sizeof h);
    for (int32_t other = -1; other <= 5; other++) {
        saved_header changed = h;
        changed.kv = other;
        memcpy(bytes, &changed, sizeof h);
        changed.checksum = saved_checksum(bytes, size);
        memcpy(bytes, &changed, sizeof h);
        if (other != kv && (f->m->info.kv_bytes_per_token > 0 || f->mtp))
            refuse_bytes(t, bytes, size, MOTE_EFORMAT, "another KV type");
        changed.kv = kv;
        changed.mtp = other;
        memcpy(bytes, &changed, sizeof h);
        changed.checksum = saved_checksum(bytes, size);
        memcpy(bytes, &changed, sizeof h);
        if (other != h.mtp) refuse_bytes(t, bytes, size, MOTE_EFORMAT, "other MTP rows");
    }
    memcpy(bytes, &h, sizeof h);
    bytes[size - 1] ^= 1;
    refuse_bytes(t, bytes, size, MOTE_EFORMAT, "a bit of the last row");
    bytes[size - 1] ^= 1;
    EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));
    free(bytes);
    mote_session_close(s);
    mote_session_close(t);
}

// A checkpoint that outlives its model, and another model where that one was: the two change places. Made-up ones are told apart by
// their shapes and formats.
static void test_dangling_checkpoint(const char *name, const char *other) {
    static const int32_t ids[] = {3, 4, 5, 6, 7};
    mote_options o = {.device = "cpu"};
    mote_model *m[2], whole;
    for (int i = 0; i < 2; i++) EXPECT(MOTE_OK, mote_open_synthetic(i ? other : name, &o, &m[i], &failure));
    mote_session *s = session_of(m[0], .context = 32, .threads = 1);
    EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
    mote_checkpoint *c = checkpoint_of(s);
    float *logits = (float *)room((size_t)m[0]->c.vocab * sizeof *logits);
    memcpy(logits, mote_logits(s), (size_t)m[0]->c.vocab * sizeof *logits);
    mote_session_close(s);
    whole = *m[0];
    *m[0] = *m[1];
    *m[1] = whole;
    for (int i = 0; i < 2; i++) {
        s = session_of(m[i], .context = 32, .threads = 1);
        EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
        if (i) EXPECT(MOTE_OK, mote_feed(s, ids, 2, &failure));
        EXPECT(i ? MOTE_OK : MOTE_EINVAL, mote_rewind(s, c, &failure));
        CHECK(count_of(s) == 5 && same_logits(s, logits, m[1]->c.vocab) == i, "%s, %s: model %d's state", name, other, i);
        mote_session_close(s);
    }
    s = session_of(m[1], .context = 32, .threads = 1, .kv = MOTE_KV_BF16);
    EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, c, &failure));
    mote_session_close(s);
    mote_checkpoint_free(c);
    free(logits);
    for (int i = 0; i < 2; i++) mote_close(m[i]);
}

// A model is there as long as a session of it is.
static void test_closed_model(const fixture *f) {
    mote_model *m = model_of(f->dir, MOTE_WEIGHTS_ONLY);
    mote_session *s = session_of(m, .context = f->T, .threads = 1), *clone = NULL;
    EXPECT(MOTE_OK, mote_feed(s, f->tokens, 5, &failure));
    mote_close(m);
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    mote_session_close(s);
    EXPECT(MOTE_OK, mote_feed(clone, f->tokens + 5, 5, &failure));
    CHECK(same_logits(clone, plain_row(f, 9), f->vocab), "%s: other logits when its model was closed", f->dir);
    mote_session_close(clone);
}

// ---- 8. Sampling ----------------------------------------------------------------------------------------------------

static const float *sorting;

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorting[x] != sorting[y]) return sorting[x] > sorting[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

// The exact distribution: softmax at the temperature, top-k, top-p of what is left, min-p.
static void exact_distribution(const float *logits, int n, const mote_sampling *p, double *probability) {
    int32_t *order = (int32_t *)room((size_t)n * 4);
    double sum = 0, mass = 0, kept = 0;
    int k = p->top_k > 0 && p->top_k < n ? p->top_k : n, end = 0;
    for (int i = 0; i < n; i++) order[i] = i, probability[i] = 0;
    sorting = logits;
    qsort(order, (size_t)n, sizeof *order, by_value);
    for (int i = 0; i < k; i++) sum += exp(((double)logits[order[i]] - logits[order[0]]) / p->temperature);
    for (; end < k; end++) {
        double share = exp(((double)logits[order[end]] - logits[order[0]]) / p->temperature) / sum;
        if (p->top_p > 0 && p->top_p < 1 && mass >= p->top_p) break;
        if (share < p->min_p / sum) break;
        mass += share;
        kept += probability[order[end]] = share;
    }
    for (int i = 0; i < n; i++) probability[i] /= kept;
    free(order);
}

static void poke(mote_session *s, const float *logits) {
    memcpy(s->logits, logits, (size_t)s->m->c.vocab * sizeof(float));
}

// Samples of many seeds and positions against the exact distribution (chi-square; rare ids are counted together).
static void test_distribution(mote_session *s, const float *logits, mote_sampling p) {
    enum { POSITIONS = 30 };
    const int N = (test_brief ? 40 : 400) * POSITIONS;
    int n = s->m->c.vocab, count = s->count, outside = 0, bins = 0;
    double *want = (double *)room((size_t)n * sizeof(double)), chi = 0, rare = 0;
    int *seen = (int *)room((size_t)n * sizeof(int)), rare_seen = 0;
    exact_distribution(logits, n, &p, want);
    poke(s, logits);
    for (int i = 0; i < N; i++) {
        int32_t id = -1;
        p.seed = (uint64_t)(i / POSITIONS) * 7919;
        s->count = 1 + i % POSITIONS;
        if (mote_sample(s, &p, &id, NULL) || id < 0 || id >= n || want[id] == 0) outside++;
        else seen[id]++;
    }
    s->count = count;
    for (int i = 0; i < n; i++) {
        if (want[i] * N < 8) rare += want[i] * N, rare_seen += seen[i];
        else chi += (seen[i] - want[i] * N) * (seen[i] - want[i] * N) / (want[i] * N), bins++;
    }
    if (rare >= 4) chi += (rare_seen - rare) * (rare_seen - rare) / rare, bins++;
    CHECK(outside == 0 && chi < bins + 5 * sqrt(2.0 * bins) + 5,
          "temperature %g, top-k %d, top-p %g, min-p %g: %d outside the distribution, chi-square %g of %d bins",
          (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, outside, chi, bins);
    free(want);
    free(seen);
}

static void test_distributions(const fixture *f) {
    static const mote_sampling all[] = {
        {.temperature = 1},
        {.temperature = 0.5f, .top_p = 1},
        {.temperature = 2.5f},
        {.temperature = 1, .top_k = 7},
        {.temperature = 1, .top_k = 1},
        {.temperature = 1, .top_k = 1 << 30},
        {.temperature = 1, .top_p = 0.61f},
        {.temperature = 1, .top_p = 1e-6f},
        {.temperature = 1, .top_p = 0.999f},
        {.temperature = 1, .min_p = 0.173f},
        {.temperature = 1, .min_p = 1},
        {.temperature = 0.7f, .top_k = 20, .top_p = 0.83f},
        {.temperature = 0.7f, .top_k = 20, .top_p = 0.83f, .min_p = 0.21f},
        {.temperature = 3, .top_k = 30, .top_p = 0.97f, .min_p = 0.3f},
        {.temperature = 1000},
        {.temperature = 1e-6f}};
    static const mote_sampling behind[] = {{.temperature = 1}, {.temperature = 1, .top_p = 0.9f, .min_p = 0.01f}};
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    float *logits = (float *)room((size_t)f->vocab * 4);
    feed_to(s, f, 40, "distributions");
    for (int i = 0; i < f->vocab; i++) logits[i] = 3 * (float)random_int(-1000000, 1000000) / 1e6f;
    logits[5] = logits[2] = logits[33];                      /* ties */
    for (int i = 10; i < 20; i++) logits[i] = 2.5f;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) test_distribution(s, logits, all[i]);
    for (int i = 0; i < f->vocab; i++) logits[i] = i % 3 ? -INFINITY : logits[i];
    for (size_t i = 0; i < 2; i++) test_distribution(s, logits, behind[i]);
    free(logits);
    mote_session_close(s);
}

static void test_greedy_choice(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    float *logits = (float *)room((size_t)f->vocab * 4);
    int32_t id = -1;
    feed_to(s, f, 5, "greedy");
    for (int i = 0; i < f->vocab; i++) logits[i] = -3;
    logits[9] = logits[4] = logits[17] = 2;
    poke(s, logits);
    EXPECT(MOTE_OK, mote_sample(s, NULL, &id, &failure));
    CHECK(id == 4, "the lowest id of a tie, not %d", id);
    logits[30] = logits[40] = INFINITY;
    poke(s, logits);
    mote_sampling hot = {.temperature = 1, .top_p = 0.5f};
    EXPECT(MOTE_OK, mote_sample(s, &hot, &id, &failure));
    CHECK(id == 30, "infinity wins, not %d", id);
    for (int i = 0; i < f->vocab; i++) logits[i] = -INFINITY;
    poke(s, logits);
    EXPECT(MOTE_OK, mote_sample(s, &hot, &id, &failure));
    logits[8] = NAN;
    poke(s, logits);
    id = -7;
    EXPECT(MOTE_EFORMAT, mote_sample(s, NULL, &id, &failure));
    EXPECT(MOTE_EFORMAT, mote_step(s, &hot, &id, &failure));
    CHECK(id == -7 && s->count == 5, "nothing is chosen from NaN");
    free(logits);
    mote_session_close(s);
}

// Penalties in double, by their definitions.
static void naive_penalties(const mote_session *s, const mote_sampling *p, int vocab, double *value) {
    for (int id = 0; id < vocab; id++) {
        int all = 0, generated = 0;
        for (int i = 0; i < s->count; i++) all += s->tokens[i] == id;
        for (int i = s->generated_from; i < s->count; i++) generated += s->tokens[i] == id;
        value[id] = s->logits[id];
        double factor = p->repetition_penalty > 0 ? p->repetition_penalty : 1;
        if (all) value[id] = value[id] > 0 ? value[id] / factor : value[id] * factor;
        if (generated) value[id] -= p->presence_penalty + (double)generated * p->frequency_penalty;
    }
}

static void test_penalties(const fixture *f) {
    static const float repetition[] = {0, 1, 1.7f, 0.6f}, presence[] = {0, 0.8f, -0.5f}, frequency[] = {0, 0.3f, -0.2f};
    mote_session *s = session_of(f->m, .context = f->T + 40, .threads = 1);
    double *value = (double *)room((size_t)f->vocab * sizeof(double));
    mote_sampling p = {0}, wild = {.temperature = 0.4f};
    int32_t id;
    feed_to(s, f, 12, "penalties");
    for (int round = 0; round < 36; round++) {
        int best = 0;
        wild.seed = (uint64_t)round;
        EXPECT(MOTE_OK, mote_step(s, &wild, &id, &failure));
        p.repetition_penalty = repetition[round % 4];
        p.presence_penalty = presence[round / 4 % 3];
        p.frequency_penalty = frequency[round / 12];
        EXPECT(MOTE_OK, mote_sample(s, &p, &id, &failure));
        naive_penalties(s, &p, f->vocab, value);
        for (int i = 0; i < f->vocab; i++) {
            CHECK(fabs(s->s.sorted[i] - value[i]) < 1e-5, "round %d: logit %d is %g, expected %g", round, i,
                  (double)s->s.sorted[i], value[i]);
            if (value[i] > value[best]) best = i;
        }
        CHECK(id == best, "round %d: id %d, expected %d", round, id, best);
    }
    EXPECT(MOTE_OK, mote_feed(s, f->tokens, 1, &failure));
    CHECK(s->generated_from == s->count, "what is fed is not generated");
    free(value);
    mote_session_close(s);
}

// ---- 9. Options and plans -------------------------------------------------------------------------------------------

// Defaults as engine.h has them, and a clone's options.
static void test_options(const fixture *f) {
    static const mote_session_options bad[] = {{.chunk = MAX_CHUNK + 1}, {.threads = MAX_THREADS + 1}};
    mote_session *s = session_of(f->m, 0), *t = session_of(f->m, .context = f->T, .chunk = 3, .threads = 2, .kv = MOTE_KV_FP8);
    mote_session *none = NULL, *clone = NULL;
    int most = f->m->c.context_max;
    CHECK(s->o.chunk == 256 && s->o.threads == processors(), "default chunk %d, %d threads", s->o.chunk, s->o.threads);
    CHECK(s->o.context == (most < 8192 ? most : 8192), "default context %d", s->o.context);
    EXPECT(MOTE_OK, mote_clone(t, &clone, &failure));
    CHECK(clone && !memcmp(&clone->o, &t->o, sizeof t->o), "options of a clone");
    for (int i = 0; i < 2; i++) EXPECT(MOTE_EINVAL, mote_session_open(f->m, &bad[i], &none, &failure));
    CHECK(!none, "a refused session");
    mote_session *all[] = {s, t, clone};
    for (int i = 0; i < 3; i++) mote_session_close(all[i]);
}

static int roughly(uint64_t allocated, uint64_t planned) {
    return allocated >= planned && allocated <= planned + 8192;
}

// The plan is what a model and a session hold, for any options.
static void test_plan(const fixture *f) {
    for (int i = 0; i < 5; i++) {
        mote_options on = {.device = "cpu"};
        mote_session_options o;
        mote_memory plan;
        mote_session *s = NULL;
        memset(&o, 0, sizeof o);
        o.context = i ? 10 * i * i + 3 : 0;
        o.chunk = i ? 1 << i : 0;
        o.threads = i;
        EXPECT(MOTE_OK, mote_plan(f->dir, &on, &o, &plan, &failure));
        EXPECT(MOTE_OK, mote_session_open(f->m, &o, &s, &failure));
        CHECK(plan.context == s->o.context, "%s: context of the plan", f->dir);
        CHECK(plan.total == plan.weights + plan.kv + plan.state + plan.scratch, "%s: sum of the plan", f->dir);
        CHECK(roughly(malloc_usable_size(f->m->arena), plan.weights), "%s: weights", f->dir);
        CHECK(roughly(malloc_usable_size(s->memory), plan.kv + plan.state + plan.scratch), "%s: session", f->dir);
        const mote_info *info = mote_model_info(f->m);
        CHECK(plan.weights >= info->weight_bytes, "%s: weights of the plan", f->dir);
        CHECK(plan.kv >= info->kv_bytes_per_token * (uint64_t)plan.context, "%s: KV of the plan", f->dir);
        mote_session_close(s);
    }
}

// A fixture, number i of them.
static void test_fixture(const fixture *f, const fixture *other, int i) {
    test_drafts(f);
    test_plan(f);
    test_damaged_saves(f, other);
    if (test_brief && i != 3 && i != 5) return;              // one of BF16, and one of FP8 with odd sizes
    test_partials(f);
    for (int from = MOTE_KV_F32; from <= MOTE_KV_FP8; from++) {
        test_kv_damage(f, from);
        for (int to = MOTE_KV_F32; to <= MOTE_KV_FP8; to++) test_kv_conversion(f, from, to);
    }
}

int main(int argc, char **argv) {
    static const char *const dirs[] = {
        "tests/fixtures/f16-all-delta", "tests/fixtures/f32-tied",     "tests/fixtures/fp8-f32-scales",
        "tests/fixtures/bf16-as-3.5",   "tests/fixtures/bf16-as-3.6", "tests/fixtures/fp8-ragged",
        "tests/fixtures/mixed-all-attention"};
    enum { COUNT = sizeof dirs / sizeof *dirs };
    static const int drafting[] = {4, 1, 5};
    fixture f[COUNT];
    test_main_begin("test_session", argc, argv);
    for (int i = 0; i < COUNT; i++) fixture_open(&f[i], dirs[i]);
    for (int i = 0; i < COUNT; i++) test_fixture(&f[i], &f[(i + 1) % COUNT], i);
    for (int i = 0; i < (test_brief ? 1 : 3); i++) test_blocks(f[drafting[i]].dir, f[drafting[i]].m);
    test_damage(f[4].m);
    test_wrong_token(f[4].m);
    test_depth(f[4].m);
    test_depth_of_nothing(f[4].m);
    test_hysteresis(f[4].m);
    test_distributions(&f[3]);
    test_greedy_choice(&f[0]);
    test_penalties(&f[1]);
    test_options(&f[1]);
    test_dangling_checkpoint("tiny:bf16:2", "tiny:fp8:2");
    test_dangling_checkpoint("tiny:bf16:2", "tiny:bf16:1");
    test_closed_model(&f[3]);
    for (int i = 0; i < COUNT; i++) fixture_close(&f[i]);
    test_draft_rows();
    if (!test_brief) {
        mote_model *demo = model_of("models/demo", MOTE_EVERYTHING);
        test_blocks("models/demo", demo);
        mote_close(demo);
    }
    return test_main_end();
}
