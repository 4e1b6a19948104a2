/* layers/mamba/prefill_scan.cu: the second kernel of a Mamba-2 layer's rule for many token rows (prefill.cu): S from chunk to chunk, and y.

   Grid: (heads, parts of 32 rows of S) blocks of four warps. Two of them keep S, the other two make y, in the way of the delta rule's scan
   (layers/deltanet/prefill_scan.cu), whose fragments and products these are: a warp has 16 rows of S, all 128 columns, in registers as mma
   accumulators, and all products are transposed, rows of S first: S C^T, X^T P^T and S + X^T B are 16 rows of S x 32 tokens or 128 columns.

   What a chunk does to S does not depend on S, so the chain from chunk to chunk is a multiplication and an addition; what takes time are the
   products, 32 mma a chunk and warp for S and 38 for y. The warps of S are a chunk ahead: while those of y read S as operand, as it was before
   chunk c, from one half of shared memory, they write what it is before chunk c + 1 to the other.

   Shared memory, in the order of the one barrier a chunk has: before it chunk c has arrived and the operands of S before it are stored; after it
   nobody reads the stage of chunk c - 1 any more, which is where chunk c + 2 goes, nor the operands of chunk c - 1, where those of c + 1 go. */

enum { MAMBA_WARPS = 2, MAMBA_PART = 16 * MAMBA_WARPS, MAMBA_HALF = 32 * MAMBA_WARPS, MAMBA_X_PIECES = MAMBA_PART / 8 };

struct alignas(128) mamba_stage {
    delta_keys keys;
    uint4 x[DELTA_CHUNK][MAMBA_X_PIECES];                   /* piece c of row r at [r][gpu_delta_swizzle<MAMBA_X_PIECES>(r, c)] */
    mamba_head head;
};

struct mamba_shared {
    mamba_stage stage[DELTA_STAGES];
    uint4 S[2][MAMBA_WARPS][DELTA_DIM / 16][32];            /* operands, from a warp of S to its warp of y, by lane */
    float2 S_scale[2][MAMBA_WARPS][32];
};

static_assert(sizeof(mamba_shared) <= GPU_SHARED && sizeof(mamba_head) % 16 == 0 && (int)MAMBA_PART == (int)DELTA_VALUES, "a block's shared memory");

/* The work of a warp of scan. */
struct mamba_part {
    int h, group, element;       /* element: of the head, the first of the block */
    int warp, lane;              /* 0..MAMBA_WARPS-1 among those of S, likewise among those of y */
};

/* Starts copying chunk c, if there is one, and closes the group in any case: one a chunk. By the warps of y. */
__device__ __forceinline__ void mamba_fetch(const mamba_slice &s, const mamba_part &part, int c, mamba_stage *stage) {
    enum { KEYS = sizeof(delta_keys) / 16, HEAD = sizeof(mamba_head) / 16, ROWS = MAMBA_HALF / MAMBA_X_PIECES };
    const mamba_shape &shape = s.p.shape;
    if (c < s.end) {
        const delta_rows rows = mamba_rows_of_chunk(s.p, c);
        const int thread = part.warp * 32 + part.lane, row = thread / MAMBA_X_PIECES, piece = thread % MAMBA_X_PIECES;
        const uint4 *keys = (const uint4 *)(s.p.keys + (size_t)(c - s.first) * shape.groups + part.group) + thread;
        const uint4 *head = (const uint4 *)(s.p.heads + (size_t)(c - s.first) * shape.heads + part.h) + thread;
        const float *x = s.p.y + ((size_t)(rows.row + row) * shape.heads + part.h) * shape.head_dim + part.element + piece * 4;
        const bool has_piece = part.element + 8 * piece < shape.head_dim;
        const uint32_t to = shared_address(stage) + 16 * thread;
        const uint32_t to_x = shared_address(&stage->x[row][gpu_delta_swizzle<MAMBA_X_PIECES>(row, piece)]);
#pragma unroll
        for (int i = 0; i < KEYS; i += MAMBA_HALF) cp_async16(to + 16 * i, keys + i, true);
#pragma unroll
        for (int i = 0; i < DELTA_CHUNK; i += ROWS) {
            const bool there = has_piece && row + i < rows.n;
            cp_async16(to_x + 16 * i * MAMBA_X_PIECES, there ? x + (size_t)i * shape.heads * shape.head_dim : s.p.y, there);
        }
#pragma unroll
        for (int i = 0; i < HEAD; i += MAMBA_HALF)
            if (i + MAMBA_HALF <= HEAD || thread < HEAD % MAMBA_HALF) cp_async16(to + (uint32_t)offsetof(mamba_stage, head) + 16 * i, head + i, true);
    }
    cp_async_commit();
}

/* X^T as operand a of the 16 rows of a warp and tokens 16 half .. 16 half + 15. */
__device__ __forceinline__ void mamba_load_x(uint32_t *a, const mamba_stage *stage, int warp, int half) {
    const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, piece = warp * 2 + lane / 8 % 2;
    load_matrices<true>(a, shared_address(&stage->x[16 * half + row][gpu_delta_swizzle<MAMBA_X_PIECES>(row, piece)]));
}

/* Columns 8 n + 2 i and the next of row g, then of row g + 8, of the warp's 16 rows of S, for lane 4 g + i; zeros where there are none. */
__device__ __forceinline__ void mamba_load_state(const mamba_slice &s, const mamba_part &part, float (*S)[4]) {
    const mamba_shape &shape = s.p.shape;
#pragma unroll
    for (int low = 0; low < 2; low++) {
        const int row = part.element + part.warp * 16 + part.lane / 4 + 8 * low, first = part.lane % 4 * 2;
        const float *from = s.p.S + ((size_t)part.h * shape.head_dim + row) * shape.state_dim + first;
#pragma unroll
        for (int n = 0; n < DELTA_DIM / 8; n++)
            *(float2 *)&S[n][2 * low] = row < shape.head_dim && 8 * n + first < shape.state_dim ? *(const float2 *)(from + 8 * n) : make_float2(0, 0);
    }
}

__device__ __forceinline__ void mamba_store_state(const mamba_slice &s, const mamba_part &part, const float (*S)[4]) {
    const mamba_shape &shape = s.p.shape;
#pragma unroll
    for (int low = 0; low < 2; low++) {
        const int row = part.element + part.warp * 16 + part.lane / 4 + 8 * low, first = part.lane % 4 * 2;
        float *to = s.p.S + ((size_t)part.h * shape.head_dim + row) * shape.state_dim + first;
#pragma unroll
        for (int n = 0; n < DELTA_DIM / 8; n++)
            if (row < shape.head_dim && 8 * n + first < shape.state_dim) *(float2 *)(to + 8 * n) = *(const float2 *)&S[n][2 * low];
    }
}

/* S, divided by a power of two for each row, as operand a for the warp of y. */
__device__ __forceinline__ void mamba_give_state(mamba_shared *shared, int buffer, const mamba_part &part, const float (*S)[4]) {
    const float one[2] = {1, 1};
    float scale[2];
    gpu_delta_state_scales(S, one, scale);
    const float f[2] = {gpu_delta_reciprocal(scale[0]), gpu_delta_reciprocal(scale[1])};
    shared->S_scale[buffer][part.warp][part.lane] = make_float2(scale[0], scale[1]);
#pragma unroll
    for (int step = 0; step < DELTA_DIM / 16; step++) {
        uint32_t a[4];
        float low[4], high[4];
#pragma unroll
        for (int e = 0; e < 4; e++) low[e] = S[2 * step][e] * f[e / 2], high[e] = S[2 * step + 1][e] * f[e / 2];
        gpu_delta_operand(a, low, high);
        shared->S[buffer][part.warp][step][part.lane] = make_uint4(a[0], a[1], a[2], a[3]);
    }
}

/* Warps of S: S after a chunk. */
__device__ __forceinline__ void mamba_next_state(const mamba_part &part, const mamba_stage *stage, float (*S)[4]) {
    const mamba_head &head = stage->head;
    float added[DELTA_DIM / 8][4] = {};
    uint32_t a[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        mamba_load_x(a[half], stage, part.warp, half);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int token = 16 * half + i / 2 * 8 + part.lane % 4 * 2;
            const float2 x = f16_floats(a[half][i]);
            a[half][i] = f16_pair(x.x * head.write[token], x.y * head.write[token + 1]);
        }
    }
    gpu_delta_write(added, a, stage->keys.k);
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) S[n][e] = fmaf(added[n][e], head.unit, S[n][e] * head.decay);
}

/* Warps of y: the rows of a chunk. Lanes of one i hold eight neighbours of a token's row, a sector. */
__device__ __forceinline__ void mamba_output(const mamba_slice &s, const mamba_part &part, int c, const mamba_shared *shared, int buffer,
                                             const mamba_stage *stage) {
    const mamba_shape &shape = s.p.shape;
    const delta_rows rows = mamba_rows_of_chunk(s.p, c);
    const float2 scale = shared->S_scale[buffer][part.warp][part.lane];
    float before[4][4] = {}, within[4][4] = {};
    uint32_t x[2][4], a[4];
#pragma unroll
    for (int half = 0; half < 2; half++) mamba_load_x(x[half], stage, part.warp, half);
#pragma unroll
    for (int step = 0; step < DELTA_DIM / 16; step++) {
        *(uint4 *)a = shared->S[buffer][part.warp][step][part.lane];
        gpu_delta_times_rows(before, a, stage->keys.q, step);
    }
    gpu_delta_times_lower(within, x, stage->head.scores);
    const int first = part.lane % 4 * 2, element = part.element + part.warp * 16 + part.lane / 4;
    float *to = s.p.y + ((size_t)(rows.row + first) * shape.heads + part.h) * shape.head_dim + element;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float entry = stage->head.entry[8 * n + first + e], out = stage->head.out[8 * n + first + e];
            float *at = to + (size_t)(8 * n + e) * shape.heads * shape.head_dim;
            const bool there = first + 8 * n + e < rows.n;
            if (there && element < shape.head_dim) at[0] = fmaf(within[n][e], out, before[n][e] * scale.x * entry);
            if (there && element + 8 < shape.head_dim) at[8] = fmaf(within[n][e + 2], out, before[n][e + 2] * scale.y * entry);
        }
}

static __global__ void __launch_bounds__(2 * MAMBA_HALF, 1) mamba_scan(const __grid_constant__ mamba_slice s) {
    extern __shared__ char mamba_scan_memory[];
    mamba_shared *shared = (mamba_shared *)mamba_scan_memory;
    mamba_part part;
    part.h = blockIdx.x;
    part.group = part.h / (s.p.shape.heads / s.p.shape.groups);
    part.element = blockIdx.y * MAMBA_PART;
    part.warp = threadIdx.x / 32 % MAMBA_WARPS;
    part.lane = threadIdx.x % 32;
    const bool of_S = threadIdx.x < MAMBA_HALF;
    float S[DELTA_DIM / 8][4];
    if (of_S) {
        mamba_load_state(s, part, S);
        mamba_give_state(shared, 0, part, S);
    }
    for (int i = 0; !of_S && i < DELTA_STAGES - 1; i++) mamba_fetch(s, part, s.first + i, &shared->stage[i]);
    int now = 0, next = DELTA_STAGES - 1, buffer = 0;
#pragma unroll 1
    for (int c = s.first; c < s.end; c++) {
        if (!of_S) cp_async_wait<DELTA_STAGES - 2>();
        __syncthreads();
        if (of_S) {
            mamba_next_state(part, &shared->stage[now], S);
            mamba_give_state(shared, buffer ^ 1, part, S);
        } else {
            mamba_fetch(s, part, c + DELTA_STAGES - 1, &shared->stage[next]);
            mamba_output(s, part, c, shared, buffer, &shared->stage[now]);
        }
        buffer ^= 1;
        next = now;
        now = now + 1 == DELTA_STAGES ? 0 : now + 1;
    }
    if (of_S) mamba_store_state(s, part, S);
}

/* ---- on the host ---------------------------------------------------------------------------------------------------- */

/* Whether these kernels are for it. */
static int mamba_prefill_fits(const mamba_shape *s) {
    return s->taps == DELTA_TAPS && s->state_dim <= DELTA_DIM && s->state_dim % 4 == 0 && s->head_dim <= DELTA_DIM && s->head_dim % 4 == 0;
}

/* Launches p on the stream: S and y of p->T rows. Nothing that depends on the device changes a bit. */
static cudaError_t mamba_prefill_rule(const mamba_prefill *p, cudaStream_t stream) {
    const int chunks = delta_chunks(p->T, p->position);
    const dim3 parts((unsigned)p->shape.heads, (unsigned)(p->shape.head_dim - 1) / MAMBA_PART + 1);
    int device = 0, l2 = 0;
    cudaError_t e = cudaFuncSetAttribute(mamba_scan, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    if (e == cudaSuccess) e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device);
    const int most = (l2 < DELTA_SMALL_L2 ? DELTA_SHORT_SLICE : DELTA_SLICE) / DELTA_CHUNK;
    mamba_slice s;
    s.p = *p;
    for (s.first = 0; s.first < chunks && e == cudaSuccess; s.first = s.end) {
        s.end = min_int(chunks, s.first + most);
        mamba_prep<<<dim3((unsigned)p->shape.groups, (unsigned)(s.end - s.first)), DELTA_PREP_THREADS, 0, stream>>>(s);
        mamba_scan<<<parts, 2 * MAMBA_HALF, sizeof(mamba_shared), stream>>>(s);
        e = cudaGetLastError();
    }
    return e;
}
