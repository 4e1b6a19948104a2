// A part of test_kernels: matrices, norms and angles.

// ---- Matrices -------------------------------------------------------------------------------------------------------

typedef struct random_matrix { matrix w; void *data; double *value; } random_matrix;

// So many columns, or a few more, that a format can have.
static int cols_for(enum format type, int cols) {
    int multiple = type == FORMAT_NVFP4 ? 16 : type == FORMAT_MXFP4 ? 32 : format_has_groups(type) ? 8 : 1;
    return (cols + multiple - 1) / multiple * multiple;
}

// A random number of a component that is as stored, and no NaN.
static void random_number(enum format type, int component, void *data, size_t i) {
    uint16_t half = (uint16_t)((random_bits() & 0x83ff) | (uint32_t)random_int(10, 15) << 10);
    uint16_t bf16 = (uint16_t)(random_bits() & 0x80ff) | 0x3f00;
    float f = random_float();
    uint32_t word;
    memcpy(&word, &f, 4);
    if (component == CODES && type == FORMAT_F16) ((uint16_t *)data)[i] = half;
    else if (component == CODES && type == FORMAT_BF16) ((uint16_t *)data)[i] = bf16;
    else if (component == CODES && (type == FORMAT_FP8_BLOCK || type == FORMAT_FP8_ROW))
        ((uint8_t *)data)[i] = (uint8_t)((random_bits() & 0x80) | (uint32_t)random_int(0, 0x7e));
    else if (component == CODES && type != FORMAT_F32) ((uint8_t *)data)[i] = (uint8_t)random_bits();
    else if (component == SCALES && type == FORMAT_NVFP4) ((uint8_t *)data)[i] = (uint8_t)random_int(0x20, 0x48);
    else if (component == SCALES && type == FORMAT_MXFP4) ((uint8_t *)data)[i] = (uint8_t)random_int(120, 128);
    else if (component == SCALES && format_has_groups(type)) ((uint32_t *)data)[i] = (word & ~31u) | (uint32_t)random_int(0, 16);
    else ((float *)data)[i] = f;
}

// The weight of random components, by the textbook. at: which number of its component each one is.
static double value_of(const matrix *w, int row, int col) {
    size_t at[MAX_COMPONENTS] = {0};
    const component *p = formats[w->format]->components;
    for (int i = 0; i < formats[w->format]->component_count; i++) {
        int rows = p[i].rows ? p[i].rows : w->block_rows, cols = p[i].cols ? p[i].cols : w->block_cols;
        at[i] = (size_t)(row / rows) * (size_t)((w->cols - 1) / cols + 1) + (size_t)(col / cols);
    }
    const float *scale = (const float *)w->component[SCALES];
    const uint8_t *bytes = (const uint8_t *)w->component[CODES];
    uint32_t nibble = bytes[at[CODES] / 2] >> (at[CODES] % 2 ? 4 : 0) & 15, word = 0;
    double block = 0;
    switch ((int)w->format) {
    case FORMAT_F32: return ((const float *)w->component[CODES])[at[CODES]];
    case FORMAT_F16: return code_value(((const uint16_t *)w->component[CODES])[at[CODES]], 5, 10, 1);
    case FORMAT_BF16: return code_value(((const uint16_t *)w->component[CODES])[at[CODES]], 8, 7, 1);
    case FORMAT_NVFP4:
        block = code_value(((const uint8_t *)w->component[SCALES])[at[SCALES]], 4, 3, 0);
        return code_value(nibble, 2, 1, 0) * (double)(float)(block * ((const float *)w->component[FACTOR])[0]);
    case FORMAT_MXFP4: return code_value(nibble, 2, 1, 0) * ldexp(1, ((const uint8_t *)w->component[SCALES])[at[SCALES]] - 127);
    case FORMAT_INT4: case FORMAT_INT4_FINE:
        word = ((const uint32_t *)w->component[SCALES])[at[SCALES]];
        return ((double)nibble - (word & 31)) * (double)float_of_bits(word & ~31u);
    default: return (float)code_value(bytes[at[CODES]], 4, 3, 0) * scale[at[SCALES]];
    }
}

static random_matrix matrix_new(enum format type, int rows, int cols, int block_rows, int block_cols) {
    random_matrix r;
    matrix w = {.format = type, .rows = rows, .cols = cols, .block_rows = format_has_groups(type) ? 1 : block_rows, .block_cols = block_cols};
    size_t size = 0, at = 0;
    for (int i = 0; i < formats[type]->component_count; i++) size += matrix_component_capacity(&w, i);
    r.data = allocate(size);
    for (int i = 0; i < formats[type]->component_count; at += matrix_component_capacity(&w, i), i++) {
        const component *p = &formats[type]->components[i];
        w.component[i] = (char *)r.data + at;
        for (size_t n = component_words(p, component_rows(p, &w), component_cols(p, &w)); n--;)
            random_number(type, i, (char *)r.data + at, n);
    }
    r.value = (double *)allocate((size_t)rows * (size_t)cols * sizeof(double));
    for (int i = 0; i < rows * cols; i++) r.value[i] = value_of(&w, i / cols, i % cols);
    r.w = w;
    return r;
}

static void matrix_delete(random_matrix *r) {
    free(r->data);
    free(r->value);
}

// Any slice of any row, with blocks that divide nothing, and whole blocks of 128 columns.
static void test_matrix_rows(void) {
    for (int round = 0; round < 100 * FORMAT_COUNT; round++) {
        const enum format type = (enum format)(round % FORMAT_COUNT);
        int whole = round % 5 == 0, rows = random_int(1, 40), cols = cols_for(type, random_int(whole ? 256 : 1, 300));
        int block_cols = whole ? 32 << round % 3 : random_int(1, 140);
        if (format_has_groups(type) && round % 25 == 0) block_cols = cols;
        random_matrix r = matrix_new(type, rows, cols, random_int(1, 50), block_cols);
        int row = random_int(0, rows - 1), col = whole ? 128 * random_int(0, 1) : random_int(0, cols - 1);
        int n = whole ? 128 : random_int(1, cols - col), bad = 0;
        float *out = floats((size_t)n);
        matrix_floats(&r.w, row, col, n, out);
        for (int i = 0; i < n; i++) bad += out[i] != (float)r.value[row * cols + col + i];
        CHECK(!bad, "type %d, %dx%d, row %d, columns %d+%d: %d wrong", (int)type, rows, cols, row, col, n, bad);
        free(out);
        matrix_delete(&r);
    }
}

// A dot product, as attention and the delta rule sum it.
static float dot(const float *a, const float *b, int n) {
    partial sum = no_partial();
    add_products(&sum, a, &b, 0, n, 1);
    return add_tail(sum_lanes(&sum), a, b, n);
}

static void test_dots(void) {
    for (int n = 0; n < 400; n += n < 70 ? 1 : 37) {
        float *a = random_floats((size_t)n + 1, 1), *b = random_floats((size_t)n + 1, 1);
        for (int shift = 0; shift < 2; shift++) {              /* at addresses aligned to 64 bytes and to 4 */
            double want = 0;
            float got = dot(a + shift, b, n);
            for (int i = 0; i < n; i++) want += (double)a[shift + i] * b[i];
            CHECK(fabs(got - want) < 1e-5, "dot of %d: %g, expected %g", n, (double)got, want);
        }
        free(a);
        free(b);
    }
}

static token_limbs *limbs_new(int rows, int cols) {
    return (token_limbs *)allocate((size_t)rows * (size_t)col_block_count(cols) * sizeof(token_limbs));
}

// A row of linear() has the same bits whatever T and the number of threads, and is right; with a bias where rows are odd in number.
static void test_linear(enum format type, int rows, int cols, int block_cols, pool **pools) {
    enum { MOST = 132 };
    static const int all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, MOST, 0}, few[] = {1, 3, 8, 65, 0};
    const int *sizes = test_brief ? few : all, most = test_brief ? 65 : MOST;
    random_matrix r = matrix_new(type, rows, cols, 16, block_cols);
    float *x = random_floats((size_t)MOST * (size_t)cols, 1), *y = floats((size_t)MOST * (size_t)rows);
    float *plain = floats((size_t)MOST * (size_t)rows);
    double *want = (double *)allocate((size_t)(MOST * rows) * sizeof(double));
    float *bias = random_floats((size_t)rows, 1);
    r.w.bias = rows % 2 ? bias : NULL;
    token_limbs *d = limbs_new(MOST, cols);
    for (int t = 0; t < most; t++)
        linear(pools[0], &r.w, x + (size_t)t * (size_t)cols, plain + (size_t)t * (size_t)rows, 1, 0, d);
    for (int i = 0; i < most * rows; i++)
        for (int c = 0; c <= cols; c++) want[i] += c < cols ? r.value[i % rows * cols + c] * x[i / rows * cols + c] : rows % 2 ? bias[i % rows] : 0;
    const double off = distance(plain, want, (size_t)(most * rows));
    CHECK(off < 1e-5, "linear %dx%d of type %d: off by %g", rows, cols, (int)type, off);
    for (int p = 0; p < 3; p += 1 + test_brief)
        for (int i = 0; sizes[i]; i++) {
            memset(y, 0, (size_t)(MOST * rows) * sizeof(float));
            linear(pools[p], &r.w, x, y, sizes[i], 0, d);
            CHECK(same_bits(y, plain, (size_t)(sizes[i] * rows)), "linear %dx%d, T=%d, %d threads", rows, cols,
                  sizes[i], p + 1);
            linear(pools[p], &r.w, x, y, sizes[i], 1, d);
            int bad = 0;
            for (int j = 0; j < sizes[i] * rows; j++) bad += y[j] != plain[j] + plain[j];
            CHECK(!bad, "linear with add %dx%d, T=%d, %d threads: %d wrong", rows, cols, sizes[i], p + 1, bad);
        }
    free(x);
    free(y);
    free(plain);
    free(want);
    free(bias);
    free(d);
    matrix_delete(&r);
}

// Products under the least and the largest scales of MXFP4, of token rows that keep them within floats.
static void test_mxfp4_scales(pool *p) {
    enum { ROWS = 5, COLS = 160, T = 7 };
    static const int exponents[][2] = {{0, 60}, {1, 0}, {MXFP4_LARGEST, -60}, {MXFP4_LARGEST, -10}};
    for (int round = 0; round < (int)(sizeof exponents / sizeof *exponents); round++) {
        random_matrix r = matrix_new(FORMAT_MXFP4, ROWS, COLS, 1, MXFP4_GROUP);
        float *x = random_floats(T * COLS, ldexpf(1, exponents[round][1])), y[T * ROWS];
        double want[T * ROWS] = {0};
        token_limbs *d = limbs_new(T, COLS);
        memset((void *)(uintptr_t)r.w.component[SCALES], exponents[round][0], ROWS * COLS / MXFP4_GROUP);
        for (int i = 0; i < T * ROWS * COLS; i++)
            want[i / COLS] += value_of(&r.w, i / COLS % ROWS, i % COLS) * (double)x[i / COLS / ROWS * COLS + i % COLS];
        linear(p, &r.w, x, y, T, 0, d);
        const double off = distance(y, want, T * ROWS);
        CHECK(off < 1e-5, "linear under MXFP4 scales of %d - 127: off by %g", exponents[round][0], off);
        free(x);
        free(d);
        matrix_delete(&r);
    }
}

static void test_linears(pool **pools) {
    for (int type = 0; type < FORMAT_COUNT; type++) {
        test_linear((enum format)type, 37, cols_for((enum format)type, 65), 40, pools);
        test_linear((enum format)type, 1, cols_for((enum format)type, 1), 128, pools);
        test_linear((enum format)type, 3, cols_for((enum format)type, 300), 128, pools);
    }
    test_linear(FORMAT_BF16, 40, 1024, 1, pools);
    test_linear(FORMAT_FP8_BLOCK, 33, 1024, 128, pools);
    test_linear(FORMAT_FP8_BLOCK, 33, 1088, 384, pools);       // columns that neither tiles nor blocks divide
    test_linear(FORMAT_FP8_BLOCK, 33, 576, 192, pools);        // blocks of three times 64 columns
    test_linear(FORMAT_FP8_ROW, 33, 1088, 384, pools);
    test_linear(FORMAT_F32, 1, 4096, 1, pools);
    test_linear(FORMAT_FP8_BLOCK, 2, 2100, 100, pools);
    test_linear(FORMAT_NVFP4, 2, 2048, 128, pools);
    test_linear(FORMAT_MXFP4, 2, 2048, 128, pools);
    test_mxfp4_scales(pools[0]);
    for (int group = 32; group <= 2048; group *= group < 128 ? 2 : 4) test_linear(FORMAT_INT4, 2, 2048, group, pools);
    for (int cols = 2000; cols <= 4400; cols += 800) {       // ends of several lengths
        test_linear(FORMAT_NVFP4, 19, cols, 128, pools);
        test_linear(FORMAT_MXFP4, 18, cols_for(FORMAT_MXFP4, cols), 128, pools);
        for (int group = 16; group <= 512; group *= 2) test_linear(FORMAT_INT4, 5, cols, group, pools);
    }
}

#ifdef LEVELS
// Numbers to floats as the plain loops do it, bit for bit, in any length.
static void test_unpacking(int level) {
    uint16_t half[300];
    uint8_t code[300];
    float plain[300], out[300];
    for (int round = 0; round < 300; round++) {
        int n = random_int(0, 300);
        for (int i = 0; i < 300; i++) {
            code[i] = (uint8_t)random_bits();
            do half[i] = (uint16_t)random_bits();
            while ((half[i] & 0x7c00) == 0x7c00 && half[i] & 0x3ff);       // a NaN's bits are anybody's
        }
        unpack_e4m3_plain(code, n, plain);
        level == 4 ? unpack_e4m3_v4(code, n, out) : unpack_e4m3_v3(code, n, out);
        CHECK(same_bits(out, plain, (size_t)n), "level %d: %d FP8 codes", level, n);
        unpack_bf16_plain(half, n, plain);
        level == 4 ? unpack_bf16_v4(half, n, out) : unpack_bf16_v3(half, n, out);
        CHECK(same_bits(out, plain, (size_t)n), "level %d: %d BF16 numbers", level, n);
        unpack_f16_plain(half, n, plain);
        level == 4 ? unpack_f16_v4(half, n, out) : unpack_f16_v3(half, n, out);
        CHECK(same_bits(out, plain, (size_t)n), "level %d: %d F16 numbers", level, n);
    }
}

// A token row's product has the same bits however many others there are.
static void test_batches(int level, const matrix *w, int rows, token_batch *from, float (*want)[ROW_BLOCK]) {
    float y[TOKEN_BATCH][ROW_BLOCK];
    for (from->count = 1; from->count < 12; from->count++) {
        (level == 4 ? block_dots_v4 : block_dots_v3)(w, 0, rows, from, y);
        for (int t = 0; t < from->count; t++)
            CHECK(same_bits(y[t], want[t], (size_t)rows), "level %d, type %d, row %d of %d", level, (int)w->format, t,
                  from->count);
    }
}

// A block's products near those of the plain version; and, for one token row, streamed with the same bits as in a block.
static void test_level_products(int level, enum format type, int rows, int cols, int streams) {
    random_matrix r = matrix_new(type, rows, cols, 16, 128);
    float *x = random_floats((size_t)TOKEN_BATCH * (size_t)cols, 1), plain[TOKEN_BATCH][ROW_BLOCK], y[TOKEN_BATCH][ROW_BLOCK];
    float one[ROW_BLOCK];
    token_batch from;
    token_limbs *d = limbs_new(TOKEN_BATCH, cols);
    limb_rows turned = {.x = x, .stride = (size_t)cols, .rows = TOKEN_BATCH, .cols = cols, .to = d, .kinds = limb_kinds(&r.w)};
    double size = 0, worst = 0;
    limb_row(&turned, 0, TOKEN_BATCH, 0);
    from.count = TOKEN_BATCH;
    for (int t = 0; t < TOKEN_BATCH; t++) {
        from.x[t] = x + (size_t)t * (size_t)cols;
        from.limbs[t] = d + (size_t)t * (size_t)col_block_count(cols);
    }
    block_dots_plain(&r.w, 0, rows, &from, plain);
    (level == 4 ? block_dots_v4 : block_dots_v3)(&r.w, 0, rows, &from, y);
    for (int t = 0; t < TOKEN_BATCH; t++)
        for (int i = 0; i < rows; i++) {
            size = fmax(size, fabs((double)plain[t][i]));
            worst = fmax(worst, fabs((double)plain[t][i] - (double)y[t][i]));
        }
    CHECK(worst <= 1e-5 * size, "level %d, %dx%d of type %d: off by %g of %g", level, rows, cols, (int)type, worst, size);
    test_batches(level, &r.w, rows, &from, y);
    int streamed = (level == 4 ? stream_v4 : stream_v3)(&r.w, 0, rows, x, one);
    CHECK(streamed == streams && (!streamed || same_bits(one, y[0], (size_t)rows)), "level %d, %dx%d of type %d: streamed",
          level, rows, cols, (int)type);
    free(x);
    free(d);
    matrix_delete(&r);
}
#endif

#ifdef LEVELS
static void test_levels(void) {
    for (int level = 3; level <= cpu_level(); level++) {
        test_unpacking(level);
        test_col_blocks(level);
        test_lane_products(level);
        test_quarter_products(level, CPU_UINT4);
        test_quarter_products(level, CPU_E2M1_E8M0);
        for (int type = 0; type < FORMAT_COUNT; type++) {
            int stream = type == FORMAT_BF16 || type == FORMAT_F16 || type == FORMAT_FP8_BLOCK || type == FORMAT_FP8_ROW;
            test_level_products(level, (enum format)type, 16, 640, stream);
            test_level_products(level, (enum format)type, 4, 64, stream);
            test_level_products(level, (enum format)type, 16, 600, 0);
            test_level_products(level, (enum format)type, 7, 640, 0);
            test_level_products(level, (enum format)type, 1, 3, 0);
        }
    }
}
#endif

// Four matrices of one input in one loop give what each gives alone, those of four bits, too, which take other limbs.
static void test_project(pool **pools) {
    static const enum format formats_of[4] = {FORMAT_F32, FORMAT_NVFP4, FORMAT_INT4, FORMAT_FP8_BLOCK};
    random_matrix r[4];
    float *x = random_floats(3 * 64, 1), *alone[4], *together[4];
    projection job;
    memset(&job, 0, sizeof job);
    job.limbs = limbs_new(3, 64);
    for (int i = 0; i < 4; i++) {
        r[i] = matrix_new(formats_of[i], 1 + 10 * i, 64, 7, 32);
        alone[i] = floats((size_t)(3 * r[i].w.rows));
        together[i] = floats((size_t)(3 * r[i].w.rows));
        job.w[i] = &r[i].w;
        job.y[i] = together[i];
        linear(pools[0], &r[i].w, x, alone[i], 3, 0, job.limbs);
    }
    job.count = 4;
    job.x = x;
    job.T = 3;
    project(pools[2], &job);
    for (int i = 0; i < 4; i++) {
        CHECK(same_bits(alone[i], together[i], (size_t)(3 * r[i].w.rows)), "projection %d of 4", i);
        matrix_delete(&r[i]);
        free(alone[i]);
        free(together[i]);
    }
    free(job.limbs);
    free(x);
}

static void test_embed(void) {
    random_matrix r = matrix_new(FORMAT_FP8_BLOCK, 20, 33, 8, 16);
    const int32_t ids[4] = {19, 0, 7, 19};
    float x[4 * 33], own[33];
    token_row rows[4];
    int bad = 0;
    for (int i = 0; i < 33; i++) own[i] = (float)i / 7;
    text_rows(rows, ids, 4, 11, 0);
    rows[2].embedding = own;
    embed(&r.w, 0, rows, 4, x);
    for (int i = 0; i < 4 * 33; i++) bad += x[i] != (i / 33 == 2 ? own[i % 33] : (float)r.value[ids[i / 33] * 33 + i % 33]);
    CHECK(!bad, "embed: %d wrong", bad);
    matrix_delete(&r);
}

// ---- Norms and angles -----------------------------------------------------------------------------------------------

static int near(double got, double want, double tolerance) {
    return fabs(got - want) <= tolerance * (1 + fabs(want));
}

static void test_activations(void) {
    for (double x = -60; x <= 60; x += 0.37) {
        CHECK(near(sigmoid((float)x), 1 / (1 + exp(-(double)(float)x)), 1e-6), "sigmoid(%g)", x);
        CHECK(near(silu((float)x), x / (1 + exp(-x)), 2e-6), "silu(%g)", x);
        CHECK(near(softplus((float)x), log1p(exp(x)), 2e-6), "softplus(%g)", x);
    }
    CHECK(sigmoid(-200) == 0 && sigmoid(200) == 1 && silu(-200) == 0, "sigmoid far out");
    CHECK(softplus(-200) == 0 && softplus(200) == 200, "softplus far out");
}

static void test_norms(void) {
    float x[3] = {3, 4, 0}, w[3] = {1, 2, 0.5f}, out[3];
    rms_norm(out, x, w, 1, 3, 0);
    double factor = 1 / sqrt(25.0 / 3);
    CHECK(near(out[0], 3 * factor, 1e-6) && near(out[1], 8 * factor, 1e-6) && out[2] == 0, "rms_norm times w");
    CHECK(near(rms_factor(x, 3, 2), 1 / sqrt(25.0 / 3 + 2), 1e-6), "eps is added to the mean");
    rms_norm(x, x, w, 1, 3, 0);
    CHECK(same_bits(x, out, 3), "rms_norm in place");
    float l[2] = {3, 4}, zero[2] = {0, 0}, tiny[2] = {1e-3f, 0};
    l2_norm(l, 2, 2);
    CHECK(near(l[0], 1.2, 1e-6) && near(l[1], 1.6, 1e-6), "l2_norm: %g %g", (double)l[0], (double)l[1]);
    l2_norm(zero, 2, 1);
    l2_norm(tiny, 2, 1);
    CHECK(zero[0] == 0 && near(tiny[0], sqrt(0.5), 1e-6), "l2_norm adds 1e-6 under the root");
    float big[2] = {3e30f, 4e30f};
    l2_norm(big, 2, 1);
    CHECK(near(big[0], 0.6, 1e-6), "l2_norm of large numbers does not overflow");
}

// Rows of text, and rows whose height and width are other numbers: then with M-RoPE's axes, t h w t h w ..., of which the last frequencies
// take the time.
static void test_rotary(int dim, int first, float theta, int plane) {
    float *angles = floats((size_t)(3 * dim)), *x = random_floats((size_t)dim, 1), *y = floats((size_t)dim);
    int half = dim / 2;
    float *frequencies = floats((size_t)dim);
    attention_weights w;
    token_row rows[3];
    memset(&w, 0, sizeof w);
    for (int i = 0; i < half; i++) frequencies[i] = powf(theta, -2.0f * (float)i / (float)dim);
    text_rows(rows, NULL, 3, first, 0);
    for (int t = 0; t < 3 && plane; t++) rows[t].position[1] = first + 5 * t + 1, rows[t].position[2] = first + 2 * t + 7;
    w.shape.rotary_dim = dim;
    w.shape.rope_scale = 1;
    w.frequencies = frequencies;
    if (plane) w.axes.height = half - half / 4, w.axes.width = half - half / 2;
    attention_angles(&w, rows, 3, angles);
    for (int t = 0; t < 3; t++) {
        memcpy(y, x, (size_t)dim * sizeof(float));
        rotate(y, angles + t * dim, dim);
        for (int i = 0; i < half; i++) {
            int at = first + t;
            if (plane && i % 3 == 1 && i < half - half / 4) at = first + 5 * t + 1;
            if (plane && i % 3 == 2 && i < half - half / 2) at = first + 2 * t + 7;
            double angle = at * pow(theta, -2.0 * i / dim), slack = 1e-5 + 3e-7 * fabs(angle);
            double a = x[i] * cos(angle) - x[half + i] * sin(angle), b = x[half + i] * cos(angle) + x[i] * sin(angle);
            CHECK(fabs(angles[t * dim + i] - cos(angle)) < slack, "cosine %d of %d at %d", i, dim, first + t);
            CHECK(fabs(angles[t * dim + half + i] - sin(angle)) < slack, "sine %d of %d at %d", i, dim, first + t);
            CHECK(fabs(y[i] - a) < 2 * slack && fabs(y[half + i] - b) < 2 * slack, "rotation %d at %d", i, first + t);
        }
    }
    free(frequencies);
    free(angles);
    free(x);
    free(y);
}
