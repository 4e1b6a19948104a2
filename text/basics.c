/* text/basics.c: errors, growable bytes, whole files, a hash. Every other file of the library may use it. It knows of
   engine.h only the codes and mote_error, and nothing of what the bytes mean.

   Functions that can fail return a MOTE_ code and fill a mote_error with one line for a person. Output that grows goes
   into a buf: additions are not checked one by one, since a failed allocation sticks in `failed` and is looked at once. */

/* Fills *err (when there is one) and returns code. Control characters, as in quoted content, become spaces. */
__attribute__((format(printf, 3, 4))) static int fail(mote_error *err, int code, const char *fmt, ...) {
    if (!err) return code;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, args);
    va_end(args);
    for (char *p = err->message; *p; p++) {
        if ((unsigned char)*p < 0x20) *p = ' ';
    }
    err->code = code;
    return code;
}

static int fail_memory(mote_error *err) {
    return fail(err, MOTE_ENOMEM, "out of memory");
}

typedef struct buf {
    char *data;
    size_t size, cap;
    int failed; /* an allocation failed: the content is incomplete and stays so */
} buf;

/* Appends n bytes (left for the caller to fill when bytes is NULL). Returns where they lie, NULL after a failure. */
static void *buf_add(buf *b, const void *bytes, size_t n) {
    if (b->failed || n > SIZE_MAX / 4 || b->size > SIZE_MAX / 4) {
        b->failed = 1;
        return NULL;
    }
    if (!b->data || b->size + n > b->cap) {
        size_t cap = b->cap < 32 ? 64 : b->cap * 2;
        if (cap < b->size + n) cap = b->size + n;
        char *data = (char *)realloc(b->data, cap);
        if (!data) {
            b->failed = 1;
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    char *at = b->data + b->size;
    if (bytes && n) memcpy(at, bytes, n);
    b->size += n;
    return at;
}

static void buf_text(buf *b, const char *zero_terminated) {
    buf_add(b, zero_terminated, strlen(zero_terminated));
}

static void buf_free(buf *b) {
    free(b->data);
    memset(b, 0, sizeof *b);
}

/* dir/name into out; an empty or NULL dir gives name alone. MOTE_EINVAL when it does not fit. */
static int join_path(char *out, size_t cap, const char *dir, const char *name) {
    size_t n = dir ? strlen(dir) : 0;
    const char *slash = n && dir[n - 1] != '/' ? "/" : "";
    int size = snprintf(out, cap, "%s%s%s", dir ? dir : "", slash, name);
    return size >= 0 && (size_t)size < cap ? MOTE_OK : MOTE_EINVAL;
}

#define FILE_LIMIT ((size_t)256 << 20) /* bytes: more than any JSON file of a checkpoint, so that one read is harmless */

/* Opens a file to be read, which must be a regular one: a FIFO is not waited for, a device is not touched. On success *fd is
   the caller's to close. */
static int open_regular(const char *path, int *fd, uint64_t *size, mote_error *err) {
    struct stat info;
    *size = 0;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
    int there = !fstat(*fd, &info);
    if (there) *size = (uint64_t)info.st_size;
    if (there && S_ISREG(info.st_mode)) return MOTE_OK;
    close(*fd);
    *fd = -1;
    return fail(err, MOTE_EIO, "%s: not a regular file", path);
}

static int read_descriptor(int fd, size_t size, const char *path, buf *out, mote_error *err) {
    size_t have = 0;
    if (size > FILE_LIMIT) return fail(err, MOTE_EFORMAT, "%s: %zu bytes, limit %zu", path, size, FILE_LIMIT);
    out->size = 0;
    char *data = (char *)buf_add(out, NULL, size + 1);
    if (!data) return fail_memory(err);
    while (have < size) {
        ssize_t got = read(fd, data + have, size - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
        if (got == 0) break;
        have += (size_t)got;
    }
    data[have] = 0;
    out->size = have;
    return MOTE_OK;
}

/* Reads the whole regular file dir/name into out (emptied first). A NUL follows the content, not counted in size. */
static int read_file(const char *dir, const char *name, buf *out, mote_error *err) {
    char path[4096];
    int fd;
    uint64_t size;
    if (join_path(path, sizeof path, dir, name)) return fail(err, MOTE_EINVAL, "path too long: %.200s...", path);
    int code = open_regular(path, &fd, &size, err);
    if (code) return code;
    code = read_descriptor(fd, (size_t)size, path, out, err);
    close(fd);
    return code;
}

/* The FNV-1a hash of n bytes, continued from `hash`; it starts as FNV_START. */
static uint64_t fnv1a(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001B3u;
    return hash;
}

static const uint64_t FNV_START = 0xCBF29CE484222325u;

/* Its well-mixed bits: those in the middle hardly depend on the last byte. */
static uint32_t fold(uint64_t hash) {
    return (uint32_t)(hash ^ hash >> 32);
}

/* Does a name match a pattern whose stars stand for any characters? */
static int matches_stars(const char *pattern, const char *name) {
    const char *star = NULL, *again = name;
    while (*name) {
        if (*pattern == '*') star = pattern++, again = name;
        else if (*pattern == *name) pattern++, name++;
        else if (star) pattern = star + 1, name = ++again;
        else return 0;
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}
