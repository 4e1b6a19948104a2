/* A block drafter on a GPU, or the simulated one (run/cuda/drafter.cu): its drafts beside the definition's, for tests/fixtures/drafter and for
   synthetic models, whose heads tensor cores take; its state whatever a session does; answers with any number of right drafts, alone and beside
   others. What is the same on all devices is tests/model/test_drafter.c's. Usage: gpu_drafter [--brief], of which the models are fewer */

#include "inside.h"

enum { CONTEXT = 224, MOST = MOTE_ROWS_MAX - 1, LINE = 200, ANSWER = 24 };

/* bound: of logits against the definition's. The fixture's head for drafts is a copy in FP8. */
typedef struct drafter_case { const char *name, *target, *drafter; int kv, brief; double bound; } drafter_case;

static const drafter_case cases[] = {
    {"fixture", "tests/fixtures/families/qwen3.5-dense", "tests/fixtures/drafter", MOTE_KV_BF16, 1, 5e-2},
    {"dense", "tiny-dense:bf16", "synthetic", MOTE_KV_BF16, 0, 1e-2},
    {"plain", "tiny-plain:bf16", "synthetic", MOTE_KV_BF16, 1, 1e-2},
    {"plain, FP8 keys", "tiny-plain:bf16", "synthetic", MOTE_KV_FP8, 0, 5e-2},
    {"sliding", "tiny-sliding:bf16", "synthetic", MOTE_KV_BF16, 0, 1e-2}};

static int32_t line[LINE];

static mote_model *drafter_model(const drafter_case *c, const char *device) {
    mote_options o;
    mote_model *m = NULL;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.device = device;
    o.parts = MOTE_WEIGHTS_ONLY;
    o.drafter = c->drafter;
    const int code = strchr(c->target, '/') ? mote_open(c->target, &o, &m, &failure) : mote_open_synthetic(c->target, &o, &m, &failure);
    if (!CHECK(!code, "%s: %s", c->name, code ? failure.message : "")) exit(test_main_end() ? 1 : 2);
    for (int i = 0; i < LINE; i++) line[i] = (int32_t)((i * 7919 + i * i % 31) % m->c.vocab);
    return m;
}

static mote_session *drafter_session(const mote_model *m, const drafter_case *c, int mtp, mote_runner *r) {
    mote_session_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.context = CONTEXT;
    o.mtp = mtp;
    o.kv = r ? 0 : c->kv;
    o.runner = r;
    return session_with(m, &o);
}

/* What a session's drafter makes of the timeline and the token after it; free() the logits, [MOST][draft vocabulary]. */
typedef struct block_drafts { int32_t ids[MOST]; float confidence[MOTE_ROWS_MAX], *logits; } block_drafts;

static block_drafts drafts_of(mote_session *s, int32_t next) {
    block_drafts d;
    int made = MOST;
    const int n = draft_vocab(s->m);
    const block b = timeline_block(s, &next, 1);
    d.logits = (float *)allocate((size_t)MOST * (size_t)n * sizeof *d.logits);
    EXPECT(MOTE_OK, slot_draft(&s->slot, REQUEST_BLOCK, &b, &made, d.ids, d.confidence, NULL, NULL, &failure));
    CHECK(made == MOST, "%d drafts", made);
    copy(d.logits, s->slot.runner->gpu->draft_logits, (size_t)MOST * (size_t)n * sizeof *d.logits);
    for (int i = 0; i < made; i++) {
        const float *row = d.logits + (size_t)i * (size_t)n;
        double sum = 0;
        for (int k = 0; k < n; k++) sum += exp((double)row[k] - (double)row[d.ids[i]]);
        CHECK(d.ids[i] == best_of(row, n) && fabs(d.confidence[i] * sum - 1) < 1e-3, "draft %d is not the best, or of probability %g, not %g", i, d.confidence[i], 1 / sum);
    }
    return d;
}

/* After so many tokens, each part of them fed at once: in steps, in turns, and, from 65 on, as a prompt. */
static void test_drafts(const mote_model *m, const drafter_case *c) {
    static const int counts[] = {3, 8, 23, 60, 61, 160, 161, 197};
    const size_t vocab = (size_t)m->c.vocab, n = MOST * vocab;
    double *defined = (double *)allocate((size_t)DRAFTER_BLOCK * vocab * sizeof *defined), worst = 0;
    float *want = (float *)allocate(n * sizeof *want);
    defined_drafter t;
    mote_model *here = drafter_model(c, "cpu");
    if (!CHECK(drafter_define(&t, here, LINE), "no memory")) return;
    mote_session *s = drafter_session(m, c, MOTE_MTP_AUTO, NULL);
    for (int k = 0, at = 0; k < (int)COUNT(counts); k++) {
        EXPECT(MOTE_OK, mote_feed(s, line + at, (size_t)(counts[k] - at), &failure));
        for (; at < counts[k]; at++) drafter_read_token(&t, line[at], defined);
        drafter_block(&t, line[at], defined);
        for (size_t i = 0; i < n; i++) want[i] = (float)defined[i];
        const block_drafts d = drafts_of(s, line[at]);
        const double by = off(d.logits, want, n);
        CHECK(by < c->bound, "%s: after %d tokens drafts are off by %g", c->name, at, by);
        worst = fmax(worst, by);
        free(d.logits);
    }
    printf("%s: drafts are off by %.1e at most\n", c->name, worst);
    drafter_close(&t);
    mote_close(here);
    mote_session_close(s);
    free(want), free(defined);
}

/* The session drafts as one does that was fed its timeline at once, but for what prompts round otherwise than steps. */
static void test_same(const mote_session *s, const drafter_case *c, const char *after) {
    size_t n;
    const int32_t *ids = mote_tokens(s, &n);
    mote_session *whole = drafter_session(s->m, c, MOTE_MTP_AUTO, NULL);
    EXPECT(MOTE_OK, mote_feed(whole, ids, n, &failure));
    const block_drafts got = drafts_of((mote_session *)(uintptr_t)s, 3), want = drafts_of(whole, 3);
    const double by = off(got.logits, want.logits, (size_t)MOST * (size_t)draft_vocab(s->m));
    CHECK(by < 2 * c->bound, "%s, after %s: drafts are off by %g", c->name, after, by);
    free(got.logits), free(want.logits);
    mote_session_close(whole);
}

static void test_state(const mote_model *m, const drafter_case *c) {
    const mote_sampling warm = {.temperature = 2, .seed = 4};
    mote_session *s = drafter_session(m, c, MOTE_MTP_AUTO, NULL), *loaded = drafter_session(m, c, MOTE_MTP_AUTO, NULL), *clone = NULL;
    mote_generation g;
    size_t size;
    memset(&g, 0, sizeof g);
    g.size = sizeof g;
    g.sampling = &warm;
    g.max_tokens = ANSWER;
    g.raw = 1;
    EXPECT(MOTE_OK, mote_feed(s, line, 90, &failure));
    mote_checkpoint *before = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    test_same(s, c, "an answer");
    EXPECT(MOTE_OK, mote_rewind(s, before, &failure));
    test_same(s, c, "going back");
    EXPECT(MOTE_OK, mote_feed(s, line + 90, 7, &failure));
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    test_same(clone, c, "a clone");
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_load(loaded, bytes, size, &failure));
    test_same(loaded, c, "loading");
    CHECK(session_is(loaded, bytes, size), "%s: a loaded session of other bytes", c->name);
    free(bytes);
    mote_checkpoint_free(before);
    mote_session_close(s), mote_session_close(loaded), mote_session_close(clone);
}

/* The answer that is known, and how many of a block's drafts are made right; after them comes a wrong one. */
static struct { const int32_t *ids; int from, count, right, blocks; } known;

static void drafter_told(mote_runner *r, pass_request *const *of, int n) {
    gpu_pass(r, of, n);
    for (int i = 0; i < n && of[0]->kind == REQUEST_BLOCK; i++) {
        const int at = of[i]->b->rows->index - known.from + 1;
        known.blocks++;
        for (int k = 0; k < *of[i]->count && k <= known.right && at + k < known.count; k++)
            of[i]->ids[k] = k < known.right ? known.ids[at + k] : (known.ids[at + k] + 1) % r->m->c.vocab;
    }
}

/* With so many right drafts the answer is that without any; by the GPU, or, with what it cannot choose by, by the host. */
static void test_answer(const mote_model *m, const drafter_case *c, const mote_sampling *p, int right) {
    static executor told;
    mote_session *plain = drafter_session(m, c, MOTE_MTP_OFF, NULL), *s = drafter_session(m, c, MOST, NULL);
    mote_generation g;
    mote_drafter_use use;
    size_t n, k;
    memset(&g, 0, sizeof g);
    g.size = sizeof g;
    g.sampling = p;
    g.max_tokens = ANSWER;
    g.raw = 1;
    told = cuda_executor;
    told.pass = drafter_told;
    s->slot.runner->backend = &told;
    EXPECT(MOTE_OK, mote_feed(plain, line, 70, &failure));
    EXPECT(MOTE_OK, mote_feed(s, line, 70, &failure));
    EXPECT(MOTE_OK, mote_generate(plain, &g, NULL, &failure));
    const int32_t *want = mote_tokens(plain, &n);
    known.ids = want + 70;
    known.from = 70;
    known.count = (int)n - 70;
    known.right = right;
    known.blocks = 0;
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    const int32_t *got = mote_tokens(s, &k);
    CHECK(n == k && !memcmp(got, want, n * sizeof *got), "%s: %d drafts right: other tokens", c->name, right);
    CHECK(same_logits(s, mote_logits(plain), m->c.vocab), "%s: %d drafts right: other logits", c->name, right);
    EXPECT(MOTE_OK, mote_drafter_of(s, &use, &failure));
    CHECK(known.blocks > 0 && use.passes > 0, "%s: %d blocks, %d passes", c->name, known.blocks, (int)use.passes);
    for (int i = 0; i < MOST; i++)
        CHECK(use.accepted[i] == (i < right ? use.drafted[i] : 0), "%s: %d drafts right: %d of %d accepted at place %d", c->name, right, (int)use.accepted[i], (int)use.drafted[i], i);
    test_same(s, c, "a told answer");
    mote_session_close(plain), mote_session_close(s);
}

static void *drafter_thread(void *session) {
    const mote_sampling warm = {.temperature = 1, .top_k = 20, .seed = 5};
    mote_generation g;
    mote_error why;
    memset(&g, 0, sizeof g);
    g.size = sizeof g;
    g.sampling = &warm;
    g.max_tokens = ANSWER;
    g.raw = 1;
    CHECK(!mote_generate((mote_session *)session, &g, NULL, &why), "an answer beside others fails");
    return NULL;
}

/* Answers at the same time, by sessions that share a runner, with a drafter's state and without: each is what it is alone. */
static void test_threads(const mote_model *m, const drafter_case *c) {
    enum { THREADS = 4 };
    static const int mtp[THREADS] = {MOTE_MTP_AUTO, 3, MOST, MOTE_MTP_OFF};
    mote_runner *r = NULL;
    mote_session *s[THREADS];
    mote_session_options o;
    pthread_t thread[THREADS];
    size_t n, k;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.context = CONTEXT + 100;
    o.kv = c->kv;
    EXPECT(MOTE_OK, mote_runner_open(m, &o, &r, &failure));
    for (int i = 0; i < THREADS; i++) {
        s[i] = drafter_session(m, c, mtp[i], r);
        EXPECT(MOTE_OK, mote_feed(s[i], line, (size_t)(50 + 31 * i), &failure));
    }
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, drafter_thread, s[i]), "no thread");
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        mote_session *alone = drafter_session(m, c, MOTE_MTP_OFF, NULL);
        EXPECT(MOTE_OK, mote_feed(alone, line, (size_t)(50 + 31 * i), &failure));
        (void)drafter_thread(alone);
        const int32_t *want = mote_tokens(alone, &n), *got = mote_tokens(s[i], &k);
        CHECK(n == k && !memcmp(got, want, n * sizeof *got) && same_logits(s[i], mote_logits(alone), m->c.vocab), "%s: session %d in company: another answer", c->name, i);
        if (mtp[i] != MOTE_MTP_OFF) test_same(s[i], c, "an answer in company");
        mote_session_close(alone), mote_session_close(s[i]);
    }
    mote_runner_close(r);
}

/* What a GPU has no kernels for. */
static void test_refused(void) {
    const drafter_case c = {"both ways", cases[0].target, temp_dir, 0, 0, 0};
    mote_options o;
    mote_model *m = NULL;
    if (!temp_fixture("drafter") || !temp_replace("config.json", "\"block_size\": 10", "\"block_size\": 10, \"is_causal\": false")) return;
    mote_close(drafter_model(&c, "cpu"));
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.device = "cuda";
    o.parts = MOTE_WEIGHTS_ONLY;
    o.drafter = temp_dir;
    EXPECT(MOTE_EUNSUPPORTED, mote_open(c.target, &o, &m, &failure));
    CHECK(strstr(failure.message, "a GPU where rows with a window see those after them"), "%s", failure.message);
}

int main(int argc, char **argv) {
    const mote_sampling greedy = {0}, warm = {.temperature = 1, .top_k = 20, .seed = 11}, by_host = {.temperature = 3, .seed = 2};
    test_main_begin("gpu_drafter", argc, argv);
    if (!temp_open()) return 2;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const drafter_case *c = &cases[i];
        if (test_brief && !c->brief) continue;
        mote_model *m = drafter_model(c, "cuda");
        test_drafts(m, c);
        test_state(m, c);
        if (!test_brief) test_answer(m, c, &greedy, 0);
        test_answer(m, c, &warm, 3);
        test_answer(m, c, &by_host, 5);
        if (!test_brief) test_answer(m, c, &greedy, MOST);
        test_threads(m, c);
        mote_close(m);
    }
    test_refused();
    temp_close();
    return test_main_end();
}
