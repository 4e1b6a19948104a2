// Tests of config.json: sizes and keys made wrong one at a time, what has one value in all its forms, published configurations.
// Usage: test_config [DATA], from the top of the repository; DATA is the unpacked data folder.
//
// Parts: config_latent.c, DeepSeek V3's attention; config_nemotron.c, Nemotron-H.

#include "inside.h"
#include "api.h"
#include "folders.h"


// The shapes of a model whose layers, and the MTP layer, are alike where they are of a kind; those of kinds that it has none of are zero.
static layer_shapes shapes_of(const config *c) {
    layer_shapes all;
    memset(&all, 0, sizeof all);
    for (int i = 0; i < 2 * (c->layers + 1); i++) {
        const sublayer_shape *s = i % 2 ? &c->layer[i / 2].ffn : &c->layer[i / 2].mixer;
        memcpy(largest_of(&all, s->kind), &s->of, 4 * (size_t)layer_fields[s->kind].count);
    }
    return all;
}

// The rope of the last layer with attention.
static rope_shape rope_of(const config *c) {
    rope_shape rope;
    memset(&rope, 0, sizeof rope);
    for (int i = 0; i <= c->layers; i++)
        if (c->layer[i].mixer.kind == LAYER_ATTENTION) rope = c->layer[i].rope;
    return rope;
}

// Sets "field": value in config.json, whatever the value was.
static int config_set(const char *field, const char *value) {
    char key[80], old[4096];
    buf text = {0};
    mote_error err;
    snprintf(key, sizeof key, "\"%s\": ", field);
    const char *at = read_file(temp_dir, CONFIG, &text, &err) ? NULL : strstr(text.data, key);
    if (at) snprintf(old, sizeof old, "%s%.*s", key, (int)strcspn(at + strlen(key), ",\n"), at + strlen(key));
    buf_free(&text);
    strncat(key, value, sizeof key - strlen(key) - 1);
    return CHECK(at && temp_replace(CONFIG, old, key), "config.json has no %s", field);
}

static void test_config_sizes(void) {
    static const char *const fields[] = {
        "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim",
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "num_experts",
        "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"};
    static const char *const values[] = {"-1", "0", "2.5", "4.0", "1e1", "\"4\"", "null", "true", "[4]", "4294967297",
                                         "99999999999999999999999", "18446744073709551615", "2147483648"};
    for (size_t i = 0; i < COUNT(fields); i++) {
        const char *needles[3] = {CONFIG, fields[i]}, *missing[3] = {CONFIG, fields[i], "missing"};
        char key[80], title[128];
        for (size_t v = 0; v < COUNT(values); v++) {
            snprintf(title, sizeof title, "%s = %s", fields[i], values[v]);
            if (!temp_fixture(TIED) || !config_set(fields[i], values[v])) return;
            check_open(title, MOTE_WEIGHTS_ONLY, BAD, needles);
            check_plan(title, BAD, needles);
        }
        snprintf(key, sizeof key, "\"%s\":", fields[i]);
        temp_fixture(TIED);
        temp_replace(CONFIG, key, "\"other\":");
        check_open(key, MOTE_WEIGHTS_ONLY, BAD, missing);
        check_plan(key, BAD, missing);
        temp_fixture(TIED);                                   // a size that is fine, but not that of the tensors
        config_set(fields[i], strcmp(fields[i], "num_experts_per_tok") ? "6" : "4");
        const char *none[3] = {NULL};
        if (strcmp(fields[i], "linear_num_key_heads")) check_open(fields[i], MOTE_WEIGHTS_ONLY, BAD, none);
    }
    const char *many[3] = {CONFIG, "num_hidden_layers times num_experts"};
    temp_fixture(TIED);                                       // no tensor says that there are so many, and they would be given memory
    config_set("num_hidden_layers", "4096");
    config_set("num_experts", "64");
    check_open("experts", MOTE_WEIGHTS_ONLY, NOT, many);
    check_plan("experts", NOT, many);
    for (int shared = 0; shared < 2; shared++) {              // rows of all experts: more than an int counts
        const char *field = shared ? "shared_expert_intermediate_size" : "moe_intermediate_size";
        const char *needles[3] = {CONFIG, "num_experts"};
        temp_fixture(TIED);
        config_set("num_experts", "16384");
        config_set(field, "1048576");
        check_open(field, MOTE_WEIGHTS_ONLY, NOT, needles);
        check_plan(field, NOT, needles);
    }
}

static void test_config(void) {
    static const char type[] = "'model_type': 'qwen3_5_moe_text'", rope[] = "'rope_type': 'default'",
                      last[] = "'dtype': 'float32'";
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"unknown model", TIED, REPLACE, CONFIG, type, "'model_type': 'no_such_model'", "", NOT, SAME,
         {"model_type \"no_such_model\" is not known, mote runs qwen3_5_moe, ", ", qwen3_next, llama, mistral, "}},
        {"a number for a model", TIED, REPLACE, CONFIG, type, "'model_type': 35", "", NOT, SAME, {"model_type"}},
        {"a list of models", TIED, REPLACE, CONFIG, type, "'model_type': [1,2,3]", "", NOT, SAME, {"model_type"}},
        {"no model_type", TIED, REPLACE, CONFIG, type, "'type': 1", "", BAD, SAME, {"model_type", "missing"}},
        {"text_config a string", TIED, REPLACE, CONFIG, last, "'text_config': 'x'", "", BAD, SAME, {"text_config"}},
        {"text_config empty", TIED, REPLACE, CONFIG, last, "'text_config': {}", "", BAD, SAME, {"missing"}},
        {"config a list", TIED, TEXT, CONFIG, "[]", "", "", BAD, SAME, {CONFIG}},
        {"config empty", TIED, TEXT, CONFIG, "", "", "", BAD, SAME, {CONFIG}},
        {"config cut", TIED, CUT, CONFIG, "4", "", "", BAD, SAME, {CONFIG, "JSON"}},
        {"config not there", TIED, REMOVE, CONFIG, "", "", "", MOTE_EIO, SAME, {CONFIG}},
        {"layer_types short", TIED, REPLACE, CONFIG, "'full_attention',", "", "", BAD, SAME, {"layer_types", "2"}},
        {"layer_types long", TIED, REPLACE, CONFIG, "'full_attention',", "'full_attention','full_attention',", "",
         BAD, SAME, {"layer_types", "2"}},
        {"layer_types a string", TIED, REPLACE, CONFIG, "'layer_types': [", "'layer_types': 'x', 'y': [", "", BAD,
         SAME, {"layer_types"}},
        {"sliding attention", TIED, REPLACE, CONFIG, "'full_attention'", "'sliding_attention'", "", NOT, SAME,
         {"layer_types[0]"}},
        {"a number in layer_types", TIED, REPLACE, CONFIG, "'full_attention'", "0", "", NOT, SAME, {"layer_types[0]"}},
        {"other layers", TIED, REPLACE, CONFIG, "'full_attention'", "'linear_attention'", "", BAD, SAME,
         {"model.layers.0.linear_attn", "missing"}},
        {"YaRN without its context", TIED, REPLACE, CONFIG, rope, "'rope_type': 'yarn', 'factor': 4.0", "", BAD, SAME,
         {"rope_parameters.original_max_position_embeddings is missing"}},
        {"YaRN without its factor", TIED, REPLACE, CONFIG, rope, "'rope_type': 'yarn', 'original_max_position_embeddings': 4.0", "",
         BAD, SAME, {"rope_parameters.factor is missing"}},
        {"YaRN upside down", TIED, REPLACE, CONFIG, rope, "'rope_type': 'yarn', 'factor': 4, 'beta_slow': 32, "
         "'original_max_position_embeddings': 64", "", BAD, SAME, {"rope_parameters.beta_slow must be below beta_fast"}},
        {"llama3 without a range", TIED, REPLACE, CONFIG, rope, "'rope_type': 'llama3', 'factor': 8, "
         "'original_max_position_embeddings': 64, 'low_freq_factor': 1", "", BAD, SAME, {"rope_parameters.high_freq_factor is missing"}},
        {"YaRN the old way", TIED, REPLACE, CONFIG, last, "'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0}", "",
         BAD, SAME, {"rope_parameters and rope_scaling are of different types"}},
        {"no rope_scaling", TIED, REPLACE, CONFIG, last, "'rope_scaling': null", "", OK, SAME, {NULL}},
        {"rope_theta 0", TIED, REPLACE, CONFIG, "'rope_theta': 10000.0", "'rope_theta': 0", "", BAD, SAME,
         {"rope_theta"}},
        {"rope_theta 1e999", TIED, REPLACE, CONFIG, "'rope_theta': 10000.0", "'rope_theta': 1e999", "", BAD, SAME,
         {"rope_theta"}},
        {"partial_rotary_factor 2", TIED, REPLACE, CONFIG, "'partial_rotary_factor': 1.0",
         "'partial_rotary_factor': 2", "", BAD, SAME, {"partial_rotary_factor"}},
        {"odd rotary size", TIED, REPLACE, CONFIG, "'partial_rotary_factor': 1.0", "'partial_rotary_factor': 0.4375",
         "", NOT, SAME, {"partial_rotary_factor", "7"}},
        {"eps a string", TIED, REPLACE, CONFIG, "'rms_norm_eps': 0.01", "'rms_norm_eps': '0.01'", "", BAD, SAME,
         {"rms_norm_eps"}},
        {"eps negative", TIED, REPLACE, CONFIG, "'rms_norm_eps': 0.01", "'rms_norm_eps': -1e-6", "", BAD, SAME,
         {"rms_norm_eps"}},
        {"gelu", TIED, REPLACE, CONFIG, "'silu'", "'gelu'", "", NOT, SAME, {"hidden_act", "gelu", "silu"}},
        {"attention_bias", TIED, REPLACE, CONFIG, "'attention_bias': false", "'attention_bias': true", "", NOT, SAME,
         {"attention_bias"}},
        {"no output gate", TIED, REPLACE, CONFIG, "'attn_output_gate': true", "'attn_output_gate': false", "", NOT,
         SAME, {"attn_output_gate"}},
        {"dense layers", TIED, REPLACE, CONFIG, last, "'mlp_only_layers': [0]", "", NOT, SAME, {"mlp_only_layers"}},
        {"sparse step", TIED, REPLACE, CONFIG, last, "'decoder_sparse_step': 2", "", NOT, SAME,
         {"decoder_sparse_step"}},
        {"raw top-k weights", TIED, REPLACE, CONFIG, last, "'norm_topk_prob': false", "", NOT, SAME,
         {"norm_topk_prob"}},
        {"AWQ", TIED, REPLACE, CONFIG, last, "'quantization_config': {'quant_method': 'awq'}", "", OK, SAME,
         {"config.json says", "awq"}},
        {"AWQ of another layout", TIED, REPLACE, CONFIG, last,
         "'quantization_config': {'quant_method': 'awq', 'version': 'gemv'}", "", NOT, SAME, {"version", "gemv", "gemm"}},
        {"GPTQ of another layout", TIED, REPLACE, CONFIG, last,
         "'quantization_config': {'quant_method': 'gptq', 'checkpoint_format': 'gptq_p'}", "", NOT, SAME,
         {"checkpoint_format", "gptq_p"}},
        {"NVFP4", TIED, REPLACE, CONFIG, last,
         "'quantization_config': {'quant_method': 'modelopt', 'quant_algo': 'NVFP4'}", "", OK, SAME, {"config.json says",
         "modelopt"}},
        {"E5M2", TIED, REPLACE, CONFIG, last, "'quantization_config': {'quant_method': 'fp8', 'fmt': 'e5m2'}", "",
         NOT, SAME, {"fmt", "e5m2"}},
        {"blocks of nothing", TIED, REPLACE, CONFIG, last,
         "'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [0, 128]}", "", NOT, SAME,
         {"weight_block_size"}},
        {"one block size", TIED, REPLACE, CONFIG, last,
         "'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [128]}", "", NOT, SAME,
         {"weight_block_size"}},
        {"rotated weights", TIED, REPLACE, CONFIG, last,
         "'quantization_config': {'quant_method': 'compressed-tensors', 'transform_config': {'config_groups': {'u': 1}}}", "", NOT, SAME,
         {"transform_config is an object", "does not transform"}},
        {"Hadamard matrices", TIED, REPLACE, CONFIG, last, "'quantization_config': {'quant_method': 'auto-round', 'hadamard_config': 'default'}", "", NOT,
         SAME, {"hadamard_config is default"}},
        {"weights that are not rotated", TIED, REPLACE, CONFIG, last,
         "'quantization_config': {'quant_method': 'gptq', 'transform_config': {}, 'rotation': null, 'hadamard_config': {}, 'rotation_config': false}", "", OK, SAME, {"config.json says"}},
        {"FP8 for other tensors", "families/gpt-oss-mxfp4", REPLACE, CONFIG, "'mxfp4'", "'fp8'", "", OK, SAME,
         {"matrices are not stored as config.json says", "experts", "is MXFP4"}},
        {"MXFP4 as it says", "families/gpt-oss-mxfp4", REPLACE, CONFIG, "'mxfp4'", "'mxfp4'", "", OK, SAME, {NULL}},
        {"an infinite number", TIED, REPLACE, CONFIG, last, "'initializer_range': Infinity, 'router_aux_loss_coef': NaN, 'max_length': -Infinity", "", OK,
         SAME, {NULL}},
        {"an infinite base", TIED, REPLACE, CONFIG, "'rope_theta': 10000.0", "'rope_theta': Infinity", "", BAD, SAME, {"rope_theta must be a number from"}},
        {"eps that is none", TIED, REPLACE, CONFIG, "'rms_norm_eps': 0.01", "'rms_norm_eps': NaN", "", BAD, SAME, {"rms_norm_eps must be a number"}},
        {"endless layers", TIED, REPLACE, CONFIG, "'num_hidden_layers': 2", "'num_hidden_layers': -Infinity", "", BAD, SAME, {"num_hidden_layers"}},
        {"NaN for silu", TIED, REPLACE, CONFIG, "'silu'", "NaN", "", NOT, SAME, {"hidden_act is NaN"}},
        {"nan", TIED, REPLACE, CONFIG, "'silu'", "nan", "", BAD, SAME, {"not valid JSON"}},
        {"Infinity with a tail", TIED, REPLACE, CONFIG, "'silu'", "Infinity1", "", BAD, SAME, {"not valid JSON"}},
        {"a key that is not known, infinite", TIED, REPLACE, CONFIG, last, "'new_scale': Infinity", "", NOT, SAME, {"new_scale is Infinity"}},
        {"qwen3_moe without a head's size", "families/qwen3-moe", REPLACE, CONFIG, "'head_dim': 24,", "", "", BAD, SAME,
         {"there is no head_dim, and hidden_size = 32 is no multiple of num_attention_heads = 6"}},
        {"qwen3_moe with the size that the others give", "families/qwen3-moe", REPLACE, CONFIG, "'head_dim': 24,", "'num_attention_heads': 4,", "", BAD, SAME,
         {"self_attn.q_proj.weight", "[32, 32]"}},
        {"other blocks than the scales'", FP8, REPLACE, CONFIG, "128", "64", "", BAD, SAME, {F, "_scale_inv", "shape"}},
        {"more experts chosen than there are", TIED, REPLACE, CONFIG, "'num_experts_per_tok': 1",
         "'num_experts_per_tok': 4", "", BAD, SAME, {"num_experts_per_tok", "4", "3"}},
        {"query heads", TIED, REPLACE, CONFIG, "'num_attention_heads': 2", "'num_attention_heads': 3", "", BAD, SAME,
         {"num_attention_heads", "num_key_value_heads"}},
        {"value heads", TIED, REPLACE, CONFIG, "'linear_num_value_heads': 2", "'linear_num_value_heads': 3", "", BAD,
         SAME, {"linear_num_value_heads", "linear_num_key_heads"}},
        {"a head that is not there", TIED, REPLACE, CONFIG, "'tie_word_embeddings': true",
         "'tie_word_embeddings': false", "", BAD, SAME, {"lm_head.weight", "missing", "[64, 28]"}},
    };
    check_folders(cases, COUNT(cases));
}

// What is checked for one value, given in another form that means the same, and what is near it and does not. The model is the
// same then, to the bit of a number.
static void test_config_forms(void) {
    static const char rope[] = "'rope_parameters': {\n  'rope_type': 'default',\n  'rope_theta': 10000.0,\n"
                               "  'partial_rotary_factor': 1.0\n },";
    static const struct { const char *from, *to; int code; const char *needles[3]; } cases[] = {
        {rope, "'rope_theta':10000.0,'partial_rotary_factor':1.0,'rope_scaling':{'rope_type':'default',"
               "'mrope_section':[11,11,10],'mrope_interleaved':true},", OK, {NULL}},
        {rope, "'rope_theta':10000,'partial_rotary_factor':1,'rope_scaling':{'type':'mrope','mrope_section':[11,11,10]},", OK, {NULL}},
        {rope, "'rope_theta':10000,'partial_rotary_factor':1,'rope_scaling':{'type':'mrope','mrope_section':[11,11]},", BAD,
         {"config.json: rope_scaling.mrope_section must be three whole numbers"}},
        {rope, "'rope_theta':10000,'partial_rotary_factor':1,'rope_scaling':{'type':'mrope','mrope_section':[11,-11,10]},", BAD,
         {"mrope_section must be three whole numbers"}},
        {rope, "'rope_theta':10000,'partial_rotary_factor':1,'rope_scaling':{'type':'mrope','mrope_section':[11,[11],10]},", BAD,
         {"mrope_section must be three whole numbers"}},
        {rope, "'rope_theta':10000,'partial_rotary_factor':1,'rope_scaling':{'type':'mrope','mrope_section':null},", OK, {NULL}},
        {rope, "'rope_scaling':{'rope_type':'default','rope_theta':1e4,'partial_rotary_factor':1},", OK, {NULL}},
        {rope, "'rope_theta':10000.0,'partial_rotary_factor':1.0,'rope_parameters':null,'rope_scaling':{},", OK, {NULL}},
        {"'rope_type': 'default'", "'type': 'default'", OK, {NULL}},
        {"'rope_type': 'default'", "'rope_type': null", OK, {NULL}},
        {"'rope_type': 'default'", "'type': 'linear'", NOT, {"rope_parameters.type is linear, mote supports default, llama3, yarn or proportional only"}},
        {"'rope_type': 'default'", "'rope_type': {'a': 1}", NOT, {"rope_parameters.rope_type is an object", "yarn or proportional only"}},
        {"'rope_type': 'default'", "'rope_type': ['default']", NOT, {"rope_parameters.rope_type is a list", "yarn or proportional only"}},
        {"'rope_type': 'default'", "'rope_type': 'default', 'type': 'yarn'", OK, {NULL}},
        {"'head_dim'", "'rope_theta': 5e5, 'partial_rotary_factor': 0.5, 'head_dim'", OK, {NULL}},    // what stands within counts
        {rope, "'rope_theta':5e5,'partial_rotary_factor':0.5,'rope_scaling':{'rope_type':'default','rope_theta':1e4,'partial_rotary_factor':1},",
         OK, {NULL}},
        {"'head_dim'", "'rope_scaling': {'type': 'mrope', 'rope_theta': 1e4, 'partial_rotary_factor': 1}, 'head_dim'", OK, {NULL}},
        {"'head_dim'", "'rope_scaling': {}, 'head_dim'", OK, {NULL}},
        {"'head_dim'", "'rope_scaling': {'type': 'mrope', 'rope_theta': 5e5, 'partial_rotary_factor': 1}, 'head_dim'", BAD,
         {"config.json: rope_parameters and rope_scaling say different things"}},
        {"'head_dim'", "'rope_scaling': {'type': 'mrope', 'rope_theta': 1e4, 'partial_rotary_factor': 0.5}, 'head_dim'", BAD,
         {"rope_parameters and rope_scaling say different things"}},
        {"'head_dim'", "'rope_theta': 5e5, 'rope_scaling': {'type': 'mrope', 'partial_rotary_factor': 1}, 'head_dim'", BAD,
         {"rope_parameters and rope_scaling say different things"}},
        {"'rope_type': 'default'", "'factor': 2.0", NOT, {"rope_parameters.factor without rope_type: mote supports default, llama3, yarn or proportional"}},
        {"'rope_type': 'default'", "'rope_type': null, 'factor': 2.0", NOT, {"rope_parameters.factor without rope_type"}},
        {"'rope_type': 'default'", "'factor': null", OK, {NULL}},
        {"'rope_type': 'default'", "'full_attention': {'rope_type': 'default'}", NOT, {"rope_parameters.full_attention is an object"}},
        {rope, "'rope_theta':1e4,'partial_rotary_factor':1,'rope_scaling':{'factor':4},", NOT, {"rope_scaling.factor without rope_type"}},
        {rope, "'rope_theta':1e4,'rope_scaling':{'type':'yarn','factor':4},", BAD,
         {"rope_scaling.original_max_position_embeddings is missing"}},
        {"'head_dim'", "'rope_scaling': {'rope_type':'yarn'}, 'head_dim'", BAD, {"rope_parameters and rope_scaling"}},
        {"'head_dim'", "'rope_scaling': [1], 'head_dim'", NOT, {"rope_scaling is a list", "null only"}},
        {"'silu'", "'SiLU'", OK, {NULL}},
        {"'silu'", "'swish'", OK, {NULL}},
        {"'silu'", "'silu|swish'", NOT, {"hidden_act is silu|swish, mote supports silu only"}},
        {"'silu'", "'silu\\u0000'", NOT, {"hidden_act"}},
        {"'silu'", "''", NOT, {"hidden_act"}},
        {"'attention_bias': false", "'attention_bias': 0", OK, {NULL}},
        {"'attention_bias': false", "'attention_bias': 0.0, 'output_gate_type': 'SWISH'", OK, {NULL}},
        {"'attention_bias': false", "'attention_bias': 1", NOT, {"attention_bias is 1, mote supports false only"}},
        {"'attention_bias': false", "'attention_bias': 1e999", NOT, {"attention_bias is 1e999"}},
        {"'attn_output_gate': true", "'attn_output_gate': 1, 'norm_topk_prob': 1.0", OK, {NULL}},
        {"'attn_output_gate': true", "'attn_output_gate': 0", NOT, {"attn_output_gate is 0, mote supports true only"}},
        {"'head_dim'", "'decoder_sparse_step': 1.0, 'head_dim'", OK, {NULL}},
        {"'head_dim'", "'decoder_sparse_step': 10e-1, 'head_dim'", OK, {NULL}},
        {"'head_dim'", "'decoder_sparse_step': 1.5, 'head_dim'", NOT, {"decoder_sparse_step is 1.5, mote supports 1 only"}},
        {"'tie_word_embeddings': true", "'tie_word_embeddings': 1", OK, {NULL}},
        {"'tie_word_embeddings': true", "'tie_word_embeddings': 2", BAD, {"config.json: tie_word_embeddings must be true or false"}},
        {"'tie_word_embeddings': true", "'tie_word_embeddings': 'yes'", BAD, {"tie_word_embeddings must be true or false"}},
        {"'rope_type': 'default'", "'rope_type': 'yarn', 'factor': 4, 'original_max_position_embeddings': 64, 'truncate': 'no'", BAD,
         {"rope_parameters.truncate must be true or false"}},
        {"'head_dim'", "'quantization_config': {'fmt': 'E4M3'}, 'head_dim'", OK, {NULL}},
        {"'head_dim'", "'quantization_config': {'quant_method': 'AWQ', 'version': 'GEMM'}, 'head_dim'", OK, {"config.json says"}},
        {"'head_dim'", "'quantization_config': {'quant_method': 'AWQ', 'version': 'gemv'}, 'head_dim'", NOT, {"version is gemv"}},
    };
    config want, got;
    mote_error err = {0};
    if (!temp_fixture(TIED) || !CHECK(!config_read(&want, temp_dir, &err), "%s", err.message)) return;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char from[QUOTED], to[QUOTED];
        temp_fixture(TIED);
        if (!CHECK(temp_replace(CONFIG, quoted(cases[i].from, from), quoted(cases[i].to, to)), "no %s", from)) continue;
        check_open(cases[i].to, MOTE_WEIGHTS_ONLY, cases[i].code, cases[i].needles);
        check_plan(cases[i].to, cases[i].code, cases[i].needles);
        if (cases[i].code) continue;
        CHECK(!config_read(&got, temp_dir, &err), "%s", err.message);
        CHECK(config_fingerprint(&got) == config_fingerprint(&want), "%s: another model", cases[i].to);
        config_free(&got);
    }
    config_free(&want);
}

// ---- Rotation -----------------------------------------------------------------------------------------------------------

// Frequencies of scaled rotations, and YaRN's factor, as transformers computes them in double precision.
static void test_rope(void) {
    static const struct { const char *text; int d, context; double scale; struct { int i; double frequency; } want[6]; } cases[] = {
        {"'rope_theta':500000.0,'rope_scaling':{'rope_type':'llama3','factor':8.0,'low_freq_factor':1.0,'high_freq_factor':4.0,"
         "'original_max_position_embeddings':8192}", 128, 40960, 1,
         {{1, 0.8146172338565447}, {24, 0.007292664737217109}, {32, 0.0005248461609929547}, {40, 3.428102195952591e-05},
          {48, 6.647869871181235e-06}, {63, 3.068925988914511e-07}}},
        {"'rope_parameters':{'rope_theta':1e6,'rope_type':'yarn','factor':4.0,'original_max_position_embeddings':32768,'beta_fast':null}",
         128, 131072, 1.138629436111989,
         {{1, 0.8058421877614819}, {16, 0.03162277660168379}, {24, 0.005375321490790102}, {32, 0.0006029411764705882},
          {40, 4.445698525097307e-05}, {63, 3.102344401879299e-07}}},
        {"'rope_theta':150000,'rope_scaling':{'type':'yarn','factor':32.0,'original_max_position_embeddings':4096,'beta_fast':32.0,"
         "'beta_slow':1.0,'truncate':false}", 64, 131072, 1.3465735902799727,
         {{1, 0.6890443058881632}, {8, 0.050813274815461475}, {12, 0.006794959489732219}, {16, 0.00045648391922324086},
          {20, 1.818833668168956e-05}, {31, 3.0235114281192144e-07}}},
        {"'rope_theta':10000.0,'rope_scaling':{'rope_type':'yarn','factor':40,'original_max_position_embeddings':4096,'mscale':0.707,"
         "'mscale_all_dim':1.0}", 64, 163840, 0.9210423553163399,
         {{1, 0.7498942093324558}, {8, 0.1}, {12, 0.026879360111431223}, {16, 0.0055}, {20, 0.0007905694150420946},
          {31, 3.3338035804083097e-06}}},
        {"'rope_theta':10000.0,'rope_scaling':{'rope_type':'yarn','factor':40,'original_max_position_embeddings':4096,"
         "'attention_factor':1.5,'mscale':0.707,'mscale_all_dim':0}", 64, 163840, 1.5, {{16, 0.0055}}},
        {"'rope_theta':10000.0", 64, 40960, 1, {{1, 0.7498942093324558}, {31, 1.333521432163324e-04}}},
        {"'rope_theta':150000,'original_max_position_embeddings':4096,'rope_scaling':{'type':'yarn','factor':32.0,'truncate':false}",
         64, 131072, 1.3465735902799727, {{1, 0.6890443058881632}, {31, 3.0235114281192144e-07}}},
        {"'rope_parameters':{'rope_theta':1e6,'rope_type':'proportional','partial_rotary_factor':0.25}", 512, 40960, 1,
         {{1, 0.9474635256553754}, {63, 0.033376246942920386}, {64, 0}, {65, 0}, {255, 0}}},
        {"'rope_parameters':{'rope_theta':1e4,'rope_type':'proportional','partial_rotary_factor':0.35,'factor':4}", 20, 40960, 1,
         {{2, 0.039622329811527836}, {3, 0}, {9, 0}}}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[QUOTED], json[QUOTED];
        float frequencies[256];
        config c;
        mote_error err = {0};
        snprintf(text, sizeof text, "{'model_type':'llama','num_hidden_layers':1,'hidden_size':%d,'vocab_size':8,'num_attention_heads':2,"
                 "'num_key_value_heads':1,'intermediate_size':8,'max_position_embeddings':40960,%s}", 2 * cases[i].d, cases[i].text);
        temp_empty();
        temp_text(CONFIG, quoted(text, json));
        if (!CHECK(!config_read(&c, temp_dir, &err), "%s: %s", cases[i].text, err.message)) continue;
        const layer_shapes shapes = shapes_of(&c);
        const rope_shape rope = rope_of(&c);
        const attention_shape *a = &shapes.attention;
        CHECK(a->head_dim == cases[i].d && a->rotary_dim == cases[i].d && c.context_max == cases[i].context &&
              fabs((double)a->rope_scale - cases[i].scale) < 2e-7, "%s: %d positions, factor %g", cases[i].text, c.context_max,
              (double)a->rope_scale);
        rope_frequencies(&rope, a->rotary_dim, frequencies);
        for (int k = 0; k < 6 && cases[i].want[k].i; k++)
            CHECK(fabs((double)frequencies[cases[i].want[k].i] - cases[i].want[k].frequency) <= 2e-7 * cases[i].want[k].frequency, "%s: frequency %d is %g, not %g",
                  cases[i].text, cases[i].want[k].i, (double)frequencies[cases[i].want[k].i], cases[i].want[k].frequency);
        config_free(&c);
    }
}

// The sizes of small models of any family: those that it has, a key of which it has not would be refused.
static const char *sizes_of(const char *type) {
    static char text[QUOTED];
    const int mixtral = !strcmp(type, "mixtral"), experts = mixtral || strstr(type, "moe") || strstr(type, "next");
    const int hybrid = strstr(type, "next") || strstr(type, "3_5"), shared = hybrid && experts;
    snprintf(text, sizeof text, "\"num_hidden_layers\":1,\"hidden_size\":32,\"vocab_size\":8,\"num_attention_heads\":4,"
             "\"num_key_value_heads\":1,\"head_dim\":16,\"intermediate_size\":8%s%s%s%s%s",
             experts ? mixtral ? ",\"num_local_experts\":2" : ",\"num_experts\":2" : "", experts ? ",\"num_experts_per_tok\":1" : "",
             experts && !mixtral ? ",\"moe_intermediate_size\":8" : "", shared ? ",\"shared_expert_intermediate_size\":8" : "",
             hybrid ? ",\"linear_num_key_heads\":1,\"linear_num_value_heads\":1,\"linear_key_head_dim\":8,\"linear_value_head_dim\":8" : "");
    return text;
}

// A model of these sizes, of any family, with more keys of config.json.
static int read_model(const char *type, const char *keys, config *c, mote_error *err) {
    char text[2 * QUOTED];
    snprintf(text, sizeof text, "{\"model_type\":\"%s\",%s%s%s}", type, keys, *keys ? "," : "", sizes_of(type));
    temp_empty();
    temp_text(CONFIG, text);
    return config_read(c, temp_dir, err);
}

// Every layer has the window, if it is shorter than the context, also where a rope makes that longer; without the key a Mistral has one of 4,096
// tokens.
static void test_windows(void) {
    static const struct { const char *type, *window; int context, tokens; } cases[] = {
        {"mistral", "\"sliding_window\":null", 131072, 0}, {"mistral", "", 131072, 4096}, {"mistral", "\"sliding_window\":512", 131072, 512},
        {"mistral", "\"sliding_window\":1048576", 131072, 0}, {"mistral", "\"sliding_window\":131072", 131072, 0},
        {"mistral", "\"sliding_window\":131071", 131072, 131071}, {"mixtral", "", 131072, 0}, {"mixtral", "\"sliding_window\":4096", 131072, 4096},
        {"mistral", "\"sliding_window\":200000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":65536}", 262144,
         200000},
        {"llama", "\"sliding_window\":512", 2048, 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        config c;
        mote_error err = {0};
        if (!CHECK(!read_model(cases[i].type, cases[i].window, &c, &err), "%s: %s", cases[i].window, err.message)) continue;
        CHECK(c.context_max == cases[i].context, "%s, %s: a context of %d, expected %d", cases[i].type, cases[i].window, c.context_max, cases[i].context);
        for (int k = 0; k < c.layers; k++)
            CHECK(c.layer[k].mixer.of.attention.window == cases[i].tokens, "%s, %s: a window of %d", cases[i].type, cases[i].window,
                  c.layer[k].mixer.of.attention.window);
        config_free(&c);
    }
}

// What config.json leaves out is as transformers' configuration classes have it.
static void test_defaults(void) {
    static const struct { const char *type; float theta, part, eps; int context, raw_weights, taps; } cases[] = {
        {"llama", 1e4f, 1, 1e-6f, 2048, 0, 0}, {"mistral", 1e4f, 1, 1e-6f, 131072, 0, 0}, {"mixtral", 1e6f, 1, 1e-5f, 131072, 0, 0},
        {"qwen3", 1e4f, 1, 1e-6f, 32768, 0, 0}, {"qwen3_moe", 1e4f, 1, 1e-6f, 32768, 1, 0}, {"qwen3_next", 1e4f, 0.25f, 1e-6f, 32768, 0, 4},
        {"qwen3_5_text", 1e4f, 0.25f, 1e-6f, 32768, 0, 4}, {"qwen3_5_moe_text", 1e4f, 0.25f, 1e-6f, 32768, 0, 4}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        config c;
        mote_error err = {0};
        if (!CHECK(!read_model(cases[i].type, "\"bos_token_id\":1", &c, &err), "%s: %s", cases[i].type, err.message)) continue;
        const layer_shapes shapes = shapes_of(&c);
        const rope_shape rope = rope_of(&c);
        CHECK(rope.theta == cases[i].theta && shapes.attention.rotary_dim == (int)(16 * cases[i].part), "%s: base %g, %d of 16 dimensions rotate",
              cases[i].type, (double)rope.theta, shapes.attention.rotary_dim);
        CHECK(c.eps == cases[i].eps && shapes.attention.eps == cases[i].eps && c.context_max == cases[i].context && !c.tied, "%s: eps %g, context %d, tied %d",
              cases[i].type, (double)c.eps, c.context_max, c.tied);
        CHECK(shapes.moe.of_all == cases[i].raw_weights && shapes.deltanet.taps == cases[i].taps, "%s: raw weights %d, %d taps", cases[i].type,
              shapes.moe.of_all, shapes.deltanet.taps);
        config_free(&c);
    }
}

// Of both places either may tie the head; flat, there is one.
static void test_either_ties(void) {
    static const char *const values[] = {"", "\"tie_word_embeddings\":false,", "\"tie_word_embeddings\":true,"};
    for (int i = 0; i < 9; i++) {
        char text[2 * QUOTED];
        config c;
        mote_error err = {0};
        snprintf(text, sizeof text, "{\"model_type\":\"qwen3_5\",%s\"text_config\":{%s\"model_type\":\"qwen3_5_text\",%s}}", values[i / 3],
                 values[i % 3], sizes_of("qwen3_5"));
        temp_empty();
        temp_text(CONFIG, text);
        if (!CHECK(!config_read(&c, temp_dir, &err), "%s: %s", text, err.message)) continue;
        CHECK(c.tied == (i / 3 == 2 || i % 3 == 2), "top %s text %s: tied %d", values[i / 3], values[i % 3], c.tied);
        config_free(&c);
    }
}

// Keys that some models of these types have, which change what is computed: neutral, and not.
static void test_neutral(void) {
    static const struct { const char *key, *neutral, *other; } keys[] = {
        {"mlp_bias", "false", "true"}, {"use_sliding_window", "0", "1"}, {"embedding_multiplier", "1.0", "12"},
        {"residual_multiplier", "1", "0.22"}, {"logits_scaling", "1.0", "8.0"}, {"logit_scale", "1", "0.0625"},
        {"attn_logit_softcapping", "null", "50.0"}, {"final_logit_softcapping", "null", "30.0"}, {"swiglu_limit", "null", "7.0"},
        {"clip_qkv", "null", "8"}, {"no_rope_layers", "null", "[1, 0]"}, {"routed_scaling_factor", "1.0", "2.5"},
        {"scoring_func", "\"softmax\"", "\"sigmoid\""}, {"n_group", "1", "8"},
        {"attention_multiplier", "0.25", "0.0078125"}, {"query_pre_attn_scalar", "16", "256"},
        {"hidden_act", "\"silu\"", "\"gelu\""}, {"hidden_activation", "\"silu\"", "\"gelu_pytorch_tanh\""}, {"attention_bias", "false", "true"},
        {"scale_emb", "1.0", "12"}, {"scale_depth", "null", "1.4"}, {"dim_model_base", "null", "256"}, {"key_multiplier", "1.0", "0.5"},
        {"attention_in_multiplier", "1.0", "0.5"}, {"attention_out_multiplier", "1", "0.9"}, {"mlp_multipliers", "null", "[1, 0.5]"},
        {"lm_head_multiplier", "1.0", "0.03"}, {"attn_temperature_tuning", "false", "true"}, {"rotary_pct", "1.0", "0.25"},
        {"rope_interleave", "false", "true"}, {"rope_interleaved", "false", "true"}, {"rope_local_base_freq", "null", "10000.0"},
        {"alibi", "false", "true"}, {"position_embedding_type", "\"rope\"", "\"nope\""}, {"sliding_window_pattern", "null", "6"},
        {"attention_chunk_size", "null", "8192"}, {"is_causal", "true", "false"}, {"use_bidirectional_attention", "false", "true"},
        {"parallel_residual", "false", "true"}, {"use_parallel_residual", "false", "true"}, {"parallel_attn", "false", "true"},
        {"per_layer_config", "null", "[1, 2]"}, {"moe_layer_freq", "1", "2"}, {"first_k_dense_replace", "0", "3"},
        {"interleave_moe_layer_step", "1", "2"}, {"moe_layer_start_index", "0", "1"}, {"router_logit_softcapping", "null", "30.0"}};
    static const char *const models[] = {
        "llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe"};
    for (size_t i = 0; i < COUNT(keys) * COUNT(models) * 2; i++) {
        const char *key = keys[i / 2 / COUNT(models)].key, *model = models[i / 2 % COUNT(models)];
        const char *value = i % 2 ? keys[i / 2 / COUNT(models)].other : keys[i / 2 / COUNT(models)].neutral;
        char text[QUOTED], says_what[128];
        config c;
        mote_error err = {0};
        snprintf(text, sizeof text, "\"%s\":%s", key, value);
        const int code = read_model(model, text, &c, &err);
        snprintf(says_what, sizeof says_what, "/config.json: %s is %.*s", key, *value == '[' ? 6 : (int)strcspn(value + (*value == '"'), "\""),
                 *value == '[' ? "a list" : value + (*value == '"'));
        CHECK(code == (i % 2 ? MOTE_EUNSUPPORTED : MOTE_OK) && (!code || strstr(err.message, says_what)), "%s, %s %s: code %d: %s", model,
              key, value, code, err.message);
        if (!code) config_free(&c);
    }
}

// What is neutral in some families, and not in others.
static void test_neutral_by_family(void) {
    static const struct { const char *models, *keys, *refused; } cases[] = {
        {"llama mistral mixtral qwen3 qwen3_moe", "'partial_rotary_factor':1.0", NULL},
        {"llama mistral mixtral qwen3 qwen3_moe", "'partial_rotary_factor':0.5", "partial_rotary_factor is 0.5, mote supports 1 only"},
        {"llama mistral mixtral qwen3 qwen3_moe", "'rope_parameters':{'partial_rotary_factor':0.25}", "partial_rotary_factor is 0.25"},
        {"qwen3_next qwen3_5 qwen3_5_moe", "'partial_rotary_factor':0.5", NULL},
        {"llama mistral mixtral", "'use_qk_norm':false", NULL},
        {"llama mistral mixtral", "'use_qk_norm':true", "use_qk_norm is true"},
        {"qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe", "'use_qk_norm':true", NULL},
        {"qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe", "'use_qk_norm':false", "use_qk_norm is false"},
        {"llama mistral qwen3 qwen3_5", "'mlp_layer_types':['dense']", NULL},
        {"llama mistral qwen3 qwen3_5", "'mlp_layer_types':['sparse']", "mlp_layer_types[0] is not dense"},
        {"mixtral qwen3_moe qwen3_next qwen3_5_moe", "'mlp_layer_types':['sparse']", NULL},
        {"mixtral qwen3_moe qwen3_next qwen3_5_moe", "'mlp_layer_types':['dense']", "mlp_layer_types[0] is not sparse"},
        {"mixtral qwen3_moe qwen3_next qwen3_5_moe", "'mlp_only_layers':[]", NULL},
        {"mixtral qwen3_next qwen3_5_moe", "'mlp_only_layers':[0]", "mlp_only_layers is a list"},
        {"mixtral qwen3_next qwen3_5_moe", "'decoder_sparse_step':2", "decoder_sparse_step is 2, mote supports 1 only"},
        {"qwen3_moe", "'mlp_only_layers':[0],'decoder_sparse_step':2", NULL},
        {"mixtral qwen3_moe qwen3_next qwen3_5_moe", "'mlp_only_layers':null", NULL},
        {"mixtral qwen3_moe qwen3_next qwen3_5_moe", "'mlp_only_layers':3", "mlp_only_layers is 3"},
        {"mixtral qwen3_moe qwen3_next qwen3_5_moe", "'mlp_only_layers':{'0':1}", "mlp_only_layers is"},
        {"llama mixtral qwen3 qwen3_moe", "'layer_types':['full_attention']", NULL},
        {"llama mistral mixtral qwen3 qwen3_moe", "'layer_types':['linear_attention']", "layer_types[0] is not full_attention"},
        {"mistral mixtral", "'sliding_window':null,'layer_types':['full_attention']", NULL},
        {"mistral mixtral", "'sliding_window':null,'layer_types':['sliding_attention']", "layer_types[0] is sliding_attention, but there is no sliding_window"},
        {"mistral mixtral", "'sliding_window':512,'layer_types':['sliding_attention']", NULL},
        {"mistral mixtral", "'sliding_window':512,'layer_types':['full_attention']", "layer_types[0] is full_attention, but sliding_window is 512"},
        {"mistral mixtral", "'sliding_window':1048576,'layer_types':['full_attention']", NULL},
        {"mistral mixtral", "'sliding_window':1048576,'layer_types':['sliding_attention']", NULL},
        {"mistral", "'layer_types':['full_attention']", "layer_types[0] is full_attention, but sliding_window is 4096"},
        {"llama mistral mixtral qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe", "'layer_types':null,'mlp_layer_types':null", NULL},
        {"qwen3_next qwen3_5 qwen3_5_moe", "'layer_types':['conv']", "layer_types[0] is not linear_attention or full_attention"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char keys[QUOTED], model[32];
        for (const char *at = cases[i].models; *at; at += strcspn(at, " "), at += *at == ' ') {
            config c;
            mote_error err = {0};
            snprintf(model, sizeof model, "%.*s", (int)strcspn(at, " "), at);
            const int code = read_model(model, quoted(cases[i].keys, keys), &c, &err);
            CHECK(code == (cases[i].refused ? MOTE_EUNSUPPORTED : MOTE_OK) && (!code || strstr(err.message, cases[i].refused)), "%s, %s: code %d: %s",
                  model, cases[i].keys, code, err.message);
            if (!code) config_free(&c);
        }
    }
}

// Keys that nobody reads: what may say something is refused by name, wherever it stands; what says nothing is not, nor what is known to be of
// no effect.
static void test_unread(void) {
    static const struct { const char *keys, *refused; } cases[] = {
        {"'new_scale':0.5", "config.json: new_scale is 0.5, a key that is not known to mote"},
        {"'new_scale':1", "new_scale is 1, a key that is not known to mote"},
        {"'new_flag':true", "new_flag is true, a key"},
        {"'new_kind':'conv'", "new_kind is conv, a key"},
        {"'new_list':[1]", "new_list is a list, a key"},
        {"'new_object':{'a':null}", "new_object is an object, a key"},
        {"'new\\u005fscale':2", "new_scale is 2, a key"},
        {"'new_scale':null,'new_flag':false,'new_number':0,'new_text':'','new_list':[],'new_object':{},'more':0.0", NULL},
        {"'linear_scale':-1", "linear_scale is -1, a key"},
        {"'rope_parameters':{'rope_type':'default','rope_theta':1e4,'new_factor':2}", "rope_parameters.new_factor is 2, a key that is not known"},
        {"'rope_scaling':{'type':'yarn','factor':2,'original_max_position_embeddings':64,'attn_factor':0.5}", "rope_scaling.attn_factor is 0.5, mote supports 1 only"},
        {"'rope_scaling':{'type':'yarn','factor':2,'original_max_position_embeddings':64,'attn_factor':1,'finetuned':true,'low_freq_factor':1}", NULL},
        {"'rope_scaling':{'type':'default','mrope_section':[1,1,1],'mrope_interleaved':true}", NULL},
        {"'bos_token_id':1,'image_token_id':7,'unsloth_fixed':true,'unsloth_version':'2026.3.3','transformers.js_config':{'dtype':'q4'}", NULL},
        {"'attention_dropout':0.1,'resid_pdrop':0.1,'initializer_range':0.04,'use_cache':true,'torch_dtype':'bfloat16','dtype':'float32'", NULL},
        {"'_name_or_path':'a/b','_attn_implementation_autoset':true,'architectures':['X'],'id2label':{'0':'A'},'pretraining_tp':2", NULL},
        {"'max_window_layers':28,'router_aux_loss_coef':0.001,'repetition_penalty':1.1,'quantization':{'bits':4,'group_size':64}", NULL},
        {"'rope_theta':2,'rope_theta':1e4,'rope_scaling':{'type':'linear','factor':2},'rope_scaling':null", NULL},
        {"'new_scale':2,'new_scale':null", NULL},
        {"'new_scale':null,'new_scale':2", "new_scale is 2, a key"},
        {"'use_cache\\u0000':1", "a key that is not known to mote"},
        {"'eos_token':'</s>','pad_token':'<unk>','n_positions':4096,'loss_type':'ForCausalLM'", NULL},
        {"'activation':'swiglu'", NULL},
        {"'activation':'relu2'", "activation is relu2, mote supports swiglu only"},
        {"'hidden_act':0", "hidden_act is 0, mote supports silu only"}};
    static const char *const models[] = {"llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe"};
    for (size_t i = 0; i < COUNT(cases) * COUNT(models); i++) {
        char keys[QUOTED];
        config c;
        mote_error err = {0};
        const char *refused = cases[i / COUNT(models)].refused;
        const int code = read_model(models[i % COUNT(models)], quoted(cases[i / COUNT(models)].keys, keys), &c, &err);
        CHECK(code == (refused ? MOTE_EUNSUPPORTED : MOTE_OK) && (!code || strstr(err.message, refused)), "%s, %s: code %d: %s",
              models[i % COUNT(models)], cases[i / COUNT(models)].keys, code, err.message);
        if (!code) config_free(&c);
    }
}

// A vision tower's keys: each must be as mote has it, be there, or be one that says nothing of what is computed.
static void test_vision_config(void) {
    static const char whole[] = "\"depth\":2,\"hidden_size\":48,\"num_heads\":4,\"intermediate_size\":50,\"num_position_embeddings\":49,\"out_hidden_size\":32";
    static const struct { const char *more, *without, *refused; } cases[] = {
        {"", "", NULL},
        {",\"deepstack_visual_indexes\":[],\"hidden_act\":\"gelu_pytorch_tanh\",\"in_channels\":3,\"initializer_range\":0.02,\"model_type\":\"x\","
         "\"patch_size\":16,\"spatial_merge_size\":2,\"temporal_patch_size\":2,\"dtype\":\"bfloat16\"", "", NULL},
        {",\"rope_parameters\":{\"rope_type\":\"axial\",\"rope_theta\":10000}", "", NULL},
        {",\"rope_parameters\":{\"rope_type\":\"yarn\"}", "", "vision_config.rope_parameters.rope_type is yarn, mote supports axial only"},
        {",\"rope_parameters\":{\"rope_theta\":0}", "", "vision_config.rope_parameters.rope_theta must be a number from 1"},
        {",\"rope_parameters\":{\"rope_theta\":1,\"new\":2}", "", "vision_config.rope_parameters.new is 2"},
        {",\"rope_parameters\":7", "", "vision_config.rope_parameters is not an object"},
        {",\"deepstack_visual_indexes\":[8,16]", "", "vision_config.deepstack_visual_indexes is a list, mote supports [] only"},
        {",\"hidden_act\":\"silu\"", "", "vision_config.hidden_act is silu, mote supports gelu_pytorch_tanh only"},
        {",\"in_channels\":4", "", "vision_config.in_channels is 4, mote supports 3 only"},
        {",\"patch_size\":14", "", "vision_config.patch_size is 14, mote supports 16 only"},
        {",\"spatial_merge_size\":1", "", "vision_config.spatial_merge_size is 1, mote supports 2 only"},
        {",\"temporal_patch_size\":1", "", "vision_config.temporal_patch_size is 1, mote supports 2 only"},
        {",\"fullatt_block_indexes\":[7]", "", "vision_config.fullatt_block_indexes is a list, a key that is not known to mote"},
        {",\"image_size\":448", "", "vision_config.image_size is 448, a key that is not known to mote"},
        {",\"attention_bias\":true", "", "vision_config.attention_bias is true"},
        {"", "\"depth\":2,", "vision_config.depth is missing"},
        {"", "\"hidden_size\":48,", "vision_config.hidden_size is missing"},
        {"", "\"num_heads\":4,", "vision_config.num_heads is missing"},
        {"", "\"intermediate_size\":50,", "vision_config.intermediate_size is missing"},
        {"", "\"num_position_embeddings\":49,", "vision_config.num_position_embeddings is missing"},
        {"", ",\"out_hidden_size\":32", "vision_config.out_hidden_size is missing"},
        {",\"depth\":0", "\"depth\":2,", "vision_config.depth must be a whole number from 1"},
        {",\"num_heads\":5", "\"num_heads\":4,", "num_heads = 5, mote supports heads of a multiple of 4"},
        {",\"num_heads\":8", "\"num_heads\":4,", "num_heads = 8, mote supports heads of a multiple of 4"},
        {",\"num_position_embeddings\":50", "\"num_position_embeddings\":49,", "num_position_embeddings is 50, mote supports squares only"},
        {",\"out_hidden_size\":33", ",\"out_hidden_size\":32", "out_hidden_size is 33, but hidden_size is 32"},
        {",\"out_hidden_size\":\"32\"", ",\"out_hidden_size\":32", "vision_config.out_hidden_size must be a whole number"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[2 * QUOTED], tower[1024];
        const char *cut = strstr(whole, cases[i].without);
        const size_t n = strlen(cases[i].without);
        config c;
        mote_error err = {0};
        snprintf(tower, sizeof tower, "%.*s%s%s", (int)(cut - whole), whole, cut + n, cases[i].more);
        snprintf(text, sizeof text, "{\"vision_config\":{%s},\"image_token_id\":5,\"model_type\":\"qwen3_5\",\"text_config\":{\"model_type\":\"qwen3_5_text\",%s}}",
                 tower, sizes_of("qwen3_5"));
        temp_text(CONFIG, text);
        const int code = config_read(&c, temp_dir, &err);
        CHECK(cases[i].refused ? code && strstr(err.message, cases[i].refused) : !code, "%s: code %d: %s", tower, code, err.message);
        if (!code) CHECK(c.vision.depth == 2 && c.vision.side == 7 && c.image_token == 5 && c.vision_end == -1 && c.vision.theta == 10000, "%s: %d, %d", tower,
                         c.vision.side, c.image_token);
        if (!code) config_free(&c);
    }
}

// Beside a text_config, what is in there counts: what the top says again of it, others than mote's text model take. Anything else is looked at.
static void test_unread_beside(void) {
    static const struct { const char *top, *text, *refused; } cases[] = {
        {"\"hidden_size\":99,\"num_experts\":0,\"rope_theta\":123,", "\"rope_theta\":10000.0,", NULL},
        {"\"rope_theta\":123,", "", "rope_theta is 123, outside of text_config, where it belongs"},
        {"\"rope_theta\":null,\"sliding_window\":64,\"hidden_act\":\"silu\",", "", NULL},
        {"\"rope_parameters\":{\"rope_type\":\"yarn\"},", "", "rope_parameters is an object, outside of text_config, where it belongs"},
        {"\"mtp_num_hidden_layers\":1,", "", "mtp_num_hidden_layers is 1, outside of text_config"},
        {"\"vision_config\":{},\"image_token_id\":5,\"language_model_only\":true,", "", NULL},
        {"\"new_scale\":2,", "", "new_scale is 2"},
        {"", "\"new_scale\":2,", "new_scale is 2"},
        {"\"final_logit_softcapping\":30,", "", "final_logit_softcapping is 30"},
        {"", "\"rope_parameters\":{\"rope_theta\":1e4,\"new\":1},", "rope_parameters.new is 1"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[2 * QUOTED];
        config c;
        mote_error err = {0};
        snprintf(text, sizeof text, "{%s\"model_type\":\"qwen3_5\",\"text_config\":{%s\"model_type\":\"qwen3_5_text\",%s}}", cases[i].top, cases[i].text,
                 sizes_of("qwen3_5"));
        temp_empty();
        temp_text(CONFIG, text);
        const int code = config_read(&c, temp_dir, &err);
        CHECK(code == (cases[i].refused ? MOTE_EUNSUPPORTED : MOTE_OK) && (!code || strstr(err.message, cases[i].refused)), "%s: code %d: %s", text, code,
              err.message);
        CHECK(code || !strcmp(c.beside, i ? "" : "hidden_size"), "%s: beside text_config %s", text, c.beside);
        if (!code) config_free(&c);
    }
}

// The number of experts under the name that newer transformers give it; and of both names one number.
static void test_expert_names(void) {
    static const struct { const char *type, *keys; int code; const char *needle; } cases[] = {
        {"qwen3_moe", "'num_local_experts':2", OK, NULL}, {"qwen3_moe", "'num_local_experts':3", BAD, "num_local_experts is 3, but num_experts is 2"},
        {"qwen3_moe", "'num_experts':null,'num_local_experts':2,'num_experts':null", OK, NULL},
        {"mixtral", "'num_experts':2", OK, NULL}, {"mixtral", "'num_experts':4", BAD, "num_experts is 4, but num_local_experts is 2"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char keys[QUOTED];
        config c;
        mote_error err = {0};
        const int code = read_model(cases[i].type, quoted(cases[i].keys, keys), &c, &err);
        CHECK(code == cases[i].code && (!code || strstr(err.message, cases[i].needle)), "%s, %s: code %d: %s", cases[i].type, cases[i].keys, code,
              err.message);
        if (code) continue;
        CHECK(shapes_of(&c).moe.experts == 2, "%s: %d experts", cases[i].keys, shapes_of(&c).moe.experts);
        config_free(&c);
    }
}

// A config.json of a million keys is refused at once.
static void test_many_keys(void) {
    const size_t size = 16u << 20;
    char *text = (char *)malloc(size);
    size_t n = 0;
    config c;
    mote_error err = {0};
    if (!text) return;
    n = (size_t)snprintf(text, size, "{\"model_type\":\"llama\",%s,\"num_hidden_layers\":4096", sizes_of("llama"));
    for (int i = 0; n < size - 64; i++) n += (size_t)snprintf(text + n, size - n, ",\"a%d\":null", i);
    n += (size_t)snprintf(text + n, size - n, "}");
    temp_empty();
    temp_write(CONFIG, text, n);
    free(text);
    const int code = config_read(&c, temp_dir, &err);
    CHECK(code == MOTE_EFORMAT && strstr(err.message, "expected at most 1024"), "code %d: %s", code, err.message);
}

// Llama's first model says nothing of heads of keys and values: as many as of queries.
static void test_kv_heads(void) {
    static const struct { const char *keys; int code, kv_heads; } cases[] = {
        {"'model_type':'llama'", OK, 4}, {"'model_type':'llama','num_key_value_heads':null", OK, 4},
        {"'model_type':'llama','num_key_value_heads':2", OK, 2}, {"'model_type':'llama','num_key_value_heads':0", BAD, 0},
        {"'model_type':'llama','num_key_value_heads':3", BAD, 0}, {"'model_type':'mistral'", OK, 4},
        {"'model_type':'qwen3','head_dim':8", BAD, 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[QUOTED], json[QUOTED];
        config c;
        mote_error err = {0};
        snprintf(text, sizeof text, "{%s,'num_hidden_layers':1,'hidden_size':32,'vocab_size':8,'num_attention_heads':4,'intermediate_size':8}",
                 cases[i].keys);
        temp_empty();
        temp_text(CONFIG, quoted(text, json));
        const int code = config_read(&c, temp_dir, &err);
        CHECK(code == cases[i].code && strstr(code ? err.message : "num_key_value_heads", "num_key_value_heads"), "%s: code %d: %s",
              cases[i].keys, code, err.message);
        if (code) continue;
        const layer_shapes shapes = shapes_of(&c);
        CHECK(shapes.attention.kv_heads == cases[i].kv_heads, "%s: %d heads of keys", cases[i].keys, shapes.attention.kv_heads);
        config_free(&c);
    }
}

// What Llama and its kin must say, and must not.
static void test_plain_refused(void) {
    static const struct { const char *text; int code; const char *needles[3]; } cases[] = {
        {"'model_type':'llama','hidden_size':32", OK, {NULL}},
        {"'model_type':'llama','hidden_size':32,'head_dim':null", OK, {NULL}},
        {"'model_type':'llama','hidden_size':30", BAD, {"no head_dim", "hidden_size = 30", "num_attention_heads = 4"}},
        {"'model_type':'llama','hidden_size':30,'head_dim':16", OK, {NULL}},
        {"'model_type':'llama','hidden_size':32,'mlp_bias':true", NOT, {"mlp_bias is true"}},
        {"'model_type':'llama','hidden_size':32,'attention_bias':true", NOT, {"attention_bias is true"}},
        {"'model_type':'llama','hidden_size':32,'attention_multiplier':'x'", BAD, {"attention_multiplier must be a number"}},
        {"'model_type':'llama','hidden_size':32,'layer_types':['full_attention']", OK, {NULL}},
        {"'model_type':'llama','hidden_size':32,'layer_types':['sliding_attention']", NOT, {"layer_types[0] is not full_attention"}},
        {"'model_type':'llama','hidden_size':32,'layer_types':'sliding_attention'", BAD, {"layer_types must list num_hidden_layers = 1 layers"}},
        {"'model_type':'llama','hidden_size':32,'mlp_layer_types':7", BAD, {"mlp_layer_types must list num_hidden_layers = 1 layers"}},
        {"'model_type':'llama','hidden_size':32,'layer_types':[]", BAD, {"layer_types lists 0 layers, num_hidden_layers is 1"}},
        {"'model_type':'llama','hidden_size':32,'layer_types':['full_attention','full_attention']", BAD, {"layer_types lists 2 layers"}},
        {"'model_type':'llama','hidden_size':32,'max_position_embeddings':null,'rope_theta':null,'rope_parameters':{'rope_type':'default',"
         "'rope_theta':5000}", OK, {NULL}},
        {"'model_type':'llama','hidden_size':32,'rope_scaling':{'type':'default'},'rope_parameters':{'rope_type':'default','rope_theta':5000}",
         OK, {NULL}},
        {"'model_type':'llama','hidden_size':32,'rope_scaling':{'type':'default','rope_theta':6000},'rope_parameters':{'rope_type':'default',"
         "'rope_theta':5000}", BAD, {"rope_parameters and rope_scaling say different things"}},
        {"'model_type':'mistral','hidden_size':32,'sliding_window':null", OK, {NULL}},
        {"'model_type':'mistral','hidden_size':32", OK, {NULL}},
        {"'model_type':'mistral','hidden_size':32,'sliding_window':4096", OK, {NULL}},
        {"'model_type':'mistral','hidden_size':32,'sliding_window':0", BAD, {"sliding_window must be a whole number from 1"}},
        {"'model_type':'mistral','hidden_size':32,'sliding_window':'all'", BAD, {"sliding_window must be"}},
        {"'model_type':'mistral','hidden_size':32,'rope_parameters':{'rope_type':'yarn','factor':16,'llama_4_scaling_beta':0.1,"
         "'original_max_position_embeddings':16384}", NOT, {"rope_parameters.llama_4_scaling_beta is 0.1"}},
        {"'model_type':'llama','hidden_size':32,'original_max_position_embeddings':64,'rope_scaling':{'rope_type':'yarn','factor':4,"
         "'original_max_position_embeddings':128}", BAD, {"config.json: original_max_position_embeddings is 64, but rope_scaling.original_max_position_embeddings is 128"}},
        {"'model_type':'mixtral','hidden_size':32,'num_local_experts':8,'num_experts_per_tok':2", OK, {NULL}},
        {"'model_type':'mixtral','hidden_size':32,'num_local_experts':8,'num_experts_per_tok':9", BAD, {"num_experts_per_tok = 9", "8 experts"}},
        {"'model_type':'mixtral','hidden_size':32,'num_experts_per_tok':2", BAD, {"num_local_experts is missing"}},
        {"'model_type':'mixtral','hidden_size':32,'num_local_experts':8,'num_experts_per_tok':2,'sliding_window':-1", BAD,
         {"sliding_window"}},
        {"'model_type':'qwen3','hidden_size':32", BAD, {"head_dim is missing"}},
        {"'model_type':'qwen3_moe','hidden_size':32,'head_dim':8,'num_experts':2,'num_experts_per_tok':1,'moe_intermediate_size':8,"
         "'norm_topk_prob':'yes'", BAD, {"norm_topk_prob must be true or false"}},
        {"'model_type':'qwen3_moe','hidden_size':32,'head_dim':8,'num_experts':2,'num_experts_per_tok':1,'moe_intermediate_size':8,"
         "'norm_topk_prob':null", OK, {NULL}}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[QUOTED], json[QUOTED];
        config c;
        mote_error err = {0};
        snprintf(text, sizeof text, "{%s,'num_hidden_layers':1,'vocab_size':8,'num_attention_heads':4,'num_key_value_heads':1,"
                 "'intermediate_size':8}", cases[i].text);
        temp_empty();
        temp_text(CONFIG, quoted(text, json));
        const int code = config_read(&c, temp_dir, &err);
        CHECK(code == cases[i].code && says(code ? err.message : "", cases[i].needles), "%s: code %d: %s", cases[i].text, code, err.message);
        if (!code) config_free(&c);
    }
}

// ---- Configurations of published models -------------------------------------------------------------------------------

static int read_config(const char *dir, const char *name, config *c, mote_error *err) {
    temp_empty();
    buf text = {0};
    int code = read_file(dir, name, &text, err);
    if (!code) temp_write(CONFIG, text.data, text.size);
    buf_free(&text);
    return code ? code : config_read(c, temp_dir, err);
}

#include "config_latent.c"
#include "config_nemotron.c"

static void test_published_dense(const char *dir) {
    static const struct { const char *name; int layers, hidden, heads, kv_heads, head_dim, rotary_dim, size, tied, value_heads; } known[] = {
        {"Qwen--Qwen3.5-27B_config.json", 64, 5120, 24, 4, 256, 64, 17408, 0, 48},
        {"nvidia--Qwen3.6-27B-NVFP4_config.json", 64, 5120, 24, 4, 256, 64, 17408, 0, 48},
        {"Qwen--Qwen3-0.6B_config.json", 28, 1024, 16, 8, 128, 128, 3072, 1, 0},
        {"Qwen--Qwen3-8B_config.json", 36, 4096, 32, 8, 128, 128, 12288, 0, 0},
        {"Qwen--Qwen3-32B-FP8_config.json", 64, 5120, 64, 8, 128, 128, 25600, 0, 0}};
    for (size_t i = 0; i < COUNT(known); i++) {
        config c;
        mote_error err = {0};
        if (!CHECK(!read_config(dir, known[i].name, &c, &err), "%s: %s", known[i].name, err.message)) continue;
        const layer_shapes shapes = shapes_of(&c);
        const attention_shape *a = &shapes.attention;
        const deltanet_shape *d = &shapes.deltanet;
        CHECK(c.layers == known[i].layers && c.hidden == known[i].hidden && a->heads == known[i].heads &&
              a->kv_heads == known[i].kv_heads && a->head_dim == known[i].head_dim && a->rotary_dim == known[i].rotary_dim &&
              shapes.mlp.size == known[i].size && c.tied == known[i].tied && d->value_heads == known[i].value_heads &&
              a->gated == (d->value_heads > 0) && !shapes.moe.experts && c.mtp_layers == (d->value_heads > 0),
              "%s: sizes", known[i].name);
        config_free(&c);
    }
}

// Without norms of queries and keys, and a Qwen3-Next, whose layers are counted.
static void test_published_plain(const char *dir) {
    static const struct {
        const char *name;
        int layers, hidden, heads, kv_heads, head_dim, rotary_dim, experts, top_k, size;
        float theta;
    } known[] = {
        {"mistralai--Mixtral-8x7B-v0.1_config.json", 32, 4096, 32, 8, 128, 128, 8, 2, 14336, 1e6f},
        {"mistralai--Mixtral-8x22B-v0.1_config.json", 56, 6144, 48, 8, 128, 128, 8, 2, 16384, 1e6f},
        {"meta-llama--Meta-Llama-3.1-8B_config.json", 32, 4096, 32, 8, 128, 128, 0, 0, 14336, 5e5f},
        {"Qwen--Qwen3-Next-80B-A3B-Thinking_config.json", 48, 2048, 16, 2, 256, 64, 512, 10, 512, 1e7f}};
    for (size_t i = 0; i < COUNT(known); i++) {
        config c;
        mote_error err = {0};
        if (!CHECK(!read_config(dir, known[i].name, &c, &err), "%s: %s", known[i].name, err.message)) continue;
        const layer_shapes shapes = shapes_of(&c);
        const rope_shape rope = rope_of(&c);
        const attention_shape *a = &shapes.attention;
        const int next = shapes.deltanet.value_heads > 0, size = known[i].experts ? shapes.moe.expert_size : shapes.mlp.size;
        CHECK(c.layers == known[i].layers && c.hidden == known[i].hidden && a->heads == known[i].heads &&
              a->kv_heads == known[i].kv_heads && a->head_dim == known[i].head_dim && a->rotary_dim == known[i].rotary_dim && shapes.moe.experts == known[i].experts &&
              shapes.moe.top_k == known[i].top_k && size == known[i].size && rope.theta == known[i].theta && a->rope_scale == 1,
              "%s: sizes", known[i].name);
        CHECK(a->normed == next && a->gated == next && c.mtp_layers == next && next == (known[i].head_dim == 256) &&
              shapes.moe.shared_size == (next ? 512 : 0), "%s: parts", known[i].name);
        for (int l = 0; l < c.layers; l++)
            CHECK(c.layer[l].mixer.kind == (next && l % 4 != 3 ? LAYER_DELTANET : LAYER_ATTENTION), "%s: layer %d", known[i].name, l);
        config_free(&c);
    }
}

static void test_published_configs(void) {
    static const struct {
        const char *name;
        int layers, hidden, heads, value_heads, experts, top_k, expert_size;
    } known[] = {
        {"Qwen--Qwen3.5-35B-A3B_config.json", 40, 2048, 16, 32, 256, 8, 512},
        {"Qwen--Qwen3.5-122B-A10B_config.json", 48, 3072, 32, 64, 256, 8, 1024},
        {"Qwen--Qwen3.5-397B-A17B_config.json", 60, 4096, 32, 64, 512, 10, 1024},
        {"InferSim--qwen3.5-35B-A3B_config.json", 40, 2048, 16, 32, 256, 8, 512},
        {"InferSim--qwen3.5-122B-A10B_config.json", 48, 3072, 32, 64, 256, 8, 1024},
        {"bryce-hoehn--Qwen3.5-25B-REAP-A3B_config.json", 40, 2048, 16, 32, 180, 8, 512}};
    static const char *const accepted[] = {"nvidia--Qwen3.5-397B-A17B-NVFP4_config.json",
                                           "nvidia--Qwen3.5-122B-A10B-NVFP4_config.json",
                                           "nvidia--Qwen3.6-35B-A3B-NVFP4_config.json",
                                           "nvidia--Qwen3-235B-A22B-NVFP4_config.json", "Qwen--Qwen3-235B-A22B_config.json",
                                           "Qwen--Qwen3-235B-A22B-FP8_config.json", "Qwen--Qwen3-30B-A3B_config.json",
                                           "Qwen--Qwen3-30B-A3B-FP8_config.json", "Qwen--Qwen3.5-27B_config.json",
                                           "nvidia--Qwen3.6-27B-NVFP4_config.json", "Qwen--Qwen3-0.6B_config.json",
                                           "Qwen--Qwen3-8B_config.json", "Qwen--Qwen3-32B-FP8_config.json",
                                           "Qwen--Qwen3-32B-FP8-Static-PerTensor_config.json",
                                           "Qwen--Qwen3-Next-80B-A3B-Thinking_config.json",
                                           "InferSim--qwen3-next-80B-A3B_config.json", "mistralai--Mixtral-8x7B-v0.1_config.json",
                                           "mistralai--Mixtral-8x22B-v0.1_config.json", "meta-llama--Meta-Llama-3.1-8B_config.json",
                                           "openai--gpt-oss-20b_config.json", "openai--gpt-oss-120b_config.json",
                                           "deepseek-ai--DeepSeek-V3_config.json", "nvidia--DeepSeek-V3.1-NVFP4_config.json",
                                           "google--gemma-4-26B-A4B_config.json", "nvidia--Gemma-4-26B-A4B-NVFP4_config.json"};
    char dir[512];
    int refused = 0, opened = 0;
    if (!test_data_dir()) {
        test_skip("published configurations need the data folder");
        return;
    }
    snprintf(dir, sizeof dir, "%s/configs", test_data_dir());
    for (size_t i = 0; i < COUNT(known); i++) {
        config c;
        mote_error err = {0};
        if (!CHECK(!read_config(dir, known[i].name, &c, &err), "%s: %s", known[i].name, err.message)) continue;
        const layer_shapes shapes = shapes_of(&c);
        const rope_shape rope = rope_of(&c);
        const deltanet_shape *d = &shapes.deltanet;
        const attention_shape *a = &shapes.attention;
        const moe_shape *e = &shapes.moe;
        CHECK(c.layers == known[i].layers && c.hidden == known[i].hidden && a->heads == known[i].heads && a->kv_heads == 2 &&
              d->value_heads == known[i].value_heads && d->key_heads == 16 && d->key_dim == 128 && d->value_dim == 128 &&
              e->experts == known[i].experts && e->top_k == known[i].top_k && e->expert_size == known[i].expert_size &&
              e->shared_size == known[i].expert_size && c.vocab == 248320 && a->head_dim == 256 && a->rotary_dim == 64 &&
              c.mtp_layers == 1 && rope.theta == 1e7f && c.eps == 1e-6f && c.context_max == 262144 &&
              c.eos == 248044 && !c.tied,
              "%s: sizes", known[i].name);
        for (int l = 0; l < c.layers; l++) CHECK(c.layer[l].mixer.kind == (l % 4 == 3 ? LAYER_ATTENTION : LAYER_DELTANET), "%s: layer %d", known[i].name, l);
        config_free(&c);
    }
    test_published_dense(dir);
    test_published_plain(dir);
    test_published_latent(dir);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        config c;
        mote_error err = {0};
        size_t i = 0;
        while (i < COUNT(known) && strcmp(known[i].name, e->d_name)) i++;
        if (i < COUNT(known) || !strstr(e->d_name, "_config.json") || strstr(e->d_name, "generation")) continue;
        int code = read_config(dir, e->d_name, &c, &err);
        for (size_t k = 0; k < COUNT(accepted); k++)
            if (!strcmp(e->d_name, accepted[k])) i = COUNT(known) + 1;
        if (i > COUNT(known)) {
            CHECK(!code, "%s: %s", e->d_name, err.message);
            if (!code) config_free(&c);
            opened++;
            continue;
        }
        CHECK(code == (strstr(err.message, "model_type is missing") ? MOTE_EFORMAT : MOTE_EUNSUPPORTED) &&
              strstr(err.message, "model_type") && strstr(err.message, CONFIG),
              "%s: code %d: %s", e->d_name, code, err.message);
        refused++;
    }
    if (d) closedir(d);
    CHECK(refused > 10 && opened == (int)COUNT(accepted), "%d other configurations, and %d known ones", refused, opened);
}

int main(int argc, char **argv) {
    test_main_begin("test_config", argc, argv);
    if (!temp_open()) return test_main_end();
    test_config_sizes();
    test_config();
    test_config_forms();
    test_rope();
    test_defaults();
    test_windows();
    test_either_ties();
    test_neutral();
    test_neutral_by_family();
    test_unread();
    test_unread_beside();
    test_vision_config();
    test_expert_names();
    test_many_keys();
    test_kv_heads();
    test_plain_refused();
    test_latent_defaults();
    test_latent_keys();
    test_latent_numbers();
    test_nemotron_layers();
    test_nemotron_keys();
    test_published_configs();
    temp_close();
    return test_main_end();
}
