// A part of test_checkpoint: slices of matrices, in every tensor encoding: parts of a fused one, of a stack, transposed, shares of ranks.
// Their numbers are those of the whole matrix, bit for bit.

// Groups of rows as Qwen3-Next has them: q, k, v and z of three key heads.
enum { FUSED_GROUPS = 3, FUSED_COLS = 256 };

// A tensor of random numbers that any component may hold: FP8, floats and E8M0 are small and positive.
static void fused_numbers(part *t) {
    const char *end = strrchr(t->name, '_');
    const int is_e8m0 = !strcmp(t->type, "F8_E8M0") || (!strcmp(t->type, "U8") && end && !strcmp(end, "_scale"));
    for (size_t i = 0; i < t->size; i++) {
        if (is_e8m0) {
            t->data[i] = (char)random_int(100, 130);
            continue;
        }
        const int byte = random_int(0, strstr(t->name, "_scales") ? 127 : 255), high = !strcmp(t->type, "F32") ? i % 4 == 3 : i % 2;
        t->data[i] = (char)(t->type[0] == 'U' || t->type[0] == 'I' ? byte : !strcmp(t->type, "F8_E4M3") ? byte & 0x6f : high ? 0x3c : byte);
    }
}

// The tensors of matrix x by an encoding, into the temporary folder; those that are optional are left out. stack: of so many matrices of
// that size, named as stacks are, beside the last of them alone, y; 0: of one.
static void fused_write(enum encoding e, const matrix *w, int stack) {
    parts *p = (parts *)calloc(1, sizeof *p);
    for (int k = 0; k < part_count(tensor_encodings[e]); k++) {
        const matrix_part *from = &tensor_encodings[e]->parts[k];
        uint64_t shape[PART_DIMS];
        char text[64] = "";
        const char *rest;
        if (from->optional) continue;
        const int dims = part_shape(from->shape, w, shape, &rest);
        if (stack) snprintf(text, sizeof text, "%d", stack);
        for (int i = 0; i < dims; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%llu", *text ? "," : "", (unsigned long long)shape[i]);
        part *t = &p->list[p->n++];
        snprintf(t->name, sizeof t->name, "x%s", from->suffix + (stack && !strncmp(from->suffix, ".weight", 7) ? 7 : 0));
        part_set(t, from->stored ? from->stored : k ? "F32" : e == ENCODING_F32 ? "F32" : e == ENCODING_F16 ? "F16" : "BF16", text);
        fused_numbers(t);
        for (size_t i = 0; !strcmp(t->type, "I64") && i < t->size; i += 16) memcpy(t->data + i, (int64_t[]){w->rows, w->cols}, 16);
        if (!stack) continue;
        part *alone = &p->list[p->n++];
        snprintf(alone->name, sizeof alone->name, "y%s", from->suffix);
        part_set(alone, t->type, strchr(text, ',') ? strchr(text, ',') + 1 : "");
        memcpy(alone->data, t->data + t->size - alone->size, alone->size);
    }
    parts_write(p, F);
    parts_free(p);
}

static binder fused_binder(mote_model *m, checkpoint *files, quantization_check *check, mote_error *err) {
    binder b = {.files = files, .m = m, .check = check, .kind = MODULE_DELTANET, .used = 1, .of = 1, .err = err};
    files->dir = temp_dir;
    EXPECT(MOTE_OK, checkpoint_open(files, temp_dir, 0, err));
    return b;
}

// Loads what is bound; m->arena is the caller's to free.
static void fused_load(binder *b) {
    const mote_callbacks none = {0};
    EXPECT(MOTE_OK, arena_open(b, &failure));
    qsort(b->items.data, b->items.size / sizeof(load_item), sizeof(load_item), by_place);
    EXPECT(MOTE_OK, cpu_load(b, &none, &failure));
}

// head: rows of q, of k, and half of v and of z; block: the sides of FP8 blocks.
static void test_fused_matrix(enum encoding e, int head, int block) {
    const int group = 6 * head, rows = FUSED_GROUPS * group;
    const matrix stored = {.rows = rows, .cols = FUSED_COLS, .block_rows = block, .block_cols = block};
    const row_runs qkv_runs = {FUSED_GROUPS, group, {0, head, 2 * head}, {head, head, 2 * head}, 0};
    mote_model m = {.memory = &cpu_memory, .device.gpu = -1, .quantize = e == ENCODING_QUANTISED, .c.fp8_rows = block, .c.fp8_cols = block};
    matrix whole = {0}, qkv = {0}, z = {0}, share = {0};
    tensor_slice s = slice_all(rows, FUSED_COLS);
    checkpoint files = {0};
    quantization_check check = {0};
    temp_empty();
    fused_write(e, &stored, 0);
    binder b = fused_binder(&m, &files, &check, &failure);
    bind_matrix(&b, "x", ".weight", &whole, rows, FUSED_COLS, DIVIDED_ROWS);
    s.runs = qkv_runs;
    bind_slice(&b, "x", ".weight", &s, 0, &qkv);
    s.rank = 1, s.ranks = FUSED_GROUPS;
    bind_slice(&b, "x", ".weight", &s, 0, &share);
    s.ranks = 0;
    s.runs = rows_of(&s, FUSED_GROUPS, 4 * head, 2 * head);
    bind_slice(&b, "x", ".weight", &s, 0, &z);
    if (CHECK(!b.code && qkv.rows == 4 * head * FUSED_GROUPS && z.rows == 2 * head * FUSED_GROUPS && share.rows == 4 * head, "%s: %s",
              tensor_encodings[e]->name, failure.message)) {
        int wrong = 0;
        float want[FUSED_COLS], got[FUSED_COLS];
        fused_load(&b);
        for (int i = 0; i < rows; i++) {
            const int g = i / group, in = i % group, is_z = in >= 4 * head, q = in / head;
            const int at = is_z ? 2 * head * g + in - 4 * head : q < 2 ? (FUSED_GROUPS * q + g) * head + in % head
                                                                      : (2 * FUSED_GROUPS + 2 * g) * head + in - 2 * head;
            matrix_floats(&whole, i, 0, FUSED_COLS, want);
            matrix_floats(is_z ? &z : &qkv, at, 0, FUSED_COLS, got);
            wrong += memcmp(want, got, sizeof want) != 0;
            if (g == 1 && !is_z) matrix_floats(&share, in, 0, FUSED_COLS, got);
            wrong += memcmp(want, got, sizeof want) != 0;
        }
        CHECK(!wrong && m.report.modules[MODULE_DELTANET].parameters == (2 * (uint64_t)rows + 4 * (uint64_t)head) * FUSED_COLS,
              "%s, blocks of %d, heads of %d: %d rows are others", tensor_encodings[e]->name, block, head, wrong);
        CHECK(check.quantised_matrices == (e > ENCODING_BF16 && e != ENCODING_QUANTISED), "%s: %d quantised matrices",
              tensor_encodings[e]->name, check.quantised_matrices);
        free(m.arena);
    }
    buf_free(&b.items);
    checkpoint_close(&files);
}

// On a GPU blocks have at least 16 rows.
static void test_fused_refused(int head, int code) {
    const matrix stored = {.rows = 6 * head * FUSED_GROUPS, .cols = FUSED_COLS, .block_rows = 128, .block_cols = 128};
    weight_memory packing = cpu_memory;
    mote_model m = {.memory = &packing, .device.gpu = 0, .c.fp8_rows = 128, .c.fp8_cols = 128};
    matrix q = {0};
    tensor_slice s = slice_all(stored.rows, FUSED_COLS);
    checkpoint files = {0};
    mote_error err = {0};
    packing.packs = 1;
    s.runs = rows_of(&s, FUSED_GROUPS, 0, head);
    temp_empty();
    fused_write(ENCODING_FP8_BLOCK, &stored, 0);
    binder b = fused_binder(&m, &files, NULL, &err);
    bind_slice(&b, "x", ".weight", &s, 0, &q);
    CHECK(b.code == code && (!code || (strstr(err.message, "x.weight") && strstr(err.message, "use the CPU"))),
          "heads of %d: code %d: %s", head, b.code, err.message);
    buf_free(&b.items);
    checkpoint_close(&files);
}

// A slice, and which rows and columns of the stored matrix it must be: row + i * step, column + j.
typedef struct cut {
    const char *title;
    int runs, at, rows;          // groups, the first row of each, and how many; 0 runs: all
    int first, width;            // columns; 0 width: all
    enum divided divided;
    int rank, ranks;
    int row, step, column, count, columns;     // expected
} cut;

enum { CUT_STACK = 3, CUT_ROWS = 256, CUT_COLS = 512 };

static const cut cuts[] = {
    {.title = "all", .step = 1, .count = 256, .columns = 512},
    {.title = "first half", .runs = 1, .rows = 128, .step = 1, .count = 128, .columns = 512},
    {.title = "second half", .runs = 1, .at = 128, .rows = 128, .row = 128, .step = 1, .count = 128, .columns = 512},
    {.title = "even rows", .runs = 128, .rows = 1, .step = 2, .count = 128, .columns = 512},
    {.title = "odd rows", .runs = 128, .at = 1, .rows = 1, .row = 1, .step = 2, .count = 128, .columns = 512},
    {.title = "columns", .first = 128, .width = 256, .step = 1, .column = 128, .count = 256, .columns = 256},
    {.title = "rows of rank 0", .ranks = 2, .step = 1, .count = 128, .columns = 512},
    {.title = "rows of rank 1", .rank = 1, .ranks = 2, .row = 128, .step = 1, .count = 128, .columns = 512},
    {.title = "columns of rank 0", .divided = DIVIDED_COLS, .ranks = 2, .step = 1, .count = 256, .columns = 256},
    {.title = "columns of rank 1", .divided = DIVIDED_COLS, .rank = 1, .ranks = 2, .step = 1, .column = 256, .count = 256, .columns = 256},
    {.title = "rank 1 of odd rows", .runs = 128, .at = 1, .rows = 1, .rank = 1, .ranks = 2, .row = 129, .step = 2, .count = 64,
     .columns = 512},
    {.title = "rank 1 of the second half", .runs = 1, .at = 128, .rows = 128, .rank = 1, .ranks = 4, .row = 160, .step = 1, .count = 32,
     .columns = 512},
    {.title = "columns of odd rows", .runs = 128, .at = 1, .rows = 1, .divided = DIVIDED_COLS, .rank = 3, .ranks = 4, .row = 1, .step = 2,
     .column = 384, .count = 128, .columns = 128}};

static tensor_slice cut_slice(const cut *c, int entry, int stack) {
    tensor_slice s = slice_all(CUT_ROWS, CUT_COLS);
    s.entry = entry;
    s.entries = stack;
    if (c->runs) s.runs = rows_of(&s, c->runs, c->at, c->rows);
    s.col = c->first;
    s.width = c->width;
    s.divided = c->divided;
    s.rank = c->rank;
    s.ranks = c->ranks;
    return s;
}

// Weights that are quantised when they are loaded are in blocks of the slice: those of the whole where all of these begin alike.
static int cut_compares(const cut *c, enum encoding e) {
    return e != ENCODING_QUANTISED || (c->step == 1 && c->row % TILE == 0);
}

static void check_cut(const char *title, const cut *c, const matrix *whole, const matrix *part, int transposed) {
    int wrong = 0;
    static float want[CUT_COLS], got[CUT_COLS];
    CHECK(part->rows == c->count && part->cols == c->columns, "%s, %s: %d x %d", title, c->title, part->rows, part->cols);
    for (int i = 0; i < c->count; i++) {
        const int row = c->row + i * c->step;
        if (!transposed) matrix_floats(whole, row, c->column, c->columns, want);
        for (int j = 0; j < c->columns && transposed; j++) matrix_floats(whole, c->column + j, row, 1, want + j);
        matrix_floats(part, i, 0, c->columns, got);
        wrong += memcmp(want, got, sizeof(float) * (size_t)c->columns) != 0;
    }
    CHECK(!wrong, "%s, %s: %d rows are others", title, c->title, wrong);
}

// Every slice of the last matrix of a stack, or of one alone, beside that one whole. Blocks are FP8's, and groups INT4's. transposed: plain
// numbers lie so.
static void test_slices(enum encoding e, int stack, int block_rows, int block_cols, int transposed) {
    const matrix stored = {.rows = transposed ? CUT_COLS : CUT_ROWS, .cols = transposed ? CUT_ROWS : CUT_COLS, .block_rows = block_rows,
                           .block_cols = block_cols};
    mote_model m = {.memory = &cpu_memory, .device.gpu = -1, .quantize = e == ENCODING_QUANTISED, .c.fp8_rows = block_rows,
                    .c.fp8_cols = block_cols};
    matrix whole = {0}, part[COUNT(cuts)] = {0};
    const char *name = stack ? "" : ".weight";
    checkpoint files = {0};
    quantization_check check = {0};
    temp_empty();
    fused_write(e, &stored, stack);
    binder b = fused_binder(&m, &files, &check, &failure);
    bind_matrix(&b, stack ? "y" : "x", ".weight", &whole, stored.rows, stored.cols, DIVIDED_ROWS);
    for (size_t i = 0; i < COUNT(cuts) && !b.code; i++) {
        tensor_slice s = cut_slice(&cuts[i], stack ? stack - 1 : 0, stack);
        s.transposed = transposed;
        bind_slice(&b, "x", name, &s, 0, &part[i]);
    }
    if (CHECK(!b.code, "%s: %s", tensor_encodings[e]->name, failure.message)) {
        fused_load(&b);
        for (size_t i = 0; i < COUNT(cuts); i++)
            if (cut_compares(&cuts[i], e)) check_cut(tensor_encodings[e]->name, &cuts[i], &whole, &part[i], transposed);
        CHECK(check.quantised_matrices == (e > ENCODING_BF16 && e != ENCODING_QUANTISED) * (stack ? 2 : 1), "%s: %d quantised matrices",
              tensor_encodings[e]->name, check.quantised_matrices);
        free(m.arena);
    }
    buf_free(&b.items);
    checkpoint_close(&files);
}

// Where columns of a group would be of two matrices, and where ranks cannot share alike. borders: columns that a number is for.
static void test_slices_refused(enum encoding e, int borders) {
    static const cut wrong[] = {{.title = "columns", .first = 8, .width = 256}, {.title = "columns", .first = 256, .width = 8},
                                {.title = "rows", .ranks = 7}, {.title = "columns", .divided = DIVIDED_COLS, .ranks = 3},
                                {.title = "groups of rows", .runs = 128, .rows = 1, .ranks = 3}};
    const matrix stored = {.rows = CUT_ROWS, .cols = CUT_COLS, .block_rows = 128, .block_cols = 128};
    mote_model m = {.memory = &cpu_memory, .device.gpu = -1, .c.fp8_rows = 128, .c.fp8_cols = 128};
    checkpoint files = {0};
    quantization_check check = {0};
    temp_empty();
    fused_write(e, &stored, 0);
    binder b = fused_binder(&m, &files, &check, &failure);
    for (size_t i = 0; i < COUNT(wrong); i++) {
        const tensor_slice s = cut_slice(&wrong[i], 0, 0);
        const int code = i >= 2 || borders > 8 ? MOTE_EUNSUPPORTED : MOTE_OK;
        mote_error err = {0};
        matrix w = {0};
        b.err = &err;
        b.code = 0;
        bind_slice(&b, "x", ".weight", &s, 0, &w);
        CHECK(b.code == code && (!code || (strstr(err.message, "tensor x.") && strstr(err.message, wrong[i].title) &&
              strstr(err.message, temp_dir) && (i >= 2 || strstr(err.message, tensor_encodings[e]->name)))),
              "%s, case %zu: code %d: %s", tensor_encodings[e]->name, i, b.code, err.message);
    }
    buf_free(&b.items);
    checkpoint_close(&files);
}

// The slices of a stack of vectors, and of one whose numbers are rows.
static void test_slices_of_vectors(void) {
    enum { N = 12, TAPS = 4 };
    mote_model m = {.memory = &cpu_memory, .device.gpu = -1};
    parts *p = (parts *)calloc(1, sizeof *p);
    part *bias = &p->list[p->n++], *conv = &p->list[p->n++];
    tensor_slice s = slice_all(N, 1), taps = slice_all(N, TAPS);
    const float *odd = NULL, *mine = NULL, *rows = NULL;
    int wrong = 0;
    checkpoint files = {0};
    snprintf(bias->name, sizeof bias->name, "bias");
    part_set(bias, "F32", "3,12");
    snprintf(conv->name, sizeof conv->name, "conv");
    part_set(conv, "F32", "12,1,4");
    for (int i = 0; i < 3 * N; i++) ((float *)(void *)bias->data)[i] = (float)i;
    for (int i = 0; i < N * TAPS; i++) ((float *)(void *)conv->data)[i] = (float)i;
    temp_empty();
    parts_write(p, F);
    parts_free(p);
    binder b = fused_binder(&m, &files, NULL, &failure);
    s.entries = 3;
    s.entry = 1;
    s.runs = rows_of(&s, N / 2, 1, 1);
    bind_slice_vector(&b, "", "bias", &s, &vector_part, &vector_source, &odd);
    s.rank = 1, s.ranks = 3;
    bind_slice_vector(&b, "", "bias", &s, &vector_part, &norm_source, &mine);
    taps.rank = 1, taps.ranks = 2;
    bind_slice_vector(&b, "", "conv", &taps, &conv_part, &vector_source, &rows);
    if (CHECK(!b.code, "%s", failure.message)) {
        fused_load(&b);
        for (int i = 0; i < N / 2; i++) wrong += odd[i] != (float)(N + 2 * i + 1);
        for (int i = 0; i < 2; i++) wrong += mine[i] != (float)(N + 2 * (2 + i) + 1) + 1;
        for (int i = 0; i < N / 2 * TAPS; i++) wrong += rows[i] != (float)(N / 2 * TAPS + i);
        CHECK(!wrong, "%d numbers of vectors are others", wrong);
        free(m.arena);
    }
    s.ranks = 4;
    bind_slice_vector(&b, "", "bias", &s, &vector_part, &vector_source, &odd);
    CHECK(b.code == MOTE_EUNSUPPORTED && strstr(failure.message, "bias"), "6 rows by 4 ranks: %d", b.code);
    buf_free(&b.items);
    checkpoint_close(&files);
}

// Opens the temporary folder; the caller frees the notices.
static buf stacked_notices(void) {
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = "cpu"};
    mote_model *m = NULL;
    buf notices = {0};
    o.callbacks.log = keep_notices;
    o.callbacks.user = &notices;
    EXPECT(MOTE_OK, mote_open(temp_dir, &o, &m, &failure));
    buf_add(&notices, "", 1);
    mote_close(m);
    return notices;
}

// Experts in stacks count in what config.json says of quantisation: those in BF16 that it calls quantised, and where stacks in FP8 are
// all that is.
static void test_stacked_folder(void) {
    if (!temp_fixture("bf16-as-3.6")) return;
    CHECK(temp_replace("config.json", "{", "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], "
          "\"quantized_layers\": {\"model.language_model.layers.0.mlp.experts\": {}}},"), "config.json");
    buf notices = stacked_notices();
    CHECK(strstr(notices.data, "2 matrices are not stored as config.json says") && strstr(notices.data, "mlp.experts.gate_up_proj is BF16"),
          "stacks in BF16: <%s>", notices.data);
    buf_free(&notices);
    parts *p = parts_read(F);
    for (int i = 0, n = p->n; i < n; i++) {
        part *t = &p->list[i], *scale = &p->list[p->n];
        char shape[40];
        if (!strstr(t->name, ".mlp.experts.")) continue;
        snprintf(shape, sizeof shape, "%d,%d,%d", (int)t->shape[0], (int)t->shape[1], (int)t->shape[2]);
        part_set(t, "F8_E4M3", shape);
        snprintf(scale->name, sizeof scale->name, "%.140s_scale_inv", t->name);
        part_set(scale, "F32", "5,1,1");
        p->n++;
    }
    parts_write(p, F);
    parts_free(p);
    notices = stacked_notices();
    CHECK(!strstr(notices.data, "config.json"), "stacks in FP8: <%s>", notices.data);
    buf_free(&notices);
}

static void test_fused(void) {
    for (int e = 0; e < ENCODING_COUNT; e++) {
        test_fused_matrix((enum encoding)e, 128, 128);
        if (e != ENCODING_QUANTISED) test_fused_matrix((enum encoding)e, 16, 128);       // a slice is quantised by itself
        if (e == ENCODING_FP8_BLOCK) test_fused_matrix((enum encoding)e, 24, 64);
    }
    test_fused_refused(16, MOTE_OK);
    test_fused_refused(24, MOTE_EUNSUPPORTED);
    for (int e = 0; e < ENCODING_COUNT; e++) {
        for (int stack = 0; stack <= CUT_STACK; stack += CUT_STACK) test_slices((enum encoding)e, stack, 128, 128, 0);
        for (int stack = 0; e <= ENCODING_BF16 && stack <= CUT_STACK; stack += CUT_STACK) test_slices((enum encoding)e, stack, 128, 128, 1);
        if (tensor_encodings[e]->format == FORMAT_INT4) test_slices((enum encoding)e, 0, 1, CUT_COLS, 0);
    }
    test_slices(ENCODING_QUANTISED, CUT_STACK, 128, 128, 1);
    test_slices(ENCODING_FP8_BLOCK, CUT_STACK, 96, 64, 0);
    test_slices_refused(ENCODING_BF16, 1);
    test_slices_refused(ENCODING_FP8_BLOCK, 128);
    test_slices_refused(ENCODING_FP8_CHANNEL, 1);
    test_slices_refused(ENCODING_NVFP4, 16);
    test_slices_refused(ENCODING_GPTQ, 128);
    test_slices_of_vectors();
    test_stacked_folder();
}
