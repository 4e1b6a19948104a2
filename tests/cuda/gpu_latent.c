// latent_attend of a step (layers/mla/attend_fast.cu, attend_any.cu) on a GPU, by the function that a step records: parts, joined here, against sums
// in double; and bits of a row, which depend neither on the rows beside it, nor on whether it is of a pass, nor on where its rows of the cache
// come to be read: before the kernel's wait or after it.

#include "inside.h"

#include "gpu.h"

enum { CONTEXT = 4000, SLOTS = 2, ROWS = SLOTS * STEP_ROWS };

static gpu_queue q;

// A layer, its scratch, and the rows of SLOTS slots, here and there.
typedef struct trial {
    mla_shape shape;
    dtype kv;
    mla_gpu p;
    char *memory, *there, *rows;
    size_t slot_bytes;
    float *l;                                                // [ROWS][heads][kv_rank + rope_dim]
    step_parameters *steps;
} trial;

static trial make_trial(const mla_shape *s, dtype kv) {
    const capacity r = {.context = CONTEXT, .rows = MOTE_ROWS_MAX, .threads = 1, .kv = kv, .layers = 1};
    const size_t count = (size_t)CONTEXT * (size_t)mla_row_size(s);
    trial t = {.shape = *s, .kv = kv};
    layout l = layout_from(NULL);
    mla_layout_gpu(&l, s, &r, &q, &t.p);
    t.memory = (char *)device(l.used * sizeof(float));
    l = layout_from((float *)(void *)t.memory);
    mla_layout_gpu(&l, s, &r, &q, &t.p);
    t.p.splits = gpu_mla_splits(&q, s, kv);
    t.p.kv_scale = kv == DTYPE_FP8 ? 0.75f : 1;
    t.slot_bytes = count * kv_size(kv);
    t.rows = (char *)allocate(SLOTS * t.slot_bytes);
    t.there = (char *)device(SLOTS * t.slot_bytes);
    float *random = random_floats(SLOTS * count, 2);
    kv_store(kv, t.rows, 0, random, SLOTS * count);
    free(random);
    copy(t.there, t.rows, SLOTS * t.slot_bytes);
    t.l = random_floats((size_t)(ROWS * s->heads * mla_row_size(s)), 1.5f);
    t.steps = (step_parameters *)device(SLOTS * sizeof *t.steps);
    return t;
}

// Rows of a launch: `count` sequences, each T rows from number `row` + z T of the trial's on, at index[z] of slot z. A single sequence is that of
// the slot that was captured, or a pass of one.
typedef struct launch { int count, T, row, pass, index[SLOTS]; } launch;

// A query's sum, m and l of all of its parts: what latent_values makes of them.
typedef struct joined { float m, l, sum[MLA_RANK]; } joined;

static void run(const trial *t, const launch *a, joined *to) {
    const size_t heads = (size_t)t->shape.heads, T = (size_t)(a->count * a->T), numbers = heads * (size_t)mla_row_size(&t->shape);
    const size_t sums = (size_t)q.rows * heads * MLA_PARTS * (size_t)t->shape.kv_rank, floats = gpu_mla_parts(&t->shape, q.rows);
    step_parameters steps[SLOTS];
    mla_gpu p = t->p;
    float *parts = (float *)allocate(floats * sizeof *parts);
    int counts[ROWS];
    memset(steps, 0, sizeof steps);
    for (int z = 0; z < a->count; z++) {
        steps[z].index = a->index[z];
        steps[z].first = z * a->T;
        steps[z].rows = a->T;
        steps[z].context = CONTEXT;
        steps[z].shift = (int64_t)t->slot_bytes * z;
    }
    copy(t->steps, steps, sizeof steps);
    copy(p.l, t->l + (size_t)a->row * numbers, T * numbers * sizeof(float));
    p.step = t->steps;
    p.sequences = a->count > 1 || a->pass ? a->count : 0;
    p.slot.step = p.sequences ? t->steps : NULL;
    p.slot.context = CONTEXT;
    p.T = a->count * a->T;
    p.latents = t->there;
    gpu_mla_attend(&q, &p, !p.sequences ? p.T : STEP_ROWS, 0);
    gpu_submit(&q);
    ok(q.status, q.failed ? q.failed : "a kernel");
    ok(cudaStreamSynchronize(q.stream), "a kernel");
    copy(parts, p.parts, floats * sizeof *parts);
    copy(counts, p.part_count, T * sizeof *counts);
    for (size_t of = 0; of < T * heads; of++) {
        const float *ml = parts + sums + of * MLA_PARTS * 2, *sum = parts + of * MLA_PARTS * (size_t)t->shape.kv_rank;
        joined *j = &to[of];
        memset(j, 0, sizeof *j);
        j->m = -INFINITY;
        for (int n = 0; n < counts[of / heads]; n++) j->m = fmaxf(j->m, ml[2 * n]);
        for (int n = 0; n < counts[of / heads]; n++) {
            const float weight = ml[2 * n] == -INFINITY ? 0 : exp2f(ml[2 * n] - j->m);
            j->l += weight * ml[2 * n + 1];
            for (int i = 0; i < t->shape.kv_rank; i++) j->sum[i] += weight * sum[n * t->shape.kv_rank + i];
        }
    }
    free(parts);
}

// The largest difference of a query's sum from that in double, over the largest of all numbers.
static double off_by(const trial *t, const joined *got, const float *l, int last, int slot) {
    const int row = mla_row_size(&t->shape), rank = t->shape.kv_rank;
    static double score[CONTEXT], sum[MLA_RANK];
    static float at[MLA_RANK + MLA_ROPE];
    double top = -INFINITY, total = 0, most = 0, size = 0;
    memset(sum, 0, sizeof sum);
    for (int pass = 0; pass < 2; pass++)
        for (int p = 0; p <= last; p++) {
            const float *c = kv_floats(t->rows + (size_t)slot * t->slot_bytes, (size_t)p * (size_t)row, row, at, t->kv);
            if (!pass) {
                score[p] = 0;
                for (int i = 0; i < row; i++) score[p] += (double)l[i] * (double)c[i];
                score[p] *= (double)t->shape.scale * (double)t->p.kv_scale;
                top = score[p] > top ? score[p] : top;
                continue;
            }
            const double weight = exp(score[p] - top);
            total += weight;
            for (int i = 0; i < rank; i++) sum[i] += weight * (double)c[i];
        }
    for (int i = 0; i < rank; i++) {
        const double want = sum[i] / total, off = fabs((double)got->sum[i] / (double)got->l - want);
        if (!isfinite(off)) return INFINITY;
        most = off > most ? off : most;
        size = fabs(want) > size ? fabs(want) : size;
    }
    return most / size;
}

static void try_launch(const trial *t, const char *what, const launch *a) {
    const int heads = t->shape.heads;
    joined *all = (joined *)allocate((size_t)(ROWS * heads) * sizeof *all), *alone = (joined *)allocate((size_t)heads * sizeof *alone);
    double most = 0;
    int wrong = 0;
    run(t, a, all);
    for (int z = 0; z < a->count; z++)
        for (int i = 0; i < a->T; i++) {
            const int row = z * a->T + i, last = a->index[z] + i;
            const launch one = {1, 1, a->row + row, 0, {last}};
            for (int h = 0; h < heads; h += test_brief ? 7 : 1) {
                const float *l = t->l + (size_t)((a->row + row) * heads + h) * (size_t)mla_row_size(&t->shape);
                const double off = off_by(t, &all[row * heads + h], l, last, z);
                most = off > most ? off : most;
            }
            if (z) continue;                                 // alone it would be of the other slot
            run(t, &one, alone);
            wrong += memcmp(alone, &all[row * heads], (size_t)heads * sizeof *alone) != 0;
        }
    CHECK(most <= 2e-5, "%s, %d of %d rows at %d: off by %.2g", what, a->count, a->T, a->index[0], most);
    CHECK(!wrong, "%s, %d of %d rows at %d%s: %d rows differ from those alone", what, a->count, a->T, a->index[0], a->pass ? ", a pass" : "", wrong);
    free(all), free(alone);
}

int main(int argc, char **argv) {
    static const mla_shape shapes[] = {{.heads = 20, .kv_rank = 512, .nope_dim = 192, .rope_dim = 64, .value_dim = 256, .scale = 0.0625f},
                                       {.heads = 5, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128, .scale = 0.09f},
                                       {.heads = 128, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128, .scale = 0.07f},
                                       {.heads = 4, .kv_rank = 40, .nope_dim = 16, .rope_dim = 8, .value_dim = 16, .scale = 0.2f}};
    static const launch launches[] = {{1, 1, 0, 0, {0}}, {1, 1, 1, 0, {15}}, {1, 1, 2, 0, {16}}, {1, 4, 0, 0, {1021}}, {1, 3, 3, 0, {3996}},
                                      {1, 2, 1, 1, {2047}}, {2, 4, 0, 0, {2300, 62}}, {2, 1, 0, 0, {700, 3999}}, {1, 4, 0, 0, {3000}}};
    test_main_begin("gpu_latent", argc, argv);
    cudaDeviceProp p;
    ok(cudaGetDeviceProperties(&p, 0), "a GPU");
    q.sms = max_int(p.multiProcessorCount, 64);             // the simulator's are few: so that there are several clusters of splits
    q.shared = (int)p.sharedMemPerMultiprocessor;
    q.dependent = p.major >= 9;
    q.rows = PASS_ROWS_MAX;
    q.stages = 1u << STAGE_LATENT_ATTEND;
    ok(cudaStreamCreateWithFlags(&q.stream, cudaStreamNonBlocking), "a stream");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int fp8 = 0; fp8 < 2; fp8++) {
            trial t = make_trial(&shapes[i], fp8 ? DTYPE_FP8 : DTYPE_BF16);
            char what[64];
            snprintf(what, sizeof what, "KV %s, %d heads, latents of %d", fp8 ? "FP8" : "BF16", shapes[i].heads, shapes[i].kv_rank);
            for (size_t n = 0; n < sizeof launches / sizeof *launches; n++) try_launch(&t, what, &launches[n]);
            free(t.rows), free(t.l);
            ok(cudaFree(t.there), "freeing"), ok(cudaFree(t.memory), "freeing"), ok(cudaFree(t.steps), "freeing");
        }
    return test_main_end();
}
