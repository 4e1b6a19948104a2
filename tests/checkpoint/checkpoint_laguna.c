// A part of test_checkpoint: folders of Laguna: heads by layer, gates, two ropes, its router; its keys of config.json.

#define LAGUNA "families/laguna"
#define LAGUNA_EACH "families/laguna-elements"
#define LAGUNA_G "model.layers.1.self_attn.g_proj.weight"
#define LAGUNA_BIAS "model.layers.1.mlp.experts.e_score_correction_bias"
#define LAGUNA_DENSE "'mlp_layer_types': [\n  'dense',\n"

static void test_laguna_tensors(void) {
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"no gates", LAGUNA, DROP, F, LAGUNA_G, "", "", BAD, SAME, {LAGUNA_G " is missing", "[6, 32]"}},
        {"gates of another layer's heads", LAGUNA, RETYPE, F, LAGUNA_G, "BF16", "4,32", BAD, SAME, {F, LAGUNA_G, "[6, 32]"}},
        {"a gate an element", LAGUNA, REPLACE, CONFIG, "'gating': 'per-head',\n 'gating_types'", "'gating': 'per-element',\n 'label2id'", "", BAD, SAME,
         {"model.layers.0.self_attn.g_proj.weight", "[128, 32]"}},
        {"a gate a head", LAGUNA_EACH, REPLACE, CONFIG, "'per-element'", "true", "", BAD, SAME, {"self_attn.g_proj.weight", "[4, 32]"}},
        {"queries of another layer's heads", LAGUNA, REPLACE, CONFIG, "  6,\n  4\n", "  4,\n  4\n", "", BAD, SAME,
         {F, "model.layers.1.self_attn.q_proj.weight", "[128, 32]"}},
        {"no correction", LAGUNA, DROP, F, LAGUNA_BIAS, "", "", BAD, SAME, {LAGUNA_BIAS " is missing", "[6]"}},
        {"a correction too many", LAGUNA, RETYPE, F, LAGUNA_BIAS, "F32", "7", BAD, SAME, {F, LAGUNA_BIAS, "[6]"}},
        {"no norm of keys", LAGUNA, DROP, F, "model.layers.2.self_attn.k_norm.weight", "", "", BAD, SAME, {"k_norm.weight is missing", "[32]"}},
        {"no shared expert", LAGUNA, DROP, F, "model.layers.2.mlp.shared_expert.up_proj.weight", "", "", BAD, SAME, {"shared_expert.up_proj.weight is missing"}},
        {"a gate of the shared expert", LAGUNA, ADD, F, "model.layers.2.mlp.shared_expert_gate.weight", "BF16", "1,32", BAD, SAME,
         {"shared_expert_gate.weight is not part of the model"}},
        {"sinks", LAGUNA, ADD, F, "model.layers.0.self_attn.sinks", "BF16", "4", BAD, SAME, {"sinks is not part of the model"}},
        {"another dense layer", LAGUNA, REPLACE, CONFIG, LAGUNA_DENSE "  'sparse',", LAGUNA_DENSE "  'dense',", "", BAD, SAME,
         {"mlp_only_layers lists other layers than mlp_layer_types calls dense"}},
        {"experts in all layers", LAGUNA, REPLACE, CONFIG, LAGUNA_DENSE, "'mlp_only_layers': null, 'mlp_layer_types': [\n  'sparse',\n", "", BAD, SAME,
         {"mlp_only_layers"}}};
    check_folders(cases, COUNT(cases));
}

// One text of config.json replaced by another one. A code of OK: it says the same.
typedef struct changed_key { const char *fixture, *from, *to; int code; const char *needles[3]; } changed_key;

static void check_keys(const changed_key *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char from[QUOTED], to[QUOTED], path[64];
        config want, got;
        mote_error err = {0};
        snprintf(path, sizeof path, "tests/fixtures/%s", cases[i].fixture);
        temp_fixture(cases[i].fixture);
        if (!CHECK(temp_replace(CONFIG, quoted(cases[i].from, from), quoted(cases[i].to, to)), "%s: no %s", path, from)) continue;
        check_open(cases[i].to, MOTE_WEIGHTS_ONLY, cases[i].code, cases[i].needles);
        if (cases[i].code) continue;
        if (!CHECK(!config_read(&want, path, &err) && !config_read(&got, temp_dir, &err), "%s", err.message)) continue;
        CHECK(config_fingerprint(&got) == config_fingerprint(&want), "%s: another model", cases[i].to);
        config_free(&got);
        config_free(&want);
    }
}

static void test_laguna_keys(void) {
    static const changed_key cases[] = {
        {LAGUNA, "'per-head'", "true", OK, {NULL}},
        {LAGUNA, "'gating': 'per-head',", "", OK, {NULL}},
        {LAGUNA, "'per-head'", "false", NOT, {"gating is false, mote supports per-head and per-element"}},
        {LAGUNA, "'per-head'", "'per-layer'", NOT, {"gating is per-layer"}},
        {LAGUNA, "'per-head'", "['per-head']", NOT, {"gating is a list"}},
        {LAGUNA, "'per-head'", "'per-element'", NOT, {"gating_types[0] is not per_element"}},
        {LAGUNA, "'per_head',\n  'per_head',\n", "'per_head',\n  'per_element',\n", NOT, {"gating_types[1] is not per_head"}},
        {LAGUNA, "'gating_types': [", "'gating_types': ['per_head',", BAD, {"gating_types lists 4 layers"}},
        {LAGUNA, "  6,\n  4\n", "  5,\n  4\n", BAD, {"num_attention_heads_per_layer = 5 is no multiple of num_key_value_heads = 2"}},
        {LAGUNA, "  6,\n  4\n", "  0,\n  4\n", BAD, {"num_attention_heads_per_layer[1] must be a whole number from 1 to"}},
        {LAGUNA, "  6,\n  4\n", "  6.5,\n  4\n", BAD, {"num_attention_heads_per_layer[1] must be a whole number"}},
        {LAGUNA, "  6,\n  4\n", "  1e99,\n  4\n", BAD, {"num_attention_heads_per_layer[1]"}},
        {LAGUNA, "  6,\n  4\n", "  6,\n  4, 4\n", BAD, {"num_attention_heads_per_layer lists 4 layers, num_hidden_layers is 3"}},
        {LAGUNA, "'num_attention_heads_per_layer': [", "'num_attention_heads_per_layer': 6, 'x': [", BAD, {"num_attention_heads_per_layer must list"}},
        {LAGUNA, "'sliding_window': 24", "'sliding_window': 0", BAD, {"sliding_window is 0, but layer_types[1] is sliding_attention"}},
        {LAGUNA, "'sliding_window': 24", "'sliding_window': -1", BAD, {"sliding_window must be"}},
        {LAGUNA_EACH, "'sliding_window': 0,", "", OK, {NULL}},
        {LAGUNA, "'full_attention',\n  'sliding", "'chunked_attention',\n  'sliding", NOT, {"layer_types[0] is not full_attention or sliding_attention"}},
        {LAGUNA, "'norm_topk_prob': true", "'norm_topk_prob': false", NOT, {"norm_topk_prob is false, mote supports true only"}},
        {LAGUNA, "'moe_router_logit_softcapping': 0.0", "'moe_router_logit_softcapping': 30.0", NOT, {"moe_router_logit_softcapping is 30.0"}},
        {LAGUNA, "'moe_apply_router_weight_on_input': false", "'moe_apply_router_weight_on_input': true", NOT, {"moe_apply_router_weight_on_input is true"}},
        {LAGUNA, "'decoder_sparse_step': 1", "'decoder_sparse_step': 2", NOT, {"decoder_sparse_step is 2"}},
        {LAGUNA, "'gating'", "'moe_router_use_sigmoid': false, 'gating'", NOT, {"moe_router_use_sigmoid is false"}},
        {LAGUNA, "'gating'", "'swa_attention_sink_enabled': true, 'gating'", NOT, {"swa_attention_sink_enabled is true"}},
        {LAGUNA, "'moe_routed_scaling_factor': 2.5", "'moe_routed_scaling_factor': 'x'", BAD, {"moe_routed_scaling_factor must be a number"}},
        {LAGUNA, "'mlp_only_layers': [\n  0\n ]", "'mlp_only_layers': []", BAD, {"mlp_only_layers lists other layers"}},
        {LAGUNA, "'mlp_only_layers': [\n  0\n ]", "'mlp_only_layers': [1]", BAD, {"mlp_only_layers lists other layers"}},
        {LAGUNA, "'mlp_only_layers': [\n  0\n ]", "'mlp_only_layers': [99]", BAD, {"mlp_only_layers lists other layers"}},
        {LAGUNA, "'mlp_only_layers': [\n  0\n ]", "'mlp_only_layers': 0", NOT, {"mlp_only_layers is 0"}},
        {LAGUNA, "'mlp_only_layers': [\n  0\n ]", "'mlp_only_layers': null", OK, {NULL}},
        {LAGUNA, "'attention_bias': false", "'attention_bias': true", NOT, {"attention_bias is true"}},
        // ropes
        {LAGUNA, "'rope_parameters': {\n  'full_attention'", "'rope_parameters': {\n  'local_attention'", NOT, {"rope_parameters.local_attention", "full_attention and sliding_attention"}},
        {LAGUNA, "'rope_parameters': {\n", "'rope_parameters': {'rope_type': 'default',\n", NOT, {"rope_parameters.rope_type", "an object for each of"}},
        {LAGUNA, "'rope_parameters': {\n", "'rope_parameters': {'sliding_attention': 1,\n", NOT, {"rope_parameters.sliding_attention: mote expects an object"}},
        {LAGUNA_EACH, "'rope_parameters': {\n  'full_attention'", "'rope_parameters': {\n  'sliding_attention'", BAD, {"rope_parameters.full_attention is missing"}},
        {LAGUNA, "'rope_parameters': {\n", "'rope_parameters': [], 'more': {\n", NOT, {"rope_parameters is a list"}},
        {LAGUNA, "'rope_parameters': {\n", "'rope_scaling': {'rope_type': 'yarn'}, 'rope_parameters': {\n", NOT, {"rope_scaling is an object"}},
        {LAGUNA, "'rope_parameters': {\n", "'partial_rotary_factor': 0.25, 'rope_theta': 7, 'rope_parameters': {\n", OK, {NULL}},
        {LAGUNA, "'yarn'", "'linear'", NOT, {"rope_parameters.full_attention.rope_type is linear"}},
        {LAGUNA, "'factor': 32.0", "'factor': 0.5", BAD, {"rope_parameters.full_attention.factor must be a number from 1"}},
        {LAGUNA, "'beta_slow': 1.0", "'beta_slow': 65", BAD, {"rope_parameters.full_attention.beta_slow must be below beta_fast"}},
        {LAGUNA, "'factor': 32.0", "'truncate': true, 'factor': 32.0", OK, {NULL}},
        {LAGUNA, "'factor': 32.0", "'truncate': false, 'factor': 32.0", NOT, {"truncate is false"}},
        {LAGUNA, "'factor': 32.0", "'new_factor': 2, 'factor': 32.0", NOT, {"rope_parameters.full_attention.new_factor is 2, a key that is not known"}},
        {LAGUNA, "'partial_rotary_factor': 0.5", "'partial_rotary_factor': 2", BAD, {"rope_parameters.full_attention.partial_rotary_factor must be"}}};
    check_keys(cases, COUNT(cases));
}

// What config.json says of each layer, and how the ropes of both types turn. Without rope_parameters they are transformers'.
static void test_laguna_layers(void) {
    config c;
    mote_error err = {0};
    for (int absent = 0; absent < 2; absent++) {
        temp_fixture(LAGUNA);
        if (absent) temp_replace(CONFIG, "\"rope_parameters\": {\n  \"full", "\"rope_parameters\": null, \"x\": null, \"more\": null, \"label2id\": {\n  \"full");
        if (!CHECK(!config_read(&c, temp_dir, &err), "%s", err.message)) return;
        for (int i = 0; i < 3; i++) {
            const attention_shape *a = &c.layer[i].mixer.of.attention;
            const rope_shape *rope = &c.layer[i].rope;
            const int slides = i == 1;
            CHECK(a->heads == (slides ? 6 : 4) && a->window == (slides ? 24 : 0) && a->rotary_dim == (slides ? 32 : 16) && a->gate_size == 1,
                  "layer %d: %d heads, a window of %d, %d dimensions rotated", i, a->heads, a->window, a->rotary_dim);
            CHECK(rope->kind == (slides || absent ? ROPE_PLAIN : ROPE_YARN) && rope->theta == (slides ? 1e4f : 5e5f), "layer %d: rope %d of %g", i,
                  rope->kind, (double)rope->theta);
            CHECK(fabsf(a->rope_scale - (slides || absent ? 1 : 1.3465736f)) < 1e-6f && (slides || absent || rope->truncate), "layer %d: %g", i,
                  (double)a->rope_scale);
            CHECK(c.layer[i].ffn.kind == (i ? LAYER_MOE : LAYER_MLP), "layer %d: FFN %d", i, (int)c.layer[i].ffn.kind);
        }
        config_free(&c);
    }
}
