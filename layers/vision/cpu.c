/* layers/vision/cpu.c: the vision tower on the CPU: its definition's formulas for all patches of an image.

   Products take VISION_ROWS patches at a time, as the rows of a prompt. Attention has neither mask nor cache: every patch sees all. What a tile of
   queries does with keys is two small products, and both have their operands so that registers run along memory: keys are stored transposed, in blocks of
   VISION_KEYS that stay in L1, [dimension][key], values as they are, [key][dimension]. Weights of a block are e^(score - the largest so far), as in
   layers/spans.c.

   A stage goes in slices of some 50 ms on two processors, and asks before each of them whether to go on: others may compute then.

   Bits depend on the image alone: what a tile computes does not depend on who computes it, nor on the slices. */

enum {
    VISION_ROWS = 256,           /* patches of a product, a multiple of VISION_JOINED */
    VISION_KEYS = 64,            /* of a block */
    VISION_QUERIES = 6,          /* whose sums are in registers together */
    VISION_TILE = 8 * VISION_QUERIES,                       /* queries of a head that a thread takes */
    VISION_SLICE = 1 << 30       /* multiplications of a thread in a slice of attention */
};

/* An image on its way, and the memory for it. */
typedef struct vision_job {
    pool *threads;
    const vision_weights *w;
    int rows, columns, n;        /* of patches; n = rows * columns */
    const float *patches;        /* [n][VISION_PIXELS] */
    float *x;                    /* [n][hidden] */
    float *q;                    /* [n][hidden] queries times 1 / sqrt(head_dim); a tile's place becomes its o */
    float *k;                    /* [heads][blocks][head_dim][VISION_KEYS] */
    float *v;                    /* [heads][blocks][VISION_KEYS][vision_value_size] */
    float *u, *t;                /* [VISION_ROWS][hidden], [VISION_ROWS][vision_widest] */
    float *turns;                /* [rows or columns][head_dim / 4][cos, sin] */
    token_limbs *limbs;
    int (*pause)(void *user, double done);                  /* between two slices: nothing runs. Nonzero: the stages shall end */
    void *user;
    int stage, ended;            /* which stage of vision_stages it is; pause() wanted the end: the stages that are left do nothing */
    /* Of the products' rows that are computed: */
    int first, count;
    const vision_block *block;
} vision_job;

/* Numbers of a row that is computed from u. */
static int vision_widest(const vision_shape *s) {
    return max_int(3 * s->hidden, s->size);
}

/* Numbers that a value has, whole registers. */
static int vision_value_size(const vision_shape *s) {
    return (vision_head_dim(s) + 15) / 16 * 16;
}

static int vision_key_blocks(int n) {
    return (n - 1) / VISION_KEYS + 1;
}

/* Lays out the memory for an image of up to n patches. */
static void vision_layout(layout *l, const vision_shape *s, int n, vision_job *to) {
    const size_t keys = (size_t)vision_key_blocks(n) * VISION_KEYS * (size_t)s->heads, rows = VISION_ROWS;
    to->x = layout_alloc(l, (size_t)n * (size_t)s->hidden);
    to->q = layout_alloc(l, (size_t)n * (size_t)s->hidden);
    to->k = layout_alloc(l, keys * (size_t)vision_head_dim(s));
    to->v = layout_alloc(l, keys * (size_t)vision_value_size(s));
    to->u = layout_alloc(l, rows * (size_t)s->hidden);
    to->t = layout_alloc(l, rows * (size_t)vision_widest(s));
    to->turns = layout_alloc(l, (size_t)(n / VISION_MERGE) * (size_t)vision_head_dim(s) / 2);
    to->limbs = limbs_alloc(l, rows, max_int(VISION_PIXELS, max_int(VISION_JOINED * s->hidden, s->size)));
}

/* ---- Rows --------------------------------------------------------------------------------------------------------------- */

INLINE float sum_sixteen(float *sum) {
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
}

/* to = norm(x); to may be x. */
SIMD static void vision_norm_row(float *to, const float *x, const vision_norm *w, int n) {
    float sum[16] = {0}, square[16] = {0};
    for (int i = 0; i < n; i += 16)
        for (int l = 0; l < min_int(16, n - i); l++) sum[l] += x[i + l];
    const float mean = sum_sixteen(sum) / (float)n;
    for (int i = 0; i < n; i += 16)
        for (int l = 0; l < min_int(16, n - i); l++) square[l] += (x[i + l] - mean) * (x[i + l] - mean);
    const float factor = 1 / sqrtf(sum_sixteen(square) / (float)n + (float)VISION_EPS);
    for (int i = 0; i < n; i++) to[i] = (x[i] - mean) * factor * w->weight[i] + w->bias[i];
}

/* GELU of n numbers in place, as gelu has it, of which sigmoid(z) = e / (1 + e) or 1 / (1 + e) with e = e^-|z|. */
SIMD static void vision_gelu_row(float *x, int n) {
    for (int i = 0; i < n; i++) {
        const float z = 1.59576912f * (x[i] + 0.044715f * x[i] * x[i] * x[i]), e = exp_below(z < 0 ? z : -z);
        x[i] *= (z < 0 ? e : 1) / (1 + e);
    }
}

static void vision_norm_first(void *context, int begin, int end, int thread) {
    const vision_job *j = (const vision_job *)context;
    const size_t n = (size_t)j->w->shape.hidden;
    (void)thread;
    for (int i = begin; i < end; i++) vision_norm_row(j->u + (size_t)i * n, j->x + (size_t)(j->first + i) * n, &j->block->norm1, (int)n);
}

static void vision_norm_second(void *context, int begin, int end, int thread) {
    const vision_job *j = (const vision_job *)context;
    const size_t n = (size_t)j->w->shape.hidden;
    (void)thread;
    for (int i = begin; i < end; i++) vision_norm_row(j->u + (size_t)i * n, j->x + (size_t)(j->first + i) * n, &j->block->norm2, (int)n);
}

static void vision_norm_last(void *context, int begin, int end, int thread) {
    const vision_job *j = (const vision_job *)context;
    const size_t n = (size_t)j->w->shape.hidden;
    (void)thread;
    for (int i = begin; i < end; i++) vision_norm_row(j->u + (size_t)i * n, j->x + (size_t)(j->first + i) * n, &j->w->norm, (int)n);
}

static void vision_gelu(void *context, int begin, int end, int thread) {
    const vision_job *j = (const vision_job *)context;
    const int n = j->w->shape.size;
    (void)thread;
    for (int i = begin; i < end; i++) vision_gelu_row(j->t + (size_t)i * (size_t)n, n);
}

/* x (1 + erf(x / sqrt(2))) / 2 of a joined row. */
static void vision_gelu_joined(void *context, int begin, int end, int thread) {
    const vision_job *j = (const vision_job *)context;
    const size_t n = (size_t)(VISION_JOINED * j->w->shape.hidden);
    (void)thread;
    for (size_t i = (size_t)begin * n; i < (size_t)end * n; i++) j->t[i] *= 0.5f * (1 + erff(j->t[i] * 0.707106781f));
}

/* x = what the embeddings of positions say of the patch's place. */
static void vision_position(void *context, int begin, int end, int thread) {
    const vision_job *j = (const vision_job *)context;
    const size_t side = (size_t)j->w->shape.side, hidden = (size_t)j->w->shape.hidden;
    (void)thread;
    for (int p = begin; p < end; p++) {
        int row, column, r, c;
        double by_row, by_column;
        vision_place(p, j->columns, &row, &column);
        vision_between(row, j->rows, (int)side, &r, &by_row);
        vision_between(column, j->columns, (int)side, &c, &by_column);
        const size_t below = r + 1 < (int)side ? side * hidden : 0, beside = c + 1 < (int)side ? hidden : 0;
        const float *at = j->w->positions + ((size_t)r * side + (size_t)c) * hidden;
        const float a = (float)((1 - by_row) * (1 - by_column)), b = (float)((1 - by_row) * by_column), d = (float)(by_row * (1 - by_column)),
                    e = (float)(by_row * by_column);
        float *x = j->x + (size_t)p * hidden;
        for (size_t i = 0; i < hidden; i++) x[i] = a * at[i] + b * at[beside + i] + d * at[below + i] + e * at[below + beside + i];
    }
}

/* ---- Attention ----------------------------------------------------------------------------------------------------------- */

/* The cos and sin of all rows and columns. */
static void vision_turns(const vision_job *j) {
    const int each = vision_head_dim(&j->w->shape) / 4;
    for (int i = 0; i < each; i++) {
        const double frequency = pow((double)j->w->shape.theta, -(double)i / each);
        for (int p = 0; p < max_int(j->rows, j->columns); p++) {
            float *to = j->turns + 2 * ((size_t)p * (size_t)each + (size_t)i);
            to[0] = (float)cos(p * frequency);
            to[1] = (float)sin(p * frequency);
        }
    }
}

/* A head's query or key in place: its first quarter and its third by the row, the others by the column. */
static void vision_rotate(float *x, int each, const float *row, const float *column) {
    for (int i = 0; i < 2 * each; i++) {
        const float *turn = i < each ? row + 2 * i : column + 2 * (i - each), a = x[i], b = x[2 * each + i];
        x[i] = a * turn[0] - b * turn[1];
        x[2 * each + i] = b * turn[0] + a * turn[1];
    }
}

/* Puts rows of queries, keys and values where attention has them. */
static void vision_place_heads(void *context, int begin, int end, int thread) {
    const vision_job *j = (const vision_job *)context;
    const vision_shape *s = &j->w->shape;
    const int d = vision_head_dim(s), each = d / 4, blocks = vision_key_blocks(j->n), v_size = vision_value_size(s);
    const float scale = 1 / sqrtf((float)d);
    (void)thread;
    for (int i = begin; i < end; i++) {
        const int p = j->first + i, block = p / VISION_KEYS, key = p % VISION_KEYS;
        float *q = j->t + (size_t)i * 3 * (size_t)s->hidden, *to = j->q + (size_t)p * (size_t)s->hidden;
        int row, column;
        vision_place(p, j->columns, &row, &column);
        for (int h = 0; h < s->heads; h++) {
            float *k = q + s->hidden + h * d;
            const float *v = k + s->hidden;
            const size_t at = (size_t)h * (size_t)blocks + (size_t)block;
            float *k_to = j->k + at * (size_t)(d * VISION_KEYS) + key, *v_to = j->v + (at * VISION_KEYS + (size_t)key) * (size_t)v_size;
            vision_rotate(q + h * d, each, j->turns + 2 * (size_t)row * (size_t)each, j->turns + 2 * (size_t)column * (size_t)each);
            vision_rotate(k, each, j->turns + 2 * (size_t)row * (size_t)each, j->turns + 2 * (size_t)column * (size_t)each);
            for (int c = 0; c < d; c++) to[h * d + c] = q[h * d + c] * scale;
            for (int c = 0; c < d; c++) k_to[c * VISION_KEYS] = k[c];
            for (int c = 0; c < v_size; c++) v_to[c] = c < d ? v[c] : 0;
        }
    }
}

/* score[m][0..VISION_KEYS) = q[m] . k of VISION_QUERIES queries and a block of keys. */
INLINE void vision_scores(const float (*q)[VISION_HEAD_MAX], const float *k, int d, float (*score)[VISION_KEYS]) {
    for (int c = 0; c < VISION_KEYS; c += 32) {
        lanes sum[VISION_QUERIES][2];
        memset(sum, 0, sizeof sum);
        for (int i = 0; i < d; i++) {
            const lanes low = *(const lanes *)(k + i * VISION_KEYS + c), high = *(const lanes *)(k + i * VISION_KEYS + c + 16);
            for (int m = 0; m < VISION_QUERIES; m++) {
                sum[m][0] += q[m][i] * low;
                sum[m][1] += q[m][i] * high;
            }
        }
        for (int m = 0; m < VISION_QUERIES; m++) {
            *(lanes *)(score[m] + c) = sum[m][0];
            *(lanes *)(score[m] + c + 16) = sum[m][1];
        }
    }
}

/* o[m] = o[m] rescale[m] + weight[m] v of a block, `wide` * 16 columns of it. wide is a constant. */
INLINE void vision_values(float (*o)[VISION_HEAD_MAX], const float *rescale, const float (*weight)[VISION_KEYS], const float *v, int size, int c,
                          const int wide) {
    lanes sum[VISION_QUERIES][2];
    for (int m = 0; m < VISION_QUERIES; m++)
        for (int l = 0; l < wide; l++) sum[m][l] = *(const lanes *)(o[m] + c + 16 * l) * rescale[m];
    for (int i = 0; i < VISION_KEYS; i++)
        for (int l = 0; l < wide; l++) {
            const lanes value = *(const lanes *)(v + i * size + c + 16 * l);
            for (int m = 0; m < VISION_QUERIES; m++) sum[m][l] += weight[m][i] * value;
        }
    for (int m = 0; m < VISION_QUERIES; m++)
        for (int l = 0; l < wide; l++) *(lanes *)(o[m] + c + 16 * l) = sum[m][l];
}

/* weight[0..VISION_KEYS) from scores, of which the first n are of patches; *top and *sum go on, and what was summed up before is to be multiplied
   with what is returned. */
INLINE float vision_weigh(float *weight, int n, float *top, float *sum) {
    const float before = *top, sum_before = *sum;
    float most;
    *sum = span_softmax(weight, n, &most);
    for (int i = (n + 15) / 16 * 16; i < VISION_KEYS; i++) weight[i] = 0;
    if (most <= before) {
        const float less = exp_below(most - before);
        for (int i = 0; i < VISION_KEYS; i++) weight[i] *= less;
        *sum = sum_before + *sum * less;
        return 1;
    }
    const float rescale = exp_below(before - most);
    *top = most;
    *sum += sum_before * rescale;
    return rescale;
}

/* o of a tile of queries q[VISION_TILE] of a head over all n patches, whose blocks of keys and values these are. */
SIMD static void vision_attend_tile(const vision_shape *s, int n, const float (*q)[VISION_HEAD_MAX], const float *k, const float *v,
                                    float (*o)[VISION_HEAD_MAX]) {
    const int d = vision_head_dim(s), v_size = vision_value_size(s);
    float top[VISION_TILE], sum[VISION_TILE];
    for (int m = 0; m < VISION_TILE; m++) top[m] = -INFINITY, sum[m] = 0;
    for (int first = 0; first < n; first += VISION_KEYS, k += d * VISION_KEYS, v += v_size * VISION_KEYS)
        for (int m = 0; m < VISION_TILE; m += VISION_QUERIES) {
            float score[VISION_QUERIES][VISION_KEYS] __attribute__((aligned(64))), rescale[VISION_QUERIES];
            int c = 0;
            vision_scores(q + m, k, d, score);
            for (int i = 0; i < VISION_QUERIES; i++) rescale[i] = vision_weigh(score[i], min_int(n - first, VISION_KEYS), &top[m + i], &sum[m + i]);
            for (; c + 32 <= v_size; c += 32) vision_values(o + m, rescale, (const float (*)[VISION_KEYS])score, v, v_size, c, 2);
            if (c < v_size) vision_values(o + m, rescale, (const float (*)[VISION_KEYS])score, v, v_size, c, 1);
        }
    for (int m = 0; m < VISION_TILE; m++)
        for (int c = 0; c < d; c++) o[m][c] /= sum[m];
}

/* For items (head, tile of queries) from j->first on. Queries after the last are copies of it. */
static void vision_attend(void *context, int begin, int end, int thread) {
    const vision_job *j = (const vision_job *)context;
    const vision_shape *s = &j->w->shape;
    const int d = vision_head_dim(s), tiles = (j->n - 1) / VISION_TILE + 1;
    const size_t blocks = (size_t)vision_key_blocks(j->n) * VISION_KEYS;
    float q[VISION_TILE][VISION_HEAD_MAX] __attribute__((aligned(64))), o[VISION_TILE][VISION_HEAD_MAX] __attribute__((aligned(64)));
    (void)thread;
    for (int item = j->first + begin; item < j->first + end; item++) {
        const int h = item / tiles, first = item % tiles * VISION_TILE;
        float *at = j->q + (size_t)first * (size_t)s->hidden + h * d;
        for (int m = 0; m < VISION_TILE; m++)
            memcpy(q[m], at + (size_t)min_int(m, j->n - 1 - first) * (size_t)s->hidden, (size_t)d * sizeof(float));
        memset(o, 0, sizeof o);
        vision_attend_tile(s, j->n, (const float (*)[VISION_HEAD_MAX])q, j->k + (size_t)h * blocks * (size_t)d,
                           j->v + (size_t)h * blocks * (size_t)vision_value_size(s), o);
        for (int m = 0; m < VISION_TILE && first + m < j->n; m++) memcpy(at + (size_t)m * (size_t)s->hidden, o[m], (size_t)d * sizeof(float));
    }
}

/* ---- The tower ----------------------------------------------------------------------------------------------------------- */

/* The embedding; queries, keys and values, attention, its projection and the MLP of each block; the merger. */
static int vision_stages(const vision_shape *s) {
    return 1 + 4 * s->depth + 1;
}

/* Before a slice of the stage, of which a part is done: whether to go on. */
static int vision_goes_on(vision_job *j, double part) {
    if (!j->ended) j->ended = j->pause(j->user, (j->stage + part) / vision_stages(&j->w->shape)) != 0;
    return !j->ended;
}

/* The next VISION_ROWS patches from j->first + j->count on; 0: there are none. */
static int vision_next_rows(vision_job *j) {
    j->first += j->count;
    j->count = min_int(VISION_ROWS, j->n - j->first);
    return j->count && vision_goes_on(j, (double)j->first / j->n);
}

static void vision_begin(vision_job *j, int stage) {
    j->stage = stage;
    j->first = j->count = 0;
}

/* x of all patches before the first block. */
static void vision_embed(vision_job *j) {
    const size_t hidden = (size_t)j->w->shape.hidden;
    j->n = j->rows * j->columns;
    j->ended = 0;
    vision_begin(j, 0);
    vision_turns(j);
    parallel(j->threads, j->n, vision_position, j);
    while (vision_next_rows(j))
        linear(j->threads, &j->w->patches, j->patches + (size_t)j->first * VISION_PIXELS, j->x + (size_t)j->first * hidden, j->count, 1, j->limbs);
}

/* Values after the last of an image: weights of 0 make nothing of them. */
static void vision_end_values(const vision_job *j) {
    const size_t size = (size_t)vision_value_size(&j->w->shape), blocks = (size_t)vision_key_blocks(j->n) * VISION_KEYS, n = (size_t)j->n;
    for (size_t h = 0; h < (size_t)j->w->shape.heads; h++) memset(j->v + (h * blocks + n) * size, 0, (blocks - n) * size * sizeof(float));
}

/* The outputs of attention in place of the queries. */
static void vision_attend_all(vision_job *j) {
    const vision_shape *s = &j->w->shape;
    const int items = s->heads * ((j->n - 1) / VISION_TILE + 1);
    const size_t each = 2 * (size_t)j->n * VISION_TILE * (size_t)vision_head_dim(s);
    const int together = j->threads->threads * (int)(VISION_SLICE / each + 1);
    vision_end_values(j);
    for (j->first = 0; j->first < items && vision_goes_on(j, (double)j->first / items); j->first += together)
        parallel(j->threads, min_int(together, items - j->first), vision_attend, j);
}

/* x += proj attention(norm1(x)) of block i. */
static void vision_attention(vision_job *j, int i) {
    const vision_block *b = &j->w->blocks[i];
    const size_t hidden = (size_t)j->w->shape.hidden;
    j->block = b;
    vision_begin(j, 1 + 4 * i);
    while (vision_next_rows(j)) {
        parallel(j->threads, j->count, vision_norm_first, j);
        linear(j->threads, &b->qkv, j->u, j->t, j->count, 0, j->limbs);
        parallel(j->threads, j->count, vision_place_heads, j);
    }
    vision_begin(j, 2 + 4 * i);
    vision_attend_all(j);
    vision_begin(j, 3 + 4 * i);
    while (vision_next_rows(j))
        linear(j->threads, &b->proj, j->q + (size_t)j->first * hidden, j->x + (size_t)j->first * hidden, j->count, 1, j->limbs);
}

/* x += fc2 GELU(fc1 norm2(x)) of block i. */
static void vision_mlp(vision_job *j, int i) {
    const vision_block *b = &j->w->blocks[i];
    const size_t hidden = (size_t)j->w->shape.hidden;
    j->block = b;
    vision_begin(j, 4 + 4 * i);
    while (vision_next_rows(j)) {
        parallel(j->threads, j->count, vision_norm_second, j);
        linear(j->threads, &b->fc1, j->u, j->t, j->count, 0, j->limbs);
        parallel(j->threads, j->count, vision_gelu, j);
        linear(j->threads, &b->fc2, j->t, j->x + (size_t)j->first * hidden, j->count, 1, j->limbs);
    }
}

/* features[n / 4][out] */
static void vision_join(vision_job *j, float *features) {
    const vision_weights *w = j->w;
    vision_begin(j, 1 + 4 * w->shape.depth);
    while (vision_next_rows(j)) {
        const int count = j->count / VISION_JOINED;
        parallel(j->threads, j->count, vision_norm_last, j);
        linear(j->threads, &w->fc1, j->u, j->t, count, 0, j->limbs);
        parallel(j->threads, count, vision_gelu_joined, j);
        linear(j->threads, &w->fc2, j->t, features + (size_t)(j->first / VISION_JOINED) * (size_t)w->shape.out, count, 0, j->limbs);
    }
}
