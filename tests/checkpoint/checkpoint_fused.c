// A part of test_checkpoint: matrices that are parts of a fused one, in every tensor encoding: their rows are those of the whole
// matrix, bit for bit.

// Groups of rows as Qwen3-Next has them: q, k, v and z of three key heads.
enum { FUSED_GROUPS = 3, FUSED_COLS = 256 };

// A tensor of random numbers that any component may hold: FP8 and floats are small and positive.
static void fused_numbers(part *t) {
    for (size_t i = 0; i < t->size; i++) {
        const int byte = random_int(0, 255), high = !strcmp(t->type, "F32") ? i % 4 == 3 : i % 2;
        t->data[i] = (char)(t->type[0] == 'U' || t->type[0] == 'I' ? byte : !strcmp(t->type, "F8_E4M3") ? byte & 0x6f : high ? 0x3c : byte);
    }
}

// The tensors of a module by an encoding, into the temporary folder; those that are optional are left out.
static void fused_write(enum encoding e, const matrix *w) {
    parts *p = (parts *)calloc(1, sizeof *p);
    for (int k = 0; k < part_count(tensor_encodings[e]); k++) {
        const matrix_part *from = &tensor_encodings[e]->parts[k];
        uint64_t shape[2];
        char text[64] = "";
        const char *rest;
        if (from->optional) continue;
        const int dims = part_shape(from->shape, w, shape, &rest);
        for (int i = 0; i < dims; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
        part *t = &p->list[p->n++];
        snprintf(t->name, sizeof t->name, "x%s", from->suffix);
        part_set(t, from->stored ? from->stored : k ? "F32" : e == ENCODING_F32 ? "F32" : e == ENCODING_F16 ? "F16" : "BF16", text);
        fused_numbers(t);
        if (!strcmp(t->type, "I64")) memcpy(t->data, (int64_t[]){w->rows, w->cols}, 16);
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

// head: rows of q, of k, and half of v and of z; block: the sides of FP8 blocks.
static void test_fused_matrix(enum encoding e, int head, int block) {
    const int group = 6 * head, rows = FUSED_GROUPS * group;
    const matrix stored = {.rows = rows, .cols = FUSED_COLS, .block_rows = block, .block_cols = block};
    row_runs runs[] = {{FUSED_GROUPS, group, {0, head, 2 * head}, {head, head, 2 * head}, 0},
                       {FUSED_GROUPS, group, {4 * head}, {2 * head}, 0}};
    mote_model m = {.memory = &cpu_memory, .gpu = -1, .quantize = e == ENCODING_QUANTISED, .c.fp8_rows = block, .c.fp8_cols = block};
    matrix whole = {0}, qkv = {0}, z = {0}, *const to[] = {&qkv, &z};
    const mote_callbacks none = {0};
    checkpoint files = {0};
    quantization_check check = {0};
    temp_empty();
    fused_write(e, &stored);
    binder b = fused_binder(&m, &files, &check, &failure);
    bind_matrix(&b, "x", ".weight", &whole, rows, FUSED_COLS);
    bind_fused(&b, "x", ".weight", to, runs, 2, FUSED_COLS, 0);
    if (CHECK(!b.code && qkv.rows == 4 * head * FUSED_GROUPS && z.rows == 2 * head * FUSED_GROUPS, "%s: %s", tensor_encodings[e]->name,
              failure.message)) {
        int wrong = 0;
        float want[FUSED_COLS], got[FUSED_COLS];
        EXPECT(MOTE_OK, arena_open(&b, &failure));
        qsort(b.items.data, b.items.size / sizeof(load_item), sizeof(load_item), by_place);
        EXPECT(MOTE_OK, cpu_load(&b, &none, &failure));
        for (int i = 0; i < rows; i++) {
            const int g = i / group, in = i % group, is_z = in >= 4 * head, q = in / head;
            const int at = is_z ? 2 * head * g + in - 4 * head : q < 2 ? (FUSED_GROUPS * q + g) * head + in % head
                                                                      : (2 * FUSED_GROUPS + 2 * g) * head + in - 2 * head;
            matrix_floats(&whole, i, 0, FUSED_COLS, want);
            matrix_floats(is_z ? &z : &qkv, at, 0, FUSED_COLS, got);
            wrong += memcmp(want, got, sizeof want) != 0;
        }
        CHECK(!wrong && m.modules[MODULE_DELTANET].parameters == 2 * (uint64_t)rows * FUSED_COLS, "%s, blocks of %d, heads of %d: %d rows"
              " are others", tensor_encodings[e]->name, block, head, wrong);
        free(m.arena);
    }
    buf_free(&b.items);
    checkpoint_close(&files);
}

// On a GPU blocks have at least 16 rows.
static void test_fused_refused(int head, int code) {
    const matrix stored = {.rows = 6 * head * FUSED_GROUPS, .cols = FUSED_COLS, .block_rows = 128, .block_cols = 128};
    row_runs runs = {FUSED_GROUPS, 6 * head, {0}, {head}, 0};
    weight_memory packing = cpu_memory;
    mote_model m = {.memory = &packing, .gpu = 0, .c.fp8_rows = 128, .c.fp8_cols = 128};
    matrix q = {0}, *const to[] = {&q};
    checkpoint files = {0};
    quantization_check check = {0};
    mote_error err = {0};
    packing.packs = 1;
    temp_empty();
    fused_write(ENCODING_FP8_BLOCK, &stored);
    binder b = fused_binder(&m, &files, &check, &err);
    bind_fused(&b, "x", ".weight", to, &runs, 1, FUSED_COLS, 0);
    CHECK(b.code == code && (!code || (strstr(err.message, "x.weight") && strstr(err.message, "use the CPU"))),
          "heads of %d: code %d: %s", head, b.code, err.message);
    buf_free(&b.items);
    checkpoint_close(&files);
}

static void test_fused(void) {
    for (int e = 0; e < ENCODING_COUNT; e++) {
        test_fused_matrix((enum encoding)e, 128, 128);
        test_fused_matrix((enum encoding)e, 16, 128);
        if (e == ENCODING_FP8_BLOCK) test_fused_matrix((enum encoding)e, 24, 64);
    }
    test_fused_refused(16, MOTE_OK);
    test_fused_refused(24, MOTE_EUNSUPPORTED);
}
