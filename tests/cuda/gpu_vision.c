/* The vision tower on a GPU: what tests/model/test_vision.c has of any device, and a tower of released widths beside the CPU's code.

   Usage: gpu_vision [--brief] [DATA]
          gpu_vision --time            how long a made-up tower of the released size takes for some images, nothing else */

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

/* The fastest of some runs, from patches to features in host memory. */
static void time_vision(void) {
    static const int sides[] = {16, 32, 64, 96, 128};
    const mote_callbacks silent = {0};
    made_folder(&released);
    mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *s = vision_session(m, 1);
    printf("%s\n", mote_model_info(m)->device);
    for (size_t i = 0; i < COUNT(sides); i++) {
        const int n = sides[i] * sides[i];
        float *patches = made_patches(n), *features = (float *)allocate((size_t)(n / 4 * released.out) * sizeof *features);
        double best = INFINITY, first = 0;
        for (int run = 0; run < 6; run++) {
            const double began = seconds();
            EXPECT(MOTE_OK, vision_features(s->slot.runner, patches, sides[i], sides[i], features, &silent, &failure));
            const double took = seconds() - began;
            if (!run) first = took;
            best = took < best ? took : best;
        }
        printf("%4d x %4d pixels, %5d patches: %7.2f ms (the first time %.2f ms)\n", 16 * sides[i], 16 * sides[i], n, best * 1e3, first * 1e3);
        free(patches), free(features);
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
