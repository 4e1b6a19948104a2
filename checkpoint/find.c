/* checkpoint/find.c: finds a tensor by its name, checks shape and type, and says what is wrong: what is missing, what was
   expected and what is there. Reads no weights, and must not know what any tensor is called: families do. The binder, here, is what
   all of binding shares. */

typedef struct binder {
    checkpoint *files;
    mote_model *m;
    checkpoint *tables;                        /* tables that stay in files lie in these; NULL: in `files` */
    quantization_check *check;                 /* NULL: config.json says nothing of these files */
    const quantization_recipe *publishes;      /* what is asked for is entered into files' table, stored like this: checkpoint/publish.c */
    buf items;                                 /* struct load_item */
    size_t arena;                              /* bytes given out */
    enum module_kind kind;                     /* of what is being bound */
    size_t whole;                              /* what arena would be if the model were not in parts */
    int layer;                                 /* of what is being bound: see load_item */
    int again;                                 /* likewise */
    int elsewhere;                             /* that is another part's: it is looked for and checked, and not loaded */
    const char *together;                      /* the module that it is one of many of, the experts of a layer; NULL: of none */
    uint64_t used, of;                         /* the share of it that one token reads */
    uint64_t active[MODULE_KINDS];             /* parameters that one token uses */
    unsigned formats[MODULE_KINDS];            /* bit set of formats seen; a vector has that of its numbers */
    unsigned encodings[MODULE_KINDS];          /* bit set of encodings seen */
    int group[MODULE_KINDS];                   /* columns of INT4's groups; -1: of several widths */
    char prefix[64];                           /* of the text model's names: "model.language_model.", "model." */
    char head_prefix[64];                      /* of lm_head's: "" */
    char missing[256];                         /* the tensor that is not there: the error, or why the MTP layer is left out */
    char vision_prefix[16];                    /* of the vision tower's names: "model.visual.", "visual." */
    char no_vision[256];                       /* the tensor for lack of which there is no vision tower; "": none, or it was not looked for */
    const char *refused;                       /* why the device does not take what a model can do without; NULL: it does */
    int differs;                               /* it is there, and should be as the model's own */
    int mtp_from;                              /* layers from this number on are MTP layers; 0: these have names of their own, mtp. */
    char name[256];                            /* of the tensor that is looked for */
    size_t module;                             /* its first bytes, which all tensors of its matrix have */
    int bare;                                  /* those have no ".weight" after them: see bind_part_name */
    mote_error *err;
    int code;                                  /* the first failure; later calls do nothing */
} binder;

/* NULL: it is not there, though the index may list it. */
static tensor *bind_tensor(const binder *b, const char *name) {
    tensor *t = table_find(&b->files->table, name);
    return t && t->type >= 0 ? t : NULL;
}

/* "[4096, 2048]" */
static const char *shape_text(char *out, size_t size, const uint64_t *shape, int dims) {
    size_t n = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < dims && i < MAX_DIMS && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
    if (n < size) snprintf(out + n, size - n, dims > MAX_DIMS ? ", ...]" : "]");
    return out;
}

/* "F32, F16 or BF16" of n names, ", " and " or ". */
static const char *names_text(char *out, size_t size, const char *const *names, int n, const char *comma, const char *last) {
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i == 0 ? "" : i == n - 1 ? last : comma, names[i]);
    return out;
}

/* The first tensor beside b->name that belongs to an encoding; NULL: there is none. */
static const char *bind_beside(binder *b, char *name, size_t size) {
    const char *end = strrchr(b->name, '.');
    for (int i = 0; i < ENCODING_COUNT && end; i++)
        for (int k = 0; k < part_count(tensor_encodings[i]); k++) {
            snprintf(name, size, "%.*s%s", (int)(end - b->name), b->name, tensor_encodings[i]->parts[k].suffix);
            if (bind_tensor(b, name)) return name;
        }
    return NULL;
}

/* A tensor that is not there. shape: what it should have; dims < 0: nobody knows. */
static int bind_missing(binder *b, const uint64_t *shape, int dims) {
    char text[96], name[320], expected[128] = "";
    const tensor *listed = table_find(&b->files->table, b->name);
    snprintf(b->missing, sizeof b->missing, "%s", b->name);
    if (listed) return checkpoint_missing(b->files, listed, b->err);
    const char *beside = bind_beside(b, name, sizeof name);
    if (dims >= 0) snprintf(expected, sizeof expected, ", expected with shape %s", shape_text(text, sizeof text, shape, dims));
    return fail(b->err, MOTE_EFORMAT, "%s: tensor %s is missing%s%s%s", b->files->dir, b->name, expected,
                beside ? ", beside " : "", beside ? beside : "");
}

/* The type of a part's tensor; -1: F32, F16 or BF16. */
static int stored_type(const matrix_part *p) {
    int type = 0;
    if (!p->stored) return -1;
    while (strcmp(p->stored, container_types[type].name)) type++;
    return type;
}

/* Is t stored as this part is? */
static int stored_as(const tensor *t, const matrix_part *p) {
    return p->stored ? t->type == stored_type(p) : t->type <= TYPE_BF16;
}

/* The types in which encodings store a tensor that is called like this part: "F32, F16, BF16 or F8_E4M3". */
static const char *stored_text(char *out, size_t size, const matrix_part *p) {
    const char *names[TYPE_COUNT];
    int n = 0;
    for (int type = 0; type < TYPE_COUNT; type++) {
        int fits = !p->stored && type <= TYPE_BF16;
        for (int i = 0; *p->suffix && i < ENCODING_COUNT; i++)
            for (int k = 0; k < part_count(tensor_encodings[i]); k++) {
                const matrix_part *other = &tensor_encodings[i]->parts[k];
                if (strcmp(other->suffix, p->suffix)) continue;
                fits |= other->stored ? stored_type(other) == type : type <= TYPE_BF16;
            }
        if (fits) names[n++] = container_types[type].name;
    }
    return names_text(out, size, names, n, ", ", " or ");
}

static int same_shape(const tensor *t, const uint64_t *shape, int dims) {
    int same = t->dims == dims;
    for (int i = 0; same && i < dims; i++) same = t->shape[i] == shape[i];
    return same;
}

/* Says what is wrong with a tensor that has not this shape and a part's type. */
static int bind_misfit(binder *b, const tensor *t, const uint64_t *shape, int dims, const matrix_part *p) {
    char found[96], expected[96], types[96];
    const char *path = b->files->shards[t->file].path;
    shape_text(found, sizeof found, t->shape, t->dims);
    shape_text(expected, sizeof expected, shape, dims);
    stored_text(types, sizeof types, p);
    if (same_shape(t, shape, dims) && container_types[t->type].bits <= 8)
        return fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: expected %s, found %s", path, b->name, types,
                    container_types[t->type].name);
    return fail(b->err, MOTE_EFORMAT, "%s: tensor %s: expected shape %s in %s, found %s in %s%s", path, b->name, expected, types, found,
                container_types[t->type].name, same_shape(t, shape, dims) ? "" : "; shapes follow from config.json");
}

/* b->name becomes that of another tensor of the matrix: what the family called it, with this suffix in place of ".weight". Where the
   family's name does not end in ".weight", as a stack's, suffixes do not begin with it: "gate_up_proj", "gate_up_proj_scale_inv". */
static void bind_part_name(binder *b, const char *suffix) {
    const size_t n = sizeof ".weight" - 1, from = b->bare && !strncmp(suffix, ".weight", n) ? n : 0;
    snprintf(b->name + b->module, sizeof b->name - b->module, "%s", suffix + from);
}

/* The shape that a part's text says of a stored matrix in this encoding (NULL: of a vector), after the dimension of a stack; returns its
   dimensions. *rest: the next that is as good, or NULL. */
static int bind_shape(const tensor_slice *s, const tensor_encoding *e, const char *form, const matrix *stored, uint64_t shape[MAX_DIMS],
                      const char **rest) {
    matrix as = *stored;
    const int stack = s->entries > 0;
    static_assert((int)PART_DIMS + 1 <= (int)MAX_DIMS, "a stack of matrices has a shape");
    shape[0] = (uint64_t)s->entries;
    if (s->transposed && e && e->format <= FORMAT_BF16) as.rows = stored->cols, as.cols = stored->rows;
    return stack + part_shape(form, &as, shape + stack, rest);
}
