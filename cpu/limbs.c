/* cpu/limbs.c: token rows as fixed-point numbers of int8 limbs, for weights of four bits (cpu/nibbles.c,
   cpu/quarter_products.c). Knows threads, but no matrices.

   Some columns have one activation scale, a power of two, and x = scale X with |X| <= 2^22: of the largest of them that is 22
   bits and a sign. Codes are whole numbers too, and so is the sum of these columns' products, exactly: in any order, by any
   instruction. As processors multiply bytes, X = 65536 high + 256 middle + low, three limbs of 8 bits, each with a sign. Two
   limbs are not enough: with these, logits of the small INT4 references are off by 0.004 of their standard deviation.

   NVFP4 has a scale for 16 columns, so eight columns, a lane, share an activation scale. MXFP4 has one for 32, INT4 for 32 at least:
   there a quarter of a column block does, and the sum of its products still has 31 bits and a sign. */

enum { COL_BLOCK = 128, COL_BLOCK_LANES = 16, LANE_COLS = COL_BLOCK / COL_BLOCK_LANES, LIMBS = 3 };
enum { QUARTERS = 4, QUARTER_COLS = COL_BLOCK / QUARTERS, QUARTER_PARTS = QUARTER_COLS / LANE_COLS };

/* A column block of a token row for NVFP4: 128 columns, or fewer with zeros after them. Limbs of even columns and of odd ones, as
   the codes of a byte belong to an even and an odd column; so four bytes of each are a lane. */
typedef struct lane_limbs {
    int8_t limb[LIMBS][2][COL_BLOCK / 2];          /* high, middle, low */
    float act_scale[COL_BLOCK_LANES];
    int32_t zero[COL_BLOCK_LANES]; /* -E2M1_ZERO times the sum of a lane's X */
} lane_limbs;

/* The same for MXFP4 and INT4. Part p are columns 8 p to 8 p + 7 of each quarter. */
typedef struct quarter_limbs {
    int8_t limb[LIMBS][QUARTER_PARTS][2][QUARTERS][4];
    float act_scale[QUARTERS];
    float sum[QUARTERS];         /* of a quarter's X */
    int32_t zero[QUARTERS];      /* -E2M1_ZERO times that */
} quarter_limbs;

/* Memory of a column block of a token row. Of a whole row first all lane_limbs lie there, and then all quarter_limbs; each is
   written only where there are weights that take it. */
typedef struct token_limbs {
    lane_limbs lanes;
    quarter_limbs quarters;
    char rest[16];               /* rows begin with cache lines */
} token_limbs;
static_assert(sizeof(lane_limbs) % CACHE_LINE == 0 && sizeof(token_limbs) % CACHE_LINE == 0, "rows begin with cache lines");

/* Twice an E2M1 is a whole number from -12 to 12. Values of codes are 0..24, because instructions multiply bytes without a sign
   by bytes with one: so the sums of products have so many X too much. */
enum { E2M1_ZERO = 12 };

static int col_block_count(int cols) {
    return (cols - 1) / COL_BLOCK + 1;
}

INLINE lane_limbs *row_lanes(const token_limbs *row) {
    return (lane_limbs *)row;
}

INLINE quarter_limbs *row_quarters(const token_limbs *row, int cols) {
    return (quarter_limbs *)(void *)(row_lanes(row) + col_block_count(cols));
}

/* Scratch for the limbs of so many token rows; NULL while counting. */
static token_limbs *limbs_alloc(layout *l, size_t rows, int cols) {
    return (token_limbs *)(void *)layout_alloc(l, rows * (size_t)col_block_count(cols) * (sizeof(token_limbs) / sizeof(float)));
}

/* largest: of each of n groups of columns, the bits of its largest magnitude. Writes its scale and the inverse of that; a
   magnitude that is not finite makes a scale that is not. */
INLINE void act_scales(const uint32_t *largest, int n, float *act_scale, float *inverse) {
    enum { INFINITE = 0x7f800000 };
    for (int l = 0; l < n; l++) {
        const uint32_t e = largest[l] >> 23 > 22 ? largest[l] >> 23 : 22;        /* 2^(e - 127) <= the largest < 2^(e - 126) */
        act_scale[l] = float_of_bits(largest[l] < INFINITE ? (e - 21) << 23 : largest[l]);        /* 2^(e - 127 - 21) */
        inverse[l] = float_of_bits((127 + 127 + 21 - e) << 23);
    }
}

/* X[i] of x[COL_BLOCK] in `groups` groups of columns, a constant, and the sum of each. Halves are folded until a group is left,
   because compilers make vectors of such loops. Where x is not finite X is anything, so numbers wrap around. */
INLINE void fixed_point(const float *__restrict x, const int groups, uint32_t *__restrict X, float *act_scale, uint32_t *sums) {
    uint32_t largest[COL_BLOCK], sum[COL_BLOCK];
    float inverse[COL_BLOCK_LANES];
    const int cols = COL_BLOCK / groups;
    memcpy(largest, x, sizeof largest);
    for (int i = 0; i < COL_BLOCK; i++) largest[i] &= 0x7fffffff;
    for (int n = COL_BLOCK / 2; n >= groups; n /= 2)
        for (int i = 0; i < n; i++) largest[i] = largest[2 * i] > largest[2 * i + 1] ? largest[2 * i] : largest[2 * i + 1];
    act_scales(largest, groups, act_scale, inverse);
    for (int l = 0; l < groups; l++)
        for (int j = 0; j < cols; j++) {
            const float magic = 0x1.8p23f, rounded = x[cols * l + j] * inverse[l] + magic;
            uint32_t bits;
            memcpy(&bits, &rounded, sizeof bits);
            X[cols * l + j] = bits - 0x4b400000;
        }
    memcpy(sum, X, sizeof sum);
    for (int n = COL_BLOCK / 2; n >= groups; n /= 2)
        for (int i = 0; i < n; i++) sum[i] = sum[2 * i] + sum[2 * i + 1];
    memcpy(sums, sum, (size_t)groups * sizeof *sums);
}

/* Limbs of X, of even columns and of odd ones. */
INLINE void split_limbs(const uint32_t *__restrict X, int8_t (*__restrict limb)[2][COL_BLOCK / 2]) {
    for (int i = 0; i < COL_BLOCK / 2; i++) {
        const uint32_t even = X[2 * i], odd = X[2 * i + 1];
        limb[0][0][i] = (int8_t)((even + 0x8080) >> 16);
        limb[0][1][i] = (int8_t)((odd + 0x8080) >> 16);
        limb[1][0][i] = (int8_t)((even + 0x80) >> 8);
        limb[1][1][i] = (int8_t)((odd + 0x80) >> 8);
        limb[2][0][i] = (int8_t)even;
        limb[2][1][i] = (int8_t)odd;
    }
}

/* x is [COL_BLOCK]. */
SIMD static void lane_limbs_of(const float *__restrict x, lane_limbs *__restrict to) {
    uint32_t X[COL_BLOCK], sum[COL_BLOCK_LANES];
    fixed_point(x, COL_BLOCK_LANES, X, to->act_scale, sum);
    split_limbs(X, to->limb);
    for (int l = 0; l < COL_BLOCK_LANES; l++) to->zero[l] = (int32_t)(0u - E2M1_ZERO * sum[l]);
}

SIMD static void quarter_limbs_of(const float *__restrict x, quarter_limbs *__restrict to) {
    uint32_t X[COL_BLOCK], sum[QUARTERS];
    int8_t limb[LIMBS][2][COL_BLOCK / 2];
    fixed_point(x, QUARTERS, X, to->act_scale, sum);
    split_limbs(X, limb);
    for (int k = 0; k < LIMBS; k++)
        for (int odd = 0; odd < 2; odd++)
            for (int q = 0; q < QUARTERS; q++)
                for (int p = 0; p < QUARTER_PARTS; p++) memcpy(to->limb[k][p][odd][q], limb[k][odd] + 16 * q + 4 * p, 4);
    for (int q = 0; q < QUARTERS; q++) {
        to->sum[q] = (float)(int32_t)sum[q];
        to->zero[q] = (int32_t)(0u - E2M1_ZERO * sum[q]);
    }
}

/* Token rows as weight rows of any format take them. */
typedef struct token_batch {
    int count;                   /* <= TOKEN_BATCH */
    const float *x[TOKEN_BATCH];
    const token_limbs *limbs[TOKEN_BATCH];       /* of each, where limb_kinds() of the weights says so */
} token_batch;

/* Token rows for a product with the transposed of weight rows: x of one begins every x_stride floats, what comes of it every y_stride. */
typedef struct transposed_rows {
    const float *x;
    float *y;
    size_t x_stride, y_stride;
    int T;
} transposed_rows;

/* Token rows to convert to limbs. */
typedef struct limb_rows {
    const float *x;              /* a row begins every `stride` floats */
    size_t stride;
    int rows, cols;
    token_limbs *to;            /* [rows][col_block_count(cols)] */
    unsigned kinds;             /* which limbs: LIMBS_OF_LANES | LIMBS_OF_QUARTERS */
} limb_rows;

enum { LIMBS_OF_LANES = 1, LIMBS_OF_QUARTERS = 2 };

static void limb_row(void *context, int begin, int end, int thread) {
    const limb_rows *job = (const limb_rows *)context;
    const int n = col_block_count(job->cols);
    (void)thread;
    for (int row = begin; row < end; row++) {
        const float *x = job->x + (size_t)row * job->stride;
        token_limbs *to = job->to + (size_t)row * (size_t)n;
        for (int s = 0; s < n; s++) {
            const int left = job->cols - s * COL_BLOCK;
            float last[COL_BLOCK] = {0};
            if (left < COL_BLOCK) memcpy(last, x + s * COL_BLOCK, (size_t)left * sizeof *last);
            const float *from = left < COL_BLOCK ? last : x + s * COL_BLOCK;
            if (job->kinds & LIMBS_OF_LANES) lane_limbs_of(from, row_lanes(to) + s);
            if (job->kinds & LIMBS_OF_QUARTERS) quarter_limbs_of(from, row_quarters(to, job->cols) + s);
        }
    }
}

/* Fills job->to, if any weights take limbs. A few rows are converted sooner than threads could be woken. */
static void limbs_of_rows(pool *p, limb_rows *job) {
    enum { FEW_COL_BLOCKS = 64 };
    if (!job->kinds) return;
    if (job->rows * col_block_count(job->cols) <= FEW_COL_BLOCKS) limb_row(job, 0, job->rows, 0);
    else parallel(p, job->rows, limb_row, job);
}
