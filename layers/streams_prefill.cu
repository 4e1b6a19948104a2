/* layers/streams_prefill.cu: residual streams in a prompt: streams.cu's formulas for thousands of rows. Products are cuda/gemm.cu's; between
   them a block has a token row. Knows matrices, no kind of layer.

     prefill_streams_norm   n = R / RMS(R) norm, by streams, as F16 with one activation scale a row; the RMS
     GEMM                   down n, inject n
     prefill_streams_low    low = SiLU of the sums, as F16; the shares
     GEMM                   mix = up low, STREAM_ROWS rows at a time: their 42 MB (Qwen3.8-Flash-Next) are still in the L2 when they are read
     prefill_streams_mix    u, as F16: the rows of the sublayer's products */

enum { STREAM_ROWS = 1024 };

/* The arguments of the kernels between the products. Rows are the first ones of all, but of prefill_streams_mix. */
typedef struct prefill_streams {
    const float *x, *norm;       /* [T][streams][hidden], [streams][hidden] */
    float *factor, *share;       /* [T][streams] 1 / RMS; shares of what is given: NULL: the model's end gives nothing */
    uint16_t *n, *low, *u;       /* F16 [T][streams][hidden], [T][rank], [T][hidden] */
    float *n_scale, *low_scale, *u_scale;                   /* [T] activation scales */
    float *sums, *injected;      /* [T][rank], [T][streams] */
    float *mix;                  /* [STREAM_ROWS][streams][hidden] of the rows from t on */
    int hidden, rank, t;
    float eps;
} prefill_streams;

/* Lays the scratch for T rows out; returns its bytes. */
static size_t prefill_streams_layout(int T, int hidden, int rank, char *scratch, prefill_streams *p) {
    const size_t rows = (size_t)T, width = GPU_STREAMS * (size_t)hidden;
    size_t used = 0;
    p->factor = (float *)prefill_take(scratch, &used, rows * GPU_STREAMS * sizeof(float));
    p->n = (uint16_t *)prefill_take(scratch, &used, rows * width * sizeof(uint16_t));
    p->n_scale = (float *)prefill_take(scratch, &used, rows * sizeof(float));
    p->sums = (float *)prefill_take(scratch, &used, rows * (size_t)rank * sizeof(float));
    p->injected = (float *)prefill_take(scratch, &used, rows * GPU_STREAMS * sizeof(float));
    p->low = (uint16_t *)prefill_take(scratch, &used, rows * (size_t)rank * sizeof(uint16_t));
    p->low_scale = (float *)prefill_take(scratch, &used, rows * sizeof(float));
    p->mix = (float *)prefill_take(scratch, &used, (size_t)min_int(T, STREAM_ROWS) * width * sizeof(float));
    return used;
}

/* With the rows of u after it. */
static size_t streams_prefill_bytes(const residual_shape *s, int T, int hidden) {
    prefill_streams p;
    return prefill_take_rest(prefill_streams_layout(T, hidden, s->mix_rank, NULL, &p), 0, T, hidden);
}

/* A block has a row of all streams in shared memory, and, for the MTP layer, an embedding beside it. */
static int streams_can_prefill(const stream_mixer *w, int streams) {
    return !streams || (prefill_takes(&w->down) && prefill_takes(&w->up) && (!w->inject.rows || prefill_takes(&w->inject)) &&
                        (size_t)(w->up.rows / GPU_STREAMS) * (GPU_STREAMS + 1) * sizeof(float) <= GPU_SHARED - 1024);
}

/* Shared memory: [streams][hidden] floats. */
static __global__ void __launch_bounds__(GPU_THREADS) prefill_streams_norm(const __grid_constant__ prefill_streams p) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[GPU_WARPS];
    const int width = GPU_STREAMS * p.hidden;
    const float *x = p.x + (size_t)blockIdx.x * width;
    float top = 0;
    for (int c = 0; c < GPU_STREAMS; c++) {
        float squares = 0;
        for (int i = c * p.hidden + 4 * threadIdx.x; i < (c + 1) * p.hidden; i += 4 * GPU_THREADS) {
            const float4 v = *(const float4 *)(x + i);
            *(float4 *)(row + i) = v;
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
        const float factor = rms_factor_divided(block_sum(squares, shared), p.hidden, p.eps);
        if (threadIdx.x == 0) p.factor[(size_t)blockIdx.x * GPU_STREAMS + c] = factor;
        for (int i = c * p.hidden + 4 * threadIdx.x; i < (c + 1) * p.hidden; i += 4 * GPU_THREADS)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                row[i + k] *= factor * __ldg(p.norm + i + k);
                top = fmaxf(top, fabsf(row[i + k]));
            }
    }
    top = block_max(top, shared);
    prefill_put_row(row, width, top, p.n + (size_t)blockIdx.x * width, p.n_scale + blockIdx.x);
}

/* Shared memory: [rank] floats. */
static __global__ void __launch_bounds__(GPU_THREADS) prefill_streams_low(const __grid_constant__ prefill_streams p) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[GPU_WARPS];
    const size_t t = blockIdx.x;
    float top = 0;
    for (int i = threadIdx.x; i < p.rank; i += GPU_THREADS) {
        row[i] = gpu_silu(p.sums[t * p.rank + i] / GPU_STREAMS);
        top = fmaxf(top, fabsf(row[i]));
    }
    if (p.share && threadIdx.x < GPU_STREAMS)
        p.share[t * GPU_STREAMS + threadIdx.x] = 2 * gpu_sigmoid(p.injected[t * GPU_STREAMS + threadIdx.x] / GPU_STREAMS);
    top = block_max(top, shared);
    prefill_put_row(row, p.rank, top, p.low + t * p.rank, p.low_scale + t);
}

/* Four columns of a stream of a row: those of x, normed, times sigmoids of mix. */
__device__ __forceinline__ float4 prefill_mixed4(const float *x, const float *norm, const float *mix, float factor) {
    const float4 v = *(const float4 *)x, g = __ldg((const float4 *)norm), m = *(const float4 *)mix;
    return make_float4(gpu_sigmoid(m.x) * (v.x * factor * g.x), gpu_sigmoid(m.y) * (v.y * factor * g.y), gpu_sigmoid(m.z) * (v.z * factor * g.z),
                       gpu_sigmoid(m.w) * (v.w * factor * g.w));
}

/* Block b has row t + b. Shared memory: [hidden] floats. */
static __global__ void __launch_bounds__(GPU_THREADS) prefill_streams_mix(const __grid_constant__ prefill_streams p) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[GPU_WARPS];
    const size_t t = p.t + blockIdx.x, width = (size_t)GPU_STREAMS * p.hidden;
    float top = 0;
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < p.hidden; i += 4 * GPU_THREADS) {
        float4 u = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int c = 0; c < GPU_STREAMS; c++) {
            const size_t at = (size_t)c * p.hidden + i;
            const float4 v = prefill_mixed4(p.x + t * width + at, p.norm + at, p.mix + blockIdx.x * width + at, __ldg(p.factor + t * GPU_STREAMS + c));
            u = make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w);
        }
        *(float4 *)(row + i) = make_float4(u.x / GPU_STREAMS, u.y / GPU_STREAMS, u.z / GPU_STREAMS, u.w / GPU_STREAMS);
#pragma unroll
        for (int k = 0; k < 4; k++) top = fmaxf(top, fabsf(row[i + k]));
    }
    top = block_max(top, shared);
    prefill_put_row(row, p.hidden, top, p.u + t * p.hidden, p.u_scale + t);
}

template <class KERNEL> static void prefill_streams_launch(const prefill_rows *r, KERNEL kernel, int rows, size_t floats, const prefill_streams *p) {
    (void)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(floats * sizeof(float)));
    kernel<<<rows, GPU_THREADS, floats * sizeof(float), r->stream>>>(*p);
}

/* r->u of T rows of x, and, where the mixer has them, the rows' shares. */
static void prefill_streams_read(const prefill_rows *r, const stream_mixer *w, const float *x, int T, float eps) {
    prefill_streams p;
    memset(&p, 0, sizeof p);
    p.x = x;
    p.norm = w->norm;
    p.share = w->inject.rows ? r->share : NULL;
    p.u = r->u;
    p.u_scale = r->u_scale;
    p.hidden = r->hidden;
    p.rank = w->down.rows;
    p.eps = eps;
    prefill_streams_layout(T, p.hidden, p.rank, r->scratch, &p);
    prefill_streams_launch(r, prefill_streams_norm, T, GPU_STREAMS * (size_t)p.hidden, &p);
    const gemm_rows normed = {p.n, p.n_scale, 1};
    gpu_gemm sums = prefill_gemm(r, normed, T);
    prefill_product(&sums, &w->down, GEMM_STORE, p.sums);
    if (p.share) prefill_product(&sums, &w->inject, GEMM_STORE, p.injected);
    prefill_launch(r, &sums);
    prefill_streams_launch(r, prefill_streams_low, T, (size_t)p.rank, &p);
    for (p.t = 0; p.t < T; p.t += STREAM_ROWS) {
        const int rows = min_int(T - p.t, STREAM_ROWS);
        const gemm_rows low = {p.low + (size_t)p.t * (size_t)p.rank, p.low_scale + p.t, 1};
        prefill_linear(r, &w->up, low, rows, p.mix);
        prefill_streams_launch(r, prefill_streams_mix, rows, (size_t)p.hidden, &p);
    }
}

/* x += share y; share NULL: 1. */
static void prefill_streams_write(const prefill_rows *r, float *x, const float *y, const float *share) {
    gpu_streams p;
    memset(&p, 0, sizeof p);
    p.T = r->T;
    p.hidden = r->hidden;
    p.x = x;
    p.y = y;
    p.before = share;
    const dim3 grid((unsigned)((r->hidden / 4 - 1) / GPU_THREADS + 1), (unsigned)r->T);
    gpu_streams_write<<<grid, GPU_THREADS, 0, r->stream>>>(p);
}
