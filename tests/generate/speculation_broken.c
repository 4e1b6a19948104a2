// A part of test_speculation: options, and broken MTP layers.

// ---- Options --------------------------------------------------------------------------------------------------------

static void test_options(const mote_model *m) {
    static const int bad[] = {-2, MOTE_ROWS_MAX, 100};
    for (int i = 0; i < 3; i++) {
        mote_session_options o = {.context = 16, .mtp = bad[i]};
        mote_session *s = NULL;
        char most[16];
        snprintf(most, sizeof most, "1 to %d", MOTE_ROWS_MAX - 1);
        EXPECT(MOTE_EINVAL, mote_session_open(m, &o, &s, &failure));
        CHECK(!s && strstr(failure.message, "expected") && strstr(failure.message, most), "%s", failure.message);
    }
    mote_options o = {.device = test_device, .draft_rows = -1};
    mote_model *refused = NULL;
    EXPECT(MOTE_EINVAL, mote_open("models/demo", &o, &refused, &failure));
    CHECK(!refused && strstr(failure.message, "draft_rows"), "%s", failure.message);
}

// Drafts from few rows of the vocabulary: fewer are accepted, the text is the same.
static void test_draft_rows(const mote_model *demo) {
    static const int rows[] = {0, 100, 1};
    uint64_t accepted[3];
    reply *want = (reply *)allocate(sizeof *want), *got = (reply *)allocate(sizeof *got);
    mote_session *off = session_of_depth(demo, MOTE_MTP_OFF, CONTEXT);
    ask(off, "What is a mixture of experts?", &samplings[GREEDY], ANSWER, want);
    for (int i = 0; i < 3; i++) {
        mote_options o = {.device = test_device, .draft_rows = rows[i]};
        mote_model *m = NULL;
        mote_speculation x = {0};
        EXPECT(MOTE_OK, mote_open("models/demo", &o, &m, &failure));
        if (!m) break;
        mote_session *s = session_of_depth(m, 3, CONTEXT);
        ask(s, "What is a mixture of experts?", &samplings[GREEDY], ANSWER, got);
        CHECK(same_reply(got, want), "draft_rows %d: another text", rows[i]);
        EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
        accepted[i] = x.accepted[MOTE_DRAFT_MTP][0];
        mote_session_close(s);
        mote_close(m);
        CHECK(i == 0 || accepted[i] < accepted[0], "draft_rows %d: %d accepted", rows[i], (int)accepted[i]);
    }
    mote_session_close(off);
    free(want);
    free(got);
}

// ---- Broken MTP layers ----------------------------------------------------------------------------------------------

// A tensor of a fixture, and what its data becomes.
typedef struct breakage { const char *dir, *file, *tensor; int nan; } breakage;

static void break_tensor(const char *name, char **bytes, size_t *size, const void *how) {
    static const unsigned char nan[2] = {0xc0, 0x7f};
    const breakage *b = (const breakage *)how;
    const char *at = NULL;
    tensor_place t = {0};
    (void)size;
    if (strcmp(name, b->file)) return;
    while (next_tensor(*bytes, &at, &t) && strcmp(t.name, b->tensor)) {}
    if (b->nan) memcpy(*bytes + t.end - 2, nan, 2);         // the upper half of a float, or a BF16
    else memset(*bytes + t.begin, 0, t.end - t.begin);
}

typedef struct log_lines { int count; char last[512]; } log_lines;

static void count_mtp_lines(void *user, const char *line) {
    log_lines *l = (log_lines *)user;
    if (!strstr(line, "MTP")) return;
    l->count++;
    snprintf(l->last, sizeof l->last, "%s", line);
}

// The MTP layer drafts nothing, whatever is asked for, and the text is the plain one of `whole`.
static void check_no_drafts(const mote_model *m, const mote_model *whole) {
    mote_session *off = session_of_depth(whole, MOTE_MTP_OFF, CONTEXT);
    reply *want = (reply *)allocate(sizeof *want), *got = (reply *)allocate(sizeof *got);
    EXPECT(MOTE_OK, mote_feed(off, some_ids, 5, &failure));
    generate(off, &samplings[GREEDY], 20, 0, want);
    CHECK(mote_model_info(m)->mtp_layers == 0, "%d MTP layers", mote_model_info(m)->mtp_layers);
    for (int mtp = MOTE_MTP_OFF; mtp < 4; mtp++) {
        mote_session *s = session_of_depth(m, mtp, CONTEXT);
        mote_generation g = generation_of(got, &samplings[GREEDY], 20, 0);
        mote_speculation x = {0};
        g.verify = 1;
        EXPECT(MOTE_OK, mote_feed(s, some_ids, 5, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, &got->r, &failure));
        EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
        CHECK(same_reply(got, want) && want->count > 5, "mtp %d without an MTP layer: %d tokens", mtp, got->count);
        CHECK(x.drafted[MOTE_DRAFT_MTP][0] == 0 && x.tokens == (uint64_t)got->count, "mtp %d: %d drafts", mtp,
              (int)x.drafted[MOTE_DRAFT_MTP][0]);
        mote_session_close(s);
    }
    mote_session_close(off);
    free(want);
    free(got);
}

static void test_broken(const breakage *b) {
    mote_model *whole = model_of(b->dir, MOTE_WEIGHTS_ONLY), *m = NULL;
    log_lines lines = {0};
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    o.callbacks.log = count_mtp_lines;
    o.callbacks.user = &lines;
    temp_copy_of(b->dir, break_tensor, b);
    EXPECT(MOTE_OK, mote_open(temp_dir, &o, &m, &failure));
    CHECK(lines.count == 1 && strstr(lines.last, b->tensor), "%s, %s: %d lines: %s", b->dir, b->tensor, lines.count,
          lines.last);
    CHECK(mote_model_info(whole)->mtp_layers == 1, "%s has an MTP layer", b->dir);
    if (m) check_no_drafts(m, whole);
    if (m && b->nan) test_copies(m, 0);
    mote_close(m);
    mote_close(whole);
}

static void test_broken_layers(void) {
    static const breakage all[] = {
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.fc.weight", 0},
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.fc.weight", 1},
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.norm.weight", 1},
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.layers.0.mlp.gate.weight", 1},
        {"tests/fixtures/f32-tied", "model.safetensors", "mtp.fc.weight", 0},
        {"tests/fixtures/f32-tied", "model.safetensors", "mtp.layers.0.self_attn.v_proj.weight", 1},
        {"tests/fixtures/fp8-ragged", "mtp.safetensors", "mtp.layers.0.self_attn.o_proj.weight", 0},
        {"tests/fixtures/fp8-ragged", "mtp.safetensors", "mtp.layers.0.self_attn.q_proj.weight", 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) test_broken(&all[i]);
    mote_model *none = model_of("tests/fixtures/f16-all-delta", MOTE_WEIGHTS_ONLY);
    check_no_drafts(none, none);
    mote_close(none);
}
