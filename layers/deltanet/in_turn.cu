/* layers/deltanet/in_turn.cu: conv_delta of a short prompt on a GPU: token blocks of STEP_ROWS rows of one slot, each of which continues
   the one before it, in one launch: turns. Uses the parts of decode.cu, whose bits it keeps.

   S stays in registers from turn to turn: what a row writes to it is what the replay of the log would write, with the same operations
   in the same order. It is stored as it is before the rows that are logged, the last turn's or the last two's (gpu_before_log). Up to
   MOTE_ROWS_MAX rows are repeated from the log first.

   Performance: only S has to wait for the rows before. So q and k of a turn are ready, in shared memory, two turns early, what does
   not depend on S (fk, fq, kq of decode.cu) is found one turn early, once for a block of threads, and inputs are loaded one more turn before
   they are used. A turn has one barrier: q and k are there three times, all else twice. The sums that are left are half of those of a step,
   each of the same terms in the same order. */

/* A thread's inputs: of its channels of q and k (padded to 32 C each), and of its row of v. */
template <int C> struct gpu_turn_inputs {
    enum { ROWS = STEP_ROWS, WIDTH = 32 * C, SLOTS = C <= 4 ? 1 : C / 4 };
    gpu_conv<ROWS> conv[SLOTS], v;
    float z, a, b;               /* of token row lane / 8; z also of row lane % 8 / LANES of S */
};

/* What a block has in shared memory of turns that are under way: turn i is in [i % 3] and in [i % 2]. */
template <int C> struct gpu_turn_shared {
    float qk[3][STEP_ROWS][2][32 * C];                  /* not normalised */
    float4 factors[2][STEP_ROWS];                       /* fk, fq, kq */
    float squares[2][STEP_ROWS][GPU_WARPS];
};

/* Channels, weights, and what is before the first turn. v_channel < 0: the lane has no row of S. */
template <int C>
__device__ __forceinline__ void gpu_begin_turns(const deltanet_gpu *p, int64_t shift, int key_head, int v_channel, gpu_turn_inputs<C> *in) {
    enum { ROWS = STEP_ROWS, WIDTH = gpu_turn_inputs<C>::WIDTH };
    const deltanet_shape *s = &p->shape;
    const int replay = p->step->replay;
#pragma unroll
    for (int n = 0; n < gpu_turn_inputs<C>::SLOTS; n++) {
        const int i = n * GPU_THREADS + threadIdx.x, is_k = i / WIDTH, e = i % WIDTH;
        const int channel = is_k < 2 && e < s->key_dim ? (is_k * s->key_heads + key_head) * s->key_dim + e : -1;
        gpu_conv_weights<ROWS>(p, channel, &in->conv[n]);
        gpu_conv_past<ROWS>(p, shift, replay, &in->conv[n]);
    }
    gpu_conv_weights<ROWS>(p, v_channel, &in->v);
    gpu_conv_past<ROWS>(p, shift, replay, &in->v);
}

template <int C> __device__ __forceinline__ void gpu_load_turn_qk(const deltanet_gpu *p, gpu_turn_inputs<C> *in) {
#pragma unroll
    for (int n = 0; n < gpu_turn_inputs<C>::SLOTS; n++) gpu_conv_present<STEP_ROWS>(p, &in->conv[n]);
}

/* value: the lane's element of v and z; -1: none. */
template <int C> __device__ __forceinline__ void gpu_load_turn_v(const deltanet_gpu *p, int head, int value, gpu_turn_inputs<C> *in) {
    const deltanet_shape *s = &p->shape;
    const int token = threadIdx.x % 32 / 8;
    const bool there = token < p->T;
    gpu_conv_present<STEP_ROWS>(p, &in->v);
    in->z = there && value >= 0 ? p->z[token * s->value_heads * s->value_dim + value] : 0;
    in->a = there ? p->a[token * s->value_heads + head] : 0;
    in->b = there ? p->b[token * s->value_heads + head] : 0;
}

/* The sums of a convolution; then the next turn's rows are the present. before: rows of the turns before this one. */
__device__ __forceinline__ void gpu_conv_turn(const deltanet_gpu *p, int64_t shift, int replay, int before,
                                              gpu_conv<STEP_ROWS> *c) {
    gpu_conv_sum_past<STEP_ROWS>(p, shift, replay, before, c);
    gpu_conv_sum_present<STEP_ROWS>(p, c);
#pragma unroll
    for (int age = 1; age < STEP_ROWS; age++) c->past[age] = c->x[STEP_ROWS - age];
    c->present += STEP_ROWS * gpu_channels(&p->shape);
}

/* q and k of a turn. */
template <int C>
__device__ __forceinline__ void gpu_store_turn_qk(const deltanet_gpu *p, int64_t shift, int replay, int before, gpu_turn_inputs<C> *in,
                                                  float (*qk)[2][32 * C]) {
    enum { WIDTH = 32 * C };
#pragma unroll
    for (int n = 0; n < gpu_turn_inputs<C>::SLOTS; n++) {
        const int i = n * GPU_THREADS + threadIdx.x;
        gpu_conv_turn(p, shift, replay, before, &in->conv[n]);
#pragma unroll
        for (int t = 0; t < STEP_ROWS; t++)
            if (t < p->T && i < 2 * WIDTH) qk[t][i / WIDTH][i % WIDTH] = gpu_silu(in->conv[n].sum[t]);
    }
}

/* fk, fq and kq of a turn's token rows: warp t those of row t. */
template <int C> __device__ __forceinline__ void gpu_find_factors(const float (*qk)[2][32 * C], int key_dim, float4 *factors) {
    const int t = threadIdx.x / 32;
    float q[C], k[C], kk = 0, qq = 0, kq = 0;
    if (t >= STEP_ROWS) return;
    gpu_load_key_row<C>(q, qk[t][0], 32 * C);
    gpu_load_key_row<C>(k, qk[t][1], 32 * C);
#pragma unroll
    for (int c = 0; c < C; c++) {
        kk = fmaf(k[c], k[c], kk);
        qq = fmaf(q[c], q[c], qq);
        kq = fmaf(k[c], q[c], kq);
    }
#pragma unroll
    for (int bit = 16; bit; bit /= 2) {
        kk += __shfl_xor_sync(~0u, kk, bit);
        qq += __shfl_xor_sync(~0u, qq, bit);
        kq += __shfl_xor_sync(~0u, kq, bit);
    }
    const float fk = gpu_delta_factor(kk), fq = gpu_delta_factor(qq) * rsqrtf((float)key_dim);
    if (threadIdx.x % 32 == 0) factors[t] = make_float4(fk, fq, kq * fk, 0);
}

/* The delta rule, as gpu_delta_tokens has it, for a turn's token rows; of those after the last nothing is stored. log_row: of the log,
   for the first of them; negative: they are not logged. Lanes r LANES ..
   (r + 1) LANES - 1 get the sum S k of row r, those 16 further on its S q. */
template <int R, int C>
__device__ __forceinline__ void gpu_turn_tokens(const deltanet_gpu *p, int64_t shift, gpu_delta_rows<R, C> *rows, const float (*qk)[2][32 * C],
                                                const float4 *factors, float decay, float beta, float v, float gate,
                                                float (*squares)[GPU_WARPS], int log_row) {
    enum { N = 2 * R, LANES = 32 / N, HELD = gpu_delta_rows<R, C>::LANES };
    const deltanet_shape *s = &p->shape;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, j = rows->first + lane / LANES, holder = lane % 16 / LANES * HELD;
    const bool writes = lane % LANES == 0 && lane < R * LANES && j < s->value_dim;
    const bool logs_k = log_row >= 0 && rows->h == rows->key_head * p->ratio && blockIdx.y == 0;
#pragma unroll
    for (int t = 0; t < STEP_ROWS; t++) {
        const bool stores = writes && t < p->T;
        const float4 f = factors[t];
        float q[C], k[C], sum[N] = {};
        gpu_load_key_row<C>(q, qk[t][0], 32 * C);
        gpu_load_key_row<C>(k, qk[t][1], 32 * C);
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int r = 0; r < R; r++) {
                sum[r] = fmaf(rows->S[r][c], k[c], sum[r]);
                sum[R + r] = fmaf(rows->S[r][c], q[c], sum[R + r]);
            }
        const float decay_t = __shfl_sync(~0u, decay, 8 * t), strength = __shfl_sync(~0u, beta, 8 * t);
        const float value = __shfl_sync(~0u, v, 8 * t + holder), gated = __shfl_sync(~0u, gate, 8 * t + holder);
        const float total = gpu_warp_sums<N>(sum), Sq = decay_t * __shfl_xor_sync(~0u, total, 16);
        const float u = strength * fmaf(-f.x * decay_t, total, value), o = f.y * fmaf(u, f.z, Sq);
        const int at = (t * s->value_heads + rows->h) * s->value_dim + j;
        float square = writes ? o * o : 0;
        if (stores) p->o[at] = o * gated;
        if (stores && log_row >= 0) gpu_delta_at(p->state.log_u, shift)[at + log_row * s->value_heads * s->value_dim] = u;
#pragma unroll
        for (int i = LANES; i < R * LANES; i *= 2) square += __shfl_xor_sync(~0u, square, i);
        if (lane == 0) squares[t][warp] = square;
#pragma unroll
        for (int c = 0; c < C; c++) k[c] *= f.x;
        if (logs_k && warp == t && t < p->T) gpu_store_key_row<C>(p->k + (t * s->key_heads + rows->key_head) * s->key_dim, k, s->key_dim);
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float write = __shfl_sync(~0u, u, r * LANES);
#pragma unroll
            for (int c = 0; c < C; c++) rows->S[r][c] = fmaf(write, k[c], decay_t * rows->S[r][c]);
        }
    }
}

/* The same with the part of the log after its first STEP_ROWS rows. */
__device__ __forceinline__ deltanet_gpu gpu_later_log(const deltanet_gpu &all) {
    const deltanet_shape *s = &all.shape;
    deltanet_gpu later = all;
    later.state.log_k += STEP_ROWS * s->key_heads * s->key_dim;
    later.state.log_u += STEP_ROWS * s->value_heads * s->value_dim;
    later.state.log_decay += STEP_ROWS * s->value_heads;
    return later;
}

/* Turn i; after the last one: of no rows. total: rows of all turns. */
__device__ __forceinline__ deltanet_gpu gpu_turn(const deltanet_gpu &all, int i, int total) {
    return gpu_delta_rows_of(all, i * STEP_ROWS, min(total - i * STEP_ROWS, (int)STEP_ROWS), gridDim.y);
}

/* Brings S up to the first turn: the rows of the log that are to be replayed, the first STEP_ROWS of which are loaded. */
template <int R, int C>
__device__ __forceinline__ void gpu_replay_turns(const deltanet_gpu &all, int64_t shift, int replay, gpu_log<R, C, STEP_ROWS> *log,
                                                 gpu_delta_rows<R, C> *rows) {
    gpu_replay<R, C, STEP_ROWS>(&all, shift, min(replay, (int)STEP_ROWS), log, rows);
    if (replay <= STEP_ROWS) return;
    const deltanet_gpu later = gpu_later_log(all);
    gpu_load_log<R, C, STEP_ROWS>(&later, shift, rows, log);
    gpu_replay<R, C, STEP_ROWS>(&later, shift, replay - STEP_ROWS, log, rows);
}

/* Stores sum o^2 of turn i's rows. */
template <int C>
__device__ __forceinline__ void gpu_store_turn_squares(const deltanet_gpu &all, int i, int total, int h, const gpu_turn_shared<C> &shared) {
    const deltanet_gpu p = gpu_turn(all, i, total);
    const int t = threadIdx.x;
    if (t < p.T)
        p.squares[(t * all.shape.value_heads + h) * gpu_squares_stride(gridDim.y) + blockIdx.y] = sum_warp_partials(shared.squares[i % 2][t]);
}

/* What is due at turn i besides that itself: the squares of the one before, the factors of the next, q and k of the one after that. */
template <int C>
__device__ __forceinline__ void gpu_around_turn(const deltanet_gpu &all, int64_t shift, int i, int total, int h, gpu_turn_inputs<C> *in,
                                                gpu_turn_shared<C> &shared) {
    const int turns = all.sequences, replay = all.step->replay;
    if (i > 0) gpu_store_turn_squares<C>(all, i - 1, total, h, shared);
    if (i >= -1 && i + 1 < turns) gpu_find_factors<C>(shared.qk[(i + 1) % 3], all.shape.key_dim, shared.factors[(i + 1) % 2]);
    if (i + 2 >= turns) return;
    const deltanet_gpu p = gpu_turn(all, i + 2, total), after = gpu_turn(all, i + 3, total);
    gpu_store_turn_qk<C>(&p, shift, replay, (i + 2) * STEP_ROWS, in, shared.qk[(i + 2) % 3]);
    gpu_load_turn_qk<C>(&after, in);
}

/* Grid: (value_heads, gpu_delta_parts). all.sequences: turns; the first one's step has the replay. */
template <int C> __global__ void __launch_bounds__(GPU_THREADS, 1) gpu_delta_in_turn(const __grid_constant__ deltanet_gpu all) {
    enum { ROWS = STEP_ROWS, R = C <= 4 ? 4 : 16 / C };
    extern __shared__ uint4 dynamic[];
    gpu_turn_shared<C> &shared = *(gpu_turn_shared<C> *)dynamic;
    const deltanet_shape *s = &all.shape;
    const int lane = threadIdx.x % 32, token = lane / 8, element = lane % 8 / gpu_delta_rows<R, C>::LANES, turns = all.sequences;
    const int replay = all.step->replay, total = gpu_rows_of_turns(all.step, turns), before_log = gpu_before_log(total);
    const slot_view slot = gpu_slot_of(&all.slot, all.step);
    const int64_t shift = gpu_slot_shift(&slot);
    gpu_turn_inputs<C> in;
    gpu_delta_rows<R, C> rows;
    gpu_log<R, C, ROWS> log;
    pdl_launch_dependents();
    rows.h = blockIdx.x;
    rows.key_head = all.ratio == 1 ? rows.h : (int)__umulhi((uint32_t)rows.h, all.per_key);
    rows.first = (blockIdx.y * GPU_WARPS + threadIdx.x / 32) * R;
    gpu_move_rows<R, C, 0>(&all, shift, &rows);
    gpu_load_log<R, C, ROWS>(&all, shift, &rows, &log);
    const bool has = element < R && rows.first + element < s->value_dim;       /* this lane holds a row of S, not padding */
    const int value = has ? rows.h * s->value_dim + rows.first + element : -1;
    gpu_begin_turns<C>(&all, shift, rows.key_head, has ? 2 * s->key_heads * s->key_dim + value : -1, &in);
    const float norm = has ? all.norm[rows.first + element] : 0, rate = -expf(all.A_log[rows.h]), bias = all.dt_bias[rows.h];
    gpu_replay_turns<R, C>(all, shift, replay, &log, &rows);
    pdl_wait();
    const deltanet_gpu begin = gpu_turn(all, 0, total);
    gpu_load_turn_qk<C>(&begin, &in);
#pragma unroll 1
    for (int i = -2; i < turns; i++) {
        __syncthreads();
        gpu_around_turn<C>(all, shift, i, total, rows.h, &in, shared);
        const deltanet_gpu p = gpu_turn(all, max(i, 0), total), next = gpu_turn(all, i + 1, total);
        if (i == -1) gpu_load_turn_v<C>(&next, rows.h, value, &in);
        if (i < 0) continue;
        gpu_conv_turn(&p, shift, replay, i * ROWS, &in.v);
        float v = in.v.sum[0];
        const float decay = expf(rate * gpu_softplus(in.a + bias)), beta = gpu_sigmoid(in.b), gate = norm * gpu_gate(in.z, s->sigmoid_gate);
#pragma unroll
        for (int t = 1; t < ROWS; t++) v = token == t ? in.v.sum[t] : v;
        if (blockIdx.y == 0 && threadIdx.x < 32 && lane % 8 == 0 && token < p.T) p.decay[token * s->value_heads + rows.h] = decay;
        if (i && i * ROWS == before_log) gpu_move_rows<R, C, 1>(&all, shift, &rows);
        gpu_load_turn_v<C>(&next, rows.h, value, &in);
        gpu_turn_tokens<R, C>(&p, shift, &rows, shared.qk[i % 3], shared.factors[i % 2], decay, beta, gpu_silu(v), gate,
                              shared.squares[i % 2], i * ROWS - before_log);
    }
    __syncthreads();
    gpu_store_turn_squares<C>(all, turns - 1, total, rows.h, shared);
}

template <int C> static void gpu_record_in_turn(gpu_queue *q, const deltanet_gpu *p) {
    const dim3 grid((unsigned)p->shape.value_heads, (unsigned)gpu_delta_parts(&p->shape));
    gpu_record_grid(q, KERNEL_DELTA, "", gpu_delta_in_turn<C>, grid, sizeof(gpu_turn_shared<C>), p);
}

/* conv_delta of p->sequences blocks in turn. */
static void gpu_conv_delta_in_turn(gpu_queue *q, const deltanet_gpu *p) {
    int n = p->shape.key_dim;
    if (n <= 32) gpu_record_in_turn<1>(q, p);
    else if (n <= 64) gpu_record_in_turn<2>(q, p);
    else if (n <= 128) gpu_record_in_turn<4>(q, p);
    else if (n <= 256) gpu_record_in_turn<8>(q, p);
    else gpu_record_in_turn<16>(q, p);
}
