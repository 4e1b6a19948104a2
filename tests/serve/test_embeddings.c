// Tests of /v1/embeddings: the numbers are mote_embed's to the bit, for every kind of input and of answer; what is refused; many at a time. And
// of /v1/rerank: scores are transformers'.
//
// Usage: test_embeddings

#include "api.h"
#include "client.h"
#include "json_end.h"

#define MODEL "tests/fixtures/embedding/qwen3-embedding"
#define RERANKER "tests/fixtures/embedding/qwen3-reranker"

enum { HIDDEN = 48, TOKENS_MOST = 1024 };

static const mote_model *model;
static mote_session *session;

static heard ask(server s, const char *body) {
    heard h = post(s, "/v1/embeddings", body);
    const char *end = h.body ? json_end(h.body) : NULL;
    CHECK(end && !*end, "%.200s: the answer is no JSON: %.200s", body, h.body);
    return h;
}

// What the library makes of a text, with the token at its end.
static size_t embed_text(const char *text, int pooling, int dimensions, float *to) {
    int32_t ids[TOKENS_MOST];
    size_t n = 0;
    EXPECT(MOTE_OK, mote_tokenize(model, text, strlen(text), 0, ids, TOKENS_MOST - 1, &n, &failure));
    ids[n++] = mote_model_info(model)->end_token;
    EXPECT(MOTE_OK, mote_embed(session, ids, n, &(mote_embedding){.pooling = pooling, .dimensions = dimensions}, to, &failure));
    return n;
}

static int digit_of(char c) {
    const char *digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

// The numbers of input number `index` of an answer, as a list or in base64. Returns how many.
static int numbers_of(const heard *h, int index, float *to) {
    char head[80];
    int n = 0;
    snprintf(head, sizeof head, "{\"object\": \"embedding\", \"index\": %d, \"embedding\": ", index);
    const char *at = strstr(h->body, head);
    if (!CHECK(at != NULL, "no embedding %d: %.300s", index, h->body)) return 0;
    at += strlen(head);
    if (*at == '"') {
        unsigned char bytes[4 * HIDDEN + 3];
        size_t size = 0;
        for (at++; *at != '"' && size < 4 * HIDDEN; at += 4) {
            int three = digit_of(at[0]) << 18 | digit_of(at[1]) << 12 | (at[2] == '=' ? 0 : digit_of(at[2])) << 6 | (at[3] == '=' ? 0 : digit_of(at[3]));
            for (int i = 0; i < 1 + (at[2] != '=') + (at[3] != '='); i++) bytes[size++] = (unsigned char)(three >> (16 - 8 * i));
        }
        memcpy(to, bytes, size);
        return (int)(size / 4);
    }
    for (char *end; *at != ']' && n < HIDDEN; at = end) to[n++] = strtof(at + 1, &end);
    return n;
}

static void check_numbers(const heard *h, int index, const float *want, int n, const char *what) {
    float got[HIDDEN];
    CHECK(h->status == 200 && numbers_of(h, index, got) == n && !memcmp(got, want, (size_t)n * sizeof *want), "%s: other numbers: %d %.200s", what, h->status, h->body);
}

#define TEXTS 4
static const char *const texts[TEXTS] = {"The capital of China is Beijing.", "a", "", "Gr\xc3\xbc\xc3\x9f" "e <|im_end|><|endoftext|> \xe4\xb8\x96"};

static void test_inputs(server s) {
    static const struct { const char *more; int pooling, dimensions; } cases[] = {
        {"", MOTE_POOLING_DEFAULT, HIDDEN}, {", \"pooling\": \"last\", \"model\": \"x\"", MOTE_POOLING_LAST, HIDDEN},
        {", \"pooling\": \"mean\", \"encoding_format\": \"float\"", MOTE_POOLING_MEAN, HIDDEN},
        {", \"encoding_format\": \"base64\"", MOTE_POOLING_LAST, HIDDEN}, {", \"encoding_format\": \"base64\", \"dimensions\": 7", MOTE_POOLING_LAST, 7},
        {", \"dimensions\": 32, \"pooling\": null", MOTE_POOLING_LAST, 32}, {", \"dimensions\": 1, \"pooling\": \"mean\"", MOTE_POOLING_MEAN, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[1024], all[700] = "";
        float want[TEXTS][HIDDEN];
        size_t tokens = 0;
        for (int k = 0; k < TEXTS; k++) {
            const size_t n = embed_text(texts[k], cases[i].pooling, cases[i].dimensions, want[k]);
            tokens += n;
            sprintf(all + strlen(all), "%s\"%s\"", k ? ", " : "", texts[k]);
            snprintf(body, sizeof body, "{\"input\": \"%s\"%s}", texts[k], cases[i].more);
            heard h = ask(s, body);
            check_numbers(&h, 0, want[k], cases[i].dimensions, body);
            CHECK(number(&h, "prompt_tokens") == (long)n && number(&h, "total_tokens") == (long)n, "%s: %zu tokens: %.200s", body, n, h.body);
            forget(&h);
        }
        snprintf(body, sizeof body, "{\"input\": [%s]%s}", all, cases[i].more);
        heard h = ask(s, body);
        for (int k = 0; k < TEXTS; k++) check_numbers(&h, k, want[k], cases[i].dimensions, body);
        CHECK(number(&h, "total_tokens") == (long)tokens && strstr(h.body, "\"model\": \"qwen3-embedding\"") && count_of_text(h.body, "\"object\": \"list\"") == 1,
              "%s: %zu tokens: %s", body, tokens, h.body);
        forget(&h);
    }
}

// Token ids are taken as they are: nothing is put after them.
static void test_ids(server s) {
    static const int32_t a[] = {5, 6, 7}, b[] = {9};
    float want[2][HIDDEN];
    EXPECT(MOTE_OK, mote_embed(session, a, 3, NULL, want[0], &failure));
    EXPECT(MOTE_OK, mote_embed(session, b, 1, NULL, want[1], &failure));
    heard h = ask(s, "{\"input\": [5, 6, 7]}");
    check_numbers(&h, 0, want[0], HIDDEN, "ids");
    forget(&h);
    h = ask(s, "{\"input\": [[5, 6, 7], [9]]}");
    check_numbers(&h, 0, want[0], HIDDEN, "lists of ids");
    check_numbers(&h, 1, want[1], HIDDEN, "lists of ids");
    CHECK(number(&h, "prompt_tokens") == 4, "%s", h.body);
    forget(&h);
}

static void test_refusals(server s) {
    static const struct { const char *body, *field, *says; } wrong[] = {
        {"{}", "input", "input is missing"}, {"{\"input\": null}", "input", "input is missing"}, {"{\"input\": []}", "input", "input is empty"},
        {"{\"input\": [\"a\", []]}", "input", "input 1 is empty"}, {"{\"input\": 5}", "input", "input must be a text, token ids"},
        {"{\"input\": {\"text\": \"a\"}}", "input", "input must be a text, token ids"}, {"{\"input\": [\"a\", 5]}", "input", "input must be a text, token ids"},
        {"{\"input\": [5, \"a\"]}", "input", "input 0 must be token ids"}, {"{\"input\": [[5], [320]]}", "input", "input 1 must be token ids of the vocabulary, which has 320"},
        {"{\"input\": [-1]}", "input", "must be token ids"}, {"{\"input\": [1.5]}", "input", "must be token ids"}, {"{\"input\": [[[1]]]}", "input", "must be token ids"},
        {"{\"input\": \"a\", \"dimensions\": 0}", "dimensions", "from 1 to 48"}, {"{\"input\": \"a\", \"dimensions\": 49}", "dimensions", "from 1 to 48"},
        {"{\"input\": \"a\", \"dimensions\": \"8\"}", "dimensions", "must be a number"}, {"{\"input\": \"a\", \"pooling\": \"cls\"}", "pooling", "pooling must be last or mean"},
        {"{\"input\": \"a\", \"pooling\": 1}", "pooling", "must be a string"}, {"{\"input\": \"a\", \"encoding_format\": \"int8\"}", "encoding_format", "must be float or base64"},
        {"{\"input\": \"a\", \"normalize\": false}", "normalize", "is not supported"}, {"{\"input\": \"a\", \"add_special_tokens\": false}", "add_special_tokens", "is not supported"}};
    char field[80];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        heard h = ask(s, wrong[i].body);
        snprintf(field, sizeof field, "\"param\": \"%s\"", wrong[i].field);
        CHECK(h.status == 400 && strstr(h.body, wrong[i].says) && strstr(h.body, field), "%s: %d %s", wrong[i].body, h.status, h.body);
        forget(&h);
    }
    char *many = (char *)allocate(8 * 2049 + 64), *at = many + sprintf(many, "{\"input\": [");
    for (int i = 0; i < 2049; i++) at += sprintf(at, "%s\"a\"", i ? ", " : "");
    sprintf(at, "]}");
    heard h = ask(s, many);
    CHECK(h.status == 400 && strstr(h.body, "more than 2048 inputs"), "2049 inputs: %d %s", h.status, h.body);
    forget(&h);
    at = many + sprintf(many, "{\"input\": [\"a\", \"");
    for (int i = 0; i < 1100; i++) at += sprintf(at, "%d ", i % 10);
    sprintf(at, "\"]}");
    h = ask(s, many);
    CHECK(h.status == 400 && strstr(h.body, "context_length_exceeded") && strstr(h.body, "maximum context length is 1024 tokens. However, input 1 has "),
          "a long text: %d %s", h.status, h.body);
    CHECK(strstr(h.body, "\"param\": \"input\"") && !strstr(h.body, "answer"), "the field of a long text: %s", h.body);
    forget(&h);
    free(many);
    h = get(s, "/v1/embeddings");
    CHECK(h.status == 405, "GET: %d %s", h.status, h.body);
    forget(&h);
}

// A list whose first input has had a session is not refused because another request waits between two of its inputs.
static void test_queue(void) {
    enum { INPUTS = 400 };
    char *many = (char *)allocate(8 * INPUTS + 64), *at = many + sprintf(many, "{\"dimensions\": 1, \"input\": [");
    for (int i = 0; i < INPUTS; i++) at += sprintf(at, "%s\"a b\"", i ? ", " : "");
    sprintf(at, "]}");
    server s = serve("-m " MODEL " --context 1024 --parallel 1 --queue 1 --device cpu");
    int fd = dial(s);
    post_on(fd, "/v1/embeddings", many);
    while (metric(s, "prompt_tokens_total") < 1) usleep(1000);
    heard h = ask(s, "{\"input\": \"between\"}");
    CHECK(h.status == 200, "one beside a list: %d %s", h.status, h.body);
    forget(&h);
    h = hear(fd);
    CHECK(h.status == 200 && number(&h, "total_tokens") >= INPUTS, "a list beside another request: %d %.200s", h.status, h.body);
    forget(&h);
    close(fd);
    stop(s);
    free(many);
}

// Several clients, and completions among them: each gets what it gets alone.
static void test_many(server s) {
    enum { CLIENTS = 8 };
    static const char story[] = "{\"prompt\": \"Once\", \"max_tokens\": 12, \"temperature\": 0}";
    char body[256];
    int fd[CLIENTS];
    float want[HIDDEN];
    heard alone = post(s, "/v1/completions", story);
    const char *text = strstr(alone.body, "\"text\": ");
    CHECK(alone.status == 200 && text, "%d %s", alone.status, alone.body);
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = dial(s);
        snprintf(body, sizeof body, "{\"input\": \"text number %d of many\"}", i * i);
        post_on(fd[i], i % 4 == 3 ? "/v1/completions" : "/v1/embeddings", i % 4 == 3 ? story : body);
    }
    for (int i = 0; i < CLIENTS; i++) {
        heard h = hear(fd[i]);
        close(fd[i]);
        snprintf(body, sizeof body, "text number %d of many", i * i);
        if (i % 4 == 3) {
            const char *same = strstr(h.body, "\"text\": ");
            CHECK(same && text && !strncmp(same, text, strcspn(text, "}")), "a completion beside embeddings: %s", h.body);
        } else {
            embed_text(body, MOTE_POOLING_DEFAULT, HIDDEN, want);
            check_numbers(&h, 0, want, HIDDEN, body);
        }
        forget(&h);
    }
    forget(&alone);
}

// An answer counts among what requests may take.
static void test_limits(void) {
    server s = serve("-m " MODEL " --context 1024 --parallel 1 --device cpu --request-memory 0.002 --api-key secret");
    char *many = (char *)allocate(8 * 2048 + 64), *at = many + sprintf(many, "{\"input\": [");
    char head[256];
    heard h = post(s, "/v1/embeddings", "{\"input\": \"a\"}");
    CHECK(h.status == 401, "without a key: %d %s", h.status, h.body);
    forget(&h);
    for (int i = 0; i < 1000; i++) at += sprintf(at, "%s\"a\"", i ? ", " : "");
    sprintf(at, "]}");
    int fd = dial(s), n = snprintf(head, sizeof head, "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\nContent-Length: %zu\r\n\r\n", strlen(many));
    tell(fd, head, (size_t)n);
    tell(fd, many, strlen(many));
    h = hear(fd);
    close(fd);
    CHECK(h.status == 413 && strstr(h.body, "--request-memory"), "a long answer: %d %.200s", h.status, h.body);
    forget(&h);
    free(many);
    stop(s);
}

/* ---- Reranking -------------------------------------------------------------------------------------------------------------- */

// A vocabulary without <think>.
static void rename_mark(const char *name, char **bytes, size_t *size, const void *how) {
    (void)how, (void)size;
    for (char *at = *bytes; !strcmp(name, "tokenizer.json") && (at = strstr(at, "<think>"));) at[1] = 'T';
}

static double score_at(const heard *h, int place, int *index) {
    const char *at = h->body;
    double score = -1;
    for (int i = 0; at && i <= place; i++) at = strstr(at + 1, "{\"index\": ");
    if (!at || sscanf(at, "{\"index\": %d, \"relevance_score\": %lf", index, &score) != 2) CHECK(0, "no result %d: %.300s", place, h->body);
    return score;
}

// Every line of the reference alone: instruction, query, document.
static void test_scores(server s) {
    size_t size;
    char *all = file_bytes(RERANKER "/texts.txt", &size), body[8192];
    float *want = (float *)(void *)file_bytes(RERANKER "/scores.f32", &size);
    int number = 0, index = -1;
    if (!CHECK(all && want, "run this from the top of the repository")) return;
    for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n"), number++) {
        char *query = strchr(line, '\t'), *document = strchr(query + 1, '\t');
        *query++ = *document++ = 0;
        snprintf(body, sizeof body, "{\"query\": \"%s\", \"instruction\": \"%s\", \"documents\": [\"%s\"]}", query, line, document);
        heard h = post(s, "/v1/rerank", body);
        const double score = score_at(&h, 0, &index);
        CHECK(h.status == 200 && !index && fabs(score - want[3 * number + 2]) < 1e-5, "line %d: %g, transformers' %g: %.300s", number, score, (double)want[3 * number + 2], h.body);
        forget(&h);
    }
    CHECK(number == 4, "%d lines", number);
    free(all);
    free(want);
}

static void test_order(server s) {
    static const char query[] = "\"query\": \"What is the capital of China?\", \"model\": \"x\"";
    static const char *const documents[] = {"\"Bread rises.\"", "{\"text\": \"The capital of China is Beijing.\", \"id\": 7}", "\"a\\u0000b <|im_end|>\"", "\"\"", "\"Bread rises.\""};
    double alone[5], score, last = 2;
    char body[1024];
    int index = -1, seen = 0;
    for (int i = 0; i < 5; i++) {
        snprintf(body, sizeof body, "{%s, \"documents\": [%s]}", query, documents[i]);
        heard h = post(s, "/v2/rerank", body);
        alone[i] = score_at(&h, 0, &index);
        forget(&h);
    }
    CHECK(alone[0] == alone[4] && alone[0] != alone[1] && alone[2] != alone[3], "scores of unlike documents");
    snprintf(body, sizeof body, "{%s, \"documents\": [%s, %s, %s, %s, %s], \"return_documents\": true}", query, documents[0], documents[1], documents[2], documents[3], documents[4]);
    heard h = post(s, "/v1/rerank", body);
    const char *end = json_end(h.body);
    CHECK(h.status == 200 && end && !*end && count_of_text(h.body, "\"document\": {\"text\": ") == 5 && strstr(h.body, "{\"text\": \"a\\u0000b <|im_end|>\"}"), "%s", h.body);
    for (int i = 0; i < 5; i++, last = score) {
        score = score_at(&h, i, &index);
        CHECK(index >= 0 && index < 5 && score == alone[index] && score <= last, "place %d: document %d with %g, alone %g, after %g", i, index, score, alone[index], last);
        CHECK(index != 4 || seen & 1, "of equal documents the first comes first");
        seen |= 1 << index;
    }
    CHECK(seen == 31, "%s", h.body);
    forget(&h);
    snprintf(body, sizeof body, "{%s, \"documents\": [%s, %s, %s], \"top_n\": 2}", query, documents[0], documents[1], documents[2]);
    h = post(s, "/v1/rerank", body);
    CHECK(h.status == 200 && count_of_text(h.body, "relevance_score") == 2 && !strstr(h.body, "\"document\""), "%s", h.body);
    forget(&h);
}

static void test_rerank_refusals(server s, server other) {
    static const struct { const char *body, *field, *says; } wrong[] = {
        {"{\"documents\": [\"a\"]}", "query", "query is missing"}, {"{\"query\": [\"a\"], \"documents\": [\"a\"]}", "query", "query must be a string"},
        {"{\"query\": \"a\"}", "documents", "documents must be a list of texts"}, {"{\"query\": \"a\", \"documents\": []}", "documents", "documents must be a list of texts"},
        {"{\"query\": \"a\", \"documents\": \"b\"}", "documents", "documents must be a list"}, {"{\"query\": \"a\", \"documents\": [\"b\", 5]}", "documents", "document 1 must be a text"},
        {"{\"query\": \"a\", \"documents\": [{\"title\": \"b\"}]}", "documents", "document 0 must be a text"},
        {"{\"query\": \"a\", \"documents\": [\"b\"], \"top_n\": 0}", "top_n", "top_n must be a whole number from 1"},
        {"{\"query\": \"a\", \"documents\": [\"b\"], \"rank_fields\": [\"x\"]}", "rank_fields", "is not supported"}};
    char field[80];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        heard h = post(s, "/v1/rerank", wrong[i].body);
        snprintf(field, sizeof field, "\"param\": \"%s\"", wrong[i].field);
        CHECK(h.status == 400 && strstr(h.body, wrong[i].says) && strstr(h.body, field), "%s: %d %s", wrong[i].body, h.status, h.body);
        forget(&h);
    }
    char *many = (char *)allocate(1 << 13), *at = many + sprintf(many, "{\"query\": \"a\", \"documents\": [\"b\", \"");
    for (int i = 0; i < 1100; i++) at += sprintf(at, "%d ", i % 10);
    sprintf(at, "\"]}");
    heard h = post(s, "/v1/rerank", many);
    CHECK(h.status == 400 && strstr(h.body, "context_length_exceeded") && strstr(h.body, "the prompt of document 1 has "), "a long document: %d %s", h.status,
          h.body);
    forget(&h);
    free(many);
    h = post(other, "/v1/rerank", "{\"query\": \"a\", \"documents\": [\"b\"]}");
    CHECK(h.status == 400 && strstr(h.body, "this model cannot rerank"), "a model without the tokens: %d %s", h.status, h.body);
    forget(&h);
}

static void test_reranking(void) {
    char without[640];
    if (!temp_open()) return;
    temp_copy_of(RERANKER, rename_mark, NULL);
    snprintf(without, sizeof without, "-m %s --context 512 --parallel 1 --device cpu", temp_dir);
    server s = serve("-m " RERANKER " --context 1024 --parallel 2 --device cpu"), other = serve(without);
    test_scores(s);
    test_order(s);
    test_rerank_refusals(s, other);
    stop(s);
    stop(other);
    temp_close();
}

int main(int argc, char **argv) {
    test_main_begin("test_embeddings", argc, argv);
    mote_model *m = model_on("cpu", MODEL, MOTE_EVERYTHING);
    model = m;
    session = session_of(m, .context = TOKENS_MOST);
    server s = serve("-m " MODEL " --context 1024 --parallel 3 --device cpu");
    test_inputs(s);
    test_ids(s);
    test_refusals(s);
    test_many(s);
    stop(s);
    test_limits();
    test_queue();
    test_reranking();
    mote_session_close(session);
    mote_close(m);
    return test_main_end();
}
