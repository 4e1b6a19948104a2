/* layers/attention/cpu.c: the stages of an attention layer on the CPU. Knows matrices, threads and KV rows, no session.

   Grouped-query attention. q_proj yields for every head a query and, if the layer is gated, an output gate, [q | gate]; query
   and key heads are normalised, unless the layer has no norms for them, and the first rotary_dim dimensions rotated by the row's position;
   softmax runs over the rows up to its own, by index; the result is multiplied by sigmoid(gate), or by softplus of what g_proj yields, if
   there is either. The KV cache holds k after norm and rotation, and v as projected, or after its norm, both rounded to its type when they
   are appended: a row of the present block is used as rounded, too. With an index a row attends to some of them (layers/attention/index.c).

   A layer with a window has a ring in place of rows of the whole context (attention_held). What lies where is all that it changes: spans are
   of indexes, and in a ring a span lies as it would without. */

/* KV cache [held][kv_heads][head_dim]; the row of index i is number i mod held. */
typedef struct attention_state {
    void *k, *v;
    void *index_keys, *index_groups;           /* as index_job has them */
    int held;
} attention_state;

typedef struct attention_job {
    const attention_shape *shape;
    const attention_weights *w;
    int T, index;                /* rows of this block, or of all blocks; index of the first */
    float *angles;               /* [T][rotary_dim] */
    float *qg;                   /* [T][heads][attention_q_size] */
    int kv_only;                 /* only KV rows are wanted, there is no qg */
    int both_ways;               /* a row sees those after it, too */
    float *k_new;                /* [T][kv_heads][head_dim] */
    float *v_new;                /* the same shape */
    float *g_new;                /* [T][heads][gate_size] */
    dtype kv;                    /* type of the KV cache: F32, BF16 or FP8 */
    void *k, *v;                 /* of the state, which has so many rows: */
    int held;
    float *parts;                /* attention_part_count() of layers/spans.c's parts */
    float *o;                    /* [T][heads][head_dim] */
    token_limbs *limbs;          /* of u, and then of o */
    index_job index_of;          /* of a layer with an index */
    char *span_k, *span_v;       /* [threads][SPAN][head_dim] of the cache, those of a span that leaves tokens out, together */
} attention_job;

/* norm_qkv, without the norm: q | gate and g (unless qg is NULL), k, v and index_qk = projections of u. scratch: for the limbs of u. */
static void stage_qkv(pool *p, const attention_weights *w, const float *u, int T, float *qg, float *k, float *v, float *g, float *index_qk,
                      token_limbs *scratch) {
    projection job = projection_of(u, T, scratch);
    projection_add(&job, &w->k_proj, k);
    if (!w->shape.v_of_k) projection_add(&job, &w->v_proj, v);
    if (qg) projection_add(&job, &w->q_proj, qg);
    if (qg && w->shape.gate_size) projection_add(&job, &w->g_proj, g);
    if (w->shape.index_heads) projection_add(&job, &w->index_qk, index_qk);
    project(p, &job);
}

/* The n numbers of a row into the cache, in units of `scale`. */
static void attention_append(const attention_job *job, void *cache, size_t at, float *row, size_t n, float scale) {
    for (size_t i = 0; scale != 1 && i < n; i++) row[i] /= scale;
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
            float *q = job->qg + ((size_t)t * (size_t)s->heads + (size_t)h) * (size_t)attention_q_size(s);
            if (s->normed) rms_norm(q, q, job->w->q_norm, 1, s->head_dim, s->eps);
            rotate(q, angles, s->rotary_dim);
        }
        float *k = job->k_new + (size_t)t * kv, *v = job->v_new + (size_t)t * kv;
        if (s->v_of_k) memcpy(v, k, kv * sizeof *v);
        for (int h = 0; h < s->kv_heads; h++) {
            if (s->v_normed) rms_divide(v + (size_t)h * d, s->head_dim, s->eps);
            if (s->normed) rms_norm(k + (size_t)h * d, k + (size_t)h * d, job->w->k_norm, 1, s->head_dim, s->eps);
            rotate(k + (size_t)h * d, angles, s->rotary_dim);
        }
        const size_t at = (size_t)((job->index + t) % job->held) * kv;
        attention_append(job, job->k, at, k, kv, kv_scale(job->kv, job->w->k_scale));
        attention_append(job, job->v, at, v, kv, kv_scale(job->kv, job->w->v_scale));
    }
}

/* The indexes [first, end) of the rows whose keys the row of an index sees. */
typedef struct seen_rows { int first, end; } seen_rows;

static inline seen_rows attention_seen(const attention_shape *s, int index) {
    seen_rows seen = {s->window ? max_int(index + 1 - s->window, 0) : 0, index + 1};
    return seen;
}

/* The entries [first, end) of row t: indexes, or with an index what is left of them. */
static seen_rows attention_entries(const attention_job *job, int t) {
    const seen_rows some = {0, index_leaves_out(job->shape, job->index + t) ? index_entries(job->shape, job->index + t) : 0};
    seen_rows seen = attention_seen(job->shape, job->index + t);
    if (job->both_ways) seen.end = job->index + job->T;
    return some.end ? some : seen;
}

/* Spans [first, end) that row t sees a part of. */
static seen_rows attention_spans(const attention_job *job, int t) {
    seen_rows seen = attention_entries(job, t);
    seen.first /= SPAN;
    seen.end = (seen.end - 1) / SPAN + 1;
    return seen;
}

/* How many there are from the first that the first row sees to the last of any. With an index the last row may have less than one before. */
static int attention_span_count(const attention_job *job) {
    int end = 0;
    for (int t = 0; t < job->T; t++) end = max_int(end, attention_spans(job, t).end);
    return end - attention_spans(job, 0).first;
}

/* Floats of a part. */
static size_t attention_part_size(const attention_shape *s) {
    return (size_t)s->head_dim + PART_EXTRA;
}

/* Parts of a job: a row's of all spans, or the joined and the present one of the queries of a KV head, for each thread. */
static size_t attention_part_count(const attention_shape *s, const capacity *r) {
    const size_t rows = (size_t)(r->rows < MOTE_ROWS_MAX ? r->rows : MOTE_ROWS_MAX), spans = (size_t)((r->context - 1) / SPAN + 1);
    const size_t shared = rows * (size_t)s->heads * spans, own = 2 * (size_t)r->threads * (size_t)s->heads;
    return shared > own ? shared : own;
}

/* Copies keys and values of a KV head together, those of row t's entries first..end-1: they become what *kv says. */
static void attention_gather(const attention_job *job, int t, int group, int first, int end, int thread, kv_rows *kv) {
    const attention_shape *s = job->shape;
    const int32_t *chosen = job->index_of.chosen + (size_t)t * (size_t)index_kept(s);
    const size_t row = (size_t)s->head_dim * kv_size(job->kv);
    char *k = job->span_k + (size_t)thread * SPAN * row, *v = job->span_v + (size_t)thread * SPAN * row;
    kv->k = k;
    kv->v = v;
    kv->at = 0;
    kv->stride = (size_t)s->head_dim;
    for (int e = first; e < end; e++, k += row, v += row) {
        const size_t at = (size_t)index_of_entry(s, chosen, job->index + t, e) * (size_t)s->kv_heads + (size_t)group;
        memcpy(k, (const char *)job->k + at * row, row);
        memcpy(v, (const char *)job->v + at * row, row);
    }
}

/* Row t's parts of one span for all queries of a KV head, each `step` parts after the one before. */
static void attention_span(const attention_job *job, int t, int group, int span, int thread, float *part, size_t step) {
    const attention_shape *s = job->shape;
    const seen_rows seen = attention_entries(job, t);
    const int queries = s->heads / s->kv_heads, first = max_int(seen.first, span * SPAN), end = min_int(seen.end, (span + 1) * SPAN);
    const size_t d = (size_t)s->head_dim, size = attention_part_size(s), q_size = (size_t)attention_q_size(s);
    const float *q = job->qg + ((size_t)t * (size_t)s->heads + (size_t)(group * queries)) * q_size;
    kv_rows kv = {.k = job->k, .v = job->v, .at = (size_t)group * d, .stride = (size_t)s->kv_heads * d,
                  .d = s->head_dim, .value_d = s->head_dim, .type = job->kv};
    const int gathers = index_leaves_out(s, job->index + t), from = gathers ? 0 : first % job->held;
    const float scale = (s->scale != 0 ? s->scale : 1.0f / sqrtf((float)d)) * kv_scale(job->kv, job->w->k_scale);
    if (gathers) attention_gather(job, t, group, first, end, thread, &kv);
    for (int j = 0, count; j < queries; j += count) {
        const float *of[SPAN_QUERIES];
        float *to[SPAN_QUERIES];
        count = queries - j < SPAN_QUERIES ? 1 : SPAN_QUERIES;
        for (int i = 0; i < count; i++) {
            of[i] = q + (size_t)(j + i) * q_size;
            to[i] = part + (size_t)(j + i) * step * size;
        }
        span_parts(&kv, of, count, from, end - first, scale, to);
    }
}

/* The output of row t and head h, whose part over all positions this is. */
static void attention_output_gate(const attention_job *job, int t, int h, const float *part) {
    const int d = job->shape->head_dim, gates = job->shape->gate_size;
    const size_t head = (size_t)t * (size_t)job->shape->heads + (size_t)h, at = head * (size_t)d;
    const float *gate = job->qg + 2 * at + d, *g = gates ? job->g_new + head * (size_t)gates : NULL;
    const float top = part[d + PART_TOP], sink = job->shape->sinks ? job->w->sinks[h] : -INFINITY;
    float sum = part[d + PART_SUM], scale = kv_scale(job->kv, job->w->v_scale);
    if (sink > top) {                              /* the sink's part is {top = sink, sum = 1, o = 0}: see span_join */
        sum = sum * exp_below(top - sink) + 1;
        scale *= exp_below(top - sink);
    } else if (job->shape->sinks) sum += exp_below(sink - top);
    scale /= sum;
    if (gates == 1) scale *= softplus(*g);
    if (!job->shape->gated)
        for (int i = 0; i < d; i++) job->o[at + (size_t)i] = part[i] * scale;
    else
        for (int i = 0; i < d; i++) job->o[at + (size_t)i] = part[i] * scale * sigmoid(gate[i]);
    for (int i = 0; gates > 1 && i < d; i++) job->o[at + (size_t)i] *= softplus(g[i]);
}

/* For items (row, KV head), span after span. */
static void attention_rows(void *context, int begin, int end, int thread) {
    const attention_job *job = (const attention_job *)context;
    const attention_shape *s = job->shape;
    const int queries = s->heads / s->kv_heads;
    const size_t size = attention_part_size(s);
    float *all = job->parts + 2 * (size_t)thread * (size_t)queries * size, *part = all + (size_t)queries * size;
    for (int item = begin; item < end; item++) {
        const int t = item / s->kv_heads, group = item % s->kv_heads;
        const seen_rows spans = attention_spans(job, t);
        attention_span(job, t, group, spans.first, thread, all, 1);
        for (int span = spans.first + 1; span < spans.end; span++) {
            attention_span(job, t, group, span, thread, part, 1);
            for (int j = 0; j < queries; j++) span_join(all + (size_t)j * size, part + (size_t)j * size, s->head_dim);
        }
        for (int j = 0; j < queries; j++) attention_output_gate(job, t, group * queries + j, all + (size_t)j * size);
    }
}

/* For items (row, KV head, span), which threads share: the parts of each. */
static void attention_shared_spans(void *context, int begin, int end, int thread) {
    const attention_job *job = (const attention_job *)context;
    const attention_shape *s = job->shape;
    const int count = attention_span_count(job), first = attention_spans(job, 0).first, queries = s->heads / s->kv_heads;
    for (int item = begin; item < end; item++) {
        const int span = item % count + first, group = item / count % s->kv_heads, t = item / count / s->kv_heads;
        const size_t at = ((size_t)t * (size_t)s->heads + (size_t)(group * queries)) * (size_t)count + (size_t)(span - first);
        const seen_rows spans = attention_spans(job, t);
        if (span >= spans.first && span < spans.end)
            attention_span(job, t, group, span, thread, job->parts + at * attention_part_size(s), (size_t)count);
    }
}

/* For items (row, head): joins their parts. */
static void attention_shared_heads(void *context, int begin, int end, int thread) {
    const attention_job *job = (const attention_job *)context;
    const attention_shape *s = job->shape;
    const int count = attention_span_count(job), first = attention_spans(job, 0).first;
    const size_t size = attention_part_size(s);
    (void)thread;
    for (int item = begin; item < end; item++) {
        const int t = item / s->heads;
        const seen_rows spans = attention_spans(job, t);
        float *all = job->parts + ((size_t)item * (size_t)count + (size_t)(spans.first - first)) * size;
        for (int i = 1; i < spans.end - spans.first; i++) span_join(all, all + (size_t)i * size, s->head_dim);
        attention_output_gate(job, t, item % s->heads, all);
    }
}

/* o = sigmoid(gate) * sum over p of softmax(q . k[p] scale) v[p], for prepared rows. Threads share a row's spans where rows
   are few; with more there are enough for all threads. */
static void attention_heads(pool *p, attention_job *job) {
    const attention_shape *s = job->shape;
    const int spans = attention_span_count(job);
    if (job->T > MOTE_ROWS_MAX || spans == 1) {
        parallel(p, job->T * s->kv_heads, attention_rows, job);
        return;
    }
    parallel(p, job->T * s->kv_heads * spans, attention_shared_spans, job);
    parallel(p, job->T * s->heads, attention_shared_heads, job);
}

/* rope_attend: norms, rotation, KV append, index, attention, output gate. Fills job->o, unless KV rows alone are wanted. */
static void stage_rope_attend(pool *p, attention_job *job) {
    parallel(p, job->T, attention_prepare, job);
    if (job->shape->index_heads) stage_index(p, &job->index_of);
    if (!job->kv_only) attention_heads(p, job);
}

/* out: out += o_proj o. */
static void stage_out(pool *p, attention_job *job, float *out) {
    linear(p, &job->w->o_proj, job->o, out, job->T, 1, job->limbs);
}

/* The implementation of layers/kinds.c. */

enum { attention_rollback = ROLLBACK_TRUNCATE };

/* Bytes of the keys, or the values, of one token. */
static size_t attention_row_bytes(const attention_shape *s, dtype kv) {
    return (size_t)(s->kv_heads * s->head_dim) * kv_size(kv);
}

/* Rows of the rings of all layers with a window, or INT_MAX: none is made. Rows that take the place of others, of which up to MOTE_ROWS_MAX may be
   dropped, leave those that the first of them sees. In a ring of whole spans none is cut in two, nor is a chunk or a tile of a GPU's
   (layers/attention/chunks.c). */
static int attention_ring(const capacity *r) {
    const size_t rows = (size_t)(r->ring_rows ? min_int(r->ring_rows, r->rows) : r->rows);
    const size_t ring = ((size_t)r->window - 1 + rows + SPAN - 1) / SPAN * SPAN;
    return r->window && ring < INT_MAX ? (int)ring : INT_MAX;
}

/* Rows that a state has: one for each token of the context, or a ring. */
static int attention_held(const attention_shape *s, const capacity *r) {
    return s->window ? min_int(attention_ring(r), r->context) : r->context;
}

static void attention_layout_state(layout *l, const attention_shape *s, const capacity *r, attention_state *to) {
    to->held = attention_held(s, r);
    const size_t tokens = ((size_t)to->held + KV_GRANULE - 1) / KV_GRANULE * KV_GRANULE;
    const size_t bytes = tokens * attention_row_bytes(s, r->kv), floats = (bytes + sizeof(float) - 1) / sizeof(float);
    to->k = layout_alloc(l, floats);
    to->v = layout_alloc(l, floats);
    const size_t index = s->index_heads ? (tokens * (size_t)s->index_dim * kv_size(r->kv) + sizeof(float) - 1) / sizeof(float) : 0;
    to->index_keys = layout_alloc(l, index);
    to->index_groups = layout_alloc(l, index / (size_t)max_int(s->index_group, 1));
}

/* Of an index; groups of a layer may be as small as one token. */
static void attention_layout_index(layout *l, const attention_shape *s, const capacity *r, attention_job *to) {
    index_job *of = &to->index_of;
    const size_t T = s->index_heads ? (size_t)r->rows : 0, threads = s->index_heads ? (size_t)r->threads : 0;
    const size_t span = threads * SPAN * (size_t)s->head_dim * kv_size(r->kv) / sizeof(float);
    of->score_stride = s->index_heads ? (size_t)r->context : 0;
    of->kv = r->kv;
    of->qk = layout_alloc(l, T * (size_t)(s->index_heads + 1) * (size_t)s->index_dim);
    of->row = layout_alloc(l, threads * index_row_size(s));
    of->scores = layout_alloc(l, (size_t)index_score_rows(r) * of->score_stride);
    of->chosen = (int32_t *)(void *)layout_alloc(l, T * (size_t)s->index_budget);
    to->span_k = (char *)layout_alloc(l, span);
    to->span_v = (char *)layout_alloc(l, span);
}

static void attention_layout_scratch(layout *l, const attention_shape *s, const capacity *r, attention_job *to) {
    size_t T = (size_t)r->rows, d = (size_t)s->head_dim;
    to->shape = s;
    to->kv = r->kv;
    to->angles = layout_alloc(l, T * (size_t)s->rotary_dim + 1);
    to->qg = layout_alloc(l, T * (size_t)s->heads * (size_t)attention_q_size(s));
    to->k_new = layout_alloc(l, T * (size_t)s->kv_heads * d);
    to->v_new = layout_alloc(l, T * (size_t)s->kv_heads * d);
    to->g_new = layout_alloc(l, T * (size_t)s->heads * (size_t)s->gate_size);
    to->o = layout_alloc(l, T * (size_t)s->heads * d);
    to->parts = layout_alloc(l, attention_part_count(s, r) * attention_part_size(s));
    to->limbs = limbs_alloc(l, T, s->hidden > s->heads * s->head_dim ? s->hidden : s->heads * s->head_dim);
    attention_layout_index(l, s, r, to);
}

static void attention_project(const token_rows *rows, const attention_weights *w, attention_job *job) {
    job->shape = &w->shape;
    job->w = w;
    job->T = rows->T;
    job->kv_only = rows->state_only;
    job->both_ways = rows->both_ways;
    stage_qkv(rows->threads, w, rows->u, rows->T, job->kv_only ? NULL : job->qg, job->k_new, job->v_new, job->g_new,
              job->index_of.qk, job->limbs);
}

static void attention_mix(const token_rows *rows, const token_sequence *of, const attention_job *all, const attention_state *state) {
    const attention_shape *s = all->shape;
    const size_t first = (size_t)of->first, heads = first * (size_t)s->heads, kv = first * (size_t)(s->kv_heads * s->head_dim);
    attention_job job = *all;
    job.T = of->T;
    job.index = rows->table[of->first].index;
    job.k = state->k;
    job.v = state->v;
    job.held = state->held;
    job.qg += heads * (size_t)attention_q_size(s);
    job.k_new += kv;
    job.v_new += kv;
    job.g_new += heads * (size_t)s->gate_size;
    job.o += heads * (size_t)s->head_dim;
    attention_angles(job.w, rows->table + of->first, job.T, job.angles);
    if (s->index_heads) {
        index_job *index = &job.index_of;
        index->w = job.w;
        index->rows = rows->table + of->first;
        index->T = job.T;
        index->index = job.index;
        index->keys_only = job.kv_only;
        index->angles = job.angles;
        index->qk += first * (size_t)(s->index_heads + 1) * (size_t)s->index_dim;
        index->keys = state->index_keys;
        index->groups = state->index_groups;
    }
    stage_rope_attend(rows->threads, &job);
}

static void attention_output(const token_rows *rows, attention_job *job) {
    stage_out(rows->threads, job, rows->out);
}

static int attention_pieces(const attention_shape *s, const capacity *r, const attention_state *state, state_piece *to) {
    to[0] = state_piece_of("keys", state->k, attention_row_bytes(s, r->kv), attention_held(s, r), s->window);
    to[1] = state_piece_of("values", state->v, attention_row_bytes(s, r->kv), attention_held(s, r), s->window);
    if (!s->index_heads) return 2;
    to[2] = state_piece_of("index keys", state->index_keys, (size_t)s->index_dim * kv_size(r->kv), r->context, 0);
    to[3] = state_piece_of("index groups", state->index_groups, (size_t)(s->index_dim / s->index_group) * kv_size(r->kv), r->context, 0);
    to[3].group = s->index_group;
    return 4;
}

static int attention_log(const attention_shape *s, const attention_state *state, state_piece *to) {
    (void)s, (void)state, (void)to;
    return 0;
}
