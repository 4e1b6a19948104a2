// Tests of engine.cu: checkpoints with reference results, sessions in every state, sampling, and misuse of the API.
//
// Contents   1. Helpers                    2. Reference results      3. Blocks kept in part
//            4. Rewinding, copies, files   5. Sampling               6. Threads and callbacks
//            7. Damaged checkpoints        8. Misuse, plans, ends of text
//            9. The bundled model

#include "../engine.cu"
#include "api.h"

#include <dirent.h>
#include <malloc.h>

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

static float random_float(void) {
    return (float)random_int(-1000000, 1000000) / 1e6f;
}

static mote_session *session_of(const mote_model *m, int context, int chunk, int threads) {
    mote_session_options o;
    mote_session *s = NULL;
    memset(&o, 0, sizeof o);
    o.context = context;
    o.chunk = chunk;
    o.threads = threads;
    EXPECT(MOTE_OK, mote_session_open(m, &o, &s, &failure));
    if (!s) exit(2);
    return s;
}

typedef struct fixture {
    char dir[512];
    mote_model *m;
    int T, vocab, greedy_count, mtp;         // mtp: it has MTP logits
    int32_t *tokens, *greedy;
    float *logits, *mtp_logits;              // reference, [T][vocab] and [T-1][vocab]
    float *plain, *plain_mtp;                // ours, one token at a time
} fixture;

static void *load_array(const char *dir, const char *name, size_t *size) {
    buf b;
    memset(&b, 0, sizeof b);
    *size = 0;
    if (read_file(dir, name, &b, NULL)) return NULL;
    *size = b.size;
    return b.data;
}

static int fixture_open(fixture *f, const char *dir) {
    mote_options o;
    size_t size;
    memset(f, 0, sizeof *f);
    memset(&o, 0, sizeof o);
    o.parts = MOTE_WEIGHTS_ONLY;
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    EXPECT(MOTE_OK, mote_open(dir, &o, &f->m, &failure));
    if (!f->m) return 0;
    f->vocab = mote_model_info(f->m)->vocab_size;
    f->tokens = (int32_t *)load_array(dir, "tokens.i32", &size);
    f->T = (int)(size / 4);
    f->greedy = (int32_t *)load_array(dir, "greedy.i32", &size);
    f->greedy_count = (int)(size / 4);
    f->logits = (float *)load_array(dir, "logits.f32", &size);
    if (!CHECK(f->T > 20 && f->greedy && size == (size_t)(f->T * f->vocab) * 4, "%s: reference files", dir)) return 0;
    f->mtp_logits = (float *)load_array(dir, "mtp_logits.f32", &size);
    f->mtp = f->mtp_logits != NULL;
    CHECK(f->mtp == mote_model_info(f->m)->mtp_layers, "%s: MTP layer", dir);
    f->plain = (float *)room((size_t)(f->T * f->vocab) * 4);
    f->plain_mtp = (float *)room((size_t)(f->T * f->vocab) * 4);
    return 1;
}

static void fixture_close(fixture *f) {
    mote_close(f->m);
    void *all[] = {f->tokens, f->greedy, f->logits, f->mtp_logits, f->plain, f->plain_mtp};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static const float *plain_row(const fixture *f, int position) {
    return f->plain + (size_t)position * (size_t)f->vocab;
}

static int same_row(const fixture *f, const float *logits, int position) {
    return logits && !memcmp(logits, plain_row(f, position), (size_t)f->vocab * 4);
}

// Feeds tokens up to position `to`, and checks the logits after them.
static void feed_to(mote_session *s, const fixture *f, int to, const char *what) {
    EXPECT(MOTE_OK, mote_feed(s, f->tokens + s->count, (size_t)(to - s->count), &failure));
    CHECK(s->count == to && same_row(f, mote_logits(s), to - 1), "%s: %s: logits after %d tokens", f->dir, what, to);
}

// ---- 2. Reference results -------------------------------------------------------------------------------------------

// Largest difference as a share of the reference's standard deviation.
static double off_by(const float *got, const float *want, size_t n) {
    double sum = 0, square = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) return INFINITY;
        sum += want[i];
        square += (double)want[i] * want[i];
        worst = fmax(worst, fabs((double)got[i] - want[i]));
    }
    return worst / sqrt(square / (double)n - sum / (double)n * (sum / (double)n));
}

static void test_plain(fixture *f) {
    mote_session *s = session_of(f->m, f->T, 0, 1);
    for (int t = 0; t < f->T; t++) {
        size_t at = (size_t)t * (size_t)f->vocab;
        float *mtp = f->mtp ? f->plain_mtp + (t ? at - (size_t)f->vocab : 0) : NULL;
        EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens + t, 1, f->plain + at, mtp, &failure));
        CHECK(same_row(f, mote_logits(s), t), "%s: mote_logits after token %d", f->dir, t);
    }
    double off = off_by(f->plain, f->logits, (size_t)(f->T * f->vocab));
    CHECK(off < 1e-3, "%s: logits are off by %g of their standard deviation", f->dir, off);
    if (f->mtp) off = off_by(f->plain_mtp, f->mtp_logits, (size_t)((f->T - 1) * f->vocab));
    CHECK(off < 1e-3, "%s: MTP logits are off by %g of their standard deviation", f->dir, off);
    mote_session_close(s);
}

// The whole prompt by chunks and threads: the same bits.
static void test_chunks(const fixture *f, int chunk, int threads) {
    size_t rows = (size_t)f->T * (size_t)f->vocab, mtp_rows = rows - (size_t)f->vocab;
    mote_session *s = session_of(f->m, f->T + 3, chunk, threads);
    float *logits = (float *)room(rows * 4), *mtp = (float *)room(rows * 4);
    EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens, (size_t)f->T, logits, f->mtp ? mtp : NULL, &failure));
    CHECK(!memcmp(logits, f->plain, rows * 4), "%s: chunks of %d, %d threads: logits", f->dir, chunk, threads);
    if (f->mtp) CHECK(!memcmp(mtp, f->plain_mtp, mtp_rows * 4), "%s: chunks of %d, %d threads", f->dir, chunk, threads);
    free(logits);
    free(mtp);
    mote_session_close(s);
}

// Pieces of any size, some by mote_feed and some with logits, then decoding.
static void test_pieces(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 7, 2);
    float *logits = (float *)room((size_t)(f->T * f->vocab) * 4), *mtp = (float *)room((size_t)(f->T * f->vocab) * 4);
    while (s->count < f->T) {
        int n = random_int(1, 16), first = s->count;
        if (n > f->T - s->count) n = f->T - s->count;
        if (random_int(0, 1)) {
            feed_to(s, f, first + n, "pieces");
            continue;
        }
        EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens + first, (size_t)n, logits, f->mtp ? mtp : NULL, &failure));
        size_t row = (size_t)f->vocab * 4, skip = first == 0, mtp_first = (size_t)first - !skip;
        CHECK(!memcmp(logits, plain_row(f, first), (size_t)n * row), "%s: piece of %d at %d", f->dir, n, first);
        if (f->mtp)
            CHECK(!memcmp(mtp, f->plain_mtp + mtp_first * (size_t)f->vocab, ((size_t)n - skip) * row),
                  "%s: MTP of a piece of %d at %d", f->dir, n, first);
    }
    free(logits);
    free(mtp);
    mote_session_close(s);
}

typedef struct id_list { int32_t ids[64]; int count, stop_after; } id_list;

static int collect_id(void *user, int32_t id) {
    id_list *l = (id_list *)user;
    if (l->count < 64) l->ids[l->count++] = id;
    return l->count == l->stop_after;
}

static void test_greedy(const fixture *f) {
    mote_session *s = session_of(f->m, f->T + f->greedy_count, 0, 0);
    mote_sampling greedy;
    mote_generation g;
    mote_result r;
    id_list list;
    memset(&greedy, 0, sizeof greedy);
    memset(&g, 0, sizeof g);
    memset(&list, 0, sizeof list);
    feed_to(s, f, f->T, "greedy");
    for (int i = 0; i < f->greedy_count; i++) {
        int32_t id = -1;
        EXPECT(MOTE_OK, mote_step(s, i % 2 ? &greedy : NULL, &id, &failure));
        CHECK(id == f->greedy[i], "%s: greedy id %d is %d, expected %d", f->dir, i, id, f->greedy[i]);
    }
    mote_reset(s, NULL);
    feed_to(s, f, f->T, "greedy again");
    g.sampling = &greedy;
    g.on_token = collect_id;
    g.user = &list;
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CONTEXT && r.generated_tokens == list.count, "%s: generated", f->dir);
    CHECK(list.count == f->greedy_count && !memcmp(list.ids, f->greedy, (size_t)list.count * 4), "%s: ids", f->dir);
    mote_session_close(s);
}

// ---- 3. Blocks kept in part -----------------------------------------------------------------------------------------

// A draft of T rows behind the timeline of which `keep` are the tokens of the fixture and the others wrong.
static void draft(mote_session *s, const fixture *f, int T, int keep) {
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
    mote_session *s = session_of(f->m, f->T, 64, 1);
    float *mtp = (float *)room((size_t)(next * f->vocab) * 4);
    if (before) feed_to(s, f, before, "before a draft");
    draft(s, f, T, keep);
    int first = s->count;
    EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens + first, (size_t)next, NULL, f->mtp ? mtp : NULL, &failure));
    CHECK(same_row(f, mote_logits(s), first + next - 1), "%s: %d of %d kept at %d, then %d", f->dir, keep, T, before,
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
static void test_speculation(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 16, 2);
    mote_checkpoint *c = NULL;
    while (s->count < f->T - BLOCK) {
        int T = random_int(1, BLOCK), keep = random_int(1, T), kind = random_int(0, 5);
        draft(s, f, T, keep);
        if (kind == 0) {
            s = replace_by_clone(s);
        } else if (kind == 1) {
            EXPECT(MOTE_OK, mote_checkpoint_take(s, &c, &failure));
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

// ---- 4. Rewinding, copies, files ------------------------------------------------------------------------------------

static mote_checkpoint *checkpoint_of(const mote_session *s) {
    mote_checkpoint *c = NULL;
    EXPECT(MOTE_OK, mote_checkpoint_take(s, &c, &failure));
    return c;
}

static void test_rewind(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 5, 1);
    size_t n;
    mote_checkpoint *empty = checkpoint_of(s);
    feed_to(s, f, 8, "rewind");
    mote_checkpoint *at8 = checkpoint_of(s);
    feed_to(s, f, 9, "rewind");
    mote_checkpoint *at9 = checkpoint_of(s);
    feed_to(s, f, 18, "rewind");
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    CHECK(mote_tokens(s, &n) && n == 8 && same_row(f, mote_logits(s), 7), "%s: rewound to 8", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at9, &failure));
    CHECK(mote_tokens(s, &n) && n == 9 && same_row(f, mote_logits(s), 8), "%s: rewound forward to 9", f->dir);
    feed_to(s, f, 15, "after rewinding forward");
    EXPECT(MOTE_OK, mote_rewind(s, empty, &failure));
    CHECK(mote_tokens(s, &n) && n == 0 && !mote_logits(s), "%s: rewound to the start", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at9, &failure));
    feed_to(s, f, 20, "forward again");
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    feed_to(s, f, f->T, "the rest");
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    feed_to(s, f, f->T, "the rest once more");
    mote_session_close(s);
    mote_checkpoint_free(empty);
    mote_checkpoint_free(at8);
    mote_checkpoint_free(at9);
    mote_checkpoint_free(NULL);
}

// Checkpoints whose tokens are gone are refused, and leave the session as it was.
static void test_stale(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 0, 1), *other = session_of(f->m, f->T, 0, 1);
    int32_t wrong = (f->tokens[6] + 1) % f->vocab;
    size_t size;
    feed_to(s, f, 6, "stale");
    mote_checkpoint *at6 = checkpoint_of(s);
    feed_to(s, f, 12, "stale");
    mote_checkpoint *at12 = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_rewind(s, at6, &failure));
    EXPECT(MOTE_OK, mote_feed(s, &wrong, 1, &failure));
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_EINVAL, mote_rewind(s, at12, &failure));
    CHECK(session_is(s, bytes, size), "%s: refused rewind changed the session", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at6, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, at12, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(other, at6, &failure));
    feed_to(s, f, 12, "the checkpoint's tokens again");
    EXPECT(MOTE_OK, mote_rewind(s, at12, &failure));
    mote_reset(s, NULL);
    EXPECT(MOTE_EINVAL, mote_rewind(s, at6, &failure));
    feed_to(s, f, 7, "after a reset");
    EXPECT(MOTE_OK, mote_rewind(s, at6, &failure));
    feed_to(s, f, f->T, "to the end");
    mote_checkpoint_free(at6);
    mote_checkpoint_free(at12);
    mote_session_close(s);
    mote_session_close(other);
    free(bytes);
}

// The same tokens behind another beginning: what the session still holds of them was computed from that beginning.
static void test_stale_rows(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 0, 1);
    int32_t other = (f->tokens[0] + 1) % f->vocab;
    size_t size;
    feed_to(s, f, 6, "stale rows");
    char *bytes = session_bytes(s, &size);
    feed_to(s, f, 12, "stale rows");
    mote_checkpoint *at12 = checkpoint_of(s);
    for (int i = 0; i < 2; i++) {
        mote_reset(s, NULL);
        EXPECT(MOTE_OK, mote_feed(s, &other, 1, &failure));
        EXPECT(MOTE_OK, mote_feed(s, f->tokens + 1, 11, &failure));
        mote_reset(s, NULL);
        if (i) EXPECT(MOTE_OK, mote_load(s, bytes, size, &failure));
        else feed_to(s, f, 6, "stale rows");
        EXPECT(MOTE_EINVAL, mote_rewind(s, at12, &failure));
        feed_to(s, f, 12, "stale rows");
    }
    free(bytes);
    mote_checkpoint_free(at12);
    mote_session_close(s);
}

static void test_clone(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 3, 2), *a = NULL, *b = NULL;
    int32_t wrong = (f->tokens[10] + 1) % f->vocab;
    EXPECT(MOTE_OK, mote_clone(s, &b, &failure));
    feed_to(b, f, 4, "clone of an empty session");
    mote_session_close(b);
    feed_to(s, f, 10, "clone");
    EXPECT(MOTE_OK, mote_clone(s, &a, &failure));
    CHECK(!memcmp(&a->o, &s->o, sizeof a->o), "%s: options of a clone", f->dir);
    CHECK(same_row(f, mote_logits(a), 9), "%s: logits of a clone", f->dir);
    EXPECT(MOTE_OK, mote_feed(s, &wrong, 1, &failure));
    EXPECT(MOTE_OK, mote_clone(a, &b, &failure));
    mote_session_close(s);
    feed_to(a, f, f->T, "clone");
    mote_session_close(a);
    feed_to(b, f, f->T, "clone of a clone");
    mote_session_close(b);
}

// Saved at every position up to 12, as single tokens, and loaded into sessions of other sizes, used or not.
static void test_save(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 1, 1), *used = session_of(f->m, f->T + 9, 64, 2);
    for (int n = 0; n <= 12; n++) {
        size_t size, needed;
        if (n) feed_to(s, f, n, "save");
        char *bytes = session_bytes(s, &size);
        EXPECT(MOTE_EINVAL, mote_save(s, bytes, size - 1, &needed, &failure));
        CHECK(needed == size, "%s: size needed", f->dir);
        mote_session *fresh = session_of(f->m, n > 0 ? n + 2 : 2, 2, 1);
        EXPECT(MOTE_OK, mote_load(fresh, bytes, size, &failure));
        EXPECT(MOTE_OK, mote_load(used, bytes, size, &failure));
        CHECK(session_is(fresh, bytes, size) && session_is(used, bytes, size), "%s: saved again after %d", f->dir, n);
        CHECK(n ? same_row(f, mote_logits(used), n - 1) : !mote_logits(used), "%s: loaded after %d", f->dir, n);
        feed_to(fresh, f, n + 2, "loaded");
        feed_to(used, f, n + 7, "loaded");
        mote_session_close(fresh);
        free(bytes);
    }
    mote_session_close(s);
    mote_session_close(used);
}

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
    mote_session *s = session_of(f->m, f->T, 0, 1), *t = session_of(f->m, f->T, 0, 1);
    mote_session *foreign = session_of(other->m, f->T, 0, 1), *small = session_of(f->m, 9, 0, 1);
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

static mote_session *kv_session(const mote_model *m, int context, int chunk, int kv, int no_mtp) {
    mote_session_options o;
    mote_session *s = NULL;
    memset(&o, 0, sizeof o);
    o.context = context;
    o.chunk = chunk;
    o.threads = 1;
    o.kv = kv;
    o.mtp = no_mtp ? MOTE_MTP_OFF : MOTE_MTP_AUTO;
    EXPECT(MOTE_OK, mote_session_open(m, &o, &s, &failure));
    if (!s) exit(2);
    return s;
}

static int same_logits(const mote_session *a, const mote_session *b) {
    return !memcmp(mote_logits(a), mote_logits(b), (size_t)a->m->c.vocab * 4);
}

// Feeds the tokens up to position `to`.
static void advance(mote_session *s, const fixture *f, int to) {
    EXPECT(MOTE_OK, mote_feed(s, f->tokens + s->count, (size_t)(to - s->count), &failure));
}

// Saved as one type and loaded as another, the rows are those of the first rounded to the second; and back.
static void test_kv_conversion(const fixture *f, int from, int to) {
    mote_session *s = kv_session(f->m, f->T, 0, from, 0), *t = kv_session(f->m, f->T + 3, 5, to, 0);
    mote_session *back = kv_session(f->m, f->T, 0, from, 0);
    size_t size, other, wide = (size_t)(f->m->c.kv_heads * f->m->c.head_dim), n = 13 * wide;
    float *want = (float *)room(n * 4), *got = (float *)room(n * 4), *twice = (float *)room(n * 4);
    advance(s, f, 13);
    advance(t, f, 6);
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));
    CHECK(t->o.kv == to && t->count == 13 && same_logits(s, t), "%s: KV type %d to %d", f->dir, from, to);
    char *converted = session_bytes(t, &other);
    EXPECT(MOTE_OK, mote_load(back, converted, other, &failure));
    for (int i = 0; i < 2 * f->m->c.layers + 2; i++) {
        const kv_rows *r = &s->kv[i / 2], *u = &t->kv[i / 2], *w = &back->kv[i / 2];
        if (!r->k) continue;
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

// Root mean square difference as a share of the root mean square of `want`.
static double rms_off(const float *got, const float *want, size_t n) {
    double square = 0, off = 0;
    for (size_t i = 0; i < n; i++) {
        square += (double)want[i] * want[i];
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    }
    return sqrt(off / square);
}

// One KV type: near F32, the same bits in any chunks, and through saving, cloning and rewinding.
static void test_kv_type(const fixture *f, int kv, double allowed) {
    mote_session *s = kv_session(f->m, f->T, 1, kv, 0), *t = kv_session(f->m, f->T, 7, kv, 0), *a = NULL;
    mote_checkpoint *c = NULL;
    size_t vocab = (size_t)f->vocab, n = (size_t)f->T * vocab, size;
    float *one = (float *)room(n * 4), *chunks = (float *)room(n * 4), *mtp = (float *)room(2 * n * 4);
    EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens, (size_t)f->T, one, f->mtp ? mtp : NULL, &failure));
    double off = rms_off(one, f->plain, n);
    CHECK(off <= allowed, "%s: KV type %d: off by %g", f->dir, kv, off);
    EXPECT(MOTE_OK, mote_feed_logits(t, f->tokens, (size_t)f->T, chunks, f->mtp ? mtp + n : NULL, &failure));
    CHECK(!memcmp(one, chunks, n * 4) && !memcmp(mtp, mtp + n, n * 4), "%s: KV type %d in chunks", f->dir, kv);
    if (f->mtp) off = rms_off(mtp, f->plain_mtp, n - vocab);
    CHECK(off <= allowed, "%s: KV type %d: MTP logits are off by %g", f->dir, kv, off);
    mote_reset(t, NULL);
    advance(t, f, 9);
    EXPECT(MOTE_OK, mote_checkpoint_take(t, &c, &failure));
    advance(t, f, 12);
    EXPECT(MOTE_OK, mote_rewind(t, c, &failure));
    char *bytes = session_bytes(t, &size);
    EXPECT(MOTE_OK, mote_clone(t, &a, &failure));
    CHECK(a && a->o.kv == kv && session_is(a, bytes, size), "%s: KV type %d: clone", f->dir, kv);
    mote_reset(s, NULL);
    EXPECT(MOTE_OK, mote_load(s, bytes, size, &failure));
    CHECK(session_is(s, bytes, size), "%s: KV type %d: loaded", f->dir, kv);
    for (int i = 9; i <= f->T; i += 4) {
        advance(s, f, i), advance(t, f, i), advance(a, f, i);
        CHECK(!memcmp(mote_logits(t), one + (size_t)(i - 1) * vocab, vocab * 4) && same_logits(s, t) && same_logits(a, t),
              "%s: KV type %d after %d tokens", f->dir, kv, i);
    }
    mote_checkpoint_free(c);
    mote_session *all[] = {s, t, a};
    for (int i = 0; i < 3; i++) mote_session_close(all[i]);
    void *memory[] = {one, chunks, mtp, bytes};
    for (int i = 0; i < 4; i++) free(memory[i]);
}

// Without the MTP layer: the same logits, none of its own, less memory; its rows are dropped when loaded, not made up.
static void test_no_mtp(const fixture *f) {
    mote_session *s = kv_session(f->m, f->T, 3, 0, 1), *with = kv_session(f->m, f->T, 3, 0, 0), *clone = NULL;
    size_t size, other;
    float *logits = (float *)room((size_t)f->vocab * 8);
    advance(s, f, 9);
    advance(with, f, 9);
    CHECK(same_logits(s, with), "%s: logits without the MTP layer", f->dir);
    char *bytes = session_bytes(s, &size), *more = session_bytes(with, &other);
    EXPECT(MOTE_EUNSUPPORTED, mote_feed_logits(s, f->tokens + 9, 2, logits, logits, &failure));
    CHECK(session_is(s, bytes, size), "%s: refused MTP logits changed the session", f->dir);
    CHECK(f->mtp == (size < other) && f->mtp == (s->parts.kv < with->parts.kv), "%s: memory without MTP", f->dir);
    if (f->mtp) refuse_bytes(with, bytes, size, MOTE_EINVAL, "a session without the MTP layer");
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    mote_reset(s, NULL);
    EXPECT(MOTE_OK, mote_load(s, more, other, &failure));
    CHECK(session_is(s, bytes, size) && clone && session_is(clone, bytes, size), "%s: rows not wanted", f->dir);
    feed_to(s, f, f->T, "without the MTP layer");
    feed_to(clone, f, f->T, "a clone without the MTP layer");
    mote_session *all[] = {s, with, clone};
    for (int i = 0; i < 3; i++) mote_session_close(all[i]);
    void *memory[] = {bytes, more, logits};
    for (int i = 0; i < 3; i++) free(memory[i]);
}

// Damaged copies of every type; one of a type that there is not has a checksum that fits.
static void test_kv_damage(const fixture *f, int kv) {
    mote_session *s = kv_session(f->m, f->T, 0, kv, 0), *t = kv_session(f->m, f->T, 0, MOTE_KV_BF16, 0);
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
        if (other != kv && f->m->info.attention_layers + f->mtp > 0) refuse_bytes(t, bytes, size, MOTE_EFORMAT, "another KV type");
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

static void test_kv_types(const fixture *f) {
    for (int kv = MOTE_KV_F32; kv <= MOTE_KV_FP8; kv++) {
        /* Root mean square, as a share of the logits': rounding may make a row choose other experts, so that a single
           logit may move by as much as it is. */
        test_kv_type(f, kv, kv == MOTE_KV_F32 ? 0 : kv == MOTE_KV_BF16 ? 0.01 : 0.25);
        test_kv_damage(f, kv);
        for (int to = MOTE_KV_F32; to <= MOTE_KV_FP8; to++) test_kv_conversion(f, kv, to);
    }
    test_no_mtp(f);
}

static void write_file(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, size, file) == size && !fclose(file), "%s cannot be written", path);
}

static void test_save_files(const fixture *f, const char *tmp) {
    char path[600], bad[640];
    mote_session *s = session_of(f->m, f->T, 0, 1), *t = session_of(f->m, f->T, 0, 1);
    size_t size, before;
    snprintf(path, sizeof path, "%s/session", tmp);
    snprintf(bad, sizeof bad, "%s/none/session", tmp);
    feed_to(s, f, 9, "file");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    feed_to(s, f, 13, "file");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));                 /* over the old one */
    EXPECT(MOTE_OK, mote_load_file(t, path, &failure));
    feed_to(t, f, f->T, "from a file");
    char *bytes = session_bytes(s, &size), *old = session_bytes(t, &before);
    EXPECT(MOTE_EIO, mote_save_file(s, bad, &failure));
    EXPECT(MOTE_EINVAL, mote_save_file(s, NULL, &failure));
    EXPECT(MOTE_EIO, mote_save_file(s, tmp, &failure));                 /* a folder */
    EXPECT(MOTE_EIO, mote_load_file(t, bad, &failure));
    EXPECT(MOTE_EIO, mote_load_file(t, tmp, &failure));
    EXPECT(MOTE_EINVAL, mote_load_file(t, NULL, &failure));
    write_file(path, bytes, size - 5);
    EXPECT(MOTE_EFORMAT, mote_load_file(t, path, &failure));
    write_file(path, bytes, 0);
    EXPECT(MOTE_EFORMAT, mote_load_file(t, path, &failure));
    CHECK(session_is(t, old, before), "%s: failed loads changed the session", f->dir);
    snprintf(bad, sizeof bad, "%s.part", tmp);
    CHECK(access(bad, F_OK) != 0, "a failed save left %s", bad);
    unlink(path);
    free(bytes);
    free(old);
    mote_session_close(s);
    mote_session_close(t);
}

static void test_reset_and_full(const fixture *f) {
    mote_session *s = session_of(f->m, 20, 6, 1);
    size_t n;
    int32_t id = -7;
    feed_to(s, f, 13, "reset");
    mote_reset(s, NULL);
    CHECK(mote_tokens(s, &n) && n == 0 && !mote_logits(s), "%s: reset", f->dir);
    EXPECT(MOTE_EINVAL, mote_step(s, NULL, &id, &failure));
    EXPECT(MOTE_EINVAL, mote_generate(s, NULL, NULL, &failure));
    EXPECT(MOTE_ECONTEXT, mote_feed(s, f->tokens, 21, &failure));
    CHECK(mote_tokens(s, &n) && n == 0, "%s: nothing is fed when not all fits", f->dir);
    feed_to(s, f, 20, "after a reset");
    EXPECT(MOTE_ECONTEXT, mote_feed(s, f->tokens, 1, &failure));
    EXPECT(MOTE_ECONTEXT, mote_step(s, NULL, &id, &failure));
    CHECK(id == -7 && same_row(f, mote_logits(s), 19), "%s: a full session stays as it was", f->dir);
    EXPECT(MOTE_OK, mote_sample(s, NULL, &id, &failure));
    mote_result r;
    EXPECT(MOTE_OK, mote_generate(s, NULL, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CONTEXT && r.generated_tokens == 0, "%s: generating with a full context", f->dir);
    EXPECT(MOTE_OK, mote_feed(s, f->tokens, 0, &failure));
    mote_session_close(s);
}

// ---- 5. Sampling ----------------------------------------------------------------------------------------------------

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
    enum { SEEDS = test_brief ? 40 : 400, POSITIONS = 30, N = SEEDS * POSITIONS };
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

static mote_sampling sampling_of(float temperature, int top_k, float top_p, float min_p) {
    mote_sampling p;
    memset(&p, 0, sizeof p);
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.min_p = min_p;
    return p;
}

static void test_distributions(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 0, 1);
    float *logits = (float *)room((size_t)f->vocab * 4);
    feed_to(s, f, 40, "distributions");
    for (int i = 0; i < f->vocab; i++) logits[i] = 3 * random_float();
    logits[5] = logits[2] = logits[33];                      /* ties */
    for (int i = 10; i < 20; i++) logits[i] = 2.5f;
    test_distribution(s, logits, sampling_of(1, 0, 0, 0));
    test_distribution(s, logits, sampling_of(0.5f, 0, 1, 0));
    test_distribution(s, logits, sampling_of(2.5f, 0, 0, 0));
    test_distribution(s, logits, sampling_of(1, 7, 0, 0));
    test_distribution(s, logits, sampling_of(1, 1, 0, 0));
    test_distribution(s, logits, sampling_of(1, 1 << 30, 0, 0));
    test_distribution(s, logits, sampling_of(1, 0, 0.61f, 0));
    test_distribution(s, logits, sampling_of(1, 0, 1e-6f, 0));
    test_distribution(s, logits, sampling_of(1, 0, 0.999f, 0));
    test_distribution(s, logits, sampling_of(1, 0, 0, 0.173f));
    test_distribution(s, logits, sampling_of(1, 0, 0, 1));
    test_distribution(s, logits, sampling_of(0.7f, 20, 0.83f, 0));
    test_distribution(s, logits, sampling_of(0.7f, 20, 0.83f, 0.21f));
    test_distribution(s, logits, sampling_of(3, 30, 0.97f, 0.3f));
    test_distribution(s, logits, sampling_of(1000, 0, 0, 0));
    test_distribution(s, logits, sampling_of(1e-6f, 0, 0, 0));
    for (int i = 0; i < f->vocab; i++) logits[i] = i % 3 ? -INFINITY : logits[i];
    test_distribution(s, logits, sampling_of(1, 0, 0, 0));
    test_distribution(s, logits, sampling_of(1, 0, 0.9f, 0.01f));
    free(logits);
    mote_session_close(s);
}

static void test_greedy_choice(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 0, 1);
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
    mote_sampling hot = sampling_of(1, 0, 0.5f, 0);
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
    mote_session *s = session_of(f->m, f->T + 40, 0, 1);
    double *value = (double *)room((size_t)f->vocab * sizeof(double));
    mote_sampling p = sampling_of(0, 0, 0, 0), wild = sampling_of(0.4f, 0, 0, 0);
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

// 24 sampled ids after the first 15 tokens.
static void sampled_ids(const fixture *f, int chunk, int threads, uint64_t seed, int32_t *ids) {
    mote_session *s = session_of(f->m, 64, chunk, threads);
    mote_sampling p = sampling_of(1.2f, 0, 0.98f, 0);
    p.seed = seed;
    feed_to(s, f, 15, "seeds");
    for (int i = 0; i < 24; i++) EXPECT(MOTE_OK, mote_step(s, &p, &ids[i], &failure));
    mote_session_close(s);
}

static void test_seeds(const fixture *f) {
    int32_t first[24], ids[24];
    sampled_ids(f, 64, 1, 42, first);
    sampled_ids(f, 4, 2, 42, ids);
    CHECK(!memcmp(first, ids, sizeof ids), "%s: the same seed gives other ids", f->dir);
    for (uint64_t seed = 0; seed < 5; seed++) {
        sampled_ids(f, 64, 1, seed << (seed * 8), ids);
        CHECK(memcmp(first, ids, sizeof ids) != 0, "%s: seeds 42 and %d give the same ids", f->dir, (int)seed);
    }
}

static void test_logprobs(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 0, 1);
    int32_t *ids = (int32_t *)room((size_t)f->vocab * 4), id;
    float *logprobs = (float *)room((size_t)f->vocab * 4);
    double total = 0, sum = 0;
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, 1, ids, logprobs, &failure));
    feed_to(s, f, 20, "logprobs");
    EXPECT(MOTE_OK, mote_top_logprobs(s, f->vocab, ids, logprobs, &failure));
    for (int i = 0; i < f->vocab; i++) total += exp((double)s->logits[i]);
    for (int i = 0; i < f->vocab; i++) {
        double want = (double)s->logits[ids[i]] - log(total);
        CHECK(fabs(logprobs[i] - want) < 1e-5, "logprob %d is %g, expected %g", i, (double)logprobs[i], want);
        CHECK(!i || is_better(s->logits, ids[i - 1], ids[i]), "%s: order of logprobs at %d", f->dir, i);
        sum += exp((double)logprobs[i]);
    }
    CHECK(fabs(sum - 1) < 1e-5, "probabilities sum to %g", sum);
    CHECK(same_row(f, mote_logits(s), 19), "%s: logprobs changed the logits", f->dir);
    EXPECT(MOTE_OK, mote_sample(s, NULL, &id, &failure));
    CHECK(id == ids[0], "%s: the greedy choice has the best logprob", f->dir);
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, 0, ids, logprobs, &failure));
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, -1, ids, logprobs, &failure));
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, f->vocab + 1, ids, logprobs, &failure));
    free(ids);
    free(logprobs);
    mote_session_close(s);
}

// ---- 6. Threads and callbacks ---------------------------------------------------------------------------------------

typedef struct errand { const fixture *f; int wrong; } errand;

static void *run_errand(void *argument) {
    errand *e = (errand *)argument;
    const fixture *f = e->f;
    mote_session_options o;
    mote_session *s;
    memset(&o, 0, sizeof o);
    o.context = f->T + f->greedy_count;
    o.threads = 2;
    for (int round = 0; round < 3; round++) {
        if (mote_session_open(f->m, &o, &s, NULL)) return e->wrong = 1000, NULL;
        for (int t = 0; t < f->T; t += 7) {
            int end = t + 7 < f->T ? t + 7 : f->T;
            e->wrong += mote_feed(s, f->tokens + t, (size_t)(end - t), NULL) || !same_row(f, mote_logits(s), end - 1);
        }
        for (int i = 0; i < f->greedy_count; i++) {
            int32_t id = -1;
            e->wrong += mote_step(s, NULL, &id, NULL) || id != f->greedy[i];
        }
        mote_session_close(s);
    }
    return NULL;
}

// Sessions of the same and of another model, at the same time, on threads of their own.
static void test_concurrent(const fixture *a, const fixture *b) {
    errand errands[3] = {{a, 0}, {a, 0}, {b, 0}};
    pthread_t ids[3];
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&ids[i], NULL, run_errand, &errands[i]), "thread %d", i);
    for (int i = 0; i < 3; i++) pthread_join(ids[i], NULL);
    for (int i = 0; i < 3; i++) CHECK(errands[i].wrong == 0, "session %d beside others: %d wrong", i, errands[i].wrong);
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
    mote_callbacks c;
    memset(w, 0, sizeof *w);
    w->cancel_at = cancel_at;
    c.log = watch_log;
    c.progress = watch_progress;
    c.cancel = watch_cancel;
    c.user = w;
    return c;
}

static void test_open_callbacks(const fixture *f, int has_vision) {
    mote_options o;
    mote_model *m = NULL;
    watch w;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_WEIGHTS_ONLY;
    o.callbacks = watch_all(&w, 0);
    EXPECT(MOTE_OK, mote_open(f->dir, &o, &m, &failure));
    CHECK(w.reports > 0 && w.last == 1 && !w.bad && w.polls > 0, "%s: progress of loading", f->dir);
    CHECK(w.logs == has_vision, "%s: %d notices, expected %d: %s", f->dir, w.logs, has_vision, w.line);
    mote_close(m);
    m = NULL;
    o.callbacks = watch_all(&w, 3);
    EXPECT(MOTE_ECANCELLED, mote_open(f->dir, &o, &m, &failure));
    CHECK(!m, "%s: a cancelled load gives no model", f->dir);
}

// Cancelled before every chunk in turn: those done stay, and the rest can be fed later.
static void test_feed_callbacks(const fixture *f) {
    mote_session_options o;
    watch w;
    memset(&o, 0, sizeof o);
    o.context = f->T + 20;
    o.chunk = 8;
    for (int at = 1; at <= (f->T - 1) / 8 + 2; at++) {
        mote_session *s = NULL;
        mote_result r;
        int chunks = (f->T - 1) / 8 + 1, last = at > chunks;
        o.callbacks = watch_all(&w, at);
        EXPECT(MOTE_OK, mote_session_open(f->m, &o, &s, &failure));
        EXPECT(last ? MOTE_OK : MOTE_ECANCELLED, mote_feed(s, f->tokens, (size_t)f->T, &failure));
        CHECK(s->count == (last ? f->T : (at - 1) * 8), "%s: %d tokens when cancelled at %d", f->dir, s->count, at);
        CHECK(!w.bad && w.reports == (last ? chunks : at - 1) && (!last || w.last == 1), "%s: progress", f->dir);
        if (s->count < f->T) feed_to(s, f, f->T, "after a cancelled feed");
        w.cancel_at = w.polls + 3;
        EXPECT(MOTE_OK, mote_generate(s, NULL, &r, &failure));
        CHECK(r.stop == MOTE_STOP_CALLBACK && r.generated_tokens == 2, "%s: cancelled generate", f->dir);
        CHECK(s->count == f->T + 2, "%s: %d tokens after a cancelled generate", f->dir, s->count);
        mote_session_close(s);
    }
}

static void test_on_token(const fixture *f) {
    mote_session *s = session_of(f->m, f->T + 30, 0, 1);
    mote_generation g;
    mote_result r;
    mote_sampling p = sampling_of(0, 0, 0, 0);
    id_list list;
    memset(&g, 0, sizeof g);
    memset(&list, 0, sizeof list);
    p.seed = 77;
    feed_to(s, f, f->T, "on_token");
    list.stop_after = 3;
    g.sampling = &p;
    g.on_token = collect_id;
    g.user = &list;
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CALLBACK && r.generated_tokens == 3 && s->count == f->T + 3, "%s: on_token", f->dir);
    CHECK(r.seed == 77 && !memcmp(list.ids, s->tokens + f->T, 12), "%s: what the result says", f->dir);
    g.max_tokens = 4;
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_LENGTH && r.generated_tokens == 4 && list.count == 7, "%s: max_tokens stops", f->dir);
    CHECK(!memcmp(list.ids, f->greedy, 28), "%s: two answers continue each other", f->dir);
    CHECK(r.generate_seconds >= 0, "time");
    mote_session_close(s);
}

// ---- 7. Damaged checkpoints -----------------------------------------------------------------------------------------

// Copies a folder's files into an empty one, `edit` applied to each.
typedef void (*edit_file)(const char *name, buf *bytes);

static void copy_folder(const char *from, const char *to, edit_file edit) {
    DIR *d = opendir(from);
    struct dirent *e;
    char path[800];
    while (d && (e = readdir(d))) {
        buf b;
        memset(&b, 0, sizeof b);
        if (e->d_name[0] == '.' || read_file(from, e->d_name, &b, NULL)) continue;
        if (edit) edit(e->d_name, &b);
        snprintf(path, sizeof path, "%s/%s", to, e->d_name);
        write_file(path, b.data, b.size);
        buf_free(&b);
    }
    if (d) closedir(d);
}

static void clear_folder(const char *dir) {
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[800];
    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
}

// Where the data of the first tensor with this type, and a name that holds `part`, begins in a safetensors file.
static size_t tensor_data(const buf *file, const char *dtype, const char *part) {
    uint64_t header, begin = 0;
    json j;
    char name[256] = "";
    size_t found = 0;
    memcpy(&header, file->data, 8);
    if (!CHECK(!json_parse(&j, file->data + 8, (size_t)header, "header", NULL), "header")) return 0;
    for (uint32_t i = 0, key = 1; i < j.nodes[0].size && !found; i++, key = j.nodes[key + 1].next) {
        uint32_t value = key + 1, offsets = json_get(&j, value, "data_offsets");
        size_t n = json_string(&j, key, name, sizeof name - 1);
        name[n < sizeof name ? n : 0] = 0;
        if (!strstr(name, part) || !json_equals(&j, json_get(&j, value, "dtype"), dtype)) continue;
        if (json_u64(&j, offsets + 1, &begin)) found = 8 + (size_t)header + (size_t)begin;
    }
    json_free(&j);
    CHECK(found, "no %s tensor of %s", part, dtype);
    return found;
}

static void edit_fp8_nan(const char *name, buf *b) {
    if (!strcmp(name, "model.safetensors")) b->data[tensor_data(b, "F8_E4M3", "") + 5] = (char)0xff;
}

static void edit_fp8_nan_positive(const char *name, buf *b) {
    if (!strcmp(name, "model.safetensors")) b->data[tensor_data(b, "F8_E4M3", "") + 700] = 0x7f;
}

static void edit_scale_nan(const char *name, buf *b) {
    if (!strcmp(name, "model.safetensors")) memset(b->data + tensor_data(b, "F32", "weight_scale_inv"), 0xff, 4);
}

static void edit_norm(const char *name, buf *b) {
    if (!strcmp(name, "model.safetensors")) b->data[tensor_data(b, "BF16", "input_layernorm.weight")] ^= 1;
}

static void edit_cut(const char *name, buf *b) {
    if (!strcmp(name, "model.safetensors")) b->size -= 1;
}

static void test_damaged_weights(const fixture *fp8, const char *tmp) {
    static const edit_file edits[] = {edit_fp8_nan, edit_fp8_nan_positive, edit_scale_nan, edit_cut};
    mote_options o;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_WEIGHTS_ONLY;
    for (int i = 0; i < 4; i++) {
        mote_model *m = NULL;
        copy_folder(fp8->dir, tmp, edits[i]);
        EXPECT(MOTE_EFORMAT, mote_open(tmp, &o, &m, &failure));
        CHECK(!m && strstr(failure.message, "model.safetensors"), "damage %d: %s", i, failure.message);
        clear_folder(tmp);
    }
}

// One bit of one norm weight makes another checkpoint: its sessions are not exchanged.
static void test_other_weights(const fixture *fp8, const char *tmp) {
    mote_options o;
    mote_model *m = NULL;
    size_t size;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_WEIGHTS_ONLY;
    copy_folder(fp8->dir, tmp, edit_norm);
    EXPECT(MOTE_OK, mote_open(tmp, &o, &m, &failure));
    clear_folder(tmp);
    if (!m) return;
    mote_session *s = session_of(fp8->m, 20, 0, 1), *t = session_of(m, 20, 0, 1);
    feed_to(s, fp8, 5, "other weights");
    char *bytes = session_bytes(s, &size);
    mote_checkpoint *c = checkpoint_of(s);
    refuse_bytes(t, bytes, size, MOTE_EINVAL, "a session of other weights");
    EXPECT(MOTE_EINVAL, mote_rewind(t, c, &failure));
    mote_checkpoint_free(c);
    mote_session_close(s);
    mote_session_close(t);
    mote_close(m);
    free(bytes);
}

// ---- 8. Misuse, plans, ends of text ---------------------------------------------------------------------------------

static void test_open_misuse(const fixture *f, const char *tmp) {
    mote_model *m = NULL;
    mote_memory plan, untouched;
    mote_session_options so;
    mote_options o;
    char path[600];
    memset(&o, 0, sizeof o);
    memset(&so, 0, sizeof so);
    EXPECT(MOTE_EINVAL, mote_open(NULL, NULL, &m, &failure));
    EXPECT(MOTE_EINVAL, mote_open(f->dir, NULL, NULL, &failure));
    o.parts = -1;
    EXPECT(MOTE_EINVAL, mote_open(f->dir, &o, &m, &failure));
    o.parts = 4;
    EXPECT(MOTE_EINVAL, mote_open(f->dir, &o, &m, &failure));
    EXPECT(MOTE_EIO, mote_open("no/such/folder", NULL, &m, &failure));
    EXPECT(MOTE_EIO, mote_open(tmp, NULL, &m, &failure));                     /* an empty folder */
    snprintf(path, sizeof path, "%s/config.json", f->dir);
    EXPECT(MOTE_EIO, mote_open(path, NULL, &m, &failure));                    /* a file */
    CHECK(mote_open("no/such/folder", NULL, &m, NULL) == MOTE_EIO && !m, "no place for the error");
    o.parts = MOTE_TEXT_ONLY;
    EXPECT(MOTE_EIO, mote_open(f->dir, &o, &m, &failure));                    /* no tokenizer there */
    mote_close(NULL);
    memset(&plan, 0x55, sizeof plan);
    memset(&untouched, 0x55, sizeof untouched);
    EXPECT(MOTE_EINVAL, mote_plan(NULL, NULL, NULL, &plan, &failure));
    EXPECT(MOTE_EINVAL, mote_plan(f->dir, NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EIO, mote_plan("no/such/folder", NULL, NULL, &plan, &failure));
    so.context = -5;
    EXPECT(MOTE_EINVAL, mote_plan(f->dir, NULL, &so, &plan, &failure));
    CHECK(!memcmp(&plan, &untouched, sizeof plan), "a refused plan stays untouched");
}

static void test_session_misuse(const fixture *f) {
    mote_session *s = NULL;
    mote_session_options bad[8];
    memset(bad, 0, sizeof bad);
    bad[0].context = -1;
    bad[1].context = mote_model_info(f->m)->context_max + 1;
    bad[2].chunk = -1;
    bad[3].chunk = MAX_CHUNK + 1;
    bad[4].threads = -1;
    bad[5].threads = MAX_THREADS + 1;
    bad[6].kv = -1;
    bad[7].kv = MOTE_KV_FP8 + 1;
    for (int i = 0; i < 8; i++) EXPECT(MOTE_EINVAL, mote_session_open(f->m, &bad[i], &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(NULL, NULL, &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(f->m, NULL, NULL, &failure));
    CHECK(!s, "a refused session is no session");
    mote_session_close(NULL);
    EXPECT(MOTE_OK, mote_session_open(f->m, NULL, &s, &failure));
    CHECK(s->o.chunk == 32 && s->o.threads == processors(), "defaults as engine.h has them: chunk %d", s->o.chunk);
    int most = mote_model_info(f->m)->context_max;
    CHECK(s->o.context == (most < 8192 ? most : 8192), "default context %d", s->o.context);
    CHECK(mote_context(s) == s->o.context, "mote_context %d", mote_context(s));
    mote_session_close(s);
}

static void test_feed_misuse(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 2, 1);
    int32_t ids[5];
    size_t size, n;
    float *logits = (float *)room((size_t)(5 * f->vocab) * 4);
    feed_to(s, f, 4, "misuse");
    char *bytes = session_bytes(s, &size);
    for (int i = 0; i < 6; i++) {
        static const int32_t bad[] = {-1, 1 << 30, INT32_MIN, INT32_MAX, 0, 0};
        memcpy(ids, f->tokens, sizeof ids);
        ids[i < 4 ? i : 4] = i < 4 ? bad[i] : f->vocab;
        EXPECT(MOTE_EINVAL, mote_feed(s, ids, 5, &failure));
        EXPECT(MOTE_EINVAL, mote_feed_logits(s, ids, 5, logits, NULL, &failure));
    }
    EXPECT(MOTE_EINVAL, mote_feed(s, NULL, 2, &failure));
    EXPECT(MOTE_ECONTEXT, mote_feed(s, ids, SIZE_MAX, &failure));
    if (!f->mtp) EXPECT(MOTE_EUNSUPPORTED, mote_feed_logits(s, f->tokens, 2, logits, logits, &failure));
    EXPECT(MOTE_OK, mote_feed(s, NULL, 0, &failure));
    EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens, 0, NULL, NULL, &failure));
    CHECK(mote_feed(s, NULL, 2, NULL) == MOTE_EINVAL, "no place for the error");
    CHECK(session_is(s, bytes, size) && mote_tokens(s, &n) && n == 4, "%s: refused tokens changed the session", f->dir);
    CHECK(logits[0] == 0 && logits[5 * f->vocab - 1] == 0, "%s: refused tokens wrote logits", f->dir);
    free(bytes);
    free(logits);
    mote_session_close(s);
}

static void test_sampling_misuse(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 0, 1);
    mote_sampling bad[16];
    mote_generation g;
    mote_result r;
    int32_t id = -7;
    size_t size;
    int n = 0;
    feed_to(s, f, 4, "sampling misuse");
    char *bytes = session_bytes(s, &size);
    memset(bad, 0, sizeof bad);
    bad[n++].temperature = -0.1f;
    bad[n++].temperature = NAN;
    bad[n++].temperature = INFINITY;
    bad[n++].top_k = -1;
    bad[n++].top_p = 1.5f;
    bad[n++].top_p = NAN;
    bad[n++].min_p = -1;
    bad[n++].min_p = NAN;
    bad[n++].repetition_penalty = -2;
    bad[n++].repetition_penalty = NAN;
    bad[n++].presence_penalty = INFINITY;
    bad[n++].frequency_penalty = NAN;
    memset(&g, 0, sizeof g);
    for (int i = 0; i < n; i++) {
        g.sampling = &bad[i];
        EXPECT(MOTE_EINVAL, mote_sample(s, &bad[i], &id, &failure));
        EXPECT(MOTE_EINVAL, mote_step(s, &bad[i], &id, &failure));
        EXPECT(MOTE_EINVAL, mote_generate(s, &g, &r, &failure));
    }
    mote_generation wrong[4];
    memset(wrong, 0, sizeof wrong);
    wrong[0].max_tokens = -1;
    wrong[1].stop_count = 1;
    wrong[2].stop_count = -1;
    wrong[3].think = 3;
    for (int i = 0; i < 4; i++) EXPECT(MOTE_EINVAL, mote_generate(s, &wrong[i], &r, &failure));
    CHECK(id == -7 && session_is(s, bytes, size), "%s: refused sampling changed something", f->dir);
    free(bytes);
    mote_session_close(s);
}

// Text calls on a model without a tokenizer.
static void test_weights_only(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 0, 1);
    int32_t ids[4] = {0};
    char text[4];
    size_t n = 99;
    mote_sampling p;
    EXPECT(MOTE_EUNSUPPORTED, mote_tokenize(f->m, "a", 1, 0, ids, 4, &n, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_detokenize(f->m, ids, 1, text, 4, &n, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_render(f->m, "{}", 2, text, 4, &n, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_ask(s, "Hello", NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask(s, NULL, NULL, NULL, &failure));
    CHECK(n == 0 && !mote_token_bytes(f->m, 0, &n), "the count after refused text calls");
    memset(&p, 0x55, sizeof p);
    mote_sampling_defaults(f->m, &p);
    CHECK(p.top_k == 0 && p.repetition_penalty == 0, "defaults without generation_config.json");
    CHECK(!mote_model_info(f->m)->chat_template, "no chat template");
    mote_session_close(s);
}

static int roughly(uint64_t allocated, uint64_t planned) {
    return allocated >= planned && allocated <= planned + 8192;
}

// The plan is what a model and a session hold, for any options.
static void test_plan(const fixture *f) {
    for (int i = 0; i < 5; i++) {
        mote_session_options o;
        mote_memory plan;
        mote_session *s = NULL;
        memset(&o, 0, sizeof o);
        o.context = i ? 10 * i * i + 3 : 0;
        o.chunk = i ? 1 << i : 0;
        o.threads = i;
        EXPECT(MOTE_OK, mote_plan(f->dir, NULL, &o, &plan, &failure));
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

static void test_info(const fixture *f) {
    const mote_info *o = mote_model_info(f->m);
    uint64_t parameters = 0, bytes = 0;
    for (int i = 0; i < o->module_count; i++) {
        CHECK(o->modules[i].name && o->modules[i].dtype && o->modules[i].parameters, "%s: module %d", f->dir, i);
        CHECK(o->modules[i].bytes_per_token <= o->modules[i].bytes, "%s: module %s", f->dir, o->modules[i].name);
        parameters += o->modules[i].parameters;
        bytes += o->modules[i].bytes;
    }
    CHECK(parameters == o->parameters && bytes == o->weight_bytes, "%s: modules do not sum up", f->dir);
    CHECK(o->active_parameters && o->active_parameters <= o->parameters, "%s: active parameters", f->dir);
    CHECK(o->weight_bytes_per_token <= o->weight_bytes, "%s: bytes per token", f->dir);
    CHECK(o->layers == o->attention_layers + o->deltanet_layers, "%s: layers", f->dir);
    CHECK(!strcmp(o->architecture, "qwen3_5_moe") && !strcmp(mote_version(), MOTE_VERSION), "%s: names", f->dir);
}

// A description says what the whole model says, and gives no sessions.
static void test_description(const fixture *f) {
    mote_options o;
    mote_model *m = NULL;
    mote_session *s = NULL;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_DESCRIPTION;
    EXPECT(MOTE_OK, mote_open(f->dir, &o, &m, &failure));
    if (!m) return;
    const mote_info *a = mote_model_info(m), *b = mote_model_info(f->m);
    CHECK(a->parameters == b->parameters && a->weight_bytes == b->weight_bytes && a->module_count == b->module_count &&
          a->layers == b->layers && a->kv_bytes_per_token == b->kv_bytes_per_token, "%s: description", f->dir);
    EXPECT(MOTE_EUNSUPPORTED, mote_session_open(m, NULL, &s, &failure));
    CHECK(!s, "%s: no session on a description", f->dir);
    mote_close(m);
}

static int eos_wanted;           // what edit_eos writes

static void edit_eos(const char *name, buf *b) {
    if (strcmp(name, "config.json")) return;
    char *at = strstr(b->data, "\"eos_token_id\": ");
    if (!CHECK(at != NULL, "eos_token_id in config.json")) return;
    at += strlen("\"eos_token_id\": ");
    size_t digits = strspn(at, "0123456789");
    char text[16];
    snprintf(text, sizeof text, "%*d", (int)digits, eos_wanted);
    memcpy(at, text, digits);
}

// A checkpoint whose end of text is the fourth greedy id: the answer ends there when generation_config.json says so.
// config.json's token only counts where there is text to end, which these fixtures, without tokenizers, have not.
static void test_eos(const fixture *f, const char *tmp, int generation_config, int parts) {
    char path[600], text[64];
    mote_options o;
    mote_model *m = NULL;
    mote_session *s = NULL;
    mote_sampling greedy = sampling_of(0, 0, 0, 0);
    mote_generation g;
    mote_result r;
    memset(&o, 0, sizeof o);
    memset(&g, 0, sizeof g);
    o.parts = parts;
    g.sampling = &greedy;
    eos_wanted = f->greedy[3];
    copy_folder(f->dir, tmp, generation_config ? NULL : edit_eos);
    snprintf(path, sizeof path, "%s/generation_config.json", tmp);
    snprintf(text, sizeof text, "{\"eos_token_id\": [1000000, %d]}", eos_wanted);
    if (generation_config) write_file(path, text, strlen(text));
    EXPECT(MOTE_OK, mote_open(tmp, &o, &m, &failure));
    if (m) EXPECT(MOTE_OK, mote_session_open(m, NULL, &s, &failure));
    if (s) {
        int wanted = 0;
        while (f->greedy[wanted] != eos_wanted) wanted++;
        if (!generation_config) wanted = 7;
        feed_to(s, f, f->T, "eos");
        g.max_tokens = 8;
        EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
        CHECK(r.stop == (generation_config ? MOTE_STOP_EOS : MOTE_STOP_LENGTH) && r.generated_tokens == wanted + 1,
              "%s: end of text (parts %d, generation_config %d): stop %d after %d", f->dir, parts, generation_config,
              r.stop, r.generated_tokens);
    }
    mote_session_close(s);
    mote_close(m);
    clear_folder(tmp);
}

// ---- 9. The bundled model -------------------------------------------------------------------------------------------

typedef struct answer { buf text; int calls, stop_after, thinking, id_count; int32_t ids[256]; } answer;

static int answer_text(void *user, int channel, const char *text, size_t size) {
    answer *a = (answer *)user;
    buf_add(&a->text, text, size);
    a->thinking += channel == MOTE_THINKING;
    return ++a->calls == a->stop_after;
}

static int answer_id(void *user, int32_t id) {
    answer *a = (answer *)user;
    if (a->id_count < 256) a->ids[a->id_count++] = id;
    return 0;
}

static mote_generation generation_of(answer *a, const mote_sampling *p, int max_tokens) {
    mote_generation g;
    memset(&g, 0, sizeof g);
    buf_free(&a->text);
    memset(a, 0, sizeof *a);
    g.sampling = p;
    g.max_tokens = max_tokens;
    g.on_text = answer_text;
    g.on_token = answer_id;
    g.user = a;
    return g;
}

static int text_is(const answer *a, const char *want, size_t n) {
    return a->text.size == n && (!n || !memcmp(a->text.data, want, n));
}

static const char *prompt = "Once upon a time there was a little girl who";

static void feed_text(mote_session *s, const char *text) {
    int32_t ids[256];
    size_t n = 0;
    EXPECT(MOTE_OK, mote_tokenize(s->m, text, strlen(text), 1, ids, 256, &n, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, n, &failure));
}

// A stop text, wherever its pieces fall: the answer is the plain one up to where the text first occurs.
static void test_stop_texts(mote_session *s, const mote_checkpoint *start, const buf *plain, int tokens) {
    mote_sampling greedy = sampling_of(0, 0, 0, 0);
    answer a;
    memset(&a, 0, sizeof a);
    for (size_t at = 0; at + 9 < plain->size; at += 1 + plain->size / 12) {
        char stop[16] = "";
        size_t n = 1 + at % 9;
        const char *stops[3] = {"never in this text", stop, ""};
        mote_result r;
        memcpy(stop, plain->data + at, n);
        const char *first = (const char *)memmem(plain->data, plain->size, stop, n);
        mote_generation g = generation_of(&a, &greedy, tokens);
        g.raw = 1;
        g.stop = stops;
        g.stop_count = 3;
        EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
        CHECK(r.stop == MOTE_STOP_TEXT, "stop text \"%s\": stop %d", stop, r.stop);
        CHECK(text_is(&a, plain->data, (size_t)(first - plain->data)), "stop text \"%s\" gives \"%.*s\"", stop,
              (int)a.text.size, a.text.data);
        CHECK(r.generated_tokens == a.id_count && s->count == start->count + a.id_count, "tokens of an answer");
    }
    mote_generation g = generation_of(&a, &greedy, tokens);
    const char *stops[1] = {"never in this text"};
    g.raw = 1;
    g.stop = stops;
    g.stop_count = 1;
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    CHECK(text_is(&a, plain->data, plain->size), "a stop text that never comes changes nothing");
    buf_free(&a.text);
}

static void test_generated_text(const mote_model *m) {
    mote_session *s = session_of(m, 512, 0, 0);
    mote_sampling greedy = sampling_of(0, 0, 0, 0);
    mote_result r;
    answer a, b;
    char text[2048];
    size_t n = 0;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    feed_text(s, prompt);
    mote_checkpoint *start = checkpoint_of(s);
    mote_generation g = generation_of(&a, &greedy, 40);
    g.raw = 1;
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.generated_tokens == a.id_count && a.id_count > 5 && a.text.size > 20, "a generated text");
    int plain_ids = a.id_count - (r.stop == MOTE_STOP_EOS);
    EXPECT(MOTE_OK, mote_detokenize(m, a.ids, (size_t)plain_ids, text, sizeof text, &n, &failure));
    CHECK(text_is(&a, text, n), "on_text gives what the ids say: \"%.*s\"", (int)a.text.size, a.text.data);
    test_stop_texts(s, start, &a.text, 40);
    g = generation_of(&b, &greedy, 40);
    b.stop_after = 2;
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CALLBACK && b.calls == 2 && r.generated_tokens == b.id_count, "on_text: %d", b.calls);
    buf_free(&a.text);
    buf_free(&b.text);
    mote_checkpoint_free(start);
    mote_session_close(s);
}

// The same seed gives the same text, another one another, and only ids with text are chosen.
static void test_sampled_text(const mote_model *m) {
    mote_session *s = session_of(m, 512, 0, 0);
    mote_sampling p = sampling_of(3, 0, 0, 0);
    answer a[3];
    memset(a, 0, sizeof a);
    feed_text(s, prompt);
    mote_checkpoint *start = checkpoint_of(s);
    for (int i = 0; i < 3; i++) {
        mote_generation g = generation_of(&a[i], &p, 20);
        p.seed = (uint64_t)(1 + i / 2);
        g.raw = 1;
        EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
        size_t n;
        for (int j = 0; j < a[i].id_count; j++) CHECK(mote_token_bytes(m, a[i].ids[j], &n), "id %d", a[i].ids[j]);
    }
    CHECK(a[0].id_count == a[1].id_count && !memcmp(a[0].ids, a[1].ids, sizeof a[0].ids), "the same seed, other ids");
    CHECK(memcmp(a[0].ids, a[2].ids, sizeof a[0].ids) != 0, "another seed, the same ids");
    mote_checkpoint_free(start);
    mote_session_close(s);
    for (int i = 0; i < 3; i++) buf_free(&a[i].text);
}

// Two turns of a conversation, the first answer cut short, are the tokens that the whole text gives.
static void test_ask(const mote_model *m) {
    mote_session *s = session_of(m, 512, 0, 0);
    mote_sampling greedy = sampling_of(0, 0, 0, 0);
    mote_result r;
    answer a;
    size_t n, size;
    char text[4096], what[512];
    memset(&a, 0, sizeof a);
    mote_generation g = generation_of(&a, &greedy, 6);
    g.system = "Be brief.";
    g.think = MOTE_THINK_OFF;
    EXPECT(MOTE_OK, mote_ask(s, "What is a <|im_end|>?", &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_LENGTH && r.generated_tokens == 6 && a.thinking == 0, "a short answer: stop %d", r.stop);
    CHECK(r.prompt_tokens > 5 && s->count == r.prompt_tokens + 6 && r.prompt_seconds > 0, "prompt tokens");
    EXPECT(MOTE_OK, mote_detokenize(m, s->tokens, (size_t)s->count, text, sizeof text, &n, &failure));
    const char *want = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is a <|im_end|>?<|im_end|>\n"
                       "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    CHECK(n > strlen(want) && !memcmp(text, want, strlen(want)), "the first turn is %.*s", (int)n, text);
    int32_t end = tokenizer_find(m->text, "<|im_end|>");
    int ends = 0, first = s->count;
    for (int i = 0; i < s->count - 6; i++) ends += s->tokens[i] == end;
    CHECK(ends == 2, "%d <|im_end|> tokens: the user's is plain text", ends);
    g = generation_of(&a, &greedy, 3);
    g.think = MOTE_THINK_ON;
    EXPECT(MOTE_OK, mote_ask(s, "And?", &g, &r, &failure));
    EXPECT(MOTE_OK, mote_detokenize(m, s->tokens + first, (size_t)r.prompt_tokens, what, sizeof what, &n, &failure));
    want = "<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    CHECK(n == strlen(want) && !memcmp(what, want, n), "the second turn is %.*s", (int)n, what);
    char *bytes = session_bytes(s, &size);
    mote_sampling bad = sampling_of(-1, 0, 0, 0);
    g.sampling = &bad;
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, &r, &failure));
    CHECK(session_is(s, bytes, size), "mote_ask with bad sampling changed the session");
    free(bytes);
    bytes = session_bytes(s, &size);
    g.sampling = &greedy;
    g.role = "king";
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, &r, &failure));
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    g.role = NULL;
    EXPECT(MOTE_ECONTEXT, mote_ask(s, text, &g, &r, &failure));
    CHECK(session_is(s, bytes, size), "a refused mote_ask changed the session");
    free(bytes);
    buf_free(&a.text);
    mote_session_close(s);
}

static void test_text_calls(const mote_model *m) {
    int32_t ids[64];
    char text[64];
    size_t n = 0, needed = 0;
    const char *in = "Gr\xC3\xBC\xC3\x9F Gott, 3 cats!";
    EXPECT(MOTE_EINVAL, mote_tokenize(m, in, strlen(in), 0, NULL, 0, &needed, &failure));
    EXPECT(MOTE_OK, mote_tokenize(m, in, strlen(in), 0, ids, 64, &n, &failure));
    CHECK(n == needed && n > 0, "the size asked for first");
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, n, NULL, 0, &needed, &failure));
    CHECK(needed == strlen(in), "detokenised size %zu", needed);
    EXPECT(MOTE_OK, mote_detokenize(m, ids, n, text, sizeof text, &needed, &failure));
    CHECK(!memcmp(text, in, needed), "there and back");
    EXPECT(MOTE_OK, mote_tokenize(m, "", 0, 1, ids, 64, &n, &failure));
    CHECK(n == 0, "no text, no ids");
    EXPECT(MOTE_OK, mote_detokenize(m, ids, 0, NULL, 0, &n, &failure));
    ids[0] = -1;
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, 1, text, sizeof text, &n, &failure));
    ids[0] = INT32_MAX;
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, 1, text, sizeof text, &n, &failure));
    CHECK(!mote_token_bytes(m, -1, &n) && !mote_token_bytes(m, INT32_MAX, &n), "no bytes for no id");
    EXPECT(MOTE_EINVAL, mote_render(m, "{", 1, text, sizeof text, &n, &failure));
}

static void test_demo(void) {
    const char *dir = "models/demo";
    mote_options o;
    mote_model *m = NULL;
    mote_session *s = NULL;
    mote_sampling p, q;
    memset(&o, 0, sizeof o);
    if (access("models/demo/model.safetensors", R_OK)) {
        test_skip("models/demo is not there");
        return;
    }
    o.parts = MOTE_TEXT_ONLY;
    EXPECT(MOTE_OK, mote_open(dir, &o, &m, &failure));
    if (m) {
        EXPECT(MOTE_EUNSUPPORTED, mote_session_open(m, NULL, &s, &failure));
        CHECK(!s && mote_model_info(m)->layers == 0 && mote_model_info(m)->chat_template, "a model of text only");
        test_text_calls(m);
        mote_close(m);
    }
    m = NULL;
    EXPECT(MOTE_OK, mote_open(dir, NULL, &m, &failure));
    if (!m) return;
    mote_sampling_defaults(m, &p);
    mote_sampling_defaults(m, &q);
    CHECK(p.seed != q.seed && p.top_k == q.top_k && p.temperature >= 0, "sampling defaults");
    test_text_calls(m);
    test_generated_text(m);
    test_sampled_text(m);
    test_ask(m);
    mote_close(m);
}

static void test_reference(fixture *f) {
    static const int chunks[] = {1, 2, 3, 5, 64};
    test_plain(f);
    for (int i = 0; i < 5; i++) test_chunks(f, chunks[i], 1 + i % 3);
    test_chunks(f, 64, 1);
    test_pieces(f);
    test_greedy(f);
    test_speculation(f);
    test_plan(f);
    test_info(f);
}

static void test_states(const fixture *f) {
    test_rewind(f);
    test_stale(f);
    test_stale_rows(f);
    test_clone(f);
    test_save(f);
    test_kv_types(f);
    test_reset_and_full(f);
    test_feed_callbacks(f);
    test_on_token(f);
    test_seeds(f);
    test_logprobs(f);
    test_feed_misuse(f);
    test_partials(f);
    test_description(f);
}

static void test_fixtures(const char *tmp) {
    static const char *const names[] = {"f16-all-delta", "f32-tied", "fp8-f32-scales", "bf16-as-3.5", "bf16-as-3.6",
                                        "fp8-ragged", "mixed-all-attention"};
    enum { COUNT = sizeof names / sizeof *names };
    fixture f[COUNT];
    char dir[128];
    int opened = 0;
    for (int i = 0; i < COUNT; i++) {
        snprintf(dir, sizeof dir, "tests/fixtures/%s", names[i]);
        opened += fixture_open(&f[i], dir);
    }
    if (!CHECK(opened == COUNT, "%d of %d fixtures can be read", opened, COUNT)) return;
    for (int i = 0; i < COUNT; i++) {
        test_reference(&f[i]);
        if (!test_brief || i == 3 || i == 5) test_states(&f[i]);   /* one of BF16, and one of FP8 with odd sizes */
        test_open_callbacks(&f[i], i == 3);
        test_damaged_saves(&f[i], &f[(i + 1) % COUNT]);
    }
    test_distributions(&f[3]);
    test_greedy_choice(&f[0]);
    test_penalties(&f[1]);
    test_concurrent(&f[3], &f[2]);
    test_save_files(&f[0], tmp);
    test_damaged_weights(&f[2], tmp);
    test_other_weights(&f[2], tmp);
    test_open_misuse(&f[1], tmp);
    test_session_misuse(&f[1]);
    test_sampling_misuse(&f[1]);
    test_weights_only(&f[1]);
    test_eos(&f[1], tmp, 1, MOTE_WEIGHTS_ONLY);
    test_eos(&f[1], tmp, 0, MOTE_WEIGHTS_ONLY);
    test_eos(&f[1], tmp, 0, MOTE_EVERYTHING);
    for (int i = 0; i < COUNT; i++) fixture_close(&f[i]);
}

// The reference checkpoints of the data archive.
static void test_data_fixtures(void) {
    static const char *const names[] = {"dev-flat-bf16", "dev-nested-fp8"};
    for (int i = 0; i < 2; i++) {
        char dir[400];
        fixture f;
        if (!test_data_dir()) {
            test_skip("no data folder: its reference checkpoints");
            continue;
        }
        snprintf(dir, sizeof dir, "%s/fixtures/%s", test_data_dir(), names[i]);
        if (!fixture_open(&f, dir)) continue;
        test_reference(&f);
        fixture_close(&f);
    }
}

int main(int argc, char **argv) {
    char tmp[] = "/tmp/mote-test-XXXXXX";
    test_main_begin("test_engine", argc, argv);
    if (!CHECK(mkdtemp(tmp) != NULL, "a folder for files")) return test_main_end();
    test_fixtures(tmp);
    test_data_fixtures();
    test_demo();
    clear_folder(tmp);
    CHECK(rmdir(tmp) == 0, "%s is empty again", tmp);
    return test_main_end();
}
