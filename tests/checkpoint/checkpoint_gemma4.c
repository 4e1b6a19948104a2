// A part of test_checkpoint: folders of Gemma 4: two sizes of heads, norms of branches, experts in two ways; its keys of config.json.

#define GEMMA "families/gemma4"
#define GEMMA_DENSE "families/gemma4-dense"
#define GEMMA_1 "model.language_model.layers.1."
#define GEMMA_FULL "model.language_model.layers.2."

static void test_gemma4_tensors(void) {
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"no values", GEMMA, DROP, F, GEMMA_1 "self_attn.v_proj.weight", "", "", BAD, SAME, {GEMMA_1 "self_attn.v_proj.weight is missing", "[64, 48]"}},
        {"values beside keys", GEMMA, ADD, F, GEMMA_FULL "self_attn.v_proj.weight", "BF16", "64,48", BAD, SAME, {GEMMA_FULL "self_attn.v_proj.weight is not part"}},
        {"keys of the other layers' heads", GEMMA, RETYPE, F, GEMMA_FULL "self_attn.k_norm.weight", "BF16", "16", BAD, SAME, {F, "k_norm.weight", "[32]"}},
        {"no norm of a branch", GEMMA, DROP, F, GEMMA_1 "post_feedforward_layernorm_1.weight", "", "", BAD, SAME, {"layernorm_1.weight is missing", "[48]"}},
        {"no norm of the router", GEMMA, DROP, F, GEMMA_1 "router.scale", "", "", BAD, SAME, {"router.scale is missing", "[48]"}},
        {"scales of experts less", GEMMA, RETYPE, F, GEMMA_1 "router.per_expert_scale", "BF16", "5", BAD, SAME, {F, "router.per_expert_scale", "[6]"}},
        {"no scale of a layer", GEMMA_DENSE, DROP, F, "model.layers.0.layer_scalar", "", "", BAD, SAME, {"layers.0.layer_scalar is missing", "[1]"}},
        {"a scale for each number", GEMMA, RETYPE, F, GEMMA_1 "layer_scalar", "BF16", "48", BAD, SAME, {F, "layer_scalar", "[1]"}},
        {"experts less", GEMMA, RETYPE, F, GEMMA_1 "experts.gate_up_proj", "BF16", "5,32,48", BAD, SAME, {F, "experts.gate_up_proj", "[6, 32, 48]"}},
        {"one of two stacks", GEMMA, DROP, F, GEMMA_1 "experts.down_proj", "", "", BAD, SAME, {"experts.down_proj is missing", "[6, 48, 16]"}},
        {"no stacks", GEMMA, RENAME, F, GEMMA_1 "experts.gate_up_proj", GEMMA_1 "experts.gate_and_up_proj", "", BAD, SAME,
         {GEMMA_1 "experts.0.gate_proj.weight is missing"}},
        {"a gate of the dense FFN", GEMMA, ADD, F, GEMMA_1 "mlp.shared_expert_gate.weight", "BF16", "1,48", BAD, SAME, {"shared_expert_gate.weight is not part"}},
        {"experts of a dense model", GEMMA_DENSE, ADD, F, "model.layers.0.router.scale", "BF16", "48", BAD, SAME, {"router.scale is not part of the model"}},
        {"embeddings for each layer", GEMMA, ADD, F, "model.language_model.embed_tokens_per_layer.weight", "BF16", "2,2", BAD, SAME,
         {"embed_tokens_per_layer.weight is not part of the model"}},
        {"a vision tower", GEMMA, ADD, F, "model.vision_tower.encoder.layers.0.input_layernorm.weight", "BF16", "4", OK, SAME, {"1 vision tensors ignored"}},
        {"what ends it", GEMMA, ADD, F, "model.embed_vision.embedding_projection.weight", "BF16", "4", OK, SAME, {"1 vision tensors ignored"}},
        {"a sound tower", GEMMA, ADD, F, "model.audio_tower.layers.0.norm.weight", "BF16", "4", OK, SAME, {"ignored"}}};
    check_folders(cases, COUNT(cases));
}

// Puts one expert's matrix, rows from `row` on of its entry of a stack, into a tensor of its own.
static void gemma4_split(parts *p, const part *stack, int layer, const char *experts, int e, const char *name, int row, const char *shape) {
    part *to = &p->list[p->n++];
    memset(to, 0, sizeof *to);                      // it may have been another one
    snprintf(to->name, sizeof to->name, "model.language_model.layers.%d.%s.%d.%s.weight", layer, experts, e, name);
    part_set(to, "BF16", shape);
    memcpy(to->data, stack->data + stack->size / 6 * (size_t)e + (size_t)row * 48 * 2, to->size);
}

// Quantised checkpoints have experts one by one, under either name: here the same numbers, which give the same logits.
static void test_gemma4_single(const char *experts) {
    temp_fixture(GEMMA);
    parts *p = parts_read(F);
    for (int i = 0, n = p->n; i < n; i++) {
        part *t = &p->list[i];
        int layer = 0;
        const char *end = strstr(t->name, ".experts.");
        if (!end || sscanf(t->name, "model.language_model.layers.%d", &layer) != 1) continue;
        for (int e = 0; e < 6; e++) {
            if (!strcmp(end, ".experts.down_proj")) gemma4_split(p, t, layer, experts, e, "down_proj", 0, "48,16");
            else gemma4_split(p, t, layer, experts, e, "gate_proj", 0, "16,48"), gemma4_split(p, t, layer, experts, e, "up_proj", 16, "16,48");
        }
        free(t->data);
        *t = p->list[--n];                         // the last one that has not been looked at
        p->list[n] = p->list[--p->n];
        i--;
    }
    parts_write(p, F);
    parts_free(p);
    check_logits(experts, GEMMA, 0);
}

static void test_gemma4_keys(void) {
    static const changed_key cases[] = {
        {GEMMA, "'hidden_size_per_layer_input': 0", "'hidden_size_per_layer_input': 256", NOT, {"hidden_size_per_layer_input is 256, mote supports 0 only"}},
        {GEMMA, "'hidden_size_per_layer_input': 0,", "", NOT, {"hidden_size_per_layer_input is absent, which means 256"}},
        {GEMMA, "'num_kv_shared_layers': 0", "'num_kv_shared_layers': 2", NOT, {"num_kv_shared_layers is 2, mote supports 0 only"}},
        {GEMMA, "'use_double_wide_mlp': false", "'use_double_wide_mlp': true", NOT, {"use_double_wide_mlp is true, mote supports false only"}},
        {GEMMA, "'vision'", "null", OK, {NULL}},
        {GEMMA, "'vision'", "'all'", NOT, {"use_bidirectional_attention is all, mote supports vision only"}},
        {GEMMA, "'hidden_activation': 'gelu_pytorch_tanh',", "", OK, {NULL}},
        {GEMMA, "'gelu_pytorch_tanh'", "'gelu'", NOT, {"hidden_activation is gelu, mote supports gelu_pytorch_tanh only"}},
        {GEMMA, "'gelu_pytorch_tanh'", "'silu'", NOT, {"hidden_activation is silu"}},
        {GEMMA, "'enable_moe_block': true", "'enable_moe_block': 2", BAD, {"enable_moe_block must be true or false"}},
        {GEMMA, "'top_k_experts': 2", "'top_k_experts': 7", BAD, {"top_k_experts = 7 of only 6 experts"}},
        {GEMMA, "'top_k_experts': 2", "'top_k_experts': null", BAD, {"top_k_experts must be a whole number"}},
        {GEMMA, "'num_experts': 6,", "", BAD, {"num_experts is missing"}},
        {GEMMA, "'intermediate_size': 24,", "", BAD, {"intermediate_size is missing"}},
        {GEMMA, "'num_experts': 6", "'num_experts': 16000", BAD, {"router."}},
        {GEMMA, "'global_head_dim': 32", "'global_head_dim': 0", BAD, {"global_head_dim must be a whole number"}},
        {GEMMA, "'num_global_key_value_heads': 2", "'num_global_key_value_heads': 3", BAD,
         {"num_attention_heads = 4 is no multiple of num_global_key_value_heads = 3"}},
        {GEMMA_DENSE, "'num_global_key_value_heads': null", "'num_global_key_value_heads': 3", OK, {NULL}},
        {GEMMA, "'final_logit_softcapping': 8.0", "'final_logit_softcapping': 0", BAD, {"final_logit_softcapping must be a number"}},
        {GEMMA, "'sliding_window': 24", "'sliding_window': 0", BAD, {"sliding_window must be a whole number from 1"}},
        {GEMMA, "'full_attention'\n", "'sliding_attention'\n", OK, {NULL}},
        {GEMMA, "'full_attention'\n", "'linear_attention'\n", NOT, {"layer_types[2] is not full_attention or sliding_attention"}},
        {GEMMA, "'sliding_window'", "'per_layer_config': {'0': {'head_dim': 8}}, 'sliding_window'", NOT, {"per_layer_config is an object"}},
        {GEMMA, "'sliding_window'", "'query_pre_attn_scalar': 8, 'sliding_window'", NOT, {"query_pre_attn_scalar is 8"}},
        {GEMMA, "'attention_bias': false", "'attention_bias': true", NOT, {"attention_bias is true"}},
        {GEMMA, "'proportional'", "'linear'", NOT, {"rope_parameters.full_attention.rope_type is linear"}},
        {GEMMA, "'partial_rotary_factor': 0.25", "'partial_rotary_factor': -1", BAD, {"rope_parameters.full_attention.partial_rotary_factor must be"}},
        {GEMMA, "'sliding_attention': {", "'local_attention': {", NOT, {"rope_parameters.local_attention: mote expects an object"}}};
    check_keys(cases, COUNT(cases));
}

// What config.json says of each layer; with all that may be left out it is as transformers has it.
static void test_gemma4_layers(void) {
    config c;
    mote_error err = {0};
    for (int absent = 0; absent < 2; absent++) {
        temp_fixture(GEMMA);
        if (absent) {
            temp_replace(CONFIG, "\"rope_parameters\": {\n   \"full", "\"label2id\": {\n   \"full");
            temp_replace(CONFIG, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 7");
            temp_replace(CONFIG, "\"layer_types\": [", "\"id2label\": [");
            temp_replace(CONFIG, "\"sliding_window\": 24,", "");
            temp_replace(CONFIG, "\"global_head_dim\": 32,", "");
            temp_replace(CONFIG, "\"tie_word_embeddings\": true,", "");
            temp_replace(CONFIG, "\"tie_word_embeddings\": true,", "");
            temp_replace(CONFIG, "\"final_logit_softcapping\": 8.0,", "");
        }
        if (!CHECK(!config_read(&c, temp_dir, &err), "%s", err.message)) return;
        CHECK(c.tied && c.embed_factor == 6.9375f && c.logit_cap == (absent ? 0 : 8), "tied %d, factor %g, cap %g", c.tied, (double)c.embed_factor,
              (double)c.logit_cap);
        for (int i = 0; i < c.layers; i++) {
            const attention_shape *a = &c.layer[i].mixer.of.attention;
            const rope_shape *rope = &c.layer[i].rope;
            const int full = absent ? i >= 5 : i == 2, dim = full ? absent ? 512 : 32 : 16;
            CHECK(a->heads == 4 && a->kv_heads == (full ? 2 : 4) && a->head_dim == dim && a->v_of_k == full && a->scale == 1,
                  "layer %d: %d heads of keys and values of %d", i, a->kv_heads, a->head_dim);
            CHECK(a->window == (full ? 0 : absent ? 512 : 24) && a->rotary_dim == dim, "layer %d: window %d, %d dimensions", i, a->window, a->rotary_dim);
            CHECK(rope->kind == (full ? ROPE_PROPORTIONAL : ROPE_PLAIN) && rope->theta == (full ? 1e6f : 1e4f) && rope->turning == (full ? dim / 8 : 0),
                  "layer %d: rope %d of %g, %d turn", i, rope->kind, (double)rope->theta, rope->turning);
            CHECK(c.layer[i].ffn.kind == LAYER_MOE && c.layer[i].ffn.residual.branched && c.layer[i].ffn.of.moe.shared_size == 24, "layer %d: FFN", i);
        }
        config_free(&c);
    }
}
