/* Tests of where routed experts lie, by the API alone: in host memory a model has the bits that it has with all on the GPU, in prompts, steps,
   drafts, passes of several sessions and saved sessions; without enough GPU memory they go there by themselves; what is told of it, and what is
   refused. On the CPU the options say nothing. Usage: test_experts [--device NAME | --devices NAME,NAME... [--split tensor]] [--brief] [DATA [MODEL...]] */

#include "api.h"

#include <stdlib.h>
#include "families.h"

enum { CONTEXT = 320, PROMPT = 70, STEPS = 6, TOGETHER = 8 };

static int is_gpu, notices;
static char notice_line[512];

static void keep_notice(void *user, const char *line) {
    (void)user;
    if (!strstr(line, "pinned host memory")) return;
    notices++;
    snprintf(notice_line, sizeof notice_line, "%s", line);
}

/* A folder's model, or a synthetic one. */
static int open_with(const char *name, mote_options *o, mote_model **m) {
    *m = NULL;
    o->size = sizeof *o;
    o->parts = MOTE_WEIGHTS_ONLY;
    o->callbacks.log = keep_notice;
    if (test_devices) o->devices = test_devices, o->split = strcmp(test_split, "tensor") ? MOTE_SPLIT_PIPELINE : MOTE_SPLIT_TENSOR;
    else o->device = test_device;
    memset(&failure, 0, sizeof failure);
    return strchr(name, '/') ? mote_open(name, o, m, &failure) : mote_open_synthetic(name, o, m, &failure);
}

static void expect_same_logits(const mote_session *a, const mote_session *b, int vocab, const char *name, const char *when) {
    const float *x = mote_logits(a), *y = mote_logits(b);
    int differing = 0;
    for (int i = 0; x && y && i < vocab; i++) differing += memcmp(&x[i], &y[i], sizeof *x) != 0;
    CHECK(x && y && !differing, "%s: %s: %d of %d logits differ", name, when, differing, vocab);
}

static void expect_same_state(const mote_session *a, const mote_session *b, const char *name, const char *when) {
    size_t size;
    char *bytes = session_bytes(a, &size);
    CHECK(session_is(b, bytes, size), "%s: %s: another state", name, when);
    free(bytes);
}

/* The same prompt and steps, drafts among them, on both. */
static void compare_alone(const mote_model *device, const mote_model *host, const char *name, int prompt) {
    const int vocab = mote_model_info(device)->vocab_size;
    mote_session *a = session_of(device, .context = CONTEXT, .mtp = 3), *b = session_of(host, .context = CONTEXT, .mtp = 3);
    mote_sampling greedy = {0};
    int32_t ids[PROMPT], x, y;
    for (int i = 0; i < prompt; i++) ids[i] = (i * i * 7 + i * 3 + prompt) % vocab;
    EXPECT(MOTE_OK, mote_feed(a, ids, (size_t)prompt, &failure));
    EXPECT(MOTE_OK, mote_feed(b, ids, (size_t)prompt, &failure));
    expect_same_logits(a, b, vocab, name, "after a prompt");
    for (int k = 0; k < STEPS; k++) {
        EXPECT(MOTE_OK, mote_step(a, &greedy, &x, &failure));
        EXPECT(MOTE_OK, mote_step(b, &greedy, &y, &failure));
        CHECK(x == y, "%s: step %d: token %d, with experts on the host %d", name, k, x, y);
        expect_same_logits(a, b, vocab, name, "after a step");
    }
    const mote_generation g = {.max_tokens = 3 * STEPS};
    mote_result of_a, of_b;
    EXPECT(MOTE_OK, mote_generate(a, &g, &of_a, &failure));
    EXPECT(MOTE_OK, mote_generate(b, &g, &of_b, &failure));
    expect_same_state(a, b, name, "after an answer with drafts");
    mote_session_close(a);
    mote_session_close(b);
}

/* Sessions of one runner in passes of several. */
static void compare_together(const mote_model *device, const mote_model *host, const char *name) {
    const mote_model *const models[2] = {device, host};
    const int vocab = mote_model_info(device)->vocab_size;
    mote_session *s[2][TOGETHER];
    mote_turn turns[TOGETHER];
    const mote_sampling greedy = {0};
    for (int w = 0; w < 2; w++) {
        mote_runner *r = NULL;
        EXPECT(MOTE_OK, mote_runner_open(models[w], &(mote_session_options){.size = sizeof(mote_session_options), .context = CONTEXT, .sessions = TOGETHER},
                                         &r, &failure));
        memset(turns, 0, sizeof turns);
        for (int i = 0; i < TOGETHER; i++) {
            int32_t ids[TOGETHER + 1];
            for (int t = 0; t <= i; t++) ids[t] = (i * 31 + t * 11 + 5) % vocab;
            s[w][i] = session_of(models[w], .context = CONTEXT, .runner = r, .mtp = i % 3 ? 2 : MOTE_MTP_OFF);
            EXPECT(MOTE_OK, mote_feed(s[w][i], ids, (size_t)i + 1, &failure));
            turns[i].session = s[w][i];
            turns[i].sampling = &greedy;
        }
        for (int k = 0; k < STEPS; k++) EXPECT(MOTE_OK, mote_step_many(turns, TOGETHER, &failure));
        mote_runner_close(r);
    }
    for (int i = 0; i < TOGETHER; i++) {
        expect_same_logits(s[0][i], s[1][i], vocab, name, "in a pass of several");
        expect_same_state(s[0][i], s[1][i], name, "in a pass of several");
        mote_session_close(s[0][i]);
        mote_session_close(s[1][i]);
    }
}

/* What is told of a model whose experts are on the host, beside one that is on the GPU. */
static void compare_told(const mote_model *device, const mote_model *host, const char *name, const mote_options *o) {
    const mote_info *a = mote_model_info(device), *b = mote_model_info(host);
    uint64_t experts = 0;
    mote_memory on_device, on_host;
    mote_options plan = *o;
    for (int i = 0; i < a->module_count; i++) experts += strcmp(a->modules[i].name, "experts") ? 0 : a->modules[i].bytes;
    CHECK(!a->host_bytes && !a->expert_layers && !a->expert_bytes, "%s: experts on the GPU are told as the host's", name);
    CHECK(b->host_bytes >= experts && experts && b->host_bytes < b->weight_bytes * 5 / 4 + (1 << 20), "%s: %llu bytes on the host, experts have %llu", name,
          (unsigned long long)b->host_bytes, (unsigned long long)experts);
    CHECK(b->expert_bytes && b->expert_bytes <= b->host_bytes && (test_devices || b->expert_layers > 0), "%s: %d layers, %llu bytes of one", name,
          b->expert_layers, (unsigned long long)b->expert_bytes);
    CHECK(a->weight_bytes == b->weight_bytes && notices, "%s: weights, %d notices", name, notices);
    if (!strchr(name, '/')) return;
    EXPECT(MOTE_OK, mote_plan(name, &plan, NULL, &on_host, &failure));
    plan.experts = MOTE_EXPERTS_DEVICE;
    EXPECT(MOTE_OK, mote_plan(name, &plan, NULL, &on_device, &failure));
    CHECK(on_device.weights == on_host.weights + b->host_bytes, "%s: plans of %llu and %llu bytes", name, (unsigned long long)on_device.weights,
          (unsigned long long)on_host.weights);
}

/* The same of several GPUs: each has less than its part of the weights needs, however the layers are divided. */
static void test_parts_move(const char *name, const mote_model *device, uint64_t host) {
    uint64_t bytes = 0;
    int moved = 0;
    for (int i = 0; i < mote_model_info(device)->device_count; i++)
        if (mote_model_info(device)->devices[i].weight_bytes > bytes) bytes = mote_model_info(device)->devices[i].weight_bytes;
    for (int tenths = 9; tenths > 2 && !moved; tenths--) {
        mote_options o = {.gpu_memory = bytes * (uint64_t)tenths / 10};
        mote_model *m;
        notices = 0;
        if (open_with(name, &o, &m)) continue;
        moved = mote_model_info(m)->host_bytes != 0;
        CHECK(!moved || (notices && mote_model_info(m)->host_bytes <= host), "%s: %d notices, %llu bytes", name, notices,
              (unsigned long long)mote_model_info(m)->host_bytes);
        mote_close(m);
    }
    CHECK(moved, "%s on %s: experts have not moved", name, test_devices);
}

/* With less memory than the weights need, but enough without experts, they move by themselves. */
static void test_moves(const char *name, uint64_t weights, uint64_t host) {
    mote_options o = {.gpu_memory = weights - 1};
    mote_model *m;
    notices = 0;
    if (!CHECK(!open_with(name, &o, &m), "%s in %llu bytes: %s", name, (unsigned long long)o.gpu_memory, failure.message)) return;
    CHECK(mote_model_info(m)->host_bytes == host && notices && strstr(notice_line, "not all weights fit"), "%s: moved %llu of %llu bytes: %s", name,
          (unsigned long long)mote_model_info(m)->host_bytes, (unsigned long long)host, notice_line);
    mote_close(m);
    o.experts = MOTE_EXPERTS_DEVICE;
    CHECK(open_with(name, &o, &m) == MOTE_ENOMEM && strstr(failure.message, "GB of memory are free"), "%s: on the GPU in less: %s", name, failure.message);
    mote_close(m);
    o.experts = MOTE_EXPERTS_AUTO;
    o.gpu_memory = 1 << 10;
    CHECK(open_with(name, &o, &m) == MOTE_ENOMEM, "%s: in a kilobyte: %s", name, failure.message);
    mote_close(m);
}

static void test_model(const char *name) {
    mote_options o = {.experts = MOTE_EXPERTS_DEVICE};
    mote_model *device, *host;
    const int code = open_with(name, &o, &device);
    if (code == MOTE_EUNSUPPORTED) {
        test_skip(failure.message);
        return;
    }
    if (!CHECK(!code, "%s: %s", name, failure.message)) return;
    const mote_info *info = mote_model_info(device);
    int experts = 0;
    for (int i = 0; i < info->kind_count; i++) experts |= !strcmp(info->kinds[i].name, "moe");
    notices = 0;
    o.experts = MOTE_EXPERTS_HOST;
    if (CHECK(!open_with(name, &o, &host), "%s: %s", name, failure.message)) {
        if (experts && is_gpu) compare_told(device, host, name, &o);
        else CHECK(!mote_model_info(host)->host_bytes && !notices, "%s: has none", name);
        if (experts && is_gpu) {
            compare_alone(device, host, name, 1);
            compare_alone(device, host, name, PROMPT);
            if (!test_devices) compare_together(device, host, name);
        }
        if (experts && is_gpu && test_devices) test_parts_move(name, device, mote_model_info(host)->host_bytes);
        mote_memory plan;
        o.experts = MOTE_EXPERTS_DEVICE;
        const uint64_t bytes = mote_model_info(host)->host_bytes;
        mote_close(host);
        if (experts && is_gpu && !test_devices && strchr(name, '/') && !mote_plan(name, &o, NULL, &plan, &failure)) test_moves(name, plan.weights, bytes);
    }
    mote_close(device);
}

/* ---- What may go wrong ---------------------------------------------------------------------------------------------------- */

static void test_refusals(const char *name) {
    mote_model *m;
    mote_options o = {.experts = MOTE_EXPERTS_HOST + 1};
    CHECK(open_with(name, &o, &m) == MOTE_EINVAL && !m, "experts nowhere: %s", failure.message);
    o.experts = -1;
    CHECK(open_with(name, &o, &m) == MOTE_EINVAL && !m, "experts nowhere: %s", failure.message);
}

static int stop_soon(void *user) {
    int *polls = (int *)user;
    return !--*polls;
}

/* Loading that is cancelled at its n-th question keeps nothing: the next one finds as much memory as before. */
static void test_cancelled(const char *name) {
    mote_options o = {.experts = MOTE_EXPERTS_HOST};
    mote_model *m;
    for (int n = 1; n < (test_brief ? 3 : 12); n++) {
        int polls = n;
        o.callbacks.cancel = stop_soon;
        o.callbacks.user = &polls;
        const int code = open_with(name, &o, &m);
        CHECK(code == MOTE_ECANCELLED || (!code && polls > 0), "%s: cancelled at question %d: %d", name, n, code);
        CHECK(!code == (m != NULL), "%s: half a model", name);
        mote_close(m);
    }
}

/* On the simulated GPU the driver may be told what it can pin. Of which layers it has pinned none, the experts are on the GPU, if they fit there;
   where they do not, it is said what is missing, and nothing of it stays. */
static void test_unpinned(const char *name) {
    mote_options o = {.experts = MOTE_EXPERTS_DEVICE};
    mote_model *device, *host;
    mote_memory before, after;
    if (!CHECK(!open_with(name, &o, &device), "%s: %s", name, failure.message)) return;
    const int simulated = strstr(mote_model_info(device)->device, "simulated GPU") != NULL;
    o.experts = MOTE_EXPERTS_HOST;
    static const char *const limits[] = {"none", "6000000", "0"};
    for (int i = 0; i < 3 && simulated; i++) {
        notices = 0;
        setenv("SIMULATED_PINNED", limits[i], 1);
        if (CHECK(!open_with(name, &o, &host), "%s with %s bytes pinned: %s", name, limits[i], failure.message)) {
            const int layers = mote_model_info(host)->expert_layers;
            CHECK(i == 0 ? layers > 2 : i == 1 ? layers == 2 : !layers, "%s with %s bytes pinned: %d layers", name, limits[i], layers);
            CHECK(notices == (layers > 0) && (i != 1 || strstr(notice_line, "experts of 2 of ")), "%s: %s", name, notice_line);
            compare_alone(device, host, name, PROMPT);
        }
        mote_close(host);
    }
    EXPECT(MOTE_OK, mote_plan(name, &o, NULL, &before, &failure));
    o.gpu_memory = before.weights + 64;
    if (simulated) CHECK(open_with(name, &o, &host) == MOTE_ENOMEM && strstr(failure.message, "could pin no more"), "%s: %s", name, failure.message);
    unsetenv("SIMULATED_PINNED");
    o.gpu_memory = 0;
    EXPECT(MOTE_OK, mote_plan(name, &o, NULL, &after, &failure));
    CHECK(!simulated || before.available == after.available, "%s: %llu bytes free, before %llu", name, (unsigned long long)after.available,
          (unsigned long long)before.available);
    if (!simulated) test_skip("only the simulated GPU has a driver that pins as much as it is told to");
    mote_close(device);
}

/* On the simulated GPU, too, whose memory may be said to be the host's: experts stay where all else is, unless they are asked to be pinned; then
   they are used there. */
static void test_integrated(const char *name) {
    mote_options o = {.experts = MOTE_EXPERTS_AUTO};
    mote_model *device, *host;
    mote_memory on_device, on_host;
    setenv("SIMULATED_INTEGRATED", "1", 1);
    notices = 0;
    const int code = open_with(name, &o, &device);
    if (!CHECK(!code, "%s: %s", name, failure.message)) return;
    const int simulated = strstr(mote_model_info(device)->device, "simulated GPU") != NULL;
    CHECK(!mote_model_info(device)->host_bytes && !mote_model_info(device)->experts_shared && !notices, "%s: experts have moved", name);
    o.experts = MOTE_EXPERTS_HOST;
    if (simulated && CHECK(!open_with(name, &o, &host), "%s: %s", name, failure.message)) {
        const mote_info *info = mote_model_info(host);
        CHECK(info->experts_shared && info->host_bytes && strstr(notice_line, "nothing is copied"), "%s: %d, %s", name, info->experts_shared, notice_line);
        EXPECT(MOTE_OK, mote_plan(name, &o, NULL, &on_host, &failure));
        o.experts = MOTE_EXPERTS_DEVICE;
        EXPECT(MOTE_OK, mote_plan(name, &o, NULL, &on_device, &failure));
        CHECK(on_device.weights == on_host.weights, "%s: plans of %llu and %llu bytes", name, (unsigned long long)on_device.weights,
              (unsigned long long)on_host.weights);
        compare_alone(device, host, name, PROMPT);
        mote_close(host);
    }
    mote_close(device);
    unsetenv("SIMULATED_INTEGRATED");
}

/* Bytes that a prompt of n tokens, from the beginning, brings over the link; `device` makes the same logits of it. */
static uint64_t brought(mote_session *s, mote_session *device, const char *name, int n) {
    mote_experts_seen before, after;
    int32_t ids[CONTEXT];
    for (int i = 0; i < n; i++) ids[i] = (i * i * 5 + i * 11 + n) % 1000;
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    EXPECT(MOTE_OK, mote_reset(device, &failure));
    EXPECT(MOTE_OK, mote_session_experts(s, &before, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)n, &failure));
    EXPECT(MOTE_OK, mote_session_experts(s, &after, &failure));
    EXPECT(MOTE_OK, mote_feed(device, ids, (size_t)n, &failure));
    expect_same_logits(s, device, 1000, name, "after a prompt");
    CHECK(n < PROMPT || (after.hits == before.hits && after.misses == before.misses), "%s: a prompt of %d counts as steps", name, n);
    return after.bytes - before.bytes;
}

/* A prompt copies no expert that is in a slot, one of few rows none that these do not choose, and a model that has slots for all none at all. */
static void test_brought(const char *name, int slots) {
    mote_options o = {.experts = MOTE_EXPERTS_DEVICE};
    mote_model *device, *host;
    mote_experts_seen seen;
    if (!CHECK(!open_with(name, &o, &device), "%s: %s", name, failure.message)) return;
    o.experts = MOTE_EXPERTS_HOST;
    if (!CHECK(!open_with(name, &o, &host), "%s: %s", name, failure.message)) return;
    EXPECT(MOTE_OK, mote_limit_expert_slots(host, slots, &failure));
    mote_session *s = session_of(host, .context = CONTEXT, .mtp = MOTE_MTP_OFF), *t = session_of(device, .context = CONTEXT, .mtp = MOTE_MTP_OFF);
    const uint64_t one = mote_model_info(host)->expert_bytes / (uint64_t)mote_model_info(host)->expert_layers;       /* layers are alike */
    (void)brought(s, t, name, 2);
    EXPECT(MOTE_OK, mote_session_experts(s, &seen, &failure));
    const uint64_t all = slots < 64 ? (2 * 64 - (slots ? seen.misses : 0)) * one : 0;
    const uint64_t few = brought(s, t, name, PROMPT), many = brought(s, t, name, 200), again = brought(s, t, name, PROMPT);
    CHECK(seen.misses == (slots && slots < 64 ? seen.bytes / one : 0), "%s: %llu misses", name, (unsigned long long)seen.misses);
    CHECK(slots < 64 ? few && few < all && again == few && few % one == 0 : !few && !again, "%s, %d slots: few rows bring %llu and %llu bytes",
          name, slots, (unsigned long long)few, (unsigned long long)again);
    CHECK(many == all, "%s, %d slots: many rows bring %llu bytes, not %llu", name, slots, (unsigned long long)many, (unsigned long long)all);
    mote_session_close(s);
    mote_session_close(t);
    mote_close(host);
    mote_close(device);
}

/* The MTP layer's logits of a whole prompt are the device's, and its experts, of which other prompts need none, are not copied for them. */
static void test_mtp_prompt(const char *name) {
    mote_options o = {.experts = MOTE_EXPERTS_DEVICE};
    mote_model *m[2];
    mote_experts_seen seen[3];
    float *mtp[2];
    int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++) ids[i] = i * i * 5 % 251;
    for (int w = 0; w < 2; w++) {
        if (!CHECK(!open_with(name, &o, &m[w]), "%s: %s", name, failure.message)) return;
        o.experts = MOTE_EXPERTS_HOST;
        if (w) EXPECT(MOTE_OK, mote_limit_expert_slots(m[w], 0, &failure));
        mote_session *s = session_of(m[w], .context = CONTEXT, .mtp = 1);
        mtp[w] = (float *)calloc((size_t)(PROMPT - 1) * (size_t)mote_model_info(m[w])->vocab_size, sizeof *mtp[w]);
        for (int with = 0; with < 2; with++) {
            EXPECT(MOTE_OK, mote_reset(s, &failure));
            EXPECT(MOTE_OK, mote_session_experts(s, &seen[with], &failure));
            EXPECT(MOTE_OK, mote_feed_logits(s, ids, PROMPT, NULL, with ? mtp[w] : NULL, &failure));
        }
        EXPECT(MOTE_OK, mote_session_experts(s, &seen[2], &failure));
        const uint64_t plain = seen[1].bytes - seen[0].bytes, logits = seen[2].bytes - seen[1].bytes;
        CHECK((plain != 0) == w && plain == logits, "%s: a prompt brings %llu bytes, with the MTP layer's logits %llu", name,
              (unsigned long long)plain, (unsigned long long)logits);
        mote_session_close(s);
    }
    const size_t bytes = (size_t)(PROMPT - 1) * (size_t)mote_model_info(m[0])->vocab_size * sizeof(float);
    CHECK(mtp[0][0] != 0 && !memcmp(mtp[0], mtp[1], bytes), "%s: other logits of the MTP layer", name);
    for (int w = 0; w < 2; w++) free(mtp[w]), mote_close(m[w]);
}

int main(int argc, char **argv) {
    int i = test_main_begin("test_experts", argc, argv);
    is_gpu = strcmp(test_device, "cpu") != 0;
    const char *const small = "tests/fixtures/fp8-ragged";
    test_refusals(small);
    if (is_gpu && !test_devices) test_cancelled(small);
    if (is_gpu && !test_devices) test_unpinned(small);
    if (is_gpu && !test_devices) test_integrated(small);
    for (int slots = 0; slots <= 64 && is_gpu && !test_devices; slots += slots == 8 ? 56 : 8) test_brought("small-experts:mxfp4", slots);
    if (is_gpu && !test_devices) test_mtp_prompt("tiny-latent:bf16");
    for (int k = i; k < argc; k++) test_model(argv[k]);
    if (i >= argc) {
        static const char *const synthetic[] = {"tiny:bf16", "tiny:fp8", "tiny:nvfp4", "tiny:int4", "tiny-oss:mxfp4"};
        const family_folders *f = families_here();
        test_model(small);
        for (int k = 0; k < f->count; k++) test_model(f->dir[k]);
        for (int k = 0; k < 5; k++) test_model(synthetic[k]);
    }
    return test_main_end();
}
