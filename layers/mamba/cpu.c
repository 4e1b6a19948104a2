/* layers/mamba/cpu.c: the stages of a Mamba-2 layer on the CPU. Knows matrices and threads, and how DeltaNet remembers; no session.

   Its formula is in definition.c. S is laid out [head_dim][state_dim]: a row of S belongs to an element of x and of y, and is independent of all
   others. What is remembered, how a block is logged and how the next one repeats what was kept of it is DeltaNet's (layers/deltanet/cpu.c):

       S = decay S + u B^T        decay = exp(-exp(A_log) dt), u = dt x: these, and B, are the log
       y = S C + D x */

typedef deltanet_state mamba_state;            /* of mamba_memory */

typedef struct mamba_job {
    const mamba_shape *shape;
    const mamba_weights *w;
    deltanet_job memory;         /* window and log, the rows of this block or of all blocks and how many are replayed; raw, conv [T][channels];
                                    decay [T][heads]; z [T][heads][head_dim]; o: y, the same shape; limbs of u, and then of y. The rest is not used */
    float *dt;                   /* [T][heads] in_proj_dt, and then softplus of it */
} mamba_job;

/* norm_mamba_in, without the norm: the three projections of u. */
static void stage_mamba_in(pool *p, const mamba_weights *w, const float *u, const mamba_job *to) {
    projection all = projection_of(u, to->memory.T, to->memory.limbs);
    projection_add(&all, &w->in_proj_cbx, to->memory.raw);
    projection_add(&all, &w->in_proj_z, to->memory.z);
    projection_add(&all, &w->in_proj_dt, to->dt);
    project(p, &all);
}

/* conv[t][c] = SiLU(sum over taps j of conv1d[c][j] raw[t - taps + 1 + j][c] + conv_bias[c]) for channels begin..end-1, all rows. */
static void mamba_conv(void *context, int begin, int end, int thread) {
    const mamba_job *job = (const mamba_job *)context;
    const int channels = mamba_channels(job->shape), taps = job->shape->taps;
    (void)thread;
    for (int t = 0; t < job->memory.T; t++) {
        float *__restrict out = job->memory.conv + (size_t)t * (size_t)channels;
        for (int c = begin; c < end; c++) out[c] = 0;
        for (int j = 0; j < taps; j++) {
            const float *__restrict row = deltanet_raw(&job->memory, t - taps + 1 + j);
            for (int c = begin; c < end; c++) out[c] += job->w->conv1d[(size_t)c * (size_t)taps + (size_t)j] * row[c];
        }
        for (int c = begin; c < end; c++) out[c] = silu(out[c] + job->w->conv_bias[c]);
    }
}

/* dt and decay of all rows. */
static void mamba_steps(const mamba_job *job) {
    const int heads = job->shape->heads;
    for (int i = 0; i < job->memory.T * heads; i++) {
        job->dt[i] = softplus(job->dt[i] + job->w->dt_bias[i % heads]);
        job->memory.decay[i] = expf(-expf(job->w->A_log[i % heads]) * job->dt[i]);
    }
}

/* row[r] = decay row[r] + u[r] B, y[r] = the result . C, for `count` rows of n numbers, 1 or DELTA_ROWS. count and tail, whether n is no multiple
   of 32, are constants. */
INLINE void mamba_update(float *const *row, int n, float decay, const float *u, const float *B, const float *C, float *y, const int count,
                         const int tail) {
    partial sum[DELTA_ROWS];
    for (int r = 0; r < count; r++) sum[r] = no_partial();
    for (int i = 0; i + 32 <= n; i += 32) {
        const lanes B_first = *(const lanes *)(B + i), B_second = *(const lanes *)(B + i + 16);
        const lanes C_first = *(const lanes *)(C + i), C_second = *(const lanes *)(C + i + 16);
        for (int r = 0; r < count; r++) {
            const lanes low = *(lanes *)(row[r] + i) * decay + u[r] * B_first, high = *(lanes *)(row[r] + i + 16) * decay + u[r] * B_second;
            sum[r].low += low * C_first;
            sum[r].high += high * C_second;
            *(lanes *)(row[r] + i) = low;
            *(lanes *)(row[r] + i + 16) = high;
        }
    }
    delta_sums(sum, y, count);
    for (int r = 0; tail && r < count; r++) {
        for (int i = n / 32 * 32; i < n; i++) row[r][i] = row[r][i] * decay + u[r] * B[i];
        y[r] = add_tail(y[r], row[r], C, n);
    }
}

/* For `count` rows of S of a head from `item` on: the kept rows of the log, then all tokens of the block, in one loop, so that both round alike.
   A block that is logged leaves S as it is before its own tokens. */
INLINE void mamba_scan_some(const mamba_job *job, int item, const int count, const int tail) {
    const mamba_shape *s = job->shape;
    const deltanet_job *m = &job->memory;
    const int n = s->state_dim, h = item / s->head_dim, group = h / (s->heads / s->groups), shared = s->groups * n, logged = m->T <= MOTE_ROWS_MAX;
    const size_t channels = (size_t)mamba_channels(s), inner = (size_t)mamba_inner(s);
    float *row[DELTA_ROWS], copy[DELTA_ROWS][MAX_KEY_DIM], u[DELTA_ROWS] = {0}, y[DELTA_ROWS];
    for (int r = 0; r < count; r++) row[r] = m->state.S + (size_t)(item + r) * (size_t)n;
    for (int i = 0; i < m->replay + m->T; i++) {
        const int again = i < m->replay, t = again ? i : i - m->replay;
        const float *conv = m->conv + (size_t)t * channels, *x = conv + 2 * shared + item, *log_u = m->state.log_u + (size_t)t * inner + (size_t)item;
        const float *B = again ? m->state.log_k + (size_t)(t * shared + group * n) : conv + shared + group * n;
        const float decay = (again ? m->state.log_decay : m->decay)[t * s->heads + h];
        for (int r = 0; r < count; r++) u[r] = again ? log_u[r] : job->dt[t * s->heads + h] * x[r];
        for (int r = 0; i == m->replay && logged && r < count; r++) row[r] = (float *)memcpy(copy[r], row[r], (size_t)n * sizeof(float));
        mamba_update(row, n, decay, u, B, again ? B : conv + group * n, y, count, tail);
        for (int r = 0; !again && r < count; r++) m->o[(size_t)t * inner + (size_t)(item + r)] = y[r] + job->w->D[h] * x[r];
        if (!again && logged) memcpy(m->state.log_u + (size_t)t * inner + (size_t)item, u, (size_t)count * sizeof *u);
    }
}

/* For items (head, DELTA_ROWS rows of its S): which rows are computed side by side is the shape's. */
SIMD static void mamba_scan_rows(void *context, int begin, int end, int thread) {
    const mamba_job *job = (const mamba_job *)context;
    const int dim = job->shape->head_dim, of_head = (dim - 1) / DELTA_ROWS + 1;
    (void)thread;
    for (int item = begin; item < end; item++) {
        const int first = item / of_head * dim + item % of_head * DELTA_ROWS, rows = min_int(DELTA_ROWS, dim - item % of_head * DELTA_ROWS);
        if (rows == DELTA_ROWS && job->shape->state_dim % 32 == 0) mamba_scan_some(job, first, DELTA_ROWS, 0);
        else if (rows == DELTA_ROWS) mamba_scan_some(job, first, DELTA_ROWS, 1);
        for (int r = 0; rows < DELTA_ROWS && r < rows; r++) mamba_scan_some(job, first + r, 1, 1);
    }
}

/* conv_scan: conv1d + SiLU, steps, replay of the kept rows, the rule. Fills y and the log. */
static void stage_conv_scan(pool *p, mamba_job *job) {
    const mamba_shape *s = job->shape;
    const deltanet_job *m = &job->memory;
    const size_t shared = (size_t)(s->groups * s->state_dim), channels = (size_t)mamba_channels(s);
    deltanet_advance_window(m);
    parallel(p, (int)channels, mamba_conv, job);
    mamba_steps(job);
    parallel(p, s->heads * ((s->head_dim - 1) / DELTA_ROWS + 1), mamba_scan_rows, job);
    deltanet_keep_raw(m);
    if (m->T > MOTE_ROWS_MAX) return;
    memcpy(m->state.log_decay, m->decay, (size_t)(m->T * s->heads) * sizeof(float));
    for (int t = 0; t < m->T; t++)
        memcpy(m->state.log_k + (size_t)t * shared, m->conv + (size_t)t * channels + shared, shared * sizeof(float));
}

/* y = y SiLU(z), normed, for each group of each row. */
static void mamba_gate_groups(void *context, int begin, int end, int thread) {
    const mamba_job *job = (const mamba_job *)context;
    const int groups = job->shape->groups, n = mamba_inner(job->shape) / groups;
    (void)thread;
    for (int item = begin; item < end; item++) {
        float *y = job->memory.o + (size_t)item * (size_t)n;
        const float *z = job->memory.z + (size_t)item * (size_t)n, *norm = job->w->norm + (size_t)(item % groups) * (size_t)n;
        for (int i = 0; i < n; i++) y[i] *= silu(z[i]);
        const float factor = rms_factor(y, n, job->shape->eps);
        for (int i = 0; i < n; i++) y[i] = y[i] * factor * norm[i];
    }
}

/* mamba_out: out += out_proj (gated norm of y). */
static void stage_mamba_out(pool *p, mamba_job *job, float *out) {
    parallel(p, job->memory.T * job->shape->groups, mamba_gate_groups, job);
    linear(p, &job->w->out_proj, job->memory.o, out, job->memory.T, 1, job->memory.limbs);
}

/* The implementation of layers/kinds.c. */

enum { mamba_rollback = ROLLBACK_REPLAY };

static void mamba_layout_state(layout *l, const mamba_shape *s, const capacity *r, mamba_state *to) {
    const deltanet_shape memory = mamba_memory(s);
    deltanet_layout_state(l, &memory, r, to);
}

static void mamba_layout_scratch(layout *l, const mamba_shape *s, const capacity *r, mamba_job *to) {
    const size_t T = (size_t)r->rows, channels = T * (size_t)mamba_channels(s), inner = T * (size_t)mamba_inner(s), heads = T * (size_t)s->heads;
    to->shape = s;
    to->memory.raw = layout_alloc(l, channels);
    to->memory.conv = layout_alloc(l, channels);
    to->memory.z = layout_alloc(l, inner);
    to->memory.o = layout_alloc(l, inner);
    to->memory.decay = layout_alloc(l, heads);
    to->dt = layout_alloc(l, heads);
    to->memory.limbs = limbs_alloc(l, T, max_int(s->hidden, mamba_inner(s)));
}

static void mamba_project(const token_rows *rows, const mamba_weights *w, mamba_job *job) {
    job->shape = &w->shape;
    job->w = w;
    job->memory.T = rows->T;
    stage_mamba_in(rows->threads, w, rows->u, job);
}

static void mamba_mix(const token_rows *rows, const token_sequence *of, const mamba_job *all, const mamba_state *state) {
    const mamba_shape *s = all->shape;
    const deltanet_shape memory = mamba_memory(s);
    const size_t first = (size_t)of->first, channels = first * (size_t)mamba_channels(s), heads = first * (size_t)s->heads;
    mamba_job job = *all;
    job.memory.shape = &memory;
    job.memory.state = *state;
    job.memory.T = of->T;
    job.memory.replay = of->replay;
    job.memory.raw += channels;
    job.memory.conv += channels;
    job.memory.decay += heads;
    job.memory.o += heads * (size_t)s->head_dim;
    job.dt += heads;
    stage_conv_scan(rows->threads, &job);
}

static void mamba_output(const token_rows *rows, mamba_job *job) {
    stage_mamba_out(rows->threads, job, rows->out);
}

static int mamba_pieces(const mamba_shape *s, const capacity *r, const mamba_state *state, state_piece *to) {
    const deltanet_shape memory = mamba_memory(s);
    const int count = deltanet_pieces(&memory, r, state, to);
    to[0].name = "Mamba state";
    return count;
}

static int mamba_log(const mamba_shape *s, const mamba_state *state, state_piece *to) {
    const deltanet_shape memory = mamba_memory(s);
    return deltanet_log(&memory, state, to);
}
