/* session/logprobs.c: the most probable tokens of a row of logits, their log-probabilities, and those of a prompt's tokens. It
   knows rows of logits, and nothing of how they are computed or of who chooses.

   The candidates lie in a heap, most probable on top. */

static int is_better(const float *value, int32_t a, int32_t b) {
    return value[a] > value[b] || (value[a] == value[b] && a < b);
}

static void heap_sink(int32_t *heap, int n, int at, const float *value) {
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && is_better(value, heap[child + 1], heap[child])) child++;
        if (!is_better(value, heap[child], heap[at])) return;
        int32_t other = heap[at];
        heap[at] = heap[child];
        heap[child] = other;
        at = child;
    }
}

/* Takes the best candidates off the heap of n until `stop` of them are off or their weights, exp((value - best) /
   temperature), sum to `mass`, or one is lighter than `least`. They end up at heap[n-1], heap[n-2], ... Returns how many,
   and their weight in *sum. */
static int heap_take(int32_t *heap, int n, const float *value, float temperature, int stop, double mass, double least,
                     double *sum) {
    int taken = 0;
    float best = value[heap[0]];
    *sum = 0;
    while (taken < n && taken < stop && *sum < mass) {
        int32_t top = heap[0];
        double weight = exp((double)(value[top] - best) / temperature);
        if (taken && weight < least) break;
        heap[0] = heap[n - 1 - taken];
        heap[n - 1 - taken] = top;
        heap_sink(heap, n - 1 - taken, 0, value);
        *sum += weight;
        taken++;
    }
    return taken;
}

/* Takes the `top` most probable tokens of a row of logits off the heap of all: they end up at heap[vocab-1], heap[vocab-2], ...
   Returns the logarithm of the sum of all exp(logit). heap: [vocab]. */
static double row_best(const float *logits, int vocab, int top, int32_t *heap) {
    double total = 0, sum;
    float best = logits[0];
    for (int i = 1; i < vocab; i++) best = logits[i] > best ? logits[i] : best;
    for (int i = 0; i < vocab; i++) total += exp((double)(logits[i] - best));
    for (int i = 0; i < vocab && top; i++) heap[i] = i;
    for (int i = vocab / 2; top && i-- > 0;) heap_sink(heap, vocab, i, logits);
    if (top) (void)heap_take(heap, vocab, logits, 1, top, INFINITY, 0, &sum);
    return (double)best + log(total);
}

/* out[0] = the log-probability of `id` by a row of logits, out[1..top] = the most probable tokens, best first. heap: [vocab].
   */
static void row_logprobs(const float *logits, int vocab, int32_t id, int top, int32_t *heap, mote_logprob *out) {
    double total = row_best(logits, vocab, top, heap);
    for (int i = 0; i <= top; i++) {
        out[i].id = i ? heap[vocab - i] : id;
        out[i].logprob = (float)((double)logits[out[i].id] - total);
    }
}

/* Scores: the log-probability of each token of a prompt by the row before it, as rows are computed. So there is room for a few
   rows of logits only, not for one a token. */

enum { SCORED_ROWS = 32 };                                  /* at a time */

typedef struct prompt_scores {
    const int32_t *ids;          /* [count] of the prompt */
    size_t count;
    int top;
    mote_logprob *tokens;        /* [count] */
    mote_logprob *alternatives;  /* [count][top] */
    mote_logprob *one;           /* [1 + top] */
    float *rows;                 /* [SCORED_ROWS][vocab], or [count][vocab] of fewer */
    int32_t *heap;               /* [vocab] */
} prompt_scores;

static void scores_close(prompt_scores *p) {
    free(p->rows);
    free(p->one);
}

static int scores_open(prompt_scores *p, const mote_session *s, const int32_t *ids, size_t count, int top, mote_error *err) {
    size_t rows = count < SCORED_ROWS ? count : (size_t)SCORED_ROWS;
    memset(p, 0, sizeof *p);
    p->ids = ids;
    p->count = count;
    p->top = top;
    p->heap = s->s.heap;
    p->rows = (float *)malloc(rows * (size_t)s->m->c.vocab * sizeof(float) + 1);
    p->one = (mote_logprob *)malloc(((size_t)top + 1) * sizeof *p->one);
    if (p->rows && p->one) return MOTE_OK;
    scores_close(p);
    return fail_memory(err);
}

/* Token `at` of the prompt, by the row of logits before it; NULL: there is none. */
static void score_token(prompt_scores *p, const float *logits, int vocab, size_t at) {
    mote_logprob nothing = {-1, 0};
    for (int i = 0; i <= p->top; i++) p->one[i] = nothing;
    p->one[0].id = p->ids[at];
    if (logits) row_logprobs(logits, vocab, p->ids[at], p->top, p->heap, p->one);
    p->tokens[at] = p->one[0];
    if (p->top) memcpy(p->alternatives + at * (size_t)p->top, p->one + 1, (size_t)p->top * sizeof *p->one);
}

/* p->rows are those of n tokens, the first of which is number `first`. */
static void score_rows(prompt_scores *p, int vocab, size_t first, int n) {
    for (size_t i = 0; i < (size_t)n && first + i + 1 < p->count; i++)
        score_token(p, p->rows + i * (size_t)vocab, vocab, first + i + 1);
}
