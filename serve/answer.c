/* serve/answer.c: one answer, whatever API asked for it: the prompt's tokens are brought into a session, and what is generated
   comes out token by token. It knows sessions and masks, and nothing of JSON as clients read it: an API fills the first part of
   an answer in, and is told of every token by `event`. */

enum { IMAGE_PLACE = 64 };                 /* characters of where an image stands in a request, and their end */

/* nothing stands in its way; a session reads it; time has passed */
enum { PROGRESS_ACCEPTED, PROGRESS_READING, PROGRESS_TICK };

typedef struct tool_call {
    char *name, *arguments;                /* a text; JSON, an object */
} tool_call;

typedef struct answer {
    server *server;
    connection *client;
    int32_t *prompt;                       /* owned */
    size_t prompt_count;
    const mote_image *images;              /* in the order of their places in the prompt; NULL: there are none */
    const char (*image_places)[IMAGE_PLACE];                /* where they stand in the request */
    int image_count;
    size_t image_pixels;                   /* of the largest one */
    size_t image_tokens;                   /* of all of them */
    mote_images *seen;                     /* decoded. Owned */
    mote_sampling sampling;                /* its bias in `bias` */
    buf bias;
    buf stops, stop_texts;                 /* char *[], which point into the texts */
    int max_tokens;                        /* -1: no limit; 0: the prompt alone is read */
    int min_tokens, ignores_end, is_raw;
    int thinking_budget;                   /* tokens; 0: no limit */
    int gives_ids, gives_timings;          /* events carry the token's id; how long it took so far */
    int gives_progress;                    /* of the prompt, as it is read */
    int forgets;                           /* nothing that was read before is to be used */
    int top;                               /* log-probabilities beside each token's own; -1: none are wanted */
    char *tools;                           /* a JSON list, as mote_generation takes it; NULL: none. Owned */
    char *schema;                          /* of JSON that the answer is; NULL: free text. Owned */
    int tool_choice, one_call;             /* as in mote_generation */
    char *tool;                            /* the one to call; NULL: any. Owned */
    int echo;                              /* the prompt's tokens are to be scored: see scores */
    const mote_embedding *embeds;          /* the prompt's embedding is all that is wanted, as this says; NULL: it is not */
    float *embedding;                      /* [dimensions] it */
    void (*event)(struct answer *a);       /* a token's part of the answer is complete: in piece, token, calls */
    void (*scored)(struct answer *a, size_t at, size_t n);     /* n tokens of the prompt have been read, with their scores */
    void (*progress)(struct answer *a, int what);              /* PROGRESS_...; NULL: nobody asks */
    void (*too_long)(const struct answer *a, failure *f);      /* says so of the prompt */
    void *user;

    buf piece[2];                          /* by channel: text that came since the last event */
    int has_token, is_end, index;          /* of the event: there is a token; it ends the answer; its number */
    int32_t token;
    mote_logprob *logprobs;                /* of that token, and of `top` in its place */
    int channel;                           /* of the last text */
    buf calls;                             /* tool_call[], complete ones */
    int calls_reported;                    /* to the client */
    int failed, enough;                    /* a part of it was lost for lack of memory; `event` wants no more */
    mote_logprob *scores, *alternatives;   /* of a piece of the prompt, with echo: [PIECE_MOST], [PIECE_MOST][top] */

    size_t cached;                         /* tokens of the prompt that were there */
    enum { ANSWER_WAITS, ANSWER_READS, ANSWER_WRITES } state;           /* for a session; the prompt; tokens */
    size_t read, piece_begins;             /* tokens of the prompt so far; those before what is being fed */
    mote_result result;                    /* generated_tokens and stop are of the whole answer */
    const server_slot *slot;               /* what generates it */
    uint64_t drafted, accepted;            /* drafts verified for it and accepted: with gives_timings so far, else when it is over */
    double began, generates_since, last_sent; /* clock: of reading, of generating, of what the client was sent last */
} answer;

static const tool_call *answer_call(const answer *a, int i) {
    return (const tool_call *)(const void *)a->calls.data + i;
}

static int answer_calls(const answer *a) {
    return (int)(a->calls.size / sizeof(tool_call));
}

static void answer_free(answer *a) {
    for (int i = 0; i < answer_calls(a); i++) {
        free(answer_call(a, i)->name);
        free(answer_call(a, i)->arguments);
    }
    buf_free(&a->calls);
    buf_free(&a->piece[0]);
    buf_free(&a->piece[1]);
    buf_free(&a->bias);
    buf_free(&a->stops);
    buf_free(&a->stop_texts);
    mote_images_close(a->seen);
    free(a->prompt);
    free(a->tools);
    free(a->schema);
    free(a->tool);
    free(a->logprobs);
    free(a->scores);
    free(a->alternatives);
}

/* ---- What the library tells ------------------------------------------------------------------------------------- */

/* Nobody else waits for a client that reads slowly: passes go on without its session. */
static void answer_unclog(answer *a) {
    if (connection_is_clogged(a->client)) connection_flush(a->client, 1);
}

/* Tells the client of the last token. */
static void answer_event(answer *a) {
    a->failed |= a->piece[0].failed | a->piece[1].failed | a->calls.failed;
    if (a->has_token || a->piece[0].size || a->piece[1].size || a->calls_reported < answer_calls(a)) a->event(a);
    a->piece[0].size = a->piece[1].size = 0;
    a->calls_reported = answer_calls(a);
    a->has_token = 0;
    answer_unclog(a);
}

/* A client that hears nothing for long gives up. */
static void answer_progress(answer *a, int what) {
    enum { QUIET_SECONDS = 2 };
    double now = clock_seconds();
    if (!a->progress || (what == PROGRESS_TICK && now - a->last_sent < (a->gives_progress ? QUIET_SECONDS / 4.0 : QUIET_SECONDS))) return;
    a->last_sent = now;
    a->progress(a, what);
}

/* While a prompt is read: so much of what was fed at once. */
static void on_prompt(void *user, int done, int count) {
    answer *a = ((server_slot *)user)->answer;
    (void)count;
    if (a) a->read = a->piece_begins + (size_t)done;
}

/* Between two passes; while a prompt is read, also between two layers of it, when others wait: it must not take long. */
static int on_pause(void *user) {
    server_slot *t = (server_slot *)user;
    answer *a = t->answer;
    if (!a) return 0;
    if (a->has_token) answer_event(a);
    answer_progress(a, PROGRESS_TICK);
    return connection_gone(a->client);
}

/* What has been drafted for it: `now`, without what the slot's session had drafted before. */
static void answer_count_drafts(answer *a, const mote_speculation *now, const mote_drafter_use *blocks) {
    const mote_speculation *before = &a->slot->counted;
    a->drafted = a->accepted = 0;
    for (int k = 0; k < MOTE_ROWS_MAX; k++) a->drafted += (uint64_t)k * (now->passes[k] - before->passes[k]);
    for (int of = 0; of < MOTE_DRAFT_SOURCES; of++)
        for (int k = 0; k < MOTE_ROWS_MAX - 1; k++) a->accepted += now->accepted[of][k] - before->accepted[of][k];
    for (int k = 0; k < MOTE_ROWS_MAX - 1; k++) a->accepted += blocks->accepted[k] - a->slot->counted_blocks.accepted[k];
}

static int on_answer_token(void *user, int32_t id) {
    answer *a = (answer *)user;
    mote_speculation now;
    mote_drafter_use blocks;
    if (a->has_token) answer_event(a);
    if (a->gives_timings && !mote_speculation_of(a->slot->session, &now, NULL) && !mote_drafter_of(a->slot->session, &blocks, NULL))
        answer_count_drafts(a, &now, &blocks);
    a->has_token = 1;
    a->token = id;
    a->is_end = mote_is_end(a->server->model, id);
    a->index = a->result.generated_tokens++;
    return a->enough || connection_gone(a->client);
}

static void on_answer_logprobs(void *user, const mote_logprob *token, const mote_logprob *alternatives, int count) {
    answer *a = (answer *)user;
    a->logprobs[0] = *token;
    memcpy(a->logprobs + 1, alternatives, (size_t)count * sizeof *alternatives);
}

/* The text of a call comes again as a call. */
static int on_answer_text(void *user, int channel, const char *text, size_t size) {
    answer *a = (answer *)user;
    if (channel == MOTE_TOOL_CALL) return 0;
    if (size && a->calls_reported < answer_calls(a)) answer_event(a); /* a call that ended in the same token comes first */
    a->channel = channel;
    buf_add(&a->piece[channel], text, size);
    return 0;
}

/* {"name": "...", "arguments": {...}} */
static int on_answer_call(void *user, const char *call, size_t size) {
    answer *a = (answer *)user;
    json j;
    buf arguments = {NULL, 0, 0, 0};
    int code = json_parse(&j, call, size, "a call", NULL);
    a->failed |= code != MOTE_OK;
    if (code) return 0;
    uint32_t x = json_get(&j, 0, "arguments");
    tool_call c = {node_text(&j, json_get(&j, 0, "name")), NULL};
    if (x) put_node(&arguments, &j, x);
    buf_add(&arguments, "", 1);
    c.arguments = arguments.data;
    json_free(&j);
    if (c.name && !arguments.failed && buf_add(&a->calls, &c, sizeof c)) return 0;
    a->failed = 1;
    free(c.name);
    buf_free(&arguments);
    return 0;
}

/* No end before min_tokens. */
static int on_answer_logits(void *user, float *logits, int vocab) {
    answer *a = (answer *)user;
    for (int id = 0; id < vocab && a->result.generated_tokens < a->min_tokens && !a->schema; id++)
        if (mote_is_end(a->server->model, id)) logits[id] = -INFINITY;
    return 0;
}

/* ---- Reading and generating -------------------------------------------------------------------------------------- */

/* The beginning of the next turn after `at`, or the prompt's end. */
static size_t next_turn(const server *s, const answer *a, size_t at) {
    while (++at < a->prompt_count && a->prompt[at] != s->turn_begins) {}
    return at < a->prompt_count ? at : a->prompt_count;
}

/* The next place at which there may be a snapshot: that, or after the last image of the turn, since another question about it may come. */
static size_t next_stop(const server *s, const answer *a, size_t at) {
    const size_t end = next_turn(s, a, at);
    size_t after = end;
    while (after > at && a->prompt[after - 1] >= 0) after--;               /* keys of images are negative */
    return after > at && after + 1 < end ? after + 1 : end;                /* with the mark that ends an image */
}

/* 1: a turn in which the user asks begins here, and none that only carries a tool's result. */
static int user_asks(const server *s, const answer *a, size_t at) {
    int asks = at + 3 < a->prompt_count && a->prompt[at + 1] == s->user;
    return asks && a->prompt[at + 2] != s->tool_responds && a->prompt[at + 3] != s->tool_responds;
}

typedef struct turns { size_t answer, before, asked; } turns;          /* tokens before each */

/* The last turn, which is the answer to come, the one before it, and the last one in which the user asks. 0: there is none. */
static turns last_turns(const server *s, const answer *a) {
    turns t = {0, 0, 0};
    if (s->turn_begins < 0 || a->is_raw) return t;
    for (size_t at = 0; at < a->prompt_count; at = next_turn(s, a, at)) {
        if (user_asks(s, a, at)) t.asked = at;
        t.before = t.answer;
        t.answer = at;
    }
    for (size_t at = 0; s->asks >= 0 && at < a->prompt_count; at++)
        if (a->prompt[at] == s->asks) t.asked = at;
    return t;
}

enum { PIECE_MOST = 1024 };                /* tokens whose scores are kept at a time */

enum { READ_LEAST = 16 };                  /* tokens at once: fewer are slow, and say little of the speed */

/* Tokens to read at once, so that others wait for a tenth of a second, where that changes no bits, and there may be others. A GPU
   lets them compute between two layers. */
static size_t piece_tokens(const server_slot *t, size_t left) {
    server *s = t->server;
    if (!s->reads_alike || t->of->sessions == 1) return left;
    pthread_mutex_lock(&s->lock);
    double most = t->of->read_speed / 10;
    pthread_mutex_unlock(&s->lock);
    if (most < READ_LEAST) most = READ_LEAST;
    return (double)left < most ? left : (size_t)most;
}

/* How quickly a replica reads prompts, whoever's they are, by the time in which they and nothing else was computed. */
static void note_speed(const server_slot *t) {
    replica *r = t->of;
    mote_seen now;
    if (mote_runner_seen(r->runner, &now, NULL)) return;
    pthread_mutex_lock(&t->server->lock);
    const double tokens = (double)(now.prompt_tokens - r->read_seen.prompt_tokens);
    const double seconds = now.prompt_seconds - r->read_seen.prompt_seconds, weight = r->read_speed > 0 ? 0.3 : 1;
    if (now.prompt_tokens >= r->read_seen.prompt_tokens + READ_LEAST && seconds > 0) {
        r->read_speed += (tokens / seconds - r->read_speed) * weight;
        r->read_seen = now;
    }
    pthread_mutex_unlock(&t->server->lock);
}

/* Reads the prompt from `at` on, and takes snapshots where turns begin and after their images, if there may be any. On a GPU a prompt in
   many pieces is read slowly, so there all but the last ones are some way apart. */
static int answer_read(answer *a, server_slot *t, size_t at, mote_error *error) {
    enum { APART = 1024 };
    server *s = a->server;
    size_t last = at;
    int code = MOTE_OK, splits = s->turn_begins >= 0 && !a->is_raw && s->cache_most >= s->snapshot_bytes;
    turns turn = last_turns(s, a);
    t->asked = a->is_raw ? 0 : next_turn(s, a, turn.asked);
    while (at < a->prompt_count && !code) {
        size_t end = splits ? next_stop(s, a, at) : a->prompt_count;
        while (end < a->prompt_count && !s->reads_alike && end < turn.before && end < last + APART) end = next_stop(s, a, end);
        while (at < end && !code) {
            size_t n = piece_tokens(t, end - at);
            a->piece_begins = at;
            code = a->seen ? mote_feed_images(t->session, a->prompt + at, n, a->seen, NULL, NULL, error)
                           : mote_feed(t->session, a->prompt + at, n, error);
            note_speed(t);
            at += n;
        }
        if (!code && end < a->prompt_count) {
            server_slot_snapshot(t);
            last = end;
        }
    }
    return code;
}

/* Reads the whole prompt with the log-probabilities of its tokens, piece by piece. The memory for one is taken. */
static int answer_score(answer *a, server_slot *t, mote_error *error) {
    int code = MOTE_OK;
    for (size_t at = 0, n; at < a->prompt_count && !code && !a->enough; at += n) {
        n = piece_tokens(t, a->prompt_count - at);
        if (n > PIECE_MOST) n = PIECE_MOST;
        a->piece_begins = at;
        code = mote_feed_logprobs(t->session, a->prompt + at, n, a->top > 0 ? a->top : 0, a->scores, a->alternatives, error);
        note_speed(t);
        if (!code) a->scored(a, at, n);
        answer_unclog(a);
    }
    return code;
}

/* Reads the whole prompt for its embedding; nobody will go on from it. */
static int answer_embed(answer *a, server_slot *t, mote_error *error) {
    t->asked = 0;
    int code = mote_embed(t->session, a->prompt, a->prompt_count, a->embeds, a->embedding, error);
    note_speed(t);
    return code;
}

static int answer_generate(answer *a, server_slot *t, mote_error *error) {
    mote_generation g = {.size = sizeof g};
    mote_result r = {0};
    int code, most = a->max_tokens;
    a->sampling.bias = (const mote_bias *)(const void *)a->bias.data;
    a->sampling.bias_count = (int)(a->bias.size / sizeof(mote_bias));
    a->state = ANSWER_WRITES;
    a->channel = MOTE_ANSWER;
    a->generates_since = clock_seconds();
    g.sampling = &a->sampling;
    g.stop = (const char *const *)(void *)a->stops.data;
    g.stop_count = (int)(a->stops.size / sizeof(char *));
    g.tools = a->tools;
    g.schema = a->schema;
    g.tool_choice = a->tool_choice;
    g.tool = a->tool;
    g.one_call = a->one_call;
    g.thinking_budget = a->thinking_budget;
    g.raw = a->is_raw;
    g.on_text = on_answer_text;
    g.on_token = on_answer_token;
    g.on_call = a->tools ? on_answer_call : NULL;
    if (a->min_tokens) g.on_logits = on_answer_logits;
    if (a->top >= 0) g.on_logprobs = on_answer_logprobs;
    g.top_logprobs = a->top >= 0 ? a->top : 0;
    g.user = a;
    do {
        g.max_tokens = most > 0 ? most - a->result.generated_tokens : 0;
        code = mote_generate(t->session, &g, &r, error);
        if (r.stop >= 0) a->result.stop = r.stop;
        a->result.stop_text = r.stop_text;
        a->result.thinking_tokens += r.thinking_tokens;
        a->result.generate_seconds += r.generate_seconds;
    } while (!code && a->ignores_end && r.stop == MOTE_STOP_EOS && (most < 0 || a->result.generated_tokens < most));
    answer_event(a);
    return code || !a->failed ? code : fail_memory(error);
}

/* The stop text that ended the answer; NULL: none did. */
static const char *answer_stop_text(const answer *a) {
    return a->result.stop == MOTE_STOP_TEXT ? ((char *const *)(const void *)a->stops.data)[a->result.stop_text] : NULL;
}

/* 1: it was cut before it was complete. */
static int answer_is_cut(const answer *a) {
    return a->result.stop == MOTE_STOP_LENGTH || a->result.stop == MOTE_STOP_CONTEXT;
}

static void answer_tally(const answer *a) {
    tally *used = &a->client->used;
    used->read += a->read - a->cached;
    used->cached += a->cached;
    used->written += (size_t)a->result.generated_tokens;
    used->read_seconds += a->result.prompt_seconds;
    used->write_seconds += a->result.generate_seconds;
}
