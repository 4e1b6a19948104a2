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

enum { VECTOR = -1, KV_SCALE = -2 };       /* load_item.component */
enum { EMBEDDING = -1 };                   /* load_item.layer */

/* A vector is loaded like a component of a matrix. */
static const component vector_component = {
    .bits = 32, .rows = 1, .cols = 1, .find_wrong = f32_find_wrong, .number = "number", .allowed = "finite numbers"};

static size_t find_wrong_kv_scale(const void *numbers, size_t n, char value[32]) {
    const float *scale = (const float *)numbers;
    size_t i = 0;
    while (i < n && scale[i] > 0x1p-64f && scale[i] < 0x1p64f) i++;
    if (i < n) snprintf(value, 32, "%g", (double)scale[i]);
    return i;
}

static const component kv_scale_component = {
    .bits = 32, .rows = 1, .cols = 1,
     .find_wrong = find_wrong_kv_scale, .number = "scale", .allowed = "a positive number from 2^-64 to 2^64"};
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

/* n numbers, divided by the root of n. */
static int root_floats(conversion *c, void *to) {
    const size_t n = (size_t)c->rows * (size_t)c->cols;
    float *w = (float *)to;
    (void)vector_floats(c, to);
    for (size_t i = 0; i < n; i++) w[i] = (float)((double)w[i] / sqrt((double)n));
    return -1;
}

static const component_source root_source = {0, 1, root_floats};

/* Plain numbers, rounded to BF16. */
static int rounded_words(conversion *c, void *to) {
    const size_t n = (size_t)c->rows * (size_t)c->cols, size = c->type[0] == TYPE_F32 ? 4 : 2;
    const char *from = (const char *)c->part[0];
    uint16_t *word = (uint16_t *)to;
    float floats[TILE];
    for (size_t i = 0; i < n; i += TILE) {
        const int some = n - i < TILE ? (int)(n - i) : TILE;
        widen((dtype)c->type[0], from + i * size, floats, 1, some);
        for (int k = 0; k < some; k++) word[i + (size_t)k] = bf16_of_float(floats[k]);
    }
    return -1;
}

static const component_source rounded_source = {0, 1, rounded_words};

/* Rows of a stored matrix, in groups of so many: of every group rows [at[0], at[0] + rows[0]), one group after the other, then of every
   group those from at[1] on, and so on. One group: they are pieces of the whole matrix. */
enum { MOST_RUNS = 3 };

typedef struct row_runs {
    int groups, group_rows;                    /* 0 groups: all rows of the matrix, as they are stored */
    int at[MOST_RUNS], rows[MOST_RUNS];        /* up to the first without rows */
    int first;                                 /* groups before the first of these */
} row_runs;

static int runs_rows(const row_runs *r) {
    int n = 0;
    for (int i = 0; i < MOST_RUNS; i++) n += r->groups * r->rows[i];
    return n;
}

/* The row of the stored matrix that is row i of these. */
static int runs_from(const row_runs *r, int i) {
    int run = 0;
    if (!r->groups) return i;
    for (; i >= r->groups * r->rows[run]; run++) i -= r->groups * r->rows[run];
    return (r->first + i / r->rows[run]) * r->group_rows + r->at[run] + i % r->rows[run];
}

/* Do they follow each other in the stored matrix? Then they begin at row runs_from(0). */
static int runs_follow(const row_runs *r) {
    return !r->rows[1] && (r->groups <= 1 || r->rows[0] == r->group_rows);
}

enum divided { DIVIDED_ROWS, DIVIDED_COLS };

/* What of the tensors of a name a matrix is, or a vector, whose numbers are rows: see bind_slice. slice_all is one that is all of a
   stored matrix; the rest is set after it. */
typedef struct tensor_slice {
    int rows, cols;                            /* of the stored matrix, or of each one of a stack */
    int entry, entries;                        /* which one of a stack of so many; 0 entries: the tensors have no such dimension */
    int transposed;                            /* in F32, F16 or BF16 it is stored as [cols][rows]; in other encodings it never is */
    row_runs runs;                             /* which rows */
    int col, width;                            /* columns [col, col + width); 0 width: all */
    enum divided divided;                      /* of those rows, or of those columns, */
    int rank, ranks;                           /* the share of this one of so many ranks; 0 ranks: all */
} tensor_slice;

static tensor_slice slice_all(int rows, int cols) {
    tensor_slice s;
    memset(&s, 0, sizeof s);
    s.rows = rows;
    s.cols = cols;
    return s;
}

/* Rows [at, at + rows) of each of so many groups: a piece of the matrix in one, every second row in rows / 2 of them. */
static row_runs rows_of(const tensor_slice *s, int groups, int at, int rows) {
    row_runs r;
    memset(&r, 0, sizeof r);
    r.groups = groups;
    r.group_rows = s->rows / groups;
    r.at[0] = at;
    r.rows[0] = rows;
    return r;
}

static int slice_rows(const tensor_slice *s) {
    return s->runs.groups ? runs_rows(&s->runs) : s->rows;
}

static int slice_cols(const tensor_slice *s) {
    return s->width ? s->width : s->cols;
}

/* Are some of the stored numbers left out, or all put in another order? */
static int slice_picks(const tensor_slice *s) {
    return s->runs.groups || s->width || s->transposed;
}

typedef struct load_item {
    const tensor *from;                        /* what its numbers are in, or are converted from above all */
    const tensor *part[MAX_PARTS];             /* the tensors of the matrix that it is made from; NULL: not needed */
    const component_source *source;            /* how */
    matrix of;                                 /* the matrix that this is a component of: its format and sizes */
    matrix stored;                             /* the one that it is a slice of; in another format: quantised when it is loaded */
    int component;                             /* CODES...; VECTOR, KV_SCALE */
    int rows, cols;                            /* numbers */
    tensor_slice slice;                        /* which of the stored ones */
    uint64_t offset, size;                     /* bytes inside the tensor `from` */
    size_t at;                                 /* where in the arena, or in its layer's host memory */
    int in_host;                               /* it is a routed expert's, which lies there: expert_home */
    size_t place;                              /* where it would be in that of a model which is not in parts */
    int layer;                                 /* of the model; EMBEDDING; layers: what comes after them */
    int again;                                 /* another part has it, too, which answers for it in the fingerprint */
    enum module_kind module;
    const void **target;                       /* the pointer to set */
} load_item;

static const component *item_component(const load_item *item) {
    if (item->component < 0) return item->component == KV_SCALE ? &kv_scale_component : &vector_component;
    return &formats[item->of.format]->components[item->component];
}

/* Is it converted, or picked from what is read, and not read into its place? */
static int item_converts(const load_item *item) {
    return item->source->convert || slice_picks(&item->slice);
}

/* Is it made of a slice of weights of another format, BF16 that is quantised, or plain numbers that are rounded? */
static int item_quantises(const load_item *item) {
    return item->stored.format != item->of.format;
}

/* Bytes in the arena: those it holds, and with the zeros after them. */
static size_t item_held(const load_item *item) {
    return (size_t)item->rows * component_bytes(item_component(item), item->cols);
}

static size_t item_capacity(const load_item *item) {
    return item->component >= 0 ? matrix_component_capacity(&item->of, item->component)
                                : component_capacity(item_component(item), item->rows, item->cols);
}

/* Where it lies, once that is allocated. */
static char *item_memory(const mote_model *m, const load_item *item) {
    return (item->in_host ? m->homes[item->layer].host : m->arena) + item->at;
}

static size_t item_words(const load_item *item) {
    return component_words(item_component(item), item->rows, item->cols);
}
