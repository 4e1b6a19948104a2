/* checkpoint/bind.c: finds every tensor of the model. Knows names and shapes, and reads no weights.

   The model asks for each tensor it needs, by name and shape; binding finds it, checks it, gives it a place in the one
   block of memory that will hold all weights, and puts it on the list of what to load. When all are bound, a tensor that
   nobody asked for is an error: a checkpoint that holds more than the model is not the model. Matrices stay as stored, plane
   by plane (formats/formats.c); vectors (norms, gates, conv1d), small as they are, become float. */

static_assert((int)FORMAT_F32 == (int)TYPE_F32 && (int)FORMAT_F16 == (int)TYPE_F16 && (int)FORMAT_BF16 == (int)TYPE_BF16,
              "the formats of plain numbers are called like their types");

enum { VECTOR = -1 };

/* A vector is loaded like a plane of a matrix. */
static const plane vector_plane = {"", NULL, 32, 1, 1, 0, widen, NULL, NULL, NULL};

typedef struct load_item {
    const tensor *from;                        /* NULL: made up */
    enum format format;                        /* of the matrix that this is a plane of; a vector's: F32 */
    int plane;                                 /* CODES...; VECTOR */
    int rows, cols;                            /* numbers */
    int type;                                  /* as stored */
    uint64_t offset, size;                     /* bytes inside the tensor */
    size_t at;                                 /* where in the arena */
    int is_mtp;
    const void **target;                       /* the pointer to set */
    made_floats made;                          /* what a made-up vector holds */
} load_item;

static const plane *item_plane(const load_item *item) {
    return item->plane == VECTOR ? &vector_plane : &formats[item->format]->planes[item->plane];
}

/* Bytes in the arena: those it holds, and with the zeros behind them. */
static size_t item_held(const load_item *item) {
    return (size_t)item->rows * plane_bytes(item_plane(item), item->cols);
}

static size_t item_room(const load_item *item) {
    return plane_room(item_plane(item), item->rows, item->cols);
}

static size_t item_words(const load_item *item) {
    return plane_words(item_plane(item), item->rows, item->cols);
}

typedef struct binder {
    checkpoint *files;
    mote_model *m;
    const weight_format *made;                 /* all is made up, in this format; NULL: it is in files */
    tensor made_up[2];                         /* the last two tensors asked for */
    int made_next;
    buf items;                                 /* struct load_item */
    size_t arena;                              /* bytes given out */
    enum module_kind kind;                     /* of what is being bound */
    uint64_t used, of;                         /* the share of it that one token reads */
    unsigned formats[MODULE_KINDS];            /* bit set of formats seen; a vector has that of its numbers */
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

/* "F32, F16 or BF16" of n names, ", " and " or ". */
static const char *names_text(char *out, size_t size, const char *const *names, int n, const char *comma, const char *last) {
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i == 0 ? "" : i == n - 1 ? last : comma, names[i]);
    return out;
}

/* Forms of other quantisations: a tensor that is there where another is missed; known: say what is supported. */
static const struct { const char *missed, *there; int known; const char *what; } foreign[] = {
    {".weight_scale_inv", ".weight_scale", 0,
     "FP8 with one scale a tensor or a row is not supported (blocks with weight_scale_inv are)"},
    {".weight", ".weight_packed", 1, "this quantisation is not supported"},
    {".weight", ".qweight", 0, "this quantisation is not supported"},
    {".weight", ".weight_scale", 1, "this quantisation is not supported"},
    {".weight", ".weight_scale_2", 1, "this quantisation is not supported"},
    {".weight", ".weight_zero_point", 1, "this quantisation is not supported"}};

/* A tensor that is not there; if the checkpoint holds it in a form of another quantisation, that is said instead. */
static int bind_missing(binder *b, const uint64_t *shape, int dims) {
    char text[96], other[320], known[256];
    const char *end = strrchr(b->name, '.'), *names[FORMAT_COUNT];
    for (int f = 0; f < FORMAT_COUNT; f++) names[f] = formats[f]->known;
    names_text(known, sizeof known, names, FORMAT_COUNT, ", ", " and ");
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign && end; i++) {
        if (strcmp(end, foreign[i].missed)) continue;
        snprintf(other, sizeof other, "%.*s%s", (int)(end - b->name), b->name, foreign[i].there);
        if (!table_find(&b->files->table, other)) continue;
        return fail(b->err, MOTE_EUNSUPPORTED, foreign[i].known ? "%s: %s: %s (%s are)" : "%s: %s: %s", b->files->dir, other,
                    foreign[i].what, known);
    }
    return fail(b->err, MOTE_EFORMAT, "%s: tensor %s is missing, expected with shape %s", b->files->dir, b->name,
                shape_text(text, sizeof text, shape, dims));
}

/* Whether the checkpoint holds a tensor. A made-up one is like those published: experts are stacked in BF16 only. */
static int bind_has(const binder *b, const char *name) {
    if (!b->made) return table_find(&b->files->table, name) != NULL;
    if (!strcmp(name, "mtp.fc.weight")) return b->m->c.mtp_layers > 0;
    return b->made == formats[FORMAT_BF16] || !strstr(name, "mlp.experts.gate_up_proj");
}

/* The type of a plane's tensor; -1: F32, F16 or BF16. */
static int stored_type(const plane *p) {
    int type = 0;
    if (!p->stored) return -1;
    while (strcmp(p->stored, container_types[type].name)) type++;
    return type;
}

/* The tensor b->name of a made-up checkpoint, a plane of a matrix or a vector. */
static tensor *bind_made(binder *b, const uint64_t *shape, int dims, const plane *p) {
    uint64_t elements = 1;
    tensor *t = &b->made_up[b->made_next];
    b->made_next ^= 1;
    memset(t, 0, sizeof *t);
    t->type = p->stored ? stored_type(p) : TYPE_BF16;
    t->dims = dims;
    for (int i = 0; i < dims; i++) elements *= t->shape[i] = shape[i];
    t->size = elements * (uint64_t)container_types[t->type].bits / 8;
    return t;
}

/* What made-up vectors hold: the norms' weights near 0, that of DeltaNet's gated norm near 1, decays from long to short. */
static made_floats made_floats_of(const char *name) {
    static const struct { const char *end; made_floats values; } known[] = {
        {"linear_attn.norm.weight", {896, 255, 0x1p-10f}},   {"linear_attn.A_log", {0, 255, 0x1.6p-7f}},
        {"linear_attn.dt_bias", {-255, 255, 0x1p-6f}},       {"linear_attn.conv1d.weight", {-128, 255, 0x1p-8f}},
        {"norm.weight", {-128, 255, 0x1p-10f}}};                                       /* the others */
    size_t last = sizeof known / sizeof *known - 1, n = strlen(name);
    for (size_t i = 0; i < last; i++)
        if (n >= strlen(known[i].end) && !strcmp(name + n - strlen(known[i].end), known[i].end)) return known[i].values;
    return known[last].values;
}

/* Is t stored as this plane is? */
static int stored_as(const tensor *t, const plane *p) {
    return p->stored ? t->type == stored_type(p) : t->type <= TYPE_BF16;
}

/* The types in which formats store a tensor of this plane's name: "F32, F16, BF16 or F8_E4M3". */
static const char *stored_text(char *out, size_t size, const plane *p) {
    const char *names[TYPE_COUNT];
    int n = 0;
    for (int type = 0; type < TYPE_COUNT; type++) {
        int fits = !p->stored && type <= TYPE_BF16;
        for (int f = 0; p->stored && f < FORMAT_COUNT; f++)
            fits |= !strcmp(formats[f]->planes[CODES].tensor, p->tensor) && stored_type(&formats[f]->planes[CODES]) == type;
        if (fits) names[n++] = container_types[type].name;
    }
    return names_text(out, size, names, n, ", ", " or ");
}

static int same_shape(const tensor *t, const uint64_t *shape, int dims) {
    int same = t->dims == dims;
    for (int i = 0; same && i < dims; i++) same = t->shape[i] == shape[i];
    return same;
}

/* The tensor b->name, checked for shape and type; NULL (and b->code) when something is wrong. */
static tensor *bind_find(binder *b, const uint64_t *shape, int dims, const plane *p) {
    char found[96], expected[96], types[96];
    if (b->code) return NULL;
    if (b->made) return bind_made(b, shape, dims, p);
    tensor *t = table_find(&b->files->table, b->name);
    if (!t) {
        b->code = bind_missing(b, shape, dims);
        return NULL;
    }
    const char *path = b->files->shards[t->file].path;
    int same = same_shape(t, shape, dims);
    if (same && stored_as(t, p)) {
        t->used = 1;
        return t;
    }
    shape_text(found, sizeof found, t->shape, t->dims);
    shape_text(expected, sizeof expected, shape, dims);
    stored_text(types, sizeof types, p);
    if (same && container_types[t->type].bits <= 8)
        b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: expected %s, found %s", path, b->name, types,
                       container_types[t->type].name);
    else
        b->code = fail(b->err, MOTE_EFORMAT, "%s: tensor %s: expected shape %s in %s, found %s in %s", path, b->name,
                       expected, types, found, container_types[t->type].name);
    return NULL;
}

/* Puts a plane of rows x cols numbers, stored from byte `offset` of a tensor on, on the list, to lie at the next 64-byte
   boundary of the arena. */
static void bind_load(binder *b, const tensor *t, uint64_t offset, enum format format, int plane, int rows, int cols,
                      const void **target) {
    load_item *item = (load_item *)buf_add(&b->items, NULL, sizeof *item);
    uint64_t numbers = (uint64_t)rows * (uint64_t)cols;
    int is_weight = plane == CODES || plane == VECTOR;
    if (!item) {
        b->code = fail_memory(b->err);
        return;
    }
    item->from = b->made ? NULL : t;
    item->format = format;
    item->plane = plane;
    item->rows = rows;
    item->cols = cols;
    item->type = t->type;
    item->offset = offset;
    item->size = item_plane(item)->convert ? t->size : item_held(item);
    item->at = b->arena;
    item->is_mtp = b->kind == IN_MTP;
    item->target = target;
    item->made = made_floats_of(b->made ? b->name : "");
    b->arena += item_room(item);
    mote_module *m = &b->m->modules[b->kind];
    uint64_t held = item_held(item);
    m->parameters += is_weight ? numbers : 0;
    m->bytes += held;
    m->bytes_per_token += held * b->used / b->of;
    if (is_weight && b->kind != IN_MTP) b->m->info.active_parameters += numbers * b->used / b->of;
    if (plane == CODES) b->formats[b->kind] |= 1u << format;
    else if (t->type <= TYPE_BF16) b->formats[b->kind] |= 1u << t->type;
}

/* In a made-up checkpoint experts and large projections have the asked-for format, as in those published. */
static enum format made_format(const binder *b) {
    static const char *const plain[] = {"embed_tokens", "lm_head",   "mlp.gate", "shared_expert_gate",
                                        "in_proj_a",    "in_proj_b", "mtp.fc"};
    size_t n = strlen(b->name);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (n >= strlen(plain[i]) && !strcmp(b->name + n - strlen(plain[i]), plain[i])) return FORMAT_BF16;
    int f = 0;
    while (formats[f] != b->made) f++;
    return (enum format)f;
}

/* The shape of a plane's tensor, whose elements may hold several numbers. */
static void plane_shape(const plane *p, const matrix *w, uint64_t shape[2]) {
    int type = stored_type(p);
    uint64_t bits = type < 0 ? (uint64_t)p->bits : (uint64_t)container_types[type].bits;
    shape[0] = (uint64_t)plane_rows(p, w);
    shape[1] = ((uint64_t)plane_cols(p, w) * (uint64_t)p->bits + bits - 1) / bits;
}

/* b->name = the tensor of a plane; its first `module` bytes name the matrix. */
static void bind_plane_name(binder *b, size_t module, const plane *p) {
    snprintf(b->name + module, sizeof b->name - module, "%s", p->tensor);
}

/* The format of a matrix, by the tensors that are there: the first that has all of its own. Without one the first whose
   codes are there, and binding says what of it is missing; or F32, and binding says what is there instead. */
static enum format bind_format(binder *b, size_t module, const matrix *w) {
    int found = -1;
    if (b->made) return made_format(b);
    for (int f = 0; f < FORMAT_COUNT; f++) {
        int there = 0, codes = 0;
        for (int i = 0; i < formats[f]->plane_count; i++) {
            const plane *p = &formats[f]->planes[i];
            uint64_t shape[2];
            bind_plane_name(b, module, p);
            const tensor *t = table_find(&b->files->table, b->name);
            plane_shape(p, w, shape);
            codes |= i == CODES && t && stored_as(t, p);
            there += t && stored_as(t, p) && same_shape(t, shape, 2);
        }
        if (there == formats[f]->plane_count) return (enum format)f;
        if (codes && found < 0) found = f;
    }
    return found < 0 ? FORMAT_F32 : (enum format)found;
}

/* W[rows][cols] of the tensor b->name, "x.weight", or of those that stand for it. */
static void bind_matrix_named(binder *b, matrix *w, int rows, int cols) {
    size_t module = strlen(b->name) - strlen(".weight");
    if (b->code) return;
    w->rows = rows;
    w->cols = cols;
    w->block_rows = b->m->c.fp8_rows;
    w->block_cols = b->m->c.fp8_cols;
    b->name[module] = 0;
    w->format = bind_format(b, module, w);
    for (int i = 0; i < formats[w->format]->plane_count; i++) {
        const plane *p = &formats[w->format]->planes[i];
        uint64_t shape[2];
        plane_shape(p, w, shape);
        bind_plane_name(b, module, p);
        const tensor *t = bind_find(b, shape, 2, p);
        if (t) bind_load(b, t, 0, w->format, i, plane_rows(p, w), plane_cols(p, w), &w->plane[i]);
    }
}

/* A vector, as floats. */
static void bind_vector_named(binder *b, const float **v, const uint64_t *shape, int dims) {
    const tensor *t = bind_find(b, shape, dims, &vector_plane);
    int cols = 1;
    for (int i = 1; i < dims; i++) cols *= (int)shape[i];
    if (t) bind_load(b, t, 0, FORMAT_F32, VECTOR, (int)shape[0], cols, (const void **)v);
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
    const tensor *gate_up = bind_find(b, up, 3, &vector_plane);
    bind_name(b, where, "mlp.experts.down_proj");
    const tensor *down_proj = bind_find(b, down, 3, &vector_plane);
    for (int e = 0; e < c->experts && !b->code; e++) {
        matrix *all[3] = {&w->gate_proj[e], &w->up_proj[e], &w->down_proj[e]};
        for (int i = 0; i < 3; i++) {
            const tensor *t = i < 2 ? gate_up : down_proj;
            uint64_t size = t->size / (uint64_t)(c->experts * (i < 2 ? 2 : 1));
            all[i]->format = (enum format)t->type;
            all[i]->rows = i < 2 ? c->expert_size : c->hidden;
            all[i]->cols = i < 2 ? c->hidden : c->expert_size;
            bind_load(b, t, size * (uint64_t)(i < 2 ? 2 * e + i : e), all[i]->format, CODES, all[i]->rows, all[i]->cols,
                      &all[i]->plane[CODES]);
        }
    }
}

/* Drafts need no more of lm_head than the tokens that occur: its first rows, because a BPE vocabulary is in the order of its
   merges, the most frequent pairs first. What lies behind, rare words and special tokens, is never drafted and costs a
   pass when it comes. On a GPU they are a copy in FP8, half the bytes of BF16, unless lm_head's weights are as small. A
   target's logits always come from all of lm_head as it is. */
static void bind_draft_head(binder *b) {
    mote_model *m = b->m;
    matrix *w = &m->draft_head;
    if (b->code) return;
    *w = m->lm_head;
    if (w->rows > m->draft_rows) w->rows = m->draft_rows;
    m->draft_at = b->arena;
    if (m->gpu < 0 || formats[w->format]->planes[CODES].bits <= 8) return;
    w->format = FORMAT_FP8_BLOCK;
    w->block_rows = w->block_cols = TILE;
    for (int i = 0; i < fp8_block_format.plane_count; i++) b->arena += matrix_plane_room(w, i);
    m->modules[IN_MTP].bytes += matrix_bytes(w);
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

/* Kernels find expert e's matrices *stride bytes times e behind those of expert 0: all planes of gate, up and down. So they
   lie when all experts are stored alike. 0: they do not. */
static int experts_stride(const moe_weights *w, int experts, size_t *stride) {
    const matrix *all[3] = {w->gate_proj, w->up_proj, w->down_proj};
    uintptr_t zero = (uintptr_t)w->gate_proj[0].plane[CODES];
    *stride = experts > 1 ? (size_t)((uintptr_t)w->gate_proj[1].plane[CODES] - zero) : 0;
    for (int i = 0; i < 3; i++)
        for (int e = 1; e < experts; e++) {
            const matrix *first = all[i], *x = all[i] + e;
            if (x->format != first->format) return 0;
            for (int p = 0; p < formats[x->format]->plane_count; p++)
                if ((uintptr_t)x->plane[p] != (uintptr_t)first->plane[p] + *stride * (size_t)e) return 0;
        }
    return 1;
}

/* What the kernels ask of a model. */
static int check_gpu(const binder *b) {
    const config *c = &b->m->c;
    const deltanet_shape *d = &c->shapes.deltanet;
    const attention_shape *a = &c->shapes.attention;
    const moe_shape *e = &c->shapes.moe;
    const unsigned *in = b->formats;
    unsigned multiplied = in[IN_DELTANET] | in[IN_ATTENTION] | in[IN_EXPERTS] | in[IN_SHARED] | in[IN_MTP];
    const char *wrong = NULL;
    if (b->m->gpu < 0) return MOTE_OK;
    if (c->hidden % 4 || e->expert_size % 4 || e->shared_size % 4 || a->heads * a->head_dim % 4 || d->key_dim % 4 ||
        d->value_dim % 4)
        wrong = "hidden, expert and head sizes that are no multiples of 4";
    if (e->experts > 1024 || e->top_k > 32) wrong = "more than 1024 experts, or 32 of them for a token,";
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (multiplied >> f & 1 && formats[f]->unfit && formats[f]->unfit(c->fp8_rows, c->fp8_cols))
            wrong = formats[f]->unfit(c->fp8_rows, c->fp8_cols);
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
