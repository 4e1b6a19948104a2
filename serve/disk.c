/* serve/disk.c: timelines in a folder, so that the next run of the server need not read them again. A file is a saved session,
   as mote_save_file writes it: the library refuses one of another checkpoint, and a damaged one; these are passed over with a
   notice.

   The folder may hold anything else. Only a regular file of this user that bears the name disk_path gives to the tokens that it
   holds counts as one of these; no other file is read in, counted, replaced or removed.

   A timeline is kept as it was before its last answer, at a snapshot: the next prompt has that answer without its thinking, and
   goes on from there. Files have a budget of their own; what has not been used for longest is removed first. */

enum { KEPT_LEAST = 32 };                  /* tokens of a timeline that is worth a file */
enum { SAY_SECONDS = 60 };                 /* between two lines on what goes wrong with the folder */

/* Complains of the folder, now and then: a problem with one file is one with the next, too. */
static void disk_say(server *s, const char *problem) {
    double now = clock_seconds();
    pthread_mutex_lock(&s->lock);
    int says = !s->disk_said || now >= s->disk_said + SAY_SECONDS;
    if (says) s->disk_said = now;
    pthread_mutex_unlock(&s->lock);
    if (says) show_format(stderr, "mote: %s\n", problem);
}

/* The name of a timeline's file: the folder, and FNV-1a of its tokens. */
static char *disk_path(const server *s, const int32_t *tokens, size_t count) {
    uint64_t hash = 0xcbf29ce484222325u;
    size_t capacity = strlen(s->disk) + 32;
    char *path = (char *)malloc(capacity);
    for (size_t i = 0; i < count * sizeof *tokens; i++) hash = (hash ^ ((const unsigned char *)tokens)[i]) * 0x100000001b3u;
    if (path) snprintf(path, capacity, "%s/%016llx.session", s->disk, (unsigned long long)hash);
    return path;
}

/* 1: a file of ours by its name: 16 hexadecimal digits, as disk_path writes them, and .session. */
static int is_kept_name(const char *name) {
    return strspn(name, "0123456789abcdef") == 16 && !strcmp(name + 16, ".session");
}

/* 1: a regular file of this user, and no link. */
static int is_own_file(const char *path, struct stat *status) {
    return !lstat(path, status) && S_ISREG(status->st_mode) && status->st_uid == geteuid();
}

/* Forgets a file; it stays where it is. */
static void disk_forget(server *s, swapped *e) {
    swapped **at = &s->swapped_out;
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    s->disk_used -= e->size;
    free(e->path);
    free(e->tokens);
    free(e);
}

static void disk_remove(server *s, swapped *e) {
    struct stat status;
    if (is_own_file(e->path, &status)) unlink(e->path);
    disk_forget(s, e);
}

/* Removes files that a longer one of the same timeline has replaced, and the oldest ones until the rest fits. */
static void disk_trim(server *s, const swapped *longest) {
    for (swapped *e = s->swapped_out, *next; e; e = next) {
        next = e->next;
        if (!e->path || e == longest || !longest || e->count > longest->count) continue;
        if (!memcmp(e->tokens, longest->tokens, e->count * sizeof *e->tokens)) disk_remove(s, e);
    }
    while (s->disk_used > s->disk_most) {
        swapped *oldest = NULL;
        for (swapped *e = s->swapped_out; e; e = e->next)
            if (e->path && (!oldest || e->used < oldest->used)) oldest = e;
        disk_remove(s, oldest);
    }
}

/* Notes that `path`, which is the callee's now, holds the session's timeline. 0: there is no memory. */
static int disk_note(server *s, const mote_session *session, char *path, uint64_t used) {
    size_t count;
    struct stat status;
    const int32_t *tokens = mote_timeline(session, &count);
    swapped *e = (swapped *)calloc(1, sizeof *e);
    if (e) e->tokens = (int32_t *)malloc(count * sizeof *tokens + 1);
    if (!e || !e->tokens || !is_own_file(path, &status)) {
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
    e->next = s->swapped_out;
    s->swapped_out = e;
    s->disk_used += e->size;
    disk_trim(s, e);
    pthread_mutex_unlock(&s->lock);
    return 1;
}

static swapped *disk_find(server *s, const char *path) {
    swapped *e = s->swapped_out;
    while (e && !(e->path && !strcmp(e->path, path))) e = e->next;
    return e;
}

/* 1: this timeline is in a file already, which counts as used now. */
static int disk_has(server *s, const char *path) {
    pthread_mutex_lock(&s->lock);
    swapped *e = disk_find(s, path);
    if (e) e->used = s->clock;
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

/* A file that cannot be read any more is not tried again. */
static void disk_lost(server *s, const char *path, const mote_error *error) {
    char problem[sizeof error->message + 16];
    snprintf(problem, sizeof problem, "passed over: %s", error->message);
    disk_say(s, problem);
    pthread_mutex_lock(&s->lock);
    swapped *e = disk_find(s, path);
    if (e) disk_forget(s, e);
    pthread_mutex_unlock(&s->lock);
}

/* Writes the session's timeline into a file; another thing in its place stays there. */
static int disk_save(const mote_session *session, const char *path, mote_error *error) {
    struct stat status;
    if (is_own_file(path, &status) || errno == ENOENT) return mote_save_file(session, path, error);
    return fail(error, MOTE_EIO, "%s: no file of ours, so nothing is kept there", path);
}

static int server_slot_go_back(server_slot *t, snapshot *p, mote_error *error);

/* Keeps the session's timeline up to its last snapshot, where the session is then. What cannot be written is said, and not
   kept. */
static void disk_keep(server_slot *t) {
    server *s = t->server;
    mote_error error = {0, ""};
    size_t count;
    if (!s->disk) return;
    pthread_mutex_lock(&s->lock);
    snapshot *last = t->past.count ? t->past.at[t->past.count - 1] : NULL;
    if (last) last->owners++;
    pthread_mutex_unlock(&s->lock);
    if (last) (void)server_slot_go_back(t, last, NULL);
    const int32_t *tokens = mote_timeline(t->session, &count);
    if (count < KEPT_LEAST) return;
    char *path = disk_path(s, tokens, count);
    if (!path || disk_has(s, path)) free(path);
    else if (!disk_save(t->session, path, &error)) disk_note(s, t->session, path, 0);
    else free(path);
    if (error.code) disk_say(s, error.message);
}

typedef struct kept { char *path; struct timespec when; } kept;

static int by_time(const void *a, const void *b) {
    const struct timespec *x = &((const kept *)a)->when, *y = &((const kept *)b)->when;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* The folder's files that may be ours, in the order of their last use. *others: entries that are not. */
static buf disk_list(const server *s, DIR *folder, int *others) {
    buf list = {NULL, 0, 0, 0};
    for (struct dirent *at; (at = readdir(folder)) != NULL;) {
        const size_t capacity = strlen(s->disk) + strlen(at->d_name) + 2;
        struct stat status;
        kept k;
        if (!strcmp(at->d_name, ".") || !strcmp(at->d_name, "..")) continue;
        k.path = is_kept_name(at->d_name) ? (char *)malloc(capacity) : NULL;
        if (k.path) snprintf(k.path, capacity, "%s/%s", s->disk, at->d_name);
        if (!k.path || !is_own_file(k.path, &status)) {
            free(k.path);
            ++*others;
            continue;
        }
        k.when = status.st_mtim;
        if (!buf_add(&list, &k, sizeof k)) free(k.path);
    }
    if (list.size) qsort(list.data, list.size / sizeof(kept), sizeof(kept), by_time);
    return list;
}

/* Reads a file that may be ours into the session. 1: it is, and has the name of what it holds. Else it is said why not. */
static int disk_load(const server *s, mote_session *session, const char *path) {
    mote_error error = {0, ""};
    size_t count;
    if (!mote_load_file(session, path, &error)) {
        const int32_t *tokens = mote_timeline(session, &count);
        char *name = disk_path(s, tokens, count);
        if (count < KEPT_LEAST || !name || strcmp(name, path))
            fail(&error, MOTE_EFORMAT, "%s: it has not the name of what it holds", path);
        free(name);
    }
    if (error.code) show_format(stderr, "mote: passed over: %s\n", error.message);
    return !error.code;
}

/* Looks at what earlier runs have kept, by the first session. Returns the exit code: the folder is made if it is not there. */
static int disk_open(server *s) {
    mote_session *session = s->slots[0].session;
    mote_error error;
    if (!s->disk) return 0;
    if (mkdir(s->disk, 0700) && errno != EEXIST) return complain(EXIT_FAILURE, "%s: %s", s->disk, strerror(errno));
    DIR *folder = opendir(s->disk);
    if (!folder) return complain(EXIT_FAILURE, "%s: %s", s->disk, strerror(errno));
    int others = 0;
    buf list = disk_list(s, folder, &others);
    closedir(folder);
    if (others) show_format(stderr, "mote: note: %s holds other things, too: they stay as they are\n", s->disk);
    for (size_t i = 0; i < list.size / sizeof(kept); i++) {
        char *path = ((const kept *)(const void *)list.data)[i].path;
        if (disk_load(s, session, path)) disk_note(s, session, path, ++s->clock);
        else free(path);
    }
    buf_free(&list);
    return mote_reset(session, &error) ? report(&error) : 0;
}
