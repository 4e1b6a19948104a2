/* layers/mamba/prefill.cu: a Mamba-2 layer for the many token rows of a prompt: projections by GEMM, the convolution of all rows at once, then the
   rule row after row with S in registers, and the gated norm. Knows no session and no other kind of layer. The formula is in definition.c.

   The rule is that of a step (decode.cu), with the same operations in the same order, so a row's bits do not depend on how a prompt is cut. It takes
   some 0.1 us a row, with an SM for each half of a head of 64: a tenth of the time that the layers' GEMMs take. */

enum { MAMBA_TAPS = 4, MAMBA_CONV_ROWS = 16, MAMBA_BATCH = STEP_ROWS };     /* of conv1d, at most; rows of a thread; rows that are loaded together */

typedef struct mamba_prefill {
    mamba_shape shape;
    int T;
    const float *raw, *dt;       /* [T][channels], [T][heads] of in_proj */
    const float *conv1d, *conv_bias, *A_log, *D, *dt_bias, *norm;
    float *S, *window;           /* of the layer's state: read, and updated */
    float *conv;                 /* [T][channels] C, B, x after the convolution */
    float2 *step;                /* [T][heads] dt after softplus, decay */
    float *y;                    /* [T][heads][head_dim], in raw's place */
    const float *z;              /* the same shape */
    uint16_t *gated;             /* F16 [T][heads head_dim] the gated rows, in conv's place */
    float *act_scale;            /* [T] of these */
} mamba_prefill;

__device__ __forceinline__ int gpu_mamba_channels(const mamba_shape &s) {
    return 2 * s.groups * s.state_dim + s.heads * s.head_dim;
}

/* The raw input of a channel in row t, which may be before the prompt; 0 before the window. */
__device__ __forceinline__ float mamba_raw_at(const mamba_prefill &p, int t, int channel) {
    const int channels = gpu_mamba_channels(p.shape), kept = t + p.shape.taps - 1;
    if (t >= 0) return p.raw[(size_t)t * channels + channel];
    return kept >= 0 ? p.window[kept * channels + channel] : 0;
}

/* conv = SiLU(conv1d(raw) + bias), a thread for MAMBA_CONV_ROWS rows of a channel. Grid: (ceil(channels / 256), ceil(T / MAMBA_CONV_ROWS)). */
static __global__ void __launch_bounds__(GPU_THREADS) mamba_conv_rows(const __grid_constant__ mamba_prefill p) {
    const int channels = gpu_mamba_channels(p.shape), channel = blockIdx.x * GPU_THREADS + threadIdx.x, taps = p.shape.taps;
    const int first = blockIdx.y * MAMBA_CONV_ROWS, end = min(first + MAMBA_CONV_ROWS, p.T);
    float w[MAMBA_TAPS], x[MAMBA_TAPS];
    if (channel >= channels) return;
    const float bias = __ldg(p.conv_bias + channel);
#pragma unroll
    for (int i = 0; i < MAMBA_TAPS; i++) {
        const int tap = taps - MAMBA_TAPS + i;
        w[i] = tap >= 0 ? __ldg(p.conv1d + channel * taps + tap) : 0;
        x[i] = i ? mamba_raw_at(p, first - MAMBA_TAPS + i, channel) : 0;
    }
    for (int t = first; t < end; t++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i + 1 < MAMBA_TAPS; i++) x[i] = x[i + 1];
        x[MAMBA_TAPS - 1] = p.raw[(size_t)t * channels + channel];
#pragma unroll
        for (int i = 0; i < MAMBA_TAPS; i++) sum = fmaf(w[i], x[i], sum);
        p.conv[(size_t)t * channels + channel] = gpu_silu(sum + bias);
    }
}

/* The window moves on to the end of the prompt, a thread for a channel, which has read before it writes. After mamba_conv_rows. */
static __global__ void __launch_bounds__(GPU_THREADS) mamba_move_window(const __grid_constant__ mamba_prefill p) {
    const int channels = gpu_mamba_channels(p.shape), channel = blockIdx.x * GPU_THREADS + threadIdx.x, keep = p.shape.taps - 1;
    float x[MAMBA_TAPS];
    if (channel >= channels) return;
#pragma unroll
    for (int i = 0; i < MAMBA_TAPS; i++) x[i] = i < keep ? mamba_raw_at(p, p.T - keep + i, channel) : 0;
#pragma unroll
    for (int i = 0; i < MAMBA_TAPS; i++)
        if (i < keep) p.window[i * channels + channel] = x[i];
}

static __global__ void __launch_bounds__(GPU_THREADS) mamba_find_steps(const __grid_constant__ mamba_prefill p) {
    const int i = blockIdx.x * GPU_THREADS + threadIdx.x, h = i % p.shape.heads;
    if (i >= p.T * p.shape.heads) return;
    const float dt = gpu_softplus(p.dt[i] + __ldg(p.dt_bias + h));
    p.step[i] = make_float2(dt, expf(-expf(__ldg(p.A_log + h)) * dt));
}

/* What a warp has of MAMBA_BATCH rows: C and B; of row lane / 8 the step, and x of the element that its lane's row of S belongs to. */
struct mamba_loaded {
    float C[MAMBA_BATCH][MAMBA_C], B[MAMBA_BATCH][MAMBA_C], x;
    float2 step;
};

/* Of rows that are not there zeros: their dt is 0 and nothing is stored. value: the lane's element of x; -1: none. */
__device__ __forceinline__ void mamba_load_batch(const mamba_prefill &p, int h, int group, int value, int first, mamba_loaded *to) {
    const mamba_shape &s = p.shape;
    const int channels = gpu_mamba_channels(s), own = first + (int)threadIdx.x % 32 / 8;
#pragma unroll
    for (int t = 0; t < MAMBA_BATCH; t++) {
        const float *C = p.conv + (size_t)min(first + t, p.T - 1) * channels + group * s.state_dim;
        const int n = first + t < p.T ? s.state_dim : 0;
        gpu_load_key_row<MAMBA_C>(to->C[t], C, n);
        gpu_load_key_row<MAMBA_C>(to->B[t], C + s.groups * s.state_dim, n);
    }
    to->x = own < p.T && value >= 0 ? p.conv[(size_t)own * channels + 2 * s.groups * s.state_dim + value] : 0;
    to->step = own < p.T ? p.step[own * s.heads + h] : make_float2(0, 0);
}

/* y, and S after the last row. Grid: (heads, parts) blocks of eight warps, each with four rows of S, as in a step. */
static __global__ void __launch_bounds__(GPU_THREADS) mamba_scan(const __grid_constant__ mamba_prefill p) {
    enum { R = MAMBA_R, N = 2 * R, LANES = 32 / N, HELD = mamba_rows::LANES };
    const mamba_shape &s = p.shape;
    const int lane = threadIdx.x % 32, h = blockIdx.x, group = h / (s.heads / s.groups), first = (blockIdx.y * GPU_WARPS + threadIdx.x / 32) * R;
    const int j = first + lane / LANES, holder = lane % 16 / LANES * HELD, element = first + lane % 8 / HELD;
    const int value = element < s.head_dim ? h * s.head_dim + element : -1;
    const bool writes = lane % LANES == 0 && lane < R * LANES && j < s.head_dim;
    const float D = __ldg(p.D + h);
    float *S_at = p.S + (size_t)(h * s.head_dim + first) * s.state_dim, S[R][MAMBA_C];
    mamba_loaded now, next;
#pragma unroll
    for (int r = 0; r < R; r++) gpu_load_key_row<MAMBA_C>(S[r], S_at + r * s.state_dim, first + r < s.head_dim ? s.state_dim : 0);
    mamba_load_batch(p, h, group, value, 0, &now);
    for (int begin = 0; begin < p.T; begin += MAMBA_BATCH) {
        mamba_load_batch(p, h, group, value, begin + MAMBA_BATCH, &next);
        const float u = now.step.x * now.x, skip = D * now.x;
#pragma unroll
        for (int t = 0; t < MAMBA_BATCH; t++) {
            float sum[N] = {};
#pragma unroll
            for (int c = 0; c < MAMBA_C; c++) {
                sum[R] = fmaf(now.B[t][c], now.C[t][c], sum[R]);
#pragma unroll
                for (int r = 0; r < R; r++) sum[r] = fmaf(S[r][c], now.C[t][c], sum[r]);
            }
            const float decay = __shfl_sync(~0u, now.step.y, 8 * t), write = __shfl_sync(~0u, u, 8 * t + holder);
            const float skipped = __shfl_sync(~0u, skip, 8 * t + holder);
            const float total = gpu_warp_sums<N>(sum), bc = __shfl_sync(~0u, total, R * LANES);
            const bool there = begin + t < p.T;
            if (writes && there) p.y[(size_t)((begin + t) * s.heads + h) * s.head_dim + j] = fmaf(write, bc, decay * total) + skipped;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float of_row = __shfl_sync(~0u, write, r * LANES);
#pragma unroll
                for (int c = 0; c < MAMBA_C; c++) S[r][c] = there ? fmaf(of_row, now.B[t][c], decay * S[r][c]) : S[r][c];
            }
        }
        now = next;
    }
#pragma unroll
    for (int r = 0; r < R; r++) gpu_store_key_row<MAMBA_C>(S_at + r * s.state_dim, S[r], first + r < s.head_dim ? s.state_dim : 0);
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
    size_t used = 0;
    p->y = (float *)prefill_take(scratch, &used, max_size(channels, inner));
    p->raw = p->y;
    p->conv = (float *)prefill_take(scratch, &used, channels);
    p->gated = (uint16_t *)(void *)p->conv;
    p->z = (float *)prefill_take(scratch, &used, inner);
    p->dt = (float *)prefill_take(scratch, &used, rows * (size_t)s->heads * sizeof(float));
    p->step = (float2 *)prefill_take(scratch, &used, rows * (size_t)s->heads * sizeof(float2));
    p->act_scale = (float *)prefill_take(scratch, &used, rows * sizeof(float));
    return prefill_take_rest(used, 0, T, s->hidden);
}

/* The implementation of layers/kinds.cu for prefill. */

static int mamba_can_prefill(const mamba_weights *w, dtype) {
    const mamba_shape *s = &w->shape;
    return s->taps <= MAMBA_TAPS && s->hidden % GEMM_COLS == 0 && (size_t)(mamba_inner(s) + GPU_WARPS) * sizeof(float) <= GPU_SHARED_FREE &&
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

static void mamba_prefill_scan(const prefill_rows *r, const mamba_prefill *p) {
    const mamba_shape *s = &p->shape;
    const deltanet_shape memory = mamba_memory(s);
    const unsigned channels = (unsigned)(mamba_channels(s) - 1) / GPU_THREADS + 1, steps = (unsigned)(r->T * s->heads - 1) / GPU_THREADS + 1;
    const dim3 blocks(channels, (unsigned)(r->T - 1) / MAMBA_CONV_ROWS + 1), heads((unsigned)s->heads, (unsigned)gpu_delta_parts(&memory));
    mamba_conv_rows<<<blocks, GPU_THREADS, 0, r->stream>>>(*p);
    mamba_move_window<<<channels, GPU_THREADS, 0, r->stream>>>(*p);
    mamba_find_steps<<<steps, GPU_THREADS, 0, r->stream>>>(*p);
    mamba_scan<<<heads, GPU_THREADS, 0, r->stream>>>(*p);
}

static void mamba_prefill_out(const prefill_rows *r, const mamba_weights *w, const mamba_prefill *p) {
    const gemm_rows gated = {p->gated, p->act_scale, 1};
    mamba_gate_rows<<<r->T, GPU_THREADS, (size_t)mamba_inner(&p->shape) * sizeof(float), r->stream>>>(*p);
    prefill_output(r, &w->out_proj, gated, NULL);
}

static cudaError_t mamba_run_prefill(const prefill_rows *r, const mamba_weights *w, const mamba_gpu *, const mamba_state *state) {
    mamba_prefill p;
    memset(&p, 0, sizeof p);
    p.shape = w->shape;
    p.T = r->T;
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
    if (stage_in(r->stages, STAGE_SCAN)) mamba_prefill_scan(r, &p);
    if (stage_in(r->stages, STAGE_MAMBA_OUT)) mamba_prefill_out(r, w, &p);
    return cudaGetLastError();
}
