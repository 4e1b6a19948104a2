/* session/pieces.c: what a session consists of, piece by piece: as it is saved, and as checkpoints take it. Knows no device, and of layers
   the pieces of their states.

   Keys and values of a token stay until others take their place. Of a layer with a window they do so soon where they lie in a ring: what is
   left of the past is what the next token sees, and to go back takes a checkpoint that has the rows seen from there
   (mote_session.only_windows). Where a layer has as many rows as the context, a checkpoint needs none: they are still in the session. */

/* What of a session is saved, or meant. */
typedef struct saved_header {
    char magic[8];
    uint64_t fingerprint;
    uint64_t checksum;           /* of all that follows it */
    int32_t count, generated_from, pending, accepted;
    int32_t kv;                  /* MOTE_KV_... */
    int32_t has;                 /* SAVED_MTP, SAVED_WINDOWS */
} saved_header;

enum {
    SAVED_MTP = 1,               /* keys and values of the MTP layer are there */
    SAVED_WINDOWS = 2            /* of layers with a window those alone that the next token sees */
};

/* A saved session is a header and pieces: tokens, DeltaNet state, last hidden row, logits, then keys and values of each
   layer, which take no bytes where a layer has none. The MTP layer's row of the last token comes with the next one. */
enum { SAVED_TOKENS, SAVED_RECURRENT, SAVED_LAST_HIDDEN, SAVED_LOGITS, SAVED_LAYERS };     /* the last: STATE_PIECES of each layer */

typedef struct saved_piece {
    state_piece of;              /* at: in the session; NULL: not wanted. size: as saved */
    int first, end;              /* rows; of one thing 0 and 1 */
    int is_kv;
} saved_piece;

static size_t saved_bytes(const saved_piece *p) {
    return (size_t)(p->end - p->first) * p->of.size;
}

static int saved_pieces(const mote_session *s) {
    return SAVED_LAYERS + STATE_PIECES * (s->m->c.layers + 1);
}

/* Pieces of layer i's state; returns how many. */
static int session_pieces(const mote_session *s, int i, int kv, state_piece *to) {
    capacity r = capacity_of(&s->slot.runner->o, s->o.context);
    r.kv = kv_type_of(kv);
    return layer_pieces(model_layer(s->m, i), &r, &s->slot.state[i], to);
}

/* Whether a layer has a window, or such a one of which rows lie in a ring. */
static int session_has_window(const mote_session *s, int in_ring) {
    state_piece piece[STATE_PIECES];
    for (int i = 0; i < s->m->c.layers + s->slot.has_mtp; i++)
        for (int k = session_pieces(s, i, s->o.kv, piece); k--;)
            if (piece[k].window && (!in_ring || piece[k].rows < s->o.context)) return 1;
    return 0;
}

/* Piece `at` of the rows that a layer has for each token, as h says; nothing where it has none. */
static saved_piece saved_rows(const mote_session *s, const saved_header *h, int i, int at) {
    const int rows = max_int(h->count, 0);
    state_piece piece[STATE_PIECES];
    saved_piece p;
    memset(&p, 0, sizeof p);
    p.is_kv = 1;
    const int end = i < s->m->c.layers ? rows : h->has & SAVED_MTP ? rows - 1 : 0;
    if (end <= 0 || at >= session_pieces(s, i, h->kv, piece) || !piece[at].rows) return p;
    p.of = piece[at];
    p.first = h->has & SAVED_WINDOWS ? piece_seen_from(&p.of, end) : 0;
    p.end = end;
    return p;
}

/* Piece i of a session that is saved as h says. last_hidden: where that row is, or is to be put. */
static saved_piece saved_piece_of(const mote_session *s, const saved_header *h, float *last_hidden, int i) {
    const config *c = &s->m->c;
    saved_piece p = {.end = 1};
    if (i >= SAVED_LAYERS) return saved_rows(s, h, (i - SAVED_LAYERS) / STATE_PIECES, (i - SAVED_LAYERS) % STATE_PIECES);
    if (i == SAVED_TOKENS) p.of.at = s->tokens, p.of.size = (size_t)max_int(h->count, 0) * sizeof *s->tokens;
    if (i == SAVED_RECURRENT) p.of.at = s->slot.recurrent, p.of.size = s->slot.recurrent_floats * sizeof(float);
    if (i == SAVED_LAST_HIDDEN) p.of.at = last_hidden, p.of.size = (size_t)c->hidden * sizeof(float);
    if (i == SAVED_LOGITS) p.of.at = s->slot.logits, p.of.size = (size_t)c->vocab * sizeof(float);
    return p;
}

/* Piece i of what a checkpoint takes of the rows of the first `count` tokens; nothing but where a layer has a window. */
static saved_piece window_piece(const mote_session *s, int count, int i) {
    const saved_header h = {.count = count, .kv = s->o.kv, .has = SAVED_WINDOWS | (s->slot.has_mtp ? SAVED_MTP : 0)};
    saved_piece p = saved_piece_of(s, &h, NULL, i);
    if (!p.of.window) p.end = p.first;
    return p;
}

static size_t window_bytes(const mote_session *s, int count) {
    size_t size = 0;
    for (int i = SAVED_LAYERS; i < saved_pieces(s); i++) {
        const saved_piece p = window_piece(s, count, i);
        size += saved_bytes(&p);
    }
    return size;
}

/* Copies a piece of the session to memory here, in order of its rows. */
static int piece_get(mote_session *s, const saved_piece *p, char *to, mote_error *err) {
    int code = MOTE_OK;
    for (int at = p->first, n; at < p->end && !code; at += n) {
        const char *from = piece_rows(&p->of, at, p->end, &n);
        code = slot_copy(&s->slot, to + (size_t)(at - p->first) * p->of.size, from, (size_t)n * p->of.size, err);
    }
    return code;
}

/* The rows of a window's first granule that are before it become zeros: a GPU meets them, too, and multiplies them by 0, so they must be numbers. */
static int piece_clear_before(mote_session *s, const saved_piece *p, mote_error *err) {
    const int first = p->first / KV_GRANULE * KV_GRANULE;
    if (!p->is_kv || first == p->first) return MOTE_OK;
    int n;
    char *to = piece_rows(&p->of, first, p->first, &n), *zeros = (char *)calloc((size_t)n, p->of.size);
    int code = zeros ? slot_copy(&s->slot, to, zeros, (size_t)n * p->of.size, err) : fail_memory(err);
    free(zeros);
    return code;
}

/* The same from there. */
static int piece_put(mote_session *s, const saved_piece *p, const char *from, mote_error *err) {
    int code = piece_clear_before(s, p, err);
    for (int at = p->first, n; at < p->end && !code; at += n) {
        char *to = piece_rows(&p->of, at, p->end, &n);
        code = slot_copy(&s->slot, to, from + (size_t)(at - p->first) * p->of.size, (size_t)n * p->of.size, err);
    }
    return code;
}
