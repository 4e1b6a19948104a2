/* Tests of block drafters (families/dflash.c, run/cpu/drafter.c): tests/fixtures/drafter beside tests/fixtures/families/qwen3.5-dense. Its drafts by the definition,
   by the CPU's code and by the reference; the state whatever a session does; answers, with drafts of which any number is right; what is refused. */

#include "inside.h"
#include "api.h"
#include "folders.h"

enum { DRAFTER_CONTEXT = 160, DRAFTER_LINE = 84, DRAFTER_MOST = MOTE_ROWS_MAX - 1 };

#define DRAFTER_TARGET "tests/fixtures/families/qwen3.5-dense"

static const int drafter_counts[] = {5, 40, 71, 75};        /* tokens before the blocks of logits.f32, as tools/make_drafter_fixture.py has them */
static int32_t drafter_line[DRAFTER_LINE];                  /* the target's prompt, and its greedy continuation */

static mote_model *drafter_target(const char *drafter) {
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open(DRAFTER_TARGET, &(mote_options){.size = sizeof(mote_options), .device = "cpu", .parts = MOTE_WEIGHTS_ONLY, .drafter = drafter}, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

static void drafter_read_line(void) {
    size_t prompt, greedy;
    char *a = file_bytes(DRAFTER_TARGET "/tokens.i32", &prompt), *b = file_bytes(DRAFTER_TARGET "/greedy.i32", &greedy);
    if (!CHECK(a && b && prompt + greedy == sizeof drafter_line, DRAFTER_TARGET ": %zu and %zu bytes of tokens", prompt, greedy)) exit(1);
    memcpy(drafter_line, a, prompt);
    memcpy((char *)drafter_line + prompt, b, greedy);
    free(a);
    free(b);
}

/* What a session's drafter makes of the timeline and the token after it: ids and logits [DRAFTER_MOST][vocab]. */
typedef struct block_drafts { int32_t ids[DRAFTER_MOST]; float *logits; } block_drafts;

static block_drafts drafter_drafts(mote_session *s, int32_t next) {
    float confidence[MOTE_ROWS_MAX];
    int made = DRAFTER_MOST;
    const size_t bytes = (size_t)DRAFTER_MOST * (size_t)s->m->c.vocab * sizeof(float);
    block_drafts d = {.logits = (float *)allocate(bytes)};
    const block b = timeline_block(s, &next, 1);
    EXPECT(MOTE_OK, slot_draft(&s->slot, REQUEST_BLOCK, &b, &made, d.ids, confidence, NULL, NULL, &failure));
    CHECK(made == DRAFTER_MOST, "%d drafts", made);
    memcpy(d.logits, s->slot.runner->s.draft_logits, bytes);
    for (int i = 0; i < made; i++) CHECK(d.ids[i] == best_of(d.logits + (size_t)i * (size_t)s->m->c.vocab, s->m->c.vocab), "draft %d is not the best", i);
    return d;
}

/* ---- Drafts ------------------------------------------------------------------------------------------------------------------ */

static void test_drafter_logits(const mote_model *m) {
    const size_t vocab = (size_t)m->c.vocab, drafts = (size_t)m->drafter->c.drafter.block - 1;
    size_t size;
    float *reference = (float *)(void *)file_bytes("tests/fixtures/drafter/logits.f32", &size);
    double *defined = (double *)allocate(drafts * vocab * sizeof *defined);
    float *as_float = (float *)allocate(drafts * vocab * sizeof *as_float);
    defined_drafter t;
    if (!CHECK(reference && size == COUNT(drafter_counts) * drafts * vocab * sizeof *reference, "logits.f32 of %zu bytes", size)) return;
    CHECK(drafter_define(&t, m, DRAFTER_LINE), "no memory");
    mote_session *s = session_of(m, .context = DRAFTER_CONTEXT, .threads = 2, .chunk = 16);
    for (int k = 0, at = 0; k < (int)COUNT(drafter_counts); k++) {
        const float *want = reference + (size_t)k * drafts * vocab;
        EXPECT(MOTE_OK, mote_feed(s, drafter_line + at, (size_t)(drafter_counts[k] - at), &failure));
        for (; at < drafter_counts[k]; at++) drafter_read_token(&t, drafter_line[at], defined);
        drafter_block(&t, drafter_line[at], defined);
        for (size_t i = 0; i < drafts * vocab; i++) as_float[i] = (float)defined[i];
        const block_drafts d = drafter_drafts(s, drafter_line[at]);
        CHECK(off(as_float, want, drafts * vocab) < 1e-5, "after %d tokens the definition is off by %g", at, off(as_float, want, drafts * vocab));
        CHECK(off(d.logits, want, DRAFTER_MOST * vocab) < 2e-4, "after %d tokens the CPU is off by %g", at, off(d.logits, want, DRAFTER_MOST * vocab));
        free(d.logits);
    }
    drafter_close(&t);
    mote_session_close(s);
    free(reference);
    free(defined);
    free(as_float);
}

/* The session drafts as one does that was fed its timeline at once. */
static void drafter_same(const mote_session *s, const char *after) {
    size_t n;
    const int32_t *ids = mote_tokens(s, &n);
    mote_session *whole = session_of(s->m, .context = DRAFTER_CONTEXT, .threads = 1);
    EXPECT(MOTE_OK, mote_feed(whole, ids, n, &failure));
    const block_drafts got = drafter_drafts((mote_session *)(uintptr_t)s, 3), want = drafter_drafts(whole, 3);
    CHECK(!memcmp(got.logits, want.logits, (size_t)DRAFTER_MOST * (size_t)s->m->c.vocab * sizeof(float)), "after %s: other drafts", after);
    free(got.logits);
    free(want.logits);
    mote_session_close(whole);
}

/* Whatever a session does, the drafter's state is that of its tokens. */
static void test_drafter_state(const mote_model *m) {
    mote_session *s = session_of(m, .context = DRAFTER_CONTEXT, .threads = 1, .chunk = 5), *clone = NULL;
    mote_session *loaded = session_of(m, .context = DRAFTER_CONTEXT - 20, .threads = 1), *none = session_of(m, .context = DRAFTER_CONTEXT, .mtp = MOTE_MTP_OFF);
    const mote_sampling greedy = {0}, warm = {.temperature = 2, .seed = 4};
    mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = 20, .raw = 1};
    size_t size;
    EXPECT(MOTE_OK, mote_feed(s, drafter_line, 43, &failure));
    drafter_same(s, "a prompt in chunks");
    mote_checkpoint *c = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    drafter_same(s, "an answer");
    EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
    drafter_same(s, "going back");
    g.sampling = &warm;
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    drafter_same(s, "another answer");
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    drafter_same(clone, "a clone");
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_load(loaded, bytes, size, &failure));
    drafter_same(loaded, "loading");
    CHECK(session_is(loaded, bytes, size), "a loaded session of other bytes");
    EXPECT(MOTE_OK, mote_load(none, bytes, size, &failure));
    free(bytes);
    bytes = session_bytes(none, &size);
    EXPECT(MOTE_EINVAL, mote_load(loaded, bytes, size, &failure));
    free(bytes);
    mote_checkpoint_free(c);
    mote_session_close(s);
    mote_session_close(clone);
    mote_session_close(loaded);
    mote_session_close(none);
}

/* Blocks of sessions that draft in one pass are those that each drafts alone; there are more rows than the runner computes at once. */
static void test_drafter_together(const mote_model *m) {
    enum { SESSIONS = 7 };
    mote_runner *r = NULL;
    mote_session *s[SESSIONS];
    pass_request q[SESSIONS];
    block b[SESSIONS];
    int32_t ids[SESSIONS][DRAFTER_MOST], next = 7;
    float confidence[SESSIONS][DRAFTER_MOST];
    int made[SESSIONS];
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = DRAFTER_CONTEXT, .threads = 2, .chunk = 32}, &r, &failure));
    for (int i = 0; i < SESSIONS; i++) {
        s[i] = session_of(m, .context = DRAFTER_CONTEXT, .runner = r);
        EXPECT(MOTE_OK, mote_feed(s[i], drafter_line + i, (size_t)(1 + 11 * i), &failure));
    }
    for (int i = 0; i < SESSIONS; i++) {
        b[i] = timeline_block(s[i], &next, 1);
        request_is(&q[i], REQUEST_BLOCK, &s[i]->slot, &b[i]);
        q[i].drafts = 1 + i % DRAFTER_MOST;
        q[i].ids = ids[i];
        q[i].count = &made[i];
        q[i].confidence = confidence[i];
    }
    meet(r, q, SESSIONS);
    for (int i = 0; i < SESSIONS; i++) {
        const block_drafts alone = drafter_drafts(s[i], next);
        CHECK(!q[i].code && made[i] == q[i].drafts && !memcmp(ids[i], alone.ids, (size_t)made[i] * sizeof *alone.ids), "session %d: other drafts", i);
        drafter_same(s[i], "drafting in company");
        free(alone.logits);
        mote_session_close(s[i]);
    }
    mote_runner_close(r);
}

/* What is planned for a folder with a drafter and without, and, with one, for a session of an opened model. */
static void test_drafter_plan(const mote_model *m) {
    mote_options o = {.size = sizeof o, .device = "cpu", .parts = MOTE_WEIGHTS_ONLY};
    const mote_session_options how = {.size = sizeof how, .context = DRAFTER_CONTEXT, .threads = 1}, off = {.size = sizeof off, .context = DRAFTER_CONTEXT, .threads = 1, .mtp = MOTE_MTP_OFF};
    mote_memory plain, with, without, guess;
    mote_session *s = session_of(m, .context = DRAFTER_CONTEXT, .threads = 1);
    const size_t rows = 2 * DRAFTER_CONTEXT * 2 * 2 * 16 * sizeof(float);                /* layers, tokens, keys and values, heads, head_dim */
    EXPECT(MOTE_OK, mote_plan(DRAFTER_TARGET, &o, &how, &plain, &failure));
    o.drafter = "tests/fixtures/drafter";
    EXPECT(MOTE_OK, mote_plan(DRAFTER_TARGET, &o, &how, &with, &failure));
    EXPECT(MOTE_OK, mote_plan(DRAFTER_TARGET, &o, &off, &without, &failure));
    const mote_info *info = mote_model_info(m);
    uint64_t parameters = 0, bytes = 0;
    for (int i = 0; i < info->module_count; i++) parameters += info->modules[i].parameters, bytes += info->modules[i].bytes;
    CHECK(parameters == info->parameters && bytes == info->weight_bytes && !strcmp(info->modules[info->module_count - 1].name, "drafter"), "modules do not sum up");
    CHECK(with.weights == m->arena_size + m->drafter->arena_size && plain.weights == m->arena_size, "weights of %zu and %zu bytes", (size_t)with.weights, (size_t)plain.weights);
    CHECK(with.kv >= plain.kv + rows && without.kv < plain.kv, "keys and values of %zu, %zu and %zu bytes", (size_t)with.kv, (size_t)plain.kv, (size_t)without.kv);
    CHECK(with.runner > plain.runner && with.total >= with.weights + with.kv + with.scratch, "a runner of %zu bytes", (size_t)with.runner);
    CHECK(s->slot.floats * sizeof(float) <= with.kv + with.state + with.scratch && s->slot.floats * sizeof(float) > with.kv + with.state, "a slot of %zu bytes", s->slot.floats * sizeof(float));
    mote_session_close(s);
    temp_empty();
    if (!temp_copy("tests/fixtures/drafter", "config.json")) return;
    o.drafter = temp_dir;
    EXPECT(MOTE_OK, mote_plan(DRAFTER_TARGET, &o, &how, &guess, &failure));
    CHECK(guess.estimated && !with.estimated && guess.kv == with.kv && guess.weights > plain.weights, "without weights %zu bytes of weights", (size_t)guess.weights);
    o.device = NULL;
    o.devices = "cpu,cpu";
    EXPECT(MOTE_EUNSUPPORTED, mote_plan(DRAFTER_TARGET, &o, &how, &guess, &failure));
}

/* ---- Answers ----------------------------------------------------------------------------------------------------------------- */

/* The answer that is known, and how many of a block's drafts are made right; after them comes a wrong one. */
static struct { const int32_t *ids; int from, count, right, blocks; } drafter_known;

static void drafter_told(mote_runner *r, pass_request *const *of, int n) {
    cpu_pass(r, of, n);
    for (int i = 0; i < n && of[0]->kind == REQUEST_BLOCK; i++) {
        const int at = of[i]->b->rows->index - drafter_known.from + 1;
        drafter_known.blocks++;
        for (int k = 0; k < *of[i]->count && k <= drafter_known.right && at + k < drafter_known.count; k++)
            of[i]->ids[k] = k < drafter_known.right ? drafter_known.ids[at + k] : (drafter_known.ids[at + k] + 1) % r->m->c.vocab;
    }
}

enum { DRAFTER_ANSWER = 40 };

/* mtp drafts a pass, of which so many are right: the answer and what follows it are those without any. */
static void test_drafter_answer(const mote_model *m, const mote_sampling *p, int mtp, int right) {
    static executor told;
    mote_session *plain = session_of(m, .context = DRAFTER_CONTEXT, .threads = 1, .mtp = MOTE_MTP_OFF), *s = session_of(m, .context = DRAFTER_CONTEXT, .threads = 1, .mtp = mtp);
    mote_generation g = {.size = sizeof g, .sampling = p, .max_tokens = DRAFTER_ANSWER, .raw = 1};
    mote_drafter_use use;
    size_t n, k;
    told = cpu_executor;
    told.pass = drafter_told;
    s->slot.runner->backend = &told;
    EXPECT(MOTE_OK, mote_feed(plain, drafter_line, 50, &failure));
    EXPECT(MOTE_OK, mote_feed(s, drafter_line, 50, &failure));
    EXPECT(MOTE_OK, mote_generate(plain, &g, NULL, &failure));
    const int32_t *want = mote_tokens(plain, &n);
    drafter_known.ids = want + 50;
    drafter_known.from = 50;
    drafter_known.count = (int)n - 50;
    drafter_known.right = right;
    drafter_known.blocks = 0;
    g.verify = 1;
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    const int32_t *got = mote_tokens(s, &k);
    CHECK(n == k && !memcmp(got, want, n * sizeof *got), "%d drafts, %d right: other tokens", mtp, right);
    CHECK(same_logits(s, mote_logits(plain), m->c.vocab), "%d drafts, %d right: other logits", mtp, right);
    EXPECT(MOTE_OK, mote_drafter_of(s, &use, &failure));
    CHECK(use.rows == m->drafter->c.drafter.block && drafter_known.blocks > 0 && use.passes > 0, "%d blocks, %d passes", drafter_known.blocks, (int)use.passes);
    for (int i = 0; i < DRAFTER_MOST; i++)
        CHECK(use.accepted[i] == (i < right ? use.drafted[i] : 0) && (i > right || i >= mtp || use.drafted[i]), "%d drafts, %d right: %d of %d accepted at place %d", mtp,
              right, (int)use.accepted[i], (int)use.drafted[i], i);
    drafter_same(s, "a told answer");
    mote_session_close(plain);
    mote_session_close(s);
}

static void test_drafter_answers(const mote_model *m) {
    static const mote_sampling kinds[] = {{0}, {.temperature = 1, .seed = 11}, {.temperature = 3, .top_k = 30, .seed = 2}};
    for (int k = 0; k < (int)COUNT(kinds); k++)
        for (int right = 0; right <= DRAFTER_MOST; right += 1 + (right == 3))
            test_drafter_answer(m, &kinds[k], right < 4 ? 4 : DRAFTER_MOST, right);
}

static void *drafter_thread(void *session) {
    const mote_sampling warm = {.temperature = 1, .seed = 5};
    const mote_generation g = {.size = sizeof g, .sampling = &warm, .max_tokens = DRAFTER_ANSWER, .raw = 1};
    mote_error why;
    CHECK(!mote_generate((mote_session *)session, &g, NULL, &why), "an answer beside others fails");
    return NULL;
}

/* Answers at the same time, by sessions that share a runner, with other numbers of drafts and without: each is what it is alone. */
static void test_drafter_threads(const mote_model *m) {
    enum { THREADS = 4 };
    static const int mtp[THREADS] = {MOTE_MTP_AUTO, 3, DRAFTER_MOST, MOTE_MTP_OFF};
    mote_runner *r = NULL;
    mote_session *s[THREADS];
    pthread_t thread[THREADS];
    size_t n, k;
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = DRAFTER_CONTEXT, .threads = 2}, &r, &failure));
    for (int i = 0; i < THREADS; i++) {
        s[i] = session_of(m, .context = DRAFTER_CONTEXT, .runner = r, .mtp = mtp[i]);
        EXPECT(MOTE_OK, mote_feed(s[i], drafter_line, (size_t)(30 + 9 * i), &failure));
    }
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, drafter_thread, s[i]), "no thread");
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        mote_session *alone = session_of(m, .context = DRAFTER_CONTEXT, .threads = 1, .mtp = MOTE_MTP_OFF);
        EXPECT(MOTE_OK, mote_feed(alone, drafter_line, (size_t)(30 + 9 * i), &failure));
        (void)drafter_thread(alone);
        const int32_t *want = mote_tokens(alone, &n), *got = mote_tokens(s[i], &k);
        CHECK(n == k && !memcmp(got, want, n * sizeof *got) && same_logits(s[i], mote_logits(alone), m->c.vocab), "session %d in company: another answer", i);
        if (mtp[i] != MOTE_MTP_OFF) drafter_same(s[i], "an answer in company");
        mote_session_close(alone);
        mote_session_close(s[i]);
    }
    mote_runner_close(r);
}

/* With as many drafts as pay: a drafter that is always right is what is asked, one that never is, is left alone. */
static void test_drafter_auto(const mote_model *m) {
    mote_session *s = session_of(m, .context = DRAFTER_CONTEXT, .threads = 1);
    mote_runner *r = s->slot.runner;
    EXPECT(MOTE_OK, mote_feed(s, drafter_line, 20, &failure));
    for (int rows = 1; rows <= MOTE_ROWS_MAX; rows++)
        for (int i = 0; i < COST_TRUSTED; i++) cost_learn(&r->costs.alone, rows, 20, 1 + 0.05 * (rows - 1));
    for (int i = 0; i < COST_TRUSTED; i++) cost_learn(&r->costs.drafting, 1, 20, 0.5), cost_learn(&r->costs.blocks, 1, 20, 0.3);
    for (int right = DRAFTER_MOST; right >= 0; right -= DRAFTER_MOST) {
        const drafts d = drafts_by_place(s, MOTE_DRAFT_BLOCK, DRAFTER_MOST), none = drafts_by_place(s, MOTE_DRAFT_MTP, 0);
        for (int i = 0; i < 100; i++) acceptance_learn(&s->decoder->spec, &d, DRAFTER_MOST, right);
        const prices p = prices_now(s);
        CHECK(block_wins(s, &p, &d, &none) == (right > 0), "drafts of which %d are right", right);
    }
    mote_session_close(s);
}

/* Among others a block need not bring a twentieth of all their tokens, which is more than one session can. */
static void test_drafter_among(const mote_model *m) {
    mote_session *s = session_of(m, .context = DRAFTER_CONTEXT, .threads = 1);
    const drafts d = drafts_by_place(s, MOTE_DRAFT_BLOCK, DRAFTER_MOST), none = drafts_by_place(s, MOTE_DRAFT_MTP, 0);
    prices p = {.block = 0.002, .others = 60};
    for (int k = 0; k < MOTE_ROWS_MAX; k++) p.pass[k] = 1 + 0.002 * k;
    for (int i = 0; i < 100; i++) acceptance_learn(&s->decoder->spec, &d, DRAFTER_MOST, 2);
    CHECK(block_wins(s, &p, &d, &none), "three tokens in place of one, at a hundredth of the pass, lose beside 60 tokens of others");
    p.block = 0.1;
    CHECK(!block_wins(s, &p, &d, &none), "three tokens in place of one, at a tenth of the pass, win beside 60 tokens of others");
    mote_runner *r = s->slot.runner;
    for (int i = 0; i < COST_TRUSTED; i++) cost_learn(&r->costs.blocks, 1, 0, 0.5), cost_learn(&r->costs.blocks, 4, 0, 0.8);
    r->costs.sessions = 8;
    r->costs.block_drafters = 1;
    const double alone = prices_now(s).block;
    r->costs.drafters = 4;
    CHECK(alone > 0.45 && prices_now(s).block == alone, "a block of one session takes %g s, and %g beside drafts of MTP layers", alone, prices_now(s).block);
    mote_session_close(s);
}

/* ---- What is refused --------------------------------------------------------------------------------------------------------- */

static void drafter_open_says(const char *title, const char *target, const char *device, int code, const char *says) {
    const mote_options o = {.size = sizeof o, .device = device, .parts = MOTE_WEIGHTS_ONLY, .drafter = temp_dir};
    mote_model *m = NULL;
    EXPECT(code, mote_open(target, &o, &m, &failure));
    CHECK(strstr(failure.message, says) && !m, "%s: \"%s\" says nothing of \"%s\"", title, failure.message, says);
    mote_close(m);
}

static void test_drafter_configs(void) {
    static const struct { const char *find, *replace; int code; const char *says; } cases[] = {
        {"\"block_size\": 10", "\"block_size\": 1", MOTE_EFORMAT, "block_size must be a whole number from 2"},
        {"\"block_size\": 10", "\"block\": 10", MOTE_EFORMAT, "block_size is missing"},
        {"\"block_size\": 10", "\"block_size\": 65", MOTE_EFORMAT, "block_size must be"},
        {"\"mask_token_id\": 56", "\"mask_token_id\": 57", MOTE_EFORMAT, "dflash_config.mask_token_id must be a whole number from 0 to 56"},
        {"\"mask_token_id\": 56", "\"mask_token_id\": null", MOTE_EFORMAT, "mask_token_id"},
        {"\"num_target_layers\": 3", "\"num_target_layers\": 4", MOTE_EINVAL, "num_target_layers is 4, the model has 3"},
        {"\"vocab_size\": 57", "\"vocab_size\": 58", MOTE_EINVAL, "vocab_size is 58, the model has 57"},
        {"\"target_layer_ids\"", "\"layer_ids\"", MOTE_EFORMAT, "target_layer_ids must list"},
        {"\"block_size\": 10", "\"block_size\": 10, \"target_layer_ids\": [0, 1]", MOTE_EFORMAT, "target_layer_ids names other layers"},
        {"\"block_size\": 10", "\"block_size\": 10, \"aux_hidden_state_layer_ids\": [0, 2]", MOTE_EFORMAT, "aux_hidden_state_layer_ids[0] must be a layer of the target, 1 to 3"},
        {"\"block_size\": 10", "\"block_size\": 10, \"aux_hidden_state_layer_ids\": [1]", MOTE_EFORMAT, "aux_hidden_state_layer_ids names other layers"},
        {"\"block_size\": 10", "\"block_size\": 10, \"causal\": 3", MOTE_EFORMAT, "causal must be true or false"},
        {"\"block_size\": 10", "\"block_size\": 10, \"causal\": true, \"is_causal\": false", MOTE_EFORMAT, "is_causal contradicts"},
        {"\"use_sliding_window\": true", "\"use_sliding_window\": false", MOTE_EUNSUPPORTED, "use_sliding_window is false, but layer_types[0] is sliding_attention"},
        {"   0,\n", "   3,\n", MOTE_EFORMAT, "target_layer_ids[0] must be a layer of the target, 0 to 2"},
        {"   0,\n", "   0, 1,\n", MOTE_EFORMAT, "fc.weight"},
        {"\"mask_token_id\"", "\"attention_sink_bias\": true, \"mask_token_id\"", MOTE_EUNSUPPORTED, "dflash_config.attention_sink_bias"},
        {"\"block_size\": 10", "\"block_size\": 10, \"draft_vocab_size\": 40", MOTE_EUNSUPPORTED, "draft_vocab_size is 40"},
        {"\"block_size\": 10", "\"block_size\": 10, \"projector_type\": \"dspark\"", MOTE_EUNSUPPORTED, "projector_type is dspark"},
        {"\"default\"", "\"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 64", MOTE_EUNSUPPORTED, "a scaled rope is not supported in a drafter"},
        {"\"sliding_window\": 24", "\"sliding_window\": null", MOTE_EFORMAT, "sliding_window"},
        {"\"num_attention_heads\": 4", "\"num_attention_heads\": 2", MOTE_EUNSUPPORTED, "gated queries"},
        {"\"intermediate_size\": 40", "\"intermediate_size\": 41", MOTE_EFORMAT, "mlp.gate_proj.weight"},
        {"\"dflash_config\": {", "\"dflash_config\": 3, \"is\": {", MOTE_EFORMAT, "dflash_config is not an object"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!temp_fixture("drafter")) return;
        CHECK(temp_replace("config.json", cases[i].find, cases[i].replace), "case %zu: no %s", i, cases[i].find);
        drafter_open_says(cases[i].find, DRAFTER_TARGET, "cpu", cases[i].code, cases[i].says);
    }
}

/* Configs that say the same in other places. */
static void test_drafter_places(void) {
    static const struct { const char *find, *replace; } cases[] = {
        {"\"block_size\": 10,", ""}, {"\"num_target_layers\": 3,", ""}, {"\"target_layer_ids\"", "\"block_size\": 10, \"num_target_layers\": 3, \"target_layer_ids\""}};
    if (!temp_fixture("drafter")) return;
    for (size_t i = 0; i < COUNT(cases); i++) CHECK(temp_replace("config.json", cases[i].find, cases[i].replace), "no %s", cases[i].find);
    mote_close(drafter_target(temp_dir));
    CHECK(temp_replace("config.json", "\"target_layer_ids\": [\n   0,\n   2\n  ]", "\"causal\": null") &&
          temp_replace("config.json", "\"model_type\"", "\"aux_hidden_state_layer_ids\": [1, 3], \"model_type\""), "other layers");
    mote_model *m = drafter_target(temp_dir);
    CHECK(m->drafter->c.drafter.tap[0] == 0 && m->drafter->c.drafter.tap[1] == 2, "taps after layers %d and %d", m->drafter->c.drafter.tap[0], m->drafter->c.drafter.tap[1]);
    mote_close(m);
    CHECK(temp_replace("config.json", "\"causal\": null", "\"causal\": true") && temp_replace("config.json", "\"model_type\"", "\"causal\": true, \"model_type\""), "causal");
    m = drafter_target(temp_dir);
    CHECK(m->drafter->c.drafter.causal[0] && m->drafter->c.drafter.causal[1], "causal is not read");
    mote_close(m);
}

/* Tensors that drafters of other kinds have, or that are no numbers of this one. */
static void test_drafter_tensors(void) {
    static const struct { const char *name; int code; const char *says; } cases[] = {
        {"markov_head.w1.weight", MOTE_EUNSUPPORTED, "DSpark"}, {"confidence_head.weight", MOTE_EUNSUPPORTED, "DSpark"},
        {"layers.0.attn_conv.base_kernel", MOTE_EUNSUPPORTED, "DFlash2"}, {"embed_tokens.weight", MOTE_EUNSUPPORTED, "an embedding of its own"},
        {"lm_head.weight", MOTE_EUNSUPPORTED, "a head of its own"}, {"layers.0.other.weight", MOTE_EFORMAT, "layers.0.other.weight"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!temp_fixture("drafter")) return;
        parts *p = parts_read("model.safetensors");
        part *more = &p->list[p->n++];
        snprintf(more->name, sizeof more->name, "%s", cases[i].name);
        part_set(more, "BF16", "4,8");
        parts_write(p, "model.safetensors");
        parts_free(p);
        drafter_open_says(cases[i].name, DRAFTER_TARGET, "cpu", cases[i].code, cases[i].says);
    }
}

/* Names that all begin with "model.". */
static void test_drafter_prefix(void) {
    if (!temp_fixture("drafter")) return;
    parts *p = parts_read("model.safetensors");
    for (int i = 0; i < p->n; i++) {
        char name[sizeof p->list[i].name];
        snprintf(name, sizeof name, "model.%.150s", p->list[i].name);
        memcpy(p->list[i].name, name, sizeof name);
    }
    parts_write(p, "model.safetensors");
    parts_free(p);
    mote_model *m = drafter_target(temp_dir);
    test_drafter_logits(m);
    mote_close(m);
}

static void test_drafter_targets(void) {
    mote_model *m = NULL;
    mote_options o = {.size = sizeof o, .drafter = temp_dir, .device = "cpu"};
    if (!temp_fixture("drafter")) return;
    drafter_open_says("another target", "tests/fixtures/families/qwen3", "cpu", MOTE_EINVAL, "the drafter is another model's");
    drafter_open_says("scaled embeddings", "tests/fixtures/families/gemma4", "cpu", MOTE_EUNSUPPORTED, "scaled embeddings");
    if (temp_fixture("families/qwen3.5-dense")) drafter_open_says("a model", DRAFTER_TARGET, "cpu", MOTE_EUNSUPPORTED, "no block drafter");
    EXPECT(MOTE_EINVAL, mote_open_synthetic("tiny", &o, &m, &failure));
    CHECK(strstr(failure.message, "a synthetic model's drafter is \"synthetic\""), "%s", failure.message);
    o.device = NULL;
    o.devices = "cpu,cpu";
    EXPECT(MOTE_EUNSUPPORTED, mote_open(DRAFTER_TARGET, &o, &m, &failure));
    o.devices = NULL;
    o.device = "cpu";
    o.drafter = "tests/fixtures/no-such-folder";
    EXPECT(MOTE_EIO, mote_open(DRAFTER_TARGET, &o, &m, &failure));
    CHECK(strstr(failure.message, "no-such-folder"), "%s", failure.message);
}

int main(int argc, char **argv) {
    test_main_begin("test_drafter", argc, argv);
    if (!temp_open()) return test_main_end();
    drafter_read_line();
    mote_model *m = drafter_target("tests/fixtures/drafter");
    test_drafter_logits(m);
    test_drafter_state(m);
    test_drafter_together(m);
    test_drafter_answers(m);
    test_drafter_threads(m);
    test_drafter_auto(m);
    test_drafter_among(m);
    test_drafter_plan(m);
    mote_close(m);
    test_drafter_configs();
    test_drafter_places();
    test_drafter_tensors();
    test_drafter_prefix();
    test_drafter_targets();
    temp_close();
    return test_main_end();
}
