/* checkpoint/safetensors.c: the container format. Knows files and JSON, and nothing of models.

   A file is N (8 bytes, little endian), a JSON header of N bytes, and the data. The header maps a tensor's name to
   {"dtype", "shape", "data_offsets": [begin, end)}. One rule makes the data trustworthy: sorted by offset the ranges must
   follow each other without hole or overlap from 0 to the end of the file, and each must have the size its shape says.
   Stricter than the reference reader in this: no name twice, no empty name, no NUL in a name, infos are objects. */

enum { MAX_HEADER = 100000000, MAX_DIMS = 5 };

typedef struct container_type { const char *name; int bits; } container_type;

enum { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_FP8 };           /* those mote computes with, first in the table */

static const container_type container_types[] = {
    {"F32", 32},        {"F16", 16},        {"BF16", 16}, {"F8_E4M3", 8}, {"BOOL", 8},    {"F4", 4},
    {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"U8", 8},    {"I8", 8},      {"F8_E5M2", 8}, {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},  {"U16", 16},    {"I32", 32},    {"U32", 32},
    {"C64", 64},        {"F64", 64},        {"I64", 64},  {"U64", 64}};

enum { TYPE_COUNT = sizeof container_types / sizeof *container_types };

typedef struct tensor {
    size_t name;                 /* where its zero-terminated name starts in the table's names */
    int file;                    /* number of the shard */
    int type;                    /* index into container_types; -1: named by the index, not seen yet */
    int dims;
    uint64_t shape[MAX_DIMS];    /* the first ones; no tensor mote uses has more */
    uint64_t begin, size;        /* bytes, begin from the start of the file */
    int used;                    /* bound to a weight, or known to be left out */
} tensor;

typedef struct table_slot { uint32_t hash, number; } table_slot;     /* of a name; number 0: free, else tensor number + 1 */

/* All tensors of a checkpoint, found by name through a hash table with open addressing. */
typedef struct tensor_table {
    buf names, tensors;          /* bytes; struct tensor */
    int describes;               /* weights are not wanted: a file may end with its header */
    int without_data;            /* one does */
    table_slot *slots;
    size_t slot_count;           /* a power of two */
} tensor_table;

static size_t table_count(const tensor_table *t) {
    return t->tensors.size / sizeof(tensor);
}

static tensor *table_at(const tensor_table *t, size_t i) {
    return (tensor *)(void *)t->tensors.data + i;
}

static const char *table_name(const tensor_table *t, const tensor *of) {
    return t->names.data + of->name;
}

static void table_free(tensor_table *t) {
    buf_free(&t->names);
    buf_free(&t->tensors);
    free(t->slots);
    memset(t, 0, sizeof *t);
}

/* FNV-1a of eight bytes at a time: a large checkpoint's names are hashed some millions of times. */
static uint32_t table_hash(const char *name) {
    size_t n = strlen(name);
    uint64_t hash = FNV_START, word;
    for (; n >= sizeof word; n -= sizeof word, name += sizeof word) {
        memcpy(&word, name, sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return fold(fnv1a(hash, name, n));
}

/* The slot that holds `name`, or the free one where it belongs. */
static table_slot *table_at_name(const tensor_table *t, const char *name, uint32_t hash) {
    size_t at = hash & (t->slot_count - 1);
    while (t->slots[at].number &&
           (t->slots[at].hash != hash || strcmp(table_name(t, table_at(t, t->slots[at].number - 1)), name)))
        at = (at + 1) & (t->slot_count - 1);
    return &t->slots[at];
}

static tensor *table_find(const tensor_table *t, const char *name) {
    const table_slot *slot = t->slot_count ? table_at_name(t, name, table_hash(name)) : NULL;
    return slot && slot->number ? table_at(t, slot->number - 1) : NULL;
}

static int table_grow(tensor_table *t) {
    const size_t had = t->slot_count, n = had ? had * 2 : 1024;
    table_slot *old = t->slots, *slots = (table_slot *)calloc(n, sizeof *slots);
    if (!slots) return 0;
    for (size_t i = 0; i < had; i++) {
        size_t at = old[i].hash & (n - 1);
        while (old[i].number && slots[at].number) at = (at + 1) & (n - 1);
        if (old[i].number) slots[at] = old[i];
    }
    free(old);
    t->slots = slots;
    t->slot_count = n;
    return 1;
}

/* Adds a tensor whose name was the last thing appended to t->names (zero included), or finds the one of that name and
   takes the name back. NULL: no memory. */
static tensor *table_add(tensor_table *t, size_t name, int *found) {
    if (t->names.failed || ((table_count(t) + 1) * 2 > t->slot_count && !table_grow(t))) return NULL;
    const uint32_t hash = table_hash(t->names.data + name);
    table_slot *slot = table_at_name(t, t->names.data + name, hash);
    *found = slot->number != 0;
    if (*found) {
        t->names.size = name;
        return table_at(t, slot->number - 1);
    }
    tensor *added = (tensor *)buf_add(&t->tensors, NULL, sizeof *added);
    if (!added) return NULL;
    memset(added, 0, sizeof *added);
    added->name = name;
    added->type = -1;
    slot->hash = hash;
    slot->number = (uint32_t)table_count(t);
    return added;
}

/* Appends the unescaped text of a JSON string and a zero to t->names. 0: no memory, or not a name (empty, or with NUL). */
static int table_push_name(tensor_table *t, const json *j, uint32_t node) {
    size_t n = json_string(j, node, NULL, 0);
    char *to = (char *)buf_add(&t->names, NULL, n + 1);
    if (!to) return 0;
    json_string(j, node, to, n);
    to[n] = 0;
    return n > 0 && strlen(to) == n;
}

/* The three fields of one tensor's info; what else an info holds is left for later versions of the format. */
static const char *info_fields(const json *j, uint32_t info, uint32_t *dtype, uint32_t *shape, uint32_t *offsets) {
    *dtype = *shape = *offsets = 0;
    if (j->nodes[info].type != JSON_OBJECT) return "its entry is not an object";
    uint32_t key = info + 1;
    for (uint32_t i = 0; i < j->nodes[info].size; i++) {
        uint32_t value = key + 1, *field = NULL;
        if (json_equals(j, key, "dtype")) field = dtype;
        if (json_equals(j, key, "shape")) field = shape;
        if (json_equals(j, key, "data_offsets")) field = offsets;
        if (field && *field) return "a field of its entry is there twice";
        if (field) *field = value;
        key = j->nodes[value].next;
    }
    if (!*dtype || !*shape || !*offsets) return "its entry lacks dtype, shape or data_offsets";
    if (j->nodes[*dtype].type != JSON_STRING || j->nodes[*shape].type != JSON_ARRAY ||
        j->nodes[*offsets].type != JSON_ARRAY)
        return "dtype must be a string, shape and data_offsets arrays";
    return NULL;
}

/* Reads one info into *t (name and file left alone). Returns what is wrong with it, or NULL. */
static const char *info_read(const json *j, uint32_t info, uint64_t data_start, tensor *t) {
    uint32_t dtype, shape, offsets;
    const char *wrong = info_fields(j, info, &dtype, &shape, &offsets);
    if (wrong) return wrong;
    uint64_t count = 1, dim, begin, end;
    for (t->type = 0; t->type < TYPE_COUNT && !json_equals(j, dtype, container_types[t->type].name);) t->type++;
    if (t->type == TYPE_COUNT) return "its dtype is none of safetensors'";
    t->dims = (int)(j->nodes[shape].size < 1000 ? j->nodes[shape].size : 1000);
    uint32_t node = shape + 1;
    for (uint32_t i = 0; i < j->nodes[shape].size; i++, node = j->nodes[node].next) {
        if (!json_u64(j, node, &dim)) return "its shape holds something that is not a size";
        if (i < MAX_DIMS) t->shape[i] = dim;
        if (__builtin_mul_overflow(count, dim, &count)) return "the product of its shape overflows";
    }
    if (__builtin_mul_overflow(count, (uint64_t)container_types[t->type].bits, &count))
        return "the product of its shape overflows";
    if (count % 8) return "its size is not a whole number of bytes";
    if (j->nodes[offsets].size != 2 || !json_u64(j, offsets + 1, &begin) || !json_u64(j, offsets + 2, &end) ||
        end < begin)
        return "its data_offsets are not [begin, end]";
    if (end - begin != count / 8) return "its data_offsets do not have the size of its shape";
    if (__builtin_add_overflow(begin, data_start, &t->begin)) return "its data_offsets overflow";
    t->size = end - begin;
    return NULL;
}

typedef struct byte_range { uint64_t begin, size; size_t name; } byte_range;

static int by_offset(const void *a, const void *b) {
    const byte_range *x = (const byte_range *)a, *y = (const byte_range *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->size < y->size ? -1 : x->size > y->size;
}

/* __metadata__: null or an object of strings. */
static int metadata_is_valid(const json *j, uint32_t node) {
    if (j->nodes[node].type == JSON_NULL) return 1;
    if (j->nodes[node].type != JSON_OBJECT) return 0;
    uint32_t key = node + 1;
    for (uint32_t i = 0; i < j->nodes[node].size; i++, key = j->nodes[key + 1].next)
        if (j->nodes[key + 1].type != JSON_STRING) return 0;
    return 1;
}

/* Adds the tensor with this JSON key to the table, or fills the entry that the index made for it. */
static int header_add(tensor_table *table, const json *j, uint32_t key, uint64_t data_start, int file, const char *path,
                      byte_range *range, mote_error *err) {
    tensor read;
    int found;
    size_t name = table->names.size;
    if (!table_push_name(table, j, key))
        return table->names.failed ? fail_memory(err)
                                   : fail(err, MOTE_EFORMAT, "%s: a tensor's name is empty or holds a NUL", path);
    memset(&read, 0, sizeof read);
    const char *wrong = info_read(j, key + 1, data_start, &read);
    if (wrong) return fail(err, MOTE_EFORMAT, "%s: tensor %s: %s", path, table->names.data + name, wrong);
    tensor *t = table_add(table, name, &found);
    if (!t) return fail_memory(err);
    if (found && t->file == file && t->type >= 0)
        return fail(err, MOTE_EFORMAT, "%s: tensor %s is there twice", path, table_name(table, t));
    range->begin = read.begin;
    range->size = read.size;
    range->name = t->name;
    if (found && t->file != file) return MOTE_OK;               /* the index says which of two files counts */
    read.name = t->name;
    read.file = file;
    *t = read;
    return MOTE_OK;
}

/* Checks the ranges of a file: they must tile the data section. */
static int header_check_ranges(tensor_table *table, byte_range *ranges, size_t n, uint64_t data_start,
                               uint64_t file_size, const char *path, mote_error *err) {
    uint64_t at = data_start;
    const int header_only = table->describes && file_size == data_start && n;
    table->without_data |= header_only;
    qsort(ranges, n, sizeof *ranges, by_offset);
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].begin != at)
            return fail(err, MOTE_EFORMAT, "%s: tensor %s starts at byte %llu of the data, expected %llu", path,
                        table->names.data + ranges[i].name, (unsigned long long)(ranges[i].begin - data_start),
                        (unsigned long long)(at - data_start));
        at += ranges[i].size;
        if ((at > file_size && !header_only) || at < ranges[i].size) break;
    }
    if (at != file_size && !header_only)
        return fail(err, MOTE_EFORMAT, "%s: its tensors end at byte %llu, the file at %llu: %s", path,
                    (unsigned long long)at, (unsigned long long)file_size,
                    at > file_size ? "truncated" : "something follows them");
    return MOTE_OK;
}

/* Adds all tensors of a parsed header. */
static int header_read(tensor_table *table, const json *j, uint64_t data_start, uint64_t file_size, int file,
                       const char *path, mote_error *err) {
    if (j->nodes[0].type != JSON_OBJECT) return fail(err, MOTE_EFORMAT, "%s: the header is not a JSON object", path);
    byte_range *ranges = (byte_range *)malloc(((size_t)j->nodes[0].size + 1) * sizeof *ranges);
    if (!ranges) return fail_memory(err);
    size_t n = 0;
    int code = MOTE_OK, metadata = 0;
    uint32_t key = 1;
    for (uint32_t i = 0; i < j->nodes[0].size && !code; i++, key = j->nodes[key + 1].next) {
        if (!json_equals(j, key, "__metadata__"))
            code = header_add(table, j, key, data_start, file, path, &ranges[n++], err);
        else if (metadata++ || !metadata_is_valid(j, key + 1))
            code = fail(err, MOTE_EFORMAT, "%s: __metadata__ is not one object of strings", path);
    }
    if (!code) code = header_check_ranges(table, ranges, n, data_start, file_size, path, err);
    free(ranges);
    return code;
}

/* Reads exactly n bytes at `offset`. */
static int read_at(int fd, void *to, size_t n, uint64_t offset, const char *path, mote_error *err) {
    for (size_t done = 0; done < n;) {
        size_t ask = n - done < (1u << 30) ? n - done : 1u << 30;
        ssize_t got = pread(fd, (char *)to + done, ask, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(err, MOTE_EIO, "%s: cannot be read: %s", path, strerror(errno));
        if (got == 0) return fail(err, MOTE_EFORMAT, "%s: ends while it is being read", path);
        done += (size_t)got;
    }
    return MOTE_OK;
}

/* Adds the tensors of an open safetensors file to the table. */
static int safetensors_read(tensor_table *table, int fd, uint64_t file_size, int file, const char *path,
                            mote_error *err) {
    unsigned char start[8];
    uint64_t n = 0;
    json j;
    if (file_size < 8)
        return fail(err, MOTE_EFORMAT, "%s: %llu bytes, too short for safetensors", path,
                    (unsigned long long)file_size);
    int code = read_at(fd, start, 8, 0, path, err);
    if (code) return code;
    for (int i = 7; i >= 0; i--) n = n << 8 | start[i];
    if (n > MAX_HEADER)
        return fail(err, MOTE_EFORMAT, "%s: a header of %llu bytes, more than the 100,000,000 allowed", path,
                    (unsigned long long)n);
    if (n > file_size - 8)
        return fail(err, MOTE_EFORMAT, "%s: a header of %llu bytes in a file of %llu: truncated", path,
                    (unsigned long long)n, (unsigned long long)file_size);
    char *text = (char *)malloc((size_t)n + 1);
    if (!text) return fail_memory(err);
    code = read_at(fd, text, (size_t)n, 8, path, err);
    if (!code) code = json_parse(&j, text, (size_t)n, path, err);
    if (!code) {
        code = header_read(table, &j, 8 + n, file_size, file, path, err);
        json_free(&j);
    }
    free(text);
    return code;
}
