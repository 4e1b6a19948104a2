/* layers/deltanet/in_turn.cu: conv_delta of a short prompt on a GPU: token blocks of MOTE_ROWS_MAX rows of one slot, each of which continues
   the one before it, in one launch. Uses the parts of decode.cu, whose steps and bits it keeps.

   S stays in registers from block to block: what a row writes to it is what the replay of the log would write, with the same operations
   in the same order. It is stored as it is before the last block's rows, whose log gpu_delta_log keeps: so the state is what a step for
   each block leaves.

   Performance: a block's rows depend on S alone to wait for those before them. So their inputs are loaded while the block before is
   computed, shared memory is there twice, and a block of threads has one barrier for each of them. */

/* A thread's inputs of a token block; the rows in front of it are in `past` of the convolutions, up to MOTE_ROWS_MAX - 1. */
template <int C> struct gpu_turn_inputs {
    enum { ROWS = MOTE_ROWS_MAX, WIDTH = 32 * C, SLOTS = C <= 4 ? 1 : C / 4 };
    gpu_conv<ROWS> conv[SLOTS], v;      /* q and k channels, each padded to WIDTH; of v */
    float z, a, b;               /* of token row lane / 8; z also of row lane % 8 / LANES of S */
};

/* Channels, weights, and what is before the first block. v_channel < 0: the lane has no row of S. */
template <int C>
__device__ __forceinline__ void gpu_begin_turns(const deltanet_gpu *p, int64_t shift, int key_head, int v_channel, gpu_turn_inputs<C> *in) {
    enum { ROWS = MOTE_ROWS_MAX, WIDTH = gpu_turn_inputs<C>::WIDTH };
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

/* Loads the inputs of block p; value: the lane's element of z, -1: none. */
template <int C> __device__ __forceinline__ void gpu_load_turn(const deltanet_gpu *p, int head, int value, gpu_turn_inputs<C> *in) {
    const deltanet_shape *s = &p->shape;
    const int token = threadIdx.x % 32 / 8;
    const bool there = token < p->T;
#pragma unroll
    for (int n = 0; n < gpu_turn_inputs<C>::SLOTS; n++) gpu_conv_present<MOTE_ROWS_MAX>(p, &in->conv[n]);
    gpu_conv_present<MOTE_ROWS_MAX>(p, &in->v);
    in->z = there && value >= 0 ? p->z[token * s->value_heads * s->value_dim + value] : 0;
    in->a = there ? p->a[token * s->value_heads + head] : 0;
    in->b = there ? p->b[token * s->value_heads + head] : 0;
}

/* The sums of a convolution; then the next block's rows are the present. before: rows of the turns before this block. */
__device__ __forceinline__ void gpu_conv_turn(const deltanet_gpu *p, int64_t shift, int replay, int before,
                                              gpu_conv<MOTE_ROWS_MAX> *c) {
    gpu_conv_sum_past<MOTE_ROWS_MAX>(p, shift, replay, before, c);
    gpu_conv_sum_present<MOTE_ROWS_MAX>(p, c);
#pragma unroll
    for (int age = 1; age < MOTE_ROWS_MAX; age++) c->past[age] = c->x[MOTE_ROWS_MAX - age];
    c->present += MOTE_ROWS_MAX * gpu_channels(&p->shape);
}

/* Grid: (value_heads, gpu_delta_parts). all.sequences: blocks; the first one's step has the replay. */
template <int C> __global__ void __launch_bounds__(GPU_THREADS, 1) gpu_delta_in_turn(const __grid_constant__ deltanet_gpu all) {
    enum { ROWS = MOTE_ROWS_MAX, R = C <= 4 ? 4 : 16 / C, WIDTH = 32 * C, SLOTS = gpu_turn_inputs<C>::SLOTS };
    __shared__ __align__(16) float qk[2][ROWS][2][WIDTH], squares[2][ROWS][GPU_WARPS];
    const deltanet_shape *s = &all.shape;
    const int lane = threadIdx.x % 32, token = lane / 8, element = lane % 8 / gpu_delta_rows<R, C>::LANES;
    const int replay = all.step->replay, total = all.step[all.sequences - 1].first + all.step[all.sequences - 1].rows;
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
    gpu_replay<R, C, ROWS>(&all, shift, replay, &log, &rows);
    auto turn_from = [&](int first) { return gpu_delta_rows_of(all, first, min(total - first, (int)ROWS), gridDim.y); };
    auto store_squares = [&](int first) {
        const deltanet_gpu p = turn_from(first);
        const int t = threadIdx.x;
        if (t >= p.T) return;
        p.squares[(t * s->value_heads + rows.h) * gpu_squares_stride(gridDim.y) + blockIdx.y] = sum_warp_partials(squares[first / ROWS % 2][t]);
    };
    pdl_wait();
    deltanet_gpu next = turn_from(0);
    gpu_load_turn<C>(&next, rows.h, value, &in);
    int first = 0;
#pragma unroll 1
    for (;; first += ROWS) {
        const deltanet_gpu p = turn_from(first);
        const bool last = first + ROWS >= total;
        float (*own)[2][WIDTH] = qk[first / ROWS % 2];
#pragma unroll
        for (int n = 0; n < SLOTS; n++) {
            const int i = n * GPU_THREADS + threadIdx.x;
            gpu_conv_turn(&p, shift, replay, first, &in.conv[n]);
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if (t < p.T && i < 2 * WIDTH) own[t][i / WIDTH][i % WIDTH] = gpu_silu(in.conv[n].sum[t]);
        }
        __syncthreads();
        if (first) store_squares(first - ROWS);
        gpu_conv_turn(&p, shift, replay, first, &in.v);
        float v = in.v.sum[0];
        const float decay = expf(rate * gpu_softplus(in.a + bias)), beta = gpu_sigmoid(in.b), gate = norm * gpu_silu(in.z);
#pragma unroll
        for (int t = 1; t < ROWS; t++) v = token == t ? in.v.sum[t] : v;
        if (blockIdx.y == 0 && threadIdx.x < 32 && lane % 8 == 0 && token < p.T) p.decay[token * s->value_heads + rows.h] = decay;
        if (last && first) gpu_move_rows<R, C, 1>(&all, shift, &rows);
        next = turn_from(first + ROWS);                     /* after the last: of no rows */
        gpu_load_turn<C>(&next, rows.h, value, &in);
        gpu_delta_tokens<R, C, ROWS>(&p, shift, &rows, &own[0][0][0], decay, beta, gpu_silu(v), gate, squares[first / ROWS % 2], !last);
        if (last) break;
    }
    __syncthreads();
    store_squares(first);
}

/* conv_delta of p->sequences blocks in turn. */
static void gpu_conv_delta_in_turn(gpu_queue *q, const deltanet_gpu *p) {
    const dim3 grid((unsigned)p->shape.value_heads, (unsigned)gpu_delta_parts(&p->shape));
    const int n = p->shape.key_dim;
    void (*kernel)(deltanet_gpu) = gpu_delta_in_turn<16>;
    if (n <= 32) kernel = gpu_delta_in_turn<1>;
    else if (n <= 64) kernel = gpu_delta_in_turn<2>;
    else if (n <= 128) kernel = gpu_delta_in_turn<4>;
    else if (n <= 256) kernel = gpu_delta_in_turn<8>;
    gpu_record_grid(q, KERNEL_DELTA, "", kernel, grid, 0, p);
}
