/* cpu/digits.c: token rows as whole numbers, for weights of four bits (cpu/nibbles.c). Knows threads, but no matrices.

   Eight columns, a lane, have one unit, a power of two, and x = unit X with |X| <= 2^22: of the largest of the eight that is 22
   bits and a sign. Codes are whole numbers too, and so is the sum of a lane's eight products, exactly: in any order, by any
   instruction. As processors multiply bytes, X = 65536 high + 256 middle + low, three digits of 8 bits, each with a sign. Two
   digits are not enough: with these, logits of the small INT4 references are off by 0.004 of their standard deviation. */

enum { STRETCH = 128, STRETCH_LANES = 16, LANE_COLS = STRETCH / STRETCH_LANES, DIGITS = 3 };

/* A token row's stretch of 128 columns, or less with zeros behind them: digits of even columns and of odd ones, as the codes of
   a byte belong to an even and an odd column; so four bytes of each are a lane. */
typedef struct token_digits {
    int8_t digit[DIGITS][2][STRETCH / 2];          /* high, middle, low */
    float unit[STRETCH_LANES];
    float sum[STRETCH_LANES];    /* of a lane's X */
    int32_t zero[STRETCH_LANES]; /* -E2M1_ZERO times that */
} token_digits;

/* Twice an E2M1 is a whole number from -12 to 12. Values of codes are 0..24, because instructions multiply bytes without a sign
   by bytes with one: so the products of a lane have so many X too much. */
enum { E2M1_ZERO = 12 };

static int stretch_count(int cols) {
    return (cols - 1) / STRETCH + 1;
}

/* Room for those of so many token rows; NULL while counting. */
static token_digits *digits_alloc(layout *l, size_t rows, int cols) {
    return (token_digits *)(void *)layout_alloc(l, rows * (size_t)stretch_count(cols) * (sizeof(token_digits) / sizeof(float)));
}

/* Of lanes' largest magnitudes, as bits: their units, and the inverse of these. What is not finite leaves none finite. */
INLINE void lane_units(const uint32_t *most, float *unit, float *inverse) {
    enum { INFINITE = 0x7f800000 };
    for (int l = 0; l < STRETCH_LANES; l++) {
        const uint32_t e = most[l] >> 23 > 22 ? most[l] >> 23 : 22;        /* 2^(e - 127) <= the largest < 2^(e - 126) */
        unit[l] = float_of_bits(most[l] < INFINITE ? (e - 21) << 23 : most[l]);        /* 2^(e - 127 - 21) */
        inverse[l] = float_of_bits((127 + 127 + 21 - e) << 23);
    }
}

/* x is [STRETCH]. Halves are folded until a lane is left, because compilers make vectors of such loops. Where x is not finite
   X is anything, so numbers wrap around. */
SIMD static void digits_of(const float *__restrict x, token_digits *__restrict to) {
    uint32_t most[STRETCH];
    float inverse[STRETCH_LANES];
    uint32_t X[STRETCH], sum[STRETCH / 2];
    memcpy(most, x, sizeof most);
    for (int i = 0; i < STRETCH; i++) most[i] &= 0x7fffffff;
    for (int n = STRETCH / 2; n >= STRETCH_LANES; n /= 2)
        for (int i = 0; i < n; i++) most[i] = most[2 * i] > most[2 * i + 1] ? most[2 * i] : most[2 * i + 1];
    lane_units(most, to->unit, inverse);
    for (int l = 0; l < STRETCH_LANES; l++)
        for (int j = 0; j < LANE_COLS; j++) {
            const float magic = 0x1.8p23f, rounded = x[LANE_COLS * l + j] * inverse[l] + magic;
            uint32_t bits;
            memcpy(&bits, &rounded, sizeof bits);
            X[LANE_COLS * l + j] = bits - 0x4b400000;
        }
    for (int i = 0; i < STRETCH / 2; i++) {
        const uint32_t even = X[2 * i], odd = X[2 * i + 1];
        to->digit[0][0][i] = (int8_t)((even + 0x8080) >> 16);
        to->digit[0][1][i] = (int8_t)((odd + 0x8080) >> 16);
        to->digit[1][0][i] = (int8_t)((even + 0x80) >> 8);
        to->digit[1][1][i] = (int8_t)((odd + 0x80) >> 8);
        to->digit[2][0][i] = (int8_t)even;
        to->digit[2][1][i] = (int8_t)odd;
        sum[i] = even + odd;
    }
    for (int n = STRETCH / 4; n >= STRETCH_LANES; n /= 2)
        for (int i = 0; i < n; i++) sum[i] = sum[2 * i] + sum[2 * i + 1];
    for (int l = 0; l < STRETCH_LANES; l++) to->sum[l] = (float)(int32_t)sum[l];
    for (int l = 0; l < STRETCH_LANES; l++) to->zero[l] = (int32_t)(0u - E2M1_ZERO * sum[l]);
}

/* Token rows as weight rows of any format take them. */
typedef struct token_batch {
    int count;                   /* <= TOKEN_BATCH */
    const float *x[TOKEN_BATCH];
    const token_digits *digits[TOKEN_BATCH];       /* of each, where uses_nibble_kernel() is true of the weights */
} token_batch;

/* Token rows that become digits. */
typedef struct digit_rows {
    const float *x;              /* a row begins every `stride` floats */
    size_t stride;
    int rows, cols;
    token_digits *to;            /* [rows][stretch_count(cols)] */
} digit_rows;

static void digit_row(void *context, int begin, int end, int thread) {
    const digit_rows *job = (const digit_rows *)context;
    const int n = stretch_count(job->cols);
    (void)thread;
    for (int row = begin; row < end; row++) {
        const float *x = job->x + (size_t)row * job->stride;
        token_digits *to = job->to + (size_t)row * (size_t)n;
        for (int s = 0; s < n; s++) {
            const int left = job->cols - s * STRETCH;
            float last[STRETCH] = {0};
            if (left < STRETCH) memcpy(last, x + s * STRETCH, (size_t)left * sizeof *last);
            digits_of(left < STRETCH ? last : x + s * STRETCH, to + s);
        }
    }
}

/* Fills job->to. A few rows are done sooner than threads are called. */
static void digits_of_rows(pool *p, digit_rows *job) {
    enum { FEW_STRETCHES = 64 };
    if (job->rows * stretch_count(job->cols) <= FEW_STRETCHES) digit_row(job, 0, job->rows, 0);
    else parallel(p, job->rows, digit_row, job);
}
