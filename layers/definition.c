/* layers/definition.c: what the definitions of layers are written with: norms, activations, y = W x; their memory, and who looks on.

   The definitions are the formulas of a model, once, whole and naive: double precision, one token after the other, loops over plain
   arrays, weights decoded one by one. They know nothing of blocks of rows, threads, KV types or rollback, and are the oracle for
   all that is fast: the CPU's code, the CUDA kernels, and every weight format, since all of them read the same matrices.

   A kind's file has what a layer remembers of a sequence's tokens and the vectors on a token's way through it (defined_name,
   name_define_memory), and the formulas (name_define): out = layer(u). What stands around them in a model, norms and x += out, is
   diagnose/definition.c. */

/* Who looks at what a definition computes on its way to a layer's output, one token at a time, by the names that diagnose/diagnose.h lists. */
typedef struct defining {
    void (*watch)(void *user, const char *name, const double *values, int n);      /* NULL: nobody */
    void *user;
    const char *kind;            /* where that is in a whole model: diagnose/definition.c says so */
    int layer_index, token;
    int stopped;                 /* who looks has seen enough: a whole model ends before its next layer */
} defining;

static void defined_tell(const defining *d, const char *name, const double *values, int n) {
    if (d->watch) d->watch(d->user, name, values, n);
}

/* What an FFN of which each branch has norms of its own is given, and gives, beside u and out: [hidden] each. */
typedef struct defined_branches {
    double *router, *shared;     /* what the router and the shared expert read */
    double *shared_out;          /* to which the latter is added */
} defined_branches;

/* Arrays in a block of memory, one after the other. Without a block they are only counted, so that there is as much as is given out. */
typedef struct defined_memory {
    double *block;
    size_t used;
} defined_memory;

/* Of rows * columns numbers. */
static double *defined_array(defined_memory *m, int rows, int columns) {
    double *array = m->block ? m->block + m->used : NULL;
    m->used += (size_t)rows * (size_t)columns;
    return array;
}

static double defined_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double defined_silu(double x) {
    return x * defined_sigmoid(x);
}

/* As models approximate it; the first factor is sqrt(2 / pi). */
static double defined_gelu(double x) {
    return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

static double defined_softplus(double x) {
    return x > 30 ? x : log1p(exp(x));
}

/* sqrt(mean(x^2) + eps) */
static double defined_rms(const double *x, int n, double eps) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum / n + eps);
}

/* y = x / rms(x) w; y may be x. */
static void defined_norm(double *y, const double *x, const float *w, int n, double eps) {
    const double rms = defined_rms(x, n, eps);
    for (int i = 0; i < n; i++) y[i] = x[i] / rms * (double)w[i];
}

/* to[n] = columns from, from + 1, ... of row r of W, in whatever format they are; n: at most TILE. */
static void defined_weights(const matrix *w, int r, int from, int n, double *to) {
    float row[TILE];
    matrix_floats(w, r, from, n, row);
    for (int i = 0; i < n; i++) to[i] = (double)row[i];
}

/* y[rows] = W x + bias */
static void defined_linear(const matrix *w, const double *x, double *y) {
    double row[TILE];
    for (int r = 0; r < w->rows; r++) {
        y[r] = 0;
        for (int i = 0; i < w->cols; i += TILE) {
            const int n = min_int(w->cols - i, TILE);
            defined_weights(w, r, i, n, row);
            for (int j = 0; j < n; j++) y[r] += row[j] * x[i + j];
        }
        if (w->bias) y[r] += (double)w->bias[r];
    }
}
