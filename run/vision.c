/* run/vision.c: an image's patches become features: rows that stand in the timeline in place of embeddings of tokens. It knows runners, and
   which of a group's has the tower; what that computes, its executor does. Must not know what an image is, nor which session wants it. */

/* Who looks on while a tower computes; on which runner others may compute in between. */
typedef struct vision_looker {
    mote_runner *r;
    const mote_callbacks *callbacks;
} vision_looker;

/* The tower has done this share of its work, and nothing runs. Nonzero: it shall end. */
static int vision_looks_on(void *user, double done) {
    const vision_looker *l = (const vision_looker *)user;
    (void)runner_yield(l->r, NULL);
    if (l->r->group) group_settle(l->r->group);
    report(l->callbacks, "reading an image", done);
    return cancelled(l->callbacks);
}

/* The runner whose model has the tower; NULL: none. */
static mote_runner *vision_runner(mote_runner *r) {
    mote_runner *of = r->members ? r->members[0] : r;
    return of->m->has_vision && !of->m->remote && of->backend->vision ? of : NULL;
}

/* Why a model reads no images. */
static int vision_refused(const mote_model *m, mote_error *err) {
    const mote_model *of = m->members ? m->members[0] : m;
    if (of->vision_refused)
        return fail(err, MOTE_EUNSUPPORTED, "this model reads no images: %s of its vision tower are not supported on a GPU", of->vision_refused);
    return fail(err, MOTE_EUNSUPPORTED, "this model reads no images: %s",
                !m->c.vision.depth ? "mote has no vision tower for it" : m->images < 0 ? "its vision tower was left out when it was opened" :
                of->remote         ? "its vision tower would be on another host" : "there is no vision tower in this checkpoint");
}

/* The features of one image; those who look on are the runner's and the callbacks'. */
static int vision_compute(mote_runner *r, vision_image image, const mote_callbacks *callbacks, mote_error *err) {
    mote_runner *of = vision_runner(r);
    vision_looker looks = {r, callbacks};
    image.user = &looks;
    image.between = vision_looks_on;
    if (!of) return vision_refused(r->m, err);
    if (!vision_reads(image.rows, image.columns))
        return fail(err, MOTE_EINVAL, "an image of %d x %d patches, expected even numbers, and together %d patches at most",
                    image.rows, image.columns, VISION_PATCHES_MAX);
    int code = prompt_enter(r, &r->prompts, NULL, err);
    if (code) return code;
    if (r->group) group_settle(r->group);
    code = of->backend->vision(of, &image, err);
    prompt_leave(r, &r->prompts);
    if (!code) report(callbacks, "reading an image", 1);
    return code;
}

/* The features of one image, [rows * columns / 4][hidden], from its patches, [rows * columns][VISION_PIXELS] in the order of
   layers/vision/weights.c, both in host memory. rows, columns: as vision_reads has them. The runner has memory for images of
   run_options.patches; for a larger one there is some for the time of the call, or MOTE_ENOMEM before any work. The runner is entered as for
   a prompt: one at a time, and between the tower's blocks, on the CPU every 50 ms, others compute. progress and cancel of the callbacks are
   called; MOTE_ECANCELLED: features are not what they should be. */
static inline int vision_features(mote_runner *r, const float *patches, int rows, int columns, float *features,
                                  const mote_callbacks *callbacks, mote_error *err) {
    const vision_image image = {.patches = patches, .rgb = NULL, .rows = rows, .columns = columns, .features = features,
                                .user = NULL, .between = NULL};
    return vision_compute(r, image, callbacks, err);
}

/* Whether vision_features_of_pixels is for this runner. */
static int vision_takes_pixels(mote_runner *r) {
    const mote_runner *of = vision_runner(r);
    return of && of->backend->takes_pixels;
}

/* The same bits from a picture's pixels, [rows * VISION_PATCH][columns * VISION_PATCH][3], an eighth of the bytes of its patches. */
static inline int vision_features_of_pixels(mote_runner *r, const unsigned char *rgb, int rows, int columns, float *features,
                                            const mote_callbacks *callbacks, mote_error *err) {
    const vision_image image = {.patches = NULL, .rgb = rgb, .rows = rows, .columns = columns, .features = features,
                                .user = NULL, .between = NULL};
    return vision_compute(r, image, callbacks, err);
}
