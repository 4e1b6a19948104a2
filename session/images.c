/* session/images.c: pictures into timelines. What the application gives is decoded and resized here, once, and told apart by its hash; ids in which pads
   stand for pictures become keys, and keys rows of a timeline, with what the runner's vision tower makes of the pictures. */

/* A picture as the tower sees it, shared by who may read it again. */
typedef struct seen_image {
    int holders;                 /* atomic */
    picture pixels;
    unsigned char hash[IMAGE_HASH];
    int rows, columns;           /* of tokens */
} seen_image;

struct mote_images {
    const mote_model *m;
    int count;
    seen_image **of;             /* [count] */
};

static void image_drop(seen_image *image) {
    if (!image || __atomic_sub_fetch(&image->holders, 1, __ATOMIC_ACQ_REL)) return;
    picture_free(&image->pixels);
    free(image);
}

static int image_tokens(const seen_image *image) {
    return image->rows * image->columns;
}

/* An error of image number i. */
static int fail_image(int i, const mote_error *why, mote_error *err) {
    return fail(err, why->code, "image %d: %s", i + 1, why->message);
}

/* ---- A picture's size -------------------------------------------------------------------------------------------------- */

/* The size at which the tower sees a picture of such a size. tokens: at most so many. */
static int image_fit(const mote_model *m, int width, int height, int tokens, int *fit_width, int *fit_height, mote_error *err) {
    picture_limits limits = m->pictures;
    const int64_t side = limits.patch * limits.merge;
    const int64_t all = (int64_t)model_image_tokens(m) * side * side;
    limits.most = (int64_t)min_int(tokens, model_image_tokens(m)) * side * side;
    if (limits.least > all) limits.least = all;
    return picture_fit(&limits, width, height, fit_width, fit_height, err);
}

/* What is given is a picture; its size. */
static int image_size(const mote_model *m, const mote_image *image, int *width, int *height, mote_error *err) {
    if (!m->has_vision) return vision_refused(m, err);
    if (m->c.image_token < 0 || m->c.image_token >= m->c.vocab)
        return fail(err, MOTE_EUNSUPPORTED, "config.json: image_token_id is not there, or no id of the vocabulary");
    if (!image->data || image->tokens < 0 || image->reserved || image->width < 0 || image->height < 0 || !image->width != !image->height)
        return fail(err, MOTE_EINVAL, "a picture needs its bytes, both sides or neither, tokens of 0 or more");
    if (!image->width) return picture_size(image->data, image->size, width, height, err);
    *width = image->width;
    *height = image->height;
    const int code = picture_check(*width, *height, err);
    if (code || image->size == (size_t)*width * (size_t)*height * 3) return code;
    return fail(err, MOTE_EINVAL, "%zu bytes of %d x %d pixels, expected 3 for each", image->size, *width, *height);
}

/* Tokens of an image that says nothing of its own limit: `tokens` at most. */
static int image_count(const mote_model *m, const mote_image *image, int tokens, int *width, int *height, int *count, mote_error *err) {
    const int side = m->pictures.patch * m->pictures.merge;
    int fit_width, fit_height, code = image_size(m, image, width, height, err);
    if (!code) code = image_fit(m, *width, *height, image->tokens ? image->tokens : tokens, &fit_width, &fit_height, err);
    if (!code) *count = fit_width / side * (fit_height / side);
    return code;
}

int mote_image_size(const mote_model *model, const mote_image *image, int *width, int *height, int *tokens, mote_error *error) {
    int w, h, n;
    if (!model || !image) return fail(error, MOTE_EINVAL, "mote_image_size: needs a model and an image");
    const int code = image_count(model, image, IMAGE_TOKENS, &w, &h, &n, error);
    if (code) return code;
    if (width) *width = w;
    if (height) *height = h;
    if (tokens) *tokens = n;
    return MOTE_OK;
}

/* ---- Pictures ---------------------------------------------------------------------------------------------------------- */

/* Decodes and resizes one. tokens: as image_count has it. */
static int image_open(const mote_model *m, const mote_image *image, int tokens, seen_image *to, mote_error *err) {
    int width, height, code = image_size(m, image, &width, &height, err);
    const int side = m->pictures.patch * m->pictures.merge, given = image->width > 0;
    picture whole = {.width = width, .height = height, .rgb = (unsigned char *)(uintptr_t)image->data};
    if (code) return code;
    if (!given) memset(&whole, 0, sizeof whole);
    if (!given) code = picture_decode(image->data, image->size, &whole, err);
    if (!code) code = image_fit(m, whole.width, whole.height, image->tokens ? image->tokens : tokens, &width, &height, err);
    if (!code) code = picture_resize(&whole, width, height, &to->pixels, err);
    if (!given) picture_free(&whole);
    if (code) return code;
    picture_hash(&to->pixels, to->hash);
    to->rows = height / side;
    to->columns = width / side;
    return MOTE_OK;
}

void mote_images_close(mote_images *images) {
    if (!images) return;
    for (int i = 0; i < images->count; i++) image_drop(images->of[i]);
    mote_close((mote_model *)images->m);
    free(images->of);
    free(images);
}

/* Places for so many images; NULL: there is no memory. */
static mote_images *images_new(const mote_model *m, int count) {
    mote_images *images = (mote_images *)calloc(1, sizeof *images);
    seen_image **of = images ? (seen_image **)calloc((size_t)count + 1, sizeof *of) : NULL;
    if (!of) {
        free(images);
        return NULL;
    }
    images->m = model_hold(m);
    images->count = count;
    images->of = of;
    return images;
}

/* tokens: of an image that does not say how many. */
static int images_open(const mote_model *m, const mote_image *given, int count, int tokens, mote_images **opened, mote_error *err) {
    mote_images *images = images_new(m, count);
    mote_error why;
    int code = images ? MOTE_OK : fail_memory(err);
    for (int i = 0; i < count && !code; i++) {
        images->of[i] = (seen_image *)calloc(1, sizeof **images->of);
        if (images->of[i]) images->of[i]->holders = 1;
        code = images->of[i] ? image_open(m, &given[i], tokens, images->of[i], &why) : fail_memory(&why);
        if (code) fail_image(i, &why, err);
    }
    if (code) mote_images_close(images);
    else *opened = images;
    return code;
}

int mote_images_open(const mote_model *model, const mote_image *images, int count, mote_images **opened, mote_error *error) {
    if (!model || !opened || count < 0 || (count && !images))
        return fail(error, MOTE_EINVAL, "mote_images_open: needs a model, its images, and a place for them");
    return images_open(model, images, count, IMAGE_TOKENS, opened, error);
}

/* ---- Ids with pads, and keys -------------------------------------------------------------------------------------------- */

/* How many of these are the id at i, in a row. */
static size_t equal_run(const int32_t *ids, size_t count, size_t i) {
    size_t n = 1;
    while (i + n < count && ids[i + n] == ids[i]) n++;
    return n;
}

/* Ids on their way to keys. */
typedef struct image_places {
    const mote_images *images;
    int next, places;            /* the image whose place comes next; places so far */
} image_places;

/* Appends ids to `to`, [capacity] of which *total are there, with keys in place of pads; those that do not fit are counted alone. */
static int places_put(image_places *p, const int32_t *ids, size_t count, int32_t *to, size_t capacity, size_t *total, mote_error *err) {
    const int32_t pad = p->images->m->c.image_token;
    for (size_t i = 0, n; i < count; i += n) {
        n = ids[i] == pad ? equal_run(ids, count, i) : 1;
        if (ids[i] != pad) {
            if (*total < capacity) to[*total] = ids[i];
            ++*total;
            continue;
        }
        p->places++;
        if (p->next == p->images->count) continue;
        const seen_image *image = p->images->of[p->next++];
        const int tokens = image_tokens(image);
        if (n != 1 && n != (size_t)tokens)
            return fail(err, MOTE_EINVAL, "image %d takes %d tokens: %zu pads stand in its place, expected as many or one", p->next, tokens, n);
        for (int t = 0; t < tokens; t++, ++*total)
            if (*total < capacity) to[*total] = span_key(image->hash, t);
    }
    return MOTE_OK;
}

/* After all ids of which there were any places. */
static int places_check(const image_places *p, mote_error *err) {
    if (p->places == p->images->count) return MOTE_OK;
    return fail(err, MOTE_EINVAL, "%d image%s, and places for %d", p->images->count, p->images->count == 1 ? "" : "s", p->places);
}

static int images_place(const mote_images *images, const int32_t *ids, size_t count, int32_t *to, size_t capacity, size_t *total, mote_error *err) {
    image_places p = {images, 0, 0};
    *total = 0;
    const int code = places_put(&p, ids, count, to, capacity, total, err);
    return code || !p.places ? code : places_check(&p, err);
}

/* The same of ids in a buffer, which become as many. */
static int images_place_all(image_places *p, buf *ids, mote_error *err) {
    const int32_t *from = (const int32_t *)(const void *)ids->data;
    const size_t count = ids->size / sizeof *from;
    size_t total = 0, needed = 0;
    image_places before = *p;
    buf placed;
    memset(&placed, 0, sizeof placed);
    int code = places_put(&before, from, count, NULL, 0, &needed, err);
    int32_t *to = code ? NULL : (int32_t *)malloc((needed + 1) * sizeof *to);
    if (!code && !to) code = fail_memory(err);
    if (!code) code = places_put(p, from, count, to, needed, &total, err);
    if (!code && !buf_add(&placed, to, total * sizeof *to)) code = fail_memory(err);
    free(to);
    if (code) {
        buf_free(&placed);
        return code;
    }
    buf_free(ids);
    *ids = placed;
    return MOTE_OK;
}

int mote_images_place(const mote_images *images, const int32_t *ids, size_t id_count, int32_t *placed, size_t capacity, size_t *count,
                      mote_error *error) {
    size_t total;
    if (count) *count = 0;
    if (!images || !count || (id_count && !ids) || (capacity && !placed))
        return fail(error, MOTE_EINVAL, "mote_images_place: needs images, ids, room, and a place for the count");
    int code = images_place(images, ids, id_count, placed, capacity, &total, error);
    if (code) return code;
    *count = total;
    return total <= capacity ? MOTE_OK : fail(error, MOTE_EINVAL, "%zu ids do not fit into the %zu given", total, capacity);
}

/* ---- Into a timeline ---------------------------------------------------------------------------------------------------- */

/* Images that a call reads: `of` has what the tower makes of each, NULL where it was not wanted yet. */
typedef struct image_reader {
    const mote_images *images;
    features **of;               /* [images->count] */
} image_reader;

static int reader_open(image_reader *r, const mote_images *images, mote_error *err) {
    r->images = images;
    r->of = (features **)calloc((size_t)images->count + 1, sizeof *r->of);
    return r->of ? MOTE_OK : fail_memory(err);
}

static void reader_close(image_reader *r) {
    for (int i = 0; r->of && i < r->images->count; i++) features_drop(r->of[i]);
    free(r->of);
    memset(r, 0, sizeof *r);
}

/* What the tower makes of a picture of so many patches, whose pixels or patches it is given. */
static int image_features(mote_session *s, const picture *of, int rows, int columns, float *to, mote_error *err) {
    mote_runner *r = s->slot.runner;
    if (vision_takes_pixels(r)) return vision_features_of_pixels(r, of->rgb, rows, columns, to, &s->o.callbacks, err);
    float *patches = (float *)malloc((size_t)rows * (size_t)columns * VISION_PIXELS * sizeof *patches);
    if (!patches) return fail_memory(err);
    picture_patches(of, s->m->pictures.patch, s->m->pictures.merge, patches);
    const int code = vision_features(r, patches, rows, columns, to, &s->o.callbacks, err);
    free(patches);
    return code;
}

/* The tower's work on an image. */
static int image_compute(mote_session *s, const seen_image *image, features **to, mote_error *err) {
    const int merge = s->m->pictures.merge, tokens = image_tokens(image);
    if (tokens > s->o.image_tokens)
        return fail(err, MOTE_EINVAL, "it takes %d tokens, the session reads images of %d at most", tokens, s->o.image_tokens);
    features *f = features_new(image->hash, (size_t)tokens * (size_t)s->m->c.hidden * sizeof(float));
    const int code = f ? image_features(s, &image->pixels, image->rows * merge, image->columns * merge, f->rows, err) : fail_memory(err);
    if (code) {
        features_drop(f);
        return code;
    }
    features_keep(s->slot.runner, f);
    *to = f;
    return MOTE_OK;
}

/* Gets what the tower makes of image i. */
static int reader_take(image_reader *r, mote_session *s, int i, mote_error *err) {
    mote_error why;
    const seen_image *image = r->images->of[i];
    if (r->of[i]) return MOTE_OK;
    r->of[i] = features_find(s->slot.runner, image->hash);
    if (r->of[i]) return MOTE_OK;
    const int code = image_compute(s, image, &r->of[i], &why);
    return code == MOTE_ECANCELLED ? fail(err, code, "%s", why.message) : code ? fail_image(i, &why, err) : MOTE_OK;
}

/* The image, from number `first` on, whose key this is: of its first token or, where the timeline ends within an image, of the one that follows.
   *skip: tokens of it that are there. -1: none. */
static int reader_find(const image_reader *r, const mote_session *s, int at_end, int32_t key, int first, int *skip) {
    const int n = spans_before(&s->images, s->count);
    const image_span *last = n && at_end ? &s->images.of[n - 1] : NULL;
    const int begun = last && last->start + last->count >= s->count && s->count - last->start < last->rows * last->columns;
    *skip = begun ? s->count - last->start : 0;
    for (int i = 0; begun && i < r->images->count; i++)
        if (!memcmp(r->images->of[i]->hash, last->hash, sizeof last->hash) && span_key(last->hash, *skip) == key) return i;
    *skip = 0;
    for (int i = first; i < r->images->count; i++)
        if (span_key(r->images->of[i]->hash, 0) == key) return i;
    return -1;
}

/* The images among placed ids, which follow the timeline, as feed_images takes them; and their pads' ids. to: [images->count]; n: of them. */
static int reader_spans(const image_reader *r, const mote_session *s, const int32_t *placed, size_t count, int32_t *ids, fed_image *to, int *which,
                        int *n, mote_error *err) {
    int first = 0;
    *n = 0;
    for (size_t i = 0; i < count;) {
        int skip, left = 0;
        ids[i] = placed[i];
        if (placed[i] >= 0) {
            i++;
            continue;
        }
        const int k = reader_find(r, s, i == 0, placed[i], first, &skip);
        if (k < 0 || *n == r->images->count) return fail(err, MOTE_EINVAL, "token %zu is a key of none of the %d images", i, r->images->count);
        const seen_image *image = r->images->of[k];
        fed_image *fed = &to[*n];
        memset(fed, 0, sizeof *fed);
        for (left = 0; skip + left < image_tokens(image) && i + (size_t)left < count && placed[i + (size_t)left] == span_key(image->hash, skip + left); left++)
            ids[i + (size_t)left] = s->m->c.image_token;
        if (skip + left < image_tokens(image) && i + (size_t)left < count) return fail(err, MOTE_EINVAL, "image %d: %d of its %d tokens", k + 1, skip + left, image_tokens(image));
        fed->span.start = s->count + (int)i - skip;
        fed->span.count = image_tokens(image);
        fed->span.rows = image->rows;
        fed->span.columns = image->columns;
        memcpy(fed->span.hash, image->hash, sizeof image->hash);
        if (skip) fed->span.position = s->images.of[spans_before(&s->images, s->count) - 1].position;
        which[(*n)++] = k;
        first = k + 1;
        i += (size_t)left;
    }
    return MOTE_OK;
}

/* Reads placed ids. Room is asked for first, then the tower, so that when these fail nothing has changed. ids: [count], which and of: [images->count] of
   the caller. */
static int reader_feed_as(image_reader *r, mote_session *s, const int32_t *placed, size_t count, const feed_results *wanted, int32_t *ids, int *which,
                          fed_image *of, mote_error *err) {
    int n, code = reader_spans(r, s, placed, count, ids, of, which, &n, err);
    if (!code) code = check_ids(s, s->count, ids, count, err);
    for (int i = 0; i < n && !code; i++) {
        code = reader_take(r, s, which[i], err);
        if (!code) of[i].features = r->of[which[i]]->rows;
    }
    return code ? code : feed_images(s, ids, of, n, count, wanted, err);
}

static int reader_feed(image_reader *r, mote_session *s, const int32_t *placed, size_t count, const feed_results *wanted, mote_error *err) {
    const size_t images = (size_t)r->images->count + 1, left = (size_t)max_int(s->o.context - s->count, 0);
    if (count > left) return fail(err, MOTE_ECONTEXT, "%zu tokens do not fit: the session holds %d of %d", count, s->count, s->o.context);
    int32_t *ids = (int32_t *)calloc(count + 1, sizeof *ids);
    int *which = (int *)malloc(images * sizeof *which);
    fed_image *of = (fed_image *)malloc(images * sizeof *of);
    const int code = ids && which && of ? reader_feed_as(r, s, placed, count, wanted, ids, which, of, err) : fail_memory(err);
    free(ids);
    free(which);
    free(of);
    return code;
}

/* The tower's work on all images of placed ids, in their order. */
static int reader_ready(image_reader *r, mote_session *s, const int32_t *placed, size_t count, mote_error *err) {
    int code = MOTE_OK, k = 0;
    for (size_t i = 0; i < count && !code; i++) {
        int at = k;
        while (placed[i] < 0 && at < r->images->count && span_key(r->images->of[at]->hash, 0) != placed[i]) at++;
        if (placed[i] >= 0 || at == r->images->count) continue;
        code = reader_take(r, s, at, err);
        i += (size_t)image_tokens(r->images->of[at]) - 1;
        k = at + 1;
    }
    return code;
}

/* The same ids into the timeline; r NULL: they have no keys. */
static int reader_read(image_reader *r, mote_session *s, const int32_t *placed, size_t count, mote_error *err) {
    return r ? reader_feed(r, s, placed, count, NULL, err) : feed(s, placed, count, NULL, err);
}

/* ---- What may be read again --------------------------------------------------------------------------------------------- */

static void images_forget(mote_session *s) {
    for (int i = 0; i < s->kept_count; i++) image_drop(s->kept[i]);
    free(s->kept);
    s->kept = NULL;
    s->kept_count = 0;
}

/* The session keeps these images, too. */
static int images_keep(mote_session *s, seen_image *const *of, int count, mote_error *err) {
    if (!count) return MOTE_OK;
    seen_image **more = (seen_image **)realloc(s->kept, ((size_t)s->kept_count + (size_t)count) * sizeof *more);
    if (!more) return fail_memory(err);
    s->kept = more;
    for (int i = 0; i < count; i++) {
        __atomic_add_fetch(&of[i]->holders, 1, __ATOMIC_RELAXED);
        s->kept[s->kept_count++] = of[i];
    }
    return MOTE_OK;
}

/* Puts keys in place of the pads of images that begin after the timeline's first `from` tokens, in ids that are made of the tokens after these. 0: not all of
   them are there, or kept. */
static int images_place_kept(const mote_session *s, int from, int32_t *ids, size_t count) {
    const int end = spans_before(&s->images, s->count);
    int k = spans_before(&s->images, from);
    for (size_t i = 0, n; i < count && k < end; i += n) {
        const image_span *span = &s->images.of[k];
        int kept = 0;
        n = equal_run(ids, count, i);
        if (ids[i] != s->m->c.image_token || n != (size_t)span->count) continue;
        while (kept < s->kept_count && memcmp(s->kept[kept]->hash, span->hash, sizeof span->hash)) kept++;
        if (kept == s->kept_count) return 0;
        for (size_t t = 0; t < n; t++) ids[i + t] = span_key(span->hash, (int)t);
        k++;
    }
    return k == end;
}

/* Ids with pads or keys. */
static int session_feed_images(mote_session *s, const int32_t *ids, size_t count, const mote_images *images, const feed_results *wanted, mote_error *err) {
    size_t total, placed_count;
    image_reader r;
    int code = images_place(images, ids, count, NULL, 0, &total, err);
    if (!code && total > (size_t)s->o.context) code = fail(err, MOTE_ECONTEXT, "%zu tokens do not fit: the session holds %d", total, s->o.context);
    int32_t *placed = code ? NULL : (int32_t *)malloc((total + 1) * sizeof *placed);
    if (!code && !placed) code = fail_memory(err);
    if (!code) code = images_place(images, ids, count, placed, total, &placed_count, err);
    if (!code) code = reader_open(&r, images, err);
    if (!code) {
        code = reader_feed(&r, s, placed, total, wanted, err);
        reader_close(&r);
    }
    free(placed);
    return code;
}

int mote_feed_images(mote_session *session, const int32_t *ids, size_t count, const mote_images *images, float *logits, float *mtp_logits,
                     mote_error *error) {
    mote_session *s = session;
    int code = session_enter(s, (ids || !count) && images, "mote_feed_images: needs a session, its tokens and images", error);
    if (!code && (images->m->fingerprint != s->m->fingerprint || images->m->c.image_token != s->m->c.image_token))
        code = fail(error, MOTE_EINVAL, "the images are of another model");
    if (!code) code = feed_check_mtp(s, mtp_logits, error);
    if (!code) code = session_begin(s, "mote_feed_images", error);
    if (code) return code;
    const int before = s->count;
    const feed_results wanted = {logits, mtp_logits, NULL, NULL};
    code = session_feed_images(s, ids, count, images, &wanted, error);
    if (s->count > before) forget_answer(s);
    session_leave(s);
    return code;
}

const int32_t *mote_timeline(const mote_session *session, size_t *count) {
    if (count) *count = session ? (size_t)session->count : 0;
    return session ? timeline_keys((mote_session *)session) : NULL;
}
