/* layers/definition.c: what the definitions of layers are written with: norms, activations, y = W x.

   The definitions are the formulas of a model, once, whole and naive: double precision, one token after the other, loops over plain
   arrays, weights decoded one by one. They know nothing of blocks of rows, threads, KV types or rollback, and are the oracle for
   all that is fast: the CPU's code, the CUDA kernels, and every weight format, since all of them read the same matrices.
   A sequence's state is what a layer remembers of its tokens. */

static __thread struct {
    double *memory;              /* of formulas, and of the states of layers: model/definition.c says how much there is */
    size_t used, capacity;
    /* Who looks at what a definition computes on its way to a layer's output, one token at a time, by the names that
       diagnose/diagnose.h lists; NULL: nobody. */
    void (*watch)(void *user, const char *name, const double *values, int n);
    void *user;
    /* Where that is in a whole model: model/definition.c says so. */
    const char *kind;
    int layer_index, token;
    int stopped;                 /* who looks has seen enough: a whole model ends before its next layer */
} defining;

/* Arrays of zeros; they are given back in the opposite order. */
static double *defined_array(size_t n) {
    double *array = defining.memory + defining.used;
    assert(n <= defining.capacity - defining.used);
    defining.used += n;
    return (double *)memset(array, 0, n * sizeof *array);
}

/* Gives back an array, and all that were taken after it. */
static void defined_free(const void *array) {
    defining.used = (size_t)((const double *)array - defining.memory);
}

static void defined_tell(const char *name, const double *values, int n) {
    if (defining.watch) defining.watch(defining.user, name, values, n);
}

static double defined_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double defined_silu(double x) {
    return x * defined_sigmoid(x);
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
    double rms = defined_rms(x, n, eps);
    for (int i = 0; i < n; i++) y[i] = x[i] / rms * (double)w[i];
}

/* y[rows] = W x + bias */
static void defined_linear(const matrix *w, const double *x, double *y) {
    float *row = (float *)defined_array((size_t)w->cols);
    for (int r = 0; r < w->rows; r++) {
        double sum = 0;
        matrix_floats(w, r, 0, w->cols, row);
        for (int i = 0; i < w->cols; i++) sum += (double)row[i] * x[i];
        y[r] = w->bias ? sum + (double)w->bias[r] : sum;
    }
    defined_free(row);
}
