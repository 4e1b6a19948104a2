/* cuda/quantise.cu: copies a packed matrix of any format to FP8 blocks, for the draft head. Knows matrices and formats; must
   not know what the copy is for. */

/* The E4M3 code nearest to x, at most 448. */
__device__ __forceinline__ uint8_t gpu_fp8(float x) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return (uint8_t)pair;
}

/* Copies the first rows of a packed matrix to FP8: each scale block's scale makes its largest weight 448, the largest of
   E4M3. */
typedef struct gpu_quantising { gpu_matrix from, to; } gpu_quantising;

/* Grid: scale blocks of `to`, (column, row). */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_quantise_blocks(const __grid_constant__ gpu_quantising p) {
    __shared__ float largest[GPU_WARPS];
    const int side_row = 1 << p.to.row_shift, side_col = K_BLOCK_COLS << p.to.k_block_shift;
    const int rows = min(side_row, p.to.rows - (int)blockIdx.y * side_row);
    const int cols = min(side_col, p.to.cols - (int)blockIdx.x * side_col);
    float most = 0;
    for (int i = threadIdx.x; i < rows * cols; i += GPU_THREADS)
        most = fmaxf(most, fabsf(gpu_weight(&p.from, blockIdx.y * side_row + i / cols, blockIdx.x * side_col + i % cols)));
    for (int i = 16; i; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
    for (int w = 0; w < GPU_WARPS; w++) most = fmaxf(most, largest[w]);
    float scale = most > 0 ? most / 448 : 1;
    if (threadIdx.x == 0) ((float *)p.to.scale)[blockIdx.y * p.to.scale_cols + blockIdx.x] = scale;
    for (int i = threadIdx.x; i < rows * cols; i += GPU_THREADS) {
        int row = blockIdx.y * side_row + i / cols, col = blockIdx.x * side_col + i % cols;
        *(uint8_t *)gpu_element(&p.to, row, col, 1) = gpu_fp8(gpu_weight(&p.from, row, col) / scale);
    }
}

static cudaError_t gpu_quantise(const matrix *from, const matrix *to) {
    gpu_quantising p;
    p.from = gpu_matrix_of(from);
    p.to = gpu_matrix_of(to);
    gpu_quantise_blocks<<<dim3((to->cols - 1) / to->block_cols + 1, (to->rows - 1) / to->block_rows + 1), GPU_THREADS>>>(p);
    return cudaGetLastError();
}
