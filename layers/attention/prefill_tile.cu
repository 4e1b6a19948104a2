/* layers/attention/prefill_tile.cu: what a warp of attend_prefill does with a tile of positions: copies of it to shared memory, fragments,
   scores, weights and values. The kernel is prefill_attend.cu. */

/* How a block is laid out. STAGES tiles of keys and STAGES of values are in shared memory. SPLIT warps share 16 rows of queries, each
   with as much of their dimensions. The queries are A fragments: of their steps of 16 dimensions the first Q_REGISTERS stay
   in registers, the others in shared memory. A fragment is loaded BUFFERS - 1 steps before its mma. Chosen so that nothing spills where
   it runs on Hopper. */
template <bool FP8, int WARPS, int KEY_DIM, int VALUE_DIM> struct attend_plan {
    enum {
        HALF = FP8,                                          /* queries, keys, weights and values are F16 for the mma, not BF16 */
        SPLIT = KEY_DIM > 256 ? 2 : 1,
        STRIPS = KEY_DIM == 64 && !FP8 ? 2 : 1,              /* of 16 rows of queries, of a warp */
        BLOCKS = STRIPS > 1 ? 3 : 8 / WARPS,                 /* of an SM, for which there are registers */
        KEYS = SPLIT > 1 && !FP8 ? 16 : FP8 && WARPS == 4 ? 64 : 32,            /* positions of a tile */
        STAGES = SPLIT > 1 || KEYS == 64 || KEY_DIM != VALUE_DIM ? 2 : 3,
        KEY_STEPS = KEY_DIM / 16 / SPLIT, VALUE_STEPS = VALUE_DIM / 16 / SPLIT,  /* of a warp */
        Q_REGISTERS = !FP8 ? KEY_STEPS : KEYS == 64 ? 1 : SPLIT > 1 ? 12 : 4,
        Q_PLACES = Q_REGISTERS ? Q_REGISTERS : 1,
        BUFFERS = 2,
        KEY_ROW = (int)KEY_DIM * (FP8 ? 1 : 2), VALUE_ROW = (int)VALUE_DIM * (FP8 ? 1 : 2),       /* bytes of a row */
        KEY_TILE = KEYS * KEY_ROW, VALUE_TILE = KEYS * VALUE_ROW,
        Q_BYTES = (KEY_STEPS - Q_REGISTERS) * STRIPS * 512,                     /* of a warp */
        SCORE_BYTES = SPLIT > 1 ? KEYS * 64 : 0,                                /* of a warp: those that it gives the others */
        VALUES_AT = STAGES * KEY_TILE, QUERIES_AT = VALUES_AT + STAGES * VALUE_TILE, SCORES_AT = QUERIES_AT + WARPS * Q_BYTES,
        SHARED = SCORES_AT + WARPS * SCORE_BYTES
    };
    static_assert((int)SHARED <= (int)GPU_SHARED, "shared memory of attend_prefill");
};

/* The 16-byte vector c of row r of a tile, of ROW bytes, goes to place c ^ attend_swizzle(r) of the row: ldmatrix then has no bank
   conflicts. In shared memory's 128 bytes of banks lies one row or, of FP8 heads of 64, two. */
template <int ROW> __device__ __forceinline__ int attend_swizzle(int row) {
    return ROW < 128 ? row / 2 % 4 : row % 8;
}

/* Starts to copy KEYS rows of ROW bytes, `stride` bytes apart, to shared memory. Rows from row `left` on become zeros, unread. */
template <int KEYS, int ROW, int THREADS>
__device__ __forceinline__ void attend_copy_rows(uint32_t to, const char *from, int stride, int left, int thread) {
    const int VECTORS = ROW / 16;
    static_assert(KEYS * VECTORS % THREADS == 0, "all threads copy as much");
#pragma unroll
    for (int i = 0; i < KEYS * VECTORS; i += THREADS) {
        const int row = (i + thread) / VECTORS, vector = (i + thread) % VECTORS;
        cp_async16(to + row * ROW + (vector ^ attend_swizzle<ROW>(row)) * 16, from + (int64_t)row * stride + vector * 16, row < left);
    }
}

/* Starts to copy tile number `tile` of the keys and values of a KV head, from k and v on, to places `to` and to_values. Positions from p->end
   on become zeros, unread. Keys and values with rows of one size share the arithmetic of places. */
template <class PLAN, int WARPS>
__device__ __forceinline__ void attend_copy_tile(uint32_t to, uint32_t to_values, const char *k, const char *v, const prefill_attend *p, int tile,
                                                 int thread) {
    const int at = attend_row_from(p->first, tile * PLAN::KEYS, p->ring), end = p->end, kv_heads = p->kv_heads;
    if (PLAN::KEY_ROW != PLAN::VALUE_ROW) {
        const int k_stride = kv_heads * PLAN::KEY_ROW, v_stride = kv_heads * PLAN::VALUE_ROW, left = end - tile * PLAN::KEYS;
        attend_copy_rows<PLAN::KEYS, PLAN::KEY_ROW, 32 * WARPS>(to, k + (int64_t)at * k_stride, k_stride, left, thread);
        attend_copy_rows<PLAN::KEYS, PLAN::VALUE_ROW, 32 * WARPS>(to_values, v + (int64_t)at * v_stride, v_stride, left, thread);
        return;
    }
    const int VECTORS = PLAN::KEY_ROW / 16, ROWS = 32 * WARPS / VECTORS;          /* of a row; rows at a time */
    const int row = thread / VECTORS, vector = thread % VECTORS, stride = kv_heads * PLAN::KEY_ROW;
    const int left = end - tile * PLAN::KEYS - row;
    int64_t from = (int64_t)(at + row) * stride + vector * 16;
#pragma unroll
    for (int i = 0; i < PLAN::KEYS; i += ROWS) {
        const uint32_t place = (row + i) * PLAN::KEY_ROW + (vector ^ attend_swizzle<PLAN::KEY_ROW>(row + i)) * 16;
        cp_async16(to + place, k + from, i < left);
        cp_async16(to_values + place, v + from, i < left);
        from += ROWS * stride;
    }
}

/* ---- fragments ---------------------------------------------------------------------------------------------------- */

/* B fragments of 16 dimensions of a tile, two ldmatrix. Keys and values alike, lane 4 g + i:
     keys, BF16    r[2 n], r[2 n + 1]: b0, b1 of positions 8 n .. 8 n + 7
     keys, FP8     r[n]: codes of dimensions 4 i .. 4 i + 3 of position 8 n + g. The first two are b0, the others b1; that
                   permutes the dimensions, and attend_load_query permutes those of the queries likewise
     values, BF16  r[4 e + j]: positions 8 j + 2 i, 8 j + 2 i + 1 of dimension 8 e + g
     values, FP8   r[j]: the same positions, of dimensions 2 g and 2 g + 1: byte 2 position + dimension. These belong to two
                   mma: one has the even dimensions, the other the odd ones
   FP8 tiles of 32 positions and BF16 tiles of 16 need one ldmatrix and four registers; of the latter values are r[2 e + j]. */
template <class PLAN> struct attend_fragment { uint32_t r[8]; };

/* Where this lane points ldmatrix for its first four matrices of a tile. Computed anew for each tile: the addresses that
   follow from it would otherwise stay in registers from tile to tile. */
template <bool FP8, class PLAN> __device__ __forceinline__ uint32_t attend_key_lane(int thread) {
    const int lane = thread % 32, row = FP8 ? lane : lane / 16 * 8 + lane % 8;
    return row * PLAN::KEY_ROW + ((FP8 ? 0 : lane / 8 % 2) ^ attend_swizzle<PLAN::KEY_ROW>(row)) * 16;
}

template <class PLAN> __device__ __forceinline__ uint32_t attend_query_lane(int thread) {
    return thread / 32 * PLAN::Q_BYTES + thread % 32 * 16;
}

template <class PLAN> __device__ __forceinline__ uint32_t attend_value_lane(int thread) {
    const int lane = thread % 32, row = PLAN::KEYS == 16 ? lane % 16 : lane;
    return row * PLAN::VALUE_ROW + ((PLAN::KEYS == 16 ? lane / 16 : 0) ^ attend_swizzle<PLAN::VALUE_ROW>(row)) * 16;
}

/* The address that many 16-byte vectors further on in the same row; c: even if `row` may be vector 1. */
__device__ __forceinline__ uint32_t attend_vector_at(uint32_t row, const int c) {
    return (row ^ (c % 8 * 16)) + c / 8 * 128;
}

template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_load_keys(attend_fragment<PLAN> *to, uint32_t row, const int step) {
    const uint32_t at = attend_vector_at(row, FP8 ? step : 2 * step);
    load_matrices<false>(to->r, at);
    if (PLAN::KEYS == (FP8 ? 64 : 32)) load_matrices<false>(to->r + 4, at + (FP8 ? 32 : 16) * PLAN::KEY_ROW);
}

template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_load_values(attend_fragment<PLAN> *to, uint32_t row, const int step) {
    const uint32_t at = attend_vector_at(row, FP8 ? step : 2 * step);
    load_matrices<true>(to->r, at);
    if (!FP8 && PLAN::KEYS == 32) load_matrices<true>(to->r + 4, attend_vector_at(row, 2 * step + 1));
    if (FP8 && PLAN::KEYS == 64) load_matrices<true>(to->r + 4, at + 32 * PLAN::VALUE_ROW);
}

/* ---- one tile ----------------------------------------------------------------------------------------------------- */

/* s = q . k: C fragments, s[strip][n] of positions 8 n .. 8 n + 7. q: A fragments in registers; q_shared: the lane's others. */
template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_tile_scores(float (*s)[PLAN::KEYS / 8][4], const uint4 (*q)[PLAN::Q_PLACES], uint32_t q_shared,
                                                   uint32_t row) {
    attend_fragment<PLAN> k[PLAN::BUFFERS];
    uint4 a[PLAN::BUFFERS][PLAN::STRIPS];
    memset(s, 0, PLAN::STRIPS * sizeof *s);
#pragma unroll
    for (int load = 0, step = 1 - PLAN::BUFFERS; step < PLAN::KEY_STEPS; load++, step++) {
        if (load < PLAN::KEY_STEPS) {
            attend_load_keys<FP8, PLAN>(&k[load % PLAN::BUFFERS], row, load);
#pragma unroll
            for (int i = 0; i < PLAN::STRIPS; i++) {
                uint4 *to = &a[load % PLAN::BUFFERS][i];
                if (load < PLAN::Q_REGISTERS) *to = q[i][load < PLAN::Q_REGISTERS ? load : 0];
                else *to = load_shared16(q_shared + ((load - PLAN::Q_REGISTERS) * PLAN::STRIPS + i) * 512);
            }
        }
        if (step < 0) continue;
        const uint32_t *r = k[(step + PLAN::BUFFERS) % PLAN::BUFFERS].r;
#pragma unroll
        for (int n = 0; n < PLAN::KEYS / 8; n++) {
            uint32_t b0 = r[FP8 ? n : 2 * n], b1 = r[FP8 ? n : 2 * n + 1];
            if (FP8) e4m3_pairs(r[n], &b0, &b1);
#pragma unroll
            for (int i = 0; i < PLAN::STRIPS; i++) {
                const uint4 four = a[(step + PLAN::BUFFERS) % PLAN::BUFFERS][i];
                const uint32_t query[4] = {four.x, four.y, four.z, four.w};
                mma_m16n8k16<PLAN::HALF>(s[i][n], query, b0, b1);
            }
        }
    }
}

/* Warps that share rows add up their scores, each of its part of the dimensions: in one order, as a + b is b + a. The block's barrier before
   the tile has seen to it that the last tile's have been read. scores: [warps][KEYS / 8][32]. */
template <class PLAN> __device__ __forceinline__ void attend_share_scores(float (*s)[4], float4 *scores, int thread) {
    float4 *own = scores + thread / 32 * (PLAN::KEYS / 8 * 32) + thread % 32;
    const float4 *other = own + (thread / 32 % 2 ? -1 : 1) * (PLAN::KEYS / 8 * 32);
#pragma unroll
    for (int n = 0; n < PLAN::KEYS / 8; n++) own[32 * n] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < PLAN::KEYS / 8; n++) {
        const float4 more = other[32 * n];
        s[n][0] += more.x;
        s[n][1] += more.y;
        s[n][2] += more.z;
        s[n][3] += more.w;
    }
}

/* Positions after a row's own get -inf. first: position of the warp's first row. */
template <class PLAN> __device__ __forceinline__ void attend_mask_after(float (*s)[4], int tile, int first, int thread) {
    const int lane = thread % 32, last = first + lane / 4 - tile * PLAN::KEYS - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < PLAN::KEYS / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (8 * n + j % 2 > last + j / 2 * 8) s[n][j] = -INFINITY;
}

/* Positions before a row's window get -inf. before: the last one before that of the warp's first row. */
template <class PLAN> __device__ __forceinline__ void attend_mask_before(float (*s)[4], int tile, int before, int thread) {
    const int lane = thread % 32, last = before + lane / 4 - tile * PLAN::KEYS - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < PLAN::KEYS / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (8 * n + j % 2 <= last + j / 2 * 8) s[n][j] = -INFINITY;
}

/* The marks of a tile's groups of 4 positions, of rows `row`, in the low half, and `row` + 8 of the call: bit k is group k of the tile. All ones of a
   row that leaves nothing out. */
template <class PLAN> __device__ __forceinline__ uint32_t attend_load_marks(const prefill_attend *p, int row, int tile) {
    uint32_t marks = ~0u;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int t = row + 8 * h;
        if (t < 0 || t >= p->T || p->index + t < p->marked_from) continue;
        const uint8_t *of = p->marks + (int64_t)t * p->marks_stride + tile * (PLAN::KEYS / 32);
        marks = __byte_perm(marks, PLAN::KEYS == 32 ? *of : *(const uint16_t *)of, h ? 0x5410 : 0x3254);
    }
    return marks;
}

/* Positions of groups without a mark get -inf. */
template <class PLAN> __device__ __forceinline__ void attend_mask_unmarked(float (*s)[4], uint32_t marks, int thread) {
    const uint32_t own = marks >> thread % 4 / 2;            /* of a fragment's two groups a lane has one */
#pragma unroll
    for (int n = 0; n < PLAN::KEYS / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (!(own >> (16 * (j / 2) + 2 * n) & 1)) s[n][j] = -INFINITY;
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
        const float base = PLAN::HALF ? top - 14 : top;      /* weights times 2^14 */
#pragma unroll
        for (int n = 0; n < PLAN::KEYS / 8; n++) {
            float x = gpu_exp2(attend_above<FP8>(s[n][2 * h], k_scale, base));
            float y = gpu_exp2(attend_above<FP8>(s[n][2 * h + 1], k_scale, base));
            sum += x + y;
            w[n / 2][n % 2 * 2 + h] = PLAN::HALF ? f16_pair(x, y) : bf16_pair(x, y);
        }
        l[h] = fmaf(l[h], rescale[h], sum);
    }
}

/* o = rescale o + w . v: C fragments. o[n]: dimensions 8 n .. 8 n + 7; FP8: o[2 c] and o[2 c + 1] the even and the odd ones of
   16 c .. 16 c + 15. */
template <bool FP8, class PLAN>
__device__ __forceinline__ void attend_tile_values(float (*o)[PLAN::VALUE_STEPS * 2][4], const float (*rescale)[2],
                                                   const uint32_t (*w)[PLAN::KEYS / 16][4], uint32_t row) {
    enum { PAIRS = PLAN::KEYS / 16 };
    attend_fragment<PLAN> v[PLAN::BUFFERS];
#pragma unroll
    for (int load = 0, step = 1 - PLAN::BUFFERS; step < PLAN::VALUE_STEPS; load++, step++) {
        if (load < PLAN::VALUE_STEPS) attend_load_values<FP8, PLAN>(&v[load % PLAN::BUFFERS], row, load);
        if (step < 0) continue;
        const uint32_t *r = v[(step + PLAN::BUFFERS) % PLAN::BUFFERS].r;
        const int c = 2 * (step < 0 ? 0 : step);
#pragma unroll
        for (int j = 0; j < 8 * PLAN::STRIPS; j++) o[j / 8][c + j % 8 / 4][j % 4] *= rescale[j / 8][j % 4 / 2];
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            uint32_t b[2][2];                                /* [of c][b0, b1] */
#pragma unroll
            for (int j = 0; j < 2; j++) {
                b[0][j] = r[2 * pair + j];
                b[1][j] = r[FP8 ? 0 : (PLAN::KEYS / 8 + 2 * pair + j) % 8];
                if (FP8) e4m3_pairs(__byte_perm(r[2 * pair + j], 0, 0x3120), &b[0][j], &b[1][j]);
            }
#pragma unroll
            for (int j = 0; j < 2 * PLAN::STRIPS; j++) mma_m16n8k16<PLAN::HALF>(o[j / 2][c + j % 2], w[j / 2][pair], b[j % 2][0], b[j % 2][1]);
        }
    }
}
