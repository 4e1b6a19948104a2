/* Tests of mote_embed, and of checkpoints that are for embedding and reranking: reference results, bits, refusals, the files beside the
   weights. On a GPU also against the CPU. Usage: test_embedding [--device NAME] */

#include "api.h"
#include "files.h"

#include <pthread.h>
#include <sys/stat.h>

#define EMBEDDING "tests/fixtures/embedding/qwen3-embedding"
#define RERANKER "tests/fixtures/embedding/qwen3-reranker"

enum { TOKENS_MOST = 2048, HIDDEN_MOST = 256 };

// How far from transformers in float64, and a GPU from the CPU with keys and values in BF16: the length of the difference of two
// embeddings, which have length 1. A cache in BF16 alone costs the CPU 3e-3; prefill rounds to F16, too. A wrong row is some 1 off. Where a
// close choice of an expert turns, one row is off by what another expert is in its place.
static const double CPU_RULE = 1e-5, GPU_RULE = 3e-2, EXPERTS_RULE = 1e-1;

static int is_gpu;

static double distance(const float *a, const float *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(sum);
}

static double length_of(const float *a, int n) {
    float *zero = (float *)allocate((size_t)n * sizeof(float));
    memset(zero, 0, (size_t)n * sizeof(float));
    double length = distance(a, zero, n);
    free(zero);
    return length;
}

static int embed(mote_session *s, const int32_t *ids, size_t n, int pooling, int dimensions, float *to) {
    mote_embedding o = {.size = sizeof o, .pooling = pooling, .dimensions = dimensions};
    return mote_embed(s, ids, n, &o, to, &failure);
}

/* ---- Reference results ------------------------------------------------------------------------------------------------------- */

// The next line of texts.txt, at *at, with its line feeds; NULL after the last one.
static char *next_text(char **at) {
    char *text = *at, *end = strchr(text, '\n'), *to = text;
    if (!end) return NULL;
    *at = end + 1;
    *end = 0;
    for (const char *p = text; *p; *to++ = *p++)
        if (p[0] == '\\' && p[1] == 'n') p++, *(char *)p = '\n';
    *to = 0;
    return text;
}

typedef struct reference {
    const char *dir;
    char *texts, *next;
    int32_t *tokens, *at;                    // [count, ids...] of each text
    float *results;                          // of each text one after the other
    mote_model *m;
} reference;

static void *reference_file(const reference *r, const char *name) {
    char path[256];
    size_t size;
    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    void *bytes = file_bytes(path, &size);
    if (!CHECK(bytes != NULL, "%s: run this from the top of the repository", path)) exit(test_main_end() ? 1 : 2);
    return bytes;
}

static void reference_open(reference *r, const char *dir, const char *results) {
    memset(r, 0, sizeof *r);
    r->dir = dir;
    r->next = r->texts = (char *)reference_file(r, "texts.txt");
    r->at = r->tokens = (int32_t *)reference_file(r, "tokens.i32");
    r->results = (float *)reference_file(r, results);
    r->m = model_of(dir, MOTE_EVERYTHING);
}

static void reference_close(reference *r) {
    free(r->texts);
    free(r->tokens);
    free(r->results);
    mote_close(r->m);
}

// These are the next text's tokens.
static void check_tokens(reference *r, const int32_t *ids, size_t n, int number) {
    CHECK(n == (size_t)*r->at && !memcmp(ids, r->at + 1, n * sizeof *ids), "%s: text %d: %zu tokens, not the tokenizer's %d", r->dir, number, n, *r->at);
    r->at += 1 + *r->at;
}

static size_t put_tokens(const mote_model *m, const char *text, int special, int32_t *ids, size_t n) {
    size_t more = 0;
    EXPECT(MOTE_OK, mote_tokenize(m, text, strlen(text), special, ids + n, TOKENS_MOST - n, &more, &failure));
    return n + more;
}

static void test_reference(void) {
    static int32_t ids[TOKENS_MOST];
    float got[HIDDEN_MOST], same[HIDDEN_MOST], cut[HIDDEN_MOST];
    double worst = 0;
    int number = 0;
    reference r;
    reference_open(&r, EMBEDDING, "embeddings.f32");
    const mote_info *info = mote_model_info(r.m);
    const int hidden = info->hidden_size;
    size_t n;
    CHECK(!strcmp(info->architecture, "qwen3") && info->tied_embeddings && hidden == 48, "%s: architecture %s", r.dir, info->architecture);
    const char *end = mote_token_bytes(r.m, info->end_token, &n);
    CHECK(info->begin_token == -1 && end && n == 13 && !memcmp(end, "<|endoftext|>", n), "%s: the token at a text's end is %d", r.dir, info->end_token);
    CHECK(info->pooling == MOTE_POOLING_LAST, "%s: pooling %d", r.dir, info->pooling);
    mote_session *s = session_of(r.m, .context = TOKENS_MOST);
    for (const char *text; (text = next_text(&r.next)); number++) {
        const float *want = r.results + (size_t)number * 2 * (size_t)hidden;
        n = put_tokens(r.m, text, 0, ids, 0);
        ids[n++] = info->end_token;
        check_tokens(&r, ids, n, number);
        for (int mean = 0; mean < 2; mean++) {
            EXPECT(MOTE_OK, embed(s, ids, n, mean ? MOTE_POOLING_MEAN : MOTE_POOLING_LAST, 0, got));
            const double off = distance(got, want + mean * hidden, hidden);
            CHECK(off < (is_gpu ? GPU_RULE : CPU_RULE), "%s: text %d, %s: %g off", r.dir, number, mean ? "mean" : "last", off);
            CHECK(fabs(length_of(got, hidden) - 1) < 1e-6, "%s: text %d: length %g", r.dir, number, length_of(got, hidden));
            worst = fmax(worst, off);
            EXPECT(MOTE_OK, embed(s, ids, n, mean ? MOTE_POOLING_MEAN : MOTE_POOLING_LAST, 32, cut));
            const double length = length_of(got, 32);
            for (int i = 0; i < 32; i++) CHECK(fabs(got[i] / length - cut[i]) < 1e-6, "%s: text %d, 32 dimensions: number %d is %g", r.dir, number, i, (double)cut[i]);
            if (mean) continue;
            EXPECT(MOTE_OK, mote_embed(s, ids, n, NULL, same, &failure));
            CHECK(!memcmp(got, same, (size_t)hidden * sizeof *got), "%s: text %d: the default is not the last row", r.dir, number);
        }
    }
    CHECK(number == 8, "%s: %d texts", r.dir, number);
    printf("test_embedding: %s: off transformers by %.1e at most\n", r.dir, worst);
    mote_session_close(s);
    reference_close(&r);
}

// The prompt as the model's card has it, of which the template's own words alone hold control tokens.
static size_t rerank_prompt(const mote_model *m, const char *task, const char *query, const char *document, int32_t *ids) {
    static char body[1 << 14];
    size_t n = put_tokens(m, "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
                             "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n", 1, ids, 0);
    snprintf(body, sizeof body, "<Instruct>: %s\n<Query>: %s\n<Document>: %s", task, query, document);
    n = put_tokens(m, body, 0, ids, n);
    return put_tokens(m, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", 1, ids, n);
}

static void test_reranker(void) {
    static int32_t ids[TOKENS_MOST];
    reference r;
    int number = 0;
    double worst = 0;
    reference_open(&r, RERANKER, "scores.f32");
    const mote_info *info = mote_model_info(r.m);
    CHECK(!strcmp(info->architecture, "qwen3") && info->tied_embeddings && info->end_token == -1 && info->pooling == MOTE_POOLING_DEFAULT,
          "%s: architecture %s, end %d, pooling %d", r.dir, info->architecture, info->end_token, info->pooling);
    int32_t yes = -1, no = -1;
    size_t one = 0;
    EXPECT(MOTE_OK, mote_tokenize(r.m, "yes", 3, 0, &yes, 1, &one, &failure));
    EXPECT(MOTE_OK, mote_tokenize(r.m, "no", 2, 0, &no, 1, &one, &failure));
    mote_session *s = session_of(r.m, .context = TOKENS_MOST);
    for (char *text; (text = next_text(&r.next)); number++) {
        char *query = strchr(text, '\t'), *document = query ? strchr(query + 1, '\t') : NULL;
        if (!CHECK(document != NULL, "%s: line %d", r.dir, number)) break;
        *query++ = *document++ = 0;
        const float *want = r.results + 3 * number;
        const size_t n = rerank_prompt(r.m, text, query, document, ids);
        check_tokens(&r, ids, n, number);
        EXPECT(MOTE_OK, mote_reset(s, &failure));
        EXPECT(MOTE_OK, mote_feed(s, ids, n, &failure));
        const float *logits = mote_logits(s);
        const double p = 1 / (1 + exp((double)logits[no] - logits[yes])), off = fabs(p - want[2]);
        worst = fmax(worst, off);
        CHECK(off < (is_gpu ? GPU_RULE : CPU_RULE), "%s: line %d: yes with %g, transformers' %g", r.dir, number, p, (double)want[2]);
    }
    CHECK(number == 4, "%s: %d lines", r.dir, number);
    printf("test_embedding: %s: off transformers by %.1e at most\n", r.dir, worst);
    mote_session_close(s);
    reference_close(&r);
}

/* ---- Bits ------------------------------------------------------------------------------------------------------------------------ */

static void some_text(int32_t *ids, size_t n, int seed, int vocab) {
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)((i * i * 31 + i * 7 + (size_t)seed * 131) % (size_t)vocab);
}

// The same text has the same embedding: again, after others, in other chunks, with and without an MTP layer's KV rows; and the timeline
// is the text's.
static void check_text(mote_model *m, const char *name, size_t n) {
    static int32_t ids[TOKENS_MOST];
    const int hidden = mote_model_info(m)->hidden_size, vocab = mote_model_info(m)->vocab_size;
    float want[HIDDEN_MOST], got[HIDDEN_MOST], mean[2][HIDDEN_MOST];
    some_text(ids, n, 1, vocab);
    mote_session *s = session_of(m, .context = TOKENS_MOST), *t = session_of(m, .context = TOKENS_MOST, .chunk = is_gpu ? 64 : 5, .mtp = MOTE_MTP_OFF);
    mote_session *u = session_of(m, .context = TOKENS_MOST, .chunk = 2048, .threads = 1), *of[] = {s, t, s, u};
    for (int i = 0; i < 4; i++) {
        EXPECT(MOTE_OK, embed(of[i], ids, n, MOTE_POOLING_MEAN, 0, mean[i > 0]));
        CHECK(!i || !memcmp(mean[0], mean[1], (size_t)hidden * sizeof(float)), "%s: the mean of %zu tokens, %d", name, n, i);
        EXPECT(MOTE_OK, embed(of[i], ids, n, MOTE_POOLING_LAST, 0, i ? got : want));
        CHECK(!i || !memcmp(want, got, (size_t)hidden * sizeof *got), "%s: %zu tokens, %d", name, n, i);
        CHECK(count_of(of[i]) == (int)n, "%s: %zu tokens: the timeline has %d", name, n, count_of(of[i]));
    }
    CHECK((n == 1) == !memcmp(want, mean[0], (size_t)hidden * sizeof *want), "%s: last and mean of %zu tokens", name, n);
    float *logits = (float *)allocate((size_t)vocab * sizeof(float));
    memcpy(logits, mote_logits(s), (size_t)vocab * sizeof(float));
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, n, &failure));
    CHECK(same_logits(s, logits, vocab), "%s: logits after the embedding of %zu tokens", name, n);
    free(logits);
    mote_session_close(s);
    mote_session_close(t);
    mote_session_close(u);
}

// A GPU beside the CPU, which has the same cache.
static void check_beside(mote_model *m, const char *dir, double rule) {
    static const size_t lengths[] = {1, 3, 4, 5, 8, 9, 64, 65, 130, 1100};
    static int32_t ids[TOKENS_MOST];
    const int hidden = mote_model_info(m)->hidden_size;
    float got[HIDDEN_MOST], want[HIDDEN_MOST];
    double worst = 0;
    mote_model *cpu = model_on("cpu", dir, MOTE_EVERYTHING);
    mote_session *s = session_of(m, .context = TOKENS_MOST), *t = session_of(cpu, .context = TOKENS_MOST, .kv = MOTE_KV_BF16);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int pooling = MOTE_POOLING_LAST; pooling <= MOTE_POOLING_MEAN; pooling++) {
            some_text(ids, lengths[i], 3, mote_model_info(m)->vocab_size);
            EXPECT(MOTE_OK, embed(s, ids, lengths[i], pooling, 0, got));
            EXPECT(MOTE_OK, embed(t, ids, lengths[i], pooling, 0, want));
            const double off = distance(got, want, hidden);
            worst = fmax(worst, off);
            CHECK(off < rule, "%s: %zu tokens, pooling %d: the GPU is %g off the CPU", dir, lengths[i], pooling, off);
        }
    printf("test_embedding: %s: off the CPU by %.1e at most\n", dir, worst);
    mote_session_close(s);
    mote_session_close(t);
    mote_close(cpu);
}

enum { THREADS = 4, TURNS = 3 };

typedef struct company {
    mote_session *s;
    int number, hidden, vocab;
    float got[TURNS][HIDDEN_MOST];
    int code;
} company;

static size_t company_ids(const company *c, int turn, int32_t *ids) {
    static const size_t lengths[] = {3, 70, 1, 4, 9, 130, 2};
    const size_t n = lengths[(c->number * TURNS + turn) % 7];
    some_text(ids, n, 10 + c->number * TURNS + turn, c->vocab);
    return n;
}

static int company_embed(const company *c, mote_session *s, int turn, float *to, mote_error *error) {
    int32_t ids[TOKENS_MOST];
    mote_embedding o = {.size = sizeof o, .pooling = turn % 2 ? MOTE_POOLING_MEAN : MOTE_POOLING_LAST};
    return mote_embed(s, ids, company_ids(c, turn, ids), &o, to, error);
}

static void *company_run(void *user) {
    company *c = (company *)user;
    mote_error error;
    for (int turn = 0; turn < TURNS; turn++) c->code |= company_embed(c, c->s, turn, c->got[turn], &error);
    return NULL;
}

// Sessions of one runner, at the same time: each as alone.
static void test_company(mote_model *m, const char *name) {
    static company c[THREADS];
    pthread_t thread[THREADS];
    mote_runner *runner = NULL;
    float want[HIDDEN_MOST];
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = TOKENS_MOST, .threads = 2}, &runner, &failure));
    for (int i = 0; i < THREADS; i++) {
        memset(&c[i], 0, sizeof c[i]);
        c[i].s = session_of(m, .runner = runner);
        c[i].number = i;
        c[i].hidden = mote_model_info(m)->hidden_size;
        c[i].vocab = mote_model_info(m)->vocab_size;
    }
    mote_session *alone = session_of(m, .context = TOKENS_MOST);
    for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, company_run, &c[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++)
        for (int turn = 0; turn < TURNS; turn++) {
            EXPECT(MOTE_OK, company_embed(&c[i], alone, turn, want, &failure));
            CHECK(!c[i].code && !memcmp(want, c[i].got[turn], (size_t)c[i].hidden * sizeof *want), "%s: text %d of thread %d in company", name, turn, i);
        }
    for (int i = 0; i < THREADS; i++) mote_session_close(c[i].s);
    mote_session_close(alone);
    mote_runner_close(runner);
}

static void test_bits(const char *dir, double rule) {
    static const size_t lengths[] = {1, 2, 4, 5, 8, 9, 64, 65, 300, 1100};
    mote_model *m = model_of(dir, MOTE_EVERYTHING);
    const int is_small = mote_model_info(m)->hidden_size < 100 && !test_brief;              // more than POOLED_ROWS rows take it no time
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths - !is_small; i++) check_text(m, dir, lengths[i]);
    test_company(m, dir);
    if (is_gpu) check_beside(m, dir, rule);
    mote_close(m);
}

/* ---- Refusals ------------------------------------------------------------------------------------------------------------------ */

static int cancel_now(void *user) {
    return *(const int *)user;
}

static void test_refusals(void) {
    static int32_t ids[TOKENS_MOST];
    static int cancels;
    float got[HIDDEN_MOST], untouched[HIDDEN_MOST];
    mote_model *m = model_of(EMBEDDING, MOTE_EVERYTHING);
    mote_session_options how = {.context = 32};
    how.callbacks.cancel = cancel_now;
    how.callbacks.user = &cancels;
    mote_session *s = session_with(m, &how);
    struct { mote_embedding o; char more[16]; } newer = {{.size = sizeof newer}, {0}};
    size_t size;
    const int vocab = mote_model_info(m)->vocab_size;
    memset(got, 7, sizeof got);
    memcpy(untouched, got, sizeof got);
    some_text(ids, TOKENS_MOST, 2, vocab);
    EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
    char *before = session_bytes(s, &size);
    EXPECT(MOTE_EINVAL, mote_embed(NULL, ids, 3, NULL, got, &failure));
    EXPECT(MOTE_EINVAL, mote_embed(s, NULL, 3, NULL, got, &failure));
    EXPECT(MOTE_EINVAL, mote_embed(s, ids, 0, NULL, got, &failure));
    EXPECT(MOTE_EINVAL, mote_embed(s, ids, 3, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, embed(s, ids, 3, 3, 0, got));
    EXPECT(MOTE_EINVAL, embed(s, ids, 3, -1, 0, got));
    EXPECT(MOTE_EINVAL, embed(s, ids, 3, 0, 49, got));
    CHECK(strstr(failure.message, "49 dimensions, expected 1 to 48"), "%s", failure.message);
    EXPECT(MOTE_EINVAL, embed(s, ids, 3, 0, -1, got));
    EXPECT(MOTE_ECONTEXT, embed(s, ids, 33, 0, 0, got));
    ids[2] = vocab;
    EXPECT(MOTE_EINVAL, embed(s, ids, 3, 0, 0, got));
    ids[2] = 0;
    newer.more[3] = 1;
    EXPECT(MOTE_EINVAL, mote_embed(s, ids, 3, &newer.o, got, &failure));
    CHECK(session_is(s, before, size) && !memcmp(got, untouched, sizeof got), "a refused embedding has changed something");
    free(before);
    cancels = 1;
    EXPECT(MOTE_ECANCELLED, embed(s, ids, 32, 0, 0, got));
    CHECK(!memcmp(got, untouched, sizeof got) && !count_of(s), "a cancelled embedding: %d tokens", count_of(s));
    cancels = 0;
    newer.more[3] = 0;
    EXPECT(MOTE_OK, mote_embed(s, ids, 32, &newer.o, got, &failure));            // as many as fit, after others
    newer.o.size = 0;
    EXPECT(MOTE_OK, mote_embed(s, ids, 3, &newer.o, got, &failure));
    mote_session_close(s);
    mote_close(m);
}

/* ---- The files beside the weights ---------------------------------------------------------------------------------------------- */

#define MODULE(kind, path) "{\"path\": \"" path "\", \"type\": \"sentence_transformers.models." kind "\"}"
#define MODULES(more) "[" MODULE("Transformer", "") ", " MODULE("Pooling", "1_Pooling") more "]"

typedef struct beside {
    const char *modules, *config;            // NULL: as in the fixture
    int pooling, code;                       // of mote_info; of mote_embed without one
    const char *says;
} beside;

static const beside besides[] = {                            // modules, config, pooling, code, says
    {NULL, NULL, MOTE_POOLING_LAST, MOTE_OK, NULL},
    {MODULES(", " MODULE("Normalize", "2_Normalize")), "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_lasttoken\": false}", MOTE_POOLING_MEAN, MOTE_OK, NULL},
    {MODULES(""), "{\"pooling_mode\": \"lasttoken\"}", MOTE_POOLING_LAST, MOTE_OK, NULL},
    {"[{\"type\": \"sentence_transformers.base.modules.transformer.Transformer\"}, {\"path\": \"1_Pooling\", \"type\": \"a.b.Pooling\"}]",
     "{\"pooling_mode\": \"mean\"}", MOTE_POOLING_MEAN, MOTE_OK, NULL},
    {MODULES(""), "{\"pooling_mode_cls_token\": true}", 0, MOTE_EUNSUPPORTED, "pooling_mode_cls_token: expected one mode"},
    {MODULES(""), "{\"pooling_mode\": \"max\"}", 0, MOTE_EUNSUPPORTED, "pooling_mode: expected one mode"},
    {MODULES(""), "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_lasttoken\": true}", 0, MOTE_EUNSUPPORTED, "expected one mode"},
    {MODULES(""), "{}", 0, MOTE_EFORMAT, "1_Pooling/config.json: no mode of pooling"},
    {MODULES(""), "[]", 0, MOTE_EFORMAT, "1_Pooling/config.json: not a JSON object"},
    {MODULES(", " MODULE("Dense", "2_Dense")), NULL, 0, MOTE_EUNSUPPORTED, "module sentence_transformers.models.Dense is not supported"},
    {"[" MODULE("Transformer", "") "]", NULL, 0, MOTE_EFORMAT, "no module pools"},
    {"[" MODULE("Pooling", "../../x") "]", NULL, 0, MOTE_EFORMAT, "expected the path of Pooling to be a folder's name"},
    {"[" MODULE("Pooling", "") "]", NULL, 0, MOTE_EFORMAT, "expected the path of Pooling to be a folder's name"},
    {"[" MODULE("Pooling", "1_Pooling") ", " MODULE("Pooling", "1_Pooling") "]", NULL, 0, MOTE_EUNSUPPORTED, "Pooling is not supported"},
    {"[" MODULE("Pooling", "9_Pooling") "]", NULL, 0, MOTE_EIO, "9_Pooling/config.json"},
    {"{}", NULL, 0, MOTE_EFORMAT, "modules.json: not a JSON list"},
    {"[" MODULE("Long_name_of_a_module_that_is_of_no_use_to_anybody_but_this_test_which_wants_it_told", "") "]", NULL, 0, MOTE_EUNSUPPORTED,
     "module sentence_transformers.models.Long_name_of_a_module_that"},
    {"[7, \"x\"]", NULL, 0, MOTE_EUNSUPPORTED, "is not supported, expected Transformer"},
    {"", NULL, 0, MOTE_EFORMAT, "modules.json"}};

// Whatever they say, the model opens, and a pooling that is asked for is had.
static void test_besides(void) {
    static const char last[] = "{\"pooling_mode_lasttoken\": true}";
    const int32_t ids[] = {1, 2, 3};
    for (size_t i = 0; i < sizeof besides / sizeof *besides; i++) {
        const beside *b = &besides[i];
        const char *config = b->config ? b->config : last;
        float got[HIDDEN_MOST];
        temp_copy_of(EMBEDDING, NULL, NULL);
        mkdir(temp_path("1_Pooling"), 0700);
        temp_write("1_Pooling/config.json", config, strlen(config));
        if (b->modules) temp_write("modules.json", b->modules, strlen(b->modules));
        mote_model *m = model_of(temp_dir, MOTE_EVERYTHING);
        mote_session *s = session_of(m, .context = 64);
        CHECK(mote_model_info(m)->pooling == b->pooling, "modules %zu: pooling %d", i, mote_model_info(m)->pooling);
        EXPECT(b->code, mote_embed(s, ids, 3, NULL, got, &failure));
        CHECK(!b->says || strstr(failure.message, b->says), "modules %zu: %s", i, failure.message);
        EXPECT(MOTE_OK, embed(s, ids, 3, MOTE_POOLING_MEAN, 0, got));
        mote_session_close(s);
        mote_close(m);
    }
}

static void edit_norm(const char *name, char **bytes, size_t *size, const void *how) {
    (void)size;
    if (strcmp(name, "model.safetensors")) return;
    tensor_place t;
    const char *at = NULL;
    while (next_tensor(*bytes, &at, &t))
        if (!strcmp(t.name, "norm.weight")) memset(*bytes + t.begin, *(const int *)how, t.end - t.begin);
}

// Weights that give no direction: zeros; ones so large that sums overflow.
static void test_damaged(void) {
    static const int fills[] = {0, 0x7f};
    const int32_t ids[] = {1, 2, 3};
    for (int i = 0; i < 2; i++) {
        float got[HIDDEN_MOST], untouched[HIDDEN_MOST];
        temp_copy_of(EMBEDDING, edit_norm, &fills[i]);
        memset(got, 7, sizeof got);
        memcpy(untouched, got, sizeof got);
        mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
        mote_session *s = session_of(m, .context = 64);
        EXPECT(MOTE_EFORMAT, embed(s, ids, 3, MOTE_POOLING_LAST, 0, got));
        CHECK(!memcmp(got, untouched, sizeof got), "an embedding of damaged weights");
        mote_session_close(s);
        mote_close(m);
    }
}

int main(int argc, char **argv) {
    test_main_begin("test_embedding", argc, argv);
    is_gpu = strcmp(test_device, "cpu") != 0;
    if (!temp_open()) return test_main_end();
    test_reference();
    test_reranker();
    test_bits(EMBEDDING, GPU_RULE);
    test_bits("models/demo", EXPERTS_RULE);
    test_refusals();
    test_besides();
    test_damaged();
    temp_close();
    return test_main_end();
}
