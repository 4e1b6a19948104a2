/* Tests of vision towers: the definition against transformers, the CPU's code, or a GPU's, against the definition, part by part and whole; what of a
   checkpoint with a tower is refused, and what it does without.

   Usage: test_vision [--device NAME] [DATA]
     DATA/vision-data: towers with what transformers makes of some images. Others are made up here, and put into copies of a fixture. */

#include "inside.h"

#include "api.h"
#include "files.h"
#include "folders.h"

/* In standard deviations of what it should be. Reference data is rounded to float32; single wrong formulas are off by 2e-3 or more. */
#define VISION_REFERENCE 1e-6
#define VISION_CPU 1e-4
#define VISION_GPU 1.5e-2           /* root mean square; at most four times as much */

static int vision_on_gpu(void) {
    return strcmp(test_device, "cpu") != 0;
}

/* The largest difference in standard deviations of b. */
static double vision_most(const float *a, const float *b, size_t n) {
    double sum = 0, square = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        const double by = fabs((double)a[i] - (double)b[i]);
        sum += (double)b[i];
        square += (double)b[i] * (double)b[i];
        most = by <= most ? most : by;                       /* what is no number is the most */
    }
    return most / sqrt(square / (double)n - sum / (double)n * (sum / (double)n));
}

/* ---- An image and what comes of it --------------------------------------------------------------------------------------------- */

typedef struct vision_case {
    const mote_model *m;            /* on the CPU */
    int rows, columns, n;
    const float *patches;
    float *first, *last, *features; /* [n][hidden] twice; [n / 4][out]: by the definition */
    float *halves;                  /* [depth][2][n][hidden]: what each adds */
    int told;
    double *memory;
} vision_case;

static void vision_told(void *user, const char *name, const double *values, int n) {
    vision_case *c = (vision_case *)user;
    float *to = !strcmp(name, "patches") ? c->first : !strcmp(name, "tower") ? c->last : c->halves + (size_t)c->told++ * (size_t)n;
    for (int i = 0; i < n; i++) to[i] = (float)values[i];
}

static void vision_case_open(vision_case *c, const mote_model *m, const float *patches, int rows, int columns) {
    const vision_shape *s = &m->vision.shape;
    defined_memory memory = {NULL, 0};
    defined_vision t;
    defining d = {.watch = vision_told, .user = c};
    memset(c, 0, sizeof *c);
    c->m = m, c->rows = rows, c->columns = columns, c->n = rows * columns, c->patches = patches;
    const size_t all = (size_t)c->n * (size_t)s->hidden, features = (size_t)(c->n / 4) * (size_t)s->out;
    c->first = (float *)allocate(all * sizeof(float));
    c->last = (float *)allocate(all * sizeof(float));
    c->features = (float *)allocate(features * sizeof(float));
    c->halves = (float *)allocate(2 * (size_t)s->depth * all * sizeof(float));
    vision_define_memory(s, c->n, &memory, &t);
    memory.block = (double *)allocate((memory.used + features) * sizeof(double));
    double *out = memory.block + memory.used;
    memory.used = 0;
    vision_define_memory(s, c->n, &memory, &t);
    vision_define(&d, &m->vision, patches, rows, columns, &t, out);
    for (size_t i = 0; i < features; i++) c->features[i] = (float)out[i];
    free(memory.block);
}

static void vision_case_close(vision_case *c) {
    free(c->first), free(c->last), free(c->features), free(c->halves);
}

/* ---- The CPU part by part -------------------------------------------------------------------------------------------------------- */

static void vision_near(const char *name, const char *what, int block, const float *got, const float *want, size_t n, double allowed) {
    const double by = vision_most(got, want, n);
    CHECK(by <= allowed, "%s: %s of block %d is off by %g", name, what, block, by);
}

static int vision_never(void *user, double done) {
    (void)user, (void)done;
    return 0;
}

/* Each part is given the rows that the definition has before it. */
static void test_vision_parts(const char *name, const vision_case *c) {
    const vision_shape *s = &c->m->vision.shape;
    const size_t all = (size_t)c->n * (size_t)s->hidden;
    layout l = layout_from(NULL);
    vision_job j;
    memset(&j, 0, sizeof j);
    vision_layout(&l, s, c->n, &j);
    float *memory = (float *)allocate(l.used * sizeof(float) + CACHE_LINE), *x = (float *)allocate(all * sizeof(float));
    l = layout_from(layout_base(memory));
    vision_layout(&l, s, c->n, &j);
    j.threads = pool_open(2), j.w = &c->m->vision, j.rows = c->rows, j.columns = c->columns, j.patches = c->patches, j.pause = vision_never;
    vision_embed(&j);
    vision_near(name, "the embedding", 0, j.x, c->first, all, VISION_CPU);
    memcpy(x, c->first, all * sizeof *x);
    for (int i = 0; i < 2 * s->depth; i++) {
        const float *added = c->halves + (size_t)i * all;
        memcpy(j.x, x, all * sizeof *x);
        if (i % 2) vision_mlp(&j, i / 2);
        else vision_attention(&j, i / 2);
        for (size_t k = 0; k < all; k++) j.x[k] -= x[k], x[k] += added[k];
        vision_near(name, i % 2 ? "the FFN" : "attention", i / 2, j.x, added, all, VISION_CPU);
    }
    memcpy(j.x, c->last, all * sizeof *x);
    vision_join(&j, x);
    vision_near(name, "the merger", s->depth, x, c->features, (size_t)(c->n / 4) * (size_t)s->out, VISION_CPU);
    pool_close(j.threads);
    free(memory), free(x);
}

/* ---- Whole ------------------------------------------------------------------------------------------------------------------------ */

static mote_session *vision_session(const mote_model *m, int threads) {
    const mote_session_options o = {.size = sizeof o, .context = 64, .threads = threads};
    return session_with(m, &o);
}

typedef struct vision_calls { int progress, cancel_at, cancels; double last; } vision_calls;

static void vision_progress(void *user, const char *what, double fraction) {
    vision_calls *c = (vision_calls *)user;
    CHECK(!strcmp(what, "reading an image") && fraction >= c->last && fraction <= 1, "progress: %s, %g after %g", what, fraction, c->last);
    c->progress++;
    c->last = fraction;
}

static int vision_cancel(void *user) {
    vision_calls *c = (vision_calls *)user;
    return c->cancel_at && ++c->cancels == c->cancel_at;
}

static float *vision_features_of(mote_session *s, const vision_case *c) {
    vision_calls calls = {0};
    const mote_callbacks told = {.progress = vision_progress, .cancel = vision_cancel, .user = &calls};
    float *features = (float *)allocate((size_t)(c->n / 4) * (size_t)c->m->vision.shape.out * sizeof *features);
    EXPECT(MOTE_OK, vision_features(s->slot.runner, c->patches, c->rows, c->columns, features, &told, &failure));
    CHECK(calls.progress > c->m->vision.shape.depth && calls.last == 1, "%d times progress, up to %g", calls.progress, calls.last);
    return features;
}

/* The device's features; again the same bits, whatever came between, and on the CPU with any number of threads. */
static void test_vision_whole(const char *name, const vision_case *c, const mote_model *on, const vision_case *other) {
    const size_t n = (size_t)(c->n / 4) * (size_t)c->m->vision.shape.out;
    mote_session *s = vision_session(on, 2), *again = vision_session(on, 3);
    float *features = vision_features_of(s, c), *between = vision_features_of(s, other), *repeated = vision_features_of(s, c),
          *of_others = vision_features_of(again, c);
    const double by = off(features, c->features, n), most = vision_most(features, c->features, n);
    printf("%s: %d x %d patches: features off by %.1e, at most %.1e\n", name, c->rows, c->columns, by, most);
    CHECK(vision_on_gpu() ? by <= VISION_GPU && most <= 4 * VISION_GPU : most <= VISION_CPU, "%s: features are off by %g, at most %g", name, by, most);
    CHECK(!memcmp(features, repeated, n * sizeof *features), "%s: another image between changes bits", name);
    CHECK(!memcmp(features, of_others, n * sizeof *features), "%s: another runner has other bits", name);
    free(features), free(between), free(repeated), free(of_others);
    mote_session_close(s), mote_session_close(again);
}

static void test_vision_refusals(const vision_case *c, const mote_model *on) {
    mote_session *s = vision_session(on, 2);
    float *features = (float *)allocate((size_t)c->n * (size_t)c->m->vision.shape.out * sizeof *features);
    mote_runner *r = s->slot.runner;
    static const int wrong[][2] = {{0, 2}, {2, 0}, {-2, -2}, {3, 2}, {2, 5}, {1 << 17, 1 << 17}, {256, 258}};
    const mote_callbacks silent = {0};
    for (size_t i = 0; i < COUNT(wrong); i++)
        EXPECT(MOTE_EINVAL, vision_features(r, c->patches, wrong[i][0], wrong[i][1], features, &silent, &failure));
    float *large = (float *)calloc(256 * 66, VISION_PIXELS * sizeof *large), *of_large = (float *)allocate(64 * 66 * (size_t)c->m->vision.shape.out * sizeof *large);
    vision_calls calls = {.cancel_at = 1};
    const mote_callbacks stop = {.cancel = vision_cancel, .user = &calls};
    EXPECT(MOTE_ECANCELLED, vision_features(r, large, 256, 66, of_large, &stop, &failure));    /* memory of its own */
    free(large), free(of_large);
    for (int i = 1; i <= c->m->vision.shape.depth; i++) {
        vision_calls calls = {.cancel_at = i};
        const mote_callbacks told = {.cancel = vision_cancel, .user = &calls};
        EXPECT(MOTE_ECANCELLED, vision_features(r, c->patches, c->rows, c->columns, features, &told, &failure));
    }
    free(features);
    free(vision_features_of(s, c));                          /* the runner is as it was */
    mote_session_close(s);
}

/* ---- In company ------------------------------------------------------------------------------------------------------------------ */

static float *made_patches(int n);

/* A session that steps while the tower computes for another one. */
typedef struct vision_other { mote_session *s; int over, steps, code; pthread_t thread; } vision_other;

static void *vision_other_main(void *user) {
    vision_other *o = (vision_other *)user;
    for (const int32_t id = 5; !o->code && o->steps < 1000 && !__atomic_load_n(&o->over, __ATOMIC_ACQUIRE); o->steps++)
        o->code = mote_feed(o->s, &id, 1, NULL);
    return NULL;
}

/* How often progress is told within each stage; every time so late that others get their turn. */
typedef struct vision_slices { int told[64], stages; } vision_slices;

static void vision_slowly(void *user, const char *what, double fraction) {
    vision_slices *c = (vision_slices *)user;
    const struct timespec late = {0, 21000000};
    (void)what;
    c->told[min_int((int)(fraction * c->stages + 1e-6), c->stages)]++;
    nanosleep(&late, NULL);
}

/* On the CPU others step between slices of every stage, not only between blocks, and the features are what they are alone. */
static void test_vision_company(const mote_model *m) {
    enum { ROWS = 128, COLUMNS = 66, N = ROWS * COLUMNS };
    const size_t size = (size_t)(N / 4 * m->vision.shape.out);
    mote_session_options o = {.size = sizeof o, .context = 1024, .threads = 1};
    mote_runner *r = NULL;
    vision_slices slices = {{0}, vision_stages(&m->vision.shape)};
    const mote_callbacks silent = {0}, slowly = {.progress = vision_slowly, .user = &slices};
    vision_other other = {0};
    float *patches = made_patches(N), *alone = (float *)allocate(size * sizeof *alone), *got = (float *)allocate(size * sizeof *got);
    EXPECT(MOTE_OK, mote_runner_open(m, &o, &r, &failure));
    o.runner = r;
    other.s = session_with(m, &o);
    EXPECT(MOTE_OK, vision_features(r, patches, ROWS, COLUMNS, alone, &silent, &failure));
    pthread_create(&other.thread, NULL, vision_other_main, &other);
    EXPECT(MOTE_OK, vision_features(r, patches, ROWS, COLUMNS, got, &slowly, &failure));
    __atomic_store_n(&other.over, 1, __ATOMIC_RELEASE);
    pthread_join(other.thread, NULL);
    for (int i = 0; i < slices.stages; i++) CHECK(slices.told[i] >= 4, "stage %d of the tower has %d slices", i, slices.told[i]);
    CHECK(!other.code && other.steps > 4 * m->vision.shape.depth, "%d steps of another session while the tower computes", other.steps);
    CHECK(!memcmp(alone, got, size * sizeof *got), "steps of another session change features");
    mote_session_close(other.s);
    mote_runner_close(r);
    free(patches), free(alone), free(got);
}

/* ---- transformers ------------------------------------------------------------------------------------------------------------------ */

static void *vision_data(const char *folder, const char *name, size_t *size) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    void *bytes = file_bytes(path, size);
    if (!bytes) exit((CHECK(0, "no %s", path), test_main_end()));
    return bytes;
}

static void test_vision_reference(const char *folder) {
    size_t size;
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY), *on = vision_on_gpu() ? model_of(folder, MOTE_WEIGHTS_ONLY) : m;
    int32_t *grid = (int32_t *)vision_data(folder, "grid.i32", &size);
    const int images = (int)(size / sizeof(int32_t) / 3);
    float *pixels = (float *)vision_data(folder, "pixel_values.f32", &size), *first = (float *)vision_data(folder, "tower_in.f32", &size),
          *last = (float *)vision_data(folder, "tower_out.f32", &size), *features = (float *)vision_data(folder, "features.f32", &size);
    const mote_info *info = mote_model_info(m);
    CHECK(info->images == 1 && m->has_vision && m->c.image_token > 0, "%s: no tower", folder);
    size_t at = 0;
    vision_case c[2];
    memset(c, 0, sizeof c);
    for (int i = 0; i < images; i++) {
        vision_case *of = &c[i % 2];
        vision_case_close(of);
        vision_case_open(of, m, pixels + at * VISION_PIXELS, grid[3 * i + 1], grid[3 * i + 2]);
        const size_t n = (size_t)of->n, hidden = (size_t)m->vision.shape.hidden, out = (size_t)m->vision.shape.out;
        vision_near(folder, "the definition: the embedding", 0, of->first, first + at * hidden, n * hidden, VISION_REFERENCE);
        vision_near(folder, "the definition: the last block", 0, of->last, last + at * hidden, n * hidden, VISION_REFERENCE);
        vision_near(folder, "the definition: the merger", 0, of->features, features + at / 4 * out, n / 4 * out, VISION_REFERENCE);
        if (!vision_on_gpu()) test_vision_parts(folder, of);
        test_vision_whole(folder, of, on, c[(i + 1) % 2].m ? &c[(i + 1) % 2] : of);
        at += n;
    }
    test_vision_refusals(&c[0], on);
    for (int i = 0; i < 2; i++) vision_case_close(&c[i]);
    free(grid), free(pixels), free(first), free(last), free(features);
    if (on != m) mote_close(on);
    mote_close(m);
}

static void test_vision_references(void) {
    static const char *const cases[] = {"dev-v-moe-one", "dev-v-moe-three", "dev-v-dense-two"};
    char folder[600];
    snprintf(folder, sizeof folder, "%s/vision-data", test_data_dir() ? test_data_dir() : "");
    if (!test_data_dir() || access(folder, F_OK)) {
        test_skip("no vision-data in the data folder: transformers' towers");
        return;
    }
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(folder, sizeof folder, "%s/vision-data/%s", test_data_dir(), cases[i]);
        test_vision_reference(folder);
    }
}

/* ---- Towers that are made up --------------------------------------------------------------------------------------------------------- */

typedef struct made_tower {
    const char *prefix, *type;      /* of the tensors' names; F32, F16 or BF16; FP8: matrices of E4M3 with a scale for 128 x 128, all else BF16 */
    int depth, hidden, heads, size, side, out;
} made_tower;

/* Of a number that is small; what is next to nothing is 0. */
static uint16_t made_f16(uint32_t bits) {
    const int exponent = (int)(bits >> 23 & 255) - 127 + 15;
    return exponent < 1 ? 0 : (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 1023));
}

static void made_tensor_of(parts *p, const made_tower *t, const char *type, const char *name, const char *shape, double mean, double spread) {
    part *to = &p->list[p->n++];
    memset(to, 0, sizeof *to);
    snprintf(to->name, sizeof to->name, "%s%s", t->prefix, name);
    part_set(to, type, shape);
    const size_t each = strcmp(type, "F32") ? 2 : 4;
    for (size_t i = 0; i < to->size / each; i++) {
        const float x = (float)(mean + spread * ((double)random_int(-1000, 1000) / 1000));
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        const uint16_t half = strcmp(type, "F16") ? (uint16_t)(bits >> 16) : made_f16(bits);
        memcpy(to->data + i * each, each == 4 ? (const void *)&bits : (const void *)&half, each);
    }
}

static int made_fp8(const made_tower *t) {
    return !strcmp(t->type, "FP8");
}

static void made_tensor(parts *p, const made_tower *t, const char *name, const char *shape, double mean, double spread) {
    made_tensor_of(p, t, made_fp8(t) ? "BF16" : t->type, name, shape, mean, spread);
}

/* Codes up to 448 of either sign, and scales that make `spread` of them. */
static void made_codes(parts *p, const made_tower *t, const char *name, int rows, int cols, double spread) {
    char shape[64], scale[112];
    part *to = &p->list[p->n++];
    memset(to, 0, sizeof *to);
    snprintf(to->name, sizeof to->name, "%s%s", t->prefix, name);
    snprintf(shape, sizeof shape, "%d,%d", rows, cols);
    part_set(to, "F8_E4M3", shape);
    for (size_t i = 0; i < to->size; i++) to->data[i] = (char)(random_int(0, 0x7e) | random_int(0, 1) << 7);
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    snprintf(shape, sizeof shape, "%d,%d", (rows + 127) / 128, (cols + 127) / 128);
    made_tensor_of(p, t, "F32", scale, shape, spread / 200, spread / 800);
}

/* A weight and a bias. */
static void made_pair(parts *p, const made_tower *t, const char *name, int rows, int cols, const char *more) {
    char full[96], shape[64];
    const int norm = !cols;
    snprintf(full, sizeof full, "%s.weight", name);
    if (norm) snprintf(shape, sizeof shape, "%d", rows);
    else if (more) snprintf(shape, sizeof shape, "%d,%s", rows, more);
    else snprintf(shape, sizeof shape, "%d,%d", rows, cols);
    if (made_fp8(t) && !norm && !more) made_codes(p, t, full, rows, cols, 2 / sqrt((double)cols));
    else made_tensor(p, t, full, shape, norm, norm ? 0.3 : 2 / sqrt((double)cols));
    snprintf(full, sizeof full, "%s.bias", name);
    snprintf(shape, sizeof shape, "%d", rows);
    made_tensor(p, t, full, shape, 0, 0.2);
}

/* A copy of a fixture with this tower. */
static void made_folder(const made_tower *t) {
    char text[1024], name[64];
    temp_copy_of("tests/fixtures/families/qwen3.5-dense", NULL, NULL);
    snprintf(text, sizeof text,
             "{\"image_token_id\": 3, \"vision_config\": {\"depth\": %d, \"hidden_size\": %d, \"num_heads\": %d, \"intermediate_size\": %d, "
             "\"num_position_embeddings\": %d, \"out_hidden_size\": %d, \"hidden_act\": \"gelu_pytorch_tanh\", \"in_channels\": 3, \"patch_size\": 16, "
             "\"spatial_merge_size\": 2, \"temporal_patch_size\": 2, \"deepstack_visual_indexes\": [], \"initializer_range\": 0.02},",
             t->depth, t->hidden, t->heads, t->size, t->side * t->side, t->out);
    size_t size;
    char *config = file_bytes(temp_path("config.json"), &size);
    buf all = {0};
    buf_text(&all, text);
    buf_text(&all, strchr(config, '{') + 1);
    temp_write("config.json", all.data, all.size);
    buf_free(&all);
    free(config);
    parts *p = parts_read("model.safetensors");
    made_pair(p, t, "patch_embed.proj", t->hidden, VISION_PIXELS, "3,2,16,16");
    snprintf(text, sizeof text, "%d,%d", t->side * t->side, t->hidden);
    made_tensor(p, t, "pos_embed.weight", text, 0, 1);
    for (int b = 0; b < t->depth; b++) {
        const struct { const char *name; int rows, cols; } of[] = {{"norm1", t->hidden, 0}, {"norm2", t->hidden, 0}, {"attn.qkv", 3 * t->hidden, t->hidden},
            {"attn.proj", t->hidden, t->hidden}, {"mlp.linear_fc1", t->size, t->hidden}, {"mlp.linear_fc2", t->hidden, t->size}};
        for (size_t i = 0; i < COUNT(of); i++) {
            snprintf(name, sizeof name, "blocks.%d.%s", b, of[i].name);
            made_pair(p, t, name, of[i].rows, of[i].cols, NULL);
        }
    }
    made_pair(p, t, "merger.norm", t->hidden, 0, NULL);
    made_pair(p, t, "merger.linear_fc1", 4 * t->hidden, 4 * t->hidden, NULL);
    made_pair(p, t, "merger.linear_fc2", t->out, 4 * t->hidden, NULL);
    parts_write(p, "model.safetensors");
    parts_free(p);
}

static float *made_patches(int n) {
    float *patches = (float *)allocate((size_t)n * VISION_PIXELS * sizeof *patches);
    for (size_t i = 0; i < (size_t)n * VISION_PIXELS; i++) patches[i] = (float)random_int(-1000, 1000) / 1000;
    return patches;
}

/* Widths that no register or tile is a multiple of; images of one block, of one row of blocks, and of more patches than a product or a tile takes. */
static void test_vision_made(const made_tower *t) {
    static const int sizes[][2] = {{2, 2}, {2, 34}, {18, 16}, {66, 64}};
    const size_t count = COUNT(sizes) - (!vision_on_gpu() || test_brief || strcmp(t->type, "BF16"));   /* the last: more than its products take at a time */
    char name[64];
    made_folder(t);
    snprintf(name, sizeof name, "made, %s, heads of %d", t->type, t->hidden / t->heads);
    mote_model *m = model_on("cpu", temp_dir, MOTE_WEIGHTS_ONLY), *on = vision_on_gpu() ? model_of(temp_dir, MOTE_WEIGHTS_ONLY) : m;
    vision_case c[COUNT(sizes)];
    float *patches[COUNT(sizes)];
    CHECK(m->vision.shape.hidden == t->hidden && m->c.image_token == 3, "%s: hidden %d", name, m->vision.shape.hidden);
    for (size_t i = 0; i < count; i++) {
        patches[i] = made_patches(sizes[i][0] * sizes[i][1]);
        vision_case_open(&c[i], m, patches[i], sizes[i][0], sizes[i][1]);
        if (!vision_on_gpu()) test_vision_parts(name, &c[i]);
    }
    for (size_t i = 0; i < count; i++) test_vision_whole(name, &c[i], on, &c[(i + 1) % count]);
    test_vision_refusals(&c[0], on);
    for (size_t i = 0; i < count; i++) vision_case_close(&c[i]), free(patches[i]);
    if (on != m) mote_close(on);
    mote_close(m);
}

/* ---- Without a tower ------------------------------------------------------------------------------------------------------------------- */

static void check_reads_text(const char *what, const char *why, int images) {
    buf notices = {0};
    mote_model *m = NULL;
    const mote_options o = {.size = sizeof o, .parts = MOTE_WEIGHTS_ONLY, .callbacks = {.log = keep_notices, .user = &notices}, .device = test_device, .images = images};
    const mote_callbacks silent = {0};
    float none[4] = {0};
    EXPECT(MOTE_OK, mote_open(temp_dir, &o, &m, &failure));
    buf_add(&notices, "", 1);
    CHECK(!m->has_vision && !mote_model_info(m)->images, "%s: it reads images", what);
    CHECK(images < 0 ? !strstr(notices.data, "vision") : strstr(notices.data, why) != NULL, "%s: %s", what, notices.data);
    mote_session *s = vision_session(m, 1);
    EXPECT(MOTE_EUNSUPPORTED, vision_features(s->slot.runner, none, 2, 2, none, &silent, &failure));
    CHECK(strstr(failure.message, "this model reads no images"), "%s: %s", what, failure.message);
    mote_session_close(s);
    mote_close(m);
    buf_free(&notices);
}

static part *vision_tensor(parts *p, const char *name) {
    int i = 0;
    while (i < p->n && !strstr(p->list[i].name, name)) i++;
    return &p->list[i];
}

/* A tower that is there is as config.json has it: other shapes, numbers that are none and tensors that nobody knows are refused by name. */
static void test_vision_damaged(const made_tower *t) {
    static const struct { const char *tensor, *type, *shape; int code; const char *says[3]; } cases[] = {
        {"patch_embed.proj.weight", "BF16", "40,3,2,16,15", MOTE_EFORMAT, {"patch_embed.proj.weight", "[40, 3, 2, 16, 16]", "[40, 3, 2, 16, 15]"}},
        {"patch_embed.proj.weight", "BF16", "40,3,2,16,16,1", MOTE_EFORMAT, {"patch_embed.proj.weight", "[40, 3, 2, 16, 16]"}},
        {"patch_embed.proj.weight", "BF16", "40,1536", MOTE_OK, {NULL}},
        {"patch_embed.proj.weight", "I32", "40,3,2,16,16", MOTE_EFORMAT, {"patch_embed.proj.weight", "I32"}},
        {"pos_embed.weight", "BF16", "24,40", MOTE_EFORMAT, {"pos_embed.weight", "[25, 40]"}},
        {"blocks.1.attn.qkv.weight", "BF16", "40,120", MOTE_EFORMAT, {"blocks.1.attn.qkv.weight", "[120, 40]"}},
        {"blocks.1.mlp.linear_fc1.bias", "BF16", "51", MOTE_EFORMAT, {"blocks.1.mlp.linear_fc1.bias", "[52]"}},
        {"blocks.0.norm2.bias", "BF16", "1,40", MOTE_EFORMAT, {"blocks.0.norm2.bias", "[40]"}}};
    static const char *const not_finite[3] = {"blocks.0.norm1.weight", "finite"};
    static const char *const unknown[3] = {"model.visual.deepstack_merger_list.0.norm.weight is not part of the model"};
    made_folder(t);
    for (size_t i = 0; i < COUNT(cases); i++) {
        parts *p = parts_read("model.safetensors");
        part *to = vision_tensor(p, cases[i].tensor), was = *to;
        to->data = NULL;
        part_set(to, cases[i].type, cases[i].shape);
        parts_write(p, "model.safetensors");
        check_open(cases[i].tensor, MOTE_WEIGHTS_ONLY, cases[i].code, cases[i].says);
        free(to->data);
        *to = was;
        parts_write(p, "model.safetensors");
        parts_free(p);
    }
    parts *p = parts_read("model.safetensors");
    part *to = vision_tensor(p, "blocks.0.norm1.weight");
    to->data[0] = to->data[1] = (char)0xff;                   /* BF16's NaN */
    parts_write(p, "model.safetensors");
    check_open("a weight that is no number", MOTE_WEIGHTS_ONLY, MOTE_EFORMAT, not_finite);
    to->data[0] = to->data[1] = 0;
    made_tensor(p, t, "deepstack_merger_list.0.norm.weight", "40", 1, 0);
    parts_write(p, "model.safetensors");
    check_open("a tensor that nobody knows", MOTE_WEIGHTS_ONLY, MOTE_EFORMAT, unknown);
    parts_free(p);
}

static void test_vision_left_out(const made_tower *t) {
    made_folder(t);
    check_reads_text("left out", "", -1);
    parts *p = parts_read("model.safetensors");
    strcat(p->list[p->n - 1].name, "x");                     /* another name for the last bias */
    parts_write(p, "model.safetensors");
    check_reads_text("without its last bias", "merger.linear_fc2.bias is missing", 0);
    free(p->list[--p->n].data);
    parts_write(p, "model.safetensors");
    check_reads_text("without its last tensor", "merger.linear_fc2.bias is missing", 0);
    while (strstr(p->list[p->n - 1].name, "visual.")) free(p->list[--p->n].data);
    parts_write(p, "model.safetensors");
    check_reads_text("without any", "patch_embed.proj.weight is missing", 0);
    parts_free(p);
}

#ifdef TEST_VISION_ON_GPU
static void test_vision_released(void);         /* tests/cuda/gpu_vision.c */
static void test_vision_pixels(void);
#endif

int main(int argc, char **argv) {
    static const made_tower made[] = {
        {"model.visual.", "BF16", 2, 40, 2, 52, 5, 0}, {"visual.", "F32", 2, 48, 3, 100, 7, 0}, {"model.visual.", "F16", 1, 144, 2, 130, 1, 0},
        {"model.visual.", "FP8", 2, 256, 4, 384, 5, 0}};
    test_main_begin("vision", argc, argv);
    temp_open();
    for (size_t i = 0; i < COUNT(made); i++) {
        made_tower t = made[i];
        t.out = 32;
        test_vision_made(&t);
        if (!i) test_vision_left_out(&t);
        if (!i && !vision_on_gpu()) test_vision_damaged(&t);
        if (!i && !vision_on_gpu()) {
            made_folder(&t);
            mote_model *m = model_on("cpu", temp_dir, MOTE_WEIGHTS_ONLY);
            test_vision_company(m);
            mote_close(m);
        }
    }
#ifdef TEST_VISION_ON_GPU
    test_vision_released();
    test_vision_pixels();
#endif
    temp_close();
    test_vision_references();
    return test_main_end();
}
