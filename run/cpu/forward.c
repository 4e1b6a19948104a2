/* run/cpu/forward.c: the forward pass on the CPU: the token rows of one session or of several through all layers, each of which adds a mixer
   and an FFN to the residual x (layers/kinds.c); the MTP layer after them. The executor of a model whose weights are in host memory.

   Only mixers know which session a row is of (token_sequence); all else takes the rows as they are, and reads each weight once for all
   of them. */

/* The ranks of which this runner is one; NULL: there is no other. */
static peer *cpu_ranks(const mote_runner *r) {
    return r->m->part.ranks > 1 ? r->me : NULL;
}

/* Whether the other members of the group are lost: what has been computed means nothing. */
static int cpu_ended(const mote_runner *r) {
    return r->me && r->me->ended;
}

/* x[T][hidden] = the embeddings of T rows. Of several ranks each has those of some tokens, the first those that are no token's; the others
   add zeros. */
static void cpu_embed(mote_runner *r, const token_row *rows, int T, float *x) {
    const matrix *w = &r->m->embed_tokens;
    const size_t hidden = (size_t)w->cols;
    const float factor = r->m->c.embed_factor;
    const int32_t first = part_vocab(&r->m->part, r->m->c.vocab).first;
    if (!cpu_ranks(r)) {
        embed(w, factor, rows, T, x);
        return;
    }
    memset(x, 0, (size_t)T * hidden * sizeof *x);
    for (int t = 0; t < T; t++) {
        token_row own = rows[t];
        own.id -= first;
        if (own.embedding ? !r->m->part.rank : own.id >= 0 && own.id < w->rows) embed(w, factor, &own, 1, x + (size_t)t * hidden);
    }
    exchange_sum(cpu_ranks(r), x, (size_t)T * hidden, r->s.shares);
}

/* x[T][streams][hidden]: the embeddings of T rows fill all streams. */
static void cpu_embed_streams(mote_runner *r, const token_row *rows, int T, float *x) {
    const size_t hidden = (size_t)r->m->c.hidden, streams = (size_t)r->m->c.streams;
    float *embedded = streams ? r->s.u : x;
    cpu_embed(r, rows, T, embedded);
    for (size_t c = 0; c < (size_t)T * streams; c++) memcpy(x + c * hidden, embedded + c / streams * hidden, hidden * sizeof *x);
}

/* The rows of x of n sequences through layer i, which is l. state_only: of the MTP layer, whose KV rows are all that is wanted. */
static void run_layer(mote_runner *r, const layer *l, int i, const token_sequence *of, int n, int state_only) {
    token_rows rows;
    rows.threads = r->threads;
    rows.table = r->s.table;
    rows.T = of[n - 1].first + of[n - 1].T;
    rows.of = of;
    rows.count = n;
    rows.state_only = state_only;
    rows.given = rows.both_ways = 0;
    rows.hidden = r->m->c.hidden;
    rows.mix = &r->s.mix;
    rows.chosen = &r->s.chosen[i];
    rows.looked_up = l->mixer.kind == LAYER_NGRAMS ? r->s.looked_up[l->mixer.w.ngrams.shape.number] : NULL;
    rows.eps = r->m->c.eps;
    rows.x = r->s.x;
    rows.y = r->s.y;
    rows.u = r->s.u;
    rows.branches = r->s.branches;
    rows.ranks = cpu_ranks(r);
    rows.shares = r->s.shares;
    layer_forward(&rows, l, i, &r->s.jobs);
}

static token_sequence sequence_of(const slot *s, int first, int T, int replay) {
    token_sequence q = {.first = first, .T = T, .replay = replay, .states = s->state};
    return q;
}

/* Puts T rows of sequence `sequence` into the runner's table, from row `first` on. */
static void table_put(mote_runner *r, int first, int sequence, const token_row *rows, int T) {
    for (int t = 0; t < T; t++) {
        r->s.table[first + t] = rows[t];
        r->s.table[first + t].sequence = sequence;
    }
}

/* Logits of a row that cpu_head is to compute as its row number *n. */
static void cpu_head_row(mote_runner *r, int *n, const float *row, float *logits) {
    const size_t hidden = (size_t)r->m->c.hidden;
    memcpy(r->s.head_in + (size_t)*n * hidden, row, hidden * sizeof(float));
    r->s.head_out[(*n)++] = logits;
}

/* Of several ranks: of rows [at, at + n) each computes the logits of its rows of the vocabulary, and the one that answers gets all. */
static void cpu_head_shares(mote_runner *r, int at, int n) {
    const mote_model *m = r->m;
    const size_t hidden = (size_t)m->c.hidden, most = (size_t)part_vocab(&m->part, m->c.vocab).most;
    scratch *s = &r->s;
    stage_head(r->threads, &m->lm_head, m->c.logit_cap, s->head_in + (size_t)at * hidden, n, s->share, s->limbs);
    exchange_gather(r->me, s->share, (size_t)n * most * sizeof(float), s->shares);
    for (int rank = 0; rank < m->part.ranks && runner_answers(r) && !cpu_ended(r); rank++) {
        const model_part of = part_of(0, 1, rank, m->part.ranks);
        const vocab_share v = part_vocab(&of, m->c.vocab);
        const float *from = s->shares + (size_t)rank * (size_t)n * most;
        for (int t = 0; t < n; t++)
            memcpy(s->head_out[at + t] + v.first, from + (size_t)t * (size_t)v.rows, (size_t)v.rows * sizeof(float));
    }
}

/* All these at once: its weights are read once, but of several ranks. */
static void cpu_head(mote_runner *r, int n) {
    if (n && !cpu_ranks(r)) stage_head_rows(r->threads, &r->m->lm_head, r->m->c.logit_cap, r->s.head_in, n, r->s.head_out, r->s.limbs);
    for (int at = 0; at < n && cpu_ranks(r); at += SHARED_LOGITS) cpu_head_shares(r, at, min_int(n - at, SHARED_LOGITS));
}

/* Of streams: where in mtp_in the final rows begin. */
static float *mtp_final_rows(const mote_runner *r) {
    return r->s.mtp_in + (size_t)r->s.rows * (size_t)r->m->c.hidden;
}

/* What the head is multiplied with, of T rows of x after the layers, to h; and the final rows, unless that is NULL or h itself. */
static void cpu_end(mote_runner *r, const float *norm, const stream_mixer *mixer, int T, float *final, float *h) {
    const config *c = &r->m->c;
    const stream_job job = {.w = mixer, .s = &r->s.mix, .T = T, .streams = c->streams, .hidden = c->hidden, .eps = c->eps, .x = r->s.x, .u = h};
    if (!c->streams) rms_norm(h, r->s.x, norm, T, c->hidden, c->eps);
    else streams_read(r->threads, &job);
    if (c->streams && final) memcpy(final, r->s.x, (size_t)T * (size_t)model_width(r->m) * sizeof *final);
}

/* Row `to` of the MTP layer's table and of its input: it stands where `before` does, of which final_row is, and takes the token after
   that, `next`. Of streams the embeddings of all rows come before all final rows. */
static void mtp_put(mote_runner *r, int to, int sequence, const token_row *before, const token_row *next, const float *final_row) {
    const mote_model *m = r->m;
    const int hidden = m->c.hidden, width = model_width(m);
    float *in = r->s.mtp_in + (size_t)to * (size_t)(m->c.streams ? hidden : 2 * hidden);
    float *of_final = m->c.streams ? mtp_final_rows(r) + (size_t)to * (size_t)width : in + hidden;
    token_row *row = &r->s.table[to];
    *row = *before;
    row->sequence = sequence;
    row->id = next->id;
    row->embedding = next->embedding;
    cpu_embed(r, row, 1, r->s.u);
    rms_norm(in, r->s.u, m->mtp.norm_embedding, 1, hidden, m->c.eps);
    rms_norm(of_final, final_row, m->mtp.norm_hidden, 1, width, m->c.eps);
}

/* x of the MTP layer's rows, of streams: each gets its own of the final row, and all get the embedding. */
static void mtp_fill_streams(mote_runner *r, int rows) {
    const mote_model *m = r->m;
    scratch *w = &r->s;
    const size_t hidden = (size_t)m->c.hidden, streams = (size_t)m->c.streams;
    linear(r->threads, &m->mtp.fc, mtp_final_rows(r), w->x, rows * m->c.streams, 0, w->limbs);
    linear(r->threads, &m->mtp.fc_embedding, w->mtp_in, w->u, rows, 0, w->limbs);
    for (size_t c = 0; c < (size_t)rows * streams; c++)
        for (size_t i = 0; i < hidden; i++) w->x[c * hidden + i] += w->u[c / streams * hidden + i];
}

/* The MTP layer over `rows` rows of mtp_in: what its head is multiplied with, to h [rows][hidden], and its final rows, as cpu_end has them;
   h NULL: its states alone. */
static void mtp_forward(mote_runner *r, const token_sequence *of, int n, int rows, float *final, float *h) {
    const mote_model *m = r->m;
    scratch *w = &r->s;
    if (m->c.streams) mtp_fill_streams(r, rows);
    else linear(r->threads, &m->mtp.fc, w->mtp_in, w->x, rows, 0, w->limbs);
    run_layer(r, &m->mtp.layer, m->c.layers, of, n, !h);
    if (h) cpu_end(r, m->mtp.norm, &m->mtp.mixer, rows, final, h);
}

/* The rows of a block that the MTP layer takes: see run_mtp. */
static int mtp_rows(const pass_request *q) {
    return q->s->has_mtp ? q->b->T - (q->b->rows->index == 0) : 0;
}

/* These of sequence `sequence`, from row `to` on. hidden: the block's final rows. */
static void mtp_inputs(const pass_request *q, int sequence, const float *hidden, int to) {
    const block *b = q->b;
    const size_t size = (size_t)model_width(q->s->m);
    for (int t = b->T - mtp_rows(q); t < b->T; t++, to++)
        mtp_put(q->s->runner, to, sequence, &b->rows[t - 1], &b->rows[t], t ? hidden + (size_t)(t - 1) * size : q->s->last_hidden);
}

/* The MTP layer for the rows just computed: the row of index p takes the token after it and the final row of p, and predicts
   the token after that. So the rows are those of indexes first-1 .. first+T-2, without -1. Its KV rows are kept for drafting;
   logits, when wanted, get one row for each. */
static void run_mtp(mote_runner *r, pass_request *const *of, const token_sequence *main_rows, int n) {
    const mote_model *m = r->m;
    scratch *w = &r->s;
    token_sequence at[PASS_ROWS_MAX];
    const size_t hidden = (size_t)m->c.hidden, vocab = (size_t)m->c.vocab, width = (size_t)model_width(m);
    int count = 0, rows = 0, wanted = 0, head = 0;
    for (int i = 0; i < n; i++) {
        const block *b = of[i]->b;
        const int T = mtp_rows(of[i]);
        if (!T) continue;
        mtp_inputs(of[i], count, w->hidden + (size_t)main_rows[i].first * width, rows);
        at[count++] = sequence_of(of[i]->s, rows, T, b->replay);
        rows += T;
        wanted |= b->mtp_logits != NULL;
    }
    if (!rows) return;
    mtp_forward(r, at, count, rows, NULL, wanted ? w->u : NULL);
    if (!wanted) return;
    for (int i = 0, row = 0; i < n; i++)
        for (int t = 0; t < mtp_rows(of[i]); t++, row++)
            if (of[i]->b->mtp_logits) cpu_head_row(r, &head, w->u + (size_t)row * hidden, of[i]->b->mtp_logits + (size_t)t * vocab);
    cpu_head(r, head);
}

/* The rows of x that are wanted as they are, of streams those of h. */
static void cpu_residual(const mote_runner *r, const block *b, const token_sequence *at) {
    const size_t hidden = (size_t)r->m->c.hidden, rows = (size_t)b->residual_rows;
    const float *from = r->m->c.streams ? r->s.h : r->s.x;
    if (rows && runner_answers(r)) memcpy(b->residual, from + ((size_t)(at->first + b->T) - rows) * hidden, rows * hidden * sizeof(float));
}

/* The logits that are wanted of final rows. */
static void run_head(mote_runner *r, pass_request *const *of, const token_sequence *at, int n) {
    const size_t hidden = (size_t)r->m->c.hidden, vocab = (size_t)r->m->c.vocab;
    int head = 0;
    for (int i = 0; i < n; i++) {
        const block *b = of[i]->b;
        const float *rows = r->s.h + (size_t)at[i].first * hidden;
        for (int t = b->logits ? 0 : b->T - 1; t < b->T; t++)
            cpu_head_row(r, &head, rows + (size_t)t * hidden, b->logits ? b->logits + (size_t)t * vocab : of[i]->s->logits);
    }
    cpu_head(r, head);
}

/* What the slot keeps of a block, whose final rows these are. Those of a block that may be kept in part stay with it; of a longer one
   the last, which is the timeline's then. */
static void cpu_computed(slot *s, const block *b, const float *final_rows) {
    const size_t hidden = (size_t)model_width(s->m), vocab = (size_t)s->m->c.vocab, T = (size_t)b->T;
    if (b->logits && b->logits != s->block_logits && runner_answers(s->runner)) memcpy(s->logits, b->logits + (T - 1) * vocab, vocab * sizeof(float));
    if (T <= MOTE_ROWS_MAX) memcpy(s->hidden, final_rows, T * hidden * sizeof(float));
    else memcpy(s->last_hidden, final_rows + (T - 1) * hidden, hidden * sizeof(float));
    slot_computed(s, b);
}

static void drafter_tap(const mote_runner *r, int layer, int rows);
static void drafter_read(mote_runner *r, pass_request *const *of, const token_sequence *at, int n);
static void cpu_draft_blocks(mote_runner *r, pass_request *const *of, int n);

/* After layer i of a block of many rows: others may compute, in scratch of their own. Nonzero: the block shall end. */
static int cpu_between(mote_runner *r, const pass_request *q, int i) {
    const scratch own = r->s;
    const block_watch *watch = q->s->undo ? q->b->watch : NULL;
    if (q->b->T <= MOTE_ROWS_MAX || r->me) return 0;
    if (r->beside.rows) {
        r->s = r->beside;
        (void)runner_yield(r, q->s);
        r->beside = r->s;
        r->s = own;
    }
    return watch && watch->layer(watch->user, (double)q->b->T * (i + 1) / (r->m->c.layers + 1));
}

/* x of n rows through the part's layers: from the embedding, or from the range before; to the next one, if there is one. Nonzero: it was ended. */
static int cpu_walk(mote_runner *r, pass_request *const *of, const token_sequence *at, int n, int rows) {
    const mote_model *m = r->m;
    const size_t floats = (size_t)rows * (size_t)model_width(m);
    if (!part_is_first(&m->part)) exchange_receive(r->me, r->s.x, floats);
    for (int i = m->part.first; i < m->part.end && !cpu_ended(r); i++) {
        run_layer(r, &m->layers[i], i, at, n, 0);
        if (m->drafter) drafter_tap(r, i, rows);
        if (cpu_between(r, of[0], i)) return 1;
    }
    if (!part_is_last(&m->part)) exchange_send(r->me, r->s.x, floats);
    return 0;
}

/* The rows of tables that the blocks of n slots need, before any layer has touched a state: if they cannot be read, nothing has happened. */
static int cpu_look_up(mote_runner *r, pass_request *const *of, int n, mote_error *err) {
    const mote_model *m = r->m;
    int code = MOTE_OK;
    for (int i = m->part.first; i < m->part.end && !code; i++) {
        const ngrams_weights *w = &m->layers[i].mixer.w.ngrams;
        if (!table_of(m, i)) continue;
        const size_t each = (size_t)ngrams_rows(&w->shape);
        size_t rows = 0;
        for (int k = 0; k < n; k++) {
            const block *b = of[k]->b;
            ngrams_look_up(w, &of[k]->s->state[i].ngrams, b->rows, b->T, b->replay, r->s.table_rows + rows * each);
            rows += (size_t)b->T;
        }
        code = tables_read(r->threads, table_of(m, i), r->s.table_rows, (int)(rows * each), w->shape.row_size, r->s.looked_up[w->shape.number], err);
    }
    return code;
}

/* The blocks of n slots as one pass. Fails before it has begun, or is cancelled: see cpu_forward. */
static int cpu_forward_all(mote_runner *r, pass_request *const *of, int n, mote_error *err) {
    const mote_model *m = r->m;
    scratch *w = &r->s;
    token_sequence at[PASS_ROWS_MAX];
    const size_t width = (size_t)model_width(m);
    int rows = 0;
    const int code = model_has_tables(m) ? cpu_look_up(r, of, n, err) : MOTE_OK;
    if (code) return code;
    for (int i = 0; i < n; i++) {
        slot *s = of[i]->s;
        const block *b = of[i]->b;
        if (b->replay) memcpy(s->last_hidden, slot_final_row(s, b->replay), width * sizeof(float));
        at[i] = sequence_of(s, rows, b->T, b->replay);
        table_put(r, rows, i, b->rows, b->T);
        rows += b->T;
    }
    if (part_is_first(&m->part)) cpu_embed_streams(r, w->table, rows, w->x);
    if (cpu_walk(r, of, at, n, rows)) return fail(err, MOTE_ECANCELLED, "cancelled");
    if (!part_is_last(&m->part) || cpu_ended(r)) return MOTE_OK;
    cpu_end(r, m->norm, &m->mixer, rows, w->hidden, w->h);
    for (int i = 0; i < n; i++) cpu_residual(r, of[i]->b, &at[i]);
    run_head(r, of, at, n);
    if (m->drafter) drafter_read(r, of, at, n);
    run_mtp(r, of, at, n);
    for (int i = 0; i < n; i++) cpu_computed(of[i]->s, of[i]->b, w->hidden + (size_t)at[i].first * width);
    return MOTE_OK;
}

/* The highest of each row's logits, the lowest id on a tie. */
static void cpu_choose_drafts(void *context, int begin, int end, int thread) {
    const mote_runner *r = (const mote_runner *)context;
    const int rows = r->m->draft_head.rows;
    (void)thread;
    for (int i = begin; i < end; i++) {
        const float *logits = r->s.draft_logits + (size_t)i * (size_t)rows;
        int32_t id = 0;
        double sum = 0;
        for (int j = 1; j < rows; j++)
            if (logits[j] > logits[id]) id = j;
        for (int j = 0; j < rows; j++) sum += expf(logits[j] - logits[id]);
        r->s.choice[i].sum = sum;
        r->s.choice[i].logit = rows ? logits[id] : -INFINITY;
        r->s.choice[i].id = id;
    }
}

/* The draft of each of n rows, and its probability, by what this rank, or all of them, have chosen. */
static void cpu_join_drafts(mote_runner *r, int n) {
    const int ranks = r->m->part.ranks;
    const int32_t share = part_vocab(&r->m->part, r->m->c.vocab).most;
    scratch *s = &r->s;
    if (ranks > 1) {
        memcpy(s->share, s->choice, (size_t)n * sizeof *s->choice);
        exchange_gather(r->me, s->share, (size_t)n * sizeof *s->choice, s->choice);
    }
    for (int i = 0; i < n && !cpu_ended(r); i++) {
        int best = 0;
        double sum = 0;
        for (int rank = 1; rank < ranks; rank++)
            if (s->choice[rank * n + i].logit > s->choice[best * n + i].logit) best = rank;
        const draft_choice *of = &s->choice[best * n + i];
        for (int rank = 0; rank < ranks; rank++)
            sum += rank == best ? of->sum : s->choice[rank * n + i].sum * exp((double)s->choice[rank * n + i].logit - (double)of->logit);
        s->drafted[i] = best * share + of->id;
        s->confidence[i] = (float)(1 / sum);
    }
}

/* Whether the request wants a draft after the first i. */
static int cpu_drafts_on(const pass_request *q, int i) {
    return q->drafts > i && *q->count == i && (!q->continue_drafting || !i || q->continue_drafting(q->user, i, q->confidence));
}

/* The same of n requests: of several ranks one asks, for all. */
static void cpu_ask_drafts(mote_runner *r, pass_request *const *of, int n, int i, char *on) {
    memset(on, 0, PASS_ROWS_MAX);
    for (int k = 0; k < n && runner_answers(r); k++) on[k] = (char)cpu_drafts_on(of[k], i);
    if (!cpu_ranks(r)) return;
    exchange_gather(r->me, on, PASS_ROWS_MAX, r->s.shares);
    memcpy(on, r->s.shares, PASS_ROWS_MAX);
    if (cpu_ended(r)) memset(on, 0, PASS_ROWS_MAX);
}

/* ids of each request: what may follow its timeline and the token of b. Each draft is the MTP layer's favourite, and its
   input for the next one, with its own final row in place of the model's. The KV rows it writes on the way, after the first, are of
   guesses: the block that runs next writes them anew. Draft i of all that want so many is one pass. */
static void cpu_draft_all(mote_runner *r, pass_request *const *of, int n) {
    const mote_model *m = r->m;
    scratch *w = &r->s;
    token_sequence at[PASS_ROWS_MAX];
    char on[PASS_ROWS_MAX];
    int row[PASS_ROWS_MAX] = {0};                           /* of a request in the pass of the draft before */
    const size_t width = (size_t)model_width(m);
    for (int k = 0; k < n; k++) *of[k]->count = 0;
    for (int i = 0, rows = 1; rows; i++) {
        rows = 0;
        cpu_ask_drafts(r, of, n, i, on);
        for (int k = 0; k < n; k++) {
            const block *b = of[k]->b;
            if (!on[k]) continue;
            *of[k]->count = i + 1;
            const token_row next = i ? text_after(b->rows, i, of[k]->ids[i - 1]) : *b->rows;
            const token_row before = i ? text_after(b->rows, i - 1, -1) : b->rows[-1];
            mtp_put(r, rows, rows, &before, &next, i ? w->hidden + (size_t)row[k] * width : slot_final_row(of[k]->s, b->replay));
            at[rows] = sequence_of(of[k]->s, rows, 1, b->replay);
            row[k] = rows++;
        }
        if (!rows || cpu_ended(r)) return;
        mtp_forward(r, at, rows, rows, w->hidden, w->h);
        if (m->draft_head.rows) stage_head(r->threads, &m->draft_head, m->c.logit_cap, w->h, rows, w->draft_logits, w->limbs);
        parallel(r->threads, rows, cpu_choose_drafts, r);
        cpu_join_drafts(r, rows);
        for (int k = 0; k < n; k++) {
            if (*of[k]->count != i + 1) continue;
            of[k]->ids[i] = w->drafted[row[k]];
            of[k]->confidence[i] = w->confidence[row[k]];
        }
    }
}

/* Of one kind, FORWARD, DRAFT or BLOCK: the host samples. */
static void cpu_pass(mote_runner *r, pass_request *const *of, int n) {
    mote_error why;
    int code = MOTE_OK;
    if (of[0]->kind == REQUEST_BLOCK) cpu_draft_blocks(r, of, n);
    else if (of[0]->kind != REQUEST_DRAFT) code = cpu_forward_all(r, of, n, &why);
    else if (part_is_last(&r->m->part)) cpu_draft_all(r, of, n);
    const int apart = code && n > 1 && !r->me;              /* nothing has begun: what cannot be read is one session's failure */
    for (int i = 0; i < n && apart; i++) of[i]->code = cpu_forward_all(r, &of[i], 1, &of[i]->error);
    for (int i = 0; i < n && !apart; i++) {
        of[i]->code = code ? code : cpu_ended(r) ? MOTE_EDEVICE : MOTE_OK;
        if (code) of[i]->error = why;
    }
}

/* A block that somebody watches may be cancelled between two layers: what cannot be truncated is then as it was. Without memory for that nobody
   is asked. */
static int cpu_forward(slot *s, const block *b, mote_error *err) {
    pass_request q, *one = &q;
    const size_t width = (size_t)model_width(s->m), floats = s->recurrent_floats;
    const int watched = b->watch && b->T > MOTE_ROWS_MAX && !s->runner->me;
    request_is(&q, REQUEST_FORWARD, s, b);
    s->undo = watched ? (float *)malloc((floats + width) * sizeof *s->undo) : NULL;
    if (s->undo) memcpy(s->undo, s->recurrent, floats * sizeof *s->undo);
    if (s->undo) memcpy(s->undo + floats, s->last_hidden, width * sizeof *s->undo);
    const int code = cpu_forward_all(s->runner, &one, 1, err);
    if (code == MOTE_ECANCELLED) memcpy(s->recurrent, s->undo, floats * sizeof *s->undo);
    if (code == MOTE_ECANCELLED) memcpy(s->last_hidden, s->undo + floats, width * sizeof *s->undo);
    free(s->undo);
    s->undo = NULL;
    return code;
}

static int cpu_copy(slot *s, void *to, const void *from, size_t n, mote_error *err) {
    (void)s;
    (void)err;
    if (n) memcpy(to, from, n);
    return MOTE_OK;
}

static int cpu_clear(slot *s, mote_error *err) {
    (void)err;
    memset(s->recurrent, 0, s->recurrent_floats * sizeof(float));
    return MOTE_OK;
}

/* All is done and here when a call returns. */
static int cpu_nothing(slot *s, mote_error *err) {
    (void)s;
    (void)err;
    return MOTE_OK;
}

enum { CPU_CHUNK = 256 };                                   /* token rows */

/* A prompt is read by forward(), and the host samples. */
static const executor cpu_executor = {
    .kv = MOTE_KV_F32, .chunk = CPU_CHUNK, .chunk_alignment = 1, .ring_rows = 0, .shares_memory = 1, .reads_text = 0,
    .runner_bytes = 0, .slot_bytes = 0,
    .layout_runner = cpu_layout_runner, .layout_slot = NULL, .open = cpu_open, .close = cpu_close,
    .slot_open = cpu_slot_open, .slot_close = cpu_slot_close, .forward = cpu_forward, .prompt_rows = NULL, .prompt = NULL,
    .commit_state = cpu_forward, .draft = NULL, .logits = cpu_nothing, .copy = cpu_copy, .clear = cpu_clear,
    .finish = cpu_nothing, .prepare = cpu_nothing, .can_sample = NULL, .step = NULL, .cycle = NULL, .drafted = NULL,
    .pass = cpu_pass, .computes = NULL, .vision = cpu_vision,
    .launches = 0, .connect = NULL, .end = NULL, .enter = NULL, .choose = NULL, .prepared = NULL, .pass_class = NULL};
