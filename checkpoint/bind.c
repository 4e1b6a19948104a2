/* checkpoint/bind.c: gives every tensor of the model its place. Knows shapes, and reads no weights; must not know what any tensor
   is called: families do.

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

/* Puts a component of rows x cols numbers, stored from byte `offset` of a tensor on or converted, on the list, to lie at the next
   64-byte boundary of the arena. A vector's `of` has the format of floats. */
static load_item *bind_load(binder *b, const tensor *t, const component_source *source, const matrix *of, int component, int rows,
                            int cols, const void **target) {
    load_item *item = (load_item *)buf_add(&b->items, NULL, sizeof *item);
    uint64_t numbers = (uint64_t)rows * (uint64_t)cols;
    int is_weight = component == CODES || component == VECTOR;
    if (!item) {
        b->code = fail_memory(b->err);
        return NULL;
    }
    memset(item, 0, sizeof *item);
    item->from = b->mix ? NULL : t;
    item->source = source;
    item->of = *of;
    item->component = component;
    item->rows = rows;
    item->cols = cols;
    item->size = b->mix ? 0 : t->size;
    item->at = b->arena;
    item->module = b->kind;
    item->target = target;
    b->arena += item_capacity(item);
    mote_module *m = &b->m->modules[b->kind];
    uint64_t held = item_held(item);
    m->parameters += is_weight ? numbers : 0;
    m->bytes += held;
    m->bytes_per_token += held * b->used / b->of;
    if (is_weight) b->active[b->kind] += numbers * b->used / b->of;
    return item;
}

/* Notes of what a module consists. */
static void bind_seen(binder *b, enum encoding e, const matrix *w) {
    const enum format f = tensor_encodings[e]->format;
    int *group = &b->group[b->kind];
    b->encodings[b->kind] |= 1u << e;
    b->formats[b->kind] |= 1u << f;
    if (format_has_groups(f)) *group = !*group || *group == w->block_cols ? w->block_cols : -1;
}

/* Has an encoded matrix these sizes of blocks: those that config.json says, or, of groups of columns, those that the scales
   tell. 0: it cannot have as many groups as they say. */
static int bind_blocks(const binder *b, const tensor_encoding *e, const tensor *const *part, matrix *w) {
    w->format = e->format;
    w->block_rows = e == tensor_encodings[ENCODING_FP8_TENSOR] ? ONE_BLOCK : b->m->c.fp8_rows;
    w->block_cols = e == tensor_encodings[ENCODING_FP8_TENSOR] ? ONE_BLOCK : b->m->c.fp8_cols;
    if (!format_has_groups(e->format)) return 1;
    w->block_rows = 1;
    w->block_cols = w->cols;
    for (int k = 0; k < part_count(e); k++) {
        const char *g = strchr(e->parts[k].shape, 'g');
        const int dim = g && g > e->parts[k].shape;
        if (!g || e->parts[k].optional || !part[k] || part[k]->dims != 2) continue;
        const uint64_t groups = part[k]->shape[dim];
        if (!groups || (uint64_t)w->cols % groups) return 0;
        w->block_cols = (int)((uint64_t)w->cols / groups);
        if (b->m->memory->packs && w->block_cols < 64) w->format = (enum format)formats[e->format]->fine;
        return groups == 1 || w->block_cols == 32 || w->block_cols == 64 || w->block_cols == 128;
    }
    return 1;
}

/* Has t one of the shapes of this part? */
static int part_fits(const tensor *t, const matrix_part *p, const matrix *w) {
    uint64_t shape[2];
    int fits = 0;
    for (const char *form = p->shape; form && !fits;) {
        int dims = part_shape(form, w, shape, &form);
        fits = same_shape(t, shape, dims);
    }
    return fits;
}

/* The tensors of a matrix that are there, by an encoding; b->name's first `module` bytes name it. How well it fits: 100 when
   all is as it should be, else more the more of it is there. */
static int bind_try(binder *b, size_t module, const tensor_encoding *e, matrix *w, const tensor **part) {
    int there = 0, wrong = 0, codes = 0;
    memset(part, 0, MAX_PARTS * sizeof *part);
    for (int k = 0; k < part_count(e); k++) {
        snprintf(b->name + module, sizeof b->name - module, "%s", e->parts[k].suffix);
        part[k] = bind_tensor(b, b->name);
        there += table_find(&b->files->table, b->name) != NULL;
    }
    wrong = !bind_blocks(b, e, part, w) || w->cols % e->cols || w->rows % e->rows;
    for (int k = 0; k < part_count(e); k++) {
        const int fits = part[k] ? stored_as(part[k], &e->parts[k]) && part_fits(part[k], &e->parts[k], w)
                                 : e->parts[k].optional;
        if (k == CODES) codes = fits ? 2 : part[k] && stored_as(part[k], &e->parts[k]);
        wrong |= !fits;
    }
    return !wrong ? 100 : !there ? 0 : there + 10 * codes;
}

/* The encoding of a matrix, by the tensors that are there: the first that has all of its own. Without one that which most
   of is there, and binding says what is wrong with it. */
static enum encoding bind_encoding(binder *b, size_t module, matrix *w, const tensor **part) {
    int best = 0, found = ENCODING_F32;
    for (int e = 0; e < ENCODING_COUNT && best < 100; e++) {
        if (e == ENCODING_QUANTISED) continue;
        const int fit = bind_try(b, module, tensor_encodings[e], w, part);
        if (fit > best) best = fit, found = e;
    }
    bind_try(b, module, tensor_encodings[found], w, part);
    return (enum encoding)found;
}

/* Checks all tensors of a matrix, and takes them. */
static void bind_parts(binder *b, size_t module, const tensor_encoding *e, matrix *w, const tensor *const *part) {
    const int blocks = bind_blocks(b, e, part, w);
    for (int k = 0; k < part_count(e) && !b->code; k++) {
        const matrix_part *p = &e->parts[k];
        uint64_t shape[2];
        const char *rest, *group = strchr(p->shape, 'g');
        const int dims = part_shape(p->shape, w, shape, &rest);
        snprintf(b->name + module, sizeof b->name - module, "%s", p->suffix);
        tensor *t = bind_tensor(b, b->name);
        if (!t && !p->optional) b->code = bind_missing(b, shape, group && format_has_groups(e->format) ? -1 : dims);
        if (!t) continue;
        if (!stored_as(t, p) || (!part_fits(t, p, w) && (blocks || !group))) b->code = bind_misfit(b, t, shape, dims, p);
        else if (w->cols % e->cols || w->rows % e->rows)
            b->code = fail(b->err, MOTE_EFORMAT, "%s: tensor %s: a matrix of %d x %d, and %s needs multiples of %d x %d",
                           b->files->shards[t->file].path, b->name, w->rows, w->cols, e->name, e->rows, e->cols);
        else if (!blocks && group)
            b->code = fail(b->err, MOTE_EUNSUPPORTED,
                           "%s: tensor %s: its shape does not fit %d columns in groups of 32, 64, 128 or all of them",
                           b->files->shards[t->file].path, b->name, w->cols);
        t->used = 1;
    }
}

/* What belongs to activations, which are not quantised, is not needed. */
static void bind_ignored(binder *b, size_t module) {
    static const char *const names[] = {".input_scale", ".input_global_scale"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(b->name + module, sizeof b->name - module, "%s", names[i]);
        tensor *t = bind_tensor(b, b->name);
        if (t) t->used = 1;
    }
}

/* Makes BF16 weights FP8 blocks of 128 x 128 if that is asked for. */
static enum encoding bind_quantised(const binder *b, enum encoding e, matrix *w) {
    if (e != ENCODING_BF16 || !b->m->quantize || b->mix) return e;
    w->format = FORMAT_FP8_BLOCK;
    w->block_rows = w->block_cols = TILE;
    return ENCODING_QUANTISED;
}

/* Puts the components of a matrix on the list. offset, size: where in the tensor of its codes it is; 0: it is all of it. */
static void bind_components(binder *b, enum encoding as, matrix *w, const tensor *const *part, uint64_t offset, uint64_t size) {
    const tensor_encoding *e = tensor_encodings[as];
    for (int i = 0; i < formats[w->format]->component_count && !b->code; i++) {
        const component *p = &formats[w->format]->components[i];
        const component_source *from = &e->components[i];
        load_item *item = bind_load(b, part[from->part], from, w, i, component_rows(p, w), component_cols(p, w), &w->component[i]);
        if (!item || b->mix) continue;
        if (size) item->offset = offset, item->size = size;
        if (b->runs) item->runs = *b->runs;
        for (int k = 0; k < MAX_PARTS; k++)
            if (from->needs >> k & 1 || (b->runs && !from->convert && k == from->part)) item->part[k] = part[k];
    }
    bind_seen(b, as, w);
}

/* A matrix without files. Groups are of 128 columns, as they mostly are. */
static void bind_synthetic_matrix(binder *b, matrix *w, int kept) {
    const tensor *none[MAX_PARTS];
    const enum encoding e = mix_encoding(b->mix, b->kind, kept);
    memset(none, 0, sizeof none);
    w->format = tensor_encodings[e]->format;
    w->block_rows = w->block_cols = e == ENCODING_FP8_TENSOR ? ONE_BLOCK : TILE;
    if (format_has_groups(w->format)) w->block_rows = 1;
    bind_components(b, e, w, none, 0, 0);
}

/* The tensors of W[rows][cols], which is called b->name, "x.weight", or of those that stand for it. kept: quantising leaves it as
   it is. */
static enum encoding bind_stored(binder *b, matrix *w, int kept, const tensor **part) {
    const size_t module = strlen(b->name) - strlen(".weight");
    const enum encoding e = bind_encoding(b, module, w, part);
    bind_parts(b, module, tensor_encodings[e], w, part);
    if (b->code) return e;
    bind_ignored(b, module);
    b->name[module] = 0;
    quantization_check_matrix(b->check, b->name, b->together, e > ENCODING_BF16, tensor_encodings[e]->name);
    snprintf(b->name + module, sizeof b->name - module, "%s", tensor_encodings[e]->parts[CODES].suffix);
    return kept ? e : bind_quantised(b, e, w);
}

/* W[rows][cols] of the tensor b->name. */
static void bind_matrix_named(binder *b, matrix *w, int rows, int cols, int kept) {
    const tensor *part[MAX_PARTS];
    if (b->code) return;
    w->rows = rows;
    w->cols = cols;
    if (b->mix) {
        bind_synthetic_matrix(b, w, kept);
        return;
    }
    const enum encoding e = bind_stored(b, w, kept, part);
    if (!b->code) bind_components(b, e, w, part, 0, 0);
}

/* Puts a vector on the list, as floats. */
static void bind_floats(binder *b, const tensor *t, const component_source *source, int component, const float **v, int rows,
                        int cols) {
    matrix none;
    memset(&none, 0, sizeof none);
    none.format = FORMAT_F32;
    load_item *item = bind_load(b, t, source, &none, component, rows, cols, (const void **)v);
    if (!item) return;
    item->part[0] = item->from;
    if (component != VECTOR) return;
    b->formats[b->kind] |= 1u << t->type;
    b->encodings[b->kind] |= 1u << t->type;
}

static void bind_vector_named(binder *b, const float **v, const uint64_t *shape, int dims) {
    const tensor *t = bind_find(b, shape, dims, &vector_part);
    int cols = 1;
    for (int i = 1; i < dims; i++) cols *= (int)shape[i];
    if (t) bind_floats(b, t, &vector_source, VECTOR, v, (int)shape[0], cols);
}

/* Sets the name of the next tensor: the prefix of the layer and what is in it. */
static void bind_name(binder *b, const char *where, const char *what) {
    snprintf(b->name, sizeof b->name, "%s%s", where, what);
}

static void bind_matrix(binder *b, const char *where, const char *what, matrix *w, int rows, int cols) {
    bind_name(b, where, what);
    bind_matrix_named(b, w, rows, cols, 0);
}

/* A matrix that stays as it is when the others are quantised, as in the official FP8 checkpoints. */
static void bind_kept(binder *b, const char *where, const char *what, matrix *w, int rows, int cols) {
    bind_name(b, where, what);
    bind_matrix_named(b, w, rows, cols, 1);
}

static void bind_vector(binder *b, const char *where, const char *what, const float **v, int n) {
    uint64_t shape[1] = {(uint64_t)n};
    bind_name(b, where, what);
    bind_vector_named(b, v, shape, 1);
}

/* The weights of a norm, which the checkpoint keeps around zero: v becomes 1 + what is stored. */
static void bind_zero_centered(binder *b, const char *where, const char *what, const float **v, int n) {
    uint64_t shape[1] = {(uint64_t)n};
    bind_name(b, where, what);
    const tensor *t = bind_find(b, shape, 1, &vector_part);
    if (t) bind_floats(b, t, &norm_source, VECTOR, v, n, 1);
}

/* A tensor that may be there, and is not needed. */
static void bind_unneeded(binder *b, const char *where, const char *what) {
    bind_name(b, where, what);
    tensor *t = b->mix ? NULL : bind_tensor(b, b->name);
    if (t) t->used = 1;
}

/* The scale of an FP8 KV cache, where the checkpoint has one: a single number, by the first of `count` names. */
static void bind_kv_scale(binder *b, const char *where, const char *const *names, int count, const float **scale) {
    const uint64_t one[1] = {1};
    for (int i = 0; i < count && !b->code && !b->mix; i++) {
        bind_name(b, where, names[i]);
        tensor *t = bind_tensor(b, b->name);
        if (!t) continue;
        if ((t->dims && !same_shape(t, one, 1)) || t->type > TYPE_BF16) {
            b->code = bind_misfit(b, t, one, 1, &vector_part);
            return;
        }
        t->used = 1;
        bind_floats(b, t, &vector_source, KV_SCALE, scale, 1, 1);
        return;
    }
}

static int common_divisor(int a, int b) {
    return b ? common_divisor(b, a % b) : a;
}

/* A part of a fused matrix: its rows, and the rows of its blocks. Where blocks of the fused one do not end with runs, the part has
   lower ones, so that each has one scale. */
static void bind_part(binder *b, const matrix *fused, matrix *w, row_runs *runs) {
    int lower = common_divisor(fused->block_rows, runs->group_rows);
    runs->block_rows = fused->block_rows;
    *w = *fused;
    w->rows = runs_rows(runs);
    for (int i = 0; i < MOST_RUNS; i++) lower = common_divisor(common_divisor(lower, runs->at[i]), runs->rows[i]);
    if (fused->block_rows < fused->rows) w->block_rows = lower;
    if (b->m->memory->packs && formats[w->format]->unfit && formats[w->format]->unfit(w->block_rows, w->block_cols))
        b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: FP8 blocks of which heads have less than 16 rows are not "
                       "supported on a GPU, use the CPU", b->files->dir, b->name);
}

/* Matrices that are stored as one, fused, in groups of rows: runs[i] says which of them w[i] has. */
static void bind_fused(binder *b, const char *where, const char *what, matrix *const *w, row_runs *runs, int count, int cols,
                       int kept) {
    const tensor *part[MAX_PARTS];
    matrix fused;
    enum encoding e = ENCODING_F32;
    memset(&fused, 0, sizeof fused);
    fused.rows = runs->groups * runs->group_rows;
    fused.cols = cols;
    bind_name(b, where, what);
    if (!b->mix && !b->code) e = bind_stored(b, &fused, kept, part);
    for (int i = 0; i < count && !b->code; i++) {
        if (b->mix) {
            bind_matrix_named(b, w[i], runs_rows(&runs[i]), cols, kept);
            continue;
        }
        bind_part(b, &fused, w[i], &runs[i]);
        b->runs = &runs[i];
        if (!b->code) bind_components(b, e, w[i], part, 0, 0);
        b->runs = NULL;
    }
}

/* Matrix number i of `count` of one size that lie in a tensor of plain numbers. */
static void bind_stacked(binder *b, const tensor *t, int i, int count, matrix *w, int rows, int cols) {
    const tensor *part[MAX_PARTS] = {t};
    const uint64_t size = t->size / (uint64_t)count;
    w->format = (enum format)t->type;
    w->rows = rows;
    w->cols = cols;
    bind_components(b, bind_quantised(b, (enum encoding)t->type, w), w, part, size * (uint64_t)i, size);
}

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
