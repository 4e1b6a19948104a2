/* layers/deltanet/decode_launch.cu: a DeltaNet layer in a step on a GPU: what brings window and log up to date, the projections before and
   after conv_delta, and the host code that records the kernels. */

/* Advances one channel of the window by the accepted rows of the log and the rows in front of this token block, then overwrites the log with
   the raw rows of this block. One thread does both, and reads each input before it overwrites it. */
__device__ __forceinline__ void gpu_log_channel(const deltanet_gpu *p, int64_t shift, int channel, int replay, int before) {
    int keep = p->shape.taps - 1, channels = gpu_channels(&p->shape);
    float x[STEP_ROWS], past[STEP_ROWS];
#pragma unroll
    for (int t = 0; t < STEP_ROWS; t++) x[t] = t < p->T ? p->raw[(size_t)t * channels + channel] : 0;
    for (int first = 0; replay + before > 0 && first < keep; first += STEP_ROWS) {
#pragma unroll
        for (int i = 0; i < STEP_ROWS; i++)
            past[i] = first + i < keep ? gpu_past(p, shift, channel, replay, before, keep - first - i) : 0;
#pragma unroll
        for (int i = 0; i < STEP_ROWS; i++)
            if (first + i < keep) gpu_delta_at(p->state.window, shift)[(size_t)(first + i) * channels + channel] = past[i];
    }
    for (int t = 0; t < STEP_ROWS; t++)
        if (t < p->T) gpu_delta_at(p->state.log_raw, shift)[(size_t)t * channels + channel] = x[t];
#pragma unroll 1
    for (int t = STEP_ROWS; t < p->T; t++)
        gpu_delta_at(p->state.log_raw, shift)[(size_t)t * channels + channel] = p->raw[(size_t)t * channels + channel];
}

/* The work of gpu_delta_log, in items of one thread: channels, LOG_KEYS numbers of k, decays. */
enum { LOG_KEYS = 4 };

static __host__ __device__ int gpu_delta_log_keys(const deltanet_shape *s, int T) {
    return (T * s->key_heads * s->key_dim - 1) / LOG_KEYS + 1;
}

static __host__ __device__ int gpu_delta_log_items(const deltanet_shape *s, int T) {
    return 2 * s->key_heads * s->key_dim + s->value_heads * s->value_dim + gpu_delta_log_keys(s, T) + T * s->value_heads;
}

/* Copies the numbers i, i + step, ... of the k of this token block to the log. */
__device__ __forceinline__ void gpu_log_keys(const deltanet_gpu *p, int64_t shift, int i, int step, int count) {
    float k[LOG_KEYS];
#pragma unroll
    for (int n = 0; n < LOG_KEYS; n++) k[n] = i + n * step < count ? p->k[i + n * step] : 0;
#pragma unroll
    for (int n = 0; n < LOG_KEYS; n++)
        if (i + n * step < count) gpu_delta_at(p->state.log_k, shift)[i + n * step] = k[n];
}

/* Updates window and log after conv_delta; the threads of `blocks` blocks share the work, this one is number `block`. replay, before: see
   gpu_past.

   It must run after the pdl_wait of a kernel after conv_delta, since blocks of conv_delta read the old window and log
   until they end, and before in_proj_qkv of the next layer overwrites p->raw. */
__device__ __forceinline__ void gpu_log_block(const deltanet_gpu *p, int replay, int before, int block, int blocks) {
    const deltanet_shape *s = &p->shape;
    const int channels = gpu_channels(s);
    const int k_count = p->T * s->key_heads * s->key_dim, k_items = gpu_delta_log_keys(s, p->T);
    const int all = gpu_delta_log_items(s, p->T);
    const int64_t shift = gpu_slot_shift(&p->slot);
    for (int item = block * GPU_THREADS + threadIdx.x; item < all; item += blocks * GPU_THREADS) {
        int i = item - channels;
        if (i < 0) gpu_log_channel(p, shift, item, replay, before);
        else if (i < k_items) gpu_log_keys(p, shift, i, k_items, k_count);
        else gpu_delta_at(p->state.log_decay, shift)[i - k_items] = p->decay[i - k_items];
    }
}

/* The same for all sequences of a pass, each of which has as many blocks. */
__device__ __forceinline__ void gpu_delta_log(const deltanet_gpu *p, int block, int blocks) {
    if (p->in_turn) {
        const int total = gpu_rows_of_turns(p->step, p->sequences), before = gpu_before_log(total);
        deltanet_gpu logged = gpu_delta_rows_of(*p, before, total - before, 1);
        logged.slot = gpu_slot_of(&p->slot, p->step);
        return gpu_log_block(&logged, p->step->replay, before, block, blocks);
    }
    if (!p->sequences) return gpu_log_block(p, p->step->replay, 0, block, blocks);
    const int each = blocks / p->sequences;
    const deltanet_gpu own = gpu_delta_sequence(*p, block / each, 1);
    gpu_log_block(&own, own.step->replay, 0, block % each, each);
}

/* Prologue of out_proj: divides o norm SiLU(z), which conv_delta leaves, by the root mean square of each head. See
   projection.cu for what a prologue is. */
struct gpu_gated_rows {
    enum { normed = 0, blocks = 1, extra = 1, all_early = 0, prefetches = 0 };     /* extra: blocks that bring window and log up to date */
    template <int ROWS> __host__ __device__ static constexpr int at_once() { return ROWS > 1 ? 1 : 2; }
    deltanet_gpu log;
    const float *o, *squares;    /* [T][cols] and [T][heads][stride]: o and squares of deltanet_gpu */
    int cols, last, heads, stride;
    uint32_t per_head;           /* reciprocal_of(columns of a head): column col is of head col * per_head >> 32 */
    float scale, eps;            /* 1 / columns of a head */
    /* A lane's eight columns are two fours, possibly of two heads. Of each: the address of its head's sums of squares, and
       the first four of them. */
    template <int ROWS> struct more { const float *of_head[2]; float sums[ROWS][2][4]; };
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *of, int T, int col) const {
#pragma unroll
        for (int i = 0; i < 2; i++)
            of->of_head[i] = squares + min((int)__umulhi((uint32_t)(col + 4 * i), per_head), heads - 1) * stride;
#pragma unroll
        for (int t = 0; t < ROWS; t++) {
            const int row = gpu_row_there<ROWS>(t, last);
            gpu_load8(v[t], o + (size_t)row * cols, col, t < T ? cols : 0);
#pragma unroll
            for (int i = 0; i < 2; i++) gpu_load4(of->sums[t][i], of->of_head[i] + row * heads * stride, t < T);
        }
    }
    template <int ROWS> __device__ __forceinline__ void finish(float (*v)[8], const more<ROWS> *of, float *,
                                                              bool whole) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *s = of->sums[t][i];
                float sum = s[0] + s[1] + s[2] + s[3];
#pragma unroll 1
                for (int part = 4; !whole && part < stride; part += 4) {
                    float next[4];
                    gpu_load4(next, of->of_head[i] + t * heads * stride + part, true);
                    sum = sum + next[0] + next[1] + next[2] + next[3];
                }
                float factor = rms_factor(sum, scale, eps);
#pragma unroll
                for (int c = 0; c < 4; c++) v[t][4 * i + c] *= factor;
            }
    }
    __device__ __forceinline__ void extra_block(int block, int of) const { gpu_delta_log(&log, block, of); }
    bool is_short() const { return stride == 4; }
    __host__ __device__ void select(int t) {
        o += (size_t)t * cols;
        squares += (size_t)t * heads * stride;
    }
};

/* norm_in_proj: RMSNorm, then the four input projections in one launch. */
static void gpu_norm_in_proj(const gpu_rows *rows, const deltanet_weights *w, const deltanet_gpu *to) {
    const matrix *all[4] = {&w->in_proj_qkv, &w->in_proj_z, &w->in_proj_b, &w->in_proj_a};
    float *y[4] = {to->raw, to->z, to->b, to->a};
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection(rows->x, rows->norm, to->shape.hidden, to->T, rows->eps);
    p.waits_last = to->T == 1;              /* so many blocks, with more rows each, would slow experts_down down */
    for (int i = 0; i < 4; i++) gpu_add_segment(&p, all[i], y[i]);
    gpu_record_projection(rows->q, KERNEL_IN_PROJ, &p);
}

/* Blocks of threads that one sequence's log takes. */
static int gpu_delta_log_blocks(const deltanet_gpu *p) {
    const int rows = p->T == p->sequences ? 1 : min_int(p->T, STEP_ROWS);
    return (gpu_delta_log_items(&p->shape, rows) - 1) / GPU_THREADS + 1;
}

/* gated_norm_out: out_proj (gated norm of o), the sublayer's output, with gpu_gated_rows as its prologue. */
static void gpu_gated_norm_out(const gpu_rows *rows, const deltanet_weights *w, const deltanet_gpu *block) {
    const deltanet_shape *s = &block->shape;
    gpu_projection<gpu_gated_rows> p = gpu_projection_of<gpu_gated_rows>(block->T, s->value_heads * s->value_dim);
    p.end = epilogue_of_output(rows, w->out_proj.bias != NULL);
    p.in.o = block->o;
    p.in.squares = block->squares;
    p.in.per_head = reciprocal_of(s->value_dim);
    p.in.scale = 1.0f / (float)s->value_dim;
    p.in.heads = s->value_heads;
    p.in.stride = gpu_squares_stride(gpu_delta_parts(s));
    p.in.eps = s->eps;
    p.in.log = *block;
    /* with fewer, of several items a thread, they would end last; more would leave no space for blocks of norm_router */
    p.extra = gpu_delta_log_blocks(block) * (block->in_turn ? 1 : max_int(block->sequences, 1));
    gpu_add_segment(&p, &w->out_proj, rows->to);
    gpu_record_projection(rows->q, KERNEL_OUT_PROJ, &p);
}

/* The implementation of layers/kinds.c on a GPU. */

static void deltanet_layout_gpu(layout *l, const deltanet_shape *s, const capacity *, const gpu_queue *q, deltanet_gpu *to) {
    size_t T = (size_t)q->rows, heads = T * (size_t)s->value_heads, values = heads * (size_t)s->value_dim;
    memset(to, 0, sizeof *to);
    to->shape = *s;
    to->raw = layout_alloc(l, T * (size_t)deltanet_channels(s));
    to->z = layout_alloc(l, values);
    to->o = layout_alloc(l, values);
    to->a = layout_alloc(l, heads);
    to->b = layout_alloc(l, heads);
    to->decay = layout_alloc(l, heads);
    to->k = layout_alloc(l, T * (size_t)(s->key_heads * s->key_dim));
    to->squares = layout_alloc(l, heads * (size_t)gpu_squares_stride(gpu_delta_parts(s)));
}

static void deltanet_record(const gpu_rows *rows, const deltanet_weights *w, const deltanet_gpu *scratch,
                            const deltanet_state *state, const deltanet_state *) {
    deltanet_gpu p = *scratch;
    p.shape = w->shape;
    p.ratio = p.shape.value_heads / p.shape.key_heads;
    p.per_key = reciprocal_of(p.ratio);
    p.state = *state;
    p.conv1d = w->conv1d;
    p.A_log = w->A_log;
    p.dt_bias = w->dt_bias;
    p.norm = w->norm;
    p.step = rows->step;
    p.slot = rows->slot;
    p.sequences = rows->sequences;
    p.in_turn = rows->in_turn;
    p.T = rows->T;
    gpu_norm_in_proj(rows, w, &p);
    if (rows->in_turn) gpu_conv_delta_in_turn(rows->q, &p);
    else gpu_conv_delta(rows->q, &p);
    gpu_gated_norm_out(rows, w, &p);
}
