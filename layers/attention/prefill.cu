/* layers/attention/prefill.cu: rope_attend for the rows of a prompt, up to 8,192 at once, on tensor cores. Its definition
   is layers/attention/cpu.c. Knows one layer's rows and KV cache, no session; plain launches on a stream, no schedule.

   For token row t of index p = index + t and query head h of KV head g:
     attend_prefill_prepare   q = rotate(rms(q) q_norm) log2(e) scale, rounded to BF16 or F16: to scratch. Rotated by the
                              row's position, which the table has; below, positions of rows and keys are their indexes
                              k = rotate(rms(k) k_norm) and v, or rms(v), rounded as decode rounds them: row p of the KV cache
     attend_prefill           s[i] = q . k[i] for i = 0 .. p;  m = max s;  l = sum 2^(s - m)
                              o = sum 2^(s - m) v[i] / l, times its gate if there is one, as F16 with a power of two per 64 columns
   With kv_only there is only the first, for keys and values. Heads have 64, 128, 256 or 512 dimensions. Norms, gates, windows and sinks are
   left out where a layer has none; a branch on a parameter that all threads share costs little.

   Here are the first kernel and what both are given; prefill_tile.cu has what a warp does with a tile of positions, prefill_attend.cu the
   second kernel, which also serves keys and values that are no KV cache, and its launch. */

/* What attend_prefill is given: rows of queries, and keys and values of positions. */
typedef struct prefill_attend {
    int T;                       /* query rows, at least 1 */
    int kv_heads;                /* of k and v; KV head g serves heads first_head + g q_per_kv .. */
    int index;                   /* of row 0, which sees positions up to this one. It and T must not share eight bytes: loaded as a pair,
                                    they cost sm_90a spills */
    int heads;                   /* of q and out */
    int first_head, q_per_kv;
    int key_dim, value_dim;      /* of a head: prefill_attend_fits */
    int first, end;              /* position of row 0 of k and v, a multiple of 64; positions from `end` on are not there. See carry */
    int window;                  /* attend_window */
    int warps;                   /* of a block: attention_prefill_warps */
    dtype kv;                    /* BF16 or FP8 */
    const void *q;               /* [T][heads][key_dim] BF16 or, with FP8, F16: times log2(e) and what scores are scaled with */
    const void *k, *v;           /* [end - first or ring][kv_heads][key_dim], [..][..][value_dim] */
    int ring;                    /* rows, after the last of which comes row 0, whole tiles; INT_MAX: there are as many as positions */
    float k_scale, v_scale;      /* factors of their numbers; 1 but for FP8 */
    const float *sinks;          /* [heads]; NULL: none */
    const float *gates;          /* [T][heads][gate_stride]: of a head one or, with gate_each, value_dim; NULL: none */
    int gate_stride, gate_each, gate_logits;                 /* gate_logits: of each element, whose sigmoid the gate is */
    void *out;                   /* [T][heads][value_dim] F16: o / out_scale */
    float *out_scale;            /* [heads][value_dim / 64][T + other_rows] powers of two: gemm_act_scale */
    int other_rows;              /* those of other calls between them */
    const uint8_t *marks;        /* [T][marks_stride] of rows from index marked_from on one bit a group of 4 positions: 1 where they attend; NULL: no row
                                    leaves positions out. Heads of 256 dimensions alone */
    int marks_stride, marked_from;
    float4 *carry;               /* between calls, prefill_carry_bytes; NULL: this call has all positions that its rows see */
} prefill_attend;
static_assert(offsetof(prefill_attend, T) / 8 != offsetof(prefill_attend, index) / 8, "T and index share eight bytes");

/* What attend_prefill_prepare is given. */
typedef struct attention_prefill {
    attention_shape shape;       /* one that attention_prefill_fits */
    int kv_only;                 /* only append k and v */
    int T, index;                /* token rows, at least 1; index of row 0 */
    const float *qg;             /* [T][heads][attention_q_size] q | gate as projected; unused with kv_only */
    float *g;                    /* [T][heads][gate_size] as g_proj makes them; here they become gates */
    const float *k_new, *v_new;  /* [T][kv_heads][head_dim] as projected; the same if the layer's values are those of k_proj */
    const float *q_norm, *k_norm;                            /* [head_dim]; NULL: none */
    const float *frequencies;    /* [rotary_dim / 2] */
    float query_scale;           /* log2(e) times what scores are scaled with: they are for exp2 */
    dtype kv;                    /* BF16 or FP8 */
    void *k, *v;                 /* KV cache [context or ring][kv_heads][head_dim]; positions before `index` are read */
    int ring;                    /* as attention_gpu's: T is at most attend_piece */
    float k_scale, v_scale;      /* as attention_gpu's */
    void *q;                     /* scratch, attention_prefill_q_bytes bytes: [T][heads][head_dim] BF16 or F16 */
    rope_axes axes;
    const token_row *table;      /* [T] */
} attention_prefill;

/* ---- norms, rotation, KV append ----------------------------------------------------------------------------------- */

/* rms_factor of a head spread over a warp. */
template <int DIM> __device__ __forceinline__ float attend_prefill_factor(const attention_prefill *p, const attend_vector<DIM> *v) {
    return rms_factor(warp_sum(attend_squares(v)), 1.0f / DIM, p->shape.eps);
}

/* The norm of values, which has no weights. */
template <int DIM> __device__ __forceinline__ void attend_prefill_divide(const attention_prefill *p, attend_vector<DIM> *v) {
    const float factor = attend_prefill_factor(p, v);
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) v->x[j] = make_float2(v->x[j].x * factor, v->x[j].y * factor);
}

/* RMSNorm and rotation of a head spread over a warp: the same operations as attend_head and attend_norm_rotate. The other
   element of a rotated pair is on a lane that depends on rotary_dim: it is fetched through `exchange`, [DIM]. */
template <int DIM>
__device__ __forceinline__ void attend_prefill_head(const attention_prefill *p, attend_vector<DIM> *v, const float *norm,
                                                    const float *cs, float *exchange) {
    const int lane = threadIdx.x % 32, half = p->shape.rotary_dim / 2;
    if (norm) {
        const float factor = attend_prefill_factor(p, v);
        attend_vector<DIM> w;
        attend_load_vector(&w, norm);
        attend_norm(v, factor, &w);
    }
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) ((float2 *)exchange)[lane + 32 * j] = v->x[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2 * (DIM / 64); j++) {
        const int i = 2 * lane + 64 * (j / 2) + j % 2;
        float *x = j % 2 ? &v->x[j / 2].y : &v->x[j / 2].x;
        if (i < half) *x = attend_rotate(*x, -exchange[i + half], cs[i], cs[half + i]);
        else if (i < 2 * half) *x = attend_rotate(*x, exchange[i - half], cs[i - half], cs[i]);
    }
    __syncwarp();
}

/* Grid: token rows. Warp w has vectors w, w + 8, ... of the row: its keys, values and queries, in this order. */
template <int DIM> __global__ void __launch_bounds__(GPU_THREADS)
attend_prefill_prepare(const __grid_constant__ attention_prefill p) {
    __shared__ float cs[DIM];
    __shared__ float2 exchange[GPU_WARPS][DIM / 2];
    const int t = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = attend_row(p.index + t, p.ring);
    const int heads = p.shape.heads, kv_heads = p.shape.kv_heads, count = 2 * kv_heads + (p.kv_only ? 0 : heads);
    const int gates = p.kv_only ? 0 : heads * p.shape.gate_size;
    const float scale = p.query_scale;
    const bool fp8 = p.kv == DTYPE_FP8;
    if (threadIdx.x < p.shape.rotary_dim / 2)
        attend_angle(&p.shape, p.table[t].position[rope_axis(p.axes, (int)threadIdx.x)], (int)threadIdx.x, p.frequencies[threadIdx.x], cs);
    __syncthreads();
    for (int i = threadIdx.x; i < gates; i += GPU_THREADS) p.g[(size_t)t * gates + i] = gpu_softplus(p.g[(size_t)t * gates + i]);
#pragma unroll 1
    for (int i = warp; i < count; i += GPU_WARPS) {
        const bool is_k = i < kv_heads, is_q = i >= 2 * kv_heads;
        const size_t row = is_q ? (size_t)t * heads + i - 2 * kv_heads : (size_t)t * kv_heads + (is_k ? i : i - kv_heads);
        const size_t to = ((size_t)at * kv_heads + i % kv_heads) * (DIM / 2) + lane;
        attend_vector<DIM> v;
        attend_load_vector(&v, is_q ? p.qg + row * attention_q_size(&p.shape) : (is_k ? p.k_new : p.v_new) + row * DIM);
        if (is_k || is_q) attend_prefill_head(&p, &v, is_q ? p.q_norm : p.k_norm, cs, (float *)exchange[warp]);
        else if (p.shape.v_normed) attend_prefill_divide(&p, &v);
#pragma unroll
        for (int j = 0; j < DIM / 64; j++) {
            float x = v.x[j].x * scale, y = v.x[j].y * scale;
            if (is_q) ((uint32_t *)p.q)[row * (DIM / 2) + lane + 32 * j] = fp8 ? f16_pair(x, y) : bf16_pair(x, y);
            else if (fp8) attend_store_pair<true>(is_k ? p.k : p.v, to + 32 * j, v.x[j], is_k ? p.k_scale : p.v_scale);
            else attend_store_pair<false>(is_k ? p.k : p.v, to + 32 * j, v.x[j], is_k ? p.k_scale : p.v_scale);
        }
    }
}
