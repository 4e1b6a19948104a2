// checkpoint_dense.c: dense models in every way in which published ones are stored: a fixture without its experts, whose shared
// expert is the FFN. Part of test_checkpoint.c.

// The fixture in the temporary folder, as a checkpoint of family qwen3_5.
static int temp_dense(const char *fixture) {
    if (!temp_fixture(fixture)) return 0;
    parts *all = parts_read(F), *kept = (parts *)calloc(1, sizeof *kept);
    for (int i = 0; i < all->n; i++) {
        static const char shared[] = "shared_expert.";
        char *name = all->list[i].name, *at = strstr(name, shared);
        if (at) memmove(at, at + strlen(shared), strlen(at + strlen(shared)) + 1);
        if (at || !strstr(name, ".mlp.")) kept->list[kept->n++] = all->list[i];
    }
    parts_write(kept, F);
    free(kept);
    parts_free(all);
    static const char *const sizes[][2] = {                  // of experts, which would be refused; what they are now is of no effect
        {"\"num_experts\"", "\"unsloth_a\""}, {"\"num_experts_per_tok\"", "\"unsloth_b\""}, {"\"moe_intermediate_size\"", "\"unsloth_c\""}};
    for (size_t i = 0; i < COUNT(sizes); i++) CHECK(temp_replace(CONFIG, sizes[i][0], sizes[i][1]), "%s: no %s", fixture, sizes[i][0]);
    const int nested = temp_replace(CONFIG, "\"qwen3_5_moe\"", "\"qwen3_5\"");
    return CHECK(temp_replace(CONFIG, "\"qwen3_5_moe_text\"", "\"qwen3_5_text\"") + nested > 0 &&
                 temp_replace(CONFIG, "\"shared_expert_intermediate_size\"", "\"intermediate_size\""), "%s: config.json", fixture);
}

static int same_floats(const matrix *a, const matrix *b) {
    int same = a->rows == b->rows && a->cols == b->cols;
    float *x = (float *)allocate((size_t)a->cols * sizeof *x), *y = (float *)allocate((size_t)a->cols * sizeof *y);
    for (int r = 0; r < a->rows && same; r++) {
        matrix_floats(a, r, 0, a->cols, x);
        matrix_floats(b, r, 0, b->cols, y);
        same = !memcmp(x, y, (size_t)a->cols * sizeof *x);
    }
    free(x);
    free(y);
    return same;
}

// The dense FFN of a layer has the numbers of the shared expert, whose model's logits are those of the reference.
static void check_dense_layer(const char *fixture, int i, const layer *dense, const layer *mixture) {
    const mlp_weights *f = &dense->ffn.w.mlp;
    const moe_weights *e = &mixture->ffn.w.moe;
    const int shared = e->shape.experts;
    if (!CHECK(dense->ffn.kind == LAYER_MLP, "%s: layer %d is no dense FFN", fixture, i)) return;
    CHECK(same_floats(&f->gate_proj, &e->gate_proj[shared]) && same_floats(&f->up_proj, &e->up_proj[shared]) &&
          same_floats(&f->down_proj, &e->down_proj[shared]), "%s: layer %d: other numbers", fixture, i);
}

// What the CPU computes is what the definitions say, within so much of the logits' standard deviation.
static void check_dense_logits(const char *fixture, const mote_model *m, double limit) {
    enum { T = 9 };
    static const int32_t ids[T] = {1, 7, 3, 30, 22, 7, 9, 11, 2};
    const size_t vocab = (size_t)m->c.vocab, n = T * vocab;
    double *want = (double *)allocate(2 * n * sizeof *want), worst = 0, square = 0;
    float *got = (float *)allocate(2 * n * sizeof *got);
    const size_t all = m->has_mtp ? 2 * n - vocab : n;
    mote_session *s = session_of(m, .context = 64, .chunk = 4, .threads = 2, .mtp = m->has_mtp);
    CHECK(definition_model(m, ids, T, want, m->has_mtp ? want + n : NULL), "%s: out of memory", fixture);
    EXPECT(MOTE_OK, mote_feed_logits(s, ids, T, got, m->has_mtp ? got + n : NULL, &failure));
    for (size_t i = 0; i < all; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        square += want[i] * want[i];
    }
    CHECK(worst <= limit * sqrt(square / (double)all) && square > 0, "%s: %g off the definition", fixture, worst);
    mote_session_close(s);
    free(want);
    free(got);
}

// dtype: of the FFN's module.
static void test_dense(const char *fixture, const char *dtype) {
    char original[256];
    snprintf(original, sizeof original, "tests/fixtures/%s", fixture);
    if (!temp_dense(fixture)) return;
    mote_model *m = model_on("cpu", temp_dir, MOTE_WEIGHTS_ONLY), *mixture = model_on("cpu", original, MOTE_WEIGHTS_ONLY);
    if (m && mixture && CHECK(m->has_mtp && m->c.layers == mixture->c.layers, "%s: layers", fixture)) {
        for (int i = 0; i < m->c.layers; i++) check_dense_layer(fixture, i, &m->layers[i], &mixture->layers[i]);
        check_dense_layer(fixture, m->c.layers, &m->mtp.layer, &mixture->mtp.layer);
        for (int i = 0; i < m->report.info.module_count; i++)
            if (!strcmp(m->report.info.modules[i].name, "mlp"))
                CHECK(!strcmp(m->report.info.modules[i].dtype, dtype), "%s: an FFN of %s", fixture, m->report.info.modules[i].dtype);
        check_dense_logits(fixture, m, 1e-5);
    }
    mote_close(m);
    mote_close(mixture);
}

// One change to a dense checkpoint, and what opening it says.
static void test_dense_wrong(void) {
    static const char dense[] = "nvfp4-fp8-tensor", size[] = "'intermediate_size': 32",
                      up[] = "model.language_model.layers.1.mlp.up_proj", gone[] = "model.language_model.layers.1.mlp.up_proj.weight_scale_2";
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"no FFN", dense, REPLACE, CONFIG, size, "'other_size': 32", "", BAD, SAME, {CONFIG, "intermediate_size is missing"}},
        {"an FFN of 0", dense, REPLACE, CONFIG, size, "'intermediate_size': 0", "", BAD, SAME, {CONFIG, "intermediate_size"}},
        {"an FFN of -32", dense, REPLACE, CONFIG, size, "'intermediate_size': -32", "", BAD, SAME, {CONFIG, "intermediate_size"}},
        {"an FFN of 2^32", dense, REPLACE, CONFIG, size, "'intermediate_size': 4294967296", "", BAD, SAME, {CONFIG, "intermediate_size"}},
        {"a list for an FFN", dense, REPLACE, CONFIG, size, "'intermediate_size': [32]", "", BAD, SAME, {CONFIG, "intermediate_size"}},
        {"another FFN", dense, REPLACE, CONFIG, size, "'intermediate_size': 48", "", BAD, SAME, {F, "layers.0.mlp.gate_proj"}},
        {"another gate", dense, REPLACE, CONFIG, "'hidden_act': 'silu'", "'hidden_act': 'silu', 'output_gate_type': 'sigmoid'", "", NOT,
         SAME, {CONFIG, "output_gate_type is", "sigmoid"}},
        {"experts, too", dense, ADD, F, "model.language_model.layers.0.mlp.gate.weight", "BF16", "4,64", BAD, SAME,
         {F, "layers.0.mlp.gate.weight", "not part of the model"}},
        {"a scale is missing", dense, DROP, F, gone, "", "", BAD, SAME, {gone, "missing"}},
        {"a scale of another shape", dense, RETYPE, F, gone, "F32", "2", BAD, SAME, {F, up, "shape"}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!temp_dense(cases[i].fixture)) return;
        apply_edit(&cases[i]);
        check_open(cases[i].title, MOTE_WEIGHTS_ONLY, cases[i].code, cases[i].needles);
        check_plan(cases[i].title, cases[i].code, cases[i].needles);
    }
}

static void test_dense_stored(void) {
    test_dense("bf16-as-3.6", "BF16");
    test_dense("fp8-f32-scales", "BF16+FP8 128x128");
    test_dense("nvfp4-fp8-tensor", "NVFP4");
    test_dense("ct-nvfp4-fp8-int4", "INT4 g32");
    test_dense("gptq-awq-int4", "GPTQ INT4");
    test_dense_wrong();
}
