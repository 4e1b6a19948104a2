/* layers/attention_prefill.cu: attention of a super-chunk of a prompt: up to 8,192 token rows at once. DRAFT HEADER */

typedef struct attention_prefill {
    attention_shape shape;
    int T, position;             /* rows of this super-chunk; absolute position of row 0 */
    const float *qg;             /* [T][heads][2][head_dim] q | gate as projected; unused with kv_only */
    const float *k_new, *v_new;  /* [T][kv_heads][head_dim] as projected */
    const float *q_norm, *k_norm, *frequencies;              /* [head_dim], [head_dim], [rotary_dim / 2] */
    dtype kv;                    /* BF16 or FP8 */
    void *k, *v;                 /* KV cache [context][kv_heads][head_dim] */
    void *q;                     /* scratch [T][heads][head_dim]: queries as they are multiplied: attend_query_pair */
    void *out;                   /* [T][heads * head_dim] F16: gated output, in units of out_unit */
    float *out_unit;             /* [T][heads * head_dim / 64] powers of two */
    int kv_only;                 /* only append k and v */
} attention_prefill;

enum {
    ATTEND_TILE_KEYS = 32,       /* positions of a tile of keys or values: a lane addresses one row for ldmatrix */
    ATTEND_TILE_ROWS = 16        /* query positions of a warp */
};

/* ---- norms, rotation, append --------------------------------------------------------------------------------------- */

/* Rotates the first rotary_dim elements of a head by cs (cos, then sin): i with i + rotary_dim / 2. `exchange` has room for
   a head: partners are on other lanes, which ones depends on rotary_dim. */
__device__ __forceinline__ void attend_rotate(attend_vector *v, int rotary_dim, const float *cs, float *exchange) {
    const int lane = threadIdx.x % 32, half = rotary_dim / 2;
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 64; j++) ((float2 *)exchange)[lane + 32 * j] = v->x[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 64; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int i = 2 * lane + 64 * j + e;
            float *x = e ? &v->x[j].y : &v->x[j].x;
            if (i < half) *x = fmaf(*x, cs[i], -exchange[i + half] * cs[half + i]);
            else if (i < 2 * half) *x = fmaf(*x, cs[i - half], exchange[i - half] * cs[i]);
        }
    __syncwarp();
}

/* Grid: token rows. A warp prepares heads warp, warp + 8, ... of the keys, values and queries of its row. */
template <bool FP8> __global__ void __launch_bounds__(GPU_THREADS)
attend_prefill_prepare(const __grid_constant__ attention_prefill p) {
    __shared__ float cs[ATTEND_DIM], exchange[GPU_WARPS][ATTEND_DIM];
    const int t = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kv_heads = p.shape.kv_heads, half = p.shape.rotary_dim / 2, at = p.position + t;
    const int count = 2 * kv_heads + (p.kv_only ? 0 : p.shape.heads);
    if (threadIdx.x < half) {                                /* as attend_angle */
        double turn = (double)((float)at * p.frequencies[threadIdx.x]) * 0.31830988618379067154;
        float rest = (float)(turn - 2 * rint(turn / 2));
        cs[threadIdx.x] = cospif(rest);
        cs[half + threadIdx.x] = sinpif(rest);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = warp; i < count; i += GPU_WARPS) {
        const bool is_q = i >= 2 * kv_heads, is_v = !is_q && i >= kv_heads;
        const int head = is_q ? i - 2 * kv_heads : is_v ? i - kv_heads : i;
        const size_t kv_at = ((size_t)t * kv_heads + head) * ATTEND_DIM, q_at = (size_t)t * p.shape.heads + head;
        attend_vector v, norm;
        attend_load_vector(&v, is_q ? p.qg + q_at * 2 * ATTEND_DIM : (is_v ? p.v_new : p.k_new) + kv_at);
        if (!is_v) {
            attend_load_vector(&norm, is_q ? p.q_norm : p.k_norm);
            const float factor = rsqrtf(fmaf(warp_sum(attend_squares(&v)), 1.0f / ATTEND_DIM, p.shape.eps));
#pragma unroll
            for (int j = 0; j < ATTEND_DIM / 64; j++) {
                v.x[j].x = v.x[j].x * factor * (1.0f + norm.x[j].x);
                v.x[j].y = v.x[j].y * factor * (1.0f + norm.x[j].y);
            }
            attend_rotate(&v, p.shape.rotary_dim, cs, exchange[warp]);
        }
#pragma unroll
        for (int j = 0; j < ATTEND_DIM / 64; j++) {
            if (is_q) {
                float x = v.x[j].x * (1.44269504f / 16.0f), y = v.x[j].y * (1.44269504f / 16.0f);
                ((uint32_t *)p.q)[q_at * (ATTEND_DIM / 2) + lane + 32 * j] = FP8 ? f16_pair(x, y) : bf16_pair(x, y);
            } else {
                size_t to = ((size_t)at * kv_heads + head) * (ATTEND_DIM / 2) + lane + 32 * j;
                attend_store_pair<FP8>(is_v ? p.v : p.k, to, v.x[j]);
            }
        }
    }
}

/* ---- attention -------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void attend_copy_async(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ __forceinline__ void attend_copies_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void attend_copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Four 8x8 matrices of 16-bit elements; TRANSPOSED on the way. Lane 8 m + r has the address of row r of matrix m. */
template <bool TRANSPOSED> __device__ __forceinline__ void attend_ldmatrix(uint32_t *to, uint32_t at) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
}

template <bool FP8> struct attend_tile {
    enum { ROW = ATTEND_DIM * (FP8 ? 1 : 2), VECTORS = ROW / 16, BYTES = ATTEND_TILE_KEYS * ROW };
};

/* Where this lane reads vector c of row `lane` of a tile, given the address of its vector 0. */
__device__ __forceinline__ uint32_t attend_vector_at(uint32_t row, const int c) {
    return (row ^ (c % 8 * 16)) + c / 8 * 128;
}

/* Where this lane points ldmatrix within a tile of keys, or of values, for its first four matrices; with the row's
   permutation. Computed anew for each tile: the addresses that follow from it would otherwise stay in registers. */
template <bool FP8> __device__ __forceinline__ uint32_t attend_key_lane() {
    int lane = attend_thread() % 32;
    if (FP8) return lane * attend_tile<FP8>::ROW + lane % 8 * 16;
    return (lane / 16 * 8 + lane % 8) * attend_tile<FP8>::ROW + (lane / 8 % 2 ^ lane % 8) * 16;
}

template <bool FP8> __device__ __forceinline__ uint32_t attend_value_lane() {
    int lane = attend_thread() % 32;
    return lane * attend_tile<FP8>::ROW + lane % 8 * 16;
}

/* Starts to load a tile. */
template <bool FP8, int WARPS>
__device__ __forceinline__ void attend_load_tile(uint32_t to, const char *cache, int stride, int tile, int end) {
    typedef attend_tile<FP8> size;
    const int thread = attend_thread(), row = thread / size::VECTORS, vector = thread % size::VECTORS;
    const char *from = cache + (int64_t)(tile * ATTEND_TILE_KEYS + row) * stride + vector * 16;
    const int left = end - tile * ATTEND_TILE_KEYS - row;
    to += row * size::ROW;
#pragma unroll
    for (int i = 0; i < ATTEND_TILE_KEYS; i += 32 * WARPS / size::VECTORS) {
        attend_copy_async(to + i * size::ROW + (vector ^ (row + i) % 8) * 16, from, i < left);
        from += 32 * WARPS / size::VECTORS * stride;
    }
}

/* What ldmatrix loads of a tile for a step: 16 dimensions of all its keys, or 16 dimensions of all its values. */
template <bool FP8> struct attend_fragment { uint32_t r[FP8 ? 4 : 8]; };

template <bool FP8>
__device__ __forceinline__ void attend_load_keys(attend_fragment<FP8> *to, uint32_t row, const int step) {
    attend_ldmatrix<false>(to->r, attend_vector_at(row, FP8 ? step : 2 * step));
    if (!FP8) attend_ldmatrix<false>(to->r + (FP8 ? 0 : 4), attend_vector_at(row, 2 * step) + 16 * attend_tile<FP8>::ROW);
}

template <bool FP8>
__device__ __forceinline__ void attend_load_values(attend_fragment<FP8> *to, uint32_t row, const int step) {
    attend_ldmatrix<true>(to->r, attend_vector_at(row, FP8 ? step : 2 * step));
    if (!FP8) attend_ldmatrix<true>(to->r + (FP8 ? 0 : 4), attend_vector_at(row, 2 * step + 1));
}

/* s += 16 dimensions of q . k. */
template <bool FP8>
__device__ __forceinline__ void attend_score_step(float (*s)[4], const uint32_t *q, const attend_fragment<FP8> &k) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint32_t b0 = k.r[FP8 ? n : 2 * n], b1 = k.r[FP8 ? n : 2 * n + 1];
        if (FP8) e4m3_pairs(k.r[n], &b0, &b1);
        mma_m16n8k16<FP8>(s[n], q, b0, b1);
    }
}

template <bool FP8, int QREG>
__device__ __forceinline__ void attend_query_step(uint32_t *a, const uint32_t (*q)[4], const uint4 *q_shared, const int step) {
    if (step < QREG) {
#pragma unroll
        for (int j = 0; j < 4; j++) a[j] = q[step < QREG ? step : 0][j];
    } else {
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                     : "r"((uint32_t)__cvta_generic_to_shared(q_shared + (step - QREG) * 32)));
    }
}

template <bool FP8, int QREG, int BUFFERS>
__device__ __forceinline__ void attend_tile_scores(float (*s)[4], const uint32_t (*q)[4], const uint4 *q_shared, uint32_t row) {
    attend_fragment<FP8> k[BUFFERS];
#pragma unroll
    for (int step = 0; step < BUFFERS - 1; step++) attend_load_keys<FP8>(&k[step], row, step);
#pragma unroll
    for (int step = 0; step < 16; step++) {
        uint32_t a[4];
        if (step + BUFFERS - 1 < 16) attend_load_keys<FP8>(&k[(step + BUFFERS - 1) % BUFFERS], row, step + BUFFERS - 1);
        attend_query_step<FP8, QREG>(a, q, q_shared, step);
        attend_score_step<FP8>(s, a, k[step % BUFFERS]);
    }
}

/* Positions that a row does not see get -inf. */
__device__ __forceinline__ void attend_mask(float (*s)[4], int tile, int first) {
    const int lane = attend_thread() % 32, sees = first + lane / 4 - tile * ATTEND_TILE_KEYS - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (8 * n + j % 2 > sees + j / 2 * 8) s[n][j] = -INFINITY;
}

template <bool FP8>
__device__ __forceinline__ void attend_tile_weights(float (*s)[4], float *m, float *l, float *fade, uint32_t (*w)[4]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = m[h], sum = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        fade[h] = attend_exp2(m[h] - top);
        m[h] = top;
        float base = FP8 ? top - 14 : top;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float x = attend_exp2(s[n][2 * h] - base), y = attend_exp2(s[n][2 * h + 1] - base);
            sum += x + y;
            w[n / 2][n % 2 * 2 + h] = FP8 ? f16_pair(x, y) : bf16_pair(x, y);
        }
        l[h] = fmaf(l[h], fade[h], sum);
    }
}

template <bool FP8>
__device__ __forceinline__ void attend_value_step(float (*o)[4], const float *fade, const uint32_t (*w)[4],
                                                  const attend_fragment<FP8> &v, const int step) {
    uint32_t b[2][4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        b[0][j] = v.r[j];
        b[1][j] = v.r[FP8 ? j : 4 + j];
        if (FP8) e4m3_pairs(__byte_perm(v.r[j], 0, 0x3120), &b[0][j], &b[1][j]);
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
        for (int j = 0; j < 4; j++) o[2 * step + e][j] *= fade[j / 2];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int e = 0; e < 2; e++) mma_m16n8k16<FP8>(o[2 * step + e], w[half], b[e][2 * half], b[e][2 * half + 1]);
}

template <bool FP8, int BUFFERS>
__device__ __forceinline__ void attend_tile_values(float (*o)[4], const float *fade, const uint32_t (*w)[4], uint32_t row) {
    attend_fragment<FP8> v[BUFFERS];
#pragma unroll
    for (int step = 0; step < BUFFERS - 1; step++) attend_load_values<FP8>(&v[step], row, step);
#pragma unroll
    for (int step = 0; step < 16; step++) {
        if (step + BUFFERS - 1 < 16) attend_load_values<FP8>(&v[(step + BUFFERS - 1) % BUFFERS], row, step + BUFFERS - 1);
        attend_value_step<FP8>(o, fade, w, v[step % BUFFERS], step);
    }
}

/* Loads the A fragments. */
template <bool FP8>
__device__ __forceinline__ void attend_load_query(uint32_t *a, const char *q, const size_t *rows, const bool *there, int step) {
    const int i = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int dim = 16 * step + (FP8 ? 4 * i + j / 2 * 2 : 2 * i + j / 2 * 8);
        a[j] = there[j % 2] ? *(const uint32_t *)(q + (rows[j % 2] * ATTEND_DIM + dim) * 2) : 0;
    }
}

/* Stores the output of row `h` (of g, g + 8). */
template <bool FP8>
__device__ __forceinline__ void attend_store_row(const attention_prefill *p, float (*o)[4], const int h, float l, size_t row,
                                                 bool there) {
    const int i = threadIdx.x % 4;
    const float *gates = p->qg + (row * 2 + 1) * ATTEND_DIM;
    l += __shfl_xor_sync(~0u, l, 1);
    l += __shfl_xor_sync(~0u, l, 2);
    const float inverse = 1.0f / l;
#pragma unroll
    for (int group = 0; group < 4; group++) {
        float v[16], top = 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            /* columns of v[2 n], v[2 n + 1] */
            int col = 64 * group + (FP8 ? n / 2 * 16 + 4 * i + n % 2 * 2 : 8 * n + 2 * i);
            int tile = 8 * group + (FP8 ? n / 2 * 2 : n), e = FP8 ? n % 2 : 0;
            float2 gate = there ? *(const float2 *)(gates + col) : make_float2(0, 0);
            float x = FP8 ? o[tile][2 * h + e] : o[tile][2 * h], y = FP8 ? o[tile + 1][2 * h + e] : o[tile][2 * h + 1];
            v[2 * n] = x * inverse * gpu_sigmoid(gate.x);
            v[2 * n + 1] = y * inverse * gpu_sigmoid(gate.y);
            top = fmaxf(top, fmaxf(fabsf(v[2 * n]), fabsf(v[2 * n + 1])));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        int exponent = min(268 - (__float_as_int(top) >> 23), 253);
        float factor = __int_as_float(exponent << 23);
        if (!there) continue;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            int col = 64 * group + (FP8 ? n / 2 * 16 + 4 * i + n % 2 * 2 : 8 * n + 2 * i);
            ((uint32_t *)p->out)[(row * ATTEND_DIM + col) / 2] = f16_pair(v[2 * n] * factor, v[2 * n + 1] * factor);
        }
        if (i == 0) p->out_unit[row * 4 + group] = __int_as_float((254 - exponent) << 23);
    }
}

/* What a warp has. */
typedef struct attend_seat {
    int head;
    int block_first;             /* first position of the block */
    int first, row;              /* first position of the warp, the lane's row g as a row of this call */
} attend_seat;

template <int WARPS> __device__ __forceinline__ attend_seat attend_seat_of(const attention_prefill *p, int heads_shift) {
    attend_seat s;
    const int span = (WARPS >> heads_shift) * ATTEND_TILE_ROWS, warp = attend_thread() / 32;
    s.block_first = (p->position / span + (int)(gridDim.y - 1 - blockIdx.y)) * span;
    s.first = s.block_first + (warp >> heads_shift) * ATTEND_TILE_ROWS;
    s.head = ((int)blockIdx.x << heads_shift) + (warp & ((1 << heads_shift) - 1));
    s.row = s.first + attend_thread() % 32 / 4 - p->position;
    return s;
}

template <bool FP8, int WARPS, int STAGES, int QREG> constexpr int attend_prefill_shared() {
    return 2 * STAGES * attend_tile<FP8>::BYTES + WARPS * (16 - QREG) * 512;
}

template <bool FP8, int WARPS, int STAGES, int QREG, bool PIPE, int BUFFERS>
__global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
attend_prefill(const __grid_constant__ attention_prefill p, const int heads_shift) {
    extern __shared__ __align__(16) char memory[];
    enum { TILE = attend_tile<FP8>::BYTES };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = p.shape.kv_heads * attend_tile<FP8>::ROW;
    const attend_seat seat = attend_seat_of<WARPS>(&p, heads_shift);
    const int end = p.position + p.T;
    const int span = (WARPS >> heads_shift) * ATTEND_TILE_ROWS, sees = min(seat.block_first + span, end);
    const int tiles = (sees + ATTEND_TILE_KEYS - 1) / ATTEND_TILE_KEYS;
    const int kv_head = ((int)blockIdx.x << heads_shift) / (p.shape.heads / p.shape.kv_heads);
    const char *k = (const char *)p.k + kv_head * attend_tile<FP8>::ROW;
    const char *v = (const char *)p.v + kv_head * attend_tile<FP8>::ROW;
    const uint32_t keys = (uint32_t)__cvta_generic_to_shared(memory), values = keys + STAGES * TILE;
    uint4 *q_shared = (uint4 *)(memory + 2 * STAGES * TILE) + warp * (16 - QREG) * 32 + lane;
    uint32_t q[QREG ? QREG : 1][4];
    float o[32][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    memset(o, 0, sizeof o);

    if (PIPE) {
        attend_load_tile<FP8, WARPS>(keys, k, stride, 0, end);
        attend_copies_commit();
    }
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (!PIPE && i < tiles) attend_load_tile<FP8, WARPS>(keys + i * TILE, k, stride, i, end);
        if (PIPE && i + 1 < tiles) attend_load_tile<FP8, WARPS>(keys + (i + 1) * TILE, k, stride, i + 1, end);
        if (i < tiles) attend_load_tile<FP8, WARPS>(values + i * TILE, v, stride, i, end);
        attend_copies_commit();
    }
    {
        bool there[2];
        size_t rows[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            there[h] = seat.row + 8 * h >= 0 && seat.row + 8 * h < p.T;
            rows[h] = (size_t)max(seat.row + 8 * h, 0) * p.shape.heads + seat.head;
        }
#pragma unroll
        for (int step = 0; step < 16; step++) {
            uint32_t a[4];
            attend_load_query<FP8>(a, (const char *)p.q, rows, there, step);
            if (step < QREG) memcpy(q[step < QREG ? step : 0], a, sizeof a);
            else q_shared[(step - QREG) * 32] = make_uint4(a[0], a[1], a[2], a[3]);
        }
    }
    int slot = 0;                                            /* of tile j */
    if (PIPE) {
        float s[4][4];
        attend_copies_wait<STAGES - 1>();
        __syncthreads();
        memset(s, 0, sizeof s);
        attend_tile_scores<FP8, QREG, BUFFERS>(s, q, q_shared, keys + attend_key_lane<FP8>());
#pragma unroll 1
        for (int j = 0; j < tiles - 1; j++) {
            float fade[2];
            uint32_t w[2][4];
            attend_copies_wait<STAGES - 2>();
            __syncthreads();
            int before = slot == 0 ? STAGES - 1 : slot - 1, after = slot == STAGES - 1 ? 0 : slot + 1;
            if (j + STAGES - 1 < tiles)
                attend_load_tile<FP8, WARPS>(values + before * TILE, v, stride, j + STAGES - 1, end);
            if (j + STAGES < tiles) attend_load_tile<FP8, WARPS>(keys + slot * TILE, k, stride, j + STAGES, end);
            attend_copies_commit();
            if ((j + 1) * ATTEND_TILE_KEYS > seat.block_first)
                attend_mask(s, j, attend_seat_of<WARPS>(&p, heads_shift).first);
            attend_tile_weights<FP8>(s, m, l, fade, w);
            memset(s, 0, sizeof s);
            const uint32_t key_row = keys + after * TILE + attend_key_lane<FP8>();
            const uint32_t value_row = values + slot * TILE + attend_value_lane<FP8>();
            attend_fragment<FP8> kb[2], vb[2];
            attend_load_keys<FP8>(&kb[0], key_row, 0);
            attend_load_values<FP8>(&vb[0], value_row, 0);
#pragma unroll
            for (int step = 0; step < 16; step++) {
                uint32_t a[4];
                attend_query_step<FP8, QREG>(a, q, q_shared, step);
                if (step < 15) {
                    attend_load_keys<FP8>(&kb[(step + 1) % 2], key_row, step + 1);
                    attend_load_values<FP8>(&vb[(step + 1) % 2], value_row, step + 1);
                }
                attend_score_step<FP8>(s, a, kb[step % 2]);
                attend_value_step<FP8>(o, fade, w, vb[step % 2], step);
            }
            slot = after;
        }
        float fade[2];
        uint32_t w[2][4];
        attend_copies_wait<0>();
        __syncthreads();
        attend_mask(s, tiles - 1, attend_seat_of<WARPS>(&p, heads_shift).first);
        attend_tile_weights<FP8>(s, m, l, fade, w);
        attend_tile_values<FP8, BUFFERS>(o, fade, w, values + slot * TILE + attend_value_lane<FP8>());
    } else {
#pragma unroll 1
        for (int j = 0; j < tiles; j++) {
            float s[4][4], fade[2];
            uint32_t w[2][4];
            attend_copies_wait<STAGES - 2>();
            __syncthreads();
            int before = slot == 0 ? STAGES - 1 : slot - 1;
            if (j + STAGES - 1 < tiles) {
                attend_load_tile<FP8, WARPS>(keys + before * TILE, k, stride, j + STAGES - 1, end);
                attend_load_tile<FP8, WARPS>(values + before * TILE, v, stride, j + STAGES - 1, end);
            }
            attend_copies_commit();
            memset(s, 0, sizeof s);
            attend_tile_scores<FP8, QREG, BUFFERS>(s, q, q_shared, keys + slot * TILE + attend_key_lane<FP8>());
            if ((j + 1) * ATTEND_TILE_KEYS > seat.block_first)
                attend_mask(s, j, attend_seat_of<WARPS>(&p, heads_shift).first);
            attend_tile_weights<FP8>(s, m, l, fade, w);
            attend_tile_values<FP8, BUFFERS>(o, fade, w, values + slot * TILE + attend_value_lane<FP8>());
            slot = slot == STAGES - 1 ? 0 : slot + 1;
        }
    }
    const attend_seat again = attend_seat_of<WARPS>(&p, heads_shift);           /* again: saves registers in the loop */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool there = again.row + 8 * h >= 0 && again.row + 8 * h < p.T;
        attend_store_row<FP8>(&p, o, h, l[h], there ? (size_t)(again.row + 8 * h) * p.shape.heads + again.head : 0, there);
    }
}

/* ---- host ------------------------------------------------------------------------------------------------------------- */

static int attention_prefill_fits(const attention_shape *s, dtype kv) {
    return s->head_dim == ATTEND_DIM && s->heads % s->kv_heads == 0 && s->rotary_dim % 2 == 0 &&
           s->rotary_dim <= ATTEND_DIM && (kv == DTYPE_BF16 || kv == DTYPE_FP8);
}

static size_t attention_prefill_scratch(const attention_shape *s, int T) {
    return (size_t)T * (size_t)s->heads * ATTEND_DIM * 2;
}

template <bool FP8, int WARPS, int STAGES, int QREG, bool PIPE, int BUFFERS>
static cudaError_t attend_prefill_launch(const attention_prefill *p, cudaStream_t stream) {
    auto kernel = attend_prefill<FP8, WARPS, STAGES, QREG, PIPE, BUFFERS>;
    static_assert(attend_prefill_shared<FP8, WARPS, STAGES, QREG>() <= GPU_SHARED, "shared memory of attend_prefill");
    int shift = 3, q_per_kv = p->shape.heads / p->shape.kv_heads;
    while (q_per_kv >> shift << shift != q_per_kv || 1 << shift > WARPS) shift--;
    int span = (WARPS >> shift) * ATTEND_TILE_ROWS;
    dim3 grid((unsigned)(p->shape.heads >> shift), (unsigned)((p->position + p->T - 1) / span - p->position / span + 1));
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    if (status == cudaSuccess) status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (status != cudaSuccess) return status;
    kernel<<<grid, 32 * WARPS, attend_prefill_shared<FP8, WARPS, STAGES, QREG>(), stream>>>(*p, shift);
    return cudaGetLastError();
}

static cudaError_t attend_prefill_prepare_launch(const attention_prefill *p, cudaStream_t stream) {
    if (p->kv == DTYPE_FP8) attend_prefill_prepare<true><<<p->T, GPU_THREADS, 0, stream>>>(*p);
    else attend_prefill_prepare<false><<<p->T, GPU_THREADS, 0, stream>>>(*p);
    return cudaGetLastError();
}

static cudaError_t attention_prefill_run(const attention_prefill *p, cudaStream_t stream, int sms) {
    cudaError_t status = attend_prefill_prepare_launch(p, stream);
    (void)sms;
    if (status != cudaSuccess || p->kv_only) return status;
    return p->kv == DTYPE_FP8 ? attend_prefill_launch<true, 8, 3, 16, false, 2>(p, stream)
                              : attend_prefill_launch<false, 8, 3, 16, false, 2>(p, stream);
}
