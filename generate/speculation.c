/* generate/speculation.c: speculative decoding: how many tokens to draft, who drafts and verifies, which rows are accepted.

   A pass that computes several rows costs far less than as many passes: it reads most weights once. So somebody drafts the tokens that
   may follow, and a pass computes the chosen token and its drafts as one block. There are three sources: the MTP layer, one layer where
   the model has forty; a block drafter, a small model in a folder of its own that drafts several tokens at once (run/cpu/drafter.c); and the
   timeline itself, of which the end may stand in it already (copies.c). Then, row by row, the next token is
   chosen from the model's own logits, as it always is: with the same sampler, and the random number that belongs to the position. If it
   is the draft of the next row, that row was computed for the right text and is accepted; the first token that differs from its draft
   ends the pass, and begins the next one. So the text is that of plain decoding, whatever was drafted, and at any temperature; and
   because a row's arithmetic does not depend on the rows beside it, so is the state, bit for bit.

   How many: as many as promise the most tokens a second. What a pass of so many rows takes, and a draft, the runner knows from those it
   has run (run/costs.c); how likely each draft is, acceptance.c.

   Rejected rows need no undoing. KV rows after the end are overwritten. S is never stored with a
   block's own rows: these are pending in the log, and the next block replays the accepted ones (layers/deltanet/cpu.c).

   Three ways through a pass: by the host, which samples the tokens itself; by a device alone, where one graph verifies,
   accepts and drafts again, while the host reads which tokens were accepted; and plain steps, when no drafts pay. */

static int speculates(const mote_session *s) {
    return s->slot.verifies;
}

static void speculation_start(mote_session *s) {
    acceptance_begin(&s->decoder->spec);
    s->decoder->spec.stats.depth = s->slot.has_mtp && s->o.mtp > 0 ? s->o.mtp : 0;
    s->decoder->spec.next = -1;
}

/* ---- How many ------------------------------------------------------------------------------------------------------- */

/* What passes take now. */
typedef struct prices {
    double pass[MOTE_ROWS_MAX];  /* seconds of one in which this session verifies so many drafts; all 0: unknown */
    double draft;                /* seconds of a draft of the MTP layer, or this session's share of that */
    double block;                /* the same of a block of the block drafter */
    double others;               /* tokens that other sessions get out of the pass */
} prices;

/* A session's share of what drafts for so many take; 0: unknown. */
static double drafting_share(const cost_table *of, int drafters, int position) {
    return drafters ? cost_fitted(of, drafters, position) / drafters : 0;
}

static prices prices_now(const mote_session *s) {
    mote_runner *r = s->slot.runner;
    prices p;
    pthread_mutex_lock(&r->lock);
    const int company = max_int(r->costs.sessions - 1, 0), others = company ? max_int(r->costs.rows - s->decoder->spec.rows, company) : 0;
    for (int k = 0; k < MOTE_ROWS_MAX; k++) {
        const int rows = others + k + 1;
        p.pass[k] = company && rows <= PASS_ROWS_MAX ? cost_fitted(&r->costs.together, rows, s->count) : 0;
        if (p.pass[k] <= 0 && rows <= PASS_ROWS_MAX) p.pass[k] = cost_expected(&r->costs.alone, rows, s->count);
        if (k && company && (rows > r->pass_rows || k >= r->company_rows)) p.pass[k] = INFINITY;
    }
    p.draft = drafting_share(&r->costs.drafting, company ? r->costs.drafters : 1, s->count);
    p.block = drafting_share(&r->costs.blocks, company ? r->costs.block_drafters : 1, s->count);
    p.others = company * fmax(r->costs.accepted, 1);
    pthread_mutex_unlock(&r->lock);
    return p;
}

/* Tokens a second of a pass that verifies k drafts and is expected to give this session so many tokens; `spent` seconds go into
   drafting. With unknown costs all passes cost the same. */
static double prices_speed(const prices *p, double tokens, int k, double spent) {
    return p->pass[k] > 0 ? (p->others + tokens) / (p->pass[k] + spent) : tokens;
}

/* How many of the drafts are worth a row: *speed, the tokens a second that these promise. */
static int drafts_worth(const prices *p, const drafts *d, double spent, double *speed) {
    int best = 0;
    *speed = prices_speed(p, 1, 0, spent);
    for (int k = 1; k <= d->n; k++) {
        const double of_these = prices_speed(p, drafts_tokens(d, k), k, spent);
        if (of_these > *speed) *speed = of_these, best = k;
    }
    return best;
}

/* k drafts of a model, MOTE_DRAFT_MTP or _BLOCK, of which only their places are known. */
static drafts drafts_by_place(mote_session *s, int source, int k) {
    draft_rates *rates = acceptance_of(&s->decoder->spec, source);
    drafts d;
    memset(&d, 0, sizeof d);
    d.source = source;
    d.n = k;
    for (int i = 0; i < k; i++) d.of[i] = &rates->place[i];
    return d;
}

/* By how much a session's drafts must raise the speed of a pass in which it is expected to get so many tokens: a twentieth, of its own share. In company
   a twentieth of all tokens would be more than one session can bring, and none would ever change. */
static double prices_margin(const prices *p, double tokens) {
    return 1 + 0.05 * tokens / (p->others + tokens);
}

/* What they promise. Drafting is a pass more, for which threads meet and wait: no table has that, and a twentieth stands for it. */
static double speed_by_place(mote_session *s, const prices *p, int k) {
    const drafts d = drafts_by_place(s, MOTE_DRAFT_MTP, k);
    const double tokens = drafts_tokens(&d, k);
    return prices_speed(p, tokens, k, k * p->draft) / (k ? prices_margin(p, tokens) : 1);
}

/* How many the MTP layer is asked for. A change must promise a twentieth. */
static void speculation_choose(mote_session *s) {
    mote_speculation *stats = &s->decoder->spec.stats;
    if (s->o.mtp != MOTE_MTP_AUTO || !s->slot.has_mtp) return;
    const prices p = prices_now(s);
    const drafts d = drafts_by_place(s, MOTE_DRAFT_MTP, stats->depth);
    double best = prices_margin(&p, drafts_tokens(&d, d.n)) * speed_by_place(s, &p, stats->depth);
    for (int k = 0, now = stats->depth; k < MOTE_ROWS_MAX; k++) {
        const double speed = k == now ? 0 : speed_by_place(s, &p, k);
        if (speed <= best) continue;
        best = speed;
        stats->depth = k;
    }
}

/* The most drafts of a pass after `count` tokens of which `left` may be generated. */
static int drafts_most(const mote_session *s, int count, int left) {
    const int asked = !speculates(s) ? 0 : s->o.mtp > 0 ? s->o.mtp : MOTE_ROWS_MAX - 1;
    return max_int(min_int(asked, min_int(s->o.context - count - 1, left - 1)), 0);
}

int mote_speculation_of(const mote_session *session, mote_speculation *speculation, mote_error *error) {
    int code = session_enter_within(session, speculation != NULL,
                                    "mote_speculation_of: needs a session and a place for the result", error);
    if (code) return code;
    mote_runner *r = session->slot.runner;
    *speculation = session->decoder->spec.stats;
    pthread_mutex_lock(&r->lock);
    const cost_table *alone = &r->costs.alone, *drafting = &r->costs.drafting;
    for (int k = 0; k < MOTE_ROWS_MAX; k++)
        if (cost_is_known(alone, k + 1, session->count)) speculation->cost[k] = alone->of[k + 1].seconds;
    if (cost_is_known(drafting, 1, session->count)) speculation->draft = drafting->of[1].seconds;
    pthread_mutex_unlock(&r->lock);
    return MOTE_OK;
}

int mote_drafter_of(const mote_session *session, mote_drafter_use *use, mote_error *error) {
    int code = session_enter_within(session, use != NULL, "mote_drafter_of: needs a session and a place for the result", error);
    if (code) return code;
    mote_runner *r = session->slot.runner;
    const mote_model *d = slot_drafter(&session->slot);
    *use = session->decoder->spec.blocks;
    use->rows = d ? d->c.drafter.block : 0;
    pthread_mutex_lock(&r->lock);
    if (cost_is_known(&r->costs.blocks, 1, session->count)) use->cost = r->costs.blocks.of[1].seconds;
    pthread_mutex_unlock(&r->lock);
    return MOTE_OK;
}

/* Before an answer. */
static int speculation_begin(mote_session *s, mote_error *err) {
    speculation *p = &s->decoder->spec;
    int code = MOTE_OK;
    p->next = -1;
    p->drafts = 0;
    p->judges[0] = p->judges[1] = NULL;
    if (s->slot.has_mtp && s->o.mtp == MOTE_MTP_AUTO && !p->prepared) code = slot_prepare(&s->slot, err);
    p->prepared = !code;
    if (!code) speculation_choose(s);
    return code;
}

/* ---- Drafts --------------------------------------------------------------------------------------------------------- */

/* At most `most` copies after the timeline and ids[0..given-1]. */
static void drafts_copy(mote_session *s, int given, int most, drafts *d) {
    int length;
    d->source = MOTE_DRAFT_COPY;
    d->n = 0;
    if (!most || s->count + given < COPY_SHORT) return;
    copies_cut(&s->decoder->copies, s->cut);
    s->cut = s->count;
    const int at = copies_find(&s->decoder->copies, s->tokens, s->count, d->ids, given, &length);
    if (!at) return;
    d->n = most;
    copies_take(s->tokens, s->count, d->ids, given, at, most);
    for (int i = 0; i < most; i++) d->of[i] = acceptance_of_copy(&s->decoder->spec, length + i);
}

/* The MTP layer's drafts while they are made. */
typedef struct draft_chain {
    mote_session *s;
    prices p;
    drafts *d;
} draft_chain;

/* So many have been drafted: *speed, what they promise if `more` follow of which nothing is known; returns how many of all are worth a row. */
static int chain_worth(const draft_chain *c, int drafted, int more, const float *confidence, double *speed) {
    c->d->n = drafted + more;
    for (int i = 0; i < c->d->n; i++)
        c->d->of[i] = acceptance_of_confidence(&c->s->decoder->spec.mtp, i, i < drafted ? confidence[i] : NAN);
    return drafts_worth(&c->p, c->d, c->d->n * c->p.draft, speed);
}

/* Whether another draft may bring more than it costs. */
static int chain_continues(void *user, int drafted, const float *confidence) {
    const draft_chain *c = (const draft_chain *)user;
    double with, without;
    if (c->s->o.mtp > 0) return 1;
    (void)chain_worth(c, drafted, 0, confidence, &without);
    return chain_worth(c, drafted, 1, confidence, &with) > drafted && with > without;
}

/* ids[1..] = at most `most` drafts of the MTP layer; returns a code, *worth: how many are worth a row. */
static int drafts_make(mote_session *s, const prices *p, int most, drafts *d, int *worth, mote_error *err) {
    float confidence[MOTE_ROWS_MAX];
    draft_chain c = {s, *p, d};
    const block b = timeline_block(s, d->ids, 1);
    const double start = seconds();
    double speed;
    int n = most;
    int code = slot_draft(&s->slot, REQUEST_DRAFT, &b, &n, d->ids + 1, confidence, chain_continues, &c, err);
    d->source = MOTE_DRAFT_MTP;
    *worth = chain_worth(&c, n, 0, confidence, &speed);
    if (s->o.mtp > 0) *worth = n;
    s->decoder->spec.stats.draft_seconds += seconds() - start;
    return code;
}

/* ids[1..] = at most `most` drafts of the block drafter; returns a code, *worth: how many are worth a row. */
static int drafts_block(mote_session *s, const prices *p, int most, drafts *d, int *worth, mote_error *err) {
    float confidence[MOTE_ROWS_MAX];
    const block b = timeline_block(s, d->ids, 1);
    const double start = seconds();
    double speed;
    int n = most;
    int code = slot_draft(&s->slot, REQUEST_BLOCK, &b, &n, d->ids + 1, confidence, NULL, NULL, err);
    d->source = MOTE_DRAFT_BLOCK;
    d->n = code ? 0 : n;
    for (int i = 0; i < d->n; i++) d->of[i] = acceptance_of_confidence(&s->decoder->spec.block, i, confidence[i]);
    *worth = s->o.mtp > 0 ? d->n : drafts_worth(p, d, p->block, &speed);
    s->decoder->spec.stats.draft_seconds += seconds() - start;
    return code;
}

/* Whether these copies promise more than a model's drafts, which take so many seconds; *worth: how many are worth a row. Of a given number
   of drafts it is the tokens that count, not what they cost. */
static int copies_win(const mote_session *s, const prices *p, const drafts *copied, const drafts *model, double spent, int *worth) {
    double speed = 0, of_model = 0;
    *worth = s->o.mtp > 0 ? copied->n : drafts_worth(p, copied, 0, &speed);
    if (!*worth || s->o.mtp > 0) return *worth && drafts_tokens(copied, copied->n) > drafts_tokens(model, model->n);
    (void)drafts_worth(p, model, spent, &of_model);
    return speed > of_model;
}

/* Whether a block promises more than no drafts, and more than these of the MTP layer, by the margin that these need, too (speed_by_place). */
static int block_wins(const mote_session *s, const prices *p, const drafts *block, const drafts *mtp) {
    double speed, of_mtp;
    if (!block->n) return 0;
    if (s->o.mtp > 0) return drafts_tokens(block, block->n) > drafts_tokens(mtp, mtp->n);
    const int worth = drafts_worth(p, block, p->block, &speed);
    (void)drafts_worth(p, mtp, mtp->n * p->draft, &of_mtp);
    return speed > prices_margin(p, drafts_tokens(block, worth)) * fmax(prices_speed(p, 1, 0, 0), of_mtp);
}

/* The most drafts of a block for a session. */
static int block_most(const mote_session *s, int most) {
    const mote_model *drafter = slot_drafter(&s->slot);
    return drafter ? min_int(most, drafter->c.drafter.block - 1) : 0;
}

/* Drafts after the chosen token, d->ids[0]; *worth: how many are to be verified. */
static int drafts_choose(mote_session *s, int left, drafts *d, int *worth, mote_error *err) {
    const int most = drafts_most(s, s->count, left), asked = min_int(s->slot.has_mtp ? s->decoder->spec.stats.depth : 0, most);
    const prices p = prices_now(s);
    const drafts mtp = drafts_by_place(s, MOTE_DRAFT_MTP, asked);
    const drafts block = drafts_by_place(s, MOTE_DRAFT_BLOCK, block_most(s, most));
    const int blocks = block_wins(s, &p, &block, &mtp);
    drafts_copy(s, 1, most, d);
    if (copies_win(s, &p, d, blocks ? &block : &mtp, blocks ? p.block : asked * p.draft, worth)) return MOTE_OK;
    if (blocks) return drafts_block(s, &p, most, d, worth, err);
    return asked ? drafts_make(s, &p, most, d, worth, err) : MOTE_OK;
}

/* ---- Passes --------------------------------------------------------------------------------------------------------- */

/* A pass of an answer: a block of rows that is kept row by row, as far as their tokens are those that are chosen. */
typedef struct decode_pass {
    drafts d;                    /* of which the first rows - 1 are verified */
    int rows;                    /* computed: s->tokens[s->block_at..] are their tokens */
    int accepted;                /* the first rows, known to be accepted: all that will be, if the device chose the tokens */
    int kept;                    /* of these, in the timeline */
    int judged;                  /* drafts of which it is known whether they are accepted */
    int by_host;
} decode_pass;

/* Computes ids[0], the chosen token, and the k drafts after it as one block. */
static int pass_verify(mote_session *s, const int32_t *ids, int k, decode_pass *p, mote_error *err) {
    int code = timeline_forward(s, ids, k + 1, 1, s->slot.block_logits, NULL, err);
    if (code) return code;
    s->decoder->spec.next = -1;
    p->by_host = p->accepted = 1;
    p->rows = k + 1;
    return MOTE_OK;
}

/* A pass in which the host samples the tokens. */
static int pass_by_host(mote_session *s, sampler *sampler, int left, decode_pass *p, mote_error *err) {
    int worth = 0, code = MOTE_OK;
    if (s->decoder->spec.next < 0) {
        code = choose(s, sampler, &s->decoder->spec.next, err);
        if (code || sampler->stopped) return code;
        acceptance_judge(&s->decoder->spec, s->decoder->spec.next);
    }
    p->d.ids[0] = s->decoder->spec.next;
    if (speculates(s)) code = drafts_choose(s, left, &p->d, &worth, err);
    return code ? code : pass_verify(s, p->d.ids, worth, p, err);
}

/* A pass by a device alone, of the first k drafts after the chosen token: given, spec.next and they; or, with NULL, those that it
   has made, and the token itself if it is not known. `next` are made for the next pass. of->d says what is verified. */
static int pass_on_device(mote_session *s, const mote_sampling *sampling, const int32_t *given, int k, int next, decode_pass *of,
                          mote_error *err) {
    speculation *p = &s->decoder->spec;
    int32_t ids[1 + MOTE_ROWS_MAX];
    int n;
    const block b = timeline_block(s, given, k + 1);
    ids[0] = p->next;
    int code = slot_cycle(&s->slot, &b, sampling, next, ids, &n, err);
    if (code) return code;
    timeline_computed(s, k + 1);
    memcpy(s->tokens + s->count, ids, (size_t)n * sizeof *ids);
    of->rows = k + 1;
    of->accepted = n;
    of->judged = k;
    p->next = ids[n];
    p->drafts = next;
    return MOTE_OK;
}

/* A plain step, as part of an answer. */
static int pass_plain(mote_session *s, const mote_sampling *sampling, decode_pass *p, mote_error *err) {
    int code = step_sampled(s, sampling, err);
    p->rows = p->accepted = 1;
    s->decoder->spec.next = -1;
    return code;
}

/* The drafts that a device has made after spec.next: *d, and how many of them are worth a row. It tells how sure they are where it
   works for this session alone; and what is verified is chosen then, while all are verified where their number is given. */
static int drafts_of_device(mote_session *s, const prices *p, drafts *d, int *worth, mote_error *err) {
    const int made = s->decoder->spec.drafts;
    float confidence[MOTE_ROWS_MAX];
    double speed;
    int code = MOTE_OK;
    *d = drafts_by_place(s, MOTE_DRAFT_MTP, made);
    *worth = made;
    if (s->o.mtp > 0 || !made || p->others > 0) return MOTE_OK;
    code = slot_drafted(&s->slot, made, d->ids + 1, confidence, err);
    if (code || isnan(confidence[0])) return code;
    for (int i = 0; i < made; i++) d->of[i] = acceptance_of_confidence(&s->decoder->spec.mtp, i, confidence[i]);
    *worth = drafts_worth(p, d, 0, &speed);
    pthread_mutex_lock(&s->slot.runner->lock);
    cost_learn(&s->slot.runner->costs.drafting, 1, s->count, (seconds() - s->decoder->spec.passed) / made);
    pthread_mutex_unlock(&s->slot.runner->lock);
    return MOTE_OK;
}

/* A pass of a block drafter's drafts, or, while the token that they follow is not known, one that makes it known. */
static int pass_of_block(mote_session *s, const mote_sampling *sampling, const prices *price, int most, decode_pass *p, mote_error *err) {
    int worth = 0;
    if (s->decoder->spec.next < 0) return pass_on_device(s, sampling, NULL, 0, 0, p, err);
    p->d.ids[0] = s->decoder->spec.next;
    const int code = drafts_block(s, price, most, &p->d, &worth, err);
    return code ? code : pass_on_device(s, sampling, p->d.ids, worth, 0, p, err);
}

/* A pass of a session whose tokens a device chooses. Copies compete with the drafts that it has made already, and a block with both; where it has
   none and makes none, the next token is not known before the step, and it is asked for by the host if copies are likely to follow it. */
static int pass_by_device(mote_session *s, sampler *sampler, int left, decode_pass *p, mote_error *err) {
    const int made = s->decoder->spec.drafts, known = s->decoder->spec.next >= 0;
    const int most = drafts_most(s, s->count, left), next = drafts_most(s, s->count + made + 1, left - 1);
    const int wanted = s->slot.has_mtp ? min_int(s->decoder->spec.stats.depth, next) : 0;
    int worth = made, copied;
    drafts copy;
    if (!speculates(s)) return pass_plain(s, &sampler->p, p, err);
    if (known) acceptance_judge(&s->decoder->spec, s->decoder->spec.next);
    const prices price = prices_now(s);
    int code = drafts_of_device(s, &price, &p->d, &worth, err);
    if (code) return code;
    copy.ids[0] = p->d.ids[0] = s->decoder->spec.next;
    drafts_copy(s, known, known || !wanted ? most : 0, &copy);
    const drafts block = drafts_by_place(s, MOTE_DRAFT_BLOCK, block_most(s, most)), mtp = made ? p->d : drafts_by_place(s, MOTE_DRAFT_MTP, wanted);
    const int blocks = block_wins(s, &price, &block, &mtp);
    const int wins = copies_win(s, &price, &copy, blocks ? &block : &p->d, blocks ? price.block : 0, &copied);
    if (wins && !known && copied > 1) return pass_by_host(s, sampler, left, p, err);
    if (wins && known) p->d = copy;
    if (wins && known) return pass_on_device(s, &sampler->p, p->d.ids, copied, wanted, p, err);
    if (blocks) return pass_of_block(s, &sampler->p, &price, most, p, err);
    return made || wanted ? pass_on_device(s, &sampler->p, NULL, worth, wanted, p, err) : pass_plain(s, &sampler->p, p, err);
}

/* Begins a pass of an answer of which `left` tokens are left. No row is kept yet; none is accepted if sampler->stopped. */
static int pass_begin(mote_session *s, sampler *sampler, int left, decode_pass *p, mote_error *err) {
    const double start = seconds(), drafting = s->decoder->spec.stats.draft_seconds;
    memset(p, 0, sizeof *p);
    int code = device_samples(s, sampler) ? pass_by_device(s, sampler, left, p, err) : pass_by_host(s, sampler, left, p, err);
    s->decoder->spec.passed = seconds();
    s->decoder->spec.stats.pass_seconds += s->decoder->spec.passed - start - (s->decoder->spec.stats.draft_seconds - drafting);
    return code;
}

/* Keeps the next row of a pass, if its token is the one that is chosen there: *more. What the host chooses it chooses here,
   when all before it is part of the answer for good: so the application's on_logits never sees a draft that is refused, nor
   what comes after an answer's end. The token that differs from its draft begins the next pass: spec.next. */
static int pass_keep(mote_session *s, sampler *sampler, decode_pass *p, int *more, mote_error *err) {
    *more = 0;
    if (p->by_host && p->kept == p->accepted && p->kept < p->rows) {
        int code = choose(s, sampler, &s->decoder->spec.next, err);
        if (code || sampler->stopped) return code;
        p->judged++;
        if (s->decoder->spec.next == s->tokens[s->block_at + p->kept]) {
            p->accepted++;
            s->decoder->spec.next = -1;
        }
    }
    *more = p->kept < p->accepted;
    if (*more) timeline_keep(s, ++p->kept);
    return MOTE_OK;
}

/* After the last row that is kept. */
static void pass_end(mote_session *s, const decode_pass *p) {
    mote_runner *r = s->slot.runner;
    if (!p->rows) return;
    acceptance_learn(&s->decoder->spec, &p->d, p->judged, p->accepted - 1);
    acceptance_count(&s->decoder->spec, &p->d, p->rows - 1, p->judged, p->accepted - 1);
    if (p->accepted == p->rows && p->d.n >= p->rows) acceptance_await(&s->decoder->spec, &p->d, p->rows - 1);
    s->decoder->spec.rows = p->rows;
    pthread_mutex_lock(&r->lock);
    if (r->costs.sessions > 1) r->costs.accepted += (p->kept - r->costs.accepted) / 16;
    pthread_mutex_unlock(&r->lock);
    speculation_choose(s);
}
