// Attention of a step (layers/attention/decode.cu) on a GPU, by the very functions that a step records: heads of every size that there are
// kernels for, and of one that there is none for, with what a layer may have, against the CPU's code; and bits, which depend neither on the rows
// beside a row, nor on the sequences of a pass, nor on whether it is a turn of a longer block. Then attention of a prompt, attend_prompt.c, and layers with
// an index, attend_index.c.
//
// Contents   1. A layer   2. Launches   3. The CPU   4. Comparing   5. A prompt   6. An index   7. Main

#include "inside.h"

#include "gpu.h"

enum { CONTEXT = 1408, SLOTS = 3, TURNS = 2, ROWS = SLOTS * STEP_ROWS };     // 22 chunks: more than two clusters of splits

static gpu_queue q;
static gpu_batch batch;
static pool *threads;

static float *floats(size_t n) {
    return (float *)allocate((n + 1) * sizeof(float));
}

static float *on_device(const float *from, size_t n) {
    float *to = (float *)device((n + 1) * sizeof *to);
    copy(to, from, n * sizeof *to);
    return to;
}

// ---- 1. A layer -----------------------------------------------------------------------------------------------------

// A layer, as the CPU has it and as the GPU, and in the memory of either the rows of SLOTS slots, of which new ones are ROWS of each.
typedef struct trial {
    attention_shape shape;
    dtype kv;
    int held;                                                // rows of a slot's keys
    size_t slot_bytes;                                       // of keys and values
    attention_weights w, there;                              // there: on the GPU
    attention_gpu scratch;
    char *memory, *slots;                                    // the scratch; [SLOTS] keys, then values
    char *rows;                                              // the same slots here
    float *qg, *k_new, *v_new, *g_new;                       // [ROWS]
    step_parameters *steps;                                  // [SLOTS] on the GPU
} trial;

static size_t row_numbers(const trial *t) {
    return (size_t)(t->shape.kv_heads * t->shape.head_dim);
}

static size_t q_numbers(const trial *t) {
    return (size_t)(t->shape.heads * attention_q_size(&t->shape));
}

static size_t o_numbers(const trial *t) {
    return (size_t)(t->shape.heads * t->shape.head_dim);
}

static matrix matrix_of(const trial *t, int rows, int cols) {
    const matrix w = {.format = FORMAT_BF16, .rows = rows, .cols = cols, .component = {t->memory}};
    return w;
}

static void make_weights(trial *t) {
    const attention_shape *s = &t->shape;
    const size_t d = (size_t)s->head_dim, half = (size_t)s->rotary_dim / 2;
    float *norms = random_floats(2 * d, 1), *frequencies = floats(half), *sinks = random_floats((size_t)s->heads, 2);
    for (size_t i = 0; i < half; i++) frequencies[i] = i < half / 4 + 1 || i % 2 ? powf(1e4f, -(float)i / (float)half) : 0;
    for (size_t i = 0; i < 2 * d; i++) norms[i] += 1.5f;
    t->w.shape = t->there.shape = *s;
    t->w.frequencies = frequencies;
    t->w.q_norm = s->normed ? norms : NULL;
    t->w.k_norm = s->normed ? norms + d : NULL;
    t->w.sinks = s->sinks ? sinks : NULL;
    t->there.q_norm = s->normed ? on_device(norms, 2 * d) : NULL;
    t->there.k_norm = s->normed ? t->there.q_norm + d : NULL;
    t->there.sinks = s->sinks ? on_device(sinks, (size_t)s->heads) : NULL;
    t->there.q_proj = matrix_of(t, s->heads * attention_q_size(s), s->hidden);
    t->there.k_proj = t->there.v_proj = matrix_of(t, s->kv_heads * s->head_dim, s->hidden);
    t->there.g_proj = matrix_of(t, s->heads * s->gate_size, s->hidden);
    t->there.o_proj = matrix_of(t, s->hidden, s->heads * s->head_dim);
}

// Random rows of all slots, as the cache holds them, here and there.
static void make_slots(trial *t) {
    const size_t n = row_numbers(t), count = SLOTS * 2 * (size_t)t->held * n;
    float *random = random_floats(count, 2);
    t->slot_bytes = 2 * (size_t)t->held * n * kv_size(t->kv);
    t->rows = (char *)allocate(SLOTS * t->slot_bytes);
    t->slots = (char *)device(SLOTS * t->slot_bytes);
    kv_store(t->kv, t->rows, 0, random, count);
    copy(t->slots, t->rows, SLOTS * t->slot_bytes);
    free(random);
}

// largest: the shape that scratch is laid out for.
static trial make_trial(const attention_shape *s, const attention_shape *largest, dtype kv) {
    const capacity r = {.context = CONTEXT, .rows = MOTE_ROWS_MAX, .threads = 1, .kv = kv, .layers = 1, .window = s->window,
                        .ring_rows = MOTE_ROWS_MAX};
    trial t = {.shape = *s, .kv = kv, .held = attention_held(s, &r)};
    layout l = layout_from(NULL);
    attention_layout_gpu(&l, largest, &r, &q, &t.scratch);
    t.memory = (char *)device(l.used * sizeof(float));
    l = layout_from((float *)(void *)t.memory);
    attention_layout_gpu(&l, largest, &r, &q, &t.scratch);
    t.scratch.layer_splits = (int *)allocate(sizeof *t.scratch.layer_splits);
    t.scratch.splits = *t.scratch.layer_splits = gpu_attention_splits(&q, s, &t.scratch);
    make_weights(&t);
    make_slots(&t);
    copy(t.scratch.frequencies, t.w.frequencies, (size_t)s->rotary_dim / 2 * sizeof(float));
    t.qg = random_floats(ROWS * q_numbers(&t), 2);
    t.k_new = random_floats(ROWS * row_numbers(&t), 2);
    t.v_new = random_floats(ROWS * row_numbers(&t), 2);
    t.g_new = random_floats(ROWS * (size_t)(s->heads * s->gate_size), 4);
    t.steps = (step_parameters *)device(SLOTS * sizeof *t.steps);
    return t;
}

// ---- 2. Launches ----------------------------------------------------------------------------------------------------

// Rows of a launch: `count` sequences, each T rows from number `row` + z * T of the trial's on, at `index`[z] of slot[z]. in_turn: all of slot[0].
typedef struct launch {
    int count, T, row, in_turn, kv_only;
    int index[SLOTS], slot[SLOTS];
} launch;

// Writes what a projection would have.
static void put_rows(const trial *t, const launch *a) {
    const size_t rows = (size_t)(a->count * a->T), from = (size_t)a->row, gates = (size_t)(t->shape.heads * t->shape.gate_size);
    copy(t->scratch.qg, t->qg + from * q_numbers(t), rows * q_numbers(t) * sizeof(float));
    copy(t->scratch.k_new, t->k_new + from * row_numbers(t), rows * row_numbers(t) * sizeof(float));
    if (!t->shape.v_of_k) copy(t->scratch.v_new, t->v_new + from * row_numbers(t), rows * row_numbers(t) * sizeof(float));
    if (gates) copy(t->scratch.g_new, t->g_new + from * gates, rows * gates * sizeof(float));
}

static void put_steps(const trial *t, const launch *a) {
    step_parameters steps[SLOTS];
    memset(steps, 0, sizeof steps);
    for (int z = 0; z < a->count; z++) {
        steps[z].index = a->index[z];
        steps[z].lag = a->index[z] > 1000 ? 137 : 0;
        steps[z].first = z * a->T;
        steps[z].rows = a->T;
        steps[z].context = CONTEXT;
        steps[z].shift = (int64_t)t->slot_bytes * a->slot[z];
    }
    copy(t->steps, steps, sizeof steps);
}

// Splits that have all chunks of so many tokens, as a pass has them.
static int splits_for(const trial *t, int tokens) {
    int splits = ATTEND_CLUSTER;
    while (splits * ATTEND_CHUNK < tokens) splits *= 2;
    return min_int(splits, t->scratch.splits);
}

// Runs it, from slots as they were made, and reads o [count T][heads][head_dim] and the slots. A single sequence of slot 0 is a step of a runner
// of one slot, whose addresses are those that were captured.
static void run(const trial *t, const launch *a, float *o, char *slots) {
    const int captured = a->count == 1 && a->slot[0] == 0;
    const attention_state state = {.k = t->slots, .v = t->slots + t->slot_bytes / 2, .held = t->held};
    gpu_rows rows = {.q = &q, .T = a->count * a->T, .layer = 0, .step = t->steps, .sequences = a->count > 1 || a->in_turn ? a->count : 0,
                     .one_each = a->T == 1, .in_turn = a->in_turn, .slot = {captured ? NULL : t->steps, CONTEXT}};
    rows.state_only = a->kv_only;
    for (int z = 0; rows.sequences && z < a->count; z++) rows.splits = max_int(rows.splits, splits_for(t, a->index[z] + a->T));
    rows.hidden = t->shape.hidden;
    rows.x = rows.to = t->scratch.o;
    copy(t->slots, t->rows, SLOTS * t->slot_bytes);
    put_rows(t, a);
    put_steps(t, a);
    q.stages = 1u << STAGE_ATTEND;
    attention_record(&rows, &t->there, &t->scratch, &state, &state);
    gpu_submit(&q);
    ok(q.status, q.failed ? q.failed : "a kernel");
    ok(cudaStreamSynchronize(q.stream), "a kernel");
    copy(o, t->scratch.o, (size_t)rows.T * o_numbers(t) * sizeof *o);
    copy(slots, t->slots, SLOTS * t->slot_bytes);
}

// ---- 3. The CPU -----------------------------------------------------------------------------------------------------

static void run_cpu(const trial *t, const launch *a, float *o, char *slots) {
    const attention_shape *s = &t->shape;
    const capacity r = {.context = CONTEXT, .rows = a->T, .threads = 1, .kv = t->kv, .layers = 1, .window = 0};
    const size_t T = (size_t)a->T, row = (size_t)a->row, gates = (size_t)(s->heads * s->gate_size);
    token_row table[STEP_ROWS];
    attention_job job = {.shape = s, .w = &t->w, .T = a->T, .index = a->index[0], .kv = t->kv, .held = t->held, .o = o};
    float *qg = floats(T * q_numbers(t)), *k_new = floats(T * row_numbers(t)), *v_new = floats(T * row_numbers(t));
    memcpy(slots, t->rows, SLOTS * t->slot_bytes);
    memcpy(qg, t->qg + row * q_numbers(t), T * q_numbers(t) * sizeof *qg);
    memcpy(k_new, t->k_new + row * row_numbers(t), T * row_numbers(t) * sizeof *qg);
    memcpy(v_new, t->v_new + row * row_numbers(t), T * row_numbers(t) * sizeof *qg);
    job.angles = floats(T * (size_t)s->rotary_dim);
    job.parts = floats(attention_part_count(s, &r) * attention_part_size(s));
    job.qg = qg, job.k_new = k_new, job.v_new = v_new, job.g_new = t->g_new + row * gates;
    job.k = slots + t->slot_bytes * (size_t)a->slot[0];
    job.v = (char *)job.k + t->slot_bytes / 2;
    text_rows(table, NULL, a->T, a->index[0], a->index[0] > 1000 ? 137 : 0);
    attention_angles(&t->w, table, a->T, job.angles);
    stage_rope_attend(threads, &job);
    free(qg), free(k_new), free(v_new), free(job.angles), free(job.parts);
}

// ---- 4. Comparing ---------------------------------------------------------------------------------------------------

static double difference(const float *got, const float *want, size_t n) {
    double most = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - (double)want[i]);
        if (!isfinite(off)) return INFINITY;
        most = off > most ? off : most;
        top = fabs((double)want[i]) > top ? fabs((double)want[i]) : top;
    }
    return most / top;
}

// The largest difference of two slots' rows, as floats, relative to each number.
static double slots_difference(const trial *t, const char *got, const char *want) {
    const int n = (int)row_numbers(t);
    float *a = floats((size_t)n), *b = floats((size_t)n);
    double most = 0;
    for (size_t row = 0; row < SLOTS * 2 * (size_t)t->held; row++) {
        const float *x = kv_floats(got, row * (size_t)n, n, a, t->kv), *y = kv_floats(want, row * (size_t)n, n, b, t->kv);
        for (int i = 0; i < n; i++) {
            const double off = fabs((double)x[i] - (double)y[i]) / (fabs((double)y[i]) + 0x1p-6);
            most = off > most ? off : most;
        }
    }
    free(a), free(b);
    return most;
}

// One launch of T rows: what the CPU computes. A new key or value may round to the other side.
static void try_values(const trial *t, const char *what, int T, int index) {
    const launch a = {.count = 1, .T = T, .row = 0, .in_turn = 0, .kv_only = 0, .index = {index}, .slot = {0}};
    const size_t n = (size_t)T * o_numbers(t);
    float *got = floats(n), *want = floats(n);
    char *there = (char *)allocate(SLOTS * t->slot_bytes), *here = (char *)allocate(SLOTS * t->slot_bytes);
    run(t, &a, got, there);
    run_cpu(t, &a, want, here);
    const double off = difference(got, want, n), rows_off = slots_difference(t, there, here), step = t->kv == DTYPE_FP8 ? 0x1p-3 : 0x1p-7;
    CHECK(off <= (t->kv == DTYPE_FP8 ? 2e-3 : 1e-3), "%s, %d rows at %d: off by %.2g", what, T, index, off);
    CHECK(rows_off <= step, "%s, %d rows at %d: new rows off by %.2g", what, T, index, rows_off);
    free(got), free(want), free(there), free(here);
}

// Rows of a launch have the bits of each alone.
static void try_bits(const trial *t, const char *what, const launch *a) {
    const size_t n = o_numbers(t), row_bytes = row_numbers(t) * kv_size(t->kv);
    float *all = floats(ROWS * n), *alone = floats(n);
    char *slots = (char *)allocate(SLOTS * t->slot_bytes), *before = t->rows, *own = (char *)allocate(SLOTS * t->slot_bytes);
    trial one = *t;
    size_t wrong = 0, wrong_rows = 0;
    run(t, a, all, slots);
    one.rows = own;
    memcpy(own, before, SLOTS * t->slot_bytes);
    for (int z = 0; z < a->count; z++)
        for (int i = 0; i < a->T; i++) {
            const launch row = {.count = 1, .T = 1, .row = a->row + z * a->T + i, .in_turn = 0, .kv_only = a->kv_only,
                                .index = {a->index[z] + i}, .slot = {a->slot[z]}};
            run(&one, &row, alone, own);
            wrong += !a->kv_only && memcmp(alone, all + (size_t)(z * a->T + i) * n, n * sizeof *alone) != 0;
        }
    for (size_t at = 0; at < SLOTS * t->slot_bytes; at += row_bytes) wrong_rows += memcmp(slots + at, own + at, row_bytes) != 0;
    CHECK(!wrong && !wrong_rows, "%s, %d of %d rows from %d on%s%s: %zu rows of o differ, %zu of the cache", what, a->count, a->T, a->index[0],
          a->in_turn ? " in turn" : "", a->kv_only ? " keys and values alone" : "", wrong, wrong_rows);
    free(all), free(alone), free(slots), free(own);
}

static void try_layer(const attention_shape *s, const attention_shape *largest, dtype kv) {
    static const int positions[] = {0, 62, 700, 1200};
    char what[160];
    trial t = make_trial(s, largest, kv);
    snprintf(what, sizeof what, "KV %s, %d heads over %d of %d, %d rotated, window %d%s%s%s%s%s", kv == DTYPE_FP8 ? "FP8" : "BF16", s->heads,
             s->kv_heads, s->head_dim, s->rotary_dim, s->window, s->gated ? ", gated" : s->gate_size == 1 ? ", a gate a head" : s->gate_size ? ", gates" : "",
             s->normed ? ", normed" : "", s->v_normed ? ", values normed" : "", s->v_of_k ? ", v of k" : "", s->sinks ? ", sinks" : "");
    for (int T = 1; T <= STEP_ROWS; T += test_brief ? 3 : 1)
        for (int i = 0; i < 4; i++) try_values(&t, what, T, positions[i]);
    const launch launches[] = {
        {.count = 1, .T = 4, .row = 0, .in_turn = 0, .kv_only = 0, .index = {1150}, .slot = {0}},
        {.count = 1, .T = 2, .row = 3, .in_turn = 0, .kv_only = 0, .index = {63}, .slot = {1}},
        {.count = 3, .T = 1, .row = 0, .in_turn = 0, .kv_only = 0, .index = {1300, 3, 640}, .slot = {2, 0, 1}},
        {.count = 3, .T = 4, .row = 0, .in_turn = 0, .kv_only = 0, .index = {62, 1021, 0}, .slot = {1, 2, 0}},
        {.count = TURNS, .T = 4, .row = 0, .in_turn = 1, .kv_only = 0, .index = {1084, 1088}, .slot = {0, 0}},
        {.count = 1, .T = 4, .row = 0, .in_turn = 0, .kv_only = 1, .index = {126}, .slot = {0}}};
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) try_bits(&t, what, &launches[i]);
    free(t.scratch.layer_splits), free(t.rows), free(t.qg), free(t.k_new), free(t.v_new), free(t.g_new);
    ok(cudaFree(t.slots), "freeing"), ok(cudaFree(t.memory), "freeing"), ok(cudaFree(t.steps), "freeing");
}

// ---- 5. A prompt ----------------------------------------------------------------------------------------------------

#include "attend_prompt.c"

// ---- 6. An index ----------------------------------------------------------------------------------------------------

#define HEADS(q, kv, dim, rotated) .hidden = 64, .heads = q, .kv_heads = kv, .head_dim = dim, .rotary_dim = rotated, .eps = 1e-6f, .rope_scale = 1

#include "attend_index.c"

// ---- 7. Main --------------------------------------------------------------------------------------------------------

static const attention_shape shapes[] = {
    {HEADS(8, 2, 64, 64), .window = 128, .sinks = 1},                                           // gpt-oss
    {HEADS(8, 1, 128, 128), .normed = 1},                                                       // Qwen3
    {HEADS(8, 2, 256, 64), .gated = 1, .normed = 1},                                            // Qwen3.5
    {HEADS(32, 2, 256, 64), .gated = 1, .normed = 1},
    {HEADS(12, 2, 128, 64), .gate_size = 1, .normed = 1},                                       // Laguna, full and sliding
    {HEADS(16, 2, 128, 128), .gate_size = 1, .normed = 1, .window = 512},
    {HEADS(6, 2, 64, 32), .gate_size = 64, .normed = 1},
    {HEADS(4, 2, 256, 256), .normed = 1, .v_normed = 1, .scale = 0.125f, .window = 1024},            // Gemma 4, sliding and full
    {HEADS(16, 2, 512, 512), .normed = 1, .v_normed = 1, .v_of_k = 1, .scale = 0.0625f},
    {HEADS(5, 1, 512, 128), .gate_size = 512},
    {HEADS(8, 2, 256, 0)},
    {HEADS(6, 3, 128, 42), .gated = 1, .v_normed = 1},                                          // half of which is odd
    {HEADS(4, 2, 64, 2), .normed = 1},
    {HEADS(4, 2, 48, 24), .gate_size = 1, .normed = 1, .v_normed = 1, .v_of_k = 1, .scale = 0.125f, .window = 200, .sinks = 1},
    {HEADS(9, 1, 512, 384), .gated = 1, .gate_size = 1}};

enum { INDEXES = 100, INDEX_TIMES = 101 };

// After DATA, which is none, a number: that shape alone; INDEXES: layers with an index; INDEX_TIMES: what these take.
int main(int argc, char **argv) {
    const int at = test_main_begin("gpu_attention", argc, argv), only = at < argc ? atoi(argv[at]) : -1;
    const attention_shape wider = {HEADS(32, 4, 512, 512), .gated = 1, .gate_size = 512};
    layout l = layout_from(NULL);
    cudaDeviceProp p;
    ok(cudaGetDeviceProperties(&p, 0), "a GPU");
    q.sms = max_int(p.multiProcessorCount, 64);             // the simulator's are few: so that there are several clusters of splits
    q.shared = (int)p.sharedMemPerMultiprocessor;
    q.dependent = p.major >= 9;
    q.rows = PASS_ROWS_MAX;
    ok(cudaStreamCreateWithFlags(&q.stream, cudaStreamNonBlocking), "a stream");
    gpu_batch_layout(&l, wider.heads * wider.head_dim, PASS_ROWS_MAX, &batch);
    l = layout_from((float *)device(l.used * sizeof(float)));
    gpu_batch_layout(&l, wider.heads * wider.head_dim, PASS_ROWS_MAX, &batch);
    q.batch = &batch;
    threads = pool_open(1);
    if (!CHECK(threads != NULL, "a thread")) return test_main_end();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int fp8 = 0; fp8 < 2 && (only < 0 || (int)i == only); fp8++)
            try_layer(&shapes[i], i % 2 ? &wider : &shapes[i], fp8 ? DTYPE_FP8 : DTYPE_BF16);
    if (only < 0) try_prompts();
    if (only < 0 || only == INDEXES) try_indexes();
    for (int tokens = 8192; only == INDEX_TIMES && tokens <= 262144; tokens *= tokens == 8192 ? 8 : 4) time_index(tokens);
    pool_close(threads);
    return test_main_end();
}
