/* generate/speculation.c: speculative decoding: how many tokens to draft, who drafts and verifies, which rows are accepted.

   A pass that computes four rows costs far less than four passes: it reads most weights once. So the MTP layer, one layer
   where the model has forty, drafts the tokens that may follow, and a pass computes the chosen token and its drafts as one
   block. Then, row by row, the next token is chosen from the model's own logits, as it always is: with the same sampler,
   and the random number that belongs to the position. If it is the draft of the next row, that row was computed for the
   right text and is accepted; the first token that differs from its draft ends the pass, and begins the next one. So the
   text is that of plain decoding, whatever was drafted, and at any temperature; and because a row's arithmetic does not
   depend on the rows beside it, so is the state, bit for bit.

   Rejected rows need no undoing. KV rows after the end are overwritten. S is never stored with a
   block's own rows: these are pending in the log, and the next block replays the accepted ones (layers/deltanet/cpu.c).

   Three ways through a pass: by the host, which samples the tokens itself; by a device alone, where one graph verifies,
   accepts and drafts again, while the host reads which tokens were accepted; and plain steps, when no drafts pay. */

static int speculates(const mote_session *s) {
    return s->at.has_mtp;
}

/* The number of drafts: the expected tokens of a pass, by the acceptance seen lately, over its cost, measured on this machine.
   Drafts are believed at first, and a draft not tried drifts back to that, so that what did not pay is tried again after
   some thousand passes. The weight of what was seen decays sooner: then two passes are enough to refute it. A change must promise
   a twentieth. */

enum { RATE_DRIFT = 2048, WEIGHT_FIRST = 4, WEIGHT_MAX = 32, WEIGHT_MIN = 2, WEIGHT_DRIFT = 256 };  /* passes */

static void speculation_start(mote_session *s) {
    speculation *p = &s->spec;
    for (int i = 0; i < MOTE_ROWS_MAX - 1; i++) {
        p->acceptance_rate[i] = 0.95 - 0.1 * i;
        p->sample_weight[i] = WEIGHT_FIRST;
    }
    p->seen.depth = s->o.mtp > 0 ? s->o.mtp : 0;
    p->next = -1;
}

/* Seconds that a pass with k drafts takes: one of this session alone or, beside others, one in which each has as many; 0: unknown. */
static double speculation_cost(mote_session *s, int k) {
    mote_runner *r = s->at.runner;
    const int together = pass_together(r);
    if (together < 2) return s->spec.measured_at ? s->spec.seen.cost[k] : 0;
    return together * (k + 1) > r->pass_rows ? INFINITY : pass_expected(r, together * (k + 1), k > 0);
}

/* Tokens per second to be expected of passes with k drafts; 0: unknown. */
static double speculation_speed(mote_session *s, int k) {
    double tokens = 1, all = 1, cost = speculation_cost(s, k);
    for (int i = 0; i < k; i++) tokens += all *= s->spec.acceptance_rate[i];
    return cost > 0 ? tokens / cost : 0;
}

static void speculation_choose(mote_session *s) {
    speculation *p = &s->spec;
    if (s->o.mtp != MOTE_MTP_AUTO) return;
    double now = speculation_speed(s, p->seen.depth), best = now * 1.05;
    for (int k = 0; k < MOTE_ROWS_MAX; k++) {
        double speed = speculation_speed(s, k);
        if (speed <= best) continue;
        best = speed;
        p->seen.depth = k;
    }
}

/* A pass verified `drafts`, and accepted the first `accepted` of them. */
static void speculation_learn(mote_session *s, int drafts, int accepted) {
    speculation *p = &s->spec;
    size_t n = strlen(p->seen.recent);
    for (int i = 0; i < MOTE_ROWS_MAX - 1; i++) {
        int reached = i < drafts && i <= accepted, hit = i < accepted;
        p->seen.drafted[i] += (uint64_t)reached;
        p->seen.accepted[i] += (uint64_t)hit;
        if (reached) {
            p->sample_weight[i] = fmin(p->sample_weight[i] + 1, WEIGHT_MAX);
            p->acceptance_rate[i] += (hit - p->acceptance_rate[i]) / p->sample_weight[i];
        } else {
            p->sample_weight[i] += (WEIGHT_MIN - p->sample_weight[i]) / WEIGHT_DRIFT;
            p->acceptance_rate[i] += ((i ? p->acceptance_rate[i - 1] : 1) - p->acceptance_rate[i]) / RATE_DRIFT;
        }
    }
    p->seen.passes[drafts]++;
    if (n + 1 == sizeof p->seen.recent) memmove(p->seen.recent, p->seen.recent + 1, n--);
    p->seen.recent[n] = (char)('0' + drafts);
    p->seen.recent[n + 1] = 0;
    speculation_choose(s);
}

/* A pass, of this session alone, took so many seconds. If they differ by a fifth from what was measured, over a while, then what was
   measured was noise, or the machine has changed: it is measured again before the next answer. */
static void speculation_time(mote_session *s, int drafts, double spent) {
    enum { PASSES = 64 };
    speculation *p = &s->spec;
    if (s->o.mtp != MOTE_MTP_AUTO || !p->measured_at) return;
    p->spent += spent;
    p->expected += p->seen.cost[drafts];
    if (++p->timed < PASSES) return;
    if (p->spent > 1.2 * p->expected || 1.2 * p->spent < p->expected) {
        p->measured_at = 0;
        pthread_mutex_lock(&s->at.runner->lock);
        s->at.runner->costs.measured_at = 0;
        pthread_mutex_unlock(&s->at.runner->lock);
    }
    p->spent = p->expected = 0;
    p->timed = 0;
}

int mote_speculation_of(const mote_session *session, mote_speculation *speculation, mote_error *error) {
    int code = session_enter(session, speculation != NULL,
                             "mote_speculation_of: needs a session and a place for the result", error);
    if (code) return code;
    *speculation = session->spec.seen;
    if (!speculates(session)) speculation->depth = 0;
    return MOTE_OK;
}

/* drafts[0..k-1] = what may follow the timeline and `id`. */
static int make_drafts(mote_session *s, int32_t id, int k, int32_t *drafts, mote_error *err) {
    const block b = timeline_block(s, &id, 1);
    return slot_draft(&s->at, &b, k, drafts, err);
}

/* Seconds of one pass with k drafts after the timeline, and of these for drafting. No row of it is accepted. */
static int time_pass(mote_session *s, int k, double *pass, double *draft, mote_error *err) {
    int32_t ids[MOTE_ROWS_MAX];
    double start = seconds();
    int code;
    for (int i = 0; i < MOTE_ROWS_MAX; i++) ids[i] = s->tokens[s->count > i ? s->count - 1 - i : 0];
    if (s->at.runner->on->time_pass) {
        const block b = timeline_block(s, ids, k + 1);
        code = slot_time_pass(&s->at, &b, k, pass, draft, err);
        timeline_computed(s, k + 1);
    } else {
        code = make_drafts(s, ids[0], k, ids + 1, err);
        *draft = seconds() - start;
        if (!code) code = timeline_forward(s, ids, k + 1, 1, s->at.block_logits, NULL, err);
        *pass = seconds() - start;
    }
    timeline_drop(s);
    return code;
}

/* Measures what passes cost, in a fraction of a second. On a machine so slow that one round takes longer, what is not
   measured after a second is reckoned from what is. */
static int measure_passes(mote_session *s, mote_error *err) {
    mote_speculation *seen = &s->spec.seen;
    double start = seconds(), pass = 0, draft = 0;
    int code = session_logits(s, err);
    if (!code) code = slot_prepare(&s->at, err);
    memset(seen->cost, 0, sizeof seen->cost);
    for (int round = 0; round < 6 && !code && (round < 2 || seconds() - start < 0.02); round++) {
        for (int k = 0; k < MOTE_ROWS_MAX && !code; k++) {
            if (seconds() - start > 1 && k && !round) {
                seen->cost[k] = seen->cost[k - 1] * (k == 1 ? 1.5 : seen->cost[1] / seen->cost[0]);
                continue;
            }
            if (seconds() - start > 1 && round) break;
            code = time_pass(s, k, &pass, &draft, err);
            if (code || (seen->cost[k] > 0 && seen->cost[k] <= pass)) continue;
            seen->cost[k] = pass;
            seen->draft[k] = draft;
        }
    }
    s->spec.measured_at = s->count;
    s->spec.spent = s->spec.expected = 0;
    s->spec.timed = 0;
    if (!code) slot_set_logits(&s->at);
    return code;
}

/* Whether costs measured after so many tokens may have changed: a long context is a larger part of a pass. */
static int costs_are_old(const mote_session *s, int measured_at) {
    return !measured_at || s->count > 2 * measured_at + 4096 || measured_at > 2 * s->count + 4096;
}

/* Takes the costs that another session of the runner has measured; returns whether there are any. */
static int take_costs(mote_session *s) {
    mote_runner *r = s->at.runner;
    pthread_mutex_lock(&r->lock);
    const pass_costs costs = r->costs;
    pthread_mutex_unlock(&r->lock);
    if (costs_are_old(s, costs.measured_at)) return 0;
    memcpy(s->spec.seen.cost, costs.cost, sizeof costs.cost);
    memcpy(s->spec.seen.draft, costs.draft, sizeof costs.draft);
    s->spec.measured_at = costs.measured_at;
    return 1;
}

/* Measures them, for all sessions of the runner; not while others compute. */
static int find_costs(mote_session *s, mote_error *err) {
    mote_runner *r = s->at.runner;
    if (pass_together(r) > 1) return MOTE_OK;
    int code = measure_passes(s, err);
    if (code) return code;
    pthread_mutex_lock(&r->lock);
    memcpy(r->costs.cost, s->spec.seen.cost, sizeof r->costs.cost);
    memcpy(r->costs.draft, s->spec.seen.draft, sizeof r->costs.draft);
    r->costs.measured_at = s->spec.measured_at;
    pthread_mutex_unlock(&r->lock);
    return MOTE_OK;
}

/* Before an answer. */
static int speculation_begin(mote_session *s, mote_error *err) {
    speculation *p = &s->spec;
    const int due = speculates(s) && s->o.mtp == MOTE_MTP_AUTO && costs_are_old(s, p->measured_at);
    int code = MOTE_OK;
    p->next = -1;
    p->drafts = 0;
    if (due && s->o.context - s->count > MOTE_ROWS_MAX && !take_costs(s)) code = find_costs(s, err);
    if (!code) speculation_choose(s);
    return code;
}

/* The drafts for a pass after `count` tokens of which `left` may be generated. */
static int drafts_wanted(const mote_session *s, int count, int left) {
    int k = speculates(s) ? s->spec.seen.depth : 0, left_context = s->o.context - count - 1;
    if (k > left_context) k = left_context;
    if (k > left - 1) k = left - 1;
    return k > 0 ? k : 0;
}

/* A pass of an answer: a block of rows that is kept row by row, as far as their tokens are those that are chosen. */
typedef struct decode_pass {
    int rows;                    /* computed: s->tokens[s->block_at..] are their tokens */
    int accepted;                /* the first rows, known to be accepted: all that will be, if the device chose the tokens */
    int kept;                    /* of these, in the timeline */
    int judged;                  /* drafts of which it is known whether they are accepted */
    int by_host;
} decode_pass;

/* Computes ids[0], the chosen token, and the k drafts after it as one block. */
static int pass_verify(mote_session *s, const int32_t *ids, int k, decode_pass *p, mote_error *err) {
    int code = timeline_forward(s, ids, k + 1, 1, k ? s->at.block_logits : NULL, NULL, err);
    if (code) return code;
    s->spec.next = -1;
    p->by_host = p->accepted = 1;
    p->rows = k + 1;
    return MOTE_OK;
}

/* A pass in which the host samples the tokens. */
static int pass_by_host(mote_session *s, chooser *by, int k, decode_pass *p, mote_error *err) {
    int32_t ids[MOTE_ROWS_MAX];
    int code = s->spec.next < 0 ? choose(s, by, &s->spec.next, err) : MOTE_OK;
    if (code || by->stopped) return code;
    ids[0] = s->spec.next;
    if (k) code = make_drafts(s, ids[0], k, ids + 1, err);
    return code ? code : pass_verify(s, ids, k, p, err);
}

/* The same by the device alone: the s->spec.drafts drafts of this pass are there already; k are made for the next. */
static int pass_on_device(mote_session *s, const mote_sampling *sampling, int k, decode_pass *of, mote_error *err) {
    speculation *p = &s->spec;
    int32_t ids[1 + MOTE_ROWS_MAX];
    int T = p->drafts + 1, n;
    const block b = timeline_block(s, NULL, T);
    ids[0] = p->next;
    int code = slot_cycle(&s->at, &b, sampling, k, ids, &n, err);
    if (code) return code;
    timeline_computed(s, T);
    memcpy(s->tokens + s->count, ids, (size_t)n * sizeof *ids);
    of->rows = T;
    of->accepted = n;
    of->judged = T - 1;
    p->next = ids[n];
    p->drafts = k;
    return MOTE_OK;
}

/* A plain step, as part of an answer. */
static int pass_plain(mote_session *s, const mote_sampling *sampling, decode_pass *p, mote_error *err) {
    int code = step_sampled(s, sampling, err);
    p->rows = p->accepted = 1;
    s->spec.next = -1;
    return code;
}

/* Begins a pass of an answer of which `left` tokens are left. No row is kept yet; none is accepted if by->stopped. */
static int pass_begin(mote_session *s, chooser *by, int left, decode_pass *p, mote_error *err) {
    int drafts = drafts_wanted(s, s->count, left), code;
    double start = seconds();
    memset(p, 0, sizeof *p);
    s->at.company = 0;
    if (device_samples(s, by)) {
        int next = drafts_wanted(s, s->count + s->spec.drafts + 1, left - 1);
        drafts = s->spec.drafts;
        code = drafts || next ? pass_on_device(s, &by->p, next, p, err) : pass_plain(s, &by->p, p, err);
    } else {
        code = pass_by_host(s, by, drafts, p, err);
    }
    if (!code && p->rows && !s->at.company) speculation_time(s, drafts, seconds() - start);
    return code;
}

/* Keeps the next row of a pass, if its token is the one that is chosen there: *more. What the host chooses it chooses here,
   when all before it is part of the answer for good: so the application's on_logits never sees a draft that is refused, nor
   what comes after an answer's end. The token that differs from its draft begins the next pass: s->spec.next. */
static int pass_keep(mote_session *s, chooser *by, decode_pass *p, int *more, mote_error *err) {
    *more = 0;
    if (p->by_host && p->kept == p->accepted && p->kept < p->rows) {
        int code = choose(s, by, &s->spec.next, err);
        if (code || by->stopped) return code;
        p->judged++;
        if (s->spec.next == s->tokens[s->block_at + p->kept]) {
            p->accepted++;
            s->spec.next = -1;
        }
    }
    *more = p->kept < p->accepted;
    if (*more) timeline_keep(s, ++p->kept);
    return MOTE_OK;
}

/* After the last row that is kept. */
static void pass_end(mote_session *s, const decode_pass *p) {
    if (p->rows) speculation_learn(s, p->judged, p->accepted - 1);
}
