// A prompt's product (cuda/gemm.cu) on a GPU: what matrices of each format make of a few rows beside plain sums, and the same bits in tiles of every
// width, of all rows and of rows that are sorted by expert.

#include "inside.h"

#include "gpu.h"

enum { EXPERTS = 3, MOST = 40, SUMMED = 17 };                // MOST: rows, or slots of an expert; SUMMED: rows that are beside plain sums

typedef struct product_case {
    enum format format;
    int rows, cols, block, biased;
} product_case;

static const product_case cases[] = {
    {FORMAT_BF16, 160, 320, 128, 0},  {FORMAT_FP8_BLOCK, 320, 704, 128, 0}, {FORMAT_FP8_ROW, 192, 448, 128, 0},
    {FORMAT_NVFP4, 192, 576, 128, 0}, {FORMAT_MXFP4, 192, 320, 128, 0},     {FORMAT_INT4, 192, 384, 64, 0},
    {FORMAT_INT4, 160, 512, 128, 0},  {FORMAT_INT4_FINE, 192, 320, 32, 0},  {FORMAT_FP8_BLOCK, 64, 64, 128, 0},
    {FORMAT_NVFP4, 64, 64, 128, 0},   {FORMAT_BF16, 64, 64, 128, 0},        {FORMAT_MXFP4, 320, 192, 128, 1},
    {FORMAT_NVFP4, 128, 128, 128, 1}};

// Matrices of the experts, all in one memory; and rows.
typedef struct trial {
    const product_case *c;
    matrix w[EXPERTS], up[EXPERTS];
    uint16_t *x, *half;          // [MOST][cols] F16, there; [slots][rows] what h and part become
    float *act_scale, *y;        // [cols / 64][MOST]; [slots][rows] or [rows / 64][slots] scales of h
    float *weight;               // [slots]
    int32_t *slot_row;           // [slots]
    gemm_tile *tiles;            // and after them their number
} trial;

enum { SLOTS = EXPERTS * MOST, TILES_MOST = SLOTS };

static int sms;

static size_t bytes_of(const matrix *w) {
    size_t bytes = (size_t)w->rows * sizeof(float);
    for (int i = 0; i < formats[w->format]->component_count; i++) bytes += matrix_component_capacity(w, i);
    return (bytes + 255) / 256 * 256;
}

// A random matrix at `at`, with its bias after it.
static matrix make_matrix(const product_case *c, char *at, uint32_t seed) {
    matrix w = {.format = c->format, .rows = c->rows, .cols = c->cols, .block_rows = c->block, .block_cols = c->block};
    char *raw = (char *)device(bytes_of(&w)), *packed = raw;
    for (int i = 0; i < formats[w.format]->component_count; i++) {
        const component *of = &formats[w.format]->components[i];
        const size_t bytes = matrix_component_capacity(&w, i);
        char *here = (char *)allocate(bytes);
        const size_t words = component_words(of, component_rows(of, &w), component_cols(of, &w));
        format_random(w.format, i, seed + (uint32_t)i, here, 0, (uint32_t)words, 1);
        w.component[i] = at;
        copy(of->packed ? packed : at, here, bytes);
        packed += of->packed ? bytes : 0;
        at += bytes;
        free(here);
    }
    if (c->biased) {
        float *bias = random_floats((size_t)w.rows, 1);
        copy(at, bias, (size_t)w.rows * sizeof *bias);
        w.bias = (const float *)(const void *)at;
        free(bias);
    }
    ok(gpu_pack(&w, raw, (char *)w.component[CODES], sms), "packing");
    ok(cudaDeviceSynchronize(), "packing");
    ok(cudaFree(raw), "freeing");
    return w;
}

static trial make_trial(const product_case *c) {
    const matrix like = {.format = c->format, .rows = c->rows, .cols = c->cols, .block_rows = c->block, .block_cols = c->block};
    const size_t bytes = bytes_of(&like), count = (size_t)MOST * (size_t)c->cols, scales = (size_t)(c->cols / GEMM_COLS) * MOST;
    char *at = (char *)device(2 * EXPERTS * bytes);
    uint16_t *x = (uint16_t *)allocate(count * sizeof *x);
    float *scale = (float *)allocate(scales * sizeof *scale), *weight = random_floats(SLOTS, 1);
    trial t = {.c = c};
    for (int e = 0; e < EXPERTS; e++) {
        t.w[e] = make_matrix(c, at + (size_t)(2 * e) * bytes, (uint32_t)(100 * e + 1));
        t.up[e] = make_matrix(c, at + (size_t)(2 * e + 1) * bytes, (uint32_t)(100 * e + 51));
    }
    for (size_t i = 0; i < count; i++) x[i] = (uint16_t)((random_bits() & 0x83ff) | (uint32_t)random_int(15, 24) << 10);
    for (size_t i = 0; i < scales; i++) scale[i] = ldexpf(1, -8 * random_int(1, 2));
    t.x = (uint16_t *)device(count * sizeof *x);
    t.act_scale = (float *)device(scales * sizeof *scale);
    t.weight = (float *)device(SLOTS * sizeof *weight);
    t.half = (uint16_t *)device(SLOTS * (size_t)c->rows * sizeof *t.half);
    t.y = (float *)device(SLOTS * (size_t)c->rows * sizeof *t.y);
    t.slot_row = (int32_t *)device(SLOTS * sizeof *t.slot_row);
    t.tiles = (gemm_tile *)device((TILES_MOST + 1) * sizeof *t.tiles);
    copy(t.x, x, count * sizeof *x);
    copy(t.act_scale, scale, scales * sizeof *scale);
    copy(t.weight, weight, SLOTS * sizeof *weight);
    free(x), free(scale), free(weight);
    return t;
}

static void trial_free(trial *t) {
    ok(cudaFree((void *)t->w[0].component[CODES]), "freeing");
    ok(cudaFree(t->x), "freeing"), ok(cudaFree(t->half), "freeing"), ok(cudaFree(t->act_scale), "freeing"), ok(cudaFree(t->y), "freeing");
    ok(cudaFree(t->weight), "freeing"), ok(cudaFree(t->slot_row), "freeing"), ok(cudaFree(t->tiles), "freeing");
}

// What a launch stores: y, and h or part.
typedef struct outcome {
    float y[SLOTS * 320];
    uint16_t half[SLOTS * 320];
} outcome;

// T rows through the first matrix, or, with `counts` slots of each expert, through all of them, in tiles of `width` tokens.
static void multiply(const trial *t, enum gemm_out out, int T, const int *counts, int width, outcome *to) {
    const size_t all = SLOTS * (size_t)t->c->rows;
    gemm_tile tiles[TILES_MOST] = {};
    int count = 0, slots = 0;
    gpu_gemm p;
    memset(&p, 0, sizeof p);
    ok(cudaMemset(t->half, 0, all * sizeof *t->half), "clearing");
    float *before = (float *)allocate(all * sizeof *before);
    for (size_t i = 0; i < all; i++) before[i] = (float)(i % 7);
    copy(t->y, before, all * sizeof *before);
    free(before);
    for (int e = 0; counts && e < EXPERTS; e++)
        for (int i = 0; i < counts[e]; i += width) {
            const int64_t at = (const char *)t->w[e].component[CODES] - (const char *)t->w[0].component[CODES];
            const gemm_tile tile = {at, slots, min_int(counts[e] - i, width)};
            tiles[count++] = tile;
            slots += tile.count;
        }
    const gemm_rows in = {t->x, t->act_scale, counts ? 1 : t->c->cols / GEMM_COLS};
    p.in = in;
    p.T = counts ? slots : T;
    p.factor = 1;
    gemm_product *o = prefill_product(&p, &t->w[0], out, t->y);
    o->up = gpu_matrix_of(&t->up[0]);
    o->weight = out == GEMM_ADD || out == GEMM_PART ? t->weight : NULL;
    o->to = t->half;
    o->to_scale = t->y;
    if (counts) {
        int32_t row[SLOTS];
        for (int i = 0; i < SLOTS; i++) row[i] = (i * 7 + 3) % MOST;
        copy(t->slot_row, row, sizeof row);
        copy(t->tiles, tiles, sizeof tiles);
        copy(t->tiles + TILES_MOST, &count, sizeof count);
        p.row = t->slot_row;
        p.tiles = t->tiles;
        p.tile_count = (const int *)(const void *)(t->tiles + TILES_MOST);
        p.in.act_scale = t->act_scale;
    }
    gemm_launch(&p, width, counts ? count + 2 : (T + width - 1) / width, NULL);
    ok(cudaGetLastError(), "launching");
    ok(cudaDeviceSynchronize(), "multiplying");
    copy(to->y, t->y, all * sizeof *t->y);
    copy(to->half, t->half, all * sizeof *t->half);
}

// y[t][row], and in `size` the sum of magnitudes: block (row, t), one thread.
static __global__ void plain_product(const __grid_constant__ gpu_matrix w, const uint16_t *x, const float *act_scale, int T, double *y,
                                     double *size) {
    const int row = blockIdx.x, t = blockIdx.y, at = t * w.rows + row;
    double sum = w.bias ? w.bias[row] : 0, magnitude = fabs(sum);
    for (int k = 0; k < w.cols; k++) {
        const double v = (double)gpu_weight(&w, row, k) * f16_floats(x[(size_t)t * w.cols + k]).x * act_scale[k / GEMM_COLS * T + t];
        sum += v;
        magnitude += fabs(v);
    }
    y[at] = sum;
    size[at] = magnitude;
}

static void test_sums(const trial *t, int T, const outcome *got) {
    const size_t all = (size_t)T * (size_t)t->c->rows;
    double *there = (double *)device(2 * all * sizeof *there), *want = (double *)allocate(2 * all * sizeof *want), worst = 0;
    plain_product<<<dim3((unsigned)t->c->rows, (unsigned)T), 1>>>(gpu_matrix_of(&t->w[0]), t->x, t->act_scale, T, there, there + all);
    copy(want, there, 2 * all * sizeof *want);
    for (size_t i = 0; i < all; i++) worst = fmax(worst, fabs(got->y[i] - want[i]) / want[all + i]);
    CHECK(worst < 2e-6, "%s, %d x %d, %d rows: %.2g of the terms' sum off", formats[t->c->format]->name, t->c->rows, t->c->cols, T, worst);
    free(want);
    ok(cudaFree(there), "freeing");
}

static void test_widths(const trial *t, enum gemm_out out, int T, const int *counts) {
    static const int widths[] = {16, 64, 128};
    static outcome want, got;
    multiply(t, out, T, counts, 32, &want);
    if (out == GEMM_STORE && T == SUMMED) test_sums(t, T, &want);
    for (int i = 0; i < (counts || out == GEMM_PART ? 2 : 3); i++) {
        multiply(t, out, T, counts, widths[i], &got);
        const size_t all = SLOTS * (size_t)t->c->rows;
        CHECK(!memcmp(want.y, got.y, all * sizeof *got.y) && !memcmp(want.half, got.half, all * sizeof *got.half),
              "%s, %d x %d, %s, %d rows of kind %d: other bits in tiles of %d than in tiles of 32", formats[t->c->format]->name,
              t->c->rows, t->c->cols, counts ? "by expert" : "all", T, (int)out, widths[i]);
    }
}

int main(int argc, char **argv) {
    static const int lengths[] = {1, 16, SUMMED, MOST}, counts[][EXPERTS] = {{5, 0, 37}, {16, 17, 1}};
    cudaDeviceProp about;
    test_main_begin("gpu_product", argc, argv);
    ok(cudaGetDeviceProperties(&about, 0), "asking for the GPU");
    sms = about.multiProcessorCount;
    for (size_t i = 0; i < COUNT(cases); i++) {
        trial t = make_trial(&cases[i]);
        for (int out = GEMM_STORE; out <= GEMM_PART; out++) {
            if (out == GEMM_SWIGLU && cases[i].rows % 64) continue;
            for (size_t k = 0; k < COUNT(lengths); k++) test_widths(&t, (enum gemm_out)out, lengths[k], NULL);
            for (size_t k = 0; k < COUNT(counts); k++) test_widths(&t, (enum gemm_out)out, 0, counts[k]);
        }
        trial_free(&t);
    }
    return test_main_end();
}
