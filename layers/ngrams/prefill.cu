/* layers/ngrams/prefill.cu: a layer of n-gram embeddings for the many token rows of a prompt, a part of NGRAM_ROWS rows after the other, as a row of keys
   has as many numbers as all streams: products, gates, what is added, and then the window. Uses the parts of decode.cu. */

enum { NGRAM_ROWS = 1024 };

/* F16 rows of what was looked up, with an activation scale each. Block t has row t. Shared memory: [cols] floats. */
static __global__ void __launch_bounds__(GPU_THREADS) ngrams_prefill_rows(const float *looked_up, int cols, uint16_t *to, float *act_scale) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[GPU_WARPS];
    float top = 0;
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) {
        row[i] = __ldcg(looked_up + (size_t)blockIdx.x * cols + i);
        top = fmaxf(top, fabsf(row[i]));
    }
    top = block_max(top, shared);
    prefill_put_row(row, cols, top, to + (size_t)blockIdx.x * cols, act_scale + blockIdx.x);
}

/* Grid: (streams, T). */
static __global__ void __launch_bounds__(GPU_THREADS) ngrams_prefill_gate(const __grid_constant__ ngrams_gpu p) {
    gpu_ngrams_gate_row(p, blockIdx.y, blockIdx.x);
}

/* Grid: (ceil(columns / 256), T). Nothing is logged before a prompt. */
static __global__ void __launch_bounds__(GPU_THREADS) ngrams_prefill_add(const __grid_constant__ ngrams_gpu p) {
    const int at = blockIdx.x * GPU_THREADS + threadIdx.x;
    if (at < gpu_ngrams_columns(&p.shape)) gpu_ngrams_add_row(p, gpu_ngrams_column(p, at), p.window + at, 0, blockIdx.y);
}

/* Grid: ceil(columns / 256). */
static __global__ void __launch_bounds__(GPU_THREADS) ngrams_prefill_keep(const __grid_constant__ ngrams_gpu p) {
    const int at = blockIdx.x * GPU_THREADS + threadIdx.x;
    if (at < gpu_ngrams_columns(&p.shape)) gpu_ngrams_advance(p, gpu_ngrams_column(p, at), p.window + at, 0, p.T);
}

/* Scratch for a part of T rows. */
typedef struct ngrams_prefill_job {
    uint16_t *in;                /* F16 [T][ngrams_width] */
    float *act_scale;            /* [T] of these */
    float *key, *value;
    float2 *gate;
} ngrams_prefill_job;

static size_t ngrams_prefill_layout(const ngrams_shape *s, int T, char *scratch, ngrams_prefill_job *p) {
    const size_t rows = (size_t)min_int(T, NGRAM_ROWS);
    size_t used = 0;
    p->in = (uint16_t *)prefill_take(scratch, &used, rows * (size_t)ngrams_width(s) * sizeof *p->in);
    p->act_scale = (float *)prefill_take(scratch, &used, rows * sizeof(float));
    p->key = (float *)prefill_take(scratch, &used, rows * ngrams_row(s) * sizeof(float));
    p->value = (float *)prefill_take(scratch, &used, rows * (size_t)s->hidden * sizeof(float));
    p->gate = (float2 *)prefill_take(scratch, &used, rows * (size_t)s->streams * sizeof *p->gate);
    return used;
}

/* Both products of a part's rows. */
static void ngrams_prefill_products(const prefill_rows *r, const ngrams_weights *w, const ngrams_gpu *p, const ngrams_prefill_job *job) {
    const int cols = ngrams_width(&w->shape);
    const gemm_rows in = {job->in, job->act_scale, 1};
    gpu_gemm products = prefill_gemm(r, in, p->T);
    ngrams_prefill_rows<<<p->T, GPU_THREADS, (size_t)cols * sizeof(float), r->stream>>>(p->looked_up, cols, job->in, job->act_scale);
    prefill_product(&products, &w->key_proj, GEMM_STORE, p->key);
    prefill_product(&products, &w->value_proj, GEMM_STORE, p->value);
    prefill_launch(r, &products);
}

/* The implementation of layers/kinds.cu for prefill. */

static int ngrams_can_prefill(const ngrams_weights *w, dtype) {
    return (size_t)ngrams_width(&w->shape) * sizeof(float) <= GPU_SHARED_FREE - 1024 && prefill_stores(&w->key_proj) && prefill_stores(&w->value_proj);
}

static size_t ngrams_prefill_bytes(const ngrams_shape *s, int T, dtype) {
    ngrams_prefill_job p;
    return ngrams_prefill_layout(s, T, NULL, &p);
}

static cudaError_t ngrams_run_prefill(const prefill_rows *r, const ngrams_weights *w, const ngrams_gpu *scratch, const ngrams_state *state) {
    const ngrams_shape *s = &w->shape;
    const unsigned blocks = (unsigned)((gpu_ngrams_columns(s) - 1) / GPU_THREADS + 1);
    ngrams_gpu p = gpu_ngrams_of(w, scratch, state);
    ngrams_prefill_job job;
    ngrams_prefill_layout(s, r->T, r->scratch, &job);
    p.key = job.key;
    p.value = job.value;
    p.gate = job.gate;
    for (int first = 0; first < r->T; first += NGRAM_ROWS) {
        p.T = min_int(r->T - first, NGRAM_ROWS);
        p.looked_up = (float *)(uintptr_t)r->looked_up + (size_t)first * (size_t)ngrams_width(s);
        p.x = r->x + (size_t)first * ngrams_row(s);
        if (stage_in(r->stages, STAGE_NGRAM_PROJ)) ngrams_prefill_products(r, w, &p, &job);
        if (!stage_in(r->stages, STAGE_NGRAM_MIX)) continue;
        ngrams_prefill_gate<<<dim3((unsigned)s->streams, (unsigned)p.T), GPU_THREADS, 0, r->stream>>>(p);
        ngrams_prefill_add<<<dim3(blocks, (unsigned)p.T), GPU_THREADS, 0, r->stream>>>(p);
        ngrams_prefill_keep<<<blocks, GPU_THREADS, 0, r->stream>>>(p);
    }
    return cudaGetLastError();
}
