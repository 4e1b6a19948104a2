/* layers/spans.c: softmax(q . k) v for a few queries over the keys and values of a KV head, on the CPU. Knows no layer.

   Positions are taken in spans of SPAN. The result of a query and a span is a part:

       top = the largest q . k[p] scale       sum = sum over p of e^(q . k[p] scale - top)       o = the same sum, times v[p]

   Parts are joined in the order of their positions, the one with the lower top scaled down to the other's. Where a span begins
   is a matter of its position alone, so bits depend neither on the number of rows nor on which thread takes what.

   A key is read once for SPAN_QUERIES queries: heads that share a KV head come together. */

enum {
    SPAN = 256,                  /* positions; their keys and values stay in L2 */
    SPAN_QUERIES = 4,
    SPAN_VALUES = 8,             /* values that are added while sums are in registers */
    SPAN_COLS = 256,             /* columns of a key or value that are turned into floats at a time */
    PART_TOP = 0,                /* after the value_d numbers of o in a part */
    PART_SUM = 1,
    PART_EXTRA = 16              /* so that parts begin at a cache line where value_d does */
};

/* A KV head's rows of a cache. */
typedef struct kv_rows {
    const void *k, *v;
    size_t at, stride;           /* elements: of position 0, and from one position to the next */
    int d, value_d;              /* numbers of a key, and of a value */
    dtype type;
} kv_rows;

/* e^x for x <= 0, off by at most two in its last bit; 0 below -87. x = n ln 2 + r, and of e^r seven terms after the 1. */
INLINE float exp_below(float x) {
    const float low = x < -87.0f ? -87.0f : x, shifted = low * 1.44269504f + 0x1.8p23f, n = shifted - 0x1.8p23f;
    const float r = (low - n * 0.693145752f) - n * 1.42860677e-6f;
    float e = 1.0f / 5040;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1;
    e = e * r + 1;
    return x < -87.0f ? 0 : e * float_of_bits((bits + 127) << 23);
}

/* score[j][i] = q[j] . k[first + i] * scale, for `count` queries, a constant; the same bits for any type that holds the same
   values. */
INLINE void span_scores(const kv_rows *kv, const float *const *q, const int count, int first, int n, float scale,
                        float (*score)[SPAN], const dtype type) {
    const int pair = count < 2 ? 1 : 2;
    float floats[SPAN_COLS] __attribute__((aligned(64)));
    for (int i = 0; i < n; i++) {
        const size_t at = kv->at + (size_t)(first + i) * kv->stride;
        partial sum[SPAN_QUERIES];
        for (int j = 0; j < count; j++) sum[j] = no_partial();
        for (int col = 0; col < kv->d; col += SPAN_COLS) {
            const int cols = kv->d - col < SPAN_COLS ? kv->d - col : SPAN_COLS;
            const float *k = kv_floats(kv->k, at + (size_t)col, cols, floats, type);
            for (int j = 0; j < count; j += pair) add_products(sum + j, k, q + j, col, cols, pair);
            for (int j = 0; col + cols == kv->d && j < count; j++)
                score[j][i] = add_tail(sum_lanes(&sum[j]), k, q[j] + col, cols) * scale;
        }
    }
}

/* score[0..n) = e^(score - *top); returns their sum. */
INLINE float span_softmax(float *score, int n, float *top) {
    float most[16], sum[16] = {0};
    for (int l = 0; l < 16; l++) most[l] = -INFINITY;
    for (int i = n; i % 16; i++) score[i] = -INFINITY;
    for (int i = 0; i < n; i += 16)
        for (int l = 0; l < 16; l++) most[l] = score[i + l] > most[l] ? score[i + l] : most[l];
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++) most[l] = most[l + half] > most[l] ? most[l + half] : most[l];
    *top = most[0];
    for (int i = 0; i < n; i += 16)
        for (int l = 0; l < 16; l++) sum[l] += score[i + l] = exp_below(score[i + l] - *top);
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
}

/* o[j][col..col+cols) += weight[j][i] v[i][0..cols) for `values` i, in this order. count and values are constants. */
INLINE void add_values(float *const *o, int col, int cols, const float (*weight)[SPAN], int first, const float *const *v,
                       const int count, const int values) {
    int c = 0;
    for (; c + 16 <= cols; c += 16) {
        lanes sum[SPAN_QUERIES];
        for (int j = 0; j < count; j++) sum[j] = *(const lanes *)(o[j] + col + c);
        for (int i = 0; i < values; i++)
            for (int j = 0; j < count; j++) sum[j] += weight[j][first + i] * *(const lanes *)(v[i] + c);
        for (int j = 0; j < count; j++) *(lanes *)(o[j] + col + c) = sum[j];
    }
    for (; c < cols; c++)
        for (int i = 0; i < values; i++)
            for (int j = 0; j < count; j++) o[j][col + c] += weight[j][first + i] * v[i][c];
}

/* o[j] += sum over i of weight[j][i] v[first + i]. count is a constant. */
INLINE void span_values(const kv_rows *kv, const float (*weight)[SPAN], const int count, int first, int n, float *const *o,
                        const dtype type) {
    float floats[SPAN_VALUES][SPAN_COLS] __attribute__((aligned(64)));
    for (int i = 0, some; i < n; i += some) {
        some = n - i < SPAN_VALUES ? 1 : SPAN_VALUES;
        for (int col = 0; col < kv->value_d; col += SPAN_COLS) {
            const int cols = kv->value_d - col < SPAN_COLS ? kv->value_d - col : SPAN_COLS;
            const float *v[SPAN_VALUES];
            for (int k = 0; k < some; k++)
                v[k] = kv_floats(kv->v, kv->at + (size_t)(first + i + k) * kv->stride + (size_t)col, cols, floats[k], type);
            if (some == 1) add_values(o, col, cols, weight, i, v, count, 1);
            else add_values(o, col, cols, weight, i, v, count, SPAN_VALUES);
        }
    }
}

INLINE void span_parts_of(const kv_rows *kv, const float *const *q, const int count, int first, int n, float scale,
                          float *const *part, const dtype type) {
    float weight[SPAN_QUERIES][SPAN] __attribute__((aligned(64)));
    span_scores(kv, q, count, first, n, scale, weight, type);
    for (int j = 0; j < count; j++) {
        memset(part[j], 0, (size_t)kv->value_d * sizeof(float));
        part[j][kv->value_d + PART_SUM] = span_softmax(weight[j], n, &part[j][kv->value_d + PART_TOP]);
    }
    span_values(kv, (const float (*)[SPAN])weight, count, first, n, part, type);
}

/* The parts of `count` queries, 1 or SPAN_QUERIES, for n <= SPAN positions from `first` on. */
SIMD static void span_parts(const kv_rows *kv, const float *const *q, int count, int first, int n, float scale,
                            float *const *part) {
#define OF_TYPE(TYPE)                                                                          \
    if (kv->type == TYPE && count == 1) span_parts_of(kv, q, 1, first, n, scale, part, TYPE);  \
    else if (kv->type == TYPE) span_parts_of(kv, q, SPAN_QUERIES, first, n, scale, part, TYPE)
    OF_TYPE(DTYPE_F32);
    OF_TYPE(DTYPE_BF16);
    OF_TYPE(DTYPE_FP8);
#undef OF_TYPE
}

/* A part of positions, and then that of the positions after them: the part of both. d: numbers of a value. */
SIMD static void span_join(float *all, const float *part, int d) {
    const float top = part[d + PART_TOP] > all[d + PART_TOP] ? part[d + PART_TOP] : all[d + PART_TOP];
    const float all_scale = exp_below(all[d + PART_TOP] - top), part_scale = exp_below(part[d + PART_TOP] - top);
    for (int i = 0; i < d; i++) all[i] = all[i] * all_scale + part[i] * part_scale;
    all[d + PART_SUM] = all[d + PART_SUM] * all_scale + part[d + PART_SUM] * part_scale;
    all[d + PART_TOP] = top;
}
