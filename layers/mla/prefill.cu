/* layers/mla/prefill.cu: latent attention for the rows of a prompt: what is done beside products and attention itself, which is
   layers/attention/prefill_attend.cu's. The order of things: prefill_launch.cu.

   With many rows keys and values are worth making: a query of keys costs nope_dim + rope_dim + value_dim products a position, one of latents
   more than twice as many. They are made of the cache's rows, as rounded as these are, for a group of heads at a time, and become BF16 whatever
   the cache is; so does a query.

     mla_prefill_append     norm(c) and rotate(r): rows of the cache
     mla_prefill_queries    q, rotate(t), times log2(e) scale, of the group's heads
     mla_prefill_latents    c of positions of the cache as F16 with a power of two a row, for products with k_b_proj and v_b_proj
     mla_prefill_keys       these products as keys [k, r] and values v */

typedef struct mla_prefill {
    mla_shape shape;
    int T, index;                /* token rows; index of row 0 */
    int head, heads;             /* of the group: the first, how many */
    int first, positions;        /* of the cache: the first, how many */
    const token_row *table;      /* [T] */
    const float *frequencies, *kv_norm;
    dtype kv;                    /* BF16 or FP8 */
    float kv_scale;              /* factor of the cache's numbers; 1 but for FP8 */
    char *latents;               /* cache [context][kv_rank + rope_dim] */
    const float *c_new;          /* [T][kv_rank + rope_dim] as projected */
    const float *q_new;          /* [T][heads][nope_dim + rope_dim] as projected */
    uint16_t *q;                 /* BF16 [T][shape.heads][nope_dim + rope_dim] */
    uint16_t *c;                 /* F16 [positions][kv_rank]: / c_scale */
    float *c_scale;              /* [positions] */
    const float *k_new, *v_new;  /* [positions][heads][nope_dim], [positions][heads][value_dim] as projected */
    uint16_t *k, *v;             /* BF16 [positions][heads][nope_dim + rope_dim], [positions][heads][value_dim] */
} mla_prefill;

/* cos and sin of row t: [rope_dim], shared. Ends with a barrier. */
__device__ __forceinline__ void mla_prefill_angles(const mla_prefill &p, int t, float *cs) {
    for (int i = threadIdx.x; i < p.shape.rope_dim / 2; i += GPU_THREADS) mla_angle(&p.shape, p.table[t].position[0], i, p.frequencies[i], cs);
    __syncthreads();
}

/* Grid: token rows. Shared memory: [rope_dim], [kv_rank + rope_dim]. */
static __global__ void __launch_bounds__(GPU_THREADS) mla_prefill_append(const __grid_constant__ mla_prefill p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float shared[GPU_WARPS];
    const mla_shape *s = &p.shape;
    const int t = blockIdx.x, row = mla_row_size(s);
    float *cs = (float *)memory, *c = cs + s->rope_dim, squares = 0;
    mla_prefill_angles(p, t, cs);
    for (int i = threadIdx.x; i < row; i += GPU_THREADS) {
        c[i] = p.c_new[(size_t)t * row + i];
        if (i < s->kv_rank) squares = fmaf(c[i], c[i], squares);
    }
    const float factor = rms_factor(block_sum(squares, shared), 1.0f / (float)s->kv_rank, s->eps);
    mla_append(s, p.kv, p.kv_scale, p.kv_norm, p.latents + (size_t)(p.index + t) * row * (p.kv == DTYPE_FP8 ? 1 : 2), c, factor, cs);
}

/* Grid: token rows. Shared memory: [rope_dim]. */
static __global__ void __launch_bounds__(GPU_THREADS) mla_prefill_queries(const __grid_constant__ mla_prefill p) {
    extern __shared__ __align__(16) char memory[];
    const mla_shape *s = &p.shape;
    const int t = blockIdx.x, pairs = mla_key_dim(s) / 2, still = s->nope_dim / 2;
    const float scale = s->scale * 1.44269504f, *cs = (const float *)memory;
    mla_prefill_angles(p, t, (float *)memory);
    for (int n = threadIdx.x; n < p.heads * pairs; n += GPU_THREADS) {
        const int head = n / pairs, i = n % pairs;
        const float *from = p.q_new + ((size_t)t * p.heads + head) * 2 * pairs;
        uint16_t *to = p.q + ((size_t)t * s->heads + p.head + head) * 2 * pairs;
        if (i < still) {
            ((uint32_t *)to)[i] = bf16_pair(from[2 * i] * scale, from[2 * i + 1] * scale);
            continue;
        }
        const float2 x = mla_rotated(s, from + s->nope_dim, i - still, cs);
        int first, second;
        mla_pair(s, i - still, &first, &second);
        to[s->nope_dim + first] = (uint16_t)bf16_pair(x.x * scale, 0);
        to[s->nope_dim + second] = (uint16_t)bf16_pair(x.y * scale, 0);
    }
}

/* A number of the cache's row, which is `at` elements from its beginning. */
__device__ __forceinline__ float mla_prefill_cached(const mla_prefill &p, size_t at) {
    return p.kv == DTYPE_FP8 ? attend_load<true>(p.latents, at) * p.kv_scale : attend_load<false>(p.latents, at);
}

/* A warp has a position. */
static __global__ void __launch_bounds__(GPU_THREADS) mla_prefill_latents(const __grid_constant__ mla_prefill p) {
    const int at = (int)blockIdx.x * GPU_WARPS + (int)threadIdx.x / 32, lane = threadIdx.x % 32, rank = p.shape.kv_rank;
    if (at >= p.positions) return;
    const size_t from = (size_t)(p.first + at) * mla_row_size(&p.shape);
    float top = 0, factor;
    for (int i = lane; i < rank; i += 32) top = fmaxf(top, fabsf(mla_prefill_cached(p, from + i)));
#pragma unroll
    for (int n = 16; n; n /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
    const float scale = gemm_act_scale(top, &factor);
    for (int i = 2 * lane; i < rank; i += 64)
        *(uint32_t *)(p.c + (size_t)at * rank + i) = f16_pair(mla_prefill_cached(p, from + i) * factor, mla_prefill_cached(p, from + i + 1) * factor);
    if (lane == 0) p.c_scale[at] = scale;
}

/* Grid: positions. */
static __global__ void __launch_bounds__(GPU_THREADS) mla_prefill_keys(const __grid_constant__ mla_prefill p) {
    const mla_shape *s = &p.shape;
    const size_t at = blockIdx.x, rotated = (size_t)(p.first + blockIdx.x) * mla_row_size(s) + s->kv_rank;
    const int pairs = mla_key_dim(s) / 2, still = s->nope_dim / 2, values = p.heads * (s->value_dim / 2);
    for (int n = threadIdx.x; n < p.heads * pairs; n += GPU_THREADS) {
        const int head = n / pairs, i = n % pairs, r = 2 * (i - still);
        const float2 *k = (const float2 *)p.k_new + (at * p.heads + head) * still;
        const float2 x = i < still ? k[i] : make_float2(mla_prefill_cached(p, rotated + r), mla_prefill_cached(p, rotated + r + 1));
        ((uint32_t *)p.k)[at * p.heads * pairs + n] = bf16_pair(x.x, x.y);
    }
    for (int n = threadIdx.x; n < values; n += GPU_THREADS) {
        const float2 x = ((const float2 *)p.v_new)[at * values + n];
        ((uint32_t *)p.v)[at * values + n] = bf16_pair(x.x, x.y);
    }
}
