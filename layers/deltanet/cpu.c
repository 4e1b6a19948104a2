/* layers/deltanet/cpu.c: the stages of a Gated DeltaNet layer on the CPU. Knows matrices and threads, no session.

   Gated DeltaNet (Yang et al. 2024) keeps, for every value head, a matrix S that maps keys to values. A token first lets
   the memory decay, then corrects what it holds for the token's key, then reads with the query:

       S = exp(g) S                     the decay comes first, so that the correction below is against the decayed memory
       u = beta (v - S k)               what the memory should have said for k, minus what it says: the delta
       S = S + u k^T                    written along k
       o = S q                          read after the write, so that a token sees itself

   S is laid out [value_dim][key_dim]: row j of S belongs to element j of v, u and o and is independent of all others, so
   one row stays in registers or L1 for the whole block of tokens.

   Speculation asks for a block of rows of which only some are kept, and S cannot be cut back. So a block of up to MOTE_ROWS_MAX
   rows leaves S as it was before the block and logs what each row did to it (decay, k, u); the next block first repeats
   the kept part of the log, by the same operations in the same order, hence with the same bits. S is read and written
   once a block. Longer blocks, of a prompt, are kept whole: they write S directly. */

/* Pointers into the session's state. channels = 2 key_heads key_dim + value_heads value_dim. */
typedef struct deltanet_state {  /* one range of memory, in this order */
    float *S;                    /* [value_heads][value_dim][key_dim] before the logged block */
    float *window;               /* [taps - 1][channels] raw conv inputs before the logged block, oldest first */
    float *log_raw;              /* [MOTE_ROWS_MAX][channels] raw conv inputs of the logged block, right after the window */
    float *log_k;                /* [MOTE_ROWS_MAX][key_heads][key_dim] */
    float *log_u;                /* [MOTE_ROWS_MAX][value_heads][value_dim] */
    float *log_decay;            /* [MOTE_ROWS_MAX][value_heads] */
} deltanet_state;

typedef struct deltanet_job {
    const deltanet_shape *shape;
    const deltanet_weights *w;
    deltanet_state state;
    int T;                       /* rows of this block, or of all blocks */
    int replay;                  /* rows of the logged block that were kept */
    float *raw;                  /* [T][channels] in_proj_qkv of the block */
    float *conv;                 /* [T][channels] q | k | v after conv1d, SiLU and normalisation */
    float *b, *a;                /* [T][value_heads] */
    float *decay, *beta;         /* [T][value_heads] */
    float *o;                    /* [T][value_heads][value_dim] */
    float *z;                    /* the same shape */
    token_limbs *limbs;          /* of u, and then of o */
} deltanet_job;

/* norm_in_proj, without the norm: qkv, z, b, a = the four projections of u. scratch: for the limbs of u. */
static void stage_in_proj(pool *p, const deltanet_weights *w, const float *u, int T, float *qkv, float *z, float *b, float *a,
                          token_limbs *scratch) {
    projection job = projection_of(u, T, scratch);
    projection_add(&job, &w->in_proj_qkv, qkv);
    projection_add(&job, &w->in_proj_z, z);
    projection_add(&job, &w->in_proj_b, b);
    projection_add(&job, &w->in_proj_a, a);
    project(p, &job);
}

/* The raw conv inputs of `taps - 1` tokens before the block: the window, moved on by the kept rows of the logged block. */
static void deltanet_advance_window(const deltanet_job *job) {
    int channels = deltanet_channels(job->shape), keep = job->shape->taps - 1, replay = job->replay;
    size_t row = (size_t)channels * sizeof(float);
    float *window = job->state.window;
    int from_log = replay < keep ? replay : keep;
    memmove(window, window + (size_t)from_log * (size_t)channels, (size_t)(keep - from_log) * row);
    memcpy(window + (size_t)(keep - from_log) * (size_t)channels,
           job->state.log_raw + (size_t)(replay - from_log) * (size_t)channels, (size_t)from_log * row);
}

/* After the block: log its raw rows if it is short enough to be taken back, else move the window on past it. */
static void deltanet_keep_raw(const deltanet_job *job) {
    int channels = deltanet_channels(job->shape), keep = job->shape->taps - 1;
    size_t row = (size_t)channels * sizeof(float);
    if (job->T <= MOTE_ROWS_MAX) {
        memcpy(job->state.log_raw, job->raw, (size_t)job->T * row);
        return;
    }
    int from_block = job->T < keep ? job->T : keep;
    memmove(job->state.window, job->state.window + (size_t)from_block * (size_t)channels,
            (size_t)(keep - from_block) * row);
    memcpy(job->state.window + (size_t)(keep - from_block) * (size_t)channels,
           job->raw + (size_t)(job->T - from_block) * (size_t)channels, (size_t)from_block * row);
}

/* The raw conv inputs of row t of the block, or before it. */
static const float *deltanet_raw(const deltanet_job *job, int t) {
    const int channels = deltanet_channels(job->shape), keep = job->shape->taps - 1;
    return t < 0 ? job->state.window + (size_t)(t + keep) * (size_t)channels : job->raw + (size_t)t * (size_t)channels;
}

/* conv[t][c] = SiLU(sum over taps j of conv1d[c][j] * raw[t - taps + 1 + j][c]) for `n` channels from `first`. Compilers make
   vectors of sums where `taps`, those of the layer, is a constant. */
INLINE void deltanet_conv_taps(const deltanet_job *job, int t, int first, int n, const int taps) {
    const float *conv1d = job->w->conv1d + (size_t)first * (size_t)taps;
    float *__restrict out = job->conv + (size_t)t * (size_t)deltanet_channels(job->shape) + first;
    memset(out, 0, (size_t)n * sizeof *out);
    for (int j = 0; j < taps; j++) {
        const float *__restrict row = deltanet_raw(job, t - taps + 1 + j) + first;
        for (int c = 0; c < n; c++) out[c] += conv1d[c * taps + j] * row[c];
    }
    for (int c = 0; c < n; c++) out[c] = silu(out[c]);
}

static void deltanet_conv(const deltanet_job *job, int t, int first, int n) {
    enum { USUAL = 4 };
    if (job->shape->taps == USUAL) deltanet_conv_taps(job, t, first, n, USUAL);
    else deltanet_conv_taps(job, t, first, n, job->shape->taps);
}

/* x = x / sqrt(sum(x^2) + 1e-6) * factor: sum, not mean, and no weight. */
static void l2_norm(float *x, int n, float factor) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    float f = factor / (float)sqrt(sum + 1e-6);
    for (int i = 0; i < n; i++) x[i] *= f;
}

/* Items 0..key_heads-1: q and k of a key head; then v, decay and beta of each value head. */
static void deltanet_conv_heads(void *context, int begin, int end, int thread) {
    const deltanet_job *job = (const deltanet_job *)context;
    const deltanet_shape *s = job->shape;
    int channels = deltanet_channels(s), keys = s->key_heads * s->key_dim;
    (void)thread;
    for (int item = begin; item < end; item++)
        for (int t = 0; t < job->T; t++) {
            float *row = job->conv + (size_t)t * (size_t)channels;
            if (item < s->key_heads) {
                int q = item * s->key_dim, k = keys + q;
                deltanet_conv(job, t, q, s->key_dim);
                deltanet_conv(job, t, k, s->key_dim);
                l2_norm(row + q, s->key_dim, 1.0f / sqrtf((float)s->key_dim));
                l2_norm(row + k, s->key_dim, 1.0f);
            } else {
                int h = item - s->key_heads, at = t * s->value_heads + h;
                deltanet_conv(job, t, 2 * keys + h * s->value_dim, s->value_dim);
                job->decay[at] = expf(-expf(job->w->A_log[h]) * softplus(job->a[at] + job->w->dt_bias[h]));
                job->beta[at] = sigmoid(job->b[at]);
            }
        }
}

/* S = decay S, then S = S + u k^T, for one row of S. Two loops, so that replay and first run round alike. */
INLINE void delta_decay(float *row, int n, float decay) {
    for (int i = 0; i < n; i++) row[i] *= decay;
}

INLINE void delta_write(float *row, int n, float u, const float *k) {
    for (int i = 0; i < n; i++) row[i] += u * k[i];
}

enum { DELTA_ROWS = 4 };         /* rows of S that are computed side by side: a token of one row is a chain of some hundred cycles */

INLINE void delta_sums(const partial *sum, float *to, const int count) {
    if (count == DELTA_ROWS) sum_four_lanes(sum, to);
    else *to = sum_lanes(sum);
}

/* row[r] = decay row[r], said[r] = the result . k, for `count` rows, 1 or DELTA_ROWS. count and tail, whether n is no multiple of 32,
   are constants. */
INLINE void delta_read(float *const *row, int n, float decay, const float *k, float *said, const int count, const int tail) {
    partial sum[DELTA_ROWS];
    for (int r = 0; r < count; r++) sum[r] = no_partial();
    for (int i = 0; i + 32 <= n; i += 32) {
        const lanes first = *(const lanes *)(k + i), second = *(const lanes *)(k + i + 16);
        for (int r = 0; r < count; r++) {
            const lanes low = *(lanes *)(row[r] + i) * decay, high = *(lanes *)(row[r] + i + 16) * decay;
            sum[r].low += low * first;
            sum[r].high += high * second;
            *(lanes *)(row[r] + i) = low;
            *(lanes *)(row[r] + i + 16) = high;
        }
    }
    delta_sums(sum, said, count);
    for (int r = 0; tail && r < count; r++) {
        delta_decay(row[r] + n / 32 * 32, n % 32, decay);
        said[r] = add_tail(said[r], row[r], k, n);
    }
}

/* row[r] = row[r] + u[r] k, o[r] = the result . q, likewise. */
INLINE void delta_update(float *const *row, int n, const float *u, const float *k, const float *q, float *o, const int count,
                         const int tail) {
    partial sum[DELTA_ROWS];
    for (int r = 0; r < count; r++) sum[r] = no_partial();
    for (int i = 0; i + 32 <= n; i += 32) {
        const lanes k_first = *(const lanes *)(k + i), k_second = *(const lanes *)(k + i + 16);
        const lanes q_first = *(const lanes *)(q + i), q_second = *(const lanes *)(q + i + 16);
        for (int r = 0; r < count; r++) {
            const lanes low = *(lanes *)(row[r] + i) + u[r] * k_first, high = *(lanes *)(row[r] + i + 16) + u[r] * k_second;
            sum[r].low += low * q_first;
            sum[r].high += high * q_second;
            *(lanes *)(row[r] + i) = low;
            *(lanes *)(row[r] + i + 16) = high;
        }
    }
    delta_sums(sum, o, count);
    for (int r = 0; tail && r < count; r++) {
        delta_write(row[r] + n / 32 * 32, n % 32, u[r], k + n / 32 * 32);
        o[r] = add_tail(o[r], row[r], q, n);
    }
}

/* The delta rule for `count` rows of S of a value head from `item` on: all tokens of the block, one after the other. */
INLINE void deltanet_delta_some(const deltanet_job *job, int item, const int count, const int tail) {
    const deltanet_shape *s = job->shape;
    const int keys = s->key_heads * s->key_dim, n = s->key_dim, h = item / s->value_dim, logged = job->T <= MOTE_ROWS_MAX;
    const int key_head = h / (s->value_heads / s->key_heads);
    const size_t channels = (size_t)deltanet_channels(s), values = (size_t)(s->value_heads * s->value_dim);
    float *row[DELTA_ROWS], copy[DELTA_ROWS][MAX_KEY_DIM];
    for (int r = 0; r < count; r++) {
        row[r] = job->state.S + (size_t)(item + r) * (size_t)n;
        for (int t = 0; t < job->replay; t++) {
            delta_decay(row[r], n, job->state.log_decay[t * s->value_heads + h]);
            delta_write(row[r], n, job->state.log_u[(size_t)t * values + (size_t)(item + r)],
                        job->state.log_k + (size_t)(t * s->key_heads + key_head) * (size_t)n);
        }
        if (logged) row[r] = (float *)memcpy(copy[r], row[r], (size_t)n * sizeof(float));
    }
    for (int t = 0; t < job->T; t++) {
        const float *conv = job->conv + (size_t)t * channels, *q = conv + key_head * n, *k = q + keys, *v = conv + 2 * keys + item;
        const size_t at = (size_t)t * values + (size_t)item;
        float u[DELTA_ROWS];
        delta_read(row, n, job->decay[t * s->value_heads + h], k, u, count, tail);
        for (int r = 0; r < count; r++) u[r] = job->beta[t * s->value_heads + h] * (v[r] - u[r]);
        delta_update(row, n, u, k, q, job->o + at, count, tail);
        if (logged) memcpy(job->state.log_u + at, u, (size_t)count * sizeof *u);
    }
}

/* For rows of S, items (value head h, element j). */
SIMD static void deltanet_delta_rows(void *context, int begin, int end, int thread) {
    const deltanet_job *job = (const deltanet_job *)context;
    (void)thread;
    for (int item = begin, count; item < end; item += count) {
        const int left = job->shape->value_dim - item % job->shape->value_dim;
        count = min_int(left, end - item) < DELTA_ROWS ? 1 : DELTA_ROWS;
        if (count == 1) deltanet_delta_some(job, item, 1, 1);
        else if (job->shape->key_dim % 32) deltanet_delta_some(job, item, DELTA_ROWS, 1);
        else deltanet_delta_some(job, item, DELTA_ROWS, 0);
    }
}

/* conv_delta: conv1d + SiLU, l2 norms, gates, replay of the kept rows, delta rule. Fills job->o and the log. */
static void stage_conv_delta(pool *p, deltanet_job *job) {
    const deltanet_shape *s = job->shape;
    int channels = deltanet_channels(s), keys = s->key_heads * s->key_dim;
    deltanet_advance_window(job);
    parallel(p, s->key_heads + s->value_heads, deltanet_conv_heads, job);
    parallel(p, s->value_heads * s->value_dim, deltanet_delta_rows, job);
    deltanet_keep_raw(job);
    if (job->T > MOTE_ROWS_MAX) return;
    memcpy(job->state.log_decay, job->decay, (size_t)(job->T * s->value_heads) * sizeof(float));
    for (int t = 0; t < job->T; t++)
        memcpy(job->state.log_k + (size_t)t * (size_t)keys, job->conv + (size_t)t * (size_t)channels + (size_t)keys,
               (size_t)keys * sizeof(float));
}

/* o = rms(o) * norm * SiLU(z), or sigmoid(z), for each head of each row. */
static void deltanet_gate_heads(void *context, int begin, int end, int thread) {
    const deltanet_job *job = (const deltanet_job *)context;
    const int n = job->shape->value_dim, plain = job->shape->sigmoid_gate;
    (void)thread;
    for (int item = begin; item < end; item++) {
        float *o = job->o + (size_t)item * (size_t)n, factor = rms_factor(o, n, job->shape->eps);
        const float *z = job->z + (size_t)item * (size_t)n;
        for (int i = 0; i < n; i++) o[i] = o[i] * factor * job->w->norm[i] * (plain ? sigmoid(z[i]) : silu(z[i]));
    }
}

/* gated_norm_out: out += out_proj (gated norm of o). */
static void stage_gated_norm_out(pool *p, deltanet_job *job, float *out) {
    parallel(p, job->T * job->shape->value_heads, deltanet_gate_heads, job);
    linear(p, &job->w->out_proj, job->o, out, job->T, 1, job->limbs);
}

/* The implementation of layers/kinds.c. */

enum { deltanet_rollback = ROLLBACK_REPLAY };

static void deltanet_layout_state(layout *l, const deltanet_shape *s, const capacity *r, deltanet_state *to) {
    size_t channels = (size_t)deltanet_channels(s), keys = (size_t)(s->key_heads * s->key_dim);
    size_t values = (size_t)(s->value_heads * s->value_dim);
    (void)r;
    to->S = layout_alloc(l, values * (size_t)s->key_dim);
    to->window = layout_alloc(l, ((size_t)s->taps - 1 + MOTE_ROWS_MAX) * channels);
    to->log_raw = to->window ? to->window + ((size_t)s->taps - 1) * channels : NULL;
    to->log_k = layout_alloc(l, MOTE_ROWS_MAX * keys);
    to->log_u = layout_alloc(l, MOTE_ROWS_MAX * values);
    to->log_decay = layout_alloc(l, MOTE_ROWS_MAX * (size_t)s->value_heads);
}

static void deltanet_layout_scratch(layout *l, const deltanet_shape *s, const capacity *r, deltanet_job *to) {
    size_t T = (size_t)r->rows, channels = T * (size_t)deltanet_channels(s), heads = T * (size_t)s->value_heads;
    to->shape = s;
    to->raw = layout_alloc(l, channels);
    to->conv = layout_alloc(l, channels);
    to->z = layout_alloc(l, heads * (size_t)s->value_dim);
    to->o = layout_alloc(l, heads * (size_t)s->value_dim);
    to->a = layout_alloc(l, heads);
    to->b = layout_alloc(l, heads);
    to->decay = layout_alloc(l, heads);
    to->beta = layout_alloc(l, heads);
    to->limbs = limbs_alloc(l, T, s->hidden > s->value_heads * s->value_dim ? s->hidden : s->value_heads * s->value_dim);
}

static void deltanet_project(const token_rows *rows, const deltanet_weights *w, deltanet_job *job) {
    job->shape = &w->shape;
    job->w = w;
    job->T = rows->T;
    stage_in_proj(rows->threads, w, rows->u, rows->T, job->raw, job->z, job->b, job->a, job->limbs);
}

static void deltanet_mix(const token_rows *rows, const token_sequence *of, const deltanet_job *all, const deltanet_state *state) {
    const deltanet_shape *s = all->shape;
    const size_t first = (size_t)of->first, channels = first * (size_t)deltanet_channels(s), heads = first * (size_t)s->value_heads;
    deltanet_job job = *all;
    job.state = *state;
    job.T = of->T;
    job.replay = of->replay;
    job.raw += channels;
    job.conv += channels;
    job.b += heads;
    job.a += heads;
    job.decay += heads;
    job.beta += heads;
    job.o += heads * (size_t)s->value_dim;
    stage_conv_delta(rows->threads, &job);
}

static void deltanet_output(const token_rows *rows, deltanet_job *job) {
    stage_gated_norm_out(rows->threads, job, rows->out);
}

/* The log is not compared: after timeline_commit_state it holds nothing that counts. */
static int deltanet_pieces(const deltanet_shape *s, const capacity *r, const deltanet_state *state, state_piece *to) {
    size_t S = (size_t)s->value_heads * (size_t)s->value_dim * (size_t)s->key_dim;
    size_t window = (size_t)(s->taps - 1) * (size_t)deltanet_channels(s);
    (void)r;
    to[0] = state_piece_of("DeltaNet state", state->S, S * sizeof(float), 0, 0);
    to[1] = state_piece_of("conv1d window", state->window, window * sizeof(float), 0, 0);
    return 2;
}

static int deltanet_log(const deltanet_shape *s, const deltanet_state *state, state_piece *to) {
    const size_t values = (size_t)s->value_heads * sizeof(float), keys = (size_t)s->key_heads * (size_t)s->key_dim * sizeof(float);
    to[0] = state_piece_of("conv1d log", state->log_raw, (size_t)deltanet_channels(s) * sizeof(float), MOTE_ROWS_MAX, 0);
    to[1] = state_piece_of("key log", state->log_k, keys, MOTE_ROWS_MAX, 0);
    to[2] = state_piece_of("value log", state->log_u, (size_t)s->value_dim * values, MOTE_ROWS_MAX, 0);
    to[3] = state_piece_of("decay log", state->log_decay, values, MOTE_ROWS_MAX, 0);
    return 4;
}
