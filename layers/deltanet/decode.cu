/* layers/deltanet/decode.cu: a DeltaNet layer on a GPU, for one to four token rows: norm_in_proj, conv_delta, gated_norm_out. Here is
   conv_delta; in_turn.cu has that of a short prompt, decode_launch.cu the projections and what records all.

   Reads the layer's weights and the rows of this step, updates the layer's deltanet_state. Uses cuda/ for launches,
   projections and hand-off. Knows no session and no other kind of layer. The
   definition is layers/deltanet/cpu.c; "token block" is the block of token rows there, "block" a thread block. */

/* conv_delta: convolutions, gates, delta rule and output gate. For a value head, its key head and one token row:

       q, k, v = SiLU(conv1d(raw))
       S' = decay S                         fk = 1 / |k|
       u = beta (v - fk S' k)               fq = 1 / (|q| sqrt(key_dim))
       o = fq (S' q + u fk (k . q))         equals fq S q after the write S = S' + u fk k^T, without waiting for that write
       out = o norm SiLU(z)                 and the sum of o^2, from which gated_norm_out makes the RMS

   Grid: (value heads, parts) blocks of eight warps. A warp holds R rows of S, each of which belongs to one element of v, u
   and o; a lane holds C elements of each row in registers (gpu_key_element). R = 4 and C = 4 with 128 key dimensions.

   1. Before griddepcontrol.wait: each warp loads S, replays the accepted rows of the log and writes S back; each thread
      sums what the raw rows before the token block contribute to its channels.
   2. After it: each thread finishes one channel of q or k for all token rows and stores it, not normalised, in shared
      memory.
   3. After a barrier each warp runs the delta rule for its rows of S, token row after token row.

   Correctness: S is the only thing the kernel writes before its wait, and no other kernel of a step reads or writes it.
   The other state it reads early, and step->replay, were complete before the step's first kernel. S after the token block's
   own rows is never stored: the next step replays those of them that are accepted from the log, with the same operations in
   the same order. Each warp overwrites only those log_u that it has read itself; k, decay and the raw rows of the log are
   still read by other blocks, so a later kernel copies them (gpu_delta_log).

   Performance: |q|^2, |k|^2 and k . q are sums over the lanes like S k and S q, so one warp reduction per token row
   yields all of them. The output gate is applied here because each block of gated_norm_out would have to compute it for all
   heads. */

typedef struct deltanet_gpu {
    handoff link;
    deltanet_shape shape;
    slot_view slot;
    deltanet_state state;        /* of the captured slot: see gpu_delta_at */
    const float *conv1d, *A_log, *dt_bias;
    const step_parameters *step;
    int sequences;               /* of a pass, see gpu_delta_sequence; 0: one */
    int in_turn;                 /* they are blocks of one slot, each of which continues the one before it (in_turn.cu) */
    int T;                       /* token rows: of one sequence 1..STEP_ROWS */
    int ratio;                   /* value heads per key head */
    uint32_t per_key;            /* reciprocal_of(ratio): value head h has key head h * per_key >> 32 */
    float *raw;                  /* [T][channels] output of in_proj_qkv */
    float *b, *a;                /* [T][value_heads] */
    float *k;                    /* [T][key_heads][key_dim] normalised; gpu_delta_log copies it to the log */
    float *decay;                /* [T][value_heads]; the same */
    float *z;                    /* [T][value_heads][value_dim] */
    const float *norm;           /* [value_dim] */
    float *o;                    /* [T][value_heads][value_dim] o norm SiLU(z), not yet divided by the RMS of o */
    float *squares;              /* [T][value_heads][stride] sum of o^2 of each part of a head */
} deltanet_gpu;

/* Where a part of the state is: in the captured slot, or `shift` bytes after that in the resident one. */
__device__ __forceinline__ float *gpu_delta_at(float *part, int64_t shift) {
    return (float *)((char *)part + shift);
}

/* Blocks per value head (parts); each has eight warps of R rows of S. */
static int gpu_delta_parts(const deltanet_shape *s) {
    int rows = GPU_WARPS * (s->key_dim <= 128 ? 4 : s->key_dim <= 256 ? 2 : 1);
    return (s->value_dim + rows - 1) / rows;
}

/* Floats that hold one sum for each part: whole float4. */
static __host__ __device__ int gpu_squares_stride(int parts) {
    return (parts + 3) / 4 * 4;
}

__device__ __forceinline__ int gpu_channels(const deltanet_shape *s) {
    return 2 * s->key_heads * s->key_dim + s->value_heads * s->value_dim;
}

/* What concerns T rows of a pass from row `first` on. parts: gpu_delta_parts. */
__device__ __forceinline__ deltanet_gpu gpu_delta_rows_of(const deltanet_gpu &all, int first, int T, int parts) {
    const deltanet_shape *s = &all.shape;
    const int heads = first * s->value_heads;
    deltanet_gpu p = all;
    p.T = T;
    p.raw += first * gpu_channels(s);
    p.b += heads;
    p.a += heads;
    p.decay += heads;
    p.k += first * s->key_heads * s->key_dim;
    p.z += heads * s->value_dim;
    p.o += heads * s->value_dim;
    p.squares += heads * gpu_squares_stride(parts);
    return p;
}

/* What concerns sequence z of a pass: its rows, and its slot. */
__device__ __forceinline__ deltanet_gpu gpu_delta_sequence(const deltanet_gpu &all, int z, int parts) {
    const step_parameters *step = all.step + z;
    deltanet_gpu p = gpu_delta_rows_of(all, step->first, step->rows, parts);
    p.step = p.slot.step = step;
    return p;
}

/* The raw input of a channel `age` tokens before the token block, age = 1..taps-1: of the `before` rows of the same slot in front of p->raw,
   or older. The log lies right after the window in memory, so the `replay` accepted rows of the log continue the window. */
__device__ __forceinline__ float gpu_past(const deltanet_gpu *p, int64_t shift, int channel, int replay, int before, int age) {
    const int channels = gpu_channels(&p->shape);
    if (age <= before) return p->raw[channel - age * channels];
    return gpu_delta_at(p->state.window, shift)[(p->shape.taps - 1 + replay + before - age) * channels + channel];
}

/* One channel of the convolution, for one thread: w[lag] is the weight for the input `lag` rows earlier (0: the row
   itself), past[age] the raw input `age` rows before the token block, x[t] and sum[t] the raw input and the sum of token
   row t. channel < 0: all zero. */
template <int ROWS> struct gpu_conv {
    enum { LAGS = ROWS + STEP_ROWS - 1 };
    int channel;
    const float *present;        /* raw input of token row 0 */
    float w[LAGS], past[STEP_ROWS], x[ROWS], sum[ROWS];
};

template <int ROWS> __device__ __forceinline__ void gpu_conv_weights(const deltanet_gpu *p, int channel, gpu_conv<ROWS> *c) {
    int taps = p->shape.taps;
    const float *weight = p->conv1d + channel * taps + taps - 1;                /* weight[-lag] */
    c->channel = channel;
    c->present = p->raw + channel;
#pragma unroll
    for (int lag = 0; lag < gpu_conv<ROWS>::LAGS; lag++) c->w[lag] = channel >= 0 && lag < taps ? weight[-lag] : 0;
}

template <int ROWS> __device__ __forceinline__ void gpu_conv_past(const deltanet_gpu *p, int64_t shift, int replay, gpu_conv<ROWS> *c) {
#pragma unroll
    for (int age = 1; age < STEP_ROWS; age++)
        c->past[age] = c->channel >= 0 && age < p->shape.taps ? gpu_past(p, shift, c->channel, replay, 0, age) : 0;
}

/* sum[t] = contribution of the rows before the token block, oldest first. Ages from STEP_ROWS on (more than four taps) are
   loaded here, the others are in past. */
template <int ROWS> __device__ __forceinline__ void gpu_conv_sum_past(const deltanet_gpu *p, int64_t shift, int replay, int before,
                                                                           gpu_conv<ROWS> *c) {
    int taps = p->shape.taps;
    const float *weight = p->conv1d + c->channel * taps + taps - 1;
#pragma unroll
    for (int t = 0; t < ROWS; t++) c->sum[t] = 0;
#pragma unroll 1
    for (int age = taps - 1; c->channel >= 0 && age >= STEP_ROWS; age--) {
        float past = gpu_past(p, shift, c->channel, replay, before, age);
#pragma unroll
        for (int t = 0; t < ROWS; t++)
            if (age + t < taps) c->sum[t] = fmaf(weight[-(age + t)], past, c->sum[t]);
    }
#pragma unroll
    for (int age = STEP_ROWS - 1; age > 0; age--)
#pragma unroll
        for (int t = 0; t < ROWS; t++)
            if (age + t < taps) c->sum[t] = fmaf(c->w[age + t], c->past[age], c->sum[t]);
}

/* Loads the raw inputs of the token rows. */
template <int ROWS> __device__ __forceinline__ void gpu_conv_present(const deltanet_gpu *p, gpu_conv<ROWS> *c) {
#pragma unroll
    for (int t = 0; t < ROWS; t++)
        c->x[t] = c->channel >= 0 && t < p->T ? c->present[t * gpu_channels(&p->shape)] : 0;
}

template <int ROWS> __device__ __forceinline__ void gpu_conv_sum_present(const deltanet_gpu *p, gpu_conv<ROWS> *c) {
#pragma unroll
    for (int t = 0; t < ROWS; t++)
#pragma unroll
        for (int from = 0; from <= t; from++)
            if (t - from < p->shape.taps) c->sum[t] = fmaf(c->w[t - from], c->x[from], c->sum[t]);
}

/* N sums over a warp at once (a transposing butterfly): lanes i 32/N .. (i + 1) 32/N - 1 get the sum of v[i]. Each exchange
   halves the values a lane holds until one is left; the remaining ones are those of a plain butterfly. Overwrites v. */
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

/* What a query or key is multiplied with to have length 1, given its sum of squares. */
__device__ __forceinline__ float gpu_delta_factor(float squares) {
    return rsqrtf(squares + 1e-6f);
}

/* The element of a row of key_dim that is this lane's number c of C: four neighbours at a time if C >= 4 (a float4 load),
   else lane, lane + 32. */
template <int C> __device__ __forceinline__ int gpu_key_element(int c) {
    enum { V = C < 4 ? C : 4 };
    return c / V * 32 * V + threadIdx.x % 32 * V + c % V;
}

/* Loads this lane's elements; zeros from element n on, which is a multiple of four if C >= 4. */
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

/* A warp's rows of S, in registers; elements beyond value_dim or key_dim are zero.

   Where a warp has one value for each token row t and row r of S (v, u, the gate), LANES lanes from 8 t + r LANES on hold
   it. As many lanes hold each of the SUMS of gpu_warp_sums, so that sums and values meet on the same lane. */
template <int R, int C> struct gpu_delta_rows {
    enum { SUMS = R == 4 ? 16 : 8, LANES = 32 / SUMS };
    int h, key_head, first;      /* value head, key head, first of the R rows within the head */
    float S[R][C];
};

template <int R, int C, int STORE>
__device__ __forceinline__ void gpu_move_rows(const deltanet_gpu *p, int64_t shift, gpu_delta_rows<R, C> *rows) {
    const deltanet_shape *s = &p->shape;
    float *at = gpu_delta_at(p->state.S, shift) + (rows->h * s->value_dim + rows->first) * s->key_dim;
#pragma unroll
    for (int r = 0; r < R; r++, at += s->key_dim) {
        int n = rows->first + r < s->value_dim ? s->key_dim : 0;
        if (STORE) gpu_store_key_row<C>(at, rows->S[r], n);
        else gpu_load_key_row<C>(rows->S[r], at, n);
    }
}

/* STEP_ROWS rows of the log of the previous token block. k holds BATCH of them (all four where registers allow); lane 8 t + i holds
   decay of row t and, for row i / LANES of S, its u. All of it is loaded before `replay` has arrived, so also what is not
   accepted. */
template <int R, int C, int ROWS> struct gpu_log {
    enum { BATCH = ROWS > 1 && C <= 4 ? STEP_ROWS : 1, LANES = gpu_delta_rows<R, C>::LANES };
    float k[BATCH][C], u, decay;
};

template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_load_log_k(const deltanet_gpu *p, int64_t shift, const gpu_delta_rows<R, C> *rows, int first,
                                               gpu_log<R, C, ROWS> *log) {
    const deltanet_shape *s = &p->shape;
#pragma unroll
    for (int i = 0; i < gpu_log<R, C, ROWS>::BATCH; i++)
        gpu_load_key_row<C>(log->k[i], gpu_delta_at(p->state.log_k, shift) + ((first + i) * s->key_heads + rows->key_head) * s->key_dim,
                             s->key_dim);
}

template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_load_log(const deltanet_gpu *p, int64_t shift, const gpu_delta_rows<R, C> *rows,
                                             gpu_log<R, C, ROWS> *log) {
    const deltanet_shape *s = &p->shape;
    const int lane = threadIdx.x % 32, at = lane / 8 * s->value_heads + rows->h, r = lane % 8 / gpu_log<R, C, ROWS>::LANES;
    gpu_load_log_k<R, C, ROWS>(p, shift, rows, 0, log);
    log->u = r < R && rows->first + r < s->value_dim ? gpu_delta_at(p->state.log_u, shift)[at * s->value_dim + rows->first + r] : 0;
    log->decay = gpu_delta_at(p->state.log_decay, shift)[at];
}

/* S = decay S + u k^T for the accepted rows of the log, with the operations, and in the order, of gpu_delta_tokens: the
   same bits. Writes S back if there were any. */
template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_replay(const deltanet_gpu *p, int64_t shift, int replay, gpu_log<R, C, ROWS> *log,
                                           gpu_delta_rows<R, C> *rows) {
    enum { BATCH = gpu_log<R, C, ROWS>::BATCH, LANES = gpu_log<R, C, ROWS>::LANES };
#pragma unroll 1
    for (int first = 0; first < replay; first += BATCH) {
        if (first) gpu_load_log_k<R, C, ROWS>(p, shift, rows, first, log);
#pragma unroll
        for (int i = 0; i < BATCH && first + i < replay; i++) {
            float decay_t = __shfl_sync(~0u, log->decay, 8 * (first + i));
#pragma unroll
            for (int r = 0; r < R; r++) {
                float write = __shfl_sync(~0u, log->u, 8 * (first + i) + r * LANES);
#pragma unroll
                for (int c = 0; c < C; c++) rows->S[r][c] = fmaf(write, log->k[i][c], decay_t * rows->S[r][c]);
            }
        }
    }
    if (replay > 0) gpu_move_rows<R, C, 1>(p, shift, rows);
}

/* The delta rule for a warp's rows of S, token row after token row. qk in shared memory holds q and k of all token rows,
   [t][q, k][32 C], not normalised. Lane 8 t + i holds decay and beta of token row t and, for row i / LANES of S, v and gate
   = norm SiLU(z). Stores o, log_u, k and the warp's sums of o^2.

   The reduction uses S as it is before the decay of the token row; its results are multiplied by the decay afterwards, so
   that it need not wait for it. */
template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_delta_tokens(const deltanet_gpu *p, int64_t shift, gpu_delta_rows<R, C> *rows, const float *qk,
                                                 float decay, float beta, float v, float gate,
                                                 float (*squares)[GPU_WARPS]) {
    enum { N = gpu_delta_rows<R, C>::SUMS, LANES = gpu_delta_rows<R, C>::LANES };
    enum { KK = N / 4, QQ = N / 4 + 1, KQ = N / 2 + N / 4 };            /* in sum; S k of row r: r, S q: N/2 + r */
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
        float decay_t = __shfl_sync(~0u, decay, 8 * t), strength = __shfl_sync(~0u, beta, 8 * t);
        float value = __shfl_sync(~0u, v, 8 * t + lane % 8), gated = __shfl_sync(~0u, gate, 8 * t + lane % 8);
        float total = gpu_warp_sums<N>(sum), Sq = decay_t * __shfl_xor_sync(~0u, total, 16);
        float fk = gpu_delta_factor(__shfl_sync(~0u, total, KK * LANES));
        float fq = gpu_delta_factor(__shfl_sync(~0u, total, QQ * LANES)) * scale;
        float kq = __shfl_sync(~0u, total, KQ * LANES) * fk;
        float u = strength * fmaf(-fk * decay_t, total, value), o = fq * fmaf(u, kq, Sq);
        int at = (t * s->value_heads + rows->h) * s->value_dim + j;
        if (writes) p->o[at] = o * gated;
        if (writes) gpu_delta_at(p->state.log_u, shift)[at] = u;
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
            for (int c = 0; c < C; c++) rows->S[r][c] = fmaf(write, k[c], decay_t * rows->S[r][c]);
        }
    }
}

/* Makes the compiler compute a pointer here, before the wait, instead of right before the loads that use it. */
template <class T> __device__ __forceinline__ void materialize(T *&pointer) {
    asm volatile("" : "+l"(pointer));
}

/* The kernel of conv_delta; see the top of this file. C = ceil(key_dim / 32), rounded up to a power of two; ROWS = 1, or 4
   for T = 2, 3 and 4. Grid: (value_heads, ceil(value_dim / (8 R)), sequences). Where C is not DELTA_USUAL, which published models have, one
   kernel serves all slots and numbers of rows.

   Occupancy: with one row and C <= 4 the kernel is held to 64 registers, so that one of its blocks fits an SM beside two
   blocks of norm_in_proj with 96 each and does step 1 while those still run. */
template <int C, int ROWS, enum slot_use USE>
__global__ void __launch_bounds__(GPU_THREADS, C > 4 ? 1 : ROWS > 1 ? 2 : USE == SLOT_EACH ? 3 : 4)
gpu_delta_kernel(const __grid_constant__ deltanet_gpu all) {
    enum { R = C <= 4 ? 4 : 16 / C, WIDTH = 32 * C, SLOTS = C <= 4 ? 1 : C / 4 };
    __shared__ __align__(16) float qk[ROWS][2][WIDTH], squares[ROWS][GPU_WARPS];
    const bool each = USE == SLOT_EACH || (USE == SLOT_ANY && all.sequences);
    const deltanet_gpu own = each ? gpu_delta_sequence(all, blockIdx.z, gridDim.y) : all;
    const deltanet_gpu &p = USE == SLOT_EACH || USE == SLOT_ANY ? own : all;
    const deltanet_shape *s = &all.shape;
    const int lane = threadIdx.x % 32, token = lane / 8, element = lane % 8 / gpu_delta_rows<R, C>::LANES;
    const int replay = p.step->replay;
    const int64_t shift = USE == SLOT_CAPTURED ? 0 : gpu_slot_shift(&p.slot);
    gpu_conv<ROWS> conv[SLOTS], v_conv;
    gpu_delta_rows<R, C> rows;
    gpu_log<R, C, ROWS> log;
    pdl_launch_dependents();
    rows.h = blockIdx.x;
    rows.key_head = p.ratio == 1 ? rows.h : (int)__umulhi((uint32_t)rows.h, p.per_key);
    rows.first = (blockIdx.y * GPU_WARPS + threadIdx.x / 32) * R;
    gpu_move_rows<R, C, 0>(&p, shift, &rows);
    gpu_load_log<R, C, ROWS>(&p, shift, &rows, &log);
    const bool has = element < R && rows.first + element < s->value_dim;       /* this lane holds a row of S, not padding */
    const int row = rows.h * s->value_dim + rows.first + element, head = token * s->value_heads + rows.h;
#pragma unroll
    for (int n = 0; n < SLOTS; n++) {                       /* q channels, then k channels, each padded to WIDTH */
        int i = n * GPU_THREADS + threadIdx.x, is_k = i / WIDTH, e = i % WIDTH;
        gpu_conv_weights<ROWS>(&p, is_k < 2 && e < s->key_dim ? (is_k * s->key_heads + rows.key_head) * s->key_dim + e : -1,
                               &conv[n]);
        gpu_conv_past<ROWS>(&p, shift, replay, &conv[n]);
    }
    gpu_conv_weights<ROWS>(&p, has ? 2 * s->key_heads * s->key_dim + row : -1, &v_conv);
    gpu_conv_past<ROWS>(&p, shift, replay, &v_conv);
    float norm = has ? p.norm[rows.first + element] : 0, rate = p.A_log[rows.h], bias = p.dt_bias[rows.h];
    const float *z_at = p.z + (token * s->value_heads * s->value_dim + row), *a_at = p.a + head, *b_at = p.b + head;
    rate = -expf(rate);
    gpu_replay<R, C, ROWS>(&p, shift, replay, &log, &rows);
#pragma unroll
    for (int n = 0; n < SLOTS; n++) gpu_conv_sum_past<ROWS>(&p, shift, replay, 0, &conv[n]);
    gpu_conv_sum_past<ROWS>(&p, shift, replay, 0, &v_conv);
#pragma unroll
    for (int n = 0; n < SLOTS; n++) materialize(conv[n].present);
    materialize(v_conv.present);
    materialize(z_at);
    materialize(a_at);
    materialize(b_at);
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
    gpu_delta_tokens<R, C, ROWS>(&p, shift, &rows, &qk[0][0][0], decay, gpu_sigmoid(b), gpu_silu(v), norm * gpu_gate(z, s->sigmoid_gate), squares);
    __syncthreads();
    const int t = threadIdx.x, of_head = (t * s->value_heads + rows.h) * gpu_squares_stride(gridDim.y);
    if (t < p.T) p.squares[of_head + blockIdx.y] = sum_warp_partials(squares[t]);
}

typedef void (*delta_kernel)(deltanet_gpu);

enum { DELTA_USUAL = 4 };

/* The kernel of one row for each sequence, or of up to STEP_ROWS. */
template <int C, enum slot_use USE> static delta_kernel gpu_delta_of(int one) {
    return one ? gpu_delta_kernel<C, 1, USE> : gpu_delta_kernel<C, STEP_ROWS, USE>;
}

static delta_kernel gpu_delta_kernel_for(const deltanet_gpu *p) {
    const int n = p->shape.key_dim, one = p->T == max_int(p->sequences, 1);
    if (n <= 32) return gpu_delta_kernel<1, STEP_ROWS, SLOT_ANY>;
    if (n <= 64) return gpu_delta_kernel<2, STEP_ROWS, SLOT_ANY>;
    if (n > 256) return gpu_delta_kernel<16, STEP_ROWS, SLOT_ANY>;
    if (n > 32 * DELTA_USUAL) return gpu_delta_kernel<8, STEP_ROWS, SLOT_ANY>;
    if (p->sequences) return gpu_delta_of<DELTA_USUAL, SLOT_EACH>(one);
    return p->slot.step ? gpu_delta_of<DELTA_USUAL, SLOT_RESIDENT>(one) : gpu_delta_of<DELTA_USUAL, SLOT_CAPTURED>(one);
}

/* Fills o, squares, k, decay and log_u. */
static void gpu_conv_delta(gpu_queue *q, const deltanet_gpu *p) {
    const unsigned sequences = (unsigned)max_int(p->sequences, 1);
    const dim3 grid((unsigned)p->shape.value_heads, (unsigned)gpu_delta_parts(&p->shape), sequences);
    gpu_record_grid(q, KERNEL_DELTA, "", gpu_delta_kernel_for(p), grid, 0, p);
}
