/* diagnose/preset_configs.c: config.json of known models, for synthetic ones of families whose layers are not all alike: their families read
   it. Must not know what it says. */

#define FOUR_TIMES(text) text "," text "," text "," text
#define TEN_TIMES(text) FOUR_TIMES(text) "," FOUR_TIMES(text) "," text "," text

/* name, layers, config.json */
static const struct { const char *name; int layers; const char *config; } preset_configs[] = {
    {"gemma-4-26b-a4b", 30,
     "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":30,\"hidden_size\":2816,\"vocab_size\":262144,\"max_position_embeddings\":262144,"
     "\"tie_word_embeddings\":true,\"hidden_size_per_layer_input\":0,"
     "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"num_global_key_value_heads\":2,\"head_dim\":256,"
     "\"global_head_dim\":512,\"attention_k_eq_v\":true,\"sliding_window\":1024,\"enable_moe_block\":true,\"num_experts\":128,\"top_k_experts\":8,"
     "\"moe_intermediate_size\":704,\"intermediate_size\":2112,\"hidden_activation\":\"gelu_pytorch_tanh\",\"final_logit_softcapping\":30.0,"
     "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,\"rope_theta\":1e6},"
     "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}}"},
    {"gemma-4-31b", 60,
     "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":60,\"hidden_size\":5376,\"vocab_size\":262144,\"max_position_embeddings\":262144,"
     "\"tie_word_embeddings\":true,\"hidden_size_per_layer_input\":0,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":16,\"num_global_key_value_heads\":4,\"head_dim\":256,"
     "\"global_head_dim\":512,\"attention_k_eq_v\":true,\"sliding_window\":1024,\"intermediate_size\":21504,"
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"final_logit_softcapping\":30.0,"
     "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,\"rope_theta\":1e6},"
     "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}}"},
    {"laguna-xs-2.1", 40,
     "{\"model_type\":\"laguna\",\"num_hidden_layers\":40,\"hidden_size\":2048,\"vocab_size\":100352,\"max_position_embeddings\":262144,"
     "\"num_attention_heads\":48,\"num_key_value_heads\":8,\"head_dim\":128,\"sliding_window\":512,\"gating\":\"per-head\","
     "\"num_attention_heads_per_layer\":[" TEN_TIMES("48,64,64,64") "],"
     "\"layer_types\":[" TEN_TIMES("\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"") "],"
     "\"mlp_layer_types\":[\"dense\"," TEN_TIMES("\"sparse\",\"sparse\",\"sparse\"") "," "\"sparse\",\"sparse\",\"sparse\",\"sparse\",\"sparse\","
     "\"sparse\",\"sparse\",\"sparse\",\"sparse\"],"
     "\"intermediate_size\":8192,\"num_experts\":256,\"num_experts_per_tok\":8,\"moe_intermediate_size\":512,"
     "\"shared_expert_intermediate_size\":512,\"moe_routed_scaling_factor\":2.5,\"rope_parameters\":{"
     "\"full_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":5e5,\"factor\":32.0,\"original_max_position_embeddings\":8192,\"beta_fast\":64.0,"
     "\"beta_slow\":1.0,\"partial_rotary_factor\":0.5},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}}"},
    {"glm-4.7-flash", 47,
     "{\"model_type\":\"glm4_moe_lite\",\"num_hidden_layers\":47,\"hidden_size\":2048,\"vocab_size\":154880,\"max_position_embeddings\":202752,"
     "\"num_attention_heads\":20,\"num_key_value_heads\":20,\"q_lora_rank\":768,\"kv_lora_rank\":512,\"qk_nope_head_dim\":192,"
     "\"qk_rope_head_dim\":64,\"v_head_dim\":256,\"intermediate_size\":10240,\"n_routed_experts\":64,\"n_shared_experts\":1,"
     "\"num_experts_per_tok\":4,\"moe_intermediate_size\":1536,\"num_nextn_predict_layers\":1}"},
    {"deepseek-v3", 61,
     "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":61,\"hidden_size\":7168,\"vocab_size\":129280,\"max_position_embeddings\":163840,"
     "\"num_attention_heads\":128,\"num_key_value_heads\":128,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,"
     "\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"intermediate_size\":18432,\"n_routed_experts\":256,\"n_shared_experts\":1,"
     "\"num_experts_per_tok\":8,\"moe_intermediate_size\":2048,\"num_nextn_predict_layers\":1,\"rope_theta\":1e4,"
     "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
     "\"original_max_position_embeddings\":4096}}"},
    {"qwen3.8-flash-next", 49,
     "{\"model_type\":\"qwen4_exp_text\",\"num_hidden_layers\":48,\"hidden_size\":2560,\"vocab_size\":248320,\"max_position_embeddings\":262144,"
     "\"num_attention_heads\":24,\"num_key_value_heads\":2,\"head_dim\":256,\"linear_num_key_heads\":16,\"linear_num_value_heads\":48,"
     "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"output_gate_type\":\"sigmoid\",\"hc_count\":4,\"hc_lowrank\":320,"
     "\"num_experts\":512,\"num_experts_per_tok\":10,\"moe_intermediate_size\":640,\"shared_expert_intermediate_size\":640,"
     "\"indexer_n_heads\":4,\"indexer_kv_heads\":1,\"indexer_head_dim\":128,\"indexer_compress_ratio\":4,\"indexer_budget\":2048,"
     "\"ple_layer_ids\":[2],\"ple_embed_dim\":2560,\"ngram_size\":3,\"heads_per_ngram\":8,\"ngram_vocab_size_base\":20000000,"
     "\"make_ngram_vocab_size_divisible_by\":128,\"split_ngram_parts\":128,\"ple_conv_kernel_size\":4,\"seed\":1234,"
     "\"eos_token_id\":[248044,248046],\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e7,\"partial_rotary_factor\":0.25}}"},
    {"tiny-flash", 5,
     "{\"model_type\":\"qwen4_exp_text\",\"num_hidden_layers\":4,\"hidden_size\":64,\"vocab_size\":256,\"max_position_embeddings\":32768,"
     "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,"
     "\"linear_key_head_dim\":16,\"linear_value_head_dim\":16,\"output_gate_type\":\"sigmoid\",\"hc_count\":4,\"hc_lowrank\":16,"
     "\"layer_types\":[\"linear_attention\",\"indexed_attention\",\"linear_attention\",\"indexed_attention\"],"
     "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":64,\"shared_expert_intermediate_size\":64,"
     "\"indexer_n_heads\":2,\"indexer_kv_heads\":1,\"indexer_head_dim\":16,\"indexer_compress_ratio\":4,\"indexer_budget\":16,"
     "\"ple_layer_ids\":[2],\"ple_embed_dim\":64,\"ngram_size\":3,\"heads_per_ngram\":4,\"ngram_vocab_size_base\":211,"
     "\"make_ngram_vocab_size_divisible_by\":16,\"split_ngram_parts\":4,\"ple_conv_kernel_size\":4,\"seed\":1234,"
     "\"eos_token_id\":[255,254],\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e7,\"partial_rotary_factor\":0.25}}"},
    {"nemotron-3-nano", 52,
     "{\"model_type\":\"nemotron_h\",\"num_hidden_layers\":52,\"hidden_size\":2688,\"vocab_size\":131072,\"max_position_embeddings\":262144,"
     "\"hybrid_override_pattern\":\"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME\",\"layer_norm_epsilon\":1e-5,\"mlp_hidden_act\":\"relu2\","
     "\"num_attention_heads\":32,\"num_key_value_heads\":2,\"head_dim\":128,\"mamba_num_heads\":64,\"mamba_head_dim\":64,\"ssm_state_size\":128,"
     "\"n_groups\":8,\"conv_kernel\":4,\"n_routed_experts\":128,\"num_experts_per_tok\":6,\"moe_intermediate_size\":1856,"
     "\"moe_shared_expert_intermediate_size\":3712,\"routed_scaling_factor\":2.5}"},
    {"tiny-mamba", 7,
     "{\"model_type\":\"nemotron_h\",\"num_hidden_layers\":7,\"hidden_size\":256,\"vocab_size\":1024,\"max_position_embeddings\":32768,"
     "\"hybrid_override_pattern\":\"MEM*-ME\",\"layer_norm_epsilon\":1e-5,\"mlp_hidden_act\":\"relu2\",\"intermediate_size\":384,"
     "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,\"mamba_num_heads\":8,\"mamba_head_dim\":64,\"ssm_state_size\":128,"
     "\"n_groups\":2,\"conv_kernel\":4,\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":192,"
     "\"moe_shared_expert_intermediate_size\":320,\"routed_scaling_factor\":2.5}"},
    {"small-gemma", 4,
     "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":4,\"hidden_size\":704,\"vocab_size\":2048,\"max_position_embeddings\":262144,"
     "\"tie_word_embeddings\":true,\"hidden_size_per_layer_input\":0,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"num_global_key_value_heads\":1,\"head_dim\":256,"
     "\"global_head_dim\":512,\"attention_k_eq_v\":true,\"sliding_window\":40,\"intermediate_size\":2112,"
     "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"],"
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"final_logit_softcapping\":30.0,"
     "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,\"rope_theta\":1e6},"
     "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}}"},
    {"small-laguna", 4,
     "{\"model_type\":\"laguna\",\"num_hidden_layers\":4,\"hidden_size\":512,\"vocab_size\":2048,\"max_position_embeddings\":262144,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":128,\"sliding_window\":40,\"gating\":\"per-head\","
     "\"num_attention_heads_per_layer\":[8,16,16,8],"
     "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"],"
     "\"mlp_layer_types\":[\"dense\",\"dense\",\"dense\",\"dense\"],"
     "\"intermediate_size\":1536,\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":128,"
     "\"shared_expert_intermediate_size\":128,\"moe_routed_scaling_factor\":2.5,\"rope_parameters\":{"
     "\"full_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":5e5,\"factor\":32.0,\"original_max_position_embeddings\":8192,\"beta_fast\":64.0,"
     "\"beta_slow\":1.0,\"partial_rotary_factor\":0.5},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}}"},
    {"tiny-latent", 4,
     "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":4,\"hidden_size\":256,\"vocab_size\":1024,\"max_position_embeddings\":163840,"
     "\"num_attention_heads\":20,\"num_key_value_heads\":20,\"q_lora_rank\":128,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,"
     "\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"first_k_dense_replace\":1,\"intermediate_size\":384,\"n_routed_experts\":8,"
     "\"n_shared_experts\":1,\"num_experts_per_tok\":2,\"moe_intermediate_size\":128,\"n_group\":4,\"topk_group\":2,"
     "\"num_nextn_predict_layers\":1,\"rope_theta\":1e6,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"beta_fast\":32,\"beta_slow\":1,"
     "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096}}"}};

#undef FOUR_TIMES
#undef TEN_TIMES
enum { PRESET_CONFIGS = sizeof preset_configs / sizeof *preset_configs };
