/* layers/mamba/prefill_launch.cu: a Mamba-2 layer for the many token rows of a prompt: projections by GEMM, the rule in chunks (prefill.cu), the
   window, the gated norm. Knows no session and no other kind of layer. The formula is in definition.c. */

/* The window moves on to the end of the prompt, a thread for a channel, which has read before it writes. After the last mamba_prep. */
static __global__ void __launch_bounds__(GPU_THREADS) mamba_move_window(const __grid_constant__ mamba_prefill p) {
    const int channels = mamba_prefill_channels(p.shape), channel = blockIdx.x * GPU_THREADS + threadIdx.x, keep = DELTA_TAPS - 1;
    float x[keep];
    if (channel >= channels) return;
#pragma unroll
    for (int i = 0; i < keep; i++) {
        const int row = p.T - keep + i;
        x[i] = row < 0 ? p.window[(size_t)(row + keep) * channels + channel] : p.raw[(size_t)row * channels + channel];
    }
#pragma unroll
    for (int i = 0; i < keep; i++) p.window[(size_t)i * channels + channel] = x[i];
}

/* y SiLU(z), divided by the root mean square of its group, times norm, as F16 with an activation scale a row. Block t has row t, a warp a group at a
   time. Shared memory: [heads head_dim] floats. */
static __global__ void __launch_bounds__(GPU_THREADS) mamba_gate_rows(const __grid_constant__ mamba_prefill p) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[GPU_WARPS];
    const int lane = threadIdx.x % 32, n = p.shape.heads * p.shape.head_dim, size = n / p.shape.groups;
    const float *y = p.y + (size_t)blockIdx.x * n, *z = p.z + (size_t)blockIdx.x * n;
    float top = 0;
    for (int g = threadIdx.x / 32; g < p.shape.groups; g += GPU_WARPS) {
        float sum = 0;
        for (int i = g * size + lane; i < (g + 1) * size; i += 32) {
            const float v = y[i] * gpu_silu(z[i]);
            row[i] = v;
            sum = fmaf(v, v, sum);
        }
        const float factor = rms_factor_divided(warp_sum(sum), size, p.shape.eps);
        for (int i = g * size + lane; i < (g + 1) * size; i += 32) {
            const float normed = row[i] * factor * __ldg(p.norm + i);
            row[i] = normed;
            top = fmaxf(top, fabsf(normed));
        }
    }
    top = block_max(top, shared);
    prefill_put_row(row, n, top, p.gated + (size_t)blockIdx.x * n, p.act_scale + blockIdx.x);
}

/* Lays the scratch for T rows out; returns its bytes. */
static size_t mamba_prefill_layout(const mamba_shape *s, int T, char *scratch, mamba_prefill *p) {
    const size_t rows = (size_t)T, channels = rows * (size_t)mamba_channels(s) * sizeof(float), inner = rows * (size_t)mamba_inner(s) * sizeof(float);
    const size_t chunks = delta_slice_chunks(T);
    size_t used = 0;
    p->raw = (float *)prefill_take(scratch, &used, channels);
    p->gated = (uint16_t *)(void *)p->raw;
    p->y = (float *)prefill_take(scratch, &used, inner);
    p->z = (float *)prefill_take(scratch, &used, inner);
    p->dt = (float *)prefill_take(scratch, &used, rows * (size_t)s->heads * sizeof(float));
    p->keys = (delta_keys *)prefill_take(scratch, &used, chunks * (size_t)s->groups * sizeof(delta_keys));
    p->heads = (mamba_head *)prefill_take(scratch, &used, chunks * (size_t)s->heads * sizeof(mamba_head));
    p->act_scale = (float *)prefill_take(scratch, &used, rows * sizeof(float));
    return prefill_take_rest(used, 0, T, s->hidden);
}

/* The implementation of layers/kinds.cu for prefill. */

static int mamba_can_prefill(const mamba_weights *w, dtype) {
    const mamba_shape *s = &w->shape;
    return mamba_prefill_fits(s) && s->hidden % GEMM_COLS == 0 && (size_t)(mamba_inner(s) + GPU_WARPS) * sizeof(float) <= GPU_SHARED_FREE &&
           prefill_takes(&w->in_proj_cbx) && prefill_takes(&w->in_proj_z) && prefill_stores(&w->in_proj_dt) && prefill_takes(&w->out_proj);
}

static size_t mamba_prefill_bytes(const mamba_shape *s, int T, dtype) {
    mamba_prefill p;
    return mamba_prefill_layout(s, T, NULL, &p);
}

static void mamba_prefill_in(const prefill_rows *r, const mamba_weights *w, const mamba_prefill *job) {
    gpu_gemm p = prefill_gemm(r, prefill_normed(r), r->T);
    prefill_product(&p, &w->in_proj_dt, GEMM_STORE, (float *)job->dt);
    prefill_product(&p, &w->in_proj_z, GEMM_STORE, (float *)job->z);
    prefill_product(&p, &w->in_proj_cbx, GEMM_STORE, (float *)job->raw);
    prefill_launch(r, &p);
}

static cudaError_t mamba_prefill_scan(const prefill_rows *r, const mamba_prefill *p) {
    const cudaError_t e = mamba_prefill_rule(p, r->stream);
    if (e == cudaSuccess) mamba_move_window<<<(unsigned)(mamba_channels(&p->shape) - 1) / GPU_THREADS + 1, GPU_THREADS, 0, r->stream>>>(*p);
    return e;
}

static void mamba_prefill_out(const prefill_rows *r, const mamba_weights *w, const mamba_prefill *p) {
    const gemm_rows gated = {p->gated, p->act_scale, 1};
    mamba_gate_rows<<<r->T, GPU_THREADS, (size_t)mamba_inner(&p->shape) * sizeof(float), r->stream>>>(*p);
    prefill_output(r, &w->out_proj, gated, NULL);
}

static cudaError_t mamba_run_prefill(const prefill_rows *r, const mamba_weights *w, const mamba_gpu *, const mamba_state *state) {
    mamba_prefill p;
    cudaError_t e = cudaSuccess;
    memset(&p, 0, sizeof p);
    p.shape = w->shape;
    p.T = r->T;
    p.position = r->index;
    p.conv1d = w->conv1d;
    p.conv_bias = w->conv_bias;
    p.A_log = w->A_log;
    p.D = w->D;
    p.dt_bias = w->dt_bias;
    p.norm = w->norm;
    p.S = state->S;
    p.window = state->window;
    mamba_prefill_layout(&p.shape, r->T, r->scratch, &p);
    if (stage_in(r->stages, STAGE_MAMBA_IN)) mamba_prefill_in(r, w, &p);
    if (stage_in(r->stages, STAGE_SCAN)) e = mamba_prefill_scan(r, &p);
    if (e == cudaSuccess && stage_in(r->stages, STAGE_MAMBA_OUT)) mamba_prefill_out(r, w, &p);
    return e == cudaSuccess ? cudaGetLastError() : e;
}
