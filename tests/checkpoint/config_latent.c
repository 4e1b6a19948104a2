// A part of test_config: DeepSeek V3's attention, and the families that have it.

// The keys of a small model; `without` of them left out, and others after them, of which the last of a name counts.
static int read_latent(const char *type, const char *without, const char *keys, config *c, mote_error *err) {
    static const char *const all[] = {
        "'num_hidden_layers':4", "'hidden_size':32", "'vocab_size':8", "'num_attention_heads':4", "'q_lora_rank':24", "'kv_lora_rank':40",
        "'qk_nope_head_dim':20", "'qk_rope_head_dim':8", "'v_head_dim':12", "'intermediate_size':48", "'moe_intermediate_size':16",
        "'n_routed_experts':16", "'num_experts_per_tok':2"};
    char text[2 * QUOTED], json[2 * QUOTED];
    size_t n = (size_t)snprintf(text, sizeof text, "{'model_type':'%s'", type);
    for (size_t i = 0; i < COUNT(all); i++)
        if (!*without || strncmp(all[i] + 1, without, strlen(without))) n += (size_t)snprintf(text + n, sizeof text - n, ",%s", all[i]);
    snprintf(text + n, sizeof text - n, "%s%s}", *keys ? "," : "", keys);
    temp_empty();
    temp_text(CONFIG, quoted(text, json));
    return config_read(c, temp_dir, err);
}

// What is absent is as transformers has it; which layers are dense; the MTP layer.
static void test_latent_defaults(void) {
    static const struct { const char *type; float theta, eps, factor; int context, dense, groups; } cases[] = {
        {"deepseek_v3", 1e4f, 1e-6f, 2.5f, 4096, 3, 8}, {"glm4_moe_lite", 1e6f, 1e-5f, 1.8f, 202752, 1, 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        config c;
        mote_error err = {0};
        if (!CHECK(!read_latent(cases[i].type, "", "'bos_token_id':1", &c, &err), "%s: %s", cases[i].type, err.message)) continue;
        for (int l = 0; l <= c.layers; l++) {
            const mla_shape *s = &c.layer[l].mixer.of.mla;
            const moe_shape *e = &c.layer[l].ffn.of.moe;
            const int dense = l < cases[i].dense;
            CHECK(c.layer[l].mixer.kind == LAYER_MLA && s->heads == 4 && s->q_rank == 24 && s->kv_rank == 40 && s->nope_dim == 20 &&
                  s->rope_dim == 8 && s->value_dim == 12 && s->hidden == 32 && s->eps == 1e-6f && s->rope_scale == 1 && s->interleaved &&
                  fabs((double)s->scale - 1 / sqrt(28)) < 1e-7, "%s: attention of layer %d", cases[i].type, l);
            CHECK(c.layer[l].rope.kind == ROPE_PLAIN && c.layer[l].rope.theta == cases[i].theta, "%s: rope of layer %d", cases[i].type, l);
            CHECK(c.layer[l].ffn.kind == (dense ? LAYER_MLP : LAYER_MOE), "%s: FFN of layer %d", cases[i].type, l);
            CHECK(dense ? c.layer[l].ffn.of.mlp.size == 48 : e->experts == 16 && e->top_k == 2 && e->expert_size == 16 && e->shared_size == 16 &&
                  e->shared_ungated && e->sigmoid && e->corrected && !e->of_all && e->routed_scale == cases[i].factor && e->groups == cases[i].groups,
                  "%s: sizes of layer %d's FFN", cases[i].type, l);
        }
        CHECK(c.eps == cases[i].eps && c.context_max == cases[i].context && c.mtp_layers == 1, "%s: eps %g, context %d, %d MTP layers",
              cases[i].type, (double)c.eps, c.context_max, c.mtp_layers);
        config_free(&c);
    }
}

// Each key in its forms, and each misuse of it, in both families.
static void test_latent_keys(void) {
    static const struct { const char *without, *keys; int code; const char *needles[2]; } cases[] = {
        {"num_attention_heads", "", BAD, {"num_attention_heads is missing"}},
        {"kv_lora_rank", "", BAD, {"kv_lora_rank is missing"}},
        {"qk_nope_head_dim", "", BAD, {"qk_nope_head_dim is missing"}},
        {"qk_rope_head_dim", "", BAD, {"qk_rope_head_dim is missing"}},
        {"v_head_dim", "", BAD, {"v_head_dim is missing"}},
        {"n_routed_experts", "", BAD, {"n_routed_experts is missing"}},
        {"q_lora_rank", "", OK, {NULL}},
        {"", "'q_lora_rank':null", OK, {NULL}},
        {"", "'q_lora_rank':0", BAD, {"q_lora_rank must be a whole number from 1 to 16384"}},
        {"", "'kv_lora_rank':null", BAD, {"kv_lora_rank must be a whole number"}},
        {"", "'kv_lora_rank':100000", BAD, {"kv_lora_rank must be a whole number from 1 to 16384"}},
        {"", "'qk_nope_head_dim':0", BAD, {"qk_nope_head_dim must be a whole number from 1"}},
        {"", "'qk_rope_head_dim':0", BAD, {"qk_rope_head_dim must be a whole number from 2"}},
        {"", "'qk_rope_head_dim':7", NOT, {"qk_rope_head_dim = 7 is odd"}},
        {"", "'v_head_dim':-1", BAD, {"v_head_dim must be a whole number from 1"}},
        {"", "'num_attention_heads':4096,'v_head_dim':16384", NOT, {"heads times head size exceeds 4194304"}},
        {"", "'num_attention_heads':4096,'kv_lora_rank':16384", NOT, {"heads times head size exceeds 4194304"}},
        {"", "'num_key_value_heads':4,'qk_head_dim':28,'head_dim':8", OK, {NULL}},
        {"", "'num_key_value_heads':2", NOT, {"num_key_value_heads is 2, mote supports 4 only"}},
        {"", "'qk_head_dim':27", NOT, {"qk_head_dim is 27, mote supports 28 only"}},
        {"", "'head_dim':64", NOT, {"head_dim is 64, mote supports 8 only"}},
        {"", "'rope_interleave':true", OK, {NULL}},
        {"", "'rope_interleave':'yes'", BAD, {"rope_interleave must be true or false"}},
        {"", "'partial_rotary_factor':1.0", OK, {NULL}},
        {"", "'partial_rotary_factor':0.5", NOT, {"partial_rotary_factor rotates 4 of qk_rope_head_dim = 8"}},
        {"", "'attention_bias':true", NOT, {"attention_bias is true, mote supports false only"}},
        {"", "'attention_bias':false,'ep_size':1,'moe_layer_freq':1,'aux_loss_alpha':0.001,'seq_aux':true,'pretraining_tp':1,'use_cache':true", OK, {NULL}},
        {"", "'moe_layer_freq':2", NOT, {"moe_layer_freq is 2, mote supports 1 only"}},
        {"", "'sliding_window':null,'index_topk':2048", NOT, {"index_topk is 2048, a key that is not known to mote"}},
        {"", "'scoring_func':'softmax'", NOT, {"scoring_func is softmax, mote supports sigmoid only"}},
        {"", "'topk_method':'group_limited_greedy'", NOT, {"topk_method is group_limited_greedy, mote supports noaux_tc only"}},
        {"", "'num_nextn_predict_layers':-1", BAD, {"num_nextn_predict_layers must be a whole number from 0"}},
        {"", "'num_nextn_predict_layers':3", OK, {NULL}},
        {"", "'first_k_dense_replace':'one'", BAD, {"first_k_dense_replace must be a whole number"}},
        {"", "'rope_scaling':{'type':'yarn','factor':40,'original_max_position_embeddings':4096,'mscale_all_dim':'x'}", BAD,
         {"rope_scaling.mscale_all_dim must be a number"}},
        {"", "'rope_scaling':{'type':'yarn','factor':40,'original_max_position_embeddings':4096,'mscale_all_dim':-1}", BAD,
         {"rope_scaling.mscale_all_dim must be a number from 0"}}};
    static const char *const types[] = {"deepseek_v3", "glm4_moe_lite"};
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        config c;
        mote_error err = {0};
        const int code = read_latent(types[i % 2], cases[i / 2].without, cases[i / 2].keys, &c, &err);
        CHECK(code == cases[i / 2].code && says(code ? err.message : "", cases[i / 2].needles), "%s, without %s, %s: code %d: %s", types[i % 2],
              cases[i / 2].without, cases[i / 2].keys, code, err.message);
        if (!code) config_free(&c);
    }
}

// Numbers that follow from keys: of YaRN the factors of cos and sin and of scores, in either object; pairs; layers.
static void test_latent_numbers(void) {
#define YARN "{'rope_type':'yarn','factor':40,'original_max_position_embeddings':4096"
    static const struct { const char *keys; double rope_scale, scale; int interleaved, mtp, dense, q_rank; } cases[] = {
        {"'first_k_dense_replace':1", 1, 1, 1, 1, 1, 24},
        {"'rope_interleave':false,'num_nextn_predict_layers':0,'first_k_dense_replace':0,'q_lora_rank':null", 1, 1, 0, 0, 0, 0},
        {"'num_nextn_predict_layers':2,'mlp_layer_types':['sparse','sparse','sparse','sparse']", 1, 1, 1, 1, 0, 24},
        {"'first_k_dense_replace':2,'rope_scaling':" YARN ",'mscale':1.0,'mscale_all_dim':1.0}", 1, 1.8738542, 1, 1, 2, 24},
        {"'first_k_dense_replace':4,'rope_parameters':" YARN ",'mscale':1.0,'mscale_all_dim':0.707}", 1.0857262, 1.5896266, 1, 1, 4, 24},
        {"'first_k_dense_replace':1,'rope_scaling':" YARN ",'mscale_all_dim':1}", 1.3688879, 1.8738542, 1, 1, 1, 24},
        {"'first_k_dense_replace':1,'rope_scaling':" YARN ",'mscale':1}", 1.3688879, 1, 1, 1, 1, 24},
        {"'first_k_dense_replace':1,'rope_scaling':" YARN ",'mscale':0,'mscale_all_dim':0}", 1.3688879, 1, 1, 1, 1, 24},
        {"'first_k_dense_replace':1,'rope_scaling':" YARN ",'attention_factor':1,'mscale_all_dim':1}", 1, 1.8738542, 1, 1, 1, 24},
        {"'first_k_dense_replace':1,'rope_scaling':{'type':'default','mscale_all_dim':1}", 1, 1, 1, 1, 1, 24}};
#undef YARN
    for (size_t i = 0; i < COUNT(cases); i++) {
        config c;
        mote_error err = {0};
        int dense = 0;
        if (!CHECK(!read_latent("deepseek_v3", "", cases[i].keys, &c, &err), "%s: %s", cases[i].keys, err.message)) continue;
        const mla_shape *s = &c.layer[c.layers].mixer.of.mla;
        for (int l = 0; l < c.layers; l++) dense += c.layer[l].ffn.kind == LAYER_MLP;
        CHECK(fabs((double)s->rope_scale - cases[i].rope_scale) < 2e-7 && fabs((double)s->scale * sqrt(28) - cases[i].scale) < 1e-6,
              "%s: cos and sin times %.7g, scores times %.7g", cases[i].keys, (double)s->rope_scale, (double)s->scale * sqrt(28));
        CHECK(s->interleaved == cases[i].interleaved && c.mtp_layers == cases[i].mtp && dense == cases[i].dense && s->q_rank == cases[i].q_rank &&
              c.layer[c.layers].ffn.kind == LAYER_MOE, "%s: pairs %d, %d MTP layers, %d dense ones, q_rank %d", cases[i].keys, s->interleaved,
              c.mtp_layers, dense, s->q_rank);
        config_free(&c);
    }
}

// DeepSeek V3's own config.json, and that of NVIDIA's V3.1.
static void test_published_latent(const char *dir) {
    static const char *const names[] = {"deepseek-ai--DeepSeek-V3_config.json", "nvidia--DeepSeek-V3.1-NVFP4_config.json"};
    for (size_t i = 0; i < COUNT(names); i++) {
        config c;
        mote_error err = {0};
        if (!CHECK(!read_config(dir, names[i], &c, &err), "%s: %s", names[i], err.message)) continue;
        const mla_shape *s = &c.layer[60].mixer.of.mla;
        const moe_shape *e = &c.layer[60].ffn.of.moe;
        CHECK(c.layers == 61 && c.hidden == 7168 && c.vocab == 129280 && c.context_max == 163840 && c.mtp_layers == 1 && s->heads == 128 &&
              s->q_rank == 1536 && s->kv_rank == 512 && s->nope_dim == 128 && s->rope_dim == 64 && s->value_dim == 128, "%s: sizes", names[i]);
        CHECK(e->experts == 256 && e->top_k == 8 && e->groups == 8 && e->groups_kept == 4 && e->routed_scale == 2.5f &&
              c.layer[2].ffn.kind == LAYER_MLP && c.layer[3].ffn.kind == LAYER_MOE && c.layer[2].ffn.of.mlp.size == 18432, "%s: FFNs", names[i]);
        CHECK(s->rope_scale == 1 && fabs((double)s->scale * sqrt(192) - 1.8738542) < 1e-6 && s->interleaved, "%s: factors", names[i]);
        config_free(&c);
    }
}
