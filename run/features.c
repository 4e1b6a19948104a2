/* run/features.c: what a runner's vision tower has made of images lately, by the hash of what it saw: an image that is read again, as when another
   session has the same history, costs no tower. Knows neither sessions nor pictures. */

enum { FEATURES_MOST = 256 << 20 };        /* bytes that a runner keeps; the image that is in use may be more */

/* [rows][hidden] of an image, shared by who uses it. */
typedef struct features {
    int holders;                 /* atomic */
    unsigned char hash[SHA256_SIZE];
    size_t bytes;
    float *rows;
    struct features *next;       /* of the runner's, the one used last first */
} features;

/* NULL: there is no memory. */
static features *features_new(const unsigned char hash[SHA256_SIZE], size_t bytes) {
    features *f = (features *)calloc(1, sizeof *f);
    float *rows = f ? (float *)malloc(bytes) : NULL;
    if (!rows) {
        free(f);
        return NULL;
    }
    f->holders = 1;
    memcpy(f->hash, hash, sizeof f->hash);
    f->bytes = bytes;
    f->rows = rows;
    return f;
}

static void features_drop(features *f) {
    if (!f || __atomic_sub_fetch(&f->holders, 1, __ATOMIC_ACQ_REL)) return;
    free(f->rows);
    free(f);
}

/* Those of a hash, to be dropped by the caller; NULL: the runner has them not. */
static features *features_find(mote_runner *r, const unsigned char hash[SHA256_SIZE]) {
    pthread_mutex_lock(&r->lock);
    features **at = &r->features;
    while (*at && memcmp((*at)->hash, hash, sizeof (*at)->hash)) at = &(*at)->next;
    features *f = *at;
    if (f) {
        *at = f->next;
        f->next = r->features;
        r->features = f;
        __atomic_add_fetch(&f->holders, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&r->lock);
    return f;
}

/* The runner remembers them, and forgets those that were not used for longest. Two sessions may bring the same. */
static void features_keep(mote_runner *r, features *f) {
    features *gone = NULL;
    size_t used = 0;
    pthread_mutex_lock(&r->lock);
    __atomic_add_fetch(&f->holders, 1, __ATOMIC_RELAXED);
    f->next = r->features;
    r->features = f;
    for (features **at = &f->next; *at;) {
        features *old = *at;
        const int same = !memcmp(old->hash, f->hash, sizeof f->hash);
        used += same ? 0 : old->bytes;
        if (!same && used + f->bytes <= FEATURES_MOST) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        old->next = gone;
        gone = old;
    }
    pthread_mutex_unlock(&r->lock);
    for (features *next; gone; gone = next) next = gone->next, features_drop(gone);
}

/* Nobody uses the runner any more. */
static void features_forget(mote_runner *r) {
    for (features *f = r->features, *next; f; f = next) next = f->next, features_drop(f);
    r->features = NULL;
}
