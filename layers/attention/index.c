/* layers/attention/index.c: which tokens a row of an indexed layer attends to, on the CPU. Knows an attention layer's numbers and KV rows.

   index_qk yields for every row index_heads index queries and one index key. Keys are cached as they are. Of every whole group of
   index_group of them, from index 0 on, the mean is normalised and rotated by the position of the group's first row: that is the group's
   key. With these a row scores the whole groups that it sees:

       score = sum over index heads of max(q . key, 0) / sqrt(index_dim)

   It attends to the tokens of the best index_budget / index_group groups, of equal ones the first, and to those of the group that is not
   whole yet. Where it sees no more groups than that, it attends to all tokens, and there are no scores.

   Entries: the tokens that a row attends to, in their order. Of all tokens entry i is index i, so that spans of entries (layers/spans.c)
   are those of a layer without an index, bit for bit. */

typedef struct index_job {
    const attention_weights *w;
    const token_row *rows;       /* [T] */
    int T, index;                /* rows of a block of one session; index of the first */
    int keys_only;               /* there are no queries: the rows attend to nothing */
    float *qk;                   /* [T][index_heads + 1][index_dim] queries, and then the key */
    const float *angles;         /* [T][rotary_dim] */
    dtype kv;                    /* type of the cache */
    void *keys, *groups;         /* of the state: [context][index_dim]; [context / index_group][index_dim] */
    float *row;                  /* [threads][index_row_size] a group's key as it is made */
    float *scores;               /* [index_score_rows][score_stride] */
    size_t score_stride;
    int32_t *chosen;             /* [T][index_kept] the best groups of a row, in their order */
} index_job;

/* Groups of which a row attends to the tokens, if it sees more. */
BOTH int index_kept(const attention_shape *s) {
    return s->index_budget / s->index_group;
}

/* Whether the row of an index leaves tokens out. */
BOTH int index_leaves_out(const attention_shape *s, int index) {
    return s->index_heads && (index + 1) / s->index_group > index_kept(s);
}

/* Tokens that it attends to then. */
BOTH int index_entries(const attention_shape *s, int index) {
    return index_kept(s) * s->index_group + (index + 1) % s->index_group;
}

/* The index of entry e. chosen: the row's. */
BOTH int index_of_entry(const attention_shape *s, const int32_t *chosen, int index, int e) {
    const int of_groups = index_kept(s) * s->index_group;
    if (e < of_groups) return chosen[e / s->index_group] * s->index_group + e % s->index_group;
    return (index + 1) / s->index_group * s->index_group + e - of_groups;
}

/* Floats of index_job.row: a mean, a key as it is decoded, angles. */
static size_t index_row_size(const attention_shape *s) {
    return 2 * (size_t)s->index_dim + (size_t)s->rotary_dim;
}

/* Rows whose scores there is memory for: few rows share all threads, else each thread has one row at a time. */
static int index_score_rows(const capacity *r) {
    return max_int(MOTE_ROWS_MAX, r->threads);
}

/* angles[t] = cos of each frequency times its axis of the position of row t, then sin of each, times rope_scale. */
static void attention_angles(const attention_weights *w, const token_row *rows, int T, float *angles) {
    const int dim = w->shape.rotary_dim, half = dim / 2;
    for (int i = 0; i < half; i++) {
        const int axis = rope_axis(w->axes, i);
        for (int t = 0; t < T; t++) {
            float angle = (float)rows[t].position[axis] * w->frequencies[i];
            angles[(size_t)t * (size_t)dim + (size_t)i] = cosf(angle) * w->shape.rope_scale;
            angles[(size_t)t * (size_t)dim + (size_t)(half + i)] = sinf(angle) * w->shape.rope_scale;
        }
    }
}

/* Norm and rotation of the queries in place, and keys into the cache, of rows begin..end-1. */
static void index_prepare(void *context, int begin, int end, int thread) {
    const index_job *job = (const index_job *)context;
    const attention_shape *s = &job->w->shape;
    const size_t d = (size_t)s->index_dim;
    (void)thread;
    for (int t = begin; t < end; t++) {
        float *q = job->qk + (size_t)t * (size_t)(s->index_heads + 1) * d;
        for (int h = 0; !job->keys_only && h < s->index_heads; h++) {
            rms_norm(q + (size_t)h * d, q + (size_t)h * d, job->w->index_q_norm, 1, s->index_dim, s->eps);
            rotate(q + (size_t)h * d, job->angles + (size_t)t * (size_t)s->rotary_dim, s->rotary_dim);
        }
        kv_store(job->kv, job->keys, (size_t)(job->index + t) * d, q + (size_t)s->index_heads * d, d);
    }
}

/* The keys of the groups that rows of the block make whole, the first such one and those after it. Rows of text: positions of a group follow
   each other. */
static void index_pool(void *context, int begin, int end, int thread) {
    const index_job *job = (const index_job *)context;
    const attention_shape *s = &job->w->shape;
    const int d = s->index_dim;
    float *mean = job->row + (size_t)thread * index_row_size(s), *decoded = mean + d, *angles = decoded + d;
    for (int item = begin; item < end; item++) {
        const int group = job->index / s->index_group + item, first = group * s->index_group;
        token_row at = job->rows[first + s->index_group - 1 - job->index];
        memset(mean, 0, (size_t)d * sizeof *mean);
        for (int k = 0; k < s->index_group; k++) {
            const size_t from = (size_t)(first + k) * (size_t)d;
            const float *key = job->kv == DTYPE_F32 ? kv_floats(job->keys, from, d, decoded, DTYPE_F32)
                             : job->kv == DTYPE_BF16 ? kv_floats(job->keys, from, d, decoded, DTYPE_BF16) : kv_floats(job->keys, from, d, decoded, DTYPE_FP8);
            for (int i = 0; i < d; i++) mean[i] += key[i];
        }
        for (int i = 0; i < d; i++) mean[i] /= (float)s->index_group;
        for (int axis = 0; axis < ROW_AXES; axis++) at.position[axis] -= s->index_group - 1;
        attention_angles(job->w, &at, 1, angles);
        rms_norm(mean, mean, job->w->index_k_norm, 1, d, s->eps);
        rotate(mean, angles, s->rotary_dim);
        kv_store(job->kv, job->groups, (size_t)group * (size_t)d, mean, (size_t)d);
    }
}

INLINE void index_add_scores(const kv_rows *kv, const float *q, const int count, int first, int n, float scale, float *to, const dtype type) {
    float score[SPAN_QUERIES][SPAN] __attribute__((aligned(64)));
    const float *some[SPAN_QUERIES];
    for (int j = 0; j < count; j++) some[j] = q + (size_t)j * (size_t)kv->d;
    span_scores(kv, some, count, first, n, scale, score, type);
    for (int j = 0; j < count; j++)
        for (int i = 0; i < n; i++) to[i] += score[j][i] > 0 ? score[j][i] : 0;
}

/* Scores of n <= SPAN groups from `first` on, of row t. Never negative, and a number whatever the keys are. */
SIMD static void index_score(const index_job *job, int t, int first, int n, float *to) {
    const attention_shape *s = &job->w->shape;
    const kv_rows kv = {.k = job->groups, .v = NULL, .at = 0, .stride = (size_t)s->index_dim, .d = s->index_dim, .value_d = 0, .type = job->kv};
    const float *q = job->qk + (size_t)t * (size_t)(s->index_heads + 1) * (size_t)s->index_dim, scale = 1.0f / sqrtf((float)s->index_dim);
    memset(to, 0, (size_t)n * sizeof *to);
    for (int h = 0, count; h < s->index_heads; h += count, q += (size_t)count * (size_t)s->index_dim) {
        count = s->index_heads - h < SPAN_QUERIES ? 1 : SPAN_QUERIES;
#define OF_TYPE(TYPE)                                                                                   \
    if (job->kv == TYPE && count == 1) index_add_scores(&kv, q, 1, first, n, scale, to, TYPE);          \
    else if (job->kv == TYPE) index_add_scores(&kv, q, SPAN_QUERIES, first, n, scale, to, TYPE)
        OF_TYPE(DTYPE_F32);
        OF_TYPE(DTYPE_BF16);
        OF_TYPE(DTYPE_FP8);
#undef OF_TYPE
    }
}

/* The numbers of the `kept` < n best scores in ascending order, of equal ones the first. Scores are not negative, so their bits are in their
   order: the last one's are found eight bits at a time. */
static void index_select(const float *score, int n, int kept, int32_t *to) {
    uint32_t last = 0, mask = 0;
    int equal = kept, count = 0;               /* of those that have the bits `last` under the mask so many are kept */
    for (int shift = 24; shift >= 0; shift -= 8) {
        int histogram[256] = {0}, digit = 255;
        for (int i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &score[i], sizeof bits);
            if ((bits & mask) == last) histogram[bits >> shift & 255]++;
        }
        while (histogram[digit] < equal) equal -= histogram[digit--];
        last |= (uint32_t)digit << shift;
        mask |= (uint32_t)255 << shift;
    }
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &score[i], sizeof bits);
        if (bits < last || (bits == last && equal-- <= 0)) continue;
        to[count++] = i;
    }
}

/* For rows, each by one thread. */
static void index_rows(void *context, int begin, int end, int thread) {
    const index_job *job = (const index_job *)context;
    const attention_shape *s = &job->w->shape;
    float *scores = job->scores + (size_t)thread * job->score_stride;
    for (int t = begin; t < end; t++) {
        const int n = (job->index + t + 1) / s->index_group;
        if (!index_leaves_out(s, job->index + t)) continue;
        for (int first = 0; first < n; first += SPAN) index_score(job, t, first, min_int(n - first, SPAN), scores + first);
        index_select(scores, n, index_kept(s), job->chosen + (size_t)t * (size_t)index_kept(s));
    }
}

/* Spans of whole groups that the block's last row sees. */
static int index_spans(const index_job *job) {
    return ((job->index + job->T) / job->w->shape.index_group - 1) / SPAN + 1;
}

/* For items (row, span of groups), which threads share. */
static void index_shared_spans(void *context, int begin, int end, int thread) {
    const index_job *job = (const index_job *)context;
    const attention_shape *s = &job->w->shape;
    const int spans = index_spans(job);
    (void)thread;
    for (int item = begin; item < end; item++) {
        const int t = item / spans, first = item % spans * SPAN, n = min_int((job->index + t + 1) / s->index_group - first, SPAN);
        if (n > 0 && index_leaves_out(s, job->index + t)) index_score(job, t, first, n, job->scores + (size_t)t * job->score_stride + first);
    }
}

static void index_shared_rows(void *context, int begin, int end, int thread) {
    const index_job *job = (const index_job *)context;
    const attention_shape *s = &job->w->shape;
    (void)thread;
    for (int t = begin; t < end; t++)
        if (index_leaves_out(s, job->index + t))
            index_select(job->scores + (size_t)t * job->score_stride, (job->index + t + 1) / s->index_group, index_kept(s),
                         job->chosen + (size_t)t * (size_t)index_kept(s));
}

/* Keys, groups and the choice of each row that leaves tokens out. */
static void stage_index(pool *p, index_job *job) {
    const int group = job->w->shape.index_group, whole = (job->index + job->T) / group - job->index / group;
    parallel(p, job->T, index_prepare, job);
    if (whole) parallel(p, whole, index_pool, job);
    if (job->keys_only || !index_leaves_out(&job->w->shape, job->index + job->T - 1)) return;
    if (job->T > MOTE_ROWS_MAX) {
        parallel(p, job->T, index_rows, job);
        return;
    }
    parallel(p, job->T * index_spans(job), index_shared_spans, job);
    parallel(p, job->T, index_shared_rows, job);
}
