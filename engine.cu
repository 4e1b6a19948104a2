/* engine.cu: checkpoint folder -> weights; sessions; the layer loop; sampling; the API of engine.h.

   Contents   1. safetensors: the container            2. Checkpoint: files and index
              3. Configuration                          4. Binding: every tensor by name, shape and type
              5. Loading                                6. Models
              7. Sessions: memory                       8. The forward pass
              9. The forward pass on a GPU             10. Feeding tokens
             11. Sampling                              12. Speculation
             13. Generating text                       14. Checkpoints, copies and files
             15. Measuring                             16. Selftest

   How a stage is computed is in kernels.cu, text in tokenizer.c; both are part of this one translation unit. It compiles
   as C11 and as C++17 (and CUDA). Compile it with optimisation (-O3): the loops of kernels.cu count on it. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE                            /* pread, sched_getaffinity, CLOCK_MONOTONIC under -std=c11 */
#endif

#include "engine.h"
#include "tokenizer.c"
#include "kernels.cu"

#ifdef __CUDACC__
#include <cxxabi.h>
#endif
#include <sys/random.h>
#include <time.h>

static int cancelled(const mote_callbacks *c) {
    return c->cancel && c->cancel(c->user);
}

static void report(const mote_callbacks *c, const char *what, double fraction) {
    if (c->progress) c->progress(c->user, what, fraction);
}

__attribute__((format(printf, 2, 3))) static void notice(const mote_callbacks *c, const char *format, ...) {
    char line[512];
    va_list args;
    if (!c->log) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    c->log(c->user, line);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- 1. safetensors: the container -------------------------------------------------------------------------------
   A file is N (8 bytes, little endian), a JSON header of N bytes, and the data. The header maps a tensor's name to
   {"dtype", "shape", "data_offsets": [begin, end)}. One rule makes the data trustworthy: sorted by offset the ranges must
   follow each other without hole or overlap from 0 to the end of the file, and each must have the size its shape says.
   Stricter than the reference reader in this: no name twice, no empty name, no NUL in a name, infos are objects. */

enum { MAX_HEADER = 100000000, MAX_DIMS = 4 };

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

/* All tensors of a checkpoint, found by name through a hash table with open addressing. */
typedef struct tensor_table {
    buf names, tensors;          /* bytes; struct tensor */
    uint32_t *slots;             /* 0 = free, else tensor number + 1 */
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

/* The slot that holds `name`, or the free one where it belongs. */
static size_t table_slot(const tensor_table *t, const char *name) {
    size_t at = fold(fnv1a(FNV_START, name, strlen(name))) & (t->slot_count - 1);
    while (t->slots[at] && strcmp(table_name(t, table_at(t, t->slots[at] - 1)), name))
        at = (at + 1) & (t->slot_count - 1);
    return at;
}

static tensor *table_find(const tensor_table *t, const char *name) {
    size_t at = t->slot_count ? table_slot(t, name) : 0;
    return t->slot_count && t->slots[at] ? table_at(t, t->slots[at] - 1) : NULL;
}

static int table_grow(tensor_table *t) {
    size_t n = t->slot_count ? t->slot_count * 2 : 1024;
    uint32_t *slots = (uint32_t *)calloc(n, sizeof *slots);
    if (!slots) return 0;
    free(t->slots);
    t->slots = slots;
    t->slot_count = n;
    for (size_t i = 0; i < table_count(t); i++)
        t->slots[table_slot(t, table_name(t, table_at(t, i)))] = (uint32_t)i + 1;
    return 1;
}

/* Adds a tensor whose name was the last thing appended to t->names (zero included), or finds the one of that name and
   takes the name back. NULL: no memory. */
static tensor *table_add(tensor_table *t, size_t name, int *found) {
    if (t->names.failed || ((table_count(t) + 1) * 2 > t->slot_count && !table_grow(t))) return NULL;
    size_t at = table_slot(t, t->names.data + name);
    *found = t->slots[at] != 0;
    if (*found) {
        t->names.size = name;
        return table_at(t, t->slots[at] - 1);
    }
    tensor *added = (tensor *)buf_add(&t->tensors, NULL, sizeof *added);
    if (!added) return NULL;
    memset(added, 0, sizeof *added);
    added->name = name;
    added->type = -1;
    t->slots[at] = (uint32_t)table_count(t);
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
static int header_check_ranges(const tensor_table *table, byte_range *ranges, size_t n, uint64_t data_start,
                               uint64_t file_size, const char *path, mote_error *err) {
    uint64_t at = data_start;
    qsort(ranges, n, sizeof *ranges, by_offset);
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].begin != at)
            return fail(err, MOTE_EFORMAT, "%s: tensor %s starts at byte %llu of the data, expected %llu", path,
                        table->names.data + ranges[i].name, (unsigned long long)(ranges[i].begin - data_start),
                        (unsigned long long)(at - data_start));
        at += ranges[i].size;
        if (at > file_size || at < ranges[i].size) break;
    }
    if (at != file_size)
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

/* ---- 2. Checkpoint: files and index ------------------------------------------------------------------------------
   Either model.safetensors, or the shards that model.safetensors.index.json names. The index decides: a tensor is taken
   from the file it names, and must be there. Tensors of a listed file that the index forgot are accepted. */

enum { PATH_SIZE = 4096, MAX_SHARDS = 1000 };             /* all are open at once: a process may have 1024 files */

typedef struct shard { char path[PATH_SIZE]; int fd; uint64_t size; } shard;

typedef struct checkpoint {
    const char *dir;
    tensor_table table;
    tensor_table shard_names;    /* of these entries only `file` counts: the shard of that name */
    shard *shards;
    int shard_count;
} checkpoint;

static void checkpoint_close(checkpoint *c) {
    for (int i = 0; i < c->shard_count; i++)
        if (c->shards[i].fd >= 0) close(c->shards[i].fd);
    free(c->shards);
    table_free(&c->table);
    table_free(&c->shard_names);
}

/* The number of the shard with this file name, added if it is new; negative: an error code. */
static int checkpoint_shard(checkpoint *c, const char *name, mote_error *err) {
    size_t at = c->shard_names.names.size;
    int found;
    buf_add(&c->shard_names.names, name, strlen(name) + 1);
    tensor *entry = table_add(&c->shard_names, at, &found);
    if (!entry) return -fail_memory(err);
    if (found) return entry->file;
    if (!*name || *name == '/' || strstr(name, ".."))
        return -fail(err, MOTE_EFORMAT, "%s/model.safetensors.index.json: file name \"%s\" leaves the folder", c->dir,
                     name);
    if (c->shard_count >= MAX_SHARDS)
        return -fail(err, MOTE_EUNSUPPORTED, "%s: more than %d shards", c->dir, MAX_SHARDS);
    shard *grown = (shard *)realloc(c->shards, ((size_t)c->shard_count + 1) * sizeof *grown);
    if (!grown) return -fail_memory(err);
    c->shards = grown;
    shard *s = &grown[c->shard_count];
    if (join_path(s->path, sizeof s->path, c->dir, name))
        return -fail(err, MOTE_EINVAL, "%s/%s: path too long", c->dir, name);
    s->size = 0;
    s->fd = -1;
    entry->file = c->shard_count;
    return c->shard_count++;
}

static int shard_open(shard *s, mote_error *err) {
    struct stat info;
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);    /* O_NONBLOCK: a FIFO must not wait for a writer */
    if (s->fd < 0) return fail(err, MOTE_EIO, "%s: %s", s->path, strerror(errno));
    if (fstat(s->fd, &info) || !S_ISREG(info.st_mode)) return fail(err, MOTE_EIO, "%s: not a regular file", s->path);
    s->size = (uint64_t)info.st_size;
    return MOTE_OK;
}

/* Enters every name of the index's weight_map with its shard, to be filled when the shard is read. */
static int checkpoint_read_index(checkpoint *c, const json *j, mote_error *err) {
    uint32_t map = json_get(j, 0, "weight_map");
    if (!map || j->nodes[map].type != JSON_OBJECT)
        return fail(err, MOTE_EFORMAT, "%s/model.safetensors.index.json: no object \"weight_map\"", c->dir);
    uint32_t key = map + 1;
    for (uint32_t i = 0; i < j->nodes[map].size; i++, key = j->nodes[key + 1].next) {
        char name[256];
        int found;
        size_t at = c->table.names.size, n = json_string(j, key + 1, name, sizeof name - 1);
        if (j->nodes[key + 1].type != JSON_STRING || n >= sizeof name || memchr(name, 0, n) ||
            !table_push_name(&c->table, j, key))
            return c->table.names.failed
                       ? fail_memory(err)
                       : fail(err, MOTE_EFORMAT,
                              "%s/model.safetensors.index.json: entry %u of weight_map is not a tensor and a file name",
                              c->dir, i + 1);
        name[n] = 0;
        int file = checkpoint_shard(c, name, err);
        if (file < 0) return -file;
        tensor *t = table_add(&c->table, at, &found);
        if (!t) return fail_memory(err);
        t->file = file;
    }
    return MOTE_OK;
}

static int checkpoint_read_shards(checkpoint *c, mote_error *err) {
    for (int i = 0; i < c->shard_count; i++) {
        shard *s = &c->shards[i];
        int code = shard_open(s, err);
        if (!code) code = safetensors_read(&c->table, s->fd, s->size, i, s->path, err);
        if (code) return code;
    }
    for (size_t i = 0; i < table_count(&c->table); i++) {
        const tensor *t = table_at(&c->table, i);
        if (t->type < 0)
            return fail(err, MOTE_EFORMAT, "%s: tensor %s is missing, the index says it is here",
                        c->shards[t->file].path, table_name(&c->table, t));
    }
    return MOTE_OK;
}

/* Whether the folder has an entry of this name. One that cannot be opened counts, a symbolic link to nothing included: that
   is for the reader to say, not to be taken for a file the checkpoint does without. */
static int file_exists(const char *dir, const char *name) {
    char path[PATH_SIZE];
    struct stat info;
    if (join_path(path, sizeof path, dir, name)) return 1;
    return !lstat(path, &info) || (errno != ENOENT && errno != ENOTDIR);
}

/* Reads and parses a JSON file of the folder. On success *text and *j are the caller's to free. */
static int read_json(const char *dir, const char *name, buf *text, json *j, mote_error *err) {
    char path[PATH_SIZE];
    int code = read_file(dir, name, text, err);
    if (code) return code;
    if (join_path(path, sizeof path, dir, name)) code = fail(err, MOTE_EINVAL, "%s/%s: path too long", dir, name);
    if (!code) code = json_parse(j, text->data, text->size, path, err);
    if (!code && j->nodes[0].type != JSON_OBJECT) {
        json_free(j);
        code = fail(err, MOTE_EFORMAT, "%s: not a JSON object", path);
    }
    if (code) buf_free(text);
    return code;
}

/* Reads all headers. c is to be closed by the caller in any case. */
static int checkpoint_open(checkpoint *c, const char *dir, mote_error *err) {
    buf text;
    json j;
    int code;
    memset(c, 0, sizeof *c);
    memset(&text, 0, sizeof text);
    c->dir = dir;
    if (file_exists(dir, "model.safetensors.index.json")) {
        code = read_json(dir, "model.safetensors.index.json", &text, &j, err);
        if (code) return code;
        code = checkpoint_read_index(c, &j, err);
        json_free(&j);
        buf_free(&text);
    } else if (file_exists(dir, "model.safetensors")) {
        int file = checkpoint_shard(c, "model.safetensors", err);
        code = file < 0 ? -file : MOTE_OK;
    } else {
        return fail(err, MOTE_EIO, "%s: neither model.safetensors nor model.safetensors.index.json is there", dir);
    }
    return code ? code : checkpoint_read_shards(c, err);
}

/* ---- 3. Configuration --------------------------------------------------------------------------------------------
   config.json, flat or with the text model inside "text_config". Sizes have no defaults: a wrong guess would be a wrong
   model. What mote does not implement is refused by name. */

typedef struct config {
    int layers, hidden, vocab, context_max, mtp_layers;
    int heads, kv_heads, head_dim, rotary_dim;
    int key_heads, value_heads, key_dim, value_dim, taps;
    int experts, top_k, expert_size, shared_size;
    int tied, fp8_rows, fp8_cols;
    float eps, theta;
    unsigned char *is_attention;               /* [layers] */
    int32_t eos;                               /* eos_token_id, -1 when there is none */
} config;

typedef struct config_reader {
    const json *j;
    uint32_t text;                             /* the object with the text model's fields */
    const char *dir;
    mote_error *err;
    int code;                                  /* the first failure; later calls do nothing */
} config_reader;

static void config_int(config_reader *r, const char *key, int low, int high, int *out) {
    uint64_t value;
    uint32_t node = json_get(r->j, r->text, key);
    if (r->code) return;
    if (!node) r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: %s is missing", r->dir, key);
    else if (!json_u64(r->j, node, &value) || value < (uint64_t)low || value > (uint64_t)high)
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: %s must be a whole number from %d to %d", r->dir, key,
                       low, high);
    else *out = (int)value;
}

static void config_int_or(config_reader *r, const char *key, int low, int high, int fallback, int *out) {
    *out = fallback;
    if (json_get(r->j, r->text, key)) config_int(r, key, low, high, out);
}

static void config_float(config_reader *r, uint32_t object, const char *key, double low, double high, float fallback,
                         float *out) {
    double value = fallback;
    uint32_t node = json_get(r->j, object, key);
    if (r->code) return;
    int code = node ? json_double(r->j, node, &value) : MOTE_OK;
    if (code == MOTE_ENOMEM) r->code = fail_memory(r->err);
    else if (code || !(value >= low && value <= high))
        r->code =
            fail(r->err, MOTE_EFORMAT, "%s/config.json: %s must be a number from %g to %g", r->dir, key, low, high);
    *out = (float)value;
}

/* A field that must be absent or hold one value. */
static void config_only(config_reader *r, uint32_t object, const char *key, const char *value) {
    uint32_t node = json_get(r->j, object, key);
    if (r->code || !node || json_equals(r->j, node, value)) return;
    const json_node *n = &r->j->nodes[node];
    const char *text = r->j->text + n->start;
    if (n->type != JSON_STRING && n->type < JSON_ARRAY && strlen(value) == n->size && !memcmp(text, value, n->size))
        return;
    if (n->type == JSON_NULL) return;
    r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: %s is %.*s, mote supports %s only", r->dir, key,
                   n->type < JSON_ARRAY ? (int)(n->size < 60 ? n->size : 60) : 6,
                   n->type < JSON_ARRAY ? text : "a list", value);
}

static void config_layer_types(config_reader *r, config *c) {
    uint32_t types = json_get(r->j, r->text, "layer_types");
    int interval;
    config_int_or(r, "full_attention_interval", 1, 1 << 20, 4, &interval);
    if (r->code) return;
    c->is_attention = (unsigned char *)calloc((size_t)c->layers, 1);
    if (!c->is_attention) {
        r->code = fail_memory(r->err);
        return;
    }
    for (int i = 0; i < c->layers; i++) c->is_attention[i] = (i + 1) % interval == 0;
    if (!types || r->j->nodes[types].type == JSON_NULL) return;
    if (r->j->nodes[types].type != JSON_ARRAY || r->j->nodes[types].size != (uint32_t)c->layers) {
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: layer_types must list num_hidden_layers = %d layers",
                       r->dir, c->layers);
        return;
    }
    uint32_t node = types + 1;
    for (int i = 0; i < c->layers; i++, node = r->j->nodes[node].next) {
        c->is_attention[i] = (unsigned char)json_equals(r->j, node, "full_attention");
        if (c->is_attention[i] || json_equals(r->j, node, "linear_attention")) continue;
        r->code = fail(r->err, MOTE_EUNSUPPORTED,
                       "%s/config.json: layer_types[%d] is neither linear_attention nor full_attention", r->dir, i);
        return;
    }
}

static void config_rope(config_reader *r, config *c) {
    float factor = 0.25f;
    uint32_t rope = json_get(r->j, r->text, "rope_parameters");
    if (!rope || r->j->nodes[rope].type != JSON_OBJECT) rope = r->text;
    config_only(r, rope, "rope_type", "default");
    config_only(r, r->text, "rope_scaling", "null");
    config_float(r, r->text, "partial_rotary_factor", 0, 1, factor, &factor);
    config_float(r, rope, "partial_rotary_factor", 0, 1, factor, &factor);
    config_float(r, r->text, "rope_theta", 1, 1e12, 1e7f, &c->theta);
    config_float(r, rope, "rope_theta", 1, 1e12, c->theta, &c->theta);
    if (r->code) return;
    c->rotary_dim = (int)((float)c->head_dim * factor);
    if (c->rotary_dim % 2)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: head_dim * partial_rotary_factor = %d is odd",
                       r->dir, c->rotary_dim);
}

/* quantization_config: only the official block FP8; what each tensor really is, is seen when it is bound. */
static void config_quantization(config_reader *r, config *c) {
    uint32_t q = json_get(r->j, 0, "quantization_config"), size;
    uint64_t rows = 128, cols = 128;
    if (!q) q = json_get(r->j, r->text, "quantization_config");
    if (q && r->j->nodes[q].type == JSON_OBJECT) {
        config_only(r, q, "quant_method", "fp8");
        config_only(r, q, "fmt", "e4m3");
        size = json_get(r->j, q, "weight_block_size");
        if (!r->code && size &&
            (r->j->nodes[size].type != JSON_ARRAY || r->j->nodes[size].size != 2 || !json_u64(r->j, size + 1, &rows) ||
             !json_u64(r->j, size + 2, &cols) || !rows || !cols || rows > 1 << 20 || cols > 1 << 20))
            r->code = fail(r->err, MOTE_EUNSUPPORTED,
                           "%s/config.json: weight_block_size must be [rows, cols] (per-tensor FP8 is not supported)",
                           r->dir);
    }
    c->fp8_rows = (int)rows;
    c->fp8_cols = (int)cols;
}

static void config_sizes(config_reader *r, config *c) {
    config_int(r, "num_hidden_layers", 1, 1 << 12, &c->layers);
    config_int(r, "hidden_size", 1, 1 << 20, &c->hidden);
    config_int(r, "vocab_size", 1, 1 << 24, &c->vocab);
    config_int_or(r, "max_position_embeddings", 1, 1 << 24, 32768, &c->context_max);
    config_int_or(r, "mtp_num_hidden_layers", 0, 1, 0, &c->mtp_layers);
    config_int(r, "num_attention_heads", 1, 1 << 12, &c->heads);
    config_int(r, "num_key_value_heads", 1, 1 << 12, &c->kv_heads);
    config_int(r, "head_dim", 1, 1 << 14, &c->head_dim);
    config_int(r, "linear_num_key_heads", 1, 1 << 12, &c->key_heads);
    config_int(r, "linear_num_value_heads", 1, 1 << 12, &c->value_heads);
    config_int(r, "linear_key_head_dim", 1, MAX_KEY_DIM, &c->key_dim);
    config_int(r, "linear_value_head_dim", 1, 1 << 12, &c->value_dim);
    config_int_or(r, "linear_conv_kernel_dim", 1, 64, 4, &c->taps);
    config_int(r, "num_experts", 1, 1 << 14, &c->experts);
    config_int(r, "num_experts_per_tok", 1, 1 << 14, &c->top_k);
    config_int(r, "moe_intermediate_size", 1, 1 << 20, &c->expert_size);
    config_int(r, "shared_expert_intermediate_size", 1, 1 << 20, &c->shared_size);
    config_float(r, r->text, "rms_norm_eps", 0, 1, 1e-6f, &c->eps);
}

static void config_consistency(config_reader *r, const config *c) {
    if (r->code) return;
    if (c->heads % c->kv_heads)
        r->code = fail(r->err, MOTE_EFORMAT,
                       "%s/config.json: num_attention_heads = %d is no multiple of num_key_value_heads = %d", r->dir,
                       c->heads, c->kv_heads);
    else if (c->value_heads % c->key_heads)
        r->code = fail(r->err, MOTE_EFORMAT,
                       "%s/config.json: linear_num_value_heads = %d is no multiple of linear_num_key_heads = %d",
                       r->dir, c->value_heads, c->key_heads);
    else if (c->top_k > c->experts)
        r->code = fail(r->err, MOTE_EFORMAT, "%s/config.json: num_experts_per_tok = %d of only num_experts = %d",
                       r->dir, c->top_k, c->experts);
    else if ((int64_t)c->heads * c->head_dim > 1 << 22 || (int64_t)c->value_heads * c->value_dim > 1 << 22 ||
             (int64_t)c->key_heads * c->key_dim > 1 << 22)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: heads times head size exceeds %d", r->dir, 1 << 22);
    else if (((int64_t)c->experts + 1) * c->expert_size > 1 << 30 || ((int64_t)c->experts + 1) * c->shared_size > 1 << 30)
        r->code = fail(r->err, MOTE_EUNSUPPORTED, "%s/config.json: num_experts times an expert's size exceeds %d", r->dir,
                       1 << 30);                /* loops over all rows of all experts count in int */
}

static void config_flags(config_reader *r, config *c) {
    uint64_t eos;
    uint32_t tied = json_get(r->j, 0, "tie_word_embeddings"), end = json_get(r->j, r->text, "eos_token_id");
    uint32_t dense = json_get(r->j, r->text, "mlp_only_layers");
    if (!tied) tied = json_get(r->j, r->text, "tie_word_embeddings");
    c->tied = tied && r->j->nodes[tied].type == JSON_TRUE;
    c->eos = end && json_u64(r->j, end, &eos) && eos < (uint64_t)c->vocab ? (int32_t)eos : -1;
    config_only(r, r->text, "hidden_act", "silu");
    config_only(r, r->text, "attention_bias", "false");
    config_only(r, r->text, "attn_output_gate", "true");
    config_only(r, r->text, "output_gate_type", "swish");
    config_only(r, r->text, "decoder_sparse_step", "1");
    config_only(r, r->text, "mtp_use_dedicated_embeddings", "false");
    config_only(r, r->text, "norm_topk_prob", "true");
    if (!r->code && dense && r->j->nodes[dense].type == JSON_ARRAY && r->j->nodes[dense].size)
        r->code = fail(r->err, MOTE_EUNSUPPORTED,
                       "%s/config.json: mlp_only_layers: layers without experts are not supported", r->dir);
}

/* Part of a model's fingerprint: all that config.json says of it. */
static uint64_t config_fingerprint(const config *c) {
    const int32_t numbers[] = {c->layers,    c->hidden,      c->vocab,       c->context_max, c->mtp_layers, c->heads,
                               c->kv_heads,  c->head_dim,    c->rotary_dim,  c->key_heads,   c->value_heads, c->key_dim,
                               c->value_dim, c->taps,        c->experts,     c->top_k,       c->expert_size, c->shared_size,
                               c->tied,      c->fp8_rows,    c->fp8_cols,    c->eos};
    const float reals[] = {c->eps, c->theta};
    uint64_t hash = fnv1a(fnv1a(FNV_START, numbers, sizeof numbers), reals, sizeof reals);
    return fnv1a(hash, c->is_attention, (size_t)c->layers);
}

/* Reads dir/config.json. On success c->is_attention is the caller's to free. */
static int config_read(config *c, const char *dir, mote_error *err) {
    buf text;
    json j;
    config_reader r;
    memset(c, 0, sizeof *c);
    memset(&text, 0, sizeof text);
    int code = read_json(dir, "config.json", &text, &j, err);
    if (code) return code;
    memset(&r, 0, sizeof r);
    r.j = &j;
    r.dir = dir;
    r.err = err;
    r.text = json_get(&j, 0, "text_config");
    uint32_t type = json_get(&j, 0, "model_type");
    if (!type) r.code = fail(err, MOTE_EFORMAT, "%s/config.json: model_type is missing", dir);
    else if (!json_equals(&j, type, "qwen3_5_moe") && !json_equals(&j, type, "qwen3_5_moe_text"))
        r.code = fail(err, MOTE_EUNSUPPORTED,
                      "%s/config.json: model_type \"%.*s\" is not known, mote runs qwen3_5_moe and qwen3_5_moe_text",
                      dir, (int)(j.nodes[type].size < 60 ? j.nodes[type].size : 60), j.text + j.nodes[type].start);
    else if (r.text && j.nodes[r.text].type != JSON_OBJECT)
        r.code = fail(err, MOTE_EFORMAT, "%s/config.json: text_config is not an object", dir);
    config_sizes(&r, c);
    config_consistency(&r, c);
    config_flags(&r, c);
    config_rope(&r, c);
    config_quantization(&r, c);
    config_layer_types(&r, c);
    if (r.code) {
        free(c->is_attention);
        c->is_attention = NULL;
    }
    json_free(&j);
    buf_free(&text);
    return r.code;
}

/* ---- 4. Binding: every tensor by name, shape and type ------------------------------------------------------------
   The model asks for each tensor it needs, by name and shape; binding finds it, checks it, gives it a place in the one
   block of memory that will hold all weights, and puts it on the list of what to load. When all are bound, a tensor that
   nobody asked for is an error: a checkpoint that holds more than the model is not the model. Matrices stay as stored;
   vectors (norms, gates, conv1d) and the scales of FP8 blocks, small as they are, become float. */

enum module_kind {
    IN_EMBED, IN_HEAD, IN_DELTANET, IN_ATTENTION, IN_ROUTER, IN_EXPERTS, IN_SHARED, IN_NORMS, IN_MTP, MODULE_KINDS
};

static const char *const module_names[MODULE_KINDS] = {
    "embed_tokens", "lm_head", "deltanet", "attention", "router", "experts", "shared_expert", "norms", "mtp"};

typedef struct layer {
    int is_attention;
    deltanet_weights deltanet;
    attention_weights attention;
    moe_weights moe;
} layer;

enum { MAX_EOS = 16 };

struct mote_model {
    config c;
    int gpu;                                   /* number of the GPU that holds the weights; -1: the CPU */
    int gpu_sms, gpu_cc;                       /* its multiprocessors, and 90 for compute capability 9.0 */
    uint32_t gpu_cache;                        /* bytes of its second-level cache */
    int gpu_integrated;                        /* its memory is the system's */
    char device[320];                          /* info.device */
    tokenizer *text;
    size_t longest_token;                      /* bytes */
    chat_family family;
    int has_template;                          /* a chat template is there, known or not */
    int32_t eos[MAX_EOS];
    int eos_count;
    mote_sampling sampling;                    /* of generation_config.json */
    mote_info info;
    mote_module modules[MODULE_KINDS];
    char module_dtypes[MODULE_KINDS][64];

    deltanet_shape deltanet;
    attention_shape attention;
    moe_shape moe;
    char *arena;                               /* all weights, in the device's memory */
    size_t arena_size;
    matrix embed_tokens, lm_head;
    const float *norm;
    layer *layers;
    matrix *experts;                           /* the gate, up and down matrices of all layers */
    int has_mtp;
    layer mtp;
    matrix mtp_fc;
    const float *mtp_norm_embedding, *mtp_norm_hidden, *mtp_norm;
    int draft_rows;                            /* as asked for */
    matrix draft_head;                         /* the first rows of lm_head: see bind_draft_head */
    size_t draft_at;                           /* where in the arena its copy is */
    uint64_t fingerprint;                      /* of config.json's numbers and of samples of all weights: sample_bytes */
};

/* Made-up floats: (low + a random number of the bits in mask) * unit. */
typedef struct made_floats { int low; uint32_t mask; float unit; } made_floats;

typedef struct load_item {
    const tensor *from;                        /* NULL: made up */
    made_floats made;                          /* then, if floats */
    int type;                                  /* as stored */
    uint64_t offset, size;                     /* bytes inside the tensor */
    size_t at;                                 /* where in the arena */
    int to_float;                              /* convert to float; else copied as it is */
    int is_scale;                              /* of FP8 blocks: must be below 128, see FP8_UNIT */
    int is_mtp;
    const void **target;                       /* the pointer to set */
    int rows, row_bytes;                       /* of a matrix: packed on a GPU; else 0 */
} load_item;

typedef struct binder {
    checkpoint *files;
    mote_model *m;
    int made;                                  /* TYPE_BF16, TYPE_FP8: all is made up, so; 0: it is in files */
    tensor made_up[2];                         /* the last two tensors asked for */
    int made_next;
    buf items;                                 /* struct load_item */
    size_t arena;                              /* bytes given out */
    enum module_kind kind;                     /* of what is being bound */
    uint64_t used, of;                         /* the share of it that one token reads */
    unsigned types[MODULE_KINDS];              /* bit set of dtypes seen */
    char prefix[64];                           /* "model.language_model." or "model." */
    char name[256];
    mote_error *err;
    int code;                                  /* the first failure; later calls do nothing */
} binder;

static void bind_as(binder *b, enum module_kind kind, uint64_t used, uint64_t of) {
    b->kind = kind;
    b->used = used;
    b->of = of;
}

/* "[4096, 2048]" */
static const char *shape_text(char *out, size_t size, const uint64_t *shape, int dims) {
    size_t n = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < dims && i < MAX_DIMS && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
    if (n < size) snprintf(out + n, size - n, dims > MAX_DIMS ? ", ...]" : "]");
    return out;
}

/* A tensor that is not there; if the checkpoint holds it in a form of another quantisation, that is said instead. */
static int bind_missing(binder *b, const uint64_t *shape, int dims) {
    static const char *const foreign[] = {"_packed", "_scale", "_scale_2", "_zero_point"};
    char text[96], other[320];
    const char *end = strrchr(b->name, '.');
    if (end && !strcmp(end, ".weight_scale_inv")) {
        snprintf(other, sizeof other, "%.*s.weight_scale", (int)(end - b->name), b->name);
        if (table_find(&b->files->table, other))
            return fail(b->err, MOTE_EUNSUPPORTED,
                        "%s: %s: FP8 with one scale a tensor or a row is not supported (blocks with "
                        "weight_scale_inv are)",
                        b->files->dir, other);
    }
    for (size_t i = 0; i < 4 && end && !strcmp(end, ".weight"); i++) {
        snprintf(other, sizeof other, "%s%s", b->name, foreign[i]);
        if (table_find(&b->files->table, other))
            return fail(b->err, MOTE_EUNSUPPORTED,
                        "%s: %s: this quantisation is not supported (F32, F16, BF16 and FP8 with "
                        "weight_scale_inv are)",
                        b->files->dir, other);
        snprintf(other, sizeof other, "%.*s.qweight", (int)(end - b->name), b->name);
        if (table_find(&b->files->table, other))
            return fail(b->err, MOTE_EUNSUPPORTED, "%s: %s: this quantisation is not supported", b->files->dir, other);
    }
    return fail(b->err, MOTE_EFORMAT, "%s: tensor %s is missing, expected with shape %s", b->files->dir, b->name,
                shape_text(text, sizeof text, shape, dims));
}

/* Whether the checkpoint holds a tensor. A made-up one is like those published: experts are stacked in BF16 only. */
static int bind_has(const binder *b, const char *name) {
    if (!b->made) return table_find(&b->files->table, name) != NULL;
    if (!strcmp(name, "mtp.fc.weight")) return b->m->c.mtp_layers > 0;
    return b->made == TYPE_BF16 || !strstr(name, "mlp.experts.gate_up_proj");
}

/* The tensor b->name of a made-up checkpoint. In FP8 are, as in those published, experts and large projections. */
static tensor *bind_made(binder *b, const uint64_t *shape, int dims, int allow_fp8) {
    static const char *const plain[] = {"embed_tokens.", "lm_head.",   "mlp.gate.", "shared_expert_gate.",
                                        "in_proj_a.",    "in_proj_b.", "mtp.fc."};
    uint64_t elements = 1;
    tensor *t = &b->made_up[b->made_next];
    b->made_next ^= 1;
    memset(t, 0, sizeof *t);
    t->type = allow_fp8 ? b->made : TYPE_BF16;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strstr(b->name, plain[i])) t->type = TYPE_BF16;
    t->dims = dims;
    for (int i = 0; i < dims; i++) elements *= t->shape[i] = shape[i];
    t->size = elements * (uint64_t)container_types[t->type].bits / 8;
    b->types[b->kind] |= 1u << t->type;
    return t;
}

/* What made-up vectors and scales hold: the norms' weights near 0, that of DeltaNet's gated norm near 1, decays from
   long to short, and scales that give FP8 codes the spread of the BF16 weights. */
static made_floats made_floats_of(const char *name) {
    static const struct { const char *end; made_floats values; } known[] = {
        {"weight_scale_inv", {96, 127, 0x1p-20f}},          {"linear_attn.norm.weight", {896, 255, 0x1p-10f}},
        {"linear_attn.A_log", {0, 255, 0x1.6p-7f}},         {"linear_attn.dt_bias", {-255, 255, 0x1p-6f}},
        {"linear_attn.conv1d.weight", {-128, 255, 0x1p-8f}}, {"norm.weight", {-128, 255, 0x1p-10f}}}; /* the others */
    size_t last = sizeof known / sizeof *known - 1, n = strlen(name);
    for (size_t i = 0; i < last; i++)
        if (n >= strlen(known[i].end) && !strcmp(name + n - strlen(known[i].end), known[i].end)) return known[i].values;
    return known[last].values;
}

/* The tensor b->name, checked for shape and type; NULL (and b->code) when something is wrong. */
static tensor *bind_find(binder *b, const uint64_t *shape, int dims, int allow_fp8) {
    char found[96], expected[96];
    if (b->code) return NULL;
    if (b->made) return bind_made(b, shape, dims, allow_fp8);
    tensor *t = table_find(&b->files->table, b->name);
    if (!t) {
        b->code = bind_missing(b, shape, dims);
        return NULL;
    }
    const char *path = b->files->shards[t->file].path;
    int same = t->dims == dims;
    for (int i = 0; same && i < dims; i++) same = t->shape[i] == shape[i];
    if (same && t->type <= (allow_fp8 ? TYPE_FP8 : TYPE_BF16)) {
        t->used = 1;
        b->types[b->kind] |= 1u << t->type;
        return t;
    }
    shape_text(found, sizeof found, t->shape, t->dims);
    shape_text(expected, sizeof expected, shape, dims);
    if (same && (t->type == TYPE_FP8 || container_types[t->type].bits <= 8))
        b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: expected F32, F16%s, found %s", path, b->name,
                       allow_fp8 ? ", BF16 or F8_E4M3" : " or BF16", container_types[t->type].name);
    else
        b->code =
            fail(b->err, MOTE_EFORMAT, "%s: tensor %s: expected shape %s in F32, F16%s, found %s in %s", path, b->name,
                 expected, allow_fp8 ? ", BF16 or F8_E4M3" : " or BF16", found, container_types[t->type].name);
    return NULL;
}

/* Puts `size` bytes from `offset` of a tensor on the list, to lie at the next 64-byte boundary of the arena. */
static load_item *bind_load(binder *b, const tensor *t, uint64_t offset, uint64_t size, int to_float, int is_scale,
                            const void **target) {
    load_item *item = (load_item *)buf_add(&b->items, NULL, sizeof *item);
    uint64_t elements = size * 8 / (uint64_t)container_types[t->type].bits, held = to_float ? elements * 4 : size;
    if (!item) {
        b->code = fail_memory(b->err);
        return NULL;
    }
    item->from = b->made ? NULL : t;
    item->made = made_floats_of(b->made ? b->name : "");
    item->type = t->type;
    item->offset = offset;
    item->size = size;
    item->at = b->arena;
    item->to_float = to_float;
    item->is_scale = is_scale;
    item->is_mtp = b->kind == IN_MTP;
    item->target = target;
    item->rows = item->row_bytes = 0;
    b->arena += (size_t)((held + 63) / 64 * 64);
    mote_module *m = &b->m->modules[b->kind];
    m->parameters += is_scale ? 0 : elements;
    m->bytes += held;
    m->bytes_per_token += held * b->used / b->of;
    if (!is_scale && b->kind != IN_MTP) b->m->info.active_parameters += elements * b->used / b->of;
    return item;
}

/* Gives an item, the last bound, the room of a packed matrix. */
static void bind_packed(binder *b, load_item *item, const matrix *w) {
    if (!item) return;
    item->rows = w->rows;
    item->row_bytes = w->cols * dtype_size(w->type);
    b->arena = item->at + gpu_packed_size(w->type, w->rows, w->cols);
}

/* W[rows][cols] of tensor b->name, with its FP8 scales where it has them. */
static void bind_matrix_here(binder *b, matrix *w, int rows, int cols) {
    uint64_t shape[2] = {(uint64_t)rows, (uint64_t)cols}, blocks[2];
    const tensor *t = bind_find(b, shape, 2, 1);
    if (!t) return;
    w->type = (dtype)t->type;
    w->rows = rows;
    w->cols = cols;
    w->block_rows = b->m->c.fp8_rows;
    w->block_cols = b->m->c.fp8_cols;
    bind_packed(b, bind_load(b, t, 0, t->size, 0, 0, &w->data), w);
    if (t->type != TYPE_FP8) return;
    blocks[0] = (uint64_t)((rows - 1) / w->block_rows + 1);
    blocks[1] = (uint64_t)((cols - 1) / w->block_cols + 1);
    size_t n = strlen(b->name);
    snprintf(b->name + n, sizeof b->name - n, "_scale_inv");
    const tensor *scale = bind_find(b, blocks, 2, 0);
    if (scale) bind_load(b, scale, 0, scale->size, 1, 1, (const void **)&w->scale);
}

/* A vector, as floats. */
static void bind_vector_here(binder *b, const float **v, const uint64_t *shape, int dims) {
    const tensor *t = bind_find(b, shape, dims, 0);
    if (t) bind_load(b, t, 0, t->size, 1, 0, (const void **)v);
}

/* Sets the name of the next tensor: the prefix of the layer and what is in it. */
static void bind_name(binder *b, const char *where, const char *what) {
    snprintf(b->name, sizeof b->name, "%s%s", where, what);
}

static void bind_matrix(binder *b, const char *where, const char *what, matrix *w, int rows, int cols) {
    bind_name(b, where, what);
    bind_matrix_here(b, w, rows, cols);
}

static void bind_vector(binder *b, const char *where, const char *what, const float **v, int n) {
    uint64_t shape[1] = {(uint64_t)n};
    bind_name(b, where, what);
    bind_vector_here(b, v, shape, 1);
}

static void bind_deltanet(binder *b, const char *where, deltanet_weights *w) {
    const config *c = &b->m->c;
    int keys = c->key_heads * c->key_dim, values = c->value_heads * c->value_dim;
    uint64_t conv[3] = {(uint64_t)(2 * keys + values), 1, (uint64_t)c->taps};
    bind_as(b, IN_DELTANET, 1, 1);
    bind_matrix(b, where, "linear_attn.in_proj_qkv.weight", &w->in_proj_qkv, 2 * keys + values, c->hidden);
    bind_matrix(b, where, "linear_attn.in_proj_z.weight", &w->in_proj_z, values, c->hidden);
    bind_matrix(b, where, "linear_attn.in_proj_b.weight", &w->in_proj_b, c->value_heads, c->hidden);
    bind_matrix(b, where, "linear_attn.in_proj_a.weight", &w->in_proj_a, c->value_heads, c->hidden);
    bind_matrix(b, where, "linear_attn.out_proj.weight", &w->out_proj, c->hidden, values);
    bind_name(b, where, "linear_attn.conv1d.weight");
    bind_vector_here(b, &w->conv1d, conv, 3);
    bind_vector(b, where, "linear_attn.A_log", &w->A_log, c->value_heads);
    bind_vector(b, where, "linear_attn.dt_bias", &w->dt_bias, c->value_heads);
    bind_vector(b, where, "linear_attn.norm.weight", &w->norm, c->value_dim);
}

/* The MTP layer is bound as IN_MTP by the caller, the others as IN_ATTENTION. */
static void bind_attention(binder *b, const char *where, attention_weights *w) {
    const config *c = &b->m->c;
    bind_matrix(b, where, "self_attn.q_proj.weight", &w->q_proj, 2 * c->heads * c->head_dim, c->hidden);
    bind_matrix(b, where, "self_attn.k_proj.weight", &w->k_proj, c->kv_heads * c->head_dim, c->hidden);
    bind_matrix(b, where, "self_attn.v_proj.weight", &w->v_proj, c->kv_heads * c->head_dim, c->hidden);
    bind_vector(b, where, "self_attn.q_norm.weight", &w->q_norm, c->head_dim);
    bind_vector(b, where, "self_attn.k_norm.weight", &w->k_norm, c->head_dim);
    if (b->kind == IN_MTP) bind_as(b, IN_MTP, 0, 1);           /* from here on only read when the MTP layer drafts */
    bind_matrix(b, where, "self_attn.o_proj.weight", &w->o_proj, c->hidden, c->heads * c->head_dim);
}

/* Experts in one tensor each for all of a layer: gate_up_proj [E][2 size][hidden], gate rows first, and down_proj. */
static void bind_experts_stacked(binder *b, const char *where, moe_weights *w) {
    const config *c = &b->m->c;
    uint64_t up[3] = {(uint64_t)c->experts, 2 * (uint64_t)c->expert_size, (uint64_t)c->hidden};
    uint64_t down[3] = {(uint64_t)c->experts, (uint64_t)c->hidden, (uint64_t)c->expert_size};
    bind_name(b, where, "mlp.experts.gate_up_proj");
    const tensor *gate_up = bind_find(b, up, 3, 0);
    bind_name(b, where, "mlp.experts.down_proj");
    const tensor *down_proj = bind_find(b, down, 3, 0);
    for (int e = 0; e < c->experts && !b->code; e++) {
        matrix *all[3] = {&w->gate_proj[e], &w->up_proj[e], &w->down_proj[e]};
        for (int i = 0; i < 3; i++) {
            const tensor *t = i < 2 ? gate_up : down_proj;
            uint64_t size = t->size / (uint64_t)(c->experts * (i < 2 ? 2 : 1));
            all[i]->type = (dtype)t->type;
            all[i]->rows = i < 2 ? c->expert_size : c->hidden;
            all[i]->cols = i < 2 ? c->hidden : c->expert_size;
            bind_packed(b, bind_load(b, t, size * (uint64_t)(i < 2 ? 2 * e + i : e), size, 0, 0, &all[i]->data), all[i]);
        }
    }
}

static void bind_experts(binder *b, const char *where, moe_weights *w) {
    const config *c = &b->m->c;
    bind_name(b, where, "mlp.experts.gate_up_proj");
    if (bind_has(b, b->name)) {
        bind_experts_stacked(b, where, w);
        return;
    }
    for (int e = 0; e < c->experts && !b->code; e++) {
        char expert[192];
        snprintf(expert, sizeof expert, "%smlp.experts.%d.", where, e);
        bind_matrix(b, expert, "gate_proj.weight", &w->gate_proj[e], c->expert_size, c->hidden);
        bind_matrix(b, expert, "up_proj.weight", &w->up_proj[e], c->expert_size, c->hidden);
        bind_matrix(b, expert, "down_proj.weight", &w->down_proj[e], c->hidden, c->expert_size);
    }
}

static void bind_moe(binder *b, const char *where, moe_weights *w, matrix *experts) {
    const config *c = &b->m->c;
    int mtp = b->kind == IN_MTP, shared = c->experts;
    w->gate_proj = experts;
    w->up_proj = experts + c->experts + 1;
    w->down_proj = experts + 2 * (c->experts + 1);
    if (!mtp) bind_as(b, IN_ROUTER, 1, 1);
    bind_matrix(b, where, "mlp.gate.weight", &w->router, c->experts, c->hidden);
    bind_matrix(b, where, "mlp.shared_expert_gate.weight", &w->shared_expert_gate, 1, c->hidden);
    if (!mtp) bind_as(b, IN_EXPERTS, (uint64_t)c->top_k, (uint64_t)c->experts);
    bind_experts(b, where, w);
    if (!mtp) bind_as(b, IN_SHARED, 1, 1);
    bind_matrix(b, where, "mlp.shared_expert.gate_proj.weight", &w->gate_proj[shared], c->shared_size, c->hidden);
    bind_matrix(b, where, "mlp.shared_expert.up_proj.weight", &w->up_proj[shared], c->shared_size, c->hidden);
    bind_matrix(b, where, "mlp.shared_expert.down_proj.weight", &w->down_proj[shared], c->hidden, c->shared_size);
}

static void bind_layer(binder *b, int index, layer *l, matrix *experts) {
    const config *c = &b->m->c;
    char where[128];
    snprintf(where, sizeof where, "%slayers.%d.", b->prefix, index);
    l->is_attention = c->is_attention[index];
    bind_as(b, IN_NORMS, 1, 1);
    bind_vector(b, where, "input_layernorm.weight",
                l->is_attention ? &l->attention.input_norm : &l->deltanet.input_norm, c->hidden);
    bind_vector(b, where, "post_attention_layernorm.weight", &l->moe.norm, c->hidden);
    bind_as(b, IN_ATTENTION, 1, 1);
    if (l->is_attention) bind_attention(b, where, &l->attention);
    else bind_deltanet(b, where, &l->deltanet);
    bind_moe(b, where, &l->moe, experts);
}

/* Of the MTP layer, decoding without speculation reads what its KV cache needs: fc, norms, q, k and v. */
static void bind_mtp(binder *b, matrix *experts) {
    mote_model *m = b->m;
    bind_as(b, IN_MTP, 1, 1);
    m->mtp.is_attention = 1;
    bind_matrix(b, "mtp.", "fc.weight", &m->mtp_fc, m->c.hidden, 2 * m->c.hidden);
    bind_vector(b, "mtp.", "pre_fc_norm_embedding.weight", &m->mtp_norm_embedding, m->c.hidden);
    bind_vector(b, "mtp.", "pre_fc_norm_hidden.weight", &m->mtp_norm_hidden, m->c.hidden);
    bind_vector(b, "mtp.", "norm.weight", &m->mtp_norm, m->c.hidden);
    bind_vector(b, "mtp.layers.0.", "input_layernorm.weight", &m->mtp.attention.input_norm, m->c.hidden);
    bind_vector(b, "mtp.layers.0.", "post_attention_layernorm.weight", &m->mtp.moe.norm, m->c.hidden);
    bind_attention(b, "mtp.layers.0.", &m->mtp.attention);
    bind_moe(b, "mtp.layers.0.", &m->mtp.moe, experts);
}

/* Drafts need no more of lm_head than the tokens that occur: its first rows, because a BPE vocabulary is in the order of its
   merges, the most frequent pairs first. What lies behind, rare words and special tokens, is never drafted and costs a
   pass when it comes. On a GPU they are a copy in FP8, half the bytes of BF16. A target's logits always come from all of
   lm_head as it is. */
static void bind_draft_head(binder *b) {
    mote_model *m = b->m;
    matrix *w = &m->draft_head;
    if (b->code) return;
    *w = m->lm_head;
    if (w->rows > m->draft_rows) w->rows = m->draft_rows;
    m->draft_at = b->arena;
    if (m->gpu < 0 || w->type == DTYPE_FP8) return;
    w->type = DTYPE_FP8;
    w->block_rows = w->block_cols = TILE;
    size_t scales = (size_t)((w->rows - 1) / TILE + 1) * (size_t)((w->cols - 1) / TILE + 1) * sizeof(float);
    b->arena += gpu_packed_size(w->type, w->rows, w->cols) + (scales + 63) / 64 * 64;
    m->modules[IN_MTP].bytes += (uint64_t)w->rows * (uint64_t)w->cols + scales;
}

static int has_prefix(const char *name, const char *prefix) {
    return !strncmp(name, prefix, strlen(prefix));
}

/* What is left over must be known to be of no use here: the vision tower, a tied lm_head, an MTP layer that is not run. */
static void bind_leftovers(binder *b, const mote_callbacks *callbacks) {
    const tensor_table *table = &b->files->table;
    int vision = 0, mtp = 0;
    for (size_t i = 0; i < table_count(table) && !b->code; i++) {
        const tensor *t = table_at(table, i);
        const char *name = table_name(table, t);
        if (t->used || (b->m->c.tied && !strcmp(name, "lm_head.weight"))) continue;
        if (has_prefix(name, "model.visual.") || has_prefix(name, "visual.")) vision++;
        else if (!b->m->has_mtp && has_prefix(name, "mtp.")) mtp++;
        else b->code = fail(b->err, MOTE_EFORMAT, "%s: tensor %s is not part of the model that config.json describes",
                            b->files->shards[t->file].path, name);
    }
    if (vision) notice(callbacks, "%s: %d vision tensors ignored: mote reads text only", b->files->dir, vision);
    if (mtp) notice(callbacks, "%s: %d MTP tensors ignored: there is no mtp.fc.weight", b->files->dir, mtp);
    if (b->m->c.mtp_layers && !b->m->has_mtp) notice(callbacks, "%s: no MTP layer in this checkpoint", b->files->dir);
}

/* Kernels find expert e's matrices *stride bytes times e behind those of expert 0: data and scales of gate, up and
   down. So they lie when all experts are stored alike. 0: they do not. */
static int experts_stride(const moe_weights *w, int experts, size_t *stride) {
    const matrix *all[3] = {w->gate_proj, w->up_proj, w->down_proj};
    *stride = experts > 1 ? (size_t)((uintptr_t)w->gate_proj[1].data - (uintptr_t)w->gate_proj[0].data) : 0;
    for (int i = 0; i < 3; i++)
        for (int e = 1; e < experts; e++) {
            const matrix *first = all[i], *x = all[i] + e;
            uintptr_t data = (uintptr_t)first->data + *stride * (size_t)e;
            uintptr_t scale = (uintptr_t)first->scale + *stride * (size_t)e;
            if (x->type != first->type || (uintptr_t)x->data != data) return 0;
            if (x->type == DTYPE_FP8 && (uintptr_t)x->scale != scale) return 0;
        }
    return 1;
}

/* What the kernels ask of a model. */
static int check_gpu(const binder *b) {
    const config *c = &b->m->c;
    const char *wrong = NULL;
    if (b->m->gpu < 0) return MOTE_OK;
    if (c->hidden % 4 || c->expert_size % 4 || c->shared_size % 4 || c->heads * c->head_dim % 4 || c->key_dim % 4 ||
        c->value_heads * c->value_dim % 4)
        wrong = "hidden, expert and head sizes that are no multiples of 4";
    if (c->experts > 1024 || c->top_k > 32) wrong = "more than 1024 experts, or 32 of them for a token,";
    if ((b->types[IN_DELTANET] | b->types[IN_ATTENTION] | b->types[IN_EXPERTS] | b->types[IN_SHARED] | b->types[IN_MTP]) >>
            TYPE_FP8 & 1 &&
        (c->fp8_rows & (c->fp8_rows - 1) || c->fp8_cols & (c->fp8_cols - 1) || c->fp8_cols < 64 || c->fp8_rows < 16))
        wrong = "FP8 blocks whose sides are no powers of two, or of less than 16 rows or 64 columns,";
    return wrong ? fail(b->err, MOTE_EUNSUPPORTED, "%s: %s are not supported on a GPU, use the CPU", b->files->dir, wrong)
                 : MOTE_OK;
}

/* Before loading, when all addresses are NULL, this compares the types; after it, the addresses, too. */
static int check_experts(const binder *b) {
    const mote_model *m = b->m;
    size_t stride;
    for (int i = 0; i <= m->c.layers && m->gpu >= 0; i++) {
        if (i == m->c.layers && !m->has_mtp) continue;
        if (!experts_stride(i < m->c.layers ? &m->layers[i].moe : &m->mtp.moe, m->c.experts, &stride))
            return fail(b->err, MOTE_EUNSUPPORTED,
                        "%s: layer %d: experts of different dtypes are not supported on a GPU, use the CPU",
                        b->files->dir, i);
    }
    return MOTE_OK;
}

static void bind_model(binder *b, const mote_callbacks *callbacks) {
    mote_model *m = b->m;
    const config *c = &m->c;
    size_t per_layer = 3 * ((size_t)c->experts + 1);
    snprintf(b->prefix, sizeof b->prefix, "%s",
             bind_has(b, "model.language_model.embed_tokens.weight") ? "model.language_model." : "model.");
    m->has_mtp = bind_has(b, "mtp.fc.weight");
    m->layers = (layer *)calloc((size_t)c->layers, sizeof *m->layers);
    m->experts = (matrix *)calloc(per_layer * ((size_t)c->layers + 1), sizeof *m->experts);
    if (!m->layers || !m->experts) {
        b->code = fail_memory(b->err);
        return;
    }
    bind_as(b, IN_EMBED, 1, c->tied ? 1 : (uint64_t)c->vocab);
    bind_matrix(b, b->prefix, "embed_tokens.weight", &m->embed_tokens, c->vocab, c->hidden);
    bind_as(b, IN_HEAD, 1, 1);
    if (c->tied) m->lm_head = m->embed_tokens;
    else bind_matrix(b, "lm_head.", "weight", &m->lm_head, c->vocab, c->hidden);
    bind_as(b, IN_NORMS, 1, 1);
    bind_vector(b, b->prefix, "norm.weight", &m->norm, c->hidden);
    for (int i = 0; i < c->layers && !b->code; i++) bind_layer(b, i, &m->layers[i], m->experts + per_layer * (size_t)i);
    if (m->has_mtp) {
        bind_mtp(b, m->experts + per_layer * (size_t)c->layers);
        bind_draft_head(b);
    }
    if (!b->code) bind_leftovers(b, callbacks);
    if (!b->code) b->code = check_gpu(b);
    if (!b->code) b->code = check_experts(b);
}

/* ---- 5. Loading --------------------------------------------------------------------------------------------------
   All weights lie in one block, the arena, in the memory of the device that computes. The list is sorted by file and
   offset and read with pread: no mapping, so that a file that changes or shrinks meanwhile is an error and not a signal.
   For a GPU a few threads read pieces of the files into pinned buffers, past the page cache where the file system lets
   them, and from there the pieces are copied while the next ones are read. */

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

#ifdef __CUDACC__
/* Names the operation that failed. A failure of one call must not show up in the next. */
static int gpu_fail(mote_error *err, cudaError_t status, const char *what) {
    (void)cudaGetLastError();
    if (status == cudaErrorMemoryAllocation) return fail(err, MOTE_ENOMEM, "%s: out of memory on the GPU", what);
    return fail(err, MOTE_EDEVICE, "%s: %s", what, cudaGetErrorString(status));
}

/* Makes GPU `ordinal` the model's, without using it yet. *none: there is no GPU at all. */
static int gpu_find(mote_model *m, int ordinal, int *none, mote_error *err) {
    int count = 0, driver = 0;
    cudaDeviceProp about;
    cudaError_t status = cudaGetDeviceCount(&count);
    (void)cudaDriverGetVersion(&driver);
    *none = !driver || status == cudaErrorNoDevice || (status == cudaSuccess && !count);
    if (*none) {
        (void)cudaGetLastError();
        return fail(err, MOTE_EDEVICE, "cuda:%d: no CUDA device", ordinal);
    }
    if (status == cudaErrorInsufficientDriver) {
        (void)cudaGetLastError();
        return fail(err, MOTE_EDEVICE, "cuda:%d: the driver supports CUDA %d.%d, needs %d.0", ordinal, driver / 1000,
                    driver % 1000 / 10, CUDART_VERSION / 1000);
    }
    if (status != cudaSuccess) return gpu_fail(err, status, "looking for CUDA devices");
    if (ordinal >= count)
        return fail(err, MOTE_EDEVICE, "cuda:%d: no such CUDA device, there %s %d", ordinal, count == 1 ? "is" : "are",
                    count);
    status = cudaGetDeviceProperties(&about, ordinal);
    if (status != cudaSuccess) return gpu_fail(err, status, "asking for the GPU's properties");
    if (about.major * 10 + about.minor < 89)
        return fail(err, MOTE_EDEVICE, "cuda:%d: %.100s has compute capability %d.%d, needs 8.9", ordinal, about.name,
                    about.major, about.minor);
    m->gpu = ordinal;
    m->gpu_sms = about.multiProcessorCount;
    m->gpu_cache = (uint32_t)about.l2CacheSize;
    m->gpu_cc = about.major * 10 + about.minor;
    m->gpu_integrated = about.integrated;
    snprintf(m->device, sizeof m->device, "cuda:%d %s (sm_%d)", ordinal, about.name, m->gpu_cc);
    return MOTE_OK;
}
#else
static int gpu_find(mote_model *m, int ordinal, int *none, mote_error *err) {
    (void)m;
    *none = 1;
    return fail(err, MOTE_EDEVICE, "cuda:%d: this build has no CUDA", ordinal);
}
#endif

/* "cpu": -1; "cuda", "cuda:0", "cuda:1", ...: the number; NULL: 0. */
static int device_number(const char *name, int *number, mote_error *err) {
    char *end;
    *number = name && !strcmp(name, "cpu") ? -1 : 0;
    if (!name || *number < 0 || !strcmp(name, "cuda")) return MOTE_OK;
    if (!strncmp(name, "cuda:", 5) && name[5] >= '0' && name[5] <= '9') {
        long n = strtol(name + 5, &end, 10);
        *number = n < 1000 ? (int)n : 1000;
        if (!*end) return MOTE_OK;
    }
    return fail(err, MOTE_EINVAL, "device \"%.40s\", expected \"cpu\", \"cuda\", or \"cuda:\" and a number", name);
}

enum { DRAFT_ROWS = 65536 };                   /* of lm_head, for drafts, unless asked otherwise */

/* A model without anything, on the device that `name` says; NULL: on a GPU if there is one that can be used. `idle`:
   the model will compute nothing, GPUs are left alone. */
static mote_model *model_new(const char *name, int idle, const mote_callbacks *callbacks, mote_error *err) {
    int number, none;
    mote_error why;
    if (device_number(name, &number, err)) return NULL;
    mote_model *m = (mote_model *)calloc(1, sizeof *m);
    if (!m) {
        fail_memory(err);
        return NULL;
    }
    m->gpu = -1;
    m->draft_rows = DRAFT_ROWS;
    m->info.device = m->device;
    snprintf(m->device, sizeof m->device, "cpu");
    if (number < 0 || idle || !gpu_find(m, number, &none, name ? err : &why)) return m;
    if (!name) {
        if (!none) notice(callbacks, "%s: using the CPU", why.message);
        return m;
    }
    free(m);
    return NULL;
}

/* Bytes free on the model's device, 0 when it does not say. */
static uint64_t device_available(const mote_model *m) {
#ifdef __CUDACC__
    size_t left = 0, all = 0;
    if (m->gpu >= 0 && !m->gpu_integrated)
        return cudaSetDevice(m->gpu) == cudaSuccess && cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
#endif
    (void)m;
    return memory_available();
}

#ifdef __CUDACC__
static int gpu_arena_open(mote_model *m, const char *dir, mote_error *err) {
    cudaError_t status = cudaSetDevice(m->gpu);
    if (status != cudaSuccess) return gpu_fail(err, status, m->device);
    status = cudaMalloc((void **)&m->arena, m->arena_size);
    if (status != cudaSuccess) m->arena = NULL;
    if (status == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return fail(err, MOTE_ENOMEM, "%s: the weights need %.1f GB, %s refused them", dir,
                    (double)m->arena_size * 1e-9, m->device);
    }
    if (status == cudaSuccess) status = cudaMemset(m->arena, 0, m->arena_size);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "allocating the weights");
}
#endif

/* Allocates the arena, if it fits, and sets all pointers into it. */
static int arena_open(binder *b, mote_error *err) {
    mote_model *m = b->m;
    load_item *items = (load_item *)(void *)b->items.data;
    int code = MOTE_OK;
    m->arena_size = b->arena ? b->arena : 64;
    uint64_t available = device_available(m);
    if (available && m->arena_size > available)
        return fail(err, MOTE_ENOMEM, "%s: the weights need %.1f GB, only %.1f GB of memory are free%s%s",
                    b->files->dir, (double)m->arena_size * 1e-9, (double)available * 1e-9, m->gpu < 0 ? "" : " on ",
                    m->gpu < 0 ? "" : m->device);
    if (m->gpu < 0) m->arena = (char *)aligned_alloc(64, m->arena_size);
#ifdef __CUDACC__
    else code = gpu_arena_open(m, b->files->dir, err);
#endif
    if (code) return code;
    if (!m->arena)
        return fail(err, MOTE_ENOMEM, "%s: the weights need %.1f GB, the system refused them", b->files->dir,
                    (double)m->arena_size * 1e-9);
    for (size_t i = 0; i < b->items.size / sizeof *items; i++) *items[i].target = m->arena + items[i].at;
    if (m->c.tied) m->lm_head = m->embed_tokens;
    m->draft_head.data = m->lm_head.data;
    m->draft_head.scale = m->lm_head.scale;
    return check_experts(b);
}

static void arena_close(mote_model *m) {
    if (m->gpu < 0) free(m->arena);
#ifdef __CUDACC__
    else if (m->arena && cudaSetDevice(m->gpu) == cudaSuccess) (void)cudaFree(m->arena);
#endif
}

static int by_place(const void *a, const void *b) {
    const load_item *x = (const load_item *)a, *y = (const load_item *)b;
    uint64_t i = x->from->begin + x->offset, j = y->from->begin + y->offset;
    if (x->from->file != y->from->file) return x->from->file < y->from->file ? -1 : 1;
    return i < j ? -1 : i > j;
}

static size_t item_elements(const load_item *item) {
    return (size_t)(item->size * 8 / (uint64_t)container_types[item->type].bits);
}

/* Bytes in the arena. */
static size_t item_held(const load_item *item) {
    return item->to_float ? item_elements(item) * sizeof(float) : (size_t)item->size;
}

/* Bytes it has in the arena: those it holds and zeros. */
static size_t item_room(const load_item *item) {
    size_t groups = ((size_t)item->row_bytes + GROUP_BYTES - 1) / GROUP_BYTES;
    return item->rows ? (size_t)gpu_octets(item->rows) * groups * PIECE : (item_held(item) + 63) / 64 * 64;
}

/* Widens n stored values to floats. */
static void widen(int type, const void *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (type == TYPE_F32) memcpy(to + i, (const char *)from + 4 * i, 4);
        if (type == TYPE_BF16) to[i] = float_of_bf16(((const uint16_t *)from)[i]);
        if (type == TYPE_F16) to[i] = float_of_f16(((const uint16_t *)from)[i]);
    }
}

/* What bytes [at, at + n) of an item add to the fingerprint, so that a session saved with one checkpoint is refused by
   another. A sample, to be cheap: all bytes of an item of up to 4 KiB, else the first 64 of each 64th part of it. A sum over
   bytes, each mixed with its tensor's name and its place there: so it does not depend on how tensors are spread over files,
   nor on the order in which threads load them. */
static uint64_t sample_bytes(const checkpoint *files, const load_item *item, const void *bytes, size_t at, size_t n) {
    enum { STRETCH = 64, STRETCHES = 64 };
    const char *name = table_name(&files->table, item->from);
    uint64_t seed = fnv1a(FNV_START, name, strlen(name)), sum = 0;
    size_t period = larger((size_t)item->size / STRETCHES, STRETCH), end = at + n;
    for (size_t p = at; p < end; p++) {
        if (p % period >= STRETCH) p += period - p % period;
        if (p >= end) break;
        uint64_t z = seed + ((item->offset + p) << 8 | ((const uint8_t *)bytes)[p - at]);
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;                        /* splitmix64 */
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        sum += z ^ z >> 31;
    }
    return sum;
}

/* Reads an item that becomes floats. */
static int load_floats(mote_model *m, const checkpoint *files, const load_item *item, float *to, mote_error *err) {
    const shard *s = &files->shards[item->from->file];
    size_t n = item_elements(item);
    void *stored = malloc((size_t)item->size);
    int code = stored ? read_at(s->fd, stored, (size_t)item->size, item->from->begin + item->offset, s->path, err)
                      : fail_memory(err);
    if (!code) widen(item->type, stored, to, n);
    if (!code) m->fingerprint += sample_bytes(files, item, stored, 0, (size_t)item->size);
    free(stored);
    for (size_t i = 0; !code && item->is_scale && i < n; i++)
        if (!(fabsf(to[i]) < 128))
            code = fail(err, MOTE_EFORMAT, "%s: tensor %s: scale %zu is %g, expected finite numbers below 128", s->path,
                        table_name(&files->table, item->from), i, (double)to[i]);
    return code;
}

/* The first FP8 NaN (0x7f, 0xff) in n codes, or n. */
static size_t fp8_find_nan(const uint8_t *codes, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t end = n - i < 4096 ? n : i + 4096, begin = i;
        int bad = 0;
        for (; i < end; i++) bad |= (codes[i] & 0x7f) == 0x7f;
        for (i = begin; bad; i++)
            if ((codes[i] & 0x7f) == 0x7f) return i;
        i = end;
    }
    return n;
}

/* Checks `n` bytes of an item, those from `at` on. */
static int check_codes(const checkpoint *files, const load_item *item, const void *bytes, size_t at, size_t n,
                       mote_error *err) {
    size_t nan = item->type == TYPE_FP8 ? fp8_find_nan((const uint8_t *)bytes, n) : n;
    if (nan == n) return MOTE_OK;
    return fail(err, MOTE_EFORMAT, "%s: tensor %s: weight %zu is NaN, expected finite numbers",
                files->shards[item->from->file].path, table_name(&files->table, item->from), at + nan);
}

static int load_item_bytes(mote_model *m, const checkpoint *files, const load_item *item, mote_error *err) {
    const shard *s = &files->shards[item->from->file];
    char *to = m->arena + item->at;
    size_t n = (size_t)item->size, held = item_held(item);
    memset(to + held, 0, item_room(item) - held);                     /* up to the next item */
    if (item->to_float) return load_floats(m, files, item, (float *)(void *)to, err);
    int code = read_at(s->fd, to, n, item->from->begin + item->offset, s->path, err);
    if (!code) code = check_codes(files, item, to, 0, n, err);
    if (!code) m->fingerprint += sample_bytes(files, item, to, 0, n);
    return code;
}

/* Reads the weights into an arena in host memory. */
static int load_here(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    load_item *items = (load_item *)(void *)b->items.data;
    size_t n = b->items.size / sizeof *items;
    uint64_t done = 0;
    for (size_t i = 0; i < n; i++) {
        if (cancelled(callbacks)) return fail(err, MOTE_ECANCELLED, "%s: loading was cancelled", b->files->dir);
        int code = load_item_bytes(b->m, b->files, &items[i], err);
        if (code) return code;
        done += items[i].size;
        if (i % 64 == 0 || i + 1 == n) report(callbacks, "loading weights", (double)done / ((double)b->arena + 1));
    }
    return MOTE_OK;
}

#ifdef __CUDACC__
enum {
    LOAD_THREADS = 4, LOAD_BUFFERS = 2,                        /* buffers of each thread */
    LOAD_PIECE = 8 << 20, LOAD_GAP = 64 << 10,                 /* bytes: of a buffer; of what is read for nothing */
    LOAD_ALIGN = 4096                                          /* of reads past the page cache */
};

typedef struct load_piece {                                    /* of a file, it fits a buffer when aligned */
    int file;
    uint64_t begin, end;
    size_t first;                                              /* the first item that lies in it */
} load_piece;

typedef struct gpu_loader {
    const mote_model *m;
    const checkpoint *files;
    const load_item *items;                                    /* those to become floats are left to the caller */
    size_t item_count;
    buf pieces;                                                /* struct load_piece */
    int *direct;                                               /* [shards] opened to read past the page cache, or -1 */
    char *buffers;                                             /* pinned, [LOAD_THREADS][LOAD_BUFFERS][LOAD_PIECE] */
    size_t next;                                               /* piece (atomic) */
    uint64_t done;                                             /* bytes (atomic) */
    uint64_t sample;                                           /* sum of sample_bytes (atomic) */
    int running, stop;                                         /* threads; they shall end (atomic) */
    pthread_mutex_t lock;
    mote_error err;                                            /* the first failure */
} gpu_loader;

typedef struct gpu_reader { gpu_loader *of; pthread_t id; char *buffers; } gpu_reader;

/* Keeps the first failure and lets all threads end. */
static void loader_failed(gpu_loader *l, const mote_error *err) {
    pthread_mutex_lock(&l->lock);
    if (!l->err.code) l->err = *err;
    pthread_mutex_unlock(&l->lock);
    __atomic_store_n(&l->stop, 1, __ATOMIC_RELEASE);
}

/* Cuts what the items cover into pieces. */
static int loader_cut(gpu_loader *l) {
    load_piece *p = NULL;
    for (size_t i = 0; i < l->item_count; i++) {
        const load_item *item = &l->items[i];
        uint64_t at = item->from->begin + item->offset, end = at + item->size;
        while (!item->to_float && at < end) {
            uint64_t limit = p ? p->begin / LOAD_ALIGN * LOAD_ALIGN + LOAD_PIECE : 0;
            if (!p || p->file != item->from->file || at > p->end + LOAD_GAP || at >= limit) {
                p = (load_piece *)buf_add(&l->pieces, NULL, sizeof *p);
                if (!p) return 0;
                p->file = item->from->file;
                p->begin = at;
                p->first = i;
                limit = at / LOAD_ALIGN * LOAD_ALIGN + LOAD_PIECE;
            }
            p->end = at = end < limit ? end : limit;
        }
    }
    return 1;
}

/* Reads n bytes from an aligned offset into an aligned buffer that has room for whole blocks: past the page cache as
   far as that goes (not every file system can, and not at the end of a file), then through it. */
static int read_past_cache(const gpu_loader *l, int file, char *to, size_t n, uint64_t offset, mote_error *err) {
    const shard *s = &l->files->shards[file];
    size_t done = 0;
    while (l->direct[file] >= 0 && done < n && done % LOAD_ALIGN == 0) {
        size_t ask = (n - done + LOAD_ALIGN - 1) / LOAD_ALIGN * LOAD_ALIGN;
        ssize_t got = pread(l->direct[file], to + done, ask, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += (size_t)got;
    }
    if (done >= n) return MOTE_OK;
    int code = read_at(s->fd, to + done, n - done, offset + done, s->path, err);
    (void)posix_fadvise(s->fd, (off_t)(offset + done), (off_t)(n - done), POSIX_FADV_DONTNEED);
    return code;
}

/* Reads a piece, checks it and starts to copy what belongs to items to their places. */
static int reader_piece(gpu_loader *l, const load_piece *p, char *buffer, cudaStream_t stream, mote_error *err) {
    uint64_t base = p->begin / LOAD_ALIGN * LOAD_ALIGN;
    int code = read_past_cache(l, p->file, buffer, (size_t)(p->end - base), base, err);
    for (size_t i = p->first; !code && i < l->item_count; i++) {
        const load_item *item = &l->items[i];
        uint64_t begin = item->from->begin + item->offset, end = begin + item->size;
        if (item->from->file != p->file || begin >= p->end) break;
        if (item->to_float) continue;
        uint64_t low = begin > p->begin ? begin : p->begin, high = end < p->end ? end : p->end;
        const char *bytes = buffer + (low - base);
        code = check_codes(l->files, item, bytes, (size_t)(low - begin), (size_t)(high - low), err);
        cudaError_t status = code ? cudaSuccess
                                  : cudaMemcpyAsync(l->m->arena + item->at + (low - begin), bytes, (size_t)(high - low),
                                                    cudaMemcpyHostToDevice, stream);
        if (status != cudaSuccess) code = gpu_fail(err, status, "copying weights to the GPU");
        if (code) break;
        __atomic_add_fetch(&l->done, high - low, __ATOMIC_RELAXED);
        __atomic_add_fetch(&l->sample, sample_bytes(l->files, item, bytes, (size_t)(low - begin), (size_t)(high - low)),
                           __ATOMIC_RELAXED);
    }
    return code;
}

/* Reads pieces until there are no more. A buffer is used again when its copies are done. */
static int reader_pieces(gpu_loader *l, char *buffers, cudaStream_t stream, const cudaEvent_t *copied,
                         mote_error *err) {
    for (size_t n = 0; !__atomic_load_n(&l->stop, __ATOMIC_ACQUIRE); n++) {
        size_t slot = n % LOAD_BUFFERS, i = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED);
        if (i >= l->pieces.size / sizeof(load_piece)) break;
        cudaError_t status = n < LOAD_BUFFERS ? cudaSuccess : cudaEventSynchronize(copied[slot]);
        if (status != cudaSuccess) return gpu_fail(err, status, "copying weights to the GPU");
        int code = reader_piece(l, (const load_piece *)(void *)l->pieces.data + i, buffers + slot * LOAD_PIECE, stream,
                                err);
        if (code) return code;
        status = cudaEventRecord(copied[slot], stream);
        if (status != cudaSuccess) return gpu_fail(err, status, "copying weights to the GPU");
    }
    return MOTE_OK;
}

static void *reader_main(void *argument) {
    gpu_reader *me = (gpu_reader *)argument;
    gpu_loader *l = me->of;
    cudaStream_t stream = NULL;
    cudaEvent_t copied[LOAD_BUFFERS];
    mote_error err;
    int events = 0, code = MOTE_OK;
    cudaError_t status = cudaSetDevice(l->m->gpu);
    if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status != cudaSuccess) stream = NULL;
    while (status == cudaSuccess && events < LOAD_BUFFERS) {
        status = cudaEventCreateWithFlags(&copied[events], cudaEventDisableTiming);
        events += status == cudaSuccess;
    }
    if (status != cudaSuccess) code = gpu_fail(&err, status, "starting a stream");
    else code = reader_pieces(l, me->buffers, stream, copied, &err);
    if (stream) status = cudaStreamSynchronize(stream);        /* in any case: it reads the buffers */
    if (!code && status != cudaSuccess) code = gpu_fail(&err, status, "copying weights to the GPU");
    for (int i = 0; i < events; i++) (void)cudaEventDestroy(copied[i]);
    if (stream) (void)cudaStreamDestroy(stream);
    if (code) loader_failed(l, &err);
    __atomic_sub_fetch(&l->running, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Items that become floats, one by one: few bytes. */
static int loader_floats(gpu_loader *l, mote_model *m, const load_item *item, mote_error *err) {
    float *floats = (float *)malloc(item_held(item));
    int code = floats ? load_floats(m, l->files, item, floats, err) : fail_memory(err);
    cudaError_t status =
        code ? cudaSuccess : cudaMemcpy(m->arena + item->at, floats, item_held(item), cudaMemcpyHostToDevice);
    free(floats);
    if (status != cudaSuccess) return gpu_fail(err, status, "copying weights to the GPU");
    if (!code) __atomic_add_fetch(&l->done, item->size, __ATOMIC_RELAXED);
    return code;
}

/* The caller's part while the threads read: floats, progress, cancelling. */
static void loader_run(gpu_loader *l, mote_model *m, uint64_t total, const mote_callbacks *callbacks) {
    struct timespec pause;
    mote_error err;
    int code = MOTE_OK;
    memset(&pause, 0, sizeof pause);
    pause.tv_nsec = 1000000;
    for (size_t i = 0; i < l->item_count || __atomic_load_n(&l->running, __ATOMIC_ACQUIRE);) {
        if (__atomic_load_n(&l->stop, __ATOMIC_ACQUIRE)) break;
        if (cancelled(callbacks))
            code = fail(&err, MOTE_ECANCELLED, "%s: loading was cancelled", l->files->dir);
        else if (i < l->item_count && l->items[i].to_float) code = loader_floats(l, m, &l->items[i], &err);
        if (i % 64 == 0 || i >= l->item_count)
            report(callbacks, "loading weights", (double)__atomic_load_n(&l->done, __ATOMIC_RELAXED) / (double)total);
        if (code) loader_failed(l, &err);
        if (i < l->item_count) i++;
        else nanosleep(&pause, NULL);
    }
}

/* Starts up to LOAD_THREADS threads, runs, and joins them. */
static void loader_threads(gpu_loader *l, mote_model *m, uint64_t total, const mote_callbacks *callbacks) {
    gpu_reader readers[LOAD_THREADS];
    mote_error err;
    int started = 0;
    size_t pieces = l->pieces.size / sizeof(load_piece);
    for (; started < LOAD_THREADS && (size_t)started < pieces; started++) {
        gpu_reader *r = &readers[started];
        r->of = l;
        r->buffers = l->buffers + (size_t)started * LOAD_BUFFERS * LOAD_PIECE;
        __atomic_add_fetch(&l->running, 1, __ATOMIC_RELAXED);
        if (!thread_start(&r->id, reader_main, r)) continue;
        __atomic_sub_fetch(&l->running, 1, __ATOMIC_RELAXED);
        break;
    }
    if (pieces && !started) {
        fail(&err, MOTE_ENOMEM, "the system gives no thread to load weights");
        loader_failed(l, &err);
    }
    loader_run(l, m, total ? total : 1, callbacks);
    for (int i = 0; i < started; i++) pthread_join(readers[i].id, NULL);
}

static void loader_close(gpu_loader *l) {
    for (int i = 0; l->direct && i < l->files->shard_count; i++) {
        if (l->direct[i] >= 0) close(l->direct[i]);
        (void)posix_fadvise(l->files->shards[i].fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    free(l->direct);
    buf_free(&l->pieces);
    if (l->buffers) (void)cudaFreeHost(l->buffers);
    pthread_mutex_destroy(&l->lock);
}

/* Reads the weights into an arena on a GPU. */
static int load_gpu(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    gpu_loader l;
    uint64_t total = 0;
    memset(&l, 0, sizeof l);
    pthread_mutex_init(&l.lock, NULL);
    l.m = b->m;
    l.files = b->files;
    l.items = (const load_item *)(void *)b->items.data;
    l.item_count = b->items.size / sizeof *l.items;
    l.direct = (int *)malloc((size_t)b->files->shard_count * sizeof *l.direct);
    for (int i = 0; l.direct && i < b->files->shard_count; i++)
        l.direct[i] = open(b->files->shards[i].path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    for (size_t i = 0; i < l.item_count; i++) total += l.items[i].size;
    if (!l.direct || !loader_cut(&l)) {
        fail_memory(&l.err);
    } else {
        size_t pieces = l.pieces.size / sizeof(load_piece), most = LOAD_THREADS, threads = pieces < most ? pieces : most;
        cudaError_t status = cudaSuccess;
        if (threads)
            status = cudaHostAlloc((void **)&l.buffers, threads * LOAD_BUFFERS * LOAD_PIECE, cudaHostAllocDefault);
        if (status == cudaSuccess) loader_threads(&l, b->m, total, callbacks);
        else gpu_fail(&l.err, status, "allocating pinned buffers");
    }
    loader_close(&l);
    b->m->fingerprint += l.sample;
    if (l.err.code && err) *err = l.err;
    return l.err.code;
}
#endif

#ifdef __CUDACC__
#define BOTH INLINE __host__ __device__
#else
#define BOTH INLINE
#endif

/* Looks for what makes an MTP layer useless: it would draft, but nothing that is ever accepted. */
enum { WEIGHTS_NOT_ZERO = 1, WEIGHTS_NOT_FINITE = 2 };

BOTH unsigned look_at(int type, const void *data, size_t i) {
    uint32_t bits = type == TYPE_F32   ? ((const uint32_t *)data)[i]
                    : type == TYPE_FP8 ? ((const uint8_t *)data)[i] & 0x7fu
                                       : ((const uint16_t *)data)[i] & 0x7fffu;
    uint32_t infinite = type == TYPE_F32 ? 0x7f800000u : type == TYPE_BF16 ? 0x7f80u : type == TYPE_F16 ? 0x7c00u : 0x7fu;
    if (type == TYPE_F32) bits &= 0x7fffffffu;
    return (bits != 0 ? WEIGHTS_NOT_ZERO : 0) | (bits >= infinite ? WEIGHTS_NOT_FINITE : 0);
}

SIMD static unsigned look_here(int type, const void *data, size_t n) {
    unsigned seen = 0;
    for (size_t i = 0; i < n; i++) seen |= look_at(type, data, i);
    return seen;
}

#ifdef __CUDACC__
static __global__ void gpu_look(int type, const void *data, size_t n, unsigned *all) {
    unsigned seen = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        seen |= look_at(type, data, i);
    seen = __reduce_or_sync(~0u, seen);
    if (threadIdx.x % 32 == 0 && seen) atomicOr(all, seen);
}

static int look_there(const mote_model *m, int type, const void *data, size_t n, unsigned *seen, mote_error *err) {
    unsigned *there = NULL;
    cudaError_t status = cudaMalloc((void **)&there, sizeof *there);
    if (status == cudaSuccess) status = cudaMemset(there, 0, sizeof *there);
    if (status == cudaSuccess) gpu_look<<<(unsigned)m->gpu_sms * 4, GPU_THREADS>>>(type, data, n, there);
    if (status == cudaSuccess) status = cudaGetLastError();
    if (status == cudaSuccess) status = cudaMemcpy(seen, there, sizeof *seen, cudaMemcpyDeviceToHost);
    (void)cudaFree(there);
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "checking the MTP layer");
}
#endif

/* An MTP layer with a weight that is no finite number, or with a projection of nothing but zeros, is left out. */
static int check_mtp(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    mote_model *m = b->m;
    const attention_weights *a = &m->mtp.attention;
    const void *const needed[] = {m->mtp_fc.data, a->q_proj.data, a->k_proj.data, a->v_proj.data, a->o_proj.data};
    const load_item *items = (const load_item *)(void *)b->items.data;
    for (size_t i = 0; i < b->items.size / sizeof *items && m->has_mtp; i++) {
        const load_item *item = &items[i];
        int type = item->to_float ? TYPE_F32 : item->type, code = MOTE_OK, needs = 0;
        unsigned seen = 0;
        if (!item->is_mtp) continue;
        for (int k = 0; k < 5; k++) needs |= m->arena + item->at == needed[k];
        if (m->gpu < 0) seen = look_here(type, m->arena + item->at, item_elements(item));
#ifdef __CUDACC__
        else code = look_there(m, type, m->arena + item->at, item_elements(item), &seen, err);
#endif
        if (code) return code;
        const char *wrong = needs && !seen ? "is all zero" : NULL;
        if (seen & WEIGHTS_NOT_FINITE) wrong = "holds what is no finite number";
        if (!wrong) continue;
        notice(callbacks, "%s: MTP layer left out, nothing will be drafted: tensor %s %s", b->files->dir,
               table_name(&b->files->table, item->from), wrong);
        m->has_mtp = m->info.mtp_layers = 0;
    }
    (void)err;
    return MOTE_OK;
}

#ifdef __CUDACC__
/* Fills in the draft head's copy, from the packed lm_head. */
static int make_draft_head(mote_model *m, mote_error *err) {
    matrix *w = &m->draft_head;
    if (!m->has_mtp || m->lm_head.type == DTYPE_FP8) return MOTE_OK;
    w->data = m->arena + m->draft_at;
    w->scale = (const float *)(const void *)(m->arena + m->draft_at + gpu_packed_size(w->type, w->rows, w->cols));
    cudaError_t status = gpu_quantise(&m->lm_head, w);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "making the draft head");
}

/* Packs every matrix in place, by way of a copy that is as large as the largest. */
static int pack_weights(binder *b, mote_error *err) {
    const load_item *items = (const load_item *)(void *)b->items.data;
    size_t n = b->items.size / sizeof *items, largest = 0;
    char *copy = NULL;
    for (size_t i = 0; i < n; i++)
        if (items[i].rows && items[i].size > largest) largest = (size_t)items[i].size;
    cudaError_t status = cudaMalloc((void **)&copy, largest ? largest : 1);
    for (size_t i = 0; i < n && status == cudaSuccess; i++) {
        gpu_packing p;
        if (!items[i].rows) continue;
        p.from = copy;
        p.to = b->m->arena + items[i].at;
        p.rows = items[i].rows;
        p.row_bytes = items[i].row_bytes;
        status = cudaMemcpyAsync(copy, p.to, (size_t)items[i].size, cudaMemcpyDeviceToDevice, 0);
        if (status == cudaSuccess) status = gpu_pack(&p, b->m->gpu_sms);
    }
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    (void)cudaFree(copy);
    return status == cudaSuccess ? make_draft_head(b->m, err) : gpu_fail(err, status, "packing the weights");
}
#endif

static int load_weights(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    int code = arena_open(b, err);
    if (code) return code;
    qsort(b->items.data, b->items.size / sizeof(load_item), sizeof(load_item), by_place);
    if (b->m->gpu < 0) code = load_here(b, callbacks, err);
#ifdef __CUDACC__
    else code = load_gpu(b, callbacks, err);
#endif
    if (!code) code = check_mtp(b, callbacks, err);
#ifdef __CUDACC__
    if (!code && b->m->gpu >= 0) code = pack_weights(b, err);
#endif
    if (!code) report(callbacks, "loading weights", 1);
    return code;
}

/* Made-up weights, for measuring and testing. Each is a function of its number in its item and of the item's place in the
   arena: integers, and one product of exact floats, so that a GPU and the CPU make the same bits. */

/* Random bits, for element i of the item with this seed. */
BOTH uint32_t made_bits(uint32_t seed, uint32_t i) {
    uint32_t x = ((i ^ i >> 16) * 0x7feb352du) ^ seed;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* -510..510, the sum of four bytes: a bell of standard deviation 148 */
BOTH int32_t made_bell(uint32_t seed, uint32_t i) {
    uint32_t x = made_bits(seed, i);
    return (int32_t)((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)) - 510;
}

BOTH float made_float(uint32_t seed, uint32_t i, made_floats f) {
    return (float)(f.low + (int32_t)(made_bits(seed, i) & f.mask)) * f.unit;
}

/* Standard deviation 0.02 */
BOTH uint16_t made_bf16(uint32_t seed, uint32_t i) {
    uint32_t bits;
    float f = (float)made_bell(seed, i) * 0x1.1bcp-13f;
    memcpy(&bits, &f, 4);
    return (uint16_t)((bits + 0x8000) >> 16);
}

/* A whole number up to 448, rounded to what E4M3 has. */
BOTH uint8_t made_fp8(uint32_t seed, uint32_t i) {
    uint32_t bits;
    int32_t bell = made_bell(seed, i);
    float f = (float)bell;
    memcpy(&bits, &f, 4);
    int32_t code = (int32_t)(((bits & 0x7fffffff) + 0x80000) >> 20) - (120 << 3);      /* below 0 only for 0 */
    code = code < 0 ? 0 : code;
    code = code < 0x7e ? code : 0x7e;
    return (uint8_t)((uint32_t)code | bits >> 31 << 7);
}

/* Elements begin, begin + step, ... before end, of an item that lies at `to`. No item has 2^31 of them. */
BOTH void made_range(const load_item *item, char *to, uint32_t begin, uint32_t end, uint32_t step) {
    uint32_t seed = made_bits(0x6d6f7465, (uint32_t)(item->at / 64));
    made_floats f = item->made;
    if (item->to_float)
        for (uint32_t i = begin; i < end; i += step) ((float *)(void *)to)[i] = made_float(seed, i, f);
    else if (item->type == TYPE_FP8)
        for (uint32_t i = begin; i < end; i += step) ((uint8_t *)to)[i] = made_fp8(seed, i);
    else
        for (uint32_t i = begin; i < end; i += step) ((uint16_t *)(void *)to)[i] = made_bf16(seed, i);
}

enum { MADE_PIECE = 1 << 16 };                                 /* elements */

typedef struct made_job { const load_item *item; char *to; uint32_t elements; } made_job;

SIMD static void made_piece(const load_item *item, char *to, uint32_t begin, uint32_t end) {
    made_range(item, to, begin, end, 1);
}

static void made_body(void *context, int begin, int end, int thread) {
    const made_job *job = (const made_job *)context;
    uint32_t from = (uint32_t)begin * MADE_PIECE, upto = (uint32_t)end * MADE_PIECE;
    (void)thread;
    made_piece(job->item, job->to, from, upto < job->elements ? upto : job->elements);
}

#ifdef __CUDACC__
static __global__ void gpu_make(const __grid_constant__ load_item item, char *to, uint32_t elements) {
    made_range(&item, to, blockIdx.x * blockDim.x + threadIdx.x, elements, gridDim.x * blockDim.x);
}

static int make_gpu_item(const mote_model *m, const load_item *item, mote_error *err) {
    uint32_t n = (uint32_t)item_elements(item), blocks = (n - 1) / GPU_THREADS + 1, most = (uint32_t)m->gpu_sms * 16;
    gpu_make<<<blocks < most ? blocks : most, GPU_THREADS>>>(*item, m->arena + item->at, n);
    cudaError_t status = cudaGetLastError();
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "making weights");
}
#endif

static int make_item(const mote_model *m, pool *threads, const load_item *item, mote_error *err) {
    made_job job;
#ifdef __CUDACC__
    if (m->gpu >= 0) return make_gpu_item(m, item, err);
#endif
    (void)err;
    size_t held = item_held(item);
    job.item = item;
    job.to = m->arena + item->at;
    job.elements = (uint32_t)item_elements(item);
    memset(job.to + held, 0, item_room(item) - held);
    parallel(threads, (int)((job.elements + MADE_PIECE - 1) / MADE_PIECE), made_body, &job);
    return MOTE_OK;
}

static int processors(void);

/* Fills the arena of a made-up checkpoint. */
static int make_weights(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    const load_item *items = (const load_item *)(void *)b->items.data;
    size_t n = b->items.size / sizeof *items;
    int code = arena_open(b, err);
    pool *threads = code ? NULL : pool_open(b->m->gpu < 0 ? processors() : 1);
    if (!code && !threads) code = fail(err, MOTE_ENOMEM, "the system gives no threads to make weights");
    for (size_t i = 0; i < n && !code; i++) {
        if (cancelled(callbacks)) code = fail(err, MOTE_ECANCELLED, "%s: loading was cancelled", b->files->dir);
        else code = make_item(b->m, threads, &items[i], err);
        if (!code && i % 64 == 0) report(callbacks, "making weights", (double)items[i].at / (double)b->arena);
    }
    pool_close(threads);
#ifdef __CUDACC__
    if (!code && b->m->gpu >= 0) {
        cudaError_t status = cudaDeviceSynchronize();
        if (status != cudaSuccess) code = gpu_fail(err, status, "making weights");
    }
    if (!code && b->m->gpu >= 0) code = pack_weights(b, err);
#endif
    if (!code) report(callbacks, "making weights", 1);
    return code;
}

/* ---- 6. Models --------------------------------------------------------------------------------------------------- */

const char *mote_version(void) {
    return MOTE_VERSION;
}

static void model_shapes(mote_model *m) {
    const config *c = &m->c;
    m->deltanet.hidden = m->attention.hidden = m->moe.hidden = c->hidden;
    m->deltanet.eps = m->attention.eps = m->moe.eps = c->eps;
    m->deltanet.key_heads = c->key_heads;
    m->deltanet.value_heads = c->value_heads;
    m->deltanet.key_dim = c->key_dim;
    m->deltanet.value_dim = c->value_dim;
    m->deltanet.taps = c->taps;
    m->attention.heads = c->heads;
    m->attention.kv_heads = c->kv_heads;
    m->attention.head_dim = c->head_dim;
    m->attention.rotary_dim = c->rotary_dim;
    m->moe.experts = c->experts;
    m->moe.top_k = c->top_k;
    m->moe.expert_size = c->expert_size;
    m->moe.shared_size = c->shared_size;
}

static void model_module_dtypes(mote_model *m, const unsigned *types) {
    for (int k = 0; k < MODULE_KINDS; k++) {
        char *to = m->module_dtypes[k];
        size_t n = 0;
        for (int type = 0; type <= TYPE_FP8; type++) {
            if (!(types[k] >> type & 1)) continue;
            n += (size_t)snprintf(to + n, sizeof m->module_dtypes[k] - n, "%s%s", n ? "+" : "",
                                  type == TYPE_FP8 ? "FP8" : container_types[type].name);
            if (type == TYPE_FP8)
                n += (size_t)snprintf(to + n, sizeof m->module_dtypes[k] - n, " %dx%d", m->c.fp8_rows, m->c.fp8_cols);
        }
        m->modules[k].name = module_names[k];
        m->modules[k].dtype = to;
    }
}

static void model_info(mote_model *m) {
    const config *c = &m->c;
    mote_info *o = &m->info;
    o->architecture = "qwen3_5_moe";
    o->layers = c->layers;
    for (int i = 0; i < c->layers; i++) o->attention_layers += c->is_attention[i];
    o->deltanet_layers = c->layers - o->attention_layers;
    o->mtp_layers = m->has_mtp;
    o->hidden_size = c->hidden;
    o->vocab_size = c->vocab;
    o->context_max = c->context_max;
    o->attention_heads = c->heads;
    o->kv_heads = c->kv_heads;
    o->head_dim = c->head_dim;
    o->rotary_dim = c->rotary_dim;
    o->deltanet_key_heads = c->key_heads;
    o->deltanet_value_heads = c->value_heads;
    o->deltanet_key_dim = c->key_dim;
    o->deltanet_value_dim = c->value_dim;
    o->experts = c->experts;
    o->experts_per_token = c->top_k;
    o->expert_size = c->expert_size;
    o->shared_expert_size = c->shared_size;
    o->tied_embeddings = c->tied;
    o->modules = m->modules;
    for (int k = 0; k < MODULE_KINDS; k++) {
        if (!m->modules[k].parameters) continue;
        o->parameters += m->modules[k].parameters;
        o->weight_bytes += m->modules[k].bytes;
        o->weight_bytes_per_token += m->modules[k].bytes_per_token;
        m->modules[o->module_count++] = m->modules[k];
    }
    o->kv_bytes_per_token = 2u * (uint64_t)o->attention_layers * (uint64_t)(c->kv_heads * c->head_dim) *
                            (m->gpu < 0 ? sizeof(float) : sizeof(uint16_t));
    o->state_bytes =
        (uint64_t)o->deltanet_layers * (uint64_t)c->value_heads * (uint64_t)(c->key_dim * c->value_dim) * sizeof(float);
}

/* Binds all tensors of the model that m->c describes: to files, or, with `made`, to none. */
static int model_bind_to(mote_model *m, checkpoint *files, int made, binder *b, const mote_callbacks *callbacks,
                         mote_error *err) {
    b->files = files;
    b->m = m;
    b->made = made;
    b->err = err;
    bind_model(b, callbacks);
    if (b->code) return b->code;
    model_shapes(m);
    model_module_dtypes(m, b->types);
    model_info(m);
    return MOTE_OK;
}

/* Reads config.json and all headers and binds all tensors. The binder and files are the caller's to free in any case. */
static int model_bind(mote_model *m, checkpoint *files, binder *b, const char *dir, const mote_callbacks *callbacks,
                      mote_error *err) {
    memset(b, 0, sizeof *b);
    memset(files, 0, sizeof *files);
    int code = config_read(&m->c, dir, err);
    if (!code) code = checkpoint_open(files, dir, err);
    if (!code) code = model_bind_to(m, files, 0, b, callbacks, err);
    if (!code) m->fingerprint = config_fingerprint(&m->c);
    return code;
}

static int model_open_weights(mote_model *m, const char *dir, int load, const mote_callbacks *callbacks,
                              mote_error *err) {
    checkpoint files;
    binder b;
    int code = model_bind(m, &files, &b, dir, callbacks, err);
    if (!code && load) code = load_weights(&b, callbacks, err);
    buf_free(&b.items);
    checkpoint_close(&files);
    return code;
}

/* The template's text: chat_template.jinja, or "chat_template" of tokenizer_config.json (a string, or a list of named
   ones of which "default" counts). Empty when there is none. */
static int template_read(const char *dir, buf *text, mote_error *err) {
    buf config_text;
    json j;
    memset(&config_text, 0, sizeof config_text);
    if (file_exists(dir, "chat_template.jinja")) return read_file(dir, "chat_template.jinja", text, err);
    if (!file_exists(dir, "tokenizer_config.json")) return MOTE_OK;
    int code = read_json(dir, "tokenizer_config.json", &config_text, &j, err);
    if (code) return code;
    uint32_t node = json_get(&j, 0, "chat_template");
    if (node && j.nodes[node].type == JSON_ARRAY) {
        uint32_t item = node + 1, count = j.nodes[node].size;
        for (node = 0; count--; item = j.nodes[item].next)
            if (json_equals(&j, json_get(&j, item, "name"), "default")) node = json_get(&j, item, "template");
    }
    if (node && j.nodes[node].type == JSON_STRING) {
        size_t n = json_string(&j, node, NULL, 0);
        char *to = (char *)buf_add(text, NULL, n);
        if (to) json_string(&j, node, to, n);
        else code = fail_memory(err);
    }
    json_free(&j);
    buf_free(&config_text);
    return code;
}

/* Adds a token that ends a text. 0: there are too many. */
static int add_eos(mote_model *m, int32_t id) {
    for (int i = 0; i < m->eos_count; i++)
        if (m->eos[i] == id) return 1;
    if (id >= 0 && m->eos_count == MAX_EOS) return 0;
    if (id >= 0) m->eos[m->eos_count++] = id;
    return 1;
}

/* generation_config.json's eos_token_id: an id or a list of them. One that was overlooked would let answers run on. */
static int generation_eos(mote_model *m, const json *j, const char *dir, mote_error *err) {
    uint32_t eos = json_get(j, 0, "eos_token_id");
    if (!eos || j->nodes[eos].type == JSON_NULL) return MOTE_OK;
    int list = j->nodes[eos].type == JSON_ARRAY;
    uint32_t count = list ? j->nodes[eos].size : 1;
    for (uint32_t i = 0, node = list ? eos + 1 : eos; i < count; i++, node = j->nodes[node].next) {
        uint64_t id;
        if (!json_u64(j, node, &id) || id > INT32_MAX)
            return fail(err, MOTE_EFORMAT, "%s/generation_config.json: eos_token_id must be a token id or a list of them", dir);
        if (!add_eos(m, (int32_t)id))
            return fail(err, MOTE_EUNSUPPORTED, "%s/generation_config.json: more than %d ids in eos_token_id", dir, MAX_EOS);
    }
    return MOTE_OK;
}

/* A sampling default. One that is out of range does not make a checkpoint unusable: it is left out, with a notice. */
static int generation_number(const json *j, const char *dir, const char *key, double low, double high, float *out,
                             const mote_callbacks *callbacks, mote_error *err) {
    uint32_t node = json_get(j, 0, key);
    double value = 0;
    if (!node || j->nodes[node].type == JSON_NULL) return MOTE_OK;
    int code = json_double(j, node, &value);
    if (code == MOTE_ENOMEM) return fail_memory(err);
    if (!code && value >= low && value <= high) *out = (float)value;
    else notice(callbacks, "%s/generation_config.json: %s ignored, it must be a number from %.10g to %.10g", dir, key, low,
                high);
    return MOTE_OK;
}

/* The sampling defaults. Without do_sample: greedy. */
static int generation_sampling(mote_sampling *to, const json *j, const char *dir, const mote_callbacks *callbacks,
                               mote_error *err) {
    float top_k = 0;
    struct { const char *key; double low, high; float *to; } numbers[] = {
        {"temperature", 0, 100, &to->temperature},
        {"top_k", 0, 1 << 24, &top_k},
        {"top_p", 0, 1, &to->top_p},
        {"min_p", 0, 1, &to->min_p},
        {"repetition_penalty", 0.01, 100, &to->repetition_penalty},
        {"presence_penalty", -100, 100, &to->presence_penalty},
        {"frequency_penalty", -100, 100, &to->frequency_penalty}};
    uint32_t sample = json_get(j, 0, "do_sample");
    int code = MOTE_OK;
    to->temperature = 1;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = generation_number(j, dir, numbers[i].key, numbers[i].low, numbers[i].high, numbers[i].to, callbacks, err);
    to->top_k = (int)top_k;
    if (!sample || j->nodes[sample].type <= JSON_FALSE) to->temperature = 0;     /* absent, null, false */
    return code;
}

/* generation_config.json: sampling defaults and end-of-text tokens. Without it, greedy. */
static int generation_read(mote_model *m, const char *dir, const mote_callbacks *callbacks, mote_error *err) {
    buf text;
    json j;
    memset(&text, 0, sizeof text);
    if (!file_exists(dir, "generation_config.json")) return MOTE_OK;
    int code = read_json(dir, "generation_config.json", &text, &j, err);
    if (code) return code;
    code = generation_eos(m, &j, dir, err);
    if (!code) code = generation_sampling(&m->sampling, &j, dir, callbacks, err);
    json_free(&j);
    buf_free(&text);
    return code;
}

/* Tokenizer and chat template, each where the folder has it; need_one: neither is an error. */
static int model_open_text(mote_model *m, const char *dir, int need_one, mote_error *err) {
    buf template_text;
    memset(&template_text, 0, sizeof template_text);
    int code = template_read(dir, &template_text, err);
    if (!code && (file_exists(dir, "tokenizer.json") || (need_one && !template_text.size)))
        code = tokenizer_open(&m->text, dir, err);
    for (int32_t id = 0; m->text && id < tokenizer_vocab(m->text); id++) {
        size_t n;
        if (tokenizer_token(m->text, id, &n)) m->longest_token = larger(m->longest_token, n);
    }
    if (!code && template_text.size) {
        m->has_template = 1;
        m->family = chat_detect(template_text.data, template_text.size);
        m->info.chat_template = m->family & CHAT_QWEN3_5 ? "Qwen3.5" : m->family & CHAT_QWEN3 ? "Qwen3" : NULL;
    }
    buf_free(&template_text);
    return code;
}

/* What ends a text when generation_config.json does not say: config.json's token, and the chat families' <|im_end|>.
   Without a tokenizer there is no text to end. */
static void model_default_eos(mote_model *m) {
    if (m->eos_count || !m->text) return;
    if (m->c.layers) add_eos(m, m->c.eos);                      /* the first two: there is room */
    if (m->family != CHAT_UNKNOWN) add_eos(m, tokenizer_find(m->text, "<|im_end|>"));
}

int mote_open(const char *dir, const mote_options *options, mote_model **model, mote_error *error) {
    mote_options o;
    mote_error failure;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (!dir || !model || o.parts < MOTE_EVERYTHING || o.parts > MOTE_DESCRIPTION || o.draft_rows < 0)
        return fail(error, MOTE_EINVAL,
                    "mote_open: needs a folder, a place for the model, parts of MOTE_EVERYTHING..., draft_rows of 0 or more");
    if (!error) error = &failure;
    mote_model *m = model_new(o.device, o.parts == MOTE_TEXT_ONLY, &o.callbacks, error);
    if (!m) return error->code;
    if (o.draft_rows) m->draft_rows = o.draft_rows;
    int code = generation_read(m, dir, &o.callbacks, error);
    if (!code && o.parts == MOTE_TEXT_ONLY) code = model_open_text(m, dir, 1, error);
    if (!code && o.parts != MOTE_TEXT_ONLY) {
        code = o.parts != MOTE_WEIGHTS_ONLY ? model_open_text(m, dir, 0, error) : MOTE_OK;
        if (!code) code = model_open_weights(m, dir, o.parts != MOTE_DESCRIPTION, &o.callbacks, error);
    }
    if (!code && m->text && m->c.layers && tokenizer_vocab(m->text) > m->c.vocab)
        code = fail(error, MOTE_EFORMAT, "%s/tokenizer.json: token ids up to %d, but config.json says vocab_size is %d",
                    dir, tokenizer_vocab(m->text) - 1, m->c.vocab);
    if (code) {
        mote_close(m);
        return code;
    }
    model_default_eos(m);
    *model = m;
    return MOTE_OK;
}

/* Shapes to make models of. All have full attention in every fourth layer and rotate a quarter of a head. */
typedef struct preset {
    const char *name;
    int layers, hidden, vocab, context;
    int heads, kv_heads, head_dim, key_heads, value_heads, delta_dim;
    int experts, top_k, expert_size;           /* the shared expert is as large */
} preset;

static const preset presets[] = {
    {"qwen3.5-35b-a3b", 40, 2048, 248320, 262144, 16, 2, 256, 16, 32, 128, 256, 8, 512},
    {"qwen3.5-122b-a10b", 48, 3072, 248320, 262144, 32, 2, 256, 16, 64, 128, 256, 8, 1024},
    {"small", 4, 2048, 2048, 262144, 16, 2, 256, 16, 32, 128, 256, 8, 512},
    {"tiny", 4, 256, 1024, 32768, 4, 2, 64, 2, 4, 32, 8, 2, 128}};

enum { PRESETS = sizeof presets / sizeof *presets };

static int preset_config(const preset *p, config *c, mote_error *err) {
    c->layers = p->layers;
    c->hidden = p->hidden;
    c->vocab = p->vocab;
    c->context_max = p->context;
    c->mtp_layers = 1;
    c->heads = p->heads;
    c->kv_heads = p->kv_heads;
    c->head_dim = p->head_dim;
    c->rotary_dim = p->head_dim / 4;
    c->key_heads = p->key_heads;
    c->value_heads = p->value_heads;
    c->key_dim = c->value_dim = p->delta_dim;
    c->taps = 4;
    c->experts = p->experts;
    c->top_k = p->top_k;
    c->expert_size = c->shared_size = p->expert_size;
    c->fp8_rows = c->fp8_cols = 128;
    c->eps = 1e-6f;
    c->theta = 1e7f;
    c->eos = -1;
    c->is_attention = (unsigned char *)calloc((size_t)c->layers, 1);
    if (!c->is_attention) return fail_memory(err);
    for (int i = 3; i < c->layers; i += 4) c->is_attention[i] = 1;
    return MOTE_OK;
}

/* "small:bf16" -> the preset, and in *made the type of its large matrices. NULL: not known. */
static const preset *preset_find(const char *name, int *made) {
    size_t n = strcspn(name, ":");
    *made = !name[n] || !strcmp(name + n, ":fp8") ? TYPE_FP8 : !strcmp(name + n, ":bf16") ? TYPE_BF16 : 0;
    for (int i = 0; i < PRESETS && *made; i++)
        if (strlen(presets[i].name) == n && !memcmp(presets[i].name, name, n)) return &presets[i];
    return NULL;
}

static int preset_unknown(const char *name, mote_error *err) {
    char known[200];
    size_t n = 0;
    for (int i = 0; i < PRESETS; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", presets[i].name);
    return fail(err, MOTE_EINVAL, "no synthetic model \"%.60s\": there are %s, each with :fp8 (default) or :bf16", name,
                known);
}

int mote_open_synthetic(const char *name, const mote_options *options, mote_model **model, mote_error *error) {
    mote_options o;
    checkpoint files;
    binder b;
    mote_error failure;
    int made;
    memset(&o, 0, sizeof o);
    memset(&files, 0, sizeof files);
    memset(&b, 0, sizeof b);
    if (options) o = *options;
    if (!name || !model || o.parts < MOTE_EVERYTHING || o.parts > MOTE_DESCRIPTION || o.parts == MOTE_TEXT_ONLY ||
        o.draft_rows < 0)
        return fail(error, MOTE_EINVAL,
                    "mote_open_synthetic: needs a name, a place for the model, no text, and draft_rows of 0 or more");
    const preset *p = preset_find(name, &made);
    if (!p) return preset_unknown(name, error);
    if (!error) error = &failure;
    mote_model *m = model_new(o.device, 0, &o.callbacks, error);
    if (!m) return error->code;
    if (o.draft_rows) m->draft_rows = o.draft_rows;
    files.dir = name;
    int code = preset_config(p, &m->c, error);
    if (!code) code = model_bind_to(m, &files, made, &b, &o.callbacks, error);
    if (!code) m->fingerprint = fnv1a(config_fingerprint(&m->c), &made, sizeof made);   /* the weights are made of these */
    if (!code && o.parts != MOTE_DESCRIPTION) code = make_weights(&b, &o.callbacks, error);
    buf_free(&b.items);
    if (code) mote_close(m);
    else *model = m;
    return code;
}

void mote_close(mote_model *model) {
    if (!model) return;
    tokenizer_free(model->text);
    free(model->c.is_attention);
    free(model->layers);
    free(model->experts);
    arena_close(model);
    free(model);
}

const mote_info *mote_model_info(const mote_model *model) {
    return model ? &model->info : NULL;
}

/* The rule of the calls that write up to `capacity` elements: always the count, the data only when it fits. */
static int give(const void *data, size_t count, size_t size, void *to, size_t capacity, size_t *needed,
                mote_error *err) {
    *needed = count;
    if (count > capacity) return fail(err, MOTE_EINVAL, "%zu elements do not fit into the %zu given", count, capacity);
    if (count) memcpy(to, data, count * size);
    return MOTE_OK;
}

/* What such a call is given: n elements at in, room for `capacity` elements at out. *count is 0 until there is a result. */
static int check_buffers(const char *call, const char *what, const mote_model *m, const void *in, size_t n,
                         const void *out, size_t capacity, size_t *count, mote_error *err) {
    if (count) *count = 0;
    if (m && count && (in || !n) && (out || !capacity)) return MOTE_OK;
    return fail(err, MOTE_EINVAL, "%s: needs a model, %s, room for the result and a place for the count", call, what);
}

static int need_text(const mote_model *m, mote_error *err) {
    return m->text ? MOTE_OK
                   : fail(err, MOTE_EUNSUPPORTED,
                          "the model has no tokenizer: no tokenizer.json, or opened for weights only");
}

static int need_chat(const mote_model *m, mote_error *err) {
    if (m->family != CHAT_UNKNOWN) return MOTE_OK;
    return fail(err, MOTE_EUNSUPPORTED, "%s (known: %s); raw prompts work",
                m->has_template ? "the checkpoint's chat template is not one mote knows"
                                : "the checkpoint has no chat template",
                chat_known());
}

int mote_tokenize(const mote_model *model, const char *text, size_t size, int special, int32_t *ids, size_t capacity,
                  size_t *count, mote_error *error) {
    buf out;
    text_range all = {0, size};
    memset(&out, 0, sizeof out);
    int code = check_buffers("mote_tokenize", "a text", model, text, size, ids, capacity, count, error);
    if (!code) code = need_text(model, error);
    if (!code) code = tokenizer_encode(model->text, text, size, &all, special ? 0 : 1, &out, error);
    if (!code) code = give(out.data, out.size / sizeof *ids, sizeof *ids, ids, capacity, count, error);
    buf_free(&out);
    return code;
}

int mote_detokenize(const mote_model *model, const int32_t *ids, size_t id_count, char *text, size_t capacity,
                    size_t *count, mote_error *error) {
    buf out;
    utf8_stream stream;
    memset(&out, 0, sizeof out);
    memset(&stream, 0, sizeof stream);
    int code = check_buffers("mote_detokenize", "token ids", model, ids, id_count, text, capacity, count, error);
    if (!code) code = need_text(model, error);
    for (size_t i = 0; !code && i < id_count; i++) {
        size_t n;
        const char *bytes = tokenizer_token(model->text, ids[i], &n);
        if (bytes) utf8_stream_push(&stream, bytes, n, &out);
        else code = fail(error, MOTE_EINVAL, "token %zu: id %d is not in the vocabulary", i, ids[i]);
    }
    utf8_stream_end(&stream, &out);
    if (!code && out.failed) code = fail_memory(error);
    if (!code) code = give(out.data, out.size, 1, text, capacity, count, error);
    buf_free(&out);
    return code;
}

int mote_render(const mote_model *model, const char *request, size_t size, char *text, size_t capacity, size_t *count,
                mote_error *error) {
    marked_text out;
    memset(&out, 0, sizeof out);
    int code = check_buffers("mote_render", "a request", model, request, 1, text, capacity, count, error);
    if (!code) code = need_chat(model, error);
    if (!code) code = chat_render(model->family, request, size, &out, error);
    if (!code) code = give(out.text.data, out.text.size, 1, text, capacity, count, error);
    marked_free(&out);
    return code;
}

/* Ids of a text in which what is from outside stays plain. */
static int encode_marked(const tokenizer *t, const marked_text *m, buf *ids, mote_error *err) {
    size_t count;
    const text_range *outside = outside_of(m, &count);
    return tokenizer_encode(t, m->text.data, m->text.size, outside, count, ids, err);
}

int mote_render_tokens(const mote_model *model, const char *request, size_t size, int32_t *ids, size_t capacity,
                       size_t *count, mote_error *error) {
    marked_text text;
    buf out;
    memset(&text, 0, sizeof text);
    memset(&out, 0, sizeof out);
    int code = check_buffers("mote_render_tokens", "a request", model, request, 1, ids, capacity, count, error);
    if (!code) code = need_text(model, error);
    if (!code) code = need_chat(model, error);
    if (!code) code = chat_render(model->family, request, size, &text, error);
    if (!code) code = encode_marked(model->text, &text, &out, error);
    if (!code) code = give(out.data, out.size / sizeof *ids, sizeof *ids, ids, capacity, count, error);
    marked_free(&text);
    buf_free(&out);
    return code;
}

const char *mote_token_bytes(const mote_model *model, int32_t id, size_t *size) {
    return model && size && model->text ? tokenizer_token(model->text, id, size) : NULL;
}

void mote_sampling_defaults(const mote_model *model, mote_sampling *sampling) {
    if (!sampling) return;
    memset(sampling, 0, sizeof *sampling);
    if (model) *sampling = model->sampling;
    if (getrandom(&sampling->seed, sizeof sampling->seed, 0) != (ssize_t)sizeof sampling->seed)
        sampling->seed = (uint64_t)(seconds() * 1e9);
    sampling->seed >>= 32;                     /* short enough for a person to type again */
}

/* ---- 7. Sessions: memory -----------------------------------------------------------------------------------------
   A session owns one block of floats, laid out once: KV cache, DeltaNet state with its log, and scratch for one chunk of
   rows. Laying out with no memory yet just counts, which is how the memory plan is made. */

enum { DEFAULT_CONTEXT = 8192, DEFAULT_CHUNK = 32, MAX_CHUNK = 1024, MAX_THREADS = 256 };

typedef struct kv_rows { void *k, *v; } kv_rows;            /* [context][kv_heads * head_dim] each, of kv_type */

typedef struct scratch {
    float *x, *u, *hidden;                                  /* [chunk][hidden] */
    float *angles;                                          /* [chunk][rotary_dim] */
    float *in, *gate, *out;                                 /* the widest of the projections of a mixer */
    float *k, *v, *a, *b, *decay, *beta;
    float *mtp_in;                                          /* [chunk][2 hidden] */
    float *scores;                                          /* [threads][context] */
    float *router, *shared_gate, *weight, *use_weight, *h;
    float *sorted;                                          /* [vocab] logits being sampled */
    float *block_logits;                                    /* [BLOCK][vocab] of a block of drafts */
    int32_t *choice, *list, *first, *use_row, *heap, *seen; /* seen: [vocab], zero between calls */
} scratch;

/* Speculation: see section 12. */
typedef struct speculation {
    mote_speculation seen;
    double hope[BLOCK - 1];                                 /* that a draft is accepted if those before it are */
    double trust[BLOCK - 1];                                /* in that: the passes it is the average of */
    int measured_at;                                        /* tokens of the timeline when costs were measured */
    int32_t next;                                           /* the token that begins the next pass; -1: not chosen yet */
    int drafts;                                             /* that follow it, made already */
} speculation;

typedef struct memory_parts { size_t kv, state, scratch; } memory_parts;   /* floats */

struct mote_session {
    const mote_model *m;
    pid_t owner;                 /* the process whose session it is, and whose threads */
    int busy;                    /* inside a call that may call the application back */
    mote_session_options o;      /* with defaults filled in */
    pool *threads;
    float *memory;               /* KV, state and scratch; on a GPU in its memory */
    float *here;                 /* on a GPU: what the host works on, pinned, here_floats of them */
    size_t here_floats;
    memory_parts parts;
    struct gpu_session *gpu;     /* NULL: on the CPU */
    int32_t *tokens;             /* [context] */
    int count;                   /* tokens of the timeline */
    int block_at;                /* those before the block computed last */
    int valid;                   /* rows of tokens and KV that hold what was computed: >= count after a rewind */
    int generated_from;          /* what follows was generated */
    int logged, kept;            /* rows of the logged block, and of them those in the timeline */
    dtype kv_type;
    kv_rows *kv;                 /* [layers + 1], the last one is the MTP layer's; NULL where there are none */
    deltanet_state *deltanet;    /* [layers] */
    float *state;                /* all DeltaNet state, one piece */
    float *last_hidden;          /* [hidden] after the final norm, of the last token: see session_last_hidden */
    float *logits;               /* [vocab] after the last token: see session_logits */
    int logits_in_block;         /* s.block_logits has those of all rows of the block */
    speculation spec;
    scratch s;
};

#ifdef __CUDACC__
enum gpu_kind { GPU_NO_LOGITS, GPU_LAST_LOGITS, GPU_ALL_LOGITS, GPU_MTP_LOGITS, GPU_KINDS };

struct gpu_session {
    gpu_queue q;
    cudaStream_t stream;
    cudaGraphExec_t graph[GPU_KINDS][GPU_ROWS + 1];
    cudaGraphExec_t cycle[GPU_ROWS + 1][GPU_ROWS];          /* [rows verified][drafts made]; [0]: drafts alone */
    gpu_step *step;
    gpu_how *how, how_there;                                /* on the GPU, and what was put there last */
    gpu_how *greedy;                                        /* on the GPU: for drafts */
    float *frequencies;                                     /* [rotary_dim / 2] */
    float *x, *mtp_x, *hidden;                              /* [GPU_ROWS][hidden] */
    float *in, *z, *a, *b, *k, *decay, *squares, *k_new, *v_new, *o;
    float *parts, *router, *shared_gate, *mtp_in;
    float *logits, *mtp_logits, *draft_logits;              /* [GPU_ROWS][vocab], [GPU_ROWS][vocab], [draft rows] */
    int *tickets, splits;
    gpu_routing *routing;
    int32_t *chosen;                                        /* [layers + 1] experts used by the last step */
    float *h;
    uint64_t *picks;
    volatile gpu_answer *answer;                            /* pinned: what the sampler tells the host */
    uint32_t sequence;                                      /* of the answers asked for */
    uint32_t overlap;                                       /* as in gpu_moe */
    int rows;                                               /* of the last step: the last is the timeline's */
    int head_done, logits_row, logits_here;                 /* are the last row's logits computed, in which row; on the host */
    int all_logits;                                         /* those of every row are there */
    mote_launch *launches;
    gpu_note *notes;
};
#endif

typedef struct layout { float *base; size_t used; } layout;

static float *take(layout *l, size_t floats) {
    float *at = l->base ? l->base + l->used : NULL;
    l->used += (floats + 15) / 16 * 16;
    return at;
}

static void layout_deltanet(layout *l, const deltanet_shape *s, deltanet_state *to) {
    size_t channels = (size_t)deltanet_channels(s), keys = (size_t)(s->key_heads * s->key_dim);
    size_t values = (size_t)(s->value_heads * s->value_dim);
    to->S = take(l, values * (size_t)s->key_dim);
    to->window = take(l, ((size_t)s->taps - 1 + BLOCK) * channels);
    to->log_raw = to->window ? to->window + ((size_t)s->taps - 1) * channels : NULL;
    to->log_k = take(l, BLOCK * keys);
    to->log_u = take(l, BLOCK * values);
    to->log_decay = take(l, BLOCK * (size_t)s->value_heads);
}

/* For a chunk of a prompt, or a block of drafts. */
static void layout_scratch(layout *l, const config *c, const mote_session_options *o, scratch *s) {
    size_t T = larger((size_t)o->chunk, BLOCK), hidden = (size_t)c->hidden, kv = (size_t)(c->kv_heads * c->head_dim);
    size_t heads = (size_t)(c->heads * c->head_dim), values = (size_t)(c->value_heads * c->value_dim);
    size_t channels = 2 * (size_t)(c->key_heads * c->key_dim) + values, uses = T * ((size_t)c->top_k + 1);
    s->x = take(l, T * hidden);
    s->u = take(l, T * hidden);
    s->hidden = take(l, T * hidden);
    s->angles = take(l, T * (size_t)c->rotary_dim + 1);
    s->in = take(l, T * larger(channels, 2 * heads));
    s->gate = take(l, T * larger(channels, values));       /* DeltaNet: channels after conv1d */
    s->out = take(l, T * larger(values, heads));
    s->k = take(l, T * larger(kv, values));                 /* DeltaNet: z */
    s->v = take(l, T * kv);
    s->a = take(l, T * (size_t)c->value_heads);
    s->b = take(l, T * (size_t)c->value_heads);
    s->decay = take(l, T * (size_t)c->value_heads);
    s->beta = take(l, T * (size_t)c->value_heads);
    s->mtp_in = take(l, T * 2 * hidden);
    s->scores = take(l, (size_t)o->threads * (size_t)o->context);
    s->router = take(l, T * (size_t)c->experts);
    s->shared_gate = take(l, T);
    s->weight = take(l, uses);
    s->use_weight = take(l, uses);
    s->h = take(l, uses * larger((size_t)c->expert_size, (size_t)c->shared_size));
    s->choice = (int32_t *)(void *)take(l, uses);
    s->list = (int32_t *)(void *)take(l, (size_t)c->experts + 1);
    s->first = (int32_t *)(void *)take(l, (size_t)c->experts + 2);
    s->use_row = (int32_t *)(void *)take(l, uses);
}

/* Whether a session has KV rows of the MTP layer. */
static int session_has_mtp(const mote_model *m, const mote_session_options *o) {
    return m->has_mtp && o->mtp != MOTE_MTP_OFF;
}

/* What a session keeps where the host computes, also with a GPU. */
static void layout_here(layout *l, const config *c, const mote_session_options *o, mote_session *s) {
    s->logits = take(l, (size_t)c->vocab);
    s->tokens = (int32_t *)(void *)take(l, (size_t)o->context);
    s->s.sorted = take(l, larger((size_t)c->vocab, (size_t)c->rotary_dim));
    s->s.heap = (int32_t *)(void *)take(l, (size_t)c->vocab);
    s->s.seen = (int32_t *)(void *)take(l, (size_t)c->vocab);
    s->s.block_logits = session_has_mtp(s->m, o) ? take(l, BLOCK * (size_t)c->vocab) : NULL;
}

#ifdef __CUDACC__
static void layout_gpu(layout *l, const mote_model *m, const mote_session_options *o, struct gpu_session *g);
#endif

/* The type that MOTE_KV_... stands for. */
static dtype kv_type_of(int kv) {
    return kv == MOTE_KV_BF16 ? DTYPE_BF16 : kv == MOTE_KV_FP8 ? DTYPE_FP8 : DTYPE_F32;
}

/* Lays out a session's memory from `base`, on a GPU with the host's part from `here`, or counts it when base is NULL. kv
   and deltanet have room for all layers. */
static memory_parts layout_session(const mote_model *m, const mote_session_options *o, float *base, float *here,
                                   mote_session *s) {
    const config *c = &m->c;
    layout l;
    memory_parts parts;
    size_t rows = (size_t)o->context * (size_t)(c->kv_heads * c->head_dim) * kv_size(kv_type_of(o->kv));
    size_t floats = (rows + sizeof(float) - 1) / sizeof(float);
    l.base = base;
    l.used = 0;
    for (int i = 0; i <= c->layers; i++) {
        int has_kv = i < c->layers ? c->is_attention[i] : session_has_mtp(m, o);
        s->kv[i].k = has_kv ? take(&l, floats) : NULL;
        s->kv[i].v = has_kv ? take(&l, floats) : NULL;
    }
    parts.kv = l.used;
    s->state = base ? base + l.used : NULL;
    for (int i = 0; i < c->layers; i++)
        if (!c->is_attention[i]) layout_deltanet(&l, &m->deltanet, &s->deltanet[i]);
    parts.state = l.used - parts.kv;
    s->last_hidden = take(&l, (size_t)c->hidden);
    if (m->gpu < 0) {
        layout_here(&l, c, o, s);
        layout_scratch(&l, c, o, &s->s);
    }
#ifdef __CUDACC__
    if (m->gpu >= 0) {
        layout host;
        host.base = here;
        host.used = 0;
        layout_gpu(&l, m, o, s->gpu);
        layout_here(&host, c, o, s);
        s->here_floats = host.used;
    }
#endif
    (void)here;
    parts.scratch = l.used - parts.kv - parts.state;
    return parts;
}

/* Processors this process may use. */
static int processors(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

/* Fills in defaults and checks. */
static int session_options(const mote_model *m, const mote_session_options *given, mote_session_options *o,
                           mote_error *err) {
    memset(o, 0, sizeof *o);
    if (given) *o = *given;
    if (!o->context) o->context = m->c.context_max < DEFAULT_CONTEXT ? m->c.context_max : DEFAULT_CONTEXT;
    if (!o->chunk) o->chunk = DEFAULT_CHUNK;
    if (m->gpu >= 0 && o->chunk > BLOCK) o->chunk = BLOCK;
    if (!o->threads) o->threads = processors();
    if (o->kv == MOTE_KV_DEFAULT) o->kv = m->gpu < 0 ? MOTE_KV_F32 : MOTE_KV_BF16;
    if (o->context < 1 || o->context > m->c.context_max)
        return fail(err, MOTE_EINVAL, "a context of %d tokens, expected 1 to the model's %d", o->context,
                    m->c.context_max);
    if (o->chunk < 1 || o->chunk > MAX_CHUNK)
        return fail(err, MOTE_EINVAL, "a chunk of %d rows, expected 1 to %d", o->chunk, MAX_CHUNK);
    if (o->threads < 1 || o->threads > MAX_THREADS)
        return fail(err, MOTE_EINVAL, "%d threads, expected 1 to %d", o->threads, MAX_THREADS);
    if (o->kv < MOTE_KV_F32 || o->kv > MOTE_KV_FP8)
        return fail(err, MOTE_EINVAL, "KV type %d, expected %d to %d", o->kv, MOTE_KV_DEFAULT, MOTE_KV_FP8);
    if (o->kv == MOTE_KV_F32 && m->gpu >= 0)
        return fail(err, MOTE_EUNSUPPORTED, "a KV cache in F32 is for the CPU, a GPU takes BF16 or FP8");
    if (o->sms < 0) return fail(err, MOTE_EINVAL, "%d multiprocessors", o->sms);
    if (o->mtp < MOTE_MTP_OFF || o->mtp >= BLOCK)
        return fail(err, MOTE_EINVAL, "%d drafts, expected %d (off), %d (auto), or 1 to %d", o->mtp, MOTE_MTP_OFF,
                    MOTE_MTP_AUTO, BLOCK - 1);
    return MOTE_OK;
}

static mote_session *session_shell(const mote_model *m) {
    mote_session *s = (mote_session *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->m = m;
    s->owner = getpid();
    s->kv = (kv_rows *)calloc((size_t)m->c.layers + 1, sizeof *s->kv);
    s->deltanet = (deltanet_state *)calloc((size_t)m->c.layers, sizeof *s->deltanet);
#ifdef __CUDACC__
    if (m->gpu >= 0) s->gpu = (struct gpu_session *)calloc(1, sizeof *s->gpu);
    if (m->gpu >= 0 && !s->gpu) {
        mote_session_close(s);
        return NULL;
    }
#endif
    if (s->kv && s->deltanet) return s;
    mote_session_close(s);
    return NULL;
}

static size_t parts_bytes(const memory_parts *p) {
    return (p->kv + p->state + p->scratch) * sizeof(float);
}

/* The longest context whose session fits into `left` bytes, at most the model's; 0: none. s only counts. */
static int context_that_fits(const mote_model *m, const mote_session_options *options, uint64_t left, mote_session *s) {
    mote_session_options o = *options;
    int fits = 0, over = m->c.context_max + 1;
    while (over - fits > 1) {
        o.context = fits + (over - fits) / 2;
        memory_parts parts = layout_session(m, &o, NULL, NULL, s);
        if (parts_bytes(&parts) <= left) fits = o.context;
        else over = o.context;
    }
    return fits;
}

int mote_plan(const char *dir, const mote_options *model, const mote_session_options *options, mote_memory *plan,
              mote_error *error) {
    mote_callbacks silent;
    mote_session_options o;
    mote_error failure;
    checkpoint files;
    binder b;
    mote_session *s = NULL;
    memset(&silent, 0, sizeof silent);
    if (!dir || !plan) return fail(error, MOTE_EINVAL, "mote_plan: needs a folder and a place for the plan");
    if (!error) error = &failure;
    mote_model *m = model_new(model ? model->device : NULL, 0, &silent, error);
    if (!m) return error->code;
    if (model && model->draft_rows > 0) m->draft_rows = model->draft_rows;
    int code = model_bind(m, &files, &b, dir, &silent, error);
    if (!code) code = session_options(m, options, &o, error);
    if (!code && !(s = session_shell(m))) code = fail_memory(error);
    if (!code) {
        memory_parts parts = layout_session(m, &o, NULL, NULL, s);
        uint64_t available = device_available(m);
        plan->weights = b.arena;
        plan->kv = parts.kv * sizeof(float);
        plan->state = parts.state * sizeof(float);
        plan->scratch = parts.scratch * sizeof(float);
        plan->total = b.arena + parts_bytes(&parts);
        plan->available = available;
        plan->context = o.context;
        plan->context_fits = -1;
        if (available) plan->context_fits = context_that_fits(m, &o, available > b.arena ? available - b.arena : 0, s);
    }
    mote_session_close(s);
    buf_free(&b.items);
    checkpoint_close(&files);
    mote_close(m);
    return code;
}

static int session_open_here(mote_session *s, mote_error *err) {
    size_t bytes = parts_bytes(&s->parts);
    uint64_t available = memory_available();
    if (!available || bytes <= available) s->memory = (float *)calloc(1, bytes);
    if (!s->memory)
        return fail(err, MOTE_ENOMEM, "a session of %d tokens needs %.2f GB, %.2f GB of memory are free", s->o.context,
                    (double)bytes * 1e-9, (double)available * 1e-9);
    s->threads = pool_open(s->o.threads);
    if (!s->threads) return fail(err, MOTE_ENOMEM, "the system gives no %d threads", s->o.threads);
    layout_session(s->m, &s->o, s->memory, NULL, s);
    return MOTE_OK;
}

static void speculation_start(mote_session *s);
#ifdef __CUDACC__
static int gpu_session_open(mote_session *s, mote_error *err);
static void gpu_session_close(mote_session *s);
#endif

int mote_session_open(const mote_model *model, const mote_session_options *options, mote_session **session,
                      mote_error *error) {
    mote_session_options o;
    if (!model || !session)
        return fail(error, MOTE_EINVAL, "mote_session_open: needs a model and a place for the session");
    if (!model->arena) return fail(error, MOTE_EUNSUPPORTED, "the model was opened without weights");
    int code = session_options(model, options, &o, error);
    if (code) return code;
    mote_session *s = session_shell(model);
    if (!s) return fail_memory(error);
    s->o = o;
    s->kv_type = kv_type_of(o.kv);
    speculation_start(s);
    s->parts = layout_session(model, &o, NULL, NULL, s);
#ifdef __CUDACC__
    if (s->gpu) code = gpu_session_open(s, error);
#endif
    if (!s->gpu) code = session_open_here(s, error);
    if (code) {
        mote_session_close(s);
        return code;
    }
    *session = s;
    return MOTE_OK;
}

void mote_session_close(mote_session *session) {
    if (!session) return;
    int mine = session->owner == getpid();
    if (mine && session->busy) {
        notice(&session->o.callbacks, "mote_session_close: ignored: a callback must not close the session that calls it");
        return;
    }
#ifdef __CUDACC__
    gpu_session_close(session);
#endif
    if (mine) pool_close(session->threads);
    else pool_abandon(session->threads);
    free(session->memory);
    free(session->kv);
    free(session->deltanet);
    free(session);
}

/* The door of every call on a session but those that say so. Calls that may call the application back set `busy`: what a
   callback would see or change of that session is half a step. needs: what the call is and must be given, "mote_step: needs
   a session"; given: whether it was. */
static int session_enter(const mote_session *s, int given, const char *needs, mote_error *err) {
    int name = (int)strcspn(needs, ":");
    if (!s || !given) return fail(err, MOTE_EINVAL, "%s", needs);
    if (s->owner != getpid())
        return fail(err, MOTE_EINVAL, "%.*s: the session is of the process that opened it, a forked child can only close it",
                    name, needs);
    if (s->busy)
        return fail(err, MOTE_EINVAL, "%.*s: the session is busy: a callback must not use the session that calls it", name,
                    needs);
    return MOTE_OK;
}

/* ---- 8. The forward pass -----------------------------------------------------------------------------------------
   T token rows through all layers: every layer adds a mixer (DeltaNet or attention) and a mixture of experts to the
   residual x. A block of up to BLOCK rows can be kept in part afterwards: see session_keep. */

static void run_deltanet(mote_session *s, const layer *l, deltanet_state *state, int T) {
    scratch *w = &s->s;
    deltanet_job job;
    memset(&job, 0, sizeof job);
    job.shape = &s->m->deltanet;
    job.w = &l->deltanet;
    job.state = *state;
    job.T = T;
    job.replay = s->kept;
    job.raw = w->in;
    job.conv = w->gate;
    job.a = w->a;
    job.b = w->b;
    job.decay = w->decay;
    job.beta = w->beta;
    job.o = w->out;
    job.z = w->k;
    stage_norm_in_proj(s->threads, job.shape, job.w, w->x, T, w->u, w->in, w->k, w->b, w->a);
    stage_conv_delta(s->threads, &job);
    stage_gated_norm_out(s->threads, &job, w->x);
}

/* With kv_only the layer's KV rows are all that is wanted: x is left as it is. */
static void run_attention(mote_session *s, const layer *l, const kv_rows *kv, int position, int T, int kv_only) {
    scratch *w = &s->s;
    attention_job job;
    memset(&job, 0, sizeof job);
    job.shape = &s->m->attention;
    job.w = &l->attention;
    job.T = T;
    job.position = position;
    job.angles = w->angles;
    job.qg = kv_only ? NULL : w->in;
    job.k_new = w->k;
    job.v_new = w->v;
    job.kv = s->kv_type;
    job.k = kv->k;
    job.v = kv->v;
    job.scores = w->scores;
    job.context = s->o.context;
    job.o = w->out;
    rotary_angles(w->angles, position, T, s->m->attention.rotary_dim, s->m->c.theta);
    stage_norm_qkv(s->threads, job.shape, job.w, w->x, T, w->u, job.qg, w->k, w->v);
    if (kv_only) {
        parallel(s->threads, T, attention_prepare, &job);
        return;
    }
    stage_rope_attend(s->threads, &job);
    stage_out(s->threads, &job, w->x);
}

static void run_moe(mote_session *s, const layer *l, int T) {
    scratch *w = &s->s;
    moe_job job;
    memset(&job, 0, sizeof job);
    job.shape = &s->m->moe;
    job.w = &l->moe;
    job.T = T;
    job.u = w->u;
    job.router = w->router;
    job.shared_gate = w->shared_gate;
    job.choice = w->choice;
    job.weight = w->weight;
    job.list = w->list;
    job.first = w->first;
    job.use_row = w->use_row;
    job.use_weight = w->use_weight;
    job.h = w->h;
    job.x = w->x;
    stage_norm_router(s->threads, &job);
    stage_experts_up(s->threads, &job);
    stage_experts_down(s->threads, &job);
}

/* in = a row of the MTP layer's input: a token, and the final row of the token before it. */
static void mtp_input(mote_session *s, int32_t id, const float *final_row, float *in) {
    const mote_model *m = s->m;
    int hidden = m->c.hidden;
    embed(&m->embed_tokens, &id, 1, s->s.u);
    rms_norm(in, s->s.u, m->mtp_norm_embedding, 1, hidden, m->c.eps);
    rms_norm(in + hidden, final_row, m->mtp_norm_hidden, 1, hidden, m->c.eps);
}

/* The MTP layer for T tokens just computed: the row of position p takes the token after it and the hidden row of p, and
   predicts the token after that. So the rows are those of positions first-1 .. first+T-2, without -1. Its KV rows are
   kept for drafting; logits, when wanted, get one row for each. */
static void run_mtp(mote_session *s, const int32_t *ids, int first, int T, float *logits) {
    const mote_model *m = s->m;
    scratch *w = &s->s;
    int skip = first == 0, rows = T - skip;
    size_t hidden = (size_t)m->c.hidden;
    if (rows <= 0) return;
    for (int t = skip; t < T; t++)
        mtp_input(s, ids[t], t ? w->hidden + (size_t)(t - 1) * hidden : s->last_hidden,
                  w->mtp_in + (size_t)(t - skip) * 2 * hidden);
    linear(s->threads, &m->mtp_fc, w->mtp_in, w->x, rows, 0);
    run_attention(s, &m->mtp, &s->kv[m->c.layers], first + skip - 1, rows, logits == NULL);
    if (!logits) return;
    run_moe(s, &m->mtp, rows);
    rms_norm(w->u, w->x, m->mtp_norm, rows, m->c.hidden, m->c.eps);
    stage_head(s->threads, &m->lm_head, w->u, rows, logits);
}

/* drafts[0..k-1]: what may follow the timeline and `id`. Each draft is the MTP layer's favourite, and its input for the
   next one, with its own final row in place of the model's. The KV rows it writes on the way, behind the first, are of
   guesses: the block that runs next writes them anew. */
static void draft_here(mote_session *s, int32_t id, int k, int32_t *drafts) {
    const mote_model *m = s->m;
    scratch *w = &s->s;
    const float *final_row = s->last_hidden;
    for (int i = 0; i < k; i++) {
        mtp_input(s, id, final_row, w->mtp_in);
        linear(s->threads, &m->mtp_fc, w->mtp_in, w->x, 1, 0);
        run_attention(s, &m->mtp, &s->kv[m->c.layers], s->count - 1 + i, 1, 0);
        run_moe(s, &m->mtp, 1);
        rms_norm(w->hidden, w->x, m->mtp_norm, 1, m->c.hidden, m->c.eps);
        stage_head(s->threads, &m->draft_head, w->hidden, 1, w->sorted);
        id = 0;
        for (int j = 1; j < m->draft_head.rows; j++)
            if (w->sorted[j] > w->sorted[id]) id = j;
        drafts[i] = id;
        final_row = w->hidden;
    }
}

/* Computes T <= chunk rows behind the timeline. logits: [T][vocab], or NULL for only those after the last row, into the
   session. The rows are not part of the timeline until session_keep. */
static void forward_here(mote_session *s, const int32_t *ids, int T, float *logits, float *mtp_logits) {
    const mote_model *m = s->m;
    scratch *w = &s->s;
    size_t last = (size_t)(T - 1);
    embed(&m->embed_tokens, ids, T, w->x);
    for (int i = 0; i < m->c.layers; i++) {
        const layer *l = &m->layers[i];
        if (l->is_attention) run_attention(s, l, &s->kv[i], s->count, T, 0);
        else run_deltanet(s, l, &s->deltanet[i], T);
        run_moe(s, l, T);
    }
    rms_norm(w->hidden, w->x, m->norm, T, m->c.hidden, m->c.eps);
    if (logits) {
        stage_head(s->threads, &m->lm_head, w->hidden, T, logits);
        if (logits != w->block_logits)
            memcpy(s->logits, logits + last * (size_t)m->c.vocab, (size_t)m->c.vocab * sizeof(float));
    } else {
        stage_head(s->threads, &m->lm_head, w->hidden + last * (size_t)m->c.hidden, 1, s->logits);
    }
    if (s->kv[m->c.layers].k) run_mtp(s, ids, s->count, T, mtp_logits);
}

/* Ids a sampler may choose: those the tokenizer knows. Above them the table is padding. */
static int sample_vocab(const mote_session *s) {
    int known = s->m->text ? tokenizer_vocab(s->m->text) : s->m->c.vocab;
    return known < s->m->c.vocab ? known : s->m->c.vocab;
}

/* T rows behind the timeline are being computed, and not yet part of it. */
static void session_computed(mote_session *s, int T) {
    s->block_at = s->count;
    s->logged = T <= BLOCK ? T : 0;
    s->kept = 0;
    s->logits_in_block = 0;
}

/* Takes none of the block's rows. What the timeline has is then all in S: nothing is left to repeat. */
static void session_drop(mote_session *s) {
    s->count = s->valid = s->block_at;
    s->logged = s->kept = 0;
}

/* ---- 9. The forward pass on a GPU --------------------------------------------------------------------------------
   The same stages in the same order, for one to four rows. Their launches are captured once as a graph for each number of
   rows and each kind of result, and replayed: position, kept rows and tokens are read from gpu_step, which gpu_put, or
   the sampler, writes before the graph runs. The host never waits inside a step: mote_step queues the choice of a token
   and the step that runs it, and comes back when the token is known, while the GPU is still at work. So the logits of the
   last row stay on the GPU until someone asks for them, and lm_head itself runs only for a row whose logits are wanted.

   A cycle of speculation is one graph, too, for each number of rows and of drafts: the step, the choice of what follows
   each row, which writes gpu_step for the next one and tells the host, and the drafts, which the next one verifies. While
   these are made, the host reads the tokens, and queues the next cycle. */

#ifdef __CUDACC__

/* Scratch of a session on a GPU, behind its KV and state. */
static void layout_gpu(layout *l, const mote_model *m, const mote_session_options *o, struct gpu_session *g) {
    const config *c = &m->c;
    size_t T = GPU_ROWS, hidden = (size_t)c->hidden, kv = (size_t)(c->kv_heads * c->head_dim);
    size_t heads = (size_t)(c->heads * c->head_dim), values = (size_t)(c->value_heads * c->value_dim);
    size_t keys = (size_t)(c->key_heads * c->key_dim);
    gpu_queue q;
    memset(&q, 0, sizeof q);
    q.sms = o->sms ? o->sms : m->gpu_sms;
    g->splits = gpu_attention_most_splits(&q, &m->attention);
    g->step = (gpu_step *)(void *)take(l, sizeof(gpu_step) / sizeof(float));
    g->how = (gpu_how *)(void *)take(l, sizeof(gpu_how) / sizeof(float));
    g->greedy = (gpu_how *)(void *)take(l, sizeof(gpu_how) / sizeof(float));
    g->frequencies = take(l, (size_t)c->rotary_dim / 2 + 1);
    g->x = take(l, T * hidden);
    g->mtp_x = take(l, T * hidden);
    g->hidden = take(l, T * hidden);
    g->in = take(l, T * larger(2 * keys + values, 2 * heads));
    g->z = take(l, T * values);
    g->a = take(l, T * (size_t)c->value_heads);
    g->b = take(l, T * (size_t)c->value_heads);
    g->k = take(l, T * keys);
    g->decay = take(l, T * (size_t)c->value_heads);
    g->squares = take(l, T * (size_t)c->value_heads * (size_t)gpu_squares_room(gpu_delta_parts(&m->deltanet)));
    g->k_new = take(l, T * kv);
    g->v_new = take(l, T * kv);
    g->o = take(l, T * larger(values, heads));
    g->parts = take(l, gpu_attention_parts(&m->attention, g->splits));
    g->tickets = (int *)(void *)take(l, gpu_attention_tickets(&m->attention));
    g->router = take(l, T * (size_t)c->experts);
    g->shared_gate = take(l, T);
    g->mtp_in = take(l, T * 2 * hidden);
    g->logits = take(l, T * (size_t)c->vocab);
    g->mtp_logits = take(l, T * (size_t)c->vocab);
    g->draft_logits = take(l, (size_t)m->draft_head.rows);
    g->routing = (gpu_routing *)(void *)take(l, sizeof(gpu_routing) / sizeof(float));
    g->chosen = (int32_t *)(void *)take(l, (size_t)c->layers + 1);
    g->h = take(l, gpu_h_size(&m->moe));
    g->picks = (uint64_t *)(void *)take(l, T * (size_t)GPU_PICKS * GPU_TOP_K * 2);
}

static int gpu_session_failed(const mote_session *s, mote_error *err) {
    const gpu_queue *q = &s->gpu->q;
    return q->status == cudaSuccess ? MOTE_OK : gpu_fail(err, q->status, q->failed);
}

static gpu_delta gpu_run_deltanet(mote_session *s, gpu_queue *q, const layer *l, const deltanet_state *state, int T) {
    struct gpu_session *g = s->gpu;
    gpu_delta p;
    memset(&p, 0, sizeof p);
    p.shape = s->m->deltanet;
    p.state = *state;
    p.conv1d = l->deltanet.conv1d;
    p.A_log = l->deltanet.A_log;
    p.dt_bias = l->deltanet.dt_bias;
    p.step = g->step;
    p.T = T;
    p.ratio = p.shape.value_heads / p.shape.key_heads;
    p.per_key = (uint32_t)((((uint64_t)1 << 32) + (uint64_t)p.ratio - 1) / (uint64_t)p.ratio);
    p.raw = g->in;
    p.a = g->a;
    p.b = g->b;
    p.k = g->k;
    p.decay = g->decay;
    p.z = g->z;
    p.norm = l->deltanet.norm;
    p.o = g->o;
    p.squares = g->squares;
    gpu_norm_in_proj(q, &p.shape, &l->deltanet, g->x, T, state, g->in, g->z, g->b, g->a);
    gpu_conv_delta(q, &p);
    gpu_gated_norm_out(q, &l->deltanet, &p, g->x);
    return p;
}

static void gpu_run_attention(mote_session *s, gpu_queue *q, const layer *l, const kv_rows *kv, int T, float *x,
                              int offset, int kv_only) {
    struct gpu_session *g = s->gpu;
    gpu_attention p;
    memset(&p, 0, sizeof p);
    p.shape = s->m->attention;
    p.group = p.shape.heads / p.shape.kv_heads;
    p.q_norm = l->attention.q_norm;
    p.k_norm = l->attention.k_norm;
    p.step = g->step;
    p.offset = offset;
    p.T = T;
    p.frequencies = g->frequencies;
    p.qg = g->in;
    p.k_new = g->k_new;
    p.v_new = g->v_new;
    p.kv = s->kv_type;
    p.k = kv->k;
    p.v = kv->v;
    p.context = s->o.context;
    p.splits = g->splits;
    p.parts = g->parts;
    p.tickets = g->tickets;
    p.o = g->o;
    p.kv_only = kv_only;
    gpu_norm_qkv(q, &p.shape, &l->attention, x, T, kv_only ? NULL : g->in, g->k_new, g->v_new);
    gpu_rope_attend(q, &p);
    if (!kv_only) gpu_linear(q, GPU_O_PROJ, &l->attention.o_proj, g->o, x, T, 1);
}

/* block: the DeltaNet block of the same layer, whose log is still to be written; NULL: none. soon: what comes next. */
static void gpu_run_moe(mote_session *s, gpu_queue *q, const layer *l, int T, float *x, int number,
                        const gpu_delta *block, gpu_soon soon) {
    struct gpu_session *g = s->gpu;
    gpu_moe p = gpu_moe_of(&s->m->moe, &l->moe, T);
    p.router = g->router;
    p.shared_gate = g->shared_gate;
    p.routing = g->routing;
    p.chosen = g->chosen + number;
    p.h = g->h;
    p.soon = soon;
    p.overlap = g->overlap;
    p.x = x;
    if (block) p.log = *block;
    p.log_blocks = block ? 32 : 0;
    gpu_norm_router(q, &p.shape, &l->moe, x, T, g->router, g->shared_gate, g->h);
    gpu_run_experts(q, &p);
}

static gpu_mtp_input gpu_mtp_input_of(const mote_session *s) {
    const mote_model *m = s->m;
    struct gpu_session *g = s->gpu;
    gpu_mtp_input p;
    memset(&p, 0, sizeof p);
    p.embed_tokens = gpu_matrix_of(&m->embed_tokens);
    p.step = g->step;
    p.x = g->x;
    p.norm = m->norm;
    p.hidden = g->hidden;
    p.last_hidden = s->last_hidden;
    p.norm_embedding = m->mtp_norm_embedding;
    p.norm_hidden = m->mtp_norm_hidden;
    p.in = g->mtp_in;
    p.eps = m->c.eps;
    return p;
}

static void gpu_run_mtp(mote_session *s, gpu_queue *q, int T, int logits) {
    const mote_model *m = s->m;
    struct gpu_session *g = s->gpu;
    gpu_mtp_input p = gpu_mtp_input_of(s);
    q->as = GPU_MTP;
    q->layer = m->c.layers;
    gpu_mtp_start(q, &p, T);
    gpu_linear(q, GPU_MTP, &m->mtp_fc, g->mtp_in, g->mtp_x, T, 0);
    gpu_run_attention(s, q, &m->mtp, &s->kv[m->c.layers], T, g->mtp_x, -1, !logits);
    if (logits) {
        gpu_run_moe(s, q, &m->mtp, T, g->mtp_x, m->c.layers, NULL, gpu_soon_of(q, GPU_HEAD, &m->lm_head));
        gpu_head(q, &m->lm_head, m->mtp_norm, g->mtp_x, T, m->c.eps, g->mtp_logits);
    }
    q->as = GPU_STAGES;
}

/* Draft number i, from 0 on, as in draft_here; position and the token before it are in gpu_step. */
static void gpu_run_draft(mote_session *s, gpu_queue *q, int i) {
    const mote_model *m = s->m;
    struct gpu_session *g = s->gpu;
    gpu_mtp_input p = gpu_mtp_input_of(s);
    gpu_sampling choice;
    memset(&choice, 0, sizeof choice);
    p.draft = i;
    p.x = g->mtp_x;
    p.norm = m->mtp_norm;
    choice.how = g->greedy;
    choice.logits = g->draft_logits;
    choice.T = 1;
    choice.n = m->draft_head.rows;
    choice.picks = g->picks;
    choice.step = g->step;
    choice.draft = i + 1;
    q->as = GPU_MTP;
    q->layer = m->c.layers;
    gpu_draft_start(q, &p);
    gpu_linear(q, GPU_MTP, &m->mtp_fc, g->mtp_in, g->mtp_x, 1, 0);
    gpu_run_attention(s, q, &m->mtp, &s->kv[m->c.layers], 1, g->mtp_x, i - 1, 0);
    gpu_run_moe(s, q, &m->mtp, 1, g->mtp_x, m->c.layers, NULL, gpu_soon_of(q, GPU_HEAD, &m->draft_head));
    gpu_head(q, &m->draft_head, m->mtp_norm, g->mtp_x, 1, m->c.eps, g->draft_logits);
    gpu_sample(q, GPU_MTP, &choice, gpu_draw);
    q->as = GPU_STAGES;
}

/* Chooses the tokens that follow the T rows just computed, and so the next step. */
static void gpu_run_accept(mote_session *s, gpu_queue *q, int T) {
    struct gpu_session *g = s->gpu;
    gpu_sampling p;
    memset(&p, 0, sizeof p);
    p.how = g->how;
    p.logits = g->logits;
    p.stride = (size_t)s->m->c.vocab;
    p.T = T;
    p.n = sample_vocab(s);
    p.picks = g->picks;
    p.step = g->step;
    p.answer = g->answer;
    gpu_sample(q, GPU_HEAD, &p, gpu_accept);
}

/* What is read first behind layer i. */
static gpu_soon gpu_after_layer(const gpu_queue *q, const mote_model *m, int i) {
    const layer *next = &m->layers[i + 1];
    if (i + 1 == m->c.layers) return gpu_soon_of(q, GPU_HEAD, &m->lm_head);
    return next->is_attention ? gpu_soon_of(q, GPU_QKV, &next->attention.q_proj)
                              : gpu_soon_of(q, GPU_IN_PROJ, &next->deltanet.in_proj_qkv);
}

/* All launches of a step of T rows. */
static void gpu_run(mote_session *s, gpu_queue *q, int T, enum gpu_kind kind) {
    const mote_model *m = s->m;
    struct gpu_session *g = s->gpu;
    int writes[GPU_MARKED] = {0};
    gpu_embedding p;
    memset(&p, 0, sizeof p);
    p.embed_tokens = gpu_matrix_of(&m->embed_tokens);
    p.step = g->step;
    p.x = g->x;
    p.hidden = g->hidden;
    p.last_hidden = s->kv[m->c.layers].k ? s->last_hidden : NULL;
    q->layer = -1;
    gpu_embed(q, &p, T);
    q->writes = writes;
    for (int i = 0; i < m->c.layers; i++) {
        const layer *l = &m->layers[i];
        q->layer = i;
        gpu_delta block;
        if (l->is_attention) gpu_run_attention(s, q, l, &s->kv[i], T, g->x, 0, 0);
        else block = gpu_run_deltanet(s, q, l, &s->deltanet[i], T);
        gpu_run_moe(s, q, l, T, g->x, i, l->is_attention ? NULL : &block, gpu_after_layer(q, m, i));
    }
    q->writes = NULL;
    q->layer = -1;
    if (kind == GPU_LAST_LOGITS)
        gpu_head(q, &m->lm_head, m->norm, g->x + (size_t)(T - 1) * (size_t)m->c.hidden, 1, m->c.eps, g->logits);
    if (kind >= GPU_ALL_LOGITS) gpu_head(q, &m->lm_head, m->norm, g->x, T, m->c.eps, g->logits);
    if (s->kv[m->c.layers].k) gpu_run_mtp(s, q, T, kind == GPU_MTP_LOGITS);
}

/* Captures a step of T rows as a graph, or a cycle: T rows (0: none), what follows them, and `drafts` of what comes then.
   The stages that q->stages leaves out are not in it. */
static cudaGraphExec_t gpu_capture(mote_session *s, int T, enum gpu_kind kind, int drafts) {
    gpu_queue *q = &s->gpu->q;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    if (!gpu_check(q, cudaStreamBeginCapture(s->gpu->stream, cudaStreamCaptureModeThreadLocal), "capturing a step"))
        return NULL;
    if (T) gpu_run(s, q, T, kind);
    if (T && drafts >= 0) gpu_run_accept(s, q, T);
    for (int i = 0; i < drafts; i++) gpu_run_draft(s, q, i);
    cudaError_t status = cudaStreamEndCapture(s->gpu->stream, &graph);
    if (gpu_check(q, status, "capturing a step"))
        gpu_check(q, cudaGraphInstantiate(&ready, graph, 0), "preparing a step");
    if (graph) (void)cudaGraphDestroy(graph);
    return ready;
}

static int gpu_enter(mote_session *s, mote_error *err) {
    gpu_check(&s->gpu->q, cudaSetDevice(s->m->gpu), "choosing the GPU");
    return gpu_session_failed(s, err);
}

static void gpu_launched(struct gpu_session *g, int T, enum gpu_kind kind) {
    g->rows = T;
    g->head_done = kind != GPU_NO_LOGITS;
    g->all_logits = kind >= GPU_ALL_LOGITS;
    g->logits_row = g->all_logits ? T - 1 : 0;
    g->logits_here = 0;
}

/* Queues a captured step. The caller has seen to gpu_step. */
static void gpu_launch_step(mote_session *s, int T, enum gpu_kind kind) {
    struct gpu_session *g = s->gpu;
    if (!g->graph[kind][T]) g->graph[kind][T] = gpu_capture(s, T, kind, -1);
    if (g->q.status == cudaSuccess)
        gpu_check(&g->q, cudaGraphLaunch(g->graph[kind][T], g->stream), "launching a step");
    gpu_launched(g, T, kind);
}

/* The same for a cycle. */
static void gpu_launch_cycle(mote_session *s, int T, int drafts) {
    struct gpu_session *g = s->gpu;
    cudaGraphExec_t *graph = &g->cycle[T][drafts];
    if (!*graph) *graph = gpu_capture(s, T, GPU_ALL_LOGITS, drafts);
    if (g->q.status == cudaSuccess) gpu_check(&g->q, cudaGraphLaunch(*graph, g->stream), "launching a cycle");
    if (!T) return;
    g->sequence++;
    gpu_launched(g, T, GPU_ALL_LOGITS);
}

/* Waits for all that was queued. */
static int gpu_finish(mote_session *s, mote_error *err) {
    gpu_check(&s->gpu->q, cudaStreamSynchronize(s->gpu->stream), "a step");
    return gpu_session_failed(s, err);
}

/* The logits of the last row, on the GPU. */
static const float *gpu_last_logits(mote_session *s) {
    struct gpu_session *g = s->gpu;
    const mote_model *m = s->m;
    if (!g->head_done)
        gpu_head(&g->q, &m->lm_head, m->norm, g->x + (size_t)(g->rows - 1) * (size_t)m->c.hidden, 1, m->c.eps, g->logits);
    g->head_done = 1;
    return g->logits + (size_t)g->logits_row * (size_t)m->c.vocab;
}

/* Brings s->logits up to date. */
static int gpu_fetch_logits(mote_session *s, mote_error *err) {
    struct gpu_session *g = s->gpu;
    if (g->logits_here) return MOTE_OK;
    int code = gpu_enter(s, err);
    if (code) return code;
    gpu_check(&g->q, cudaMemcpyAsync(s->logits, gpu_last_logits(s), (size_t)s->m->c.vocab * sizeof(float),
                                     cudaMemcpyDeviceToHost, g->stream), "reading the logits");
    code = gpu_finish(s, err);
    g->logits_here = !code;
    return code;
}

static void gpu_set_step(mote_session *s, const int32_t *ids, int T) {
    gpu_step step;
    memset(&step, 0, sizeof step);
    step.position = s->count;
    step.replay = s->kept;
    step.sequence = s->gpu->sequence;
    for (int t = 0; t < T; t++) step.ids[t] = ids[t];
    gpu_put(&s->gpu->q, gpu_put_step_kernel, s->gpu->step, &step);
}

/* How tokens are to be chosen from now on. */
static void gpu_set_how(mote_session *s, const gpu_how *how) {
    struct gpu_session *g = s->gpu;
    if (!memcmp(how, &g->how_there, sizeof *how)) return;
    gpu_put(&g->q, gpu_put_how_kernel, g->how, how);
    g->how_there = *how;
}

/* forward() on a GPU. last: this row's logits may be asked for. */
static int gpu_forward(mote_session *s, const int32_t *ids, int T, int last, float *logits, float *mtp_logits,
                       mote_error *err) {
    struct gpu_session *g = s->gpu;
    size_t vocab = (size_t)s->m->c.vocab, skip = s->count == 0;
    int code = gpu_enter(s, err);
    if (code) return code;
    gpu_set_step(s, ids, T);
    gpu_launch_step(s, T, mtp_logits ? GPU_MTP_LOGITS : logits ? GPU_ALL_LOGITS : last ? GPU_LAST_LOGITS : GPU_NO_LOGITS);
    if (logits)
        gpu_check(&g->q, cudaMemcpyAsync(logits, g->logits, (size_t)T * vocab * sizeof(float), cudaMemcpyDeviceToHost,
                                         g->stream), "reading the logits");
    if (mtp_logits && (size_t)T > skip)
        gpu_check(&g->q, cudaMemcpyAsync(mtp_logits, g->mtp_logits + skip * vocab,
                                         ((size_t)T - skip) * vocab * sizeof(float), cudaMemcpyDeviceToHost, g->stream),
                  "reading the MTP logits");
    return logits || mtp_logits ? gpu_finish(s, err) : gpu_session_failed(s, err);
}

/* The ids that the sampler tells, *count of them; the last is -1 where a logit was not a number. */
static int gpu_hear(mote_session *s, int32_t *ids, int *count, mote_error *err) {
    struct gpu_session *g = s->gpu;
    for (unsigned i = 1; g->answer->told >> 32 != g->sequence; i++) {
        if (i % 4096) continue;
        cudaError_t status = cudaStreamQuery(g->stream);
        if (status != cudaErrorNotReady && g->answer->told >> 32 != g->sequence)
            gpu_check(&g->q, status == cudaSuccess ? cudaErrorUnknown : status, "sampling");
        if (g->q.status != cudaSuccess) return gpu_session_failed(s, err);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    *count = (int)(uint32_t)g->answer->told;
    for (int i = 0; i < *count; i++) ids[i] = g->answer->ids[i];
    return MOTE_OK;
}

/* Queues the choice of the token after the timeline, which begins the next step. */
static void gpu_choose_next(mote_session *s, const mote_sampling *sampling) {
    struct gpu_session *g = s->gpu;
    gpu_how how;
    gpu_sampling p;
    memset(&how, 0, sizeof how);
    memset(&p, 0, sizeof p);
    how.temperature = sampling->temperature;
    how.k = sampling->temperature > 0 ? sampling->top_k : 1;
    how.top_p = sampling->top_p;
    how.min_p = sampling->min_p;
    how.seed = sampling->seed;
    gpu_set_how(s, &how);
    p.how = g->how;
    p.logits = gpu_last_logits(s);
    p.T = 1;
    p.n = sample_vocab(s);
    p.picks = g->picks;
    p.step = g->step;
    p.answer = g->answer;
    p.position = s->count;
    p.replay = s->kept;
    g->sequence++;
    gpu_sample(&g->q, GPU_HEAD, &p, gpu_draw);
}

/* make_drafts on a GPU, for a host that chooses tokens. */
static int gpu_make_drafts(mote_session *s, int32_t id, int k, int32_t *drafts, mote_error *err) {
    struct gpu_session *g = s->gpu;
    int code = gpu_enter(s, err);
    if (code || !k) return code;
    gpu_set_step(s, &id, 1);
    gpu_launch_cycle(s, 0, k);
    gpu_check(&g->q, cudaMemcpyAsync(drafts, g->step->ids + 1, (size_t)k * sizeof *drafts, cudaMemcpyDefault, g->stream),
              "reading drafts");
    return gpu_finish(s, err);
}

/* time_pass on a GPU: cycles as they follow each other in an answer, or plain steps. */
static int gpu_time_pass(mote_session *s, int k, double *pass, double *draft, mote_error *err) {
    enum { TIMES = 4 };
    mote_sampling greedy;
    int32_t ids[BLOCK];
    int code = gpu_enter(s, err);
    if (code) return code;
    memset(&greedy, 0, sizeof greedy);
    for (int i = 0; i < BLOCK; i++) ids[i] = s->tokens[s->count > i ? s->count - 1 - i : 0];
    gpu_choose_next(s, &greedy);
    double start = 0;
    for (int i = -1; i <= 2 * TIMES; i++) {                 /* one to capture and warm up, passes, drafts alone */
        if (i == 0 || i == TIMES || i == 2 * TIMES) {
            if ((code = gpu_finish(s, err))) break;
            if (i == TIMES) *pass = (seconds() - start) / TIMES;
            if (i == 2 * TIMES) *draft = (seconds() - start) / TIMES;
            start = seconds();
        }
        if (i >= TIMES && !k) continue;
        if (i < TIMES) gpu_set_step(s, ids, k + 1);
        if (i >= TIMES || i < 0) gpu_launch_cycle(s, 0, k);
        if (i < TIMES && k) gpu_launch_cycle(s, k + 1, k);
        if (i < TIMES && !k) gpu_choose_next(s, &greedy);
        if (i < TIMES && !k) gpu_launch_step(s, 1, GPU_LAST_LOGITS);
        if (i < TIMES) session_computed(s, k + 1);
        if (i < TIMES) session_drop(s);
    }
    if (!k) *draft = 0;
    return code;
}

/* mote_step without the host: chooses a token and runs it. */
static int gpu_step_sampled(mote_session *s, const mote_sampling *sampling, int32_t *id, mote_error *err) {
    int count, code = gpu_enter(s, err);
    if (code) return code;
    gpu_choose_next(s, sampling);
    gpu_launch_step(s, 1, GPU_LAST_LOGITS);
    session_computed(s, 1);
    code = gpu_session_failed(s, err);
    if (!code) code = gpu_hear(s, id, &count, err);
    if (!code && *id < 0) code = fail(err, MOTE_EFORMAT, "a logit is not a number: are the weights damaged?");
    if (code) session_drop(s);
    return code;
}

static void gpu_session_close(mote_session *s) {
    struct gpu_session *g = s->gpu;
    if (!g) return;
    if (s->owner == getpid() && cudaSetDevice(s->m->gpu) == cudaSuccess) {      /* CUDA does not survive a fork */
        if (g->stream) (void)cudaStreamSynchronize(g->stream);
        for (int kind = 0; kind < GPU_KINDS; kind++)
            for (int T = 1; T <= GPU_ROWS; T++)
                if (g->graph[kind][T]) (void)cudaGraphExecDestroy(g->graph[kind][T]);
        for (int T = 0; T <= GPU_ROWS; T++)
            for (int drafts = 0; drafts < GPU_ROWS; drafts++)
                if (g->cycle[T][drafts]) (void)cudaGraphExecDestroy(g->cycle[T][drafts]);
        if (g->stream) (void)cudaStreamDestroy(g->stream);
        if (s->memory) (void)cudaFree(s->memory);
        if (s->here) (void)cudaFreeHost(s->here);
        if (g->answer) (void)cudaFreeHost((void *)g->answer);
        (void)cudaGetLastError();
    }
    s->memory = NULL;
    s->here = NULL;
    free(g->launches);
    free(g->notes);
    free(g);
}

/* Rotary frequencies, as in rotary_angles. */
static void gpu_set_frequencies(mote_session *s) {
    int half = s->m->c.rotary_dim / 2;
    float *f = s->s.sorted;                                 /* pinned, and not in use yet */
    for (int i = 0; i < half; i++) f[i] = 1.0f / powf(s->m->c.theta, (float)(2 * i) / (float)s->m->c.rotary_dim);
    gpu_check(&s->gpu->q, cudaMemcpyAsync(s->gpu->frequencies, f, (size_t)half * sizeof(float), cudaMemcpyHostToDevice,
                                          s->gpu->stream), "copying the rotary frequencies");
}

/* Allocates a session's memory and captures the steps that every answer needs. On failure the caller closes it. */
static int gpu_session_open(mote_session *s, mote_error *err) {
    size_t bytes = parts_bytes(&s->parts), here = s->here_floats * sizeof(float);
    struct gpu_session *g = s->gpu;
    gpu_queue *q = &g->q;
    uint64_t available = device_available(s->m);
    if (available && bytes > available)
        return fail(err, MOTE_ENOMEM,
                    "a session of %d tokens needs %.2f GB, %.2f GB are free on %s: a context of %d tokens would fit",
                    s->o.context, (double)bytes * 1e-9, (double)available * 1e-9, s->m->device,
                    context_that_fits(s->m, &s->o, available, s));
    q->sms = s->o.sms && s->o.sms < s->m->gpu_sms ? s->o.sms : s->m->gpu_sms;
    q->dependent = s->m->gpu_cc >= 90;
    q->soon = s->m->gpu_cache / GPU_SOON / 128 * 128;
    q->stages = ~0u;
    q->as = GPU_STAGES;
    gpu_check(q, cudaSetDevice(s->m->gpu), "choosing the GPU");
    if (q->status == cudaSuccess) gpu_check(q, cudaMalloc((void **)&s->memory, bytes), "allocating a session");
    if (q->status == cudaSuccess) gpu_check(q, cudaHostAlloc((void **)&s->here, here, cudaHostAllocDefault), "pinning memory");
    if (q->status == cudaSuccess)
        gpu_check(q, cudaHostAlloc((void **)&g->answer, sizeof *g->answer, cudaHostAllocMapped), "pinning memory");
    if (q->status == cudaSuccess) gpu_check(q, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "a stream");
    if (q->status != cudaSuccess) return gpu_session_failed(s, err);
    layout_session(s->m, &s->o, s->memory, s->here, s);
    memset(s->here, 0, here);
    memset((void *)g->answer, 0, sizeof *g->answer);
    q->stream = g->stream;
    g->splits = gpu_attention_splits(q, &s->m->attention, s->kv_type, g->splits);
    gpu_check(q, cudaMemsetAsync(s->memory, 0, bytes, g->stream), "clearing a session");
    gpu_set_frequencies(s);
    gpu_how greedy;
    memset(&greedy, 0, sizeof greedy);
    greedy.k = 1;
    gpu_put(q, gpu_put_how_kernel, g->greedy, &greedy);
    for (int T = 1; T <= GPU_ROWS && q->status == cudaSuccess; T++)
        g->graph[GPU_LAST_LOGITS][T] = gpu_capture(s, T, GPU_LAST_LOGITS, -1);
    if (q->status == cudaSuccess) g->graph[GPU_NO_LOGITS][GPU_ROWS] = gpu_capture(s, GPU_ROWS, GPU_NO_LOGITS, -1);
    return gpu_finish(s, err);
}
#endif

/* Copies between the session's memory, which may be on a GPU, and memory here. */
static int session_read(const mote_session *s, void *to, const void *from, size_t n, mote_error *err) {
    if (!n) return MOTE_OK;
#ifdef __CUDACC__
    if (s->gpu) {
        mote_session *of = (mote_session *)s;
        int code = gpu_enter(of, err);
        if (code) return code;
        gpu_check(&of->gpu->q, cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, of->gpu->stream), "reading a session");
        return gpu_finish(of, err);
    }
#endif
    (void)s;
    (void)err;
    memcpy(to, from, n);
    return MOTE_OK;
}

static int session_write(mote_session *s, void *to, const void *from, size_t n, mote_error *err) {
    return session_read(s, to, from, n, err);               /* the direction is in the addresses */
}

/* Where the final row of the last token is. On a GPU it moves to last_hidden when the next block begins. */
static float *session_last_hidden(const mote_session *s) {
#ifdef __CUDACC__
    if (s->gpu && s->kept) return s->gpu->hidden + (size_t)(s->kept - 1) * (size_t)s->m->c.hidden;
#endif
    return s->last_hidden;
}

/* Waits for all that the device was asked to do. */
static int session_finish(mote_session *s, mote_error *err) {
#ifdef __CUDACC__
    if (s->gpu) return gpu_finish(s, err);
#endif
    (void)s;
    (void)err;
    return MOTE_OK;
}

/* s->logits holds the last token's logits. */
static int session_logits(const mote_session *s, mote_error *err) {
#ifdef __CUDACC__
    if (s->gpu && s->count) return gpu_fetch_logits((mote_session *)s, err);
#endif
    (void)s;
    (void)err;
    return MOTE_OK;
}

/* s->logits has been written from outside: it is what counts. */
static int session_set_logits(mote_session *s, mote_error *err) {
#ifdef __CUDACC__
    if (s->gpu) {
        s->gpu->head_done = s->gpu->logits_here = 1;
        s->gpu->logits_row = s->gpu->all_logits = 0;
        return session_write(s, s->gpu->logits, s->logits, (size_t)s->m->c.vocab * sizeof(float), err);
    }
#endif
    (void)s;
    (void)err;
    return MOTE_OK;
}

/* Computes T <= chunk rows behind the timeline. logits: [T][vocab], or NULL for only those after the last row, and these
   need be there only if it is the `last` block of several. The rows are not part of the timeline until session_keep. */
static int forward(mote_session *s, const int32_t *ids, int T, int last, float *logits, float *mtp_logits,
                   mote_error *err) {
    int code = MOTE_OK;
#ifdef __CUDACC__
    if (s->gpu) code = gpu_forward(s, ids, T, last, logits, mtp_logits, err);
#endif
    if (!s->gpu) forward_here(s, ids, T, logits, mtp_logits);
    (void)last;
    (void)err;
    memcpy(s->tokens + s->count, ids, (size_t)T * sizeof *ids);
    session_computed(s, T);
    s->logits_in_block = logits && logits == s->s.block_logits;
    return code;
}

/* Makes the first `rows` of the block just computed part of the timeline. All of them, or, of a block of at most BLOCK
   rows, fewer, and then fewer or more again: KV rows behind the end are overwritten later, and DeltaNet repeats the kept
   rows from its log when the next block runs. */
static void session_keep(mote_session *s, int rows) {
    size_t hidden = (size_t)s->m->c.hidden, vocab = (size_t)s->m->c.vocab;
    if (!s->gpu) memcpy(s->last_hidden, s->s.hidden + (size_t)(rows - 1) * hidden, hidden * sizeof(float));
    s->count = s->valid = s->block_at + rows;
    s->kept = s->logged ? rows : 0;
    if (s->logits_in_block)
        memcpy(s->logits, s->s.block_logits + (size_t)(rows - 1) * vocab, vocab * sizeof(float));
#ifdef __CUDACC__
    if (s->gpu && s->gpu->all_logits) {
        s->gpu->logits_row = rows - 1;
        s->gpu->logits_here = s->logits_in_block;
    }
#endif
}

static int session_clear_state(mote_session *s, mote_error *err) {
    size_t bytes = s->parts.state * sizeof(float);
#ifdef __CUDACC__
    if (s->gpu) {
        int code = gpu_enter(s, err);
        if (!code) gpu_check(&s->gpu->q, cudaMemsetAsync(s->state, 0, bytes, s->gpu->stream), "clearing");
        return code ? code : gpu_session_failed(s, err);
    }
#endif
    (void)err;
    memset(s->state, 0, bytes);
    return MOTE_OK;
}

static int session_reset(mote_session *s, mote_error *err) {
    s->count = s->valid = s->generated_from = s->logged = s->kept = 0;
    return session_clear_state(s, err);
}

int mote_reset(mote_session *session, mote_error *error) {
    int code = session_enter(session, 1, "mote_reset: needs a session", error);
    return code ? code : session_reset(session, error);
}

/* ---- 10. Feeding tokens ------------------------------------------------------------------------------------------- */

/* n tokens fit behind the timeline, and are tokens. */
static int check_ids(const mote_session *s, const int32_t *ids, size_t n, mote_error *err) {
    size_t room = s->count < s->o.context ? (size_t)(s->o.context - s->count) : 0;
    if (n > room)
        return fail(err, MOTE_ECONTEXT, "%zu tokens do not fit: the session holds %d of %d", n, s->count, s->o.context);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->m->c.vocab)
            return fail(err, MOTE_EINVAL, "token %zu: id %d is not in the vocabulary of %d", i, ids[i], s->m->c.vocab);
    return MOTE_OK;
}

/* mote_feed_logits behind the door. Only the callbacks and a GPU can make it fail once the ids are checked. */
static int feed(mote_session *s, const int32_t *ids, size_t count, float *logits, float *mtp_logits, mote_error *err) {
    size_t vocab = (size_t)s->m->c.vocab, chunk = (size_t)s->o.chunk;
    int code = check_ids(s, ids, count, err);
    if (code) return code;
    for (size_t done = 0; done < count;) {
        int T = (int)(count - done < chunk ? count - done : chunk), first = s->count;
        if (cancelled(&s->o.callbacks))
            return fail(err, MOTE_ECANCELLED, "cancelled after %zu of %zu tokens", done, count);
        code = forward(s, ids + done, T, done + (size_t)T == count, logits ? logits + done * vocab : NULL, mtp_logits,
                       err);
        if (code) return code;
        session_keep(s, T);
        done += (size_t)T;
        if (mtp_logits) mtp_logits += (size_t)(T - (first == 0)) * vocab;
        if (count > chunk) report(&s->o.callbacks, "reading the prompt", (double)done / (double)count);
        s->generated_from = s->count;
    }
    return session_finish(s, err);
}

int mote_feed_logits(mote_session *session, const int32_t *ids, size_t count, float *logits, float *mtp_logits,
                     mote_error *error) {
    mote_session *s = session;
    int code = session_enter(s, ids || !count, "mote_feed: needs a session and its tokens", error);
    if (!code && mtp_logits && !s->kv[s->m->c.layers].k)
        code = fail(error, MOTE_EUNSUPPORTED, "%s", s->m->has_mtp ? "the session was opened without the MTP layer"
                                                                  : "the checkpoint has no MTP layer");
    if (code) return code;
    s->busy = 1;
    code = feed(s, ids, count, logits, mtp_logits, error);
    s->busy = 0;
    return code;
}

int mote_feed(mote_session *session, const int32_t *ids, size_t count, mote_error *error) {
    return mote_feed_logits(session, ids, count, NULL, NULL, error);
}

const int32_t *mote_tokens(const mote_session *session, size_t *count) {
    if (count) *count = session ? (size_t)session->count : 0;
    return session ? session->tokens : NULL;
}

int mote_context(const mote_session *session) {
    return session ? session->o.context : 0;
}

const float *mote_logits(const mote_session *session) {
    if (session_enter(session, 1, "mote_logits: needs a session", NULL)) return NULL;
    return session->count && !session_logits(session, NULL) ? session->logits : NULL;
}

/* ---- 11. Sampling ------------------------------------------------------------------------------------------------
   The candidates lie in a heap, most probable on top; taking them off one by one stops as soon as top-k, top-p or min-p
   say so, which is after a few of a vocabulary of 248,320. */

/* A uniform number in [0, 1) that depends on seed and position only (splitmix64). */
static double uniform(uint64_t seed, uint64_t position) {
    uint64_t z = seed * 0x9e3779b97f4a7c15u + (position + 1) * 0xd1342543de82ef95u;
    for (int i = 0; i < 2; i++) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
    }
    return (double)(z >> 11) * 0x1p-53;
}

/* w->sorted = logits after penalties. */
static void penalise(const mote_session *s, const mote_sampling *p) {
    const scratch *w = &s->s;
    float repetition = p->repetition_penalty > 0 ? p->repetition_penalty : 1;
    for (int i = 0; i < s->count; i++) {
        int32_t id = s->tokens[i];
        if (!w->seen[id]++) w->sorted[id] = w->sorted[id] > 0 ? w->sorted[id] / repetition : w->sorted[id] * repetition;
    }
    for (int i = 0; i < s->count; i++) w->seen[s->tokens[i]] = 0;
    for (int i = s->generated_from; i < s->count; i++) {
        int32_t id = s->tokens[i];
        w->sorted[id] -= p->frequency_penalty + (w->seen[id]++ ? 0 : p->presence_penalty);
    }
    for (int i = s->generated_from; i < s->count; i++) w->seen[s->tokens[i]] = 0;
}

static int is_better(const float *value, int32_t a, int32_t b) {
    return value[a] > value[b] || (value[a] == value[b] && a < b);
}

static void heap_sink(int32_t *heap, int n, int at, const float *value) {
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && is_better(value, heap[child + 1], heap[child])) child++;
        if (!is_better(value, heap[child], heap[at])) return;
        int32_t other = heap[at];
        heap[at] = heap[child];
        heap[child] = other;
        at = child;
    }
}

/* Takes the best candidates off the heap of n until `stop` of them are off or their weights, exp((value - best) /
   temperature), sum to `mass`, or one is lighter than `least`. They end up at heap[n-1], heap[n-2], ... Returns how many,
   and their weight in *sum. */
static int heap_take(int32_t *heap, int n, const float *value, float temperature, int stop, double mass, double least,
                     double *sum) {
    int taken = 0;
    float best = value[heap[0]];
    *sum = 0;
    while (taken < n && taken < stop && *sum < mass) {
        int32_t top = heap[0];
        double weight = exp((double)(value[top] - best) / temperature);
        if (taken && weight < least) break;
        heap[0] = heap[n - 1 - taken];
        heap[n - 1 - taken] = top;
        heap_sink(heap, n - 1 - taken, 0, value);
        *sum += weight;
        taken++;
    }
    return taken;
}

/* Draws from the distribution after penalties, in w->sorted. */
static int32_t sample(const mote_session *s, const mote_sampling *p, int n) {
    const scratch *w = &s->s;
    int32_t *heap = w->heap;
    double total = 0, sum, mass = 0;
    for (int i = 0; i < n; i++) heap[i] = i;
    for (int i = n / 2; i-- > 0;) heap_sink(heap, n, i, w->sorted);
    float best = w->sorted[heap[0]], temperature = p->temperature;
    int stop = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    if (stop == n && p->top_p > 0 && p->top_p < 1)
        for (int i = 0; i < n; i++) total += exp((double)(w->sorted[i] - best) / temperature);
    double least = p->min_p, limit = p->top_p > 0 && p->top_p < 1 ? p->top_p : INFINITY;
    if (stop < n && limit < INFINITY) {                     /* top-p is a share of what top-k leaves */
        int taken = heap_take(heap, n, w->sorted, temperature, stop, INFINITY, 0, &total);
        for (int i = 0; i < taken / 2; i++) {               /* best first again: sorted, hence a heap */
            int32_t other = heap[n - 1 - i];
            heap[n - 1 - i] = heap[n - taken + i];
            heap[n - taken + i] = other;
        }
        heap += n - taken;
        n = taken;
    }
    int taken = heap_take(heap, n, w->sorted, temperature, stop, limit * (limit < INFINITY ? total : 1), least, &sum);
    double draw = uniform(p->seed, (uint64_t)s->count) * sum;
    for (int i = 0; i < taken; i++) {
        mass += exp((double)(w->sorted[heap[n - 1 - i]] - best) / temperature);
        if (draw < mass) return heap[n - 1 - i];
    }
    return heap[n - taken];
}

static int check_sampling(const mote_sampling *p, mote_error *err) {
    if (!(p->temperature >= 0 && p->temperature <= 1000))
        return fail(err, MOTE_EINVAL, "temperature must be from 0 to 1000");
    if (p->top_k < 0) return fail(err, MOTE_EINVAL, "top_k must not be negative");
    if (!(p->top_p >= 0 && p->top_p <= 1)) return fail(err, MOTE_EINVAL, "top_p must be from 0 to 1");
    if (!(p->min_p >= 0 && p->min_p <= 1)) return fail(err, MOTE_EINVAL, "min_p must be from 0 to 1");
    if (!(p->repetition_penalty >= 0 && p->repetition_penalty <= 1000))
        return fail(err, MOTE_EINVAL, "repetition_penalty must be from 0 to 1000");
    if (!isfinite(p->presence_penalty) || !isfinite(p->frequency_penalty))
        return fail(err, MOTE_EINVAL, "presence_penalty and frequency_penalty must be finite");
    return MOTE_OK;
}

static int check_not_empty(const mote_session *s, mote_error *err) {
    return s->count ? MOTE_OK : fail(err, MOTE_EINVAL, "the timeline is empty: there is nothing to continue");
}

/* mote_sample behind the door, of checked sampling and a timeline that is not empty. */
static int choose(const mote_session *s, const mote_sampling *sampling, int32_t *id, mote_error *err) {
    const scratch *w = &s->s;
    int n = sample_vocab(s), best = -1;
    int code = session_logits(s, err);
    if (code) return code;
    memcpy(w->sorted, s->logits, (size_t)n * sizeof(float));
    penalise(s, sampling);
    for (int i = 0; i < n; i++) {
        if (isnan(w->sorted[i]))
            return fail(err, MOTE_EFORMAT, "the logit of token %d is not a number: are the weights damaged?", i);
        if (best < 0 || w->sorted[i] > w->sorted[best]) best = i;
    }
    *id = sampling->temperature > 0 && isfinite(w->sorted[best]) ? sample(s, sampling, n) : best;
    return MOTE_OK;
}

int mote_sample(const mote_session *session, const mote_sampling *sampling, int32_t *id, mote_error *error) {
    mote_sampling greedy;
    memset(&greedy, 0, sizeof greedy);
    if (!sampling) sampling = &greedy;
    int code = session_enter(session, id != NULL, "mote_sample: needs a session and a place for the token", error);
    if (!code) code = check_sampling(sampling, error);
    if (!code) code = check_not_empty(session, error);
    return code ? code : choose(session, sampling, id, error);
}

/* Whether the device can choose the token by itself: no penalties, and a kind of sampling that it knows. */
static int can_sample_there(const mote_session *s, const mote_sampling *p) {
#ifdef __CUDACC__
    int penalties = (p->repetition_penalty > 0 && p->repetition_penalty != 1) || p->presence_penalty != 0 ||
                    p->frequency_penalty != 0;
    return s->gpu && s->count && !penalties && gpu_can_sample(sample_vocab(s), p->temperature, p->top_k);
#else
    (void)s;
    (void)p;
    return 0;
#endif
}

int mote_step(mote_session *session, const mote_sampling *sampling, int32_t *id, mote_error *error) {
    mote_session *s = session;
    mote_sampling greedy;
    int32_t next;
    memset(&greedy, 0, sizeof greedy);
    if (!sampling) sampling = &greedy;
    int code = session_enter(s, id != NULL, "mote_step: needs a session and a place for the token", error);
    if (!code && s->count >= s->o.context)
        code = fail(error, MOTE_ECONTEXT, "the context of %d tokens is full", s->o.context);
    if (!code) code = check_sampling(sampling, error);
    if (!code) code = check_not_empty(s, error);
    if (code) return code;
    if (can_sample_there(s, sampling)) {
#ifdef __CUDACC__
        code = gpu_step_sampled(s, sampling, &next, error);
        if (!code) s->tokens[s->count] = next;
#endif
    } else {
        code = choose(s, sampling, &next, error);
        if (!code) code = forward(s, &next, 1, 1, NULL, NULL, error);
    }
    if (code) return code;
    session_keep(s, 1);
    *id = next;
    return MOTE_OK;
}

int mote_top_logprobs(const mote_session *session, int n, int32_t *ids, float *logprobs, mote_error *error) {
    int code = session_enter(session, ids && logprobs, "mote_top_logprobs: needs a session and places for the results", error);
    if (!code) code = check_not_empty(session, error);
    if (!code && (n < 1 || n > session->m->c.vocab))
        code = fail(error, MOTE_EINVAL, "%d tokens asked for, expected 1 to %d", n, session->m->c.vocab);
    if (!code) code = session_logits(session, error);
    if (code) return code;
    const scratch *w = &session->s;
    int vocab = session->m->c.vocab;
    double total = 0, sum;
    for (int i = 0; i < vocab; i++) w->heap[i] = i;
    for (int i = vocab / 2; i-- > 0;) heap_sink(w->heap, vocab, i, session->logits);
    float best = session->logits[w->heap[0]];
    for (int i = 0; i < vocab; i++) total += exp((double)(session->logits[i] - best));
    heap_take(w->heap, vocab, session->logits, 1, n, INFINITY, 0, &sum);
    for (int i = 0; i < n; i++) {
        ids[i] = w->heap[vocab - 1 - i];
        logprobs[i] = (float)((double)(session->logits[ids[i]] - best) - log(total));
    }
    return MOTE_OK;
}

/* ---- 12. Speculation ---------------------------------------------------------------------------------------------
   A pass that computes four rows costs far less than four passes: it reads most weights once. So the MTP layer, one layer
   where the model has forty, drafts the tokens that may follow, and a pass computes the chosen token and its drafts as one
   block. Then, row by row, the next token is chosen from the model's own logits, as it always is: with the same sampler,
   and the random number that belongs to the position. If it is the draft that stands there, the next row was computed for
   the right text and its logits count; the first surprise ends the pass, and begins the next one. So the text is that of
   plain decoding, whatever was drafted, and at any temperature; and because a row's arithmetic does not depend on the rows
   beside it, so is the state, bit for bit.

   What rejected rows have left behind needs no undoing. KV rows behind the end are overwritten. S is never stored with a
   block's own rows: they are in the log, and the next block repeats those that session_keep kept (kernels.cu section 8).

   Three ways through a pass: by the host, which draws the tokens itself; by a GPU alone, where one graph verifies, accepts
   and drafts again, while the host reads what was accepted; and plain steps, when no drafts pay. */

static int speculates(const mote_session *s) {
    return s->kv[s->m->c.layers].k != NULL;
}

/* How many drafts? The expected tokens of a pass, by the acceptance seen lately, over its cost, measured on this machine.
   Drafts are believed at first, and a draft not tried drifts back to that, so that what did not pay is tried again after
   some hundred passes. Trust in what was seen fades sooner: then two passes are enough to refute it. A change must promise
   a twentieth. */

enum { HOPE_DRIFT = 2048, TRUST_FIRST = 4, TRUST_MOST = 32, TRUST_LEAST = 2, TRUST_DRIFT = 256 };  /* passes */

static void speculation_start(mote_session *s) {
    speculation *p = &s->spec;
    for (int i = 0; i < BLOCK - 1; i++) {
        p->hope[i] = 0.95 - 0.1 * i;
        p->trust[i] = TRUST_FIRST;
    }
    p->seen.depth = s->o.mtp > 0 ? s->o.mtp : 0;
    p->next = -1;
}

/* Tokens per second to be expected of passes with k drafts. */
static double speculation_speed(const speculation *p, int k) {
    double tokens = 1, all = 1;
    for (int i = 0; i < k; i++) tokens += all *= p->hope[i];
    return tokens / p->seen.cost[k];
}

static void speculation_choose(mote_session *s) {
    speculation *p = &s->spec;
    double now = speculation_speed(p, p->seen.depth), best = now * 1.05;
    if (s->o.mtp != MOTE_MTP_AUTO || !p->measured_at) return;
    for (int k = 0; k < BLOCK; k++) {
        double speed = speculation_speed(p, k);
        if (speed <= best) continue;
        best = speed;
        p->seen.depth = k;
    }
}

/* A pass verified `drafts`, and accepted the first `accepted` of them. */
static void speculation_learn(mote_session *s, int drafts, int accepted) {
    speculation *p = &s->spec;
    size_t n = strlen(p->seen.recent);
    for (int i = 0; i < BLOCK - 1; i++) {
        int reached = i < drafts && i <= accepted, hit = i < accepted;
        p->seen.drafted[i] += (uint64_t)reached;
        p->seen.accepted[i] += (uint64_t)hit;
        if (reached) {
            p->trust[i] = fmin(p->trust[i] + 1, TRUST_MOST);
            p->hope[i] += (hit - p->hope[i]) / p->trust[i];
        } else {
            p->trust[i] += (TRUST_LEAST - p->trust[i]) / TRUST_DRIFT;
            p->hope[i] += ((i ? p->hope[i - 1] : 1) - p->hope[i]) / HOPE_DRIFT;
        }
    }
    p->seen.passes[drafts]++;
    if (n + 1 == sizeof p->seen.recent) memmove(p->seen.recent, p->seen.recent + 1, n--);
    p->seen.recent[n] = (char)('0' + drafts);
    p->seen.recent[n + 1] = 0;
    speculation_choose(s);
}

int mote_speculation_of(const mote_session *session, mote_speculation *speculation, mote_error *error) {
    int code = session_enter(session, speculation != NULL, "mote_speculation_of: needs a session and a place for the result",
                             error);
    if (code) return code;
    *speculation = session->spec.seen;
    if (!speculates(session)) speculation->depth = 0;
    return MOTE_OK;
}

/* drafts[0..k-1] behind the timeline and `id`. */
static int make_drafts(mote_session *s, int32_t id, int k, int32_t *drafts, mote_error *err) {
#ifdef __CUDACC__
    if (s->gpu) return gpu_make_drafts(s, id, k, drafts, err);
#endif
    (void)err;
    draft_here(s, id, k, drafts);
    return MOTE_OK;
}

/* Seconds of one pass with k drafts behind the timeline, and of these for drafting. Nothing of it is kept. */
static int time_pass(mote_session *s, int k, double *pass, double *draft, mote_error *err) {
    int32_t ids[BLOCK];
    double start = seconds();
    for (int i = 0; i < BLOCK; i++) ids[i] = s->tokens[s->count > i ? s->count - 1 - i : 0];
    int code = make_drafts(s, ids[0], k, ids + 1, err);
    *draft = seconds() - start;
    if (!code) code = forward(s, ids, k + 1, 1, s->s.block_logits, NULL, err);
    *pass = seconds() - start;
    session_drop(s);
    return code;
}

/* Measures what passes cost, in a fraction of a second. On a machine so slow that one round takes longer, what is not
   measured after a second is reckoned from what is. */
static int measure_passes(mote_session *s, mote_error *err) {
    mote_speculation *seen = &s->spec.seen;
    double start = seconds(), pass = 0, draft = 0;
    int code = session_logits(s, err);
    memset(seen->cost, 0, sizeof seen->cost);
    for (int round = 0; round < 6 && !code && (round < 2 || seconds() - start < 0.02); round++) {
        for (int k = 0; k < BLOCK && !code; k++) {
            if (seconds() - start > 1 && k && !round) {
                seen->cost[k] = seen->cost[k - 1] * (k == 1 ? 1.5 : seen->cost[1] / seen->cost[0]);
                continue;
            }
            if (seconds() - start > 1 && round) break;
#ifdef __CUDACC__
            if (s->gpu) code = gpu_time_pass(s, k, &pass, &draft, err);
#endif
            if (!s->gpu) code = time_pass(s, k, &pass, &draft, err);
            if (code || (seen->cost[k] > 0 && seen->cost[k] <= pass)) continue;
            seen->cost[k] = pass;
            seen->draft[k] = draft;
        }
    }
    s->spec.measured_at = s->count;
    return code ? code : session_set_logits(s, err);
}

/* Before an answer. Costs are measured when they may have changed: a long context is a larger part of a pass. */
static int speculation_begin(mote_session *s, mote_error *err) {
    speculation *p = &s->spec;
    int code = MOTE_OK, due = !p->measured_at || s->count > 2 * p->measured_at + 4096 || p->measured_at > 2 * s->count + 4096;
    p->next = -1;
    p->drafts = 0;
    if (speculates(s) && s->o.mtp == MOTE_MTP_AUTO && due && s->o.context - s->count > BLOCK) code = measure_passes(s, err);
    if (!code) speculation_choose(s);
    return code;
}

/* The drafts for a pass behind `count` tokens of which `left` may be generated. */
static int drafts_wanted(const mote_session *s, int count, int left) {
    int k = speculates(s) ? s->spec.seen.depth : 0, room = s->o.context - count - 1;
    if (k > room) k = room;
    if (k > left - 1) k = left - 1;
    return k > 0 ? k : 0;
}

/* Computes ids[0], the chosen token, and the k drafts behind it as one block, and chooses what follows each: *n rows count,
   those up to the first surprise, which is p->next. They are s->tokens[s->count..], for session_keep. */
static int verify_drafts(mote_session *s, const mote_sampling *sampling, const int32_t *ids, int k, int *n, mote_error *err) {
    speculation *p = &s->spec;
    int code = forward(s, ids, k + 1, 1, k ? s->s.block_logits : NULL, NULL, err);
    if (code) return code;
    for (*n = 1;; ++*n) {
        session_keep(s, *n);
        if (choose(s, sampling, &p->next, NULL)) p->next = -1;          /* the next pass will say why */
        if (*n > k || p->next != ids[*n]) break;
    }
    s->count = s->block_at;
    return MOTE_OK;
}

/* A pass in which the host chooses the tokens. */
static int pass_by_host(mote_session *s, const mote_sampling *sampling, int k, int *n, mote_error *err) {
    int32_t ids[BLOCK];
    int code = s->spec.next < 0 ? choose(s, sampling, &s->spec.next, err) : MOTE_OK;
    ids[0] = s->spec.next;
    if (!code && k) code = make_drafts(s, ids[0], k, ids + 1, err);
    return code ? code : verify_drafts(s, sampling, ids, k, n, err);
}

#ifdef __CUDACC__
/* The same without the host: p->drafts of the pass are on the GPU already, and `k` are made for the next one. */
static int pass_on_gpu(mote_session *s, const mote_sampling *sampling, int k, int *n, mote_error *err) {
    speculation *p = &s->spec;
    int32_t ids[BLOCK];
    int T = p->drafts + 1, code = gpu_enter(s, err);
    if (!code && T == 1) {
        gpu_choose_next(s, sampling);
        code = gpu_hear(s, &p->next, n, err);
    }
    if (!code && p->next < 0) code = fail(err, MOTE_EFORMAT, "a logit is not a number: are the weights damaged?");
    if (code) return code;
    gpu_launch_cycle(s, T, k);
    session_computed(s, T);
    code = gpu_session_failed(s, err);
    if (!code) code = gpu_hear(s, ids, n, err);
    if (code) return code;
    s->tokens[s->count] = p->next;
    memcpy(s->tokens + s->count + 1, ids, (size_t)(*n - 1) * sizeof *ids);
    p->next = ids[*n - 1];
    p->drafts = k;
    return MOTE_OK;
}

/* A plain step, as part of an answer. */
static int pass_plain(mote_session *s, const mote_sampling *sampling, int *n, mote_error *err) {
    int code = gpu_step_sampled(s, sampling, s->tokens + s->count, err);
    *n = 1;
    s->spec.next = -1;
    return code;
}
#endif

/* One pass of an answer of which `left` tokens are left: *n >= 1 rows that count, see verify_drafts. The caller keeps at
   least one; if not all, it ends the answer. */
static int run_pass(mote_session *s, const mote_sampling *sampling, int left, int *n, mote_error *err) {
    int drafts = drafts_wanted(s, s->count, left), code;
#ifdef __CUDACC__
    if (can_sample_there(s, sampling)) {
        int next = drafts_wanted(s, s->count + s->spec.drafts + 1, left - 1);
        drafts = s->spec.drafts;
        if (!drafts && !next) code = pass_plain(s, sampling, n, err);
        else code = pass_on_gpu(s, sampling, next, n, err);
    } else
#endif
        code = pass_by_host(s, sampling, drafts, n, err);
    if (!code) speculation_learn(s, drafts, *n - 1);
    return code;
}

/* Checking it: plain decoding beside it. All memory is there before the answer begins. */
typedef struct verifier {
    mote_session *twin;          /* decodes plainly; NULL: nothing is checked */
    char *bytes;                 /* [2][VERIFY_BYTES]: a piece of both sessions */
} verifier;

enum { VERIFY_BYTES = 1 << 20 };

/* A twin without tokens. On failure there is nothing to close. */
static int verifier_open(verifier *v, const mote_session *s, mote_error *err) {
    int code = mote_session_open(s->m, &s->o, &v->twin, err);
    if (code) return code;
    v->bytes = (char *)malloc(2 * VERIFY_BYTES);
    if (v->bytes) return MOTE_OK;
    mote_session_close(v->twin);
    v->twin = NULL;
    return fail_memory(err);
}

static void verifier_close(verifier *v) {
    mote_session_close(v->twin);
    free(v->bytes);
}

/* The token just kept is what the twin chooses. */
static int verify_token(const mote_session *s, mote_session *twin, const mote_sampling *sampling, mote_error *err) {
    int32_t want, id = s->tokens[s->count - 1];
    int code = mote_step(twin, sampling, &want, err);
    if (code || want == id) return code;
    return fail(err, MOTE_EMISMATCH, "token %d of the timeline is %d with speculation, %d without", s->count - 1, id, want);
}

/* Brings S and the convolution's window up to the end of the timeline: a row behind it is computed and dropped. What the
   GPU has prepared for the next pass stays. */
static int session_fold(mote_session *s, mote_error *err) {
    int32_t id = s->tokens[s->count - 1];
    int code = session_logits(s, err);
#ifdef __CUDACC__
    gpu_step step;
    if (!code && s->gpu) code = session_read(s, &step, s->gpu->step, sizeof step, err);
#endif
    if (!code) code = forward(s, &id, 1, 1, s->s.block_logits, NULL, err);
    session_drop(s);
    if (!code) code = session_set_logits(s, err);
#ifdef __CUDACC__
    step.replay = 0;
    if (!code && s->gpu) code = session_write(s, s->gpu->step, &step, sizeof step, err);
#endif
    return code;
}

/* n bytes of both sessions are equal; what: their name, with a layer unless that is -1. */
static int verify_bytes(const verifier *v, const mote_session *s, const void *a, const void *b, size_t n, int layer,
                        const char *what, mote_error *err) {
    char *mine = v->bytes, *plain = v->bytes + VERIFY_BYTES, where[32] = "";
    for (size_t done = 0, piece; done < n; done += piece) {
        size_t at = 0;
        piece = n - done < VERIFY_BYTES ? n - done : (size_t)VERIFY_BYTES;
        int code = session_read(s, mine, (const char *)a + done, piece, err);
        if (!code) code = session_read(v->twin, plain, (const char *)b + done, piece, err);
        if (code) return code;
        while (at < piece && mine[at] == plain[at]) at++;
        if (at == piece) continue;
        float x, y;
        memcpy(&x, mine + at / 4 * 4, 4);
        memcpy(&y, plain + at / 4 * 4, 4);
        if (layer >= 0) snprintf(where, sizeof where, "layer %d, ", layer);
        return fail(err, MOTE_EMISMATCH, "after token %d: %s%s, byte %zu of %zu: %g (as float) with speculation, %g without",
                    s->count - 1, where, what, done + at, n, (double)x, (double)y);
    }
    return MOTE_OK;
}

/* Bytes of the keys, or the values, of one token in one layer. */
static size_t kv_row_bytes(const mote_session *s) {
    return (size_t)(s->m->c.kv_heads * s->m->c.head_dim) * kv_size(s->kv_type);
}

/* All that the next tokens depend on is the same in both: it is compared as far as it is new since the last time. */
static int verify_state(const verifier *v, mote_session *s, mote_error *err) {
    const config *c = &s->m->c;
    mote_session *twin = v->twin;
    size_t row = kv_row_bytes(s), vocab = (size_t)c->vocab * sizeof(float), hidden = (size_t)c->hidden * sizeof(float);
    size_t S = (size_t)c->value_heads * (size_t)c->value_dim * (size_t)c->key_dim * sizeof(float);
    size_t window = (size_t)(c->taps - 1) * (size_t)deltanet_channels(&s->m->deltanet) * sizeof(float);
    int from = s->block_at > 0 ? s->block_at - 1 : 0, code = MOTE_OK;
    if (s->count >= s->o.context) return MOTE_OK;           /* no room to fold */
    if (!code) code = session_fold(s, err);
    if (!code) code = session_fold(twin, err);
    if (!code) code = verify_bytes(v, s, s->logits, twin->logits, vocab, -1, "logits", err);
    if (!code) code = verify_bytes(v, s, s->last_hidden, twin->last_hidden, hidden, -1, "final row", err);
    for (int i = 0; i <= c->layers && !code; i++) {
        const deltanet_state *a = &s->deltanet[i], *b = &twin->deltanet[i];
        size_t rows = (size_t)(s->count - from - (i == c->layers)), first = (size_t)from * row;
        if (i < c->layers && !c->is_attention[i]) {
            code = verify_bytes(v, s, a->S, b->S, S, i, "DeltaNet state", err);
            if (!code) code = verify_bytes(v, s, a->window, b->window, window, i, "conv1d window", err);
            continue;
        }
        const kv_rows *mine = &s->kv[i], *plain = &twin->kv[i];
        code = verify_bytes(v, s, (char *)mine->k + first, (char *)plain->k + first, rows * row, i, "keys", err);
        if (!code) code = verify_bytes(v, s, (char *)mine->v + first, (char *)plain->v + first, rows * row, i, "values", err);
    }
    return code;
}

/* ---- 13. Generating text -----------------------------------------------------------------------------------------
   Tokens become bytes, bytes whole characters, characters pass the search for stop texts, and what passes is split into
   channels. Each step holds back only what it cannot decide yet. */

typedef struct writer {
    const mote_generation *g;
    const mote_model *m;
    utf8_stream characters;
    buf text;                    /* whole characters not passed on yet: they may begin a stop text */
    chat_stream channels;
    int split;                   /* by channel */
    int stopped;                 /* MOTE_STOP_TEXT or MOTE_STOP_CALLBACK, else 0 */
} writer;

static void writer_emit(void *user, int channel, const char *text, size_t size) {
    writer *w = (writer *)user;
    if (w->stopped != MOTE_STOP_CALLBACK && w->g->on_text && w->g->on_text(w->g->user, channel, text, size))
        w->stopped = MOTE_STOP_CALLBACK;
}

static void writer_pass(writer *w, const char *text, size_t n) {
    if (!n) return;
    if (w->split) chat_stream_push(&w->channels, text, n, writer_emit, w);
    else writer_emit(w, MOTE_ANSWER, text, n);
}

/* Where in the held text the first stop text begins (*found), or else what might still become one. */
static size_t writer_stop_at(const writer *w, int *found) {
    for (size_t at = 0; at < w->text.size; at++)
        for (int i = 0; i < w->g->stop_count; i++) {
            size_t n = strlen(w->g->stop[i]), left = w->text.size - at;
            if (n && !memcmp(w->text.data + at, w->g->stop[i], n < left ? n : left)) {
                *found = n <= left;
                return at;
            }
        }
    *found = 0;
    return w->text.size;
}

static void writer_token(writer *w, int32_t id) {
    size_t n, at = 0;
    int found = 0;
    const char *bytes = tokenizer_token(w->m->text, id, &n);
    if (!bytes || tokenizer_is_special(w->m->text, id)) return;
    utf8_stream_push(&w->characters, bytes, n, &w->text);
    if (w->text.size) at = writer_stop_at(w, &found);
    writer_pass(w, w->text.data, at);
    w->text.size -= at;
    memmove(w->text.data, w->text.data + at, w->text.size);
    if (found) w->text.size = 0;
    if (found && !w->stopped) w->stopped = MOTE_STOP_TEXT;
}

/* Passes on what was held back, as it can become nothing else any more. */
static void writer_finish(writer *w) {
    if (w->stopped != MOTE_STOP_TEXT) utf8_stream_end(&w->characters, &w->text);
    writer_pass(w, w->text.data, w->text.size);
    if (w->split) chat_stream_end(&w->channels, writer_emit, w);
}

/* Did the prompt end inside an open <think>? Its last few tokens tell. */
static int prompt_opens_thinking(const mote_session *s) {
    char tail[64];
    size_t size = 0;
    for (int i = s->count < 8 ? 0 : s->count - 8; i < s->count; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_token(s->m->text, s->tokens[i], &n);
        size_t fresh = n < sizeof tail ? n : sizeof tail, old = size < sizeof tail - fresh ? size : sizeof tail - fresh;
        if (!fresh) continue;
        memmove(tail, tail + size - old, old);
        memcpy(tail + old, bytes + n - fresh, fresh);
        size = old + fresh;
    }
    return size && chat_opens_thinking(tail, size);
}

/* All the memory that an answer's text will ever need: what is held back is shorter than a stop text, and a token adds its
   bytes and those of an unfinished character before it, each at most three bytes long (U+FFFD). */
static int writer_open(writer *w, const mote_model *m, const mote_generation *g, mote_error *err) {
    size_t held = 0;
    memset(w, 0, sizeof *w);
    w->g = g;
    w->m = m;
    for (int i = 0; i < g->stop_count; i++) held = larger(held, strlen(g->stop[i]));
    buf_add(&w->text, NULL, held + 3 * (m->longest_token + sizeof w->characters.bytes));
    w->text.size = 0;
    return w->text.failed ? fail_memory(err) : MOTE_OK;
}

/* Before the first token. */
static void writer_begin(writer *w, const mote_session *s) {
    w->split = w->m->text && !w->g->raw;
    if (w->split) chat_stream_begin(&w->channels, prompt_opens_thinking(s));
}

static int is_eos(const mote_model *m, int32_t id) {
    for (int i = 0; i < m->eos_count; i++)
        if (m->eos[i] == id) return 1;
    return 0;
}

static int session_copy(mote_session *to, const mote_session *from, mote_error *err);
static int checkpoint_take(const mote_session *s, mote_checkpoint **checkpoint, mote_error *err);
static int session_rewind(mote_session *s, const mote_checkpoint *c, mote_error *err);

/* An answer: what it was asked to be, and all the memory it needs. Opened before anything of the session changes, so that
   running out of memory leaves the session as it was. */
typedef struct generator {
    mote_generation g;
    mote_sampling sampling;
    writer w;
    verifier check;
    mote_result r;
} generator;

/* Passes until something ends the answer; says what. Of a pass that it ends in the middle, the rest is dropped. */
static int generate_tokens(mote_session *s, generator *a, mote_error *err) {
    const mote_generation *g = &a->g;
    mote_result *r = &a->r;
    int code = MOTE_OK;
    r->stop = -1;
    while (!code && r->stop < 0) {
        int n = 0, left = g->max_tokens > 0 ? g->max_tokens - r->generated_tokens : INT32_MAX;
        if (s->count >= s->o.context) r->stop = MOTE_STOP_CONTEXT;
        else if (cancelled(&s->o.callbacks)) r->stop = MOTE_STOP_CALLBACK;
        if (r->stop >= 0) break;
        code = run_pass(s, &a->sampling, left, &n, err);
        for (int kept = 1; !code && kept <= n && r->stop < 0; kept++) {
            session_keep(s, kept);
            int32_t id = s->tokens[s->count - 1];
            if (a->check.twin) code = verify_token(s, a->check.twin, &a->sampling, err);
            if (code) break;
            r->generated_tokens++;
            s->spec.seen.tokens++;
            if (g->on_token && g->on_token(g->user, id)) r->stop = MOTE_STOP_CALLBACK;
            if (is_eos(s->m, id)) r->stop = MOTE_STOP_EOS;
            else if (s->m->text) writer_token(&a->w, id);
            if (a->w.stopped) r->stop = a->w.stopped;
            if (r->stop < 0 && --left == 0) r->stop = MOTE_STOP_LENGTH;
        }
        if (!code && a->check.twin) code = verify_state(&a->check, s, err);
    }
    return code;
}

static int check_generation(const mote_generation *g, mote_error *err) {
    if (g->max_tokens < 0) return fail(err, MOTE_EINVAL, "max_tokens must not be negative");
    if (g->stop_count < 0 || (g->stop_count && !g->stop))
        return fail(err, MOTE_EINVAL, "stop_count without stop texts");
    for (int i = 0; i < g->stop_count; i++)
        if (!g->stop[i]) return fail(err, MOTE_EINVAL, "stop text %d is NULL", i);
    if (g->think < MOTE_THINK_DEFAULT || g->think > MOTE_THINK_OFF)
        return fail(err, MOTE_EINVAL, "think must be MOTE_THINK_...");
    return g->sampling ? check_sampling(g->sampling, err) : MOTE_OK;
}

static void generator_close(generator *a) {
    buf_free(&a->w.text);
    verifier_close(&a->check);
}

/* Checks what is asked for and gets all memory for it. To be closed in any case. */
static int generator_open(generator *a, const mote_session *s, const mote_generation *g, mote_error *err) {
    memset(a, 0, sizeof *a);
    if (g) a->g = *g;
    int code = check_generation(&a->g, err);
    if (code) return code;
    if (a->g.sampling) a->sampling = *a->g.sampling;
    else mote_sampling_defaults(s->m, &a->sampling);
    code = writer_open(&a->w, s->m, &a->g, err);
    if (!code && a->g.verify && speculates(s)) code = verifier_open(&a->check, s, err);
    return code;
}

/* Continues the timeline. */
static int generator_run(generator *a, mote_session *s, mote_error *err) {
    int code = speculation_begin(s, err);
    if (!code && a->check.twin) code = session_copy(a->check.twin, s, err);
    if (code) return code;
    writer_begin(&a->w, s);
    double start = seconds();
    code = generate_tokens(s, a, err);
    writer_finish(&a->w);
    a->r.generate_seconds = seconds() - start;
    a->r.seed = a->sampling.seed;
    return code;
}

int mote_generate(mote_session *session, const mote_generation *generation, mote_result *result, mote_error *error) {
    generator a;
    int code = session_enter(session, 1, "mote_generate: needs a session", error);
    if (!code) code = check_not_empty(session, error);
    if (code) return code;
    session->busy = 1;
    code = generator_open(&a, session, generation, error);
    if (!code) code = generator_run(&a, session, error);
    if (!code && result) *result = a.r;
    generator_close(&a);
    session->busy = 0;
    return code;
}

/* The text between the timeline and the next turn: the end of the answer before, if it was interrupted, and a line feed. */
static void ask_close_turn(const mote_session *s, buf *text) {
    if (!s->count) return;
    int32_t end = tokenizer_find(s->m->text, "<|im_end|>");
    buf_text(text, s->tokens[s->count - 1] == end ? "\n" : "<|im_end|>\n");
}

/* Token ids of the next turn, in which system message and message are plain text. One encoding of the whole turn, so
   that words which reach from the template's text into the message are those of the template's rendering. */
static int ask_tokens(const mote_session *s, const char *message, const mote_generation *g, buf *ids, mote_error *err) {
    marked_text text;
    memset(&text, 0, sizeof text);
    ask_close_turn(s, &text.text);
    int code = chat_turn(s->m->family, s->count ? NULL : g->system, g->role ? g->role : "user", message, g->think,
                         &text, err);
    if (!code) code = encode_marked(s->m->text, &text, ids, err);
    marked_free(&text);
    return code;
}

/* Reads a turn. When it is cancelled, or fails otherwise, the timeline is as before: chunks that were already read are taken
   back. Only a caller who can cancel pays for the checkpoint that this takes, and only for more than one chunk. */
static int ask_feed(mote_session *s, const int32_t *ids, size_t n, mote_error *err) {
    mote_checkpoint *before = NULL;
    int code = check_ids(s, ids, n, err);
    if (!code && s->o.callbacks.cancel && n > (size_t)s->o.chunk) code = checkpoint_take(s, &before, err);
    if (!code) code = feed(s, ids, n, NULL, NULL, err);
    if (code && before) (void)session_rewind(s, before, NULL);
    mote_checkpoint_free(before);
    return code;
}

int mote_ask(mote_session *session, const char *message, const mote_generation *generation, mote_result *result,
             mote_error *error) {
    generator a;
    buf ids;
    int code = session_enter(session, message != NULL, "mote_ask: needs a session and a message", error);
    if (!code) code = need_text(session->m, error);
    if (!code) code = need_chat(session->m, error);
    if (code) return code;
    memset(&ids, 0, sizeof ids);
    session->busy = 1;
    double start = seconds();
    code = generator_open(&a, session, generation, error);
    if (!code) code = ask_tokens(session, message, &a.g, &ids, error);
    size_t n = ids.size / sizeof(int32_t);
    if (!code) code = ask_feed(session, (const int32_t *)(void *)ids.data, n, error);
    a.r.prompt_seconds = seconds() - start;
    a.r.prompt_tokens = (int)n;
    if (!code) code = generator_run(&a, session, error);
    if (!code && result) *result = a.r;
    generator_close(&a);
    buf_free(&ids);
    session->busy = 0;
    return code;
}

/* ---- 14. Checkpoints, copies and files ---------------------------------------------------------------------------
   What makes up a session beside its tokens and KV rows: the DeltaNet state with its log, the last hidden row, the last
   logits. A checkpoint holds those; the KV rows it relies on are still in the session, as long as the tokens before it
   are the same. A saved session holds the KV rows too, as they are; one of another KV type converts them when it loads
   them. */

struct mote_checkpoint {
    const mote_model *m;
    int count, generated_from, logged, kept;
    size_t state_floats;
    int32_t *tokens;
    float *values;               /* state, last_hidden, logits */
};

void mote_checkpoint_free(mote_checkpoint *checkpoint) {
    if (!checkpoint) return;
    free(checkpoint->tokens);
    free(checkpoint->values);
    free(checkpoint);
}

static int checkpoint_take(const mote_session *s, mote_checkpoint **checkpoint, mote_error *err) {
    size_t state = s->parts.state, hidden = (size_t)s->m->c.hidden, vocab = (size_t)s->m->c.vocab;
    mote_checkpoint *c = (mote_checkpoint *)calloc(1, sizeof *c);
    if (!c) return fail_memory(err);
    c->m = s->m;
    c->count = s->count;
    c->generated_from = s->generated_from;
    c->logged = s->logged;
    c->kept = s->kept;
    c->state_floats = state;
    c->tokens = (int32_t *)malloc(((size_t)s->count + 1) * sizeof *c->tokens);
    c->values = (float *)malloc((state + hidden + vocab) * sizeof(float));
    if (!c->tokens || !c->values) {
        mote_checkpoint_free(c);
        return fail_memory(err);
    }
    memcpy(c->tokens, s->tokens, (size_t)s->count * sizeof *c->tokens);
    int code = session_logits(s, err);
    if (!code) code = session_read(s, c->values, s->state, state * sizeof(float), err);
    if (!code) code = session_read(s, c->values + state, session_last_hidden(s), hidden * sizeof(float), err);
    if (code) {
        mote_checkpoint_free(c);
        return code;
    }
    memcpy(c->values + state + hidden, s->logits, vocab * sizeof(float));
    *checkpoint = c;
    return MOTE_OK;
}

int mote_checkpoint_take(const mote_session *session, mote_checkpoint **checkpoint, mote_error *error) {
    int code = session_enter(session, checkpoint != NULL,
                             "mote_checkpoint_take: needs a session and a place for the checkpoint", error);
    return code ? code : checkpoint_take(session, checkpoint, error);
}

static int session_rewind(mote_session *s, const mote_checkpoint *c, mote_error *err) {
    size_t hidden = (size_t)s->m->c.hidden;
    if (c->m != s->m || c->state_floats != s->parts.state)
        return fail(err, MOTE_EINVAL, "the checkpoint is of another model");
    if (c->count > s->valid || memcmp(c->tokens, s->tokens, (size_t)c->count * sizeof *c->tokens))
        return fail(err, MOTE_EINVAL, "the session's first %d tokens are no longer those of the checkpoint", c->count);
    s->count = c->count;
    s->generated_from = c->generated_from;
    s->logged = c->logged;
    s->kept = c->kept;
    int code = session_write(s, s->state, c->values, s->parts.state * sizeof(float), err);
    if (!code) code = session_write(s, session_last_hidden(s), c->values + s->parts.state, hidden * sizeof(float), err);
    memcpy(s->logits, c->values + s->parts.state + hidden, (size_t)s->m->c.vocab * sizeof(float));
    return code ? code : session_set_logits(s, err);
}

int mote_rewind(mote_session *session, const mote_checkpoint *checkpoint, mote_error *error) {
    int code = session_enter(session, checkpoint != NULL, "mote_rewind: needs a session and a checkpoint", error);
    return code ? code : session_rewind(session, checkpoint, error);
}

typedef struct saved_header {
    char magic[8];
    uint64_t fingerprint;
    uint64_t checksum;           /* of all that follows it */
    int32_t count, generated_from, logged, kept;
    int32_t kv;                  /* MOTE_KV_... */
    int32_t mtp;                 /* 1: the MTP layer's KV rows are there */
} saved_header;

static const char SAVED_MAGIC[8] = {'m', 'o', 't', 'e', ' ', 's', '0', '3'};

static uint64_t saved_checksum(const char *bytes, size_t size) {
    return fnv1a(FNV_START, bytes + offsetof(saved_header, count), size - offsetof(saved_header, count));
}

/* A saved session is a header and pieces: tokens, DeltaNet state, last hidden row, logits, then keys and values of each
   layer, which take no bytes where a layer has none. The MTP layer's row of the last token comes with the next one. */
typedef struct saved_piece {
    void *at;                    /* in the session; NULL: not wanted */
    size_t size;                 /* bytes as saved */
    int is_kv;
} saved_piece;

static int saved_pieces(const mote_session *s) {
    return 4 + 2 * (s->m->c.layers + 1);
}

/* Piece i of a session that is saved as h says. last_hidden: where that row is, or is to be put. */
static saved_piece saved_piece_of(const mote_session *s, const saved_header *h, float *last_hidden, int i) {
    const config *c = &s->m->c;
    size_t count = h->count < 0 ? 0 : (size_t)h->count, rows = count;
    saved_piece p;
    memset(&p, 0, sizeof p);
    p.is_kv = i >= 4;
    if (i == 0) p.at = s->tokens, p.size = count * sizeof *s->tokens;
    if (i == 1) p.at = s->state, p.size = s->parts.state * sizeof(float);
    if (i == 2) p.at = last_hidden, p.size = (size_t)c->hidden * sizeof(float);
    if (i == 3) p.at = s->logits, p.size = (size_t)c->vocab * sizeof(float);
    if (!p.is_kv) return p;
    int layer = (i - 4) / 2;
    p.at = i % 2 ? s->kv[layer].v : s->kv[layer].k;
    if (layer == c->layers) rows = h->mtp && count ? count - 1 : 0;
    else if (!c->is_attention[layer]) rows = 0;
    p.size = rows * (size_t)(c->kv_heads * c->head_dim) * kv_size(kv_type_of(h->kv));
    return p;
}

/* Bytes of a session that is saved as h says. */
static size_t saved_size(const mote_session *s, const saved_header *h) {
    size_t size = sizeof *h;
    for (int i = 0; i < saved_pieces(s); i++) size += saved_piece_of(s, h, NULL, i).size;
    return size;
}

static void saved_describe(const mote_session *s, saved_header *h) {
    memset(h, 0, sizeof *h);
    memcpy(h->magic, SAVED_MAGIC, sizeof h->magic);
    h->fingerprint = s->m->fingerprint;
    h->count = s->count;
    h->generated_from = s->generated_from;
    h->logged = s->logged;
    h->kept = s->kept;
    h->kv = s->o.kv;
    h->mtp = s->kv[s->m->c.layers].k != NULL;
}

/* KV elements of one type, at any address, to another. */
static void kv_convert(char *to, dtype to_type, const char *from, dtype from_type, size_t n) {
    float in[TILE], decoded[TILE], out[TILE];
    for (size_t at = 0; at < n; at += TILE) {
        size_t m = n - at < (size_t)TILE ? n - at : (size_t)TILE;
        memcpy(in, from + at * kv_size(from_type), m * kv_size(from_type));
        kv_store(to_type, out, 0, kv_floats(in, 0, (int)m, decoded, from_type), m);
        memcpy(to + at * kv_size(to_type), out, m * kv_size(to_type));
    }
}

int mote_save(const mote_session *session, void *bytes, size_t capacity, size_t *count, mote_error *error) {
    const mote_session *s = session;
    saved_header h;
    int code = session_enter(s, count && (bytes || !capacity), "mote_save: needs a session, room, and a place for the count",
                             error);
    if (code) return code;
    saved_describe(s, &h);
    size_t size = *count = saved_size(s, &h);
    if (size > capacity) return fail(error, MOTE_EINVAL, "%zu bytes do not fit into the %zu given", size, capacity);
    char *to = (char *)bytes + sizeof h;
    code = session_logits(s, error);
    for (int i = 0; i < saved_pieces(s) && !code; i++) {
        saved_piece p = saved_piece_of(s, &h, session_last_hidden(s), i);
        code = session_read(s, to, p.at, p.size, error);
        to += p.size;
    }
    memcpy(bytes, &h, sizeof h);
    h.checksum = saved_checksum((const char *)bytes, size);
    memcpy(bytes, &h, sizeof h);
    return code;
}

/* Checks a saved session's header, and its size, before any of it is used or memory is taken for it. */
static int saved_check_header(const mote_session *s, const saved_header *h, uint64_t size, mote_error *err) {
    if (memcmp(h->magic, SAVED_MAGIC, sizeof h->magic))
        return fail(err, MOTE_EFORMAT, "not a saved session of this version of mote");
    if (h->fingerprint != s->m->fingerprint)
        return fail(err, MOTE_EINVAL, "the saved session is of another checkpoint");
    if (h->count < 0 || h->generated_from < 0 || h->generated_from > h->count || h->logged < 0 || h->logged > BLOCK ||
        h->kept < 0 || h->kept > h->logged || h->kept > h->count || (h->logged && !h->kept) || h->kv < MOTE_KV_F32 ||
        h->kv > MOTE_KV_FP8 || h->mtp < 0 || h->mtp > s->m->has_mtp)
        return fail(err, MOTE_EFORMAT, "the saved session is damaged");
    if (h->count > s->o.context)
        return fail(err, MOTE_ECONTEXT, "the saved session holds %d tokens, this one has room for %d", h->count,
                    s->o.context);
    size_t expected = saved_size(s, h);
    if (size != expected)
        return fail(err, MOTE_EFORMAT, "a saved session of %llu bytes, expected %zu for %d tokens",
                    (unsigned long long)size, expected, h->count);
    if (!h->mtp && s->kv[s->m->c.layers].k)
        return fail(err, MOTE_EINVAL, "the saved session is without the MTP layer, this one was opened with it");
    return MOTE_OK;
}

/* Checks what is behind the header. */
static int saved_check(const mote_session *s, const saved_header *h, const char *bytes, size_t size, mote_error *err) {
    if (h->checksum != saved_checksum(bytes, size)) return fail(err, MOTE_EFORMAT, "the saved session is damaged");
    for (int i = 0; i < h->count; i++) {
        int32_t id;
        memcpy(&id, bytes + sizeof *h + (size_t)i * sizeof id, sizeof id);
        if (id < 0 || id >= s->m->c.vocab)
            return fail(err, MOTE_EFORMAT, "the saved session holds token id %d, not in the vocabulary", id);
    }
    return MOTE_OK;
}

/* One piece into the session. converted: room for KV rows that are saved as another type than the session keeps. */
static int saved_restore(mote_session *s, const saved_piece *piece, const char *from, dtype kv, char *converted,
                         mote_error *err) {
    if (!piece->at || !piece->size) return MOTE_OK;
    if (!piece->is_kv || kv == s->kv_type) return session_write(s, piece->at, from, piece->size, err);
    size_t n = piece->size / kv_size(kv);
    kv_convert(converted, s->kv_type, from, kv, n);
    return session_write(s, piece->at, converted, n * kv_size(s->kv_type), err);
}

/* The pieces that h describes are in the session, the last hidden row in s->last_hidden. */
static int session_restored(mote_session *s, const saved_header *h, mote_error *err) {
    int code = MOTE_OK;
    s->count = s->valid = h->count;
    s->generated_from = h->generated_from;
    s->logged = h->logged;
    s->kept = h->kept;
    if (s->gpu && s->kept)
        code = session_write(s, session_last_hidden(s), s->last_hidden, (size_t)s->m->c.hidden * sizeof(float), err);
    return code ? code : session_set_logits(s, err);
}

int mote_load(mote_session *session, const void *bytes, size_t size, mote_error *error) {
    mote_session *s = session;
    const char *from = (const char *)bytes;
    saved_header h;
    int code = session_enter(s, bytes != NULL, "mote_load: needs a session and the bytes of a saved one", error);
    if (!code && size < sizeof h) code = fail(error, MOTE_EFORMAT, "not a saved session: %zu bytes", size);
    if (code) return code;
    memcpy(&h, from, sizeof h);
    code = saved_check_header(s, &h, size, error);
    if (!code) code = saved_check(s, &h, from, size, error);
    if (code) return code;
    dtype kv = kv_type_of(h.kv);
    char *converted = kv == s->kv_type ? NULL : (char *)malloc((size_t)h.count * kv_row_bytes(s) + 1);
    if (!converted && kv != s->kv_type) return fail_memory(error);
    from += sizeof h;
    for (int i = 0; !code && i < saved_pieces(s); i++) {
        saved_piece p = saved_piece_of(s, &h, s->last_hidden, i);
        code = saved_restore(s, &p, from, kv, converted, error);
        from += p.size;
    }
    free(converted);
    return code ? code : session_restored(s, &h, error);
}

/* Copies a session's state into another one on the same model, opened with the same options. */
static int session_copy(mote_session *to, const mote_session *from, mote_error *err) {
    saved_header h;
    saved_describe(from, &h);
    int code = session_logits(from, err);
    for (int i = 0; i < saved_pieces(from) && !code; i++) {
        saved_piece p = saved_piece_of(from, &h, session_last_hidden(from), i);
        saved_piece q = saved_piece_of(to, &h, to->last_hidden, i);
        code = session_read(from, q.at, p.at, p.size, err);
    }
    return code ? code : session_restored(to, &h, err);
}

int mote_clone(const mote_session *session, mote_session **clone, mote_error *error) {
    mote_session *s = NULL;
    int code = session_enter(session, clone != NULL, "mote_clone: needs a session and a place for the clone", error);
    if (!code) code = mote_session_open(session->m, &session->o, &s, error);
    if (!code) code = session_copy(s, session, error);
    if (code) mote_session_close(s);
    else *clone = s;
    return code;
}

/* 0, or -1 and errno. */
static int write_all(int fd, const char *bytes, size_t size) {
    while (size) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

/* Where a file of this path is to be written: a symbolic link is followed, what is there must be a regular file that may be
   written. to: the file's own path; *mode: the permissions that it has, or is to have. */
static int replace_place(const char *path, char to[PATH_SIZE], mode_t *mode, mote_error *err) {
    struct stat info;
    *mode = 0600;
    if (!realpath(path, to)) {
        if (errno != ENOENT) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
        if (!lstat(path, &info)) return fail(err, MOTE_EIO, "%s: a symbolic link that leads nowhere", path);
        if (snprintf(to, PATH_SIZE, "%s", path) >= PATH_SIZE) return fail(err, MOTE_EINVAL, "%s: path too long", path);
        return MOTE_OK;
    }
    if (stat(to, &info)) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail(err, MOTE_EIO, "%s: not a regular file", path);
    if (access(to, W_OK)) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
    *mode = info.st_mode & 0777;
    return MOTE_OK;
}

/* Brings a folder's entries to the disk. 0, or what went wrong; that a file system cannot do it, or that the folder may be
   written but not read, is not wrong. */
static int sync_folder(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int broken = fd < 0 || fsync(fd) ? errno : 0;
    if (fd >= 0) close(fd);
    return broken == EACCES || broken == EINVAL || broken == EROFS ? 0 : broken;
}

/* Writes a file whole or not at all, whoever else reads or writes it, and whenever the machine stops: first under a new name
   in the same folder, to the disk, and then in the place of the old one. */
static int replace_file(const char *path, const char *bytes, size_t size, mote_error *err) {
    static const char unique[] = "/.mote-XXXXXX";
    char to[PATH_SIZE], part[PATH_SIZE + sizeof unique];
    mode_t mode;
    int code = replace_place(path, to, &mode, err);
    if (code) return code;
    const char *slash = strrchr(to, '/');
    int folder = slash ? (int)(slash - to) : 1;
    snprintf(part, sizeof part, "%.*s%s", folder, slash ? to : ".", unique);
    int fd = mkostemp(part, O_CLOEXEC);                     /* 0600, and never a file or link that is already there */
    if (fd < 0) return fail(err, MOTE_EIO, "%s: no file can be made in its folder: %s", path, strerror(errno));
    int broken = write_all(fd, bytes, size) || fchmod(fd, mode) || fsync(fd) ? errno : 0;
    if (close(fd) && !broken) broken = errno;
    if (!broken && rename(part, to)) broken = errno;
    if (broken) {
        unlink(part);
        return fail(err, MOTE_EIO, "%s: cannot be written: %s", path, strerror(broken));
    }
    part[folder ? folder : 1] = 0;                          /* "/" has no shorter name */
    if ((broken = sync_folder(part))) return fail(err, MOTE_EIO, "%s: its folder cannot be synced: %s", path, strerror(broken));
    return MOTE_OK;
}

/* The whole session as bytes of its own, to be freed by the caller in any case. */
static int save_bytes(const mote_session *s, char **bytes, size_t *size, mote_error *err) {
    *size = 0;
    (void)mote_save(s, NULL, 0, size, NULL);
    *bytes = (char *)malloc(*size);
    return *bytes ? mote_save(s, *bytes, *size, size, err) : fail_memory(err);
}

int mote_save_file(const mote_session *session, const char *path, mote_error *error) {
    char *bytes = NULL;
    size_t size;
    int code = session_enter(session, path != NULL, "mote_save_file: needs a session and a path", error);
    if (!code) code = save_bytes(session, &bytes, &size, error);
    if (!code) code = replace_file(path, bytes, size, error);
    free(bytes);
    return code;
}

/* The bytes of a session's file, *size of them, to be freed by the caller. */
static int load_file(const mote_session *s, int fd, const char *path, char **bytes, size_t *size, mote_error *err) {
    struct stat info;
    saved_header h;
    mote_error why;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode)) return fail(err, MOTE_EIO, "%s: not a regular file", path);
    *size = (size_t)info.st_size;
    if (*size < sizeof h) return fail(err, MOTE_EFORMAT, "%s: not a saved session: %zu bytes", path, *size);
    int code = read_at(fd, &h, sizeof h, 0, path, err);
    if (code) return code;
    if ((code = saved_check_header(s, &h, *size, &why))) return fail(err, code, "%s: %s", path, why.message);
    *bytes = (char *)malloc(*size);
    return *bytes ? read_at(fd, *bytes, *size, 0, path, err) : fail_memory(err);
}

int mote_load_file(mote_session *session, const char *path, mote_error *error) {
    mote_error why;
    char *bytes = NULL;
    size_t size = 0;
    int code = session_enter(session, path != NULL, "mote_load_file: needs a session and a path", error);
    if (code) return code;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail(error, MOTE_EIO, "%s: %s", path, strerror(errno));
    code = load_file(session, fd, path, &bytes, &size, error);
    close(fd);
    if (!code && (code = mote_load(session, bytes, size, &why))) fail(error, code, "%s: %s", path, why.message);
    free(bytes);
    return code;
}

/* ---- 15. Measuring -----------------------------------------------------------------------------------------------
   What a step costs, on the GPU's own clock, and what really ran. A step cut down to some stages computes nothing of use,
   but touches the same memory in the same order; so the timeline is empty before and after. */

#ifdef __CUDACC__

static uint64_t matrix_bytes(const matrix *w) {
    uint64_t n = (uint64_t)w->rows * (uint64_t)w->cols * (uint64_t)dtype_size(w->type);
    if (w->type == DTYPE_FP8)
        n += (uint64_t)((w->rows - 1) / w->block_rows + 1) * (uint64_t)((w->cols - 1) / w->block_cols + 1) * sizeof(float);
    return n;
}

/* Bytes that the stages of one layer read in a step of T rows with `chosen` distinct experts and `length` tokens of KV. */
static uint64_t layer_bytes(const mote_session *s, const layer *l, unsigned stages, int chosen, int length) {
    const config *c = &s->m->c;
    const deltanet_weights *d = &l->deltanet;
    const attention_weights *a = &l->attention;
    const moe_weights *e = &l->moe;
    uint64_t n = 0;
    if (!l->is_attention) {
        if (stages & MOTE_STAGE_IN_PROJ)
            n += matrix_bytes(&d->in_proj_qkv) + matrix_bytes(&d->in_proj_z) + matrix_bytes(&d->in_proj_b) +
                 matrix_bytes(&d->in_proj_a);
        if (stages & MOTE_STAGE_DELTA) n += 2 * (uint64_t)(c->value_heads * c->value_dim * c->key_dim) * sizeof(float);
        if (stages & MOTE_STAGE_OUT_PROJ) n += matrix_bytes(&d->out_proj);
    } else {
        if (stages & MOTE_STAGE_QKV) n += matrix_bytes(&a->q_proj) + matrix_bytes(&a->k_proj) + matrix_bytes(&a->v_proj);
        if (stages & MOTE_STAGE_ATTEND)
            n += 2 * (uint64_t)length * (uint64_t)(c->kv_heads * c->head_dim) * kv_size(s->kv_type);
        if (stages & MOTE_STAGE_O_PROJ) n += matrix_bytes(&a->o_proj);
    }
    if (stages & MOTE_STAGE_ROUTER)
        n += matrix_bytes(&e->router) + matrix_bytes(&e->shared_expert_gate) + matrix_bytes(&e->gate_proj[c->experts]) +
             matrix_bytes(&e->up_proj[c->experts]);
    if (stages & MOTE_STAGE_UP) n += (uint64_t)chosen * (matrix_bytes(&e->gate_proj[0]) + matrix_bytes(&e->up_proj[0]));
    if (stages & MOTE_STAGE_DOWN)
        n += (uint64_t)chosen * matrix_bytes(&e->down_proj[0]) + matrix_bytes(&e->down_proj[c->experts]);
    return n;
}

static uint64_t step_bytes(const mote_session *s, unsigned stages, const int32_t *chosen, int length) {
    const mote_model *m = s->m;
    uint64_t n = stages & MOTE_STAGE_HEAD ? matrix_bytes(&m->lm_head) : 0;
    for (int i = 0; i < m->c.layers; i++) n += layer_bytes(s, &m->layers[i], stages, chosen[i], length);
    if (stages & MOTE_STAGE_MTP && s->kv[m->c.layers].k)     /* its KV rows alone */
        n += matrix_bytes(&m->mtp_fc) + matrix_bytes(&m->mtp.attention.k_proj) + matrix_bytes(&m->mtp.attention.v_proj);
    return n;
}

/* Bytes read to make one draft. */
static uint64_t draft_bytes(const mote_session *s, int length) {
    const mote_model *m = s->m;
    return matrix_bytes(&m->mtp_fc) + layer_bytes(s, &m->mtp, MOTE_STAGE_ALL, m->c.top_k, length) +
           matrix_bytes(&m->draft_head);
}

/* The ids of step number i. */
static void measure_ids(const mote_session *s, int i, int T, int32_t *ids) {
    for (int t = 0; t < T; t++) {
        uint64_t random = ((uint64_t)i * GPU_ROWS + (uint64_t)t + 1) * 6364136223846793005u + 1442695040888963407u;
        ids[t] = (int32_t)((random >> 33) % (uint64_t)s->m->c.vocab);
    }
}

/* Moves the pretended timeline to where step number i begins. */
static void measure_place(mote_session *s, const mote_measurement *m, int i) {
    int room = s->o.context - m->rows - m->depth;
    s->count = m->depth + (room > 0 ? i * m->rows % (room + 1) : 0);
    s->logged = s->kept = i ? m->rows : 0;
}

static int by_seconds(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Puts the session where step number i begins. A cycle goes on where the last one ended, as long as there is room. */
static void measure_begin(mote_session *s, const mote_measurement *m, int i, int is_cycle) {
    int32_t ids[GPU_ROWS];
    int span = (s->o.context - m->depth) / m->rows - 1;
    if (is_cycle && i % (span > 1 ? span : 1)) return;
    measure_place(s, m, is_cycle ? 0 : i);
    measure_ids(s, i, m->rows, ids);
    gpu_set_step(s, ids, m->rows);
    s->spec.next = ids[0];
    s->spec.drafts = m->drafts;
}

/* Queues m->steps steps between events, after some to warm up, and writes each one's seconds, in ascending order. */
static void measure_events(mote_session *s, const mote_measurement *m, cudaGraphExec_t graph, int is_cycle,
                           double *seconds_of) {
    gpu_queue *q = &s->gpu->q;
    cudaEvent_t *event = (cudaEvent_t *)calloc((size_t)m->steps * 2, sizeof *event);
    if (!gpu_check(q, event ? cudaSuccess : cudaErrorMemoryAllocation, "timing")) return;
    for (int i = 0; i < 2 * m->steps; i++) gpu_check(q, cudaEventCreate(&event[i]), "timing");
    for (int i = -8; i < m->steps && q->status == cudaSuccess; i++) {
        measure_begin(s, m, i + 8, is_cycle);
        if (i >= 0) gpu_check(q, cudaEventRecord(event[2 * i], q->stream), "timing");
        gpu_check(q, cudaGraphLaunch(graph, q->stream), "timing");
        if (i >= 0) gpu_check(q, cudaEventRecord(event[2 * i + 1], q->stream), "timing");
    }
    gpu_check(q, cudaStreamSynchronize(q->stream), "timing");
    for (int i = 0; i < m->steps; i++) {
        float ms = 0;
        if (q->status == cudaSuccess) gpu_check(q, cudaEventElapsedTime(&ms, event[2 * i], event[2 * i + 1]), "timing");
        seconds_of[i] = ms * 1e-3;
    }
    for (int i = 0; i < 2 * m->steps; i++)
        if (event[i]) (void)cudaEventDestroy(event[i]);
    free(event);
    qsort(seconds_of, (size_t)m->steps, sizeof *seconds_of, by_seconds);
}

/* The same for a step of T rows (0: none) and `drafts` as in gpu_capture, which it captures. */
static void measure_graph(mote_session *s, const mote_measurement *m, int T, int drafts, double *seconds_of) {
    enum gpu_kind kind = T == 1 && drafts < 0 ? GPU_LAST_LOGITS : GPU_ALL_LOGITS;
    cudaGraphExec_t graph = gpu_capture(s, T, kind, drafts);
    if (graph) measure_events(s, m, graph, T && drafts >= 0, seconds_of);
    if (graph) (void)cudaGraphExecDestroy(graph);
}

/* Seconds of a step as a caller of mote_step (one row), of forward (several) or of run_pass (a cycle) sees it. */
static double measure_wall(mote_session *s, mote_measurement *m, mote_error *err) {
    int32_t ids[GPU_ROWS];
    double start = 0;
    uint64_t tokens = 0;
    for (int i = -4; i < m->steps; i++) {
        int code = MOTE_OK, n = 1;
        if (i == 0) {
            if (gpu_finish(s, err)) return 0;
            start = seconds();
        }
        if (m->drafts) {
            measure_begin(s, m, i + 4, 1);
            code = pass_on_gpu(s, NULL, m->drafts, &n, err);
            if (!code) session_keep(s, n);
        } else {
            measure_place(s, m, i + 4);
            measure_ids(s, i + 4, m->rows, ids);
            if (m->rows == 1 && i > -4) code = mote_step(s, NULL, ids, err);
            else code = forward(s, ids, m->rows, 1, NULL, NULL, err);
            if (!code && m->rows > 1) code = gpu_finish(s, err);
        }
        if (code) return 0;
        if (i >= 0) tokens += (uint64_t)n;
    }
    if (gpu_finish(s, err)) return 0;
    m->tokens = (double)tokens / m->steps;
    return (seconds() - start) / m->steps;
}

/* Random tokens, and drafts accepted at m's rates; or as ever. */
static void measure_simulate(mote_session *s, const mote_measurement *m) {
    gpu_how how, greedy;
    memset(&greedy, 0, sizeof greedy);
    greedy.k = 1;
    how = greedy;
    if (m) {
        how.simulate = 1;
        for (int i = 0; i < BLOCK - 1; i++) how.accept[i] = (float)m->accept[i];
    }
    s->gpu->overlap = m ? (uint32_t)(m->overlap * 0xffffffffu) : 0;
    gpu_set_how(s, &how);
    gpu_put(&s->gpu->q, gpu_put_how_kernel, s->gpu->greedy, &how);
}

static int measure_step(mote_session *s, mote_measurement *m, mote_error *err) {
    struct gpu_session *g = s->gpu;
    unsigned stages = m->stages ? m->stages : (unsigned)MOTE_STAGE_ALL;
    double *of = (double *)malloc((size_t)m->steps * sizeof *of);
    int32_t *chosen = (int32_t *)calloc((size_t)s->m->c.layers + 1, sizeof *chosen);
    int code = of && chosen ? gpu_enter(s, err) : fail_memory(err);
    m->tokens = 1;
    m->verify = m->choose = m->draft = 0;
    if (!code) {
        g->q.stages = stages;
        if (m->drafts) {
            measure_graph(s, m, 0, m->drafts, of);
            m->draft = of[m->steps / 2];
            measure_graph(s, m, m->rows, -1, of);
            m->verify = of[m->steps / 2];
        }
        measure_graph(s, m, m->rows, m->drafts ? m->drafts : -1, of);
        g->q.stages = ~0u;
        code = gpu_session_failed(s, err);
    }
    if (!code) code = session_read(s, chosen, g->chosen, ((size_t)s->m->c.layers + 1) * sizeof *chosen, err);
    if (!code) {
        m->fastest = of[0];
        m->median = of[m->steps / 2];
        m->slowest = of[m->steps - 1];
        if (m->drafts) m->choose = m->median - m->verify - m->draft;
        m->bytes = step_bytes(s, stages, chosen, m->depth + m->rows);
        if (m->drafts) m->bytes += (uint64_t)m->drafts * draft_bytes(s, m->depth + m->rows);
        m->wall = stages == MOTE_STAGE_ALL ? measure_wall(s, m, err) : 0;
        code = gpu_session_failed(s, err);
    }
    free(of);
    free(chosen);
    return code;
}

/* With what is simulated in place. The graphs captured for it are of no other use. */
static int measure_cycle(mote_session *s, mote_measurement *m, mote_error *err) {
    cudaGraphExec_t *graph = &s->gpu->cycle[m->rows][m->drafts], kept = *graph;
    *graph = NULL;
    measure_simulate(s, m);
    int code = measure_step(s, m, err);
    measure_simulate(s, NULL);
    if (*graph) (void)cudaGraphExecDestroy(*graph);
    *graph = kept;
    s->spec.next = -1;
    s->spec.drafts = 0;
    return code;
}
#endif

/* What a measurement asks for makes sense. */
static int check_measurement(const mote_session *s, const mote_measurement *m, mote_error *err) {
    if (m->rows < 1 || m->rows > BLOCK || m->steps < 1 || m->steps > 1000 || m->depth < 0 ||
        m->depth > s->o.context - m->rows)
        return fail(err, MOTE_EINVAL, "mote_measure: needs 1 to %d rows, 1 to 1000 steps, and a depth in the context", BLOCK);
    if (!m->drafts) return MOTE_OK;
    if (m->drafts < 0 || m->rows != m->drafts + 1 || m->stages)
        return fail(err, MOTE_EINVAL, "mote_measure: 1 to %d drafts need one row more, and all stages", BLOCK - 1);
    if (!speculates(s)) return fail(err, MOTE_EUNSUPPORTED, "mote_measure: there is no MTP layer to draft");
    for (int i = 0; i < m->drafts; i++)
        if (!(m->accept[i] >= 0 && m->accept[i] <= 1)) return fail(err, MOTE_EINVAL, "mote_measure: a rate is not in 0..1");
    if (!(m->overlap >= 0 && m->overlap <= 1)) return fail(err, MOTE_EINVAL, "mote_measure: the overlap is not in 0..1");
    return MOTE_OK;
}

int mote_measure(mote_session *session, mote_measurement *measurement, mote_error *error) {
    mote_measurement *m = measurement;
    int invalid = session_enter(session, m != NULL, "mote_measure: needs a session and a measurement", error);
    if (!invalid) invalid = check_measurement(session, m, error);
    if (invalid) return invalid;
#ifdef __CUDACC__
    if (session->gpu) {
        const mote_launch *launches;
        size_t count, counted = 0;
        int code = mote_launches(session, m->rows, &launches, &count, error);
        for (size_t i = 0; !code && i < count; i++)
            for (int stage = 0; stage < GPU_STAGES; stage++)
                counted += !strcmp(launches[i].stage, gpu_stage_names[stage]) && (!m->stages || m->stages >> stage & 1);
        m->launches = (int)counted;
        if (!code) code = session_reset(session, error);
        if (!code) code = m->drafts ? measure_cycle(session, m, error) : measure_step(session, m, error);
        int cleared = session_reset(session, code ? NULL : error);
        return code ? code : cleared;
    }
#endif
    return fail(error, MOTE_EUNSUPPORTED, "mote_measure: the model is not on a GPU");
}

#ifdef __CUDACC__
/* Reads n * 16 bytes, four loads of a thread in flight. */
static __global__ void gpu_read(const uint4 *from, size_t n, uint32_t *out) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, all = (size_t)gridDim.x * blockDim.x;
    uint32_t mixed = 0;
    for (; i + 3 * all < n; i += 4 * all)
        for (int j = 0; j < 4; j++) {
            uint4 v = __ldcs(from + i + j * all);
            mixed ^= v.x ^ v.y ^ v.z ^ v.w;
        }
    if (mixed == 0x9e3779b9u) *out = mixed;
}

/* The best of a few passes over `bytes` of memory. */
static cudaError_t read_speed(const mote_model *m, const void *from, size_t bytes, uint32_t *out, double *best) {
    cudaEvent_t begin = NULL, end = NULL;
    cudaError_t status = cudaEventCreate(&begin);
    if (status == cudaSuccess) status = cudaEventCreate(&end);
    *best = 0;
    for (int i = 0; i < 8 && status == cudaSuccess; i++) {
        float ms = 0;
        status = cudaEventRecord(begin);
        gpu_read<<<(unsigned)m->gpu_sms * 8, GPU_THREADS>>>((const uint4 *)from, bytes / 16, out);
        if (status == cudaSuccess) status = cudaGetLastError();
        if (status == cudaSuccess) status = cudaEventRecord(end);
        if (status == cudaSuccess) status = cudaEventSynchronize(end);
        if (status == cudaSuccess) status = cudaEventElapsedTime(&ms, begin, end);
        if (ms > 0 && (double)bytes / ms * 1e3 > *best) *best = (double)bytes / ms * 1e3;
    }
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    return status;
}
#endif

int mote_read_speed(const mote_model *model, double *bytes_per_second, mote_error *error) {
    if (!model || !bytes_per_second)
        return fail(error, MOTE_EINVAL, "mote_read_speed: needs a model and a place for the speed");
#ifdef __CUDACC__
    const size_t enough = (size_t)1 << 30;                  /* far more than any second-level cache */
    if (model->gpu >= 0 && model->arena) {
        uint32_t *out = NULL;
        char *more = NULL;
        size_t bytes = model->arena_size < enough ? enough : model->arena_size;
        cudaError_t status = cudaSetDevice(model->gpu);
        if (status == cudaSuccess) status = cudaMalloc((void **)&out, sizeof *out);
        if (status == cudaSuccess && model->arena_size < enough) status = cudaMalloc((void **)&more, bytes);
        if (status == cudaSuccess && more) status = cudaMemset(more, 1, bytes);
        if (status == cudaSuccess)
            status = read_speed(model, more ? more : model->arena, bytes, out, bytes_per_second);
        (void)cudaFree(out);
        (void)cudaFree(more);
        return status == cudaSuccess ? MOTE_OK : gpu_fail(error, status, "measuring the read speed");
    }
#endif
    (void)model;
    (void)bytes_per_second;
    return fail(error, MOTE_EUNSUPPORTED, "mote_read_speed: the weights of the model are not on a GPU");
}

#ifdef __CUDACC__
/* The kernel's name as the driver knows it, "gpu_project<gpu_norm_rows, 1>", in to. */
static void kernel_name(const void *kernel, char *to, size_t size) {
    const char *mangled = "?";
    int failed = -1;
    if (cudaFuncGetName(&mangled, kernel) != cudaSuccess) (void)cudaGetLastError();
    char *name = abi::__cxa_demangle(mangled, NULL, NULL, &failed);
    const char *text = failed ? mangled : name, *end = strchr(text, '(');
    if (!strncmp(text, "void ", 5)) text += 5;
    snprintf(to, size, "%.*s", end ? (int)(end - text) : (int)strlen(text), text);
    free(name);
}

static cudaError_t describe_launch(const gpu_note *n, int rows, char *name, size_t size, mote_launch *l) {
    cudaFuncAttributes about;
    cudaError_t status = cudaFuncGetAttributes(&about, n->kernel);
    if (status != cudaSuccess) return status;
    kernel_name(n->kernel, name, size);
    l->stage = gpu_stage_names[n->stage];
    l->kernel = name;
    l->format = n->format;
    l->rows = rows;
    l->layer = n->layer;
    l->arch = about.binaryVersion;
    l->grid[0] = (int)n->grid.x;
    l->grid[1] = (int)n->grid.y;
    l->grid[2] = 1;
    l->block = GPU_THREADS;
    l->registers = about.numRegs;
    l->shared_bytes = (int)(about.sharedSizeBytes + n->shared);
    l->stack_bytes = (int)about.localSizeBytes;
    return cudaSuccess;
}
#endif

int mote_launches(mote_session *session, int rows, const mote_launch **launches, size_t *count, mote_error *error) {
    int invalid = session_enter(session, launches && count, "mote_launches: needs a session and places for the results", error);
    if (invalid) return invalid;
    if (rows < 1 || rows > BLOCK) return fail(error, MOTE_EINVAL, "mote_launches: 1 to %d rows", BLOCK);
#ifdef __CUDACC__
    struct gpu_session *g = session->gpu;
    enum { NAME = 96 };
    if (g) {
        size_t room = (size_t)session->m->c.layers * 8 + 32;
        int code = gpu_enter(session, error);
        if (code) return code;
        if (!g->notes) g->notes = (gpu_note *)malloc(room * sizeof *g->notes);
        if (!g->launches) g->launches = (mote_launch *)malloc(room * (sizeof *g->launches + NAME));
        if (!g->notes || !g->launches) return fail_memory(error);
        g->q.notes = g->notes;
        g->q.note_count = 0;
        g->q.note_capacity = (int)room;
        cudaGraphExec_t graph = gpu_capture(session, rows, rows == 1 ? GPU_LAST_LOGITS : GPU_ALL_LOGITS, -1);
        g->q.notes = NULL;
        if (graph) (void)cudaGraphExecDestroy(graph);
        char *names = (char *)(g->launches + room);
        for (int i = 0; i < g->q.note_count && g->q.status == cudaSuccess; i++)
            gpu_check(&g->q, describe_launch(&g->notes[i], rows, names + (size_t)i * NAME, NAME, &g->launches[i]),
                      "describing the launches");
        code = gpu_session_failed(session, error);
        if (code) return code;
        *launches = g->launches;
        *count = (size_t)g->q.note_count;
        return MOTE_OK;
    }
#endif
    (void)session;
    (void)launches;
    (void)count;
    return fail(error, MOTE_EUNSUPPORTED, "mote_launches: the model is not on a GPU");
}

/* ---- 16. Selftest ------------------------------------------------------------------------------------------------
   Made-up models have the same weights on the CPU and on a GPU, so a stage can run on both with the same input: on the
   GPU by the very functions that a step is captured from, cut down to one stage (gpu_queue.stages), on the CPU by its
   plain C twin. Each stage gets the CPU's input, so that differences do not add up. What is allowed is relative to the
   largest value of a result: 2e-5 where token rows meet weights, which enter products as two BF16 terms, 16 bits; 1e-5
   for conv_delta, in single precision; 2e-4 for attention, which rounds more often. The rest must be equal. */

#ifdef __CUDACC__

enum {
    TRY_CONTEXT = 9216,          /* more than all splits of attention take with one chunk each */
    TRY_DELTANET = 0, TRY_ATTENTION = 3,                    /* layers of these kinds in all made-up models */
    TRY_FED = 16, TRY_STEPS = 24, TRY_ROWS = TRY_FED + TRY_STEPS
};

/* The first failure stays; after it nothing runs and nothing is told. */
typedef struct selftest {
    void (*row)(void *user, const char *what, double difference, double allowed, int ok);
    void *user;
    const char *device;
    int sms, code, failed;
    mote_error *err;
    uint64_t random;
    double worst;                /* difference so far, of what the next row tells */
    const char *name;            /* of the model: "small:fp8" */
    mote_model *models[2];       /* on the CPU, on the GPU */
    mote_session *cpu, *gpu;     /* one of each, with the same KV type */
    struct gpu_session *g;       /* of gpu */
} selftest;

static float try_random(selftest *t) {                      /* -1..1 */
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(t->random >> 32) * 0x1p-31f;
}

static void try_fill(selftest *t, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = try_random(t);
}

static void try_tokens(selftest *t, uint64_t seed, int32_t *ids, int n) {
    t->random = seed * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < n; i++) {
        try_random(t);
        ids[i] = (int32_t)((t->random >> 33) % (uint64_t)t->models[0]->c.vocab);
    }
}

static void try_put(selftest *t, void *to, const void *from, size_t bytes) {
    if (!t->code) t->code = session_write(t->gpu, to, from, bytes, t->err);
}

/* A result, and the end of what try_worse has collected for it. */
__attribute__((format(printf, 3, 4))) static void try_row(selftest *t, double allowed, const char *format, ...) {
    char what[96];
    int n = snprintf(what, sizeof what, "%s ", t->name), ok = t->worst <= allowed;
    va_list args;
    va_start(args, format);
    vsnprintf(what + n, sizeof what - (size_t)n, format, args);
    va_end(args);
    if (!t->code) {
        t->failed += !ok;
        t->row(t->user, what, t->worst, allowed, ok);
    }
    t->worst = 0;
}

static void try_worse(selftest *t, double difference) {
    if (difference > t->worst) t->worst = difference;
}

static void try_equal(selftest *t, const void *a, const void *b, size_t n) {
    size_t differ = 0;
    for (size_t i = 0; i < n && !t->code; i++) differ += ((const char *)a)[i] != ((const char *)b)[i];
    try_worse(t, (double)differ);
}

/* Largest difference, relative to the largest value wanted, or, if these were added to `before` (else NULL), to the
   largest of what was added. What is no number is infinitely far away. */
static double relative_difference(const float *got, const float *want, const float *before, size_t n) {
    double most = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]), size = fabs((double)want[i] - (before ? before[i] : 0));
        if (!isfinite(d)) return INFINITY;
        most = d > most ? d : most;
        top = size > top ? size : top;
    }
    return top > 0 ? most / top : most > 0 ? INFINITY : 0;
}

/* The same for n floats on the GPU. The CPU's take their place: the next stage shall start alike on both. */
static void try_compare(selftest *t, float *at, const float *want, const float *before, size_t n) {
    float *got = (float *)malloc(n * sizeof *got);
    if (!t->code && !got) t->code = fail_memory(t->err);
    if (!t->code) t->code = session_read(t->gpu, got, at, n * sizeof *got, t->err);
    if (!t->code) try_worse(t, relative_difference(got, want, before, n));
    try_put(t, at, want, n * sizeof *want);
    free(got);
}

/* Before launches: rows `ids` at `position`, `replay` rows of the logged block kept, and the stages that shall run. */
static gpu_queue *try_begin(selftest *t, unsigned stages, int position, int replay, const int32_t *ids, int T) {
    static const int32_t none[GPU_ROWS] = {0};
    if (!t->code) t->code = gpu_enter(t->gpu, t->err);
    t->gpu->count = position;
    t->gpu->kept = replay;
    if (!t->code) gpu_set_step(t->gpu, ids ? ids : none, T);
    t->g->q.stages = stages;
    return &t->g->q;
}

static void try_end(selftest *t) {
    t->g->q.stages = ~0u;
    t->gpu->count = t->gpu->kept = 0;
    if (!t->code) t->code = gpu_finish(t->gpu, t->err);
}

/* Random T rows of the residual for both; s.hidden keeps them when a stage adds to s.x. */
static void try_rows(selftest *t, int T) {
    scratch *w = &t->cpu->s;
    size_t n = (size_t)T * (size_t)t->cpu->m->c.hidden;
    try_fill(t, w->x, n);
    memcpy(w->hidden, w->x, n * sizeof(float));
    try_put(t, t->g->x, w->x, n * sizeof(float));
}

static void try_norm_in_proj(selftest *t, int T) {
    const mote_model *m = t->cpu->m;
    const deltanet_shape *s = &m->deltanet;
    scratch *w = &t->cpu->s;
    size_t rows = (size_t)T, heads = (size_t)s->value_heads, values = heads * (size_t)s->value_dim;
    stage_norm_in_proj(t->cpu->threads, s, &m->layers[TRY_DELTANET].deltanet, w->x, T, w->u, w->in, w->k, w->b, w->a);
    gpu_run_deltanet(t->gpu, try_begin(t, 1u << GPU_IN_PROJ, 0, 0, NULL, T), &t->gpu->m->layers[TRY_DELTANET],
                     &t->gpu->deltanet[TRY_DELTANET], T);
    try_end(t);
    try_compare(t, t->g->in, w->in, NULL, rows * (size_t)deltanet_channels(s));
    try_compare(t, t->g->z, w->k, NULL, rows * values);
    try_compare(t, t->g->b, w->b, NULL, rows * heads);
    try_compare(t, t->g->a, w->a, NULL, rows * heads);
    try_row(t, 2e-5, "norm_in_proj T=%d", T);
}

/* A run of conv_delta and what follows it, on random state; the input is that of try_norm_in_proj. */
static deltanet_job try_deltanet_job(selftest *t, int T, int replay) {
    mote_session *s = t->cpu;
    deltanet_job job;
    memset(&job, 0, sizeof job);
    job.shape = &s->m->deltanet;
    job.w = &s->m->layers[TRY_DELTANET].deltanet;
    job.state = s->deltanet[TRY_DELTANET];
    job.T = T;
    job.replay = replay;
    job.raw = s->s.in;
    job.conv = s->s.gate;
    job.a = s->s.a;
    job.b = s->s.b;
    job.decay = s->s.decay;
    job.beta = s->s.beta;
    job.o = s->s.out;
    job.z = s->s.k;
    try_fill(t, s->state, s->parts.state);
    try_put(t, t->gpu->state, s->state, s->parts.state * sizeof(float));
    return job;
}

/* The new window and log are written by experts_down on the GPU. */
static void try_deltanet(selftest *t, int T, int replay) {
    deltanet_job job = try_deltanet_job(t, T, replay);
    const deltanet_shape *s = job.shape;
    const deltanet_state *a = &job.state, *b = &t->gpu->deltanet[TRY_DELTANET];
    const layer *l = &t->gpu->m->layers[TRY_DELTANET];
    scratch *w = &t->cpu->s;
    size_t channels = (size_t)deltanet_channels(s), values = (size_t)(s->value_heads * s->value_dim);
    gpu_routing none;
    try_rows(t, T);
    stage_conv_delta(t->cpu->threads, &job);
    gpu_run_deltanet(t->gpu, try_begin(t, 1u << GPU_DELTA, 0, replay, NULL, T), l, b, T);
    try_end(t);
    for (size_t i = 0; i < (size_t)T * values; i++)         /* the GPU gates here */
        w->gate[i] = job.o[i] * job.w->norm[i % (size_t)s->value_dim] * silu(job.z[i]);
    try_compare(t, t->g->o, w->gate, NULL, (size_t)T * values);
    try_compare(t, b->S, a->S, NULL, values * (size_t)s->key_dim);
    try_compare(t, b->log_u, a->log_u, NULL, BLOCK * values);
    try_row(t, 1e-5, "conv_delta T=%d replay=%d", T, replay);
    stage_gated_norm_out(t->cpu->threads, &job, w->x);
    gpu_delta block = gpu_run_deltanet(t->gpu, try_begin(t, 1u << GPU_OUT_PROJ, 0, replay, NULL, T), l, b, T);
    try_end(t);
    try_compare(t, t->g->x, w->x, w->hidden, (size_t)(T * s->hidden));
    try_row(t, 2e-5, "gated_norm_out T=%d replay=%d", T, replay);
    memset(&none, 0, sizeof none);                          /* no experts: not those of another test's */
    try_put(t, t->g->routing, &none, sizeof none);
    gpu_run_moe(t->gpu, try_begin(t, 1u << GPU_DOWN, 0, replay, NULL, T), l, T, t->g->x, 0, &block,
                gpu_after_layer(&t->g->q, t->gpu->m, 0));
    try_end(t);
    try_compare(t, b->window, a->window, NULL, (size_t)(s->taps - 1) * channels);
    try_compare(t, b->log_raw, a->log_raw, NULL, BLOCK * channels);
    try_compare(t, b->log_k, a->log_k, NULL, BLOCK * (size_t)(s->key_heads * s->key_dim));
    try_compare(t, b->log_decay, a->log_decay, NULL, BLOCK * (size_t)s->value_heads);
    try_row(t, 1e-5, "window and log T=%d replay=%d", T, replay);
}

/* Random keys and values for all of the context. */
static void try_fill_kv(selftest *t) {
    mote_session *s = t->cpu;
    size_t n = (size_t)(s->m->attention.kv_heads * s->m->attention.head_dim);
    size_t all = TRY_CONTEXT * n * kv_size(s->kv_type);
    kv_rows *a = &s->kv[TRY_ATTENTION], *b = &t->gpu->kv[TRY_ATTENTION];
    for (size_t i = 0; i < TRY_CONTEXT; i++) {
        try_fill(t, s->s.in, 2 * n);
        for (size_t j = 0; j < n; j++) s->s.in[j] *= 2;     /* keys: some positions shall matter more than others */
        kv_store(s->kv_type, a->k, i * n, s->s.in, n);
        kv_store(s->kv_type, a->v, i * n, s->s.in + n, n);
    }
    try_put(t, b->k, a->k, all);
    try_put(t, b->v, a->v, all);
}

/* tell: 0 for the input of rope_attend alone. */
static void try_norm_qkv(selftest *t, int T, int tell) {
    const mote_model *m = t->cpu->m;
    const attention_shape *s = &m->attention;
    scratch *w = &t->cpu->s;
    size_t qg = (size_t)(T * s->heads * 2 * s->head_dim), kv = (size_t)(T * s->kv_heads * s->head_dim);
    stage_norm_qkv(t->cpu->threads, s, &m->layers[TRY_ATTENTION].attention, w->x, T, w->u, w->in, w->k, w->v);
    gpu_run_attention(t->gpu, try_begin(t, 1u << GPU_QKV, 0, 0, NULL, T), &t->gpu->m->layers[TRY_ATTENTION],
                      &t->gpu->kv[TRY_ATTENTION], T, t->g->x, 0, 0);
    try_end(t);
    try_compare(t, t->g->in, w->in, NULL, qg);
    try_compare(t, t->g->k_new, w->k, NULL, kv);
    try_compare(t, t->g->v_new, w->v, NULL, kv);
    if (tell) try_row(t, 2e-5, "norm_qkv T=%d", T);
    t->worst = 0;
}

/* The new KV rows. Values are equal. A key may fall on the other side of a rounding border, a step of its type away:
   the CPU goes on with those of the GPU. */
static void try_kv_rows(selftest *t, int T, int position) {
    const attention_shape *s = &t->cpu->m->attention;
    scratch *w = &t->cpu->s;
    int n = T * s->kv_heads * s->head_dim;
    dtype type = t->cpu->kv_type;
    size_t bytes = (size_t)n * kv_size(type), at = (size_t)position * (bytes / (size_t)T);
    kv_rows *a = &t->cpu->kv[TRY_ATTENTION], *b = &t->gpu->kv[TRY_ATTENTION];
    char *k = (char *)a->k + at, *v = (char *)a->v + at;
    const float *want = kv_floats(k, 0, n, w->u, type);
    if (!t->code) t->code = session_read(t->gpu, k, (const char *)b->k + at, bytes, t->err);
    if (!t->code) t->code = session_read(t->gpu, w->out, (const char *)b->v + at, bytes, t->err);
    try_equal(t, w->out, v, bytes);
    try_worse(t, relative_difference(kv_floats(k, 0, n, w->out, type), want, NULL, (size_t)n));
    try_row(t, type == DTYPE_FP8 ? 0x1p-3 : 0x1p-7, "KV %s rows T=%d position=%d", dtype_names[type], T, position);
}

/* rope_attend, and with_out the stage after it. */
static void try_attention(selftest *t, int T, int position, int with_out) {
    mote_session *c = t->cpu;
    const layer *l = &t->gpu->m->layers[TRY_ATTENTION];
    const attention_shape *s = &c->m->attention;
    size_t n = (size_t)(T * s->heads * s->head_dim);
    attention_job job;
    memset(&job, 0, sizeof job);
    job.shape = s;
    job.w = &c->m->layers[TRY_ATTENTION].attention;
    job.T = T;
    job.position = position;
    job.angles = c->s.angles;
    job.qg = c->s.in;
    job.k_new = c->s.k;
    job.v_new = c->s.v;
    job.kv = c->kv_type;
    job.k = c->kv[TRY_ATTENTION].k;
    job.v = c->kv[TRY_ATTENTION].v;
    job.scores = c->s.scores;
    job.context = TRY_CONTEXT;
    job.o = c->s.out;
    gpu_run_attention(t->gpu, try_begin(t, 1u << GPU_ATTEND, position, 0, NULL, T), l, &t->gpu->kv[TRY_ATTENTION], T,
                      t->g->x, 0, 0);
    try_end(t);
    rotary_angles(c->s.angles, position, T, s->rotary_dim, c->m->c.theta);
    parallel(c->threads, T, attention_prepare, &job);       /* stage_rope_attend, in two parts */
    try_kv_rows(t, T, position);
    parallel(c->threads, T * s->heads, attention_heads, &job);
    try_compare(t, t->g->o, job.o, NULL, n);
    try_row(t, 2e-4, "rope_attend KV %s T=%d position=%d", dtype_names[job.kv], T, position);
    if (!with_out) return;
    stage_out(c->threads, &job, c->s.x);
    gpu_run_attention(t->gpu, try_begin(t, 1u << GPU_O_PROJ, 0, 0, NULL, T), l, &t->gpu->kv[TRY_ATTENTION], T,
                      t->g->x, 0, 0);
    try_end(t);
    try_compare(t, t->g->x, c->s.x, c->s.hidden, (size_t)(T * s->hidden));
    try_row(t, 2e-5, "out T=%d", T);
}

/* The GPU chooses experts by the CPU's logits, so that both choose the same. */
static void try_moe(selftest *t, int T) {
    const moe_shape *s = &t->cpu->m->moe;
    const layer *l = &t->gpu->m->layers[TRY_DELTANET];
    scratch *w = &t->cpu->s;
    size_t n = (size_t)(T * s->experts);
    try_rows(t, T);
    run_moe(t->cpu, &t->cpu->m->layers[TRY_DELTANET], T);
    gpu_run_moe(t->gpu, try_begin(t, 1u << GPU_ROUTER, 0, 0, NULL, T), l, T, t->g->x, 0, NULL,
                gpu_after_layer(&t->g->q, t->gpu->m, 0));
    try_end(t);
    try_compare(t, t->g->router, w->router, NULL, n);
    try_compare(t, t->g->shared_gate, w->shared_gate, NULL, (size_t)T);
    try_row(t, 2e-5, "norm_router T=%d", T);
    gpu_run_moe(t->gpu, try_begin(t, 1u << GPU_UP | 1u << GPU_DOWN, 0, 0, NULL, T), l, T, t->g->x, 0, NULL,
                gpu_after_layer(&t->g->q, t->gpu->m, 0));
    try_end(t);
    try_compare(t, t->g->x, w->x, w->hidden, (size_t)(T * s->hidden));
    try_row(t, 2e-5, "experts_up, experts_down T=%d", T);
}

/* Which experts experts_up finds chosen, of any number of them, by logits of which many are equal. All experts have the
   weights of the first here. */
static void try_choice(selftest *t, int T, int experts, int top_k) {
    const layer *l = &t->gpu->m->layers[TRY_DELTANET];
    gpu_moe p = gpu_moe_of(&t->gpu->m->moe, &l->moe, T);
    float logits[GPU_ROWS * GPU_EXPERTS], weight[GPU_TOP];
    int32_t choice[GPU_TOP + 1], uses[GPU_EXPERTS] = {0};
    gpu_routing want, got;
    size_t n = (size_t)(T * experts);
    memset(&want, 0, sizeof want);
    memset(&got, 0, sizeof got);
    try_fill(t, logits, n);
    for (size_t i = 0; i < n; i++) logits[i] = floorf(logits[i] * 16);
    for (int row = 0; row < T; row++) {
        moe_choose(logits + (size_t)(row * experts), experts, top_k, choice, weight);
        for (int i = 0; i < top_k; i++) uses[choice[i]] |= 1 << row;
    }
    for (int e = 0; e < experts; e++)
        if (uses[e]) want.expert[want.count] = e, want.rows[want.count++] = uses[e];
    try_put(t, t->g->logits, logits, n * sizeof(float));
    p.shape.experts = experts;
    p.shape.top_k = top_k;
    p.stride = 0;
    p.router = t->g->logits;
    p.shared_gate = t->g->shared_gate;
    p.routing = t->g->routing;
    p.chosen = t->g->chosen;
    p.h = t->g->h;
    p.x = t->g->x;
    gpu_run_experts(try_begin(t, 1u << GPU_UP, 0, 0, NULL, T), &p);
    try_end(t);
    if (!t->code) t->code = session_read(t->gpu, &got, t->g->routing, sizeof got, t->err);
    try_worse(t, got.count != want.count);
    for (int i = 0; i < want.count; i++)
        try_worse(t, got.expert[i] != want.expert[i] || got.rows[i] != want.rows[i]);
    try_row(t, 0, "choosing %d of %d T=%d", top_k, experts, T);
}

/* embed and head. The logits of a small vocabulary fit into s.in. */
static void try_ends(selftest *t, int T) {
    const mote_model *m = t->cpu->m;
    scratch *w = &t->cpu->s;
    size_t n = (size_t)(T * m->c.hidden);
    int32_t ids[GPU_ROWS];
    try_tokens(t, (uint64_t)T, ids, T);
    embed(&m->embed_tokens, ids, T, w->x);
    gpu_run(t->gpu, try_begin(t, 1u << GPU_EMBED, 0, 0, ids, T), T, GPU_NO_LOGITS);
    try_end(t);
    try_compare(t, t->g->x, w->x, NULL, n);
    try_row(t, 0, "embed T=%d", T);
    try_rows(t, T);
    rms_norm(w->u, w->x, m->norm, T, m->c.hidden, m->c.eps);
    stage_head(t->cpu->threads, &m->lm_head, w->u, T, w->in);
    gpu_run(t->gpu, try_begin(t, 1u << GPU_HEAD, 0, 0, ids, T), T, GPU_ALL_LOGITS);
    try_end(t);
    try_compare(t, t->g->logits, w->in, NULL, (size_t)(T * m->c.vocab));
    try_row(t, 2e-5, "head T=%d", T);
}

/* All stages; only attention depends on the KV type. */
static void try_stages(selftest *t) {
    static const int positions[] = {0, 63, 64, 700, 9001};
    int again = t->cpu->kv_type != DTYPE_BF16;
    try_fill_kv(t);
    for (int T = 1; T <= GPU_ROWS && !t->code; T++) {
        for (int i = 0; i < 5 && !t->code; i++) {
            try_rows(t, T);
            try_norm_qkv(t, T, !again && !i);
            try_attention(t, T, positions[i], !again && !i);
        }
        if (again) continue;
        try_rows(t, T);
        try_norm_in_proj(t, T);
        for (int replay = 0; replay <= BLOCK && !t->code; replay++) try_deltanet(t, T, replay);
        try_moe(t, T);
        try_choice(t, T, 256, 8);
        try_choice(t, T, 77, 5);
        try_choice(t, T, GPU_EXPERTS, GPU_TOP);
        try_ends(t, T);
    }
}

enum { TRY_MATRIX_ROWS = 77 };

/* Random weights, none of them NaN or infinite; two-byte ones get an exponent near 0. */
static void try_fill_matrix(selftest *t, dtype type, void *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float f = try_random(t);
        uint32_t bits = (uint32_t)(t->random >> 32);
        if (type == DTYPE_F32) ((float *)to)[i] = f;
        if (type == DTYPE_BF16) ((uint16_t *)to)[i] = bf16_of_float(f);
        if (type == DTYPE_F16) ((uint16_t *)to)[i] = (uint16_t)((bits & 0x83ff) | (10 + (bits >> 16) % 5) << 10);
        if (type == DTYPE_FP8) ((uint8_t *)to)[i] = fp8_of_float(f * 448);
    }
}

/* A matrix of any format and width, with and without a norm before it. The session lends its memory: its KV caches hold
   the matrix, as it comes and packed. */
static void try_format(selftest *t, dtype type, int cols) {
    scratch *w = &t->cpu->s;
    kv_rows *kv = &t->gpu->kv[TRY_ATTENTION];
    gpu_queue *q = &t->g->q;
    matrix here = {type, TRY_MATRIX_ROWS, cols, t->cpu->kv[TRY_ATTENTION].k, w->router, 128, 128}, there = here;
    gpu_packing packing = {(const char *)kv->v, (char *)kv->k, here.rows, (int64_t)cols * dtype_size(type), 0};
    size_t n = (size_t)here.rows * (size_t)cols;
    float eps = t->cpu->m->c.eps;
    try_fill_matrix(t, type, t->cpu->kv[TRY_ATTENTION].k, n);
    for (int i = 0; i < 16; i++) w->router[i] = (1.5f + try_random(t)) * 0x1p-8f;
    try_fill(t, w->mtp_in, (size_t)cols);
    try_rows(t, GPU_ROWS);
    try_put(t, kv->v, here.data, n * (size_t)dtype_size(type));
    try_put(t, t->g->router, w->router, 16 * sizeof(float));
    try_put(t, t->g->hidden, w->mtp_in, (size_t)cols * sizeof(float));
    there.data = kv->k;
    there.scale = t->g->router;
    if (!t->code && gpu_check(q, gpu_pack(&packing, q->sms), "packing a matrix"))
        gpu_check(q, cudaDeviceSynchronize(), "packing a matrix");
    for (int T = 1; T <= GPU_ROWS; T++) {
        size_t y = (size_t)(T * here.rows);
        try_fill(t, w->out, y);
        memcpy(w->in, w->out, y * sizeof(float));
        try_put(t, t->g->o, w->out, y * sizeof(float));
        linear(t->cpu->threads, &here, w->x, w->out, T, 1);
        gpu_linear(q, GPU_O_PROJ, &there, t->g->x, t->g->o, T, 1);
        try_end(t);
        try_compare(t, t->g->o, w->out, w->in, y);
        rms_norm(w->u, w->x, w->mtp_in, T, cols, eps);
        linear(t->cpu->threads, &here, w->u, w->out, T, 0);
        gpu_head(q, &there, t->g->hidden, t->g->x, T, eps, t->g->logits);
        try_end(t);
        try_compare(t, t->g->logits, w->out, NULL, y);
    }
    try_row(t, 2e-5, "matrix %s %dx%d", dtype_names[type], here.rows, cols);
}

/* Largest difference of a row of logits, relative to their standard deviation. */
static double logits_difference(const float *got, const float *want, int rows, int vocab) {
    double most = 0;
    for (int r = 0; r < rows; r++, got += vocab, want += vocab) {
        double mean = 0, variance = 0, top = 0;
        for (int i = 0; i < vocab; i++) mean += (double)want[i] / vocab;
        for (int i = 0; i < vocab; i++) {
            double d = fabs((double)got[i] - want[i]);
            if (!isfinite(d)) return INFINITY;
            variance += (want[i] - mean) * (want[i] - mean) / vocab;
            top = d > top ? d : top;
        }
        if (top > most * sqrt(variance)) most = top / sqrt(variance);
    }
    return most;
}

/* A prompt, four rows at a time, against the CPU; allowed is 1 % of the logits' standard deviation. Noise like that of
   two BF16 terms, 2^-17, after every norm moves the CPU's own logits by 0.07 to 0.2 %, mostly through keys and values
   that round to the other side. But a router near a tie would choose another expert, which is worth 14 %: `seed` makes
   tokens for which every expert chosen is ahead of the next by 6e-4 standard deviations of the router's logits or more,
   in all layers. Search again for seeds when the made-up models change. */
static void try_whole(selftest *t, uint64_t seed) {
    enum { COUNT = 70 };
    int vocab = t->models[0]->c.vocab;
    size_t n = COUNT * (size_t)vocab;
    int32_t ids[COUNT];
    float *all = (float *)malloc(4 * n * sizeof *all);
    if (!t->code && !all) t->code = fail_memory(t->err);
    try_tokens(t, seed, ids, COUNT);
    if (!t->code) {
        mote_reset(t->cpu, NULL);
        mote_reset(t->gpu, NULL);
        t->code = mote_feed_logits(t->cpu, ids, COUNT, all, all + n, t->err);
    }
    if (!t->code) t->code = mote_feed_logits(t->gpu, ids, COUNT, all + 2 * n, all + 3 * n, t->err);
    if (!t->code) try_worse(t, logits_difference(all + 2 * n, all, COUNT, vocab));
    try_row(t, 1e-2, "logits of %d tokens", COUNT);
    if (!t->code) try_worse(t, logits_difference(all + 3 * n, all + n, COUNT - 1, vocab));
    try_row(t, 1e-2, "MTP logits of %d tokens", COUNT);
    free(all);
}

/* All that comes out of a session of its own: a prompt, the last 4 tokens of it in one block, then steps. */
typedef struct selftest_record {
    float *logits, *mtp;         /* [TRY_ROWS][vocab], [TRY_FED - 1][vocab] */
    int32_t ids[TRY_STEPS];
    char *saved;                 /* the session after the prompt */
    size_t size;
    int wrong;                   /* greedy steps that did not take the first best logit */
} selftest_record;

static void record_free(selftest_record *r) {
    free(r->logits);
    free(r->saved);
}

/* pieces: how many rows at a time, "1+4+3+2+2+4". */
static void record_prompt(selftest *t, mote_session *s, const char *pieces, selftest_record *r) {
    int32_t ids[TRY_FED];
    size_t vocab = (size_t)s->m->c.vocab, done = 0;
    try_tokens(t, 1, ids, TRY_FED);
    for (const char *p = pieces; done < TRY_FED && !t->code; p += 2) {
        size_t T = (size_t)(*p - '0');
        t->code = mote_feed_logits(s, ids + done, T, r->logits + done * vocab, r->mtp + (done ? done - 1 : 0) * vocab,
                                   t->err);
        done += T;
    }
    if (!t->code) t->code = save_bytes(s, &r->saved, &r->size, t->err);
}

static void record_steps(selftest *t, mote_session *s, const mote_sampling *sampling, selftest_record *r) {
    int vocab = s->m->c.vocab;
    for (int i = 0; i < TRY_STEPS && !t->code; i++) {
        const float *before = r->logits + (size_t)(TRY_FED + i - 1) * (size_t)vocab;
        int best = 0;
        for (int id = 1; id < vocab; id++)
            if (before[id] > before[best]) best = id;
        t->code = mote_step(s, sampling, &r->ids[i], t->err);
        if (!t->code) t->code = session_logits(s, t->err);
        memcpy(r->logits + (size_t)(TRY_FED + i) * (size_t)vocab, s->logits, (size_t)vocab * sizeof(float));
        r->wrong += r->ids[i] != best;
    }
}

static void record_session(selftest *t, const char *pieces, const mote_sampling *sampling, selftest_record *r) {
    size_t vocab = (size_t)t->models[1]->c.vocab;
    mote_session_options o;
    mote_session *s = NULL;
    memset(r, 0, sizeof *r);
    memset(&o, 0, sizeof o);
    o.context = 64;
    o.sms = t->sms;
    r->logits = (float *)calloc((TRY_ROWS + TRY_FED - 1) * vocab, sizeof *r->logits);
    if (!t->code && !r->logits) t->code = fail_memory(t->err);
    if (!t->code) r->mtp = r->logits + TRY_ROWS * vocab;
    if (!t->code) t->code = mote_session_open(t->models[1], &o, &s, t->err);
    if (!t->code) record_prompt(t, s, pieces, r);
    if (!t->code) record_steps(t, s, sampling, r);
    mote_session_close(s);
}

/* What differs between two records, in bytes. */
static void try_records(selftest *t, const selftest_record *a, const selftest_record *b) {
    size_t row = (size_t)t->models[1]->c.vocab * sizeof(float);
    if (t->code) return;
    try_equal(t, a->logits, b->logits, TRY_ROWS * row);
    try_equal(t, a->mtp, b->mtp, (TRY_FED - 1) * row);
    try_equal(t, a->ids, b->ids, sizeof a->ids);
    try_worse(t, a->size == b->size ? 0 : INFINITY);
    try_equal(t, a->saved, b->saved, a->size < b->size ? a->size : b->size);
}

/* The same rows in other company, and the same again: logits, state, KV rows and tokens, to the bit. */
static void try_exact(selftest *t) {
    static const char *const pieces[] = {"4+4+4+4", "3+3+3+3+4", "1+4+3+2+2+4"};
    selftest_record first, other;
    mote_sampling sampling;
    record_session(t, "1+1+1+1+1+1+1+1+1+1+1+1+4", NULL, &first);
    if (!t->code) try_worse(t, first.wrong);
    try_row(t, 0, "greedy tokens have the best logit");
    for (int i = 0; i < 3 && !t->code; i++) {
        record_session(t, pieces[i], NULL, &other);
        try_records(t, &first, &other);
        try_row(t, 0, "rows %s as 1+1+ ... +4", pieces[i]);
        record_free(&other);
    }
    record_free(&first);
    memset(&sampling, 0, sizeof sampling);
    sampling.temperature = 1;
    sampling.top_k = 20;
    sampling.seed = 1;
    record_session(t, pieces[0], &sampling, &first);
    record_session(t, pieces[0], &sampling, &other);
    try_records(t, &first, &other);
    try_row(t, 0, "sampled twice");
    record_free(&first);
    record_free(&other);
}

static void try_close(selftest *t) {
    mote_session_close(t->cpu);
    mote_session_close(t->gpu);
    t->cpu = t->gpu = NULL;
}

/* A session on either device, with KV rows of the same type. */
static void try_open(selftest *t, int kv) {
    mote_session_options o;
    memset(&o, 0, sizeof o);
    o.context = TRY_CONTEXT;
    o.chunk = GPU_ROWS;
    o.kv = kv;
    o.sms = t->sms;
    if (!t->code) t->code = mote_session_open(t->models[0], &o, &t->cpu, t->err);
    if (!t->code) t->code = mote_session_open(t->models[1], &o, &t->gpu, t->err);
    if (!t->code) t->g = t->gpu->gpu;
}

/* seed: of the prompt for a whole model; 0: none. */
static void try_model(selftest *t, const char *name, uint64_t seed) {
    static const int widths[] = {28, 40, 96, 136, 160, 2048};
    int real = !strncmp(name, "small", 5);                  /* has the sizes that the kernels are made for */
    mote_options o;
    memset(&o, 0, sizeof o);
    t->name = name;
    for (int i = 0; i < 2 && !t->code; i++) {
        o.device = i ? t->device : "cpu";
        t->code = mote_open_synthetic(name, &o, &t->models[i], t->err);
    }
    try_open(t, MOTE_KV_BF16);
    if (real && !t->code) try_stages(t);
    for (int type = DTYPE_F32; real && seed && type <= DTYPE_FP8; type++)
        for (int i = 0; i < 6 && !t->code; i++) try_format(t, (dtype)type, widths[i]);
    if (seed && !t->code) try_whole(t, seed);
    try_close(t);
    if (real) try_open(t, MOTE_KV_FP8);
    if (real && !t->code) try_stages(t);
    try_close(t);
    if (!t->code) try_exact(t);
    for (int i = 0; i < 2; i++) {
        mote_close(t->models[i]);
        t->models[i] = NULL;
    }
}
#endif

int mote_selftest(const char *device, int sms,
                  void (*row)(void *user, const char *what, double difference, double allowed, int ok), void *user,
                  int *failed, mote_error *error) {
    mote_error failure;
    mote_callbacks silent;
    memset(&silent, 0, sizeof silent);
    if (!row || !failed || sms < 0)
        return fail(error, MOTE_EINVAL, "mote_selftest: needs a row function, a place for the result, and sms >= 0");
    if (!error) error = &failure;
    mote_model *m = model_new(device ? device : "cuda", 0, &silent, error);
    if (!m) return error->code;
    int code = m->gpu < 0 ? fail(error, MOTE_EDEVICE, "the selftest needs a GPU to compare with the CPU") : MOTE_OK;
    mote_close(m);
#ifdef __CUDACC__
    selftest t;
    memset(&t, 0, sizeof t);
    t.row = row;
    t.user = user;
    t.device = device ? device : "cuda";
    t.sms = sms;
    t.code = code;
    t.err = error;
    if (!t.code) try_model(&t, "tiny:fp8", 60);
    if (!t.code) try_model(&t, "tiny:bf16", 12);
    if (!t.code) try_model(&t, "small:fp8", 4);
    if (!t.code) try_model(&t, "small:bf16", 0);
    code = t.code;
    if (!code) *failed = t.failed;
#endif
    (void)user;
    return code;
}
