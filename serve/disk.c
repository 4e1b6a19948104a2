// serve/disk.c: timelines in a folder, so that the next run of the server need not read them again. A file is a saved session, as
// mote_save_file writes it: the library refuses one of another checkpoint, and a damaged one; these are passed over with a notice.
//
// A timeline is kept as it was before its last answer, at a snapshot: the next prompt has that answer without its thinking, and
// goes on from there. Files have a budget of their own; what has not been used for longest is removed first.

enum { KEPT_LEAST = 32 };                  // tokens of a timeline that is worth a file

// The name of a timeline's file: the folder, and FNV-1a of its tokens.
static char *disk_path(const server *s, const int32_t *tokens, size_t count) {
    uint64_t hash = 0xcbf29ce484222325u;
    size_t room = strlen(s->disk) + 32;
    char *path = (char *)malloc(room);
    for (size_t i = 0; i < count * sizeof *tokens; i++) hash = (hash ^ ((const unsigned char *)tokens)[i]) * 0x100000001b3u;
    if (path) snprintf(path, room, "%s/%016llx.session", s->disk, (unsigned long long)hash);
    return path;
}

// Removes a file and what is known of it.
static void disk_remove(server *s, shelved *e) {
    shelved **at = &s->shelf;
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    unlink(e->path);
    s->disk_used -= e->size;
    free(e->path);
    free(e->tokens);
    free(e);
}

// Removes files that a longer one of the same timeline has replaced, and the oldest ones until the rest fits.
static void disk_trim(server *s, const shelved *longest) {
    for (shelved *e = s->shelf, *next; e; e = next) {
        next = e->next;
        if (!e->path || e == longest || !longest || e->count > longest->count) continue;
        if (!memcmp(e->tokens, longest->tokens, e->count * sizeof *e->tokens)) disk_remove(s, e);
    }
    while (s->disk_used > s->disk_most) {
        shelved *oldest = NULL;
        for (shelved *e = s->shelf; e; e = e->next)
            if (e->path && (!oldest || e->used < oldest->used)) oldest = e;
        disk_remove(s, oldest);
    }
}

// Notes that `path`, which is the callee's now, holds the session's timeline. 0: there is no memory.
static int disk_note(server *s, const mote_session *session, char *path, uint64_t used) {
    size_t count;
    struct stat status;
    const int32_t *tokens = mote_tokens(session, &count);
    shelved *e = (shelved *)calloc(1, sizeof *e);
    if (e) e->tokens = (int32_t *)malloc(count * sizeof *tokens + 1);
    if (!e || !e->tokens || stat(path, &status)) {
        free(path);
        free(e ? e->tokens : NULL);
        free(e);
        return 0;
    }
    memcpy(e->tokens, tokens, count * sizeof *tokens);
    e->count = e->asked = count;
    e->path = path;
    e->size = (size_t)status.st_size;
    pthread_mutex_lock(&s->lock);
    e->used = used ? used : s->clock;
    e->next = s->shelf;
    s->shelf = e;
    s->disk_used += e->size;
    disk_trim(s, e);
    pthread_mutex_unlock(&s->lock);
    return 1;
}

// Is this timeline in a file already?
static int disk_has(server *s, const char *path) {
    int has = 0;
    pthread_mutex_lock(&s->lock);
    for (shelved *e = s->shelf; e && !has; e = e->next) {
        has = e->path && !strcmp(e->path, path);
        if (has) e->used = s->clock;
    }
    pthread_mutex_unlock(&s->lock);
    return has;
}

// Keeps the session's timeline up to its last snapshot, where the session is then. What cannot be written is said, and not kept.
static void disk_keep(slot *t) {
    server *s = t->server;
    mote_error error = {0, ""};
    size_t count;
    if (!s->disk) return;
    pthread_mutex_lock(&s->lock);
    if (t->past.count) mote_rewind(t->session, t->past.at[t->past.count - 1]->checkpoint, NULL);
    pthread_mutex_unlock(&s->lock);
    const int32_t *tokens = mote_tokens(t->session, &count);
    if (count < KEPT_LEAST) return;
    char *path = disk_path(s, tokens, count);
    if (!path || disk_has(s, path)) free(path);
    else if (!mote_save_file(t->session, path, &error)) disk_note(s, t->session, path, 0);
    else free(path);
    if (error.code) show_format(stderr, "mote: %s\n", error.message);
}

typedef struct kept { char *path; struct timespec when; } kept;

static int by_time(const void *a, const void *b) {
    const struct timespec *x = &((const kept *)a)->when, *y = &((const kept *)b)->when;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

// The folder's saved sessions, in the order of their last use.
static buf disk_list(const server *s, DIR *folder) {
    buf list = {NULL, 0, 0, 0};
    for (struct dirent *at; (at = readdir(folder)) != NULL;) {
        const size_t n = strlen(at->d_name), room = strlen(s->disk) + n + 2;
        struct stat status;
        kept k;
        if (n <= 8 || strcmp(at->d_name + n - 8, ".session")) continue;
        k.path = (char *)malloc(room);
        if (k.path) snprintf(k.path, room, "%s/%s", s->disk, at->d_name);
        if (!k.path || stat(k.path, &status) || !S_ISREG(status.st_mode)) {
            free(k.path);
            continue;
        }
        k.when = status.st_mtim;
        if (!buf_add(&list, &k, sizeof k)) free(k.path);
    }
    if (list.size) qsort(list.data, list.size / sizeof(kept), sizeof(kept), by_time);
    return list;
}

// Looks at what earlier runs have kept, by the first session. Returns the exit code: the folder is made if it is not there.
static int disk_open(server *s) {
    mote_session *session = s->slots[0].session;
    mote_error error;
    if (!s->disk) return 0;
    if (mkdir(s->disk, 0700) && errno != EEXIST) return complain(EXIT_FAILURE, "%s: %s", s->disk, strerror(errno));
    DIR *folder = opendir(s->disk);
    if (!folder) return complain(EXIT_FAILURE, "%s: %s", s->disk, strerror(errno));
    buf list = disk_list(s, folder);
    closedir(folder);
    for (size_t i = 0; i < list.size / sizeof(kept); i++) {
        char *path = ((const kept *)(const void *)list.data)[i].path;
        if (!mote_load_file(session, path, &error)) {
            disk_note(s, session, path, ++s->clock);
        } else {
            show_format(stderr, "mote: passed over: %s\n", error.message);
            free(path);
        }
    }
    buf_free(&list);
    return mote_reset(session, &error) ? report(&error) : 0;
}
