/* session/sampling.c: from logits to a token: penalties, temperature, top-k, top-p, min-p; one decode step.

   The candidates lie in a heap, most probable on top; taking them off one by one stops as soon as top-k, top-p or min-p
   say so, which is after a few of a vocabulary of 248,320. */

/* w->sorted = logits after penalties. */
static void penalise(const mote_session *s, const mote_sampling *p) {
    const scratch *w = &s->s;
    float repetition = p->repetition_penalty > 0 ? p->repetition_penalty : 1;
    for (int i = 0; i < s->count; i++) {
        int32_t id = s->tokens[i];
        if (!w->seen[id]++) w->sorted[id] = w->sorted[id] > 0 ? w->sorted[id] / repetition : w->sorted[id] * repetition;
    }
    for (int i = 0; i < s->count; i++) w->seen[s->tokens[i]] = 0;
    for (int i = s->generated_from; i < s->count; i++) {
        int32_t id = s->tokens[i];
        w->sorted[id] -= p->frequency_penalty + (w->seen[id]++ ? 0 : p->presence_penalty);
    }
    for (int i = s->generated_from; i < s->count; i++) w->seen[s->tokens[i]] = 0;
}

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

/* Draws from the distribution after penalties, in w->sorted. */
static int32_t sample(const mote_session *s, const mote_sampling *p, int n) {
    const scratch *w = &s->s;
    int32_t *heap = w->heap;
    double total = 0, sum, mass = 0;
    for (int i = 0; i < n; i++) heap[i] = i;
    for (int i = n / 2; i-- > 0;) heap_sink(heap, n, i, w->sorted);
    float best = w->sorted[heap[0]], temperature = p->temperature;
    int stop = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    if (stop == n && p->top_p > 0 && p->top_p < 1)
        for (int i = 0; i < n; i++) total += exp((double)(w->sorted[i] - best) / temperature);
    double least = p->min_p, limit = p->top_p > 0 && p->top_p < 1 ? p->top_p : INFINITY;
    if (stop < n && limit < INFINITY) {                     /* top-p is a share of what top-k leaves */
        int taken = heap_take(heap, n, w->sorted, temperature, stop, INFINITY, 0, &total);
        for (int i = 0; i < taken / 2; i++) {               /* best first again: sorted, hence a heap */
            int32_t other = heap[n - 1 - i];
            heap[n - 1 - i] = heap[n - taken + i];
            heap[n - taken + i] = other;
        }
        heap += n - taken;
        n = taken;
    }
    int taken = heap_take(heap, n, w->sorted, temperature, stop, limit * (limit < INFINITY ? total : 1), least, &sum);
    double draw = uniform(p->seed, (uint64_t)s->count) * sum;
    for (int i = 0; i < taken; i++) {
        mass += exp((double)(w->sorted[heap[n - 1 - i]] - best) / temperature);
        if (draw < mass) return heap[n - 1 - i];
    }
    return heap[n - taken];
}

static int check_sampling(const mote_sampling *p, mote_error *err) {
    if (!(p->temperature >= 0 && p->temperature <= 1000))
        return fail(err, MOTE_EINVAL, "temperature must be from 0 to 1000");
    if (p->top_k < 0) return fail(err, MOTE_EINVAL, "top_k must not be negative");
    if (!(p->top_p >= 0 && p->top_p <= 1)) return fail(err, MOTE_EINVAL, "top_p must be from 0 to 1");
    if (!(p->min_p >= 0 && p->min_p <= 1)) return fail(err, MOTE_EINVAL, "min_p must be from 0 to 1");
    if (!(p->repetition_penalty >= 0 && p->repetition_penalty <= 1000))
        return fail(err, MOTE_EINVAL, "repetition_penalty must be from 0 to 1000");
    if (!isfinite(p->presence_penalty) || !isfinite(p->frequency_penalty))
        return fail(err, MOTE_EINVAL, "presence_penalty and frequency_penalty must be finite");
    return MOTE_OK;
}

static int check_not_empty(const mote_session *s, mote_error *err) {
    return s->count ? MOTE_OK : fail(err, MOTE_EINVAL, "the timeline is empty: there is nothing to continue");
}

/* mote_sample behind the door, of checked sampling and a timeline that is not empty. */
static int choose(const mote_session *s, const mote_sampling *sampling, int32_t *id, mote_error *err) {
    const scratch *w = &s->s;
    int n = sample_vocab(s), best = -1;
    int code = session_logits(s, err);
    if (code) return code;
    memcpy(w->sorted, s->logits, (size_t)n * sizeof(float));
    penalise(s, sampling);
    for (int i = 0; i < n; i++) {
        if (isnan(w->sorted[i]))
            return fail(err, MOTE_EFORMAT, "the logit of token %d is not a number: are the weights damaged?", i);
        if (best < 0 || w->sorted[i] > w->sorted[best]) best = i;
    }
    *id = sampling->temperature > 0 && isfinite(w->sorted[best]) ? sample(s, sampling, n) : best;
    return MOTE_OK;
}

int mote_sample(const mote_session *session, const mote_sampling *sampling, int32_t *id, mote_error *error) {
    mote_sampling greedy;
    memset(&greedy, 0, sizeof greedy);
    if (!sampling) sampling = &greedy;
    int code = session_enter(session, id != NULL, "mote_sample: needs a session and a place for the token", error);
    if (!code) code = check_sampling(sampling, error);
    if (!code) code = check_not_empty(session, error);
    return code ? code : choose(session, sampling, id, error);
}

/* Whether the device can choose the token by itself: no penalties, and a kind of sampling that it knows. */
static int can_sample_on_gpu(const mote_session *s, const mote_sampling *p) {
#ifdef __CUDACC__
    int penalties = (p->repetition_penalty > 0 && p->repetition_penalty != 1) || p->presence_penalty != 0 ||
                    p->frequency_penalty != 0;
    return s->gpu && s->count && !penalties && gpu_can_sample(sample_vocab(s), p->temperature, p->top_k);
#else
    (void)s;
    (void)p;
    return 0;
#endif
}

int mote_step(mote_session *session, const mote_sampling *sampling, int32_t *id, mote_error *error) {
    mote_session *s = session;
    mote_sampling greedy;
    int32_t next;
    memset(&greedy, 0, sizeof greedy);
    if (!sampling) sampling = &greedy;
    int code = session_enter(s, id != NULL, "mote_step: needs a session and a place for the token", error);
    if (!code && s->count >= s->o.context)
        code = fail(error, MOTE_ECONTEXT, "the context of %d tokens is full", s->o.context);
    if (!code) code = check_sampling(sampling, error);
    if (!code) code = check_not_empty(s, error);
    if (code) return code;
    if (can_sample_on_gpu(s, sampling)) {
#ifdef __CUDACC__
        code = gpu_step_sampled(s, sampling, &next, error);
        if (!code) s->tokens[s->count] = next;
#endif
    } else {
        code = choose(s, sampling, &next, error);
        if (!code) code = forward(s, &next, 1, 1, NULL, NULL, error);
    }
    if (code) return code;
    session_keep(s, 1);
    *id = next;
    return MOTE_OK;
}

int mote_top_logprobs(const mote_session *session, int n, int32_t *ids, float *logprobs, mote_error *error) {
    int code = session_enter(session, ids && logprobs, "mote_top_logprobs: needs a session and places for the results", error);
    if (!code) code = check_not_empty(session, error);
    if (!code && (n < 1 || n > session->m->c.vocab))
        code = fail(error, MOTE_EINVAL, "%d tokens asked for, expected 1 to %d", n, session->m->c.vocab);
    if (!code) code = session_logits(session, error);
    if (code) return code;
    const scratch *w = &session->s;
    int vocab = session->m->c.vocab;
    double total = 0, sum;
    for (int i = 0; i < vocab; i++) w->heap[i] = i;
    for (int i = vocab / 2; i-- > 0;) heap_sink(w->heap, vocab, i, session->logits);
    float best = session->logits[w->heap[0]];
    for (int i = 0; i < vocab; i++) total += exp((double)(session->logits[i] - best));
    heap_take(w->heap, vocab, session->logits, 1, n, INFINITY, 0, &sum);
    for (int i = 0; i < n; i++) {
        ids[i] = w->heap[vocab - 1 - i];
        logprobs[i] = (float)((double)(session->logits[ids[i]] - best) - log(total));
    }
    return MOTE_OK;
}
