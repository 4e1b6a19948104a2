/* layers/mla/cpu.c: the stages of multi-head latent attention on the CPU, in the absorbed form. Knows matrices, threads and rows of a cache, no
   session.

   The cache holds a row of a token: its latent c after the norm, and the rotated part r of a key, rounded to the cache's type when they are
   appended. Keys and values are never made of it. A query becomes one of latents, and what comes out, a mixture of latents, becomes a value:

       l = [k_b_proj^T q, t];   m = sum over tokens p of softmax(l . [c, r][p] scale) c[p];   o = v_b_proj m         of each head

   So all heads read the same rows, of which the values are the first part. All rows of a prompt are computed so, too: their bits do not
   depend on how many there are. */

typedef struct mla_state { void *latents; } mla_state;       /* [context][kv_rank + rope_dim] */

typedef struct mla_job {
    const mla_shape *shape;
    const mla_weights *w;
    int T, index;                /* rows of this block, or of all blocks; index of the first */
    int kv_only;                 /* only rows of the cache are wanted, there are no queries */
    float *angles;               /* [T][rope_dim] */
    float *a;                    /* [T][q_rank] */
    float *q;                    /* [T][heads][nope_dim + rope_dim] */
    float *c_new;                /* [T][kv_rank + rope_dim] rows for the cache */
    float *l;                    /* [T][heads][kv_rank + rope_dim] queries of latents */
    float *parts;                /* mla_part_count() of layers/spans.c's parts */
    float *m;                    /* [T][heads] parts, and in the end mixtures */
    float *o;                    /* [T][heads][value_dim] */
    dtype kv;                    /* type of the cache: F32, BF16 or FP8 */
    void *latents;               /* of the state */
    int span_first, span_end;    /* spans whose parts are made at once */
    int first, count;            /* rows that become values at once */
    token_limbs *limbs;          /* of u, a and o */
    token_limbs *head_limbs;     /* of mixtures */
} mla_job;

/* Spans of a row whose parts are kept until they are joined: 16,384 tokens. */
enum { MLA_SPANS = 64 };

/* Floats of a part. */
static size_t mla_part_size(const mla_shape *s) {
    return (size_t)s->kv_rank + PART_EXTRA;
}

/* Parts of a job: of the spans of a few rows, or a few heads' for each thread. */
static size_t mla_part_count(const mla_shape *s, const capacity *r) {
    const size_t spans = (size_t)min_int((r->context - 1) / SPAN + 1, MLA_SPANS), rows = (size_t)min_int(r->rows, MOTE_ROWS_MAX);
    return max_size(rows * (size_t)s->heads * spans, (size_t)r->threads * SPAN_QUERIES);
}

/* ---- Queries and latents ---- */

/* Norms of the latents of rows begin..end-1. */
static void mla_norms(void *context, int begin, int end, int thread) {
    const mla_job *job = (const mla_job *)context;
    const mla_shape *s = job->shape;
    (void)thread;
    for (int t = begin; t < end; t++) {
        float *c = job->c_new + (size_t)t * (size_t)mla_row_size(s), *a = job->a + (size_t)t * (size_t)s->q_rank;
        rms_norm(c, c, job->w->kv_norm, 1, s->kv_rank, s->eps);
        if (s->q_rank && !job->kv_only) rms_norm(a, a, job->w->q_norm, 1, s->q_rank, s->eps);
    }
}

/* Items: a head's next TILE columns of k_b_proj. What is not rotated of its queries becomes so many numbers of queries of latents. */
static void mla_absorb(void *context, int begin, int end, int thread) {
    const mla_job *job = (const mla_job *)context;
    const mla_shape *s = job->shape;
    const int tiles = (s->kv_rank - 1) / TILE + 1;
    (void)thread;
    for (int item = begin; item < end; item++) {
        const int h = item / tiles, col = item % tiles * TILE;
        const transposed_rows to = {.x = job->q + h * mla_key_dim(s), .y = job->l + (size_t)h * (size_t)mla_row_size(s) + col,
                                    .x_stride = (size_t)s->heads * (size_t)mla_key_dim(s), .y_stride = (size_t)s->heads * (size_t)mla_row_size(s),
                                    .T = job->T};
        matrix_transposed_dots(&job->w->k_b_proj, h * s->nope_dim, s->nope_dim, col, min_int(s->kv_rank - col, TILE), &to);
    }
}

/* norm_latents, without the norm of u: rows for the cache and, unless they alone are wanted, queries, both before their rotation. */
static void stage_latents(pool *p, mla_job *job, const float *u) {
    const mla_weights *w = job->w;
    const mla_shape *s = job->shape;
    projection of_u = projection_of(u, job->T, job->limbs);
    projection_add(&of_u, &w->kv_a_proj, job->c_new);
    if (!job->kv_only) projection_add(&of_u, s->q_rank ? &w->q_a_proj : &w->q_b_proj, s->q_rank ? job->a : job->q);
    project(p, &of_u);
    parallel(p, job->T, mla_norms, job);
    if (job->kv_only) return;
    if (s->q_rank) linear(p, &w->q_b_proj, job->a, job->q, job->T, 0, job->limbs);
    parallel(p, s->heads * ((s->kv_rank - 1) / TILE + 1), mla_absorb, job);
}

/* ---- Attention ---- */

/* angles[t] = cos of each frequency times the position of row t, then sin of each, times rope_scale. */
static void mla_angles(const mla_weights *w, const token_row *rows, int T, float *angles) {
    const int half = w->shape.rope_dim / 2;
    for (int t = 0; t < T; t++, angles += 2 * half)
        for (int i = 0; i < half; i++) {
            const float angle = (float)rows[t].position[0] * w->frequencies[i];
            angles[i] = cosf(angle) * w->shape.rope_scale;
            angles[half + i] = sinf(angle) * w->shape.rope_scale;
        }
}

static void mla_rotate(const mla_shape *s, float *x, const float *angles) {
    if (s->interleaved) rotate_pairs(x, angles, s->rope_dim);
    else rotate(x, angles, s->rope_dim);
}

/* For rows begin..end-1: rotation, of queries into those of latents, and rows into the cache. */
static void mla_prepare(void *context, int begin, int end, int thread) {
    const mla_job *job = (const mla_job *)context;
    const mla_shape *s = job->shape;
    const size_t row = (size_t)mla_row_size(s), rotated = (size_t)s->rope_dim;
    const float scale = kv_scale(job->kv, job->w->kv_scale);
    (void)thread;
    for (int t = begin; t < end; t++) {
        const float *angles = job->angles + (size_t)t * rotated, *q = job->q + (size_t)t * (size_t)(s->heads * mla_key_dim(s));
        float *c = job->c_new + (size_t)t * row, *l = job->l + (size_t)t * (size_t)s->heads * row;
        for (int h = 0; h < s->heads && !job->kv_only; h++) {
            float *to = l + (size_t)h * row + s->kv_rank;
            memcpy(to, q + h * mla_key_dim(s) + s->nope_dim, rotated * sizeof *to);
            mla_rotate(s, to, angles);
        }
        mla_rotate(s, c + s->kv_rank, angles);
        for (size_t i = 0; scale != 1 && i < row; i++) c[i] /= scale;
        kv_store(job->kv, job->latents, (size_t)(job->index + t) * row, c, row);
    }
}

/* Heads that are taken together from head h on. */
static int mla_together(const mla_shape *s, int h) {
    return s->heads - h < SPAN_QUERIES ? 1 : SPAN_QUERIES;
}

/* Row t's parts of one span for `count` heads from h on, one after the other. */
static void mla_span(const mla_job *job, int t, int h, int count, int span, float *part) {
    const mla_shape *s = job->shape;
    const size_t row = (size_t)mla_row_size(s);
    const int first = span * SPAN, end = min_int(job->index + t + 1, first + SPAN);
    const kv_rows kv = {.k = job->latents, .v = job->latents, .at = 0, .stride = row, .d = (int)row, .value_d = s->kv_rank, .type = job->kv};
    const float *q[SPAN_QUERIES];
    float *to[SPAN_QUERIES];
    for (int j = 0; j < count; j++) {
        q[j] = job->l + ((size_t)t * (size_t)s->heads + (size_t)(h + j)) * row;
        to[j] = part + (size_t)j * mla_part_size(s);
    }
    span_parts(&kv, q, count, first, end - first, s->scale * kv_scale(job->kv, job->w->kv_scale), to);
}

/* The first span after those that row t sees. */
static int mla_span_end(const mla_job *job, int t) {
    return (job->index + t) / SPAN + 1;
}

/* Row t's part of head h. */
static float *mla_part(const mla_job *job, int t, int h) {
    return job->m + ((size_t)t * (size_t)job->shape->heads + (size_t)h) * mla_part_size(job->shape);
}

/* For rows begin..end-1, span after span, whose rows of the cache they take one after the other, while they are near. */
static void mla_rows(void *context, int begin, int end, int thread) {
    const mla_job *job = (const mla_job *)context;
    const mla_shape *s = job->shape;
    float *part = job->parts + (size_t)thread * SPAN_QUERIES * mla_part_size(s);
    for (int span = 0; span < mla_span_end(job, end - 1); span++)
        for (int t = begin; t < end; t++)
            for (int h = 0, count; h < s->heads && span < mla_span_end(job, t); h += count) {
                count = mla_together(s, h);
                mla_span(job, t, h, count, span, span ? part : mla_part(job, t, h));
                for (int j = 0; span && j < count; j++) span_join(mla_part(job, t, h + j), part + (size_t)j * mla_part_size(s), s->kv_rank);
            }
}

/* Where the parts of row t's span begin, of those that are made at once. */
static float *mla_shared_parts(const mla_job *job, int t, int span) {
    const int spans = job->span_end - job->span_first;
    return job->parts + (size_t)(t * spans + span - job->span_first) * (size_t)job->shape->heads * mla_part_size(job->shape);
}

/* For items (row, span, heads that are taken together), which threads share: the parts of each. */
static void mla_shared_spans(void *context, int begin, int end, int thread) {
    const mla_job *job = (const mla_job *)context;
    const mla_shape *s = job->shape;
    const int fours = s->heads / SPAN_QUERIES, groups = fours + s->heads % SPAN_QUERIES, spans = job->span_end - job->span_first;
    (void)thread;
    for (int item = begin; item < end; item++) {
        const int group = item % groups, span = item / groups % spans + job->span_first, t = item / groups / spans;
        const int h = group < fours ? group * SPAN_QUERIES : group - fours + fours * SPAN_QUERIES;
        if (span < mla_span_end(job, t)) mla_span(job, t, h, mla_together(s, h), span, mla_shared_parts(job, t, span) + (size_t)h * mla_part_size(s));
    }
}

/* For items (row, head): joins their parts, after those of the spans before. */
static void mla_shared_heads(void *context, int begin, int end, int thread) {
    const mla_job *job = (const mla_job *)context;
    const mla_shape *s = job->shape;
    const size_t size = mla_part_size(s);
    (void)thread;
    for (int item = begin; item < end; item++) {
        const int t = item / s->heads, h = item % s->heads, last = min_int(mla_span_end(job, t), job->span_end);
        for (int span = job->span_first; span < last; span++) {
            const float *part = mla_shared_parts(job, t, span) + (size_t)h * size;
            if (span) span_join(mla_part(job, t, h), part, s->kv_rank);
            else memcpy(mla_part(job, t, h), part, size * sizeof *part);
        }
    }
}

/* For rows begin..end-1: parts become mixtures of latents. */
static void mla_mixtures(void *context, int begin, int end, int thread) {
    const mla_job *job = (const mla_job *)context;
    const mla_shape *s = job->shape;
    (void)thread;
    for (int t = begin; t < end; t++)
        for (int h = 0; h < s->heads; h++) {
            float *m = mla_part(job, t, h);
            const float scale = kv_scale(job->kv, job->w->kv_scale) / m[s->kv_rank + PART_SUM];
            for (int i = 0; i < s->kv_rank; i++) m[i] *= scale;
        }
}

/* latent_attend: rotation, rows into the cache, attention. Fills job->m. Threads share a row's spans and heads where rows are few; with more
   there are enough for all threads. */
static void stage_latent_attend(pool *p, mla_job *job) {
    const mla_shape *s = job->shape;
    const int groups = s->heads / SPAN_QUERIES + s->heads % SPAN_QUERIES, spans = mla_span_end(job, job->T - 1);
    parallel(p, job->T, mla_prepare, job);
    if (job->kv_only) return;
    if (job->T > MOTE_ROWS_MAX) parallel(p, job->T, mla_rows, job);
    for (job->span_first = 0; job->T <= MOTE_ROWS_MAX && job->span_first < spans; job->span_first = job->span_end) {
        job->span_end = min_int(spans, job->span_first + MLA_SPANS);
        parallel(p, job->T * (job->span_end - job->span_first) * groups, mla_shared_spans, job);
        parallel(p, job->T * s->heads, mla_shared_heads, job);
    }
    parallel(p, job->T, mla_mixtures, job);
}

/* ---- Values ---- */

/* Items: blocks of rows of v_b_proj, each with the mixtures of its head, or, where heads end within it, heads. */
static void mla_value_blocks(void *context, int begin, int end, int thread) {
    const mla_job *job = (const mla_job *)context;
    const mla_shape *s = job->shape;
    const int blocks = col_block_count(s->kv_rank);
    token_batch tokens;
    float sum[TOKEN_BATCH][ROW_BLOCK];
    (void)thread;
    tokens.count = job->count;
    for (int block = begin; block < end; block++) {
        const int row = block * ROW_BLOCK, rows = block_rows(&job->w->v_b_proj, block);
        for (int h = row / s->value_dim; h * s->value_dim < row + rows; h++) {
            const int first = max_int(row, h * s->value_dim), last = min_int(row + rows, (h + 1) * s->value_dim);
            for (int t = 0; t < job->count; t++) {
                tokens.x[t] = mla_part(job, job->first + t, h);
                tokens.limbs[t] = job->head_limbs + (size_t)(t * s->heads + h) * (size_t)blocks;
            }
            matrix_block_dots(&job->w->v_b_proj, row, rows, &tokens, sum);
            for (int t = 0; t < job->count; t++) {
                float *o = job->o + (size_t)(job->first + t) * (size_t)(s->heads * s->value_dim);
                memcpy(o + first, &sum[t][first - row], (size_t)(last - first) * sizeof *o);
            }
        }
    }
}

/* latent_out: o = v_b_proj m of each head; out += o_proj o. */
static void stage_latent_out(pool *p, mla_job *job, float *out) {
    const mla_weights *w = job->w;
    const mla_shape *s = job->shape;
    for (job->first = 0; job->first < job->T; job->first += job->count) {
        job->count = min_int(job->T - job->first, TOKEN_BATCH);
        limb_rows rows = {.x = mla_part(job, job->first, 0), .stride = mla_part_size(s), .rows = job->count * s->heads, .cols = s->kv_rank,
                          .to = job->head_limbs, .kinds = limb_kinds(&w->v_b_proj)};
        limbs_of_rows(p, &rows);
        parallel(p, row_blocks(&w->v_b_proj), mla_value_blocks, job);
    }
    linear(p, &w->o_proj, job->o, out, job->T, 1, job->limbs);
}

/* ---- The implementation of layers/kinds.c ---- */

enum { mla_rollback = ROLLBACK_TRUNCATE };

/* Bytes of a token in the cache. */
static size_t mla_row_bytes(const mla_shape *s, dtype kv) {
    return (size_t)mla_row_size(s) * kv_size(kv);
}

static void mla_layout_state(layout *l, const mla_shape *s, const capacity *r, mla_state *to) {
    const size_t tokens = ((size_t)r->context + KV_GRANULE - 1) / KV_GRANULE * KV_GRANULE;
    to->latents = layout_alloc(l, (tokens * mla_row_bytes(s, r->kv) + sizeof(float) - 1) / sizeof(float));
}

static void mla_layout_scratch(layout *l, const mla_shape *s, const capacity *r, mla_job *to) {
    const size_t T = (size_t)r->rows, heads = T * (size_t)s->heads;
    to->shape = s;
    to->kv = r->kv;
    to->angles = layout_alloc(l, T * (size_t)s->rope_dim);
    to->a = layout_alloc(l, T * (size_t)s->q_rank);
    to->q = layout_alloc(l, heads * (size_t)mla_key_dim(s));
    to->c_new = layout_alloc(l, T * (size_t)mla_row_size(s));
    to->l = layout_alloc(l, heads * (size_t)mla_row_size(s));
    to->parts = layout_alloc(l, mla_part_count(s, r) * mla_part_size(s));
    to->m = layout_alloc(l, heads * mla_part_size(s));
    to->o = layout_alloc(l, heads * (size_t)s->value_dim);
    to->limbs = limbs_alloc(l, T, max_int(max_int(s->hidden, s->q_rank), s->heads * s->value_dim));
    to->head_limbs = limbs_alloc(l, (size_t)min_int(r->rows, TOKEN_BATCH) * (size_t)s->heads, s->kv_rank);
}

static void mla_project(const token_rows *rows, const mla_weights *w, mla_job *job) {
    job->shape = &w->shape;
    job->w = w;
    job->T = rows->T;
    job->kv_only = rows->state_only;
    stage_latents(rows->threads, job, rows->u);
}

static void mla_mix(const token_rows *rows, const token_sequence *of, const mla_job *all, const mla_state *state) {
    const mla_shape *s = all->shape;
    const size_t first = (size_t)of->first, heads = first * (size_t)s->heads, row = (size_t)mla_row_size(s);
    mla_job job = *all;
    job.T = of->T;
    job.index = rows->table[of->first].index;
    job.latents = state->latents;
    job.q += heads * (size_t)mla_key_dim(s);
    job.c_new += first * row;
    job.l += heads * row;
    job.m += heads * mla_part_size(s);
    mla_angles(job.w, rows->table + of->first, job.T, job.angles);
    stage_latent_attend(rows->threads, &job);
}

static void mla_output(const token_rows *rows, mla_job *job) {
    stage_latent_out(rows->threads, job, rows->out);
}

static int mla_pieces(const mla_shape *s, const capacity *r, const mla_state *state, state_piece *to) {
    to[0] = state_piece_of("latents", state->latents, mla_row_bytes(s, r->kv), r->context, 0);
    return 1;
}

static int mla_log(const mla_shape *s, const mla_state *state, state_piece *to) {
    (void)s, (void)state, (void)to;
    return 0;
}
