/* layers/deltanet/prefill_scan.cu: the second kernel of the delta rule of many token rows (prefill.cu): S from chunk
   to chunk, and the launches of both.

   Grid: value heads x PARTS blocks of 2 WARPS warps. WARPS of them keep S: each 16 rows of it, all 128 columns, in registers
   as mma accumulators: with g = lane / 4 and i = lane % 4, S[n] has columns 8n + 2i and 8n + 2i + 1 of row g, then of row
   g + 8. All products are transposed, rows of S first: S K^T, X^T, U^T = X^T T~^T, O^T = S Q^T + U^T P^T and S + U^T K are 16
   rows of S x 32 tokens or 128 columns. So the accumulators of one product, rounded to F16, are operand a of the next without
   a move between lanes.

   The time is that of one chain, chunk after chunk: S as an operand, S K^T, X, U, S. 32 heads have 256 warps of S, less than
   one for each scheduler: nothing else would hide the chain's waits. So what o alone needs is done by as many other warps: they
   get S and U as operands, by shared memory, and compute o while the first go on to the next S; they load the chunks, too. Per
   chunk and warp 70 mma for S, 38 for o. S becomes an operand piece by piece, while S K^T waits for the piece before. What
   shared memory has to deliver comes close to filling the time as well: two warps of S a block, on twice the SMs, read K, Q,
   T~ and P half as often per SM as four. With fewer SMs than such blocks it is four.

   Shared memory, in the order of the two barriers a chunk has:
     A   chunk c has arrived; nobody reads the stage of chunk c - 1 any more, which is where chunk c + 2 goes, nor the operands
     B   the operands of chunk c are stored

   Powers of two. s_scale[r] makes S's row small enough for F16: from the sum of its magnitudes, which bounds S k too. X, U and O
   are in units of both[r], the larger of it and of v's. */

template <int WARPS> struct alignas(128) delta_stage {
    enum { VALUES = 16 * WARPS, PARTS = DELTA_DIM / VALUES, HALF = 32 * WARPS, THREADS = 2 * HALF, PIECES = VALUES / 8 };
    delta_keys keys;
    uint4 v[DELTA_CHUNK][PIECES];                           /* piece c of row r at [r][gpu_delta_swizzle<PIECES>(r, c)] */
    delta_head head;
};

template <int WARPS> struct delta_shared {
    delta_stage<WARPS> stage[DELTA_STAGES];
    uint4 S[WARPS][DELTA_DIM / 16][32], u[WARPS][2][32];    /* operands, from a warp of S to its warp of o, by lane */
    float2 s_scale[WARPS][32];
};

static_assert(sizeof(delta_shared<4>) <= GPU_SHARED && sizeof(delta_head) % 32 == 0, "a block's shared memory");

/* Where piece c of row r is in a row of PIECES, so that eight rows' pieces c lie in different banks. */
template <int PIECES> __device__ __forceinline__ int gpu_delta_swizzle(int r, int c) {
    return c ^ r * PIECES / 8 % PIECES;
}

/* The work of a block of scan: part of value head h. */
struct gpu_delta_part {
    int h, key_head, element;    /* element: the first of v */
    int warp, lane;              /* 0..WARPS-1 among those of S, likewise among those of o */
};

/* Starts copying chunk c, if there is one, and closes the group in any case: one a chunk. */
template <int WARPS>
__device__ __forceinline__ void gpu_delta_fetch(const delta_slice *s, const gpu_delta_part *part, int c,
                                                delta_stage<WARPS> *stage) {
    typedef delta_stage<WARPS> type;
    enum { KEYS = sizeof(delta_keys) / 16, HEAD = sizeof(delta_head) / 16, AT_ONCE = type::HALF,
           ROWS = AT_ONCE / type::PIECES };
    const deltanet_shape *shape = &s->p.shape;
    if (c < s->end) {
        const delta_rows rows = gpu_delta_rows_of(&s->p, c);
        const int thread = part->warp * 32 + part->lane, row = thread / type::PIECES, piece = thread % type::PIECES;
        const uint4 *keys = (const uint4 *)(s->p.keys + (size_t)(c - s->first) * shape->key_heads + part->key_head) + thread;
        const uint4 *head = (const uint4 *)(s->p.heads + (size_t)(c - s->first) * shape->value_heads + part->h) + thread;
        const size_t at = (size_t)(rows.row + row) * shape->value_heads + part->h;
        const float *v = s->p.o + at * DELTA_DIM + part->element + piece / 4 * DELTA_VALUES + piece % 4 * 4;
        const uint32_t to = shared_address(stage) + 16 * thread;
        const uint32_t to_v = shared_address(&stage->v[row][gpu_delta_swizzle<type::PIECES>(row, piece)]);
#pragma unroll
        for (int i = 0; i < KEYS; i += AT_ONCE) cp_async16(to + 16 * i, keys + i, true);
#pragma unroll
        for (int i = 0; i < DELTA_CHUNK; i += ROWS) {
            bool there = row + i < rows.n;
            cp_async16(to_v + 16 * i * type::PIECES,
                           there ? v + (size_t)i * shape->value_heads * DELTA_DIM : s->p.o, there);
        }
#pragma unroll
        for (int i = 0; i < HEAD; i += AT_ONCE)
            if (i + AT_ONCE <= HEAD || thread < HEAD % AT_ONCE)
                cp_async16(to + (uint32_t)offsetof(type, head) + 16 * i, head + i, true);
    }
    cp_async_commit();
}

/* Operand a of k = 16 n .. 16 n + 15 from accumulators 2n and 2n + 1. */
__device__ __forceinline__ void gpu_delta_operand(uint32_t *a, const float *low, const float *high) {
    a[0] = f16_pair(low[0], low[1]);
    a[1] = f16_pair(low[2], low[3]);
    a[2] = f16_pair(high[0], high[1]);
    a[3] = f16_pair(high[2], high[3]);
}

/* to[16][32 tokens] += a[16][16] rows^T, step `step` of eight; rows: K or Q in shared memory. */
__device__ __forceinline__ void gpu_delta_times_rows(float (*to)[4], const uint32_t *a, const uint4 (*rows)[DELTA_PIECES],
                                                     int step) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = shared_address(rows[lane / 16 * 8 + lane % 8]), piece = lane / 8 % 2 ^ lane % 8;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        uint32_t b[4];
        load_matrices<false>(b, at + pair * 16 * 16 * DELTA_PIECES + 16 * (2 * step ^ piece));
        mma_m16n8k16<true>(to[2 * pair], a, b[0], b[1]);
        mma_m16n8k16<true>(to[2 * pair + 1], a, b[2], b[3]);
    }
}

/* to[16][32 tokens] += a[16][32] (T~ or P)^T, which is 0 above the diagonal. */
__device__ __forceinline__ void gpu_delta_times_lower(float (*to)[4], const uint32_t (*a)[4], const uint32_t (*b)[32][4]) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint4 of = *(const uint4 *)b[n][threadIdx.x % 32];
        mma_m16n8k16<true>(to[n], a[0], of.x, of.y);
        if (n >= 2) mma_m16n8k16<true>(to[n], a[1], of.z, of.w);
    }
}

/* S[16][128] += a[16][32 tokens] K. */
__device__ __forceinline__ void gpu_delta_write(float (*S)[4], const uint32_t (*a)[4], const uint4 (*k)[DELTA_PIECES]) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = shared_address(k[lane % 16]), piece = lane / 16 ^ lane % 8;
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int pair = 0; pair < DELTA_DIM / 16; pair++) {
            uint32_t b[4];
            load_matrices<true>(b, at + step * 16 * 16 * DELTA_PIECES + 16 * (2 * pair ^ piece));
            mma_m16n8k16<true>(S[2 * pair], a[step], b[0], b[1]);
            mma_m16n8k16<true>(S[2 * pair + 1], a[step], b[2], b[3]);
        }
}

/* s_scale[r] of the lane's two rows of S = acc both: from acc, so that S need not wait for the shuffles nor they for S. */
__device__ __forceinline__ void gpu_delta_state_scales(const float (*acc)[4], const float *both, float *s_scale) {
    float sum[2][2] = {};
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e / 2][n % 2] += fabsf(acc[n][e]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float all = sum[r][0] + sum[r][1];
        all += __shfl_xor_sync(~0u, all, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        s_scale[r] = gpu_delta_scale(all * both[r]);
    }
}

/* X = V - e^{G} S K, in place of S K, as operand a. */
template <int WARPS>
__device__ __forceinline__ void gpu_delta_correct(uint32_t (*a)[4], float (*x)[4], const float (*factor)[4], const float *both,
                                                  const delta_stage<WARPS> *stage, int warp) {
    enum { PIECES = delta_stage<WARPS>::PIECES };
    const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, piece = warp * 2 + lane / 8 % 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {                  /* rows 16 half .. 16 half + 15: two accumulators */
        uint32_t v[4];
        load_matrices<true>(v, shared_address(&stage->v[16 * half + row][gpu_delta_swizzle<PIECES>(row, piece)]));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int n = 2 * half + i / 2, c = i % 2 * 2;
            float2 of = f16_floats(v[i]);
            float scale = stage->head.v_scale[8 * n / DELTA_GROUP] * gpu_delta_reciprocal(both[i % 2]);
            x[n][c] = fmaf(-factor[n][c], x[n][c], of.x * scale);
            x[n][c + 1] = fmaf(-factor[n][c + 1], x[n][c + 1], of.y * scale);
        }
        gpu_delta_operand(a[half], x[2 * half], x[2 * half + 1]);
    }
}

/* Stores o: lanes of one i hold eight neighbours of a token's row, a sector. */
__device__ __forceinline__ void gpu_delta_store(const delta_slice *s, const gpu_delta_part *part, int c, const float (*o)[4],
                                                const float *both) {
    const delta_rows rows = gpu_delta_rows_of(&s->p, c);
    const int lane = part->lane, first = lane % 4 * 2, row = s->p.shape.value_heads * DELTA_DIM;
    const int element = part->h * DELTA_DIM + part->element + part->warp * 16 + lane / 4;
    float *to = s->p.o + (size_t)(rows.row + first) * row + element;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float low = o[n][e] * both[0], high = o[n][e + 2] * both[1], *at = to + (size_t)((8 * n + e) * row);
            if (first + 8 * n + e < rows.n) at[0] = low, at[8] = high;
        }
}

/* S K^T; and S, divided by its scale, as operand a for this warp and for its warp of o. */
template <int WARPS>
__device__ __forceinline__ void gpu_delta_state_times_k(float (*sk)[4], const float (*S)[4], const float *s_scale,
                                                        delta_shared<WARPS> *shared, const delta_stage<WARPS> *stage,
                                                        const gpu_delta_part *part) {
    float odd[4][4] = {};                                   /* two sums of four steps: half as many mma wait for each other */
    const float f[2] = {gpu_delta_reciprocal(s_scale[0]), gpu_delta_reciprocal(s_scale[1])};
    shared->s_scale[part->warp][part->lane] = make_float2(s_scale[0], s_scale[1]);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sk[n][e] = 0;
#pragma unroll
    for (int step = 0; step < DELTA_DIM / 16; step++) {
        uint32_t a[4];
        float low[4], high[4];
#pragma unroll
        for (int e = 0; e < 4; e++) low[e] = S[2 * step][e] * f[e / 2], high[e] = S[2 * step + 1][e] * f[e / 2];
        gpu_delta_operand(a, low, high);
        shared->S[part->warp][step][part->lane] = make_uint4(a[0], a[1], a[2], a[3]);
        gpu_delta_times_rows(step % 2 ? odd : sk, a, stage->keys.k, step);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sk[n][e] += odd[n][e];
}

/* both: the scale of X, U and O; and factor[n][e]: what makes accumulators of products with S / s_scale those of e^{G} S / both. */
__device__ __forceinline__ void gpu_delta_factors(const delta_head *head, const float *s_scale, float *both, float (*factor)[4]) {
    float ratio[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        both[r] = s_scale[r];
#pragma unroll
        for (int group = 0; group < DELTA_GROUPS; group++) both[r] = fmaxf(both[r], head->v_scale[group]);
        ratio[r] = s_scale[r] * gpu_delta_reciprocal(both[r]);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) factor[n][e] = head->decay[8 * n + threadIdx.x % 4 * 2 + e % 2] * ratio[e / 2];
}

/* State of a lane of S between the barriers of a chunk: U without its scale, which is both, and e^{G_end - G} of its tokens. */
struct gpu_delta_between {
    float u[4][4], rest[4][2], both[2];
};

/* Warps of S, one chunk, from barrier A to barrier B: U, and S decayed to the chunk's end, in units of both. */
template <int WARPS>
__device__ __forceinline__ void gpu_delta_update(gpu_delta_between *at, const gpu_delta_part *part, delta_shared<WARPS> *shared,
                                                 const delta_stage<WARPS> *stage, float (*S)[4], const float *s_scale) {
    uint32_t x[2][4];
    float factor[4][4], sk[4][4];
    gpu_delta_factors(&stage->head, s_scale, at->both, factor);
    gpu_delta_state_times_k(sk, S, s_scale, shared, stage, part);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            at->rest[n][e % 2] = stage->head.rest[8 * n + threadIdx.x % 4 * 2 + e % 2];
            at->u[n][e] = 0;
        }
    gpu_delta_correct(x, sk, factor, at->both, stage, part->warp);
    gpu_delta_times_lower(at->u, x, stage->head.inverse);
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)                 /* while U is on its way */
#pragma unroll
        for (int e = 0; e < 4; e++) S[n][e] *= stage->head.decay[DELTA_CHUNK - 1] * gpu_delta_reciprocal(at->both[e / 2]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        gpu_delta_operand(x[half], at->u[2 * half], at->u[2 * half + 1]);
        shared->u[part->warp][half][part->lane] = make_uint4(x[half][0], x[half][1], x[half][2], x[half][3]);
    }
}

/* From barrier B on: S and its scale after the chunk. */
template <int WARPS>
__device__ __forceinline__ void gpu_delta_next_state(gpu_delta_between *at, const delta_stage<WARPS> *stage, float (*S)[4],
                                                     float *s_scale) {
    uint32_t x[2][4];
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) at->u[n][e] *= at->rest[n][e % 2];
    gpu_delta_operand(x[0], at->u[0], at->u[1]);
    gpu_delta_operand(x[1], at->u[2], at->u[3]);
    gpu_delta_write(S, x, stage->keys.k);
    gpu_delta_state_scales(S, at->both, s_scale);
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) S[n][e] *= at->both[e / 2];
}

/* This lane's part of S, and where it is in memory: S[n][2 low], S[n][2 low + 1] at at[(8 low DELTA_DIM + 8 n) / 2]. */
__device__ __forceinline__ float2 *gpu_delta_state_at(const delta_slice *s, const gpu_delta_part *part) {
    const size_t row = (size_t)part->h * DELTA_DIM + part->element + part->warp * 16 + part->lane / 4;
    return (float2 *)(s->p.S + row * DELTA_DIM) + part->lane % 4;
}

__device__ __forceinline__ void gpu_delta_load_state(const float2 *at, float (*S)[4], float *s_scale) {
    const float one[2] = {1, 1};
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int low = 0; low < 2; low++) *(float2 *)&S[n][2 * low] = at[(8 * low * DELTA_DIM + 8 * n) / 2];
    gpu_delta_state_scales(S, one, s_scale);
}

__device__ __forceinline__ void gpu_delta_store_state(float2 *at, const float (*S)[4]) {
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int low = 0; low < 2; low++) at[(8 * low * DELTA_DIM + 8 * n) / 2] = *(const float2 *)&S[n][2 * low];
}

/* Warps of o, one chunk, from barrier B on. */
template <int WARPS>
__device__ __forceinline__ void gpu_delta_output(const delta_slice *s, const gpu_delta_part *part, int c,
                                                 const delta_shared<WARPS> *shared, const delta_stage<WARPS> *stage) {
    uint32_t a[4], x[2][4];
    float both[2], factor[4][4], o[4][4] = {};
    const float2 pair = shared->s_scale[part->warp][part->lane];
    const float s_scale[2] = {pair.x, pair.y};
#pragma unroll
    for (int step = 0; step < DELTA_DIM / 16; step++) {
        *(uint4 *)a = shared->S[part->warp][step][part->lane];
        gpu_delta_times_rows(o, a, stage->keys.q, step);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) *(uint4 *)x[half] = shared->u[part->warp][half][part->lane];
    gpu_delta_factors(&stage->head, s_scale, both, factor);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= factor[n][e];
    gpu_delta_times_lower(o, x, stage->head.scores);
    gpu_delta_store(s, part, c, o, both);
}

/* window = the last three raw rows up to the call's last. prep, which reads the old ones, is complete. */
__device__ __forceinline__ void gpu_delta_window(const delta_prefill *p, int thread, int threads) {
    const int channels = gpu_channels(&p->shape), keep = DELTA_TAPS - 1;
    for (int c = thread; c < channels; c += threads) {
        float x[keep];
#pragma unroll
        for (int i = 0; i < keep; i++) {
            int row = p->T - keep + i;
            x[i] = row < 0 ? p->window[(size_t)(row + keep) * channels + c] : p->raw[(size_t)row * channels + c];
        }
#pragma unroll
        for (int i = 0; i < keep; i++) p->window[(size_t)i * channels + c] = x[i];
    }
}

template <int WARPS> __global__ void __launch_bounds__(64 * WARPS, 1) gpu_delta_scan(const __grid_constant__ delta_slice s) {
    typedef delta_stage<WARPS> type;
    extern __shared__ char delta_memory[];
    delta_shared<WARPS> *shared = (delta_shared<WARPS> *)delta_memory;
    gpu_delta_part part;
    part.h = blockIdx.x / type::PARTS;
    part.key_head = part.h / (s.p.shape.value_heads / s.p.shape.key_heads);
    part.element = blockIdx.x % type::PARTS * type::VALUES;
    part.warp = threadIdx.x / 32 % WARPS;
    part.lane = threadIdx.x % 32;
    const bool of_S = threadIdx.x < type::HALF;
    float S[DELTA_DIM / 8][4], s_scale[2];
    if (of_S) gpu_delta_load_state(gpu_delta_state_at(&s, &part), S, s_scale);
    for (int i = 0; !of_S && i < DELTA_STAGES - 1; i++) gpu_delta_fetch<WARPS>(&s, &part, s.first + i, &shared->stage[i]);
    if (!of_S && s.last) gpu_delta_window(&s.p, blockIdx.x * type::HALF + threadIdx.x % type::HALF, gridDim.x * type::HALF);
    int now = 0, next = DELTA_STAGES - 1;
#pragma unroll 1
    for (int c = s.first; c < s.end; c++) {
        if (!of_S) cp_async_wait<DELTA_STAGES - 2>();
        __syncthreads();                                    /* A */
        gpu_delta_between at;
        if (of_S) gpu_delta_update(&at, &part, shared, &shared->stage[now], S, s_scale);
        else gpu_delta_fetch(&s, &part, c + DELTA_STAGES - 1, &shared->stage[next]);
        __syncthreads();                                    /* B */
        if (of_S) gpu_delta_next_state(&at, &shared->stage[now], S, s_scale);
        else gpu_delta_output(&s, &part, c, shared, &shared->stage[now]);
        next = now;
        now = now + 1 == DELTA_STAGES ? 0 : now + 1;
    }
    if (of_S) gpu_delta_store_state(gpu_delta_state_at(&s, &part), S);
}

/* ---- on the host ---------------------------------------------------------------------------------------------------- */

/* Whether these kernels are for it. */
static int delta_prefill_fits(const deltanet_shape *s) {
    return s->key_dim == DELTA_DIM && s->value_dim == DELTA_DIM && s->taps == DELTA_TAPS && s->key_heads > 0 &&
           s->value_heads > 0 && s->value_heads % s->key_heads == 0 && s->value_heads / s->key_heads <= DELTA_RATIO;
}

/* Most chunks of a slice of a call with T rows, wherever it begins. */
static size_t delta_slice_chunks(int T) {
    int chunks = delta_chunks(T, DELTA_CHUNK - 1);
    return (size_t)(chunks < DELTA_SLICE / DELTA_CHUNK ? chunks : DELTA_SLICE / DELTA_CHUNK);
}

static size_t delta_keys_bytes(const deltanet_shape *s, int T) {
    return (delta_slice_chunks(T) * (size_t)s->key_heads * sizeof(delta_keys) + 255) / 256 * 256;
}

/* Bytes of scratch for up to T rows. */
static size_t delta_prefill_scratch(const deltanet_shape *s, int T) {
    return delta_keys_bytes(s, T) + (delta_slice_chunks(T) * (size_t)s->value_heads * sizeof(delta_head) + 255) / 256 * 256;
}

/* Points p into the scratch, which begins on a 256-byte boundary and was asked for with p->T rows or more. */
static void delta_prefill_place(delta_prefill *p, void *scratch) {
    p->keys = (delta_keys *)scratch;
    p->heads = (delta_head *)((char *)scratch + delta_keys_bytes(&p->shape, p->T));
}

template <int WARPS> static cudaError_t delta_scan_launch(const delta_slice *s, cudaStream_t stream) {
    const unsigned blocks = (unsigned)s->p.shape.value_heads * delta_stage<WARPS>::PARTS;
    cudaError_t e = cudaFuncSetAttribute(gpu_delta_scan<WARPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    if (e != cudaSuccess) return e;
    gpu_delta_scan<WARPS><<<blocks, delta_stage<WARPS>::THREADS, sizeof(delta_shared<WARPS>), stream>>>(*s);
    return cudaGetLastError();
}

/* Launches p on the stream: S, window and o, of p->T rows. Nothing that depends on the device changes a bit. */
static cudaError_t delta_prefill_run(const delta_prefill *p, cudaStream_t stream) {
    const int chunks = delta_chunks(p->T, p->position);
    int device = 0, sms = 0, l2 = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device);
    const int most = (l2 < DELTA_SMALL_L2 ? DELTA_SHORT_SLICE : DELTA_SLICE) / DELTA_CHUNK;
    delta_slice s;
    s.p = *p;
    for (s.first = 0; s.first < chunks && e == cudaSuccess; s.first = s.end) {
        s.end = chunks - s.first < most ? chunks : s.first + most;
        s.last = s.end == chunks;
        gpu_delta_prep<<<dim3((unsigned)p->shape.key_heads, (unsigned)(s.end - s.first)), DELTA_PREP_THREADS, 0, stream>>>(s);
        e = cudaGetLastError();
        if (e != cudaSuccess) break;
        if (p->shape.value_heads * delta_stage<2>::PARTS <= sms) e = delta_scan_launch<2>(&s, stream);
        else e = delta_scan_launch<4>(&s, stream);
    }
    return e;
}
