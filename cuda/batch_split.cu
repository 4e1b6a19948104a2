/* cuda/batch_split.cu: a projection of 5 to 8 token rows on GPUs with thread block clusters, where all blocks are resident at once. The
   eight blocks of a cluster have tiles by eights (an octet) and split their K, a share each; a block prepares its columns of the token rows
   itself, so that no kernel does that before, and each of its warps multiplies one tile of an octet with them. Knows prologues, matrices and
   tiles; must not know layers.

   Why: a block that has all of K reads all token rows from the L2 for the few tiles that it has; of 8 rows of 4,096 columns these are twice
   as many bytes as a tile of FP8. Here it reads an eighth of them.

   The bits are those of cuda/batch_tile.cu: a share's sums are a warp's, closed by itself, and are added in the order of the shares; a
   row's squares of a share are summed by one warp, as there.

   Correctness. A warp stores a closed share into the shared memory of the block that ends its tile. It does so after the first barrier of
   the cluster, which says that this block has begun; the second says that all has been stored, and nobody touches another block's memory
   after it. */

enum { BATCH_SPLIT = GPU_WARPS };                           /* blocks of a cluster, shares of K, tiles of an octet */

enum {
    SPLIT_ROWS = 2 * N_TILE_ROWS,                           /* token rows at most */
    SPLIT_DEPTH = 4,             /* k blocks of weights in flight */
    SPLIT_OCTETS = 4             /* octets of a cluster at most */
};

/* Dynamic shared memory of a block: squares of the rows by share; of each octet the block's own tile by share; then the activation
   fragments of its columns. */
struct batch_split_octet { float closed[BATCH_SPLIT][SPLIT_ROWS][TILE_ROWS]; };
struct batch_split_shared {
    float squares[SPLIT_ROWS][BATCH_SPLIT];
    batch_split_octet octet[1];                         /* as many as the kernel is told */
};

/* k blocks of the largest share. */
__host__ __device__ __forceinline__ int gpu_split_k_blocks(int k_blocks) {
    return (k_blocks + BATCH_SPLIT - 1) / BATCH_SPLIT;
}

/* The same address in the shared memory of block `rank` of the cluster. */
template <class T> __device__ __forceinline__ T *gpu_in_cluster(T *at, int rank) {
#if __CUDA_ARCH__ >= 900
    return (T *)__cluster_map_shared_rank(at, (unsigned)rank);
#else
    return at;
#endif
}

/* The block's share of the rows' columns, as fragments: k blocks first .. first + count - 1. A warp has a
   row, and tells all blocks of its squares. */
template <class F, class IN>
__device__ __forceinline__ void gpu_split_prepare(const gpu_projection<IN> &p, const gpu_segment &s, int share, int first, int count,
                                                  const activation_fragments &to, batch_split_shared *own) {
    enum { AT_ONCE = 2 };
    typedef row_columns<F, 1, AT_ONCE, IN> columns;
    const int t = threadIdx.x / 32, rank = threadIdx.x % 32;
    IN in = p.in;
    float square[1] = {};
    if (t >= p.T) return;
    if constexpr (IN::normed) in.norm = s.norm;
    in.select(t);
    columns x(in, 1, first, count);
#pragma unroll 1
    for (int begin = 0; begin < count * columns::LANES; begin += 32 * AT_ONCE) {
        x.load(begin);
        gpu_put_row<F, SPLIT_ROWS>(&x, begin, to, 0, t, square, true);
    }
    const float sum = IN::normed ? warp_sum(square[0]) : 0;
    if (IN::normed && rank < BATCH_SPLIT) gpu_in_cluster(own, rank)->squares[t][share] = sum;
}

/* A warp's weights: DEPTH k blocks of its share of its tiles in flight, the others on their way to the L2. A tile after the last counts as the
   last. */
template <class F> struct batch_split_weights {
    enum { DEPTH = SPLIT_DEPTH };
    typename F::raw raw[DEPTH][2];
    gpu_place place;
    float scale, coming;         /* by block: of panel lane / 16 in k block lane % 16 of the round, of the next */

    __device__ __forceinline__ void move(const gpu_segment &s, int tile, int first) {
        place = gpu_batch_place<F>(s, tile);
        place.data[0] += first * F::panel;
        place.data[1] += first * F::panel;
    }
    __device__ __forceinline__ void load(int j, bool there) {
#pragma unroll
        for (int half = 0; half < 2; half++) F::load(&raw[j][half], place.data[half], j * F::panel, there);
    }
    __device__ __forceinline__ void load_scales(const gpu_matrix &w, int first, int count) {
        const int k = threadIdx.x % 16;
        if (gpu_scales_by_block<F>()) coming = ld_volatile(place.scale + (first + k >> w.k_block_shift), k < DEPTH && k < count);
    }
    /* Tiles tile, tile + 8, ..., of `octets`. */
    __device__ __forceinline__ void begin(const gpu_segment &s, int tile, int octets, int first, int count) {
        const int lane = threadIdx.x % 32, of = lane / 2;
        memset(raw, 0, sizeof raw);
        move(s, tile, first);
#pragma unroll
        for (int j = 0; j < DEPTH; j++) load(j, j < count);
        coming = 1;
        load_scales(s.w, first, count);
        if (of >= octets || (of == 0 && count <= DEPTH) || count == 0) return;
        const gpu_place at = gpu_batch_place<F>(s, tile + of * BATCH_SPLIT);
        l2_prefetch((lane % 2 ? at.data[1] : at.data[0]) + first * F::panel - lane * F::lane, (uint32_t)(count * F::panel));
    }
};

/* sum[n] = the warp's tile times n-tile n, of the block's share. next: the tile after it; more: there is one. */
template <class F>
__device__ __forceinline__ void gpu_split_multiply(batch_split_weights<F> &weights, const gpu_segment &s,
                                                   const activation_fragments &rows, int first, int count, int next, bool more,
                                                   float (*sum)[4]) {
    enum { DEPTH = SPLIT_DEPTH, ROWS = SPLIT_ROWS, pairs = gpu_step_pairs<F>(), SIDE = 2 };
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(rows);
#pragma unroll 1
    for (int round = 0; round < count; round += DEPTH) {
        const bool last = round + DEPTH >= count;
        const int ahead = last ? 0 : round + DEPTH, left = last && !more ? 0 : count - ahead;
        weights.scale = weights.coming;
        if (last) weights.move(s, next, first);
        else
#pragma unroll
            for (int half = 0; half < 2; half++) weights.place.data[half] += DEPTH * F::panel;
        weights.load_scales(s.w, first + ahead, left);
#pragma unroll
        for (int j = 0; j < DEPTH; j++) {
            const int k = round + j;
            batch_operands<F> w;
            float scale[1][2] = {};
            w.decode(weights.raw[j]);
            weights.load(j, j < left);
            if (gpu_scales_by_block<F>()) {
                scale[0][0] = __shfl_sync(~0u, weights.scale, j);
                scale[0][1] = __shfl_sync(~0u, weights.scale, 16 + j);
            }
            if (k >= count) continue;
            const uint4 *b = fragments + k * (pairs * 8 * ROWS);
            const float *scales = rows.act_scale + k * ROWS + threadIdx.x % 2 * 2;
            uint4 x[SIDE][pairs];
            float2 act_scale[SIDE];
            float (*to[1])[4] = {sum};
#pragma unroll
            for (int n = 0; n < SIDE; n++) {
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[n][pair] = b[pair * 8 * ROWS + n * 4 * N_TILE_ROWS];
                act_scale[n] = F::half ? *(const float2 *)(scales + n * N_TILE_ROWS) : make_float2(1, 1);
            }
            gpu_batch_multiply<F, 1, SIDE>(to, &w, scale, x, act_scale);
        }
    }
}

/* The element of a block's own tile that a thread ends: row `panel` of the tile, `of` of the matrix, of token row t. */
template <class IN> struct batch_split_end {
    const gpu_projection<IN> &p;
    const gpu_segment &s;
    const int t, panel, of;
    const bool there;
    float before;

    __device__ __forceinline__ batch_split_end(const gpu_projection<IN> &p, const gpu_segment &s, int tile)
        : p(p), s(s), t(threadIdx.x / TILE_ROWS), panel(threadIdx.x % TILE_ROWS),
          of(tile * (s.up.data ? (int)PANEL_ROWS : (int)TILE_ROWS) + panel),
          there(t < p.T && of < s.w.rows && (!s.up.data || panel < PANEL_ROWS)), before(0) {}
    __device__ __forceinline__ float *y() const { return s.y + (size_t)t * s.w.rows + of; }
    __device__ __forceinline__ void load() {
        if (!s.up.data && there) before = IN::normed ? epilogue_bias<true>(s.w, 0, of) : epilogue_before<true>(p.end, s.w, of, y());
    }
    __device__ __forceinline__ float sum(const batch_split_octet *own, int row) const {
        float all = own->closed[0][t][row];
#pragma unroll
        for (int share = 1; share < BATCH_SPLIT; share++) all = __fadd_rn(all, own->closed[share][t][row]);
        return all;
    }
    __device__ __forceinline__ void store(const batch_split_octet *own, const float (*squares)[BATCH_SPLIT]) const {
        if (!there) return;
        const float rms = IN::normed ? rms_factor(sum_warp_partials(squares[t]), 1.0f / (float)p.cols, p.eps) : 1;
        const size_t h = (size_t)t * p.h_row + of;
        if (s.up.data) s.h[h] = epilogue_pair<true>(p.end.act, s.w, s.up, 0, of, sum(own, panel), sum(own, panel + PANEL_ROWS), rms);
        else if (IN::normed && s.h) s.h[h] = squared_relu(epilogue_sum(sum(own, panel), rms, before));
        else epilogue_store(y(), sum(own, panel), rms, before, p.link.publish);
    }
};

/* Gives the warp's sums of its share of a tile, closed, to the block that ends the tile. */
template <class F>
__device__ __forceinline__ void gpu_split_close(const gpu_segment &s, int tile, int share, float (*sum)[4], batch_split_octet *own) {
    const int lane = threadIdx.x % 32, t = lane / 2 % 2 * N_TILE_ROWS + lane % 2 * 2;
    float row_scale[2], closed[4];
    gpu_batch_row_scales<F>(gpu_batch_place<F>(s, tile), row_scale);
    gpu_batch_close<F>(sum, row_scale, closed);
#pragma unroll
    for (int i = 0; i < 4; i++) own->closed[share][t + i % 2][i / 2 * PANEL_ROWS + lane / 4] = closed[i];
}

/* A cluster's octets of a segment. */
template <class F, class IN>
__device__ __forceinline__ void gpu_split_tiles(const gpu_projection<IN> &p, const gpu_segment &s, void *memory) {
    const int warp = gpu_batch_warp(), k_blocks = s.w.k_blocks;
    const int share = (int)blockIdx.x % BATCH_SPLIT, clusters = s.blocks / BATCH_SPLIT;
    const int cluster = ((int)blockIdx.x - s.first_block) / BATCH_SPLIT;
    const int all = (gpu_tiles(s) - 1) / BATCH_SPLIT + 1, tile = all * cluster / clusters * BATCH_SPLIT;
    const int octets = all * (cluster + 1) / clusters - all * cluster / clusters;
    batch_split_shared *own = (batch_split_shared *)memory;
    const activation_fragments rows = activation_fragments_at<F, SPLIT_ROWS>(own->octet + p.octets, gpu_split_k_blocks(k_blocks));
    batch_split_weights<F> weights;
    int count;
    const int first = gpu_share(k_blocks, share, BATCH_SPLIT, &count);
    weights.begin(s, tile + warp, octets, first, count);
    pdl_wait();
    if (p.late) pdl_launch_dependents();
    cluster_wait();                                         /* all blocks have begun */
    gpu_split_prepare<F>(p, s, share, first, count, rows, own);
    batch_split_end<IN> end(p, s, tile + share);
    end.load();
    __syncthreads();
    batch_split_shared *of = gpu_in_cluster(own, warp);
#pragma unroll 1
    for (int i = 0; i < octets; i++) {
        const int at = tile + i * BATCH_SPLIT + warp;
        float sum[2][4] = {};
        gpu_split_multiply<F>(weights, s, rows, first, count, at + BATCH_SPLIT, i + 1 < octets, sum);
        gpu_split_close<F>(s, at, share, sum, &of->octet[i]);
    }
    cluster_arrive();
    cluster_wait();
    end.store(own->octet, own->squares);
#pragma unroll 1
    for (int i = 1; i < octets; i++) {
        batch_split_end<IN> other(p, s, tile + i * BATCH_SPLIT + share);
        other.load();
        other.store(&own->octet[i], own->squares);
    }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define BATCH_CLUSTERS __cluster_dims__(BATCH_SPLIT, 1, 1)
#else
#define BATCH_CLUSTERS
#endif

/* Grid: of each segment whole clusters, then those of p.extra blocks of other work. Before compute capability 9.0 nobody launches it. */
template <class IN>
__global__ void BATCH_CLUSTERS __launch_bounds__(GPU_THREADS, 2) gpu_batch_split(const __grid_constant__ gpu_projection<IN> p) {
    extern __shared__ uint4 dynamic[];
    if (!p.late) pdl_launch_dependents();
    if constexpr (IN::extra) {
        if ((int)blockIdx.x >= p.blocks) {
            pdl_wait();
            if ((int)blockIdx.x < p.blocks + p.extra) p.in.extra_block((int)blockIdx.x - p.blocks, p.extra);
            return;
        }
    }
    cluster_leave();
    int i = 0;
    while (i + 1 < p.count && (int)blockIdx.x >= p.segment[i + 1].first_block) i++;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    const int segment = i;
    with_format(p.segment[segment].w.format, [&](auto format) {
        gpu_split_tiles<decltype(format)>(p, p.segment[gpu_batch_own(segment)], dynamic);
    });
#endif
}
