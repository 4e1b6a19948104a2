/* cpu/limbs.c: token rows as fixed-point numbers of int8 limbs, for weights of four bits (cpu/nibbles.c). Knows threads, but no
   matrices.

   Eight columns, a lane, have one activation scale, a power of two, and x = scale X with |X| <= 2^22: of the largest of
   the eight that is 22 bits and a sign. Codes are whole numbers too, and so is the sum of a lane's eight products, exactly: in
   any order, by any instruction. As processors multiply bytes, X = 65536 high + 256 middle + low, three limbs of 8 bits, each
   with a sign. Two limbs are not enough: with these, logits of the small INT4 references are off by 0.004 of their standard
   deviation. */

enum { COL_BLOCK = 128, COL_BLOCK_LANES = 16, LANE_COLS = COL_BLOCK / COL_BLOCK_LANES, LIMBS = 3 };

/* A column block of a token row: 128 columns, or fewer with zeros after them. Limbs of even columns and of odd ones, as the codes
   of a byte belong to an even and an odd column; so four bytes of each are a lane. */
typedef struct token_limbs {
    int8_t limb[LIMBS][2][COL_BLOCK / 2];          /* high, middle, low */
    float act_scale[COL_BLOCK_LANES];
    float sum[COL_BLOCK_LANES];    /* of a lane's X */
    int32_t zero[COL_BLOCK_LANES]; /* -E2M1_ZERO times that */
} token_limbs;

/* Twice an E2M1 is a whole number from -12 to 12. Values of codes are 0..24, because instructions multiply bytes without a sign
   by bytes with one: so the products of a lane have so many X too much. */
enum { E2M1_ZERO = 12 };

static int col_block_count(int cols) {
    return (cols - 1) / COL_BLOCK + 1;
}

/* Scratch for the limbs of so many token rows; NULL while counting. */
static token_limbs *limbs_alloc(layout *l, size_t rows, int cols) {
    return (token_limbs *)(void *)layout_alloc(l, rows * (size_t)col_block_count(cols) * (sizeof(token_limbs) / sizeof(float)));
}

/* largest: of each lane, the bits of its largest magnitude. Writes its scale and the inverse of that; a magnitude that is not
   finite makes a scale that is not. */
INLINE void lane_act_scales(const uint32_t *largest, float *act_scale, float *inverse) {
    enum { INFINITE = 0x7f800000 };
    for (int l = 0; l < COL_BLOCK_LANES; l++) {
        const uint32_t e = largest[l] >> 23 > 22 ? largest[l] >> 23 : 22;        /* 2^(e - 127) <= the largest < 2^(e - 126) */
        act_scale[l] = float_of_bits(largest[l] < INFINITE ? (e - 21) << 23 : largest[l]);        /* 2^(e - 127 - 21) */
        inverse[l] = float_of_bits((127 + 127 + 21 - e) << 23);
    }
}

/* x is [COL_BLOCK]. Halves are folded until a lane is left, because compilers make vectors of such loops. Where x is not finite
   X is anything, so numbers wrap around. */
SIMD static void limbs_of(const float *__restrict x, token_limbs *__restrict to) {
    uint32_t largest[COL_BLOCK];
    float inverse[COL_BLOCK_LANES];
    uint32_t X[COL_BLOCK], sum[COL_BLOCK / 2];
    memcpy(largest, x, sizeof largest);
    for (int i = 0; i < COL_BLOCK; i++) largest[i] &= 0x7fffffff;
    for (int n = COL_BLOCK / 2; n >= COL_BLOCK_LANES; n /= 2)
        for (int i = 0; i < n; i++) largest[i] = largest[2 * i] > largest[2 * i + 1] ? largest[2 * i] : largest[2 * i + 1];
    lane_act_scales(largest, to->act_scale, inverse);
    for (int l = 0; l < COL_BLOCK_LANES; l++)
        for (int j = 0; j < LANE_COLS; j++) {
            const float magic = 0x1.8p23f, rounded = x[LANE_COLS * l + j] * inverse[l] + magic;
            uint32_t bits;
            memcpy(&bits, &rounded, sizeof bits);
            X[LANE_COLS * l + j] = bits - 0x4b400000;
        }
    for (int i = 0; i < COL_BLOCK / 2; i++) {
        const uint32_t even = X[2 * i], odd = X[2 * i + 1];
        to->limb[0][0][i] = (int8_t)((even + 0x8080) >> 16);
        to->limb[0][1][i] = (int8_t)((odd + 0x8080) >> 16);
        to->limb[1][0][i] = (int8_t)((even + 0x80) >> 8);
        to->limb[1][1][i] = (int8_t)((odd + 0x80) >> 8);
        to->limb[2][0][i] = (int8_t)even;
        to->limb[2][1][i] = (int8_t)odd;
        sum[i] = even + odd;
    }
    for (int n = COL_BLOCK / 4; n >= COL_BLOCK_LANES; n /= 2)
        for (int i = 0; i < n; i++) sum[i] = sum[2 * i] + sum[2 * i + 1];
    for (int l = 0; l < COL_BLOCK_LANES; l++) to->sum[l] = (float)(int32_t)sum[l];
    for (int l = 0; l < COL_BLOCK_LANES; l++) to->zero[l] = (int32_t)(0u - E2M1_ZERO * sum[l]);
}

/* Token rows as weight rows of any format take them. */
typedef struct token_batch {
    int count;                   /* <= TOKEN_BATCH */
    const float *x[TOKEN_BATCH];
    const token_limbs *limbs[TOKEN_BATCH];       /* of each, where uses_nibble_kernel() is true of the weights */
} token_batch;

/* Token rows to convert to limbs. */
typedef struct limb_rows {
    const float *x;              /* a row begins every `stride` floats */
    size_t stride;
    int rows, cols;
    token_limbs *to;            /* [rows][col_block_count(cols)] */
} limb_rows;

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
            limbs_of(left < COL_BLOCK ? last : x + s * COL_BLOCK, to + s);
        }
    }
}

/* Fills job->to. A few rows are converted sooner than threads could be woken. */
static void limbs_of_rows(pool *p, limb_rows *job) {
    enum { FEW_COL_BLOCKS = 64 };
    if (job->rows * col_block_count(job->cols) <= FEW_COL_BLOCKS) limb_row(job, 0, job->rows, 0);
    else parallel(p, job->rows, limb_row, job);
}
