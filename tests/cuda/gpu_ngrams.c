// A layer of n-gram embeddings (layers/ngrams/) on a GPU, as a step and as a prompt: rows beside the CPU's, and bits of a row, which depend neither on
// the rows beside it, nor on rejected ones after it, nor on how many the log repeats, nor on where a prompt is cut.

#include "inside.h"

#include "gpu.h"

enum { LENGTH = 44, SLOTS = 2, MOST = 13 };

static gpu_queue q;

// A layer here and there, the rows of a timeline for each slot, and what the CPU makes of them.
typedef struct trial {
    ngrams_shape s;
    ngrams_weights here, there;
    ngrams_gpu scratch;
    ngrams_state state;                                      // of slot 0; that of slot 1 is `apart` bytes further on
    gpu_batch batch;
    size_t apart;
    step_parameters *steps;
    uint8_t *sequence_of;
    float *x, *looked_up[SLOTS], *rows[SLOTS];               // there; here: [LENGTH][ngrams_width], [LENGTH][streams][hidden]
    float *want[SLOTS], *got;                                // [LENGTH][streams][hidden] the CPU's; of a launch
} trial;

static size_t columns(const trial *t) { return (size_t)(t->s.streams * t->s.hidden); }
static size_t width(const trial *t) { return (size_t)ngrams_width(&t->s); }

static void make_vector(size_t n, float size, const float **here, const float **there) {
    float *numbers = random_floats(n, size), *copied = (float *)device(n * sizeof *numbers);
    copy(copied, numbers, n * sizeof *numbers);
    *here = numbers;
    *there = copied;
}

// Every row of both timelines on the CPU, one after the other.
static void want_rows(trial *t) {
    const capacity r = {.context = 1, .rows = 1, .threads = 1, .layers = 1};
    layout l = layout_from(NULL);
    ngrams_job job;
    ngrams_state state;
    pool *threads = pool_open(1);
    memset(&job, 0, sizeof job);
    ngrams_layout_scratch(&l, &t->s, &r, &job);
    ngrams_layout_state(&l, &t->s, &r, &state);
    for (int z = 0; z < SLOTS; z++) {
        float *memory = (float *)allocate((l.used + 64) * sizeof *memory);
        layout at = layout_from(layout_base(memory));
        ngrams_layout_scratch(&at, &t->s, &r, &job);
        ngrams_layout_state(&at, &t->s, &r, &state);
        memcpy(t->want[z], t->rows[z], LENGTH * columns(t) * sizeof(float));
        for (int p = 0; p < LENGTH; p++) {
            const token_row row = {.index = p};
            const token_sequence of = {.first = 0, .T = 1, .replay = p > 0};
            token_rows rows;
            memset(&rows, 0, sizeof rows);
            rows.threads = threads;
            rows.table = &row;
            rows.T = rows.count = 1;
            rows.x = t->want[z] + (size_t)p * columns(t);
            rows.looked_up = t->looked_up[z] + (size_t)p * width(t);
            ngrams_project(&rows, &t->here, &job);
            ngrams_mix(&rows, &of, &job, &state);
        }
        free(memory);
    }
    pool_close(threads);
}

static trial *make_trial(const ngrams_shape *s) {
    trial *t = (trial *)allocate(sizeof *t);
    const capacity r = {.context = 1, .rows = MOTE_ROWS_MAX, .threads = 1, .layers = 1};
    t->s = t->here.shape = t->there.shape = *s;
    device_matrix(s->streams * s->hidden, ngrams_width(s), 0.3f, q.sms, &t->here.key_proj, &t->there.key_proj);
    device_matrix(s->hidden, ngrams_width(s), 0.3f, q.sms, &t->here.value_proj, &t->there.value_proj);
    make_vector(columns(t), 1, &t->here.norm_key, &t->there.norm_key);
    make_vector(columns(t), 1, &t->here.norm_query, &t->there.norm_query);
    make_vector(columns(t), 1, &t->here.norm_conv, &t->there.norm_conv);
    make_vector(columns(t) * (size_t)s->taps, 1, &t->here.conv1d, &t->there.conv1d);
    layout l = layout_from(NULL);
    gpu_batch_layout(&l, max_int(ngrams_width(s), 256), PASS_ROWS_MAX, &t->batch);
    ngrams_layout_gpu(&l, s, &r, &q, &t->scratch);
    ngrams_layout_state(&l, s, &r, &t->state);
    l = layout_from((float *)device((l.used + 64) * sizeof(float)));
    gpu_batch_layout(&l, max_int(ngrams_width(s), 256), PASS_ROWS_MAX, &t->batch);
    ngrams_layout_gpu(&l, s, &r, &q, &t->scratch);
    layout state = layout_from(NULL);
    ngrams_layout_state(&state, s, &r, &t->state);
    t->apart = (state.used + 64) * sizeof(float);
    state = layout_from((float *)device(SLOTS * t->apart));
    ngrams_layout_state(&state, s, &r, &t->state);
    t->scratch.looked_up = (float *)device(PASS_ROWS_MAX * width(t) * sizeof(float));
    t->x = (float *)device(PASS_ROWS_MAX * columns(t) * sizeof(float));
    t->steps = (step_parameters *)device(PASS_ROWS_MAX * sizeof *t->steps);
    t->got = (float *)allocate(PASS_ROWS_MAX * columns(t) * sizeof *t->got);
    for (int z = 0; z < SLOTS; z++) {
        t->looked_up[z] = random_floats(LENGTH * width(t), 1);
        t->rows[z] = random_floats(LENGTH * columns(t), 2);
        t->want[z] = (float *)allocate(LENGTH * columns(t) * sizeof *t->want[z]);
    }
    want_rows(t);
    return t;
}

static void finish(void) {
    ok(q.status, q.failed ? q.failed : "a kernel");
    ok(cudaStreamSynchronize(q.stream), "a kernel");
}

static void begin(const trial *t) {
    ok(cudaMemset(t->state.window, 0, SLOTS * t->apart), "clearing");
}

// A block: T rows of a slot from `row` on, of which those from `kept` on are other rows.
typedef struct piece { int slot, row, T, kept, replay; } piece;

// Puts its rows in their places, from number `at` on.
static void put_rows(const trial *t, const piece *p, int at) {
    for (int i = 0; i < p->T; i++) {
        const size_t row = (size_t)((p->row + i + (i < p->kept ? 0 : 17)) % LENGTH), n = columns(t), w = width(t);
        copy(t->x + (size_t)(at + i) * n, t->rows[p->slot] + row * n, n * sizeof(float));
        copy(t->scratch.looked_up + (size_t)(at + i) * w, t->looked_up[p->slot] + row * w, w * sizeof(float));
    }
}

// Launches `count` of them as a pass; one alone as a step of the captured slot or of the resident one, or, of more than STEP_ROWS rows, in turn.
// t->got: x after it.
static void launch(const trial *t, const piece *of, int count, int pass, int resident) {
    step_parameters steps[PASS_ROWS_MAX];
    gpu_rows rows;
    int T = 0, z = 0;
    memset(steps, 0, sizeof steps);
    memset(&rows, 0, sizeof rows);
    for (int k = 0; k < count; k++) {
        const int turns = of[k].T > STEP_ROWS ? (of[k].T - 1) / STEP_ROWS + 1 : 1;
        put_rows(t, &of[k], T);
        for (int turn = 0; turn < turns; turn++, z++) {
            steps[z].index = of[k].row + turn * STEP_ROWS;
            steps[z].replay = of[k].replay;
            steps[z].first = T + turn * STEP_ROWS;
            steps[z].rows = min_int(of[k].T - turn * STEP_ROWS, (int)STEP_ROWS);
            steps[z].shift = (int64_t)t->apart * of[k].slot;
        }
        T += turns > 1 ? turns * STEP_ROWS : of[k].T;
        rows.in_turn = turns > 1;
    }
    copy(t->steps, steps, sizeof steps);
    rows.q = &q;
    rows.T = T;
    rows.sequences = pass || rows.in_turn ? z : 0;
    rows.step = t->steps;
    rows.slot.step = rows.sequences || resident ? t->steps : NULL;
    rows.x = t->x;
    q.batch = &t->batch;
    ngrams_record(&rows, &t->there, &t->scratch, &t->state, NULL);
    gpu_submit(&q);
    finish();
    copy(t->got, t->x, (size_t)T * columns(t) * sizeof(float));
}

// Shortens slot 0's log.
static void shorten(const trial *t) {
    ok(ngrams_shorten_log(q.stream, &t->s, &t->state), "shortening");
    finish();
}

// What a row by itself becomes: [SLOTS][LENGTH][columns].
static float *alone(const trial *t) {
    float *to = (float *)allocate(SLOTS * LENGTH * columns(t) * sizeof *to);
    begin(t);
    for (int z = 0; z < SLOTS; z++)
        for (int p = 0; p < LENGTH; p++) {
            const piece one = {z, p, 1, 1, p > 0};
            launch(t, &one, 1, 0, 1);
            memcpy(to + (size_t)(z * LENGTH + p) * columns(t), t->got, columns(t) * sizeof *to);
        }
    return to;
}

// The largest difference of a row from the CPU's, in the largest number of what the layer adds to it.
static double off_by(const trial *t, int z, int row, const float *got) {
    const float *want = t->want[z] + (size_t)row * columns(t), *before = t->rows[z] + (size_t)row * columns(t);
    double most = 0, top = 0;
    for (size_t i = 0; i < columns(t); i++) {
        const double off = fabs((double)got[i] - (double)want[i]);
        if (!isfinite(off)) return INFINITY;
        most = fmax(most, off);
        top = fmax(top, fabs((double)want[i] - (double)before[i]));
    }
    return most / top;
}

static int differs(const trial *t, const piece *p, const float *all, int at) {
    int wrong = 0;
    for (int i = 0; i < p->kept; i++)
        wrong += memcmp(t->got + (size_t)(at + i) * columns(t), all + (size_t)(p->slot * LENGTH + p->row + i) * columns(t), columns(t) * sizeof(float)) != 0;
    return wrong;
}

// The rows of slot 0 in blocks, one after the other: of so many rows, of which so many are kept.
static void try_blocks(const trial *t, const float *all, int rows, int kept, int resident) {
    int wrong = 0, replay = 0;
    begin(t);
    for (int p = 0; p + rows <= LENGTH; p += kept) {
        const piece one = {0, p, rows, kept, replay};
        if (rows <= STEP_ROWS && replay > STEP_ROWS) return;
        launch(t, &one, 1, 0, resident);
        wrong += differs(t, &one, all, 0);
        replay = kept - (rows > STEP_ROWS ? gpu_before_log(rows) : 0);
    }
    CHECK(!wrong, "blocks of %d rows, %d kept: %d rows differ from those alone", rows, kept, wrong);
}

// A block in turn, and steps after it.
static void try_turns(const trial *t, const float *all, int rows, int kept) {
    int replay = kept - gpu_before_log(rows), wrong = 0, p = kept;
    const piece first = {0, 0, rows, kept, 0};
    begin(t);
    launch(t, &first, 1, 0, 1);
    wrong += differs(t, &first, all, 0);
    if (replay > STEP_ROWS) shorten(t), replay -= STEP_ROWS;
    for (; p + 3 <= LENGTH; p += 3) {
        const piece one = {0, p, 3, 3, replay};
        launch(t, &one, 1, 0, 1);
        wrong += differs(t, &one, all, 0);
        replay = 3;
    }
    CHECK(!wrong, "%d rows in turn, %d kept, and steps: %d rows differ from those alone", rows, kept, wrong);
}

// Both slots in one pass, of different numbers of rows.
static void try_pass(const trial *t, const float *all) {
    int wrong = 0;
    begin(t);
    piece of[SLOTS] = {{1, 0, 3, 2, 0}, {0, 0, 4, 4, 0}};
    for (int n = 0; n < 8; n++) {
        launch(t, of, SLOTS, 1, 1);
        wrong += differs(t, &of[0], all, 0) + differs(t, &of[1], all, of[0].T);
        for (int k = 0; k < SLOTS; k++) of[k].row += of[k].replay = of[k].kept;
        of[0].T = of[0].kept = 1 + n % 3;
    }
    CHECK(!wrong, "a pass of two slots: %d rows differ from those alone", wrong);
}

// A prompt of T rows, cut after `cut` of them: to [T][columns].
static void read_prompt(const trial *t, int T, int cut, float *to) {
    prefill_rows r;
    memset(&r, 0, sizeof r);
    r.scratch = (char *)device(ngrams_prefill_bytes(&t->s, T, DTYPE_BF16));
    r.stream = q.stream;
    r.sms = q.sms;
    r.stages = ALL_STAGES;
    r.factor = 1;
    r.x = (float *)device((size_t)T * columns(t) * sizeof(float));
    float *looked_up = (float *)device((size_t)T * width(t) * sizeof(float));
    begin(t);
    copy(r.x, t->rows[0], (size_t)T * columns(t) * sizeof(float));
    copy(looked_up, t->looked_up[0], (size_t)T * width(t) * sizeof(float));
    for (int at = 0; at < T; at += r.T) {
        prefill_rows part = r;
        part.T = r.T = at ? T - at : cut;
        part.x += (size_t)at * columns(t);
        part.looked_up = looked_up + (size_t)at * width(t);
        ok(ngrams_run_prefill(&part, &t->there, &t->scratch, &t->state), "a prompt");
        finish();
    }
    copy(to, r.x, (size_t)T * columns(t) * sizeof(float));
    ok(cudaFree(r.scratch), "freeing"), ok(cudaFree(r.x), "freeing"), ok(cudaFree(looked_up), "freeing");
}

static void try_prompts(const trial *t) {
    enum { T = 40 };
    static const int cuts[] = {3, 9, 31};
    float *whole = (float *)allocate(T * columns(t) * sizeof *whole), *cut = (float *)allocate(T * columns(t) * sizeof *cut);
    double most = 0;
    if (!ngrams_can_prefill(&t->there, DTYPE_BF16)) {
        CHECK(width(t) % 64, "%d numbers of the table are not read as a prompt", (int)width(t));
        return;
    }
    read_prompt(t, T, T, whole);
    for (int p = 0; p < T; p++) most = fmax(most, off_by(t, 0, p, whole + (size_t)p * columns(t)));
    CHECK(most <= 2e-3, "a prompt: off by %.2g", most);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        read_prompt(t, T, cuts[i], cut);
        CHECK(!memcmp(whole, cut, T * columns(t) * sizeof *cut), "a prompt cut after %d rows differs", cuts[i]);
    }
    free(whole), free(cut);
}

int main(int argc, char **argv) {
    static const ngrams_shape shapes[] = {
        {.hidden = 320, .streams = 4, .grams = 3, .heads = 4, .row_size = 16, .taps = 4, .eps = 1e-6f},
        {.hidden = 72, .streams = 2, .grams = 2, .heads = 3, .row_size = 12, .taps = 3, .eps = 1e-6f},
        {.hidden = 64, .streams = 1, .grams = 4, .heads = 1, .row_size = 64, .taps = 5, .eps = 1e-5f}};
    test_main_begin("gpu_ngrams", argc, argv);
    cudaDeviceProp p;
    ok(cudaGetDeviceProperties(&p, 0), "a GPU");
    q.sms = p.multiProcessorCount;
    q.shared = (int)p.sharedMemPerMultiprocessor;
    q.dependent = p.major >= 9;
    q.rows = PASS_ROWS_MAX;
    q.stages = ALL_STAGES;
    ok(cudaStreamCreateWithFlags(&q.stream, cudaStreamNonBlocking), "a stream");
    for (size_t i = test_brief; i < sizeof shapes / sizeof *shapes; i++) {
        trial *t = make_trial(&shapes[i]);
        float *all = alone(t);
        double most = 0;
        for (int row = 0; row < SLOTS * LENGTH; row++) most = fmax(most, off_by(t, row / LENGTH, row % LENGTH, all + (size_t)row * columns(t)));
        CHECK(most <= 5e-5, "%d numbers in %d streams, row by row: off by %.2g", shapes[i].hidden, shapes[i].streams, most);
        for (int rows = 1; rows <= STEP_ROWS; rows++)
            for (int kept = 1; kept <= rows; kept++) try_blocks(t, all, rows, kept, rows % 2);
        try_blocks(t, all, 7, 5, 1);
        try_blocks(t, all, MOST, MOST, 1);
        for (int rows = 5; rows <= MOST; rows++) try_turns(t, all, rows, rows - rows % 3);
        try_pass(t, all);
        try_prompts(t);
        free(all);
    }
    return test_main_end();
}
