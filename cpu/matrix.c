/* cpu/matrix.c: weight rows times token rows on the CPU, where nearly all of its time goes. Knows formats, but no layers.

   All linear layers are y = W x for a few token rows x. One token reads each weight once, so what counts is how fast the
   weights stream through: a piece of a weight row is turned into floats in L1 once and used there for
   all token rows. Each sum is kept as 32 partial sums, in the same order for any T. */

typedef struct matrix {
    dtype type;
    int rows, cols;
    const void *data;            /* [rows][cols] */
    const float *scale; /* FP8: [ceil(rows/block_rows)][ceil(cols/block_cols)], weight = code * scale, scale < 128 */
    int block_rows, block_cols;
} matrix;

/* On a GPU a matrix is packed: eight rows (a row panel) times 64 bytes (a k block) lie together, see cuda/panels.cu. It is
   given the room that takes on a CPU, too. */
enum { PANEL_ROWS = 8, K_BLOCK_BYTES = 64, PANEL_BYTES = PANEL_ROWS * K_BLOCK_BYTES };

static int dtype_size(dtype type) {
    return type == DTYPE_F32 ? 4 : type == DTYPE_FP8 ? 1 : 2;
}

/* K blocks and row panels of a matrix. */
static int gpu_k_blocks(dtype type, int cols) {
    return (int)(((int64_t)cols * dtype_size(type) + K_BLOCK_BYTES - 1) / K_BLOCK_BYTES);
}

static int gpu_row_panels(int rows) {
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS;
}

/* Bytes of a packed matrix. */
static size_t gpu_packed_size(dtype type, int rows, int cols) {
    return (size_t)gpu_row_panels(rows) * (size_t)gpu_k_blocks(type, cols) * PANEL_BYTES;
}

enum {
    TILE = 128,                  /* columns turned into floats at a time, the width of an FP8 block */
    TOKEN_BATCH = 64             /* token rows in one call */
};

/* out[n] = columns col.. of the weight row at `data`, as floats; scale: of the row's FP8 blocks. */
INLINE void decode(const matrix *w, const void *data, const float *scale, int col, int n, float *__restrict out,
                   const dtype type) {
    const uint16_t *__restrict half = (const uint16_t *)data + col;
    const uint8_t *__restrict code = (const uint8_t *)data + col;
    if (type == DTYPE_F32) memcpy(out, (const float *)data + col, (size_t)n * sizeof *out);
    if (type == DTYPE_F16)
        for (int i = 0; i < n; i++) out[i] = float_of_f16(half[i]);
    if (type == DTYPE_BF16)
        for (int i = 0; i < n; i++) out[i] = float_of_bf16(half[i]);
    if (type != DTYPE_FP8) return;
    if (w->block_cols == TILE && col % TILE == 0 && n <= TILE) {
        float unit = scale[col / TILE] * FP8_UNIT;
        for (int i = 0; i < n; i++) out[i] = fp8_bits(code[i]) * unit;
    } else {
        for (int i = 0; i < n; i++) out[i] = fp8_bits(code[i]) * (scale[(col + i) / w->block_cols] * FP8_UNIT);
    }
}

INLINE const float *scale_row(const matrix *w, int row) {
    return w->type == DTYPE_FP8 ? w->scale + (size_t)(row / w->block_rows) * (size_t)((w->cols - 1) / w->block_cols + 1)
                                : NULL;
}

INLINE const void *data_row(const matrix *w, int row) {
    size_t size = w->type == DTYPE_F32 ? 4 : w->type == DTYPE_FP8 ? 1 : 2;
    return (const char *)w->data + (size_t)row * (size_t)w->cols * size;
}

/* The partial sums of a dot product: lane l of `low` takes elements l, l + 32, ..., of `high` l + 16, l + 48, ... */
typedef struct partial { lanes low, high; } partial;

/* sum[j] += w . x[j][col..col+n) without the last n % 32 products, for `count` <= 4 rows of x, a constant. */
INLINE void add_products(partial *sum, const float *w, const float *const *x, int col, int n, const int count) {
    lanes low[4], high[4];
    for (int j = 0; j < count; j++) low[j] = sum[j].low, high[j] = sum[j].high;
    for (int i = 0; i + 32 <= n; i += 32) {
        lanes first = *(const lanes *)(w + i), second = *(const lanes *)(w + i + 16);
        for (int j = 0; j < count; j++) {
            low[j] += first * *(const lanes *)(x[j] + col + i);
            high[j] += second * *(const lanes *)(x[j] + col + i + 16);
        }
    }
    for (int j = 0; j < count; j++) sum[j].low = low[j], sum[j].high = high[j];
}

INLINE float sum_lanes(const partial *sum) {
    lanes all = sum->low + sum->high;
    half_lanes a, b;
    quarter_lanes c, d;
    memcpy(&a, &all, sizeof a);
    memcpy(&b, (const char *)&all + sizeof a, sizeof b);
    a += b;
    memcpy(&c, &a, sizeof c);
    memcpy(&d, (const char *)&a + sizeof c, sizeof d);
    c += d;
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* sum + the last n % 32 products, one after the other. */
INLINE float add_tail(float sum, const float *w, const float *x, int n) {
    for (int i = n / 32 * 32; i < n; i++) sum += w[i] * x[i];
    return sum;
}

INLINE float dot(const float *a, const float *b, int n) {
    partial sum;
    memset(&sum, 0, sizeof sum);
    add_products(&sum, a, &b, 0, n, 1);
    return add_tail(sum_lanes(&sum), a, b, n);
}

/* y[t] = W[row] . x[t] for the `count` <= TOKEN_BATCH rows x[t]; type is a constant. */
INLINE void type_dots(const matrix *w, int row, const float *const *x, int count, float *y, const dtype type) {
    float tile[TILE] __attribute__((aligned(64)));
    partial sum[TOKEN_BATCH] __attribute__((aligned(64)));
    const void *data = data_row(w, row);
    const float *scale = scale_row(w, row);
    int col = 0, rest = w->cols % TILE;
    for (int t = 0; t < count; t++) memset(&sum[t], 0, sizeof *sum);
    for (; col < w->cols - rest; col += TILE) {
        int t = 0;
        decode(w, data, scale, col, TILE, tile, type);
        for (; t + 4 <= count; t += 4) add_products(sum + t, tile, x + t, col, TILE, 4);
        for (; t + 2 <= count; t += 2) add_products(sum + t, tile, x + t, col, TILE, 2);
        for (; t < count; t++) add_products(sum + t, tile, x + t, col, TILE, 1);
    }
    if (!rest) {
        for (int t = 0; t < count; t++) y[t] = sum_lanes(sum + t);
        return;
    }
    float last[TILE]; /* not `tile`: what is never read again need not be stored */
    decode(w, data, scale, col, rest, last, type);
    for (int t = 0; t < count; t++) {
        add_products(sum + t, last, x + t, col, rest, 1);
        y[t] = add_tail(sum_lanes(sum + t), last, x[t] + col, rest);
    }
}

INLINE void any_type_dots(const matrix *w, int row, const float *const *x, int count, float *y) {
    if (w->type == DTYPE_FP8) type_dots(w, row, x, count, y, DTYPE_FP8);
    else if (w->type == DTYPE_BF16) type_dots(w, row, x, count, y, DTYPE_BF16);
    else if (w->type == DTYPE_F16) type_dots(w, row, x, count, y, DTYPE_F16);
    else type_dots(w, row, x, count, y, DTYPE_F32);
}

/* The same for a matrix of any type. One row, decoding, and two, verifying a draft, are worth a copy of their own: the sums
   stay in registers. */
SIMD static void matrix_row_dots(const matrix *w, int row, const float *const *x, int count, float *y) {
    if (count == 1) any_type_dots(w, row, x, 1, y);
    else if (count == 2) any_type_dots(w, row, x, 2, y);
    else any_type_dots(w, row, x, count, y);
}

enum { PROJECTIONS = 4 };

/* Several linear layers of one input, as one loop: y[i][t][row] = W[i][row] . x[t], or += when `add` is set. */
typedef struct projection {
    int count;
    const matrix *w[PROJECTIONS];
    float *y[PROJECTIONS];       /* [T][rows of w] */
    const float *x;              /* [T][cols] */
    int T, add;
} projection;

static void projection_rows(void *context, int begin, int end, int thread) {
    const projection *p = (const projection *)context;
    (void)thread;
    for (int item = begin; item < end; item++) {
        int i = 0, row = item;
        while (row >= p->w[i]->rows) row -= p->w[i++]->rows;
        const matrix *w = p->w[i];
        for (int first = 0; first < p->T; first += TOKEN_BATCH) {
            int count = p->T - first < TOKEN_BATCH ? p->T - first : TOKEN_BATCH;
            const float *x[TOKEN_BATCH];
            float y[TOKEN_BATCH];
            for (int t = 0; t < count; t++) x[t] = p->x + (size_t)(first + t) * (size_t)w->cols;
            matrix_row_dots(w, row, x, count, y);
            float *out = p->y[i] + (size_t)first * (size_t)w->rows + row;
            for (int t = 0; t < count; t++)
                out[(size_t)t * (size_t)w->rows] = p->add ? out[(size_t)t * (size_t)w->rows] + y[t] : y[t];
        }
    }
}

static void project(pool *p, projection *job) {
    int rows = 0;
    for (int i = 0; i < job->count; i++) rows += job->w[i]->rows;
    parallel(p, rows, projection_rows, job);
}

/* y[t] = W x[t], or y[t] += W x[t]. */
static void linear(pool *p, const matrix *w, const float *x, float *y, int T, int add) {
    projection job;
    memset(&job, 0, sizeof job);
    job.count = 1;
    job.w[0] = w;
    job.y[0] = y;
    job.x = x;
    job.T = T;
    job.add = add;
    project(p, &job);
}

/* Bytes of the weights and their scales. */
static uint64_t matrix_bytes(const matrix *w) {
    uint64_t n = (uint64_t)w->rows * (uint64_t)w->cols * (uint64_t)dtype_size(w->type);
    if (w->type == DTYPE_FP8)
        n += (uint64_t)((w->rows - 1) / w->block_rows + 1) * (uint64_t)((w->cols - 1) / w->block_cols + 1) * sizeof(float);
    return n;
}
