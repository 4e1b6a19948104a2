/* checkpoint/stored.c: which encoding a stored matrix has, by the tensors that are there; checks all of them, and takes them. Knows
   encodings (formats/formats.c) and shapes; must not know what of the matrix is wanted, and how it will lie: checkpoint/bind.c does. */

/* Has an encoded matrix these sizes of blocks: those that config.json says, or, of groups of columns, those that the scales
   tell. 0: it cannot have as many groups as they say. */
static int bind_blocks(const binder *b, const tensor_slice *s, const tensor_encoding *e, const tensor *const *part, matrix *w) {
    const int stack = s->entries > 0;
    w->format = e->format;
    w->block_rows = e == tensor_encodings[ENCODING_FP8_TENSOR] ? ONE_BLOCK : b->m->c.fp8_rows;
    w->block_cols = e == tensor_encodings[ENCODING_FP8_TENSOR] ? ONE_BLOCK : b->m->c.fp8_cols;
    if (!format_has_groups(e->format)) return 1;
    w->block_rows = 1;
    w->block_cols = w->cols;
    for (int k = 0; k < part_count(e); k++) {
        const int dim = part_groups(e->parts[k].shape);
        if (dim < 0 || e->parts[k].optional || !part[k] || part[k]->dims != stack + 2) continue;
        const uint64_t groups = part[k]->shape[stack + dim];
        if (!groups || (uint64_t)w->cols % groups) return 0;
        w->block_cols = (int)((uint64_t)w->cols / groups);
        if (b->m->memory->packs && w->block_cols <= 32) w->format = (enum format)formats[e->format]->small_group;
        return groups == 1 || w->block_cols == 32 || w->block_cols == 64 || w->block_cols == 128;
    }
    return 1;
}

/* Has t one of the shapes of this part? */
static int part_fits(const tensor *t, const matrix_part *p, const tensor_slice *s, const tensor_encoding *e, const matrix *stored) {
    uint64_t shape[MAX_DIMS];
    int fits = 0;
    for (const char *form = p->shape; form && !fits;) {
        int dims = bind_shape(s, e, form, stored, shape, &form);
        fits = same_shape(t, shape, dims);
    }
    return fits;
}

/* The tensors of a matrix that are there, by an encoding. How well it fits: 100 when all is as it should be, else more the more of
   it is there. */
static int bind_try(binder *b, const tensor_slice *s, const tensor_encoding *e, matrix *w, const tensor **part) {
    int there = 0, wrong = 0, codes = 0;
    memset(part, 0, MAX_PARTS * sizeof *part);
    for (int k = 0; k < part_count(e); k++) {
        bind_part_name(b, e->parts[k].suffix);
        const tensor *t = table_find(&b->files->table, b->name);
        part[k] = t && t->type >= 0 ? t : NULL;
        there += t != NULL;
    }
    wrong = !bind_blocks(b, s, e, part, w) || w->cols % e->cols || w->rows % e->rows;
    for (int k = 0; k < part_count(e); k++) {
        const int fits = part[k] ? stored_as(part[k], &e->parts[k]) && part_fits(part[k], &e->parts[k], s, e, w)
                                 : e->parts[k].optional;
        if (k == CODES) codes = fits ? 2 : part[k] && stored_as(part[k], &e->parts[k]);
        wrong |= !fits;
    }
    return !wrong ? 100 : !there ? 0 : there + 10 * codes;
}

/* The encoding of a matrix, by the tensors that are there: the first that has all of its own. Without one that which most
   of is there, its codes above all, and binding says what is wrong with it. First those are tried whose codes are there. */
static enum encoding bind_encoding(binder *b, const tensor_slice *s, matrix *w, const tensor **part) {
    int best = 0, found = ENCODING_F32;
    for (int all = 0; all < 2 && !best; all++) {
        const char *suffix = "";                               /* of the codes, which several encodings call alike */
        const tensor *codes = NULL;
        for (int e = 0; e < ENCODING_COUNT && best < 100; e++) {
            const matrix_part *p = &tensor_encodings[e]->parts[CODES];
            if (e == ENCODING_QUANTISED) continue;
            if (strcmp(p->suffix, suffix)) {
                bind_part_name(b, suffix = p->suffix);
                codes = bind_tensor(b, b->name);
            }
            if (!all && (!codes || !stored_as(codes, p))) continue;
            const int fit = bind_try(b, s, tensor_encodings[e], w, part);
            if (fit > best) best = fit, found = e;
        }
    }
    if (best < 100) bind_try(b, s, tensor_encodings[found], w, part);
    return (enum encoding)found;
}

/* Checks all tensors of a matrix, and takes them. */
static void bind_parts(binder *b, const tensor_slice *s, const tensor_encoding *e, matrix *w, const tensor *const *part) {
    const int blocks = bind_blocks(b, s, e, part, w);
    for (int k = 0; k < part_count(e) && !b->code; k++) {
        const matrix_part *p = &e->parts[k];
        uint64_t shape[MAX_DIMS];
        const char *rest;
        const int dims = bind_shape(s, e, p->shape, w, shape, &rest), group = part_groups(p->shape) >= 0;
        bind_part_name(b, p->suffix);
        tensor *t = bind_tensor(b, b->name);
        if (!t && !p->optional) b->code = bind_missing(b, shape, group && format_has_groups(e->format) ? -1 : dims);
        if (!t) continue;
        if (!stored_as(t, p) || (!part_fits(t, p, s, e, w) && (blocks || !group))) b->code = bind_misfit(b, t, shape, dims, p);
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
static void bind_ignored(binder *b) {
    static const char *const names[] = {".input_scale", ".input_global_scale"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bind_part_name(b, names[i]);
        tensor *t = bind_tensor(b, b->name);
        if (t) t->used = 1;
    }
}

/* b->name becomes the family's name of a matrix, from which bind_part_name makes those of its tensors. */
static void bind_matrix_name(binder *b, const char *where, const char *what) {
    snprintf(b->name, sizeof b->name, "%.160s%.90s", where, what);
    const size_t n = strlen(b->name), weight = sizeof ".weight" - 1;
    b->bare = n < weight || strcmp(b->name + n - weight, ".weight");
    b->module = b->bare ? n : n - weight;
}

/* The tensors of the stored matrix that b->name names, or of those that stand for it; counted with what config.json says of it when
   the first slice of it is bound. */
static enum encoding bind_stored(binder *b, const tensor_slice *s, matrix *stored, const tensor **part) {
    const enum encoding e = bind_encoding(b, s, stored, part);
    const int taken = part[CODES] && part[CODES]->used;
    bind_parts(b, s, tensor_encodings[e], stored, part);
    if (b->code) return e;
    bind_ignored(b);
    b->name[b->module] = 0;
    if (!taken) quantization_check_matrix(b->check, b->name, b->together, e > ENCODING_BF16, tensor_encodings[e]->name);
    bind_part_name(b, tensor_encodings[e]->parts[CODES].suffix);
    return e;
}
