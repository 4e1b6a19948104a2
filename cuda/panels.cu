/* cuda/panels.cu: a weight matrix in a GPU's memory: its packed layout, how it is packed when it is loaded, read element
   by element, and copied to FP8. Knows matrices; must not know token rows, fragments or stages.

   Layout. Eight rows (a row panel) times 64 bytes (a k block) lie together as 512 bytes, row behind row. The k blocks of
   a panel follow each other, then the next panel. Byte b of row r is at

       (r / 8 * k_blocks + b / 64) * 512 + r % 8 * 64 + b % 64

   Rows are padded with zeros to whole panels and whole k blocks. The bytes of a weight stay what they were.

   Why: lane 4 g + i of a warp takes 16 bytes of row g, those from 16 i on. So a warp loads a k block of a panel with one
   16-byte load a lane, from 512 consecutive bytes, and gets the A operand of mma.m16n8k16 without shuffles
   (cuda/fragments.cu). */

/* A packed matrix. */
typedef struct gpu_matrix {
    const char *data;
    const float *scale;          /* FP8: [ceil(rows / 2^row_shift)][scale_cols] */
    int rows, cols;
    int k_blocks;                /* of a row */
    int panels;
    int row_shift, k_block_shift;  /* FP8: log2 of a scale block's rows, and of its k blocks */
    int scale_cols;
    dtype type;
} gpu_matrix;

/* log2 of n; -1: not a power of two. */
static int log2_of(int n) {
    int shift = 0;
    while (shift < 30 && 1 << shift < n) shift++;
    return 1 << shift == n ? shift : -1;
}

static gpu_matrix gpu_matrix_of(const matrix *w) {
    gpu_matrix g;
    memset(&g, 0, sizeof g);
    g.data = (const char *)w->data;
    g.rows = w->rows;
    g.cols = w->cols;
    g.k_blocks = gpu_k_blocks(w->type, w->cols);
    g.panels = gpu_row_panels(w->rows);
    g.type = w->type;
    if (w->type != DTYPE_FP8) return g;
    g.scale = w->scale;
    g.row_shift = log2_of(w->block_rows);
    g.k_block_shift = log2_of(w->block_cols) - 6;
    g.scale_cols = (w->cols - 1) / w->block_cols + 1;
    return g;
}

/* A packing: from: [rows][row_bytes] as in the file; to: packed; total: bytes of `to`. */
typedef struct gpu_packing { const char *from; char *to; int rows; int64_t row_bytes, total; } gpu_packing;

static __global__ void gpu_pack_kernel(const __grid_constant__ gpu_packing p) {
    int64_t k_blocks = (p.row_bytes + K_BLOCK_BYTES - 1) / K_BLOCK_BYTES;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < p.total; at += (int64_t)gridDim.x * blockDim.x) {
        int64_t piece = at / PANEL_BYTES, row = piece / k_blocks * PANEL_ROWS + at % PANEL_BYTES / K_BLOCK_BYTES;
        int64_t byte = piece % k_blocks * K_BLOCK_BYTES + at % K_BLOCK_BYTES;
        p.to[at] = row < p.rows && byte < p.row_bytes ? p.from[row * p.row_bytes + byte] : 0;
    }
}

static cudaError_t gpu_pack(const gpu_packing *packing, int sms) {
    gpu_packing p = *packing;
    p.total = (int64_t)gpu_row_panels(p.rows) * ((p.row_bytes + K_BLOCK_BYTES - 1) / K_BLOCK_BYTES) * PANEL_BYTES;
    int64_t blocks = (p.total - 1) / GPU_THREADS + 1, most = (int64_t)sms * 8;
    gpu_pack_kernel<<<(unsigned)(blocks < most ? blocks : most), GPU_THREADS>>>(p);
    return cudaGetLastError();
}

/* Address of the element [row][col], of `size` bytes, of a packed matrix. */
__device__ __forceinline__ const char *gpu_element(const gpu_matrix *w, int row, int col, int size) {
    size_t byte = (size_t)col * size;
    return w->data + ((size_t)(row / PANEL_ROWS) * w->k_blocks + byte / K_BLOCK_BYTES) * PANEL_BYTES +
           row % PANEL_ROWS * K_BLOCK_BYTES + byte % K_BLOCK_BYTES;
}

__device__ __forceinline__ float gpu_weight(const gpu_matrix *w, int row, int col) {
    if (w->type == DTYPE_F32) return *(const float *)gpu_element(w, row, col, 4);
    if (w->type == DTYPE_BF16) return __uint_as_float((uint32_t)*(const uint16_t *)gpu_element(w, row, col, 2) << 16);
    if (w->type == DTYPE_F16) return __half2float(*(const __half *)gpu_element(w, row, col, 2));
    int code = *(const int8_t *)gpu_element(w, row, col, 1), block = col / K_BLOCK_BYTES >> w->k_block_shift;
    return __uint_as_float((uint32_t)code << 20 & 0x87f00000u) *
           (w->scale[(row >> w->row_shift) * w->scale_cols + block] * FP8_UNIT);
}

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
    const int side_row = 1 << p.to.row_shift, side_col = K_BLOCK_BYTES << p.to.k_block_shift;
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
