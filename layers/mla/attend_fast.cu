/* layers/mla/attend_fast.cu: latent_attend on tensor cores, for latents of 512 and 64 rotated numbers. What stands where, and why it may be
   split: decode.cu.

   A block has MLA_ROWS query rows, of (token row, head), and every splits' chunk of positions. The chunk is in shared memory once, as
   16-bit numbers: BF16 as the cache has them, FP8 as F16, exactly. All of its rows' numbers are keys, the first 512 values.

     scores   A: query rows, B: n = positions, k = numbers. Warp w has query rows of tile w / 4, and of the 18 units of 32 numbers those
              w % 4, w % 4 + 4, ...; its queries are in registers as A fragments, two terms of 16 bits. Four warps' sums meet in `part`.
     weights  a thread has a query row and four positions; a weight is two terms as well
     sums     B: n = numbers of a latent, k = positions. Warp w has numbers 64 w .. 64 w + 63 of all query rows

   Which number is which k or n does not matter as long as A and B agree: so a lane takes 16 bytes at a time. A row of the chunk is 73 times 16
   bytes, so that neither way of reading meets in a bank:
     scores   lane 4 g + i takes bytes 128 n + 16 (2 i + c) of position g: c of them is a unit, of numbers 64 n + 16 i + 8 c ..+7
     sums     lane 4 g + i takes bytes 128 w + 16 g of positions 2 i, 2 i + 1, 2 i + 8, 2 i + 9: column g of n-tile n is number 8 g + n

   While a chunk is computed the next is on its way: by cp.async into the other buffer or, of FP8, into registers.

   Parts are joined in a cluster of eight splits through distributed shared memory, each block an eighth of the numbers, and stored. Before
   compute capability 9.0 there are no clusters: a block stores its own.

   Grid: (query rows, split, sequence). */

enum {
    MLA_TILES = MLA_ROWS / 16,
    MLA_UNITS = (MLA_RANK + MLA_ROPE) / 32,                  /* of scores */
    MLA_SHARERS = 4,                                         /* warps that share a tile's scores */
    MLA_WARP_UNITS = (MLA_UNITS + MLA_SHARERS - 1) / MLA_SHARERS,
    MLA_STRIDE = (MLA_RANK + MLA_ROPE) / 8 + 1,              /* uint4 from row to row of a chunk */
    MLA_PIECES = (MLA_RANK + MLA_ROPE) / 16                  /* uint4 of a row of codes */
};

struct mla_shared {
    union {
        uint4 chunk[2][MLA_CHUNK][MLA_STRIDE];
        float o[MLA_ROWS][MLA_RANK + 4];                     /* of the block's part, when no chunk is left */
    };
    float part[MLA_SHARERS][MLA_ROWS][MLA_CHUNK + 8];        /* scores */
    uint32_t weight[MLA_TILES][2][MLA_CHUNK / 16][32][4];    /* A fragments: high, low */
    float rescale[MLA_ROWS];
    float2 ml[MLA_ROWS];
};

static_assert(sizeof(mla_shared) <= GPU_SHARED, "shared memory of latent_attend");
static_assert(MLA_ROWS * 8 == GPU_THREADS && MLA_CHUNK == 32 && MLA_TILES * MLA_SHARERS == GPU_WARPS && MLA_RANK == 64 * GPU_WARPS,
              "the shares of threads and warps");

/* The query rows of a block. */
typedef struct mla_place {
    mla_range s;
    const char *cache;
    int first, rows;             /* the first, of all heads of the sequence's token rows; how many of these there are */
    int partial, partials;       /* that its cluster (without clusters: it) stores; of how many */
    int ranks;                   /* blocks of its cluster with chunks, the first */
} mla_place;

/* All blocks of a cluster have the same partial and partials: they return early together or not at all. */
__device__ __forceinline__ mla_place mla_place_of(const mla_gpu &p) {
    mla_place at;
    at.s = mla_range_of(p, blockIdx.z);
    at.cache = mla_cache(p, at.s);
    at.first = (int)blockIdx.x * MLA_ROWS;
    at.rows = at.s.T * p.shape.heads;
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

/* This thread's share of a chunk of FP8 codes on its way. */
struct mla_codes { uint4 of[(MLA_CHUNK * MLA_PIECES + GPU_THREADS - 1) / GPU_THREADS]; };

/* The chunk's row, or the last that there is: rows after it have weight 0. */
__device__ __forceinline__ size_t mla_cached_row(const mla_place &at, int chunk, int row) {
    return (size_t)min(chunk * MLA_CHUNK + row, at.s.end - 1);
}

__device__ __forceinline__ void mla_load_codes(const mla_place &at, int chunk, mla_codes *codes) {
#pragma unroll
    for (int k = 0; k < (int)(sizeof codes->of / sizeof *codes->of); k++) {
        const int piece = threadIdx.x + k * GPU_THREADS, row = piece / MLA_PIECES;
        if (row < MLA_CHUNK)
            codes->of[k] = __ldcg((const uint4 *)at.cache + mla_cached_row(at, chunk, row) * MLA_PIECES + piece % MLA_PIECES);
    }
}

/* Stores them as F16. */
__device__ __forceinline__ void mla_put_codes(const mla_codes &codes, uint4 (*to)[MLA_STRIDE]) {
#pragma unroll
    for (int k = 0; k < (int)(sizeof codes.of / sizeof *codes.of); k++) {
        const int piece = threadIdx.x + k * GPU_THREADS, row = piece / MLA_PIECES;
        uint4 low, high;
        if (row >= MLA_CHUNK) continue;
        e4m3_pairs(codes.of[k].x, &low.x, &low.y);
        e4m3_pairs(codes.of[k].y, &low.z, &low.w);
        e4m3_pairs(codes.of[k].z, &high.x, &high.y);
        e4m3_pairs(codes.of[k].w, &high.z, &high.w);
        to[row][piece % MLA_PIECES * 2] = low;
        to[row][piece % MLA_PIECES * 2 + 1] = high;
    }
}

/* Begins to copy a chunk of BF16. */
__device__ __forceinline__ void mla_copy_chunk(const mla_place &at, int chunk, uint4 (*to)[MLA_STRIDE]) {
    enum { PIECES = 2 * MLA_PIECES };
#pragma unroll
    for (int k = 0; k < MLA_CHUNK * PIECES / GPU_THREADS; k++) {
        const int piece = threadIdx.x + k * GPU_THREADS, row = piece / PIECES;
        cp_async16(shared_address(&to[row][piece % PIECES]), (const uint4 *)at.cache + mla_cached_row(at, chunk, row) * PIECES + piece % PIECES,
                   true);
    }
    cp_async_commit();
}

/* A warp's queries: A fragments of its units' two steps, high and low terms. */
struct mla_queries { uint32_t a[MLA_WARP_UNITS][2][2][4]; };

template <bool FP8> __device__ __forceinline__ void mla_load_queries(const mla_gpu &p, const mla_place &at, mla_queries *q) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4, warp = threadIdx.x / 32, unit0 = warp % MLA_SHARERS;
    const float scale = mla_query_scale(p);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at.first + warp / MLA_SHARERS * 16 + half * 8 + g;
        const float *from = p.l + ((size_t)at.s.row * p.shape.heads + row) * (MLA_RANK + MLA_ROPE);
#pragma unroll
        for (int k = 0; k < MLA_WARP_UNITS; k++) {
            const int unit = unit0 + k * MLA_SHARERS, col = unit / 2 * 64 + 16 * i + unit % 2 * 8;
            float4 x[2] = {};
            if (row < at.rows && unit < MLA_UNITS) {
                x[0] = __ldcg((const float4 *)(from + col));
                x[1] = __ldcg((const float4 *)(from + col + 4));
            }
#pragma unroll
            for (int step = 0; step < 2; step++) {
                split_pair<FP8>(x[step].x * scale, x[step].y * scale, &q->a[k][step][0][half], &q->a[k][step][1][half]);
                split_pair<FP8>(x[step].z * scale, x[step].w * scale, &q->a[k][step][0][2 + half], &q->a[k][step][1][2 + half]);
            }
        }
    }
}

/* The warp's share of its tile's scores. */
template <bool FP8>
__device__ __forceinline__ void mla_scores(const uint4 (*chunk)[MLA_STRIDE], const mla_queries &q, float (*part)[MLA_ROWS][MLA_CHUNK + 8]) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4, warp = threadIdx.x / 32, unit0 = warp % MLA_SHARERS;
    float c[MLA_CHUNK / 8][4] = {};
#pragma unroll
    for (int k = 0; k < MLA_WARP_UNITS; k++) {
        const int unit = unit0 + k * MLA_SHARERS;
        if (unit >= MLA_UNITS) break;
#pragma unroll
        for (int n = 0; n < MLA_CHUNK / 8; n++) {
            const uint4 b = chunk[8 * n + g][unit / 2 * 8 + 2 * i + unit % 2];
#pragma unroll
            for (int term = 0; term < 2; term++) {
                mma_m16n8k16<FP8>(c[n], q.a[k][0][term], b.x, b.y);
                mma_m16n8k16<FP8>(c[n], q.a[k][1][term], b.z, b.w);
            }
        }
    }
    const int row = warp / MLA_SHARERS * 16 + g;
#pragma unroll
    for (int n = 0; n < MLA_CHUNK / 8; n++) {
        *(float2 *)&part[unit0][row][8 * n + 2 * i] = make_float2(c[n][0], c[n][1]);
        *(float2 *)&part[unit0][row + 8][8 * n + 2 * i] = make_float2(c[n][2], c[n][3]);
    }
}

/* A thread's state of the online softmax of its query row: m is the row's, l of its positions alone. */
typedef struct mla_softmax { int kv_last; float m, l; } mla_softmax;

/* The weights of the thread's four positions from their scores, and what the row's sums so far are multiplied with. */
template <bool FP8> __device__ __forceinline__ void mla_softmax_weights(mla_shared *sh, int chunk, float kv_scale, mla_softmax *state) {
    const int row = threadIdx.x / 8, j = threadIdx.x % 8;
    float4 s = *(const float4 *)&sh->part[0][row][4 * j];
#pragma unroll
    for (int w = 1; w < MLA_SHARERS; w++) {
        const float4 more = *(const float4 *)&sh->part[w][row][4 * j];
        s = make_float4(s.x + more.x, s.y + more.y, s.z + more.z, s.w + more.w);
    }
    float x[4] = {s.x, s.y, s.z, s.w}, top = -INFINITY, rescale;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (FP8) x[k] *= kv_scale;
        if (chunk * MLA_CHUNK + 4 * j + k > state->kv_last) x[k] = -INFINITY;
        top = fmaxf(top, x[k]);
    }
#pragma unroll
    for (int n = 1; n < 8; n *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
    const float base = attend_raise<false>(&state->m, fmaxf(top, state->m), &rescale);
#pragma unroll
    for (int k = 0; k < 4; k++) x[k] = gpu_exp2(x[k] - base) * attend_unit(FP8);
    state->l = fmaf(state->l, rescale, x[0] + x[1] + x[2] + x[3]);
    const int tile = row / 16, step = j / 4, word = j % 4 / 2 * 2 + row % 16 / 8, lane = row % 8 * 4 + j % 2 * 2;
    split_pair<FP8>(x[0], x[1], &sh->weight[tile][0][step][lane][word], &sh->weight[tile][1][step][lane][word]);
    split_pair<FP8>(x[2], x[3], &sh->weight[tile][0][step][lane + 1][word], &sh->weight[tile][1][step][lane + 1][word]);
    if (j == 0) sh->rescale[row] = rescale;
}

/* C fragments of the warp's 64 numbers of a latent: [tile][n][..], columns 2i and 2i + 1 of n-tile n are numbers 16 i + n and 16 i + 8 + n. */
struct mla_sums { float o[MLA_TILES][8][4]; };

/* Adds the chunk's latents, times their weights. */
template <bool FP8> __device__ __forceinline__ void mla_add_latents(const mla_shared *sh, const uint4 (*chunk)[MLA_STRIDE], mla_sums *sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4, warp = threadIdx.x / 32;
#pragma unroll
    for (int tile = 0; tile < MLA_TILES; tile++) {
        const float low = sh->rescale[tile * 16 + g], high = sh->rescale[tile * 16 + 8 + g];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            sums->o[tile][n][0] *= low;
            sums->o[tile][n][1] *= low;
            sums->o[tile][n][2] *= high;
            sums->o[tile][n][3] *= high;
        }
    }
#pragma unroll
    for (int step = 0; step < MLA_CHUNK / 16; step++) {
        uint4 v[4];                                          /* of positions 2 i, 2 i + 1, 2 i + 8, 2 i + 9 */
        uint32_t a[MLA_TILES][2][4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = chunk[16 * step + 2 * i + k % 2 + k / 2 * 8][8 * warp + g];
#pragma unroll
        for (int tile = 0; tile < MLA_TILES; tile++)
#pragma unroll
            for (int term = 0; term < 2; term++) *(uint4 *)a[tile][term] = *(const uint4 *)sh->weight[tile][term][step][lane];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const uint32_t take = n % 2 ? 0x7632 : 0x5410;
            const uint32_t b0 = __byte_perm(gpu_word(v[0], n / 2), gpu_word(v[1], n / 2), take);
            const uint32_t b1 = __byte_perm(gpu_word(v[2], n / 2), gpu_word(v[3], n / 2), take);
#pragma unroll
            for (int tile = 0; tile < MLA_TILES; tile++)
#pragma unroll
                for (int term = 0; term < 2; term++) mma_m16n8k16<FP8>(sums->o[tile][n], a[tile][term], b0, b1);
        }
    }
}

/* Stores the block's part in shared memory. */
__device__ __forceinline__ void mla_put_part(mla_shared *sh, mla_softmax state, const mla_sums &sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 1; n < 8; n *= 2) state.l += __shfl_xor_sync(~0u, state.l, n);
    __syncthreads();                                         /* the chunks are no longer read */
    if (threadIdx.x % 8 == 0) sh->ml[threadIdx.x / 8] = make_float2(state.m, state.l);
#pragma unroll
    for (int tile = 0; tile < MLA_TILES; tile++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float *to = &sh->o[tile * 16 + k / 2 * 8 + g][64 * warp + 16 * i + k % 2 * 8];
#pragma unroll
            for (int n = 0; n < 8; n += 4)
                *(float4 *)(to + n) = make_float4(sums.o[tile][n][k], sums.o[tile][n + 1][k], sums.o[tile][n + 2][k], sums.o[tile][n + 3][k]);
        }
    __syncthreads();
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

/* Stores this block's slices of the cluster's part, an eighth of the numbers or, without clusters, all of them. */
__device__ __forceinline__ void mla_store_part(const mla_gpu &p, const mla_place &at, mla_shared *sh) {
    enum { SLICE = MLA_RANK / ATTEND_CLUSTER, THREADS = SLICE / 4, ROUND = GPU_THREADS / THREADS };
#if __CUDA_ARCH__ >= 900
    const int slice = (int)blockIdx.y % ATTEND_CLUSTER, end = slice + 1;
#else
    const int slice = 0, end = ATTEND_CLUSTER;
#endif
#pragma unroll 1
    for (int of = slice; of < end; of++)
#pragma unroll 1
        for (int row = threadIdx.x / THREADS; row < MLA_ROWS && at.first + row < at.rows; row += ROUND) {
            const int column = of * SLICE + threadIdx.x % THREADS * 4, query = at.first + row;
            const int t = at.s.row + query / p.shape.heads, head = query % p.shape.heads;
            const attend_part part = mla_join_cluster(sh, at.ranks, row, column);
            *(float4 *)(mla_part_sum(p, t, head, at.partial) + column) = part.o;
            if (column == 0) *mla_part_ml(p, t, head, at.partial) = make_float2(part.m, part.l);
        }
}

/* Prefetches a chunk into the L2: rows that this step appends may come after it. */
__device__ __forceinline__ void mla_prefetch_chunk(const mla_place &at, int chunk, int row_bytes) {
    const int rows = min(at.s.end - chunk * MLA_CHUNK, (int)MLA_CHUNK);
    if (threadIdx.x == 0 && rows > 0) l2_prefetch(at.cache + (size_t)chunk * MLA_CHUNK * row_bytes, (uint32_t)(rows * row_bytes));
}

/* The kernel. Three barriers a chunk: its rows are there; scores are; weights are. A buffer is filled when all have passed the next chunk's
   first one. */
template <bool FP8>
static __global__ void ATTEND_CLUSTERS __launch_bounds__(GPU_THREADS, 1) mla_attend_fast(const __grid_constant__ mla_gpu p) {
    extern __shared__ __align__(16) char memory[];
    mla_shared *sh = (mla_shared *)memory;
    mla_queries q;
    mla_codes codes;
    mla_sums sums;
    pdl_launch_dependents();
    const mla_place at = mla_place_of(p);
    if (at.partial >= at.partials || at.first >= at.rows) return;
    const int query = at.first + (int)threadIdx.x / 8;
    mla_softmax state = {min(at.s.first + query / p.shape.heads, at.s.end - 1), -INFINITY, 0};
    int chunk = blockIdx.y, buffer = 0;
    mla_prefetch_chunk(at, chunk, (MLA_RANK + MLA_ROPE) * (FP8 ? 1 : 2));
    memset(&sums, 0, sizeof sums);
    pdl_wait();
    if (chunk < at.s.chunks && FP8) mla_load_codes(at, chunk, &codes);
    if (chunk < at.s.chunks && !FP8) mla_copy_chunk(at, chunk, sh->chunk[0]);
    mla_load_queries<FP8>(p, at, &q);
    if (blockIdx.x == 0 && blockIdx.y == 0 && (int)threadIdx.x < at.s.T) p.part_count[at.s.row + threadIdx.x] = at.partials;
#pragma unroll 1
    for (; chunk < at.s.chunks; chunk += p.splits, buffer ^= 1) {
        const bool more = chunk + p.splits < at.s.chunks;
        if (FP8) mla_put_codes(codes, sh->chunk[buffer]);
        else cp_async_wait<0>();
        __syncthreads();
        if (more && FP8) mla_load_codes(at, chunk + p.splits, &codes);
        if (more && !FP8) mla_copy_chunk(at, chunk + p.splits, sh->chunk[buffer ^ 1]);
        mla_scores<FP8>(sh->chunk[buffer], q, sh->part);
        __syncthreads();
        mla_softmax_weights<FP8>(sh, chunk, p.kv_scale, &state);
        __syncthreads();
        mla_add_latents<FP8>(sh, sh->chunk[buffer], &sums);
    }
    mla_put_part(sh, state, sums);
    attend_cluster_arrive();
    attend_cluster_wait();
    mla_store_part(p, at, sh);
    attend_cluster_leave();
    attend_cluster_wait();                                   /* until then others may read this block's shared memory */
}
