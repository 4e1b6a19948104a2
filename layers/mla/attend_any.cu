/* layers/mla/attend_any.cu: latent_attend for latents of any size, by plain loops. What stands where: decode.cu.

   A block takes the token rows of its sequence one after another, each over all of its chunks; a warp computes the score of every eighth
   position, a thread every 256th number of the sum.

   Grid: (head, split, sequence). */

__device__ __forceinline__ float mla_cached(const mla_gpu &p, const char *cache, size_t at) {
    return p.kv == DTYPE_FP8 ? attend_load<true>(cache, at) : attend_load<false>(cache, at);
}

/* Adds a chunk to m, l and o of a query that sees positions up to kv_last; all threads have the same m and l. weights: shared. */
__device__ __forceinline__ void mla_chunk(const mla_gpu &p, const char *cache, int chunk, int kv_last, const float *q, float *weights, float *o,
                                          float *m, float *l) {
    const int lane = threadIdx.x % 32, row = mla_row_size(&p.shape), first = chunk * MLA_CHUNK;
    const int count = min(kv_last + 1 - first, (int)MLA_CHUNK);
    for (int j = threadIdx.x / 32; j < count; j += GPU_WARPS) {
        float sum = 0;
        for (int i = lane; i < row; i += 32) sum = fmaf(q[i], mla_cached(p, cache, (size_t)(first + j) * row + i), sum);
        sum = warp_sum(sum);
        if (lane == 0) weights[j] = sum * p.kv_scale;
    }
    __syncthreads();
    float top = *m, sum = 0, rescale;
    for (int j = 0; j < count; j++) top = fmaxf(top, weights[j]);
    const float base = attend_raise<false>(m, top, &rescale);
    for (int j = 0; j < count; j++) sum += gpu_exp2(weights[j] - base);
    *l = fmaf(*l, rescale, sum);
    for (int i = threadIdx.x; i < p.shape.kv_rank; i += GPU_THREADS) {
        float value = o[i] * rescale;
        for (int j = 0; j < count; j++)
            value = fmaf(gpu_exp2(weights[j] - base), mla_cached(p, cache, (size_t)(first + j) * row + i), value);
        o[i] = value;
    }
    __syncthreads();
}

/* Dynamic shared memory: [kv_rank + rope_dim] of a query, [kv_rank] of the sum. */
static __global__ void __launch_bounds__(GPU_THREADS, 2) mla_attend_any(const __grid_constant__ mla_gpu p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float weights[MLA_CHUNK];
    const int row = mla_row_size(&p.shape), head = blockIdx.x, split = blockIdx.y;
    float *q = (float *)memory, *o = q + row;
    pdl_launch_dependents();
    const mla_range s = mla_range_of(p, blockIdx.z);
    const char *cache = mla_cache(p, s);
    const int parts = max(1, min(s.chunks, p.splits));
    if (split >= parts) return;
    pdl_wait();
    if (head == 0 && split == 0 && (int)threadIdx.x < s.T) p.part_count[s.row + threadIdx.x] = parts;
    for (int t = 0; t < s.T; t++) {
        const int kv_last = min(s.first + t, s.end - 1);
        const float *from = p.l + ((size_t)(s.row + t) * p.shape.heads + head) * row;
        float m = -INFINITY, l = 0;
        for (int i = threadIdx.x; i < row; i += GPU_THREADS) q[i] = __ldcg(from + i) * mla_query_scale(p);
        for (int i = threadIdx.x; i < p.shape.kv_rank; i += GPU_THREADS) o[i] = 0;
        __syncthreads();
        for (int chunk = split; chunk * MLA_CHUNK <= kv_last; chunk += p.splits)
            mla_chunk(p, cache, chunk, kv_last, q, weights, o, &m, &l);
        for (int i = threadIdx.x; i < p.shape.kv_rank; i += GPU_THREADS) mla_part_sum(p, s.row + t, head, split)[i] = o[i];
        if (threadIdx.x == 0) *mla_part_ml(p, s.row + t, head, split) = make_float2(m, l);
        __syncthreads();
    }
}
