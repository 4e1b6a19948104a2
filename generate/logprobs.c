/* generate/logprobs.c: the most probable tokens of a row of logits, their log-probabilities, and those of a prompt's tokens:
   mote_feed_logprobs. It knows rows of logits, and nothing of how they are computed or of who chooses.

   The candidates lie in a heap, most probable on top. */

static int is_better(const float *value, int32_t a, int32_t b) {
    return value[a] > value[b] || (value[a] == value[b] && a < b);
}

/* Restores the heap below `at`: the best on top, or the worst. */
static void heap_sink(int32_t *heap, int n, int at, const float *value, int worst) {
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && is_better(value, heap[child + 1], heap[child]) != worst) child++;
        if (is_better(value, heap[child], heap[at]) == worst) return;
        int32_t other = heap[at];
        heap[at] = heap[child];
        heap[child] = other;
        at = child;
    }
}

static void heap_make(int32_t *heap, int n, const float *value, int worst) {
    for (int i = n / 2; i-- > 0;) heap_sink(heap, n, i, value, worst);
}

/* heap[0...count) = the best `count` of n candidates as a heap, the best on top. While they are sought the worst of them is on
   top, so that nearly all candidates cost one comparison. */
static void heap_fill(int32_t *heap, int count, int n, const float *value) {
    for (int i = 0; i < count; i++) heap[i] = i;
    if (count < n) heap_make(heap, count, value, 1);
    for (int i = count; i < n && count; i++) {
        if (value[i] > value[heap[0]]) {                    /* of equals the first is better */
            heap[0] = i;
            heap_sink(heap, count, 0, value, 1);
        }
    }
    heap_make(heap, count, value, 0);
}

/* Takes the best candidates off the heap of n until all are off, or their weights, exp((value - best) / temperature), sum to
   `mass`, or one is lighter than `least`. They end up at heap[n-1], heap[n-2], ... Returns how many, and their weight in
   *sum. */
static int heap_take(int32_t *heap, int n, const float *value, float temperature, double mass, double least, double *sum) {
    int taken = 0;
    float best = value[heap[0]];
    *sum = 0;
    while (taken < n && *sum < mass) {
        int32_t top = heap[0];
        double weight = exp((double)(value[top] - best) / temperature);
        if (taken && weight < least) break;
        heap[0] = heap[n - 1 - taken];
        heap[n - 1 - taken] = top;
        heap_sink(heap, n - 1 - taken, 0, value, 0);
        *sum += weight;
        taken++;
    }
    return taken;
}

/* Finds the `top` most probable tokens of a row of logits: they end up at heap[top-1], heap[top-2], ... Returns the logarithm
   of the sum of all exp(logit). heap: [top]. */
static double row_best(const float *logits, int vocab, int top, int32_t *heap) {
    double total = 0, sum;
    float best = logits[0];
    for (int i = 1; i < vocab; i++) best = logits[i] > best ? logits[i] : best;
    for (int i = 0; i < vocab; i++) total += exp((double)(logits[i] - best));
    heap_fill(heap, top, vocab, logits);
    if (top) (void)heap_take(heap, top, logits, 1, INFINITY, 0, &sum);
    return (double)best + log(total);
}

/* out[0] = the log-probability of `id` by a row of logits, out[1..top] = the most probable tokens, best first. heap: [top]. */
static void row_logprobs(const float *logits, int vocab, int32_t id, int top, int32_t *heap, mote_logprob *out) {
    double total = row_best(logits, vocab, top, heap);
    for (int i = 0; i <= top; i++) {
        out[i].id = i ? heap[top - i] : id;
        out[i].logprob = (float)((double)logits[out[i].id] - total);
    }
}

/* Scores: the log-probability of each token of a prompt by the row before it, as rows are computed. So there is space for a few
   rows of logits only, not for one a token. */

enum { SCORED_ROWS = 32 };                                  /* at a time */

typedef struct prompt_scores {
    const int32_t *ids;          /* [count] of the prompt */
    size_t count;
    int top, vocab;
    mote_logprob *tokens;        /* [count] */
    mote_logprob *alternatives;  /* [count][top] */
    mote_logprob *one;           /* [1 + top] */
    float *rows;                 /* [SCORED_ROWS][vocab], or [count][vocab] of fewer */
    int32_t *heap;               /* [top] */
} prompt_scores;

static void scores_close(prompt_scores *p) {
    free(p->rows);
    free(p->one);
}

/* To be closed in any case. */
static int scores_open(prompt_scores *p, const mote_session *s, const int32_t *ids, size_t count, int top, mote_error *err) {
    size_t rows = count < SCORED_ROWS ? count : (size_t)SCORED_ROWS;
    memset(p, 0, sizeof *p);
    p->ids = ids;
    p->count = count;
    p->top = top;
    p->vocab = s->m->c.vocab;
    p->heap = s->decoder->heap;
    p->rows = (float *)malloc(rows * (size_t)s->m->c.vocab * sizeof(float) + 1);
    p->one = (mote_logprob *)malloc(((size_t)top + 1) * sizeof *p->one);
    return p->rows && p->one ? MOTE_OK : fail_memory(err);
}

/* Token `at` of the prompt, by the row of logits before it; NULL: there is none. */
static void score_token(prompt_scores *p, const float *logits, size_t at) {
    mote_logprob nothing = {-1, 0};
    for (int i = 0; i <= p->top; i++) p->one[i] = nothing;
    p->one[0].id = p->ids[at];
    if (logits) row_logprobs(logits, p->vocab, p->ids[at], p->top, p->heap, p->one);
    p->tokens[at] = p->one[0];
    if (p->top) memcpy(p->alternatives + at * (size_t)p->top, p->one + 1, (size_t)p->top * sizeof *p->one);
}

/* rows: those of n tokens, the first of which is number `first`. */
static void score_rows(void *user, const float *rows, size_t first, int n) {
    prompt_scores *p = (prompt_scores *)user;
    for (size_t i = 0; i < (size_t)n && first + i + 1 < p->count; i++)
        score_token(p, rows + i * (size_t)p->vocab, first + i + 1);
}

int mote_feed_logprobs(mote_session *session, const int32_t *ids, size_t count, int top, mote_logprob *tokens,
                       mote_logprob *alternatives, mote_error *error) {
    mote_session *s = session;
    prompt_scores scores;
    int code = session_enter(s, (ids && tokens && (alternatives || !top)) || !count,
                             "mote_feed_logprobs: needs a session, tokens, and room for the results", error);
    if (!code && (top < 0 || top > s->m->c.vocab))
        code = fail(error, MOTE_EINVAL, "%d alternatives asked for, expected 0 to %d", top, s->m->c.vocab);
    if (!code) code = check_ids(s, s->count, ids, count, error);
    if (code || !count) return code;
    code = session_begin(s, "mote_feed_logprobs", error);
    if (code) return code;
    const int before = s->count;
    code = scores_open(&scores, s, ids, count, top, error);
    scores.tokens = tokens;
    scores.alternatives = alternatives;
    if (!code) code = session_logits(s, error);
    if (!code) score_token(&scores, s->count ? s->slot.logits : NULL, 0);
    const logits_reader reader = {score_rows, &scores, scores.rows, SCORED_ROWS};
    const feed_results wanted = {NULL, NULL, &reader, NULL};
    if (!code) code = feed(s, ids, count, &wanted, error);
    if (s->count > before) forget_answer(s);
    scores_close(&scores);
    session_leave(s);
    return code;
}
