/* layers/attention/prefill.cu: rope_attend for the rows of a prompt, up to 8,192 at once, on tensor cores. Its definition
   is layers/attention/cpu.c. Knows one layer's rows and KV cache, no session; plain launches on a stream, no schedule.

   For token row t of index p = index + t and query head h of KV head g:
     attend_prefill_prepare   q = rotate(rms(q) q_norm) log2(e) / sqrt(head_dim), rounded to BF16 or F16: to scratch. Rotated by the
                              row's position, which the table has; below, positions of rows and keys are their indexes
                              k = rotate(rms(k) k_norm) and v, rounded as decode rounds them: row p of the KV cache
     attend_prefill           s[i] = q . k[i] for i = 0 .. p;  m = max s;  l = sum 2^(s - m)
                              o = sum 2^(s - m) v[i] / l * sigmoid(gate), as F16 with a power of two per 64 columns
   With kv_only there is only the first, for keys and values. Heads have DIM = 64, 128 or 256 dimensions; norms and gates, which the
   kernels for 256 always compute, are left out where a layer has none; those for 256 have no windows and no sinks, which would cost them
   spills.

   attend_prefill is flash attention. A warp owns 16 neighbouring positions of one query head. The warps of a block share a
   KV head: they have as many of its query heads as divide it (a power of two, at most one a warp) and, if warps are left,
   further positions. So few keys are computed only to be masked. The block walks over tiles of 32 or 64 positions; each
   warp computes its scores of a tile, the online softmax and its part of o, all in registers. Blocks of late positions,
   which take longest, start first.

   Registers decide the shape: o of a warp is 16 x 256 floats, 128 registers a lane. That leaves two warps a scheduler; smaller heads
   run in blocks of four warps on any GPU. Each
   warp loads all B fragments for itself, 256 bytes of shared memory an mma: 2 cycles of an SM, where an H200 needs 1.6 for
   the mma. With FP8 it is half of that, as tiles stay FP8 in shared memory, but each mma takes two conversions.

   Precision. BF16 cache: q and the weights 2^(s - m) are one BF16 term each, as transformers rounds them. FP8 cache: codes
   become F16, exactly, between shared memory and mma; q and the weights are F16, the weights times 2^14, as in decode, so
   that small ones keep their bits (l carries the factor, too). Scores, m, l and o are float. Decode uses two terms, so
   its bits differ.

   Why a row's bits depend on nothing but its position, the cache before it and its own q: tiles begin at multiples of their
   size, counted from position 0, a row meets them all in order, and no lane mixes rows. A tile that a row does not see has
   score -inf and weight 0: m, l and o keep their bits (2^(m - m) = 1). m begins with the head's sink or, without, with a finite number below all
   scores. With a window the block begins with the tile that its first row's window begins in. Positions after the last row read as
   zeros: what the cache holds there may be NaN. */

typedef struct attention_prefill {
    attention_shape shape;       /* one that attention_prefill_fits */
    int kv_only;                 /* only append k and v */
    int T, index;                /* token rows, at least 1; index of row 0. They must not share eight bytes: loaded as a pair, they
                                    cost sm_90a spills */
    const float *qg;             /* [T][heads][attention_q_size] q | gate as projected; unused with kv_only */
    const float *k_new, *v_new;  /* [T][kv_heads][head_dim] as projected */
    const float *q_norm, *k_norm;                            /* [head_dim]; NULL: none */
    const float *sinks;          /* [heads]; NULL: none */
    const float *frequencies;    /* [rotary_dim / 2] */
    dtype kv;                    /* BF16 or FP8 */
    void *k, *v;                 /* KV cache [context or ring][kv_heads][head_dim]; positions before `index` are read */
    int ring;                    /* as attention_gpu's: at least T - 1 more than the window */
    float k_scale, v_scale;      /* as attention_gpu's */
    void *q;                     /* scratch, attention_prefill_q_bytes bytes: [T][heads][head_dim] BF16 or F16 */
    void *out;                   /* [T][heads][head_dim] F16: o / out_scale */
    float *out_scale;            /* [heads][head_dim / 64][T] powers of two: gemm_act_scale */
    int warps;                   /* of a block: attention_prefill_warps */
    int window;                  /* as attention_gpu's */
    rope_axes axes;
    const token_row *table;      /* [T] */
} attention_prefill;
static_assert(offsetof(attention_prefill, index) % 8 == 0, "T and index share eight bytes");

/* ---- norms, rotation, KV append ----------------------------------------------------------------------------------- */

/* RMSNorm and rotation of a head spread over a warp: the same operations as attend_head and attend_norm_rotate. The other
   element of a rotated pair is on a lane that depends on rotary_dim: it is fetched through `exchange`, [DIM]. */
template <int DIM>
__device__ __forceinline__ void attend_prefill_head(const attention_prefill *p, attend_vector<DIM> *v, const float *norm,
                                                    const float *cs, float *exchange) {
    const int lane = threadIdx.x % 32, half = p->shape.rotary_dim / 2;
    if (attend_normed<DIM>(&p->shape)) {
        const float factor = rms_factor(warp_sum(attend_squares(v)), 1.0f / DIM, p->shape.eps);
        attend_vector<DIM> w;
        attend_load_vector(&w, norm);
        attend_norm(v, factor, &w);
    }
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) ((float2 *)exchange)[lane + 32 * j] = v->x[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2 * (DIM / 64); j++) {
        const int i = 2 * lane + 64 * (j / 2) + j % 2;
        float *x = j % 2 ? &v->x[j / 2].y : &v->x[j / 2].x;
        if (i < half) *x = attend_rotate(*x, -exchange[i + half], cs[i], cs[half + i]);
        else if (i < 2 * half) *x = attend_rotate(*x, exchange[i - half], cs[i - half], cs[i]);
    }
    __syncwarp();
}

/* Grid: token rows. Warp w has vectors w, w + 8, ... of the row: its keys, values and queries, in this order. */
template <int DIM> __global__ void __launch_bounds__(GPU_THREADS)
attend_prefill_prepare(const __grid_constant__ attention_prefill p) {
    __shared__ float cs[DIM];
    __shared__ float2 exchange[GPU_WARPS][DIM / 2];
    const int t = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = attend_row(p.index + t, p.ring);
    const int heads = p.shape.heads, kv_heads = p.shape.kv_heads, count = 2 * kv_heads + (p.kv_only ? 0 : heads);
    const float scale = attend_query_scale<DIM>();
    const bool fp8 = p.kv == DTYPE_FP8;
    if (threadIdx.x < p.shape.rotary_dim / 2)
        attend_angle(&p.shape, p.table[t].position[rope_axis(p.axes, (int)threadIdx.x)], (int)threadIdx.x, p.frequencies[threadIdx.x], cs);
    __syncthreads();
#pragma unroll 1
    for (int i = warp; i < count; i += GPU_WARPS) {
        const bool is_k = i < kv_heads, is_q = i >= 2 * kv_heads;
        const size_t row = is_q ? (size_t)t * heads + i - 2 * kv_heads : (size_t)t * kv_heads + (is_k ? i : i - kv_heads);
        const size_t to = ((size_t)at * kv_heads + i % kv_heads) * (DIM / 2) + lane;
        attend_vector<DIM> v;
        attend_load_vector(&v, is_q ? p.qg + row * attend_q_size<DIM>(&p.shape) : (is_k ? p.k_new : p.v_new) + row * DIM);
        if (is_k || is_q) attend_prefill_head(&p, &v, is_q ? p.q_norm : p.k_norm, cs, (float *)exchange[warp]);
#pragma unroll
        for (int j = 0; j < DIM / 64; j++) {
            float x = v.x[j].x * scale, y = v.x[j].y * scale;
            if (is_q) ((uint32_t *)p.q)[row * (DIM / 2) + lane + 32 * j] = fp8 ? f16_pair(x, y) : bf16_pair(x, y);
            else if (fp8) attend_store_pair<true>(is_k ? p.k : p.v, to + 32 * j, v.x[j], is_k ? p.k_scale : p.v_scale);
            else attend_store_pair<false>(is_k ? p.k : p.v, to + 32 * j, v.x[j], is_k ? p.k_scale : p.v_scale);
        }
    }
}

/* ---- tiles and fragments ------------------------------------------------------------------------------------------ */

/* How a block is laid out. STAGES tiles of keys and STAGES of values are in shared memory. The queries are A fragments: of
   their steps of 16 dimensions the first Q_REGISTERS stay in registers, the others in shared memory. A fragment is
   loaded BUFFERS - 1 steps before its mma. Chosen so that nothing spills where it runs on Hopper. */
template <bool FP8, int WARPS, int HEAD_DIM> struct attend_plan {
    enum {
        DIM = HEAD_DIM,
        KEYS = FP8 && WARPS == 4 ? 64 : 32,                  /* positions of a tile */
        STAGES = KEYS == 64 ? 2 : 3,
        STEPS = DIM / 16,
        Q_REGISTERS = !FP8 ? STEPS : KEYS == 64 ? 1 : 4,
        BUFFERS = 2,
        ROW = (int)DIM * (FP8 ? 1 : 2),                           /* bytes of a row of keys or values */
        TILE = KEYS * ROW,
        Q_BYTES = (STEPS - Q_REGISTERS) * 512,               /* of a warp */
        SHARED = 2 * STAGES * TILE + WARPS * Q_BYTES
    };
    static_assert((int)SHARED <= (int)GPU_SHARED, "shared memory of attend_prefill");
};

/* The place of a warp: a head, 16 positions from `first` on (of its block: from `block_first` on), and the lane's row g as a
   row of this call, which may lie before the first or after the last one. The block has 2^heads_shift heads. */
typedef struct attend_warp_tile {
    int head, block_first, first, row;
} attend_warp_tile;

template <int WARPS>
__device__ __forceinline__ attend_warp_tile attend_warp_tile_of(const attention_prefill *p, int heads_shift, int thread) {
    const int span = 16 * (WARPS >> heads_shift), warp = thread / 32;    /* span: a power of two */
    attend_warp_tile s;
    s.head = ((int)(blockIdx.y * gridDim.x + blockIdx.x) << heads_shift) + (warp & ((1 << heads_shift) - 1));
    s.block_first = (p->index & -span) + (int)(gridDim.z - 1 - blockIdx.z) * span;
    s.first = s.block_first + 16 * (warp >> heads_shift);
    s.row = s.first + thread % 32 / 4 - p->index;
    return s;
}

/* The 16-byte vector c of row r of a tile goes to place c ^ attend_swizzle(r) of the row: ldmatrix then has no bank conflicts. In
   shared memory's 128 bytes of banks lies one row or, of FP8 heads of 64, two. */
template <class PLAN> __device__ __forceinline__ int attend_swizzle(int row) {
    return PLAN::ROW < 128 ? row / 2 % 4 : row % 8;
}

/* Starts to copy tile number `tile` of the keys and values of a KV head, from rows of a ring, to shared memory. Rows from position `end` on
   become zeros, unread. */
template <class PLAN, int WARPS>
__device__ __forceinline__ void attend_copy_tile(uint32_t to, const char *k, const char *v, int stride, int ring, int tile, int end,
                                                 int thread) {
    const int VECTORS = PLAN::ROW / 16, ROWS = 32 * WARPS / VECTORS;              /* of a row; rows at a time */
    const int row = thread / VECTORS, vector = thread % VECTORS;
    const int left = end - tile * PLAN::KEYS - row;
    int64_t from = (int64_t)(attend_row(tile * PLAN::KEYS, ring) + row) * stride + vector * 16;
#pragma unroll
    for (int i = 0; i < PLAN::KEYS; i += ROWS) {
        const uint32_t place = to + (row + i) * PLAN::ROW + (vector ^ attend_swizzle<PLAN>(row + i)) * 16;
        cp_async16(place, k + from, i < left);
        cp_async16(place + PLAN::STAGES * PLAN::TILE, v + from, i < left);
        from += ROWS * stride;
    }
}

/* B fragments of 16 dimensions of a tile, two ldmatrix. Keys and values alike, lane 4 g + i:
     keys, BF16    r[2 n], r[2 n + 1]: b0, b1 of positions 8 n .. 8 n + 7
     keys, FP8     r[n]: codes of dimensions 4 i .. 4 i + 3 of position 8 n + g. The first two are b0, the others b1; that
                   permutes the dimensions, and attend_load_query permutes those of the queries likewise
     values, BF16  r[4 e + j]: positions 8 j + 2 i, 8 j + 2 i + 1 of dimension 8 e + g
     values, FP8   r[j]: the same positions, of dimensions 2 g and 2 g + 1: byte 2 position + dimension. These belong to two
                   mma: one has the even dimensions, the other the odd ones
   FP8 tiles of 32 positions need one ldmatrix and four registers. */
template <class PLAN> struct attend_fragment { uint32_t r[8]; };

/* Where this lane points ldmatrix for its first four matrices of a tile. Computed anew for each tile: the addresses that
   follow from it would otherwise stay in registers from tile to tile. */
template <bool FP8, class PLAN> __device__ __forceinline__ uint32_t attend_key_lane(int thread) {
    const int lane = thread % 32, row = FP8 ? lane : lane / 16 * 8 + lane % 8;
    return row * PLAN::ROW + ((FP8 ? 0 : lane / 8 % 2) ^ attend_swizzle<PLAN>(row)) * 16;
}

template <class PLAN> __device__ __forceinline__ uint32_t attend_query_lane(int thread) {
    return thread / 32 * PLAN::Q_BYTES + thread % 32 * 16;
}

template <class PLAN> __device__ __forceinline__ uint32_t attend_value_lane(int thread) {
    const int lane = thread % 32;
    return lane * PLAN::ROW + attend_swizzle<PLAN>(lane) * 16;
}

/* The address that many 16-byte vectors further on in the same row; c: even if `row` may be vector 1. */
__device__ __forceinline__ uint32_t attend_vector_at(uint32_t row, const int c) {
    return (row ^ (c % 8 * 16)) + c / 8 * 128;
}

template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_load_keys(attend_fragment<PLAN> *to, uint32_t row, const int step) {
    const uint32_t at = attend_vector_at(row, FP8 ? step : 2 * step);
    load_matrices<false>(to->r, at);
    if (!FP8 || PLAN::KEYS == 64) load_matrices<false>(to->r + 4, at + (FP8 ? 32 : 16) * PLAN::ROW);
}

template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_load_values(attend_fragment<PLAN> *to, uint32_t row, const int step) {
    const uint32_t at = attend_vector_at(row, FP8 ? step : 2 * step);
    load_matrices<true>(to->r, at);
    if (!FP8) load_matrices<true>(to->r + 4, attend_vector_at(row, 2 * step + 1));
    if (FP8 && PLAN::KEYS == 64) load_matrices<true>(to->r + 4, at + 32 * PLAN::ROW);
}

/* ---- one tile ----------------------------------------------------------------------------------------------------- */

/* s = q . k: C fragments, s[n] of positions 8 n .. 8 n + 7. q: A fragments in registers; q_shared: the lane's others. */
template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_tile_scores(float (*s)[4], const uint4 *q, uint32_t q_shared, uint32_t row) {
    attend_fragment<PLAN> k[PLAN::BUFFERS];
    uint4 a[PLAN::BUFFERS];
    memset(s, 0, PLAN::KEYS / 8 * sizeof *s);
#pragma unroll
    for (int load = 0, step = 1 - PLAN::BUFFERS; step < PLAN::STEPS; load++, step++) {
        if (load < PLAN::STEPS) {
            uint4 *to = &a[load % PLAN::BUFFERS];
            attend_load_keys<FP8, PLAN>(&k[load % PLAN::BUFFERS], row, load);
            if (load < PLAN::Q_REGISTERS) *to = q[load < PLAN::Q_REGISTERS ? load : 0];
            else *to = load_shared16(q_shared + (load - PLAN::Q_REGISTERS) * 512);
        }
        if (step < 0) continue;
        const uint4 four = a[(step + PLAN::BUFFERS) % PLAN::BUFFERS];
        const uint32_t *r = k[(step + PLAN::BUFFERS) % PLAN::BUFFERS].r, query[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int n = 0; n < PLAN::KEYS / 8; n++) {
            uint32_t b0 = r[FP8 ? n : 2 * n], b1 = r[FP8 ? n : 2 * n + 1];
            if (FP8) e4m3_pairs(r[n], &b0, &b1);
            mma_m16n8k16<FP8>(s[n], query, b0, b1);
        }
    }
}

/* Positions that a row does not see get -inf. first: position of the warp's first row. */
template <class PLAN> __device__ __forceinline__ void attend_mask(float (*s)[4], int tile, int first, int window, int thread) {
    const int lane = thread % 32, kv_last = first + lane / 4 - tile * PLAN::KEYS - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < PLAN::KEYS / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (attend_hidden(kv_last + j / 2 * 8, 8 * n + j % 2, window)) s[n][j] = -INFINITY;
}

/* The online softmax: weights w from scores s, as A fragments; m and l of rows g and g + 8 (l over the lane's positions), and
   the factor that rescales what these rows have summed up. */
template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_tile_weights(const float (*s)[4], float k_scale, float *m, float *l, float *rescale,
                                                    uint32_t (*w)[4]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int n = 0; n < PLAN::KEYS / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        top = fmaxf(m[h], FP8 ? top * k_scale : top);
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = attend_raise<true>(&m[h], top, &rescale[h]);
        const float base = FP8 ? top - 14 : top;             /* weights times 2^14 */
#pragma unroll
        for (int n = 0; n < PLAN::KEYS / 8; n++) {
            float x = gpu_exp2(attend_above<FP8>(s[n][2 * h], k_scale, base));
            float y = gpu_exp2(attend_above<FP8>(s[n][2 * h + 1], k_scale, base));
            sum += x + y;
            w[n / 2][n % 2 * 2 + h] = FP8 ? f16_pair(x, y) : bf16_pair(x, y);
        }
        l[h] = fmaf(l[h], rescale[h], sum);
    }
}

/* o = rescale o + w . v: C fragments. o[n]: dimensions 8 n .. 8 n + 7; FP8: o[2 c] and o[2 c + 1] the even and the odd ones of
   16 c .. 16 c + 15. */
template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_tile_values(float (*o)[4], const float *rescale, const uint32_t (*w)[4], uint32_t row) {
    enum { PAIRS = PLAN::KEYS / 16 };
    attend_fragment<PLAN> v[PLAN::BUFFERS];
#pragma unroll
    for (int load = 0, step = 1 - PLAN::BUFFERS; step < PLAN::STEPS; load++, step++) {
        if (load < PLAN::STEPS) attend_load_values<FP8, PLAN>(&v[load % PLAN::BUFFERS], row, load);
        if (step < 0) continue;
        const uint32_t *r = v[(step + PLAN::BUFFERS) % PLAN::BUFFERS].r;
        float (*c)[4] = o + 2 * (step < 0 ? 0 : step);
#pragma unroll
        for (int j = 0; j < 8; j++) c[j / 4][j % 4] *= rescale[j % 4 / 2];
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            uint32_t b[2][2];                                /* [of c][b0, b1] */
#pragma unroll
            for (int j = 0; j < 2; j++) {
                b[0][j] = r[2 * pair + j];
                b[1][j] = r[FP8 ? 0 : (4 + 2 * pair + j) % 8];
                if (FP8) e4m3_pairs(__byte_perm(r[2 * pair + j], 0, 0x3120), &b[0][j], &b[1][j]);
            }
            mma_m16n8k16<FP8>(c[0], w[pair], b[0][0], b[0][1]);
            mma_m16n8k16<FP8>(c[1], w[pair], b[1][0], b[1][1]);
        }
    }
}

/* ---- the kernel --------------------------------------------------------------------------------------------------- */

/* The A fragments of the warp's queries: to q, from step Q_REGISTERS on to q_shared. Rows outside of this call are zeros. */
template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_load_query(const attention_prefill *p, const attend_warp_tile *warp_tile, uint4 *q,
                                                  uint4 *q_shared) {
    const int i = threadIdx.x % 4;
    const uint32_t *from = (const uint32_t *)p->q + ((int64_t)warp_tile->row * p->shape.heads + warp_tile->head) * (PLAN::DIM / 2);
    const int64_t eight = (int64_t)p->shape.heads * (PLAN::DIM / 2) * 8;          /* rows further on */
    const bool there = warp_tile->row >= 0 && warp_tile->row < p->T, there8 = warp_tile->row + 8 >= 0 && warp_tile->row + 8 < p->T;
#pragma unroll
    for (int step = 0; step < PLAN::STEPS; step++) {
        const int low = 8 * step + (FP8 ? 2 * i : i), high = low + (FP8 ? 1 : 4);  /* pairs of dimensions */
        uint4 a = make_uint4(0, 0, 0, 0);
        if (there) a.x = from[low], a.z = from[high];
        if (there8) a.y = from[eight + low], a.w = from[eight + high];
        if (step < PLAN::Q_REGISTERS) q[step < PLAN::Q_REGISTERS ? step : 0] = a;
        else q_shared[(step - PLAN::Q_REGISTERS) * 32] = a;
    }
}

/* Stores row g (h = 0) or g + 8 (h = 1): o / l * v_scale * sigmoid(gate), if there is one, each 64 dimensions times a power of two as
   gpu_bring_into_range chooses it. The row's four lanes call it together; `there`: it is a row of this call. */
template <bool FP8, int DIM>
__device__ __forceinline__ void attend_store_row(const attention_prefill *p, const float (*o)[4], const int h, float l,
                                                 int t, int head, bool there) {
    const int i = threadIdx.x % 4;
    const size_t row = there ? (size_t)t * p->shape.heads + head : 0;
    const float *gates = p->qg + (row * 2 + 1) * DIM;
    const bool gated = attend_gated<DIM>(&p->shape);
    l += __shfl_xor_sync(~0u, l, 1);
    l += __shfl_xor_sync(~0u, l, 2);
    const float inverse = p->v_scale / l;
#pragma unroll
    for (int group = 0; group < DIM / 64; group++) {
        float2 v[8];                                         /* of dimensions col, col + 1 */
        float top = 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int col = 64 * group + (FP8 ? n / 2 * 16 + 4 * i + n % 2 * 2 : 8 * n + 2 * i), c = 8 * group + n;
            float2 gate = gated && there ? *(const float2 *)(gates + col) : make_float2(0, 0);
            v[n].x = (FP8 ? o[c & ~1][2 * h + n % 2] : o[c][2 * h]) * inverse * (gated ? gpu_sigmoid(gate.x) : 1);
            v[n].y = (FP8 ? o[c | 1][2 * h + n % 2] : o[c][2 * h + 1]) * inverse * (gated ? gpu_sigmoid(gate.y) : 1);
            top = fmaxf(top, fmaxf(fabsf(v[n].x), fabsf(v[n].y)));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        float factor;
        const float scale = gemm_act_scale(top, &factor);
        if (!there) continue;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int col = 64 * group + (FP8 ? n / 2 * 16 + 4 * i + n % 2 * 2 : 8 * n + 2 * i);
            ((uint32_t *)p->out)[(row * DIM + col) / 2] = f16_pair(v[n].x * factor, v[n].y * factor);
        }
        if (i == 0) p->out_scale[(size_t)(head * (DIM / 64) + group) * p->T + t] = scale;
    }
}

/* The kernel. Grid: (groups of heads of a KV head, KV heads, spans of positions); see the top of this file. One barrier a
   tile: after it every warp is done with the tile before, whose place is filled again, and all threads' copies of
   this tile have arrived. */
template <bool FP8, int WARPS, int DIM>
__global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
attend_prefill(const __grid_constant__ attention_prefill p, const int heads_shift) {
    extern __shared__ __align__(16) char memory[];
    typedef attend_plan<FP8, WARPS, DIM> plan;
    const attend_warp_tile warp_tile = attend_warp_tile_of<WARPS>(&p, heads_shift, (int)threadIdx.x);
    const int end = p.index + p.T, kv_end = min(warp_tile.block_first + 16 * (WARPS >> heads_shift), end);
    const int tiles = (kv_end + plan::KEYS - 1) / plan::KEYS, stride = p.shape.kv_heads * plan::ROW;
    const int window = DIM < ATTEND_DIM ? p.window : INT_MAX, from = attend_window_first(warp_tile.block_first, window) / plan::KEYS;
    const float *sinks = DIM < ATTEND_DIM ? p.sinks : NULL;
    const char *k = (const char *)p.k + blockIdx.y * plan::ROW, *v = (const char *)p.v + blockIdx.y * plan::ROW;
    const uint32_t keys = shared_address(memory), values = keys + plan::STAGES * plan::TILE;
    const uint32_t queries = values + plan::STAGES * plan::TILE;
    uint4 q[plan::Q_REGISTERS ? plan::Q_REGISTERS : 1];
    float o[DIM / 8][4], m[2], l[2];
    m[0] = m[1] = fmaxf(attend_first_top(sinks, warp_tile.head), -0x1p126f);
    l[0] = l[1] = sinks && threadIdx.x % 4 == 0 ? attend_unit(FP8) : 0;
    memset(o, 0, sizeof o);
#pragma unroll
    for (int i = 0; i < plan::STAGES - 1; i++) {
        if (from + i < tiles) attend_copy_tile<plan, WARPS>(keys + i * plan::TILE, k, v, stride, p.ring, from + i, end, (int)threadIdx.x);
        cp_async_commit();
    }
    attend_load_query<FP8, plan>(&p, &warp_tile, q, (uint4 *)(memory + 2 * plan::STAGES * plan::TILE +
                                                              threadIdx.x / 32 * plan::Q_BYTES) + threadIdx.x % 32);
#pragma unroll 1
    for (int j = from, place = 0; j < tiles; j++) {
        float s[plan::KEYS / 8][4], rescale[2];
        uint32_t w[plan::KEYS / 16][4];
        const int thread = attend_thread();                  /* anew: fewer registers from tile to tile */
        const int next = j + plan::STAGES - 1, last = place == 0 ? plan::STAGES - 1 : place - 1;
        cp_async_wait<plan::STAGES - 2>();
        __syncthreads();
        if (next < tiles) attend_copy_tile<plan, WARPS>(keys + last * plan::TILE, k, v, stride, p.ring, next, end, thread);
        cp_async_commit();
        attend_tile_scores<FP8, plan>(s, q, queries + attend_query_lane<plan>(thread),
                                      keys + place * plan::TILE + attend_key_lane<FP8, plan>(thread));
        if (attend_tile_hides(j, plan::KEYS, warp_tile.block_first, kv_end, window))
            attend_mask<plan>(s, j, attend_warp_tile_of<WARPS>(&p, heads_shift, thread).first, window, thread);
        attend_tile_weights<FP8, plan>(s, p.k_scale, m, l, rescale, w);
        attend_tile_values<FP8, plan>(o, rescale, w, values + place * plan::TILE + attend_value_lane<plan>(thread));
        place = place == plan::STAGES - 1 ? 0 : place + 1;
    }
    const attend_warp_tile again = attend_warp_tile_of<WARPS>(&p, heads_shift, attend_thread());  /* saves registers in the loop */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = again.row + 8 * h;
        const bool there = row >= 0 && row < p.T;
        attend_store_row<FP8, DIM>(&p, o, h, l[h], row, again.head, there);
    }
}

/* ---- host --------------------------------------------------------------------------------------------------------- */

static int attention_prefill_fits(const attention_shape *s, dtype kv) {
    const int fits = s->head_dim == 64 || s->head_dim == 128 || (s->head_dim == ATTEND_DIM && s->gated && s->normed && !s->window && !s->sinks);
    return fits && s->heads % s->kv_heads == 0 && s->rotary_dim >= 0 && s->rotary_dim % 2 == 0 && s->rotary_dim <= s->head_dim &&
           (kv == DTYPE_BF16 || kv == DTYPE_FP8);
}

/* Bytes of attention_prefill.q for T rows. */
static size_t attention_prefill_q_bytes(const attention_shape *s, int T) {
    return (size_t)T * (size_t)(s->heads * s->head_dim) * 2;
}

template <bool FP8, int WARPS, int DIM> static cudaError_t attend_prefill_launch(const attention_prefill *p, cudaStream_t stream) {
    const int q_per_kv = p->shape.heads / p->shape.kv_heads;
    int shift = 0;                                           /* of a block's heads: a power of two that divides q_per_kv */
    while (2 << shift <= WARPS && q_per_kv % (2 << shift) == 0) shift++;
    const int span = 16 * (WARPS >> shift), spans = (p->index + p->T - 1) / span - p->index / span + 1;
    const void *kernel = (const void *)attend_prefill<FP8, WARPS, DIM>;
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    if (status != cudaSuccess) return status;
    const dim3 grid((unsigned)(q_per_kv >> shift), (unsigned)p->shape.kv_heads, (unsigned)spans);
    attend_prefill<FP8, WARPS, DIM><<<grid, 32 * WARPS, attend_plan<FP8, WARPS, DIM>::SHARED, stream>>>(*p, shift);
    return cudaGetLastError();
}

/* Where two blocks fit an SM (Hopper), blocks have four warps: they overlap one's softmax with the other's mma.
   Elsewhere one block of eight. The choice depends on the GPU alone: so do a row's bits. */
static int attention_prefill_warps(int shared_bytes_an_sm) {
    return shared_bytes_an_sm >= 2 * GPU_SHARED ? 4 : 8;
}

template <bool FP8, int DIM> static cudaError_t attend_prefill_run(const attention_prefill *p, cudaStream_t stream) {
    attend_prefill_prepare<DIM><<<(unsigned)p->T, GPU_THREADS, 0, stream>>>(*p);
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess || p->kv_only) return status;
    return DIM < ATTEND_DIM || p->warps == 4 ? attend_prefill_launch<FP8, 4, DIM>(p, stream)
                                             : attend_prefill_launch<FP8, 8, ATTEND_DIM>(p, stream);
}

template <bool FP8> static cudaError_t attend_prefill_of(const attention_prefill *p, cudaStream_t stream) {
    if (p->shape.head_dim == 64) return attend_prefill_run<FP8, 64>(p, stream);
    return p->shape.head_dim == 128 ? attend_prefill_run<FP8, 128>(p, stream) : attend_prefill_run<FP8, ATTEND_DIM>(p, stream);
}

/* rope_attend for p->T rows. */
static cudaError_t attention_prefill_run(const attention_prefill *p, cudaStream_t stream) {
    return p->kv == DTYPE_FP8 ? attend_prefill_of<true>(p, stream) : attend_prefill_of<false>(p, stream);
}
