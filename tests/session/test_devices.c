/* Tests of mote_options.devices, split and layers: what is refused, how layers are divided among devices, what lies where, and that a pipeline
   has the bits of one device. On the CPU, several times.

   Usage: test_devices */

#include "inside.h"

#include "api.h"
#include "families.h"
#include "files.h"

static const char several_demo[] = "models/demo", several_fixture[] = "tests/fixtures/bf16-as-3.5";

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

/* Opens a folder, describes it, plans for it, makes a model: all refuse alike. */
static void check_refused(const mote_options *o, int code, const char *says) {
    for (int way = 0; way < 5; way++) {
        mote_options how = *o;
        how.size = sizeof how;
        mote_model *m = NULL;
        mote_memory plan;
        if (way == 1) how.parts = MOTE_DESCRIPTION;
        memset(&failure, 0, sizeof failure);
        const int got = way < 2   ? mote_open(several_demo, &how, &m, &failure)
                        : way == 2 ? mote_plan(several_demo, &how, NULL, &plan, &failure)
                        : way == 3 ? mote_open_synthetic("tiny", &how, &m, &failure)
                                   : mote_plan_synthetic("tiny", &how, NULL, &plan, &failure);
        CHECK(got == code && !m && strstr(failure.message, says), "way %d: %d, expected %d: <%s> lacks <%s>", way, got, code, failure.message, says);
    }
}

static void test_devices_refused(void) {
    static const struct { mote_options o; int code; const char *says; } bad[] = {
        {{.device = "cpu", .devices = "cpu,cpu"}, MOTE_EINVAL, "device \"cpu\" and devices \"cpu,cpu\" exclude each other"},
        {{.split = MOTE_SPLIT_TENSOR}, MOTE_EINVAL, "split is of several devices, and none is named"},
        {{.device = "cpu", .layers = "1,2"}, MOTE_EINVAL, "layers is of several devices, and none is named"},
        {{.devices = "cpu,cpu", .split = 3}, MOTE_EINVAL, "split is 3"},
        {{.devices = "cpu,cpu", .split = -1}, MOTE_EINVAL, "split is -1"},
        {{.devices = "0,1,cuda:0"}, MOTE_EINVAL, "devices \"0,1,cuda:0\": cuda:0 is named twice"},
        {{.devices = ""}, MOTE_EINVAL, "devices \"\", expected 1 to 64 with commas between them"},
        {{.devices = "cpu,"}, MOTE_EINVAL, "devices \"cpu,\""},
        {{.devices = ",cpu"}, MOTE_EINVAL, "devices \",cpu\""},
        {{.devices = "cpu cpu"}, MOTE_EINVAL, "device \"cpu cpu\", expected \"cpu\""},
        {{.devices = "cpu,gpu"}, MOTE_EINVAL, "device \"gpu\", expected \"cpu\""},
        {{.devices = "cpu,1x"}, MOTE_EINVAL, "device \"cuda:1x\", expected \"cpu\""},
        {{.devices = "cpu,cuda:00000000000000000000"}, MOTE_EINVAL, "devices \"cpu,cuda:00000000000000000000\", expected"},
        {{.devices = "cpu,0"}, MOTE_EUNSUPPORTED, "GPUs and CPUs cannot share a model"},
        {{.devices = "1,cpu"}, MOTE_EUNSUPPORTED, "GPUs and CPUs cannot share a model"},
        {{.devices = "cpu,cpu", .layers = ""}, MOTE_EINVAL, "layers \"\", expected 2 numbers"},
        {{.devices = "cpu,cpu", .layers = "2"}, MOTE_EINVAL, "layers \"2\", expected 2 numbers"},
        {{.devices = "cpu,cpu", .layers = "2,2,2"}, MOTE_EINVAL, "layers \"2,2,2\""},
        {{.devices = "cpu,cpu", .layers = "0,4"}, MOTE_EINVAL, "layers \"0,4\""},
        {{.devices = "cpu,cpu", .layers = "2,x"}, MOTE_EINVAL, "layers \"2,x\""},
        {{.devices = "cpu,cpu", .layers = "2,99999999999"}, MOTE_EINVAL, "layers \"2,99999999999\""},
        {{.devices = "cpu,cpu", .layers = "2,2", .split = MOTE_SPLIT_TENSOR}, MOTE_EINVAL, "are of a pipeline"},
        {{.devices = "cpu,cpu", .layers = "4096,4096"}, MOTE_EINVAL, "the layers asked for are 8192 in all, the model has"},
        {{.devices = "cpu,cpu,cpu", .split = MOTE_SPLIT_TENSOR}, MOTE_EUNSUPPORTED, "cannot be divided by 3"},
        {{.devices = "cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu"}, MOTE_EUNSUPPORTED, "layers cannot be divided into 9 ranges"}};
    char many[4 * (DEVICES_MAX + 1)];
    for (size_t i = 0; i < COUNT(bad); i++) check_refused(&bad[i].o, bad[i].code, bad[i].says);
    for (int i = 0; i <= DEVICES_MAX; i++) memcpy(many + 4 * i, i < DEVICES_MAX ? "cpu," : "cpu", 4);
    check_refused(&(mote_options){.devices = many}, MOTE_EINVAL, "expected 1 to 64");
}

/* ---- How layers are divided ---------------------------------------------------------------------------------------------- */

/* What the heaviest of the ranges weighs, or UINT64_MAX where they do not fit. */
static uint64_t heaviest(const layer_cut *c, const int *layers) {
    const mote_model *m = c->m;
    uint64_t most = 0;
    for (int d = 0, at = 0; d < c->ranges; d++) {
        uint64_t weight = d + 1 == c->ranges && m->has_mtp ? m->layer_bytes[m->c.layers] : 0, held = cut_ends(c, d);
        for (const int end = at + layers[d]; at < end; at++) weight += m->layer_bytes[at + 1], held += cut_layer(c, at);
        if (!layers[d] || held > cut_free(c, d)) return UINT64_MAX;
        if (weight > most) most = weight;
    }
    return most;
}

/* The least that it can weigh, by trying all cuts into three. */
static uint64_t least_heaviest(const layer_cut *c) {
    const int count = c->m->c.layers;
    uint64_t least = UINT64_MAX;
    for (int a = 1; a < count - 1; a++)
        for (int b = 1; b < count - a; b++) {
            const int layers[] = {a, b, count - a - b};
            const uint64_t weight = heaviest(c, layers);
            if (weight < least) least = weight;
        }
    return least;
}

static void test_cuts(void) {
    mote_model *m = model_on("cpu", several_demo, MOTE_DESCRIPTION);
    layer_cut c = {.m = m, .ranges = 3};
    int cut = 0, refused = 0;
    for (int turn = 0; turn < 2000; turn++) {
        int layers[DEVICES_MAX] = {0}, sum = 0;
        m->c.tied = turn & 1;
        m->has_mtp = turn >> 1 & 1;
        c.spare = turn >> 2 & 1;
        for (int i = 0; i < m->c.layers + 2; i++) m->layer_bytes[i] = 1 + random_bits() % (turn % 3 ? 1000 : 100000000);
        for (int d = 0; d < 3; d++) c.free[d] = turn % 5 ? random_bits() % (turn % 3 ? 8000 : 900000000) : UINT64_MAX;
        const uint64_t least = least_heaviest(&c);
        int fits = -1;
        EXPECT(MOTE_OK, cut_evenly(&c, layers, &fits, &failure));
        CHECK(fits == (least < UINT64_MAX), "turn %d: %s", turn, fits ? "a cut that does not fit" : "a cut that fits is not found");
        cut += fits;
        refused += !fits;
        if (!fits) continue;
        for (int d = 0; d < 3; d++) sum += layers[d];
        CHECK(sum == m->c.layers && heaviest(&c, layers) == least, "turn %d: %d layers, %llu, not %llu", turn, sum,
              (unsigned long long)heaviest(&c, layers), (unsigned long long)least);
    }
    CHECK(cut > 300 && refused > 300, "%d cuts, %d refused", cut, refused);
    mote_close(m);
}

/* What does not fit is refused with what it needs and what there is. */
static void test_no_space(void) {
    mote_model *m = model_on("cpu", several_demo, MOTE_DESCRIPTION);
    layer_cut c = {.m = m, .ranges = 2, .spare = 1};
    device_list l = {.count = 2, .ranges = 2, .ranks = 1, .name = {"cuda:0", "cuda:1"}};
    for (int i = 0; i < m->c.layers + 2; i++) m->layer_bytes[i] = 10000000000;
    c.free[0] = 40100000000, c.free[1] = 68100000000;
    EXPECT(MOTE_ENOMEM, cut_layers(&c, &l, "model", &failure));
    CHECK(!strcmp(failure.message, "model: in 2 parts the weights need 110.0 GB: cuda:0 has 40.1 GB free, cuda:1 68.1 GB"), "%s", failure.message);
    l.layers[0] = 4, l.layers[1] = 4;
    EXPECT(MOTE_ENOMEM, cut_layers(&c, &l, "model", &failure));
    CHECK(!strcmp(failure.message, "model: with 4 layers cuda:0 needs 50.0 GB for the weights, and has 40.1 GB free"), "%s", failure.message);
    mote_close(m);
}

/* Of layers that were divided by hand among hosts, only this host's must fit here; the last range is. */
static void test_hosts_space(void) {
    mote_model *m = model_on("cpu", several_demo, MOTE_DESCRIPTION);
    device_list l = {.count = 2, .ranges = 2, .ranks = 1, .apart = 1, .name = {"cpu", "cpu"}};
    m->c.tied = m->has_mtp = 0;
    for (int i = 0; i < m->c.layers; i++) m->layer_bytes[i] = (uint64_t)1 << 50;
    m->layer_bytes[m->c.layers] = m->layer_bytes[m->c.layers + 1] = 1000;           /* the last layer, and what comes after it */
    EXPECT(MOTE_ENOMEM, parts_cut(m, &l, "model", 1, &failure));
    l.layers[0] = m->c.layers - 1, l.layers[1] = 1;
    EXPECT(MOTE_OK, parts_cut(m, &l, "model", 1, &failure));
    l.layers[0] = m->c.layers - 2, l.layers[1] = 2;
    EXPECT(MOTE_ENOMEM, parts_cut(m, &l, "model", 1, &failure));
    CHECK(strstr(failure.message, "with 2 layers cpu needs 1125899.9 GB"), "%s", failure.message);
    l.apart = 0;
    l.layers[0] = m->c.layers - 1, l.layers[1] = 1;
    EXPECT(MOTE_ENOMEM, parts_cut(m, &l, "model", 1, &failure));
    mote_close(m);
}

/* ---- What lies where ----------------------------------------------------------------------------------------------------- */

static mote_model *devices_of(const char *dir, const char *devices, int split, const char *layers, int parts) {
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open(dir, &(mote_options){.size = sizeof(mote_options), .parts = parts, .devices = devices, .split = split, .layers = layers}, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

static void test_devices_told(void) {
    static const struct { const char *devices, *layers, *name; int split, count; } cases[] = {
        {"cpu", NULL, "cpu", 0, 1},
        {"cpu,cpu", NULL, "cpu+cpu: 4+4 layers", 0, 2},
        {"cpu,cpu", "1,7", "cpu+cpu: 1+7 layers", MOTE_SPLIT_PIPELINE, 2},
        {"cpu,cpu,cpu", "3,2,3", "cpu+cpu+cpu: 3+2+3 layers", 0, 3},
        {"cpu,cpu", NULL, "cpu+cpu: 8 layers on 2 ranks", MOTE_SPLIT_TENSOR, 2}};
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int parts = MOTE_WEIGHTS_ONLY; parts <= MOTE_DESCRIPTION; parts++) {
            mote_model *m = devices_of(several_demo, cases[i].devices, cases[i].split, cases[i].layers, parts);
            const mote_info *info = mote_model_info(m);
            const int tensor = cases[i].split == MOTE_SPLIT_TENSOR;
            int next = 0;
            CHECK(!strcmp(info->device, cases[i].name) && info->device_count == cases[i].count, "%s: %d of \"%s\"", cases[i].name,
                  info->device_count, info->device);
            for (int d = 0; d < info->device_count; d++) {
                const mote_device *at = &info->devices[d];
                CHECK(!strcmp(at->name, "cpu") && at->weight_bytes > 0, "%s: device %d is %s", cases[i].name, d, at->name);
                CHECK(at->first_layer == (tensor ? 0 : next) && at->rank == (tensor ? d : 0) && at->ranks == (tensor ? 2 : 1), "%s: device %d",
                      cases[i].name, d);
                next = at->first_layer + at->layer_count;
            }
            CHECK(next == info->layers, "%s: %d layers", cases[i].name, next);
            mote_close(m);
        }
}

/* Plans by device add up to the plan of all; of a pipeline, states are those of one device, and weights, but for an embedding. */
static void test_plans(void) {
    static const char *const lists[] = {"cpu", "cpu,cpu", "cpu,cpu,cpu"};
    const mote_session_options how = {.context = 600, .threads = 2};
    mote_memory whole, all, one;
    EXPECT(MOTE_OK, mote_plan(several_demo, &(mote_options){.device = "cpu"}, &how, &whole, &failure));
    for (size_t i = 0; i < COUNT(lists); i++) {
        mote_model *m = devices_of(several_demo, lists[i], 0, NULL, MOTE_DESCRIPTION);
        mote_memory sum = {0};
        EXPECT(MOTE_OK, mote_plan(several_demo, &(mote_options){.size = sizeof(mote_options), .devices = lists[i]}, &how, &all, &failure));
        for (int d = 0; d <= (int)i; d++) {
            EXPECT(MOTE_OK, mote_plan_device(m, d, &how, &one, &failure));
            sum.weights += one.weights, sum.kv += one.kv, sum.state += one.state, sum.scratch += one.scratch, sum.total += one.total;
        }
        CHECK(sum.weights == all.weights && sum.kv == all.kv && sum.state == all.state && sum.scratch == all.scratch && sum.total == all.total,
              "%s: the sums", lists[i]);
        CHECK(all.kv == whole.kv && all.state == whole.state && all.context == 600 && all.sessions > 0 && all.context_fits >= 600, "%s: states",
              lists[i]);
        CHECK(all.weights == whole.weights + (i ? m->layer_bytes[0] : 0), "%s: %llu bytes of weights", lists[i], (unsigned long long)all.weights);
        EXPECT(MOTE_EINVAL, mote_plan_device(m, (int)i + 1, &how, &one, &failure));
        EXPECT(MOTE_EINVAL, mote_plan_device(m, -1, &how, &one, &failure));
        EXPECT(MOTE_EINVAL, mote_plan_device(m, 0, &(mote_session_options){.context = -1}, &one, &failure));
        mote_session *none = NULL;
        EXPECT(MOTE_EUNSUPPORTED, mote_session_open(m, &how, &none, &failure));
        mote_close(m);
    }
    mote_model *loaded = devices_of(several_demo, "cpu,cpu", 0, NULL, MOTE_WEIGHTS_ONLY);
    EXPECT(MOTE_EINVAL, mote_plan_device(loaded, 0, &how, &one, &failure));
    mote_close(loaded);
}

/* The last range of a tied model has the embedding as its head; a head that becomes FP8 is a copy, and leaves it to the first range. */
static void test_tied_plans(void) {
    const char *const tied = "tests/fixtures/families/qwen3";
    for (int quantize = MOTE_QUANTIZE_OFF; quantize <= MOTE_QUANTIZE_HEAD_FP8; quantize += MOTE_QUANTIZE_HEAD_FP8 - MOTE_QUANTIZE_OFF)
        for (int parts = MOTE_WEIGHTS_ONLY; parts <= MOTE_DESCRIPTION; parts++) {
            mote_model *one = NULL, *two = NULL;
            EXPECT(MOTE_OK, mote_open(tied, &(mote_options){.size = sizeof(mote_options), .device = "cpu", .parts = parts, .quantize = quantize}, &one, &failure));
            EXPECT(MOTE_OK, mote_open(tied, &(mote_options){.size = sizeof(mote_options), .devices = "cpu,cpu", .parts = parts, .quantize = quantize}, &two, &failure));
            if (!one || !two) return;
            const mote_info *info = mote_model_info(two);
            const uint64_t again = info->devices[0].weight_bytes + info->devices[1].weight_bytes - mote_model_info(one)->weight_bytes;
            CHECK(again == (quantize ? 0 : (uint64_t)info->vocab_size * (uint64_t)info->hidden_size * 2), "--quantize %d: %llu bytes on both devices", quantize,
                  (unsigned long long)again);
            mote_close(one);
            mote_close(two);
        }
}

/* Bytes that the process has asked files for. */
static uint64_t bytes_read(void) {
    unsigned long long n = 0;
    char line[128];
    FILE *f = fopen("/proc/self/io", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "rchar: %llu", &n) == 1) break;
    if (f) fclose(f);
    return n;
}

static uint64_t bytes_to_open(const char *dir, const char *devices, int split, int parts) {
    const uint64_t before = bytes_read();
    mote_close(devices_of(dir, devices, split, NULL, parts));
    return bytes_read() - before;
}

/* Parts of a pipeline read what the model reads, once, and an embedding twice; with ranks no more than each reads it all. */
static void test_reads(const char *dir) {
    enum { SLACK = 4096 };                                  /* of /proc/meminfo and the like */
    const uint64_t headers = bytes_to_open(dir, "cpu", 0, MOTE_DESCRIPTION), weights = bytes_to_open(dir, "cpu", 0, MOTE_WEIGHTS_ONLY) - headers;
    mote_model *m = model_on("cpu", dir, MOTE_DESCRIPTION);
    const uint64_t again = m->c.tied || m->has_mtp ? m->layer_bytes[0] : 0;
    mote_close(m);
    if (!bytes_read()) {
        test_skip("no /proc/self/io: what parts read");
        return;
    }
    const uint64_t headers_of_parts = bytes_to_open(dir, "cpu,cpu", 0, MOTE_DESCRIPTION);
    const uint64_t parts = bytes_to_open(dir, "cpu,cpu", 0, MOTE_WEIGHTS_ONLY) - headers_of_parts;
    CHECK(parts <= weights + again + SLACK && parts + SLACK >= weights + again, "%s: parts read %llu, the whole model %llu, and an embedding of %llu", dir,
          (unsigned long long)parts, (unsigned long long)weights, (unsigned long long)again);
}

/* Each of two ranks reads its rows, and all of what is divided by columns or not at all. */
static void test_rank_reads(const char *dir) {
    const uint64_t headers = bytes_to_open(dir, "cpu", 0, MOTE_DESCRIPTION), weights = bytes_to_open(dir, "cpu", 0, MOTE_WEIGHTS_ONLY) - headers;
    if (!bytes_read()) return;             /* test_reads has said so */
    const uint64_t parts = bytes_to_open(dir, "cpu,cpu", MOTE_SPLIT_TENSOR, MOTE_WEIGHTS_ONLY) - bytes_to_open(dir, "cpu,cpu", MOTE_SPLIT_TENSOR, MOTE_DESCRIPTION);
    CHECK(parts >= weights && parts <= weights + weights / 2, "%s: two ranks read %llu, the whole model %llu", dir, (unsigned long long)parts,
          (unsigned long long)weights);
}

/* ---- Bits ---------------------------------------------------------------------------------------------------------------- */

typedef struct spoken { int32_t id[16]; int count; } spoken;

static int hear_answer(void *user, int32_t id) {
    spoken *s = (spoken *)user;
    if (s->count < 16) s->id[s->count++] = id;
    return 0;
}

static spoken answer_in_devices(mote_session *s) {
    const mote_sampling greedy = {0};
    spoken to = {{0}, 0};
    const mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = 12, .on_token = hear_answer, .user = &to};
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    return to;
}

/* Logits, an answer with drafts, the session's bytes; those of one device are loaded on several and the other way round. */
static void test_bits(const mote_model *one, const mote_model *several, const char *what) {
    enum { TOKENS = 24 };
    const mote_model *m[2] = {one, several};
    const size_t vocab = (size_t)mote_model_info(one)->vocab_size;
    float *logits[2];
    mote_session *s[2];
    char *bytes[2];
    size_t size[2];
    spoken answer[2], after[2];
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)(random_bits() % (uint32_t)vocab);
    for (int i = 0; i < 2; i++) {
        s[i] = session_of(m[i], .context = 64, .threads = 2, .chunk = 7, .mtp = 2);
        logits[i] = (float *)allocate(TOKENS * vocab * sizeof(float));
        EXPECT(MOTE_OK, mote_feed_logits(s[i], ids, TOKENS, logits[i], NULL, &failure));
        answer[i] = answer_in_devices(s[i]);
        bytes[i] = session_bytes(s[i], &size[i]);
    }
    CHECK(!memcmp(logits[0], logits[1], TOKENS * vocab * sizeof(float)), "%s: logits", what);
    CHECK(answer[0].count && !memcmp(&answer[0], &answer[1], sizeof *answer), "%s: an answer", what);
    CHECK(size[0] == size[1] && !memcmp(bytes[0], bytes[1], size[0]), "%s: a saved session", what);
    for (int i = 0; i < 2; i++) {
        EXPECT(MOTE_OK, mote_reset(s[i], &failure));
        EXPECT(MOTE_OK, mote_load(s[i], bytes[!i], size[!i], &failure));
        after[i] = answer_in_devices(s[i]);
    }
    CHECK(!memcmp(&after[0], &after[1], sizeof *after), "%s: an answer after loading the other's session", what);
    for (int i = 0; i < 2; i++) {
        mote_session_close(s[i]);
        free(logits[i]);
        free(bytes[i]);
    }
}

static void test_folder_on_several(const char *dir) {
    mote_model *one = model_on("cpu", dir, MOTE_EVERYTHING);
    char what[600];
    for (int count = 2; count <= 3 && count <= mote_model_info(one)->layers; count++) {
        mote_model *several = devices_of(dir, count == 2 ? "cpu,cpu" : "cpu,cpu,cpu", 0, NULL, MOTE_EVERYTHING);
        snprintf(what, sizeof what, "%s on %d devices", dir, count);
        test_bits(one, several, what);
        mote_close(several);
    }
    mote_close(one);
}

static void test_synthetic_on_several(const char *name) {
    mote_model *one = NULL, *several = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &(mote_options){.device = "cpu"}, &one, &failure));
    EXPECT(MOTE_OK, mote_open_synthetic(name, &(mote_options){.size = sizeof(mote_options), .devices = "cpu,cpu,cpu"}, &several, &failure));
    if (one && several) test_bits(one, several, name);
    mote_close(one);
    mote_close(several);
}

/* Ranks of a synthetic model have the whole one's rows of the vocabulary. */
static void test_synthetic_ranks(const char *name) {
    mote_model *one = NULL, *several = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &(mote_options){.device = "cpu"}, &one, &failure));
    EXPECT(MOTE_OK, mote_open_synthetic(name, &(mote_options){.size = sizeof(mote_options), .devices = "cpu,cpu", .split = MOTE_SPLIT_TENSOR}, &several,
                                        &failure));
    for (int rank = 0; rank < 2 && one && several; rank++) {
        const matrix *embed = &several->members[rank]->embed_tokens, *head = &several->members[rank]->lm_head;
        const size_t share = 2 * (size_t)embed->rows * (size_t)embed->cols, at = (size_t)rank * share;
        CHECK(!memcmp(embed->component[CODES], (const char *)one->embed_tokens.component[CODES] + at, share), "%s: the embedding of rank %d", name, rank);
        CHECK(!memcmp(head->component[CODES], (const char *)one->lm_head.component[CODES] + at, share), "%s: the head of rank %d", name, rank);
    }
    mote_close(one);
    mote_close(several);
}

/* ---- While it is opened -------------------------------------------------------------------------------------------------- */

typedef struct watcher { double last; int backward, reports, cancel_at, lines; } watcher;

static void watch_progress(void *user, const char *what, double fraction) {
    watcher *w = (watcher *)user;
    (void)what;
    w->backward |= fraction < w->last || fraction > 1;
    w->last = fraction;
    w->reports++;
}

static int watch_cancel(void *user) {
    watcher *w = (watcher *)user;
    return w->cancel_at >= 0 && w->cancel_at-- == 0;
}

static void watch_log(void *user, const char *line) {
    (void)line;
    ((watcher *)user)->lines++;
}

static void test_devices_callbacks(void) {
    for (int cancel_at = -1; cancel_at < 4; cancel_at++) {
        watcher w = {.cancel_at = cancel_at};
        mote_options o = {.size = sizeof o, .devices = "cpu,cpu,cpu", .callbacks = {.progress = watch_progress, .cancel = watch_cancel, .log = watch_log, .user = &w}};
        mote_model *m = NULL;
        EXPECT_EITHER(cancel_at < 0 ? MOTE_OK : MOTE_ECANCELLED, cancel_at > 0 ? MOTE_OK : cancel_at < 0 ? MOTE_OK : MOTE_ECANCELLED,
                      mote_open(several_fixture, &o, &m, &failure));
        CHECK(!w.backward && (cancel_at >= 0 || (w.last == 1 && w.reports > 0)), "progress: %d reports, the last %g", w.reports, w.last);
        mote_close(m);
    }
}

int main(int argc, char **argv) {
    test_main_begin("test_devices", argc, argv);
    test_devices_refused();
    test_cuts();
    test_no_space();
    test_hosts_space();
    test_devices_told();
    test_plans();
    test_tied_plans();
    test_reads(several_demo);
    test_rank_reads(several_demo);
    test_reads("tests/fixtures/f32-tied");
    test_reads("tests/fixtures/gptq-awq-int4");
    test_devices_callbacks();
    test_folder_on_several(several_demo);
    test_folder_on_several(several_fixture);
    const family_folders *families = families_here();
    for (int i = 0; i < families->count; i += test_brief ? 3 : 1) test_folder_on_several(families->dir[i]);
    test_synthetic_ranks("tiny:fp8");
    test_synthetic_ranks("tiny-plain:bf16");
    test_synthetic_on_several("tiny:fp8");
    test_synthetic_on_several("tiny:nvfp4");
    if (!test_brief) test_synthetic_on_several("tiny-oss");
    return test_main_end();
}
