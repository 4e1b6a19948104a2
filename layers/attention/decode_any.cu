/* layers/attention/decode_any.cu: attend_any: rope_attend for heads of any shape, by plain loops; with kv_only, only the KV append
   for heads of every shape. Formula and grid: layers/attention/decode.cu. It shares attend_fast's layout of partials and its
   last-block reduction. Before pdl_wait it reads step_parameters and constants only.

   A block processes its query rows one after another, each over all of its chunks, without clusters or tensor cores. q and
   o of one head, and the rotary cos and sin of all token rows, lie in shared memory. */

/* An element of a head, normalised unless the layer has no norms. */
__device__ __forceinline__ float attend_element(const float *x, const float *norm, int i, float factor) {
    return norm ? x[i] * factor * norm[i] : x[i];
}

/* RMSNorm's factor of a head, by one warp. */
__device__ __forceinline__ float attend_head_factor(const attention_gpu *p, const float *x) {
    const int d = p->shape.head_dim;
    float sum = 0;
    for (int i = 2 * (threadIdx.x % 32); i < d; i += 64) {
        sum = fmaf(x[i], x[i], sum);
        if (i + 1 < d) sum = fmaf(x[i + 1], x[i + 1], sum);
    }
    return rms_factor(warp_sum(sum), 1.0f / (float)d, p->shape.eps);
}

/* to[head_dim] = RMSNorm, unless norm is NULL, and rotation of x, by one warp. The same operations as attend_norm_rotate. */
__device__ __forceinline__ void attend_head(const attention_gpu *p, const float *x, const float *norm, const float *cs,
                                            float *to) {
    int d = p->shape.head_dim, half = p->shape.rotary_dim / 2, lane = threadIdx.x % 32;
    const float factor = norm ? attend_head_factor(p, x) : 1;
    for (int i = lane; i < half; i += 32) {
        float a = attend_element(x, norm, i, factor), b = attend_element(x, norm, half + i, factor);
        to[i] = attend_rotate(a, -b, cs[i], cs[half + i]);
        to[half + i] = attend_rotate(b, a, cs[i], cs[half + i]);
    }
    for (int i = 2 * half + lane; i < d; i += 32) to[i] = attend_element(x, norm, i, factor);
    __syncwarp();
}

/* Appends the new KV rows that this block owns: warp 0 the keys, warp 1 the values. q: shared memory for one head. */
template <bool FP8>
__device__ __forceinline__ void attend_append(const attention_gpu *p, const attend_span *s, const float *cs,
                                              float *q) {
    int d = p->shape.head_dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int t = 0; t < p->T; t++) {
        if (!attend_owns(p, s, s->first + t)) continue;
        size_t from = ((size_t)t * p->shape.kv_heads + blockIdx.x) * d;
        size_t to = ((size_t)attend_row(s->first + t, p->ring) * p->shape.kv_heads + blockIdx.x) * d;
        if (warp == 0) {
            attend_head(p, p->k_new + from, p->k_norm, cs + t * p->shape.rotary_dim, q);
            for (int i = lane; i < d; i += 32) attend_store<FP8>(attend_cache(p, false), to + i, q[i], p->k_scale);
            __syncwarp();
        } else if (warp == 1) {
            const float factor = p->shape.v_normed ? attend_head_factor(p, p->v_new + from) : 1;
            for (int i = lane; i < d; i += 32) attend_store<FP8>(attend_cache(p, true), to + i, p->v_new[from + i] * factor, p->v_scale);
        }
    }
    __syncthreads();
}

/* Adds `count` positions to m, l and o of a query row; row(j): where in the cache number j is. A warp computes the score of every eighth
   position, a thread every 256th dimension of o; all threads compute the same m and l. weights: the scores, shared. */
template <bool FP8, class ROW>
__device__ __forceinline__ void attend_positions(const attention_gpu *p, int count, const ROW &row, const float *q, float *weights, float *o, float *m,
                                                 float *l) {
    int d = p->shape.head_dim, lane = threadIdx.x % 32;
    size_t stride = (size_t)p->shape.kv_heads * d, from = (size_t)blockIdx.x * d;
    const char *k = attend_cache(p, false), *v = attend_cache(p, true);
    for (int j = threadIdx.x / 32; j < count; j += GPU_WARPS) {
        float sum = 0;
        for (int i = lane; i < d; i += 32) sum = fmaf(q[i], attend_load<FP8>(k, from + row(j) * stride + i), sum);
        sum = warp_sum(sum);
        if (lane == 0) weights[j] = sum * p->k_scale;
    }
    __syncthreads();
    float top = *m, sum = 0;
    for (int j = 0; j < count; j++) top = fmaxf(top, weights[j]);
    float rescale, base = attend_raise<false>(m, top, &rescale);
    for (int j = 0; j < count; j++) sum += gpu_exp2(weights[j] - base);
    *l = fmaf(*l, rescale, sum);
    for (int i = threadIdx.x; i < d; i += GPU_THREADS) {
        float value = o[i] * rescale;
        for (int j = 0; j < count; j++)
            value = fmaf(gpu_exp2(weights[j] - base), attend_load<FP8>(v, from + row(j) * stride + i), value);
        o[i] = value;
    }
    __syncthreads();
}

/* Adds a chunk, for a query row that sees positions up to `kv_last`. */
template <bool FP8>
__device__ __forceinline__ void attend_chunk(const attention_gpu *p, int chunk, int kv_last, const float *q, float *weights, float *o, float *m,
                                             float *l) {
    const int first = max(chunk * ATTEND_CHUNK, attend_window_first(kv_last, p->window)), at = attend_row(first, p->ring);
    attend_positions<FP8>(p, min(kv_last + 1, (chunk + 1) * ATTEND_CHUNK) - first, [&](int j) { return (size_t)(at + j); }, q, weights, o, m, l);
}

/* o = o / l * v_scale * gate, if there is one. */
__device__ __forceinline__ void attend_finish_any(const attention_gpu *p, int row, int column, float l, float o) {
    int q_per_kv = p->q_per_kv, d = p->shape.head_dim;
    size_t head = (size_t)(row / q_per_kv) * p->shape.heads + blockIdx.x * q_per_kv + row % q_per_kv;
    const int gates = p->shape.gate_size;
    float out = o / (l == 0 ? 1 : l) * p->v_scale;
    if (p->shape.gated) out *= gpu_sigmoid(p->qg[(head * 2 + 1) * d + column]);
    if (gates) out *= gpu_softplus(p->g_new[head * gates + (gates > 1 ? column : 0)]);
    p->o[head * d + column] = out;
}

/* Combines the partials of so many blocks, in the order of the splits. */
__device__ __forceinline__ void attend_combine_any(const attention_gpu *p, int rows, int partials) {
    int d = p->shape.head_dim;
    for (int item = threadIdx.x; item < rows * d; item += GPU_THREADS) {
        int row = item / d, column = item % d;
        float top = -INFINITY, l = 0, o = 0;
        for (int i = 0; i < partials; i++) top = fmaxf(top, __ldcg(attend_part_ml(p, rows, i, row, 0)).x);
        for (int i = 0; i < partials; i++) {
            float2 ml = __ldcg(attend_part_ml(p, rows, i, row, 0));
            float weight = ml.x == -INFINITY ? 0 : gpu_exp2(ml.x - top);
            l = fmaf(weight, ml.y, l);
            o = fmaf(weight, __ldcg(attend_part_o(p, rows, i, row, column)), o);
        }
        attend_finish_any(p, row, column, l, o);
    }
}

/* The kernel. Grid: (kv head, split, sequence), with kv_only one split. */
template <bool FP8> __global__ void __launch_bounds__(GPU_THREADS, 2) attend_any(const __grid_constant__ attention_gpu all) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float weights[ATTEND_CHUNK];
    __shared__ int last;
    const attention_gpu p = all.sequences ? attend_sequence(all, blockIdx.z) : all;
    int d = p.shape.head_dim, q_per_kv = p.q_per_kv, rows = p.T * q_per_kv;
    float *q = (float *)memory, *o = q + d, *cs = o + d;
    if (!p.appends) pdl_launch_dependents();
    attend_span s = attend_span_of(&p);
    int partial = blockIdx.y, partials = max(1, min(s.chunks, p.splits));
    if (partial >= partials) return;
    for (int j = threadIdx.x; j < p.T * (p.shape.rotary_dim / 2); j += GPU_THREADS) {
        int t = j / (p.shape.rotary_dim / 2);
        int i = j % (p.shape.rotary_dim / 2);
        attend_angle(&p.shape, s.first + t - s.lag, i, p.frequencies[i], cs + t * p.shape.rotary_dim);
    }
    __syncthreads();
    pdl_wait();
    attend_append<FP8>(&p, &s, cs, q);
    if (p.kv_only) return;
    for (int row = 0; row < rows; row++) {
        int t = row / q_per_kv, kv_last = attend_last(&p, &s, t);
        const bool sinks = p.sinks && partial == 0;
        float m = attend_first_top(sinks ? p.sinks : NULL, (int)blockIdx.x * q_per_kv + row % q_per_kv), l = sinks;
        size_t head = (size_t)t * p.shape.heads + blockIdx.x * q_per_kv + row % q_per_kv;
        if (threadIdx.x < 32) attend_head(&p, p.qg + head * attention_q_size(&p.shape), p.q_norm, cs + t * p.shape.rotary_dim, q);
        __syncthreads();
        for (int i = threadIdx.x; i < d; i += GPU_THREADS) {
            q[i] *= p.query_scale;
            o[i] = 0;
        }
        __syncthreads();
        const int from = attend_window_first(kv_last, p.window) / ATTEND_CHUNK;
        for (int chunk = attend_own_chunk(from, partial, p.splits); chunk * ATTEND_CHUNK <= kv_last; chunk += p.splits)
            attend_chunk<FP8>(&p, chunk, kv_last, q, weights, o, &m, &l);
        for (int i = threadIdx.x; i < d; i += GPU_THREADS) {
            if (partials == 1) attend_finish_any(&p, row, i, l, o[i]);
            else *attend_part_o(&p, rows, partial, row, i) = o[i];
        }
        if (partials > 1 && threadIdx.x == 0) *attend_part_ml(&p, rows, partial, row, 0) = make_float2(m, l);
        __syncthreads();
    }
    if (partials > 1 && attend_is_last(&p.tickets[blockIdx.x * ATTEND_CLUSTER], partials, &last))
        attend_combine_any(&p, rows, partials);
}
