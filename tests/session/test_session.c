// Tests of what a session holds, looking inside: blocks of several rows of which some are kept, the comparison with a reference
// session, how deep to draft, keys and values of each type, saved bytes, the choice of tokens from given logits, memory as planned.
//
// Parts
//   session_blocks.c     blocks of several rows of which some are kept, drafts verified against a reference session, a
//                        comparison that can fail
//   session_depth.c      how deep to draft, what passes cost
//   session_copies.c     what the index of the timeline finds
//   session_saves.c      keys and values of each type, saved bytes
//   session_sampling.c   the choice of tokens from given logits
//   here                 options, memory as planned

#include "inside.h"
#include "api.h"
#include "files.h"

#include <malloc.h>

// ---- Helpers --------------------------------------------------------------------------------------------------------

enum { CONTEXT = 512 };

static const mote_sampling greedy;

typedef struct fixture {
    const char *dir;
    mote_model *m;
    int T, vocab, mtp;                       // mtp: it has an MTP layer
    int32_t *tokens;                         // [T]
    float *plain, *plain_mtp;                // logits [T][vocab] and [T-1][vocab], one token at a time
} fixture;

static void fixture_open(fixture *f, const char *dir) {
    char path[256];
    size_t size;
    memset(f, 0, sizeof *f);
    f->dir = dir;
    f->m = model_of(dir, MOTE_WEIGHTS_ONLY);
    f->vocab = f->m->c.vocab;
    f->mtp = f->m->has_mtp;
    snprintf(path, sizeof path, "%s/tokens.i32", dir);
    f->tokens = (int32_t *)file_bytes(path, &size);
    f->T = (int)(size / 4);
    if (!CHECK(f->T > 20, "%s: run this from the top of the repository", path)) exit(test_main_end());
    f->plain = (float *)allocate((size_t)(f->T * f->vocab) * 4);
    f->plain_mtp = (float *)allocate((size_t)(f->T * f->vocab) * 4);
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    for (int t = 0; t < f->T; t++) {
        float *mtp = f->plain_mtp + (size_t)(t ? t - 1 : 0) * (size_t)f->vocab;
        EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens + t, 1, f->plain + (size_t)t * (size_t)f->vocab, f->mtp ? mtp : NULL,
                                         &failure));
    }
    mote_session_close(s);
}

static void fixture_close(fixture *f) {
    mote_close(f->m);
    free(f->tokens);
    free(f->plain);
    free(f->plain_mtp);
}

static const float *plain_row(const fixture *f, int position) {
    return f->plain + (size_t)position * (size_t)f->vocab;
}

// Feeds tokens up to position `to`.
static void advance(mote_session *s, const fixture *f, int to) {
    EXPECT(MOTE_OK, mote_feed(s, f->tokens + s->count, (size_t)(to - s->count), &failure));
}

// The same, and checks the logits after them.
static void feed_to(mote_session *s, const fixture *f, int to, const char *what) {
    advance(s, f, to);
    CHECK(s->count == to && same_logits(s, plain_row(f, to - 1), f->vocab), "%s: %s: logits after %d tokens", f->dir, what,
          to);
}

#include "session_blocks.c"
#include "session_depth.c"
#include "session_copies.c"
#include "session_saves.c"
#include "session_sampling.c"

// ---- Options and plans ----------------------------------------------------------------------------------------------

// Defaults as engine.h has them, and a clone's options.
static void test_options(const fixture *f) {
    static const mote_session_options bad[] = {{.chunk = MAX_CHUNK + 1}, {.threads = MAX_THREADS + 1}};
    mote_session *s = session_of(f->m, 0), *t = session_of(f->m, .context = f->T, .chunk = 3, .threads = 2, .kv = MOTE_KV_FP8);
    mote_session *none = NULL, *clone = NULL;
    int most = f->m->c.context_max;
    CHECK(s->o.chunk == 256 && s->o.threads == processors(), "default chunk %d, %d threads", s->o.chunk, s->o.threads);
    CHECK(s->o.context == (most < 8192 ? most : 8192), "default context %d", s->o.context);
    EXPECT(MOTE_OK, mote_clone(t, &clone, &failure));
    CHECK(clone && !memcmp(&clone->o, &t->o, sizeof t->o), "options of a clone");
    for (int i = 0; i < 2; i++) EXPECT(MOTE_EINVAL, mote_session_open(f->m, &bad[i], &none, &failure));
    CHECK(!none, "a refused session");
    mote_session *all[] = {s, t, clone};
    for (int i = 0; i < 3; i++) mote_session_close(all[i]);
}

static int roughly(uint64_t allocated, uint64_t planned) {
    return allocated >= planned && allocated <= planned + 8192;
}

static size_t allocated_of(const mote_session *s) {
    return malloc_usable_size(s->memory) + malloc_usable_size(s->slot.memory) + malloc_usable_size(s->slot.runner->memory);
}

// The plan is what a model and a session hold, for any options.
static void test_plan(const fixture *f) {
    for (int i = 0; i < 5; i++) {
        mote_options on = {.device = "cpu"};
        mote_session_options o;
        mote_memory plan;
        mote_session *s = NULL;
        memset(&o, 0, sizeof o);
        o.context = i ? 10 * i * i + 3 : 0;
        o.chunk = i ? 1 << i : 0;
        o.threads = i;
        EXPECT(MOTE_OK, mote_plan(f->dir, &on, &o, &plan, &failure));
        EXPECT(MOTE_OK, mote_session_open(f->m, &o, &s, &failure));
        CHECK(plan.context == s->o.context, "%s: context of the plan", f->dir);
        CHECK(plan.total == plan.weights + plan.kv + plan.state + plan.scratch, "%s: sum of the plan", f->dir);
        CHECK(roughly(malloc_usable_size(f->m->arena), plan.weights), "%s: weights", f->dir);
        CHECK(roughly(allocated_of(s), plan.kv + plan.state + plan.scratch), "%s: session", f->dir);
        const mote_info *info = mote_model_info(f->m);
        CHECK(plan.weights >= info->weight_bytes, "%s: weights of the plan", f->dir);
        CHECK(plan.kv >= info->kv_bytes_per_token * (uint64_t)plan.context, "%s: KV of the plan", f->dir);
        mote_session_close(s);
    }
}

// A fixture, number i of them.
static void test_fixture(const fixture *f, const fixture *other, int i) {
    test_drafts(f);
    test_plan(f);
    test_damaged_saves(f, other);
    if (test_brief && i != 3 && i != 5) return;              // one of BF16, and one of FP8 with odd sizes
    test_partials(f);
    for (int from = MOTE_KV_F32; from <= MOTE_KV_FP8; from++) {
        test_kv_damage(f, from);
        test_canonical(f, from);
        for (int to = MOTE_KV_F32; to <= MOTE_KV_FP8; to++) test_kv_conversion(f, from, to);
    }
}

int main(int argc, char **argv) {
    static const char *const dirs[] = {
        "tests/fixtures/f16-all-delta", "tests/fixtures/f32-tied",     "tests/fixtures/fp8-f32-scales",
        "tests/fixtures/bf16-as-3.5",   "tests/fixtures/bf16-as-3.6", "tests/fixtures/fp8-ragged",
        "tests/fixtures/mixed-all-attention"};
    enum { FOLDERS = sizeof dirs / sizeof *dirs };
    static const int drafting[] = {4, 1, 5};
    fixture f[FOLDERS];
    test_main_begin("test_session", argc, argv);
    for (int i = 0; i < FOLDERS; i++) fixture_open(&f[i], dirs[i]);
    for (int i = 0; i < FOLDERS; i++) test_fixture(&f[i], &f[(i + 1) % FOLDERS], i);
    for (int i = 0; i < (test_brief ? 1 : 3); i++) test_blocks(f[drafting[i]].dir, f[drafting[i]].m);
    test_damage(f[4].m);
    test_wrong_token(f[4].m);
    test_depth(f[4].m);
    test_depth_of_nothing(f[4].m);
    test_hysteresis(f[4].m);
    test_costs();
    test_costs_fitted();
    test_costs_found(f[4].m);
    test_draft_chain(f[4].m);
    test_copies_found();
    test_copies_cut(f[4].m);
    test_distributions(&f[3]);
    test_greedy_choice(&f[0]);
    test_penalties(&f[1]);
    test_options(&f[1]);
    test_dangling_checkpoint("tiny:bf16:2", "tiny:fp8:2");
    test_dangling_checkpoint("tiny:bf16:2", "tiny:bf16:1");
    test_closed_model(&f[3]);
    for (int i = 0; i < FOLDERS; i++) fixture_close(&f[i]);
    test_draft_rows();
    if (!test_brief) {
        mote_model *demo = model_of("models/demo", MOTE_EVERYTHING);
        test_blocks("models/demo", demo);
        mote_close(demo);
    }
    return test_main_end();
}
