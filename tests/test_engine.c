// Tests of engine.cu: checkpoints with reference results, sessions in every state, sampling, and misuse of the API.
//
// Contents   1. Helpers                  2. Reference results        3. Blocks kept in part     4. Rewinding, copies, files
//            5. Sampling                 6. Threads and callbacks    7. Damaged checkpoints     8. Misuse, plans, ends of text
//            9. The bundled model

#include "../engine.cu"
#include "test.h"

#include <dirent.h>
#include <malloc.h>

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

static uint64_t random_state = 88172645463325252u;

static int random_int(int low, int high) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return low + (int)((random_state >> 33) % (uint64_t)(high - low + 1));
}

static float random_float(void) {
    return (float)random_int(-1000000, 1000000) / 1e6f;
}

static void *room(size_t bytes) {
    void *p = calloc(1, bytes + 1);
    if (!p) exit(2);
    return p;
}

static mote_error failure;       // of the last call given to EXPECT

// The call returns `want`, and fills the error then and only then, with one line.
static void expect(int want, int code, int line, const char *call) {
    size_t n = strnlen(failure.message, sizeof failure.message);
    test_check(code == want, __FILE__, line, "%s is %d, expected %d: %s", call, code, want, code ? failure.message : "");
    if (!code) return;
    test_check(failure.code == code, __FILE__, line, "%s: error code %d", call, failure.code);
    test_check(n > 0 && n < sizeof failure.message && !strchr(failure.message, '\n'), __FILE__, line, "%s: message", call);
}

#define EXPECT(want, call) (memset(&failure, 0, sizeof failure), expect(want, call, __LINE__, #call))

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

// A whole session as bytes.
static char *session_bytes(const mote_session *s, size_t *size) {
    char *bytes;
    EXPECT(MOTE_EINVAL, mote_save(s, NULL, 0, size, &failure));
    bytes = (char *)room(*size);
    EXPECT(MOTE_OK, mote_save(s, bytes, *size, size, &failure));
    return bytes;
}

// Is the session what it was when `bytes` were taken?
static int session_is(const mote_session *s, const char *bytes, size_t size) {
    size_t n;
    char *now = session_bytes(s, &n);
    int same = n == size && !memcmp(now, bytes, n);
    free(now);
    return same;
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
    CHECK(s->count == to && same_row(f, mote_logits(s), to - 1), "%s: %s: logits after %d tokens differ", f->dir, what, to);
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
        size_t at = (size_t)t * (size_t)f->vocab, mtp_at = at - (t ? (size_t)f->vocab : 0);
        EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens + t, 1, f->plain + at, f->mtp ? f->plain_mtp + mtp_at : NULL, &failure));
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
    if (f->mtp) CHECK(!memcmp(mtp, f->plain_mtp, mtp_rows * 4), "%s: chunks of %d, %d threads: MTP", f->dir, chunk, threads);
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
        size_t bytes = (size_t)(n * f->vocab) * 4, mtp_bytes = (size_t)((n - (first == 0)) * f->vocab) * 4;
        CHECK(!memcmp(logits, plain_row(f, first), bytes), "%s: piece of %d at %d", f->dir, n, first);
        if (f->mtp && first)
            CHECK(!memcmp(mtp, f->plain_mtp + (size_t)(first - 1) * (size_t)f->vocab, mtp_bytes), "%s: MTP of a piece", f->dir);
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
    mote_reset(s);
    feed_to(s, f, f->T, "greedy again");
    g.sampling = &greedy;
    g.on_token = collect_id;
    g.user = &list;
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(list.count == f->greedy_count && !memcmp(list.ids, f->greedy, (size_t)list.count * 4), "%s: mote_generate", f->dir);
    CHECK(r.stop == MOTE_STOP_CONTEXT && r.generated_tokens == f->greedy_count, "%s: generated %d", f->dir, r.generated_tokens);
    mote_session_close(s);
}

// ---- 3. Blocks kept in part -----------------------------------------------------------------------------------------

// A draft of T rows behind the timeline of which `keep` are the tokens of the fixture and the others wrong.
static void draft(mote_session *s, const fixture *f, int T, int keep) {
    int32_t ids[BLOCK];
    float *logits = (float *)room((size_t)(T * f->vocab) * 4);
    int first = s->count;
    for (int t = 0; t < T; t++) ids[t] = t < keep ? f->tokens[first + t] : (f->tokens[first + t] + 1 + t) % f->vocab;
    forward(s, ids, T, logits, NULL);
    CHECK(!memcmp(logits, plain_row(f, first), (size_t)(keep * f->vocab) * 4), "%s: draft of %d at %d", f->dir, T, first);
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
    CHECK(same_row(f, mote_logits(s), first + next - 1), "%s: %d of %d kept at %d, then %d", f->dir, keep, T, before, next);
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
            for (int next = 1; next <= 6; next++) test_partial(f, next % 3 ? 11 : next / 3 - 1, T, keep, next);
}

// A whole prompt by random drafts, with copies, saved states and rewinds in between, all taken between blocks.
static void test_speculation(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 16, 2), *copy = NULL;
    mote_checkpoint *c = NULL;
    while (s->count < f->T - BLOCK) {
        int T = random_int(1, BLOCK), keep = random_int(1, T), kind = random_int(0, 5);
        draft(s, f, T, keep);
        if (kind == 0) {
            EXPECT(MOTE_OK, mote_clone(s, &copy, &failure));
            mote_session_close(s);
            s = copy;
        } else if (kind == 1) {
            EXPECT(MOTE_OK, mote_checkpoint_take(s, &c, &failure));
            if (s->count + 6 <= f->T) feed_to(s, f, s->count + 6, "to be undone");
            EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
            mote_checkpoint_free(c);
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
    mote_reset(s);
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

static void test_clone(const fixture *f) {
    mote_session *s = session_of(f->m, f->T, 3, 2), *a = NULL, *b = NULL;
    int32_t wrong = (f->tokens[10] + 1) % f->vocab;
    EXPECT(MOTE_OK, mote_clone(s, &b, &failure));
    feed_to(b, f, 4, "clone of an empty session");
    mote_session_close(b);
    feed_to(s, f, 10, "clone");
    EXPECT(MOTE_OK, mote_clone(s, &a, &failure));
    CHECK(a->o.context == s->o.context && a->o.chunk == s->o.chunk && a->o.threads == s->o.threads, "options of a clone");
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
    CHECK(code == want && failure.code == want && failure.message[0], "%s: %d, expected %d: %s", what, code, want, failure.message);
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
    refuse_bytes(t, NULL, 0, MOTE_EFORMAT, "no bytes");
    refuse_bytes(small, bytes, size, MOTE_ECONTEXT, "too small a context");
    refuse_bytes(foreign, bytes, size, MOTE_EINVAL, "another checkpoint");
    for (size_t bit = 0; bit < 8 * sizeof(saved_header); bit++) {
        size_t at = bit / 8;
        int in_count = at >= offsetof(saved_header, count) && at < offsetof(saved_header, generated_from);
        bytes[at] = (char)(bytes[at] ^ 1 << bit % 8);
        if (at < offsetof(saved_header, fingerprint)) refuse_bytes(t, bytes, size, MOTE_EFORMAT, "another magic");
        else if (at < offsetof(saved_header, count)) refuse_bytes(t, bytes, size, MOTE_EINVAL, "another fingerprint");
        else if (in_count) {
            int32_t count;
            memcpy(&count, bytes + offsetof(saved_header, count), 4);
            refuse_bytes(t, bytes, size, count > f->T ? MOTE_ECONTEXT : MOTE_EFORMAT, "another count");
        } else if (mote_load(s, bytes, size, NULL) == MOTE_OK) {
            EXPECT(MOTE_OK, mote_feed(s, f->tokens, 3, &failure));        /* wrong, perhaps, but safe */
        }
        bytes[at] = (char)(bytes[at] ^ 1 << bit % 8);
    }
    memset(bytes + sizeof(saved_header), 0x7f, 4);
    refuse_bytes(t, bytes, size, MOTE_EFORMAT, "an id outside the vocabulary");
    feed_to(t, f, f->T, "after all refusals");
    free(bytes);
    mote_session *all[] = {s, t, foreign, small};
    for (int i = 0; i < 4; i++) mote_session_close(all[i]);
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
    EXPECT(MOTE_EIO, mote_load_file(t, NULL, &failure));
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
    mote_reset(s);
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
