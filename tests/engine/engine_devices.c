// A part of test_engine: devices and plans; a GPU's own.

// ---- Devices and plans ----------------------------------------------------------------------------------------------

static void test_device_choice(const fixture *f) {
    static const char *const bad[] = {"",        "gpu",     "CUDA",                "cuda:", "cuda:x",
                                      "cuda:-1", "cuda:0x", "cuda:99999999999999", "cpu:0"};
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY};
    mote_model *m = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.device = bad[i];
        memset(&failure, 0, sizeof failure);
        int code = mote_open(f->dir, &o, &m, &failure);
        CHECK((code == MOTE_EINVAL || code == MOTE_EDEVICE) && failure.code == code && failure.message[0] && !m,
              "device \"%s\": %d: %s", bad[i], code, failure.message);
    }
    o.device = "cuda:99";
    EXPECT(MOTE_EDEVICE, mote_open(f->dir, &o, &m, &failure));
    CHECK(!m, "a model on a GPU that is not there");
    if (!is_gpu) return;
    o.device = NULL;
    EXPECT(MOTE_OK, mote_open(f->dir, &o, &m, &failure));
    if (m) CHECK(!strncmp(mote_model_info(m)->device, "cuda:0", 6), "the device of its own choice is %s",
                 mote_model_info(m)->device);
    mote_close(m);
}

static void test_plan(const fixture *f) {
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    mote_session_options so = {.context = 64, .kv = MOTE_KV_BF16};
    mote_memory bf16, fp8;
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, &so, &bf16, &failure));
    so.kv = MOTE_KV_FP8;
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, &so, &fp8, &failure));
    CHECK(bf16.context == 64 && bf16.total == bf16.weights + bf16.kv + bf16.state + bf16.scratch, "%s: plan", f->dir);
    CHECK(bf16.kv == 2 * fp8.kv, "%s: KV cache of %llu bytes, of FP8 %llu", f->dir, (unsigned long long)bf16.kv,
          (unsigned long long)fp8.kv);
    if (is_gpu) CHECK(bf16.available > (uint64_t)1 << 30 && bf16.context_fits >= 64, "%s: what fits", f->dir);
}

static void test_info(const fixture *f) {
    const mote_info *o = mote_model_info(f->m);
    uint64_t parameters = 0, bytes = 0;
    for (int i = 0; i < o->module_count; i++) {
        CHECK(o->modules[i].name && o->modules[i].dtype && o->modules[i].parameters, "%s: module %d", f->dir, i);
        CHECK(o->modules[i].bytes_per_token <= o->modules[i].bytes, "%s: module %s", f->dir, o->modules[i].name);
        parameters += o->modules[i].parameters;
        bytes += o->modules[i].bytes;
    }
    CHECK(parameters == o->parameters && bytes == o->weight_bytes, "%s: modules do not sum up", f->dir);
    CHECK(o->active_parameters && o->active_parameters <= o->parameters, "%s: active parameters", f->dir);
    CHECK(o->weight_bytes_per_token <= o->weight_bytes, "%s: bytes per token", f->dir);
    int kinds = 0;
    for (int k = 0; k < o->kind_count; k++) {
        kinds += o->kinds[k].count * (strcmp(o->kinds[k].name, "ngrams") ? 1 : 2);       /* without an FFN */
        CHECK(o->kinds[k].count > 0 && o->kinds[k].size_count > 0 && o->kinds[k].sizes[0].value > 0, "%s: %s", f->dir,
              o->kinds[k].name);
    }
    const int each = strcmp(o->architecture, "nemotron_h") ? 2 : 1;
    CHECK(kinds == each * o->layers, "%s: %d sublayers in each of %d layers", f->dir, each, o->layers);
    CHECK(o->stage_count >= 7 && !strcmp(o->stages[0], "embed"), "%s: %d stages", f->dir, o->stage_count);
    CHECK(o->architecture && *o->architecture && !strcmp(mote_version(), MOTE_VERSION), "%s: names", f->dir);
}

// A description says what the whole model says, and gives no sessions.
static void test_description(const fixture *f) {
    mote_model *m = model_of(f->dir, MOTE_DESCRIPTION);
    mote_session *s = NULL;
    const mote_info *a = mote_model_info(m), *b = mote_model_info(f->m);
    CHECK(a->parameters == b->parameters && a->weight_bytes == b->weight_bytes && a->module_count == b->module_count &&
          a->layers == b->layers && a->kv_bytes_per_token == b->kv_bytes_per_token, "%s: description", f->dir);
    EXPECT(MOTE_EUNSUPPORTED, mote_session_open(m, NULL, &s, &failure));
    CHECK(!s, "%s: no session on a description", f->dir);
    mote_close(m);
}

// ---- A GPU's own ----------------------------------------------------------------------------------------------------

// On few multiprocessors, and what only the CPU can do.
static void test_gpu_options(const fixture *f) {
    mote_session_options o = {.context = f->T, .kv = MOTE_KV_F32};
    mote_session *s = session_of(f->m, .context = f->T, .sms = 3), *none = NULL;
    feed_near(s, f, f->T, 0, "on three multiprocessors");
    mote_session_close(s);
    if (is_gpu) EXPECT_EITHER(MOTE_EINVAL, MOTE_EUNSUPPORTED, mote_session_open(f->m, &o, &none, &failure));
    CHECK(!none, "%s: a refused session", f->dir);
}

// The logits of one to four rows, on `sms` multiprocessors.
static float *logits_on(const mote_model *m, int sms, size_t *size) {
    static const int32_t ids[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38};
    const size_t row = (size_t)mote_model_info(m)->vocab_size;
    float *all = (float *)allocate(10 * row * sizeof *all);
    mote_session *s = session_of(m, .context = 64, .sms = sms);
    for (size_t rows = 1, from = 0; rows <= 4; from += rows++)
        EXPECT(MOTE_OK, mote_feed_logits(s, ids + from, rows, all + from * row, NULL, &failure));
    mote_session_close(s);
    *size = 10 * row * sizeof *all;
    return all;
}

// On one multiprocessor a warp has many tiles of lm_head, as those of a real vocabulary are on all, and out_proj has fewer blocks
// than tiles: other kernels, the same bits.
static void test_one_sm(const char *name) {
    mote_options o = {.device = test_device};
    mote_model *m = NULL;
    size_t size;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &m, &failure));
    if (!m) return;
    float *one = logits_on(m, 1, &size), *all = logits_on(m, 0, &size);
    CHECK(!memcmp(one, all, size), "%s: the logits on one multiprocessor", name);
    free(one);
    free(all);
    mote_close(m);
}

// A copy of a checkpoint, by links, that says it can do a context of 2^24 tokens.
static void long_copy(const char *dir) {
    struct dirent **names;
    char from[1024];
    int n = scandir(dir, &names, NULL, NULL);
    temp_empty();
    for (int i = 0; i < n; i++) {
        snprintf(from, sizeof from, "%s/%s", dir, names[i]->d_name);
        char *path = realpath(from, NULL);
        if (!strcmp(names[i]->d_name, "config.json")) {
            size_t size;
            char *config = file_bytes(from, &size);
            set_number(&config, &size, "max_position_embeddings", "16777216");
            temp_write("config.json", config, size);
            free(config);
        } else if (names[i]->d_name[0] != '.') {
            CHECK(path && !symlink(path, temp_path(names[i]->d_name)), "a link to %s", from);
        }
        free(path);
        free(names[i]);
    }
    if (n >= 0) free(names);
}

// Sessions of the longest context that fits at all, or near it, until the GPU is full: the next one is refused with what
// would fit, the others go on, and once they are closed all of their memory is there again.
static void test_full_memory(const fixture *f) {
    enum { MOST = 200 };
    static mote_session *s[MOST];
    long_copy(f->dir);
    mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    int n[2] = {0, 0}, code = 0, context = mote_model_info(m)->context_max;
    mote_session_options o = {.context = context};
    while (context > 64 && mote_session_open(m, &o, &s[0], &failure) == MOTE_ENOMEM) o.context = context /= 4;
    mote_session_close(s[0]);
    for (int round = 0; round < 2; round++) {
        for (n[round] = 0; n[round] < MOST; n[round]++) {
            s[n[round]] = NULL;
            memset(&failure, 0, sizeof failure);
            code = mote_session_open(m, &o, &s[n[round]], &failure);
            if (code) break;
        }
        CHECK(code == MOTE_ENOMEM && failure.code == code && strpbrk(failure.message, "0123456789"),
              "after %d sessions: %d: %s", n[round], code, failure.message);
        if (!round) printf("full after %d sessions of %d tokens: %s\n", n[0], context, failure.message);
        if (n[round]) feed_to(s[0], f, 5, "on a full GPU");
        for (int i = 0; i < n[round]; i++) mote_session_close(s[i]);
    }
    CHECK(n[0] == n[1] && n[0] > 0, "%d sessions fit, later %d", n[0], n[1]);
    mote_close(m);
}

/* Blocks of more rows than a step, and a prompt where prefill takes it: every stage names its kernels. */
static void test_listed_launches(const fixture *f, mote_session *s) {
    const int from = mote_model_info(f->m)->prefill_from, rows[] = {16, 32, 64, from ? from + 128 : 64};
    const mote_launch *launches = NULL;
    size_t count = 0;
    for (int k = 0; k < 4; k++) {
        EXPECT(MOTE_OK, mote_launches(s, rows[k], &launches, &count, &failure));
        CHECK(count > 0, "%s: no launches of %d rows", f->dir, rows[k]);
        for (size_t i = 0; i < count; i++) {
            const mote_launch *l = &launches[i];
            CHECK(l->stage && l->kernel && *l->kernel != '?' && l->format && l->rows == rows[k] && l->grid[0] > 0 && l->block > 0 && l->arch,
                  "%s: launch %d of %d rows", f->dir, (int)i, rows[k]);
        }
    }
    EXPECT(MOTE_EINVAL, mote_launches(s, 20000, &launches, &count, &failure));
}

static void test_measure(const fixture *f) {
    mote_session *s = session_of(f->m, .context = 512);
    const mote_launch *launches = NULL;
    mote_measurement x = {0};
    size_t count = 0;
    for (int rows = 1; rows <= MOTE_ROWS_MAX; rows++) {
        x = (mote_measurement){.rows = rows, .depth = 100, .steps = 20};
        if (!is_gpu) {
            EXPECT(MOTE_EUNSUPPORTED, mote_measure(s, &x, &failure));
            continue;
        }
        EXPECT(MOTE_OK, mote_measure(s, &x, &failure));
        CHECK(x.fastest > 0 && x.fastest <= x.median && x.median <= x.slowest && x.bytes > 0 && x.launches > 0,
              "%s: measured %g .. %g .. %g s, %d launches", f->dir, x.fastest, x.median, x.slowest, x.launches);
        CHECK(count_of(s) == 0, "%s: measuring empties the timeline", f->dir);
        EXPECT(MOTE_OK, mote_launches(s, rows, &launches, &count, &failure));
        CHECK((int)count == x.launches, "%s: %d launches measured, %d listed", f->dir, x.launches, (int)count);
        for (size_t i = 0; i < count; i++) {
            const mote_launch *l = &launches[i];
            CHECK(l->stage && l->kernel && l->format && l->rows == rows && l->grid[0] > 0 && l->block > 0 && l->arch,
                  "%s: launch %d", f->dir, (int)i);
            CHECK(l->shared_bytes <= 101376 && l->stack_bytes == 0, "%s: %s: %d bytes of shared memory, %d of stack",
                  f->dir, l->kernel, l->shared_bytes, l->stack_bytes);
        }
        feed_to(s, f, f->T, "after measuring");
    }
    if (is_gpu) test_listed_launches(f, s);
    else EXPECT(MOTE_EUNSUPPORTED, mote_launches(s, 16, &launches, &count, &failure));
    x.rows = 20000;
    EXPECT_EITHER(MOTE_EINVAL, is_gpu ? MOTE_EINVAL : MOTE_EUNSUPPORTED, mote_measure(s, &x, &failure));
    mote_session_close(s);
}
