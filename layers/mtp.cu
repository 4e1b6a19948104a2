/* layers/mtp.cu: what goes into the MTP layer on a GPU: final norms, the token after, the rows for later. */

/* What goes into the MTP layer's fc, and the final rows that the next block will ask for. Row t is for the position before
   the block's row t: its token is the block's, its hidden row that of the row before. */
typedef struct gpu_mtp_input {
    gpu_matrix embed_tokens;
    const step_parameters *step;
    const float *x, *norm;       /* [T][cols] residual after the last layer, the final norm; see gpu_draft_row */
    float *hidden;               /* [T][cols] rms(x)(1 + norm) */
    const float *last_hidden;    /* [cols] that of the row before the block */
    const float *norm_embedding, *norm_hidden;
    float *in;                   /* [T][2 cols] */
    float eps;
    int draft;                   /* only gpu_draft_row's: from 0 on */
} gpu_mtp_input;

/* to = rms(from)(1 + norm) for one row of `cols` floats in shared or device memory; whole block. */
__device__ __forceinline__ void gpu_norm_row(float *to, const float *from, const float *norm, int cols, float eps,
                                             float *shared) {
    float sum = 0, all = 0;
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) sum = fmaf(from[i], from[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int w = 0; w < GPU_WARPS; w++) all += shared[w];
    float factor = rsqrtf(all / (float)cols + eps);
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) to[i] = from[i] * factor * (1.0f + norm[i]);
    __syncthreads();
}

/* Grid: T blocks. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_mtp_rows(const __grid_constant__ gpu_mtp_input p) {
    extern __shared__ float row[];                          /* [cols] */
    __shared__ float shared[GPU_WARPS];
    int t = blockIdx.x, cols = p.embed_tokens.cols;
    float *in = p.in + (size_t)t * 2 * cols;
    pdl_launch_dependents();
    pdl_wait();
    gpu_norm_row(p.hidden + (size_t)t * cols, p.x + (size_t)t * cols, p.norm, cols, p.eps, shared);
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) row[i] = gpu_weight(&p.embed_tokens, p.step->ids[t], i);
    __syncthreads();
    gpu_norm_row(in, row, p.norm_embedding, cols, p.eps, shared);
    if (t) gpu_norm_row(row, p.x + (size_t)(t - 1) * cols, p.norm, cols, p.eps, shared);
    gpu_norm_row(in + cols, t ? row : p.last_hidden, p.norm_hidden, cols, p.eps, shared);
}

static void gpu_mtp_start(gpu_queue *q, const gpu_mtp_input *p, int T) {
    gpu_launch(q, GPU_MTP, dtype_names[p->embed_tokens.type], gpu_mtp_rows, T, 1,
               (size_t)p->embed_tokens.cols * sizeof(float), p);
}

/* What goes into fc for draft number p.draft: the token chosen last and the final row of the token before it (the last one
   kept of the block that was verified, p.hidden, or else p.last_hidden); then the draft before and what the MTP layer made
   of it: p.x [cols] and p.norm are that layer's. One block. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_draft_row(const __grid_constant__ gpu_mtp_input p) {
    extern __shared__ float row[];                          /* [cols] */
    __shared__ float shared[GPU_WARPS];
    int cols = p.embed_tokens.cols;
    pdl_launch_dependents();
    pdl_wait();
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) row[i] = gpu_weight(&p.embed_tokens, p.step->ids[p.draft], i);
    __syncthreads();
    gpu_norm_row(p.in, row, p.norm_embedding, cols, p.eps, shared);
    const int kept = p.step->replay;
    const float *final_row = kept ? p.hidden + (size_t)(kept - 1) * cols : p.last_hidden;
    if (p.draft) gpu_norm_row(row, p.x, p.norm, cols, p.eps, shared);
    gpu_norm_row(p.in + cols, p.draft ? row : final_row, p.norm_hidden, cols, p.eps, shared);
}

static void gpu_draft_start(gpu_queue *q, const gpu_mtp_input *p) {
    gpu_launch(q, GPU_MTP, dtype_names[p->embed_tokens.type], gpu_draft_row, 1, 1,
               (size_t)p->embed_tokens.cols * sizeof(float), p);
}
