/* generate/acceptance.c: how likely drafts are to be accepted, learned from those that were: the MTP layer's and the block drafter's by
   their place and by the probability that the draft head gave them, copies by the length of the match. It neither drafts nor verifies. */

/* A draft that is not tried drifts back to what is believed at first, so that what did not pay is tried again after some thousand passes.
   The weight of what was seen decays sooner: then two passes are enough to refute it. */
enum { RATE_DRIFT = 2048, WEIGHT_FIRST = 4, WEIGHT_MAX = 32, WEIGHT_MIN = 2, WEIGHT_DRIFT = 256 };  /* passes */

/* The classes end before these: probabilities, and tokens of a match; what is believed of each at first. */
static const float CONFIDENCE_ENDS[CONFIDENCE_CLASSES - 1] = {0.2f, 0.4f, 0.6f, 0.75f, 0.85f, 0.93f, 0.98f};
static const double CONFIDENCE_FIRST[CONFIDENCE_CLASSES] = {0.15, 0.3, 0.5, 0.68, 0.8, 0.89, 0.95, 0.99};
static const int COPY_ENDS[COPY_CLASSES - 1] = {4, 6, 9, 16, 32, 64};
static const double COPY_FIRST[COPY_CLASSES] = {0.3, 0.45, 0.6, 0.75, 0.85, 0.92, 0.95};

static void rate_begin(rate *r, double share) {
    r->share = share;
    r->weight = WEIGHT_FIRST;
}

static void rate_learn(rate *r, int hit) {
    r->weight = fmin(r->weight + 1, WEIGHT_MAX);
    r->share += (hit - r->share) / r->weight;
}

static void rates_begin(draft_rates *r) {
    for (int i = 0; i < MOTE_ROWS_MAX - 1; i++) rate_begin(&r->place[i], fmax(0.95 - 0.1 * i, 0.5));
    for (int i = 0; i < CONFIDENCE_CLASSES; i++) rate_begin(&r->confidence[i], CONFIDENCE_FIRST[i]);
}

static void acceptance_begin(speculation *p) {
    rates_begin(&p->mtp);
    rates_begin(&p->block);
    for (int i = 0; i < COPY_CLASSES; i++) rate_begin(&p->copied[i], COPY_FIRST[i]);
}

/* The rates of a source that is a model; NULL: of copies. */
static draft_rates *acceptance_of(speculation *p, int source) {
    return source == MOTE_DRAFT_MTP ? &p->mtp : source == MOTE_DRAFT_BLOCK ? &p->block : NULL;
}

/* The rate of a draft of this probability; of the draft at its place, if there is none. */
static rate *acceptance_of_confidence(draft_rates *r, int place, float confidence) {
    int i = 0;
    if (isnan(confidence)) return &r->place[place];
    while (i < CONFIDENCE_CLASSES - 1 && confidence >= CONFIDENCE_ENDS[i]) i++;
    return &r->confidence[i];
}

/* That of a copy after a match of so many tokens, copies before it included. */
static rate *acceptance_of_copy(speculation *p, int length) {
    int i = 0;
    while (i < COPY_CLASSES - 1 && length >= COPY_ENDS[i]) i++;
    return &p->copied[i];
}

/* Drafts for a pass. */
typedef struct drafts {
    int source, n;               /* MOTE_DRAFT_...; how many */
    int32_t ids[MOTE_ROWS_MAX];  /* [0] the chosen token, then the drafts */
    rate *of[MOTE_ROWS_MAX - 1];                            /* what says how likely each is, if those before it are right */
} drafts;

/* The tokens expected of a pass that verifies the first n. */
static double drafts_tokens(const drafts *d, int n) {
    double tokens = 1, all = 1;
    for (int i = 0; i < n; i++) tokens += all *= d->of[i]->share;
    return tokens;
}

/* Rate i of those by place was not tried: it drifts. */
static void rate_drift(draft_rates *r, int i) {
    rate *place = &r->place[i];
    place->weight += (WEIGHT_MIN - place->weight) / WEIGHT_DRIFT;
    place->share += ((i ? r->place[i - 1].share : 1) - place->share) / RATE_DRIFT;
}

/* The first `judged` drafts were verified, and the first `accepted` of these are right. */
static void acceptance_learn(speculation *p, const drafts *d, int judged, int accepted) {
    draft_rates *own = acceptance_of(p, d->source);
    for (int i = 0; i < MOTE_ROWS_MAX - 1; i++) {
        const int known = i < judged && i <= accepted;
        if (known && (!own || d->of[i] != &own->place[i])) rate_learn(d->of[i], i < accepted);
        if (known && own) rate_learn(&own->place[i], i < accepted);
        if (!known || own != &p->mtp) rate_drift(&p->mtp, i);
        if (!known || own != &p->block) rate_drift(&p->block, i);
    }
}

/* The token that follows is known: was the draft right that was not verified? */
static void acceptance_judge(speculation *p, int32_t id) {
    for (int i = 0; i < 2; i++)
        if (p->judges[i]) rate_learn(p->judges[i], p->unverified == id);
    p->judges[0] = p->judges[1] = NULL;
}

/* The next token will judge draft i, which was not verified. */
static void acceptance_await(speculation *p, const drafts *d, int i) {
    p->unverified = d->ids[i + 1];
    p->judges[0] = d->of[i];
    draft_rates *own = acceptance_of(p, d->source);
    p->judges[1] = own && d->of[i] != &own->place[i] ? &own->place[i] : NULL;
}

/* A pass has verified so many drafts, for mote_speculation_of and mote_drafter_of. */
static void acceptance_count(speculation *p, const drafts *d, int verified, int judged, int accepted) {
    mote_speculation *stats = &p->stats;
    const int block = d->source == MOTE_DRAFT_BLOCK;
    uint64_t *drafted = block ? p->blocks.drafted : stats->drafted[d->source];
    uint64_t *right = block ? p->blocks.accepted : stats->accepted[d->source];
    size_t n = strlen(stats->recent);
    for (int i = 0; i < judged && i <= accepted; i++) {
        drafted[i]++;
        right[i] += (uint64_t)(i < accepted);
    }
    stats->passes[verified]++;
    p->blocks.passes += (uint64_t)(block && verified > 0);
    if (n + 1 == sizeof stats->recent) memmove(stats->recent, stats->recent + 1, n--);
    stats->recent[n] = (char)(!verified || d->source == MOTE_DRAFT_MTP ? '0' + verified : (block ? 'A' : 'a') + verified - 1);
    stats->recent[n + 1] = 0;
}
