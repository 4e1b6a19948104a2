/* serve/field_table.c: every field that requests of the APIs are known to have, and what becomes of it. docs/server.md lists
   the same ones, which a test compares. It knows names, and nothing of JSON or of what the fields are for. */

enum { API_CHAT = 1, API_COMPLETIONS = 2, API_MESSAGES = 4, API_RESPONSES = 8, API_EMBEDDINGS = 16, API_RERANK = 32 };
/* API_ALL: all that answer with tokens. */
enum { API_TEXTS = API_EMBEDDINGS | API_RERANK };
enum { API_CHATS = API_CHAT | API_MESSAGES | API_RESPONSES, API_OPENAI = API_CHAT | API_COMPLETIONS, API_ALL = 15 };

enum {
    FIELD_HONOURED,                        /* read, by whatever asks for it */
    FIELD_PASSED,                          /* bears on nothing in the answer */
    FIELD_NOTED,                           /* may bear on it and is passed over all the same, since clients send it: the answer's head
                                              says so */
    FIELD_REFUSED                          /* by its name, unless it asks for nothing: see field_asks */
};

typedef struct field_rule {
    const char *name;
    int apis, rule;
    const char *nothing;                   /* FIELD_REFUSED: further values that ask for nothing, with | between them */
} field_rule;

static const field_rule field_table[] = {
    /* Sampling and ends, of all APIs */
    {"temperature", API_ALL, FIELD_HONOURED, NULL},
    {"top_p", API_ALL, FIELD_HONOURED, NULL},
    {"top_k", API_ALL, FIELD_HONOURED, NULL},
    {"min_p", API_ALL, FIELD_HONOURED, NULL},
    {"repetition_penalty", API_ALL, FIELD_HONOURED, NULL},
    {"repeat_penalty", API_ALL, FIELD_HONOURED, NULL},
    {"repeat_last_n", API_ALL, FIELD_HONOURED, NULL},
    {"presence_penalty", API_ALL, FIELD_HONOURED, NULL},
    {"frequency_penalty", API_ALL, FIELD_HONOURED, NULL},
    {"logit_bias", API_ALL, FIELD_HONOURED, NULL},
    {"seed", API_ALL, FIELD_HONOURED, NULL},
    {"stop", API_OPENAI | API_RESPONSES, FIELD_HONOURED, NULL},
    {"stop_sequences", API_MESSAGES, FIELD_HONOURED, NULL},
    {"min_tokens", API_ALL, FIELD_HONOURED, NULL},
    {"ignore_eos", API_ALL, FIELD_HONOURED, NULL},
    {"cache_prompt", API_ALL, FIELD_HONOURED, NULL},
    {"stream", API_ALL, FIELD_HONOURED, NULL},

    /* Other samplers and masks */
    {"typical_p", API_ALL, FIELD_REFUSED, "1"},
    {"top_a", API_ALL, FIELD_REFUSED, NULL},
    {"tfs_z", API_ALL, FIELD_REFUSED, "1"},
    {"top_n_sigma", API_ALL, FIELD_REFUSED, "-1"},
    {"mirostat", API_ALL, FIELD_REFUSED, NULL},
    {"dry_multiplier", API_ALL, FIELD_REFUSED, NULL},
    {"xtc_probability", API_ALL, FIELD_REFUSED, NULL},
    {"dynatemp_range", API_ALL, FIELD_REFUSED, NULL},
    {"smoothing_factor", API_ALL, FIELD_REFUSED, NULL},
    {"epsilon_cutoff", API_ALL, FIELD_REFUSED, NULL},
    {"eta_cutoff", API_ALL, FIELD_REFUSED, NULL},
    {"samplers", API_ALL, FIELD_REFUSED, NULL},
    {"min_keep", API_ALL, FIELD_REFUSED, "1"},
    {"mirostat_tau", API_ALL, FIELD_PASSED, NULL},
    {"mirostat_eta", API_ALL, FIELD_PASSED, NULL},
    {"dry_base", API_ALL, FIELD_PASSED, NULL},
    {"dry_allowed_length", API_ALL, FIELD_PASSED, NULL},
    {"dry_penalty_last_n", API_ALL, FIELD_PASSED, NULL},
    {"dry_sequence_breakers", API_ALL, FIELD_PASSED, NULL},
    {"xtc_threshold", API_ALL, FIELD_PASSED, NULL},
    {"dynatemp_exponent", API_ALL, FIELD_PASSED, NULL},
    {"stop_token_ids", API_ALL, FIELD_REFUSED, NULL},
    {"include_stop_str_in_output", API_ALL, FIELD_REFUSED, NULL},
    {"allowed_token_ids", API_ALL, FIELD_REFUSED, NULL},
    {"bad_words", API_ALL, FIELD_REFUSED, NULL},
    {"bad_words_ids", API_ALL, FIELD_REFUSED, NULL},
    {"logits_processors", API_ALL, FIELD_REFUSED, NULL},
    {"use_beam_search", API_ALL, FIELD_REFUSED, NULL},
    {"length_penalty", API_ALL, FIELD_REFUSED, "1"},
    {"early_stopping", API_ALL, FIELD_REFUSED, NULL},
    {"guided_json", API_ALL, FIELD_REFUSED, NULL},
    {"guided_regex", API_ALL, FIELD_REFUSED, NULL},
    {"guided_choice", API_ALL, FIELD_REFUSED, NULL},
    {"guided_grammar", API_ALL, FIELD_REFUSED, NULL},
    {"structured_outputs", API_ALL, FIELD_REFUSED, NULL},
    {"json_schema", API_ALL, FIELD_REFUSED, NULL},
    {"grammar", API_ALL, FIELD_REFUSED, NULL},
    {"lora", API_ALL, FIELD_REFUSED, NULL},
    {"truncate_prompt_tokens", API_ALL, FIELD_REFUSED, NULL},
    {"t_max_predict_ms", API_ALL, FIELD_REFUSED, NULL},
    {"n_indent", API_ALL, FIELD_REFUSED, NULL},

    /* Further contents of an answer */
    {"return_token_ids", API_CHAT, FIELD_HONOURED, NULL},
    {"return_progress", API_OPENAI, FIELD_HONOURED, NULL},
    {"timings_per_token", API_OPENAI, FIELD_HONOURED, NULL},
    {"prompt_logprobs", API_ALL, FIELD_REFUSED, NULL},
    {"n_probs", API_ALL, FIELD_REFUSED, NULL},
    {"post_sampling_probs", API_ALL, FIELD_REFUSED, NULL},
    {"response_fields", API_ALL, FIELD_REFUSED, NULL},
    {"return_tokens", API_ALL, FIELD_REFUSED, NULL},
    {"return_tokens_as_token_ids", API_ALL, FIELD_REFUSED, NULL},
    {"skip_special_tokens", API_ALL, FIELD_REFUSED, "true"},
    {"detokenize", API_ALL, FIELD_REFUSED, "true"},
    {"spaces_between_special_tokens", API_ALL, FIELD_PASSED, NULL},

    /* The client, and how its request is run */
    {"model", API_ALL, FIELD_PASSED, NULL},
    {"user", API_ALL, FIELD_PASSED, NULL},
    {"metadata", API_ALL, FIELD_PASSED, NULL},
    {"store", API_ALL, FIELD_PASSED, NULL},
    {"service_tier", API_ALL, FIELD_PASSED, NULL},
    {"safety_identifier", API_ALL, FIELD_PASSED, NULL},
    {"prompt_cache_key", API_ALL, FIELD_PASSED, NULL},
    {"prompt_cache_retention", API_ALL, FIELD_PASSED, NULL},
    {"priority", API_ALL, FIELD_PASSED, NULL},
    {"request_id", API_ALL, FIELD_PASSED, NULL},
    {"id_slot", API_ALL, FIELD_PASSED, NULL},
    {"n_keep", API_ALL, FIELD_PASSED, NULL},
    {"n_discard", API_ALL, FIELD_PASSED, NULL},
    {"add_special_tokens", API_ALL, FIELD_PASSED, NULL},
    {"speculative.n_max", API_ALL, FIELD_PASSED, NULL},
    {"speculative.n_min", API_ALL, FIELD_PASSED, NULL},
    {"speculative.p_min", API_ALL, FIELD_PASSED, NULL},
    {"n", API_OPENAI, FIELD_HONOURED, NULL},
    {"best_of", API_OPENAI, FIELD_HONOURED, NULL},
    {"stream_options", API_OPENAI, FIELD_HONOURED, NULL},
    {"stream_options", API_MESSAGES | API_RESPONSES, FIELD_PASSED, NULL},

    /* Chats */
    {"messages", API_CHAT | API_MESSAGES, FIELD_HONOURED, NULL},
    {"tools", API_CHATS, FIELD_HONOURED, NULL},
    {"tool_choice", API_CHATS, FIELD_HONOURED, NULL},
    {"parallel_tool_calls", API_CHAT | API_RESPONSES, FIELD_HONOURED, NULL},
    {"enable_thinking", API_CHATS, FIELD_HONOURED, NULL},
    {"thinking_budget", API_CHATS, FIELD_HONOURED, NULL},
    {"thinking_token_budget", API_CHATS, FIELD_HONOURED, NULL},
    {"thinking_budget_tokens", API_CHATS, FIELD_HONOURED, NULL},
    {"chat_template_kwargs", API_CHATS, FIELD_HONOURED, NULL},
    {"add_generation_prompt", API_CHAT, FIELD_HONOURED, NULL},
    {"continue_final_message", API_CHAT, FIELD_HONOURED, NULL},
    {"chat_template", API_CHATS, FIELD_REFUSED, NULL},
    {"documents", API_CHATS, FIELD_REFUSED, NULL},
    {"mm_processor_kwargs", API_CHATS, FIELD_REFUSED, NULL},
    {"separate_reasoning", API_CHATS, FIELD_REFUSED, "true"},
    {"include_reasoning", API_CHATS, FIELD_REFUSED, "true"},
    {"reasoning_format", API_CHATS, FIELD_REFUSED, "auto|deepseek"},
    {"reasoning_in_content", API_CHATS, FIELD_REFUSED, NULL},
    {"thinking_forced_open", API_CHATS, FIELD_REFUSED, NULL},
    {"parse_tool_calls", API_CHATS, FIELD_REFUSED, "true"},

    /* Chat completions */
    {"max_tokens", API_OPENAI | API_MESSAGES, FIELD_HONOURED, NULL},
    {"max_completion_tokens", API_CHAT, FIELD_HONOURED, NULL},
    {"n_predict", API_OPENAI, FIELD_HONOURED, NULL},
    {"logprobs", API_OPENAI, FIELD_HONOURED, NULL},
    {"top_logprobs", API_CHAT, FIELD_HONOURED, NULL},
    {"response_format", API_CHAT, FIELD_HONOURED, NULL},
    {"reasoning_effort", API_CHAT, FIELD_HONOURED, NULL},
    {"functions", API_CHAT, FIELD_REFUSED, NULL},
    {"function_call", API_CHAT, FIELD_REFUSED, "none"},
    {"audio", API_CHAT, FIELD_REFUSED, NULL},
    {"modalities", API_CHAT, FIELD_REFUSED, "text"},
    {"verbosity", API_CHAT, FIELD_REFUSED, "medium"},
    {"web_search_options", API_CHAT, FIELD_REFUSED, NULL},
    {"prediction", API_CHAT, FIELD_PASSED, NULL},
    {"echo", API_CHAT, FIELD_REFUSED, NULL},

    /* Completions */
    {"prompt", API_COMPLETIONS, FIELD_HONOURED, NULL},
    {"echo", API_COMPLETIONS, FIELD_HONOURED, NULL},
    {"suffix", API_COMPLETIONS, FIELD_REFUSED, NULL},
    {"response_format", API_COMPLETIONS, FIELD_REFUSED, NULL},

    /* Messages */
    {"system", API_MESSAGES, FIELD_HONOURED, NULL},
    {"thinking", API_MESSAGES, FIELD_HONOURED, NULL},
    {"output_config", API_MESSAGES, FIELD_HONOURED, NULL},
    {"output_format", API_MESSAGES, FIELD_HONOURED, NULL},
    {"container", API_MESSAGES, FIELD_REFUSED, NULL},
    {"mcp_servers", API_MESSAGES, FIELD_REFUSED, NULL},
    {"context_management", API_MESSAGES | API_RESPONSES, FIELD_NOTED, NULL},
    {"cache_control", API_MESSAGES, FIELD_PASSED, NULL},
    {"betas", API_MESSAGES, FIELD_PASSED, NULL},
    {"inference_geo", API_MESSAGES, FIELD_PASSED, NULL},
    {"speed", API_MESSAGES, FIELD_PASSED, NULL},

    /* Responses */
    {"input", API_RESPONSES, FIELD_HONOURED, NULL},
    {"instructions", API_RESPONSES, FIELD_HONOURED, NULL},
    {"max_output_tokens", API_RESPONSES, FIELD_HONOURED, NULL},
    {"reasoning", API_RESPONSES, FIELD_HONOURED, NULL},
    {"text", API_RESPONSES, FIELD_HONOURED, NULL},
    {"include", API_RESPONSES, FIELD_HONOURED, NULL},
    {"previous_response_id", API_RESPONSES, FIELD_REFUSED, NULL},
    {"conversation", API_RESPONSES, FIELD_REFUSED, NULL},
    {"background", API_RESPONSES, FIELD_REFUSED, NULL},
    {"prompt", API_RESPONSES, FIELD_REFUSED, NULL},
    {"top_logprobs", API_RESPONSES, FIELD_REFUSED, NULL},
    {"max_tool_calls", API_RESPONSES, FIELD_PASSED, NULL},
    {"truncation", API_RESPONSES, FIELD_PASSED, NULL},
    {"client_metadata", API_RESPONSES, FIELD_PASSED, NULL},

    /* Embeddings */
    {"input", API_EMBEDDINGS, FIELD_HONOURED, NULL},
    {"encoding_format", API_EMBEDDINGS, FIELD_HONOURED, NULL},
    {"dimensions", API_EMBEDDINGS, FIELD_HONOURED, NULL},
    {"pooling", API_EMBEDDINGS, FIELD_HONOURED, NULL},
    {"model", API_TEXTS, FIELD_PASSED, NULL},
    {"user", API_TEXTS, FIELD_PASSED, NULL},
    {"metadata", API_TEXTS, FIELD_PASSED, NULL},
    {"priority", API_TEXTS, FIELD_PASSED, NULL},
    {"request_id", API_TEXTS, FIELD_PASSED, NULL},
    {"add_special_tokens", API_EMBEDDINGS, FIELD_REFUSED, "true"},
    {"normalize", API_EMBEDDINGS, FIELD_REFUSED, "true"},
    {"truncate_prompt_tokens", API_TEXTS, FIELD_REFUSED, NULL},

    /* Rerankers */
    {"query", API_RERANK, FIELD_HONOURED, NULL},
    {"documents", API_RERANK, FIELD_HONOURED, NULL},
    {"top_n", API_RERANK, FIELD_HONOURED, NULL},
    {"return_documents", API_RERANK, FIELD_HONOURED, NULL},
    {"instruction", API_RERANK, FIELD_HONOURED, NULL},
    {"rank_fields", API_RERANK, FIELD_REFUSED, NULL},
    {"max_tokens_per_doc", API_RERANK, FIELD_REFUSED, NULL},
    {"max_chunks_per_doc", API_RERANK, FIELD_REFUSED, NULL},
};
enum { FIELD_COUNT = sizeof field_table / sizeof field_table[0] };
