/* layers/deltanet/shorten_log.cu: makes a log of more than STEP_ROWS accepted rows one that the kernels of a step can repeat: its first
   STEP_ROWS rows go into S and into the window, those after them become the first. Needed where a block in turns is followed by a step. */

/* S takes in the first STEP_ROWS rows, element by element, with the operations of gpu_replay. Grid: (value heads, rows of S). */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_shorten_S(const __grid_constant__ deltanet_gpu p) {
    const deltanet_shape *s = &p.shape;
    const int h = blockIdx.x, row = h * s->value_dim + blockIdx.y, key_head = p.ratio == 1 ? h : (int)__umulhi((uint32_t)h, p.per_key);
    float *S = p.state.S + (size_t)row * s->key_dim;
    for (int i = threadIdx.x; i < s->key_dim; i += GPU_THREADS) {
        float x = S[i];
        for (int t = 0; t < STEP_ROWS; t++) {
            const float u = p.state.log_u[t * s->value_heads * s->value_dim + row], decay = p.state.log_decay[t * s->value_heads + h];
            x = fmaf(u, p.state.log_k[(t * s->key_heads + key_head) * s->key_dim + i], decay * x);
        }
        S[i] = x;
    }
}

/* A column of `rows` rows moves up by STEP_ROWS of them; what falls out is gone. */
__device__ __forceinline__ void gpu_move_up(float *column, int rows, int cols) {
    for (int t = 0; t + STEP_ROWS < rows; t++) column[(size_t)t * cols] = column[(size_t)(t + STEP_ROWS) * cols];
}

/* The rest, when S has been stored. A thread for each column of a row of the log; window and log_raw are one range of rows. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_shorten_log(const __grid_constant__ deltanet_gpu p) {
    const deltanet_shape *s = &p.shape;
    const int widths[] = {gpu_channels(s), s->key_heads * s->key_dim, s->value_heads * s->value_dim, s->value_heads};
    float *const parts[] = {p.state.window, p.state.log_k, p.state.log_u, p.state.log_decay};
    int col = (int)(blockIdx.x * GPU_THREADS + threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; col -= widths[i++])
        if (col >= 0 && col < widths[i]) gpu_move_up(parts[i] + col, MOTE_ROWS_MAX + (i ? 0 : s->taps - 1), widths[i]);
}

/* For one layer of a slot, whose state this is. */
static cudaError_t deltanet_shorten_log(cudaStream_t stream, const deltanet_shape *s, const deltanet_state *state) {
    const int cols = deltanet_channels(s) + s->key_heads * s->key_dim + s->value_heads * (s->value_dim + 1);
    deltanet_gpu p;
    memset(&p, 0, sizeof p);
    p.shape = *s;
    p.state = *state;
    p.ratio = s->value_heads / s->key_heads;
    p.per_key = reciprocal_of(p.ratio);
    gpu_shorten_S<<<dim3((unsigned)s->value_heads, (unsigned)s->value_dim), GPU_THREADS, 0, stream>>>(p);
    gpu_shorten_log<<<(cols - 1) / GPU_THREADS + 1, GPU_THREADS, 0, stream>>>(p);
    return cudaGetLastError();
}
