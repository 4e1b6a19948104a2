/* cpu/matrix.c: weight rows times token rows on the CPU, where nearly all of its time goes. Knows formats, but no layers.

   All linear layers are y = W x for a few token rows x. One token reads each weight once, so what counts is how fast the
   weights stream through: a piece of a weight row is turned into floats in L1 once and used there for
   all token rows. Each sum is kept as 32 partial sums, in the same order for any T. */

enum { TOKEN_BATCH = 64 };       /* token rows in one call */

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

/* y[t] = W[row] . x[t] for the `count` <= TOKEN_BATCH rows x[t]; f is a constant. */
INLINE void format_dots(const matrix *w, int row, const float *const *x, int count, float *y, const enum format f) {
    float tile[TILE] __attribute__((aligned(64)));
    partial sum[TOKEN_BATCH] __attribute__((aligned(64)));
    const weight_row from = row_of(w, row, f);
    int col = 0, rest = w->cols % TILE;
    for (int t = 0; t < count; t++) memset(&sum[t], 0, sizeof *sum);
    for (; col < w->cols - rest; col += TILE) {
        int t = 0;
        row_floats(w, &from, col, TILE, tile, f);
        for (; t + 4 <= count; t += 4) add_products(sum + t, tile, x + t, col, TILE, 4);
        for (; t + 2 <= count; t += 2) add_products(sum + t, tile, x + t, col, TILE, 2);
        for (; t < count; t++) add_products(sum + t, tile, x + t, col, TILE, 1);
    }
    if (!rest) {
        for (int t = 0; t < count; t++) y[t] = sum_lanes(sum + t);
        return;
    }
    float last[TILE]; /* not `tile`: what is never read again need not be stored */
    row_floats(w, &from, col, rest, last, f);
    for (int t = 0; t < count; t++) {
        add_products(sum + t, last, x + t, col, rest, 1);
        y[t] = add_tail(sum_lanes(sum + t), last, x[t] + col, rest);
    }
}

INLINE void any_format_dots(const matrix *w, int row, const float *const *x, int count, float *y) {
    switch (w->format) {
#define FORMAT_CASE(NAME, name) case FORMAT_##NAME: format_dots(w, row, x, count, y, FORMAT_##NAME); break;
        FORMATS(FORMAT_CASE)
#undef FORMAT_CASE
        default: break;
    }
}

/* The same for a matrix of any format. One row, decoding, and two, verifying a draft, are worth a copy of their own: the sums
   stay in registers. */
SIMD static void matrix_row_dots(const matrix *w, int row, const float *const *x, int count, float *y) {
    if (count == 1) any_format_dots(w, row, x, 1, y);
    else if (count == 2) any_format_dots(w, row, x, 2, y);
    else any_format_dots(w, row, x, count, y);
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
