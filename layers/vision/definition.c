/* layers/vision/definition.c: the vision tower, the definition: from the patches of an image to its features.

       x = patches pixels + bias + positions at the patch's place, between the four that are next to it
       of each block:  x += proj attention(norm1(x));  x += fc2 GELU(fc1 norm2(x))
       feature of four patches, a block of 2 x 2:  fc2 GELU_erf(fc1 [norm(x) of each, one after the other])

   norm(x) = (x - mean) / sqrt(variance + 1e-6) weight + bias. Every patch sees all of its image. Queries and keys are rotated by their place: frequency
   j of head_dim / 4 turns the pair (j, j + head_dim / 2) by row * frequency and the pair (j + head_dim / 4, j + 3 head_dim / 4) by column * frequency.
   GELU is approximated by a tanh in the blocks; where patches are joined it is not. */

/* Of an image's n patches. */
typedef struct defined_vision {
    double *x, *u, *o, *added;   /* [n][hidden] */
    double *qkv;                 /* [n][3][heads][head_dim] */
    double *weight;              /* [n] of a query */
    double *pixels, *h, *joined; /* of a patch [VISION_PIXELS], [size]; of four [4 hidden] */
} defined_vision;

static inline void vision_define_memory(const vision_shape *s, int n, defined_memory *m, defined_vision *t) {
    t->x = defined_array(m, n, s->hidden);
    t->u = defined_array(m, n, s->hidden);
    t->o = defined_array(m, n, s->hidden);
    t->added = defined_array(m, n, s->hidden);
    t->qkv = defined_array(m, n, 3 * s->hidden);
    t->weight = defined_array(m, 1, n);
    t->pixels = defined_array(m, 1, VISION_PIXELS);
    t->h = defined_array(m, VISION_JOINED, s->hidden > s->size ? s->hidden : s->size);
    t->joined = defined_array(m, VISION_JOINED, s->hidden);
}

/* y = norm(x); y may be x. */
static void vision_define_norm(double *y, const double *x, const vision_norm *w, int n) {
    double mean = 0, variance = 0;
    for (int i = 0; i < n; i++) mean += x[i] / n;
    for (int i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++) y[i] = (x[i] - mean) / sqrt(variance + VISION_EPS) * (double)w->weight[i] + (double)w->bias[i];
}

/* What the embeddings of positions say of a place; taps that would be after the last are the last, and weigh nothing. */
static double vision_define_position(const vision_weights *w, int row, int column, int rows, int columns, int i) {
    const int side = w->shape.side, hidden = w->shape.hidden;
    int r, c;
    double by_row, by_column, sum = 0;
    vision_between(row, rows, side, &r, &by_row);
    vision_between(column, columns, side, &c, &by_column);
    for (int k = 0; k < 4; k++) {
        const int tap_row = min_int(r + k / 2, side - 1), tap_column = min_int(c + k % 2, side - 1);
        const double weight = (k / 2 ? by_row : 1 - by_row) * (k % 2 ? by_column : 1 - by_column);
        sum += weight * (double)w->positions[((size_t)tap_row * (size_t)side + (size_t)tap_column) * (size_t)hidden + (size_t)i];
    }
    return sum;
}

static void vision_define_patch(const vision_weights *w, const defined_vision *t, const float *pixels, int p, int rows, int columns) {
    double *x = t->x + (size_t)p * (size_t)w->shape.hidden;
    int row, column;
    vision_place(p, columns, &row, &column);
    for (int i = 0; i < VISION_PIXELS; i++) t->pixels[i] = (double)pixels[i];
    defined_linear(&w->patches, t->pixels, x);
    for (int i = 0; i < w->shape.hidden; i++) x[i] += vision_define_position(w, row, column, rows, columns, i);
}

/* A head's query or key, in place. */
static void vision_define_rotation(const vision_shape *s, double *x, int row, int column) {
    const int half = vision_head_dim(s) / 2, each = half / 2;
    for (int i = 0; i < half; i++) {
        const double angle = (i < each ? row : column) * pow((double)s->theta, -(double)(i % each) / each);
        const double a = x[i], b = x[half + i];
        x[i] = a * cos(angle) - b * sin(angle);
        x[half + i] = b * cos(angle) + a * sin(angle);
    }
}

/* o of patch p and head h, over all n patches. */
static void vision_define_head(const vision_shape *s, const defined_vision *t, int n, int p, int h) {
    const int d = vision_head_dim(s);
    const size_t stride = 3 * (size_t)s->hidden;
    const double *q = t->qkv + (size_t)p * stride + h * d;
    double *o = t->o + (size_t)p * (size_t)s->hidden + h * d, top = -INFINITY, sum = 0;
    for (int k = 0; k < n; k++) {
        const double *key = t->qkv + (size_t)k * stride + s->hidden + h * d;
        t->weight[k] = 0;
        for (int i = 0; i < d; i++) t->weight[k] += q[i] * key[i];
        t->weight[k] /= sqrt((double)d);
        top = fmax(top, t->weight[k]);
    }
    memset(o, 0, (size_t)d * sizeof *o);
    for (int k = 0; k < n; k++) {
        const double *value = t->qkv + (size_t)k * stride + 2 * s->hidden + h * d;
        sum += t->weight[k] = exp(t->weight[k] - top);
        for (int i = 0; i < d; i++) o[i] += t->weight[k] * value[i];
    }
    for (int i = 0; i < d; i++) o[i] /= sum;
}

/* added = proj attention(norm1(x)) of all patches. */
static void vision_define_attention(const vision_weights *w, const vision_block *b, const defined_vision *t, int n, int columns) {
    const vision_shape *s = &w->shape;
    const int d = vision_head_dim(s);
    for (int p = 0; p < n; p++) {
        double *u = t->u + (size_t)p * (size_t)s->hidden, *qkv = t->qkv + (size_t)p * 3 * (size_t)s->hidden;
        int row, column;
        vision_place(p, columns, &row, &column);
        vision_define_norm(u, t->x + (size_t)p * (size_t)s->hidden, &b->norm1, s->hidden);
        defined_linear(&b->qkv, u, qkv);
        for (int h = 0; h < 2 * s->heads; h++) vision_define_rotation(s, qkv + h * d, row, column);
    }
    for (int p = 0; p < n; p++) {
        for (int h = 0; h < s->heads; h++) vision_define_head(s, t, n, p, h);
        defined_linear(&b->proj, t->o + (size_t)p * (size_t)s->hidden, t->added + (size_t)p * (size_t)s->hidden);
    }
}

/* added = fc2 GELU(fc1 norm2(x)) */
static void vision_define_mlp(const vision_weights *w, const vision_block *b, const defined_vision *t, int n) {
    const size_t hidden = (size_t)w->shape.hidden;
    for (int p = 0; p < n; p++) {
        double *u = t->u + (size_t)p * hidden;
        vision_define_norm(u, t->x + (size_t)p * hidden, &b->norm2, w->shape.hidden);
        defined_linear(&b->fc1, u, t->h);
        for (int i = 0; i < w->shape.size; i++) t->h[i] = defined_gelu(t->h[i]);
        defined_linear(&b->fc2, t->h, t->added + (size_t)p * hidden);
    }
}

static void vision_define_add(const defined_vision *t, size_t n) {
    for (size_t i = 0; i < n; i++) t->x[i] += t->added[i];
}

/* A feature, of patches 4 f .. 4 f + 3. */
static void vision_define_feature(const vision_weights *w, const defined_vision *t, int f, double *out) {
    const int hidden = w->shape.hidden;
    const double *x = t->x + (size_t)f * VISION_JOINED * (size_t)hidden;
    for (int k = 0; k < VISION_JOINED; k++) vision_define_norm(t->joined + k * hidden, x + k * hidden, &w->norm, hidden);
    defined_linear(&w->fc1, t->joined, t->h);
    for (int i = 0; i < VISION_JOINED * hidden; i++) t->h[i] *= (1 + erf(t->h[i] * sqrt(0.5))) / 2;
    defined_linear(&w->fc2, t->h, out);
}

/* features[rows * columns / 4][out] of an image of rows x columns patches, which vision_reads. Tells x of all patches: "patches", of each block what
   its halves add, "attention" and "mlp", at last "tower". */
static inline void vision_define(defining *d, const vision_weights *w, const float *patches, int rows, int columns, const defined_vision *t,
                                 double *features) {
    const vision_shape *s = &w->shape;
    const int n = rows * columns, all = n * s->hidden;
    for (int p = 0; p < n; p++) vision_define_patch(w, t, patches + (size_t)p * VISION_PIXELS, p, rows, columns);
    defined_tell(d, "patches", t->x, all);
    for (int i = 0; i < s->depth; i++) {
        d->layer_index = i;
        vision_define_attention(w, &w->blocks[i], t, n, columns);
        defined_tell(d, "attention", t->added, all);
        vision_define_add(t, (size_t)n * (size_t)s->hidden);
        vision_define_mlp(w, &w->blocks[i], t, n);
        defined_tell(d, "mlp", t->added, all);
        vision_define_add(t, (size_t)n * (size_t)s->hidden);
    }
    defined_tell(d, "tower", t->x, all);
    for (int f = 0; f < n / VISION_JOINED; f++) vision_define_feature(w, t, f, features + (size_t)f * (size_t)s->out);
}
