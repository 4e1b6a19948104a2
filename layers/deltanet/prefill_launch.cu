/* layers/deltanet/prefill_launch.cu: a Gated DeltaNet layer for the many token rows of a prompt: projections, the delta rule in
   chunks (prefill.cu), the gated norm. Knows no session and no other kind of layer. The definition is definition.c. */

typedef struct delta_gate {
    const float *o, *z, *norm;   /* [T][heads][dim], the same, [dim] */
    uint16_t *to;                /* F16 [T][heads dim] */
    float *act_scale;            /* [T] */
    int heads, dim, sigmoid;
    float eps;
} delta_gate;

/* rms(o) * norm * SiLU(z), or sigmoid(z), of each head, as F16 with an activation scale a row. Block t has row t, a warp a head at a time.
   Shared memory: [heads * dim] floats. */
static __global__ void __launch_bounds__(GPU_THREADS) delta_gate_rows(const __grid_constant__ delta_gate p) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[GPU_WARPS];
    const int lane = threadIdx.x % 32, n = p.heads * p.dim;
    const float *o = p.o + (size_t)blockIdx.x * n, *z = p.z + (size_t)blockIdx.x * n;
    float top = 0;
    for (int h = threadIdx.x / 32; h < p.heads; h += GPU_WARPS) {
        float sum = 0;
        for (int i = lane; i < p.dim; i += 32) {
            const float v = o[h * p.dim + i];
            row[h * p.dim + i] = v;
            sum = fmaf(v, v, sum);
        }
        const float factor = rms_factor_divided(warp_sum(sum), p.dim, p.eps);
        for (int i = lane; i < p.dim; i += 32) {
            const float gated = row[h * p.dim + i] * factor * __ldg(p.norm + i) * gpu_gate(z[h * p.dim + i], p.sigmoid);
            row[h * p.dim + i] = gated;
            top = fmaxf(top, fabsf(gated));
        }
    }
    top = block_max(top, shared);
    prefill_put_row(row, n, top, p.to + (size_t)blockIdx.x * n, p.act_scale + blockIdx.x);
}

/* Scratch of a call of T rows. */
typedef struct deltanet_prefill_job {
    float *raw, *a, *b, *o;      /* as deltanet_job's */
    void *scratch;               /* of delta_prefill */
    float *z;                    /* after the delta rule, in raw's place: as deltanet_job's, */
    uint16_t *gated;             /* F16 [T][value_heads value_dim] the gated rows */
    float *act_scale;            /* [T] of these */
} deltanet_prefill_job;

static size_t deltanet_prefill_layout(const deltanet_shape *s, int T, char *scratch, deltanet_prefill_job *p) {
    const size_t heads = (size_t)T * (size_t)s->value_heads * sizeof(float), values = heads * (size_t)s->value_dim;
    size_t used = 0;
    p->raw = (float *)prefill_take(scratch, &used, max_size((size_t)T * (size_t)deltanet_channels(s) * sizeof(float), 2 * values));
    p->z = p->raw;
    p->gated = (uint16_t *)(void *)((char *)p->raw + values);
    p->a = (float *)prefill_take(scratch, &used, heads);
    p->b = (float *)prefill_take(scratch, &used, heads);
    p->act_scale = (float *)prefill_take(scratch, &used, (size_t)T * sizeof(float));
    p->scratch = prefill_take(scratch, &used, delta_prefill_scratch(s, T));
    p->o = (float *)prefill_take(scratch, &used, values);
    return prefill_take_rest(used, 0, T, s->hidden);
}

/* The implementation of layers/kinds.cu for prefill. */

static int deltanet_can_prefill(const deltanet_weights *w, dtype) {
    const deltanet_shape *s = &w->shape;
    return delta_prefill_fits(s) && s->hidden % GEMM_COLS == 0 &&
           (size_t)(s->value_heads * s->value_dim + GPU_WARPS) * sizeof(float) <= GPU_SHARED_FREE &&
           prefill_takes(&w->in_proj_qkv) && prefill_takes(&w->in_proj_z) && prefill_stores(&w->in_proj_a) &&
           prefill_stores(&w->in_proj_b) && prefill_takes(&w->out_proj);
}

static size_t deltanet_prefill_bytes(const deltanet_shape *s, int T, dtype) {
    deltanet_prefill_job p;
    return deltanet_prefill_layout(s, T, NULL, &p);
}

static cudaError_t deltanet_prefill_delta(const prefill_rows *r, const deltanet_shape *s, const deltanet_weights *w,
                                          const deltanet_state *state, const deltanet_prefill_job *job) {
    delta_prefill p;
    memset(&p, 0, sizeof p);
    p.shape = *s;
    p.T = r->T;
    p.position = r->index;
    p.raw = job->raw;
    p.a = job->a;
    p.b = job->b;
    p.conv1d = w->conv1d;
    p.A_log = w->A_log;
    p.dt_bias = w->dt_bias;
    p.S = state->S;
    p.window = state->window;
    p.o = job->o;
    delta_prefill_place(&p, job->scratch);
    return delta_prefill_run(&p, r->stream);
}

static void deltanet_prefill_in(const prefill_rows *r, const deltanet_weights *w, const deltanet_prefill_job *job) {
    gpu_gemm p = prefill_gemm(r, prefill_normed(r), r->T);
    prefill_product(&p, &w->in_proj_a, GEMM_STORE, job->a);
    prefill_product(&p, &w->in_proj_b, GEMM_STORE, job->b);
    prefill_product(&p, &w->in_proj_qkv, GEMM_STORE, job->raw);
    prefill_launch(r, &p);
}

static void deltanet_prefill_out(const prefill_rows *r, const deltanet_shape *s, const deltanet_weights *w,
                                 const deltanet_prefill_job *job) {
    const size_t row = (size_t)(s->value_heads * s->value_dim) * sizeof(float);
    const delta_gate gate = {.o = job->o, .z = job->z, .norm = w->norm, .to = job->gated, .act_scale = job->act_scale,
                             .heads = s->value_heads, .dim = s->value_dim, .sigmoid = s->sigmoid_gate, .eps = s->eps};
    const gemm_rows gated = {job->gated, job->act_scale, 1};
    prefill_linear(r, &w->in_proj_z, prefill_normed(r), r->T, job->z);
    delta_gate_rows<<<r->T, GPU_THREADS, row, r->stream>>>(gate);
    prefill_output(r, &w->out_proj, gated, NULL);
}

static cudaError_t deltanet_run_prefill(const prefill_rows *r, const deltanet_weights *w, const deltanet_gpu *,
                                        const deltanet_state *state) {
    const deltanet_shape *s = &w->shape;
    deltanet_prefill_job job;
    cudaError_t status = cudaSuccess;
    deltanet_prefill_layout(s, r->T, r->scratch, &job);
    if (stage_in(r->stages, STAGE_IN_PROJ)) deltanet_prefill_in(r, w, &job);
    if (stage_in(r->stages, STAGE_DELTA)) status = deltanet_prefill_delta(r, s, w, state, &job);
    if (stage_in(r->stages, STAGE_OUT_PROJ)) deltanet_prefill_out(r, s, w, &job);
    return status;
}
