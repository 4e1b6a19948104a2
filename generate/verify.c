/* generate/verify.c: the check that speculation changes nothing: a plain session beside it. */

/* The check compares with a reference session, which decodes plainly. All memory is there before the answer begins. */
typedef struct verifier {
    mote_session *reference;     /* decodes plainly; NULL: nothing is checked */
    char *bytes;                 /* [2][VERIFY_BYTES]: a part of both sessions */
} verifier;

enum { VERIFY_BYTES = 1 << 20 };

/* A reference session without tokens. On failure there is nothing to close. */
static int verifier_open(verifier *v, const mote_session *s, mote_error *err) {
    mote_session_options alone = s->o;
    alone.runner = NULL;
    int code = mote_session_open(s->m, &alone, &v->reference, err);
    if (code) return code;
    v->bytes = (char *)malloc(2 * VERIFY_BYTES);
    if (v->bytes) return MOTE_OK;
    mote_session_close(v->reference);
    v->reference = NULL;
    return fail_memory(err);
}

static void verifier_close(verifier *v) {
    mote_session_close(v->reference);
    free(v->bytes);
}

/* The token just kept is what the reference session chooses. */
static int verify_token(const mote_session *s, mote_session *reference, const mote_sampling *sampling, mote_error *err) {
    int32_t want, id = s->tokens[s->count - 1];
    int code = mote_step(reference, sampling, &want, err);
    if (code || want == id) return code;
    return fail(err, MOTE_EMISMATCH, "token %d of the timeline is %d with speculation, %d without", s->count - 1, id, want);
}

/* n bytes of slots of both sessions are equal; what: their name, with a layer unless that is -1. */
static int verify_bytes(const verifier *v, const mote_session *s, slot *of, slot *expected_of, const void *a, const void *b, size_t n, int layer,
                        const char *what, mote_error *err) {
    char *actual = v->bytes, *expected = v->bytes + VERIFY_BYTES, where[32] = "";
    for (size_t done = 0, step; done < n; done += step) {
        size_t at = 0;
        step = n - done < VERIFY_BYTES ? n - done : (size_t)VERIFY_BYTES;
        int code = slot_copy(of, actual, (const char *)a + done, step, err);
        if (!code) code = slot_copy(expected_of, expected, (const char *)b + done, step, err);
        if (code) return code;
        while (at < step && actual[at] == expected[at]) at++;
        if (at == step) continue;
        float x, y;
        memcpy(&x, actual + at / 4 * 4, 4);
        memcpy(&y, expected + at / 4 * 4, 4);
        if (layer >= 0) snprintf(where, sizeof where, "layer %d, ", layer);
        return fail(err, MOTE_EMISMATCH, "after token %d: %s%s, byte %zu of %zu: %g (as float) with speculation, %g without",
                    s->count - 1, where, what, done + at, n, (double)x, (double)y);
    }
    return MOTE_OK;
}

/* The same of the state of layer i, as a rank has it: its rows from `from` on. */
static int verify_layer(const verifier *v, mote_session *s, int i, int rank, int from, mote_error *err) {
    slot *of = slot_of_layer(&s->slot, i, rank), *expected_of = slot_of_layer(&v->reference->slot, i, rank);
    state_piece actual[STATE_PIECES], expected[STATE_PIECES];
    const int pieces = session_pieces(s, i, rank, s->o.kv, actual);
    int code = MOTE_OK;
    session_pieces(v->reference, i, rank, s->o.kv, expected);
    for (int k = 0; k < pieces && !code; k++) {
        const int end = actual[k].rows ? piece_end(&actual[k], s->count - (i == s->m->c.layers)) : 1;
        for (int at = actual[k].rows ? max_int(from, piece_seen_from(&actual[k], end)) : 0, n; at < end && !code; at += n) {
            const char *a = piece_rows(&actual[k], at, end, &n), *b = piece_rows(&expected[k], at, at + n, &n);
            code = verify_bytes(v, s, of, expected_of, a, b, (size_t)n * actual[k].size, i, actual[k].name, err);
        }
    }
    return code;
}

/* All that the next tokens depend on is the same in both: it is compared as far as it is new since the last time. */
static int verify_state(const verifier *v, mote_session *s, mote_error *err) {
    const config *c = &s->m->c;
    mote_session *reference = v->reference;
    size_t vocab = (size_t)c->vocab * sizeof(float), hidden = (size_t)model_width(s->m) * sizeof(float);
    int from = s->block_at > 0 ? s->block_at - 1 : 0, code = MOTE_OK;
    if (s->count >= s->o.context) return MOTE_OK;           /* no space for the rows of a commit */
    if (!code) code = timeline_commit_state(s, err);
    if (!code) code = timeline_commit_state(reference, err);
    for (int rank = 0; rank < slot_ranks(&s->slot) && !code; rank++) {
        slot *of = slot_last(&s->slot, rank), *expected_of = slot_last(&reference->slot, rank);
        code = verify_bytes(v, s, of, expected_of, of->logits, expected_of->logits, vocab, -1, "logits", err);
        if (!code && s->slot.has_mtp)                       /* which reads it; without, a GPU does not keep it */
            code = verify_bytes(v, s, of, expected_of, of->last_hidden, expected_of->last_hidden, hidden, -1, "final row", err);
        for (int i = 0; i < c->layers + s->slot.has_mtp && !code; i++) code = verify_layer(v, s, i, rank, from, err);
    }
    return code;
}
