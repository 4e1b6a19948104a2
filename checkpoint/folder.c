/* checkpoint/folder.c: the files of a checkpoint folder and their index. Knows nothing of what the tensors are for.

   Either model.safetensors, or the shards that model.safetensors.index.json names. The index decides: a tensor is taken from
   the file it names. One that is not there, or whose file is not, is missing only if it is asked for. Tensors of a listed file
   that the index forgot are accepted, and so is a file that AutoRound puts beside the others and does not always list. */

enum { PATH_SIZE = 4096, MAX_SHARDS = 1000 };             /* all are open at once: a process may have 1024 files */

typedef struct shard {
    char path[PATH_SIZE];
    int fd;                      /* -1: not open, or not there */
    int listed;                  /* the index says what is in it */
    uint64_t size;
} shard;

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
    s->listed = 0;
    entry->file = c->shard_count;
    return c->shard_count++;
}

/* One that the index lists need not be there. */
static int shard_open(shard *s, mote_error *err) {
    if (s->listed && access(s->path, F_OK) && errno == ENOENT) return MOTE_OK;
    return open_regular(s->path, &s->fd, &s->size, err);
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
        c->shards[file].listed = 1;
    }
    return MOTE_OK;
}

static int checkpoint_read_shards(checkpoint *c, mote_error *err) {
    for (int i = 0; i < c->shard_count; i++) {
        shard *s = &c->shards[i];
        int code = shard_open(s, err);
        if (!code && s->fd >= 0) code = safetensors_read(&c->table, s->fd, s->size, i, s->path, err);
        if (code) return code;
    }
    return MOTE_OK;
}

/* Sets *equal: have both tensors the same type, shape and bytes? Of these one MiB in so many is looked at: 1: all. A file without weights has
   the bytes that it should have. */
static int checkpoint_equal(const checkpoint *c, const tensor *a, const tensor *b, int one_of, int *equal, mote_error *err) {
    enum { PIECE = 1 << 20 };
    const shard *of_a = &c->shards[a->file], *of_b = &c->shards[b->file];
    int code = MOTE_OK;
    *equal = a->type == b->type && a->dims == b->dims && a->size == b->size && !memcmp(a->shape, b->shape, sizeof a->shape);
    char *bytes = *equal && !c->table.without_data ? (char *)malloc(2 * (size_t)PIECE) : NULL;
    if (!bytes) return *equal && !c->table.without_data ? fail_memory(err) : MOTE_OK;
    for (uint64_t at = 0; !code && *equal && at < a->size; at += PIECE * (uint64_t)one_of) {
        const size_t n = a->size - at < PIECE ? (size_t)(a->size - at) : (size_t)PIECE;
        code = read_at(of_a->fd, bytes, n, a->begin + at, of_a->path, err);
        if (!code) code = read_at(of_b->fd, bytes + PIECE, n, b->begin + at, of_b->path, err);
        if (!code) *equal = !memcmp(bytes, bytes + PIECE, n);
    }
    free(bytes);
    return code;
}

/* Says that a tensor is not where the index says. */
static int checkpoint_missing(const checkpoint *c, const tensor *t, mote_error *err) {
    const char *path = c->shards[t->file].path, *name = table_name(&c->table, t);
    if (c->shards[t->file].fd < 0)
        return fail(err, MOTE_EIO, "%s: %s: the index says that tensor %s is here", path, strerror(ENOENT), name);
    return fail(err, MOTE_EFORMAT, "%s: tensor %s is missing, the index says it is here", path, name);
}

/* Whether the folder has an entry of this name. One that cannot be opened counts, a symbolic link to nothing included: that
   is for the reader to say, not to be taken for a file the checkpoint does without. */
static int file_exists(const char *dir, const char *name) {
    char path[PATH_SIZE];
    struct stat info;
    if (join_path(path, sizeof path, dir, name)) return 1;
    return !lstat(path, &info) || (errno != ENOENT && errno != ENOTDIR);
}

/* Reads and parses a JSON file of the folder, an object or a list: JSON_... On success *j is the caller's to free. */
static int read_json_of(const char *dir, const char *name, uint32_t type, json *j, mote_error *err) {
    char path[PATH_SIZE];
    buf text;
    memset(&text, 0, sizeof text);
    int code = read_file(dir, name, &text, err);
    if (code) return code;
    if (join_path(path, sizeof path, dir, name)) code = fail(err, MOTE_EINVAL, "%s/%s: path too long", dir, name);
    if (!code) code = json_parse_as(j, text.data, text.size, path, 1, err);
    if (!code && j->nodes[0].type != type) {
        json_free(j);
        code = fail(err, MOTE_EFORMAT, "%s: not a JSON %s", path, type == JSON_OBJECT ? "object" : "list");
    }
    if (code) buf_free(&text);
    else j->file = text.data;
    return code;
}

static int read_json(const char *dir, const char *name, json *j, mote_error *err) {
    return read_json_of(dir, name, JSON_OBJECT, j, err);
}

static const char side_file[] = "model_extra_tensors.safetensors";

/* Reads all headers. describes: the weights themselves are not wanted. c is to be closed by the caller in any case. */
static int checkpoint_open(checkpoint *c, const char *dir, int describes, mote_error *err) {
    json j;
    int code;
    memset(c, 0, sizeof *c);
    c->dir = dir;
    c->table.describes = describes;
    if (file_exists(dir, "model.safetensors.index.json")) {
        code = read_json(dir, "model.safetensors.index.json", &j, err);
        if (code) return code;
        code = checkpoint_read_index(c, &j, err);
        if (!code && file_exists(dir, side_file)) {
            int file = checkpoint_shard(c, side_file, err);
            code = file < 0 ? -file : MOTE_OK;
        }
        json_free(&j);
    } else if (file_exists(dir, "model.safetensors")) {
        int file = checkpoint_shard(c, "model.safetensors", err);
        code = file < 0 ? -file : MOTE_OK;
    } else {
        return fail(err, MOTE_EIO, "%s: neither model.safetensors nor model.safetensors.index.json is there", dir);
    }
    return code ? code : checkpoint_read_shards(c, err);
}
