/* checkpoint/rows.c: a table of which few rows are ever wanted: it stays in its files, and no part of it is memory but a cache of rows that
   were wanted lately. Knows files, rows and tensor encodings; must not know what rows are of, nor who wants them.

   The table is a matrix in parts of the same number of rows, each a tensor of the checkpoint, or the tensors that stand for one, in any encoding
   that keeps the numbers of a row apart from those of others: F32, F16, BF16, FP8, NVFP4, MXFP8. What belongs to a row is read with pread when the row
   is wanted, and checked then: nothing of a table is looked at before, and a file that has changed meanwhile is an error and not a signal.

   A table without files, of a synthetic model, makes its rows up. */

enum { MAX_TABLE_COLS = 4096, ROW_BYTES = 5 * MAX_TABLE_COLS, ROW_CACHE = 64 << 20 };       /* numbers of a row; bytes, with its scales; of the cache */

/* What of a tensor belongs to a row: entry row / rows of `bytes` bytes each. */
typedef struct row_part { int file, type, rows; uint64_t begin; size_t bytes; } row_part;

/* The tensors of a part of the table; those of the encoding that are there. */
typedef struct row_source { row_part part[MAX_PARTS]; } row_source;

typedef struct row_file { int fd; char *path; } row_file;

typedef struct row_table {
    const tensor_encoding *encoding;
    matrix row;                  /* one row by itself */
    int parts, part_rows;
    row_source *sources;         /* [parts]; NULL: rows are made up */
    row_file *files;             /* [file_count] */
    int file_count;
    uint64_t stored;             /* bytes of all tensors in the files */
    size_t at[MAX_PARTS], bytes; /* where in a row's bytes those of each tensor are; of all of them */
    pthread_mutex_t lock;        /* of what follows; never held while something is read */
    char *cache;                 /* [cached][bytes]: row r can be in one place alone; NULL: there was no memory for it */
    int64_t *held;               /* [cached] the row that is there, and 1; 0: none */
    size_t cached;
    uint64_t from_cache, from_files;
} row_table;

static void rows_close(row_table *t) {
    if (!t) return;
    for (int i = 0; i < t->file_count; i++) {
        if (t->files[i].fd >= 0) close(t->files[i].fd);
        free(t->files[i].path);
    }
    pthread_mutex_destroy(&t->lock);
    free(t->files);
    free(t->sources);
    free(t->cache);
    free(t->held);
    free(t);
}

/* ---- From tensors to a table ---- */

/* The table's own number of a shard, whose file it keeps open for itself; -1: it cannot. */
static int rows_file(row_table *t, const shard *s, mote_error *err) {
    for (int i = 0; i < t->file_count; i++)
        if (!strcmp(t->files[i].path, s->path)) return i;
    row_file *grown = (row_file *)realloc(t->files, ((size_t)t->file_count + 1) * sizeof *grown), *f = grown ? grown + t->file_count : NULL;
    if (grown) t->files = grown;
    if (f) f->fd = -1, f->path = strdup(s->path);
    if (!f || !f->path) {
        (void)fail_memory(err);
        return -1;
    }
    t->file_count++;
    f->fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 0);
    if (f->fd >= 0) return t->file_count - 1;
    (void)fail(err, MOTE_EIO, "%s: cannot be kept open: %s", s->path, strerror(errno));
    return -1;
}

/* Whether an encoding keeps the rows of a matrix apart. */
static int rows_are_apart(enum encoding e) {
    return e <= ENCODING_FP8_BLOCK_CT || e == ENCODING_NVFP4 || e == ENCODING_NVFP4_CT || e == ENCODING_MXFP8 || e == ENCODING_MXFP8_E8M0;
}

/* Where part i's tensors are. stored: its matrix. */
static int rows_source(row_table *t, int i, const checkpoint *files, const matrix *stored, const tensor *const *part, mote_error *err) {
    for (int k = 0; k < MAX_PARTS; k++) {
        const tensor *of = part[k];
        row_part *to = &t->sources[i].part[k];
        if (!of) continue;
        const int entries = of->dims && of->shape[0] > 1 ? (int)of->shape[0] : 1;
        to->file = rows_file(t, &files->shards[of->file], err);
        to->type = of->type;
        to->rows = entries == stored->rows ? 1 : entries > 1 ? stored->block_rows : INT_MAX;
        to->begin = of->begin;
        to->bytes = (size_t)of->size / (size_t)entries;
        if (to->file < 0) return err->code;
    }
    return MOTE_OK;
}

/* The places of a row's bytes, by the largest tensors of any part: scales of another one may have another type. 0: a row has more than there is space for. */
static int rows_layout(row_table *t) {
    size_t converted = 0;
    for (int k = 0; k < MAX_PARTS; k++) {
        size_t most = 0;
        for (int i = 0; i < t->parts && t->sources; i++) most = max_size(most, t->sources[i].part[k].bytes);
        t->at[k] = t->bytes;
        t->bytes += (most + 63) / 64 * 64;
    }
    for (int k = 0; k < formats[t->row.format]->component_count; k++) {
        const component *p = &formats[t->row.format]->components[k];
        converted += (component_bytes(p, component_cols(p, &t->row)) + 63) / 64 * 64;
    }
    return t->bytes <= ROW_BYTES && converted <= ROW_BYTES;
}

/* The tensors of part i of a table: those of b->tables, where tensors' names may begin otherwise, if that is there. */
static enum encoding rows_part(binder *b, const char *where, const char *what, const tensor_slice *all, matrix *stored, const tensor **part) {
    checkpoint *own = b->files;
    const char *rest = strncmp(where, b->prefix, strlen(b->prefix)) ? where : where + strlen(b->prefix);
    enum encoding e = bind_stored(b, all, stored, part);
    if (!b->tables || b->code) return e;
    for (size_t i = 0; i < table_count(&b->tables->table); i++) {
        const char *name = table_name(&b->tables->table, table_at(&b->tables->table, i)), *at = strstr(name, rest);
        char in[256];
        if (!at) continue;
        snprintf(in, sizeof in, "%.*s%.190s", min_int((int)(at - name), 60), name, rest);
        bind_matrix_name(b, in, what);
        b->files = b->tables;
        e = bind_stored(b, all, stored, part);
        b->files = own;
        return e;
    }
    b->code = fail(b->err, MOTE_EFORMAT, "%s: no tensor of %s", b->tables->dir, rest);
    return e;
}

/* A table of `parts` matrices of so many rows and columns; name: of the first one's tensor, with %d for its number. Of a part of a model that
   has not its layer the tensors are checked, and that is all. *to is to be rows_close'd by the model. */
static void rows_bind(binder *b, const char *where, const char *name, int parts, int rows, int cols, row_table **to) {
    const tensor_slice all = slice_all(rows, cols);
    int made_up = b->publishes != NULL;
    row_table *t = b->code ? NULL : (row_table *)calloc(1, sizeof *t);
    if (!t) b->code = b->code ? b->code : fail_memory(b->err);
    if (!t) return;
    pthread_mutex_init(&t->lock, NULL);
    t->parts = parts;
    t->part_rows = rows;
    t->sources = (row_source *)calloc((size_t)parts, sizeof *t->sources);
    if (!t->sources) b->code = fail_memory(b->err);
    for (int i = 0; i < parts && !b->code; i++) {
        const tensor *part[MAX_PARTS];
        char what[64];
        matrix stored = {.rows = rows, .cols = cols};
        snprintf(what, sizeof what, name, i);
        bind_matrix_name(b, where, what);
        publish_matrix(b, &all, 1, &stored);
        if (b->publishes) continue;
        const checkpoint *files = b->tables ? b->tables : b->files;
        const enum encoding e = rows_part(b, where, what, &all, &stored, part);
        if (b->code) break;
        for (int k = 0; k < MAX_PARTS; k++) t->stored += part[k] ? part[k]->size : 0;
        const int other = i && (tensor_encodings[e] != t->encoding || stored.block_cols != t->row.block_cols);
        if (!rows_are_apart(e) || other)
            b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: %s, in which mote reads no single rows of a table", files->dir, b->name,
                           other ? "stored in another way than those before it" : tensor_encodings[e]->name);
        t->encoding = tensor_encodings[e];
        made_up |= files->shards[part[CODES]->file].fd < 0;
        if (!b->code && !made_up) b->code = rows_source(t, i, files, &stored, part, b->err);
        t->row = stored;
        t->row.rows = t->row.block_rows = 1;
        bind_seen(b, e, &stored);
        if (!b->elsewhere) b->m->report.modules[b->kind].parameters += (uint64_t)rows * (uint64_t)cols;
    }
    if (made_up) {
        free(t->sources);
        t->sources = NULL;
    }
    if (!b->code && !b->publishes && (cols > MAX_TABLE_COLS || !rows_layout(t)))
        b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: rows of %d numbers, expected at most %d", b->files->dir, b->name, cols, MAX_TABLE_COLS);
    if (b->code || b->elsewhere || b->publishes) rows_close(t);
    else *to = t;
}

/* ---- Rows ---- */

/* The bytes of row r of the files. */
static int rows_fetch(const row_table *t, int64_t r, char *to, mote_error *err) {
    const row_source *s = &t->sources[r / t->part_rows];
    int code = MOTE_OK;
    for (int k = 0; k < MAX_PARTS && !code; k++) {
        const row_part *p = &s->part[k];
        if (!p->bytes) continue;
        const row_file *f = &t->files[p->file];
        code = read_at(f->fd, to + t->at[k], p->bytes, p->begin + (uint64_t)(r % t->part_rows / p->rows) * p->bytes, f->path, err);
    }
    return code;
}

/* The numbers of a row whose bytes these are. */
static int rows_decode(const row_table *t, int64_t r, const char *bytes, float *to, mote_error *err) {
    char converted[ROW_BYTES] __attribute__((aligned(64)));
    const row_source *s = &t->sources[r / t->part_rows];
    matrix row = t->row;
    conversion c;
    size_t used = 0;
    memset(&c, 0, sizeof c);
    c.w = &row;
    c.rows = 1;
    for (int k = 0; k < MAX_PARTS; k++) c.part[k] = s->part[k].bytes ? bytes + t->at[k] : NULL, c.type[k] = s->part[k].type;
    for (int k = 0; k < formats[row.format]->component_count; k++) {
        const component *p = &formats[row.format]->components[k];
        const component_source *from = &t->encoding->components[k];
        row.component[k] = from->convert ? converted + used : bytes + t->at[from->part];
        c.cols = component_cols(p, &row);
        if (!from->convert) continue;
        if (from->convert(&c, converted + used) >= 0)
            return fail(err, MOTE_EFORMAT, "%s: row %lld of part %d of a table: %s", t->files[s->part[0].file].path, (long long)(r % t->part_rows),
                        (int)(r / t->part_rows), c.why);
        used += (component_bytes(p, c.cols) + 63) / 64 * 64;
    }
    matrix_floats(&row, 0, 0, row.cols, to);
    for (int i = 0; i < row.cols; i++)
        if (!isfinite(to[i]))
            return fail(err, MOTE_EFORMAT, "%s: row %lld of part %d of a table: number %d is not finite", t->files[s->part[0].file].path,
                        (long long)(r % t->part_rows), (int)(r / t->part_rows), i);
    return MOTE_OK;
}

/* Numbers between -1/16 and 1/16 that follow from the row and the column. */
static void rows_make_up(const row_table *t, int64_t r, float *to) {
    for (int i = 0; i < t->row.cols; i++) {
        uint64_t z = (uint64_t)r * (uint64_t)t->row.cols + (uint64_t)i + 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;                        /* splitmix64 */
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        to[i] = ((float)(z >> 40) - 0x1p23f) * 0x1p-27f;
    }
}

/* Memory for the cache, when the first row is wanted. */
static void rows_open_cache(row_table *t) {
    if (t->cached) return;
    t->cached = ROW_CACHE / t->bytes;
    t->cache = (char *)malloc(t->cached * t->bytes);
    t->held = (int64_t *)calloc(t->cached, sizeof *t->held);
}

/* Whether the cache has row r: its bytes then. */
static int rows_cached(row_table *t, int64_t r, char *to) {
    pthread_mutex_lock(&t->lock);
    rows_open_cache(t);
    const size_t i = (size_t)r % t->cached;
    const int there = t->cache && t->held && t->held[i] == r + 1;
    if (there) memcpy(to, t->cache + i * t->bytes, t->bytes);
    t->from_cache += (uint64_t)there;
    pthread_mutex_unlock(&t->lock);
    return there;
}

static void rows_to_cache(row_table *t, int64_t r, const char *bytes) {
    pthread_mutex_lock(&t->lock);
    const size_t i = (size_t)r % t->cached;
    t->from_files++;
    if (t->cache && t->held) {
        memcpy(t->cache + i * t->bytes, bytes, t->bytes);
        t->held[i] = r + 1;
    }
    pthread_mutex_unlock(&t->lock);
}

/* Row r, to[cols]. Any thread may ask. */
static int rows_read(row_table *t, int64_t r, float *to, mote_error *err) {
    char bytes[ROW_BYTES] __attribute__((aligned(64)));
    if (r < 0 || r >= (int64_t)t->parts * t->part_rows)
        return fail(err, MOTE_EFORMAT, "row %lld of a table of %lld", (long long)r, (long long)t->parts * t->part_rows);
    if (!t->sources) {
        rows_make_up(t, r, to);
        return MOTE_OK;
    }
    if (rows_cached(t, r, bytes)) return rows_decode(t, r, bytes, to, err);
    memset(bytes, 0, t->bytes);                /* with what lies between tensors */
    int code = rows_fetch(t, r, bytes, err);
    if (!code) code = rows_decode(t, r, bytes, to, err);
    if (!code) rows_to_cache(t, r, bytes);     /* what is damaged may be whole another time */
    return code;
}

/* Adds the first row of each part to a fingerprint. t NULL: there is no table. */
static int rows_sample(row_table *t, uint64_t *fingerprint, mote_error *err) {
    char bytes[ROW_BYTES];
    int code = MOTE_OK;
    for (int i = 0; t && t->sources && i < t->parts && !code; i++) {
        memset(bytes, 0, t->bytes);
        code = rows_fetch(t, (int64_t)i * t->part_rows, bytes, err);
        if (!code) *fingerprint += fnv1a(FNV_START + (uint64_t)i, bytes, t->bytes);
    }
    return code;
}

/* Whether it has, without its bytes. */
static int rows_in_cache(row_table *t, int64_t r) {
    pthread_mutex_lock(&t->lock);
    const int there = t->cached && t->cache && t->held && t->held[(size_t)r % t->cached] == r + 1;
    pthread_mutex_unlock(&t->lock);
    return there;
}

/* Says to the system that rows will be wanted: it may begin to read those that are not in its own memory. */
static void rows_announce(row_table *t, const int64_t *r, int n) {
    for (int i = 0; i < n && t->sources; i++) {
        if (rows_in_cache(t, r[i])) continue;
        for (int k = 0; k < MAX_PARTS; k++) {
            const row_part *p = &t->sources[r[i] / t->part_rows].part[k];
            if (p->bytes && p->rows == 1)
                (void)posix_fadvise(t->files[p->file].fd, (off_t)(p->begin + (uint64_t)(r[i] % t->part_rows) * p->bytes), (off_t)p->bytes, POSIX_FADV_WILLNEED);
        }
    }
}

/* Adds what a table has done. */
static void rows_seen(row_table *t, mote_tables_seen *seen) {
    pthread_mutex_lock(&t->lock);
    seen->bytes += t->stored;
    seen->cached += t->from_cache;
    seen->read += t->from_files;
    seen->cache_bytes += t->cache ? t->cached * t->bytes : 0;
    pthread_mutex_unlock(&t->lock);
}
