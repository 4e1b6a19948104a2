// Tests of speculation (generate/speculation.c) through the API, on the CPU or a GPU: whatever is drafted, tokens, logits and
// state are those of plain decoding. Plain: a session without the MTP layer.
//
// Contents   1. Helpers       2. Answers           3. How answers end       4. Between answers      5. Random use
//            6. Distribution  7. Options           8. Broken MTP layers     9. Measured cycles     10. All of it
//
// Usage: test_speculation [--device NAME] [--brief] [DATA [PROMPTS]]. PROMPTS: how many questions are asked with all depths,
// and more of everything.

#include "api.h"
#include "files.h"

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

enum { CONTEXT = 512, DEPTHS = 4, MOST_TEXT = 4096 };
enum { ANSWER = 40, ENDS = 24, BEHIND = 8 };     // tokens: of an answer to compare with; where others end; how they go on

static const int depths[DEPTHS] = {MOTE_MTP_AUTO, 1, 2, 3};

// Greedy; almost greedy; the model's own distribution; with penalties, which the host applies; and one so hot that most
// drafts fail.
enum { GREEDY, MILD, WHOLE, PENALTIES, HOT, KINDS };

static const mote_sampling samplings[KINDS] = {
    {0},
    {.temperature = 0.7f, .top_k = 20, .top_p = 0.9f},
    {.temperature = 1},
    {.temperature = 1.2f, .top_k = 40, .min_p = 0.05f, .repetition_penalty = 1.1f, .presence_penalty = 0.5f},
    {.temperature = 4, .top_k = 40}};

static mote_sampling sampling_of(int kind, int seed) {
    mote_sampling p = samplings[kind];
    p.seed = (uint64_t)seed;
    return p;
}

// With so many drafts, and one thread: the models are so small that more would only wait for each other.
static mote_session *session_of_depth(const mote_model *m, int mtp, int context) {
    return session_of(m, .mtp = mtp, .context = context, .threads = 1);
}

typedef struct reply {
    int32_t ids[CONTEXT];
    char text[MOST_TEXT];
    size_t size;
    int count, stop_at;          // on_token stops at that count; 0: never
    mote_result r;
} reply;

static int reply_id(void *user, int32_t id) {
    reply *a = (reply *)user;
    if (a->count < CONTEXT) a->ids[a->count++] = id;
    return a->count == a->stop_at;
}

static int reply_text(void *user, int channel, const char *text, size_t size) {
    reply *a = (reply *)user;
    if (a->size + size <= MOST_TEXT) memcpy(a->text + a->size, text, size);
    a->size += size;
    (void)channel;
    return 0;
}

static mote_generation generation_of(reply *a, const mote_sampling *p, int max_tokens, int stop_at) {
    mote_generation g = {.sampling = p, .max_tokens = max_tokens, .raw = 1, .on_text = reply_text, .on_token = reply_id};
    memset(a, 0, sizeof *a);
    a->stop_at = stop_at;
    g.user = a;
    return g;
}

// Continues the timeline by at most max_tokens (0: no limit).
static void generate(mote_session *s, const mote_sampling *p, int max_tokens, int stop_at, reply *a) {
    mote_generation g = generation_of(a, p, max_tokens, stop_at);
    EXPECT(MOTE_OK, mote_generate(s, &g, &a->r, &failure));
}

static int same_ids(const reply *a, const int32_t *want, int n) {
    return a->count == n && !memcmp(a->ids, want, (size_t)n * sizeof *want);
}

static int same_reply(const reply *a, const reply *b) {
    return a->r.stop == b->r.stop && a->r.generated_tokens == a->count && same_ids(a, b->ids, b->count) &&
           a->size == b->size && !memcmp(a->text, b->text, a->size < MOST_TEXT ? a->size : MOST_TEXT);
}

// Plain decoding behind a prompt: tokens, and the logits behind each.
typedef struct plain {
    const mote_model *m;
    mote_sampling p;
    int vocab, prompt, count;
    int32_t ids[CONTEXT];        // the prompt, and `count` tokens generated behind it, none of which ends the text
    float *logits;               // [count + 1][vocab]
} plain;

static const int32_t *plain_ids(const plain *w, int from) {
    return w->ids + w->prompt + from;
}

static const float *plain_logits(const plain *w, int n) {
    return w->logits + (size_t)n * (size_t)w->vocab;
}

// A seed with which the answer does not end before `count` tokens, on a session at the end of the prompt.
static void plain_seed(plain *w, mote_session *s) {
    mote_checkpoint *start = checkpoint_of(s);
    reply *a = (reply *)room(sizeof *a);
    for (int i = 0; i < 100 && a->count < w->count; i++, w->p.seed++) {
        EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
        generate(s, &w->p, w->count, 0, a);
        if (a->r.stop == MOTE_STOP_LENGTH) break;
    }
    CHECK(a->r.stop == MOTE_STOP_LENGTH, "an answer of %d tokens, wanted %d", a->count, w->count);
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    mote_checkpoint_free(start);
    free(a);
}

static void plain_open(plain *w, const mote_model *m, const int32_t *ids, int prompt, int kind, int count) {
    mote_session *s = session_of_depth(m, MOTE_MTP_OFF, CONTEXT);
    memset(w, 0, sizeof *w);
    w->m = m;
    w->p = sampling_of(kind, 1);
    w->vocab = mote_model_info(m)->vocab_size;
    w->prompt = prompt;
    w->count = count;
    size_t row = (size_t)w->vocab * sizeof(float);
    w->logits = (float *)room((size_t)(count + 1) * row);
    memcpy(w->ids, ids, (size_t)prompt * sizeof *ids);
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)prompt, &failure));
    plain_seed(w, s);
    memcpy(w->logits, mote_logits(s), row);
    int code = MOTE_OK;
    for (int i = 0; i < count; i++) {
        code |= mote_step(s, &w->p, &w->ids[prompt + i], &failure);
        memcpy((char *)w->logits + (size_t)(i + 1) * row, mote_logits(s), row);
    }
    CHECK(!code, "plain decoding: %s", failure.message);
    mote_session_close(s);
}

static void plain_close(plain *w) {
    free(w->logits);
}

static mote_session *session_at(const plain *w, int mtp, int context) {
    mote_session *s = session_of_depth(w->m, mtp, context);
    EXPECT(MOTE_OK, mote_feed(s, w->ids, (size_t)w->prompt, &failure));
    return s;
}

static const int32_t some_ids[] = {4, 11, 5, 7, 3};

// The questions that the demo model learned from, and those kept from it.
typedef struct questions { char text[4096][128]; int count; } questions;

static void questions_add(questions *q, const char *path) {
    char line[1024];
    FILE *file = fopen(path, "r");
    if (!CHECK(file != NULL, "%s cannot be read", path)) return;
    while (fgets(line, sizeof line, file)) {
        size_t n = strcspn(line, "\n");
        if ((strncmp(line, "Q: ", 3) && strncmp(line, "H: ", 3)) || n > 128 || q->count == 4096) continue;
        line[n] = 0;
        memcpy(q->text[q->count++], line + 3, n - 2);
    }
    fclose(file);
}

static questions *questions_read(void) {
    questions *q = (questions *)room(sizeof *q);
    questions_add(q, "tools/demo_questions/concepts.txt");
    questions_add(q, "tools/demo_questions/mote.txt");
    CHECK(q->count > 1000, "%d questions", q->count);
    return q;
}

// Number i of n, from all over.
static const char *question(const questions *q, int i, int n) {
    return q->text[(size_t)i * (size_t)q->count / (size_t)n];
}

// The token ids of a question in its turn.
static int question_ids(const mote_model *m, const char *text, int32_t *ids) {
    mote_session *s = session_of_depth(m, MOTE_MTP_OFF, CONTEXT);
    mote_generation g = {.sampling = &samplings[GREEDY], .max_tokens = 1, .think = MOTE_THINK_OFF};
    mote_result r = {0};
    size_t n;
    EXPECT(MOTE_OK, mote_ask(s, text, &g, &r, &failure));
    memcpy(ids, mote_tokens(s, &n), (size_t)r.prompt_tokens * sizeof *ids);
    mote_session_close(s);
    return r.prompt_tokens;
}

// ---- 2. Answers -----------------------------------------------------------------------------------------------------

static void ask(mote_session *s, const char *text, const mote_sampling *p, int max_tokens, reply *a) {
    mote_generation g = generation_of(a, p, max_tokens, 0);
    g.think = MOTE_THINK_OFF;
    mote_reset(s, NULL);
    EXPECT(MOTE_OK, mote_ask(s, text, &g, &a->r, &failure));
}

// Counts of a session add up, and make sense for `tokens` generated.
static void check_counts(const mote_session *s, int mtp, uint64_t tokens) {
    mote_speculation x = {0};
    uint64_t passes = 0, accepted = 0;
    EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
    for (int i = 0; i < 4; i++) passes += x.passes[i];
    for (int i = 0; i < 3; i++) {
        uint64_t reached = i ? x.accepted[i - 1] : passes - x.passes[0];
        accepted += x.accepted[i];
        CHECK(x.accepted[i] <= x.drafted[i] && x.drafted[i] <= reached, "depth %d: draft %d", mtp, i + 1);
    }
    CHECK(x.drafted[0] == passes - x.passes[0], "depth %d: first drafts", mtp);
    CHECK(x.tokens == tokens, "depth %d: %d tokens, generated %d", mtp, (int)x.tokens, (int)tokens);
    CHECK(x.tokens <= passes + accepted, "depth %d: %d tokens of %d passes", mtp, (int)x.tokens, (int)passes);
    if (mtp > 0) CHECK(x.depth == mtp, "depth %d: %d", mtp, x.depth);
    if (mtp == MOTE_MTP_OFF) CHECK(x.depth == 0 && passes == x.passes[0], "drafts without the MTP layer");
    uint64_t digits[4] = {0};
    size_t n = strnlen(x.recent, sizeof x.recent);
    for (size_t i = 0; i < n; i++)
        if (CHECK(x.recent[i] >= '0' && x.recent[i] <= '3', "recent: %s", x.recent)) digits[x.recent[i] - '0']++;
    CHECK(n == (passes < 64 ? passes : 64), "depth %d: %d passes, recent: %s", mtp, (int)passes, x.recent);
    for (int i = 0; i < 4; i++)
        CHECK(digits[i] <= x.passes[i] && (passes > 64 || digits[i] == x.passes[i]), "depth %d: recent: %s", mtp, x.recent);
    for (int i = 0; i < 4; i++) {
        int measured = mtp == MOTE_MTP_AUTO && passes;
        CHECK(measured ? x.cost[i] > 0 : x.cost[i] == 0, "depth %d: cost %g", mtp, x.cost[i]);
        CHECK(x.draft[i] >= 0 && x.draft[i] <= x.cost[i] && (!measured || !i || x.draft[i] > 0), "depth %d: draft %g", mtp,
              x.draft[i]);
    }
}

// With three drafts and a few prompts, passes of every accepted length.
static void check_lengths(const mote_session *s) {
    mote_speculation x = {0};
    EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
    for (int i = 0; i < 3; i++)
        CHECK(x.drafted[i] > x.accepted[i], "no pass accepted %d of 3 drafts and refused the next", i);
    CHECK(x.accepted[2] > 0, "no pass accepted 3 drafts");
}

// Questions asked with every depth and kind of sampling, few of them with the hottest: the same answers.
static void test_equality(const mote_model *m, const questions *q, int prompts, int max_tokens) {
    mote_session *off = session_of_depth(m, MOTE_MTP_OFF, CONTEXT), *s[DEPTHS];
    reply *want = (reply *)room(sizeof *want), *got = (reply *)room(sizeof *got);
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
    reply *a = (reply *)room(sizeof *a);
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
    reply *a = (reply *)room(sizeof *a);
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

// ---- 3. How answers end ---------------------------------------------------------------------------------------------

// An answer ends after n tokens, by their number or by on_token, and goes on. The logits in between are read for every other
// n: that must change nothing.
static void check_end(mote_session *s, const plain *w, int n, int by_callback, int depth) {
    reply *a = (reply *)room(sizeof *a);
    int32_t id = -1;
    int stop = by_callback ? MOTE_STOP_CALLBACK : MOTE_STOP_LENGTH;
    generate(s, &w->p, by_callback ? 0 : n, by_callback ? n : 0, a);
    int ok = a->r.stop == stop && a->r.generated_tokens == n && same_ids(a, plain_ids(w, 0), n);
    if (n % 2) ok = ok && same_logits(s, plain_logits(w, n), w->vocab);
    CHECK(ok && count_of(s) == w->prompt + n, "depth %d: an answer of %d tokens, ended by %s", depth, n,
          by_callback ? "on_token" : "max_tokens");
    generate(s, &w->p, BEHIND, 0, a);
    CHECK(same_ids(a, plain_ids(w, n), BEHIND), "depth %d: %d tokens behind %d", depth, BEHIND, n);
    if (n % 3) ok = same_logits(s, plain_logits(w, n + BEHIND), w->vocab);
    EXPECT(MOTE_OK, mote_step(s, &w->p, &id, &failure));
    CHECK(ok && id == plain_ids(w, n + BEHIND)[0] && same_logits(s, plain_logits(w, n + BEHIND + 1), w->vocab),
          "depth %d: mote_step behind %d tokens", depth, n + BEHIND);
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
    reply *a = (reply *)room(sizeof *a);
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
    reply *a = (reply *)room((DEPTHS + 1) * sizeof *a), *behind = (reply *)room((DEPTHS + 1) * sizeof *behind);
    for (int d = 0; d <= DEPTHS; d++) {
        mote_generation g = generation_of(&a[d], &w->p, w->count, 0);
        g.stop = stops;
        g.stop_count = 2;
        EXPECT(MOTE_OK, mote_rewind(s[d], start[d], &failure));
        EXPECT(MOTE_OK, mote_generate(s[d], &g, &a[d].r, &failure));
        generate(s[d], &w->p, BEHIND, 0, &behind[d]);
        int ok = a[d].r.stop == MOTE_STOP_TEXT && same_ids(&a[d], plain_ids(w, 0), a[d].count);
        CHECK(ok && same_reply(&a[d], &a[0]), "session %d: stop text \"%s\" after %d tokens, plain %d", d, text, a[d].count,
              a[0].count);
        ok = same_ids(&behind[d], plain_ids(w, a[d].count), BEHIND);
        CHECK(ok && same_logits(s[d], plain_logits(w, a[d].count + BEHIND), w->vocab), "session %d: behind stop text \"%s\"",
              d, text);
    }
    free(a);
    free(behind);
}

// Stop texts from all over the plain text, which end in the middle of blocks.
static void test_stop_texts(const plain *w, int places) {
    mote_session *s[DEPTHS + 1];
    mote_checkpoint *start[DEPTHS + 1];
    reply *whole = (reply *)room(sizeof *whole);
    for (int d = 0; d <= DEPTHS; d++) {
        s[d] = session_at(w, d ? depths[d - 1] : MOTE_MTP_OFF, CONTEXT);
        start[d] = checkpoint_of(s[d]);
    }
    generate(s[0], &w->p, w->count - BEHIND, 0, whole);
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
    reply *a = (reply *)room(sizeof *a);
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
                      "depth %d: stop %d after %d tokens, room for %d", mtp, a->r.stop, a->count, n);
                CHECK(same_logits(s, plain_logits(w, n), w->vocab), "depth %d: logits of a full context", mtp);
                EXPECT(MOTE_ECONTEXT, mote_step(s, &w->p, &id, &failure));
                generate(s, &w->p, 0, 0, a);
                CHECK(a->r.stop == MOTE_STOP_CONTEXT && a->count == 0, "depth %d: behind a full context", mtp);
                mote_session_close(s);
            }
    free(a);
}

// ---- 4. Between answers ---------------------------------------------------------------------------------------------

enum { NEXT = 10 };

// The session, which has n tokens behind the prompt, goes on as plain decoding does.
static void check_next(mote_session *s, const plain *w, int n, int depth, const char *what) {
    reply *a = (reply *)room(sizeof *a);
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
        reply *a = (reply *)room(sizeof *a);
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

// ---- 5. Random use --------------------------------------------------------------------------------------------------

// Sessions of all depths that do the same things, the plain one first.
typedef struct walk {
    const mote_model *m;
    mote_session *s[DEPTHS + 1];
    mote_checkpoint *kept[DEPTHS + 1];
    reply want, got;
    int ids;                                 // those that are fed are below
} walk;

static void walk_replace(walk *w, int d, int by_file) {
    mote_session *t = NULL;
    size_t size;
    if (by_file) {
        char *bytes = session_bytes(w->s[d], &size);
        t = session_of_depth(w->m, d ? depths[random_int(0, DEPTHS - 1)] : MOTE_MTP_OFF, CONTEXT);
        EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));
        free(bytes);
    } else {
        EXPECT(MOTE_OK, mote_clone(w->s[d], &t, &failure));
        if (!t) return;
    }
    mote_session_close(w->s[d]);
    w->s[d] = t;
}

// The timeline and what follows it are those of the plain session.
static void walk_check(walk *w, int look, const char *what) {
    int vocab = mote_model_info(w->m)->vocab_size;
    size_t n, m;
    const int32_t *want = mote_tokens(w->s[0], &n);
    for (int d = 1; d <= DEPTHS; d++) {
        const int32_t *got = mote_tokens(w->s[d], &m);
        int ok = n == m && !memcmp(got, want, n * sizeof *got);
        if (look) ok = ok && same_logits(w->s[d], mote_logits(w->s[0]), vocab);
        CHECK(ok, "session %d: other tokens or logits after %s", d, what);
    }
}

static void walk_generate(walk *w, int kind) {
    mote_sampling p = sampling_of(kind, random_int(0, 1000));
    int n = random_int(1, 12), by_callback = random_int(0, 2) == 0, verify = random_int(0, 5) == 0;
    for (int d = 0; d <= DEPTHS; d++) {
        reply *a = d ? &w->got : &w->want;
        mote_generation g = generation_of(a, &p, by_callback ? 0 : n, by_callback ? n : 0);
        g.verify = verify;
        EXPECT(MOTE_OK, mote_generate(w->s[d], &g, &a->r, &failure));
        CHECK(!d || same_reply(&w->got, &w->want), "session %d: sampling %d, %d tokens, plain %d", d, kind, w->got.count,
              w->want.count);
    }
}

static void walk_step(walk *w, int kind) {
    mote_sampling p = sampling_of(kind, random_int(0, 1000));
    int32_t id[DEPTHS + 1];
    for (int d = 0; d <= DEPTHS; d++) {
        EXPECT(MOTE_OK, mote_step(w->s[d], &p, &id[d], &failure));
        CHECK(id[d] == id[0], "session %d: mote_step with sampling %d", d, kind);
    }
}

static void walk_feed(walk *w, int n) {
    int32_t ids[40];
    for (int i = 0; i < n; i++) ids[i] = random_int(0, w->ids - 1);
    for (int d = 0; d <= DEPTHS; d++) EXPECT(MOTE_OK, mote_feed(w->s[d], ids, (size_t)n, &failure));
}

// Takes a checkpoint, or goes back to the one taken.
static void walk_checkpoint(walk *w, int rewind) {
    for (int d = 0; d <= DEPTHS; d++) {
        if (rewind && w->kept[d]) EXPECT(MOTE_OK, mote_rewind(w->s[d], w->kept[d], &failure));
        mote_checkpoint_free(w->kept[d]);
        w->kept[d] = rewind ? NULL : checkpoint_of(w->s[d]);
    }
}

static void walk_reset(walk *w) {
    for (int d = 0; d <= DEPTHS; d++) {
        mote_checkpoint_free(w->kept[d]);
        w->kept[d] = NULL;
        mote_reset(w->s[d], NULL);
    }
    walk_feed(w, random_int(1, 9));
}

// Random calls, in every order.
static void test_random_use(const mote_model *m, int calls) {
    walk *w = (walk *)room(sizeof *w);
    w->m = m;
    w->ids = mote_model_info(m)->vocab_size < 2000 ? mote_model_info(m)->vocab_size : 2000;
    for (int d = 0; d <= DEPTHS; d++) w->s[d] = session_of_depth(m, d ? depths[d - 1] : MOTE_MTP_OFF, CONTEXT);
    walk_reset(w);
    for (int i = 0; i < calls; i++) {
        static const char *const names[] = {"mote_generate", "mote_step", "mote_feed", "a checkpoint", "a copy", "mote_load",
                                            "mote_reset"};
        static const int calls_of[] = {0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 4, 5};
        int call = calls_of[random_int(0, 12)];
        if (count_of(w->s[0]) > CONTEXT - 60) call = 6;
        if (call == 0) walk_generate(w, random_int(0, KINDS - 1));
        else if (call == 1) walk_step(w, random_int(0, KINDS - 1));
        else if (call == 2) walk_feed(w, random_int(1, 40));
        else if (call == 3) walk_checkpoint(w, w->kept[0] && random_int(0, 1));
        else if (call == 6) walk_reset(w);
        for (int d = 0; d <= DEPTHS && (call == 4 || call == 5); d++) walk_replace(w, d, call == 5);
        walk_check(w, random_int(0, 2) == 0, names[call]);
    }
    for (int d = 0; d <= DEPTHS; d++) {
        mote_checkpoint_free(w->kept[d]);
        mote_session_close(w->s[d]);
    }
    free(w);
}

// ---- 6. Distribution ------------------------------------------------------------------------------------------------

enum { SEEDS = 3000, DRAWN = 4, TOP = 6 };

typedef struct draws {
    int32_t ids[SEEDS][DRAWN];   // -1 behind the end of the text
} draws;

// Chi-square of `seen` draws against probabilities, the best first; rare ones are counted together.
static double chi_of(const int *seen, const double *probability, int n, int total, int *freedom) {
    double chi = 0, want = 0;
    int got = 0, cells = 0;
    for (int i = n; i-- > 0;) {
        want += probability[i] * total;
        got += seen[i];
        if (want < 5 && i) continue;
        chi += (got - want) * (got - want) / want;
        cells++;
        want = got = 0;
    }
    *freedom += cells - 1;
    return chi;
}

// The same for the tokens behind the first `at` ones of draw number `first`. *outside: those not among the best.
static double chi_behind(mote_session *s, const mote_checkpoint *start, const draws *x, int first, int at,
                         double temperature, char *done, int *freedom, int *outside) {
    int32_t top[TOP];
    float logprobs[TOP];
    double probability[TOP], sum = 0;
    int seen[TOP] = {0}, total = 0;
    for (int i = first; i < SEEDS; i++)
        if (!memcmp(x->ids[i], x->ids[first], (size_t)at * sizeof(int32_t))) done[i] = 1, total++;
    if (total < 60 || x->ids[first][at] < 0) return 0;
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    EXPECT(MOTE_OK, mote_feed(s, x->ids[first], (size_t)at, &failure));
    EXPECT(MOTE_OK, mote_top_logprobs(s, TOP, top, logprobs, &failure));
    for (int k = 0; k < TOP; k++) sum += probability[k] = exp((logprobs[k] - logprobs[0]) / temperature);
    for (int k = 0; k < TOP; k++) probability[k] /= sum;
    for (int i = first; i < SEEDS; i++) {
        int k = 0;
        if (memcmp(x->ids[i], x->ids[first], (size_t)at * sizeof(int32_t))) continue;
        while (k < TOP && top[k] != x->ids[i][at]) k++;
        if (k < TOP) seen[k]++;
        else ++*outside;
    }
    return chi_of(seen, probability, TOP, total, freedom);
}

// Of all tokens behind the first one, each given those before it.
static double chi_of_draws(mote_session *s, const mote_checkpoint *start, const draws *x, double temperature, int *freedom,
                           int *outside) {
    double chi = 0;
    *freedom = *outside = 0;
    for (int at = 1; at < DRAWN; at++) {
        char done[SEEDS] = {0};
        for (int i = 0; i < SEEDS; i++)
            if (!done[i]) chi += chi_behind(s, start, x, i, at, temperature, done, freedom, outside);
    }
    return chi;
}

// Chi-square with that many degrees of freedom is above this once in 10,000 times (Wilson and Hilferty).
static double chi_bound(int freedom) {
    double v = 2 / (9.0 * freedom), root = 1 - v + 3.719 * sqrt(v);
    return freedom * root * root * root;
}

// Tokens that were drafted are distributed as the model says.
static void test_distribution(const mote_model *m, const int32_t *prompt, int count) {
    mote_session *s = session_of_depth(m, 2, CONTEXT), *off = session_of_depth(m, MOTE_MTP_OFF, CONTEXT);
    mote_sampling p = {.temperature = 1, .top_k = TOP};
    draws *x = (draws *)room(sizeof *x);
    reply *a = (reply *)room(sizeof *a);
    mote_speculation counts = {0};
    int freedom, outside, code = MOTE_OK;
    EXPECT(MOTE_OK, mote_feed(s, prompt, (size_t)count, &failure));
    EXPECT(MOTE_OK, mote_feed(off, prompt, (size_t)count, &failure));
    mote_checkpoint *start = checkpoint_of(s), *off_start = checkpoint_of(off);
    memset(x, 0xff, sizeof *x);
    for (int i = 0; i < SEEDS; i++) {
        mote_generation g = generation_of(a, &p, DRAWN, 0);
        p.seed = (uint64_t)i;
        code |= mote_rewind(s, start, &failure) | mote_generate(s, &g, NULL, &failure);
        memcpy(x->ids[i], a->ids, (size_t)a->count * sizeof(int32_t));
    }
    EXPECT(MOTE_OK, mote_speculation_of(s, &counts, &failure));
    CHECK(!code, "drawing: %s", failure.message);
    CHECK(counts.accepted[0] >= SEEDS / 20 && counts.drafted[0] >= counts.accepted[0] + SEEDS / 20,
          "%d drafts, %d accepted", (int)counts.drafted[0], (int)counts.accepted[0]);
    double chi = chi_of_draws(off, off_start, x, 1, &freedom, &outside), bound = chi_bound(freedom);
    double wrong = chi_of_draws(off, off_start, x, 1.5, &freedom, &outside);
    printf("%s: %d drafts, %d accepted; chi-square %.1f, of temperature 1.5 %.1f, bound %.1f\n", test_name,
           (int)counts.drafted[0], (int)counts.accepted[0], chi, wrong, bound);
    CHECK(freedom > 5 && !outside && chi < bound, "chi-square %g, bound %g, %d outside", chi, bound, outside);
    CHECK(wrong > bound, "chi-square %g for a wrong temperature, bound %g", wrong, bound);
    mote_checkpoint_free(start);
    mote_checkpoint_free(off_start);
    mote_session_close(s);
    mote_session_close(off);
    free(x);
    free(a);
}

// ---- 7. Options -----------------------------------------------------------------------------------------------------

static void test_options(const mote_model *m) {
    static const int bad[] = {-2, 4, 100};
    for (int i = 0; i < 3; i++) {
        mote_session_options o = {.context = 16, .mtp = bad[i]};
        mote_session *s = NULL;
        EXPECT(MOTE_EINVAL, mote_session_open(m, &o, &s, &failure));
        CHECK(!s && strstr(failure.message, "expected") && strstr(failure.message, "1 to 3"), "%s", failure.message);
    }
    mote_options o = {.device = test_device, .draft_rows = -1};
    mote_model *refused = NULL;
    EXPECT(MOTE_EINVAL, mote_open("models/demo", &o, &refused, &failure));
    CHECK(!refused && strstr(failure.message, "draft_rows"), "%s", failure.message);
}

// Drafts from few rows of the vocabulary: fewer are accepted, the text is the same.
static void test_draft_rows(const mote_model *demo) {
    static const int rows[] = {0, 100, 1};
    uint64_t accepted[3];
    reply *want = (reply *)room(sizeof *want), *got = (reply *)room(sizeof *got);
    mote_session *off = session_of_depth(demo, MOTE_MTP_OFF, CONTEXT);
    ask(off, "What is a mixture of experts?", &samplings[GREEDY], ANSWER, want);
    for (int i = 0; i < 3; i++) {
        mote_options o = {.device = test_device, .draft_rows = rows[i]};
        mote_model *m = NULL;
        mote_speculation x = {0};
        EXPECT(MOTE_OK, mote_open("models/demo", &o, &m, &failure));
        if (!m) break;
        mote_session *s = session_of_depth(m, 3, CONTEXT);
        ask(s, "What is a mixture of experts?", &samplings[GREEDY], ANSWER, got);
        CHECK(same_reply(got, want), "draft_rows %d: another text", rows[i]);
        EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
        accepted[i] = x.accepted[0];
        mote_session_close(s);
        mote_close(m);
        CHECK(i == 0 || accepted[i] < accepted[0], "draft_rows %d: %d accepted", rows[i], (int)accepted[i]);
    }
    mote_session_close(off);
    free(want);
    free(got);
}

// ---- 8. Broken MTP layers -------------------------------------------------------------------------------------------

// A tensor of a fixture, and what its data becomes.
typedef struct breakage { const char *dir, *file, *tensor; int nan; } breakage;

static void break_tensor(const char *name, char **bytes, size_t *size, const void *how) {
    static const unsigned char nan[2] = {0xc0, 0x7f};
    const breakage *b = (const breakage *)how;
    const char *at = NULL;
    tensor_place t = {0};
    (void)size;
    if (strcmp(name, b->file)) return;
    while (next_tensor(*bytes, &at, &t) && strcmp(t.name, b->tensor)) {}
    if (b->nan) memcpy(*bytes + t.end - 2, nan, 2);         // the upper half of a float, or a BF16
    else memset(*bytes + t.begin, 0, t.end - t.begin);
}

typedef struct log_lines { int count; char last[512]; } log_lines;

static void count_mtp_lines(void *user, const char *line) {
    log_lines *l = (log_lines *)user;
    if (!strstr(line, "MTP")) return;
    l->count++;
    snprintf(l->last, sizeof l->last, "%s", line);
}

// Nothing is drafted, whatever is asked for, and the text is the plain one of `whole`.
static void check_no_drafts(const mote_model *m, const mote_model *whole) {
    mote_session *off = session_of_depth(whole, MOTE_MTP_OFF, CONTEXT);
    reply *want = (reply *)room(sizeof *want), *got = (reply *)room(sizeof *got);
    EXPECT(MOTE_OK, mote_feed(off, some_ids, 5, &failure));
    generate(off, &samplings[GREEDY], 20, 0, want);
    CHECK(mote_model_info(m)->mtp_layers == 0, "%d MTP layers", mote_model_info(m)->mtp_layers);
    for (int mtp = MOTE_MTP_OFF; mtp < 4; mtp++) {
        mote_session *s = session_of_depth(m, mtp, CONTEXT);
        mote_generation g = generation_of(got, &samplings[GREEDY], 20, 0);
        mote_speculation x = {0};
        g.verify = 1;
        EXPECT(MOTE_OK, mote_feed(s, some_ids, 5, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, &got->r, &failure));
        EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
        CHECK(same_reply(got, want) && want->count > 5, "mtp %d without an MTP layer: %d tokens", mtp, got->count);
        CHECK(x.drafted[0] == 0 && x.tokens == x.passes[0] && x.tokens == (uint64_t)got->count, "mtp %d: %d drafts", mtp,
              (int)x.drafted[0]);
        mote_session_close(s);
    }
    mote_session_close(off);
    free(want);
    free(got);
}

static void test_broken(const breakage *b) {
    mote_model *whole = model_of(b->dir, MOTE_WEIGHTS_ONLY), *m = NULL;
    log_lines lines = {0};
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    o.callbacks.log = count_mtp_lines;
    o.callbacks.user = &lines;
    temp_copy_of(b->dir, break_tensor, b);
    EXPECT(MOTE_OK, mote_open(temp_dir, &o, &m, &failure));
    CHECK(lines.count == 1 && strstr(lines.last, b->tensor), "%s, %s: %d lines: %s", b->dir, b->tensor, lines.count,
          lines.last);
    CHECK(mote_model_info(whole)->mtp_layers == 1, "%s has an MTP layer", b->dir);
    if (m) check_no_drafts(m, whole);
    mote_close(m);
    mote_close(whole);
}

static void test_broken_layers(void) {
    static const breakage all[] = {
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.fc.weight", 0},
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.fc.weight", 1},
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.norm.weight", 1},
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.layers.0.mlp.gate.weight", 1},
        {"tests/fixtures/f32-tied", "model.safetensors", "mtp.fc.weight", 0},
        {"tests/fixtures/f32-tied", "model.safetensors", "mtp.layers.0.self_attn.v_proj.weight", 1},
        {"tests/fixtures/fp8-ragged", "mtp.safetensors", "mtp.layers.0.self_attn.o_proj.weight", 0},
        {"tests/fixtures/fp8-ragged", "mtp.safetensors", "mtp.layers.0.self_attn.q_proj.weight", 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) test_broken(&all[i]);
    mote_model *none = model_of("tests/fixtures/f16-all-delta", MOTE_WEIGHTS_ONLY);
    check_no_drafts(none, none);
    mote_close(none);
}

// ---- 9. Measured cycles, on a GPU -----------------------------------------------------------------------------------

static mote_model *synthetic_of(const char *name) {
    mote_options o = {.device = test_device};
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

static mote_measurement cycle_of(int drafts, int steps) {
    mote_measurement x = {.rows = drafts + 1, .depth = 100, .steps = steps, .drafts = drafts, .accept = {0.8, 0.6, 0.5}};
    return x;
}

// A cycle is measured, generates what the rates promise, and leaves an empty timeline.
static void test_cycle(mote_session *s, int drafts) {
    mote_measurement x = cycle_of(drafts, 400);
    double want = 1, all = 1;
    for (int i = 0; i < drafts; i++) want += all *= x.accept[i];
    EXPECT(MOTE_OK, mote_measure(s, &x, &failure));
    CHECK(fabs(x.tokens - want) < 0.2, "%d drafts: %g tokens of a cycle, expected %g", drafts, x.tokens, want);
    CHECK(x.fastest > 0 && x.fastest <= x.median && x.median <= x.slowest && x.wall > 0, "%d drafts: %g .. %g .. %g s",
          drafts, x.fastest, x.median, x.slowest);
    CHECK(x.verify > 0 && x.verify <= x.median && x.draft > 0 && x.draft < x.median, "%d drafts: %g s, verify %g, draft %g",
          drafts, x.median, x.verify, x.draft);
    CHECK(count_of(s) == 0 && x.bytes > 0, "%d drafts: the timeline is not empty", drafts);
}

// A rate of 1 or 0 is kept exactly.
static void test_rates(mote_session *s) {
    for (int drafts = 1; drafts <= 3; drafts++)
        for (int all = 0; all < 2; all++) {
            mote_measurement x = cycle_of(drafts, 50);
            for (int i = 0; i < 3; i++) x.accept[i] = all;
            EXPECT(MOTE_OK, mote_measure(s, &x, &failure));
            CHECK(fabs(x.tokens - (all ? drafts + 1 : 1)) < 1e-9, "%d drafts, rate %d: %g tokens", drafts, all, x.tokens);
        }
}

static void refuse(mote_session *s, mote_measurement x) {
    EXPECT(MOTE_EINVAL, mote_measure(s, &x, &failure));
}

static void test_refused(mote_session *s) {
    mote_measurement x = cycle_of(2, 10);
    x.rows = 2;
    refuse(s, x);
    x.rows = 4;
    refuse(s, x);
    x = cycle_of(2, 10);
    x.drafts = 4;
    refuse(s, x);
    x.drafts = -1;
    refuse(s, x);
    x = cycle_of(2, 10);
    x.accept[1] = 1.5;
    refuse(s, x);
    x.accept[1] = NAN;
    refuse(s, x);
    x = cycle_of(2, 10);
    x.overlap = 2;
    refuse(s, x);
    x.overlap = -0.5;
    refuse(s, x);
    x = cycle_of(2, 10);
    static const char *const head[] = {"head"}, *const unknown[] = {"heads"};
    x.stages = head;
    x.stage_count = 1;
    refuse(s, x);
    x = cycle_of(2, 10);
    x.drafts = 0;
    x.stages = unknown;
    x.stage_count = 1;
    refuse(s, x);
    x.stages = NULL;
    refuse(s, x);
}

// Without an MTP layer's KV rows there is no cycle.
static void test_no_mtp(const mote_model *m) {
    mote_session *s = session_of_depth(m, MOTE_MTP_OFF, CONTEXT);
    mote_measurement x = cycle_of(1, 10);
    EXPECT(MOTE_EUNSUPPORTED, mote_measure(s, &x, &failure));
    mote_session_close(s);
}

// Measuring in between changes no answer.
static void test_between_answers(const mote_model *m) {
    mote_session *s = session_of_depth(m, 3, CONTEXT);
    reply *want = (reply *)room(sizeof *want), *got = (reply *)room(sizeof *got);
    for (int i = 0; i < 2; i++) {
        mote_measurement x = cycle_of(3, 20);
        reply *a = i ? got : want;
        if (i) EXPECT(MOTE_OK, mote_measure(s, &x, &failure));
        EXPECT(MOTE_OK, mote_feed(s, some_ids, 5, &failure));
        generate(s, &samplings[GREEDY], 30, 0, a);
    }
    CHECK(same_reply(got, want), "another answer after measuring");
    mote_session_close(s);
    free(want);
    free(got);
}

// Rows that share their experts read fewer.
static void test_overlap(const mote_model *m) {
    mote_session *s = session_of_depth(m, 3, CONTEXT);
    mote_measurement apart = cycle_of(3, 50), together = cycle_of(3, 50);
    together.overlap = 1;
    EXPECT(MOTE_OK, mote_measure(s, &apart, &failure));
    EXPECT(MOTE_OK, mote_measure(s, &together, &failure));
    CHECK(together.bytes < apart.bytes, "%llu bytes with all experts in common, %llu without",
          (unsigned long long)together.bytes, (unsigned long long)apart.bytes);
    mote_session_close(s);
}

static void test_measure(const char *name) {
    mote_model *m = synthetic_of(name);
    mote_session *s = session_of_depth(m, MOTE_MTP_AUTO, CONTEXT);
    for (int drafts = 1; drafts <= 3; drafts++) test_cycle(s, drafts);
    test_rates(s);
    test_refused(s);
    mote_session_close(s);
    test_no_mtp(m);
    test_between_answers(m);
    if (!strncmp(name, "small", 5)) test_overlap(m);
    mote_close(m);
}

// ---- 10. All of it --------------------------------------------------------------------------------------------------

// All about one answer. thorough: more of the same.
static void test_answer(const mote_model *m, const int32_t *prompt, int count, int kind, int thorough) {
    plain w;
    plain_open(&w, m, prompt, count, kind, ANSWER);
    test_verify(&w, thorough ? ANSWER : 16);
    test_chunks(&w);
    test_ends(&w, thorough);
    test_short_answers(&w);
    test_context_end(&w);
    test_between(&w);
    if (mote_token_bytes(m, w.ids[0], &(size_t){0})) test_stop_texts(&w, thorough ? 20 : 6);
    plain_close(&w);
}

// Of one answer only that it can be verified.
static void test_verified_answer(const mote_model *m, const int32_t *prompt, int count, int kind) {
    plain w;
    plain_open(&w, m, prompt, count, kind, ANSWER);
    test_verify(&w, 16);
    plain_close(&w);
}

// A model without a tokenizer, number i: one kind of sampling, or all.
static void test_fixture(const mote_model *m, int i, int thorough) {
    static const int kinds[] = {GREEDY, HOT, PENALTIES};
    for (int k = 0; k < 3; k++)
        if (thorough || k == i) test_answer(m, some_ids, 5, kinds[k], thorough);
    test_random_use(m, thorough ? 300 : test_brief ? 20 : 60);
}

// A distribution of the bundled model in which some drafts are accepted and some are not.
static void test_demo_distribution(const mote_model *m) {
    int32_t ids[CONTEXT];
    size_t n = 0;
    EXPECT(MOTE_OK, mote_tokenize(m, "hello hello hello", 17, 0, ids, CONTEXT, &n, &failure));
    test_distribution(m, ids, (int)n);
}

// The bundled model. With a single prompt, for builds that are slow, no more than needed: test_equality has all kinds.
static void test_demo(const mote_model *m, int prompts, int thorough) {
    questions *q = questions_read();
    int32_t ids[CONTEXT];
    int count = question_ids(m, "What is a mixture of experts?", ids);
    test_equality(m, q, prompts, thorough ? 48 : test_brief ? 8 : 16);
    for (int kind = GREEDY; kind < KINDS; kind++) {
        if (kind == GREEDY ? prompts > 1 : thorough && kind >= PENALTIES) test_answer(m, ids, count, kind, thorough);
        else if (!test_brief || kind == PENALTIES) test_verified_answer(m, ids, count, kind);
    }
    test_random_use(m, thorough ? 200 : 15);
    free(q);
}

int main(int argc, char **argv) {
    static const char *const fixtures[] = {"tests/fixtures/bf16-as-3.6", "tests/fixtures/f32-tied",
                                           "tests/fixtures/fp8-ragged"};
    int more = test_main_begin("test_speculation", argc, argv), is_gpu = strcmp(test_device, "cpu") != 0;
    int asked = more < argc ? atoi(argv[more]) : 0, prompts = asked ? asked : is_gpu ? 200 : test_brief ? 1 : 6;
    if (!temp_open()) return test_main_end();
    for (int i = 0; i < 3; i++) {
        mote_model *m = model_of(fixtures[i], MOTE_WEIGHTS_ONLY);
        if (!test_brief || i == 0) test_fixture(m, i, asked > 0);
        if (i == 0 && !is_gpu && !test_brief) test_distribution(m, some_ids, 5);
        mote_close(m);
        fflush(stdout);
    }
    mote_model *demo = model_of("models/demo", MOTE_EVERYTHING);
    test_options(demo);
    test_draft_rows(demo);
    test_demo(demo, prompts, asked > 0);
    if (is_gpu || asked) test_demo_distribution(demo);
    mote_close(demo);
    test_broken_layers();
    if (is_gpu) test_measure("tiny");
    if (is_gpu) test_measure("small:fp8");
    temp_close();
    return test_main_end();
}
