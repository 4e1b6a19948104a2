// A part of test_checkpoint: DeepSeek V3 and GLM-4.7-Flash: their tensors made wrong, and what may be left out of their MTP layer.

#define LATENT "families/deepseek-v3"
#define LATENT_GLM "families/glm4-moe-lite"
#define LATENT_1 "model.layers.1.self_attn."
#define LATENT_MTP "model.layers.2."

// Kinds of damage are those of any family: no more than what is its own is here.
static void test_latent(void) {
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"no keys and values", LATENT, DROP, F, LATENT_1 "kv_b_proj.weight", "", "", BAD, SAME, {LATENT_1 "kv_b_proj.weight is missing", "[192, 136]"}},
        {"heads less", LATENT, RETYPE, F, LATENT_1 "kv_b_proj.weight", "F8_E4M3", "144,136", BAD, SAME, {F, LATENT_1 "kv_b_proj.weight", "[192, 136]"}},
        {"a block less", LATENT, RETYPE, F, LATENT_1 "kv_b_proj.weight_scale_inv", "F32", "1,2", BAD, SAME, {F, "kv_b_proj.weight_scale_inv", "[2, 2]"}},
        {"a latent without its key", LATENT, RETYPE, F, LATENT_1 "kv_a_proj_with_mqa.weight", "F8_E4M3", "136,48", BAD, SAME,
         {F, "kv_a_proj_with_mqa.weight", "[152, 48]"}},
        {"a norm of the key, too", LATENT, RETYPE, F, LATENT_1 "kv_a_layernorm.weight", "BF16", "152", BAD, SAME, {F, "kv_a_layernorm.weight", "[136]"}},
        {"no norm of latents", LATENT_GLM, DROP, F, LATENT_1 "q_a_layernorm.weight", "", "", BAD, SAME, {"q_a_layernorm.weight is missing", "[24]"}},
        {"queries of u", LATENT_GLM, REPLACE, CONFIG, "'q_lora_rank': 24", "'q_lora_rank': null", "", BAD, SAME, {"self_attn.q_proj.weight is missing"}},
        {"queries of a latent", LATENT, REPLACE, CONFIG, "'q_lora_rank': null", "'q_lora_rank': 24", "", BAD, SAME, {"self_attn.q_a_proj.weight is missing"}},
        {"a bias", LATENT_GLM, ADD, F, LATENT_1 "kv_a_proj_with_mqa.bias", "BF16", "40", BAD, SAME, {"kv_a_proj_with_mqa.bias is not part of the model"}},
        {"an indexer", LATENT, ADD, F, LATENT_1 "indexer.wk.weight", "BF16", "128,48", BAD, SAME, {"indexer.wk.weight is not part of the model"}},
        {"no correction", LATENT, DROP, F, "model.layers.1.mlp.gate.e_score_correction_bias", "", "", BAD, SAME, {"e_score_correction_bias is missing", "[8]"}},
        {"dense layers less", LATENT, REPLACE, CONFIG, "'first_k_dense_replace': 1", "'first_k_dense_replace': 0", "", BAD, SAME,
         {"model.layers.0.mlp.gate.weight is missing"}},
        {"a scale of the cache", LATENT, ADD, F, LATENT_1 "k_proj.k_scale", "F32", "1", BAD, FINE, {"k_proj.k_scale: scale 0 is 0", "a positive number"}},
        {"a scale of values", LATENT, ADD, F, LATENT_1 "v_proj.v_scale", "F32", "1", OK, SAME, {NULL}},
        {"MTP tensors left out", LATENT, DROP, F, LATENT_MTP "hnorm.weight", "", "", OK, SAME,
         {"MTP layer left out, nothing will be drafted: tensor " LATENT_MTP "hnorm.weight is missing"}},
        {"no MTP layer", LATENT, DROP, F, LATENT_MTP "eh_proj.weight", "", "", OK, SAME, {"MTP tensors ignored"}},
        {"no MTP layer in config.json", LATENT, REPLACE, CONFIG, "'num_nextn_predict_layers': 1", "'num_nextn_predict_layers': 0", "", OK, SAME,
         {"MTP tensors ignored"}},
        {"more of the MTP layer", LATENT, ADD, F, LATENT_MTP "self_attn.q_norm.weight", "BF16", "40", BAD, SAME,
         {LATENT_MTP "self_attn.q_norm.weight is not part of the model"}},
        {"a layer more than it says", LATENT, REPLACE, CONFIG, "'num_hidden_layers': 2", "'num_hidden_layers': 1", "", BAD, SAME,
         {F, "model.layers.1.", "is not part of the model"}},
        {"one of GLM's", LATENT_GLM, REPLACE, CONFIG, "'num_hidden_layers': 2", "'num_hidden_layers': 1", "", BAD, SAME,
         {F, "model.layers.1.", "is not part of the model"}},
        {"a layer after the MTP layer", LATENT, ADD, F, "model.layers.3.input_layernorm.weight", "BF16", "48", BAD, SAME,
         {F, "model.layers.3.input_layernorm.weight is not part of the model"}},
        {"another MTP layer", LATENT, ADD, F, "model.layers.3.hnorm.weight", "BF16", "48", OK, SAME, {"1 tensors of further MTP layers ignored: one is run"}},
        {"a layer between", LATENT, ADD, F, "model.layers.1.hnorm.weight", "BF16", "48", BAD, SAME, {"model.layers.1.hnorm.weight is not part of the model"}},
        {"a number too large", LATENT, ADD, F, "model.layers.99999999999999999999.hnorm.weight", "BF16", "48", BAD, SAME, {"is not part of the model"}},
        {"no copy of the embedding", LATENT, DROP, F, LATENT_MTP "embed_tokens.weight", "", "", OK, SAME, {NULL}},
        {"no copy of the head", LATENT, DROP, F, LATENT_MTP "shared_head.head.weight", "", "", OK, SAME, {NULL}},
        {"another embedding", LATENT, POKE, F, LATENT_MTP "embed_tokens.weight", "\1", "1", OK, SAME,
         {"nothing will be drafted: tensor " LATENT_MTP "embed_tokens.weight differs from the model's own"}},
        {"another head", LATENT, RETYPE, F, LATENT_MTP "shared_head.head.weight", "F32", "71,48", OK, SAME,
         {"nothing will be drafted: tensor " LATENT_MTP "shared_head.head.weight differs from the model's own"}}};
    check_folders(cases, COUNT(cases));
}

// The model's logits are the same without an MTP layer, whatever is left of it; with copies or without it drafts.
static void test_latent_mtp(void) {
    const wrong_folder lost = {.fixture = LATENT, .edit = DROP, .file = F, .a = LATENT_MTP "self_attn.o_proj.weight", .b = "", .c = ""};
    const wrong_folder copy = {.fixture = LATENT, .edit = DROP, .file = F, .a = LATENT_MTP "embed_tokens.weight", .b = "", .c = ""};
    const wrong_folder other = {.fixture = LATENT, .edit = POKE, .file = F, .a = LATENT_MTP "shared_head.head.weight", .b = "\1", .c = "1"};
    temp_fixture(LATENT);
    check_logits("all there", LATENT, 1);
    apply_edit(&copy);
    check_logits("a copy less", LATENT, 1);
    apply_edit(&lost);
    check_logits("an MTP tensor lost", LATENT, 0);
    temp_fixture(LATENT);
    apply_edit(&other);
    check_logits("a copy that differs", LATENT, 0);
}
