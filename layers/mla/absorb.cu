/* layers/mla/absorb.cu: absorb: queries of latents, and new rows of the cache. What stands where: decode.cu.

   A block has a head and a k block of k_b_proj's columns: l[col] = sum over the head's rows n of q[n] k_b_proj[n][col]. A warp takes every
   eighth panel of these rows; lane 4 g + i has a quarter of row g, as it lies packed (cuda/panels.cu), and sums for each of its columns;
   then lanes are joined, and warps, in their order. Weights are in registers before the wait. A panel that the head shares with its
   neighbour is read by both, and rows of the other count as zeros.

   Blocks after those have a token row each: norm(c) and rotate(r) go to the cache, rotate(t) of each head to its query.

   Grid: (heads x k blocks + rows, turns of STEP_ROWS token rows); with kv_only without the heads. */

/* What a lane's weights of a row are multiplied with. */
template <class F> __device__ __forceinline__ float mla_weight_scale(const gpu_matrix &w, int row, int k_block) {
    if (!F::scaled) return 1;
    return w.scale[(size_t)(row >> w.row_shift) * w.scale_cols + (k_block >> w.k_block_shift)] * gpu_post_scale<F>();
}

/* The head's panels of k_b_proj that a warp has in flight, of one k block: as many as registers allow. */
template <class F, int ROWS> struct mla_panels {
    enum { DEPTH = ROWS == 1 ? 4 : 3 };
    const gpu_matrix &w;
    const int first, k_block;    /* the head's first panel */
    typename F::raw raw[DEPTH];
    float scale[DEPTH];
    __device__ __forceinline__ mla_panels(const gpu_matrix &w, int first, int k_block) : w(w), first(first), k_block(k_block) {}
    __device__ __forceinline__ void load(int j, int panel) {
        const int lane = threadIdx.x % 32, row = min((first + panel) * PANEL_ROWS + lane / 4, w.rows - 1);
        const char *at = w.data + ((size_t)(first + panel) * w.k_blocks + k_block) * F::panel + lane * F::lane;
        raw[j] = F::load(at, F::by_row && !F::groups ? w.scale + row : NULL);
        scale[j] = mla_weight_scale<F>(w, row, k_block);
    }
};

/* sum[t][col] over this warp's panels, of the columns of this lane. q: [ROWS][nope_dim]. */
template <class F, int ROWS>
__device__ __forceinline__ void mla_absorb_panels(mla_panels<F, ROWS> &panels, int count, int head, int nope, const float *q,
                                                  float (*sum)[F::per_load]) {
    enum { DEPTH = mla_panels<F, ROWS>::DEPTH };
#pragma unroll 1
    for (int base = threadIdx.x / 32; base < count; base += DEPTH * GPU_WARPS) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++) {
            const int panel = base + j * GPU_WARPS, next = panel + DEPTH * GPU_WARPS;
            const int row = (panels.first + panel) * PANEL_ROWS + (int)threadIdx.x % 32 / 4 - head * nope;
            const bool own = panel < count && row >= 0 && row < nope;
            if (panel >= count) continue;
            float weight[F::per_load];
            gpu_lane_weights<F>(panels.raw[j], weight);
            const float scale = F::by_row ? 1 : panels.scale[j];
#pragma unroll
            for (int i = 0; F::by_row && i < F::per_load; i++)
                weight[i] *= gpu_row_scale<F>(panels.raw[j], i * gpu_block_parts<F>() / F::per_load) * gpu_codes_scale<F>();
            if (next < count) panels.load(j, next);
#pragma unroll
            for (int t = 0; t < ROWS; t++) {
                const float x = own ? q[t * nope + row] * scale : 0;
#pragma unroll
                for (int i = 0; i < F::per_load; i++) sum[t][i] = fmaf(x, own ? weight[i] : 0, sum[t][i]);
            }
        }
    }
}

/* Joins the lanes of a column, then the warps, and stores queries. part: [GPU_WARPS][ROWS][COLS]. */
template <class F, int ROWS>
__device__ __forceinline__ void mla_absorb_store(const mla_gpu &p, int head, int k_block, int first, int T, float *part,
                                                 float (*sum)[F::per_load]) {
    enum { COLS = 4 * F::per_load, RUN = F::per_load / gpu_block_parts<F>() };         /* neighbouring columns of a lane */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int t = 0; t < ROWS; t++)
#pragma unroll
        for (int i = 0; i < F::per_load; i++) {
#pragma unroll
            for (int n = 4; n < 32; n *= 2) sum[t][i] += __shfl_xor_sync(~0u, sum[t][i], n);
            if (lane < 4) part[(warp * ROWS + t) * COLS + i / RUN * 4 * RUN + lane * RUN + i % RUN] = sum[t][i];
        }
    __syncthreads();
    for (int at = threadIdx.x; at < ROWS * COLS; at += GPU_THREADS) {
        const int t = at / COLS, col = k_block * COLS + at % COLS;
        float all = 0;
        for (int w = 0; w < GPU_WARPS; w++) all += part[w * ROWS * COLS + at];
        if (t < T && col < p.shape.kv_rank) p.l[((size_t)(first + t) * p.shape.heads + head) * mla_row_size(&p.shape) + col] = all;
    }
}

/* A head's k block, for the token rows from STEP_ROWS blockIdx.y on. */
template <class F, int ROWS> __device__ __forceinline__ void mla_absorb_head(const mla_gpu &p, float *memory) {
    const mla_shape *s = &p.shape;
    const int head = (int)blockIdx.x / p.w.k_blocks, k_block = (int)blockIdx.x % p.w.k_blocks, nope = s->nope_dim;
    const int first = (int)blockIdx.y * STEP_ROWS, T = min(p.T - first, ROWS), from = head * nope / PANEL_ROWS;
    const int count = (head * nope + nope - 1) / PANEL_ROWS - from + 1;
    float *q = memory, sum[ROWS][F::per_load] = {};
    mla_panels<F, ROWS> panels(p.w, from, k_block);
#pragma unroll
    for (int j = 0; j < mla_panels<F, ROWS>::DEPTH; j++) {
        const int panel = (int)threadIdx.x / 32 + j * GPU_WARPS;
        if (panel < count) panels.load(j, panel);
    }
    pdl_wait();
    for (int i = threadIdx.x; i < ROWS * nope; i += GPU_THREADS) {
        const int t = i / nope;
        q[i] = t < T ? __ldcg(p.q + ((size_t)(first + t) * s->heads + head) * mla_key_dim(s) + i % nope) : 0;
    }
    __syncthreads();
    mla_absorb_panels<F, ROWS>(panels, count, head, nope, q, sum);
    mla_absorb_store<F, ROWS>(p, head, k_block, first, T, q + ROWS * nope, sum);
}

/* The sequence of token row t, for all threads; -1: none has it. found: shared. */
__device__ __forceinline__ int mla_sequence_of(const mla_gpu &p, int t, int *found) {
    if (!p.sequences) return 0;
    if (threadIdx.x == 0) *found = -1;
    __syncthreads();
    for (int z = threadIdx.x; z < p.sequences; z += GPU_THREADS)
        if (t >= p.step[z].first && t < p.step[z].first + p.step[z].rows) *found = z;
    __syncthreads();
    return *found;
}

/* cs[i] = cos and cs[rope_dim / 2 + i] = sin of pair i's angle, times rope_scale; exact for any position: see attend_angle. */
__device__ __forceinline__ void mla_angle(const mla_shape *s, int position, int i, float frequency, float *cs) {
    const double turn = (double)((float)position * frequency) * 0.31830988618379067154;
    const float rest = (float)(turn - 2 * rint(turn / 2));
    cs[i] = cospif(rest) * s->rope_scale;
    cs[s->rope_dim / 2 + i] = sinpif(rest) * s->rope_scale;
}

/* The elements of pair i. */
__device__ __forceinline__ void mla_pair(const mla_shape *s, int i, int *first, int *second) {
    *first = s->interleaved ? 2 * i : i;
    *second = s->interleaved ? 2 * i + 1 : s->rope_dim / 2 + i;
}

/* Pair i of x, rotated. */
__device__ __forceinline__ float2 mla_rotated(const mla_shape *s, const float *x, int i, const float *cs) {
    int first, second;
    mla_pair(s, i, &first, &second);
    const float a = x[first], b = x[second], cosine = cs[i], sine = cs[s->rope_dim / 2 + i];
    return make_float2(fmaf(a, cosine, -b * sine), fmaf(b, cosine, a * sine));
}

__device__ __forceinline__ void mla_store(dtype kv, float scale, char *row, int i, float x) {
    if (kv == DTYPE_FP8) attend_store<true>(row, i, x, scale);
    else attend_store<false>(row, i, x, scale);
}

/* A row of the cache. c: as kv_a_proj makes it, in shared memory; factor: of its norm; scale: the cache's. */
__device__ __forceinline__ void mla_append(const mla_shape *s, dtype kv, float scale, const float *norm, char *row, const float *c, float factor,
                                           const float *cs) {
    for (int i = threadIdx.x; i < s->kv_rank; i += GPU_THREADS) mla_store(kv, scale, row, i, c[i] * factor * __ldg(norm + i));
    for (int i = threadIdx.x; i < s->rope_dim / 2; i += GPU_THREADS) {
        const float2 x = mla_rotated(s, c + s->kv_rank, i, cs);
        int first, second;
        mla_pair(s, i, &first, &second);
        mla_store(kv, scale, row, s->kv_rank + first, x.x);
        mla_store(kv, scale, row, s->kv_rank + second, x.y);
    }
}

/* What is rotated of token row t's queries. */
__device__ __forceinline__ void mla_rotate_queries(const mla_gpu &p, int t, const float *cs) {
    const mla_shape *s = &p.shape;
    const int half = s->rope_dim / 2;
    for (int n = threadIdx.x; n < s->heads * half; n += GPU_THREADS) {
        const int i = n % half;
        const size_t head = (size_t)t * s->heads + n / half;
        float *to = p.l + head * mla_row_size(s) + s->kv_rank;
        int first, second;
        mla_pair(s, i, &first, &second);
        const float2 x = mla_rotated(s, p.q + head * mla_key_dim(s) + s->nope_dim, i, cs);
        to[first] = x.x;
        to[second] = x.y;
    }
}

/* A block's token row. memory: [rope_dim] of cos and sin, [kv_rank + rope_dim]. */
__device__ __forceinline__ void mla_token_row(const mla_gpu &p, int t, float *memory) {
    __shared__ float shared[GPU_WARPS];
    __shared__ int found;
    const mla_shape *s = &p.shape;
    const int z = t < p.T ? mla_sequence_of(p, t, &found) : -1;
    float *cs = memory, *c = cs + s->rope_dim, squares = 0;
    mla_range span = {};
    if (z >= 0) span = mla_range_of(p, z);
    for (int i = threadIdx.x; z >= 0 && i < s->rope_dim / 2; i += GPU_THREADS)
        mla_angle(s, span.first + t - span.row - span.step->lag, i, p.frequencies[i], cs);
    pdl_wait();
    if (z < 0) return;
    for (int i = threadIdx.x; i < mla_row_size(s); i += GPU_THREADS) {
        c[i] = __ldcg(p.c_new + (size_t)t * mla_row_size(s) + i);
        if (i < s->kv_rank) squares = fmaf(c[i], c[i], squares);
    }
    const float factor = rms_factor(block_sum(squares, shared), 1.0f / (float)s->kv_rank, s->eps);
    const int at = span.first + t - span.row;
    char *row = mla_cache(p, span) + (ptrdiff_t)at * mla_row_size(s) * (p.kv == DTYPE_FP8 ? 1 : 2);
    if (at >= 0 && at < span.end) mla_append(s, p.kv, p.kv_scale, p.kv_norm, row, c, factor, cs);
    if (!p.kv_only) mla_rotate_queries(p, t, cs);
}

/* ROWS: 1, or STEP_ROWS for more. */
template <int ROWS> static __global__ void __launch_bounds__(GPU_THREADS, 2) mla_absorb(const __grid_constant__ mla_gpu p) {
    extern __shared__ __align__(16) char memory[];
    const int tiles = p.kv_only ? 0 : p.shape.heads * p.w.k_blocks;
    pdl_launch_dependents();
    l2_prefetch_share(p.link.prefetch);
    if ((int)blockIdx.x >= tiles) {
        mla_token_row(p, (int)blockIdx.y * STEP_ROWS + (int)blockIdx.x - tiles, (float *)memory);
        return;
    }
    with_format(p.w.format, [&](auto format) { mla_absorb_head<decltype(format), ROWS>(p, (float *)memory); });
}
