// Tests of speculation (generate/speculation.c) through the API, on the CPU or a GPU: whatever is drafted, tokens, logits and
// state are those of plain decoding. Plain: a session without the MTP layer.
//
// Parts
//   speculation_answers.c    answers, how they end, and what comes between them
//   speculation_random.c     random use, and the distribution of what is drawn
//   speculation_copies.c     copies of what stands in the timeline
//   speculation_broken.c     options, and broken MTP layers
//   speculation_measured.c   measured cycles, on a GPU
//   here                     models and prompts, and all of it
//
// Usage: test_speculation [--device NAME] [--brief] [DATA [PROMPTS]]. PROMPTS: how many questions are asked with all depths,
// and more of everything.

#include "api.h"
#include "families.h"
#include "files.h"

// ---- Helpers --------------------------------------------------------------------------------------------------------

enum { CONTEXT = 512, DEPTHS = 4, MOST_TEXT = 4096 };
enum { ANSWER = 40, ENDS = 24, AFTER = 8 };      // tokens: of an answer to compare with; where others end; how they go on

static const int depths[DEPTHS] = {MOTE_MTP_AUTO, 1, 2, MOTE_ROWS_MAX - 1};

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

// Plain decoding after a prompt: tokens, and the logits after each.
typedef struct plain {
    const mote_model *m;
    mote_sampling p;
    int vocab, prompt, count;
    int32_t ids[CONTEXT];        // the prompt, and `count` tokens generated after it, none of which ends the text
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
    reply *a = (reply *)allocate(sizeof *a);
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
    w->logits = (float *)allocate((size_t)(count + 1) * row);
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
static const int32_t drafted_ids[] = {4, 11, 5, 7, 63};   // one draft in seven after these is accepted

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
    questions *q = (questions *)allocate(sizeof *q);
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

#include "speculation_answers.c"
#include "speculation_random.c"
#include "speculation_copies.c"
#include "speculation_broken.c"
#include "speculation_measured.c"

// ---- All of it ------------------------------------------------------------------------------------------------------

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

// A block drafter beside the MTP layer; on the CPU alone.
static void test_with_drafter(int thorough) {
    const mote_options o = {.size = sizeof o, .device = test_device, .parts = MOTE_WEIGHTS_ONLY, .drafter = "tests/fixtures/drafter"};
    mote_model *m = NULL;
    const int code = mote_open("tests/fixtures/families/qwen3.5-dense", &o, &m, &failure);
    if (code == MOTE_EUNSUPPORTED && strcmp(test_device, "cpu")) test_skip(failure.message);
    else if (CHECK(!code, "%s", failure.message)) test_fixture(m, 0, thorough);
    mote_close(m);
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
        if (i == 0 && !is_gpu && !test_brief) test_distribution(m, drafted_ids, 5);
        if (i == 0) test_copies(m, 1);
        mote_close(m);
        fflush(stdout);
    }
    const family_folders *families = families_here();
    for (int i = 0; i < families->count; i++) {
        mote_model *m = model_of(families->dir[i], MOTE_WEIGHTS_ONLY);
        if (mote_model_info(m)->mtp_layers) test_fixture(m, 0, asked > 0);
        mote_close(m);
    }
    test_with_drafter(asked > 0);
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
