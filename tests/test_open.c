// Tests of opening models: the choice of a device, memory plans, models of random weights.
// Usage: test_open, from the top of the repository. Where there is a GPU and the library was built for it, what is
// refused without one is skipped.

#include "../engine.cu"
#include "test.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char fixture[] = "tests/fixtures/bf16-as-3.5", demo[] = "models/demo";

// ---- 1. Devices -----------------------------------------------------------------------------------------------------

static int has_gpu(void) {
    mote_model about;
    mote_error err;
    int none;
    memset(&about, 0, sizeof about);
    return !gpu_find(&about, 0, &none, &err);
}

// Opens a folder, or plans for it, or makes a model, on a device; the code and message must be those given.
static void check_refused(const char *device, int code, const char *says) {
    for (int way = 0; way < 4; way++) {
        mote_options o = {0};
        mote_model *m = NULL;
        mote_memory plan;
        mote_error err = {-1, "nothing"};
        o.device = device;
        o.parts = way == 1 ? MOTE_DESCRIPTION : MOTE_EVERYTHING;
        int got = way == 2   ? mote_plan(fixture, &o, NULL, &plan, &err)
                  : way == 3 ? mote_open_synthetic("tiny", &o, &m, &err)
                             : mote_open(fixture, &o, &m, &err);
        CHECK(got == code && err.code == code && !m, "%s: way %d: code %d, not %d", device, way, got, code);
        CHECK(strstr(err.message, says), "%s: way %d: message <%s> lacks <%s>", device, way, err.message, says);
        CHECK((way == 2   ? mote_plan(fixture, &o, NULL, &plan, NULL)
               : way == 3 ? mote_open_synthetic("tiny", &o, &m, NULL)
                          : mote_open(fixture, &o, &m, NULL)) == code,
              "%s: way %d: no place for the error", device, way);
    }
}

static void test_devices(void) {
    static const char *const wrong[] = {"",        "gpu",     "CPU",     "cuda:", "cuda:x",
                                        "cuda:-1", "cuda:0x", "cuda: 1", "cuda0", "cpu:0"};
    for (size_t i = 0; i < COUNT(wrong); i++) check_refused(wrong[i], MOTE_EINVAL, "expected \"cpu\"");
    check_refused("cuda:999", MOTE_EDEVICE, "cuda:999");
    check_refused("cuda:99999999999999999999", MOTE_EDEVICE, "cuda:1000");
    if (has_gpu()) test_skip("there is a GPU: nothing to refuse");
    else {
        check_refused("cuda", MOTE_EDEVICE, "cuda:0: ");
        check_refused("cuda:0", MOTE_EDEVICE, "CUDA");
    }
}

// Every way of opening says what device it is on.
static void test_device_names(void) {
    static const char *const names[] = {NULL, "cpu"};
    for (int parts = MOTE_EVERYTHING; parts <= MOTE_DESCRIPTION; parts++)
        for (size_t i = 0; i < COUNT(names); i++) {
            mote_options o = {0};
            mote_model *m = NULL;
            mote_error err = {0};
            o.parts = parts;
            o.device = names[i];
            if (!CHECK(!mote_open(demo, &o, &m, &err), "parts %d: %s", parts, err.message)) continue;
            const char *device = mote_model_info(m)->device;
            int gpu = !names[i] && has_gpu() && parts != MOTE_TEXT_ONLY;
            CHECK(gpu ? has_prefix(device, "cuda:0 ") : !strcmp(device, "cpu"), "parts %d: device %s", parts, device);
            CHECK(m->gpu == -1 || gpu, "parts %d: GPU %d", parts, m->gpu);
            mote_close(m);
        }
}

// Text needs no device, not even one that is there; but the name must be one.
static void test_text_only(void) {
    mote_options o = {0};
    mote_model *m = NULL;
    mote_error err = {0};
    o.parts = MOTE_TEXT_ONLY;
    o.device = "cuda:7";
    if (CHECK(!mote_open(demo, &o, &m, &err), "%s", err.message)) {
        CHECK(!strcmp(mote_model_info(m)->device, "cpu"), "device %s", mote_model_info(m)->device);
        mote_close(m);
    }
    o.device = "tpu";
    CHECK(mote_open(demo, &o, &m, &err) == MOTE_EINVAL, "tpu: %s", err.message);
}

// ---- 2. Plans -------------------------------------------------------------------------------------------------------

static mote_memory plan_of(int context) {
    mote_options o = {0};
    mote_session_options so = {0};
    mote_memory plan;
    mote_error err = {0};
    memset(&plan, 0, sizeof plan);
    o.device = "cpu";
    so.context = context;
    so.threads = 2;
    CHECK(!mote_plan(fixture, &o, &so, &plan, &err), "context %d: %s", context, err.message);
    return plan;
}

static void test_plan(void) {
    mote_memory plan = plan_of(0);
    mote_options o = {0};
    mote_model *m = NULL;
    mote_error err = {0};
    o.device = "cpu";
    if (!CHECK(!mote_open(fixture, &o, &m, &err), "%s", err.message)) return;
    int most = mote_model_info(m)->context_max;
    CHECK(plan.available && plan.context_fits == most, "%d of %d tokens fit", plan.context_fits, most);
    mote_session_options so = {0};
    mote_session *s = session_shell(m);
    CHECK(!session_options(m, &so, &so, &err) && s, "%s", err.message);
    so.threads = 2;
    for (int context = 1; s && context <= most; context += 1 + context / 3) {
        mote_memory p = plan_of(context);
        uint64_t session = p.total - p.weights;
        int fits = context_that_fits(m, &so, session, s), one_less = context_that_fits(m, &so, session - 1, s);
        CHECK(fits >= context && one_less < context, "context %d: %d fit, with a byte less %d", context, fits, one_less);
    }
    if (s) CHECK(context_that_fits(m, &so, 0, s) == 0, "something fits into nothing");
    mote_session_close(s);
    mote_close(m);
}

// ---- 3. Models of random weights ------------------------------------------------------------------------------------

static mote_model *open_made(const char *name, int parts) {
    mote_options o = {0};
    mote_model *m = NULL;
    mote_error err = {0};
    o.device = "cpu";
    o.parts = parts;
    CHECK(!mote_open_synthetic(name, &o, &m, &err), "%s: %s", name, err.message);
    return m;
}

// Logits of a few tokens, finite and not all alike.
static void feed_made(const mote_model *m, const char *name, float *logits) {
    static const int32_t ids[] = {1, 1000, 5, 77, 5, 1023};
    mote_session_options o = {0};
    mote_session *s = NULL;
    mote_error err = {0};
    size_t vocab = (size_t)m->c.vocab;
    double sum = 0, squares = 0;
    o.context = 64;
    if (!CHECK(!mote_session_open(m, &o, &s, &err), "%s: %s", name, err.message)) return;
    CHECK(!mote_feed_logits(s, ids, COUNT(ids), logits, NULL, &err), "%s: %s", name, err.message);
    for (size_t i = 0; i < COUNT(ids) * vocab; i++) sum += logits[i], squares += (double)logits[i] * logits[i];
    double n = (double)(COUNT(ids) * vocab), deviation = sqrt(squares / n - sum / n * (sum / n));
    CHECK(deviation > 0.1 && deviation < 10, "%s: logits of standard deviation %g", name, deviation);
    CHECK(memcmp(logits, logits + vocab, vocab * sizeof *logits), "%s: the same logits for two tokens", name);
    mote_session_close(s);
}

static void test_made(const char *name) {
    mote_model *a = open_made(name, MOTE_EVERYTHING), *b = open_made(name, MOTE_EVERYTHING);
    if (a && b) {
        size_t n = 6 * (size_t)a->c.vocab;
        float *logits = (float *)calloc(2 * n, sizeof *logits);
        CHECK(a->arena_size == b->arena_size && !memcmp(a->arena, b->arena, a->arena_size), "%s: differs", name);
        CHECK(a->fingerprint == b->fingerprint, "%s: fingerprints", name);
        CHECK(mote_model_info(a)->weight_bytes && mote_model_info(a)->mtp_layers == 1, "%s: info", name);
        if (logits) {
            feed_made(a, name, logits);
            feed_made(b, name, logits + n);
            CHECK(!memcmp(logits, logits + n, n * sizeof *logits), "%s: not the same logits twice", name);
        }
        free(logits);
    }
    mote_close(a);
    mote_close(b);
}

// The spread of what is made up, and codes that are no NaN.
static void test_made_values(void) {
    double bf16 = 0, fp8 = 0;
    int wrong = 0, n = 1 << 16;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        float w = float_of_bf16(made_bf16(7, i)), s = made_scale(9, i);
        uint8_t code = made_fp8(8, i);
        float v = fp8_bits(code) * FP8_UNIT;
        int bell = made_bell(8, i), clipped = bell > 448 ? 448 : bell < -448 ? -448 : bell;
        wrong += (code & 0x7f) == 0x7f || !(fabsf(v - (float)clipped) <= fabsf((float)clipped) / 16);
        wrong += !(s > 0 && s < 128);
        bf16 += (double)w * w;
        fp8 += (double)(v * s) * (v * s);
    }
    CHECK(!wrong, "%d wrong FP8 codes or scales", wrong);
    CHECK(fabs(sqrt(bf16 / n) - 0.02) < 0.002 && fabs(sqrt(fp8 / n) - 0.02) < 0.006, "spread %g in BF16, %g in FP8",
          sqrt(bf16 / n), sqrt(fp8 / n));
}

// The shapes of the published models: sizes that are known, and FP8 where they have it.
static void test_made_shapes(void) {
    mote_model *fp8 = open_made("qwen3.5-35b-a3b", MOTE_DESCRIPTION);
    mote_model *bf16 = open_made("qwen3.5-35b-a3b:bf16", MOTE_DESCRIPTION);
    mote_model *large = open_made("qwen3.5-122b-a10b:fp8", MOTE_DESCRIPTION);
    if (fp8 && bf16 && large) {
        const mote_info *f = mote_model_info(fp8), *h = mote_model_info(bf16), *l = mote_model_info(large);
        CHECK(f->parameters == h->parameters && f->parameters > 34e9 && f->parameters < 37e9, "%g", (double)f->parameters);
        CHECK(l->parameters > 120e9 && l->parameters < 127e9, "%g", (double)l->parameters);
        CHECK(f->active_parameters > 2.9e9 && f->active_parameters < 3.6e9, "%g", (double)f->active_parameters);
        CHECK(h->weight_bytes > 1.9 * (double)f->weight_bytes, "%g, %g", (double)h->weight_bytes, (double)f->weight_bytes);
        for (int i = 0; i < f->module_count; i++) {
            int plain = strstr("embed_tokens lm_head router norms", f->modules[i].name) != NULL;
            const char *dtype = plain ? "BF16" : "BF16+FP8 128x128";
            CHECK(!strcmp(f->modules[i].dtype, dtype), "%s is %s", f->modules[i].name, f->modules[i].dtype);
        }
    }
    mote_close(fp8);
    mote_close(bf16);
    mote_close(large);
    mote_model *largest = open_made("qwen3.5-397b-a17b", MOTE_DESCRIPTION);
    if (largest) CHECK(mote_model_info(largest)->parameters > 390e9 && mote_model_info(largest)->parameters < 405e9, "%g",
                       (double)mote_model_info(largest)->parameters);
    mote_close(largest);
    static const char *const short_ones[] = {"qwen3.5-397b-a17b:4", "qwen3.5-122b-a10b:bf16:4", "qwen3.5-35b-a3b:fp8:4"};
    for (int i = 0; i < 3; i++) {                             // the first layers of the real shapes
        mote_model *m = open_made(short_ones[i], MOTE_DESCRIPTION);
        const mote_info *x = mote_model_info(m);
        if (x) CHECK(x->layers == 4 && x->attention_layers == 1 && x->mtp_layers == 1, "%s: %d layers", short_ones[i], x->layers);
        mote_close(m);
    }
}

static int cancel_now(void *user) {
    ++*(int *)user;
    return 1;
}

static void test_made_refused(void) {
    static const char *const unknown[] = {"",      ":",        ":fp8",     "tin",        "tinyy",
                                          "tiny:", "tiny:fp4", "tiny:FP8", "tiny:bf16:", "gpt-2",
                                          "tiny:0", "tiny:5", "tiny:fp8:0", "tiny:fp8:x", "tiny:fp8:+2", "tiny:fp8: 2",
                                          "tiny:2:fp8", "tiny:bf16:-1", "tiny:bf16:2:", "tiny:99999999999999999999"};
    mote_model *m = NULL;
    mote_options o = {0};
    mote_error err = {0};
    int asked = 0;
    o.device = "cpu";
    for (size_t i = 0; i < COUNT(unknown); i++) {
        CHECK(mote_open_synthetic(unknown[i], &o, &m, &err) == MOTE_EINVAL && !m, "\"%s\" opens", unknown[i]);
        CHECK(strstr(err.message, "tiny") && strstr(err.message, "qwen3.5-35b-a3b") && strstr(err.message, "bf16"),
              "\"%s\": %s", unknown[i], err.message);
    }
    CHECK(mote_open_synthetic(NULL, &o, &m, &err) == MOTE_EINVAL, "no name");
    CHECK(mote_open_synthetic("tiny", &o, NULL, &err) == MOTE_EINVAL, "no place for the model");
    o.callbacks.cancel = cancel_now;
    o.callbacks.user = &asked;
    CHECK(mote_open_synthetic("tiny", &o, &m, &err) == MOTE_ECANCELLED && !m && asked == 1, "%s", err.message);
    o.callbacks.cancel = NULL;
    o.parts = MOTE_TEXT_ONLY;
    CHECK(mote_open_synthetic("tiny", &o, &m, &err) == MOTE_EINVAL && !m, "text of a made-up model");
    o.parts = MOTE_DESCRIPTION;
    mote_session *s = NULL;
    if (CHECK(!mote_open_synthetic("tiny", &o, &m, &err), "%s", err.message)) {
        CHECK(mote_session_open(m, NULL, &s, &err) == MOTE_EUNSUPPORTED && !s, "a session on a description");
        mote_close(m);
    }
}

// ---- 4. Experts at equal distances ----------------------------------------------------------------------------------

static void test_stride(void) {
    static const char *const names[] = {"tiny:fp8", "tiny:bf16"};
    for (size_t i = 0; i < COUNT(names); i++) {
        mote_model *m = open_made(names[i], MOTE_EVERYTHING);
        size_t stride = 0;
        if (!m) continue;
        moe_weights *w = &m->layers[1].moe;
        int E = m->c.experts;
        CHECK(experts_stride(w, E, &stride) && stride, "%s: no stride", names[i]);
        CHECK((const char *)w->down_proj[E - 1].plane[CODES] ==
                  (const char *)w->down_proj[0].plane[CODES] + (size_t)(E - 1) * stride,
              "%s: the last expert is elsewhere", names[i]);
        w->up_proj[E - 2].format = FORMAT_F16;
        CHECK(!experts_stride(w, E, &stride), "%s: two types have a stride", names[i]);
        mote_close(m);
    }
}

int main(int argc, char **argv) {
    test_main_begin("test_open", argc, argv);
    test_devices();
    test_device_names();
    test_text_only();
    test_plan();
    test_made("tiny");
    test_made("tiny:bf16");
    test_made_values();
    test_made_shapes();
    test_made_refused();
    test_stride();
    return test_main_end();
}
