/* layers/mla/values.cu: latent_values: o = v_b_proj m of each head, with m = sum of its parts. What stands where: decode.cu.

   A block has a head, and every p.blocks-th tile of 16 rows of v_b_proj that the head has some of; rows of other heads are dropped. As the
   token rows of a projection are normalised in every block of it, so m is made of its parts in every block of its head.

   Grid: (heads x blocks of a head, turns of STEP_ROWS token rows). */

/* Prologue (cuda/projection.cu): mixtures of latents, of a head. */
struct mla_mixed_rows {
    const mla_gpu &p;
    const float (*weight)[MLA_PARTS];                        /* [token row][part], shared: see mla_part_weights */
    const int *count;            /* [token row] parts */
    int head, first, cols;       /* first: token row 0 */
    template <int ROWS> struct more {};
    /* AT_ONCE parts are in flight; a part that is not there has weight 0. */
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *, int T, int col) const {
        enum { AT_ONCE = ROWS == 1 ? 4 : 2 };
#pragma unroll
        for (int t = 0; t < ROWS; t++) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[t][i] = 0;
#pragma unroll 1
            for (int from = 0; t < T && from < count[t]; from += AT_ONCE) {
                const float *sum = mla_part_sum(p, first + t, head, from) + col;
                float x[AT_ONCE][8];
#pragma unroll
                for (int n = 0; n < AT_ONCE; n++, sum += p.shape.kv_rank) {
                    gpu_load4(x[n], sum, col < cols && from + n < count[t]);
                    gpu_load4(x[n] + 4, sum + 4, col + 4 < cols && from + n < count[t]);
                }
#pragma unroll
                for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
                    for (int i = 0; i < 8; i++) v[t][i] = fmaf(weight[t][from + n], x[n][i], v[t][i]);
            }
        }
    }
    template <int ROWS> __device__ __forceinline__ void finish(float (*)[8], const more<ROWS> *, float *, bool) const {}
};

struct mla_block_parts {
    float weight[STEP_ROWS][MLA_PARTS];
    int count[STEP_ROWS];
};

/* What the parts of a token row are multiplied with; a row that saw nothing becomes zeros. A warp has a row. */
__device__ __forceinline__ void mla_part_weights(const mla_gpu &p, int head, int first, int T, mla_block_parts *to) {
    const int t = threadIdx.x / 32, part = threadIdx.x % 32;
    if (t >= T) return;
    const int count = min(__ldcg(p.part_count + first + t), (int)MLA_PARTS);
    const float2 ml = part < count ? __ldcg(mla_part_ml(p, first + t, head, part)) : make_float2(-INFINITY, 0);
    float top = ml.x;
#pragma unroll
    for (int n = 16; n; n /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
    const float weight = ml.x == -INFINITY ? 0 : gpu_exp2(ml.x - top), l = warp_sum(weight * ml.y);
    if (part < MLA_PARTS) to->weight[t][part] = l == 0 ? 0 : weight / l * p.kv_scale;
    if (part == 0) to->count[t] = count;
}

/* TILES of cuda/tiles.cu: the head's. */
struct mla_value_tiles {
    enum { normed = 0 };
    const mla_gpu &p;
    mla_block_parts *parts;
    int head, first, T;          /* token rows: the first, how many */
    __device__ __forceinline__ int panel(int tile) const { return head * p.shape.value_dim / PANEL_ROWS + 2 * tile; }
    __device__ __forceinline__ float per_col() const { return 1; }
    __device__ __forceinline__ float eps() const { return 0; }
    __device__ __forceinline__ int next(int tile) const { return tile + p.blocks; }
    __device__ __forceinline__ bool valid(int tile) const { return panel(tile) * PANEL_ROWS < (head + 1) * p.shape.value_dim; }
    template <class F> __device__ __forceinline__ gpu_place place(int tile) const {
        return gpu_place_of<F>(p.w, panel(tile), p.w, panel(tile) + 1);
    }
    template <class F, int ROWS>
    __device__ __forceinline__ void prepare(int from, int warp_k_blocks, const activation_fragments &act, float *square) const {
        pdl_wait();
        mla_part_weights(p, head, first, T, parts);
        __syncthreads();
        const mla_mixed_rows in = {p, parts->weight, parts->count, head, first, p.shape.kv_rank};
        gpu_stage_activations<F, ROWS, 1>(in, T, from, warp_k_blocks, act, square);
    }
    __device__ __forceinline__ float before(int, int, int) const { return 0; }
    __device__ __forceinline__ void store(int tile, int row, int t, const float (*part)[STEP_ROWS][GPU_WARPS], float, float) const {
        const int value = panel(tile) * PANEL_ROWS + row - head * p.shape.value_dim;
        if (value < 0 || value >= p.shape.value_dim) return;
        p.o[((size_t)(first + t) * p.shape.heads + head) * p.shape.value_dim + value] = sum_warp_partials(part[row][t]);
    }
};

/* ROWS: 1, or STEP_ROWS for more. */
template <int ROWS> static __global__ void __launch_bounds__(GPU_THREADS, 2) mla_values(const __grid_constant__ mla_gpu p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials partials;
    __shared__ mla_block_parts parts;
    const int first = (int)blockIdx.y * STEP_ROWS, tile = (int)blockIdx.x % p.blocks;
    const mla_value_tiles tiles = {p, &parts, (int)blockIdx.x / p.blocks, first, min(p.T - first, (int)STEP_ROWS)};
    pdl_launch_dependents();
    with_format(p.w.format, [&](auto format) {
        gpu_ahead<decltype(format), ROWS> ahead;
        ahead.nothing(p.w);
        ahead.begin(tiles, tile, p.w);
        gpu_run_tiles<decltype(format), ROWS>(tiles, tile, p.w, tiles.T, dynamic, &partials, ahead);
    });
}
