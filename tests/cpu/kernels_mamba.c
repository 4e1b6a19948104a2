// A part of test_kernels: Mamba-2.

// A layer, its inputs of a whole sequence, a timeline on it, and the scratch of a block.
typedef struct mamba_case {
    mamba_weights w;
    int channels, inner, shared, length;
    float *raw, *dt;             // [length][channels], [length][heads]
    deltanet_state state;
    mamba_job job;
    int count, accepted;
} mamba_case;

static mamba_case mamba_case_new(int groups, int ratio, int state_dim, int head_dim, int taps, int length) {
    const mamba_shape s = {.hidden = 8, .heads = groups * ratio, .head_dim = head_dim, .groups = groups, .state_dim = state_dim, .taps = taps, .eps = 1e-5f};
    mamba_case c;
    memset(&c, 0, sizeof c);
    c.w.shape = s;
    c.channels = mamba_channels(&s), c.inner = mamba_inner(&s), c.shared = groups * state_dim, c.length = length;
    c.w.conv1d = random_floats((size_t)(c.channels * taps), 0.8f);
    c.w.conv_bias = random_floats((size_t)c.channels, 0.5f);
    c.w.A_log = random_floats((size_t)s.heads, 2);
    c.w.D = random_floats((size_t)s.heads, 2);
    c.w.dt_bias = random_floats((size_t)s.heads, 2);
    c.raw = random_floats((size_t)(length * c.channels), 2);
    c.dt = random_floats((size_t)(length * s.heads), 3);
    c.state.S = floats((size_t)(c.inner * state_dim));
    c.state.window = floats((size_t)((taps - 1) * c.channels));
    c.state.log_raw = floats((size_t)(MOTE_ROWS_MAX * c.channels));
    c.state.log_k = floats((size_t)(MOTE_ROWS_MAX * c.shared));
    c.state.log_u = floats((size_t)(MOTE_ROWS_MAX * c.inner));
    c.state.log_decay = floats((size_t)(MOTE_ROWS_MAX * s.heads));
    c.job.memory.conv = floats((size_t)(length * c.channels));
    c.job.memory.decay = floats((size_t)(length * s.heads));
    c.job.memory.o = floats((size_t)(length * c.inner));
    c.job.dt = floats((size_t)(length * s.heads));
    return c;
}

static void mamba_case_delete(mamba_case *c) {
    const float *all[] = {c->w.conv1d, c->w.conv_bias, c->w.A_log, c->w.D, c->w.dt_bias, c->raw, c->dt, c->state.S, c->state.window, c->state.log_raw,
                          c->state.log_k, c->state.log_u, c->state.log_decay, c->job.memory.conv, c->job.memory.decay, c->job.memory.o, c->job.dt};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free((void *)(uintptr_t)all[i]);
}

// Before any token.
static void mamba_restart(mamba_case *c) {
    memset(c->state.S, 0, (size_t)(c->inner * c->w.shape.state_dim) * sizeof(float));
    memset(c->state.window, 0, (size_t)((c->w.shape.taps - 1) * c->channels) * sizeof(float));
    c->count = c->accepted = 0;
}

// Computes T rows after the timeline and keeps the first `keep`. y of all T is in job.memory.o.
static void mamba_block(mamba_case *c, pool *threads, int T, int keep) {
    const deltanet_shape memory = mamba_memory(&c->w.shape);
    const int heads = c->w.shape.heads;
    mamba_job *job = &c->job;
    job->shape = &c->w.shape;
    job->w = &c->w;
    job->memory.shape = &memory;
    job->memory.state = c->state;
    job->memory.T = T;
    job->memory.replay = c->accepted;
    job->memory.raw = c->raw + (size_t)c->count * (size_t)c->channels;
    memcpy(job->dt, c->dt + (size_t)c->count * (size_t)heads, (size_t)(T * heads) * sizeof(float));
    stage_conv_scan(threads, job);
    c->accepted = T <= MOTE_ROWS_MAX ? keep : 0;
    c->count += keep;
}

// y of all tokens by the formulas, in double.
static void mamba_naive(const mamba_case *c, double *y) {
    const mamba_shape *s = &c->w.shape;
    double *S = (double *)allocate((size_t)(c->inner * s->state_dim) * sizeof *S), *row = (double *)allocate((size_t)c->channels * sizeof *row);
    memset(S, 0, (size_t)(c->inner * s->state_dim) * sizeof *S);
    for (int t = 0; t < c->length; t++) {
        for (int ch = 0; ch < c->channels; ch++) {
            double sum = (double)c->w.conv_bias[ch];
            for (int j = 0; j < s->taps && t - j >= 0; j++)
                sum += (double)c->w.conv1d[ch * s->taps + s->taps - 1 - j] * (double)c->raw[(t - j) * c->channels + ch];
            row[ch] = sum / (1 + exp(-sum));
        }
        for (int i = 0; i < c->inner; i++) {
            const int h = i / s->head_dim;
            const double *C = row + h / (s->heads / s->groups) * s->state_dim, *B = C + c->shared, x = row[2 * c->shared + i];
            const double dt = log1p(exp((double)c->dt[t * s->heads + h] + (double)c->w.dt_bias[h])), decay = exp(-exp((double)c->w.A_log[h]) * dt);
            double sum = (double)c->w.D[h] * x;
            for (int k = 0; k < s->state_dim; k++) sum += (S[i * s->state_dim + k] = decay * S[i * s->state_dim + k] + dt * x * B[k]) * C[k];
            y[t * c->inner + i] = sum;
        }
    }
    free(S), free(row);
}

// One block after the other, of any size, of which any part is kept: the formulas, and the bits of one block, whatever the threads.
static void test_mamba(int groups, int ratio, int state_dim, int head_dim, int taps, pool **pools) {
    mamba_case c = mamba_case_new(groups, ratio, state_dim, head_dim, taps, 40);
    const size_t n = (size_t)(c.length * c.inner), S = (size_t)(c.inner * state_dim) * sizeof(float), window = (size_t)((taps - 1) * c.channels) * sizeof(float);
    double *want = (double *)allocate(n * sizeof *want), worst = 0, size = 1e-30;
    float *whole = floats(n), *state = floats((size_t)(c.inner * state_dim)), *kept = floats((size_t)((taps - 1) * c.channels));
    int other = 0;
    mamba_naive(&c, want);
    mamba_block(&c, pools[0], c.length, c.length);
    memcpy(whole, c.job.memory.o, n * sizeof *whole);
    memcpy(state, c.state.S, S);
    memcpy(kept, c.state.window, window);
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)whole[i] - want[i])), size = fmax(size, fabs(want[i]));
    CHECK(worst <= 1e-5 * size, "%d heads of %d, %d groups, %d numbers of state, %d taps: y is off by %g", groups * ratio, head_dim, groups, state_dim, taps, worst / size);
    for (int round = 0; round < 3; round++) {
        mamba_restart(&c);
        while (c.count < c.length) {
            const int at = c.count, T = min_int(random_int(1, round == 2 ? 12 : MOTE_ROWS_MAX), c.length - at), keep = T <= MOTE_ROWS_MAX ? random_int(1, T) : T;
            mamba_block(&c, pools[round], T, keep);
            other += memcmp(c.job.memory.o, whole + (size_t)(at * c.inner), (size_t)(T * c.inner) * sizeof *whole) != 0;
        }
        mamba_block(&c, pools[round], 0, 0);                   // what is kept of the last block goes into S
        other += memcmp(c.state.S, state, S) != 0 || memcmp(c.state.window, kept, window) != 0;
    }
    CHECK(!other, "%d heads of %d, %d groups, %d numbers of state, %d taps: other bits %d times", groups * ratio, head_dim, groups, state_dim, taps, other);
    mamba_case_delete(&c);
    free(want), free(whole), free(state), free(kept);
}
