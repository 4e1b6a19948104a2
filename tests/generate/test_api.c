// Tests of what an application can have beside text, through the API, on the CPU or a GPU: on_logits, bias, log-probabilities,
// tools and calls, thinking that is dropped, stored conversations, counts. With speculation and without all of it is the same. This file is C and C++:
// the Makefile builds it as both.
//
// Parts
//   api_logits.c          on_logits, bias, log-probabilities
//   api_conversations.c   tools and calls, thinking that is dropped, turns
//   api_stored.c          stored conversations
//   here                  counts, threads
//
// Usage: test_api [--device NAME] [--brief] [DATA]

#include "api.h"
#include "files.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>

// ---- Helpers --------------------------------------------------------------------------------------------------------

enum { CONTEXT = 1024, MOST = 96, TOP = 3, DEPTHS = 5 };

static const int depths[DEPTHS] = {MOTE_MTP_OFF, MOTE_MTP_AUTO, 1, 2, 3};
static const char QUESTION[] = "What is a mixture of experts?";

static mote_session *session_at(const mote_model *m, int mtp) {
    mote_session_options o;
    memset(&o, 0, sizeof o);
    o.context = CONTEXT;
    o.mtp = mtp;
    o.threads = 1;
    return session_with(m, &o);
}

static uint64_t hash_of(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

static int text_ids(const mote_model *m, const char *text, int special, int32_t *ids, size_t room_for) {
    size_t n = 0;
    EXPECT(MOTE_OK, mote_tokenize(m, text, strlen(text), special, ids, room_for, &n, &failure));
    return (int)n;
}

// All that the callbacks of an answer were told.
typedef struct heard {
    mote_session *s;
    size_t start;                // tokens of the timeline before the answer
    int32_t ids[MOST];
    uint64_t prefix[MOST], logits[MOST];             // hashes of what each on_logits saw
    mote_logprob told[MOST][1 + TOP];
    char text[4096];
    size_t size;
    int tokens, asked, probed, wrong;
    int stop_tokens, stop_asked;                     // stops at so many; 0: never
    int mask;                    // 0: none; else every mask-th token, others at each position
    const int32_t *force;        // only these may come, then the end of text; NULL: anything
    int force_count;
    mote_result r;
} heard;

static int hear_token(void *user, int32_t id) {
    heard *h = (heard *)user;
    if (h->tokens < MOST) h->ids[h->tokens] = id;
    h->tokens++;
    return h->tokens == h->stop_tokens;
}

static int hear_text(void *user, int channel, const char *text, size_t size) {
    heard *h = (heard *)user;
    char mark[2] = {(char)('0' + channel), 0};
    if (h->size + size + 1 < sizeof h->text) {
        memcpy(h->text + h->size, size ? text : mark, size ? size : 1);
        h->size += size ? size : 1;
    }
    return 0;
}

static int masked(const heard *h, int at, int id) {
    return h->mask && (uint32_t)(id * 2654435761u + (uint32_t)at * 40503u) % (uint32_t)h->mask == 0;
}

static int hear_logits(void *user, float *logits, int vocab) {
    heard *h = (heard *)user;
    size_t count;
    const int32_t *ids = mote_tokens(h->s, &count);
    // The timeline is what on_token told, and each position comes once, in order.
    h->wrong += h->asked != h->tokens || count != h->start + (size_t)h->tokens;
    h->wrong += h->tokens && h->tokens <= MOST && memcmp(ids + h->start, h->ids, (size_t)h->tokens * sizeof *ids) != 0;
    if (h->asked < MOST) {
        h->prefix[h->asked] = hash_of(1, ids, count * sizeof *ids);
        h->logits[h->asked] = hash_of(1, logits, (size_t)vocab * sizeof *logits);
    }
    for (int i = 0; i < vocab && h->mask; i++)
        if (masked(h, h->asked, i)) logits[i] = -INFINITY;
    for (int i = 0; i < vocab && h->force; i++)
        if (h->asked >= h->force_count || i != h->force[h->asked]) logits[i] = -INFINITY;
    return ++h->asked == h->stop_asked;
}

static void hear_logprobs(void *user, const mote_logprob *token, const mote_logprob *best, int count) {
    heard *h = (heard *)user;
    h->wrong += h->probed + 1 != h->tokens || count != TOP || (h->probed < MOST && token->id != h->ids[h->probed]);
    if (h->probed < MOST) h->told[h->probed][0] = *token;
    if (h->probed < MOST) memcpy(h->told[h->probed] + 1, best, (size_t)count * sizeof *best);
    h->probed++;
}

// To all callbacks.
static mote_generation generation_to(heard *h, mote_session *s, const mote_sampling *p, int max_tokens) {
    mote_generation g;
    memset(&g, 0, sizeof g);
    memset(h, 0, sizeof *h);
    h->s = s;
    g.sampling = p;
    g.max_tokens = max_tokens;
    g.on_text = hear_text;
    g.on_token = hear_token;
    g.on_logits = hear_logits;
    g.on_logprobs = hear_logprobs;
    g.top_logprobs = TOP;
    g.user = h;
    return g;
}

static int same_heard(const heard *a, const heard *b) {
    return a->tokens == b->tokens && a->asked == b->asked && a->probed == b->probed && a->r.stop == b->r.stop &&
           !memcmp(a->ids, b->ids, sizeof a->ids) && !memcmp(a->prefix, b->prefix, sizeof a->prefix) &&
           !memcmp(a->logits, b->logits, sizeof a->logits) && !memcmp(a->told, b->told, sizeof a->told) &&
           a->size == b->size && !memcmp(a->text, b->text, a->size);
}

// A prompt after which an answer is generated.
static void feed_question(const mote_model *m, mote_session *s) {
    int32_t ids[64];
    char text[256];
    snprintf(text, sizeof text, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", QUESTION);
    int n = text_ids(m, text, 1, ids, 64);
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)n, &failure));
}

static mote_sampling sampling_of(float temperature, float presence) {
    mote_sampling p;
    memset(&p, 0, sizeof p);
    p.temperature = temperature;
    p.presence_penalty = presence;
    p.seed = 7;
    return p;
}

#include "api_logits.c"
#include "api_conversations.c"
#include "api_stored.c"

// ---- Counts ---------------------------------------------------------------------------------------------------------

typedef struct progress { int calls, done, count, wrong; } progress;

static void hear_prompt(void *user, int done, int count) {
    progress *p = (progress *)user;
    p->wrong += done < p->done || done > count || (p->calls && count != p->count);
    p->calls++;
    p->done = done;
    p->count = count;
}

// The callback of prompts tells the tokens of the whole turn; counting them computes nothing.
static void test_counts(const mote_model *m) {
    mote_session_options o;
    progress p = {0, 0, 0, 0};
    mote_generation g;
    mote_result r;
    size_t read = 0, total = 0;
    char message[400];
    memset(&o, 0, sizeof o);
    memset(&g, 0, sizeof g);
    o.context = CONTEXT;
    o.chunk = 16;
    o.callbacks.prompt = hear_prompt;
    o.callbacks.user = &p;
    mote_session *s = session_with(m, &o);
    memset(message, 'a', sizeof message);
    for (int i = 9; i < 399; i += 10) message[i] = ' ';
    message[399] = 0;
    g.max_tokens = 5;
    for (int turn = 0; turn < 2; turn++) {
        memset(&p, 0, sizeof p);
        EXPECT(MOTE_OK, mote_ask_count(s, turn ? "And?" : message, &g, &read, &total, &failure));
        CHECK(p.calls == 0, "counting computes");
        EXPECT(MOTE_OK, mote_ask(s, turn ? "And?" : message, &g, &r, &failure));
        CHECK(p.calls > 1 && !p.wrong && p.done == p.count && p.count == r.prompt_tokens && (size_t)r.prompt_tokens == read &&
              total + (size_t)r.generated_tokens == (size_t)count_of(s),
              "turn %d: %d calls, %d of %d, %d tokens, counted %zu and %zu", turn, p.calls, p.done, p.count, r.prompt_tokens, read, total);
    }
    int32_t end = -1, plain = -1;
    size_t n;
    EXPECT(MOTE_OK, mote_tokenize(m, "<|im_end|>", 10, 1, &end, 1, &n, &failure));
    EXPECT(MOTE_OK, mote_tokenize(m, "a", 1, 1, &plain, 1, &n, &failure));
    CHECK(mote_is_end(m, end) == 1 && mote_is_end(m, plain) == 0 && mote_is_end(m, -1) == 0 && mote_is_end(NULL, end) == 0, "mote_is_end");
    mote_session_close(s);
}

// ---- Threads --------------------------------------------------------------------------------------------------------

typedef struct worker { const mote_model *m; int mask; heard h; } worker;

static void *work(void *user) {
    worker *w = (worker *)user;
    mote_session *s = session_at(w->m, MOTE_MTP_AUTO);
    mote_sampling p = sampling_of(0.8f, 0);
    mote_generation g = generation_to(&w->h, s, &p, test_brief ? 8 : 30);
    w->h.mask = w->mask;
    int32_t ids[4] = {1, 2, 3, 4};
    if (mote_feed(s, ids, 4, NULL)) w->h.wrong++;
    w->h.start = 4;
    if (mote_generate(s, &g, &w->h.r, NULL)) w->h.wrong++;
    mote_session_close(s);
    return NULL;
}

// Two sessions of one model on two threads hear what they hear alone.
static void test_threads(const mote_model *m) {
    worker *w = (worker *)allocate(4 * sizeof *w);
    pthread_t thread[2];
    for (int i = 0; i < 4; i++) w[i].m = m, w[i].mask = 3 + i % 2;
    for (int i = 0; i < 2; i++) work(&w[i]);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, work, &w[2 + i])) exit(2);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        CHECK(!w[i].h.wrong && !w[2 + i].h.wrong && w[i].h.tokens > 3 && same_heard(&w[i].h, &w[2 + i].h), "thread %d hears otherwise", i);
    free(w);
}

// Another thread that uses a session while a call on it runs is refused, whatever it calls.
typedef struct rival { mote_session *s; int running, done, calls, refused; } rival;

static void *rival_calls(void *user) {
    rival *r = (rival *)user;
    static const int32_t id = 5;
    size_t n = 0;
    while (!__atomic_load_n(&r->running, __ATOMIC_ACQUIRE)) sched_yield();
    for (int i = 0; i < 50; i++) {
        r->refused += mote_feed(r->s, &id, 1, NULL) == MOTE_EINVAL;
        r->refused += mote_generate(r->s, NULL, NULL, NULL) == MOTE_EINVAL;
        r->refused += mote_save(r->s, NULL, 0, &n, NULL) == MOTE_EINVAL;
        mote_session_close(r->s);
        r->calls += 3;
    }
    __atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

// While the other one calls, so that what it finds was written by a thread that nothing has brought into order with it.
static int wait_for_rival(void *user, int32_t id) {
    rival *r = (rival *)user;
    (void)id;
    __atomic_store_n(&r->running, 1, __ATOMIC_RELAXED);
    while (!__atomic_load_n(&r->done, __ATOMIC_ACQUIRE)) sched_yield();
    return 0;
}

static void test_rival(const mote_model *m) {
    static const int32_t ids[] = {1, 2, 3, 4};
    pthread_t thread;
    mote_generation g;
    rival r;
    memset(&r, 0, sizeof r);
    memset(&g, 0, sizeof g);
    r.s = session_at(m, MOTE_MTP_AUTO);
    g.max_tokens = 3;
    g.on_token = wait_for_rival;
    g.user = &r;
    EXPECT(MOTE_OK, mote_feed(r.s, ids, 4, &failure));
    if (pthread_create(&thread, NULL, rival_calls, &r)) exit(2);
    EXPECT(MOTE_OK, mote_generate(r.s, &g, NULL, &failure));
    pthread_join(thread, NULL);
    CHECK(r.calls == r.refused && count_of(r.s) == 7, "%d of %d calls refused, %d tokens", r.refused, r.calls, count_of(r.s));
    mote_session_close(r.s);
}

int main(int argc, char **argv) {
#ifdef __cplusplus
    test_main_begin("test_api, C++", argc, argv);
#else
    test_main_begin("test_api", argc, argv);
#endif
    mote_model *demo = model_of("models/demo", MOTE_EVERYTHING), *small = model_of("tests/fixtures/bf16-as-3.5", MOTE_WEIGHTS_ONLY);
    test_on_logits(demo);
    test_plain_logits(demo);
    test_bad_masks(demo);
    test_bias(demo);
    test_logprobs(demo);
    test_prompt_logprobs(demo, 100 - 60 * test_brief, 70 - 40 * test_brief, 4);
    test_prompt_logprobs(demo, 40, 1, 0);
    test_prompt_logprobs(small, 50, 3, 2);
    test_calls(demo);
    test_thinking(demo, MOTE_MTP_AUTO);
    if (!test_brief) test_thinking(demo, MOTE_MTP_OFF);
    test_kept_thinking(demo);
    test_moved_timeline(demo);
    test_turn_errors(demo);
    test_restored(demo, three_five, "Qwen3.5");
    test_restored_as_qwen3();
    test_closed_turns(demo);
    test_open_calls(demo);
    test_counts(demo);
    test_threads(demo);
    test_rival(demo);
    mote_close(small);
    mote_close(demo);
    return test_main_end();
}
