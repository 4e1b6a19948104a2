/* checkpoint/load.c: reads weights into the arena, checks their values, takes the fingerprint. Knows items, not layers.

   All weights lie in one block, the arena, in the memory of the device that computes. The list is sorted by file and
   offset and read with pread: no mapping, so that a file that changes or shrinks meanwhile is an error and not a signal.
   For a GPU a few threads read pieces of the files into pinned buffers, those not in the page cache past it where the file
   system lets them, and from there the pieces are copied while the next ones are read. */

static int by_place(const void *a, const void *b) {
    const load_item *x = (const load_item *)a, *y = (const load_item *)b;
    uint64_t i = x->from->begin + x->offset, j = y->from->begin + y->offset;
    if (x->from->file != y->from->file) return x->from->file < y->from->file ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* What bytes [at, at + n) of an item, which is `size` bytes of a tensor from `offset` on, add to the fingerprint, so that a
   session saved with one checkpoint is refused by another. A sample, to be cheap: all bytes of an item of up to 4 KiB, else
   the first 64 of each 64th part of it. A sum over bytes, each mixed with its tensor's name and its place there: so it does
   not depend on how tensors are spread over files, nor on the order in which threads load them. */
static uint64_t sample_bytes(const checkpoint *files, const tensor *of, uint64_t offset, uint64_t size, const void *bytes,
                             size_t at, size_t n) {
    enum { SAMPLE = 64, SAMPLES = 64 };
    const char *name = table_name(&files->table, of);
    uint64_t seed = fnv1a(FNV_START, name, strlen(name)), sum = 0;
    size_t period = max_size((size_t)size / SAMPLES, SAMPLE), end = at + n;
    for (size_t p = at; p < end; p++) {
        if (p % period >= SAMPLE) p += period - p % period;
        if (p >= end) break;
        uint64_t z = seed + ((offset + p) << 8 | ((const uint8_t *)bytes)[p - at]);
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;                        /* splitmix64 */
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        sum += z ^ z >> 31;
    }
    return sum;
}

/* Checks `n` bytes of an item's numbers in memory, those from `at` on. What a tensor holds as plain numbers of an MTP layer is check_mtp's:
   the model runs without. */
static int check_numbers(const checkpoint *files, const load_item *item, const void *bytes, size_t at, size_t n,
                         mote_error *err) {
    const component *p = item_component(item);
    size_t numbers = n * 8 / (size_t)p->bits;
    char value[32];
    if (item->module == MODULE_MTP && (item->component == VECTOR || item->of.format <= FORMAT_BF16)) return MOTE_OK;
    size_t wrong = p->find_wrong ? p->find_wrong(bytes, numbers, value) : numbers;
    if (wrong == numbers) return MOTE_OK;
    return fail(err, MOTE_EFORMAT, "%s: tensor %s: %s %zu is %s, expected %s", files->shards[item->from->file].path,
                table_name(&files->table, item->from), p->number, at * 8 / (size_t)p->bits + wrong, value, p->allowed);
}

/* Reads the tensors that an item is converted from: of each the share of its entry of a stack, of its own what it names. They are
   c->part's to free. */
static int load_parts(const checkpoint *files, const load_item *item, conversion *c, uint64_t *sample, mote_error *err) {
    int code = MOTE_OK;
    for (int k = 0; k < MAX_PARTS && !code; k++) {
        const tensor *t = item->part[k];
        if (!t) continue;
        const uint64_t share = item->slice.entries ? t->size / (uint64_t)item->slice.entries : t->size;
        const uint64_t size = t == item->from ? item->size : share;
        const uint64_t offset = t == item->from ? item->offset : share * (uint64_t)item->slice.entry;
        const shard *s = &files->shards[t->file];
        void *bytes = malloc((size_t)size + 1);
        c->part[k] = bytes;
        c->type[k] = t->type;
        code = bytes ? read_at(s->fd, bytes, (size_t)size, t->begin + offset, s->path, err) : fail_memory(err);
        if (!code) *sample += sample_bytes(files, t, offset, size, bytes, 0, (size_t)size);
    }
    return code;
}

/* Reads the component that is stored, of which an item is a slice, and adds to the fingerprint's sample. */
static int load_stored(const mote_model *m, const checkpoint *files, const load_item *item, void *to, uint64_t *sample,
                       mote_error *err) {
    const component *p = item_component(item);
    conversion c;
    memset(&c, 0, sizeof c);
    c.w = &item->stored;
    c.rows = component_rows(p, &item->stored);
    c.cols = component_cols(p, &item->stored);
    c.zeros_stored = m->c.zeros_stored;
    c.asymmetric = m->c.asymmetric;
    const size_t size = (size_t)c.rows * component_bytes(p, c.cols);
    int code = load_parts(files, item, &c, sample, err), wrong = -1;
    if (!code && item->source->convert) wrong = item->source->convert(&c, to);
    else if (!code) memcpy(to, c.part[item->source->part], size);
    for (int k = 0; k < MAX_PARTS; k++) free((void *)(uintptr_t)c.part[k]);
    if (wrong >= 0)
        return fail(err, MOTE_EUNSUPPORTED, "%s: tensor %s: %s", files->shards[item->part[wrong]->file].path,
                    table_name(&files->table, item->part[wrong]), c.why);
    return code ? code : check_numbers(files, item, to, 0, size, err);
}

/* The item's numbers of all that are stored. */
static void load_picked(const load_item *item, const char *all, char *to) {
    const component *p = item_component(item);
    const matrix *w = &item->of, *stored = &item->stored;
    const int rows = p->rows ? p->rows : w->block_rows, stored_rows = p->rows ? p->rows : stored->block_rows;  /* of a number */
    const int col = item->slice.col / (p->cols ? p->cols : stored->block_cols);
    const size_t row = component_bytes(p, item->cols), stored_row = component_bytes(p, component_cols(p, stored));
    for (int i = 0; i < item->rows && !item->slice.transposed; i++) {
        const size_t from = (size_t)(runs_from(&item->slice.runs, i * rows) / stored_rows);
        memcpy(to + (size_t)i * row, all + from * stored_row + component_bytes(p, col), row);
    }
}

/* The same of plain numbers that are stored as [cols][rows]. */
static void load_transposed(const load_item *item, const char *all, char *to) {
    const size_t size = component_bytes(item_component(item), 1), stored_row = size * (size_t)item->stored.rows;
    for (int i = 0; i < item->rows && item->slice.transposed; i++) {
        const char *from = all + size * (size_t)runs_from(&item->slice.runs, i) + stored_row * (size_t)item->slice.col;
        for (int j = 0; j < item->cols; j++, from += stored_row, to += size) memcpy(to, from, size);
    }
}

/* Reads an item that is a slice of a stored component, and adds to the fingerprint's sample. */
static int load_slice(const mote_model *m, const checkpoint *files, const load_item *item, void *to, uint64_t *sample,
                      mote_error *err) {
    const component *p = item_component(item);
    if (!slice_picks(&item->slice)) return load_stored(m, files, item, to, sample, err);
    char *all = (char *)malloc((size_t)component_rows(p, &item->stored) * component_bytes(p, component_cols(p, &item->stored)) + 1);
    const int code = all ? load_stored(m, files, item, all, sample, err) : fail_memory(err);
    if (!code) load_picked(item, all, (char *)to);
    if (!code) load_transposed(item, all, (char *)to);
    free(all);
    return code;
}

/* Reads an item that is not in a file as it will lie in memory, and adds to the fingerprint's sample. */
static int load_converted(const mote_model *m, const checkpoint *files, const load_item *item, void *to, uint64_t *sample,
                          mote_error *err) {
    if (!item_quantises(item)) return load_slice(m, files, item, to, sample, err);
    load_item plain = *item;                                   /* its weights as they are stored */
    conversion c;
    plain.of.format = item->stored.format;
    plain.component = CODES;
    plain.source = &tensor_encodings[item->stored.format]->components[CODES];
    plain.rows = item->of.rows;
    plain.cols = item->of.cols;
    memset(&c, 0, sizeof c);
    c.w = &item->of;
    c.rows = item->rows;
    c.cols = item->cols;
    void *weights = malloc(item_held(&plain) + 1);
    int code = weights ? load_slice(m, files, &plain, weights, sample, err) : fail_memory(err);
    c.part[0] = weights;
    c.type[0] = item->from->type;
    if (!code) (void)item->source->convert(&c, to);
    free(weights);
    return code ? code : check_numbers(files, item, to, 0, item_held(item), err);
}
