// A part of test_checkpoint: plain numbers that are not finite. A NaN in a router would pass its expert over, in silence.

static void test_not_finite(void) {
    static const char nan_bf16[] = "\xC0\x7F", inf_f16[] = "\0\x7C", negative[] = "\0\0\x80\xFF", routed[] = "model.layers.1.mlp.gate.weight",
                      row[] = "model.embed_tokens.weight", projection[] = "model.language_model.layers.0.linear_attn.in_proj_a.weight";
    // title, fixture, edit, file, a, b, c, code, plan, needles
    const wrong_folder cases[] = {
        {"qwen3_moe's router", "families/qwen3-moe", POKE, F, routed, nan_bf16, "2", BAD, FINE, {F, "gate.weight: weight 0 is NaN, expected finite numbers"}},
        {"qwen3_next's router", "families/qwen3-next", POKE, F, routed, nan_bf16, "2", BAD, FINE, {F, routed, "weight 0 is NaN"}},
        {"deepseek_v3's router", "families/deepseek-v3", POKE, F, routed, nan_bf16, "2", BAD, FINE, {F, routed, "weight 0 is NaN"}},
        {"laguna's router", "families/laguna", POKE, F, routed, nan_bf16, "2", BAD, FINE, {F, routed, "weight 0 is NaN"}},
        {"mixtral's router", "families/mixtral", POKE, F, "model.layers.1.block_sparse_moe.gate.weight", nan_bf16, "2", BAD, FINE,
         {F, "block_sparse_moe.gate.weight: weight 0 is NaN"}},
        {"gpt_oss's router", "families/gpt-oss-mxfp4", POKE, F, "model.layers.1.mlp.router.weight", nan_bf16, "2", BAD, FINE, {F, "router.weight: weight 0 is NaN"}},
        {"gemma4's router", "families/gemma4", POKE, F, "model.language_model.layers.1.router.proj.weight", nan_bf16, "2", BAD, FINE,
         {F, "router.proj.weight: weight 0 is NaN"}},
        {"a shard", SHARDS, POKE, "layers-0.safetensors", projection, "\0\0\x80\x7F", "4", BAD, FINE, {"layers-0.safetensors", projection, "weight 1 is inf"}},
        {"F16", "f16-all-delta", POKE, F, row, inf_f16, "2", BAD, FINE, {F, row, "weight 0 is inf"}},
        {"the largest F16", "f16-all-delta", POKE, F, row, "\xFF\x7B", "2", OK, SAME, {NULL}},
        {"F32", TIED, POKE, F, row, negative, "4", BAD, FINE, {F, row, "weight 0 is -inf"}},
        {"a norm", "families/llama", POKE, F, "model.norm.weight", "\0\0\x80\x7F", "4", BAD, FINE, {F, "model.norm.weight: number 1 is inf"}},
        {"a bias", "families/gpt-oss-mxfp4", POKE, F, "model.layers.0.mlp.experts.down_proj_bias", nan_bf16, "2", BAD, FINE,
         {F, "down_proj_bias: number 0 is NaN, expected finite numbers"}},
        {"a correction", "families/laguna", POKE, F, "model.layers.1.mlp.experts.e_score_correction_bias", negative, "4", BAD, FINE,
         {F, "e_score_correction_bias: number 0 is -inf"}},
        {"a stack stored by columns", "families/gpt-oss-bf16", POKE, F, "model.layers.1.mlp.experts.down_proj", nan_bf16, "2", BAD, FINE, {F, "down_proj: weight 0 is NaN"}},
        {"a stack", "families/gemma4", POKE, F, "model.language_model.layers.1.experts.gate_up_proj", nan_bf16, "2", BAD, FINE, {F, "gate_up_proj: weight 0 is NaN"}},
        {"an MTP layer", TIED, POKE, F, "mtp.layers.0.mlp.gate.weight", "\0\0\xC0\x7F", "4", OK, SAME, {"MTP layer left out", "mtp.layers.0.mlp.gate.weight"}}};
    check_folders(cases, COUNT(cases));
}
