/* session/snapshot.c: checkpoints, and sessions as bytes. All of them may outlive what they came from, so they say
   themselves what they are of: a model's fingerprint, and sizes.

   The state of a session beside its tokens and KV rows: the DeltaNet state with its log, the last hidden row, the last
   logits. A checkpoint holds those; the KV rows it relies on are still in the session, as long as the tokens before it
   are the same. Where windows are all that a session has of some layers, it holds these, too. A saved session holds the KV rows
   as they are; one of another KV type converts them when it loads them. */

struct mote_checkpoint {
    uint64_t fingerprint;        /* of the model */
    size_t state_floats, hidden, vocab;
    int ranks;                   /* that share each layer, and what there is of its state */
    int kv;                      /* MOTE_KV_... of the rows that the state was computed with */
    int count, lag, generated_from, pending, accepted;
    int32_t *tokens;
    image_spans images;
    float *values;               /* state, last_hidden, logits */
    char *rows;                  /* [row_bytes] of layers with a window; NULL: the session has them */
    size_t row_bytes;
};

void mote_checkpoint_free(mote_checkpoint *checkpoint) {
    if (!checkpoint) return;
    free(checkpoint->tokens);
    spans_free(&checkpoint->images);
    free(checkpoint->values);
    free(checkpoint->rows);
    free(checkpoint);
}

/* Floats of a checkpoint's values. */
static size_t checkpoint_floats(const mote_session *s) {
    return session_recurrent(s) + (size_t)model_width(s->m) + (size_t)s->m->c.vocab;
}

/* A checkpoint of nothing yet, with space for so many tokens, and for rows of windows if it is to have them; NULL: there is no memory. */
static mote_checkpoint *checkpoint_with(const mote_session *s, int tokens, int has_rows) {
    mote_checkpoint *c = (mote_checkpoint *)calloc(1, sizeof *c);
    if (!c) return NULL;
    c->fingerprint = s->m->fingerprint;
    c->state_floats = session_recurrent(s);
    c->ranks = slot_ranks(&s->slot);
    c->hidden = (size_t)model_width(s->m);
    c->vocab = (size_t)s->m->c.vocab;
    c->kv = s->o.kv;
    c->count = -1;
    c->tokens = (int32_t *)malloc(((size_t)tokens + 1) * sizeof *c->tokens);
    c->values = (float *)malloc(checkpoint_floats(s) * sizeof(float));
    c->rows = has_rows ? (char *)malloc(window_bytes(s, tokens) + 1) : NULL;
    if (c->tokens && c->values && (c->rows || !has_rows)) return c;
    mote_checkpoint_free(c);
    return NULL;
}

static mote_checkpoint *checkpoint_new(const mote_session *s, int tokens) {
    return checkpoint_with(s, tokens, s->only_windows);
}

/* The rows of windows that belong to a checkpoint. */
static int checkpoint_take_rows(mote_session *s, mote_checkpoint *c, mote_error *err) {
    int code = MOTE_OK;
    c->row_bytes = 0;
    for (int i = saved_layers(s); i < saved_pieces(s) && c->rows && !code; i++) {
        const saved_piece p = window_piece(s, s->count, i);
        code = piece_get(&p, c->rows + c->row_bytes, err);
        c->row_bytes += saved_bytes(&p);
    }
    return code;
}

static int checkpoint_give_rows(mote_session *s, const mote_checkpoint *c, mote_error *err) {
    const char *from = c->rows;
    int code = MOTE_OK;
    for (int i = saved_layers(s); i < saved_pieces(s) && from && !code; i++) {
        const saved_piece p = window_piece(s, c->count, i);
        code = piece_put(&p, from, err);
        from += saved_bytes(&p);
    }
    return code;
}

/* Copies what cannot be truncated to `values`, or from there. */
static int checkpoint_state(mote_session *s, float *values, int back, mote_error *err) {
    int code = MOTE_OK;
    for (int i = 0; i < slot_members(&s->slot) && !code; i++) {
        slot *at = slot_by_rank(&s->slot, i);
        code = slot_copy(at, back ? at->recurrent : values, back ? values : at->recurrent, at->recurrent_floats * sizeof(float), err);
        values += at->recurrent_floats;
    }
    return code;
}

/* The images of a checkpoint become the first of these, those of `count` tokens. */
static int checkpoint_take_images(mote_checkpoint *c, const image_spans *from, int count, mote_error *err) {
    const int n = spans_before(from, count);
    int code = spans_reserve(&c->images, n, err);
    if (code) return code;
    if (n) memcpy(c->images.of, from->of, (size_t)n * sizeof *from->of);
    c->images.count = n;
    spans_cut(&c->images, count);
    return MOTE_OK;
}

/* Remembers the present position. On failure it is of nothing. */
static int checkpoint_fill(mote_session *s, mote_checkpoint *c, mote_error *err) {
    size_t state = c->state_floats, hidden = (size_t)model_width(s->m), vocab = (size_t)s->m->c.vocab;
    c->count = -1;
    int code = checkpoint_take_images(c, &s->images, s->count, err);
    if (!code) code = session_logits(s, err);
    if (!code) code = checkpoint_state(s, c->values, 0, err);
    if (!code) code = slot_copy(slot_last(&s->slot, 0), c->values + state, session_final_row(s), hidden * sizeof(float), err);
    if (!code) code = checkpoint_take_rows(s, c, err);
    if (code) return code;
    memcpy(c->values + state + hidden, s->slot.logits, vocab * sizeof(float));
    memcpy(c->tokens, s->tokens, (size_t)s->count * sizeof *c->tokens);
    c->count = s->count;
    c->lag = s->lag;
    c->generated_from = s->generated_from;
    c->pending = s->pending;
    c->accepted = s->accepted;
    return MOTE_OK;
}

static int checkpoint_take(mote_session *s, mote_checkpoint **checkpoint, mote_error *err) {
    mote_checkpoint *c = checkpoint_new(s, s->count);
    if (!c) return fail_memory(err);
    int code = checkpoint_fill(s, c, err);
    if (code) mote_checkpoint_free(c);
    else *checkpoint = c;
    return code;
}

/* A copy with space for so many tokens; NULL: there is no memory. */
static mote_checkpoint *checkpoint_copy(const mote_session *s, const mote_checkpoint *from, int tokens) {
    mote_checkpoint *c = checkpoint_with(s, tokens, from->rows != NULL);
    if (!c || from->count < 0) return c;
    if (checkpoint_take_images(c, &from->images, from->count, NULL)) {
        mote_checkpoint_free(c);
        return NULL;
    }
    memcpy(c->tokens, from->tokens, (size_t)from->count * sizeof *c->tokens);
    memcpy(c->values, from->values, checkpoint_floats(s) * sizeof(float));
    if (c->rows) memcpy(c->rows, from->rows, from->row_bytes);
    c->row_bytes = from->row_bytes;
    c->count = from->count;
    c->lag = from->lag;
    c->generated_from = from->generated_from;
    c->pending = from->pending;
    c->accepted = from->accepted;
    return c;
}

/* Whether the checkpoint is of a session like this one. */
static int checkpoint_fits(const mote_session *s, const mote_checkpoint *c) {
    return c->fingerprint == s->m->fingerprint && c->state_floats == session_recurrent(s) && c->hidden == (size_t)model_width(s->m) &&
           c->vocab == (size_t)s->m->c.vocab;
}

/* Whether the session's first tokens are still those of the checkpoint, its images among them. */
static int checkpoint_holds(const mote_session *s, const mote_checkpoint *c) {
    return c->count >= 0 && c->count <= s->valid && !memcmp(c->tokens, s->tokens, (size_t)c->count * sizeof *c->tokens) &&
           spans_equal(&c->images, &s->images, c->count);
}

size_t mote_checkpoint_bytes(const mote_session *session) {
    if (session_enter(session, 1, "mote_checkpoint_bytes: needs a session", NULL)) return 0;
    return sizeof(mote_checkpoint) + (size_t)session->count * sizeof(int32_t) + checkpoint_floats(session) * sizeof(float) +
           (size_t)spans_before(&session->images, session->count) * sizeof(image_span) +
           (session->only_windows ? window_bytes(session, session->count) : 0);
}

int mote_checkpoint_take(const mote_session *session, mote_checkpoint **checkpoint, mote_error *error) {
    int code = session_enter(session, checkpoint != NULL,
                             "mote_checkpoint_take: needs a session and a place for the checkpoint", error);
    return code ? code : checkpoint_take((mote_session *)session, checkpoint, error);
}

static int session_rewind(mote_session *s, const mote_checkpoint *c, mote_error *err) {
    size_t hidden = (size_t)model_width(s->m);
    if (c->ranks != slot_ranks(&s->slot)) return fail_ranks(err, "checkpoint", c->ranks, slot_ranks(&s->slot));
    if (!checkpoint_fits(s, c)) return fail(err, MOTE_EINVAL, "the checkpoint is of another model");
    if (c->kv != s->o.kv) return fail(err, MOTE_EINVAL, "the checkpoint is of a session with another type of keys and values");
    if (!checkpoint_holds(s, c))
        return fail(err, MOTE_EINVAL, "the session's first %d tokens are no longer those of the checkpoint", c->count);
    if (c->rows ? c->row_bytes != window_bytes(s, c->count) : s->only_windows && c->count)
        return fail(err, MOTE_EINVAL, "the checkpoint is of a session with other options: %s",
                    c->rows ? "its keys and values of windows are others" : "it has no keys and values of windows");
    int code = runner_refuses(s->slot.runner, err);
    if (code) return code;
    timeline_set(s, c->count, c->lag, c->generated_from, c->pending, c->accepted);
    float *final_row = c->values + c->state_floats;
    code = checkpoint_state(s, c->values, 1, err);
    if (!code) code = slot_copy(slot_last(&s->slot, 0), session_final_row(s), final_row, hidden * sizeof(float), err);
    if (!code) code = pieces_share_final_row(s, final_row, s->accepted, err);
    if (!code) code = checkpoint_give_rows(s, c, err);
    memcpy(s->slot.logits, final_row + hidden, (size_t)s->m->c.vocab * sizeof(float));
    return code;
}

int mote_rewind(mote_session *session, const mote_checkpoint *checkpoint, mote_error *error) {
    int code = session_enter(session, checkpoint != NULL, "mote_rewind: needs a session and a checkpoint", error);
    return code ? code : session_rewind(session, checkpoint, error);
}

static void images_forget(mote_session *s);

/* Forgets the state remembered before an answer: the timeline has become another one, or longer by what is no answer. */
static void forget_answer(mote_session *s) {
    if (s->before_answer) s->before_answer->count = -1;
    images_forget(s);
}

static const char SAVED_MAGIC[8] = {'m', 'o', 't', 'e', ' ', 's', '0', '5'};

static uint64_t saved_checksum(const char *bytes, size_t size) {
    return fnv1a(FNV_START, bytes + offsetof(saved_header, count), size - offsetof(saved_header, count));
}

/* Bytes of a session that is saved as h says. */
static size_t saved_size(const mote_session *s, const saved_header *h) {
    size_t size = sizeof *h;
    for (int i = 0; i < saved_pieces(s); i++) {
        const saved_piece p = saved_piece_of(s, h, NULL, i);
        size += saved_bytes(&p);
    }
    return size;
}

static void saved_describe(const mote_session *s, saved_header *h) {
    memset(h, 0, sizeof *h);
    memcpy(h->magic, SAVED_MAGIC, sizeof h->magic);
    h->fingerprint = s->m->fingerprint;
    h->count = s->count;
    h->generated_from = s->generated_from;
    h->pending = h->accepted = s->accepted;
    h->kv = s->o.kv;
    h->lag = s->lag;
    h->images = spans_before(&s->images, s->count);
    h->has = session_holds(s) | (s->only_windows ? SAVED_WINDOWS : 0) | (slot_ranks(&s->slot) - 1) * SAVED_RANK;
}

/* KV elements of one type, at any address, to another. */
static void kv_convert(char *to, dtype to_type, const char *from, dtype from_type, size_t n) {
    float in[TILE], decoded[TILE], out[TILE];
    for (size_t at = 0; at < n; at += TILE) {
        size_t m = n - at < (size_t)TILE ? n - at : (size_t)TILE;
        memcpy(in, from + at * kv_size(from_type), m * kv_size(from_type));
        kv_store(to_type, out, 0, kv_floats(in, 0, (int)m, decoded, from_type), m);
        memcpy(to + at * kv_size(to_type), out, m * kv_size(to_type));
    }
}

/* What counts for nothing is saved as zeros, so that what a session held before does not show in the bytes: rows of logs that are not
   part of the timeline; the last hidden row and the logits before the first token. to: where piece i is saved. */
static void saved_clear(const mote_session *s, int i, const saved_piece *p, char *to) {
    const size_t kept = (size_t)s->accepted;
    const enum saved_kind kind = saved_kind_of(s, i);
    if (!s->count && (kind == SAVED_LAST_HIDDEN || kind == SAVED_LOGITS)) memset(to, 0, saved_bytes(p));
    if (kind == SAVED_IMAGES && saved_bytes(p)) {           /* the last one's tokens after the timeline */
        image_span *last = (image_span *)(void *)(to + saved_bytes(p)) - 1, span;
        memcpy(&span, last, sizeof span);
        span.count = min_int(span.count, s->count - span.start);
        memcpy(last, &span, sizeof span);
    }
    for (int l = 0; l < s->m->c.layers && kind == SAVED_RECURRENT; l++) {
        state_piece log[LOG_PIECES];
        const int n = part_has(&p->in->m->part, l) ? layer_log(&p->in->m->layers[l], &p->in->state[l], log) : 0;
        for (int k = 0; k < n; k++) {
            const size_t at = (size_t)((const char *)log[k].at - (const char *)p->in->recurrent);
            memset(to + at + kept * log[k].size, 0, (MOTE_ROWS_MAX - kept) * log[k].size);
        }
    }
}

/* The session as *size bytes; those that fit. */
static int session_save(mote_session *s, void *bytes, size_t capacity, size_t *count, mote_error *err) {
    saved_header h;
    *count = 0;
    saved_describe(s, &h);
    size_t size = *count = saved_size(s, &h);
    if (size > capacity) return fail(err, MOTE_EINVAL, "%zu bytes do not fit into the %zu given", size, capacity);
    char *to = (char *)bytes + sizeof h;
    int code = session_logits(s, err);
    for (int i = 0; i < saved_pieces(s) && !code; i++) {
        saved_piece p = saved_piece_of(s, &h, session_final_row(s), i);
        code = piece_get(&p, to, err);
        saved_clear(s, i, &p, to);
        to += saved_bytes(&p);
    }
    memcpy(bytes, &h, sizeof h);
    h.checksum = saved_checksum((const char *)bytes, size);
    memcpy(bytes, &h, sizeof h);
    return code;
}

int mote_save(const mote_session *session, void *bytes, size_t capacity, size_t *count, mote_error *error) {
    int code = session_enter(session, count && (bytes || !capacity),
                             "mote_save: needs a session, room, and a place for the count", error);
    return code ? code : session_save((mote_session *)session, bytes, capacity, count, error);
}

/* The whole session as bytes of its own, to be freed by the caller in any case. */
static int save_bytes(mote_session *s, char **bytes, size_t *size, mote_error *err) {
    (void)session_save(s, NULL, 0, size, NULL);
    *bytes = (char *)malloc(*size);
    return *bytes ? session_save(s, *bytes, *size, size, err) : fail_memory(err);
}

/* Checks a saved session's header, and its size, before any of it is used or memory is taken for it. */
static int saved_check_header(const mote_session *s, const saved_header *h, uint64_t size, mote_error *err) {
    const int has = (s->m->has_mtp ? SAVED_MTP : 0) | (s->m->drafter ? SAVED_DRAFTER : 0) | (session_has_window(s, 0) ? SAVED_WINDOWS : 0);
    const int ranks = h->has < 0 ? 0 : h->has / SAVED_RANK + 1;
    if (memcmp(h->magic, SAVED_MAGIC, sizeof h->magic))
        return fail(err, MOTE_EFORMAT, "not a saved session of this version of mote");
    if (ranks != slot_ranks(&s->slot) && ranks > 0 && ranks <= 64)
        return fail_ranks(err, "saved session", ranks, slot_ranks(&s->slot));
    if (h->fingerprint != s->m->fingerprint)
        return fail(err, MOTE_EINVAL, "the saved session is of another checkpoint, or of another drafter beside it");
    if (h->count < 0 || h->generated_from < 0 || h->generated_from > h->count || h->pending < 0 || h->pending > MOTE_ROWS_MAX ||
        h->accepted < 0 || h->accepted > h->pending || h->accepted > h->count || (h->pending && !h->accepted) ||
        h->lag < 0 || h->lag > h->count || h->images < 0 || h->images > h->count || h->kv < MOTE_KV_F32 || h->kv > MOTE_KV_FP8 || ranks != slot_ranks(&s->slot) || h->has % SAVED_RANK & ~has)
        return fail(err, MOTE_EFORMAT, "the saved session is damaged");
    if (h->count > s->o.context)
        return fail(err, MOTE_ECONTEXT, "the saved session holds %d tokens, this one has room for %d", h->count,
                    s->o.context);
    size_t expected = saved_size(s, h);
    if (size != expected)
        return fail(err, MOTE_EFORMAT, "a saved session of %llu bytes, expected %zu for %d tokens",
                    (unsigned long long)size, expected, h->count);
    if (!(h->has & SAVED_MTP) && s->slot.has_mtp)
        return fail(err, MOTE_EINVAL, "the saved session is without the MTP layer, this one was opened with it: open one without (--mtp 0)");
    if (!(h->has & SAVED_DRAFTER) && slot_drafter(&s->slot))
        return fail(err, MOTE_EINVAL, "the saved session is without the drafter, this one was opened with it: open one without (--mtp 0)");
    return MOTE_OK;
}

/* Checks what follows the header. */
static int saved_check(const mote_session *s, const saved_header *h, const char *bytes, size_t size, mote_error *err) {
    if (h->checksum != saved_checksum(bytes, size)) return fail(err, MOTE_EFORMAT, "the saved session is damaged");
    for (int i = 0; i < h->count; i++) {
        int32_t id;
        memcpy(&id, bytes + sizeof *h + (size_t)i * sizeof id, sizeof id);
        if (id < 0 || id >= s->m->c.vocab)
            return fail(err, MOTE_EFORMAT, "the saved session holds token id %d, not in the vocabulary", id);
    }
    image_span span[2];                                     /* and the one before it */
    bytes += sizeof *h + (size_t)h->count * sizeof(int32_t);
    for (int i = 0; i < h->images; i++, span[1] = span[0]) {
        memcpy(&span[0], bytes + (size_t)i * sizeof span[0], sizeof span[0]);
        if (!span_is_sane(&span[0], i ? &span[1] : NULL, h->count, s->m->c.context_max))
            return fail(err, MOTE_EFORMAT, "the saved session is damaged: its image %d", i + 1);
    }
    return MOTE_OK;
}

/* One piece into the session, as it has it; of rows it may take fewer than are saved, up to the last. converted: space for KV rows that are
   saved as another type than the session keeps. */
static int saved_restore(mote_session *s, const saved_piece *own, const saved_piece *saved, const char *from, dtype kv, char *converted,
                         mote_error *err) {
    if (!own->of.at) return MOTE_OK;
    from += (size_t)(own->first - saved->first) * saved->of.size;
    if (!own->is_kv || kv == kv_type_of(s->o.kv)) return piece_put(own, from, err);
    kv_convert(converted, kv_type_of(s->o.kv), from, kv, saved_bytes(own) / kv_size(kv_type_of(s->o.kv)));
    return piece_put(own, converted, err);
}

/* The pieces that h describes are in the session, the last hidden row in last_hidden of the slot that answers. */
static int session_restored(mote_session *s, const saved_header *h, mote_error *err) {
    const size_t bytes = (size_t)model_width(s->m) * sizeof(float);
    slot *last = slot_last(&s->slot, 0);
    timeline_set(s, h->count, h->lag, h->generated_from, h->pending, h->accepted);
    s->images.count = h->images;
    spans_cut(&s->images, h->count);
    timeline_cut(s, 0);                                     /* all tokens are others */
    s->valid = h->count;
    s->only_windows = (h->has & SAVED_WINDOWS) != 0;
    if (s->accepted && slot_ranks(&s->slot) == 1) return slot_copy(last, session_final_row(s), last->last_hidden, bytes, err);
    if (slot_ranks(&s->slot) == 1) return MOTE_OK;
    float *row = (float *)malloc(bytes);
    int code = row ? slot_copy(last, row, last->last_hidden, bytes, err) : fail_memory(err);
    if (!code) code = slot_copy(last, session_final_row(s), row, bytes, err);
    if (!code) code = pieces_share_final_row(s, row, s->accepted, err);
    free(row);
    return code;
}

/* The session that was saved in place of what is there; that stays if it cannot be. */
static int session_load(mote_session *s, const char *from, size_t size, mote_error *err) {
    saved_header h;
    if (size < sizeof h) return fail(err, MOTE_EFORMAT, "not a saved session: %zu bytes", size);
    memcpy(&h, from, sizeof h);
    int code = saved_check_header(s, &h, size, err);
    if (!code) code = saved_check(s, &h, from, size, err);
    if (!code) code = session_reserve_images(s, h.images, err);
    if (code) return code;
    saved_header own = h;                                   /* what the session takes, and how */
    own.kv = s->o.kv;
    if (session_has_window(s, 1)) own.has |= SAVED_WINDOWS;
    const dtype kv = kv_type_of(h.kv);
    float *last_hidden = slot_last(&s->slot, 0)->last_hidden;
    size_t most = 0;
    for (int i = saved_layers(s); i < saved_pieces(s) && own.kv != h.kv; i++) {
        const saved_piece p = saved_piece_of(s, &own, NULL, i);
        most = max_size(most, saved_bytes(&p));
    }
    char *converted = own.kv == h.kv ? NULL : (char *)malloc(most + 1);
    if (!converted && own.kv != h.kv) return fail_memory(err);
    from += sizeof h;
    for (int i = 0; !code && i < saved_pieces(s); i++) {
        const saved_piece saved = saved_piece_of(s, &h, last_hidden, i), to = saved_piece_of(s, &own, last_hidden, i);
        code = saved_restore(s, &to, &saved, from, kv, converted, err);
        from += saved_bytes(&saved);
    }
    free(converted);
    return code ? code : session_restored(s, &own, err);
}

int mote_load(mote_session *session, const void *bytes, size_t size, mote_error *error) {
    int code = session_enter(session, bytes != NULL, "mote_load: needs a session and the bytes of a saved one", error);
    if (!code) code = session_load(session, (const char *)bytes, size, error);
    if (code) return code;
    forget_answer(session);                                 /* what it remembers is of another timeline */
    mote_checkpoint_free(session->before_answer);
    session->before_answer = NULL;
    return MOTE_OK;
}

/* Copies a session's state into another one on the same model, opened with the same options. */
static int session_copy(mote_session *to, mote_session *from, mote_error *err) {
    saved_header h;
    saved_describe(from, &h);
    int code = session_reserve_images(to, h.images, err);
    if (!code) code = session_logits(from, err);
    for (int i = 0; i < saved_pieces(from) && !code; i++) {
        const saved_piece p = saved_piece_of(from, &h, session_final_row(from), i), q = saved_piece_of(to, &h, slot_last(&to->slot, 0)->last_hidden, i);
        for (int at = p.first, n; at < p.end && !code; at += n) {
            const char *here = piece_rows(&p.of, at, p.end, &n);
            char *there = piece_rows(&q.of, at, at + n, &n);
            code = slot_copy(p.in, there, here, (size_t)n * p.of.size, err);
        }
    }
    return code ? code : session_restored(to, &h, err);
}
