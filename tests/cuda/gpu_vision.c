/* The vision tower on a GPU: what tests/model/test_vision.c has of any device, and a tower of released widths beside the CPU's code.

   Usage: gpu_vision [--brief] [DATA]
          gpu_vision --time            how long a made-up tower of the released size takes for some images, and what of it the host takes; nothing else */

#include "inside.h"

#define TEST_VISION_ON_GPU
#define main vision_main
#include "../model/test_vision.c"
#undef main

/* As Qwen3.5-35B-A3B has it, but for the features' width, which is the fixture's. */
static const made_tower released = {"model.visual.", "BF16", 27, 1152, 16, 4304, 48, 32};

static void test_vision_released(void) {
    made_tower t = released;
    t.depth = 2;
    made_folder(&t);
    mote_model *cpu = model_on("cpu", temp_dir, MOTE_WEIGHTS_ONLY), *gpu = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *on_cpu = vision_session(cpu, 0), *on_gpu = vision_session(gpu, 1);
    const int rows = test_brief ? 4 : 16, columns = test_brief ? 6 : 12, n = rows * columns;
    const size_t features = (size_t)(n / 4 * t.out);
    vision_case c;
    memset(&c, 0, sizeof c);
    c.m = cpu, c.rows = rows, c.columns = columns, c.n = n;
    float *patches = made_patches(n);
    c.patches = patches;
    float *want = vision_features_of(on_cpu, &c), *got = vision_features_of(on_gpu, &c);
    const double by = off(got, want, features), most = vision_most(got, want, features);
    printf("released widths: %d x %d patches: features off by %.1e, at most %.1e\n", rows, columns, by, most);
    CHECK(by <= VISION_GPU && most <= 4 * VISION_GPU, "released widths: features are off by %g, at most %g", by, most);
    free(want), free(got), free(patches);
    mote_session_close(on_cpu), mote_session_close(on_gpu);
    mote_close(cpu), mote_close(gpu);
}

static picture made_picture(int rows, int columns) {
    picture p;
    EXPECT(MOTE_OK, picture_new(columns * VISION_PATCH, rows * VISION_PATCH, &p, &failure));
    for (size_t i = 0; i < picture_bytes(&p); i++) p.rgb[i] = (unsigned char)random_bits();
    return p;
}

/* A picture's pixels make the bits that its patches make; of more patches than a product takes at a time, too. */
static void test_vision_pixels(void) {
    static const int sizes[][2] = {{2, 6}, {18, 16}, {66, 64}};
    const mote_callbacks silent = {0};
    made_tower t = released;
    t.depth = 1, t.hidden = 128, t.heads = 4, t.size = 136;
    made_folder(&t);
    mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *s = vision_session(m, 1);
    CHECK(vision_takes_pixels(s->slot.runner), "a GPU takes no pixels");
    for (size_t i = 0; i < COUNT(sizes) - (size_t)test_brief; i++) {
        const int rows = sizes[i][0], columns = sizes[i][1], n = rows * columns;
        const size_t bytes = (size_t)(n / 4 * t.out) * sizeof(float);
        picture of = made_picture(rows, columns);
        float *patches = (float *)allocate((size_t)n * VISION_PIXELS * sizeof *patches), *want = (float *)allocate(bytes), *got = (float *)allocate(bytes);
        picture_patches(&of, VISION_PATCH, VISION_MERGE, patches);
        EXPECT(MOTE_OK, vision_features(s->slot.runner, patches, rows, columns, want, &silent, &failure));
        EXPECT(MOTE_OK, vision_features_of_pixels(s->slot.runner, of.rgb, rows, columns, got, &silent, &failure));
        CHECK(!memcmp(want, got, bytes), "%d x %d patches: pixels make other bits than patches", rows, columns);
        free(patches), free(want), free(got);
        picture_free(&of);
    }
    mote_session_close(s);
    mote_close(m);
}

/* The fastest of some runs of each part, seconds: features of pixels, and of patches; patches of pixels, by the host; a copy of the pixels to the GPU,
   and of features of FEATURE_COLS columns from there, into memory that has not been touched: 35B-A3B's, which the tower here does not make. */
enum { FEATURE_COLS = 2048 };

typedef struct vision_times { double of_pixels, of_patches, patches, pixels_there, features_here; } vision_times;

static double seconds_since(double *began) {
    const double now = seconds(), took = now - *began;
    *began = now;
    return took;
}

static void time_vision_once(mote_session *s, const picture *of, int side, char *there, vision_times *best) {
    const mote_callbacks silent = {0};
    const size_t n = (size_t)(side * side), bytes = n / 4 * (size_t)released.out * sizeof(float);
    double began = seconds();
    float *patches = (float *)malloc(n * VISION_PIXELS * sizeof *patches), *features = (float *)malloc(bytes);
    picture_patches(of, VISION_PATCH, VISION_MERGE, patches);
    best->patches = fmin(best->patches, seconds_since(&began));
    EXPECT(MOTE_OK, vision_features(s->slot.runner, patches, side, side, features, &silent, &failure));
    best->of_patches = fmin(best->of_patches, seconds_since(&began));
    free(features);
    began = seconds();
    features = (float *)malloc(bytes);
    EXPECT(MOTE_OK, vision_features_of_pixels(s->slot.runner, of->rgb, side, side, features, &silent, &failure));
    best->of_pixels = fmin(best->of_pixels, seconds_since(&began));
    free(features);
    began = seconds();
    EXPECT(0, cudaMemcpy(there, of->rgb, picture_bytes(of), cudaMemcpyHostToDevice));
    best->pixels_there = fmin(best->pixels_there, seconds_since(&began));
    features = (float *)malloc(n / 4 * FEATURE_COLS * sizeof *features);
    EXPECT(0, cudaMemcpy(features, there, n / 4 * FEATURE_COLS * sizeof *features, cudaMemcpyDeviceToHost));
    best->features_here = fmin(best->features_here, seconds_since(&began));
    free(features), free(patches);
}

static void time_vision(void) {
    static const int sides[] = {16, 32, 64, 96, 128};
    made_folder(&released);
    mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *s = vision_session(m, 1);
    printf("%s; ms\n%12s%10s%12s%12s%20s%16s%16s\n", mote_model_info(m)->device, "pixels", "patches", "of pixels", "of patches", "patches of pixels",
           "pixels there", "features here");
    for (size_t i = 0; i < COUNT(sides); i++) {
        const int side = sides[i];
        vision_times best = {INFINITY, INFINITY, INFINITY, INFINITY, INFINITY};
        picture of = made_picture(side, side);
        char *there = NULL;
        EXPECT(0, cudaMalloc((void **)&there, picture_bytes(&of) + (size_t)(side * side / 4 * FEATURE_COLS) * sizeof(float)));
        for (int run = 0; run < 6; run++) time_vision_once(s, &of, side, there, &best);
        printf("%5d x %4d%10d%12.2f%12.2f%20.2f%16.2f%16.2f\n", 16 * side, 16 * side, side * side, best.of_pixels * 1e3, best.of_patches * 1e3,
               best.patches * 1e3, best.pixels_there * 1e3, best.features_here * 1e3);
        (void)cudaFree(there);
        picture_free(&of);
    }
    mote_session_close(s);
    mote_close(m);
}

int main(int argc, char **argv) {
    char *all[8] = {argv[0], (char *)"--device", (char *)"cuda"};
    const int times = argc > 1 && !strcmp(argv[1], "--time");
    int count = 3;
    for (int i = 1 + times; i < argc && count < 8; i++) all[count++] = argv[i];
    if (!times) return vision_main(count, all);
    test_main_begin("gpu_vision", count, all);
    temp_open();
    time_vision();
    temp_close();
    return test_main_end();
}
