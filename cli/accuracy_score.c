/* cli/accuracy_score.c: how far logits are from those of a reference, token by token and over all: KL divergence, first choices,
   perplexity. It knows arrays of numbers, and nothing of models. */

enum { SCORERS_MOST = 64 };                /* threads */

typedef struct token_score {
    double kl;                             /* of the reference's distribution from this one, nats */
    double surprise, expected;             /* -log p of the token that came, here and by the reference, nats */
    int same;                              /* 1: the most probable token is the reference's */
} token_score;

typedef struct scoring {                   /* of `count` tokens */
    const float *reference, *logits;       /* [count][vocab] */
    const int32_t *next;                   /* [count] the token that came */
    token_score *scores;                   /* [count] out */
    int count, vocab, threads;
} scoring;

typedef struct scorer { const scoring *of; int first; } scorer;        /* a thread: its first token; then every threads-th one */

static int most_probable(const float *logits, int vocab) {
    int best = 0;
    for (int i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* x: logits of the reference, y: those that are scored. KL = sum p log(p / q), p = e^(x - top) / sum of these, q likewise of y: the differences
   x - y weighted by p, less the logarithm of p's sum, plus that of q's. */
static token_score score_token(const float *x, const float *y, int vocab, int32_t next) {
    const int first = most_probable(x, vocab), best = most_probable(y, vocab);
    const double x_top = x[first], y_top = y[best];
    double x_sum = 0, y_sum = 0, weighted = 0;
    for (int i = 0; i < vocab; i++) {
        const double dx = x[i] - x_top, dy = y[i] - y_top, p = exp(dx);
        x_sum += p;
        y_sum += exp(dy);
        if (p > 0) weighted += p * (dx - dy);
    }
    const double kl = weighted / x_sum + log(y_sum) - log(x_sum);
    return (token_score){.kl = kl < 0 ? 0 : kl, .surprise = log(y_sum) - (y[next] - y_top), .expected = log(x_sum) - (x[next] - x_top),
                         .same = first == best};
}

static void *score_some(void *argument) {
    const scorer *me = argument;
    const scoring *s = me->of;
    for (int i = me->first; i < s->count; i += s->threads) {
        const size_t row = (size_t)i * (size_t)s->vocab;
        s->scores[i] = score_token(s->reference + row, s->logits + row, s->vocab, s->next[i]);
    }
    return NULL;
}

/* A row of a large vocabulary takes some milliseconds: so threads share them. Scores do not depend on how many there are. */
static void score_tokens(const scoring *s) {
    pthread_t thread[SCORERS_MOST];
    scorer part[SCORERS_MOST];
    int started[SCORERS_MOST] = {0};
    for (int i = 0; i < s->threads; i++) {
        part[i].of = s;
        part[i].first = i;
        started[i] = i > 0 && !pthread_create(&thread[i], NULL, score_some, &part[i]);
    }
    for (int i = 0; i < s->threads; i++)
        if (!started[i]) score_some(&part[i]);
    for (int i = 0; i < s->threads; i++)
        if (started[i]) pthread_join(thread[i], NULL);
}

typedef struct accuracy_summary {
    double kl, kl_99, kl_most;             /* mean, one that a hundredth exceeds, largest; nats */
    double same;                           /* share of the tokens */
    double perplexity, expected;           /* of the text; by the reference */
    int others;                            /* first choices that are not the reference's */
} accuracy_summary;

/* count is at least 1; kl: [count] scratch. */
static accuracy_summary summarise_scores(const token_score *scores, int count, double *kl) {
    accuracy_summary s = {0};
    for (int i = 0; i < count; i++) {
        kl[i] = scores[i].kl;
        s.kl += kl[i] / count;
        s.perplexity += scores[i].surprise / count;
        s.expected += scores[i].expected / count;
        s.others += !scores[i].same;
    }
    qsort(kl, (size_t)count, sizeof *kl, ascending);
    s.kl_99 = kl[(count - 1) * 99LL / 100];
    s.kl_most = kl[count - 1];
    s.same = 1 - (double)s.others / count;
    s.perplexity = exp(s.perplexity);
    s.expected = exp(s.expected);
    return s;
}
