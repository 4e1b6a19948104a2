/* layers/attention/index_scores.cu: index_scores: what an indexed layer appends to its cache, and the scores of groups. Formula and launches:
   layers/attention/index.cu.

       score[t][g] = sum over index heads h of max(q[t][h] . key[g], 0) / sqrt(index_dim)

   Grid: of a step (kv_heads + 1 + blocks, 1, sequences): block h < kv_heads appends keys and values of KV head h, the next one index keys and the
   keys of groups; the others score. Of a prompt, whose keys and groups are there, (blocks, 1, rows / STEP_ROWS): all score. Tile after tile of
   128 groups is dealt to them. They have nothing to do, and return early, where no row leaves tokens out.

   index_scores<FP8, DIM>: keys of DIM = 128 numbers and up to four heads run on tensor cores: 16 rows of queries are four token rows, each with
   four heads, and keys come straight from the cache into registers, as in attend_fast (decode_chunk.cu). Queries enter as two terms. DIM 0: any
   other index, by plain loops.

   Why it is fast: a group's key is read once for all rows. A block has two tiles in flight, the first ones before pdl_wait: at 262,144 tokens, groups of
   4 and two blocks an SM of an H200 that is all that there is to read. */

enum { INDEX_TILE = 128, INDEX_HEADS = 4, INDEX_OCTET = 8 };

/* Shared memory, before the warps' vectors. */
template <bool FP8, int DIM> struct index_shared {
    attend_a<2> q[2][DIM / 16][32];                          /* A fragments of row t INDEX_HEADS + h: high, low */
    uint4 made[PASS_ROWS_MAX][DIM / (FP8 ? 16 : 8)];         /* keys of groups that the cache has not yet */
};

/* Keys of a tile, for a warp's B fragments: number n of 8 groups each. */
template <bool FP8, int DIM> struct index_tile {
    enum { VECTORS = DIM / (FP8 ? 64 : 32) };
    uint4 k[2][VECTORS];
};

/* The number of a group of this lane. */
__device__ __forceinline__ int index_tile_group(int tile, int n) {
    return tile * INDEX_TILE + (int)threadIdx.x / 32 * 16 + n * 8 + (int)threadIdx.x % 32 / 4;
}

/* Groups from `old` on become zeros, unread. */
template <bool FP8, int DIM>
__device__ __forceinline__ void index_load_tile(const char *groups, int tile, int old, index_tile<FP8, DIM> *to) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int group = index_tile_group(tile, n);
        const uint4 *row = (const uint4 *)(groups + (size_t)group * (DIM * (FP8 ? 1 : 2))) + threadIdx.x % 4;
#pragma unroll
        for (int j = 0; j < index_tile<FP8, DIM>::VECTORS; j++) to->k[n][j] = group < old ? row[4 * j] : make_uint4(0, 0, 0, 0);
    }
}

/* Makes the keys of a tile's groups old..groups-1, which become part of it. The block calls it together. */
template <bool FP8, int DIM>
__device__ __forceinline__ void index_make_tile(const attention_gpu &p, const index_turn &r, int tile, int old, int groups, float *own,
                                                index_shared<FP8, DIM> *sh, index_tile<FP8, DIM> *to) {
    const int end = min((tile + 1) * INDEX_TILE, groups);
    if (end <= old) return;
    __syncthreads();                                         /* the last tile's have been read */
    for (int g = max(tile * INDEX_TILE, old) + (int)threadIdx.x / 32; g < end; g += GPU_WARPS)
        index_make_group<FP8>(p, r, g, own, [&](int i, float *cs) {
            attend_angle(&p.shape, g * p.shape.index_group - r.lag, i, p.frequencies[i], cs);
        }, sh->made, (size_t)(g - old) * DIM);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int group = index_tile_group(tile, n);
#pragma unroll
        for (int j = 0; j < index_tile<FP8, DIM>::VECTORS; j++)
            if (group >= old && group < groups) to->k[n][j] = sh->made[group - old][threadIdx.x % 4 + 4 * j];
    }
}

/* The angles of token rows, in shared memory, and the rows' index queries: put(t, h, v) is called by a warp with each, ready. The block calls it
   together. cs: [STEP_ROWS][rotary_dim]. */
template <class PUT>
__device__ __forceinline__ void index_each_query(const attention_gpu &p, const index_turn &r, float *own, const float *cs, const PUT &put) {
    const attention_shape *s = &p.shape;
    const int heads = s->index_heads;
    for (int k = threadIdx.x / 32; k < r.T * heads; k += GPU_WARPS) {
        const int t = k / heads, h = k % heads;
        const float *q = p.index.qk + ((size_t)(r.row + t) * (heads + 1) + h) * s->index_dim;
        const index_vector v = index_load(p, p.index.q_norm, own, cs + t * s->rotary_dim, [&](int i) { return q[i]; });
        put(t, h, v);
        __syncwarp();
    }
}

/* Number i of a query, which of a prompt is ready. */
__device__ __forceinline__ float index_query_number(const attention_gpu &p, const index_vector &v, int i) {
    return p.step ? index_number(v, i) : v.x[i];
}

/* Angles of the rows of a step. */
__device__ __forceinline__ void index_angles(const attention_gpu &p, const index_turn &r, float *cs) {
    const int half = p.shape.rotary_dim / 2;
    for (int j = threadIdx.x; p.step && j < r.T * half; j += GPU_THREADS)
        attend_angle(&p.shape, r.first + j / half - r.lag, j % half, p.frequencies[j % half], cs + j / half * p.shape.rotary_dim);
}

/* Scores of a tile: c[n] are products of the warp's groups. */
template <bool FP8, int DIM>
__device__ __forceinline__ void index_products(const index_shared<FP8, DIM> *sh, const index_tile<FP8, DIM> *of, float (*c)[4]) {
    const int lane = threadIdx.x % 32;
    memset(c, 0, 2 * sizeof *c);
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        const attend_a<2> high = sh->q[0][step][lane], low = sh->q[1][step][lane];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint4 four = of->k[n][step / (FP8 ? 4 : 2)];
            const uint32_t codes = step % 4 == 0 ? four.x : step % 4 == 1 ? four.y : step % 4 == 2 ? four.z : four.w;
            uint32_t b0 = step % 2 ? four.z : four.x, b1 = step % 2 ? four.w : four.y;
            if (FP8) e4m3_pairs(codes, &b0, &b1);
            attend_mma<FP8>(c[n], high, b0, b1);
            attend_mma<FP8>(c[n], low, b0, b1);
        }
    }
}

/* A head's part of a score: never -0, and 0 of what is no number. */
__device__ __forceinline__ float index_part(float product) {
    return product > 0 ? product : 0;
}

/* Adds up the heads, in one order, and stores the scores of rows, and the highest of each octet, of which a lane has two groups. */
__device__ __forceinline__ void index_store_scores(const attention_gpu &p, const index_turn &r, int tile, const float (*c)[4], float scale) {
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int group = tile * INDEX_TILE + (int)threadIdx.x / 32 * 16 + n * 8 + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 sum = {index_part(c[n][2 * half]), index_part(c[n][2 * half + 1])};
#pragma unroll
            for (int i = 4; i <= 8; i *= 2) {
                sum.x += __shfl_xor_sync(~0u, sum.x, i);
                sum.y += __shfl_xor_sync(~0u, sum.y, i);
            }
            const int t = 2 * half + g / INDEX_HEADS, end = t < r.T ? index_visible(r, t) / p.shape.index_group : 0;
            sum = make_float2(sum.x * scale, sum.y * scale);
            float highest = fmaxf(group < end ? sum.x : 0, group + 1 < end ? sum.y : 0);
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
            if (g % INDEX_HEADS || group >= end) continue;
            float *to = p.index.scores + (size_t)(r.row + t) * p.index.stride + group;
            *(float2 *)to = sum;
            if (lane % 4 == 0) p.index.highest[((size_t)(r.row + t) * p.index.stride + group) / INDEX_OCTET] = highest;
        }
    }
}

/* The scores of every `blocks`th tile from tile number `block` on. */
template <bool FP8, int DIM>
__device__ __forceinline__ void index_scan(const attention_gpu &p, const index_turn &r, int block, int blocks, char *memory) {
    const attention_shape *s = &p.shape;
    index_shared<FP8, DIM> *sh = (index_shared<FP8, DIM> *)memory;
    float *cs = (float *)(sh + 1), *own = cs + STEP_ROWS * s->rotary_dim + threadIdx.x / 32 * index_own_size(s);
    const int groups = r.end / s->index_group, old = min(r.before / s->index_group, groups), tiles = (groups + INDEX_TILE - 1) / INDEX_TILE;
    const char *keys = index_cache(p, r.slot, true);
    const float scale = rsqrtf((float)DIM);
    index_tile<FP8, DIM> of[2];
#pragma unroll
    for (int k = 0; k < 2; k++) index_load_tile(keys, block + k * blocks, old, &of[k]);
    for (int i = threadIdx.x; i < (int)(sizeof sh->q / sizeof(uint4)); i += GPU_THREADS) ((uint4 *)sh->q)[i] = make_uint4(0, 0, 0, 0);
    index_angles(p, r, cs);
    __syncthreads();
    pdl_wait();
    index_each_query(p, r, own, cs, [&](int t, int h, const index_vector &v) {
        enum { VECTOR_ELEMENTS = FP8 ? 16 : 8 };
        const int row = t * INDEX_HEADS + h;
#pragma unroll
        for (int j = 0; j < DIM / 64; j++) {
            const int e = 2 * (threadIdx.x % 32) + 64 * j, i = e / VECTOR_ELEMENTS % 4;
            const int step = e / (4 * VECTOR_ELEMENTS) * (VECTOR_ELEMENTS / 4) + e % VECTOR_ELEMENTS / 4, at = e % 4 / 2 * 2 + row / 8;
            split_pair<FP8>(index_query_number(p, v, e), index_query_number(p, v, e + 1), &sh->q[0][step][row % 8 * 4 + i].r[at],
                            &sh->q[1][step][row % 8 * 4 + i].r[at]);
        }
    });
    __syncthreads();
#pragma unroll 1
    for (int first = block; first < tiles; first += 2 * blocks)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int tile = first + k * blocks;
            float c[2][4];
            if (tile >= tiles) break;
            index_make_tile(p, r, tile, old, groups, own, sh, &of[k]);
            index_products(sh, &of[k], c);
            index_load_tile(keys, tile + 2 * blocks, old, &of[k]);
            index_store_scores(p, r, tile, c, scale);
        }
}

/* The same for any index: a warp has every eighth octet. */
template <bool FP8> __device__ __forceinline__ void index_scan_any(const attention_gpu &p, const index_turn &r, int block, int blocks, char *memory) {
    const attention_shape *s = &p.shape;
    const int n = s->index_dim, heads = s->index_heads, groups = r.end / s->index_group, old = min(r.before / s->index_group, groups);
    const int lane = threadIdx.x % 32;
    float *q = (float *)memory, *cs = q + STEP_ROWS * heads * n, *all = cs + STEP_ROWS * s->rotary_dim;
    float *own = all + threadIdx.x / 32 * index_own_size(s), *made = all + GPU_WARPS * index_own_size(s) + (int)threadIdx.x / 32 * n;
    const char *keys = index_cache(p, r.slot, true);
    const float scale = rsqrtf((float)n);
    index_angles(p, r, cs);
    __syncthreads();
    pdl_wait();
    index_each_query(p, r, own, cs, [&](int t, int h, const index_vector &v) {
        for (int i = lane; i < n; i += 32) q[(t * heads + h) * n + i] = index_query_number(p, v, i);
    });
    __syncthreads();
    for (int octet = block * GPU_WARPS + (int)threadIdx.x / 32; octet * INDEX_OCTET < groups; octet += blocks * GPU_WARPS) {
        const int begin = octet * INDEX_OCTET;
        float highest = 0;       /* lane t's of row t */
        for (int g = begin; g < min(begin + INDEX_OCTET, groups); g++) {
            const char *from = keys;
            size_t at = (size_t)g * n;
            if (g >= old) {
                index_make_group<FP8>(p, r, g, own, [&](int i, float *to) {
                    attend_angle(s, g * s->index_group - r.lag, i, p.frequencies[i], to);
                }, made, 0);
                from = (const char *)made;
                at = 0;
            }
            for (int t = 0; t < r.T; t++) {
                float sum = 0;
                if (g >= index_visible(r, t) / s->index_group) continue;
                for (int h = 0; h < heads; h++) {
                    float product = 0;
                    for (int i = lane; i < n; i += 32) product = fmaf(q[(t * heads + h) * n + i], attend_load<FP8>(from, at + i), product);
                    sum += index_part(warp_sum(product));
                }
                if (lane == t) highest = fmaxf(highest, sum * scale);
                if (lane == 0) p.index.scores[(size_t)(r.row + t) * p.index.stride + g] = sum * scale;
            }
            __syncwarp();
        }
        if (lane < r.T && begin < index_visible(r, lane) / s->index_group)
            p.index.highest[(size_t)(r.row + lane) * (p.index.stride / INDEX_OCTET) + octet] = highest;
    }
}

/* Index keys of the rows, and the keys of groups that they make whole, into the cache. */
template <bool FP8> __device__ __forceinline__ void index_append(const attention_gpu &p, const index_turn &r, char *memory) {
    const attention_shape *s = &p.shape;
    const int n = s->index_dim, warp = threadIdx.x / 32;
    float *own = (float *)memory + warp * index_own_size(s);
    char *keys = index_cache(p, r.slot, false), *groups = index_cache(p, r.slot, true);
    pdl_wait();
    for (int index = max(r.first, 0) + warp; index < r.end; index += GPU_WARPS) {
        const float *key = index_new_key(p, r, index);
        for (int i = threadIdx.x % 32; i < n; i += 32) attend_store<FP8>(keys, (size_t)index * n + i, key[i], 1);
    }
    for (int g = max(r.first, 0) / s->index_group + warp; g < r.end / s->index_group; g += GPU_WARPS)
        index_make_group<FP8>(p, r, g, own, [&](int i, float *cs) {
            attend_angle(s, g * s->index_group - r.lag, i, p.frequencies[i], cs);
        }, groups, (size_t)g * n);
}

/* Keys and values of a KV head. */
template <bool FP8> __device__ __forceinline__ void index_append_kv(const attention_gpu &all, char *memory) {
    attention_gpu p = all.sequences ? attend_sequence(all, blockIdx.z) : all;
    const attention_shape *s = &p.shape;
    const int half = s->rotary_dim / 2;
    float *q = (float *)memory, *cs = q + s->head_dim;
    p.kv_only = 1;                                           /* this block owns all rows */
    const attend_span span = attend_span_of(&p);
    for (int j = threadIdx.x; j < p.T * half; j += GPU_THREADS)
        attend_angle(s, span.first + j / half - span.lag, j % half, p.frequencies[j % half], cs + j / half * s->rotary_dim);
    __syncthreads();
    pdl_wait();
    attend_append<FP8>(&p, &span, cs, q);
}

/* The kernel. See the top of this file. */
template <bool FP8, int DIM> __global__ void __launch_bounds__(GPU_THREADS, FP8 ? 2 : 1) index_scores(const __grid_constant__ attention_gpu p) {
    extern __shared__ __align__(16) char memory[];
    const int appends = p.step ? p.shape.kv_heads + 1 : 0, block = (int)blockIdx.x - appends;
    pdl_launch_dependents();
    const index_turn r = index_turn_of(p, blockIdx.z);
    if (block < -1) index_append_kv<FP8>(p, memory);
    else if (block < 0) index_append<FP8>(p, r, memory);
    if (block < 0 || p.kv_only || !index_leaves_out(&p.shape, r.end - 1)) return;
    if (DIM) index_scan<FP8, DIM ? DIM : 64>(p, r, block, (int)gridDim.x - appends, memory);
    else index_scan_any<FP8>(p, r, block, (int)gridDim.x - appends, memory);
}
