/* Tests of sliding windows by the API alone, on any device: a session whose layers with a window keep few rows beside one that keeps those of
   all tokens, since its chunk is as long as its context. The same calls give both the same tokens and the same bits, also after drafts, a
   checkpoint, a cancelled prompt, a save, and beside others in a pass. tests/session/test_rings.c looks inside. Usage: test_sliding [--device NAME] */

#include "api.h"
#include "session/pair.h"

enum { CONTEXT = 700, FEED_MOST = 300 };

static int is_gpu;

/* A checkpoint's folder, or a synthetic model; NULL: the device has no kernels for it. */
static mote_model *sliding_model(const char *name) {
    const mote_options o = {.device = test_device, .parts = MOTE_WEIGHTS_ONLY};
    mote_model *m = NULL;
    const int code = strchr(name, '/') ? mote_open(name, &o, &m, &failure) : mote_open_synthetic(name, &o, &m, &failure);
    if (code == MOTE_EUNSUPPORTED) test_skip(failure.message);
    else CHECK(!code && mote_model_info(m)->window > 0, "%s: %s", name, code ? failure.message : "it has no window");
    return m;
}

/* ---- Histories ------------------------------------------------------------------------------------------------------------ */

/* shared: on a runner whose chunk is as short as it may be; alone: with a chunk of its context. */
typedef struct history {
    const mote_model *m;
    mote_runner *few;
    pair p;
    const char *name;
    int kv;
} history;

static int stop_soon(void *user) {
    int *polls = (int *)user;
    return *polls > 0 && !--*polls;
}

static void compare_history(const history *h, const char *after) {
    size_t n, k;
    const int32_t *a = mote_tokens(h->p.shared, &n), *b = mote_tokens(h->p.alone, &k);
    CHECK(n == k && !memcmp(a, b, n * sizeof *a), "%s, after %s: other tokens", h->name, after);
    CHECK(!n || same_logits(h->p.shared, mote_logits(h->p.alone), mote_model_info(h->m)->vocab_size), "%s, after %s: other logits after %zu tokens",
          h->name, after, n);
}

static void reset_history(history *h) {
    EXPECT(MOTE_OK, mote_reset(h->p.shared, &failure));
    EXPECT(MOTE_OK, mote_reset(h->p.alone, &failure));
}

/* n tokens; a cancel comes after so many polls, 0: never. It drops a chunk some of whose layers have been computed; the session that keeps all
   is given what is left. So few tokens that a GPU would not read them as a prompt are others then: both begin anew. */
static void feed_history(history *h, int n, int polls) {
    int32_t ids[FEED_MOST];
    const int before = count_of(h->p.shared);
    for (int i = 0; i < n; i++) ids[i] = below(mote_model_info(h->m)->vocab_size);
    h->p.polls[0] = polls;
    const int code = mote_feed(h->p.shared, ids, (size_t)n, &failure), done = count_of(h->p.shared) - before;
    CHECK(code == (done < n ? MOTE_ECANCELLED : MOTE_OK), "%s: feeding %d tokens, of which %d are read: %d", h->name, n, done, code);
    h->p.polls[0] = 0;
    if (done && done < n && done < mote_model_info(h->m)->prefill_from) reset_history(h);
    else EXPECT(MOTE_OK, mote_feed(h->p.alone, ids, (size_t)done, &failure));
}

static void answer_history(history *h, int n) {
    const mote_sampling greedy = {0};
    mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = n, .raw = 1, .verify = below(2)};
    EXPECT(MOTE_OK, mote_generate(h->p.shared, &g, NULL, &failure));
    g.verify = 0;
    EXPECT(MOTE_OK, mote_generate(h->p.alone, &g, NULL, &failure));
}

/* The session with few rows goes on in another one: that was saved, or a clone. */
static void replace_history(history *h, int clone) {
    size_t size;
    char *bytes = session_bytes(h->p.shared, &size);
    mote_session *to = NULL;
    if (clone) {
        EXPECT(MOTE_OK, mote_clone(h->p.shared, &to, &failure));
    } else {
        to = session_of(h->m, .context = CONTEXT - below(2) * 90, .runner = h->few, .callbacks = {.cancel = stop_soon, .user = &h->p.polls[0]});
        if (count_of(h->p.shared) > mote_context(to)) EXPECT(MOTE_ECONTEXT, mote_load(to, bytes, size, &failure));
        else EXPECT(MOTE_OK, mote_load(to, bytes, size, &failure));
    }
    if (count_of(to) == count_of(h->p.shared)) {
        CHECK(session_is(to, bytes, size), "%s: %s of other bytes", h->name, clone ? "a clone" : "a loaded session");
        mote_session *was = h->p.shared;
        h->p.shared = to;
        to = was;
    }
    mote_session_close(to);
    free(bytes);
}

/* Back to the checkpoint, or, where the tokens before it are others now, to the beginning. */
static void rewind_history(history *h) {
    if (!h->p.shared_before) return;
    const int code = mote_rewind(h->p.alone, h->p.alone_before, &failure);
    EXPECT(code, mote_rewind(h->p.shared, h->p.shared_before, &failure));
    if (code) reset_history(h);
}

static const char *go_on(history *h) {
    const int context = mote_context(h->p.shared), left = context - count_of(h->p.shared), what = below(20);
    if (left < 24) return reset_history(h), "a reset";
    const int n = 1 + below(below(2) ? 30 : FEED_MOST);
    if (what < 8 || !count_of(h->p.shared)) return feed_history(h, n < left - 12 ? n : left - 12, 0), "feeding";
    if (what < 10) return feed_history(h, FEED_MOST < left - 12 ? FEED_MOST : left - 12, 2 + below(8)), "a cancelled prompt";
    if (what < 14) return answer_history(h, 1 + below(10)), "an answer";
    if (what < 15) return remember_pair(&h->p), "a checkpoint";
    if (what < 17) return rewind_history(h), "going back";
    return replace_history(h, what == 19), what == 19 ? "a clone" : "loading";
}

/* Sessions of one runner, whose contexts are longer than what windows need, as long, or shorter: in one pass each has its own bits. */
static void test_passes(const mote_model *m, mote_runner *few, const char *name, int kv) {
    enum { SESSIONS = 6, STEPS = 6 };
    static const int contexts[SESSIONS] = {CONTEXT, 150, 256, 257, 400, CONTEXT}, counts[SESSIONS] = {600, 100, 240, 250, 390, 30};
    mote_turn turn[SESSIONS];
    mote_session *whole[SESSIONS];
    memset(turn, 0, sizeof turn);
    for (int i = 0; i < SESSIONS; i++) {
        int32_t ids[CONTEXT];
        for (int k = 0; k < counts[i]; k++) ids[k] = below(mote_model_info(m)->vocab_size);
        turn[i].session = session_of(m, .context = contexts[i], .runner = few);
        whole[i] = session_of(m, .context = contexts[i], .chunk = CONTEXT, .threads = 1, .kv = kv);
        EXPECT(MOTE_OK, mote_feed(turn[i].session, ids, (size_t)counts[i], &failure));
        EXPECT(MOTE_OK, mote_feed(whole[i], ids, (size_t)counts[i], &failure));
    }
    for (int k = 0; k < STEPS; k++) {
        EXPECT(MOTE_OK, mote_step_many(turn, SESSIONS, &failure));
        for (int i = 0; i < SESSIONS; i++) {
            int32_t id = -1;
            EXPECT(MOTE_OK, mote_step(whole[i], NULL, &id, &failure));
            CHECK(id == turn[i].id && same_logits(turn[i].session, mote_logits(whole[i]), mote_model_info(m)->vocab_size),
                  "%s: session %d of the pass, step %d", name, i, k);
        }
    }
    for (int i = 0; i < SESSIONS; i++) mote_session_close(turn[i].session), mote_session_close(whole[i]);
}

/* A saved session whose keys and values are no numbers. */
static char *bad_bytes(const mote_model *m, const mote_session *s, size_t *size) {
    enum { CHECKSUM = 16, CHECKED = 24, HEADER = 48 };      /* before tokens, a hidden row and logits */
    char *bytes = session_bytes(s, size);
    const size_t from = HEADER + sizeof(float) * (size_t)(count_of(s) + mote_model_info(m)->hidden_size + mote_model_info(m)->vocab_size);
    uint64_t sum = 0xcbf29ce484222325u;
    memset(bytes + from, 0xff, *size - from);
    for (size_t i = CHECKED; i < *size; i++) sum = (sum ^ (uint8_t)bytes[i]) * 0x100000001b3u;
    memcpy(bytes + CHECKSUM, &sum, sizeof sum);
    return bytes;
}

/* What windows hold does not depend on what lay in the place of rows before them, were they no numbers: a GPU reads these, too. */
static void test_bad_before(const mote_model *m, mote_runner *few, const char *name) {
    const int vocab = mote_model_info(m)->vocab_size;
    mote_session *s[2];
    char *bytes[2];
    size_t size[2];
    int32_t ids[505];
    for (int i = 0; i < 505; i++) ids[i] = below(vocab);
    for (int i = 0; i < 2; i++) {
        s[i] = session_of(m, .context = CONTEXT, .runner = few);
        EXPECT(MOTE_OK, mote_feed(s[i], ids, i ? 505 : 500, &failure));
        bytes[i] = i ? session_bytes(s[i], &size[i]) : bad_bytes(m, s[i], &size[i]);
    }
    EXPECT(MOTE_OK, mote_load(s[0], bytes[0], size[0], &failure));
    EXPECT(MOTE_OK, mote_load(s[0], bytes[1], size[1], &failure));
    for (int i = 0; i < 2; i++) EXPECT(MOTE_OK, mote_feed(s[i], ids, 2, &failure));
    CHECK(same_logits(s[0], mote_logits(s[1]), vocab), "%s: other logits after what was no number", name);
    for (int i = 0; i < 2; i++) mote_session_close(s[i]), free(bytes[i]);
}

/* n tokens and a step, of both. */
static void go_alike(const mote_model *m, const char *name, const pair *p, int n) {
    mote_session *both[] = {p->shared, p->alone};
    int32_t ids[1200], id[2];
    for (int i = 0; i < n; i++) ids[i] = below(mote_model_info(m)->vocab_size);
    for (int i = 0; i < 2; i++) {
        if (n) EXPECT(MOTE_OK, mote_feed(both[i], ids, (size_t)n, &failure));
        EXPECT(MOTE_OK, mote_step(both[i], NULL, &id[i], &failure));
    }
    CHECK(id[0] == id[1] && same_logits(both[0], mote_logits(both[1]), mote_model_info(m)->vocab_size), "%s: other logits after %d tokens", name,
          count_of(p->alone));
}

/* Chunks that are longer than what a GPU's ring takes at once beside shorter ones. One is cancelled when some layers have computed it. */
static void test_long_chunk(const mote_model *m, const char *name, int kv) {
    enum { LONG = 1500 };
    pair p = {.shared = session_of(m, .context = LONG, .chunk = is_gpu ? 64 : 8, .threads = 1, .kv = kv)};
    p.alone = session_of(m, .context = LONG, .chunk = LONG, .threads = 1, .kv = kv, .callbacks = {.cancel = stop_soon, .user = &p.polls[1]});
    int32_t ids[1200] = {0};
    go_alike(m, name, &p, 200);
    p.polls[1] = mote_model_info(m)->prefill_from ? 3 : 1;    /* else it comes between blocks, before the first one */
    EXPECT(MOTE_ECANCELLED, mote_feed(p.alone, ids, 1200, &failure));
    CHECK(count_of(p.alone) == 201, "%s: %d tokens after a cancelled prompt", name, count_of(p.alone));
    p.polls[1] = 0;
    go_alike(m, name, &p, 0);
    go_alike(m, name, &p, 1180);
    go_alike(m, name, &p, 70);
    close_pair(&p);
}

static void test_sliding(const char *name, int kv, int steps) {
    history h = {.m = sliding_model(name), .name = name, .kv = kv};
    if (!h.m) return;
    h.few = runner_of(h.m, .context = CONTEXT, .chunk = is_gpu ? 64 : 8, .threads = 1, .kv = kv);
    h.p.shared = session_of(h.m, .context = CONTEXT, .runner = h.few, .callbacks = {.cancel = stop_soon, .user = &h.p.polls[0]});
    h.p.alone = session_of(h.m, .context = CONTEXT, .chunk = CONTEXT, .threads = 1, .kv = kv);
    random_state = 11;
    for (int i = 0; i < steps; i++) compare_history(&h, go_on(&h));
    close_pair(&h.p);
    test_passes(h.m, h.few, name, kv);
    test_bad_before(h.m, h.few, name);
    test_long_chunk(h.m, name, kv);
    mote_runner_close(h.few);
    mote_close((mote_model *)h.m);
}

/* Layers with a window take no more for a longer context, the others do. */
static void test_plan(const char *dir) {
    const mote_options on = {.device = test_device};
    mote_memory plan[2];
    mote_model *m = sliding_model(dir);
    if (!m) return;
    const mote_info *info = mote_model_info(m);
    for (int i = 0; i < 2; i++) {
        const mote_session_options o = {.context = i ? 131072 : 65536, .chunk = 256, .threads = 1};
        EXPECT(MOTE_OK, mote_plan(dir, &on, &o, &plan[i], &failure));
    }
    CHECK(plan[1].kv - plan[0].kv == info->kv_bytes_per_token * 65536, "%s: twice the context takes %llu bytes more", dir,
          (unsigned long long)(plan[1].kv - plan[0].kv));
    CHECK(plan[1].kv == info->kv_bytes_per_token * 131072 + info->window_bytes_per_token * 512, "%s: %llu bytes", dir, (unsigned long long)plan[1].kv);
    mote_close(m);
}

int main(int argc, char **argv) {
    static const struct { const char *name; int kv; } models[] = {
        {"tiny-oss:mxfp4", MOTE_KV_DEFAULT},                          {"tiny-oss:bf16", MOTE_KV_FP8},
        {"tiny-sliding:bf16", MOTE_KV_DEFAULT},                       {"tiny-sliding:fp8", MOTE_KV_FP8},
        {"tests/fixtures/families/gpt-oss-mxfp4", MOTE_KV_DEFAULT},   {"tests/fixtures/families/gemma4-dense", MOTE_KV_FP8},
        {"tests/fixtures/families/laguna", MOTE_KV_DEFAULT},          {"tests/fixtures/families/gemma4", MOTE_KV_DEFAULT}};
    test_main_begin("test_sliding", argc, argv);
    is_gpu = strcmp(test_device, "cpu") != 0;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) test_sliding(models[i].name, models[i].kv, test_brief ? 12 : 40);
    test_plan("tests/fixtures/families/gpt-oss-mxfp4");
    return test_main_end();
}
