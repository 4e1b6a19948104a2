/* layers/vision/prefill_launch.cu: the vision tower on a GPU: its memory, and what is launched for an image. The definition is definition.c. Knows no
   session.

   Products take VISION_GPU_ROWS patches at a time, whose floats on the way, some 17 kB each, are what memory is needed for; of all patches of an image there are x, queries,
   keys, values and attention's output. */

enum { VISION_GPU_ROWS = 4096 };               /* patches, a multiple of VISION_JOINED: enough to fill a GPU */

typedef struct vision_gpu {
    float *x;                    /* [n][hidden] */
    uint16_t *q, *k, *v;         /* F16 [heads][n][vision_attend_dim]; before the first block q has the image's pixels */
    uint16_t *o;                 /* F16 [n][hidden in whole GEMM_COLS] */
    float *o_scale;              /* [n] */
    uint16_t *u;                 /* F16 [rows][vision_gpu_input] what products are given, */
    float *u_scale;              /* [rows] */
    float *y;                    /* [rows][vision_gpu_widest] and what they give, or what the host gives */
} vision_gpu;

/* Columns of a row for a product. */
static int vision_whole(int cols) {
    return (cols + GEMM_COLS - 1) / GEMM_COLS * GEMM_COLS;
}

static int vision_gpu_input(const vision_shape *s) {
    return max_int(vision_whole(VISION_PIXELS), max_int(vision_whole(s->hidden), vision_whole(s->size)));
}

/* Of a patch; a feature is a fourth of it. */
static int vision_gpu_widest(const vision_shape *s) {
    return max_int(max_int(VISION_PIXELS, vision_widest(s)), (s->out + VISION_JOINED - 1) / VISION_JOINED);
}

/* Lays out the memory for an image of n patches; memory NULL: only counts. Returns bytes. */
static size_t vision_gpu_layout(const vision_shape *s, int n, char *memory, vision_gpu *to) {
    const size_t patches = (size_t)n, rows = (size_t)min_int(n, VISION_GPU_ROWS);
    const size_t heads = patches * (size_t)(s->heads * vision_attend_dim(vision_head_dim(s))) * sizeof(uint16_t);
    const size_t pixels = patches * VISION_PIXELS / VISION_FRAMES;
    size_t used = 0;
    to->x = (float *)prefill_take(memory, &used, patches * (size_t)s->hidden * sizeof(float));
    to->q = (uint16_t *)prefill_take(memory, &used, max_size(heads, pixels));
    to->k = (uint16_t *)prefill_take(memory, &used, heads);
    to->v = (uint16_t *)prefill_take(memory, &used, heads);
    to->o = (uint16_t *)prefill_take(memory, &used, patches * (size_t)vision_whole(s->hidden) * sizeof(uint16_t));
    to->o_scale = (float *)prefill_take(memory, &used, patches * sizeof(float));
    to->u = (uint16_t *)prefill_take(memory, &used, rows * (size_t)vision_gpu_input(s) * sizeof(uint16_t));
    to->u_scale = (float *)prefill_take(memory, &used, rows * sizeof(float));
    to->y = (float *)prefill_take(memory, &used, rows * (size_t)vision_gpu_widest(s) * sizeof(float));
    return used;
}

/* Whether a product takes a matrix: one whose rows are whole GEMM_COLS (matrix.whole_cols). */
static int vision_multiplies(const matrix *w) {
    matrix whole = *w;
    whole.cols = vision_whole(w->cols);
    return prefill_multiplies(&whole);
}

/* Why there are no kernels for a tower; NULL: there are. */
static const char *vision_gpu_refused(const vision_weights *w) {
    const vision_shape *s = &w->shape;
    int takes = vision_multiplies(&w->patches) && vision_multiplies(&w->fc1) && vision_multiplies(&w->fc2);
    for (int i = 0; i < s->depth; i++) {
        const vision_block *b = &w->blocks[i];
        takes = takes && vision_multiplies(&b->qkv) && vision_multiplies(&b->proj) && vision_multiplies(&b->fc1) && vision_multiplies(&b->fc2);
    }
    if (!takes) return "matrices of its dtype";
    if (vision_head_dim(s) > VISION_GPU_HEAD_MAX) return "heads of more than 80 dimensions";
    if (s->size % 2) return "an odd intermediate_size";
    return (size_t)max_int(VISION_JOINED * s->hidden, s->size) * sizeof(float) > GPU_SHARED - 1024 ? "rows of its widths" : NULL;
}

/* An image on its way. */
typedef struct vision_run {
    gpu_queue *q;
    const vision_weights *w;
    vision_gpu at;
    int rows, columns, n;        /* of patches; n = rows * columns */
    float factor;                /* of BF16 weights: bf16_factor of the tower's */
} vision_run;

/* u = the rows of x, of `cols` columns, after a step. */
static gemm_rows vision_prepare(const vision_run *r, const float *x, enum vision_step step, const vision_norm *norm, int rows, int cols, int normed) {
    vision_rows p = {.x = x, .norm = {}, .step = step, .cols = cols, .normed = normed, .to_cols = vision_whole(cols), .to = r->at.u, .act_scale = r->at.u_scale};
    const gemm_rows u = {r->at.u, r->at.u_scale, 1};
    const size_t shared = (size_t)cols * sizeof(float);
    if (norm) p.norm = *norm;
    gpu_allow_shared(r->q, (const void *)vision_rows_kernel, shared, "vision_rows");
    vision_rows_kernel<<<(unsigned)rows, GPU_THREADS, shared, r->q->stream>>>(p);
    return u;
}

/* y = W in, or y += W in, for so many rows. */
static void vision_product(const vision_run *r, const matrix *w, gemm_rows in, int rows, enum gemm_out out, float *y) {
    prefill_rows how;
    memset(&how, 0, sizeof how);
    how.stream = r->q->stream;
    how.sms = r->q->sms;
    how.factor = r->factor;
    gpu_gemm p = prefill_gemm(&how, in, rows);
    prefill_product(&p, w, out, y);
    p.cols = vision_whole(w->cols);
    prefill_launch(&how, &p);
}

static int vision_rows_from(const vision_run *r, int first) {
    return min_int(VISION_GPU_ROWS, r->n - first);
}

/* Numbers of T patches, to y. Of an image's pixels they are made here, where all of them are already; its patches are in host memory. */
static void vision_gpu_patches(const vision_run *r, const float *patches, int first, int T) {
    if (patches) {
        gpu_check(r->q, cudaMemcpyAsync(r->at.y, patches + (size_t)first * VISION_PIXELS, (size_t)T * VISION_PIXELS * sizeof(float),
                                        cudaMemcpyHostToDevice, r->q->stream), "copying an image");
        return;
    }
    const vision_pixels p = {.rgb = (const unsigned char *)r->at.q, .to = r->at.y, .first = first, .columns = r->columns};
    vision_pixels_kernel<<<(unsigned)T, GPU_THREADS, 0, r->q->stream>>>(p);
}

/* x of all patches before the first block. Of patches and rgb, both in host memory, one is NULL. */
static void vision_gpu_embed(const vision_run *r, const float *patches, const unsigned char *rgb) {
    const vision_shape *s = &r->w->shape;
    const vision_places places = {.positions = r->w->positions, .x = r->at.x, .o = r->at.o, .o_scale = r->at.o_scale, .rows = r->rows, .columns = r->columns,
                                  .side = s->side, .hidden = s->hidden, .o_cols = vision_whole(s->hidden)};
    const size_t pixels = (size_t)r->n * VISION_PIXELS / VISION_FRAMES;
    if (rgb) gpu_check(r->q, cudaMemcpyAsync(r->at.q, rgb, pixels, cudaMemcpyHostToDevice, r->q->stream), "copying an image");
    vision_places_kernel<<<(unsigned)r->n, GPU_THREADS, 0, r->q->stream>>>(places);
    for (int first = 0, T; first < r->n; first += T) {
        T = vision_rows_from(r, first);
        vision_gpu_patches(r, patches, first, T);
        const gemm_rows u = vision_prepare(r, r->at.y, VISION_PLAIN, NULL, T, VISION_PIXELS, VISION_PIXELS);
        vision_product(r, &r->w->patches, u, T, GEMM_ADD, r->at.x + (size_t)first * (size_t)s->hidden);
    }
    gpu_check(r->q, cudaGetLastError(), "an image's patches");
}

/* Queries, keys and values of rows whose products are in y. */
static void vision_gpu_heads(const vision_run *r, int first, int T) {
    const vision_shape *s = &r->w->shape;
    const int d = vision_head_dim(s);
    vision_heads p = {.qkv = r->at.y, .q = r->at.q, .k = r->at.k, .v = r->at.v, .first = first, .n = r->n, .columns = r->columns, .heads = s->heads, .d = d,
                      .dim = vision_attend_dim(d), .scale = 1.44269504f / sqrtf((float)d), .frequency = {}};
    for (int i = 0; i < d / 4; i++) p.frequency[i] = (float)pow((double)s->theta, -(double)i / (d / 4));
    vision_heads_kernel<<<(unsigned)T, GPU_THREADS, 0, r->q->stream>>>(p);
}

/* x += proj attention(norm1(x)) */
static void vision_gpu_attention(const vision_run *r, const vision_block *b) {
    const vision_shape *s = &r->w->shape;
    const int o_cols = vision_whole(s->hidden);
    const vision_attention_gpu p = {.q = r->at.q, .k = r->at.k, .v = r->at.v, .o = r->at.o, .n = r->n, .d = vision_head_dim(s), .o_cols = o_cols};
    for (int first = 0, T; first < r->n; first += T) {
        T = vision_rows_from(r, first);
        const gemm_rows u = vision_prepare(r, r->at.x + (size_t)first * (size_t)s->hidden, VISION_NORM, &b->norm1, T, s->hidden, s->hidden);
        vision_product(r, &b->qkv, u, T, GEMM_STORE, r->at.y);
        vision_gpu_heads(r, first, T);
    }
    gpu_check(r->q, vision_attend_run(&p, s->heads, r->q->stream), "attention of an image");
    for (int first = 0, T; first < r->n; first += T) {
        T = vision_rows_from(r, first);
        const gemm_rows o = {r->at.o + (size_t)first * (size_t)o_cols, r->at.o_scale + first, 1};
        vision_product(r, &b->proj, o, T, GEMM_ADD, r->at.x + (size_t)first * (size_t)s->hidden);
    }
}

/* x += fc2 GELU(fc1 norm2(x)) */
static void vision_gpu_mlp(const vision_run *r, const vision_block *b) {
    const vision_shape *s = &r->w->shape;
    for (int first = 0, T; first < r->n; first += T) {
        float *x = r->at.x + (size_t)first * (size_t)s->hidden;
        T = vision_rows_from(r, first);
        vision_product(r, &b->fc1, vision_prepare(r, x, VISION_NORM, &b->norm2, T, s->hidden, s->hidden), T, GEMM_STORE, r->at.y);
        vision_product(r, &b->fc2, vision_prepare(r, r->at.y, VISION_GELU, NULL, T, s->size, s->size), T, GEMM_ADD, x);
    }
}

static void vision_gpu_block(const vision_run *r, int i) {
    vision_gpu_attention(r, &r->w->blocks[i]);
    vision_gpu_mlp(r, &r->w->blocks[i]);
    gpu_check(r->q, cudaGetLastError(), "a block of the vision tower");
}

/* features[n / 4][out], in host memory. */
static void vision_gpu_join(const vision_run *r, float *features) {
    const vision_weights *w = r->w;
    const int hidden = w->shape.hidden, joined = VISION_JOINED * hidden, out = w->shape.out;
    for (int first = 0, T; first < r->n; first += T) {
        T = vision_rows_from(r, first);
        const int rows = T / VISION_JOINED;
        const float *x = r->at.x + (size_t)first * (size_t)hidden;
        vision_product(r, &w->fc1, vision_prepare(r, x, VISION_NORM, &w->norm, rows, joined, hidden), rows, GEMM_STORE, r->at.y);
        vision_product(r, &w->fc2, vision_prepare(r, r->at.y, VISION_GELU_ERF, NULL, rows, joined, joined), rows, GEMM_STORE, r->at.y);
        gpu_check(r->q, cudaMemcpyAsync(features + (size_t)(first / VISION_JOINED) * (size_t)out, r->at.y, (size_t)rows * (size_t)out * sizeof(float),
                                        cudaMemcpyDeviceToHost, r->q->stream), "reading features");
    }
    gpu_check(r->q, cudaGetLastError(), "the vision tower's last products");
}
