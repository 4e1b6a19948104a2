/* images/picture.c: a picture in memory, which sizes one may have, and the size at which a vision tower sees it. The room images/ makes of
   bytes what a tower reads; it knows files' formats and pixels, and nothing of models, tokens or requests.

   Whatever a file says of itself is compared with the limits here before memory is taken for it. */

enum {
    PICTURE_BYTES_MOST = 64 << 20,         /* of a file */
    PICTURE_SIDE_MOST = 32768,
    PICTURE_PIXELS_MOST = 1 << 26,
    PICTURE_RATIO_MOST = 200               /* of the longer side to the shorter one */
};

/* height rows of width RGB bytes, upright, where it was transparent over white. Owned: picture_free. */
typedef struct picture {
    int width, height;
    unsigned char *rgb;
} picture;

/* Also of zeros, and leaves zeros. */
static void picture_free(picture *p) {
    free(p->rgb);
    memset(p, 0, sizeof *p);
}

static size_t picture_bytes(const picture *p) {
    return (size_t)p->width * (size_t)p->height * 3;
}

/* Are sides that somebody gave within the limits? MOTE_EFORMAT: without pixels; MOTE_EUNSUPPORTED: too large, or too long. */
static int picture_check(int64_t width, int64_t height, mote_error *err) {
    const long long w = width, h = height;
    if (w < 1 || h < 1) return fail(err, MOTE_EFORMAT, "%lld x %lld pixels: nothing to see", w, h);
    if (w > PICTURE_SIDE_MOST || h > PICTURE_SIDE_MOST)
        return fail(err, MOTE_EUNSUPPORTED, "%lld x %lld pixels: at most %d a side are read", w, h, PICTURE_SIDE_MOST);
    if (w * h > PICTURE_PIXELS_MOST)
        return fail(err, MOTE_EUNSUPPORTED, "%lld x %lld pixels: at most %d are read", w, h, PICTURE_PIXELS_MOST);
    if (w > PICTURE_RATIO_MOST * h || h > PICTURE_RATIO_MOST * w)
        return fail(err, MOTE_EUNSUPPORTED, "%lld x %lld pixels: one side is more than %d times the other", w, h, PICTURE_RATIO_MOST);
    return MOTE_OK;
}

/* A picture of this size, its pixels not set. to: to be freed by the caller after MOTE_OK alone. */
static int picture_new(int width, int height, picture *to, mote_error *err) {
    to->width = width;
    to->height = height;
    to->rgb = (unsigned char *)malloc(picture_bytes(to));
    return to->rgb ? MOTE_OK : fail_memory(err);
}

/* What a checkpoint's processor makes of sizes. */
typedef struct picture_limits {
    int patch, merge;                      /* pixels a side of a patch, patches a side of what becomes one token */
    int64_t least, most;                   /* pixels of a picture that the tower sees */
} picture_limits;

/* The size at which the tower sees a picture: sides that are multiples of patch * merge, each nearly in proportion, of `least` to `most`
   pixels. These are transformers' smart_resize and its order of operations: a half is rounded to even, and a picture so thin that a side is
   one token may have more pixels than `most`. */
static int picture_fit(const picture_limits *limits, int width, int height, int *fit_width, int *fit_height, mote_error *err) {
    const int code = picture_check(width, height, err);
    if (code) return code;
    const double f = limits->patch * limits->merge, w = width, h = height;
    const double least = (double)limits->least, most = (double)limits->most;
    double W = nearbyint(w / f) * f, H = nearbyint(h / f) * f;
    if (W * H > most) {
        const double reduction = sqrt(h * w / most);
        H = fmax(f, floor(h / reduction / f) * f);
        W = fmax(f, floor(w / reduction / f) * f);
    } else if (W * H < least) {
        const double enlargement = sqrt(least / (h * w));
        H = ceil(h * enlargement / f) * f;
        W = ceil(w * enlargement / f) * f;
    }
    *fit_width = (int)W;
    *fit_height = (int)H;
    return MOTE_OK;
}
