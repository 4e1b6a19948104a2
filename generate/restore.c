/* generate/restore.c: a stored conversation into the timeline: mote_chat_restore.

   The timeline becomes what mote_ask would have made of the same messages, the remembered state before the last answer to a user
   included (generate/thinking.c). It goes back no further than it must; while somebody may cancel, what is given up for that is
   kept as bytes. */

typedef struct restore_plan {
    buf ids;                     /* of the conversation, up to the end of its last turn; keys where it has images */
    mote_images *images;         /* NULL: it has none */
    image_reader reader;         /* of these */
    size_t count, asked;         /* of these; up to where the state is to be remembered, 0: nowhere */
    size_t have;                 /* of these in the timeline: where it goes back to */
    int goes_back, remembered;   /* it does; the state is remembered already */
    mote_checkpoint *answer;     /* where it is to be remembered */
    mote_checkpoint *before;     /* with a cancel callback: the timeline as it was, */
    char *bytes;                 /* as these if it goes back */
    size_t size;
} restore_plan;

static void restore_close(restore_plan *p) {
    reader_close(&p->reader);
    mote_images_close(p->images);
    buf_free(&p->ids);
    mote_checkpoint_free(p->answer);
    mote_checkpoint_free(p->before);
    free(p->bytes);
}

/* Appends the ids of a part of a text that ends with a turn. */
static int restore_encode(restore_plan *p, const mote_model *m, const marked_text *from, size_t begin, size_t end,
                          mote_error *err) {
    marked_text part;
    memset(&part, 0, sizeof part);
    put_marked(&part, from, slice_of(from->text.data + begin, end - begin));
    int code = marked_failed(&part) ? fail_memory(err) : encode_marked(m->text, &part, &p->ids, err);
    marked_free(&part);
    return code;
}

/* The ids of the request's messages. A turn ends with its end mark: the line feed comes with the next turn. */
static int restore_ids(restore_plan *p, const mote_model *m, const char *request, size_t size, mote_error *err) {
    marked_text text;
    chat_places at;
    memset(&text, 0, sizeof text);
    put_chat_begin(m, &text);
    int code = chat_render_at(m->family, request, size, CHAT_TIMELINE, &text, &at, err);
    const chat_marks *marks = chat_marks_of(m->family);
    if (!code && *marks->line_end && slice_ends(slice_of(text.text.data, at.answer - 1), marks->turn_end)) at.answer--;
    if (at.asked >= at.answer || m->family & CHAT_KEEPS) at.asked = 0;        /* what follows is passed over, or nothing is dropped */
    if (!code && at.asked) code = restore_encode(p, m, &text, 0, at.asked, err);
    p->asked = p->ids.size / sizeof(int32_t);
    if (!code) code = restore_encode(p, m, &text, at.asked, at.answer, err);
    p->count = p->ids.size / sizeof(int32_t);
    marked_free(&text);
    return code;
}

/* A request's contents have images: what comes from outside is never a pad. */
static int restore_has_pads(const restore_plan *p, const mote_model *m) {
    const int32_t *ids = (const int32_t *)(const void *)p->ids.data;
    size_t i = 0;
    while (m->has_vision && i < p->count && ids[i] != m->c.image_token) i++;
    return m->has_vision && i < p->count;
}

/* The ids' pads become keys of these images. */
static int restore_images(restore_plan *p, const mote_session *s, const mote_image *images, int count, mote_error *err) {
    buf rest;
    int code = images_open(s->m, images, count, s->o.image_tokens, &p->images, err);
    if (code) return code;
    const size_t asked = p->asked * sizeof(int32_t);
    image_places places = {p->images, 0, 0};
    memset(&rest, 0, sizeof rest);
    if (!buf_add(&rest, p->ids.data + asked, p->ids.size - asked)) return fail_memory(err);
    p->ids.size = asked;
    code = images_place_all(&places, &p->ids, err);
    p->asked = p->ids.size / sizeof(int32_t);
    if (!code) code = images_place_all(&places, &rest, err);
    if (!code && !buf_add(&p->ids, rest.data, rest.size)) code = fail_memory(err);
    p->count = p->ids.size / sizeof(int32_t);
    buf_free(&rest);
    if (!code) code = places_check(&places, err);
    return code ? code : reader_open(&p->reader, p->images, err);
}

static const int32_t *restore_begin(const restore_plan *p) {
    return (const int32_t *)(const void *)p->ids.data;
}

/* Whether the first n tokens of the conversation, and no fewer, equal these. */
static int restore_starts(const restore_plan *p, const int32_t *tokens, int n) {
    return n >= 0 && (size_t)n <= p->count && (!n || !memcmp(tokens, restore_begin(p), (size_t)n * sizeof *tokens));
}

/* Chooses where to go on: at the timeline's end, at the remembered state, or at the beginning; the state can be remembered only
   where that is still to come. */
static void restore_place(restore_plan *p, const mote_session *s) {
    const mote_checkpoint *c = s->before_answer;
    const int32_t *tokens = timeline_keys((mote_session *)s);
    int held = c && checkpoint_holds(s, c) && (!c->images.count || c->count <= s->count) &&
               restore_starts(p, c->count <= s->count ? tokens : c->tokens, c->count);
    p->remembered = held && p->asked == (size_t)c->count;
    size_t most = p->asked && !p->remembered ? p->asked : p->count;
    /* Of a template whose turns have no end, an answer may end with the token that begins the next turn. */
    const int ended = s->count && !*chat_marks_of(s->m->family)->turn_end && is_eos(s->m, s->tokens[s->count - 1]);
    if (ended && p->count + 1 == (size_t)s->count && most == p->count && restore_starts(p, tokens, s->count - 1)) p->have = p->count;
    else if (restore_starts(p, tokens, s->count) && (size_t)s->count <= most) p->have = (size_t)s->count;
    else if (held && (size_t)c->count <= most) p->have = (size_t)c->count, p->goes_back = 1;
    else p->goes_back = 1;
}

/* Gets all memory. To be closed in any case. */
static int restore_open(restore_plan *p, mote_session *s, const char *request, size_t size, const mote_image *images, int image_count, mote_error *err) {
    memset(p, 0, sizeof *p);
    int code = restore_ids(p, s->m, request, size, err);
    if (!code && image_count && !s->m->has_vision) code = vision_refused(s->m, err);
    if (!code && (image_count || restore_has_pads(p, s->m))) code = restore_images(p, s, images, image_count, err);
    if (code) return code;
    if (p->count > (size_t)s->o.context)
        return fail(err, MOTE_ECONTEXT, "%zu tokens do not fit: the session holds %d", p->count, s->o.context);
    restore_place(p, s);
    if (p->images) code = session_reserve_images(s, s->images.count + p->images->count, err);
    if (!code && p->images) code = reader_ready(&p->reader, s, restore_begin(p) + p->have, p->count - p->have, err);
    if (code) return code;
    if (p->asked && !p->remembered && !(p->answer = checkpoint_new(s, s->o.context))) return fail_memory(err);
    if (!s->o.callbacks.cancel || p->have == p->count) return MOTE_OK;
    if (p->goes_back) return save_bytes(s, &p->bytes, &p->size, err);
    p->before = checkpoint_new(s, s->count);
    return p->before ? checkpoint_fill(s, p->before, err) : fail_memory(err);
}

static int restore_go_back(const restore_plan *p, mote_session *s, mote_error *err) {
    if (!p->goes_back) return MOTE_OK;
    return p->have ? session_rewind(s, s->before_answer, err) : timeline_reset(s, err);
}

/* Reads what is not there, and remembers the state on the way. */
static int restore_read(restore_plan *p, mote_session *s, mote_error *err) {
    image_reader *r = p->images ? &p->reader : NULL;
    const int32_t *ids = restore_begin(p);
    size_t first = p->answer ? p->asked : p->have;
    s->read_after = p->count - first;
    int code = reader_read(r, s, ids + p->have, first - p->have, err);
    if (!code && p->answer) code = checkpoint_fill(s, p->answer, err);
    s->read_before = first - p->have;
    s->read_after = 0;
    if (!code) code = reader_read(r, s, ids + first, p->count - first, err);
    s->read_before = 0;
    return code;
}

static int restore_run(restore_plan *p, mote_session *s, mote_error *err) {
    int code = restore_go_back(p, s, err);
    if (!code) code = restore_read(p, s, err);
    if (code) {
        if (p->bytes) (void)session_load(s, p->bytes, p->size, NULL);
        else if (p->before) (void)session_rewind(s, p->before, NULL);
        return code;
    }
    if (p->answer) {
        images_forget(s);
        mote_checkpoint_free(s->before_answer);
        s->before_answer = p->answer;
        p->answer = NULL;
    } else if (!p->remembered) {
        forget_answer(s);
    }
    if (p->images && remembers_answer(s)) (void)images_keep(s, p->images->of, p->images->count, NULL);     /* without them thinking stays */
    return MOTE_OK;
}

int mote_chat_restore_images(mote_session *session, const char *request, size_t size, const mote_image *images, int image_count, size_t *read,
                             mote_error *error) {
    restore_plan p;
    int code = session_enter(session, request && image_count >= 0 && (images || !image_count), "mote_chat_restore: needs a session and a request", error);
    if (!code) code = need_text(session->m, error);
    if (!code) code = need_chat(session->m, error);
    if (!code) code = session_begin(session, "mote_chat_restore", error);
    if (code) return code;
    code = restore_open(&p, session, request, size, images, image_count, error);
    if (!code) code = restore_run(&p, session, error);
    if (!code && read) *read = p.count - p.have;
    restore_close(&p);
    session_leave(session);
    return code;
}

int mote_chat_restore(mote_session *session, const char *request, size_t size, size_t *read, mote_error *error) {
    return mote_chat_restore_images(session, request, size, NULL, 0, read, error);
}
