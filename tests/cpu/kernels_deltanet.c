// A part of test_kernels: DeltaNet.

// A layer's shape and weights, and random inputs of a whole sequence.
typedef struct delta_case {
    deltanet_shape shape;
    deltanet_weights w;
    int channels, keys, values, length;
    float *raw, *a, *b;          /* [length][...] */
} delta_case;

static delta_case delta_case_new(int key_heads, int ratio, int key_dim, int value_dim, int taps, int length) {
    delta_case c;
    memset(&c, 0, sizeof c);
    deltanet_shape shape = {.key_heads = key_heads, .value_heads = key_heads * ratio, .key_dim = key_dim, .value_dim = value_dim,
                            .taps = taps, .eps = 1e-6f};
    c.shape = shape;
    c.channels = deltanet_channels(&shape);
    c.keys = key_heads * key_dim;
    c.values = shape.value_heads * value_dim;
    c.length = length;
    c.w.conv1d = random_floats((size_t)(c.channels * taps), 0.8f);
    c.w.A_log = random_floats((size_t)shape.value_heads, 2);
    c.w.dt_bias = random_floats((size_t)shape.value_heads, 2);
    c.raw = random_floats((size_t)(length * c.channels), 2);
    c.a = random_floats((size_t)(length * shape.value_heads), 3);
    c.b = random_floats((size_t)(length * shape.value_heads), 3);
    return c;
}

static void delta_case_delete(delta_case *c) {
    free((void *)(uintptr_t)c->w.conv1d);
    free((void *)(uintptr_t)c->w.A_log);
    free((void *)(uintptr_t)c->w.dt_bias);
    free(c->raw);
    free(c->a);
    free(c->b);
}

// One timeline on a case: its state, and the scratch of a block.
typedef struct delta_run {
    const delta_case *c;
    pool *threads;
    deltanet_state state;
    float *conv, *decay, *beta, *o;
    int count, accepted;
} delta_run;

static delta_run delta_run_new(const delta_case *c, pool *threads) {
    delta_run r;
    size_t n = (size_t)c->length;
    memset(&r, 0, sizeof r);
    r.c = c;
    r.threads = threads;
    r.state.S = floats((size_t)(c->values * c->shape.key_dim));
    r.state.window = floats((size_t)((c->shape.taps - 1) * c->channels));
    r.state.log_raw = floats((size_t)(MOTE_ROWS_MAX * c->channels));
    r.state.log_k = floats((size_t)(MOTE_ROWS_MAX * c->keys));
    r.state.log_u = floats((size_t)(MOTE_ROWS_MAX * c->values));
    r.state.log_decay = floats((size_t)(MOTE_ROWS_MAX * c->shape.value_heads));
    r.conv = floats(n * (size_t)c->channels);
    r.decay = floats(n * (size_t)c->shape.value_heads);
    r.beta = floats(n * (size_t)c->shape.value_heads);
    r.o = floats(n * (size_t)c->values);
    return r;
}

static void delta_run_delete(delta_run *r) {
    float *all[] = {r->state.S, r->state.window, r->state.log_raw, r->state.log_k, r->state.log_u, r->state.log_decay,
                    r->conv, r->decay, r->beta, r->o};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

// Computes T rows after the timeline and keeps the first `keep`. r->o holds the outputs of all T.
static void delta_block(delta_run *r, int T, int keep) {
    const delta_case *c = r->c;
    deltanet_job job;
    memset(&job, 0, sizeof job);
    job.shape = &c->shape;
    job.w = &c->w;
    job.state = r->state;
    job.T = T;
    job.replay = r->accepted;
    job.raw = c->raw + (size_t)r->count * (size_t)c->channels;
    job.a = c->a + (size_t)r->count * (size_t)c->shape.value_heads;
    job.b = c->b + (size_t)r->count * (size_t)c->shape.value_heads;
    job.conv = r->conv;
    job.decay = r->decay;
    job.beta = r->beta;
    job.o = r->o;
    stage_conv_delta(r->threads, &job);
    r->accepted = T <= MOTE_ROWS_MAX ? keep : 0;
    r->count += keep;
}

// The same by the formulas, one token after the other, in double. out: [length][values].
static void delta_naive_conv(const delta_case *c, int t, double *row) {
    for (int ch = 0; ch < c->channels; ch++) {
        double sum = 0;
        for (int j = 0; j < c->shape.taps; j++) {
            int at = t - (c->shape.taps - 1) + j;
            if (at >= 0) sum += (double)c->w.conv1d[ch * c->shape.taps + j] * c->raw[at * c->channels + ch];
        }
        row[ch] = sum / (1 + exp(-sum));
    }
}

static void naive_l2(double *x, int n, double factor) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) x[i] *= factor / sqrt(sum + 1e-6);
}

static void delta_naive_token(const delta_case *c, int t, double *row, double *S, double *out) {
    int kd = c->shape.key_dim, vd = c->shape.value_dim, heads = c->shape.value_heads;
    delta_naive_conv(c, t, row);
    for (int h = 0; h < c->shape.key_heads; h++) {
        naive_l2(row + h * kd, kd, 1 / sqrt(kd));
        naive_l2(row + c->keys + h * kd, kd, 1);
    }
    for (int h = 0; h < heads; h++) {
        const double *q = row + h / (heads / c->shape.key_heads) * kd, *k = q + c->keys;
        const double *v = row + 2 * c->keys + h * vd;
        double beta = 1 / (1 + exp(-(double)c->b[t * heads + h]));
        double g = -exp(c->w.A_log[h]) * log1p(exp((double)c->a[t * heads + h] + c->w.dt_bias[h]));
        double *s = S + h * vd * kd;                           /* [value_dim][key_dim] */
        for (int i = 0; i < vd * kd; i++) s[i] *= exp(g);
        for (int j = 0; j < vd; j++) {
            double r = 0, o = 0;
            for (int i = 0; i < kd; i++) r += s[j * kd + i] * k[i];
            for (int i = 0; i < kd; i++) s[j * kd + i] += k[i] * beta * (v[j] - r);
            for (int i = 0; i < kd; i++) o += s[j * kd + i] * q[i];
            out[h * vd + j] = o;
        }
    }
}

static void test_delta_rule(delta_case *c, pool *threads) {
    size_t state = (size_t)(c->values * c->shape.key_dim), outputs = (size_t)(c->length * c->values);
    double *row = (double *)allocate((size_t)c->channels * sizeof(double)), *S = (double *)allocate(state * sizeof(double));
    double *want = (double *)allocate(outputs * sizeof(double));
    delta_run r = delta_run_new(c, threads);
    for (int t = 0; t < c->length; t++) delta_naive_token(c, t, row, S, want + t * c->values);
    delta_block(&r, c->length, c->length);
    CHECK(distance(r.o, want, outputs) < 1e-5, "delta rule outputs: off by %g", distance(r.o, want, outputs));
    CHECK(distance(r.state.S, S, state) < 1e-5, "delta rule state: off by %g", distance(r.state.S, S, state));
    int tail = c->shape.taps - 1;
    const float *last = c->raw + (size_t)(c->length - tail) * (size_t)c->channels;
    CHECK(same_bits(r.state.window, last, (size_t)(tail * c->channels)), "window of %d rows", tail);
    delta_run_delete(&r);
    free(row);
    free(S);
    free(want);
}

// One row at a time, all kept: outputs [length][values], and the conv outputs [length][channels].
static void delta_plain(const delta_case *c, pool *threads, float *o, float *conv, delta_run *keep_run) {
    *keep_run = delta_run_new(c, threads);
    for (int t = 0; t < c->length; t++) {
        delta_block(keep_run, 1, 1);
        memcpy(o + (size_t)t * (size_t)c->values, keep_run->o, (size_t)c->values * sizeof(float));
        memcpy(conv + (size_t)t * (size_t)c->channels, keep_run->conv, (size_t)c->channels * sizeof(float));
    }
}

// Conv outputs do not depend on where blocks end.
static void test_conv_blocks(const delta_case *c, pool *threads, const float *conv) {
    for (int T = 1; T <= 7; T++) {
        delta_run r = delta_run_new(c, threads);
        int bad = 0;
        while (r.count + T <= c->length) {
            int first = r.count;
            delta_block(&r, T, T);
            bad += !same_bits(r.conv, conv + (size_t)first * (size_t)c->channels, (size_t)(T * c->channels));
        }
        CHECK(!bad, "conv in blocks of %d rows, %d taps: %d blocks differ", T, c->shape.taps, bad);
        delta_run_delete(&r);
    }
}

// Random blocks, short ones kept in part: every output, kept or not, and the state at the end equal plain decoding.
static void test_replay(const delta_case *c, pool *threads, const float *plain_o, const delta_run *plain) {
    delta_run r = delta_run_new(c, threads);
    int bad = 0, blocks = 0;
    while (r.count < c->length) {
        int left = c->length - r.count, T = random_int(1, 4), first = r.count;
        if (random_int(0, 3) == 0) T = random_int(5, 20);
        if (T > left - 1) T = left > 1 ? left - 1 : 1;         /* the last row alone: it brings S up to it */
        int keep = T <= MOTE_ROWS_MAX ? random_int(1, T) : T;
        delta_block(&r, T, keep);
        bad += !same_bits(r.o, plain_o + (size_t)first * (size_t)c->values, (size_t)(T * c->values));
        blocks++;
    }
    CHECK(!bad, "replay: %d of %d blocks differ from plain decoding", bad, blocks);
    CHECK(same_bits(r.state.S, plain->state.S, (size_t)(c->values * c->shape.key_dim)), "replay: S differs");
    size_t window = (size_t)((c->shape.taps - 1) * c->channels);
    CHECK(same_bits(r.state.window, plain->state.window, window), "replay: window differs");
    delta_run_delete(&r);
}

static void test_deltanet(int key_heads, int ratio, int key_dim, int value_dim, int taps, pool **pools) {
    delta_case c = delta_case_new(key_heads, ratio, key_dim, value_dim, taps, 90);
    float *o = floats((size_t)(c.length * c.values)), *conv = floats((size_t)(c.length * c.channels));
    delta_run plain;
    test_delta_rule(&c, pools[1]);
    delta_plain(&c, pools[0], o, conv, &plain);
    test_conv_blocks(&c, pools[0], conv);
    for (int i = 0; i < (test_brief ? 9 : 25); i++) test_replay(&c, pools[i % 8 ? 0 : 1 + i % 2], o, &plain);
    delta_run_delete(&plain);
    delta_case_delete(&c);
    free(o);
    free(conv);
}

// Rejected rows that are not those of the timeline leave no trace.
static void test_rejected_rows(pool *threads) {
    delta_case c = delta_case_new(2, 2, 16, 12, 4, 40), draft = delta_case_new(2, 2, 16, 12, 4, 40);
    float *o = floats((size_t)(c.length * c.values)), *conv = floats((size_t)(c.length * c.channels));
    delta_run plain, r = delta_run_new(&c, threads);
    int bad = 0;
    delta_plain(&c, threads, o, conv, &plain);
    while (r.count + MOTE_ROWS_MAX <= c.length) {
        int keep = random_int(1, MOTE_ROWS_MAX), first = r.count;
        float *raw = c.raw + (size_t)(first + keep) * (size_t)c.channels;
        size_t size = (size_t)((MOTE_ROWS_MAX - keep) * c.channels) * sizeof(float);
        float *saved = floats(size / sizeof(float));
        memcpy(saved, raw, size);
        memcpy(raw, draft.raw, size);
        delta_block(&r, MOTE_ROWS_MAX, keep);
        memcpy(raw, saved, size);
        free(saved);
        bad += !same_bits(r.o, o + (size_t)first * (size_t)c.values, (size_t)(keep * c.values));
    }
    CHECK(!bad, "%d blocks differ after rejected drafts", bad);
    delta_run_delete(&plain);
    delta_run_delete(&r);
    delta_case_delete(&draft);
    delta_case_delete(&c);
    free(o);
    free(conv);
}

// The gated norm.
static void test_gated_norm(pool *threads) {
    delta_case c = delta_case_new(1, 3, 4, 10, 2, 2);
    float *o = random_floats(60, 1), *z = random_floats(60, 3), *norm = random_floats(10, 1), *x = random_floats(14, 1);
    double want[14];
    random_matrix out = matrix_new(FORMAT_F32, 7, 30, 1, 1);
    deltanet_job job;
    memset(&job, 0, sizeof job);
    for (int i = 0; i < 14; i++) want[i] = x[i];
    for (int i = 0; i < 60; i++) {
        const float *head = o + i / 10 * 10;
        double sum = 0, gate = z[i];
        for (int j = 0; j < 10; j++) sum += (double)head[j] * head[j];
        double value = o[i] / sqrt(sum / 10 + 1e-6) * norm[i % 10] * gate / (1 + exp(-gate));
        for (int r = 0; r < 7; r++) want[i / 30 * 7 + r] += out.value[r * 30 + i % 30] * value;
    }
    c.w.norm = norm;
    c.w.out_proj = out.w;
    job.shape = &c.shape;
    job.w = &c.w;
    job.T = 2;
    job.o = o;
    job.z = z;
    job.limbs = limbs_new(2, 30);
    stage_gated_norm_out(threads, &job, x);
    CHECK(distance(x, want, 14) < 1e-5, "gated norm: off by %g", distance(x, want, 14));
    matrix_delete(&out);
    delta_case_delete(&c);
    float *all[] = {o, z, norm, x};
    for (int i = 0; i < 4; i++) free(all[i]);
    free(job.limbs);
}
