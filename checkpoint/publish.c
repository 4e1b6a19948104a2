/* checkpoint/publish.c: what a published checkpoint of a model would hold: for a model without files, a synthetic one or a folder with
   config.json alone. The family binds the model to a binder that publishes: each tensor that it asks for is entered into the table of
   files, named and shaped as it is asked for, in the encoding that a quantization recipe gives its module, and nothing else is done. Then
   the table is like one of files, and is bound as those are. Knows recipes; must not know what any tensor is called, but that an MTP
   layer's names say so. */

/* Enters b->name, unless it is there. */
static void publish_tensor(binder *b, int type, const uint64_t *shape, int dims) {
    tensor_table *table = &b->files->table;
    const size_t name = table->names.size;
    int found;
    uint64_t elements = 1;
    tensor *t = buf_add(&table->names, b->name, strlen(b->name) + 1) ? table_add(table, name, &found) : NULL;
    if (!t) b->code = fail_memory(b->err);
    if (!t || found) return;
    t->type = type;
    t->dims = dims;
    for (int i = 0; i < dims; i++) elements *= t->shape[i] = shape[i];
    t->size = elements * (uint64_t)container_types[type].bits / 8;
}

/* The type that a part is published in: scales that may be F32, F16 or BF16 are BF16. */
static int publish_type(const matrix_part *p) {
    return p->stored ? stored_type(p) : TYPE_BF16;
}

/* Groups are of 128 columns where that divides them, as they mostly are. */
static int publish_group(int cols) {
    for (int group = 128; group >= 32; group /= 2)
        if (cols % group == 0) return group;
    return cols;
}

/* The tensors of a matrix, of which s is a slice; keep_precision: it is one that quantising leaves as it is. */
static void publish_matrix(binder *b, const tensor_slice *s, int keep_precision, const matrix *stored) {
    if (!b->publishes || b->code) return;
    const enum encoding as = recipe_encoding(b->publishes, b->kind, keep_precision);
    const tensor_encoding *e = tensor_encodings[as];
    matrix w = *stored;
    w.format = e->format;
    w.block_rows = format_has_groups(e->format) ? 1 : b->m->c.fp8_rows;
    w.block_cols = format_has_groups(e->format) ? publish_group(w.cols) : b->m->c.fp8_cols;
    for (int k = 0; k < part_count(e) && !b->code; k++) {
        uint64_t shape[MAX_DIMS];
        const char *rest;
        if (e->parts[k].optional) continue;
        bind_part_name(b, e->parts[k].suffix);
        publish_tensor(b, publish_type(&e->parts[k]), shape, bind_shape(s, e, e->parts[k].shape, &w, shape, &rest));
    }
}

/* A tensor that is looked for by its own name. */
static void publish_vector(binder *b, const uint64_t *shape, int dims, const matrix_part *p) {
    if (b->publishes && !b->code) publish_tensor(b, publish_type(p), shape, dims);
}

/* Whether b->name, which a model may do without, is published: an MTP layer where config.json says that there is one, and experts as a
   stack in BF16. */
static int publish_has(const binder *b) {
    const char *end = strrchr(b->name, '.');
    if (!end || strcmp(end, ".weight")) return recipe_encoding(b->publishes, b->kind, 0) == ENCODING_BF16;
    return strncmp(b->name, "mtp.", 4) || b->m->c.mtp_layers > 0;
}
