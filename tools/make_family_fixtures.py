#!/usr/bin/env python3
"""Small random checkpoints of the other model families (make_fixtures.py makes those of qwen3_5_moe), with reference results.

    make_family_fixtures.py OUT [NAME...]            write the fixtures (or those named) as OUT/NAME/
    make_family_fixtures.py --check DIR...           recompute folders from their files alone, and compare with what is stored there
    make_family_fixtures.py --transformers DIR...    the same with transformers (which leaves the MTP layer out), in float32

Writing and --check need numpy, nothing else: the reference is section 4, in float64. It is a reference because it agrees with transformers:
--check with logits that transformers computed in float64 of other checkpoints of each of these families (to 3e-7 of their deviation, which
is what float32 files hold), --transformers here.

A folder holds config.json and model.safetensors under the released names, tokens.i32 (the prompt), logits.f32 [T, vocab], with an MTP layer
mtp_logits.f32 [T-1, vocab] (row p takes token p+1 and the final-normed hidden of p), greedy.i32, and meta.json, which tells among other
things the `reference_error`: what float32 instead of float64 costs this reference, at most, in standard deviations of the logits.

Contents: 1 fixtures  2 tensors  3 files  4 reference  5 a fixture  6 command line
"""
import dataclasses
import json
import pathlib
import sys

import numpy as np

GREEDY = 12
ROUTER_GAP, GREEDY_GAP = 1.5e-3, 2e-2       # least distances of logits from a tie: of routers, and of the two best along the greedy ids


# ---- 1. Fixtures ----------------------------------------------------------------------------------------------------

@dataclasses.dataclass
class Fixture:
    config: dict                            # config.json, as the family's releases have it
    tokens: int                             # prompt length
    seed: int                               # first seed to try
    mxfp4: bool = False                     # gpt_oss: experts as MXFP4; else BF16, which it stores [in, out]
    fp8: bool = False                       # matrices of layers as FP8 blocks with F32 scales
    f32: tuple = ()                         # ends of the names of tensors that are F32 and not BF16


def config(model_type, hidden, layers, vocab, heads, tied=False, **more):
    """heads = query, key-value, dim."""
    return dict(model_type=model_type, hidden_size=hidden, num_hidden_layers=layers, vocab_size=vocab, hidden_act="silu", rms_norm_eps=1e-6,
                num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=heads[2], attention_bias=False,
                max_position_embeddings=4096, tie_word_embeddings=tied, eos_token_id=vocab - 1) | more


def delta(key_heads, value_heads, key_dim, value_dim):
    return dict(linear_num_key_heads=key_heads, linear_num_value_heads=value_heads, linear_key_head_dim=key_dim,
                linear_value_head_dim=value_dim, linear_conv_kernel_dim=4)


def kinds(letters):
    names = dict(d="linear_attention", a="full_attention", s="sliding_attention")
    return [names[letter] for letter in letters]


def qwen3_5():
    text = config("qwen3_5_text", 32, 3, 57, (6, 2, 24), intermediate_size=72, attn_output_gate=True, layer_types=kinds("dad"),
                  mtp_num_hidden_layers=1, **delta(2, 6, 12, 16),
                  rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[1, 1, 1], mrope_interleaved=True))
    return dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", text_config=text, tie_word_embeddings=False)


def gpt_oss(letters, vocab, window, **more):
    return config("gpt_oss", 64, len(letters), vocab, (4, 2, 16), intermediate_size=32, attention_bias=True, num_local_experts=6, num_experts_per_tok=3,
                  rms_norm_eps=1e-5, layer_types=kinds(letters), sliding_window=window, swiglu_limit=7.0, initial_context_length=4096, rope_theta=150000,
                  rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=4096),
                  architectures=["GptOssForCausalLM"], max_position_embeddings=131072) | more


def latent(model_type, layers, vocab, heads, q_rank, kv_rank, nope, rope, value, **more):
    """DeepSeek V3 and what is built like it."""
    c = config(model_type, 48, layers, vocab, (heads, heads, 0), intermediate_size=48, q_lora_rank=q_rank, kv_lora_rank=kv_rank, qk_nope_head_dim=nope,
               qk_rope_head_dim=rope, v_head_dim=value, num_experts_per_tok=3, moe_intermediate_size=12, n_shared_experts=1, norm_topk_prob=True,
               scoring_func="sigmoid", topk_method="noaux_tc", first_k_dense_replace=1, moe_layer_freq=1, num_nextn_predict_layers=1)
    del c["head_dim"]
    return c | more


def laguna(letters, vocab, dense, full, sliding=None, **more):
    """The first `dense` layers have no experts. full, sliding: what is added to the ropes of these types of layers."""
    ropes = dict(full_attention=dict(rope_type="yarn", rope_theta=500000.0, beta_fast=64.0, beta_slow=1.0, original_max_position_embeddings=8192) | full)
    if sliding: ropes["sliding_attention"] = dict(rope_type="default", rope_theta=10000.0) | sliding
    return config("laguna", 32, len(letters), vocab, (4, 2, 32), intermediate_size=56, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
                  shared_expert_intermediate_size=20, mlp_layer_types=["dense"] * dense + ["sparse"] * (len(letters) - dense), mlp_only_layers=list(range(dense)),
                  decoder_sparse_step=1, norm_topk_prob=True, moe_router_logit_softcapping=0.0, moe_apply_router_weight_on_input=False,
                  rope_parameters=ropes, architectures=["LagunaForCausalLM"], max_position_embeddings=262144) | more


def gemma4(letters, vocab, full, **more):
    """full: heads of keys and values and their size in layers of full attention."""
    c = config("gemma4_text", 48, len(letters), vocab, (4, 4, 16), tied=True, intermediate_size=24, hidden_activation="gelu_pytorch_tanh",
                  num_global_key_value_heads=full[0], global_head_dim=full[1], attention_k_eq_v=full[0] is not None, layer_types=kinds(letters),
                  final_logit_softcapping=8.0, hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False,
                  use_bidirectional_attention="vision", rope_parameters=dict(full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25,
                  rope_theta=1000000.0), sliding_attention=dict(rope_type="default", rope_theta=10000.0))) | more
    del c["hidden_act"]
    return c


def nemotron_h(letters, vocab, **more):
    """A letter a layer: M Mamba-2, * attention, E experts, - an FFN."""
    c = config("nemotron_h", 28, len(letters), vocab, (4, 2, 8), hybrid_override_pattern=letters, layer_norm_epsilon=1e-5, intermediate_size=24,
               mlp_hidden_act="relu2", mlp_bias=False, use_bias=False, mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=12, n_groups=2, conv_kernel=4,
               use_conv_bias=True, mamba_hidden_act="silu", mamba_proj_bias=False, chunk_size=32, expand=2, time_step_limit=[0.0, float("inf")],
               time_step_min=0.001, time_step_max=0.1, time_step_floor=1e-4, n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=12,
               moe_shared_expert_intermediate_size=20, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5) | more
    del c["hidden_act"], c["rms_norm_eps"]
    return c


FIXTURES = {
    "llama": Fixture(config("llama", 48, 2, 35, (6, 2, 16), intermediate_size=72, rms_norm_eps=1e-5, rope_theta=500000.0, mlp_bias=False,
        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=96)), 280, 100),
    "mistral": Fixture(config("mistral", 40, 2, 35, (4, 1, 24), intermediate_size=56, rms_norm_eps=1e-5, sliding_window=None,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0)), 72, 200),
    "mixtral": Fixture(config("mixtral", 32, 2, 35, (4, 2, 12), intermediate_size=20, rms_norm_eps=1e-5, rope_theta=1000000.0, sliding_window=None,
        num_local_experts=5, num_experts_per_tok=2), 72, 300),
    "qwen3": Fixture(config("qwen3", 40, 2, 37, (4, 2, 32), tied=True, intermediate_size=48, rope_theta=1000000.0, rope_scaling=None,
        sliding_window=None, use_sliding_window=False, max_window_layers=2), 72, 400),
    "qwen3-moe": Fixture(config("qwen3_moe", 32, 3, 37, (6, 2, 24), intermediate_size=96, moe_intermediate_size=12, num_experts=7, num_experts_per_tok=3,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rope_theta=1000000.0,
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024)), 72, 500),
    "qwen3-next": Fixture(config("qwen3_next", 28, 3, 35, (4, 1, 32), intermediate_size=80, full_attention_interval=2, **delta(2, 4, 16, 12),
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=20, norm_topk_prob=True, decoder_sparse_step=1,
        mlp_only_layers=[], partial_rotary_factor=0.25, rope_theta=10000000, rope_scaling=None), 72, 600),
    "qwen3.5-dense": Fixture(qwen3_5(), 72, 700, f32=("A_log", "linear_attn.norm.weight")),
    "gpt-oss-mxfp4": Fixture(gpt_oss("sasa", 41, 24, quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])), 300, 800, mxfp4=True),
    "gpt-oss-bf16": Fixture(gpt_oss("sa", 37, 17, hidden_size=32, intermediate_size=16, head_dim=8), 72, 900),
    "glm4-moe-lite": Fixture(latent("glm4_moe_lite", 2, 37, 6, 24, 32, 12, 8, 16, hidden_size=36, rms_norm_eps=1e-5, n_routed_experts=6, n_group=1, topk_group=1,
        routed_scaling_factor=1.8, rope_theta=1000000, rope_scaling=None), 72, 1000, f32=("e_score_correction_bias",)),
    "deepseek-v3": Fixture(latent("deepseek_v3", 2, 71, 4, None, 136, 32, 16, 16, n_routed_experts=8, n_group=4, topk_group=2,
        routed_scaling_factor=2.5, rope_theta=10000, rope_scaling=dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=0.8, mscale_all_dim=1.2,
        original_max_position_embeddings=4096), max_position_embeddings=163840, quantization_config=dict(quant_method="fp8", fmt="e4m3",
        activation_scheme="dynamic", weight_block_size=[128, 128])), 72, 1100, fp8=True, f32=("e_score_correction_bias",)),
    "laguna": Fixture(laguna("asa", 34, 1, dict(factor=32.0, attention_factor=1.3465735902799727, partial_rotary_factor=0.5), dict(partial_rotary_factor=1.0),
        layer_types=kinds("asa"), num_attention_heads_per_layer=[4, 6, 4], sliding_window=24, gating="per-head", gating_types=["per_head"] * 3,
        moe_routed_scaling_factor=2.5), 198, 1001, f32=("e_score_correction_bias",)),
    "laguna-elements": Fixture(laguna("aa", 53, 1, dict(factor=64.0, partial_rotary_factor=1.0), sliding_window=0, gating="per-element",
        moe_routed_scaling_factor=1.0), 72, 1100, f32=("e_score_correction_bias",)),
    "gemma4": Fixture(dict(architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", tie_word_embeddings=True, text_config=gemma4("ssa", 43, (2, 32),
        sliding_window=24, enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=16)), 300, 1200),
    "gemma4-dense": Fixture(gemma4("sa", 33, (None, 24), sliding_window=33, enable_moe_block=False, num_experts=None, top_k_experts=None,
        moe_intermediate_size=None), 178, 1354),
    "nemotron-h": Fixture(nemotron_h("M*-ME", 43), 48, 1400, f32=("A_log", ".D", "e_score_correction_bias")),
}


# ---- 2. Tensors -----------------------------------------------------------------------------------------------------
# Every vector is random too (a norm left at 1 would hide that it is missing). The spreads are such that activations neither die out nor
# explode, and that the logits' standard deviation is some 2.5.

def tensors(c, nested):
    """Names, shapes and what is drawn, in the order of the file."""
    family, H, V, d = c["model_type"], c["hidden_size"], c["vocab_size"], c.get("head_dim")
    q, kv, body = c["num_attention_heads"], c["num_key_value_heads"], "model.language_model." if nested else "model."
    qwen_next = family in ("qwen3_5_text", "qwen3_next")                # DeltaNet layers, gated attention, norms around zero, MTP
    norm = "norm0" if qwen_next else "norm"

    def ffn(p, inner, names=("gate_proj", "up_proj", "down_proj")):
        for name, rows, columns in zip(names, (inner, inner, H), (H, H, inner)): yield f"{p}{name}.weight", (rows, columns), "matrix"

    def attention(p, q):
        for name, rows, columns in (("q", q * d * (1 + qwen_next), H), ("k", kv * d, H), ("v", kv * d, H), ("o", H, q * d)):
            yield f"{p}{name}_proj.weight", (rows, columns), "matrix"
            if family == "gpt_oss": yield f"{p}{name}_proj.bias", (rows,), "bias"
        if family == "gpt_oss": yield p + "sinks", (q,), "sinks"
        if family == "laguna": yield p + "g_proj.weight", (q * (d if c["gating"] == "per-element" else 1), H), "matrix"
        if family.startswith("qwen3") or family == "laguna":
            for name in ("q_norm", "k_norm"): yield f"{p}{name}.weight", (d,), norm

    def latents(p):
        heads, rank, n, r, v = (c[name] for name in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        if c["q_lora_rank"]:
            yield p + "q_a_proj.weight", (c["q_lora_rank"], H), "matrix"
            yield p + "q_a_layernorm.weight", (c["q_lora_rank"],), "norm"
        yield f"{p}{'q_b_proj' if c['q_lora_rank'] else 'q_proj'}.weight", (heads * (n + r), c["q_lora_rank"] or H), "matrix"
        yield p + "kv_a_proj_with_mqa.weight", (rank + r, H), "matrix"
        yield p + "kv_a_layernorm.weight", (rank,), "norm"
        yield p + "kv_b_proj.weight", (heads * (n + v), rank), "matrix"
        yield p + "o_proj.weight", (H, heads * v), "matrix"

    def deltanet(p):
        nk, nv, dk, dv = (c["linear_" + name] for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        parts = dict(qkvz=2 * nk * dk + 2 * nv * dv, ba=2 * nv) if family == "qwen3_next" else dict(qkv=2 * nk * dk + nv * dv, z=nv * dv, b=nv, a=nv)
        for name, rows in parts.items(): yield f"{p}in_proj_{name}.weight", (rows, H), "matrix"
        yield p + "conv1d.weight", (2 * nk * dk + nv * dv, 1, c["linear_conv_kernel_dim"]), "conv"
        yield p + "A_log", (nv,), "A_log"
        yield p + "dt_bias", (nv,), "dt_bias"
        yield p + "norm.weight", (dv,), "norm"
        yield p + "out_proj.weight", (H, nv * dv), "matrix"

    def feed_forward(p, dense):
        if dense: yield from ffn(p + "mlp.", c["intermediate_size"])
        elif "kv_lora_rank" in c and p != "model.layers.0.":
            yield p + "mlp.gate.weight", (c["n_routed_experts"], H), "router"
            yield p + "mlp.gate.e_score_correction_bias", (c["n_routed_experts"],), "correction"
            for e in range(c["n_routed_experts"]): yield from ffn(f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
            yield from ffn(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])
        elif family == "gpt_oss":
            E, I = c["num_local_experts"], c["intermediate_size"]
            yield p + "mlp.router.weight", (E, H), "router"
            yield p + "mlp.router.bias", (E,), "bias"
            for name, rows, columns, kind in (("gate_up", 2 * I, H, "stack_up"), ("down", H, I, "stack")):
                yield f"{p}mlp.experts.{name}_proj", (E, rows, columns), kind
                yield f"{p}mlp.experts.{name}_proj_bias", (E, rows), "bias"
        elif family == "mixtral":
            yield p + "block_sparse_moe.gate.weight", (c["num_local_experts"], H), "router"
            for e in range(c["num_local_experts"]):
                yield from ffn(f"{p}block_sparse_moe.experts.{e}.", c["intermediate_size"], ("w1", "w3", "w2"))
        elif "num_experts" in c:
            yield p + "mlp.gate.weight", (c["num_experts"], H), "router"
            for e in range(c["num_experts"]): yield from ffn(f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
            if family == "laguna": yield p + "mlp.experts.e_score_correction_bias", (c["num_experts"],), "correction"
            if "shared_expert_intermediate_size" in c:
                yield from ffn(p + "mlp.shared_expert.", c["shared_expert_intermediate_size"])
                if family != "laguna": yield p + "mlp.shared_expert_gate.weight", (1, H), "matrix"
        else: yield from ffn(p + "mlp.", c["intermediate_size"])

    def gemma(p, kind):
        full = kind == "full_attention"
        rows = c["global_head_dim"] if full else d
        pairs = c["num_global_key_value_heads"] if full and c["attention_k_eq_v"] else kv
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"): yield f"{p}{name}_layernorm.weight", (H,), "norm"
        yield p + "layer_scalar", (1,), "norm"
        for name, n, columns in (("q", q * rows, H), ("k", pairs * rows, H), ("v", pairs * rows, H), ("o", H, q * rows)):
            if name != "v" or not full or not c["attention_k_eq_v"]: yield f"{p}self_attn.{name}_proj.weight", (n, columns), "matrix"
        for name in ("q_norm", "k_norm"): yield f"{p}self_attn.{name}.weight", (rows,), "norm"
        yield from ffn(p + "mlp.", c["intermediate_size"])
        if not c["enable_moe_block"]: return
        E, I = c["num_experts"], c["moe_intermediate_size"]
        for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"): yield f"{p}{name}.weight", (H,), "norm"
        yield p + "router.proj.weight", (E, H), "router_root"
        yield p + "router.scale", (H,), "norm"
        yield p + "router.per_expert_scale", (E,), "norm"
        yield p + "experts.gate_up_proj", (E, 2 * I, H), "matrix"
        yield p + "experts.down_proj", (E, H, I), "matrix"

    def mamba(p):
        heads, dim, state, groups = (c[name] for name in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups"))
        inner, channels = heads * dim, heads * dim + 2 * groups * state
        yield p + "in_proj.weight", (inner + channels + heads, H), "matrix"
        yield p + "conv1d.weight", (channels, 1, c["conv_kernel"]), "conv"
        yield p + "conv1d.bias", (channels,), "bias"
        yield p + "A_log", (heads,), "A_log"
        yield p + "D", (heads,), "norm"
        yield p + "dt_bias", (heads,), "dt_bias"
        yield p + "norm.weight", (inner,), "norm"
        yield p + "out_proj.weight", (H, inner), "matrix"

    def ungated(p, inner):
        yield p + "up_proj.weight", (inner, H), "matrix"
        yield p + "down_proj.weight", (H, inner), "matrix"

    def nemotron(p, letter):
        m = p + "mixer."
        yield p + "norm.weight", (H,), "norm"
        if letter == "M": yield from mamba(m)
        elif letter == "*": yield from attention(m, q)
        elif letter == "-": yield from ungated(m, c["intermediate_size"])
        else:
            yield m + "gate.weight", (c["n_routed_experts"], H), "router"
            yield m + "gate.e_score_correction_bias", (c["n_routed_experts"],), "correction"
            for e in range(c["n_routed_experts"]): yield from ungated(f"{m}experts.{e}.", c["moe_intermediate_size"])
            yield from ungated(m + "shared_experts.", c["moe_shared_expert_intermediate_size"])

    def layer(p, kind, heads=q, dense=False):
        if family == "gemma4_text":
            yield from gemma(p, kind)
            return
        for name in ("input_layernorm", "post_attention_layernorm"): yield f"{p}{name}.weight", (H,), norm
        if "kv_lora_rank" in c: yield from latents(p + "self_attn.")
        else: yield from deltanet(p + "linear_attn.") if kind == "linear_attention" else attention(p + "self_attn.", heads)
        yield from feed_forward(p, dense)

    if family == "nemotron_h":
        yield "backbone.embeddings.weight", (V, H), "embedding"
        for i, letter in enumerate(c["hybrid_override_pattern"]): yield from nemotron(f"backbone.layers.{i}.", letter)
        yield "backbone.norm_f.weight", (H,), "norm"
        yield "lm_head.weight", (V, H), "head"
        return
    tied = c["tie_word_embeddings"]
    yield body + "embed_tokens.weight", (V, H), "tied" if tied else "embedding"
    heads, ffns = (c.get(key, [other] * c["num_hidden_layers"]) for key, other in (("num_attention_heads_per_layer", q), ("mlp_layer_types", None)))
    for i, kind in enumerate(layer_kinds(c)): yield from layer(f"{body}layers.{i}.", kind, heads[i], ffns[i] == "dense")
    yield body + "norm.weight", (H,), "norm_tied" if tied else norm
    if not tied: yield "lm_head.weight", (V, H), "head"
    if qwen_next:
        yield "mtp.fc.weight", (H, 2 * H), "matrix"
        yield from layer("mtp.layers.0.", "full_attention")
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"): yield f"mtp.{name}.weight", (H,), norm
    if "kv_lora_rank" in c:
        p = f"{body}layers.{c['num_hidden_layers']}."
        yield p + "embed_tokens.weight", (V, H), body + "embed_tokens.weight"           # copies
        yield p + "eh_proj.weight", (H, 2 * H), "matrix"
        for name in ("enorm", "hnorm", "shared_head.norm"): yield f"{p}{name}.weight", (H,), norm
        yield from layer(p, "full_attention")
        yield p + "shared_head.head.weight", (V, H), "lm_head.weight"


def layer_kinds(c):
    every = c.get("full_attention_interval", 1)
    return c.get("layer_types") or ["linear_attention" if (i + 1) % every else "full_attention" for i in range(c["num_hidden_layers"])]


def draw(kind, shape, rng):
    x, fan_in = rng.standard_normal(shape), shape[-1] ** 0.5
    if kind == "A_log": return np.log(rng.random(shape) * 8 + 0.05)
    if kind == "dt_bias": return 0.5 * x - 1
    if kind == "norm_tied": return 2.5 + 0.5 * x                        # with the small rows of a tied embedding: fewer repeated answers
    factor = dict(norm=0.2, norm0=0.15, sinks=1, bias=0.3, correction=0.15, conv=0.5, embedding=1, tied=0.7 / fan_in, router=2 / fan_in, router_root=2, head=2.5 / fan_in,
                  matrix=1.2 / fan_in, stack=1.2 / fan_in, stack_up=3.4 / fan_in)[kind]
    return (kind in ("norm", "sinks")) + factor * x


def mxfp4(shape, rng):
    """[E, N, K] -> blocks [E, N, K/32, 16], two codes a byte, the first in the low half, and E8M0 scales [E, N, K/32]."""
    x = 2 * rng.standard_normal((*shape[:-1], shape[-1] // 32, 32))
    codes = np.abs(np.abs(x)[..., None] - E2M1).argmin(-1) + 8 * (x < 0)
    scales = 127 + np.round(np.log2(0.6 / shape[-1] ** 0.5) + 0.8 * rng.standard_normal(x.shape[:-1]))
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8), scales.astype(np.uint8)


def fp8(value, rng):
    """[N, K] -> E4M3 codes of that, and F32 scales of blocks of 128 x 128."""
    n, k = value.shape
    scales = (np.abs(value).max() / 300 * (0.8 + 0.4 * rng.random(((n + 127) // 128, (k + 127) // 128)))).astype("<f4")
    x = value / np.kron(scales, np.ones((128, 128)))[:n, :k]
    return (np.abs(np.abs(x)[..., None] - E4M3[:127]).argmin(-1) + 128 * (x < 0)).astype(np.uint8), scales


def make(fixture, seed):
    """-> {name: (type, array)} as in the file"""
    rng, out = np.random.default_rng(seed), {}
    text = fixture.config.get("text_config", fixture.config)
    for name, shape, kind in tensors(text, "text_config" in fixture.config):
        if kind.startswith("stack") and fixture.mxfp4:
            out[name + "_blocks"], out[name + "_scales"] = (("U8", a) for a in mxfp4(shape, rng))
            continue
        if kind in out:                                                  # a copy
            out[name] = out[kind]
            continue
        value = draw(kind, shape, rng)
        if fixture.fp8 and kind == "matrix" and not name.endswith("eh_proj.weight"):
            out[name], out[name + "_scale_inv"] = zip(("F8_E4M3", "F32"), fp8(value, rng))
            continue
        if kind.startswith("stack"): value = np.ascontiguousarray(value.swapaxes(1, 2))
        if name.endswith(fixture.f32): out[name] = "F32", value.astype("<f4")
        else: out[name] = "BF16", to_bf16(value)
    return out


# ---- 3. Files -------------------------------------------------------------------------------------------------------

TYPES = dict(F32="<f4", BF16="<u2", U8="u1", F8_E4M3="u1")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.array([sign * (m / 512 if e == 0 else (8 + m) * 2.0 ** (e - 10)) for sign in (1, -1) for e in range(16) for m in range(8)])


def to_bf16(x):
    bits = x.astype("<f4").view("<u4")
    return (bits + 0x7fff + (bits >> 16 & 1) >> 16).astype("<u2")


def write_tensors(path, stored):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (kind, array) in stored.items():
        header[name] = dict(dtype=kind, shape=list(array.shape), data_offsets=[at, at + array.nbytes])
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for _, array in stored.values()))


def read_tensors(path):
    data = path.read_bytes()
    start, out = 8 + int.from_bytes(data[:8], "little"), {}
    for name, t in json.loads(data[8:start]).items():
        if name == "__metadata__": continue
        begin, end = t["data_offsets"]
        out[name] = t["dtype"], np.frombuffer(data[start + begin:start + end], TYPES[t["dtype"]]).reshape(t["shape"])
    return out


# ---- 4. Reference ---------------------------------------------------------------------------------------------------
# Rows are tokens, matrices [out, in]. No cache: a greedy step computes the whole sequence again, so there is no state to get wrong.

def sigmoid(x): return 1 / (1 + np.exp(-x))
def silu(x): return x * sigmoid(x)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def frequencies(p, dim):
    """-> frequencies [dim / 2] of pairs, and a factor on cos and sin. p: rope_theta and what scales it."""
    i = np.arange(dim // 2)
    f, kind = p["rope_theta"] ** (-2.0 * i / dim), p.get("rope_type", p.get("type", "default"))
    if kind == "default": return f, 1.0
    if kind == "proportional": return np.where(i < int(p["partial_rotary_factor"] * dim // 2), f, 0), 1.0
    factor, context = p["factor"], p["original_max_position_embeddings"]
    turns = context * f / (2 * np.pi)                                    # of a pair, over the original context
    if kind == "llama3":                                                 # slow pairs are slowed down by factor, fast ones kept
        kept = np.clip((turns - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"]), 0, 1)
        return f * (kept + (1 - kept) / factor), 1.0
    assert kind == "yarn", kind
    low, high = (dim * np.log(context / (2 * np.pi * beta)) / (2 * np.log(p["rope_theta"])) for beta in (p.get("beta_fast", 32), p.get("beta_slow", 1)))
    if p.get("truncate", True): low, high = np.floor(low), np.ceil(high)
    slow = np.clip((i - max(low, 0)) / (min(high, dim - 1) - max(low, 0)), 0, 1)
    return f * (slow / factor + 1 - slow), p.get("attention_factor", grown(factor, p.get("mscale", 1)) / grown(factor, p.get("mscale_all_dim", 0)))


def grown(factor, mscale): return 0.1 * mscale * np.log(factor) + 1


class Model:
    def __init__(self, folder, dtype=np.float64):
        whole = json.loads((folder / "config.json").read_text())
        self.c, self.family = whole.get("text_config", whole), whole["model_type"]
        self.stored, self.dtype = read_tensors(folder / "model.safetensors"), dtype
        self.gap, self.experts_seen, self.experts_chosen = np.inf, set(), set()       # least distance of a router from a tie
        self.body = "model.language_model." if any(name.startswith("model.language_model.") for name in self.stored) else "model."
        self.centred = self.family in ("qwen3_5", "qwen3_next")          # norms multiply with 1 + w, q_proj has a gate, too
        self.dim = self.c.get("qk_rope_head_dim") or self.c.get("head_dim") or self.c["hidden_size"] // self.c["num_attention_heads"]
        rope = self.c.get("rope_parameters") or self.c.get("rope_scaling") or {}
        self.ropes = {kind: self.rope_of(rope.get(kind, rope), kind) for kind in layer_kinds(self.c)}
        self.embed_factor, self.cap = 1.0, None

    def rope_of(self, of, kind):
        rope = dict(rope_theta=self.c.get("rope_theta")) | of
        return frequencies(rope, int(self.dim * rope.get("partial_rotary_factor", self.c.get("partial_rotary_factor", 1.0))))

    def w(self, name):
        if name + "_blocks" in self.stored:
            blocks, scales = (self.stored[name + end][1] for end in ("_blocks", "_scales"))
            codes = np.stack((blocks & 15, blocks >> 4), -1).reshape(*blocks.shape[:-1], 32)
            values = np.concatenate((E2M1, -E2M1))[codes] * np.exp2(scales.astype(float) - 127)[..., None]
            return values.reshape(*blocks.shape[:-2], -1).astype(self.dtype)
        kind, array = self.stored[name]
        if kind == "F8_E4M3":
            n, k = array.shape
            return (E4M3[array] * np.kron(self.stored[name + "_scale_inv"][1], np.ones((128, 128)))[:n, :k]).astype(self.dtype)
        return ((array.astype("<u4") << 16).view("<f4") if kind == "BF16" else array).astype(self.dtype)

    def linear(self, x, name):
        y = x @ self.w(name + ".weight").T
        return y + self.w(name + ".bias") if name + ".bias" in self.stored else y

    def rms(self, x): return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.dtype(self.c["rms_norm_eps"]))
    def norm(self, x, name): return self.rms(x) * (self.w(name + ".weight") + self.centred)

    def forward(self, ids):
        """-> logits [T, vocab] and MTP logits [T-1, vocab] (or None)"""
        embedding = self.w(self.body + "embed_tokens.weight")
        head, x = embedding if self.c["tie_word_embeddings"] else self.w("lm_head.weight"), embedding[ids] * self.dtype(self.embed_factor)
        for i, kind in enumerate(layer_kinds(self.c)): x = self.layer(x, f"{self.body}layers.{i}.", kind)
        h = self.norm(x, self.body + "norm")
        p = f"model.layers.{self.c['num_hidden_layers']}."
        if p + "eh_proj.weight" in self.stored:
            both = self.norm(embedding[ids[1:]], p + "enorm"), self.norm(h[:-1], p + "hnorm")
            y = self.layer(self.linear(np.concatenate(both, -1), p + "eh_proj"), p, "full_attention")
            return h @ head.T, self.norm(y, p + "shared_head.norm") @ head.T
        if self.cap: return np.tanh(h @ head.T / self.dtype(self.cap)) * self.dtype(self.cap), None
        if "mtp.fc.weight" not in self.stored: return h @ head.T, None
        both = self.norm(embedding[ids[1:]], "mtp.pre_fc_norm_embedding"), self.norm(h[:-1], "mtp.pre_fc_norm_hidden")
        y = self.layer(self.linear(np.concatenate(both, -1), "mtp.fc"), "mtp.layers.0.", "full_attention")
        return h @ head.T, self.norm(y, "mtp.norm") @ head.T

    def layer(self, x, p, kind):
        u = self.norm(x, p + "input_layernorm")
        if "kv_lora_rank" in self.c: x = x + self.latents(u, p + "self_attn.")
        else: x = x + (self.deltanet(u, p + "linear_attn.") if kind == "linear_attention" else self.attention(u, p + "self_attn.", kind))
        return x + self.feed_forward(self.norm(x, p + "post_attention_layernorm"), p)

    def rope(self, x, kind):
        """x [T, heads, dim]: pairs (i, i + n) of the first 2 n values turn"""
        turns, factor = self.ropes[kind]
        n, angle = len(turns), np.arange(len(x))[:, None, None] * turns
        cos, sin = (np.cos(angle) * factor).astype(self.dtype), (np.sin(angle) * factor).astype(self.dtype)
        a, b = x[..., :n], x[..., n:2 * n]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin, x[..., 2 * n:]), -1)

    def attention(self, u, p, kind):
        T, d = len(u), self.dim
        q, k, v = (self.linear(u, f"{p}{name}_proj").reshape(T, -1, d) for name in "qkv")
        if self.centred: q, gate = q[:, ::2], q[:, 1::2]                 # of each head, d values of q, then d of its gate
        if p + "q_norm.weight" in self.stored: q, k = self.norm(q, p + "q_norm"), self.norm(k, p + "k_norm")
        q, k = self.rope(q, kind), self.rope(k, kind)
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) * self.dtype(d ** -0.5)
        age = np.arange(T)[:, None] - np.arange(T)
        window = self.c.get("sliding_window") if kind == "sliding_attention" or self.family in ("mistral", "mixtral") else None
        scores[:, (age < 0) | (age >= (window or T))] = -np.inf
        if p + "sinks" in self.stored:                                   # one more score, of no value
            sinks = np.broadcast_to(self.w(p + "sinks")[:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate((scores, sinks), -1)
        o = np.einsum("hij,jhd->ihd", softmax(scores)[..., :T], v)
        if self.centred: o = o * sigmoid(gate)
        if p + "g_proj.weight" in self.stored:                           # one gate a head, or one an element
            o = o * np.logaddexp(0, self.linear(u, p + "g_proj")).reshape(T, o.shape[1], -1)
        return self.linear(o.reshape(T, -1), p + "o_proj")

    def latents(self, u, p):
        """Multi-head latent attention: keys and values of one latent; pairs (2 i, 2 i + 1) turn."""
        c, T, scale = self.c, len(u), self.c.get("rope_scaling") or {}
        n, heads, rank = c["qk_nope_head_dim"], c["num_attention_heads"], c["kv_lora_rank"]
        def norm(x, name): return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.dtype(1e-6)) * self.w(p + name + ".weight")
        def turn(x): return self.rope(np.concatenate((x[..., ::2], x[..., 1::2]), -1), "full_attention")      # which keeps dot products
        latent = self.linear(u, p + "kv_a_proj_with_mqa")
        q = self.linear(norm(self.linear(u, p + "q_a_proj"), "q_a_layernorm"), p + "q_b_proj") if c["q_lora_rank"] else self.linear(u, p + "q_proj")
        q, kv = q.reshape(T, heads, -1), self.linear(norm(latent[:, :rank], "kv_a_layernorm"), p + "kv_b_proj").reshape(T, heads, -1)
        scores = np.einsum("ihd,jhd->hij", q[..., :n], kv[..., :n]) + np.einsum("ihd,jd->hij", turn(q[..., n:]), turn(latent[:, None, rank:])[:, 0])
        scores *= self.dtype(q.shape[-1] ** -0.5 * grown(scale.get("factor", 1), scale.get("mscale_all_dim", 0)) ** 2)
        scores[:, np.arange(T)[:, None] < np.arange(T)] = -np.inf
        return self.linear(np.einsum("hij,jhd->ihd", softmax(scores), kv[..., n:]).reshape(T, -1), p + "o_proj")

    def deltanet(self, u, p):
        T, nk, nv, dk, dv = len(u), *(self.c["linear_" + name] for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        if p + "in_proj_qkvz.weight" in self.stored:                     # by key head: q, k, v of its value heads, z of them; b of them, a of them
            each = self.linear(u, p + "in_proj_qkvz").reshape(T, nk, -1)
            parts = np.split(each, (dk, 2 * dk, 2 * dk + nv // nk * dv), -1)
            z, qkv = parts[3], np.concatenate([part.reshape(T, -1) for part in parts[:3]], -1)
            b, a = (x.reshape(T, nv) for x in np.split(self.linear(u, p + "in_proj_ba").reshape(T, nk, -1), 2, -1))
        else: qkv, z, b, a = (self.linear(u, f"{p}in_proj_{name}") for name in ("qkv", "z", "b", "a"))
        taps = self.w(p + "conv1d.weight")[:, 0].T
        before = np.concatenate((np.zeros((len(taps) - 1, qkv.shape[1]), self.dtype), qkv))
        qkv = silu(sum(before[i:i + T] * tap for i, tap in enumerate(taps)))
        q, k, v = (x.reshape(T, -1, d) for x, d in zip(np.split(qkv, (nk * dk, 2 * nk * dk), -1), (dk, dk, dv)))
        q, k = (np.repeat(x / np.sqrt((x * x).sum(-1, keepdims=True) + self.dtype(1e-6)), nv // nk, 1) for x in (q, k))
        beta, decay = sigmoid(b), np.exp(-np.exp(self.w(p + "A_log")) * np.logaddexp(0, a + self.w(p + "dt_bias")))
        S, o = np.zeros((nv, dk, dv), self.dtype), np.zeros((T, nv, dv), self.dtype)
        for t in range(T):
            S = S * decay[t][:, None, None]
            new = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", S, k[t]))
            S = S + k[t][:, :, None] * new[:, None]
            o[t] = np.einsum("hkv,hk->hv", S, q[t]) * self.dtype(dk ** -0.5)
        o = self.rms(o) * self.w(p + "norm.weight") * silu(z.reshape(T, nv, dv))
        return self.linear(o.reshape(T, -1), p + "out_proj")

    def swiglu(self, x, p, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = (p + name for name in names)
        return self.linear(silu(self.linear(x, gate)) * self.linear(x, up), down)

    def feed_forward(self, u, p):
        if p + "block_sparse_moe.gate.weight" in self.stored:
            m = p + "block_sparse_moe."
            return self.experts(u, m + "gate", True, lambda e, x: self.swiglu(x, f"{m}experts.{e}.", ("w1", "w3", "w2")))
        m = p + "mlp."
        if m + "router.weight" in self.stored: return self.experts(u, m + "router", True, lambda e, x: self.clamped(x, m + "experts.", e))
        if m + "gate.weight" not in self.stored: return self.swiglu(u, m)
        if m + "gate.e_score_correction_bias" in self.stored: return self.corrected(u, m, "gate", "shared_experts.")
        if m + "experts.e_score_correction_bias" in self.stored: return self.corrected(u, m, "experts", "shared_expert.")
        y = self.experts(u, m + "gate", self.c["norm_topk_prob"], lambda e, x: self.swiglu(x, f"{m}experts.{e}."))
        if m + "shared_expert_gate.weight" not in self.stored: return y
        return y + sigmoid(self.linear(u, m + "shared_expert_gate")) * self.swiglu(u, m + "shared_expert.")

    def experts(self, u, router, whole, expert):
        """The sum of the chosen experts. whole: their weights add up to 1."""
        logits, y = self.linear(u, router), np.zeros_like(u)
        chosen = np.argsort(-logits, -1, kind="stable")
        k, ordered = self.c["num_experts_per_tok"], np.take_along_axis(logits, chosen, -1)
        if k < logits.shape[1]: self.gap = min(self.gap, (ordered[:, k - 1] - ordered[:, k]).min())
        weight = softmax(ordered[:, :k]) if whole else softmax(ordered)[:, :k]
        for e in range(logits.shape[1]):
            t, at = np.nonzero(chosen[:, :k] == e)
            self.experts_seen.add((router, e))
            if not len(t): continue
            self.experts_chosen.add((router, e))
            y[t] += weight[t, at, None] * expert(e, u[t])
        return y

    def corrected(self, u, p, correction, shared):
        """DeepSeek V3's experts: chosen by corrected sigmoids within the best groups, weighted with the sigmoids alone; one is for all."""
        c, y, score = self.c, self.swiglu(u, p + shared), sigmoid(self.linear(u, p + "gate"))
        groups, kept = c.get("n_group", 1), c.get("topk_group", 1)
        pick = (score + self.w(f"{p}{correction}.e_score_correction_bias")).reshape(len(u), groups, -1)
        def best(x, k):
            order = np.argsort(-x, -1, kind="stable")
            ordered = np.take_along_axis(x, order, -1)
            if k < x.shape[-1]: self.gap = min(self.gap, 4 * (ordered[:, k - 1] - ordered[:, k]).min())      # a sigmoid's slope is 1/4 at most
            return order[:, :k]
        if kept < groups:
            good = best(np.sort(pick, -1)[..., -2:].sum(-1), kept)
            pick = np.where((good[:, :, None] == np.arange(groups)).any(1)[..., None], pick, -np.inf)
        chosen = best(pick.reshape(len(u), -1), c["num_experts_per_tok"])
        weight = np.take_along_axis(score, chosen, -1)
        weight = weight / weight.sum(-1, keepdims=True) * self.dtype(c["moe_routed_scaling_factor" if self.family == "laguna" else "routed_scaling_factor"])
        for e in range(score.shape[1]):
            t, at = np.nonzero(chosen == e)
            self.experts_seen.add((p, e))
            if len(t): self.experts_chosen.add((p, e))
            y[t] += weight[t, at, None] * self.swiglu(u[t], f"{p}experts.{e}.")
        return y

    def clamped(self, x, p, e):
        """gpt-oss: rows of gate and up by turns, biases, SwiGLU with a limit; in BF16 the matrices are [in, out]."""
        up, down = self.w(p + "gate_up_proj")[e], self.w(p + "down_proj")[e]
        if p + "gate_up_proj" in self.stored: up, down = up.T, down.T
        y, limit = x @ up.T + self.w(p + "gate_up_proj_bias")[e], self.dtype(self.c["swiglu_limit"])
        g, u = np.minimum(y[:, ::2], limit), np.clip(y[:, 1::2], -limit, limit)
        return (g * sigmoid(self.dtype(1.702) * g) * (u + 1)) @ down.T + self.w(p + "down_proj_bias")[e]


class Gemma4(Model):
    def __init__(self, folder, dtype=np.float64):
        super().__init__(folder, dtype)
        bits = to_bf16(np.array([self.c["hidden_size"] ** 0.5])).astype("<u4") << 16
        self.embed_factor, self.cap = float(bits.view("<f4")[0]), self.c["final_logit_softcapping"]

    def dim_of(self, kind): return self.c["global_head_dim" if kind == "full_attention" else "head_dim"]
    def rope_of(self, of, kind): return frequencies(of, self.dim_of(kind))

    def layer(self, x, p, kind):
        x = x + self.norm(self.attention(self.norm(x, p + "input_layernorm"), p + "self_attn.", kind), p + "post_attention_layernorm")
        y = self.gelu_ffn(self.norm(x, p + "pre_feedforward_layernorm"), *(self.w(f"{p}mlp.{name}_proj.weight") for name in ("gate", "up", "down")))
        if p + "router.scale" in self.stored:
            y = self.norm(y, p + "post_feedforward_layernorm_1") + self.norm(self.routed(x, p), p + "post_feedforward_layernorm_2")
        return (x + self.norm(y, p + "post_feedforward_layernorm")) * self.w(p + "layer_scalar")

    def attention(self, u, p, kind):
        T, d = len(u), self.dim_of(kind)
        q, k = (self.linear(u, f"{p}{name}_proj").reshape(T, -1, d) for name in "qk")
        v = self.linear(u, p + "v_proj").reshape(T, -1, d) if p + "v_proj.weight" in self.stored else k
        q, k, v = self.rope(self.norm(q, p + "q_norm"), kind), self.rope(self.norm(k, p + "k_norm"), kind), self.rms(v)
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores, age = np.einsum("ihd,jhd->hij", q, k), np.arange(T)[:, None] - np.arange(T)
        scores[:, (age < 0) | (age >= (T if kind == "full_attention" else self.c["sliding_window"]))] = -np.inf
        return self.linear(np.einsum("hij,jhd->ihd", softmax(scores), v).reshape(T, -1), p + "o_proj")

    def gelu_ffn(self, x, gate, up, down):
        g = x @ gate.T
        return (0.5 * g * (1 + np.tanh(self.dtype((2 / np.pi) ** 0.5) * (g + self.dtype(0.044715) * g ** 3))) * (x @ up.T)) @ down.T

    def routed(self, x, p):
        """The experts, of what they read by their own norm; the router reads x by another."""
        u, y, k = self.norm(x, p + "pre_feedforward_layernorm_2"), np.zeros_like(x), self.c["top_k_experts"]
        logits = self.linear(self.rms(x) * self.w(p + "router.scale") * self.dtype(self.c["hidden_size"] ** -0.5), p + "router.proj")
        chosen = np.argsort(-logits, -1, kind="stable")
        ordered = np.take_along_axis(logits, chosen, -1)
        self.gap = min(self.gap, (ordered[:, k - 1] - ordered[:, k]).min())
        weight = softmax(ordered[:, :k]) * self.w(p + "router.per_expert_scale")[chosen[:, :k]]
        for e in range(logits.shape[1]):
            t, at = np.nonzero(chosen[:, :k] == e)
            self.experts_seen.add((p, e))
            if not len(t): continue
            self.experts_chosen.add((p, e))
            gate, up = np.split(self.w(p + "experts.gate_up_proj")[e], 2)
            y[t] += weight[t, at, None] * self.gelu_ffn(u[t], gate, up, self.w(p + "experts.down_proj")[e])
        return y


class NemotronH(Model):
    def rms(self, x): return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.dtype(self.c["layer_norm_epsilon"]))
    def rope(self, x, kind): return x
    def rope_of(self, of, kind): return None
    def swiglu(self, x, p): return self.linear(np.maximum(self.linear(x, p + "up_proj"), 0) ** 2, p + "down_proj")

    def forward(self, ids):
        x = self.w("backbone.embeddings.weight")[ids]
        for i, letter in enumerate(self.c["hybrid_override_pattern"]):
            p = f"backbone.layers.{i}."
            u, m = self.norm(x, p + "norm"), p + "mixer."
            if letter == "M": x = x + self.mamba(u, m)
            elif letter == "*": x = x + self.attention(u, m, "full_attention")
            elif letter == "-": x = x + self.swiglu(u, m)
            else: x = x + self.corrected(u, m, "gate", "shared_experts.")
        return self.norm(x, "backbone.norm_f") @ self.w("lm_head.weight").T, None

    def mamba(self, u, p):
        T, heads, dim, n, groups = len(u), *(self.c[name] for name in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups"))
        inner, shared, taps = heads * dim, groups * n, self.w(p + "conv1d.weight")[:, 0].T
        z, xBC, dt = np.split(self.linear(u, p + "in_proj"), (inner, 2 * inner + 2 * shared), -1)
        before = np.concatenate((np.zeros((len(taps) - 1, xBC.shape[1]), self.dtype), xBC))
        x, B, C = np.split(silu(sum(before[i:i + T] * tap for i, tap in enumerate(taps)) + self.w(p + "conv1d.bias")), (inner, inner + shared), -1)
        x, (B, C) = x.reshape(T, heads, dim), (np.repeat(y.reshape(T, groups, n), heads // groups, 1) for y in (B, C))
        dt = np.logaddexp(0, dt + self.w(p + "dt_bias"))
        decay, S, y = np.exp(-np.exp(self.w(p + "A_log")) * dt), np.zeros((heads, dim, n), self.dtype), np.zeros((T, heads, dim), self.dtype)
        for t in range(T):
            S = S * decay[t][:, None, None] + (dt[t][:, None] * x[t])[:, :, None] * B[t][:, None]
            y[t] = np.einsum("hdn,hn->hd", S, C[t]) + self.w(p + "D")[:, None] * x[t]
        y = (y.reshape(T, inner) * silu(z)).reshape(T, groups, -1)          # the gate, then the norm, group by group
        return self.linear(self.rms(y).reshape(T, inner) * self.w(p + "norm.weight"), p + "out_proj")


def model_of(folder, dtype=np.float64):
    family = json.loads((folder / "config.json").read_text())["model_type"]
    return (Gemma4 if family.startswith("gemma4") else NemotronH if family == "nemotron_h" else Model)(folder, dtype)


# ---- 5. A fixture ---------------------------------------------------------------------------------------------------

def greedy_ids(model, ids, last, vocab):
    """-> (ids of the greedy continuation, least gap of the two best logits), or (None, why not)"""
    line, least = ids, np.inf
    while True:
        second, best = np.argsort(last)[-2:]
        least = min(least, last[best] - last[second])
        if least < GREEDY_GAP or best == vocab - 1: return None, "a greedy choice is close, or ends the text"
        line = np.append(line, best)
        if len(line) == len(ids) + GREEDY: break
        last = model.forward(line)[0][-1]
    new = line[len(ids):]
    return (new, least) if len(set(new.tolist())) >= GREEDY // 2 else (None, "the greedy ids repeat themselves")


def try_seed(folder, fixture, seed):
    """Writes checkpoint and results; -> meta.json, or why this draw is not good enough."""
    stored, vocab = make(fixture, seed), fixture.config.get("text_config", fixture.config)["vocab_size"]
    write_tensors(folder / "model.safetensors", stored)
    ids = np.random.default_rng(10 ** 6 + seed).integers(0, vocab - 1, fixture.tokens)
    model = model_of(folder)
    logits, mtp = model.forward(ids)
    if model.gap < ROUTER_GAP: return "a router is close to a tie"
    if model.experts_seen != model.experts_chosen: return "an expert is never chosen"
    greedy, gap = greedy_ids(model, ids, logits[-1], vocab)
    if greedy is None: return gap
    if model.gap < ROUTER_GAP: return "a router is close to a tie in the greedy continuation"
    std, error = logits.std(), 0.0
    for exact, rounded in zip((logits, mtp), model_of(folder, np.float32).forward(ids)):
        if exact is not None: error = max(error, float(np.abs(exact - rounded).max() / std))
    for name, values, kind in (("tokens.i32", ids, "<i4"), ("logits.f32", logits, "<f4"), ("mtp_logits.f32", mtp, "<f4"), ("greedy.i32", greedy, "<i4")):
        if values is not None: values.astype(kind).tofile(folder / name)
    return dict(name=folder.name, family=fixture.config["model_type"], tokens=fixture.tokens, greedy=GREEDY, vocab=vocab, seed=seed, mtp=mtp is not None,
                logit_std=round(float(std), 4), reference="float64", reference_error=float(f"{error:.2g}"), min_greedy_gap=round(float(gap), 5),
                min_router_gap=round(float(model.gap), 6) if model.experts_seen else None, tensors=len(stored))


def write(folder, fixture):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fixture.config, indent=1) + "\n")
    for seed in range(fixture.seed, fixture.seed + 100):
        meta = try_seed(folder, fixture, seed)
        if isinstance(meta, dict): break
    else: raise SystemExit(f"{folder}: no seed is good enough: {meta}")
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    print(folder, *(f"{key} {meta[key]}" for key in ("seed", "logit_std", "reference_error", "min_router_gap", "min_greedy_gap")),
          "bytes", sum(file.stat().st_size for file in folder.iterdir()))


# ---- 6. Command line ------------------------------------------------------------------------------------------------

def compare(folder, logits, mtp, allowed):
    """With what the folder has; -> is it within allowed standard deviations?"""
    worst = []
    for name, got in (("logits.f32", logits), ("mtp_logits.f32", mtp)):
        if got is None: continue
        want = np.fromfile(folder / name, "<f4").reshape(-1, got.shape[1]).astype(float)
        worst.append(float(np.abs(got[:len(want)] - want).max() / want.std()))
    print(folder, "off by", *(f"{x:.1e}" for x in worst), "of the logits' deviation")
    return all(x <= allowed for x in worst)


def check(folder):
    ids, greedy = (np.fromfile(folder / name, "<i4") for name in ("tokens.i32", "greedy.i32"))
    logits, mtp = model_of(folder).forward(np.append(ids, greedy[:-1]))      # causal: the prompt's rows do not see the rest
    follows = (logits[len(ids) - 1:].argmax(-1) == greedy).all()
    if not follows: print(folder, "the greedy ids are others")
    return compare(folder, logits, mtp, 1e-6) and follows


def check_with_transformers(folder):
    import torch
    import transformers
    torch.set_num_threads(2)
    options = dict(dtype=torch.float32, attn_implementation="eager")
    if "quantization_config" in json.loads((folder / "config.json").read_text()):
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).float().eval()
    scale = getattr(model.get_input_embeddings(), "embed_scale", None)
    if scale is not None: scale.copy_(scale.bfloat16())                  # as a BF16 model has Gemma's factor
    ids = torch.from_numpy(np.fromfile(folder / "tokens.i32", "<i4").astype(np.int64))
    with torch.no_grad(): logits = model(ids[None], use_cache=False).logits[0].double().numpy()
    return compare(folder, logits, None, 1e-4)


if __name__ == "__main__":
    how, folders = sys.argv[1], [pathlib.Path(name) for name in sys.argv[2:]]
    if how.startswith("--"):
        sys.exit(not all([{"--check": check, "--transformers": check_with_transformers}[how](folder) for folder in folders]))
    for name in sys.argv[2:] or FIXTURES: write(pathlib.Path(how) / name, FIXTURES[name])
