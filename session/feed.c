/* session/feed.c: tokens into a timeline, as the application gives them: mote_feed and what it returns. */

/* n tokens fit after `before` others, and are tokens. */
static int check_ids(const mote_session *s, int before, const int32_t *ids, size_t n, mote_error *err) {
    size_t left = before < s->o.context ? (size_t)(s->o.context - before) : 0;
    if (n > left)
        return fail(err, MOTE_ECONTEXT, "%zu tokens do not fit: the session holds %d of %d", n, before, s->o.context);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->m->c.vocab)
            return fail(err, MOTE_EINVAL, "token %zu: id %d is not in the vocabulary of %d", i, ids[i], s->m->c.vocab);
    return MOTE_OK;
}

/* Positions that a model reads. */
static int check_rows(const mote_session *s, const token_row *rows, size_t n, mote_error *err) {
    for (size_t i = 0; i < n; i++)
        for (int a = 0; a < ROW_AXES; a++)
            if (rows[i].position[a] < 0 || rows[i].position[a] >= s->m->c.context_max)
                return fail(err, MOTE_EINVAL, "row %zu: position %d, expected 0 to %d", i, rows[i].position[a], s->m->c.context_max - 1);
    return MOTE_OK;
}

/* How far a prompt of `count` tokens has been read, and how quickly since `start`. */
static void report_prompt(const mote_session *s, double done, size_t count, double start) {
    const mote_callbacks *c = &s->o.callbacks;
    char what[96];
    double passed = seconds() - start, all = done + (double)s->read_before;
    count += s->read_before + s->read_after;
    if (c->prompt) c->prompt(c->user, (int)all, (int)count);
    if (!c->progress || count <= (size_t)session_rows(s)) return;
    snprintf(what, sizeof what, "reading the prompt: %.0f of %zu tokens, %.0f tok/s", all, count, passed > 0 ? done / passed : 0);
    report(c, what, all / (double)count);
}

/* Who is told the logits of a call's tokens, a few rows at a time. */
typedef struct logits_reader {
    void (*read)(void *user, const float *rows, size_t first, int n);          /* [n][vocab], of tokens from number `first` on */
    void *user;
    float *rows;                 /* [rows_most][vocab] for them */
    int rows_most;
} logits_reader;

/* What a call that reads tokens gives besides; NULL: not wanted. */
typedef struct feed_results {
    float *logits, *mtp_logits;  /* of every token */
    const logits_reader *reader;
    pooling *embedding;
} feed_results;

/* An image that is read: features [rows * columns][hidden] of all its tokens, in the host's memory. */
typedef struct fed_image { image_span span; const float *features; } fed_image;

/* Rows that are read not as text. */
typedef struct fed_rows {
    const token_row *rows;       /* [count] of which the positions and the embeddings count */
    const fed_image *images;     /* whose rows are among them, in their order */
    int image_count;
} fed_rows;

/* Such a call, as far as it has come. */
typedef struct feeding {
    mote_session *s;
    const fed_rows *given;       /* NULL: text */
    size_t done, count;          /* tokens */
    double start;                /* seconds */
    feed_results to;             /* its logits: where those of the next block go */
} feeding;

static int feed_layer(void *user, double rows) {
    const feeding *f = (const feeding *)user;
    report_prompt(f->s, (double)f->done + rows, f->count, f->start);
    return cancelled(&f->s->o.callbacks);
}

static void feed_rows(void *user, const float *rows, int first, int n) {
    const feeding *f = (const feeding *)user;
    f->to.reader->read(f->to.reader->user, rows, f->done + (size_t)first, n);
}

/* How many of the next rows, at most `most`, a step takes that reads text alone, or one row: an image's by itself, and the one after it; text up to the
   next image. */
static size_t feed_step_rows(const feeding *f, size_t most) {
    const image_spans *images = &f->s->images;
    const int last = spans_before(images, f->s->count) - 1, after = last >= 0 && images->of[last].start + images->of[last].count >= f->s->count;
    const token_row *r = f->given ? f->given->rows + f->done : NULL;
    const size_t left = f->count - f->done;
    size_t n = 1;
    if (after) return n;
    if (!r) return most;
    while (n < most && n < left && row_is_text(r) && row_is_text(r + n) && row_lag(r + n) == row_lag(r)) n++;
    return n;
}

/* The next block of a call, of at most `most` rows. */
static block feed_next(const feeding *f, const int32_t *ids, size_t most) {
    const size_t left = f->count - f->done;
    block b = timeline_block(f->s, ids, (int)(left < most ? left : most));
    if (f->given) timeline_place(f->s, &b, f->given->rows + f->done, f->done > 0);
    b.logits = f->to.logits;
    b.mtp_logits = f->to.mtp_logits;
    if (f->to.embedding) pooling_ask(f->to.embedding, &b);
    b.last = (size_t)b.T == left;
    return b;
}

/* Reads the next block of a call that is read as a prompt. */
static int feed_prompt(const feeding *f, const int32_t *ids, block *b, mote_error *err) {
    mote_session *s = f->s;
    const logits_reader *reader = f->to.reader;
    block_watch watch = {.user = (void *)f, .layer = feed_layer, .logits = reader ? feed_rows : NULL,
                         .rows = reader ? reader->rows : NULL, .rows_most = reader ? reader->rows_most : 0};
    int code = s->accepted ? timeline_commit_state(s, err) : MOTE_OK;
    if (code) return code;
    *b = feed_next(f, ids, (size_t)slot_prompt_rows(&s->slot, s->count, f->count - f->done));
    code = timeline_prompt(s, b, &watch, err);
    if (code == MOTE_ECANCELLED) return fail(err, code, "cancelled after %zu of %zu tokens", f->done, f->count);
    return code;
}

/* Reads the next block of any other. */
static int feed_block(const feeding *f, const int32_t *ids, block *b, mote_error *err) {
    mote_session *s = f->s;
    const logits_reader *reader = f->to.reader;
    const int most = f->to.mtp_logits ? s->slot.runner->mtp_rows : session_rows(s), before = s->count;
    const block_watch watch = {.user = (void *)(uintptr_t)f, .layer = feed_layer, .logits = NULL, .rows = NULL, .rows_most = 0};
    if (cancelled(&s->o.callbacks)) return fail(err, MOTE_ECANCELLED, "cancelled after %zu of %zu tokens", f->done, f->count);
    const size_t rows = (size_t)(reader ? min_int(most, reader->rows_most) : most);
    *b = feed_next(f, ids, s->slot.runner->backend->reads_text ? feed_step_rows(f, rows) : rows);
    if (reader) b->logits = reader->rows;
    b->watch = &watch;
    int code = timeline_compute(s, b, err);
    if (code == MOTE_ECANCELLED) {
        s->valid = s->count;                                /* KV rows after the end are overwritten */
        return fail(err, code, "cancelled after %zu of %zu tokens", f->done, f->count);
    }
    if (code) return code;
    if (reader) feed_rows((void *)f, reader->rows, 0, b->T);
    timeline_keep(s, before + b->T - s->block_at);
    s->generated_from = s->count;
    return MOTE_OK;
}

/* A block of given rows is part of the timeline. */
static void feed_given(const feeding *f, const block *b) {
    const fed_rows *g = f->given;
    timeline_go_on(f->s, b);
    for (int i = 0; i < g->image_count && g->images[i].span.start < f->s->count; i++) timeline_image(f->s, &g->images[i].span);
}

/* Reads tokens into the timeline, with rows not as text, those of images: they have three positions and an embedding, in the host's memory;
   what a device does not do is refused. given: NULL: text; of its images the session has reserved the memory. wanted: NULL: nothing besides. Only
   the callbacks and a device can make it fail once tokens and rows are checked. */
static int feed_table(mote_session *s, const int32_t *ids, const fed_rows *given, size_t count, const feed_results *wanted, mote_error *err) {
    static const feed_results nothing = {NULL, NULL, NULL, NULL};
    const size_t vocab = (size_t)s->m->c.vocab;
    const int from = s->slot.runner->prompt_from, prompt = from && (given || count >= (size_t)from);
    feeding f = {.s = s, .given = given, .done = 0, .count = count, .start = seconds(), .to = wanted ? *wanted : nothing};
    int code = check_ids(s, s->count, ids, count, err);
    if (!code && given) code = check_rows(s, given->rows, count, err);
    while (!code && f.done < count) {
        const int first = s->count;
        block b;
        code = prompt ? feed_prompt(&f, ids + f.done, &b, err) : feed_block(&f, ids + f.done, &b, err);
        if (code) break;
        if (given) feed_given(&f, &b);
        f.done += (size_t)b.T;
        if (f.to.logits) f.to.logits += (size_t)b.T * vocab;
        if (f.to.mtp_logits) f.to.mtp_logits += (size_t)(b.T - (first == 0)) * vocab;
        if (f.to.embedding) pooling_rows(f.to.embedding, b.residual_rows);
        report_prompt(s, (double)f.done, count, f.start);
    }
    const int finished = slot_finish(&s->slot, code ? NULL : err);      /* in any case: blocks may still be under way */
    return code ? code : finished;
}

static int feed(mote_session *s, const int32_t *ids, size_t count, const feed_results *wanted, mote_error *err) {
    return feed_table(s, ids, NULL, count, wanted, err);
}

/* The rows of tokens after the timeline of which some are images'. Of an image that begins here it finds the position. */
static void feed_rows_of(const mote_session *s, const int32_t *ids, size_t count, fed_image *images, int n, token_row *to) {
    const size_t hidden = (size_t)s->m->c.hidden;
    int next = s->count - s->lag;
    for (int t = 0; t < (int)count; t++) {
        const int index = s->count + t;
        text_rows(&to[t], &ids[t], 1, index, index - next);
        if (!n || index < images->span.start) {
            next++;
            continue;
        }
        image_span *span = &images->span;
        if (index == span->start) span->position = next;
        span_position(span, index - span->start, to[t].position);
        to[t].embedding = images->features + (size_t)(index - span->start) * hidden;
        next = span->position + max_int(span->rows, span->columns);
        if (index + 1 == span->start + span->rows * span->columns) images++, n--;
    }
}

/* Reads tokens of which some are images': `images` says where, n of them in their order, each whole but the first one, of which the session may
   have a beginning. */
static int feed_images(mote_session *s, const int32_t *ids, fed_image *images, int n, size_t count, const feed_results *wanted, mote_error *err) {
    if (!n) return feed(s, ids, count, wanted, err);
    int code = check_ids(s, s->count, ids, count, err);
    if (!code) code = session_reserve_images(s, s->images.count + n, err);
    if (code) return code;
    token_row *rows = (token_row *)malloc(count * sizeof *rows);
    const fed_rows given = {rows, images, n};
    if (!rows) return fail_memory(err);
    feed_rows_of(s, ids, count, images, n, rows);
    code = feed_table(s, ids, &given, count, wanted, err);
    free(rows);
    return code;
}

static int feed_check_mtp(const mote_session *s, const float *mtp_logits, mote_error *err) {
    if (!mtp_logits || s->slot.has_mtp) return MOTE_OK;
    return fail(err, MOTE_EUNSUPPORTED, "%s", s->m->has_mtp ? "the session was opened without the MTP layer" : "the checkpoint has no MTP layer");
}

int mote_feed_logits(mote_session *session, const int32_t *ids, size_t count, float *logits, float *mtp_logits,
                     mote_error *error) {
    mote_session *s = session;
    int code = session_enter(s, ids || !count, "mote_feed: needs a session and its tokens", error);
    if (!code) code = feed_check_mtp(s, mtp_logits, error);
    if (!code) code = session_begin(s, "mote_feed", error);
    if (code) return code;
    const int before = s->count;
    const feed_results wanted = {logits, mtp_logits, NULL, NULL};
    code = feed(s, ids, count, &wanted, error);
    if (s->count > before) forget_answer(s);
    session_leave(s);
    return code;
}

int mote_embed(mote_session *session, const int32_t *ids, size_t count, const mote_embedding *options, float *embedding,
               mote_error *error) {
    mote_session *s = session;
    mote_embedding o;
    pooling rows;
    int code = session_enter(s, ids && count && embedding, "mote_embed: needs a session, tokens, and room for the embedding", error);
    if (!code) code = take_options(&o, sizeof o, EMBEDDING_0_3, options, "mote_embedding", error);
    if (!code) code = pooling_check(s->m, &o, error);
    if (!code) code = check_ids(s, 0, ids, count, error);
    if (!code) code = session_begin(s, "mote_embed", error);
    if (code) return code;
    const feed_results wanted = {NULL, NULL, NULL, &rows};
    code = pooling_open(&rows, s, &o, count, error);
    if (!code) code = timeline_reset(s, error);
    if (!code) forget_answer(s);
    if (!code) code = feed(s, ids, count, &wanted, error);
    if (!code) code = pooling_result(&rows, embedding, error);
    pooling_close(&rows);
    session_leave(s);
    return code;
}

int mote_feed(mote_session *session, const int32_t *ids, size_t count, mote_error *error) {
    return mote_feed_logits(session, ids, count, NULL, NULL, error);
}

const int32_t *mote_tokens(const mote_session *session, size_t *count) {
    if (count) *count = session ? (size_t)session->count : 0;
    return session ? session->tokens : NULL;
}

int mote_context(const mote_session *session) {
    return session ? session->o.context : 0;
}

const float *mote_logits(const mote_session *session) {
    if (session_enter(session, 1, "mote_logits: needs a session", NULL)) return NULL;
    return session->count && !session_logits((mote_session *)session, NULL) ? session->slot.logits : NULL;
}

int mote_session_experts(const mote_session *session, mote_experts_seen *seen, mote_error *error) {
    const int code = session_enter(session, seen != NULL, "mote_session_experts: needs a session and a place for what it has read", error);
    return code ? code : count_experts(session->slot.runner, seen, error);
}
