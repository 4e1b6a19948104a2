/* layers/attention/decode_fast.cu: attend_fast: rope_attend on tensor cores, for heads of 64, 128 or 256 dimensions, the first 64 or all
   128 of them rotated, and up to 16 query heads a kv head. Heads of 256 have norms and output gates, the others may. Formula, grid, and
   what it may read before pdl_wait: layers/attention/decode.cu.

   attend_fast<FP8, ROWS, DIM>: FP8 is the type of the KV cache (else BF16), ROWS the most query rows, 8 to 64, DIM that of a head. A
   query row is a (token row, query head). 8 query rows, which is one token row of the first model, fill half of a
   tensor-core tile: registers, shared memory and loads for the other half do not exist (HALVES).

   Tensor-core fragments. The operands of mma.m16n8k16 are A = query rows, 16 to a tile, and B = keys or values. B comes
   straight from the KV cache into registers: no lane passes elements to another. With lane = 4 g + i:
     scores   n = positions. Warp w has positions 8w..8w+7 of the chunk; lane (g, i) loads the 16-byte vectors i, i + 4, ...
              of row 8w + g. That permutes the dimensions of a dot product; the queries lie in shared memory in the same
              order, as A fragments.
     values   n = dimensions. Warp w has an eighth of o's dimensions, of 256 32w..32w+31; lane (g, i) loads an eighth of those,
              32w+4g..32w+4g+3, of the 16 positions that its B fragments of the chunk hold, and byte permutes pair them by position.

   Precision. A query, and later a weight exp(s - m), enters as two terms of half precision, high and low, with two mma
   each: BF16 for a BF16 cache, 16 bits together; F16 for an FP8 cache, each of whose codes is exact in F16.

   Why it is fast. The next chunk's rows are in flight, into registers, while this chunk is computed: k once the scores no
   longer need its registers, v once o does not. The first chunk is loaded before pdl_wait. The new rows come from shared
   memory, rounded as the KV cache holds them.

   Combining the partials. A thread block cluster of 8 neighbouring splits first combines its own through distributed shared
   memory: block r of the cluster does slice r, an eighth of the dimensions, of every query row. If several clusters have work, each
   stores its result in device memory, and a last-block reduction follows: for each (kv head, slice) the block that draws
   the last ticket combines those of all clusters, and sets the ticket back to zero. Before compute capability 9.0 there
   are no clusters: every block stores its partial, and the last block of a kv head combines all slices.

   Memory order. A block publishes its partial with barrier.cluster.arrive.release, and the others read it after
   barrier.cluster.wait.acquire. A second cluster barrier at the end keeps a block's shared memory alive until the others
   have read it. The ticket is an acq_rel atomic between two barriers of the block, and the partials it stands for are read
   past L1.

   Deadlock. No block spins. A cluster barrier waits for blocks of its own cluster only, which are resident together, and
   these return early all or none. A ticket is drawn, never waited for. */

/* A lane's part of an A fragment: elements 2i, 2i + 1 of row g (and of row g + 8 if HALVES is 2), then 2i + 8, 2i + 9. */
template <int HALVES> struct __align__(8 * HALVES) attend_a {
    uint32_t r[2 * HALVES];
};

template <bool FP8, int HALVES>
__device__ __forceinline__ void attend_mma(float *c, const attend_a<HALVES> &part, uint32_t b0, uint32_t b1) {
    const uint32_t a[4] = {part.r[0], HALVES > 1 ? part.r[1] : 0, part.r[HALVES], HALVES > 1 ? part.r[2 * HALVES - 1] : 0};
    mma_m16n8k16<FP8>(c, a, b0, b1);
}

/* TILES: of 16 query rows. HALVES: of a tile that exist, see above. TOP_ROWS: query rows whose maximum a warp keeps, one or two
   a lane. */
template <int ROWS> struct attend_sizes {
    enum { TILES = (ROWS + 15) / 16, HALVES = ROWS < 16 ? 1 : 2, TOP_ROWS = ROWS < 32 ? 32 : ROWS };
};

/* Shared memory of a block. o overwrites the queries once no warp needs them. */
template <bool FP8, int ROWS, int DIM> struct attend_shared {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES, TOP_ROWS = attend_sizes<ROWS>::TOP_ROWS };
    union {
        attend_a<HALVES> q[TILES][2][DIM / 16][32];          /* A fragments of the scores: high, low */
        float o[ROWS][DIM + 8];
    };
    attend_a<HALVES> p[TILES][2][ATTEND_CHUNK / 16][32];     /* A fragments of the values: weights of 16 positions */
    uint4 new_kv[2][MOTE_ROWS_MAX][DIM / (FP8 ? 16 : 8)];    /* new rows of k and v as the KV cache holds them */
    float cs[MOTE_ROWS_MAX][DIM == 128 ? 128 : 64];
    float top[TOP_ROWS][GPU_WARPS];                          /* a warp's largest score of a row; at the end its l */
    float2 ml[TOP_ROWS];
    int kv_last[ROWS];                                       /* last position that a row sees */
    int last;
};

static_assert(sizeof(attend_shared<false, 64, ATTEND_DIM>) <= GPU_SHARED, "shared memory of attend_fast");

/* Whether the layer has output gates, and norms of queries and keys: heads of 256 have both here. */
template <int DIM> __device__ __forceinline__ bool attend_gated(const attention_shape *s) {
    return DIM == ATTEND_DIM || s->gated;
}

template <int DIM> __device__ __forceinline__ bool attend_normed(const attention_shape *s) {
    return DIM == ATTEND_DIM || s->normed;
}

/* Numbers of a head in a row of qg. */
template <int DIM> __device__ __forceinline__ size_t attend_q_size(const attention_shape *s) {
    return attend_gated<DIM>(s) ? 2 * DIM : DIM;
}

/* log2(e) / sqrt(DIM), of queries: scores are for exp2. */
template <int DIM> __device__ __forceinline__ float attend_query_scale() {
    return 1.44269504f / (DIM == 256 ? 16.0f : DIM == 128 ? 11.3137085f : 8.0f);
}

/* A lane's part of a chunk, for its B fragments. */
template <bool FP8, int DIM> struct attend_rows {
    enum { KEYS = DIM / (FP8 ? 64 : 32), DIMS = DIM / 64, BYTES = DIMS * (FP8 ? 1 : 2) };  /* DIMS: of the values, in BYTES bytes */
    uint4 k[KEYS];
    uint32_t v[ATTEND_CHUNK / 16][4][(BYTES + 3) / 4];       /* [positions / 16][2i, 2i+1, 2i+8, 2i+9][dimensions] */
};

/* BYTES bytes as words. */
template <int BYTES> __device__ __forceinline__ void attend_load_bytes(uint32_t *to, const void *from) {
    if (BYTES == 8) {
        const uint2 two = *(const uint2 *)from;
        to[0] = two.x;
        to[BYTES / 8] = two.y;
    } else {
        *to = BYTES == 4 ? *(const uint32_t *)from : BYTES == 2 ? *(const uint16_t *)from : *(const uint8_t *)from;
    }
}

/* threadIdx.x, read anew: what is computed from it is computed again for each chunk and takes no registers in between. */
__device__ __forceinline__ int attend_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* Loads the chunk's cached KV rows, positions 0..cached-1. Registers of later positions get some cached row, or zeros if the chunk
   has none: these are overwritten by new rows (attend_new_k, attend_new_v) or have weight 0. */
template <bool FP8, int DIM>
__device__ __forceinline__ void attend_load_k(const attention_gpu *p, int cached, int chunk, attend_rows<FP8, DIM> *r) {
    int thread = attend_thread(), lane = thread % 32;
    int at = min(chunk * ATTEND_CHUNK + thread / 32 * 8 + lane / 4, cached - 1);
    const uint4 *row = (const uint4 *)(attend_cache(p, false) + ((size_t)at * p->shape.kv_heads + blockIdx.x) *
                                                                (DIM * (FP8 ? 1 : 2))) + lane % 4;
    bool some = chunk * ATTEND_CHUNK < cached;
#pragma unroll
    for (int j = 0; j < attend_rows<FP8, DIM>::KEYS; j++) r->k[j] = some ? row[4 * j] : make_uint4(0, 0, 0, 0);
}

template <bool FP8, int DIM>
__device__ __forceinline__ void attend_load_v(const attention_gpu *p, int cached, int chunk, attend_rows<FP8, DIM> *r) {
    enum { BYTES = attend_rows<FP8, DIM>::BYTES };
    int thread = attend_thread(), lane = thread % 32, most = cached - 1 - chunk * ATTEND_CHUNK;
    int stride = p->shape.kv_heads * DIM * (FP8 ? 1 : 2);
    const char *base = attend_cache(p, true) + (size_t)chunk * ATTEND_CHUNK * stride +
                       (blockIdx.x * DIM * (FP8 ? 1 : 2) + (thread / 32 * 8 + lane / 4) * BYTES);
#pragma unroll
    for (int j = 0; j < ATTEND_CHUNK / 4; j++) {
        int offset = min(j / 4 * 16 + j % 2 + j % 4 / 2 * 8 + lane % 4 * 2, most);
        uint32_t *to = r->v[j / 4][j % 4];
        to[0] = to[BYTES / 8] = 0;
        if (most >= 0) attend_load_bytes<BYTES>(to, base + (int64_t)offset * stride);
    }
}

/* Overwrites the registers of the chunk's new positions from shared memory. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_new_k(const attend_shared<FP8, ROWS, DIM> *sh, const attend_span *s, int chunk,
                                             attend_rows<FP8, DIM> *r) {
    int lane = threadIdx.x % 32, at = chunk * ATTEND_CHUNK + threadIdx.x / 32 * 8 + lane / 4;
    if (at < s->first || at >= s->end) return;
#pragma unroll
    for (int j = 0; j < attend_rows<FP8, DIM>::KEYS; j++) r->k[j] = sh->new_kv[0][at - s->first][lane % 4 + 4 * j];
}

template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_new_v(const attend_shared<FP8, ROWS, DIM> *sh, const attend_span *s, int chunk,
                                             attend_rows<FP8, DIM> *r) {
    enum { BYTES = attend_rows<FP8, DIM>::BYTES };
    int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 8 + lane / 4;      /* in a lane's dimensions */
#pragma unroll
    for (int j = 0; j < ATTEND_CHUNK / 4; j++) {
        int at = chunk * ATTEND_CHUNK + j / 4 * 16 + j % 2 + j % 4 / 2 * 8 + lane % 4 * 2;
        if (at < s->first || at >= s->end) continue;
        attend_load_bytes<BYTES>(r->v[j / 4][j % 4], (const char *)sh->new_kv[1][at - s->first] + column * BYTES);
    }
}

/* The token row of a query row, without a division. */
__device__ __forceinline__ int attend_token(const attention_gpu *p, int row) {
    return (row >= p->q_per_kv) + (row >= 2 * p->q_per_kv) + (row >= 3 * p->q_per_kv);
}

/* The head of a query row: its index in qg and o, over all token rows. */
__device__ __forceinline__ size_t attend_head_of(const attention_gpu *p, int row) {
    int t = attend_token(p, row);
    return (size_t)(t * p->shape.heads + (int)blockIdx.x * p->q_per_kv + row - t * p->q_per_kv);
}

/* A head, spread over a warp: a lane has elements 2 lane + 64 j and 2 lane + 64 j + 1. */
template <int DIM> struct attend_vector { float2 x[DIM / 64]; };

template <int DIM> __device__ __forceinline__ void attend_load_vector(attend_vector<DIM> *v, const float *from) {
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) v->x[j] = ((const float2 *)from)[threadIdx.x % 32 + 32 * j];
}

/* This lane's part of a head's sum of squares. */
template <int DIM> __device__ __forceinline__ float attend_squares(const attend_vector<DIM> *v) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) sum = fmaf(v->x[j].y, v->x[j].y, fmaf(v->x[j].x, v->x[j].x, sum));
    return sum;
}

/* RMSNorm, given the head's rms_factor. */
template <int DIM>
__device__ __forceinline__ void attend_norm(attend_vector<DIM> *v, float factor, const attend_vector<DIM> *norm) {
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) {
        v->x[j].x = v->x[j].x * factor * norm->x[j].x;
        v->x[j].y = v->x[j].y * factor * norm->x[j].y;
    }
}

/* RMSNorm, given the head's sum of squares; then the first 64 elements are rotated, i with i + 32. The other element of a
   pair is on lane ^ 16. Where 128 are rotated, i with i + 64, both are on one lane. */
template <int DIM>
__device__ __forceinline__ void attend_norm_rotate(const attention_gpu *p, attend_vector<DIM> *v, float squares,
                                                   const attend_vector<DIM> *norm, const float *cs) {
    const int lane = threadIdx.x % 32;
    if (attend_normed<DIM>(&p->shape)) attend_norm(v, rms_factor(squares, 1.0f / DIM, p->shape.eps), norm);
    if (DIM == 128 && p->shape.rotary_dim == 128) {
        const float2 cosine = ((const float2 *)cs)[lane], sine = ((const float2 *)cs)[32 + lane], a = v->x[0];
        float2 &b = v->x[DIM == 128];
        v->x[0] = make_float2(attend_rotate(a.x, -b.x, cosine.x, sine.x), attend_rotate(a.y, -b.y, cosine.y, sine.y));
        b = make_float2(attend_rotate(b.x, a.x, cosine.x, sine.x), attend_rotate(b.y, a.y, cosine.y, sine.y));
        return;
    }
    float2 cosine = ((const float2 *)cs)[lane % 16], sine = ((const float2 *)cs)[16 + lane % 16];
    float2 other = {__shfl_xor_sync(~0u, v->x[0].x, 16), __shfl_xor_sync(~0u, v->x[0].y, 16)};
    if (lane < 16) other = make_float2(-other.x, -other.y);
    v->x[0].x = attend_rotate(v->x[0].x, other.x, cosine.x, sine.x);
    v->x[0].y = attend_rotate(v->x[0].y, other.y, cosine.y, sine.y);
}

/* Stores a query row as A fragments of the scores, scaled. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_put_query(attend_shared<FP8, ROWS, DIM> *sh, int row, const attend_vector<DIM> *v) {
    enum { VECTOR_ELEMENTS = FP8 ? 16 : 8, HALVES = attend_sizes<ROWS>::HALVES };  /* elements in 16 bytes of the KV cache */
    const int lane = threadIdx.x % 32;
    const float scale = attend_query_scale<DIM>();
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) {
        int e = 2 * lane + 64 * j, step = e / (4 * VECTOR_ELEMENTS) * (VECTOR_ELEMENTS / 4) + e % VECTOR_ELEMENTS / 4,
            i = e / VECTOR_ELEMENTS % 4;
        int to = row % 8 * 4 + i, at = e % 4 / 2 * HALVES + row % 16 / 8;
        split_pair<FP8>(v->x[j].x * scale, v->x[j].y * scale,
                          &sh->q[row / 16][0][step][to].r[at], &sh->q[row / 16][1][step][to].r[at]);
    }
}

/* Norms and rotation of queries and new keys, and the KV append. A warp prepares query rows warp, warp + 8, ... In a block
   that owns the position (owns), warp t < 4 also appends the new k of token row t, warp 4 + t its v: to the KV cache, and
   to shared memory, from where this block computes with it. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_prepare(const attention_gpu *p, const attend_span *s, const attend_vector<DIM> *q_norm,
                                               const attend_vector<DIM> *k_norm, bool owns, attend_shared<FP8, ROWS, DIM> *sh) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = p->T * p->q_per_kv;
    const int which = warp / MOTE_ROWS_MAX, t = warp % MOTE_ROWS_MAX;
    attend_vector<DIM> v = {}, next = {}, new_kv = {};
    if (warp < rows) attend_load_vector(&v, p->qg + attend_head_of(p, warp) * attend_q_size<DIM>(&p->shape));
    if (owns) attend_load_vector(&new_kv, (which ? p->v_new : p->k_new) + (t * p->shape.kv_heads + blockIdx.x) * DIM);
    float squares = attend_squares(&v), new_squares = attend_squares(&new_kv);
#pragma unroll
    for (int i = 16; i; i /= 2) {                            /* two independent reductions: their latencies overlap */
        squares += __shfl_xor_sync(~0u, squares, i);
        new_squares += __shfl_xor_sync(~0u, new_squares, i);
    }
    if (owns && !which) attend_norm_rotate(p, &new_kv, new_squares, k_norm, sh->cs[t]);
    if (owns) {
        size_t at = ((size_t)(s->first + t) * (size_t)p->shape.kv_heads + blockIdx.x) * (DIM / 2) + lane;
#pragma unroll
        for (int j = 0; j < DIM / 64; j++) {
            attend_store_pair<FP8>(attend_cache(p, which), at + 32 * j, new_kv.x[j], which ? p->v_scale : p->k_scale);
            attend_store_pair<FP8>(sh->new_kv[which][t], lane + 32 * j, new_kv.x[j], which ? p->v_scale : p->k_scale);
        }
    }
#pragma unroll 1
    for (int row = warp; row < rows; row += GPU_WARPS) {
        bool more = ROWS > GPU_WARPS && row + GPU_WARPS < rows;
        if (more) attend_load_vector(&next, p->qg + attend_head_of(p, row + GPU_WARPS) * attend_q_size<DIM>(&p->shape));
        attend_norm_rotate(p, &v, squares, q_norm, sh->cs[attend_token(p, row)]);
        attend_put_query<FP8, ROWS, DIM>(sh, row, &v);
        if (!more) break;
        v = next;
        squares = warp_sum(attend_squares(&v));
    }
}

/* A lane's state of the online softmax, from chunk to chunk. */
template <int ROWS, int DIM> struct attend_state {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES, TOP_ROWS = attend_sizes<ROWS>::TOP_ROWS };
    float m[TOP_ROWS / 32];                                  /* of rows lane, lane + 32; the same in all warps */
    float l[TILES][HALVES];                                  /* of rows g, g + 8 of a tile, over the lane's positions */
    float o[TILES][DIM / 64][4];                             /* C fragments; [n] of 4: warp's dimensions 8i+n, 8i+4+n */
};

/* c[tile] += q . k for the warp's 8 positions. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_scores(const attend_shared<FP8, ROWS, DIM> *sh, const attend_rows<FP8, DIM> *r, int tiles,
                                              float (*c)[4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < attend_sizes<ROWS>::TILES; tile++) {
        if (tile >= tiles) break;
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            const uint4 &four = r->k[step / (FP8 ? 4 : 2)];
            uint32_t codes = step % 4 == 0 ? four.x : step % 4 == 1 ? four.y : step % 4 == 2 ? four.z : four.w;
            uint32_t b0 = step % 2 ? four.z : four.x, b1 = step % 2 ? four.w : four.y;
            if (FP8) e4m3_pairs(codes, &b0, &b1);
            attend_mma<FP8>(c[tile], sh->q[tile][0][step][lane], b0, b1);
            attend_mma<FP8>(c[tile], sh->q[tile][1][step][lane], b0, b1);
        }
    }
}

/* o += weights times values for the warp's dimensions and all 64 positions of the chunk. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_values(const attend_shared<FP8, ROWS, DIM> *sh, const attend_rows<FP8, DIM> *r, int tiles,
                                              attend_state<ROWS, DIM> *state) {
    enum { TILES = attend_sizes<ROWS>::TILES, DIMS = attend_rows<FP8, DIM>::DIMS };
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < ATTEND_CHUNK / 16; step++) {
        uint32_t b[4][2];                                    /* [dimension][B fragment]; the first DIMS count */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t *one = r->v[step][2 * half], *two = r->v[step][2 * half + 1];
            if (FP8) {
                uint32_t low = __byte_perm(one[0], two[0], 0x5140), high = __byte_perm(one[0], two[0], 0x7362);
                e4m3_pairs(low, &b[0][half], &b[1][half]);
                e4m3_pairs(high, &b[2][half], &b[3][half]);
            } else {
                b[0][half] = __byte_perm(one[0], two[0], 0x5410);
                b[1][half] = __byte_perm(one[0], two[0], 0x7632);
                b[2][half] = __byte_perm(one[!FP8 && DIMS == 4], two[!FP8 && DIMS == 4], 0x5410);
                b[3][half] = __byte_perm(one[!FP8 && DIMS == 4], two[!FP8 && DIMS == 4], 0x7632);
            }
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            if (tile >= tiles) break;
            attend_a<attend_sizes<ROWS>::HALVES> high = sh->p[tile][0][step][lane], low = sh->p[tile][1][step][lane];
#pragma unroll
            for (int n = 0; n < DIMS; n++) {
                attend_mma<FP8>(state->o[tile][n], high, b[n][0], b[n][1]);
                attend_mma<FP8>(state->o[tile][n], low, b[n][0], b[n][1]);
            }
        }
    }
}

/* Masks the positions that a row does not see; top[row][warp] = the row's largest score over the warp's positions, in which
   the keys' scale is. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_tops(attend_shared<FP8, ROWS, DIM> *sh, int chunk, int tiles, float k_scale, float (*c)[4]) {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = chunk * ATTEND_CHUNK + warp * 8 + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            int row = tile * 16 + half * 8 + lane / 4, kv_last = sh->kv_last[row];
            if (at > kv_last) c[tile][2 * half] = -INFINITY;
            if (at + 1 > kv_last) c[tile][2 * half + 1] = -INFINITY;
            float top = fmaxf(c[tile][2 * half], c[tile][2 * half + 1]);
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            if (lane % 4 == 0) sh->top[row][warp] = FP8 ? top * k_scale : top;
        }
    }
}

/* The online softmax: every warp finds the new m of all rows, rescales its l and o, adds to l, and stores the weights of
   its positions as A fragments. For FP8, weights are multiplied by 2^14, so that small ones keep their bits in F16; l and o
   both carry the factor. A row that has seen nothing yet has m = -inf. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_weights(attend_shared<FP8, ROWS, DIM> *sh, int tiles, float k_scale, const float (*c)[4],
                                               attend_state<ROWS, DIM> *state) {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES, TOP_ROWS = attend_sizes<ROWS>::TOP_ROWS };
    const float weight_scale = FP8 ? 16384.0f : 1.0f;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float bases[TOP_ROWS / 32], rescales[TOP_ROWS / 32];
#pragma unroll
    for (int k = 0; k < TOP_ROWS / 32; k++) {
        const float4 *tops = (const float4 *)sh->top[k * 32 + lane];
        float4 a = tops[0], b = tops[1];
        float m = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
        bases[k] = attend_raise<false>(&state->m[k], fmaxf(m, state->m[k]), &rescales[k]);
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
        uint32_t high[HALVES], low[HALVES];
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            int from = tile % 2 * 16 + half * 8 + lane / 4;  /* the lane that has this row's m */
            float base = __shfl_sync(~0u, bases[tile / 2], from), rescale = __shfl_sync(~0u, rescales[tile / 2], from);
            float x = gpu_exp2(attend_above<FP8>(c[tile][2 * half], k_scale, base)) * weight_scale;
            float y = gpu_exp2(attend_above<FP8>(c[tile][2 * half + 1], k_scale, base)) * weight_scale;
            state->l[tile][half] = fmaf(state->l[tile][half], rescale, x + y);
            split_pair<FP8>(x, y, &high[half], &low[half]);
#pragma unroll
            for (int n = 0; n < DIM / 64; n++) {
                state->o[tile][n][2 * half] *= rescale;
                state->o[tile][n][2 * half + 1] *= rescale;
            }
        }
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            sh->p[tile][0][warp / 2][lane].r[warp % 2 * HALVES + half] = high[half];
            sh->p[tile][1][warp / 2][lane].r[warp % 2 * HALVES + half] = low[half];
        }
    }
}

/* Stores the block's partial in shared memory: ml and o of each query row. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_put_part(attend_shared<FP8, ROWS, DIM> *sh, int tiles,
                                                const attend_state<ROWS, DIM> *state) {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES, TOP_ROWS = attend_sizes<ROWS>::TOP_ROWS,
           DIMS = DIM / 64 };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();                                         /* q and top are no longer read */
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            int row = tile * 16 + half * 8 + lane / 4;
            float l = state->l[tile][half];
            l += __shfl_xor_sync(~0u, l, 1);
            l += __shfl_xor_sync(~0u, l, 2);
            if (lane % 4 == 0) sh->top[row][warp] = l;
            float o[2 * DIMS], *to = &sh->o[row][warp * (DIM / 8) + lane % 4 * 2 * DIMS];
#pragma unroll
            for (int n = 0; n < 2 * DIMS; n++) o[n] = state->o[tile][n % DIMS][2 * half + n / DIMS];
#pragma unroll
            for (int n = 0; n + 4 <= 2 * DIMS; n += 4) *(float4 *)(to + n) = make_float4(o[n], o[n + 1], o[n + 2], o[n + 3]);
            if (DIMS == 1) *(float2 *)to = make_float2(o[0], o[1]);
        }
    }
#pragma unroll
    for (int k = 0; k < TOP_ROWS / 32; k++)
        if (warp == 0) sh->ml[k * 32 + lane].x = state->m[k];
    const int thread = attend_thread();                      /* anew: one value less is kept from before the loop */
    __syncthreads();
    if (thread < ROWS) {
        float sum = 0;
        for (int w = 0; w < GPU_WARPS; w++) sum += sh->top[thread][w];
        sh->ml[thread].y = sum;
    }
    __syncthreads();
}

/* A partial of one query row: m, l and 4 dimensions of o. */
typedef struct attend_part { float m, l; float4 o; } attend_part;

/* Combines *to with up to eight more partials, `count` of them. The caller may load them in any order; they are summed in
   one. */
__device__ __forceinline__ void attend_join(attend_part *to, int count, const float2 *ml, const float4 *o) {
    float top = to->m;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) top = fmaxf(top, ml[i].x);
    float rescale, base = attend_raise<false>(&to->m, top, &rescale);
    to->l *= rescale;
    to->o = make_float4(to->o.x * rescale, to->o.y * rescale, to->o.z * rescale, to->o.w * rescale);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float weight = i < count ? gpu_exp2(ml[i].x - base) : 0;
        to->l = fmaf(weight, ml[i].y, to->l);
        to->o.x = fmaf(weight, o[i].x, to->o.x);
        to->o.y = fmaf(weight, o[i].y, to->o.y);
        to->o.z = fmaf(weight, o[i].z, to->o.z);
        to->o.w = fmaf(weight, o[i].w, to->o.w);
    }
}

/* The output gate's logits of 4 dimensions of a query row, if the layer has gates. */
template <int DIM> __device__ __forceinline__ float4 attend_output_gate(const attention_gpu *p, int row, int column) {
    if (!attend_gated<DIM>(&p->shape)) return make_float4(0, 0, 0, 0);
    return *(const float4 *)(p->qg + (attend_head_of(p, row) * 2 + 1) * DIM + column);
}

/* o = o / l * v_scale * sigmoid(gate), if there is one, for 4 dimensions of a query row; a row that saw nothing becomes 0. */
template <int DIM>
__device__ __forceinline__ void attend_finish(const attention_gpu *p, int row, int column, const attend_part *part,
                                              float4 gate) {
    float factor = __fdividef(1.0f, part->l == 0 ? 1 : part->l) * p->v_scale;
    float4 *to = (float4 *)(p->o + attend_head_of(p, row) * DIM + column);
    if (attend_gated<DIM>(&p->shape))
        *to = make_float4(part->o.x * factor * gpu_sigmoid(gate.x), part->o.y * factor * gpu_sigmoid(gate.y),
                          part->o.z * factor * gpu_sigmoid(gate.z), part->o.w * factor * gpu_sigmoid(gate.w));
    else *to = make_float4(part->o.x * factor, part->o.y * factor, part->o.z * factor, part->o.w * factor);
}

/* Partials in device memory: o [kv_heads][splits][rows][head_dim], then ml [kv_heads][slices][splits][rows]. The splits are
   filled up to the number of partials: a cluster stores one or, without clusters, a block. */
__device__ __forceinline__ float *attend_part_o(const attention_gpu *p, int rows, int partial, int row, int column) {
    return p->parts + (((size_t)blockIdx.x * p->splits + partial) * rows + row) * p->shape.head_dim + column;
}

__device__ __forceinline__ float2 *attend_part_ml(const attention_gpu *p, int rows, int partial, int row, int slice) {
    float *ml = p->parts + (size_t)p->shape.kv_heads * p->splits * rows * p->shape.head_dim;
    return (float2 *)ml + ((size_t)(blockIdx.x * ATTEND_CLUSTER + slice) * p->splits + partial) * rows + row;
}

/* Last-block reduction: true, in all threads, for the last of `count` blocks to call this, which resets the ticket. What
   the other blocks stored before their calls is then visible to loads past L1 (ld.global.cg). */
__device__ __forceinline__ bool attend_is_last(int *ticket, int count, int *last) {
    __syncthreads();
    if (threadIdx.x == 0) {
        int before;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
        *last = before == count - 1;
        if (*last) *ticket = 0;
    }
    __syncthreads();
    return *last;
}

/* A block's share in combining the partials. */
typedef struct attend_place {
    int partial, partials;       /* that its cluster (without clusters: it) stores; of how many */
    int ranks;                   /* blocks of its cluster with work, the first */
    int slice, slices;           /* eighths of a head that it combines: its first, how many */
} attend_place;

/* All blocks of a cluster compute the same `partial` and `partials`: they return early together or not at all. */
__device__ __forceinline__ attend_place attend_place_of(const attention_gpu *p, int chunks) {
    attend_place at;
#if __CUDA_ARCH__ >= 900
    at.partial = blockIdx.y / ATTEND_CLUSTER;
    at.partials = max(1, min((chunks + ATTEND_CLUSTER - 1) / ATTEND_CLUSTER, p->splits / ATTEND_CLUSTER));
    at.ranks = max(1, min(chunks - at.partial * ATTEND_CLUSTER, (int)ATTEND_CLUSTER));
    at.slice = blockIdx.y % ATTEND_CLUSTER;
    at.slices = 1;
#else
    at.partial = blockIdx.y;
    at.partials = max(1, min(chunks, p->splits));
    at.ranks = 1;
    at.slice = 0;
    at.slices = ATTEND_CLUSTER;
#endif
    return at;
}

/* Publishes this block's shared memory to its cluster: visible to the others after their attend_cluster_wait. */
__device__ __forceinline__ void attend_cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

/* Arrives after reading the others' shared memory. Relaxed: the loads are complete, their values have been stored. */
__device__ __forceinline__ void attend_cluster_leave() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

__device__ __forceinline__ void attend_cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/* Combines the cluster's partials of a query row, from (distributed) shared memory. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ attend_part attend_join_cluster(attend_shared<FP8, ROWS, DIM> *sh, int ranks, int row, int column) {
    attend_part part = {-INFINITY, 0, {0, 0, 0, 0}};
    float2 ml[ATTEND_CLUSTER] = {};
    float4 o[ATTEND_CLUSTER] = {};
#pragma unroll
    for (int i = 0; i < ATTEND_CLUSTER; i++) {
#if __CUDA_ARCH__ >= 900
        if (i >= ranks) continue;
        ml[i] = *(const float2 *)__cluster_map_shared_rank(&sh->ml[row], i);
        o[i] = *(const float4 *)__cluster_map_shared_rank(&sh->o[row][column], i);
#else
        ml[i] = sh->ml[row];
        o[i] = *(const float4 *)&sh->o[row][column];
#endif
    }
    attend_join(&part, ranks, ml, o);
    return part;
}

/* Combines all partials from device memory, eight loads in flight at a time. */
template <int DIM>
__device__ __forceinline__ attend_part attend_join_partials(const attention_gpu *p, int partials, int row, int column) {
    attend_part part = {-INFINITY, 0, {0, 0, 0, 0}};
    const int rows = p->T * p->q_per_kv;
#pragma unroll 1
    for (int base = 0; base < partials; base += 8) {
        float2 ml[8];
        float4 o[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int partial = min(base + i, partials - 1);
            ml[i] = __ldcg(attend_part_ml(p, rows, partial, row, column / (DIM / ATTEND_CLUSTER)));
            o[i] = __ldcg((const float4 *)attend_part_o(p, rows, partial, row, column));
        }
        attend_join(&part, partials - base, ml, o);
    }
    return part;
}

/* Combines the partials of all blocks: see the top of this file. A thread has 4 dimensions of a slice, of every ROUNDth query
   row. It loads its first gate, which needs pdl_wait only, before the cluster barrier. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_combine(const attention_gpu *p, attend_shared<FP8, ROWS, DIM> *sh,
                                               const attend_place *place) {
    enum { SLICE = DIM / ATTEND_CLUSTER, THREADS = SLICE / 4, ROUND = GPU_THREADS / THREADS };   /* THREADS: of a row */
    const int rows = p->T * p->q_per_kv, first = threadIdx.x / THREADS, slice = place->slice, partials = place->partials;
    const int column = slice * SLICE + threadIdx.x % THREADS * 4, end = column + place->slices * SLICE;
    float4 gate = first < rows ? attend_output_gate<DIM>(p, first, column) : make_float4(0, 0, 0, 0);
    attend_cluster_wait();
#pragma unroll 1
    for (int c = column; c < end; c += SLICE)
#pragma unroll 1
        for (int row = first; row < rows; row += ROUND) {
            attend_part part = attend_join_cluster<FP8, ROWS, DIM>(sh, place->ranks, row, c);
            if (partials == 1) {
                if (c > column || row > first) gate = attend_output_gate<DIM>(p, row, c);
                attend_finish<DIM>(p, row, c, &part, gate);
            } else {
                *(float4 *)attend_part_o(p, rows, place->partial, row, c) = part.o;
                if (threadIdx.x % THREADS == 0) *attend_part_ml(p, rows, place->partial, row, c / SLICE) = make_float2(part.m, part.l);
            }
        }
    attend_cluster_leave();
    if (partials > 1 && attend_is_last(p->tickets + blockIdx.x * ATTEND_CLUSTER + slice, partials, &sh->last)) {
#pragma unroll 1
        for (int c = column; c < end; c += SLICE)
#pragma unroll 1
            for (int row = first; row < rows; row += ROUND) {
                attend_part part = attend_join_partials<DIM>(p, partials, row, c);
                if (c > column || row > first) gate = attend_output_gate<DIM>(p, row, c);
                attend_finish<DIM>(p, row, c, &part, gate);
            }
    }
    attend_cluster_wait();                                   /* until then others may read this block's shared memory */
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ATTEND_CLUSTERS __cluster_dims__(1, ATTEND_CLUSTER, 1)
#else
#define ATTEND_CLUSTERS
#endif

/* The kernel. Grid: (kv head, split, sequence), clusters of 8 splits; with fewer than p.splits of them, those that have chunks. Two
   blocks an SM up to 32 query rows (16 of each sequence), one with more.
   Two block barriers a chunk: one makes the maxima visible, the other the weights. Each also protects the other's buffer: a
   warp stores its maxima of the next chunk only after all warps have read those of this one, and so for the weights. */
template <bool FP8, int ROWS, int DIM, bool EACH>
__global__ void ATTEND_CLUSTERS __launch_bounds__(GPU_THREADS, DIM < ATTEND_DIM || ROWS <= (EACH ? 16 : 32) ? 2 : 1)
attend_fast(const __grid_constant__ attention_gpu all) {
    extern __shared__ __align__(16) char memory[];
    const attention_gpu own = EACH ? attend_sequence(all, blockIdx.z) : all;
    const attention_gpu &p = EACH ? own : all;
    enum { TILES = attend_sizes<ROWS>::TILES };
    attend_shared<FP8, ROWS, DIM> *sh = (attend_shared<FP8, ROWS, DIM> *)memory;
    attend_rows<FP8, DIM> r;
    attend_state<ROWS, DIM> state;
    attend_vector<DIM> q_norm, k_norm = {};
    pdl_launch_dependents();
    const bool all_rotate = DIM == 128 && p.shape.rotary_dim == 128;
    const float frequency = p.frequencies[threadIdx.x % 32], higher = all_rotate ? p.frequencies[32 + threadIdx.x % 32] : 0;
    if (attend_normed<DIM>(&p.shape)) attend_load_vector(&q_norm, p.q_norm);
    const attend_span s = attend_span_of(&p);
    const int t = threadIdx.x / 32 % MOTE_ROWS_MAX;
    const int tiles = TILES == 1 ? 1 : (p.T * p.q_per_kv + 15) / 16;
    if (attend_place_of(&p, s.chunks).partial >= attend_place_of(&p, s.chunks).partials) return;
    int chunk = blockIdx.y, cached = max(0, min(s.first, s.end));
    attend_load_k<FP8, DIM>(&p, cached, chunk, &r);
    attend_load_v<FP8, DIM>(&p, cached, chunk, &r);
    const bool owns = t < p.T && attend_owns(&p, &s, s.first + t);
    if (owns && attend_normed<DIM>(&p.shape)) attend_load_vector(&k_norm, p.k_norm);
    if (threadIdx.x / 32 < p.T) attend_angle(&p.shape, s.first + t, threadIdx.x % 32, frequency, sh->cs[t]);
    if (threadIdx.x / 32 < p.T && all_rotate) attend_angle(&p.shape, s.first + t, 32 + threadIdx.x % 32, higher, sh->cs[t]);
    if (threadIdx.x < ROWS) sh->kv_last[threadIdx.x] = min(s.first + attend_token(&p, threadIdx.x), s.end - 1);
    __syncthreads();
    pdl_wait();
    attend_prepare<FP8, ROWS, DIM>(&p, &s, &q_norm, &k_norm, owns, sh);
    __syncthreads();
    if ((chunk + 1) * ATTEND_CHUNK > s.first) {
        attend_new_k<FP8, ROWS, DIM>(sh, &s, chunk, &r);
        attend_new_v<FP8, ROWS, DIM>(sh, &s, chunk, &r);
    }
    memset(&state, 0, sizeof state);
#pragma unroll
    for (int k = 0; k < attend_sizes<ROWS>::TOP_ROWS / 32; k++) state.m[k] = -INFINITY;
#pragma unroll 1
    for (; chunk < s.chunks; chunk += p.splits) {
        float c[TILES][4];
        int next = chunk + p.splits;
        memset(c, 0, sizeof c);
        attend_scores<FP8, ROWS, DIM>(sh, &r, tiles, c);
        if (next < s.chunks) {
            attend_load_k<FP8, DIM>(&p, cached, next, &r);
            if ((next + 1) * ATTEND_CHUNK > s.first) attend_new_k<FP8, ROWS, DIM>(sh, &s, next, &r);
        }
        attend_tops<FP8, ROWS, DIM>(sh, chunk, tiles, p.k_scale, c);
        __syncthreads();
        attend_weights<FP8, ROWS, DIM>(sh, tiles, p.k_scale, c, &state);
        __syncthreads();
        attend_values<FP8, ROWS, DIM>(sh, &r, tiles, &state);
        if (next < s.chunks) {
            attend_load_v<FP8, DIM>(&p, cached, next, &r);
            if ((next + 1) * ATTEND_CHUNK > s.first) attend_new_v<FP8, ROWS, DIM>(sh, &s, next, &r);
        }
    }
    attend_put_part<FP8, ROWS, DIM>(sh, tiles, &state);
    attend_cluster_arrive();
    attend_place place = attend_place_of(&p, attend_span_of(&p).chunks);  /* again: saves registers in the loop */
    attend_combine<FP8, ROWS, DIM>(&p, sh, &place);
}
