// What GPUs of a group give each other (exchange/peers.cu): shares of sums, logits, rows, blocks of a prompt, against plain loops, the same bits
// on all of them; and that nobody waits for ever. With --time: how long an exchange takes.
//
// Contents   1. Members   2. Sums   3. Logits   4. Rows   5. Blocks   6. Who does not come   7. Times   8. Main

#include "inside.h"

#include "gpu.h"

enum { MOST_MEMBERS = 3, HIDDEN = 5120, ROWS = 1000, VOCAB = 248320 };

typedef struct member {
    int number;
    gpu_queue q;
    gpu_peer box;
    peer me;
    char *memory;
    float *x, *y, *shared, *norm, *out;                     // [ROWS][HIDDEN]; norm [HIDDEN]; out [.][VOCAB]
    pthread_t thread;
    void (*body)(struct member *);
    double seconds;
} member;

static member members[MOST_MEMBERS];
static peer *peers_of_all[MOST_MEMBERS];
static int ranges, ranks, count;

static float *floats(size_t n) {
    return (float *)device(n * sizeof(float));
}

static void finish(member *m) {
    ok(m->q.status, m->q.failed ? m->q.failed : "a kernel");
    ok(cudaGetLastError(), "a kernel");
    ok(cudaStreamSynchronize(m->q.stream), "a kernel");
}

// ---- 1. Members -----------------------------------------------------------------------------------------------------

static void lay_out(member *m, layout *l) {
    const peer_sizes sizes = {.ranges = ranges, .ranks = ranks, .hidden = HIDDEN, .sum_cols = 2 * HIDDEN,
                              .vocab_share = (size_t)((VOCAB - 1) / ranks + 1), .block_rows = ROWS};
    peers_layout(l, &m->box, m->me.at.range, &sizes);
}

static void open_member(member *m, int number) {
    cudaDeviceProp about;
    layout l = layout_from(NULL);
    memset(m, 0, sizeof *m);
    m->number = number;
    m->me.all = peers_of_all;
    m->me.at.ranges = ranges;
    m->me.at.ranks = ranks;
    m->me.at.range = number / ranks;
    m->me.at.rank = number % ranks;
    peers_of_all[number] = &m->me;
    ok(cudaSetDevice(number), "a GPU");
    ok(cudaGetDeviceProperties(&about, number), "a GPU");
    m->q.sms = about.multiProcessorCount;
    m->q.shared = (int)about.sharedMemPerMultiprocessor;
    m->q.dependent = about.major >= 9;
    m->q.stages = ALL_STAGES;
    ok(cudaStreamCreateWithFlags(&m->q.stream, cudaStreamNonBlocking), "a stream");
    lay_out(m, &l);
    m->memory = (char *)floats(l.used);
    l = layout_from((float *)(void *)m->memory);
    lay_out(m, &l);
    m->x = floats((size_t)ROWS * HIDDEN);
    m->y = floats((size_t)ROWS * HIDDEN);
    m->shared = floats((size_t)ROWS * HIDDEN);
    m->norm = floats(HIDDEN);
    m->out = floats((size_t)8 * VOCAB);
    ok(cudaDeviceSynchronize(), "clearing");
    peers_open(&m->q, &m->box, &m->me, number);
}

static void open_all(int of_ranges, int of_ranks) {
    ranges = of_ranges;
    ranks = of_ranks;
    count = ranges * ranks;
    for (int i = 0; i < count; i++) open_member(&members[i], i);
    for (int i = 0; i < count; i++) {
        ok(cudaSetDevice(i), "a GPU");
        peers_connect(&members[i].q, &members[i].box);
        finish(&members[i]);
    }
}

static void close_all(void) {
    for (int i = 0; i < count; i++) {
        member *m = &members[i];
        ok(cudaSetDevice(i), "a GPU");
        finish(m);
        peers_close(&m->box);
        float *const taken[] = {m->x, m->y, m->shared, m->norm, m->out, (float *)(void *)m->memory};
        for (size_t k = 0; k < sizeof taken / sizeof *taken; k++) ok(cudaFree(taken[k]), "freeing");
        ok(cudaStreamDestroy(m->q.stream), "a stream");
        free(m->q.nodes);
        free(m->q.launches);
    }
}

static void *member_main(void *argument) {
    member *m = (member *)argument;
    ok(cudaSetDevice(m->number), "a GPU");
    m->body(m);
    finish(m);
    return NULL;
}

// Each member's body on a thread of its own.
static void let_all(void (*body)(member *)) {
    for (int i = 0; i < count; i++) {
        members[i].body = body;
        if (thread_start(&members[i].thread, member_main, &members[i])) exit(2);
    }
    for (int i = 0; i < count; i++) pthread_join(members[i].thread, NULL);
}

static void check_all_came(void) {
    for (int i = 0; i < count; i++) CHECK(peers_lost(&members[i].box) < 0, "GPU %d waited for member %d", i, peers_lost(&members[i].box));
}

// A value of element i of a row: what is wanted of all is computed here by the same additions.
static float value(int seed, int row, int i) {
    uint32_t h = (uint32_t)(seed * 7919 + row * 104729 + i) * 2654435761u;
    h ^= h >> 15;
    return (float)(int32_t)(h * 2246822519u) * 0x1p-31f;
}

static float *filled(int seed, int rows, int cols) {
    float *v = (float *)malloc((size_t)rows * (size_t)cols * sizeof *v);
    for (int t = 0; t < rows && v; t++)
        for (int i = 0; i < cols; i++) v[(size_t)t * (size_t)cols + (size_t)i] = value(seed, t, i);
    return v;
}

static void put(member *m, float *to, int seed, int rows, int cols) {
    float *v = filled(seed, rows, cols);
    ok(cudaMemcpyAsync(to, v, (size_t)rows * (size_t)cols * sizeof *v, cudaMemcpyDefault, m->q.stream), "a copy");
    finish(m);
    free(v);
}

static float *fetched(member *m, const float *from, size_t n) {
    float *v = (float *)malloc(n * sizeof *v);
    ok(cudaSetDevice(m->number), "a GPU");
    ok(cudaMemcpyAsync(v, from, n * sizeof *v, cudaMemcpyDefault, m->q.stream), "a copy");
    finish(m);
    return v;
}

// ---- 2. Sums --------------------------------------------------------------------------------------------------------

enum { ROUNDS = 3 };
static struct { int rows, cols, normed, branched; } sum;

// Residuals, and each rank's shares, anew for each round.
static void sum_rows(member *m) {
    put(m, m->x, 1, sum.rows, sum.cols);
    put(m, m->norm, 2, 1, sum.cols);
    for (int round = 0; round < ROUNDS; round++) {
        put(m, m->y, 10 + 10 * round + m->number, sum.rows, sum.cols);
        put(m, m->shared, 100 + 10 * round + m->number, sum.rows, sum.cols);
        const gpu_residual of = {.link = {}, .x = m->x, .y = m->y, .shared = sum.branched ? m->shared : NULL, .norm = sum.normed ? m->norm : NULL,
                                 .norm_routed = m->norm, .norm_shared = m->norm, .scale = NULL, .cols = sum.cols, .eps = 1e-6f};
        const gpu_rank_output p = gpu_rank_output_of(&of, &m->box, sum.rows, 0);
        gpu_sum_output<<<gpu_rank_blocks(&p), GPU_THREADS, 0, m->q.stream>>>(p);
        finish(m);
    }
}

static float total(int seed, int t, int i) {
    float v = value(seed, t, i);
    for (int r = 1; r < ranks; r++) v += value(seed + r, t, i);
    return v;
}

// A row in double, round after round.
static void sum_row(int t, double *x) {
    for (int i = 0; i < sum.cols; i++) x[i] = value(1, t, i);
    for (int round = 0; round < ROUNDS; round++) {
        double y[HIDDEN], squares[2] = {0, 0};
        for (int i = 0; i < sum.cols; i++) {
            const double a = total(10 + 10 * round, t, i), b = total(100 + 10 * round, t, i);
            squares[0] += a * a;
            squares[1] += b * b;
        }
        for (int i = 0; i < sum.cols; i++) {
            y[i] = total(10 + 10 * round, t, i);
            if (sum.branched)
                y[i] = y[i] * value(2, 0, i) / sqrt(squares[0] / sum.cols + 1e-6) +
                       total(100 + 10 * round, t, i) * value(2, 0, i) / sqrt(squares[1] / sum.cols + 1e-6);
        }
        double square = 0;
        for (int i = 0; i < sum.cols; i++) square += y[i] * y[i];
        for (int i = 0; i < sum.cols; i++) x[i] += sum.normed ? y[i] * value(2, 0, i) / sqrt(square / sum.cols + 1e-6) : y[i];
    }
}

static void try_sum(int rows, int cols, int normed, int branched) {
    const size_t n = (size_t)rows * (size_t)cols;
    double x[HIDDEN], worst = 0;
    sum.rows = rows;
    sum.cols = cols;
    sum.normed = normed;
    sum.branched = branched;
    let_all(sum_rows);
    check_all_came();
    float *got = fetched(&members[0], members[0].x, n);
    for (int i = 1; i < count; i++) {
        float *other = fetched(&members[i], members[i].x, n);
        CHECK(!memcmp(got, other, n * sizeof *got), "sums of %d rows of %d: GPU %d has other bits", rows, cols, i);
        free(other);
    }
    int exact = 1;
    for (int t = 0; t < rows; t += rows > 100 ? 37 : 1) {
        sum_row(t, x);
        for (int i = 0; i < cols; i++) {
            float plain = value(1, t, i);
            for (int round = 0; round < ROUNDS; round++) plain += total(10 + 10 * round, t, i);
            exact &= normed || branched || plain == got[(size_t)t * (size_t)cols + (size_t)i];
            worst = fmax(worst, fabs(x[i] - (double)got[(size_t)t * (size_t)cols + (size_t)i]));
        }
    }
    CHECK(exact, "sums of %d rows of %d, ranks %d: not what adding in their order gives", rows, cols, ranks);
    CHECK(worst < 1e-5, "sums of %d rows of %d, normed %d, branched %d: off by %g", rows, cols, normed, branched, worst);
    free(got);
}

// ---- 3. Logits ------------------------------------------------------------------------------------------------------

static int gathered, gathered_rows;

static int own_logits(int rank) {
    return gpu_rank_logits(gathered, (VOCAB - 1) / ranks + 1, rank);
}

static float logit(int t, int i) {
    return value(7, t, i);
}

static void gather(member *m) {
    const int rank = m->me.at.rank, own = own_logits(rank), first = ((VOCAB - 1) / ranks + 1) * rank;
    float *v = (float *)malloc((size_t)gathered_rows * (size_t)max_int(own, 1) * sizeof *v);
    for (int t = 0; t < gathered_rows; t++)
        for (int i = 0; i < own; i++) v[(size_t)t * (size_t)own + (size_t)i] = logit(t, first + i);
    ok(cudaMemcpyAsync(m->box.logits, v, (size_t)gathered_rows * (size_t)own * sizeof *v, cudaMemcpyDefault, m->q.stream), "a copy");
    for (int round = 0; round < ROUNDS; round++)
        gpu_gather_logits<<<PEER_LOGIT_LANES, GPU_THREADS, 0, m->q.stream>>>(gpu_gather_of(&m->box, m->box.logits, gathered_rows, gathered, m->out));
    finish(m);
    free(v);
}

static void try_gather(int rows, int n) {
    gathered = n;
    gathered_rows = rows;
    let_all(gather);
    check_all_came();
    for (int k = 0; k < count; k++) {
        float *got = fetched(&members[k], members[k].out, (size_t)rows * (size_t)n);
        int same = 1;
        for (int t = 0; t < rows; t++)
            for (int i = 0; i < n; i++) same &= got[(size_t)t * (size_t)n + (size_t)i] == logit(t, i);
        CHECK(same, "%d logits of %d rows, ranks %d: GPU %d has others", n, rows, ranks, k);
        free(got);
    }
}

// ---- 4. Rows --------------------------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(GPU_THREADS) send_rows(const __grid_constant__ peer_rows p, const float *x, int cols) {
    const int col = blockIdx.x * GPU_THREADS + threadIdx.x;
    peer_send(p, blockIdx.y, blockIdx.x, cols, col < cols ? x[(size_t)blockIdx.y * cols + col] : 0, col < cols);
}

static __global__ void __launch_bounds__(GPU_THREADS) receive_rows(const __grid_constant__ peer_rows p, float *x, int cols) {
    const int col = blockIdx.x * GPU_THREADS + threadIdx.x;
    const float v = peer_receive(p, blockIdx.y, blockIdx.x, cols, col < cols);
    if (col < cols) x[(size_t)blockIdx.y * cols + col] = v;
}

static const int sent_rows[] = {1, 1, 1, 4, 1, PASS_ROWS_MAX, PASS_ROWS_MAX, PASS_ROWS_MAX, 3, 1};
enum { SENT = sizeof sent_rows / sizeof *sent_rows };

// The first range sends without waiting; the others give on what they got.
static void hand_rows(member *m) {
    const dim3 lanes((HIDDEN - 1) / GPU_THREADS + 1);
    for (int k = 0; k < SENT; k++) {
        const dim3 grid(lanes.x, (unsigned)sent_rows[k]);
        if (!m->me.at.range) put(m, m->x, 20 + k, sent_rows[k], HIDDEN);
        else receive_rows<<<grid, GPU_THREADS, 0, m->q.stream>>>(peers_rows(&m->box, 1), m->x, HIDDEN);
        if (m->me.at.range + 1 < ranges) send_rows<<<grid, GPU_THREADS, 0, m->q.stream>>>(peers_rows(&m->box, 0), m->x, HIDDEN);
        if (m->me.at.range + 1 < ranges) continue;
        float *got = fetched(m, m->x, (size_t)sent_rows[k] * HIDDEN);
        int same = 1;
        for (int t = 0; t < sent_rows[k]; t++)
            for (int i = 0; i < HIDDEN; i++) same &= got[(size_t)t * HIDDEN + (size_t)i] == value(20 + k, t, i);
        CHECK(same, "rows %d, %d of them: others came", k, sent_rows[k]);
        free(got);
    }
}

// ---- 5. Blocks ------------------------------------------------------------------------------------------------------

static void hand_blocks(member *m) {
    for (int k = 0; k < 4; k++) {
        const int rows = k % 2 ? ROWS : 77;
        if (!m->me.at.range) put(m, m->x, 40 + k, rows, HIDDEN);
        else peers_receive_block(&m->q, &m->box, m->x, rows);
        if (m->me.at.range + 1 < ranges) peers_send_block(&m->q, &m->box, m->x, rows);
        if (m->me.at.range + 1 < ranges) continue;
        float *got = fetched(m, m->x, (size_t)rows * HIDDEN);
        int same = 1;
        for (int t = 0; t < rows; t += 19)
            for (int i = 0; i < HIDDEN; i++) same &= got[(size_t)t * HIDDEN + (size_t)i] == value(40 + k, t, i);
        CHECK(same, "block %d of %d rows: others came", k, rows);
        free(got);
    }
}

// ---- 6. Who does not come -------------------------------------------------------------------------------------------

static void all_but_the_last(member *m) {
    if (m->number + 1 < count) sum_rows(m);
}

// Runs out the patience of some: they name the one, once.
static void try_absent(void) {
    sum.rows = 2;
    sum.cols = 2048;
    sum.normed = sum.branched = 0;
    let_all(all_but_the_last);
    for (int i = 0; i + 1 < count; i++)
        CHECK(peers_lost(&members[i].box) == count - 1, "member %d does not know who was absent, but %d", i, peers_lost(&members[i].box));
    CHECK(peers_lost(&members[count - 1].box) < 0, "the absent one waits");
    peers_end(&members[count - 1].box);
    CHECK(peers_lost(&members[count - 1].box) == count - 1, "the group's end is not told");
}

// ---- 7. Times -------------------------------------------------------------------------------------------------------

enum { REPEATS = 80, TIMED = 20 };
static struct { int rows, cols, logits; } timed;

static void time_member(member *m) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    cudaEvent_t from, to;
    float ms;
    m->q.peer = &m->box;
    ok(cudaEventCreate(&from), "an event");
    ok(cudaEventCreate(&to), "an event");
    ok(cudaStreamBeginCapture(m->q.stream, cudaStreamCaptureModeThreadLocal), "capturing");
    for (int i = 0; i < REPEATS; i++) {
        const gpu_residual of = {.link = {}, .x = m->x, .y = m->y, .shared = NULL, .norm = NULL, .norm_routed = NULL, .norm_shared = NULL,
                                 .scale = NULL, .cols = timed.cols, .eps = 1e-6f};
        const gpu_rank_output p = gpu_rank_output_of(&of, &m->box, timed.rows, 0);
        const gpu_gather g = gpu_gather_of(&m->box, m->box.logits, timed.rows, VOCAB, m->out);
        if (timed.logits) gpu_record(&m->q, KERNEL_GATHER, "", gpu_gather_logits, PEER_LOGIT_LANES, 1, 0, &g);
        else gpu_record(&m->q, KERNEL_SUM_OUTPUT, "", gpu_sum_output, gpu_rank_blocks(&p), 1, 0, &p);
    }
    gpu_submit(&m->q);
    ok(cudaStreamEndCapture(m->q.stream, &graph), "capturing");
    ok(cudaGraphInstantiate(&ready, graph, 0), "a graph");
    m->seconds = 1;
    for (int i = 0; i < TIMED; i++) {
        ok(cudaEventRecord(from, m->q.stream), "an event");
        ok(cudaGraphLaunch(ready, m->q.stream), "a graph");
        ok(cudaEventRecord(to, m->q.stream), "an event");
        finish(m);
        ok(cudaEventElapsedTime(&ms, from, to), "an event");
        if (ms * 1e-3 < m->seconds) m->seconds = ms * 1e-3;
    }
    ok(cudaGraphExecDestroy(ready), "a graph");
    ok(cudaGraphDestroy(graph), "a graph");
}

static void time_exchange(int rows, int cols, int logits) {
    timed.rows = rows;
    timed.cols = cols;
    timed.logits = logits;
    let_all(time_member);
    const double each = members[0].seconds / REPEATS, bytes = 4.0 * rows * (logits ? VOCAB / ranks : cols);
    printf("%s, %4d rows of %6d: %8.2f us, %6.1f GB/s of floats each way\n", logits ? "logits" : "sum", rows, logits ? VOCAB : cols, each * 1e6,
           bytes / each / 1e9);
}

static void time_all(void) {
    for (int rows = 1; rows <= 64; rows *= 4) time_exchange(rows, 2048, 0);
    time_exchange(1, 5120, 0);
    time_exchange(ROWS, 2048, 0);
    time_exchange(ROWS, 5120, 0);
    for (int i = 0; i < 2; i++)
        for (int rows = 1; rows <= 4; rows *= 2) time_exchange(rows, VOCAB, 1);
    check_all_came();
}

// ---- 8. Main --------------------------------------------------------------------------------------------------------

static void try_ranks(void) {
    for (int rows = 1; rows <= 4; rows++) try_sum(rows, 2048, 0, 0);
    try_sum(64, 2560, 0, 0);
    try_sum(3, 516, 0, 0);
    try_sum(1, HIDDEN, 0, 0);
    try_sum(2, 2816, 1, 1);
    try_sum(64, 2048, 1, 0);
    try_sum(3, 516, 1, 1);
    if (!test_brief) try_sum(ROWS, 2560, 0, 0);
    if (!test_brief) try_sum(ROWS, 516, 1, 0);
    try_gather(1, VOCAB);
    try_gather(4, 1000);
    try_gather(2, 65536);
    if (!test_brief) try_gather(5, VOCAB);
}

int main(int argc, char **argv) {
    const int times = argc > 1 && !strcmp(argv[1], "--time");
    int gpus = 0;
    test_main_begin("gpu_exchange", argc, argv);
    ok(cudaGetDeviceCount(&gpus), "counting GPUs");
    if (gpus < 2) {
        test_skip("an exchange needs two GPUs");
        return test_main_end();
    }
    for (int n = 2; n <= gpus && n <= MOST_MEMBERS; n++) {
        open_all(1, n);
        if (times) time_all();
        else try_ranks();
        if (!times) try_absent();
        close_all();
        if (times) break;
        open_all(n, 1);
        let_all(hand_rows);
        let_all(hand_blocks);
        check_all_came();
        close_all();
    }
    return test_main_end();
}
