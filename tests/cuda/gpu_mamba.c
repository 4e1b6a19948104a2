// A prompt's Mamba-2 rule (layers/mamba/prefill.cu) on a GPU, beside its definition: every y, every number of S, within what rounding of its terms to F16
// allows; the window; and bits, which depend neither on how a prompt is cut at multiples of 32 nor on launches.

#include "inside.h"

#include "gpu.h"

enum { ROWS_MOST = 1200 };

// What differs from trial to trial: how fast heads forget, and how large inputs are.
enum manner { ORDINARY, NEVER_FORGETS, FORGETS_AT_ONCE, FORGETS_INFINITELY_FAST, RARE_AND_LARGE, NOTHING, MANNERS };

static const char *manners[] = {"ordinary", "never forgets", "forgets at once", "forgets infinitely fast", "rare and large", "nothing"};

// Numbers as definition.c and mamba_prefill have them, here; of the weights only those that the rule reads.
typedef struct trial {
    mamba_weights w;
    enum manner manner;
    int T, position;
    float *raw, *dt, *S, *window, *conv1d, *conv_bias, *A_log, *D, *dt_bias;
} trial;

typedef struct outcome { float *y, *S, *window; } outcome;

static size_t channels_of(const trial *t) { return (size_t)mamba_channels(&t->w.shape); }
static size_t inner_of(const trial *t) { return (size_t)mamba_inner(&t->w.shape); }
static size_t state_of(const trial *t) { return inner_of(t) * (size_t)t->w.shape.state_dim; }

static trial make_trial(mamba_shape s, enum manner manner, int T, int position) {
    static const float rates[MANNERS] = {0, -40, 8, 200, 0, 0};            // A_log, plus or minus 2
    trial t = {.w = {.shape = s}, .manner = manner, .T = T, .position = position};
    const size_t rows = (size_t)T, channels = channels_of(&t), heads = (size_t)s.heads;
    t.raw = random_floats(rows * channels, 4);
    t.dt = random_floats(rows * heads, 3);
    t.S = random_floats(state_of(&t), manner == NOTHING ? 0 : 2);
    t.window = random_floats((size_t)(s.taps - 1) * channels, manner == NOTHING ? 0 : 4);
    t.conv1d = random_floats(channels * (size_t)s.taps, 1);
    t.conv_bias = random_floats(channels, manner == NOTHING ? 0 : 0.5f);
    t.A_log = random_floats(heads, 2);
    t.D = random_floats(heads, 2);
    t.dt_bias = random_floats(heads, 2);
    for (int h = 0; h < s.heads; h++) t.A_log[h] += rates[manner], t.dt_bias[h] -= 2;
    for (size_t i = 0; i < rows * channels; i++) {
        const size_t row = i / channels;
        if (manner == NOTHING) t.raw[i] = 0;
        if (manner == RARE_AND_LARGE) t.raw[i] *= row % 37 == 5 ? 100 : row % 5 ? 0.03f : 1;
    }
    t.w.conv1d = t.conv1d, t.w.conv_bias = t.conv_bias, t.w.A_log = t.A_log, t.w.D = t.D, t.w.dt_bias = t.dt_bias;
    return t;
}

static void trial_free(trial *t) {
    float *all[] = {t->raw, t->dt, t->S, t->window, t->conv1d, t->conv_bias, t->A_log, t->D, t->dt_bias};
    for (size_t i = 0; i < COUNT(all); i++) free(all[i]);
}

static outcome outcome_new(const trial *t) {
    const outcome o = {(float *)allocate((size_t)t->T * inner_of(t) * sizeof(float)), (float *)allocate(state_of(t) * sizeof(float)),
                       (float *)allocate(3 * channels_of(t) * sizeof(float))};
    return o;
}

static void outcome_free(outcome *o) {
    free(o->y);
    free(o->S);
    free(o->window);
}

static float *sent(const float *from, size_t n) {
    float *to = (float *)device(n * sizeof *to);
    copy(to, from, n * sizeof *to);
    return to;
}

// Rows in calls that end where `ends` says, the last of them at T.
static void run(const trial *t, const int *ends, int calls, outcome *to) {
    const mamba_shape *s = &t->w.shape;
    mamba_prefill p;
    memset(&p, 0, sizeof p);
    char *scratch = (char *)device(mamba_prefill_layout(s, t->T, NULL, &p));
    p.shape = *s;
    p.conv1d = sent(t->conv1d, channels_of(t) * (size_t)s->taps), p.conv_bias = sent(t->conv_bias, channels_of(t));
    p.A_log = sent(t->A_log, (size_t)s->heads), p.D = sent(t->D, (size_t)s->heads), p.dt_bias = sent(t->dt_bias, (size_t)s->heads);
    p.S = sent(t->S, state_of(t)), p.window = sent(t->window, 3 * channels_of(t));
    for (int i = 0, begin = 0; i < calls; begin = ends[i], i++) {
        prefill_rows r;
        memset(&r, 0, sizeof r);
        p.T = ends[i] - begin, p.position = t->position + begin;
        mamba_prefill_layout(s, p.T, scratch, &p);
        copy((float *)p.raw, t->raw + (size_t)begin * channels_of(t), (size_t)p.T * channels_of(t) * sizeof(float));
        copy((float *)p.dt, t->dt + begin * s->heads, (size_t)(p.T * s->heads) * sizeof(float));
        ok(mamba_prefill_scan(&r, &p), "the rule");
        ok(cudaDeviceSynchronize(), "the rule");
        copy(to->y + (size_t)begin * inner_of(t), p.y, (size_t)p.T * inner_of(t) * sizeof(float));
    }
    copy(to->S, p.S, state_of(t) * sizeof(float));
    copy(to->window, p.window, 3 * channels_of(t) * sizeof(float));
    const float *all[] = {p.conv1d, p.conv_bias, p.A_log, p.D, p.dt_bias, p.S, p.window};
    for (size_t i = 0; i < COUNT(all); i++) ok(cudaFree((void *)all[i]), "freeing");
    ok(cudaFree(scratch), "freeing");
}

// The definition, and the same with the magnitudes of all terms, in which rounding is measured.
typedef struct defined { double *S, *magnitudes; double off_y, off_S; } defined;

static double largest(const double *x, int n) {
    double most = 0;
    for (int i = 0; i < n; i++) most = fmax(most, x[i]);
    return most;
}

// most: the largest magnitude of the row. What is 2^20 times smaller than that has fewer than 11 bits in an F16.
static void look(double *off, float got, double want, double magnitude, double most) {
    const double d = fabs((double)got - want) / (magnitude + 0x1p-10 * most + 1e-30);
    if (!(d <= *off)) *off = d == d ? d : INFINITY;
}

static void define_row(const trial *t, const double *c, int row, const outcome *got, defined *to) {
    const mamba_shape *s = &t->w.shape;
    double x[128], y[128], y_magnitude[128], B[128], C[128];
    for (int h = 0; h < s->heads; h++) {
        const double *C_of = c + h / (s->heads / s->groups) * s->state_dim, *B_of = C_of + s->groups * s->state_dim;
        const double *x_of = c + 2 * s->groups * s->state_dim + h * s->head_dim;
        const double dt = defined_softplus((double)t->dt[row * s->heads + h] + (double)t->dt_bias[h]), decay = exp(-exp((double)t->A_log[h]) * dt);
        const size_t at = (size_t)(h * s->head_dim) * (size_t)s->state_dim;
        for (int i = 0; i < s->head_dim; i++) x[i] = fabs(x_of[i]);
        for (int i = 0; i < s->state_dim; i++) B[i] = fabs(B_of[i]), C[i] = fabs(C_of[i]);
        mamba_define_rule(s, to->S + at, x_of, B_of, C_of, dt, decay, (double)t->D[h], y);
        mamba_define_rule(s, to->magnitudes + at, x, B, C, dt, decay, fabs((double)t->D[h]), y_magnitude);
        const float *got_y = got->y + (size_t)(row * s->heads + h) * (size_t)s->head_dim;
        for (int i = 0; i < s->head_dim; i++) look(&to->off_y, got_y[i], y[i], y_magnitude[i], largest(y_magnitude, s->head_dim));
    }
}

// How far an outcome is off.
static defined compare(const trial *t, const outcome *got) {
    const size_t n = state_of(t), channels = channels_of(t), columns = (size_t)t->w.shape.state_dim;
    defined d = {(double *)allocate(n * sizeof(double)), (double *)allocate(n * sizeof(double)), 0, 0};
    double *window = (double *)allocate(4 * channels * sizeof(double)), *in = (double *)allocate(2 * channels * sizeof(double));
    for (size_t i = 0; i < n; i++) d.S[i] = (double)t->S[i], d.magnitudes[i] = fabs(d.S[i]);
    for (size_t i = 0; i < 3 * channels; i++) window[channels + i] = (double)t->window[i];
    for (int row = 0; row < t->T; row++) {
        for (size_t i = 0; i < channels; i++) in[i] = (double)t->raw[(size_t)row * channels + i];
        mamba_define_conv(&t->w.shape, &t->w, window, in, in + channels);
        define_row(t, in + channels, row, got, &d);
    }
    for (size_t i = 0; i < n; i++) look(&d.off_S, got->S[i], d.S[i], d.magnitudes[i], largest(d.magnitudes + i / columns * columns, (int)columns));
    for (size_t i = 0; i < 3 * channels; i++) CHECK(got->window[i] == (float)window[channels + i], "%s, %d rows: the window", manners[t->manner], t->T);
    free(d.S);
    free(d.magnitudes);
    free(window);
    free(in);
    return d;
}

static void check_near(const trial *t, const outcome *got) {
    const defined d = compare(t, got);
    const mamba_shape *s = &t->w.shape;
    CHECK(d.off_y < 0x1p-9 && d.off_S < 0x1p-9, "%d heads of %d, %d groups of %d, %d rows from %d, %s: y is off by %.2g of its terms, S by %.2g", s->heads,
          s->head_dim, s->groups, s->state_dim, t->T, t->position, manners[t->manner], d.off_y, d.off_S);
}

static void check_same(const trial *t, const outcome *a, const outcome *b) {
    CHECK(!memcmp(a->y, b->y, (size_t)t->T * inner_of(t) * sizeof(float)), "%d rows from %d in pieces: another y", t->T, t->position);
    CHECK(!memcmp(a->S, b->S, state_of(t) * sizeof(float)), "%d rows from %d in pieces: another S", t->T, t->position);
    CHECK(!memcmp(a->window, b->window, 3 * channels_of(t) * sizeof(float)), "%d rows from %d in pieces: another window", t->T, t->position);
}

// The comparison sees steps of one head that are two percent longer.
static void test_it_can_fail(const trial *t, const outcome *got) {
    t->dt_bias[0] += 0.03f;
    CHECK(!(compare(t, got).off_y < 0x1p-9), "another dt is not seen");
    t->dt_bias[0] -= 0.03f;
}

static void test_shape(mamba_shape s, int T, int position) {
    const int first = 32 - position % 32, ends[] = {first, first + 64, T}, all[] = {T};
    for (int manner = 0; manner < MANNERS; manner++) {
        trial t = make_trial(s, (enum manner)manner, T, position);
        outcome whole = outcome_new(&t), cut = outcome_new(&t);
        run(&t, all, 1, &whole);
        check_near(&t, &whole);
        if (first + 64 < T) run(&t, ends, 3, &cut), check_same(&t, &whole, &cut);
        if (manner == ORDINARY && T > 50) test_it_can_fail(&t, &whole);
        outcome_free(&whole);
        outcome_free(&cut);
        trial_free(&t);
    }
}

int main(int argc, char **argv) {
    const mamba_shape nano = {.heads = 4, .head_dim = 64, .groups = 2, .state_dim = 128, .taps = 4};
    const mamba_shape small = {.heads = 4, .head_dim = 8, .groups = 2, .state_dim = 12, .taps = 4};
    const mamba_shape ragged = {.heads = 5, .head_dim = 76, .groups = 1, .state_dim = 64, .taps = 4};
    const mamba_shape wide = {.heads = 2, .head_dim = 128, .groups = 2, .state_dim = 128, .taps = 4};
    test_main_begin("gpu_mamba", argc, argv);
    test_shape(nano, 200, 0);
    test_shape(nano, 131, 21);
    test_shape(small, 1, 5);
    test_shape(small, 2, 31);
    test_shape(small, 100, 31);
    test_shape(ragged, 150, 3);
    test_shape(wide, 70, 64);
    trial t = make_trial(small, ORDINARY, ROWS_MOST, 7);      // more rows than a launch has on a GPU with a small L2
    outcome whole = outcome_new(&t), cut = outcome_new(&t);
    run(&t, (const int[]){ROWS_MOST}, 1, &whole);
    run(&t, (const int[]){25 + 32, 25 + 640, ROWS_MOST}, 3, &cut);
    check_near(&t, &whole);
    check_same(&t, &whole, &cut);
    outcome_free(&whole);
    outcome_free(&cut);
    trial_free(&t);
    return test_main_end();
}
