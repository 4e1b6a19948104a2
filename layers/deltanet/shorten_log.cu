/* layers/deltanet/shorten_log.cu: makes a log of more than STEP_ROWS accepted rows one that the kernels of a step can repeat: its first
   STEP_ROWS rows go into S and into the window, those after them become the first. Needed where a block in turns is followed by a step. */

/* S takes in the first STEP_ROWS rows. Grid: as gpu_delta_kernel of one sequence. */
template <int C> static __global__ void __launch_bounds__(GPU_THREADS) gpu_shorten_S(const __grid_constant__ deltanet_gpu p) {
    enum { R = C <= 4 ? 4 : 16 / C };
    gpu_delta_rows<R, C> rows;
    gpu_log<R, C, STEP_ROWS> log;
    rows.h = blockIdx.x;
    rows.key_head = p.ratio == 1 ? rows.h : (int)__umulhi((uint32_t)rows.h, p.per_key);
    rows.first = (blockIdx.y * GPU_WARPS + threadIdx.x / 32) * R;
    gpu_move_rows<R, C, 0>(&p, 0, &rows);
    gpu_load_log<R, C, STEP_ROWS>(&p, 0, &rows, &log);
    gpu_replay<R, C, STEP_ROWS>(&p, 0, STEP_ROWS, &log, &rows);
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

template <int C> static void gpu_launch_shorten(cudaStream_t stream, const deltanet_gpu &p) {
    const deltanet_shape *s = &p.shape;
    const int cols = deltanet_channels(s) + s->key_heads * s->key_dim + s->value_heads * (s->value_dim + 1);
    gpu_shorten_S<C><<<dim3((unsigned)s->value_heads, (unsigned)gpu_delta_parts(s)), GPU_THREADS, 0, stream>>>(p);
    gpu_shorten_log<<<(cols - 1) / GPU_THREADS + 1, GPU_THREADS, 0, stream>>>(p);
}

/* For one layer of a slot, whose state this is. */
static cudaError_t deltanet_shorten_log(cudaStream_t stream, const deltanet_shape *s, const deltanet_state *state) {
    deltanet_gpu p;
    memset(&p, 0, sizeof p);
    p.shape = *s;
    p.state = *state;
    p.ratio = s->value_heads / s->key_heads;
    p.per_key = reciprocal_of(p.ratio);
    if (s->key_dim <= 32) gpu_launch_shorten<1>(stream, p);
    else if (s->key_dim <= 64) gpu_launch_shorten<2>(stream, p);
    else if (s->key_dim <= 128) gpu_launch_shorten<4>(stream, p);
    else if (s->key_dim <= 256) gpu_launch_shorten<8>(stream, p);
    else gpu_launch_shorten<16>(stream, p);
    return cudaGetLastError();
}
