/* Tests of a model that runs in parts: ranges that are ranges of its layers, and ranks that share each of them, as threads.

   Usage: test_parts [DATA]: DATA/family-data has more checkpoints

   Parts
     parts_random.c       checkpoints of random weights whose sizes 2 and 3 ranks divide
     parts_failures.c     what ends a group, what is refused, what may be missing
     here                 bits of ranges, ranks against the definition, what a part has of the weights */

#include "inside.h"

#include "api.h"
#include "families.h"
#include "files.h"
#include "no_memory.h"

#include <setjmp.h>
#include <sys/wait.h>

#include "parts_random.c"

/* What a model makes of some tokens. */
enum { PART_ANSWER = 12, PART_STEPS = 6, PART_SESSIONS = 3 };

typedef struct played {
    size_t rows, vocab;
    float *logits, *mtp;                                    /* [rows][vocab], [rows - 1][vocab] */
    mote_traced_pass pass[PART_ANSWER];                     /* with their drafts, */
    int passes;                  /* so many */
    int32_t answer[PART_ANSWER], chosen[PART_SESSIONS][PART_STEPS];
    float *last;                                            /* [PART_SESSIONS][vocab] */
} played;

static void played_free(played *p) {
    free(p->logits);
    free(p->mtp);
    free(p->last);
}

static mote_model *parts_of(const char *dir, int ranges, int ranks) {
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open_parts(dir, &(mote_options){.parts = MOTE_WEIGHTS_ONLY, .device = "cpu"}, ranges, ranks, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

#include "parts_failures.c"

static int keep_answer(void *user, int32_t id) {
    int32_t **to = (int32_t **)user;
    *(*to)++ = id;
    return 0;
}

static void keep_pass(void *user, const mote_traced_pass *pass) {
    played *to = (played *)user;
    if (to->passes < PART_ANSWER) to->pass[to->passes++] = *pass;
}

/* All ranks of the last range have the same final rows: they add shares in the same order. */
static void check_ranks_agree(const mote_session *s) {
    const struct runner_group *g = s->slot.runner->group;
    const size_t hidden = (size_t)s->m->c.hidden * sizeof(float);
    for (int i = g ? g->count - g->member->as.at.ranks : 0; g && i + 1 < g->count; i++)
        CHECK(!memcmp(s->slot.parts[i].hidden, s->slot.parts[i + 1].hidden, MOTE_ROWS_MAX * hidden) &&
              !memcmp(s->slot.parts[i].last_hidden, s->slot.parts[i + 1].last_hidden, hidden), "final rows of members %d and %d differ", i, i + 1);
}

/* An answer with drafts, after a prompt that is read in chunks. */
static void play_alone(const mote_model *m, const int32_t *ids, size_t n, played *to) {
    const mote_sampling greedy = {0};
    int32_t *at = to->answer;
    mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = PART_ANSWER, .on_token = keep_answer, .user = &at};
    mote_session *s = session_of(m, .context = (int)n + 2 * PART_ANSWER + 8, .chunk = 9, .threads = 2, .mtp = m->has_mtp ? 3 : MOTE_MTP_OFF);
    memset(to->answer, -1, sizeof to->answer);
    EXPECT(MOTE_OK, mote_feed_logits(s, ids, n, to->logits, m->has_mtp ? to->mtp : NULL, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    EXPECT(MOTE_OK, mote_trace_passes(s, PART_ANSWER, keep_pass, to, &failure));
    check_ranks_agree(s);
    mote_session_close(s);
}

/* Steps of several sessions together, one of which begins anew. */
static void play_together(const mote_model *m, const int32_t *ids, size_t n, played *to) {
    mote_runner *r = NULL;
    mote_turn turns[PART_SESSIONS];
    memset(turns, 0, sizeof turns);
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = (int)n + PART_STEPS, .threads = 2}, &r, &failure));
    for (int i = 0; i < PART_SESSIONS; i++) {
        mote_session *s = turns[i].session = session_of(m, .context = (int)n + PART_STEPS, .runner = r);
        if (i == 1) EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
        if (i == 1) EXPECT(MOTE_OK, mote_reset(s, &failure));
        EXPECT(MOTE_OK, mote_feed(s, ids + i, n - (size_t)(5 * i), &failure));
    }
    for (int k = 0; k < PART_STEPS; k++) {
        EXPECT(MOTE_OK, mote_step_many(turns, PART_SESSIONS, &failure));
        for (int i = 0; i < PART_SESSIONS; i++) to->chosen[i][k] = turns[i].id;
    }
    for (int i = 0; i < PART_SESSIONS; i++) {
        memcpy(to->last + (size_t)i * to->vocab, mote_logits(turns[i].session), to->vocab * sizeof(float));
        mote_session_close(turns[i].session);
    }
    mote_runner_close(r);
}

static played play(const mote_model *m, const int32_t *ids, size_t n) {
    played to;
    memset(&to, 0, sizeof to);
    to.rows = n;
    to.vocab = (size_t)m->c.vocab;
    to.logits = (float *)allocate(n * to.vocab * sizeof(float));
    to.mtp = (float *)allocate(n * to.vocab * sizeof(float));
    to.last = (float *)allocate(PART_SESSIONS * to.vocab * sizeof(float));
    play_alone(m, ids, n, &to);
    play_together(m, ids, n, &to);
    return to;
}

/* Tokens of answers, and drafts on the way to them. */
static void check_same_answers(const char *what, const played *a, const played *b) {
    CHECK(!memcmp(a->answer, b->answer, sizeof a->answer), "%s: an answer", what);
    CHECK(!memcmp(a->chosen, b->chosen, sizeof a->chosen), "%s: steps together", what);
    CHECK(a->passes == b->passes && a->passes > 0, "%s: %d passes, %d", what, a->passes, b->passes);
    for (int i = 0; i < a->passes && i < b->passes; i++) {
        const mote_traced_pass *p = &a->pass[i], *q = &b->pass[i];
        const size_t rows = (size_t)(p->drafts + 1) * sizeof *p->ids;
        CHECK(p->drafts == q->drafts && p->source == q->source && !memcmp(p->ids, q->ids, rows), "%s: drafts of pass %d", what, i);
    }
}

static void check_same_bits(const char *what, const mote_model *m, const played *a, const played *b) {
    const size_t row = a->vocab * sizeof(float);
    CHECK(!memcmp(a->logits, b->logits, a->rows * row), "%s: logits", what);
    if (m->has_mtp) CHECK(!memcmp(a->mtp, b->mtp, (a->rows - 1) * row), "%s: MTP logits", what);
    check_same_answers(what, a, b);
    CHECK(!memcmp(a->last, b->last, PART_SESSIONS * row), "%s: logits after steps together", what);
}

/* A folder and what it is compared with. */
typedef struct part_case {
    const char *dir, *name;      /* for messages */
    mote_model *whole;
    int32_t *ids;
    size_t n;
    played want;
    double *defined, *defined_mtp;
} part_case;

/* Takes the tokens of the fixture, or so many random ones. */
static void case_open(part_case *c, const char *dir, size_t random) {
    char path[600];
    memset(c, 0, sizeof *c);
    c->dir = c->name = dir;
    c->whole = model_on("cpu", dir, MOTE_WEIGHTS_ONLY);
    snprintf(path, sizeof path, "%s/tokens.i32", dir);
    c->ids = random ? (int32_t *)allocate(random * sizeof *c->ids) : (int32_t *)(void *)file_bytes(path, &c->n);
    for (size_t i = 0; i < random; i++) c->ids[i] = (int32_t)(random_bits() % (uint32_t)c->whole->c.vocab);
    c->n = random ? random : c->n / sizeof *c->ids < 80 ? c->n / sizeof *c->ids : 80;
    if (!CHECK(c->ids && c->n > 20, "%s: no tokens", dir)) exit(test_main_end());
    const size_t numbers = c->n * (size_t)c->whole->c.vocab;
    c->defined = (double *)allocate(numbers * sizeof *c->defined);
    c->defined_mtp = (double *)allocate(numbers * sizeof *c->defined_mtp);
    c->want = play(c->whole, c->ids, c->n);
    CHECK(definition_model(c->whole, c->ids, (int)c->n, c->defined, c->defined_mtp), "%s: no memory", dir);
}

static void case_close(part_case *c) {
    played_free(&c->want);
    free(c->defined);
    free(c->defined_mtp);
    free(c->ids);
    mote_close(c->whole);
}

/* Of the logits' standard deviation, as in test_definition. */
#define PART_RULE 5e-6

static void check_close(const char *what, const char *of, const float *logits, const double *defined, size_t n) {
    float *as_float = (float *)allocate(n * sizeof *as_float);
    for (size_t i = 0; i < n; i++) as_float[i] = (float)defined[i];
    const double by = off(logits, as_float, n);
    CHECK(by <= PART_RULE, "%s: %s: off the definition by %g", what, of, by);
    free(as_float);
}

/* Ranges have the bits of the whole model, and between them no more weights than that, but for an embedding more in the last range. */
static void test_ranges(const part_case *c, int ranges) {
    const mote_model *whole = c->whole;
    char what[600];
    mote_model *m = parts_of(c->dir, ranges, 1);
    played got = play(m, c->ids, c->n);
    size_t bytes = 0, embedding = 0;
    snprintf(what, sizeof what, "%s in %d ranges", c->dir, ranges);
    check_same_bits(what, m, &got, &c->want);
    CHECK(m->has_mtp == whole->has_mtp, "%s: an MTP layer", what);
    for (int i = 0; i < ranges; i++) bytes += m->members[i]->arena_size;
    for (int k = 0; k < formats[whole->embed_tokens.format]->component_count; k++)
        if (ranges > 1 && (m->c.tied || m->has_mtp)) embedding += matrix_component_capacity(&whole->embed_tokens, k);
    CHECK(bytes == whole->arena_size + embedding, "%s: %zu bytes, whole %zu and an embedding of %zu", what, bytes, whole->arena_size, embedding);
    played_free(&got);
    mote_close(m);
}

/* Of what is divided, each weight is one member's. */
static void check_divided(const char *what, const mote_model *m, const mote_model *whole) {
    static const enum module_kind divided[] = {MODULE_HEAD, MODULE_EXPERTS, MODULE_SHARED, MODULE_MLP};
    for (size_t k = 0; k < COUNT(divided); k++) {
        const char *name = module_names[divided[k]];
        uint64_t sum = 0, all = 0;
        for (int i = 0; i < whole->report.info.module_count; i++)
            if (!strcmp(whole->report.modules[i].name, name)) all = whole->report.modules[i].parameters;
        for (int i = 0; i < m->member_count; i++)
            for (int j = 0; j < m->members[i]->report.info.module_count; j++)
                if (!strcmp(m->members[i]->report.modules[j].name, name)) sum += m->members[i]->report.modules[j].parameters;
        CHECK(sum == all, "%s: %s of %llu weights in all parts, %llu in the whole model", what, name, (unsigned long long)sum,
              (unsigned long long)all);
    }
}

/* Ranks are as close to the definition as the whole model, choose its tokens, and do so again with the same bits. */
static void test_ranks(const part_case *c, int ranges, int ranks) {
    char what[600];
    mote_model *m = parts_of(c->dir, ranges, ranks);
    snprintf(what, sizeof what, "%s in %d ranges of %d ranks", c->name, ranges, ranks);
    played got = play(m, c->ids, c->n), again = play(m, c->ids, c->n);
    check_close(what, "logits", got.logits, c->defined, c->n * got.vocab);
    if (m->has_mtp) check_close(what, "MTP logits", got.mtp, c->defined_mtp, (c->n - 1) * got.vocab);
    check_same_answers(what, &got, &c->want);
    check_same_bits(what, m, &got, &again);
    check_divided(what, m, c->whole);
    played_free(&got);
    played_free(&again);
    mote_close(m);
}

/* The numbers of a folder that is not listed below, if it is refused: one that so many ranks do not divide. */
static int refusal_is_right(const char *dir, int ranks) {
    mote_model *m = NULL;
    int layer, value, by, named = 0;
    const int status = mote_open_parts(dir, &(mote_options){.parts = MOTE_WEIGHTS_ONLY, .device = "cpu"}, 1, ranks, &m, &failure);
    mote_close(m);
    if (status == MOTE_OK) return 0;
    const char *why = failure.message + strlen(dir);
    CHECK(status == MOTE_EUNSUPPORTED && !strncmp(failure.message, dir, strlen(dir)), "%s in %d ranks: %s", dir, ranks, failure.message);
    if (sscanf(why, ": layer %d: %*[a-z_] = %d cannot be divided by %d ranks%n", &layer, &value, &by, &named) == 3 && named)
        CHECK(by == ranks && value % ranks, "%s in %d ranks: %s", dir, ranks, failure.message);
    else CHECK(strstr(why, " can be cut at multiples of "), "%s in %d ranks: %s", dir, ranks, failure.message);
    return 1;
}

/* What cannot be divided by so many ranks is refused, by its name. */
static int ranks_are_refused(const char *dir, int ranks) {
    static const struct { const char *folder; int ranks; const char *why; } known[] = {
        {"gpt-oss-mxfp4", 2, "down_proj_blocks: columns 0 to 15 of 32, and MXFP4 can be cut at multiples of 32 only"},
        {"mistral", 2, "layer 0: kv_heads = 1 cannot be divided by 2 ranks"},
        {"qwen3-next", 2, "layer 1: kv_heads = 1 cannot be divided by 2 ranks"},
        {"mixed-all-attention", 2, "layer 0: kv_heads = 3 cannot be divided by 2 ranks"},
        {"nvfp4-fp8-tensor", 2, "experts.0.down_proj.weight: columns 0 to 23 of 48, and NVFP4 can be cut at multiples of 16 only"},
        {"ct-nvfp4-fp8-int4", 2, "layer 0: kv_heads = 1 cannot be divided by 2 ranks"},
        {"fp8-ragged", 2, "layer 1: kv_heads = 1 cannot be divided by 2 ranks"},
        {"fp8-f32-scales", 2, "layer 1: key_heads = 1 cannot be divided by 2 ranks"},
        {"mixed-all-attention", 3, "layer 0: shared_size = 20 cannot be divided by 3 ranks"},
        {"qwen3-moe", 3, "layer 0: kv_heads = 2 cannot be divided by 3 ranks"},
        {"qwen3.5-dense", 3, "layer 0: key_heads = 2 cannot be divided by 3 ranks"},
        {"deepseek-v3", 3, "layer 0: heads = 4 cannot be divided by 3 ranks"}};
    const char *name = strrchr(dir, '/') + 1;
    for (size_t i = 0; i < COUNT(known); i++) {
        mote_model *m = NULL;
        if (known[i].ranks != ranks || strcmp(known[i].folder, name)) continue;
        EXPECT(MOTE_EUNSUPPORTED, mote_open_parts(dir, &(mote_options){.device = "cpu"}, 1, ranks, &m, &failure));
        CHECK(strstr(failure.message, dir) && strstr(failure.message, known[i].why), "%s in %d ranks: %s", dir, ranks, failure.message);
        return 1;
    }
    return refusal_is_right(dir, ranks);
}

static void test_folder(const char *dir) {
    part_case c;
    case_open(&c, dir, 0);
    for (int ranges = 2; ranges <= (test_brief ? 2 : 3) && ranges <= c.whole->c.layers; ranges++) test_ranges(&c, ranges);
    for (int ranks = 2; ranks <= 3; ranks++) {
        if (ranks_are_refused(dir, ranks)) continue;
        if (!test_brief) test_ranks(&c, 1, ranks);
        test_ranks(&c, 2, ranks);
    }
    case_close(&c);
}

static void test_random(const char *fixture, const random_size *sizes, const char *mix) {
    part_case c;
    random_checkpoint(fixture, sizes, mix);
    case_open(&c, temp_dir, 24);
    c.name = mix;
    for (int ranks = 2; ranks <= c.whole->largest.attention.kv_heads; ranks++)
        if (!refusal_is_right(temp_dir, ranks)) test_ranks(&c, 1, ranks);
    if (!test_brief) test_ranks(&c, 2, 3);
    case_close(&c);
}

int main(int argc, char **argv) {
    static const char *const fixtures[] = {"bf16-as-3.6", "gptq-awq-int4", "f32-tied", "mixed-all-attention", "nvfp4-fp8-tensor",
                                           "ct-nvfp4-fp8-int4", "fp8-ragged", "fp8-f32-scales"};
    static const char *const mixes[] = {"bf16", "fp8", "fp8-channel", "nvfp4", "int4"};
    test_main_begin("test_parts", argc, argv);
    if (!temp_open()) return test_main_end();
    const family_folders *families = families_here();
    for (int i = 0; i < families->count; i++) test_folder(families->dir[i]);
    for (size_t i = 0; i < COUNT(fixtures); i++) {
        char dir[300];
        snprintf(dir, sizeof dir, "tests/fixtures/%s", fixtures[i]);
        test_folder(dir);
    }
    test_lost_members();
    test_refusals();
    test_parts_without_memory();
    test_embedding_in_parts();
    test_parts_in_a_child();
    if (test_brief) test_random("tests/fixtures/bf16-as-3.6", random_small, "nvfp4");
    for (size_t i = 0; i < COUNT(mixes) && !test_brief; i++) test_random("tests/fixtures/bf16-as-3.6", random_qwen, mixes[i]);
    test_random("tests/fixtures/families/gpt-oss-mxfp4", random_gpt_oss, "mxfp4");
    temp_close();
    return test_main_end();
}
