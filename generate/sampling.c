/* generate/sampling.c: from logits to a token: bias, penalties, the application's own word, temperature, top-k, top-p, min-p;
   one decode step.

   The candidates, the best top-k or all, lie in a heap (logprobs.c); taking them off one by one stops as soon as top-p or
   min-p say so, which is after a few of a vocabulary of 248,320. */

/* The choice of the tokens of an answer, or of a step. */
typedef struct sampler {
    mote_sampling p;
    constraint *grammar;         /* what the answer must be; NULL: anything */
    int (*on_logits)(void *user, float *logits, int vocab_size);                /* NULL: none */
    void *user;
    int stopped;                 /* on_logits asked to stop: no token was chosen */
    mote_logprob *logprobs;      /* [1 + top]: of the token chosen last, then the most probable ones; NULL: not wanted */
    int top;
} sampler;

static sampler sampler_of(const mote_sampling *sampling) {
    struct sampler sampler;
    memset(&sampler, 0, sizeof sampler);
    if (sampling) sampler.p = *sampling;
    return sampler;
}

/* s->decoder->sorted: logits after bias and penalties. */
static void penalise(const mote_session *s, const mote_sampling *p) {
    float *sorted = s->decoder->sorted, repetition = p->repetition_penalty > 0 ? p->repetition_penalty : 1;
    int32_t *counts = s->decoder->counts;
    for (int i = 0; i < p->bias_count; i++) {
        const mote_bias *b = &p->bias[i];
        sorted[b->id] = b->bias > -INFINITY ? sorted[b->id] + b->bias : -INFINITY;
    }
    for (int i = 0; i < s->count; i++) {
        int32_t id = s->tokens[i];
        if (!counts[id]++) sorted[id] = sorted[id] > 0 ? sorted[id] / repetition : sorted[id] * repetition;
    }
    for (int i = 0; i < s->count; i++) counts[s->tokens[i]] = 0;
    for (int i = s->generated_from; i < s->count; i++) {
        int32_t id = s->tokens[i];
        sorted[id] -= p->frequency_penalty + (counts[id]++ ? 0 : p->presence_penalty);
    }
    for (int i = s->generated_from; i < s->count; i++) counts[s->tokens[i]] = 0;
}

/* Draws from the distribution after penalties, in s->decoder->sorted. */
static int32_t sample(const mote_session *s, const mote_sampling *p, int n) {
    int32_t *heap = s->decoder->heap;
    const float *sorted = s->decoder->sorted;
    double total = 0, sum, mass = 0;
    int kept = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    heap_fill(heap, kept, n, sorted);
    float best = sorted[heap[0]], temperature = p->temperature;
    double least = p->min_p > 0 ? p->min_p : DBL_TRUE_MIN, limit = p->top_p > 0 && p->top_p < 1 ? p->top_p : INFINITY;
    if (limit < INFINITY && kept == n)
        for (int i = 0; i < n; i++) total += exp((double)(sorted[i] - best) / temperature);
    if (limit < INFINITY && kept < n) {                     /* top-p is a share of what top-k leaves */
        (void)heap_take(heap, kept, sorted, temperature, INFINITY, 0, &total);
        heap_make(heap, kept, sorted, 0);
    }
    int taken = heap_take(heap, kept, sorted, temperature, limit * (limit < INFINITY ? total : 1), least, &sum);
    double draw = uniform(p->seed, (uint64_t)s->count) * sum;
    for (int i = 0; i < taken; i++) {
        mass += exp((double)(sorted[heap[kept - 1 - i]] - best) / temperature);
        if (draw < mass) return heap[kept - 1 - i];
    }
    return heap[kept - taken];
}

static int check_sampling(const mote_model *m, const mote_sampling *p, mote_error *err) {
    if (!(p->temperature >= 0 && p->temperature <= 1000))
        return fail(err, MOTE_EINVAL, "temperature must be from 0 to 1000");
    if (p->top_k < 0) return fail(err, MOTE_EINVAL, "top_k must not be negative");
    if (!(p->top_p >= 0 && p->top_p <= 1)) return fail(err, MOTE_EINVAL, "top_p must be from 0 to 1");
    if (!(p->min_p >= 0 && p->min_p <= 1)) return fail(err, MOTE_EINVAL, "min_p must be from 0 to 1");
    if (!(p->repetition_penalty >= 0 && p->repetition_penalty <= 1000))
        return fail(err, MOTE_EINVAL, "repetition_penalty must be from 0 to 1000");
    if (!isfinite(p->presence_penalty) || !isfinite(p->frequency_penalty))
        return fail(err, MOTE_EINVAL, "presence_penalty and frequency_penalty must be finite");
    if (p->bias_count < 0 || (p->bias_count && !p->bias)) return fail(err, MOTE_EINVAL, "bias_count without bias");
    for (int i = 0; i < p->bias_count; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= m->c.vocab)
            return fail(err, MOTE_EINVAL, "bias %d: id %d is not in the vocabulary of %d", i, p->bias[i].id, m->c.vocab);
        if (!(p->bias[i].bias < INFINITY)) return fail(err, MOTE_EINVAL, "bias %d must be finite, or -INFINITY", i);
    }
    return MOTE_OK;
}

static int check_not_empty(const mote_session *s, mote_error *err) {
    return s->count ? MOTE_OK : fail(err, MOTE_EINVAL, "the timeline is empty: there is nothing to continue");
}

/* The application's own word on s->decoder->sorted, of n ids. */
static int ask_logits(const mote_session *s, sampler *sampler, int n, mote_error *err) {
    const float *logits = s->decoder->sorted;
    sampler->stopped = sampler->on_logits(sampler->user, s->decoder->sorted, n) != 0;
    for (int i = 0; i < n && !sampler->stopped; i++)
        if (isnan(logits[i])) return fail(err, MOTE_EINVAL, "on_logits made the logit of token %d not a number", i);
    return MOTE_OK;
}

/* The implementation of mote_sample, of checked sampling and a timeline that is not empty. *id is -1 when sampler->stopped. */
static int choose(mote_session *s, sampler *sampler, int32_t *id, mote_error *err) {
    const mote_sampling *p = &sampler->p;
    float *sorted = s->decoder->sorted;
    int n = known_vocab(s->m), best = 0;
    int code = session_logits(s, err);
    if (code) return code;
    for (int i = 0; i < n; i++)
        if (isnan(s->slot.logits[i]))
            return fail(err, MOTE_EFORMAT, "the logit of token %d is not a number: are the weights damaged?", i);
    memcpy(sorted, s->slot.logits, (size_t)n * sizeof(float));
    penalise(s, p);
    if (sampler->grammar) constraint_mask(sampler->grammar, sorted, n);
    if (sampler->on_logits) code = ask_logits(s, sampler, n, err);
    *id = -1;
    if (code || sampler->stopped) return code;
    for (int i = 1; i < n; i++)
        if (sorted[i] > sorted[best]) best = i;
    if (sorted[best] == -INFINITY && (sampler->grammar || sampler->on_logits || p->bias_count))
        return fail(err, MOTE_EINVAL, "no token is left to choose: all logits are -INFINITY behind token %d", s->count - 1);
    *id = p->temperature > 0 && isfinite(sorted[best]) ? sample(s, p, n) : best;
    if (sampler->logprobs) row_logprobs(s->slot.logits, s->m->c.vocab, *id, sampler->top, s->decoder->heap, sampler->logprobs);
    return MOTE_OK;
}

int mote_sample(const mote_session *session, const mote_sampling *sampling, int32_t *id, mote_error *error) {
    sampler sampler = sampler_of(sampling);
    int code = session_enter(session, id != NULL, "mote_sample: needs a session and a place for the token", error);
    if (!code) code = check_sampling(session->m, &sampler.p, error);
    if (!code) code = check_not_empty(session, error);
    return code ? code : choose((mote_session *)session, &sampler, id, error);
}

/* Whether the device can choose the token by itself: a kind of sampling that it knows, and nothing that needs the logits here. */
static int device_samples(const mote_session *s, const sampler *sampler) {
    const mote_sampling *p = &sampler->p;
    int penalties = (p->repetition_penalty > 0 && p->repetition_penalty != 1) || p->presence_penalty != 0 ||
                    p->frequency_penalty != 0 || p->bias_count;
    return s->count && !penalties && !sampler->grammar && !sampler->on_logits && !sampler->logprobs && slot_can_sample(&s->slot, p);
}

/* Computes the token after the timeline, chosen by the device; it is not part of the timeline yet. */
static int step_sampled(mote_session *s, const mote_sampling *sampling, mote_error *err) {
    block b = timeline_block(s, NULL, 1);
    int32_t id;                                             /* of a step that has not begun the timeline knows nothing */
    int code = runner_refuses(s->slot.runner, err);
    if (code) return code;
    code = slot_step(&s->slot, &b, sampling, &id, err);
    if (!slot_step_began(&s->slot, code)) return code;
    if (!code) s->tokens[s->count] = id;
    timeline_computed(s, 1);
    if (code) timeline_drop(s);
    return code;
}

/* Whether a step can be taken: its code. */
static int step_check(const mote_session *s, const mote_sampling *p, mote_error *err) {
    if (s->count >= s->o.context) return fail(err, MOTE_ECONTEXT, "the context of %d tokens is full", s->o.context);
    int code = check_sampling(s->m, p, err);
    return code ? code : check_not_empty(s, err);
}

int mote_step(mote_session *session, const mote_sampling *sampling, int32_t *id, mote_error *error) {
    mote_session *s = session;
    sampler sampler = sampler_of(sampling);
    int32_t next;
    int code = session_enter(s, id != NULL, "mote_step: needs a session and a place for the token", error);
    if (!code) code = step_check(s, &sampler.p, error);
    if (!code) code = session_begin(s, "mote_step: ", error);
    if (code) return code;
    if (device_samples(s, &sampler)) {
        code = step_sampled(s, &sampler.p, error);
    } else {
        code = choose(s, &sampler, &next, error);
        if (!code) code = timeline_forward(s, &next, 1, 1, NULL, NULL, error);
    }
    if (!code) timeline_keep(s, 1);
    if (!code) *id = s->tokens[s->count - 1];
    session_leave(s);
    return code;
}

int mote_top_logprobs(const mote_session *session, int n, int32_t *ids, float *logprobs, mote_error *error) {
    int code = session_enter(session, ids && logprobs, "mote_top_logprobs: needs a session and places for the results", error);
    if (!code) code = check_not_empty(session, error);
    if (!code && (n < 1 || n > session->m->c.vocab))
        code = fail(error, MOTE_EINVAL, "%d tokens asked for, expected 1 to %d", n, session->m->c.vocab);
    if (!code) code = session_logits((mote_session *)session, error);
    if (code) return code;
    int vocab = session->m->c.vocab;
    double total = row_best(session->slot.logits, vocab, n, session->decoder->heap);
    for (int i = 0; i < n; i++) {
        ids[i] = session->decoder->heap[n - 1 - i];
        logprobs[i] = (float)((double)session->slot.logits[ids[i]] - total);
    }
    return MOTE_OK;
}
