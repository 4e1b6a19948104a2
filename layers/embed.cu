/* layers/embed.cu: stage embed on a GPU, and the final row that the MTP layer takes in later. */

typedef struct gpu_embedding {
    gpu_matrix embed_tokens;
    const step_parameters *step;
    float *x;                    /* [T][cols] */
    const float *hidden;         /* [GPU_ROWS][cols] final rows of the block before */
    float *last_hidden;          /* [cols] that of the last row kept; NULL: not wanted */
} gpu_embedding;

/* Grid: (columns, T + 1): a row of blocks for each token, and one for last_hidden. */
static __global__ void gpu_embed_rows(const __grid_constant__ gpu_embedding p) {
    int col = blockIdx.x * GPU_THREADS + threadIdx.x, t = blockIdx.y, cols = p.embed_tokens.cols;
    pdl_launch_dependents();
    pdl_wait();
    if (col >= cols) return;
    if (t < (int)gridDim.y - 1) p.x[(size_t)t * cols + col] = gpu_weight(&p.embed_tokens, p.step->ids[t], col);
    else if (p.last_hidden && p.step->replay) p.last_hidden[col] = p.hidden[(size_t)(p.step->replay - 1) * cols + col];
}

static void gpu_embed(gpu_queue *q, const gpu_embedding *p, int T) {
    int blocks = (p->embed_tokens.cols + GPU_THREADS - 1) / GPU_THREADS;
    gpu_launch(q, GPU_EMBED, dtype_names[p->embed_tokens.type], gpu_embed_rows, blocks, T + 1, 0, p);
}
