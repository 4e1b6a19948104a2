// Prompts read by prefill, on a GPU, through the API: synthetic models of real layer sizes. What decode makes of the same tokens,
// fed a few at a time, is near; what the same call makes again, or in other chunks, is the same bit for bit.
//
// Usage: gpu_prefill [--brief] MODEL...      names of mote_open_synthetic, as small:fp8, or checkpoint folders
//
// Contents   1. Prompts   2. Against decode   3. The same bits   4. What follows a prompt   5. Cancelling   6. Main

#include "api.h"

#include <limits.h>

// ---- 1. Prompts -----------------------------------------------------------------------------------------------------

enum { CONTEXT = 2112, LONGEST = 2100, FEW = 8, FIRST = 16 };     // FEW rows at a time are decoded

static const char *name;
static mote_model *model;
static int vocab, has_mtp;
static int32_t random_ids[LONGEST], same_ids[LONGEST];
static float *want, *want_mtp, *got, *got_mtp;               // [LONGEST][vocab]; NULL: without an MTP layer

static void make_ids(void) {
    uint64_t r = 1;
    for (int i = 0; i < LONGEST; i++) {
        r = r * 6364136223846793005u + 1442695040888963407u;
        random_ids[i] = (int32_t)((r >> 33) % (uint64_t)vocab);
        same_ids[i] = 7;
    }
}

// Feeds ids[from..end-1], `piece` at a time, with the logits of all rows.
static void feed(mote_session *s, const int32_t *ids, int from, int end, int piece, float *logits, float *mtp) {
    size_t row = (size_t)vocab;
    for (int i = from; i < end; i += piece) {
        int n = end - i < piece ? end - i : piece;
        EXPECT(MOTE_OK, mote_feed_logits(s, ids + i, (size_t)n, logits ? logits + (size_t)i * row : NULL,
                                         mtp ? mtp + (size_t)(i ? i - 1 : 0) * row : NULL, &failure));
    }
}

// ---- 2. Against decode ----------------------------------------------------------------------------------------------

// How far n rows of MTP logits are off.
static double mtp_off(int n) {
    return has_mtp ? off(got_mtp, want_mtp, (size_t)n * (size_t)vocab) : 0;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// How far the nearest twentieth of n rows is off.
static double nearest_off(const float *a, const float *b, int n) {
    static double each[LONGEST];
    if (!a) return 0;
    for (int i = 0; i < n; i++) each[i] = off(a + (size_t)i * (size_t)vocab, b + (size_t)i * (size_t)vocab, (size_t)vocab);
    qsort(each, (size_t)n, sizeof *each, compare_doubles);
    return each[n / 20];
}

// Two roundings of the same sums may choose another expert for a row, here of random ones; such rows differ by a tenth or more, and
// where all tokens are the same, one turned choice is many. So the nearest rows say how exact a kernel is, they differ by 0.002 to
// 0.004, and all rows only that nothing is wrong, which differs by 1. The C engine with each product's input rounded to F16 is off
// by up to 0.05 from the one without for random tokens, and by 0.08 for equal ones (130 of them, FP8).
//
// Where all mixers are attention of few heads (small-oss), a turned row's keys and values turn rows after it: on an H200 the rows before the first
// one, 19 in MXFP4 and 28 in BF16, differed by 0.005 to 0.008, most of those after it by 0.03 to 0.3. There the first rows say how exact a kernel is;
// windows, which end after them, are the self-test's, stage by stage.
static int first_rows_near(const float *a, const float *b) {
    int near = 0;
    while (near < FIRST && off(a + (size_t)near * (size_t)vocab, b + (size_t)near * (size_t)vocab, (size_t)vocab) < 0.01) near++;
    return near == FIRST;
}

static void against_decode(const int32_t *ids, int most, double allowed) {
    static const int lengths[] = {16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 95, 96, 97, 127, 128, 129, 130, 200, 1000, 2100};
    size_t row = (size_t)vocab;
    mote_session *s = session_of(model, .context = CONTEXT);
    feed(s, ids, 0, most, FEW, want, want_mtp);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int n = lengths[i];
        if (n > most || (test_brief && i % 5 != 1)) continue;
        EXPECT(MOTE_OK, mote_reset(s, &failure));
        feed(s, ids, 0, n, n, got, got_mtp);
        double all = off(got, want, (size_t)n * row), mtp = mtp_off(n - 1);
        CHECK(all < allowed && mtp < allowed, "%s, %d tokens: logits off %.2g, MTP logits %.2g", name, n, all, mtp);
        all = nearest_off(got, want, n);
        mtp = nearest_off(got_mtp, want_mtp, n - 1);
        CHECK((all < 0.01 && mtp < 0.01) || (!has_mtp && first_rows_near(got, want)), "%s, %d tokens: the nearest rows' logits off %.2g, MTP logits %.2g",
              name, n, all, mtp);
        CHECK(!memcmp(mote_logits(s), got + (size_t)(n - 1) * row, row * 4) ||
              off(mote_logits(s), got + (size_t)(n - 1) * row, row) < 1e-2, "%s, %d tokens: the last row", name, n);
    }
    mote_session_close(s);
}

// ---- 3. The same bits -----------------------------------------------------------------------------------------------

static void same_bits(void) {
    static const struct { int chunk, piece; } ways[] = {      // no call has 64 tokens or fewer: those are decoded
        {0, 1000}, {0, 1000}, {64, 1000}, {100, 1000}, {192, 1000}, {512, 1000}, {8192, 1000}, {0, 128}, {0, 256}, {64, 448}};
    size_t bytes = 1000 * (size_t)vocab * 4, mtp_bytes = 999 * (size_t)vocab * 4, size = 0;
    char *state = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        mote_session *s = session_of(model, .context = CONTEXT, .chunk = ways[i].chunk);
        feed(s, random_ids, 0, 1000, ways[i].piece, i ? got : want, i ? got_mtp : want_mtp);
        if (!i) state = session_bytes(s, &size);
        CHECK(!i || (!memcmp(got, want, bytes) && (!has_mtp || !memcmp(got_mtp, want_mtp, mtp_bytes))),
              "%s: chunk %d, %d tokens a call: other logits", name, ways[i].chunk, ways[i].piece);
        CHECK(session_is(s, state, size), "%s: chunk %d, %d tokens a call: another state", name, ways[i].chunk, ways[i].piece);
        mote_session_close(s);
    }
    free(state);
}

// The longest prompt at once and in chunks of half of it: rows of experts meet other rows in their tiles.
static void in_halves(void) {
    const size_t bytes = LONGEST * (size_t)vocab * 4;
    mote_session *s = session_of(model, .context = CONTEXT), *halves = session_of(model, .context = CONTEXT, .chunk = 1024);
    feed(s, random_ids, 0, LONGEST, LONGEST, want, NULL);
    feed(halves, random_ids, 0, LONGEST, LONGEST, got, NULL);
    CHECK(!memcmp(got, want, bytes), "%s: %d tokens in chunks of 1024: other logits", name, LONGEST);
    mote_session_close(s);
    mote_session_close(halves);
}

// Every split of 200 tokens into two calls: near one call.
static void splits(double turned) {
    size_t row = (size_t)vocab;
    mote_session *s = session_of(model, .context = CONTEXT);
    feed(s, random_ids, 0, 200, 200, want, want_mtp);
    for (int first = 1; first < 200; first += test_brief ? 61 : 1) {
        EXPECT(MOTE_OK, mote_reset(s, &failure));
        feed(s, random_ids, 0, first, first, got, got_mtp);
        feed(s, random_ids, first, 200, 200, got, got_mtp);
        double all = off(got, want, 200 * row), mtp = mtp_off(199);
        CHECK(all < turned && mtp < turned, "%s: %d tokens, then %d: logits off %.2g, MTP logits %.2g", name, first, 200 - first,
              all, mtp);
    }
    mote_session_close(s);
}

// ---- 4. What follows a prompt ---------------------------------------------------------------------------------------

// Steps after a prompt, a saved, a cloned and a rewound one: the same tokens. A prompt after steps: near what decode makes.
static void followed(void) {
    int32_t plain[24], other[24];
    size_t size, row = (size_t)vocab;
    mote_session *s = session_of(model, .context = CONTEXT), *b = session_of(model, .context = CONTEXT), *c = NULL;
    feed(s, random_ids, 0, 300, 300, NULL, NULL);
    mote_checkpoint *at = checkpoint_of(s);
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_clone(s, &c, &failure));
    for (int i = 0; i < 24; i++) EXPECT(MOTE_OK, mote_step(s, NULL, &plain[i], &failure));
    EXPECT(MOTE_OK, mote_load(b, bytes, size, &failure));
    for (int k = 0; k < 3; k++) {
        mote_session *of = k == 0 ? b : k == 1 ? c : s;
        if (k == 2) EXPECT(MOTE_OK, mote_rewind(s, at, &failure));
        for (int i = 0; i < 24; i++) EXPECT(MOTE_OK, mote_step(of, NULL, &other[i], &failure));
        CHECK(!memcmp(plain, other, sizeof plain), "%s: %s", name, k == 0 ? "saved" : k == 1 ? "cloned" : "rewound");
    }
    feed(s, random_ids, 0, 150, 150, got, NULL);
    EXPECT(MOTE_OK, mote_reset(b, &failure));
    feed(b, random_ids, 0, 300, 300, NULL, NULL);
    for (int i = 0; i < 24; i += FEW) EXPECT(MOTE_OK, mote_feed(b, plain + i, FEW, &failure));
    feed(b, random_ids, 0, 150, FEW, want, NULL);
    CHECK(off(got, want, 150 * row) < 0.06, "%s: a prompt after steps: logits off %.2g", name, off(got, want, 150 * row));
    mote_checkpoint_free(at);
    free(bytes);
    mote_session_close(s);
    mote_session_close(b);
    mote_session_close(c);
}

// With drafts, the tokens of plain decoding and its state.
static void drafted(void) {
    mote_sampling greedy = {0};
    for (int drafts = 1; drafts <= 3; drafts++) {
        mote_session *s = session_of(model, .context = CONTEXT, .mtp = drafts);
        mote_generation g = {.sampling = &greedy, .max_tokens = 64, .raw = 1, .verify = 1};
        for (int i = 0; i < 2; i++) {
            feed(s, random_ids, 0, 100 + 37 * drafts, LONGEST, NULL, NULL);
            EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
        }
        mote_session_close(s);
    }
}

// The last token of the context is used, and one more refused.
static void context_ends(void) {
    for (int context = 100; context < 104; context++) {
        mote_session *s = session_of(model, .context = context);
        EXPECT(MOTE_ECONTEXT, mote_feed(s, random_ids, (size_t)context + 1, &failure));
        feed(s, random_ids, 0, context, context, got, NULL);
        CHECK(count_of(s) == context, "%s: a context of %d", name, context);
        EXPECT(MOTE_ECONTEXT, mote_feed(s, random_ids, 1, &failure));
        mote_session_close(s);
    }
}

// ---- 5. Cancelling --------------------------------------------------------------------------------------------------

static int polls_left;

static int cancel(void *user) {
    (void)user;
    return polls_left-- <= 0;
}

// Cancelled at any place, the timeline ends at a chunk, and goes on from there as if nothing had happened.
static void cancelled(void) {
    enum { N = 300 };
    size_t row = (size_t)vocab;
    mote_callbacks c = {.cancel = cancel};
    mote_session *s = session_of(model, .context = CONTEXT, .chunk = 128, .callbacks = c);
    polls_left = INT_MAX;
    feed(s, random_ids, 0, 40, 40, NULL, NULL);
    feed(s, random_ids, 40, 40 + N, N, want, NULL);
    for (int polls = 0, code = MOTE_ECANCELLED; code && polls < 100; polls++) {
        polls_left = INT_MAX;
        EXPECT(MOTE_OK, mote_reset(s, &failure));
        feed(s, random_ids, 0, 40, 40, NULL, NULL);
        polls_left = polls;
        EXPECT_EITHER(MOTE_OK, MOTE_ECANCELLED, code = mote_feed(s, random_ids + 40, N, &failure));
        int count = count_of(s);
        polls_left = INT_MAX;
        CHECK(count == 40 || count == 128 || count == 256 || count == 40 + N, "%s: %d tokens after a cancel", name, count);
        CHECK((count == 40 + N) == !code, "%s: %d tokens, code %d", name, count, code);
        if (count > 40) CHECK(same_logits(s, want + (size_t)(count - 1) * row, vocab) ||
              off(mote_logits(s), want + (size_t)(count - 1) * row, row) < 1e-2, "%s: logits after a cancel", name);
        if (!code) break;
        feed(s, random_ids, count, 40 + N, 40 + N - count, got, NULL);
        CHECK(!memcmp(got + (size_t)count * row, want + (size_t)count * row, (size_t)(40 + N - count) * row * 4),
              "%s: cancelled after %d polls at %d tokens, then other logits", name, polls, count);
    }
    mote_session_close(s);
}

// ---- 6. Main --------------------------------------------------------------------------------------------------------

static void run_model(void) {
    size_t bytes;
    mote_options how = {.device = "cuda", .parts = MOTE_WEIGHTS_ONLY};
    EXPECT(MOTE_OK, strchr(name, '/') ? mote_open(name, &how, &model, &failure) : mote_open_synthetic(name, &how, &model, &failure));
    if (!model) return;
    vocab = mote_model_info(model)->vocab_size;
    has_mtp = mote_model_info(model)->mtp_layers > 0;
    CHECK(mote_model_info(model)->prefill_from > 0, "%s: its prompts are decoded", name);
    bytes = (size_t)LONGEST * (size_t)vocab * 4;
    want = (float *)allocate(bytes);
    want_mtp = has_mtp ? (float *)allocate(bytes) : NULL;
    got = (float *)allocate(bytes);
    got_mtp = has_mtp ? (float *)allocate(bytes) : NULL;
    make_ids();
    against_decode(random_ids, test_brief ? 130 : LONGEST, has_mtp ? 0.06 : 0.3);
    against_decode(same_ids, test_brief ? 130 : 1000, has_mtp ? 0.15 : 0.3);
    if (!test_brief) same_bits();
    in_halves();
    splits(has_mtp ? 0.06 : 0.3);
    followed();
    drafted();
    context_ends();
    cancelled();
    free(want);
    free(want_mtp);
    free(got);
    free(got_mtp);
    mote_close(model);
}

int main(int argc, char **argv) {
    int i = 1;
    if (i < argc && !strcmp(argv[i], "--brief")) test_brief = 1, i++;
    test_main_begin("gpu_prefill", 0, NULL);
    for (; i < argc; i++) name = argv[i], run_model();
    return test_main_end();
}
