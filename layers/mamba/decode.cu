/* layers/mamba/decode.cu: a Mamba-2 layer on a GPU: norm_mamba_in, conv_scan, mamba_out. Its kernel of conv_scan, and what records all three.

   Its formula is in definition.c; what it remembers is what a DeltaNet layer does (mamba_memory), so the parts of layers/deltanet/decode.cu
   convolve, keep rows of S in registers, replay the log and bring it up to date. Knows no session and no other kind of layer. "Token block" is
   the block of token rows here, "block" a thread block. */

/* conv_scan: convolutions, steps, the rule, the gate. For a head, its group and one token row:

       C, B, x = SiLU(conv1d(raw) + bias);  dt = softplus(dt + dt_bias);  decay = exp(-exp(A_log) dt);  u = dt x
       y = decay (S C) + u (B . C) + D x        equals S' C + D x after the write S' = decay S + u B^T, without waiting for that write
       out = y SiLU(z) norm                     and the sum of (y SiLU(z))^2, from which mamba_out makes the RMS of the group

   Grid: (heads, parts) blocks of eight warps. A warp holds four rows of S, of 128 columns at most; columns beyond state_dim are zero.
   Order, what is read and written early, and why that is right: as conv_delta (layers/deltanet/decode.cu). S after the token block's own rows is
   never stored: the next step replays those of them that are accepted, with the same operations in the same order.

   In turn (several token blocks of one slot, one after the other, in one launch) S stays in registers from block to block, and is stored as it is
   before the rows that are logged (gpu_before_log). */

enum { MAMBA_WIDTH = 128, MAMBA_R = 4, MAMBA_C = MAMBA_WIDTH / 32 };       /* columns of S; rows of a warp; elements of a row that a lane holds */

typedef struct mamba_gpu {
    handoff link;
    deltanet_gpu delta;          /* of mamba_memory: a is in_proj_dt's output, b is not used; k: B; o: y SiLU(z) norm; squares [T][groups][stride] */
    const float *conv_bias, *D;
    int of_group;                /* parts of a group: sums of squares that make one */
} mamba_gpu;

/* Sums of squares of a group. */
static int mamba_of_group(const mamba_shape *s) {
    const deltanet_shape memory = mamba_memory(s);
    return s->heads / s->groups * gpu_delta_parts(&memory);
}

/* What concerns T rows of a pass from row `first` on. */
__device__ __forceinline__ mamba_gpu gpu_mamba_rows_of(const mamba_gpu &all, int first, int T) {
    mamba_gpu p = all;
    p.delta = gpu_delta_rows_of(all.delta, first, T, 0);
    p.delta.squares = all.delta.squares + first * all.delta.shape.key_heads * gpu_squares_stride(all.of_group);
    return p;
}

/* What concerns sequence z of a pass: its rows, and its slot. */
__device__ __forceinline__ mamba_gpu gpu_mamba_sequence(const mamba_gpu &all, int z) {
    const step_parameters *step = all.delta.step + z;
    mamba_gpu p = gpu_mamba_rows_of(all, step->first, step->rows);
    p.delta.step = p.delta.slot.step = step;
    return p;
}

typedef gpu_delta_rows<MAMBA_R, MAMBA_C> mamba_rows;

/* What a thread has of a token block: a channel of C or of B, a channel of x, whose element of head_dim its lane's row of S belongs to, and of
   token row lane / 8 z and dt. */
template <int ROWS> struct mamba_inputs {
    gpu_conv<ROWS> cb, x;
    float cb_bias, x_bias, z, dt;
};

/* Channels, weights and what is before the token block. value: the lane's element of x, y and z; -1: none. */
template <int ROWS>
__device__ __forceinline__ void gpu_mamba_begin(const mamba_gpu &p, int64_t shift, int replay, int group, int value, mamba_inputs<ROWS> *in) {
    const deltanet_shape *s = &p.delta.shape;
    const int is_b = threadIdx.x / MAMBA_WIDTH, e = threadIdx.x % MAMBA_WIDTH;
    const int cb = e < s->key_dim ? (is_b * s->key_heads + group) * s->key_dim + e : -1, x = value < 0 ? -1 : 2 * s->key_heads * s->key_dim + value;
    gpu_conv_weights<ROWS>(&p.delta, cb, &in->cb);
    gpu_conv_past<ROWS>(&p.delta, shift, replay, &in->cb);
    gpu_conv_weights<ROWS>(&p.delta, x, &in->x);
    gpu_conv_past<ROWS>(&p.delta, shift, replay, &in->x);
    in->cb_bias = cb < 0 ? 0 : __ldg(p.conv_bias + cb);
    in->x_bias = x < 0 ? 0 : __ldg(p.conv_bias + x);
}

/* The rows of the token block themselves, after the wait. */
template <int ROWS> __device__ __forceinline__ void gpu_mamba_load(const mamba_gpu &p, int h, int value, mamba_inputs<ROWS> *in) {
    const deltanet_shape *s = &p.delta.shape;
    const int token = threadIdx.x % 32 / 8;
    const bool there = token < p.delta.T;
    gpu_conv_present<ROWS>(&p.delta, &in->cb);
    gpu_conv_present<ROWS>(&p.delta, &in->x);
    in->z = there && value >= 0 ? p.delta.z[token * s->value_heads * s->value_dim + value] : 0;
    in->dt = there ? p.delta.a[token * s->value_heads + h] : 0;
}

/* The rule for a warp's rows of S, token row after token row. cb in shared memory holds C and B of all token rows, [t][C, B][MAMBA_WIDTH]. Lane
   8 t + i holds decay of token row t and, for row i / 2 of S, u, skip = D x, gate and norm. Lanes 4 r .. 4 r + 3 get the sum S C of row r, those
   from 16 on B . C. log_row: of the log, for the first token row; negative: they are not logged. goes_on: S is needed after the last one. */
template <int ROWS>
__device__ __forceinline__ void gpu_mamba_tokens(const mamba_gpu &p, int64_t shift, mamba_rows *rows, const float *cb, float decay, float u, float skip,
                                                 float gate, float norm, float (*squares)[GPU_WARPS], int log_row, bool goes_on) {
    enum { N = 2 * MAMBA_R, LANES = 32 / N, HELD = mamba_rows::LANES };
    const deltanet_gpu *d = &p.delta;
    const deltanet_shape *s = &d->shape;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, j = rows->first + lane / LANES, holder = lane % 16 / LANES * HELD;
    const bool writes = lane % LANES == 0 && lane < MAMBA_R * LANES && j < s->value_dim;
    const bool logs_b = log_row >= 0 && rows->h == rows->key_head * d->ratio && blockIdx.y == 0;
    for (int t = 0; t < (ROWS == 1 ? 1 : d->T); t++, cb += 2 * MAMBA_WIDTH) {
        float C[MAMBA_C], B[MAMBA_C], sum[N] = {};
        gpu_load_key_row<MAMBA_C>(C, cb, MAMBA_WIDTH);
        gpu_load_key_row<MAMBA_C>(B, cb + MAMBA_WIDTH, MAMBA_WIDTH);
#pragma unroll
        for (int c = 0; c < MAMBA_C; c++) {
            sum[MAMBA_R] = fmaf(B[c], C[c], sum[MAMBA_R]);
#pragma unroll
            for (int r = 0; r < MAMBA_R; r++) sum[r] = fmaf(rows->S[r][c], C[c], sum[r]);
        }
        const float decay_t = __shfl_sync(~0u, decay, 8 * t), value = __shfl_sync(~0u, u, 8 * t + holder);
        const float skipped = __shfl_sync(~0u, skip, 8 * t + holder), gated = __shfl_sync(~0u, gate, 8 * t + holder);
        const float normed = __shfl_sync(~0u, norm, 8 * t + holder);
        const float total = gpu_warp_sums<N>(sum), bc = __shfl_sync(~0u, total, MAMBA_R * LANES);
        const float y = (fmaf(value, bc, decay_t * total) + skipped) * gated;
        const int at = (t * s->value_heads + rows->h) * s->value_dim + j;
        if (writes) d->o[at] = y * normed;
        if (writes && log_row >= 0) gpu_delta_at(d->state.log_u, shift)[at + log_row * s->value_heads * s->value_dim] = value;
        float square = writes ? y * y : 0;
#pragma unroll
        for (int i = LANES; i < MAMBA_R * LANES; i *= 2) square += __shfl_xor_sync(~0u, square, i);
        if (lane == 0) squares[t][warp] = square;
        if (logs_b && warp == t) gpu_store_key_row<MAMBA_C>(d->k + (t * s->key_heads + rows->key_head) * s->key_dim, B, s->key_dim);
        if (!goes_on && (ROWS == 1 || t + 1 == d->T)) continue;
#pragma unroll
        for (int r = 0; r < MAMBA_R; r++) {
            const float write = __shfl_sync(~0u, value, r * LANES);
#pragma unroll
            for (int c = 0; c < MAMBA_C; c++) rows->S[r][c] = fmaf(write, B[c], decay_t * rows->S[r][c]);
        }
    }
}

/* A token block, its sums of convolution found: C and B to shared memory, then the rule; at last the sums of squares. All threads of the block
   call it. */
template <int ROWS>
__device__ __forceinline__ void gpu_mamba_block(const mamba_gpu &p, int64_t shift, mamba_rows *rows, const mamba_inputs<ROWS> &in, float rate, float bias,
                                                float D, float norm, float (*cb)[2][MAMBA_WIDTH], float (*squares)[GPU_WARPS], int log_row, bool goes_on) {
    const deltanet_shape *s = &p.delta.shape;
    const int lane = threadIdx.x % 32, token = lane / 8, stride = gpu_squares_stride(p.of_group);
#pragma unroll
    for (int t = 0; t < ROWS; t++)
        if (t < p.delta.T) cb[t][threadIdx.x / MAMBA_WIDTH][threadIdx.x % MAMBA_WIDTH] = gpu_silu(in.cb.sum[t] + in.cb_bias);
    __syncthreads();
    const float dt = gpu_softplus(in.dt + bias), decay = expf(rate * dt);
    float x = in.x.sum[0];
#pragma unroll
    for (int t = 1; t < ROWS; t++) x = token == t ? in.x.sum[t] : x;
    x = gpu_silu(x + in.x_bias);
    if (blockIdx.y == 0 && threadIdx.x < 32 && lane % 8 == 0 && token < p.delta.T) p.delta.decay[token * s->value_heads + rows->h] = decay;
    gpu_mamba_tokens<ROWS>(p, shift, rows, &cb[0][0][0], decay, dt * x, D * x, gpu_silu(in.z), norm, squares, log_row, goes_on);
    __syncthreads();
    const int t = threadIdx.x, part = (rows->h - rows->key_head * p.delta.ratio) * (int)gridDim.y + (int)blockIdx.y;
    float *of_group = p.delta.squares + (t * s->key_heads + rows->key_head) * stride;
    if (t >= p.delta.T) return;
    of_group[part] = sum_warp_partials(squares[t]);
    for (int i = p.of_group; part == 0 && i < stride; i++) of_group[i] = 0;
}

/* The kernel of conv_scan; see the top of this file. ROWS = 1, or 4 for T = 2, 3 and 4. Grid: (heads, parts, sequences); with TURNS (heads, parts),
   and delta.sequences is the number of turns, of which the first one's step has the replay.

   Columns of C and B that state_dim has not are zero in shared memory: their channel is -1, whose sum is 0, and SiLU(0) is. */
template <int ROWS, enum slot_use USE, bool TURNS>
__global__ void __launch_bounds__(GPU_THREADS, TURNS ? 1 : ROWS > 1 ? 2 : USE == SLOT_EACH ? 3 : 4) gpu_mamba_kernel(const __grid_constant__ mamba_gpu all) {
    __shared__ __align__(16) float cb[ROWS][2][MAMBA_WIDTH], squares[ROWS][GPU_WARPS];
    const mamba_gpu own = USE == SLOT_EACH ? gpu_mamba_sequence(all, blockIdx.z) : all;
    const mamba_gpu &p = USE == SLOT_EACH ? own : all;
    const deltanet_shape *s = &all.delta.shape;
    const int lane = threadIdx.x % 32, element = lane % 8 / mamba_rows::LANES, replay = p.delta.step->replay;
    const slot_view slot = TURNS ? gpu_slot_of(&all.delta.slot, all.delta.step) : p.delta.slot;
    const int64_t shift = USE == SLOT_CAPTURED ? 0 : gpu_slot_shift(&slot);
    mamba_inputs<ROWS> in;
    mamba_rows rows;
    gpu_log<MAMBA_R, MAMBA_C, ROWS> log;
    pdl_launch_dependents();
    rows.h = blockIdx.x;
    rows.key_head = p.delta.ratio == 1 ? rows.h : (int)__umulhi((uint32_t)rows.h, p.delta.per_key);
    rows.first = (blockIdx.y * GPU_WARPS + threadIdx.x / 32) * MAMBA_R;
    gpu_move_rows<MAMBA_R, MAMBA_C, 0>(&p.delta, shift, &rows);
    gpu_load_log<MAMBA_R, MAMBA_C, ROWS>(&p.delta, shift, &rows, &log);
    const int value = rows.first + element < s->value_dim ? rows.h * s->value_dim + rows.first + element : -1;
    gpu_mamba_begin<ROWS>(p, shift, replay, rows.key_head, value, &in);
    const float norm = value >= 0 ? __ldg(all.delta.norm + value) : 0, rate = -expf(__ldg(all.delta.A_log + rows.h));
    const float bias = __ldg(all.delta.dt_bias + rows.h), D = __ldg(all.D + rows.h);
    if constexpr (TURNS) {
        const int turns = all.delta.sequences, total = gpu_rows_of_turns(all.delta.step, turns), before_log = gpu_before_log(total);
        gpu_replay_turns<MAMBA_R, MAMBA_C>(all.delta, shift, replay, &log, &rows);
        pdl_wait();
#pragma unroll 1
        for (int i = 0; i < turns; i++) {
            const mamba_gpu turn = gpu_mamba_rows_of(all, i * STEP_ROWS, min(total - i * STEP_ROWS, (int)STEP_ROWS));
            gpu_mamba_load<ROWS>(turn, rows.h, value, &in);
            gpu_conv_turn(&turn.delta, shift, replay, i * STEP_ROWS, &in.cb);
            gpu_conv_turn(&turn.delta, shift, replay, i * STEP_ROWS, &in.x);
            if (i && i * STEP_ROWS == before_log) gpu_move_rows<MAMBA_R, MAMBA_C, 1>(&all.delta, shift, &rows);
            gpu_mamba_block<ROWS>(turn, shift, &rows, in, rate, bias, D, norm, cb, squares, i * STEP_ROWS - before_log, true);
            __syncthreads();
        }
    } else {
        gpu_replay<MAMBA_R, MAMBA_C, ROWS>(&p.delta, shift, replay, &log, &rows);
        gpu_conv_sum_past<ROWS>(&p.delta, shift, replay, 0, &in.cb);
        gpu_conv_sum_past<ROWS>(&p.delta, shift, replay, 0, &in.x);
        pdl_wait();
        gpu_mamba_load<ROWS>(p, rows.h, value, &in);
        gpu_conv_sum_present<ROWS>(&p.delta, &in.cb);
        gpu_conv_sum_present<ROWS>(&p.delta, &in.x);
        gpu_mamba_block<ROWS>(p, shift, &rows, in, rate, bias, D, norm, cb, squares, 0, false);
    }
}
