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

/* In pages of 2 MB where the system has them: decoding reads all of it, and asks for lines pages ahead, which are found faster. */
static char *cpu_arena(size_t size) {
    enum { PAGE = 2 << 20 };
    char *arena = (char *)(size < PAGE ? aligned_alloc(64, size) : aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE));
#ifdef MADV_HUGEPAGE
    if (arena && size >= PAGE) (void)madvise(arena, size, MADV_HUGEPAGE);
#endif
    return arena;
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
    .choose = cpu_choose, .available = cpu_available, .allocate = cpu_allocate, .release = cpu_release,
    .load = cpu_load, .scan = cpu_scan, .complete = NULL, .describe = NULL, .vision_refused = NULL, .kv = DTYPE_F32, .packs = 0};
