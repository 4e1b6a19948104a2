/* families/keys.c: the keys of config.json that no family reads. Knows what others call the features that mote lacks; no family, no
   layer.

   What a family asks for is marked (config_get). When it is done, config_unread looks at the other keys of config.json, of
   text_config and of the rope's objects. A key is passed over if nothing that is computed depends on it (idle_keys), if it has the
   one value with which nothing does (neutral_keys), or if it is null, false, 0 or empty. Any other is refused by name: a model must
   not be run as another one. */

/* Of features that mote does not have: off, or as it is in all released models of the families. A family that has one reads its
   key. */
static const struct { const char *key, *neutral; } neutral_keys[] = {
    /* activations, biases, multipliers, caps */
    {"hidden_act", "silu|swish"}, {"hidden_activation", "silu|swish"}, {"activation", "swiglu|silu|swish"}, {"attention_bias", "false"},
    {"mlp_bias", "false"}, {"scale_emb", "1"}, {"scale_depth", "null"}, {"dim_model_base", "null"}, {"embedding_multiplier", "1"},
    {"residual_multiplier", "1"}, {"key_multiplier", "1"}, {"attention_in_multiplier", "1"}, {"attention_out_multiplier", "1"},
    {"mlp_multipliers", "null"}, {"lm_head_multiplier", "1"}, {"logits_scaling", "1"}, {"logit_scale", "1"},
    {"attn_logit_softcapping", "null"}, {"final_logit_softcapping", "null"}, {"swiglu_limit", "null"}, {"clip_qkv", "null"},
    {"attn_temperature_tuning", "false"},
    /* positions, and who attends to what */
    {"rotary_pct", "1"}, {"rope_interleave", "false"}, {"rope_interleaved", "false"}, {"rope_local_base_freq", "null"},
    {"no_rope_layers", "null"}, {"alibi", "false"}, {"position_embedding_type", "rope"}, {"use_sliding_window", "false"},
    {"sliding_window_pattern", "null"}, {"attention_chunk_size", "null"}, {"is_causal", "true"},
    {"use_bidirectional_attention", "false"},
    /* layers */
    {"parallel_residual", "false"}, {"use_parallel_residual", "false"}, {"parallel_attn", "false"}, {"per_layer_config", "null"},
    {"mlp_only_layers", "null"}, {"decoder_sparse_step", "1"}, {"moe_layer_freq", "1"}, {"first_k_dense_replace", "0"},
    {"interleave_moe_layer_step", "1"}, {"moe_layer_start_index", "0"},
    /* routers */
    {"norm_topk_prob", "true"}, {"routed_scaling_factor", "1"}, {"scoring_func", "softmax"}, {"n_group", "1"}, {"topk_group", "1"},
    {"router_logit_softcapping", "null"},
    /* ropes: of yarn as it was before transformers had it */
    {"rope_parameters.attn_factor", "1"}, {"rope_parameters.extrapolation_factor", "1"}, {"rope_scaling.attn_factor", "1"},
    {"rope_scaling.extrapolation_factor", "1"}};

/* Keys on which nothing depends that is computed here. *: any characters. */
static const char *const idle_keys[] = {
    /* what the files are, who wrote them, and with what; the formats of tensors, which these show themselves */
    "model_type", "architectures", "auto_map", "transformers_version", "transformers.js_config", "torch_dtype", "dtype",
    "*name_or_path", "_commit_hash", "_auto_class", "custom_pipelines", "tokenizer_*", "model_max_length", "model_name",
    "model_version", "license", "unsloth_*", "base_model*", "is_llama_config", "language_model_only", "quantization_config",
    "quantization", "compression_config",
    /* tokens: those that count, generation_config.json and the tokenizer's files have */
    "*_token_id", "*_token_ids", "*_token_index", "bos_token", "eos_token", "pad_token", "unk_token", "chat_template",
    /* training */
    "*dropout*", "*_pdrop", "initializer_range", "initializer_factor", "*aux_loss*", "seq_aux", "*z_loss*", "router_jitter_noise", "loss_type",
    "gradient_checkpointing*", "neftune_noise_alpha", "output_router_logits", "pretraining_tp", "num_nextn_predict_layers",
    /* how something is computed, not what: kernels, caches, the type of a state */
    "use_cache", "cache_implementation", "*attn_implementation*", "*experts_implementation*", "*flash_attn*", "*flashattn*",
    "*flash_attention*", "ep_size", "mamba_ssm_dtype", "chunk_size_feed_forward", "torchscript", "use_bfloat16", "tf_legacy_loss",
    /* what transformers gives back, and other tasks */
    "keys_to_ignore_at_inference", "return_dict*", "use_return_dict", "output_attentions", "output_hidden_states", "output_scores",
    "is_decoder", "num_labels", "id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params", "prefix", "classifier_*",
    /* how text is generated */
    "max_length", "min_length", "max_new_tokens", "min_new_tokens", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
    "diversity_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
    "remove_invalid_values", "renormalize_logits", "suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty",
    "generation_config",
    /* lengths that max_position_embeddings says better; windows, which are on only with use_sliding_window, or where a family reads them */
    "max_sequence_length", "max_seq_len*", "seq_length", "seq_len", "sequence_length", "context_length", "n_positions", "n_ctx",
    "original_max_position_embeddings", "sliding_window", "max_window_layers",
    /* in a rope's object: positions of images, how it was trained, and, as in transformers, what its type does not use */
    "rope_*.mrope_*", "rope_*.finetuned", "rope_*.type", "rope_*.rope_type", "rope_*.factor", "rope_*.original_max_position_embeddings",
    "rope_*.low_freq_factor", "rope_*.high_freq_factor", "rope_*.beta_fast", "rope_*.beta_slow", "rope_*.attention_factor",
    "rope_*.mscale", "rope_*.mscale_all_dim", "rope_*.truncate"};

/* The same of images, sound and video, where the family does not read them. */
static const char *const idle_image_keys[] = {"vision_*", "image_*", "video_*", "audio_*"};

/* Of a vision tower that is read, all its keys count but those of the first table. */
static int key_is_idle(const char *key) {
    static const char tower[] = "vision_config.";
    const int of_tower = !strncmp(key, tower, sizeof tower - 1);
    for (size_t i = 0; i < sizeof idle_keys / sizeof *idle_keys; i++)
        if (matches_stars(idle_keys[i], key + (of_tower ? sizeof tower - 1 : 0))) return 1;
    for (size_t i = 0; !of_tower && i < sizeof idle_image_keys / sizeof *idle_image_keys; i++)
        if (matches_stars(idle_image_keys[i], key)) return 1;
    return 0;
}

/* The values with which a feature is off; "": the key is of none that is known. */
static const char *key_neutral(const char *key) {
    for (size_t i = 0; i < sizeof neutral_keys / sizeof *neutral_keys; i++)
        if (!strcmp(neutral_keys[i].key, key)) return neutral_keys[i].neutral;
    return "";
}

/* null, and a list or an object of nothing; of a key that is not known also false, 0 and "". */
static int value_is_nothing(const json *j, uint32_t node, int known) {
    const json_node *n = &j->nodes[node];
    if (n->type == JSON_NULL || n->type >= JSON_ARRAY || known) return n->type == JSON_NULL || (n->type >= JSON_ARRAY && !n->size);
    return n->type == JSON_STRING ? !n->size : config_is(j, node, "false");
}

/* A key that nobody read. within: what all keys of its object begin with, "rope_scaling.", or "". Of two keys of one name transformers
   takes the last; of one that is in a text_config and beside it, what is in there. */
static void config_unread_key(config_reader *r, uint32_t object, uint32_t name, const char *within) {
    char key[128];
    const size_t n = (size_t)snprintf(key, sizeof key, "%s", within), space = sizeof key - 1 - n;
    const size_t size = json_string(r->j, name, key + n, space);
    key[n + (size < space ? size : space)] = 0;
    const int whole = strlen(key + n) == size;             /* not cut, and no NUL in it */
    const char *neutral = whole ? key_neutral(key) : "";
    if (value_is_nothing(r->j, name + 1, *neutral != 0) || (whole && key_is_idle(key))) return;
    if (whole && json_get(r->j, object, key + n) != name + 1) return;
    const uint32_t text = object == r->text ? 0 : json_get(r->j, r->text, key);
    if (text && r->read[text] && !json_same(r->j, name + 1, text) && !*r->beside) snprintf(r->beside, sizeof r->beside, "%.63s", key);
    if ((text && r->read[text]) || (*neutral && config_is_one(r->j, name + 1, neutral))) return;
    if (r->read[name + 1] == KEY_BESIDE) config_refuse(r, name + 1, key, "outside of text_config, where it belongs");
    else if (*neutral) config_must_be(r, name + 1, key, neutral);
    else config_refuse(r, name + 1, key, "a key that is not known to mote");
}

/* Refuses what nobody read, and may say something, of an object and of those in it that were looked into; text_config apart. */
static void config_unread(config_reader *r, uint32_t object, const char *within) {
    const json_node *nodes = r->j->nodes;
    for (uint32_t k = object + 1; !r->code && k < nodes[object].next; k = nodes[k + 1].next) {
        char inner[120];
        if (r->read[k + 1] < KEY_READ) config_unread_key(r, object, k, within);
        if (r->read[k + 1] != KEYS_READ || k + 1 == r->text) continue;
        snprintf(inner, sizeof inner, "%s%.*s.", within, nodes[k].size < 50 ? (int)nodes[k].size : 50, r->j->text + nodes[k].start);
        config_unread(r, k + 1, inner);
    }
}
