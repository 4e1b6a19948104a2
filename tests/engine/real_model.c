// A real model against transformers: SmolLM2-135M-Instruct, as `make test-real` gets it. Tokens, logits, log-probabilities and perplexity of
// a text, greedy answers to a question and in a conversation, which is printed.
// Usage: real_model DIR, from the top of the repository: a folder of tools/gguf_to_checkpoint.py. The reference is that of tools/real_oracle.py,
// in tests/fixtures/real: of the same weights, in float32.

#include "api.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../text/basics.c"
#include "../../text/utf8.c"
#include "../../text/json.c"

static const char *const fixtures = "tests/fixtures/real";

// ---- The reference ----------------------------------------------------------------------------------------------------

typedef struct numbers { size_t count; double *at; int32_t *ids; } numbers;

// The numbers of the n-th line of a name.
static numbers reference(const char *text, const char *name, int n) {
    numbers r = {0, NULL, NULL};
    char begins[64];
    snprintf(begins, sizeof begins, "\n%s ", name);
    const char *line = strstr(text, begins);
    while (line && n--) line = strstr(line + 1, begins);
    if (!CHECK(line != NULL, "reference.txt has no %s", name)) exit(test_main_end());
    char *next;
    r.count = strtoul(line + strlen(begins), &next, 10);
    r.at = (double *)allocate(r.count * sizeof *r.at + 1);
    r.ids = (int32_t *)allocate(r.count * sizeof *r.ids + 1);
    for (size_t i = 0; i < r.count; i++) {
        r.at[i] = strtod(next, &next);
        r.ids[i] = (int32_t)r.at[i];
    }
    return r;
}

static void numbers_free(numbers *n) {
    free(n->at);
    free(n->ids);
}

// ---- Text -------------------------------------------------------------------------------------------------------------

static void check_tokens(const mote_model *m, const char *text, size_t size, const int32_t *want, size_t count) {
    size_t n = 0;
    int32_t *ids = (int32_t *)allocate((size + 1) * sizeof *ids);
    EXPECT(MOTE_OK, mote_tokenize(m, text, size, 1, ids, size + 1, &n, &failure));
    CHECK(n == count && !memcmp(ids, want, n * sizeof *ids), "<%.60s>: %zu tokens, not %zu or others", text, n, count);
    free(ids);
}

static void test_tokenizer(const mote_model *m) {
    size_t size, lines = 0;
    char path[256];
    snprintf(path, sizeof path, "%s/tokenizer.jsonl", fixtures);
    char *file = file_bytes(path, &size);
    if (!CHECK(file != NULL, "no %s", path)) return;
    for (char *line = file, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, lines++) {
        json j;
        mote_error err;
        if (!CHECK(!json_parse(&j, line, (size_t)(end - line), path, &err), "line %zu", lines)) break;
        uint32_t text = json_get(&j, 0, "text"), ids = json_get(&j, 0, "ids");
        char *bytes = (char *)allocate(j.nodes[text].size + 1u);
        int32_t *want = (int32_t *)allocate(j.nodes[ids].size * sizeof *want + 1);
        size_t n = json_string(&j, text, bytes, j.nodes[text].size);
        for (uint32_t i = 0; i < j.nodes[ids].size; i++) {
            uint64_t id = 0;
            CHECK(json_u64(&j, ids + 1 + i, &id), "line %zu", lines);
            want[i] = (int32_t)id;
        }
        check_tokens(m, bytes, n, want, j.nodes[ids].size);
        free(bytes);
        free(want);
        json_free(&j);
    }
    CHECK(lines > 10, "%zu lines", lines);
    free(file);
}

// ---- Logits -----------------------------------------------------------------------------------------------------------

static void check_logits(const mote_model *m, const char *text, const numbers *ids) {
    const int vocab = mote_model_info(m)->vocab_size;
    numbers at = reference(text, "positions", 0), want = reference(text, "logits", 0), top = reference(text, "top_ids", 0);
    numbers best = reference(text, "top_logits", 0), deviation = reference(text, "deviation", 0), stride = reference(text, "stride", 0);
    const size_t each = want.count / at.count, tops = top.count / at.count;
    mote_session *s = session_of(m, .context = (int)ids->count + 1);
    double worst = 0;
    for (size_t p = 0, fed = 0; p < at.count; p++) {
        EXPECT(MOTE_OK, mote_feed(s, ids->ids + fed, (size_t)at.ids[p] + 1 - fed, &failure));
        fed = (size_t)at.ids[p] + 1;
        const float *logits = mote_logits(s);
        if (!CHECK(logits != NULL, "no logits")) break;
        for (size_t i = 0; i < each; i++) worst = fmax(worst, fabs(logits[i * (size_t)stride.ids[0]] - want.at[p * each + i]));
        for (size_t i = 0; i < tops; i++) worst = fmax(worst, fabs(logits[top.ids[p * tops + i]] - best.at[p * tops + i]));
        int first = 0;
        for (int i = 1; i < vocab; i++)
            if (logits[i] > logits[first]) first = i;
        CHECK(first == top.ids[p * tops] || best.at[p * tops] - best.at[p * tops + 1] < 1e-3, "position %d: the best token is %d", at.ids[p], first);
    }
    printf("real_model: logits at %zu positions, %zu of each: off by %.1e standard deviations at most\n", at.count, each + tops,
           worst / deviation.at[0]);
    CHECK(worst < 1e-4 * deviation.at[0], "logits are off by %g of %g", worst, deviation.at[0]);
    mote_session_close(s);
    numbers_free(&at), numbers_free(&want), numbers_free(&top), numbers_free(&best), numbers_free(&deviation), numbers_free(&stride);
}

static void check_perplexity(const mote_model *m, const char *text, const numbers *ids) {
    numbers want = reference(text, "logprobs", 0), perplexity = reference(text, "perplexity", 0);
    mote_session *s = session_of(m, .context = (int)ids->count + 1);
    mote_logprob *tokens = (mote_logprob *)allocate(ids->count * sizeof *tokens);
    double sum = 0, worst = 0;
    EXPECT(MOTE_OK, mote_feed_logprobs(s, ids->ids, ids->count, 0, tokens, NULL, &failure));
    for (size_t i = 1; i < ids->count; i++) {
        sum -= tokens[i].logprob;
        worst = fmax(worst, fabs(tokens[i].logprob - want.at[i - 1]));
    }
    const double got = exp(sum / (double)(ids->count - 1));
    printf("real_model: perplexity %.6f, transformers' %.6f; log-probabilities off by %.1e at most\n", got, perplexity.at[0], worst);
    CHECK(fabs(got / perplexity.at[0] - 1) < 1e-3, "perplexity %g, not %g", got, perplexity.at[0]);
    CHECK(worst < 1e-3, "a log-probability is off by %g", worst);
    free(tokens);
    mote_session_close(s);
    numbers_free(&want), numbers_free(&perplexity);
}

static void test_text(const mote_model *m, const char *text) {
    size_t size;
    char path[256];
    snprintf(path, sizeof path, "%s/text.txt", fixtures);
    char *bytes = file_bytes(path, &size);
    numbers ids = reference(text, "ids", 0);
    if (CHECK(bytes != NULL, "no %s", path)) check_tokens(m, bytes, size, ids.ids, ids.count);
    check_logits(m, text, &ids);
    check_perplexity(m, text, &ids);
    numbers_free(&ids);
    free(bytes);
}

// ---- Answers ----------------------------------------------------------------------------------------------------------

static void test_greedy(const mote_model *m, const char *text) {
    numbers question = reference(text, "question", 0), want = reference(text, "greedy", 0);
    mote_session *s = session_of(m, .context = (int)(question.count + want.count));
    mote_sampling greedy;
    size_t same = 0;
    memset(&greedy, 0, sizeof greedy);
    EXPECT(MOTE_OK, mote_feed(s, question.ids, question.count, &failure));
    for (int32_t id = -1; same < want.count; same++) {
        EXPECT(MOTE_OK, mote_step(s, &greedy, &id, &failure));
        if (id != want.ids[same]) break;
    }
    printf("real_model: %zu of %zu greedy tokens are transformers'\n", same, want.count);
    CHECK(same == want.count && same == 200, "token %zu differs", same);
    mote_session_close(s);
    numbers_free(&question), numbers_free(&want);
}

typedef struct answer { int32_t ids[256]; size_t count; } answer;

static int on_token(void *user, int32_t id) {
    answer *a = (answer *)user;
    if (a->count < 256) a->ids[a->count++] = id;
    return 0;
}

static int on_text(void *user, int channel, const char *text, size_t size) {
    (void)user, (void)channel;
    printf("%.*s", (int)size, text);
    return 0;
}

static void test_talk(const mote_model *m, const char *text) {
    static const char *const said[] = {"What is the capital of France?", "And of Italy?", "Tell me one thing that one can see there."};
    mote_session *s = session_of(m, .context = 1024);
    mote_sampling greedy;
    memset(&greedy, 0, sizeof greedy);
    for (int i = 0; i < 3; i++) {
        numbers want = reference(text, "turn", i);
        answer a = {{0}, 0};
        mote_generation g;
        memset(&g, 0, sizeof g);
        g.sampling = &greedy;
        g.max_tokens = 60;
        g.on_token = on_token;
        g.on_text = on_text;
        g.user = &a;
        printf("> %s\n", said[i]);
        EXPECT(MOTE_OK, mote_ask(s, said[i], &g, NULL, &failure));
        printf("\n");
        CHECK(a.count == want.count && !memcmp(a.ids, want.ids, a.count * sizeof *a.ids), "turn %d is not transformers'", i);
        numbers_free(&want);
    }
    mote_session_close(s);
}

int main(int argc, char **argv) {
    char path[256];
    size_t size;
    test_main_begin("real_model", 1, argv);
    if (argc < 2) {
        test_skip("no folder of a real model");
        return test_main_end();
    }
    snprintf(path, sizeof path, "%s/reference.txt", fixtures);
    char *text = file_bytes(path, &size);
    if (!CHECK(text != NULL, "run this from the top of the repository")) return test_main_end();
    mote_model *m = model_on("cpu", argv[1], MOTE_EVERYTHING);
    CHECK(mote_model_info(m)->chat_template && !strcmp(mote_model_info(m)->chat_template, "ChatML"), "the chat template");
    test_tokenizer(m);
    test_text(m, text);
    test_greedy(m, text);
    test_talk(m, text);
    mote_close(m);
    free(text);
    return test_main_end();
}
