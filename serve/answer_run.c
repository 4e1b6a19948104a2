/* serve/answer_run.c: how an answer (serve/answer.c) comes to a session and is done with it: what it needs for itself, its images, its turn among
   those that wait, the session's snapshots. It knows no API either. */

/* ---- A session for it ------------------------------------------------------------------------------------------- */

static int has_free_slot(const server *s) {
    for (const server_slot *t = s->slots; t < s->slots + s->slot_count; t++)
        if (is_free(t)) return 1;
    return 0;
}

/* Waits in order for a session; NULL: the request is refused, or its client has gone. One that has had a session is there for another one
   of its prompts, and waits however many do. */
static server_slot *server_slot_take(answer *a, const wanted *w, swapped **e, failure *f) {
    server *s = a->server;
    waiter me = {NULL}, **place = &s->waiting;
    server_slot *t = NULL;
    pthread_mutex_lock(&s->lock);
    s->clock++;
    if (!a->slot && !s->device_lost && (s->waiting || !has_free_slot(s)) && s->waiting_count >= s->waiting_most) {
        pthread_mutex_unlock(&s->lock);
        refuse(f, 503, NULL, "%d requests are waiting already: try again later", s->waiting_most);
        return NULL;
    }
    while (*place) place = &(*place)->next;
    *place = &me;
    s->waiting_count++;
    answer_progress(a, PROGRESS_ACCEPTED);
    while (!serve_stops && !s->device_lost && !connection_gone(a->client)) {
        if (s->waiting == &me && (t = server_slot_choose(s, w, e)) != NULL) break;
        server_wait(s);
        answer_progress(a, PROGRESS_TICK);
    }
    for (place = &s->waiting; *place != &me;) place = &(*place)->next;
    *place = me.next;
    s->waiting_count--;
    if (t) t->busy = 1;
    s->counted.cancelled += !t && a->client->gone;
    if (!t && s->device_lost) refuse(f, 503, NULL, "%s", s->replicas->why);
    else if (!t && serve_stops) refuse(f, 503, NULL, "the server is being stopped");
    pthread_cond_broadcast(&s->freed);
    pthread_mutex_unlock(&s->lock);
    return t;
}

/* What a block drafter did. */
static void server_slot_count_blocks(server_slot *t, const mote_drafter_use *now) {
    mote_drafter_use *c = &t->server->counted.blocks, *before = &t->counted_blocks;
    c->rows = now->rows;
    for (int k = 0; k < MOTE_ROWS_MAX - 1; k++) {
        c->drafted[k] += now->drafted[k] - before->drafted[k];
        c->accepted[k] += now->accepted[k] - before->accepted[k];
    }
    *before = *now;
}

static void server_slot_count_speculation(server_slot *t, answer *a) {
    mote_speculation *c = &t->server->counted.speculation, now, *before = &t->counted;
    mote_drafter_use blocks;
    if (mote_speculation_of(t->session, &now, NULL) || mote_drafter_of(t->session, &blocks, NULL)) return;
    answer_count_drafts(a, &now, &blocks);
    server_slot_count_blocks(t, &blocks);
    for (int k = 0; k < MOTE_ROWS_MAX; k++) c->passes[k] += now.passes[k] - before->passes[k];
    for (int of = 0; of < MOTE_DRAFT_SOURCES; of++)
        for (int k = 0; k < MOTE_ROWS_MAX - 1; k++) {
            c->drafted[of][k] += now.drafted[of][k] - before->drafted[of][k];
            c->accepted[of][k] += now.accepted[of][k] - before->accepted[of][k];
        }
    c->draft_seconds += now.draft_seconds - before->draft_seconds;
    c->pass_seconds += now.pass_seconds - before->pass_seconds;
    *before = now;
}

static int server_slot_open(server_slot *t, const mote_session_options *options, mote_error *error) {
    mote_session_options o = *options;
    o.runner = t->of->runner;
    o.callbacks.cancel = on_pause;
    o.callbacks.prompt = on_prompt;
    o.callbacks.user = t;
    return mote_session_open(t->of->model, &o, &t->session, error);
}

static void server_slot_release(server_slot *t, answer *a, const mote_error *error) {
    server *s = t->server;
    int left = 0, loses = 0;
    pthread_mutex_lock(&s->lock);
    s->counted.prompt_tokens += a->prompt_count - a->cached;
    s->counted.cached_tokens += a->cached;
    s->counted.generated_tokens += (uint64_t)a->result.generated_tokens;
    s->counted.prompt_seconds += a->result.prompt_seconds;
    s->counted.generate_seconds += a->result.generate_seconds;
    s->counted.cancelled += (uint64_t)a->client->gone;
    server_slot_count_speculation(t, a);
    t->answer = NULL;
    t->busy = 0;
    t->unread = 0;
    if (error->code == MOTE_EDEVICE) {
        loses = !t->of->lost;
        left = replica_lose(s, t->of, error);
    }
    pthread_cond_broadcast(&s->freed);
    pthread_mutex_unlock(&s->lock);
    if (left) show_format(stderr, "mote: %s; %d of %d replicas serve on\n", error->message, left, s->replica_count);
    else if (loses && s->reaches) show_format(stderr, "mote: %s; what its sessions had read is lost\n", error->message);
    else if (loses) show_format(stderr, "mote: %s\n", error->message);
}

/* An answer needs place for one token at least. */
static int answer_fits(answer *a, failure *f) {
    const size_t top = a->top > 0 ? (size_t)a->top : 0;
    if (a->prompt_count + (a->max_tokens != 0) > (size_t)a->server->context) {
        a->too_long(a, f);
        f->code = "context_length_exceeded";
        return 0;
    }
    if (!a->prompt_count) return !refuse(f, 400, "prompt", "the prompt is empty");
    if (a->top >= 0) a->logprobs = (mote_logprob *)calloc(top + 1, sizeof *a->logprobs);
    if (a->echo) a->scores = (mote_logprob *)calloc(PIECE_MOST, sizeof *a->scores);
    if (a->echo && top) a->alternatives = (mote_logprob *)calloc(PIECE_MOST * top, sizeof *a->alternatives);
    if ((a->top >= 0 && !a->logprobs) || (a->echo && !a->scores) || (a->echo && top && !a->alternatives))
        return !refuse(f, 503, NULL, "out of memory");
    return 1;
}

/* Names the image of an error of the library by its place in the request. */
static void answer_name_image(const answer *a, mote_error *error) {
    char why[sizeof error->message];
    int number, at = 0;
    if (sscanf(error->message, "image %d: %n", &number, &at) != 1 || !at || number < 1 || number > a->image_count) return;
    strcpy(why, error->message + at);
    snprintf(error->message, sizeof error->message, "%s: %.*s", a->image_places[number - 1], (int)(sizeof why - IMAGE_PLACE - 2), why);
}

/* Decodes the images, whose tokens become what they show: on the connection's thread, before a session is waited for. */
static int answer_see(answer *a, failure *f) {
    enum { DECODING = 20, SEEN = 3 * 32 * 32 };            /* bytes a pixel, at most, while one of them is decoded; of a token's pixels, after that */
    connection *c = a->client;
    mote_error error = {0, ""};
    size_t count = 0, first = 0;
    if (!a->image_count) return 1;
    const size_t held = c->taken + SEEN * a->image_tokens;
    const int status = connection_take(c, held + DECODING * a->image_pixels);
    int32_t *ids = status ? NULL : (int32_t *)malloc(a->prompt_count * sizeof *ids);
    if (status) return !refuse(f, status, NULL, "%s", c->in.problem);
    int code = ids ? mote_images_open(a->server->model, a->images, a->image_count, &a->seen, &error) : fail_memory(&error);
    if (!code) code = mote_images_place(a->seen, a->prompt, a->prompt_count, ids, a->prompt_count, &count, &error);
    while (!code && first < count && ids[first] >= 0) first++;
    if (!code && first == count) code = fail(&error, MOTE_EUNSUPPORTED, "<|image_pad|> is not the image_token_id of config.json");
    budget_give(c->budget, c->taken - held);
    c->taken = held;
    if (code) {
        free(ids);
        answer_name_image(a, &error);
        return !refuse_error(f, &error);
    }
    free(a->prompt);
    a->prompt = ids;
    a->prompt_count = count;
    return 1;
}

/* Returns 0, also when the client has gone; else f says what is wrong. */
static int answer_run(answer *a, failure *f) {
    swapped *e = NULL;
    mote_error error = {0, ""};
    if (!answer_fits(a, f) || !answer_see(a, f)) return 1;
    wanted w = {a->prompt, a->forgets ? 0 : a->prompt_count, (size_t)(a->server->context - (a->max_tokens != 0)), a->is_raw};
    const double asked = clock_seconds();
    server_slot *t = server_slot_take(a, &w, &e, f);
    a->began = clock_seconds();
    a->client->used.queue_seconds += a->began - asked;
    if (!t) return f->status != 0;
    t->answer = a;
    a->slot = t;
    a->cached = a->read = server_slot_prepare(t, e, &w, &error);
    a->prompt = w.ids;
    if (!a->forgets) a->prompt_count = w.count;
    t->of_chats = !a->is_raw;
    server_slot_reads(t, a->prompt_count - a->cached);
    a->state = ANSWER_READS;
    answer_progress(a, PROGRESS_READING);
    int code = a->embeds ? answer_embed(a, t, &error) : a->echo ? answer_score(a, t, &error) : answer_read(a, t, a->cached, &error);
    a->result.prompt_seconds = clock_seconds() - a->began;
    server_slot_reads(t, 0);
    if (!code && a->scored && !a->echo) a->scored(a, 0, a->prompt_count);
    if (a->max_tokens == 0) a->result.stop = MOTE_STOP_LENGTH;
    else if (!code) code = answer_generate(a, t, &error);
    if (!code) a->read = a->prompt_count;
    answer_tally(a);
    answer_name_image(a, &error);
    if (code == MOTE_EDEVICE) replica_explain(a->server, t->of, &error);
    error.code = code;
    server_slot_release(t, a, &error);
    if (code == MOTE_EFORMAT) return refuse(f, 500, NULL, "%s", error.message);            /* the model's files are damaged, not the request */
    return code && code != MOTE_ECANCELLED ? refuse_error(f, &error) : 0;
}
