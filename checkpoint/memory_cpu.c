/* checkpoint/memory_cpu.c: weights in the system's memory, for the CPU. */

/* Bytes of memory the system could give now, 0 when it does not say. */
static uint64_t memory_available(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    if (f) fclose(f);
    return (uint64_t)kib << 10;
}

/* A number of a file of the group of processes at `path`; 0: there is none, or it is "max". key: the line's beginning; "": the first line. */
static uint64_t group_number(const char *path, const char *file, const char *key) {
    char name[PATH_MAX], line[128];
    unsigned long long value = 0;
    int found = 0;
    snprintf(name, sizeof name, "/sys/fs/cgroup%.*s/%s", PATH_MAX / 2, path, file);
    FILE *f = fopen(name, "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = !strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), "%llu", &value) == 1;
    if (f) fclose(f);
    return found ? (uint64_t)value : 0;
}

/* Bytes of memory that this process may still take: what the system could give, and what the limits of its groups (cgroup v2, as those of
   containers) leave; 0: neither says. Beyond such a limit the system ends processes. */
static uint64_t host_memory_left(void) {
    char path[PATH_MAX / 2] = "", line[PATH_MAX / 2];
    uint64_t left = memory_available();
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "0::/", 4)) snprintf(path, sizeof path, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (f) fclose(f);
    for (char *end = path + strlen(path);; end = strrchr(path, '/')) {
        if (!end) break;
        *end = 0;
        const uint64_t most = group_number(path, "memory.max", "");
        const uint64_t used = group_number(path, "memory.current", ""), files = group_number(path, "memory.stat", "inactive_file ");
        const uint64_t held = used > files ? used - files : 0, rest = most > held ? most - held : 1;
        if (most && (!left || rest < left)) left = rest;
        if (end == path) break;
    }
    return left;
}

static int cpu_choose(mote_model *m, int number, int *none, mote_error *err) {
    (void)number;
    (void)err;
    *none = 0;
    m->device.gpu = -1;
    snprintf(m->device.name, sizeof m->device.name, "cpu");
    return MOTE_OK;
}

static uint64_t cpu_available(const mote_model *m) {
    (void)m;
    return memory_available();
}

enum { HOST_PAGE = 2 << 20 };    /* bytes of a large page */

static size_t host_pages_size(size_t size) {
    return (size + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
}

/* Memory in large pages, where the system has them. */
static char *host_pages(size_t size) {
    char *at = (char *)aligned_alloc(HOST_PAGE, host_pages_size(size));
#ifdef MADV_HUGEPAGE
    if (at) (void)madvise(at, host_pages_size(size), MADV_HUGEPAGE);
#endif
    return at;
}

/* Decoding reads all of it, and asks for lines pages ahead, which are found faster in large ones. */
static char *cpu_arena(size_t size) {
    return size < HOST_PAGE ? (char *)aligned_alloc(64, size) : host_pages(size);
}

static int cpu_allocate(mote_model *m, const char *dir, mote_error *err) {
    int code = arena_fits(m, dir, "", "", err);
    if (code) return code;
    m->arena = cpu_arena(m->arena_size);
    if (m->arena) return MOTE_OK;
    return fail(err, MOTE_ENOMEM, "%s: the weights need %.1f GB, the system refused them", dir, (double)m->arena_size * 1e-9);
}

static void cpu_release(mote_model *m) {
    free(m->arena);
}

/* What is not converted is checked in pieces, while they are in the processor's cache. */
static int load_item_bytes(mote_model *m, const checkpoint *files, const load_item *item, mote_error *err) {
    const size_t piece = 256 << 10;
    const shard *s = &files->shards[item->from->file];
    char *to = m->arena + item->at;
    const size_t held = item_held(item);
    const int converts = item_converts(item);
    uint64_t sample = 0;
    memset(to + held, 0, item_capacity(item) - held);                     /* up to the next item */
    int code = converts ? load_converted(m, files, item, to, &sample, err) : MOTE_OK;
    for (size_t at = 0, n; !converts && at < item->size && !code; at += n) {
        n = item->size - at < piece ? (size_t)item->size - at : piece;
        code = read_at(s->fd, to + at, n, item->from->begin + item->offset + at, s->path, err);
        if (!code) code = check_numbers(files, item, to + at, at, n, err);
        if (!code) sample += sample_bytes(files, item->from, item->offset, item->size, to + at, at, n);
    }
    if (!item->again) m->fingerprint += sample;
    return code;
}

static int cpu_load(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    load_item *items = (load_item *)(void *)b->items.data;
    size_t n = b->items.size / sizeof *items;
    uint64_t done = 0;
    for (size_t i = 0; i < n; i++) {
        if (cancelled(callbacks)) return fail(err, MOTE_ECANCELLED, "%s: loading was cancelled", b->files->dir);
        int code = load_item_bytes(b->m, b->files, &items[i], err);
        if (code) return code;
        done += item_capacity(&items[i]);
        if (i % 64 == 0 || i + 1 == n) report(callbacks, "loading weights", (double)done / ((double)b->arena + 1));
    }
    return MOTE_OK;
}

SIMD static unsigned scan_weight_ranges(enum format f, int component, const void *words, size_t n) {
    unsigned seen = 0;
    for (size_t i = 0; i < n; i++) seen |= format_inspect(f, component, words, i);
    return seen;
}

static int cpu_scan(const mote_model *m, const load_item *item, unsigned *seen, mote_error *err) {
    (void)err;
    *seen = scan_weight_ranges(item->of.format, item->component, m->arena + item->at, item_words(item));
    return MOTE_OK;
}

/* Kernels of the CPU read weights as they are stored: nothing is to be completed. */
static const weight_memory cpu_memory = {
    .choose = cpu_choose, .available = cpu_available, .allocate = cpu_allocate, .pin = NULL, .release = cpu_release,
    .load = cpu_load, .scan = cpu_scan, .complete = NULL, .works = NULL, .describe = NULL, .vision_refused = NULL, .kv = DTYPE_F32, .packs = 0};
