/* cuda/batch_split.cu: a projection of 5 to 32 token rows on GPUs with thread block clusters, where all blocks are resident at once. The
   eight blocks of a cluster have tiles by eights (an octet) and split their K, a share each; a block prepares its columns of the token rows
   itself, so that no kernel does that before, and each of its warps multiplies one tile of an octet with them. Knows prologues, matrices and
   tiles; must not know layers.

   Why: a block that has all of K reads all token rows from the L2 for the one tile, or the six, that it has; of 32 rows of 4,096 columns
   these are eight times as many bytes as the tile. Here it reads an eighth of them.

   The bits are those of cuda/batch_tile.cu: a share's sums are a warp's, closed by itself, and are added in the order of the shares; a
   row's squares of a share are summed by one warp, as there.

   Correctness. A warp stores a closed share into the shared memory of the block that ends its tile. It does so after the first barrier of
   the cluster, which says that this block has begun; the second says that all has been stored, and nobody touches another block's memory
   after it. */

enum { BATCH_SPLIT = GPU_WARPS };                           /* blocks of a cluster, shares of K, tiles of an octet */

/* Token rows; k blocks of weights in flight; octets of a cluster at most. */
template <int NT> struct batch_split {
    enum { ROWS = NT * N_TILE_ROWS, DEPTH = NT > 2 ? 2 : 4, OCTETS = NT > 2 ? 1 : 4 };
};

/* Dynamic shared memory of a block: squares of the rows by share; of each octet the block's own tile by share; then the activation
   fragments of its columns. */
template <int NT> struct batch_split_octet { float closed[BATCH_SPLIT][batch_split<NT>::ROWS][TILE_ROWS]; };
template <int NT> struct batch_split_shared {
    float squares[batch_split<NT>::ROWS][BATCH_SPLIT];
    batch_split_octet<NT> octet[1];                         /* as many as the kernel is told */
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

/* The same prologue of the rows from t on. */
template <class IN> __device__ __forceinline__ IN gpu_row_of(IN in, int t) {
    in.select(t);
    return in;
}

/* The block's share of the rows' columns, as fragments: k blocks first .. first + count - 1. A warp has rows
   warp, warp + 8, ..., of many two at a time, and tells all blocks of their squares. */
template <class F, int NT, class IN>
__device__ __forceinline__ void gpu_split_prepare(const gpu_projection<IN> &p, const gpu_segment &s, int share, int first, int count,
                                                  const activation_fragments &to, batch_split_shared<NT> *own) {
    enum { TWO = NT > 2, STEP = (TWO + 1) * GPU_WARPS, AT_ONCE = 2, ROWS = batch_split<NT>::ROWS };
    typedef row_columns<F, 1, AT_ONCE, IN> columns;
    IN in = p.in;
    if constexpr (IN::normed) in.norm = s.norm;
    auto tell = [&](int t, float square) {
        const float sum = IN::normed ? warp_sum(square) : 0;
        const int rank = threadIdx.x % 32;
        if (IN::normed && rank < BATCH_SPLIT && t < p.T) gpu_in_cluster(own, rank)->squares[t][share] = sum;
    };
#pragma unroll 1
    for (int t = threadIdx.x / 32; t < p.T; t += STEP) {
        const IN in_a = gpu_row_of(in, t), in_b = gpu_row_of(in, min(t + GPU_WARPS, p.T - 1));
        columns a(in_a, 1, first, count), b(in_b, 1, first, count);
        float square_a[1] = {}, square_b[1] = {};
#pragma unroll 1
        for (int begin = 0; begin < count * columns::LANES; begin += 32 * AT_ONCE) {
            a.load(begin);
            if (TWO) b.load(begin);
            gpu_put_row<F, ROWS>(&a, begin, to, 0, t, square_a, true);
            if (TWO) gpu_put_row<F, ROWS>(&b, begin, to, 0, t + GPU_WARPS, square_b, t + GPU_WARPS < p.T);
        }
        tell(t, square_a[0]);
        if (TWO) tell(t + GPU_WARPS, square_b[0]);
    }
}

/* A warp's weights: DEPTH k blocks of its share of its tiles in flight, the others on their way to the L2. A tile after the last counts as the
   last. */
template <class F, int DEPTH> struct batch_split_weights {
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
template <class F, int NT>
__device__ __forceinline__ void gpu_split_multiply(batch_split_weights<F, batch_split<NT>::DEPTH> &weights, const gpu_segment &s,
                                                   const activation_fragments &rows, int first, int count, int n_tiles, int next,
                                                   bool more, float (*sum)[4]) {
    enum { DEPTH = batch_split<NT>::DEPTH, ROWS = batch_split<NT>::ROWS, pairs = gpu_step_pairs<F>(), SIDE = 2, SKIP = 4 };
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
#pragma unroll
            for (int n = 0; n < NT; n += SIDE) {
                if (n && n % SKIP == 0 && n >= n_tiles) break;
                uint4 x[SIDE][pairs];
                float2 act_scale[SIDE];
                float (*to[1])[4] = {&sum[n]};
#pragma unroll
                for (int i = 0; i < SIDE; i++) {
#pragma unroll
                    for (int pair = 0; pair < pairs; pair++) x[i][pair] = b[pair * 8 * ROWS + (n + i) * 4 * N_TILE_ROWS];
                    act_scale[i] = F::half ? *(const float2 *)(scales + (n + i) * N_TILE_ROWS) : make_float2(1, 1);
                }
                gpu_batch_multiply<F, 1, SIDE>(to, &w, scale, x, act_scale);
            }
        }
    }
}

/* The elements of a block's own tile that a thread ends: of token rows t, t + 16, ... a row. */
template <int NT, class IN> struct batch_split_end {
    enum { STEP = GPU_THREADS / TILE_ROWS, EACH = (batch_split<NT>::ROWS + STEP - 1) / STEP };
    const gpu_projection<IN> &p;
    const gpu_segment &s;
    const int panel, of;         /* row of the tile; of the matrix */
    float before[EACH];

    __device__ __forceinline__ batch_split_end(const gpu_projection<IN> &p, const gpu_segment &s, int tile)
        : p(p), s(s), panel(threadIdx.x % TILE_ROWS), of(tile * (s.up.data ? (int)PANEL_ROWS : (int)TILE_ROWS) + panel) {}
    __device__ __forceinline__ bool there(int i) const {
        return (int)threadIdx.x / TILE_ROWS + i * STEP < p.T && of < s.w.rows && (!s.up.data || panel < PANEL_ROWS);
    }
    __device__ __forceinline__ float *y(int i) const { return s.y + (size_t)(threadIdx.x / TILE_ROWS + i * STEP) * s.w.rows + of; }
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            before[i] = s.up.data || !there(i) ? 0 : IN::normed ? epilogue_bias<true>(s.w, 0, of) : epilogue_before<true>(p.end, s.w, of, y(i));
    }
    __device__ __forceinline__ float sum(const batch_split_octet<NT> *own, int t, int row) const {
        float all = own->closed[0][t][row];
#pragma unroll
        for (int share = 1; share < BATCH_SPLIT; share++) all = __fadd_rn(all, own->closed[share][t][row]);
        return all;
    }
    __device__ __forceinline__ void store(const batch_split_octet<NT> *own, const float (*squares)[BATCH_SPLIT]) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int t = threadIdx.x / TILE_ROWS + i * STEP;
            if (!there(i)) continue;
            const float rms = IN::normed ? rms_factor(sum_warp_partials(squares[t]), 1.0f / (float)p.cols, p.eps) : 1;
            const size_t h = (size_t)t * p.h_row + of;
            if (s.up.data) s.h[h] = epilogue_pair<true>(p.end.act, s.w, s.up, 0, of, sum(own, t, panel), sum(own, t, panel + PANEL_ROWS), rms);
            else if (IN::normed && s.h) s.h[h] = squared_relu(epilogue_sum(sum(own, t, panel), rms, before[i]));
            else epilogue_store(y(i), sum(own, t, panel), rms, before[i], p.link.publish);
        }
    }
};

/* Gives the warp's sums of its share of a tile, closed, to the block that ends the tile. */
template <class F, int NT>
__device__ __forceinline__ void gpu_split_close(const gpu_segment &s, int tile, int share, float (*sum)[4], batch_split_octet<NT> *own) {
    const int lane = threadIdx.x % 32;
    float row_scale[2];
    gpu_batch_row_scales<F>(gpu_batch_place<F>(s, tile), row_scale);
#pragma unroll
    for (int u = 0; u < NT / 2; u++) {
        float closed[4];
        gpu_batch_close<F>(&sum[2 * u], row_scale, closed);
        const int t = (2 * u + lane / 2 % 2) * N_TILE_ROWS + lane % 2 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) own->closed[share][t + i % 2][i / 2 * PANEL_ROWS + lane / 4] = closed[i];
    }
}

/* A cluster's octets of a segment. */
template <class F, int NT, class IN>
__device__ __forceinline__ void gpu_split_tiles(const gpu_projection<IN> &p, const gpu_segment &s, void *memory) {
    const int warp = gpu_batch_warp(), k_blocks = s.w.k_blocks;
    const int share = (int)blockIdx.x % BATCH_SPLIT, clusters = s.blocks / BATCH_SPLIT;
    const int cluster = ((int)blockIdx.x - s.first_block) / BATCH_SPLIT;
    const int all = (gpu_tiles(s) - 1) / BATCH_SPLIT + 1, tile = all * cluster / clusters * BATCH_SPLIT;
    const int octets = all * (cluster + 1) / clusters - all * cluster / clusters;
    batch_split_shared<NT> *own = (batch_split_shared<NT> *)memory;
    const activation_fragments rows = activation_fragments_at<F, batch_split<NT>::ROWS>(own->octet + p.octets, gpu_split_k_blocks(k_blocks));
    batch_split_weights<F, batch_split<NT>::DEPTH> weights;
    int count;
    const int first = gpu_share(k_blocks, share, BATCH_SPLIT, &count);
    weights.begin(s, tile + warp, octets, first, count);
    pdl_wait();
    if (NT <= 2 && p.late) pdl_launch_dependents();
    cluster_wait();                                         /* all blocks have begun */
    gpu_split_prepare<F, NT>(p, s, share, first, count, rows, own);
    batch_split_end<NT, IN> end(p, s, tile + share);
    end.load();
    __syncthreads();
    batch_split_shared<NT> *of = gpu_in_cluster(own, warp);
#pragma unroll 1
    for (int i = 0; i < octets; i++) {
        const int at = tile + i * BATCH_SPLIT + warp;
        float sum[NT][4] = {};
        gpu_split_multiply<F, NT>(weights, s, rows, first, count, (p.T + N_TILE_ROWS - 1) / N_TILE_ROWS, at + BATCH_SPLIT, i + 1 < octets,
                                  sum);
        gpu_split_close<F, NT>(s, at, share, sum, &of->octet[i]);
    }
    if (NT > 2) pdl_launch_dependents();
    cluster_arrive();
    cluster_wait();
    end.store(own->octet, own->squares);
#pragma unroll 1
    for (int i = 1; i < octets; i++) {
        batch_split_end<NT, IN> other(p, s, tile + i * BATCH_SPLIT + share);
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
template <class IN, int NT>
__global__ void BATCH_CLUSTERS __launch_bounds__(GPU_THREADS, 2) gpu_batch_split(const __grid_constant__ gpu_projection<IN> p) {
    extern __shared__ uint4 dynamic[];
    if (NT <= 2 && !p.late) pdl_launch_dependents();
    if constexpr (IN::extra) {
        if ((int)blockIdx.x >= p.blocks) {
            if (NT > 2) pdl_launch_dependents();
            pdl_wait();
            if ((int)blockIdx.x < p.blocks + p.extra) p.in.extra_block((int)blockIdx.x - p.blocks, p.extra);
            return;
        }
    }
    cluster_leave();
    int i = 0;
    while (i + 1 < p.count && (int)blockIdx.x >= p.segment[i + 1].first_block) i++;
    const int segment = i;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    with_format(p.segment[segment].w.format, [&](auto format) {
        gpu_split_tiles<decltype(format), NT>(p, p.segment[gpu_batch_own(segment)], dynamic);
    });
#endif
}
