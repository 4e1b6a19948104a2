// A part of test_kernels: multi-head latent attention, against its definition, which makes keys and values of latents and so shares no product
// with the stages but those of the first and the last matrices.

// A product with transposed rows: against sums of values, and the same bits for any number of token rows.
static void test_transposed(enum format type, int rows, int cols, int block_cols) {
    enum { T = 5 };
    random_matrix r = matrix_new(type, rows, cols_for(type, cols), 7, block_cols);
    const int first = rows / 3, count = rows - first, tiles = (r.w.cols - 1) / TILE + 1;
    float *x = random_floats((size_t)(T * count), 1), *y = floats((size_t)(T * r.w.cols)), *one = floats((size_t)r.w.cols);
    for (int tile = 0; tile < tiles; tile++) {
        const int col = tile * TILE, n = min_int(r.w.cols - col, TILE);
        const transposed_rows all = {.x = x, .y = y + col, .x_stride = (size_t)count, .y_stride = (size_t)r.w.cols, .T = T};
        matrix_transposed_dots(&r.w, first, count, col, n, &all);
    }
    for (int t = 0; t < T; t++) {
        double worst = 0, size = 1e-30;
        for (int i = 0; i < r.w.cols; i++) {
            double want = 0;
            for (int k = 0; k < count; k++) want += r.value[(first + k) * r.w.cols + i] * x[t * count + k];
            worst = fmax(worst, fabs(y[t * r.w.cols + i] - want));
            size = fmax(size, fabs(want));
        }
        CHECK(worst < 1e-5 * size, "format %d, %d x %d transposed: off by %g of %g", (int)type, rows, r.w.cols, worst, size);
        for (int tile = 0; tile < tiles; tile++) {
            const int col = tile * TILE, n = min_int(r.w.cols - col, TILE);
            const transposed_rows alone = {.x = x + t * count, .y = one + col, .x_stride = 0, .y_stride = 0, .T = 1};
            matrix_transposed_dots(&r.w, first, count, col, n, &alone);
        }
        CHECK(same_bits(one, y + t * r.w.cols, (size_t)r.w.cols), "format %d, %d x %d transposed: token row %d alone", (int)type, rows, r.w.cols, t);
    }
    float *all[] = {x, y, one};
    for (int i = 0; i < 3; i++) free(all[i]);
    matrix_delete(&r);
}

enum { MLA_MATRICES = 6 };

typedef struct mla_case {
    mla_weights w;
    random_matrix matrix[MLA_MATRICES];
    float *q_norm, *kv_norm, *frequencies;
    int length;
    float *u;                    // [length][hidden]
} mla_case;

// The root mean square of a matrix's products with numbers of this root mean square.
static double product_size(const random_matrix *r, double of) {
    double square = 0;
    for (int i = 0; i < r->w.rows * r->w.cols; i++) square += (double)r->value[i] * (double)r->value[i];
    return of * sqrt(square / r->w.rows);
}

// What makes scores of about one: those of random codes are of hundreds else, which any rounding turns over.
static float score_scale(const mla_case *c) {
    const mla_shape *s = &c->w.shape;
    const double uniform = sqrt(1.0 / 3), normed = 0.2 * uniform;           // of random_floats: of inputs, of normed latents
    const double query = product_size(&c->matrix[2], s->q_rank ? normed : uniform);
    const double key = product_size(&c->matrix[3], normed), turned = product_size(&c->matrix[0], uniform);
    return (float)(1 / (query * sqrt(s->nope_dim * key * key + s->rope_dim * turned * turned)));
}

static mla_case mla_new(const mla_shape *s, enum format type, int length) {
    mla_case c;
    memset(&c, 0, sizeof c);
    const int from_q = s->q_rank ? s->q_rank : s->hidden, values = s->heads * s->value_dim;
    matrix *const to[MLA_MATRICES] = {&c.w.kv_a_proj, &c.w.q_a_proj, &c.w.q_b_proj, &c.w.k_b_proj, &c.w.v_b_proj, &c.w.o_proj};
    const int sizes[MLA_MATRICES][2] = {{mla_row_size(s), s->hidden}, {max_int(s->q_rank, 1), s->hidden}, {s->heads * mla_key_dim(s), from_q},
                                        {s->heads * s->nope_dim, s->kv_rank}, {values, s->kv_rank}, {s->hidden, values}};
    c.w.shape = *s;
    c.length = length;
    for (int i = 0; i < MLA_MATRICES; i++) {
        c.matrix[i] = matrix_new(type, sizes[i][0], sizes[i][1], 16, 128);
        *to[i] = c.matrix[i].w;
    }
    if (type > FORMAT_BF16) c.w.shape.scale = score_scale(&c);
    c.w.q_norm = c.q_norm = random_floats((size_t)s->q_rank + 1, 0.2f);
    c.w.kv_norm = c.kv_norm = random_floats((size_t)s->kv_rank, 0.2f);
    c.w.frequencies = c.frequencies = floats((size_t)s->rope_dim);
    for (int i = 0; i < s->rope_dim / 2; i++) c.frequencies[i] = powf(1e4f, -2.0f * (float)i / (float)s->rope_dim);
    c.u = random_floats((size_t)(length * s->hidden), 1);
    return c;
}

static void mla_delete(mla_case *c) {
    for (int i = 0; i < MLA_MATRICES; i++) matrix_delete(&c->matrix[i]);
    free(c->q_norm), free(c->kv_norm), free(c->frequencies), free(c->u);
}

// out [length][hidden] of the definition.
static void mla_naive(const mla_case *c, double *out) {
    const defining nobody = {.watch = NULL};
    defined_memory memory = {NULL, 0};
    defined_mla t;
    const int hidden = c->w.shape.hidden;
    double *u = (double *)allocate((size_t)hidden * sizeof *u);
    mla_define_memory(&c->w.shape, c->length, &memory, &t);
    memory.block = (double *)allocate(memory.used * sizeof(double));
    memory.used = 0;
    mla_define_memory(&c->w.shape, c->length, &memory, &t);
    for (int32_t p = 0; p < c->length; p++) {
        for (int i = 0; i < hidden; i++) u[i] = (double)c->u[p * hidden + i];
        mla_define(&nobody, &c->w, &t, &p, u, out + (size_t)p * (size_t)hidden);
    }
    free(u), free(memory.block);
}

// In blocks of T rows; of them the first `early` blocks give their rows of the cache alone, as far as attention goes. out [length][hidden].
static void mla_run(const mla_case *c, pool *p, int T, dtype kv, int early, float *out) {
    const mla_shape *s = &c->w.shape;
    const capacity r = {.context = c->length, .rows = T, .threads = p->threads, .kv = kv, .layers = 1};
    token_row *table = (token_row *)allocate((size_t)T * sizeof *table);
    mla_job job;
    mla_state state;
    layout l = layout_from(NULL);
    memset(&job, 0, sizeof job);
    mla_layout_scratch(&l, s, &r, &job);
    mla_layout_state(&l, s, &r, &state);
    void *memory = allocate(l.used * sizeof(float) + CACHE_LINE);
    l = layout_from(layout_base(memory));
    mla_layout_scratch(&l, s, &r, &job);
    mla_layout_state(&l, s, &r, &state);
    memset(out, 0, (size_t)(c->length * s->hidden) * sizeof *out);
    for (int first = 0; first < c->length; first += T, early--) {
        const size_t at = (size_t)(first * s->hidden);
        const int rows = min_int(c->length - first, T);
        const token_sequence of = {.first = 0, .T = rows};
        const token_rows all = {.threads = p, .table = table, .T = rows, .of = &of, .count = 1, .state_only = early > 0, .hidden = s->hidden,
                                .u = c->u + at, .out = out + at};
        text_rows(table, NULL, rows, first, 0);
        mla_project(&all, &c->w, &job);
        mla_mix(&all, &of, &job, &state);
        if (!all.state_only) mla_output(&all, &job);
    }
    free(memory), free(table);
}

static void test_mla(const mla_shape *shape, enum format type, int length, pool **pools) {
    mla_case c = mla_new(shape, type, length);
    const size_t hidden = (size_t)shape->hidden, n = (size_t)length * hidden;
    const int late = length / 2;
    double *want = (double *)allocate(n * sizeof *want);
    float *out = floats(n), *other = floats(n);
    mla_naive(&c, want);
    for (dtype kv = DTYPE_F32; kv <= DTYPE_FP8; kv = (dtype)(kv + 1)) {
        const double allowed = kv == DTYPE_F32 ? 5e-6 : kv == DTYPE_BF16 ? 0.01 : 0.15;      // one key of 1/2^9 or 1/2^4 of itself
        const int turns = kv == DTYPE_FP8 && type > FORMAT_BF16;  // what that cache rounds of keys of random codes turns a softmax over: 0.1 to 0.7 off
        if (kv == DTYPE_F16) continue;
        mla_run(&c, pools[0], 1, kv, 0, out);
        CHECK(turns || distance(out, want, n) < allowed, "mla, %d heads, format %d, cache %d: off by %g", shape->heads, (int)type, kv, distance(out, want, n));
        for (int T = 2; T <= length; T += length > 40 ? length / 3 : T < 4 ? 1 : 9) {
            mla_run(&c, pools[T % 3], T, kv, 0, other);
            CHECK(same_bits(out, other, n), "mla in blocks of %d differs, format %d, cache %d", T, (int)type, kv);
        }
        mla_run(&c, pools[2], late, kv, 1, other);
        CHECK(same_bits(out + (size_t)late * hidden, other + (size_t)late * hidden, n - (size_t)late * hidden), "mla after rows of the cache alone");
    }
    free(want), free(out), free(other);
    mla_delete(&c);
}

// Latents far beyond 448 in an FP8 cache: with the layer's scale nothing is cut off; other caches do not use it.
static void test_mla_scale(pool **pools) {
    enum { LENGTH = 40, HIDDEN = 32 };
    const mla_shape s = {.hidden = HIDDEN, .heads = 5, .q_rank = 24, .kv_rank = 48, .nope_dim = 16, .rope_dim = 8, .value_dim = 20, .eps = 1e-6f,
                         .rope_scale = 1, .scale = 1e-4f, .interleaved = 1};
    static const float scale = 14;
    double want[LENGTH * HIDDEN];
    float out[LENGTH * HIDDEN], other[LENGTH * HIDDEN];
    mla_case c = mla_new(&s, FORMAT_F32, LENGTH);
    for (int i = 0; i < s.kv_rank; i++) c.kv_norm[i] = 1500 * random_float();
    mla_naive(&c, want);
    mla_run(&c, pools[0], 1, DTYPE_FP8, 0, out);
    CHECK(distance(out, want, LENGTH * HIDDEN) > 0.3, "without a scale: off by only %g", distance(out, want, LENGTH * HIDDEN));
    mla_run(&c, pools[0], 7, DTYPE_BF16, 0, out);
    c.w.kv_scale = &scale;
    mla_run(&c, pools[0], 7, DTYPE_BF16, 0, other);
    CHECK(same_bits(out, other, LENGTH * HIDDEN), "a scale changes a BF16 cache");
    mla_run(&c, pools[0], 1, DTYPE_FP8, 0, out);
    CHECK(distance(out, want, LENGTH * HIDDEN) < 0.1, "with a scale: off by %g", distance(out, want, LENGTH * HIDDEN));
    for (int T = 2; T <= LENGTH; T += 9) {
        mla_run(&c, pools[T % 3], T, DTYPE_FP8, 0, other);
        CHECK(same_bits(out, other, LENGTH * HIDDEN), "a scale in blocks of %d", T);
    }
    mla_delete(&c);
}

static void test_mla_kind(pool **pools) {
    const mla_shape plain = {.hidden = 48, .heads = 2, .q_rank = 0, .kv_rank = 64, .nope_dim = 16, .rope_dim = 16, .value_dim = 16, .eps = 1e-6f,
                             .rope_scale = 1, .scale = 0.2f, .interleaved = 1};
    mla_shape odd = {.hidden = 96, .heads = 7, .q_rank = 40, .kv_rank = 200, .nope_dim = 24, .rope_dim = 8, .value_dim = 20, .eps = 1e-6f,
                     .rope_scale = 1.3f, .scale = 0.15f, .interleaved = 0};
    const mla_shape wide = {.hidden = 128, .heads = 6, .q_rank = 128, .kv_rank = 256, .nope_dim = 32, .rope_dim = 32, .value_dim = 64, .eps = 1e-6f,
                            .rope_scale = 1, .scale = 0.1f, .interleaved = 1};
    for (int type = 0; type < FORMAT_COUNT; type++) {
        test_transposed((enum format)type, 50, 300, 128);
        test_transposed((enum format)type, 3, 40, 32);
        test_mla(&wide, (enum format)type, 20, pools);
    }
    test_mla(&plain, FORMAT_F32, 40, pools);
    test_mla(&odd, FORMAT_BF16, 40, pools);
    odd.heads = 1;
    test_mla(&odd, FORMAT_FP8_BLOCK, 40, pools);
    test_mla(&plain, FORMAT_F32, 2 * SPAN + 8, pools);
    odd.heads = 5;
    test_mla(&odd, FORMAT_F32, SPAN + 70, pools);
    test_mla_scale(pools);
}
