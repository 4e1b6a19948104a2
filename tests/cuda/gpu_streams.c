// Residual streams (layers/streams.cu) on a GPU, in a step: mixtures, shares and streams beside the CPU's, and bits of a row, which depend neither on
// the rows beside it nor on how many there are.

#include "inside.h"

#include "gpu.h"

static gpu_queue q;

enum { STREAM_ROWS_MOST = PASS_ROWS_MAX };

// Mixers here and there, and rows: R before, an output that is pending, and its shares.
typedef struct trial {
    int hidden, rank, injects;
    stream_mixer here, there;
    streams_gpu g;
    float *x, *y, *before, *got; // x, y, before: [STREAM_ROWS_MOST][..] there; got: here, of x
    float *rows, *given, *shares;                            // the same, here
} trial;

static size_t row_of_streams(const trial *t) { return (size_t)(GPU_STREAMS * t->hidden); }

static float *copied(const float *from, size_t n) {
    float *to = (float *)device(n * sizeof *to);
    copy(to, from, n * sizeof *to);
    return to;
}

static trial make_trial(int hidden, int rank, int injects) {
    trial t = {.hidden = hidden, .rank = rank, .injects = injects};
    const residual_shape s = {.streams = GPU_STREAMS, .mix_rank = rank};
    const size_t rows = STREAM_ROWS_MOST, width = (size_t)(GPU_STREAMS * hidden);
    const float of_width = 4 / sqrtf((float)width);
    device_matrix(rank, (int)width, of_width, q.sms, &t.here.down, &t.there.down);
    device_matrix((int)width, rank, 4 / sqrtf((float)rank), q.sms, &t.here.up, &t.there.up);
    if (injects) device_matrix(GPU_STREAMS, (int)width, of_width, q.sms, &t.here.inject, &t.there.inject);
    t.here.norm = random_floats(width, 1);
    t.there.norm = copied(t.here.norm, width);
    layout l = layout_from(NULL);
    streams_layout_gpu(&l, &s, hidden, (int)rows, &t.g);
    l = layout_from((float *)device((l.used + 64) * sizeof(float)));
    streams_layout_gpu(&l, &s, hidden, (int)rows, &t.g);
    t.rows = random_floats(rows * width, 2);
    t.given = random_floats(rows * (size_t)hidden, 1);
    t.shares = random_floats(rows * GPU_STREAMS, 2);
    t.x = (float *)device(rows * width * sizeof(float));
    t.y = copied(t.given, rows * (size_t)hidden);
    t.before = copied(t.shares, rows * GPU_STREAMS);
    t.got = (float *)allocate(rows * width * sizeof *t.got);
    CHECK(!streams_unsupported_reason(&t.there, GPU_STREAMS), "%d: %s", hidden, streams_unsupported_reason(&t.there, GPU_STREAMS));
    return t;
}

// What a read of rows first .. first + T - 1 leaves: u, shares, R. pending: there is an output; plain: its shares are 1.
typedef struct outcome { float *u, *share, *x; } outcome;

static outcome outcome_new(const trial *t) {
    const size_t rows = STREAM_ROWS_MOST;
    const outcome o = {(float *)allocate(rows * (size_t)t->hidden * sizeof(float)), (float *)allocate(rows * GPU_STREAMS * sizeof(float)),
                       (float *)allocate(rows * row_of_streams(t) * sizeof(float))};
    return o;
}

static void outcome_free(outcome *o) {
    free(o->u);
    free(o->share);
    free(o->x);
}

static void read_there(const trial *t, int first, int T, int pending, int plain, outcome *to) {
    const size_t rows = (size_t)T, hidden = (size_t)t->hidden, at = (size_t)first;
    copy(t->x, t->rows + at * row_of_streams(t), rows * row_of_streams(t) * sizeof(float));
    q.pending = pending ? t->y + at * hidden : NULL;
    q.shares = plain ? NULL : t->before + at * GPU_STREAMS;
    streams_record_read(&q, &t->g, &t->there, t->x, T, t->hidden, 1e-6f);
    const float *share = q.shares;
    gpu_submit(&q);
    ok(q.status, q.failed);
    ok(cudaDeviceSynchronize(), "reading streams");
    copy(to->u, t->g.u, rows * hidden * sizeof(float));
    if (t->injects) copy(to->share, share, rows * GPU_STREAMS * sizeof(float));
    copy(to->x, t->x, rows * row_of_streams(t) * sizeof(float));
}

static void read_here(const trial *t, int T, int pending, int plain, outcome *to) {
    pool *threads = pool_open(1);
    stream_scratch s;
    layout l = layout_from(NULL);
    streams_layout(&l, GPU_STREAMS, t->rank, t->hidden, T, &s);
    float *memory = (float *)allocate((l.used + 64) * sizeof *memory);
    l = layout_from(layout_base(memory));
    streams_layout(&l, GPU_STREAMS, t->rank, t->hidden, T, &s);
    memcpy(to->x, t->rows, (size_t)T * row_of_streams(t) * sizeof(float));
    for (int i = 0; i < T * GPU_STREAMS; i++) s.share[i] = plain ? 1 : t->shares[i];
    if (pending) streams_write(&s, to->x, t->given, T, GPU_STREAMS, t->hidden);
    const stream_job job = {.w = &t->here, .s = &s, .T = T, .streams = GPU_STREAMS, .hidden = t->hidden, .eps = 1e-6f, .x = to->x, .u = to->u};
    streams_read(threads, &job);
    if (t->injects) memcpy(to->share, s.share, (size_t)(T * GPU_STREAMS) * sizeof(float));
    free(memory);
    pool_close(threads);
}

static void compare(const char *what, const trial *t, int T, const float *got, const float *want, size_t n, float most) {
    float off = 0;
    for (size_t i = 0; i < n; i++) off = fmaxf(off, isnan(got[i]) ? INFINITY : fabsf(got[i] - want[i]));
    CHECK(off <= most, "%d x %d, %d rows: %s is off by %g", t->hidden, t->rank, T, what, (double)off);
}

static void test_rows(const trial *t, int T, int pending, int plain) {
    outcome got = outcome_new(t), want = outcome_new(t), alone = outcome_new(t);
    const size_t hidden = (size_t)t->hidden, width = row_of_streams(t);
    read_there(t, 0, T, pending, plain, &got);
    read_here(t, T, pending, plain, &want);
    compare("u", t, T, got.u, want.u, (size_t)T * hidden, 2e-4f);
    if (t->injects) compare("share", t, T, got.share, want.share, (size_t)(T * GPU_STREAMS), 2e-4f);
    compare("R", t, T, got.x, want.x, (size_t)T * width, 1e-6f);
    for (int i = 0; i < T; i += T > 8 ? 13 : 1) {
        read_there(t, i, 1, pending, plain, &alone);
        CHECK(!memcmp(alone.u, got.u + (size_t)i * hidden, hidden * sizeof(float)), "row %d of %d has another u than alone", i, T);
        CHECK(!t->injects || !memcmp(alone.share, got.share + i * GPU_STREAMS, GPU_STREAMS * sizeof(float)), "row %d of %d has other shares than alone", i, T);
        CHECK(!memcmp(alone.x, got.x + (size_t)i * width, width * sizeof(float)), "row %d of %d is another one than alone", i, T);
    }
    outcome_free(&got);
    outcome_free(&want);
    outcome_free(&alone);
}

// What is pending, without a read.
static void test_write(const trial *t, int T) {
    outcome want = outcome_new(t);
    read_here(t, T, 1, 0, &want);
    copy(t->x, t->rows, (size_t)T * row_of_streams(t) * sizeof(float));
    q.pending = t->y;
    q.shares = t->before;
    streams_record_write(&q, t->x, T, t->hidden);
    CHECK(!q.pending, "it is still pending");
    gpu_submit(&q);
    ok(q.status, q.failed);
    ok(cudaDeviceSynchronize(), "writing streams");
    copy(t->got, t->x, (size_t)T * row_of_streams(t) * sizeof(float));
    compare("R, written", t, T, t->got, want.x, (size_t)T * row_of_streams(t), 1e-6f);
    outcome_free(&want);
}

int main(int argc, char **argv) {
    // rank 328: a warp of streams_up has more k blocks than it holds; 1312: pieces of a stream are not alike, and are not all there
    static const int shapes[][2] = {{64, 16}, {1312, 328}, {2560, 320}}, counts[] = {1, 2, 3, 4, 5, 8, 33, 64};
    cudaDeviceProp about;
    test_main_begin("gpu_streams", argc, argv);
    ok(cudaGetDeviceProperties(&about, 0), "asking for the GPU");
    q.sms = about.multiProcessorCount;
    q.rows = STREAM_ROWS_MOST;
    q.shared = (int)about.sharedMemPerMultiprocessor;
    q.dependent = about.major >= 9;
    q.stages = ALL_STAGES;
    for (int i = 0; i < 3; i++) {
        const trial t = make_trial(shapes[i][0], shapes[i][1], 1), end = make_trial(shapes[i][0], shapes[i][1], 0);
        for (int k = 0; k < (i ? 4 + (i == 1) : 8); k++) test_rows(&t, counts[k], k != 1, k == 2);
        test_rows(&end, 2, 0, 0);
        test_write(&t, 3);
    }
    return test_main_end();
}
