// checkpoint_nemotron.c: Nemotron 3 Nano as NVIDIA's ModelOpt stores it, NVFP4, FP8 and BF16 in one folder, made of the fixture's tensors with sizes that
// have whole groups of 16. Part of test_checkpoint.

#define NEMOTRON "families/nemotron-h"
#define NEMOTRON_E "backbone.layers.4.mixer."

// The fixture's sizes and those of the folder, each of which only one thing has: hidden, experts, the shared one, the dense FFN and inner sizes,
// channels, rows of in_proj.
static const int nemotron_sizes[][2] = {{28, 64}, {12, 32}, {20, 48}, {24, 80}, {32, 64}, {16, 32}, {80, 128}, {116, 196}};

static int nemotron_size(uint64_t of) {
    for (size_t i = 0; i < COUNT(nemotron_sizes); i++)
        if (of == (uint64_t)nemotron_sizes[i][0]) return nemotron_sizes[i][1];
    return (int)of;
}

// The folder in BF16; its tensors.
static parts *nemotron_plain(void) {
    static const char *const keys[][2] = {
        {"\"hidden_size\": 28", "\"hidden_size\": 64"}, {"\"head_dim\": 8,", "\"head_dim\": 16,"}, {"\"intermediate_size\": 24", "\"intermediate_size\": 80"},
        {"\"mamba_head_dim\": 8", "\"mamba_head_dim\": 16"}, {"\"ssm_state_size\": 12", "\"ssm_state_size\": 16"},
        {"\"moe_intermediate_size\": 12", "\"moe_intermediate_size\": 32"},
        {"\"moe_shared_expert_intermediate_size\": 20", "\"moe_shared_expert_intermediate_size\": 48"}};
    if (!temp_fixture(NEMOTRON)) exit(1);
    for (size_t i = 0; i < COUNT(keys); i++) CHECK(temp_replace(CONFIG, keys[i][0], keys[i][1]), "no %s", keys[i][0]);
    parts *all = parts_read(F);
    for (int i = 0; i < all->n; i++) {
        part *t = &all->list[i];
        char shape[64] = "", type[16];
        for (int d = 0; d < t->dims; d++) snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d", d ? "," : "", nemotron_size(t->shape[d]));
        snprintf(type, sizeof type, "%s", t->type);
        part_set(t, type, shape);
        for (size_t b = 0; b < t->size; b++) {              // from 1/32 to 1/8; of matrices of both signs
            const int step = !strcmp(type, "F32") ? 4 : 2, high = b % (size_t)step == (size_t)step - 1;
            t->data[b] = (char)(high ? 0x3d | (t->dims > 1 && random_int(0, 1) ? 0x80 : 0) : random_int(0, 255));
        }
    }
    return all;
}

// Experts in NVFP4, Mamba's projections in FP8 with a scale each, attention, router and lm_head in BF16, scales of the KV cache.
static parts *nemotron_mixed(void) {
    static const float k_scale = 0.5f, v_scale = 0.25f;
    parts *all = nemotron_plain();
    CHECK(form_encode(all, "experts.", ENCODING_NVFP4) == 12, "other experts");
    CHECK(form_encode(all, ".in_proj.", ENCODING_FP8_TENSOR) + form_encode(all, ".out_proj.", ENCODING_FP8_TENSOR) == 4, "other projections of Mamba");
    memcpy(form_part(all, "F32", "", "backbone.layers.1.mixer.k_proj.k_scale")->data, &k_scale, sizeof k_scale);
    memcpy(form_part(all, "F32", "", "backbone.layers.1.mixer.v_proj.v_scale")->data, &v_scale, sizeof v_scale);
    return all;
}

// What ModelOpt writes of it into config.json. plain, quantised: more of its lists, or "".
static void nemotron_says(const char *plain, const char *quantised) {
    char text[2048];
    snprintf(text, sizeof text,
             "\"model_type\": \"nemotron_h\", \"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", "
             "\"kv_cache_scheme\": {\"dynamic\": false, \"num_bits\": 8, \"type\": \"float\"}, \"producer\": {\"name\": \"modelopt\", \"version\": \"0.39\"}, "
             "\"ignore\": [\"lm_head\", \"backbone.layers.1.mixer*\", \"backbone.layers.*.mixer.conv1d\", \"" NEMOTRON_E "gate\"%s], "
             "\"quantized_layers\": {\"backbone.layers.0.mixer.in_proj\": {\"quant_algo\": \"FP8\"}, \"" NEMOTRON_E "experts.0.up_proj\": "
             "{\"quant_algo\": \"NVFP4\", \"group_size\": 16}%s}}", plain, quantised);
    CHECK(temp_replace(CONFIG, "\"model_type\": \"nemotron_h\"", text), "no model_type");
}

static void test_nemotron_mixed(void) {
    // more that is said to be plain, to be quantised; what is said of it
    static const struct { const char *title, *plain, *quantised, *needles[3]; } cases[] = {
        {"as it is", "", "", {NULL}},
        {"an expert that is said to be plain", ", \"" NEMOTRON_E "experts.3*\"", "", {"2 matrices are not stored as config.json says", NEMOTRON_E "experts.3.up_proj is NVFP4"}},
        {"a router that is said to be quantised", "", ", \"" NEMOTRON_E "gate\": {\"quant_algo\": \"FP8\"}",
         {"1 matrices are not stored as config.json says", NEMOTRON_E "gate is BF16"}}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        parts *all = nemotron_mixed();
        nemotron_says(cases[i].plain, cases[i].quantised);
        parts_write(all, F);
        check_open(cases[i].title, MOTE_WEIGHTS_ONLY, OK, cases[i].needles);
        if (!i) check_form("Nemotron, mixed", "experts", "NVFP4"), check_form("Nemotron, mixed", "Mamba", "FP8");
        parts_free(all);
    }
}

// Nemotron's published forms: BF16, FP8 with a scale a matrix, NVFP4 of all that has groups of 16.
static void test_nemotron_forms(void) {
    static const enum encoding forms[] = {ENCODING_FP8_TENSOR, ENCODING_FP8_CHANNEL, ENCODING_NVFP4, ENCODING_NVFP4_CT};
    parts *plain = nemotron_plain();
    parts_write(plain, F);
    check_form("Nemotron in BF16", "experts", "BF16");
    parts_free(plain);
    for (size_t i = 0; i < COUNT(forms); i++) {
        parts *all = nemotron_plain();
        CHECK(form_encode(all, "_proj.", forms[i]) == 22, "%s: other matrices", tensor_encodings[forms[i]]->name);
        parts_write(all, F);
        check_form(tensor_encodings[forms[i]]->name, "experts", tensor_encodings[forms[i]]->name);
        parts_free(all);
    }
}

// Damage to it is named.
static void test_nemotron_mixed_damaged(void) {
    static const char up[] = NEMOTRON_E "experts.2.up_proj.weight_scale_2";
    static const struct { const char *drop, *type, *shape; const char *needles[3]; } cases[] = {
        {up, NULL, NULL, {NEMOTRON_E "experts.2.up_proj", "weight_scale_2"}},
        {NEMOTRON_E "experts.1.down_proj.weight_scale", "F8_E4M3", "64,1", {NEMOTRON_E "experts.1.down_proj.weight_scale", "[64, 2]"}},
        {"backbone.layers.0.mixer.in_proj.weight_scale", NULL, NULL, {"backbone.layers.0.mixer.in_proj", "weight_scale"}},
        {"backbone.layers.1.mixer.k_proj.k_scale", "F32", "2", {"k_proj.k_scale"}}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        parts *all = nemotron_mixed();
        int at = 0;
        while (at < all->n && strcmp(all->list[at].name, cases[i].drop)) at++;
        if (!CHECK(at < all->n, "no %s", cases[i].drop)) continue;
        part *t = &all->list[at];
        if (cases[i].type) part_set(t, cases[i].type, cases[i].shape);
        else free(t->data), *t = all->list[--all->n];
        parts_write(all, F);
        check_open(cases[i].drop, MOTE_WEIGHTS_ONLY, BAD, cases[i].needles);
        parts_free(all);
    }
}
