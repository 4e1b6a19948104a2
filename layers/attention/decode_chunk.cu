/* layers/attention/decode_chunk.cu: what a block of attend_fast does: it prepares queries and new rows, and takes its chunks of 64
   positions one after the other, on tensor cores. The kernel, and what its template parameters are: decode_fast.cu.

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
   memory, rounded as the KV cache holds them. */

/* A lane's part of an A fragment: elements 2i, 2i + 1 of row g (and of row g + 8 if HALVES is 2), then 2i + 8, 2i + 9. */
template <int HALVES> struct __align__(8 * HALVES) attend_a {
    uint32_t r[2 * HALVES];
};

template <bool FP8, int HALVES>
__device__ __forceinline__ void attend_mma(float *c, const attend_a<HALVES> &part, uint32_t b0, uint32_t b1) {
    const uint32_t a[4] = {part.r[0], HALVES > 1 ? part.r[1] : 0, part.r[HALVES], HALVES > 1 ? part.r[2 * HALVES - 1] : 0};
    mma_m16n8k16<FP8>(c, a, b0, b1);
}

/* TILES: of 16 query rows. HALVES: of a tile that exist, see decode_fast.cu. TOP_ROWS: query rows whose maximum a warp keeps, one or two
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
    union {
        attend_a<HALVES> p[TILES][2][ATTEND_CHUNK / 16][32]; /* A fragments of the values: weights of 16 positions */
        float cs[STEP_ROWS][DIM];                            /* until then cos and sin of each token row: attend_angle */
    };
    uint4 new_kv[2][STEP_ROWS][DIM / (FP8 ? 16 : 8)];    /* new rows of k and v as the KV cache holds them */
    float top[TOP_ROWS][GPU_WARPS];                          /* a warp's largest score of a row; at the end its l */
    float2 ml[TOP_ROWS];
    int kv_last[ROWS];                                       /* last position that a row sees */
    int last;
};

static_assert(sizeof(attend_shared<false, 64, ATTEND_DIM>) <= GPU_SHARED, "shared memory of attend_fast");
static_assert(sizeof(attend_shared<false, 32, 2 * ATTEND_DIM>) <= GPU_SHARED, "shared memory of attend_fast");

/* What a layer's heads have, in a kernel that is not EACH Qwen3.5's: gates of q_proj, norms of queries and keys, 64 dimensions rotated. */
template <bool EACH> __device__ __forceinline__ bool attend_gated(const attention_shape *s) {
    return !EACH || s->gated;
}

template <bool EACH> __device__ __forceinline__ bool attend_normed(const attention_shape *s) {
    return !EACH || s->normed;
}

template <bool EACH> __device__ __forceinline__ int attend_half(const attention_shape *s) {
    return EACH ? s->rotary_dim / 2 : 32;
}

/* A lane's part of a chunk, for its B fragments. */
template <bool FP8, int DIM> struct attend_rows {
    enum { KEYS = DIM / (FP8 ? 64 : 32), DIMS = DIM / 64, BYTES = DIMS * (FP8 ? 1 : 2), WORDS = (BYTES + 3) / 4 };  /* DIMS: of a value */
    uint4 k[KEYS];
    uint32_t v[ATTEND_CHUNK / 16][4][WORDS];                 /* [positions / 16][2i, 2i+1, 2i+8, 2i+9][dimensions] */
};

/* BYTES bytes as words. */
template <int BYTES> __device__ __forceinline__ void attend_load_bytes(uint32_t *to, const void *from) {
    if constexpr (BYTES == 16) {
        const uint4 four = *(const uint4 *)from;
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else if constexpr (BYTES == 8) {
        const uint2 two = *(const uint2 *)from;
        to[0] = two.x, to[1] = two.y;
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
   has none: these are overwritten by new rows (attend_new_k, attend_new_v) or have weight 0. So has, in a ring, a row before the window, which
   may be that of a later position. */
template <bool FP8, int DIM>
__device__ __forceinline__ void attend_load_k(const attention_gpu *p, int cached, int chunk, attend_rows<FP8, DIM> *r) {
    int thread = attend_thread(), lane = thread % 32;
    int most = cached - 1 - chunk * ATTEND_CHUNK, at = attend_row(chunk * ATTEND_CHUNK, p->ring) + min(thread / 32 * 8 + lane / 4, most);
    const uint4 *row = (const uint4 *)(attend_cache(p, false) + ((size_t)at * p->shape.kv_heads + blockIdx.x) *
                                                                (DIM * (FP8 ? 1 : 2))) + lane % 4;
#pragma unroll
    for (int j = 0; j < attend_rows<FP8, DIM>::KEYS; j++) r->k[j] = most >= 0 ? row[4 * j] : make_uint4(0, 0, 0, 0);
}

template <bool FP8, int DIM>
__device__ __forceinline__ void attend_load_v(const attention_gpu *p, int cached, int chunk, attend_rows<FP8, DIM> *r) {
    enum { BYTES = attend_rows<FP8, DIM>::BYTES, WORDS = attend_rows<FP8, DIM>::WORDS };
    int thread = attend_thread(), lane = thread % 32, most = cached - 1 - chunk * ATTEND_CHUNK;
    int stride = p->shape.kv_heads * DIM * (FP8 ? 1 : 2);
    const char *base = attend_cache(p, true) + (size_t)attend_row(chunk * ATTEND_CHUNK, p->ring) * stride +
                       (blockIdx.x * DIM * (FP8 ? 1 : 2) + (thread / 32 * 8 + lane / 4) * BYTES);
#pragma unroll
    for (int j = 0; j < ATTEND_CHUNK / 4; j++) {
        int offset = min(j / 4 * 16 + j % 2 + j % 4 / 2 * 8 + lane % 4 * 2, most);
        uint32_t *to = r->v[j / 4][j % 4];
#pragma unroll
        for (int w = 0; w < WORDS; w++) to[w] = 0;
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

template <int DIM> __device__ __forceinline__ void attend_scale_vector(attend_vector<DIM> *v, float factor) {
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) v->x[j] = make_float2(v->x[j].x * factor, v->x[j].y * factor);
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

/* Where elements e and e + 1 of a query row lie in the A fragments of the scores, high (part 0) or low; e is even. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ uint32_t *attend_query_at(attend_shared<FP8, ROWS, DIM> *sh, int row, int part, int e) {
    enum { VECTOR_ELEMENTS = FP8 ? 16 : 8, HALVES = attend_sizes<ROWS>::HALVES };  /* elements in 16 bytes of the KV cache */
    const int step = e / (4 * VECTOR_ELEMENTS) * (VECTOR_ELEMENTS / 4) + e % VECTOR_ELEMENTS / 4, i = e / VECTOR_ELEMENTS % 4;
    return &sh->q[row / 16][part][step][row % 8 * 4 + i].r[e % 4 / 2 * HALVES + row % 16 / 8];
}

/* Element e of a head that lies as a float where two elements of a query row will. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ float *attend_parked(attend_shared<FP8, ROWS, DIM> *sh, int row, int e) {
    return (float *)attend_query_at(sh, row, e % 2, e / 2 * 2);
}

/* Rotates the first 2 half elements, i with i + half, whatever half is: in the place of a query row that this warp has yet to store. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_rotate_any(attend_shared<FP8, ROWS, DIM> *sh, int row, int half, attend_vector<DIM> *v,
                                                  const float *cs) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) {
        *attend_parked(sh, row, 2 * lane + 64 * j) = v->x[j].x;
        *attend_parked(sh, row, 2 * lane + 64 * j + 1) = v->x[j].y;
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < half; i += 32) {
        float *first = attend_parked(sh, row, i), *second = attend_parked(sh, row, half + i);
        const float a = *first, b = *second;
        *first = attend_rotate(a, -b, cs[i], cs[half + i]);
        *second = attend_rotate(b, a, cs[i], cs[half + i]);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < DIM / 64; j++)
        v->x[j] = make_float2(*attend_parked(sh, row, 2 * lane + 64 * j), *attend_parked(sh, row, 2 * lane + 64 * j + 1));
    __syncwarp();
}

/* RMSNorm, given the head's sum of squares; then the rotation. Of 64 rotated elements, i with i + 32, the other one of a pair is on
   lane ^ 16; where all of the head is rotated, both are on one lane. row: see attend_rotate_any. */
template <bool FP8, int ROWS, int DIM, bool EACH>
__device__ __forceinline__ void attend_norm_rotate(const attention_gpu *p, attend_shared<FP8, ROWS, DIM> *sh, int row,
                                                   attend_vector<DIM> *v, float squares, const attend_vector<DIM> *norm, const float *cs) {
    const int lane = threadIdx.x % 32, half = attend_half<EACH>(&p->shape);
    if (attend_normed<EACH>(&p->shape)) attend_norm(v, rms_factor(squares, 1.0f / DIM, p->shape.eps), norm);
    if (half == 32) {
        float2 cosine = ((const float2 *)cs)[lane % 16], sine = ((const float2 *)cs)[16 + lane % 16];
        float2 other = {__shfl_xor_sync(~0u, v->x[0].x, 16), __shfl_xor_sync(~0u, v->x[0].y, 16)};
        if (lane < 16) other = make_float2(-other.x, -other.y);
        v->x[0].x = attend_rotate(v->x[0].x, other.x, cosine.x, sine.x);
        v->x[0].y = attend_rotate(v->x[0].y, other.y, cosine.y, sine.y);
    } else if (DIM > 64 && half == DIM / 2) {
#pragma unroll
        for (int j = 0; j < DIM / 128; j++) {
            const float2 cosine = ((const float2 *)cs)[lane + 32 * j], sine = ((const float2 *)cs)[DIM / 4 + lane + 32 * j], a = v->x[j];
            float2 &b = v->x[DIM / 128 + j];
            v->x[j] = make_float2(attend_rotate(a.x, -b.x, cosine.x, sine.x), attend_rotate(a.y, -b.y, cosine.y, sine.y));
            b = make_float2(attend_rotate(b.x, a.x, cosine.x, sine.x), attend_rotate(b.y, a.y, cosine.y, sine.y));
        }
    } else if (half) {
        attend_rotate_any(sh, row, half, v, cs);
    }
}

/* Stores a query row as A fragments of the scores, scaled. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_put_query(attend_shared<FP8, ROWS, DIM> *sh, int row, const attend_vector<DIM> *v, float scale) {
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) {
        const int e = 2 * (threadIdx.x % 32) + 64 * j;
        split_pair<FP8>(v->x[j].x * scale, v->x[j].y * scale, attend_query_at(sh, row, 0, e), attend_query_at(sh, row, 1, e));
    }
}

/* Norms and rotation of queries and new keys, norms of new values, and the KV append. A warp prepares query rows warp, warp + 8, ...
   In a block that owns the position (owns), warp t < 4 also appends the new k of token row t, warp 4 + t its v: to the KV cache, and
   to shared memory, from where this block computes with it. */
template <bool FP8, int ROWS, int DIM, bool EACH>
__device__ __forceinline__ void attend_prepare(const attention_gpu *p, const attend_span *s, const attend_vector<DIM> *q_norm,
                                               const attend_vector<DIM> *k_norm, bool owns, attend_shared<FP8, ROWS, DIM> *sh) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = p->T * p->q_per_kv;
    const int which = warp / STEP_ROWS, t = warp % STEP_ROWS, q_size = attend_gated<EACH>(&p->shape) ? 2 * DIM : DIM;
    attend_vector<DIM> v = {}, next = {}, new_kv = {};
    if (warp < rows) attend_load_vector(&v, p->qg + attend_head_of(p, warp) * q_size);
    if (owns) attend_load_vector(&new_kv, (which ? p->v_new : p->k_new) + (t * p->shape.kv_heads + blockIdx.x) * DIM);
    float squares = attend_squares(&v), new_squares = attend_squares(&new_kv);
#pragma unroll
    for (int i = 16; i; i /= 2) {                            /* two independent reductions: their latencies overlap */
        squares += __shfl_xor_sync(~0u, squares, i);
        new_squares += __shfl_xor_sync(~0u, new_squares, i);
    }
    if (owns && !which) attend_norm_rotate<FP8, ROWS, DIM, EACH>(p, sh, warp, &new_kv, new_squares, k_norm, sh->cs[t]);
    if (EACH && owns && which && p->shape.v_normed) attend_scale_vector(&new_kv, rms_factor(new_squares, 1.0f / DIM, p->shape.eps));
    if (owns) {
        size_t at = ((size_t)attend_row(s->first + t, p->ring) * (size_t)p->shape.kv_heads + blockIdx.x) * (DIM / 2) + lane;
#pragma unroll
        for (int j = 0; j < DIM / 64; j++) {
            attend_store_pair<FP8>(attend_cache(p, which), at + 32 * j, new_kv.x[j], which ? p->v_scale : p->k_scale);
            attend_store_pair<FP8>(sh->new_kv[which][t], lane + 32 * j, new_kv.x[j], which ? p->v_scale : p->k_scale);
        }
    }
#pragma unroll 1
    for (int row = warp; row < rows; row += GPU_WARPS) {
        bool more = ROWS > GPU_WARPS && row + GPU_WARPS < rows;
        if (more) attend_load_vector(&next, p->qg + attend_head_of(p, row + GPU_WARPS) * q_size);
        attend_norm_rotate<FP8, ROWS, DIM, EACH>(p, sh, row, &v, squares, q_norm, sh->cs[attend_token(p, row)]);
        attend_put_query<FP8, ROWS, DIM>(sh, row, &v, p->query_scale);
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
    float o[TILES][DIM / 64][4];                             /* C fragments; [n] of N = DIM / 64: warp's dimensions 2Ni+n, 2Ni+N+n */
};

/* The state before the first chunk: in split 0 that of the heads' sinks. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_begin(const attention_gpu *p, attend_state<ROWS, DIM> *state) {
    const float *sinks = blockIdx.y == 0 ? p->sinks : NULL;
    const int lane = threadIdx.x % 32;
    memset(state, 0, sizeof *state);
#pragma unroll
    for (int k = 0; k < attend_sizes<ROWS>::TOP_ROWS / 32; k++) {
        const int row = k * 32 + lane, of = row - attend_token(p, row) * p->q_per_kv;
        state->m[k] = attend_first_top(sinks, min((int)blockIdx.x * p->q_per_kv + of, p->shape.heads - 1));
    }
#pragma unroll
    for (int tile = 0; tile < attend_sizes<ROWS>::TILES; tile++)
#pragma unroll
        for (int half = 0; half < attend_sizes<ROWS>::HALVES; half++)        /* of a row's lanes one */
            state->l[tile][half] = sinks && threadIdx.x < 32 && lane % 4 == 0 ? attend_unit(FP8) : 0;
}

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
    enum { TILES = attend_sizes<ROWS>::TILES, DIMS = attend_rows<FP8, DIM>::DIMS, GROUP = DIMS < 4 ? DIMS : 4 };
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < ATTEND_CHUNK / 16 * (DIMS / GROUP); part++) {
        const int step = part / (DIMS / GROUP), group = part % (DIMS / GROUP);       /* positions of 16; dimensions of GROUP */
        const int word = FP8 ? group : 2 * group, next = word + (!FP8 && GROUP == 4);
        uint32_t b[4][2];                                    /* [dimension][B fragment]; the first GROUP count */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t *one = r->v[step][2 * half], *two = r->v[step][2 * half + 1];
            if (FP8) {
                uint32_t low = __byte_perm(one[word], two[word], 0x5140), high = __byte_perm(one[word], two[word], 0x7362);
                e4m3_pairs(low, &b[0][half], &b[1][half]);
                e4m3_pairs(high, &b[2][half], &b[3][half]);
            } else {
                b[0][half] = __byte_perm(one[word], two[word], 0x5410);
                b[1][half] = __byte_perm(one[word], two[word], 0x7632);
                b[2][half] = __byte_perm(one[next], two[next], 0x5410);
                b[3][half] = __byte_perm(one[next], two[next], 0x7632);
            }
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            if (tile >= tiles) break;
            attend_a<attend_sizes<ROWS>::HALVES> high = sh->p[tile][0][step][lane], low = sh->p[tile][1][step][lane];
#pragma unroll
            for (int n = 0; n < GROUP; n++) {
                attend_mma<FP8>(state->o[tile][GROUP * group + n], high, b[n][0], b[n][1]);
                attend_mma<FP8>(state->o[tile][GROUP * group + n], low, b[n][0], b[n][1]);
            }
        }
    }
}

/* Masks the positions that a row does not see; top[row][warp] = the row's largest score over the warp's positions, in which
   the keys' scale is. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ void attend_tops(attend_shared<FP8, ROWS, DIM> *sh, int chunk, int window, int tiles, float k_scale,
                                            float (*c)[4]) {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = chunk * ATTEND_CHUNK + warp * 8 + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            int row = tile * 16 + half * 8 + lane / 4, kv_last = sh->kv_last[row];
            if (attend_hidden(kv_last, at, window)) c[tile][2 * half] = -INFINITY;
            if (attend_hidden(kv_last, at + 1, window)) c[tile][2 * half + 1] = -INFINITY;
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
    const float weight_scale = attend_unit(FP8);
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
