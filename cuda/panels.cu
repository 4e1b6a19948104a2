/* cuda/panels.cu: a weight matrix in a GPU's memory: its packed layout, how it is packed when it is loaded, and where an
   element lies. Knows matrices; must not know token rows, fragments or stages.

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
    const float *scale;          /* of formats with blocks: [ceil(rows / 2^row_shift)][scale_cols] */
    int rows, cols;
    int k_blocks;                /* of a row */
    int panels;
    int row_shift, k_block_shift;  /* log2 of a scale block's rows, and of its k blocks */
    int scale_cols;
    enum format format;
} gpu_matrix;

/* Bytes of a row's codes, and of all codes, packed. */
static size_t format_row_bytes(enum format f, int cols) {
    return plane_bytes(&formats[f]->planes[CODES], cols);
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
