/* checkpoint/items.c: the list of what to load, in items: a component of a matrix, or a vector, from where and to where. Binding
   makes the list (checkpoint/bind.c), loading works it off (checkpoint/load.c, load_cuda.cu). Knows formats; must not know
   names. */

/* A tensor's type in a container is its type in the mathematics, of those that it can compute with. */
static_assert((int)TYPE_F32 == (int)DTYPE_F32 && (int)TYPE_F16 == (int)DTYPE_F16 && (int)TYPE_BF16 == (int)DTYPE_BF16 &&
              (int)TYPE_FP8 == (int)DTYPE_FP8, "container_types begins with the types of dtype");
static_assert((int)FORMAT_F32 == (int)TYPE_F32 && (int)FORMAT_F16 == (int)TYPE_F16 && (int)FORMAT_BF16 == (int)TYPE_BF16,
              "the formats of plain numbers are called like their types");
static_assert((int)ENCODING_F32 == (int)TYPE_F32 && (int)ENCODING_F16 == (int)TYPE_F16 && (int)ENCODING_BF16 == (int)TYPE_BF16,
              "and so are their encodings");

enum { VECTOR = -1, KV_SCALE = -2 };

/* A vector is loaded like a component of a matrix. */
static const component vector_component = {32, 1, 1, 0, NULL, NULL, NULL};
static size_t find_wrong_kv_scale(const void *numbers, size_t n, char value[32]) {
    const float *scale = (const float *)numbers;
    size_t i = 0;
    while (i < n && scale[i] > 0x1p-64f && scale[i] < 0x1p64f) i++;
    if (i < n) snprintf(value, 32, "%g", (double)scale[i]);
    return i;
}

static const component kv_scale_component = {32, 1, 1, 0, find_wrong_kv_scale, "scale", "a positive number from 2^-64 to 2^64"};
static const matrix_part vector_part = {"", NULL, "", 0};

static int vector_floats(conversion *c, void *to) {
    widen((dtype)c->type[0], c->part[0], to, c->rows, c->cols);
    return -1;
}

static const component_source vector_source = {0, 1, vector_floats};

/* Weights of a norm that a checkpoint keeps around zero: what is multiplied with is 1 + w. */
static int norm_floats(conversion *c, void *to) {
    float *w = (float *)to;
    (void)vector_floats(c, to);
    for (size_t i = 0; i < (size_t)c->rows * (size_t)c->cols; i++) w[i] += 1.0f;
    return -1;
}

static const component_source norm_source = {0, 1, norm_floats};

/* The rows of a matrix that is part of a fused one, which is stored in groups of rows, one for each key head: of every group rows
   [at[0], at[0] + rows[0]), one group after the other, then of every group those from at[1] on, and so on. */
enum { MOST_RUNS = 3 };

typedef struct row_runs {
    int groups, group_rows;                    /* of the fused matrix; 0 groups: the matrix is none's part */
    int at[MOST_RUNS], rows[MOST_RUNS];        /* up to the first without rows */
    int block_rows;                            /* of the fused matrix; see matrix */
} row_runs;

/* Rows of the part. */
static int runs_rows(const row_runs *r) {
    int n = 0;
    for (int i = 0; i < MOST_RUNS; i++) n += r->groups * r->rows[i];
    return n;
}

/* The row of the fused matrix that is the part's row i. */
static int runs_from(const row_runs *r, int i) {
    int run = 0;
    for (; i >= r->groups * r->rows[run]; run++) i -= r->groups * r->rows[run];
    return i / r->rows[run] * r->group_rows + r->at[run] + i % r->rows[run];
}

typedef struct load_item {
    const tensor *from;                        /* NULL: there are no files */
    const tensor *part[MAX_PARTS];             /* what it is converted from, the tensors of the matrix; NULL: not needed */
    const component_source *source;                /* how */
    matrix of;                                 /* the matrix that this is a component of: its format and sizes */
    int component;                                 /* CODES...; VECTOR, KV_SCALE */
    int rows, cols;                            /* numbers */
    row_runs runs;                             /* which rows of what is stored it has */
    uint64_t offset, size;                     /* bytes inside the tensor `from` */
    size_t at;                                 /* where in the arena */
    enum module_kind module;
    const void **target;                       /* the pointer to set */
    synthetic_floats values;                   /* of a synthetic vector: set before it is filled */
} load_item;

static const component *item_component(const load_item *item) {
    if (item->component < 0) return item->component == KV_SCALE ? &kv_scale_component : &vector_component;
    return &formats[item->of.format]->components[item->component];
}

/* Is it read as it is stored, or converted, or its rows picked? */
static int item_converts(const load_item *item) {
    return item->source->convert || item->runs.groups;
}

/* The matrix that it is a component of or, where that is part of a fused one, the fused one. */
static matrix item_stored(const load_item *item) {
    matrix w = item->of;
    if (!item->runs.groups) return w;
    w.rows = item->runs.groups * item->runs.group_rows;
    w.block_rows = item->runs.block_rows;
    return w;
}

/* Bytes in the arena: those it holds, and with the zeros after them. */
static size_t item_held(const load_item *item) {
    return (size_t)item->rows * component_bytes(item_component(item), item->cols);
}

static size_t item_capacity(const load_item *item) {
    return item->component >= 0 ? matrix_component_capacity(&item->of, item->component)
                                : component_capacity(item_component(item), item->rows, item->cols);
}

static size_t item_words(const load_item *item) {
    return component_words(item_component(item), item->rows, item->cols);
}
