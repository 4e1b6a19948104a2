/* layers/attention.c: the stages of a gated attention layer: the definition. Knows matrices, threads and KV rows, no session.

   Grouped-query attention. q_proj yields for every head a query and an output gate, [q | gate]; query and key heads are
   normalised and the first rotary_dim dimensions rotated by position; softmax runs over the tokens up to the row's own;
   the result is multiplied by sigmoid(gate). The KV cache holds k after norm and rotation, and v as projected, both
   rounded to its type when they are appended: a row of the present block is used as rounded, too. */

typedef struct attention_shape {
    int hidden, heads, kv_heads, head_dim, rotary_dim;
    float eps, theta;            /* theta: base of the rotary frequencies */
} attention_shape;

typedef struct attention_weights {
    const float *input_norm;                       /* [hidden] */
    matrix q_proj, k_proj, v_proj, o_proj;
    const float *q_norm, *k_norm;                  /* [head_dim] */
    const float *k_scale, *v_scale;                /* [1] what a code 1 of an FP8 cache is worth; NULL: 1 */
} attention_weights;

typedef struct attention_state { void *k, *v; } attention_state;       /* KV cache [context][kv_heads][head_dim] */

typedef struct attention_job {
    const attention_shape *shape;
    const attention_weights *w;
    int T, position;             /* rows of this block, position of the first */
    float *angles;               /* [T][rotary_dim] */
    float *qg;                   /* [T][heads][2][head_dim] */
    int kv_only;                 /* only KV rows are wanted, there is no qg */
    float *k_new;                /* [T][kv_heads][head_dim] */
    float *v_new;                /* the same shape */
    dtype kv;                    /* type of the KV cache: F32, BF16 or FP8 */
    void *k, *v;                 /* of the state */
    float *scores;               /* [threads][context] */
    int context;
    float *o;                    /* [T][heads][head_dim] */
} attention_job;

/* To the nearest BF16, ties to even; beyond the largest to infinity, any NaN to 0x7fff. */
static inline uint16_t bf16_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* To the nearest E4M3, ties to even; beyond 448 to 448, any NaN to 0x7f. Below 2^-6 codes count units of 2^-9: that is
   the last bit of a float next to 2^14, so adding 2^14 rounds. Above, the float's exponent and first three bits of its
   mantissa are the code, 120 exponents too large. */
static inline uint8_t fp8_of_float(float f) {
    uint32_t bits, size, code;
    memcpy(&bits, &f, 4);
    size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7f;
    if (size < 0x3c800000) {
        f = fabsf(f) + 0x1p14f;
        memcpy(&code, &f, 4);
        code -= 0x46800000;
    } else {
        code = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
        if (code > 0x7e) code = 0x7e;
    }
    return (uint8_t)(code | (bits >> 24 & 0x80));
}

/* Here the NaN codes are NaN: unlike weights, keys and values are not checked before they are used. */
static inline float float_of_fp8(uint8_t code) {
    float value = fp8_bits(code) * FP8_UNIT;
    return fabsf(value) > 448.0f ? NAN : value;
}

static size_t kv_size(dtype type) {
    return type == DTYPE_F32 ? 4 : type == DTYPE_BF16 ? 2 : 1;
}

/* Elements at.. of a KV cache = n floats. */
static void kv_store(dtype type, void *cache, size_t at, const float *from, size_t n) {
    uint16_t *half = (uint16_t *)cache + at;
    uint8_t *code = (uint8_t *)cache + at;
    if (type == DTYPE_F32) memcpy((float *)cache + at, from, n * sizeof *from);
    for (size_t i = 0; type == DTYPE_BF16 && i < n; i++) half[i] = bf16_of_float(from[i]);
    for (size_t i = 0; type == DTYPE_FP8 && i < n; i++) code[i] = fp8_of_float(from[i]);
}

/* The floats of n elements at.. of a KV cache: where they lie or, decoded, in `to`. */
INLINE const float *kv_floats(const void *cache, size_t at, int n, float *__restrict to, const dtype type) {
    const uint16_t *__restrict half = (const uint16_t *)cache + at;
    const uint8_t *__restrict code = (const uint8_t *)cache + at;
    if (type == DTYPE_F32) return (const float *)cache + at;
    if (type == DTYPE_BF16)
        for (int i = 0; i < n; i++) to[i] = float_of_bf16(half[i]);
    else
        for (int i = 0; i < n; i++) to[i] = float_of_fp8(code[i]);
    return to;
}

/* norm_qkv: u = rms(x)(1 + input_norm); q | gate (unless qg is NULL), k, v = projections of u. */
static void stage_norm_qkv(pool *p, const attention_shape *s, const attention_weights *w, const float *x, int T,
                           float *u, float *qg, float *k, float *v) {
    projection job;
    memset(&job, 0, sizeof job);
    rms_norm(u, x, w->input_norm, T, s->hidden, s->eps);
    job.w[0] = &w->k_proj;
    job.w[1] = &w->v_proj;
    job.w[2] = &w->q_proj;
    job.y[0] = k;
    job.y[1] = v;
    job.y[2] = qg;
    job.count = qg ? 3 : 2;
    job.x = u;
    job.T = T;
    project(p, &job);
}

/* What a number of the cache is worth. */
static float kv_unit(const attention_job *job, const float *scale) {
    return job->kv == DTYPE_FP8 && scale ? *scale : 1;
}

/* The n numbers of a row into the cache, in units of `unit`. */
static void attention_append(const attention_job *job, void *cache, size_t at, float *row, size_t n, float unit) {
    for (size_t i = 0; unit != 1 && i < n; i++) row[i] /= unit;
    kv_store(job->kv, cache, at, row, n);
}

/* Norm and rotation of the queries and keys in place, and keys and values into the cache, for rows begin..end-1. */
static void attention_prepare(void *context, int begin, int end, int thread) {
    const attention_job *job = (const attention_job *)context;
    const attention_shape *s = job->shape;
    size_t d = (size_t)s->head_dim, kv = (size_t)s->kv_heads * d;
    (void)thread;
    for (int t = begin; t < end; t++) {
        const float *angles = job->angles + (size_t)t * (size_t)s->rotary_dim;
        for (int h = 0; !job->kv_only && h < s->heads; h++) {
            float *q = job->qg + ((size_t)t * (size_t)s->heads + (size_t)h) * 2 * d;
            rms_norm(q, q, job->w->q_norm, 1, s->head_dim, s->eps);
            rotate(q, angles, s->rotary_dim);
        }
        float *k = job->k_new + (size_t)t * kv;
        for (int h = 0; h < s->kv_heads; h++) {
            rms_norm(k + (size_t)h * d, k + (size_t)h * d, job->w->k_norm, 1, s->head_dim, s->eps);
            rotate(k + (size_t)h * d, angles, s->rotary_dim);
        }
        const size_t at = (size_t)(job->position + t) * kv;
        attention_append(job, job->k, at, k, kv, kv_unit(job, job->w->k_scale));
        attention_append(job, job->v, at, job->v_new + (size_t)t * kv, kv, kv_unit(job, job->w->v_scale));
    }
}

/* q . k for the key at element `at` of the cache; the same bits for any type that holds the same values. */
INLINE float attention_score(const attention_job *job, const float *q, size_t at, const dtype type) {
    float piece[TILE] __attribute__((aligned(64)));
    partial sum;
    int d = job->shape->head_dim, col = 0;
    if (type == DTYPE_F32) return dot(q, (const float *)job->k + at, d);
    memset(&sum, 0, sizeof sum);
    for (; col + TILE <= d; col += TILE)
        add_products(&sum, kv_floats(job->k, at + (size_t)col, TILE, piece, type), &q, col, TILE, 1);
    const float *last = kv_floats(job->k, at + (size_t)col, d - col, piece, type);
    add_products(&sum, last, &q, col, d - col, 1);
    return add_tail(sum_lanes(&sum), last, q + col, d - col);
}

/* o += weight * the value at element `at` of the cache. */
INLINE void attention_add(const attention_job *job, float *o, float weight, size_t at, const dtype type) {
    float piece[TILE] __attribute__((aligned(64)));
    int d = job->shape->head_dim, width = type == DTYPE_F32 ? d : TILE;
    for (int col = 0; col < d; col += width) {
        int n = d - col < width ? d - col : width;
        const float *v = kv_floats(job->v, at + (size_t)col, n, piece, type);
        for (int j = 0; j < n; j++) o[col + j] += weight * v[j];
    }
}

INLINE void attention_item(const attention_job *job, int item, float *score, const dtype type) {
    const attention_shape *s = job->shape;
    int d = s->head_dim, t = item / s->heads, h = item % s->heads, length = job->position + t + 1;
    size_t kv = (size_t)s->kv_heads * (size_t)d, group = (size_t)(h / (s->heads / s->kv_heads)) * (size_t)d;
    const float *q = job->qg + (size_t)item * 2 * (size_t)d, *gate = q + d;
    float *o = job->o + (size_t)item * (size_t)d, top = -INFINITY, sum = 0;
    const float scale = 1.0f / sqrtf((float)d) * kv_unit(job, job->w->k_scale), unit = kv_unit(job, job->w->v_scale);
    for (int i = 0; i < length; i++) {
        score[i] = attention_score(job, q, (size_t)i * kv + group, type) * scale;
        if (score[i] > top) top = score[i];
    }
    for (int i = 0; i < d; i++) o[i] = 0;
    for (int i = 0; i < length; i++) {
        float weight = expf(score[i] - top);
        sum += weight;
        attention_add(job, o, weight, (size_t)i * kv + group, type);
    }
    for (int i = 0; i < d; i++) o[i] = o[i] / sum * unit * sigmoid(gate[i]);
}

/* o = sigmoid(gate) * sum over p of softmax(q . k[p] / sqrt(head_dim)) v[p], for items (row, head). */
SIMD static void attention_heads(void *context, int begin, int end, int thread) {
    const attention_job *job = (const attention_job *)context;
    float *score = job->scores + (size_t)thread * (size_t)job->context;
    for (int item = begin; item < end; item++) {
        if (job->kv == DTYPE_F32) attention_item(job, item, score, DTYPE_F32);
        else if (job->kv == DTYPE_BF16) attention_item(job, item, score, DTYPE_BF16);
        else attention_item(job, item, score, DTYPE_FP8);
    }
}

/* rope_attend: norms, rotation, KV append, attention, gate. Fills job->o. */
static void stage_rope_attend(pool *p, attention_job *job) {
    parallel(p, job->T, attention_prepare, job);
    parallel(p, job->T * job->shape->heads, attention_heads, job);
}

/* out: x += o_proj o. */
static void stage_out(pool *p, attention_job *job, float *x) {
    linear(p, &job->w->o_proj, job->o, x, job->T, 1);
}

/* What layers/kinds.c asks of a kind. */

enum { attention_rollback = ROLLBACK_TRUNCATE };

/* Bytes of the keys, or the values, of one token. */
static size_t attention_row_bytes(const attention_shape *s, dtype kv) {
    return (size_t)(s->kv_heads * s->head_dim) * kv_size(kv);
}

static void attention_lay_state(layout *l, const attention_shape *s, const capacity *r, attention_state *to) {
    size_t bytes = (size_t)r->context * attention_row_bytes(s, r->kv), floats = (bytes + sizeof(float) - 1) / sizeof(float);
    to->k = layout_alloc(l, floats);
    to->v = layout_alloc(l, floats);
}

static void attention_lay_job(layout *l, const attention_shape *s, const capacity *r, attention_job *to) {
    size_t T = (size_t)r->rows, d = (size_t)s->head_dim;
    to->shape = s;
    to->kv = r->kv;
    to->context = r->context;
    to->angles = layout_alloc(l, T * (size_t)s->rotary_dim + 1);
    to->qg = layout_alloc(l, T * 2 * (size_t)s->heads * d);
    to->k_new = layout_alloc(l, T * (size_t)s->kv_heads * d);
    to->v_new = layout_alloc(l, T * (size_t)s->kv_heads * d);
    to->o = layout_alloc(l, T * (size_t)s->heads * d);
    to->scores = layout_alloc(l, (size_t)r->threads * (size_t)r->context);
}

static void attention_forward(const token_rows *rows, const attention_weights *w, attention_job *job,
                              const attention_state *state) {
    job->w = w;
    job->T = rows->T;
    job->position = rows->position;
    job->kv_only = rows->state_only;
    job->k = state->k;
    job->v = state->v;
    rotary_angles(job->angles, rows->position, rows->T, job->shape->rotary_dim, job->shape->theta);
    stage_norm_qkv(rows->threads, job->shape, w, rows->x, rows->T, rows->u, job->kv_only ? NULL : job->qg, job->k_new,
                   job->v_new);
    if (job->kv_only) {
        parallel(rows->threads, rows->T, attention_prepare, job);
        return;
    }
    stage_rope_attend(rows->threads, job);
    stage_out(rows->threads, job, rows->x);
}

static int attention_pieces(const attention_shape *s, const capacity *r, const attention_state *state, state_piece *to) {
    to[0] = state_piece_of("keys", state->k, attention_row_bytes(s, r->kv), 1);
    to[1] = state_piece_of("values", state->v, attention_row_bytes(s, r->kv), 1);
    return 2;
}

static uint64_t attention_bytes(const attention_shape *s, const attention_weights *w, enum stage stage,
                                const reading *of) {
    if (stage == STAGE_QKV) return matrix_bytes(&w->q_proj) + matrix_bytes(&w->k_proj) + matrix_bytes(&w->v_proj);
    if (stage == STAGE_ATTEND) return 2 * (uint64_t)of->length * attention_row_bytes(s, of->kv);
    return stage == STAGE_O_PROJ ? matrix_bytes(&w->o_proj) : 0;
}

/* As deltanet_operations. Of attention: q . k and the weighted sum of v. */
static inline double attention_operations(const attention_shape *s, const attention_weights *w, enum stage stage, double rows,
                                          double position) {
    if (stage == STAGE_QKV)
        return rows * (matrix_operations(&w->q_proj) + matrix_operations(&w->k_proj) + matrix_operations(&w->v_proj));
    if (stage == STAGE_ATTEND) return 4.0 * s->heads * s->head_dim * rows * (position + (rows + 1) / 2);
    return stage == STAGE_O_PROJ ? rows * matrix_operations(&w->o_proj) : 0;
}

static named_size *attention_sizes(const attention_shape *s, named_size *to) {
    to = size_is(to, "heads", s->heads);
    to = size_is(to, "kv_heads", s->kv_heads);
    to = size_is(to, "head_dim", s->head_dim);
    return size_is(to, "rotary_dim", s->rotary_dim);
}
