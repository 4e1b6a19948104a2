/* cpu/matrix.c: weight rows times token rows on the CPU, where nearly all of its time goes. Knows formats, but no layers.

   All linear layers are y = W x for token rows x. One token row reads each weight once, so what counts is how fast the weights
   stream through; many token rows use a weight often, so it becomes a float once and stays in L1: cpu/products.c does both.

   Bits: a sum has one partial sum for each lane of a register, each of which takes its columns in ascending order, and at the
   end they are added pairwise; cpu/scales.c says where scales come in, cpu/nibbles.c and cpu/quarter_products.c what four bits do
   instead. It is the same for one row and for many, on either side, and for any thread; only from one level of processor to
   another do bits differ.
   The dot products of attention and the delta rule, below, are kept in the same way, as 32 partial sums. */

/* The partial sums of a dot product: lane l of `low` takes elements l, l + 32, ..., of `high` l + 16, l + 48, ... */
typedef struct partial { lanes low, high; } partial;

INLINE partial no_partial(void) {
    partial none;
    memset(&none, 0, sizeof none);
    return none;
}

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

INLINE quarter_lanes fold_lanes(const partial *sum) {
    lanes all = sum->low + sum->high;
    half_lanes a, b;
    quarter_lanes c, d;
    memcpy(&a, &all, sizeof a);
    memcpy(&b, (const char *)&all + sizeof a, sizeof b);
    a += b;
    memcpy(&c, &a, sizeof c);
    memcpy(&d, (const char *)&a + sizeof c, sizeof d);
    return c + d;
}

INLINE float sum_lanes(const partial *sum) {
    const quarter_lanes c = fold_lanes(sum);
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* to[r] = sum_lanes of sum[r], of four. */
INLINE void sum_four_lanes(const partial *sum, float *to) {
    *(quarter_lanes *)to = sum_quarters(fold_lanes(sum), fold_lanes(sum + 1), fold_lanes(sum + 2), fold_lanes(sum + 3));
}

/* sum + the last n % 32 products, one after the other. */
INLINE float add_tail(float sum, const float *w, const float *x, int n) {
    for (int i = n / 32 * 32; i < n; i++) sum += w[i] * x[i];
    return sum;
}

/* y[j][r] = W[row + r] . token row j + bias[row + r] for `rows` <= ROW_BLOCK weight rows. */
static void matrix_block_dots(const matrix *w, int row, int rows, const token_batch *tokens, float (*y)[ROW_BLOCK]) {
#ifdef LEVELS
    int level = cpu_level();
    if (level == 4) block_dots_v4(w, row, rows, tokens, y);
    else if (level == 3) block_dots_v3(w, row, rows, tokens, y);
    else
#endif
        block_dots_plain(w, row, rows, tokens, y);
    for (int j = 0; j < tokens->count && w->bias; j++)
        for (int r = 0; r < rows; r++) y[j][r] += w->bias[row + r];
}

/* transposed_dots of the processor's level (cpu/products.c). */
static void matrix_transposed_dots(const matrix *w, int row, int rows, int col, int n, const transposed_rows *to) {
#ifdef LEVELS
    const int level = cpu_level();
    if (level == 4) transposed_dots_v4(w, row, rows, col, n, to);
    else if (level == 3) transposed_dots_v3(w, row, rows, col, n, to);
    else
#endif
        transposed_dots_plain(w, row, rows, col, n, to);
}

static int row_blocks(const matrix *w) {
    return (w->rows - 1) / ROW_BLOCK + 1;
}

/* Rows of block i. */
static int block_rows(const matrix *w, int i) {
    int left = w->rows - i * ROW_BLOCK;
    return left < ROW_BLOCK ? left : ROW_BLOCK;
}

/* So many blocks of such rows have at most 256 KB. */
static int blocks_together(int cols) {
    enum { COLS = 8192 };
    return cols < COLS ? COLS / cols : 1;
}

enum { PROJECTIONS = 5 };

/* Several linear layers of one input, as one loop: y[i][t][row] = W[i][row] . x[t], or += when `add` is set. */
typedef struct projection {
    int count;
    const matrix *w[PROJECTIONS];
    float *y[PROJECTIONS];       /* [T][rows of w] */
    float *const *to;            /* [T] where the rows of y[0] are instead, of a single one; NULL: there */
    const float *x;              /* [T][cols] */
    token_limbs *limbs;          /* scratch for x's, [T][col_block_count(cols)] */
    int T, add;
} projection;

/* y of a block of rows of w for `count` <= TOKEN_BATCH token rows from `first` on. */
static void projection_block(const projection *p, const matrix *w, int block, float *y, int first, int count) {
    const int rows = block_rows(w, block);
    token_batch tokens;
    float sum[TOKEN_BATCH][ROW_BLOCK];
    tokens.count = count;
    for (int t = 0; t < count; t++) {
        tokens.x[t] = p->x + (size_t)(first + t) * (size_t)w->cols;
        tokens.limbs[t] = p->limbs + (size_t)(first + t) * (size_t)col_block_count(w->cols);
    }
    matrix_block_dots(w, block * ROW_BLOCK, rows, &tokens, sum);
    for (int t = 0; t < count; t++) {
        float *row = p->to ? p->to[first + t] : y + (size_t)(first + t) * (size_t)w->rows, *out = row + (size_t)(block * ROW_BLOCK);
        for (int r = 0; r < rows; r++) out[r] = p->add ? out[r] + sum[t][r] : sum[t][r];
    }
}

/* For a few blocks together, whose weights stay in L2 meanwhile, token rows come from further away once. */
static void projection_blocks(void *context, int begin, int end, int thread) {
    const projection *p = (const projection *)context;
    const int together = blocks_together(p->w[0]->cols);
    (void)thread;
    for (int from = begin; from < end; from += together)
        for (int first = 0; first < p->T; first += TOKEN_BATCH)
            for (int item = from; item < end && item < from + together; item++) {
                int i = 0, block = item;
                while (block >= row_blocks(p->w[i])) block -= row_blocks(p->w[i++]);
                projection_block(p, p->w[i], block, p->y[i], first, p->T - first < TOKEN_BATCH ? p->T - first : TOKEN_BATCH);
            }
}

static void project(pool *p, projection *job) {
    limb_rows rows = {.x = job->x, .stride = (size_t)job->w[0]->cols, .rows = job->T, .cols = job->w[0]->cols, .to = job->limbs, .kinds = 0};
    int blocks = 0;
    for (int i = 0; i < job->count; i++) {
        blocks += row_blocks(job->w[i]);
        rows.kinds |= limb_kinds(job->w[i]);
    }
    limbs_of_rows(p, &rows);
    parallel(p, blocks, projection_blocks, job);
}

/* No layer of T rows of x yet. scratch: for the limbs of x. */
static projection projection_of(const float *x, int T, token_limbs *scratch) {
    projection p;
    memset(&p, 0, sizeof p);
    p.x = x;
    p.limbs = scratch;
    p.T = T;
    return p;
}

static void projection_add(projection *p, const matrix *w, float *y) {
    p->w[p->count] = w;
    p->y[p->count++] = y;
}

/* y[t] = W x[t], or y[t] += W x[t]. */
static void linear(pool *p, const matrix *w, const float *x, float *y, int T, int add, token_limbs *scratch) {
    projection job = projection_of(x, T, scratch);
    projection_add(&job, w, y);
    job.add = add;
    project(p, &job);
}
