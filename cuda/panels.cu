/* cuda/panels.cu: a weight matrix in a GPU's memory: its packed layout, how it is packed when it is loaded, and where an
   element lies. Knows matrices; must not know token rows, fragments or stages.

   Layout. Eight rows (a row panel) of a k block lie together: of the first packed component, the codes, 64 bytes of each row, row
   after row, 32 where codes have four bits; then of the next component, as many bytes of each row as go with those weights. The k
   blocks of a panel follow each other, then the next panel. Rows are padded with zeros to whole panels and whole k blocks. The
   bytes of a weight stay what they were, but for MXFP4's codes.

   Why: lane 4 g + i of a warp takes a quarter of row g, the i-th. So a warp loads a k block of a panel with one load a lane,
   from consecutive bytes, and gets the A operand of mma.m16n8k16 without shuffles (cuda/fragments.cu). Scales come in the same
   stream as their weights. */

enum { K_BLOCK_COLS = 64 };      /* of a k block, in formats of eight bits and most of four */

static int format_k_block_cols(enum format f) {
    const component *codes = &formats[f]->components[CODES];
    return codes->packed * 8 / codes->bits;
}

/* A packed matrix. */
typedef struct gpu_matrix {
    const char *data;
    const float *scale;          /* of formats with blocks: [ceil(rows / 2^row_shift)][scale_cols] */
    const float *bias;           /* [rows] what is added to its products; NULL: nothing */
    int rows, cols;
    int k_blocks;                /* of a row */
    int panel_bytes;             /* of a k block of a panel */
    int panels;
    int row_shift, k_block_shift;  /* log2 of a scale block's rows, and of its k blocks */
    int scale_cols;
    enum format format;
} gpu_matrix;

/* A component to be packed: [rows][row_bytes] as in the file. */
typedef struct gpu_packed_component {
    const char *from;
    int64_t row_bytes;
    int part, shared;            /* bytes of a row in a k block; k blocks that have the same ones */
    int by_groups;
} gpu_packed_component;

/* total: bytes of `to`. */
typedef struct gpu_packing {
    gpu_packed_component component[MAX_COMPONENTS];
    char *to;
    int rows, k_blocks, panel_bytes;
    int64_t total;
} gpu_packing;

/* A code of four bits of a row of `end` bytes; after it 0. */
__device__ __forceinline__ uint32_t gpu_code_of(const char *row, int64_t end, int64_t col) {
    return col / 2 < end ? (uint8_t)row[col / 2] >> col % 2 * 4 & 15 : 0;
}

/* Byte `at` of a row's 32 in a k block, see format_mxfp4: lane, group, one of four bytes, which has columns n and n + 4 of the lane's eight. */
__device__ __forceinline__ uint32_t gpu_codes_by_groups(const char *row, int64_t end, int64_t k_block, int at) {
    const int64_t col = k_block * 64 + at % 8 / 4 * 32 + at / 8 * 8 + at % 4;
    const uint32_t first = gpu_code_of(row, end, col), second = gpu_code_of(row, end, col + 4);
    return (first >> 3) << 7 | (first & 7) << 1 | (second & 7) << 4 | second >> 3;
}

static __global__ void gpu_pack_kernel(const __grid_constant__ gpu_packing p) {
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < p.total; at += (int64_t)gridDim.x * blockDim.x) {
        const int64_t block = at / p.panel_bytes, k_block = block % p.k_blocks;
        int rest = (int)(at % p.panel_bytes), i = 0;
        for (; rest >= PANEL_ROWS * p.component[i].part; i++) rest -= PANEL_ROWS * p.component[i].part;
        const gpu_packed_component &of = p.component[i];
        const int64_t row = block / p.k_blocks * PANEL_ROWS + rest / of.part, byte = k_block / of.shared * of.part + rest % of.part;
        const char *codes = of.from + row * of.row_bytes;
        if (of.by_groups) p.to[at] = row < p.rows ? (char)gpu_codes_by_groups(codes, of.row_bytes, k_block, rest % of.part) : 0;
        else p.to[at] = row < p.rows && byte < of.row_bytes ? of.from[row * of.row_bytes + byte] : 0;
    }
}

/* Bytes of eight rows of a k block, in all packed components. */
static int format_panel_bytes(enum format f) {
    int bytes = 0;
    for (int i = 0; i < formats[f]->component_count; i++) bytes += PANEL_ROWS * formats[f]->components[i].packed;
    return bytes;
}

/* Bytes of all packed components of a matrix. */
static size_t packed_bytes(const matrix *w) {
    size_t bytes = 0;
    for (int i = 0; i < formats[w->format]->component_count; i++)
        if (formats[w->format]->components[i].packed) bytes += matrix_component_capacity(w, i);
    return bytes;
}

/* Packs the components that lie at `from`, each in its place, to `to`. */
static cudaError_t gpu_pack(const matrix *w, const char *from, char *to, int sms) {
    gpu_packing p;
    memset(&p, 0, sizeof p);
    for (int i = 0, k = 0; i < formats[w->format]->component_count; i++) {
        const component *of = &formats[w->format]->components[i];
        if (!of->packed) continue;
        p.component[k].from = from;
        p.component[k].row_bytes = (int64_t)component_bytes(of, component_cols(of, w));
        const int columns = of->cols ? of->cols : w->block_cols;
        p.component[k].shared = columns > K_BLOCK_COLS ? columns / K_BLOCK_COLS : 1;
        p.component[k].by_groups = of->by_groups;
        p.component[k++].part = of->packed;
        from += matrix_component_capacity(w, i);
    }
    p.to = to;
    p.rows = w->rows;
    p.k_blocks = matrix_k_blocks(w);
    p.panel_bytes = format_panel_bytes(w->format);
    p.total = (int64_t)gpu_row_panels(w->rows) * p.k_blocks * p.panel_bytes;
    int64_t blocks = (p.total - 1) / GPU_THREADS + 1, most = (int64_t)sms * 8;
    gpu_pack_kernel<<<(unsigned)(blocks < most ? blocks : most), GPU_THREADS>>>(p);
    return cudaGetLastError();
}

/* Address of the element [row][col], of `size` bytes, of a packed matrix of formats without scales in their panels. */
__device__ __forceinline__ const char *gpu_element(const gpu_matrix *w, int row, int col, int size) {
    enum { PART = 64 };          /* bytes of a row in a k block */
    const size_t byte = (size_t)col * size;
    return w->data + ((size_t)(row / PANEL_ROWS) * w->k_blocks + byte / PART) * (PANEL_ROWS * PART) + row % PANEL_ROWS * PART +
           byte % PART;
}
