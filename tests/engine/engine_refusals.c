// A part of test_engine: refusals; damaged checkpoints.

// ---- Refusals -------------------------------------------------------------------------------------------------------

static void test_open_misuse(const fixture *f) {
    mote_model *m = NULL;
    mote_memory plan, untouched;
    mote_session_options so = {.context = -5};
    mote_options o = {0};
    char path[600];
    temp_empty();
    EXPECT(MOTE_EINVAL, mote_open(NULL, NULL, &m, &failure));
    EXPECT(MOTE_EINVAL, mote_open(f->dir, NULL, NULL, &failure));
    o.parts = -1;
    EXPECT(MOTE_EINVAL, mote_open(f->dir, &o, &m, &failure));
    o.parts = 4;
    EXPECT(MOTE_EINVAL, mote_open(f->dir, &o, &m, &failure));
    EXPECT(MOTE_EIO, mote_open("no/such/folder", NULL, &m, &failure));
    EXPECT(MOTE_EIO, mote_open(temp_dir, NULL, &m, &failure));                     /* an empty folder */
    snprintf(path, sizeof path, "%s/config.json", f->dir);
    EXPECT(MOTE_EIO, mote_open(path, NULL, &m, &failure));                    /* a file */
    CHECK(mote_open("no/such/folder", NULL, &m, NULL) == MOTE_EIO && !m, "no place for the error");
    o.parts = MOTE_TEXT_ONLY;
    EXPECT(MOTE_EIO, mote_open(f->dir, &o, &m, &failure));                    /* no tokenizer there */
    mote_close(NULL);
    memset(&plan, 0x55, sizeof plan);
    memset(&untouched, 0x55, sizeof untouched);
    EXPECT(MOTE_EINVAL, mote_plan(NULL, NULL, NULL, &plan, &failure));
    EXPECT(MOTE_EINVAL, mote_plan(f->dir, NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EIO, mote_plan("no/such/folder", NULL, NULL, &plan, &failure));
    EXPECT(MOTE_EINVAL, mote_plan(f->dir, NULL, &so, &plan, &failure));
    CHECK(!memcmp(&plan, &untouched, sizeof plan), "a refused plan stays untouched");
}

static void test_session_misuse(const fixture *f) {
    int most = mote_model_info(f->m)->context_max;
    const mote_session_options bad[] = {{.context = -1}, {.context = most + 1}, {.chunk = -1}, {.chunk = -(1 << 30)},
                                        {.threads = -1}, {.threads = 1 << 30}, {.kv = -1}, {.kv = MOTE_KV_FP8 + 1}};
    mote_session *s = NULL;
    for (int i = 0; i < 8; i++) EXPECT(MOTE_EINVAL, mote_session_open(f->m, &bad[i], &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(NULL, NULL, &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(f->m, NULL, NULL, &failure));
    CHECK(!s, "a refused session is no session");
    mote_session_close(NULL);
    EXPECT(MOTE_OK, mote_session_open(f->m, NULL, &s, &failure));
    CHECK(mote_context(s) == (most < 8192 ? most : 8192), "default context %d", mote_context(s));
    mote_session_close(s);
}

static void test_feed_misuse(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 2, .threads = 1);
    int32_t ids[5];
    size_t size, n;
    float *logits = (float *)allocate((size_t)(5 * f->vocab) * 4);
    feed_to(s, f, 4, "misuse");
    char *bytes = session_bytes(s, &size);
    for (int i = 0; i < 6; i++) {
        static const int32_t bad[] = {-1, 1 << 30, INT32_MIN, INT32_MAX, 0, 0};
        memcpy(ids, f->tokens, sizeof ids);
        ids[i < 4 ? i : 4] = i < 4 ? bad[i] : f->vocab;
        EXPECT(MOTE_EINVAL, mote_feed(s, ids, 5, &failure));
        EXPECT(MOTE_EINVAL, mote_feed_logits(s, ids, 5, logits, NULL, &failure));
    }
    EXPECT(MOTE_EINVAL, mote_feed(s, NULL, 2, &failure));
    EXPECT(MOTE_ECONTEXT, mote_feed(s, ids, SIZE_MAX, &failure));
    if (!f->mtp) EXPECT(MOTE_EUNSUPPORTED, mote_feed_logits(s, f->tokens, 2, logits, logits, &failure));
    EXPECT(MOTE_OK, mote_feed(s, NULL, 0, &failure));
    EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens, 0, NULL, NULL, &failure));
    CHECK(mote_feed(s, NULL, 2, NULL) == MOTE_EINVAL, "no place for the error");
    CHECK(session_is(s, bytes, size) && mote_tokens(s, &n) && n == 4, "%s: refused tokens changed the session", f->dir);
    CHECK(logits[0] == 0 && logits[5 * f->vocab - 1] == 0, "%s: refused tokens wrote logits", f->dir);
    free(bytes);
    free(logits);
    mote_session_close(s);
}

static void test_sampling_misuse(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    static const mote_sampling bad[] = {
        {.temperature = -0.1f}, {.temperature = NAN}, {.temperature = INFINITY}, {.top_k = -1}, {.top_p = 1.5f}, {.top_p = NAN},
        {.min_p = -1}, {.min_p = NAN}, {.repetition_penalty = -2}, {.repetition_penalty = NAN},
        {.presence_penalty = INFINITY}, {.frequency_penalty = NAN}};
    static const mote_generation wrong[] = {{.max_tokens = -1}, {.stop_count = 1}, {.stop_count = -1}, {.think = 3}};
    mote_result r;
    int32_t id = -7;
    size_t size;
    feed_to(s, f, 4, "sampling misuse");
    char *bytes = session_bytes(s, &size);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mote_generation g = {.sampling = &bad[i]};
        EXPECT(MOTE_EINVAL, mote_sample(s, &bad[i], &id, &failure));
        EXPECT(MOTE_EINVAL, mote_step(s, &bad[i], &id, &failure));
        EXPECT(MOTE_EINVAL, mote_generate(s, &g, &r, &failure));
    }
    for (int i = 0; i < 4; i++) EXPECT(MOTE_EINVAL, mote_generate(s, &wrong[i], &r, &failure));
    CHECK(id == -7 && session_is(s, bytes, size), "%s: refused sampling changed something", f->dir);
    free(bytes);
    mote_session_close(s);
}

// Text calls on a model without a tokenizer.
static void test_weights_only(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    int32_t ids[4] = {0};
    char text[4];
    size_t n = 99;
    mote_sampling p;
    EXPECT(MOTE_EUNSUPPORTED, mote_tokenize(f->m, "a", 1, 0, ids, 4, &n, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_detokenize(f->m, ids, 1, text, 4, &n, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_render(f->m, "{}", 2, text, 4, &n, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_ask(s, "Hello", NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask(s, NULL, NULL, NULL, &failure));
    CHECK(n == 0 && !mote_token_bytes(f->m, 0, &n), "the count after refused text calls");
    memset(&p, 0x55, sizeof p);
    mote_sampling_defaults(f->m, &p);
    CHECK(p.top_k == 0 && p.repetition_penalty == 0, "defaults without generation_config.json");
    CHECK(!mote_model_info(f->m)->chat_template, "no chat template");
    mote_session_close(s);
}

// ---- Damaged checkpoints --------------------------------------------------------------------------------------------

// One way to damage model.safetensors: bytes of the first tensor of a type whose name holds `part`, or the end of the file.
typedef struct damage { const char *dtype, *part; size_t at; unsigned char value; int bytes; } damage;

static void damage_file(const char *name, char **bytes, size_t *size, const void *how) {
    const damage *d = (const damage *)how;
    if (strcmp(name, "model.safetensors")) return;
    if (d->dtype) memset(*bytes + tensor_of(*bytes, d->dtype, d->part) + d->at, d->value, (size_t)d->bytes);
    else *size -= 1;
}

static void test_damaged_weights(const fixture *fp8) {
    static const damage all[] = {{"F8_E4M3", "", 5, 0xff, 1}, {"F8_E4M3", "", 700, 0x7f, 1},
                                 {"F32", "weight_scale_inv", 0, 0xff, 4}, {0}};
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    for (int i = 0; i < 4; i++) {
        mote_model *m = NULL;
        temp_copy_of(fp8->dir, damage_file, &all[i]);
        EXPECT(MOTE_EFORMAT, mote_open(temp_dir, &o, &m, &failure));
        CHECK(!m && strstr(failure.message, "model.safetensors"), "damage %d: %s", i, failure.message);
    }
}

// One bit of one norm weight makes another checkpoint: its sessions are not exchanged. (test_misuse changes every tensor.)
static void flip_norm(const char *name, char **bytes, size_t *size, const void *how) {
    (void)size, (void)how;
    if (!strcmp(name, "model.safetensors")) (*bytes)[tensor_of(*bytes, "BF16", "input_layernorm.weight")] ^= 1;
}

static void test_other_weights(const fixture *fp8) {
    size_t size;
    temp_copy_of(fp8->dir, flip_norm, NULL);
    mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *s = session_of(fp8->m, .context = 20), *t = session_of(m, .context = 20);
    feed_to(s, fp8, 5, "other weights");
    char *bytes = session_bytes(s, &size);
    mote_checkpoint *c = checkpoint_of(s);
    EXPECT(MOTE_EINVAL, mote_load(t, bytes, size, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(t, c, &failure));
    CHECK(count_of(t) == 0, "a session of other weights");
    mote_checkpoint_free(c);
    mote_session_close(s);
    mote_session_close(t);
    mote_close(m);
    free(bytes);
}

// Puts the files of the temporary folder into the page cache or, where they lie on a disk, out of it.
static void temp_cache(int in) {
    DIR *d = opendir(temp_dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t size;
        int file = e->d_name[0] == '.' ? -1 : open(temp_path(e->d_name), O_RDONLY);
        if (file < 0) continue;
        if (in) free(file_bytes(temp_path(e->d_name), &size));
        else if (!fsync(file)) (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
    if (d) closedir(d);
}

// The same weights from the disk and from the page cache: a GPU's are read in different ways.
static void test_page_cache(const fixture *f) {
    temp_copy_of(f->dir, NULL, NULL);
    for (int in = 0; in < 2; in++) {
        temp_cache(in);
        mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
        mote_session *s = session_of(m, .context = 20);
        feed_to(s, f, 5, in ? "weights from the page cache" : "weights from the disk");
        mote_session_close(s);
        mote_close(m);
    }
}

static const mote_module *module_of(const mote_model *m, const char *name) {
    const mote_info *info = mote_model_info(m);
    for (int i = 0; i < info->module_count; i++)
        if (!strcmp(info->modules[i].name, name)) return &info->modules[i];
    CHECK(0, "no module %s", name);
    return &info->modules[0];
}

// The CPU makes the same weights of it: a GPU's logits are off its own by no more than the rule.
static void test_quantised_beside(const fixture *f, const float *logits) {
    const mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = "cpu", .quantize = MOTE_QUANTIZE_FP8};
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open(f->dir, &o, &m, &failure));
    if (!m) return;
    mote_session *s = session_of(m, .context = f->T, .kv = MOTE_KV_BF16);
    float *want = rows_of(f);
    EXPECT(MOTE_OK, mote_feed_logits(s, f->tokens, (size_t)f->prompt, want, NULL, &failure));
    const double off = rows_off(logits, want, f->prompt, f->vocab);
    CHECK(off <= GPU_RULE, "%s: quantised, logits are off the CPU's by %g", f->dir, off);
    free(want);
    mote_session_close(s);
    mote_close(m);
}

// BF16 turned into FP8 while it is loaded: said so, half the bytes, logits that are still those (others would be off by 1.4;
// in models this small, routers turn), and another model for saved sessions. test_formats looks at the weights.
static void test_quantize(const fixture *f) {
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device, .quantize = MOTE_QUANTIZE_FP8}, wrong = o;
    mote_memory plan, plain_plan;
    mote_model *m = NULL;
    size_t size, n = row_bytes(f, f->prompt) / sizeof(float);
    wrong.quantize = 3;
    EXPECT(MOTE_EINVAL, mote_open(f->dir, &wrong, &m, &failure));
    EXPECT(MOTE_EINVAL, mote_open_synthetic("tiny:bf16", &o, &m, &failure));
    EXPECT(MOTE_OK, mote_open(f->dir, &o, &m, &failure));
    if (!m) return;
    const mote_module *experts = module_of(m, "experts"), *before = module_of(f->m, "experts");
    CHECK(mote_model_info(m)->quantize == MOTE_QUANTIZE_FP8 && !mote_model_info(f->m)->quantize, "%s: not told", f->dir);
    CHECK(!strcmp(experts->dtype, "BF16 as FP8 128x128") && !strcmp(module_of(m, "lm_head")->dtype, "BF16 as FP8 128x128") &&
          !strcmp(module_of(m, "embed_tokens")->dtype, "BF16") &&
          strstr(module_of(m, "mtp")->dtype, "BF16 as FP8"), "%s: %s", f->dir, experts->dtype);
    CHECK(experts->parameters == before->parameters && experts->bytes < before->bytes * 51 / 100 + 4 * 60, "%s: %llu bytes",
          f->dir, (unsigned long long)experts->bytes);
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, NULL, &plan, &failure));
    o.quantize = MOTE_QUANTIZE_OFF;
    EXPECT(MOTE_OK, mote_plan(f->dir, &o, NULL, &plain_plan, &failure));
    CHECK(plan.weights < plain_plan.weights, "%s: the plan has no fewer bytes", f->dir);
    mote_session *s = session_of(m, .context = f->T, .threads = 1), *t = session_of(f->m, .context = f->T);
    float *logits = rows_of(f);
    EXPECT(MOTE_OK, feed_decoded(s, f->tokens, (size_t)f->prompt, logits, NULL, f->vocab, &failure));
    double off = rms_off(logits, f->want, n);
    CHECK(off > 1e-4 && off < 0.7, "%s: quantised, logits are off by %g (root mean square)", f->dir, off);
    if (is_gpu) test_quantised_beside(f, logits);
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_EINVAL, mote_load(t, bytes, size, &failure));
    free(bytes);
    free(logits);
    close_all((mote_session *[]){s, t}, 2);
    mote_close(m);
}

static void set_eos(const char *name, char **bytes, size_t *size, const void *id) {
    if (!strcmp(name, "config.json")) set_number(bytes, size, "eos_token_id", (const char *)id);
}

// A checkpoint whose end of text is the fourth greedy id: the answer ends there when generation_config.json says so.
// config.json's token only counts where there is text to end, which these fixtures, without tokenizers, have not.
static void test_eos(const fixture *f, int generation_config, int parts) {
    char id[16], text[64];
    int32_t eos = f->tokens[f->prompt + 3];
    int wanted = 7;
    mote_sampling greedy = {0};
    mote_generation g = {.sampling = &greedy, .max_tokens = 8};
    mote_result r;
    snprintf(id, sizeof id, "%d", eos);
    temp_copy_of(f->dir, generation_config ? NULL : set_eos, id);
    snprintf(text, sizeof text, "{\"eos_token_id\": [1000000, %d]}", eos);
    if (generation_config) temp_write("generation_config.json", text, strlen(text));
    if (generation_config)
        for (wanted = 0; f->tokens[f->prompt + wanted] != eos;) wanted++;
    mote_model *m = model_of(temp_dir, parts);
    mote_session *s = session_of(m, 0);
    feed_to(s, f, f->prompt, "eos");
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == (generation_config ? MOTE_STOP_EOS : MOTE_STOP_LENGTH) && r.generated_tokens == wanted + 1,
          "%s: end of text (parts %d, generation_config %d): stop %d after %d", f->dir, parts, generation_config, r.stop,
          r.generated_tokens);
    mote_session_close(s);
    mote_close(m);
}
