// A part of test_checkpoint: tables that stay in their files: single rows are those of the whole matrix, in every encoding that keeps rows
// apart; damage is told when a row is wanted.

enum { TABLE_ROWS = 40, TABLE_COLS = 256 };

static row_table *table_bind(binder *b, int code) {
    row_table *t = NULL;
    rows_bind(b, "", "x.weight", 1, TABLE_ROWS, TABLE_COLS, &t);
    CHECK(b->code == code && (t != NULL) == !code, "a table: code %d: %s", b->code, failure.message);
    return t;
}

static void test_table_rows(enum encoding e, int code) {
    const matrix stored = {.rows = TABLE_ROWS, .cols = TABLE_COLS, .block_rows = 16, .block_cols = 128};
    mote_model m = {.memory = &cpu_memory, .device.gpu = -1, .c.fp8_rows = 16, .c.fp8_cols = 128};
    matrix whole = {0};
    checkpoint files = {0};
    quantization_check check = {0};
    temp_empty();
    fused_write(e, &stored, 0);
    binder b = fused_binder(&m, &files, &check, &failure);
    if (!code) bind_whole(&b, "x", ".weight", &whole, TABLE_ROWS, TABLE_COLS);
    row_table *t = table_bind(&b, code);
    if (t) {
        int wrong = 0;
        float want[TABLE_COLS], got[TABLE_COLS];
        fused_load(&b);
        for (int i = 0; i < 2 * TABLE_ROWS; i++) {
            matrix_floats(&whole, i % TABLE_ROWS, 0, TABLE_COLS, want);
            EXPECT(MOTE_OK, rows_read(t, i % TABLE_ROWS, got, &failure));
            wrong += memcmp(want, got, sizeof want) != 0;
        }
        CHECK(!wrong && t->from_files == TABLE_ROWS && t->from_cache == TABLE_ROWS, "%s: %d rows are others, %d from files, %d from the cache",
              tensor_encodings[e]->name, wrong, (int)t->from_files, (int)t->from_cache);
        EXPECT(MOTE_EFORMAT, rows_read(t, -1, got, &failure));
        EXPECT(MOTE_EFORMAT, rows_read(t, TABLE_ROWS, got, &failure));
        free(m.arena);
    }
    rows_close(t);
    buf_free(&b.items);
    checkpoint_close(&files);
}

// Of a file that has been cut, or has a number that is none, since it was opened: the rows that are not hurt are there.
static void test_table_damaged(void) {
    const matrix stored = {.rows = TABLE_ROWS, .cols = TABLE_COLS};
    mote_model m = {.memory = &cpu_memory, .device.gpu = -1, .c.fp8_rows = 128, .c.fp8_cols = 128};
    checkpoint files = {0};
    float got[TABLE_COLS];
    const uint16_t nan = 0x7fc0;
    temp_empty();
    fused_write(ENCODING_BF16, &stored, 0);
    binder b = fused_binder(&m, &files, NULL, &failure);
    row_table *t = table_bind(&b, MOTE_OK);
    const off_t row = TABLE_COLS * 2, begin = (off_t)files.shards[0].size - TABLE_ROWS * row;
    const int fd = open(temp_path(F), O_WRONLY);
    CHECK(pwrite(fd, &nan, sizeof nan, begin + 7 * row + 10) == sizeof nan && !ftruncate(fd, begin + 30 * row + 5), "the table's file");
    close(fd);
    for (int i = 0; t && i < TABLE_ROWS; i++) {
        const int code = rows_read(t, i, got, &failure), hurt = i == 7 || i >= 30;
        CHECK(code == (hurt ? MOTE_EFORMAT : MOTE_OK), "row %d: code %d", i, code);
        if (hurt) CHECK(strstr(failure.message, F) && strstr(failure.message, i == 7 ? "row 7 of part 0 of a table: number 5 is not finite" : "ends while"),
                        "row %d: %s", i, failure.message);
    }
    rows_close(t);
    buf_free(&b.items);
    checkpoint_close(&files);
}

// Hashes as the released model's files have them.
static void test_ngram_hash(void) {
    static const int64_t factors[] = {23703573157769, 20109073645365, 8052911324071};
    ngrams_weights w = {.shape = {.grams = 3, .heads = 8, .base = 20000000, .seed = 1234, .vocab = 248320, .eos = 248044}};
    int64_t last[16], ended[16];
    ngrams_hash_of(&w.shape, &w.hash);
    CHECK(!memcmp(w.hash.factor, factors, sizeof factors), "factors of n-grams: %lld %lld %lld", (long long)w.hash.factor[0], (long long)w.hash.factor[1],
          (long long)w.hash.factor[2]);
    CHECK(w.hash.size[0] == 20000003 && w.hash.size[15] == 20000171 && w.hash.first[15] + w.hash.size[15] == 320001446, "sizes of heads");
    for (int i = 0; i < 1000; i++) {
        const int32_t ids[] = {random_int(0, 248319), i % 3 ? random_int(0, 248319) : 248044, random_int(0, 248319)}, none[] = {ids[0], -1, ids[2]};
        int outside = 0;
        ngrams_numbers(&w, ids, last);
        ngrams_numbers(&w, none, ended);
        for (int h = 0; h < 16; h++) outside += last[h] < w.hash.first[h] || last[h] >= w.hash.first[h] + w.hash.size[h];
        CHECK(!outside && (i % 3 || !memcmp(last, ended, sizeof last)), "n-grams %d: %d rows are of no head, or go back beyond an end of text", i, outside);
    }
}

static void test_tables(void) {
    static const enum encoding apart[] = {ENCODING_F32, ENCODING_F16, ENCODING_BF16, ENCODING_FP8_BLOCK, ENCODING_FP8_TENSOR, ENCODING_FP8_CHANNEL,
                                          ENCODING_FP8_BLOCK_CT, ENCODING_NVFP4, ENCODING_NVFP4_CT, ENCODING_MXFP8, ENCODING_MXFP8_E8M0};
    for (size_t i = 0; i < COUNT(apart); i++) test_table_rows(apart[i], MOTE_OK);
    test_table_rows(ENCODING_INT4_CT, MOTE_EUNSUPPORTED);
    test_table_damaged();
    test_ngram_hash();
}
