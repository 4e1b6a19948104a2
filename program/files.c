/* program/files.c: growable bytes, the content of a file or a stream, and the complaint when it cannot be read. It knows
   nothing of what the bytes mean. */

enum { TEXT_MAX = 64 << 20 };              /* bytes of a text that is read from a file, a pipe or a terminal */

typedef struct bytes { char *data; size_t size, capacity; } bytes;

static int grow(bytes *b, size_t capacity) {
    if (capacity <= b->capacity) return 0;
    if (capacity < 2 * b->capacity) capacity = 2 * b->capacity;
    char *data = realloc(b->data, capacity);
    if (!data) return complain(EXIT_FAILURE, "out of memory (%zu bytes)", capacity);
    b->data = data;
    b->capacity = capacity;
    return 0;
}

static int append(bytes *b, const char *data, size_t size) {
    if (grow(b, b->size + size + 1)) return EXIT_FAILURE;
    memcpy(b->data + b->size, data, size);
    b->size += size;
    b->data[b->size] = 0;
    return 0;
}

/* Complains of a file by errno. Ctrl-C also ends waiting for the other side of a FIFO. */
static int file_failure(const char *name) {
    if (errno == EINTR && interrupted) return EXIT_INTERRUPTED;
    return complain(EXIT_FAILURE, "%s: %s", name, strerror(errno));
}

static int is_regular(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

/* A stream to its end, but at most limit + 1 bytes: a pipe or a device may have no end. A zero byte that is not counted
   follows. */
static int read_some(FILE *in, const char *name, size_t limit, bytes *b) {
    char block[16384];
    size_t n;
    if (append(b, "", 0)) return EXIT_FAILURE;
    while (b->size <= limit) {
        n = limit + 1 - b->size < sizeof block ? limit + 1 - b->size : sizeof block;
        if ((n = fread(block, 1, n, in)) == 0) break;
        if (append(b, block, n)) return EXIT_FAILURE;
    }
    return ferror(in) ? file_failure(name) : 0;
}
