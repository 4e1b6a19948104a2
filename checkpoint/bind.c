/* checkpoint/bind.c: gives every tensor of the model its place. Knows shapes, and reads no weights; must not know what any tensor
   is called: families do.

   bind_slice and bind_slice_vector are how: all else that binds is a few lines before them.

   A family asks for each tensor that its model needs, by name and shape; binding finds it, checks it, gives it a place in the one
   block of memory that will hold all weights, and puts it on the list of what to load. When all are bound, a tensor that
   nobody asked for is an error: a checkpoint that holds more than the model is not the model. Matrices keep the numbers they
   are stored in, component by component, whatever their tensor encoding is (formats/formats.c); vectors (norms, gates, conv1d),
   small as they are, become float. */

static void bind_as(binder *b, enum module_kind kind, uint64_t used, uint64_t of) {
    b->kind = kind;
    b->used = used;
    b->of = of;
}

/* Whether each rank has the whole embedding, to need none of the others for it: a GPU does. A tied head is its share's copy then. */
static int ranks_embed_alone(const mote_model *m) {
    return m->memory->packs && m->part.ranks > 1;
}

/* Whether the embedding is the head, too. A tied head is else a copy of its rows: a rank's share, or all of them in FP8. */
static int embedding_is_head(const mote_model *m) {
    return m->c.tied && !ranks_embed_alone(m) && m->quantize != MOTE_QUANTIZE_HEAD_FP8;
}

/* Whether the part has the embedding: the first range does, and the last one for a head that is the embedding, or the MTP layer. */
static int bind_has_embedding(const mote_model *m) {
    return part_is_first(&m->part) || (part_is_last(&m->part) && (embedding_is_head(m) || m->has_mtp));
}

/* What is bound from here on is of layer i: this part's or another's. EMBEDDING: the embedding, c.layers: what comes after the layers. */
static void bind_for_layer(binder *b, int i) {
    const mote_model *m = b->m;
    b->layer = i;
    b->elsewhere = i == EMBEDDING ? !bind_has_embedding(m) : i < m->c.layers ? !part_has(&m->part, i) : !part_is_last(&m->part);
    b->again = i == EMBEDDING && !part_is_first(&m->part);
}

/* Puts an item on the list, to lie at the next 64-byte boundary of the arena. */
static void bind_item(binder *b, const load_item *like) {
    const int tied_head = b->kind == MODULE_HEAD && b->m->c.tied;      /* a copy of rows of the embedding, which comes first */
    const size_t place = tied_head ? 0 : b->whole;
    load_item all = *like;
    if (b->kind == MODULE_EMBED) all.of.rows = b->m->c.vocab;          /* whether ranks have all of it or not */
    b->whole += tied_head ? 0 : item_capacity(&all);
    if (b->elsewhere) return;
    load_item *item = (load_item *)buf_add(&b->items, like, sizeof *like);
    const uint64_t numbers = (uint64_t)like->rows * (uint64_t)like->cols;
    const int is_weight = like->component == CODES || like->component == VECTOR;
    if (!item) {
        b->code = fail_memory(b->err);
        return;
    }
    item->at = b->arena;
    item->place = place;
    item->layer = b->layer;
    item->again = b->again;
    item->module = b->kind;
    b->arena += item_capacity(item);
    mote_module *m = &b->m->report.modules[b->kind];
    const uint64_t held = item_held(item);
    m->parameters += is_weight && !tied_head ? numbers : 0;
    m->bytes += held;
    m->bytes_per_token += held * b->used / b->of;
    if (is_weight) b->active[b->kind] += numbers * b->used / b->of;
}

/* Notes of what a module consists. */
static void bind_seen(binder *b, enum encoding e, const matrix *w) {
    const enum format f = tensor_encodings[e]->format;
    int *group = &b->group[b->kind];
    b->encodings[b->kind] |= 1u << e;
    b->formats[b->kind] |= 1u << f;
    if (format_has_groups(f)) *group = !*group || *group == w->block_cols ? w->block_cols : -1;
}

/* ---- Slices ---- */

/* Divides n of something by s->ranks; *at: where the rank's share begins. */
static int bind_share(binder *b, const tensor_slice *s, int n, const char *what, int *at) {
    if (n % s->ranks)
        b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: its %d %s cannot be divided by %d", b->files->dir, b->name, n, what,
                       s->ranks);
    *at += n / s->ranks * s->rank;
    return n / s->ranks;
}

/* Takes a rank's share of the slice: whole groups of its rows, where there are several, or else a part of each run. */
static void bind_rank(binder *b, tensor_slice *s) {
    row_runs *r = &s->runs;
    if (!s->ranks || b->code) return;
    if (s->divided == DIVIDED_COLS) {
        s->width = bind_share(b, s, slice_cols(s), "columns", &s->col);
        return;
    }
    if (!r->groups) *r = rows_of(s, 1, 0, s->rows);
    if (r->groups > 1) r->groups = bind_share(b, s, r->groups, "groups of rows", &r->first);
    else
        for (int i = 0; i < MOST_RUNS && r->rows[i] && !b->code; i++) r->rows[i] = bind_share(b, s, r->rows[i], "rows", &r->at[i]);
}

static int common_divisor(int a, int b) {
    return b ? common_divisor(b, a % b) : a;
}

/* Rows of a block of the slice: where the stored matrix's blocks do not end with its runs, less, so that each has one scale. */
static int slice_block_rows(const tensor_slice *s, const matrix *stored) {
    const row_runs *r = &s->runs;
    int lower = stored->block_rows;
    if (!r->groups || stored->block_rows >= stored->rows) return lower;
    if (runs_follow(r)) return common_divisor(lower, runs_from(r, 0));
    if (r->groups > 1) lower = common_divisor(lower, r->group_rows);
    for (int i = 0; i < MOST_RUNS; i++) lower = common_divisor(common_divisor(lower, r->at[i]), r->rows[i]);
    return lower;
}

/* The columns of a number of the stored matrix that the slice cuts in two; 0: it cuts none. */
static int slice_cuts(const tensor_slice *s, const tensor_encoding *e, const matrix *stored) {
    const int end = s->col + s->width;
    if (!s->width) return 0;
    for (int i = 0; i < formats[stored->format]->component_count; i++) {
        const component *p = &formats[stored->format]->components[i];
        const int cols = p->bits < 8 ? 8 / p->bits : p->cols ? p->cols : stored->block_cols;
        if (cols < stored->cols && (s->col % cols || (end % cols && end < stored->cols))) return cols;
    }
    return s->width % e->cols ? e->cols : 0;
}

/* The sizes of the slice w of a stored matrix. */
static void bind_cut(binder *b, const tensor_slice *s, enum encoding as, const matrix *stored, matrix *w) {
    const tensor_encoding *e = tensor_encodings[as];
    const int cuts = slice_cuts(s, e, stored);
    *w = *stored;
    w->rows = slice_rows(s);
    w->cols = slice_cols(s);
    w->block_rows = slice_block_rows(s, stored);
    if (b->kind == MODULE_VISION) w->whole_cols = VISION_WHOLE_COLS;
    if (format_has_groups(w->format) && w->block_cols > w->cols) w->block_cols = w->cols;
    if (cuts)
        b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: columns %d to %d of %d, and %s can be cut at multiples of %d only",
                       b->files->dir, b->name, s->col, s->col + w->cols - 1, stored->cols, e->name, cuts);
    else if (w->block_rows < stored->block_rows && b->m->memory->packs && formats[w->format]->unsupported_reason &&
             formats[w->format]->unsupported_reason(w->block_rows, w->block_cols))
        b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: FP8 blocks of which heads have less than 16 rows are not "
                       "supported on a GPU, use the CPU", b->files->dir, b->name);
}

/* Makes BF16 weights FP8 blocks of 128 x 128 if that is asked for, of all or of the head. */
static enum encoding bind_quantised(binder *b, enum encoding e, matrix *w) {
    const int head_alone = b->m->quantize == MOTE_QUANTIZE_HEAD_FP8;
    if (head_alone && b->kind == MODULE_HEAD && e != ENCODING_BF16)
        b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: a head of %s does not become FP8, only one of BF16 does", b->files->dir,
                       b->name, tensor_encodings[e]->name);
    if (e != ENCODING_BF16 || !b->m->quantize || (head_alone && b->kind != MODULE_HEAD)) return e;
    w->format = FORMAT_FP8_BLOCK;
    w->block_rows = w->block_cols = TILE;
    return ENCODING_QUANTISED;
}

/* Makes a vision tower's F32 and F16 weights BF16 for kernels, whose products of many rows take no others of plain numbers. */
static void bind_rounded(const binder *b, enum encoding e, matrix *w) {
    if (e < ENCODING_BF16 && b->kind == MODULE_VISION && b->m->memory->packs) w->format = FORMAT_BF16;
}

/* Where in its tensor an item is: in its entry of a stack. Rows that follow each other and are stored as they will lie in memory are all
   that is read of it: then nothing is left to be picked. */
static void item_place(load_item *item, const component *stored, int as_stored) {
    tensor_slice *s = &item->slice;
    const size_t row = component_bytes(stored, component_cols(stored, &item->stored));
    item->size = s->entries ? item->from->size / (uint64_t)s->entries : item->from->size;
    item->offset = item->size * (uint64_t)s->entry;
    if (!as_stored || stored->rows != 1 || s->transposed || s->width || !s->runs.groups || !runs_follow(&s->runs)) return;
    item->offset += row * (uint64_t)runs_from(&s->runs, 0);
    item->stored.rows = runs_rows(&s->runs);
    item->size = row * (uint64_t)item->stored.rows;
    memset(&s->runs, 0, sizeof s->runs);
}

/* Puts the components of a matrix on the list. */
static void bind_components(binder *b, const tensor_slice *s, enum encoding as, const matrix *stored, const tensor *const *part,
                            matrix *w) {
    const int rounded = as < ENCODING_BF16 && w->format != stored->format, remade = rounded || as == ENCODING_QUANTISED;
    for (int i = 0; i < formats[w->format]->component_count && !b->code; i++) {
        const component *p = &formats[w->format]->components[i];
        const component_source *from = rounded ? &rounded_source : &tensor_encodings[as]->components[i];
        load_item item;
        memset(&item, 0, sizeof item);
        item.from = part[from->part];
        item.source = from;
        item.of = *w;
        item.stored = *stored;
        item.component = i;
        item.rows = component_rows(p, w);
        item.cols = component_cols(p, w);
        item.slice = *s;
        item.target = &w->component[i];
        for (int k = 0; k < MAX_PARTS; k++)
            if (k == from->part || from->needs >> k & 1) item.part[k] = part[k];
        item_place(&item, &formats[stored->format]->components[remade ? (int)CODES : i], remade || !from->convert);
        bind_item(b, &item);
    }
    bind_seen(b, as, w);
}

/* The one way from the tensors of a matrix, in whatever encoding they are, to a matrix w that is a part of it.

   where, what: the name of the tensor, or of the tensor that others stand for; ".weight" at its end gives way to their suffixes.
   all says which part: an entry of a stack, runs of rows, columns, the share of a rank; they must lie inside the matrix that is stored.
   FP8 blocks that runs of rows cut become lower ones. Columns are cut at the borders of groups; elsewhere, and where rows or
   columns cannot be divided by ranks, it is refused. keep_precision: quantising leaves it as it is.

   Examples, as rows x cols of one stored matrix:
     all of it                            s = slice_all(rows, cols)
     expert e's of E, [E][rows][cols]     s.entry = e, s.entries = E
     its gate, the first half             s.runs = rows_of(&s, 1, 0, rows / 2)
     its gate, alternating with up        s.runs = rows_of(&s, rows / 2, 0, 1); up: rows_of(&s, rows / 2, 1, 1)
     stored as [cols][rows] in BF16       s.transposed = 1
     of heads of [k, v] all k             s.runs = rows_of(&s, heads, 0, k)
     the share of a rank                  s.divided = DIVIDED_COLS, s.rank = 1, s.ranks = 2 */
static void bind_slice(binder *b, const char *where, const char *what, const tensor_slice *all, int keep_precision, matrix *w) {
    const tensor *part[MAX_PARTS];
    tensor_slice s = *all;
    matrix stored;
    memset(&stored, 0, sizeof stored);
    stored.rows = s.rows;
    stored.cols = s.cols;
    bind_matrix_name(b, where, what);
    publish_matrix(b, &s, keep_precision, &stored);
    bind_rank(b, &s);
    w->rows = slice_rows(&s);                      /* a bias is asked for by these */
    w->cols = slice_cols(&s);
    if (b->code || b->publishes) return;
    enum encoding e = bind_stored(b, &s, &stored, part);
    if (e > ENCODING_BF16) s.transposed = 0;
    if (!b->code) bind_cut(b, &s, e, &stored, w);
    if (b->code) return;
    if (!keep_precision) e = bind_quantised(b, e, w);
    if (b->code) return;
    bind_rounded(b, e, w);
    bind_components(b, &s, e, &stored, part, w);
}

/* Divides a slice among the ranks of the part, if there are several: this one gets its share. */
static void slice_divide(const binder *b, tensor_slice *s, enum divided divided) {
    const model_part *part = &b->m->part;
    if (part->ranks < 2) return;
    s->divided = divided;
    s->rank = part->rank;
    s->ranks = part->ranks;
}

/* A matrix, of whose rows or columns each rank has a share. */
static void bind_matrix(binder *b, const char *where, const char *what, matrix *w, int rows, int cols, enum divided divided) {
    tensor_slice s = slice_all(rows, cols);
    slice_divide(b, &s, divided);
    bind_slice(b, where, what, &s, 0, w);
}

/* A matrix that each rank has. */
static void bind_whole(binder *b, const char *where, const char *what, matrix *w, int rows, int cols) {
    const tensor_slice all = slice_all(rows, cols);
    bind_slice(b, where, what, &all, 0, w);
}

/* The embedding, or the head: of several ranks each has rows of the vocabulary, or all. */
static void bind_vocab(binder *b, const char *where, const char *what, int keep_precision, matrix *w, int all) {
    const config *c = &b->m->c;
    const vocab_share own = part_vocab(&b->m->part, c->vocab);
    tensor_slice s = slice_all(c->vocab, c->hidden);
    if (own.rows < c->vocab && !all) s.runs = rows_of(&s, 1, own.first, own.rows);
    bind_slice(b, where, what, &s, keep_precision, w);
}

/* A matrix that each rank has, and that stays as it is when the others are quantised, as in the official FP8 checkpoints. */
static void bind_kept(binder *b, const char *where, const char *what, matrix *w, int rows, int cols) {
    const tensor_slice all = slice_all(rows, cols);
    bind_slice(b, where, what, &all, 1, w);
}

static const matrix_part vector_part = {"", NULL, "n", 0}, conv_part = {"", NULL, "n 1 k", 0}, table_part = {"", NULL, "n k", 0};

/* Makes a tensor of `rows` rows, each of dimensions[count], one whose rows have one dimension: a matrix as others are. */
static void bind_flatten(binder *b, const char *where, const char *what, int rows, const uint64_t *dimensions, int count) {
    uint64_t shape[MAX_DIMS], all = 1;
    assert(count < (int)MAX_DIMS);
    snprintf(b->name, sizeof b->name, "%s%s", where, what);
    tensor *t = b->code || b->publishes ? NULL : bind_tensor(b, b->name);
    shape[0] = (uint64_t)rows;
    for (int i = 0; i < count; i++) all *= shape[1 + i] = dimensions[i];
    if (!t || t->dims <= 2) return;
    if (!same_shape(t, shape, 1 + count)) {
        b->code = bind_misfit(b, t, shape, 1 + count, &table_part);
        return;
    }
    t->dims = 2;
    t->shape[1] = all;
}

/* ---- Vectors ---- */

/* The tensor b->name, checked for shape and type; NULL (and b->code) when something is wrong, or when it is only published. */
static tensor *bind_find(binder *b, const uint64_t *shape, int dims, const matrix_part *p) {
    publish_vector(b, shape, dims, p);
    if (b->code || b->publishes) return NULL;
    tensor *t = bind_tensor(b, b->name);
    if (!t) b->code = bind_missing(b, shape, dims);
    else if (!same_shape(t, shape, dims) || !stored_as(t, p)) b->code = bind_misfit(b, t, shape, dims, p);
    if (b->code) return NULL;
    t->used = 1;
    return t;
}

/* Puts a slice of a tensor's numbers on the list, as floats. */
static void bind_floats(binder *b, const tensor *t, const tensor_slice *s, const component_source *source, int component, const float **v) {
    load_item item;
    memset(&item, 0, sizeof item);
    item.from = item.part[0] = t;
    item.source = source;
    item.of.format = item.stored.format = FORMAT_F32;
    item.stored.rows = s->rows;
    item.stored.cols = s->cols;
    item.component = component;
    item.of.rows = item.rows = slice_rows(s);
    item.of.cols = item.cols = slice_cols(s);
    item.slice = *s;
    item.target = (const void **)v;
    item_place(&item, &vector_component, 0);
    bind_item(b, &item);
}

/* The same for numbers that are no weights of products, as they are of a part's shape in the tensor of that name, or of a stack: norms,
   biases, conv1d. source: vector_source, or norm_source, which adds 1, or root_source. */
static void bind_slice_vector(binder *b, const char *where, const char *what, const tensor_slice *all, const matrix_part *p,
                              const component_source *source, const float **v) {
    tensor_slice s = *all;
    matrix stored;
    uint64_t shape[MAX_DIMS];
    const char *rest;
    memset(&stored, 0, sizeof stored);
    stored.rows = s.rows;
    stored.cols = s.cols;
    snprintf(b->name, sizeof b->name, "%s%s", where, what);
    bind_rank(b, &s);
    const tensor *t = bind_find(b, shape, bind_shape(&s, NULL, p->shape, &stored, shape, &rest), p);
    if (!t) return;
    bind_floats(b, t, &s, source, VECTOR, v);
    b->formats[b->kind] |= 1u << t->type;
    b->encodings[b->kind] |= 1u << t->type;
}

static void bind_vector(binder *b, const char *where, const char *what, const float **v, int n) {
    const tensor_slice all = slice_all(n, 1);
    bind_slice_vector(b, where, what, &all, &vector_part, &vector_source, v);
}

/* The bias of a matrix that has been bound as this slice, and is stored as a vector, or as a stack of them. Of columns that ranks divide the
   first one adds it. */
static void bind_bias(binder *b, const char *where, const char *what, const tensor_slice *all, matrix *w) {
    tensor_slice s = *all;
    s.cols = 1;
    s.transposed = s.col = s.width = 0;
    const int elsewhere = b->elsewhere, by_cols = s.ranks && s.divided == DIVIDED_COLS;
    b->elsewhere |= by_cols && s.rank;
    if (by_cols) s.ranks = 0;
    bind_slice_vector(b, where, what, &s, &vector_part, &vector_source, &w->bias);
    b->elsewhere = elsewhere;
}

static void bind_whole_bias(binder *b, const char *where, const char *what, matrix *w) {
    const tensor_slice all = slice_all(w->rows, w->cols);
    bind_bias(b, where, what, &all, w);
}

/* A matrix, what.weight, and its bias, what.bias, which each rank has and quantising leaves as they are. */
static void bind_kept_biased(binder *b, const char *where, const char *what, matrix *w, int rows, int cols) {
    char name[64];
    snprintf(name, sizeof name, "%s.weight", what);
    bind_kept(b, where, name, w, rows, cols);
    snprintf(name, sizeof name, "%s.bias", what);
    bind_whole_bias(b, where, name, w);
}

/* Of one that bind_matrix has bound, with so many rows in all. */
static void bind_divided_bias(binder *b, const char *where, const char *what, matrix *w, int rows, enum divided divided) {
    tensor_slice s = slice_all(rows, w->cols);
    slice_divide(b, &s, divided);
    bind_bias(b, where, what, &s, w);
}

/* A vector of which each rank has a share. */
static void bind_divided_vector(binder *b, const char *where, const char *what, const float **v, int n) {
    tensor_slice s = slice_all(n, 1);
    slice_divide(b, &s, DIVIDED_ROWS);
    bind_slice_vector(b, where, what, &s, &vector_part, &vector_source, v);
}

/* The weights of a norm, which the checkpoint keeps around zero: v becomes 1 + what is stored. */
static void bind_zero_centered(binder *b, const char *where, const char *what, const float **v, int n) {
    const tensor_slice all = slice_all(n, 1);
    bind_slice_vector(b, where, what, &all, &vector_part, &norm_source, v);
}

/* A vector of n numbers: v becomes what is stored / sqrt(n). */
static void bind_by_root(binder *b, const char *where, const char *what, const float **v, int n) {
    const tensor_slice all = slice_all(n, 1);
    bind_slice_vector(b, where, what, &all, &vector_part, &root_source, v);
}

/* Is the tensor of that name there? */
static int bind_has(binder *b, const char *where, const char *what) {
    snprintf(b->name, sizeof b->name, "%s%s", where, what);
    return b->publishes ? publish_has(b) : bind_tensor(b, b->name) != NULL;
}

/* A tensor that may be there, and is not needed. */
static void bind_unneeded(binder *b, const char *where, const char *what) {
    snprintf(b->name, sizeof b->name, "%s%s", where, what);
    tensor *t = bind_tensor(b, b->name);
    if (t) t->used = 1;
}

/* The scale of an FP8 KV cache, where the checkpoint has one: a single number, by the first of `count` names. */
static void bind_kv_scale(binder *b, const char *where, const char *const *names, int count, const float **scale) {
    const tensor_slice one = slice_all(1, 1);
    const uint64_t shape[1] = {1};
    for (int i = 0; i < count && !b->code; i++) {
        snprintf(b->name, sizeof b->name, "%s%s", where, names[i]);
        tensor *t = bind_tensor(b, b->name);
        if (!t) continue;
        if ((t->dims && !same_shape(t, shape, 1)) || t->type > TYPE_BF16) {
            b->code = bind_misfit(b, t, shape, 1, &vector_part);
            return;
        }
        t->used = 1;
        bind_floats(b, t, &one, &vector_source, KV_SCALE, scale);
        return;
    }
}

/* A tensor of n whole numbers that are known without it, and that it must have if it is there. */
static void bind_known_numbers(binder *b, const char *where, const char *what, const int64_t *known, int n) {
    static const char type[] = "I64";
    const uint64_t shape[1] = {(uint64_t)n};
    int64_t there[64];
    snprintf(b->name, sizeof b->name, "%s%s", where, what);
    tensor *t = b->code || b->publishes ? NULL : bind_tensor(b, b->name);
    if (!t) return;
    const shard *s = &b->files->shards[t->file];
    const int fits = same_shape(t, shape, 1) && !strcmp(container_types[t->type].name, type) && n <= 64;
    t->used = 1;
    if (fits && b->files->table.without_data) return;
    if (fits) b->code = read_at(s->fd, there, (size_t)n * sizeof *there, t->begin, s->path, b->err);
    if (!b->code && (!fits || memcmp(there, known, (size_t)n * sizeof *there)))
        b->code = fail(b->err, MOTE_EFORMAT, "%s: tensor %s: expected %d numbers in %s that follow from config.json, and these are others", s->path, b->name, n, type);
}

/* ---- What is left ---- */

/* Is this the name of a tensor of a quantised matrix, after the module's? */
static int is_scale(const char *suffix) {
    int is = 0;
    for (int e = 0; e < ENCODING_COUNT; e++)
        for (int k = 0; k < part_count(tensor_encodings[e]); k++) is |= !strcmp(tensor_encodings[e]->parts[k].suffix, suffix);
    return is && strcmp(suffix, ".weight");
}

/* A tensor of the files that nobody asked for and nobody knows. */
static int bind_unexpected(const binder *b, const tensor *t) {
    const char *name = table_name(&b->files->table, t), *end = strrchr(name, '.'), *path = b->files->shards[t->file].path;
    if (t->type < 0) return checkpoint_missing(b->files, t, b->err);
    if (end && is_scale(end))
        return fail(b->err, MOTE_EFORMAT, "%s: tensor %s belongs to another format than the tensors beside it", path, name);
    return fail(b->err, MOTE_EFORMAT, "%s: tensor %s is not part of the model that config.json describes", path, name);
}
