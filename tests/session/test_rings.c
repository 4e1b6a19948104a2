// Tests of rings: a layer with a window holds fewer rows than the context, and nothing that a session is asked shows it. Whatever is done to a
// session with rings is done to one that holds all rows, since its chunk is as long as its context; logits, and the rows that the next token
// sees, must be the same bits. Models are fixtures whose attention layers are given a window of any size.

#include "inside.h"
#include "api.h"
#include "files.h"

enum { WHOLE_CHUNK = 1536, RING_CONTEXT = 1400, RING_KEPT = 5, FEED_MOST = 600 };

/* ---- Models and sessions ------------------------------------------------------------------------------------------------ */

static void ring_windows(mote_model *m, int every, int window) {
    for (int i = 0; i < m->c.layers + m->has_mtp; i++) {
        layer *l = i < m->c.layers ? &m->layers[i] : &m->mtp.layer;
        if (l->mixer.kind == LAYER_ATTENTION) l->mixer.w.attention.shape.window = i % every == 0 || i == m->c.layers ? window : 0;
    }
    m->largest.attention.window = window;
}

/* A fixture with a window in every so many layers, and in the MTP layer; 0: as it is. */
static mote_model *ring_model(const char *dir, int every, int window) {
    mote_model *m = model_of(dir, MOTE_WEIGHTS_ONLY);
    if (every) ring_windows(m, every, window);
    return m;
}

/* What is done to one is done to the other. */
typedef struct twins {
    mote_session *ring, *whole;
    mote_checkpoint *ring_at[RING_KEPT], *whole_at[RING_KEPT];
    const char *name;
    char did[256];               /* lately */
} twins;

static void twins_did(twins *t, const char *what, int n) {
    const size_t used = strlen(t->did), half = sizeof t->did / 2;
    if (used > half) memmove(t->did, t->did + used - half, half + 1);
    snprintf(t->did + strlen(t->did), sizeof t->did - strlen(t->did), " %s %d", what, n);
}

/* The rows that the next token sees, and where there is no window those of all tokens, are the same. */
static int twins_same_rows(const twins *t) {
    int same = 1;
    for (int i = 0; i < t->ring->m->c.layers + t->ring->slot.has_mtp; i++) {
        state_piece a[STATE_PIECES], b[STATE_PIECES];
        const int pieces = session_pieces(t->ring, i, 0, t->ring->o.kv, a), end = t->ring->count - (i == t->ring->m->c.layers);
        session_pieces(t->whole, i, 0, t->whole->o.kv, b);
        for (int k = 0; k < pieces; k++)
            for (int at = piece_seen_from(&a[k], end), n; a[k].rows && at < end; at += n) {
                const char *x = piece_rows(&a[k], at, end, &n), *y = piece_rows(&b[k], at, at + n, &n);
                same &= n > 0 && !memcmp(x, y, (size_t)n * a[k].size);
            }
    }
    return same;
}

static void twins_compare(const twins *t) {
    const size_t vocab = (size_t)t->ring->m->c.vocab * sizeof(float);
    const int count = t->ring->count;
    const float *a = mote_logits(t->ring), *b = mote_logits(t->whole);
    CHECK(count == t->whole->count && !memcmp(t->ring->tokens, t->whole->tokens, (size_t)count * sizeof(int32_t)), "%s:%s: other tokens", t->name, t->did);
    CHECK(!count || (a && b && !memcmp(a, b, vocab)), "%s:%s: other logits after %d tokens", t->name, t->did, count);
    CHECK(twins_same_rows(t), "%s:%s: other rows after %d tokens", t->name, t->did, count);
}

/* ---- What may be done --------------------------------------------------------------------------------------------------- */

/* n tokens; to the session with rings in calls of their own. */
static void twins_feed(twins *t, int n) {
    const mote_model *m = t->ring->m;
    const size_t vocab = (size_t)m->c.vocab;
    const int mtp = t->ring->slot.has_mtp, first = t->ring->count;
    int32_t ids[FEED_MOST];
    float *a = (float *)allocate(2 * (size_t)n * vocab * sizeof *a), *b = (float *)allocate(2 * (size_t)n * vocab * sizeof *b);
    for (int i = 0; i < n; i++) ids[i] = random_int(0, m->c.vocab - 1);
    for (int at = 0, some, rows = 0; at < n; at += some) {
        some = random_int(0, 2) ? min_int(n - at, random_int(1, 30)) : random_int(1, n - at);
        float *extra = mtp ? a + (size_t)(n + rows) * vocab : NULL;
        rows += some - (first + at == 0);
        EXPECT(MOTE_OK, mote_feed_logits(t->ring, ids + at, (size_t)some, a + (size_t)at * vocab, extra, &failure));
    }
    EXPECT(MOTE_OK, mote_feed_logits(t->whole, ids, (size_t)n, b, mtp ? b + (size_t)n * vocab : NULL, &failure));
    const size_t all = (size_t)(mtp ? 2 * n - !first : n);
    CHECK(!memcmp(a, b, all * vocab * sizeof *a), "%s:%s: other logits of %d tokens after %d", t->name, t->did, n, first);
    free(a);
    free(b);
}

/* A block of drafts, of which some are kept; or the last token once more, and dropped. */
static void twins_block(twins *t, int rows, int kept) {
    mote_session *both[] = {t->ring, t->whole};
    int32_t ids[MOTE_ROWS_MAX];
    for (int i = 0; i < rows; i++) ids[i] = random_int(0, t->ring->m->c.vocab - 1);
    for (int i = 0; i < 2; i++) {
        if (!kept && both[i]->count) EXPECT(MOTE_OK, timeline_commit_state(both[i], &failure));
        if (!kept) continue;
        EXPECT(MOTE_OK, timeline_forward(both[i], ids, rows, 1, both[i]->slot.block_logits, NULL, &failure));
        timeline_keep(both[i], kept);
    }
}

static void twins_answer(twins *t, int tokens) {
    const mote_sampling greedy = {0};
    mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = tokens, .raw = 1, .verify = random_int(0, 1)};
    EXPECT(MOTE_OK, mote_generate(t->ring, &g, NULL, &failure));
    g.verify = 0;
    EXPECT(MOTE_OK, mote_generate(t->whole, &g, NULL, &failure));
}

static void twins_forget(twins *t, int i) {
    mote_checkpoint_free(t->ring_at[i]);
    mote_checkpoint_free(t->whole_at[i]);
    t->ring_at[i] = t->whole_at[i] = NULL;
}

static void twins_remember(twins *t, int i) {
    twins_forget(t, i);
    const size_t bytes = mote_checkpoint_bytes(t->ring);
    t->ring_at[i] = checkpoint_of(t->ring);
    t->whole_at[i] = checkpoint_of(t->whole);
    CHECK(bytes == sizeof *t->ring_at[i] + (size_t)t->ring->count * 4 + checkpoint_floats(t->ring) * 4 + t->ring_at[i]->row_bytes,
          "%s: a checkpoint of %zu bytes", t->name, bytes);
}

/* Back, or forth, to a checkpoint whose tokens the timeline has. One without rows of windows is refused where they may be lost. */
static void twins_rewind(twins *t, int i) {
    if (!t->ring_at[i]) return;
    const int code = mote_rewind(t->whole, t->whole_at[i], &failure), lost = t->ring->only_windows && !t->ring_at[i]->rows;
    EXPECT(lost ? MOTE_EINVAL : code, mote_rewind(t->ring, t->ring_at[i], &failure));
    if (lost && !code) CHECK(strstr(failure.message, "tokens are no longer") || strstr(failure.message, "windows"), "%s", failure.message);
    if (!lost || code) return;
    EXPECT(MOTE_OK, mote_reset(t->ring, &failure));
    EXPECT(MOTE_OK, mote_reset(t->whole, &failure));
}

/* Goes on in another session, which has nothing after the end of the timeline. */
static void twins_replace(twins *t, mote_session *to) {
    for (int i = 0; i < RING_KEPT; i++)
        if (t->ring_at[i] && t->ring_at[i]->count > to->count) twins_forget(t, i);
    mote_session_close(t->ring);
    t->ring = to;
}

/* The session with rings goes on in another one, of another chunk and so with other rings, or with none. */
static void twins_swap(twins *t, int chunk) {
    size_t size;
    const mote_session_options was = t->ring->o;
    mote_session *to = session_of(t->ring->m, .context = was.context - random_int(0, 1) * min_int(was.context - t->ring->count, 50), .chunk = chunk,
                                  .threads = 1, .kv = was.kv, .mtp = was.mtp);
    char *bytes = session_bytes(t->ring, &size);
    if (to->only_windows || random_int(0, 1)) EXPECT(MOTE_OK, mote_feed(to, (int32_t[]){1, 2, 3, 4, 5}, 5, &failure));
    EXPECT(MOTE_OK, mote_load(to, bytes, size, &failure));
    twins_replace(t, to);
    free(bytes);
}

static void twins_clone(twins *t) {
    mote_session *clone = NULL;
    size_t size;
    EXPECT(MOTE_OK, mote_clone(t->ring, &clone, &failure));
    char *bytes = session_bytes(t->ring, &size);
    CHECK(session_is(clone, bytes, size), "%s:%s: a clone of other bytes", t->name, t->did);
    free(bytes);
    twins_replace(t, clone);
}

/* Something, chosen by chance, that leaves space in the context. */
static void twins_do(twins *t) {
    static const int chunks[] = {1, 8, 8, 9, 64, 300, WHOLE_CHUNK};
    const int left = min_int(t->ring->o.context, t->whole->o.context) - t->ring->count, what = random_int(0, 99);
    int n = random_int(1, random_int(0, 2) ? 40 : FEED_MOST);
    if (left < MOTE_ROWS_MAX + 2) {
        twins_did(t, "reset", 0);
        EXPECT(MOTE_OK, mote_reset(t->ring, &failure));
        EXPECT(MOTE_OK, mote_reset(t->whole, &failure));
    } else if (what < 40) {
        n = min_int(n, left - 1);
        twins_did(t, "feed", n);
        twins_feed(t, n);
    } else if (what < 60) {
        n = random_int(1, MOTE_ROWS_MAX);
        twins_did(t, "block", n);
        twins_block(t, n, random_int(0, n));
    } else if (what < 68 && t->ring->count) {
        n = min_int(left, random_int(1, 12));
        twins_did(t, "answer", n);
        twins_answer(t, n);
    } else if (what < 78) {
        twins_did(t, "remember", n %= RING_KEPT);
        twins_remember(t, n);
    } else if (what < 90) {
        twins_did(t, "rewind", n %= RING_KEPT);
        twins_rewind(t, n);
    } else if (what < 96) {
        twins_did(t, "swap", n = chunks[random_int(0, (int)COUNT(chunks) - 1)]);
        twins_swap(t, n);
    } else {
        twins_did(t, "clone", 0);
        twins_clone(t);
    }
    twins_compare(t);
}

static void test_ring_history(const char *dir, int every, int window, int kv, int steps) {
    char name[96];
    mote_model *m = ring_model(dir, every, window);
    const int mtp = m->has_mtp ? 3 : 0;
    twins t = {.ring = session_of(m, .context = RING_CONTEXT, .chunk = 8, .threads = 2, .kv = kv, .mtp = mtp),
               .whole = session_of(m, .context = RING_CONTEXT, .chunk = WHOLE_CHUNK, .threads = 1, .kv = kv, .mtp = mtp), .name = name};
    snprintf(name, sizeof name, "%s, window %d, KV %d", dir, window, kv);
    CHECK(t.ring->only_windows == (window + 7 + 255 < RING_CONTEXT) && !t.whole->only_windows, "%s: rings %d, %d", name, t.ring->only_windows,
          t.whole->only_windows);
    for (int i = 0; i < steps; i++) twins_do(&t);
    for (int i = 0; i < RING_KEPT; i++) twins_forget(&t, i);
    mote_session_close(t.ring);
    mote_session_close(t.whole);
    mote_close(m);
}

/* ---- Sizes --------------------------------------------------------------------------------------------------------------- */

/* Contexts around the end of a ring: up to it all rows are held. */
static void test_ring_contexts(const char *dir) {
    static const int windows[] = {1, 2, 24, 248, 249, 250, 256, 257};
    for (size_t w = 0; w < COUNT(windows); w++) {
        mote_model *m = ring_model(dir, 2, windows[w]);
        const int ring = (windows[w] - 1 + 8 + 255) / 256 * 256;
        for (int context = ring - 1; context <= ring + 1; context++) {
            twins t = {.ring = session_of(m, .context = context, .chunk = 5, .threads = 1),
                       .whole = session_of(m, .context = context, .chunk = WHOLE_CHUNK, .threads = 1), .name = "to the end"};
            CHECK(t.ring->only_windows == (context > ring), "window %d, context %d: rings %d", windows[w], context, t.ring->only_windows);
            CHECK(!t.ring->only_windows || t.ring->slot.state[0].attention.held == ring, "window %d: a ring of %d rows", windows[w],
                  t.ring->slot.state[0].attention.held);
            twins_feed(&t, context - 3);
            twins_compare(&t);
            twins_remember(&t, 0);
            twins_feed(&t, 3);
            twins_compare(&t);
            twins_rewind(&t, 0);
            twins_feed(&t, 2);
            twins_compare(&t);
            twins_forget(&t, 0);
            mote_session_close(t.ring);
            mote_session_close(t.whole);
        }
        mote_close(m);
    }
}

/* Keys and values of layers with a window take no more as the context grows; a session takes what was planned. */
static void test_ring_memory(const char *dir) {
    mote_memory plan[2];
    mote_model *m = ring_model(dir, 1, 0);
    const int window = m->layers[0].mixer.w.attention.shape.window;
    mote_close(m);
    CHECK(window == 0, "a window that is left");
    for (int i = 0; i < 2; i++) {
        mote_options on = {.device = "cpu"};
        mote_session_options o = {.context = i ? 131072 : 65536, .chunk = 256, .threads = 1};
        EXPECT(MOTE_OK, mote_plan(dir, &on, &o, &plan[i], &failure));
    }
    m = model_of(dir, MOTE_WEIGHTS_ONLY);
    const attention_shape *s = &m->layers[0].mixer.w.attention.shape;
    const size_t row = 2 * (size_t)(s->kv_heads * s->head_dim) * sizeof(float), held = (size_t)(s->window - 1 + 256 + 255) / 256 * 256;
    size_t full = 0, slides = 0;
    for (int i = 0; i < m->c.layers; i++) *(m->layers[i].mixer.w.attention.shape.window ? &slides : &full) += 1;
    CHECK(full && slides, "%s: layers with and without windows", dir);
    CHECK(plan[1].kv == (full * 131072 + slides * held) * row, "%s: %llu bytes planned", dir, (unsigned long long)plan[1].kv);
    CHECK(plan[1].kv - plan[0].kv == full * 65536 * row, "%s: twice the context takes %llu bytes more", dir, (unsigned long long)(plan[1].kv - plan[0].kv));
    mote_session *r = session_of(m, .context = 131072, .chunk = 256, .threads = 1);
    CHECK(r->slot.floats * sizeof(float) >= plan[1].kv && r->slot.floats * sizeof(float) < plan[1].kv + (1 << 20), "a slot of %zu floats", r->slot.floats);
    mote_session_close(r);
    mote_close(m);
}

/* ---- Sessions that share a runner, parts, embeddings ------------------------------------------------------------------- */

enum { RING_SESSIONS = 4, RING_STEPS = 20 };

/* Sessions of one runner, whose contexts are longer than a ring or not: in one pass each has its own bits. Of a model in parts each part has
   its rings. */
static void test_ring_passes(const mote_model *m, const char *name) {
    static const int contexts[RING_SESSIONS] = {1500, 200, 700, 1500}, counts[RING_SESSIONS] = {1400, 150, 600, 300};
    const size_t vocab = (size_t)m->c.vocab;
    mote_runner *r = NULL;
    mote_turn turn[RING_SESSIONS];
    mote_session *whole[RING_SESSIONS];
    int32_t ids[1500];
    memset(turn, 0, sizeof turn);
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 1500, .chunk = 20, .threads = 2}, &r, &failure));
    for (int i = 0; i < RING_SESSIONS; i++) {
        turn[i].session = session_of(m, .context = contexts[i], .runner = r);
        whole[i] = session_of(m, .context = contexts[i], .chunk = WHOLE_CHUNK, .threads = 1);
        for (int k = 0; k < counts[i]; k++) ids[k] = random_int(0, m->c.vocab - 1);
        EXPECT(MOTE_OK, mote_feed(turn[i].session, ids, (size_t)counts[i], &failure));
        EXPECT(MOTE_OK, mote_feed(whole[i], ids, (size_t)counts[i], &failure));
    }
    for (int k = 0; k < RING_STEPS; k++) {
        EXPECT(MOTE_OK, mote_step_many(turn, RING_SESSIONS, &failure));
        for (int i = 0; i < RING_SESSIONS; i++) {
            int32_t id = -1;
            EXPECT(MOTE_OK, mote_step(whole[i], NULL, &id, &failure));
            CHECK(id == turn[i].id && !memcmp(mote_logits(turn[i].session), mote_logits(whole[i]), vocab * sizeof(float)),
                  "%s: session %d of the pass, step %d", name, i, k);
        }
    }
    for (int i = 0; i < RING_SESSIONS; i++) mote_session_close(turn[i].session), mote_session_close(whole[i]);
    mote_runner_close(r);
}

static void test_ring_parts(const char *dir) {
    char name[96];
    for (int i = 0; i < 3; i++) {
        const int ranges = i ? 2 : 1, ranks = i < 2 ? 2 : 1;
        mote_model *m = NULL;
        EXPECT(MOTE_OK, mote_open_parts(dir, &(mote_options){.device = "cpu", .parts = MOTE_WEIGHTS_ONLY}, ranges, ranks, &m, &failure));
        if (!m) return;
        snprintf(name, sizeof name, "%s in %d ranges of %d ranks", dir, ranges, ranks);
        test_ring_passes(m, name);
        mote_close(m);
    }
}

static void test_ring_embedding(const char *dir) {
    mote_model *m = ring_model(dir, 2, 20);
    const mote_embedding o = {.size = sizeof o, .pooling = MOTE_POOLING_MEAN};
    const size_t hidden = (size_t)m->c.hidden;
    int32_t ids[1200];
    float *a = (float *)allocate(hidden * sizeof *a), *b = (float *)allocate(hidden * sizeof *b);
    mote_session *ring = session_of(m, .context = 1200, .chunk = 11, .threads = 1), *whole = session_of(m, .context = 1200, .chunk = WHOLE_CHUNK, .threads = 1);
    for (int i = 0; i < 1200; i++) ids[i] = random_int(0, m->c.vocab - 1);
    for (int n = 1200; n > 0; n -= 389) {
        EXPECT(MOTE_OK, mote_embed(ring, ids, (size_t)n, &o, a, &failure));
        EXPECT(MOTE_OK, mote_embed(whole, ids, (size_t)n, &o, b, &failure));
        CHECK(!memcmp(a, b, hidden * sizeof *a), "%s: the embedding of %d tokens", dir, n);
    }
    mote_session_close(ring);
    mote_session_close(whole);
    mote_close(m);
    free(a);
    free(b);
}

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

static void check_goes_on(mote_session *a, mote_session *b, const int32_t *ids, const char *what) {
    EXPECT(MOTE_OK, mote_feed(a, ids, 50, &failure));
    EXPECT(MOTE_OK, mote_feed(b, ids, 50, &failure));
    CHECK(same_logits(a, mote_logits(b), a->m->c.vocab), "%s: other logits", what);
}

/* A session that holds all rows, and is given one that was saved without: it cannot go back to where their rows were, until it begins anew. */
static void test_ring_lost(const char *dir) {
    mote_model *m = ring_model(dir, 2, 20);
    mote_session *ring = session_of(m, .context = 900, .chunk = 8, .threads = 1), *whole = session_of(m, .context = 900, .chunk = WHOLE_CHUNK, .threads = 1);
    int32_t ids[800];
    size_t size, all, n;
    for (int i = 0; i < 800; i++) ids[i] = random_int(0, m->c.vocab - 1);
    mote_checkpoint *empty = checkpoint_of(whole);
    EXPECT(MOTE_OK, mote_feed(ring, ids, 800, &failure));
    EXPECT(MOTE_OK, mote_feed(whole, ids, 100, &failure));
    mote_checkpoint *c = checkpoint_of(whole);
    EXPECT(MOTE_OK, mote_feed(whole, ids + 100, 700, &failure));
    char *bytes = session_bytes(ring, &size), *more = session_bytes(whole, &all);
    CHECK(size < all, "a session with rings is saved in %zu bytes, all rows in %zu", size, all);
    EXPECT(MOTE_EINVAL, mote_rewind(ring, c, &failure));
    CHECK(strstr(failure.message, "other options: it has no keys and values of windows"), "%s", failure.message);
    EXPECT(MOTE_OK, mote_rewind(ring, empty, &failure));      /* before the first token no window is needed */
    EXPECT(MOTE_OK, mote_feed(ring, ids, 800, &failure));
    CHECK(session_is(ring, bytes, size), "after a checkpoint without tokens: other bytes");
    EXPECT(MOTE_OK, mote_rewind(whole, c, &failure));
    EXPECT(MOTE_OK, mote_load(whole, bytes, size, &failure));
    CHECK(session_is(whole, bytes, size), "loaded: other bytes");
    check_goes_on(ring, whole, ids, "windows where all rows could be");
    EXPECT(MOTE_EINVAL, mote_rewind(whole, c, &failure));
    EXPECT(MOTE_OK, mote_load(whole, more, all, &failure));
    EXPECT(MOTE_OK, mote_rewind(whole, c, &failure));
    EXPECT(MOTE_OK, mote_load(whole, more, all, &failure));
    EXPECT(MOTE_OK, mote_load(ring, more, all, &failure));
    char *again = session_bytes(ring, &n);
    CHECK(n == size && ring->only_windows, "all rows into a ring: it is saved in %zu bytes", n);
    free(again);
    check_goes_on(ring, whole, ids, "all rows into a ring");
    EXPECT(MOTE_OK, mote_load(whole, bytes, size, &failure));
    EXPECT(MOTE_OK, mote_reset(whole, &failure));
    EXPECT(MOTE_OK, mote_feed(whole, ids, 800, &failure));
    EXPECT(MOTE_OK, mote_rewind(whole, c, &failure));
    for (int bit = 0; bit < 32; bit++) {
        saved_header h;
        memcpy(&h, bytes, sizeof h);
        h.has ^= (int32_t)(1u << bit);
        memcpy(bytes, &h, sizeof h);
        h.checksum = saved_checksum(bytes, size);
        memcpy(bytes, &h, sizeof h);
        EXPECT(bit >= 8 && bit < 14 ? MOTE_EINVAL : MOTE_EFORMAT, mote_load(ring, bytes, size, &failure));      /* other ranks */
        h.has ^= (int32_t)(1u << bit);
        memcpy(bytes, &h, sizeof h);
    }
    free(bytes);
    free(more);
    mote_checkpoint_free(empty);
    mote_checkpoint_free(c);
    mote_session_close(ring);
    mote_session_close(whole);
    mote_close(m);
}

int main(int argc, char **argv) {
    static const char *const oss[] = {"tests/fixtures/families/gpt-oss-mxfp4", "tests/fixtures/families/gpt-oss-bf16"};
    static const struct { const char *dir; int every, window, kv; } cases[] = {
        {"tests/fixtures/families/gpt-oss-bf16", 2, 17, MOTE_KV_F32},    {"tests/fixtures/families/gpt-oss-mxfp4", 2, 24, MOTE_KV_BF16},
        {"tests/fixtures/families/mistral", 1, 1, MOTE_KV_F32},          {"tests/fixtures/families/qwen3", 1, 250, MOTE_KV_FP8},
        {"tests/fixtures/bf16-as-3.5", 1, 30, MOTE_KV_F32},              {"tests/fixtures/mixed-all-attention", 3, 2, MOTE_KV_BF16},
        {"tests/fixtures/families/gpt-oss-bf16", 1, 1000, MOTE_KV_F32},  {"tests/fixtures/families/llama", 2, 100000, MOTE_KV_F32},
        {"tests/fixtures/families/laguna", 0, 24, MOTE_KV_F32},         {"tests/fixtures/families/gemma4", 0, 24, MOTE_KV_BF16}};
    test_main_begin("test_rings", argc, argv);
    for (size_t i = 0; i < COUNT(cases); i++)
        test_ring_history(cases[i].dir, cases[i].every, cases[i].window, cases[i].kv, test_brief ? 40 : 250);
    test_ring_contexts(oss[1]);
    test_ring_memory(oss[0]);
    for (int i = 0; i < 2; i++) {
        mote_model *m = model_of(oss[i], MOTE_WEIGHTS_ONLY);
        test_ring_passes(m, oss[i]);
        mote_close(m);
        test_ring_lost(oss[i]);
    }
    test_ring_parts(oss[1]);
    test_ring_embedding(oss[0]);
    return test_main_end();
}
