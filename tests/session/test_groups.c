/* Tests of a model in parts through the API alone: whatever is done to a session, one whose model is shared by several devices has the bits
   of one whose model is not, and of several ranks those of as many in another number of ranges. What one saves the other loads.
   Usage: test_groups [--device NAME | --devices NAME,NAME... [--split tensor]] [--brief] [DATA [MODEL...]]. Without --devices groups are of
   CPUs; with it, a pipeline of these is compared with the first one alone, their ranks with themselves. With --device, a GPU: a model whose experts
   are in host memory, with so many slots for them, is compared with one whose experts are all on the GPU. With MODELs, checkpoint folders, only
   these. */

#include "api.h"
#include "families.h"

#include <pthread.h>
#include <unistd.h>

#include "session/pair.h"

enum { GROUP_CONTEXT = 640, GROUP_PROMPT = 150, COMPANY = 2 };

/* ---- Two models, and sessions of both to which the same is done --------------------------------------------------------- */

typedef struct two {
    mote_model *m[2];
    char name[700];              /* for messages */
    int context;
    mote_runner *runner[2];      /* NULL: the sessions have their own */
    mote_session *s[2], *company[2][COMPANY];
    mote_checkpoint *kept[2];
    int countdown;               /* polls of cancel of the second, until it says yes; 0: it does not */
    char did[320];               /* lately */
} two;

static int two_cancel(void *user) {
    two *t = (two *)user;
    return t->countdown && !--t->countdown;
}

static void two_did(two *t, const char *what, int n) {
    const size_t used = strlen(t->did), half = sizeof t->did / 2;
    if (used > half) memmove(t->did, t->did + used - half, half + 1);
    snprintf(t->did + strlen(t->did), sizeof t->did - strlen(t->did), " %s %d", what, n);
}

static int two_on_gpu(const two *t) {
    return strncmp(mote_model_info(t->m[0])->device, "cpu", 3) != 0;
}

static int vocab_of(const two *t) {
    return mote_model_info(t->m[0])->vocab_size;
}

static mote_session *two_session(two *t, int i, int drafts) {
    mote_session_options o = {.context = t->context, .mtp = drafts, .runner = t->runner[i]};
    o.callbacks.user = t;
    if (i) o.callbacks.cancel = two_cancel;
    if (!o.runner) o.threads = 2, o.chunk = two_on_gpu(t) ? 64 : 9;
    return session_with(t->m[i], &o);
}

static void two_ids(const two *t, int32_t *ids, int n) {
    for (int k = 0; k < n; k++) ids[k] = below(vocab_of(t));
}

static void two_open(two *t, int shared, int drafts) {
    t->countdown = 0;
    t->did[0] = 0;
    for (int i = 0; i < 2; i++) {
        const mote_session_options o = {.context = t->context, .threads = 2, .chunk = two_on_gpu(t) ? 64 : 9};
        t->runner[i] = shared ? runner_with(t->m[i], &o) : NULL;
        t->s[i] = two_session(t, i, drafts);
        t->kept[i] = NULL;
        for (int k = 0; k < COMPANY; k++) t->company[i][k] = shared ? two_session(t, i, k ? MOTE_MTP_OFF : drafts) : NULL;
    }
    for (int k = 0; k < COMPANY && shared; k++) {
        int32_t ids[7];
        two_ids(t, ids, 7);
        for (int i = 0; i < 2; i++) EXPECT(MOTE_OK, mote_feed(t->company[i][k], ids, (size_t)(7 - k), &failure));
    }
}

static void two_close(two *t) {
    for (int i = 0; i < 2; i++) {
        mote_checkpoint_free(t->kept[i]);
        mote_session_close(t->s[i]);
        for (int k = 0; k < COMPANY; k++) mote_session_close(t->company[i][k]);
        mote_runner_close(t->runner[i]);
    }
}

static void two_compare(const two *t) {
    size_t n[2];
    const int32_t *ids[2] = {mote_tokens(t->s[0], &n[0]), mote_tokens(t->s[1], &n[1])};
    const int same = n[0] == n[1] && !memcmp(ids[0], ids[1], n[0] * sizeof **ids);
    CHECK(same, "%s:%s: other tokens, %zu and %zu", t->name, t->did, n[0], n[1]);
    if (!same || !n[0]) return;
    CHECK(same_logits(t->s[1], mote_logits(t->s[0]), vocab_of(t)), "%s:%s: other logits after %zu tokens", t->name, t->did, n[0]);
    char *bytes = session_bytes(t->s[0], &n[0]);
    CHECK(session_is(t->s[1], bytes, n[0]), "%s:%s: another state", t->name, t->did);
    free(bytes);
}

/* ---- What is done ------------------------------------------------------------------------------------------------------- */

static void do_feed(two *t, int n) {
    int32_t ids[GROUP_PROMPT];
    two_ids(t, ids, n);
    for (int i = 0; i < 2; i++) EXPECT(MOTE_OK, mote_feed(t->s[i], ids, (size_t)n, &failure));
}

/* The logits of all tokens that are read. */
static void do_logits(two *t, int n) {
    const size_t numbers = (size_t)n * (size_t)vocab_of(t);
    float *logits[2];
    int32_t ids[GROUP_PROMPT];
    two_ids(t, ids, n);
    for (int i = 0; i < 2; i++) {
        logits[i] = (float *)allocate(numbers * sizeof(float));
        EXPECT(MOTE_OK, mote_feed_logits(t->s[i], ids, (size_t)n, logits[i], NULL, &failure));
    }
    CHECK(!memcmp(logits[0], logits[1], numbers * sizeof(float)), "%s:%s: logits of a prompt", t->name, t->did);
    free(logits[0]);
    free(logits[1]);
}

static void do_logprobs(two *t, int n) {
    mote_logprob of[2][GROUP_PROMPT];
    int32_t ids[GROUP_PROMPT];
    memset(of, 0, sizeof of);
    two_ids(t, ids, n);
    for (int i = 0; i < 2; i++) EXPECT(MOTE_OK, mote_feed_logprobs(t->s[i], ids, (size_t)n, 0, of[i], NULL, &failure));
    for (int k = 0; k < n; k++)
        if (!CHECK(!memcmp(&of[0][k], &of[1][k], sizeof **of), "%s:%s: log-probability of token %d", t->name, t->did, k)) break;
}

/* The second is cancelled somewhere in a prompt; the first reads as far. */
static void do_cancel(two *t, int n) {
    int32_t ids[GROUP_PROMPT];
    const int before = count_of(t->s[1]);
    two_ids(t, ids, n);
    t->countdown = 1 + below(8);
    EXPECT_EITHER(MOTE_OK, MOTE_ECANCELLED, mote_feed(t->s[1], ids, (size_t)n, &failure));
    t->countdown = 0;
    EXPECT(MOTE_OK, mote_feed(t->s[0], ids, (size_t)(count_of(t->s[1]) - before), &failure));
}

static mote_sampling sampling_of(int n) {
    mote_sampling p = {0};
    if (n % 3 == 1) p.temperature = 0.8f, p.top_k = 20, p.seed = (uint64_t)n;
    if (n % 3 == 2) p.temperature = 1, p.top_p = 0.9f, p.repetition_penalty = 1.1f, p.seed = (uint64_t)n;
    return p;
}

static void do_step(two *t, int n) {
    const mote_sampling p = sampling_of(n);
    int32_t id[2] = {-1, -2};
    if (!count_of(t->s[0])) return;
    for (int i = 0; i < 2; i++) EXPECT(MOTE_OK, mote_step(t->s[i], &p, &id[i], &failure));
    CHECK(id[0] == id[1], "%s:%s: tokens %d and %d", t->name, t->did, id[0], id[1]);
}

static void do_generate(two *t, int n) {
    const mote_sampling p = sampling_of(n);
    if (!count_of(t->s[0])) return;
    for (int i = 0; i < 2; i++) {
        mote_generation g = {.size = sizeof g, .sampling = &p, .max_tokens = n, .raw = 1, .verify = n % 4 == 1};
        EXPECT(MOTE_OK, mote_generate(t->s[i], &g, NULL, &failure));
    }
}

/* Steps with others on the same runner. */
static void do_steps_together(two *t, int n) {
    if (!t->runner[0] || !count_of(t->s[0])) return;
    for (int step = 0; step < 3; step++) {
        mote_turn turns[2][1 + COMPANY];
        mote_sampling p[1 + COMPANY];
        memset(turns, 0, sizeof turns);
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k <= COMPANY; k++) {
                p[k] = sampling_of(n + k);
                turns[i][k].session = k ? t->company[i][k - 1] : t->s[i];
                turns[i][k].sampling = &p[k];
            }
            EXPECT(MOTE_OK, mote_step_many(turns[i], 1 + COMPANY, &failure));
        }
        for (int k = 0; k <= COMPANY; k++)
            CHECK(turns[0][k].id == turns[1][k].id, "%s:%s: session %d of a pass: tokens %d and %d", t->name, t->did, k, turns[0][k].id, turns[1][k].id);
    }
}

typedef struct answer_thread { mote_session *s; int n; pthread_t thread; int code; } answer_thread;

static void *answer_main(void *argument) {
    answer_thread *a = (answer_thread *)argument;
    const mote_sampling p = sampling_of(a->n);
    mote_generation g = {.size = sizeof g, .sampling = &p, .max_tokens = a->n, .raw = 1};
    a->code = mote_generate(a->s, &g, NULL, NULL);
    return NULL;
}

/* Answers of all sessions of a runner at the same time, with their drafts. Each has the bits that it has alone. */
static void do_answers(two *t, int n) {
    if (!t->runner[0] || !count_of(t->s[0])) return;
    for (int i = 0; i < 2; i++) {
        answer_thread a[1 + COMPANY];
        for (int k = 0; k <= COMPANY; k++) {
            a[k].s = k ? t->company[i][k - 1] : t->s[i];
            a[k].n = n + (k && i);                          /* other passes: the same tokens */
            a[k].code = -1;
            if (k && count_of(a[k].s) + n + 12 > t->context) EXPECT(MOTE_OK, mote_reset(a[k].s, &failure));
            if (!count_of(a[k].s)) EXPECT(MOTE_OK, mote_feed(a[k].s, &(int32_t){k}, 1, &failure));
            CHECK(!pthread_create(&a[k].thread, NULL, answer_main, &a[k]), "a thread");
        }
        for (int k = 0; k <= COMPANY; k++) {
            pthread_join(a[k].thread, NULL);
            CHECK(!a[k].code, "%s:%s: an answer beside others: %d", t->name, t->did, a[k].code);
        }
    }
    for (int k = 0; k < COMPANY; k++)                       /* they are as far as each other again */
        for (int i = 0; i < 2; i++) {
            EXPECT(MOTE_OK, mote_reset(t->company[i][k], &failure));
            EXPECT(MOTE_OK, mote_feed(t->company[i][k], &(int32_t){k + 1}, 1, &failure));
        }
}

static void do_keep(two *t, int n) {
    (void)n;
    for (int i = 0; i < 2; i++) {
        mote_checkpoint_free(t->kept[i]);
        t->kept[i] = checkpoint_of(t->s[i]);
    }
}

static void do_rewind(two *t, int n) {
    int code[2] = {0, 0};
    (void)n;
    for (int i = 0; i < 2 && t->kept[i]; i++) code[i] = mote_rewind(t->s[i], t->kept[i], &failure);
    CHECK(code[0] == code[1], "%s:%s: going back: %d and %d", t->name, t->did, code[0], code[1]);
}

static void do_clone(two *t, int n) {
    (void)n;
    for (int i = 0; i < 2; i++) {
        mote_session *clone = NULL;
        EXPECT(MOTE_OK, mote_clone(t->s[i], &clone, &failure));
        if (!clone) continue;
        mote_session_close(t->s[i]);
        t->s[i] = clone;
    }
}

/* Each loads what the other has saved. */
static void do_load(two *t, int n) {
    char *bytes[2];
    size_t size[2];
    (void)n;
    for (int i = 0; i < 2; i++) bytes[i] = session_bytes(t->s[i], &size[i]);
    for (int i = 0; i < 2; i++) {
        EXPECT(MOTE_OK, mote_reset(t->s[i], &failure));
        EXPECT(MOTE_OK, mote_load(t->s[i], bytes[1 - i], size[1 - i], &failure));
    }
    free(bytes[0]);
    free(bytes[1]);
}

static void do_load_file(two *t, int n) {
    const char *path = temp_path("saved");
    (void)n;
    for (int i = 0; i < 2; i++) {
        EXPECT(MOTE_OK, mote_save_file(t->s[i], path, &failure));
        EXPECT(MOTE_OK, mote_load_file(t->s[1 - i], path, &failure));
    }
}

static void do_reset(two *t, int n) {
    (void)n;
    for (int i = 0; i < 2; i++) EXPECT(MOTE_OK, mote_reset(t->s[i], &failure));
}

static void do_embed(two *t, int n) {
    const size_t hidden = (size_t)mote_model_info(t->m[0])->hidden_size;
    float *of[2];
    int32_t ids[GROUP_PROMPT];
    two_ids(t, ids, n);
    for (int i = 0; i < 2; i++) {
        const mote_embedding o = {.size = sizeof o, .pooling = n % 2 ? MOTE_POOLING_MEAN : MOTE_POOLING_LAST};
        of[i] = (float *)allocate(hidden * sizeof(float));
        EXPECT(MOTE_OK, mote_embed(t->s[i], ids, (size_t)n, &o, of[i], &failure));
    }
    CHECK(!memcmp(of[0], of[1], hidden * sizeof(float)), "%s:%s: embeddings", t->name, t->did);
    free(of[0]);
    free(of[1]);
}

static const struct { const char *name; int least, most; void (*what)(two *t, int n); } deeds[] = {
    {"feed", 1, 40, do_feed}, {"prompt", 60, GROUP_PROMPT, do_feed}, {"logits", 1, 90, do_logits}, {"logprobs", 1, 90, do_logprobs},
    {"cancel", 20, GROUP_PROMPT, do_cancel}, {"step", 1, 30, do_step}, {"generate", 1, 14, do_generate}, {"generate", 1, 14, do_generate},
    {"together", 1, 30, do_steps_together}, {"answers", 1, 14, do_answers}, {"keep", 0, 0, do_keep}, {"rewind", 0, 0, do_rewind},
    {"clone", 0, 0, do_clone}, {"load", 0, 0, do_load}, {"file", 0, 0, do_load_file}, {"reset", 0, 0, do_reset}, {"embed", 1, 90, do_embed}};

/* So many of these, each at least once in as many as there are. */
static void two_play(two *t, int shared, int drafts, int deeds_most) {
    const int count = (int)(sizeof deeds / sizeof *deeds), first = below(count);
    const int steps[] = {1, 2, 3, 4, 6, 8};                 /* prime to 17 but for none: all deeds in another order */
    const int by = steps[below(6)];
    two_open(t, shared, drafts);
    do_feed(t, 5);
    for (int k = 0; k < deeds_most; k++) {
        const int at = (first + k * by) % count, most = deeds[at].most < t->context / 3 ? deeds[at].most : t->context / 3;
        const int n = deeds[at].least < most ? deeds[at].least + below(most - deeds[at].least + 1) : most;
        if (count_of(t->s[0]) + most + 24 > t->context) do_reset(t, 0);
        two_did(t, deeds[at].name, n);
        deeds[at].what(t, n);
        two_compare(t);
    }
    two_close(t);
}

static void two_test(mote_model *a, mote_model *b, const char *name) {
    two t;
    memset(&t, 0, sizeof t);
    t.m[0] = a;
    t.m[1] = b;
    t.context = mote_model_info(a)->context_max < GROUP_CONTEXT ? mote_model_info(a)->context_max : GROUP_CONTEXT;
    snprintf(t.name, sizeof t.name, "%s", name);
    two_play(&t, 0, 2, test_brief ? 17 : 34);
    two_play(&t, 1, 3, test_brief ? 17 : 34);
    if (!test_brief) two_play(&t, 0, MOTE_MTP_OFF, 17);
}

/* ---- Which models ------------------------------------------------------------------------------------------------------- */

static mote_model *group_of(const char *dir, int ranges, int ranks) {
    mote_model *m = NULL;
    const int code = mote_open_parts(dir, &(mote_options){.device = "cpu", .parts = MOTE_WEIGHTS_ONLY}, ranges, ranks, &m, &failure);
    if (code) CHECK(code == MOTE_EUNSUPPORTED, "%s in %d ranges of %d ranks: %s", dir, ranges, ranks, failure.message);
    return m;
}

static void test_on_cpus(const char *dir) {
    char name[700];
    mote_model *whole = model_on("cpu", dir, MOTE_WEIGHTS_ONLY);
    for (int ranges = 2; ranges <= (test_brief ? 2 : 3); ranges++) {
        mote_model *m = group_of(dir, ranges, 1);
        snprintf(name, sizeof name, "%s in %d ranges", dir, ranges);
        if (m) two_test(whole, m, name);
        mote_close(m);
    }
    for (int ranks = 2; ranks <= 3; ranks++) {
        mote_model *one = group_of(dir, 1, ranks), *two_ranges = one ? group_of(dir, 2, ranks) : NULL;
        snprintf(name, sizeof name, "%s in %d ranks", dir, ranks);
        if (two_ranges) two_test(one, two_ranges, name);
        mote_close(one);
        mote_close(two_ranges);
    }
    mote_close(whole);
}

static void test_on_devices(const char *dir) {
    char name[700];
    const int ranks = !strcmp(test_split, "tensor");
    mote_model *m = model_of(dir, MOTE_WEIGHTS_ONLY), *other = ranks ? model_of(dir, MOTE_WEIGHTS_ONLY) : model_on(test_device, dir, MOTE_WEIGHTS_ONLY);
    snprintf(name, sizeof name, "%s on %s", dir, test_devices);
    two_test(other, m, name);
    mote_close(m);
    mote_close(other);
}

/* A number of a model's mixtures of experts, or how many layers have them, the MTP layer not counted; 0: it has none. */
static int moe_size(const mote_info *info, const char *name) {
    for (int i = 0; i < info->kind_count; i++)
        if (!strcmp(info->kinds[i].name, "moe") && !strcmp(name, "layers")) return info->kinds[i].count;
    for (int i = 0; i < info->kind_count; i++)
        for (int k = 0; k < info->kinds[i].size_count && !strcmp(info->kinds[i].name, "moe"); k++)
            if (!strcmp(info->kinds[i].sizes[k].name, name)) return info->kinds[i].sizes[k].value;
    return 0;
}

/* Experts that were found in slots, and that were not, are as many as must be, and what is read crosses the link. */
static void test_seen(mote_model *m, const char *name, int slots) {
    const mote_info *info = mote_model_info(m);
    mote_session *s = session_of(m, .context = 64, .mtp = MOTE_MTP_OFF);
    mote_experts_seen before, after;
    const int32_t ids[5] = {3, 1, 4, 1, 5};
    const uint64_t reads = (uint64_t)(moe_size(info, "experts_per_token") * moe_size(info, "layers"));
    EXPECT(MOTE_OK, mote_session_experts(s, &before, &failure));
    CHECK(!before.hits && !before.misses && !before.bytes && before.slots == slots, "%s: %d slots, before anything", name, before.slots);
    for (int again = 0; again < 2; again++)
        for (int i = 0; i < 5; i++) {
            EXPECT(MOTE_OK, mote_session_experts(s, &before, &failure));
            EXPECT(MOTE_OK, mote_feed(s, &ids[i], 1, &failure));
            EXPECT(MOTE_OK, mote_session_experts(s, &after, &failure));
            const uint64_t hits = after.hits - before.hits, misses = after.misses - before.misses;
            CHECK(hits + misses == (slots && slots < moe_size(info, "experts") ? reads : 0), "%s: token %d, %llu hits and %llu misses", name, i, (unsigned long long)hits,
                  (unsigned long long)misses);
            CHECK((after.bytes > before.bytes) == (misses > 0), "%s: token %d, %llu bytes", name, i, (unsigned long long)after.bytes);
            if (again || i < 4) continue;
            EXPECT(MOTE_OK, mote_reset(s, &failure));
        }
    mote_session_close(s);
}

/* A prompt of many rows reads each expert of each layer that is in no slot once, and leaves slots as they are. */
static void test_prompt_seen(mote_model *m, const char *name, int slots) {
    const mote_info *info = mote_model_info(m);
    mote_session *s = session_of(m, .context = 128, .mtp = MOTE_MTP_OFF);
    mote_experts_seen seen;
    int32_t ids[100];
    for (int i = 0; i < 100; i++) ids[i] = i * 7 % info->vocab_size;
    EXPECT(MOTE_OK, mote_feed(s, ids, 100, &failure));
    EXPECT(MOTE_OK, mote_session_experts(s, &seen, &failure));
    if (slots == moe_size(info, "experts")) CHECK(!seen.bytes && !seen.hits && !seen.misses, "%s: a prompt reads %llu bytes of what is in slots", name,
                                                  (unsigned long long)seen.bytes);
    else if (!info->prefill_from) CHECK(!seen.slots == !(seen.hits + seen.misses), "%s: steps of a prompt are not counted", name);
    else if (info->expert_layers == moe_size(info, "layers"))
        CHECK(seen.bytes == info->host_bytes && !seen.hits && !seen.misses, "%s: a prompt reads %llu bytes of %llu", name, (unsigned long long)seen.bytes,
              (unsigned long long)info->host_bytes);
    else CHECK(seen.bytes && seen.bytes < info->host_bytes && !seen.hits && !seen.misses, "%s: a prompt reads %llu bytes of %llu", name,
               (unsigned long long)seen.bytes, (unsigned long long)info->host_bytes);
    mote_session_close(s);
}

/* Experts in host memory, with so many slots for them. */
static void test_slots(const char *dir) {
    mote_model *m[2];
    char name[700];
    for (int i = 0; i < 2; i++) {
        const mote_options o = {.size = sizeof o, .parts = MOTE_WEIGHTS_ONLY, .device = test_device,
                                .experts = i ? MOTE_EXPERTS_HOST : MOTE_EXPERTS_DEVICE};
        EXPECT(MOTE_OK, mote_open(dir, &o, &m[i], &failure));
        if (!m[i]) exit(test_main_end() ? 1 : 2);
    }
    const int experts = moe_size(mote_model_info(m[0]), "experts"), top_k = moe_size(mote_model_info(m[0]), "experts_per_token");
    const int slots[] = {top_k, 0, 1, 2 * top_k + 1, experts - 1, experts};
    for (int i = 0; i < (test_brief ? 1 : 6) && experts; i++) {
        if (slots[i] > experts) continue;
        snprintf(name, sizeof name, "%s, %d slots", dir, slots[i]);
        EXPECT(MOTE_OK, mote_limit_expert_slots(m[1], slots[i], &failure));
        test_seen(m[1], name, slots[i]);
        test_prompt_seen(m[1], name, slots[i]);
        two_test(m[0], m[1], name);
    }
    mote_close(m[0]);
    mote_close(m[1]);
}

static void test_folder(const char *dir) {
    if (test_devices) test_on_devices(dir);
    else if (strcmp(test_device, "cpu")) test_slots(dir);
    else test_on_cpus(dir);
}

/* A session of another number of ranks is told so, whether it is one in memory or a saved one. */
static void test_other_ranks(void) {
    mote_model *m[3] = {model_on("cpu", "models/demo", MOTE_WEIGHTS_ONLY), group_of("models/demo", 2, 1), group_of("models/demo", 1, 2)};
    mote_session *s[3];
    mote_checkpoint *c[3];
    char *bytes[3];
    size_t size[3];
    for (int i = 0; i < 3; i++) {
        s[i] = session_of(m[i], .context = 64, .threads = 1);
        EXPECT(MOTE_OK, mote_feed(s[i], (const int32_t[]){1, 2, 3, 4, 5}, 5, &failure));
        bytes[i] = session_bytes(s[i], &size[i]);
        c[i] = checkpoint_of(s[i]);
    }
    for (int i = 0; i < 9; i++) {
        const int to = i / 3, of = i % 3, fits = (to == 2) == (of == 2);
        const char *why = of == 2 ? "is of a model in 2 ranks, this one runs in 1" : "is of a model in 1 rank, this one runs in 2";
        EXPECT(fits ? MOTE_OK : MOTE_EINVAL, mote_load(s[to], bytes[of], size[of], &failure));
        CHECK(fits || strstr(failure.message, why), "a saved session: %s", failure.message);
        EXPECT(fits ? MOTE_OK : MOTE_EINVAL, mote_rewind(s[to], c[of], &failure));
        CHECK(fits || strstr(failure.message, why), "a checkpoint: %s", failure.message);
    }
    for (int i = 0; i < 3; i++) {
        mote_checkpoint_free(c[i]);
        mote_session_close(s[i]);
        mote_close(m[i]);
        free(bytes[i]);
    }
}

int main(int argc, char **argv) {
    static const char *const fixtures[] = {"bf16-as-3.6", "gptq-awq-int4", "f32-tied", "mixed-all-attention", "nvfp4-fp8-tensor", "fp8-ragged"};
    const int more = test_main_begin("test_groups", argc, argv);
    if (!temp_open()) return test_main_end();
    for (int i = more; i < argc; i++) test_folder(argv[i]);
    if (more < argc) return temp_close(), test_main_end();
    const family_folders *families = families_here();
    for (int i = 0; i < families->count; i++) test_folder(families->dir[i]);
    test_folder("models/demo");
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char dir[300];
        snprintf(dir, sizeof dir, "tests/fixtures/%s", fixtures[i]);
        test_folder(dir);
    }
    if (!test_devices) test_other_ranks();
    temp_close();
    return test_main_end();
}
