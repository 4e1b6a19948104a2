// Tests of opening models: the choice of a device, memory plans, models of random weights.
// Usage: test_open, from the top of the repository. Where there is a GPU and the library was built for it, what is
// refused without one is skipped.
//
// Contents   1. Devices      2. Plans      3. Models of random weights      4. Folders without weights, or without files

#include "api.h"
#include "files.h"

#include <sys/stat.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char fixture[] = "tests/fixtures/bf16-as-3.5", demo[] = "models/demo";

// ---- 1. Devices -----------------------------------------------------------------------------------------------------

static int has_gpu(void) {
    mote_options o = {.parts = MOTE_DESCRIPTION, .device = "cuda"};
    mote_model *m = NULL;
    int code = mote_open(demo, &o, &m, NULL);
    mote_close(m);
    return code != MOTE_EDEVICE;
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

static void test_device_refusals(void) {
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
            CHECK(gpu ? !strncmp(device, "cuda:0 ", 7) : !strcmp(device, "cpu"), "parts %d: device %s", parts, device);
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

// All of a small model fits, for each context it can have; a longer one needs no less, one by 64 tokens more.
static void test_plan(void) {
    mote_options o = {.device = "cpu"};
    mote_model *m = model_on("cpu", fixture, MOTE_WEIGHTS_ONLY);
    int most = mote_model_info(m)->context_max;
    mote_memory last = {0}, plan;
    for (int context = 1; context <= most; context += 1 + context / 3) {
        mote_session_options so = {.context = context, .threads = 2};
        EXPECT(MOTE_OK, mote_plan(fixture, &o, &so, &plan, &failure));
        CHECK(plan.available && plan.context_fits == most, "context %d: %d of %d tokens fit", context, plan.context_fits, most);
        CHECK(plan.context == context && plan.total >= last.total + (context >= last.context + 64), "context %d: %llu bytes", context,
              (unsigned long long)plan.total);
        last = plan;
    }
    mote_close(m);
}

// ---- 3. Models of random weights ------------------------------------------------------------------------------------

static mote_model *open_synthetic(const char *name, int parts) {
    mote_options o = {0};
    mote_model *m = NULL;
    mote_error err = {0};
    o.device = "cpu";
    o.parts = parts;
    CHECK(!mote_open_synthetic(name, &o, &m, &err), "%s: %s", name, err.message);
    return m;
}

// Logits of a few tokens, finite and not all alike.
static void feed_synthetic(const mote_model *m, const char *name, float *logits) {
    static const int32_t ids[] = {1, 1000, 5, 77, 5, 1023};
    mote_session_options o = {0};
    mote_session *s = NULL;
    mote_error err = {0};
    size_t vocab = (size_t)mote_model_info(m)->vocab_size;
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

static void test_synthetic(const char *name) {
    mote_model *a = open_synthetic(name, MOTE_EVERYTHING), *b = open_synthetic(name, MOTE_EVERYTHING);
    if (a && b) {
        size_t n = 6 * (size_t)mote_model_info(a)->vocab_size, size;
        float *logits = (float *)allocate(2 * n * sizeof *logits);
        mote_session *s = session_of(a, .context = 8), *t = session_of(b, .context = 8);
        char *bytes = session_bytes(s, &size);
        EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));            // refused if it were another checkpoint
        CHECK(mote_model_info(a)->weight_bytes && mote_model_info(a)->mtp_layers == 1, "%s: info", name);
        feed_synthetic(a, name, logits);
        feed_synthetic(b, name, logits + n);
        CHECK(!memcmp(logits, logits + n, n * sizeof *logits), "%s: not the same logits twice", name);
        free(logits);
        free(bytes);
        mote_session_close(s);
        mote_session_close(t);
    }
    mote_close(a);
    mote_close(b);
}

// The shapes of the published models: sizes that are known, and FP8 where they have it.
static void test_synthetic_shapes(void) {
    mote_model *fp8 = open_synthetic("qwen3.5-35b-a3b", MOTE_DESCRIPTION);
    mote_model *bf16 = open_synthetic("qwen3.5-35b-a3b:bf16", MOTE_DESCRIPTION);
    mote_model *large = open_synthetic("qwen3.5-122b-a10b:fp8", MOTE_DESCRIPTION);
    if (fp8 && bf16 && large) {
        const mote_info *f = mote_model_info(fp8), *h = mote_model_info(bf16), *l = mote_model_info(large);
        CHECK(f->parameters == h->parameters && f->parameters > 34e9 && f->parameters < 37e9, "%g", (double)f->parameters);
        CHECK(l->parameters > 120e9 && l->parameters < 127e9, "%g", (double)l->parameters);
        CHECK(f->active_parameters > 2.9e9 && f->active_parameters < 3.6e9, "%g", (double)f->active_parameters);
        CHECK(h->weight_bytes > 1.9 * (double)f->weight_bytes, "%g, %g", (double)h->weight_bytes, (double)f->weight_bytes);
        for (int i = 0; i < f->module_count; i++) {
            int plain = strstr("embed_tokens lm_head router norms", f->modules[i].name) != NULL;
            int experts = strstr("experts shared_expert", f->modules[i].name) != NULL;
            const char *dtype = plain ? "BF16" : experts ? "FP8 128x128" : "BF16+FP8 128x128";
            CHECK(!strcmp(f->modules[i].dtype, dtype), "%s is %s", f->modules[i].name, f->modules[i].dtype);
        }
    }
    mote_close(fp8);
    mote_close(bf16);
    mote_close(large);
    mote_model *largest = open_synthetic("qwen3.5-397b-a17b", MOTE_DESCRIPTION);
    if (largest) CHECK(mote_model_info(largest)->parameters > 390e9 && mote_model_info(largest)->parameters < 405e9, "%g",
                       (double)mote_model_info(largest)->parameters);
    mote_close(largest);
    static const struct { const char *name; double low, high; int kinds, mtp; } dense[] = {
        {"qwen3.5-27b", 26.5e9, 28e9, 3, 1}, {"qwen3.5-9b", 8.8e9, 9.6e9, 3, 1}, {"qwen3.5-4b", 4.1e9, 4.7e9, 3, 1},
        {"qwen3.5-2b", 1.8e9, 2.1e9, 3, 1},  {"qwen3.5-0.8b", 0.7e9, 0.85e9, 3, 1}, {"qwen3-8b", 8.1e9, 8.3e9, 2, 0},
        {"qwen3-0.6b", 0.58e9, 0.62e9, 2, 0}, {"qwen3-30b-a3b", 30.3e9, 30.7e9, 2, 0}};
    for (size_t i = 0; i < COUNT(dense); i++) {
        mote_model *m = open_synthetic(dense[i].name, MOTE_DESCRIPTION);
        const mote_info *x = mote_model_info(m);
        if (x) CHECK((double)x->parameters > dense[i].low && (double)x->parameters < dense[i].high && x->kind_count == dense[i].kinds &&
                     x->mtp_layers == dense[i].mtp, "%s: %g parameters, %d kinds", dense[i].name, (double)x->parameters, x->kind_count);
        mote_close(m);
    }
    static const char *const short_ones[] = {"qwen3.5-397b-a17b:4", "qwen3.5-122b-a10b:bf16:4", "qwen3.5-35b-a3b:fp8:4"};
    for (int i = 0; i < 3; i++) {                             // the first layers of the real shapes
        mote_model *m = open_synthetic(short_ones[i], MOTE_DESCRIPTION);
        const mote_info *x = mote_model_info(m);
        if (x) CHECK(x->layers == 4 && x->kind_count == 3 && x->mtp_layers == 1, "%s: %d layers", short_ones[i], x->layers);
        mote_close(m);
    }
}

static int cancel_now(void *user) {
    ++*(int *)user;
    return 1;
}

static void test_synthetic_refused(void) {
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
        const int named = !strncmp(unknown[i], "tiny:", 5);
        CHECK(mote_open_synthetic(unknown[i], &o, &m, &err) == MOTE_EINVAL && !m, "\"%s\" opens", unknown[i]);
        CHECK(named ? strstr(err.message, ":bf16") && strstr(err.message, "first N layers") :
                      strstr(err.message, "qwen3.5-35b-a3b") && strstr(err.message, " tiny,") && strstr(err.message, "tiny-latent"),
              "\"%s\": %s", unknown[i], err.message);
    }
    CHECK(mote_open_synthetic(NULL, &o, &m, &err) == MOTE_EINVAL, "no name");
    CHECK(mote_open_synthetic("tiny", &o, NULL, &err) == MOTE_EINVAL, "no place for the model");
    o.callbacks.cancel = cancel_now;
    o.callbacks.user = &asked;
    CHECK(mote_open_synthetic("tiny", &o, &m, &err) == MOTE_ECANCELLED && !m && asked == 1, "%s", err.message);
    o.callbacks.cancel = NULL;
    o.parts = MOTE_TEXT_ONLY;
    CHECK(mote_open_synthetic("tiny", &o, &m, &err) == MOTE_EINVAL && !m, "text of a synthetic model");
    o.parts = MOTE_DESCRIPTION;
    mote_session *s = NULL;
    if (CHECK(!mote_open_synthetic("tiny", &o, &m, &err), "%s", err.message)) {
        CHECK(mote_session_open(m, NULL, &s, &err) == MOTE_EUNSUPPORTED && !s, "a session on a description");
        mote_close(m);
    }
}

// ---- 4. Folders without weights -------------------------------------------------------------------------------------

static void only_header(const char *name, char **bytes, size_t *size, const void *how) {
    uint64_t header = 0;
    if (*size < 8 || !strstr(name, ".safetensors") || strstr(name, ".json")) return;
    memcpy(&header, *bytes, 8);
    *size = (size_t)header + 8 + *(const size_t *)how;
}

static int same_sizes(const mote_info *a, const mote_info *b, int and_dtypes) {
    int same = a->parameters == b->parameters && a->active_parameters == b->active_parameters && a->weight_bytes == b->weight_bytes &&
               a->weight_bytes_per_token == b->weight_bytes_per_token && a->mtp_layers == b->mtp_layers &&
               a->kv_bytes_per_token == b->kv_bytes_per_token && a->state_bytes == b->state_bytes && a->module_count == b->module_count;
    for (int i = 0; same && and_dtypes && i < a->module_count; i++) same = !strcmp(a->modules[i].dtype, b->modules[i].dtype);
    return same;
}

// Headers say as much as the whole files, config.json alone says it of a checkpoint like those published; only to describe and to
// plan for.
static void test_estimates(const char *dir, int config_only) {
    mote_options o = {.parts = MOTE_DESCRIPTION};
    mote_model *whole = NULL, *m = NULL;
    mote_memory want, plan;
    const size_t nothing = 0, some = 5;
    EXPECT(MOTE_OK, mote_open(dir, &o, &whole, &failure));
    EXPECT(MOTE_OK, mote_plan(dir, NULL, NULL, &want, &failure));
    CHECK(!mote_model_info(whole)->estimated && !want.estimated, "%s is estimated", dir);
    temp_copy_of(dir, only_header, &nothing);
    for (int way = 0; way < 1 + config_only; way++) {
        if (way) temp_empty();
        if (way) {
            size_t n;
            char path[256], *config;
            snprintf(path, sizeof path, "%s/config.json", dir);
            config = file_bytes(path, &n);
            temp_write("config.json", config, n);
            free(config);
        }
        EXPECT(MOTE_OK, mote_open(temp_dir, &o, &m, &failure));
        CHECK(m && same_sizes(mote_model_info(m), mote_model_info(whole), !way) && mote_model_info(m)->estimated, "%s, way %d: other sizes", dir, way);
        mote_close(m);
        m = NULL;
        EXPECT(MOTE_OK, mote_plan(temp_dir, NULL, NULL, &plan, &failure));
        CHECK(plan.weights == want.weights && plan.total == want.total && plan.estimated, "%s, way %d: another plan", dir, way);
        EXPECT_EITHER(MOTE_EFORMAT, MOTE_EIO, mote_open(temp_dir, NULL, &m, &failure));
    }
    temp_copy_of(dir, only_header, &some);                  // truncated data is no header alone
    EXPECT(MOTE_EFORMAT, mote_open(temp_dir, &o, &m, &failure));
    temp_empty();
    EXPECT(MOTE_EIO, mote_open(temp_dir, &o, &m, &failure));
    mote_close(whole);
}

static void test_estimated_formats(void) {
    static const struct { const char *quantisation, *dtype; int code, quantize; } cases[] = {
        {"\"quantization_config\": {\"quant_method\": \"fp8\"},", "FP8 128x128", MOTE_OK, 0}, {"", "BF16", MOTE_OK, 0},
        {"", "BF16 as FP8 128x128", MOTE_OK, MOTE_QUANTIZE_FP8},
        {"\"dtype\": \"float32\", ", "F32", MOTE_OK, 0}, {"\"torch_dtype\": \"float16\", ", "F16", MOTE_OK, 0},
        {"\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"},", "FP8 per channel", MOTE_OK, 0},
        {"\"quantization_config\": {\"quant_method\": \"fbgemm_fp8\"},", "FP8 per channel", MOTE_OK, 0},
        {"\"quantization_config\": {\"quant_method\": \"secret\"},", "", MOTE_EUNSUPPORTED, 0}};
    size_t n;
    char *config = file_bytes("tests/fixtures/bf16-as-3.5/config.json", &n), text[8192];
    char *dtype = strstr(config, "\"dtype\"");
    if (dtype) memcpy(dtype + 1, "n_ctx", 5);               // a key of no effect
    for (size_t i = 0; i < COUNT(cases); i++) {
        mote_options o = {.parts = MOTE_DESCRIPTION, .quantize = cases[i].quantize};
        mote_model *m = NULL;
        const char *experts = "";
        snprintf(text, sizeof text, "{%s%s", cases[i].quantisation, strchr(config, '{') + 1);
        temp_empty();
        temp_write("config.json", text, strlen(text));
        EXPECT(cases[i].code, mote_open(temp_dir, &o, &m, &failure));
        const mote_info *info = mote_model_info(m);
        for (int k = 0; m && k < info->module_count; k++)
            if (!strcmp(info->modules[k].name, "experts")) experts = info->modules[k].dtype;
        CHECK(strstr(experts, cases[i].dtype), "case %zu: experts in %s", i, experts);
        mote_close(m);
    }
    free(config);
}

// modelopt's lists say whether attention is quantised; of older checkpoints only hf_quant_config.json does.
static void test_estimated_modelopt(void) {
    static const struct { const char *quantisation, *attention, *experts; int code; } cases[] = {
        {"{\"quantization\": {\"quant_algo\": \"NVFP4\", \"exclude_modules\": [\"lm_head\", \"model.layers.0.self_attn*\"]}}", "", "NVFP4", MOTE_OK},
        {"{\"quantization\": {\"quant_algo\": \"NVFP4\", \"exclude_modules\": [\"lm_head\", 5]}}", "FP8 per tensor", "NVFP4", MOTE_OK},
        {"{\"quantization\": [1]}", "", "BF16", MOTE_OK}, {"{\"quantization\": ", "", "", MOTE_EFORMAT}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        mote_options o = {.parts = MOTE_DESCRIPTION};
        mote_model *m = NULL;
        temp_empty();
        size_t n;
        char *config = file_bytes("tests/fixtures/families/gpt-oss-bf16/config.json", &n);
        temp_write("config.json", config, n);
        free(config);
        temp_write("hf_quant_config.json", cases[i].quantisation, strlen(cases[i].quantisation));
        EXPECT(cases[i].code, mote_open(temp_dir, &o, &m, &failure));
        const mote_info *info = mote_model_info(m);
        for (int k = 0; m && k < info->module_count; k++) {
            const char *want = !strcmp(info->modules[k].name, "attention") ? cases[i].attention : cases[i].experts;
            if (!strcmp(info->modules[k].name, "attention") || !strcmp(info->modules[k].name, "experts"))
                CHECK(*want ? strstr(info->modules[k].dtype, want) != NULL : !strcmp(info->modules[k].dtype, "BF16"), "case %zu: %s in %s", i, info->modules[k].name, info->modules[k].dtype);
        }
        mote_close(m);
    }
}

// A FIFO in the place of any file of a folder is not waited for, and no device is read.
static void test_no_files(void) {
    static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
                                        "model.safetensors", "model.safetensors.index.json", "model_extra_tensors.safetensors"};
    for (size_t i = 0; i < COUNT(names) * 2; i++) {
        const char *name = names[i / 2];
        mote_options o = {.device = "cpu"};
        mote_model *m = NULL;
        int is_index = strstr(name, "index") != NULL, is_extra = strstr(name, "extra") != NULL, code;
        temp_copy_of(is_extra ? "tests/fixtures/bf16-as-3.5" : demo, NULL, NULL);
        unlink(temp_path(name));
        CHECK(!(i % 2 ? symlink("/dev/zero", temp_path(name)) : mkfifo(temp_path(name), 0600)), "%s", name);
        alarm(60);                                          // ends a test that waits
        code = mote_open(temp_dir, &o, &m, &failure);
        alarm(0);
        if (!strcmp(name, "tokenizer_config.json")) {       // not read beside chat_template.jinja
            CHECK(code == MOTE_OK, "%s: %d", name, code);
        } else {
            CHECK(code == MOTE_EIO && strstr(failure.message, "regular") && strstr(failure.message, is_index ? "index" : name), "%s: %d, %s",
                  name, code, failure.message);
        }
        mote_close(m);
    }
}

int main(int argc, char **argv) {
    test_main_begin("test_open", argc, argv);
    test_device_refusals();
    test_device_names();
    test_text_only();
    test_plan();
    test_synthetic("tiny");
    test_synthetic("tiny:bf16");
    test_synthetic("tiny-dense:nvfp4");
    test_synthetic_shapes();
    test_synthetic_refused();
    if (!temp_open()) return test_main_end();
    test_estimates(demo, 1);
    test_estimates(fixture, 1);
    test_estimates("tests/fixtures/fp8-ragged", 0);
    test_estimated_formats();
    test_estimated_modelopt();
    test_no_files();
    temp_close();
    return test_main_end();
}
