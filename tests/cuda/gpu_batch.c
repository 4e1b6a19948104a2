// Projections of many token rows (cuda/batch_rows.cu, cuda/batch_tile.cu), on a GPU: every row has the bits that it has alone in the kernels
// of a step, whatever rows are beside it. With --time: how long they take, against a loop that reads as many bytes. small: matrices of few rows
// alone, which is enough for the simulated GPU.
//
// Contents   1. Matrices   2. Rows   3. Projections   4. The same bits   5. Times   6. Main

#include "inside.h"

#include "gpu.h"

enum { ROWS = BATCH_ROWS_MAX, COLS = 8192, MOST = 248320 };

static gpu_queue q;
static gpu_batch batch;
static char *raw;                                            // a matrix before it is packed
static float *x, *norm_weights, *squares, *alone, *together, *before, *clean, *biases;
static unsigned *differing;
static int most = MOST;                                      // rows of a matrix

static size_t raw_bytes(void) { return (size_t)most * 2048 * 2; }

static void finish(void) {
    ok(q.status, q.failed ? q.failed : "a kernel");
    ok(cudaStreamSynchronize(q.stream), "a kernel");
}

// ---- 1. Matrices ----------------------------------------------------------------------------------------------------

static __global__ void random_words(enum format f, int component, uint32_t seed, char *to, uint32_t words) {
    format_random(f, component, seed, to, blockIdx.x * blockDim.x + threadIdx.x, words, gridDim.x * blockDim.x);
}

static size_t matrix_size(const matrix *w) {
    size_t bytes = 0;
    for (int i = 0; i < formats[w->format]->component_count; i++) bytes += matrix_component_capacity(w, i);
    return bytes;
}

// A random matrix at `at`, packed.
static matrix matrix_at(char *at, enum format f, int rows, int cols, uint32_t seed) {
    matrix w = try_shape(f, rows, cols);
    char *from = raw;
    for (int i = 0; i < formats[f]->component_count; i++) {
        const component *of = &formats[f]->components[i];
        w.component[i] = at;
        random_words<<<1024, 256, 0, q.stream>>>(f, i, seed + (uint32_t)i, of->packed ? from : at,
                                                 (uint32_t)component_words(of, component_rows(of, &w), component_cols(of, &w)));
        at += matrix_component_capacity(&w, i);
        from += of->packed ? matrix_component_capacity(&w, i) : 0;
    }
    finish();
    ok(gpu_pack(&w, raw, (char *)w.component[CODES], q.sms), "packing");
    ok(cudaDeviceSynchronize(), "packing");
    return w;
}

static matrix matrix_new(enum format f, int rows, int cols, uint32_t seed) {
    const matrix w = try_shape(f, rows, cols);
    return matrix_at((char *)device(matrix_size(&w)), f, rows, cols, seed);
}

static bool allowed(enum format f, int cols) {
    return !(f == FORMAT_NVFP4 && cols % NVFP4_GROUP) && !(f == FORMAT_MXFP4 && cols % MXFP4_GROUP) && !(format_has_groups(f) && cols % format_k_block_cols(f));
}

// ---- 2. Rows --------------------------------------------------------------------------------------------------------

static __device__ float random_at(uint32_t i) {
    i = (i ^ i >> 16) * 0x7feb352du;
    i = (i ^ i >> 15) * 0x846ca68bu;
    return (float)(int32_t)(i ^ i >> 16) * 0x1p-31f;
}

static __global__ void random_floats(float *to, size_t n, uint32_t seed, float offset) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        to[i] = offset + random_at((uint32_t)i * 7 + seed) * (i % 97 ? 1 : 20);
}

static void fill(float *to, size_t n, uint32_t seed, float offset) {
    random_floats<<<1024, 256, 0, q.stream>>>(to, n, seed, offset);
}

// Rows t with t % 2 == turn become NaN, infinity, 1e38 or denormals, in turn.
static __global__ void spoil(float *to, int cols, int turn) {
    const int t = blockIdx.x, kind = t / 2 % 4;
    const float with = kind == 0 ? __int_as_float(0x7fffffff) : kind == 1 ? __int_as_float(0x7f800000) : kind == 2 ? 1e38f : 1e-40f;
    for (int i = threadIdx.x; t % 2 == turn && i < cols; i += blockDim.x) to[(size_t)t * cols + i] = with;
}

static __global__ void count_differing(const float *a, const float *b, size_t n, unsigned *count) {
    unsigned own = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        own += __float_as_uint(a[i]) != __float_as_uint(b[i]);
    if (own) atomicAdd(count, own);
}

// ---- 3. Projections -------------------------------------------------------------------------------------------------

enum prologue { PLAIN, NORM, GATED, GROUPED, PROLOGUES };
static const char *const prologue_names[] = {"plain rows", "norm rows", "gated rows", "rows in groups"};

// What is projected: matrices of one width; with `up` the first is one of a pair, squared: of the first there is h. stored: the output of plain and gated rows is not added.
typedef struct job {
    enum prologue in;
    int count, cols, pair, squared, stored;
    activation act;
    matrix w[PROJECTIONS], up;
} job;

static int y_rows(const job *j) {
    int rows = 0;
    for (int i = 0; i < j->count; i++) rows += j->w[i].rows;
    return rows;
}

template <class IN> static void add_segments(gpu_projection<IN> *p, const job *j, float *y, int rows) {
    for (int i = 0; i < j->count; i++) {
        gpu_add_segment(p, &j->w[i], y);
        if (i == 0 && (j->pair || j->squared)) {
            if (j->pair) p->segment[0].up = gpu_matrix_of(&j->up);
            p->segment[0].h = y;
            p->segment[0].y = NULL;
            p->h_row = (size_t)j->w[0].rows;
        }
        y += (size_t)rows * (size_t)j->w[i].rows;
    }
}

static int by_batch;                                         // as many rows are, also where they are few

template <class IN> static void record_any(enum kernel_kind kind, gpu_projection<IN> *p) {
    if (by_batch) gpu_record_batch(&q, kind, p);
    else gpu_record_projection(&q, kind, p);
}

// Of gated rows by heads of TILE columns, each with four sums of squares, or by eight groups with 16.
template <class IN> static gpu_projection<IN> gated(const job *j, epilogue end, int t, int T, float *y) {
    gpu_projection<IN> p = gpu_projection_of<IN>(T, j->cols);
    const int cols = j->in == GROUPED ? j->cols / 8 : TILE;
    p.end = end;
    p.in.o = x + (size_t)t * (size_t)j->cols;
    p.in.per_head = reciprocal_of(cols);
    p.in.scale = 1.0f / (float)cols;
    p.in.heads = j->cols / cols;
    p.in.stride = j->in == GROUPED ? 16 : 4;
    p.in.squares = squares + (size_t)t * (size_t)(p.in.heads * p.in.stride);
    p.in.eps = 1e-6f;
    add_segments(&p, j, y, T);
    return p;
}

// Rows t to t + T - 1 to y, which has the matrices' results one after another.
static void record(const job *j, int t, int T, float *y) {
    const float *from = x + (size_t)t * (size_t)j->cols;
    const epilogue end = {.output = j->stored || j->in == NORM ? OUTPUT_STORE : OUTPUT_ADD, .act = j->act};
    if (j->in == PLAIN) {
        gpu_projection<gpu_plain_rows> p = gpu_projection_of<gpu_plain_rows>(T, j->cols);
        p.end = end;
        p.in.x = from;
        add_segments(&p, j, y, T);
        record_any(KERNEL_O_PROJ, &p);
    } else if (j->in == NORM) {
        gpu_projection<gpu_norm_rows> p = gpu_norm_projection(from, norm_weights, j->cols, T, 1e-6f);
        p.end = end;
        add_segments(&p, j, y, T);
        record_any(j->pair || j->squared ? KERNEL_ROUTER : KERNEL_IN_PROJ, &p);
    } else {
        gpu_projection<gpu_grouped_rows> one = gated<gpu_grouped_rows>(j, end, t, T, y);
        if (j->in == GROUPED && !by_batch && gpu_record_grouped<shape_35b_a3b>(&q, &one)) return;
        gpu_projection<gpu_gated_rows> p = gated<gpu_gated_rows>(j, end, t, T, y);
        record_any(KERNEL_OUT_PROJ, &p);
    }
}

// y of a projection is what was there before, for those that add.
static void prepare_y(float *y, size_t n) {
    ok(cudaMemcpyAsync(y, before, n * sizeof *y, cudaMemcpyDeviceToDevice, q.stream), "copying");
}

// ---- 4. The same bits -----------------------------------------------------------------------------------------------

// Words of y[T][..] of those rows that spoil left, that differ from the same rows alone. turn -1: all rows.
static unsigned differences(const job *j, int T, int turn) {
    unsigned count = 0;
    size_t at = 0;
    ok(cudaMemsetAsync(differing, 0, sizeof count, q.stream), "clearing");
    for (int i = 0; i < j->count; i++) {
        const size_t rows = (size_t)j->w[i].rows;
        for (int t = 0; t < T; t++) {
            if (t % 2 != turn)
                count_differing<<<64, 256, 0, q.stream>>>(alone + (size_t)t * (size_t)y_rows(j) + at, together + at * (size_t)T + (size_t)t * rows,
                                                          rows, differing);
        }
        at += rows;
    }
    ok(cudaMemcpyAsync(&count, differing, sizeof count, cudaMemcpyDeviceToHost, q.stream), "copying");
    finish();
    return count;
}

static void same_bits(const job *j, const char *what) {
    static const int counts[] = {2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64};
    const size_t floats = (size_t)ROWS * (size_t)j->cols, y = (size_t)y_rows(j);
    const int heads = j->cols / TILE;
    fill(clean, floats, 5, 0);
    fill(squares, (size_t)ROWS * (size_t)max_int(heads * 4, 8 * 16), 9, 25);
    ok(cudaMemcpyAsync(x, clean, floats * sizeof *x, cudaMemcpyDeviceToDevice, q.stream), "copying");
    prepare_y(alone, ROWS * y);
    for (int t = 0; t < ROWS; t++) {
        record(j, t, 1, alone + (size_t)t * y);
        gpu_submit(&q);
    }
    finish();
    const int sms = q.sms;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int turn = -1; turn < 4; turn++) {
            const int T = counts[i], spoilt = turn < 0 ? -1 : turn % 2;
            if (turn > 1 && y > 1000) continue;
            q.sms = turn > 1 ? 1 : sms;                      // on a single SM other kernels are chosen
            ok(cudaMemcpyAsync(x, clean, floats * sizeof *x, cudaMemcpyDeviceToDevice, q.stream), "copying");
            if (turn >= 0) spoil<<<ROWS, 256, 0, q.stream>>>(x, j->cols, spoilt);
            prepare_y(together, (size_t)T * y);
            record(j, 0, T, together);
            gpu_submit(&q);
            const unsigned wrong = differences(j, T, spoilt);
            CHECK(wrong == 0, "%s, %d rows, others %s, %d SMs: %u numbers differ", what, T, turn < 0 ? "clean" : "spoilt", q.sms, wrong);
        }
    q.sms = sms;
}

static void free_job(job *j) {
    for (int i = 0; i < j->count; i++) ok(cudaFree((void *)j->w[i].component[CODES]), "freeing");
    if (j->pair) ok(cudaFree((void *)j->up.component[CODES]), "freeing");
}

static void try_matrix(enum format f, int rows, int cols) {
    char what[96];
    if (!allowed(f, cols)) return;
    job j = {.in = PLAIN, .count = 1, .cols = cols, .pair = 0, .w = {matrix_new(f, rows, cols, 77)}, .up = {}};
    for (int in = 0; in < PROLOGUES; in++) {
        if ((in == GATED && cols % TILE) || (in == GROUPED && cols != shape_35b_a3b::OUT)) continue;
        j.in = (enum prologue)in;
        for (int biased = 0; biased < (rows < 1000 ? 2 : 1); biased++) {
            snprintf(what, sizeof what, "%s %dx%d, %s%s", formats[f]->name, rows, cols, prologue_names[in], biased ? ", a bias, stored" : "");
            j.w[0].bias = biased ? biases : NULL;
            j.stored = biased;
            same_bits(&j, what);
        }
    }
    free_job(&j);
}

// A router's projection: a pair of matrices, and others in another operand order.
static void try_pair(enum format f, enum format other, int rows, int cols) {
    char what[96];
    if (!allowed(f, cols) || !allowed(other, cols)) return;
    job j = {.in = NORM, .count = 4, .cols = cols, .pair = 1,
             .w = {matrix_new(f, rows, cols, 3), matrix_new(other, 256, cols, 4), matrix_new(FORMAT_F32, 1, cols, 5), matrix_new(f, 40, cols, 6)},
             .up = matrix_new(f, rows, cols, 7)};
    snprintf(what, sizeof what, "pair %s %dx%d and %s", formats[f]->name, rows, cols, formats[other]->name);
    same_bits(&j, what);
    j.act = {.limit = 0.75f, .alpha = 1.702f};
    for (int i = 0; i < 3; i++) j.w[i].bias = biases + i;
    j.up.bias = biases + 7;
    snprintf(what, sizeof what, "biased and clamped pair %s %dx%d and %s", formats[f]->name, rows, cols, formats[other]->name);
    same_bits(&j, what);
    free_job(&j);
}

// That of a shared expert without a gate, and a router's.
static void try_squared(enum format f, int rows, int cols) {
    char what[96];
    if (!allowed(f, cols)) return;
    job j = {.in = NORM, .count = 2, .cols = cols, .pair = 0, .squared = 1, .act = {.function = ACTIVATION_RELU},
             .w = {matrix_new(f, rows, cols, 3), matrix_new(FORMAT_BF16, 40, cols, 4)}, .up = {}};
    for (int biased = 0; biased < 2; biased++) {
        snprintf(what, sizeof what, "squared %s %dx%d%s", formats[f]->name, rows, cols, biased ? ", a bias" : "");
        j.w[0].bias = biased ? biases : NULL;
        same_bits(&j, what);
    }
    free_job(&j);
}

static void try_all(void) {
    static const int shapes[][2] = {{24, 64}, {200, 96}, {40, 544}, {88, 1088}, {88, 2688}, {2048, 4096}, {3072, 8192}, {12352, 2048}, {9216, 3072},
                                    {320, 6144}, {4640, 2560}};
    for (int f = 0; f < FORMAT_COUNT; f++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            if (shapes[i][0] <= most && shapes[i][1] <= most) try_matrix((enum format)f, shapes[i][0], shapes[i][1]);
        if (most == MOST) try_pair((enum format)f, FORMAT_BF16, 512, 2048);
        try_pair((enum format)f, FORMAT_FP8_BLOCK, 24, 192);
        try_squared((enum format)f, 24, 192);
        try_squared((enum format)f, 244, 2688);
        printf("%s: %d passed, %d failed\n", formats[f]->name, test_passed, test_failed);
    }
    if (most < MOST) return;
    for (int i = 0; i < 2; i++) {
        const int cols = i ? 2560 : 2048;
        job head = {.in = NORM, .count = 1, .cols = cols, .pair = 0, .w = {matrix_new(i ? FORMAT_NVFP4 : FORMAT_BF16, MOST, cols, 1)}, .up = {}};
        same_bits(&head, i ? "head of Flash-Next" : "head");
        free_job(&head);
    }
}

// ---- 5. Times -------------------------------------------------------------------------------------------------------

enum { CHAIN = 24, TURNS = 9 };

static __global__ void read_all(const uint4 *from, size_t n, unsigned *to) {
    unsigned all = 0;
#pragma unroll 8
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const uint4 v = __ldcs(from + i);
        all |= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (all == 0x12345) *to = all;
}

static int compare_floats(const void *a, const void *b) {
    const float p = *(const float *)a, r = *(const float *)b;
    return (p > r) - (p < r);
}

// Microseconds: the median of graphs of what was recorded.
static double time_graph(int launches) {
    cudaGraph_t graph;
    cudaGraphExec_t run;
    cudaEvent_t from, to;
    float ms[TURNS];
    ok(cudaStreamBeginCapture(q.stream, cudaStreamCaptureModeThreadLocal), "capturing");
    gpu_submit(&q);
    ok(q.status, q.failed ? q.failed : "a kernel");
    ok(cudaStreamEndCapture(q.stream, &graph), "capturing");
    ok(cudaGraphInstantiate(&run, graph, 0), "a graph");
    ok(cudaEventCreate(&from), "an event");
    ok(cudaEventCreate(&to), "an event");
    for (int i = 0; i < TURNS; i++) {
        ok(cudaEventRecord(from, q.stream), "an event");
        ok(cudaGraphLaunch(run, q.stream), "a graph");
        ok(cudaEventRecord(to, q.stream), "an event");
        ok(cudaStreamSynchronize(q.stream), "a graph");
        ok(cudaEventElapsedTime(&ms[i], from, to), "an event");
    }
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    qsort(ms, TURNS, sizeof *ms, compare_floats);
    return ms[TURNS / 2] * 1e3 / launches;
}

// In a chain of projections by different matrices, microseconds: with the preparation of the rows, and without it.
static void time_shape(enum format f, int rows, int cols, enum prologue in, double bus) {
    static const int counts[] = {1, 2, 3, 4, -2, -3, -4, 8, 16, 32, 64};
    const matrix shape = try_shape(f, rows, cols);
    const size_t size = matrix_size(&shape), fits = (size_t)800 << 20;
    const int n = size * CHAIN < fits ? CHAIN : (int)(fits / size) + 1;
    char *at = (char *)device(size * (size_t)n);
    job j = {.in = in, .count = 1, .cols = cols, .pair = 0, .w = {}, .up = {}};
    printf("%s %dx%d, %s: %.1f us at the read loop's speed\n", formats[f]->name, rows, cols, prologue_names[in], (double)packed_bytes(&shape) / bus * 1e6);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int T = counts[i] < 0 ? -counts[i] : counts[i];
        double us[2] = {0, 0};
        for (int alone_too = 0; alone_too < (T == counts[i] && T <= STEP_ROWS ? 1 : 2); alone_too++) {
            for (int k = 0; k < CHAIN; k++) {
                j.w[0] = i == 0 && !alone_too && k < n ? matrix_at(at + size * (size_t)k, f, rows, cols, (uint32_t)k) : j.w[0];
                j.w[0].component[CODES] = at + size * (size_t)(k % n);
                for (int c = 1; c < formats[f]->component_count; c++)
                    j.w[0].component[c] = (const char *)j.w[0].component[c - 1] + matrix_component_capacity(&j.w[0], c - 1);
                const int from = q.count;
                by_batch = counts[i] < 0;
                record(&j, 0, T, together);
                if (!alone_too) continue;
                q.nodes[from] = q.nodes[q.count - 1];
                q.launches[from] = q.launches[q.count - 1];
                q.nodes[from].piece = 0;
                q.count = from + 1;
            }
            us[alone_too] = time_graph(CHAIN);
        }
        printf("  %2d rows%s: %7.1f us, %3.0f %%", T, counts[i] < 0 ? " batch" : "", us[0], (double)packed_bytes(&shape) / bus * 1e8 / us[0]);
        if (us[1] > 0) printf("; the product alone %7.1f us, %3.0f %%", us[1], (double)packed_bytes(&shape) / bus * 1e8 / us[1]);
        printf("\n");
    }
    ok(cudaFree(at), "freeing");
}

static double read_loop(void) {
    double best = 0;
    cudaEvent_t from, to;
    ok(cudaEventCreate(&from), "an event");
    ok(cudaEventCreate(&to), "an event");
    for (int i = 0; i < 8; i++) {
        float ms;
        ok(cudaEventRecord(from, q.stream), "an event");
        read_all<<<q.sms * 2, 1024, 0, q.stream>>>((const uint4 *)raw, raw_bytes() / 16, differing);
        ok(cudaEventRecord(to, q.stream), "an event");
        ok(cudaStreamSynchronize(q.stream), "reading");
        ok(cudaEventElapsedTime(&ms, from, to), "an event");
        if ((double)raw_bytes() / ms * 1e3 > best) best = (double)raw_bytes() / ms * 1e3;
    }
    printf("read loop: %.0f GB/s\n", best / 1e9);
    return best;
}

static void time_all(void) {
    const double bus = read_loop();
    static const enum format of[] = {FORMAT_FP8_BLOCK, FORMAT_NVFP4, FORMAT_INT4, FORMAT_BF16, FORMAT_FP8_ROW};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        time_shape(of[i], 12352, 2048, NORM, bus);
        time_shape(of[i], 2048, 4096, PLAIN, bus);
        time_shape(of[i], 3072, 8192, PLAIN, bus);
    }
    time_shape(FORMAT_BF16, MOST, 2048, NORM, bus);
}

// ---- 6. Main --------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    cudaDeviceProp p;
    const int timed = argc > 1 && !strcmp(argv[1], "--time");
    if (argc > 1 && !strcmp(argv[1], "small")) most = 2047;
    layout l = layout_from(NULL);
    test_main_begin("gpu_batch", argc, argv);
    ok(cudaGetDeviceProperties(&p, 0), "a GPU");
    q.sms = most < MOST ? 64 : p.multiProcessorCount;        // the simulated GPU's are too few for clusters
    q.shared = (int)p.sharedMemPerMultiprocessor;
    q.dependent = p.major >= 9;
    q.stages = ALL_STAGES;
    ok(cudaStreamCreateWithFlags(&q.stream, cudaStreamNonBlocking), "a stream");
    gpu_batch_layout(&l, COLS, ROWS, &batch);
    l = layout_from((float *)device(l.used * sizeof(float)));
    gpu_batch_layout(&l, COLS, ROWS, &batch);
    q.batch = &batch;
    raw = (char *)device(raw_bytes());
    x = (float *)device((size_t)ROWS * COLS * 4);
    clean = (float *)device((size_t)ROWS * COLS * 4);
    norm_weights = (float *)device((size_t)COLS * 4);
    squares = (float *)device((size_t)ROWS * COLS * 4);
    alone = (float *)device((size_t)ROWS * (size_t)most * 4);
    together = (float *)device((size_t)ROWS * (size_t)most * 4);
    before = (float *)device((size_t)ROWS * (size_t)most * 4);
    biases = (float *)device((size_t)COLS * 4);
    differing = (unsigned *)device(sizeof *differing);
    fill(norm_weights, COLS, 3, 1);
    fill(biases, COLS, 17, 0);
    fill(before, (size_t)ROWS * (size_t)most, 11, 0);
    finish();
    if (timed) time_all();
    else try_all();
    return timed ? 0 : test_main_end();
}
