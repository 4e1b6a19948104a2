// Images through the API, from the files themselves: DATA/vision-data, models with a vision tower, pictures and what transformers makes of both.
// Pads and keys, logits, another picture of the same size, what a runner remembers; turns of mote_ask with images, in a folder that has a tokenizer
// and Qwen3.5's template beside the weights: they are what the template renders of the conversation, whatever is asked, dropped or restored.
//
// Usage: test_image_turns [--device NAME] [DATA]

#include "api.h"
#include "files.h"
#include "parrot.h"

#include <limits.h>

enum { TOKENS_MOST = 700, IMAGES_MOST = 4, CONTEXT = 1024 };

// ---- A case of vision-data -------------------------------------------------------------------------------------------

typedef struct vision_case {
    char folder[700];
    mote_model *m;
    int vocab, pad, count, T, short_count;
    mote_image image[IMAGES_MOST], swap;
    int32_t *ids, short_ids[TOKENS_MOST];            // pads as many as tokens; one for each image
    mote_images *images;
} vision_case;

static void *case_file(const vision_case *c, const char *name, size_t *size) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", c->folder, name);
    void *bytes = file_bytes(path, size);
    if (!bytes) exit((CHECK(0, "no %s", path), test_main_end()));
    return bytes;
}

// The text after "KEY" in JSON that has it once.
static const char *after_key(const char *json, const char *key) {
    const char *at = strstr(json, key);
    return at ? at + strlen(key) : "";
}

static mote_image case_image(const vision_case *c, const char *name) {
    mote_image image;
    memset(&image, 0, sizeof image);
    image.data = case_file(c, name, &image.size);
    return image;
}

// Images in the order of meta.json, the swapped one, ids.
static void case_open(vision_case *c, const char *name) {
    size_t size;
    memset(c, 0, sizeof *c);
    snprintf(c->folder, sizeof c->folder, "%s/vision-data/%s", test_data_dir(), name);
    c->m = model_of(c->folder, MOTE_WEIGHTS_ONLY);
    c->vocab = mote_model_info(c->m)->vocab_size;
    char *config = (char *)case_file(c, "config.json", &size), *meta = (char *)case_file(c, "meta.json", &size), file[128];
    c->pad = atoi(after_key(config, "\"image_token_id\":"));
    const char *at = after_key(meta, "\"images\":"), *end = strchr(at, ']');
    for (int n; end && (at = strchr(at, '"')) && at < end; at += n + 2) {
        n = (int)strcspn(at + 1, "\"");
        snprintf(file, sizeof file, "%.*s", n, at + 1);
        c->image[c->count++] = case_image(c, file);
    }
    at = after_key(meta, "\"swap\":");
    at = strchr(at, '"');
    if (at) snprintf(file, sizeof file, "%.*s", (int)strcspn(at + 1, "\""), at + 1);
    c->swap = case_image(c, file);
    c->ids = (int32_t *)case_file(c, "tokens.i32", &size);
    c->T = (int)(size / sizeof *c->ids);
    for (int t = 0; t < c->T; t++)
        if (c->ids[t] != c->pad || !t || c->ids[t - 1] != c->pad) c->short_ids[c->short_count++] = c->ids[t];
    EXPECT(MOTE_OK, mote_images_open(c->m, c->image, c->count, &c->images, &failure));
    if (!c->images) exit(test_main_end());
    free(config), free(meta);
}

static void case_close(vision_case *c) {
    mote_images_close(c->images);
    for (int i = 0; i < c->count; i++) free((void *)(uintptr_t)c->image[i].data);
    free((void *)(uintptr_t)c->swap.data);
    free(c->ids);
    mote_close(c->m);
}

static int is_gpu;

static mote_session *case_session(const mote_model *m) {
    mote_session_options o;
    memset(&o, 0, sizeof o);
    o.context = CONTEXT;
    o.threads = 2;
    return session_with(m, &o);
}

static double farthest(const float *got, const float *want, size_t n) {
    double most = 0, mean = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)got[i] - (double)want[i]));
        mean += (double)want[i] / (double)n;
        square += (double)want[i] * (double)want[i] / (double)n;
    }
    return most / sqrt(square - mean * mean);
}

// ---- Sizes, pads and keys -------------------------------------------------------------------------------------------

static void test_sizes(const vision_case *c) {
    size_t sum = 0;
    int width, height, tokens;
    for (int i = 0; i < c->count; i++) {
        EXPECT(MOTE_OK, mote_image_size(c->m, &c->image[i], &width, &height, &tokens, &failure));
        CHECK(width > 0 && height > 0 && tokens > 0, "%d x %d, %d tokens", width, height, tokens);
        sum += (size_t)tokens;
        mote_image small = c->image[i];
        int fewer = 0;
        small.tokens = tokens - 1;
        if (tokens < 8) continue;                            // a small one has as many as the checkpoint makes of it
        EXPECT(MOTE_OK, mote_image_size(c->m, &small, NULL, NULL, &fewer, &failure));
        CHECK(fewer > 0 && fewer < tokens, "at most %d tokens: %d", tokens - 1, fewer);
    }
    CHECK((int)sum == c->T - c->short_count + c->count, "%zu tokens of images", sum);
    mote_image wrong;
    memset(&wrong, 0, sizeof wrong);
    wrong.data = "RIFF\x20\0\0\0WEBPVP8 ";
    wrong.size = 16;
    EXPECT(MOTE_EUNSUPPORTED, mote_image_size(c->m, &wrong, &width, &height, &tokens, &failure));
    CHECK(strstr(failure.message, "WebP"), "%s", failure.message);
    mote_image two[2] = {c->image[0], wrong};
    mote_images *none = NULL;
    EXPECT(MOTE_EUNSUPPORTED, mote_images_open(c->m, two, 2, &none, &failure));
    CHECK(strstr(failure.message, "image 2: WebP") == failure.message && !none, "%s", failure.message);
    wrong.data = "";
    wrong.size = 11;
    wrong.width = wrong.height = 2;
    EXPECT(MOTE_EINVAL, mote_image_size(c->m, &wrong, &width, &height, &tokens, &failure));
    wrong.height = 0;
    EXPECT(MOTE_EINVAL, mote_image_size(c->m, &wrong, &width, &height, &tokens, &failure));
    EXPECT(MOTE_EINVAL, mote_image_size(c->m, NULL, &width, &height, &tokens, &failure));
    EXPECT(MOTE_EINVAL, mote_images_open(c->m, c->image, -1, &none, &failure));
}

static void test_keys(const vision_case *c) {
    int32_t keys[TOKENS_MOST], again[TOKENS_MOST];
    size_t n = 0, m = 0;
    EXPECT(MOTE_EINVAL, mote_images_place(c->images, c->short_ids, (size_t)c->short_count, NULL, 0, &n, &failure));
    CHECK((int)n == c->T, "%zu ids, expected %d", n, c->T);
    EXPECT(MOTE_OK, mote_images_place(c->images, c->short_ids, (size_t)c->short_count, keys, TOKENS_MOST, &n, &failure));
    EXPECT(MOTE_OK, mote_images_place(c->images, c->ids, (size_t)c->T, again, TOKENS_MOST, &m, &failure));
    CHECK(n == m && !memcmp(keys, again, n * sizeof *keys), "pads that stand for their images' tokens are placed otherwise");
    for (int t = 0; t < c->T; t++) CHECK(c->ids[t] == c->pad ? keys[t] < 0 : keys[t] == c->ids[t], "key %d is %d", t, keys[t]);
    EXPECT(MOTE_OK, mote_images_place(c->images, keys, n, again, TOKENS_MOST, &m, &failure));
    CHECK(n == m && !memcmp(keys, again, n * sizeof *keys), "keys are placed again");
    int32_t more[TOKENS_MOST];
    memcpy(more, c->short_ids, (size_t)c->short_count * sizeof *more);
    more[c->short_count] = 1, more[c->short_count + 1] = c->pad;
    EXPECT(MOTE_EINVAL, mote_images_place(c->images, more, (size_t)c->short_count + 2, again, TOKENS_MOST, &m, &failure));
    CHECK(strstr(failure.message, "places for") && !m, "%s", failure.message);
    memcpy(more, c->ids, (size_t)c->T * sizeof *more);
    int first = 0;
    while (more[first] != c->pad) first++;
    memmove(more + first, more + first + 1, (size_t)(c->T - first - 1) * sizeof *more);
    EXPECT(MOTE_EINVAL, mote_images_place(c->images, more, (size_t)c->T - 1, again, TOKENS_MOST, &m, &failure));
    CHECK(strstr(failure.message, "image 1 takes"), "%s", failure.message);
}

// ---- Logits ---------------------------------------------------------------------------------------------------------

// From the files: of PNG within the reference's bound; a JPEG is decoded otherwise than there.
static void test_logits(const vision_case *c, const char *name, double error, int jpeg) {
    size_t size, greedy_size;
    float *want = (float *)case_file(c, "logits.f32", &size), *got = (float *)allocate(size);
    int32_t *greedy = (int32_t *)case_file(c, "greedy.i32", &greedy_size);
    mote_session *s = case_session(c->m);
    EXPECT(MOTE_OK, mote_feed_images(s, c->short_ids, (size_t)c->short_count, c->images, got, NULL, &failure));
    const size_t n = size / sizeof(float);
    const double by = farthest(got, want, n), rms = off(got, want, n);
    printf("%s: logits from the files are off by %.1e, rms %.1e\n", name, by, rms);
    if (jpeg || is_gpu) CHECK(rms <= 0.05, "%s: logits are off by %g", name, rms);
    else CHECK(by <= 1e-3 + 3 * error, "%s: logits are off by %g", name, by);
    size_t k = 0;
    const int32_t *tokens = mote_tokens(s, &k);
    CHECK((int)k == c->T && !memcmp(tokens, c->ids, k * sizeof *tokens), "%s: mote_tokens has no pads", name);
    int32_t keys[TOKENS_MOST];
    (void)mote_images_place(c->images, c->short_ids, (size_t)c->short_count, keys, TOKENS_MOST, &k, NULL);
    size_t held = 0;
    const int32_t *timeline = mote_timeline(s, &held);
    CHECK(held == k && !memcmp(timeline, keys, k * sizeof *keys), "%s: mote_timeline has other keys", name);
    for (size_t i = 0; i < greedy_size / sizeof *greedy && !jpeg && !is_gpu; i++) {
        int32_t id = -1;
        EXPECT(MOTE_OK, mote_step(s, NULL, &id, &failure));
        CHECK(id == greedy[i], "%s: token %zu is %d, expected %d", name, i, id, greedy[i]);
    }
    mote_session_close(s);
    free(want), free(got), free(greedy);
}

// Of a model in parts one has the tower: a pipeline's logits have the bits of one device, those of ranks are near transformers'.
static void test_divided(const vision_case *c, const char *name, double error) {
    size_t size;
    float *want = (float *)case_file(c, "logits.f32", &size), *alone = (float *)allocate(size), *got = (float *)allocate(size);
    mote_session *s = case_session(c->m);
    EXPECT(MOTE_OK, mote_feed_images(s, c->short_ids, (size_t)c->short_count, c->images, alone, NULL, &failure));
    mote_session_close(s);
    for (int split = MOTE_SPLIT_PIPELINE; split <= MOTE_SPLIT_TENSOR; split++) {
        const mote_options o = {.size = sizeof o, .parts = MOTE_WEIGHTS_ONLY, .devices = "cpu,cpu", .split = split};
        mote_model *m = NULL;
        mote_images *images = NULL;
        EXPECT(MOTE_OK, mote_open(c->folder, &o, &m, &failure));
        CHECK(mote_model_info(m)->images == 1, "%s: in parts it reads no images", name);
        EXPECT(MOTE_OK, mote_images_open(m, c->image, c->count, &images, &failure));
        s = case_session(m);
        EXPECT(MOTE_OK, mote_feed_images(s, c->short_ids, (size_t)c->short_count, images, got, NULL, &failure));
        const double by = farthest(got, want, size / sizeof(float));
        if (split == MOTE_SPLIT_PIPELINE) CHECK(!memcmp(got, alone, size), "%s: a pipeline has other bits", name);
        else CHECK(by <= 1e-3 + 3 * error, "%s: logits of two ranks are off by %g", name, by);
        mote_session_close(s);
        mote_images_close(images);
        mote_close(m);
    }
    free(want), free(alone), free(got);
}

// The last image is another one, of the same size: the same ids. What is read after a checkpoint before it is what is read anew.
static void test_swap(const vision_case *c, const char *name, double error, int jpeg) {
    enum { LAST = 8 };
    size_t size, n = 0, m = 0;
    const size_t vocab = (size_t)c->vocab, T = (size_t)c->T;
    mote_image image[IMAGES_MOST];
    mote_images *swapped = NULL;
    int32_t keys[TOKENS_MOST], other[TOKENS_MOST];
    float *want = (float *)case_file(c, "swap_logits.f32", &size), *got = (float *)allocate(T * vocab * sizeof *got);
    memcpy(image, c->image, sizeof image);
    image[c->count - 1] = c->swap;
    EXPECT(MOTE_OK, mote_images_open(c->m, image, c->count, &swapped, &failure));
    if (!swapped) return;
    EXPECT(MOTE_OK, mote_images_place(c->images, c->short_ids, (size_t)c->short_count, keys, TOKENS_MOST, &n, &failure));
    EXPECT(MOTE_OK, mote_images_place(swapped, c->short_ids, (size_t)c->short_count, other, TOKENS_MOST, &m, &failure));
    size_t same = 0, last = T;
    while (same < n && keys[same] == other[same]) same++;
    while (c->ids[last - 1] != c->pad) last--;
    while (c->ids[last - 1] == c->pad) last--;
    CHECK(n == m && same == last, "%s: with another picture %zu keys are the same, expected %zu", name, same, last);
    mote_session *s = case_session(c->m), *fresh = case_session(c->m);
    EXPECT(MOTE_OK, mote_feed_images(s, keys, same, c->images, NULL, NULL, &failure));
    mote_checkpoint *before = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_feed_images(s, keys + same, n - same, c->images, NULL, NULL, &failure));
    mote_checkpoint *after = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_rewind(s, before, &failure));
    EXPECT(MOTE_OK, mote_feed_images(s, other + same, n - same, swapped, got + same * vocab, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, after, &failure));
    CHECK(strstr(failure.message, "no longer"), "%s", failure.message);
    const double by = farthest(got + (T - LAST) * vocab, want, LAST * vocab), rms = off(got + (T - LAST) * vocab, want, LAST * vocab);
    printf("%s: after another picture logits are off by %.1e, rms %.1e\n", name, by, rms);
    if (jpeg || is_gpu) CHECK(rms <= 0.05, "%s: after another picture logits are off by %g", name, rms);
    else CHECK(by <= 1e-3 + 3 * error, "%s: after another picture logits are off by %g", name, by);
    EXPECT(MOTE_OK, mote_feed_images(fresh, c->ids, T, swapped, NULL, NULL, &failure));
    if (!is_gpu) CHECK(same_logits(fresh, mote_logits(s), c->vocab), "%s: read anew, another timeline", name);
    EXPECT(MOTE_EINVAL, mote_feed_images(fresh, other + same, n - same, c->images, NULL, NULL, &failure));     // keys of another picture
    CHECK(count_of(fresh) == c->T, "%s: a refused call changes the timeline", name);
    mote_checkpoint_free(before), mote_checkpoint_free(after);
    mote_session_close(s), mote_session_close(fresh);
    mote_images_close(swapped);
    free(want), free(got);
}

// ---- What a runner remembers, and what is refused ---------------------------------------------------------------------

static int tower_reports;

static void see_progress(void *user, const char *what, double fraction) {
    (void)user, (void)fraction;
    tower_reports += strstr(what, "reading an image") != NULL;
}

static int says_stop(void *user) {
    return *(int *)user;
}

static void test_remembered(const vision_case *c) {
    mote_session_options o;
    mote_runner *r = NULL;
    int stops = 0;
    memset(&o, 0, sizeof o);
    o.context = CONTEXT;
    o.threads = 2;
    EXPECT(MOTE_OK, mote_runner_open(c->m, &o, &r, &failure));
    o.runner = r;
    o.callbacks.progress = see_progress;
    o.callbacks.cancel = says_stop;
    o.callbacks.user = &stops;
    mote_session *a = session_with(c->m, &o), *b = session_with(c->m, &o);
    stops = 1;
    EXPECT(MOTE_ECANCELLED, mote_feed_images(a, c->ids, (size_t)c->T, c->images, NULL, NULL, &failure));
    stops = 0;
    CHECK(!count_of(a), "an image that was cancelled leaves %d tokens", count_of(a));
    tower_reports = 0;
    EXPECT(MOTE_OK, mote_feed_images(a, c->ids, (size_t)c->T, c->images, NULL, NULL, &failure));
    CHECK(tower_reports > 0, "the tower does not report");
    tower_reports = 0;
    EXPECT(MOTE_OK, mote_feed_images(b, c->ids, (size_t)c->T, c->images, NULL, NULL, &failure));
    CHECK(!tower_reports && same_logits(a, mote_logits(b), c->vocab), "an image is computed again: %d reports", tower_reports);
    mote_session_close(a), mote_session_close(b);
    mote_runner_close(r);
}

static void test_refused(const vision_case *c) {
    mote_session_options o;
    mote_options without;
    mote_model *text = NULL;
    memset(&o, 0, sizeof o);
    o.context = c->T - 1;
    mote_session *s = session_with(c->m, &o);
    tower_reports = 0;
    EXPECT(MOTE_ECONTEXT, mote_feed_images(s, c->ids, (size_t)c->T, c->images, NULL, NULL, &failure));
    CHECK(!count_of(s), "%d tokens are read", count_of(s));
    mote_session_close(s);
    o.context = CONTEXT;
    o.size = sizeof o;
    o.image_tokens = 1;
    s = session_with(c->m, &o);
    EXPECT(MOTE_EINVAL, mote_feed_images(s, c->ids, (size_t)c->T, c->images, NULL, NULL, &failure));
    CHECK(strstr(failure.message, "image 1: it takes") && !count_of(s), "%s", failure.message);
    mote_session_close(s);
    memset(&without, 0, sizeof without);
    without.size = sizeof without;
    without.parts = MOTE_WEIGHTS_ONLY;
    without.device = test_device;
    without.images = -1;
    EXPECT(MOTE_OK, mote_open(c->folder, &without, &text, &failure));
    int tokens;
    mote_images *none = NULL;
    CHECK(!mote_model_info(text)->images && !mote_model_info(text)->image_tokens && mote_model_info(c->m)->image_tokens > 0, "mote_info.image_tokens");
    EXPECT(MOTE_EUNSUPPORTED, mote_image_size(text, c->image, NULL, NULL, &tokens, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_images_open(text, c->image, 1, &none, &failure));
    CHECK(strstr(failure.message, "image 1: this model reads no images"), "%s", failure.message);
    s = case_session(text);
    EXPECT(MOTE_EINVAL, mote_feed_images(s, c->ids, (size_t)c->T, c->images, NULL, NULL, &failure));        // of another model
    mote_session_close(s);
    mote_close(text);
}

// ---- Turns ----------------------------------------------------------------------------------------------------------

static char chat_folder[1024];

// A case's folder with a tokenizer of single bytes, and Qwen3.5's template.
static void chat_make(const vision_case *c) {
    static const char *const copied[] = {"config.json", "model.safetensors", "preprocessor_config.json"};
    static const char *const added[] = {"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
                                        "<|endoftext|>"};
    static const struct { const char *text; int down; } marks[] = {{"<|vision_start|>", 9}, {"<|vision_end|>", 8}, {"<|image_pad|>", 7}, {"<|video_pad|>", 6}};
    char path[1100], *json = (char *)allocate(1 << 16), *at = json;
    size_t size;
    snprintf(chat_folder, sizeof chat_folder, "%s", temp_path("chat"));
    mkdir(chat_folder, 0700);
    for (int i = 0; i < 3; i++) {
        void *bytes = case_file(c, copied[i], &size);
        snprintf(path, sizeof path, "%s/%s", chat_folder, copied[i]);
        write_bytes(path, bytes, size);
        free(bytes);
    }
    char *demo = file_bytes("models/demo/tokenizer.json", &size), *split = strstr(demo, "\"pre_tokenizer\""), *end = strstr(demo, "\"post_processor\"");
    if (!CHECK(split && end, "models/demo/tokenizer.json")) exit(test_main_end());
    at += sprintf(at, "{\"version\":\"1.0\",\"normalizer\":{\"type\":\"NFC\"},%.*s\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[", (int)(end - split), split);
    for (int i = 0; i < 13; i++) {
        const int mark = i - 9, id = mark < 0 ? 256 + i : c->vocab - marks[mark].down;
        at += sprintf(at, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}",
                      i ? "," : "", id, mark < 0 ? added[i] : marks[mark].text);
    }
    at += sprintf(at, "],\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        at += sprintf(at, "%s\"", b ? "," : "");
        at += parrot_byte((unsigned char)b, at);
        at += sprintf(at, "\":%d", b);
    }
    at += sprintf(at, "}}}");
    snprintf(path, sizeof path, "%s/tokenizer.json", chat_folder);
    write_bytes(path, json, (size_t)(at - json));
    free(demo);
    demo = file_bytes("models/demo/chat_template.jinja", &size);
    snprintf(path, sizeof path, "%s/chat_template.jinja", chat_folder);
    write_bytes(path, demo, size);
    free(demo), free(json);
}

// What an answer says, token by token.
typedef struct script { int32_t ids[128]; size_t count, at; } script;

static int say(void *user, float *logits, int vocab) {
    script *s = (script *)user;
    for (int i = 0; i < vocab; i++) logits[i] = s->at < s->count && i == s->ids[s->at] ? 0 : -INFINITY;
    s->at++;
    return 0;
}

static mote_generation saying(const mote_model *m, script *s, const char *text) {
    mote_generation g;
    memset(&g, 0, sizeof g);
    g.size = sizeof g;
    memset(s, 0, sizeof *s);
    EXPECT(MOTE_OK, mote_tokenize(m, text, strlen(text), 1, s->ids, 128, &s->count, &failure));
    g.on_logits = say;
    g.user = s;
    return g;
}

// The keys of a conversation that the template renders; images in its order.
static size_t rendered(const mote_model *m, const char *request, const mote_image *images, int count, int32_t *keys) {
    int32_t ids[2 * TOKENS_MOST];
    size_t n = 0, total = 0;
    mote_images *of = NULL;
    EXPECT(MOTE_OK, mote_render_tokens(m, request, strlen(request), ids, 2 * TOKENS_MOST, &n, &failure));
    EXPECT(MOTE_OK, mote_images_open(m, images, count, &of, &failure));
    EXPECT(MOTE_OK, mote_images_place(of, ids, n, keys, 2 * TOKENS_MOST, &total, &failure));
    mote_images_close(of);
    return total;
}

#define USER(text) "{\"role\": \"user\", \"content\": " text "}"
#define CALL "{\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"Hm.\", \"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}]}"
#define ASKED USER("[{\"type\": \"image\"}, {\"type\": \"text\", \"text\": \"what? \"}]")
#define RESULT "{\"role\": \"tool\", \"content\": [{\"type\": \"image\"}, {\"type\": \"text\", \"text\": \"a screen\"}]}"
#define SAID "{\"role\": \"assistant\", \"content\": \"A dog.\"}"
#define REQUEST(messages) "{\"messages\": [" messages "]}"

static const char call_text[] = "Hm.\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>";

// A question with a picture, a call, its result with another one, an answer, and a question that lets the thinking go.
static void test_turns(const vision_case *c) {
    chat_make(c);
    mote_model *m = model_of(chat_folder, MOTE_EVERYTHING);
    mote_image images[3] = {c->image[0], c->swap, c->image[0]};
    mote_session_options o;
    int32_t keys[2 * TOKENS_MOST];
    size_t read, total, n;
    script script;
    memset(&o, 0, sizeof o);
    o.context = 2 * TOKENS_MOST;
    o.threads = 2;
    mote_session *s = session_with(m, &o), *other = session_with(m, &o), *clone = NULL;

    mote_generation g = saying(m, &script, call_text);
    g.images = images;
    g.image_count = 1;
    EXPECT(MOTE_OK, mote_ask_count(s, "what? ", &g, &read, &total, &failure));
    EXPECT(MOTE_OK, mote_ask(s, "what? ", &g, NULL, &failure));
    n = rendered(m, REQUEST(ASKED), images, 1, keys);
    CHECK(read == n && total == n, "mote_ask_count: %zu and %zu tokens, expected %zu", read, total, n);
    size_t held = 0;
    const int32_t *timeline = mote_timeline(s, &held);
    CHECK(held > n && !memcmp(timeline, keys, n * sizeof *keys), "a question with a picture is not what the template renders");

    g = saying(m, &script, "It is.\n</think>\n\nA dog.<|im_end|>");
    g.role = "tool";
    g.images = images + 1;
    g.image_count = 1;
    EXPECT(MOTE_OK, mote_ask(s, "a screen", &g, NULL, &failure));
    n = rendered(m, REQUEST(ASKED ", " CALL ", " RESULT), images, 2, keys);
    timeline = mote_timeline(s, &held);
    CHECK(held > n && !memcmp(timeline, keys, n * sizeof *keys), "a result with a picture is not what the template renders");
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));

    for (int way = 0; way < 2; way++) {                     // the same of a clone
        mote_session *of = way ? clone : s;
        g = saying(m, &script, "No.\n</think>\n\nYes.<|im_end|>");
        EXPECT(MOTE_OK, mote_ask(of, "sure?", &g, NULL, &failure));
        n = rendered(m, REQUEST(ASKED ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}]}, "
                                RESULT ", " SAID ", " USER("\"sure?\"")), images, 2, keys);
        timeline = mote_timeline(of, &held);
        CHECK(held > n && !memcmp(timeline, keys, n * sizeof *keys), "after its thinking is dropped, the conversation is not what the template renders");
    }
    // the same conversation, restored; what is there already is not read again
    static const char stored[] = REQUEST(ASKED ", " CALL ", " RESULT ", " SAID);
    EXPECT(MOTE_EINVAL, mote_chat_restore(other, stored, strlen(stored), &read, &failure));
    CHECK(strstr(failure.message, "0 images, and places for 2"), "%s", failure.message);
    EXPECT(MOTE_EINVAL, mote_chat_restore_images(other, stored, strlen(stored), images, 3, &read, &failure));
    EXPECT(MOTE_OK, mote_chat_restore_images(other, stored, strlen(stored), images, 2, &read, &failure));
    EXPECT(MOTE_OK, mote_chat_restore_images(other, stored, strlen(stored), images, 2, &read, &failure));
    CHECK(!read, "%zu tokens are read again", read);
    g = saying(m, &script, "No.\n</think>\n\nYes.<|im_end|>");
    EXPECT(MOTE_OK, mote_ask(other, "sure?", &g, NULL, &failure));
    timeline = mote_timeline(other, &held);
    CHECK(held > n && !memcmp(timeline, keys, n * sizeof *keys), "a restored conversation goes on otherwise");
    mote_image swapped[2] = {images[0], images[2]};
    EXPECT(MOTE_OK, mote_chat_restore_images(other, stored, strlen(stored), swapped, 2, &read, &failure));
    CHECK(read > 0, "another picture is taken for the first one");

    // what is refused changes nothing
    const int before = count_of(s);
    g = saying(m, &script, "No.");
    mote_image wrong[2] = {images[0], images[0]};
    wrong[1].size /= 2;
    g.images = wrong;
    g.image_count = 2;
    EXPECT_EITHER(MOTE_EFORMAT, MOTE_EUNSUPPORTED, mote_ask(s, "and this?", &g, NULL, &failure));
    CHECK(strstr(failure.message, "image 2: ") == failure.message && count_of(s) == before, "%s", failure.message);
    g.images = NULL;
    EXPECT(MOTE_EINVAL, mote_ask(s, "and this?", &g, NULL, &failure));
    CHECK(count_of(s) == before, "a refused turn changes the timeline");
    mote_session_close(s), mote_session_close(other), mote_session_close(clone);
    mote_close(m);
}

int main(int argc, char **argv) {
    static const struct { const char *name; double error; int jpeg; } cases[] = {
        {"dev-v-moe-one", 2.2e-5, 0}, {"dev-v-moe-three", 2.0e-5, 1}, {"dev-v-dense-two", 1.7e-5, 0}};
    char folder[700];
    test_main_begin("image turns", argc, argv);
    is_gpu = strncmp(test_device, "cpu", 3) != 0;
    snprintf(folder, sizeof folder, "%s/vision-data", test_data_dir() ? test_data_dir() : "");
    if (!test_data_dir() || access(folder, F_OK)) {
        test_skip("no vision-data in the data folder");
        return test_main_end();
    }
    temp_open();
    for (int i = 0; i < 3; i++) {
        static vision_case c;
        case_open(&c, cases[i].name);
        test_sizes(&c);
        test_keys(&c);
        test_logits(&c, cases[i].name, cases[i].error, cases[i].jpeg);
        test_swap(&c, cases[i].name, cases[i].error, cases[i].jpeg);
        if (!is_gpu && !cases[i].jpeg) test_divided(&c, cases[i].name, cases[i].error);
        if (!i) test_remembered(&c);
        if (!i) test_refused(&c);
        if (!i) test_turns(&c);
        case_close(&c);
    }
    temp_close();
    return test_main_end();
}
