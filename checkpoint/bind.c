/* checkpoint/bind.c: finds every tensor of the model. Knows names and shapes, and reads no weights.

   The model asks for each tensor it needs, by name and shape; binding finds it, checks it, gives it a place in the one
   block of memory that will hold all weights, and puts it on the list of what to load. When all are bound, a tensor that
   nobody asked for is an error: a checkpoint that holds more than the model is not the model. Matrices stay as stored;
   vectors (norms, gates, conv1d) and the scales of FP8 blocks, small as they are, become float. */

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

/* families/families.c */
static void family_bind(const struct model_family *f, binder *b);

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
static void bind_matrix_named(binder *b, matrix *w, int rows, int cols) {
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
static void bind_vector_named(binder *b, const float **v, const uint64_t *shape, int dims) {
    const tensor *t = bind_find(b, shape, dims, 0);
    if (t) bind_load(b, t, 0, t->size, 1, 0, (const void **)v);
}

/* Sets the name of the next tensor: the prefix of the layer and what is in it. */
static void bind_name(binder *b, const char *where, const char *what) {
    snprintf(b->name, sizeof b->name, "%s%s", where, what);
}

static void bind_matrix(binder *b, const char *where, const char *what, matrix *w, int rows, int cols) {
    bind_name(b, where, what);
    bind_matrix_named(b, w, rows, cols);
}

static void bind_vector(binder *b, const char *where, const char *what, const float **v, int n) {
    uint64_t shape[1] = {(uint64_t)n};
    bind_name(b, where, what);
    bind_vector_named(b, v, shape, 1);
}

/* Experts in one tensor each for all of a layer: gate_up_proj [E][2 size][hidden], gate rows first, and down_proj. */
static void bind_experts_stacked(binder *b, const char *where, moe_weights *w) {
    const moe_shape *c = &b->m->c.shapes.moe;
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
    const deltanet_shape *d = &c->shapes.deltanet;
    const attention_shape *a = &c->shapes.attention;
    const moe_shape *e = &c->shapes.moe;
    const char *wrong = NULL;
    if (b->m->gpu < 0) return MOTE_OK;
    if (c->hidden % 4 || e->expert_size % 4 || e->shared_size % 4 || a->heads * a->head_dim % 4 || d->key_dim % 4 ||
        d->value_dim % 4)
        wrong = "hidden, expert and head sizes that are no multiples of 4";
    if (e->experts > 1024 || e->top_k > 32) wrong = "more than 1024 experts, or 32 of them for a token,";
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
        const layer *l = i < m->c.layers ? &m->layers[i] : &m->mtp;
        if (!experts_stride(&l->ffn.w.moe, m->c.shapes.moe.experts, &stride))
            return fail(b->err, MOTE_EUNSUPPORTED,
                        "%s: layer %d: experts of different dtypes are not supported on a GPU, use the CPU",
                        b->files->dir, i);
    }
    return MOTE_OK;
}

/* Everything the model's family has. On success all tensors have a place in the arena. */
static void bind_model(binder *b, const mote_callbacks *callbacks) {
    mote_model *m = b->m;
    m->layers = (layer *)calloc((size_t)m->c.layers, sizeof *m->layers);
    if (!m->layers) b->code = fail_memory(b->err);
    else family_bind(m->c.family, b);
    if (m->has_mtp) bind_draft_head(b);
    if (!b->code) bind_leftovers(b, callbacks);
    if (!b->code) b->code = check_gpu(b);
    if (!b->code) b->code = check_experts(b);
}
