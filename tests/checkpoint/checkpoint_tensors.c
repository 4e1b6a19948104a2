// A part of test_checkpoint: folders whose tensors and shards were made wrong (config.json: test_config).

#define GATE "model.layers.0.mlp.gate.weight"
#define O_PROJ "model.layers.0.self_attn.o_proj."
#define EXPERT "model.layers.1.mlp.experts.0.gate_proj.weight"
#define HEAD_FROM "'lm_head.weight': 'outside.safetensors'"

static void test_tensors(void) {
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"missing", TIED, DROP, F, "model.layers.1.linear_attn.norm.weight", "", "", BAD, SAME,
         {"model.layers.1.linear_attn.norm.weight", "missing", "[20]"}},
        {"extra", TIED, ADD, F, "model.layers.0.extra.weight", "F32", "2,2", BAD, SAME,
         {"model.layers.0.extra.weight", F}},
        {"a layer too many", TIED, ADD, F, "model.layers.2.mlp.gate.weight", "F32", "3,28", BAD, SAME,
         {"layers.2.mlp.gate", F}},
        {"line feed in a name", TIED, ADD, F, "a\\u000ab", "F32", "2", BAD, SAME, {"a b", F}},
        {"long name", TIED, ADD, F,
         "\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9", "F32", "2", BAD,
         SAME, {F}},
        {"rows", TIED, RETYPE, F, GATE, "F32", "4,28", BAD, SAME, {F, GATE, "[4, 28]"}},
        {"rows expected", TIED, RETYPE, F, GATE, "F32", "4,28", BAD, SAME, {"[3, 28]"}},
        {"transposed", TIED, RETYPE, F, GATE, "F32", "28,3", BAD, SAME, {F, GATE, "[28, 3]"}},
        {"flat", TIED, RETYPE, F, GATE, "F32", "84", BAD, SAME, {F, GATE, "[84]"}},
        {"scalar", TIED, RETYPE, F, GATE, "F32", "", BAD, SAME, {F, GATE, "[]"}},
        {"three dimensions", TIED, RETYPE, F, GATE, "F32", "3,28,1", BAD, SAME, {F, GATE, "[3, 28, 1]"}},
        {"seven dimensions", TIED, RETYPE, F, GATE, "F32", "3,28,1,1,1,1,1", BAD, SAME, {F, GATE,
         "[3, 28, 1, 1, 1, ...]"}},
        {"empty", TIED, RETYPE, F, GATE, "F32", "0,28", BAD, SAME, {F, GATE, "[0, 28]"}},
        {"vector too short", TIED, RETYPE, F, "model.norm.weight", "F32", "27", BAD, SAME, {F, "model.norm.weight",
         "[28] in F32, F16 or BF16, found [27] in F32; shapes follow from config.json"}},
        {"conv1d in two dimensions", TIED, RETYPE, F, "model.layers.1.linear_attn.conv1d.weight", "F32", "88,4", BAD,
         SAME, {F, "conv1d", "[88, 1, 4]"}},
        {"I32", TIED, RETYPE, F, GATE, "I32", "3,28", BAD, SAME, {F, GATE, "I32"}},
        {"F64", TIED, RETYPE, F, GATE, "F64", "3,28", BAD, SAME, {F, GATE, "F64"}},
        {"U8", TIED, RETYPE, F, GATE, "U8", "3,28", BAD, SAME, {F, GATE, "U8"}},
        {"F8_E5M2", TIED, RETYPE, F, GATE, "F8_E5M2", "3,28", NOT, SAME, {F, GATE, "F8_E5M2"}},
        {"FP8 vector", TIED, RETYPE, F, "model.norm.weight", "F8_E4M3", "28", NOT, SAME, {F, "model.norm.weight",
         "F8_E4M3"}},
        {"FP8 without a scale", TIED, RETYPE, F, GATE, "F8_E4M3", "3,28", BAD, SAME, {GATE "_scale_inv", "missing",
         "[1, 1]"}},
        {"another float type", TIED, RETYPE, F, GATE, "BF16", "3,28", OK, SAME, {NULL}},
        {"qweight", TIED, RENAME, F, O_PROJ "weight", O_PROJ "qweight", "", BAD, SAME, {O_PROJ "qweight",
         "I32", "[28, 32] in F32"}},
        {"weight_packed", TIED, RENAME, F, O_PROJ "weight", O_PROJ "weight_packed", "", BAD, SAME,
         {O_PROJ "weight_packed", "U8 or I32"}},
        {"a scale beside BF16", TIED, ADD, F, GATE "_scale_inv", "F32", "1,1", BAD, SAME, {F, GATE "_scale_inv"}},
        {"tied with another lm_head", TIED, ADD, F, "lm_head.weight", "F32", "64,28", OK, SAME,
         {"config.json: tie_word_embeddings is true, but tensor lm_head.weight is another than the embedding's: it is used"}},
        {"tied with an lm_head of another type", TIED, ADD, F, "lm_head.weight", "BF16", "64,28", OK, SAME, {"lm_head.weight is another"}},
        {"tied with an lm_head of another shape", TIED, ADD, F, "lm_head.weight", "F32", "64,4", BAD, SAME, {F, "lm_head.weight", "[64, 28]"}},
        {"tied with a head's bias", TIED, ADD, F, "lm_head.bias", "F32", "64", BAD, SAME, {"lm_head.weight is missing"}},
        {"vision", TIED, ADD, F, "model.visual.blocks.0.attn.qkv.weight", "F32", "2,2", OK, SAME, {"vision",
         "ignored"}},
        {"no mtp.fc", TIED, DROP, F, "mtp.fc.weight", "", "", OK, SAME, {"MTP", "ignored"}},
        {"MTP in part", TIED, DROP, F, "mtp.norm.weight", "", "", OK, SAME, {"MTP layer left out", "mtp.norm.weight", "missing"}},
        {"scale missing", FP8, DROP, F, EXPERT "_scale_inv", "", "", BAD, SAME, {EXPERT "_scale_inv", "missing"}},
        {"scale of other blocks", FP8, RETYPE, F, EXPERT "_scale_inv", "F32", "4,4", BAD, SAME, {F,
         EXPERT "_scale_inv", "[4, 4]"}},
        {"scale for each row", FP8, RETYPE, F, EXPERT "_scale_inv", "F32", "1", BAD, SAME, {F, EXPERT "_scale_inv",
         "[1]"}},
        {"scale in U8", FP8, RETYPE, F, EXPERT "_scale_inv", "U8", "2,1", NOT, SAME, {F, EXPERT "_scale_inv", "U8"}},
        {"NaN scale", FP8, POKE, F, EXPERT "_scale_inv", "\0\0\xC0\x7F", "4", BAD, FINE, {F, EXPERT "_scale_inv",
         "finite"}},
        {"Inf scale", FP8, POKE, F, EXPERT "_scale_inv", "\0\0\x80\x7F", "4", BAD, FINE, {F, EXPERT "_scale_inv",
         "finite"}},
        {"huge scale", FP8, POKE, F, EXPERT "_scale_inv", "\0\0\0\x43", "4", BAD, FINE,
         {F, EXPERT "_scale_inv", "128"}},
        {"-Inf scale", FP8, POKE, F, EXPERT "_scale_inv", "\0\0\x80\xFF", "4", BAD, FINE, {F, EXPERT "_scale_inv",
         "finite"}},
        {"NaN code 7F", FP8, POKE, F, EXPERT, "\0\x7F", "2", BAD, FINE, {F, EXPERT, "NaN"}},
        {"NaN code FF", FP8, POKE, F, EXPERT, "\xFF", "1", BAD, FINE, {F, EXPERT, "NaN"}},
        {"largest codes", FP8, POKE, F, EXPERT, "\x7E\xFE", "2", OK, SAME, {NULL}},
        {"NaN BF16 scale", SHARDS, POKE, "mtp.safetensors", "mtp.layers.0.self_attn.k_proj.weight_scale_inv",
         "\xC0\x7F", "2", BAD, FINE, {"mtp.safetensors", "k_proj.weight_scale_inv", "finite"}},
    };
    check_folders(cases, COUNT(cases));
}

// The same for quantised layouts: a tensor missing, of another shape or type, or with numbers that are not allowed.
#define NVFP4 "nvfp4-fp8-tensor"
#define MIXED "ct-nvfp4-fp8-int4"
#define INT4 "gptq-awq-int4"
#define UP "model.language_model.layers.0.mlp.experts.0.up_proj."
#define UP_FLAT "model.layers.0.mlp.experts.0.up_proj."
#define SHARED_UP "model.layers.0.mlp.shared_expert.up_proj."
#define GPTQ_UP "model.layers.0.mlp.experts.0.up_proj."
#define AWQ_Z "model.layers.0.linear_attn.in_proj_z."
#define Q_PROJ "model.language_model.layers.1.self_attn.q_proj."
#define K_SCALE "model.language_model.layers.1.self_attn.k_proj.k_scale"

static void test_quantised(void) {
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"no weight_scale_2", NVFP4, DROP, F, UP "weight_scale_2", "", "", BAD, SAME, {UP "weight_scale_2", "missing", "[]"}},
        {"no weight_scale", NVFP4, DROP, F, UP "weight_scale", "", "", BAD, SAME, {UP "weight_scale is missing", "[48, 4]"}},
        {"no codes", NVFP4, DROP, F, UP "weight", "", "", BAD, SAME, {UP "weight is missing", "beside " UP "weight_scale"}},
        {"factor in BF16", NVFP4, RETYPE, F, UP "weight_scale_2", "BF16", "", BAD, SAME, {F, UP "weight_scale_2", "in BF16"}},
        {"factor of one", NVFP4, RETYPE, F, UP "weight_scale_2", "F32", "1", OK, SAME, {NULL}},
        {"factor for each row", NVFP4, RETYPE, F, UP "weight_scale_2", "F32", "48", BAD, SAME, {F, UP "weight_scale_2",
         "[48]"}},
        {"scales of 32", NVFP4, RETYPE, F, UP "weight_scale", "F8_E4M3", "48,2", BAD, SAME, {F, UP "weight_scale", "[48, 4]"}},
        {"scales in U8", NVFP4, RETYPE, F, UP "weight_scale", "U8", "48,4", NOT, SAME, {F, UP "weight_scale", "U8"}},
        {"codes of whole columns", NVFP4, RETYPE, F, UP "weight", "U8", "48,64", BAD, SAME, {F, UP "weight", "[48, 64]"}},
        {"NaN block scale", NVFP4, POKE, F, UP "weight_scale", "\x38\x7f", "2", BAD, FINE, {F, UP "weight_scale: scale 1",
         "NaN"}},
        {"-NaN block scale", NVFP4, POKE, F, UP "weight_scale", "\xff", "1", BAD, FINE, {F, UP "weight_scale: scale 0", "NaN"}},
        {"negative block scale", NVFP4, POKE, F, UP "weight_scale", "\xb8", "1", BAD, FINE, {F, UP "weight_scale", "-1"}},
        {"NaN factor", NVFP4, POKE, F, UP "weight_scale_2", "\0\0\xC0\x7F", "4", BAD, FINE, {F, UP "weight_scale_2", "nan"}},
        {"Inf factor", NVFP4, POKE, F, UP "weight_scale_2", "\0\0\x80\x7F", "4", BAD, FINE, {F, UP "weight_scale_2", "inf"}},
        {"negative factor", NVFP4, POKE, F, UP "weight_scale_2", "\0\0\x80\xBF", "4", BAD, FINE, {F, UP "weight_scale_2",
         "-1"}},
        {"any codes", NVFP4, POKE, F, UP "weight", "\x88\xff\x7f", "3", OK, SAME, {NULL}},
        {"two formats at once", NVFP4, ADD, F, UP "weight_scale_inv", "F32", "1,1", BAD, SAME, {F, UP "weight_scale_inv",
         "another format"}},
        {"two codes at once", NVFP4, ADD, F, UP "weight_packed", "U8", "48,32", BAD, SAME, {F, UP "weight_packed",
         "another format"}},
        {"another input_scale", NVFP4, ADD, F, UP "input_scale", "F32", "", OK, SAME, {NULL}},
        {"pre_quant_scale", NVFP4, ADD, F, UP "pre_quant_scale", "BF16", "64", BAD, SAME, {F, UP "pre_quant_scale"}},
        {"FP8 without a scale", NVFP4, DROP, F, Q_PROJ "weight_scale", "", "", BAD, SAME, {Q_PROJ "weight_scale", "missing"}},
        {"FP8 by thirds", NVFP4, RETYPE, F, Q_PROJ "weight_scale", "F32", "3,1", BAD, SAME, {F, Q_PROJ "weight_scale",
         "[3, 1]"}},
        {"FP8 by row", NVFP4, RETYPE, F, Q_PROJ "weight_scale", "F32", "128", OK, SAME, {NULL}},
        {"negative FP8 scale", NVFP4, POKE, F, Q_PROJ "weight_scale", "\0\0\x80\xBF", "4", BAD, FINE, {F, Q_PROJ "weight_scale",
         "-1"}},
        {"NaN FP8 scale", NVFP4, POKE, F, Q_PROJ "weight_scale", "\0\0\xC0\x7F", "4", BAD, FINE, {F, Q_PROJ "weight_scale",
         "finite"}},
        {"K scale of two", NVFP4, RETYPE, F, K_SCALE, "F32", "2", BAD, SAME, {F, K_SCALE, "[2]"}},
        {"K scale in BF16", NVFP4, RETYPE, F, K_SCALE, "BF16", "1", BAD, FINE, {F, K_SCALE, "positive"}},
        {"K scale of nothing", NVFP4, POKE, F, K_SCALE, "\0\0\0\0", "4", BAD, FINE, {F, K_SCALE, "positive"}},
        {"K scale by another name", NVFP4, RENAME, F, K_SCALE, "model.language_model.layers.1.self_attn.k_scale", "", OK, SAME,
         {NULL}},
        {"two K scales", NVFP4, ADD, F, "model.language_model.layers.1.self_attn.k_scale", "F32", "1", BAD, SAME, {F,
         "self_attn.k_scale"}},
        {"Q scale", NVFP4, ADD, F, "model.language_model.layers.1.self_attn.q_scale", "F32", "1", OK, SAME, {NULL}},
        {"no K scale", NVFP4, DROP, F, K_SCALE, "", "", OK, SAME, {NULL}},
        {"says plain", NVFP4, REPLACE, CONFIG, "'mtp*'", "'model.language_model.layers.0.mlp.*'", "", OK, SAME,
         {"config.json says", "12 matrices", "experts.0.gate_proj is NVFP4"}},
        {"no weight_global_scale", MIXED, DROP, F, UP_FLAT "weight_global_scale", "", "", BAD, SAME,
         {UP_FLAT "weight_global_scale", "missing"}},
        {"divided by zero", MIXED, POKE, F, UP_FLAT "weight_global_scale", "\0\0\0\0", "4", BAD, FINE,
         {F, UP_FLAT "weight_global_scale", "inf"}},
        {"no weight_shape", MIXED, DROP, F, SHARED_UP "weight_shape", "", "", BAD, SAME, {SHARED_UP "weight_shape", "missing"}},
        {"another weight_shape", MIXED, POKE, F, SHARED_UP "weight_shape", "\x3f", "1", NOT, FINE, {F, SHARED_UP "weight_shape",
         "[63, 64], expected [64, 64]"}},
        {"groups of 21", MIXED, RETYPE, F, SHARED_UP "weight_scale", "BF16", "64,3", NOT, SAME, {F, SHARED_UP "weight_scale",
         "groups of 32, 64, 128"}},
        {"groups of 16", MIXED, RETYPE, F, SHARED_UP "weight_scale", "BF16", "64,4", NOT, SAME, {F, SHARED_UP "weight_scale"}},
        {"no groups", MIXED, RETYPE, F, SHARED_UP "weight_scale", "BF16", "64,0", NOT, SAME, {F, SHARED_UP "weight_scale"}},
        {"zero points of one group", MIXED, RETYPE, F, SHARED_UP "weight_zero_point", "I32", "8,1", BAD, SAME,
         {F, SHARED_UP "weight_zero_point", "[8, 2]"}},
        {"symmetric", MIXED, DROP, F, SHARED_UP "weight_zero_point", "", "", OK, SAME, {NULL}},
        {"NaN INT4 scale", MIXED, POKE, F, SHARED_UP "weight_scale", "\xC0\x7F", "2", BAD, FINE, {F, SHARED_UP "weight_scale",
         "nan"}},
        {"negative INT4 scale", MIXED, POKE, F, SHARED_UP "weight_scale", "\0\xBC", "2", OK, SAME, {NULL}},
        {"no qzeros", INT4, DROP, F, GPTQ_UP "qzeros", "", "", BAD, SAME, {GPTQ_UP "qzeros", "missing"}},
        {"no scales", INT4, DROP, F, GPTQ_UP "scales", "", "", BAD, SAME, {GPTQ_UP "scales", "missing"}},
        {"no g_idx", INT4, DROP, F, GPTQ_UP "g_idx", "", "", OK, SAME, {NULL}},
        {"g_idx out of order", INT4, POKE, F, GPTQ_UP "g_idx", "\1", "1", NOT, FINE, {F, GPTQ_UP "g_idx", "desc_act"}},
        {"g_idx of a half", INT4, RETYPE, F, GPTQ_UP "g_idx", "I32", "64", BAD, SAME, {F, GPTQ_UP "g_idx", "[128]"}},
        {"8 bits", INT4, RETYPE, F, GPTQ_UP "qweight", "I32", "32,32", BAD, SAME, {F, GPTQ_UP "qweight", "[32, 32]"}},
        {"Inf F16 scale", INT4, POKE, F, GPTQ_UP "scales", "\0\x7C", "2", BAD, FINE, {F, GPTQ_UP "scales", "inf"}},
        {"codes beside", INT4, ADD, F, GPTQ_UP "weight", "BF16", "32,128", BAD, SAME, {F, "another format"}},
        {"AWQ zeros missing", INT4, DROP, F, AWQ_Z "qzeros", "", "", BAD, SAME, {AWQ_Z "qzeros", "missing"}},
        {"AWQ groups", INT4, RETYPE, F, AWQ_Z "scales", "F16", "5,64", BAD, SAME, {F, AWQ_Z "scales", "[4, 64]"}},
    };
    check_folders(cases, COUNT(cases));
}

#define OSS "families/gpt-oss-mxfp4"
#define OSS_BF16 "families/gpt-oss-bf16"
#define OSS_UP "model.layers.1.mlp.experts.gate_up_proj"
#define OSS_DOWN "model.layers.1.mlp.experts.down_proj"

// Stacks of MXFP4, and of BF16 that is stored transposed; vectors of gpt-oss; its keys of config.json.
static void test_gpt_oss(void) {
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"no scales", OSS, DROP, F, OSS_UP "_scales", "", "", BAD, SAME, {OSS_UP "_scales is missing", "[6, 64, 2]"}},
        {"no blocks", OSS, DROP, F, OSS_UP "_blocks", "", "", BAD, SAME, {OSS_UP "_blocks is missing"}},
        {"no experts", OSS_BF16, DROP, F, OSS_UP, "", "", BAD, SAME, {OSS_UP " is missing"}},
        {"an expert less", OSS, RETYPE, F, OSS_UP "_scales", "U8", "5,64,2", BAD, SAME, {F, OSS_UP "_scales", "[6, 64, 2]"}},
        {"blocks of 16 columns", OSS, RETYPE, F, OSS_UP "_blocks", "U8", "6,64,4,8", BAD, SAME, {F, OSS_UP "_blocks", "[6, 64, 2, 16]"}},
        {"blocks in rows", OSS, RETYPE, F, OSS_UP "_blocks", "U8", "6,64,32", BAD, SAME, {F, OSS_UP "_blocks", "[6, 64, 2, 16]"}},
        {"signed blocks", OSS, RETYPE, F, OSS_UP "_blocks", "I8", "6,64,2,16", NOT, SAME, {F, OSS_UP "_blocks", "U8"}},
        {"BF16 as [out][in]", OSS_BF16, RETYPE, F, OSS_DOWN, "BF16", "6,32,16", BAD, SAME, {F, OSS_DOWN, "[6, 16, 32]"}},
        {"NaN scale", OSS, POKE, F, OSS_UP "_scales", "\x7f\xff", "2", BAD, FINE, {F, OSS_UP "_scales: scale 1 is NaN", "2^125 at most"}},
        {"a scale beyond floats", OSS, POKE, F, OSS_DOWN "_scales", "\xfe", "1", BAD, FINE, {F, OSS_DOWN "_scales", "2^127"}},
        {"the smallest scale", OSS, POKE, F, OSS_DOWN "_scales", "\0", "1", OK, SAME, {NULL}},
        {"any codes", OSS, POKE, F, OSS_DOWN "_blocks", "\x88\xff\x7f", "3", OK, SAME, {NULL}},
        {"both", OSS, ADD, F, OSS_UP, "BF16", "6,64,64", BAD, SAME, {F, OSS_UP}},
        {"no bias of experts", OSS, DROP, F, OSS_UP "_bias", "", "", BAD, SAME, {OSS_UP "_bias is missing", "[6, 64]"}},
        {"a bias for all", OSS, RETYPE, F, OSS_UP "_bias", "BF16", "64", BAD, SAME, {F, OSS_UP "_bias", "[6, 64]"}},
        {"no bias of queries", OSS, DROP, F, "model.layers.0.self_attn.q_proj.bias", "", "", BAD, SAME, {"self_attn.q_proj.bias is missing", "[64]"}},
        {"no bias of the router", OSS, DROP, F, "model.layers.3.mlp.router.bias", "", "", BAD, SAME, {"mlp.router.bias is missing", "[6]"}},
        {"no sinks", OSS, DROP, F, "model.layers.2.self_attn.sinks", "", "", BAD, SAME, {"self_attn.sinks is missing", "[4]"}},
        {"a sink too many", OSS, RETYPE, F, "model.layers.2.self_attn.sinks", "BF16", "5", BAD, SAME, {F, "self_attn.sinks", "[4]"}},
        {"norms of queries", OSS, ADD, F, "model.layers.0.self_attn.q_norm.weight", "BF16", "16", BAD, SAME, {"q_norm.weight is not part of the model"}},
        {"no biases in config.json", OSS, REPLACE, CONFIG, "'attention_bias': true", "'attention_bias': false", "", BAD, SAME, {"proj.bias"}},
        {"other layers", OSS, REPLACE, CONFIG, "'sliding_attention'", "'chunked_attention'", "", NOT, SAME,
         {"layer_types[0] is not full_attention or sliding_attention"}},
        {"no window", OSS, REPLACE, CONFIG, "'sliding_window': 24", "'sliding_window': 0", "", BAD, SAME, {"sliding_window"}},
        {"experts_per_token", OSS, REPLACE, CONFIG, "'num_experts_per_tok': 3", "'num_experts_per_tok': 3, 'experts_per_token': 4", "", BAD, SAME,
         {"num_experts_per_tok is 3, but experts_per_token is 4"}},
        {"swiglu_limit a word", OSS, REPLACE, CONFIG, "'swiglu_limit': 7.0", "'swiglu_limit': 'x'", "", BAD, SAME, {"swiglu_limit"}},
        {"a part of heads rotated", OSS, REPLACE, CONFIG, "'swiglu_limit'", "'partial_rotary_factor': 0.5, 'swiglu_limit'", "", NOT, SAME,
         {"partial_rotary_factor"}},
        {"a key that is not known", OSS, REPLACE, CONFIG, "'swiglu_limit'", "'sink_scale': 2, 'swiglu_limit'", "", NOT, SAME, {"sink_scale"}},
        {"a norm of queries", OSS, REPLACE, CONFIG, "'swiglu_limit'", "'use_qk_norm': true, 'swiglu_limit'", "", NOT, SAME, {"use_qk_norm"}},
    };
    check_folders(cases, COUNT(cases));
}

// Without its object, or with null, the rope is that of the published models, which the fixture has.
static void test_gpt_oss_rope(void) {
    mote_options o;
    config_layer want;
    buf text = {0};
    memset(&o, 0, sizeof o);
    o.parts = MOTE_DESCRIPTION;
    for (int i = 0; i < 4 && temp_fixture(OSS); i++) {
        mote_model *m = NULL;
        mote_error err = {0};
        text.size = 0;
        if (!CHECK(!read_file(temp_dir, CONFIG, &text, &err), "%s", err.message)) break;
        char *at = strstr(text.data, "\"rope_scaling\""), *end = at ? strchr(at, '}') : NULL;
        if (!CHECK(end != NULL, "a rope")) break;
        buf out = {0};
        buf_add(&out, text.data, (size_t)(at - text.data));
        buf_text(&out, i == 0 ? "" : i == 1 ? "\"use_cache\": true" : i == 2 ? "\"rope_scaling\": null" : "\"rope_scaling\": {}");
        buf_text(&out, i ? end + 1 : at);
        temp_write(CONFIG, out.data, out.size);
        if (CHECK(!mote_open(temp_dir, &o, &m, &err), "%s", err.message)) {
            const config_layer *l = &m->c.layer[1];
            if (!i) want = *l;
            CHECK(!memcmp(&l->rope, &want.rope, sizeof l->rope) && l->mixer.of.attention.rope_scale == want.mixer.of.attention.rope_scale &&
                  l->rope.kind == ROPE_YARN, "form %d: kind %d, factor %g", i, (int)l->rope.kind, (double)l->rope.factor);
            mote_close(m);
        }
        buf_free(&out);
    }
    buf_free(&text);
}

static void test_shards(void) {
    static const char shard[] = "layers-0.safetensors", outside[] = "outside.safetensors";
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"cut by a byte", SHARDS, CUT, outside, "1", "", "", BAD, SAME, {outside, "truncated"}},
        {"cut in the header", SHARDS, CUT, outside, "40688", "", "", BAD, SAME, {outside, "truncated"}},
        {"cut in the length", SHARDS, CUT, outside, "40924", "", "", BAD, SAME, {outside}},
        {"empty shard", SHARDS, TEXT, outside, "", "", "", BAD, SAME, {outside}},
        {"shard missing", SHARDS, REMOVE, outside, "", "", "", MOTE_EIO, SAME, {outside}},
        {"no shard is there", TIED, REMOVE, F, "", "", "", MOTE_EIO, FINE, {F}},
        {"a parent folder", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': '../outside.safetensors'", "", BAD,
         SAME, {INDEX, "../outside.safetensors"}},
        {"an absolute name", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': '/etc/passwd'", "", BAD, SAME,
         {INDEX, "/etc/passwd"}},
        {"an empty name", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': ''", "", BAD, SAME, {INDEX}},
        {"NUL in a file name", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': 'a\\u0000b'", "", BAD, SAME,
         {INDEX}},
        {"NUL in a tensor's name", SHARDS, REPLACE, INDEX, HEAD_FROM, "'a\\u0000b': 'outside.safetensors'", "", BAD,
         SAME, {INDEX}},
        {"a number for a file", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': 1", "", BAD, SAME, {INDEX}},
        {"mapped to the wrong file", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': 'layers-0.safetensors'",
         "", BAD, SAME, {shard, "lm_head.weight", "missing"}},
        {"mapped and nowhere", SHARDS, REPLACE, INDEX, HEAD_FROM, HEAD_FROM ", 'ghost': 'mtp.safetensors'", "", BAD,
         SAME, {"mtp.safetensors", "ghost", "missing"}},
        {"not mapped", SHARDS, REPLACE, INDEX, HEAD_FROM ",", "", "", OK, SAME, {NULL}},
        {"in two files", SHARDS, ADD, shard, "lm_head.weight", "BF16", "1,1", OK, SAME, {NULL}},
        {"a file nobody lists", SHARDS, TEXT, "extra.safetensors", "garbage", "", "", OK, SAME, {NULL}},
        {"index cut", SHARDS, CUT, INDEX, "20", "", "", BAD, SAME, {INDEX, "JSON"}},
        {"index empty", SHARDS, TEXT, INDEX, "", "", "", BAD, SAME, {INDEX}},
        {"index a list", SHARDS, TEXT, INDEX, "[]", "", "", BAD, SAME, {INDEX}},
        {"index a link to nothing", TIED, LINK, INDEX, "", "", "", MOTE_EIO, SAME, {INDEX}},
        {"weights a link to nothing", TIED, LINK, F, "", "", "", MOTE_EIO, SAME, {F}},
        {"no weight_map", SHARDS, TEXT, INDEX, "{}", "", "", BAD, SAME, {INDEX, "weight_map"}},
        {"weight_map a list", SHARDS, TEXT, INDEX, "{'weight_map':[]}", "", "", BAD, SAME, {INDEX, "weight_map"}},
        {"mapped and nowhere, of the MTP layer", SHARDS, REPLACE, INDEX, HEAD_FROM, HEAD_FROM ", 'mtp.ghost': 'mtp.safetensors'",
         "", OK, SAME, {NULL}},
        {"mapped to a file that is not there, of the vision tower", SHARDS, REPLACE, INDEX, HEAD_FROM,
         HEAD_FROM ", 'model.visual.x': 'vision.safetensors'", "", OK, SAME, {"1 vision tensors ignored"}},
        {"an MTP tensor that the index lists", SHARDS, DROP, "mtp.safetensors", "mtp.norm.weight", "", "", OK, SAME,
         {"MTP layer left out", "tensor mtp.norm.weight is missing"}},
        {"the first MTP tensor", SHARDS, DROP, "mtp.safetensors", "mtp.fc.weight", "", "", OK, SAME, {"MTP tensors ignored"}},
        {"the last MTP tensor", SHARDS, DROP, "mtp.safetensors", "mtp.layers.0.mlp.shared_expert.down_proj.weight", "", "", OK,
         SAME, {"MTP layer left out", "tensor mtp.layers.0.mlp.shared_expert.down_proj.weight is missing"}},
        {"the MTP layer's shard", SHARDS, REMOVE, "mtp.safetensors", "", "", "", OK, SAME, {"MTP tensors ignored"}},
        {"an MTP tensor of another shape", SHARDS, RETYPE, "mtp.safetensors", "mtp.norm.weight", "BF16", "3", BAD, SAME,
         {"mtp.safetensors", "mtp.norm.weight", "shape"}},
        {"weight_map empty", SHARDS, TEXT, INDEX, "{'weight_map':{}}", "", "", BAD, SAME, {"missing"}},
    };
    check_folders(cases, COUNT(cases));
    const char *wrong_copy[3] = {shard, "lm_head.weight", "[1, 1]"};
    const char *vision[3] = {"vision tensors ignored"}, *none[3] = {NULL};
    temp_fixture(SHARDS);                                     // of two copies, the index decides: now for the bad one
    apply_edit(&cases[15]);
    temp_replace(INDEX, "lm_head.weight\": \"outside", "lm_head.weight\": \"layers-0");
    check_open("the map decides", MOTE_WEIGHTS_ONLY, BAD, wrong_copy);
    temp_fixture("bf16-as-3.5");
    check_open("vision tensors", MOTE_WEIGHTS_ONLY, OK, vision);
    temp_empty();
    check_open("an empty folder", MOTE_WEIGHTS_ONLY, MOTE_EIO, none);
    temp_fixture(TIED);
    unlink(temp_path(F));
    mkdir(temp_path(F), 0700);
    check_open("a folder for a shard", MOTE_WEIGHTS_ONLY, MOTE_EIO, none);
}

// The same logits as those of the fixture, and this many MTP layers.
static void check_logits(const char *title, const char *fixture, int mtp) {
    char dir[256];
    const int32_t ids[] = {1, 5, 9, 2, 30};
    snprintf(dir, sizeof dir, "tests/fixtures/%s", fixture);
    mote_model *want = model_of(dir, MOTE_WEIGHTS_ONLY), *got = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *a = session_of(want, .context = 64), *b = session_of(got, .context = 64);
    EXPECT(MOTE_OK, mote_feed(a, ids, COUNT(ids), &failure));
    EXPECT(MOTE_OK, mote_feed(b, ids, COUNT(ids), &failure));
    CHECK(same_logits(b, mote_logits(a), want->c.vocab), "%s: other logits", title);
    CHECK(mote_model_info(got)->mtp_layers == mtp, "%s: %d MTP layers", title, mote_model_info(got)->mtp_layers);
    for (int i = 0; i < 4; i++) {
        int32_t x, y;
        EXPECT(MOTE_OK, mote_step(a, NULL, &x, &failure));
        EXPECT(MOTE_OK, mote_step(b, NULL, &y, &failure));
        CHECK(x == y, "%s: token %d is %d, not %d", title, i, y, x);
    }
    mote_session_close(a);
    mote_session_close(b);
    mote_close(want);
    mote_close(got);
}

static void test_without_mtp(void) {
    static const wrong_folder lost = {.title = "", .fixture = SHARDS, .edit = DROP, .file = "mtp.safetensors",
                                      .a = "mtp.layers.0.self_attn.o_proj.weight", .b = "", .c = "", .code = OK};
    temp_fixture(SHARDS);
    check_logits("all there", SHARDS, 1);
    apply_edit(&lost);
    check_logits("an MTP tensor lost", SHARDS, 0);
    unlink(temp_path("mtp.safetensors"));
    check_logits("the MTP shard lost", SHARDS, 0);
}

// A head in a folder whose config.json ties it to the embedding: the same once more, or with one bit of its last number changed.
static void test_tied(void) {
    for (int other = 0; other < 2; other++) {
        const char *needles[3] = {"lm_head.weight", other ? "it is used" : "ignored: it is the embedding"};
        mote_model *m = NULL;
        mote_error err = {0};
        if (!temp_fixture(TIED)) return;
        parts *p = parts_read(F);
        int i = 0;
        while (strcmp(p->list[i].name, "model.embed_tokens.weight")) i++;
        part *head = &p->list[p->n++];
        snprintf(head->name, sizeof head->name, "lm_head.weight");
        part_set(head, "F32", "64,28");
        memcpy(head->data, p->list[i].data, 64 * 28 * 4);
        head->data[64 * 28 * 4 - 1] ^= (char)(other << 7);
        parts_write(p, F);
        parts_free(p);
        check_open("a tied head", MOTE_WEIGHTS_ONLY, OK, needles);
        check_plan("a tied head", OK, needles);
        EXPECT(MOTE_OK, mote_open(temp_dir, &(mote_options){.parts = MOTE_WEIGHTS_ONLY}, &m, &failure));
        CHECK(mote_model_info(m)->tied_embeddings == !other, "a tied head: %d", mote_model_info(m)->tied_embeddings);
        const uint64_t bound = m->fingerprint;
        mote_close(m);
        if (!other) check_logits("a tied head, the embedding", TIED, 1);
        if (!other) continue;
        temp_replace(CONFIG, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
        EXPECT(MOTE_OK, mote_open(temp_dir, &(mote_options){.parts = MOTE_WEIGHTS_ONLY}, &m, &err));
        CHECK(m && m->fingerprint == bound, "a tied head of its own is not that of a folder that says so");
        mote_close(m);
    }
}

// Names that begin in another way.
static void test_prefixes(void) {
    static const struct { const char *fixture, *from, *to, *head; int mtp; } cases[] = {
        {TIED, "model.", "model.language_model.model.", "", 1}, {TIED, "model.", "language_model.model.", "", 1},
        {TIED, "model.", "", "", 1}, {"f16-all-delta", "model.", "language_model.model.", "language_model.", 0},
        {"bf16-as-3.6", "model.language_model.", "model.", "", 1}, {FP8, "model.", "llm.", "llm.", 1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!temp_fixture(cases[i].fixture)) return;
        parts *p = parts_read(F);
        for (int k = 0; k < p->n; k++) {
            char name[sizeof p->list[k].name];
            const int head = !strncmp(p->list[k].name, "lm_head.", 8);
            if (!head && strncmp(p->list[k].name, cases[i].from, strlen(cases[i].from))) continue;
            snprintf(name, sizeof name, "%s%.100s", head ? cases[i].head : cases[i].to, p->list[k].name + (head ? 0 : strlen(cases[i].from)));
            memcpy(p->list[k].name, name, sizeof name);
        }
        parts_write(p, F);
        parts_free(p);
        check_logits(cases[i].to, cases[i].fixture, cases[i].mtp);
    }
}

static int cancel_at_once(void *user) {
    (void)user;
    return 1;
}

static void test_cancel(void) {
    mote_options o = {0};
    mote_model *m = NULL;
    mote_error err = {0};
    o.parts = MOTE_WEIGHTS_ONLY;
    o.callbacks.cancel = cancel_at_once;
    temp_fixture(TIED);
    int code = mote_open(temp_dir, &o, &m, &err);
    CHECK(code == MOTE_ECANCELLED && !m && err.code == code, "cancel: code %d: %s", code, err.message);
    CHECK(mote_open(temp_dir, &o, &m, NULL) == MOTE_ECANCELLED && !m, "cancel without an error to fill");
}
