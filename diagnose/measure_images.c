/* diagnose/measure_images.c: how long a picture takes, from its pixels to the first token after it. It reads the picture as an application does, and asks
   the session's callbacks when the tower is done. */

enum { IMAGE_TEXT = 16 };                  /* tokens of text before the picture, and after it */

/* Callbacks in place of the session's own, which they call. */
typedef struct image_clock {
    mote_callbacks inner;
    double began, features;
} image_clock;

static void image_clock_log(void *user, const char *text) {
    notice(&((const image_clock *)user)->inner, "%s", text);
}

static int image_clock_cancel(void *user) {
    return cancelled(&((const image_clock *)user)->inner);
}

static void image_clock_progress(void *user, const char *what, double fraction) {
    image_clock *c = (image_clock *)user;
    if (!strcmp(what, "reading an image")) c->features = seconds() - c->began;        /* the last one tells that they are there */
    report(&c->inner, what, fraction);
}

/* The picture among text, to the first token after that. */
static int measure_image_read(mote_session *s, const mote_images *opened, mote_image_times *t, image_clock *clock, mote_error *err) {
    int32_t ids[2 * IMAGE_TEXT + 1], id;
    for (int i = 0; i <= 2 * IMAGE_TEXT; i++) ids[i] = i == IMAGE_TEXT ? s->m->c.image_token : (s->m->c.image_token + 1 + i) % s->m->c.vocab;
    pthread_mutex_lock(&s->slot.runner->lock);
    features_forget(s->slot.runner);
    pthread_mutex_unlock(&s->slot.runner->lock);
    int code = mote_reset(s, err);
    clock->began = seconds();
    if (!code) code = mote_feed_images(s, ids, 2 * IMAGE_TEXT + 1, opened, NULL, NULL, err);
    if (!code) code = mote_step(s, NULL, &id, err);
    t->features = clock->features;
    t->first_token = seconds() - clock->began;
    return code;
}

/* A picture of random pixels. NULL: there is no memory. */
static unsigned char *measure_image_pixels(int width, int height) {
    const size_t n = 3 * (size_t)width * (size_t)height;
    unsigned char *rgb = (unsigned char *)malloc(n);
    for (size_t i = 0; rgb && i < n; i++) rgb[i] = (unsigned char)(synthetic_bits(1, (uint32_t)i) >> 24);
    return rgb;
}

/* Resizes it, too. */
static int measure_image(mote_session *s, const mote_image *image, mote_image_times *t, mote_error *err) {
    mote_images *opened = NULL;
    image_clock clock = {s->o.callbacks, 0, 0};
    const double began = seconds();
    int code = mote_images_open(s->m, image, 1, &opened, err);
    t->open = seconds() - began;
    s->o.callbacks.log = image_clock_log;
    s->o.callbacks.progress = image_clock_progress;
    s->o.callbacks.cancel = image_clock_cancel;
    s->o.callbacks.user = &clock;
    if (!code) code = measure_image_read(s, opened, t, &clock, err);
    s->o.callbacks = clock.inner;
    mote_images_close(opened);
    return code;
}

int mote_measure_image(mote_session *session, mote_image_times *times, mote_error *error) {
    mote_error failure;
    if (!error) error = &failure;
    int code = session_enter(session, times != NULL, "mote_measure_image: needs a session and a place for the times", error);
    if (code) return code;
    mote_image image = {.size = 3 * (size_t)max_int(times->width, 0) * (size_t)max_int(times->height, 0), .width = times->width, .height = times->height,
                        .tokens = session->o.image_tokens};
    unsigned char nothing = 0;
    image.data = &nothing;                 /* not looked at for its size */
    code = mote_image_size(session->m, &image, NULL, NULL, &times->tokens, error);
    if (code) return code;
    unsigned char *rgb = measure_image_pixels(image.width, image.height);
    image.data = rgb;
    code = rgb ? measure_image(session, &image, times, error) : fail_memory(error);
    free(rgb);
    return code;
}
