/* layers/streams.cu: residual streams in a step on a GPU: how a sublayer, or the model's end, reads them, and how an output becomes part of them.
   The formulas are layers/streams.c's. Knows matrices and queues, no kind of layer.

   Reading is two kernels, and what the sublayer before has given, y, is added to R on the way: R' = R + before y.
     streams_down   of each stream and each piece of its columns: sums of down (R' norm) and inject (R' norm), and of R'^2
     streams_up     low = SiLU of the sums, the shares of the next y, mix = up low, u; R = R'
   A stream's RMS divides all its columns alike: so streams_down multiplies R' norm, and streams_up divides the sums.
   y stays aside (gpu_queue.pending) until the next read, or streams_write where somebody else wants all of R.

   Why pieces: down has 320 rows of 10,240 columns (Qwen3.8-Flash-Next), 20 tiles. A block for each piece of a tile's columns is 168 blocks, all
   resident on one GPU, and the rows that it multiplies are a warp's own, in registers. Of `up` a block has the same 16 columns of all
   streams, so that their mean needs no other block. Both load their weights before they wait.

   Bits: a block takes token rows by fours, each through the same operations in the same order, whatever the others are. Weights stay in registers
   from one four to the next. */

enum {
    STREAM_PIECES = 4,           /* most of a stream's columns */
    STREAM_DEPTH = 5             /* k blocks that a warp has in registers */
};

/* Sublayers whose kernels norm what they read are given u with a norm that does nothing: u^2 is nothing beside eps, 1 / sqrt(eps) is 2^-50, and
   norm is 2^50. */
#define STREAMS_EPS 0x1p100f
#define STREAMS_NORM 0x1p50f

/* The arguments of the kernels. */
typedef struct gpu_streams {
    handoff link;
    gpu_matrix down, inject, up; /* inject without rows: nothing is given to what is read */
    const float *norm;           /* [streams][hidden] */
    int T, hidden, pieces;       /* token rows; of a stream's columns */
    float eps;
    float *x, *u;                /* [T][streams][hidden] R; [T][hidden] */
    const float *y, *before;     /* [T][hidden] what is to be added to x, NULL: nothing; [T][streams] its shares, NULL: 1 */
    float *share;                /* [T][streams] those of what will be given */
    float *sums, *squares;       /* [T][rank + streams][streams][STREAM_PIECES]; [T][streams][STREAM_PIECES]; of pieces that there are not: 0 */
} gpu_streams;

/* What is needed of a GPU's memory, for the rows of a pass. */
typedef struct streams_gpu {
    float *u, *sums, *squares;   /* as gpu_streams has them */
    float *share[2];             /* of what is given, and of what comes after that */
    float *norm;                 /* [hidden] STREAMS_NORM */
} streams_gpu;

static_assert(STREAM_PIECES * GPU_WARPS * STREAM_DEPTH * MIXER_K_COLS == STREAM_HIDDEN_MOST, "a warp of streams_down has its k blocks in registers");

/* A tile of 16 weight rows: the `count` k blocks that a warp has of it, from k block `first` on, STREAM_DEPTH of them in registers. */
struct stream_weights {
    typedef format_bf16 F;
    gpu_place place;
    int first, count;
    F::raw raw[STREAM_DEPTH][2];

    __device__ __forceinline__ void load(int from) {
#pragma unroll
        for (int j = 0; j < STREAM_DEPTH; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) F::load(&raw[j][half], place.data[half], (first + from + j) * F::panel, from + j < count);
    }
    __device__ __forceinline__ void begin(const gpu_matrix &w, int tile, int first_block, int blocks) {
        memset(raw, 0, sizeof raw);
        place = gpu_place_of<F>(w, 2 * tile, w, 2 * tile + 1);
        first = first_block;
        count = blocks;
        load(0);
    }
};

/* This lane's B registers of a k block, of which it has four columns of a token row, v, and lane + 16 or lane - 16 the next or the last four: the
   first 16 lanes get the high terms of all eight, the others the low ones (cuda/fragments.cu). */
__device__ __forceinline__ uint4 stream_fragment(float4 v) {
    const bool upper = threadIdx.x & 16;
    uint32_t high[2], low[2];
    split_pair<false>(v.x, v.y, &high[0], &low[0]);
    split_pair<false>(v.z, v.w, &high[1], &low[1]);
    const uint32_t a = __shfl_xor_sync(~0u, upper ? high[0] : low[0], 16), b = __shfl_xor_sync(~0u, upper ? high[1] : low[1], 16);
    return upper ? make_uint4(a, b, low[0], low[1]) : make_uint4(high[0], high[1], a, b);
}

/* The first of a lane's four columns in a k block. */
__device__ __forceinline__ int stream_column() {
    const int lane = threadIdx.x % 32;
    return lane % 4 * 8 + lane / 16 * 4;
}

/* The share of y that row t's stream c still gets. */
__device__ __forceinline__ float stream_before(const gpu_streams &p, int t, int c) {
    return !p.y ? 0 : p.before ? load_relaxed(p.before + t * GPU_STREAMS + c) : 1;
}

/* Row t's columns of y for stream c; where there is no y, of something whose share is 0. */
__device__ __forceinline__ const float *stream_output(const gpu_streams &p, int t, int c) {
    return p.y ? p.y + (size_t)t * p.hidden : p.norm + (size_t)c * p.hidden;
}

__device__ __forceinline__ float4 stream_sum4(float4 x, float4 y, float share) {
    return make_float4(fmaf(y.x, share, x.x), fmaf(y.y, share, x.y), fmaf(y.z, share, x.z), fmaf(y.w, share, x.w));
}

/* The norm of the lane's columns of stream c. */
__device__ __forceinline__ void stream_load_norm(const gpu_streams &p, const stream_weights &w, int c, float4 *to) {
    const float *norm = p.norm + w.first * MIXER_K_COLS + stream_column();
#pragma unroll
    for (int j = 0; j < STREAM_DEPTH; j++) to[j] = j < w.count ? __ldg((const float4 *)(norm + j * MIXER_K_COLS)) : make_float4(0, 0, 0, 0);
}

/* sum += a warp's part of a tile times four token rows, with the norm g; square += the lane's squares of its row t. */
__device__ __forceinline__ void stream_multiply_rows(const gpu_streams &p, const stream_weights &w, const float4 *g, int t, int c, float *sum,
                                                     float *square) {
    const int at = w.first * MIXER_K_COLS + stream_column() - c * p.hidden;        /* in the stream */
    const float share = stream_before(p, t, c);
    const float *x = p.x + ((size_t)t * GPU_STREAMS + c) * p.hidden + at, *y = stream_output(p, t, c) + at;
    float4 v[STREAM_DEPTH], given[STREAM_DEPTH];
#pragma unroll
    for (int j = 0; j < STREAM_DEPTH; j++) {
        v[j] = j < w.count ? load_relaxed4(x + j * MIXER_K_COLS) : make_float4(0, 0, 0, 0);
        given[j] = j < w.count ? load_relaxed4(y + j * MIXER_K_COLS) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < STREAM_DEPTH; j++) {
        const float4 r = stream_sum4(v[j], given[j], share);
        *square = fmaf(r.w, r.w, fmaf(r.z, r.z, fmaf(r.y, r.y, fmaf(r.x, r.x, *square))));
        const uint4 b = stream_fragment(make_float4(r.x * g[j].x, r.y * g[j].y, r.z * g[j].z, r.w * g[j].w));
        gpu_multiply<stream_weights::F, STEP_ROWS>(sum, w.raw[j], &b, 0, 0, 0, j < w.count);
    }
}

/* Grid: (tiles of down, then of inject; streams * pieces). ONE: there is one token row. */
template <bool ONE> __global__ void __launch_bounds__(GPU_THREADS, 2) gpu_streams_down(const __grid_constant__ gpu_streams p) {
    __shared__ __align__(16) float part[2][TILE_ROWS][STEP_ROWS][GPU_WARPS], squares[2][STEP_ROWS][GPU_WARPS];
    const int tiles = (p.down.panels + 1) / 2, injects = (int)blockIdx.x >= tiles, tile = (int)blockIdx.x - (injects ? tiles : 0);
    const int c = (int)blockIdx.y / p.pieces, piece = (int)blockIdx.y % p.pieces, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int i = threadIdx.x % TILE_ROWS, r = threadIdx.x / TILE_ROWS, blocks = p.hidden / MIXER_K_COLS;
    const gpu_matrix *of = injects ? &p.inject : &p.down;
    const int row = tile * TILE_ROWS + i, width = (p.down.rows + GPU_STREAMS) * GPU_STREAMS * STREAM_PIECES;      /* floats of a row of sums */
    float *sums = p.sums + (size_t)r * width + (((injects ? p.down.rows : 0) + row) * GPU_STREAMS + c) * STREAM_PIECES + piece;
    const bool stores = r < STEP_ROWS && row < of->rows;
    stream_weights w;
    int n, count, first = gpu_share(blocks, piece, p.pieces, &n);
    first += gpu_share(n, warp, GPU_WARPS, &count);
    pdl_launch_dependents();
    w.begin(*of, tile, c * blocks + first, count);
    float4 norm[STREAM_DEPTH];
    if (ONE) stream_load_norm(p, w, c, norm);
    pdl_wait();
    const auto four = [&](int t, int k) {
        float sum[4] = {0, 0, 0, 0}, square = 0;
        if (!ONE) stream_load_norm(p, w, c, norm);
        stream_multiply_rows(p, w, norm, min(t + lane / 4 % STEP_ROWS, p.T - 1), c, sum, &square);
        store_partial_of<STEP_ROWS>(part[k], sum, warp);
        square += __shfl_xor_sync(~0u, square, 1);
        square += __shfl_xor_sync(~0u, square, 2);
        square += __shfl_xor_sync(~0u, square, 16);
        if (lane < 16 && lane % 4 == 0) squares[k][lane / 4][warp] = square;
        __syncthreads();
        if (stores && t + r < p.T) sums[(size_t)t * width] = sum_warp_partials(part[k][i][r]);
        if (blockIdx.x == 0 && threadIdx.x < STEP_ROWS && t + (int)threadIdx.x < p.T)
            p.squares[((t + (int)threadIdx.x) * GPU_STREAMS + c) * STREAM_PIECES + piece] = sum_warp_partials(squares[k][threadIdx.x]);
    };
    if constexpr (ONE) four(0, 0);
    else for (int t = 0, k = 0; t < p.T; t += STEP_ROWS, k ^= 1) four(t, k);
}

__device__ __forceinline__ float stream_pieces(const float *of) {
    const float4 v = __ldcg((const float4 *)of);
    return v.x + v.y + v.z + v.w;
}

/* 1 / RMS of row t's stream c. */
__device__ __forceinline__ float stream_factor(const gpu_streams &p, int t, int c) {
    return rms_factor_divided(stream_pieces(p.squares + (t * GPU_STREAMS + c) * STREAM_PIECES), p.hidden, p.eps);
}

/* Stream c's part of row t's product with row j of down, or, from their end on, of inject; not normed. */
__device__ __forceinline__ float stream_sum(const gpu_streams &p, int t, int j, int c) {
    return stream_pieces(p.sums + (((size_t)t * (p.down.rows + GPU_STREAMS) + j) * GPU_STREAMS + c) * STREAM_PIECES);
}

/* The mean over streams, of which four neighbouring lanes have one each. */
__device__ __forceinline__ float stream_mean(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    v += __shfl_xor_sync(~0u, v, 2);
    return v / GPU_STREAMS;
}

/* low of a row, to[k_blocks * 32], by a block: a thread has a stream of every 64th, AT_ONCE of which it loads before it uses the first. */
struct stream_low {
    enum { AT_ONCE = 5, STEP = GPU_THREADS / GPU_STREAMS };
    float sum[AT_ONCE];

    __device__ __forceinline__ static int first() { return threadIdx.x / GPU_STREAMS; }
    __device__ __forceinline__ void load(const gpu_streams &p, int t, int from) {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) sum[k] = stream_sum(p, t, min(from + k * STEP, p.down.rows - 1), threadIdx.x % GPU_STREAMS);
    }
    /* factor: stream_factor of the row and the thread's stream. */
    __device__ __forceinline__ void put(const gpu_streams &p, int from, float factor, float *to) const {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int j = from + k * STEP;
            const float low = gpu_silu(stream_mean(sum[k] * factor));
            if (threadIdx.x % GPU_STREAMS == 0 && j < p.up.k_blocks * MIXER_K_COLS) to[j] = j < p.down.rows ? low : 0;
        }
    }
    /* From round number `round` on. */
    __device__ __forceinline__ void put_rounds(const gpu_streams &p, int t, int round, float factor, float *to) {
#pragma unroll 1
        for (int from = first() + round * AT_ONCE * STEP; from - first() < p.up.k_blocks * MIXER_K_COLS; from += AT_ONCE * STEP) {
            load(p, t, from);
            put(p, from, factor, to);
        }
    }
};

/* The shares of what will be given, by a block: a thread has a stream c of a row's share for stream `to`. */
__device__ __forceinline__ void stream_put_shares(const gpu_streams &p) {
    const int c = threadIdx.x % GPU_STREAMS, to = threadIdx.x / GPU_STREAMS % GPU_STREAMS;
#pragma unroll 1
    for (int first = 0; first < p.T; first += GPU_THREADS / (GPU_STREAMS * GPU_STREAMS)) {
        const int t = first + (int)threadIdx.x / (GPU_STREAMS * GPU_STREAMS), row = min(t, p.T - 1);
        const float share = 2 * gpu_sigmoid(stream_mean(stream_sum(p, row, p.down.rows + to, c) * stream_factor(p, row, c)));
        if (c == 0 && t < p.T) p.share[t * GPU_STREAMS + to] = share;
    }
}

/* What a thread of streams_up has of a row: an element of R, and the factor of its stream. */
struct stream_element {
    float value, factor;

    __device__ __forceinline__ stream_element(const gpu_streams &p, int row, int c, int col) {
        const float before = stream_before(p, row, c), given = load_relaxed(stream_output(p, row, c) + col);
        const float x = load_relaxed(p.x + ((size_t)row * GPU_STREAMS + c) * p.hidden + col);
        factor = stream_factor(p, row, c);
        value = fmaf(given, before, x);
    }
};

/* sum += a round of k blocks of up, from number `from` on, times the rows that `fragments` are of. A warp may have none. */
__device__ __forceinline__ void stream_multiply_low(const stream_weights &w, int from, const float *fragments, float *sum) {
#pragma unroll
    for (int j = 0; j < STREAM_DEPTH; j++) {
        const uint4 b = stream_fragment(*(const float4 *)(fragments + (w.first + max(min(from + j, w.count - 1), 0)) * MIXER_K_COLS));
        gpu_multiply<stream_weights::F, STEP_ROWS>(sum, w.raw[j], &b, 0, 0, 0, from + j < w.count);
    }
}

/* Grid: hidden / 16, and a block for the shares. A thread has an element of R of a row. Shared memory: low of four rows, each of whole k blocks
   and, for the banks, four floats more.

   ONE: there is one token row. Then from the wait to the first product there is no loop, before which the compiler would wait for what has been
   asked for: the element, the squares and the sums come in one round. */
template <bool ONE> __global__ void __launch_bounds__(GPU_THREADS, 2) gpu_streams_up(const __grid_constant__ gpu_streams p) {
    extern __shared__ __align__(16) float low[];
    __shared__ __align__(16) float part[TILE_ROWS][STEP_ROWS][GPU_WARPS];
    enum { EACH = GPU_WARPS / GPU_STREAMS };                /* warps of a stream, which share its columns of up */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = p.up.k_blocks * MIXER_K_COLS + 4;
    const int c = threadIdx.x % GPU_STREAMS, i = threadIdx.x / GPU_STREAMS % TILE_ROWS, r = threadIdx.x / (GPU_STREAMS * TILE_ROWS);
    const int col = (int)blockIdx.x * TILE_ROWS + i;
    const float *fragments = low + (ONE ? 0 : lane / 4 % STEP_ROWS * stride) + stream_column();
    stream_weights w;
    int count;
    if (col >= p.hidden) {
        pdl_launch_dependents();
        pdl_wait();
        stream_put_shares(p);
        return;
    }
    const int first = gpu_share(p.up.k_blocks, warp % EACH, EACH, &count);
    pdl_launch_dependents();
    w.begin(p.up, warp / EACH * (p.hidden / TILE_ROWS) + (int)blockIdx.x, first, count);
    const float norm = __ldg(p.norm + (size_t)c * p.hidden + col);
    pdl_wait();
    const auto four = [&](int t) {
        const int row = ONE ? 0 : min(t + r, p.T - 1), rows = ONE ? 1 : min(p.T - t, (int)STEP_ROWS);
        float sum[4] = {0, 0, 0, 0}, mix = 0;
        const stream_element of(p, row, c, col);
        stream_low some;
        if constexpr (ONE) {
            some.load(p, 0, some.first());
            some.put(p, some.first(), of.factor, low);
            some.put_rounds(p, 0, 1, of.factor, low);
        }
#pragma unroll 1
        for (int s = 0; !ONE && s < rows; s++) some.put_rounds(p, t + s, 0, stream_factor(p, t + s, c), low + s * stride);
        __syncthreads();
        if constexpr (ONE) stream_multiply_low(w, 0, fragments, sum);
#pragma unroll 1
        for (int from = ONE ? STREAM_DEPTH : 0; from < w.count; from += STREAM_DEPTH) {
            if (ONE || (w.count > STREAM_DEPTH && (from || t))) w.load(from);
            stream_multiply_low(w, from, fragments, sum);
        }
        store_partial_of<STEP_ROWS>(part, sum, warp);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < EACH; k++) mix += part[i][r][c * EACH + k];
        const float u = stream_mean(gpu_sigmoid(mix) * (of.value * of.factor * norm));
        if (p.y && t + r < p.T) p.x[((size_t)row * GPU_STREAMS + c) * p.hidden + col] = of.value;
        if (c == 0 && t + r < p.T) store_tagged(&p.u[(size_t)row * p.hidden + col], u, p.link.publish);
    };
    if constexpr (ONE) four(0);
    else for (int t = 0; t < p.T; t += STEP_ROWS) four(t);
}

/* R += before y. Grid: (ceil(hidden / 1024), T); a thread has four columns of all streams. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_streams_write(const __grid_constant__ gpu_streams p) {
    const int col = 4 * ((int)blockIdx.x * GPU_THREADS + (int)threadIdx.x), t = blockIdx.y;
    pdl_launch_dependents();
    pdl_wait();
    if (col >= p.hidden) return;
    const float4 y = load_relaxed4(p.y + (size_t)t * p.hidden + col);
#pragma unroll
    for (int c = 0; c < GPU_STREAMS; c++) {
        float *x = p.x + ((size_t)t * GPU_STREAMS + c) * p.hidden + col;
        *(float4 *)x = stream_sum4(load_relaxed4(x), y, stream_before(p, t, c));
    }
}

/* ---- Recording ---------------------------------------------------------------------------------------------------------- */

static int streams_pieces(int hidden) {
    return min_int((hidden / MIXER_K_COLS - 1) / (GPU_WARPS * STREAM_DEPTH) + 1, STREAM_PIECES);
}

static void streams_layout_gpu(layout *l, const residual_shape *s, int hidden, int rows, streams_gpu *to) {
    const size_t T = (size_t)rows, parts = GPU_STREAMS * STREAM_PIECES;
    to->u = layout_alloc(l, T * (size_t)hidden);
    to->sums = layout_alloc(l, T * (size_t)(s->mix_rank + GPU_STREAMS) * parts);
    to->squares = layout_alloc(l, T * parts);
    for (int i = 0; i < 2; i++) to->share[i] = layout_alloc(l, T * GPU_STREAMS);
    to->norm = layout_alloc(l, (size_t)hidden);
}

/* Of T rows of x, and of what is pending. */
static gpu_streams streams_of(const gpu_queue *q, float *x, int T, int hidden) {
    gpu_streams p;
    memset(&p, 0, sizeof p);
    p.T = T;
    p.hidden = hidden;
    p.x = x;
    p.y = q->pending;
    p.before = q->shares;
    return p;
}

/* Records how the mixer w reads T rows of x: g->u, and q->shares, those of what is given next. */
static void streams_record_read(gpu_queue *q, const streams_gpu *g, const stream_mixer *w, float *x, int T, int hidden, float eps) {
    gpu_streams p = streams_of(q, x, T, hidden);
    p.down = gpu_matrix_of(&w->down);
    p.up = gpu_matrix_of(&w->up);
    if (w->inject.rows) p.inject = gpu_matrix_of(&w->inject);
    p.norm = w->norm;
    p.pieces = streams_pieces(hidden);
    p.eps = eps;
    p.u = g->u;
    p.share = g->share[q->shares == g->share[0]];
    p.sums = g->sums;
    p.squares = g->squares;
    void (*const down)(gpu_streams) = T == 1 ? gpu_streams_down<true> : gpu_streams_down<false>;
    void (*const up)(gpu_streams) = T == 1 ? gpu_streams_up<true> : gpu_streams_up<false>;
    const char *format = formats[w->down.format]->name;
    const dim3 pieces((unsigned)((p.down.panels + 1) / 2 + (p.inject.panels + 1) / 2), (unsigned)(GPU_STREAMS * p.pieces));
    const size_t low = (size_t)STEP_ROWS * (size_t)(p.up.k_blocks * MIXER_K_COLS + 4) * sizeof(float);
    gpu_note_weights(gpu_record_grid(q, KERNEL_STREAMS_DOWN, format, down, pieces, 0, &p), KERNEL_STREAMS_DOWN, &p.down);
    gpu_record(q, KERNEL_STREAMS_UP, format, up, hidden / TILE_ROWS + (p.inject.rows > 0), 1, low, &p);
    q->pending = NULL;
    q->shares = p.share;
}

/* Records that what is pending becomes part of T rows of x. */
static void streams_record_write(gpu_queue *q, float *x, int T, int hidden) {
    const gpu_streams p = streams_of(q, x, T, hidden);
    if (!q->pending) return;
    gpu_record(q, KERNEL_STREAMS_WRITE, "", gpu_streams_write, (hidden / 4 - 1) / GPU_THREADS + 1, T, 0, &p);
    q->pending = NULL;
}
