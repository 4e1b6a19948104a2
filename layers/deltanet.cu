/* layers/deltanet.cu: the stages of a DeltaNet layer on a GPU, for one to four token rows. */

/* conv_delta on the GPU. Block (h, part) has the elements j of value head h that belong to `part`, a warp has R rows of S:
   lane l keeps their elements l, l + 32, ... in registers, C of each row. Before the wait: load S, repeat the kept rows,
   write S back, and sum what past raw rows contribute to the convolutions. After it: each thread finishes one channel of
   q or k for all token rows; these meet in shared memory, behind the only barrier. q and k stay unnormalised there: the
   norms are sums over the lanes just as the products with S are, and one reduction a token serves all. It also gives o,

       S' = decay S    u = beta (v - fk S' k)    o = fq (S' q + u fk (k . q))    fk = 1 / |k|    fq = 1 / (|q| sqrt(n))

   which is S q after the write, without waiting for it. S after the block's own rows is never stored: see the log.
   The gate follows here, o norm SiLU(z), and the squares of o are summed up for the root mean square of the head: were
   this left to gated_norm_out, each of its blocks would do it for all heads. */

typedef struct gpu_delta {
    deltanet_shape shape;
    deltanet_state state;        /* in device memory */
    const float *conv1d, *A_log, *dt_bias;
    const step_parameters *step;
    int T;                       /* rows of this block, 1..GPU_ROWS */
    int ratio;                   /* value heads that share a key head */
    uint32_t per_key;            /* 2^32 / ratio, rounded up: h * per_key >> 32 is value head h's key head */
    const float *raw;            /* [T][channels] in_proj_qkv of the block */
    const float *b, *a;          /* [T][value_heads] */
    float *k;                    /* [T][key_heads][key_dim] normalised, for the log */
    float *decay;                /* [T][value_heads], for the log */
    const float *z, *norm;       /* [T][value_heads][value_dim], [value_dim] */
    float *o;                    /* [T][value_heads][value_dim] o norm SiLU(z), not divided by the root mean square of o */
    float *squares;              /* [T][value_heads][room] sums of o^2, for that */
} gpu_delta;

/* Blocks that share a value head; each has eight warps of R rows. */
static int gpu_delta_parts(const deltanet_shape *s) {
    int rows = GPU_WARPS * (s->key_dim <= 128 ? 4 : s->key_dim <= 256 ? 2 : 1);
    return (s->value_dim + rows - 1) / rows;
}

/* Their room: whole float4. */
static __host__ __device__ int gpu_squares_room(int parts) {
    return (parts + 3) / 4 * 4;
}

__device__ __forceinline__ int gpu_channels(const deltanet_shape *s) {
    return 2 * s->key_heads * s->key_dim + s->value_heads * s->value_dim;
}

/* The raw input of a channel `age` tokens before the block, age = 1..taps-1: window, then `replay` rows of the log. */
__device__ __forceinline__ float gpu_past(const gpu_delta *p, int channel, int replay, int age) {
    return p->state.window[(p->shape.taps - 1 + replay - age) * gpu_channels(&p->shape) + channel];
}

/* One channel of the convolution: weights of the lags 0, 1, ... (of the row itself, of the row before it, ...), the raw
   inputs of the rows before the block by age, and for each row of the block its sum. channel < 0: all zero. */
template <int ROWS> struct gpu_conv {
    enum { LAGS = ROWS + GPU_ROWS - 1 };
    int channel;
    const float *present;        /* this block's raw inputs */
    float w[LAGS], past[GPU_ROWS], x[ROWS], sum[ROWS];
};

template <int ROWS> __device__ __forceinline__ void gpu_conv_weights(const gpu_delta *p, int channel, gpu_conv<ROWS> *c) {
    int taps = p->shape.taps;
    const float *weight = p->conv1d + channel * taps + taps - 1;                /* weight[-lag] */
    c->channel = channel;
    c->present = p->raw + channel;
#pragma unroll
    for (int lag = 0; lag < gpu_conv<ROWS>::LAGS; lag++) c->w[lag] = channel >= 0 && lag < taps ? weight[-lag] : 0;
}

template <int ROWS> __device__ __forceinline__ void gpu_conv_past(const gpu_delta *p, int replay, gpu_conv<ROWS> *c) {
#pragma unroll
    for (int age = 1; age < GPU_ROWS; age++)
        c->past[age] = c->channel >= 0 && age < p->shape.taps ? gpu_past(p, c->channel, replay, age) : 0;
}

/* What the rows before the block contribute, the oldest first. */
template <int ROWS> __device__ __forceinline__ void gpu_conv_sum_past(const gpu_delta *p, int replay, gpu_conv<ROWS> *c) {
    int taps = p->shape.taps;
    const float *weight = p->conv1d + c->channel * taps + taps - 1;
#pragma unroll
    for (int t = 0; t < ROWS; t++) c->sum[t] = 0;
#pragma unroll 1
    for (int age = taps - 1; c->channel >= 0 && age >= GPU_ROWS; age--) {
        float old = gpu_past(p, c->channel, replay, age);
#pragma unroll
        for (int t = 0; t < ROWS; t++)
            if (age + t < taps) c->sum[t] = fmaf(weight[-(age + t)], old, c->sum[t]);
    }
#pragma unroll
    for (int age = GPU_ROWS - 1; age > 0; age--)
#pragma unroll
        for (int t = 0; t < ROWS; t++)
            if (age + t < taps) c->sum[t] = fmaf(c->w[age + t], c->past[age], c->sum[t]);
}

/* This block's raw inputs. */
template <int ROWS> __device__ __forceinline__ void gpu_conv_present(const gpu_delta *p, gpu_conv<ROWS> *c) {
#pragma unroll
    for (int t = 0; t < ROWS; t++)
        c->x[t] = c->channel >= 0 && t < p->T ? c->present[t * gpu_channels(&p->shape)] : 0;
}

template <int ROWS> __device__ __forceinline__ void gpu_conv_sum_present(const gpu_delta *p, gpu_conv<ROWS> *c) {
#pragma unroll
    for (int t = 0; t < ROWS; t++)
#pragma unroll
        for (int from = 0; from <= t; from++)
            if (t - from < p->shape.taps) c->sum[t] = fmaf(c->w[t - from], c->x[from], c->sum[t]);
}

__device__ __forceinline__ float gpu_silu(float x) {
    return x * gpu_sigmoid(x);
}

/* log(1 + exp(a)), as 2 artanh(x / (2 + x)) for x = exp(-|a|), by its series, without branches. */
__device__ __forceinline__ float gpu_softplus(float a) {
    float x = expf(-fabsf(a)), s = __fdividef(x, 2.0f + x), q = s * s, sum = 1.0f / 15;
#pragma unroll
    for (int i = 13; i > 0; i -= 2) sum = fmaf(sum, q, 1.0f / i);
    return fmaf(2.0f * s, sum, fmaxf(a, 0.0f));
}

/* N sums over a warp at once: the 32/N lanes from i 32/N on get the sum of v[i]. Each step halves what a lane cares for. */
template <int N> __device__ __forceinline__ float gpu_warp_sums(float *v) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = N / 2, bit = 16; bit; n /= 2, bit /= 2) {
        if (!n) v[0] += __shfl_xor_sync(~0u, v[0], bit);
        for (int i = 0; i < n; i++) {
            float keep = lane & bit ? v[i + n] : v[i], sent = lane & bit ? v[i] : v[i + n];
            v[i] = keep + __shfl_xor_sync(~0u, sent, bit);
        }
    }
    return v[0];
}

/* A warp's part of a row of key_dim elements, C to a lane: with C >= 4 four neighbours at a time. */
template <int C> __device__ __forceinline__ int gpu_key_element(int c) {
    enum { V = C < 4 ? C : 4 };
    return c / V * 32 * V + threadIdx.x % 32 * V + c % V;
}

/* Zeros from element n on; with C >= 4 it is a multiple of four. */
template <int C> __device__ __forceinline__ void gpu_load_key_row(float *to, const float *row, int n) {
    if (C < 4)
        for (int c = 0; c < C; c++) to[c] = gpu_key_element<C>(c) < n ? row[gpu_key_element<C>(c)] : 0;
    else
#pragma unroll
        for (int c = 0; c < C; c += 4)
            *(float4 *)(to + c) = gpu_key_element<C>(c) < n ? *(const float4 *)(row + gpu_key_element<C>(c))
                                                            : make_float4(0, 0, 0, 0);
}

template <int C> __device__ __forceinline__ void gpu_store_key_row(float *row, const float *from, int n) {
    if (C < 4) {
        for (int c = 0; c < C; c++)
            if (gpu_key_element<C>(c) < n) row[gpu_key_element<C>(c)] = from[c];
    } else
#pragma unroll
        for (int c = 0; c < C; c += 4)
            if (gpu_key_element<C>(c) < n) *(float4 *)(row + gpu_key_element<C>(c)) = *(const float4 *)(from + c);
}

/* Where a warp's rows of S lie, and S in its registers. Elements beyond value_dim or key_dim are zero. What there is one of
   for each token and row (u, v) is on one lane: of row r of token t on lane 8 t + r LANES and, the same, the lanes to the
   next. LANES is also how many lanes hold each of the SUMS of gpu_warp_sums. */
template <int R, int C> struct gpu_delta_rows {
    enum { SUMS = R == 4 ? 16 : 8, LANES = 32 / SUMS };
    int h, key_head, first;      /* value head, key head, first row of R */
    float S[R][C];
};

template <int R, int C, int STORE>
__device__ __forceinline__ void gpu_move_rows(const gpu_delta *p, gpu_delta_rows<R, C> *rows) {
    const deltanet_shape *s = &p->shape;
    float *at = p->state.S + (rows->h * s->value_dim + rows->first) * s->key_dim;
#pragma unroll
    for (int r = 0; r < R; r++, at += s->key_dim) {
        int n = rows->first + r < s->value_dim ? s->key_dim : 0;
        if (STORE) gpu_store_key_row<C>(at, rows->S[r], n);
        else gpu_load_key_row<C>(rows->S[r], at, n);
    }
}

/* The log of the last block, as many rows of k as are likely to count and there are registers for. Lane 8 t + i has decay
   and, for row i / LANES, u of row t. Loaded before it is known how many rows count. */
template <int R, int C, int ROWS> struct gpu_log {
    enum { BATCH = ROWS > 1 && C <= 4 ? BLOCK : 1, LANES = gpu_delta_rows<R, C>::LANES };
    float k[BATCH][C], u, decay;
};

template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_load_log_k(const gpu_delta *p, const gpu_delta_rows<R, C> *rows, int first,
                                               gpu_log<R, C, ROWS> *log) {
    const deltanet_shape *s = &p->shape;
#pragma unroll
    for (int i = 0; i < gpu_log<R, C, ROWS>::BATCH; i++)
        gpu_load_key_row<C>(log->k[i], p->state.log_k + ((first + i) * s->key_heads + rows->key_head) * s->key_dim, s->key_dim);
}

template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_load_log(const gpu_delta *p, const gpu_delta_rows<R, C> *rows, gpu_log<R, C, ROWS> *log) {
    const deltanet_shape *s = &p->shape;
    const int lane = threadIdx.x % 32, at = lane / 8 * s->value_heads + rows->h, r = lane % 8 / gpu_log<R, C, ROWS>::LANES;
    gpu_load_log_k<R, C, ROWS>(p, rows, 0, log);
    log->u = r < R && rows->first + r < s->value_dim ? p->state.log_u[at * s->value_dim + rows->first + r] : 0;
    log->decay = p->state.log_decay[at];
}

/* S = decay S + u k^T for the kept rows of the log, in the operations and the order of the first run. */
template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_replay(const gpu_delta *p, int replay, gpu_log<R, C, ROWS> *log,
                                           gpu_delta_rows<R, C> *rows) {
    enum { BATCH = gpu_log<R, C, ROWS>::BATCH, LANES = gpu_log<R, C, ROWS>::LANES };
#pragma unroll 1
    for (int first = 0; first < replay; first += BATCH) {
        if (first) gpu_load_log_k<R, C, ROWS>(p, rows, first, log);
#pragma unroll
        for (int i = 0; i < BATCH && first + i < replay; i++) {
            float fade = __shfl_sync(~0u, log->decay, 8 * (first + i));
#pragma unroll
            for (int r = 0; r < R; r++) {
                float write = __shfl_sync(~0u, log->u, 8 * (first + i) + r * LANES);
#pragma unroll
                for (int c = 0; c < C; c++) rows->S[r][c] = fmaf(write, log->k[i][c], fade * rows->S[r][c]);
            }
        }
    }
    if (replay > 0) gpu_move_rows<R, C, 1>(p, rows);
}

/* The delta rule for a warp's rows, token after token. q and k of all tokens are in shared memory, [t][q, k][32 C], not yet
   normalised; lane 8 t + i has decay, beta and, for row i / LANES, v and gate = norm SiLU(z) of token t. S fades when it is
   written, so that the sums need not wait for the decay. Leaves the warp's sums of o^2. */
template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_delta_tokens(const gpu_delta *p, gpu_delta_rows<R, C> *rows, const float *qk,
                                                 float decay, float beta, float v, float gate,
                                                 float (*squares)[GPU_WARPS]) {
    enum { N = gpu_delta_rows<R, C>::SUMS, LANES = gpu_delta_rows<R, C>::LANES };
    enum { KK = N / 4, QQ = N / 4 + 1, KQ = N / 2 + N / 4 };            /* S k of the rows: 0.., S q: N/2.. */
    const deltanet_shape *s = &p->shape;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, j = rows->first + lane / LANES;
    const bool writes = lane % LANES == 0 && lane < R * LANES && j < s->value_dim;
    const bool logs_k = rows->h == rows->key_head * p->ratio && blockIdx.y == 0;
    const float scale = rsqrtf((float)s->key_dim);
    for (int t = 0; t < (ROWS == 1 ? 1 : p->T); t++, qk += 2 * 32 * C) {
        float q[C], k[C], sum[N];
        gpu_load_key_row<C>(q, qk, 32 * C);
        gpu_load_key_row<C>(k, qk + 32 * C, 32 * C);
        for (int i = 0; i < N; i++) sum[i] = 0;
#pragma unroll
        for (int c = 0; c < C; c++) {
            sum[KK] = fmaf(k[c], k[c], sum[KK]);
            sum[QQ] = fmaf(q[c], q[c], sum[QQ]);
            sum[KQ] = fmaf(k[c], q[c], sum[KQ]);
            for (int r = 0; r < R; r++) {
                sum[r] = fmaf(rows->S[r][c], k[c], sum[r]);
                sum[N / 2 + r] = fmaf(rows->S[r][c], q[c], sum[N / 2 + r]);
            }
        }
        float fade = __shfl_sync(~0u, decay, 8 * t), strength = __shfl_sync(~0u, beta, 8 * t);
        float value = __shfl_sync(~0u, v, 8 * t + lane % 8), gated = __shfl_sync(~0u, gate, 8 * t + lane % 8);
        float total = gpu_warp_sums<N>(sum), Sq = fade * __shfl_xor_sync(~0u, total, 16);
        float fk = rsqrtf(__shfl_sync(~0u, total, KK * LANES) + 1e-6f);
        float fq = rsqrtf(__shfl_sync(~0u, total, QQ * LANES) + 1e-6f) * scale;
        float kq = __shfl_sync(~0u, total, KQ * LANES) * fk;
        float u = strength * fmaf(-fk * fade, total, value), o = fq * fmaf(u, kq, Sq);
        int at = (t * s->value_heads + rows->h) * s->value_dim + j;
        if (writes) p->o[at] = o * gated;
        if (writes) p->state.log_u[at] = u;
        float square = writes ? o * o : 0;
#pragma unroll
        for (int i = LANES; i < R * LANES; i *= 2) square += __shfl_xor_sync(~0u, square, i);
        if (lane == 0) squares[t][warp] = square;
        if ((logs_k && warp == t) || (ROWS > 1 && t + 1 < p->T)) {
#pragma unroll
            for (int c = 0; c < C; c++) k[c] *= fk;
            float *to = p->k + (t * s->key_heads + rows->key_head) * s->key_dim;
            if (logs_k && warp == t) gpu_store_key_row<C>(to, k, s->key_dim);
        }
        for (int r = 0; ROWS > 1 && r < R && t + 1 < p->T; r++) {
            float write = __shfl_sync(~0u, u, r * LANES);
            for (int c = 0; c < C; c++) rows->S[r][c] = fmaf(write, k[c], fade * rows->S[r][c]);
        }
    }
}

/* Keeps the compiler from putting off what it can compute now. */
template <class T> __device__ __forceinline__ void gpu_now(T *&pointer) {
    asm volatile("" : "+l"(pointer));
}

/* C = ceil(key_dim / 32), rounded up to a power of two; ROWS: 1, or 4 for T = 2, 3 and 4. Grid: value heads,
   value_dim / (8 R). What must be loaded is asked for all at once, before it is known how many rows of the log count: as if
   it were one, and once more if not. */
template <int C, int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, C > 4 ? 1 : ROWS == 1 ? 4 : 2)
gpu_delta_kernel(const __grid_constant__ gpu_delta p) {
    enum { R = C <= 4 ? 4 : 16 / C, WIDTH = 32 * C, SLOTS = C <= 4 ? 1 : C / 4 };
    __shared__ __align__(16) float qk[ROWS][2][WIDTH], squares[ROWS][GPU_WARPS];
    const deltanet_shape *s = &p.shape;
    const int lane = threadIdx.x % 32, token = lane / 8, element = lane % 8 / gpu_delta_rows<R, C>::LANES;
    const int replay = p.step->replay, speculative_replay = 1;
    gpu_conv<ROWS> conv[SLOTS], v_conv;
    gpu_delta_rows<R, C> rows;
    gpu_log<R, C, ROWS> log;
    pdl_launch_dependents();
    rows.h = blockIdx.x;
    rows.key_head = p.ratio == 1 ? rows.h : (int)__umulhi((uint32_t)rows.h, p.per_key);
    rows.first = (blockIdx.y * GPU_WARPS + threadIdx.x / 32) * R;
    gpu_move_rows<R, C, 0>(&p, &rows);
    gpu_load_log<R, C, ROWS>(&p, &rows, &log);
    const bool has = element < R && rows.first + element < s->value_dim;       /* this lane: a row */
    const int row = rows.h * s->value_dim + rows.first + element, head = token * s->value_heads + rows.h;
#pragma unroll
    for (int n = 0; n < SLOTS; n++) {                       /* q channels, then k channels, each padded to WIDTH */
        int i = n * GPU_THREADS + threadIdx.x, is_k = i / WIDTH, e = i % WIDTH;
        gpu_conv_weights<ROWS>(&p, is_k < 2 && e < s->key_dim ? (is_k * s->key_heads + rows.key_head) * s->key_dim + e : -1,
                               &conv[n]);
        gpu_conv_past<ROWS>(&p, speculative_replay, &conv[n]);
    }
    gpu_conv_weights<ROWS>(&p, has ? 2 * s->key_heads * s->key_dim + row : -1, &v_conv);
    gpu_conv_past<ROWS>(&p, speculative_replay, &v_conv);
    float norm = has ? p.norm[rows.first + element] : 0, rate = p.A_log[rows.h], bias = p.dt_bias[rows.h];
    const float *z_at = p.z + (token * s->value_heads * s->value_dim + row), *a_at = p.a + head, *b_at = p.b + head;
    if (replay != speculative_replay) {
#pragma unroll
        for (int n = 0; n < SLOTS; n++) gpu_conv_past<ROWS>(&p, replay, &conv[n]);
        gpu_conv_past<ROWS>(&p, replay, &v_conv);
    }
    rate = -expf(rate);
    gpu_replay<R, C, ROWS>(&p, replay, &log, &rows);
#pragma unroll
    for (int n = 0; n < SLOTS; n++) gpu_conv_sum_past<ROWS>(&p, replay, &conv[n]);
    gpu_conv_sum_past<ROWS>(&p, replay, &v_conv);
#pragma unroll
    for (int n = 0; n < SLOTS; n++) gpu_now(conv[n].present);
    gpu_now(v_conv.present);
    gpu_now(z_at);
    gpu_now(a_at);
    gpu_now(b_at);
    pdl_wait();
#pragma unroll
    for (int n = 0; n < SLOTS; n++) gpu_conv_present<ROWS>(&p, &conv[n]);
    gpu_conv_present<ROWS>(&p, &v_conv);
    const bool there = token < p.T;
    float z = there && has ? *z_at : 0, a = there ? *a_at : 0, b = there ? *b_at : 0;
#pragma unroll
    for (int n = 0; n < SLOTS; n++) {
        int i = n * GPU_THREADS + threadIdx.x;
        gpu_conv_sum_present<ROWS>(&p, &conv[n]);
#pragma unroll
        for (int t = 0; t < ROWS; t++)
            if (t < p.T && i < 2 * WIDTH) qk[t][i / WIDTH][i % WIDTH] = gpu_silu(conv[n].sum[t]);
    }
    __syncthreads();
    gpu_conv_sum_present<ROWS>(&p, &v_conv);
    float v = v_conv.sum[0], decay = expf(rate * gpu_softplus(a + bias));
#pragma unroll
    for (int t = 1; t < ROWS; t++) v = token == t ? v_conv.sum[t] : v;
    if (blockIdx.y == 0 && threadIdx.x < 32 && lane % 8 == 0 && there) p.decay[head] = decay;
    gpu_delta_tokens<R, C, ROWS>(&p, &rows, &qk[0][0][0], decay, gpu_sigmoid(b), gpu_silu(v), norm * gpu_silu(z), squares);
    __syncthreads();
    const int t = threadIdx.x, of_head = (t * s->value_heads + rows.h) * gpu_squares_room(gridDim.y);
    if (t < p.T) p.squares[of_head + blockIdx.y] = sum_warp_partials(squares[t]);
}

template <int C> static void gpu_conv_delta_wide(gpu_queue *q, const gpu_delta *p) {
    gpu_launch(q, GPU_DELTA, "", p->T == 1 ? gpu_delta_kernel<C, 1> : gpu_delta_kernel<C, GPU_ROWS>, p->shape.value_heads,
               gpu_delta_parts(&p->shape), 0, p);
}

/* Fills o, squares, k, decay and log_u. A later kernel of the step, experts_down, calls gpu_delta_log. */
static void gpu_conv_delta(gpu_queue *q, const gpu_delta *p) {
    int n = p->shape.key_dim;
    if (n <= 32) gpu_conv_delta_wide<1>(q, p);
    else if (n <= 64) gpu_conv_delta_wide<2>(q, p);
    else if (n <= 128) gpu_conv_delta_wide<4>(q, p);
    else if (n <= 256) gpu_conv_delta_wide<8>(q, p);
    else gpu_conv_delta_wide<16>(q, p);
}

/* Window and raw log of one channel: all is read before anything that it depends on is overwritten. */
__device__ __forceinline__ void gpu_log_channel(const gpu_delta *p, int channel, int replay) {
    int keep = p->shape.taps - 1, channels = gpu_channels(&p->shape);
    float x[GPU_ROWS], old[GPU_ROWS];
#pragma unroll
    for (int t = 0; t < GPU_ROWS; t++) x[t] = t < p->T ? p->raw[(size_t)t * channels + channel] : 0;
    for (int first = 0; replay > 0 && first < keep; first += GPU_ROWS) {
#pragma unroll
        for (int i = 0; i < GPU_ROWS; i++)
            old[i] = first + i < keep ? gpu_past(p, channel, replay, keep - first - i) : 0;
#pragma unroll
        for (int i = 0; i < GPU_ROWS; i++)
            if (first + i < keep) p->state.window[(size_t)(first + i) * channels + channel] = old[i];
    }
    for (int t = 0; t < GPU_ROWS; t++)
        if (t < p->T) p->state.log_raw[(size_t)t * channels + channel] = x[t];
}

/* Brings window and log up to date, shared by all threads of the calling grid. It belongs to the kernel after conv_delta,
   behind its pdl_wait: in conv_delta other blocks still read the old ones. */
__device__ __forceinline__ void gpu_delta_log(const gpu_delta *p, int block, int blocks) {
    const deltanet_shape *s = &p->shape;
    const int channels = gpu_channels(s), replay = p->step->replay;
    const int k_count = p->T * s->key_heads * s->key_dim, decay_count = p->T * s->value_heads;
    for (int item = block * GPU_THREADS + threadIdx.x; item < channels + k_count + decay_count; item += blocks * GPU_THREADS) {
        int i = item - channels;
        if (i < 0) gpu_log_channel(p, item, replay);
        else if (i < k_count) p->state.log_k[i] = p->k[i];
        else p->state.log_decay[i - k_count] = p->decay[i - k_count];
    }
}

/* Prologue of out_proj: what conv_delta has left of the gated norm, the division by the root mean square of a head. */
struct gpu_gated_rows {
    enum { normed = 0, router = 0, blocks = 1 };
    template <int ROWS> __host__ __device__ static constexpr int at_once() { return ROWS > 1 ? 1 : 2; }
    const float *o, *squares;    /* [T][cols], [T][heads][room] */
    int cols, heads, room;
    uint32_t per_head;           /* 2^32 / a head's columns, rounded up: col * per_head >> 32 is its head */
    float scale, eps;            /* 1 / a head's columns */
    /* The heads of four columns and of the next four: where their sums of squares are, and the first four of those. */
    template <int ROWS> struct more { const float *of_head[2]; float sums[ROWS][2][4]; };
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *of, int T, int col) const {
#pragma unroll
        for (int i = 0; i < 2; i++)
            of->of_head[i] = squares + min((int)__umulhi((uint32_t)(col + 4 * i), per_head), heads - 1) * room;
#pragma unroll
        for (int t = 0; t < ROWS; t++) {
            gpu_load8(v[t], o + (size_t)t * cols, col, t < T ? cols : 0);
#pragma unroll
            for (int i = 0; i < 2; i++) gpu_load4(of->sums[t][i], of->of_head[i] + t * heads * room, t < T);
        }
    }
    template <int ROWS> __device__ __forceinline__ void finish(float (*v)[8], const more<ROWS> *of, float *, bool quick) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *s = of->sums[t][i];
                float sum = s[0] + s[1] + s[2] + s[3];
#pragma unroll 1
                for (int part = 4; !quick && part < room; part++) sum += __ldcg(of->of_head[i] + t * heads * room + part);
                float factor = rsqrtf(fmaf(sum, scale, eps));
#pragma unroll
                for (int c = 0; c < 4; c++) v[t][4 * i + c] *= factor;
            }
    }
    bool is_short() const { return room == 4; }
    void select(int t) {
        o += (size_t)t * cols;
        squares += (size_t)t * heads * room;
    }
};

/* The projections of a DeltaNet layer as the GPU takes them; see the plain ones above. */
static void gpu_norm_in_proj(gpu_queue *q, const deltanet_shape *s, const deltanet_weights *w, const float *x, int T,
                             const deltanet_state *state, float *qkv, float *z, float *b, float *a) {
    const matrix *all[4] = {&w->in_proj_qkv, &w->in_proj_z, &w->in_proj_b, &w->in_proj_a};
    float *to[4] = {qkv, z, b, a};
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection<gpu_norm_rows>(q, x, w->input_norm, s->hidden, T, s->eps);
    for (int i = 0; i < 4; i++) gpu_add_segment(&p, all[i], to[i]);
    p.prefetch.from = (const char *)state->S;
    p.prefetch.bytes = (uint32_t)((const char *)state->log_decay - p.prefetch.from);
    gpu_launch_projection(q, GPU_IN_PROJ, &p);
}

static void gpu_gated_norm_out(gpu_queue *q, const deltanet_weights *w, const gpu_delta *block, float *x) {
    const deltanet_shape *s = &block->shape;
    gpu_projection<gpu_gated_rows> p;
    memset(&p, 0, sizeof p);
    p.T = block->T;
    p.cols = p.in.cols = s->value_heads * s->value_dim;
    p.add = 1;
    p.in.o = block->o;
    p.in.squares = block->squares;
    p.in.per_head = (uint32_t)((((uint64_t)1 << 32) + (uint64_t)s->value_dim - 1) / (uint64_t)s->value_dim);
    p.in.scale = 1.0f / (float)s->value_dim;
    p.in.heads = s->value_heads;
    p.in.room = gpu_squares_room(gpu_delta_parts(s));
    p.in.eps = s->eps;
    p.tag = gpu_next_tag(q, GPU_OUT_PROJ, GPU_TAGGED_X);
    gpu_add_segment(&p, &w->out_proj, x);
    gpu_launch_projection(q, GPU_OUT_PROJ, &p);
}
