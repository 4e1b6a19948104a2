/* Tests of a model that runs in parts: stages that are ranges of its layers, and ranks that share each of them, as threads.

   Usage: test_parts [DATA]: DATA/family-data has more checkpoints */

#include "inside.h"

#include "api.h"
#include "families.h"
#include "files.h"

/* What a model makes of some tokens. */
enum { PART_ANSWER = 12, PART_STEPS = 6, PART_SESSIONS = 3 };

typedef struct played {
    size_t rows, vocab;
    float *logits, *mtp;                                    /* [rows][vocab], [rows - 1][vocab] */
    int32_t answer[PART_ANSWER], chosen[PART_SESSIONS][PART_STEPS];
    float *last;                                            /* [PART_SESSIONS][vocab] */
} played;

static void played_free(played *p) {
    free(p->logits);
    free(p->mtp);
    free(p->last);
}

static mote_model *parts_of(const char *dir, int stages, int ranks) {
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open_parts(dir, &(mote_options){.parts = MOTE_WEIGHTS_ONLY, .device = "cpu"}, stages, ranks, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

static int keep_answer(void *user, int32_t id) {
    int32_t **to = (int32_t **)user;
    *(*to)++ = id;
    return 0;
}

/* An answer with drafts, after a prompt that is read in chunks. */
static void play_alone(const mote_model *m, const int32_t *ids, size_t n, played *to) {
    const mote_sampling greedy = {0};
    int32_t *at = to->answer;
    mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = PART_ANSWER, .on_token = keep_answer, .user = &at};
    mote_session *s = session_of(m, .context = (int)n + PART_ANSWER + 8, .chunk = 9, .threads = 2, .mtp = m->has_mtp ? 3 : MOTE_MTP_OFF);
    memset(to->answer, -1, sizeof to->answer);
    EXPECT(MOTE_OK, mote_feed_logits(s, ids, n, to->logits, m->has_mtp ? to->mtp : NULL, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
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

static void check_same_bits(const char *what, const mote_model *m, const played *a, const played *b) {
    const size_t row = a->vocab * sizeof(float);
    CHECK(!memcmp(a->logits, b->logits, a->rows * row), "%s: logits", what);
    if (m->has_mtp) CHECK(!memcmp(a->mtp, b->mtp, (a->rows - 1) * row), "%s: MTP logits", what);
    CHECK(!memcmp(a->answer, b->answer, sizeof a->answer), "%s: an answer", what);
    CHECK(!memcmp(a->chosen, b->chosen, sizeof a->chosen), "%s: steps together", what);
    CHECK(!memcmp(a->last, b->last, PART_SESSIONS * row), "%s: logits after steps together", what);
}

/* Stages have the bits of the whole model, and between them no more weights than that, but for an embedding more in the last stage. */
static void test_stages(const char *dir, int stages, const int32_t *ids, size_t n, const mote_model *whole, const played *want) {
    char what[600];
    mote_model *m = parts_of(dir, stages, 1);
    played got = play(m, ids, n);
    size_t bytes = 0, embedding = 0;
    snprintf(what, sizeof what, "%s in %d stages", dir, stages);
    check_same_bits(what, m, &got, want);
    CHECK(m->has_mtp == whole->has_mtp, "%s: an MTP layer", what);
    for (int i = 0; i < stages; i++) bytes += m->members[i]->arena_size;
    for (int k = 0; k < formats[whole->embed_tokens.format]->component_count; k++)
        if (stages > 1 && (m->c.tied || m->has_mtp)) embedding += matrix_component_capacity(&whole->embed_tokens, k);
    CHECK(bytes == whole->arena_size + embedding, "%s: %zu bytes, whole %zu and an embedding of %zu", what, bytes, whole->arena_size, embedding);
    played_free(&got);
    mote_close(m);
}

static void test_folder(const char *dir) {
    size_t size;
    char path[600];
    snprintf(path, sizeof path, "%s/tokens.i32", dir);
    int32_t *ids = (int32_t *)file_bytes(path, &size);
    const size_t n = size / sizeof *ids < 80 ? size / sizeof *ids : 80;
    mote_model *whole = model_on("cpu", dir, MOTE_WEIGHTS_ONLY);
    if (!CHECK(n > 20, "%s: no tokens", dir)) return;
    played want = play(whole, ids, n);
    test_stages(dir, 1, ids, n, whole, &want);
    for (int stages = 2; stages <= 3 && stages <= whole->c.layers; stages++) test_stages(dir, stages, ids, n, whole, &want);
    played_free(&want);
    mote_close(whole);
    free(ids);
}

int main(int argc, char **argv) {
    test_main_begin("test_parts", argc, argv);
    const family_folders *families = families_here();
    for (int i = 0; i < families->count; i++) test_folder(families->dir[i]);
    test_folder("tests/fixtures/bf16-as-3.6");
    test_folder("tests/fixtures/gptq-awq-int4");
    return test_main_end();
}
