/* session/timeline.c: the only writer of a timeline: its tokens, how many there are, which rows of the last block are part of it, what
   of it is still only in the log.

   A block of up to MOTE_ROWS_MAX rows can be kept in part after it was computed. KV rows after the end are overwritten later, which a ring has
   space for (attention_held), and DeltaNet repeats the kept rows from its log when the next block runs. */

/* Rows of timeline_forward. */
static int session_rows(const mote_session *s) {
    return s->slot.runner->rows;
}

/* s->slot.logits holds the last token's. */
static int session_logits(mote_session *s, mote_error *err) {
    return s->count ? slot_logits(&s->slot, err) : MOTE_OK;
}

/* Where the final row of the last token is. */
static float *session_final_row(const mote_session *s) {
    return slot_final_row(slot_last(&s->slot, 0), s->accepted);
}

/* T rows after the timeline are being computed, and not yet part of it. Of more than MOTE_ROWS_MAX, which are kept as a whole, the
   block is what a device has of them in its log. */
static void timeline_computed(mote_session *s, int T) {
    const int logged = s->slot.runner->logs ? (T - 1) % MOTE_ROWS_MAX + 1 : 0;
    spans_cut(&s->images, s->count);                        /* what was after the timeline is overwritten */
    s->pending = T <= MOTE_ROWS_MAX ? T : logged;
    s->block_at = T <= MOTE_ROWS_MAX || !logged ? s->count : s->count + T - logged;
    s->accepted = 0;
}

/* The tokens after the first `count` are others from now on. */
static void timeline_cut(mote_session *s, int count) {
    s->cut = min_int(s->cut, count);
    s->keyed = min_int(s->keyed, count);
}

/* Makes the first `rows` of the block just computed part of the timeline: all of them or, of a block of at most MOTE_ROWS_MAX rows, fewer,
   and then fewer or more again. */
static void timeline_keep(mote_session *s, int rows) {
    s->count = s->valid = s->block_at + rows;
    timeline_cut(s, s->count);
    s->accepted = s->pending ? rows : 0;
    slot_keep(&s->slot, rows);
}

/* Takes none of the block's rows. What the timeline has is then all in the states: nothing is left to repeat. */
static void timeline_drop(mote_session *s) {
    s->count = s->valid = s->block_at;
    timeline_cut(s, s->count);
    s->pending = s->accepted = 0;
}

/* Lays out the session's table: the rows of a block, and the one before them. NULL: it only counts. */
static token_row *timeline_layout_rows(layout *l, const mote_session *s) {
    const size_t rows = (size_t)max_int(s->o.chunk, PASS_ROWS_MAX) + 1;
    token_row *all = (token_row *)(void *)layout_alloc(l, rows * sizeof *all / sizeof(float));
    return all ? all + 1 : NULL;
}

/* Where the timeline's last token stands, if it is an image's. */
static void timeline_place_last(const mote_session *s, token_row *r) {
    const int n = spans_before(&s->images, s->count);
    const image_span *last = n ? &s->images.of[n - 1] : NULL;
    if (last && last->start + last->count >= s->count) span_position(last, s->count - 1 - last->start, r->position);
}

/* T tokens after the timeline, as rows of the session's table: the block is computed before another one is built. ids NULL: the device
   has them, or chooses them. */
static block timeline_block(mote_session *s, const int32_t *ids, int T) {
    block b;
    memset(&b, 0, sizeof b);
    text_rows(s->rows - 1, NULL, 1, s->count - 1, s->lag);
    timeline_place_last(s, s->rows - 1);
    text_rows(s->rows, ids, T, s->count, s->lag);
    b.rows = s->rows;
    b.T = T;
    b.replay = s->accepted;
    return b;
}

/* A block of text becomes one of given rows: theirs are the positions and the embeddings, and the position before them, if they follow a row
   (before) of the same call. */
static void timeline_place(mote_session *s, const block *b, const token_row *given, int before) {
    for (int t = -before; t < b->T; t++) {
        memcpy(s->rows[t].position, given[t].position, sizeof given->position);
        s->rows[t].embedding = given[t].embedding;
    }
}

/* Text goes on after such a block at the first position that none of its last row's is at, or above. */
static void timeline_go_on(mote_session *s, const block *b) {
    const int32_t *last = b->rows[b->T - 1].position;
    s->lag = b->rows[b->T - 1].index - max_int(max_int(last[0], last[1]), last[2]);
}

/* Tokens of an image have become part of the timeline; reading it may have begun before, where it was stopped. The memory is there. */
static void timeline_image(mote_session *s, const image_span *of) {
    image_spans *all = &s->images;
    if (!all->count || all->of[all->count - 1].start < of->start) all->of[all->count++] = *of;
    image_span *last = &all->of[all->count - 1];
    last->count = min_int(last->rows * last->columns, s->count - last->start);
}

/* The tokens of the rows that are computed, after the timeline. */
static void timeline_tokens(mote_session *s, const block *b) {
    for (int t = 0; t < b->T; t++) s->tokens[s->count + t] = b->rows[t].id;
}

/* Computes a block of at most session_rows rows, which begins where the timeline ends. The rows are not part of it until timeline_keep. What
   fails has not begun, or is of a runner that computes no more: the timeline is as it was. */
static int timeline_compute(mote_session *s, const block *b, mote_error *err) {
    int code = runner_refuses(s->slot.runner, err);
    if (code) return code;
    code = slot_forward(&s->slot, b, err);
    if (code) return code;
    timeline_tokens(s, b);
    timeline_computed(s, b->T);
    return MOTE_OK;
}

/* The same of T tokens. logits: [T][vocab], or NULL for only those after the last row, and these need be there only if it is the `last`
   block of several. */
static int timeline_forward(mote_session *s, const int32_t *ids, int T, int last, float *logits, float *mtp_logits,
                            mote_error *err) {
    block b = timeline_block(s, ids, T);
    b.last = last;
    b.logits = logits;
    b.mtp_logits = mtp_logits;
    return timeline_compute(s, &b, err);
}

/* Brings the states up to the end of the timeline: its last token is computed once more after it, and dropped. What the device has
   prepared for the next pass stays. */
static int timeline_commit_state(mote_session *s, mote_error *err) {
    int32_t id = s->tokens[s->count - 1];
    int code = runner_refuses(s->slot.runner, err);
    if (code) return code;
    code = session_logits(s, err);
    block b = timeline_block(s, &id, 1);
    b.last = 1;
    b.logits = s->slot.block_logits;
    if (!code) code = slot_commit_state(&s->slot, &b, err);
    if (code) return code;
    timeline_computed(s, 1);
    timeline_drop(s);
    slot_set_logits(&s->slot);
    return MOTE_OK;
}

/* Computes a block as a part of a prompt, and makes it part of the timeline, where that ends; nothing is left to repeat: b->replay is 0. */
static int timeline_prompt(mote_session *s, const block *b, const block_watch *watch, mote_error *err) {
    s->valid = s->count;                                    /* KV rows after the end are overwritten */
    int code = slot_prompt(&s->slot, b, watch, err);
    if (code) return code;
    timeline_tokens(s, b);
    timeline_computed(s, b->T);
    s->count += b->T;
    s->valid = s->block_at = s->generated_from = s->count;
    s->pending = 0;
    return MOTE_OK;
}

/* The timeline is what a checkpoint or a saved session says; its states and logits are written. */
static void timeline_set(mote_session *s, int count, int lag, int generated_from, int pending, int accepted) {
    s->count = count;
    s->lag = lag;
    timeline_cut(s, count);
    s->generated_from = generated_from;
    s->pending = pending;
    s->accepted = accepted;
    slot_set_logits(&s->slot);
}

static int timeline_reset(mote_session *s, mote_error *err) {
    int code = slot_clear(&s->slot, err);
    if (code) return code;
    s->count = s->lag = s->valid = s->generated_from = s->pending = s->accepted = 0;
    spans_cut(&s->images, 0);
    s->only_windows = session_has_window(s, 1);
    timeline_cut(s, 0);
    return MOTE_OK;
}

/* Its tokens, with keys where images are: as long as the session is not used. */
static const int32_t *timeline_keys(mote_session *s) {
    const int n = spans_before(&s->images, s->count), from = s->keyed;
    if (!n) return s->tokens;
    memcpy(s->keys + from, s->tokens + from, (size_t)(s->count - from) * sizeof *s->keys);
    for (int i = 0; i < n; i++) {
        const image_span *span = &s->images.of[i];
        const int end = min_int(span->start + span->count, s->count);
        for (int at = max_int(span->start, from); at < end; at++) s->keys[at] = span_key(span->hash, at - span->start);
    }
    s->keyed = s->count;
    return s->keys;
}

int mote_reset(mote_session *session, mote_error *error) {
    int code = session_enter(session, 1, "mote_reset: needs a session", error);
    return code ? code : timeline_reset(session, error);
}
