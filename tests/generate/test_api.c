// Tests of what an application can have beside text, through the API, on the CPU or a GPU: on_logits, bias, log-probabilities,
// tools and calls, thinking that is dropped, stored conversations, counts. With speculation and without all of it is the same. This file is C and C++:
// the Makefile builds it as both.
//
// Contents   1. Helpers   2. on_logits   3. Bias   4. Log-probabilities   5. Calls   6. Conversations
//            7. Stored conversations   8. Counts   9. Threads
//
// Usage: test_api [--device NAME] [--brief] [DATA]

#include "api.h"
#include "files.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

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

// A prompt behind which an answer is generated.
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

// ---- 2. on_logits ---------------------------------------------------------------------------------------------------

typedef struct ending { int max_tokens, stop_tokens, stop_asked; const char *stop; } ending;

static void generate_heard(const mote_model *m, mote_session *s, const mote_sampling *p, const ending *e, int mask, heard *h) {
    mote_generation g = generation_to(h, s, p, e->max_tokens);
    feed_question(m, s);
    h->start = (size_t)count_of(s);
    h->mask = mask;
    h->stop_tokens = e->stop_tokens;
    h->stop_asked = e->stop_asked;
    g.stop = &e->stop;
    g.stop_count = e->stop != NULL;
    EXPECT(MOTE_OK, mote_generate(s, &g, &h->r, &failure));
    CHECK(!h->wrong, "%d calls of on_logits or on_logprobs were not for the next position", h->wrong);
    CHECK(h->tokens == h->r.generated_tokens && h->probed == h->tokens && (size_t)count_of(s) == h->start + (size_t)h->tokens,
          "%d tokens, %d told, %d probed", h->r.generated_tokens, h->tokens, h->probed);
    CHECK(h->asked == h->tokens + (e->stop_asked != 0), "%d tokens, on_logits was called %d times", h->tokens, h->asked);
    int broke = 0;
    for (int i = 0; i < h->tokens && i < MOST; i++) broke += masked(h, i, h->ids[i]);
    CHECK(!broke, "%d of %d tokens were masked", broke, h->tokens);
}

// With every depth the callbacks hear the same, however the answer ends and whatever is masked.
static void test_on_logits(const mote_model *m) {
    static const ending endings[] = {{40, 0, 0, NULL}, {1, 0, 0, NULL}, {2, 0, 0, NULL}, {3, 0, 0, NULL}, {7, 0, 0, NULL},
                                     {40, 4, 0, NULL}, {40, 11, 0, NULL}, {40, 0, 1, NULL}, {40, 0, 6, NULL}, {0, 0, 0, "ert"}};
    const mote_sampling samplings[] = {sampling_of(0, 0), sampling_of(0.8f, 0), sampling_of(0.8f, 0.5f)};
    mote_session *s[DEPTHS];
    heard *want = (heard *)room(sizeof *want), *got = (heard *)room(sizeof *got);
    for (int d = 0; d < DEPTHS; d++) s[d] = session_at(m, depths[d]);
    for (int i = test_brief ? 3 : 0; i < 10; i += test_brief ? 3 : 1)
        for (int k = test_brief; k < (test_brief ? 2 : 3); k++)
            for (int mask = test_brief ? 3 : 0; mask < 6; mask += 3) {
                generate_heard(m, s[0], &samplings[k], &endings[i], mask, want);
                for (int d = 1; d < DEPTHS; d += test_brief ? 3 : 1) {
                    generate_heard(m, s[d], &samplings[k], &endings[i], mask, got);
                    CHECK(same_heard(got, want), "ending %d, sampling %d, mask %d, depth %d: heard otherwise", i, k, mask, depths[d]);
                }
            }
    mote_speculation x;
    EXPECT(MOTE_OK, mote_speculation_of(s[DEPTHS - 1], &x, &failure));
    CHECK(test_brief || (x.accepted[0] > 10 && x.drafted[0] > x.accepted[0]), "drafts: %d, accepted %d", (int)x.drafted[0], (int)x.accepted[0]);
    for (int d = 0; d < DEPTHS; d++) mote_session_close(s[d]);
    free(want);
    free(got);
}

// Without penalties it sees the model's own logits; what it does not touch does not change the answer.
static void test_plain_logits(const mote_model *m) {
    int vocab = mote_model_info(m)->vocab_size;
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *plain = session_at(m, MOTE_MTP_OFF);
    mote_sampling p = sampling_of(0, 0);
    ending e = {test_brief ? 5 : 20, 0, 0, NULL};
    heard *h = (heard *)room(sizeof *h);
    generate_heard(m, s, &p, &e, 0, h);
    feed_question(m, plain);
    int other = 0;
    for (int i = 0; i < h->tokens; i++) {
        int32_t id;
        other += hash_of(1, mote_logits(plain), (size_t)vocab * sizeof(float)) != h->logits[i];
        EXPECT(MOTE_OK, mote_step(plain, &p, &id, &failure));
        other += id != h->ids[i];
    }
    CHECK(!other, "%d rows or tokens differ from mote_step's", other);
    mote_session_close(plain);
    mote_session_close(s);
    free(h);
}

static int mask_all(void *user, float *logits, int vocab) {
    for (int i = 0; i < vocab; i++) logits[i] = -INFINITY;
    ++*(int *)user;
    return 0;
}

static int mask_badly(void *user, float *logits, int vocab) {
    logits[vocab / 2] = NAN;
    ++*(int *)user;
    return 0;
}

static int mask_later(void *user, float *logits, int vocab) {
    return ++*(int *)user > 3 ? mask_all(user, logits, vocab) : 0;
}

static void test_bad_masks(const mote_model *m) {
    int (*const bad[])(void *, float *, int) = {mask_all, mask_badly, mask_later};
    for (int i = 0; i < 3; i++)
        for (int hot = 0; hot < 2; hot++) {
            mote_session *s = session_at(m, MOTE_MTP_AUTO);
            mote_sampling p = sampling_of((float)hot, 0);
            mote_generation g;
            int calls = 0, start;
            memset(&g, 0, sizeof g);
            g.sampling = &p;
            g.user = &calls;
            g.on_logits = bad[i];
            feed_question(m, s);
            start = count_of(s);
            EXPECT(MOTE_EINVAL, mote_generate(s, &g, NULL, &failure));
            CHECK(count_of(s) == start + (i == 2 ? 3 : 0), "a bad mask: %d tokens", count_of(s) - start);
            g.verify = 1;
            EXPECT(MOTE_EINVAL, mote_generate(s, &g, NULL, &failure));
            CHECK(count_of(s) == start + (i == 2 ? 3 : 0), "verify and on_logits together");
            mote_session_close(s);
        }
}

// ---- 3. Bias --------------------------------------------------------------------------------------------------------

// What a plain answer says is forbidden by bias: the answers avoid it, with every depth alike, and so does mote_step.
static void test_bias(const mote_model *m) {
    mote_session *s[DEPTHS];
    heard *first = (heard *)room(sizeof *first), *want = (heard *)room(sizeof *want), *got = (heard *)room(sizeof *got);
    ending e = {test_brief ? 12 : 30, 0, 0, NULL};
    for (int d = 0; d < DEPTHS; d++) s[d] = session_at(m, depths[d]);
    for (int k = test_brief; k < (test_brief ? 2 : 3); k++) {
        mote_bias bias[12];
        mote_sampling p = sampling_of(k ? 0.7f : 0, k == 2 ? 0.5f : 0);
        generate_heard(m, s[0], &p, &e, 0, first);
        for (int i = 0; i < 12; i++) bias[i].id = first->ids[i], bias[i].bias = i % 2 ? -INFINITY : -50;
        p.bias = bias;
        p.bias_count = 12;
        generate_heard(m, s[0], &p, &e, 0, want);
        int banned = 0;
        for (int i = 0; i < want->tokens; i++)
            for (int b = 1; b < 12; b += 2) banned += want->ids[i] == bias[b].id;
        CHECK(!banned && want->ids[0] != first->ids[0], "%d forbidden tokens", banned);
        for (int d = 0; d < DEPTHS; d += test_brief ? 4 : 1) {          // with the callbacks, and with bias alone
            generate_heard(m, s[d], &p, &e, 0, got);
            CHECK(same_heard(got, want), "bias, sampling %d, depth %d", k, depths[d]);
            mote_generation g = generation_to(got, s[d], &p, e.max_tokens);
            g.on_logits = NULL;
            g.on_logprobs = NULL;
            g.verify = 1;
            feed_question(m, s[d]);
            EXPECT(MOTE_OK, mote_generate(s[d], &g, &got->r, &failure));
            CHECK(got->tokens == want->tokens && !memcmp(got->ids, want->ids, sizeof got->ids), "bias alone, depth %d", depths[d]);
        }
        feed_question(m, s[0]);
        int other = 0;
        for (int i = 0; i < 10; i++) {
            int32_t sampled = -1, stepped = -1;
            EXPECT(MOTE_OK, mote_sample(s[0], &p, &sampled, &failure));
            EXPECT(MOTE_OK, mote_step(s[0], &p, &stepped, &failure));
            other += sampled != want->ids[i] || stepped != want->ids[i];
        }
        CHECK(!other, "%d of 10 steps with bias differ", other);
    }
    mote_bias wrong[] = {{-1, 0}, {1 << 30, 0}, {1, NAN}, {1, INFINITY}};
    for (int i = 0; i < 5; i++) {
        mote_sampling p = sampling_of(0, 0);
        int32_t id = 0;
        p.bias = i < 4 ? &wrong[i] : NULL;
        p.bias_count = 1;
        EXPECT(MOTE_EINVAL, mote_step(s[0], &p, &id, &failure));
    }
    for (int d = 0; d < DEPTHS; d++) mote_session_close(s[d]);
    free(first);
    free(want);
    free(got);
}

// ---- 4. Log-probabilities -------------------------------------------------------------------------------------------

static double log_sum(const float *logits, int n) {
    double best = logits[0], total = 0;
    for (int i = 1; i < n; i++) best = fmax(best, logits[i]);
    for (int i = 0; i < n; i++) total += exp(logits[i] - best);
    return best + log(total);
}

// The token and the best ones are as the row of logits says.
static int logprobs_right(const mote_logprob *token, const mote_logprob *best, int top, const float *logits, int n) {
    double total = log_sum(logits, n);
    int wrong = !(fabs(token->logprob - (logits[token->id] - total)) < 1e-5);
    for (int i = 0; i < top; i++) {
        int above = 0;
        for (int j = 0; j < n; j++)
            above += logits[j] > logits[best[i].id] || (logits[j] == logits[best[i].id] && j < best[i].id);
        wrong += above != i || !(fabs(best[i].logprob - (logits[best[i].id] - total)) < 1e-5);
    }
    return !wrong;
}

static void test_logprobs(const mote_model *m) {
    int vocab = mote_model_info(m)->vocab_size, wrong = 0;
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *plain = session_at(m, MOTE_MTP_OFF);
    mote_sampling p = sampling_of(0.9f, 0.5f);
    heard *h = (heard *)room(sizeof *h);
    ending e = {test_brief ? 6 : 30, 0, 0, NULL};
    generate_heard(m, s, &p, &e, 0, h);
    feed_question(m, plain);
    for (int i = 0; i < h->tokens; i++) {
        int32_t id, top[TOP];
        float values[TOP];
        wrong += !logprobs_right(h->told[i], h->told[i] + 1, TOP, mote_logits(plain), vocab);
        EXPECT(MOTE_OK, mote_top_logprobs(plain, TOP, top, values, &failure));
        for (int k = 0; k < TOP; k++) wrong += top[k] != h->told[i][1 + k].id || values[k] != h->told[i][1 + k].logprob;
        EXPECT(MOTE_OK, mote_step(plain, &p, &id, &failure));
    }
    CHECK(!wrong, "%d log-probabilities of an answer are not those of its logits", wrong);
    mote_session_close(plain);
    mote_session_close(s);
    free(h);
}

// Of a prompt in two calls, against the logits of the same calls. The row before a call is what mote_logits has: on a GPU it is
// computed as decode does, those within a call as prompts are.
static void test_prompt_logprobs(const mote_model *m, int count, int cut, int top) {
    int vocab = mote_model_info(m)->vocab_size, wrong = 0;
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *plain = session_at(m, MOTE_MTP_AUTO);
    int32_t *ids = (int32_t *)room((size_t)count * sizeof *ids);
    float *logits = (float *)room((size_t)count * (size_t)vocab * sizeof *logits);
    mote_logprob *tokens = (mote_logprob *)room((size_t)count * sizeof *tokens);
    mote_logprob *best = (mote_logprob *)room((size_t)(count * top + 1) * sizeof *best);
    for (int i = 0; i < count; i++) ids[i] = random_int(0, vocab - 1);
    for (int from = 0, n; from < count; from += n) {
        n = from ? count - from : cut;
        EXPECT(MOTE_OK, mote_feed_logits(plain, ids + from, (size_t)n, logits + (size_t)from * (size_t)vocab, NULL, &failure));
        EXPECT(MOTE_OK, mote_feed_logprobs(s, ids + from, (size_t)n, top, tokens + from, top ? best + from * top : NULL, &failure));
        memcpy(logits + (size_t)(from + n - 1) * (size_t)vocab, mote_logits(plain), (size_t)vocab * sizeof *logits);
    }
    wrong += tokens[0].id != ids[0] || tokens[0].logprob != 0 || (top && best[0].id != -1);
    for (int i = 1; i < count; i++)
        wrong += tokens[i].id != ids[i] ||
                 !logprobs_right(tokens + i, best + i * top, top, logits + (size_t)(i - 1) * (size_t)vocab, vocab);
    CHECK(!wrong, "%d of %d log-probabilities of a prompt are wrong", wrong, count);
    CHECK(count_of(s) == count && same_logits(s, logits + (size_t)(count - 1) * (size_t)vocab, vocab), "the timeline behind it");
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, ids, 1, 1, tokens, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, ids, 1, -1, tokens, best, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, ids, 1, vocab + 1, tokens, best, &failure));
    EXPECT(MOTE_ECONTEXT, mote_feed_logprobs(s, ids, CONTEXT, 0, tokens, NULL, &failure));
    CHECK(count_of(s) == count, "a refused call changed the timeline");
    mote_session_close(s);
    mote_session_close(plain);
    free(ids);
    free(logits);
    free(tokens);
    free(best);
}

// ---- 5. Calls -------------------------------------------------------------------------------------------------------

typedef struct called { char json[1024]; int count, stop_at; heard h; } called;

static int hear_call(void *user, const char *call, size_t size) {
    called *c = (called *)((char *)user - offsetof(called, h));
    if (strlen(call) == size && strlen(c->json) + size + 2 < sizeof c->json) strcat(strcat(c->json, call), ";");
    return ++c->count == c->stop_at;
}

static const char TOOLS[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"Adds.\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"a\": {\"type\": \"number\"}, \"note\": {\"type\": \"string\"}}}}}]";

// An answer that says just this: behind the question, or what was asked.
static void force(const mote_model *m, mote_generation *g, heard *h, const char *text, int32_t *ids) {
    h->force_count = text_ids(m, text, 1, ids, MOST);
    h->force = ids;
    h->start = 0;
    g->on_logits = hear_logits;
}

static int forced_logits(void *user, float *logits, int vocab) {
    heard *h = (heard *)user;
    for (int i = 0; i < vocab; i++)
        if (h->asked >= h->force_count || i != h->force[h->asked]) logits[i] = -INFINITY;
    h->asked++;
    return h->asked > h->force_count;
}

static const struct { const char *text, *calls; int broken; } call_cases[] = {
    {"<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=note>\n3\n</parameter>\n</function>\n</tool_call>",
     "{\"name\": \"add\", \"arguments\": {\"a\": 3, \"note\": \"3\"}};", 0},
    {"Let me see.\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"add\"}\n"
     "</tool_call>", "{\"name\": \"add\", \"arguments\": {\"a\": 1}};{\"name\": \"add\", \"arguments\": {}};", 0},
    {"<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "", 1},                                  // no such tool
    {"<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}", "", 1},
    {"<tool_call>\nno call\n</tool_call> So.", "", 1},
    {"So:\n<function=add>\n<parameter=a>\n3\n</parameter>\n</function>\n</tool_call>",             // not opened
     "{\"name\": \"add\", \"arguments\": {\"a\": 3}};", 0},
    {"<function=add>\n</function>", "{\"name\": \"add\", \"arguments\": {}};", 0},
    {"I use <function=add> for that, </function> and no more.", "", 0},
    {"No call at all.", "", 0}};

static void test_calls(const mote_model *m) {
    mote_sampling p = sampling_of(0, 0);
    for (size_t i = 0; i < sizeof call_cases / sizeof *call_cases; i += test_brief ? 5 : 1)
        for (int d = test_brief; d < 2; d++) {
            mote_session *s = session_at(m, d ? 3 : MOTE_MTP_OFF);
            called *c = (called *)room(sizeof *c);
            mote_generation g = generation_to(&c->h, s, &p, 0);
            int32_t ids[MOST];
            force(m, &g, &c->h, call_cases[i].text, ids);
            g.on_logits = forced_logits;
            g.on_call = hear_call;
            g.tools = TOOLS;
            g.think = MOTE_THINK_OFF;
            EXPECT(MOTE_OK, mote_ask(s, "Add.", &g, &c->h.r, &failure));
            CHECK(!strcmp(c->json, call_cases[i].calls) && c->h.r.calls == c->count && c->h.r.broken_calls == call_cases[i].broken,
                  "call %zu: %d calls, %d broken: %s", i, c->h.r.calls, c->h.r.broken_calls, c->json);
            free(c);
            mote_session_close(s);
        }
}

// ---- 6. Conversations -----------------------------------------------------------------------------------------------

// The timeline's tokens are those that the template renders of this request.
static void check_timeline(const mote_model *m, const mote_session *s, const char *request, size_t behind, const char *what) {
    int32_t ids[CONTEXT];
    char text[4096];
    size_t want = 0, count = 0, n = 0;
    EXPECT(MOTE_OK, mote_render_tokens(m, request, strlen(request), ids, CONTEXT, &want, &failure));
    const int32_t *have = mote_tokens(s, &count);
    EXPECT(MOTE_OK, mote_detokenize(m, have, count, text, sizeof text, &n, &failure));
    CHECK(count == want + behind && !memcmp(have, ids, want * sizeof *ids), "%s: %zu tokens behind %zu, the template has %zu:\n%.*s", what,
          count, behind, want, (int)n, text);
}

static void say(const mote_model *m, mote_session *s, const char *role, const char *message, int think, const char *answer,
                heard *h, mote_generation *with) {
    mote_sampling p = sampling_of(0, 0);
    mote_generation g = generation_to(h, s, &p, 0);
    int32_t ids[MOST];
    force(m, &g, h, answer, ids);
    g.on_logits = forced_logits;
    g.role = role;
    g.think = think;
    g.system = "Be brief. ";
    g.tools = TOOLS;
    if (with) g.keep_thinking = with->keep_thinking, g.results = with->results, g.result_count = with->result_count;
    EXPECT(MOTE_OK, mote_ask(s, message, &g, &h->r, &failure));
    CHECK(h->r.generated_tokens == h->force_count, "\"%s\": %d tokens of %d", answer, h->r.generated_tokens, h->force_count);
}

#define SYSTEM "{\"tools\": %s, \"messages\": [{\"role\": \"system\", \"content\": \"Be brief. \"}, {\"role\": \"user\", \"content\": \"One?\"}, "
#define CALL_TEXT "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
#define CALL "{\"function\": {\"name\": \"add\", \"arguments\": {\"a\": \"1\"}}}"

// A user turn leaves old thinking behind, and what is then there is the template's rendering, token for token. Thinking between the
// calls of a turn stays until then.
static void test_thinking(const mote_model *m, int mtp) {
    mote_session *s = session_at(m, mtp);
    heard *h = (heard *)room(sizeof *h);
    const char *more[] = {" 3\n"};
    mote_generation with;
    char request[4096];
    size_t read = 99, total = 0;
    memset(&with, 0, sizeof with);
    say(m, s, NULL, "One?", MOTE_THINK_ON, "Hmm, one.\n</think>\n\n It is 1 . \n<|im_end|>", h, NULL);
    snprintf(request, sizeof request, SYSTEM "{}]}", TOOLS);
    snprintf(request + strlen(request) - strlen(", {}]}"), 64, "], \"enable_thinking\": true}");
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "the first turn");

    EXPECT(MOTE_OK, mote_ask_count(s, "Two?", NULL, &read, &total, &failure));
    say(m, s, "user", "Two?", MOTE_THINK_ON, "A call, then.\n</think>\n\nI add.\n\n" CALL_TEXT "\n" CALL_TEXT "<|im_end|>", h, NULL);
    CHECK((int)read == h->r.prompt_tokens && total + (size_t)h->r.generated_tokens == (size_t)count_of(s), "counted %zu, %zu", read,
          total);
    snprintf(request, sizeof request, SYSTEM "{\"role\": \"assistant\", \"content\": \" It is 1 . \", \"reasoning_content\": \"Hmm, one.\"}, "
             "{\"role\": \"user\", \"content\": \"Two?\"}], \"enable_thinking\": true}", TOOLS);
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "the second turn");

    with.results = more;
    with.result_count = 1;
    say(m, s, "tool", "2", MOTE_THINK_ON, "So 2 it is.\n</think>\n\nTwo.<|im_end|>", h, &with);
    snprintf(request, sizeof request, SYSTEM "{\"role\": \"assistant\", \"content\": \" It is 1 . \"}, {\"role\": \"user\", \"content\": \"Two?\"}, "
             "{\"role\": \"assistant\", \"content\": \"I add.\", \"reasoning_content\": \"A call, then.\", \"tool_calls\": [" CALL ", " CALL "]}, "
             "{\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"tool\", \"content\": \" 3\\n\"}], \"enable_thinking\": true}", TOOLS);
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "the tool's turn: thinking stays");

    size_t first = (size_t)count_of(s);
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read > 0 && (size_t)count_of(s) < first, "nothing was dropped");
    size_t size;
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read == 0 && session_is(s, bytes, size), "dropped twice");
    free(bytes);
    say(m, s, NULL, "Three?", MOTE_THINK_OFF, "Cut sh", h, NULL);       // and no end: on_logits stops it
    snprintf(request, sizeof request, SYSTEM "{\"role\": \"assistant\", \"content\": \" It is 1 . \"}, {\"role\": \"user\", \"content\": \"Two?\"}, "
             "{\"role\": \"assistant\", \"content\": \"I add.\", \"tool_calls\": [" CALL ", " CALL "]}, {\"role\": \"tool\", \"content\": \"2\"}, "
             "{\"role\": \"tool\", \"content\": \" 3\\n\"}, {\"role\": \"assistant\", \"content\": \"Two.\"}, {\"role\": \"user\", \"content\": \"Three?\"}], "
             "\"enable_thinking\": false}", TOOLS);
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "the third turn");
    say(m, s, NULL, "Four?", MOTE_THINK_ON, "No end to thin", h, NULL);
    say(m, s, NULL, "Five?", MOTE_THINK_ON, "</think>\n\nFive.<|im_end|>", h, NULL);
    size_t at = strlen(request) - strlen("], \"enable_thinking\": false}");
    snprintf(request + at, sizeof request - at, ", {\"role\": \"assistant\", \"content\": \"Cut sh\"}, {\"role\": \"user\", \"content\": \"Four?\"}, "
             "{\"role\": \"assistant\", \"content\": \"\"}, {\"role\": \"user\", \"content\": \"Five?\"}], \"enable_thinking\": true}");
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "cut short in an answer and in thinking");
    mote_session_close(s);
    free(h);
}

// keep_thinking, mote_feed: the timeline is appended to. A clone drops what its original drops.
static void test_kept_thinking(const mote_model *m) {
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *clone = NULL;
    heard *h = (heard *)room(sizeof *h);
    mote_generation with;
    size_t read = 0, other = 0, before;
    int32_t id = 0;
    memset(&with, 0, sizeof with);
    with.keep_thinking = 1;
    say(m, s, NULL, "One?", MOTE_THINK_ON, "Hmm.\n</think>\n\nOne.<|im_end|>", h, NULL);
    mote_checkpoint *c = checkpoint_of(s);
    int32_t *ids = (int32_t *)room(CONTEXT * sizeof *ids);
    memcpy(ids, mote_tokens(s, &before), (size_t)count_of(s) * sizeof *ids);
    say(m, s, NULL, "Two?", MOTE_THINK_ON, "Hm.\n</think>\n\nTwo.<|im_end|>", h, &with);
    CHECK(!memcmp(mote_tokens(s, NULL), ids, before * sizeof *ids), "keep_thinking changed the history");
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read == 0, "thinking that was to be kept is dropped");
    size_t saved_size;
    char *saved = session_bytes(s, &saved_size);
    EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
    say(m, s, NULL, "Two?", MOTE_THINK_ON, "Hm.\n</think>\n\nTwo.<|im_end|>", h, NULL);
    EXPECT(MOTE_OK, mote_load(s, saved, saved_size, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read == 0, "what was loaded drops thinking that another timeline remembered");
    free(saved);
    EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
    say(m, s, NULL, "Two?", MOTE_THINK_ON, "Hm.\n</think>\n\nTwo.<|im_end|>", h, NULL);
    EXPECT(MOTE_OK, mote_feed(s, ids, 0, &failure));        // nothing, and what is refused, changes nothing
    EXPECT(MOTE_ECONTEXT, mote_feed(s, ids, CONTEXT, &failure));
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(clone, &other, &failure));
    size_t size;
    char *bytes = session_bytes(s, &size);
    CHECK(read > 0 && read == other && session_is(clone, bytes, size), "a clone drops other thinking");
    free(bytes);
    say(m, s, NULL, "Three?", MOTE_THINK_ON, "Hm.\n</think>\n\nThree.<|im_end|>", h, NULL);
    EXPECT(MOTE_OK, mote_feed(s, &id, 1, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read == 0, "dropped behind mote_feed");
    mote_checkpoint_free(c);
    mote_session_close(clone);
    mote_session_close(s);
    free(ids);
    free(h);
}

// A timeline that moves to another session takes its checkpoints with it.
static void test_moved_timeline(const mote_model *m) {
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *to = session_at(m, MOTE_MTP_AUTO);
    mote_generation g;
    mote_sampling greedy;
    int32_t ids[256];
    memset(&g, 0, sizeof g);
    memset(&greedy, 0, sizeof greedy);
    g.sampling = &greedy;
    g.max_tokens = 20;
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)text_ids(m, QUESTION, 1, ids, 256), &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    mote_checkpoint *c = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
    size_t size, count;
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_EINVAL, mote_rewind(to, c, &failure));
    EXPECT(MOTE_OK, mote_load(to, bytes, size, &failure));
    free(bytes);
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
    mote_session_close(s);
    EXPECT(MOTE_OK, mote_rewind(to, c, &failure));
    s = session_at(m, MOTE_MTP_AUTO);
    mote_tokens(to, &count);
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)text_ids(m, QUESTION, 1, ids, 256), &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    CHECK((size_t)count_of(s) == count, "%zu tokens after the rewind, expected %d", count, count_of(s));
    CHECK(same_logits(to, mote_logits(s), mote_model_info(m)->vocab_size), "other logits behind a checkpoint that moved");
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    EXPECT(MOTE_OK, mote_generate(to, &g, NULL, &failure));
    CHECK(count_of(s) == count_of(to) && !memcmp(mote_tokens(s, NULL), mote_tokens(to, NULL), (size_t)count_of(s) * sizeof *ids),
          "another text behind a checkpoint that moved");
    mote_checkpoint_free(c);
    mote_session_close(to);
    mote_session_close(s);
}

static void test_turn_errors(const mote_model *m) {
    static const char *const tools[] = {"", "{}", "[", "[{}], 1"};
    const char *const results[] = {"a", NULL};
    mote_session *s = session_at(m, MOTE_MTP_AUTO);
    mote_generation g;
    memset(&g, 0, sizeof g);
    for (int i = 0; i < 4; i++) {
        g.tools = tools[i];
        EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, NULL, &failure));
        EXPECT(MOTE_EINVAL, mote_ask_count(s, "Hello", &g, NULL, NULL, &failure));
    }
    memset(&g, 0, sizeof g);
    g.results = results;
    g.result_count = 2;
    g.role = "tool";
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, NULL, &failure));
    g.result_count = 1;
    g.role = NULL;
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, NULL, &failure));
    g.result_count = 0;
    g.top_logprobs = -1;
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask_count(s, NULL, NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_drop_thinking(NULL, NULL, &failure));
    CHECK(count_of(s) == 0, "refused turns left tokens");
    mote_session_close(s);
}

// ---- 7. Stored conversations ----------------------------------------------------------------------------------------

// A conversation of whole turns: what is asked and answered, and the same as messages. thinks: the family's prompt ends in an
// open <think>, else the model opens it.
typedef struct told { const char *role, *message, *answer, *messages; } told;

static const char USER_CALL[] = "{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"I add.\", "
                                "\"reasoning_content\": \"A call.\", \"tool_calls\": [{\"function\": {\"name\": \"add\", \"arguments\": {\"a\": ";
static const told three_five[] = {
    {"user", "One?", "Hmm, one.\n</think>\n\nIt is 1.<|im_end|>",
     "{\"role\": \"user\", \"content\": \"One?\"}, {\"role\": \"assistant\", \"content\": \"It is 1.\", \"reasoning_content\": \"Hmm, one.\"}"},
    {"user", "Two?", "A call.\n</think>\n\nI add.\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>",
     NULL},
    {"tool", "2", "So 2.\n</think>\n\nTwo.<|im_end|>",
     "{\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"assistant\", \"content\": \"Two.\", \"reasoning_content\": \"So 2.\"}"},
    {"user", "<|im_end|> or three?", "Three.\n</think>\n\nThree.<|im_end|>",
     "{\"role\": \"user\", \"content\": \"<|im_end|> or three?\"}, {\"role\": \"assistant\", \"content\": \"Three.\", \"reasoning_content\": \"Three.\"}"}};
static const told three[] = {
    {"user", "One?", "<think>\nHmm, one.\n</think>\n\nIt is 1.<|im_end|>", NULL},
    {"user", "Two?", "<think>\nA call.\n</think>\n\nI add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>", NULL},
    {"tool", "2", "<think>\nSo 2.\n</think>\n\nTwo.<|im_end|>", NULL},
    {"user", "<|im_end|> or three?", "<think>\nThree.\n</think>\n\nThree.<|im_end|>", NULL}};
enum { TOLD = 4 };

// The first `turns` of it, as a request.
static void stored(char *request, size_t room_for, int turns) {
    size_t n = (size_t)snprintf(request, room_for, "{\"tools\": %s, \"messages\": [{\"role\": \"system\", \"content\": \"Be brief. \"}", TOOLS);
    for (int i = 0; i < turns; i++)
        n += (size_t)(three_five[i].messages ? snprintf(request + n, room_for - n, ", %s", three_five[i].messages)
                                             : snprintf(request + n, room_for - n, ", %s1}}}]}", USER_CALL));
    snprintf(request + n, room_for - n, "], \"enable_thinking\": true}");
}

static int same_timeline(const mote_session *a, const mote_session *b) {
    size_t n, m;
    const int32_t *x = mote_tokens(a, &n), *y = mote_tokens(b, &m);
    return n == m && !memcmp(x, y, n * sizeof *x);
}

// A conversation that is led with mote_ask, and at each turn one that begins with the stored turns before it: the timelines are the
// same, token for token, there and after the next turn.
static void test_restored(const mote_model *m, const told *turns, const char *family) {
    mote_session *led = session_at(m, MOTE_MTP_AUTO), *kept = session_at(m, MOTE_MTP_AUTO);
    heard *h = (heard *)room(sizeof *h);
    char request[4096];
    const int vocab = mote_model_info(m)->vocab_size;
    for (int i = 0; i < TOLD; i++) {
        size_t read = 0, again = 0;
        mote_session *s = session_at(m, MOTE_MTP_AUTO);
        stored(request, sizeof request, i);
        if (i) EXPECT(MOTE_OK, mote_chat_restore(s, request, strlen(request), &read, &failure));
        if (i) EXPECT(MOTE_OK, mote_chat_restore(kept, request, strlen(request), &again, &failure));
        CHECK(same_timeline(led, s) && same_timeline(led, kept), "%s: restored before turn %d", family, i);
        CHECK(!i || (same_logits(s, mote_logits(led), vocab) && same_logits(kept, mote_logits(led), vocab)), "%s: other logits", family);
        CHECK(read == (size_t)count_of(s) && (i < 2 || again < read), "%s, turn %d: %zu and %zu tokens read of %d", family, i, read, again,
              count_of(s));
        say(m, led, turns[i].role, turns[i].message, MOTE_THINK_ON, turns[i].answer, h, NULL);
        if (i) say(m, s, turns[i].role, turns[i].message, MOTE_THINK_ON, turns[i].answer, h, NULL);
        CHECK(!i || same_timeline(led, s), "%s: turn %d after restored ones", family, i);
        mote_session_close(s);
    }
    stored(request, sizeof request, TOLD);
    size_t read = 99;
    EXPECT(MOTE_OK, mote_chat_restore(led, request, strlen(request), &read, &failure));
    CHECK(read == 0, "%s: %zu tokens of a conversation that is there were read", family, read);
    EXPECT(MOTE_OK, mote_chat_restore(kept, request, strlen(request), &read, &failure));
    CHECK(read > 0 && same_timeline(led, kept), "%s: restored at the end", family);
    size_t count;
    const int32_t *ids = mote_tokens(led, &count);
    mote_session *fed = session_at(m, MOTE_MTP_AUTO);       // all is there, but not what the next turn goes back to
    EXPECT(MOTE_OK, mote_feed(fed, ids, count, &failure));
    EXPECT(MOTE_OK, mote_chat_restore(fed, request, strlen(request), &read, &failure));
    CHECK(read == count && same_timeline(led, fed), "%s: %zu of %zu tokens read again", family, read, count);
    EXPECT(MOTE_OK, mote_drop_thinking(fed, NULL, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(kept, &read, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(led, NULL, &failure));
    CHECK(read > 0 && same_timeline(led, kept) && same_timeline(led, fed), "%s: thinking of a restored answer", family);
    mote_session_close(fed);
    mote_session_close(led);
    mote_session_close(kept);
    free(h);
}

static void edit_template(const char *name, char **bytes, size_t *size, const void *how) {
    if (strcmp(name, "chat_template.jinja")) return;
    free(*bytes);
    *bytes = file_bytes((const char *)how, size);
    if (!*bytes) *bytes = (char *)room(0);
}

// The bundled model with Qwen3's template.
static void test_restored_as_qwen3(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/chat_templates/Qwen-Qwen3-0.6B.jinja", test_data_dir() ? test_data_dir() : "");
    if (!test_data_dir() || access(path, R_OK)) {
        test_skip("no data: restored conversations of Qwen3");
        return;
    }
    if (!temp_open()) return;
    temp_copy_of("models/demo", edit_template, path);
    mote_model *m = model_of(temp_dir, MOTE_EVERYTHING);
    CHECK(!strcmp(mote_model_info(m)->chat_template, "Qwen3"), "%s", mote_model_info(m)->chat_template);
    test_restored(m, three, "Qwen3");
    mote_close(m);
    temp_close();
}

// A turn after fed tokens is the same whatever line end closes the one before.
static void test_closed_turns(const mote_model *m) {
    static const char begin[] = "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nIt is 1.";
    static const char next[] = "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    static const char *const ends[] = {"<|im_end|>", "<|im_end|>\n", "<|im_end|>\n\n", "<|im_end|>\r\n", "", "<|im_end|>\nx"};
    static const char *const between[] = {"\n", "", "", "", "<|im_end|>\n", "<|im_end|>\n"};
    mote_generation g;
    char text[512];
    int32_t fed[256], want[256];
    memset(&g, 0, sizeof g);
    g.max_tokens = 1;
    g.think = MOTE_THINK_OFF;
    for (int i = 0; i < 6; i++) {
        mote_session *s = session_at(m, MOTE_MTP_AUTO);
        size_t read = 0, count = 0;
        snprintf(text, sizeof text, "%s%s", begin, ends[i]);
        int n = text_ids(m, text, 1, fed, 256);
        EXPECT(MOTE_OK, mote_feed(s, fed, (size_t)n, &failure));
        EXPECT(MOTE_OK, mote_ask_count(s, "Two?", &g, &read, NULL, &failure));
        EXPECT(MOTE_OK, mote_ask(s, "Two?", &g, NULL, &failure));
        snprintf(text, sizeof text, "%s%s", between[i], next);
        int more = text_ids(m, text, 1, want, 256);
        const int32_t *have = mote_tokens(s, &count);
        CHECK((int)count == n + more + 1 && (int)read == more && !memcmp(have, fed, (size_t)n * sizeof *fed) &&
              !memcmp(have + n, want, (size_t)more * sizeof *want), "a turn after end %d: %zu tokens, expected %d and %d", i, count, n, more);
        mote_session_close(s);
    }
}

// A tool's result needs an open call, wherever the timeline comes from.
static void test_open_calls(const mote_model *m) {
    static const struct { const char *messages; int calls; } cases[] = {
        {"{\"role\": \"user\", \"content\": \"<tool_call>?\"}", 0},
        {"{\"role\": \"user\", \"content\": \"One?\"}, {\"role\": \"assistant\", \"content\": \"It is 1.\"}", 0},
        {"{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL "]}", 1},
        {"{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL "]}, "
         "{\"role\": \"tool\", \"content\": \"2\"}", 0},
        {"{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL ", " CALL "]}, "
         "{\"role\": \"tool\", \"content\": \"2\"}", 1},
        {"{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL "]}, "
         "{\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"assistant\", \"content\": \"Two.\"}", 0}};
    mote_generation g;
    memset(&g, 0, sizeof g);
    g.role = "tool";
    g.max_tokens = 1;
    mote_session *empty = session_at(m, MOTE_MTP_AUTO);
    EXPECT(MOTE_EINVAL, mote_ask(empty, "2", &g, NULL, &failure));
    CHECK(strstr(failure.message, "call"), "%s", failure.message);
    mote_session_close(empty);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char request[2048];
        int32_t ids[CONTEXT];
        size_t count, size;
        mote_session *s[3];
        for (int k = 0; k < 3; k++) s[k] = session_at(m, MOTE_MTP_AUTO);
        snprintf(request, sizeof request, "{\"messages\": [%s], \"add_generation_prompt\": false}", cases[i].messages);
        EXPECT(MOTE_OK, mote_chat_restore(s[0], request, strlen(request), NULL, &failure));
        EXPECT(MOTE_OK, mote_render_tokens(m, request, strlen(request), ids, CONTEXT, &count, &failure));
        EXPECT(MOTE_OK, mote_feed(s[1], ids, count, &failure));
        char *bytes = session_bytes(s[0], &size);
        EXPECT(MOTE_OK, mote_load(s[2], bytes, size, &failure));
        free(bytes);
        for (int k = 0; k < 3; k++) {
            int want = cases[i].calls ? MOTE_OK : MOTE_EINVAL, before = count_of(s[k]);
            EXPECT(want, mote_ask_count(s[k], "2", &g, NULL, NULL, &failure));
            EXPECT(want, mote_ask(s[k], "2", &g, NULL, &failure));
            CHECK((count_of(s[k]) > before) == cases[i].calls, "case %zu: %d tokens before, %d after", i, before, count_of(s[k]));
            mote_session_close(s[k]);
        }
    }
    static const char *const broken[] = {"<tool_call>\n{\"name\": ", "<tool_call>\nadd(1)\n</tool_call><|im_end|>", "So:\n<function=add>\n</function><|im_end|>"};
    heard *h = (heard *)room(sizeof *h);
    for (int i = 0; i < 3; i++) {                           // what is wrong with it may be told
        mote_session *s = session_at(m, MOTE_MTP_AUTO);
        say(m, s, NULL, "Two?", MOTE_THINK_OFF, broken[i], h, NULL);
        EXPECT(MOTE_OK, mote_ask(s, "error: no such call", &g, NULL, &failure));
        mote_session_close(s);
    }
    free(h);
}

// ---- 8. Counts ------------------------------------------------------------------------------------------------------

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

// ---- 9. Threads -----------------------------------------------------------------------------------------------------

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
    worker *w = (worker *)room(4 * sizeof *w);
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
