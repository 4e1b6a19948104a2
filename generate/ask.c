/* generate/ask.c: one turn of a conversation: mote_ask, and what it would do with the context. */

/* The plan of a turn: how it is going to change the timeline. */
typedef struct turn_plan {
    buf past;                    /* ids that take the place of the answer with its thinking; none: nothing is dropped */
    buf ids;                     /* of the turn; once it is run, with keys of its images */
    mote_images *images;         /* NULL: it has none, or is not run yet */
    size_t past_count, count;    /* of these */
    size_t total;                /* tokens of the timeline then */
} turn_plan;

static void plan_close(turn_plan *p) {
    buf_free(&p->past);
    buf_free(&p->ids);
    mote_images_close(p->images);
}

/* Whether a token is white space alone, as at the end of a turn's line. */
static int is_line_end(const mote_model *m, int32_t id) {
    size_t n = 0;
    const char *bytes = tokenizer_token(m->text, id, &n);
    return bytes && n && !slice_trim(slice_of(bytes, n)).n;
}

/* Puts what is missing after the turn that the timeline ends with, before a result or a question. Line ends after its end mark are the template's, whatever
   tokens they are. */
static void put_turn_end(const mote_session *s, int result, marked_text *out) {
    const chat_marks *m = chat_marks_of(s->m->family);
    int at = s->count;
    if (s->m->family & CHAT_GEMMA) {
        put_model_turn_end(s, result, out);
        return;
    }
    if (!*m->turn_end) return;
    while (at && is_line_end(s->m, s->tokens[at - 1])) at--;
    int closed = at && (s->tokens[at - 1] == tokenizer_find(s->m->text, m->turn_end) || (*m->ends && is_eos(s->m, s->tokens[at - 1])));
    if (s->count && !closed) put_words(out, m->turn_end);
    if (s->count && (!closed || at == s->count)) put_words(out, turn_gap(s->m->family));
}

/* Where the turn begins that ends before `end`. */
static int turn_before(const mote_session *s, int end) {
    const int32_t start = tokenizer_find(s->m->text, chat_marks_of(s->m->family)->turn);
    int at = end - 1;
    while (at > 0 && s->tokens[at] != start) at--;
    return at;
}

static int read_turn_text(const mote_session *s, int at, int end, buf *text, mote_error *err) {
    text->size = 0;
    return detokenize(s->m, s->tokens + at, (size_t)(end - at), text, err);
}

/* A tool's result answers a call: of the last answer, which only other results may follow. What the answer holds need not be a
   call that mote can read: the application may have read it, or say what is wrong with it. */
static int check_role(const mote_session *s, const mote_generation *g, mote_error *err) {
    int results = 0, calls = 0, code = MOTE_OK, more = 1;
    buf text;
    if (!g->role || strcmp(g->role, "tool")) return MOTE_OK;
    if (s->m->family & CHAT_GEMMA) {
        int at;
        calls = turn_open_calls(s, -1, &results, &at);
        more = 0;
    }
    memset(&text, 0, sizeof text);
    for (int at, end = s->count; more && end > 0 && !code; end = at) {
        at = turn_before(s, end);
        code = read_turn_text(s, at, end, &text, err);
        slice turn = slice_of(text.data, text.size);
        const int held = code ? 0 : turn_results(s->m->family, turn);
        if (!code) calls += turn_calls(s->m->family, turn);
        results += held;
        more = !code && (held || turn_goes_on(s->m->family, turn));
        more &= !(s->m->family & CHAT_ANSWER_TURNS);             /* there the results follow the answer in what was found */
    }
    buf_free(&text);
    if (code || calls > results) return code;
    return fail(err, MOTE_EINVAL, "a turn of role tool: there is no call before it that has no result yet");
}

/* Who the calls were to that have no result yet, where a template's results say that: as a turn's `names`, NULL where it does not. */
static int put_recipients(const mote_session *s, const mote_generation *g, buf *out, const char **names, mote_error *err) {
    const int32_t start = tokenizer_find(s->m->text, chat_marks_of(s->m->family)->turn);
    int code = MOTE_OK, from = s->count, results = 0, calls = 0;
    buf text;
    if (!(s->m->family & CHAT_HARMONY) || !g->role || strcmp(g->role, "tool")) return MOTE_OK;
    memset(&text, 0, sizeof text);
    for (int more = 1; more && from > 0 && !code;) {
        const int at = turn_before(s, from);
        code = read_turn_text(s, at, from, &text, err);
        const slice turn = slice_of(text.data, text.size);
        const int held = code ? 0 : turn_results(s->m->family, turn);
        more = !code && (held || turn_goes_on(s->m->family, turn));
        results += held;
        if (more) from = at;
    }
    for (int at = from, end; at < s->count && !code; at = end) {
        for (end = at + 1; end < s->count && s->tokens[end] != start; end++) {}
        code = read_turn_text(s, at, end, &text, err);
        const slice turn = slice_of(text.data, text.size);
        if (code || !turn_calls(s->m->family, turn) || calls++ < results) continue;
        buf_slice(out, turn_header(turn).recipient);
        buf_add(out, "", 1);
    }
    buf_free(&text);
    for (int i = calls - results; i < g->result_count + 1 && calls > results; i++) buf_add(out, "", 1);     /* results too many */
    if (!code && out->failed) code = fail_memory(err);
    if (calls > results) *names = out->data;
    return code;
}

/* What stands between a past without its thinking and the next turn. */
static void put_past_gap(const turn_plan *p, const mote_model *m, marked_text *out) {
    const int32_t *past = (const int32_t *)(const void *)p->past.data;
    const int ends = !(m->family & CHAT_GEMMA) || past[p->past_count - 1] == tokenizer_find(m->text, chat_marks_of(m->family)->turn_end);
    if (ends) put_words(out, chat_marks_of(m->family)->line_end);
}

/* Of a template whose turns have no end, an answer ends with the token that begins the next one: that is not read again. */
static void drop_begun(turn_plan *p, const mote_session *s) {
    const int32_t *ids = (const int32_t *)(const void *)p->ids.data;
    const size_t size = sizeof *ids;
    if (*chat_marks_of(s->m->family)->turn_end || p->past_count || !s->count || p->ids.size < 2 * size) return;
    if (ids[0] != s->tokens[s->count - 1] || !is_eos(s->m, ids[0])) return;
    p->ids.size -= size;
    memmove(p->ids.data, p->ids.data + size, p->ids.size);
}

/* Token ids of the next turn, in which system message, tools and message are plain text. One encoding of the whole turn, so
   that words which reach from the template's text into the message are those of the template's rendering. */
static int plan_ids(turn_plan *p, const mote_session *s, const char *message, const generator *a, mote_error *err) {
    const mote_generation *g = &a->g;
    marked_text text;
    buf names;                   /* of the calls that results answer */
    turn t;
    memset(&text, 0, sizeof text);
    memset(&names, 0, sizeof names);
    memset(&t, 0, sizeof t);
    t.system = s->count ? NULL : g->system;
    t.tools = s->count || !a->tools.nodes ? NULL : &a->tools;
    t.role = g->role ? g->role : "user";
    t.message = message;
    t.images = g->image_count;
    t.results = g->results;
    t.result_count = g->result_count;
    t.think = g->think;
    t.first = !s->count;
    t.effort = g->effort;
    t.date = g->date;
    int code = put_recipients(s, g, &names, &t.names, err);
    if (!s->count) put_chat_begin(s->m, &text);
    if (p->past_count) put_past_gap(p, s->m, &text);
    else put_turn_end(s, !strcmp(t.role, "tool"), &text);
    if (s->count && s->m->family & CHAT_GEMMA && !strcmp(t.role, "tool")) {
        put_open_names(s, 1 + t.result_count, &names);
        t.names = names.data;
        t.opened = s->tokens[s->count - 1] == tokenizer_find(s->m->text, chat_marks_of(s->m->family)->result);
    }
    if (!code && names.failed) code = fail_memory(err);
    if (!code) code = chat_turn(s->m->family, &t, &text, err);
    if (!code) code = encode_marked(s->m->text, &text, &p->ids, err);
    if (!code) drop_begun(p, s);
    marked_free(&text);
    buf_free(&names);
    return code;
}

/* 1: what a user says next leaves the thinking before it where it is. */
static int keeps_thinking(const mote_session *s, const mote_generation *g) {
    return g->keep_thinking || s->m->family & CHAT_KEEPS;
}

/* Tokens of a turn's images, more than their pads. */
static int plan_images(const mote_session *s, const mote_generation *g, size_t *more, mote_error *err) {
    if (g->image_count < 0 || (g->image_count && !g->images)) return fail(err, MOTE_EINVAL, "image_count is %d, and images say none", g->image_count);
    for (int i = 0; i < g->image_count; i++) {
        int width, height, tokens;
        mote_error why;
        const int code = image_count(s->m, &g->images[i], s->o.image_tokens, &width, &height, &tokens, &why);
        if (code) return fail_image(i, &why, err);
        *more += (size_t)tokens - 1;
    }
    return MOTE_OK;
}

/* To be closed in any case. */
static int plan_open(turn_plan *p, const mote_session *s, const char *message, const generator *a, mote_error *err) {
    const mote_generation *g = &a->g;
    int code = MOTE_OK, user = !g->role || !strcmp(g->role, "user");
    memset(p, 0, sizeof *p);
    size_t more = 0;
    code = plan_images(s, g, &more, err);
    if (!code && user && !keeps_thinking(s, g)) code = past_ids(s, &p->past, err);
    p->past_count = p->past.size / sizeof(int32_t);
    if (!code) code = plan_ids(p, s, message, a, err);
    p->count = p->ids.size / sizeof(int32_t) + more;
    p->total = (p->past_count ? (size_t)s->before_answer->count + p->past_count : (size_t)s->count) + p->count;
    return code;
}

int mote_ask_count(const mote_session *session, const char *message, const mote_generation *generation, size_t *read,
                   size_t *total, mote_error *error) {
    generator a;
    turn_plan p;
    int code = session_enter(session, message != NULL, "mote_ask_count: needs a session and a message", error);
    if (!code) code = need_text(session->m, error);
    if (!code) code = need_chat(session->m, error);
    if (code) return code;
    memset(&p, 0, sizeof p);
    code = generator_take(&a, session->m, generation, error);
    if (!code) code = check_role(session, &a.g, error);
    if (!code) code = plan_open(&p, session, message, &a, error);
    if (!code && read) *read = p.past_count + p.count;
    if (!code && total) *total = p.total;
    plan_close(&p);
    generator_close(&a);
    return code;
}

/* Reads a turn of n ids. When it is cancelled, or fails otherwise, the timeline is as before: chunks that were already read
   are taken back, to `before`; NULL: there is one chunk only, or nobody can cancel. answer: where the answer begins, and the
   session remembers its state; 0: it does not. Nothing cancels the few tokens after it. r: as reader_read has it. */
static int ask_feed(mote_session *s, image_reader *r, const int32_t *ids, size_t n, size_t answer, mote_checkpoint *before, mote_error *err) {
    int (*cancel)(void *user) = s->o.callbacks.cancel;
    size_t first = answer ? answer : n;
    int code = before ? checkpoint_fill(s, before, err) : MOTE_OK;
    s->read_after = n - first;
    if (!code) code = reader_read(r, s, ids, first, err);
    if (code && before && before->count >= 0) (void)session_rewind(s, before, NULL);
    if (code || !answer) return code;
    code = checkpoint_fill(s, s->before_answer, err);
    s->o.callbacks.cancel = NULL;
    s->read_before += first;
    s->read_after = 0;
    if (!code) code = feed(s, ids + first, n - first, NULL, err);
    s->o.callbacks.cancel = cancel;
    return code;
}

/* Decodes the turn's images, and has the tower read them, before anything changes. */
static int plan_read_images(turn_plan *p, image_reader *r, mote_session *s, const mote_generation *g, mote_error *err) {
    int code = images_open(s->m, g->images, g->image_count, s->o.image_tokens, &p->images, err);
    if (code) return code;
    image_places places = {p->images, 0, 0};
    code = images_place_all(&places, &p->ids, err);
    if (!code) code = places_check(&places, err);
    if (!code) code = reader_open(r, p->images, err);
    if (!code) code = session_reserve_images(s, s->images.count + g->image_count, err);
    for (int i = 0; i < g->image_count && !code; i++) code = reader_take(r, s, i, err);
    return code;
}

/* Brings a turn into the timeline, after its memory has been got and its images read. */
static int plan_feed(const turn_plan *p, image_reader *r, mote_session *s, const mote_generation *g, mote_error *err) {
    const int32_t *ids = (const int32_t *)(void *)p->ids.data, *past = (const int32_t *)(void *)p->past.data;
    const int32_t start = tokenizer_find(s->m->text, chat_marks_of_model(s->m->family)->turn);
    const int open = !p->past_count && !keeps_thinking(s, g) && answer_is_open(s);
    const int user = (!g->role || !strcmp(g->role, "user")) && !open;
    mote_checkpoint *before = NULL;
    size_t answer = 0;
    int code = MOTE_OK;
    for (size_t i = 0; i < p->count && user && !keeps_thinking(s, g); i++)
        if (ids[i] == start) answer = i;
    if (answer) code = reserve_answer(s, err);
    if (!code && s->o.callbacks.cancel && p->count > (size_t)session_rows(s)) {
        before = checkpoint_new(s, (int)(p->total - p->count));
        if (!before) code = fail_memory(err);
    }
    s->read_before = 0;
    s->read_after = p->count;
    if (!code && p->past_count) code = drop_thinking(s, past, p->past_count, err);
    s->read_before = p->past_count;
    if (!code && user) forget_answer(s);
    if (!code && r && !user && remembers_answer(s)) code = images_keep(s, p->images->of, p->images->count, err);
    if (!code) code = ask_feed(s, r, ids, p->count, answer, before, err);
    s->read_before = s->read_after = 0;
    mote_checkpoint_free(before);
    return code;
}

/* Brings a turn into the timeline. Gets all memory first. */
static int plan_run(turn_plan *p, mote_session *s, const mote_generation *g, mote_error *err) {
    image_reader r;
    int code = MOTE_OK;
    if (p->total > (size_t)s->o.context)
        return fail(err, MOTE_ECONTEXT, "%zu tokens do not fit: the session holds %zu of %d", p->count, p->total - p->count,
                    s->o.context);
    memset(&r, 0, sizeof r);
    if (g->image_count) code = plan_read_images(p, &r, s, g, err);
    if (!code) code = plan_feed(p, g->image_count ? &r : NULL, s, g, err);
    reader_close(&r);
    return code;
}

/* Plans a turn and brings it into the timeline. */
static int read_turn(generator *a, mote_session *s, const char *message, mote_error *err) {
    turn_plan p;
    double start = seconds();
    int code = check_role(s, &a->g, err);
    memset(&p, 0, sizeof p);
    if (!code) code = plan_open(&p, s, message, a, err);
    if (!code) code = plan_run(&p, s, &a->g, err);
    a->r.prompt_seconds = seconds() - start;
    if (!code) a->r.prompt_tokens = (int)(p.past_count + p.count);
    plan_close(&p);
    return code;
}

int mote_ask(mote_session *session, const char *message, const mote_generation *generation, mote_result *result,
             mote_error *error) {
    generator a;
    memset(&a.r, 0, sizeof a.r);
    int code = session_enter(session, message != NULL, "mote_ask: needs a session and a message", error);
    if (!code) code = need_text(session->m, error);
    if (!code) code = need_chat(session->m, error);
    if (!code) code = session_begin(session, "mote_ask", error);
    if (!code) {
        code = generator_open(&a, session, generation, error);
        if (!code) code = read_turn(&a, session, message, error);
        if (!code) code = generator_run(&a, session, error);
        generator_close(&a);
        session_leave(session);
    }
    put_result(&a.r, code, result);
    return code;
}
