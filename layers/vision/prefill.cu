/* layers/vision/prefill.cu: rows of the vision tower on a GPU: what products are given, where patches stand, queries and keys. The formulas are
   definition.c's; the products are a prompt's (cuda/gemm.cu), attention is prefill_attend.cu's. Knows an image's patches, no session.

   A product takes rows of F16 with an activation scale each, of whole GEMM_COLS columns: what a row has less is zeros, and so have the matrices
   (matrix.whole_cols). It gives floats. The residual x stays float. Queries, keys and values are F16, [heads][n][dim], a head's d dimensions padded with zeros
   to the kernel's dim; 10 bits of a mantissa, where BF16 would leave a score of 30 off by a tenth. What would be beyond F16's range is its largest number. */

enum vision_step { VISION_PLAIN, VISION_NORM, VISION_GELU, VISION_GELU_ERF };

typedef struct vision_rows {
    const float *x;              /* [rows][cols] */
    vision_norm norm;            /* [normed] of VISION_NORM */
    enum vision_step step;       /* what becomes of x */
    int cols, normed, to_cols;   /* cols: even; normed: so many of them, which divide them, are normalised together */
    uint16_t *to;                /* F16 [rows][to_cols], from cols on zeros */
    float *act_scale;            /* [rows] */
} vision_rows;

__device__ __forceinline__ float vision_activate(enum vision_step step, float x) {
    if (step == VISION_GELU) return gpu_gelu(x);
    if (step == VISION_GELU_ERF) return 0.5f * x * (1 + erff(x * 0.707106781f));
    return x;
}

/* x[normed] in shared memory becomes norm(x). An element is a thread's own all the time. */
__device__ __forceinline__ void vision_normalise(const vision_rows &p, float *x, float *shared) {
    float sum = 0, square = 0;
    for (int i = threadIdx.x; i < p.normed; i += GPU_THREADS) sum += x[i];
    const float mean = block_sum(sum, shared) / p.normed;
    for (int i = threadIdx.x; i < p.normed; i += GPU_THREADS) square += (x[i] - mean) * (x[i] - mean);
    const float factor = 1 / sqrtf(block_sum(square, shared) / p.normed + (float)VISION_EPS);
    for (int i = threadIdx.x; i < p.normed; i += GPU_THREADS)
        x[i] = (x[i] - mean) * factor * __ldg(p.norm.weight + i) + __ldg(p.norm.bias + i);
}

/* Block t has row t. Shared memory: [cols] floats. */
static __global__ void __launch_bounds__(GPU_THREADS) vision_rows_kernel(const __grid_constant__ vision_rows p) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[GPU_WARPS];
    const float *x = p.x + (size_t)blockIdx.x * p.cols;
    uint16_t *to = p.to + (size_t)blockIdx.x * p.to_cols;
    float top = 0;
    for (int i = threadIdx.x; i < p.cols; i += GPU_THREADS) row[i] = vision_activate(p.step, x[i]);
    __syncthreads();
    for (int from = 0; p.step == VISION_NORM && from < p.cols; from += p.normed) vision_normalise(p, row + from, shared);
    __syncthreads();
    for (int i = threadIdx.x; i < p.cols; i += GPU_THREADS) top = fmaxf(top, fabsf(row[i]));
    top = block_max(top, shared);
    prefill_put_row(row, p.cols, top, to, p.act_scale + blockIdx.x);
    for (int i = p.cols + 2 * threadIdx.x; i < p.to_cols; i += 2 * GPU_THREADS) *(uint32_t *)(to + i) = 0;
}

/* Pixels of an image as numbers of patches, each in both frames, whose values are those that images/patches.c gives them. */
typedef struct vision_pixels {
    const unsigned char *rgb;    /* [rows * VISION_PATCH][columns * VISION_PATCH][VISION_CHANNELS] */
    float *to;                   /* [patches][VISION_PIXELS] from patch `first` on */
    int first, columns;
} vision_pixels;

/* Block t has patch first + t. */
static __global__ void __launch_bounds__(GPU_THREADS) vision_pixels_kernel(const __grid_constant__ vision_pixels p) {
    enum { FRAME = VISION_PATCH * VISION_PATCH };
    float *to = p.to + (size_t)blockIdx.x * VISION_PIXELS;
    int row, column;
    vision_place(p.first + (int)blockIdx.x, p.columns, &row, &column);
    for (int i = threadIdx.x; i < VISION_PIXELS; i += GPU_THREADS) {
        const int colour = i / (VISION_FRAMES * FRAME);
        const int y = row * VISION_PATCH + i % FRAME / VISION_PATCH, x = column * VISION_PATCH + i % VISION_PATCH;
        const size_t at = ((size_t)y * (size_t)(p.columns * VISION_PATCH) + (size_t)x) * VISION_CHANNELS + (size_t)colour;
        to[i] = ((float)p.rgb[at] - 127.5f) / 127.5f;
    }
}

typedef struct vision_places {
    const float *positions;      /* [side][side][hidden] */
    float *x;                    /* [n][hidden] */
    uint16_t *o;                 /* F16 [n][o_cols], of which attention leaves columns from hidden on alone */
    float *o_scale;              /* [n] its activation scales */
    int rows, columns, side, hidden, o_cols;
} vision_places;

/* x = what the embeddings of positions say of a patch's place; and what attention's output has that is the same in all blocks. Block p has patch p. */
static __global__ void __launch_bounds__(GPU_THREADS) vision_places_kernel(const __grid_constant__ vision_places p) {
    int row, column, r, c;
    double by_row, by_column;
    vision_place((int)blockIdx.x, p.columns, &row, &column);
    vision_between(row, p.rows, p.side, &r, &by_row);
    vision_between(column, p.columns, p.side, &c, &by_column);
    const float *at = p.positions + ((size_t)r * p.side + c) * p.hidden;
    const size_t below = r + 1 < p.side ? (size_t)p.side * p.hidden : 0, beside = c + 1 < p.side ? p.hidden : 0;
    const float down = (float)by_row, right = (float)by_column;
    float *x = p.x + (size_t)blockIdx.x * p.hidden;
    for (int i = threadIdx.x; i < p.hidden; i += GPU_THREADS)
        x[i] = (1 - down) * ((1 - right) * at[i] + right * at[beside + i]) + down * ((1 - right) * at[below + i] + right * at[below + beside + i]);
    for (int i = p.hidden + threadIdx.x; i < p.o_cols; i += GPU_THREADS) p.o[(size_t)blockIdx.x * p.o_cols + i] = 0;
    if (threadIdx.x == 0) p.o_scale[blockIdx.x] = 1;
}

enum { VISION_GPU_HEAD_MAX = 80 };             /* dimensions of a head that there is a kernel for */

typedef struct vision_heads {
    const float *qkv;            /* [T][3][heads][d] */
    uint16_t *q, *k, *v;         /* F16 [heads][n][dim] */
    int first, n, columns;       /* patch of row 0; patches and columns of the image */
    int heads, d, dim;
    float scale;                 /* log2(e) / sqrt(d): scores are for exp2 */
    float frequency[VISION_GPU_HEAD_MAX / 4];
} vision_heads;

/* cos and sin of position * frequency, which are exact enough for any position: see attend_angle. */
__device__ __forceinline__ float2 vision_turn(int position, float frequency) {
    const double turn = (double)(position * frequency) * 0.31830988618379067154;
    const float rest = (float)(turn - 2 * rint(turn / 2));
    return make_float2(cospif(rest), sinpif(rest));
}

/* Elements c and c + 1 of a head's query or key x[d], rotated; turn: of its first half's elements. c is even, and so is d / 2. */
__device__ __forceinline__ float2 vision_rotated(const float *x, const float2 *turn, int d, int c) {
    const int half = d / 2, low = c < half ? c : c - half;
    const float sign = c < half ? -1 : 1;
    const float *other = x + (c < half ? c + half : low);
    const float2 a = turn[low], b = turn[low + 1];
    return make_float2(x[c] * a.x + sign * other[0] * a.y, x[c + 1] * b.x + sign * other[1] * b.y);
}

__device__ __forceinline__ uint32_t vision_f16_pair(float2 v) {
    const float most = 65504;
    return f16_pair(fminf(fmaxf(v.x, -most), most), fminf(fmaxf(v.y, -most), most));
}

/* Block t has row t: its queries, keys and values, two elements a thread. */
static __global__ void __launch_bounds__(GPU_THREADS) vision_heads_kernel(const __grid_constant__ vision_heads p) {
    __shared__ float2 turn[VISION_GPU_HEAD_MAX / 2];
    const int patch = p.first + (int)blockIdx.x, each = p.d / 4, pairs = p.dim / 2;
    int row, column;
    vision_place(patch, p.columns, &row, &column);
    if ((int)threadIdx.x < 2 * each)
        turn[threadIdx.x] = vision_turn((int)threadIdx.x < each ? row : column, p.frequency[threadIdx.x % each]);
    __syncthreads();
    for (int i = threadIdx.x; i < 3 * p.heads * pairs; i += GPU_THREADS) {
        const int part = i / (p.heads * pairs), head = i / pairs % p.heads, c = i % pairs * 2;
        const float *x = p.qkv + (((size_t)blockIdx.x * 3 + part) * p.heads + head) * p.d;
        uint16_t *to = (part == 0 ? p.q : part == 1 ? p.k : p.v) + ((size_t)head * p.n + patch) * p.dim + c;
        float2 v = make_float2(0, 0);
        if (c < p.d) v = part < 2 ? vision_rotated(x, turn, p.d, c) : make_float2(x[c], x[c + 1]);
        if (part == 0) v = make_float2(v.x * p.scale, v.y * p.scale);
        *(uint32_t *)to = vision_f16_pair(v);
    }
}
