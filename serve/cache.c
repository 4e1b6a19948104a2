/* serve/cache.c: which session of which replica takes a request, and how much of its prompt is there already: as tokens, or as other tokens of the
   same bytes, where a chat's answer comes back as text. A timeline can go on where it ends, or from a snapshot; its recurrent
   state cannot be cut back to anywhere else. Snapshots are taken between the turns of a chat, because that is where the next
   request's prompt parts from this one: after the user's turn when thinking is left out of the history, before it when the user
   edits or asks again.

   A timeline that loses its session to another conversation is swapped out: saved as bytes, and its snapshots with it.
   Snapshots and swapped-out timelines share one budget; what has not been used for longest goes first. */

/* A prompt, as a timeline is looked for that holds its beginning. */
typedef struct wanted {
    int32_t *ids;                          /* owned */
    size_t count, most;                    /* tokens, and as many as they may become */
    int is_exact;                          /* these tokens are meant, and no others that say the same */
} wanted;

typedef struct timeline {                  /* of a session, or swapped out; its tokens are keys where images are */
    const int32_t *tokens;
    size_t count;
    const snapshots *past;
    int of_chats;
} timeline;

static timeline server_slot_timeline(const server_slot *t) {
    timeline l = {.past = &t->past, .of_chats = t->of_chats};
    l.tokens = mote_timeline(t->session, &l.count);
    return l;
}

static timeline swapped_timeline(const swapped *e) {
    timeline l = {.tokens = e->tokens, .count = e->count, .past = &e->past, .of_chats = e->of_chats};
    return l;
}

/* A token's bytes; NULL: it has none, or its text and the token differ in meaning, as those of control tokens do. */
static const char *plain_bytes(const mote_model *model, int32_t id, size_t *size) {
    enum { PIECES_MOST = 32 };
    int32_t plain[PIECES_MOST], special[PIECES_MOST];
    size_t n = 0, m = 0;
    const char *bytes = mote_token_bytes(model, id, size);
    if (!bytes || !*size || mote_tokenize(model, bytes, *size, 0, plain, PIECES_MOST, &n, NULL) ||
        mote_tokenize(model, bytes, *size, 1, special, PIECES_MOST, &m, NULL)) return NULL;
    return n == m && !memcmp(plain, special, n * sizeof *plain) ? bytes : NULL;
}

/* Text is not always cut into tokens as the tokenizer cuts it: a model says " Br" "ancer" as well as " B" "rancer". From a token of each
   on, which differ, goes to where both begin a token again, with the same bytes before. 0: they say something else. */
static int meet_again(const server *s, const timeline *l, const wanted *w, size_t *at, size_t *of_prompt) {
    const char *a = NULL, *b = NULL;
    size_t left_a = 0, left_b = 0, i = *at, j = *of_prompt;
    do {
        if (!left_a && (i == l->count || !(a = plain_bytes(s->model, l->tokens[i++], &left_a)))) return 0;
        if (!left_b && (j == w->count || !(b = plain_bytes(s->model, w->ids[j++], &left_b)))) return 0;
        const size_t n = left_a < left_b ? left_a : left_b;
        if (memcmp(a, b, n)) return 0;
        a += n, left_a -= n;
        b += n, left_b -= n;
    } while (left_a || left_b);
    *at = i;
    *of_prompt = j;
    return 1;
}

typedef struct reuse {
    size_t tokens, of_prompt;              /* of the timeline, which need not be read; of the prompt, which they say */
    snapshot *from;                        /* to go back to; NULL: the timeline ends there */
    size_t same;                           /* tokens of the timeline that the prompt says, to be reached or not */
} reuse;

/* What a timeline holds of the prompt. At least one token is left to be read. An answer comes back as text: where that becomes other tokens
   than those that the model had said, the timeline's own are taken, of chats alone, whose other tokens are always the tokenizer's. So a
   client that sends token ids has no part in what a chat of the same text is given. */
static reuse reusable(const server *s, const timeline *l, const wanted *w) {
    reuse r = {0, 0, NULL, 0};
    size_t i = 0, j = 0;
    int k = 0;
    for (;;) {
        while (k < l->past->count && l->past->at[k]->count < i) k++;
        const size_t stop = k < l->past->count && l->past->at[k]->count < l->count ? l->past->at[k]->count : l->count;
        while (i < stop && j < w->count && l->tokens[i] == w->ids[j]) i++, j++;
        if (i == stop && j < w->count && (i == j || i + (w->count - j) <= w->most)) {
            r.tokens = i;
            r.of_prompt = j;
            r.from = i < l->count ? l->past->at[k] : NULL;
        }
        if (i == stop && i < l->count) k++;
        else if (i == l->count || j == w->count || !l->of_chats || w->is_exact || !meet_again(s, l, w, &i, &j)) break;
    }
    r.same = i;
    return r;
}

/* The timeline's tokens take the place of the prompt's that say the same. 0: there is no memory. */
static int prompt_take(wanted *w, const timeline *l, const reuse *r) {
    if (r->tokens == r->of_prompt && !memcmp(w->ids, l->tokens, r->tokens * sizeof *w->ids)) return 1;
    const size_t rest = w->count - r->of_prompt;
    int32_t *ids = (int32_t *)malloc((r->tokens + rest) * sizeof *ids);
    if (!ids) return 0;
    memcpy(ids, l->tokens, r->tokens * sizeof *ids);
    memcpy(ids + r->tokens, w->ids + r->of_prompt, rest * sizeof *ids);
    free(w->ids);
    w->ids = ids;
    w->count = r->tokens + rest;
    return 1;
}

static void snapshot_give(server *s, snapshot *p) {
    if (--p->owners) return;
    s->cache_used -= p->bytes;
    mote_checkpoint_free(p->checkpoint);
    free(p);
}

/* A timeline gives up its snapshot number i. */
static void snapshot_drop(server *s, snapshots *past, int i) {
    snapshot *p = past->at[i];
    memmove(past->at + i, past->at + i + 1, (size_t)(--past->count - i) * sizeof *past->at);
    snapshot_give(s, p);
}

/* Back to a snapshot of the session. It is the callee's, who gives it up: else it could be evicted meanwhile. */
static int server_slot_go_back(server_slot *t, snapshot *p, mote_error *error) {
    int code = mote_rewind(t->session, p->checkpoint, error);
    pthread_mutex_lock(&t->server->lock);
    snapshot_give(t->server, p);
    pthread_mutex_unlock(&t->server->lock);
    return code;
}

/* Drops the snapshots after `count` tokens. */
static void snapshots_cut(server *s, snapshots *past, size_t count) {
    while (past->count && past->at[past->count - 1]->count > count) snapshot_drop(s, past, past->count - 1);
}

static void swapped_free(server *s, swapped *e) {
    snapshots_cut(s, &e->past, 0);
    s->cache_used -= e->bytes ? e->size : 0;
    free(e->bytes);
    free(e->path);
    free(e->tokens);
    free(e);
}

/* Frees what has not been used for longest: a swapped-out timeline, or a snapshot that only one session holds. 0: there is
   none. */
static int cache_evict(server *s) {
    swapped **oldest = NULL;
    server_slot *of = NULL;
    int at = 0;
    uint64_t used = UINT64_MAX;
    for (swapped **e = &s->swapped_out; *e; e = &(*e)->next)
        if (!(*e)->path && (*e)->used < used) used = (*e)->used, oldest = e;
    for (server_slot *t = s->slots; t < s->slots + s->slot_count; t++)
        for (int i = 0; i < t->past.count; i++) {
            if (t->past.at[i]->owners > 1 || t->past.at[i]->used >= used) continue;
            used = t->past.at[i]->used;
            of = t;
            at = i;
        }
    if (of) {
        snapshot_drop(s, &of->past, at);
    } else if (oldest) {
        swapped *e = *oldest;
        *oldest = e->next;
        swapped_free(s, e);
    }
    return of || oldest;
}

/* Takes so many bytes of the budget, evicting what it must. 0: there are not as many. */
static int cache_take(server *s, size_t bytes) {
    if (bytes > s->cache_most) return 0;
    while (s->cache_used + bytes > s->cache_most)
        if (!cache_evict(s)) return 0;
    s->cache_used += bytes;
    return 1;
}

/* Remembers where the session is now, if the budget has the bytes. */
static void server_slot_snapshot(server_slot *t) {
    server *s = t->server;
    size_t count;
    snapshot *p = (snapshot *)calloc(1, sizeof *p);
    if (!p) return;
    mote_timeline(t->session, &count);
    p->count = count;
    p->bytes = mote_checkpoint_bytes(t->session);
    p->owners = 1;
    pthread_mutex_lock(&s->lock);
    int taken = cache_take(s, p->bytes);
    pthread_mutex_unlock(&s->lock);
    int code = taken ? mote_checkpoint_take(t->session, &p->checkpoint, NULL) : MOTE_ENOMEM;
    pthread_mutex_lock(&s->lock);
    p->used = s->clock;
    if (code && taken) s->cache_used -= p->bytes;
    if (!code) {
        if (t->past.count == SNAPSHOTS_MOST) snapshot_drop(s, &t->past, 1);
        t->past.at[t->past.count++] = p;
    } else {
        free(p);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Swaps out a copy of the session's timeline. */
static void server_slot_swap_out(server_slot *t) {
    server *s = t->server;
    size_t count, size = 0, written;
    const int32_t *tokens = mote_timeline(t->session, &count);
    swapped *e = (swapped *)calloc(1, sizeof *e);
    (void)mote_save(t->session, NULL, 0, &size, NULL);
    if (!e || !count || !size) {
        free(e);
        return;
    }
    e->tokens = (int32_t *)malloc(count * sizeof *tokens);
    pthread_mutex_lock(&s->lock);
    int taken = e->tokens && cache_take(s, size);
    pthread_mutex_unlock(&s->lock);
    e->size = size;
    e->bytes = taken ? (char *)malloc(size) : NULL;
    int code = e->bytes ? mote_save(t->session, e->bytes, size, &written, NULL) : MOTE_ENOMEM;
    pthread_mutex_lock(&s->lock);
    if (taken && !e->bytes) s->cache_used -= size;
    if (!code) {
        memcpy(e->tokens, tokens, count * sizeof *tokens);
        e->count = count;
        e->asked = t->asked;
        e->of_chats = t->of_chats;
        e->used = t->used;
        e->past = t->past;
        for (int i = 0; i < e->past.count; i++) e->past.at[i]->owners++;
        e->next = s->swapped_out;
        s->swapped_out = e;
    } else {
        swapped_free(s, e);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Takes a timeline off the list of those swapped out. One in a file stays there, too; NULL: there is no memory for that. */
static swapped *swapped_take(server *s, swapped **at) {
    swapped *e = *at;
    if (!e->path) {
        *at = e->next;
        return e;
    }
    swapped *copy = (swapped *)calloc(1, sizeof *copy);
    if (copy) copy->path = strdup(e->path);
    if (!copy || !copy->path) {
        free(copy);
        return NULL;
    }
    copy->asked = e->asked;
    e->used = s->clock;
    return copy;
}

static int is_free(const server_slot *t) {
    return !t->busy && !t->of->lost;
}

/* What a request finds before it in a replica, in tokens of prompts: those that are being read there, and for each answer under way
   as many as are read in the time by which it makes another one longer. Of 35B-A3B in NVFP4 on an H200 that is some 0.27 ms a token (twice
   that of 20 of its 40 layers, from 8 answers to 16), in which 9 tokens are read: 2,000 of them are an answer of 230. */
static size_t replica_load(const server *s, const replica *r) {
    enum { ANSWER = 2000 };
    size_t tokens = 0;
    for (const server_slot *t = s->slots; t < s->slots + s->slot_count; t++)
        if (t->busy && t->of == r) tokens += ANSWER + t->unread;
    return tokens;
}

/* The free session that has rested longest, of the replica that has least to do; NULL: none is free. *load: what that has to do. */
static server_slot *server_slot_rested(const server *s, size_t *load) {
    server_slot *best = NULL;
    *load = 0;
    for (server_slot *t = s->slots; t < s->slots + s->slot_count; t++) {
        if (!is_free(t)) continue;
        const size_t its = replica_load(s, t->of);
        if (!best || its < *load || (its == *load && t->used < best->used)) best = t, *load = its;
    }
    return best;
}

/* The free session that suits the prompt best: with the fewest tokens to be read and waited for before it is. So a prompt goes where most of it
   is, unless another replica has read the rest of it sooner. *e: the swapped-out timeline that should come back in it, taken off the
   list; any replica can take that. */
static server_slot *server_slot_choose(server *s, const wanted *w, swapped **e) {
    size_t load, have = 0;
    server_slot *rested = server_slot_rested(s, &load), *best = rested;
    swapped **there = NULL;
    *e = NULL;
    if (!best) return NULL;
    long most = -(long)load;               /* tokens that are there, less those before them */
    for (server_slot *t = s->slots; t < s->slots + s->slot_count; t++) {
        if (!is_free(t)) continue;
        const timeline l = server_slot_timeline(t);
        const long gain = (long)reusable(s, &l, w).tokens - (long)replica_load(s, t->of);
        if (gain > most || (gain == most && t->used < best->used)) best = t, most = gain;
    }
    for (swapped **x = &s->swapped_out; *x; x = &(*x)->next) {
        const timeline l = swapped_timeline(*x);
        const size_t same = reusable(s, &l, w).tokens;
        if ((long)same - (long)load > most && same > have) there = x, have = same;
    }
    if (there) *e = swapped_take(s, there);
    return *e ? rested : best;
}

/* Swaps a timeline in, in place of what the session holds. */
static void server_slot_restore(server_slot *t, swapped *e) {
    server *s = t->server;
    mote_error error;
    int code = e->path ? mote_load_file(t->session, e->path, &error) : mote_load(t->session, e->bytes, e->size, &error);
    if (code && code != MOTE_EDEVICE && e->path) disk_lost(s, e->path, &error);
    pthread_mutex_lock(&s->lock);
    snapshots_cut(s, &t->past, 0);
    if (code == MOTE_EDEVICE && !e->path) {       /* another replica can take it */
        e->next = s->swapped_out;
        s->swapped_out = e;
        e = NULL;
    } else if (!code) {
        t->past = e->past;
        t->asked = e->asked;
        t->of_chats = e->of_chats;
        e->past.count = 0;
    }
    const int from_file = !code && e->path != NULL;
    if (e) swapped_free(s, e);
    pthread_mutex_unlock(&s->lock);
    if (from_file) server_slot_snapshot(t);       /* a file ends where the next prompt goes on: to be gone back to once more */
}

/* Brings the session to a place from which the rest of the prompt can be read. Returns the tokens that it holds then. */
static size_t server_slot_rewind(server_slot *t, wanted *w, mote_error *error) {
    server *s = t->server;
    const timeline l = server_slot_timeline(t);
    pthread_mutex_lock(&s->lock);
    reuse r = reusable(s, &l, w);
    if (!prompt_take(w, &l, &r)) {
        w->is_exact = 1;
        r = reusable(s, &l, w);
    }
    t->used = s->clock;
    if (r.from) r.from->used = s->clock, r.from->owners++;
    pthread_mutex_unlock(&s->lock);
    if (r.from && server_slot_go_back(t, r.from, error)) r.tokens = 0;
    if (!r.tokens && l.count) mote_reset(t->session, error);
    pthread_mutex_lock(&s->lock);
    snapshots_cut(s, &t->past, r.tokens);
    pthread_mutex_unlock(&s->lock);
    return r.tokens;
}

/* The session holds a conversation that this prompt does not go on with, and that is worth keeping: to copy it there and back,
   at a GB a second, is quicker than to read it again. */
static int server_slot_is_of_another(const server_slot *t, const wanted *w) {
    enum { WORTH = 32 };                   /* tokens */
    server *s = t->server;
    size_t size = 0;
    const timeline l = server_slot_timeline(t);
    pthread_mutex_lock(&s->lock);
    const size_t same = reusable(s, &l, w).same;
    const double speed = t->of->read_speed;
    pthread_mutex_unlock(&s->lock);
    if (l.count < WORTH || same >= t->asked) return 0;
    (void)mote_save(t->session, NULL, 0, &size, NULL);
    return (double)l.count > 2 * 1e-9 * (double)size * speed;
}

/* Returns the tokens of the prompt that need not be read. Those of an answer may take the place of its text's. */
static size_t server_slot_prepare(server_slot *t, swapped *e, wanted *w, mote_error *error) {
    if (server_slot_is_of_another(t, w)) {
        server_slot_swap_out(t);
        disk_keep(t);
    }
    if (e) server_slot_restore(t, e);
    return server_slot_rewind(t, w, error);
}

/* Others that come wait for so many tokens. */
static void server_slot_reads(server_slot *t, size_t tokens) {
    pthread_mutex_lock(&t->server->lock);
    t->unread = tokens;
    pthread_mutex_unlock(&t->server->lock);
}

/* Nothing more is computed there, and what its free sessions remember is no more use; busy ones end one by one, with an error each. Returns
   how many replicas serve on; 0 also where it was lost before. */
static int replica_lose(server *s, replica *r, const mote_error *why) {
    int left = 0, was_lost = r->lost;
    r->lost = 1;
    if (!was_lost) snprintf(r->why, sizeof r->why, "%s", why->message);
    for (const replica *x = s->replicas; x < s->replicas + s->replica_count; x++) left += !x->lost;
    for (server_slot *t = s->slots; t < s->slots + s->slot_count; t++)
        if (t->of == r && !t->busy) snapshots_cut(s, &t->past, 0);
    if (!left) {
        s->device_lost = 1;
        if (!s->reaches) serve_stops = 1;
    }
    return was_lost ? 0 : left;
}

/* Names the replica in what a session of it says. */
static void replica_explain(const server *s, const replica *r, mote_error *error) {
    const mote_error was = *error;
    if (s->replica_count == 1) return;
    const char *device = replica_device(r);
    snprintf(error->message, sizeof error->message, "replica %d, on %.*s, is lost: %.400s", (int)(r - s->replicas) + 1,
             (int)strcspn(device, " "), device, was.message);
}

static void cache_close(server *s) {
    for (server_slot *t = s->slots; t < s->slots + s->slot_count; t++)
        if (t->session && !t->of->lost) disk_keep(t);
    while (s->swapped_out) {
        swapped *e = s->swapped_out;
        s->swapped_out = e->next;
        swapped_free(s, e);
    }
    for (server_slot *t = s->slots; t < s->slots + s->slot_count; t++) snapshots_cut(s, &t->past, 0);
}
