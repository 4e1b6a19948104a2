/* session/pieces.c: what a session consists of, piece by piece: as it is saved, and as checkpoints take it. Knows no device, and of layers
   the pieces of their states.

   Where a group computes, its members have the state: ranges that of their layers, so that one after the other they give the bytes of a model
   that is whole, and what is saved by one may be loaded by the other. Ranks have shares, which lie rank after rank: what so many ranks have
   saved, as many load, and no other number.

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
    int32_t has;                 /* SAVED_MTP, _WINDOWS, _DRAFTER, and how many ranks there are besides the first, times SAVED_RANK */
    int32_t lag, images;         /* of the text after it, see mote_session; spans */
} saved_header;

enum {
    SAVED_MTP = 1,               /* keys and values of the MTP layer are there */
    SAVED_WINDOWS = 2,           /* of layers with a window those alone that the next token sees */
    SAVED_DRAFTER = 4,           /* keys and values of the block drafter are there */
    SAVED_RANK = 256
};

/* A saved session is a header and pieces: tokens, spans of images, DeltaNet state of each member, last hidden row, logits, then keys and values of each
   layer, of each rank: STATE_PIECES, which take no bytes where a layer has none. The MTP layer's row of the last token comes with the next one. */
enum saved_kind { SAVED_TOKENS, SAVED_IMAGES, SAVED_RECURRENT, SAVED_LAST_HIDDEN, SAVED_LOGITS, SAVED_LAYERS };

typedef struct saved_piece {
    slot *in;                    /* that it is a part of */
    state_piece of;              /* at: in the session; NULL: not wanted. size: as saved */
    int first, end;              /* rows; of one thing 0 and 1 */
    int is_kv;
} saved_piece;

static size_t saved_bytes(const saved_piece *p) {
    return (size_t)(p->end - p->first) * p->of.size;
}

static int fail_ranks(mote_error *err, const char *what, int of, int here) {
    return fail(err, MOTE_EINVAL, "the %s is of a model in %d rank%s, this one runs in %d", what, of, of == 1 ? "" : "s", here);
}

/* Number of the first piece of a layer. */
static int saved_layers(const mote_session *s) {
    return slot_members(&s->slot) + 4;
}

static int saved_pieces(const mote_session *s) {
    return saved_layers(s) + STATE_PIECES * slot_ranks(&s->slot) * model_states(s->m);
}

static enum saved_kind saved_kind_of(const mote_session *s, int i) {
    const int members = slot_members(&s->slot);
    return i == 0              ? SAVED_TOKENS
           : i == 1            ? SAVED_IMAGES
           : i <= members + 1  ? SAVED_RECURRENT
           : i == members + 2  ? SAVED_LAST_HIDDEN
           : i == members + 3  ? SAVED_LOGITS
                               : SAVED_LAYERS;
}

/* Pieces of layer i's state, as a rank has it; returns how many. */
static int session_pieces(const mote_session *s, int i, int rank, int kv, state_piece *to) {
    capacity r = capacity_of(&s->slot.runner->o, s->o.context);
    const slot *at = slot_of_layer(&s->slot, i, rank);
    r.kv = kv_type_of(kv);
    const int drafts = i > s->m->c.layers;
    if (drafts) r = drafter_capacity(at->m->drafter, &r);
    const int n = layer_pieces(model_layer(at->m, i), &r, &at->state[i], to);
    for (int k = 0; k < n && drafts; k++) to[k].window = 0; /* all rows are there, and stay when the session goes back */
    return n;
}

/* Floats of what cannot be truncated, of all members. */
static size_t session_recurrent(const mote_session *s) {
    size_t floats = 0;
    for (int i = 0; i < slot_members(&s->slot); i++) floats += slot_member(&s->slot, i)->recurrent_floats;
    return floats;
}

/* Whether a layer has a window, or such a one of which rows lie in a ring. */
static int session_has_window(const mote_session *s, int in_ring) {
    state_piece piece[STATE_PIECES];
    for (int i = 0; i < s->m->c.layers + s->slot.has_mtp; i++)
        for (int k = session_pieces(s, i, 0, s->o.kv, piece); k--;)
            if (piece[k].window && (!in_ring || piece[k].rows < s->o.context)) return 1;
    return 0;
}

/* What sessions like this one hold beside the layers' states. */
static int session_holds(const mote_session *s) {
    return (s->slot.has_mtp ? SAVED_MTP : 0) | (slot_drafter(&s->slot) ? SAVED_DRAFTER : 0);
}

/* Tokens, of `rows`, of which the state of number i has rows. */
static int saved_end(const mote_session *s, const saved_header *h, int i, int rows) {
    const int layers = s->m->c.layers;
    return i < layers ? rows : i == layers ? (h->has & SAVED_MTP ? rows - 1 : 0) : h->has & SAVED_DRAFTER ? rows : 0;
}

/* Piece `at` of the rows that a layer has for each token, as h says; nothing where it has none. */
static saved_piece saved_rows(const mote_session *s, const saved_header *h, int i, int rank, int at) {
    const int rows = max_int(h->count, 0);
    state_piece piece[STATE_PIECES];
    saved_piece p;
    memset(&p, 0, sizeof p);
    p.in = slot_of_layer(&s->slot, i, rank);
    p.is_kv = 1;
    const int end = saved_end(s, h, i, rows);
    if (end <= 0 || at >= session_pieces(s, i, rank, h->kv, piece) || !piece[at].rows) return p;
    p.of = piece[at];
    p.first = h->has & SAVED_WINDOWS ? piece_seen_from(&p.of, end) : 0;
    p.end = piece_end(&p.of, end);
    return p;
}

/* Piece i of a session that is saved as h says. last_hidden: where that row is, or is to be put, on the first of the last range's ranks. */
static saved_piece saved_piece_of(const mote_session *s, const saved_header *h, float *last_hidden, int i) {
    const config *c = &s->m->c;
    const enum saved_kind kind = saved_kind_of(s, i);
    const int ranks = slot_ranks(&s->slot), of_layer = i - saved_layers(s);
    saved_piece p = {.in = slot_last(&s->slot, 0), .end = 1};
    if (kind == SAVED_LAYERS)
        return saved_rows(s, h, of_layer / STATE_PIECES / ranks, of_layer / STATE_PIECES % ranks, of_layer % STATE_PIECES);
    if (kind == SAVED_TOKENS) p.of.at = s->tokens, p.of.size = (size_t)max_int(h->count, 0) * sizeof *s->tokens;
    if (kind == SAVED_IMAGES) p.of.at = s->images.of, p.of.size = (size_t)max_int(h->images, 0) * sizeof *s->images.of, p.end = h->images > 0;
    if (kind == SAVED_LAST_HIDDEN) p.of.at = last_hidden, p.of.size = (size_t)model_width(s->m) * sizeof(float);
    if (kind == SAVED_LOGITS) p.of.at = s->slot.logits, p.of.size = (size_t)c->vocab * sizeof(float);
    if (kind != SAVED_RECURRENT) return p;
    p.in = slot_by_rank(&s->slot, i - 2);
    p.of.at = p.in->recurrent;
    p.of.size = p.in->recurrent_floats * sizeof(float);
    return p;
}

/* Piece i of what a checkpoint takes of the rows of the first `count` tokens; nothing but where a layer has a window. */
static saved_piece window_piece(const mote_session *s, int count, int i) {
    const saved_header h = {.count = count, .kv = s->o.kv, .has = SAVED_WINDOWS | session_holds(s)};
    saved_piece p = saved_piece_of(s, &h, NULL, i);
    if (!p.of.window) p.end = p.first;
    return p;
}

static size_t window_bytes(const mote_session *s, int count) {
    size_t size = 0;
    for (int i = saved_layers(s); i < saved_pieces(s); i++) {
        const saved_piece p = window_piece(s, count, i);
        size += saved_bytes(&p);
    }
    return size;
}

/* Copies a piece of a session to memory here, in order of its rows. */
static int piece_get(const saved_piece *p, char *to, mote_error *err) {
    int code = MOTE_OK;
    for (int at = p->first, n; at < p->end && !code; at += n) {
        const char *from = piece_rows(&p->of, at, p->end, &n);
        code = slot_copy(p->in, to + (size_t)(at - p->first) * p->of.size, from, (size_t)n * p->of.size, err);
    }
    return code;
}

/* The last range's other ranks get the row `from`, in memory here, as their final row. `accepted`: as slot_final_row has it. */
static int pieces_share_final_row(mote_session *s, const float *from, int accepted, mote_error *err) {
    int code = MOTE_OK;
    for (int rank = 1; rank < slot_ranks(&s->slot) && !code; rank++) {
        slot *at = slot_last(&s->slot, rank);
        code = slot_copy(at, slot_final_row(at, accepted), from, (size_t)model_width(s->m) * sizeof *from, err);
    }
    return code;
}

/* The rows of a window's first granule that are before it become zeros: a GPU meets them, too, and multiplies them by 0, so they must be numbers. */
static int piece_clear_before(const saved_piece *p, mote_error *err) {
    const int first = p->first / KV_GRANULE * KV_GRANULE;
    if (!p->is_kv || first == p->first) return MOTE_OK;
    int n;
    char *to = piece_rows(&p->of, first, p->first, &n), *zeros = (char *)calloc((size_t)n, p->of.size);
    int code = zeros ? slot_copy(p->in, to, zeros, (size_t)n * p->of.size, err) : fail_memory(err);
    free(zeros);
    return code;
}

/* The same from there. */
static int piece_put(const saved_piece *p, const char *from, mote_error *err) {
    int code = piece_clear_before(p, err);
    for (int at = p->first, n; at < p->end && !code; at += n) {
        char *to = piece_rows(&p->of, at, p->end, &n);
        code = slot_copy(p->in, to, from + (size_t)(at - p->first) * p->of.size, (size_t)n * p->of.size, err);
    }
    return code;
}
