/* layers/mla/attend_fast.cu: latent_attend on tensor cores, for latents of 512 and 64 rotated numbers. What stands where, and why it may be
   split: decode.cu.

   A block has MLA_ROWS query rows, of (token row, head), and every splits' chunk of 16 positions. A chunk is in shared memory once, as
   16-bit numbers: BF16 as the cache has them, FP8 as F16, exactly. All of its rows' numbers are keys, the first 512 values. Four warps
   make scores, four make sums, each of a chunk of its own, so that one multiplies while the other waits:

     scores   of chunk n. A: m = positions, k = numbers. B: n = query rows, two terms of 16 bits, in registers. Warp w has the steps
              w, w + 4, ... of 16 numbers. Four warps' sums meet in `part`. These warps also fill the chunks.
     sums     of chunk n - 1. Warp w has six query rows' weights of all positions: a weight is two terms as well. Then
              A: m = numbers, k = positions; B: n = query rows. Warp w has the tiles w, w + 4, ... of 16 numbers

   Numbers of a lane's B are in pairs as the cache has them, A comes by ldmatrix, for sums turned over. Piece c of a row of a chunk, 16
   bytes, is at c ^ row % 8, so that neither way of reading meets in a bank; which of eight pieces a warp reads never changes.

   Why so. Of a chunk an SM has 216 and 192 mma, on four tensor cores of which each takes one in some 6.5 cycles: 660 cycles, 0.4 us. Shared memory
   is written and read by 18 KB each of the copies, scores and sums, and 12 KB between: 0.3 us. From memory an H100's SM has 18 KB in 0.8 us at
   most, and needs as much under way as comes in the 1 us that a load takes: 23 KB; MLA_AHEAD chunks are 55. So what is waited for is memory, if
   the way from a chunk's scores to its weights, 300 cycles of barriers, shuffles and exponents, lies beside mma of other chunks. Between these it
   doubled their time: all eight warps for scores and sums in turns, with 12 of 32 query rows idle, took 2 us for 32 positions, whatever the bytes.

   Barriers of a chunk, by their numbers: MLA_CHUNK_THERE of the warps of scores: their copies are there; MLA_SCORES_THERE: `part` is full;
   MLA_SCORES_READ: it is free again, and so is the chunk before; MLA_WEIGHTS_THERE of the warps of sums. So five chunks are enough: one of
   scores, one of sums, three on their way. Of FP8 codes three are F16, and four are as they come, in the place of two.

   Parts are joined in a cluster of eight splits through distributed shared memory, each block an eighth of the numbers, and stored. Before
   compute capability 9.0 there are no clusters: a block stores its own.

   Grid: (query rows, split, sequence). */

enum {
    MLA_THREADS = GPU_THREADS / 2, MLA_WARPS = GPU_WARPS / 2,   /* of scores, and of sums */
    MLA_TILES = MLA_ROWS / 8,                                /* n-tiles of query rows */
    MLA_STEPS = (MLA_RANK + MLA_ROPE) / 16 / MLA_WARPS,      /* of scores, of a warp */
    MLA_SUMS = MLA_RANK / 16 / MLA_WARPS,                    /* tiles of sums, of a warp */
    MLA_PIECES = (MLA_RANK + MLA_ROPE) / 8,                  /* uint4 of a row of a chunk */
    MLA_CODES = (MLA_RANK + MLA_ROPE) / 16,                  /* of a row of codes */
    MLA_HELD = 5,                                            /* chunks in shared memory */
    MLA_HELD_F16 = 3, MLA_HELD_CODES = 4,                    /* of FP8 */
    MLA_AHEAD = 3,                                           /* on their way */
    MLA_SHARE = 3                                            /* query rows of a lane of the warps of sums */
};

enum { MLA_CHUNK_THERE = 1, MLA_SCORES_THERE, MLA_SCORES_READ, MLA_WEIGHTS_THERE };

typedef uint4 mla_chunk_rows[MLA_CHUNK][MLA_PIECES];
typedef uint4 mla_chunk_codes[MLA_CHUNK][MLA_CODES];

struct mla_shared {
    union {
        mla_chunk_rows chunk[MLA_HELD];
        struct { mla_chunk_rows chunk[MLA_HELD_F16]; mla_chunk_codes codes[MLA_HELD_CODES]; } fp8;
        float o[MLA_ROWS][MLA_RANK + 4];                     /* of the block's part, when no chunk is left */
    };
    float part[MLA_WARPS][MLA_CHUNK][MLA_ROWS + 2];          /* scores */
    uint32_t weight[2][MLA_TILES][32][2];                    /* B fragments: high, low */
    float rescale[MLA_ROWS];
    float2 ml[MLA_ROWS];
};

static_assert(sizeof(mla_shared) <= GPU_SHARED && sizeof(float) * MLA_ROWS * (MLA_RANK + 4) <= sizeof(mla_chunk_rows[MLA_HELD]),
              "shared memory of latent_attend");
static_assert(MLA_CHUNK == 16 && MLA_ROWS == 2 * MLA_SHARE * MLA_WARPS && MLA_STEPS * MLA_WARPS * 16 == MLA_RANK + MLA_ROPE &&
              MLA_PIECES % 8 == 0, "the shares of threads and warps");

/* The query rows of a block. */
typedef struct mla_place {
    mla_range s;
    const char *cache;
    int first, rows;             /* the first, of all heads of the sequence's token rows; how many of these there are */
    int partial, partials;       /* that its cluster (without clusters: it) stores; of how many */
    int ranks;                   /* blocks of its cluster with chunks, the first */
    int chunks;                  /* the block's */
    int old;                     /* of these those, the first ones, that no kernel of this step stores rows of */
} mla_place;

/* All blocks of a cluster have the same partial and partials: they return early together or not at all. */
__device__ __forceinline__ mla_place mla_place_of(const mla_gpu &p) {
    mla_place at;
    at.s = mla_range_of(p, blockIdx.z);
    at.cache = mla_cache(p, at.s);
    at.first = (int)blockIdx.x * MLA_ROWS;
    at.rows = at.s.T * p.shape.heads;
    at.chunks = max(0, at.s.chunks - (int)blockIdx.y + p.splits - 1) / p.splits;
    at.old = p.sequences ? 0 : max(0, max(at.s.first, 0) / MLA_CHUNK - (int)blockIdx.y + p.splits - 1) / p.splits;
#if __CUDA_ARCH__ >= 900
    at.partial = (int)blockIdx.y / ATTEND_CLUSTER;
    at.partials = max(1, min((at.s.chunks + ATTEND_CLUSTER - 1) / ATTEND_CLUSTER, p.splits / ATTEND_CLUSTER));
    at.ranks = max(1, min(at.s.chunks - at.partial * ATTEND_CLUSTER, (int)ATTEND_CLUSTER));
#else
    at.partial = (int)blockIdx.y;
    at.partials = max(1, min(at.s.chunks, p.splits));
    at.ranks = 1;
#endif
    return at;
}

/* The block's n-th chunk. */
__device__ __forceinline__ int mla_chunk_of(const mla_gpu &p, int n) {
    return (int)blockIdx.y + n * p.splits;
}

/* Begins to copy the block's n-th chunk, if there is one: a warp of scores copies four rows, a thread every eighth of a row's pieces. It is a
   group of copies either way. Rows after the last that there is are that one again: their weights are 0. */
template <bool FP8> __device__ __forceinline__ void mla_copy_chunk(const mla_gpu &p, const mla_place &at, mla_shared *sh, int n) {
    enum { PIECES = FP8 ? MLA_CODES : MLA_PIECES };
    const int row = threadIdx.x / 8, column = threadIdx.x % 8;
    if (n < at.chunks) {
        const size_t cached = (size_t)min(mla_chunk_of(p, n) * MLA_CHUNK + row, at.s.end - 1);
        const uint4 *from = (const uint4 *)at.cache + cached * PIECES + column;
        const uint32_t to = shared_address(FP8 ? &sh->fp8.codes[n % MLA_HELD_CODES][row][column] : &sh->chunk[n % MLA_HELD][row][column ^ row % 8]);
#pragma unroll
        for (int k = 0; k < (PIECES + 7) / 8; k++)
            if (8 * k + column < PIECES) cp_async16(to + (uint32_t)(8 * k * sizeof(uint4)), from + 8 * k, true);
    }
    cp_async_commit();
}

/* Stores the codes that the thread has copied as F16. */
__device__ __forceinline__ void mla_put_codes(mla_shared *sh, int n) {
    const int row = threadIdx.x / 8, column = threadIdx.x % 8;
    uint4 *to = sh->fp8.chunk[n % MLA_HELD_F16][row];
#pragma unroll
    for (int k = 0; k < (MLA_CODES + 7) / 8; k++) {
        const int piece = 8 * k + column;
        if (piece >= MLA_CODES) continue;
        const uint4 codes = sh->fp8.codes[n % MLA_HELD_CODES][row][piece];
        uint4 low, high;
        e4m3_pairs(codes.x, &low.x, &low.y);
        e4m3_pairs(codes.y, &low.z, &low.w);
        e4m3_pairs(codes.z, &high.x, &high.y);
        e4m3_pairs(codes.w, &high.z, &high.w);
        to[2 * piece ^ row % 8] = low;
        to[(2 * piece + 1) ^ row % 8] = high;
    }
}

/* Where the block's n-th chunk is. */
template <bool FP8> __device__ __forceinline__ const mla_chunk_rows &mla_held(const mla_shared *sh, int n) {
    return FP8 ? sh->fp8.chunk[n % MLA_HELD_F16] : sh->chunk[n % MLA_HELD];
}

/* A warp's queries: B fragments of its steps, high and low terms. */
struct mla_queries { uint32_t b[MLA_STEPS][MLA_TILES][2][2]; };

template <bool FP8> __device__ __forceinline__ void mla_load_queries(const mla_gpu &p, const mla_place &at, mla_queries *q) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4, warp = threadIdx.x / 32;
    const float scale = mla_query_scale(p);
#pragma unroll
    for (int n = 0; n < MLA_TILES; n++) {
        const int row = at.first + 8 * n + g;
        const float *from = p.l + ((size_t)at.s.row * p.shape.heads + row) * (MLA_RANK + MLA_ROPE) + 16 * warp + 2 * i;
#pragma unroll
        for (int k = 0; k < MLA_STEPS; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float2 x = row < at.rows ? __ldcg((const float2 *)(from + 16 * MLA_WARPS * k + 8 * half)) : make_float2(0, 0);
                split_pair<FP8>(x.x * scale, x.y * scale, &q->b[k][n][0][half], &q->b[k][n][1][half]);
            }
    }
}

/* C fragments of a warp's share of scores; the terms' sums are apart until the end, as more of them are under way then. */
struct mla_score_sums { float of[MLA_TILES][2][4]; };

template <bool FP8> __device__ __forceinline__ void mla_scores(const mla_chunk_rows &chunk, const mla_queries &q, mla_score_sums *c) {
    const int lane = threadIdx.x % 32, row = lane % 16, warp = threadIdx.x / 32;
    const uint32_t from = shared_address(&chunk[row][(2 * warp + lane / 16) ^ row % 8]);
    memset(c, 0, sizeof *c);
#pragma unroll
    for (int k = 0; k < MLA_STEPS; k++) {
        uint32_t a[4];
        load_matrices<false>(a, from + (uint32_t)(2 * MLA_WARPS * k * sizeof(uint4)));
#pragma unroll
        for (int term = 0; term < 2; term++)
#pragma unroll
            for (int n = 0; n < MLA_TILES; n++) mma_m16n8k16<FP8>(c->of[n][term], a, q.b[k][n][term][0], q.b[k][n][term][1]);
    }
}

__device__ __forceinline__ void mla_put_scores(const mla_score_sums &c, mla_shared *sh) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < MLA_TILES; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)&sh->part[warp][8 * half + g][8 * n + 2 * i] =
                make_float2(c.of[n][0][2 * half] + c.of[n][1][2 * half], c.of[n][0][2 * half + 1] + c.of[n][1][2 * half + 1]);
}

/* Prefetches a chunk into the L2: rows that this step appends may come after it. */
__device__ __forceinline__ void mla_prefetch_chunk(const mla_place &at, int chunk, int row_bytes) {
    const int rows = min(at.s.end - chunk * MLA_CHUNK, (int)MLA_CHUNK);
    l2_prefetch(at.cache + (size_t)chunk * MLA_CHUNK * row_bytes, (uint32_t)(rows * row_bytes));
}

/* The warps of scores. They may copy chunks of earlier steps before the wait. */
template <bool FP8> __device__ __forceinline__ void mla_score_warps(const mla_gpu &p, const mla_place &at, mla_shared *sh) {
    mla_queries q;
    mla_score_sums c;
    const int early = min(at.old, (int)MLA_AHEAD);
    for (int n = 0; n < early; n++) mla_copy_chunk<FP8>(p, at, sh, n);
    if ((int)threadIdx.x >= early && (int)threadIdx.x < min(at.chunks, (int)MLA_AHEAD))
        mla_prefetch_chunk(at, mla_chunk_of(p, threadIdx.x), (MLA_RANK + MLA_ROPE) * (FP8 ? 1 : 2));
    pdl_wait();
    for (int n = early; n < MLA_AHEAD; n++) mla_copy_chunk<FP8>(p, at, sh, n);
    mla_load_queries<FP8>(p, at, &q);
    if (blockIdx.x == 0 && blockIdx.y == 0 && (int)threadIdx.x < at.s.T) p.part_count[at.s.row + threadIdx.x] = at.partials;
#pragma unroll 1
    for (int n = 0; n < at.chunks; n++) {
        cp_async_wait<MLA_AHEAD - 1>();
        if (FP8) mla_put_codes(sh, n);
        barrier_wait<MLA_CHUNK_THERE, MLA_THREADS>();
        mla_scores<FP8>(mla_held<FP8>(sh, n), q, &c);
        if (n) barrier_wait<MLA_SCORES_READ, GPU_THREADS>();
        mla_put_scores(c, sh);
        barrier_arrive<MLA_SCORES_THERE, GPU_THREADS>();
        mla_copy_chunk<FP8>(p, at, sh, n + MLA_AHEAD);
    }
}

/* A lane's state of the online softmax of its query rows: m is the row's, l of its position alone. */
typedef struct mla_softmax { int kv_last[MLA_SHARE]; float m[MLA_SHARE], l[MLA_SHARE]; } mla_softmax;

/* Query row r of the lane, which has every 16th position. */
__device__ __forceinline__ int mla_row_of(int r) {
    return (int)(threadIdx.x / 32 - MLA_WARPS) * 2 * MLA_SHARE + 2 * r + (int)threadIdx.x % 32 / 16;
}

__device__ __forceinline__ void mla_begin_softmax(const mla_gpu &p, const mla_place &at, mla_softmax *state) {
#pragma unroll
    for (int r = 0; r < MLA_SHARE; r++) {
        state->kv_last[r] = min(at.s.first + (at.first + mla_row_of(r)) / p.shape.heads, at.s.end - 1);
        state->m[r] = -INFINITY;
        state->l[r] = 0;
    }
}

/* The weights of the lane's position from its scores x, and what the rows' sums so far are multiplied with. Of two neighbouring lanes one stores
   both weights' high terms, the other their low ones. */
template <bool FP8> __device__ __forceinline__ void mla_put_weights(mla_shared *sh, int position, float kv_scale, float *x, mla_softmax *state) {
    const int at = threadIdx.x % 16;
#pragma unroll
    for (int r = 0; r < MLA_SHARE; r++) {
        const int row = mla_row_of(r);
        float rescale, top;
        uint32_t high, low;
        if (FP8) x[r] *= kv_scale;
        if (position > state->kv_last[r]) x[r] = -INFINITY;
        top = x[r];
#pragma unroll
        for (int n = 1; n < MLA_CHUNK; n *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
        const float base = attend_raise<false>(&state->m[r], fmaxf(top, state->m[r]), &rescale);
        x[r] = gpu_exp2(x[r] - base) * attend_unit(FP8);
        state->l[r] = fmaf(state->l[r], rescale, x[r]);
        const float other = __shfl_xor_sync(~0u, x[r], 1);
        split_pair<FP8>(at % 2 ? other : x[r], at % 2 ? x[r] : other, &high, &low);
        sh->weight[at % 2][row / 8][row % 8 * 4 + at % 8 / 2][at / 8] = at % 2 ? low : high;
        if (at == 0) sh->rescale[row] = rescale;
    }
}

/* C fragments of the warp's numbers of a latent: [tile][n-tile of query rows]. */
struct mla_sums { float o[MLA_SUMS][MLA_TILES][4]; };

/* Adds the chunk's latents, times their weights. */
template <bool FP8> __device__ __forceinline__ void mla_add_latents(const mla_shared *sh, const mla_chunk_rows &chunk, mla_sums *sums) {
    const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, warp = threadIdx.x / 32 - MLA_WARPS;
    const uint32_t from = shared_address(&chunk[row][(2 * warp + lane / 8 % 2) ^ row % 8]);
    uint2 b[2][MLA_TILES];
#pragma unroll
    for (int n = 0; n < MLA_TILES; n++) {
        const float2 rescale = *(const float2 *)&sh->rescale[8 * n + lane % 4 * 2];
#pragma unroll
        for (int term = 0; term < 2; term++) b[term][n] = *(const uint2 *)sh->weight[term][n][lane];
#pragma unroll
        for (int k = 0; k < MLA_SUMS; k++)
#pragma unroll
            for (int j = 0; j < 4; j++) sums->o[k][n][j] *= j % 2 ? rescale.y : rescale.x;
    }
#pragma unroll
    for (int k = 0; k < MLA_SUMS; k++) {
        uint32_t a[4];
        load_matrices<true>(a, from + (uint32_t)(2 * MLA_WARPS * k * sizeof(uint4)));
#pragma unroll
        for (int term = 0; term < 2; term++)
#pragma unroll
            for (int n = 0; n < MLA_TILES; n++) mma_m16n8k16<FP8>(sums->o[k][n], a, b[term][n].x, b[term][n].y);
    }
}

/* Stores the block's part in shared memory, when its chunks are no longer read. */
__device__ __forceinline__ void mla_put_part(mla_shared *sh, mla_softmax state, const mla_sums &sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4, warp = threadIdx.x / 32 - MLA_WARPS;
#pragma unroll
    for (int r = 0; r < MLA_SHARE; r++) {
#pragma unroll
        for (int n = 1; n < MLA_CHUNK; n *= 2) state.l[r] += __shfl_xor_sync(~0u, state.l[r], n);
        if (lane % 16 == 0) sh->ml[mla_row_of(r)] = make_float2(state.m[r], state.l[r]);
    }
#pragma unroll
    for (int k = 0; k < MLA_SUMS; k++)
#pragma unroll
        for (int n = 0; n < MLA_TILES; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) sh->o[8 * n + 2 * i + j % 2][16 * (warp + MLA_WARPS * k) + 8 * (j / 2) + g] = sums.o[k][n][j];
}

/* The warps of sums. */
template <bool FP8> __device__ __forceinline__ void mla_sum_warps(const mla_gpu &p, const mla_place &at, mla_shared *sh) {
    mla_softmax state;
    mla_sums sums;
    mla_begin_softmax(p, at, &state);
    memset(&sums, 0, sizeof sums);
    pdl_wait();
#pragma unroll 1
    for (int n = 0; n < at.chunks; n++) {
        const int position = threadIdx.x % 16;
        float x[MLA_SHARE];
        barrier_wait<MLA_SCORES_THERE, GPU_THREADS>();
#pragma unroll
        for (int r = 0; r < MLA_SHARE; r++) {
            const int row = mla_row_of(r);
            x[r] = (sh->part[0][position][row] + sh->part[1][position][row]) + (sh->part[2][position][row] + sh->part[3][position][row]);
        }
        if (n + 1 < at.chunks) barrier_arrive<MLA_SCORES_READ, GPU_THREADS>();
        mla_put_weights<FP8>(sh, mla_chunk_of(p, n) * MLA_CHUNK + position, p.kv_scale, x, &state);
        barrier_wait<MLA_WEIGHTS_THERE, MLA_THREADS>();
        mla_add_latents<FP8>(sh, mla_held<FP8>(sh, n), &sums);
    }
    barrier_wait<MLA_WEIGHTS_THERE, MLA_THREADS>();          /* all have read the last chunk; its scores are made */
    mla_put_part(sh, state, sums);
}

/* The cluster's parts of a query row, joined. */
__device__ __forceinline__ attend_part mla_join_cluster(mla_shared *sh, int ranks, int row, int column) {
    attend_part part = {-INFINITY, 0, {0, 0, 0, 0}};
    float2 ml[ATTEND_CLUSTER] = {};
    float4 o[ATTEND_CLUSTER] = {};
#pragma unroll
    for (int n = 0; n < ATTEND_CLUSTER; n++) {
        if (n >= ranks) continue;
#if __CUDA_ARCH__ >= 900
        ml[n] = *(const float2 *)__cluster_map_shared_rank(&sh->ml[row], n);
        o[n] = *(const float4 *)__cluster_map_shared_rank(&sh->o[row][column], n);
#else
        ml[n] = sh->ml[row];
        o[n] = *(const float4 *)&sh->o[row][column];
#endif
    }
    attend_join(&part, ranks, ml, o);
    return part;
}

/* Stores this block's slices of the cluster's part, an eighth of the numbers or, without clusters, all of them. All parts of a slice are under way
   at once. */
__device__ __forceinline__ void mla_store_part(const mla_gpu &p, const mla_place &at, mla_shared *sh) {
    enum { SLICE = MLA_RANK / ATTEND_CLUSTER, THREADS = SLICE / 4, ROUND = GPU_THREADS / THREADS, ROUNDS = (MLA_ROWS + ROUND - 1) / ROUND };
#if __CUDA_ARCH__ >= 900
    const int slice = (int)blockIdx.y % ATTEND_CLUSTER, end = slice + 1;
#else
    const int slice = 0, end = ATTEND_CLUSTER;
#endif
    const int first = threadIdx.x / THREADS, rows = min(at.rows - at.first, (int)MLA_ROWS);
#pragma unroll 1
    for (int of = slice; of < end; of++) {
        const int column = of * SLICE + threadIdx.x % THREADS * 4;
        attend_part part[ROUNDS];
#pragma unroll
        for (int k = 0; k < ROUNDS; k++) {
            const int row = first + k * ROUND;
            part[k] = mla_join_cluster(sh, row < rows ? at.ranks : 0, min(row, rows - 1), column);
        }
#pragma unroll
        for (int k = 0; k < ROUNDS; k++) {
            const int row = first + k * ROUND, query = at.first + row, t = at.s.row + query / p.shape.heads, head = query % p.shape.heads;
            if (row >= rows) continue;
            *(float4 *)(mla_part_sum(p, t, head, at.partial) + column) = part[k].o;
            if (column == 0) *mla_part_ml(p, t, head, at.partial) = make_float2(part[k].m, part[k].l);
        }
    }
}

/* The kernel. */
template <bool FP8>
static __global__ void ATTEND_CLUSTERS __launch_bounds__(GPU_THREADS, 1) mla_attend_fast(const __grid_constant__ mla_gpu p) {
    extern __shared__ __align__(16) char memory[];
    mla_shared *sh = (mla_shared *)memory;
    pdl_launch_dependents();
    const mla_place at = mla_place_of(p);
    if (at.partial >= at.partials || at.first >= at.rows) return;
    if (threadIdx.x < MLA_THREADS) mla_score_warps<FP8>(p, at, sh);
    else mla_sum_warps<FP8>(p, at, sh);
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    mla_store_part(p, at, sh);
    cluster_leave();
    cluster_wait();                                   /* until then others may read this block's shared memory */
}
