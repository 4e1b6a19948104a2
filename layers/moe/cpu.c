/* layers/moe/cpu.c: the stages of a mixture of experts on the CPU. Knows matrices and threads, no session.

   A router scores all experts for a row; the best top_k run, weighted by the softmax of their scores, or by sigmoids; the shared expert, if
   there is one, runs for every row, weighted by a sigmoid gate of its own, or by 1. Rows of a block often choose the same experts, so the work
   is listed by expert: a weight row is read once and used for all token rows that chose it. The shared expert is one more
   entry of that list, and comes last. A token's sum runs over its experts in ascending order, whatever the others chose. */

typedef struct moe_job {
    const moe_shape *shape;
    const moe_weights *w;
    int T;
    const float *u, *router_u, *shared_u;        /* [T][hidden] normalised rows: of routed experts, the router, the shared expert */
    float *router;               /* [T][experts] logits */
    float *rank, *group;         /* of a row: [experts] what they are chosen by, if moe_ranks_scores; [groups] */
    float *shared_gate;          /* [T] logits */
    int32_t *choice;             /* [T][top_k] experts of a row, ascending */
    float *weight;               /* [T][top_k] */
    int count;                   /* distinct experts, the shared one included */
    int32_t *list;               /* [experts + 1] which */
    int32_t *first;              /* [experts + 2] their first use; first[count] = all assignments */
    int routed;                  /* assignments of routed experts; those of the shared one follow */
    int32_t *assignment_row;            /* [T (top_k + 1)] row of a use */
    float *assignment_weight;           /* the same shape */
    float *h;                    /* [T (top_k + 1)][max(expert_size, shared_size)] */
    float *out, *shared_out;     /* [T][hidden] to which the output is added, and that of the shared expert */
    int from;                    /* entries of the list before those that a stage computes */
    token_limbs *limbs;          /* of u, and then of h, row by row */
} moe_job;

static int moe_width(const moe_shape *s) {
    return s->expert_size > s->shared_size ? s->expert_size : s->shared_size;
}

/* Blocks of rows of an expert's gate_proj and up_proj, at most. */
static int moe_blocks(const moe_shape *s) {
    return (moe_width(s) - 1) / ROW_BLOCK + 1;
}

/* The top_k largest of rank[experts] (the lower index first among equals), ascending by index. */
static void moe_pick(const moe_shape *s, const float *rank, int32_t *choice) {
    const int experts = s->experts, top_k = s->top_k;
    int n = 0;
    for (int e = 0; e < experts; e++) {
        int at = n < top_k ? n : top_k;
        while (at > 0 && rank[e] > rank[choice[at - 1]]) at--;
        if (at == top_k) continue;
        if (n < top_k) n++;
        memmove(choice + at + 1, choice + at, (size_t)(n - 1 - at) * sizeof *choice);
        choice[at] = e;
    }
    for (int i = 1; i < top_k; i++)
        for (int at = i; at > 0 && choice[at] < choice[at - 1]; at--) {
            int32_t other = choice[at];
            choice[at] = choice[at - 1];
            choice[at - 1] = other;
        }
}

/* Softmax over a row's chosen logits, which equals softmax over all experts renormalised to the chosen; or, of_all, that softmax itself. */
static void moe_weigh_softmax(const moe_shape *s, const float *logits, const int32_t *choice, float *weight) {
    float best = logits[choice[0]], sum = 0;
    for (int i = 1; i < s->top_k; i++) best = logits[choice[i]] > best ? logits[choice[i]] : best;
    for (int i = 0; i < s->top_k; i++) sum += weight[i] = expf(logits[choice[i]] - best);
    if (s->of_all) sum = 0;
    for (int e = 0; s->of_all && e < s->experts; e++) sum += expf(logits[e] - best);
    for (int i = 0; i < s->top_k; i++) weight[i] /= sum;
}

/* Sigmoids of the chosen logits, divided by their sum; or, of_all, as they are. */
static void moe_weigh_sigmoids(const moe_shape *s, const float *logits, const int32_t *choice, float *weight) {
    float sum = 1e-20f;                          /* as the models have it: no quotient of zeros */
    for (int i = 0; i < s->top_k; i++) sum += weight[i] = sigmoid(logits[choice[i]]);
    for (int i = 0; i < s->top_k && !s->of_all; i++) weight[i] /= sum;
}

/* -infinity becomes the rank of all experts that are not of one of the groups_kept groups whose two best ranks have the largest sum (the lower
   index first among equals). group: [groups] these sums. */
static void moe_keep_groups(const moe_shape *s, float *rank, float *group) {
    const int size = s->experts / s->groups;
    for (int g = 0; g < s->groups; g++) {
        float best = -INFINITY, second = -INFINITY;
        for (int e = g * size; e < (g + 1) * size; e++) {
            if (rank[e] > best) second = best, best = rank[e];
            else if (rank[e] > second) second = rank[e];
        }
        group[g] = best + second;
    }
    for (int g = 0; g < s->groups; g++) {
        int before = 0;
        for (int k = 0; k < s->groups; k++) before += group[k] > group[g] || (group[k] == group[g] && k < g);
        for (int e = g * size; e < (g + 1) * size && before >= s->groups_kept; e++) rank[e] = -INFINITY;
    }
}

/* What the experts of a row are chosen by: its logits, or, in job->rank, what comes of them. */
static const float *moe_ranks(const moe_job *job, const float *logits) {
    const moe_shape *s = job->shape;
    if (!moe_ranks_scores(s)) return logits;
    for (int e = 0; e < s->experts; e++) {
        job->rank[e] = s->sigmoid ? sigmoid(logits[e]) : logits[e];
        if (s->corrected) job->rank[e] += job->w->correction[e];
    }
    if (s->groups) moe_keep_groups(s, job->rank, job->group);
    return job->rank;
}

/* A row's top_k experts, ascending by index, and their weights. */
static void moe_choose(const moe_job *job, const float *logits, int32_t *choice, float *weight) {
    const moe_shape *s = job->shape;
    moe_pick(s, moe_ranks(job, logits), choice);
    if (s->sigmoid) moe_weigh_sigmoids(s, logits, choice, weight);
    else moe_weigh_softmax(s, logits, choice, weight);
    for (int i = 0; i < s->top_k && s->routed_scale != 0; i++) weight[i] *= s->routed_scale;
    for (int i = 0; i < s->top_k && s->expert_scaled; i++) weight[i] *= job->w->expert_scale[choice[i]];
}

/* Sorts the rows' choices into assignments by expert (counting sort), and appends the shared expert, if there is one. */
static void moe_list_assignments(moe_job *job) {
    const moe_shape *s = job->shape;
    int32_t *cursor = job->list, at = 0;         /* before it holds the list, `list` counts and places the assignments */
    memset(cursor, 0, (size_t)(s->experts + 1) * sizeof *cursor);
    for (int i = 0; i < job->T * s->top_k; i++) cursor[job->choice[i]]++;
    for (int e = 0; e < s->experts; e++) {
        int32_t assignments = cursor[e];
        cursor[e] = at;
        at += assignments;
    }
    for (int i = 0; i < job->T * s->top_k; i++) {
        int32_t to = cursor[job->choice[i]]++;
        job->assignment_row[to] = i / s->top_k;
        job->assignment_weight[to] = job->weight[i];
    }
    job->count = 0;
    at = 0;
    for (int e = 0; e < s->experts; e++) {       /* cursor[e] is now the end of expert e's assignments */
        int32_t end = cursor[e];
        if (end == at) continue;
        job->list[job->count] = e;               /* count <= e: what is overwritten has been read */
        job->first[job->count++] = at;
        at = end;
    }
    job->first[job->count] = job->routed = at;
    if (!s->shared_size) return;
    job->list[job->count++] = s->experts;
    for (int t = 0; t < job->T; t++, at++) {
        job->assignment_row[at] = t;
        job->assignment_weight[at] = s->shared_ungated ? 1 : sigmoid(job->shared_gate[t]);
    }
    job->first[job->count] = at;
}

/* norm_router, without the norm: router logits; choice and weights; list of distinct experts. */
static void stage_router(pool *p, moe_job *job) {
    const moe_shape *s = job->shape;
    projection scores = projection_of(job->router_u, job->T, job->limbs);
    projection_add(&scores, &job->w->router, job->router);
    if (s->shared_size && !s->shared_ungated) projection_add(&scores, &job->w->shared_expert_gate, job->shared_gate);
    project(p, &scores);
    for (int t = 0; t < job->T; t++)
        moe_choose(job, job->router + (size_t)t * (size_t)s->experts,
                   job->choice + (size_t)t * (size_t)s->top_k, job->weight + (size_t)t * (size_t)s->top_k);
    moe_list_assignments(job);
}

/* What an expert makes of an element of gate_proj u and up_proj u. */
static inline float moe_activate(const moe_shape *s, float gate, float up) {
    if (s->limit != 0) {
        gate = gate > s->limit ? s->limit : gate;
        up = up > s->limit ? s->limit : up < -s->limit ? -s->limit : up;
    }
    if (s->squared_relu) return up < 0 ? 0 : up * up;
    if (s->gelu) return gelu(gate) * up;
    return s->alpha != 0 ? gate * sigmoid(s->alpha * gate) * (up + 1) : silu(gate) * up;
}

/* h[use][r] = moe_activate of gate_proj[r] . u and up_proj[r] . u for a block of rows r, for all uses of expert i of the list. */
static void moe_up_block(const moe_job *job, int i, int block) {
    const moe_shape *s = job->shape;
    const matrix *gate_proj = &job->w->gate_proj[job->list[i]], *up_proj = &job->w->up_proj[job->list[i]];
    const float *u = job->list[i] == s->experts ? job->shared_u : job->u;
    int row = block * ROW_BLOCK, rows = block_rows(gate_proj, block);
    size_t width = (size_t)moe_width(s);
    for (int first = job->first[i]; first < job->first[i + 1]; first += TOKEN_BATCH) {
        token_batch tokens;
        float gate[TOKEN_BATCH][ROW_BLOCK], up[TOKEN_BATCH][ROW_BLOCK];
        const float (*gated)[ROW_BLOCK] = s->squared_relu ? up : gate;
        tokens.count = job->first[i + 1] - first < TOKEN_BATCH ? job->first[i + 1] - first : TOKEN_BATCH;
        for (int j = 0; j < tokens.count; j++) {
            size_t t = (size_t)job->assignment_row[first + j];
            tokens.x[j] = u + t * (size_t)s->hidden;
            tokens.limbs[j] = job->limbs + t * (size_t)col_block_count(s->hidden);
        }
        if (!s->squared_relu) matrix_block_dots(gate_proj, row, rows, &tokens, gate);
        matrix_block_dots(up_proj, row, rows, &tokens, up);
        for (int j = 0; j < tokens.count; j++)
            for (int r = 0; r < rows; r++)
                job->h[(size_t)(first + j) * width + (size_t)(row + r)] = moe_activate(s, gated[j][r], up[j][r]);
    }
}

/* Items: blocks of rows of each expert of the list, from job->from on. */
static void moe_up_blocks(void *context, int begin, int end, int thread) {
    const moe_job *job = (const moe_job *)context;
    int blocks = moe_blocks(job->shape);
    (void)thread;
    for (int item = begin; item < end; item++) {
        int i = job->from + item / blocks, block = item % blocks;
        if (block < row_blocks(&job->w->gate_proj[job->list[i]])) moe_up_block(job, i, block);
    }
}

/* Of an assignment's h. Those of the shared expert come last, and may have another width. */
static token_limbs *moe_h_limbs(const moe_job *job, int assignment) {
    const int routed = job->routed, shared = assignment > routed ? assignment - routed : 0;
    return job->limbs + (size_t)(assignment - shared) * (size_t)col_block_count(job->shape->expert_size) +
           (shared ? (size_t)shared * (size_t)col_block_count(job->shape->shared_size) : 0);
}

/* out[t][r] += weight * (down_proj[r] . h[use]) for a block of rows r, for all uses of expert i of the list. */
static void moe_down_block(const moe_job *job, int i, int block) {
    const moe_shape *s = job->shape;
    const matrix *down_proj = &job->w->down_proj[job->list[i]];
    float *to = job->list[i] == s->experts ? job->shared_out : job->out;
    int row = block * ROW_BLOCK, rows = block_rows(down_proj, block);
    size_t width = (size_t)moe_width(s);
    for (int first = job->first[i]; first < job->first[i + 1]; first += TOKEN_BATCH) {
        token_batch tokens;
        float y[TOKEN_BATCH][ROW_BLOCK];
        tokens.count = job->first[i + 1] - first < TOKEN_BATCH ? job->first[i + 1] - first : TOKEN_BATCH;
        for (int j = 0; j < tokens.count; j++) {
            tokens.x[j] = job->h + (size_t)(first + j) * width;
            tokens.limbs[j] = moe_h_limbs(job, first + j);
        }
        matrix_block_dots(down_proj, row, rows, &tokens, y);
        for (int j = 0; j < tokens.count; j++) {
            float *out = to + (size_t)job->assignment_row[first + j] * (size_t)s->hidden + (size_t)row;
            for (int r = 0; r < rows; r++) out[r] += job->assignment_weight[first + j] * y[j][r];
        }
    }
}

/* Items: blocks of output rows. Expert by expert, so that of each a long run of memory is read. */
static void moe_down_blocks(void *context, int begin, int end, int thread) {
    const moe_job *job = (const moe_job *)context;
    (void)thread;
    for (int i = 0; i < job->count; i++)
        for (int block = begin; block < end; block++) moe_down_block(job, i, block);
}

/* Which limbs the experts of the list take. */
static unsigned moe_limb_kinds(const moe_job *job, const matrix *w) {
    unsigned kinds = 0;
    for (int i = 0; i < job->count; i++) kinds |= limb_kinds(&w[job->list[i]]);
    return kinds;
}

/* h of entries [from, end) of the list, which read u. */
static void moe_up(pool *p, moe_job *job, const float *u, int from, int end) {
    const unsigned kinds = moe_limb_kinds(job, job->w->gate_proj) | moe_limb_kinds(job, job->w->up_proj);
    limb_rows rows = {.x = u, .stride = (size_t)job->shape->hidden, .rows = job->T, .cols = job->shape->hidden, .to = job->limbs,
                      .kinds = kinds};
    limbs_of_rows(p, &rows);
    job->from = from;
    parallel(p, (end - from) * moe_blocks(job->shape), moe_up_blocks, job);
}

/* experts_up, experts_down: out += weighted sum of the chosen experts and the shared one. */
static void stage_experts_up(pool *p, moe_job *job) {
    const int apart = job->shape->shared_size && job->shared_u != job->u;
    moe_up(p, job, job->u, 0, job->count - apart);
    if (apart) moe_up(p, job, job->shared_u, job->count - 1, job->count);
}

static void stage_experts_down(pool *p, moe_job *job) {
    const moe_shape *s = job->shape;
    const int routed = job->routed;
    const size_t width = (size_t)moe_width(s);
    const unsigned kinds = moe_limb_kinds(job, job->w->down_proj);
    limb_rows rows = {.x = job->h, .stride = width, .rows = routed, .cols = s->expert_size, .to = job->limbs, .kinds = kinds};
    limb_rows shared = {.x = job->h + (size_t)routed * width, .stride = width, .rows = job->T, .cols = s->shared_size,
                        .to = moe_h_limbs(job, routed), .kinds = kinds};
    limbs_of_rows(p, &rows);
    if (s->shared_size) limbs_of_rows(p, &shared);
    parallel(p, row_blocks(&job->w->down_proj[0]), moe_down_blocks, job);
}

/* The implementation of layers/kinds.c. */

/* Floats of a row's limbs: of u, or of all its h. */
static size_t moe_limb_floats(const moe_shape *s) {
    const size_t shared = s->shared_size ? (size_t)col_block_count(s->shared_size) : 0;
    const size_t h = (size_t)s->top_k * (size_t)col_block_count(s->expert_size) + shared;
    return max_size((size_t)col_block_count(s->hidden), h) * (sizeof(token_limbs) / sizeof(float));
}

static void moe_layout_scratch(layout *l, const moe_shape *s, const capacity *r, moe_job *to) {
    size_t T = (size_t)r->rows, uses = T * ((size_t)s->top_k + 1);
    to->shape = s;
    to->router = layout_alloc(l, T * (size_t)s->experts);
    to->rank = layout_alloc(l, moe_ranks_scores(s) ? (size_t)s->experts : 0);
    to->group = layout_alloc(l, (size_t)s->groups);
    to->shared_gate = layout_alloc(l, T);
    to->weight = layout_alloc(l, uses);
    to->assignment_weight = layout_alloc(l, uses);
    to->h = layout_alloc(l, uses * (size_t)moe_width(s));
    to->choice = (int32_t *)(void *)layout_alloc(l, uses);
    to->list = (int32_t *)(void *)layout_alloc(l, (size_t)s->experts + 1);
    to->first = (int32_t *)(void *)layout_alloc(l, (size_t)s->experts + 2);
    to->assignment_row = (int32_t *)(void *)layout_alloc(l, uses);
    to->limbs = (token_limbs *)(void *)layout_alloc(l, T * moe_limb_floats(s));
}

static void moe_forward(const token_rows *rows, const moe_weights *w, moe_job *job) {
    job->shape = &w->shape;
    job->w = w;
    job->T = rows->T;
    job->u = rows->u;
    job->router_u = rows->router_u;
    job->shared_u = rows->shared_u;
    job->out = rows->out;
    job->shared_out = rows->shared_out;
    stage_router(rows->threads, job);
    if (rows->chosen) *rows->chosen = job->count - (w->shape.shared_size > 0);
    stage_experts_up(rows->threads, job);
    stage_experts_down(rows->threads, job);
}
